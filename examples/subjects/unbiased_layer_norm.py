"""A plausible mistake:  transformer-spec check examples/subjects/unbiased_layer_norm.py

torch.var divides by n - 1 unless it is told otherwise, and so does this variance; layer normalisation divides by n.
"""

import numpy as np


def layer_norm(x, gamma, beta, *, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True, ddof=1)
    normed = (x - mean) / np.sqrt(variance + eps)
    if gamma is not None:
        normed = normed * gamma
    return normed if beta is None else normed + beta
