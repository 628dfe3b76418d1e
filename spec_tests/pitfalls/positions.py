"""What people get wrong about positions."""

import math
from collections.abc import Callable

import numpy as np

from reference.numpy import add_positions, sinusoidal_positions
from spec_tests.pitfalls.pitfall import Equivalence, Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as

# ------------------------------------------------------------------------------------------- sinusoidal_positions


def angles(seq, d_model, base, offset, exponent: Callable) -> np.ndarray:
    """Give the angle of each position in each column, by the exponent of (column, d_model)."""
    pos, column = np.arange(offset, offset + seq)[:, None], np.arange(d_model)
    return pos / base ** exponent(column, d_model)


def table_of(exponent: Callable) -> Function:
    """Make a table with another exponent for each column: sines in even columns, cosines in odd ones."""

    @as_strict_as(sinusoidal_positions)
    def table(seq, d_model, *, base=10000.0, offset=0, dtype=None):
        angle = angles(seq, d_model, base, offset, exponent)
        return np.where(np.arange(d_model) % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype or np.float64)

    return table


def even(column):
    """Give the 2i of columns 2i and 2i + 1."""
    return column - column % 2


def _half_minus_one(column, d_model):
    return column // 2 * (1 / (d_model // 2 - 1))  # widths 2 and 3 divide by 0


def _sines_then_cosines(right):
    def table(seq, d_model, **options):
        interleaved = right(seq, d_model, **options)
        return np.concatenate([interleaved[:, 0::2], interleaved[:, 1::2]], axis=1)

    return table


@as_strict_as(sinusoidal_positions)
def _alternates_over_rows(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    table = angles(seq, d_model, base, offset, lambda column, d: even(column) / d)
    table[0::2] = np.sin(table[0::2])
    table[1::2] = np.cos(table[1::2])
    return table.astype(dtype or np.float64)


def _counts_from_1(right):
    return as_strict_as(right)(
        lambda seq, d_model, *, offset=0, **options: right(seq, d_model, offset=offset + 1, **options)
    )


def _without(option: str) -> Callable[[Function], Function]:
    """Build on a table one that ignores an option."""

    def around(right):
        @as_strict_as(right)
        def table(seq, d_model, *, base=10000.0, offset=0, dtype=None):
            options = {"base": base, "offset": offset, "dtype": dtype}
            del options[option]
            return right(seq, d_model, **options)

        return table

    return around


def _even_widths_only(right):
    def table(seq, d_model, **options):
        rows = right(seq, d_model, **options)
        rows[:, 1::2] = right(seq, d_model + d_model % 2, **options)[:, 1::2]  # one column too many for an odd width
        return rows

    return table


# ------------------------------------------------------------------------------------------- add_positions


@as_strict_as(add_positions)
def _row_of_the_batch(x, table, *, offset=0):
    sequences = x if x.ndim > 2 else x[None]
    rows = table[offset : offset + len(sequences)]
    return (sequences + rows.reshape(len(rows), *[1] * (sequences.ndim - 2), -1)).reshape(x.shape)


def _shortened(right):
    def add(x, table, *, offset=0):
        right(x[..., :1, :], table)  # which refuses all but a sequence past the end
        return x + table[offset : offset + x.shape[-2]]

    return add


@as_strict_as(add_positions)
def _never_added(x, table, *, offset=0):
    return x


@as_strict_as(add_positions)
def _starts_at_the_first_row(x, table, *, offset=0):
    return x + table[: x.shape[-2]]


def _of(component: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{component}.{name}" for name in names)


SINUSOIDAL = [
    Pitfall(
        id="sinusoidal_positions.exponent_doubled",
        catalogue=("components/pe_exponent_doubled",),
        sources=("https://github.com/SamLynnEvans/Transformer/issues/25",),
        functions={"sinusoidal_positions": table_of(lambda column, d: 2 * even(column) / d)},
        does="The exponent is 2 i / d_model for an i that counts columns by twos already.",
        shows="Frequencies fall twice as fast: the second of a table of width 4 is 1e-4 where it should be 1e-2.",
        mend="Divide by base^(i / d_model) for i = 0, 2, 4, ..., or by base^(2i / d_model) for i = 0, 1, 2, ...",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "each_frequency_is_smaller_than_the_one_before_by_one_factor",
            "the_base_sets_how_fast_frequencies_fall",
            "an_odd_width_ends_with_a_sine",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.every_column_its_own_frequency",
        catalogue=("components/pe_cos_uses_own_frequency",),
        sources=(
            "https://github.com/shenweichen/DeepCTR/issues/379",
            "https://github.com/SamLynnEvans/Transformer/issues/25",
        ),
        functions={"sinusoidal_positions": table_of(lambda column, d: 2 * column / d)},
        does="Every column j has the frequency base^(-2j / d_model), as if each were a pair.",
        shows="sin² + cos² of a pair is not 1, and the product of two rows depends on more than their distance.",
        mend="Give columns 2i and 2i + 1 the frequency base^(-2i / d_model).",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "every_pair_lies_on_the_unit_circle",
            "the_first_pair_turns_by_one_radian_a_position",
            "a_step_of_k_positions_is_one_fixed_rotation",
            "dot_products_depend_on_the_distance_only",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.cosine_of_its_own_frequency",
        catalogue=(),
        sources=(),
        functions={"sinusoidal_positions": table_of(lambda column, d: column / d)},
        does="Every column j has the frequency base^(-j / d_model); the cosine should have that of the sine before it.",
        shows="sin² + cos² of a pair is not 1, and the product of two rows depends on more than their distance.",
        mend="Give columns 2i and 2i + 1 the frequency base^(-2i / d_model).",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "every_pair_lies_on_the_unit_circle",
            "the_first_pair_turns_by_one_radian_a_position",
            "a_step_of_k_positions_is_one_fixed_rotation",
            "dot_products_depend_on_the_distance_only",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.sines_then_cosines",
        catalogue=("components/pe_sin_cos_concatenated",),
        sources=(
            "https://github.com/allenai/allennlp/issues/2993",
            "https://github.com/tatp22/multidim-positional-encoding/issues/20",
            "https://github.com/huggingface/diffusers/issues/3981",
            "https://github.com/tensorflow/tensorflow/issues/37191",
        ),
        around={"sinusoidal_positions": _sines_then_cosines},
        does="All sines come first and then all cosines; in the paper they take turns.",
        shows="The same numbers stand in other columns: harmless to a model trained so, wrong for other weights.",
        mend="Write sines to columns 0::2 and cosines to columns 1::2.",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "position_0_is_0_and_1_in_turn",
            "every_pair_lies_on_the_unit_circle",
            "the_first_pair_turns_by_one_radian_a_position",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.half_minus_one",
        catalogue=("components/pe_half_minus_one",),
        sources=(
            "https://github.com/hojonathanho/diffusion/issues/15",
            "https://github.com/lucidrains/denoising-diffusion-pytorch/issues/126",
            "https://github.com/huggingface/blog/issues/2183",
        ),
        functions={"sinusoidal_positions": table_of(_half_minus_one)},
        does="Exponents are i / (d_model / 2 - 1), so that the last is 1; they should be i / (d_model / 2).",
        shows="The slowest frequency is 1 / base, as in tensor2tensor, and a width of 2 divides by 0.",
        mend="Divide by d_model / 2.",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "each_frequency_is_smaller_than_the_one_before_by_one_factor",
            "the_base_sets_how_fast_frequencies_fall",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.alternating_over_rows",
        catalogue=("components/pe_sin_cos_over_rows",),
        sources=("https://github.com/gmongaras/Diffusion_models_from_scratch/issues/10",),
        functions={"sinusoidal_positions": _alternates_over_rows},
        does="Sine and cosine take turns over positions, table[0::2]; they should over columns, table[:, 0::2].",
        shows="The first row is all 0, and neighbours are as far apart as it happens.",
        mend="Slice the last axis.",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "position_0_is_0_and_1_in_turn",
            "every_pair_lies_on_the_unit_circle",
            "the_first_pair_turns_by_one_radian_a_position",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.whole_number_exponent",
        catalogue=(),
        sources=(),
        functions={"sinusoidal_positions": table_of(lambda column, d: even(column) // d)},
        does="The exponent is divided in whole numbers, 2i // d_model, which is always 0.",
        shows="All pairs of columns are alike.",
        mend="Divide floating numbers.",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "each_frequency_is_smaller_than_the_one_before_by_one_factor",
            "the_base_sets_how_fast_frequencies_fall",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.counts_from_1",
        catalogue=(),
        sources=(),
        around={"sinusoidal_positions": _counts_from_1},
        does="Positions count from 1.",
        shows="The first row is sin 1, cos 1, ... where it should be 0, 1, ...; every row is its neighbour's.",
        mend="Count positions from 0.",
        visibility="silent",
        caught_by=_of(
            "sinusoidal_positions",
            "position_0_is_0_and_1_in_turn",
            "the_first_pair_turns_by_one_radian_a_position",
            "a_step_of_k_positions_is_one_fixed_rotation",
        ),
    ),
    Pitfall(
        id="sinusoidal_positions.base_ignored",
        catalogue=(),
        sources=(),
        around={"sinusoidal_positions": _without("base")},
        does="The base is 10000 whatever is asked for.",
        shows="Another base gives the same table; at short distances the difference is small.",
        mend="Use the base that is given.",
        visibility="silent",
        caught_by=_of("sinusoidal_positions", "the_base_sets_how_fast_frequencies_fall"),
    ),
    Pitfall(
        id="sinusoidal_positions.offset_ignored",
        catalogue=(),
        sources=(),
        around={"sinusoidal_positions": _without("offset")},
        does="The table starts at position 0 whatever the offset.",
        shows="A continued sequence starts anew: generation with a cache gives every new token position 0.",
        mend="Start at the number of tokens that were there before.",
        visibility="silent",
        caught_by=_of("sinusoidal_positions", "an_offset_starts_the_table_further_down"),
    ),
    Pitfall(
        id="sinusoidal_positions.even_widths_only",
        catalogue=(),
        sources=(),
        around={"sinusoidal_positions": _even_widths_only},
        does="There are as many cosines as sines, and so one too many for an odd d_model.",
        shows="An odd width raises: the cosines do not fit into the odd columns.",
        mend="Leave the last cosine of an odd width out.",
        visibility="raises",
        caught_by=_of(
            "sinusoidal_positions",
            "an_odd_width_ends_with_a_sine",
            "position_0_is_0_and_1_in_turn",
        ),
    ),
]

ADDED = [
    Pitfall(
        id="add_positions.from_the_batch_axis",
        catalogue=(
            "components/pe_broadcast_over_batch",
            "components/learned_pos_from_batch_axis",
        ),
        sources=(
            "https://github.com/songyangco/GETNext/issues/2",
            "https://github.com/KasperGroesLudvigsen/influenza_transformer/issues/9",
            "https://github.com/cmu-l3/anlp-fall2025-code/issues/1",
        ),
        functions={"add_positions": _row_of_the_batch},
        does="Rows are taken by the sequence's place in the batch: every token of sequence b gets row b.",
        shows="Equal tokens of a sequence are equal afterwards, and a sequence changes with its place in the batch.",
        mend="Slice by the length of the sequence, and broadcast over the batch: x + table[:seq].",
        visibility="silent",
        caught_by=_of(
            "add_positions", "each_token_gets_the_row_of_its_position", "equal_tokens_at_different_positions_part"
        ),
    ),
    Pitfall(
        id="add_positions.past_the_end",
        catalogue=("components/pe_beyond_max_len",),
        sources=(
            "https://github.com/bentrevett/pytorch-seq2seq/issues/89",
            "https://github.com/bentrevett/pytorch-seq2seq/issues/69",
            "https://github.com/huggingface/transformers/issues/32154",
        ),
        around={"add_positions": _shortened},
        does="The length is not checked: a slice past the table's end is shorter than the sequence.",
        shows="The addition fails with an error about shapes, or where one row is left gives it to all tokens.",
        mend="Refuse a sequence that is longer than the table, naming both lengths.",
        visibility="raises",
        caught_by=_of("add_positions", "a_sequence_past_the_table_raises", "an_offset_past_the_table_raises"),
    ),
    Pitfall(
        id="add_positions.never_added",
        catalogue=("components/pe_never_added",),
        sources=("https://github.com/ml-explore/mlx-examples/issues/359",),
        functions={"add_positions": _never_added},
        does="The table is built and not added.",
        shows="Exchanged tokens give exchanged results: without a causal mask the model sees a bag of words.",
        mend="Add the row of each token's position to its vector.",
        visibility="training",
        caught_by=_of(
            "add_positions",
            "each_token_gets_the_row_of_its_position",
            "equal_tokens_at_different_positions_part",
            "a_sequence_may_fill_the_table",
        ),
    ),
    Pitfall(
        id="add_positions.offset_ignored",
        catalogue=(),
        sources=(),
        functions={"add_positions": _starts_at_the_first_row},
        does="Rows are counted from the first whatever the offset.",
        shows="A continued sequence starts anew: generation with a cache gives every new token position 0.",
        mend="Slice from the number of tokens that were there before.",
        visibility="silent",
        caught_by=_of("add_positions", "an_offset_counts_from_that_row"),
    ),
]

PITFALLS = SINUSOIDAL + ADDED


@as_strict_as(sinusoidal_positions)
def _by_logarithms(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    table = np.zeros((seq, d_model))
    frequencies = np.exp(np.arange(0, d_model, 2) * (-math.log(base) / d_model))
    angle = np.arange(offset, offset + seq)[:, None] * frequencies
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)[:, : d_model // 2]
    return table.astype(dtype or np.float64)


EQUIVALENCES = [
    Equivalence(
        id="sinusoidal_positions.sines_then_cosines_permuted",
        catalogue=("equivalences/sinusoid_order_permuted",),
        sources=(
            "https://github.com/allenai/allennlp/issues/2993",
            "https://github.com/huggingface/diffusers/issues/3981",
        ),
        around={"sinusoidal_positions": _sines_then_cosines},
        says="A table of all sines and then all cosines is that of both in turn, with its columns permuted.",
        condition="where nobody asks which column is which: not with weights that were trained with the other order",
        outside=(
            "sinusoidal_positions.position_0_is_0_and_1_in_turn",
            "sinusoidal_positions.every_pair_lies_on_the_unit_circle",
            "sinusoidal_positions.the_first_pair_turns_by_one_radian_a_position",
            "sinusoidal_positions.each_frequency_is_smaller_than_the_one_before_by_one_factor",
            "sinusoidal_positions.the_base_sets_how_fast_frequencies_fall",
            "sinusoidal_positions.a_step_of_k_positions_is_one_fixed_rotation",
            "sinusoidal_positions.an_odd_width_ends_with_a_sine",
            "sinusoidal_positions.agrees_with_the_reference.*",
        ),
    ),
    Equivalence(
        id="sinusoidal_positions.by_logarithms",
        catalogue=(),
        sources=("https://nlp.seas.harvard.edu/annotated-transformer/",),
        functions={"sinusoidal_positions": _by_logarithms},
        says="base^(-2i/d) is exp(-2i log(base) / d).",
    ),
]
