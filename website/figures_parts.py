"""Figures of what each token computes by itself: norms, activations, dropout, the residual stream."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from reference.config import VARIANTS, ModelConfig
from reference.numpy import dropout, gelu, gelu_vjp, layer_norm, relu, relu_vjp, transformer_block
from reference.parameters import init_params, map_tree
from website.figures_theme import SIZE, cycle, ink, muted, new_figure, plain_powers, remark


def layer_norm_before_after() -> Figure:
    """Draw eight rows of their own mean and spread; after the norm each has mean 0 and variance 1."""
    n_rows, d_model = 8, 48
    generator = np.random.default_rng(1)
    means, spreads = generator.uniform(-3, 3, (n_rows, 1)), generator.uniform(0.1, 1.6, (n_rows, 1))
    x = means + spreads * generator.standard_normal((n_rows, d_model))

    figure = new_figure(5.8, 3.3)
    panels = figure.subplots(1, 2, sharey=True)
    for place, (axes, rows, title) in enumerate(
        zip(panels, (x, layer_norm(x, None, None)), ("Before", "After"), strict=True)
    ):
        for row, numbers in enumerate(rows):
            strokes = np.repeat(numbers, 3), np.tile([row - 0.25, row + 0.25, np.nan], d_model)
            axes.plot(*strokes, color=cycle(place), lw=0.9, alpha=0.5, solid_capstyle="butt")
            mean, spread = numbers.mean(), numbers.std()
            axes.plot([mean - spread, mean + spread], [row, row], color=ink(), lw=2.2)
            axes.plot(mean, row, "o", color=ink(), ms=4.5)
        axes.set(title=title, xlim=(-6, 6), xticks=(-4, -2, 0, 2, 4), xlabel="value")
        axes.grid(axis="x")
    remark(panels[0], x[4].max(), 4, "mean ± deviation", dx=6, va="center")
    panels[0].set(ylabel="token", yticks=range(n_rows), ylim=(n_rows - 0.5, -0.5))
    return figure


def layer_norm_variants() -> Figure:
    """Draw how far each variant spreads a row that is nearly constant."""
    d_model, eps = 8, 1e-5
    z = np.random.default_rng(0).standard_normal(d_model)
    z = (z - z.mean()) / z.std()
    spreads = np.logspace(-8, 1, 181)
    rows = 1 + spreads[:, None] * z

    figure = new_figure(5.8, 3.5)
    axes = figure.subplots()
    for place, variant in enumerate(VARIANTS):
        y = layer_norm(rows, None, None, eps=eps, variant=variant)
        axes.plot(spreads, y.std(axis=-1), color=cycle(place), ls=("-", "-", (0, (4, 2)))[place])
    axes.set_xscale("log")
    plain_powers(axes.xaxis, range(-8, 2))
    axes.set(title="Three norms on a nearly constant row", ylim=(0, 1.1), xlim=(1e-8, 10), yticks=(0, 0.5, 1))
    axes.set(xlabel="deviation σ of the row", ylabel="deviation of the result")
    remark(axes, 5e-5, 0.84, "(x − μ) / (σ + eps)", cycle(1), dx=-8, ha="right", size=SIZE)
    remark(axes, 2e-2, 0.83, "(x − μ) / (s + eps)", cycle(2), size=SIZE)
    remark(axes, 3.2e-3, 0.5, "(x − μ) / √(σ² + eps)", cycle(0), dx=14, dy=-28, size=SIZE)
    return figure


def gelu_forms() -> Figure:
    """Draw GELU with erf and with tanh, and their difference."""
    x = np.linspace(-5, 5, 501)
    exact, tanh = gelu(x), gelu(x, approximate="tanh")

    figure = new_figure(5.6, 3.9)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
    top.plot(x, exact, color=cycle(0))
    top.plot(x[::20], tanh[::20], "o", color=cycle(1), ms=4)
    bottom.axhline(0, color=muted(), lw=0.8)
    bottom.plot(x, tanh - exact, color=cycle(2))
    remark(top, 2.0, 2.0, "line: erf", cycle(0), dx=-10, dy=8, ha="right", size=SIZE, weight="bold")
    remark(top, 4.9, 1.4, "points: tanh", cycle(1), ha="right", size=SIZE, weight="bold")
    top.set(ylabel="gelu(x)", title="Two forms of GELU", yticks=(0, 2, 4))
    bottom.set(xlabel="x", xlim=(-5, 5), xticks=(-4, -2, 0, 2, 4), ylim=(-5.5e-4, 5.5e-4))
    bottom.set_yticks([-4e-4, 0, 4e-4], ["-4e-4", "0", "4e-4"])
    bottom.set_title("tanh form minus erf form", color=cycle(2))
    return figure


def relu_gelu() -> Figure:
    """Draw both activations and their derivatives."""
    x = np.linspace(-3, 3, 601)
    figure = new_figure(5.8, 3.0)
    left, right = figure.subplots(1, 2)
    left.plot(x, relu(x), color=cycle(1))
    left.plot(x, gelu(x), color=cycle(0))
    ones = np.ones_like(x)
    slope = relu_vjp(ones, x)[0]
    for side in (x <= 0, x > 0):
        right.plot(x[side], slope[side], color=cycle(1))
    right.plot(x, gelu_vjp(ones, x)[0], color=cycle(0))
    right.plot(0, slope[x == 0], "o", color=cycle(1), ms=5)
    remark(left, 1.6, 1.6, "relu", cycle(1), dx=-8, dy=6, ha="right", size=SIZE, weight="bold")
    remark(left, 2.0, 2.0, "gelu", cycle(0), dx=4, dy=-16, size=SIZE, weight="bold")
    remark(right, 0, 0.85, "relu", cycle(1), dx=-8, ha="right", size=SIZE, weight="bold")
    remark(right, 0.5, 0.75, "gelu", cycle(0), dx=8, dy=-8, size=SIZE, weight="bold")
    left.set(title="Function", xlabel="x", xticks=range(-3, 4), yticks=range(4))
    right.set(title="Derivative", xlabel="x", xticks=range(-3, 4), yticks=(0, 0.5, 1))
    for axes in (left, right):
        axes.grid()
    return figure


def dropout_expectation() -> Figure:
    """Draw the mean of a number that is dropped again and again: it stays what it was."""
    n = 10_000
    generator = np.random.default_rng(0)
    uniform = generator.random(n)
    figure = new_figure(5.6, 3.2)
    axes = figure.subplots()
    counts = np.arange(1, n + 1)
    shown = np.unique(np.logspace(0, 4, 250).astype(int)) - 1
    for place, rate in enumerate((0.1, 0.5, 0.9)):
        means = np.cumsum(dropout(np.ones(n), uniform >= rate, rate=rate)) / counts
        axes.plot(counts[shown], means[shown], color=cycle(place), lw=1.6)
        at, dx, dy, ha = ((14, 0, -18, "left"), (1, 14, -4, "left"), (130, 0, 6, "left"))[place]
        remark(axes, at, means[at - 1], f"rate {rate}", cycle(place), dx=dx, dy=dy, ha=ha, size=SIZE)
    axes.axhline(1, color=muted(), lw=1, ls=":")
    axes.set_xscale("log")
    axes.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    axes.set(xlim=(0.9, n), ylim=(-0.05, 2.1), yticks=(0, 0.5, 1, 1.5, 2))
    axes.set(title="Dropout keeps the expectation", xlabel="draws", ylabel="mean of dropout(1)")
    return figure


def block_pre_post() -> Figure:
    """Draw the size of the residual stream over 32 blocks, with the norm before each part and after each sum."""
    n_layers, d_model = 32, 64
    x = np.random.default_rng(0).standard_normal((8, d_model))

    def sizes(placement: Literal["pre", "post"], residual: float) -> list[float]:
        config = ModelConfig(
            vocab=2, d_model=d_model, n_heads=4, n_layers=n_layers, d_ff=4 * d_model, max_len=8,
            norm_placement=placement,
        )  # fmt: skip
        stream, found = x, [_root_mean_square(x)]
        for block in init_params(config, seed=0)["blocks"]:
            # weights that keep the variance, as 0.02 does in a wide model, but for the two that write into the stream
            block = map_tree(lambda w: w if w.ndim < 2 else w / w.std() / np.sqrt(len(w)), block)
            block["attention"]["w_o"] *= residual
            block["mlp"]["w_2"] *= residual
            stream = transformer_block(stream, block, config)
            found.append(_root_mean_square(stream))
        return found

    figure = new_figure(5.6, 3.2)
    axes = figure.subplots()
    lines = {
        "pre-norm": ("pre", 1.0, 24, 8),
        "pre-norm, w_o and w_2 smaller by √(2 n_layers)": ("pre", 1 / np.sqrt(2 * n_layers), 32, 9),
        "post-norm": ("post", 1.0, 32, -16),
    }
    for place, (words, (placement, residual, at, dy)) in enumerate(lines.items()):
        found = sizes(placement, residual)
        axes.plot(found, color=cycle(place))
        remark(axes, at, found[at], words, cycle(place), dy=dy, ha="right", size=10)
    axes.set(title="Size of the residual stream", xlabel="block", ylabel="root mean square")
    axes.set(ylim=(0, 8), xlim=(0, n_layers), xticks=range(0, n_layers + 1, 8), yticks=range(0, 9, 2))
    return figure


def _root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt((x**2).mean()))


FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__: function
    for function in (
        layer_norm_before_after,
        layer_norm_variants,
        gelu_forms,
        relu_gelu,
        dropout_expectation,
        block_pre_post,
    )
}
