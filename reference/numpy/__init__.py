"""The meaning of a transformer: every component as a pure function of NumPy arrays that reads like its formula."""

from reference.numpy.attention import (
    attention_weights,
    causal_mask,
    multi_head_attention,
    scaled_dot_product_attention,
    self_attention,
    softmax,
)
from reference.numpy.blocks import transformer_block
from reference.numpy.embeddings import token_embedding
from reference.numpy.losses import cross_entropy, perplexity
from reference.numpy.mlp import dropout, feed_forward, gelu, relu
from reference.numpy.models import output_head, parameter_count, transformer
from reference.numpy.norms import layer_norm
from reference.numpy.optimizers import adamw_step, clip_grad_norm, warmup_cosine
from reference.numpy.positions import add_positions, sinusoidal_positions
from reference.numpy.sampling import next_token_distribution, sample

__all__ = [
    "adamw_step",
    "add_positions",
    "attention_weights",
    "causal_mask",
    "clip_grad_norm",
    "cross_entropy",
    "dropout",
    "feed_forward",
    "gelu",
    "layer_norm",
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
