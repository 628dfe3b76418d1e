"""A block of a decoder as an nn.Module, whose attention cuts its heads out of the wrong axis."""

from torch import nn
from torch.nn import functional

from spec_tests.subjects.modules import from_module


class Attention(nn.Module):
    """Attention of several heads, with one map for queries, keys and values."""

    def __init__(self, d_model, n_heads, causal):
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        """Let the tokens of each sequence talk to each other."""
        *batch, seq, d_model = x.shape
        heads = (*batch, self.n_heads, seq, d_model // self.n_heads)
        q, k, v = (t.reshape(heads) for t in self.qkv(x).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(-3, -2).reshape(x.shape))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, d_model, n_heads, d_ff, causal=True, eps=1e-5):
        super().__init__()
        self.norm_1 = nn.LayerNorm(d_model, eps)
        self.attention = Attention(d_model, n_heads, causal)
        self.norm_2 = nn.LayerNorm(d_model, eps)
        self.mlp = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))

    def forward(self, x):
        """Add to the stream what attention says, then what the feed-forward network says."""
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


def build(config):
    """Build the block that a config asks for, if it is one of ours."""
    if config.norm_placement != "pre" or config.norm.variant != "standard" or config.activation != "gelu":
        raise NotImplementedError("the block is pre-norm, with the standard layer norm and GELU")
    return Block(config.d_model, config.n_heads, config.d_ff, config.causal, config.norm.eps)


transformer_block = from_module(
    "transformer_block",
    build,
    weights={
        "norm_1.weight": "params.norm_1.gamma",
        "norm_1.bias": "params.norm_1.beta",
        "attention.qkv.weight": ["params.attention.w_q.T", "params.attention.w_k.T", "params.attention.w_v.T"],
        "attention.qkv.bias": ["params.attention.b_q", "params.attention.b_k", "params.attention.b_v"],
        "attention.out.weight": "params.attention.w_o.T",
        "attention.out.bias": "params.attention.b_o",
        "norm_2.weight": "params.norm_2.gamma",
        "norm_2.bias": "params.norm_2.beta",
        "mlp.0.weight": "params.mlp.w_1.T",
        "mlp.0.bias": "params.mlp.b_1",
        "mlp.2.weight": "params.mlp.w_2.T",
        "mlp.2.bias": "params.mlp.b_2",
    },
)
