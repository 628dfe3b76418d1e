"""Attention in PyTorch, with a causal mask that is right as long as there are as many queries as keys."""

import math

import torch

arrays = "torch"


def causal_mask(q_seq, k_seq=None):
    """Let query i see the keys 0 to i."""
    return torch.ones(q_seq, q_seq if k_seq is None else k_seq, dtype=torch.bool).tril()


def scaled_dot_product_attention(q, k, v, *, causal=False):
    """Give each query the mean of the values, weighted by how well the keys match."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~causal_mask(*scores.shape[-2:]), -torch.inf)
    return scores.softmax(dim=-1) @ v
