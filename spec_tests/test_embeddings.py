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
        within=16 * subject.eps * np.abs(scale * table).max(),
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


# ----------------------------------------------------------------------------------------------------------- gradients


@st.composite
def lookups_with_cotangents(draw):
    """Draw a cotangent, ids and a table."""
    ids, table = draw(lookups())
    return draw(numbers((*ids.shape, table.shape[-1]), scales=EXACT)), ids, table


@states("token_embedding", gradient=True)
@given(lookup=lookups_with_cotangents())
def test_the_gradient_of_a_row_gathers_all_places_of_its_token(subject, lookup):
    """A row's gradient is the sum of the cotangents at every place where its id stands: repeated ids add up."""
    cotangent, ids, table = lookup
    (gradient,) = subject.token_embedding_vjp(cotangent, ids, table)
    for token in range(len(table)):
        equal(gradient[token], cotangent[ids == token].sum(axis=0), what=f"the gradient of row {token}")


@states("token_embedding", gradient=True)
@given(lookup=lookups_with_cotangents())
def test_the_gradient_of_an_unused_row_is_0(subject, lookup):
    """A row whose id does not occur has a gradient of exactly 0."""
    cotangent, ids, table = lookup
    one_more = np.concatenate([table, table[:1]])
    (gradient,) = subject.token_embedding_vjp(cotangent, ids, one_more)
    equal(gradient[-1], np.zeros(table.shape[-1]), what="the gradient of an unused row")


@states("token_embedding", gradient=True)
@given(lookup=lookups_with_cotangents(), scale=st.sampled_from((0.5, 2.0, 3.0, -4.0)))
def test_the_gradient_is_scaled_as_the_vectors_are(subject, lookup, scale):
    """The gradient with `scale` is `scale` times that without."""
    cotangent, ids, table = lookup
    (scaled,) = subject.token_embedding_vjp(cotangent, ids, table, scale=scale)
    (plain,) = subject.token_embedding_vjp(cotangent, ids, table)
    within = 16 * subject.eps * ids.size * np.abs(scale * cotangent).max()
    close(scaled, scale * plain, within=within, what="the gradient")


@states("token_embedding", gradient=True)
@given(lookup=lookups_with_cotangents(), data=st.data(), wrong=st.integers(-9, -1) | st.integers(7, 99))
def test_a_gradient_for_an_id_outside_the_table_raises(subject, lookup, data, wrong):
    """An id below 0 or past the table is an IndexError in the gradient too: none adds to another token's row."""
    cotangent, ids, table = lookup
    with raises(subject, IndexError, "token_embedding", "vocab", str(wrong)):
        subject.token_embedding_vjp(cotangent, _with_one_wrong(data.draw, ids, wrong), table)
