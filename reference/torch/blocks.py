"""One layer of the transformer."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from reference.config import ModelConfig
from reference.parameters import Tree, block_shapes, check_params
from reference.torch._checks import check_input
from reference.torch.attention import MultiHeadAttention, multi_head_attention
from reference.torch.mlp import Dropout, FeedForward, dropout, feed_forward
from reference.torch.norms import LayerNorm, layer_norm


def transformer_block(
    x: Float[Tensor, "*batch seq d_model"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[Tensor, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> Float[Tensor, "*batch seq d_model"]:
    r"""Let the tokens talk to each other, then let each think by itself; both add to the stream.

    $$ \text{pre:} \quad x \leftarrow x + f(\operatorname{norm}(x)) \qquad
       \text{post:} \quad x \leftarrow \operatorname{norm}(x + f(x)) $$

    for f = attention and then f = feed-forward, as `config.norm_placement` says. `keep` holds the keep-masks of
    dropout on the attention's output, the MLP's hidden values and the MLP's output (`attention`, `mlp_hidden`, `mlp`).

    Raises ValueError or TypeError where `params` are not those that `config` asks for.

    Source: Vaswani et al. 2017, section 3.1 (post); Xiong et al. 2020, figure 1 (pre).
    """
    check_params("transformer_block", params, block_shapes(config))
    check_input("transformer_block", "x", x, "seq d_model")

    attend = partial(_attend, params=params["attention"], config=config, mask=mask, keep=keep)
    think = partial(_think, params=params["mlp"], config=config, keep=keep)
    norm_1 = partial(normalise, gain_and_bias=params.get("norm_1", {}), config=config)
    norm_2 = partial(normalise, gain_and_bias=params.get("norm_2", {}), config=config)
    return _residual(x, attend, norm_1, think, norm_2, config)


def _attend(x: Tensor, *, params: Tree, config: ModelConfig, mask: Tensor | None, keep: Tree | None) -> Tensor:
    weights: Tree = {"w_o": None, **params}
    y = multi_head_attention(x, **weights, n_heads=config.n_heads, mask=mask, causal=config.causal)
    return y if keep is None else dropout(y, keep["attention"], rate=config.dropout)


def _think(x: Tensor, *, params: Tree, config: ModelConfig, keep: Tree | None) -> Tensor:
    hidden = None if keep is None else keep["mlp_hidden"]
    y = feed_forward(x, **params, activation=config.activation, keep=hidden, rate=config.dropout)
    return y if keep is None else dropout(y, keep["mlp"], rate=config.dropout)


def normalise(
    x: Float[Tensor, "*batch d_model"], gain_and_bias: Tree, config: ModelConfig
) -> Float[Tensor, "*batch d_model"]:
    """Apply the norm that the config names, with the gain and bias that are there."""
    norm = config.norm
    return layer_norm(x, gain_and_bias.get("gamma"), gain_and_bias.get("beta"), eps=norm.eps, variant=norm.variant)


def _residual(
    x: Tensor,
    attend: Callable[[Tensor], Tensor],
    norm_1: Callable[[Tensor], Tensor],
    think: Callable[[Tensor], Tensor],
    norm_2: Callable[[Tensor], Tensor],
    config: ModelConfig,
) -> Tensor:
    if config.norm_placement == "pre":
        x = x + attend(norm_1(x))
        return x + think(norm_2(x))
    x = norm_1(x + attend(x))
    return norm_2(x + think(x))


class TransformerBlock(nn.Module):
    """The parts of `transformer_block`; each draws its own initial weights."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = c = config
        self.attention = MultiHeadAttention(
            c.d_model, c.n_heads,
            bias=c.attention_bias, output_projection=c.output_projection, causal=c.causal, device=device, dtype=dtype,
        )  # fmt: skip
        self.norm_1 = norm_for(config, device=device, dtype=dtype)
        self.mlp = FeedForward(c.d_model, c.d_ff, activation=c.activation, rate=c.dropout, device=device, dtype=dtype)
        self.norm_2 = norm_for(config, device=device, dtype=dtype)
        self.dropout = Dropout(c.dropout)

    def forward(
        self,
        x: Float[Tensor, "*batch seq d_model"],
        *,
        mask: Bool[Tensor, "*#batch seq seq"] | None = None,
        keep: Tree | None = None,
    ) -> Float[Tensor, "*batch seq d_model"]:
        """Apply `transformer_block`; without `keep` it draws the masks of dropout in train mode."""
        attend = partial(self._attend, mask=mask, keep=keep)
        think = partial(self._think, keep=keep)
        return _residual(x, attend, self.norm_1, think, self.norm_2, self.config)

    def _attend(self, x: Tensor, *, mask: Tensor | None, keep: Tree | None) -> Tensor:
        return self.dropout(self.attention(x, mask=mask), keep=None if keep is None else keep["attention"])

    def _think(self, x: Tensor, *, keep: Tree | None) -> Tensor:
        hidden, last = (None, None) if keep is None else (keep["mlp_hidden"], keep["mlp"])
        return self.dropout(self.mlp(x, keep=hidden), keep=last)


def norm_for(
    config: ModelConfig, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> LayerNorm:
    """Build the norm that the config names."""
    norm = config.norm
    return LayerNorm(config.d_model, eps=norm.eps, variant=norm.variant, affine=norm.affine, device=device, dtype=dtype)
