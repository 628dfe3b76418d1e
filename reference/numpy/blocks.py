"""One layer of the transformer."""

from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from reference.config import ModelConfig
from reference.numpy._checks import no_empty_axis, one_dtype
from reference.numpy._products import Vjp
from reference.numpy.attention import multi_head_attention, multi_head_attention_and_vjp
from reference.numpy.mlp import dropout, feed_forward, feed_forward_and_vjp
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
    attend = partial(_attend, params=params, config=config, mask=mask, keep=keep)
    think = partial(_think, params=params, config=config, keep=keep)
    halfway = _add(attend, x, params.get("norm_1", {}), config)
    return _add(think, halfway, params.get("norm_2", {}), config)


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
    _, vjp = block_and_vjp(x, params, config, mask=mask, keep=keep)
    return vjp(cotangent)


def block_and_vjp(
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Vjp]:
    """Give `transformer_block`, and its gradients as a function of the cotangent."""
    attend = partial(_attend_and_vjp, params=params, config=config, mask=mask, keep=keep)
    think = partial(_think_and_vjp, params=params, config=config, keep=keep)
    halfway, attended_vjp = _add_and_vjp(attend, x, params.get("norm_1", {}), config)
    y, thought_vjp = _add_and_vjp(think, halfway, params.get("norm_2", {}), config)

    return y, partial(_block_vjp, params=params, attended_vjp=attended_vjp, thought_vjp=thought_vjp)


def _block_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"], params: Tree, attended_vjp: Vjp, thought_vjp: Vjp
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    d_halfway, d_mlp, d_norm_2 = thought_vjp(cotangent)
    dx, d_attention, d_norm_1 = attended_vjp(d_halfway)
    gradients = {"attention": d_attention, "norm_1": d_norm_1, "mlp": d_mlp, "norm_2": d_norm_2}
    return dx, in_the_order_of(params, gradients)


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


def _add_and_vjp(
    f_and_vjp: Callable[[np.ndarray], tuple[np.ndarray, Vjp]],
    x: Float[np.ndarray, "*batch seq d_model"],
    gain_and_bias: Tree,
    config: ModelConfig,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Vjp]:
    """Give `_add`, and the gradients of x, of the parameters of f, and of gain and bias."""
    if config.norm_placement == "pre":
        added, f_vjp = f_and_vjp(normalise(x, gain_and_bias, config))
        return x + added, partial(_pre_vjp, f_vjp=f_vjp, x=x, gain_and_bias=gain_and_bias, config=config)
    added, f_vjp = f_and_vjp(x)
    total = x + added
    vjp = partial(_post_vjp, f_vjp=f_vjp, total=total, gain_and_bias=gain_and_bias, config=config)
    return normalise(total, gain_and_bias, config), vjp


def _pre_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    f_vjp: Vjp,
    x: Float[np.ndarray, "*batch seq d_model"],
    gain_and_bias: Tree,
    config: ModelConfig,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree, Tree]:
    d_normed, d_f = f_vjp(cotangent)
    dx, d_norm = normalise_vjp(d_normed, x, gain_and_bias, config)
    return cotangent + dx, d_f, d_norm


def _post_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    f_vjp: Vjp,
    total: Float[np.ndarray, "*batch seq d_model"],
    gain_and_bias: Tree,
    config: ModelConfig,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree, Tree]:
    d_total, d_norm = normalise_vjp(cotangent, total, gain_and_bias, config)
    dx, d_f = f_vjp(d_total)
    return d_total + dx, d_f, d_norm


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


def _attend_and_vjp(
    x: Float[np.ndarray, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    mask: Bool[np.ndarray, "*#batch seq seq"] | None,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Vjp]:
    weights: Tree = {"w_o": None, **params["attention"]}
    y, attention_vjp = multi_head_attention_and_vjp(
        x, **weights, n_heads=config.n_heads, mask=mask, causal=config.causal
    )

    vjp = partial(_attend_vjp, attention_vjp=attention_vjp, params=params, config=config, keep=keep)
    return y if keep is None else dropout(y, keep["attention"], rate=config.dropout), vjp


def _attend_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    attention_vjp: Vjp,
    params: Tree,
    config: ModelConfig,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    if keep is not None:
        cotangent = dropout(cotangent, keep["attention"], rate=config.dropout)
    dx, *d_weights, _ = attention_vjp(cotangent)
    names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
    return dx, in_the_order_of(params["attention"], dict(zip(names, d_weights, strict=True)))


def _think(
    x: Float[np.ndarray, "*batch seq d_model"], params: Tree, config: ModelConfig, keep: Tree | None
) -> Float[np.ndarray, "*batch seq d_model"]:
    hidden: Tree = {} if keep is None else {"keep": keep["mlp_hidden"], "rate": config.dropout}
    y = feed_forward(x, **params["mlp"], activation=config.activation, **hidden)
    return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout)


def _think_and_vjp(
    x: Float[np.ndarray, "*batch seq d_model"], params: Tree, config: ModelConfig, keep: Tree | None
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Vjp]:
    hidden: Tree = {} if keep is None else {"keep": keep["mlp_hidden"], "rate": config.dropout}
    y, mlp_vjp = feed_forward_and_vjp(x, **params["mlp"], activation=config.activation, **hidden)

    vjp = partial(_think_vjp, mlp_vjp=mlp_vjp, params=params, config=config, keep=keep)
    return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout), vjp


def _think_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    mlp_vjp: Vjp,
    params: Tree,
    config: ModelConfig,
    keep: Tree | None,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Tree]:
    if keep is not None:
        cotangent = dropout(cotangent, keep["mlp"], rate=config.dropout)
    dx, *d_weights = mlp_vjp(cotangent)
    return dx, in_the_order_of(params["mlp"], dict(zip(("w_1", "b_1", "w_2", "b_2"), d_weights, strict=True)))


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
