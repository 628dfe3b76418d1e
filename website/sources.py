"""Source as a page shows it: a function without its docstring, and the private helpers that it calls."""

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def _definitions(path: Path) -> dict[str, ast.stmt]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    values = {
        node.targets[0].id: node
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return {**values, **{node.name: node for node in named}}


def code(module: ModuleType, name: str) -> str:
    """Give a definition of a module and, below it, the private ones that it needs, each once and without docstrings."""
    path = Path(inspect.getfile(module))
    definitions = _definitions(path)
    wanted, todo = [], [name]
    while todo:
        current = todo.pop(0)
        wanted.append(current)
        called = [n for n in _names(definitions[current]) if n.startswith("_") and n in definitions]
        todo += [n for n in called if n not in wanted and n not in todo]
    lines = path.read_text(encoding="utf-8").splitlines()
    parts = [without_docstrings(definitions[n], lines) for n in wanted]
    return "\n\n\n".join(parts)


def place(module: ModuleType, name: str) -> tuple[str, int]:
    """Give the file of a definition, from the root of the repository, and its line."""
    path = Path(inspect.getfile(module))
    return path.relative_to(ROOT).as_posix(), _definitions(path)[name].lineno


def defines(module: ModuleType, name: str) -> bool:
    """Say whether a module's own text defines a name."""
    return name in _definitions(Path(inspect.getfile(module)))


def _names(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id


def first_line(node: ast.stmt) -> int:
    """Give the number of a definition's first line, that of its first decorator if it has any."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def without_docstrings(node: ast.stmt, lines: list[str]) -> str:
    """Give a definition's text out of the lines of its file, and leave out its docstring and those inside."""
    dropped: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part) and len(part.body) > 1:
            doc = part.body[0]
            dropped |= set(range(doc.lineno, doc.end_lineno + 1))
            if not lines[doc.end_lineno].strip():
                dropped.add(doc.end_lineno + 1)
    kept = [lines[i - 1] for i in range(first_line(node), node.end_lineno + 1) if i not in dropped]
    return "\n".join(kept)
