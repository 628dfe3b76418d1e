"""Faults on purpose: for every property a piece of wrong code that it must catch.

A property that nothing can fail says nothing. Each stem lists its faults in `spec_tests/meta/faults_<stem>.py`, and
`test_every_property_can_fail.py` runs every property on the fault that names it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import reference.numpy
from spec_tests.subjects.subject import Subject


@dataclass(frozen=True)
class Fault:
    """Wrong code: the functions that stand in for the reference's, and the properties that must fail.

    They are named `component.name`; a `*` stands for any.
    """

    name: str
    functions: dict[str, Callable[..., Any]]
    fails: tuple[str, ...]

    def subject(self) -> Subject:
        """Give the reference with these functions in place of its own."""
        right = {name: getattr(reference.numpy, name) for name in reference.numpy.__all__}
        return Subject(SimpleNamespace(**{**right, **self.functions}), name=self.name)
