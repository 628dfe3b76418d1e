"""Flax (linen) and Optax as a subject, in float64:  transformer-spec check examples/subjects/flax_linen.py

A module of flax is a function of its parameters, so that each component is one `apply` with the weights put where flax
keeps them: [d_model, heads, d_k] in attention. What it does otherwise than the specification stands in
flax_linen.xfails.toml, a sentence each.
"""

import functools

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

arrays = "jax"

ACTIVATIONS = {"relu": nn.relu, "gelu": functools.partial(nn.gelu, approximate=False), "gelu_tanh": nn.gelu}


@jax.jit
def token_embedding(ids, table):
    return nn.Embed(*table.shape, param_dtype=table.dtype).apply({"params": {"embedding": table}}, ids)


@functools.partial(jax.jit, static_argnames="eps")
def layer_norm(x, gamma, beta, *, eps=1e-5):
    given = {"scale": gamma, "bias": beta}
    module = nn.LayerNorm(epsilon=eps, use_scale=gamma is not None, use_bias=beta is not None, param_dtype=x.dtype)
    return module.apply({"params": {name: part for name, part in given.items() if part is not None}}, x)


def causal_mask(q_seq):
    return nn.make_causal_mask(jnp.ones(q_seq), dtype=bool)[0]


def _for_heads(mask):
    return None if mask is None else mask[..., None, :, :]


@jax.jit
def attention_weights(q, k, *, mask=None, bias=None):
    one_head = (x[..., None, :] for x in (q, k))
    return nn.dot_product_attention_weights(*one_head, _for_heads(bias), _for_heads(mask))[..., 0, :, :]


@jax.jit
def scaled_dot_product_attention(q, k, v, *, mask=None, bias=None):
    one_head = (x[..., None, :] for x in (q, k, v))
    return nn.dot_product_attention(*one_head, _for_heads(bias), _for_heads(mask))[..., 0, :]


@functools.partial(jax.jit, static_argnames=("n_heads", "causal"))
def multi_head_attention(
    x, w_q, w_k, w_v, w_o, *, n_heads, b_q=None, b_k=None, b_v=None, b_o=None, context=None, mask=None, causal=False
):
    if w_o is None or w_q.shape != w_v.shape:
        raise NotImplementedError("flax has an output projection, and heads of one width")
    if causal and context is not None:
        raise NotImplementedError("flax makes causal masks for self-attention only")
    if causal:
        mask = nn.combine_masks(_for_heads(mask), nn.make_causal_mask(x[..., 0], dtype=bool), dtype=bool)
    else:
        mask = _for_heads(mask)
    d_head = w_q.shape[-1] // n_heads

    def projection(w, b):
        b = jnp.zeros(w.shape[-1], w.dtype) if b is None else b
        return {"kernel": w.reshape(-1, n_heads, d_head), "bias": b.reshape(n_heads, d_head)}

    out = {
        "kernel": w_o.reshape(n_heads, d_head, -1),
        "bias": jnp.zeros(w_o.shape[-1], x.dtype) if b_o is None else b_o,
    }
    params = {"query": projection(w_q, b_q), "key": projection(w_k, b_k), "value": projection(w_v, b_v), "out": out}
    module = nn.MultiHeadDotProductAttention(
        n_heads, qkv_features=n_heads * d_head, out_features=w_o.shape[-1], param_dtype=x.dtype, deterministic=True
    )
    return module.apply({"params": params}, x, x if context is None else context, mask=mask)


def _dense(x, w, b):
    params = {"kernel": w} if b is None else {"kernel": w, "bias": b}
    return nn.Dense(w.shape[-1], use_bias=b is not None, param_dtype=x.dtype).apply({"params": params}, x)


@jax.jit
def output_head(x, w, b=None):
    return _dense(x, w, b)


@functools.partial(jax.jit, static_argnames="activation")
def feed_forward(x, w_1, b_1, w_2, b_2, *, activation="gelu"):
    return _dense(ACTIVATIONS[activation](_dense(x, w_1, b_1)), w_2, b_2)


@jax.jit
def cross_entropy(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


@functools.partial(jax.jit, static_argnames=("step", "lr", "beta_1", "beta_2", "eps", "weight_decay"))
def adamw_step(param, grad, m, v, *, step, lr, beta_1=0.9, beta_2=0.999, eps=1e-8, weight_decay=0.01):
    optimizer = optax.adamw(lr, b1=beta_1, b2=beta_2, eps=eps, weight_decay=weight_decay)
    adam, *others = optimizer.init(param)
    state = (adam._replace(count=jnp.asarray(step - 1), mu=m, nu=v), *others)
    update, (adam, *_) = optimizer.update(grad, state, param)
    return optax.apply_updates(param, update), adam.mu, adam.nu


@functools.partial(jax.jit, static_argnames="max_norm")
def clip_grad_norm(grads, *, max_norm):
    clip = optax.clip_by_global_norm(max_norm)
    return clip.update(grads, clip.init(grads))[0], optax.global_norm(grads)
