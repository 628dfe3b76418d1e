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
    _, _, normed = _normed(x, eps, variant)
    if gamma is not None:
        normed = normed * gamma
    if beta is not None:
        normed = normed + beta
    return normed


def layer_norm_vjp(
    cotangent: Float[np.ndarray, "*batch d_model"],
    x: Float[np.ndarray, "*batch d_model"],
    gamma: Float[np.ndarray, "d_model"] | None,
    beta: Float[np.ndarray, "d_model"] | None,
    *,
    eps: float = 1e-5,
    variant: Variant = "standard",
) -> tuple[
    Float[np.ndarray, "*batch d_model"],
    Float[np.ndarray, "d_model"] | None,
    Float[np.ndarray, "d_model"] | None,
]:
    r"""Give the gradients of x, gain and bias.

    With y the output before gain and bias, D what it was divided by, and g = dout * gamma:

    $$ dx = \frac{g - \bar g}{D} - \frac{g \cdot y}{C} \, y, \qquad d\gamma = \sum dout \odot y, \qquad
       d\beta = \sum dout $$

    where the first term is what shifts and D let through, and the second how D itself moves: dD = (x - mu) . dx / C
    with C = d_model sqrt(sigma² + eps), d_model sigma or (d_model - 1) s, by variant. On a constant row a deviation is
    0 and does not move to first order: y is 0 there, and so is the second term. Raises as `layer_norm` does.

    Source: Ba et al. 2016, equation 3, differentiated; Xu et al. 2019, section 3.1 (the standard variant).
    """
    one_dtype("layer_norm_vjp", x=x, gamma=gamma, beta=beta, cotangent=cotangent)
    deviation, curvature, y = _normed(x, eps, variant)
    g = cotangent if gamma is None else cotangent * gamma
    along_y = (g * y).sum(axis=-1, keepdims=True) / np.where(curvature == 0, 1, curvature)
    dx = (g - g.mean(axis=-1, keepdims=True)) / deviation - along_y * y
    tokens = tuple(range(x.ndim - 1))
    d_gamma = None if gamma is None else (cotangent * y).sum(axis=tokens)
    return dx, d_gamma, None if beta is None else cotangent.sum(axis=tokens)


def _normed(
    x: Float[np.ndarray, "*batch d_model"], eps: float, variant: Variant
) -> tuple[Float[np.ndarray, "*batch 1"], Float[np.ndarray, "*batch 1"], Float[np.ndarray, "*batch d_model"]]:
    """Give the divisor D, the C of `layer_norm_vjp`, and the centred x over D."""
    no_empty_axis("layer_norm", x, "d_model")
    in_range("layer_norm", "eps", eps, 0, np.inf)
    n = x.shape[-1]
    centred = x - x.mean(axis=-1, keepdims=True)
    squares = (centred**2).sum(axis=-1, keepdims=True)
    match variant:
        case "standard":
            divisor = np.sqrt(squares / n + eps)
            return divisor, n * divisor, centred / divisor
        case "std_plus_eps":
            sigma = np.sqrt(squares / n)
            return sigma + eps, n * sigma, centred / (sigma + eps)
        case "unbiased_std_plus_eps":
            if n == 1:
                raise ValueError(
                    "layer_norm: unbiased_std_plus_eps needs d_model of at least 2, got 1; use std_plus_eps"
                )
            s = np.sqrt(squares / (n - 1))
            return s + eps, (n - 1) * s, centred / (s + eps)
        case _:
            raise ValueError(f"layer_norm: variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
