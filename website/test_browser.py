"""The built site in a browser: `make docs-test`. Each test is what a reader does, and what must come of it."""

import functools
import gzip
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from website.browser import FLAGS, SITE, chromium, served

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = (1280, 390)
LOOK = """[
    document.documentElement.scrollWidth - document.documentElement.clientWidth,
    [...document.images].filter(i => i.complete && i.offsetParent && !i.naturalWidth).map(i => i.src)
]"""
"""How many pixels a page is too wide, and which of its pictures are broken."""
WEIGHT = 500_000
"""So many bytes a page may weigh with all that it loads, text compressed by gzip as a web server sends it."""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the site, and give its address."""
    assert (SITE / "index.html").exists(), "there is no site yet: run make docs"
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """Open an empty page that notes what goes wrong in `page.problems`, and what it loads in `page.loaded`."""
    small = 0.25  # of a pixel to a CSS pixel: nobody looks at what is drawn, and drawing takes time
    opened = browser.new_page(viewport={"width": WIDTHS[0], "height": 900}, device_scale_factor=small)
    opened.problems, opened.loaded = [], set()
    opened.on("pageerror", lambda error: opened.problems.append(f"error: {error}"))
    opened.on("console", lambda said: said.type == "error" and opened.problems.append(f"console: {said.text}"))
    gone = "net::ERR_ABORTED"  # the reader has left the page meanwhile
    opened.on("requestfailed", lambda r: r.failure != gone and opened.problems.append(f"failed: {r.url}"))
    opened.on(
        "response", lambda answer: answer.status >= 400 and opened.problems.append(f"{answer.status}: {answer.url}")
    )
    opened.on("response", lambda answer: opened.loaded.add(answer.url))
    ours = (url, "data:", "blob:")
    opened.on("request", lambda r: r.url.startswith(ours) or opened.problems.append(f"from elsewhere: {r.url}"))
    yield opened
    opened.close()


def pages(language: str) -> list[str]:
    """Give the addresses of all pages of a language."""
    zh = SITE / "zh"
    found = [f.parent for f in sorted(SITE.rglob("index.html")) if f.is_relative_to(zh) == (language == "zh")]
    return ["" if folder == SITE else f"{folder.relative_to(SITE).as_posix()}/" for folder in found]


@functools.cache
def _weight(path: str) -> int:
    """Give the compressed size of what is served at a path."""
    file = SITE / urllib.parse.unquote(urllib.parse.urlsplit(path).path)
    file = file / "index.html" if file.is_dir() else file
    if path.startswith(("data:", "blob:")) or not file.exists():
        return 0
    data = file.read_bytes()
    return min(len(data), len(gzip.compress(data)))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_is_whole_at_every_width(page: Any, url: str, language: str) -> None:
    """No page has an error, loads anything from elsewhere, has a broken picture, weighs too much or overflows."""
    bad: list[str] = []
    widths = list(WIDTHS)  # turned round at each page, which is loaded at the width that the last one was left at
    for path in pages(language):
        page.problems.clear()
        page.loaded.clear()
        page.goto(url + path)
        for width in widths:
            if page.viewport_size["width"] != width:
                page.set_viewport_size({"width": width, "height": 900})
            over, broken = page.evaluate(LOOK)
            bad += [f"/{path}: {over} px too wide at {width}"] if over > 0 else []
            bad += [f"/{path}: broken picture {source} at {width}" for source in broken]
        bad += [f"/{path}: {problem}" for problem in page.problems]
        weight = sum(_weight(address.removeprefix(url)) for address in page.loaded)
        bad += [f"/{path}: weighs {weight:,} bytes"] if weight > WEIGHT else []
        widths.reverse()
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(("start", "words", "target"), [("", "layer norm", "layer_norm"), ("zh/", "注意力", "zh/")])
def test_search_finds(page: Any, url: str, start: str, words: str, target: str) -> None:
    """A reader who types a word gets pages about it, and can open the first."""
    page.goto(url + start)
    page.keyboard.press("/")
    page.keyboard.type(words, delay=30)
    results = page.locator("a[href*='?h='], .md-search-result__link, [role=option] a, .md-search a[href]")
    results.first.wait_for(timeout=15_000)
    found = [results.nth(i).get_attribute("href") for i in range(min(results.count(), 10))]
    assert any(target in link for link in found), found
    results.first.click()
    page.wait_for_load_state("load")
    assert page.url != url + start
    assert not page.problems, page.problems


def test_tabs_switch_between_the_halves(page: Any, url: str) -> None:
    """The tab of PyTorch shows the PyTorch source, in place of NumPy's."""
    page.goto(url + "components/layer_norm/")
    numpy, torch = (page.get_by_text(f"reference/{half}/norms.py", exact=True).first for half in ("numpy", "torch"))
    assert numpy.is_visible()
    assert not torch.is_visible()
    page.locator(".tabbed-labels label", has_text="PyTorch").first.click()
    torch.wait_for(state="visible")
    assert not numpy.is_visible()


def test_dark_mode_switches_the_figures(page: Any, url: str) -> None:
    """A figure has a light and a dark twin, and only the one of the theme is seen."""
    page.emulate_media(color_scheme="light")
    page.goto(url + "components/layer_norm/")
    light, dark = (page.locator(f"figure img[src$='#only-{theme}']").first for theme in ("light", "dark"))
    light.locator("..").scroll_into_view_if_needed()  # a figure is loaded when it comes into view
    light.wait_for(state="visible")
    assert not dark.is_visible()
    page.locator("label[for^=__palette]:visible").first.click()
    dark.wait_for(state="visible")
    assert not light.is_visible()
    assert dark.evaluate(
        "i => new Promise(done => i.complete ? done(i.naturalWidth) : i.onload = () => done(i.naturalWidth))"
    )


def test_the_flow_leads_where_it_says(page: Any, url: str) -> None:
    """Each box of the pictures of the data flow opens the page of its component."""
    for start in ("flow/", "zh/flow/"):
        page.goto(url + start)
        links = page.locator("svg a")
        targets = sorted({links.nth(i).get_attribute("href") for i in range(links.count())})
        assert len(targets) >= 8, targets
        for target in targets:
            name, there = target.rstrip("/").split("/")[-1], urllib.parse.urljoin(url + start, target)
            assert there == url + start.replace("flow/", f"components/{name}/")
            answer = page.request.get(there)
            assert answer.ok, there
            assert f"<code>{name}</code>" in answer.text(), f"{there} does not name {name}"
        for i in (0, links.count() - 1):  # what a click does
            target = urllib.parse.urljoin(url + start, links.nth(i).get_attribute("href"))
            links.nth(i).click()
            page.wait_for_url(target)
            page.goto(url + start)
    assert not page.problems, page.problems


@pytest.mark.skipif(not (SITE / "assets" / "live").exists(), reason="this build is without Python for the browser")
def test_the_live_page_runs_the_experiments_and_what_the_reader_makes_of_them(page: Any, url: str) -> None:
    """A click runs each program with the NumPy reference, in the browser; one that raises shows its error."""
    page.goto(url + "live/")
    for experiment, expected in {
        "break_layer_norm": "fails on",
        "shuffle_tokens": "gives shuffled output: True",
        "temperature": "drawn:",
    }.items():
        page.locator("#live-choice").select_option(experiment)
        said = _run(page, "ok")
        assert expected in said, said
    page.locator("#live-code").fill("raise ValueError('mine')")
    assert "ValueError: mine" in _run(page, "error")
    page.locator("#live-restore").click()
    _run(page, "ok")
    assert not page.problems, page.problems


def _run(page: Any, ending: str) -> str:
    """Run the program on the live page, and give what it said; it must end so."""
    page.evaluate("delete document.body.dataset.live")
    page.locator("#live-run").click()
    page.wait_for_function("document.body.dataset.live", timeout=120_000)
    said = page.locator("#live-out").inner_text()
    assert page.evaluate("document.body.dataset.live") == ending, said
    return said


@pytest.mark.parametrize(
    "path", ["", "components/layer_norm/", "flow/", "claims/", "live/", "check/gallery/", "zh/path/3-attention/"]
)
def test_everybody_can_read_it(page: Any, url: str, path: str) -> None:
    """Contrast, alternative texts, labels and names of controls are as WCAG 2 A and AA ask, in both themes."""
    tags = "{runOnly: ['wcag2a', 'wcag2aa'], resultTypes: ['violations']}"
    page.emulate_media(color_scheme="light")
    page.goto(url + path)
    page.add_script_tag(path=str(AXE))
    for scheme in ("default", "slate"):  # light, dark
        page.wait_for_function(f"document.body.dataset.mdColorScheme == '{scheme}'")
        found = page.evaluate(f"axe.run(document.querySelector('article'), {tags}).then(r => r.violations)")
        seen = (f"{v['id']}: {v['help']}: {[n['html'][:120] for n in v['nodes'][:4]]}" for v in found)
        assert not found, "\n".join([scheme, *seen])
        page.locator("label[for^=__palette]:visible").first.click()


def test_the_keyboard_reaches_the_text(page: Any, url: str) -> None:
    """From the top of a page, Tab comes first to a link that skips the navigation."""
    page.goto(url + "components/layer_norm/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className").startswith("md-skip")
