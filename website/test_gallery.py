"""The recorded reports are what the tool says, and all that the pages show is there."""

import html
import re

import pytest

from website import gallery
from website.sources import ROOT

PAGES = sorted((ROOT / "docs").glob("*/**/*.md"))


def lines_of(fragment):
    """Give the lines that a browser shows of a fragment."""
    return html.unescape(re.sub(r"<[^>]+>", "", fragment)).splitlines()


def test_every_report_that_a_page_shows_is_recorded():
    """What stands behind `{{ report NAME }}` has its files, and every recorded report is shown in both languages."""
    for language in ("en", "zh"):
        shown = {
            name
            for page in PAGES
            if page.is_relative_to(ROOT / "docs" / language)
            for name in re.findall(r"^\{\{ report (\S+) \}\}$", page.read_text(encoding="utf-8"), re.MULTILINE)
        }
        assert shown == set(gallery.RECORDINGS), language
    for name in gallery.RECORDINGS:
        assert gallery.report(name)
        assert (gallery.GALLERY / f"{name}.txt").is_file()


def test_the_page_says_by_which_command_each_was_made():
    """Above each report stand the lines to type."""
    for language in ("en", "zh"):
        text = (ROOT / "docs" / language / "check" / "gallery.md").read_text(encoding="utf-8")
        for name, recording in gallery.RECORDINGS.items():
            above = text.split(f"{{{{ report {name} }}}}")[0].rsplit("```console\n", 1)[-1]
            assert above.split("```")[0].splitlines() == [f"$ {line}" for line in recording.lines], (language, name)


def test_a_fragment_fetches_nothing_and_is_one_block_of_html():
    """Nothing in it is loaded from anywhere, no line is blank, and it shows the recorded text."""
    for name in gallery.RECORDINGS:
        fragment = gallery.report(name)
        assert not re.search(r"\b(src|href|srcset)\s*=|url\(|@import|<(script|link|img|iframe)\b", fragment), name
        assert "\n" not in fragment
        assert fragment.startswith("<pre ")
        text = (gallery.GALLERY / f"{name}.txt").read_text(encoding="utf-8")
        assert [line.rstrip() for line in lines_of(fragment)] == text.rstrip("\n").split("\n"), name
        assert str(ROOT) not in text, "as seen from the repository"


def test_a_report_that_was_not_recorded_is_an_error():
    """A page cannot show what is not there."""
    with pytest.raises(ValueError, match="no report is called 'nothing'"):
        gallery.report("nothing")


def test_the_recorded_mistake_is_what_the_tool_names_today(monkeypatch):
    """The verdicts and the diagnosis of the unbiased layer norm are those of the record."""
    from spec_tests import check

    monkeypatch.chdir(ROOT)
    report = check(gallery.RECORDINGS["unbiased_layer_norm"].subject, seed=gallery.SEED)
    text, _ = gallery.rendered(report)
    recorded = (gallery.GALLERY / "unbiased_layer_norm.txt").read_text(encoding="utf-8")

    def said(text):
        """Give the lines without the number of inputs compared, which depends on the machine's time."""
        return [
            re.sub(r"\d+ inputs compared, \d+ of", "... inputs compared, ... of", line) for line in text.splitlines()
        ]

    today, then = said(text), said(recorded)
    start = then.index("DIAGNOSIS layer_norm")
    assert today[today.index("DIAGNOSIS layer_norm") :][:5] == then[start : start + 5]
    assert today[-1] == then[-1]


def test_a_picture_of_the_same_text_is_the_same_and_fetches_nothing():
    """The drawing depends on nothing but the text, and loads no font."""
    from website.readme_pictures import svg

    terminal = "\x1b[1mhead\x1b[0m\n\x1b[1;31mFAILED\x1b[0m a.b\n  \x1b[36mx = 1\x1b[0m\n\n1 passed"
    drawn = svg(terminal)
    assert drawn == svg(terminal)
    assert "FAILED" in drawn
    kept = ROOT / "docs" / "pictures" / "report.svg"
    for picture in (drawn, kept.read_text(encoding="utf-8")):
        assert not re.search(r"@font-face|@import|url\((?!#)|\b(src|href)\s*=", picture)
