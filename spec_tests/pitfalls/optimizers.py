"""Known mistakes in AdamW, in clipping and in the schedule."""

from typing import Any

import numpy as np

from reference.numpy import adamw_step
from reference.parameters import leaves
from spec_tests.pitfalls.pitfall import Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as


@as_strict_as(adamw_step)
def eps_before_correction(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta_1: float = 0.9, beta_2: float = 0.999,
    eps: float = 1e-8, weight_decay: float = 0.01,
) -> Any:  # fmt: skip
    """Put the correction of both biases into the size of the step, and eps beside the root that it does not reach."""
    m = beta_1 * m + (1 - beta_1) * grad
    v = beta_2 * v + (1 - beta_2) * grad**2
    size = lr * np.sqrt(1 - beta_2**step) / (1 - beta_1**step)
    return param - lr * weight_decay * param - size * m / (np.sqrt(v) + eps), m, v


def norm_after_clipping(right: Function) -> Function:
    """Give the norm of what is left instead of what came."""

    @as_strict_as(right)
    def wrong(grads: Any, *, max_norm: float) -> Any:
        clipped, _ = right(grads, max_norm=max_norm)
        with np.errstate(over="ignore"):
            return clipped, np.sqrt(sum(np.sum(grad**2) for _, grad in leaves(clipped)))

    return wrong


def warm_up_from_zero(right: Function) -> Function:
    """Divide the number of the step, counted from 0, by the length of the warm-up."""

    @as_strict_as(right)
    def wrong(step: int, *, warmup: int, max_lr: float, **options: Any) -> Any:
        if 0 <= step < warmup:
            return np.asarray(max_lr * step / warmup)
        return right(step, warmup=warmup, max_lr=max_lr, **options)

    return wrong


def rate_times_base(right: Function) -> Function:
    """Give a rate to who multiplies it by the base rate, as one expects a factor."""
    return lambda step, *, max_lr, **options: right(step, max_lr=max_lr, **options) * max_lr


def warm_up_without_end(right: Function) -> Function:
    """Let the factor of the warm-up grow past 1."""

    @as_strict_as(right)
    def wrong(step: int, *, warmup: int, max_lr: float, **options: Any) -> Any:
        rate = right(step, warmup=warmup, max_lr=max_lr, **options)
        return rate if step < warmup or not warmup else rate * (step + 1) / warmup

    return wrong


PITFALLS = (
    Pitfall(
        id="adamw_step.eps_before_correction",
        catalogue=("systems/adam_eps_before_bias_correction",),
        sources=(
            "https://github.com/karpathy/nanochat/issues/304",
            "https://github.com/pytorch/pytorch/pull/22628",
            "https://github.com/tensorflow/tensorflow/issues/35102",
            "https://github.com/pytorch/pytorch/issues/41477",
        ),
        does="The correction of the biases is put into the size of the step, so that eps stands beside the uncorrected "
        "root and is worth eps / sqrt(1 - beta_2^t).",
        shows="Early steps on gradients near eps are shorter: with g = eps = 1e-8 the first is 0.031 lr, not lr / 2.",
        mend="Divide v by 1 - beta_2^t before the root is taken, and add eps to that root.",
        visibility="silent",
        functions={"adamw_step": eps_before_correction},
        caught_by=(
            "adamw_step.the_first_step_has_the_size_of_the_learning_rate",
            "adamw_step.a_steady_gradient_makes_steady_steps",
        ),
    ),
    Pitfall(
        id="clip_grad_norm.norm_after_clipping",
        catalogue=("systems/clip_norm_logged_is_preclip",),
        sources=("https://theneuralbase.com/pytorch/learn/intermediate/gradient-exploding-gradient-clipping/",),
        does="The norm that is returned is taken for that after clipping, and measured there.",
        shows="The norm in the log never exceeds max_norm, however the gradient grows.",
        mend="Return the norm before clipping, and measure again where the other one is wanted.",
        visibility="silent",
        around={"clip_grad_norm": norm_after_clipping},
        caught_by=("clip_grad_norm.returns_the_norm_before_clipping",),
    ),
    Pitfall(
        id="warmup_cosine.first_rate_zero",
        catalogue=("systems/warmup_first_lr_zero",),
        sources=(
            "https://github.com/google-research/bert/issues/1293",
            "https://github.com/pytorch/torchtitan/pull/1261",
            "https://github.com/pytorch/torchtitan/pull/1010",
            "https://github.com/tinygrad/tinygrad/pull/10981",
        ),
        does="Steps are counted from 0 and the warm-up divides them by its length, so that the first rate is 0.",
        shows="The first update changes no parameter: its batch moves only the moments.",
        mend="Divide step + 1 by the length of the warm-up.",
        visibility="training",
        around={"warmup_cosine": warm_up_from_zero},
        caught_by=("warmup_cosine.the_first_rate_is_not_zero", "warmup_cosine.warm_up_is_a_straight_line"),
    ),
    Pitfall(
        id="warmup_cosine.rate_times_base",
        catalogue=("systems/lambda_lr_returns_absolute_lr",),
        sources=("https://github.com/Adit-Jain-srm/NightmareNet/pull/158",),
        does="The schedule gives a rate to code that expects a factor and multiplies it by the base rate.",
        shows="The peak is max_lr squared, a thousandth where max_lr is a thousandth.",
        mend="Give a factor of at most 1, or set the rate instead of multiplying it.",
        visibility="training",
        around={"warmup_cosine": rate_times_base},
        caught_by=("warmup_cosine.the_peak_ends_the_warm_up", "warmup_cosine.warm_up_is_a_straight_line"),
    ),
    Pitfall(
        id="warmup_cosine.warm_up_without_end",
        catalogue=("systems/lambda_lr_returns_absolute_lr",),
        sources=("https://github.com/Adit-Jain-srm/NightmareNet/pull/158",),
        does="The factor of the warm-up, (step + 1) / warmup, is not held at 1 once the warm-up is over.",
        shows="The rate exceeds its maximum after the warm-up: with a warm-up of 2 the factor is 2 at the fourth step.",
        mend="Take the smaller of 1 and the factor.",
        visibility="training",
        around={"warmup_cosine": warm_up_without_end},
        caught_by=(
            "warmup_cosine.rises_to_the_peak_and_falls_after_it",
            "warmup_cosine.after_a_third_of_the_way_down_a_quarter_is_lost",
        ),
    ),
)
