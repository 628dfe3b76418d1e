"""How strong the suite is: what catches each pitfall, and how far our own errors stay below their bounds.

`python -m spec_tests.pitfalls.strength` runs every property on every pitfall and look-alike that it could be about, and
every property with a bound on our two backends; it prints the figures, writes strength.json, from which the page
docs/en/check/strength.md is made, and fails where one falls short.
"""

import fnmatch
import json
import os
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from reference.shape_checks import unchecked
from spec_tests import judge
from spec_tests.pitfalls.pitfall import Equivalence, Pitfall, Variant, all_variants, equivalences, pitfalls
from spec_tests.search import catches, searching
from spec_tests.spec import Property, all_properties

RECORD = Path(__file__).with_suffix(".json")
EXAMPLES = 12
"""So many inputs each property draws before a pitfall has passed it."""
FRESH = 100_000
"""So many inputs are drawn, in all, on which our own errors are compared with their bounds."""
SHARE = 0.1
"""Of its bound, the most that an error of ours may be."""
BY_PROPERTIES = 0.85
"""Of the pitfalls, the least that must be caught without an oracle."""
BACKENDS = ("reference.numpy", "reference.torch")
WORKERS = min(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class Caught:
    """What catches a pitfall, by kind; for a look-alike, what raises a false alarm."""

    id: str
    properties: tuple[str, ...] = ()
    equivalence: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()

    @property
    def by_anything(self) -> tuple[str, ...]:
        """Name all that catches it, what needs no oracle first."""
        return (*self.properties, *self.equivalence, *self.gradients)


@dataclass(frozen=True)
class Margin:
    """How near to its bound the largest error of a property came, on one backend."""

    id: str
    backend: str
    share: float
    examples: int


@dataclass(frozen=True)
class Strength:
    """All figures of one run."""

    seed: int
    caught: tuple[Caught, ...]
    alarms: tuple[Caught, ...]
    margins: tuple[Margin, ...]
    idle: tuple[str, ...] = field(default=())  # properties that catch no pitfall

    @property
    def missed(self) -> list[str]:
        """Name the pitfalls that nothing catches."""
        return [caught.id for caught in self.caught if not caught.by_anything]

    @property
    def by_properties(self) -> int:
        """Count the pitfalls that properties alone catch."""
        return sum(bool(caught.properties) for caught in self.caught)

    @property
    def false_alarms(self) -> list[Caught]:
        """Give the look-alikes that something fails."""
        return [alarm for alarm in self.alarms if alarm.by_anything]

    @property
    def too_near(self) -> list[Margin]:
        """Give the properties whose errors come too near to their bounds."""
        return [margin for margin in self.margins if margin.share > SHARE]

    @property
    def examples(self) -> int:
        """Count the inputs on which errors were compared with bounds."""
        return sum(margin.examples for margin in self.margins)

    @property
    def passed(self) -> bool:
        """Say whether every figure is what it must be."""
        enough = self.by_properties >= BY_PROPERTIES * len(self.caught) and self.examples >= FRESH
        return enough and not (self.missed or self.false_alarms or self.too_near)


# -------------------------------------------------------------------------------------------- pitfalls and look-alikes


def about(variant: Variant) -> list[Property]:
    """Give the properties that call what the variant changes."""
    return [prop for prop in all_properties() if set(prop.needs) & set(variant.touches)]


def catch(variant_id: str, seed: int) -> Caught:
    """Put every property to a variant that it could be about; of a program, the tests that it names."""
    (variant,) = (v for v in all_variants() if v.id == variant_id)
    outside = variant.outside if isinstance(variant, Equivalence) else ()
    found: dict[str, list[str]] = {"properties": [], "equivalence": [], "gradients": []}
    for prop in about(variant):
        if any(fnmatch.fnmatchcase(prop.id, glob) for glob in outside) or not prop.is_asked_of(variant.subject()):
            continue
        if catches(prop, variant.subject(), examples=EXAMPLES, seed=seed):
            kind = "gradients" if prop.gradient else "equivalence" if _has_oracle(prop) else "properties"
            found[kind].append(prop.id)
    if isinstance(variant, Pitfall) and variant.programs:
        from spec_tests.pitfalls.programs import caught

        found["equivalence" if variant.golden else "properties"] += caught(variant)
    return Caught(variant_id, **{kind: tuple(ids) for kind, ids in found.items()})


def _has_oracle(prop: Property) -> bool:
    return prop.function.statement.oracle


# ---------------------------------------------------------------------------------------------------- our own errors


def margin(prop_id: str, backend: str, examples: int, seed: int, checked: bool) -> Margin | None:
    """Draw examples of a property on one of our backends; None where it compares nothing with a bound.

    Shapes are `checked` where it may be one that asks for refusals.
    """
    from spec_tests.subjects.loading import load

    (prop,) = (p for p in all_properties() if p.id == prop_id)
    subject = load(backend).subject
    subject.strict = False  # errors against the whole of the bound, not the tenth that we are held to
    if not prop.is_asked_of(subject):
        return None
    shares: list[float] = []
    draw = searching(prop.function, examples=examples, seed=seed)
    quick = nullcontext() if checked else unchecked()
    with quick, watching(shares.append), _counting(subject, shares) as counted, draw, suppress(AssertionError):
        prop.run(subject)  # where it fails, the share is more than 1
    return Margin(prop_id, backend, max(shares), counted()) if shares else None


@contextmanager
def watching(observe: Callable[[float], None]) -> Iterator[None]:
    """Be told of each comparison with a bound how large the error is, as a share of it."""
    judge.observers.append(observe)
    try:
        yield
    finally:
        judge.observers.remove(observe)


@contextmanager
def _counting(subject: Any, shares: list[float]) -> Iterator[Callable[[], int]]:
    """Count the examples in which something was compared with a bound."""
    counted, compared, begin = 0, 0, subject.begin_example

    def close_example() -> None:
        nonlocal counted, compared
        counted += len(shares) > compared
        compared = len(shares)

    def begin_example() -> None:
        close_example()
        begin()

    def total() -> int:
        close_example()
        return counted

    subject.begin_example = begin_example
    yield total


# --------------------------------------------------------------------------------------------------------- all of it


def measure(seed: int, *, fresh: int = FRESH, say: Callable[[str], None] = lambda line: None) -> Strength:
    """Measure everything, on as many processes as there are cores (two at most)."""
    started = time.monotonic()
    with ProcessPoolExecutor(WORKERS, initializer=_without_warnings) as pool:
        mistakes = list(pool.map(catch, [p.id for p in pitfalls()], [seed] * len(pitfalls())))
        say(f"{len(mistakes)} pitfalls, {time.monotonic() - started:.0f} s")
        alarms = list(pool.map(catch, [e.id for e in equivalences()], [seed] * len(equivalences())))
        say(f"{len(alarms)} look-alikes, {time.monotonic() - started:.0f} s")
        margins = list(_margins(pool, seed, fresh))
        say(f"{sum(m.examples for m in margins):,} examples against their bounds, {time.monotonic() - started:.0f} s")
    used = {prop_id for caught in mistakes for prop_id in caught.by_anything}
    touched = {name for pitfall in pitfalls() for name in pitfall.touches}
    idle = tuple(p.id for p in all_properties() if p.id not in used and set(p.needs) & touched)
    return Strength(seed, tuple(mistakes), tuple(alarms), tuple(margins), idle)


def _without_warnings() -> None:
    """Let mistakes divide by 0 without a word: NaN is what a property looks for."""
    warnings.simplefilter("ignore")


def _margins(pool: ProcessPoolExecutor, seed: int, fresh: int) -> Iterable[Margin]:
    # compared with itself the reference is never off: oracles say something of PyTorch only
    wanted = [(p.id, backend) for backend in BACKENDS for p in all_properties()
              if backend != "reference.numpy" or not _has_oracle(p)]  # fmt: skip
    first = [m for m in _map_margins(pool, wanted, 2, seed, checked=True) if m is not None]
    found = {(m.id, m.backend): Margin(m.id, m.backend, 0.0, 0) for m in first}
    endless = list(found)
    while endless and (short := fresh - sum(m.examples for m in found.values())) > 0:
        each, seed = -(-short // len(endless)) + 1, seed + 1
        drawn = [m for m in _map_margins(pool, endless, each, seed, checked=False) if m is not None]
        for m in drawn:
            before = found[m.id, m.backend]
            found[m.id, m.backend] = replace(m, share=max(m.share, before.share), examples=m.examples + before.examples)
        # Some have few inputs that differ, and have been given all of them: the others are asked for more.
        endless = [(m.id, m.backend) for m in drawn if m.examples > 0.9 * each]
    return found.values()


def _map_margins(
    pool: ProcessPoolExecutor, wanted: list[tuple[str, str]], examples: int, seed: int, *, checked: bool
) -> Iterator[Margin | None]:
    ids, backends = zip(*wanted, strict=True)
    n = len(ids)
    return pool.map(margin, ids, backends, [examples] * n, [seed] * n, [checked] * n, chunksize=4)


# ---------------------------------------------------------------------------------------------------------- in words


def figures(strength: Strength) -> list[str]:
    """Say the figures, a line each."""
    n = len(strength.caught)
    kinds = {
        "properties alone": strength.by_properties,
        "the comparison with the reference": sum(bool(c.equivalence) for c in strength.caught),
        "properties of gradients": sum(bool(c.gradients) for c in strength.caught),
    }
    worst = max(strength.margins, key=lambda m: m.share)
    return [
        f"{n - len(strength.missed)} of {n} coded pitfalls are caught ({percent(n - len(strength.missed), n)})",
        *(f"{count} of them by {kind} ({percent(count, n)})" for kind, count in kinds.items()),
        f"{len(strength.false_alarms)} false alarms on {len(strength.alarms)} look-alikes",
        f"{strength.examples:,} fresh examples on the two backends: the largest error is {worst.share:.3f} of its "
        f"bound, of which {SHARE} is allowed ({worst.id}, {worst.backend})",
    ]


def percent(part: int, whole: int) -> str:
    """Say what share of the whole a part is."""
    return f"{100 * part / whole:.1f} %" if whole else "of none"


def record(strength: Strength) -> dict[str, Any]:
    """Give what the page of the suite's strength is written from."""
    return {
        "seed": strength.seed,
        "inputs": EXAMPLES,
        "caught": [
            {"id": c.id, "properties": len(c.properties), "comparison": len(c.equivalence),
             "gradients": len(c.gradients), "first": c.by_anything[0] if c.by_anything else ""}
            for c in strength.caught
        ],
        "look_alikes": [{"id": alarm.id, "fails": alarm.by_anything} for alarm in strength.alarms],
        "examples": strength.examples,
        "allowed": SHARE,
        "nearest": [asdict(m) for m in sorted(strength.margins, key=lambda m: -m.share)[:12]],
        "idle": list(strength.idle),
    }  # fmt: skip


def main() -> int:
    """Measure, print, write the record; 1 where a figure falls short."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else secrets.randbits(32)
    strength = measure(seed, say=lambda line: print(f"... {line}", flush=True))
    print(*figures(strength), sep="\n")
    for name in strength.missed:
        print(f"missed: {name}")
    for alarm in strength.false_alarms:
        print(f"false alarm: {alarm.id}: {', '.join(alarm.by_anything)}")
    for near in strength.too_near:
        print(f"too near its bound: {near.id} on {near.backend}: {near.share:.2f}")
    RECORD.write_text(json.dumps(record(strength), indent=1) + "\n", encoding="utf-8")
    print(f"written: {RECORD.name}" if strength.passed else "the suite falls short of a figure")
    return 0 if strength.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
