"""Record real reports for the gallery, and give them to the pages: python -m website.gallery [NAME ...]."""

import contextlib
import html
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from website.sources import ROOT

if TYPE_CHECKING:
    from spec_tests.kit.report import Report

GALLERY = ROOT / "docs" / "gallery"
WIDTH = 80
"""As wide as a terminal is where nothing says otherwise."""


@dataclass(frozen=True)
class Recording:
    """One check of the gallery: what is typed after `transformer-spec check`, and what is built before."""

    subject: str = ""
    command: str = ""
    source: str = ""  # of a program in C, that the command runs as ./subject

    @property
    def lines(self) -> tuple[str, ...]:
        """Give what one types, line by line."""
        built = (f"gcc -O2 -o subject {self.source} -lm",) if self.source else ()
        what = f'--command "{self.command}"' if self.command else self.subject
        return (*built, f"transformer-spec check {what} --seed {SEED}")


SEED = 1
"""So that whoever types the command is given the same inputs."""

EXAMPLES, MISTAKES = "examples/subjects", "docs/gallery/subjects"
RECORDINGS = {
    "unbiased_layer_norm": Recording(f"{EXAMPLES}/unbiased_layer_norm.py"),
    "first_key_mask": Recording(f"{MISTAKES}/first_key_mask.py"),
    "split_heads": Recording(f"{MISTAKES}/split_heads.py"),
    "cross_entropy_in_bits": Recording(f"{MISTAKES}/cross_entropy_in_bits.py"),
    "one_pass_layer_norm": Recording(f"{MISTAKES}/one_pass_layer_norm.py"),
    "deviation_plus_eps": Recording(f"{MISTAKES}/deviation_plus_eps.py"),
    "softmax": Recording(f"{EXAMPLES}/softmax.py"),
    "causal_self_attention": Recording(f"{EXAMPLES}/causal_self_attention.py"),
    "torch_nn": Recording("torch_nn"),
    "c_mistake": Recording(command="./subject --mistake", source=f"{EXAMPLES}/c/subject.c"),
    "jax_layer_norm": Recording(f"{EXAMPLES}/jax_layer_norm.py"),
    "onnx_ops": Recording(f"{EXAMPLES}/onnx_ops.py"),
}


def main(names: list[str]) -> int:
    """Record the reports of these names, or all; say which could not be had."""
    if unknown := [name for name in names if name not in RECORDINGS]:
        print(f"{unknown[0]}: no such recording; there are {', '.join(RECORDINGS)}", file=sys.stderr)
        return 2
    lacking = []
    for name in names or RECORDINGS:
        problem = record(name)
        print(f"{name}: {problem or 'recorded'}", flush=True)
        lacking += [name] if problem else []
    return int(bool(lacking))


def record(name: str) -> str:
    """Run a check and write its report as text and as HTML; give the reason if it could not run."""
    from spec_tests.kit.runner import CannotRun, check

    recording = RECORDINGS[name]
    try:
        with _where_it_runs(recording):
            subject = f"command:{recording.command}" if recording.command else recording.subject
            report = check(subject, seed=SEED)
    except (CannotRun, OSError, subprocess.CalledProcessError) as problem:
        return f"could not run: {problem}"
    # What a subject printed may name its file: as seen from the repository, wherever that lies.
    text, fragment = (part.replace(f"{ROOT}/", "") for part in rendered(report))
    GALLERY.mkdir(parents=True, exist_ok=True)
    (GALLERY / f"{name}.txt").write_text(text, encoding="utf-8")
    (GALLERY / f"{name}.html").write_text(fragment, encoding="utf-8")
    return ""


@contextlib.contextmanager
def _where_it_runs(recording: Recording) -> Iterator[None]:
    """Go to the folder that the command is typed in: the repository, or one where the program has been built."""
    if not recording.source:
        with contextlib.chdir(ROOT):
            yield
        return
    if (compiler := shutil.which("gcc")) is None:
        raise OSError("there is no gcc")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        subprocess.run([compiler, "-O2", "-o", "subject", str(ROOT / recording.source), "-lm"], check=True)
        yield


# ----------------------------------------------------------------------------------------------- as HTML


def rendered(report: "Report") -> tuple[str, str]:
    """Give what `transformer-spec check` prints of a report, as text and as an HTML fragment."""
    console = printed(report)
    text = console.export_text(clear=False)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines()), fragment_of(console)


def printed(report: "Report") -> Console:
    """Print a report into a console that remembers it, as the command does into a terminal."""
    from spec_tests.kit.report import show

    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, highlight=False, force_terminal=True, color_system="standard"
    )
    show(report, console)
    return console


# What rich writes for each colour of the terminal that a report has, with the variable of the theme that stands for it:
# those of highlighted code, which are legible on the background of code in the light theme and in the dark one.
COLOURS = {
    "#800000": "number",  # red: failed
    "#008000": "string",  # green: passed
    "#808000": "constant",  # yellow: neither
    "#800080": "function",  # magenta: the diagnosis
    "#008080": "keyword",  # cyan: lines to reproduce a failure
}
DIM = "#7f7f7f"


def fragment_of(console: Console) -> str:
    """Give what a console remembers as one <pre>, which fetches nothing and has no blank lines."""
    code = console.export_html(code_format="{code}", inline_styles=True, clear=False)
    code = re.sub(r'<span style="([^"]*)">(.*?)</span>', _styled, code, flags=re.DOTALL)
    lines = [_line(line.rstrip()) for line in code.rstrip("\n").split("\n")]
    # Markdown ends a block of HTML at a blank line, and reads on in what follows a line break; there are neither.
    return f'<pre class="report" tabindex="0" style="overflow-x: auto"><code>{"&#10;".join(lines)}</code></pre>\n'


def _styled(span: re.Match[str]) -> str:
    """Write the style of a span in the theme's own terms."""
    rules, text = span[1], span[2]
    styles = [rule for rule in ("font-weight: bold", "font-style: italic") if rule in rules]
    if DIM in rules:
        styles.append("opacity: .8")
    styles += [
        f"color: var(--md-code-hl-{name}-color)" for colour, name in COLOURS.items() if f"color: {colour}" in rules
    ]
    if not styles:
        return text
    opening = f'<span style="{"; ".join(styles)}">'
    # A span that crosses lines would be cut by what is done to each of them.
    return "\n".join(f"{opening}{line}</span>" if line else "" for line in text.split("\n"))


def _line(line: str) -> str:
    """Let a line of prose that is wider than the terminal go on in the next, under its beginning."""
    bare = html.unescape(re.sub(r"<[^>]+>", "", line))
    if len(bare) <= WIDTH:
        return line
    indent = len(bare) - len(bare.lstrip()) + 2
    hanging = f"padding-left: {indent}ch; text-indent: -{indent}ch"
    style = f"display: inline-block; max-width: 100%; white-space: pre-wrap; overflow-wrap: anywhere; {hanging}"
    return f'<span style="{style}">{line}</span>'


def report(name: str) -> str:
    """Give the HTML of a recorded report."""
    if name not in RECORDINGS:
        raise ValueError(f"no report is called {name!r}; there are {', '.join(RECORDINGS)}")
    file = GALLERY / f"{name}.html"
    if not file.is_file():
        raise ValueError(f"the report {name} is not recorded: python -m website.gallery {name}")
    return file.read_text(encoding="utf-8").rstrip("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
