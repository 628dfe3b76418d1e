"""Wrong attention."""

import math

import numpy as np

from reference.numpy import (
    attention_weights,
    causal_mask,
    multi_head_attention,
    scaled_dot_product_attention,
    scaled_dot_product_attention_vjp,
    self_attention,
    softmax,
)
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.attention import (
    PITFALLS,
    attention_of,
    heads_of,
    heads_vjp_of,
    masked_and_divided_again,
    merge,
    merge_without_transpose,
    no_maximum_subtracted,
    one_head_vjp_of,
    onto,
    plain_mask,
    plain_scores,
    quietly,
    weights_of,
)
from spec_tests.pitfalls.pitfall import right_functions


def _fault(function_name, name, function, *fails):
    component = function_name.removesuffix("_vjp")
    return Fault(f"{function_name} {name}", {function_name: function}, tuple(f"{component}.{fail}" for fail in fails))


def _of(pitfall):
    """Give the functions of a pitfall."""
    return next(p for p in PITFALLS if p.id == pitfall).on(right_functions())


def _both(weights):
    return {"attention_weights": weights, "scaled_dot_product_attention": attention_of(weights)}


def _weights(**steps):
    return _both(weights_of(**steps))


# ------------------------------------------------------------------------------------------------------------- softmax


def _finite_minus_infinity(scores, *, axis=-1):
    return softmax(np.maximum(scores, -1e4), axis=axis)


def _over_the_first_axis(scores, *, axis=-1):
    return softmax(scores, axis=0)


def _over_the_last_axis(scores, *, axis=-1):
    return softmax(scores)


def _over_all_axes(scores, *, axis=-1):
    return softmax(scores.reshape(-1)).reshape(scores.shape)


def _in_powers_of_2(scores, *, axis=-1):
    return softmax(scores * math.log(2), axis=axis)


def _epsilon_in_the_sum(scores, *, axis=-1):
    return softmax(scores, axis=axis) / (1 + 1e-8)


def _softmax_of_ranks(scores, *, axis=-1):
    return softmax(scores + 0.1 * np.arange(scores.shape[-1]), axis=axis)


def _logarithm(scores, *, axis=-1):
    return np.log(np.maximum(softmax(scores, axis=axis), 1e-300))


def _nan_counts_as_minus_infinity(scores, *, axis=-1):
    return softmax(np.where(np.isnan(scores), -np.inf, scores), axis=axis)


@quietly
def _nan_spreads(scores, *, axis=-1):
    return softmax(scores, axis=axis) + 0 * np.where(np.isfinite(scores), 0, scores).sum(where=np.isnan(scores))


def _needs_a_score(scores, *, axis=-1):
    return softmax(scores - scores.max(axis=axis, keepdims=True), axis=axis)  # of no scores: ValueError


SOFTMAX = [
    _fault(
        "softmax",
        "subtracts no maximum",
        no_maximum_subtracted,
        "shifting_a_row_changes_nothing",
        "huge_scores_put_all_weight_on_the_largest",
        "equal_scores_share_equally",
    ),
    _fault(
        "softmax",
        "gives NaN for a row of -inf",
        _of("softmax.nan_where_all_is_masked")["softmax"],
        "a_row_of_minus_infinity_gives_zeros",
    ),
    _fault(
        "softmax",
        "takes -inf for a finite number",
        _finite_minus_infinity,
        "a_row_of_minus_infinity_gives_zeros",
        "huge_scores_put_all_weight_on_the_largest",
    ),
    _fault("softmax", "runs over the first axis", _over_the_first_axis, "rows_sum_to_1", "each_row_stands_for_itself"),
    _fault(
        "softmax",
        "ignores axis",
        _over_the_last_axis,
        "another_axis_can_be_the_row",
        "an_axis_that_is_not_there_raises",
    ),
    _fault(
        "softmax",
        "runs over all axes",
        _over_all_axes,
        "rows_sum_to_1",
        "equal_scores_share_equally",
        "each_row_stands_for_itself",
        "nan_spoils_its_own_row_only",
    ),
    _fault(
        "softmax",
        "takes powers of 2",
        _in_powers_of_2,
        "the_ratio_of_two_weights_is_the_exponential_of_the_difference_of_their_scores",
    ),
    _fault(
        "softmax",
        "adds an epsilon to the sum",
        _epsilon_in_the_sum,
        "rows_sum_to_1",
        "a_score_of_minus_infinity_has_weight_0",
    ),
    _fault("softmax", "prefers later places", _softmax_of_ranks, "permuting_scores_permutes_weights"),
    _fault(
        "softmax", "gives logarithms", _logarithm, "weights_are_not_negative", "a_score_of_minus_infinity_has_weight_0"
    ),
    _fault("softmax", "takes NaN for -inf", _nan_counts_as_minus_infinity, "nan_spoils_its_own_row_only"),
    _fault("softmax", "spreads NaN", _nan_spreads, "nan_spoils_its_own_row_only"),
    _fault("softmax", "needs a score", _needs_a_score, "an_empty_row_gives_an_empty_row"),
]

# -------------------------------------------------------------------------------------------------------- causal_mask


def _true_means_hidden(q_seq, k_seq=None):
    return ~causal_mask(q_seq, k_seq)


def _sees_the_first_key_at_least(q_seq, k_seq=None):
    allowed = causal_mask(q_seq, k_seq)
    allowed[:, :1] = True
    return allowed


def _lengths_clamped(q_seq, k_seq=None):
    return causal_mask(max(q_seq, 0), None if k_seq is None else max(k_seq, 0))


def _one_key_at_least(q_seq, k_seq=None):
    return causal_mask(max(q_seq, 1), None if k_seq is None else max(k_seq, 1))


CAUSAL_MASK = [
    _fault(
        "causal_mask",
        "is aligned to the first key",
        _of("causal_mask.aligned_to_the_first_key")["causal_mask"],
        "fewer_queries_than_keys_are_the_last_ones",
        "queries_before_the_first_key_see_none",
    ),
    _fault(
        "causal_mask",
        "excludes the token itself",
        _of("causal_mask.without_itself")["causal_mask"],
        "a_query_sees_the_keys_up_to_its_own_place",
    ),
    _fault(
        "causal_mask",
        "says True for hidden",
        _true_means_hidden,
        "a_query_sees_the_keys_up_to_its_own_place",
        "fewer_queries_than_keys_are_the_last_ones",
    ),
    _fault(
        "causal_mask",
        "always shows the first key",
        _sees_the_first_key_at_least,
        "queries_before_the_first_key_see_none",
    ),
    _fault("causal_mask", "clamps lengths", _lengths_clamped, "a_length_below_0_raises"),
    _fault("causal_mask", "has a key at least", _one_key_at_least, "a_mask_without_queries_or_keys_is_empty"),
]

# ----------------------------------------------------------------------------------- attention, one step at a time


def _keys_of_the_first_sequence(q, k, scale):
    return plain_scores(q, np.broadcast_to(k[:1], k.shape) if k.ndim > 2 else k, scale)


def _distance(q, k, scale):
    return -((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(axis=-1) / 2 / math.sqrt(q.shape[-1])


def _biased_by_place(q, k, scale):
    return plain_scores(q, k, scale) - 0.1 * np.arange(k.shape[-2])


def _key_norm(q, k, scale):
    return plain_scores(q, k / (1 + np.linalg.norm(k, axis=-1, keepdims=True)), scale)


def _scores_capped(q, k, scale):
    return 50 * np.tanh(plain_scores(q, k, scale) / 50)


def _nan_hidden(q, k, scale):
    return plain_scores(np.nan_to_num(q), k, scale)


def _mask_of_the_first_sequence(scores, mask, causal):
    return plain_mask(scores, mask if mask is None or mask.ndim < 3 else mask[:1], causal)


def _mask_must_be_whole(scores, mask, causal):
    if mask is not None and mask.shape != scores.shape:
        raise ValueError("the mask must have the shape of the scores")
    return plain_mask(scores, mask, causal)


@quietly
def _equal_for_nothing(scores):
    nothing = (scores == -np.inf).all(axis=-1, keepdims=True)
    return softmax(np.where(nothing, 0.0, scores))


def _scaled_after(scores):
    return softmax(scores) / math.sqrt(2)


def _signed(scores):
    return 2 * softmax(scores) - softmax(-scores)


def _batch_enlarged(q, k, *, mask=None, bias=None, causal=False, scale=None):
    scores = plain_mask(plain_scores(q, k, scale), None, causal)
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf))


def _bias_scaled(q, k, *, mask=None, bias=None, causal=False, scale=None):
    bias = None if bias is None else np.where(np.isfinite(bias), bias / math.sqrt(2), bias)
    return attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale)


def _bias_ignored(q, k, *, mask=None, bias=None, causal=False, scale=None):
    return attention_weights(q, k, mask=mask, causal=causal, scale=scale)


def _bias_multiplies(q, k, *, mask=None, bias=None, causal=False, scale=None):
    weights = attention_weights(q, k, mask=mask, causal=causal, scale=scale)
    return weights if bias is None else weights * np.exp(np.maximum(bias, -700.0))


def _needs_a_key(q, k, *, mask=None, bias=None, causal=False, scale=None):
    weights = weights_of()(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
    return weights - 0 * weights.max(axis=-1, keepdims=True)  # of no keys: ValueError


# Each wrong step, and what it breaks in the weights and in attention alike: (name, weights, fails, fails).
STEPS = [
    (
        "is not scaled",
        _of("scaled_dot_product_attention.unscaled"),
        ("a_key_weighs_the_exponential_of_its_scaled_dot_product", "doubling_d_k_scales_the_scores_by_root_2"),
        ("repeated_queries_and_keys_score_root_2_times_as_much",),
    ),
    (
        "is scaled by the root of d_k instead of its inverse",
        _of("scaled_dot_product_attention.divided_by_the_scale"),
        ("a_key_weighs_the_exponential_of_its_scaled_dot_product", "doubling_d_k_scales_the_scores_by_root_2"),
        ("repeated_queries_and_keys_score_root_2_times_as_much",),
    ),
    (
        "is scaled twice",
        _of("scaled_dot_product_attention.scaled_twice"),
        (
            "a_key_weighs_the_exponential_of_its_scaled_dot_product",
            "doubling_d_k_scales_the_scores_by_root_2",
            "scale_takes_the_place_of_the_root_of_d_k",
        ),
        ("repeated_queries_and_keys_score_root_2_times_as_much", "options_mean_what_they_mean_for_the_weights"),
    ),
    (
        "ignores scale",
        _of("scaled_dot_product_attention.scale_never_used"),
        ("scale_takes_the_place_of_the_root_of_d_k",),
        ("options_mean_what_they_mean_for_the_weights", "a_scale_does_what_larger_queries_do"),
    ),
    (
        "asks the first sequence's keys",
        _weights(scores=_keys_of_the_first_sequence),
        ("sequences_of_a_batch_do_not_mix",),
        ("a_sequence_gets_the_same_answers_alone", "the_output_is_the_weighted_mean_of_the_values"),
    ),
    (
        "measures distances",
        _weights(scores=_distance),
        ("moving_all_keys_alike_changes_nothing", "a_query_of_zeros_attends_equally_to_every_key"),
        (
            "one_vector_added_to_every_key_changes_no_output",
            "a_query_of_zeros_gets_the_mean_of_the_values_it_may_see",
        ),
    ),
    (
        "prefers earlier keys",
        _weights(scores=_biased_by_place),
        (
            "permuting_keys_permutes_weights",
            "a_query_of_zeros_attends_equally_to_every_key",
            "a_masked_key_might_as_well_be_absent",
        ),
        (
            "shuffling_keys_with_their_values_changes_nothing",
            "a_query_of_zeros_gets_the_mean_of_the_values_it_may_see",
        ),
    ),
    (
        "shortens long keys",
        _weights(scores=_key_norm),
        ("moving_all_keys_alike_changes_nothing",),
        ("one_vector_added_to_every_key_changes_no_output",),
    ),
    (
        "caps its scores",
        _weights(scores=_scores_capped),
        (
            "large_scores_leave_nothing_to_any_but_the_best_key",
            "a_key_weighs_the_exponential_of_its_scaled_dot_product",
        ),
        ("one_vector_added_to_every_key_changes_no_output",),
    ),
    ("hides NaN", _weights(scores=_nan_hidden), ("nan_in_a_query_spoils_its_own_weights_only",), ()),
    (
        "takes True for hidden",
        _of("scaled_dot_product_attention.mask_inverted"),
        (
            "a_masked_key_has_weight_0_whatever_its_score",
            "a_masked_key_might_as_well_be_absent",
            "a_mask_of_true_is_no_mask",
            "a_bias_of_minus_infinity_is_a_mask",
        ),
        ("a_value_reaches_exactly_the_queries_that_may_attend_to_it", "a_mask_of_nothing_but_true_changes_nothing"),
    ),
    (
        "adds the mask to the scores",
        _of("scaled_dot_product_attention.mask_added_to_the_scores"),
        ("a_masked_key_has_weight_0_whatever_its_score", "a_fully_masked_query_has_weights_0"),
        (
            "a_value_reaches_exactly_the_queries_that_may_attend_to_it",
            "a_masked_key_has_no_influence_at_scores_of_1e5",
            "a_query_with_nothing_to_attend_to_gets_zeros",
        ),
    ),
    (
        "forgets the mask",
        _of("scaled_dot_product_attention.mask_without_effect"),
        ("a_masked_key_has_weight_0_whatever_its_score", "a_masked_key_may_be_nan"),
        ("a_masked_key_has_no_influence_at_scores_of_1e5", "a_masked_key_and_its_value_may_be_nan"),
    ),
    (
        "fills with a number that scores can reach",
        _of("scaled_dot_product_attention.fill_that_scores_can_reach"),
        ("a_masked_key_has_weight_0_whatever_its_score", "a_fully_masked_query_has_weights_0"),
        (
            "a_query_with_nothing_to_attend_to_gets_zeros",
            "causal_queries_before_the_first_key_get_zeros",
            "a_masked_key_has_no_influence_where_all_visible_scores_are_minus_20000",
        ),
    ),
    (
        "lets a mask replace causal",
        _of("scaled_dot_product_attention.mask_replaces_causal"),
        ("mask_and_causal_both_restrict",),
        ("options_mean_what_they_mean_for_the_weights", "a_key_is_hidden_by_the_mask_or_by_its_place"),
    ),
    (
        "lets causal replace a mask",
        _of("scaled_dot_product_attention.causal_replaces_mask"),
        ("mask_and_causal_both_restrict",),
        ("options_mean_what_they_mean_for_the_weights", "a_key_is_hidden_by_the_mask_or_by_its_place"),
    ),
    (
        "shows what mask or causal allows",
        _of("scaled_dot_product_attention.mask_or_causal"),
        ("mask_and_causal_both_restrict",),
        ("options_mean_what_they_mean_for_the_weights", "a_key_is_hidden_by_the_mask_or_by_its_place"),
    ),
    (
        "aligns causal to the first key",
        _of("causal_mask.aligned_to_the_first_key"),
        (
            "a_causal_query_weighs_exactly_the_keys_up_to_its_place",
            "causal_queries_before_the_first_key_have_weights_0",
        ),
        (
            "a_causal_query_sees_exactly_the_keys_up_to_its_place",
            "causal_queries_before_the_first_key_get_zeros",
            "the_last_queries_alone_get_the_end_of_the_causal_result",
        ),
    ),
    (
        "hides a causal query from itself",
        _of("causal_mask.without_itself"),
        ("a_causal_query_weighs_exactly_the_keys_up_to_its_place",),
        ("a_causal_query_sees_exactly_the_keys_up_to_its_place",),
    ),
    (
        "forgets causal",
        _of("scaled_dot_product_attention.never_causal"),
        ("a_causal_query_weighs_exactly_the_keys_up_to_its_place",),
        ("later_keys_and_values_leave_earlier_causal_outputs_unchanged",),
    ),
    (
        "uses the first sequence's mask for all",
        _weights(masked=_mask_of_the_first_sequence),
        ("one_mask_serves_a_whole_batch", "a_masked_key_has_weight_0_whatever_its_score"),
        ("a_value_reaches_exactly_the_queries_that_may_attend_to_it",),
    ),
    (
        "wants a mask for each sequence",
        _weights(masked=_mask_must_be_whole),
        ("one_mask_serves_a_whole_batch",),
        (),
    ),
    (
        "gives NaN where there is nothing to attend to",
        _of("softmax.nan_where_all_is_masked"),
        (
            "a_fully_masked_query_has_weights_0",
            "causal_queries_before_the_first_key_have_weights_0",
        ),
        (
            "a_query_with_nothing_to_attend_to_gets_zeros",
            "a_fully_masked_query_does_not_look_at_any_value",
            "causal_queries_before_the_first_key_get_zeros",
        ),
    ),
    (
        "spreads evenly where there is nothing to attend to",
        _weights(normalised=_equal_for_nothing),
        ("a_fully_masked_query_has_weights_0", "causal_queries_before_the_first_key_have_weights_0"),
        ("a_query_with_nothing_to_attend_to_gets_zeros", "causal_queries_before_the_first_key_get_zeros"),
    ),
    (
        "takes the softmax over queries",
        _of("scaled_dot_product_attention.softmax_over_queries"),
        ("a_querys_weights_are_positive_and_sum_to_1", "each_query_asks_for_itself"),
        (
            "constant_values_come_back",
            "outputs_stay_between_the_least_and_the_largest_value",
            "a_query_gets_the_same_answer_alone",
            "a_single_key_leaves_no_choice",
        ),
    ),
    (
        "scales after the softmax",
        _weights(normalised=_scaled_after),
        ("a_querys_weights_are_positive_and_sum_to_1",),
        ("constant_values_come_back", "a_single_key_leaves_no_choice"),
    ),
    (
        "masks after the softmax without dividing again",
        _of("scaled_dot_product_attention.masked_after_the_softmax"),
        ("a_masked_key_has_weight_0_whatever_its_score", "a_bias_of_minus_infinity_is_a_mask"),
        (
            "a_query_of_zeros_gets_the_mean_of_the_values_it_may_see",
            "a_masked_key_has_no_influence_at_scores_of_1e5",
        ),
    ),
    (
        "gives negative weights",
        _weights(normalised=_signed),
        ("a_querys_weights_are_positive_and_sum_to_1",),
        ("outputs_stay_between_the_least_and_the_largest_value",),
    ),
    (
        "subtracts no maximum",
        _of("softmax.no_maximum_subtracted"),
        (
            "scores_of_ten_thousand_and_more_do_not_overflow",
            "large_scores_leave_nothing_to_any_but_the_best_key",
            "a_bias_that_is_the_same_for_all_keys_changes_nothing",
        ),
        ("outputs_are_finite_at_scores_of_ten_thousand_and_more",),
    ),
    ("lets a mask enlarge the batch", _both(_batch_enlarged), ("a_mask_must_not_enlarge_the_batch",), ()),
    (
        "scales the bias",
        _both(_bias_scaled),
        ("a_bias_is_added_to_the_scaled_scores",),
        ("options_mean_what_they_mean_for_the_weights",),
    ),
    (
        "ignores the bias",
        _both(_bias_ignored),
        ("a_bias_is_added_to_the_scaled_scores", "a_bias_of_minus_infinity_is_a_mask"),
        ("options_mean_what_they_mean_for_the_weights",),
    ),
    (
        "multiplies by the bias after the softmax",
        _both(_bias_multiplies),
        ("a_bias_that_is_the_same_for_all_keys_changes_nothing",),
        ("options_mean_what_they_mean_for_the_weights",),
    ),
    (
        "needs a key",
        _both(_needs_a_key),
        ("without_keys_there_are_no_weights",),
        ("without_keys_every_query_gets_zeros",),
    ),
    (
        "masks after the softmax",
        _both(masked_and_divided_again),
        ("a_masked_key_may_be_nan",),
        ("a_masked_key_has_no_influence_at_scores_of_1e5", "a_masked_key_and_its_value_may_be_nan"),
    ),
]

WEIGHTS = [_fault("attention_weights", name, wrong["attention_weights"], *fails) for name, wrong, fails, _ in STEPS]
ATTENTION = [
    _fault("scaled_dot_product_attention", name, wrong["scaled_dot_product_attention"], *fails)
    for name, wrong, _, fails in STEPS
    if fails
]


def _values_reversed(q, k, v, **options):
    return np.flip(attention_weights(q, k, **options), axis=-1) @ v


def _square_of_the_values(q, k, v, **options):
    return scaled_dot_product_attention(q, k, v * np.abs(v), **options)


def _zero_times_nan(q, k, v, **options):
    with np.errstate(invalid="ignore"):
        return attention_weights(q, k, **options) @ v


def _values_cleaned(q, k, v, **options):
    return scaled_dot_product_attention(q, k, np.nan_to_num(v), **options)


ATTENTION += [
    _fault(
        "scaled_dot_product_attention",
        "takes the values in another order",
        _values_reversed,
        "the_output_is_the_weighted_mean_of_the_values",
        "shuffling_keys_with_their_values_changes_nothing",
        "later_keys_and_values_leave_earlier_causal_outputs_unchanged",
    ),
    _fault(
        "scaled_dot_product_attention",
        "does not read strides",
        _of("scaled_dot_product_attention.strides_not_read")["scaled_dot_product_attention"],
        "where_the_numbers_lie_in_memory_has_no_meaning",
    ),
    _fault(
        "scaled_dot_product_attention",
        "squares the values",
        _square_of_the_values,
        "the_output_is_linear_in_the_values",
        "constant_values_come_back",
    ),
    _fault(
        "scaled_dot_product_attention",
        "multiplies hidden NaN by 0",
        _zero_times_nan,
        "a_masked_key_and_its_value_may_be_nan",
        "a_nan_value_reaches_the_queries_that_may_attend_to_it_and_no_others",
        "a_fully_masked_query_does_not_look_at_any_value",
    ),
    _fault(
        "scaled_dot_product_attention",
        "makes 0 of NaN",
        _values_cleaned,
        "a_nan_value_reaches_the_queries_that_may_attend_to_it_and_no_others",
    ),
]

# ------------------------------------------------------------------------------------------------------ self_attention


def _keys_ask_queries(x, w_q, w_k, w_v, **options):
    return self_attention(x, w_k, w_q, w_v, **options)


def _one_projection_for_keys_and_queries(x, w_q, w_k, w_v, **options):
    return self_attention(x, w_q, w_q, w_v, **options)


def _mean_of_the_tokens(x, w_q, w_k, w_v, **options):
    out = self_attention(x, w_q, w_k, w_v, **options)
    return np.broadcast_to(out.mean(axis=-2, keepdims=True), out.shape)


def _batch_of_the_first(x, w_q, w_k, w_v, **options):
    return self_attention(np.broadcast_to(x[:1], x.shape) if x.ndim > 2 else x, w_q, w_k, w_v, **options)


def _self_attention_of(name, function, *fails):
    return _fault("self_attention", name, function, *fails)


SELF_ATTENTION = [
    _self_attention_of(
        "exchanges queries and keys", _keys_ask_queries, "it_is_attention_between_projections_of_the_same_tokens"
    ),
    _self_attention_of(
        "projects keys as queries",
        _one_projection_for_keys_and_queries,
        "it_is_attention_between_projections_of_the_same_tokens",
    ),
    _self_attention_of(
        "is scaled by d_model",
        _of("multi_head_attention.scaled_by_d_model")["self_attention"],
        "it_is_attention_between_projections_of_the_same_tokens",
        "channels_that_no_projection_reads_change_nothing",
    ),
    *(
        _self_attention_of(name, _of(pitfall)["self_attention"], fail)
        for name, pitfall, fail in (
            (
                "is not scaled",
                "scaled_dot_product_attention.unscaled",
                "repeated_projections_score_root_2_times_as_much",
            ),
            (
                "subtracts no maximum",
                "softmax.no_maximum_subtracted",
                "tokens_that_are_alike_keep_their_value_at_scores_of_20000",
            ),
            (
                "fills with a number that scores can reach",
                "scaled_dot_product_attention.fill_that_scores_can_reach",
                "hidden_tokens_have_no_part_where_all_visible_scores_are_minus_20000",
            ),
        )
    ),
    _self_attention_of(
        "is causal by accident",
        _of("self_attention.causal_by_accident")["self_attention"],
        "permuting_tokens_permutes_outputs",
        "symmetric_pooling_does_not_see_the_order",
    ),
    _self_attention_of(
        "is never causal",
        _of("scaled_dot_product_attention.never_causal")["self_attention"],
        "with_a_causal_mask_the_order_matters",
        "a_later_token_leaves_earlier_causal_outputs_unchanged",
        "a_mask_and_causal_both_restrict_a_token",
    ),
    _self_attention_of(
        "masks queries instead of keys",
        _of("self_attention.mask_of_queries")["self_attention"],
        "a_masked_token_might_as_well_be_absent",
        "a_token_that_may_see_nothing_gets_zeros",
    ),
    _self_attention_of(
        "lets a mask replace causal",
        _of("scaled_dot_product_attention.mask_replaces_causal")["self_attention"],
        "a_mask_and_causal_both_restrict_a_token",
    ),
    _self_attention_of(
        "gives every token the mean of all",
        _mean_of_the_tokens,
        "with_positions_the_order_matters",
        "it_is_attention_between_projections_of_the_same_tokens",
    ),
    _self_attention_of(
        "attends to the first sequence of the batch", _batch_of_the_first, "a_sequence_attends_to_itself_only"
    ),
]

# ------------------------------------------------------------------------------------------------ multi_head_attention


def _columns_interleaved(x, n_heads):
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // n_heads, n_heads), -1, -3)


def _narrower_heads(x, n_heads):
    d = x.shape[-1] // max(n_heads, 1)
    return np.stack([x[..., h * d : (h + 1) * d] for h in range(max(n_heads, 1))], axis=-3)


def _first_head_masked_only(q, k, v, *, mask=None, causal=False):
    if mask is not None:
        mask = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2])).copy()
        mask[..., 1:, :, :] = True
    return scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)


def _with_places(q, k, v, *, mask=None, causal=False):
    place = np.broadcast_to(-0.1 * np.arange(k.shape[-2]), (*q.shape[:-1], k.shape[-2]))
    return scaled_dot_product_attention(q, k, v, mask=mask, bias=place, causal=causal)


def _mask_spread_over_values(q, k, v, *, mask=None, causal=False):
    v = v if mask is None else v + np.broadcast_to(~mask.any(axis=-1).any(axis=-1), v.shape[:-2])[..., None, None]
    out = scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)
    return out if mask is None else np.where(mask.any(axis=-1, keepdims=True), out, v.mean(axis=-2, keepdims=True))


def _mean_removed_keys(q, k, v, *, mask=None, causal=False):
    k = k / (1 + np.linalg.norm(k, axis=-1, keepdims=True))
    return scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)


def _options_changed(change):
    """Make multi-head attention that is given other arguments than it should be."""

    def attention(x, w_q, w_k, w_v, w_o, **options):
        return multi_head_attention(x, *change(x, w_q, w_k, w_v, w_o, options), **options)

    return attention


def _without(*names):
    def change(x, w_q, w_k, w_v, w_o, options):
        for name in names:
            options.pop(name, None)
        return w_q, w_k, w_v, w_o

    return _options_changed(change)


def _output_bias_before_projection(x, w_q, w_k, w_v, w_o, *, b_o=None, **options):
    out = multi_head_attention(x, w_q, w_k, w_v, w_o, **options)
    return out if b_o is None else out + b_o * np.abs(w_o).sum()


def _queries_from_the_context(x, w_q, w_k, w_v, w_o, *, context=None, **options):
    if context is None:
        return multi_head_attention(x, w_q, w_k, w_v, w_o, **options)
    mean = context.mean(axis=-2, keepdims=True)
    return multi_head_attention(x + mean, w_q, w_k, w_v, w_o, context=context, **options)


def _values_from_x(x, w_q, w_k, w_v, w_o, *, context=None, **options):
    if context is None:
        return multi_head_attention(x, w_q, w_k, w_v, w_o, **options)
    mean = x.mean(axis=-2, keepdims=True)
    return multi_head_attention(x, w_q, w_k, w_v, w_o, context=0.5 * context + 0.5 * mean, **options)


def _context_of_the_first(x, w_q, w_k, w_v, w_o, *, context=None, **options):
    context = x if context is None else context
    context = np.broadcast_to(context[:1], context.shape) if x.ndim > 2 else context
    return multi_head_attention(x, w_q, w_k, w_v, w_o, context=context, **options)


def _as_wide_as_the_stream(x, w_q, w_k, w_v, w_o, *, n_heads, **options):
    if w_v.shape[0] != w_v.shape[1]:
        raise ValueError("the heads must be as wide as the stream")
    return multi_head_attention(x, w_q, w_k, w_v, w_o, n_heads=n_heads, **options)


def _output_projection_transposed(x, w_q, w_k, w_v, w_o, **options):
    w_o = w_o if w_o is None else (w_o.T if w_o.shape[0] == w_o.shape[1] else w_o[::-1])
    return multi_head_attention(x, w_q, w_k, w_v, w_o, **options)


def _of_many_heads(name, function, *fails):
    return _fault("multi_head_attention", name, function, *fails)


MULTI_HEAD = [
    _of_many_heads(
        "splits heads without a transpose",
        _of("multi_head_attention.split_without_transpose")["multi_head_attention"],
        "a_head_reads_its_own_columns",
        "tokens_permuted_give_outputs_permuted",
        "later_tokens_leave_earlier_causal_outputs_unchanged",
    ),
    _of_many_heads(
        "merges heads without a transpose",
        _of("multi_head_attention.merged_without_transpose")["multi_head_attention"],
        "a_head_reads_its_own_columns",
        "tokens_permuted_give_outputs_permuted",
        "the_order_of_the_heads_has_no_meaning",
        "from_a_context_of_equal_tokens_every_query_gets_their_value",
    ),
    _of_many_heads(
        "deals columns to the heads in turn",
        heads_of(split=_columns_interleaved),
        "a_head_reads_its_own_columns",
        "the_order_of_the_heads_has_no_meaning",
    ),
    _of_many_heads(
        "lets all heads read the first one's columns",
        _of("multi_head_attention.all_heads_read_the_first")["multi_head_attention"],
        "a_head_reads_its_own_columns",
        "each_head_matters",
        "the_order_of_the_heads_has_no_meaning",
    ),
    _of_many_heads(
        "leaves out the columns that are too many",
        heads_of(split=_narrower_heads),
        "heads_that_do_not_divide_the_width_raise",
    ),
    _of_many_heads(
        "takes the softmax over all heads together",
        _of("multi_head_attention.softmax_over_all_heads")["multi_head_attention"],
        "a_head_reads_its_own_columns",
        "a_value_bias_is_what_every_mean_contains",
        "from_a_context_of_equal_tokens_every_query_gets_their_value",
    ),
    _of_many_heads(
        "masks the first head only",
        heads_of(attend=_first_head_masked_only),
        "a_mask_applies_to_every_head",
        "padding_of_the_context_is_masked_away",
    ),
    _of_many_heads(
        "is scaled by the width of all heads",
        _of("multi_head_attention.scaled_by_d_model")["multi_head_attention"],
        "a_head_reads_its_own_columns",
        "channels_that_no_head_reads_change_nothing",
    ),
    *(
        _of_many_heads(name, _of(pitfall)["multi_head_attention"], fail)
        for name, pitfall, fail in (
            (
                "is not scaled",
                "scaled_dot_product_attention.unscaled",
                "heads_repeated_within_score_root_2_times_as_much",
            ),
            (
                "subtracts no maximum",
                "softmax.no_maximum_subtracted",
                "tokens_that_are_alike_keep_their_values_at_scores_of_20000_in_every_head",
            ),
            (
                "fills with a number that scores can reach",
                "scaled_dot_product_attention.fill_that_scores_can_reach",
                "hidden_tokens_have_no_part_in_any_head_where_all_visible_scores_are_minus_20000",
            ),
            (
                "hides a causal token from itself",
                "causal_mask.without_itself",
                "the_first_causal_token_gets_its_own_value",
            ),
        )
    ),
    _of_many_heads(
        "lets causal replace a mask",
        _of("scaled_dot_product_attention.causal_replaces_mask")["multi_head_attention"],
        "a_mask_comes_on_top_of_causal",
    ),
    _of_many_heads(
        "aligns causal to the first key",
        _of("causal_mask.aligned_to_the_first_key")["multi_head_attention"],
        "the_last_queries_see_the_whole_causal_context",
    ),
    _of_many_heads(
        "forgets causal",
        _of("scaled_dot_product_attention.never_causal")["multi_head_attention"],
        "later_tokens_leave_earlier_causal_outputs_unchanged",
        "a_mask_comes_on_top_of_causal",
    ),
    _of_many_heads(
        "prefers earlier keys",
        heads_of(attend=_with_places),
        "tokens_permuted_give_outputs_permuted",
        "the_order_of_the_context_has_no_meaning",
        "one_head_alone_is_self_attention",
    ),
    _of_many_heads(
        "shortens long keys",
        heads_of(attend=_mean_removed_keys),
        "a_key_bias_changes_nothing",
        "one_head_alone_is_self_attention",
    ),
    _of_many_heads(
        "gives the mean value where there is nothing to attend to",
        heads_of(attend=_mask_spread_over_values),
        "a_query_with_nothing_to_attend_to_gets_the_output_bias_alone",
    ),
    _of_many_heads(
        "lays the batch of masks on the heads",
        _of("multi_head_attention.masks_of_the_batch_on_the_heads")["multi_head_attention"],
        "a_mask_of_a_batch_as_large_as_the_heads_belongs_to_the_batch",
        "a_mask_applies_to_every_head",
        "one_mask_serves_every_sequence",
    ),
    _of_many_heads(
        "ignores the biases of the projections",
        _without("b_q", "b_k", "b_v"),
        "biases_are_weights_of_a_constant_channel",
        "a_value_bias_is_what_every_mean_contains",
    ),
    _of_many_heads(
        "adds b_o more than once",
        _output_bias_before_projection,
        "an_output_bias_is_added_at_the_end",
        "a_query_with_nothing_to_attend_to_gets_the_output_bias_alone",
    ),
    _of_many_heads("ignores b_o", _without("b_o"), "an_output_bias_is_added_at_the_end"),
    _of_many_heads(
        "mixes the context into the queries",
        _queries_from_the_context,
        "queries_come_from_x_and_keys_and_values_from_the_context",
        "x_as_its_own_context_is_self_attention",
        "padding_of_the_context_is_masked_away",
    ),
    _of_many_heads(
        "mixes x into the values",
        _values_from_x,
        "queries_come_from_x_and_keys_and_values_from_the_context",
        "x_as_its_own_context_is_self_attention",
        "from_a_context_of_equal_tokens_every_query_gets_their_value",
    ),
    _of_many_heads(
        "attends to the first sequence of the batch",
        _context_of_the_first,
        "a_sequence_has_the_same_outputs_alone_as_in_a_batch",
    ),
    _of_many_heads(
        "wants heads as wide as the stream",
        _as_wide_as_the_stream,
        "heads_may_be_narrower_or_wider_than_the_stream",
    ),
    _of_many_heads(
        "turns the output projection round",
        _output_projection_transposed,
        "the_output_projection_mixes_the_heads",
        "the_order_of_the_heads_has_no_meaning",
    ),
]

# ----------------------------------------------------------------------------------------------- gradients of softmax


def _softmax_vjp(*, weights=softmax, gradient):
    """Make a gradient of softmax of its weights and a formula for the rows that `axis` says."""

    @quietly
    def vjp(cotangent, scores, *, axis=-1):
        return (gradient(weights(scores, axis=axis), cotangent, axis),)

    return vjp


def _right_rows(w, cotangent, axis):
    return w * (cotangent - (w * cotangent).sum(axis=axis, keepdims=True))


SOFTMAX_GRADIENT = [
    _fault(
        "softmax_vjp",
        "forgets what the sum passes back",
        _softmax_vjp(gradient=lambda w, cotangent, axis: w * cotangent),
        "the_gradient_of_a_row_sums_to_0",
        "the_gradient_does_not_see_a_constant_in_the_cotangent",
        "the_gradient_of_one_weight_is_its_share_of_the_row",
    ),
    _fault(
        "softmax_vjp",
        "forgets the weight in front",
        _softmax_vjp(gradient=lambda w, cotangent, axis: cotangent - (w * cotangent).sum(axis=axis, keepdims=True)),
        "the_gradient_of_a_row_sums_to_0",
        "the_gradient_is_symmetric",
        "a_score_of_minus_infinity_has_gradient_0",
        "at_huge_scores_the_gradient_acts_between_the_largest_only",
    ),
    _fault(
        "softmax_vjp",
        "takes the plain mean from the cotangent",
        _softmax_vjp(gradient=lambda w, cotangent, axis: w * (cotangent - cotangent.mean(axis=axis, keepdims=True))),
        "the_gradient_of_a_row_sums_to_0",
        "the_gradient_is_symmetric",
    ),
    _fault(
        "softmax_vjp",
        "is that of the logarithm",
        _softmax_vjp(gradient=lambda w, cotangent, axis: cotangent - w * cotangent.sum(axis=axis, keepdims=True)),
        "the_gradient_is_symmetric",
        "the_gradient_does_not_see_a_constant_in_the_cotangent",
    ),
    _fault(
        "softmax_vjp",
        "sums over all rows",
        _softmax_vjp(gradient=lambda w, cotangent, axis: w * (cotangent - (w * cotangent).sum())),
        "a_row_has_the_gradient_that_it_has_alone",
        "the_gradient_of_a_row_sums_to_0",
    ),
    _fault(
        "softmax_vjp",
        "ignores axis",
        _softmax_vjp(gradient=lambda w, cotangent, axis: _right_rows(w, cotangent, -1)),
        "the_gradient_follows_the_axis",
    ),
    _fault(
        "softmax_vjp",
        "subtracts no maximum",
        _softmax_vjp(weights=no_maximum_subtracted, gradient=_right_rows),
        "at_huge_scores_the_gradient_acts_between_the_largest_only",
        "a_score_of_minus_infinity_has_gradient_0",
    ),
]

# ------------------------------------------------------------------------- gradients of attention, one term at a time


def _turned(matrix):
    return matrix.swapaxes(-1, -2)


def _finite(x):
    return np.where(np.isfinite(x), x, 0)


def _of_scores(weights, cotangent):
    return _right_rows(weights, np.where(weights == 0, 0, cotangent), -1)


def _of_query(d_scores, weights, k, scale):
    return scale * d_scores @ _finite(k)


def _of_key(d_scores, weights, q, scale):
    return scale * _turned(d_scores) @ _finite(q)


def _of_bias(d_scores, bias, scale):
    more = d_scores.ndim - bias.ndim
    spread = tuple(range(more)) + tuple(more + axis for axis, size in enumerate(bias.shape) if size == 1)
    return d_scores.sum(axis=spread, keepdims=True).reshape(bias.shape)


def _of_value(weights, cotangent):
    return _turned(weights) @ cotangent


def _into_weights(cotangent, v):
    return cotangent @ _turned(_finite(v))


def _gradients(
    *, weigh=attention_weights, of_scores=_of_scores, of_query=_of_query, of_key=_of_key, of_bias=_of_bias,
    of_value=_of_value, into_weights=_into_weights,
):  # fmt: skip
    """Make the gradients of attention and of its weights, with one wrong term."""

    def of_the_weights(cotangent, weights, q, k, bias, scale):
        scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        d_scores = of_scores(weights, cotangent)
        d_bias = None if bias is None else of_bias(d_scores, bias, scale)
        return of_query(d_scores, weights, k, scale), of_key(d_scores, weights, q, scale), d_bias

    @quietly
    def weights_vjp(cotangent, q, k, *, mask=None, bias=None, causal=False, scale=None):
        weights = weigh(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
        return of_the_weights(cotangent, weights, q, k, bias, scale)

    @quietly
    def attention_vjp(cotangent, q, k, v, *, mask=None, bias=None, causal=False, scale=None):
        weights = weigh(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
        d_q, d_k, d_bias = of_the_weights(into_weights(cotangent, v), weights, q, k, bias, scale)
        return d_q, d_k, of_value(weights, cotangent), d_bias

    return {"attention_weights_vjp": weights_vjp, "scaled_dot_product_attention_vjp": attention_vjp}


def _gradient_fault(name, steps, *fails, only_attention=()):
    """Make one fault of both gradients; `only_attention` are properties of attention alone."""
    components = ("attention_weights", "scaled_dot_product_attention")
    named = [f"{component}.{fail}" for component in components for fail in fails]
    named += [f"scaled_dot_product_attention.{fail}" for fail in only_attention]
    return Fault(f"the gradient of attention {name}", _gradients(**steps), tuple(named))


def _weigh_with(**fixed):
    def weigh(q, k, **options):
        return attention_weights(q, k, **{**options, **fixed})

    return weigh


def _overflowing(q, k, *, mask=None, bias=None, causal=False, scale=None):
    scores = plain_scores(q, k, scale) + (0 if bias is None else bias)
    return no_maximum_subtracted(plain_mask(scores, mask, causal))


def _nan_for_a_masked_query(weights, cotangent):
    nothing = (weights == 0).all(axis=-1, keepdims=True)
    return np.where(nothing, np.nan, _of_scores(weights, cotangent))


def _mean_over_the_batch(d_scores, weights, q, scale):
    d_k = _of_key(d_scores, weights, q, scale)
    batch = tuple(range(d_k.ndim - 2))
    return np.broadcast_to(d_k.mean(axis=batch), d_k.shape)


ATTENTION_GRADIENT = [
    _gradient_fault(
        "forgets what the sum of the softmax passes back",
        {"of_scores": lambda weights, cotangent: weights * cotangent},
        "the_gradients_of_the_keys_sum_to_0",
        "the_gradient_of_a_querys_bias_sums_to_0",
        only_attention=("equal_values_give_queries_and_keys_nothing_to_learn",),
    ),
    _gradient_fault(
        "forgets the softmax",
        {"of_scores": lambda weights, cotangent: cotangent},
        "the_gradients_of_the_keys_sum_to_0",
        "a_bias_behind_the_mask_has_gradient_0",
        "a_hidden_key_has_gradient_0_and_leaves_the_others_theirs",
        "a_causal_cotangent_reaches_no_later_key",
    ),
    _gradient_fault(
        "forgets the scale of queries",
        {"of_query": lambda d_scores, weights, k, scale: d_scores @ k},
        "queries_and_keys_have_the_same_part_in_the_gradient",
        "the_gradient_of_a_score_reaches_query_and_key_times_the_scale",
    ),
    _gradient_fault(
        "forgets the scale of keys",
        {"of_key": lambda d_scores, weights, q, scale: _turned(d_scores) @ q},
        "queries_and_keys_have_the_same_part_in_the_gradient",
        "the_gradient_of_a_score_reaches_query_and_key_times_the_scale",
    ),
    _gradient_fault(
        "forgets the scale of both",
        {
            "of_query": lambda d_scores, weights, k, scale: d_scores @ k,
            "of_key": lambda d_scores, weights, q, scale: _turned(d_scores) @ q,
        },
        "the_gradient_of_a_score_reaches_query_and_key_times_the_scale",
    ),
    _gradient_fault(
        "scales the bias",
        {"of_bias": lambda d_scores, bias, scale: scale * _of_bias(d_scores, bias, scale)},
        "the_gradient_of_a_score_reaches_query_and_key_times_the_scale",
    ),
    _gradient_fault(
        "gives keys the weights for the gradient of the scores",
        {"of_key": lambda d_scores, weights, q, scale: scale * _turned(weights) @ q},
        "the_gradients_of_the_keys_sum_to_0",
        "queries_and_keys_have_the_same_part_in_the_gradient",
    ),
    _gradient_fault(
        "gives queries the weights for the gradient of the scores",
        {"of_query": lambda d_scores, weights, k, scale: scale * weights @ k},
        "queries_and_keys_have_the_same_part_in_the_gradient",
        only_attention=("equal_values_give_queries_and_keys_nothing_to_learn",),
    ),
    _gradient_fault(
        "is not summed over the sequences that share a bias",
        {"of_bias": lambda d_scores, bias, scale: d_scores},
        "a_bias_for_many_sequences_gets_the_sum_of_their_gradients",
    ),
    _gradient_fault(
        "is averaged over the sequences that share a bias",
        {"of_bias": lambda d_scores, bias, scale: _of_bias(d_scores, bias, scale) * bias.size / d_scores.size},
        "a_bias_for_many_sequences_gets_the_sum_of_their_gradients",
    ),
    _gradient_fault(
        "lets NaN through the mask",
        {
            "of_query": lambda d_scores, weights, k, scale: scale * d_scores @ k,
            "of_key": lambda d_scores, weights, q, scale: scale * _turned(d_scores) @ q,
        },
        "a_hidden_key_that_is_nan_changes_no_gradient",
        "a_fully_masked_query_passes_no_gradient_on",
    ),
    _gradient_fault(
        "lets NaN of hidden values through the mask",
        {
            "into_weights": lambda cotangent, v: cotangent @ _turned(v),
            "of_scores": lambda weights, cotangent: _right_rows(weights, cotangent, -1),
        },
        only_attention=("a_hidden_key_that_is_nan_changes_no_gradient",),
    ),
    _gradient_fault(
        "forgets the mask",
        {"weigh": _weigh_with(mask=None)},
        "a_hidden_key_has_gradient_0_and_leaves_the_others_theirs",
        "a_bias_behind_the_mask_has_gradient_0",
        "a_fully_masked_query_passes_no_gradient_on",
    ),
    _gradient_fault("forgets causal", {"weigh": _weigh_with(causal=False)}, "a_causal_cotangent_reaches_no_later_key"),
    _gradient_fault(
        "is NaN for a fully masked query",
        {"of_scores": _nan_for_a_masked_query},
        "a_fully_masked_query_passes_no_gradient_on",
        "a_bias_behind_the_mask_has_gradient_0",
    ),
    _gradient_fault(
        "subtracts no maximum", {"weigh": _overflowing}, "gradients_are_finite_at_scores_of_ten_thousand_and_more"
    ),
    _gradient_fault(
        "is averaged over the batch",
        {"of_key": _mean_over_the_batch},
        "gradients_of_a_sequence_are_those_that_it_has_alone",
    ),
    _gradient_fault(
        "gives values the gradient of the scores for the weights",
        {"of_value": lambda weights, cotangent: _turned(_right_rows(weights, weights, -1)) @ cotangent},
        only_attention=("the_gradient_of_the_values_is_the_weights_transposed",),
    ),
    _gradient_fault(
        "gives every value the same",
        {"of_value": lambda weights, cotangent: 0 * _of_value(weights, cotangent) + cotangent.mean(-2, keepdims=True)},
        only_attention=(
            "the_gradient_of_the_values_is_the_weights_transposed",
            "a_hidden_key_has_gradient_0_and_leaves_the_others_theirs",
            "a_causal_cotangent_reaches_no_later_key",
        ),
    ),
    _gradient_fault(
        "forgets the values on its way to the weights",
        {"into_weights": lambda cotangent, v: cotangent @ np.ones_like(_turned(v)) * v[..., 0].mean()},
        only_attention=("queries_and_keys_learn_through_the_weights",),
    ),
]

# ------------------------------------------------------------------------------------------ gradients of heads


def _attend_vjp_with(**fixed):
    def attend(cotangent, q, k, v, **options):
        return scaled_dot_product_attention_vjp(cotangent, q, k, v, **{**options, **fixed})

    return attend


def _keys_unscaled(cotangent, q, k, v, **options):
    d_q, d_k, d_v, d_bias = scaled_dot_product_attention_vjp(cotangent, q, k, v, **options)
    return d_q, math.sqrt(2) * d_k, d_v, d_bias


def _places_preferred(cotangent, q, k, v, **options):
    d_q, d_k, d_v, d_bias = scaled_dot_product_attention_vjp(cotangent, q, k, v, **options)
    return d_q, d_k, d_v * (1 + np.arange(d_v.shape[-2]))[:, None], d_bias


def _of_the_first_sequence(x, d_y):
    return onto(x[:1], d_y[:1]) if x.ndim > 2 else onto(x, d_y)


def _one_head_gradient(name, function, *fails):
    return _fault("self_attention_vjp", name, function, *fails)


ONE_HEAD_GRADIENT = [
    *(
        _one_head_gradient(
            f"forgets that a token is a {role}",
            one_head_vjp_of(parts="qkv".replace(role[0], "")),
            "a_token_learns_as_query_as_key_and_as_value",
        )
        for role in ("query", "key", "value")
    ),
    _one_head_gradient(
        "forgets the scale of keys",
        one_head_vjp_of(attend=_keys_unscaled),
        "the_two_projections_of_a_score_have_the_same_part",
        "a_token_learns_as_query_as_key_and_as_value",
    ),
    _one_head_gradient(
        "favours later tokens", one_head_vjp_of(attend=_places_preferred), "permuting_tokens_permutes_their_gradients"
    ),
    _one_head_gradient(
        "forgets causal",
        one_head_vjp_of(attend=_attend_vjp_with(causal=False)),
        "a_causal_cotangent_reaches_no_later_token",
    ),
    _one_head_gradient(
        "forgets the mask",
        one_head_vjp_of(attend=_attend_vjp_with(mask=None)),
        "a_masked_token_of_which_nothing_is_asked_has_gradient_0",
        "a_token_that_may_see_nothing_passes_no_gradient_on",
    ),
    _one_head_gradient(
        "gives the projections what the first sequence asks",
        one_head_vjp_of(onto=_of_the_first_sequence),
        "projections_get_the_sum_over_the_sequences",
    ),
]


def _as_the_mean_of_the_heads(heads):
    return merge(np.broadcast_to(heads.mean(axis=-3, keepdims=True), heads.shape))


def _mean_over_the_tokens(d_y):
    return d_y.reshape(-1, d_y.shape[-1]).mean(axis=0)


def _without_what_the_sum_passes_back(cotangent, q, k, v, **options):
    wrong = _gradients(of_scores=lambda weights, d_weights: weights * d_weights)
    return wrong["scaled_dot_product_attention_vjp"](cotangent, q, k, v, **options)


def _with_nan_behind_the_mask(cotangent, q, k, v, **options):
    wrong = _gradients(
        of_query=lambda d_scores, weights, k, scale: scale * d_scores @ k,
        into_weights=lambda d_y, v: d_y @ _turned(v),
    )
    return wrong["scaled_dot_product_attention_vjp"](cotangent, q, k, v, **options)


def _heads_gradient(name, steps, *fails):
    return _fault("multi_head_attention_vjp", name, heads_vjp_of(**steps), *fails)


MULTI_HEAD_GRADIENT = [
    _heads_gradient(
        "forgets the queries' part of x",
        {"parts": "kv"},
        "a_heads_columns_get_the_gradient_of_that_head",
        "x_learns_from_the_queries_and_the_context_from_keys_and_values",
    ),
    _heads_gradient(
        "forgets the keys' part of x or its context",
        {"parts": "qv"},
        "a_heads_columns_get_the_gradient_of_that_head",
        "x_learns_from_the_queries_and_the_context_from_keys_and_values",
    ),
    _heads_gradient(
        "forgets the values' part of x or its context",
        {"parts": "qk"},
        "a_heads_columns_get_the_gradient_of_that_head",
        "x_learns_from_the_queries_and_the_context_from_keys_and_values",
    ),
    _heads_gradient(
        "gives x the queries' part alone",
        {"x_alone": True},
        "without_a_context_x_gets_the_gradients_of_both_its_parts",
    ),
    _heads_gradient(
        "merges heads without a transpose",
        {"merged": merge_without_transpose},
        "a_heads_columns_get_the_gradient_of_that_head",
        "permuting_heads_permutes_their_gradients",
    ),
    _heads_gradient(
        "gives every head the mean of all",
        {"merged": _as_the_mean_of_the_heads},
        "a_heads_columns_get_the_gradient_of_that_head",
    ),
    _heads_gradient(
        "goes through w_o the wrong way",
        {"through": lambda d_y, w_o: d_y @ (w_o if w_o.shape[0] == w_o.shape[1] else w_o[::-1].T)},
        "the_output_projection_hands_the_cotangent_to_the_heads",
        "values_and_output_projection_have_the_same_part",
        "biases_at_the_end_get_the_sum_of_the_cotangent",
    ),
    _heads_gradient(
        "forgets w_o",
        {"forgotten": ("w_o",)},
        "the_output_projection_hands_the_cotangent_to_the_heads",
        "values_and_output_projection_have_the_same_part",
    ),
    *(
        _heads_gradient(
            f"forgets {weights}", {"forgotten": (weights,)}, "a_heads_columns_get_the_gradient_of_that_head"
        )
        for weights in ("w_q", "w_k", "w_v")
    ),
    _heads_gradient(
        "forgets b_q", {"forgotten": ("b_q",)}, "biases_get_the_gradients_of_weights_of_a_constant_channel"
    ),
    *(
        _heads_gradient(f"forgets {bias}", {"forgotten": (bias,)}, "biases_at_the_end_get_the_sum_of_the_cotangent")
        for bias in ("b_v", "b_o")
    ),
    _heads_gradient(
        "averages biases over the tokens",
        {"summed": _mean_over_the_tokens},
        "biases_at_the_end_get_the_sum_of_the_cotangent",
        "biases_get_the_gradients_of_weights_of_a_constant_channel",
    ),
    _heads_gradient(
        "forgets what the sum of the softmax passes back",
        {"attend": _without_what_the_sum_passes_back},
        "a_key_bias_has_nothing_to_learn",
    ),
    _heads_gradient(
        "forgets the mask",
        {"attend": _attend_vjp_with(mask=None)},
        "padding_of_the_context_gets_gradient_0",
        "a_query_that_may_see_nothing_passes_no_gradient_to_the_context",
    ),
    _heads_gradient(
        "lets NaN through the mask",
        {"attend": _with_nan_behind_the_mask},
        "padding_of_the_context_gets_gradient_0",
    ),
    _heads_gradient(
        "forgets causal",
        {"attend": _attend_vjp_with(causal=False)},
        "a_causal_cotangent_reaches_no_later_token_through_any_head",
    ),
    _heads_gradient(
        "gives the weights what the first sequence asks",
        {"onto": _of_the_first_sequence},
        "what_all_sequences_share_gets_the_sum_of_their_gradients",
    ),
]

FAULTS = [
    *SOFTMAX, *CAUSAL_MASK, *WEIGHTS, *ATTENTION, *SELF_ATTENTION, *MULTI_HEAD,
    *SOFTMAX_GRADIENT, *ATTENTION_GRADIENT, *ONE_HEAD_GRADIENT, *MULTI_HEAD_GRADIENT,
]  # fmt: skip
