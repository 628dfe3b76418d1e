"""The feed-forward network: what each token computes by itself."""

import math
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from reference.config import ACTIVATIONS, Activation
from reference.numpy._checks import in_range, no_empty_axis, one_dtype


def relu(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r"""Cut off what is negative.

    $$ \operatorname{relu}(x) = \max(0, x) $$

    Its derivative at 0 is taken to be 0.

    Source: Glorot et al. 2011, section 3; Vaswani et al. 2017, equation 2.
    """
    return np.asarray(np.maximum(x, 0))


def gelu(
    x: Float[np.ndarray, "*shape"], *, approximate: Literal["none", "tanh"] = "none"
) -> Float[np.ndarray, "*shape"]:
    r"""Weigh x by the probability that a standard normal number is smaller.

    $$ \operatorname{gelu}(x) = x \, \Phi(x) = \tfrac{x}{2} \left(1 + \operatorname{erf}(x / \sqrt{2})\right) $$

    With `approximate` "tanh" it is the older form, which differs by up to 4.7e-4:

    $$ \tfrac{x}{2} \left(1 + \tanh\!\left(\sqrt{2 / \pi} \, (x + 0.044715 \, x^3)\right)\right) $$

    Raises ValueError for another form.

    Source: Hendrycks & Gimpel 2016, section 2.
    """
    if approximate == "none":
        return np.asarray(x / 2 * (1 + _erf(np.asarray(x / math.sqrt(2)))))
    if approximate == "tanh":
        return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")


def dropout(
    x: Float[np.ndarray, "*shape"], keep: Bool[np.ndarray, "*shape"], *, rate: float
) -> Float[np.ndarray, "*shape"]:
    r"""Keep some numbers and set the rest to 0, scaled so that the expectation stays.

    $$ y = x \odot keep \, / \, (1 - rate) $$

    where each entry of `keep` is True with probability 1 - rate: drawn by the caller, so that it can be repeated.

    Raises ValueError for a rate outside [0, 1).

    Source: Srivastava et al. 2014, section 10 (the inverted form).
    """
    in_range("dropout", "rate", rate, 0, 1, open_high=True)
    return np.asarray(x * keep / (1 - rate))


def feed_forward(
    x: Float[np.ndarray, "*batch seq d_model"],
    w_1: Float[np.ndarray, "d_model d_ff"],
    b_1: Float[np.ndarray, "d_ff"] | None,
    w_2: Float[np.ndarray, "d_ff d_model"],
    b_2: Float[np.ndarray, "d_model"] | None,
    *,
    activation: Activation = "gelu",
    keep: Bool[np.ndarray, "*batch seq d_ff"] | None = None,
    rate: float = 0.0,
) -> Float[np.ndarray, "*batch seq d_model"]:
    r"""Widen each token's vector, bend it, and bring it back; no token sees another.

    $$ FFN(x) = f(x W_1 + b_1) \, W_2 + b_2 $$

    where f is `activation`. Dropout acts on the hidden values when `keep` is given. A bias of None is left out.

    Raises ValueError for an unknown activation, or a rate outside [0, 1).

    Source: Vaswani et al. 2017, equation 2.
    """
    one_dtype("feed_forward", x=x, w_1=w_1, b_1=b_1, w_2=w_2, b_2=b_2)
    no_empty_axis("feed_forward", x, "seq d_model")
    no_empty_axis("feed_forward", w_1, "d_model d_ff")
    in_range("feed_forward", "rate", rate, 0, 1, open_high=True)
    hidden = x @ w_1 if b_1 is None else x @ w_1 + b_1
    hidden = _activate(hidden, activation)
    if keep is not None:
        hidden = dropout(hidden, keep, rate=rate)
    return hidden @ w_2 if b_2 is None else hidden @ w_2 + b_2


def _activate(x: Float[np.ndarray, "*shape"], activation: Activation) -> Float[np.ndarray, "*shape"]:
    match activation:
        case "relu":
            return relu(x)
        case "gelu":
            return gelu(x)
        case "gelu_tanh":
            return gelu(x, approximate="tanh")
        case _:
            raise ValueError(f"feed_forward: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def _erf(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Give the error function: SciPy's, imported on first use, or where SciPy is absent the slow one of Python."""
    try:
        from scipy.special import erf
    except ImportError:
        erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(erf(x), dtype=x.dtype)
