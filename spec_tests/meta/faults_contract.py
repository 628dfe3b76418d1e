"""Faults that break the manners of the contract, in every component alike."""

from collections.abc import Callable
from typing import Any

import numpy as np

import reference.numpy
from reference.components import COMPONENTS
from reference.parameters import leaves, map_tree
from spec_tests.meta.faults import Fault

names = tuple(COMPONENTS)
differentiable = tuple(name for name in names if COMPONENTS[name].differentiable)


def everywhere(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Change every component in the same way."""
    return {name: change(getattr(reference.numpy, name)) for name in names}


def in_every_gradient(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Change the gradient of every component in the same way."""
    return {f"{name}_vjp": change(getattr(reference.numpy, f"{name}_vjp")) for name in differentiable}


def each_array(change: Callable[[np.ndarray], np.ndarray], result: Any) -> Any:
    """Change every array of a result; the gradient of an argument that is None stays None."""

    def changed(leaf: Any) -> Any:
        return None if leaf is None else np.asarray(change(np.asarray(leaf)))

    parts = [map_tree(changed, part) for part in result] if isinstance(result, tuple) else map_tree(changed, result)
    return tuple(parts) if isinstance(result, tuple) else parts


def slightly_off(function: Callable[..., Any]) -> Callable[..., Any]:
    """Be wrong by one part in ten million, or by one where the result counts or tells True from False."""

    def off(*args: Any, **options: Any) -> Any:
        def move(leaf: np.ndarray) -> np.ndarray:
            return leaf * (1 + 1e-7) + 1e-7 if leaf.dtype.kind == "f" else leaf ^ 1

        return each_array(move, function(*args, **options))

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

    def widen(leaf: np.ndarray) -> np.ndarray:
        return leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf

    def double(*args: Any, **options: Any) -> Any:
        return each_array(widen, function(*args, **options))

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


def a_ten_thousandth_off(function: Callable[..., Any]) -> Callable[..., Any]:
    """Be wrong by one part in ten thousand, as a gradient is that lacks a small term."""
    return lambda *args, **options: each_array(lambda leaf: leaf * (1 + 1e-4), function(*args, **options))


def clipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Clip every gradient."""
    return lambda *args, **options: each_array(lambda leaf: leaf.clip(-0.01, 0.01), function(*args, **options))


def with_an_axis_too_many(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep an axis that should have been summed away."""
    return lambda *args, **options: each_array(lambda leaf: leaf[None], function(*args, **options))


def zeros_for_none(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a gradient for what is not there."""

    def filled(*args: Any, **options: Any) -> Any:
        return tuple(np.zeros(1) if part is None else part for part in function(*args, **options))

    return filled


def gathering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the second call's gradients to those of the first, as who forgets to set them to 0."""
    calls = 0

    def gather(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        times = 2 if calls % 2 == 0 else 1
        return each_array(lambda leaf: leaf * times, function(*args, **options))

    return gather


def resizing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take any cotangent for one of the right shape and dtype."""
    forward = getattr(reference.numpy, function.__name__.removesuffix("_vjp"))

    def resize(cotangent: Any, *args: Any, **options: Any) -> Any:
        wanted = forward(*args, **options)
        return function(np.resize(cotangent, wanted.shape).astype(wanted.dtype), *args, **options)

    return resize


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
    *(
        Fault(f"{name}_vjp_slightly_off", {f"{name}_vjp": slightly_off(getattr(reference.numpy, f"{name}_vjp"))},
              (f"{name}.gradients_agree_with_the_reference",))
        for name in differentiable
    ),
    Fault("gradients_a_ten_thousandth_off", in_every_gradient(a_ten_thousandth_off),
          ("*.gradients_are_those_of_finite_differences",)),
    Fault("clips_gradients", in_every_gradient(clipped), ("*.the_gradient_is_linear_in_its_cotangent",)),
    Fault("gradients_with_an_axis_too_many", in_every_gradient(with_an_axis_too_many),
          ("*.a_gradient_has_the_shape_of_its_argument",
           "*.without_queries_a_bias_has_a_gradient_as_empty_as_itself")),
    Fault("gradients_of_what_is_none", in_every_gradient(zeros_for_none),
          tuple(f"{name}.a_gradient_has_the_shape_of_its_argument" for name in (
              "attention_weights", "scaled_dot_product_attention", "multi_head_attention", "layer_norm", "output_head",
          ))),
    Fault("gradients_in_float64_always", in_every_gradient(in_double), ("*.the_gradient_has_the_dtype_of_the_inputs",)),
    Fault("gradients_write_into_their_arguments", in_every_gradient(in_place),
          ("*.the_gradient_leaves_its_arguments_as_they_were",)),
    Fault("gradients_gather_from_call_to_call", in_every_gradient(gathering),
          ("*.the_same_cotangent_twice_gives_the_same_gradient",)),
    Fault("takes_any_cotangent", in_every_gradient(resizing),
          ("*.a_cotangent_of_another_shape_is_refused", "*.a_cotangent_of_another_dtype_is_refused",
           "multi_head_attention.a_cotangent_of_another_width_is_refused")),
    Fault("knows_no_empty_sequence", everywhere(nothing_empty),
          ("*.an_empty_sequence_gives_an_empty_result",)),
]  # fmt: skip
