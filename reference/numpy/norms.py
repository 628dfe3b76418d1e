"""Normalisation of each token's vector."""

import numpy as np
from jaxtyping import Float

from reference.config import VARIANTS, Variant
from reference.numpy._checks import in_range, no_empty_axis, one_dtype


def layer_norm(
    x: Float[np.ndarray, "*batch d_model"],
    gamma: Float[np.ndarray, "d_model"] | None,
    beta: Float[np.ndarray, "d_model"] | None,
    *,
    eps: float = 1e-5,
    variant: Variant = "standard",
) -> Float[np.ndarray, "*batch d_model"]:
    r"""Give each vector mean 0 and about unit variance, then a gain and a bias of its own for every channel.

    $$ y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot \gamma + \beta $$

    where mu and sigma² are mean and population variance over d_model. That is `variant` "standard"; the two others
    divide by a deviation plus eps, which is not the same thing: "std_plus_eps" by sigma + eps, and
    "unbiased_std_plus_eps" by s + eps, where s² divides the sum of squares by d_model - 1. A gain or bias of None is
    left out.

    Raises ValueError for a negative eps, an unknown variant, or "unbiased_std_plus_eps" with d_model = 1.

    Source: Ba et al. 2016, equation 3; PyTorch's LayerNorm for the place of eps; tutorials 000 and 001 for the others.
    """
    one_dtype("layer_norm", x=x, gamma=gamma, beta=beta)
    no_empty_axis("layer_norm", x, "d_model")
    in_range("layer_norm", "eps", eps, 0, np.inf)

    centred = x - x.mean(axis=-1, keepdims=True)
    normed = centred / _deviation(centred, eps, variant)
    if gamma is not None:
        normed = normed * gamma
    if beta is not None:
        normed = normed + beta
    return normed


def _deviation(
    centred: Float[np.ndarray, "*batch d_model"], eps: float, variant: Variant
) -> Float[np.ndarray, "*batch 1"]:
    n = centred.shape[-1]
    squares = (centred**2).sum(axis=-1, keepdims=True)
    match variant:
        case "standard":
            return np.sqrt(squares / n + eps)
        case "std_plus_eps":
            return np.sqrt(squares / n) + eps
        case "unbiased_std_plus_eps":
            if n == 1:
                raise ValueError(
                    "layer_norm: unbiased_std_plus_eps needs d_model of at least 2, got 1; use std_plus_eps"
                )
            return np.sqrt(squares / (n - 1)) + eps
        case _:
            raise ValueError(f"layer_norm: variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
