"""Find a subject: shipped under a short name, a dotted module, a Python file, a command, or any namespace at hand."""

import importlib
import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from reference.components import COMPONENTS
from spec_tests.subjects.contract import is_gradient, plain
from spec_tests.subjects.process import CannotStart, Process
from spec_tests.subjects.subject import Subject

SHIPPED = {"torch_nn": "spec_tests.subjects.torch_nn"}
"""Subjects that come with the kit and go by a short name."""

COMMAND = "command:"
"""What stands before a command: `command:./my_program --fast` is a program that speaks JSON lines (see `process`)."""

STRICT = ("reference.numpy", "reference.torch")
"""The two backends of this project: their error types and messages are part of the specification."""


class CannotLoad(Exception):
    """There is nothing to check; the message says in one line what is missing."""


@dataclass(frozen=True)
class Loaded:
    """A subject, the lines of Python that import it as `subject`, and the file of its expected failures."""

    subject: Subject
    import_code: str
    xfails_file: Path | None

    @property
    def offers(self) -> list[str]:
        """Name the components that the subject has a function for, in the order of the manifest."""
        return [name for name in COMPONENTS if self.subject.offers(name)]


def load(wanted: Any) -> Loaded:
    """Load a subject from its name, its path or the namespace itself. Raises CannotLoad."""
    if isinstance(wanted, Subject):
        loaded = Loaded(wanted, "# `subject` is the namespace that was checked", None)
    elif isinstance(wanted, str) and wanted.startswith(COMMAND):
        loaded = _from_command(wanted.removeprefix(COMMAND).strip())
    elif isinstance(wanted, Path) or (isinstance(wanted, str) and is_path(wanted)):
        loaded = _from_file(Path(wanted))
    elif isinstance(wanted, str):
        loaded = _from_module(wanted)
    else:
        loaded = _from_namespace(wanted)
    if not loaded.offers:
        raise CannotLoad(_nothing_offered(loaded.subject))
    return loaded


def is_path(wanted: str) -> bool:
    """Tell a path from the name of a module."""
    return wanted.endswith(".py") or os.sep in wanted or "/" in wanted


def _from_file(path: Path) -> Loaded:
    if not path.is_file():
        raise CannotLoad(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
    if path.suffix != ".py":
        raise CannotLoad(f"{path}: not a Python file; a subject file ends in .py")
    path = path.resolve()
    name = path.stem if path.stem not in sys.modules else f"subject_{path.stem}"
    folder = str(path.parent)
    sys.path.insert(0, folder)  # as for a script: the file may import its neighbours, now or when it is called
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _reasons(path.name):
        spec.loader.exec_module(module)
    shown = Path(folder).relative_to(Path.cwd()) if Path(folder).is_relative_to(Path.cwd()) else folder
    code = f"import sys\n\nsys.path.insert(0, {str(shown)!r})\n{_import(path.stem)}"
    return Loaded(_subject(module, path.name, path.stem), code, path.with_suffix(".xfails.toml"))


def _from_module(name: str) -> Loaded:
    dotted = SHIPPED.get(name, name)
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise CannotLoad(f"{name}: neither a Python file nor the name of a module")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    with _reasons(name, sought=dotted):
        module = importlib.import_module(dotted)
    file = Path(module.__file__) if getattr(module, "__file__", None) else None
    if file is not None and file.name == "__init__.py":
        file = file.parent.with_suffix(".py")
    return Loaded(_subject(module, name, dotted), _import(dotted), file.with_suffix(".xfails.toml") if file else None)


def _from_command(command: str) -> Loaded:
    try:
        process = Process(command)
    except CannotStart as problem:
        raise CannotLoad(f"{command}: {problem}") from problem
    code = f"from spec_tests.subjects.process import Process\n\nsubject = Process({command!r})"
    lists = [Path(word).with_suffix(".xfails.toml") for word in shlex.split(command) if Path(word).is_file()]
    return Loaded(_subject(process, command, ""), code, next(filter(Path.is_file, lists), None))


def _from_namespace(namespace: Any) -> Loaded:
    if isinstance(namespace, Mapping):
        namespace = SimpleNamespace(**namespace)
    if isinstance(namespace, ModuleType):
        return Loaded(_subject(namespace, namespace.__name__, namespace.__name__), _import(namespace.__name__), None)
    name = getattr(namespace, "__name__", type(namespace).__name__)
    return Loaded(_subject(namespace, name, ""), "# `subject` is the namespace that was checked", None)


def _subject(namespace: Any, name: str, dotted: str) -> Subject:
    try:
        subject = Subject(namespace, name=name, strict=dotted in STRICT)
        if dotted == "reference.torch":  # a library does not say how it wants to be tested
            subject.arrays = "torch"
        return subject
    except (TypeError, ValueError) as problem:
        raise CannotLoad(f"{name}: {problem}") from problem


def _import(dotted: str) -> str:
    package, _, name = dotted.rpartition(".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        return f"import importlib\n\nsubject = importlib.import_module({dotted!r})"
    return f"from {package} import {name} as subject" if package else f"import {name} as subject"


class _reasons:  # noqa: N801 (reads as `with _reasons(...)`)
    """Turn whatever an import raises into one line that says why and where."""

    def __init__(self, name: str, *, sought: str = "") -> None:
        self.name, self.sought = name, sought

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            return
        if isinstance(error, ModuleNotFoundError) and error.name and f"{self.sought}.".startswith(f"{error.name}."):
            shipped = ", ".join(SHIPPED)
            raise CannotLoad(f"{self.name}: no such module; give a .py file, a dotted module, or {shipped}") from error
        frame = traceback.extract_tb(trace)[-1]
        where = f" ({Path(frame.filename).name}, line {frame.lineno})"
        if isinstance(error, SyntaxError):
            where = f" ({Path(error.filename or '?').name}, line {error.lineno})"
            error = type(error)(error.msg)
        reason = " ".join(str(error).split())
        raise CannotLoad(f"{self.name}: importing it raised {type(error).__name__}: {reason}{where}") from error


def _nothing_offered(subject: Subject) -> str:
    lines = f"{subject.name}: nothing offered; define a function with the name of a component"
    for name in _functions(subject.namespace):
        if is_gradient(name):
            return f"{lines} (`{name}` is asked for its gradient beside `{plain(name)}`)"
        if near := get_close_matches(name, COMPONENTS, n=1, cutoff=0.75):
            return f"{lines} (`{name}` looks like `{near[0]}`)"
    return f"{lines}, such as {', '.join(list(COMPONENTS)[:3])} (`transformer-spec list` names them all)"


def _functions(namespace: Any) -> Iterator[str]:
    for name in dir(namespace):
        if not name.startswith("_") and callable(getattr(namespace, name, None)):
            yield name
