"""The production twin: the same components on tensors, and the modules that hold their weights."""

from reference.torch.attention import (
    MultiHeadAttention,
    SelfAttention,
    attention_weights,
    causal_mask,
    multi_head_attention,
    scaled_dot_product_attention,
    self_attention,
    softmax,
)
from reference.torch.blocks import TransformerBlock, transformer_block
from reference.torch.embeddings import TokenEmbedding, token_embedding
from reference.torch.losses import cross_entropy, perplexity
from reference.torch.mlp import Dropout, FeedForward, dropout, feed_forward, gelu, relu
from reference.torch.models import (
    OutputHead,
    Transformer,
    export_params,
    load_params,
    output_head,
    parameter_count,
    transformer,
)
from reference.torch.norms import LayerNorm, layer_norm
from reference.torch.optimizers import adamw_step, clip_grad_norm, warmup_cosine
from reference.torch.positions import (
    LearnedPositions,
    SinusoidalPositions,
    add_positions,
    sinusoidal_positions,
)
from reference.torch.sampling import next_token_distribution, sample

__all__ = [
    "Dropout",
    "FeedForward",
    "LayerNorm",
    "LearnedPositions",
    "MultiHeadAttention",
    "OutputHead",
    "SelfAttention",
    "SinusoidalPositions",
    "TokenEmbedding",
    "Transformer",
    "TransformerBlock",
    "adamw_step",
    "add_positions",
    "attention_weights",
    "causal_mask",
    "clip_grad_norm",
    "cross_entropy",
    "dropout",
    "export_params",
    "feed_forward",
    "gelu",
    "layer_norm",
    "load_params",
    "multi_head_attention",
    "next_token_distribution",
    "output_head",
    "parameter_count",
    "perplexity",
    "relu",
    "sample",
    "scaled_dot_product_attention",
    "self_attention",
    "sinusoidal_positions",
    "softmax",
    "token_embedding",
    "transformer",
    "transformer_block",
    "warmup_cosine",
]
