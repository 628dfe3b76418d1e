"""Figures of learning: the rate, the gradient, the step, and whole runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import reference.torch as production
from reference.config import TINY
from reference.data import datasets
from reference.numpy import adamw_step, clip_grad_norm, training, warmup_cosine
from reference.parameters import init_params
from reference.recipe import Recipe
from reference.torch import training as production_training
from website.figures_theme import SIZE, cycle, ink, muted, new_figure, remark


def warmup_cosine_figure() -> Figure:
    """Draw the learning rate of each step: up in a line, down along a cosine, then flat."""
    warmup, total, max_lr, min_lr = 100, 1000, 3e-4, 3e-5
    steps = np.arange(1151)
    rates = [float(warmup_cosine(int(t), warmup=warmup, total=total, max_lr=max_lr, min_lr=min_lr)) for t in steps]

    figure = new_figure(5.6, 3.1)
    axes = figure.subplots()
    for place in (warmup - 1, total - 1):
        axes.axvline(place, color=muted(), lw=0.9, ls=":")
    axes.plot(steps, rates)
    axes.set(title="Linear warm-up, then a cosine", xlabel="step", ylabel="learning rate")
    axes.set(xlim=(0, steps[-1]), ylim=(0, 3.4e-4), xticks=range(0, 1001, 200))
    axes.set_yticks([0, min_lr, max_lr], ["0", "min_lr", "max_lr"])
    remark(axes, warmup - 1, 1e-5, "warmup", muted(), dx=5, size=10)
    remark(axes, total - 1, 1e-5, "total", muted(), dx=-5, ha="right", size=10)
    return figure


def clip_grad_norm_figure() -> Figure:
    """Draw ten gradients of two numbers each, before and after: the long ones are shortened, none is turned."""
    max_norm = 1.0
    generator = np.random.default_rng(4)
    angles = np.linspace(0, 2 * np.pi, 10, endpoint=False) + 0.2
    lengths = generator.uniform(0.3, 2.0, 10)
    before = np.column_stack([lengths * np.cos(angles), lengths * np.sin(angles)])
    clipped = [clip_grad_norm({"w": gradient}, max_norm=max_norm) for gradient in before]
    after = np.array([gradient["w"] for gradient, _ in clipped])

    figure = new_figure(5.8, 3.1)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    left.add_patch(Circle((0, 0), max_norm, fill=False, edgecolor=cycle(0), lw=1.0, ls=":"))
    for vectors, colour, width in ((before, cycle(1), 1.1), (after, cycle(0), 2.2)):
        for x, y in vectors:
            left.annotate(
                "",
                (x, y),
                (0, 0),
                arrowprops={"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0},
            )
    left.set(title="Ten gradients", xlim=(-2.1, 2.1), ylim=(-2.1, 2.1), aspect="equal", xticks=[], yticks=[])
    left.spines[:].set_visible(False)

    norms = np.linspace(0.01, 2.2, 220)
    new_norms = [float(np.linalg.norm(clip_grad_norm({"w": np.array([n])}, max_norm=max_norm)[0]["w"])) for n in norms]
    right.plot(norms, norms, color=cycle(1), lw=1.1)
    right.plot(norms, new_norms, color=cycle(0))
    right.plot([float(norm) for _, norm in clipped], np.linalg.norm(after, axis=-1), "o", color=cycle(0), ms=5)
    remark(right, 1.7, 1.7, "before", cycle(1), dx=-6, dy=4, ha="right", size=SIZE)
    remark(right, 2.0, 1.0, "after", cycle(0), dy=-16, ha="center", size=SIZE)
    remark(left, 0, -max_norm, "max_norm 1", cycle(0), dy=-30, ha="center", size=10)
    right.set(title="Their norms", xlabel="norm before", ylabel="norm after")
    right.set(xlim=(0, 2.2), ylim=(0, 2.2), xticks=(0, 1, 2), yticks=(0, 1, 2))
    return figure


def adamw_path() -> Figure:
    """Draw plain gradient steps and AdamW, without and with decay, in a valley that is 25 times steeper across."""
    curvature, lowest, start = np.array([1.0, 25.0]), np.array([2.0, 1.0]), np.array([-1.5, 2.2])
    n_steps = 120

    def gradient(theta: np.ndarray) -> np.ndarray:
        return curvature * (theta - lowest)

    plain = [start]
    for _ in range(n_steps):
        plain.append(plain[-1] - 0.075 * gradient(plain[-1]))

    def adamw(weight_decay: float) -> np.ndarray:
        theta, m, v = start, np.zeros(2), np.zeros(2)
        path = [theta]
        for step in range(1, n_steps + 1):
            theta, m, v = adamw_step(theta, gradient(theta), m, v, step=step, lr=0.1, weight_decay=weight_decay)
            path.append(theta)
        return np.array(path)

    figure = new_figure(5.8, 3.6)
    axes = figure.subplots()
    x, y = np.meshgrid(np.linspace(-2, 3.4, 120), np.linspace(-0.6, 2.6, 100))
    loss = 0.5 * (curvature[0] * (x - lowest[0]) ** 2 + curvature[1] * (y - lowest[1]) ** 2)
    axes.contour(x, y, loss, levels=[0.25, 1, 3, 7, 14, 24], colors=muted(), linewidths=0.6, alpha=0.6)
    for place, (words, path) in enumerate(
        {"gradient steps": np.array(plain), "AdamW": adamw(0.0), "AdamW, weight_decay 0.3": adamw(0.3)}.items()
    ):
        axes.plot(path[:, 0], path[:, 1], "-o", color=cycle((1, 0, 2)[place]), lw=1.3, ms=2.5, label=words)
        axes.plot(*path[-1], "o", color=cycle((1, 0, 2)[place]), ms=7)
    axes.plot(*lowest, "+", color=ink(), ms=11, mew=1.6)
    axes.plot(0, 0, "x", color=ink(), ms=8, mew=1.6)
    remark(axes, *lowest, "lowest loss", dx=8, dy=-18)
    remark(axes, 0, 0, "0, where decay pulls", dx=8, dy=-4)
    axes.legend(edgecolor="none", framealpha=1, labelcolor="linecolor", loc="upper right")
    axes.set(title="Two parameters, one valley", xlabel="first parameter", ylabel="second parameter")
    axes.set(xlim=(-2, 3.4), ylim=(-0.4, 2.5))
    return figure


@cache
def _losses(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Train a small model twice, from the same parameters on the same batches; give both twins' losses."""
    config = replace(TINY, vocab=256, causal=True)
    recipe = Recipe(steps=60, batch=32, seq=16, lr=2e-2, min_lr=2e-3, warmup=6)
    data, _ = datasets("builtin", seq=recipe.seq, batch_size=recipe.batch, seed=recipe.seed)
    params = init_params(config, seed=0, dtype=dtype)
    model = production.Transformer(config).to(getattr(torch, dtype))
    production.load_params(model, params)

    meaning: list[float] = []
    training.train(params, config, data.batch, recipe, on_step=lambda step, _: meaning.append(step.loss))
    shipped: list[float] = []
    production_training.train(model, data.batch, recipe, on_step=lambda step, _: shipped.append(step.loss))
    return np.array(meaning), np.array(shipped)


def loss_curves() -> Figure:
    """Draw both twins' losses of one run, and how far they lie apart, on a logarithmic axis that ends with 0."""
    figure = new_figure(5.6, 3.9)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1.4, 1))
    meaning, shipped = _losses("float64")
    steps = np.arange(1, len(meaning) + 1)
    top.plot(steps, meaning, color=cycle(0))
    top.plot(steps, shipped, "o", color=cycle(1), ms=3.2)
    for place, dtype in ((3, "float32"), (2, "float64")):
        meaning, shipped = _losses(dtype)
        bottom.plot(steps, np.abs(meaning - shipped), ".", color=cycle(place), ms=4)
        remark(bottom, len(steps), np.abs(meaning - shipped).max(), dtype, cycle(place), dx=4, va="center", size=10)
    bottom.set_yscale("symlog", linthresh=1e-17)
    bottom.set_yticks([0, 1e-15, 1e-10, 1e-5], ["0", "1e-15", "1e-10", "1e-5"])
    bottom.minorticks_off()
    remark(top, 15, meaning[14], "line: NumPy", cycle(0), dx=2, dy=42, size=SIZE, weight="bold")
    remark(top, 15, meaning[14], "points: PyTorch", cycle(1), dx=2, dy=26, size=SIZE, weight="bold")
    top.set(title="One run, trained twice", ylabel="loss (nats)")
    bottom.set(xlabel="step", ylabel="difference", ylim=(-5e-18, 1e-4), xlim=(0, len(steps)))
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "warmup_cosine": warmup_cosine_figure,
    "clip_grad_norm": clip_grad_norm_figure,
    "adamw_path": adamw_path,
    "loss_curves": loss_curves,
}
