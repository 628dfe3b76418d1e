"""What people get wrong about embeddings."""

import numpy as np

from reference.numpy import token_embedding, token_embedding_vjp
from spec_tests.pitfalls.pitfall import Equivalence, Pitfall
from spec_tests.pitfalls.strict import as_strict_as


def _unscaled(right):
    return lambda ids, table, *, scale=1.0: right(ids, table)


def _scaled_here_and_there(right):
    return lambda ids, table, *, scale=1.0: scale * right(ids, table, scale=scale)


def _divided(right):
    return lambda ids, table, *, scale=1.0: right(ids, table, scale=1 / scale)


def _wraps(right):
    def lookup(ids, table, *, scale=1.0):
        right(np.clip(ids, 0, len(table) - 1), table)  # which refuses all but ids outside the table
        return scale * table[ids]

    return lookup


def _clamps(right):
    return lambda ids, table, *, scale=1.0: right(np.clip(ids, 0, len(table) - 1), table, scale=scale)


def _assigned(cotangent, ids, table, *, scale=1.0):
    token_embedding_vjp(cotangent, ids, table, scale=scale)  # which refuses what it should
    gradient = np.zeros_like(table)
    gradient[ids] = scale * cotangent
    return (gradient,)


ROOT = "token_embedding.the_scale_of_the_original_transformer_is_the_root_of_d_model"

PITFALLS = [
    Pitfall(
        id="token_embedding.scale_missing",
        catalogue=(
            "components/emb_scale_missing",
            "systems/embedding_scale_missing_or_unrounded",
        ),
        sources=(
            "https://github.com/marin-community/levanter/pull/978",
            "https://github.com/huggingface/transformers/pull/29402",
            "https://github.com/google/gemma_pytorch/pull/67",
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/138",
        ),
        around={"token_embedding": _unscaled},
        does="The rows of the table are not multiplied by the scale.",
        shows="With a scale of sqrt(d_model) the vectors are too short by that factor: 2 at a width of 4, 22.6 at 512.",
        mend="Multiply by the scale, once.",
        visibility="silent",
        caught_by=("token_embedding.scale_multiplies_once", ROOT),
    ),
    Pitfall(
        id="token_embedding.scale_twice",
        catalogue=("components/emb_scale_twice",),
        sources=(
            "https://github.com/TensorAuto/OpenTau/pull/179",
            "https://github.com/vllm-project/vllm/issues/52667",
        ),
        around={"token_embedding": _scaled_here_and_there},
        does="The scale is applied twice: by the layer and by its caller.",
        shows="With a scale of sqrt(d_model) the vectors are too long by that factor, and drown the positions.",
        mend="Multiply by the scale in one place.",
        visibility="silent",
        caught_by=("token_embedding.scale_multiplies_once", ROOT),
    ),
    Pitfall(
        id="token_embedding.scale_divides",
        catalogue=("components/emb_scale_divides",),
        sources=(
            "https://github.com/Kyubyong/transformer/pull/15",
            "https://github.com/pytorch/tutorials/issues/2849",
        ),
        around={"token_embedding": _divided},
        does="The rows are divided by the scale; they should be multiplied by it.",
        shows="With a scale of sqrt(d_model) the vectors are too short by the factor d_model.",
        mend="Multiply: what is divided by a root are the scores of attention.",
        visibility="silent",
        caught_by=("token_embedding.scale_multiplies_once", ROOT),
    ),
    Pitfall(
        id="token_embedding.negative_ids_wrap",
        catalogue=(),
        sources=("https://numpy.org/doc/stable/user/basics.indexing.html",),
        around={"token_embedding": _wraps},
        does="A negative id, such as the -100 or -1 of padding, counts from the end of the table.",
        shows="No error: the token gets the vector of another.",
        mend="Refuse ids below 0.",
        visibility="silent",
        caught_by=("token_embedding.a_negative_id_raises",),
    ),
    Pitfall(
        id="token_embedding.ids_clamped",
        catalogue=(),
        sources=("https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html",),
        around={"token_embedding": _clamps},
        does="An id outside the table gets the closest row, as an index does in JAX.",
        shows="No error: every id past the vocabulary is the last token.",
        mend="Refuse ids below 0 or from vocab on.",
        visibility="silent",
        caught_by=("token_embedding.an_id_past_the_table_raises", "token_embedding.a_negative_id_raises"),
    ),
    Pitfall(
        id="token_embedding.gradients_overwrite",
        catalogue=(),
        sources=("https://numpy.org/doc/stable/reference/generated/numpy.ufunc.at.html",),
        functions={"token_embedding_vjp": _assigned},
        does="The gradient is assigned to the rows, so that of a repeated token's places only the last counts.",
        shows="Frequent tokens learn too little; a batch in which every token is another shows nothing.",
        mend="Add: np.add.at(gradient, ids, cotangent), or index_add_ in torch.",
        visibility="training",
        caught_by=(
            "token_embedding.the_gradient_of_a_row_gathers_all_places_of_its_token",
            "token_embedding.gradients_are_those_of_finite_differences",
        ),
    ),
]


@as_strict_as(token_embedding)
def _one_hot(ids, table, *, scale=1.0):
    one_hot = ids[..., None] == np.arange(len(table))
    return (one_hot.astype(table.dtype) @ table) * table.dtype.type(scale)


EQUIVALENCES = [
    Equivalence(
        id="token_embedding.one_hot",
        catalogue=(),
        sources=(),
        functions={"token_embedding": _one_hot},
        says="A lookup is the product of one-hot vectors with the table.",
    ),
]
