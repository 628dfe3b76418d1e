"""The same properties from pytest: `pytest --pyargs spec_tests --subject my_attention.py`.

This file is loaded in every pytest run wherever the project is installed, so it imports nothing heavy, adds only
options that nobody else has, and touches nothing but the tests of `spec_tests`.
"""

import os
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[1]

OWN_SUBJECTS = ("reference.numpy", "reference.torch")
ORACLE = "reference.numpy"

_loaded = pytest.StashKey[dict[str, Any]]()
"""The subjects of this run, each with its expected failures, by the name they were asked for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --subject and --spec-max-examples."""
    group = parser.getgroup("transformer-spec", "the transformer specification")
    group.addoption(
        "--subject",
        action="append",
        metavar="SUBJECT",
        dest="spec_subjects",
        help="check this implementation (a .py file, a module, torch_nn) instead of the project's own; may be repeated",
    )
    group.addoption(
        "--spec-max-examples",
        type=int,
        default=int(os.environ.get("SPEC_MAX_EXAMPLES", "0")) or None,
        help="examples a property of the specification draws (few unless given, fewer still for models)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the subjects that were asked for, so that what is wrong with them is said at once."""
    config.addinivalue_line("markers", "thorough: many random trials, of the transformer specification")
    config.stash[_loaded] = {}
    for name in config.getoption("spec_subjects") or ():
        _load(config, name)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Switch on the shape checks before the first of our test files is imported."""
    if HOME in module_path.parents:
        os.environ.setdefault("REFERENCE_SHAPE_CHECKS", "1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Put every property to every subject, and in each of its cases."""
    if not _is_property(metafunc.definition):
        return
    names = metafunc.config.getoption("spec_subjects") or OWN_SUBJECTS
    if cases := metafunc.function.statement.cases:
        metafunc.parametrize("case", cases)
    metafunc.parametrize("subject", [_load(metafunc.config, name)[0].subject for name in names], ids=list(names))


def _load(config: pytest.Config, name: str) -> tuple[Any, Any]:
    """Load a subject, once a run, with the failures that are expected of it."""
    os.environ.setdefault("REFERENCE_SHAPE_CHECKS", "1")
    os.environ.setdefault("JAX_ENABLE_X64", "1")
    from spec_tests.kit import xfails
    from spec_tests.subjects.loading import CannotLoad, load

    loaded = config.stash[_loaded]
    if name not in loaded:
        try:
            found = load(name)
            expected = xfails.read(found.xfails_file)
            if expected:
                from spec_tests.spec import all_properties

                xfails.check_known(expected, [prop.id for prop in all_properties()], found.xfails_file)
        except (CannotLoad, xfails.BadXfails) as problem:
            raise pytest.UsageError(str(problem)) from problem
        loaded[name] = (found, expected)
    return loaded[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the properties of what each subject offers, and expect the failures that it lists.

    With --subject the tests of this house itself are left out: they are not about that subject.
    """
    kept, left_out = [], []
    for item in items:
        if _is_property(item):
            wanted = _offered(item)
        else:
            wanted = not (config.getoption("spec_subjects") and HOME in item.path.parents)
        (kept if wanted else left_out).append(item)
    for item in kept:
        if _is_property(item):
            _expect_failure(config, item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _is_property(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "function", None), "statement") and HOME in item.path.parents


def _component(item: Any) -> str:
    case = item.callspec.params.get("case")
    return case.split(".")[0] if case else item.function.statement.component


def _offered(item: Any) -> bool:
    subject = item.callspec.params["subject"]
    if item.function.statement.oracle and subject.name == ORACLE:
        return False  # it would be compared with itself
    from spec_tests.spec import is_asked_of

    return is_asked_of(subject, item.function, _component(item))


def _expect_failure(config: pytest.Config, item: Any) -> None:
    from spec_tests.kit import xfails
    from spec_tests.spec import property_id

    subject, case = item.callspec.params["subject"], item.callspec.params.get("case")
    xfail_list = next(expected for known, expected in config.stash[_loaded].values() if known.subject is subject)
    found = xfails.expected(xfail_list, property_id(item.function, case), subject.dtype.name)
    if found:
        item.add_marker(pytest.mark.xfail(reason=found.reason, strict=True))


def pytest_runtest_setup(item: Any) -> None:
    """Set how many examples one of our tests draws; the user's own Hypothesis profile is not touched."""
    function = getattr(item, "function", None)
    if not hasattr(function, "hypothesis") or HOME not in item.path.parents:
        return
    from spec_tests.kit.worker import examples_of, fitted_settings

    if not hasattr(function, "own_settings"):
        function.own_settings = function._hypothesis_internal_use_settings
    examples = function.own_settings.max_examples  # a test of the house that draws states its number
    if _is_property(item):
        examples = examples_of(_component(item), item.config.getoption("spec_max_examples"))
    function._hypothesis_internal_use_settings = fitted_settings(function, function.own_settings, max_examples=examples)


def pytest_runtest_teardown(item: Any) -> None:
    """Leave the function as it was."""
    function = getattr(item, "function", None)
    if hasattr(function, "own_settings"):
        function._hypothesis_internal_use_settings = function.own_settings


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: pytest.CallInfo) -> Any:
    """Show below a failed property the lines that reproduce it."""
    report = yield
    if report.when == "call" and report.failed and call.excinfo is not None and _is_property(item):
        from spec_tests.kit.reproduction import reproduction
        from spec_tests.kit.wire import encode, encode_call

        subject = item.callspec.params["subject"]
        loaded = next(known for known, _ in item.config.stash[_loaded].values() if known.subject is subject)
        lines = reproduction(
            [encode_call(made) for made in subject.calls],
            import_code=loaded.import_code,
            manners=subject.manners(),
            declared=subject.conventions,
            dtype=subject.dtype.name,
            should=encode(getattr(call.excinfo.value, "should", None)),
        )
        if lines:
            report.sections.append(("reproduce with", lines))
    return report
