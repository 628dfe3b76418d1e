"""What each token computes by itself: activations, dropout and the feed-forward network."""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import EXACT, axes, numbers, truths


@st.composite
def arrays(draw, *, scales=EXACT, high=9):
    """Draw an array of one axis to four."""
    sizes = draw(axes())
    shape = draw(st.sampled_from(((sizes["d_model"],), sizes["shape"])))
    return draw(numbers(shape, scales=scales, high=high))


# ---------------------------------------------------------------------------------------------------------------- relu


@states("relu")
@given(x=arrays())
def test_relu_keeps_what_is_positive_and_cuts_the_rest_to_0(subject, x):
    """What is positive stays exactly as it is; 0 and what is negative become 0."""
    equal(subject.relu(x), np.where(x > 0, x, 0.0))


@states("relu")
@given(x=arrays(), c=st.sampled_from((0.0, 0.5, 2.0, 1024.0)))
def test_relu_is_homogeneous(subject, x, c):
    """relu(c x) = c relu(x) for every c that is not negative: it knows no scale."""
    equal(subject.relu(c * x), c * subject.relu(x))


@states("relu")
@given(x=arrays())
def test_what_relu_cuts_off_is_what_it_keeps_of_the_opposite(subject, x):
    """relu(x) - relu(-x) = x."""
    equal(subject.relu(x) - subject.relu(-x), x)


@states("relu")
@given(x=arrays())
def test_relu_twice_is_relu_once(subject, x):
    """What has been cut is not cut again: relu(relu(x)) = relu(x)."""
    once = subject.relu(x)
    equal(subject.relu(once), once)


@states("relu")
@given(x=numbers(()))
def test_relu_of_a_single_number_is_a_single_number(subject, x):
    """An array without axes comes back as one."""
    close(subject.relu(x), subject.relu(x[None])[0], within=0.0)


def _with_nan(draw, x):
    x = np.array(x)
    x[draw(st.sampled_from(list(np.ndindex(x.shape))))] = np.nan
    return x


@states("relu")
@given(x=arrays(), data=st.data())
def test_relu_does_not_hide_nan(subject, x, data):
    """NaN stays NaN, and nothing else becomes it: an error upstream is not turned to 0."""
    x = _with_nan(data.draw, x)
    equal(np.isnan(subject.relu(x)), np.isnan(x), what="the NaNs")


# ---------------------------------------------------------------------------------------------------------------- gelu


def rounding_of_gelu(subject, x):
    """How far rounding may move x Φ(x): Φ is about 1 at most."""
    return 32 * subject.eps * np.abs(x)


def normal_probability(x):
    """Give the probability that a standard normal number is smaller."""
    return np.vectorize(lambda number: math.erfc(-number / math.sqrt(2)) / 2, otypes=[np.float64])(x)


@states("gelu")
@given(x=arrays(scales=(0.125, 0.5, 1.0)))
def test_gelu_weighs_x_by_the_normal_probability(subject, x):
    """gelu(x) is x times the probability that a standard normal number is smaller than x."""
    close(subject.gelu(x), x * normal_probability(x), within=rounding_of_gelu(subject, x))


@states("gelu")
@given(x=arrays(scales=(0.125, 0.5, 1.0)))
def test_the_tanh_form_is_the_published_one(subject, x):
    """The tanh form is x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    should = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    close(subject.gelu(x, approximate="tanh"), should, within=4 * rounding_of_gelu(subject, x))


@states("gelu")
@given(x=arrays())
def test_what_gelu_takes_away_is_what_it_leaves_of_the_opposite(subject, x):
    """gelu(x) - gelu(-x) = x, as for relu: the probabilities of x and -x sum to 1."""
    close(subject.gelu(x) - subject.gelu(-x), x, within=rounding_of_gelu(subject, x))


@states("gelu")
@given(x=arrays())
def test_the_tanh_form_shares_the_symmetry(subject, x):
    """gelu(x) - gelu(-x) = x for the tanh form too."""
    difference = subject.gelu(x, approximate="tanh") - subject.gelu(-x, approximate="tanh")
    close(difference, x, within=rounding_of_gelu(subject, x))


@states("gelu")
@given(x=arrays(scales=(0.0078125,), high=32), sign=st.sampled_from((-1, 1)))
def test_the_two_forms_part_near_2_7(subject, x, sign):
    """Near |x| = 2.7, where they differ most, the two forms are 0.00041 to 0.00048 apart: close, and not the same."""
    x = sign * (2.6875 + x)  # from 2.4375 to 2.9375
    apart = np.abs(subject.gelu(x) - subject.gelu(x, approximate="tanh"))
    holds((apart > 4.1e-4) & (apart < 4.8e-4), "the forms do not differ as they should", got=apart)


@states("gelu")
@given(x=arrays(scales=(0.0078125, 0.125, 1.0), high=60))
def test_gelu_lies_between_minus_0_17_and_relu(subject, x):
    """gelu(x) is nowhere above relu(x), nor below -0.17, its least value, which it has near x = -0.75."""
    y, within = subject.gelu(x), rounding_of_gelu(subject, x)
    holds((y > -0.17 - within) & (y <= np.maximum(x, 0) + within), "gelu is out of its bounds", got=y)


@states("gelu")
@given(x=arrays(scales=(1.0, 16.0, 1024.0)))
def test_far_from_0_gelu_is_relu(subject, x):
    """Beyond |x| = 10 gelu is x above and 0 below, without overflow."""
    x = x + np.where(x < 0, -10.0, 10.0)
    close(subject.gelu(x), np.maximum(x, 0), within=rounding_of_gelu(subject, x))


@states("gelu")
@given(x=arrays(scales=(1.0, 16.0, 1024.0)))
def test_far_from_0_the_tanh_form_is_relu(subject, x):
    """Beyond |x| = 10 the tanh form is x above and 0 below, without overflow."""
    x = x + np.where(x < 0, -10.0, 10.0)
    close(subject.gelu(x, approximate="tanh"), np.maximum(x, 0), within=rounding_of_gelu(subject, x))


@states("gelu")
@given(x=numbers(()))
def test_gelu_of_a_single_number_is_a_single_number(subject, x):
    """An array without axes comes back as one."""
    close(subject.gelu(x), subject.gelu(x[None])[0], within=rounding_of_gelu(subject, x))


@states("gelu")
@given(x=arrays(), data=st.data())
def test_gelu_does_not_hide_nan(subject, x, data):
    """NaN stays NaN, and nothing else becomes it."""
    x = _with_nan(data.draw, x)
    equal(np.isnan(subject.gelu(x)), np.isnan(x), what="the NaNs")


@states("gelu")
@given(x=arrays(), approximate=st.sampled_from(("erf", "quick", "unknown", "")))
def test_an_unknown_form_raises(subject, x, approximate):
    """A form that is neither "none" nor "tanh" is an error, by value or by type, that names the option."""
    with raises(subject, (ValueError, TypeError), "gelu", "approximate"):
        subject.gelu(x, approximate=approximate)


# ------------------------------------------------------------------------------------------------------------- dropout

RATES = st.sampled_from((0.1, 0.25, 0.5, 0.9))


@states("dropout")
@given(x=arrays(), rate=RATES, data=st.data())
def test_what_is_kept_is_divided_by_the_share_kept(subject, x, rate, data):
    """A kept number is divided by 1 - rate, wherever it stands."""
    keep = data.draw(truths(x.shape))
    kept = subject.dropout(x, keep, rate=rate)[keep]
    close(kept, x[keep] / (1 - rate), within=16 * subject.eps * np.abs(x[keep]) / (1 - rate), what="what is kept")


@states("dropout")
@given(x=arrays(), rate=RATES, data=st.data())
def test_what_is_dropped_is_0(subject, x, rate, data):
    """Where keep is False the result is exactly 0."""
    keep = data.draw(truths(x.shape))
    dropped = subject.dropout(x, keep, rate=rate)[~keep]
    equal(dropped, np.zeros(dropped.shape), what="what is dropped")


@states("dropout")
@given(x=st.integers(1, 6).flatmap(lambda n: numbers((n,), scales=EXACT)), rate=RATES)
def test_the_expectation_is_what_came_in(subject, x, rate):
    """Over all keep-masks, each weighted by its probability, the mean of the results is x."""
    n = len(x)
    keep = np.array(list(np.ndindex((2,) * n)), bool)
    probability = np.where(keep, 1 - rate, rate).prod(axis=-1)
    mean = probability @ subject.dropout(np.broadcast_to(x, keep.shape), keep, rate=rate)
    close(mean, x, within=32 * subject.eps * n * np.abs(x) / (1 - rate), what="the expectation")


@states("dropout")
@given(x=arrays())
def test_keeping_all_at_rate_0_changes_nothing(subject, x):
    """At rate 0, where all is kept, dropout is the identity: so it is in evaluation."""
    equal(subject.dropout(x, np.ones(x.shape, bool), rate=0.0), x)


@states("dropout")
@given(x=arrays(), rate=st.sampled_from((1.0, 1.5, -0.1, float("nan"))))
def test_a_rate_outside_0_to_1_raises(subject, x, rate):
    """A rate of 1, which would divide by 0, or one outside [0, 1), is a ValueError that names it."""
    with raises(subject, ValueError, "dropout", "rate", str(rate)):
        subject.dropout(x, np.ones(x.shape, bool), rate=rate)


# -------------------------------------------------------------------------------------------------------- feed_forward


class Network(NamedTuple):
    """Tokens, and the weights and biases of a feed-forward network."""

    x: np.ndarray
    w_1: np.ndarray
    b_1: np.ndarray | None
    w_2: np.ndarray
    b_2: np.ndarray | None

    @property
    def before(self):
        """Give the hidden values before the activation."""
        return self.x @ self.w_1 + (0 if self.b_1 is None else self.b_1)


@st.composite
def networks(draw, *, biases=True):
    """Draw tokens and a network, with biases or without."""
    sizes = draw(axes())
    d_model, d_ff = sizes["d_model"], sizes["d_ff"]
    return Network(
        draw(numbers((*sizes["batch"], sizes["seq"], d_model), scales=EXACT)),
        draw(numbers((d_model, d_ff), scales=(0.125, 0.5))),
        draw(numbers((d_ff,), scales=(0.125, 0.5))) if biases else None,
        draw(numbers((d_ff, d_model), scales=EXACT)),
        draw(numbers((d_model,), scales=EXACT)) if biases else None,
    )


def rounding_of_network(subject, net):
    """How far rounding may move an output: eps for each number summed, times the largest sum there can be."""
    hidden = np.abs(net.x) @ np.abs(net.w_1) + (0 if net.b_1 is None else np.abs(net.b_1))
    largest = (hidden @ np.abs(net.w_2)).max() + (0 if net.b_2 is None else np.abs(net.b_2).max())
    return 16 * subject.eps * sum(net.w_1.shape) * largest


@states("feed_forward")
@given(net=networks(), data=st.data())
def test_no_token_sees_another(subject, net, data):
    """The network is position-wise: a token has the same output alone as among others."""
    place = data.draw(st.sampled_from(list(np.ndindex(net.x.shape[:-1]))))
    alone = subject.feed_forward(*net._replace(x=net.x[place][None]))
    close(subject.feed_forward(*net)[place], alone[0], within=rounding_of_network(subject, net))


@states("feed_forward", needs=("gelu",))
@given(net=networks())
def test_it_is_gelu_between_two_linear_maps(subject, net):
    """Without options the network is gelu(x w_1 + b_1) w_2 + b_2."""
    should = subject.gelu(net.before) @ net.w_2 + net.b_2
    close(subject.feed_forward(*net), should, within=rounding_of_network(subject, net))


@states("feed_forward")
@given(net=networks())
def test_its_activation_may_be_relu(subject, net):
    """With activation "relu" the network is max(0, x w_1 + b_1) w_2 + b_2."""
    should = np.maximum(net.before, 0) @ net.w_2 + net.b_2
    close(subject.feed_forward(*net, activation="relu"), should, within=rounding_of_network(subject, net))


@states("feed_forward", needs=("gelu",))
@given(net=networks())
def test_its_activation_may_be_the_tanh_form(subject, net):
    """With activation "gelu_tanh" it is the tanh form that stands between the two linear maps."""
    should = subject.gelu(net.before, approximate="tanh") @ net.w_2 + net.b_2
    close(subject.feed_forward(*net, activation="gelu_tanh"), should, within=rounding_of_network(subject, net))


@states("feed_forward")
@given(net=networks())
def test_biases_of_none_are_biases_of_0(subject, net):
    """A bias that is None is left out: the network is that with biases of zeros."""
    zeros = net._replace(b_1=np.zeros(net.w_1.shape[1]), b_2=np.zeros(net.w_2.shape[1]))
    without = subject.feed_forward(*net._replace(b_1=None, b_2=None))
    close(without, subject.feed_forward(*zeros), within=rounding_of_network(subject, zeros))


@states("feed_forward")
@given(net=networks())
def test_silent_hidden_values_leave_the_second_bias(subject, net):
    """Where w_1 and b_1 are 0 so are the hidden values, for gelu(0) = 0: the output is b_2."""
    silent = net._replace(w_1=0 * net.w_1, b_1=0 * net.b_1)
    out = subject.feed_forward(*silent)
    equal(out, np.broadcast_to(net.b_2, out.shape))


@states("feed_forward")
@given(net=networks(biases=False))
def test_negating_the_second_weights_negates_the_output(subject, net):
    """Nothing bends after w_2: without biases, -w_2 gives minus the output, so that outputs have both signs."""
    negated = subject.feed_forward(*net._replace(w_2=-net.w_2))
    close(negated, -subject.feed_forward(*net), within=rounding_of_network(subject, net))


@states("feed_forward")
@given(net=networks(biases=False), c=st.sampled_from((0.25, 2.0, 64.0)))
def test_with_relu_and_no_biases_the_output_grows_as_the_input(subject, net, c):
    """A network of relu without biases is homogeneous: c x gives c times the output, for c > 0."""
    grown = subject.feed_forward(*net._replace(x=c * net.x), activation="relu")
    within = c * rounding_of_network(subject, net)
    close(grown, c * subject.feed_forward(*net, activation="relu"), within=within)


@states("feed_forward")
@given(net=networks(), data=st.data())
def test_the_order_of_the_hidden_units_has_no_meaning(subject, net, data):
    """Hidden units exchanged together with their weights and biases give the same output."""
    order = data.draw(st.permutations(range(net.w_1.shape[1])))
    exchanged = net._replace(w_1=net.w_1[:, order], b_1=net.b_1[order], w_2=net.w_2[order])
    close(subject.feed_forward(*exchanged), subject.feed_forward(*net), within=rounding_of_network(subject, net))


@states("feed_forward")
@given(net=networks(), rate=RATES, data=st.data())
def test_dropout_takes_away_hidden_units(subject, net, rate, data):
    """A hidden unit dropped everywhere might as well be absent; the others weigh 1 / (1 - rate) as much."""
    units = data.draw(truths(net.b_1.shape))
    units[0] = True
    smaller = Network(net.x, net.w_1[:, units], net.b_1[units], net.w_2[units] / (1 - rate), net.b_2)
    keep = np.broadcast_to(units, (*net.x.shape[:-1], len(units)))
    dropped = subject.feed_forward(*net, keep=keep, rate=rate)
    close(dropped, subject.feed_forward(*smaller), within=2 * rounding_of_network(subject, net) / (1 - rate))


@states("feed_forward")
@given(net=networks(), rate=RATES, data=st.data())
def test_each_token_has_its_own_keep_mask(subject, net, rate, data):
    """What is dropped for one token is not dropped for another: a token and its mask give the same alone."""
    keep = data.draw(truths((*net.x.shape[:-1], net.w_1.shape[1])))
    place = data.draw(st.sampled_from(list(np.ndindex(net.x.shape[:-1]))))
    alone = subject.feed_forward(*net._replace(x=net.x[place][None]), keep=keep[place][None], rate=rate)
    together = subject.feed_forward(*net, keep=keep, rate=rate)
    close(together[place], alone[0], within=rounding_of_network(subject, net) / (1 - rate))


@states("feed_forward")
@given(net=networks(), rate=RATES)
def test_dropping_every_hidden_value_leaves_the_second_bias(subject, net, rate):
    """Dropout acts on the hidden values, not on the output: where all are dropped, b_2 is left."""
    keep = np.zeros((*net.x.shape[:-1], net.w_1.shape[1]), bool)
    out = subject.feed_forward(*net, keep=keep, rate=rate)
    equal(out, np.broadcast_to(net.b_2, out.shape))


@states("feed_forward")
@given(net=networks(), rate=RATES)
def test_without_a_keep_mask_nothing_is_dropped(subject, net, rate):
    """A rate alone does nothing: without a keep-mask, as in evaluation, there is no dropout."""
    out = subject.feed_forward(*net, rate=rate)
    close(out, subject.feed_forward(*net), within=rounding_of_network(subject, net))


@states("feed_forward")
@given(net=networks(), rate=st.sampled_from((1.0, 1.5, -0.1, float("nan"))))
def test_a_hidden_rate_outside_0_to_1_raises(subject, net, rate):
    """A rate outside [0, 1) is a ValueError that names it."""
    keep = np.ones((*net.x.shape[:-1], net.w_1.shape[1]), bool)
    with raises(subject, ValueError, "rate", str(rate)):
        subject.feed_forward(*net, keep=keep, rate=rate)


@states("feed_forward")
@given(net=networks(), rate=st.sampled_from((1.0, 1.5, -0.1, float("nan"))))
def test_a_hidden_rate_outside_0_to_1_raises_where_nothing_is_dropped(subject, net, rate):
    """A rate outside [0, 1) is a ValueError without a keep-mask too, where it has no part in the result."""
    with raises(subject, ValueError, "rate", str(rate)):
        subject.feed_forward(*net, rate=rate)


@states("feed_forward")
@given(net=networks(), activation=st.sampled_from(("tanh", "GELU", "")))
def test_an_unknown_activation_raises(subject, net, activation):
    """An activation that is none of the three is an error, by value or by type, that names the option."""
    with raises(subject, (ValueError, TypeError), "feed_forward", "activation"):
        subject.feed_forward(*net, activation=activation)


# ----------------------------------------------------------------------------------------------------------- gradients


@st.composite
def with_cotangents(draw):
    """Draw numbers and a cotangent for each, zeros among both."""
    x = draw(arrays())
    return draw(numbers(x.shape, scales=EXACT)), x


@states("relu", gradient=True)
@given(drawn=with_cotangents())
def test_the_gradient_of_relu_passes_where_x_is_positive(subject, drawn):
    """Where x > 0 the cotangent passes as it is, and elsewhere the gradient is exactly 0."""
    cotangent, x = drawn
    equal(subject.relu_vjp(cotangent, x)[0], np.where(x > 0, cotangent, 0.0), what="the gradient")


@states("relu", gradient=True)
@given(drawn=with_cotangents(), negative=st.booleans())
def test_the_gradient_of_relu_at_0_is_0(subject, drawn, negative):
    """At 0, whose sign does not matter, relu has the slope 0."""
    cotangent, x = drawn
    zeros = np.full(x.shape, -0.0 if negative else 0.0)
    equal(subject.relu_vjp(cotangent, zeros)[0], np.zeros(x.shape), what="the gradient")


def _slopes(subject, x, **options):
    return subject.gelu_vjp(np.ones(x.shape), x, **options)[0]


def rounding_of_slope(subject, x):
    """How far rounding may move a slope: 1 - tanh² is multiplied by a cube of x, as far as it is not 0."""
    return 32 * subject.eps * (1 + np.minimum(np.abs(x), 8.0) ** 3)


@states("gelu", gradient=True)
@given(x=arrays())
def test_the_slope_of_gelu_is_the_probability_plus_x_times_the_density(subject, x):
    """The gradient is the cotangent times Phi(x) + x phi(x), for the standard normal Phi and its density phi."""
    probability = (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    close(_slopes(subject, x), probability + x * density, within=rounding_of_slope(subject, x), what="the slope")


@states("gelu", gradient=True)
@given(x=arrays())
def test_the_slopes_of_gelu_at_x_and_minus_x_sum_to_1(subject, x):
    """As gelu(x) - gelu(-x) = x, the slopes at x and -x sum to 1; at 0 it is a half."""
    both = _slopes(subject, x) + _slopes(subject, -x)
    close(both, np.ones(x.shape), within=2 * rounding_of_slope(subject, x), what="the sum of two slopes")


@states("gelu", gradient=True)
@given(x=arrays())
def test_the_slopes_of_the_tanh_form_at_x_and_minus_x_sum_to_1(subject, x):
    """The tanh form, too, is x plus its mirror image: its slopes at x and -x sum to 1."""
    both = _slopes(subject, x, approximate="tanh") + _slopes(subject, -x, approximate="tanh")
    close(both, np.ones(x.shape), within=2 * rounding_of_slope(subject, x), what="the sum of two slopes")


@states("gelu", gradient=True)
@given(x=arrays(), approximate=st.sampled_from(("erf", "quick", "unknown", "")))
def test_the_gradient_of_an_unknown_form_raises(subject, x, approximate):
    """The gradient, too, of a form that is neither "none" nor "tanh" is an error that names the option."""
    with raises(subject, (ValueError, TypeError), "gelu", "approximate"):
        subject.gelu_vjp(np.ones(x.shape), x, approximate=approximate)


@states("gelu", gradient=True)
@given(x=arrays(scales=(1.0, 16.0, 1024.0)))
def test_far_from_0_the_slope_of_gelu_is_0_or_1(subject, x):
    """Beyond |x| = 10 the slope is 0 below and 1 above, without overflow."""
    x = x + np.where(x < 0, -10.0, 10.0)
    close(_slopes(subject, x), (x > 0).astype(x.dtype), within=rounding_of_slope(subject, x), what="the slope")


@states("gelu", gradient=True)
@given(x=arrays(scales=(1.0, 16.0, 1024.0)))
def test_far_from_0_the_slope_of_the_tanh_form_is_0_or_1(subject, x):
    """Beyond |x| = 10 the slope of the tanh form is 0 below and 1 above, without overflow."""
    x = x + np.where(x < 0, -10.0, 10.0)
    slopes = _slopes(subject, x, approximate="tanh")
    close(slopes, (x > 0).astype(x.dtype), within=rounding_of_slope(subject, x), what="the slope")


@states("dropout", gradient=True)
@given(drawn=with_cotangents(), rate=RATES, data=st.data())
def test_the_gradient_of_what_is_dropped_is_0(subject, drawn, rate, data):
    """Where keep is False the gradient is exactly 0."""
    cotangent, x = drawn
    keep = data.draw(truths(x.shape))
    dropped = subject.dropout_vjp(cotangent, x, keep, rate=rate)[0][~keep]
    equal(dropped, np.zeros(dropped.shape), what="the gradient of what is dropped")


@states("dropout", gradient=True)
@given(drawn=with_cotangents(), rate=RATES, data=st.data())
def test_the_gradient_of_what_is_kept_is_divided_by_the_share_kept(subject, drawn, rate, data):
    """The gradient of a kept number is the cotangent over 1 - rate."""
    cotangent, x = drawn
    keep = data.draw(truths(x.shape))
    kept, should = subject.dropout_vjp(cotangent, x, keep, rate=rate)[0][keep], cotangent[keep] / (1 - rate)
    close(kept, should, within=16 * subject.eps * np.abs(should), what="the gradient of what is kept")


@st.composite
def networks_with_cotangents(draw):
    """Draw a cotangent and a network with biases."""
    net = draw(networks())
    return draw(numbers(net.x.shape, scales=EXACT)), net


def rounding_of_network_gradient(subject, cotangent, net):
    """How far rounding may move a gradient: eps for each number summed, times the largest sum there can be."""
    largest_z = 1 + (np.abs(net.x) @ np.abs(net.w_1) + np.abs(net.b_1)).max()
    largest_dz = (np.abs(cotangent) @ np.abs(net.w_2).T).max()
    size = np.abs(cotangent).max() + largest_dz * (1 + np.abs(net.x).max() + np.abs(net.w_1).max())
    return 64 * subject.eps * net.x.size * sum(net.w_1.shape) * largest_z * size


@states("feed_forward", gradient=True)
@given(drawn=networks_with_cotangents(), data=st.data())
def test_a_cotangent_reaches_its_own_token_only(subject, drawn, data):
    """Where only one token's output counts, the x of every other token has a gradient of exactly 0."""
    cotangent, net = drawn
    place = data.draw(st.sampled_from(list(np.ndindex(net.x.shape[:-1]))))
    only = np.zeros(net.x.shape)
    only[place] = cotangent[place]
    others = subject.feed_forward_vjp(only, *net)[0].copy()
    others[place] = 0
    equal(others, np.zeros(net.x.shape), what="the gradient of the others")


@states("feed_forward", gradient=True)
@given(drawn=networks_with_cotangents())
def test_the_gradient_of_the_second_bias_is_the_sum_of_the_cotangents(subject, drawn):
    """The second bias is added to every token, so it gathers the cotangents of all."""
    cotangent, net = drawn
    should = cotangent.reshape(-1, cotangent.shape[-1]).sum(axis=0)
    equal(subject.feed_forward_vjp(cotangent, *net)[4], should, what="the gradient of b_2")


@states("feed_forward", gradient=True)
@given(drawn=networks_with_cotangents())
def test_the_first_bias_learns_as_the_weights_of_a_channel_that_is_always_1(subject, drawn):
    """A channel of x that is 1 for every token makes a bias of its weights: their gradient is that of b_1."""
    cotangent, net = drawn
    net.x[..., 0] = 1.0
    _, d_w_1, d_b_1, _, _ = subject.feed_forward_vjp(cotangent, *net)
    close(d_w_1[0], d_b_1, within=rounding_of_network_gradient(subject, cotangent, net), what="the gradient of a row")


@states("feed_forward", gradient=True)
@given(drawn=networks_with_cotangents())
def test_the_gradients_of_all_tokens_sum_to_that_of_the_first_bias_through_the_weights(subject, drawn):
    """Moving every token alike is moving b_1 by that times w_1: the sum of dx over tokens is w_1 db_1."""
    cotangent, net = drawn
    dx, _, d_b_1, _, _ = subject.feed_forward_vjp(cotangent, *net)
    total = dx.reshape(-1, dx.shape[-1]).sum(axis=0)
    within = rounding_of_network_gradient(subject, cotangent, net)
    close(total, net.w_1 @ d_b_1, within=within, what="the sum of the gradients of x")


@states("feed_forward", gradient=True)
@given(drawn=networks_with_cotangents())
def test_with_relu_a_silent_unit_learns_nothing(subject, drawn):
    """With activation "relu" what comes to it at or below 0 passes no gradient; b_1 gathers those of the rest."""
    cotangent, net = drawn
    into_hidden = np.where(net.before > 0, cotangent @ net.w_2.T, 0.0)
    should = into_hidden.reshape(-1, into_hidden.shape[-1]).sum(axis=0)
    d_b_1 = subject.feed_forward_vjp(cotangent, *net, activation="relu")[2]
    close(d_b_1, should, within=rounding_of_network_gradient(subject, cotangent, net), what="the gradient of b_1")


@states("feed_forward", gradient=True)
@given(drawn=networks_with_cotangents(), rate=RATES, data=st.data())
def test_dropped_hidden_units_learn_nothing(subject, drawn, rate, data):
    """A hidden unit that is dropped for every token has gradients of exactly 0 in w_1, b_1 and w_2."""
    cotangent, net = drawn
    units = data.draw(truths(net.b_1.shape))
    units[0] = False
    keep = np.broadcast_to(units, (*net.x.shape[:-1], len(units)))
    _, d_w_1, d_b_1, d_w_2, _ = subject.feed_forward_vjp(cotangent, *net, keep=keep, rate=rate)
    for name, gradient in (("w_1", d_w_1[:, ~units]), ("b_1", d_b_1[~units]), ("w_2", d_w_2[~units])):
        equal(gradient, np.zeros(gradient.shape), what=f"the gradient of {name} at a dropped unit")
