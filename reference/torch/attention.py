"""Attention: each query takes a mean of the values, weighted by how well their keys answer it."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from reference.torch._checks import check_boolean, check_input, check_parts, readable
from reference.torch._products import affine


def softmax(scores: Float[Tensor, "*shape"], *, axis: int = -1) -> Float[Tensor, "*shape"]:
    r"""Turn scores into weights that are positive and sum to 1.

    $$ w_j = \frac{e^{s_j - m}}{\sum_l e^{s_l - m}}, \qquad m = \max_l s_l $$

    Subtracting m changes nothing but keeps the exponentials finite. A score of -inf has weight 0; where all scores are
    -inf there is nothing to choose from and all weights are 0.

    Raises ValueError for an axis that `scores` lacks.

    Source: Vaswani et al. 2017, equation 1; Goodfellow et al. 2016, section 4.1 (the shift).
    """
    check_input("softmax", "scores", scores, "")
    if not -scores.ndim <= axis < scores.ndim:
        raise ValueError(f"softmax: axis must be one of the {scores.ndim} axes of scores, got {axis}")
    nothing = (scores == -math.inf).all(dim=axis, keepdim=True)
    return functional.softmax(scores.masked_fill(nothing, 0), dim=axis).masked_fill(nothing, 0)


def causal_mask(
    q_seq: int, k_seq: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "q_seq k_seq"]:
    r"""Let query i see the keys up to its own place, counted from the end: both sequences end at the same token.

    $$ allowed_{ij} = [\, j \le i + k_{seq} - q_{seq} \,] $$

    `k_seq` is `q_seq` unless given. Queries before the first key see none. `device` is torch's default unless given.

    Raises ValueError for a negative length.

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    k_seq = q_seq if k_seq is None else k_seq
    if q_seq < 0 or k_seq < 0:
        raise ValueError(f"causal_mask: q_seq and k_seq must be at least 0, got {q_seq} and {k_seq}")
    return torch.ones(q_seq, k_seq, dtype=torch.bool, device=device).tril(k_seq - q_seq)


def attention_weights(
    q: Float[Tensor, "*batch q_seq d_k"],
    k: Float[Tensor, "*batch k_seq d_k"],
    *,
    mask: Bool[Tensor, "*#batch q_seq k_seq"] | None = None,
    bias: Float[Tensor, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch q_seq k_seq"]:
    r"""Weigh the keys for each query.

    $$ A = \operatorname{softmax}(s \, Q K^T + B) $$

    where s is `scale`, 1/sqrt(d_k) unless given, and B is `bias`. A key that `mask` (True = may attend) or `causal`
    hides has weight exactly 0, whatever its score; a query that may attend to nothing has weights 0.

    Raises TypeError where mask or bias has more batch axes than q.

    Source: Vaswani et al. 2017, equation 1 and section 3.2.1.
    """
    _check_attention("attention_weights", q, k, None, mask, bias)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    allowed = _allowed(q, k, mask, causal)
    if allowed is None:
        scores = (scale * q) @ k.mT
        return softmax(scores if bias is None else scores + bias)

    # 0 x NaN is NaN, in gradients too: what is not finite leaves the products, and comes back as NaN where it is seen.
    broken = ~k.isfinite().all(dim=-1, keepdim=True)
    q = q.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)
    scores = (scale * q) @ k.masked_fill(broken, 0).mT
    scores = scores.masked_fill(broken.mT, math.nan)
    scores = scores if bias is None else scores + bias
    return softmax(scores.masked_fill(~allowed, -math.inf))


def scaled_dot_product_attention(
    q: Float[Tensor, "*batch q_seq d_k"],
    k: Float[Tensor, "*batch k_seq d_k"],
    v: Float[Tensor, "*batch k_seq d_v"],
    *,
    mask: Bool[Tensor, "*#batch q_seq k_seq"] | None = None,
    bias: Float[Tensor, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch q_seq d_v"]:
    r"""Give each query the mean of the values, weighted by its attention.

    $$ Attention(Q, K, V) = \operatorname{softmax}(s \, Q K^T + B) \, V $$

    Options and errors as in `attention_weights`. A query that may attend to nothing gets zeros. The kernel is torch's
    fused one, which never builds the weights.

    Source: Vaswani et al. 2017, equation 1; Dao et al. 2022 (the fused kernel).
    """
    _check_attention("scaled_dot_product_attention", q, k, v, mask, bias)
    return _attend(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None = None,
    causal: bool,
    scale: float | None = None,
    guarded: bool = False,
) -> Tensor:
    """Attend; `guarded` says that what is not finite has been taken out of keys and values already."""
    if 0 in (q.shape[-2], k.shape[-2]):
        return (q @ k.mT) @ v  # zeros that gradients still flow through

    square = q.shape[-2] == k.shape[-2]
    plainly_causal = causal and square and mask is None and bias is None
    allowed = None if plainly_causal else _allowed(q, k, mask, causal)
    reached = None
    if (plainly_causal or allowed is not None) and not (guarded or _known_finite(k, v)):
        k, v, reached = _without_broken(k, v, allowed)

    nothing, offered = None, bias if allowed is None else allowed
    if offered is not None:
        if bias is not None and allowed is not None:
            offered = torch.where(allowed, bias, -math.inf)
        # A query that may attend to nothing attends to everything and forgets the answer: zeros, with zero gradients.
        closed = ~offered if offered.dtype == torch.bool else offered == -math.inf
        nothing = closed.all(dim=-1, keepdim=True)
        q = q.masked_fill(nothing, 0)
        offered = offered.masked_fill(nothing, offered.dtype == torch.bool)

    y = _fused(q, k, v, offered, causal=plainly_causal, scale=scale)
    if nothing is not None:
        y = y.masked_fill(nothing, 0)
    return y if reached is None else y.masked_fill(reached, math.nan)


def self_attention(
    x: Float[Tensor, "*batch seq d_model"],
    w_q: Float[Tensor, "d_model d_k"],
    w_k: Float[Tensor, "d_model d_k"],
    w_v: Float[Tensor, "d_model d_v"],
    *,
    mask: Bool[Tensor, "*#batch seq seq"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch seq d_v"]:
    r"""Let the tokens of one sequence attend to each other, with one head and no output projection.

    $$ Attention(X W^Q, X W^K, X W^V) $$

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    check_input("self_attention", "x", x, "seq d_model")
    check_input("self_attention", "w_q", w_q, "d_model d_k")
    check_input("self_attention", "w_v", w_v, "d_model d_v")
    d_model, narrow, wide = x.shape[-1], w_q.shape[-1], w_v.shape[-1]
    check_parts(
        "self_attention", x,
        w_q=(w_q, (d_model, narrow)), w_k=(w_k, (d_model, narrow)), w_v=(w_v, (d_model, wide)),
    )  # fmt: skip
    return scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, mask=mask, causal=causal)


def multi_head_attention(
    x: Float[Tensor, "*batch q_seq d_model"],
    w_q: Float[Tensor, "d_model heads_d_k"],
    w_k: Float[Tensor, "d_model heads_d_k"],
    w_v: Float[Tensor, "d_model heads_d_v"],
    w_o: Float[Tensor, "heads_d_v d_model"] | None,
    *,
    n_heads: int,
    b_q: Float[Tensor, "heads_d_k"] | None = None,
    b_k: Float[Tensor, "heads_d_k"] | None = None,
    b_v: Float[Tensor, "heads_d_v"] | None = None,
    b_o: Float[Tensor, "d_model"] | None = None,
    context: Float[Tensor, "*batch k_seq d_model"] | None = None,
    mask: Bool[Tensor, "*#batch q_seq k_seq"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch q_seq width"]:
    r"""Attend in several heads at once, each in a space of its own, and put their answers together.

    $$ head_h = Attention(X W^Q_h, C W^K_h, C W^V_h), \qquad Y = [head_1 \dots head_n] \, W^O $$

    where head h reads columns h d_k ... (h + 1) d_k - 1 of the projections, and C is `context` if given, else X. The
    result is d_model wide, or heads x d_v where `w_o` is None: then the heads are only put side by side. `mask`
    applies to every head; biases are added to the projections.

    Raises ValueError where n_heads does not divide the heads' width, or `b_o` comes without `w_o`.

    Source: Vaswani et al. 2017, section 3.2.2.
    """
    component = "multi_head_attention"
    check_input(component, "x", x, "q_seq d_model")
    check_input(component, "w_q", w_q, "d_model heads_d_k")
    check_input(component, "w_v", w_v, "d_model heads_d_v")
    d_model, heads_d_k, heads_d_v = x.shape[-1], w_q.shape[-1], w_v.shape[-1]
    narrow, wide = (d_model, heads_d_k), (d_model, heads_d_v)
    check_parts(
        component, x,
        w_q=(w_q, narrow), w_k=(w_k, narrow), w_v=(w_v, wide), w_o=(w_o, wide[::-1]),
        b_q=(b_q, narrow[1:]), b_k=(b_k, narrow[1:]), b_v=(b_v, wide[1:]), b_o=(b_o, (d_model,)),
    )  # fmt: skip
    if context is None:
        context = x
    else:
        check_input(component, "context", context, "k_seq d_model")
        check_parts(component, x, context=(context, (*x.shape[:-2], context.shape[-2], d_model)))
    if w_o is None and b_o is not None:
        raise ValueError("multi_head_attention: b_o needs w_o, got b_o alone; leave out both or give both")
    if mask is not None:
        check_boolean(component, "mask", mask)
        _check_broadcast(component, "mask", mask, (*x.shape[:-1], context.shape[-2]))
        mask = mask.unsqueeze(-3)

    # The compiler gets the guard of `_without_broken` on one tensor instead of three, fused into what surrounds it.
    guarded = torch.compiler.is_compiling() and causal and mask is None and context is x and x.shape[-2] > 0
    broken = _broken(x) if guarded else None
    if broken is not None:
        x = context = x.masked_fill(broken.unsqueeze(-1), 0)
    q = _split_heads(affine(x, w_q, b_q), n_heads)
    k = _split_heads(affine(context, w_k, b_k), n_heads)
    v = _split_heads(affine(context, w_v, b_v), n_heads)
    heads = _attend(q, k, v, mask=mask, causal=causal, guarded=guarded)
    side_by_side = heads.transpose(-3, -2).flatten(-2)
    y = side_by_side if w_o is None else affine(side_by_side, w_o, b_o)
    return y if broken is None else y.masked_fill(_from_the_first(broken), math.nan)


def _split_heads(x: Tensor, n_heads: int) -> Tensor:
    width = x.shape[-1]
    if n_heads < 1 or width % n_heads:
        divisors = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
        raise ValueError(
            f"multi_head_attention: d_model must be divisible by n_heads, got {width} and {n_heads}; "
            f"choose n_heads among {divisors}"
        )
    return x.unflatten(-1, (n_heads, width // n_heads)).transpose(-3, -2)


def _allowed(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """Which query may attend to which key: what `mask` and `causal` both allow, None where that is everything."""
    if not causal:
        return mask
    earlier = causal_mask(q.shape[-2], k.shape[-2], device=q.device)
    return earlier if mask is None else mask & earlier


def _known_finite(k: Tensor, v: Tensor) -> bool:
    # One NaN or infinity among the summands leaves no sum finite, and a sum is a tenth of the cost of `isfinite`.
    return readable(k) and math.isfinite((k.detach().sum() + v.detach().sum()).item())


def _without_broken(k: Tensor, v: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Replace what is not finite in keys and values by 0, and tell which numbers of the result it reaches.

    Hidden values would reach them too if they stayed, for 0 x NaN is NaN. `allowed` of None stands for plainly
    causal, where the compiler gets a cheaper form: the place of the first broken key or value tells, for all of d_v.
    """
    if allowed is None and torch.compiler.is_compiling():
        broken = _broken(k) | _broken(v)
        hidden = broken.unsqueeze(-1)
        return k.masked_fill(hidden, 0), v.masked_fill(hidden, 0), _from_the_first(broken)
    if allowed is None:
        allowed = causal_mask(k.shape[-2], device=k.device)
    broken_k, broken_v = ~k.isfinite().all(dim=-1, keepdim=True), ~v.isfinite()
    reached = allowed.to(v.dtype) @ (broken_k | broken_v).to(v.dtype) > 0
    return k.masked_fill(broken_k, 0), v.masked_fill(broken_v, 0), reached


def _broken(x: Tensor) -> Tensor:
    return ~(x * 2**-20).sum(dim=-1).isfinite()  # scaled, so that no sum of finite numbers overflows


def _from_the_first(broken: Tensor) -> Tensor:
    """Tell of each place whether a broken one stands there or earlier, as a column."""
    place = torch.arange(broken.shape[-1], device=broken.device)
    first = torch.where(broken, place, broken.shape[-1]).amin(dim=-1, keepdim=True)
    return (place >= first).unsqueeze(-1)


def _fused(q: Tensor, k: Tensor, v: Tensor, offered: Tensor | None, *, causal: bool, scale: float | None) -> Tensor:
    """Call torch's kernel, whose fused forms want exactly two batch axes."""
    batch = q.shape[:-2]
    if len(batch) > 2:
        offered = None if offered is None else offered.expand(*batch, *offered.shape[-2:]).flatten(0, -4)
        q, k, v = q.flatten(0, -4), k.flatten(0, -4), v.flatten(0, -4)
    elif len(batch) < 2:
        ones = (None,) * (2 - len(batch))
        q, k, v = q[ones], k[ones], v[ones]
    if offered is not None:
        offered = offered[(None,) * (4 - offered.ndim)]
    y = functional.scaled_dot_product_attention(q, k, v, attn_mask=offered, is_causal=causal, scale=scale)
    return y if len(batch) == 2 else y.reshape(*batch, *y.shape[-2:])


def _check_attention(
    component: str, q: Tensor, k: Tensor, v: Tensor | None, mask: Tensor | None, bias: Tensor | None
) -> None:
    check_input(component, "q", q, "q_seq d_k")
    check_input(component, "k", k, "k_seq d_k")
    *batch, q_seq, d_k = q.shape
    k_seq = k.shape[-2]
    check_parts(component, q, k=(k, (*batch, k_seq, d_k)))
    if v is not None:
        check_input(component, "v", v, "k_seq d_v")
        check_parts(component, q, v=(v, (*batch, k_seq, v.shape[-1])))
    if mask is not None:
        check_boolean(component, "mask", mask)
        _check_broadcast(component, "mask", mask, (*batch, q_seq, k_seq))
    if bias is not None:
        check_parts(component, q, bias=(bias, bias.shape))
        _check_broadcast(component, "bias", bias, (*batch, q_seq, k_seq))


def _check_broadcast(component: str, name: str, part: Tensor, shape: tuple[int, ...]) -> None:
    """Only batch axes may broadcast, and none may grow."""
    *batch, q_seq, k_seq = shape
    leading = part.shape[:-2]
    fits = len(leading) <= len(batch) and all(
        size in (1, whole) for size, whole in zip(reversed(leading), reversed(batch), strict=False)
    )
    if part.shape[-2:] != (q_seq, k_seq) or not fits:
        raise TypeError(
            f"{component}: {name} must end in q_seq, k_seq and broadcast to {shape}, got {tuple(part.shape)}"
        )


class SelfAttention(nn.Module):
    """The weights of `self_attention`, one head without output projection, drawn from N(0, 0.02²)."""

    def __init__(
        self,
        d_model: int,
        *,
        d_k: int | None = None,
        d_v: int | None = None,
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.causal = causal
        d_k = d_model if d_k is None else d_k
        d_v = d_k if d_v is None else d_v
        self.w_q = nn.Parameter(torch.empty(d_model, d_k, device=device, dtype=dtype))
        self.w_k = nn.Parameter(torch.empty(d_model, d_k, device=device, dtype=dtype))
        self.w_v = nn.Parameter(torch.empty(d_model, d_v, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"], *, mask: Bool[Tensor, "*#batch seq seq"] | None = None
    ) -> Float[Tensor, "*batch seq d_v"]:
        """Apply `self_attention`."""
        return self_attention(x, self.w_q, self.w_k, self.w_v, mask=mask, causal=self.causal)


class MultiHeadAttention(nn.Module):
    """The weights of `multi_head_attention`, drawn from N(0, 0.02²), and its biases, 0 at first."""

    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor | None
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    b_o: Tensor | None

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        bias: bool = False,
        output_projection: bool = True,
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.causal = causal
        for part in ("q", "k", "v", "o"):
            present = part != "o" or output_projection
            weight = torch.empty(d_model, d_model, device=device, dtype=dtype) if present else None
            vector = torch.empty(d_model, device=device, dtype=dtype) if present and bias else None
            self.register_parameter(f"w_{part}", None if weight is None else nn.Parameter(weight))
            self.register_parameter(f"b_{part}", None if vector is None else nn.Parameter(vector))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights and set the biases to 0."""
        for name, parameter in self.named_parameters():
            nn.init.normal_(parameter, std=0.02) if name.startswith("w") else nn.init.zeros_(parameter)

    def forward(
        self,
        x: Float[Tensor, "*batch q_seq d_model"],
        *,
        context: Float[Tensor, "*batch k_seq d_model"] | None = None,
        mask: Bool[Tensor, "*#batch q_seq k_seq"] | None = None,
    ) -> Float[Tensor, "*batch q_seq width"]:
        """Apply `multi_head_attention`."""
        return multi_head_attention(
            x, self.w_q, self.w_k, self.w_v, self.w_o,
            n_heads=self.n_heads, b_q=self.b_q, b_k=self.b_k, b_v=self.b_v, b_o=self.b_o,
            context=context, mask=mask, causal=self.causal,
        )  # fmt: skip
