"""A layer norm in NumPy whose variance is the mean of the squares less the square of the mean."""

import numpy as np


def layer_norm(x, gamma, beta, *, eps=1e-5):
    """Give each vector mean 0 and about unit variance, reading it once only."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = (x * x).mean(axis=-1, keepdims=True) - mean * mean
    normed = (x - mean) / np.sqrt(variance + eps)
    if gamma is not None:
        normed = normed * gamma
    return normed if beta is None else normed + beta
