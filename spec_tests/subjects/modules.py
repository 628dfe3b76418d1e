"""An `nn.Module` as a subject: how it is built, where its weights come from, how it is called.

    from spec_tests.subjects.modules import from_module

    multi_head_attention = from_module(
        "multi_head_attention",
        MyAttention,  # is called as MyAttention(d_model=..., n_heads=...): whatever its parameters name
        weights={
            "qkv.weight": ["w_q.T", "w_k.T", "w_v.T"],  # packed along the first axis; nn.Linear stores [out, in]
            "qkv.bias": ["b_q", "b_k", "b_v"],
            "out.weight": "w_o.T",
            "out.bias": "b_o",
        },
    )

The module's weights are the arguments themselves, so that gradients by autograd reach every one of them.

Every name is one of the contract's: an argument (`n_heads`, `eps`, `mask`), a part of a parameter tree
(`params.attention.w_q`), or the size of an axis (`d_model`, `d_ff`, `vocab`).
"""

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from spec_tests.subjects.contract import array_annotations
from spec_tests.subjects.contract import signature as contract_signature

Weight = str | list[str] | Callable[..., Any]
"""`"w_q.T"`, a list of such to be put together along the first axis, or a function of arguments by name."""

before_running: ContextVar[Callable[[nn.Module], None] | None] = ContextVar("before_running", default=None)
"""Gets the module with its weights in place, if anybody wants to put hooks on it."""


def from_module(
    component: str,
    build: Callable[..., nn.Module],
    *,
    weights: Mapping[str, Weight],
    call: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Make `component` of the contract out of a module.

    `build` gets the sizes and options that its parameters name. `weights` maps each key of the module's `state_dict` to
    where its value comes from; a bias that a case leaves out becomes zeros, a gain ones, an output projection the
    identity. `call(module, x, mask, ...)` gets the arguments that it names, as tensors; without it the module is called
    on the first argument alone.

    What neither build, weights nor call names is not offered: a case that gives it counts as unsupported, and so does
    one whose heads are together wider or narrower than d_model, unless build names heads_d_k. A key of `weights` that
    the module lacks, a parameter without a weight, a shape that does not fit, and inputs that disagree about the size
    of an axis are a ValueError.
    """
    signature = contract_signature(component)
    for root in sorted(set().union(*(_roots(weight) for weight in weights.values()))):
        if root not in signature.parameters:
            arguments = ", ".join(signature.parameters)
            raise ValueError(f"weights: {root!r} is no argument of {component}; those are {arguments}")
    first = next(iter(signature.parameters))
    inputs = _names(call) - {"module"} if call else {first}
    consumed = inputs.union(_names(build), *(_roots(weight) for weight in weights.values()))

    def offered(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        if lacking := [name for name in given.arguments if name not in consumed and given.arguments[name] is not None]:
            raise NotImplementedError(f"the module takes no {lacking[0]}")
        given.apply_defaults()
        arguments = {name: _tensors(value) for name, value in given.arguments.items()}
        sizes = _sizes(signature, given.arguments)
        for width in ("heads_d_k", "heads_d_v"):
            if width not in _names(build) and sizes.get(width, sizes.get("d_model")) != sizes.get("d_model"):
                raise NotImplementedError(
                    f"the module has heads of d_model = {sizes['d_model']} in all, not {sizes[width]}"
                )
        module = build(**_chosen(build, {**sizes, **given.arguments}))
        dtype = next(
            (t.dtype for t in arguments.values() if isinstance(t, Tensor) and t.is_floating_point()), torch.float64
        )
        module = module.to(dtype).eval()
        state = load_weights(module, weights, arguments)
        if (watch := before_running.get()) is not None:
            watch(module)

        def run(module: nn.Module) -> Any:
            return call(module, **_chosen(call, arguments)) if call else module(arguments[first])

        if not any(value.requires_grad for value in state.values()):
            return run(module)
        values = {f"module.{key}": value for key, value in state.items()}
        return functional_call(_Run(module, run), values, (), tie_weights=False)

    offered.__name__, offered.__doc__ = component, f"{component} by {getattr(build, '__name__', 'a module')}."
    offered.__signature__ = signature
    offered.weights = weights
    offered.arrays = "torch"
    return offered


class _Run(nn.Module):
    """A call of a module as a module, for `functional_call` to put the weights into."""

    def __init__(self, module: nn.Module, run: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.module, self.run = module, run

    def forward(self) -> Any:
        return self.run(self.module)


def load_weights(module: nn.Module, weights: Mapping[str, Weight], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Fill the module's state_dict, and give the values that were copied there, which gradients flow through.

    Raises ValueError for keys or shapes that do not fit, naming both sides.
    """
    state = module.state_dict()
    given: dict[str, Tensor] = {}
    if extra := [key for key in weights if key not in state]:
        raise ValueError(f"weights: the module has no {extra[0]!r} in its state_dict, which has {sorted(state)}")
    if missing := [name for name, _ in module.named_parameters() if name not in weights]:
        raise ValueError(f"weights: nothing is given for the module's parameter {missing[0]!r}; map it to an argument")
    for key, weight in weights.items():
        place = state[key]
        value = _value(weight, arguments, place)
        if value.shape != place.shape:
            raise ValueError(
                f"weights: {key!r} has shape {tuple(place.shape)} in the module, and {_text(weight)} gives "
                f"{tuple(value.shape)}; nn.Linear keeps [d_out, d_in], so a weight w goes there as 'w.T'"
            )
        state[key] = value.detach()
        given[key] = value.to(place.dtype)
    module.load_state_dict(state)
    return {**given, **_tied(module, given)}


def _tied(module: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each parameter's value under all of its names; the last that is given counts, as when it is loaded."""
    names_of: dict[Tensor, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names_of.setdefault(parameter, []).append(name)
    return {
        name: given[[other for other in names if other in given][-1]] for names in names_of.values() for name in names
    }


def _value(weight: Weight, arguments: Mapping[str, Any], place: Tensor) -> Tensor:
    if callable(weight):
        return torch.as_tensor(weight(**_chosen(weight, arguments)))
    expressions = [weight] if isinstance(weight, str) else weight
    parts = [_part(expression, arguments) for expression in expressions]
    absent = [expression for expression, part in zip(expressions, parts, strict=True) if part is None]
    if absent:
        rows = (place.shape[0] - sum(part.shape[0] for part in parts if part is not None)) // len(absent)
        fill = _in_place_of(absent[0], rows, place)
        parts = [fill if part is None else part for part in parts]
    if wrong := [part.dtype for part in parts if part.dtype != place.dtype]:  # torch.cat would promote
        raise ValueError(f"weights: {_text(weight)} must be {place.dtype} like the input, got {wrong[0]}")
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _in_place_of(absent: str, rows: int, place: Tensor) -> Tensor:
    """Give what changes nothing: a bias of zeros, a gain of ones, an output projection that is the identity."""
    name = absent.removesuffix(".T").rpartition(".")[2]
    if name == "w_o":
        return torch.eye(rows, place.shape[1], dtype=place.dtype)
    if name != "gamma" and not name.startswith("b"):
        raise NotImplementedError(f"the module cannot do without {absent}")
    return torch.full((rows, *place.shape[1:]), float(name == "gamma"), dtype=place.dtype)


def _part(expression: str, arguments: Mapping[str, Any]) -> Tensor | None:
    path, transposed = expression.removesuffix(".T"), expression.endswith(".T")
    root, *steps = path.split(".")
    value = arguments[root]
    for step in steps:
        if value is not None:
            value = value[int(step)] if isinstance(value, list) else value.get(step)
    if value is None:
        return None
    return value.T if transposed else value


def _names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def _roots(weight: Weight) -> set[str]:
    if callable(weight):
        return _names(weight)
    return {expression.split(".")[0] for expression in ([weight] if isinstance(weight, str) else weight)}


def _chosen(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the values that the function's parameters name, as far as there are any."""
    return {name: values[name] for name in inspect.signature(function).parameters if name in values}


def _sizes(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Read the size of every named axis off the arrays, by their annotations. Raises ValueError where two disagree."""
    sizes: dict[str, int] = {}
    for name, value in arguments.items():
        for annotation in array_annotations(signature.parameters[name].annotation):
            if not isinstance(value, np.ndarray | Tensor):
                continue
            axes = [axis for axis in annotation.dim_str.split() if axis.isidentifier()]
            if value.ndim < len(axes):
                raise ValueError(f"{name} must have the axes {annotation.dim_str!r}, got shape {tuple(value.shape)}")
            for axis, size in zip(reversed(axes), reversed(value.shape), strict=False):
                if sizes.setdefault(axis, size) != size:
                    raise ValueError(f"{axis} must be the same everywhere, got {sizes[axis]} and, in {name}, {size}")
    return sizes


def _tensors(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _tensors(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_tensors(part) for part in value]
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _text(weight: Weight) -> str:
    return getattr(weight, "__name__", "a function") if callable(weight) else repr(weight)
