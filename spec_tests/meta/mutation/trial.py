"""One trial: a mutant in the place of its module, in a process of its own, and whoever notices first."""

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest

import reference.numpy
import reference.torch
from reference.components import COMPONENTS
from reference.shape_checks import unchecked
from spec_tests.search import fails
from spec_tests.spec import Property, all_properties
from spec_tests.subjects.subject import Subject

SEED = 20
"""A mutant lives or dies by the same examples each time, so that the list of survivors stays true."""
PLAIN = (bool, int, float, str, bytes, type(None))


def put_in_place(module: ModuleType, code: str) -> None:
    """Run other code as this module, and give what it defines to all who have imported the old."""
    old = dict(vars(module))
    exec(compile(code, module.__file__ or "", "exec"), vars(module))
    new = {
        id(value): vars(module)[name]
        for name, value in old.items()
        if not name.startswith("__") and not isinstance(value, PLAIN) and vars(module)[name] is not value
    }
    for name, other in list(sys.modules.items()):
        if name.split(".")[0] in ("reference", "spec_tests"):
            for attribute, value in list(vars(other).items()):
                if id(value) in new:
                    setattr(other, attribute, new[id(value)])


def properties_about(stems: Sequence[str]) -> list[Property]:
    """Give the properties of the components of these stems but for those that compare with the mutant itself."""
    return [p for p in all_properties() if COMPONENTS[p.component].stem in stems and not p.function.statement.oracle]


def comparisons_about(stems: Sequence[str]) -> list[Property]:
    """Give those that compare: they are put to the PyTorch half, which must no longer agree."""
    return [p for p in all_properties() if COMPONENTS[p.component].stem in stems and p.function.statement.oracle]


def numpy_half() -> Subject:
    """Give the reference, whatever stands in it now."""
    return Subject(_namespace(reference.numpy), name="reference.numpy", strict=True)


def torch_half() -> Subject:
    """Give the twin, which has no part in the mutant."""
    return Subject(_namespace(reference.torch, arrays="torch"), name="reference.torch", strict=True)


@contextlib.contextmanager
def lines_run(path: str) -> Iterator[set[int]]:
    """Gather the lines of a file that are run."""
    lines: set[int] = set()

    def note(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        lines.add(frame.f_lineno)
        return note

    sys.settrace(note)
    try:
        yield lines
    finally:
        sys.settrace(None)


def _namespace(half: ModuleType, **more: str) -> SimpleNamespace:
    names = [name for name in half.__all__ if name.removesuffix("_vjp") in COMPONENTS]
    return SimpleNamespace(**{name: getattr(half, name) for name in names}, **more)


def first_to_notice(properties: Iterable[Property], subject: Subject, examples: int) -> str | None:
    """Name the first property that fails, or that the mutant makes raise.

    One that states a number of examples of its own has four times as many at most.
    """
    with unchecked():
        for prop in properties:
            if subject.offers(prop.component) and prop.is_asked_of(subject):
                own = getattr(prop.function, "_hypothesis_internal_use_settings", None)
                most = 4 * own.max_examples if own else 1
                try:
                    noticed = fails(prop, subject, examples=min(examples, most), seed=SEED)
                except Exception:
                    noticed = True
                if noticed:
                    return prop.id
    return None


def tests_passing(arguments: Sequence[str], path: str) -> dict[str, tuple[float, frozenset[int]]]:
    """Run tests that pass, and give for each how long it computes and the lines of a file that it runs."""
    watch = _Watch(path)
    if _pytest(arguments, watch):
        raise RuntimeError(f"{watch.failed} fails without any change")
    return watch.found


def first_test_to_notice(tests: Sequence[str]) -> str | None:
    """Name the first of these tests that fails."""
    watch = _Watch()
    return watch.failed if _pytest(tests, watch) else None


def _pytest(arguments: Sequence[str], watch: "_Watch") -> bool:
    """Say whether a test fails."""
    quiet = ("-x", "-q", "-p", "no:cacheprovider", "--assert=plain")  # all is imported already
    drawn_before = "ignore::hypothesis.errors.HypothesisSideeffectWarning"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        code = pytest.main([*quiet, "-W", drawn_before, f"--hypothesis-seed={SEED}", *arguments], plugins=[watch])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}; it could not run {' '.join(arguments)}")
    return code == pytest.ExitCode.TESTS_FAILED


class _Watch:
    """A plugin of pytest that notes what each test runs of a file, and which one fails."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.found: dict[str, tuple[float, frozenset[int]]] = {}
        self.failed: str | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        since = time.process_time()
        with lines_run(self.path) if self.path else contextlib.nullcontext(set()) as lines:
            result = yield
        self.found[item.nodeid] = time.process_time() - since, frozenset(lines)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = report.nodeid
