"""What a diagnosis compares on: calls of a component, what the subject made of each, and what is right.

Fresh calls hold numbers in general position, so that nothing ties or vanishes by chance; those of the failures come
beside them, for they hold what it takes to fail.
"""

import functools
import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import reference.numpy
from reference.components import COMPONENTS
from reference.parameters import leaves, map_tree
from reference.shape_checks import unchecked
from spec_tests import bounds, strategies
from spec_tests.judge import Mismatch, SubjectRaised, Unsupported
from spec_tests.subjects.contract import (
    VJP,
    Call,
    array_annotations,
    arrays_of,
    gradient_arguments,
    is_gradient,
    signature,
)
from spec_tests.subjects.subject import Subject, to_numpy

FRESH = 24
"""So many calls are drawn afresh, in all cases of the component together, and at least two in each."""

FAILED = 12
"""So many calls of failures are used."""

REFUSED = 4
"""So many of them may be bad input: to refuse it takes the reference long, since it spells out each shape."""

CLEARLY = 4
"""What differs by so many bounds of rounding is another number."""


class Budget:
    """How much time there is: that of this process, and what it waits for the subject.

    Other work on the machine must not make a diagnosis say less, so the clock on the wall does not count.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started, self.waited = seconds, time.process_time(), 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time that passes here while this process is idle, for the subject may be another one."""
        clock, process = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self.waited += max(0.0, time.monotonic() - clock - (time.process_time() - process))

    @property
    def spent(self) -> float:
        """Give the seconds that are gone."""
        return time.process_time() - self.started + self.waited

    @contextmanager
    def share(self, share: float) -> Iterator[Callable[[], bool]]:
        """Give a share of the time, and a way to ask whether it is up; what is taken beyond it does not count.

        One call of the subject may take longer than all the time there is, and what follows needs its own.
        """
        end = self.spent + share * self.seconds
        try:
            yield lambda: self.spent > end
        finally:
            self.seconds += max(0.0, self.spent - end)

    def over(self) -> bool:
        """Say whether the time is up."""
        return self.spent > self.seconds


@dataclass(frozen=True)
class Raised:
    """What an outcome is where there is no value: the text of the error."""

    error: str


Outcome = dict[str, np.ndarray] | Raised
"""The arrays of a result by their paths, or that there is none."""


@dataclass(frozen=True)
class Draw:
    """One call with what came of it."""

    call: Call
    case: str  # "plain", or "" for the call of a failure
    right: Outcome
    got: Outcome
    eps: float
    writes: bool = False  # into its arguments

    @property
    def refused(self) -> bool:
        """Say whether the input is bad: the right answer is an error."""
        return isinstance(self.right, Raised)

    @cached_property
    def wrong(self) -> bool:
        """Say whether the subject is clearly wrong here; what it makes of bad input is another question."""
        return self.differs(self.got, self.right)

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """Give the bound of rounding of each array of the right answer."""
        if isinstance(self.right, Raised):
            return {}
        should = self.right[""] if list(self.right) == [""] else dict(self.right)
        try:
            with unchecked(), np.errstate(all="ignore"):
                return bounds.bounds(self.call, should, eps=self.eps)
        except Exception:  # input so special that it has no bound, such as NaN in the middle of a config
            return {}

    def limit(self, path: str, array: np.ndarray) -> float:
        """Give how far rounding may move this array: as far as the right answer, or for its own size.

        Right code stays under a tenth of the bound. Where numbers are coarse a quarter of it tells more mistakes apart;
        in float64 there is room for other ways to compute the same.
        """
        finite = np.abs(array[np.isfinite(array)]) if array.dtype.kind == "f" else np.abs(array.astype(np.float64))
        own = bounds.SAFETY * self.eps * float(finite.max(initial=0)) * max(array.shape, default=1)
        limit = max(float(self.limits.get(path, 0.0)), own) * (16 if self.eps < 1e-12 else 0.25)
        return min(max(limit, float(np.finfo(np.float64).tiny)), float(np.finfo(np.float64).max))

    def distance(self, one: Outcome, other: Outcome) -> float:
        """Say how far two outcomes are apart, in bounds of rounding; infinitely where they are of two kinds."""
        if isinstance(one, Raised) or isinstance(other, Raised):
            return 0.0 if isinstance(one, Raised) and isinstance(other, Raised) else np.inf
        if set(one) != set(other):
            return np.inf
        return max((self.apart(path, one[path], other[path]) for path in one), default=0.0)

    def apart(self, path: str, one: np.ndarray, other: np.ndarray) -> float:
        """Say the same of one array of the two."""
        if one.shape != other.shape:
            return np.inf
        with np.errstate(over="ignore"):
            return float(difference(one, other).max(initial=0.0) / self.limit(path, other))

    def agrees(self, one: Outcome, other: Outcome) -> bool:
        """Say whether two outcomes are equal up to rounding."""
        return self.distance(one, other) <= 1

    def differs(self, one: Outcome, other: Outcome) -> bool:
        """Say whether two outcomes are clearly not equal."""
        return self.distance(one, other) > CLEARLY


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Give |one - other|, 0 for equal infinities and for two NaNs, infinite for a NaN alone."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(all="ignore"):
        apart = np.where(same, 0.0, np.abs(one - other))
    return np.where(np.isnan(apart), np.inf, apart)


def draws_of(
    subject: Subject,
    component: str,
    failed: list[Call],
    *,
    seed: int,
    budget: Budget,
    share: float,
    gradient: bool = False,
) -> list[Draw]:
    """Draw calls of a component, or its gradient, that the subject supports, and make them in a share of the time."""
    found: list[Draw] = []
    theirs = [call for call in failed if call.component == (component + VJP if gradient else component)]
    cases = strategies.CASES[component] if not gradient or COMPONENTS[component].differentiable else {}
    each = max(2, FRESH // len(cases)) if cases else 0
    with budget.share(share) as over:
        for call in theirs[:FAILED]:
            found += _made(subject, call, "", budget)
            if sum(draw.refused for draw in found) == REFUSED:
                break
        with unchecked():
            for case in cases:
                if over():
                    break
                for call in fresh_calls(f"{component}.{case}", each, seed=seed, gradient=gradient):
                    made = list(_made(subject, call, case, budget))
                    found += made
                    if not made or over():
                        break
    return found


def _made(subject: Subject, call: Call, case: str, budget: Budget) -> Iterator[Draw]:
    call = call.mapped(_rounded(subject))
    try:
        with budget.waiting():
            got = outcome_of(subject, call)
    except Unsupported:
        return
    call = subject.calls[-1]  # without options at their defaults, for a mistake may have other defaults
    right = outcome(getattr(reference.numpy, call.component), call)
    yield Draw(call, case, right, got, max(subject.eps, coarsest(call)), writes_into_arguments(subject, call))


def coarsest(call: Call) -> float:
    """Give the unit of rounding of the coarsest numbers in a call."""
    arrays = [array for value in (*call.args, *call.options.values()) for _, array in leaves(value)]
    return max(
        (float(np.finfo(a.dtype).eps) for a in arrays if isinstance(a, np.ndarray) and a.dtype.kind == "f"), default=0.0
    )


def writes_into_arguments(subject: Subject, call: Call) -> bool:
    """Say whether what the subject was given last, in this call, is not what it was."""
    given, options = subject.last_given
    before = subject.given(subject.calls[-1])
    try:
        after = dict(leaves([to_numpy(_only_arrays(list(given)), ""), to_numpy(_only_arrays(options), "")]))
    except Mismatch:
        return False
    return any(
        path in after and difference(np.asarray(after[path]), array.astype(after[path].dtype)).max(initial=0) > 0
        for path, array in leaves([_only_arrays(list(before.args)), _only_arrays(before.options)])
    )


def _only_arrays(value: Any) -> Any:
    """Keep the arrays and tensors of a tree; anything else becomes a 0."""
    if isinstance(value, Mapping):
        return {name: _only_arrays(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_only_arrays(part) for part in value]
    return value if hasattr(value, "shape") and hasattr(value, "dtype") else np.zeros(1)


def writes(function: Callable[..., Any], call: Call) -> bool:
    """Say whether a function writes into the arrays that it is given."""
    args = [map_tree(np.array, a) if isinstance(a, np.ndarray | Mapping | list) else a for a in call.args]
    with suppress(Exception), np.errstate(all="ignore"):
        function(*args, **call.options)
    pairs = zip(leaves(args), leaves(list(call.args)), strict=True)
    return any(
        isinstance(before, np.ndarray) and difference(after, before).max(initial=0) > 0
        for (_, after), (_, before) in pairs
    )


def _rounded(subject: Subject) -> Callable[[np.ndarray], np.ndarray]:
    """Round numbers to what the subject gets: its dtype is no mistake."""

    def rounded(array: np.ndarray) -> np.ndarray:
        if array.dtype == np.float64 and subject.dtype != np.float64:
            return array.astype(subject.dtype, order="K").astype(np.float64, order="K")
        return array

    return rounded


def outcome_of(subject: Subject, call: Call) -> Outcome:
    """Call the subject. Raises Unsupported."""
    with subject.expecting_an_error(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return arrays_of(subject.call(call.component, *call.args, **call.options))
        except SubjectRaised as raised:
            return Raised(f"{type(raised.original).__name__}: {raised.original}")
        except Mismatch as no_array:
            return Raised(no_array.what)


def outcome(function: Callable[..., Any], call: Call, dtype: str = "float64") -> Outcome:
    """Call a function on copies of the arguments, whose floating numbers have this dtype."""
    given = call.mapped(lambda a: a.astype(dtype) if a.dtype == np.float64 else a.copy())  # as a subject gets them
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return arrays_of(to_numpy(function(*given.args, **given.options), call.component))
        except Exception as error:
            return Raised(f"{type(error).__name__}: {error}")


# ----------------------------------------------------------------------------------------------- fresh calls


@functools.lru_cache(maxsize=256)
def fresh_calls(case: str, count: int, *, seed: int, gradient: bool = False) -> tuple[Call, ...]:
    """Draw calls of a case, and put numbers in general position into them.

    In every other one they lie in memory in another order, which has no meaning.
    """
    import hypothesis
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings

    found: list[Call] = []
    drawn = strategies.gradient_calls(case) if gradient else strategies.calls(case)

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(drawn)
    def collect(call: Call) -> None:
        generator = np.random.default_rng((seed, len(found)))
        general = strategies.in_general_position if gradient else in_general_position
        made = general(call, generator)
        found.append(_in_another_order(made) if len(found) % 2 else made)

    collect()
    return tuple(found)


def _in_another_order(call: Call) -> Call:
    return call.mapped(np.asfortranarray)


def in_general_position(call: Call, generator: np.random.Generator) -> Call:
    """Put normal numbers into a call; what must be positive, or a probability, stays so."""

    def general(path: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        drawn = np.asarray(generator.standard_normal(value.shape))
        match path.rpartition(".")[2]:
            case "gamma":
                return np.exp(0.5 * drawn)
            case "v" if call.component == "adamw_step":
                return drawn**2
            case "probabilities" | "uniform":
                return value
            case _:
                return drawn if path in ("x", "q", "k", "v", "scores", "logits") else 0.5 * drawn

    names = list(signature(call.component).parameters)[: len(call.args)]
    given = strategies.changed(dict(zip(names, call.args, strict=True)), general)
    return Call(call.component, tuple(given.values()), strategies.changed(call.options, general))


# ----------------------------------------------------------------------------------------------- what a call is like


def bound_arguments(call: Call) -> dict[str, Any]:
    """Give every argument by its name, defaults too."""
    bound = signature(call.component).bind(*call.args, **call.options)
    bound.apply_defaults()
    return dict(bound.arguments)


def has_batch(call: Call) -> bool:
    """Say whether the result may have batch axes."""
    return any("*batch" in annotation.dim_str for annotation in _result_annotations(call.component))


def axis_names(call: Call, path: str, ndim: int) -> list[str]:
    """Name the axes of an array of the result; those of the batch are all called `batch`."""
    annotations = _result_annotations(call.component)
    head, _, rest = path.partition(".")
    place = int(head) if head.isdigit() else 0
    if rest or place >= len(annotations):
        return [f"axis {n}" for n in range(ndim)]
    names = annotations[place].dim_str.split()
    fixed = [name for name in names if name[0] != "*"]
    many = next((name.lstrip("*#") for name in names if name[0] == "*"), "axis")
    if len(fixed) > ndim:
        return [f"axis {n}" for n in range(ndim)]
    return [many] * (ndim - len(fixed)) + fixed


def _result_annotations(component: str) -> list[Any]:
    if is_gradient(component):
        parameters = signature(component).parameters
        return [a for name in gradient_arguments(component) for a in array_annotations(parameters[name].annotation)]
    hint = signature(component).return_annotation
    parts = getattr(hint, "__args__", ()) if getattr(hint, "__origin__", None) is tuple else (hint,)
    return [a for part in parts for a in array_annotations(part)]


def sizes_of(call: Call) -> dict[str, int]:
    """Read the size of every named axis off the arrays of a call, and of a config its sizes."""
    sizes: dict[str, int] = {}
    parameters = signature(call.component).parameters
    for name, value in bound_arguments(call).items():
        if isinstance(value, np.ndarray):
            for annotation in array_annotations(parameters[name].annotation):
                axes = [axis for axis in annotation.dim_str.split() if axis.isidentifier()]
                for axis, size in zip(reversed(axes), reversed(value.shape), strict=False):
                    sizes.setdefault(axis, size)
        elif name in ("seq", "d_model", "q_seq", "k_seq", "n_heads", "max_len") and isinstance(value, int):
            sizes[name] = value
        elif name == "config":
            sizes |= {size: getattr(value, size) for size in ("d_model", "n_heads", "n_layers", "d_ff", "vocab")}
    if "n_heads" in sizes:
        width = sizes.get("heads_d_k", sizes.get("d_model"))
        sizes["d_k"] = width // sizes["n_heads"] if width else 0
    return {name: size for name, size in sizes.items() if size}


def default_of(component: str, name: str) -> Any:
    """Give the default of an argument, `inspect.Parameter.empty` if it has none."""
    parameter = signature(component).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default
