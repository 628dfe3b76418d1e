"""Figures of what stands before the first block and after the last: ids, positions, scores, the next token."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reference.numpy import (
    cross_entropy,
    next_token_distribution,
    sinusoidal_positions,
    token_embedding,
)
from reference.parameters import tutorial_000_params
from website.figures_theme import (
    SIZE,
    cells,
    cycle,
    diverging,
    ink,
    muted,
    new_figure,
    remark,
    scale_bar,
)


def embedding_lookup() -> Figure:
    """Draw how the ids 3 8 2 6 pick their rows of the table, in their order."""
    ids = np.array([3, 8, 2, 6])
    table = tutorial_000_params()["token_embedding"]["table"]
    rows = token_embedding(ids, table)
    limits = (-2.0, 2.0)

    first, right = 3, 13  # where the looked-up rows stand: beside the middle of the table
    figure = new_figure(5.8, 2.9)
    axes = figure.subplots()
    cells(axes, rows, diverging(), limits=limits, at=(first, right))
    shade = cells(axes, table, diverging(), limits=limits)
    axes.set(xlim=(-0.5, right + 7.5), ylabel="token id", xticks=[])
    for column, words in ((-0.5, "Table"), (right - 0.5, "Embedding of 3 8 2 6")):
        remark(axes, column, -0.5 if column < 0 else first - 0.5, words, dy=8, size=SIZE, weight="bold")
    for place, token in enumerate(ids):
        row = first + place
        for top, left in ((token, 0), (row, right)):
            axes.add_patch(Rectangle((left - 0.5, top - 0.5), 8, 1, fill=False, edgecolor=ink(), lw=1.6, clip_on=False))
        axes.get_yticklabels()[token].set(color=ink(), fontweight="bold")
        axes.annotate(
            "",
            (right - 0.6, row),
            (7.7, token),
            arrowprops={"arrowstyle": "-|>", "color": ink(), "lw": 1.1, "shrinkA": 0, "shrinkB": 0},
        )
    scale_bar(figure, shade, axes, (-2, 0, 2), shrink=0.6)
    return figure


def positions_table() -> Figure:
    """Draw the sinusoidal table of 64 positions and 64 channels."""
    figure = new_figure(5.0, 3.9)
    axes = figure.subplots()
    image = axes.imshow(sinusoidal_positions(64, 64), cmap=diverging(), vmin=-1, vmax=1, interpolation="none")
    axes.set(title="Sinusoidal positions", xlabel="channel", ylabel="position")
    axes.set(xticks=range(0, 64, 16), yticks=range(0, 64, 16))
    scale_bar(figure, image, axes, (-1, 0, 1))
    return figure


def positions_frequencies() -> Figure:
    """Draw four channels of the table over the positions, each with the length of its wave."""
    d_model, seq = 64, 64
    table = sinusoidal_positions(seq, d_model)
    channels = (0, 8, 16, 24)

    figure = new_figure(5.6, 3.9)
    strips = figure.subplots(len(channels), 1, sharex=True)
    for place, (axes, channel) in enumerate(zip(strips, channels, strict=True)):
        wavelength = 2 * np.pi * 10000 ** (channel / d_model)
        axes.axhline(0, color=muted(), lw=0.7)
        axes.plot(table[:, channel], "-o", color=cycle(place), lw=1.0, ms=2.8)
        axes.set_title(
            f"channel {channel}: a wave in {wavelength:.3g} positions", color=cycle(place), pad=4, weight="normal"
        )
        axes.set(yticks=(-1, 0, 1), ylim=(-1.15, 1.15), xlim=(-0.5, seq - 0.5))
        axes.spines["bottom"].set_visible(axes is strips[-1])
        axes.tick_params(axis="x", length=3.5 if axes is strips[-1] else 0)
    strips[-1].set(xlabel="position", xticks=range(0, seq + 1, 8))
    return figure


def softmax_temperature() -> Figure:
    """Draw the same eight scores turned into probabilities at three temperatures."""
    logits = np.arange(2.0, -2.0, -0.5)
    figure = new_figure(5.8, 2.7)
    panels = figure.subplots(1, 3, sharey=True)
    for place, (axes, temperature) in enumerate(zip(panels, (0.5, 1.0, 2.0), strict=True)):
        p = next_token_distribution(logits, temperature=temperature)
        axes.bar(range(len(p)), p, color=cycle(place), width=0.8)
        remark(axes, 0, p[0], f"{p[0]:.2f}", cycle(place), dy=3, ha="center", weight="bold")
        axes.set_xlim(-1, len(p) - 0.5)
        axes.set_title(f"Temperature {temperature:g}")
        axes.set_xticks(
            range(len(p)), [f"{logit:g}".replace("-", "−") if i % 2 == 0 else "" for i, logit in enumerate(logits)]
        )
        axes.tick_params(axis="x", length=0)
    panels[0].set(ylabel="probability", ylim=(0, 0.75), yticks=(0, 0.2, 0.4, 0.6))
    panels[1].set_xlabel("score of the token")
    return figure


def top_k_top_p() -> Figure:
    """Draw which tokens top-k and top-p keep, of a flat and of a peaked distribution."""
    ranks = np.arange(12)
    # probabilities that fall by one factor from rank to rank, slowly and fast
    distributions = {"flat": -0.12 * ranks, "peaked": -0.9 * ranks}
    cuts = {"top_k = 4": {"top_k": 4}, "top_p = 0.8": {"top_p": 0.8}}

    figure = new_figure(5.8, 3.9)
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    for row, (shape, logits) in enumerate(distributions.items()):
        before = next_token_distribution(logits)
        for place, (axes, (title, options)) in enumerate(zip(grid[row], cuts.items(), strict=True)):
            after = next_token_distribution(logits, **options)
            kept = after > 0
            axes.bar(ranks, after, color=cycle(place), width=0.8)
            axes.bar(ranks, before, width=0.8, fill=False, edgecolor=ink(), lw=0.9)
            words = f"keeps {kept.sum()} tokens,\n{before[kept].sum():.2f} of the mass"
            axes.text(0.98, 0.95, words, transform=axes.transAxes, ha="right", va="top", color=cycle(place))
            axes.set_title(title if row == 0 else "")
            axes.set_xlabel("rank" if row == 1 else "")
            axes.set_xticks(ranks[::2], ranks[::2] + 1)
            axes.tick_params(axis="x", length=0)
        grid[row, 0].set_ylabel(f"{shape}\nprobability")
    remark(grid[0, 0], 4.0, 0.09, "outline: before the cut", muted(), dy=9)
    grid[0, 0].set(ylim=(0, 0.42), yticks=(0, 0.2, 0.4))
    grid[1, 0].set(ylim=(0, 0.84), yticks=(0, 0.4, 0.8))
    return figure


def cross_entropy_curve() -> Figure:
    """Draw the loss over the probability of the target, with and without smoothed labels."""
    vocab = 10
    p = (1 - np.cos(np.linspace(0.1, 0.986 * np.pi, 160))) / 2  # closer where the curves bend
    rest = (1 - p) / (vocab - 1)  # the others share what the target leaves
    logits = np.log(np.column_stack([p, *[rest] * (vocab - 1)]))

    def losses(smoothing: float) -> np.ndarray:
        return np.array([float(cross_entropy(row, np.array(0), label_smoothing=smoothing)) for row in logits])

    figure = new_figure(5.6, 3.4)
    axes = figure.subplots()
    for place, smoothing in enumerate((0.0, 0.1, 0.2)):
        loss = losses(smoothing)
        axes.plot(p, loss, color=cycle(place))
        if smoothing:
            lowest = loss.argmin()
            axes.plot(p[lowest], loss[lowest], "o", color=cycle(place), ms=6)
        words = f"smoothing {smoothing:g}" if smoothing else "no smoothing"
        remark(axes, p[-1], loss[-1], words, cycle(place), dx=6, va="center", size=10)
    guess = float(cross_entropy(np.zeros(vocab), np.array(0)))
    axes.plot(1 / vocab, guess, "s", color=muted(), ms=6)
    remark(axes, 1 / vocab, guess, "a guess: log 10", muted(), dx=8, dy=4)
    axes.set(title="Cross-entropy of 10 classes", xlabel="probability given to the target", ylabel="loss (nats)")
    axes.set(xlim=(0, 1), ylim=(0, 5))
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function
    for function in (
        embedding_lookup,
        positions_table,
        positions_frequencies,
        softmax_temperature,
        top_k_top_p,
        cross_entropy_curve,
    )
}
