"""Faults that break the manners of the contract, in every component alike."""

from collections.abc import Callable
from typing import Any

import numpy as np

import reference.numpy
from reference.parameters import leaves, map_tree
from spec_tests.meta.faults import Fault

names = reference.numpy.__all__


def everywhere(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Change every component in the same way."""
    return {name: change(getattr(reference.numpy, name)) for name in names}


def slightly_off(function: Callable[..., Any]) -> Callable[..., Any]:
    """Be wrong by one part in ten million, or by one where the result counts or tells True from False."""

    def off(*args: Any, **options: Any) -> Any:
        def move(leaf: Any) -> Any:
            leaf = np.asarray(leaf)
            return leaf * (1 + 1e-7) + 1e-7 if leaf.dtype.kind == "f" else np.asarray(leaf ^ 1)

        result = function(*args, **options)
        return tuple(map_tree(move, part) for part in result) if isinstance(result, tuple) else map_tree(move, result)

    return off


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remember how often it was called, and let the result know."""
    calls = 0

    def count(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return slightly_off(function)(*args, **options) if calls % 2 else function(*args, **options)

    return count


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Write into every array that is given."""

    def write(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        for _, leaf in leaves([list(args), options]):
            if isinstance(leaf, np.ndarray):
                leaf[...] = leaf + 1 if leaf.dtype.kind != "b" else ~leaf
        return result

    return write


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """Answer in float64 whatever came."""

    def widen(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        return leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf

    def double(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        return tuple(map_tree(widen, part) for part in result) if isinstance(result, tuple) else map_tree(widen, result)

    return double


def anything_goes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a number for any input at all."""

    def answer(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (TypeError, ValueError, IndexError):
            return np.ones((1, 1))

    return answer


def nothing_empty(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse every empty array."""

    def refuse(*args: Any, **options: Any) -> Any:
        if any(isinstance(leaf, np.ndarray) and leaf.size == 0 for _, leaf in leaves([list(args), options])):
            raise ValueError("nothing given")
        return function(*args, **options)

    return refuse


FAULTS = [
    *(
        Fault(f"{name}_slightly_off", {name: slightly_off(getattr(reference.numpy, name))},
              (f"{name}.agrees_with_the_reference",))
        for name in names
    ),
    Fault("remembers_its_calls", everywhere(counting),
          tuple(f"{name}.the_same_call_twice_gives_the_same_result" for name in names)),
    Fault("writes_into_its_arguments", everywhere(in_place), ("*.arguments_are_left_as_they_were",)),
    Fault("computes_in_float64_always", everywhere(in_double), ("*.the_dtype_of_the_inputs_is_kept",)),
    Fault("refuses_nothing", everywhere(anything_goes), (
        "*.a_wrong_rank_is_refused", "*.an_axis_of_another_length_is_refused", "*.a_wrong_dtype_is_refused",
        "*.mixed_dtypes_are_refused", "*.an_axis_of_size_0_is_refused",
    )),
    Fault("knows_no_empty_sequence", everywhere(nothing_empty),
          ("*.an_empty_sequence_gives_an_empty_result",)),
]  # fmt: skip
