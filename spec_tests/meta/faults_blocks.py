"""Wrong blocks, as they were seen in real code."""

# ruff: noqa: D102, D103
# The name of a fault says what is wrong.

from dataclasses import replace
from typing import Any

import numpy as np

from reference.numpy import (
    feed_forward_vjp,
    layer_norm_vjp,
    multi_head_attention_vjp,
    transformer_block,
    transformer_block_vjp,
)
from reference.parameters import map_tree
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.blocks import PITFALLS, Parts, block_of
from spec_tests.pitfalls.pitfall import right_functions


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


# ---------------------------------------------------------------------------------------------- gradients


class Backward(Parts):
    """The gradients of the parts of a right block, without the terms that are `forgotten`."""

    def __init__(self, params, config, mask, keep, forgotten) -> None:
        super().__init__(params, config, mask, keep)
        self.forgotten, self.gradient = forgotten, {}

    def passed(self, term, dx):
        return dx * (term not in self.forgotten)

    def drop_vjp(self, d, site):
        return d if f"keep.{site}" in self.forgotten else self.drop(d, site)

    def collect(self, group, names, found):
        found = dict(zip(names, found, strict=False))
        self.gradient[group] = {
            name: self.passed(f"{group}.{name}", found[name]) for name in self.params.get(group, {})
        }

    def attend_vjp(self, d, x):
        weights = {"w_o": None, **self.params["attention"]}
        options = {"n_heads": self.config.n_heads, "mask": self.mask, "causal": self.config.causal}
        dx, *found = multi_head_attention_vjp(self.drop_vjp(d, "attention"), x, **weights, **options)
        self.collect("attention", ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"), found)
        return self.passed("through attention", dx)

    def think_vjp(self, d, x):
        keep = None if self.keep is None else self.keep["mlp_hidden"] | ("keep.mlp_hidden" in self.forgotten)
        hidden = {} if keep is None else {"keep": keep, "rate": self.config.dropout}
        d = self.drop_vjp(d, "mlp")
        dx, *found = feed_forward_vjp(d, x, **self.params["mlp"], activation=self.config.activation, **hidden)
        self.collect("mlp", ("w_1", "b_1", "w_2", "b_2"), found)
        return self.passed("through the mlp", dx)

    def norm_vjp(self, d, x, name):
        affine, norm = self.params.get(name, {}), self.config.norm
        options = {"eps": norm.eps, "variant": norm.variant}
        dx, *found = layer_norm_vjp(d, x, affine.get("gamma"), affine.get("beta"), **options)
        self.collect(name, ("gamma", "beta"), found)
        return d if name in self.forgotten else dx


def forgetting(*forgotten):
    """Build the gradient of a block that lacks these terms."""

    def vjp(cotangent, x, params, config, *, mask=None, keep=None):
        p = Backward(params, config, mask, keep, forgotten)
        if config.norm_placement == "pre":
            normed = p.norm(x, "norm_1")
            h = x + p.attend(normed)
            dh = p.passed("past the mlp", cotangent)
            dh = dh + p.norm_vjp(p.think_vjp(cotangent, p.norm(h, "norm_2")), h, "norm_2")
            dx = p.passed("past attention", dh) + p.norm_vjp(p.attend_vjp(dh, normed), x, "norm_1")
        else:
            first = x + p.attend(x)
            h = p.norm(first, "norm_1")
            d_second = p.norm_vjp(cotangent, h + p.think(h), "norm_2")
            dh = p.passed("past the mlp", d_second) + p.think_vjp(d_second, h)
            d_first = p.norm_vjp(dh, first, "norm_1")
            dx = p.passed("past attention", d_first) + p.attend_vjp(d_first, x)
        return dx, {group: p.gradient[group] for group in params}

    return vjp


def gradient_with_arguments(change):
    """Build a gradient that gets `change(params, config, mask, keep)` for its arguments."""

    def vjp(cotangent, x, params, config, *, mask=None, keep=None):
        params, config, mask, keep = change(params, config, mask, keep)
        return transformer_block_vjp(cotangent, x, params, config, mask=mask, keep=keep)

    return vjp


def with_decay_in_it(cotangent, x, params, config, **options: Any):
    dx, gradient = transformer_block_vjp(cotangent, x, params, config, **options)
    return dx, map_tree(lambda d, leaf: d + 0.01 * leaf, gradient, params)


def of_the_first_sequence(cotangent, x, params, config, **options: Any):
    dx, gradient = transformer_block_vjp(cotangent, x, params, config, **options)
    if x.ndim > 2:
        _, gradient = transformer_block_vjp(cotangent[:1], x[:1], params, config, **options)
    return dx, gradient


def scaled_without_keep_masks(cotangent, x, params, config, *, mask=None, keep=None):
    scale = 1 / (1 - config.dropout) if keep is None else 1.0
    return transformer_block_vjp(scale * cotangent, x, params, config, mask=mask, keep=keep)


def favouring_later_tokens(cotangent, x, params, config, **options: Any):
    return transformer_block_vjp(cotangent * np.arange(x.shape[-2])[:, None], x, params, config, **options)


def with_a_softmax_that_shifts(cotangent, x, params, config, **options: Any):
    dx, gradient = transformer_block_vjp(cotangent, x, params, config, **options)
    if "b_k" in gradient["attention"]:
        gradient["attention"]["b_k"] = gradient["attention"]["b_q"]
    return dx, gradient


def _gradient(name, function, *fails):
    fails = tuple(f"transformer_block.{fail}" for fail in fails)
    return Fault(f"the gradient of a block {name}", {"transformer_block_vjp": function}, fails)


PARAMETERS = (
    *(f"attention.{name}" for name in ("w_q", "w_k", "w_v", "w_o", "b_q", "b_v", "b_o")),
    *(f"mlp.{name}" for name in ("w_1", "b_1", "w_2", "b_2")),
    *(f"{norm}.{name}" for norm in ("norm_1", "norm_2") for name in ("gamma", "beta")),
)

FAULTS = [
    *(Fault(p.id, p.on(right_functions()), p.caught_by) for p in PITFALLS),
    Fault(
        "post_norm_only_at_the_end",
        {"transformer_block": block_of(post=one_norm_at_the_end)(transformer_block)},
        (
            "transformer_block.silent_branches_leave_a_post_norm_block_its_two_norms",
            "transformer_block.every_parameter_matters",
        ),
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
    _gradient(
        "forgets the stream past attention",
        forgetting("past attention"),
        "silent_branches_pass_the_cotangent_on",
        "silent_branches_leave_the_gradients_of_two_norms",
        "the_gradient_of_a_token_of_a_pre_norm_block_sums_to_that_of_its_cotangent",
    ),
    _gradient(
        "forgets the stream past the MLP",
        forgetting("past the mlp"),
        "silent_branches_pass_the_cotangent_on",
        "silent_branches_leave_the_gradients_of_two_norms",
        "the_gradient_of_a_token_of_a_pre_norm_block_sums_to_that_of_its_cotangent",
    ),
    _gradient(
        "forgets the way through attention",
        forgetting("through attention"),
        "the_gradient_goes_back_through_the_parts",
    ),
    _gradient(
        "forgets the way through the MLP",
        forgetting("through the mlp"),
        "the_gradient_goes_back_through_the_parts",
        "attention_learns_through_the_mlp",
    ),
    _gradient(
        "forgets the first norm",
        forgetting("norm_1"),
        "silent_branches_leave_the_gradients_of_two_norms",
        "the_gradient_of_a_token_of_a_pre_norm_block_sums_to_that_of_its_cotangent",
        "a_bias_before_a_post_norm_has_a_gradient_that_sums_to_0",
    ),
    _gradient(
        "forgets the second norm",
        forgetting("norm_2"),
        "silent_branches_leave_the_gradients_of_two_norms",
        "the_gradient_of_a_token_of_a_pre_norm_block_sums_to_that_of_its_cotangent",
        "a_bias_before_a_post_norm_has_a_gradient_that_sums_to_0",
    ),
    _gradient(
        "takes every block for a pre-norm one",
        gradient_with_arguments(
            lambda params, config, *options: (params, replace(config, norm_placement="pre"), *options)
        ),
        "a_bias_before_a_post_norm_has_a_gradient_that_sums_to_0",
        "what_is_added_last_gets_the_sum_of_the_cotangent",
    ),
    _gradient(
        "takes every block for a post-norm one",
        gradient_with_arguments(
            lambda params, config, *options: (params, replace(config, norm_placement="post"), *options)
        ),
        "silent_branches_pass_the_cotangent_on",
        "what_is_added_last_gets_the_sum_of_the_cotangent",
    ),
    *(_gradient(f"forgets {path}", forgetting(path), "every_parameter_has_a_gradient") for path in PARAMETERS),
    _gradient("moves the key bias", with_a_softmax_that_shifts, "every_parameter_has_a_gradient"),
    _gradient(
        "forgets causal",
        gradient_with_arguments(lambda params, config, *options: (params, replace(config, causal=False), *options)),
        "a_causal_cotangent_reaches_no_later_token",
    ),
    _gradient(
        "forgets the mask",
        gradient_with_arguments(lambda params, config, mask, keep: (params, config, None, keep)),
        "a_masked_token_of_which_nothing_is_asked_has_gradient_0",
    ),
    _gradient("favours later tokens", favouring_later_tokens, "permuting_tokens_permutes_their_gradients"),
    _gradient(
        "is that of the first sequence of a batch", of_the_first_sequence, "parameters_get_the_sum_over_the_sequences"
    ),
    _gradient("has the decay in it", with_decay_in_it, "a_cotangent_of_0_asks_for_nothing"),
    _gradient(
        "is scaled without keep-masks too",
        scaled_without_keep_masks,
        "without_keep_masks_the_gradient_knows_no_dropout",
    ),
    _gradient(
        "forgets what dropout did to attention",
        forgetting("keep.attention"),
        "what_dropout_silences_has_gradient_0",
        "keeping_everything_scales_what_writers_learn",
    ),
    _gradient(
        "forgets what dropout did to the hidden values",
        forgetting("keep.mlp_hidden"),
        "what_dropout_silences_has_gradient_0",
    ),
    _gradient(
        "forgets what dropout did to the MLP",
        forgetting("keep.mlp"),
        "what_dropout_silences_has_gradient_0",
        "keeping_everything_scales_what_writers_learn",
        "a_dropped_number_passes_no_gradient_and_a_kept_one_twice_as_much",
    ),
]
"""Each names the properties that must catch it."""
