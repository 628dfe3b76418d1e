"""Wrong losses, as they were seen in real code."""

# ruff: noqa: D103
# The name of a fault says what is wrong.

from typing import Any

import numpy as np

from reference.numpy import cross_entropy, cross_entropy_vjp, perplexity, softmax
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.losses import divided_by_all, double_softmax, nan_for_nothing, smoothing_counts_ignored


def surprises(logits):
    """Give minus the logarithm of every probability."""
    with np.errstate(divide="ignore"):
        return -np.log(softmax(logits))


def in_bits(logits, targets, **options: Any):
    return cross_entropy(logits, targets, **options) / np.log(2)


def impossible_classes_are_summed(logits, targets, *, ignore_index=-100, **options: Any):
    spoilt = np.isneginf(logits).any(axis=-1) & (targets != ignore_index)  # 0 x inf, in the sum over classes
    loss = cross_entropy(logits, targets, ignore_index=ignore_index, **options)
    return np.where(spoilt.any(), np.nan, loss)


def without_the_shift(logits, targets, **options: Any):
    with np.errstate(all="ignore"):
        p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        return cross_entropy(np.log(p), targets, **options)


def probabilities_kept_from_zero(logits, targets, **options: Any):
    return cross_entropy(np.log(softmax(logits) + 1e-12), targets, **options)


def target_of_the_next_row(logits, targets, **options: Any):
    return cross_entropy(logits, np.roll(targets, 1, axis=-1) if targets.ndim else targets, **options)


def summed(logits, targets, *, ignore_index=-100, **options: Any):
    return cross_entropy(logits, targets, ignore_index=ignore_index, **options) * (targets != ignore_index).sum()


def ignore_index_fixed(logits, targets, *, ignore_index=-100, **options: Any):
    return cross_entropy(logits, np.where(targets < 0, -100, targets), **options)


def smoothing_on_the_others(logits, targets, *, ignore_index=-100, label_smoothing=0.0):
    plain = cross_entropy(logits, targets, ignore_index=ignore_index)
    counted = targets != ignore_index
    if not counted.any() or logits.shape[-1] == 1:
        return plain
    rows = surprises(logits[counted])
    at = np.take_along_axis(rows, targets[counted][..., None], axis=-1)[..., 0]
    others = ((rows.sum(axis=-1) - at) / (logits.shape[-1] - 1)).mean()
    return (1 - label_smoothing) * plain + label_smoothing * others


def smoothing_adds_mass(logits, targets, *, label_smoothing=0.0, **options: Any):
    uniform = cross_entropy(logits, targets, label_smoothing=1.0, **options)
    return cross_entropy(logits, targets, **options) + label_smoothing * uniform


def negative_targets_wrap(logits, targets, *, ignore_index=-100, **options: Any):
    wrapped = np.where(targets == ignore_index, ignore_index, targets % logits.shape[-1])
    return cross_entropy(logits, wrapped, ignore_index=ignore_index, **options)


def smoothing_unchecked(logits, targets, *, label_smoothing=0.0, **options: Any):
    return cross_entropy(logits, targets, label_smoothing=float(np.clip(label_smoothing, 0, 1) or 0), **options)


FAULTS = [
    Fault(
        "loss_double_softmax",
        {"cross_entropy": double_softmax(cross_entropy)},
        (
            "cross_entropy.is_the_surprise_at_the_target",
            "cross_entropy.a_confident_right_prediction_costs_nothing",
            "cross_entropy.a_confident_wrong_prediction_costs_the_gap",
            "cross_entropy.an_impossible_target_costs_infinity",
        ),
    ),
    Fault(
        "loss_in_bits",
        {"cross_entropy": in_bits},
        ("cross_entropy.is_the_surprise_at_the_target", "cross_entropy.uniform_logits_cost_the_log_of_the_vocab"),
    ),
    Fault(
        "loss_without_the_shift",
        {"cross_entropy": without_the_shift},
        (
            "cross_entropy.shifting_all_logits_changes_nothing",
            "cross_entropy.a_confident_wrong_prediction_costs_the_gap",
        ),
    ),
    Fault(
        "loss_keeps_probabilities_from_zero",
        {"cross_entropy": probabilities_kept_from_zero},
        (
            "cross_entropy.an_impossible_target_costs_infinity",
            "cross_entropy.a_confident_wrong_prediction_costs_the_gap",
        ),
    ),
    Fault(
        "loss_target_shifted_twice",
        {"cross_entropy": target_of_the_next_row},
        (
            "cross_entropy.is_the_surprise_at_the_target",
            "cross_entropy.a_confident_right_prediction_costs_nothing",
        ),
    ),
    Fault(
        "loss_is_a_sum",
        {"cross_entropy": summed},
        (
            "cross_entropy.is_the_mean_over_the_targets",
            "cross_entropy.uniform_logits_cost_the_log_of_the_vocab",
        ),
    ),
    Fault(
        "loss_counts_padding",
        {"cross_entropy": divided_by_all(cross_entropy)},
        ("cross_entropy.ignored_targets_have_no_part", "cross_entropy.any_index_may_be_the_ignored_one"),
    ),
    Fault(
        "loss_sums_over_impossible_classes",
        {"cross_entropy": impossible_classes_are_summed},
        ("cross_entropy.an_impossible_class_that_is_no_target_might_as_well_be_absent",),
    ),
    Fault(
        "loss_all_ignored_nan",
        {"cross_entropy": nan_for_nothing(cross_entropy)},
        ("cross_entropy.nothing_to_learn_from_costs_nothing",),
    ),
    Fault(
        "loss_ignore_index_hardcoded",
        {"cross_entropy": ignore_index_fixed},
        ("cross_entropy.any_index_may_be_the_ignored_one",),
    ),
    Fault(
        "loss_label_smoothing_wrong_mass",
        {"cross_entropy": smoothing_on_the_others},
        (
            "cross_entropy.full_smoothing_forgets_the_target",
            "cross_entropy.smoothing_spreads_its_share_over_every_class",
        ),
    ),
    Fault(
        "loss_label_smoothing_eps_dropped",
        {"cross_entropy": smoothing_adds_mass},
        (
            "cross_entropy.full_smoothing_forgets_the_target",
            "cross_entropy.smoothing_spreads_its_share_over_every_class",
        ),
    ),
    Fault(
        "label_smoothing_counts_ignored",
        {"cross_entropy": smoothing_counts_ignored(cross_entropy)},
        ("cross_entropy.smoothing_leaves_ignored_targets_out",),
    ),
    Fault(
        "loss_negative_targets_wrap",
        {"cross_entropy": negative_targets_wrap},
        ("cross_entropy.a_target_outside_the_vocab_is_refused",),
    ),
    Fault(
        "loss_smoothing_unchecked",
        {"cross_entropy": smoothing_unchecked},
        ("cross_entropy.a_smoothing_outside_zero_to_one_is_refused",),
    ),
    Fault(
        "perplexity_base_two",
        {"perplexity": lambda total_loss, n_tokens: np.exp2(total_loss / n_tokens)},
        ("perplexity.of_a_uniform_guess_is_the_vocab",),
    ),
    Fault(
        "perplexity_of_the_sum",
        {"perplexity": lambda total_loss, n_tokens: perplexity(total_loss, min(n_tokens, 1))},
        ("perplexity.of_a_uniform_guess_is_the_vocab", "perplexity.of_two_texts_weighs_each_by_its_tokens"),
    ),
    Fault(
        "perplexity_is_the_mean_loss",
        {"perplexity": lambda total_loss, n_tokens: np.asarray(total_loss / n_tokens)},
        ("perplexity.of_certainty_is_one",),
    ),
    Fault(
        "perplexity_of_nothing_is_one",
        {"perplexity": lambda total_loss, n_tokens: perplexity(total_loss, n_tokens) if n_tokens > 0 else np.ones(())},
        ("perplexity.of_no_tokens_is_refused",),
    ),
]
"""Each names the properties that must catch it."""

# ------------------------------------------------------------------------------- the gradient of cross_entropy


def gradient_of(
    probabilities=softmax, smooth=lambda y, a: (1 - a) * y + a / y.shape[-1], count=lambda counted: counted.sum()
):
    """Make a gradient of its terms: what was predicted, the smoothed target, and what is divided by."""

    def gradient(cotangent, logits, targets, *, ignore_index=-100, label_smoothing=0.0):
        counted = targets != ignore_index
        if not counted.any():
            return (np.zeros_like(logits),)
        y = (np.arange(logits.shape[-1]) == targets[..., None]).astype(logits.dtype)
        rows = probabilities(logits) - smooth(y, label_smoothing)
        return (np.asarray(cotangent * rows * counted[..., None] / count(counted)),)

    return gradient


def always_from_one(cotangent, logits, targets, **options: Any):
    return cross_entropy_vjp(np.ones_like(cotangent), logits, targets, **options)


def without_the_target(cotangent, logits, targets, *, ignore_index=-100, label_smoothing=0.0):
    counted = targets != ignore_index
    return (cotangent * softmax(logits) * counted[..., None] / max(counted.sum(), 1),)


def ignored_rows_keep_their_probabilities(cotangent, logits, targets, *, ignore_index=-100, label_smoothing=0.0):
    (gradient,) = cross_entropy_vjp(
        cotangent, logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    counted = targets != ignore_index
    return (np.where(counted[..., None], gradient, cotangent * softmax(logits) / max(counted.sum(), 1)),)


def only_one_index_ignored(cotangent, logits, targets, *, ignore_index=-100, label_smoothing=0.0):
    return cross_entropy_vjp(cotangent, logits, np.where(targets < 0, -100, targets), label_smoothing=label_smoothing)


def nan_gradient_for_nothing(cotangent, logits, targets, *, ignore_index=-100, **options: Any):
    (gradient,) = cross_entropy_vjp(cotangent, logits, targets, ignore_index=ignore_index, **options)
    return (gradient if (targets != ignore_index).any() else np.full_like(logits, np.nan),)


def naive_softmax(logits):
    with np.errstate(all="ignore"):
        return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


def targets_wrap(cotangent, logits, targets, *, ignore_index=-100, **options: Any):
    wrapped = np.where(targets == ignore_index, ignore_index, targets % logits.shape[-1])
    return cross_entropy_vjp(cotangent, logits, wrapped, ignore_index=ignore_index, **options)


PLAIN = "the_gradient_is_what_was_predicted_minus_what_was_there"
SMOOTHED = "the_smoothed_gradient_is_what_was_predicted_minus_the_smoothed_target"
SUMS_TO_0 = "the_gradient_of_the_logits_sums_to_0"
IGNORED = "the_gradient_of_an_ignored_target_is_0"
SMOOTHED_IGNORED = "smoothing_leaves_the_gradient_of_an_ignored_target_at_0"
NAMED = "the_gradient_of_what_ignore_index_names_is_0"
FINITE_DIFFERENCES = "gradients_are_those_of_finite_differences"


def gradient_fault(name, function, *fails):
    return Fault(name, {"cross_entropy_vjp": function}, tuple(f"cross_entropy.{fail}" for fail in fails))


FAULTS += [
    gradient_fault(
        "loss_gradient_without_the_count", gradient_of(count=lambda counted: 1), PLAIN, SMOOTHED, FINITE_DIFFERENCES
    ),
    gradient_fault(
        "loss_gradient_counts_padding", gradient_of(count=lambda counted: counted.size), IGNORED, FINITE_DIFFERENCES
    ),
    gradient_fault(
        "loss_gradient_without_the_prediction", gradient_of(np.zeros_like), PLAIN, SMOOTHED, SUMS_TO_0,
        "the_gradient_of_a_confident_wrong_prediction_is_1", FINITE_DIFFERENCES,
    ),
    gradient_fault(
        "loss_gradient_without_the_target", without_the_target, PLAIN, SMOOTHED, SUMS_TO_0,
        "the_gradient_of_a_confident_wrong_prediction_is_1", FINITE_DIFFERENCES,
    ),
    gradient_fault(
        "loss_gradient_of_the_logits_themselves", gradient_of(lambda logits: logits), PLAIN, SUMS_TO_0,
        FINITE_DIFFERENCES,
    ),
    gradient_fault(
        "loss_gradient_without_the_shift", gradient_of(naive_softmax),
        "the_gradient_of_a_confident_wrong_prediction_is_1",
    ),
    gradient_fault(
        "loss_gradient_ignores_the_cotangent", always_from_one, PLAIN, "the_gradient_is_linear_in_its_cotangent",
        FINITE_DIFFERENCES,
    ),
    gradient_fault("loss_gradient_without_smoothing", gradient_of(smooth=lambda y, a: y), SMOOTHED, FINITE_DIFFERENCES),
    gradient_fault(
        "loss_gradient_smoothing_keeps_the_target_whole", gradient_of(smooth=lambda y, a: y + a / y.shape[-1]),
        SMOOTHED, FINITE_DIFFERENCES,
    ),
    gradient_fault(
        "loss_gradient_smoothing_takes_only_from_the_target", gradient_of(smooth=lambda y, a: (1 - a) * y), SMOOTHED,
        FINITE_DIFFERENCES,
    ),
    gradient_fault(
        "loss_gradient_of_ignored_rows", ignored_rows_keep_their_probabilities, IGNORED, SMOOTHED_IGNORED, NAMED,
        "nothing_to_learn_from_has_gradient_0", FINITE_DIFFERENCES,
    ),
    gradient_fault("loss_gradient_ignore_index_hardcoded", only_one_index_ignored, NAMED, FINITE_DIFFERENCES),
    gradient_fault("loss_gradient_nan_for_nothing", nan_gradient_for_nothing, "nothing_to_learn_from_has_gradient_0"),
    gradient_fault(
        "loss_gradient_targets_wrap", targets_wrap, "a_gradient_for_a_target_outside_the_vocab_is_refused"
    ),
]  # fmt: skip
"""In each one term of the gradient is missing or another."""
