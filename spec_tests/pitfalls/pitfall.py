"""What a known mistake is, and what only looks like one: wrong (or right) code with words and sources.

Each stem lists its own in `spec_tests/pitfalls/<stem>.py`, as PITFALLS and EQUIVALENCES.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import reference.numpy
import spec_tests.pitfalls
from spec_tests.subjects.contract import VJP
from spec_tests.subjects.subject import Subject

Function = Callable[..., Any]
Functions = Mapping[str, Function]


def right_functions() -> dict[str, Function]:
    """Give the functions of the reference by name."""
    return {name: getattr(reference.numpy, name) for name in reference.numpy.__all__}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Some functions of the reference with others in their place.

    `functions` are complete; `around` makes a function of the one it stands in for, so that two variants combine.
    """

    id: str  # layer_norm.unbiased_std: the component, then the name
    catalogue: tuple[str, ...]  # what the catalogue of mistakes calls it; one mistake may have been seen in two places
    sources: tuple[str, ...]
    functions: Functions = field(default_factory=dict)
    around: Mapping[str, Callable[[Function], Function]] = field(default_factory=dict)
    dtype: str = "float64"  # that the mistake is made in

    @property
    def component(self) -> str:
        """Name the component that it is about."""
        return self.id.split(".")[0]

    @property
    def touches(self) -> tuple[str, ...]:
        """Name the functions that are not the reference's."""
        return (*self.functions, *self.around)

    def on(self, right: Functions) -> dict[str, Function]:
        """Give its own functions, made around those of `right` where they are made around any."""
        return {**self.functions, **{name: wrap(right[name]) for name, wrap in self.around.items()}}

    def subject(self) -> Subject:
        """Give the reference with these functions in place of its own, and no gradient of what has changed."""
        right, own = right_functions(), self.on(right_functions())
        kept = {name: function for name, function in right.items() if name.removesuffix(VJP) not in own}
        return Subject(SimpleNamespace(**{**kept, **own}, dtype=self.dtype), name=self.id)


@dataclass(frozen=True, kw_only=True)
class Pitfall(Variant):
    """A mistake that people make.

    `programs` names functions of our own programs, `reference.numpy.training.train`, and what stands in for each.
    `caught_by` names what finds it: properties (`layer_norm.every_row_has_mean_0`), or for programs test functions
    (`spec_tests.test_training.test_the_loss_falls`). The first is a property without an oracle, unless `golden` says
    why there is none: only a value from elsewhere can tell.
    """

    does: str  # one sentence: what the code does wrong
    shows: str  # how one notices
    mend: str
    visibility: Literal["raises", "silent", "training"]
    caught_by: tuple[str, ...]
    programs: Mapping[str, Any] = field(default_factory=dict)
    golden: str = ""


@dataclass(frozen=True, kw_only=True)
class Equivalence(Variant):
    """What looks like a mistake and is none: it passes, `always` or on a condition.

    On a condition it passes every property but those in `outside`, globs of the ids of what lies outside the condition.
    """

    says: str  # the equation or claim, in one sentence
    condition: str = "always"
    outside: tuple[str, ...] = ()


@functools.cache
def all_variants() -> tuple[Variant, ...]:
    """Give every pitfall and every equivalence of every stem."""
    found: list[Variant] = []
    for module_info in pkgutil.iter_modules(spec_tests.pitfalls.__path__):
        module = importlib.import_module(f"spec_tests.pitfalls.{module_info.name}")
        found += [*getattr(module, "PITFALLS", ()), *getattr(module, "EQUIVALENCES", ())]
    return tuple(found)


def pitfalls(component: str | None = None) -> tuple[Pitfall, ...]:
    """Give the pitfalls of a component, or all."""
    return tuple(v for v in all_variants() if isinstance(v, Pitfall) and component in (None, v.component))


def equivalences() -> tuple[Equivalence, ...]:
    """Give what only looks like a mistake."""
    return tuple(v for v in all_variants() if isinstance(v, Equivalence))
