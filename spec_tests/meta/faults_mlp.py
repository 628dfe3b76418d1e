"""Wrong activations, dropout and feed-forward networks."""

import math

import numpy as np

from reference.numpy import (
    dropout,
    dropout_vjp,
    feed_forward,
    feed_forward_vjp,
    gelu,
    gelu_vjp,
    relu,
    relu_vjp,
)
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.mlp import PITFALLS, activate, network_of
from spec_tests.pitfalls.pitfall import right_functions


def _fault(component, name, function, *fails):
    return Fault(f"{component} {name}", {component: function}, tuple(f"{component}.{fail}" for fail in fails))


# ---------------------------------------------------------------------------------------------------------------- relu

RELU = [
    _fault(
        "relu",
        "leaks",
        lambda x: np.where(x > 0, x, 0.01 * x),
        "relu_keeps_what_is_positive_and_cuts_the_rest_to_0",
        "what_relu_cuts_off_is_what_it_keeps_of_the_opposite",
        "relu_twice_is_relu_once",
    ),
    _fault(
        "relu",
        "stops at 6",
        lambda x: np.asarray(np.clip(x, 0, 6)),
        "relu_keeps_what_is_positive_and_cuts_the_rest_to_0",
        "relu_is_homogeneous",
        "what_relu_cuts_off_is_what_it_keeps_of_the_opposite",
    ),
    _fault("relu", "halves", lambda x: np.maximum(x, 0) / 2, "relu_twice_is_relu_once"),
    _fault("relu", "makes 0 of NaN", lambda x: np.where(x > 0, x, 0.0), "relu_does_not_hide_nan"),
    _fault("relu", "adds an axis", lambda x: np.atleast_1d(relu(x)), "relu_of_a_single_number_is_a_single_number"),
]

# ---------------------------------------------------------------------------------------------------------------- gelu


def _forms_swapped(x, *, approximate="none"):
    return gelu(x, approximate="tanh" if approximate == "none" else "none")


def _any_form(x, *, approximate="none"):
    return gelu(x, approximate=approximate if approximate == "tanh" else "none")


def _half_forgotten(x, *, approximate="none"):
    return 2 * gelu(x, approximate=approximate)


def _by_exponentials(x, *, approximate="none"):
    if approximate == "none":
        return gelu(x)
    with np.errstate(all="ignore"):
        e = np.exp(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        return x / 2 * (1 + (e - 1) / (e + 1))


def _gelu_leaks(x, *, approximate="none"):
    return np.maximum(gelu(x, approximate=approximate), -0.1) - 0.01 * np.maximum(-x, 0)


def _gelu_hides_nan(x, *, approximate="none"):
    return np.asarray(gelu(np.nan_to_num(x), approximate=approximate))


def _gelu_adds_an_axis(x, *, approximate="none"):
    return np.atleast_1d(gelu(x, approximate=approximate))


GELU = [
    _fault(
        "gelu",
        "has its forms swapped",
        _forms_swapped,
        "gelu_weighs_x_by_the_normal_probability",
        "the_tanh_form_is_the_published_one",
    ),
    _fault(
        "gelu",
        "lacks the half",
        _half_forgotten,
        "what_gelu_takes_away_is_what_it_leaves_of_the_opposite",
        "the_tanh_form_shares_the_symmetry",
        "gelu_lies_between_minus_0_17_and_relu",
        "far_from_0_gelu_is_relu",
        "far_from_0_the_tanh_form_is_relu",
    ),
    _fault("gelu", "overflows in its tanh form", _by_exponentials, "far_from_0_the_tanh_form_is_relu"),
    _fault(
        "gelu",
        "leaks",
        _gelu_leaks,
        "what_gelu_takes_away_is_what_it_leaves_of_the_opposite",
        "gelu_lies_between_minus_0_17_and_relu",
        "far_from_0_gelu_is_relu",
    ),
    _fault("gelu", "takes any other form for the erf form", _any_form, "an_unknown_form_raises"),
    _fault("gelu", "makes 0 of NaN", _gelu_hides_nan, "gelu_does_not_hide_nan"),
    _fault("gelu", "adds an axis", _gelu_adds_an_axis, "gelu_of_a_single_number_is_a_single_number"),
]

# ------------------------------------------------------------------------------------------------------------- dropout


def _divided_by_the_rate(x, keep, *, rate):
    return x * keep / (rate or 1.0)


def _scaled_at_test_time(x, keep, *, rate):
    return x * keep if not keep.all() else x * (1 - rate)


def _drops_to_almost_0(x, keep, *, rate):
    return dropout(x, keep, rate=rate) + 1e-30 * ~keep


def _keeps_something_at_rate_0(x, keep, *, rate):
    return dropout(x, keep, rate=max(rate, 1e-6))


def _rate_clamped(x, keep, *, rate):
    return dropout(x, keep, rate=min(max(rate, 0.0), 0.999))


DROPOUT = [
    _fault(
        "dropout",
        "divides by the rate",
        _divided_by_the_rate,
        "what_is_kept_is_divided_by_the_share_kept",
        "the_expectation_is_what_came_in",
        "a_rate_outside_0_to_1_raises",
    ),
    _fault("dropout", "scales in evaluation", _scaled_at_test_time, "the_expectation_is_what_came_in"),
    _fault("dropout", "leaves a trace", _drops_to_almost_0, "what_is_dropped_is_0"),
    _fault("dropout", "has a least rate", _keeps_something_at_rate_0, "keeping_all_at_rate_0_changes_nothing"),
    _fault("dropout", "clamps the rate", _rate_clamped, "a_rate_outside_0_to_1_raises"),
]

# -------------------------------------------------------------------------------------------------------- feed_forward


def _mixes_tokens(x, w_1, b_1, w_2, b_2, **options):
    return feed_forward(x + x.mean(axis=-2, keepdims=True), w_1, b_1, w_2, b_2, **options)


def _activation_ignored(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
    return feed_forward(x, w_1, b_1, w_2, b_2, keep=keep, rate=rate)


def _missing_bias_is_1(x, w_1, b_1, w_2, b_2, **options):
    b_1 = np.ones(w_1.shape[1]) if b_1 is None else b_1
    return feed_forward(x, w_1, b_1, w_2, np.ones(w_2.shape[1]) if b_2 is None else b_2, **options)


def _first_bias_lost(x, w_1, b_1, w_2, b_2, **options):
    return feed_forward(x, w_1, None, w_2, b_2, **options)


def _second_bias_lost(x, w_1, b_1, w_2, b_2, **options):
    return feed_forward(x, w_1, b_1, w_2, None, **options)


def _dropout_on_the_output(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
    out = feed_forward(x, w_1, b_1, w_2, b_2, activation=activation)
    return out if keep is None else out * keep.any(axis=-1, keepdims=True) / (1 - rate)


def _rate_acts_alone(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
    keep = np.ones((*x.shape[:-1], w_1.shape[1]), bool) if keep is None else keep
    return feed_forward(x, w_1, b_1, w_2, b_2, activation=activation, keep=keep, rate=rate)


def _one_mask_for_all_tokens(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
    keep = None if keep is None else np.broadcast_to(keep[..., :1, :], keep.shape)
    return feed_forward(x, w_1, b_1, w_2, b_2, activation=activation, keep=keep, rate=rate)


def _rate_clamped_in_the_network(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
    rate = min(max(rate, 0.0), 0.999)
    return feed_forward(x, w_1, b_1, w_2, b_2, activation=activation, keep=keep, rate=rate)


def _weighted_by_rank(x, w_1, b_1, w_2, b_2, **options):
    return feed_forward(x, w_1, np.sort(b_1) if b_1 is not None else None, w_2, b_2, **options)


FEED_FORWARD = [
    _fault("feed_forward", "mixes tokens", _mixes_tokens, "no_token_sees_another"),
    _fault(
        "feed_forward",
        "bends its output",
        network_of(activate, after=lambda out, activation: gelu(out)),
        "it_is_gelu_between_two_linear_maps",
        "its_activation_may_be_relu",
        "negating_the_second_weights_negates_the_output",
        "with_relu_and_no_biases_the_output_grows_as_the_input",
    ),
    _fault(
        "feed_forward",
        "ignores activation",
        _activation_ignored,
        "its_activation_may_be_relu",
        "its_activation_may_be_the_tanh_form",
        "with_relu_and_no_biases_the_output_grows_as_the_input",
        "an_unknown_activation_raises",
    ),
    _fault(
        "feed_forward",
        "is a network of sigmoids",
        network_of(lambda hidden, activation: 0.5 + np.tanh(hidden / 2) / 2),
        "silent_hidden_values_leave_the_second_bias",
        "it_is_gelu_between_two_linear_maps",
    ),
    _fault("feed_forward", "takes None for a bias of 1", _missing_bias_is_1, "biases_of_none_are_biases_of_0"),
    _fault("feed_forward", "loses b_1", _first_bias_lost, "it_is_gelu_between_two_linear_maps"),
    _fault(
        "feed_forward",
        "loses b_2",
        _second_bias_lost,
        "it_is_gelu_between_two_linear_maps",
        "silent_hidden_values_leave_the_second_bias",
        "dropping_every_hidden_value_leaves_the_second_bias",
    ),
    _fault(
        "feed_forward",
        "drops its output",
        _dropout_on_the_output,
        "dropout_takes_away_hidden_units",
        "dropping_every_hidden_value_leaves_the_second_bias",
    ),
    _fault("feed_forward", "scales without a mask", _rate_acts_alone, "without_a_keep_mask_nothing_is_dropped"),
    _fault("feed_forward", "drops alike for all tokens", _one_mask_for_all_tokens, "each_token_has_its_own_keep_mask"),
    _fault(
        "feed_forward",
        "clamps the rate",
        _rate_clamped_in_the_network,
        "a_hidden_rate_outside_0_to_1_raises",
        "a_hidden_rate_outside_0_to_1_raises_where_nothing_is_dropped",
    ),
    _fault("feed_forward", "sorts b_1", _weighted_by_rank, "the_order_of_the_hidden_units_has_no_meaning"),
]

# ----------------------------------------------------------------------------------------------------------- gradients

FINITE_DIFFERENCES = "gradients_are_those_of_finite_differences"


def _gradient_fault(component, name, function, *fails):
    names = tuple(f"{component}.{fail}" for fail in fails)
    return Fault(f"{component}_vjp {name}", {f"{component}_vjp": function}, names)


RELU_GRADIENT = [
    _gradient_fault(
        "relu",
        "passes at 0",
        lambda cotangent, x: (np.where(x >= 0, cotangent, 0.0),),
        "the_gradient_of_relu_at_0_is_0",
        "the_gradient_of_relu_passes_where_x_is_positive",
        "gradients_agree_with_the_reference",
    ),
    _gradient_fault(
        "relu",
        "halves at 0",
        lambda cotangent, x: (cotangent * (1 + np.sign(x)) / 2,),
        "the_gradient_of_relu_at_0_is_0",
    ),
    _gradient_fault(
        "relu",
        "passes everything",
        lambda cotangent, x: (cotangent.copy(),),
        "the_gradient_of_relu_passes_where_x_is_positive",
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "relu",
        "ignores the cotangent",
        lambda cotangent, x: (np.where(x > 0, 1.0, 0.0),),
        "the_gradient_of_relu_passes_where_x_is_positive",
        "the_gradient_is_linear_in_its_cotangent",
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "relu",
        "cuts where the cotangent is negative",
        lambda cotangent, x: (np.where(cotangent > 0, cotangent, 0.0) * (x > 0),),
        "the_gradient_of_relu_passes_where_x_is_positive",
        "the_gradient_is_linear_in_its_cotangent",
    ),
]


def _slope(erf_form, tanh_form=None):
    """Make a gradient of another slope for one form, or for both."""

    def gradient(cotangent, x, *, approximate="none"):
        form = tanh_form if approximate == "tanh" else erf_form
        return (np.asarray(cotangent * form(x)),) if form else gelu_vjp(cotangent, x, approximate=approximate)

    return gradient


def _probability(x):
    return np.asarray((1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2)


def _density(x):
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _argument(x):
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _slope_of_argument(x, cube=3 * 0.044715):
    return math.sqrt(2 / math.pi) * (1 + cube * x**2)


def _step(x):
    return (1 + np.tanh(_argument(x))) / 2


def _bend(x):
    return x / 2 * (1 - np.tanh(_argument(x)) ** 2)


def _slope_by_exponentials(x):
    with np.errstate(all="ignore"):
        e = np.exp(2 * _argument(x))
        return e / (1 + e) + 2 * x * e / (1 + e) ** 2 * _slope_of_argument(x)


def _slope_by_the_error_function_of_big_numbers(x):
    with np.errstate(all="ignore"):
        return _probability(x) + x * np.exp(-(x**2) / 2) * np.exp(x**2) / np.exp(x**2) / math.sqrt(2 * math.pi)


ERF_SLOPE = "the_slope_of_gelu_is_the_probability_plus_x_times_the_density"
ERF_MIRROR = "the_slopes_of_gelu_at_x_and_minus_x_sum_to_1"
TANH_MIRROR = "the_slopes_of_the_tanh_form_at_x_and_minus_x_sum_to_1"
ERF_FAR, TANH_FAR = (f"far_from_0_the_slope_of_{form}_is_0_or_1" for form in ("gelu", "the_tanh_form"))

GELU_GRADIENT = [
    _gradient_fault("gelu", "lacks x times the density", _slope(_probability), ERF_SLOPE, FINITE_DIFFERENCES),
    _gradient_fault(
        "gelu",
        "lacks the probability",
        _slope(lambda x: x * _density(x)),
        ERF_SLOPE,
        ERF_MIRROR,
        ERF_FAR,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "gelu", "lacks the x before the density", _slope(lambda x: _probability(x) + _density(x)), ERF_SLOPE, ERF_MIRROR
    ),
    _gradient_fault(
        "gelu",
        "does not norm the density",
        _slope(lambda x: _probability(x) + x * np.exp(-(x**2) / 2)),
        ERF_SLOPE,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "gelu",
        "forgets the half in the exponent",
        _slope(lambda x: _probability(x) + x * np.exp(-(x**2)) / math.sqrt(2 * math.pi)),
        ERF_SLOPE,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "gelu",
        "takes any other form for the erf form",
        lambda cotangent, x, *, approximate="none": gelu_vjp(
            cotangent, x, approximate="tanh" if approximate == "tanh" else "none"
        ),
        "the_gradient_of_an_unknown_form_raises",
    ),
    _gradient_fault("gelu", "overflows", _slope(_slope_by_the_error_function_of_big_numbers), ERF_FAR),
    _gradient_fault(
        "gelu",
        "has the slope of the other form",
        lambda cotangent, x, *, approximate="none": gelu_vjp(
            cotangent, x, approximate="tanh" if approximate == "none" else "none"
        ),
        ERF_SLOPE,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault("gelu", "lacks the bend of its tanh form", _slope(None, _step), FINITE_DIFFERENCES),
    _gradient_fault(
        "gelu",
        "lacks the step of its tanh form",
        _slope(None, lambda x: _bend(x) * _slope_of_argument(x)),
        TANH_MIRROR,
        TANH_FAR,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "gelu",
        "lacks the slope of the tanh form's argument",
        _slope(None, lambda x: _step(x) + _bend(x)),
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "gelu",
        "lacks the 3 of the cube's slope",
        _slope(None, lambda x: _step(x) + _bend(x) * _slope_of_argument(x, 0.044715)),
        FINITE_DIFFERENCES,
    ),
    _gradient_fault("gelu", "overflows in its tanh form", _slope(None, _slope_by_exponentials), TANH_FAR),
]


def _kept(cotangent, x, keep, *, rate):
    return (np.asarray(cotangent * keep),)


def _mask_forgotten(cotangent, x, keep, *, rate):
    return (np.asarray(cotangent / (1 - rate)),)


def _scaled_by_the_rate(cotangent, x, keep, *, rate):
    return (np.asarray(cotangent * keep / rate),)


def _mask_upside_down(cotangent, x, keep, *, rate):
    return dropout_vjp(cotangent, x, ~keep, rate=rate)


DROPPED = "the_gradient_of_what_is_dropped_is_0"
KEPT = "the_gradient_of_what_is_kept_is_divided_by_the_share_kept"

DROPOUT_GRADIENT = [
    _gradient_fault("dropout", "does not scale", _kept, KEPT, FINITE_DIFFERENCES),
    _gradient_fault("dropout", "divides by the rate", _scaled_by_the_rate, KEPT),
    _gradient_fault("dropout", "forgets the mask", _mask_forgotten, DROPPED, FINITE_DIFFERENCES),
    _gradient_fault(
        "dropout", "passes what was dropped", _mask_upside_down, DROPPED, KEPT, "gradients_agree_with_the_reference"
    ),
]


def _network_gradient(
    *,
    slope=lambda d_hidden, z, activation: _right_slope(d_hidden, z, activation),
    drop=dropout,
    hidden_of=lambda z, activation: activate(z, activation),
    dropped_hidden=True,
    total=np.sum,
):
    """Make a gradient of its parts: the activation's slope, what dropout does, what w_2 sees, how biases gather."""

    def gradient(cotangent, x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
        z, tokens = x @ w_1 + (0 if b_1 is None else b_1), tuple(range(x.ndim - 1))
        hidden = hidden_of(z, activation)
        hidden = hidden if keep is None or not dropped_hidden else dropout(hidden, keep, rate=rate)
        d_hidden = cotangent @ w_2.T
        d_hidden = d_hidden if keep is None else drop(d_hidden, keep, rate=rate)
        d_z = slope(d_hidden, z, activation)
        return (
            d_z @ w_1.T,
            np.tensordot(x, d_z, (tokens, tokens)),
            None if b_1 is None else total(d_z, axis=tokens),
            np.tensordot(hidden, cotangent, (tokens, tokens)),
            None if b_2 is None else total(cotangent, axis=tokens),
        )

    return gradient


def _right_slope(d_hidden, z, activation):
    if activation == "relu":
        return relu_vjp(d_hidden, z)[0]
    return gelu_vjp(d_hidden, z, approximate="tanh" if activation == "gelu_tanh" else "none")[0]


def _with(place, change):
    """Make a gradient with one of its five parts changed."""

    def gradient(cotangent, *net, **options):
        parts = list(feed_forward_vjp(cotangent, *net, **options))
        if parts[place] is not None:
            parts[place] = change(parts[place])
        return tuple(parts)

    return gradient


def _tokens_mixed(cotangent, x, *weights, **options):
    dx, *others = feed_forward_vjp(cotangent, x, *weights, **options)
    return (dx + 1e-3 * dx.mean(axis=-2, keepdims=True), *others)


TOKENS = "the_gradients_of_all_tokens_sum_to_that_of_the_first_bias_through_the_weights"
CHANNEL = "the_first_bias_learns_as_the_weights_of_a_channel_that_is_always_1"
SECOND_BIAS = "the_gradient_of_the_second_bias_is_the_sum_of_the_cotangents"
UNITS = "dropped_hidden_units_learn_nothing"
SILENT = "with_relu_a_silent_unit_learns_nothing"

FEED_FORWARD_GRADIENT = [
    _gradient_fault("feed_forward", "loses x", _with(0, lambda dx: 0 * dx), TOKENS, FINITE_DIFFERENCES),
    _gradient_fault("feed_forward", "loses w_1", _with(1, lambda dw: 0 * dw), CHANNEL, FINITE_DIFFERENCES),
    _gradient_fault("feed_forward", "loses b_1", _with(2, lambda db: 0 * db), CHANNEL, TOKENS, SILENT),
    _gradient_fault("feed_forward", "loses w_2", _with(3, lambda dw: 0 * dw), FINITE_DIFFERENCES),
    _gradient_fault("feed_forward", "loses b_2", _with(4, lambda db: 0 * db), SECOND_BIAS, FINITE_DIFFERENCES),
    _gradient_fault(
        "feed_forward",
        "averages its biases",
        _network_gradient(total=np.mean),
        CHANNEL,
        TOKENS,
        SECOND_BIAS,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault("feed_forward", "mixes tokens", _tokens_mixed, "a_cotangent_reaches_its_own_token_only"),
    _gradient_fault(
        "feed_forward",
        "has no slope",
        _network_gradient(slope=lambda d_hidden, z, activation: d_hidden),
        SILENT,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "feed_forward",
        "has one activation's slope",
        _network_gradient(slope=lambda d_hidden, z, activation: gelu_vjp(d_hidden, z)[0]),
        SILENT,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "feed_forward",
        "passes silent units at 0",
        _network_gradient(
            slope=lambda d, z, activation: (
                np.where(z >= 0, d, 0.0) if activation == "relu" else _right_slope(d, z, activation)
            )
        ),
        SILENT,
    ),
    _gradient_fault(
        "feed_forward",
        "shows w_2 what was before the activation",
        _network_gradient(hidden_of=lambda z, activation: z),
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "feed_forward",
        "shows w_2 what was dropped",
        _network_gradient(dropped_hidden=False),
        UNITS,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "feed_forward",
        "forgets dropout on the way back",
        _network_gradient(drop=lambda d_hidden, keep, rate: d_hidden),
        UNITS,
        FINITE_DIFFERENCES,
    ),
    _gradient_fault(
        "feed_forward",
        "forgets the scale of dropout on the way back",
        _network_gradient(drop=lambda d_hidden, keep, rate: d_hidden * keep),
        FINITE_DIFFERENCES,
    ),
]

COMMON = [Fault(p.id, p.on(right_functions()), p.caught_by) for p in PITFALLS]
GRADIENTS = RELU_GRADIENT + GELU_GRADIENT + DROPOUT_GRADIENT + FEED_FORWARD_GRADIENT

FAULTS = COMMON + RELU + GELU + DROPOUT + FEED_FORWARD + GRADIENTS
