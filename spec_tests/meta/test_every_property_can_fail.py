"""Every property of the specification has been seen to fail."""

import fnmatch
import importlib
import pkgutil

import pytest

import spec_tests.meta
from spec_tests.meta.faults import Fault
from spec_tests.search import fails
from spec_tests.spec import Property, all_properties

FAULTS: list[Fault] = [
    fault
    for module in pkgutil.iter_modules(spec_tests.meta.__path__)
    if module.name.startswith("faults_")
    for fault in importlib.import_module(f"spec_tests.meta.{module.name}").FAULTS
]

FEW = 5


def name_of(a_property: Property) -> str:
    """Give the id without its case: component.name."""
    return ".".join(a_property.id.split(".")[:2])


def matching(pattern: str) -> list[str]:
    """Give the names that a fault means: `*.a_wrong_rank_is_refused` is that of every component."""
    return fnmatch.filter(sorted({name_of(p) for p in all_properties()}), pattern)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught_by_the_properties_it_names(fault: Fault) -> None:
    """Wrong code fails every property that it names, in at least one of the property's cases."""
    for wanted in fault.fails:
        names = matching(wanted)
        assert names, f"{fault.name} names {wanted}, which is no property"
        for name in names:
            candidates = [p for p in all_properties() if name_of(p) == name]
            assert _one_fails(candidates, fault), f"{fault.name} passes {name}: {candidates[0].sentence}"


def test_every_property_has_a_fault_that_it_catches() -> None:
    """No property goes untested: each is named by at least one fault."""
    caught = {name for fault in FAULTS for wanted in fault.fails for name in matching(wanted)}
    assert sorted({name_of(p) for p in all_properties()} - caught) == []


def _one_fails(candidates: list[Property], fault: Fault) -> bool:
    """Say whether one of the properties fails: first by a few examples of each, for many of one may be in vain."""
    subject = fault.subject()
    return any(fails(p, subject, examples=n) for n in (FEW, None) for p in candidates)
