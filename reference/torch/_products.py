"""Products with weights that are stored [d_in, d_out]."""

import torch
from torch import Tensor


def affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Give `x @ w + b`, in one kernel.

    Not as `linear(x, w.mT, b)`: that leaves the gradient of w transposed, which costs a copy for each weight and step.
    """
    if b is None:
        return x @ w
    return torch.addmm(b, x.flatten(0, -2), w).unflatten(0, x.shape[:-1])
