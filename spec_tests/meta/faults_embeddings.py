"""Wrong embeddings."""

import math

import numpy as np

from reference.numpy import token_embedding
from spec_tests.meta.faults import Fault


def _scaled_here_and_there(ids, table, *, scale=1.0):
    return scale * token_embedding(ids, table, scale=scale)


def _divided(ids, table, *, scale=1.0):
    return token_embedding(ids, table, scale=1 / scale)


def _scaled_for_one_width(ids, table, *, scale=1.0):
    return token_embedding(ids, table, scale=1.0 if scale == 1.0 else math.sqrt(512))


def _one_row_down(ids, table, *, scale=1.0):
    return token_embedding(np.maximum(ids.astype(np.int64) - 1, 0), table, scale=scale)


def _sorted_first(ids, table, *, scale=1.0):
    return token_embedding(np.sort(ids, axis=-1), table, scale=scale)


def _wraps(ids, table, *, scale=1.0):
    return scale * table[ids]


def _clamps(ids, table, *, scale=1.0):
    return scale * table[np.clip(ids, 0, len(table) - 1)]


def _wants_int64(ids, table, *, scale=1.0):
    if ids.dtype != np.int64:
        raise TypeError("ids must be int64")
    return token_embedding(ids, table, scale=scale)


FAULTS = [
    Fault(
        "token_embedding scales twice",
        {"token_embedding": _scaled_here_and_there},
        (
            "token_embedding.scale_multiplies_once",
            "token_embedding.the_scale_of_the_original_transformer_is_the_root_of_d_model",
        ),
    ),
    Fault(
        "token_embedding divides by the scale",
        {"token_embedding": _divided},
        (
            "token_embedding.scale_multiplies_once",
            "token_embedding.the_scale_of_the_original_transformer_is_the_root_of_d_model",
        ),
    ),
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
        "token_embedding lets negative ids wrap",
        {"token_embedding": _wraps},
        ("token_embedding.a_negative_id_raises",),
    ),
    Fault(
        "token_embedding clamps ids",
        {"token_embedding": _clamps},
        ("token_embedding.an_id_past_the_table_raises", "token_embedding.a_negative_id_raises"),
    ),
    Fault(
        "token_embedding wants int64",
        {"token_embedding": _wants_int64},
        ("token_embedding.ids_may_have_any_integer_dtype",),
    ),
]
