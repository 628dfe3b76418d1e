"""What the contract says of a call: its signature, its arrays, and the shapes of what comes back."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import jaxtyping
import numpy as np

import reference.numpy
from reference.components import COMPONENTS
from reference.parameters import leaves, map_tree
from spec_tests.judge import Mismatch

VJP = "_vjp"
"""`gelu_vjp(cotangent, x)` is the gradient of `sum(cotangent * gelu(x))`, one part for each of `gradient_arguments`."""


@dataclass(frozen=True)
class Call:
    """One call as the contract has it: every argument, options at their defaults left out."""

    component: str  # or a gradient: gelu_vjp
    args: tuple[Any, ...]
    options: dict[str, Any]

    def mapped(self, change: Callable[[np.ndarray], Any]) -> "Call":
        """Put `change(array)` in the place of every array, those in lists and parameter trees too."""

        def within(value: Any) -> Any:
            return map_tree(lambda leaf: change(leaf) if isinstance(leaf, np.ndarray) else leaf, value)

        return Call(self.component, tuple(map(within, self.args)), {n: within(v) for n, v in self.options.items()})


def arrays_of(result: Any) -> dict[str, np.ndarray]:
    """Give the arrays of a result by their paths; the gradient of what is None is none."""
    tree = list(result) if isinstance(result, tuple) else result
    return {path: np.asarray(array) for path, array in leaves(tree) if array is not None}


def plain(name: str) -> str:
    """Give the component that a gradient is that of: `gelu` for `gelu_vjp`; a component itself stays."""
    return name.removesuffix(VJP)


def is_gradient(name: str) -> bool:
    """Say whether this is the gradient of a component that has one."""
    return name.endswith(VJP) and plain(name) in COMPONENTS and COMPONENTS[plain(name)].differentiable


@functools.cache
def signature(name: str) -> inspect.Signature:
    """Give the contract's signature of a component, or of a gradient: the same arguments after a cotangent."""
    of_component = inspect.signature(getattr(reference.numpy, plain(name)))
    if not is_gradient(name):
        return of_component
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    cotangent = inspect.Parameter("cotangent", kind, annotation=of_component.return_annotation)
    return inspect.Signature([cotangent, *of_component.parameters.values()])


@functools.cache
def gradient_arguments(name: str) -> tuple[str, ...]:
    """Name the arguments that a component has gradients of: floating arrays and parameter trees, in their order."""
    parameters = inspect.signature(getattr(reference.numpy, plain(name))).parameters
    return tuple(
        name
        for name, parameter in parameters.items()
        if name == "params" or any(_is_floating(a) for a in array_annotations(parameter.annotation))
    )


def _is_floating(annotation: Any) -> bool:
    return any(dtype.startswith("float") for dtype in annotation.dtypes)


def array_annotations(hint: Any) -> list[Any]:
    """Give the jaxtyping annotations in a hint: one for an array, one in `X | None`, none for anything else."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return [a for part in get_args(hint) for a in array_annotations(part)]
    return [hint] if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray) else []


def check_result(call: Call, result: Any) -> None:
    """Hold the shapes of a result against the contract's, given those of the arguments."""
    bound = signature(call.component).bind(*call.args, **call.options)
    bound.apply_defaults()
    if is_gradient(call.component):
        for name, gradient in zip(gradient_arguments(call.component), result, strict=True):
            _check_gradient(f"{call.component}: the gradient of {name}", bound.arguments[name], gradient)
        return
    parameters = signature(call.component).parameters
    with jaxtyping.jaxtyped("context"):
        for name, value in bound.arguments.items():
            for annotation in array_annotations(parameters[name].annotation):
                isinstance(value, annotation)  # binds the names of the axes
        _check_against(call.component, signature(call.component).return_annotation, result)


def _check_against(component: str, hint: Any, result: Any) -> None:
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if not isinstance(result, tuple | list) or len(result) != len(parts):
            raise Mismatch(f"{component} should return {len(parts)} values", got=repr(result)[:200])
        for part, value in zip(parts, result, strict=True):
            _check_against(component, part, value)
        return
    for annotation in array_annotations(hint):
        if not (isinstance(result, np.ndarray) and isinstance(result, annotation)):
            should = f"{annotation.__name__.split('[')[0]} with axes {annotation.dim_str!r}"
            raise Mismatch(f"{component} returned {_kind(result)}", got=result, should=should)


def _check_gradient(what: str, argument: Any, gradient: Any) -> None:
    """Check that a gradient has the form of its argument: an array its shape, a tree its leaves, None for None."""
    if argument is None:
        if gradient is not None:
            raise Mismatch(f"{what} is {_kind(gradient)}, and there is no such argument", got=gradient, should="None")
        return
    given, wanted = dict(leaves(gradient)), dict(leaves(argument))
    if missing := [path for path in wanted if path not in given]:
        raise Mismatch(f"{what} lacks {missing[0]!r}" if missing[0] else f"{what} is {_kind(gradient)} and no array")
    if extra := [path for path in given if path not in wanted]:
        raise Mismatch(f"{what} has {extra[0]!r}, which the argument has not")
    for path, array in wanted.items():
        found = given[path]
        if not (isinstance(found, np.ndarray) and found.dtype.kind == "f" and found.shape == np.shape(array)):
            should = f"floating, of shape {np.shape(array)} like the argument"
            raise Mismatch(f"{what}{' at ' if path else ''}{path} is {_kind(found)}", got=found, should=should)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return "a tree" if isinstance(value, Mapping | list) else "None" if value is None else type(value).__name__
