"""A function as a subject:  transformer-spec check examples/subjects/softmax.py"""

import numpy as np


def softmax(scores, *, axis=-1):
    largest = scores.max(axis=axis, keepdims=True, initial=-np.inf)
    exponentials = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = exponentials.sum(axis=axis, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)
