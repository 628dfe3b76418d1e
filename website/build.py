"""`python -m website.build`: build the whole site into site/, and fail where anything is not as it should be."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from website import check, claim_figures, claims, figures, flow, gallery, live, made_pages, path_figures, search_index
from website.browser import SITE, served
from website.configuration import configuration
from website.staging import DOCS, ROOT, PageError, Site, pages
from website.words import LANGUAGES

BUILD = ROOT / "build" / "site"
HERE = Path(__file__).parent
FIGURES = {**figures.FIGURES, **claim_figures.FIGURES, **path_figures.FIGURES}
SLOWEST = ("path_heatmap", "loss_curves")
"""Figures that train something: begun first, so that nobody waits for them at the end."""
NODE_MODULES = HERE / "node_modules"


def main() -> int:
    """Build, check, and serve if asked to."""
    parser = argparse.ArgumentParser(prog="python -m website.build", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="show the site at http://127.0.0.1:8000 afterwards")
    parser.add_argument("--without-live", action="store_true", help="leave out what runs Python in the browser")
    options = parser.parse_args()
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    try:
        build(with_live=not options.without_live and _live_is_had())
    except PageError as problem:
        print(f"docs: {problem}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as problem:
        return problem.returncode or 1
    if found := check.problems(SITE):
        print(*found, f"{len(found)} problems", sep="\n", file=sys.stderr)
        return 1
    size = sum(f.stat().st_size for f in SITE.rglob("*") if f.is_file())
    print(f"site/: {len(list(SITE.rglob('*.html')))} pages, {size / 1e6:.1f} MB")
    if options.serve:
        serve()
    return 0


def build(*, with_live: bool) -> None:
    """Write the Markdown of both languages, and have pages made of it."""
    site = Site(figures=set(FIGURES))
    site.directives |= {
        "flow": lambda page, name: flow.flow(
            name, page.language, lambda c: page.link_to(DOCS / page.language / "components" / f"{c}.md")
        ),
        "claims": lambda page, _: claims.claims(page.language, lambda file, test: page.link_to(ROOT / file, test)),
        "report": lambda _, name: gallery.report(name),
        "live": lambda page, _: live.page_part(page.language, page.link("assets/"), there=with_live),
    }
    with Stage("figures"), ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(_draw, sorted(FIGURES, key=lambda name: name not in SLOWEST)))
    with Stage("pages"):
        for language in LANGUAGES:
            for page in pages(language, site):
                _write(language, page.path.replace("README.md", "index.md"), page.text())
        for path, text in (
            *made_pages.specification(),
            *made_pages.api(),
            made_pages.glossary(),
            made_pages.changelog(),
        ):
            _write("en", path, text)
        for path, text in made_pages.shown(site.linked):
            _write("en", path, text)
    with Stage("assets"):
        _katex()
        for language in LANGUAGES:
            assets = BUILD / language / "assets"
            shutil.copytree(HERE / "assets", assets, dirs_exist_ok=True)
            shutil.copytree(BUILD / "katex", assets / "katex")
        if with_live:
            live.install(BUILD / "en" / "assets" / "live")
    for language in LANGUAGES:
        with Stage(f"site, {language}"):
            config = BUILD / f"{language}.yml"
            tree = configuration(language, BUILD / language, ROOT)
            config.write_text(json.dumps(tree, ensure_ascii=False, indent=1), encoding="utf-8")  # JSON is YAML
            _run(sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config))
    shutil.move(BUILD / "out", SITE)
    with Stage("formulas"):
        _run("node", str(HERE / "prerender.mjs"), str(SITE))
    for index in SITE.rglob("search.json"):
        search_index.lighten(index)


def _live_is_had() -> bool:
    """Fetch what the live page needs; where that fails, say so, and build without."""
    try:
        with Stage("Python for the browser"):
            live.fetch()
    except live.NotHad as problem:
        print(f"without the live page, for its Python could not be had: {problem}", flush=True)
        return False
    return True


def _draw(name: str) -> None:
    figures.draw(name, BUILD / "en" / "assets" / "figures", FIGURES)


class Stage:
    """Says how long a part of the build took."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        print(f"{self.name}: {time.monotonic() - self.since:.1f} s", flush=True)


def _write(language: str, path: str, text: str) -> None:
    file = BUILD / language / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _katex() -> None:
    """Put KaTeX's styles and fonts beside the pages."""
    if not NODE_MODULES.exists():
        _run("npm", "ci", "--silent", "--no-audit", "--no-fund", "--prefix", str(HERE))
    dist = NODE_MODULES / "katex" / "dist"
    (BUILD / "katex" / "fonts").mkdir(parents=True, exist_ok=True)
    shutil.copy(dist / "katex.min.css", BUILD / "katex")
    for font in dist.glob("fonts/*.woff2"):
        shutil.copy(font, BUILD / "katex" / "fonts")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def serve() -> None:
    """Show the site until interrupted."""
    with contextlib.suppress(KeyboardInterrupt), served(8000) as address:
        print(address, flush=True)
        signal.pause()


if __name__ == "__main__":
    raise SystemExit(main())
