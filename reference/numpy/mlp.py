"""The feed-forward network: what each token computes by itself."""

import math
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from reference.config import ACTIVATIONS, Activation
from reference.numpy._checks import in_range, no_empty_axis, one_dtype
from reference.numpy._products import Vjp, affine, affine_vjp


def relu(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r"""Cut off what is negative.

    $$ \operatorname{relu}(x) = \max(0, x) $$

    Its derivative at 0 is taken to be 0.

    Source: Glorot et al. 2011, section 3; Vaswani et al. 2017, equation 2.
    """
    return np.asarray(np.maximum(x, 0))


def relu_vjp(
    cotangent: Float[np.ndarray, "*shape"], x: Float[np.ndarray, "*shape"]
) -> tuple[Float[np.ndarray, "*shape"]]:
    r"""Give the gradient of x: what was cut off learns nothing.

    $$ dx = dy \odot [\, x > 0 \,] $$

    Source: Glorot et al. 2011, section 3.
    """
    one_dtype("relu_vjp", x=x, cotangent=cotangent)
    return (np.where(x > 0, cotangent, 0),)


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
        return np.asarray(x * _normal_cdf(x))
    if approximate == "tanh":
        return np.asarray(x / 2 * (1 + np.tanh(_tanh_argument(x))))
    raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")


def gelu_vjp(
    cotangent: Float[np.ndarray, "*shape"],
    x: Float[np.ndarray, "*shape"],
    *,
    approximate: Literal["none", "tanh"] = "none",
) -> tuple[Float[np.ndarray, "*shape"]]:
    r"""Give the gradient of x.

    $$ dx = dy \odot (\Phi(x) + x \, \varphi(x)), \qquad \varphi(x) = e^{-x^2 / 2} / \sqrt{2 \pi} $$

    and for the tanh form, with u its argument:

    $$ dx = dy \odot \left(\tfrac12 (1 + \tanh u) + \tfrac{x}{2} (1 - \tanh^2 u) \, u'\right), \qquad
       u' = \sqrt{2 / \pi} \, (1 + 3 \cdot 0.044715 \, x^2) $$

    Raises ValueError for another form.

    Source: Hendrycks & Gimpel 2016, section 2, differentiated.
    """
    one_dtype("gelu_vjp", x=x, cotangent=cotangent)
    _, slope = _gelu_with_slope(x, approximate)
    return (np.asarray(cotangent * slope),)


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


def dropout_vjp(
    cotangent: Float[np.ndarray, "*shape"],
    x: Float[np.ndarray, "*shape"],
    keep: Bool[np.ndarray, "*shape"],
    *,
    rate: float,
) -> tuple[Float[np.ndarray, "*shape"]]:
    r"""Give the gradient of x: what was dropped learns nothing, the rest by the same factor.

    $$ dx = dy \odot keep \, / \, (1 - rate) $$

    Raises ValueError for a rate outside [0, 1).

    Source: Srivastava et al. 2014, section 10.
    """
    one_dtype("dropout_vjp", x=x, cotangent=cotangent)
    return (dropout(cotangent, keep, rate=rate),)


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
    _check_feed_forward(x, w_1, b_1, w_2, b_2, rate)
    hidden = _activate(affine(x, w_1, b_1), activation)
    if keep is not None:
        hidden = dropout(hidden, keep, rate=rate)
    return affine(hidden, w_2, b_2)


def feed_forward_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    w_1: Float[np.ndarray, "d_model d_ff"],
    b_1: Float[np.ndarray, "d_ff"] | None,
    w_2: Float[np.ndarray, "d_ff d_model"],
    b_2: Float[np.ndarray, "d_model"] | None,
    *,
    activation: Activation = "gelu",
    keep: Bool[np.ndarray, "*batch seq d_ff"] | None = None,
    rate: float = 0.0,
) -> tuple[
    Float[np.ndarray, "*batch seq d_model"],
    Float[np.ndarray, "d_model d_ff"],
    Float[np.ndarray, "d_ff"] | None,
    Float[np.ndarray, "d_ff d_model"],
    Float[np.ndarray, "d_model"] | None,
]:
    r"""Give the gradients of x, w_1, b_1, w_2 and b_2.

    With z = x W_1 + b_1 and h = f(z), dropped where `keep` says so:

    $$ dW_2 = h^T dy, \quad db_2 = \textstyle\sum dy, \qquad dz = (dy \, W_2^T) \odot f'(z), \qquad
       dW_1 = x^T dz, \quad db_1 = \textstyle\sum dz, \quad dx = dz \, W_1^T $$

    where f' holds the factor of dropout too. Raises as `feed_forward` does.

    Source: Vaswani et al. 2017, equation 2, differentiated; Rumelhart et al. 1986.
    """
    one_dtype("feed_forward_vjp", x=x, cotangent=cotangent)
    _, vjp = feed_forward_and_vjp(x, w_1, b_1, w_2, b_2, activation=activation, keep=keep, rate=rate)
    return vjp(cotangent)


def feed_forward_and_vjp(
    x: Float[np.ndarray, "*batch seq d_model"],
    w_1: Float[np.ndarray, "d_model d_ff"],
    b_1: Float[np.ndarray, "d_ff"] | None,
    w_2: Float[np.ndarray, "d_ff d_model"],
    b_2: Float[np.ndarray, "d_model"] | None,
    *,
    activation: Activation = "gelu",
    keep: Bool[np.ndarray, "*batch seq d_ff"] | None = None,
    rate: float = 0.0,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Vjp]:
    """Give `feed_forward`, and its gradients as a function of the cotangent: hidden values and slopes are kept."""
    _check_feed_forward(x, w_1, b_1, w_2, b_2, rate)
    hidden, slope = _activate_with_slope(affine(x, w_1, b_1), activation)
    if keep is not None:
        hidden, slope = dropout(hidden, keep, rate=rate), dropout(slope, keep, rate=rate)

    vjp = partial(_feed_forward_vjp, x=x, w_1=w_1, b_1=b_1, w_2=w_2, b_2=b_2, hidden=hidden, slope=slope)
    return affine(hidden, w_2, b_2), vjp


def _feed_forward_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    w_1: Float[np.ndarray, "d_model d_ff"],
    b_1: Float[np.ndarray, "d_ff"] | None,
    w_2: Float[np.ndarray, "d_ff d_model"],
    b_2: Float[np.ndarray, "d_model"] | None,
    hidden: Float[np.ndarray, "*batch seq d_ff"],
    slope: Float[np.ndarray, "*batch seq d_ff"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray | None]:
    """Give the gradients, from the hidden values and the slopes that led to them."""
    d_hidden, d_w_2, d_b_2 = affine_vjp(cotangent, hidden, w_2, b_2)
    dx, d_w_1, d_b_1 = affine_vjp(d_hidden * slope, x, w_1, b_1)
    return dx, d_w_1, d_b_1, d_w_2, d_b_2


def _check_feed_forward(
    x: np.ndarray, w_1: np.ndarray, b_1: np.ndarray | None, w_2: np.ndarray, b_2: np.ndarray | None, rate: float
) -> None:
    one_dtype("feed_forward", x=x, w_1=w_1, b_1=b_1, w_2=w_2, b_2=b_2)
    no_empty_axis("feed_forward", x, "seq d_model")
    no_empty_axis("feed_forward", w_1, "d_model d_ff")
    in_range("feed_forward", "rate", rate, 0, 1, open_high=True)


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


def _activate_with_slope(
    x: Float[np.ndarray, "*shape"], activation: Activation
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Give f(x) and f'(x), which have most of their work in common."""
    match activation:
        case "relu":
            return relu(x), (x > 0).astype(x.dtype)
        case "gelu":
            return _gelu_with_slope(x, "none")
        case "gelu_tanh":
            return _gelu_with_slope(x, "tanh")
        case _:
            raise ValueError(f"feed_forward: activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def _gelu_with_slope(
    x: Float[np.ndarray, "*shape"], approximate: str
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    if approximate == "none":
        cdf = _normal_cdf(x)
        density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        return np.asarray(x * cdf), np.asarray(cdf + x * density)
    if approximate == "tanh":
        tanh = np.tanh(_tanh_argument(x))
        u_prime = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
        return np.asarray(x / 2 * (1 + tanh)), np.asarray((1 + tanh) / 2 + x / 2 * (1 - tanh**2) * u_prime)
    raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")


def _normal_cdf(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Give Phi, the probability that a standard normal number is smaller than x."""
    return np.asarray((1 + _erf(np.asarray(x / math.sqrt(2)))) / 2)


def _tanh_argument(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Give u, the argument of the tanh form."""
    return np.asarray(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _erf(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Give the error function: SciPy's, imported on first use, or where SciPy is absent the slow one of Python."""
    try:
        from scipy.special import erf
    except ImportError:
        erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(erf(x), dtype=x.dtype)
