"""Find out by experiment which conventions a subject follows, and print the declaration of those that are its own.

As `python -m spec_tests.kit.probe FD SUBJECT COMPONENT...` it is the child process of `probe`: it writes one line of
JSON for each component to the file descriptor FD.

An experiment is a call whose result tells readings apart. The subject is called as if it declared a reading, and is
right or wrong beside the reference; what is printed is the smallest declaration under which nothing goes wrong. So a
declaration is the one that the check would need, found by the translation that the check uses.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import reference.numpy
from reference.parameters import leaves
from reference.shape_checks import unchecked
from spec_tests.judge import Mismatch, SubjectRaised, Unsupported
from spec_tests.kit.experiments import ATTENTIONS, EXPERIMENTS, OTHERS, Calls, Experiment, attention_arguments, truths
from spec_tests.kit.runner import CannotRun, import_path
from spec_tests.kit.worker import end_with_parent
from spec_tests.subjects.contract import Call
from spec_tests.subjects.conventions import AS_DECLARED, as_declared, conventions_of, in_its_own_reading
from spec_tests.subjects.subject import Subject

DRAWS = 12
IMPORT_LIMIT = 120.0
TIME_LIMIT = 60.0
"""Seconds that importing the subject, and all experiments on one component, may take."""

WITHIN = 1e-5
"""Of the largest number: so far off is no rounding of float32, and all readings lie farther apart on these inputs."""


@dataclass
class Finding:
    """What was found about one convention of a component; `value` is what to declare, if anything."""

    convention: str
    says: str
    value: Any = None


# ------------------------------------------------------------------------------------------------------- the findings


def findings(subject: Subject, component: str, generator: np.random.Generator) -> list[Finding]:
    """Find out what can be told about one component; each experiment builds on what those before it found."""
    found: list[Finding] = []
    declared: dict[str, Any] = {}
    for experiment in EXPERIMENTS.get(component, ()):
        draws = [experiment.draw(generator) for _ in range(DRAWS)]
        fits = _fitting(subject, component, experiment, draws, declared)
        if not fits:
            why = _why_not(subject, component, draws, declared)
            found += [Finding(name, why) for name in experiment.conventions]
            continue
        declared |= fits[0]
        for name in experiment.conventions:
            alike = dict.fromkeys(str(fit.get(name, "what is asked for")) for fit in fits)
            found.append(
                _evidence(subject, component, name, draws, declared)
                if len(alike) == 1
                else Finding(name, f"{UNTOLD}: {', '.join(alike)} fit alike; declare what it is")
            )
    if component in ATTENTIONS and not any(f.says.startswith(UNTOLD) for f in found if f.convention == "mask"):
        found.append(_without_a_key(subject, component, generator, declared))
    return found


UNTOLD = "cannot be told"
RIGHT, WRONG, UNSUPPORTED = "right", "wrong", "unsupported"


def _outcome(subject: Subject, call: Call, declared: Mapping[str, Any]) -> tuple[str, str]:
    """Make a call as if this was declared: is the result the reference's? And if not, what is wrong."""
    subject.conventions = {call.component: dict(declared)}
    try:
        got = subject.call(call.component, *call.args, **call.options)
    except Unsupported as lacking:
        return UNSUPPORTED, str(lacking)
    except Mismatch as wrong:
        return WRONG, wrong.what
    with unchecked():
        if name := call.options.get(AS_DECLARED):
            contracts = next(iter(conventions_of(call.component)[name].values))
            should = in_its_own_reading(call, name, declared.get(name, contracts))
        else:
            should = getattr(reference.numpy, call.component)(*call.args, **call.options)
    return (RIGHT, "") if _near(got, should) else (WRONG, "its results are those of no reading")


def _near(got: Any, should: Any) -> bool:
    pairs = zip(_arrays(got), _arrays(should), strict=True)
    with np.errstate(invalid="ignore"):
        return all(np.abs(g - s).max(initial=0) <= WITHIN * np.abs(s).max(initial=1e-30) for g, s in pairs)


def _arrays(result: Any) -> list[np.ndarray]:
    return [array.astype(np.float64) for _, array in leaves(list(result) if isinstance(result, tuple) else result)]


def _holds(subject: Subject, draw: Calls, declared: Mapping[str, Any]) -> bool:
    """Say whether nothing in a draw goes wrong under a declaration, and something goes right."""
    fixed = [name for name, convention in conventions_of(draw[0].component).items() if convention.fixed]
    calls = [*(as_declared(call, declared) for call in draw), *draw] if set(fixed) & set(declared) else draw
    right = False
    for call in calls:
        outcome, _ = _outcome(subject, call, declared)
        if outcome == WRONG:
            return False
        right |= outcome == RIGHT
    return right


def _fitting(
    subject: Subject, component: str, experiment: Experiment, draws: list[Calls], known: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Give the smallest declarations under which no draw goes wrong: more than one if they cannot be told apart."""
    fits: list[dict[str, Any]] = []
    for candidate in _candidates(subject, component, experiment, draws):
        if fits and len(candidate) > len(fits[0]):
            return fits
        if any(_named(fit) == _named(candidate) and np.isclose(_eps(fit), _eps(candidate), 0.01) for fit in fits):
            continue  # the same with more digits
        if all(_holds(subject, draw, {**known, **candidate}) for draw in draws):
            fits.append(candidate)
    return fits


def _named(declared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in declared.items() if name not in ("eps", "default_eps")}


def _eps(declared: Mapping[str, Any]) -> float:
    return declared.get("eps", declared.get("default_eps", -1.0))


def _candidates(
    subject: Subject, component: str, experiment: Experiment, draws: list[Calls]
) -> Iterator[dict[str, Any]]:
    """Give every declaration about some conventions, those that say little first."""
    legal, numbers = conventions_of(component), _numbers(subject, component, draws[0])
    choices = [(None, *(legal[name].others if legal[name].values else numbers)) for name in experiment.conventions]
    combined = (
        {name: value for name, value in zip(experiment.conventions, values, strict=True) if value is not None}
        for values in itertools.product(*choices)
    )
    # a default of its own is less than an eps that nothing changes
    yield from sorted(
        (c for c in combined if not {"eps", "default_eps"} <= c.keys()), key=lambda c: (len(c), "eps" in c)
    )


def _numbers(subject: Subject, component: str, draw: Calls) -> tuple[float, ...]:
    """Give what eps may be: for a model the usual ones, for a layer norm what its result on tiny numbers says."""
    if component != "layer_norm":
        return (1e-5, 1e-6, 1e-8, 1e-12)
    subject.conventions = {}
    try:
        y = subject.call("layer_norm", *draw[0].args)
    except (Unsupported, Mismatch):
        return ()
    x = draw[0].args[0]
    with np.errstate(all="ignore"):
        ratio, std, unbiased = x.std(axis=-1) / y.std(axis=-1), x.std(axis=-1), x.std(axis=-1, ddof=1)
        estimates = [np.median(e) for e in (ratio**2 - std**2, ratio - std, ratio - unbiased)]
    told = [estimate for estimate in estimates if np.isfinite(estimate) and estimate > 1e-15]
    return (0.0, *dict.fromkeys(float(f"{estimate:.{digits}g}") for digits in (1, 2, 3, 8) for estimate in told))


def _evidence(subject: Subject, component: str, name: str, draws: list[Calls], declared: Mapping[str, Any]) -> Finding:
    """Say what a convention was found to be, and on how many draws every other value fails."""
    convention, value = conventions_of(component)[name], declared.get(name)
    if not convention.values:
        says = f"{value:g}" if value is not None else "as the contract has it"
        return Finding(name, f"{says}: on {DRAWS} of {DRAWS} draws", value)
    contracts = "what is asked for" if convention.fixed else convention.values[next(iter(convention.values))]
    if convention.fixed and value is None:  # it does what it is asked for, so that nothing else need be tried
        return Finding(name, f"{contracts}: on {DRAWS} of {DRAWS} draws")
    failing: list[str] = []
    for other in (None, *convention.others):
        if other != value:
            rest = {key: known for key, known in declared.items() if key != name}
            rest |= {} if other is None else {name: other}
            failed = sum(not _holds(subject, draw, rest) for draw in draws)
            words = contracts if other is None else convention.values[other]
            failing.append(f'"{words}" fails on {failed} of {DRAWS}')
    says = contracts if value is None else convention.values[value]
    return Finding(name, f"{says}: on {DRAWS} of {DRAWS} draws; {', '.join(failing)}", value)


def _why_not(subject: Subject, component: str, draws: list[Calls], known: Mapping[str, Any]) -> str:
    outcomes = [_outcome(subject, call, known) for draw in draws for call in draw]
    if all(outcome == UNSUPPORTED for outcome, _ in outcomes):
        return f"{UNTOLD}: {outcomes[0][1]}"
    for words, function in OTHERS.get(component, {}).items():
        if all(_is_other(subject, call, function) for draw in draws for call in draw):
            return f"{words}, on {DRAWS} of {DRAWS} draws: the contract has no such variant to declare"
    return f"{UNTOLD}: {next(what for outcome, what in outcomes if outcome == WRONG)}"


def _is_other(subject: Subject, call: Call, function: Callable[..., Any]) -> bool:
    subject.conventions = {}
    try:
        return _near(subject.call(call.component, *call.args, **call.options), function(*call.args, **call.options))
    except Unsupported:
        return True
    except Mismatch:
        return False


def _without_a_key(
    subject: Subject, component: str, generator: np.random.Generator, declared: Mapping[str, Any]
) -> Finding:
    """Say what a query gets that every key is hidden from."""
    kinds: dict[str, int] = {}
    for _ in range(DRAWS):
        args, options = attention_arguments(component, generator)
        mask = truths(generator, args[0].shape[-2], 5)
        mask[0] = False
        subject.conventions = {component: dict(declared)}
        try:
            row = subject.call(component, *args, **options, mask=mask)[:, 0].astype(np.float64)
        except Unsupported as lacking:
            return Finding("a query without a key", f"{UNTOLD}: {lacking}")
        except SubjectRaised:
            kind = "an error"
        except Mismatch:
            kind = "another shape"
        else:
            kind = _kind_of_row(component, row, args)
        kinds[kind] = kinds.get(kind, 0) + 1
    told = ", ".join(f"{kind} on {count} of {DRAWS} draws" for kind, count in kinds.items())
    right = "as the contract has it" if kinds == {"zeros": DRAWS} else "the contract has zeros, and no other convention"
    return Finding("a query without a key", f"{told}: {right}")


def _kind_of_row(component: str, row: np.ndarray, args: tuple) -> str:
    if np.isnan(row).all():
        return "NaN"
    if component == "attention_weights":
        mean = np.full(row.shape, 1 / row.shape[-1])
    elif component == "scaled_dot_product_attention":
        mean = args[2].mean(axis=-2)
    else:
        mean = args[0].mean(axis=-2) @ args[3] @ (args[4] if len(args) > 4 else np.eye(6))
    return "zeros" if not row.any() else "the mean over all keys" if _near(row, mean) else "other numbers"


# ------------------------------------------------------------------------------------------- the two processes


@dataclass
class Probed:
    """What a probe found, component by component, and what the subject declares already."""

    name: str
    declares: dict[str, dict[str, Any]]
    found: dict[str, list[Finding]]

    @property
    def conventions(self) -> dict[str, dict[str, Any]]:
        """Give what there is to declare."""
        told = {c: {f.convention: f.value for f in found if f.value is not None} for c, found in self.found.items()}
        return {component: values for component, values in told.items() if values}

    def __str__(self) -> str:
        """Give the findings, and the declaration to paste."""
        lines = [f"{self.name}: {DRAWS} draws an experiment"]
        width = max([len(f.convention) for found in self.found.values() for f in found], default=0)
        for component, found in self.found.items():
            lines += ["", component, *(f"    {f.convention:<{width}}  {f.says}" for f in found)]
        if not self.found:
            lines += ["", "it has no component that reads anything in more than one way"]
        lines += ["", declaration(self.conventions)]
        if self.declares not in ({}, self.conventions):
            lines += ["", f"# beside what it declares: {declaration(self.declares)}"]
        return "\n".join(lines)


def declaration(conventions: Mapping[str, Mapping[str, Any]]) -> str:
    """Write a declaration as Python for the subject file."""
    if not conventions:
        return "conventions = {}"
    of_one = (f"    {json.dumps(component)}: {json.dumps(values)}," for component, values in conventions.items())
    return "\n".join(["conventions = {", *of_one, "}"])


def probe(subject: str, components: list[str] | None = None, *, time_limit: float = TIME_LIMIT) -> Probed:
    """Find out the conventions of a subject, in a process of its own. Raises CannotRun where it cannot be loaded."""
    probed: Probed | None = None
    wanted = [name for name in EXPERIMENTS if components is None or name in components]
    while wanted:
        events, how = _run(subject, wanted, time_limit)
        if not events or "cannot" in events[0]:
            raise CannotRun(events[0]["cannot"] if events else f"{subject}: importing it {how}")
        if probed is None:
            probed = Probed(events[0]["name"], events[0]["declares"], {})
        for event in events[1:]:
            if event["findings"]:
                probed.found[event["component"]] = [Finding(**finding) for finding in event["findings"]]
        done = [event["component"] for event in events[1:]]
        wanted = [name for name in events[0]["offers"] if name in wanted and name not in done]
        if wanted:
            probed.found[wanted[0]] = [Finding("all", f"{UNTOLD}: {wanted[0]} {how}")]
            wanted = wanted[1:]
    return probed or Probed(subject, {}, {})


def _run(subject: str, components: list[str], time_limit: float) -> tuple[list[dict[str, Any]], str]:
    """Run a child process on these components: its events, and how it ended."""
    events_fd, child_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "spec_tests.kit.probe", str(child_end), subject, *components],
        stdin=subprocess.PIPE,  # left open: when this process ends, the child's end of it closes
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(child_end,),
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, import_path()))},
    )
    os.close(child_end)
    events: list[dict[str, Any]] = []
    late = False

    def kill() -> None:
        nonlocal late
        late = True
        os.killpg(process.pid, signal.SIGKILL)

    with os.fdopen(events_fd) as lines:
        while True:
            timer = threading.Timer(time_limit if events else IMPORT_LIMIT, kill)
            timer.start()
            line = lines.readline()
            timer.cancel()
            if not line.endswith("\n"):
                break
            events.append(json.loads(line))
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # with all that the subject has started
    process.stdin.close()
    process.wait()
    return events, "took too long" if late else "ended the process"


def main() -> None:
    """Make the experiments on a subject's components, and tell what they find."""
    fd, wanted, *components = sys.argv[1:]
    os.set_inheritable(int(fd), False)
    parent = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the subject has nothing to read
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()

    def emit(event: dict[str, Any]) -> None:
        os.write(int(fd), json.dumps(event).encode() + b"\n")

    os.environ.setdefault("JAX_ENABLE_X64", "1")  # said before the subject imports JAX
    from spec_tests.subjects.loading import CannotLoad, load

    try:
        loaded = load(wanted)
    except CannotLoad as problem:
        emit({"cannot": str(problem)})
        os._exit(0)
    subject = loaded.subject
    offers = [name for name in EXPERIMENTS if name in loaded.offers]
    emit({"name": subject.name, "declares": subject.conventions, "offers": offers})
    generator = np.random.default_rng()
    for component in components:
        if component in offers:
            found = findings(subject, component, generator)
            emit({"component": component, "findings": [asdict(finding) for finding in found]})
    os._exit(0)  # whatever threads the subject has started


if __name__ == "__main__":
    main()
