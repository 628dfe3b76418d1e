"""The whole model: ids -> vectors -> positions -> blocks -> scores of the next token."""

from functools import partial

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference.config import Learned, ModelConfig, Sinusoidal
from reference.numpy._checks import no_empty_axis, one_dtype
from reference.numpy._products import Vjp, affine, affine_vjp
from reference.numpy.blocks import block_and_vjp, in_the_order_of, normalise, normalise_vjp, transformer_block
from reference.numpy.embeddings import token_embedding, token_embedding_vjp
from reference.numpy.mlp import dropout
from reference.numpy.positions import add_positions, add_positions_vjp, sinusoidal_positions
from reference.parameters import Tree, check_params, leaves, parameter_shapes


def output_head(
    x: Float[np.ndarray, "*batch seq d_model"],
    w: Float[np.ndarray, "d_model vocab"],
    b: Float[np.ndarray, "vocab"] | None = None,
) -> Float[np.ndarray, "*batch seq vocab"]:
    r"""Score every token of the vocabulary as the next one.

    $$ logits = x W + b $$

    Source: Vaswani et al. 2017, section 3.4.
    """
    one_dtype("output_head", x=x, w=w, b=b)
    no_empty_axis("output_head", x, "seq d_model")
    no_empty_axis("output_head", w, "d_model vocab")
    return affine(x, w, b)


def output_head_vjp(
    cotangent: Float[np.ndarray, "*batch seq vocab"],
    x: Float[np.ndarray, "*batch seq d_model"],
    w: Float[np.ndarray, "d_model vocab"],
    b: Float[np.ndarray, "vocab"] | None = None,
) -> tuple[
    Float[np.ndarray, "*batch seq d_model"], Float[np.ndarray, "d_model vocab"], Float[np.ndarray, "vocab"] | None
]:
    r"""Give the gradients of x, w and b.

    $$ dx = dlogits \, W^T, \qquad dW = x^T dlogits, \qquad db = \sum dlogits $$

    the latter two summed over all tokens.

    Source: Vaswani et al. 2017, section 3.4, differentiated.
    """
    one_dtype("output_head_vjp", x=x, w=w, b=b, cotangent=cotangent)
    no_empty_axis("output_head", x, "seq d_model")
    no_empty_axis("output_head", w, "d_model vocab")
    return affine_vjp(cotangent, x, w, b)


def transformer(
    ids: Integer[np.ndarray, "*batch seq"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> Float[np.ndarray, "*batch seq vocab"]:
    r"""Run the whole model: what comes after each token, as scores over the vocabulary.

    $$ h_0 = s \, E_{ids} + P, \qquad h_l = block_l(h_{l-1}), \qquad logits = \operatorname{norm}(h_L) \, W + b $$

    where the positions P, the final norm and b are there if `config` says so, and W is E^T for a tied head. `keep`
    holds the keep-masks of dropout: `positions`, and `blocks`, a list of those of each block.

    Raises ValueError for a sequence longer than max_len or parameters other than the config's, IndexError for ids
    outside the vocabulary.

    Source: Vaswani et al. 2017, section 3 and figure 1; Radford et al. 2019, section 2.3 (final norm).
    """
    _check(ids, params, config)
    x = _embed(ids, params, config, keep)
    for index, block in enumerate(params["blocks"]):
        x = transformer_block(x, block, config, mask=mask, keep=_of_block(keep, index))
    return _predict(x, params, config)


def transformer_vjp(
    cotangent: Float[np.ndarray, "*batch seq vocab"],
    ids: Integer[np.ndarray, "*batch seq"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> tuple[Tree]:
    r"""Give the gradient of the parameters, in a tree of their shape.

    $$ dh_L = \operatorname{norm}'(dlogits \, W^T), \qquad dh_{l-1} = block_l'(dh_l), \qquad
       dE_v = s \sum_{t : \mathrm{id}_t = v} dh_{0,t} $$

    and each part's own gradient on the way; a learned P gathers dh_0 over the batch, and a tied table gets what it
    did as W too. Raises as `transformer` does.

    Source: Vaswani et al. 2017, section 3, differentiated; Press & Wolf 2017, section 3 (tied tables).
    """
    one_dtype("transformer_vjp", table=params["token_embedding"]["table"], cotangent=cotangent)
    _, vjp = transformer_and_vjp(ids, params, config, mask=mask, keep=keep)
    return (vjp(cotangent),)


def transformer_and_vjp(
    ids: Integer[np.ndarray, "*batch seq"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> tuple[Float[np.ndarray, "*batch seq vocab"], Vjp]:
    """Give the logits, and the gradient of the parameters as a function of the cotangent: each block keeps its own."""
    _check(ids, params, config)
    x = embedded = _embed(ids, params, config, keep)
    block_vjps: list[Vjp] = []
    for index, block in enumerate(params["blocks"]):
        x, block_vjp = block_and_vjp(x, block, config, mask=mask, keep=_of_block(keep, index))
        block_vjps.append(block_vjp)
    vjp = partial(
        _transformer_vjp, ids=ids, params=params, config=config, keep=keep,
        embedded=embedded, block_vjps=block_vjps, last=x,
    )  # fmt: skip
    return _predict(x, params, config), vjp


def _transformer_vjp(
    cotangent: Float[np.ndarray, "*batch seq vocab"],
    ids: Integer[np.ndarray, "*batch seq"],
    params: Tree,
    config: ModelConfig,
    keep: Tree | None,
    embedded: Float[np.ndarray, "*batch seq d_model"],
    block_vjps: list[Vjp],
    last: Float[np.ndarray, "*batch seq d_model"],
) -> Tree:
    """Give the gradient, from the stream's two ends and what each block makes of a gradient."""
    dx, d_table, gradients = _predict_vjp(cotangent, last, params, config)
    d_blocks: list[Tree] = []
    for block_vjp in reversed(block_vjps):
        dx, d_block = block_vjp(dx)
        d_blocks.append(d_block)
    gradients["blocks"] = d_blocks[::-1]
    if keep is not None:
        dx = dropout(dx, keep["positions"], rate=config.dropout)
    if isinstance(config.positions, Learned):
        dx, d_positions = add_positions_vjp(dx, embedded, params["positions"]["table"])
        gradients["positions"] = {"table": d_positions}
    (d_embedding,) = token_embedding_vjp(dx, ids, params["token_embedding"]["table"], scale=config.embedding_scale)
    gradients["token_embedding"] = {"table": d_embedding if d_table is None else d_embedding + d_table}
    return in_the_order_of(params, gradients)


def _check(ids: np.ndarray, params: Tree, config: ModelConfig) -> None:
    check_params("transformer", params, parameter_shapes(config))
    one_dtype("transformer", **dict(leaves(params)))
    if ids.shape[-1] > config.max_len:
        raise ValueError(
            f"transformer: seq must not exceed max_len, got {ids.shape[-1]} and {config.max_len}; "
            f"keep the last {config.max_len} tokens, or use a model with a longer max_len"
        )


def _embed(
    ids: Integer[np.ndarray, "*batch seq"], params: Tree, config: ModelConfig, keep: Tree | None
) -> Float[np.ndarray, "*batch seq d_model"]:
    """Give h_0: what the tokens are and where they stand."""
    x = token_embedding(ids, params["token_embedding"]["table"], scale=config.embedding_scale)
    match config.positions:
        case Sinusoidal(base=base):
            x = add_positions(x, sinusoidal_positions(ids.shape[-1], config.d_model, base=base, dtype=x.dtype))
        case Learned():
            x = add_positions(x, params["positions"]["table"])
        case _:
            pass
    return x if keep is None else dropout(x, keep["positions"], rate=config.dropout)


def _predict(
    x: Float[np.ndarray, "*batch seq d_model"], params: Tree, config: ModelConfig
) -> Float[np.ndarray, "*batch seq vocab"]:
    """Give the logits of the stream's end."""
    if config.final_norm:
        x = normalise(x, params.get("final_norm", {}), config)
    return output_head(x, *_head(params, config))


def _predict_vjp(
    cotangent: Float[np.ndarray, "*batch seq vocab"],
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Float[np.ndarray, "vocab d_model"] | None, Tree]:
    """Give the gradients of x, of a tied table, and of the head and the final norm."""
    gain_and_bias = params.get("final_norm", {})
    normed = normalise(x, gain_and_bias, config) if config.final_norm else x
    dx, d_w, d_b = output_head_vjp(cotangent, normed, *_head(params, config))
    d_norm: Tree = {}
    if config.final_norm:
        dx, d_norm = normalise_vjp(dx, x, gain_and_bias, config)
    d_head = in_the_order_of(params.get("output_head", {}), {"w": d_w, "b": d_b})
    return dx, d_w.T if config.tied_head else None, {"final_norm": d_norm, "output_head": d_head}


def _head(
    params: Tree, config: ModelConfig
) -> tuple[Float[np.ndarray, "d_model vocab"], Float[np.ndarray, "vocab"] | None]:
    head = params.get("output_head", {})
    return params["token_embedding"]["table"].T if config.tied_head else head["w"], head.get("b")


def _of_block(keep: Tree | None, index: int) -> Tree | None:
    return None if keep is None else keep["blocks"][index]


def parameter_count(config: ModelConfig) -> int:
    r"""Count the numbers that a model of this config learns, without building it; a shared table counts once.

    $$ V d + [T d]_{learned} + L (3 d^2 + [d^2]_{w_o} + [4 d]_{biases} + 2 d f + f + d + [4 d]_{affine})
       + [2 d]_{final} + [d V]_{untied} + [V]_{bias} $$

    with V = vocab, d = d_model, T = max_len, L = n_layers, f = d_ff; a bias on the output projection needs one.

    Source: counted from Vaswani et al. 2017, section 3.
    """
    c = config
    d, f = c.d_model, c.d_ff
    attention = 3 * d * d
    if c.output_projection:
        attention += d * d
    if c.attention_bias:
        attention += 4 * d if c.output_projection else 3 * d
    norm = 2 * d if c.norm.affine else 0
    mlp = d * f + f + f * d + d
    total = c.vocab * d + c.n_layers * (attention + mlp + 2 * norm)
    if isinstance(c.positions, Learned):
        total += c.max_len * d
    if c.final_norm:
        total += norm
    if not c.tied_head:
        total += d * c.vocab
    if c.head_bias:
        total += c.vocab
    return total
