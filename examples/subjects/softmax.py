"""A function as a subject, and its gradient:  transformer-spec check examples/subjects/softmax.py"""

import numpy as np


def softmax(scores, *, axis=-1):
    largest = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = exponentials.sum(axis=axis, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def softmax_vjp(cotangent, scores, *, axis=-1):
    """Give the gradient of sum(cotangent * softmax(scores)); without this function there would be none to check."""
    if (cotangent.shape, cotangent.dtype) != (scores.shape, scores.dtype):
        raise TypeError(f"a cotangent is like the scores, got {cotangent.dtype} of shape {cotangent.shape}")
    weights = softmax(scores, axis=axis)
    return weights * (cotangent - (weights * cotangent).sum(axis=axis, keepdims=True))
