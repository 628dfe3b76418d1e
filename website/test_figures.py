"""The figures of the pages: drawn in both themes, to the same bytes, small, legible, and no word over another."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from website.figures import FIGURES, draw
from website.figures_theme import FAMILY, THEMES, svg, themed

SAMPLE = ("positions_table", "attention_causal", "gelu_forms", "clip_grad_norm")
"""Figures that are drawn twice: an image, squares with numbers, curves, arrows."""

LARGEST = 150_000
"""Bytes of a picture, at most."""


def words(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Give every word of a figure with its box, in the font that lays out the figure."""
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        box = text.get_window_extent()
        # ticks beyond the ends of an axis are there, but not drawn: their marks lie outside of its span
        if text.get_visible() and text.get_text() and box.overlaps(figure.bbox):
            yield text.get_text(), box


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_drawn_in_both_themes(name: str) -> None:
    """Two pictures of one figure differ, but not in their words, which are text and lie apart, within the figure."""
    pictures = {}
    for theme in THEMES:
        with themed(theme):
            figure = FIGURES[name]()
            pictures[theme] = svg(figure)
            boxes = dict(enumerate(words(figure)))
        for word, box in boxes.values():
            assert figure.bbox.padded(1).containsx(box.x0), word
            assert figure.bbox.padded(1).containsx(box.x1), word
            assert figure.bbox.padded(1).containsy(box.y0), word
            assert figure.bbox.padded(1).containsy(box.y1), word
        for (word, a), (other, b) in combinations(boxes.values(), 2):
            both = Bbox.intersection(a, b)
            assert both is None or min(both.width, both.height) < 1, f"{word!r} lies on {other!r}"

    assert pictures["light"] != pictures["dark"]
    written = {}
    for theme, picture in pictures.items():
        assert len(picture) < LARGEST
        texts = ElementTree.fromstring(picture).findall(".//{http://www.w3.org/2000/svg}text")
        assert all(FAMILY in text.get("style", "") for text in texts)
        written[theme] = ["".join(text.itertext()) for text in texts]
    assert written["light"] == written["dark"] != []


@pytest.mark.parametrize("name", SAMPLE)
def test_the_same_figure_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Drawn again, a figure is the same files to the bit."""
    runs = []
    for run in ("first", "second"):
        folder = tmp_path / run
        draw(name, folder)
        runs.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert runs[0] == runs[1]
    assert set(runs[0]) == {f"{name}-light.svg", f"{name}-dark.svg"}


@pytest.mark.parametrize("theme", THEMES)
def test_every_colour_stands_off_from_the_paper(theme: str) -> None:
    """Text, ticks and the colours of the cycle reach a contrast of 4.5 (WCAG 2.2, success criterion 1.4.3)."""
    rc = THEMES[theme]

    def luminance(colour: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    for colour in [rc["text.color"], rc["xtick.color"], *rc["axes.prop_cycle"].by_key()["color"]]:
        ratio = luminance(colour) / luminance(rc["figure.facecolor"])
        assert max(ratio, 1 / ratio) >= 4.5, colour
