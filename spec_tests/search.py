"""Look for an input on which a property fails: many examples, no shrinking, for it must be found and not explained."""

import secrets
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.errors import Flaky

from reference.shape_checks import unchecked
from spec_tests.spec import Property
from spec_tests.subjects.subject import Subject


def fails(prop: Property, subject: Subject, *, examples: int | None = None, seed: int | None = None) -> bool:
    """Say whether a property fails on one of so many examples, or of four times as many as it states itself.

    What the subject lacks is not failed.
    """
    try:
        with searching(prop.function, examples=examples, seed=seed):
            prop.run(subject)
    except unittest.SkipTest:
        return False
    except (AssertionError, Flaky):  # a judge.Mismatch is an assertion; who answers by chance fails by chance
        return True
    return False


def catches(prop: Property, subject: Subject, *, examples: int | None = None, seed: int | None = None) -> bool:
    """Say the same, looking without shape checks first, which is quick: the same inputs must fail with them too."""
    seed = secrets.randbits(32) if seed is None else seed
    with unchecked():
        suspected = fails(prop, subject, examples=examples, seed=seed)
    return suspected and fails(prop, subject, examples=examples, seed=seed)


@contextmanager
def searching(function: Any, *, examples: int | None = None, seed: int | None = None) -> Iterator[None]:
    """Let a test function draw so many examples and shrink none; then leave its settings as they were."""
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is None:  # it draws nothing
        yield
        return
    own_seed = getattr(function, "_hypothesis_internal_use_seed", None)
    function._hypothesis_internal_use_settings = settings(
        own,
        max_examples=examples or 4 * own.max_examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,  # or an exception group would hold the failures
        print_blob=False,
        verbosity=Verbosity.quiet,
    )
    function._hypothesis_internal_use_seed = seed
    try:
        yield
    finally:
        function._hypothesis_internal_use_settings = own
        function._hypothesis_internal_use_seed = own_seed
