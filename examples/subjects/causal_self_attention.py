"""An nn.Module as a subject:  transformer-spec check examples/subjects/causal_self_attention.py

The module packs its three projections into one, as GPT-2 does. Everything below it is what the kit has to be told; its
gradients are those of autograd.
"""

import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn

from spec_tests.subjects.modules import from_module


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, causal):
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(-2, -3) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(-2, -3).flatten(-2))


multi_head_attention = from_module(
    "multi_head_attention",
    SelfAttention,
    weights={
        "qkv.weight": ["w_q.T", "w_k.T", "w_v.T"],
        "qkv.bias": ["b_q", "b_k", "b_v"],
        "out.weight": "w_o.T",
        "out.bias": "b_o",
    },
)
