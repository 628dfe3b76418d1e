"""Wrong activations, dropout and feed-forward networks."""

import math

import numpy as np

from reference.numpy import dropout, feed_forward, gelu, relu
from spec_tests.meta.faults import Fault


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


def _quick(x, *, approximate="none"):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-1.702 * x))


def _always_tanh(x, *, approximate="none"):
    return gelu(x, approximate="tanh")


def _always_erf(x, *, approximate="none"):
    return gelu(x)


def _forms_swapped(x, *, approximate="none"):
    return gelu(x, approximate="tanh" if approximate == "none" else "none")


def _without_the_cube(x, *, approximate="none"):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * x)) if approximate == "tanh" else gelu(x)


def _root_of_2_forgotten(x, *, approximate="none"):
    return np.asarray(np.vectorize(lambda number: number / 2 * (1 + math.erf(number)), otypes=[float])(x))


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
        "is the quick one",
        _quick,
        "gelu_weighs_x_by_the_normal_probability",
        "the_tanh_form_is_the_published_one",
        "the_two_forms_part_near_2_7",
    ),
    _fault(
        "gelu",
        "is always the tanh form",
        _always_tanh,
        "gelu_weighs_x_by_the_normal_probability",
        "the_two_forms_part_near_2_7",
    ),
    _fault(
        "gelu",
        "is always the erf form",
        _always_erf,
        "the_tanh_form_is_the_published_one",
        "the_two_forms_part_near_2_7",
        "an_unknown_form_raises",
    ),
    _fault(
        "gelu",
        "has its forms swapped",
        _forms_swapped,
        "gelu_weighs_x_by_the_normal_probability",
        "the_tanh_form_is_the_published_one",
    ),
    _fault("gelu", "lacks the cube", _without_the_cube, "the_tanh_form_is_the_published_one"),
    _fault("gelu", "lacks the root of 2", _root_of_2_forgotten, "gelu_weighs_x_by_the_normal_probability"),
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
    _fault("gelu", "makes 0 of NaN", _gelu_hides_nan, "gelu_does_not_hide_nan"),
    _fault("gelu", "adds an axis", _gelu_adds_an_axis, "gelu_of_a_single_number_is_a_single_number"),
]

# ------------------------------------------------------------------------------------------------------------- dropout


def _not_scaled(x, keep, *, rate):
    dropout(x, keep, rate=rate)
    return x * keep


def _divided_by_the_rate(x, keep, *, rate):
    return x * keep / (rate or 1.0)


def _mask_read_as_drop(x, keep, *, rate):
    return dropout(x, ~keep, rate=rate)


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
        "does not scale",
        _not_scaled,
        "what_is_kept_is_divided_by_the_share_kept",
        "the_expectation_is_what_came_in",
    ),
    _fault(
        "dropout",
        "divides by the rate",
        _divided_by_the_rate,
        "what_is_kept_is_divided_by_the_share_kept",
        "the_expectation_is_what_came_in",
        "a_rate_outside_0_to_1_raises",
    ),
    _fault(
        "dropout",
        "drops what should be kept",
        _mask_read_as_drop,
        "what_is_kept_is_divided_by_the_share_kept",
        "what_is_dropped_is_0",
        "the_expectation_is_what_came_in",
        "keeping_all_at_rate_0_changes_nothing",
    ),
    _fault("dropout", "scales in evaluation", _scaled_at_test_time, "the_expectation_is_what_came_in"),
    _fault("dropout", "leaves a trace", _drops_to_almost_0, "what_is_dropped_is_0"),
    _fault("dropout", "has a least rate", _keeps_something_at_rate_0, "keeping_all_at_rate_0_changes_nothing"),
    _fault("dropout", "clamps the rate", _rate_clamped, "a_rate_outside_0_to_1_raises"),
]

# -------------------------------------------------------------------------------------------------------- feed_forward


def _network(middle, *, after=lambda out: out):
    """Make a network with another activation, `middle(hidden, activation)`, and something done to its output."""

    def network(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
        hidden = middle(x @ w_1 + (0 if b_1 is None else b_1), activation)
        hidden = hidden if keep is None else dropout(hidden, keep, rate=rate)
        return after(hidden @ w_2 + (0 if b_2 is None else b_2))

    return network


def _right_activation(hidden, activation):
    forms = {"relu": relu, "gelu": gelu, "gelu_tanh": lambda h: gelu(h, approximate="tanh")}
    return forms[activation](hidden)


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
        "has no activation",
        _network(lambda hidden, activation: hidden),
        "it_is_gelu_between_two_linear_maps",
        "its_activation_may_be_relu",
        "its_activation_may_be_the_tanh_form",
    ),
    _fault(
        "feed_forward",
        "bends its output",
        _network(_right_activation, after=gelu),
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
        _network(lambda hidden, activation: 0.5 + np.tanh(hidden / 2) / 2),
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
    _fault("feed_forward", "clamps the rate", _rate_clamped_in_the_network, "a_hidden_rate_outside_0_to_1_raises"),
    _fault("feed_forward", "sorts b_1", _weighted_by_rank, "the_order_of_the_hidden_units_has_no_meaning"),
]

FAULTS = RELU + GELU + DROPOUT + FEED_FORWARD
