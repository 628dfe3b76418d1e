"""A JAX function as a subject:  transformer-spec check examples/subjects/jax_layer_norm.py

Its gradients are those of jax.vjp. Every example has a shape of its own, and without jax.jit JAX compiles each
operation for each of them, which takes four times as long as to compile the whole.
"""

import functools

import jax
import jax.numpy as jnp

arrays = "jax"


@functools.partial(jax.jit, static_argnames="eps")
def layer_norm(x, gamma, beta, *, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    normed = (x - mean) / jnp.sqrt(variance + eps)
    if gamma is not None:
        normed = normed * gamma
    return normed if beta is None else normed + beta
