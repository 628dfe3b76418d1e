"""Put a pitfall into our own programs, and say which of their tests notice."""

import contextlib
import importlib
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from reference.shape_checks import unchecked
from spec_tests.pitfalls.pitfall import Pitfall


def caught(pitfall: Pitfall, *, max_examples: int | None = None, all_of_them: bool = True) -> list[str]:
    """Name the tests among its `caught_by` that fail while it stands in the programs' place; or only the first."""
    names = [name for name in pitfall.caught_by if name.startswith("spec_tests.")][: None if all_of_them else 1]
    torch = any(target.startswith("reference.torch") for target in pitfall.programs)
    for name in names:  # imported before the patches, or what they import would keep the pitfall
        _found(name)
    _fixtures(torch=torch)
    with contextlib.ExitStack() as patches:
        for target, stand_in in pitfall.programs.items():
            patches.enter_context(mock.patch(target, stand_in))
        return [name for name in names if fails(name, max_examples, torch=torch)]


def fails(name: str, max_examples: int | None = None, *, torch: bool = False) -> bool:
    """Run a test of one of our programs, by its full name, for one twin; say whether it fails."""
    import pytest  # not above, nor Hypothesis: who only reads the pitfalls needs neither

    from spec_tests.search import searching

    test = _found(name)
    with unchecked(), searching(test, examples=max_examples), tempfile.TemporaryDirectory() as folder:
        fixtures = _fixtures(torch=torch)
        arguments = {name: fixtures[name](test, Path(folder)) for name in inspect.signature(test).parameters}
        try:
            test(**arguments)
        except (Exception, pytest.fail.Exception):  # the test, or the program itself, raises
            return True
    return False


def _found(name: str) -> Callable[..., None]:
    module, _, rest = name.partition(".test_")
    module_name, *path = f"{module}.test_{rest}".split(".")
    found: Any = importlib.import_module(module_name)
    for part in path:
        if inspect.ismodule(found) and not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
        if inspect.isclass(found):
            found = found()
    return found


def _fixtures(*, torch: bool) -> dict[str, Callable[[Callable[..., None], Path], Any]]:
    """Say what pytest would give to a test, made of the test and an empty folder: one twin, among others."""
    from reference.numpy import training
    from spec_tests import test_generation, test_training
    from spec_tests.reference import test_resume

    twins = {
        test_training.__name__: test_training.TORCH if torch else training,
        test_generation.__name__: test_generation.TorchTwin() if torch else test_generation.NumpyTwin(),
    }
    return {
        "twin": lambda test, folder: twins[test.__module__],
        "train": lambda test, folder: test_resume.train_torch if torch else test_resume.train_numpy,
        "dtype": lambda test, folder: "float64",
        "tmp_path": lambda test, folder: folder,
        "tmp_path_factory": lambda test, folder: SimpleNamespace(
            mktemp=lambda name: Path(tempfile.mkdtemp(name, dir=folder))
        ),
    }
