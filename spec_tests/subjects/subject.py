"""A subject: somebody's implementation behind one face, so that every property can be put to every one.

`subject.layer_norm(x, None, None, eps=0.1)` calls their function the way the contract says (with copies of arrays, and
the options that differ from their defaults), and brings back NumPy arrays of the promised shapes or says what is wrong.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin

import jaxtyping
import numpy as np

import reference.numpy
from spec_tests.judge import Mismatch, SubjectRaised, Unsupported


@dataclass(frozen=True)
class Call:
    """One call as the contract has it: every argument, options at their defaults left out."""

    component: str
    args: tuple[Any, ...]
    options: dict[str, Any]


class Subject:
    """Somebody's functions, called as the contract says.

    `strict` holds for our own two backends: their error types and messages are part of the specification.
    """

    def __init__(self, namespace: Any, *, name: str, strict: bool = False) -> None:
        self.namespace, self.name, self.strict = namespace, name, strict
        self.arrays: str = getattr(namespace, "arrays", "numpy")
        if self.arrays not in ("numpy", "torch"):
            raise ValueError(f"{name}: arrays must be 'numpy' or 'torch', got {self.arrays!r}")
        self.dtype = np.dtype(getattr(namespace, "dtype", "float64"))
        self.calls: list[Call] = []
        self.last_result: Any = None
        self.last_given: tuple[Any, Any] = ((), {})
        self.before_call: Callable[[Call], None] = lambda call: None
        self.after_call: Callable[[], None] = lambda: None
        self._wants_error = False

    def __repr__(self) -> str:
        return self.name

    def __getattr__(self, component: str) -> Callable[..., Any]:
        if component.startswith("_") or not hasattr(reference.numpy, component):
            raise AttributeError(f"{component} is not a component of the contract")
        return lambda *args, **options: self.call(component, *args, **options)

    @property
    def eps(self) -> float:
        """The unit of rounding in the subject's dtype, which error bounds are multiples of."""
        return float(np.finfo(self.dtype).eps)

    def offers(self, component: str) -> bool:
        """Say whether the subject has a function of this name."""
        return callable(getattr(self.namespace, component, None))

    def begin_example(self) -> None:
        """Forget the calls of the example before."""
        self.calls, self.last_result = [], None

    @contextmanager
    def expecting_an_error(self) -> Iterator[None]:
        """Leave results unchecked: the input is bad, so the contract promises no shape."""
        self._wants_error = True
        try:
            yield
        finally:
            self._wants_error = False

    def call(self, component: str, *args: Any, **options: Any) -> Any:
        """Call the subject's function; its result as NumPy arrays, or Unsupported, SubjectRaised, Mismatch."""
        args, options = _without_defaults(component, *_scalars_as_arrays(component, args, options))
        call = Call(component, args, options)
        self.calls.append(call)
        function = getattr(self.namespace, component, None)
        if function is None:
            raise Unsupported(f"{self.name} does not offer {component}")
        _refuse_unknown_options(function, call)
        given = [self._hand_over(arg) for arg in args]
        given_options = {name: self._hand_over(value) for name, value in options.items()}
        self.last_given = (given, given_options)
        self.before_call(call)
        raised: BaseException | None = None
        try:
            with _default_dtype(self):
                result = function(*given, **given_options)
        except NotImplementedError as lacking:
            raise Unsupported(str(lacking) or f"{component} is not implemented") from lacking
        except (KeyboardInterrupt, Unsupported):
            raise
        except BaseException as error:  # even SystemExit: the subject must not decide when we stop
            raised = error
        finally:
            self.after_call()
        if raised is not None:
            # Raised out here it has no context, by which Hypothesis would tell one failure from another.
            raise SubjectRaised(component, raised) from raised
        self.last_result = result = to_numpy(result, component)
        if not self._wants_error:
            check_result(call, result)
        return result

    def _hand_over(self, value: Any) -> Any:
        """Copy what the subject gets (it may write into it), in its dtype and kind of array."""
        if isinstance(value, Mapping):
            return {name: self._hand_over(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            parts = (np.asarray(part) if isinstance(part, np.generic) else part for part in value)
            return type(value)(self._hand_over(part) for part in parts)
        if isinstance(value, np.ndarray):
            value = value.astype(self.dtype) if value.dtype == np.float64 else value.copy()
            return _to_torch(value) if self.arrays == "torch" else value
        if isinstance(value, type) and issubclass(value, np.generic) and self.arrays == "torch":
            return getattr(_torch(), np.dtype(value).name)
        return copy.deepcopy(value) if not isinstance(value, ModuleType) else value


def _torch() -> ModuleType:
    import torch

    return torch


@contextmanager
def _default_dtype(subject: Subject) -> Iterator[None]:
    """Let a function of tensors that is given none, such as a table of positions, work in the subject's dtype."""
    if subject.arrays != "torch":
        yield
        return
    torch = _torch()
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, subject.dtype.name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _to_torch(value: np.ndarray) -> Any:
    return _torch().from_numpy(np.ascontiguousarray(value).reshape(value.shape))


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def _scalars_as_arrays(component: str, args: tuple, options: dict) -> tuple[tuple, dict]:
    """Give back their zero axes to what NumPy's arithmetic made scalars of, where the contract has an array."""
    parameters = inspect.signature(getattr(reference.numpy, component)).parameters
    wanted = [name for name, p in parameters.items() if array_annotations(p.annotation)]

    def restored(name: str, value: Any) -> Any:
        return np.asarray(value) if isinstance(value, np.generic) and name in wanted else value

    names = [*parameters, *("" for _ in args)]
    args = tuple(restored(name, arg) for name, arg in zip(names, args, strict=False))
    return args, {name: restored(name, value) for name, value in options.items()}


def _without_defaults(component: str, args: tuple, options: dict) -> tuple[tuple, dict]:
    """Leave out what stands at its default: a subject need not know options that nobody uses."""
    parameters = list(inspect.signature(getattr(reference.numpy, component)).parameters.values())
    kept_options = {
        name: value
        for name, value in options.items()
        if not any(p.name == name and _same(value, p.default) for p in parameters)
    }
    kept = list(args)
    while kept and len(kept) <= len(parameters) and _same(kept[-1], parameters[len(kept) - 1].default):
        kept.pop()
    return tuple(kept), kept_options


def _refuse_unknown_options(function: Callable[..., Any], call: Call) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature: the call itself will tell
        return
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        names = {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
        if lacking := [name for name in call.options if name not in names]:
            raise Unsupported(f"{call.component} has no option {lacking[0]}")
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(call.args) > len(places):
            raise Unsupported(f"{call.component} takes {len(places)} positional arguments, {len(call.args)} are given")


def to_numpy(value: Any, component: str) -> Any:
    """Read a result: arrays, tensors and numbers become NumPy arrays, in tuples, lists and dicts too."""
    if isinstance(value, Mapping):
        return {name: to_numpy(part, component) for name, part in value.items()}
    if isinstance(value, list | tuple) and not all(isinstance(part, int | float | bool) for part in value):
        return type(value)(to_numpy(part, component) for part in value)
    if hasattr(value, "detach"):  # a torch tensor, wherever it lives; NumPy has no bfloat16
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
        return value.numpy()
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    try:
        array = np.asarray(value)
    except Exception as problem:
        raise Mismatch(f"{component} returned {type(value).__name__}, which is no array: {problem}") from problem
    if array.dtype == object or array.dtype.kind in "USmM":
        raise Mismatch(
            f"{component} returned {type(value).__name__}, which is no array of numbers", got=repr(value)[:200]
        )
    return array


def check_result(call: Call, result: Any) -> None:
    """Hold the shapes of a result against the contract's annotation, given those of the arguments."""
    function = getattr(reference.numpy, call.component)
    bound = inspect.signature(function).bind(*call.args, **call.options)
    bound.apply_defaults()
    hints = function.__annotations__
    with jaxtyping.jaxtyped("context"):
        for name, value in bound.arguments.items():
            for annotation in array_annotations(hints.get(name)):
                isinstance(value, annotation)  # binds the names of the axes
        _check_against(call.component, hints["return"], result)


def array_annotations(hint: Any) -> list[Any]:
    """Give the jaxtyping annotations in a hint: one for an array, one in `X | None`, none for anything else."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return [a for part in get_args(hint) for a in array_annotations(part)]
    return [hint] if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray) else []


def _check_against(component: str, hint: Any, result: Any) -> None:
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if not isinstance(result, tuple | list) or len(result) != len(parts):
            raise Mismatch(f"{component} should return {len(parts)} values", got=repr(result)[:200])
        for part, value in zip(parts, result, strict=True):
            _check_against(component, part, value)
        return
    for annotation in array_annotations(hint):
        if not (isinstance(result, np.ndarray) and isinstance(result, annotation)):
            found = (
                f"{result.dtype} of shape {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
            )
            should = f"{annotation.__name__.split('[')[0]} with axes {annotation.dim_str!r}"
            raise Mismatch(f"{component} returned {found}", got=result, should=should)
