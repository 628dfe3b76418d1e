"""Keras (on PyTorch) as a subject, in its own float32:  transformer-spec check examples/subjects/keras_ops.py

What it does otherwise than the specification stands in keras_ops.xfails.toml, a sentence each.
"""

import math
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from keras import layers, ops

arrays = "torch"
dtype = "float32"


def token_embedding(ids, table):
    return ops.take(table, ids, axis=0)


def softmax(scores, *, axis=-1):
    return ops.softmax(scores, axis=axis)


def relu(x):
    return ops.relu(x)


def gelu(x, *, approximate="none"):
    return ops.gelu(x, approximate={"none": False, "tanh": True}[approximate])


def layer_norm(x, gamma, beta, *, eps=1e-5):
    return ops.layer_normalization(x, gamma, beta, epsilon=eps)


def scaled_dot_product_attention(q, k, v, *, mask=None, bias=None, causal=False, scale=None):
    if mask is not None and bias is not None:
        raise NotImplementedError("keras takes a mask or a bias, one of them")
    n, scores = math.prod(q.shape[:-2]), (q.shape[-2], k.shape[-2])

    def one_head(x):
        return x.reshape(n, x.shape[-2], 1, x.shape[-1])

    def of_scores(array):
        return None if array is None else array.expand(*q.shape[:-2], *scores).reshape(n, 1, *scores)

    y = ops.dot_product_attention(
        *map(one_head, (q, k, v)), bias=of_scores(bias), mask=of_scores(mask), scale=scale, is_causal=causal
    )
    return y.reshape(*q.shape[:-1], v.shape[-1])


def multi_head_attention(
    x, w_q, w_k, w_v, w_o, *, n_heads, b_q=None, b_k=None, b_v=None, b_o=None, context=None, mask=None, causal=False
):
    if w_o is None:
        raise NotImplementedError("keras has an output projection")
    d_k, d_v, d_model = w_q.shape[-1] // n_heads, w_v.shape[-1] // n_heads, x.shape[-1]
    layer = layers.MultiHeadAttention(n_heads, d_k, d_v, flash_attention=False)
    n, context = math.prod(x.shape[:-2]), x if context is None else context
    layer.build((1, 1, d_model), (1, 1, d_model))

    def bias(b, w):
        return torch.zeros(w.shape[-1], dtype=w.dtype) if b is None else b

    weights = [
        part
        for w, b, d in ((w_q, b_q, d_k), (w_k, b_k, d_k), (w_v, b_v, d_v))
        for part in (w.reshape(d_model, n_heads, d), bias(b, w).reshape(n_heads, d))
    ]
    weights += [w_o.reshape(n_heads, d_v, d_model), bias(b_o, w_o)]
    if mask is not None:
        mask = mask.expand(*x.shape[:-1], context.shape[-2]).reshape(n, x.shape[-2], context.shape[-2])
    one_batch = (part.reshape(n, *part.shape[-2:]) for part in (x, context))
    y, _ = layer.stateless_call(weights, [], *one_batch, attention_mask=mask, use_causal_mask=causal)
    return y.reshape(x.shape)


def cross_entropy(logits, targets):
    return ops.mean(ops.sparse_categorical_crossentropy(targets, logits, from_logits=True))


def adamw_step(param, grad, m, v, *, step, lr, beta_1=0.9, beta_2=0.999, eps=1e-8, weight_decay=0.01):
    optimizer = keras.optimizers.AdamW(lr, weight_decay, beta_1, beta_2, eps)
    variable = keras.Variable(param.clone())
    optimizer.build([variable])
    optimizer.iterations.assign(step - 1)
    optimizer._momentums[0].assign(m.clone())
    optimizer._velocities[0].assign(v.clone())
    optimizer.apply([grad], [variable])
    return variable.value, optimizer._momentums[0].value, optimizer._velocities[0].value


def output_head(x, w, b=None):
    y = ops.matmul(x, w)
    return y if b is None else ops.add(y, b)
