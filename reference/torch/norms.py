"""Normalisation of each token's vector."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from reference.config import VARIANTS, Variant
from reference.torch._checks import check_input, check_parts, check_range


def layer_norm(
    x: Float[Tensor, "*batch d_model"],
    gamma: Float[Tensor, "d_model"] | None,
    beta: Float[Tensor, "d_model"] | None,
    *,
    eps: float = 1e-5,
    variant: Variant = "standard",
) -> Float[Tensor, "*batch d_model"]:
    r"""Give each vector mean 0 and about unit variance, then a gain and a bias of its own for every channel.

    $$ y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot \gamma + \beta $$

    where mu and sigma² are mean and population variance over d_model. That is `variant` "standard"; the two others
    divide by a deviation plus eps, which is not the same thing: "std_plus_eps" by sigma + eps, and
    "unbiased_std_plus_eps" by s + eps, where s² divides the sum of squares by d_model - 1. A gain or bias of None is
    left out.

    Raises ValueError for a negative eps, an unknown variant, or "unbiased_std_plus_eps" with d_model = 1.

    Source: Ba et al. 2016, equation 3; PyTorch's LayerNorm for the place of eps; tutorials 000 and 001 for the others.
    """
    check_input("layer_norm", "x", x, "d_model")
    n = x.shape[-1]
    check_parts("layer_norm", x, gamma=(gamma, (n,)), beta=(beta, (n,)))
    check_range("layer_norm", "eps", eps, 0, math.inf)
    if variant == "standard":
        return functional.layer_norm(x, (n,), gamma, beta, eps)
    if variant == "std_plus_eps":
        return _over_deviation(x, gamma, beta, eps, divisor=n)
    if variant == "unbiased_std_plus_eps":
        if n == 1:
            raise ValueError("layer_norm: unbiased_std_plus_eps needs d_model of at least 2, got 1; use std_plus_eps")
        return _over_deviation(x, gamma, beta, eps, divisor=n - 1)
    raise ValueError(f"layer_norm: variant must be one of {', '.join(VARIANTS)}, got {variant!r}")


def _over_deviation(x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, *, divisor: int) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # as torch's own layer norm computes
    centred = wide - wide.mean(-1, keepdim=True)
    # A norm, not the root of a variance: its gradient at 0 is 0, where that of the root is infinite.
    deviation = torch.linalg.vector_norm(centred, dim=-1, keepdim=True) / math.sqrt(divisor)
    normed = centred / (deviation + eps)
    if gamma is not None:
        normed = normed * gamma
    if beta is not None:
        normed = normed + beta
    return normed.to(x.dtype)


class LayerNorm(nn.Module):
    """The gain (1 at first) and bias (0 at first) of `layer_norm`, or neither where `affine` is False."""

    def __init__(
        self,
        d_model: int,
        *,
        eps: float = 1e-5,
        variant: Variant = "standard",
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.variant: Variant = variant
        empty = [torch.empty(d_model, device=device, dtype=dtype) if affine else None for _ in range(2)]
        self.gamma, self.beta = (None if vector is None else nn.Parameter(vector) for vector in empty)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to 1 and the bias to 0."""
        if self.gamma is not None and self.beta is not None:
            nn.init.ones_(self.gamma)
            nn.init.zeros_(self.beta)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply `layer_norm`."""
        return layer_norm(x, self.gamma, self.beta, eps=self.eps, variant=self.variant)
