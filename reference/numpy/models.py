"""The whole model: ids -> vectors -> positions -> blocks -> scores of the next token."""

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference.config import Learned, ModelConfig, Sinusoidal
from reference.numpy._checks import no_empty_axis, one_dtype
from reference.numpy.blocks import normalise, transformer_block
from reference.numpy.embeddings import token_embedding
from reference.numpy.mlp import dropout
from reference.numpy.positions import add_positions, sinusoidal_positions
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
    return x @ w if b is None else x @ w + b


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
    check_params("transformer", params, parameter_shapes(config))
    one_dtype("transformer", **dict(leaves(params)))
    seq = ids.shape[-1]
    if seq > config.max_len:
        raise ValueError(
            f"transformer: seq must not exceed max_len, got {seq} and {config.max_len}; "
            f"keep the last {config.max_len} tokens, or use a model with a longer max_len"
        )
    table = params["token_embedding"]["table"]
    x = token_embedding(ids, table, scale=config.embedding_scale)
    match config.positions:
        case Sinusoidal(base=base):
            x = add_positions(x, sinusoidal_positions(seq, config.d_model, base=base, dtype=x.dtype))
        case Learned():
            x = add_positions(x, params["positions"]["table"])
        case _:
            pass
    if keep is not None:
        x = dropout(x, keep["positions"], rate=config.dropout)
    for index, block in enumerate(params["blocks"]):
        x = transformer_block(x, block, config, mask=mask, keep=None if keep is None else keep["blocks"][index])
    if config.final_norm:
        x = normalise(x, params.get("final_norm", {}), config)
    head = params.get("output_head", {})
    return output_head(x, table.T if config.tied_head else head["w"], head.get("b"))


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
