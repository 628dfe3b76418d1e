"""Subjects that declare conventions which they do not follow."""

from dataclasses import replace

import reference.numpy
from spec_tests.meta.faults import Fault

FIRST_KEY = {
    name: {"causal": "first_key"}
    for name in ("causal_mask", "attention_weights", "scaled_dot_product_attention", "multi_head_attention")
}


def _always_pre(function):
    """Let a model be pre-norm whatever its config says."""

    def model(*args, **options):
        *others, config = args
        return function(*others, replace(config, norm_placement="pre"), **options)

    return model


FAULTS = [
    Fault(
        "another default eps than declared",
        {"conventions": {"layer_norm": {"default_eps": 1e-6}}},
        fails=("layer_norm.*agree*_as_declared",),
    ),
    Fault(
        "another form than declared",
        {"conventions": {"gelu": {"approximate": "tanh"}, "feed_forward": {"activation": "relu"}}},
        fails=("gelu.*agree*_as_declared", "feed_forward.*agree*_as_declared"),
    ),
    Fault(
        "norms elsewhere than declared",
        {
            "conventions": {name: {"norm_placement": "post"} for name in ("transformer_block", "transformer")},
            **{
                name: _always_pre(getattr(reference.numpy, name))
                for name in ("transformer_block", "transformer", "transformer_block_vjp", "transformer_vjp")
            },
        },
        fails=("transformer*.*agree*_as_declared",),
    ),
    Fault(
        "a causal mask aligned to the last key and declared to be so to the first",
        {"conventions": FIRST_KEY},
        fails=("*.the_causal_reading_is_the_one_declared",),
    ),
    Fault(
        "a crossing token that is kept and declared to be dropped",
        {"conventions": {"next_token_distribution": {"top_p": "within"}}},
        fails=("next_token_distribution.top_p_ends_where_it_declares",),
    ),
    Fault(
        "a mass that reaches p and is declared to have to exceed it",
        {"conventions": {"next_token_distribution": {"top_p": "exceeds"}}},
        fails=("next_token_distribution.top_p_at_exactly_p_ends_where_it_declares",),
    ),
]
