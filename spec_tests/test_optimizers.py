"""What is true of one step of AdamW, of clipping, and of the learning rate's schedule."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reference.parameters import leaves
from spec_tests.judge import close, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import axes, numbers, whole_numbers

LR = st.sampled_from((0.1, 0.5, 1.0))


@st.composite
def weights_and_gradients(draw, gradients=1):
    """Draw a parameter and so many gradients of its shape."""
    shape = draw(axes())["shape"]
    return [draw(numbers(shape)) for _ in range(1 + gradients)]


def zeros(param):
    """Give the moments before the first step."""
    return np.zeros(param.shape), np.zeros(param.shape)


def rounding(subject, param, lr):
    """Bound what rounding does to a step; 1 - beta_2, which is 0.001, is known to 1000 units of rounding only."""
    return 32 * subject.eps * (np.abs(param).max() + 1000 * lr)


# --------------------------------------------------------------------------------------------- adamw_step


@states("adamw_step")
@given(drawn=weights_and_gradients(), lr=LR, eps=st.sampled_from((0.1, 1.0)))
def test_the_first_step_has_the_size_of_the_learning_rate(subject, drawn, lr, eps):
    """Without decay the first step is lr * g / (|g| + eps): eps stands beside the corrected root."""
    param, g = drawn
    got, _, _ = subject.adamw_step(param, g, *zeros(param), step=1, lr=lr, eps=eps, weight_decay=0.0)
    close(got, param - lr * g / (np.abs(g) + eps), within=rounding(subject, param, lr))


@states("adamw_step")
@given(drawn=weights_and_gradients(), lr=LR)
def test_a_steady_gradient_makes_steady_steps(subject, drawn, lr):
    """The correction of the bias is exact: under one and the same gradient every step is as long as the first."""
    param, g = drawn
    got, (m, v) = param, zeros(param)
    for step in (1, 2, 3):
        got, m, v = subject.adamw_step(got, g, m, v, step=step, lr=lr, eps=0.5, weight_decay=0.0)
    close(got, param - 3 * lr * g / (np.abs(g) + 0.5), within=4 * rounding(subject, param, lr))


@states("adamw_step")
@given(drawn=weights_and_gradients(gradients=2), lr=LR)
def test_the_second_step_remembers_the_first(subject, drawn, lr):
    """The second step follows the corrected means (b1 g1 + g2) / (b1 + 1) and (b2 g1² + g2²) / (b2 + 1)."""
    param, g_1, g_2 = drawn
    options = {"lr": lr, "beta_1": 0.5, "beta_2": 0.25, "eps": 0.5, "weight_decay": 0.0}
    once, m, v = subject.adamw_step(param, g_1, *zeros(param), step=1, **options)
    twice, _, _ = subject.adamw_step(once, g_2, m, v, step=2, **options)
    m_hat = (0.5 * g_1 + g_2) / 1.5
    v_hat = (0.25 * g_1**2 + g_2**2) / 1.25
    close(twice, once - lr * m_hat / (np.sqrt(v_hat) + 0.5), within=rounding(subject, param, lr))


@states("adamw_step")
@given(drawn=weights_and_gradients(gradients=3), step=st.integers(1, 20))
def test_the_moments_are_running_means(subject, drawn, step):
    """The moments m and v move by a tenth and a thousandth towards g and g²; weight and decay have no part in them."""
    param, g, m, v = drawn
    v = v**2
    _, got_m, got_v = subject.adamw_step(param, g, m, v, step=step, lr=0.1)
    close(got_m, 0.9 * m + 0.1 * g, within=32 * subject.eps * (np.abs(m) + np.abs(g)), what="m")
    close(got_v, 0.999 * v + 0.001 * g**2, within=32 * subject.eps * (v + g**2), what="v")


@states("adamw_step")
@given(drawn=weights_and_gradients(), lr=LR, weight_decay=st.sampled_from((0.25, 0.5)))
def test_without_a_gradient_only_the_decay_acts(subject, drawn, lr, weight_decay):
    """Decay is decoupled: a weight that has no gradient shrinks by the factor 1 - lr * weight_decay."""
    param, _ = drawn
    got, _, _ = subject.adamw_step(
        param, np.zeros(param.shape), *zeros(param), step=1, lr=lr, weight_decay=weight_decay
    )
    close(got, param * (1 - lr * weight_decay), within=16 * subject.eps * np.abs(param))


@states("adamw_step")
@given(drawn=weights_and_gradients(), lr=LR, weight_decay=st.sampled_from((0.25, 0.5)))
def test_decay_acts_on_the_old_weight(subject, drawn, lr, weight_decay):
    """Decay takes lr * weight_decay * weight, the weight being that before the step and the gradient any."""
    param, g = drawn
    plain, _, _ = subject.adamw_step(param, g, *zeros(param), step=1, lr=lr, weight_decay=0.0)
    decayed, _, _ = subject.adamw_step(param, g, *zeros(param), step=1, lr=lr, weight_decay=weight_decay)
    close(plain - decayed, lr * weight_decay * param, within=64 * subject.eps * (1 + np.abs(param)))


@states("adamw_step")
@given(drawn=weights_and_gradients(), step=st.integers(1, 20))
def test_nothing_to_learn_changes_nothing(subject, drawn, step):
    """With no gradient now or before, and no decay, the weight stays: 0 / (0 + eps) is 0."""
    param, _ = drawn
    nothing = np.zeros(param.shape)
    got, m, v = subject.adamw_step(param, nothing, *zeros(param), step=step, lr=0.5, weight_decay=0.0)
    equal(got, param.astype(subject.dtype))
    equal(m, nothing, what="m")
    equal(v, nothing, what="v")


@states("adamw_step")
@given(drawn=weights_and_gradients(), lr=LR)
def test_each_number_learns_by_itself(subject, drawn, lr):
    """A weight's step depends on its own gradient only, not on those of its neighbours."""
    param, g = drawn
    rest = g.copy()
    rest.flat[0] = 0
    other, _, _ = subject.adamw_step(param, rest, *zeros(param), step=1, lr=lr)
    whole, _, _ = subject.adamw_step(param, g, *zeros(param), step=1, lr=lr)
    close(other.flat[1:], whole.flat[1:], within=16 * subject.eps * (lr + np.abs(param.flat[1:])))


@states("adamw_step")
@given(drawn=weights_and_gradients(), step=st.integers(-2, 0))
def test_a_step_before_the_first_is_refused(subject, drawn, step):
    """Steps count from 1: a step of 0 is a ValueError, since its correction would divide by 0."""
    param, g = drawn
    with raises(subject, ValueError, "step", str(step)):
        subject.adamw_step(param, g, *zeros(param), step=step, lr=0.1)


@states("adamw_step")
@given(
    drawn=weights_and_gradients(),
    option=st.tuples(st.sampled_from(("beta_1", "beta_2")), st.sampled_from((1.0, 1.5, -0.5))),
)
def test_a_beta_outside_zero_to_one_is_refused(subject, drawn, option):
    """A beta of 1, which never learns, above it or below 0 is a ValueError."""
    param, g = drawn
    name, value = option
    with raises(subject, ValueError, name):
        subject.adamw_step(param, g, *zeros(param), step=1, lr=0.1, **{name: value})


@states("adamw_step")
@given(drawn=weights_and_gradients(), name=st.sampled_from(("lr", "eps", "weight_decay")))
def test_a_negative_rate_is_refused(subject, drawn, name):
    """A learning rate, eps or decay below 0 is a ValueError."""
    param, g = drawn
    with raises(subject, ValueError, name):
        subject.adamw_step(param, g, *zeros(param), step=1, **{"lr": 0.1, name: -0.5})


# ----------------------------------------------------------------------------------------- clip_grad_norm


@st.composite
def gradients(draw, scale=1.0):
    """Draw a list of one to three gradients of different shapes, not all of them 0, times `scale`."""
    shapes = [(3,), (2, 4), ()][: draw(st.integers(1, 3))]
    grads = [np.asarray(scale * draw(whole_numbers(shape))) for shape in shapes]
    grads[0][0] += scale * (not any(g.any() for g in grads))
    return grads


def norm_of(grads):
    """Give the length of all gradients together."""
    return math.sqrt(sum(float((g**2).sum()) for g in grads))


SMALL = 2.0**-12
"""Gradients of this size show a constant of 1e-6 beside the norm."""


@states("clip_grad_norm")
@given(grads=gradients(), factor=st.sampled_from((0.25, 4.0)))
def test_returns_the_norm_before_clipping(subject, grads, factor):
    """The norm returned is that of all arrays together as they came, clipped or not."""
    norm = norm_of(grads)
    _, got = subject.clip_grad_norm(grads, max_norm=factor * norm)
    close(got, norm, within=64 * subject.eps * norm, what="the norm")


@states("clip_grad_norm")
@given(grads=gradients(scale=SMALL), share=st.sampled_from((0.5, 0.25, 0.9)))
def test_a_long_gradient_is_scaled_to_exactly_max_norm(subject, grads, share):
    """Every array is scaled by max_norm / norm, one factor for all, with nothing added to the norm."""
    max_norm = share * norm_of(grads)
    clipped, _ = subject.clip_grad_norm(grads, max_norm=max_norm)
    for got, grad in zip(clipped, grads, strict=True):
        close(got, share * grad, within=64 * subject.eps * np.abs(grad), what="a clipped gradient")


@states("clip_grad_norm")
@given(grads=gradients(), factor=st.sampled_from((1.5, 8.0)))
def test_a_short_gradient_is_untouched(subject, grads, factor):
    """A gradient within max_norm comes back to the last bit."""
    clipped, _ = subject.clip_grad_norm(grads, max_norm=factor * norm_of(grads))
    for got, grad in zip(clipped, grads, strict=True):
        equal(got, grad, what="a short gradient")


@states("clip_grad_norm")
@given(grads=gradients(), cut=st.integers(1, 2))
def test_how_gradients_are_grouped_does_not_matter(subject, grads, cut):
    """There is one global norm: cutting an array in two changes neither it nor what is left of the numbers."""
    max_norm = 0.5 * norm_of(grads)
    whole, norm = subject.clip_grad_norm(grads, max_norm=max_norm)
    parts, norm_of_parts = subject.clip_grad_norm([grads[0][:cut], grads[0][cut:], *grads[1:]], max_norm=max_norm)
    close(norm_of_parts, norm, within=64 * subject.eps * norm, what="the norm")
    close(np.concatenate(parts[:2]), whole[0], within=64 * subject.eps * np.abs(whole[0]), what="a gradient")


@states("clip_grad_norm")
@given(grads=gradients())
def test_a_tree_keeps_its_form(subject, grads):
    """A tree of gradients, dicts and lists as parameters have them, comes back as the same tree."""
    tree = {"token_embedding": {"table": grads[0]}, "blocks": [{"mlp": {"b_1": grad}} for grad in grads]}
    norm = norm_of([grads[0], *grads])
    clipped, got_norm = subject.clip_grad_norm(tree, max_norm=0.5 * norm)
    close(got_norm, norm, within=64 * subject.eps * norm, what="the norm")
    got, should = dict(leaves(clipped)), dict(leaves(tree))
    # JAX sorts the keys of its dicts: their order is no form
    holds(set(got) == set(should), "the tree has another form", got=str(list(got)), should=str(list(should)))
    for path, grad in should.items():
        close(got[path], 0.5 * grad, within=64 * subject.eps * np.abs(grad), what=f"the gradient {path}")


@states("clip_grad_norm")
@given(grads=gradients())
def test_huge_gradients_do_not_overflow(subject, grads):
    """Gradients whose squares are too large for a float, as at 1e200, still have a finite norm and direction."""
    huge = 2.0 ** (np.finfo(subject.dtype).maxexp * 3 // 4)
    norm = norm_of(grads)
    clipped, got = subject.clip_grad_norm([np.asarray(grad * huge) for grad in grads], max_norm=1.0)
    close(got / huge, norm, within=64 * subject.eps * norm, what="the norm, scaled back,")
    for part, grad in zip(clipped, grads, strict=True):
        close(part, grad / norm, within=64 * subject.eps, what="a clipped gradient")


@states("clip_grad_norm")
@given(grads=gradients())
def test_tiny_gradients_do_not_vanish(subject, grads):
    """Gradients whose squares are too small for a float, as at 1e-200, still have a norm and a direction."""
    tiny = 2.0 ** (np.finfo(subject.dtype).minexp * 3 // 4)
    norm = norm_of(grads)
    clipped, got = subject.clip_grad_norm([np.asarray(grad * tiny) for grad in grads], max_norm=norm * tiny / 2)
    close(got / tiny, norm, within=64 * subject.eps * norm, what="the norm, scaled back,")
    for part, grad in zip(clipped, grads, strict=True):
        close(part / tiny, grad / 2, within=64 * subject.eps * norm, what="a clipped gradient, scaled back,")


@states("clip_grad_norm")
@given(grads=gradients())
def test_gradients_of_zero_stay_zero(subject, grads):
    """Where all gradients are 0 so is the norm, and nothing is divided by it."""
    nothing = [np.zeros(grad.shape) for grad in grads]
    clipped, norm = subject.clip_grad_norm(nothing, max_norm=1.0)
    equal(norm, 0.0, what="the norm")
    for got, grad in zip(clipped, nothing, strict=True):
        equal(got, grad, what="a gradient of 0")


@states("clip_grad_norm")
@given(grads=gradients(), value=st.sampled_from((np.nan, np.inf, -np.inf)))
def test_a_gradient_that_is_not_finite_is_refused(subject, grads, value):
    """A NaN or an infinity among the gradients is a ValueError: scaling by it would spoil every parameter."""
    grads[-1] = np.where(np.arange(grads[-1].size).reshape(grads[-1].shape) == 0, value, grads[-1])
    with raises(subject, ValueError, "finite"):
        subject.clip_grad_norm(grads, max_norm=1.0)


@states("clip_grad_norm")
@given(grads=gradients(), max_norm=st.sampled_from((0.0, -1.0, np.inf, np.nan)))
def test_a_max_norm_that_is_not_positive_and_finite_is_refused(subject, grads, max_norm):
    """A max_norm of 0, below 0, infinite or NaN is a ValueError."""
    with raises(subject, ValueError, "max_norm", str(max_norm)):
        subject.clip_grad_norm(grads, max_norm=max_norm)


# ------------------------------------------------------------------------------------------ warmup_cosine

RATE = st.sampled_from((1.0, 0.25, 3e-4))


@st.composite
def schedules(draw, least_fall=0, least_warmup=0):
    """Draw warmup and total with at least so many steps between the peak and the end."""
    warmup = draw(st.integers(least_warmup, 12))
    return {"warmup": warmup, "total": max(warmup, 1) + draw(st.integers(least_fall, 12))}


@states("warmup_cosine")
@given(schedule=schedules(), max_lr=RATE)
def test_the_first_rate_is_not_zero(subject, schedule, max_lr):
    """The first step learns: its rate is above 0."""
    rate = subject.warmup_cosine(0, **schedule, max_lr=max_lr)
    holds(rate > 0, "the first rate is not positive", got=rate)


@states("warmup_cosine")
@given(schedule=schedules(least_warmup=1), max_lr=RATE, data=st.data())
def test_warm_up_is_a_straight_line(subject, schedule, max_lr, data):
    """Before `warmup` the rate of step t is max_lr * (t + 1) / warmup."""
    step = data.draw(st.integers(0, schedule["warmup"] - 1))
    should = max_lr * (step + 1) / schedule["warmup"]
    close(subject.warmup_cosine(step, **schedule, max_lr=max_lr), should, within=16 * subject.eps * max_lr)


@states("warmup_cosine")
@given(schedule=schedules(), max_lr=RATE)
def test_the_peak_ends_the_warm_up(subject, schedule, max_lr):
    """The rate is max_lr at step warmup - 1, or at step 0 where there is no warm-up."""
    peak = max(schedule["warmup"] - 1, 0)
    close(subject.warmup_cosine(peak, **schedule, max_lr=max_lr), max_lr, within=16 * subject.eps * max_lr)


@states("warmup_cosine")
@given(total=st.integers(1, 12), max_lr=RATE)
def test_the_peak_wins_over_the_end(subject, total, max_lr):
    """Where the warm-up takes all steps the last one has the rate max_lr, not min_lr."""
    rate = subject.warmup_cosine(total - 1, warmup=total, total=total, max_lr=max_lr)
    close(rate, max_lr, within=16 * subject.eps * max_lr)


@states("warmup_cosine")
@given(schedule=schedules(least_fall=1), max_lr=RATE, share=st.sampled_from((0.1, 0.5)), after=st.integers(0, 40))
def test_reaches_min_lr_with_the_last_step_and_stays(subject, schedule, max_lr, share, after):
    """From step total - 1 on the rate is min_lr, where warm-up has left a step to fall in."""
    min_lr = share * max_lr
    rate = subject.warmup_cosine(schedule["total"] - 1 + after, **schedule, max_lr=max_lr, min_lr=min_lr)
    close(rate, min_lr, within=16 * subject.eps * max_lr)


@states("warmup_cosine")
@given(warmup=st.integers(0, 12), third=st.integers(1, 8), max_lr=RATE, share=st.sampled_from((0.1, 0.5)))
def test_after_a_third_of_the_way_down_a_quarter_is_lost(subject, warmup, third, max_lr, share):
    """The fall is half a cosine: a third of the way down, a quarter of max_lr - min_lr is lost."""
    peak, min_lr = max(warmup - 1, 0), share * max_lr
    schedule = {"warmup": warmup, "total": peak + 3 * third + 1, "max_lr": max_lr, "min_lr": min_lr}
    should = max_lr - 0.25 * (max_lr - min_lr)
    close(subject.warmup_cosine(peak + third, **schedule), should, within=64 * subject.eps * max_lr)


@states("warmup_cosine")
@given(schedule=schedules(least_fall=1), max_lr=RATE, share=st.sampled_from((0.1, 0.5)), data=st.data())
def test_the_fall_is_symmetric(subject, schedule, max_lr, share, data):
    """What is lost n steps after the peak is still to be lost n steps before the end."""
    peak, end, min_lr = max(schedule["warmup"] - 1, 0), schedule["total"] - 1, share * max_lr
    n = data.draw(st.integers(0, end - peak))
    rates = [subject.warmup_cosine(step, **schedule, max_lr=max_lr, min_lr=min_lr) for step in (peak + n, end - n)]
    close(rates[0] + rates[1], max_lr + min_lr, within=64 * subject.eps * max_lr)


@states("warmup_cosine")
@given(schedule=schedules(), max_lr=RATE)
def test_rises_to_the_peak_and_falls_after_it(subject, schedule, max_lr):
    """The rate rises with every step up to the peak and never rises after it."""
    peak = max(schedule["warmup"] - 1, 0)
    rates = np.array([subject.warmup_cosine(step, **schedule, max_lr=max_lr) for step in range(schedule["total"] + 2)])
    holds(np.diff(rates[: peak + 1]) > 0, "the warm-up does not rise", got=rates)
    holds(np.diff(rates[peak:]) <= 4 * subject.eps * max_lr, "the rate rises after the peak", got=rates)


@states("warmup_cosine")
@given(
    wrong=st.sampled_from(
        (
            ("step", {"step": -1}),
            ("total", {"total": 0, "warmup": 0}),
            ("warmup", {"warmup": -1}),
            ("warmup", {"warmup": 11}),
            ("max_lr", {"max_lr": -1.0}),
            ("max_lr", {"max_lr": np.inf}),
        )
    )
)
def test_a_schedule_that_does_not_fit_is_refused(subject, wrong):
    """A negative step, warm-up or rate, an infinite rate, no step at all, or too long a warm-up is a ValueError."""
    name, values = wrong
    given_values = {"step": 0, "warmup": 2, "total": 10, "max_lr": 1.0} | values
    with raises(subject, ValueError, name):
        subject.warmup_cosine(given_values.pop("step"), **given_values)


@states("warmup_cosine")
@given(min_lr=st.sampled_from((-0.5, 1.5, float("nan"))))
def test_a_min_lr_outside_its_range_is_refused(subject, min_lr):
    """A min_lr below 0 or above max_lr is a ValueError."""
    with raises(subject, ValueError, "min_lr"):
        subject.warmup_cosine(3, warmup=2, total=10, max_lr=1.0, min_lr=min_lr)
