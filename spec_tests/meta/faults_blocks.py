"""Wrong blocks, as they were seen in real code."""

# ruff: noqa: D102, D103
# The name of a fault says what is wrong.

from dataclasses import replace
from typing import Any

import numpy as np

from reference.numpy import dropout, feed_forward, layer_norm, multi_head_attention, transformer_block
from spec_tests.meta.faults import Fault


class Parts:
    """The parts of a right block, for wrong blocks to put together."""

    def __init__(self, params, config, mask=None, keep=None, **ignored: Any) -> None:
        self.params, self.config, self.mask, self.keep = params, config, mask, keep

    def drop(self, x, site):
        return x if self.keep is None else dropout(x, self.keep[site], rate=self.config.dropout)

    def attend(self, x, **context: Any):
        weights = {"w_o": None, **self.params["attention"]}
        options = {"n_heads": self.config.n_heads, "mask": self.mask, "causal": self.config.causal}
        return self.drop(multi_head_attention(x, **weights, **options, **context), "attention")

    def think(self, x):
        hidden = {} if self.keep is None else {"keep": self.keep["mlp_hidden"], "rate": self.config.dropout}
        y = feed_forward(x, **self.params["mlp"], activation=self.config.activation, **hidden)
        return self.drop(y, "mlp")

    def norm(self, x, name):
        affine, norm = self.params.get(name, {}), self.config.norm
        return layer_norm(x, affine.get("gamma"), affine.get("beta"), eps=norm.eps, variant=norm.variant)


def wrong(forward, placement="pre"):
    """Build a block that is `forward(x, parts)` where the norm is placed so, and right elsewhere."""

    def block(x, params, config, *, mask=None, keep=None):
        if config.norm_placement != placement:
            return transformer_block(x, params, config, mask=mask, keep=keep)
        return forward(x, Parts(params, config, mask, keep))

    return block


def residual_from_normed(x, p):
    x = p.norm(x, "norm_1")
    x = x + p.attend(x)
    x = p.norm(x, "norm_2")
    return x + p.think(x)


def no_residual(x, p):
    return p.think(p.norm(p.attend(p.norm(x, "norm_1")), "norm_2"))


def norm_on_the_branch(x, p):
    x = x + p.norm(p.attend(x), "norm_1")
    return x + p.norm(p.think(x), "norm_2")


def only_the_query_normed(x, p):
    x = x + p.attend(p.norm(x, "norm_1"), context=x)
    return x + p.think(p.norm(x, "norm_2"))


def parallel(x, p):
    return x + p.attend(p.norm(x, "norm_1")) + p.think(p.norm(x, "norm_2"))


def one_norm_for_both(x, p):
    x = x + p.attend(p.norm(x, "norm_1"))
    return x + p.think(p.norm(x, "norm_1"))


def residual_skips_attention(x, p):
    h = p.norm(x + p.attend(x), "norm_1")
    return p.norm(x + p.think(h), "norm_2")


def one_norm_at_the_end(x, p):
    x = x + p.attend(x)
    return p.norm(x + p.think(x), "norm_2")


def with_arguments(change):
    """Build a block that gets `change(x, params, config, mask, keep)` as its arguments."""

    def block(x, params, config, *, mask=None, keep=None):
        x, params, config, mask, keep = change(x, params, config, mask, keep)
        return transformer_block(x, params, config, mask=mask, keep=keep)

    return block


def mixing_sequences(x, params, config, **options: Any):
    y = transformer_block(x, params, config, **options)
    return y + 0.1 * y.mean(axis=tuple(range(y.ndim - 2)), keepdims=True)


def mixing_tokens(x, params, config, **options: Any):
    y = transformer_block(x, params, config, **options)
    return y + 0.1 * np.cumsum(y, axis=-2)[..., ::-1, :]


def dropout_always(x, params, config, *, mask=None, keep=None):
    y = transformer_block(x, params, config, mask=mask, keep=keep)
    return y * (1 - config.dropout) if keep is None else y


def dropout_after_the_residual(x, params, config, *, mask=None, keep=None):
    y = transformer_block(x, params, config, mask=mask)
    return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout)


def without(*sites):
    """Build a block that does not drop at these sites."""

    def block(x, params, config, *, mask=None, keep=None):
        if keep is not None:
            keep = {name: mask | True if name in sites else mask for name, mask in keep.items()}
        return transformer_block(x, params, config, mask=mask, keep=keep)

    return block


def missing_is_zero(x, params, config, *, mask=None, keep=None):
    d, f = config.d_model, config.d_ff
    sizes = {"w_1": (d, f), "b_1": (f,), "w_2": (f, d)}
    asked = {
        "attention": [*("w_q", "w_k", "w_v", "w_o"), *(("b_q", "b_k", "b_v", "b_o") * config.attention_bias)],
        "norm_1": ["gamma", "beta"],
        "mlp": ["w_1", "b_1", "w_2", "b_2"],
        "norm_2": ["gamma", "beta"],
    }
    full = {
        group: {
            name: params[group].get(name, np.zeros(sizes.get(name, (d, d) if name.startswith("w") else (d,))))
            for name in names
        }
        for group, names in asked.items()
    }
    return transformer_block(x, full, config, mask=mask, keep=keep)


FAULTS = [
    Fault(
        "prenorm_residual_from_normed",
        {"transformer_block": wrong(residual_from_normed)},
        (
            "transformer_block.silent_branches_make_a_pre_norm_block_the_identity",
            "transformer_block.a_constant_added_to_the_stream_passes_a_pre_norm_block",
            "transformer_block.the_stream_itself_is_not_normed_before",
        ),
    ),
    Fault(
        "block_without_residual",
        {"transformer_block": wrong(no_residual)},
        ("transformer_block.silent_branches_make_a_pre_norm_block_the_identity",),
    ),
    Fault(
        "norm_on_branch_output",
        {"transformer_block": wrong(norm_on_the_branch)},
        (
            "transformer_block.silent_branches_make_a_pre_norm_block_the_identity",
            "transformer_block.dropout_acts_on_the_output_of_the_mlp",
        ),
    ),
    Fault(
        "norm_position_flag_ignored",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, replace(c, norm_placement="pre"), m, k))},
        ("transformer_block.silent_branches_leave_a_post_norm_block_its_two_norms",),
    ),
    Fault(
        "prenorm_only_query_normed",
        {"transformer_block": wrong(only_the_query_normed)},
        (
            "transformer_block.a_constant_added_to_the_stream_passes_a_pre_norm_block",
            "transformer_block.the_stream_itself_is_not_normed_before",
        ),
    ),
    Fault(
        "parallel_vs_sequential_residual",
        {"transformer_block": wrong(parallel)},
        ("transformer_block.the_mlp_reads_what_attention_wrote",),
    ),
    Fault(
        "ln_wrong_instance",
        {"transformer_block": wrong(one_norm_for_both)},
        ("transformer_block.every_parameter_matters",),
    ),
    Fault(
        "residual_skips_attention",
        {"transformer_block": wrong(residual_skips_attention, "post")},
        ("transformer_block.silent_branches_leave_a_post_norm_block_its_two_norms",),
    ),
    Fault(
        "post_norm_only_at_the_end",
        {"transformer_block": wrong(one_norm_at_the_end, "post")},
        (
            "transformer_block.silent_branches_leave_a_post_norm_block_its_two_norms",
            "transformer_block.every_parameter_matters",
        ),
    ),
    Fault(
        "block_ignores_causal",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, replace(c, causal=False), m, k))},
        ("transformer_block.a_causal_block_does_not_see_later_tokens",),
    ),
    Fault(
        "block_always_causal",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, replace(c, causal=True), m, k))},
        (
            "transformer_block.without_a_causal_mask_later_tokens_are_seen",
            "transformer_block.permuting_tokens_permutes_the_output",
        ),
    ),
    Fault(
        "block_ignores_mask",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, c, None, k))},
        ("transformer_block.a_masked_token_has_no_influence",),
    ),
    Fault(
        "block_mask_means_hidden",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, c, None if m is None else ~m, k))},
        ("transformer_block.a_masked_token_has_no_influence",),
    ),
    Fault(
        "block_mixes_sequences",
        {"transformer_block": mixing_sequences},
        ("transformer_block.sequences_of_a_batch_do_not_mix",),
    ),
    Fault(
        "block_mixes_tokens",
        {"transformer_block": mixing_tokens},
        (
            "transformer_block.permuting_tokens_permutes_the_output",
            "transformer_block.a_causal_block_does_not_see_later_tokens",
            "transformer_block.a_masked_token_has_no_influence",
        ),
    ),
    Fault(
        "block_ignores_n_heads",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, replace(c, n_heads=1), m, k))},
        ("transformer_block.the_number_of_heads_matters",),
    ),
    Fault(
        "dropout_without_keep_masks",
        {"transformer_block": dropout_always},
        ("transformer_block.without_keep_masks_nothing_is_dropped",),
    ),
    Fault(
        "block_ignores_keep",
        {"transformer_block": with_arguments(lambda x, p, c, m, k: (x, p, c, m, None))},
        (
            "transformer_block.keeping_everything_scales_each_branch_once_a_site",
            "transformer_block.dropout_acts_on_the_output_of_attention",
            "transformer_block.dropout_acts_on_the_output_of_the_mlp",
            "transformer_block.dropout_acts_on_the_hidden_values",
        ),
    ),
    Fault(
        "dropout_after_the_residual",
        {"transformer_block": dropout_after_the_residual},
        (
            "transformer_block.keeping_everything_scales_each_branch_once_a_site",
            "transformer_block.dropout_acts_on_the_output_of_the_mlp",
        ),
    ),
    Fault(
        "no_dropout_on_attention",
        {"transformer_block": without("attention")},
        ("transformer_block.dropout_acts_on_the_output_of_attention",),
    ),
    Fault(
        "no_dropout_on_hidden_values",
        {"transformer_block": without("mlp_hidden")},
        ("transformer_block.dropout_acts_on_the_hidden_values",),
    ),
    Fault(
        "missing_parameters_are_zero",
        {"transformer_block": missing_is_zero},
        ("transformer_block.a_missing_parameter_is_refused",),
    ),
]
"""Each names the properties that must catch it."""
