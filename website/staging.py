"""From the text in docs/ to the Markdown that the generator reads: directives, figures and links made good."""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reference.components import COMPONENTS
from website.component_pages import Component
from website.sources import ROOT
from website.words import LANGUAGES

DOCS = ROOT / "docs"
PARTS = ("formula", "sources", "shapes", "properties", "pitfalls", "gradient")
"""The directives of a component's page, in the order in which they stand there."""

DIRECTIVE = re.compile(r"^\{\{ (\w+)(?: (\S+))? \}\}$", re.MULTILINE)
FIGURE = re.compile(r"^!\[(.*)\]\(/figures/(\w+)\.svg\)$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[((?:[^\]\n]|\n(?!\n))+)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


class PageError(ValueError):
    """A page says something that cannot be built."""


@dataclass
class Site:
    """What the pages of a build share: the files that are linked, and the directives that are not a component's."""

    figures: set[str]
    directives: dict[str, Callable[["Page", str], str]] = field(default_factory=dict)
    linked: set[str] = field(default_factory=set)  # files of the repository that get a page of their own


@dataclass(frozen=True)
class Page:
    """One page of docs/<language>: `path` is its place there, components/softmax.md."""

    language: str
    path: str
    site: Site

    @property
    def file(self) -> Path:
        """Give the file of its text."""
        return DOCS / self.language / self.path

    def link(self, url: str) -> str:
        """Give a URL of the site, `reference/glossary/`, as seen from this page's file."""
        here = posixpath.dirname(self.path if self.language == "en" else f"{self.language}/{self.path}")
        path, _, anchor = url.partition("#")
        relative = posixpath.relpath(path or ".", here or ".")
        slash = "/" if path.endswith("/") or not path else ""
        return f"{relative}{slash}" + (f"#{anchor}" if anchor else "")

    def link_to(self, file: Path, anchor: str = "") -> str:
        """Give the URL of a file's page, as seen from this page's file."""
        return self.link(self.url_of(file, anchor))

    def text(self) -> str:
        """Give the page as the generator wants it."""
        return self.expanded(self.file.read_text(encoding="utf-8"))

    def expanded(self, text: str) -> str:
        """Put what they stand for in the place of directives, figures and links, outside of code."""
        kept: list[str] = []

        def keep(match: re.Match[str]) -> str:
            kept.append(match[0])
            return f"\0{len(kept) - 1}\0"

        text = FENCED.sub(keep, text)
        text = LINK.sub(self._link, text)
        text = FIGURE.sub(self._figure, text)
        text = re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], text)
        return DIRECTIVE.sub(self._directive, text)

    # ---------------------------------------------------------------------------------------- each kind

    def _directive(self, match: re.Match[str]) -> str:
        name, argument = match[1], match[2] or ""
        if name in PARTS:
            component = argument or Path(self.path).stem
            if component not in COMPONENTS:
                raise PageError(
                    f"{self.path}: {{{{ {name} }}}} needs a component, got {component!r}; name one of the contract"
                )
            return self._made(getattr(Component(component, self.language, self.link), name))
        if name not in self.site.directives:
            known = ", ".join(sorted((*PARTS, *self.site.directives)))
            raise PageError(f"{self.path}: no directive is called {name!r}; there are {known}")
        return self._made(self.site.directives[name], self, argument)

    def _made(self, make: Callable[..., str], *arguments: object) -> str:
        """Have a part made; what is wrong with it is wrong with this page."""
        try:
            return make(*arguments)
        except ValueError as problem:
            raise PageError(f"{self.path}: {problem}") from problem

    def _figure(self, match: re.Match[str]) -> str:
        alt, name = match[1], match[2]
        if name not in self.site.figures:
            raise PageError(
                f"{self.path}: no figure is called {name!r}; there are {', '.join(sorted(self.site.figures))}"
            )
        if not alt.strip():
            raise PageError(f"{self.path}: the figure {name} needs an alternative text")
        alt = alt.replace('"', "&quot;")
        images = "".join(
            f'<img src="{self.link(f"assets/figures/{name}-{theme}.svg")}#only-{theme}" alt="{alt}" loading="lazy">'
            for theme in ("light", "dark")
        )
        return f'<figure class="plot">{images}</figure>'

    def _link(self, match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not path:
            return match[0]
        file = (self.file.parent / path).resolve()
        if not file.exists() and not is_made(file):
            raise PageError(f"{self.path}: the link to {target} leads nowhere; name a file or page that is there")
        own = DOCS / self.language
        if file.is_relative_to(own):
            return f"[{text}]({path.replace('README.md', 'index.md')}{'#' + anchor if anchor else ''})"
        return f'<a href="{self.link_to(file, anchor)}">{text}</a>'

    def url_of(self, file: Path, anchor: str = "") -> str:
        """Give the URL of a file: a page of the other language, or the page that shows a file of the repository."""
        anchor = f"#{anchor}" if anchor else ""
        for language in LANGUAGES:
            if file.is_relative_to(DOCS / language):
                path = file.relative_to(DOCS / language).with_suffix("").as_posix()
                path = re.sub(r"(^|/)(index|README)$", r"\1", path)
                prefix = "" if language == "en" else f"{language}/"
                return f"{prefix}{path.rstrip('/')}/{anchor}" if path else (prefix or "") + anchor
        path = file.relative_to(ROOT).as_posix()
        if path == "CHANGELOG.md":
            return "reference/changelog/"
        self.site.linked.add(path)
        return f"source/{slug(path)}/{anchor}"


def is_made(file: Path) -> bool:
    """Say whether a place in docs/en is that of a page which the build writes."""
    path = file.relative_to(DOCS / "en").as_posix() if file.is_relative_to(DOCS / "en") else ""
    return re.fullmatch(r"(api|specification)/\w+\.md|reference/(glossary|changelog)\.md", path) is not None


def slug(path: str) -> str:
    """Give the name of the page that shows a file."""
    return re.sub(r"[/.]", "-", path)


def pages(language: str, site: Site) -> list[Page]:
    """Give the pages that docs/ has in a language."""
    folder = DOCS / language
    return [Page(language, f.relative_to(folder).as_posix(), site) for f in sorted(folder.rglob("*.md"))]
