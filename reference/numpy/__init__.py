"""The meaning of a transformer: every component as a pure function of NumPy arrays that reads like its formula."""

from reference.numpy.attention import (
    attention_weights,
    attention_weights_vjp,
    causal_mask,
    multi_head_attention,
    multi_head_attention_vjp,
    scaled_dot_product_attention,
    scaled_dot_product_attention_vjp,
    self_attention,
    self_attention_vjp,
    softmax,
    softmax_vjp,
)
from reference.numpy.blocks import transformer_block, transformer_block_vjp
from reference.numpy.embeddings import token_embedding, token_embedding_vjp
from reference.numpy.losses import cross_entropy, cross_entropy_vjp, perplexity
from reference.numpy.mlp import dropout, dropout_vjp, feed_forward, feed_forward_vjp, gelu, gelu_vjp, relu, relu_vjp
from reference.numpy.models import output_head, output_head_vjp, parameter_count, transformer, transformer_vjp
from reference.numpy.norms import layer_norm, layer_norm_vjp
from reference.numpy.optimizers import adamw_step, clip_grad_norm, warmup_cosine
from reference.numpy.positions import add_positions, add_positions_vjp, sinusoidal_positions
from reference.numpy.sampling import next_token_distribution, sample

__all__ = [
    "adamw_step",
    "add_positions",
    "add_positions_vjp",
    "attention_weights",
    "attention_weights_vjp",
    "causal_mask",
    "clip_grad_norm",
    "cross_entropy",
    "cross_entropy_vjp",
    "dropout",
    "dropout_vjp",
    "feed_forward",
    "feed_forward_vjp",
    "gelu",
    "gelu_vjp",
    "layer_norm",
    "layer_norm_vjp",
    "multi_head_attention",
    "multi_head_attention_vjp",
    "next_token_distribution",
    "output_head",
    "output_head_vjp",
    "parameter_count",
    "perplexity",
    "relu",
    "relu_vjp",
    "sample",
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_vjp",
    "self_attention",
    "self_attention_vjp",
    "sinusoidal_positions",
    "softmax",
    "softmax_vjp",
    "token_embedding",
    "token_embedding_vjp",
    "transformer",
    "transformer_block",
    "transformer_block_vjp",
    "transformer_vjp",
    "warmup_cosine",
]
