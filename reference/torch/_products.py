"""Products with weights that are stored [d_in, d_out]."""

import torch
from torch import Tensor


def affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Give `x @ w + b`, in one kernel.

    Not as `linear(x, w.mT, b)`: that leaves the gradient of w transposed, which costs a copy for each weight and step.
    The compiler adds b in the kernel that follows, where `addmm` would first spread it over the result.
    """
    if b is None:
        return x @ w
    if torch.compiler.is_compiling():
        return x @ w + b
    return torch.addmm(b, x.flatten(0, -2), w).unflatten(0, x.shape[:-1])
