"""How every figure looks, in light and in dark, and the few marks that several of them share."""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

SIZE = 11.0
"""Points of the text: on a page that shows a figure 350 pixels wide it is still some 9 pixels high."""

SMALL = 9.5
"""Points of numbers in cells and of remarks."""

FAMILY = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
"""What a reader's machine writes the text in."""

_MEASURED = "DejaVu Sans"
# The font that comes with matplotlib lays out the figure: the same everywhere, and wider than those of FAMILY, so that
# what does not overlap in it does not overlap at the reader's.


def _rc(*, paper: str, ink: str, muted: str, grid: str, cycle: Sequence[str]) -> dict[str, Any]:
    return {
        "figure.facecolor": paper,
        "axes.facecolor": paper,
        "savefig.transparent": True,  # the page shows through; paper is only what colours are mixed with
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "axes.edgecolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "grid.color": grid,
        "axes.prop_cycle": mpl.cycler(color=list(cycle)),
        "font.family": "sans-serif",
        "font.sans-serif": [_MEASURED],
        "font.size": SIZE,
        "axes.titlesize": SIZE,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 8.0,
        "axes.labelsize": SIZE,
        "xtick.labelsize": 10.0,
        "ytick.labelsize": 10.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.9,
        "axes.axisbelow": True,
        "lines.linewidth": 2.0,
        "lines.solid_capstyle": "round",
        "grid.linewidth": 0.8,
        "figure.constrained_layout.use": True,
        "svg.fonttype": "none",  # text stays text: light, selectable, and read aloud
        "svg.hashsalt": "transformer-spec",
    }


THEMES = {
    "light": _rc(
        paper="#ffffff",
        ink="#1f2328",
        muted="#57606a",
        grid="#dde2e8",
        cycle=("#0072b2", "#c75000", "#00805d", "#8a4b9c"),
    ),
    "dark": _rc(
        paper="#1e2129",
        ink="#e6e8ee",
        muted="#a3acb9",
        grid="#3a404d",
        cycle=("#56b4e9", "#f09a5b", "#4cc9a4", "#d3a4e0"),
    ),
}
"""Blue, vermilion, green and purple after Okabe and Ito, each with a contrast of at least 4.5 to the paper."""


@contextmanager
def themed(theme: str) -> Iterator[None]:
    """Draw in a theme, whatever the machine's own matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(THEMES[theme])
        yield


def svg(figure: Figure) -> bytes:
    """Write a figure so that the same picture gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue().decode("utf-8")
    text = text.replace(f"'{_MEASURED}', sans-serif", FAMILY)
    return "\n".join(line.rstrip() for line in text.splitlines()).encode("utf-8") + b"\n"


def new_figure(width: float = 5.6, height: float = 3.2) -> Figure:
    """Give an empty figure of this many inches."""
    return Figure(figsize=(width, height), layout="constrained")


def ink() -> str:
    """Give the colour of the theme's text."""
    return mpl.rcParams["text.color"]


def muted() -> str:
    """Give the colour of what stands back: axes, ticks, reference lines."""
    return mpl.rcParams["xtick.color"]


def paper() -> str:
    """Give the colour that the theme's page has."""
    return mpl.rcParams["figure.facecolor"]


def cycle(place: int) -> str:
    """Give the colour at a place of the theme's cycle."""
    colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    return colours[place % len(colours)]


def mix(first: str, second: str, share: float) -> str:
    """Give the colour that is `share` of the way from the first to the second."""
    a, b = np.array(to_rgb(first)), np.array(to_rgb(second))
    return to_hex((1 - share) * a + share * b)


def sequential() -> Colormap:
    """Give the map of weights: 0 is nearly the paper, 1 the strongest blue that both themes set off from it."""
    stops = [(0.0, mix(paper(), ink(), 0.06)), (0.6, cycle(0)), (1.0, mix(cycle(0), ink(), 0.6))]
    return LinearSegmentedColormap.from_list("sequential", stops)


def diverging() -> Colormap:
    """Give the map of signed numbers: 0 is nearly the paper, blue is positive, vermilion negative."""
    stops = [
        (0.0, mix(cycle(1), ink(), 0.45)),
        (0.2, cycle(1)),
        (0.5, mix(paper(), ink(), 0.04)),
        (0.8, cycle(0)),
        (1.0, mix(cycle(0), ink(), 0.45)),
    ]
    return LinearSegmentedColormap.from_list("diverging", stops)


def legible(background: Any) -> str:
    """Give the theme's ink or paper, whichever stands off better from a background."""

    def luminance(colour: Any) -> float:
        channels = np.array(to_rgb(colour))
        linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05

    def contrast(colour: str) -> float:
        ratio = luminance(colour) / luminance(background)
        return max(ratio, 1 / ratio)

    return max((ink(), paper()), key=contrast)


def cells(
    axes: Axes,
    values: np.ndarray,
    colours: Colormap,
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    numbers: str | None = None,
    shown: np.ndarray | None = None,
    hidden: str = "",
    at: tuple[int, int] = (0, 0),
    gap: float = 0.05,
) -> PolyCollection:
    """Draw a matrix as squares with room between them, row 0 on top.

    `numbers` is the format of those to write; a cell that is not `shown` is a frame around the word `hidden`. The first
    stands `at` a row and column of the axes.
    """
    rows, columns = values.shape
    shown = np.ones(values.shape, bool) if shown is None else shown
    half = 0.5 - gap / 2
    corners = np.array([(-half, -half), (half, -half), (half, half), (-half, half)])
    norm = Normalize(*limits)
    filled = [(row, column) for row in range(rows) for column in range(columns) if shown[row, column]]
    squares = PolyCollection(
        [corners + np.array([column + at[1], row + at[0]]) for row, column in filled],
        array=np.array([values[place] for place in filled]),
        cmap=colours,
        norm=norm,
        edgecolors="none",
    )
    axes.add_collection(squares)
    for row in range(rows):
        for column in range(columns):
            if not shown[row, column]:
                axes.add_patch(_frame(at[0] + row, at[1] + column, half))
                axes.text(
                    at[1] + column, at[0] + row, hidden, ha="center", va="center_baseline", size=SMALL, color=muted()
                )
            elif numbers is not None:
                value = values[row, column]
                colour = legible(colours(norm(value)))
                axes.text(
                    at[1] + column,
                    at[0] + row,
                    format(value, numbers),
                    ha="center",
                    va="center_baseline",
                    size=SMALL,
                    color=colour,
                )
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), aspect="equal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks(range(columns))
    axes.set_yticks(range(rows))
    return squares


def _frame(row: int, column: int, half: float) -> Rectangle:
    colour = mpl.rcParams["grid.color"]
    return Rectangle((column - half, row - half), 2 * half, 2 * half, fill=False, edgecolor=colour, linewidth=1.0)


def scale_bar(figure: Figure, mappable: Any, axes: Any, ticks: Iterable[float], **options: Any) -> Any:
    """Put a bar beside the axes that says which colour is which number."""
    bar = figure.colorbar(mappable, ax=axes, ticks=list(ticks), **options)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    return bar


def plain_powers(axis: Any, exponents: Iterable[int]) -> None:
    """Label a logarithmic axis as one types numbers: 1e-3."""
    exponents = list(exponents)
    axis.set_ticks([10.0**e for e in exponents], [f"1e{e}" if e else "1" for e in exponents])
    axis.set_minor_locator(NullLocator())


def remark(axes: Axes, x: float, y: float, text: str, colour: str | None = None, **options: Any) -> Any:
    """Write a word at a place of the data, offset by `dx` and `dy` points."""
    dx, dy = options.pop("dx", 0), options.pop("dy", 0)
    return axes.annotate(
        text,
        (x, y),
        xytext=(dx, dy),
        textcoords="offset points",
        color=colour or ink(),
        size=options.pop("size", SMALL),
        annotation_clip=False,
        **options,
    )
