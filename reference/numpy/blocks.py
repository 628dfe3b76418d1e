"""One layer of the transformer."""

import numpy as np
from jaxtyping import Bool, Float

from reference.config import ModelConfig
from reference.numpy._checks import no_empty_axis
from reference.numpy.attention import multi_head_attention
from reference.numpy.mlp import dropout, feed_forward
from reference.numpy.norms import layer_norm
from reference.parameters import Tree, block_shapes, check_params


def transformer_block(
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> Float[np.ndarray, "*batch seq d_model"]:
    r"""Let the tokens talk to each other, then let each think by itself; both add to the stream.

    $$ \text{pre:} \quad x \leftarrow x + f(\operatorname{norm}(x)) \qquad
       \text{post:} \quad x \leftarrow \operatorname{norm}(x + f(x)) $$

    for f = attention and then f = feed-forward, as `config.norm_placement` says. `keep` holds the keep-masks of
    dropout on the attention's output, the MLP's hidden values and the MLP's output (`attention`, `mlp_hidden`, `mlp`).

    Raises ValueError or TypeError where `params` are not those that `config` asks for.

    Source: Vaswani et al. 2017, section 3.1 (post); Xiong et al. 2020, figure 1 (pre).
    """
    check_params("transformer_block", params, block_shapes(config))
    no_empty_axis("transformer_block", x, "seq d_model")

    if config.norm_placement == "pre":
        x = x + _attend(normalise(x, params.get("norm_1", {}), config), params, config, mask, keep)
        return x + _think(normalise(x, params.get("norm_2", {}), config), params, config, keep)
    x = normalise(x + _attend(x, params, config, mask, keep), params.get("norm_1", {}), config)
    return normalise(x + _think(x, params, config, keep), params.get("norm_2", {}), config)


def _attend(
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None,
    keep: Tree | None,
) -> Float[np.ndarray, "*batch seq d_model"]:
    weights: Tree = {"w_o": None, **params["attention"]}
    y = multi_head_attention(x, **weights, n_heads=config.n_heads, mask=mask, causal=config.causal)
    return y if keep is None else dropout(y, keep["attention"], rate=config.dropout)


def _think(
    x: Float[np.ndarray, "*batch seq d_model"], params: Tree, config: ModelConfig, keep: Tree | None
) -> Float[np.ndarray, "*batch seq d_model"]:
    hidden: Tree = {} if keep is None else {"keep": keep["mlp_hidden"], "rate": config.dropout}
    y = feed_forward(x, **params["mlp"], activation=config.activation, **hidden)
    return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout)


def normalise(
    x: Float[np.ndarray, "*batch d_model"], gain_and_bias: Tree, config: ModelConfig
) -> Float[np.ndarray, "*batch d_model"]:
    """Apply the norm that the config names, with the gain and bias that are there."""
    norm = config.norm
    return layer_norm(x, gain_and_bias.get("gamma"), gain_and_bias.get("beta"), eps=norm.eps, variant=norm.variant)
