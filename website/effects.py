"""How large the effect of a known mistake is: measured on inputs drawn anew at each build, from one seed."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference.numpy
from reference.shape_checks import unchecked
from spec_tests import strategies
from spec_tests.kit.diagnosis import function_with, relative
from spec_tests.kit.draws import Raised, fresh_calls, outcome
from spec_tests.pitfalls.pitfall import Pitfall
from spec_tests.subjects.contract import Call

SEED = 0
INPUTS = 24
"""About so many inputs, over all cases of a component."""
SAME = 1e-9
"""Two results that are nearer than that, as a share of the largest number, differ by rounding."""


@dataclass(frozen=True)
class Effect:
    """On how many of all inputs the result is another, and how it is."""

    kind: str  # a word of WORDS
    some: int
    all: int
    size: float = 0.0


def effect(pitfall: Pitfall) -> Effect | None:
    """Measure a mistake; None for one that touches programs only."""
    name = pitfall.component if pitfall.component in pitfall.touches else next(iter(pitfall.touches), None)
    if name is None or name not in strategies.CASES:
        return None
    wrong = function_with(name, pitfall)
    raised, odd, shaped, sizes = 0, 0, 0, []
    calls = _calls(name)
    with unchecked():
        for call, right in calls:
            got = outcome(wrong, call, pitfall.dtype)
            if isinstance(got, Raised):
                raised += 1
            elif {k: v.shape for k, v in got.items()} != {k: v.shape for k, v in right.items()}:
                shaped += 1
            elif _finite(right) and not _finite(got):
                odd += 1
            elif (size := relative(got, right)) > SAME:
                sizes.append(size)
    kinds = (
        Effect("breaks", raised, len(calls)),
        Effect("shape", shaped, len(calls)),
        Effect("differs", len(sizes), len(calls), max(sizes, default=0.0)),
        Effect("not_finite", odd, len(calls)),
    )
    most = max(kinds, key=lambda e: e.some)
    return most if most.some else Effect("lenient", 0, len(calls))


def _finite(arrays: dict[str, np.ndarray]) -> bool:
    return all(np.isfinite(a).all() for a in arrays.values() if a.dtype.kind == "f")


@functools.cache
def _calls(name: str) -> list[tuple[Call, Any]]:
    """Draw inputs of every case on which the reference gives a finite result."""
    cases = strategies.CASES[name]
    each = max(2, INPUTS // len(cases))
    found = []
    with unchecked():
        for case in cases:
            for call in fresh_calls(f"{name}.{case}", each, seed=SEED):
                right = outcome(getattr(reference.numpy, name), call)
                if not isinstance(right, Raised):
                    found.append((call, right))
    return found
