"""Products with weights that are stored [d_in, d_out], and their gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

Vjp = Callable[[np.ndarray], Any]
"""Gradients as a function of the cotangent, for a call that has been made: it keeps what they need of that call."""


def affine(
    x: Float[np.ndarray, "*batch d_in"],
    w: Float[np.ndarray, "d_in d_out"],
    b: Float[np.ndarray, "d_out"] | None,
) -> Float[np.ndarray, "*batch d_out"]:
    """Give x w + b."""
    return x @ w if b is None else x @ w + b


def affine_vjp(
    cotangent: Float[np.ndarray, "*batch d_out"],
    x: Float[np.ndarray, "*batch d_in"],
    w: Float[np.ndarray, "d_in d_out"],
    b: Float[np.ndarray, "d_out"] | None,
) -> tuple[Float[np.ndarray, "*batch d_in"], Float[np.ndarray, "d_in d_out"], Float[np.ndarray, "d_out"] | None]:
    """Give dx = dy w^T, dw = x^T dy and db = dy, the latter two summed over all tokens."""
    rows, d_rows = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    return cotangent @ w.T, rows.T @ d_rows, None if b is None else d_rows.sum(axis=0)
