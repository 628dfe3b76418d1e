"""Attention: each query takes a mean of the values, weighted by how well their keys answer it."""

import math

import numpy as np
from jaxtyping import Bool, Float

from reference.numpy._checks import no_empty_axis, one_dtype


def softmax(scores: Float[np.ndarray, "*shape"], *, axis: int = -1) -> Float[np.ndarray, "*shape"]:
    r"""Turn scores into weights that are positive and sum to 1.

    $$ w_j = \frac{e^{s_j - m}}{\sum_l e^{s_l - m}}, \qquad m = \max_l s_l $$

    Subtracting m changes nothing but keeps the exponentials finite. A score of -inf has weight 0; where all scores are
    -inf there is nothing to choose from and all weights are 0.

    Raises ValueError for an axis that `scores` lacks.

    Source: Vaswani et al. 2017, equation 1; Goodfellow et al. 2016, section 4.1 (the shift).
    """
    if not -scores.ndim <= axis < scores.ndim:
        raise ValueError(f"softmax: axis must be one of the {scores.ndim} axes of scores, got {axis}")
    m = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    m = np.where(m == -np.inf, 0, m)
    exponentials = np.exp(scores - m)
    total = exponentials.sum(axis=axis, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def causal_mask(q_seq: int, k_seq: int | None = None) -> Bool[np.ndarray, "q_seq k_seq"]:
    r"""Let query i see the keys up to its own place, counted from the end: both sequences end at the same token.

    $$ allowed_{ij} = [\, j \le i + k_{seq} - q_{seq} \,] $$

    `k_seq` is `q_seq` unless given. Queries before the first key see none.

    Raises ValueError for a negative length.

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    k_seq = q_seq if k_seq is None else k_seq
    if q_seq < 0 or k_seq < 0:
        raise ValueError(f"causal_mask: q_seq and k_seq must be at least 0, got {q_seq} and {k_seq}")
    i = np.arange(q_seq)[:, None]
    j = np.arange(k_seq)
    return j <= i + k_seq - q_seq


def attention_weights(
    q: Float[np.ndarray, "*batch q_seq d_k"],
    k: Float[np.ndarray, "*batch k_seq d_k"],
    *,
    mask: Bool[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    bias: Float[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[np.ndarray, "*batch q_seq k_seq"]:
    r"""Weigh the keys for each query.

    $$ A = \operatorname{softmax}(s \, Q K^T + B) $$

    where s is `scale`, 1/sqrt(d_k) unless given, and B is `bias`. A key that `mask` (True = may attend) or `causal`
    hides has weight exactly 0, whatever its score; a query that may attend to nothing has weights 0.

    Raises TypeError where mask or bias has more batch axes than q.

    Source: Vaswani et al. 2017, equation 1 and section 3.2.1.
    """
    one_dtype("attention_weights", q=q, k=k, bias=bias)
    no_empty_axis("attention_weights", q, "q_seq d_k")
    no_empty_axis("attention_weights", k, "k_seq d_k")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    with np.errstate(invalid="ignore"):  # inf x 0 in a hidden key is nobody's concern
        scores = scale * (q @ k.swapaxes(-1, -2))
    if bias is not None:
        scores = scores + _fitting("bias", bias, scores.shape)
    return softmax(np.where(_allowed(mask, causal, scores.shape), scores, -np.inf).astype(q.dtype))


def scaled_dot_product_attention(
    q: Float[np.ndarray, "*batch q_seq d_k"],
    k: Float[np.ndarray, "*batch k_seq d_k"],
    v: Float[np.ndarray, "*batch k_seq d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    bias: Float[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[np.ndarray, "*batch q_seq d_v"]:
    r"""Give each query the mean of the values, weighted by its attention.

    $$ Attention(Q, K, V) = \operatorname{softmax}(s \, Q K^T + B) \, V $$

    Options and errors as in `attention_weights`. A query that may attend to nothing gets zeros.

    Source: Vaswani et al. 2017, equation 1.
    """
    one_dtype("scaled_dot_product_attention", q=q, v=v)
    no_empty_axis("scaled_dot_product_attention", v, "k_seq d_v")
    weights = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
    return _weighted_sum(weights, v, _allowed(mask, causal, weights.shape))


def self_attention(
    x: Float[np.ndarray, "*batch seq d_model"],
    w_q: Float[np.ndarray, "d_model d_k"],
    w_k: Float[np.ndarray, "d_model d_k"],
    w_v: Float[np.ndarray, "d_model d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch seq d_v"]:
    r"""Let the tokens of one sequence attend to each other, with one head and no output projection.

    $$ Attention(X W^Q, X W^K, X W^V) $$

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    one_dtype("self_attention", x=x, w_q=w_q, w_k=w_k, w_v=w_v)
    no_empty_axis("self_attention", x, "seq d_model")
    return scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, mask=mask, causal=causal)


def multi_head_attention(
    x: Float[np.ndarray, "*batch q_seq d_model"],
    w_q: Float[np.ndarray, "d_model heads_d_k"],
    w_k: Float[np.ndarray, "d_model heads_d_k"],
    w_v: Float[np.ndarray, "d_model heads_d_v"],
    w_o: Float[np.ndarray, "heads_d_v d_model"] | None,
    *,
    n_heads: int,
    b_q: Float[np.ndarray, "heads_d_k"] | None = None,
    b_k: Float[np.ndarray, "heads_d_k"] | None = None,
    b_v: Float[np.ndarray, "heads_d_v"] | None = None,
    b_o: Float[np.ndarray, "d_model"] | None = None,
    context: Float[np.ndarray, "*batch k_seq d_model"] | None = None,
    mask: Bool[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch q_seq width"]:
    r"""Attend in several heads at once, each in a space of its own, and put their answers together.

    $$ head_h = Attention(X W^Q_h, C W^K_h, C W^V_h), \qquad Y = [head_1 \dots head_n] \, W^O $$

    where head h reads columns h d_k ... (h + 1) d_k - 1 of the projections, and C is `context` if given, else X. The
    result is d_model wide, or heads x d_v where `w_o` is None: then the heads are only put side by side. `mask`
    applies to every head; biases are added to the projections.

    Raises ValueError where n_heads does not divide the heads' width, or `b_o` comes without `w_o`.

    Source: Vaswani et al. 2017, section 3.2.2.
    """
    one_dtype(
        "multi_head_attention",
        x=x, context=context, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o,
    )  # fmt: skip
    no_empty_axis("multi_head_attention", x, "q_seq d_model")
    if w_o is None and b_o is not None:
        raise ValueError("multi_head_attention: b_o needs w_o, got b_o alone; leave out both or give both")
    context = x if context is None else context

    q = _split_heads(_project(x, w_q, b_q), n_heads)
    k = _split_heads(_project(context, w_k, b_k), n_heads)
    v = _split_heads(_project(context, w_v, b_v), n_heads)
    every_head = None if mask is None else mask[..., None, :, :]
    heads = scaled_dot_product_attention(q, k, v, mask=every_head, causal=causal)
    side_by_side = _merge_heads(heads)
    return side_by_side if w_o is None else _project(side_by_side, w_o, b_o)


def _project(
    x: Float[np.ndarray, "*batch d_in"],
    w: Float[np.ndarray, "d_in d_out"],
    b: Float[np.ndarray, "d_out"] | None,
) -> Float[np.ndarray, "*batch d_out"]:
    return x @ w if b is None else x @ w + b


def _split_heads(
    x: Float[np.ndarray, "*batch seq width"], n_heads: int
) -> Float[np.ndarray, "*batch {n_heads} seq d_head"]:
    *batch, seq, width = x.shape
    if n_heads < 1 or width % n_heads:
        divisors = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise ValueError(
            f"multi_head_attention: d_model must be divisible by n_heads, got {width} and {n_heads}; "
            f"choose n_heads among {divisors}"
        )
    return x.reshape(*batch, seq, n_heads, width // n_heads).swapaxes(-2, -3)


def _merge_heads(heads: Float[np.ndarray, "*batch heads seq d_v"]) -> Float[np.ndarray, "*batch seq width"]:
    *batch, n_heads, seq, d_v = heads.shape
    return heads.swapaxes(-2, -3).reshape(*batch, seq, n_heads * d_v)


def _allowed(mask: np.ndarray | None, causal: bool, shape: tuple[int, ...]) -> Bool[np.ndarray, "..."]:
    """Which query may attend to which key: what `mask` and `causal` both allow."""
    allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(_fitting("mask", mask, shape), shape)
    return allowed & causal_mask(*shape[-2:]) if causal else allowed


def _fitting(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Pass on a mask or bias whose batch axes are those of the scores, or broadcast to them."""
    if array.ndim > len(shape) or any(a not in (1, b) for a, b in zip(array.shape[::-1], shape[::-1], strict=False)):
        raise TypeError(f"attention: {name} must broadcast to the scores' shape {shape}, got {array.shape}")
    return array


def _weighted_sum(
    weights: Float[np.ndarray, "*batch q_seq k_seq"],
    v: Float[np.ndarray, "*batch k_seq d_v"],
    allowed: Bool[np.ndarray, "*batch q_seq k_seq"],
) -> Float[np.ndarray, "*batch q_seq d_v"]:
    """Give `weights @ v`, in which a hidden value has no part: not even NaN or infinity, though 0 times it is NaN."""
    finite = np.isfinite(v)
    total = weights @ np.where(finite, v, 0)
    if finite.all():
        return total
    touched = allowed.astype(v.dtype) @ (~finite).astype(v.dtype) > 0
    return np.where(touched, np.nan, total).astype(v.dtype)
