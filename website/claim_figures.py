"""Figures of the page of claims, from the measurements that `python -m benchmarks.claims --write` keeps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from website.figures_theme import SIZE, cycle, new_figure, remark

MEASURED = Path(__file__).parents[1] / "benchmarks" / "claims.json"
LABELLED = (16, 64, 256, 1024, 4096)
BOLD: dict[str, Any] = {"size": SIZE, "weight": "bold"}


def _columns(part: str) -> dict[str, list[float]]:
    rows: list[dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8"))[part]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _over_tokens(axes: Axes) -> None:
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_xticks(LABELLED, [f"{seq:,}" for seq in LABELLED])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")


def _powers(axes: Axes, first: int, last: int) -> None:
    powers = [10.0**exponent for exponent in range(first, last + 1)]
    axes.set_yticks(powers, [f"{power:,g}" for power in powers])
    axes.yaxis.set_minor_locator(NullLocator())


def claims_serial() -> Figure:
    """Draw what waits for what in a recurrent layer and in attention, and the time that both take on one thread."""
    measured = _columns("serial")
    seq = measured["seq"]
    figure = new_figure(6.6, 3.3)
    left, right = figure.subplots(1, 2)
    left.plot(seq, measured["rnn_chain"], "o-", color=cycle(1), ms=4)
    left.plot(seq, measured["attention_chain"], "s-", color=cycle(0), ms=4)
    left.set_title("Operations in a row")
    _over_tokens(left)
    _powers(left, 0, 4)
    left.set_ylim(1, 5e4)
    remark(left, seq[4], measured["rnn_chain"][4], "RNN", cycle(1), dx=-8, dy=10, ha="right", **BOLD)
    remark(
        left, seq[4], measured["attention_chain"][4], "attention", cycle(0), dy=9, ha="center", size=SIZE, weight="bold"
    )

    right.plot(seq, measured["rnn_ms"], "o-", color=cycle(1), ms=4)
    right.plot(seq, measured["attention_ms"], "s-", color=cycle(0), ms=4)
    right.set_title("Time on one thread, ms")
    _over_tokens(right)
    _powers(right, -1, 2)
    right.set_ylim(0.04, 400)
    remark(right, seq[2], measured["rnn_ms"][2], "RNN", cycle(1), dx=-6, dy=8, ha="right", **BOLD)
    remark(right, seq[2], measured["attention_ms"][2], "attention", cycle(0), dx=10, dy=-8, **BOLD)
    return figure


def claims_memory() -> Figure:
    """Draw what layers of each kind keep for the gradient, against the length of the sequence."""
    measured = _columns("memory")
    seq = measured["seq"]
    kinds = {"textbook": ("attention, textbook", "s-"), "rnn": ("RNN", "o-"),
             "fused": ("attention, fused", "D-"), "lstm": ("LSTM", "^-")}  # fmt: skip
    figure = new_figure(6.2, 3.7)
    axes = figure.subplots()
    for place, (kind, (label, style)) in enumerate(kinds.items()):
        mebibytes = [count / 2**20 for count in measured[kind]]
        axes.plot(seq, mebibytes, style, color=cycle(place), ms=4)
        lift = {"textbook": 5, "lstm": -5}.get(kind, 0)
        remark(axes, seq[-1], mebibytes[-1], label, cycle(place), dx=8, dy=lift, va="center", **BOLD)
    axes.set_title("Kept for the gradient, MiB")
    _over_tokens(axes)
    _powers(axes, 0, 2)
    axes.set(ylim=(0.4, 150), xlim=(13, 5000))
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {"claims_serial": claims_serial, "claims_memory": claims_memory}
