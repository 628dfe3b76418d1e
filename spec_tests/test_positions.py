"""Positions: sines and cosines that turn ever more slowly, and a table that is added to the tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import EXACT, axes, numbers

LENGTHS = st.integers(2, 40)
EVEN_WIDTHS = st.sampled_from((2, 4, 6, 12))
ODD_WIDTHS = st.sampled_from((1, 3, 5, 11))
WIDTHS = EVEN_WIDTHS | ODD_WIDTHS
OTHER_BASES = st.sampled_from((2.0, 0.5, 100.0, 500000.0))


def _rounding(subject, table, *, largest_angle=1.0):
    # the dtype of a table is the implementation's choice; an angle is known to within its last digit
    eps = max(subject.eps, float(np.finfo(table.dtype).eps))
    return 32 * eps * (1 + largest_angle)


def _pairs(table):
    """Give the sines and the cosines of the complete pairs."""
    complete = table.shape[-1] // 2 * 2
    return table[:, 0:complete:2].astype(np.float64), table[:, 1:complete:2].astype(np.float64)


# --------------------------------------------------------------------------------------- sinusoidal_positions


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS)
def test_position_0_is_0_and_1_in_turn(subject, seq, d_model):
    """The first row is 0, 1, 0, 1, ...: sine and cosine of angle 0, interleaved."""
    table = subject.sinusoidal_positions(seq, d_model)
    equal(table[0], np.arange(d_model) % 2, what="the first row")


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=EVEN_WIDTHS)
def test_every_pair_lies_on_the_unit_circle(subject, seq, d_model):
    """sin² + cos² = 1 for columns 2i and 2i + 1: they belong to one angle."""
    table = subject.sinusoidal_positions(seq, d_model)
    sin, cos = _pairs(table)
    close(sin**2 + cos**2, np.ones_like(sin), within=_rounding(subject, table), what="sin² + cos²")


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=EVEN_WIDTHS)
def test_the_first_pair_turns_by_one_radian_a_position(subject, seq, d_model):
    """The first frequency is 1, whatever the width: columns 0 and 1 are sin(pos) and cos(pos)."""
    table = subject.sinusoidal_positions(seq, d_model)
    pos = np.arange(seq)
    within = _rounding(subject, table, largest_angle=seq)
    close(table[:, 0], np.sin(pos), within=within, what="the first sine")
    close(table[:, 1], np.cos(pos), within=within, what="the first cosine")


def _frequencies(table):
    # at position 1 the angle is the frequency itself, and lies in (0, 1]
    sin, cos = _pairs(table)
    return np.arctan2(sin[1], cos[1])


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=st.sampled_from((4, 6, 7, 12)))
def test_each_frequency_is_smaller_than_the_one_before_by_one_factor(subject, seq, d_model):
    """From pair to pair the frequency falls by the factor 10000^(-2/d_model)."""
    table = subject.sinusoidal_positions(seq, d_model)
    frequencies = _frequencies(table)
    close(
        frequencies[1:],
        frequencies[:-1] * 10000.0 ** (-2 / d_model),
        within=_rounding(subject, table) * frequencies[1:],
        what="the frequencies after the first",
    )


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=st.sampled_from((4, 6, 7, 12)), base=OTHER_BASES)
def test_the_base_sets_how_fast_frequencies_fall(subject, seq, d_model, base):
    """Pair i turns by base^(-2i/d_model) a position."""
    table = subject.sinusoidal_positions(seq, d_model, base=base)
    frequencies = base ** (-2.0 * np.arange(d_model // 2) / d_model)
    within = _rounding(subject, table) * frequencies
    close(_frequencies(table), frequencies, within=within, what="the frequencies")


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS, data=st.data())
def test_a_step_of_k_positions_is_one_fixed_rotation(subject, seq, d_model, data):
    """Wherever one starts, moving k positions turns every pair by the angle that row k stands at."""
    table = subject.sinusoidal_positions(seq, d_model)
    k = data.draw(st.integers(1, seq - 1), label="k")
    sin, cos = _pairs(table)
    within = _rounding(subject, table, largest_angle=seq)
    close(sin[k:], sin[:-k] * cos[k] + cos[:-k] * sin[k], within=within, what="the sines k positions on")
    close(cos[k:], cos[:-k] * cos[k] - sin[:-k] * sin[k], within=within, what="the cosines k positions on")


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=EVEN_WIDTHS, data=st.data())
def test_dot_products_depend_on_the_distance_only(subject, seq, d_model, data):
    """Two rows k apart have the same dot product at the start of the table as anywhere else."""
    table = subject.sinusoidal_positions(seq, d_model)
    k = data.draw(st.integers(0, seq - 1), label="k")
    products = (table[: seq - k].astype(np.float64) * table[k:]).sum(axis=-1)
    within = d_model * _rounding(subject, table, largest_angle=seq)
    close(products, np.full(seq - k, products[0]), within=within, what=f"the dot products at distance {k}")


@states("sinusoidal_positions")
@given(seq=st.integers(2, 60), d_model=st.sampled_from((2, 3, 6, 11)))
def test_all_rows_are_distinct(subject, seq, d_model):
    """No two positions get the same row: at width 2 or more they are at least 0.01 apart."""
    table = subject.sinusoidal_positions(seq, d_model).astype(np.float64)
    # the first pair alone is 2 |sin(k/2)| apart, and that is least at k = 44, near 7 full turns: 0.0177
    distances = np.abs(table[:, None] - table).max(axis=-1) + np.eye(seq)
    holds(distances > 0.01, "two positions have one row", got=table)


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=ODD_WIDTHS)
def test_an_odd_width_ends_with_a_sine(subject, seq, d_model):
    """The last column of an odd d_model is a sine alone, of frequency 10000^(-(d_model - 1)/d_model)."""
    table = subject.sinusoidal_positions(seq, d_model)
    angle = np.arange(seq) / 10000.0 ** ((d_model - 1) / d_model)
    within = _rounding(subject, table, largest_angle=angle.max())
    close(table[:, -1], np.sin(angle), within=within, what="the last column")


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS, longer=st.integers(1, 20))
def test_a_longer_table_only_adds_rows(subject, seq, d_model, longer):
    """A position's row does not depend on how long the table is."""
    table = subject.sinusoidal_positions(seq, d_model)
    within = _rounding(subject, table, largest_angle=seq)
    close(subject.sinusoidal_positions(seq + longer, d_model)[:seq], table, within=within, what="the first rows")


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS, offset=st.integers(1, 100))
def test_an_offset_starts_the_table_further_down(subject, seq, d_model, offset):
    """The rows from `offset` on are those of the whole table: nothing is counted anew."""
    table = subject.sinusoidal_positions(seq, d_model, offset=offset)
    whole = subject.sinusoidal_positions(offset + seq, d_model)
    close(table, whole[offset:], within=_rounding(subject, table, largest_angle=offset + seq))


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS)
def test_dtype_sets_the_dtype_of_the_table(subject, seq, d_model):
    """A table asked for in float32 is float32, and is the same table up to rounding."""
    table = subject.sinusoidal_positions(seq, d_model, dtype=np.float32)
    holds(table.dtype == np.float32, "the table has another dtype", got=str(table.dtype), should="float32")
    close(table, subject.sinusoidal_positions(seq, d_model), within=_rounding(subject, table, largest_angle=seq))


@states("sinusoidal_positions")
@given(d_model=WIDTHS)
def test_a_table_of_no_positions_is_empty(subject, d_model):
    """A table of no positions has no rows, and d_model columns all the same."""
    table = subject.sinusoidal_positions(0, d_model)
    holds(
        table.shape == (0, d_model),
        "the table has another shape",
        got=str(table.shape),
        should=f"(0, {d_model})",
    )


@states("sinusoidal_positions")
@given(seq=st.integers(-9, -1), d_model=WIDTHS)
def test_a_negative_length_raises(subject, seq, d_model):
    """A negative seq is a ValueError that names it."""
    with raises(subject, ValueError, "sinusoidal_positions", "seq", str(seq)):
        subject.sinusoidal_positions(seq, d_model)


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=st.integers(-3, 0))
def test_a_width_below_1_raises(subject, seq, d_model):
    """A d_model of 0 or less is a ValueError that names it."""
    with raises(subject, ValueError, "sinusoidal_positions", "d_model", str(d_model)):
        subject.sinusoidal_positions(seq, d_model)


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS, offset=st.integers(-9, -1))
def test_a_negative_offset_raises(subject, seq, d_model, offset):
    """A negative offset is a ValueError that names it."""
    with raises(subject, ValueError, "sinusoidal_positions", "offset", str(offset)):
        subject.sinusoidal_positions(seq, d_model, offset=offset)


@states("sinusoidal_positions")
@given(seq=LENGTHS, d_model=WIDTHS, base=st.sampled_from((0.0, -2.0, float("inf"), float("nan"))))
def test_a_base_that_is_not_positive_and_finite_raises(subject, seq, d_model, base):
    """A base of 0, below 0, infinite or NaN is a ValueError that names it."""
    with raises(subject, ValueError, "sinusoidal_positions", "base", str(base)):
        subject.sinusoidal_positions(seq, d_model, base=base)


# ---------------------------------------------------------------------------------------------- add_positions


@st.composite
def tokens_and_table(draw, *, offsets=(0,)):
    """Draw tokens, an offset, and a table in which the sequence ends 0 to 3 rows before the end."""
    sizes = draw(axes())
    offset = draw(st.sampled_from(offsets))
    x = draw(numbers((*sizes["batch"], sizes["seq"], sizes["d_model"]), scales=EXACT))
    max_len = offset + sizes["seq"] + draw(st.integers(0, 3))
    return x, draw(numbers((max_len, sizes["d_model"]), scales=EXACT)), offset


@states("add_positions")
@given(case=tokens_and_table())
def test_each_token_gets_the_row_of_its_position(subject, case):
    """Token t of every sequence of the batch gets row t of the table, whatever the batch."""
    x, table, _ = case
    moved = subject.add_positions(x, table)
    for t in range(x.shape[-2]):
        equal(moved[..., t, :], x[..., t, :] + table[t], what=f"token {t}")


@states("add_positions")
@given(case=tokens_and_table(offsets=range(1, 6)))
def test_an_offset_counts_from_that_row(subject, case):
    """With an offset, token t gets row offset + t: a continued sequence goes on where it stopped."""
    x, table, offset = case
    moved = subject.add_positions(x, table, offset=offset)
    for t in range(x.shape[-2]):
        equal(moved[..., t, :], x[..., t, :] + table[offset + t], what=f"token {t}")


@states("add_positions")
@given(case=tokens_and_table(), data=st.data())
def test_equal_tokens_at_different_positions_part(subject, case, data):
    """Two equal tokens differ after it by exactly the difference of their rows."""
    x, table, _ = case
    t, u = (data.draw(st.integers(0, x.shape[-2] - 1)) for _ in range(2))
    x[..., t, :] = x[..., u, :]
    moved = subject.add_positions(x, table)
    difference = np.broadcast_to(table[t] - table[u], moved[..., t, :].shape)
    equal(moved[..., t, :] - moved[..., u, :], difference, what="the difference of two equal tokens")


@states("add_positions")
@given(case=tokens_and_table())
def test_a_sequence_may_fill_the_table(subject, case):
    """A sequence exactly as long as the table fits."""
    x, table, _ = case
    full = table[: x.shape[-2]]
    equal(subject.add_positions(x, full), x + full)


@states("add_positions")
@given(case=tokens_and_table(), data=st.data())
def test_a_sequence_past_the_table_raises(subject, case, data):
    """A sequence longer than the table is a ValueError that names both lengths."""
    x, table, _ = case
    x = np.concatenate([x, x[..., :1, :]], axis=-2)  # two tokens at least, so that one row is too few
    seq = x.shape[-2]
    short = table[: data.draw(st.integers(1, seq - 1))]
    with raises(subject, ValueError, "add_positions", "max_len", str(seq), str(len(short))):
        subject.add_positions(x, short)


@states("add_positions")
@given(case=tokens_and_table(), data=st.data())
def test_an_offset_past_the_table_raises(subject, case, data):
    """A sequence that would fit, but for its offset, is a ValueError that names offset and both lengths."""
    x, table, _ = case
    seq, max_len = x.shape[-2], len(table)
    offset = max_len - seq + data.draw(st.integers(1, 9))
    with raises(subject, ValueError, "add_positions", "offset", str(offset), str(seq), str(max_len)):
        subject.add_positions(x, table, offset=offset)


@states("add_positions")
@given(case=tokens_and_table(), offset=st.integers(-9, -1))
def test_an_offset_below_0_raises(subject, case, offset):
    """A negative offset is a ValueError that names it: it never counts from the end of the table."""
    x, table, _ = case
    with raises(subject, ValueError, "add_positions", "offset", str(offset)):
        subject.add_positions(x, table, offset=offset)


@st.composite
def positions_with_cotangents(draw, *, offsets=(0,)):
    """Draw a cotangent, tokens, an offset, and a table that has a row or more beyond the sequence."""
    x, table, offset = draw(tokens_and_table(offsets=offsets))
    return draw(numbers(x.shape, scales=EXACT)), x, np.concatenate([table, table[:1]]), offset


@states("add_positions", gradient=True)
@given(case=positions_with_cotangents())
def test_the_gradient_of_a_token_is_its_cotangent(subject, case):
    """Adding a row passes the cotangent on to x as it is."""
    cotangent, x, table, _ = case
    equal(subject.add_positions_vjp(cotangent, x, table)[0], cotangent, what="the gradient of x")


@states("add_positions", gradient=True)
@given(case=positions_with_cotangents())
def test_the_gradient_of_a_row_is_the_sum_over_the_batch(subject, case):
    """Row t of the table gets what token t of every sequence gets, and the rows that no token has get exactly 0."""
    cotangent, x, table, _ = case
    gradient = subject.add_positions_vjp(cotangent, x, table)[1]
    for t in range(x.shape[-2]):
        should = cotangent[..., t, :].reshape(-1, x.shape[-1]).sum(axis=0)
        equal(gradient[t], should, what=f"the gradient of row {t}")
    equal(gradient[x.shape[-2] :], np.zeros_like(table[x.shape[-2] :]), what="the gradient of unused rows")


@states("add_positions", gradient=True)
@given(case=positions_with_cotangents(offsets=range(1, 6)))
def test_with_an_offset_the_gradient_falls_on_the_rows_from_there(subject, case):
    """With an offset, row offset + t gets what token t gets; the rows before and behind get exactly 0."""
    cotangent, x, table, offset = case
    should = np.zeros_like(table)
    should[offset : offset + x.shape[-2]] = cotangent.reshape(-1, *x.shape[-2:]).sum(axis=0)
    equal(subject.add_positions_vjp(cotangent, x, table, offset=offset)[1], should, what="the gradient of the table")


@states("add_positions", gradient=True)
@given(case=positions_with_cotangents(), beyond=st.integers(1, 9))
def test_a_gradient_past_the_table_raises(subject, case, beyond):
    """A sequence that runs past the table is a ValueError in the gradient too."""
    cotangent, x, table, _ = case
    offset = len(table) - x.shape[-2] + beyond
    with raises(subject, ValueError, "add_positions", "offset", str(offset)):
        subject.add_positions_vjp(cotangent, x, table, offset=offset)
