"""Which mistake is it? A component that has failed is compared, on many inputs, with every known mistake.

A mistake is named where the subject's outputs equal its own up to rounding on all inputs that can be compared, at least
one of which clearly has another right answer. What is equal to none is described by what was measured: `nearest`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from typing import Any

import numpy as np

import reference.numpy
from reference.shape_checks import unchecked
from spec_tests.kit import assembly, divergence
from spec_tests.kit.draws import Budget, Draw, Raised, draws_of, outcome, outcome_of, writes
from spec_tests.kit.nearest import common, nearest
from spec_tests.kit.wire import decode_call
from spec_tests.pitfalls.pitfall import Pitfall, pitfalls, right_functions
from spec_tests.subjects.contract import VJP, Call
from spec_tests.subjects.subject import Subject

SECONDS = 1.8
"""So long a component may be compared."""

DRAWING = 0.4
"""The share of it that drawing and calling may take."""

PROBED = 3
"""A mistake that is unlike the subject on so many wrong inputs, of different cases, is not compared any further."""

NAMED = 4
"""Of mistakes that cannot be told apart so many are described."""


def diagnose(
    subject: Subject,
    component: str,
    *,
    calls: list[dict[str, Any]],
    gradient: bool = False,
    seed: int = 0,
    seconds: float = SECONDS,
) -> dict[str, Any] | None:
    """Say what is wrong with a component, given the calls of its failures; None where nothing is found wrong.

    `gradient` says that properties about its gradient have failed. The result is in the form of the report's schema.
    """
    budget = Budget(seconds)
    failed = [decode_call(call) for call in calls]
    draws = draws_of(subject, component, failed, seed=seed, budget=budget, share=DRAWING)
    findings = _findings(subject, component, draws, budget)
    if gradient and subject.offers(component + VJP) and not (findings and subject.by_autograd(component + VJP)):
        gradients = draws_of(subject, component, failed, seed=seed, budget=budget, share=DRAWING / 2, gradient=True)
        findings += _findings(subject, component + VJP, gradients, budget)
    if not findings:
        return None
    diagnosis = {"component": component, "findings": findings}
    if (apart := divergence.first(subject, component, draws)) is not None:
        diagnosis["first_divergence"] = apart
    return {**diagnosis, "seconds": round(budget.spent, 3)}


def _findings(subject: Subject, name: str, draws: list[Draw], budget: Budget) -> list[dict[str, Any]]:
    """Compare values on good input, and what is made of bad input."""
    good = [draw for draw in draws if not draw.refused]
    bad = [draw for draw in draws if draw.refused and not isinstance(draw.got, Raised)]
    about, dtype = "gradients" if name.endswith(VJP) else "values", subject.dtype.name
    found: list[dict[str, Any]] = []
    if wrong := [draw for draw in good if draw.wrong]:
        search = _Search(name, good, dtype, budget)
        with unchecked():  # as the draws were made
            whims = _whims(subject, search)
        if whims:
            found.append(whims)
        elif matches := search.matches():
            found.append(_named(name, about, matches, good, wrong))
        elif search.partly:
            found.append(_named_in_part(name, about, search, wrong))
        else:
            kind, text = nearest(name, good)
            found.append({"about": about, "kind": kind, "pitfalls": [], "text": f"{text}\n{search.told()}"})
    if any(draw.writes for draw in draws):
        found.append(_writing(name, draws))
    if bad and good and (accepting := _accepting(name, bad, good, dtype)):
        found.append(_named_for_bad_input(name, accepting, bad))
    return found


def _writing(name: str, draws: list[Draw]) -> dict[str, Any]:
    """Say that arguments are written into, and which known mistakes of the component do that."""
    spoilt = [draw for draw in draws if draw.writes]
    mistakes = [m for m in mistakes_of(name, "float64") if name in m.touches]
    doing = [m for m in mistakes if all(writes(function_with(name, m), draw.call) for draw in spoilt)]
    described = _described([Match((mistake,), 0.0) for mistake in doing[:NAMED]])
    ids = " and ".join(mistake["id"] for mistake in described)
    known = f", as {ids} does" if ids else ""
    text = f"{name} writes into its arguments on {len(spoilt)} of {len(draws)} inputs{known}."
    lines = "\n".join([text, *_told(described)])
    return {"about": "arguments", "kind": "writes", "pitfalls": described, "text": lines}


def _whims(subject: Subject, search: "_Search") -> dict[str, Any] | None:
    """Say that the same input gives another result each time, and which known mistakes do that; None if it does not."""
    draws = [draw for draw in search.wrong[:PROBED] if draw.differs(outcome_of(subject, draw.call), draw.got)]
    if not draws:
        return None

    def varies(mistake: Pitfall) -> bool:
        function = function_with(search.name, mistake)
        one, other = (outcome(function, draws[0].call, search.dtype) for _ in range(2))
        return draws[0].differs(one, other)

    described = _described([Match((mistake,), 0.0) for mistake in search.mistakes if varies(mistake)][:NAMED])
    ids = " and ".join(mistake["id"] for mistake in described)
    known = f" So it does in {ids}." if ids else ""
    text = f"{search.name} gives another result each time it gets the same input.{known}"
    about = "gradients" if search.name.endswith(VJP) else "values"
    return {"about": about, "kind": "whims", "pitfalls": described, "text": "\n".join([text, *_told(described)])}


# ----------------------------------------------------------------------------------------------- known mistakes


@dataclass(frozen=True)
class Match:
    """Mistakes, one or two together, whose outputs the subject's are."""

    mistakes: tuple[Pitfall, ...]
    within: float  # the largest difference, as a share of the largest number

    @property
    def id(self) -> str:
        """Name it: one mistake, or two joined."""
        return " with ".join(mistake.id for mistake in self.mistakes)


@dataclass(frozen=True)
class Part:
    """A mistake that explains some of what is wrong, and where."""

    mistake: Pitfall
    draws: list[Draw]


class _Search:
    """The known mistakes that a component, or a part of it, may have, and which of them it has."""

    def __init__(self, name: str, draws: list[Draw], dtype: str, budget: Budget) -> None:
        # what is wrong first, case by case: there a mistake that it is not shows at once
        wrong = [draw for draw in draws if draw.wrong]
        turns = {case: count() for case in dict.fromkeys(draw.case for draw in wrong)}
        self.wrong = [draw for _, draw in sorted(((next(turns[d.case]), d) for d in wrong), key=itemgetter(0))]
        self.draws = [*self.wrong, *(draw for draw in draws if not draw.wrong)]
        self.name, self.dtype, self.budget = name, dtype, budget
        self.mistakes = mistakes_of(name, dtype)
        self.pairs, self.out_of_time = 0, False
        self.partly: dict[str, Part] = {}

    def matches(self) -> list[Match]:
        """Give what cannot be told from the subject: single mistakes, or else combinations of two."""
        with unchecked():
            singles = [match for mistake in self._in_time(self.mistakes) if (match := self._single(mistake))]
            return singles or self._combined()

    def told(self) -> str:
        """Say what was compared in vain."""
        tried = f"It equals none of the {len(self.mistakes)} known mistakes" if self.mistakes else "No mistake is known"
        pairs = f", nor any of {self.pairs} combinations of two" if self.pairs else ""
        return f"{tried}{pairs}{'; the time was up before all were compared' if self.out_of_time else ''}."

    def _single(self, mistake: Pitfall) -> Match | None:
        function = function_with(self.name, mistake)
        probed = [draw for draw in self.wrong[:PROBED] if self._equal(function, draw, mistake)]
        if not probed:
            return None
        if match := self._match(mistake):
            return match
        here = [draw for draw in self.wrong if self._equal(function, draw, mistake)]
        if len(here) >= max(PROBED, len(self.wrong) / 2):
            self.partly[mistake.id] = Part(mistake, here)
        return None

    def _equal(self, function: Callable[..., Any], draw: Draw, *mistakes: Pitfall) -> bool:
        if _in_a_part(self.name, mistakes) and not _finite(draw.call):
            return False
        theirs = outcome(function, draw.call, self.dtype)
        return draw.agrees(draw.got, theirs) and (not isinstance(theirs, Raised) or _same_error(draw.got, theirs))

    def _combined(self) -> list[Match]:
        pairs = combinations(self.name, self.mistakes)
        if self.partly:
            pairs = iter([pair for pair in pairs if any(mistake.id in self.partly for mistake in pair)])
        found: list[Match] = []
        for first, second in self._in_time(pairs):
            self.pairs += 1
            if match := self._match(first, second):
                found.append(match)
        return found

    def _in_time(self, candidates: Any) -> Iterator[Any]:
        for candidate in candidates:
            if self.budget.over():
                self.out_of_time = True
                return
            yield candidate

    def _match(self, *mistakes: Pitfall) -> Match | None:
        function = function_with(self.name, *mistakes)
        within, differs, told = 0.0, False, False
        for draw in self.draws:
            if _in_a_part(self.name, mistakes) and not _finite(draw.call):
                continue  # what is put together from parts does not keep the rules for what is hidden and NaN
            theirs = outcome(function, draw.call, self.dtype)
            if not draw.agrees(draw.got, theirs):
                return None
            told = told or not isinstance(theirs, Raised) or _same_error(draw.got, theirs)
            differs = differs or draw.differs(theirs, draw.right)
            within = max(within, relative(draw.got, theirs))
        return Match(mistakes, within) if differs and told else None


def mistakes_of(name: str, dtype: str) -> tuple[Pitfall, ...]:
    """Give the mistakes that touch a component, or a gradient, first; then those of its parts.

    Those that are made in another dtype than float64 are made in that one only.
    """
    known = [mistake for mistake in pitfalls() if mistake.dtype in ("float64", dtype)]
    parts = assembly.parts_of(name)
    own = [mistake for mistake in known if name in mistake.touches]
    lifted = [mistake for mistake in known if name not in mistake.touches and parts & set(mistake.touches)]
    return (*own, *lifted)


def combinations(name: str, mistakes: tuple[Pitfall, ...]) -> Iterator[tuple[Pitfall, Pitfall]]:
    """Give the pairs that make another function together than either alone: the second is made around the first."""
    for first in mistakes:
        for second in mistakes:
            if first is second:
                continue
            both = set(first.touches) & set(second.touches)
            onto = all(touched in second.around for touched in both)
            in_parts = name not in first.touches and first.id < second.id
            if onto if both else name in second.around or in_parts:
                yield first, second


def function_with(name: str, *mistakes: Pitfall) -> Callable[..., Any]:
    """Give a component with these mistakes in it or in its parts, each made around those before it."""
    own: dict[str, Callable[..., Any]] = {}
    for mistake in mistakes:
        own |= mistake.on(assembly.assemble(own) if own else right_functions())
    return own[name] if name in own else assembly.assemble(own)[name]


def _in_a_part(name: str, mistakes: tuple[Pitfall, ...]) -> bool:
    return any(name not in mistake.touches for mistake in mistakes)


def _finite(call: Call) -> bool:
    from reference.parameters import leaves

    arrays = [a for value in (*call.args, *call.options.values()) for _, a in leaves(value)]
    return all(np.isfinite(a).all() for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f")


def _same_error(one: Any, other: Any) -> bool:
    return all(isinstance(o, Raised) for o in (one, other)) and one.error.split(":")[0] == other.error.split(":")[0]


def relative(one: Any, other: Any) -> float:
    """Say how far two outcomes are apart at most, as a share of the largest number in them."""
    if isinstance(one, Raised) or isinstance(other, Raised):
        return 0.0
    worst = 0.0
    for path, array in other.items():
        finite = np.isfinite(array) & np.isfinite(one[path]) if array.dtype.kind == "f" else np.ones(array.shape, bool)
        if finite.any():
            size = np.abs(array[finite].astype(np.float64)).max()
            apart = np.abs(array[finite].astype(np.float64) - one[path][finite].astype(np.float64)).max()
            worst = max(worst, float(apart / size) if size else float(apart))
    return worst


def _accepting(name: str, bad: list[Draw], good: list[Draw], dtype: str) -> list[Match]:
    """Give the mistakes that accept the bad input which the subject accepts, and make the same of it."""
    found: list[Match] = []
    right = getattr(reference.numpy, name)
    bad = [
        draw for draw in bad if isinstance(outcome(right, draw.call, dtype), Raised)
    ]  # bad in the mistakes' dtype too
    for mistake in mistakes_of(name, dtype):
        if name not in mistake.touches:
            continue
        function = function_with(name, mistake)
        made = [(draw, theirs) for draw in bad if not isinstance(theirs := outcome(function, draw.call, dtype), Raised)]
        if not made or not all(draw.agrees(draw.got, theirs) for draw, theirs in made):
            continue
        if any(draw.differs(outcome(function, draw.call, dtype), draw.right) for draw in good):
            continue  # it is about values, and lets bad input through besides
        found.append(Match((mistake,), max(relative(draw.got, theirs) for draw, theirs in made)))
    return found


# ----------------------------------------------------------------------------------------------- in words


def _named(name: str, about: str, matches: list[Match], good: list[Draw], wrong: list[Draw]) -> dict[str, Any]:
    ids = list(dict.fromkeys(match.id for match in matches))
    output = f"The output of {name}" if about == "values" else f"The gradient {name}"
    counted = f"on all {len(good)} inputs compared, {len(wrong)} of which have another right answer"
    within = f"to {max(match.within for match in matches):.0e}"
    lifted = "" if name in matches[0].mistakes[0].touches else f"the right {name} with "
    lines = [f"{output} equals {lifted}{ids[0]} {within} {counted}."]
    if len(ids) > 1:
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        lines = [
            f"{output} equals each of {len(ids)} known mistakes {within} {counted}, which cannot tell them apart: "
            f"{', '.join(ids[:NAMED])}{more}."
        ]
    described = _described(matches[:NAMED])
    kind = "pitfall" if len(ids) == 1 and len(matches[0].mistakes) == 1 else "pitfalls"
    kind = "combination" if len(matches[0].mistakes) > 1 else kind
    return {
        "about": about,
        "kind": kind,
        "pitfalls": described,
        "text": "\n".join([*lines, *_told(described)]),
    }


def _named_in_part(name: str, about: str, search: _Search, wrong: list[Draw]) -> dict[str, Any]:
    """Name what explains most of what is wrong, and say where it does not."""
    most = max(len(part.draws) for part in search.partly.values())
    parts = [part for part in search.partly.values() if len(part.draws) == most][:NAMED]
    described = _described([Match((part.mistake,), 0.0) for part in parts])
    ids = " and ".join(mistake["id"] for mistake in described)
    explained = {id(draw) for draw in parts[0].draws}
    others = [draw for draw in wrong if id(draw) not in explained]
    found = common(others, parts[0].draws)
    where = f", which have in common that {found[0]}," if found and not found[1] else ""
    cases = {draw.case for draw in others}
    if not where and not cases & {"", *(draw.case for draw in parts[0].draws)}:
        where = f", in the case{'s' * (len(cases) > 1)} {', '.join(sorted(cases))},"
    line = (
        f"{name} equals {ids} up to rounding on {most} of the {len(wrong)} inputs on which it is wrong; on the other "
        f"{len(others)}{where} something else is wrong, too."
    )
    return {
        "about": about,
        "kind": "pitfall in part",
        "pitfalls": described,
        "text": "\n".join([line, *_told(described)]),
    }


def _named_for_bad_input(name: str, matches: list[Match], bad: list[Draw]) -> dict[str, Any]:
    described = _described(matches[:NAMED])
    ids = ", ".join(mistake["id"] for mistake in described)
    more = f" and {len(matches) - NAMED} more" if len(matches) > NAMED else ""
    line = f"Where {name} should refuse its input, it returns what {ids}{more} would ({len(bad)} such inputs compared)."
    return {
        "about": "bad input",
        "kind": "pitfall" if len(matches) == 1 else "pitfalls",
        "pitfalls": described,
        "text": "\n".join([line, *_told(described)]),
    }


def _described(matches: list[Match]) -> list[dict[str, Any]]:
    mistakes = {mistake.id: mistake for match in matches for mistake in match.mistakes}
    return [
        {"id": m.id, "does": m.does, "shows": m.shows, "mend": m.mend, "sources": list(m.sources)}
        for m in mistakes.values()
    ]


def _told(described: list[dict[str, Any]]) -> Iterator[str]:
    for mistake in described:
        who = f"{mistake['id']}: " if len(described) > 1 else ""
        yield f"{who}{_sentence(mistake['does'])}"
        yield f"Mend: {_sentence(mistake['mend'])}"
        if mistake["sources"]:
            yield f"Seen in: {', '.join(islice(mistake['sources'], 3))}"


def _sentence(text: str) -> str:
    """Begin with a capital and end with a full stop."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".") if text else ""
