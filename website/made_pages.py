"""The pages that have no text of their own: properties with their code, the API, the glossary, shown files."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from reference.axes import AXES
from reference.components import COMPONENTS
from spec_tests.spec import Property, all_properties
from website.sources import ROOT, first_line, without_docstrings
from website.staging import slug

NEUTRAL = ("config", "axes", "components", "parameters", "recipe", "runs", "data", "checkpoint", "shape_checks")
"""Modules of `reference` that belong to neither half."""
LANGUAGE_OF = {".py": "python", ".js": "javascript", ".c": "c", ".json": "json", ".toml": "toml", ".sh": "bash",
               ".yml": "yaml", ".yaml": "yaml", ".txt": "text"}  # fmt: skip


def specification() -> Iterator[tuple[str, str]]:
    """Give path and text of a page for each file of properties, and of the page that lists them."""
    modules: dict[str, dict[str, list[Property]]] = {}
    for prop in all_properties():
        modules.setdefault(prop.function.__module__, {}).setdefault(prop.function.__name__, []).append(prop)
    lines = ["# The specification", "",
             "Every sentence below is a property: a test that pytest and `transformer-spec check` put to any",
             "implementation, on inputs that Hypothesis draws.", "",
             "| file | properties | about |", "| --- | ---: | --- |"]  # fmt: skip
    for module, functions in sorted(modules.items()):
        name = module.removeprefix("spec_tests.test_")
        about = (inspect.getdoc(importlib.import_module(module)) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| [{name}]({name}.md) | {len(functions)} | {about} |")
        yield f"specification/{name}.md", _properties(module, name, functions)
    yield "specification/index.md", "\n".join(lines) + "\n"


def _properties(module: str, name: str, functions: dict[str, list[Property]]) -> str:
    file = Path(inspect.getfile(importlib.import_module(module)))
    source = file.read_text(encoding="utf-8")
    lines, nodes = source.splitlines(), {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    order = sorted(functions, key=lambda f: nodes[f].lineno)
    text = [f"# {name.capitalize()}", "", f"`{file.relative_to(ROOT)}`", ""]
    for function in order:
        node, stated = nodes[function], functions[function]
        components = sorted({p.component for p in stated})
        code = without_docstrings(node, lines)  # as plain text: a page of a hundred properties must stay light
        about = ", ".join(f"[{c}](../components/{c}.md)" for c in components)
        text += [f"## {function.removeprefix('test_').replace('_', ' ')} {{ #{function} }}", "",
                 stated[0].sentence, "", f"<small>{about}</small>", "", "```text", code, "```", ""]  # fmt: skip
    return "\n".join(text)


def api() -> Iterator[tuple[str, str]]:
    """Give path and text of the pages that mkdocstrings fills."""
    stems = [*dict.fromkeys(c.stem for c in COMPONENTS.values()), "training", "generation"]
    for stem in stems:
        yield f"api/{stem}.md", f"# {stem}\n\n::: reference.numpy.{stem}\n\n::: reference.torch.{stem}\n"
    for module in NEUTRAL:
        yield f"api/{module}.md", f"# {module}\n\n::: reference.{module}\n"
    listed = [f"- [{name}]({name}.md)" for name in (*stems, *NEUTRAL)]
    yield "api/index.md", "\n".join([
        "# API", "", "Signatures with their shapes, as the shape checks read them, and the docstrings. The halves have",
        "the same names; `reference.torch` adds the modules that hold the weights.", "", *listed, ""])  # fmt: skip


def glossary() -> tuple[str, str]:
    """Give path and text of the page of axes."""
    rows = [f"| `{axis}` | {meaning.replace('|', chr(92) + '|')} |" for axis, meaning in AXES.items()]
    return "reference/glossary.md", "\n".join([
        "# Glossary of axes", "", "The names that annotations, pages and error messages use, and no others; in",
        "brackets the symbols of the papers.", "", "| axis | meaning |", "| --- | --- |", *rows, ""])  # fmt: skip


def changelog() -> tuple[str, str]:
    """Give path and text of the page of changes."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return "reference/changelog.md", text.replace("](docs/en/", "](../")


def shown(linked: set[str]) -> Iterator[tuple[str, str]]:
    """Give path and text of a page for each linked file, and for those of linked folders."""
    done: set[str] = set()
    while todo := linked - done:
        path = todo.pop()
        done.add(path)
        file = ROOT / path
        if file.is_dir():
            files = [f for f in sorted(file.iterdir()) if _is_shown(f)]
            linked |= {f.relative_to(ROOT).as_posix() for f in files}
            text = "\n".join(f"- [{f.name}]({slug(f.relative_to(ROOT).as_posix())}.md)" for f in files)
        elif file.name.startswith("test_"):
            text = _tests(file)
        elif file.suffix == ".md":
            text = f"````markdown\n{file.read_text(encoding='utf-8')}\n````"
        else:
            text = f"````{LANGUAGE_OF.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n````"
        yield f"source/{slug(path)}.md", f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{text}\n"


def _tests(file: Path) -> str:
    """Show a file of tests, each under its name, so that a page can link to it."""
    source = file.read_text(encoding="utf-8")
    lines, nodes = source.splitlines(), [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    starts = [first_line(n) - 1 for n in nodes]
    parts = [f"````python\n{_stripped(lines[: starts[0]])}\n````"]
    for node, start, end in zip(nodes, starts, [*starts[1:], len(lines)], strict=True):
        heading = f"## {node.name.removeprefix('test_').replace('_', ' ')} {{ #{node.name} }}\n\n"
        parts.append(
            f"{heading if node.name.startswith('test_') else ''}````python\n{_stripped(lines[start:end])}\n````"
        )
    return "\n\n".join(parts)


def _stripped(lines: list[str]) -> str:
    return "\n".join(lines).strip("\n")


def _is_shown(file: Path) -> bool:
    return not re.match(r"[._]", file.name) and (file.is_dir() or file.suffix in (*LANGUAGE_OF, ".md"))
