"""Wrong ways from scores to a token, as they were seen in real code."""

# ruff: noqa: D103
# The name of a fault says what is wrong.

from typing import Any

import numpy as np

from reference.numpy import next_token_distribution, sample, softmax
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.sampling import (
    by_rank,
    cumulated_in_float32,
    exp_without_the_shift,
    one_number_for_all_rows,
    renormalised,
    scores_as_weights,
    temperature_after_top_p,
    temperature_divides_by_zero,
    temperature_zero_means_one,
    top_k_by_threshold,
    top_k_keeps_one_more,
    top_k_never_drops_token_zero,
    top_p_by_what_is_left,
    top_p_drops_the_crossing_token,
    top_p_subtracts_the_first,
    top_p_that_keeps,
)

# ----------------------------------------------------------------------------------- next_token_distribution


def log_probabilities(logits, **options: Any):
    with np.errstate(divide="ignore"):
        return np.log(next_token_distribution(logits, **options))


def temperature_multiplies(logits, *, temperature=1.0, **options: Any):
    return next_token_distribution(logits * temperature, **options)


def greedy_takes_the_last_of_equals(logits, **options: Any):
    return next_token_distribution(logits[..., ::-1], **options)[..., ::-1]


def greedy_shares_among_equals(logits, *, temperature=1.0, **options: Any):
    return next_token_distribution(logits, temperature=temperature or 1e-9, **options)


def top_k_without_renormalising(logits, *, top_k=None, **options: Any):
    p = next_token_distribution(logits, **options)
    return p if top_k is None else np.where(by_rank(logits)[1] < top_k, p, 0)


def top_p_before_top_k(logits, *, temperature=1.0, top_k=None, top_p=None):
    p = next_token_distribution(logits, temperature=temperature, top_p=top_p)
    return p if top_k is None else renormalised(np.where(by_rank(logits)[1] < top_k, p, 0))


def one_cut_for_the_batch(logits, *, top_k=None, top_p=None, **options: Any):
    p = next_token_distribution(logits, **options)
    first = logits.reshape(-1, logits.shape[-1])[0]
    kept = next_token_distribution(first, top_k=top_k, top_p=top_p, **options) > 0
    return renormalised(np.where(kept, p, 0))


def nan_ranked_last(logits, **options: Any):
    return next_token_distribution(np.where(np.isnan(logits), -1e9, logits), **options)


def unchecked(logits, *, temperature=1.0, top_k=None, top_p=None):
    bad_p = top_p is not None and not 0 < top_p <= 1
    return next_token_distribution(
        logits,
        temperature=abs(temperature) if temperature == temperature else 1.0,
        top_k=top_k and max(top_k, 1),
        top_p=None if bad_p else top_p,
    )


top_p_goes_one_past_equality = top_p_that_keeps(lambda reached, p, first, top_p: reached - p <= top_p)
top_p_by_the_rounded_sum = top_p_that_keeps(lambda reached, p, first, top_p: reached - p < top_p)


# ------------------------------------------------------------------------------------------------- sample


def inverse(probabilities, uniform, side="right", scale=1.0):
    """Invert the cumulative distribution without any check."""
    total = np.cumsum(probabilities, axis=-1) * scale
    passed = total <= uniform[..., None] if side == "right" else total < uniform[..., None]
    return np.minimum(passed.sum(axis=-1), probabilities.shape[-1] - 1)


def sample_from_scores(probabilities, uniform):
    return sample(softmax(probabilities), uniform)


def sample_most_likely(probabilities, uniform):
    return probabilities.argmax(axis=-1)


FAULTS = [
    Fault(
        "exp_without_the_shift",
        {"next_token_distribution": exp_without_the_shift(next_token_distribution)},
        (
            "next_token_distribution.shifting_all_logits_changes_nothing",
            "next_token_distribution.a_tiny_temperature_does_not_overflow",
        ),
    ),
    Fault(
        "scores_instead_of_probabilities",
        {"next_token_distribution": scores_as_weights(next_token_distribution)},
        (
            "next_token_distribution.probabilities_sum_to_one",
            "next_token_distribution.logits_are_log_odds",
            "next_token_distribution.shifting_all_logits_changes_nothing",
        ),
    ),
    Fault(
        "log_probabilities",
        {"next_token_distribution": log_probabilities},
        ("next_token_distribution.probabilities_sum_to_one",),
    ),
    Fault(
        "temperature_multiplies",
        {"next_token_distribution": temperature_multiplies},
        ("next_token_distribution.temperature_divides_the_logits",),
    ),
    Fault(
        "temperature_zero_divides",
        {"next_token_distribution": temperature_divides_by_zero(next_token_distribution)},
        ("next_token_distribution.temperature_zero_takes_the_largest_logit",),
    ),
    Fault(
        "temperature_zero_means_one",
        {"next_token_distribution": temperature_zero_means_one(next_token_distribution)},
        (
            "next_token_distribution.temperature_zero_takes_the_largest_logit",
            "next_token_distribution.a_tiny_temperature_does_not_overflow",
        ),
    ),
    Fault(
        "greedy_takes_the_last_of_equals",
        {"next_token_distribution": greedy_takes_the_last_of_equals},
        (
            "next_token_distribution.temperature_zero_breaks_a_tie_by_the_lowest_id",
            "next_token_distribution.top_k_breaks_a_tie_by_the_lowest_ids",
            "next_token_distribution.a_tiny_top_p_keeps_the_first_token",
        ),
    ),
    Fault(
        "greedy_shares_among_equals",
        {"next_token_distribution": greedy_shares_among_equals},
        ("next_token_distribution.temperature_zero_breaks_a_tie_by_the_lowest_id",),
    ),
    Fault(
        "top_k_ties_keep_more_than_k",
        {"next_token_distribution": top_k_by_threshold(next_token_distribution)},
        (
            "next_token_distribution.top_k_keeps_exactly_k",
            "next_token_distribution.top_k_breaks_a_tie_by_the_lowest_ids",
        ),
    ),
    Fault(
        "top_k_off_by_one",
        {"next_token_distribution": top_k_keeps_one_more(next_token_distribution)},
        (
            "next_token_distribution.top_k_keeps_exactly_k",
            "next_token_distribution.top_k_keeps_the_largest_and_renormalises",
        ),
    ),
    Fault(
        "top_k_without_renormalising",
        {"next_token_distribution": top_k_without_renormalising},
        ("next_token_distribution.top_k_keeps_the_largest_and_renormalises",),
    ),
    Fault(
        "top_k_penalty_multiplied_by_token_id",
        {"next_token_distribution": top_k_never_drops_token_zero(next_token_distribution)},
        ("next_token_distribution.renaming_the_tokens_renames_what_top_k_keeps",),
    ),
    Fault(
        "top_p_drops_crossing_token",
        {"next_token_distribution": top_p_drops_the_crossing_token(next_token_distribution)},
        ("next_token_distribution.top_p_keeps_the_smallest_set_that_reaches_p",),
    ),
    Fault(
        "top_p_exclusive_sum_by_first_element",
        {"next_token_distribution": top_p_subtracts_the_first(next_token_distribution)},
        ("next_token_distribution.top_p_keeps_the_smallest_set_that_reaches_p",),
    ),
    Fault(
        "top_p_goes_one_past_equality",
        {
            "next_token_distribution": top_p_that_keeps(lambda reached, p, first, top_p: reached - p <= top_p)(
                next_token_distribution
            )
        },
        ("next_token_distribution.top_p_stops_where_the_mass_is_exactly_p",),
    ),
    Fault(
        "top_p_small_masks_everything",
        {"next_token_distribution": top_p_by_what_is_left(next_token_distribution)},
        ("next_token_distribution.a_tiny_top_p_keeps_the_first_token",),
    ),
    Fault(
        "top_p_of_one_goes_by_the_rounded_sum",
        {
            "next_token_distribution": top_p_that_keeps(lambda reached, p, first, top_p: reached - p < top_p)(
                next_token_distribution
            )
        },
        ("next_token_distribution.a_top_p_of_one_keeps_every_token",),
    ),
    Fault(
        "top_p_before_top_k",
        {"next_token_distribution": top_p_before_top_k},
        ("next_token_distribution.top_p_measures_what_top_k_left",),
    ),
    Fault(
        "temperature_order_with_top_p",
        {"next_token_distribution": temperature_after_top_p(next_token_distribution)},
        ("next_token_distribution.top_p_measures_what_temperature_made",),
    ),
    Fault(
        "one_cut_for_the_batch",
        {"next_token_distribution": one_cut_for_the_batch},
        ("next_token_distribution.each_row_is_cut_by_itself",),
    ),
    Fault(
        "nan_ranked_last",
        {"next_token_distribution": nan_ranked_last},
        (
            "next_token_distribution.a_nan_logit_makes_its_row_nan",
            "next_token_distribution.a_nan_logit_makes_its_row_nan_at_temperature_0",
        ),
    ),
    Fault(
        "sampling_options_unchecked",
        {"next_token_distribution": unchecked},
        (
            "next_token_distribution.a_negative_temperature_is_refused",
            "next_token_distribution.a_top_k_below_one_is_refused",
            "next_token_distribution.a_top_p_outside_its_range_is_refused",
        ),
    ),
    Fault(
        "multinomial_on_logits",
        {"sample": sample_from_scores},
        (
            "sample.draws_the_id_whose_interval_holds_the_number",
            "sample.frequencies_are_the_probabilities",
            "sample.an_id_of_probability_zero_is_never_drawn",
        ),
    ),
    Fault(
        "sample_takes_the_most_likely",
        {"sample": sample_most_likely},
        ("sample.frequencies_are_the_probabilities",),
    ),
    Fault(
        "rng_shared_across_batch_rows",
        {"sample": one_number_for_all_rows(sample)},
        ("sample.draws_the_id_whose_interval_holds_the_number", "sample.each_row_is_drawn_by_itself"),
    ),
    Fault(
        "cumsum_low_precision_loses_tail",
        {"sample": cumulated_in_float32},
        ("sample.a_rare_id_after_a_likely_one_is_drawn",),
    ),
    Fault(
        "sample_includes_the_upper_end",
        {"sample": lambda probabilities, uniform: inverse(probabilities, uniform, side="left")},
        (
            "sample.a_number_on_a_boundary_draws_the_next_id",
            "sample.an_id_of_probability_zero_is_never_drawn",
        ),
    ),
    Fault(
        "sample_leaves_the_rest_to_the_last_id",
        {"sample": inverse},
        (
            "sample.what_rounding_leaves_over_goes_to_the_last_possible_id",
            "sample.a_row_that_does_not_sum_to_one_is_refused",
            "sample.a_negative_probability_is_refused",
            "sample.a_number_outside_zero_to_one_is_refused",
        ),
    ),
]
"""Each names the properties that must catch it."""
