"""Where a token stands, as a vector that is added to its embedding."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from reference.torch._checks import check_input, check_parts


def sinusoidal_positions(
    seq: int,
    d_model: int,
    *,
    base: float = 10000.0,
    offset: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "seq d_model"]:
    r"""Give each position the sines and cosines of angles that turn ever more slowly, interleaved.

    $$ PE_{pos, 2i} = \sin(pos / base^{2i / d}), \qquad PE_{pos, 2i+1} = \cos(pos / base^{2i / d}) $$

    where pos runs from `offset` to `offset + seq - 1` and d is d_model; an odd d_model ends with a sine. A step of k
    positions is one fixed rotation of every (sine, cosine) pair. `dtype` and `device` are torch's defaults unless
    given; the angles are float64 in any case, for float32 loses them at far positions.

    Raises ValueError for d_model < 1, seq < 0, offset < 0 or base <= 0, TypeError for a dtype that is not floating.

    Source: Vaswani et al. 2017, section 3.5.
    """
    for name, value, least in (("seq", seq, 0), ("d_model", d_model, 1), ("offset", offset, 0)):
        if value < least:
            raise ValueError(
                f"sinusoidal_positions: {name} must be at least {least}, got {value}; give {least} or more"
            )
    if not 0 < base < math.inf:
        raise ValueError(f"sinusoidal_positions: base must be positive and finite, got {base}; give one such as 10000")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise TypeError(f"sinusoidal_positions: dtype must be floating, got {dtype}; choose one such as torch.float32")
    device = torch.empty(0).device if device is None else device
    # On the CPU: not every device has float64.
    pos = torch.arange(offset, offset + seq, dtype=torch.float64, device="cpu")[:, None]
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")
    angle = pos / base ** (two_i / d_model)
    pairs = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    return pairs[:, :d_model].to(device=device, dtype=dtype)


def add_positions(
    x: Float[Tensor, "*batch seq d_model"], table: Float[Tensor, "max_len d_model"], *, offset: int = 0
) -> Float[Tensor, "*batch seq d_model"]:
    r"""Add to each token the row of the table that belongs to its position.

    $$ y_t = x_t + P_{offset + t} $$

    Raises ValueError where the sequence runs past the table's end, or offset < 0.

    Source: Vaswani et al. 2017, section 3.5; Gehring et al. 2017, section 3.1 (learned tables).
    """
    check_input("add_positions", "x", x, "seq d_model")
    check_input("add_positions", "table", table, "d_model")
    seq, max_len = x.shape[-2], table.shape[0]
    check_parts("add_positions", x, table=(table, (max_len, x.shape[-1])))
    if offset < 0:
        raise ValueError(f"add_positions: offset must be at least 0, got {offset}; count positions from 0")
    if offset + seq > max_len:
        raise ValueError(
            f"add_positions: offset + seq must not exceed max_len, got {offset} + {seq} and {max_len}; "
            f"shorten the sequence or use a longer table"
        )
    return x + table[offset : offset + seq]


class SinusoidalPositions(nn.Module):
    """The table of `sinusoidal_positions`; it is not learned and not stored in a checkpoint."""

    table: Tensor

    def __init__(
        self,
        max_len: int,
        d_model: int,
        *,
        base: float = 10000.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        table = sinusoidal_positions(max_len, d_model, base=base, device=device, dtype=dtype)
        self.register_buffer("table", table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SinusoidalPositions":
        # What `.to(dtype)` casts has been rounded twice, and what `.to_empty()` leaves has no values: compute anew.
        super()._apply(fn, recurse)
        (max_len, d_model), like = self.table.shape, self.table
        self.table = sinusoidal_positions(max_len, d_model, base=self.base, device=like.device, dtype=like.dtype)
        return self

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"], *, offset: int = 0
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Apply `add_positions`."""
        return add_positions(x, self.table, offset=offset)


class LearnedPositions(nn.Module):
    """A table of positions that is learned, drawn from N(0, 0.02²)."""

    def __init__(
        self,
        max_len: int,
        d_model: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_len, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table."""
        nn.init.normal_(self.table, std=0.02)

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"], *, offset: int = 0
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Apply `add_positions`."""
        return add_positions(x, self.table, offset=offset)
