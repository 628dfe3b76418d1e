"""The gradients of a subject of tensors that has none of its own: those that torch or JAX finds for it."""

from collections.abc import Callable, Mapping
from typing import Any

from reference.parameters import map_tree
from spec_tests.judge import Mismatch

Arguments = dict[int | str, Any]
"""The arguments of a call by their place or their name."""


def torch_gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    wanted: Mapping[str, int | str],
    cotangent: Callable[[Any], Any],
) -> dict[str, Any]:
    """Give the gradients of `wanted`, each under its name: an array's for an array, a tree's for a tree.

    `cotangent` gets the result and gives what belongs to it. What the result does not depend on has gradient 0. Raises
    Mismatch where no gradient flows at all.
    """
    import torch

    starts: list[torch.Tensor] = []

    def track(tensor: Any) -> Any:
        if not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
            return tensor
        starts.append(tensor.requires_grad_())
        return tensor.clone()  # theirs to write into, which a leaf is not

    tracked = arguments | {place: map_tree(track, arguments[place]) for place in wanted.values()}
    with torch.enable_grad():
        result = _run(function, tracked)
        toward = cotangent(result)
        found: list[Any] = [None] * len(starts)
        # Where an argument is empty, such as keys that there are none of, a constant is a right answer.
        a_constant_may_do = not all(start.numel() for start in starts)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            toward = toward.to(device=result.device, dtype=result.dtype)
            found = list(torch.autograd.grad(result, starts, toward, allow_unused=True)) if starts else []
        if starts and not a_constant_may_do and all(gradient is None for gradient in found):
            raise Mismatch(f"no gradient flows from the result: {_why(result)}")
    gradients = iter([torch.zeros_like(s) if g is None else g for s, g in zip(starts, found, strict=True)])

    def gradient(tensor: Any) -> Any:
        return next(gradients) if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else None

    return {name: map_tree(gradient, arguments[place]) for name, place in wanted.items()}


def _why(result: Any) -> str:
    import torch

    if not isinstance(result, torch.Tensor):
        return f"it is {type(result).__name__} and no tensor"
    if not result.requires_grad:
        return "it is detached from its arguments (detach, no_grad, a detour through NumPy?)"
    return "it depends on none of the arguments"


def jax_gradients(
    function: Callable[..., Any],
    arguments: Arguments,
    wanted: Mapping[str, int | str],
    cotangent: Callable[[Any], Any],
) -> dict[str, Any]:
    """Give the gradients of `wanted` as `torch_gradients` does, by `jax.vjp`."""
    jax = import_jax()

    def of_the_wanted(values: dict[str, Any]) -> Any:
        return _run(function, arguments | {place: values[name] for name, place in wanted.items()})

    result, pull_back = jax.vjp(of_the_wanted, {name: arguments[place] for name, place in wanted.items()})
    (gradients,) = pull_back(cotangent(result).astype(result.dtype))
    return gradients


def import_jax() -> Any:
    """Import JAX, with float64 as a dtype like any other. Raises ValueError where there is none."""
    try:
        import jax
    except ModuleNotFoundError as missing:
        raise ValueError("arrays = 'jax' needs JAX, which is not installed: pip install jax") from missing

    jax.config.update("jax_enable_x64", True)
    return jax


def _run(function: Callable[..., Any], arguments: Arguments) -> Any:
    args = [value for place, value in arguments.items() if isinstance(place, int)]
    return function(*args, **{name: value for name, value in arguments.items() if isinstance(name, str)})
