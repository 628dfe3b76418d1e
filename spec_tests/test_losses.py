"""What is true of the loss and of what is reported of it."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, raises
from spec_tests.spec import states
from spec_tests.strategies import axes, numbers, token_ids, whole_numbers

IGNORED = -100


@st.composite
def predictions(draw, least_vocab=1, logits=numbers):
    """Draw logits and a target for each row."""
    sizes = draw(axes())
    vocab = max(sizes["vocab"], least_vocab)
    return draw(logits((*sizes["batch"], vocab))), draw(token_ids(sizes["batch"], vocab))


@st.composite
def odds(draw):
    """Draw positive whole numbers w and a target for each row: logits log(w) predict w / sum(w)."""
    sizes = draw(axes())
    w = draw(whole_numbers((*sizes["batch"], sizes["vocab"]), low=1, high=9))
    return w, draw(token_ids(sizes["batch"], sizes["vocab"]))


def at(rows, ids):
    """Give each row's entry at its id."""
    return np.take_along_axis(rows, ids[..., None], axis=-1)[..., 0]


def rounding(subject, logits):
    """Bound what rounding does to a loss of these logits."""
    return 32 * subject.eps * logits.shape[-1] * (1 + np.abs(logits).max())


# ------------------------------------------------------------------------------------------ cross_entropy


@states("cross_entropy")
@given(drawn=odds())
def test_is_the_surprise_at_the_target(subject, drawn):
    """The loss is minus the logarithm of the probability given to the target."""
    w, targets = drawn
    should = -np.log(at(w, targets) / w.sum(axis=-1)).mean()
    close(subject.cross_entropy(np.log(w), targets), should, within=rounding(subject, np.log(w)))


@states("cross_entropy")
@given(drawn=predictions(), value=st.integers(-9, 9))
def test_uniform_logits_cost_the_log_of_the_vocab(subject, drawn, value):
    """Where all logits are alike the loss is log(vocab), whatever the targets."""
    logits, targets = drawn
    alike = np.full(logits.shape, float(value))
    close(subject.cross_entropy(alike, targets), np.log(logits.shape[-1]), within=rounding(subject, alike))


@states("cross_entropy")
@given(drawn=predictions())
def test_a_confident_right_prediction_costs_nothing(subject, drawn):
    """The loss is 0 where every target's logit is far above the rest."""
    logits, targets = drawn
    confident = logits + 1000 * (np.arange(logits.shape[-1]) == targets[..., None])
    close(subject.cross_entropy(confident, targets), 0.0, within=16 * subject.eps)


@states("cross_entropy")
@given(vocab=st.integers(2, 7), gap=st.sampled_from((100.0, 1000.0, 10000.0)))
def test_a_confident_wrong_prediction_costs_the_gap(subject, vocab, gap):
    """The loss has no ceiling and does not overflow: a target 10,000 below another logit costs 10,000."""
    logits = np.zeros((1, vocab))
    logits[0, -1] = gap
    close(subject.cross_entropy(logits, np.array([0])), gap, within=16 * subject.eps * gap)


@states("cross_entropy")
@given(drawn=predictions(least_vocab=2))
def test_an_impossible_target_costs_infinity(subject, drawn):
    """A logit of -inf on a target gives the loss inf."""
    logits, targets = drawn
    logits[np.arange(logits.shape[-1]) == targets[..., None]] = -np.inf
    equal(subject.cross_entropy(logits, targets), np.inf)


@states("cross_entropy")
@given(drawn=predictions())
def test_an_impossible_class_that_is_no_target_might_as_well_be_absent(subject, drawn):
    """One more class of logit -inf, which is no target, changes no loss."""
    logits, targets = drawn
    more = np.concatenate([logits, np.full((*logits.shape[:-1], 1), -np.inf)], axis=-1)
    close(
        subject.cross_entropy(more, targets), subject.cross_entropy(logits, targets), within=rounding(subject, logits)
    )


@states("cross_entropy")
@given(drawn=predictions(logits=whole_numbers), shift=st.sampled_from((-1000.0, 1000.0)))
def test_shifting_all_logits_changes_nothing(subject, drawn, shift):
    """Only differences of logits count."""
    logits, targets = drawn[0].astype(np.float64), drawn[1]
    close(
        subject.cross_entropy(logits + shift, targets),
        subject.cross_entropy(logits, targets),
        within=rounding(subject, logits + shift),
    )


@states("cross_entropy")
@given(drawn=predictions())
def test_is_the_mean_over_the_targets(subject, drawn):
    """The loss of a batch is the mean of the losses of its targets."""
    logits, targets = drawn
    rows = logits.reshape(-1, 1, logits.shape[-1])
    each = [subject.cross_entropy(row, ids) for row, ids in zip(rows, targets.reshape(-1, 1), strict=True)]
    close(subject.cross_entropy(logits, targets), np.mean(each), within=rounding(subject, logits))


@st.composite
def with_ignored(draw, ignored):
    """Draw logits and targets of which the first counts and the last is ignored; `ignored` draws its index."""
    rows, vocab = draw(st.integers(2, 6)), draw(st.integers(2, 7))
    ignore_index = draw(ignored(vocab))
    targets = draw(token_ids((rows,), vocab))
    targets[draw(whole_numbers((rows,), low=0, high=1)) == 1] = ignore_index
    targets[0] = 0 if ignore_index != 0 else 1
    targets[-1] = ignore_index
    return draw(numbers((rows, vocab))), targets, ignore_index


@states("cross_entropy")
@given(drawn=with_ignored(lambda vocab: st.just(IGNORED)))
def test_ignored_targets_have_no_part(subject, drawn):
    """Targets of -100 count neither in the sum nor in the number that it is divided by."""
    logits, targets, _ = drawn
    counted = targets != IGNORED
    close(
        subject.cross_entropy(logits, targets),
        subject.cross_entropy(logits[counted], targets[counted]),
        within=rounding(subject, logits),
    )


@states("cross_entropy")
@given(drawn=with_ignored(lambda vocab: st.integers(-1, vocab - 1)))
def test_any_index_may_be_the_ignored_one(subject, drawn):
    """The target that `ignore_index` names has no part, be it a token of the vocabulary or not."""
    logits, targets, ignore_index = drawn
    counted = targets != ignore_index
    close(
        subject.cross_entropy(logits, targets, ignore_index=ignore_index),
        subject.cross_entropy(logits[counted], targets[counted], ignore_index=IGNORED - 1),
        within=rounding(subject, logits),
    )


@states("cross_entropy")
@given(drawn=predictions())
def test_nothing_to_learn_from_costs_nothing(subject, drawn):
    """Where every target is ignored the loss is 0."""
    logits, targets = drawn
    equal(subject.cross_entropy(logits, np.full_like(targets, IGNORED)), 0.0)


@states("cross_entropy")
@given(drawn=odds())
def test_full_smoothing_forgets_the_target(subject, drawn):
    """With a label smoothing of 1 the target is uniform: the loss is the mean surprise over all classes."""
    w, targets = drawn
    should = -np.log(w / w.sum(axis=-1, keepdims=True)).mean()
    close(
        subject.cross_entropy(np.log(w), targets, label_smoothing=1.0),
        should,
        within=rounding(subject, np.log(w)),
    )


@states("cross_entropy")
@given(drawn=odds(), label_smoothing=st.sampled_from((0.1, 0.25, 0.5)))
def test_smoothing_spreads_its_share_over_every_class(subject, drawn, label_smoothing):
    """A smoothing of a leaves 1 - a on the target and puts a / vocab on every class, the target among them."""
    w, targets = drawn
    surprise = -np.log(w / w.sum(axis=-1, keepdims=True))
    should = (1 - label_smoothing) * at(surprise, targets).mean() + label_smoothing * surprise.mean()
    close(
        subject.cross_entropy(np.log(w), targets, label_smoothing=label_smoothing),
        should,
        within=rounding(subject, np.log(w)),
    )


@states("cross_entropy")
@given(drawn=with_ignored(lambda vocab: st.just(IGNORED)), label_smoothing=st.sampled_from((0.25, 1.0)))
def test_smoothing_leaves_ignored_targets_out(subject, drawn, label_smoothing):
    """Ignored targets have no part in the smoothed loss either."""
    logits, targets, _ = drawn
    counted = targets != IGNORED
    close(
        subject.cross_entropy(logits, targets, label_smoothing=label_smoothing),
        subject.cross_entropy(logits[counted], targets[counted], label_smoothing=label_smoothing),
        within=rounding(subject, logits),
    )


@states("cross_entropy")
@given(drawn=with_ignored(lambda vocab: st.just(IGNORED)), beyond=st.integers(0, 3), above=st.booleans())
def test_a_target_outside_the_vocab_is_refused(subject, drawn, beyond, above):
    """A target below 0 or past the vocabulary is an IndexError, unless it is the ignored one."""
    logits, targets, _ = drawn
    targets[0] = wrong = logits.shape[-1] + beyond if above else -1 - beyond
    with raises(subject, IndexError, "targets", str(wrong)):
        subject.cross_entropy(logits, targets)


@states("cross_entropy")
@given(drawn=predictions(), label_smoothing=st.sampled_from((-0.1, 1.1, float("nan"))))
def test_a_smoothing_outside_zero_to_one_is_refused(subject, drawn, label_smoothing):
    """A label smoothing below 0 or above 1 is a ValueError."""
    with raises(subject, ValueError, "label_smoothing", str(label_smoothing)):
        subject.cross_entropy(*drawn, label_smoothing=label_smoothing)


# --------------------------------------------------------------------------------------------- perplexity


@states("perplexity")
@given(vocab=st.integers(1, 300), n_tokens=st.integers(1, 1000))
def test_of_a_uniform_guess_is_the_vocab(subject, vocab, n_tokens):
    """Who finds all tokens equally likely has the perplexity vocab."""
    close(
        subject.perplexity(n_tokens * math.log(vocab), n_tokens),
        float(vocab),
        within=16 * subject.eps * vocab * (1 + math.log(vocab)),
    )


@states("perplexity")
@given(n_tokens=st.integers(1, 1000))
def test_of_certainty_is_one(subject, n_tokens):
    """A loss of 0 is the perplexity 1, the smallest there is."""
    equal(subject.perplexity(0.0, n_tokens), 1.0)


@states("perplexity")
@given(quarters=st.tuples(st.integers(0, 40), st.integers(0, 40)), n=st.tuples(st.integers(1, 50), st.integers(1, 50)))
def test_of_two_texts_weighs_each_by_its_tokens(subject, quarters, n):
    """Perplexity comes from sums: that of two texts together is their geometric mean weighted by tokens."""
    totals = [length * quarter / 4 for length, quarter in zip(n, quarters, strict=True)]
    each = [subject.perplexity(total, length) for total, length in zip(totals, n, strict=True)]
    should = math.exp(sum(length * math.log(p) for length, p in zip(n, each, strict=True)) / sum(n))
    close(subject.perplexity(sum(totals), sum(n)), should, within=64 * subject.eps * should * (1 + max(quarters)))


@states("perplexity")
@given(n_tokens=st.integers(-3, 0))
def test_of_no_tokens_is_refused(subject, n_tokens):
    """Fewer than 1 token is a ValueError."""
    with raises(subject, ValueError, "n_tokens", str(n_tokens)):
        subject.perplexity(1.0, n_tokens)


# ------------------------------------------------------------------------------- the gradient of cross_entropy

COTANGENTS = st.sampled_from((1.0, -0.5, 3.0)).map(np.asarray)
"""What is done with the loss afterwards: 1 where it is minimised as it is."""


def _is_probability_minus_target(subject, cotangent, w, targets, smoothing, gradient):
    p, vocab = w / w.sum(axis=-1, keepdims=True), w.shape[-1]
    y = (1 - smoothing) * (np.arange(vocab) == targets[..., None]) + smoothing / vocab
    within = rounding(subject, np.log(w)) * np.abs(cotangent) / targets.size
    close(gradient, cotangent * (p - y) / targets.size, within=within, what="the gradient")


@states("cross_entropy", gradient=True)
@given(drawn=odds(), cotangent=COTANGENTS)
def test_the_gradient_is_what_was_predicted_minus_what_was_there(subject, drawn, cotangent):
    """Each logit's gradient is its probability, minus 1 at the target, over the number of targets."""
    w, targets = drawn
    (gradient,) = subject.cross_entropy_vjp(cotangent, np.log(w), targets)
    _is_probability_minus_target(subject, cotangent, w, targets, 0.0, gradient)


@states("cross_entropy", gradient=True)
@given(drawn=odds(), cotangent=COTANGENTS, label_smoothing=st.sampled_from((0.25, 0.5, 1.0)))
def test_the_smoothed_gradient_is_what_was_predicted_minus_the_smoothed_target(
    subject, drawn, cotangent, label_smoothing
):
    """With a smoothing of a, 1 - a is subtracted at the target and a / vocab everywhere."""
    w, targets = drawn
    (gradient,) = subject.cross_entropy_vjp(cotangent, np.log(w), targets, label_smoothing=label_smoothing)
    _is_probability_minus_target(subject, cotangent, w, targets, label_smoothing, gradient)


@states("cross_entropy", gradient=True)
@given(drawn=predictions(), cotangent=COTANGENTS)
def test_the_gradient_of_the_logits_sums_to_0(subject, drawn, cotangent):
    """Only differences of logits count, so the gradient of each row sums to 0."""
    logits, targets = drawn
    sums = subject.cross_entropy_vjp(cotangent, logits, targets)[0].sum(axis=-1)
    within = logits.shape[-1] * rounding(subject, logits) * np.abs(cotangent)
    close(sums, np.zeros(sums.shape), within=within, what="the sum of a row's gradient")


@states("cross_entropy", gradient=True)
@given(vocab=st.integers(2, 7), gap=st.sampled_from((100.0, 1000.0, 10000.0)))
def test_the_gradient_of_a_confident_wrong_prediction_is_1(subject, vocab, gap):
    """However wrong a prediction, its gradient is finite: 1 at the wrong logit and -1 at the target."""
    logits = np.zeros((1, vocab))
    logits[0, -1] = gap
    should = np.zeros((1, vocab))
    should[0, [0, -1]] = -1.0, 1.0
    (gradient,) = subject.cross_entropy_vjp(np.ones(()), logits, np.array([0]))
    close(gradient, should, within=16 * subject.eps * gap, what="the gradient")


@states("cross_entropy", gradient=True)
@given(drawn=with_ignored(lambda vocab: st.just(IGNORED)), cotangent=COTANGENTS)
def test_the_gradient_of_an_ignored_target_is_0(subject, drawn, cotangent):
    """The row of an ignored target has a gradient of exactly 0, and the others have that of a loss without it."""
    logits, targets, _ = drawn
    counted = targets != IGNORED
    (gradient,) = subject.cross_entropy_vjp(cotangent, logits, targets)
    equal(gradient[~counted], np.zeros(logits[~counted].shape), what="the gradient of ignored rows")
    (alone,) = subject.cross_entropy_vjp(cotangent, logits[counted], targets[counted])
    within = rounding(subject, logits) * np.abs(cotangent)
    close(gradient[counted], alone, within=within, what="the gradient of the others")


@states("cross_entropy", gradient=True)
@given(drawn=with_ignored(lambda vocab: st.integers(-1, vocab - 1)), cotangent=COTANGENTS)
def test_the_gradient_of_what_ignore_index_names_is_0(subject, drawn, cotangent):
    """Whichever target `ignore_index` names, its row has a gradient of exactly 0."""
    logits, targets, ignore_index = drawn
    (gradient,) = subject.cross_entropy_vjp(cotangent, logits, targets, ignore_index=ignore_index)
    ignored = targets == ignore_index
    equal(gradient[ignored], np.zeros(logits[ignored].shape), what="the gradient of ignored rows")


@states("cross_entropy", gradient=True)
@given(drawn=with_ignored(lambda vocab: st.just(IGNORED)), label_smoothing=st.sampled_from((0.25, 1.0)))
def test_smoothing_leaves_the_gradient_of_an_ignored_target_at_0(subject, drawn, label_smoothing):
    """With smoothing, too, the row of an ignored target has a gradient of exactly 0."""
    logits, targets, _ = drawn
    (gradient,) = subject.cross_entropy_vjp(np.ones(()), logits, targets, label_smoothing=label_smoothing)
    ignored = targets == IGNORED
    equal(gradient[ignored], np.zeros(logits[ignored].shape), what="the gradient of ignored rows")


@states("cross_entropy", gradient=True)
@given(drawn=predictions(), cotangent=COTANGENTS)
def test_nothing_to_learn_from_has_gradient_0(subject, drawn, cotangent):
    """Where every target is ignored every gradient is exactly 0, not NaN."""
    logits, targets = drawn
    (gradient,) = subject.cross_entropy_vjp(cotangent, logits, np.full_like(targets, IGNORED))
    equal(gradient, np.zeros(logits.shape), what="the gradient")


@states("cross_entropy", gradient=True)
@given(drawn=with_ignored(lambda vocab: st.just(IGNORED)), beyond=st.integers(0, 3), above=st.booleans())
def test_a_gradient_for_a_target_outside_the_vocab_is_refused(subject, drawn, beyond, above):
    """A target below 0 or past the vocabulary is an IndexError in the gradient too."""
    logits, targets, _ = drawn
    targets[0] = wrong = logits.shape[-1] + beyond if above else -1 - beyond
    with raises(subject, IndexError, "targets", str(wrong)):
        subject.cross_entropy_vjp(np.ones(()), logits, targets)
