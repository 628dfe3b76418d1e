"""Every known mistake is caught, and what only looks like one passes; with few examples: `make strength` takes many."""

import fnmatch
from functools import cache

import pytest

from spec_tests.pitfalls import programs
from spec_tests.pitfalls.pitfall import Equivalence, Pitfall, equivalences, pitfalls
from spec_tests.search import catches, fails
from spec_tests.spec import Property, all_properties

FEW = 5
"""So many examples find most mistakes; where they do not, a property draws as many as it takes by itself, and more."""
LOOK_ALIKE = 3


def named(name: str) -> list[Property]:
    """Give the properties of this name, component.name or component.name.case."""
    return [prop for prop in all_properties() if prop.id == name or prop.id.rpartition(".")[0] == name]


def one_catches(name: str, pitfall: Pitfall, examples: int | None) -> bool:
    """Say whether the property of this name, in one of its cases, fails on the pitfall."""
    return any(catches(prop, pitfall.subject(), examples=examples) for prop in named(name))


@pytest.mark.parametrize("pitfall", [p for p in pitfalls() if p.touches], ids=lambda pitfall: pitfall.id)
def test_a_pitfall_is_caught_by_what_it_names_first(pitfall: Pitfall) -> None:
    """A mistake in a component fails the first property that is said to catch it."""
    name = pitfall.caught_by[0]
    assert named(name), f"{name} is no property"
    assert any(one_catches(name, pitfall, examples) for examples in (FEW, None)), f"{pitfall.id} passes {name}"


@cache
def passes_without(name: str, torch: bool) -> bool:
    """Say whether a test of our programs passes where no pitfall stands in for anything."""
    return not programs.fails(name, FEW, torch=torch)


@pytest.mark.parametrize("pitfall", [p for p in pitfalls() if p.programs], ids=lambda pitfall: pitfall.id)
def test_a_pitfall_of_a_program_fails_a_test_of_it(pitfall: Pitfall) -> None:
    """A mistake in one of our programs fails the first test that is said to catch it, which passes without it."""
    assert any(programs.caught(pitfall, max_examples=examples, all_of_them=False) for examples in (FEW, None))
    torch = any(target.startswith("reference.torch") for target in pitfall.programs)
    assert passes_without(pitfall.caught_by[0], torch)


@pytest.mark.parametrize("equivalence", equivalences(), ids=lambda equivalence: equivalence.id)
def test_what_only_looks_like_a_mistake_passes(equivalence: Equivalence) -> None:
    """What is no mistake passes every property of its component, but for those outside its condition."""
    subject = equivalence.subject()
    stated = [p for p in all_properties() if p.component == equivalence.component and p.is_asked_of(subject)]
    assert stated
    inside = [p for p in stated if not any(fnmatch.fnmatchcase(p.id, glob) for glob in equivalence.outside)]
    assert [prop.id for prop in inside if fails(prop, equivalence.subject(), examples=LOOK_ALIKE)] == []
