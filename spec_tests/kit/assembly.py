"""The components that are made of others, put together from whatever parts are given, with all that stands in between.

`assemble({"layer_norm": wrong})["transformer"]` is the reference's model with a wrong layer norm in it: so a mistake in
a part is known again in whatever holds it. With `trace={}` the functions made here fill in their intermediates by name,
`blocks.0.attention.weights`, in the order in which they are computed.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

import numpy as np

import reference.numpy
from reference.config import Learned, ModelConfig, Sinusoidal
from reference.parameters import Tree

Function = Callable[..., Any]
Parts = Mapping[str, Function]
Trace = MutableMapping[str, np.ndarray]


def assemble(own: Parts) -> dict[str, Function]:
    """Give every component: `own` where it has one, else the reference's, or what is made of these."""
    parts: dict[str, Function] = {name: getattr(reference.numpy, name) for name in reference.numpy.__all__}
    parts |= {name: partial(made, parts) for name, made in ASSEMBLED.items()}
    parts |= own  # in place: what is assembled looks its parts up when it is called
    return parts


def attention_weights(
    parts: Parts,
    q: np.ndarray,
    k: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    causal: bool = False,
    scale: float | None = None,
    trace: Trace | None = None,
) -> np.ndarray:
    """Give softmax(scale q k^T + bias), hidden scores at -inf; notes `scores` and `weights`."""
    scores = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * (q @ k.swapaxes(-1, -2))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if causal:
        scores = np.where(parts["causal_mask"](*scores.shape[-2:]), scores, -np.inf)
    _note(trace, scores=scores)
    return _note(trace, weights=parts["softmax"](scores))


def scaled_dot_product_attention(
    parts: Parts, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, trace: Trace | None = None, **options: Any
) -> np.ndarray:
    """Weights times v; notes `scores`, `weights` and `output`."""
    weights = parts["attention_weights"](q, k, **options, **_traced(trace))
    return _note(trace, output=weights @ v)


def self_attention(
    parts: Parts,
    x: np.ndarray,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    *,
    trace: Trace | None = None,
    **options: Any,
) -> np.ndarray:
    """attention(x w_q, x w_k, x w_v); notes `q`, `k`, `v`, `scores`, `weights` and `output`."""
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    _note(trace, q=q, k=k, v=v)
    return parts["scaled_dot_product_attention"](q, k, v, **options, **_traced(trace))


def multi_head_attention(
    parts: Parts,
    x: np.ndarray,
    w_q: np.ndarray,
    w_k: np.ndarray,
    w_v: np.ndarray,
    w_o: np.ndarray | None,
    *,
    n_heads: int,
    b_q: np.ndarray | None = None,
    b_k: np.ndarray | None = None,
    b_v: np.ndarray | None = None,
    b_o: np.ndarray | None = None,
    context: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    causal: bool = False,
    trace: Trace | None = None,
) -> np.ndarray:
    """[head_1 ... head_n] w_o; notes `q`, `k`, `v`, `scores`, `weights`, `heads`, each head apart, and `output`."""
    context = x if context is None else context
    q, k, v = (_split(_affine(*given), n_heads) for given in ((x, w_q, b_q), (context, w_k, b_k), (context, w_v, b_v)))
    _note(trace, q=q, k=k, v=v)
    of_every_head = None if mask is None else mask[..., None, :, :]
    inner: Trace | None = None if trace is None else {}
    heads = parts["scaled_dot_product_attention"](q, k, v, mask=of_every_head, causal=causal, **_traced(inner))
    _note(trace, **{name: value for name, value in (inner or {}).items() if name != "output"}, heads=heads)
    side_by_side = heads.swapaxes(-2, -3).reshape(*heads.shape[:-3], heads.shape[-2], -1)
    return _note(trace, output=side_by_side if w_o is None else _affine(side_by_side, w_o, b_o))


def feed_forward(
    parts: Parts,
    x: np.ndarray,
    w_1: np.ndarray,
    b_1: np.ndarray | None,
    w_2: np.ndarray,
    b_2: np.ndarray | None,
    *,
    activation: str = "gelu",
    keep: np.ndarray | None = None,
    rate: float = 0.0,
    trace: Trace | None = None,
) -> np.ndarray:
    """f(x w_1 + b_1) w_2 + b_2; notes `hidden`, after the activation and dropout, and `output`."""
    before = _affine(x, w_1, b_1)
    match activation:
        case "relu":
            hidden = parts["relu"](before)
        case "gelu":
            hidden = parts["gelu"](before)
        case "gelu_tanh":
            hidden = parts["gelu"](before, approximate="tanh")
        case _:
            raise ValueError(f"feed_forward: activation must be relu, gelu or gelu_tanh, got {activation!r}")
    if keep is not None:
        hidden = parts["dropout"](hidden, keep, rate=rate)
    _note(trace, hidden=hidden)
    return _note(trace, output=_affine(hidden, w_2, b_2))


def transformer_block(
    parts: Parts,
    x: np.ndarray,
    params: Tree,
    config: ModelConfig,
    *,
    mask: np.ndarray | None = None,
    keep: Tree | None = None,
    trace: Trace | None = None,
) -> np.ndarray:
    """pre: x + f(norm(x)), twice; post: norm(x + f(x)), twice.

    Notes `norm_1`, `attention`, `residual_1`, `norm_2`, `mlp`, `residual_2`, and what is inside: `attention.weights`,
    `mlp.hidden`.
    """
    drop = partial(parts["dropout"], rate=config.dropout)

    def attend(x: np.ndarray) -> np.ndarray:
        weights = {"w_o": None, **params["attention"]}
        options = {"n_heads": config.n_heads, "mask": mask, "causal": config.causal, **_traced(trace, "attention")}
        y = parts["multi_head_attention"](x, **weights, **options)
        return _note(trace, attention=y if keep is None else drop(y, keep["attention"]))

    def think(x: np.ndarray) -> np.ndarray:
        hidden = {} if keep is None else {"keep": keep["mlp_hidden"], "rate": config.dropout}
        y = parts["feed_forward"](x, **params["mlp"], activation=config.activation, **hidden, **_traced(trace, "mlp"))
        return _note(trace, mlp=y if keep is None else drop(y, keep["mlp"]))

    for number, f in (("1", attend), ("2", think)):
        norm, residual = f"norm_{number}", f"residual_{number}"
        if config.norm_placement == "pre":
            x = _note(trace, **{residual: x + f(_note(trace, **{norm: _normed(parts, x, params.get(norm), config)}))})
        else:
            x = _note(trace, **{norm: _normed(parts, _note(trace, **{residual: x + f(x)}), params.get(norm), config)})
    return x


def transformer(
    parts: Parts,
    ids: np.ndarray,
    params: Tree,
    config: ModelConfig,
    *,
    mask: np.ndarray | None = None,
    keep: Tree | None = None,
    trace: Trace | None = None,
) -> np.ndarray:
    """Embedding, positions, blocks, final norm, head.

    Notes `embedding`, `positions` (with them added), `blocks.0` and what is inside, `final_norm` and `logits`.
    """
    table = params["token_embedding"]["table"]
    x = _note(trace, embedding=parts["token_embedding"](ids, table, scale=config.embedding_scale))
    match config.positions:
        case Sinusoidal(base=base):
            positions = parts["sinusoidal_positions"](ids.shape[-1], config.d_model, base=base, dtype=x.dtype)
            x = parts["add_positions"](x, positions)
        case Learned():
            x = parts["add_positions"](x, params["positions"]["table"])
        case _:
            pass
    x = _note(trace, positions=x if keep is None else parts["dropout"](x, keep["positions"], rate=config.dropout))
    for index, block in enumerate(params["blocks"]):
        kept = None if keep is None else keep["blocks"][index]
        options = {"mask": mask, "keep": kept, **_traced(trace, f"blocks.{index}")}
        x = _note(trace, **{f"blocks.{index}": parts["transformer_block"](x, block, config, **options)})
    if config.final_norm:
        x = _note(trace, final_norm=_normed(parts, x, params.get("final_norm"), config))
    head = params.get("output_head", {})
    return _note(trace, logits=parts["output_head"](x, table.T if config.tied_head else head["w"], head.get("b")))


ASSEMBLED: dict[str, Function] = {
    "attention_weights": attention_weights,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "self_attention": self_attention,
    "multi_head_attention": multi_head_attention,
    "feed_forward": feed_forward,
    "transformer_block": transformer_block,
    "transformer": transformer,
}

_MADE_OF = {
    "attention_weights": ("softmax", "causal_mask"),
    "scaled_dot_product_attention": ("attention_weights",),
    "self_attention": ("scaled_dot_product_attention",),
    "multi_head_attention": ("scaled_dot_product_attention",),
    "feed_forward": ("relu", "gelu", "dropout"),
    "transformer_block": ("layer_norm", "multi_head_attention", "feed_forward", "dropout"),
    "transformer": (
        "token_embedding", "sinusoidal_positions", "add_positions", "transformer_block", "layer_norm", "dropout",
        "output_head",
    ),
}  # fmt: skip


def parts_of(component: str) -> set[str]:
    """Name all that a component is made of, at any depth; nothing for what is made of no other."""
    direct = _MADE_OF.get(component, ())
    return {*direct, *(part for name in direct for part in parts_of(name))}


def _affine(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    return x @ w if b is None else x @ w + b


def _split(x: np.ndarray, n_heads: int) -> np.ndarray:
    """Head h has columns h d_k ... (h + 1) d_k - 1."""
    return x.reshape(*x.shape[:-1], n_heads, -1).swapaxes(-2, -3)


def _normed(parts: Parts, x: np.ndarray, gain_and_bias: Tree | None, config: ModelConfig) -> np.ndarray:
    given, norm = gain_and_bias or {}, config.norm
    return parts["layer_norm"](x, given.get("gamma"), given.get("beta"), eps=norm.eps, variant=norm.variant)


# ----------------------------------------------------------------------------------------------- what is in between


class _Inside(dict):
    """Notes that go to another trace as well, each under a longer name."""

    def __init__(self, trace: Trace, prefix: str) -> None:
        super().__init__()
        self.trace, self.prefix = trace, prefix

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        super().__setitem__(name, value)
        self.trace[f"{self.prefix}.{name}"] = value


def _traced(trace: Trace | None, prefix: str = "") -> dict[str, Trace]:
    """Ask a part for its intermediates, if anybody wants them: a part from elsewhere need not know of traces."""
    if trace is None:
        return {}
    return {"trace": _Inside(trace, prefix) if prefix else trace}


def _note(trace: Trace | None, **values: np.ndarray) -> Any:
    """Keep these under their names, and give the last one."""
    if trace is not None:
        for name, value in values.items():
            trace[name] = value
    return list(values.values())[-1]
