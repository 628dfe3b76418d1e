"""What is true of the step from scores to the next token: temperature, top-k, top-p, and the draw."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import axes, whole_numbers

GRID = 256
"""Probabilities that are multiples of 1/256 are exact in every floating dtype, and so are their sums."""


@st.composite
def scores(draw, high=9, least_vocab=1):
    """Draw logits that are small whole numbers, ties among them."""
    sizes = draw(axes())
    vocab = max(sizes["vocab"], least_vocab)
    return draw(whole_numbers((*sizes["batch"], vocab), low=-high, high=high)).astype(np.float64)


@st.composite
def weights(draw, least_vocab=1):
    """Draw one row of positive whole numbers: with logits log(w) the probabilities are w / sum(w)."""
    vocab = draw(st.integers(least_vocab, 7))
    return draw(whole_numbers((vocab,), low=1, high=9))


def ranking(row):
    """Give the ids by falling size, the lowest first on a tie."""
    return np.argsort(-row, kind="stable")


def kept_until(row, mass):
    """Give the share of each id when the ranks are kept until their whole-number mass is at least `mass`."""
    order = ranking(row)
    enough = int(np.argmax(np.cumsum(row[order]) >= mass)) + 1
    kept = np.zeros(row.shape)
    kept[order[:enough]] = row[order[:enough]]
    return kept / kept.sum()


# ----------------------------------------------------------------------------------- next_token_distribution


@states("next_token_distribution")
@given(logits=scores())
def test_probabilities_sum_to_one(subject, logits):
    """Each row is a distribution: nothing negative, and a sum of 1."""
    p = subject.next_token_distribution(logits)
    holds(p >= 0, "a probability is negative", got=p)
    close(p.sum(axis=-1), np.ones(p.shape[:-1]), within=16 * subject.eps * p.shape[-1], what="the sum of a row")


@states("next_token_distribution")
@given(w=weights())
def test_logits_are_log_odds(subject, w):
    """With no options it is softmax: logits log(w) give the probabilities w / sum(w)."""
    close(subject.next_token_distribution(np.log(w)), w / w.sum(), within=32 * subject.eps)


@states("next_token_distribution")
@given(logits=scores(), shift=st.sampled_from((-10000.0, 10000.0)))
def test_shifting_all_logits_changes_nothing(subject, logits, shift):
    """Only differences of logits count: adding 10,000 to all of them changes nothing."""
    close(
        subject.next_token_distribution(logits + shift),
        subject.next_token_distribution(logits),
        within=32 * subject.eps,
    )


@states("next_token_distribution")
@given(w=weights(least_vocab=2), temperature=st.sampled_from((0.5, 0.25)))
def test_temperature_divides_the_logits(subject, w, temperature):
    """A temperature T raises the odds to the power 1 / T: logits log(w) at T = 1/2 give w² / sum(w²)."""
    powers = w ** (1 / temperature)
    close(
        subject.next_token_distribution(np.log(w), temperature=temperature),
        powers / powers.sum(),
        within=128 * subject.eps,
    )


@states("next_token_distribution")
@given(logits=scores())
def test_temperature_zero_takes_the_largest_logit(subject, logits):
    """Temperature 0 puts probability 1 on the largest logit, the lowest id among several."""
    one_hot = np.arange(logits.shape[-1]) == logits.argmax(axis=-1)[..., None]
    equal(subject.next_token_distribution(logits, temperature=0.0), one_hot.astype(np.float64))


@states("next_token_distribution")
@given(vocab=st.integers(2, 9), value=st.integers(-9, 9))
def test_temperature_zero_breaks_a_tie_by_the_lowest_id(subject, vocab, value):
    """At temperature 0 all logits alike give probability 1 to id 0."""
    one_hot = (np.arange(vocab) == 0).astype(np.float64)
    equal(subject.next_token_distribution(np.full(vocab, float(value)), temperature=0.0), one_hot)


@states("next_token_distribution")
@given(logits=scores())
def test_a_tiny_temperature_does_not_overflow(subject, logits):
    """The smallest normal number as a temperature shares all probability among the largest logits."""
    temperature = float(np.finfo(subject.dtype).tiny)
    largest = logits == logits.max(axis=-1, keepdims=True)
    close(
        subject.next_token_distribution(logits, temperature=temperature),
        largest / largest.sum(axis=-1, keepdims=True),
        within=16 * subject.eps,
    )


@states("next_token_distribution")
@given(logits=scores(high=3), top_k=st.integers(1, 9))
def test_top_k_keeps_exactly_k(subject, logits, top_k):
    """top-k leaves exactly min(k, vocab) tokens, however many logits are alike."""
    p = subject.next_token_distribution(logits, top_k=top_k)
    should = np.full(p.shape[:-1], min(top_k, p.shape[-1]))
    equal((p > 0).sum(axis=-1), should, what="the number of tokens left")


@states("next_token_distribution")
@given(w=weights(), top_k=st.integers(1, 9))
def test_top_k_keeps_the_largest_and_renormalises(subject, w, top_k):
    """top-k keeps the k likeliest tokens in proportion, so that they share a probability of 1."""
    kept = np.where(np.argsort(ranking(w)) < top_k, w, 0)
    close(subject.next_token_distribution(np.log(w), top_k=top_k), kept / kept.sum(), within=32 * subject.eps)


@states("next_token_distribution")
@given(vocab=st.integers(2, 9), data=st.data())
def test_top_k_breaks_a_tie_by_the_lowest_ids(subject, vocab, data):
    """Where all logits are alike, top-k keeps the ids 0 ... k - 1."""
    top_k = data.draw(st.integers(1, vocab - 1))
    should = np.where(np.arange(vocab) < top_k, 1 / top_k, 0)
    close(subject.next_token_distribution(np.zeros(vocab), top_k=top_k), should, within=16 * subject.eps)


@states("next_token_distribution")
@given(order=st.permutations(range(5)), top_k=st.integers(1, 4))
def test_renaming_the_tokens_renames_what_top_k_keeps(subject, order, top_k):
    """Which id a token has does not matter to top-k: permuted logits give permuted probabilities."""
    logits = np.arange(5.0)
    close(
        subject.next_token_distribution(logits[order], top_k=top_k),
        subject.next_token_distribution(logits, top_k=top_k)[order],
        within=32 * subject.eps,
    )


@states("next_token_distribution")
@given(w=weights(), data=st.data())
def test_top_p_keeps_the_smallest_set_that_reaches_p(subject, w, data):
    """top-p keeps the likeliest tokens up to and with the one whose mass crosses p, and no more."""
    units = data.draw(st.integers(1, int(w.sum())))
    top_p = (units - 0.5) / w.sum()  # between two masses, so that rounding decides nothing
    close(subject.next_token_distribution(np.log(w), top_p=top_p), kept_until(w, units), within=32 * subject.eps)


@states("next_token_distribution")
@given(exponent=st.integers(1, 4), data=st.data())
def test_top_p_stops_where_the_mass_is_exactly_p(subject, exponent, data):
    """A mass of exactly p is enough: of 2^n equal tokens p = m / 2^n keeps the m lowest ids."""
    vocab = 2**exponent
    m = data.draw(st.integers(1, vocab - 1))
    should = np.where(np.arange(vocab) < m, 1 / m, 0)
    close(subject.next_token_distribution(np.zeros(vocab), top_p=m / vocab), should, within=16 * subject.eps)


@states("next_token_distribution")
@given(logits=scores(), top_p=st.sampled_from((1e-3, 1e-9, 1e-30)))
def test_a_tiny_top_p_keeps_the_first_token(subject, logits, top_p):
    """top-p keeps at least one token: a tiny p leaves the largest logit alone, the lowest id on a tie."""
    one_hot = np.arange(logits.shape[-1]) == logits.argmax(axis=-1)[..., None]
    equal(subject.next_token_distribution(logits, top_p=top_p), one_hot.astype(np.float64))


@states("next_token_distribution")
@given(logits=scores(least_vocab=2))
def test_a_top_p_of_one_keeps_every_token(subject, logits):
    """A p of 1 keeps every token, even those that the rounded sum of the likelier ones leaves no room for."""
    logits[..., 0] += 50
    p = subject.next_token_distribution(logits, top_p=1.0)
    holds(p > 0, "a token was dropped", got=p)
    close(p, subject.next_token_distribution(logits), within=16 * subject.eps)


@states("next_token_distribution")
@given(w=weights(least_vocab=2), data=st.data())
def test_top_p_measures_what_top_k_left(subject, w, data):
    """top-k comes before top-p, which reads the renormalised rest: k = 2, p = 0.5 keep one of 4:3:2:1."""
    top_k = data.draw(st.integers(1, len(w) - 1))
    left = np.where(np.argsort(ranking(w)) < top_k, w, 0)
    units = data.draw(st.integers(1, int(left.sum())))
    top_p = (units - 0.5) / left.sum()
    got = subject.next_token_distribution(np.log(w), top_k=top_k, top_p=top_p)
    close(got, kept_until(left, units), within=64 * subject.eps)


@states("next_token_distribution")
@given(w=weights(least_vocab=2), data=st.data())
def test_top_p_measures_what_temperature_made(subject, w, data):
    """Temperature comes before top-p: at T = 1/2 the mass that must reach p is that of w² / sum(w²)."""
    squares = w**2
    units = data.draw(st.integers(1, int(squares.sum())))
    top_p = (units - 0.5) / squares.sum()
    got = subject.next_token_distribution(np.log(w), temperature=0.5, top_p=top_p)
    close(got, kept_until(squares, units), within=128 * subject.eps)


@states("next_token_distribution")
@given(rows=whole_numbers((3, 5), low=-3, high=3), top_k=st.integers(1, 4), top_p=st.sampled_from((0.3, 0.8)))
def test_each_row_is_cut_by_itself(subject, rows, top_k, top_p):
    """A row's distribution does not depend on what else is in the batch, in any of the three steps."""
    options = {"temperature": 0.5, "top_k": top_k, "top_p": top_p}
    together = subject.next_token_distribution(rows.astype(np.float64), **options)
    alone = [subject.next_token_distribution(row.astype(np.float64), **options) for row in rows]
    close(together, np.stack(alone), within=32 * subject.eps)


@states("next_token_distribution")
@given(logits=scores(), place=st.integers(0, 6))
def test_a_nan_logit_makes_its_row_nan(subject, logits, place):
    """A row with a NaN is NaN throughout, for no token can be ranked against it, and other rows are as they were."""
    _a_nan_spoils_its_row(subject, logits, place)


@states("next_token_distribution")
@given(logits=scores(), place=st.integers(0, 6))
def test_a_nan_logit_makes_its_row_nan_at_temperature_0(subject, logits, place):
    """No first rank is chosen in a row with a NaN: at a temperature of 0, too, it is NaN throughout, it alone."""
    _a_nan_spoils_its_row(subject, logits, place, temperature=0.0)


def _a_nan_spoils_its_row(subject, logits, place, **options):
    should = np.copy(subject.next_token_distribution(logits, **options))
    first_row = (0,) * (logits.ndim - 1)
    logits[(*first_row, place % logits.shape[-1])] = np.nan
    should[first_row] = np.nan
    equal(subject.next_token_distribution(logits, **options), should)


@states("next_token_distribution")
@given(logits=scores(), temperature=st.sampled_from((-1.0, -1e-9, float("nan"))))
def test_a_negative_temperature_is_refused(subject, logits, temperature):
    """A temperature below 0 is a ValueError."""
    with raises(subject, ValueError, "temperature"):
        subject.next_token_distribution(logits, temperature=temperature)


@states("next_token_distribution")
@given(logits=scores(), top_k=st.integers(-3, 0))
def test_a_top_k_below_one_is_refused(subject, logits, top_k):
    """A top_k below 1 is a ValueError."""
    with raises(subject, ValueError, "top_k", str(top_k)):
        subject.next_token_distribution(logits, top_k=top_k)


@states("next_token_distribution")
@given(logits=scores(), top_p=st.sampled_from((0.0, -0.5, 1.5, float("nan"))))
def test_a_top_p_outside_its_range_is_refused(subject, logits, top_p):
    """A top_p of 0 or less, or above 1, is a ValueError."""
    with raises(subject, ValueError, "top_p", str(top_p)):
        subject.next_token_distribution(logits, top_p=top_p)


# ------------------------------------------------------------------------------------------------- sample


@st.composite
def shares(draw, rows=None):
    """Draw rows of whole numbers, zeros among them, that sum to 256."""
    vocab = draw(st.integers(1, 7))
    batch = draw(st.sampled_from(((), (3,), (2, 3)))) if rows is None else rows
    cuts = np.sort(draw(whole_numbers((*batch, vocab - 1), low=0, high=GRID - 1)), axis=-1)
    ends = np.concatenate([np.zeros((*batch, 1)), cuts, np.full((*batch, 1), GRID)], axis=-1)
    return np.diff(ends, axis=-1)


@states("sample")
@given(counts=shares(), data=st.data())
def test_draws_the_id_whose_interval_holds_the_number(subject, counts, data):
    """The ids lie side by side in [0, 1), as wide as their probabilities, and u draws the one it meets."""
    cells = data.draw(whole_numbers(counts.shape[:-1], low=0, high=GRID - 1))
    should = (np.cumsum(counts, axis=-1) <= cells[..., None]).sum(axis=-1)
    equal(subject.sample(counts / GRID, np.asarray((cells + 0.5) / GRID)), should)


@states("sample")
@given(counts=shares(rows=()), data=st.data())
def test_a_number_on_a_boundary_draws_the_next_id(subject, counts, data):
    """The interval of an id holds its lower end, not its upper one."""
    starts = np.cumsum(counts) - counts
    drawn = data.draw(st.sampled_from([i for i, count in enumerate(counts) if count > 0]))
    equal(subject.sample(counts / GRID, np.asarray(starts[drawn] / GRID)), np.asarray(drawn))


@states("sample")
@given(counts=shares(rows=()))
def test_frequencies_are_the_probabilities(subject, counts):
    """256 evenly spaced numbers draw each id exactly 256 times its probability."""
    grid = (np.arange(GRID) + 0.5) / GRID
    drawn = subject.sample(np.broadcast_to(counts / GRID, (GRID, len(counts))).copy(), grid)
    equal(np.bincount(drawn, minlength=len(counts)), counts, what="how often each id is drawn")


@states("sample")
@given(counts=shares(rows=(3,)), data=st.data())
def test_each_row_is_drawn_by_itself(subject, counts, data):
    """Each row is drawn with its own number: what it draws does not depend on what else is in the batch."""
    cells = data.draw(whole_numbers((3,), low=0, high=GRID - 1))
    p, u = counts / GRID, (cells + 0.5) / GRID
    alone = [subject.sample(p[row], np.asarray(u[row])) for row in range(3)]
    equal(subject.sample(p, u), np.stack(alone))


@states("sample")
@given(step=st.integers(0, 3), crowd=st.sampled_from((2, 4, 8)))
def test_a_rare_id_after_a_likely_one_is_drawn(subject, step, crowd):
    """Probabilities far below the rounding of the sum before them still add up: each id keeps its stretch.

    The first id leaves four steps, each as wide as the numbers below 1 in float32 lie apart, to ids that share a step.
    """
    width = max(subject.eps, 2.0**-23) / 2
    p = np.concatenate([[1 - 4 * width], np.full(4 * crowd, width / crowd)])
    u = np.asarray(1 - (4 - step) * width)  # where the first of the ids that share this step begins
    equal(subject.sample(p, u), np.asarray(1 + step * crowd))


@states("sample")
@given(counts=shares(rows=()), before=st.integers(1, 3), after=st.integers(1, 3))
def test_an_id_of_probability_zero_is_never_drawn(subject, counts, before, after):
    """Neither u = 0 nor the largest u below 1 draws an id of probability 0, at whichever end it stands."""
    p = np.concatenate([np.zeros(before), counts / GRID, np.zeros(after)])
    just_below_one = 1 - subject.eps / 2
    for u in (0.0, 0.5, just_below_one):
        drawn = int(subject.sample(p, np.asarray(u)))
        holds(p[drawn] > 0, f"u = {u!r} drew id {drawn}, whose probability is 0", got=drawn)


@states("sample")
@given(counts=shares(rows=()), after=st.integers(1, 3))
def test_what_rounding_leaves_over_goes_to_the_last_possible_id(subject, counts, after):
    """A u beyond a sum that rounding left just short of 1 draws the last id of positive probability."""
    p = np.concatenate([counts / GRID * (1 - 2.0**-21), np.zeros(after)])
    last_possible = int(np.flatnonzero(p)[-1])
    equal(subject.sample(p, np.asarray(1 - 2.0**-22)), np.asarray(last_possible))


@states("sample")
@given(counts=shares(), factor=st.sampled_from((0.0, 0.5, 0.999, 1.001, 2.0)))
def test_a_row_that_does_not_sum_to_one_is_refused(subject, counts, factor):
    """Probabilities that do not sum to 1 are a ValueError."""
    with raises(subject, ValueError, "sum to 1"):
        subject.sample(counts / GRID * factor, np.full(counts.shape[:-1], 0.5))


@states("sample")
@given(counts=shares(rows=()), surplus=st.sampled_from((0.25, 1.0)))
def test_a_negative_probability_is_refused(subject, counts, surplus):
    """A negative probability is a ValueError, even in a row that sums to 1."""
    with raises(subject, ValueError, "negative"):
        subject.sample(np.concatenate([counts / GRID, [surplus, -surplus]]), np.asarray(0.5))


@states("sample")
@given(counts=shares(rows=()), uniform=st.sampled_from((-0.25, 1.0, 1.5, float("nan"))))
def test_a_number_outside_zero_to_one_is_refused(subject, counts, uniform):
    """A u outside [0, 1) is a ValueError."""
    with raises(subject, ValueError, "uniform"):
        subject.sample(counts / GRID, np.asarray(uniform))
