"""What the pages say is what the code does."""

from pathlib import Path

import pytest

from website import contract_page
from website.sources import ROOT
from website.staging import FENCED, LINK, is_made


def test_the_page_of_components_is_current() -> None:
    """docs/en/reference/components.md is what website/contract_page.py writes."""
    assert contract_page.PAGE.read_text(encoding="utf-8") == contract_page.page(), (
        "run: python -m website.contract_page"
    )


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))])
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    """A relative link names a file or folder that is there, or a page that the site makes."""
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    links = [path for link in LINK.finditer(prose) if (path := link[2].partition("#")[0]) and "://" not in path]
    files = [(page.parent / link).resolve() for link in links]
    assert [link for link, file in zip(links, files, strict=True) if not (file.exists() or is_made(file))] == []
