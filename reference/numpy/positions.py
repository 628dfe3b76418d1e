"""Where a token stands, as a vector that is added to its embedding."""

import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

from reference.numpy._checks import no_empty_axis, one_dtype


def sinusoidal_positions(
    seq: int, d_model: int, *, base: float = 10000.0, offset: int = 0, dtype: DTypeLike | None = None
) -> Float[np.ndarray, "seq d_model"]:
    r"""Give each position the sines and cosines of angles that turn ever more slowly, interleaved.

    $$ PE_{pos, 2i} = \sin(pos / base^{2i / d}), \qquad PE_{pos, 2i+1} = \cos(pos / base^{2i / d}) $$

    where pos runs from `offset` to `offset + seq - 1` and d is d_model; an odd d_model ends with a sine. A step of k
    positions is one fixed rotation of every (sine, cosine) pair. `dtype` is float64 unless given.

    Raises ValueError for d_model < 1, seq < 0, offset < 0 or base <= 0.

    Source: Vaswani et al. 2017, section 3.5.
    """
    for name, value, least in (("seq", seq, 0), ("d_model", d_model, 1), ("offset", offset, 0)):
        if value < least:
            raise ValueError(
                f"sinusoidal_positions: {name} must be at least {least}, got {value}; give {least} or more"
            )
    if not 0 < base < np.inf:
        raise ValueError(f"sinusoidal_positions: base must be positive and finite, got {base}; give one such as 10000")
    pos = np.arange(offset, offset + seq, dtype=np.float64)[:, None]
    two_i = np.arange(0, d_model, 2, dtype=np.float64)
    angle = pos / base ** (two_i / d_model)
    table = np.empty((seq, d_model))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : d_model // 2])
    return table.astype(np.float64 if dtype is None else dtype)


def add_positions(
    x: Float[np.ndarray, "*batch seq d_model"],
    table: Float[np.ndarray, "max_len d_model"],
    *,
    offset: int = 0,
) -> Float[np.ndarray, "*batch seq d_model"]:
    r"""Add to each token the row of the table that belongs to its position.

    $$ y_t = x_t + P_{offset + t} $$

    Raises ValueError where the sequence runs past the table's end, or offset < 0.

    Source: Vaswani et al. 2017, section 3.5; Gehring et al. 2017, section 3.1 (learned tables).
    """
    _check_positions(x, table, offset)
    return x + table[offset : offset + x.shape[-2]]


def add_positions_vjp(
    cotangent: Float[np.ndarray, "*batch seq d_model"],
    x: Float[np.ndarray, "*batch seq d_model"],
    table: Float[np.ndarray, "max_len d_model"],
    *,
    offset: int = 0,
) -> tuple[Float[np.ndarray, "*batch seq d_model"], Float[np.ndarray, "max_len d_model"]]:
    r"""Give the gradients of x and of the table, whose rows gather over the batch.

    $$ dx_t = dy_t, \qquad dP_{offset + t} = \sum_{batch} dy_t $$

    Rows of other positions are 0. Raises as `add_positions` does.

    Source: the transpose of the addition; Gehring et al. 2017, section 3.1 (learned tables).
    """
    one_dtype("add_positions_vjp", x=x, table=table, cotangent=cotangent)
    _check_positions(x, table, offset)
    d_table = np.zeros_like(table)
    d_table[offset : offset + x.shape[-2]] = cotangent.sum(axis=tuple(range(cotangent.ndim - 2)))
    return cotangent.copy(), d_table


def _check_positions(
    x: Float[np.ndarray, "*batch seq d_model"], table: Float[np.ndarray, "max_len d_model"], offset: int
) -> None:
    no_empty_axis("add_positions", x, "seq d_model")
    one_dtype("add_positions", x=x, table=table)
    seq, max_len = x.shape[-2], table.shape[0]
    if offset < 0:
        raise ValueError(f"add_positions: offset must be at least 0, got {offset}; count positions from 0")
    if offset + seq > max_len:
        raise ValueError(
            f"add_positions: offset + seq must not exceed max_len, got {offset} + {seq} and {max_len}; "
            f"shorten the sequence or use a longer table"
        )
