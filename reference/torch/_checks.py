"""What production always checks: shapes without reading a tensor, values in eager mode only."""

import math

import torch
from torch import Tensor


def check_input(component: str, name: str, x: Tensor, axes: str) -> None:
    """Hold a tensor to its last axes: there, not empty but for a `seq`, and of floating dtype.

    Where no `seq` is named, the batch axes may hold it and be empty too.
    """
    if not x.is_floating_point():
        raise TypeError(f"{component}: {name} must be floating, got {x.dtype}; convert it, as with {name}.float()")
    check_axes(component, name, x, axes)


def check_axes(component: str, name: str, x: Tensor, axes: str) -> None:
    """Hold a tensor of any dtype to its last axes."""
    last = axes.split()
    if x.ndim < len(last):
        raise TypeError(f"{component}: {name} must have the axes {axes}, got shape {tuple(x.shape)}")
    if 0 in x.shape:
        batch = "batch" if "seq" in axes else "seq"
        for axis, size in zip([batch] * (x.ndim - len(last)) + last, x.shape, strict=True):
            if size == 0 and not axis.endswith("seq"):
                raise ValueError(
                    f"{component}: {axis} must be at least 1, got shape {tuple(x.shape)}; only seq may be 0"
                )


def check_parts(component: str, x: Tensor, **parts: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Hold each part to its shape, so that none spreads over an axis silently, and to the dtype of x."""
    for name, (part, shape) in parts.items():
        if part is None:
            continue
        if part.shape != shape:
            raise TypeError(f"{component}: {name} must have shape {shape}, got {tuple(part.shape)}")
        if part.dtype != x.dtype:
            raise TypeError(
                f"{component}: all floating inputs must have one dtype, got {x.dtype} and {name} {part.dtype}; "
                f"convert one, as with {name}.to({x.dtype})"
            )


def check_boolean(component: str, name: str, mask: Tensor) -> None:
    """Raise TypeError unless a mask is boolean: a mask of 0 and 1 would be read as scores."""
    if mask.dtype != torch.bool:
        raise TypeError(f"{component}: {name} must be boolean, got {mask.dtype}; convert it, as with {name}.bool()")


def check_ids(component: str, name: str, ids: Tensor, size: int, *, ignored: int | None = None) -> Tensor:
    """Give the ids as int64. Raises IndexError for one outside 0 ... size - 1 that is not the ignored one."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise TypeError(f"{component}: {name} must be integers, got {ids.dtype}; convert them, as with {name}.long()")
    ids = ids.long()
    if readable(ids) and ids.numel():
        counted = ids if ignored is None else ids.masked_fill(ids == ignored, 0)
        least, most = (int(end) for end in torch.aminmax(counted))
        if least < 0 or most >= size:
            raise IndexError(
                f"{component}: {name} must lie in 0 ... {size - 1} (vocab is {size}), got "
                f"{least if least < 0 else most}; map unknown tokens to an id of their own"
            )
    return ids


def check_range(component: str, name: str, value: float, low: float, high: float, *, below: bool = False) -> None:
    """Raise ValueError unless low <= value <= high (`below`: < high); NaN is in no range."""
    if not (low <= value < high if below else low <= value <= high):
        end = ")" if below or math.isinf(high) else "]"
        fix = f"give {low:g} or more"
        if high < math.inf:
            fix += f", but {'less than' if below else 'at most'} {high:g}"
        raise ValueError(f"{component}: {name} must lie in [{low:g}, {high:g}{end}, got {value!r}; {fix}")


def readable(x: Tensor) -> bool:
    """Tell whether values may be read: not while torch.compile traces, nor on the meta device, which has none."""
    return not torch.compiler.is_compiling() and not x.is_meta
