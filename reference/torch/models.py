"""The whole model: ids -> vectors -> positions -> blocks -> scores of the next token."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from reference.config import Learned, ModelConfig, NoPositions, Sinusoidal
from reference.parameters import Tree, check_params, parameter_shapes, tree_from_leaves
from reference.torch._checks import check_axes, check_input, check_parts
from reference.torch._products import affine
from reference.torch.blocks import TransformerBlock, norm_for, normalise, transformer_block
from reference.torch.embeddings import TokenEmbedding, token_embedding
from reference.torch.mlp import Dropout, dropout
from reference.torch.positions import (
    LearnedPositions,
    SinusoidalPositions,
    add_positions,
    sinusoidal_positions,
)


def output_head(
    x: Float[Tensor, "*batch seq d_model"],
    w: Float[Tensor, "d_model vocab"],
    b: Float[Tensor, "vocab"] | None = None,
) -> Float[Tensor, "*batch seq vocab"]:
    r"""Score every token of the vocabulary as the next one.

    $$ logits = x W + b $$

    Source: Vaswani et al. 2017, section 3.4.
    """
    check_input("output_head", "x", x, "seq d_model")
    check_input("output_head", "w", w, "d_model vocab")
    vocab = w.shape[-1]
    check_parts("output_head", x, w=(w, (x.shape[-1], vocab)), b=(b, (vocab,)))
    return affine(x, w, b)


def transformer(
    ids: Integer[Tensor, "*batch seq"],
    params: Tree,
    config: ModelConfig,
    *,
    mask: Bool[Tensor, "*#batch seq seq"] | None = None,
    keep: Tree | None = None,
) -> Float[Tensor, "*batch seq vocab"]:
    r"""Run the whole model: what comes after each token, as scores over the vocabulary.

    $$ h_0 = s \, E_{ids} + P, \qquad h_l = block_l(h_{l-1}), \qquad logits = \operatorname{norm}(h_L) \, W + b $$

    where the positions P, the final norm and b are there if `config` says so, and W is E^T for a tied head. `keep`
    holds the keep-masks of dropout: `positions`, and `blocks`, a list of those of each block.

    Raises ValueError for a sequence longer than max_len or parameters other than the config's, IndexError for ids
    outside the vocabulary.

    Source: Vaswani et al. 2017, section 3 and figure 1; Radford et al. 2019, section 2.3 (final norm).
    """
    check_params("transformer", params, parameter_shapes(config))
    _check_length(ids, config)
    table = params["token_embedding"]["table"]
    x = token_embedding(ids, table, scale=config.embedding_scale)
    match config.positions:
        case Sinusoidal(base=base):
            length, d_model = x.shape[-2:]
            x = add_positions(x, sinusoidal_positions(length, d_model, base=base, dtype=x.dtype, device=x.device))
        case Learned():
            x = add_positions(x, params["positions"]["table"])
        case NoPositions():
            pass
    if keep is not None:
        x = dropout(x, keep["positions"], rate=config.dropout)
    for block, its_keep in zip(params["blocks"], _keep_of_blocks(keep, config), strict=True):
        x = transformer_block(x, block, config, mask=mask, keep=its_keep)
    if config.final_norm:
        x = normalise(x, params.get("final_norm", {}), config)
    head = params.get("output_head", {})
    return output_head(x, table.mT if config.tied_head else head["w"], head.get("b"))


def parameter_count(config: ModelConfig) -> int:
    r"""Count the numbers that a model of this config learns, by building its parts without any storage.

    $$ \sum_{p} \prod_{i} size_i(p) $$

    over the parameters p, and their axes i, of a model without blocks and of n_layers blocks; a shared table counts
    once.

    Source: counted from Vaswani et al. 2017, section 3.
    """
    parts = Transformer(replace(config, n_layers=0), device="meta"), TransformerBlock(config, device="meta")
    around, block = (sum(parameter.numel() for parameter in part.parameters()) for part in parts)
    return around + config.n_layers * block


def _check_length(ids: Tensor, config: ModelConfig) -> None:
    check_axes("transformer", "ids", ids, "seq")
    if ids.shape[-1] > config.max_len:
        raise ValueError(
            f"transformer: seq must not exceed max_len, got {ids.shape[-1]} and {config.max_len}; "
            f"keep the last {config.max_len} tokens, or use a model with a longer max_len"
        )


def _keep_of_blocks(keep: Tree | None, config: ModelConfig) -> list[Any]:
    blocks = [None] * config.n_layers if keep is None else keep["blocks"]
    if len(blocks) != config.n_layers:
        raise ValueError(
            f"transformer: keep must have masks for {config.n_layers} blocks, got {len(blocks)}; give one dict a block"
        )
    return blocks


class OutputHead(nn.Module):
    """The weights of `output_head`, drawn from N(0, 0.02²), and its bias, 0 at first; a tied head has no weights."""

    def __init__(
        self,
        d_model: int,
        vocab: int,
        *,
        tied: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.w = None if tied else nn.Parameter(torch.empty(d_model, vocab, device=device, dtype=dtype))
        self.b = nn.Parameter(torch.empty(vocab, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights and set the bias to 0."""
        if self.w is not None:
            nn.init.normal_(self.w, std=0.02)
        if self.b is not None:
            nn.init.zeros_(self.b)

    def forward(
        self, x: Float[Tensor, "*batch seq d_model"], *, table: Float[Tensor, "vocab d_model"] | None = None
    ) -> Float[Tensor, "*batch seq vocab"]:
        """Apply `output_head`, with the transpose of `table` where the head is tied to one."""
        w = self.w if table is None else table.mT
        if w is None:
            raise ValueError("OutputHead: a tied head needs the table of the token embedding, got none; give table=")
        return output_head(x, w, self.b)


class Transformer(nn.Module):
    """The model of `transformer`: it holds the parameters, under the paths of the parameter tree.

    They are drawn as `reference.parameters.init_params` says, though from torch's generator: every weight and table is
    N(0, 0.02²), those that write into the residual stream (`w_o`, `w_2`) are N(0, 0.02² / (2 n_layers)), gains are 1
    and biases 0.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = c = config
        self.token_embedding = TokenEmbedding(c.vocab, c.d_model, scale=c.embedding_scale, device=device, dtype=dtype)
        match c.positions:
            case Sinusoidal(base=base):
                self.positions = SinusoidalPositions(c.max_len, c.d_model, base=base, device=device, dtype=dtype)
            case Learned():
                self.positions = LearnedPositions(c.max_len, c.d_model, device=device, dtype=dtype)
            case NoPositions():
                self.positions = None
        self.dropout = Dropout(c.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(c, device=device, dtype=dtype) for _ in range(c.n_layers))
        self.final_norm = norm_for(c, device=device, dtype=dtype) if c.final_norm else None
        self.output_head = OutputHead(
            c.d_model, c.vocab, tied=c.tied_head, bias=c.head_bias, device=device, dtype=dtype
        )
        for name, parameter in self.named_parameters():
            if name.endswith((".w_o", ".w_2")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * c.n_layers))

    def forward(
        self,
        ids: Integer[Tensor, "*batch seq"],
        *,
        mask: Bool[Tensor, "*#batch seq seq"] | None = None,
        keep: Tree | None = None,
    ) -> Float[Tensor, "*batch seq vocab"]:
        """Apply `transformer`; without `keep` it draws the masks of dropout in train mode."""
        _check_length(ids, self.config)
        x = self.token_embedding(ids)
        if self.positions is not None:
            x = self.positions(x)
        x = self.dropout(x, keep=None if keep is None else keep["positions"])
        for block, its_keep in zip(self.blocks, _keep_of_blocks(keep, self.config), strict=True):
            x = block(x, mask=mask, keep=its_keep)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return self.output_head(x, table=self.token_embedding.table if self.config.tied_head else None)


def load_params(module: nn.Module, tree: Tree) -> None:
    """Copy a parameter tree (of arrays or tensors) into a module, cast to the module's dtype and device.

    Raises ValueError where a part is missing or too many, or the module is on the meta device; TypeError where a shape
    is another.
    """
    state = module.state_dict()
    check_params("load_params", tree, {path: tuple(tensor.shape) for path, tensor in state.items()})
    if any(tensor.is_meta for tensor in state.values()):
        raise ValueError(
            "load_params: the module must have storage, got one on meta; call module.to_empty(device=) first"
        )
    for path, tensor in state.items():
        leaf: Any = tree
        for key in path.split("."):
            leaf = leaf[int(key)] if isinstance(leaf, list) else leaf[key]
        tensor.copy_(torch.as_tensor(leaf))  # the state shares the module's storage


def export_params(module: nn.Module) -> Tree:
    """Give a module's parameters as a tree of NumPy arrays of its dtype; bfloat16, which NumPy lacks, as float32."""
    return tree_from_leaves({path: as_array(tensor) for path, tensor in module.state_dict().items()})


def as_array(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to NumPy, in its dtype; bfloat16, which NumPy lacks, as float32."""
    tensor = tensor.detach().cpu()
    return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
