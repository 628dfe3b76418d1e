"""One layer of the transformer."""

from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from reference.config import ModelConfig
from reference.numpy._checks import no_empty_axis, one_dtype
from reference.numpy.attention import multi_head_attention, multi_head_attention_vjp
from reference.numpy.mlp import dropout, feed_forward, feed_forward_vjp
from reference.numpy.norms import layer_norm, layer_norm_vjp
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
    halfway = attention_half(x, params, config, mask=mask, keep=keep)
    return mlp_half(halfway, params, config, keep=keep)


def transformer_block_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    r"""Give the gradients of x and of the parameters, in a tree of their shape.

    $$ \text{pre:} \quad dx = dy + \operatorname{norm}'(f'(dy)) \qquad
       \text{post:} \quad ds = \operatorname{norm}'(dy), \quad dx = ds + f'(ds) $$

    where f' and norm' are the vector-Jacobian products of f and norm: first for f = feed-forward, then for attention.
    The stream hands every gradient on as it is, and each half adds its own. Raises as `transformer_block` does.

    Source: Vaswani et al. 2017, section 3.1, differentiated; He et al. 2016b, equation 5 (the stream).
    """
    check_params("transformer_block", params, block_shapes(config))
    no_empty_axis("transformer_block", x, "seq d_model")
    one_dtype("transformer_block_vjp", x=x, cotangent=cotangent)
    halfway = attention_half(x, params, config, mask=mask, keep=keep)
    d_halfway, d_second = mlp_half_vjp(cotangent, halfway, params, config, keep=keep)
    dx, d_first = attention_half_vjp(d_halfway, x, params, config, mask=mask, keep=keep)
    return dx, in_the_order_of(params, {**d_first, **d_second})


def attention_half(
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None,
    keep: Tree | None,
) -> Float[np.ndarray, "*batch seq d_model"]:
    """Add what the tokens tell each other."""
    attend = partial(_attend, params=params, config=config, mask=mask, keep=keep)
    return _add(attend, x, params.get("norm_1", {}), config)


def mlp_half(
    x: Float[np.ndarray, "*batch seq d_model"], params: Tree, config: ModelConfig, *, keep: Tree | None
) -> Float[np.ndarray, "*batch seq d_model"]:
    """Add what each token thinks by itself."""
    think = partial(_think, params=params, config=config, keep=keep)
    return _add(think, x, params.get("norm_2", {}), config)


def attention_half_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    """Give the gradients of x, and of the attention and its norm."""
    attend = partial(_attend, params=params, config=config, mask=mask, keep=keep)
    attend_vjp = partial(_attend_vjp, params=params, config=config, mask=mask, keep=keep)
    dx, d_attention, d_norm = _add_vjp(cotangent, attend, attend_vjp, x, params.get("norm_1", {}), config)
    return dx, {"attention": d_attention, "norm_1": d_norm}


def mlp_half_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    """Give the gradients of x, and of the MLP and its norm."""
    think = partial(_think, params=params, config=config, keep=keep)
    think_vjp = partial(_think_vjp, params=params, config=config, keep=keep)
    dx, d_mlp, d_norm = _add_vjp(cotangent, think, think_vjp, x, params.get("norm_2", {}), config)
    return dx, {"mlp": d_mlp, "norm_2": d_norm}


def _add(
    f: Callable[[np.ndarray], np.ndarray],
    x: Float[np.ndarray, "*batch seq d_model"],
    gain_and_bias: Tree,
    config: ModelConfig,
) -> Float[np.ndarray, "*batch seq d_model"]:
    """Add f to the stream, with the norm before f or after the sum."""
    if config.norm_placement == "pre":
        return x + f(normalise(x, gain_and_bias, config))
    return normalise(x + f(x), gain_and_bias, config)


def _add_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    f: Callable[[np.ndarray], np.ndarray],
    f_vjp: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, Tree]],
    x: Float[np.ndarray, "*batch seq d_model"],
    gain_and_bias: Tree,
    config: ModelConfig,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree, Tree]:
    """Give the gradients of x, of the parameters of f, and of gain and bias."""
    if config.norm_placement == "pre":
        d_normed, d_f = f_vjp(cotangent, normalise(x, gain_and_bias, config))
        dx, d_norm = normalise_vjp(d_normed, x, gain_and_bias, config)
        return cotangent + dx, d_f, d_norm
    d_sum, d_norm = normalise_vjp(cotangent, x + f(x), gain_and_bias, config)
    dx, d_f = f_vjp(d_sum, x)
    return d_sum + dx, d_f, d_norm


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


def _attend_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    if keep is not None:
        cotangent = dropout(cotangent, keep["attention"], rate=config.dropout)
    weights: Tree = {"w_o": None, **params["attention"]}
    dx, d_w_q, d_w_k, d_w_v, d_w_o, d_b_q, d_b_k, d_b_v, d_b_o, _ = multi_head_attention_vjp(
        cotangent, x, **weights, n_heads=config.n_heads, mask=mask, causal=config.causal
    )
    gradients: Tree = {
        "w_q": d_w_q, "w_k": d_w_k, "w_v": d_w_v, "w_o": d_w_o, "b_q": d_b_q, "b_k": d_b_k, "b_v": d_b_v, "b_o": d_b_o,
    }  # fmt: skip
    return dx, in_the_order_of(params["attention"], gradients)


def _think(
    x: Float[np.ndarray, "*batch seq d_model"], params: Tree, config: ModelConfig, keep: Tree | None
) -> Float[np.ndarray, "*batch seq d_model"]:
    hidden: Tree = {} if keep is None else {"keep": keep["mlp_hidden"], "rate": config.dropout}
    y = feed_forward(x, **params["mlp"], activation=config.activation, **hidden)
    return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout)


def _think_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    hidden: Tree = {}
    if keep is not None:
        cotangent = dropout(cotangent, keep["mlp"], rate=config.dropout)
        hidden = {"keep": keep["mlp_hidden"], "rate": config.dropout}
    dx, d_w_1, d_b_1, d_w_2, d_b_2 = feed_forward_vjp(
        cotangent, x, **params["mlp"], activation=config.activation, **hidden
    )
    return dx, in_the_order_of(params["mlp"], {"w_1": d_w_1, "b_1": d_b_1, "w_2": d_w_2, "b_2": d_b_2})


def normalise(
    x: Float[np.ndarray, "*batch d_model"], gain_and_bias: Tree, config: ModelConfig
) -> Float[np.ndarray, "*batch d_model"]:
    """Apply the norm that the config names, with the gain and bias that are there."""
    norm = config.norm
    return layer_norm(x, gain_and_bias.get("gamma"), gain_and_bias.get("beta"), eps=norm.eps, variant=norm.variant)


def normalise_vjp(
    cotangent: Float[np.ndarray, "*batch d_model"],
    x: Float[np.ndarray, "*batch d_model"],
    gain_and_bias: Tree,
    config: ModelConfig,
) -> tuple[Float[np.ndarray, "*batch d_model"], Tree]:
    """Give the gradients of x, and of the gain and bias that are there."""
    norm = config.norm
    gamma, beta = gain_and_bias.get("gamma"), gain_and_bias.get("beta")
    dx, d_gamma, d_beta = layer_norm_vjp(cotangent, x, gamma, beta, eps=norm.eps, variant=norm.variant)
    return dx, in_the_order_of(gain_and_bias, {"gamma": d_gamma, "beta": d_beta})


def in_the_order_of(params: Tree, gradients: Tree) -> Tree:
    """Give the gradients of the parameters that are there, in their order."""
    return {name: gradients[name] for name in params}
