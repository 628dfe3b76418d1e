"""jax.nn as a subject, in JAX's own float32:  transformer-spec check examples/subjects/jax_nn.py

What it does otherwise than the specification stands in jax_nn.xfails.toml, a sentence each.
"""

import functools
import math

import jax
import jax.numpy as jnp

arrays = "jax"
dtype = "float32"


@functools.partial(jax.jit, static_argnames="axis")
def softmax(scores, *, axis=-1):
    return jax.nn.softmax(scores, axis=axis)


@jax.jit
def relu(x):
    return jax.nn.relu(x)


@functools.partial(jax.jit, static_argnames="approximate")
def gelu(x, *, approximate="none"):
    return jax.nn.gelu(x, approximate={"none": False, "tanh": True}[approximate])


@functools.partial(jax.jit, static_argnames="eps")
def layer_norm(x, gamma, beta, *, eps=1e-5):
    normed = jax.nn.standardize(x, epsilon=eps)  # which has no gain and no bias
    normed = normed if gamma is None else normed * gamma
    return normed if beta is None else normed + beta


@functools.partial(jax.jit, static_argnames=("causal", "scale"))
def scaled_dot_product_attention(q, k, v, *, mask=None, bias=None, causal=False, scale=None):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    n, width, d_v = math.prod(q.shape[:-2]), max(q.shape[-1], v.shape[-1]), v.shape[-1]

    def one_head(x):
        """Make it [batch, seq, 1, width]: values must be as wide as keys, and zeros change no product."""
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
        return x.reshape(n, x.shape[-2], 1, width)

    def of_scores(array):
        if array is None:
            return None
        square = (q.shape[-2], k.shape[-2])
        return jnp.broadcast_to(array, (*q.shape[:-2], *square)).reshape(n, 1, *square)

    y = jax.nn.dot_product_attention(
        one_head(q), one_head(k), one_head(v), of_scores(bias), of_scores(mask), scale=scale, is_causal=causal
    )
    return y[..., :d_v].reshape(*q.shape[:-1], d_v)
