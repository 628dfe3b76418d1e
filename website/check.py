"""`python -m website.check SITE`: every link, picture, script and anchor of a built site is there."""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

BASE = "http://site/"
OWN = ("site", "127.0.0.1:8000")
THEMES = ("only-light", "only-dark")
"""Anchors of pictures that only one theme shows."""


@dataclass
class Read(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    ids: set[str] = field(default_factory=set)
    references: list[tuple[str, bool]] = field(default_factory=list)  # URL, and whether the browser loads it unasked
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element refers to."""
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "img" and not (given.get("alt") or "").strip():
            self.problems.append(f"a picture without alternative text: {given.get('src')}")
        for name in ("href", "src"):
            if (url := given.get(name)) is not None:
                loaded = name == "src" or (tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"))
                self.references.append((url, loaded))


def problems(site: Path) -> list[str]:
    """Name everything that is wrong with the links of a site."""
    site = site.resolve()
    pages: dict[Path, Read] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file] = Read()
        pages[file].feed(file.read_text(encoding="utf-8"))
    found = []
    for file, page in pages.items():
        name = file.relative_to(site).as_posix()
        here = BASE + (name.removesuffix("index.html") if file.name == "index.html" else name)
        found += [f"{name}: {problem}" for problem in page.problems]
        for url, loaded in page.references:
            target = urlsplit(urljoin(here, url))
            if target.scheme in ("mailto", "data", "javascript"):
                continue
            if target.netloc not in OWN:
                found += [f"{name}: loads {url}"] if loaded else []
                continue
            there = (site / unquote(target.path).lstrip("/")).resolve()
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{name}: {url} does not exist")
            elif target.fragment and there in pages and not _has(pages[there], unquote(target.fragment)):
                found.append(f"{name}: {url} has no such anchor")
    return found


def _has(page: Read, anchor: str) -> bool:
    return anchor in page.ids or anchor in THEMES


def main() -> int:
    """Print every problem; 1 where there is one."""
    found = problems(Path(sys.argv[1]))
    print(*found, f"{len(found)} problems", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
