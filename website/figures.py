"""The figures of the pages, each drawn by the reference itself, in light and in dark: python -m website.figures."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from website import figures_attention, figures_parts, figures_text, figures_training
from website.figures_theme import THEMES, svg, themed

FIGURES: dict[str, Callable[[], Figure]] = {
    **figures_text.FIGURES,
    **figures_attention.FIGURES,
    **figures_parts.FIGURES,
    **figures_training.FIGURES,
}
"""What draws each figure. A function takes every colour from matplotlib's rcParams, so that it draws both themes."""


def draw(name: str, folder: Path, functions: Mapping[str, Callable[[], Figure]] = FIGURES) -> None:
    """Write `NAME-light.svg` and `NAME-dark.svg`, the same bytes whenever the numbers are the same."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        with themed(theme):
            (folder / f"{name}-{theme}.svg").write_bytes(svg(functions[name]()))


def main() -> None:
    """Draw the figures that are asked for, or all of them."""
    parser = argparse.ArgumentParser(description="Draw the figures of the pages.")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all unless given: {', '.join(FIGURES)}")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(FIGURES)):
        parser.error(f"no figure is called {', '.join(unknown)}")
    for name in arguments.names or FIGURES:
        draw(name, arguments.folder)


if __name__ == "__main__":
    main()
