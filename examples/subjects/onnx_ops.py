"""The operators of ONNX, by its reference evaluator:  transformer-spec check examples/subjects/onnx_ops.py

In float32: attributes such as an epsilon are float32 in ONNX, so that float64 results are no better than about 1e-9.
What they do otherwise than the specification stands in onnx_ops.xfails.toml, a sentence each.
"""

import functools
import math

import numpy as np
from onnx import helper, shape_inference
from onnx.reference import ReferenceEvaluator

dtype = "float32"


@functools.cache
def _operator(name, dtypes, **attributes):
    inputs = [
        helper.make_tensor_value_info(f"input_{i}", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
        for i, dtype in enumerate(dtypes)
    ]
    output = helper.make_tensor_value_info("output", helper.np_dtype_to_tensor_dtype(np.dtype(dtypes[0])), None)
    node = helper.make_node(name, [value.name for value in inputs], ["output"], **attributes)
    model = helper.make_model(helper.make_graph([node], name, inputs, [output]))
    return ReferenceEvaluator(shape_inference.infer_shapes(model))


def _run(name, *inputs, **attributes):
    feeds = {f"input_{i}": value for i, value in enumerate(inputs)}
    return _operator(name, tuple(value.dtype.name for value in inputs), **attributes).run(None, feeds)[0]


def softmax(scores, *, axis=-1):
    return _run("Softmax", scores, axis=axis)


def relu(x):
    return _run("Relu", x)


def gelu(x, *, approximate="none"):
    return _run("Gelu", x, approximate=approximate)


def token_embedding(ids, table):
    return _run("Gather", table, ids)


def layer_norm(x, gamma, beta, *, eps=1e-5):
    gamma = np.ones(x.shape[-1:], x.dtype) if gamma is None else gamma  # ONNX wants a gain
    inputs = (x, gamma) if beta is None else (x, gamma, beta)
    return _run("LayerNormalization", *inputs, epsilon=eps)


def scaled_dot_product_attention(q, k, v, *, mask=None, bias=None, causal=False, scale=None):
    if mask is not None and bias is not None:
        raise NotImplementedError("ONNX takes a mask or a bias, one of them")
    attributes = {"is_causal": int(causal)} | ({} if scale is None else {"scale": scale})
    batch, scores = q.shape[:-2], (q.shape[-2], k.shape[-2])

    def one_head(x):
        return x.reshape(math.prod(batch), 1, *x.shape[-2:])

    inputs = [one_head(x) for x in (q, k, v)]
    if (attn_mask := bias if mask is None else mask) is not None:
        inputs.append(one_head(np.broadcast_to(attn_mask, (*batch, *scores))))
    return _run("Attention", *inputs, **attributes).reshape(*q.shape[:-1], v.shape[-1])


def output_head(x, w, b=None):
    y = _run("MatMul", x, w)
    return y if b is None else _run("Add", y, b)


def cross_entropy(logits, targets, *, ignore_index=-100):
    if logits.shape[:-1] != targets.shape:
        raise ValueError("one target for each row of logits")
    rows = logits.reshape(targets.size, logits.shape[-1])
    return _run("SoftmaxCrossEntropyLoss", rows, targets.reshape(-1).astype(np.int64), ignore_index=ignore_index)
