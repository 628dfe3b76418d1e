"""From token ids to vectors."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn import functional

from reference.torch._checks import check_axes, check_ids, check_input


def token_embedding(
    ids: Integer[Tensor, "*batch seq"], table: Float[Tensor, "vocab d_model"], *, scale: float = 1.0
) -> Float[Tensor, "*batch seq d_model"]:
    r"""Look up each token's row of the table, scaled.

    $$ h_t = s \, E_{\mathrm{id}_t} $$

    where E is `table` and s is `scale`: sqrt(d_model) in the original transformer, 1 in most of its successors.

    Raises IndexError for an id outside 0 ... vocab - 1 (a negative one does not count from the end).

    Source: Vaswani et al. 2017, section 3.4.
    """
    check_axes("token_embedding", "ids", ids, "seq")
    check_input("token_embedding", "table", table, "vocab d_model")
    ids = check_ids("token_embedding", "ids", ids, table.shape[0])
    vectors = functional.embedding(ids, table)
    return vectors if scale == 1 else scale * vectors


class TokenEmbedding(nn.Module):
    """The table of `token_embedding`, drawn from N(0, 0.02²)."""

    def __init__(
        self,
        vocab: int,
        d_model: int,
        *,
        scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.table = nn.Parameter(torch.empty(vocab, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, ids: Integer[Tensor, "*batch seq"]) -> Float[Tensor, "*batch seq d_model"]:
        """Apply `token_embedding`."""
        return token_embedding(ids, self.table, scale=self.scale)
