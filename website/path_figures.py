"""Figures of the path that builds a transformer from nothing: what its trained model attends to."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

import reference.torch as production
from reference.config import MINI, ModelConfig
from reference.data import TextWindows, builtin_text, byte_tokens, split
from reference.parameters import Tree, init_params, map_tree
from reference.plots import attention_maps, token_label
from reference.recipe import Recipe
from reference.torch.training import train
from website.figures_theme import muted, new_figure, scale_bar, sequential

SENTENCE = b"The value of an expression"


def _text() -> np.ndarray:
    """Give the built-in text with runs of white space folded."""
    return byte_tokens(b" ".join(builtin_text().split()))


@cache
def _trained() -> tuple[Tree, ModelConfig]:
    """Train the model of the path's seventh page, in the same run; some fifteen seconds on one thread."""
    config = replace(MINI, d_model=64, n_layers=2, d_ff=128, max_len=64, embedding_scale=8.0, causal=True, dropout=0.0)
    tokens, _ = split(_text())
    windows = TextWindows(tokens=tokens, seq=64, batch_size=12, seed=0)
    params = init_params(config, seed=0, dtype=np.float32)
    for block in params["blocks"]:
        for part in (block["attention"], block["mlp"]):
            part |= {name: 4 * weight for name, weight in part.items() if weight.ndim == 2}
    model = production.Transformer(config)
    production.load_params(model, params)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the sums, and with them the picture, do not depend on the number of cores
    try:
        recipe = Recipe(steps=700, batch=12, seq=64, lr=6e-3, min_lr=6e-4, warmup=70, weight_decay=0.1)
        train(model, windows.batch, recipe)
    finally:
        torch.set_num_threads(threads)
    return map_tree(lambda array: array.astype(np.float64), production.export_params(model)), config


@cache
def _chosen() -> tuple[tuple[int, int], tuple[int, int]]:
    """Choose two heads by measuring on held-out text, as the path's last page does, and tell their layer and number.

    The first gives the largest share of its attention to the word that it stands in, the second the largest beyond
    what its mean weight for each distance explains.
    """
    params, config = _trained()
    n, seq = 64, config.max_len
    _, held_out = split(_text())
    ids = held_out[: n * seq].reshape(n, seq).astype(np.int64)
    weights = np.stack([attention_maps(row, params, config)[0] for row in ids])
    inside = np.stack([_own_word(row) for row in ids])
    place = np.arange(seq)
    distance = place[:, None] - place
    asked = (ids != ord(" ")) & (place >= 16)

    def share(w: np.ndarray) -> float:
        return float((w * inside).sum(axis=-1)[asked].mean())

    measured, beyond = np.zeros(weights.shape[1:3]), np.zeros(weights.shape[1:3])
    for layer, head in np.ndindex(*measured.shape):
        w = weights[:, layer, head]
        near = np.array([w[(distance == d) & asked[:, :, None]].mean() for d in range(seq)])
        blind = np.where(distance >= 0, near[np.abs(distance)], 0)
        measured[layer, head] = share(w)
        beyond[layer, head] = measured[layer, head] - share(blind / blind.sum(axis=-1, keepdims=True))
    first, second = (np.unravel_index(found.argmax(), found.shape) for found in (measured, beyond))
    return (int(first[0]), int(first[1])), (int(second[0]), int(second[1]))


def _own_word(ids: np.ndarray) -> np.ndarray:
    """Say which tokens stand in the same word as each, from its first letter to the token itself."""
    place = np.arange(len(ids))
    begins = np.maximum.accumulate(np.where(ids == ord(" "), place, -1)) + 1
    return (begins[:, None] <= place) & (place <= place[:, None])


def path_heatmap() -> Figure:
    """Two heads on a sentence: the one that stays most within a word, and the one that does so beyond distance."""
    params, config = _trained()
    ids = byte_tokens(SENTENCE).astype(np.int64)
    weights, _ = attention_maps(ids, params, config)
    seq = len(ids)
    places = np.arange(seq)

    corners = np.array([(0.03, 0.03), (0.97, 0.03), (0.97, 0.97), (0.03, 0.97)])
    visible = [(row, column) for row in places for column in places[: row + 1]]

    figure = new_figure(7.6, 4.2)
    panels = figure.subplots(1, 2, sharey=True)
    labels = [token_label(int(i)) for i in ids]
    shade = None
    for axes, (layer, head) in zip(panels, _chosen(), strict=True):
        shade = PolyCollection(
            [corners + np.array([column, row]) for row, column in visible],
            array=np.array([weights[layer, head, row, column] for row, column in visible]),
            cmap=sequential(),
            norm=Normalize(0, 1),
            edgecolors="none",
        )
        axes.add_collection(shade)
        axes.set(title=f"Layer {layer}, head {head}", xlabel="token that is seen", aspect="equal")
        axes.set(xlim=(0, seq), ylim=(seq, 0))
        for end in np.flatnonzero(ids == ord(" ")) + 1:  # words stand in boxes, each with the space after it
            axes.plot([0, end, end], [end, end, seq], color=muted(), lw=0.7)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_xticks(places + 0.5, labels, size=8, family="monospace")
        axes.set_yticks(places + 0.5, labels, size=8, family="monospace")
    panels[0].set_ylabel("token that sees")
    scale_bar(figure, shade, panels, (0, 0.5, 1), shrink=0.7)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {"path_heatmap": path_heatmap}
"""What draws each figure of the path."""
