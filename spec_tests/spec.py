"""What a property is: a sentence about one component, and a test function that checks it on any subject.

    @states("softmax")
    @given(scores=inputs("softmax"))
    def test_rows_sum_to_one(subject, scores):
        '''Softmax weights sum to 1.'''

pytest runs it as a test, `transformer-spec check` runs the same function on somebody's code and reports the sentence.
A property that is true of many components takes a `case` (see `strategies.CASES`) and is stated once for each:

    @states(cases=ALL_CASES)
    @given(data=st.data())
    def test_agrees_with_the_reference(subject, case, data): ...

A property about gradients (`gradient=True`) calls `subject.softmax_vjp(cotangent, scores)`, and is put to subjects that
gradients can be had of.

One rule makes `unsupported` honest: a property passes the same options in every example, so that a subject which lacks
an option leaves out exactly the properties about it.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import spec_tests
from reference.components import COMPONENTS


@dataclass(frozen=True)
class Statement:
    """What `states` hangs on a test function: whom it is about, and what else it calls."""

    component: str | None
    cases: tuple[str, ...]
    needs: tuple[str, ...]
    oracle: bool
    gradient: bool
    own: bool
    conventions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Property:
    """One sentence about one component, ready to be run."""

    id: str  # softmax.rows_sum_to_one, or layer_norm.agrees_with_the_reference.std_plus_eps
    component: str
    sentence: str
    function: Callable[..., None]
    needs: tuple[str, ...] = ()
    gradient: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def is_asked_of(self, subject: Any) -> bool:
        """Say whether the subject has what the property is about and all that it calls."""
        return is_asked_of(subject, self.function, self.component)

    def run(self, subject: Any) -> None:
        """Run it; whatever it raises is the verdict."""
        self.function(subject=subject, **self.arguments)


def states(
    component: str | None = None,
    *,
    cases: Iterable[str] = (),
    needs: Iterable[str] = (),
    oracle: bool = False,
    gradient: bool = False,
    own: bool = False,
    conventions: Iterable[str] = (),
) -> Callable:
    """Declare a test function to be a property of `component`, or of the component of each of `cases`.

    `needs` names further components that the property calls; a subject without them is not asked. `oracle` says that it
    compares with the NumPy reference, which is no test of that reference itself. `gradient` says that it is about the
    component's gradient, `<component>_vjp`, which it needs besides; with `own` it is about functions that somebody
    wrote for it, and not put to gradients that autograd finds. With `conventions` it is put to those subjects only that
    declare one of them about the component.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        if not (function.__doc__ or "").strip():
            raise TypeError(f"{function.__name__}: a property states its sentence in its docstring, which is missing")
        if (component is None) == (not tuple(cases)):
            raise TypeError(f"{function.__name__}: state one component or some cases, not both and not neither")
        if hasattr(function, "hypothesis"):
            function.hypothesis.inner_test = _one_example(function.hypothesis.inner_test)
        function.statement = Statement(component, tuple(cases), tuple(needs), oracle, gradient, own, tuple(conventions))
        return function

    return declare


def _one_example(inner_test: Callable[..., None]) -> Callable[..., None]:
    """Tell the subject where an example begins, so that a failure can show the calls of its own example only."""

    @functools.wraps(inner_test)
    def example(*args: Any, **kwargs: Any) -> None:
        kwargs["subject"].begin_example()
        inner_test(*args, **kwargs)

    return example


def sentence_of(function: Callable[..., None]) -> str:
    """Give the sentence a property states: its docstring on one line."""
    return " ".join(inspect.getdoc(function).split())


def property_id(function: Callable[..., None], case: str | None = None) -> str:
    """Give the id of the property that a test function states, in one of its cases if it has any."""
    name = function.__name__.removeprefix("test_")
    if case is None:
        return f"{function.statement.component}.{name}"
    component, variant = case.split(".")
    return f"{component}.{name}.{variant}"


def needs_of(function: Callable[..., None], component: str) -> tuple[str, ...]:
    """Name what a test function calls when it is about this component, the component itself first."""
    gradients = (f"{component}_vjp",) if function.statement.gradient else ()
    return (component, *gradients, *function.statement.needs)


def is_asked_of(subject: Any, function: Callable[..., None], component: str) -> bool:
    """Say whether a subject has what a test function about this component calls."""
    needs, statement = needs_of(function, component), function.statement
    if statement.conventions and not set(statement.conventions) & set(subject.declared(component)):
        return False
    return all(map(subject.offers, needs)) and not (statement.own and any(map(subject.by_autograd, needs)))


def properties_of(function: Callable[..., None]) -> Iterator[Property]:
    """Give the properties a test function states: one, or one for each of its cases."""
    statement: Statement = function.statement
    for case in (None,) if statement.component is not None else statement.cases:
        component = statement.component if case is None else case.split(".")[0]
        yield Property(
            id=property_id(function, case),
            component=component,
            sentence=sentence_of(function),
            function=function,
            needs=needs_of(function, component),
            gradient=statement.gradient,
            arguments={} if case is None else {"case": case},
        )


@functools.cache
def all_properties() -> tuple[Property, ...]:
    """Collect every property from `test_contract.py` and the `test_<stem>.py` beside it, in their order."""
    found: list[Property] = []
    # training and generation are no components: their tests are about our own programs, and would import torch
    stems = {"contract", "conventions", *(component.stem for component in COMPONENTS.values())}
    for module_info in pkgutil.iter_modules(spec_tests.__path__):
        if module_info.name.removeprefix("test_") in stems:
            module = importlib.import_module(f"spec_tests.{module_info.name}")
            for function in vars(module).values():
                if hasattr(function, "statement") and function.__module__ == module.__name__:
                    found.extend(properties_of(function))
    return tuple(found)
