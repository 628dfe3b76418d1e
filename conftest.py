"""Runs the code of the pages: ```python blocks, and ```pycon blocks as doctests, a namespace for each page."""

import doctest
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

try:
    from sybil import Document, Region, Sybil
    from sybil.evaluators.doctest import DocTestEvaluator
    from sybil.parsers.markdown import PythonCodeBlockParser
except ModuleNotFoundError:  # installed without what its developers need
    Sybil = None

ROOT = Path(__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CONSOLE = re.compile(r"^( *)```pycon\n(.*?)^\1``` *$", re.MULTILINE | re.DOTALL)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Make a test of each page in docs/en; those in docs/zh have the same blocks, which a test of their own says."""
    is_page = file_path.suffix == ".md" and (file_path.is_relative_to(ROOT / "docs" / "en") or file_path.parent == ROOT)
    return PageFile.from_parent(parent, path=file_path) if is_page and Sybil is not None else None


class PageFile(pytest.File):
    """A page: one test, for its blocks build on each other and must not be spread over processes."""

    def collect(self) -> Iterator[pytest.Item]:
        """Give the test, if the page has anything to run."""
        sybil = Sybil(parsers=[PythonCodeBlockParser(), _console_blocks], path=str(self.path.parent))
        document = sybil.parse(self.path)
        if examples := list(document.examples()):
            yield PageItem.from_parent(self, name="runs", examples=examples)


class PageItem(pytest.Item):
    """All blocks of a page, from top to bottom."""

    def __init__(self, *, examples: list, **given: object) -> None:
        super().__init__(**given)
        self.examples = examples

    def runtest(self) -> None:
        """Run them in turn; the first that fails says where."""
        for example in self.examples:
            example.evaluate()


def _console_blocks(document: "Document") -> "Iterator[Region]":
    """Find the examples of interactive blocks."""
    for block in CONSOLE.finditer(document.text):
        text = textwrap.dedent(block[2])
        before = document.text[: block.start(2)].count("\n")
        starts = [0, *(m.end() for m in re.finditer("\n", document.text))]
        for example in doctest.DocTestParser().get_examples(text, document.path):
            example.lineno += before  # reported at its own line
            start = starts[example.lineno]
            yield Region(start, start + 1, example, DocTestEvaluator(FLAGS))
