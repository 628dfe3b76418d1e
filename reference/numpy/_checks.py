"""What a signature cannot say: one dtype in a call, no empty axes, options in their range."""

from typing import Any

import numpy as np


def one_dtype(component: str, **arrays: np.ndarray | None) -> None:
    """Raise TypeError unless all floating arrays of a call have one dtype; None stands for an absent part."""
    given = {name: array.dtype for name, array in arrays.items() if array is not None}
    first, dtype = next(iter(given.items()))
    for name, other in given.items():
        if other != dtype:
            raise TypeError(
                f"{component}: all floating inputs must have one dtype, got {first} {dtype} and {name} {other}; "
                f"convert one with {name}.astype({first}.dtype)"
            )


def no_empty_axis(component: str, array: np.ndarray, axes: str) -> None:
    """Raise ValueError if an axis has size 0; `axes` names the last ones of the array.

    Only a `seq` may be empty, and a batch axis before the named ones, which may be the sequence of a caller.
    """
    for name, size in zip(reversed(axes.split()), reversed(array.shape), strict=False):
        if size == 0 and not name.endswith("seq"):
            raise ValueError(f"{component}: {name} must be at least 1, got shape {array.shape}; only seq may be 0")


def ids_in_range(component: str, name: str, ids: np.ndarray, size: int, size_name: str) -> None:
    """Raise IndexError unless 0 <= ids < size. Negative ids never wrap around."""
    wrong = (ids < 0) | (ids >= size)
    if wrong.any():
        raise IndexError(
            f"{component}: {name} must lie in 0 ... {size - 1} ({size_name} is {size}), got {ids[wrong].flat[0]}; "
            f"map unknown tokens to an id of their own"
        )


def in_range(component: str, name: str, value: Any, low: float, high: float, *, open_high: bool = False) -> None:
    """Raise ValueError unless low <= value <= high (or < high); NaN is out of every range."""
    if not (low <= value < high if open_high else low <= value <= high):
        end = ")" if open_high or high == float("inf") else "]"
        fix = f"give {low:g} or more"
        if high < float("inf"):
            fix += f", but {'less than' if open_high else 'at most'} {high:g}"
        raise ValueError(f"{component}: {name} must lie in [{low:g}, {high:g}{end}, got {value!r}; {fix}")
