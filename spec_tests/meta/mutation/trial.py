"""One trial: a mutant in the place of its module, in a process of its own, and whoever notices first."""

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType, SimpleNamespace

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


def _namespace(half: ModuleType, **more: str) -> SimpleNamespace:
    names = [name for name in half.__all__ if name.removesuffix("_vjp") in COMPONENTS]
    return SimpleNamespace(**{name: getattr(half, name) for name in names}, **more)


def first_to_notice(properties: Iterable[Property], subject: Subject, examples: int) -> str | None:
    """Name the first property that fails, or that the mutant makes raise."""
    with unchecked():
        for prop in properties:
            if subject.offers(prop.component) and prop.is_asked_of(subject):
                try:
                    noticed = fails(prop, subject, examples=examples, seed=SEED)
                except Exception:
                    noticed = True
                if noticed:
                    return prop.id
    return None


def tests_notice(paths: Sequence[str]) -> str | None:
    """Name the first of these test files that fails."""
    import pytest

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", *paths])  # all is imported already
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}; it could not run {', '.join(paths)}")
    return paths[0] if code else None
