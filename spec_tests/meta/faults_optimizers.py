"""Wrong optimizers, clippings and schedules, as they were seen in real code."""

# ruff: noqa: D103
# The name of a fault says what is wrong.

import math
from typing import Any

import numpy as np

from reference.numpy import adamw_step, clip_grad_norm, warmup_cosine
from reference.parameters import leaves, map_tree
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.optimizers import eps_before_correction, norm_after_clipping, warm_up_from_zero

# --------------------------------------------------------------------------------------------- adamw_step


def adam(param, grad, m, v, *, step, lr, beta_1=0.9, beta_2=0.999, eps=1e-8, weight_decay=0.01, move=None, decay="old"):
    """Take a step whose direction is `move(m, v, step)` and whose decay reads the `old` or the `new` weight."""
    m = beta_1 * m + (1 - beta_1) * grad
    v = beta_2 * v + (1 - beta_2) * grad**2
    moved = param - lr * move(m, v, beta_1, beta_2, eps, step)
    return moved - lr * weight_decay * (param if decay == "old" else moved), m, v


def corrected(m, v, beta_1, beta_2, eps, step):
    """Give the right direction."""
    return m / (1 - beta_1**step) / (np.sqrt(v / (1 - beta_2**step)) + eps)


def eps_inside_the_root(m, v, beta_1, beta_2, eps, step):
    return m / (1 - beta_1**step) / np.sqrt(v / (1 - beta_2**step) + eps)


def not_corrected(m, v, beta_1, beta_2, eps, step):
    return m / (np.sqrt(v) + eps)


def corrected_for_step_one(m, v, beta_1, beta_2, eps, step):
    return corrected(m, v, beta_1, beta_2, eps, 1)


def one_size_for_all(m, v, beta_1, beta_2, eps, step):
    return corrected(m, np.full_like(v, v.mean()), beta_1, beta_2, eps, step)


def without_eps(m, v, beta_1, beta_2, eps, step):
    with np.errstate(invalid="ignore"):
        return corrected(m, v, beta_1, beta_2, 0.0, step)


def moving(move, decay="old"):
    return lambda *args, **options: adam(*args, **options, move=move, decay=decay)


def decay_in_the_gradient(param, grad, m, v, *, weight_decay=0.01, **options: Any):
    return adamw_step(param, grad + weight_decay * param, m, v, weight_decay=0.0, **options)


def decay_without_the_rate(param, grad, m, v, *, lr, weight_decay=0.01, **options: Any):
    moved, m, v = adamw_step(param, grad, m, v, lr=lr, weight_decay=0.0, **options)
    return moved - weight_decay * param, m, v


def betas_swapped(param, grad, m, v, *, beta_1=0.9, beta_2=0.999, **options: Any):
    return adamw_step(param, grad, m, v, beta_1=beta_2, beta_2=beta_1, **options)


def momentum_only(param, grad, m, v, **options: Any):
    _, new_m, _ = adamw_step(param, grad, m, v, **options)
    moved, _, new_v = adamw_step(param, grad, np.zeros_like(m), v, **options)
    return moved, new_m, new_v


def adam_unchecked(param, grad, m, v, **options: Any):
    options["step"] = max(options["step"], 1)
    rates = {name: abs(value) for name, value in options.items() if name != "step"}
    rates |= {name: 0.9 for name in ("beta_1", "beta_2") if rates.get(name, 0) >= 1}
    return adamw_step(param, grad, m, v, step=options["step"], **rates)


# ----------------------------------------------------------------------------------------- clip_grad_norm


def naive_norm(grads):
    """Give the norm, overflow and all."""
    with np.errstate(over="ignore"):
        return np.sqrt(sum(np.sum(grad**2) for _, grad in leaves(grads)))


def clipping(factor, norm_of=naive_norm):
    """Build a clipping that scales by `factor(max_norm, norm)`."""

    def wrong(grads, *, max_norm):
        norm = norm_of(grads)
        with np.errstate(all="ignore"):
            return map_tree(lambda grad: np.asarray(grad * factor(max_norm, norm)), grads), np.asarray(norm)

    return wrong


def each_array_by_itself(grads, *, max_norm):
    return map_tree(lambda grad: clip_grad_norm([grad], max_norm=max_norm)[0][0], grads), naive_norm(grads)


def each_number_by_itself(grads, *, max_norm):
    return map_tree(lambda grad: np.clip(grad, -max_norm, max_norm), grads), naive_norm(grads)


def flattens_the_tree(grads, *, max_norm):
    clipped, norm = clip_grad_norm([grad for _, grad in leaves(grads)], max_norm=max_norm)
    return clipped, norm


def largest_number(grads):
    """Give the largest number instead of the norm."""
    return max(np.abs(grad).max() for _, grad in leaves(grads))


def nan_as_zero(grads, *, max_norm):
    return clip_grad_norm(map_tree(lambda grad: np.nan_to_num(grad, posinf=0, neginf=0), grads), max_norm=max_norm)


# ------------------------------------------------------------------------------------------ warmup_cosine


def shifted(by):
    """Build a schedule that reads another step."""
    return lambda step, **options: warmup_cosine(max(step + by, 0), **options)


def falling(curve):
    """Build a schedule that falls by `curve(share of the way)`, from 1 to 0."""

    def wrong(step, *, warmup, total, max_lr, min_lr=0.0):
        peak, end = max(warmup - 1, 0), total - 1
        if step <= peak or end == peak:
            return warmup_cosine(step, warmup=warmup, total=total, max_lr=max_lr, min_lr=min_lr)
        return np.asarray(min_lr + (max_lr - min_lr) * curve((step - peak) / (end - peak)))

    return wrong


def min_lr_ignored(step, *, min_lr=0.0, **options: Any):
    return warmup_cosine(step, **options)


def the_end_wins(step, *, warmup, total, max_lr, min_lr=0.0):
    if step >= total - 1:
        return np.asarray(min_lr)
    return warmup_cosine(step, warmup=warmup, total=total, max_lr=max_lr, min_lr=min_lr)


def schedule_unchecked(step, *, warmup, total, max_lr, min_lr=0.0):
    total, max_lr = max(total, 1), abs(max_lr)
    low = min_lr if 0 <= min_lr <= max_lr else 0.0
    return warmup_cosine(max(step, 0), warmup=min(max(warmup, 0), total), total=total, max_lr=max_lr, min_lr=low)


RUN = "transformer.fifty_steps_of_training_are_those_of_the_reference"

FAULTS = [
    Fault(
        "adam_eps_before_bias_correction",
        {"adamw_step": eps_before_correction},
        ("adamw_step.the_first_step_has_the_size_of_the_learning_rate",),
    ),
    Fault(
        "adam_eps_inside_the_root",
        {"adamw_step": moving(eps_inside_the_root)},
        ("adamw_step.the_first_step_has_the_size_of_the_learning_rate",),
    ),
    Fault(
        "adam_without_bias_correction",
        {"adamw_step": moving(not_corrected)},
        (
            "adamw_step.the_first_step_has_the_size_of_the_learning_rate",
            "adamw_step.a_steady_gradient_makes_steady_steps",
        ),
    ),
    Fault(
        "adam_step_never_counted",
        {"adamw_step": moving(corrected_for_step_one)},
        (
            "adamw_step.a_steady_gradient_makes_steady_steps",
            "adamw_step.the_second_step_remembers_the_first",
        ),
    ),
    Fault(
        "adam_one_size_for_all",
        {"adamw_step": moving(one_size_for_all)},
        ("adamw_step.each_number_learns_by_itself",),
    ),
    Fault(
        "adam_without_eps",
        {"adamw_step": moving(without_eps)},
        ("adamw_step.nothing_to_learn_changes_nothing",),
    ),
    Fault(
        "adam_forgets_momentum",
        {"adamw_step": momentum_only},
        ("adamw_step.the_second_step_remembers_the_first",),
    ),
    Fault("adam_betas_swapped", {"adamw_step": betas_swapped}, ("adamw_step.the_moments_are_running_means",)),
    Fault(
        "decay_in_the_gradient",
        {"adamw_step": decay_in_the_gradient},
        (
            "adamw_step.without_a_gradient_only_the_decay_acts",
            "adamw_step.decay_acts_on_the_old_weight",
            "adamw_step.the_moments_are_running_means",
        ),
    ),
    Fault(
        "decay_without_the_rate",
        {"adamw_step": decay_without_the_rate},
        (
            "adamw_step.without_a_gradient_only_the_decay_acts",
            "adamw_step.decay_acts_on_the_old_weight",
        ),
    ),
    Fault(
        "decay_on_the_new_weight",
        {"adamw_step": moving(corrected, decay="new")},
        ("adamw_step.decay_acts_on_the_old_weight",),
    ),
    Fault(
        "adam_unchecked",
        {"adamw_step": adam_unchecked},
        (
            "adamw_step.a_step_before_the_first_is_refused",
            "adamw_step.a_beta_outside_zero_to_one_is_refused",
            "adamw_step.a_negative_rate_is_refused",
        ),
    ),
    Fault(
        "clip_adds_to_the_norm",
        {"clip_grad_norm": clipping(lambda max_norm, norm: min(1.0, max_norm / (norm + 1e-6)))},
        ("clip_grad_norm.a_long_gradient_is_scaled_to_exactly_max_norm",),
    ),
    Fault(
        "clip_always_scales",
        {"clip_grad_norm": clipping(lambda max_norm, norm: max_norm / norm)},
        ("clip_grad_norm.a_short_gradient_is_untouched", "clip_grad_norm.gradients_of_zero_stay_zero"),
    ),
    Fault(
        "clip_overflows",
        {"clip_grad_norm": clipping(lambda max_norm, norm: min(1.0, max_norm / norm) if norm else 1.0)},
        (
            "clip_grad_norm.huge_gradients_do_not_overflow",
            "clip_grad_norm.tiny_gradients_do_not_vanish",
            "clip_grad_norm.a_gradient_that_is_not_finite_is_refused",
            "clip_grad_norm.a_max_norm_that_is_not_positive_and_finite_is_refused",
        ),
    ),
    Fault(
        "clip_by_the_largest_number",
        {"clip_grad_norm": clipping(lambda max_norm, norm: min(1.0, max_norm / norm), largest_number)},
        (
            "clip_grad_norm.returns_the_norm_before_clipping",
            "clip_grad_norm.a_long_gradient_is_scaled_to_exactly_max_norm",
        ),
    ),
    Fault(
        "clip_each_array_by_itself",
        {"clip_grad_norm": each_array_by_itself},
        (
            "clip_grad_norm.a_long_gradient_is_scaled_to_exactly_max_norm",
            "clip_grad_norm.how_gradients_are_grouped_does_not_matter",
        ),
    ),
    Fault(
        "clip_each_number_by_itself",
        {"clip_grad_norm": each_number_by_itself},
        ("clip_grad_norm.a_long_gradient_is_scaled_to_exactly_max_norm",),
    ),
    Fault(
        "clip_returns_the_norm_after",
        {"clip_grad_norm": norm_after_clipping(clip_grad_norm)},
        ("clip_grad_norm.returns_the_norm_before_clipping",),
    ),
    Fault(
        "clip_flattens_the_tree",
        {"clip_grad_norm": flattens_the_tree},
        ("clip_grad_norm.a_tree_keeps_its_form",),
    ),
    Fault(
        "clip_reads_nan_as_zero",
        {"clip_grad_norm": nan_as_zero},
        ("clip_grad_norm.a_gradient_that_is_not_finite_is_refused",),
    ),
    Fault(
        "warmup_first_lr_zero",
        {"warmup_cosine": warm_up_from_zero(warmup_cosine)},
        ("warmup_cosine.the_first_rate_is_not_zero", "warmup_cosine.warm_up_is_a_straight_line"),
    ),
    Fault(
        "schedule_one_step_late",
        {"warmup_cosine": shifted(-1)},
        (
            "warmup_cosine.warm_up_is_a_straight_line",
            "warmup_cosine.reaches_min_lr_with_the_last_step_and_stays",
        ),
    ),
    Fault(
        "schedule_one_step_early",
        {"warmup_cosine": shifted(1)},
        ("warmup_cosine.the_peak_ends_the_warm_up", "warmup_cosine.rises_to_the_peak_and_falls_after_it"),
    ),
    Fault(
        "cosine_starts_again",
        {"warmup_cosine": falling(lambda share: 0.5 * (1 + math.cos(math.pi * share)))},
        ("warmup_cosine.reaches_min_lr_with_the_last_step_and_stays",),
    ),
    Fault(
        "cosine_is_a_line",
        {"warmup_cosine": falling(lambda share: max(1 - share, 0.0))},
        ("warmup_cosine.after_a_third_of_the_way_down_a_quarter_is_lost",),
    ),
    Fault(
        "cosine_is_a_quarter",
        {"warmup_cosine": falling(lambda share: math.cos(math.pi / 2 * min(share, 1.0)))},
        ("warmup_cosine.the_fall_is_symmetric",),
    ),
    Fault(
        "min_lr_ignored",
        {"warmup_cosine": min_lr_ignored},
        (
            "warmup_cosine.reaches_min_lr_with_the_last_step_and_stays",
            "warmup_cosine.a_min_lr_outside_its_range_is_refused",
        ),
    ),
    Fault("the_end_wins_over_the_peak", {"warmup_cosine": the_end_wins}, ("warmup_cosine.the_peak_wins_over_the_end",)),
    Fault(
        "schedule_unchecked",
        {"warmup_cosine": schedule_unchecked},
        (
            "warmup_cosine.a_schedule_that_does_not_fit_is_refused",
            "warmup_cosine.a_min_lr_outside_its_range_is_refused",
        ),
    ),
    *(
        Fault(f"a training run {name}", {component: function}, (RUN,))
        for name, component, function in (
            ("whose moments are not corrected", "adamw_step", moving(not_corrected)),
            ("whose moments are those of the first step", "adamw_step", moving(corrected_for_step_one)),
            ("whose decay is in the gradient", "adamw_step", decay_in_the_gradient),
            ("that clips each array by itself", "clip_grad_norm", each_array_by_itself),
            ("that begins at a rate of 0", "warmup_cosine", warm_up_from_zero(warmup_cosine)),
            ("whose schedule is a step late", "warmup_cosine", shifted(-1)),
        )
    ),
]
"""Each names the properties that must catch it."""
