"""torch.nn as a subject: what PyTorch itself ships, called the way the contract calls it, and nothing made up for it.

Where torch has no such component (positions, whole models, sampling) nothing is offered; where it lacks an option, the
option is missing here too. Its real differences are listed in torch_nn.xfails.toml.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import Tensor, nn

from reference.config import ModelConfig
from reference.parameters import leaves, map_tree
from spec_tests.subjects.modules import from_module

arrays = "torch"
conventions = {"scaled_dot_product_attention": {"causal": "first_key"}}
"""is_causal aligns both sequences at the first token; they differ from the specification unless q_seq = k_seq."""

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU(approximate="tanh")}


def token_embedding(ids: Tensor, table: Tensor) -> Tensor:
    """F.embedding, which does not scale."""
    return F.embedding(ids, table)


def softmax(scores: Tensor, *, axis: int = -1) -> Tensor:
    """F.softmax."""
    return F.softmax(scores, dim=axis)


def causal_mask(q_seq: int) -> Tensor:
    """nn.Transformer's square mask, which holds 0 where one may attend and -inf elsewhere."""
    return nn.Transformer.generate_square_subsequent_mask(q_seq) == 0


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """F.scaled_dot_product_attention, which takes a mask or a bias or is causal, one of them."""
    if (mask is not None) + (bias is not None) + causal > 1:
        raise NotImplementedError("torch takes one of mask, bias and causal")
    attn_mask = bias if mask is None else mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=causal, scale=scale)


def _hidden(mask: Tensor | None, causal: bool, batch: tuple[int, ...], seq: int, n_heads: int) -> Tensor | None:
    """Say it as nn.MultiheadAttention wants it: True hides, and a mask for each head of each sequence."""
    square = nn.Transformer.generate_square_subsequent_mask(seq) < 0 if causal else None
    if mask is None:
        return square
    hidden = ~mask if square is None else ~mask | square
    hidden = _one_batch(hidden.expand(*batch, *hidden.shape[-2:]))
    return hidden.repeat_interleave(n_heads, dim=0)


def _one_batch(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])  # torch's modules take one batch axis


def _attend(
    module: nn.Module, x: Tensor, n_heads: int, context: Tensor | None, mask: Tensor | None, causal: bool
) -> Tensor:
    if causal and context is not None:
        raise NotImplementedError("torch's causal masks are square")
    batch, context = x.shape[:-2], x if context is None else context
    hidden = _hidden(mask, causal, batch, x.shape[-2], n_heads)
    y, _ = module(*map(_one_batch, (x, context, context)), attn_mask=hidden, need_weights=False)
    return y.reshape(x.shape)


multi_head_attention = from_module(
    "multi_head_attention",
    lambda d_model, n_heads: nn.MultiheadAttention(d_model, n_heads, batch_first=True),
    weights={
        "in_proj_weight": ["w_q.T", "w_k.T", "w_v.T"],
        "in_proj_bias": ["b_q", "b_k", "b_v"],
        "out_proj.weight": "w_o.T",
        "out_proj.bias": "b_o",
    },
    call=_attend,
)


def layer_norm(x: Tensor, gamma: Tensor | None, beta: Tensor | None, *, eps: float = 1e-5) -> Tensor:
    """F.layer_norm over the last axis; it is the standard variant."""
    return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def relu(x: Tensor) -> Tensor:
    """F.relu."""
    return F.relu(x)


def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """F.gelu."""
    return F.gelu(x, approximate=approximate)


feed_forward = from_module(
    "feed_forward",
    lambda d_model, d_ff, activation: nn.Sequential(
        nn.Linear(d_model, d_ff), ACTIVATIONS[activation](), nn.Linear(d_ff, d_model)
    ),
    weights={"0.weight": "w_1.T", "0.bias": "b_1", "2.weight": "w_2.T", "2.bias": "b_2"},
)


def _encoder_layer(config: ModelConfig) -> nn.Module:
    if config.norm.variant != "standard":
        raise NotImplementedError(f"torch has no layer norm of the variant {config.norm.variant}")
    return nn.TransformerEncoderLayer(
        config.d_model,
        config.n_heads,
        config.d_ff,
        activation=ACTIVATIONS[config.activation](),
        layer_norm_eps=config.norm.eps,
        norm_first=config.norm_placement == "pre",
        batch_first=True,
    )


def _run_block(module: nn.Module, x: Tensor, config: ModelConfig, mask: Tensor | None) -> Tensor:
    hidden = _hidden(mask, config.causal, x.shape[:-2], x.shape[-2], config.n_heads)
    return module(_one_batch(x), src_mask=hidden).reshape(x.shape)


transformer_block = from_module(
    "transformer_block",
    _encoder_layer,
    weights={
        "self_attn.in_proj_weight": [f"params.attention.{name}.T" for name in ("w_q", "w_k", "w_v")],
        "self_attn.in_proj_bias": [f"params.attention.{name}" for name in ("b_q", "b_k", "b_v")],
        "self_attn.out_proj.weight": "params.attention.w_o.T",
        "self_attn.out_proj.bias": "params.attention.b_o",
        "linear1.weight": "params.mlp.w_1.T",
        "linear1.bias": "params.mlp.b_1",
        "linear2.weight": "params.mlp.w_2.T",
        "linear2.bias": "params.mlp.b_2",
        "norm1.weight": "params.norm_1.gamma",
        "norm1.bias": "params.norm_1.beta",
        "norm2.weight": "params.norm_2.gamma",
        "norm2.bias": "params.norm_2.beta",
    },
    call=_run_block,
)


output_head = from_module("output_head", lambda d_model, vocab: nn.Linear(d_model, vocab),
                          weights={"weight": "w.T", "bias": "b"})  # fmt: skip


def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> Tensor:
    """F.cross_entropy; it wants the classes on the second axis, so the batch axes become one."""
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"one target for each row of logits, got {tuple(targets.shape)} for {tuple(logits.shape)}")
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        targets.reshape(-1),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


def adamw_step(
    param: Tensor,
    grad: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    step: int,
    lr: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[Tensor, Tensor, Tensor]:
    """torch.optim.AdamW, put into the state that it has before this step."""
    parameter, m, v = nn.Parameter(param.clone()), m.clone(), v.clone()  # it works in place
    parameter.grad = grad
    optimizer = torch.optim.AdamW([parameter], lr=lr, betas=(beta_1, beta_2), eps=eps, weight_decay=weight_decay)
    optimizer.state[parameter] = {"step": torch.tensor(float(step - 1)), "exp_avg": m, "exp_avg_sq": v}
    optimizer.step()
    return parameter, m, v


def clip_grad_norm(grads: Any, *, max_norm: float) -> tuple[Any, Tensor]:
    """nn.utils.clip_grad_norm_, which works in place on the gradients of parameters."""
    holders = map_tree(lambda grad: nn.Parameter(torch.zeros_like(grad)), grads)
    for (_, holder), (_, grad) in zip(leaves(holders), leaves(grads), strict=True):
        holder.grad = grad.clone()
    norm = nn.utils.clip_grad_norm_([p for _, p in leaves(holders)], max_norm, error_if_nonfinite=True)
    return map_tree(lambda holder: holder.grad, holders), norm
