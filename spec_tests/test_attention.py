"""Attention: each query takes a mean of the values, weighted by how well their keys answer it."""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import EXACT, axes, numbers, truths, whole_numbers

MODERATE = (0.125, 0.25, 0.5)
"""Scales at which scores stay within about 20: no weight rounds to 0, in no dtype."""

# ------------------------------------------------------------------------------------------------------------- softmax


@st.composite
def score_rows(draw, *, scales=(*EXACT, 16.0)):
    """Draw scores with at least one axis; the rows are the last."""
    sizes = draw(axes())
    rows = draw(st.sampled_from(((), (sizes["q_seq"],), (*sizes["batch"], sizes["q_seq"]))))
    return draw(numbers((*rows, sizes["k_seq"]), scales=scales))


@st.composite
def masks(draw, shape):
    """Draw a mask that is True somewhere in every row: no query is left without a key."""
    mask = draw(truths(shape))
    mask[~mask.any(axis=-1)] = True
    return mask


def rounding_of_softmax(subject, scores):
    """How far rounding may move a weight: a few eps for each number of the row, and for the size of the scores."""
    return 16 * subject.eps * (scores.shape[-1] + np.abs(scores).max(where=np.isfinite(scores), initial=0))


@states("softmax")
@given(scores=score_rows())
def test_weights_are_not_negative(subject, scores):
    """No weight is negative."""
    holds(subject.softmax(scores) >= 0, "a weight is negative", got=subject.last_result)


@states("softmax")
@given(scores=score_rows())
def test_rows_sum_to_1(subject, scores):
    """The weights of a row sum to 1."""
    sums = subject.softmax(scores).sum(axis=-1)
    close(sums, np.ones(sums.shape), within=16 * subject.eps * scores.shape[-1], what="the sum of a row")


def log_ratios(weights):
    """Give the logarithm of each weight over the first one of its row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(weights.astype(np.float64))
    return logs - logs[..., :1]


@states("softmax")
@given(scores=score_rows(scales=MODERATE))
def test_the_ratio_of_two_weights_is_the_exponential_of_the_difference_of_their_scores(subject, scores):
    """A score that is larger by c has a weight e^c times as large."""
    ratios = log_ratios(subject.softmax(scores))
    close(ratios, scores - scores[..., :1], within=rounding_of_softmax(subject, scores), what="the log of the ratios")


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_shifting_a_row_changes_nothing(subject, scores, data):
    """Adding one number to all scores of a row, even 10,000, leaves the weights as they were."""
    row = (*scores.shape[:-1], 1)
    shifted = scores + data.draw(st.sampled_from((1.0, 1e2, 1e4))) * data.draw(whole_numbers(row, low=-1, high=1))
    close(subject.softmax(shifted), subject.softmax(scores), within=rounding_of_softmax(subject, shifted))


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_permuting_scores_permutes_weights(subject, scores, data):
    """A weight goes with its score, wherever in the row it stands."""
    order = data.draw(st.permutations(range(scores.shape[-1])))
    permuted = subject.softmax(scores[..., order])
    close(permuted, subject.softmax(scores)[..., order], within=rounding_of_softmax(subject, scores))


@states("softmax")
@given(scores=score_rows(scales=(1.0, 100.0, 1e4)))
def test_equal_scores_share_equally(subject, scores):
    """A row of n equal scores, whatever they are, has weights 1/n."""
    n = scores.shape[-1]
    level = np.broadcast_to(scores[..., :1], scores.shape)
    close(subject.softmax(level), np.full(scores.shape, 1 / n), within=16 * subject.eps)


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_each_row_stands_for_itself(subject, scores, data):
    """A row has the same weights alone as among others."""
    row = data.draw(st.sampled_from(list(np.ndindex(scores.shape[:-1]))))
    alone = subject.softmax(scores[row])
    close(subject.softmax(scores)[row], alone, within=rounding_of_softmax(subject, scores[row]))


@states("softmax")
@given(rows=score_rows(scales=(1.0,)), data=st.data())
def test_huge_scores_put_all_weight_on_the_largest(subject, rows, data):
    """Scores of 10,000, or as large as the dtype holds, do not overflow: the largest share all the weight."""
    huge = float(np.finfo(subject.dtype).max) / 32
    scores = rows * data.draw(st.sampled_from((1e4, huge)))
    largest = rows == rows.max(axis=-1, keepdims=True)
    shares = largest / largest.sum(axis=-1, keepdims=True)
    close(subject.softmax(scores), shares, within=16 * subject.eps)


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_a_score_of_minus_infinity_has_weight_0(subject, scores, data):
    """The weight of -inf is exactly 0, and the other weights of its row sum to 1."""
    finite = data.draw(masks(scores.shape))
    weights = subject.softmax(np.where(finite, scores, -np.inf))
    equal(weights[~finite], np.zeros((~finite).sum()), what="the weight of a score of -inf")
    sums = weights.sum(axis=-1)
    close(sums, np.ones(sums.shape), within=16 * subject.eps * scores.shape[-1], what="the sum of a row")


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_a_row_of_minus_infinity_gives_zeros(subject, scores, data):
    """Where every score is -inf there is nothing to choose from: all weights are 0."""
    row = data.draw(st.sampled_from(list(np.ndindex(scores.shape[:-1]))))
    scores[row] = -np.inf
    equal(subject.softmax(scores)[row], np.zeros(scores.shape[-1]), what="the row of -inf")


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_nan_spoils_its_own_row_only(subject, scores, data):
    """A row with a NaN is all NaN, and no other row is."""
    place = data.draw(st.sampled_from(list(np.ndindex(scores.shape))))
    scores[place] = np.nan
    is_nan = np.isnan(subject.softmax(scores))
    equal(is_nan, np.broadcast_to(np.isnan(scores).any(axis=-1, keepdims=True), scores.shape), what="the NaNs")


@states("softmax")
@given(scores=score_rows(), data=st.data())
def test_another_axis_can_be_the_row(subject, scores, data):
    """With `axis` the weights along that axis are those of the rows when it is moved to the end."""
    if scores.ndim == 1:
        scores = np.stack([scores, scores[::-1]])
    axis = data.draw(
        st.sampled_from([a for a in range(-scores.ndim, scores.ndim) if a % scores.ndim != scores.ndim - 1])
    )
    rows = np.moveaxis(scores, axis, -1)
    should = np.moveaxis(subject.softmax(rows), -1, axis)
    close(subject.softmax(scores, axis=axis), should, within=rounding_of_softmax(subject, rows))


@states("softmax")
@given(sizes=axes())
def test_an_empty_row_gives_an_empty_row(subject, sizes):
    """Softmax passes empty rows through: no scores, no weights."""
    shape = (*sizes["batch"], sizes["q_seq"], 0)
    holds(subject.softmax(np.zeros(shape)).shape == shape, "the shape has changed", got=subject.last_result)


@states("softmax")
@given(scores=score_rows(), beyond=st.integers(0, 3), negative=st.booleans())
def test_an_axis_that_is_not_there_raises(subject, scores, beyond, negative):
    """An `axis` that the scores lack is a ValueError that names it."""
    axis = -scores.ndim - 1 - beyond if negative else scores.ndim + beyond
    with raises(subject, ValueError, "softmax", "axis", str(axis)):
        subject.softmax(scores, axis=axis)


# -------------------------------------------------------------------------------------------------------- causal_mask


@states("causal_mask")
@given(q_seq=st.integers(1, 9))
def test_a_query_sees_the_keys_up_to_its_own_place(subject, q_seq):
    """In a square mask query i may see keys 0 ... i: itself included, nothing later."""
    allowed = subject.causal_mask(q_seq)
    equal(allowed, np.array([[j <= i for j in range(q_seq)] for i in range(q_seq)]))


@states("causal_mask")
@given(q_seq=st.integers(1, 9), more=st.integers(1, 9))
def test_fewer_queries_than_keys_are_the_last_ones(subject, q_seq, more):
    """With more keys than queries, the queries are the end of the sequence: the last rows of the square mask."""
    k_seq = q_seq + more
    allowed = subject.causal_mask(q_seq, k_seq)
    equal(allowed, np.array([[j <= i for j in range(k_seq)] for i in range(more, k_seq)]))


@states("causal_mask")
@given(k_seq=st.integers(1, 9), more=st.integers(1, 9))
def test_queries_before_the_first_key_see_none(subject, k_seq, more):
    """With more queries than keys, the first ones see nothing and the last ones the square mask."""
    allowed = subject.causal_mask(k_seq + more, k_seq)
    square = [[j <= i for j in range(k_seq)] for i in range(k_seq)]
    equal(allowed, np.array([[False] * k_seq] * more + square))


@states("causal_mask")
@given(q_seq=st.integers(0, 9), k_seq=st.integers(0, 9), no_queries=st.booleans())
def test_a_mask_without_queries_or_keys_is_empty(subject, q_seq, k_seq, no_queries):
    """A length of 0 gives an empty mask of the shape asked for."""
    shape = (0, k_seq) if no_queries else (q_seq, 0)
    holds(subject.causal_mask(*shape).shape == shape, "the mask has another shape", got=subject.last_result)


@states("causal_mask")
@given(negative=st.integers(-9, -1), other=st.integers(0, 9), in_q=st.booleans())
def test_a_length_below_0_raises(subject, negative, other, in_q):
    """A negative length is a ValueError that names it."""
    lengths = (negative, other) if in_q else (other, negative)
    with raises(subject, ValueError, "causal_mask", "q_seq" if in_q else "k_seq", str(negative)):
        subject.causal_mask(*lengths)


# --------------------------------------------------------------------------------------- attention: inputs and bounds


class Attention(NamedTuple):
    """Queries, keys and values."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @property
    def allowed_shape(self):
        """Give the shape of a mask, a bias or the weights."""
        return (*self.q.shape[:-1], self.k.shape[-2])


@st.composite
def attentions(draw, *, scales=MODERATE, batch=None, longest=None):
    """Draw queries, keys and values; `longest` says which of q_seq and k_seq is the longer one."""
    sizes = draw(axes())
    batch = sizes["batch"] if batch is None else batch
    lengths = sizes["q_seq"], sizes["k_seq"]
    q_seq, k_seq = {None: lengths, "k_seq": sorted(lengths), "q_seq": sorted(lengths)[::-1]}[longest]
    return Attention(
        draw(numbers((*batch, q_seq, sizes["d_k"]), scales=scales, high=4)),
        draw(numbers((*batch, k_seq, sizes["d_k"]), scales=scales, high=4)),
        draw(numbers((*batch, k_seq, sizes["d_v"]), scales=EXACT)),
    )


@st.composite
def hidden_keys(draw, a):
    """Draw which keys are hidden from all queries, at least one of them not; and the mask that hides them."""
    visible = draw(masks(a.k.shape[-2:-1]))
    return ~visible, np.broadcast_to(visible, a.allowed_shape)


def scores_of(a):
    """Give the scores: dot products over the root of d_k."""
    return a.q @ a.k.swapaxes(-1, -2) / math.sqrt(a.q.shape[-1])


def rounding_of_weights(subject, a, *, more=0.0):
    """How far rounding may move a weight: eps for each number summed, times 1 + the largest score there can be."""
    d_k, k_seq = a.k.shape[-1], a.k.shape[-2]
    largest = d_k * np.abs(a.q).max() * np.abs(a.k).max() + np.abs(more)
    return 16 * subject.eps * (d_k + k_seq) * (1 + largest)


def rounding(subject, a, *, more=0.0):
    """How far rounding may move a mean of the values."""
    return rounding_of_weights(subject, a, more=more) * np.abs(a.v).max()


def has_sum_1(subject, weights):
    """Judge that each row sums to 1."""
    sums = weights.sum(axis=-1)
    close(sums, np.ones(sums.shape), within=32 * subject.eps * weights.shape[-1], what="the sum of a query's weights")


def stays_in_the_hull(subject, a, out):
    """Judge that each output lies between the least and the largest of the values, in every channel."""
    within = 8 * subject.eps * a.k.shape[-2] * np.abs(a.v).max()
    low, high = a.v.min(axis=-2, keepdims=True) - within, a.v.max(axis=-2, keepdims=True) + within
    holds((low <= out) & (out <= high), "an output is no mean of the values", got=out)


def causally_allowed(q_seq, k_seq):
    """Which keys each query may see, aligned to the last key."""
    return np.array([[j <= i + k_seq - q_seq for j in range(k_seq)] for i in range(q_seq)])


# -------------------------------------------------------------------------------------------------- attention_weights


@states("attention_weights")
@given(a=attentions())
def test_a_querys_weights_are_positive_and_sum_to_1(subject, a):
    """Each query spreads a weight of 1 over the keys, and gives none of them a negative one."""
    weights = subject.attention_weights(a.q, a.k)
    holds(weights >= 0, "a weight is negative", got=weights)
    has_sum_1(subject, weights)


@states("attention_weights")
@given(a=attentions())
def test_a_key_weighs_the_exponential_of_its_scaled_dot_product(subject, a):
    """A key whose dot product with the query is larger by c weighs e^(c / sqrt(d_k)) times as much."""
    ratios, scores = log_ratios(subject.attention_weights(a.q, a.k)), scores_of(a)
    close(ratios, scores - scores[..., :1], within=rounding_of_weights(subject, a), what="the log of the ratios")


@states("attention_weights")
@given(a=attentions(scales=(0.125, 0.25)))
def test_doubling_d_k_scales_the_scores_by_root_2(subject, a):
    """Queries and keys repeated side by side score sqrt(2) times as much: twice the sum over sqrt(2) times the root."""
    repeated = subject.attention_weights(np.concatenate([a.q, a.q], axis=-1), np.concatenate([a.k, a.k], axis=-1))
    scaled = subject.attention_weights(math.sqrt(2) * a.q, a.k)
    close(repeated, scaled, within=4 * rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(scales=(0.125, 0.25)), times=st.sampled_from((0.5, 2.0, 3.0)))
def test_scale_takes_the_place_of_the_root_of_d_k(subject, a, times):
    """A `scale` is what dot products are multiplied by: 2 / sqrt(d_k) is the default for queries twice as large."""
    scaled = subject.attention_weights(a.q, a.k, scale=times / math.sqrt(a.q.shape[-1]))
    close(scaled, subject.attention_weights(times * a.q, a.k), within=4 * rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_permuting_keys_permutes_weights(subject, a, data):
    """A weight goes with its key, wherever the key stands."""
    order = data.draw(st.permutations(range(a.k.shape[-2])))
    permuted = subject.attention_weights(a.q, a.k[..., order, :])
    close(permuted, subject.attention_weights(a.q, a.k)[..., order], within=rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_each_query_asks_for_itself(subject, a, data):
    """A query has the same weights alone as among others."""
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    alone = subject.attention_weights(a.q[..., i : i + 1, :], a.k)
    among = subject.attention_weights(a.q, a.k)[..., i : i + 1, :]
    close(among, alone, within=rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_moving_all_keys_alike_changes_nothing(subject, a, data):
    """One vector added to every key shifts all scores of a query alike, which no weight notices."""
    moved = a._replace(k=a.k + data.draw(numbers((a.k.shape[-1],), scales=EXACT)))
    close(subject.attention_weights(a.q, moved.k), subject.attention_weights(a.q, a.k),
          within=rounding_of_weights(subject, moved) + rounding_of_weights(subject, a))  # fmt: skip


@states("attention_weights")
@given(a=attentions())
def test_a_query_of_zeros_attends_equally_to_every_key(subject, a):
    """A query that asks for nothing gives each of n keys 1/n."""
    weights = subject.attention_weights(0 * a.q, a.k)
    close(weights, np.full(a.allowed_shape, 1 / a.k.shape[-2]), within=16 * subject.eps)


@states("attention_weights")
@given(a=attentions(scales=(1.0,)))
def test_large_scores_leave_nothing_to_any_but_the_best_key(subject, a):
    """As scores grow attention becomes a choice: at ten thousand times, a key that is not the best weighs 0."""
    scores = scores_of(a)
    beaten = scores < scores.max(axis=-1, keepdims=True) - 0.1
    weights = subject.attention_weights(1e4 * a.q, a.k)
    equal(weights[beaten], np.zeros(beaten.sum()), what="the weight of a beaten key")
    has_sum_1(subject, weights)


@states("attention_weights")
@given(a=attentions(scales=(64.0, 1024.0)))
def test_scores_of_ten_thousand_and_more_do_not_overflow(subject, a):
    """Weights stay finite and sum to 1 at scores of 1e4 to 1e7."""
    has_sum_1(subject, subject.attention_weights(a.q, a.k))


@states("attention_weights")
@given(a=attentions(batch=(2, 3)), data=st.data())
def test_sequences_of_a_batch_do_not_mix(subject, a, data):
    """A sequence has the same weights alone as in a batch."""
    place = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    alone = subject.attention_weights(a.q[place], a.k[place])
    close(subject.attention_weights(a.q, a.k)[place], alone, within=rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_nan_in_a_query_spoils_its_own_weights_only(subject, a, data):
    """A query that holds a NaN has weights NaN, and no other query has."""
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    a.q[..., i, 0] = np.nan
    is_nan = np.isnan(subject.attention_weights(a.q, a.k))
    equal(is_nan, np.broadcast_to(np.isnan(a.q).any(axis=-1, keepdims=True), a.allowed_shape), what="the NaNs")


@states("attention_weights")
@given(a=attentions())
def test_without_keys_there_are_no_weights(subject, a):
    """With k_seq 0 the weights are an array without columns."""
    weights = subject.attention_weights(a.q, a.k[..., :0, :])
    holds(weights.shape == (*a.q.shape[:-1], 0), "the weights have another shape", got=str(weights.shape))


@states("attention_weights")
@given(a=attentions(), data=st.data(), times=st.sampled_from((1.0, 1e3, 1e6)))
def test_a_masked_key_has_weight_0_whatever_its_score(subject, a, data, times):
    """Where the mask is False the weight is exactly 0, at scores of 1e5 and more too, and the others sum to 1."""
    mask = data.draw(masks(a.allowed_shape))
    weights = subject.attention_weights(times * a.q, a.k, mask=mask)
    equal(weights[~mask], np.zeros((~mask).sum()), what="the weight of a masked key")
    has_sum_1(subject, weights)


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_a_masked_key_might_as_well_be_absent(subject, a, data):
    """The visible keys have the weights that they have when the hidden ones are taken away."""
    hidden, mask = data.draw(hidden_keys(a))
    weights = subject.attention_weights(a.q, a.k, mask=mask)[..., ~hidden]
    absent = subject.attention_weights(a.q, a.k[..., ~hidden, :])
    close(weights, absent, within=rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data(), junk=st.sampled_from((np.nan, np.inf, -np.inf)))
def test_a_masked_key_may_be_nan(subject, a, data, junk):
    """A hidden key that is NaN or infinite changes no weight, and has weight 0 itself."""
    hidden, mask = data.draw(hidden_keys(a))
    weights = subject.attention_weights(a.q, a.k, mask=mask)
    a.k[..., hidden, :] = junk
    spoiled = subject.attention_weights(a.q, a.k, mask=mask)
    close(spoiled, weights, within=rounding_of_weights(subject, a._replace(k=a.k[..., ~hidden, :])))


@states("attention_weights")
@given(a=attentions())
def test_a_mask_of_true_is_no_mask(subject, a):
    """True means may attend: a mask of nothing but True changes nothing."""
    masked = subject.attention_weights(a.q, a.k, mask=np.ones(a.allowed_shape, bool))
    close(masked, subject.attention_weights(a.q, a.k), within=rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_a_fully_masked_query_has_weights_0(subject, a, data):
    """A query that may attend to nothing has only zeros, and the other queries have the weights they had."""
    mask = data.draw(masks(a.allowed_shape))
    before = subject.attention_weights(a.q, a.k, mask=mask)
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    mask[..., i, :] = False
    before[..., i, :] = 0
    close(subject.attention_weights(a.q, a.k, mask=mask), before, within=rounding_of_weights(subject, a) * mask)


@states("attention_weights")
@given(a=attentions(batch=(2, 3)), data=st.data())
def test_one_mask_serves_a_whole_batch(subject, a, data):
    """A mask without batch axes, or with axes of length 1, applies to every sequence of the batch."""
    batch = data.draw(st.sampled_from(((), (3,), (1, 1), (2, 1), (1, 3))))
    mask = data.draw(masks((*batch, *a.allowed_shape[-2:])))
    once = subject.attention_weights(a.q, a.k, mask=mask)
    for_each = subject.attention_weights(a.q, a.k, mask=np.broadcast_to(mask, a.allowed_shape))
    close(once, for_each, within=rounding_of_weights(subject, a))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_a_mask_must_not_enlarge_the_batch(subject, a, data):
    """A mask with more batch axes than the queries is refused: it would make several results out of one."""
    with raises(subject, TypeError, "mask"):
        subject.attention_weights(a.q, a.k, mask=data.draw(masks((2, *a.allowed_shape))))


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_a_bias_is_added_to_the_scaled_scores(subject, a, data):
    """A bias of b multiplies a key's weight by e^b against the others; it is not scaled."""
    bias = data.draw(numbers(a.allowed_shape, scales=(0.25, 1.0)))
    ratios = log_ratios(subject.attention_weights(a.q, a.k, bias=bias))
    scores = scores_of(a) + bias
    within = rounding_of_weights(subject, a, more=2 * np.abs(bias).max())
    close(ratios, scores - scores[..., :1], within=within, what="the log of the ratios")


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_a_bias_that_is_the_same_for_all_keys_changes_nothing(subject, a, data):
    """Shifting all scores of a query leaves its weights as they were."""
    shift = data.draw(numbers((*a.q.shape[:-1], 1), scales=(1.0, 128.0)))
    biased = subject.attention_weights(a.q, a.k, bias=np.broadcast_to(shift, a.allowed_shape))
    within = rounding_of_weights(subject, a, more=np.abs(shift).max())
    close(biased, subject.attention_weights(a.q, a.k), within=within)


@states("attention_weights")
@given(a=attentions(), data=st.data())
def test_a_bias_of_minus_infinity_is_a_mask(subject, a, data):
    """A bias of 0 and -inf does what the mask of True and False does."""
    mask = data.draw(masks(a.allowed_shape))
    biased = subject.attention_weights(a.q, a.k, bias=np.where(mask, 0.0, -np.inf))
    close(biased, subject.attention_weights(a.q, a.k, mask=mask), within=rounding_of_weights(subject, a) * mask)


@states("attention_weights")
@given(a=attentions(longest="k_seq"))
def test_a_causal_query_weighs_exactly_the_keys_up_to_its_place(subject, a):
    """Causal query i weighs keys 0 ... i + k_seq - q_seq, all of them and no later one."""
    weights = subject.attention_weights(a.q, a.k, causal=True)
    equal(weights > 0, np.broadcast_to(causally_allowed(*a.allowed_shape[-2:]), a.allowed_shape), what="weights > 0")
    has_sum_1(subject, weights)


@states("attention_weights")
@given(a=attentions(longest="q_seq"))
def test_causal_queries_before_the_first_key_have_weights_0(subject, a):
    """With more queries than keys, the first q_seq - k_seq queries come before all keys and weigh none."""
    weights = subject.attention_weights(a.q, a.k, causal=True)
    before, after = np.split(weights, [a.q.shape[-2] - a.k.shape[-2]], axis=-2)
    equal(before, np.zeros(before.shape), what="the weights of the queries before the first key")
    equal(after > 0, np.broadcast_to(causally_allowed(*after.shape[-2:]), after.shape), what="the other weights > 0")
    has_sum_1(subject, after)


@states("attention_weights")
@given(a=attentions(longest="k_seq"), data=st.data())
def test_mask_and_causal_both_restrict(subject, a, data):
    """With a mask and `causal`, a query sees what both allow."""
    mask = data.draw(truths(a.allowed_shape))
    mask[..., 0] = True  # the first key, which every query may see
    both = subject.attention_weights(a.q, a.k, mask=mask, causal=True)
    one = subject.attention_weights(a.q, a.k, mask=mask & causally_allowed(*a.allowed_shape[-2:]))
    close(both, one, within=rounding_of_weights(subject, a) * mask)


# --------------------------------------------------------------------------------------- scaled_dot_product_attention


@states("scaled_dot_product_attention", needs=("attention_weights",))
@given(a=attentions(scales=EXACT))
def test_the_output_is_the_weighted_mean_of_the_values(subject, a):
    """The output is attention_weights @ v."""
    mean = subject.attention_weights(a.q, a.k) @ a.v
    close(subject.scaled_dot_product_attention(a.q, a.k, a.v), mean, within=rounding(subject, a))


@states("scaled_dot_product_attention", needs=("attention_weights",))
@given(a=attentions(scales=EXACT, longest="k_seq"), data=st.data(), scale=st.sampled_from((0.125, 2.0)))
def test_options_mean_what_they_mean_for_the_weights(subject, a, data, scale):
    """With mask, bias, causal and scale together, too, the output is attention_weights @ v."""
    mask = data.draw(truths(a.allowed_shape))
    mask[..., 0] = True
    bias = data.draw(numbers(a.allowed_shape))
    options = {"mask": mask, "bias": bias, "causal": True, "scale": scale}
    mean = subject.attention_weights(a.q, a.k, **options) @ a.v
    within = 4 * rounding(subject, a, more=np.abs(bias).max())
    close(subject.scaled_dot_product_attention(a.q, a.k, a.v, **options), mean, within=within)


@states("scaled_dot_product_attention")
@given(a=attentions(scales=(0.125, 0.25)), times=st.sampled_from((0.5, 2.0, 3.0)))
def test_a_scale_does_what_larger_queries_do(subject, a, times):
    """A `scale` of 2 / sqrt(d_k) gives the output that queries twice as large get without one."""
    scaled = subject.scaled_dot_product_attention(*a, scale=times / math.sqrt(a.q.shape[-1]))
    larger = subject.scaled_dot_product_attention(times * a.q, a.k, a.v)
    close(scaled, larger, within=4 * rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions())
def test_where_the_numbers_lie_in_memory_has_no_meaning(subject, a):
    """Transposed views of queries, keys and values give what contiguous arrays of the same numbers give."""
    views = (np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2) for array in a)
    out = subject.scaled_dot_product_attention(*views)
    close(out, subject.scaled_dot_product_attention(*a), within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(scales=EXACT))
def test_constant_values_come_back(subject, a):
    """Where all values are the same, every query gets that value."""
    constant = np.broadcast_to(a.v[..., :1, :], a.v.shape)
    out = subject.scaled_dot_product_attention(a.q, a.k, constant)
    should = np.broadcast_to(a.v[..., :1, :], out.shape)
    close(out, should, within=32 * subject.eps * a.k.shape[-2] * np.abs(should))


@states("scaled_dot_product_attention")
@given(a=attentions(scales=EXACT))
def test_outputs_stay_between_the_least_and_the_largest_value(subject, a):
    """A mean leaves the hull of what it averages in no channel."""
    out = subject.scaled_dot_product_attention(a.q, a.k, a.v)
    stays_in_the_hull(subject, a, out)


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data(), factor=st.sampled_from((-2.0, 0.5, 3.0)))
def test_the_output_is_linear_in_the_values(subject, a, data, factor):
    """Attention to factor * v + w is factor times that to v plus that to w."""
    w = data.draw(numbers(a.v.shape, scales=EXACT))
    out_v, out_w = (subject.scaled_dot_product_attention(a.q, a.k, values) for values in (a.v, w))
    sum_at_once = a._replace(v=factor * a.v + w)
    within = 4 * (rounding(subject, a) + rounding(subject, a._replace(v=w)))
    close(subject.scaled_dot_product_attention(*sum_at_once), factor * out_v + out_w, within=within)


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_shuffling_keys_with_their_values_changes_nothing(subject, a, data):
    """Attention sees a set of keys and values: their order has no meaning."""
    order = data.draw(st.permutations(range(a.k.shape[-2])))
    shuffled = subject.scaled_dot_product_attention(a.q, a.k[..., order, :], a.v[..., order, :])
    close(shuffled, subject.scaled_dot_product_attention(*a), within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_query_gets_the_same_answer_alone(subject, a, data):
    """A query's output does not depend on the other queries."""
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    alone = subject.scaled_dot_product_attention(a.q[..., i : i + 1, :], a.k, a.v)
    close(subject.scaled_dot_product_attention(*a)[..., i : i + 1, :], alone, within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_one_vector_added_to_every_key_changes_no_output(subject, a, data):
    """Shifting all scores of a query changes nothing of what it gets."""
    moved = a._replace(k=a.k + data.draw(numbers((a.k.shape[-1],), scales=EXACT)))
    within = rounding(subject, moved) + rounding(subject, a)
    close(subject.scaled_dot_product_attention(*moved), subject.scaled_dot_product_attention(*a), within=within)


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_query_of_zeros_gets_the_mean_of_the_values_it_may_see(subject, a, data):
    """A query that asks for nothing gets the plain mean of the allowed values."""
    mask = data.draw(masks(a.allowed_shape))
    mean = mask @ a.v / mask.sum(axis=-1, keepdims=True)
    out = subject.scaled_dot_product_attention(0 * a.q, a.k, a.v, mask=mask)
    close(out, mean, within=32 * subject.eps * a.k.shape[-2] * np.abs(a.v).max())


@states("scaled_dot_product_attention")
@given(a=attentions(scales=(0.125, 0.25)))
def test_repeated_queries_and_keys_score_root_2_times_as_much(subject, a):
    """With d_k doubled by repetition the output is that of queries sqrt(2) times as large."""
    q, k = np.concatenate([a.q, a.q], axis=-1), np.concatenate([a.k, a.k], axis=-1)
    scaled = subject.scaled_dot_product_attention(math.sqrt(2) * a.q, a.k, a.v)
    close(subject.scaled_dot_product_attention(q, k, a.v), scaled, within=4 * rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_single_key_leaves_no_choice(subject, a, data):
    """With one key, every query gets its value, whatever the score."""
    j = data.draw(st.integers(0, a.k.shape[-2] - 1))
    k, v = a.k[..., j : j + 1, :], a.v[..., j : j + 1, :]
    out = subject.scaled_dot_product_attention(a.q, k, v)
    close(out, np.broadcast_to(v, out.shape), within=16 * subject.eps * np.abs(v).max())


@states("scaled_dot_product_attention")
@given(a=attentions(scales=(64.0, 1024.0)))
def test_outputs_are_finite_at_scores_of_ten_thousand_and_more(subject, a):
    """At scores of 1e4 to 1e7 outputs are finite, and still means of the values."""
    out = subject.scaled_dot_product_attention(a.q, a.k, a.v)
    stays_in_the_hull(subject, a, out)


@states("scaled_dot_product_attention")
@given(a=attentions(batch=(2, 3)), data=st.data())
def test_a_sequence_gets_the_same_answers_alone(subject, a, data):
    """Batches do not mix: a sequence has the same outputs alone as in a batch."""
    place = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    alone = subject.scaled_dot_product_attention(a.q[place], a.k[place], a.v[place])
    close(subject.scaled_dot_product_attention(*a)[place], alone, within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions())
def test_without_keys_every_query_gets_zeros(subject, a):
    """With k_seq 0 there is nothing to attend to: the outputs are zeros."""
    out = subject.scaled_dot_product_attention(a.q, a.k[..., :0, :], a.v[..., :0, :])
    equal(out, np.zeros((*a.q.shape[:-1], a.v.shape[-1])))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_value_reaches_exactly_the_queries_that_may_attend_to_it(subject, a, data):
    """Where key j alone has a value, the queries that may attend to j get a share of it, and the others nothing."""
    mask = data.draw(masks(a.allowed_shape))
    j = data.draw(st.integers(0, a.k.shape[-2] - 1))
    v = np.zeros((*a.k.shape[:-1], 1))
    v[..., j, :] = 1
    out = subject.scaled_dot_product_attention(a.q, a.k, v, mask=mask)
    equal(out[..., 0] > 0, mask[..., j], what="the queries that got something")


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_masked_key_has_no_influence_at_scores_of_1e5(subject, a, data):
    """A hidden key and its value may be of the size of 1e5: no output notices."""
    hidden, mask = data.draw(hidden_keys(a))
    k, v = a.k.copy(), a.v.copy()
    k[..., hidden, :] = 1e5 * np.sign(a.q[..., :1, :])  # scores of 1e5 and more, wherever the query is not 0
    v[..., hidden, :] = 1e5
    loud = subject.scaled_dot_product_attention(a.q, k, v, mask=mask)
    quiet = subject.scaled_dot_product_attention(*a, mask=mask)
    close(loud, quiet, within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_masked_key_has_no_influence_where_all_visible_scores_are_minus_20000(subject, a, data):
    """What is hidden is not merely given a low score: those of all visible keys may be lower still."""
    hidden, mask = data.draw(hidden_keys(a))
    c = math.sqrt(20_000 / math.sqrt(a.k.shape[-1]))
    q, k = np.full(a.q.shape, c), np.where(hidden[:, None], c, np.full(a.k.shape, -c))
    v = np.where(hidden[:, None], 1e3, np.broadcast_to(a.v[..., :1, :], a.v.shape))
    out = subject.scaled_dot_product_attention(q, k, v, mask=mask)
    should = np.broadcast_to(a.v[..., :1, :], out.shape)
    close(out, should, within=32 * subject.eps * a.k.shape[-2] * np.abs(should))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data(), junk=st.sampled_from((np.nan, np.inf, -np.inf)))
def test_a_masked_key_and_its_value_may_be_nan(subject, a, data, junk):
    """What is hidden has no influence even if it is NaN or infinite."""
    hidden, mask = data.draw(hidden_keys(a))
    clean = subject.scaled_dot_product_attention(*a, mask=mask)
    k, v = a.k.copy(), a.v.copy()
    k[..., hidden, :], v[..., hidden, :] = junk, junk
    close(subject.scaled_dot_product_attention(a.q, k, v, mask=mask), clean, within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_nan_value_reaches_the_queries_that_may_attend_to_it_and_no_others(subject, a, data):
    """A NaN among the values makes NaN of the outputs that may see it; where it is hidden it is not felt."""
    mask = data.draw(masks(a.allowed_shape))
    clean = subject.scaled_dot_product_attention(*a, mask=mask)
    j = data.draw(st.integers(0, a.k.shape[-2] - 1))
    a.v[..., j, :] = np.nan
    should = np.where(mask[..., j, None], np.nan, clean)
    within = rounding(subject, a._replace(v=np.nan_to_num(a.v))) + rounding(subject, a._replace(v=clean))
    close(subject.scaled_dot_product_attention(*a, mask=mask), should, within=within)


@states("scaled_dot_product_attention")
@given(a=attentions())
def test_a_mask_of_nothing_but_true_changes_nothing(subject, a):
    """True means may attend, for the fused computation too."""
    masked = subject.scaled_dot_product_attention(*a, mask=np.ones(a.allowed_shape, bool))
    close(masked, subject.scaled_dot_product_attention(*a), within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_query_with_nothing_to_attend_to_gets_zeros(subject, a, data):
    """A fully masked row is zeros, and the other rows are what they were."""
    mask = data.draw(masks(a.allowed_shape))
    before = subject.scaled_dot_product_attention(*a, mask=mask)
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    mask[..., i, :] = False
    before[..., i, :] = 0
    within = rounding(subject, a) * mask.any(axis=-1, keepdims=True)
    close(subject.scaled_dot_product_attention(*a, mask=mask), before, within=within)


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_a_fully_masked_query_does_not_look_at_any_value(subject, a, data):
    """Not even NaN in every value shows in the row of a query that may see none of them."""
    mask = data.draw(masks(a.allowed_shape))
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    mask[..., i, :] = False
    out = subject.scaled_dot_product_attention(a.q, a.k, np.full(a.v.shape, np.nan), mask=mask)
    equal(out[..., i, :], np.zeros(out[..., i, :].shape), what="the output of the masked query")


def _causal_weights(subject, a):
    # where the values are the rows of the identity, the output is the weights
    identity = np.broadcast_to(np.eye(a.k.shape[-2]), (*a.k.shape[:-1], a.k.shape[-2]))
    return subject.scaled_dot_product_attention(a.q, a.k, identity, causal=True)


@states("scaled_dot_product_attention")
@given(a=attentions(longest="k_seq"))
def test_a_causal_query_sees_exactly_the_keys_up_to_its_place(subject, a):
    """Causal query i gets its output from keys 0 ... i + k_seq - q_seq, all of them and no later one."""
    shares = _causal_weights(subject, a)
    equal(shares > 0, np.broadcast_to(causally_allowed(*a.allowed_shape[-2:]), a.allowed_shape), what="who sees whom")


@states("scaled_dot_product_attention")
@given(a=attentions(longest="q_seq"))
def test_causal_queries_before_the_first_key_get_zeros(subject, a):
    """With more queries than keys the first ones get zeros, and the last one still sees every key."""
    before, after = np.split(_causal_weights(subject, a), [a.q.shape[-2] - a.k.shape[-2]], axis=-2)
    equal(before, np.zeros(before.shape), what="the outputs of the queries before the first key")
    equal(after > 0, np.broadcast_to(causally_allowed(*after.shape[-2:]), after.shape), what="who sees whom")


@states("scaled_dot_product_attention")
@given(a=attentions(scales=(*EXACT, 64.0), longest="k_seq"), data=st.data())
def test_later_keys_and_values_leave_earlier_causal_outputs_unchanged(subject, a, data):
    """Whatever stands at key j and after, causal queries before j do not notice, at large scores too."""
    more = a.k.shape[-2] - a.q.shape[-2]
    j = data.draw(st.integers(more, a.k.shape[-2] - 1))
    k, v = a.k.copy(), a.v.copy()
    k[..., j:, :], v[..., j:, :] = 1e5, -1e5
    before = subject.scaled_dot_product_attention(*a, causal=True)[..., : j - more, :]
    after = subject.scaled_dot_product_attention(a.q, k, v, causal=True)[..., : j - more, :]
    close(after, before, within=rounding(subject, a))


@states("scaled_dot_product_attention")
@given(a=attentions(), data=st.data())
def test_the_last_queries_alone_get_the_end_of_the_causal_result(subject, a, data):
    """The last queries, asked alone against all keys, get what they get in the whole: this is how one decodes."""
    q = np.concatenate([a.q, a.k], axis=-2)[..., -a.k.shape[-2] :, :]  # as many queries as keys
    n = data.draw(st.integers(1, a.k.shape[-2]))
    whole = subject.scaled_dot_product_attention(q, a.k, a.v, causal=True)
    alone = subject.scaled_dot_product_attention(q[..., -n:, :], a.k, a.v, causal=True)
    close(alone, whole[..., -n:, :], within=rounding(subject, a._replace(q=q)))


@states("scaled_dot_product_attention")
@given(a=attentions(longest="k_seq"), data=st.data())
def test_a_key_is_hidden_by_the_mask_or_by_its_place(subject, a, data):
    """With a mask and `causal`, a query gets what it gets with one mask of what both allow."""
    mask = data.draw(truths(a.allowed_shape))
    mask[..., 0] = True  # the first key, which every query may see
    both = subject.scaled_dot_product_attention(*a, mask=mask, causal=True)
    one = subject.scaled_dot_product_attention(*a, mask=mask & causally_allowed(*a.allowed_shape[-2:]))
    close(both, one, within=rounding(subject, a))


# ------------------------------------------------------------------------------------------------------ self_attention


class OneHead(NamedTuple):
    """Tokens and the projections of one head."""

    x: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray

    @property
    def projected(self):
        """Give queries, keys and values."""
        return Attention(self.x @ self.w_q, self.x @ self.w_k, self.x @ self.w_v)


@st.composite
def one_heads(draw, *, batch=None):
    """Draw tokens, two at least, and projections."""
    sizes = draw(axes())
    batch = sizes["batch"] if batch is None else batch
    d_model, d_k, d_v = sizes["d_model"], sizes["d_k"], sizes["d_v"]
    return OneHead(
        draw(numbers((*batch, max(2, sizes["seq"]), d_model), scales=MODERATE, high=4)),
        draw(numbers((d_model, d_k), scales=MODERATE, high=4)),
        draw(numbers((d_model, d_k), scales=MODERATE, high=4)),
        draw(numbers((d_model, d_v), scales=EXACT)),
    )


def rounding_of_head(subject, h):
    """How far rounding may move an output: as in attention, for projections that are rounded already."""
    sizes = Attention(*(np.abs(h.x) @ np.abs(w) for w in h[1:]))
    return h.x.shape[-1] * rounding(subject, sizes)


@states("self_attention", needs=("scaled_dot_product_attention",))
@given(h=one_heads())
def test_it_is_attention_between_projections_of_the_same_tokens(subject, h):
    """Queries, keys and values are x w_q, x w_k and x w_v, in this order."""
    should = subject.scaled_dot_product_attention(*h.projected)
    close(subject.self_attention(*h), should, within=rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads())
def test_repeated_projections_score_root_2_times_as_much(subject, h):
    """With the columns of w_q and w_k repeated side by side the outputs are those of a w_q sqrt(2) times as large."""
    repeated = h._replace(w_q=np.concatenate([h.w_q, h.w_q], axis=-1), w_k=np.concatenate([h.w_k, h.w_k], axis=-1))
    scaled = subject.self_attention(*h._replace(w_q=math.sqrt(2) * h.w_q))
    close(subject.self_attention(*repeated), scaled, within=4 * rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_channels_that_no_projection_reads_change_nothing(subject, h, data):
    """Tokens may be wider by channels whose weights are 0: scores are divided by the root of d_k, not of d_model."""
    more = data.draw(numbers((*h.x.shape[:-1], 3), scales=MODERATE))
    wider = (np.concatenate([w, np.zeros((3, w.shape[1]))]) for w in h[1:])
    out = subject.self_attention(np.concatenate([h.x, more], axis=-1), *wider)
    close(out, subject.self_attention(*h), within=2 * rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_permuting_tokens_permutes_outputs(subject, h, data):
    """Without positions, f(permuted x) is permuted f(x): attention has no notion of order."""
    order = data.draw(st.permutations(range(h.x.shape[-2])))
    permuted = subject.self_attention(*h._replace(x=h.x[..., order, :]))
    close(permuted, subject.self_attention(*h)[..., order, :], within=rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads(), data=st.data(), pool=st.sampled_from((np.mean, np.max)))
def test_symmetric_pooling_does_not_see_the_order(subject, h, data, pool):
    """The mean or the maximum over the tokens is the same for every order of them."""
    order = data.draw(st.permutations(range(h.x.shape[-2])))
    permuted = pool(subject.self_attention(*h._replace(x=h.x[..., order, :])), axis=-2)
    close(permuted, pool(subject.self_attention(*h), axis=-2), within=2 * rounding_of_head(subject, h))


@states("self_attention", needs=("sinusoidal_positions", "add_positions"))
@given(d_model=st.integers(2, 8), x=numbers((1, 8), scales=(0.125,), high=4))
def test_with_positions_the_order_matters(subject, d_model, x):
    """Once positions are added, two equal tokens get different outputs: it shows where they stand."""
    token, identity = x[:, :d_model], np.eye(d_model)
    table = subject.sinusoidal_positions(2, d_model).astype(np.float64)
    twice = subject.add_positions(np.concatenate([token, token]), table)
    first, second = subject.self_attention(twice.astype(np.float64), identity, identity, identity)
    # each token attends to itself more than the other does to it, by |p_0 - p_1|² / sqrt(d_model) in the score
    holds(np.abs(first - second).max() > 1e-3, "the order of the tokens shows nowhere", got=subject.last_result)


@states("self_attention")
@given(h=one_heads())
def test_with_a_causal_mask_the_order_matters(subject, h):
    """Under a causal mask the last of two different tokens gets a mixture, and comes back pure when it is first."""
    x = h.x[..., :2, :1].copy()
    x[..., 0, :], x[..., 1, :] = 0.0, 1.0
    one = np.ones((1, 1))
    last = subject.self_attention(x, one, one, one, causal=True)[..., 1, :]
    first = subject.self_attention(x[..., ::-1, :], one, one, one, causal=True)[..., 0, :]
    holds(first - last > 0.1, "the order of the tokens shows nowhere", got=last, should=first)


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_a_later_token_leaves_earlier_causal_outputs_unchanged(subject, h, data):
    """Under a causal mask nothing from token t on reaches an output before t."""
    t = data.draw(st.integers(1, h.x.shape[-2] - 1))
    x = h.x.copy()
    x[..., t:, :] = data.draw(numbers(x[..., t:, :].shape, scales=(64.0, 1024.0)))
    before = subject.self_attention(*h, causal=True)[..., :t, :]
    after = subject.self_attention(*h._replace(x=x), causal=True)[..., :t, :]
    close(after, before, within=rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_a_masked_token_might_as_well_be_absent(subject, h, data):
    """The tokens that are not padding get the outputs that they get without the padding."""
    visible = data.draw(masks(h.x.shape[-2:-1]))
    mask = np.broadcast_to(visible, (*h.x.shape[:-1], h.x.shape[-2]))
    padded = subject.self_attention(*h, mask=mask)[..., visible, :]
    alone = subject.self_attention(*h._replace(x=h.x[..., visible, :]))
    close(padded, alone, within=rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_a_token_that_may_see_nothing_gets_zeros(subject, h, data):
    """A token with no token to attend to, not even itself, gets zeros."""
    t = data.draw(st.integers(0, h.x.shape[-2] - 1))
    mask = np.ones((*h.x.shape[:-1], h.x.shape[-2]), bool)
    mask[..., t, :] = False
    out = subject.self_attention(*h, mask=mask)[..., t, :]
    equal(out, np.zeros(out.shape), what="the output of the masked token")


def far_below_zero(visible, w_q, *, n_heads=1):
    """Give tokens, all visible ones alike, and w_q and w_k that make their scores -20,000.

    A hidden token is the opposite; its score would be 20,000. A visible token gets the value of its like.
    """
    d_k = w_q.shape[1] // n_heads
    c = math.sqrt(20_000 / math.sqrt(d_k))
    tokens = np.where(visible, c, -c)[..., None] * np.ones(len(w_q))
    w_q = np.full(w_q.shape, 1 / len(w_q))
    return tokens, w_q, -w_q


@states("self_attention")
@given(h=one_heads())
def test_tokens_that_are_alike_keep_their_value_at_scores_of_20000(subject, h):
    """Large scores do not overflow: where all tokens are the same, each gets that token times w_v."""
    tokens, w_q, _ = far_below_zero(np.ones(h.x.shape[:-1], bool), h.w_q)
    out = subject.self_attention(tokens, w_q, w_q, h.w_v)
    close(out, tokens @ h.w_v, within=16 * subject.eps * (out.shape[-2] + len(h.w_v)) * (tokens @ np.abs(h.w_v)).max())


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_hidden_tokens_have_no_part_where_all_visible_scores_are_minus_20000(subject, h, data):
    """What is masked is not merely given a low score: it has no part where all visible scores are lower still."""
    visible = data.draw(masks(h.x.shape[:-1]))
    tokens, w_q, w_k = far_below_zero(visible, h.w_q)
    mask = np.broadcast_to(visible[..., None, :], (*visible.shape, visible.shape[-1]))
    out = subject.self_attention(tokens, w_q, w_k, h.w_v, mask=mask)
    within = 16 * subject.eps * (visible.shape[-1] + len(h.w_v)) * (np.abs(tokens) @ np.abs(h.w_v)).max()
    close(out, np.abs(tokens) @ h.w_v, within=within)


@states("self_attention")
@given(h=one_heads(), data=st.data())
def test_a_mask_and_causal_both_restrict_a_token(subject, h, data):
    """A token sees what the mask and its place both allow."""
    seq = h.x.shape[-2]
    mask = data.draw(truths((*h.x.shape[:-1], seq)))
    mask[..., 0] = True
    both = subject.self_attention(*h, mask=mask, causal=True)
    one = subject.self_attention(*h, mask=mask & causally_allowed(seq, seq))
    close(both, one, within=rounding_of_head(subject, h))


@states("self_attention")
@given(h=one_heads(batch=(2, 3)), data=st.data())
def test_a_sequence_attends_to_itself_only(subject, h, data):
    """A sequence has the same outputs alone as in a batch."""
    place = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    alone = subject.self_attention(*h._replace(x=h.x[place]))
    close(subject.self_attention(*h)[place], alone, within=rounding_of_head(subject, h))


# ------------------------------------------------------------------------------------------------ multi_head_attention


class Heads(NamedTuple):
    """Tokens and the projections of several heads."""

    x: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_o: np.ndarray | None
    n_heads: int

    def columns(self, head):
        """Give the columns of w_q and w_k, and those of w_v, that a head reads."""
        d_k, d_v = self.w_q.shape[1] // self.n_heads, self.w_v.shape[1] // self.n_heads
        return slice(head * d_k, (head + 1) * d_k), slice(head * d_v, (head + 1) * d_v)

    def alone(self, head):
        """Give the arguments of `self_attention` for one head."""
        keys, values = self.columns(head)
        return self.x, self.w_q[:, keys], self.w_k[:, keys], self.w_v[:, values]

    def reordered(self, order):
        """Give the same heads in another order: their columns, and the rows of w_o."""
        keys = np.concatenate([np.arange(self.w_q.shape[1])[self.columns(h)[0]] for h in order])
        values = np.concatenate([np.arange(self.w_v.shape[1])[self.columns(h)[1]] for h in order])
        return self._replace(
            w_q=self.w_q[:, keys], w_k=self.w_k[:, keys], w_v=self.w_v[:, values],
            w_o=None if self.w_o is None else self.w_o[values],
        )  # fmt: skip


@st.composite
def several_heads(draw, *, batch=None, n_heads=None, w_o=True, own_widths=False):
    """Draw tokens and the projections of one to four heads, which together are as wide as the stream.

    With `own_widths` they are not, and queries and values differ in width too.
    """
    sizes = draw(axes())
    batch = sizes["batch"] if batch is None else batch
    n_heads = n_heads or draw(st.integers(1, 4))
    d_k, d_v = draw(st.permutations((1, 2, 3)))[:2]
    if own_widths:
        d_model, heads_d_k, heads_d_v = 5, n_heads * d_k, n_heads * d_v
    else:
        d_model = heads_d_k = heads_d_v = n_heads * d_k

    def weights(*shape, scales=MODERATE):
        return draw(numbers(shape, scales=scales, high=4))

    return Heads(
        weights(*batch, sizes["q_seq"], d_model),
        weights(d_model, heads_d_k, scales=(0.125,)),
        weights(d_model, heads_d_k, scales=(0.125,)),
        weights(d_model, heads_d_v),
        weights(heads_d_v, d_model) if w_o else None,
        n_heads,
    )


def attend(subject, h, **options):
    """Call multi_head_attention."""
    return subject.multi_head_attention(h.x, h.w_q, h.w_k, h.w_v, h.w_o, n_heads=h.n_heads, **options)


def rounding_of_heads(subject, h, context=None):
    """How far rounding may move an output, or one head's part of it."""
    context = h.x if context is None else context
    sizes = Attention(*(np.abs(x) @ np.abs(w) for x, w in ((h.x, h.w_q), (context, h.w_k), (context, h.w_v))))
    spread = 1 if h.w_o is None else np.abs(h.w_o).sum(axis=0).max()
    return h.x.shape[-1] * h.n_heads * rounding(subject, sizes) * spread


@states("multi_head_attention", needs=("self_attention",))
@given(h=several_heads(n_heads=1, w_o=False))
def test_one_head_alone_is_self_attention(subject, h):
    """One head without output projection is self_attention."""
    close(attend(subject, h), subject.self_attention(*h.alone(0)), within=rounding_of_heads(subject, h))


def _heads_stand_side_by_side(subject, h):
    side_by_side = attend(subject, h)
    for head in range(h.n_heads):
        alone = subject.self_attention(*h.alone(head))
        within = rounding_of_heads(subject, h)
        close(side_by_side[..., h.columns(head)[1]], alone, within=within, what=f"head {head}")


@states("multi_head_attention", needs=("self_attention",))
@given(h=several_heads(w_o=False))
def test_a_head_reads_its_own_columns(subject, h):
    """Head h reads columns h d_k ... (h + 1) d_k - 1 of the projections, and its output stands at its place."""
    _heads_stand_side_by_side(subject, h)


@states("multi_head_attention", needs=("self_attention",))
@given(h=several_heads(w_o=False, own_widths=True))
def test_heads_may_be_narrower_or_wider_than_the_stream(subject, h):
    """The width of all heads need not be d_model, nor d_v be d_k: head h still has its own columns."""
    _heads_stand_side_by_side(subject, h)


@states("multi_head_attention")
@given(h=several_heads(w_o=False))
def test_heads_repeated_within_score_root_2_times_as_much(subject, h):
    """Each head's queries, keys and values repeated side by side give the outputs of a sqrt(2) w_q, repeated too."""

    def repeated(w):  # a stream of [x, x], of which each copy fills one half of every head
        by_head = w.reshape(len(w), h.n_heads, -1)
        return np.einsum("ab,inj->ainbj", np.eye(2), by_head).reshape(2 * w.shape[0], 2 * w.shape[1])

    twice = Heads(np.concatenate([h.x, h.x], axis=-1), *map(repeated, (h.w_q, h.w_k, h.w_v)), None, h.n_heads)
    halves = attend(subject, twice).reshape(*h.x.shape[:-1], h.n_heads, 2, -1)
    scaled = attend(subject, h._replace(w_q=math.sqrt(2) * h.w_q)).reshape(*h.x.shape[:-1], h.n_heads, 1, -1)
    close(halves, np.broadcast_to(scaled, halves.shape), within=4 * rounding_of_heads(subject, twice))


@states("multi_head_attention")
@given(h=several_heads(w_o=False, own_widths=True), data=st.data())
def test_channels_that_no_head_reads_change_nothing(subject, h, data):
    """Tokens may be wider by channels whose weights are 0: scores are divided by the root of d_k, not of d_model."""
    more = data.draw(numbers((*h.x.shape[:-1], 3), scales=MODERATE))
    wider = (np.concatenate([w, np.zeros((3, w.shape[1]))]) for w in (h.w_q, h.w_k, h.w_v))
    out = attend(subject, Heads(np.concatenate([h.x, more], axis=-1), *wider, None, h.n_heads))
    close(out, attend(subject, h), within=2 * rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads())
def test_the_output_projection_mixes_the_heads(subject, h):
    """With w_o the output is that of the heads side by side, times w_o."""
    side_by_side = attend(subject, h._replace(w_o=None))
    close(attend(subject, h), side_by_side @ h.w_o, within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_the_order_of_the_heads_has_no_meaning(subject, h, data):
    """Heads exchanged together with their columns and their rows of w_o give the same output."""
    order = data.draw(st.permutations(range(h.n_heads)))
    close(attend(subject, h.reordered(order)), attend(subject, h), within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_each_head_matters(subject, h, data):
    """Where everything is positive, silencing any one head's values makes every output smaller."""
    h = h._replace(x=np.abs(h.x) + 0.125, w_v=np.abs(h.w_v) + 0.125, w_o=np.abs(h.w_o) + 0.125)
    silenced = h.w_v.copy()
    silenced[:, h.columns(data.draw(st.integers(0, h.n_heads - 1)))[1]] = 0
    less = attend(subject, h) - attend(subject, h._replace(w_v=silenced))
    # a head's value is at least 1 / 64, and so is a mean of such; w_o passes on an eighth
    holds(less > 1e-3, "a head does not matter", got=less)


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_tokens_permuted_give_outputs_permuted(subject, h, data):
    """Without positions, several heads have no notion of order either."""
    order = data.draw(st.permutations(range(h.x.shape[-2])))
    permuted = attend(subject, h._replace(x=h.x[..., order, :]))
    close(permuted, attend(subject, h)[..., order, :], within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(batch=(2, 3)), data=st.data())
def test_a_sequence_has_the_same_outputs_alone_as_in_a_batch(subject, h, data):
    """Neither sequences nor their heads mix."""
    place = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    alone = attend(subject, h._replace(x=h.x[place]))
    close(attend(subject, h)[place], alone, within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(w_o=False), data=st.data())
def test_biases_are_weights_of_a_constant_channel(subject, h, data):
    """Biases b_q, b_k and b_v do what one more channel of x, always 1, does with the biases as its weights."""
    b_q, b_k, b_v = (data.draw(numbers(w.shape[1:], scales=MODERATE)) for w in (h.w_q, h.w_k, h.w_v))
    with_ones = Heads(
        np.concatenate([h.x, np.ones((*h.x.shape[:-1], 1))], axis=-1),
        *(np.concatenate([w, b[None]]) for w, b in ((h.w_q, b_q), (h.w_k, b_k), (h.w_v, b_v))),
        None,
        h.n_heads,
    )
    biased = attend(subject, h, b_q=b_q, b_k=b_k, b_v=b_v)
    close(biased, attend(subject, with_ones), within=rounding_of_heads(subject, with_ones))


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_an_output_bias_is_added_at_the_end(subject, h, data):
    """b_o is added once, after w_o."""
    b_o = data.draw(numbers(h.w_o.shape[1:], scales=EXACT))
    within = rounding_of_heads(subject, h) + 16 * subject.eps * np.abs(b_o)
    close(attend(subject, h, b_o=b_o), attend(subject, h) + b_o, within=within)


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_a_key_bias_changes_nothing(subject, h, data):
    """A bias of the keys shifts all scores of a query alike, so that b_k alone might as well be absent."""
    b_k = data.draw(numbers(h.w_k.shape[1:], scales=MODERATE))
    # rounded as if the bias were one more channel of x
    bound = h._replace(x=np.abs(h.x) + 1, w_k=np.abs(h.w_k) + np.abs(b_k))
    close(attend(subject, h, b_k=b_k), attend(subject, h), within=2 * rounding_of_heads(subject, bound))


@states("multi_head_attention")
@given(h=several_heads(w_o=False), data=st.data())
def test_a_value_bias_is_what_every_mean_contains(subject, h, data):
    """Weights sum to 1, so that b_v is simply added to the heads' outputs."""
    b_v = data.draw(numbers(h.w_v.shape[1:], scales=EXACT))
    within = rounding_of_heads(subject, h) + 8 * subject.eps * h.x.shape[-2] * np.abs(b_v).max()
    close(attend(subject, h, b_v=b_v), attend(subject, h) + b_v, within=within)


@st.composite
def heads_and_context(draw, **options):
    """Draw several heads and a context of another length."""
    h = draw(several_heads(**options))
    k_seq = draw(st.sampled_from([n for n in range(1, 8) if n != h.x.shape[-2]]))
    return h, draw(numbers((*h.x.shape[:-2], k_seq, h.x.shape[-1]), scales=MODERATE, high=4))


@states("multi_head_attention", needs=("scaled_dot_product_attention",))
@given(both=heads_and_context(w_o=False))
def test_queries_come_from_x_and_keys_and_values_from_the_context(subject, both):
    """With a context c, head h is attention of x w_q to c w_k and c w_v."""
    h, c = both
    out = attend(subject, h, context=c)
    for head in range(h.n_heads):
        keys, values = h.columns(head)
        alone = Attention(h.x @ h.w_q[:, keys], c @ h.w_k[:, keys], c @ h.w_v[:, values])
        should = subject.scaled_dot_product_attention(*alone)
        close(out[..., values], should, within=rounding_of_heads(subject, h, c), what=f"head {head}")


@states("multi_head_attention")
@given(h=several_heads())
def test_x_as_its_own_context_is_self_attention(subject, h):
    """Given as context, x does what it does when none is given."""
    close(attend(subject, h, context=h.x), attend(subject, h), within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(both=heads_and_context(w_o=False))
def test_from_a_context_of_equal_tokens_every_query_gets_their_value(subject, both):
    """Where all of the context is one token, x has no say: the output is that token times w_v."""
    h, c = both
    c = np.broadcast_to(c[..., :1, :], c.shape)
    out = attend(subject, h, context=c)
    close(out, np.broadcast_to(c[..., :1, :] @ h.w_v, out.shape), within=rounding_of_heads(subject, h, c))


@states("multi_head_attention")
@given(both=heads_and_context(), data=st.data())
def test_the_order_of_the_context_has_no_meaning(subject, both, data):
    """A context shuffled gives the same outputs."""
    h, c = both
    order = data.draw(st.permutations(range(c.shape[-2])))
    shuffled = attend(subject, h, context=c[..., order, :])
    close(shuffled, attend(subject, h, context=c), within=rounding_of_heads(subject, h, c))


@states("multi_head_attention")
@given(both=heads_and_context(), data=st.data())
def test_padding_of_the_context_is_masked_away(subject, both, data):
    """A context with padding behind the mask gives what the context without it gives."""
    h, c = both
    visible = data.draw(masks(c.shape[-2:-1]))
    mask = np.broadcast_to(visible, (*h.x.shape[:-1], c.shape[-2]))
    padded = attend(subject, h, context=c, mask=mask)
    close(padded, attend(subject, h, context=c[..., visible, :]), within=rounding_of_heads(subject, h, c))


@states("multi_head_attention", needs=("self_attention",))
@given(h=several_heads(w_o=False), data=st.data())
def test_a_mask_applies_to_every_head(subject, h, data):
    """Each sequence's mask hides the same keys from all its heads."""
    mask = data.draw(masks((*h.x.shape[:-1], h.x.shape[-2])))
    out = attend(subject, h, mask=mask)
    for head in range(h.n_heads):
        alone = subject.self_attention(*h.alone(head), mask=mask)
        close(out[..., h.columns(head)[1]], alone, within=rounding_of_heads(subject, h), what=f"head {head}")


@states("multi_head_attention")
@given(h=several_heads(batch=(3,), n_heads=3), data=st.data())
def test_a_mask_of_a_batch_as_large_as_the_heads_belongs_to_the_batch(subject, h, data):
    """With three sequences and three heads, mask b still belongs to sequence b and not to head b."""
    mask = data.draw(masks((*h.x.shape[:-1], h.x.shape[-2])))
    out = attend(subject, h, mask=mask)
    for b in range(3):
        alone = attend(subject, h._replace(x=h.x[b]), mask=mask[b])
        close(out[b], alone, within=rounding_of_heads(subject, h), what=f"sequence {b}")


@states("multi_head_attention")
@given(h=several_heads(batch=(2, 3)), data=st.data())
def test_one_mask_serves_every_sequence(subject, h, data):
    """A mask without batch axes, or with axes of length 1, applies to every sequence of the batch."""
    batch = data.draw(st.sampled_from(((), (3,), (1, 1), (2, 1), (1, 3))))
    seq = h.x.shape[-2]
    mask = data.draw(masks((*batch, seq, seq)))
    for_each = attend(subject, h, mask=np.broadcast_to(mask, (2, 3, seq, seq)))
    close(attend(subject, h, mask=mask), for_each, within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_a_query_with_nothing_to_attend_to_gets_the_output_bias_alone(subject, h, data):
    """Its heads give zeros, b_v or not, and so w_o has nothing to project: b_o is left."""
    b_v, b_o = data.draw(numbers(h.w_v.shape[1:], scales=EXACT)), data.draw(numbers(h.w_o.shape[1:], scales=EXACT))
    i = data.draw(st.integers(0, h.x.shape[-2] - 1))
    mask = np.ones((*h.x.shape[:-1], h.x.shape[-2]), bool)
    mask[..., i, :] = False
    out = attend(subject, h, mask=mask, b_v=b_v, b_o=b_o)[..., i, :]
    equal(out, np.broadcast_to(b_o, out.shape), what="the output of the masked query")


@states("multi_head_attention")
@given(h=several_heads(w_o=False))
def test_tokens_that_are_alike_keep_their_values_at_scores_of_20000_in_every_head(subject, h):
    """Large scores overflow in no head: where all tokens are the same, each gets that token times w_v."""
    tokens, w_q, _ = far_below_zero(np.ones(h.x.shape[:-1], bool), h.w_q, n_heads=h.n_heads)
    out = attend(subject, h._replace(x=tokens, w_q=w_q, w_k=w_q))
    close(out, tokens @ h.w_v, within=16 * subject.eps * (out.shape[-2] + len(h.w_v)) * (tokens @ np.abs(h.w_v)).max())


@states("multi_head_attention")
@given(h=several_heads(w_o=False), data=st.data())
def test_hidden_tokens_have_no_part_in_any_head_where_all_visible_scores_are_minus_20000(subject, h, data):
    """What is masked has no part in any head, even where all visible scores are far below zero."""
    visible = data.draw(masks(h.x.shape[:-1]))
    tokens, w_q, w_k = far_below_zero(visible, h.w_q, n_heads=h.n_heads)
    mask = np.broadcast_to(visible[..., None, :], (*visible.shape, visible.shape[-1]))
    out = attend(subject, h._replace(x=tokens, w_q=w_q, w_k=w_k), mask=mask)
    within = 16 * subject.eps * (visible.shape[-1] + len(h.w_v)) * (np.abs(tokens) @ np.abs(h.w_v)).max()
    close(out, np.abs(tokens) @ h.w_v, within=within)


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_later_tokens_leave_earlier_causal_outputs_unchanged(subject, h, data):
    """Under a causal mask nothing from token t on reaches an output before t, through any head."""
    t = data.draw(st.integers(0, h.x.shape[-2] - 1))
    x = h.x.copy()
    x[..., t:, :] = data.draw(numbers(x[..., t:, :].shape, scales=(64.0, 1024.0)))
    before = attend(subject, h, causal=True)[..., :t, :]
    after = attend(subject, h._replace(x=x), causal=True)[..., :t, :]
    close(after, before, within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(w_o=False))
def test_the_first_causal_token_gets_its_own_value(subject, h):
    """Under a causal mask the first token sees itself and no other: its heads give x w_v."""
    first = attend(subject, h, causal=True)[..., 0, :]
    within = 8 * subject.eps * len(h.w_v) * (np.abs(h.x[..., 0, :]) @ np.abs(h.w_v)).max()
    close(first, h.x[..., 0, :] @ h.w_v, within=within)


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_a_mask_comes_on_top_of_causal(subject, h, data):
    """With a mask and `causal`, a query sees what both allow: neither replaces the other."""
    seq = h.x.shape[-2]
    mask = data.draw(truths((*h.x.shape[:-1], seq)))
    mask[..., 0] = True
    one = attend(subject, h, mask=mask & causally_allowed(seq, seq))
    close(attend(subject, h, mask=mask, causal=True), one, within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_the_last_queries_see_the_whole_causal_context(subject, h, data):
    """The last n tokens with the whole sequence as context get the end of the causal result."""
    n = data.draw(st.integers(1, h.x.shape[-2]))
    last = attend(subject, h._replace(x=h.x[..., -n:, :]), context=h.x, causal=True)
    close(last, attend(subject, h, causal=True)[..., -n:, :], within=rounding_of_heads(subject, h))


@states("multi_head_attention")
@given(h=several_heads(), data=st.data())
def test_heads_that_do_not_divide_the_width_raise(subject, h, data):
    """A number of heads that does not divide the width, or is not positive, is a ValueError that names both."""
    width = h.w_q.shape[1]
    n_heads = data.draw(st.sampled_from([n for n in range(-2, width + 2) if n < 1 or width % n]))
    with raises(subject, ValueError, "multi_head_attention", "n_heads", str(width), str(n_heads)):
        attend(subject, h._replace(n_heads=n_heads))


# --------------------------------------------------------------------------------------------- the gradient of softmax


def rounding_of_softmax_gradient(subject, scores, cotangent):
    """How far rounding may move a number of w * (g - w.g)."""
    return 4 * rounding_of_softmax(subject, scores) * np.abs(cotangent).max()


@st.composite
def differentiated_rows(draw, **options):
    """Draw scores and a cotangent of their shape."""
    scores = draw(score_rows(**options))
    return scores, draw(numbers(scores.shape))


@states("softmax", gradient=True)
@given(drawn=differentiated_rows())
def test_the_gradient_of_a_row_sums_to_0(subject, drawn):
    """Shifting a row changes no weight, so that the gradients of its scores cancel."""
    scores, cotangent = drawn
    (gradient,) = subject.softmax_vjp(cotangent, scores)
    sums = gradient.sum(axis=-1)
    within = 16 * subject.eps * scores.shape[-1] * np.abs(cotangent).max()
    close(sums, np.zeros(sums.shape), within=within, what="the sum of a row's gradient")


@states("softmax", gradient=True)
@given(drawn=differentiated_rows(), data=st.data())
def test_the_gradient_does_not_see_a_constant_in_the_cotangent(subject, drawn, data):
    """Weights sum to 1, so that one number added to a whole row of the cotangent asks for nothing."""
    scores, cotangent = drawn
    moved = cotangent + data.draw(numbers((*scores.shape[:-1], 1)))
    (gradient,), (other,) = subject.softmax_vjp(cotangent, scores), subject.softmax_vjp(moved, scores)
    within = rounding_of_softmax_gradient(subject, scores, cotangent)
    close(other, gradient, within=within + rounding_of_softmax_gradient(subject, scores, moved))


@states("softmax", gradient=True)
@given(drawn=differentiated_rows(), data=st.data())
def test_the_gradient_is_symmetric(subject, drawn, data):
    """Softmax is itself a gradient, that of log sum exp: score i moves weight j as much as score j weight i."""
    scores, one = drawn
    other = data.draw(numbers(scores.shape))
    (of_one,), (of_other,) = subject.softmax_vjp(one, scores), subject.softmax_vjp(other, scores)
    within = rounding_of_softmax_gradient(subject, scores, one) * np.abs(other).max() * scores.size
    close((of_one * other).sum(), (of_other * one).sum(), within=within, what="the pairing")


@states("softmax", gradient=True)
@given(scores=score_rows(), data=st.data())
def test_the_gradient_of_one_weight_is_its_share_of_the_row(subject, scores, data):
    """Weight w_i has the gradient w_i (1 - w_i) at its own score and -w_i w_j at every other one."""
    i = data.draw(st.integers(0, scores.shape[-1] - 1))
    one = np.broadcast_to(np.arange(scores.shape[-1]) == i, scores.shape).astype(np.float64)
    weights = subject.softmax(scores)
    (gradient,) = subject.softmax_vjp(one, scores)
    close(gradient, weights[..., i, None] * (one - weights), within=rounding_of_softmax_gradient(subject, scores, one))


@states("softmax", gradient=True)
@given(drawn=differentiated_rows(), data=st.data())
def test_a_score_of_minus_infinity_has_gradient_0(subject, drawn, data):
    """What weighs nothing learns nothing: the gradient at -inf is exactly 0, in a row of nothing else too."""
    scores, cotangent = drawn
    finite = data.draw(truths(scores.shape))
    (gradient,) = subject.softmax_vjp(cotangent, np.where(finite, scores, -np.inf))
    equal(gradient[~finite], np.zeros((~finite).sum()), what="the gradient of a score of -inf")
    holds(np.isfinite(gradient), "a gradient is not finite", got=gradient)


@states("softmax", gradient=True)
@given(drawn=differentiated_rows(scales=(1.0,)), times=st.sampled_from((1e4, 1e30)))
def test_at_huge_scores_the_gradient_acts_between_the_largest_only(subject, drawn, times):
    """At scores of 1e4 and more the gradient is finite: each of n largest gets 1/n of its lead over their mean."""
    rows, cotangent = drawn
    largest = rows == rows.max(axis=-1, keepdims=True)
    shares = largest / largest.sum(axis=-1, keepdims=True)
    should = shares * (cotangent - (shares * cotangent).sum(axis=-1, keepdims=True))
    (gradient,) = subject.softmax_vjp(cotangent, times * rows)
    close(gradient, should, within=16 * subject.eps * rows.shape[-1] * np.abs(cotangent).max())


@states("softmax", gradient=True)
@given(drawn=differentiated_rows(), data=st.data())
def test_a_row_has_the_gradient_that_it_has_alone(subject, drawn, data):
    """No other row's cotangent reaches a row."""
    scores, cotangent = drawn
    row = data.draw(st.sampled_from(list(np.ndindex(scores.shape[:-1]))))
    (gradient,), (alone,) = subject.softmax_vjp(cotangent, scores), subject.softmax_vjp(cotangent[row], scores[row])
    close(gradient[row], alone, within=rounding_of_softmax_gradient(subject, scores[row], cotangent[row]))


@states("softmax", gradient=True)
@given(drawn=differentiated_rows())
def test_the_gradient_follows_the_axis(subject, drawn):
    """With `axis` the gradient along that axis is that of the rows when it is moved to the end."""
    scores, cotangent = (np.stack([array, -array[..., ::-1]]) for array in drawn)
    rows, cotangent_of_rows = np.moveaxis(scores, 0, -1), np.moveaxis(cotangent, 0, -1)
    (gradient,) = subject.softmax_vjp(cotangent, scores, axis=0)
    (should,) = subject.softmax_vjp(cotangent_of_rows, rows)
    within = rounding_of_softmax_gradient(subject, rows, cotangent)
    close(gradient, np.moveaxis(should, -1, 0), within=within)


# ----------------------------------------------------------------------- the gradients of attention and of its weights

WEIGHTS, ATTENTION = "attention_weights", "scaled_dot_product_attention"


def both(variant):
    """Give the case of attention and that of its weights."""
    return f"{WEIGHTS}.{variant}", f"{ATTENTION}.{variant}"


class Gradients(NamedTuple):
    """The gradients of queries, keys, values (of attention only) and bias (where one is given)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray | None
    bias: np.ndarray | None


@st.composite
def differentiated(draw, **options):
    """Draw queries, keys and values, and a cotangent that is wide enough for the weights and for the output."""
    a = draw(attentions(**options))
    width = max(a.k.shape[-2], a.v.shape[-1])
    return a, draw(numbers((*a.q.shape[:-1], width), scales=MODERATE))


def gradients(subject, case, a, cotangent, **options):
    """Call the vjp of attention or of its weights."""
    if case.startswith(WEIGHTS):
        q, k, bias = subject.attention_weights_vjp(cotangent[..., : a.k.shape[-2]], a.q, a.k, **options)
        return Gradients(q, k, None, bias)
    return Gradients(*subject.scaled_dot_product_attention_vjp(cotangent[..., : a.v.shape[-1]], *a, **options))


def rounding_of_gradients(subject, a, cotangent, *, more=0.0):
    """How far rounding may move a number of any of the gradients, or the sum of as many as there are tokens."""
    reach = np.abs(cotangent).max() * (1 + a.v.shape[-1] * np.abs(a.v).max())  # into the weights, and into the values
    tokens = a.q[..., 0].size + a.k[..., 0].size
    size = 1 + max(np.abs(a.q).max(), np.abs(a.k).max())
    return 16 * tokens * rounding_of_weights(subject, a, more=more) * reach * size


def same_gradients(got, should, *, within):
    """Judge that each gradient is the other one."""
    for name, a_gradient, another in zip(Gradients._fields, got, should, strict=True):
        if another is not None:
            close(a_gradient, another, within=within, what=f"the gradient of {name}")


def no_gradient(gradient, what):
    """Judge that a gradient is exactly 0."""
    equal(gradient, np.zeros(gradient.shape), what=f"the gradient of {what}")


@states(cases=both("plain"), gradient=True)
@given(drawn=differentiated())
def test_the_gradients_of_the_keys_sum_to_0(subject, case, drawn):
    """One vector added to every key changes nothing, so that the keys' gradients cancel."""
    a, cotangent = drawn
    sums = gradients(subject, case, a, cotangent).k.sum(axis=-2)
    within = rounding_of_gradients(subject, a, cotangent)
    close(sums, np.zeros(sums.shape), within=within, what="the sum of the keys' gradients")


@states(cases=both("plain"), gradient=True)
@given(drawn=differentiated())
def test_queries_and_keys_have_the_same_part_in_the_gradient(subject, case, drawn):
    """Queries twice as large do what keys twice as large do: dq.q = dk.k, summed over a sequence."""
    a, cotangent = drawn
    d = gradients(subject, case, a, cotangent)
    within = rounding_of_gradients(subject, a, cotangent) * a.q.shape[-1] * np.abs(a.q).max()
    within = within + rounding_of_gradients(subject, a, cotangent) * a.q.shape[-1] * np.abs(a.k).max()
    close((d.q * a.q).sum(axis=(-2, -1)), (d.k * a.k).sum(axis=(-2, -1)), within=within, what="dq.q")


@states(cases=(*both("bias"), *both("scale")), gradient=True)
@given(drawn=differentiated(), scale=st.sampled_from((0.25, 2.0)), data=st.data())
def test_the_gradient_of_a_score_reaches_query_and_key_times_the_scale(subject, case, drawn, scale, data):
    """A score s q.k + b hands its gradient dS to b as it is: dQ = s dS K and dK = s dS^T Q."""
    a, cotangent = drawn
    bias = data.draw(numbers(a.allowed_shape, scales=(0.25, 1.0)))
    scaled = {"scale": scale} if case.endswith("scale") else {}
    s = scaled.get("scale", 1 / math.sqrt(a.q.shape[-1]))
    d = gradients(subject, case, a, cotangent, bias=bias, **scaled)
    more = np.abs(bias).max() + scale * a.q.shape[-1] * np.abs(a.q).max() * np.abs(a.k).max()
    within = 2 * (1 + s) * rounding_of_gradients(subject, a, cotangent, more=more)
    close(d.q, s * d.bias @ a.k, within=within, what="the gradient of q")
    close(d.k, s * d.bias.swapaxes(-1, -2) @ a.q, within=within, what="the gradient of k")


@states(cases=both("bias"), gradient=True)
@given(drawn=differentiated(), data=st.data())
def test_the_gradient_of_a_querys_bias_sums_to_0(subject, case, drawn, data):
    """Shifting all scores of a query changes nothing: the gradients of its bias cancel."""
    a, cotangent = drawn
    bias = data.draw(numbers(a.allowed_shape, scales=(0.25, 1.0)))
    sums = gradients(subject, case, a, cotangent, bias=bias).bias.sum(axis=-1)
    within = rounding_of_gradients(subject, a, cotangent, more=np.abs(bias).max())
    close(sums, np.zeros(sums.shape), within=within, what="the sum of a query's bias gradients")


@states(cases=both("bias"), gradient=True)
@given(drawn=differentiated(batch=(2, 3)), data=st.data())
def test_a_bias_for_many_sequences_gets_the_sum_of_their_gradients(subject, case, drawn, data):
    """A bias without batch axes, or with axes of length 1, gets one gradient, summed over those whom it serves."""
    a, cotangent = drawn
    batch = data.draw(st.sampled_from(((), (3,), (1, 1), (2, 1), (1, 3))))
    bias = data.draw(numbers((*batch, *a.allowed_shape[-2:]), scales=(0.25, 1.0)))
    whole = gradients(subject, case, a, cotangent, bias=np.broadcast_to(bias, a.allowed_shape).copy()).bias
    shared = tuple(axis for axis in range(2) if bias.ndim < 4 - axis or bias.shape[axis - 4] == 1)
    should = whole.sum(axis=shared, keepdims=True).reshape(bias.shape)
    got = gradients(subject, case, a, cotangent, bias=bias).bias
    within = rounding_of_gradients(subject, a, cotangent, more=np.abs(bias).max())
    close(got, should, within=within, what="the gradient of the bias")


@states(cases=both("bias"), gradient=True)
@given(drawn=differentiated())
def test_without_queries_a_bias_has_a_gradient_as_empty_as_itself(subject, case, drawn):
    """Where there are no queries, their gradient and that of a bias for each are empty, and keys and values get 0."""
    a, cotangent = drawn
    a, cotangent = a._replace(q=a.q[..., :0, :]), cotangent[..., :0, :]
    d = gradients(subject, case, a, cotangent, bias=np.zeros(a.allowed_shape))
    for gradient, argument in zip(d, (*a, np.zeros(a.allowed_shape)), strict=True):
        if gradient is not None:
            equal(gradient, np.zeros(argument.shape), what="a gradient")


@states(cases=both("bias_and_mask"), gradient=True)
@given(drawn=differentiated(), data=st.data())
def test_a_bias_behind_the_mask_has_gradient_0(subject, case, drawn, data):
    """Where the mask is False the bias gets exactly 0, whatever it is, and nothing else becomes NaN."""
    a, cotangent = drawn
    mask = data.draw(truths(a.allowed_shape))
    bias = np.where(mask, data.draw(numbers(a.allowed_shape)), data.draw(st.sampled_from((1e4, -1e4, np.inf, np.nan))))
    d = gradients(subject, case, a, cotangent, bias=bias, mask=mask)
    no_gradient(d.bias[~mask], "a bias behind the mask")
    holds(all(np.isfinite(part).all() for part in d if part is not None), "a gradient is not finite")


@states(cases=both("mask"), gradient=True)
@given(drawn=differentiated(), data=st.data())
def test_a_hidden_key_has_gradient_0_and_leaves_the_others_theirs(subject, case, drawn, data):
    """A key that no query may see gets exactly 0, and so its value; the rest has the gradients it has without them."""
    a, cotangent = drawn
    hidden, mask = data.draw(hidden_keys(a))
    if case.startswith(WEIGHTS):  # the weights of the hidden keys are part of the result, though always 0
        rest = np.concatenate([cotangent[..., : hidden.size][..., ~hidden], cotangent[..., hidden.size :]], axis=-1)
    else:
        rest = cotangent
    d = gradients(subject, case, a, cotangent, mask=mask)
    absent = gradients(subject, case, a._replace(k=a.k[..., ~hidden, :], v=a.v[..., ~hidden, :]), rest)
    no_gradient(d.k[..., hidden, :], "a hidden key")
    visible = d._replace(k=d.k[..., ~hidden, :])
    if d.v is not None:
        no_gradient(d.v[..., hidden, :], "a hidden value")
        visible = visible._replace(v=d.v[..., ~hidden, :])
    same_gradients(visible, absent, within=rounding_of_gradients(subject, a, cotangent))


@states(cases=both("mask"), gradient=True)
@given(drawn=differentiated(), data=st.data(), junk=st.sampled_from((np.nan, np.inf, -np.inf)))
def test_a_hidden_key_that_is_nan_changes_no_gradient(subject, case, drawn, data, junk):
    """NaN or infinity in keys and values that no query may see reaches no gradient, not even by 0 times NaN."""
    a, cotangent = drawn
    hidden, mask = data.draw(hidden_keys(a))
    should = gradients(subject, case, a, cotangent, mask=mask)
    k, v = a.k.copy(), a.v.copy()
    k[..., hidden, :], v[..., hidden, :] = junk, junk
    spoiled = gradients(subject, case, Attention(a.q, k, v), cotangent, mask=mask)
    same_gradients(spoiled, should, within=rounding_of_gradients(subject, a, cotangent))


@states(cases=both("mask"), gradient=True)
@given(drawn=differentiated(), data=st.data(), junk=st.sampled_from((0.5, np.nan)))
def test_a_fully_masked_query_passes_no_gradient_on(subject, case, drawn, data, junk):
    """A query with nothing to attend to gets exactly 0, and its cotangent reaches nobody, even where both are NaN."""
    a, cotangent = drawn
    mask = data.draw(masks(a.allowed_shape))
    i = data.draw(st.integers(0, a.q.shape[-2] - 1))
    mask[..., i, :] = False
    a.q[..., i, :] = junk
    d = gradients(subject, case, a, cotangent, mask=mask)
    no_gradient(d.q[..., i, :], "a fully masked query")
    alone = np.zeros(cotangent.shape)
    alone[..., i, :] = np.nan if np.isnan(junk) else cotangent[..., i, :]
    for name, gradient in zip("qkv", gradients(subject, case, a, alone, mask=mask), strict=False):
        if gradient is not None:
            no_gradient(gradient, f"{name} from a fully masked query")


@states(cases=both("causal"), gradient=True)
@given(drawn=differentiated(), data=st.data())
def test_a_causal_cotangent_reaches_no_later_key(subject, case, drawn, data):
    """What is asked of the queries up to i moves no key after key i + k_seq - q_seq, nor its value."""
    a, cotangent = drawn
    q_seq, k_seq = a.allowed_shape[-2:]
    i = data.draw(st.integers(0, q_seq - 1))
    cotangent[..., i + 1 :, :] = 0
    d = gradients(subject, case, a, cotangent, causal=True)
    later = ~causally_allowed(q_seq, k_seq)[i]
    no_gradient(d.k[..., later, :], "a later key")
    no_gradient(d.q[..., i + 1 :, :], "a query of which nothing is asked")
    if d.v is not None:
        no_gradient(d.v[..., later, :], "a later value")


@states(cases=both("plain"), gradient=True)
@given(drawn=differentiated(scales=(64.0, 1024.0)))
def test_gradients_are_finite_at_scores_of_ten_thousand_and_more(subject, case, drawn):
    """At scores of 1e4 to 1e7 no gradient overflows, and the keys' still cancel."""
    a, cotangent = drawn
    d = gradients(subject, case, a, cotangent)
    holds(all(np.isfinite(part).all() for part in d if part is not None), "a gradient is not finite")
    sums = d.k.sum(axis=-2)
    reach = np.abs(cotangent).max() * (1 + a.v.shape[-1] * np.abs(a.v).max())
    within = 64 * subject.eps * a.allowed_shape[-1] ** 2 * a.q.shape[-2] * reach * np.abs(a.q).max()
    close(sums, np.zeros(sums.shape), within=within, what="the sum of the keys' gradients")


@states(cases=both("plain"), gradient=True)
@given(drawn=differentiated(batch=(2, 3)), data=st.data())
def test_gradients_of_a_sequence_are_those_that_it_has_alone(subject, case, drawn, data):
    """No sequence of a batch has a part in another one's gradients."""
    a, cotangent = drawn
    place = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    d = gradients(subject, case, a, cotangent)
    alone = gradients(subject, case, Attention(*(part[place] for part in a)), cotangent[place])
    there = Gradients(*(None if part is None else part[place] for part in d))
    same_gradients(there, alone, within=rounding_of_gradients(subject, a, cotangent))


def pairing(one, other):
    """Give the inner product of two arrays."""
    return float((one.astype(np.float64) * other).sum())


@states("scaled_dot_product_attention", gradient=True)
@given(drawn=differentiated(), data=st.data())
def test_the_gradient_of_the_values_is_the_weights_transposed(subject, drawn, data):
    """The output is linear in the values, so that dv.w is the cotangent times the output for any other values w."""
    a, cotangent = drawn
    w = data.draw(numbers(a.v.shape, scales=EXACT))
    cotangent = cotangent[..., : w.shape[-1]]
    should = pairing(cotangent, subject.scaled_dot_product_attention(a.q, a.k, w))
    got = pairing(gradients(subject, ATTENTION, a, cotangent).v, w)
    within = rounding_of_gradients(subject, a, cotangent) * w.size * (1 + np.abs(w).max())
    close(got, should, within=within, what="dv.w")


@states("scaled_dot_product_attention", gradient=True)
@given(drawn=differentiated())
def test_equal_values_give_queries_and_keys_nothing_to_learn(subject, drawn):
    """Where all values are the same it does not matter who is attended to: queries and keys get no gradient."""
    a, cotangent = drawn
    a = a._replace(v=np.broadcast_to(a.v[..., :1, :], a.v.shape).copy())
    d = gradients(subject, ATTENTION, a, cotangent)
    within = rounding_of_gradients(subject, a, cotangent)
    close(d.q, np.zeros(a.q.shape), within=within, what="the gradient of q")
    close(d.k, np.zeros(a.k.shape), within=within, what="the gradient of k")


@states("scaled_dot_product_attention", needs=("attention_weights_vjp",), gradient=True)
@given(drawn=differentiated())
def test_queries_and_keys_learn_through_the_weights(subject, drawn):
    """The weights' cotangent is that of the output times the values: queries and keys get what it gives them."""
    a, cotangent = drawn
    d = gradients(subject, ATTENTION, a, cotangent)
    of_weights = cotangent[..., : a.v.shape[-1]] @ a.v.swapaxes(-1, -2)
    q, k, _ = subject.attention_weights_vjp(of_weights, a.q, a.k)
    within = rounding_of_gradients(subject, a, cotangent)
    close(d.q, q, within=within, what="the gradient of q")
    close(d.k, k, within=within, what="the gradient of k")


# ---------------------------------------------------------------------------------------- the gradients of one head


@st.composite
def differentiated_head(draw, **options):
    """Draw tokens, the projections of one head and a cotangent."""
    h = draw(one_heads(**options))
    return h, draw(numbers((*h.x.shape[:-1], h.w_v.shape[-1]), scales=MODERATE))


def rounding_of_head_gradients(subject, h, cotangent):
    """How far rounding may move a number of a gradient: as in attention, and once more through the projections."""
    sizes = Attention(*(np.abs(h.x) @ np.abs(w) for w in h[1:]))
    through = 1 + sum(part.shape[-1] * np.abs(part).max() for part in h)
    return 4 * h.x.shape[-1] * rounding_of_gradients(subject, sizes, cotangent) * through * h.x[..., 0].size


def onto_weights(x, cotangent):
    """Give the gradient of w in x @ w."""
    return x.reshape(-1, x.shape[-1]).T @ cotangent.reshape(-1, cotangent.shape[-1]).astype(np.float64)


@states("self_attention", needs=("scaled_dot_product_attention_vjp",), gradient=True)
@given(drawn=differentiated_head())
def test_a_token_learns_as_query_as_key_and_as_value(subject, drawn):
    """The gradient of x is dQ w_q^T + dK w_k^T + dV w_v^T, and that of a projection x^T times its own part."""
    h, cotangent = drawn
    parts = subject.scaled_dot_product_attention_vjp(cotangent, *h.projected)[:3]
    x, *weights = subject.self_attention_vjp(cotangent, *h)
    within = rounding_of_head_gradients(subject, h, cotangent)
    close(x, sum(part @ w.T for part, w in zip(parts, h[1:], strict=True)), within=within, what="the gradient of x")
    for name, got, part in zip(OneHead._fields[1:], weights, parts, strict=True):
        close(got, onto_weights(h.x, part), within=within, what=f"the gradient of {name}")


@states("self_attention", gradient=True)
@given(drawn=differentiated_head(), data=st.data())
def test_permuting_tokens_permutes_their_gradients(subject, drawn, data):
    """Permuted tokens under a permuted cotangent get the permuted gradients; the projections notice nothing."""
    h, cotangent = drawn
    order = data.draw(st.permutations(range(h.x.shape[-2])))
    x, *weights = subject.self_attention_vjp(cotangent, *h)
    got_x, *got = subject.self_attention_vjp(cotangent[..., order, :], *h._replace(x=h.x[..., order, :]))
    within = rounding_of_head_gradients(subject, h, cotangent)
    close(got_x, x[..., order, :], within=within, what="the gradient of x")
    for name, one, other in zip(OneHead._fields[1:], got, weights, strict=True):
        close(one, other, within=within, what=f"the gradient of {name}")


@states("self_attention", gradient=True)
@given(drawn=differentiated_head())
def test_the_two_projections_of_a_score_have_the_same_part(subject, drawn):
    """w_q twice as large does what w_k twice as large does: dw_q.w_q = dw_k.w_k."""
    h, cotangent = drawn
    _, w_q, w_k, _ = subject.self_attention_vjp(cotangent, *h)
    within = rounding_of_head_gradients(subject, h, cotangent) * h.w_q.size * (np.abs(h.w_q) + np.abs(h.w_k)).max()
    close(pairing(w_q, h.w_q), pairing(w_k, h.w_k), within=within, what="dw_q.w_q")


@states("self_attention", gradient=True)
@given(drawn=differentiated_head(), data=st.data())
def test_a_causal_cotangent_reaches_no_later_token(subject, drawn, data):
    """What is asked of the outputs before t moves no token from t on."""
    h, cotangent = drawn
    t = data.draw(st.integers(1, h.x.shape[-2] - 1))
    cotangent[..., t:, :] = 0
    no_gradient(subject.self_attention_vjp(cotangent, *h, causal=True)[0][..., t:, :], "a later token")


@states("self_attention", gradient=True)
@given(drawn=differentiated_head(), data=st.data())
def test_a_masked_token_of_which_nothing_is_asked_has_gradient_0(subject, drawn, data):
    """A token that none may see, and whose output does not count, gets exactly 0."""
    h, cotangent = drawn
    visible = data.draw(masks(h.x.shape[-2:-1]))
    cotangent[..., ~visible, :] = 0
    mask = np.broadcast_to(visible, (*h.x.shape[:-1], h.x.shape[-2]))
    no_gradient(subject.self_attention_vjp(cotangent, *h, mask=mask)[0][..., ~visible, :], "a masked token")


@states("self_attention", gradient=True)
@given(drawn=differentiated_head(), data=st.data())
def test_a_token_that_may_see_nothing_passes_no_gradient_on(subject, drawn, data):
    """The cotangent of a token with nothing to attend to reaches neither tokens nor projections."""
    h, cotangent = drawn
    t = data.draw(st.integers(0, h.x.shape[-2] - 1))
    mask = np.ones((*h.x.shape[:-1], h.x.shape[-2]), bool)
    mask[..., t, :] = False
    alone = np.zeros(cotangent.shape)
    alone[..., t, :] = cotangent[..., t, :]
    for name, gradient in zip(OneHead._fields, subject.self_attention_vjp(alone, *h, mask=mask), strict=True):
        no_gradient(gradient, name)


@states("self_attention", gradient=True)
@given(drawn=differentiated_head(batch=(2,)))
def test_projections_get_the_sum_over_the_sequences(subject, drawn):
    """A sequence's tokens have the gradients that they have alone; a projection's are summed over the batch."""
    h, cotangent = drawn
    x, *weights = subject.self_attention_vjp(cotangent, *h)
    (first, *firsts), (second, *seconds) = (
        subject.self_attention_vjp(cotangent[i], *h._replace(x=h.x[i])) for i in (0, 1)
    )
    within = rounding_of_head_gradients(subject, h, cotangent)
    close(x, np.stack([first, second]), within=within, what="the gradient of x")
    for name, got, one, other in zip(OneHead._fields[1:], weights, firsts, seconds, strict=True):
        close(got, one + other, within=within, what=f"the gradient of {name}")


# ------------------------------------------------------------------------------------- the gradients of several heads


class HeadGradients(NamedTuple):
    """The gradients of tokens, projections, biases and context; None for what is not given."""

    x: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_o: np.ndarray | None
    b_q: np.ndarray | None
    b_k: np.ndarray | None
    b_v: np.ndarray | None
    b_o: np.ndarray | None
    context: np.ndarray | None


@st.composite
def differentiated_heads(draw, **options):
    """Draw several heads and a cotangent of their output."""
    h = draw(several_heads(**options))
    width = h.w_v.shape[-1] if h.w_o is None else h.w_o.shape[-1]
    return h, draw(numbers((*h.x.shape[:-1], width), scales=MODERATE))


def head_gradients(subject, h, cotangent, **options):
    """Call the vjp of multi-head attention."""
    parts = (h.x, h.w_q, h.w_k, h.w_v, h.w_o)
    return HeadGradients(*subject.multi_head_attention_vjp(cotangent, *parts, n_heads=h.n_heads, **options))


def rounding_of_heads_gradients(subject, h, cotangent, context=None):
    """How far rounding may move a number of a gradient: as for one head as wide as all, and through w_o."""
    context = h.x if context is None else context
    x = np.concatenate([np.abs(h.x), np.abs(context)], axis=-2)
    spread = 1.0 if h.w_o is None else max(1.0, np.abs(h.w_o).sum(axis=-1).max())
    reach = np.full((*x.shape[:-1], h.w_v.shape[-1]), spread * np.abs(cotangent).max())
    return h.n_heads * rounding_of_head_gradients(subject, OneHead(x, h.w_q, h.w_k, h.w_v), reach)


def same_head_gradients(got, should, *, within, names=HeadGradients._fields):
    """Judge that each of the gradients named is the other one."""
    for name in names:
        if getattr(should, name) is not None:
            close(getattr(got, name), getattr(should, name), within=within, what=f"the gradient of {name}")


@states("multi_head_attention", needs=("self_attention_vjp",), gradient=True)
@given(drawn=differentiated_heads(w_o=False))
def test_a_heads_columns_get_the_gradient_of_that_head(subject, drawn):
    """The gradients of head h stand in its own columns of the projections, and x gets the sum over the heads."""
    h, cotangent = drawn
    d = head_gradients(subject, h, cotangent)
    within, sum_over_heads = rounding_of_heads_gradients(subject, h, cotangent), np.zeros(h.x.shape)
    for head in range(h.n_heads):
        keys, values = h.columns(head)
        x, w_q, w_k, w_v = subject.self_attention_vjp(cotangent[..., values], *h.alone(head))
        sum_over_heads += x
        close(d.w_q[:, keys], w_q, within=within, what=f"the gradient of w_q in head {head}")
        close(d.w_k[:, keys], w_k, within=within, what=f"the gradient of w_k in head {head}")
        close(d.w_v[:, values], w_v, within=within, what=f"the gradient of w_v in head {head}")
    close(d.x, sum_over_heads, within=within, what="the gradient of x")


@states("multi_head_attention", gradient=True, own=True)
@given(h=several_heads(own_widths=True), projected=st.booleans(), extra=st.sampled_from((-1, 1)))
def test_a_cotangent_of_another_width_is_refused(subject, h, projected, extra):
    """A cotangent that is wider or narrower than the result is a TypeError that names it."""
    h = h if projected else h._replace(w_o=None)
    width = h.w_o.shape[1] if projected else h.w_v.shape[1]
    with raises(subject, TypeError, "cotangent"):
        head_gradients(subject, h, np.ones((*h.x.shape[:-1], width + extra)))


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads())
def test_the_output_projection_hands_the_cotangent_to_the_heads(subject, drawn):
    """w_o gets the heads' outputs times the cotangent, and the heads get the cotangent times w_o^T."""
    h, cotangent = drawn
    d, bare = head_gradients(subject, h, cotangent), h._replace(w_o=None)
    within = rounding_of_heads_gradients(subject, h, cotangent)
    close(d.w_o, onto_weights(attend(subject, bare), cotangent), within=within, what="the gradient of w_o")
    heads = head_gradients(subject, bare, cotangent @ h.w_o.T)
    same_head_gradients(d, heads, within=within, names=("x", "w_q", "w_k", "w_v"))


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads(), data=st.data())
def test_permuting_heads_permutes_their_gradients(subject, drawn, data):
    """Heads exchanged together with their rows of w_o get their gradients in the new order, and x its old one."""
    h, cotangent = drawn
    order = data.draw(st.permutations(range(h.n_heads)))
    d = head_gradients(subject, h, cotangent)
    should = h._replace(w_q=d.w_q, w_k=d.w_k, w_v=d.w_v, w_o=d.w_o).reordered(order)
    got = head_gradients(subject, h.reordered(order), cotangent)
    within = rounding_of_heads_gradients(subject, h, cotangent)
    same_head_gradients(got, d, within=within, names=("x",))
    same_head_gradients(got, should, within=within, names=("w_q", "w_k", "w_v", "w_o"))


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads())
def test_values_and_output_projection_have_the_same_part(subject, drawn):
    """The output is linear in w_v and in w_o: dw_v.w_v and dw_o.w_o both are the cotangent times the output."""
    h, cotangent = drawn
    d, whole = head_gradients(subject, h, cotangent), pairing(cotangent, attend(subject, h))
    within = rounding_of_heads_gradients(subject, h, cotangent) * h.w_v.size
    close(pairing(d.w_v, h.w_v), whole, within=within * (1 + np.abs(h.w_v).max()), what="dw_v.w_v")
    close(pairing(d.w_o, h.w_o), whole, within=within * (1 + np.abs(h.w_o).max()), what="dw_o.w_o")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads(), data=st.data())
def test_biases_at_the_end_get_the_sum_of_the_cotangent(subject, drawn, data):
    """b_o is added to every output, and b_v, since weights sum to 1, to every head's: sums over all tokens."""
    h, cotangent = drawn
    b_v, b_o = (data.draw(numbers(w.shape[1:], scales=EXACT)) for w in (h.w_v, h.w_o))
    d = head_gradients(subject, h, cotangent, b_v=b_v, b_o=b_o)
    bound = h._replace(x=np.abs(h.x) + 1, w_v=np.abs(h.w_v) + np.abs(b_v))
    within, every_token = rounding_of_heads_gradients(subject, bound, cotangent), tuple(range(cotangent.ndim - 1))
    close(d.b_o, cotangent.sum(axis=every_token), within=within, what="the gradient of b_o")
    close(d.b_v, (cotangent @ h.w_o.T).sum(axis=every_token), within=within, what="the gradient of b_v")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads(), data=st.data())
def test_a_key_bias_has_nothing_to_learn(subject, drawn, data):
    """A bias of the keys shifts all scores of a query alike: its gradient is 0, but for rounding."""
    h, cotangent = drawn
    b_k = data.draw(numbers(h.w_k.shape[1:], scales=MODERATE))
    bound = h._replace(x=np.abs(h.x) + 1, w_k=np.abs(h.w_k) + np.abs(b_k))
    within = rounding_of_heads_gradients(subject, bound, cotangent)
    got = head_gradients(subject, h, cotangent, b_k=b_k).b_k
    close(got, np.zeros(b_k.shape), within=within, what="the gradient of b_k")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads(w_o=False), data=st.data())
def test_biases_get_the_gradients_of_weights_of_a_constant_channel(subject, drawn, data):
    """b_q, b_k and b_v learn what the weights of one more channel of x learn that is always 1."""
    h, cotangent = drawn
    b_q, b_k, b_v = (data.draw(numbers(w.shape[1:], scales=MODERATE)) for w in (h.w_q, h.w_k, h.w_v))
    with_ones = Heads(
        np.concatenate([h.x, np.ones((*h.x.shape[:-1], 1))], axis=-1),
        *(np.concatenate([w, b[None]]) for w, b in ((h.w_q, b_q), (h.w_k, b_k), (h.w_v, b_v))),
        None,
        h.n_heads,
    )
    d = head_gradients(subject, with_ones, cotangent)
    should = HeadGradients(
        d.x[..., :-1], d.w_q[:-1], d.w_k[:-1], d.w_v[:-1], None, d.w_q[-1], d.w_k[-1], d.w_v[-1], None, None
    )
    got = head_gradients(subject, h, cotangent, b_q=b_q, b_k=b_k, b_v=b_v)
    same_head_gradients(got, should, within=rounding_of_heads_gradients(subject, with_ones, cotangent))


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads())
def test_without_a_context_x_gets_the_gradients_of_both_its_parts(subject, drawn):
    """As its own context x gets the queries' gradient apart from the keys' and values'; without one, their sum."""
    h, cotangent = drawn
    apart = head_gradients(subject, h, cotangent, context=h.x)
    d = head_gradients(subject, h, cotangent)
    within = rounding_of_heads_gradients(subject, h, cotangent)
    close(d.x, apart.x + apart.context, within=within, what="the gradient of x")
    same_head_gradients(d, apart, within=within, names=("w_q", "w_k", "w_v", "w_o"))


@st.composite
def differentiated_heads_and_context(draw, **options):
    """Draw several heads, a context of another length and a cotangent."""
    h, context = draw(heads_and_context(**options))
    width = h.w_v.shape[-1] if h.w_o is None else h.w_o.shape[-1]
    return h, context, draw(numbers((*h.x.shape[:-1], width), scales=MODERATE))


@states("multi_head_attention", needs=("scaled_dot_product_attention_vjp",), gradient=True)
@given(drawn=differentiated_heads_and_context(n_heads=1, w_o=False))
def test_x_learns_from_the_queries_and_the_context_from_keys_and_values(subject, drawn):
    """The gradient of x is dQ w_q^T, and that of the context dK w_k^T + dV w_v^T."""
    h, context, cotangent = drawn
    parts = Attention(h.x @ h.w_q, context @ h.w_k, context @ h.w_v)
    q, k, v, _ = subject.scaled_dot_product_attention_vjp(cotangent, *parts)
    d = head_gradients(subject, h, cotangent, context=context)
    within = rounding_of_heads_gradients(subject, h, cotangent, context)
    close(d.x, q @ h.w_q.T, within=within, what="the gradient of x")
    close(d.context, k @ h.w_k.T + v @ h.w_v.T, within=within, what="the gradient of the context")
    close(d.w_q, onto_weights(h.x, q), within=within, what="the gradient of w_q")
    close(d.w_k, onto_weights(context, k), within=within, what="the gradient of w_k")
    close(d.w_v, onto_weights(context, v), within=within, what="the gradient of w_v")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads_and_context(), data=st.data())
def test_padding_of_the_context_gets_gradient_0(subject, drawn, data):
    """A token of the context that no query may see gets exactly 0, even where it is NaN, and so x gets no NaN."""
    h, context, cotangent = drawn
    visible = data.draw(masks(context.shape[-2:-1]))
    mask = np.broadcast_to(visible, (*h.x.shape[:-1], context.shape[-2]))
    for junk in (0.5, np.nan):
        context[..., ~visible, :] = junk
        d = head_gradients(subject, h, cotangent, context=context, mask=mask)
        no_gradient(d.context[..., ~visible, :], "the padding")
        holds(np.isfinite(d.x).all() and np.isfinite(d.context).all(), "a gradient is not finite")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads_and_context(), data=st.data())
def test_a_query_that_may_see_nothing_passes_no_gradient_to_the_context(subject, drawn, data):
    """A fully masked query gets exactly 0; its cotangent moves neither context nor projections, in no head."""
    h, context, cotangent = drawn
    i = data.draw(st.integers(0, h.x.shape[-2] - 1))
    mask = data.draw(masks((*h.x.shape[:-1], context.shape[-2])))
    mask[..., i, :] = False
    no_gradient(head_gradients(subject, h, cotangent, context=context, mask=mask).x[..., i, :], "a fully masked query")
    alone = np.zeros(cotangent.shape)
    alone[..., i, :] = cotangent[..., i, :]
    for name, gradient in head_gradients(subject, h, alone, context=context, mask=mask)._asdict().items():
        if gradient is not None:
            no_gradient(gradient, f"{name} from a fully masked query")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads(), data=st.data())
def test_a_causal_cotangent_reaches_no_later_token_through_any_head(subject, drawn, data):
    """What is asked of the outputs before t moves no token from t on."""
    h, cotangent = drawn
    t = data.draw(st.integers(0, h.x.shape[-2]))
    cotangent[..., t:, :] = 0
    no_gradient(head_gradients(subject, h, cotangent, causal=True).x[..., t:, :], "a later token")


@states("multi_head_attention", gradient=True)
@given(drawn=differentiated_heads(batch=(2,)))
def test_what_all_sequences_share_gets_the_sum_of_their_gradients(subject, drawn):
    """A sequence's tokens have the gradients that they have alone; those of the weights are summed over the batch."""
    h, cotangent = drawn
    d = head_gradients(subject, h, cotangent)
    one, other = (head_gradients(subject, h._replace(x=h.x[i]), cotangent[i]) for i in (0, 1))
    within = rounding_of_heads_gradients(subject, h, cotangent)
    close(d.x, np.stack([one.x, other.x]), within=within, what="the gradient of x")
    for name in ("w_q", "w_k", "w_v", "w_o"):
        should = getattr(one, name) + getattr(other, name)
        close(getattr(d, name), should, within=within, what=f"the gradient of {name}")
