"""Attention: each query takes a mean of the values, weighted by how well their keys answer it."""

import math
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from reference.numpy._checks import no_empty_axis, one_dtype
from reference.numpy._products import Vjp, affine, affine_vjp


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


def softmax_vjp(
    cotangent: Float[np.ndarray, "*shape"], scores: Float[np.ndarray, "*shape"], *, axis: int = -1
) -> tuple[Float[np.ndarray, "*shape"]]:
    r"""Give the gradient of the scores.

    $$ ds_j = w_j \left(dw_j - \sum_l w_l \, dw_l\right) $$

    It sums to 0, for a shift of all scores changes nothing. Raises ValueError for an axis that `scores` lacks.

    Source: Bridle 1990; Goodfellow et al. 2016, section 6.2.2.3.
    """
    one_dtype("softmax_vjp", scores=scores, cotangent=cotangent)
    w = softmax(scores, axis=axis)
    return (w * (cotangent - (w * cotangent).sum(axis=axis, keepdims=True)),)


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


def attention_weights_vjp(
    cotangent: Float[np.ndarray, "*batch q_seq k_seq"],
    q: Float[np.ndarray, "*batch q_seq d_k"],
    k: Float[np.ndarray, "*batch k_seq d_k"],
    *,
    mask: Bool[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    bias: Float[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[
    Float[np.ndarray, "*batch q_seq d_k"],
    Float[np.ndarray, "*batch k_seq d_k"],
    Float[np.ndarray, "*#batch q_seq k_seq"] | None,
]:
    r"""Give the gradients of q, k and bias.

    $$ dS = A \odot (dA - \operatorname{rowsum}(A \odot dA)), \qquad dQ = s \, dS \, K, \qquad
       dK = s \, dS^T Q, \qquad dB = dS $$

    where dB is summed over the axes that the bias was spread over. What is hidden gets exactly 0 and gives nothing,
    whatever stands there. Options and errors as in `attention_weights`.

    Source: Vaswani et al. 2017, equation 1, differentiated; Dao et al. 2022, appendix B.2.
    """
    one_dtype("attention_weights_vjp", q=q, cotangent=cotangent)
    weights = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
    return _weights_vjp(cotangent, weights, q, k, _allowed(mask, causal, weights.shape), bias, scale)


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


def scaled_dot_product_attention_vjp(
    cotangent: Float[np.ndarray, "*batch q_seq d_v"],
    q: Float[np.ndarray, "*batch q_seq d_k"],
    k: Float[np.ndarray, "*batch k_seq d_k"],
    v: Float[np.ndarray, "*batch k_seq d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    bias: Float[np.ndarray, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[
    Float[np.ndarray, "*batch q_seq d_k"],
    Float[np.ndarray, "*batch k_seq d_k"],
    Float[np.ndarray, "*batch k_seq d_v"],
    Float[np.ndarray, "*#batch q_seq k_seq"] | None,
]:
    r"""Give the gradients of q, k, v and bias.

    $$ dV = A^T dY, \qquad dA = dY \, V^T $$

    and from dA those of q, k and bias, as in `attention_weights_vjp`. A query that may attend to nothing, and a key
    that nobody may attend to, get exactly 0.

    Source: Vaswani et al. 2017, equation 1, differentiated; Dao et al. 2022, appendix B.2.
    """
    one_dtype("scaled_dot_product_attention_vjp", q=q, v=v, cotangent=cotangent)
    no_empty_axis("scaled_dot_product_attention", v, "k_seq d_v")
    weights = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
    return _attention_vjp(cotangent, weights, q, k, v, _allowed(mask, causal, weights.shape), bias, scale)


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


def self_attention_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_v"],
    x: Float[np.ndarray, "*batch seq d_model"],
    w_q: Float[np.ndarray, "d_model d_k"],
    w_k: Float[np.ndarray, "d_model d_k"],
    w_v: Float[np.ndarray, "d_model d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    causal: bool = False,
) -> tuple[
    Float[np.ndarray, "*batch seq d_model"],
    Float[np.ndarray, "d_model d_k"],
    Float[np.ndarray, "d_model d_k"],
    Float[np.ndarray, "d_model d_v"],
]:
    r"""Give the gradients of x, which asks, answers and is told, and of its three projections.

    $$ dX = dQ \, W^{Q\,T} + dK \, W^{K\,T} + dV \, W^{V\,T}, \qquad dW^Q = X^T dQ, \quad dW^K = X^T dK, \quad
       dW^V = X^T dV $$

    with dQ, dK and dV those of `scaled_dot_product_attention_vjp`.

    Source: Vaswani et al. 2017, section 3.2.3, differentiated.
    """
    one_dtype("self_attention_vjp", x=x, w_q=w_q, w_k=w_k, w_v=w_v, cotangent=cotangent)
    no_empty_axis("self_attention", x, "seq d_model")
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    d_q, d_k, d_v, _ = scaled_dot_product_attention_vjp(cotangent, q, k, v, mask=mask, causal=causal)
    dx_q, d_w_q, _ = affine_vjp(d_q, x, w_q, None)
    dx_k, d_w_k, _ = affine_vjp(d_k, x, w_k, None)
    dx_v, d_w_v, _ = affine_vjp(d_v, x, w_v, None)
    return dx_q + dx_k + dx_v, d_w_q, d_w_k, d_w_v


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
    _check_heads(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, context)
    context = x if context is None else context

    q = _split_heads(affine(x, w_q, b_q), n_heads)
    k = _split_heads(affine(context, w_k, b_k), n_heads)
    v = _split_heads(affine(context, w_v, b_v), n_heads)
    every_head = None if mask is None else mask[..., None, :, :]
    heads = scaled_dot_product_attention(q, k, v, mask=every_head, causal=causal)
    side_by_side = _merge_heads(heads)
    return side_by_side if w_o is None else affine(side_by_side, w_o, b_o)


def multi_head_attention_vjp(
    cotangent: Float[np.ndarray, "*batch q_seq width"],
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
) -> tuple[
    Float[np.ndarray, "*batch q_seq d_model"],
    Float[np.ndarray, "d_model heads_d_k"],
    Float[np.ndarray, "d_model heads_d_k"],
    Float[np.ndarray, "d_model heads_d_v"],
    Float[np.ndarray, "heads_d_v d_model"] | None,
    Float[np.ndarray, "heads_d_k"] | None,
    Float[np.ndarray, "heads_d_k"] | None,
    Float[np.ndarray, "heads_d_v"] | None,
    Float[np.ndarray, "d_model"] | None,
    Float[np.ndarray, "*batch k_seq d_model"] | None,
]:
    r"""Give the gradients of x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o and context; None for what is absent.

    $$ [dhead_1 \dots dhead_n] = dY \, W^{O\,T}, \qquad dW^O = [head_1 \dots head_n]^T dY, \qquad b^O: \sum dY $$
    $$ dX = dQ \, W^{Q\,T}, \qquad dC = dK \, W^{K\,T} + dV \, W^{V\,T}, \qquad
       dW^Q = X^T dQ, \quad dW^K = C^T dK, \quad dW^V = C^T dV $$

    with dQ, dK and dV those of each head, side by side, and the biases' gradients their sums over all tokens. Without a
    context C is X, which then gets dX + dC. Raises as `multi_head_attention` does, and TypeError for a cotangent that
    is not as wide as the result.

    Source: Vaswani et al. 2017, section 3.2.2, differentiated.
    """
    one_dtype("multi_head_attention_vjp", x=x, cotangent=cotangent)
    _, width = w_v.shape if w_o is None else w_o.shape
    if cotangent.shape[-1] != width:
        raise TypeError(
            f"multi_head_attention_vjp: cotangent must have the shape of the result, which is {width} wide, "
            f"got {cotangent.shape}"
        )
    _, vjp = multi_head_attention_and_vjp(
        x, w_q, w_k, w_v, w_o,
        n_heads=n_heads, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o, context=context, mask=mask, causal=causal,
    )  # fmt: skip
    return vjp(cotangent)


def multi_head_attention_and_vjp(
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
) -> tuple[Float[np.ndarray, "*batch q_seq width"], Vjp]:
    """Give `multi_head_attention`, and its gradients as a function of the cotangent: q, k, v and weights are kept."""
    _check_heads(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, context)
    source = x if context is None else context
    q = _split_heads(affine(x, w_q, b_q), n_heads)
    k = _split_heads(affine(source, w_k, b_k), n_heads)
    v = _split_heads(affine(source, w_v, b_v), n_heads)
    every_head = None if mask is None else mask[..., None, :, :]
    weights = attention_weights(q, k, mask=every_head, causal=causal)
    allowed = _allowed(every_head, causal, weights.shape)
    side_by_side = _merge_heads(_weighted_sum(weights, v, allowed))

    vjp = partial(
        _multi_head_attention_vjp, x=x, context=context, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v,
        b_o=b_o, q=q, k=k, v=v, weights=weights, allowed=allowed, side_by_side=side_by_side,
    )  # fmt: skip
    return side_by_side if w_o is None else affine(side_by_side, w_o, b_o), vjp


def _multi_head_attention_vjp(
    cotangent: Float[np.ndarray, "*batch q_seq width"],
    x: Float[np.ndarray, "*batch q_seq d_model"],
    context: Float[np.ndarray, "*batch k_seq d_model"] | None,
    w_q: Float[np.ndarray, "d_model heads_d_k"],
    w_k: Float[np.ndarray, "d_model heads_d_k"],
    w_v: Float[np.ndarray, "d_model heads_d_v"],
    w_o: Float[np.ndarray, "heads_d_v d_model"] | None,
    b_q: Float[np.ndarray, "heads_d_k"] | None,
    b_k: Float[np.ndarray, "heads_d_k"] | None,
    b_v: Float[np.ndarray, "heads_d_v"] | None,
    b_o: Float[np.ndarray, "d_model"] | None,
    q: Float[np.ndarray, "*batch heads q_seq d_k"],
    k: Float[np.ndarray, "*batch heads k_seq d_k"],
    v: Float[np.ndarray, "*batch heads k_seq d_v"],
    weights: Float[np.ndarray, "*batch heads q_seq k_seq"],
    allowed: Bool[np.ndarray, "*batch heads q_seq k_seq"],
    side_by_side: Float[np.ndarray, "*batch q_seq heads_d_v"],
) -> tuple[np.ndarray | None, ...]:
    """Give the gradients, from the queries, keys, values and weights of all heads, and their answers."""
    source = x if context is None else context
    d_side_by_side, d_w_o, d_b_o = cotangent, None, None
    if w_o is not None:
        d_side_by_side, d_w_o, d_b_o = affine_vjp(cotangent, side_by_side, w_o, b_o)
    d_heads = _split_heads(d_side_by_side, q.shape[-3])
    d_q, d_k, d_v, _ = _attention_vjp(d_heads, weights, q, k, v, allowed, None, None)
    dx, d_w_q, d_b_q = affine_vjp(_merge_heads(d_q), x, w_q, b_q)
    d_source_k, d_w_k, d_b_k = affine_vjp(_merge_heads(d_k), source, w_k, b_k)
    d_source_v, d_w_v, d_b_v = affine_vjp(_merge_heads(d_v), source, w_v, b_v)
    d_context = d_source_k + d_source_v
    if context is None:
        dx, d_context = dx + d_context, None
    return dx, d_w_q, d_w_k, d_w_v, d_w_o, d_b_q, d_b_k, d_b_v, d_b_o, d_context


def _check_heads(
    x: np.ndarray,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    w_o: np.ndarray | None,
    b_q: np.ndarray | None,
    b_k: np.ndarray | None,
    b_v: np.ndarray | None,
    b_o: np.ndarray | None,
    context: np.ndarray | None,
) -> None:
    one_dtype(
        "multi_head_attention",
        x=x, context=context, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o,
    )  # fmt: skip
    no_empty_axis("multi_head_attention", x, "q_seq d_model")
    if w_o is None and b_o is not None:
        raise ValueError("multi_head_attention: b_o needs w_o, got b_o alone; leave out both or give both")


def _attention_vjp(
    cotangent: Float[np.ndarray, "*batch q_seq d_v"],
    weights: Float[np.ndarray, "*batch q_seq k_seq"],
    q: Float[np.ndarray, "*batch q_seq d_k"],
    k: Float[np.ndarray, "*batch k_seq d_k"],
    v: Float[np.ndarray, "*batch k_seq d_v"],
    allowed: Bool[np.ndarray, "*batch q_seq k_seq"],
    bias: Float[np.ndarray, "*#batch q_seq k_seq"] | None,
    scale: float | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Give dQ, dK, dV and dB, from the weights."""
    d_v = _weighted_sum(np.where(allowed, weights, 0).swapaxes(-1, -2), cotangent, allowed.swapaxes(-1, -2))
    with np.errstate(invalid="ignore"):  # inf x 0 in a hidden value is nobody's concern
        d_weights = cotangent @ v.swapaxes(-1, -2)
    d_q, d_k, d_bias = _weights_vjp(d_weights, weights, q, k, allowed, bias, scale)
    return d_q, d_k, d_v, d_bias


def _weights_vjp(
    cotangent: Float[np.ndarray, "*batch q_seq k_seq"],
    weights: Float[np.ndarray, "*batch q_seq k_seq"],
    q: Float[np.ndarray, "*batch q_seq d_k"],
    k: Float[np.ndarray, "*batch k_seq d_k"],
    allowed: Bool[np.ndarray, "*batch q_seq k_seq"],
    bias: Float[np.ndarray, "*#batch q_seq k_seq"] | None,
    scale: float | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Give dQ, dK and dB, from the weights."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    d_weights = np.where(allowed, cotangent, 0)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    d_scores = np.where(allowed, d_scores, 0)
    d_q = scale * _weighted_sum(d_scores, k, allowed)
    d_k = scale * _weighted_sum(d_scores.swapaxes(-1, -2), q, allowed.swapaxes(-1, -2))
    return d_q, d_k, None if bias is None else _summed_to(bias.shape, d_scores)


def _summed_to(shape: tuple[int, ...], array: np.ndarray) -> np.ndarray:
    """Sum over the axes along which an array of this shape was spread."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    spread = tuple(place for place, size in enumerate(shape) if size == 1)
    return array.sum(axis=spread, keepdims=True)


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
    if finite.all():
        return weights @ v
    touched = allowed.astype(v.dtype) @ (~finite).astype(v.dtype) > 0
    return np.where(touched, np.nan, weights @ np.where(finite, v, 0)).astype(v.dtype)
