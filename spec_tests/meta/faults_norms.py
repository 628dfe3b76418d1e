"""Wrong layer norms."""

import math

import numpy as np

from reference.numpy import layer_norm, layer_norm_vjp
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.norms import PITFALLS, mean_and_std, norm_by
from spec_tests.pitfalls.pitfall import right_functions


def _eps_inside(x, eps, variant):
    mean, std = mean_and_std(x)
    return mean, np.sqrt(std**2 + eps)


def _eps_squared(x, eps, variant):
    mean, std = mean_and_std(x)
    return mean, np.sqrt(std**2 + eps**2)


def _beta_before_gamma(x, gamma, beta, *, eps=1e-5, variant="standard"):
    y = layer_norm(x, None, None, eps=eps, variant=variant)
    return (y + (0 if beta is None else beta)) * (1 if gamma is None else gamma)


def _affine_only_if_both(x, gamma, beta, *, eps=1e-5, variant="standard"):
    both = gamma is not None and beta is not None
    return layer_norm(x, gamma if both else None, beta if both else None, eps=eps, variant=variant)


def _gains_by_rank(x, gamma, beta, *, eps=1e-5, variant="standard"):
    return layer_norm(np.sort(x, axis=-1), gamma, beta, eps=eps, variant=variant)


def _hides_nan(x, gamma, beta, *, eps=1e-5, variant="standard"):
    return layer_norm(np.nan_to_num(x), gamma, beta, eps=eps, variant=variant)


def _spreads_nan(x, gamma, beta, *, eps=1e-5, variant="standard"):
    return layer_norm(x, gamma, beta, eps=eps, variant=variant) + 0 * x.sum()


def _never_refuses(x, gamma, beta, *, eps=1e-5, variant="standard"):
    if variant == "unbiased_std_plus_eps" and x.shape[-1] == 1:
        return np.zeros(x.shape)
    variant = variant if variant.endswith("eps") else "standard"
    return layer_norm(x, gamma, beta, eps=max(eps, 1e-5) if math.isfinite(eps) else 1e-5, variant=variant)


def _fault(name, function, *fails):
    return Fault(f"layer_norm {name}", {"layer_norm": function}, tuple(f"layer_norm.{fail}" for fail in fails))


FAULTS = [
    *(Fault(p.id, p.on(right_functions()), p.caught_by) for p in PITFALLS if p.dtype == "float64"),
    _fault(
        "puts eps inside the root of every variant",
        norm_by(_eps_inside),
        "eps_outside_the_root_gives_variance_var_over_std_plus_eps_squared",
        "the_unbiased_deviation_divides_by_one_less",
        "scaling_a_row_is_scaling_an_eps_outside_the_root",
        "scaling_a_row_is_scaling_the_eps_beside_an_unbiased_deviation",
    ),
    _fault(
        "squares eps",
        norm_by(_eps_squared),
        "every_row_has_variance_var_over_var_plus_eps",
        "scaling_a_row_is_scaling_eps_by_the_square",
    ),
    _fault(
        "adds beta before it multiplies by gamma",
        _beta_before_gamma,
        "gamma_multiplies_and_beta_is_added_channel_by_channel",
        "a_constant_row_gives_beta",
    ),
    _fault("wants both gamma and beta", _affine_only_if_both, "a_part_that_is_none_is_left_out"),
    _fault("sorts the channels", _gains_by_rank, "permuting_channels_with_their_gains_permutes_the_result"),
    _fault("hides NaN", _hides_nan, "nan_spoils_its_own_row_only"),
    _fault("spreads NaN", _spreads_nan, "nan_spoils_its_own_row_only"),
    _fault(
        "refuses nothing",
        _never_refuses,
        "the_unbiased_deviation_of_a_single_number_raises",
        "an_eps_below_0_raises",
        "an_unknown_variant_raises",
    ),
]

# ----------------------------------------------------------------------------------------------------------- gradients


def _mean_of(rows):
    return rows.mean(axis=-1, keepdims=True)


def _divisors(x, eps, variant):
    """Give D and C of the gradient: what was divided by, and by what the term along y is."""
    n, centred = x.shape[-1], x - _mean_of(x)
    if variant == "standard":
        d = np.sqrt(_mean_of(centred**2) + eps)
        return d, n * d
    count = n - 1 if variant == "unbiased_std_plus_eps" else n
    deviation = np.sqrt((centred**2).sum(axis=-1, keepdims=True) / count)
    return deviation + eps, count * deviation


def _backward(*, centre=_mean_of, along=1.0, gain=True, divisors=_divisors, guarded=True):
    """Make a gradient of its terms: what centres g, how much of the term along y, and what both are divided by."""

    def gradient(cotangent, x, gamma, beta, *, eps=1e-5, variant="standard"):
        with np.errstate(all="ignore"):
            d, c = divisors(x, eps, variant)
            y = layer_norm(x, None, None, eps=eps, variant=variant)
            g = cotangent * gamma if gain and gamma is not None else cotangent
            share = (g * y).sum(axis=-1, keepdims=True) / (np.where(c == 0, 1, c) if guarded else c)
            dx = (g - centre(g)) / d - along * share * y
        return dx, *layer_norm_vjp(cotangent, x, gamma, beta, eps=eps, variant=variant)[1:]

    return gradient


def _without_eps(x, eps, variant):
    return _divisors(x, 0.0, variant)


def _eps_in_every_term(x, eps, variant):
    d, _ = _divisors(x, eps, variant)
    return d, x.shape[-1] * d


def _population_count(x, eps, variant):
    d, c = _divisors(x, eps, variant)
    return d, c * x.shape[-1] / (x.shape[-1] - 1) if variant == "unbiased_std_plus_eps" else c


def _eps_beside_the_deviation(x, eps, variant):
    return _divisors(x, eps, "std_plus_eps")


def _of_parameters(gamma_from, beta_from=lambda cotangent, gamma: cotangent, total=np.sum):
    """Make a gradient whose gamma and beta gather something else."""

    def gradient(cotangent, x, gamma, beta, *, eps=1e-5, variant="standard"):
        dx, _, _ = layer_norm_vjp(cotangent, x, gamma, beta, eps=eps, variant=variant)
        y, rows = layer_norm(x, None, None, eps=eps, variant=variant), tuple(range(x.ndim - 1))
        d_gamma = None if gamma is None else total(gamma_from(cotangent, x, y, gamma), axis=rows)
        return dx, d_gamma, None if beta is None else total(beta_from(cotangent, gamma), axis=rows)

    return gradient


def _right_gamma(cotangent, x, y, gamma):
    return cotangent * y


def _variant_ignored(cotangent, x, gamma, beta, *, eps=1e-5, variant="standard"):
    return layer_norm_vjp(cotangent, x, gamma, beta, eps=eps)


def _gradient_fault(name, function, *fails):
    return Fault(f"layer_norm_vjp {name}", {"layer_norm_vjp": function}, tuple(f"layer_norm.{fail}" for fail in fails))


FINITE_DIFFERENCES = "gradients_are_those_of_finite_differences"
SUMS = tuple(f"the_gradient_of_a_row_sums_to_0{which}" for which in (
    "", "_with_eps_outside_the_root", "_beside_an_unbiased_deviation",
))  # fmt: skip
ALONG = tuple(f"along_the_result_{which}" for which in (
    "only_eps_leaves_a_gradient", "an_eps_outside_the_root_leaves_a_gradient",
    "an_eps_beside_an_unbiased_deviation_leaves_a_gradient",
))  # fmt: skip
CONSTANT = tuple(f"the_gradient_on_a_constant_row_is_{which}" for which in (
    "centred", "no_nan_with_eps_outside_the_root", "no_nan_beside_an_unbiased_deviation",
))  # fmt: skip
PARAMETERS = (
    "the_gradients_of_gain_and_bias_are_sums_over_rows",
    "the_gradients_of_gain_and_bias_are_sums_with_eps_outside_the_root",
)

FAULTS += [
    _gradient_fault(
        "does not centre", _backward(centre=lambda g: 0), *SUMS, *CONSTANT, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "centres over all rows", _backward(centre=np.mean), *SUMS, "a_cotangent_reaches_its_own_row_only",
    ),
    _gradient_fault(
        "takes the divisor for a constant", _backward(along=0.0), *ALONG, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "counts the term along the result twice", _backward(along=2.0), *ALONG, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "ignores the gain", _backward(gain=False), *ALONG, *CONSTANT, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "divides without eps", _backward(divisors=_without_eps), *ALONG, *CONSTANT, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "puts eps into every term", _backward(divisors=_eps_in_every_term), *ALONG[1:], FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "counts d_model where its deviation counts d_model - 1", _backward(divisors=_population_count), ALONG[2],
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "puts eps beside the deviation always", _backward(divisors=_eps_beside_the_deviation), ALONG[0], CONSTANT[0],
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "knows one variant", _variant_ignored, *ALONG[1:], *CONSTANT[1:], PARAMETERS[1], FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "divides by the deviation of a constant row", _backward(guarded=False), *CONSTANT[1:],
    ),
    _gradient_fault(
        "gives gamma the cotangent alone", _of_parameters(lambda cotangent, x, y, gamma: cotangent), *PARAMETERS,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "gives gamma x before it is normed", _of_parameters(lambda cotangent, x, y, gamma: cotangent * x),
        *PARAMETERS, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "multiplies gamma's gradient by gamma",
        _of_parameters(lambda cotangent, x, y, gamma: cotangent * y * (1 if gamma is None else gamma)),
        *PARAMETERS, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "multiplies beta's gradient by gamma",
        _of_parameters(_right_gamma, lambda cotangent, gamma: cotangent * (1 if gamma is None else gamma)),
        *PARAMETERS, FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "averages gain and bias over rows", _of_parameters(_right_gamma, total=np.mean), *PARAMETERS,
        FINITE_DIFFERENCES,
    ),
]  # fmt: skip
"""In each one term of the gradient is missing or another."""
