"""Layer normalisation: each token's vector gets mean 0 and about unit variance, then a gain and a bias."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, raises
from spec_tests.spec import states
from spec_tests.strategies import EXACT, axes, numbers, whole_numbers

EPS = 0.1
"""So large that its place in the formula shows."""


@st.composite
def rows(draw, *, d_model=None, scales=EXACT):
    """Draw vectors with none to three axes before the last."""
    sizes = draw(axes(d_model=d_model)) if d_model else draw(axes())
    return draw(numbers((*sizes["batch"], sizes["seq"], sizes["d_model"]), scales=scales))


@st.composite
def rows_with_gain_and_bias(draw):
    """Draw vectors, a gain and a bias."""
    x = draw(rows())
    gamma, beta = (draw(numbers(x.shape[-1:], scales=EXACT)) for _ in range(2))
    return x, gamma, beta


def rounding(subject, x, *, eps=EPS, gamma=1.0, beta=0.0):
    """How far rounding may move a result.

    By eps for each number summed, times the condition: centring loses digits of x, which the division by no less than
    the root of eps (or eps itself, where it stands outside) brings up.
    """
    size = np.abs(x).max() / min(eps, eps**0.5)
    return 16 * subject.eps * x.shape[-1] * ((1 + size) * np.abs(gamma).max() + np.abs(beta).max())


# ----------------------------------------------------------------------------------------- mean, variance and variants


@states("layer_norm")
@given(x=rows())
def test_every_row_has_mean_0(subject, x):
    """Before gain and bias, the mean of each vector is 0."""
    means = subject.layer_norm(x, None, None, eps=EPS).mean(axis=-1)
    close(means, np.zeros(means.shape), within=rounding(subject, x), what="the mean of a row")


def _variance_is(subject, x, y, should, *, eps=EPS):
    # a row that is not constant has a variance of a few units; rounding moves it by its own share, twice
    within = rounding(subject, x, eps=eps) * (1 + 2 * np.abs(y).max())
    close(y.astype(np.float64).var(axis=-1), should, within=within, what="the variance of a row")


@states("layer_norm")
@given(x=rows())
def test_every_row_has_variance_var_over_var_plus_eps(subject, x):
    """Before gain and bias, each vector has variance var / (var + eps): eps stands inside the root."""
    y = subject.layer_norm(x, None, None, eps=EPS)
    var = x.var(axis=-1)
    _variance_is(subject, x, y, var / (var + EPS))


@states("layer_norm")
@given(x=rows())
def test_eps_outside_the_root_gives_variance_var_over_std_plus_eps_squared(subject, x):
    """With "std_plus_eps" each vector has variance var / (std + eps)²: the population deviation, plus eps."""
    y = subject.layer_norm(x, None, None, eps=EPS, variant="std_plus_eps")
    _variance_is(subject, x, y, x.var(axis=-1) / (x.std(axis=-1) + EPS) ** 2)


@states("layer_norm")
@given(x=rows(d_model=2) | rows(d_model=5))
def test_the_unbiased_deviation_divides_by_one_less(subject, x):
    """With "unbiased_std_plus_eps" the deviation s divides by d_model - 1: the variance is var / (s + eps)²."""
    y = subject.layer_norm(x, None, None, eps=EPS, variant="unbiased_std_plus_eps")
    s = np.sqrt(x.var(axis=-1) * x.shape[-1] / (x.shape[-1] - 1))
    _variance_is(subject, x, y, x.var(axis=-1) / (s + EPS) ** 2)


@states("layer_norm")
@given(x=rows(d_model=4, scales=(2.0**-8, 2.0**-10)))
def test_eps_is_1e_5_unless_given(subject, x):
    """Vectors whose variance is about 1e-5 show the default eps: var / (var + 1e-5)."""
    y = subject.layer_norm(x, None, None)
    var = x.var(axis=-1)
    _variance_is(subject, x, y, var / (var + 1e-5), eps=1e-5)


# --------------------------------------------------------------------------------------------------- shift and scale


@states("layer_norm")
@given(x=rows(), data=st.data())
def test_adding_a_constant_to_a_row_changes_nothing(subject, x, data):
    """A vector moved by the same amount in every channel, however far, has the same result."""
    far = 2.0 ** round(-np.log2(subject.eps) / 2)  # the far end of what x + far can hold, and its square cannot
    shifted = x + far * data.draw(whole_numbers((*x.shape[:-1], 1), low=-1, high=1))
    should = subject.layer_norm(x, None, None, eps=EPS)
    close(subject.layer_norm(shifted, None, None, eps=EPS), should, within=rounding(subject, shifted))


@states("layer_norm")
@given(x=rows(), c=st.sampled_from((-4.0, -0.5, 0.25, 2.0)))
def test_scaling_a_row_is_scaling_eps_by_the_square(subject, x, c):
    """layer_norm(c x) with c² eps is layer_norm(x) with eps, up to the sign of c: eps is measured in squares of x."""
    scaled = subject.layer_norm(c * x, None, None, eps=c**2 * EPS)
    within = rounding(subject, x) + rounding(subject, c * x, eps=c**2 * EPS)
    close(scaled, np.sign(c) * subject.layer_norm(x, None, None, eps=EPS), within=within)


def _scaling_scales_eps(subject, x, c, variant):
    scaled = subject.layer_norm(c * x, None, None, eps=abs(c) * EPS, variant=variant)
    should = np.sign(c) * subject.layer_norm(x, None, None, eps=EPS, variant=variant)
    close(scaled, should, within=rounding(subject, x) + rounding(subject, c * x, eps=abs(c) * EPS))


@states("layer_norm")
@given(x=rows(), c=st.sampled_from((-4.0, -0.5, 0.25, 2.0)))
def test_scaling_a_row_is_scaling_an_eps_outside_the_root(subject, x, c):
    """With "std_plus_eps", c x with |c| eps is x with eps, up to the sign of c: eps is measured as x is."""
    _scaling_scales_eps(subject, x, c, "std_plus_eps")


@states("layer_norm")
@given(x=rows(d_model=2) | rows(d_model=5), c=st.sampled_from((-4.0, -0.5, 0.25, 2.0)))
def test_scaling_a_row_is_scaling_the_eps_beside_an_unbiased_deviation(subject, x, c):
    """With "unbiased_std_plus_eps", too, c x with |c| eps is x with eps, up to the sign of c."""
    _scaling_scales_eps(subject, x, c, "unbiased_std_plus_eps")


# -------------------------------------------------------------------------------------------------------------- rows


@states("layer_norm")
@given(case=rows_with_gain_and_bias())
def test_a_constant_row_gives_beta(subject, case):
    """A vector without variance, and so any vector of width 1, gives beta: never NaN, whatever its level."""
    x, gamma, beta = case
    constant = np.broadcast_to(x[..., :1], x.shape)
    y = subject.layer_norm(constant, gamma, beta)
    within = rounding(subject, constant, eps=1e-5, gamma=gamma, beta=beta)
    close(y, np.broadcast_to(beta, x.shape), within=within)


@states("layer_norm")
@given(x=rows())
def test_a_constant_row_gives_zeros_with_eps_outside_the_root(subject, x):
    """With "std_plus_eps" a vector without variance gives zeros: eps keeps the division from 0 / 0."""
    y = subject.layer_norm(np.broadcast_to(x[..., :1], x.shape), None, None, eps=EPS, variant="std_plus_eps")
    close(y, np.zeros(x.shape), within=rounding(subject, x))


@states("layer_norm")
@given(case=rows_with_gain_and_bias(), data=st.data())
def test_each_row_is_normalised_for_itself(subject, case, data):
    """A vector has the same result alone as among others: no statistic is shared between tokens or sequences."""
    x, gamma, beta = case
    row = data.draw(st.sampled_from(list(np.ndindex(x.shape[:-1]))))
    alone = subject.layer_norm(x[row], gamma, beta, eps=EPS)
    within = rounding(subject, x, gamma=gamma, beta=beta)
    close(subject.layer_norm(x, gamma, beta, eps=EPS)[row], alone, within=within)


@states("layer_norm")
@given(x=rows(), data=st.data())
def test_nan_spoils_its_own_row_only(subject, x, data):
    """A vector with a NaN is all NaN, and no other vector is."""
    x[data.draw(st.sampled_from(list(np.ndindex(x.shape))))] = np.nan
    is_nan = np.isnan(subject.layer_norm(x, None, None, eps=EPS))
    equal(is_nan, np.broadcast_to(np.isnan(x).any(axis=-1, keepdims=True), x.shape), what="the NaNs")


# ------------------------------------------------------------------------------------------------------ gain and bias


@states("layer_norm")
@given(case=rows_with_gain_and_bias())
def test_gamma_multiplies_and_beta_is_added_channel_by_channel(subject, case):
    """The result is gamma times the normed vector, plus beta: a gain and a bias of its own for every channel."""
    x, gamma, beta = case
    normed = subject.layer_norm(x, None, None, eps=EPS)
    within = rounding(subject, x, gamma=gamma, beta=beta)
    close(subject.layer_norm(x, gamma, beta, eps=EPS), gamma * normed + beta, within=within)


@states("layer_norm")
@given(case=rows_with_gain_and_bias())
def test_a_part_that_is_none_is_left_out(subject, case):
    """No gamma is a gamma of ones, and no beta a beta of zeros."""
    x, gamma, beta = case
    ones, zeros = np.ones(x.shape[-1]), np.zeros(x.shape[-1])
    within = rounding(subject, x, gamma=gamma, beta=beta) + rounding(subject, x)
    gain_only, bias_only = subject.layer_norm(x, gamma, None, eps=EPS), subject.layer_norm(x, None, beta, eps=EPS)
    close(gain_only, subject.layer_norm(x, gamma, zeros, eps=EPS), within=within, what="the result without beta")
    close(bias_only, subject.layer_norm(x, ones, beta, eps=EPS), within=within, what="the result without gamma")


def _gain_and_bias_act(subject, x, gamma, beta, variant):
    normed = subject.layer_norm(x, None, None, eps=EPS, variant=variant)
    within = rounding(subject, x, gamma=gamma, beta=beta)
    close(subject.layer_norm(x, gamma, beta, eps=EPS, variant=variant), gamma * normed + beta, within=within)


@states("layer_norm")
@given(case=rows_with_gain_and_bias())
def test_gain_and_bias_act_with_eps_outside_the_root(subject, case):
    """With "std_plus_eps", too, the result is gamma times the normed vector, plus beta."""
    _gain_and_bias_act(subject, *case, "std_plus_eps")


@states("layer_norm")
@given(case=rows_with_gain_and_bias(), data=st.data())
def test_permuting_channels_with_their_gains_permutes_the_result(subject, case, data):
    """Channels have no order: exchanged with their gains and biases they give the same numbers, exchanged."""
    x, gamma, beta = case
    order = data.draw(st.permutations(range(x.shape[-1])))
    permuted = subject.layer_norm(x[..., order], gamma[order], beta[order], eps=EPS)
    within = rounding(subject, x, gamma=gamma, beta=beta)
    close(permuted, subject.layer_norm(x, gamma, beta, eps=EPS)[..., order], within=within)


# -------------------------------------------------------------------------------------------------------------- errors


@states("layer_norm")
@given(x=rows(d_model=1))
def test_the_unbiased_deviation_of_a_single_number_raises(subject, x):
    """With d_model 1 "unbiased_std_plus_eps" would divide by 0: a ValueError that names both."""
    with raises(subject, ValueError, "layer_norm", "unbiased_std_plus_eps", "d_model"):
        subject.layer_norm(x, None, None, variant="unbiased_std_plus_eps")


@states("layer_norm")
@given(x=rows(), eps=st.sampled_from((-0.1, -1e-5, float("nan"))))
def test_an_eps_below_0_raises(subject, x, eps):
    """A negative eps, or NaN, is a ValueError that names it."""
    with raises(subject, ValueError, "layer_norm", "eps", str(eps)):
        subject.layer_norm(x, None, None, eps=eps)


@states("layer_norm")
@given(x=rows(), variant=st.sampled_from(("rms", "Standard", "")))
def test_an_unknown_variant_raises(subject, x, variant):
    """A variant that is none of the three is an error, by value or by type, that names the option."""
    with raises(subject, (ValueError, TypeError), "layer_norm", "variant"):
        subject.layer_norm(x, None, None, variant=variant)


# ----------------------------------------------------------------------------------------------------------- gradients


@st.composite
def cotangents_and_rows(draw, *, constant=False, d_model=None):
    """Draw a cotangent, vectors (each of one number, if `constant`), a gain and a bias."""
    x = draw(rows(d_model=d_model))
    gamma, beta = (draw(numbers(x.shape[-1:], scales=EXACT)) for _ in range(2))
    x = np.broadcast_to(x[..., :1], x.shape).copy() if constant else x
    return draw(numbers(x.shape, scales=EXACT)), x, gamma, beta


SEVERAL = {"d_model": 5}
"""A width that an unbiased deviation has: 2 or more."""


def _divisor(x, variant):
    n = x.shape[-1]
    var = x.var(axis=-1, keepdims=True)
    return {
        "standard": np.sqrt(var + EPS),
        "std_plus_eps": np.sqrt(var) + EPS,
        "unbiased_std_plus_eps": np.sqrt(var * n / max(n - 1, 1)) + EPS,
    }[variant]


def _normed(x, variant):
    return (x - x.mean(axis=-1, keepdims=True)) / _divisor(x, variant)


def _gradients(subject, case, variant):
    return subject.layer_norm_vjp(*case, eps=EPS, variant=variant)


def rounding_of_gradient(subject, case, variant):
    """How far rounding may move a gradient of x: what centring loses of x and of g is divided, that of x twice."""
    cotangent, x, gamma, _ = case
    divisor = _divisor(x, variant)
    size = np.abs(cotangent * gamma).max(axis=-1, keepdims=True) / divisor
    return 64 * subject.eps * x.shape[-1] * size * (1 + np.abs(x).max(axis=-1, keepdims=True) / divisor)


def _sums_to_0(subject, case, variant):
    sums = _gradients(subject, case, variant)[0].sum(axis=-1, keepdims=True)
    within = case[1].shape[-1] * rounding_of_gradient(subject, case, variant)
    close(sums, np.zeros(sums.shape), within=within, what="the sum of a row's gradient")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows())
def test_the_gradient_of_a_row_sums_to_0(subject, case):
    """Moving all channels alike changes nothing, so the gradient of each vector sums to 0."""
    _sums_to_0(subject, case, "standard")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows())
def test_the_gradient_of_a_row_sums_to_0_with_eps_outside_the_root(subject, case):
    """With "std_plus_eps", too, the gradient of each vector sums to 0."""
    _sums_to_0(subject, case, "std_plus_eps")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows(**SEVERAL))
def test_the_gradient_of_a_row_sums_to_0_beside_an_unbiased_deviation(subject, case):
    """With "unbiased_std_plus_eps", too, the gradient of each vector sums to 0."""
    _sums_to_0(subject, case, "unbiased_std_plus_eps")


def _leaves_little_along_the_result(subject, case, variant, share):
    """Check dx . y = (g . y) / divisor x share, row by row, for y before gain and bias and g = gain x cotangent."""
    cotangent, x, gamma, _ = case
    y, divisor = _normed(x, variant), _divisor(x, variant)
    along = (_gradients(subject, case, variant)[0] * y).sum(axis=-1, keepdims=True)
    should = (gamma * cotangent * y).sum(axis=-1, keepdims=True) / divisor * share
    within = x.shape[-1] * (1 + np.abs(y).max()) * rounding_of_gradient(subject, case, variant)
    close(along, should, within=within, what="the gradient along the result")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows())
def test_along_the_result_only_eps_leaves_a_gradient(subject, case):
    """With y before gain and bias and g = gain x cotangent, dx . y = (g . y) / sqrt(var + eps) x eps / (var + eps)."""
    # a longer vector has the same direction: without eps no gradient would point along y
    var = case[1].var(axis=-1, keepdims=True)
    _leaves_little_along_the_result(subject, case, "standard", EPS / (var + EPS))


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows())
def test_along_the_result_an_eps_outside_the_root_leaves_a_gradient(subject, case):
    """With "std_plus_eps", dx . y = (g . y) / (std + eps) x eps / (std + eps), where g = gain x cotangent."""
    _leaves_little_along_the_result(subject, case, "std_plus_eps", EPS / _divisor(case[1], "std_plus_eps"))


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows(**SEVERAL))
def test_along_the_result_an_eps_beside_an_unbiased_deviation_leaves_a_gradient(subject, case):
    """With "unbiased_std_plus_eps", dx . y = (g . y) / (s + eps) x eps / (s + eps), where g = gain x cotangent."""
    share = EPS / _divisor(case[1], "unbiased_std_plus_eps")
    _leaves_little_along_the_result(subject, case, "unbiased_std_plus_eps", share)


def _is_centred(subject, case, variant):
    cotangent, _, gamma, _ = case
    g = gamma * cotangent
    should = (g - g.mean(axis=-1, keepdims=True)) / (EPS**0.5 if variant == "standard" else EPS)
    close(
        _gradients(subject, case, variant)[0],
        should,
        within=rounding_of_gradient(subject, case, variant),
        what="the gradient of a constant row",
    )


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows(constant=True))
def test_the_gradient_on_a_constant_row_is_centred(subject, case):
    """On a vector without variance the gradient is (g - mean g) / sqrt(eps), where g = gain x cotangent."""
    _is_centred(subject, case, "standard")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows(constant=True))
def test_the_gradient_on_a_constant_row_is_no_nan_with_eps_outside_the_root(subject, case):
    """With "std_plus_eps" it is (g - mean g) / eps there: the infinite slope of the root at 0 spoils nothing."""
    _is_centred(subject, case, "std_plus_eps")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows(constant=True, **SEVERAL))
def test_the_gradient_on_a_constant_row_is_no_nan_beside_an_unbiased_deviation(subject, case):
    """With "unbiased_std_plus_eps", too, it is (g - mean g) / eps there."""
    _is_centred(subject, case, "unbiased_std_plus_eps")


def _sum_over_rows(subject, case, variant):
    cotangent, x, _, _ = case
    y = _normed(x, variant)
    _, d_gamma, d_beta = _gradients(subject, case, variant)
    axes_of_rows = tuple(range(x.ndim - 1))
    raised = 1 + np.abs(x).max() / _divisor(x, variant).min()
    within = 64 * subject.eps * x.size * np.abs(cotangent).max()
    close(d_gamma, (cotangent * y).sum(axis=axes_of_rows), within=within * raised, what="the gradient of gamma")
    close(d_beta, cotangent.sum(axis=axes_of_rows), within=within, what="the gradient of beta")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows())
def test_the_gradients_of_gain_and_bias_are_sums_over_rows(subject, case):
    """Gamma's gradient is the sum over all vectors of cotangent times normed vector, beta's that of the cotangent."""
    _sum_over_rows(subject, case, "standard")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows())
def test_the_gradients_of_gain_and_bias_are_sums_with_eps_outside_the_root(subject, case):
    """With "std_plus_eps", too, the gradients of gamma and beta are these sums."""
    _sum_over_rows(subject, case, "std_plus_eps")


@states("layer_norm", gradient=True)
@given(case=cotangents_and_rows(), data=st.data())
def test_a_cotangent_reaches_its_own_row_only(subject, case, data):
    """Where only one vector's result counts, every other vector has a gradient of exactly 0."""
    cotangent, x, gamma, beta = case
    row = data.draw(st.sampled_from(list(np.ndindex(x.shape[:-1]))))
    only = np.zeros(x.shape)
    only[row] = cotangent[row]
    others = subject.layer_norm_vjp(only, x, gamma, beta, eps=EPS)[0].copy()
    others[row] = 0
    equal(others, np.zeros(x.shape), what="the gradient of the others")
