"""Pictures of what a model holds: its position table, and who attends to whom. Needs matplotlib."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from reference.config import Learned, ModelConfig, Sinusoidal
from reference.numpy import (
    add_positions,
    attention_weights,
    output_head,
    sinusoidal_positions,
    token_embedding,
    transformer_block,
)
from reference.numpy.blocks import normalise
from reference.parameters import Tree


def position_table(config: ModelConfig, params: Tree | None) -> Float[np.ndarray, "max_len d_model"]:
    """Give the table that a model adds to its embeddings. Raises ValueError where there is none to show."""
    match config.positions:
        case Sinusoidal(base=base):
            return sinusoidal_positions(config.max_len, config.d_model, base=base)
        case Learned() if params is not None:
            return params["positions"]["table"]
        case positions:
            raise ValueError(f"position_table: positions must be a table, got {positions}; choose another model")


def attention_maps(
    ids: Integer[np.ndarray, "seq"], params: Tree, config: ModelConfig
) -> tuple[Float[np.ndarray, "layers heads seq seq"], Float[np.ndarray, "seq vocab"]]:
    """Follow `transformer` layer by layer; give the attention weights of every head, and the logits.

    The logits are there so that it can be seen that the weights are those of the model.
    """
    table = params["token_embedding"]["table"]
    x = token_embedding(ids, table, scale=config.embedding_scale)
    if isinstance(config.positions, Sinusoidal | Learned):
        x = add_positions(x, position_table(config, params).astype(x.dtype))
    maps: list[np.ndarray] = []
    for block in params["blocks"]:
        part = block["attention"]
        seen = normalise(x, block.get("norm_1", {}), config) if config.norm_placement == "pre" else x

        def heads(name: str, seen: np.ndarray = seen, part: Tree = part) -> np.ndarray:
            projected = seen @ part[f"w_{name}"] + part.get(f"b_{name}", np.zeros((), seen.dtype))
            return projected.reshape(len(ids), config.n_heads, config.d_k).swapaxes(0, 1)

        maps.append(attention_weights(heads("q"), heads("k"), causal=config.causal))
        x = transformer_block(x, block, config)
    if config.final_norm:
        x = normalise(x, params.get("final_norm", {}), config)
    head = params.get("output_head", {})
    logits = output_head(x, table.T if config.tied_head else head["w"], head.get("b"))
    return np.stack(maps) if maps else np.zeros((0, config.n_heads, len(ids), len(ids)), x.dtype), logits


def positions_svg(config: ModelConfig, params: Tree | None = None) -> bytes:
    """Draw the position table as a heat map, a row a position."""
    table = position_table(config, params)
    figure = _figure(7.0, 5.0)
    axes = figure.subplots()
    limit = float(np.abs(table).max())
    image = axes.imshow(table, aspect="auto", cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set(xlabel="d_model", ylabel="position", title=f"{type(config.positions).__name__} positions")
    figure.colorbar(image)
    return _svg(figure)


def attention_svg(ids: Sequence[int], params: Tree, config: ModelConfig) -> bytes:
    """Draw every head's attention weights on a prompt: a row of panels a layer, the bytes on the axes.

    Raises ValueError for a prompt that is empty or longer than max_len, or a model without blocks, IndexError
    for ids outside the vocab.
    """
    if not 1 <= len(ids) <= config.max_len or config.n_layers < 1:
        raise ValueError(
            f"attention_svg: the prompt must have 1 ... {config.max_len} tokens and the model a layer, "
            f"got {len(ids)} tokens and {config.n_layers} layers; change the prompt or the model"
        )
    maps, _ = attention_maps(np.asarray(ids), params, config)
    size = min(max(1.6, 0.14 * len(ids)), 8.0)
    figure = _figure(size * config.n_heads + 1.0, size * config.n_layers + 0.5)
    grid = figure.subplots(config.n_layers, config.n_heads, squeeze=False, sharex=True, sharey=True)
    ticks = np.arange(len(ids))
    labels = [token_label(i) for i in ids]
    image = None
    for (layer, head), axes in np.ndenumerate(grid):
        image = axes.imshow(maps[layer, head], cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_title(f"layer {layer}, head {head}", fontsize=7)
        # A dollar sign is a token, not mathematics.
        axes.set_xticks(ticks, labels, fontsize=5, fontfamily="monospace", parse_math=False)
        axes.set_yticks(ticks, labels, fontsize=5, fontfamily="monospace", parse_math=False)
    figure.supxlabel("k_seq: the token that is seen", fontsize=8)
    figure.supylabel("q_seq: the token that sees", fontsize=8)
    figure.colorbar(image, ax=grid)
    return _svg(figure)


def token_label(token: int) -> str:
    """Show a byte on an axis: itself where it prints, an open box for a space, else its hex digits."""
    return "␣" if token == ord(" ") else chr(token) if 0x21 <= token <= 0x7E else f"{token:02x}"


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Any) -> bytes:
    """Write a figure so that the same picture gives the same bytes."""
    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "transformer-spec"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
