"""A cross-entropy in NumPy, in bits where the specification counts in nats."""

import math

import numpy as np


def cross_entropy(logits, targets, *, ignore_index=-100):
    """Give the mean surprise at the targets that count."""
    counted = targets != ignore_index
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    at_targets = np.take_along_axis(log_probabilities, np.where(counted, targets, 0)[..., None], axis=-1)[..., 0]
    return -(at_targets * counted).sum() / max(int(counted.sum()), 1) / math.log(2)
