"""How a property judges: comparisons that say what was got, what it should be, and where they part."""

import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class Unsupported(unittest.SkipTest):
    """The subject does not offer this option: neither passed nor failed. Hypothesis and pytest let a skip through."""


class Mismatch(AssertionError):
    """The subject is wrong here. `got` and `should` are arrays, numbers or sentences."""

    def __init__(self, what: str, *, got: Any = None, should: Any = None) -> None:
        self.what, self.got, self.should = what, got, should
        lines = [what]
        if got is not None:
            lines.append(f"got    {_short(got)}")
        if should is not None:
            lines.append(f"should {_short(should)}")
        super().__init__("\n".join(lines))


class SubjectRaised(Mismatch):
    """The subject raised where it should have answered; `original` is what it raised."""

    def __init__(self, component: str, original: BaseException) -> None:
        self.original = original
        super().__init__(f"{component} raised {type(original).__name__}: {original}")


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, np.ndarray):  # a tuple or a tree need not be one array
        return str(value)[:400]
    return np.array2string(value, threshold=40, precision=8).replace("\n", "\n       ")


observers: list[Callable[[float], None]] = []
"""Who wants to know of each comparison how large its error is, as a share of the bound."""


def close(got: Any, should: Any, *, within: Any, what: str = "the result") -> None:
    """Check |got - should| <= within, element by element; equal infinities and equal NaNs agree.

    `within` is an absolute bound (a number or an array that broadcasts to `should`).
    """
    got, should = np.asarray(got), np.asarray(should)
    if got.shape != should.shape:
        raise Mismatch(f"{what} has shape {got.shape} and should have {should.shape}", got=got, should=should)
    if got.size == 0:
        return
    got64, should64 = got.astype(np.float64), should.astype(np.float64)
    same = (got64 == should64) | (np.isnan(got64) & np.isnan(should64))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.abs(got64 - should64))
    error = np.where(np.isnan(error), np.inf, error)
    for observe in observers:
        if np.any(bounded := np.asarray(within) > 0):
            observe(float(np.where(bounded, error / np.where(bounded, within, 1.0), 0.0).max()))
    wrong = error > within
    if not wrong.any():
        return
    worst = np.unravel_index(np.argmax(np.where(wrong, error, -1.0)), error.shape)
    where = f" at {[int(i) for i in worst]}" if worst else ""
    kind = "is NaN" if np.isnan(got64[worst]) else f"is off by {error[worst]:.3g}"
    allowed = np.broadcast_to(np.asarray(within, np.float64), error.shape)[worst]
    raise Mismatch(
        f"{what} {kind}{where} ({int(wrong.sum())} of {wrong.size} wrong; {allowed:.2g} allowed)",
        got=got,
        should=should,
    )


def equal(got: Any, should: Any, *, what: str = "the result") -> None:
    """Check that two values are the same to the last bit (NaN equals NaN)."""
    close(got, should, within=0.0, what=what)


def holds(condition: Any, what: str, *, got: Any = None, should: Any = None) -> None:
    """Check a condition; `what` says what is wrong when it does not hold."""
    if not np.all(condition):
        raise Mismatch(what, got=got, should=should)


def differ(subject: Any, y: np.ndarray, other: np.ndarray, what: str) -> None:
    """Check that two results in general position differ by more than rounding; `what` says what is wrong otherwise.

    What has no influence changes the last bits at most. A real influence falls below 32 units of rounding by chance
    with a probability below 1e-6 in float32 (in 500 such models the least was 3e-3) and below 1e-15 in float64.
    """
    last_bits = 32 * subject.eps * (1 + np.abs(y).max())
    holds(np.abs(y - other).max() > last_bits, what, got=y, should="another result")


@contextmanager
def raises(subject: Any, kind: type[Exception] | tuple[type[Exception], ...], *words: str) -> Iterator[None]:
    """Check that the subject refuses this input.

    Any exception will do from somebody else's code; our own backends (`subject.strict`) raise `kind`, and the message
    holds every one of `words`.
    """
    with subject.expecting_an_error():
        try:
            yield
        except SubjectRaised as refused:
            if subject.strict:
                message = f"{type(refused.original).__name__}: {refused.original}"
                holds(isinstance(refused.original, kind), f"raised another type than {kind}", got=message)
                for word in words:
                    holds(word in str(refused.original), f"the error does not name {word!r}", got=message)
            return
    names = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
    raise Mismatch("bad input was accepted", got=subject.last_result, should=f"an error ({names})")
