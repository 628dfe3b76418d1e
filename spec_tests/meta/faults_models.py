"""Wrong models, heads and counts, as they were seen in real code."""

# ruff: noqa: D103
# The name of a fault says what is wrong.

from dataclasses import replace
from typing import Any

import numpy as np

from reference.numpy import (
    cross_entropy_vjp,
    output_head,
    output_head_vjp,
    parameter_count,
    transformer,
    transformer_vjp,
)
from reference.parameters import leaves, map_tree, parameter_shapes
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.models import PITFALLS
from spec_tests.pitfalls.pitfall import right_functions
from spec_tests.strategies import changed

# -------------------------------------------------------------------------------------------- output_head


def head_transposed(x, w, b=None):
    return output_head(x, np.ascontiguousarray(w.T) if w.shape[0] == w.shape[1] else np.roll(w, 1, axis=0), b)


def head_with_softmax(x, w, b=None):
    return np.tanh(output_head(x, w, b))


def head_over_all_tokens(x, w, b=None):
    return output_head(x - x.mean(axis=-2, keepdims=True), w, b)


def head_bias_twice(x, w, b=None):
    return output_head(x, w, None if b is None else 2 * b)


# -------------------------------------------------------------------------------------------- transformer


def with_arguments(change):
    """Build a model that gets `change(ids, params, config)` in the place of its arguments."""

    def model(ids, params, config, *, mask=None, keep=None):
        return transformer(*change(ids, params, config), mask=mask, keep=keep)

    return model


def with_config(**choices: Any):
    """Build a model for which the config says otherwise."""
    return with_arguments(lambda ids, params, config: (ids, params, replace(config, **choices)))


def with_options(change):
    """Build a model that gets `change(mask, keep)` for its options."""

    def model(ids, params, config, *, mask=None, keep=None):
        mask, keep = change(mask, keep)
        return transformer(ids, params, config, mask=mask, keep=keep)

    return model


def positions_for_the_first_token_only(ids, params, config):
    if "positions" not in params:
        return ids, params, config
    table = params["positions"]["table"] * (np.arange(config.max_len) == 0)[:, None]
    return ids, {**params, "positions": {"table": table}}, config


def final_norm_without_its_gain(ids, params, config):
    if "final_norm" in params:
        gain = np.ones_like(params["final_norm"]["gamma"])
        params = {**params, "final_norm": {**params["final_norm"], "gamma": gain}}
    return ids, params, config


def blocks_averaged(ids, params, config):
    blocks = params["blocks"]
    mean = map_tree(lambda *same: sum(same) / len(blocks), blocks[0], *blocks[1:])
    return ids, {**params, "blocks": [mean] * len(blocks)}, config


def only_the_last_block(ids, params, config):
    return ids, {**params, "blocks": params["blocks"][-1:]}, replace(config, n_layers=min(config.n_layers, 1))


def mixing_sequences(ids, params, config, **options: Any):
    logits = transformer(ids, params, config, **options)
    return logits + 0.1 * logits.mean(axis=tuple(range(logits.ndim - 2)), keepdims=True)


def sorted_tokens(ids, params, config):
    return np.sort(ids, axis=-1), params, config


def mask_in_the_first_block_only(ids, params, config, *, mask=None, keep=None):
    logits = transformer(ids, params, config, mask=mask, keep=keep)
    return logits if mask is None else 0.5 * (logits + transformer(ids, params, config, keep=keep))


def dropout_always(ids, params, config, *, mask=None, keep=None):
    logits = transformer(ids, params, config, mask=mask, keep=keep)
    return logits * (1 - config.dropout) if keep is None else logits


def the_masks_of_the_first_block(mask, keep):
    return mask, None if keep is None else {**keep, "blocks": keep["blocks"][:1] * len(keep["blocks"])}


def positions_never_dropped(mask, keep):
    return mask, None if keep is None else {**keep, "positions": keep["positions"] | True}


def any_length(ids, params, config, **options: Any):
    if "positions" in params and ids.shape[-1] > config.max_len:
        table = np.resize(params["positions"]["table"], (ids.shape[-1], config.d_model))
        params = {**params, "positions": {"table": table}}
    longer = max(config.max_len, ids.shape[-1])
    return transformer(ids, params, replace(config, max_len=longer), **options)


def one_token_too_strict(ids, params, config, **options: Any):
    if ids.shape[-1] >= config.max_len:
        raise ValueError(f"seq must be below max_len, got {ids.shape[-1]} and {config.max_len}")
    return transformer(ids, params, config, **options)


def ids_wrap(ids, params, config):
    return ids % config.vocab, params, config


def missing_is_zero(ids, params, config, **options: Any):
    given = dict(leaves(params))
    full = {path: given.get(path, np.zeros(shape)) for path, shape in leaves(parameter_shapes(config))}
    paths = iter(full)
    return transformer(ids, map_tree(lambda _: full[next(paths)], parameter_shapes(config)), config, **options)


# ---------------------------------------------------------------------------------------- parameter_count


def counting(change):
    """Build a count of another config."""
    return lambda config: parameter_count(change(config))


def by_building(config):
    tree = map_tree(lambda shape: np.zeros(shape), parameter_shapes(config))
    return sum(array.size for _, array in leaves(tree))


# -------------------------------------------------------------------------------- gradients of the head


def head_gradient(change):
    """Build a gradient of the head whose parts are changed."""

    def vjp(cotangent, x, w, b=None):
        return change(*output_head_vjp(cotangent, x, w, b), cotangent, x, w)

    return vjp


def head_gradients_of_a_sequence(cotangent, x, w, b=None):
    dx, dw, db = output_head_vjp(cotangent, x, w, b)
    if x.ndim > 2:
        _, dw, _ = output_head_vjp(cotangent[:1], x[:1], w, b)
    return dx, dw, db


# --------------------------------------------------------------------------------- gradients of a model


def gradient_with_arguments(change):
    """Build a gradient that gets `change(params, config, mask, keep)` in the place of its arguments."""

    def vjp(cotangent, ids, params, config, *, mask=None, keep=None):
        params, config, mask, keep = change(params, config, mask, keep)
        return transformer_vjp(cotangent, ids, params, config, mask=mask, keep=keep)

    return vjp


def gradient_changed(change):
    """Build a gradient of which `change(path, leaf, config)` makes another one."""

    def vjp(cotangent, ids, params, config, **options: Any):
        (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
        return (changed(gradient, lambda path, leaf: change(path, leaf, config)),)

    return vjp


def forgetting(wanted):
    """Build a gradient that is 0 for the parameters whose path ends so."""
    return gradient_changed(lambda path, leaf, config: 0 * leaf if path.endswith(wanted) else leaf)


def apart(cotangent, ids, params, config, **options: Any):
    """Give the gradients of a tied table's two uses."""
    head = {"w": params["token_embedding"]["table"].T, **params.get("output_head", {})}
    untied = {**params, "output_head": head}
    (gradient,) = transformer_vjp(cotangent, ids, untied, replace(config, tied_head=False), **options)
    return gradient["token_embedding"]["table"], gradient["output_head"]["w"].T


def tied_table_with(used):
    """Build a gradient in which a tied table has its uses weighed so."""

    def vjp(cotangent, ids, params, config, **options: Any):
        (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
        if config.tied_head:
            uses = apart(cotangent, ids, params, config, **options)
            gradient["token_embedding"]["table"] = sum(w * use for w, use in zip(used, uses, strict=True))
        return (gradient,)

    return vjp


def embedding_scale_forgotten(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    if not config.tied_head:
        gradient["token_embedding"]["table"] /= config.embedding_scale
    return (gradient,)


def repeated_tokens_overwrite(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    if "positions" in params and ids.ndim == 2:
        table = np.zeros_like(params["token_embedding"]["table"])
        for row, part in zip(ids, cotangent, strict=True):
            (alone,) = transformer_vjp(part, row, params, config)
            table[row] = config.embedding_scale * alone["positions"]["table"][: len(row)]
        gradient["token_embedding"]["table"] = table
    return (gradient,)


def positions_of_the_first_sequence(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    if "positions" in params and ids.ndim == 2:
        (first,) = transformer_vjp(cotangent[:1], ids[:1], params, config)
        gradient["positions"] = first["positions"]
    return (gradient,)


def with_decay_in_it(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    return (map_tree(lambda d, leaf: d + 0.01 * leaf, gradient, params),)


def final_norm_skipped(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    if config.final_norm:
        kept = {name: part for name, part in params.items() if name != "final_norm"}
        (skipped,) = transformer_vjp(cotangent, ids, kept, replace(config, final_norm=False), **options)
        gradient = {**skipped, "final_norm": gradient["final_norm"]}
    return (gradient,)


def blocks_share_gradients(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    mean = map_tree(lambda *same: sum(same) / len(same), *gradient["blocks"])
    return ({**gradient, "blocks": [mean] * len(gradient["blocks"])},)


def stops_at_the_last_block(cotangent, ids, params, config, **options: Any):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, **options)
    earlier = map_tree(lambda leaf: 0 * leaf, gradient["blocks"][:-1])
    return ({**gradient, "blocks": earlier + gradient["blocks"][-1:]},)


def averaged_over_the_batch(cotangent, ids, params, config, **options: Any):
    return transformer_vjp(cotangent / (len(ids) if ids.ndim > 1 else 1), ids, params, config, **options)


def mask_of_the_first_block_only(cotangent, ids, params, config, *, mask=None, keep=None):
    (gradient,) = transformer_vjp(cotangent, ids, params, config, mask=mask, keep=keep)
    (unmasked,) = transformer_vjp(cotangent, ids, params, config, keep=keep)
    return (map_tree(lambda one, other: 0.5 * (one + other), gradient, unmasked),)


def scaled_without_keep_masks(cotangent, ids, params, config, *, mask=None, keep=None):
    scale = 1 / (1 - config.dropout) if keep is None else 1.0
    return transformer_vjp(scale * cotangent, ids, params, config, mask=mask, keep=keep)


def a_part_in_a_million_off(cotangent, ids, params, config, **options: Any):
    return transformer_vjp(cotangent * (1 + 1e-6), ids, params, config, **options)


def averaged_over_the_rows(cotangent, logits, targets, **options: Any):
    (gradient,) = cross_entropy_vjp(cotangent, logits, targets, **options)
    return (gradient * logits[..., 0].size / len(logits),)


def without_the_targets(cotangent, logits, targets, **options: Any):
    (gradient,) = cross_entropy_vjp(cotangent, logits, targets, **options)
    return (gradient + np.eye(logits.shape[-1])[np.maximum(targets, 0)] * cotangent / targets.size,)


def _gradient(name, function, *fails):
    return Fault(
        f"the gradient of a model {name}", {"transformer_vjp": function}, tuple(f"transformer.{f}" for f in fails)
    )


def _run(name, function_name, function):
    fails = ("transformer.fifty_steps_of_training_are_those_of_the_reference",)
    return Fault(f"a training run {name}", {function_name: function}, fails)


LEARNT = (
    *("token_embedding.table", "positions.table", "final_norm.gamma", "final_norm.beta"),
    *("output_head.w", "output_head.b", "blocks.0.attention.w_v", "blocks.1.mlp.w_1"),
)

GRADIENT_FAULTS = [
    Fault(
        "the gradient of a head forgets to transpose w",
        {
            "output_head_vjp": head_gradient(
                lambda dx, dw, db, cotangent, x, w: (cotangent @ np.resize(w, w.T.shape), dw, db)
            )
        },
        ("output_head.the_gradients_of_a_head_are_products",),
    ),
    Fault(
        "the gradient of a head is averaged over the tokens",
        {"output_head_vjp": head_gradient(lambda dx, dw, db, cotangent, x, w: (dx, dw / x[..., 0].size, db))},
        ("output_head.the_gradients_of_a_head_are_products",),
    ),
    Fault(
        "the gradient of a head is that of the first sequence",
        {"output_head_vjp": head_gradients_of_a_sequence},
        ("output_head.the_gradients_of_a_head_are_products",),
    ),
    Fault(
        "the gradient of a head forgets the bias",
        {"output_head_vjp": head_gradient(lambda dx, dw, db, *rest: (dx, dw, None if db is None else 0 * db))},
        ("output_head.the_bias_of_a_head_gets_the_sum_of_the_cotangent",),
    ),
    *(_gradient(f"forgets {path}", forgetting(path), "every_parameter_has_a_gradient") for path in LEARNT),
    _gradient(
        "moves the key bias",
        gradient_changed(lambda path, leaf, config: leaf + 0.1 if path.endswith("b_k") else leaf),
        "every_parameter_has_a_gradient",
    ),
    _gradient(
        "has the decay in it",
        with_decay_in_it,
        "a_cotangent_of_0_asks_for_nothing",
        "exactly_the_tokens_that_are_used_have_a_gradient",
        "exactly_the_positions_that_are_used_have_a_gradient",
    ),
    _gradient(
        "forgets that a tied table is the head, too",
        tied_table_with((1, 0)),
        "a_tied_table_gets_the_sum_of_both_its_uses",
    ),
    _gradient(
        "forgets that a tied table is the embedding, too",
        tied_table_with((0, 1)),
        "a_tied_table_gets_the_sum_of_both_its_uses",
    ),
    _gradient(
        "forgets the scale of embeddings",
        embedding_scale_forgotten,
        "tokens_and_positions_share_one_gradient",
        "silent_blocks_leave_the_gradients_of_embeddings_positions_and_head",
    ),
    _gradient(
        "keeps of a repeated token its last place only",
        repeated_tokens_overwrite,
        "tokens_and_positions_share_one_gradient",
        "silent_blocks_leave_the_gradients_of_embeddings_positions_and_head",
        "dropout_acts_on_the_gradient_of_embeddings_and_positions",
    ),
    _gradient(
        "gives positions what the first sequence asks",
        positions_of_the_first_sequence,
        "tokens_and_positions_share_one_gradient",
        "silent_blocks_leave_the_gradients_of_embeddings_positions_and_head",
        "the_gradient_of_a_batch_is_the_sum_over_its_sequences",
    ),
    _gradient(
        "skips the final norm",
        final_norm_skipped,
        "the_final_norm_stands_between_the_head_and_all_gradients",
    ),
    _gradient(
        "forgets the final norm's bias",
        forgetting("final_norm.beta"),
        "the_final_norm_stands_between_the_head_and_all_gradients",
    ),
    _gradient(
        "stops at the last block",
        stops_at_the_last_block,
        "a_silent_block_passes_the_gradient_on",
    ),
    _gradient(
        "is shared by all blocks",
        blocks_share_gradients,
        "each_block_has_gradients_of_its_own",
        "a_silent_block_passes_the_gradient_on",
        "a_block_of_which_nothing_is_kept_learns_nothing",
    ),
    _gradient(
        "is averaged over the batch",
        averaged_over_the_batch,
        "the_gradient_of_a_batch_is_the_sum_over_its_sequences",
        "silent_blocks_leave_the_gradients_of_embeddings_positions_and_head",
    ),
    _gradient(
        "forgets causal",
        gradient_with_arguments(lambda params, config, *options: (params, replace(config, causal=False), *options)),
        "a_causal_cotangent_reaches_no_later_embedding",
    ),
    _gradient(
        "forgets the mask in some blocks",
        mask_of_the_first_block_only,
        "a_masked_token_of_which_nothing_is_asked_has_gradient_0",
    ),
    _gradient(
        "is scaled without keep-masks too",
        scaled_without_keep_masks,
        "without_keep_masks_the_gradient_knows_no_dropout",
    ),
    _gradient(
        "forgets dropout",
        gradient_with_arguments(lambda params, config, mask, keep: (params, config, mask, None)),
        "dropout_acts_on_the_gradient_of_embeddings_and_positions",
        "a_block_of_which_nothing_is_kept_learns_nothing",
    ),
    _gradient(
        "forgets that embeddings and positions are dropped",
        gradient_with_arguments(
            lambda params, config, mask, keep: (params, config, *positions_never_dropped(mask, keep))
        ),
        "dropout_acts_on_the_gradient_of_embeddings_and_positions",
    ),
    _gradient(
        "takes the first block's keep-masks for all",
        gradient_with_arguments(
            lambda params, config, mask, keep: (params, config, *the_masks_of_the_first_block(mask, keep))
        ),
        "a_block_of_which_nothing_is_kept_learns_nothing",
    ),
    _run("whose gradient is a part in a million too long", "transformer_vjp", a_part_in_a_million_off),
    _run("that forgets the gradient of b_2", "transformer_vjp", forgetting("b_2")),
    _run("whose loss is a mean over sequences", "cross_entropy_vjp", averaged_over_the_rows),
    _run("whose loss forgets the targets", "cross_entropy_vjp", without_the_targets),
]

FAULTS = [
    *(Fault(p.id, p.on(right_functions()), p.caught_by) for p in PITFALLS if not p.programs),
    *GRADIENT_FAULTS,
    Fault(
        "head_rows_rolled",
        {"output_head": head_transposed},
        ("output_head.a_channel_alone_gives_its_row_of_weights",),
    ),
    Fault("head_bends", {"output_head": head_with_softmax}, ("output_head.logits_of_a_sum_are_the_sum_of_logits",)),
    Fault(
        "head_over_all_tokens", {"output_head": head_over_all_tokens}, ("output_head.each_token_is_scored_by_itself",)
    ),
    Fault("head_bias_twice", {"output_head": head_bias_twice}, ("output_head.a_bias_is_added_to_the_logits",)),
    Fault(
        "model_ignores_causal",
        {"transformer": with_config(causal=False)},
        (
            "transformer.a_causal_model_does_not_see_later_tokens",
            "transformer.a_causal_mask_alone_tells_the_order",
            "transformer.every_choice_of_the_config_matters",
        ),
    ),
    Fault(
        "model_always_causal",
        {"transformer": with_config(causal=True)},
        (
            "transformer.without_a_causal_mask_later_tokens_are_seen",
            "transformer.without_positions_permuting_tokens_permutes_the_logits",
            "transformer.without_positions_a_pooled_result_does_not_know_the_order",
        ),
    ),
    Fault(
        "learned_positions_not_by_row",
        {"transformer": with_arguments(positions_for_the_first_token_only)},
        ("transformer.learned_positions_are_added_row_by_row",),
    ),
    Fault(
        "model_mixes_sequences",
        {"transformer": mixing_sequences},
        ("transformer.sequences_of_a_batch_do_not_mix",),
    ),
    Fault(
        "tokens_sorted",
        {"transformer": with_arguments(sorted_tokens)},
        ("transformer.without_positions_permuting_tokens_permutes_the_logits",),
    ),
    Fault(
        "mask_not_in_every_block",
        {"transformer": mask_in_the_first_block_only},
        ("transformer.a_masked_token_has_no_influence_in_any_block",),
    ),
    Fault(
        "final_norm_without_its_gain",
        {"transformer": with_arguments(final_norm_without_its_gain)},
        (
            "transformer.the_final_norm_stands_before_the_head",
            "transformer.a_final_norm_without_gain_forgets_the_tokens",
        ),
    ),
    Fault(
        "blocks_averaged",
        {"transformer": with_arguments(blocks_averaged)},
        ("transformer.the_order_of_the_blocks_matters", "transformer.blocks_act_from_first_to_last"),
    ),
    Fault(
        "only_the_last_block",
        {"transformer": with_arguments(only_the_last_block)},
        ("transformer.blocks_act_from_first_to_last", "transformer.every_parameter_matters"),
    ),
    Fault(
        "dropout_without_keep_masks",
        {"transformer": dropout_always},
        ("transformer.without_keep_masks_nothing_is_dropped",),
    ),
    Fault(
        "positions_never_dropped",
        {"transformer": with_options(positions_never_dropped)},
        (
            "transformer.dropout_acts_on_the_sum_of_embedding_and_position",
            "transformer.every_keep_mask_matters",
        ),
    ),
    Fault(
        "one_blocks_masks_for_all",
        {"transformer": with_options(the_masks_of_the_first_block)},
        ("transformer.every_keep_mask_matters",),
    ),
    Fault(
        "context_not_cropped",
        {"transformer": any_length},
        ("transformer.a_sequence_longer_than_max_len_is_refused",),
    ),
    Fault(
        "max_len_off_by_one",
        {"transformer": one_token_too_strict},
        ("transformer.a_sequence_of_max_len_is_accepted",),
    ),
    Fault(
        "ids_wrap",
        {"transformer": with_arguments(ids_wrap)},
        ("transformer.an_id_outside_the_vocab_is_refused",),
    ),
    Fault(
        "missing_parameters_are_zero_in_a_model",
        {"transformer": missing_is_zero},
        ("transformer.a_missing_parameter_is_refused",),
    ),
    Fault(
        "param_count_without_attention_bias",
        {"parameter_count": counting(lambda c: replace(c, attention_bias=False))},
        ("parameter_count.is_the_sum_of_the_sizes", "parameter_count.is_a_formula_of_the_sizes"),
    ),
    Fault(
        "param_count_of_one_block",
        {"parameter_count": lambda c: parameter_count(replace(c, n_layers=min(c.n_layers, 1)))},
        ("parameter_count.every_block_counts_the_same",),
    ),
    Fault("param_count_by_building", {"parameter_count": by_building}, ("parameter_count.counts_without_building",)),
]
"""Each names the properties that must catch it."""
