"""Wrong positions."""

import numpy as np

from reference.numpy import add_positions, add_positions_vjp, sinusoidal_positions
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.pitfall import right_functions
from spec_tests.pitfalls.positions import PITFALLS

# ------------------------------------------------------------------------------------------- sinusoidal_positions


def _dtype_ignored(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    return sinusoidal_positions(seq, d_model, base=base, offset=offset)


def _relative_to_the_length(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    pos = np.arange(offset, offset + seq)[:, None] / max(seq - 1, 1)
    column = np.arange(d_model)
    angle = pos / base ** ((column - column % 2) / d_model)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def _odd_width_ends_with_a_cosine(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    table = sinusoidal_positions(seq, d_model, base=base, offset=offset)
    if d_model % 2:
        table[:, -1] = sinusoidal_positions(seq, d_model + 1, base=base, offset=offset)[:, -1]
    return table


def _one_row_at_least(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    return sinusoidal_positions(max(seq, 1), d_model, base=base, offset=offset)


def _never_refuses(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    with np.errstate(all="ignore"):
        pos, column = np.arange(offset, offset + max(seq, 0))[:, None], np.arange(max(d_model, 1))
        angle = pos / np.float64(base) ** ((column - column % 2) / len(column))
        return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def _rows_repeat(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    return sinusoidal_positions(seq + 8, d_model, base=base, offset=offset)[np.arange(seq) % 8]


def _damped(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    table = sinusoidal_positions(seq, d_model, base=base, offset=offset)
    return table * 0.99 ** np.arange(seq)[:, None]


def _of_sinusoidal_positions(*names):
    return tuple(f"sinusoidal_positions.{name}" for name in names)


SINUSOIDAL = [
    Fault(
        "sinusoidal_positions ignores dtype",
        {"sinusoidal_positions": _dtype_ignored},
        _of_sinusoidal_positions("dtype_sets_the_dtype_of_the_table"),
    ),
    Fault(
        "sinusoidal_positions measures positions in lengths",
        {"sinusoidal_positions": _relative_to_the_length},
        _of_sinusoidal_positions("a_longer_table_only_adds_rows", "the_first_pair_turns_by_one_radian_a_position"),
    ),
    Fault(
        "sinusoidal_positions ends an odd width with a cosine",
        {"sinusoidal_positions": _odd_width_ends_with_a_cosine},
        _of_sinusoidal_positions("an_odd_width_ends_with_a_sine"),
    ),
    Fault(
        "sinusoidal_positions always has a row",
        {"sinusoidal_positions": _one_row_at_least},
        _of_sinusoidal_positions("a_table_of_no_positions_is_empty"),
    ),
    Fault(
        "sinusoidal_positions refuses nothing",
        {"sinusoidal_positions": _never_refuses},
        _of_sinusoidal_positions(
            "a_negative_length_raises",
            "a_width_below_1_raises",
            "a_negative_offset_raises",
            "a_base_that_is_not_positive_and_finite_raises",
        ),
    ),
    Fault(
        "sinusoidal_positions repeats its rows",
        {"sinusoidal_positions": _rows_repeat},
        _of_sinusoidal_positions("all_rows_are_distinct", "dot_products_depend_on_the_distance_only"),
    ),
    Fault(
        "sinusoidal_positions fades with the distance",
        {"sinusoidal_positions": _damped},
        _of_sinusoidal_positions("every_pair_lies_on_the_unit_circle", "dot_products_depend_on_the_distance_only"),
    ),
]

# ------------------------------------------------------------------------------------------- add_positions


def _starts_at_the_first_row(x, table, *, offset=0):
    return x + table[: x.shape[-2]]


def _clamps_to_the_last_row(x, table, *, offset=0):
    return x + table[np.clip(np.arange(offset, offset + x.shape[-2]), 0, len(table) - 1)]


def _wraps_around(x, table, *, offset=0):
    return x + table[np.arange(offset, offset + x.shape[-2]) % len(table)]


def _keeps_one_row_free(x, table, *, offset=0):
    if offset + x.shape[-2] >= len(table):
        raise ValueError("the sequence is too long for the table")
    return add_positions(x, table, offset=offset)


ADDED = [
    Fault(
        "add_positions ignores offset",
        {"add_positions": _starts_at_the_first_row},
        (
            "add_positions.an_offset_counts_from_that_row",
            "add_positions.an_offset_past_the_table_raises",
            "add_positions.an_offset_below_0_raises",
        ),
    ),
    Fault(
        "add_positions repeats the last row",
        {"add_positions": _clamps_to_the_last_row},
        ("add_positions.a_sequence_past_the_table_raises", "add_positions.an_offset_past_the_table_raises"),
    ),
    Fault(
        "add_positions starts again at the table's end",
        {"add_positions": _wraps_around},
        (
            "add_positions.a_sequence_past_the_table_raises",
            "add_positions.an_offset_past_the_table_raises",
            "add_positions.an_offset_below_0_raises",
        ),
    ),
    Fault(
        "add_positions keeps one row free",
        {"add_positions": _keeps_one_row_free},
        ("add_positions.a_sequence_may_fill_the_table",),
    ),
]

# ----------------------------------------------------------------------------------------------------------- gradients


def _x_forgotten(cotangent, x, table, *, offset=0):
    dx, d_table = add_positions_vjp(cotangent, x, table, offset=offset)
    return 0 * dx, d_table


def _table_forgotten(cotangent, x, table, *, offset=0):
    dx, d_table = add_positions_vjp(cotangent, x, table, offset=offset)
    return dx, 0 * d_table


def _batch_averaged(cotangent, x, table, *, offset=0):
    dx, d_table = add_positions_vjp(cotangent, x, table, offset=offset)
    return dx, d_table * x.shape[-2] * x.shape[-1] / x.size


def _first_sequence_only(cotangent, x, table, *, offset=0):
    first = cotangent.reshape(-1, *x.shape[-2:])[0]
    return cotangent.copy(), add_positions_vjp(first, first, table, offset=offset)[1]


def _offset_forgotten(cotangent, x, table, *, offset=0):
    dx, d_table = add_positions_vjp(cotangent, x, table, offset=0)
    return dx, d_table


def _past_the_end_to_the_last_row(cotangent, x, table, *, offset=0):
    gradient = np.zeros_like(table)
    rows = np.minimum(np.arange(offset, offset + x.shape[-2]), len(table) - 1)
    np.add.at(gradient, rows, cotangent.reshape(-1, *x.shape[-2:]).sum(axis=0))
    return cotangent.copy(), gradient


def _unused_rows_decay(cotangent, x, table, *, offset=0):
    dx, d_table = add_positions_vjp(cotangent, x, table, offset=offset)
    used = np.isin(np.arange(len(table)), np.arange(offset, offset + x.shape[-2]))
    return dx, np.where(used[:, None], d_table, 1e-3 * table)


def _gradient_fault(name, function, *fails):
    names = tuple(f"add_positions.{fail}" for fail in fails)
    return Fault(f"add_positions_vjp {name}", {"add_positions_vjp": function}, names)


GRADIENTS = [
    _gradient_fault(
        "gives x nothing",
        _x_forgotten,
        "the_gradient_of_a_token_is_its_cotangent",
        "gradients_are_those_of_finite_differences",
    ),
    _gradient_fault(
        "gives the table nothing",
        _table_forgotten,
        "the_gradient_of_a_row_is_the_sum_over_the_batch",
        "gradients_are_those_of_finite_differences",
    ),
    _gradient_fault(
        "averages over the batch",
        _batch_averaged,
        "the_gradient_of_a_row_is_the_sum_over_the_batch",
        "gradients_are_those_of_finite_differences",
    ),
    _gradient_fault(
        "looks at the first sequence only",
        _first_sequence_only,
        "the_gradient_of_a_row_is_the_sum_over_the_batch",
        "gradients_agree_with_the_reference",
    ),
    _gradient_fault(
        "ignores offset",
        _offset_forgotten,
        "with_an_offset_the_gradient_falls_on_the_rows_from_there",
        "a_gradient_past_the_table_raises",
        "gradients_are_those_of_finite_differences",
    ),
    _gradient_fault(
        "adds what is past the end to the last row", _past_the_end_to_the_last_row, "a_gradient_past_the_table_raises"
    ),
    _gradient_fault(
        "touches every row",
        _unused_rows_decay,
        "the_gradient_of_a_row_is_the_sum_over_the_batch",
        "with_an_offset_the_gradient_falls_on_the_rows_from_there",
    ),
]

COMMON = [Fault(p.id, p.on(right_functions()), p.caught_by) for p in PITFALLS]

FAULTS = COMMON + SINUSOIDAL + ADDED + GRADIENTS
