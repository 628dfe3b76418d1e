"""Make the pictures of the README: python -m website.readme_pictures [report] [site]; without a name, both.

`docs/pictures/report.svg` is a report as a terminal shows it, and `docs/pictures/site.png` a page of the built site,
for which `python -m website.build` has to come first.
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from website.browser import FLAGS, SITE, chromium, served
from website.gallery import RECORDINGS, ROOT, SEED, printed

PICTURES = ROOT / "docs" / "pictures"
PAGE = "components/layer_norm/"
MOST_BYTES = 200_000
SHOWN = "unbiased_layer_norm"
WIDTH = 100

# Light, as most pages are that show a README; each colour has a contrast of at least 4.5 with the background.
THEME = TerminalTheme(
    (250, 250, 250),
    (36, 41, 47),
    [(36, 41, 47), (180, 32, 42), (17, 109, 62), (126, 88, 0),
     (9, 80, 170), (122, 50, 160), (14, 100, 120), (90, 96, 104)],
)  # fmt: skip


def main(names: list[str]) -> int:
    """Make the pictures that are asked for."""
    made = {"report": report_picture, "site": site_picture}
    if unknown := [name for name in names if name not in made]:
        print(f"{unknown[0]}: no such picture; there are {', '.join(made)}", file=sys.stderr)
        return 2
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or made:
        try:
            file = made[name]()
        except (OSError, ValueError) as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            return 1
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1000:.0f} kB")
    return 0


# ----------------------------------------------------------------------------------------------- the report


def report_picture() -> Path:
    """Check the unbiased layer norm and draw the report."""
    from spec_tests import check

    with contextlib.chdir(ROOT):
        report = check(RECORDINGS[SHOWN].subject, seed=SEED)
    file = PICTURES / "report.svg"
    file.write_text(svg(printed(report).export_text(styles=True)), encoding="utf-8")
    return file


def svg(terminal: str) -> str:
    """Draw what a terminal shows, shortened: the same bytes for the same text, and nothing in it that is fetched."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True)
    console.print(Text(f"$ transformer-spec check {RECORDINGS[SHOWN].subject} --seed {SEED}\n", "dim"))
    for line in shortened(terminal.split("\n")):
        indent = len(Text.from_ansi(line).plain) - len(Text.from_ansi(line).plain.lstrip())
        for i, part in enumerate(Text.from_ansi(line).wrap(console, WIDTH - 4)):
            console.print(Text(" " * (indent + 2) if i else "") + part)
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    without_fonts = without_fonts.replace(
        "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    )
    drawn = console.export_svg(title="transformer-spec", theme=THEME, code_format=without_fonts, unique_id="report")
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines() if line.strip())


def shortened(lines: list[str]) -> Iterator[str]:
    """Leave out what a README has no room for: lists of names, and all failures but the first."""
    failures, leaving_out = 0, False
    for line in lines:
        bare = Text.from_ansi(line).plain
        if bare.startswith("FAILED"):
            failures += 1
        if bare.startswith(("not offered", "expected to fail", "unsupported")):
            leaving_out = True
        elif bare.startswith(("DIAGNOSIS", "precision")) or re.match(r"\d+ passed", bare):
            leaving_out = False
        elif failures == 2 and not leaving_out:
            leaving_out = True
            yield "..."
            yield ""
        if bare.startswith("DIAGNOSIS"):
            yield ""
        if not leaving_out:
            yield line


# ----------------------------------------------------------------------------------------------- the site


def site_picture() -> Path:
    """Photograph a page of the built site."""
    if not (SITE / PAGE / "index.html").is_file():
        raise ValueError(f"site/{PAGE} is not there: python -m website.build comes first")
    from playwright.sync_api import sync_playwright

    file = PICTURES / "site.png"
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
        page.goto(f"{address}{PAGE}", wait_until="networkidle")
        page.screenshot(path=file)
        browser.close()
    _fewer_colours(file)
    if (size := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{file.name} has {size} bytes, more than {MOST_BYTES}")
    return file


def _fewer_colours(file: Path) -> None:
    """Write the picture with a palette of 256 colours, which text and lines do not miss."""
    from PIL import Image

    with Image.open(file) as picture:
        reduced = picture.convert("RGB").quantize(256)
    reduced.save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
