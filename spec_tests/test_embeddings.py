"""Embeddings: a token's vector is its row of the table, times a scale."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spec_tests.judge import close, equal, raises
from spec_tests.spec import states
from spec_tests.strategies import EXACT, axes, numbers, token_ids


@st.composite
def lookups(draw):
    """Draw ids and a table they point into."""
    sizes = draw(axes())
    table = draw(numbers((sizes["vocab"], sizes["d_model"]), scales=EXACT))
    return draw(token_ids((*sizes["batch"], sizes["seq"]), sizes["vocab"])), table


@states("token_embedding")
@given(lookup=lookups())
def test_each_token_gets_its_row_of_the_table(subject, lookup):
    """Each token's vector is exactly its id's row of the table."""
    ids, table = lookup
    vectors = subject.token_embedding(ids, table)
    for place in np.ndindex(ids.shape):
        equal(vectors[place], table[ids[place]], what=f"the vector of id {ids[place]}")


@states("token_embedding")
@given(lookup=lookups(), data=st.data())
def test_a_vector_depends_on_its_own_id_only(subject, lookup, data):
    """A token has the same vector alone as among others: neither its place nor its neighbours matter."""
    ids, table = lookup
    place = data.draw(st.sampled_from(list(np.ndindex(ids.shape))))
    alone = subject.token_embedding(np.array([ids[place]]), table)
    equal(subject.token_embedding(ids, table)[place], alone[0], what="the vector among others")


@states("token_embedding")
@given(lookup=lookups(), scale=st.sampled_from((0.5, 2.0, 3.0, -4.0)))
def test_scale_multiplies_once(subject, lookup, scale):
    """Every number is that of the table times `scale`, once."""
    ids, table = lookup
    close(
        subject.token_embedding(ids, table, scale=scale),
        scale * subject.token_embedding(ids, table),
        within=4 * subject.eps * np.abs(scale * table).max(),
    )


@states("token_embedding")
@given(data=st.data(), d_model=st.sampled_from((4, 9, 16)))
def test_the_scale_of_the_original_transformer_is_the_root_of_d_model(subject, data, d_model):
    """With scale sqrt(d_model) the vectors of width 4 are twice their rows, those of width 9 three times."""
    table = data.draw(numbers((5, d_model), scales=EXACT))
    ids = data.draw(token_ids((3,), 5))
    vectors = subject.token_embedding(ids, table, scale=math.sqrt(d_model))
    equal(vectors, {4: 2, 9: 3, 16: 4}[d_model] * table[ids])


@states("token_embedding")
@given(
    lookup=lookups(),
    kind=st.sampled_from(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
)
def test_ids_may_have_any_integer_dtype(subject, lookup, kind):
    """Ids of any integer dtype, signed or not, mean the same rows."""
    ids, table = lookup
    equal(subject.token_embedding(ids.astype(kind), table), table[ids])


def _with_one_wrong(draw, ids, wrong):
    ids = ids.copy()
    ids[draw(st.sampled_from(list(np.ndindex(ids.shape))))] = wrong
    return ids


@states("token_embedding")
@given(lookup=lookups(), data=st.data(), beyond=st.integers(0, 100))
def test_an_id_past_the_table_raises(subject, lookup, data, beyond):
    """A single id of vocab or more is an IndexError that names it and vocab."""
    ids, table = lookup
    wrong = len(table) + beyond
    with raises(subject, IndexError, "token_embedding", "vocab", str(wrong)):
        subject.token_embedding(_with_one_wrong(data.draw, ids, wrong), table)


@states("token_embedding")
@given(lookup=lookups(), data=st.data(), wrong=st.integers(-9, -1))
def test_a_negative_id_raises(subject, lookup, data, wrong):
    """A negative id is an IndexError that names it: it never counts from the end of the table."""
    ids, table = lookup
    with raises(subject, IndexError, "token_embedding", "vocab", str(wrong)):
        subject.token_embedding(_with_one_wrong(data.draw, ids, wrong), table)
