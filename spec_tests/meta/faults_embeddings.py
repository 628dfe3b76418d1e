"""Wrong embeddings."""

import math

import numpy as np

from reference.numpy import token_embedding, token_embedding_vjp
from spec_tests.meta.faults import Fault
from spec_tests.pitfalls.embeddings import PITFALLS
from spec_tests.pitfalls.pitfall import right_functions


def _scaled_for_one_width(ids, table, *, scale=1.0):
    return token_embedding(ids, table, scale=1.0 if scale == 1.0 else math.sqrt(512))


def _one_row_down(ids, table, *, scale=1.0):
    return token_embedding(np.maximum(ids.astype(np.int64) - 1, 0), table, scale=scale)


def _sorted_first(ids, table, *, scale=1.0):
    return token_embedding(np.sort(ids, axis=-1), table, scale=scale)


def _wants_int64(ids, table, *, scale=1.0):
    if ids.dtype != np.int64:
        raise TypeError("ids must be int64")
    return token_embedding(ids, table, scale=scale)


# ----------------------------------------------------------------------------------------------------------- gradients


def _wraps_in_the_gradient(cotangent, ids, table, *, scale=1.0):
    return token_embedding_vjp(cotangent, np.where(ids < 0, ids % len(table), ids), table, scale=scale)


def _scale_dropped(cotangent, ids, table, *, scale=1.0):
    return token_embedding_vjp(cotangent, ids, table)


def _decays_all_rows(cotangent, ids, table, *, scale=1.0):
    return (token_embedding_vjp(cotangent, ids, table, scale=scale)[0] + 1e-3 * table,)


def _averaged(cotangent, ids, table, *, scale=1.0):
    counts = np.bincount(ids.ravel(), minlength=len(table))
    return (token_embedding_vjp(cotangent, ids, table, scale=scale)[0] / np.maximum(counts, 1)[:, None],)


def _gradient_fault(name, function, *fails):
    names = tuple(f"token_embedding.{fail}" for fail in fails)
    return Fault(f"token_embedding_vjp {name}", {"token_embedding_vjp": function}, names)


GRADIENTS = [
    _gradient_fault(
        "averages over the places of a token",
        _averaged,
        "the_gradient_of_a_row_gathers_all_places_of_its_token",
        "gradients_are_those_of_finite_differences",
    ),
    _gradient_fault(
        "drops the scale",
        _scale_dropped,
        "the_gradient_is_scaled_as_the_vectors_are",
        "gradients_are_those_of_finite_differences",
    ),
    _gradient_fault("touches every row", _decays_all_rows, "the_gradient_of_an_unused_row_is_0"),
    _gradient_fault("lets negative ids wrap", _wraps_in_the_gradient, "a_gradient_for_an_id_outside_the_table_raises"),
]

FAULTS = [
    *(Fault(p.id, p.on(right_functions()), p.caught_by) for p in PITFALLS),
    *GRADIENTS,
    Fault(
        "token_embedding knows one width only",
        {"token_embedding": _scaled_for_one_width},
        ("token_embedding.the_scale_of_the_original_transformer_is_the_root_of_d_model",),
    ),
    Fault(
        "token_embedding counts ids from 1",
        {"token_embedding": _one_row_down},
        ("token_embedding.each_token_gets_its_row_of_the_table",),
    ),
    Fault(
        "token_embedding sorts the ids",
        {"token_embedding": _sorted_first},
        (
            "token_embedding.each_token_gets_its_row_of_the_table",
            "token_embedding.a_vector_depends_on_its_own_id_only",
        ),
    ),
    Fault(
        "token_embedding wants int64",
        {"token_embedding": _wants_int64},
        ("token_embedding.ids_may_have_any_integer_dtype",),
    ),
]
