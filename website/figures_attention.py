"""Figures of attention: who sees whom, and how strongly."""

import math
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from reference.numpy import attention_weights, causal_mask, softmax_vjp
from website.figures_theme import SMALL, cells, cycle, muted, new_figure, remark, scale_bar, sequential


def attention_causal() -> Figure:
    """Draw the weights of five tokens on each other, without a mask and with the causal one."""
    seq, d_k = 5, 8
    generator = np.random.default_rng(3)
    q, k = generator.standard_normal((2, seq, d_k))

    figure = new_figure(5.8, 3.1)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, causal in zip(panels, (False, True), strict=True):
        weights = attention_weights(q, k, causal=causal)
        allowed = causal_mask(seq) if causal else np.ones((seq, seq), bool)
        cells(axes, weights, sequential(), numbers=".2f", shown=allowed, hidden="0")
        axes.set(title="Causal mask" if causal else "No mask", xlabel="key")
    panels[0].set_ylabel("query")
    return figure


def causal_mask_figure() -> Figure:
    """Draw the mask for as many queries as keys, for fewer and for more."""
    figure = new_figure(5.8, 2.55)
    panels = figure.subplots(1, 3)
    for axes, (q_seq, k_seq) in zip(panels, ((5, 5), (3, 5), (5, 3)), strict=True):
        allowed = causal_mask(q_seq, k_seq)
        cells(axes, allowed.astype(float), sequential(), limits=(0, 1.6), shown=allowed, gap=0.08)
        axes.set(title=f"{q_seq} queries, {k_seq} keys", xlabel="key")
        axes.set(xlim=(-0.5, 4.5), ylim=(q_seq - 0.5, q_seq - 5.5))  # one size of cell, the last queries in one line
        blind = np.flatnonzero(~allowed.any(axis=1))
        if len(blind):
            axes.text(k_seq - 0.3, blind.mean(), "see\nnone", va="center", size=SMALL, color=muted())
    panels[0].set_ylabel("query")
    return figure


def attention_scale() -> Figure:
    """Draw what the scale 1 / sqrt(d_k) does to the weights and to the gradient of the scores, as d_k grows."""
    k_seq, n_queries = 16, 400
    generator = np.random.default_rng(0)
    widths = [2**e for e in range(11)]
    largest: dict[bool, list[float]] = {True: [], False: []}
    slope: dict[bool, list[float]] = {True: [], False: []}
    for d_k in widths:
        q, k = generator.standard_normal((n_queries, 1, d_k)), generator.standard_normal((n_queries, k_seq, d_k))
        cotangent = generator.standard_normal((n_queries, 1, k_seq))
        for scaled in (True, False):
            scale = 1 / math.sqrt(d_k) if scaled else 1.0
            scores = scale * q @ k.swapaxes(-1, -2)
            largest[scaled].append(float(attention_weights(q, k, scale=scale).max(axis=-1).mean()))
            (d_scores,) = softmax_vjp(cotangent, scores)
            slope[scaled].append(float(np.linalg.norm(d_scores, axis=-1).mean()))

    figure = new_figure(5.8, 3.0)
    left, right = figure.subplots(1, 2)
    for axes, numbers in ((left, largest), (right, slope)):
        for scaled, colour in ((True, cycle(0)), (False, cycle(1))):
            axes.plot(widths, numbers[scaled], "-o", color=colour, ms=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
        axes.minorticks_off()
        axes.set_xlabel("d_k")
    left.axhline(1 / k_seq, color=muted(), lw=1.0, ls=":")
    remark(left, 1, 1 / k_seq, "all equal: 1/16", muted(), dx=-2, dy=-12)
    left.set(title="Largest of 16 weights", ylim=(-0.06, 1.02), yticks=(0, 0.5, 1))
    right.set(title="Gradient of the scores", ylim=(0, 0.37), yticks=(0, 0.1, 0.2, 0.3))
    remark(left, 32, largest[False][5], "scores as\nthey are", cycle(1), dx=-8, dy=0, ha="right", size=10)
    remark(left, 1024, largest[True][-1], "divided by √d_k", cycle(0), dy=8, ha="right", size=10)
    remark(right, 1024, max(slope[True]), "divided by √d_k", cycle(0), dy=7, ha="right", size=10)
    remark(right, 64, slope[False][6], "as they are", cycle(1), dx=8, dy=6, size=10)
    return figure


def multi_head_weights() -> Figure:
    """Draw the weights of four heads on the same five tokens: each has its own pattern."""
    seq, d_model, n_heads = 5, 32, 4
    d_k = d_model // n_heads
    generator = np.random.default_rng(5)
    x = generator.standard_normal((seq, d_model))
    # twice the usual width of a projection that keeps the variance, so that the patterns are easy to see
    w_q, w_k = 1.4 * generator.standard_normal((2, d_model, d_model)) / math.sqrt(d_model)

    def heads(projected: np.ndarray) -> np.ndarray:
        return projected.reshape(seq, n_heads, d_k).swapaxes(0, 1)

    weights = attention_weights(heads(x @ w_q), heads(x @ w_k))
    figure = new_figure(6.0, 2.1)
    panels = figure.subplots(1, n_heads, sharey=True)
    for head, axes in enumerate(panels):
        shade = cells(axes, weights[head], sequential(), gap=0.08)
        axes.set(title=f"Head {head}", xlabel="key")
    panels[0].set_ylabel("query")
    scale_bar(figure, shade, panels, (0, 0.5, 1), shrink=0.7)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "attention_causal": attention_causal,
    "causal_mask": causal_mask_figure,
    "attention_scale": attention_scale,
    "multi_head_weights": multi_head_weights,
}
