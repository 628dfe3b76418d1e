"""What the pages say is what the code does."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the pages are in the repository, not in the installed package"
)


def test_the_page_of_components_is_current() -> None:
    """docs/en/reference/components.md is what website/components_page.py writes."""
    spec = importlib.util.spec_from_file_location("components_page", ROOT / "website" / "components_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python -m website.components_page"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))])
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    """A relative link names a file or folder that is there, or a page that the site makes."""
    prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"(?<!!)\[[^\]\n]+\]\(([^)#\s]+)[^)]*\)", prose)
    made = re.compile(r"(^|/)(api|specification)/\w+\.md$|reference/(glossary|changelog)\.md$")
    missing = [
        link for link in links if "://" not in link and not made.search(link) and not (page.parent / link).exists()
    ]
    assert missing == []
