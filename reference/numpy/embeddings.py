"""From token ids to vectors."""

import numpy as np
from jaxtyping import Float, Integer

from reference.numpy._checks import ids_in_range, no_empty_axis, one_dtype


def token_embedding(
    ids: Integer[np.ndarray, "*batch seq"], table: Float[np.ndarray, "vocab d_model"], *, scale: float = 1.0
) -> Float[np.ndarray, "*batch seq d_model"]:
    r"""Look up each token's row of the table, scaled.

    $$ h_t = s \, E_{\mathrm{id}_t} $$

    where E is `table` and s is `scale`: sqrt(d_model) in the original transformer, 1 in most of its successors.

    Raises IndexError for an id outside 0 ... vocab - 1 (a negative one does not count from the end).

    Source: Vaswani et al. 2017, section 3.4.
    """
    no_empty_axis("token_embedding", ids, "seq")
    no_empty_axis("token_embedding", table, "vocab d_model")
    ids_in_range("token_embedding", "ids", ids, table.shape[0], "vocab")
    return scale * table[ids]


def token_embedding_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    ids: Integer[np.ndarray, "*batch seq"],
    table: Float[np.ndarray, "vocab d_model"],
    *,
    scale: float = 1.0,
) -> tuple[Float[np.ndarray, "vocab d_model"]]:
    r"""Give the gradient of the table: each row gathers what its token got, at all its places.

    $$ dE_v = s \sum_{t : \mathrm{id}_t = v} dh_t $$

    so that the row of a token that does not occur is 0. Raises as `token_embedding` does.

    Source: the transpose of the lookup; Rumelhart et al. 1986 (the chain rule backwards).
    """
    one_dtype("token_embedding_vjp", table=table, cotangent=cotangent)
    no_empty_axis("token_embedding", table, "vocab d_model")
    ids_in_range("token_embedding", "ids", ids, table.shape[0], "vocab")
    d_table = np.zeros_like(table)
    np.add.at(d_table, ids, scale * cotangent)
    return (d_table,)
