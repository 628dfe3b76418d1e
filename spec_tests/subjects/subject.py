"""A subject: somebody's implementation behind one face, so that every property can be put to every one.

`subject.layer_norm(x, None, None, eps=0.1)` calls their function the way the contract says (with copies of arrays, and
the options that differ from their defaults), and brings back NumPy arrays of the promised shapes or says what is wrong.

`subject.layer_norm_vjp(cotangent, x, gamma, beta)` gives gradients, as a tuple: those of their own function of that
name if there is one, else for functions of tensors those of autograd.

What a subject declares as its `conventions` (see `conventions.py`) is minded in every call: properties speak the
contract's language, and the subject hears its own.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from reference.components import COMPONENTS
from spec_tests.judge import Mismatch, SubjectRaised, Unsupported
from spec_tests.subjects import conventions
from spec_tests.subjects.autograd import Arguments, import_jax, jax_gradients, torch_gradients
from spec_tests.subjects.contract import (
    VJP,
    Call,
    array_annotations,
    check_result,
    gradient_arguments,
    is_gradient,
    plain,
    signature,
)

ARRAYS = ("numpy", "torch", "jax")
"""What a subject may ask to be given."""

AUTOGRAD = {"torch": torch_gradients, "jax": jax_gradients}


class Subject:
    """Somebody's functions, called as the contract says.

    `strict` holds for our own two backends: their error types and messages are part of the specification.
    """

    def __init__(self, namespace: Any, *, name: str, strict: bool = False) -> None:
        self.namespace, self.name, self.strict = namespace, name, strict
        self.arrays: str = getattr(namespace, "arrays", "numpy")
        if self.arrays not in ARRAYS:
            raise ValueError(f"{name}: arrays must be one of {', '.join(map(repr, ARRAYS))}, got {self.arrays!r}")
        if self.arrays == "jax":
            import_jax()  # before any of its arrays is made, as far as that is in our hands
        self.dtype = np.dtype(getattr(namespace, "dtype", "float64"))
        declared = getattr(namespace, "conventions", {})  # a package may have a module of this name
        self.conventions = conventions.read({} if isinstance(declared, ModuleType) else declared)
        self.calls: list[Call] = []
        self.last_result: Any = None
        self.last_given: tuple[Any, Any] = ((), {})
        self.before_call: Callable[[Call], None] = lambda call: None
        self.after_call: Callable[[], None] = lambda: None
        self._wants_error = False

    def __repr__(self) -> str:
        return self.name

    def __getattr__(self, component: str) -> Callable[..., Any]:
        if component not in COMPONENTS and not is_gradient(component):
            raise AttributeError(f"{component} is not a component of the contract")
        return lambda *args, **options: self.call(component, *args, **options)

    @property
    def eps(self) -> float:
        """The unit of rounding in the subject's dtype, which error bounds are multiples of."""
        return float(np.finfo(self.dtype).eps)

    def offers(self, component: str) -> bool:
        """Say whether the subject has a function of this name, or gradients of this name can be had by autograd."""
        return self._has(component) or self.by_autograd(component)

    def by_autograd(self, component: str) -> bool:
        """Say whether this is a gradient that the subject has no function for, and autograd finds."""
        if not is_gradient(component) or self._has(component):
            return False
        return self._has(plain(component)) and self.arrays_of(component) in AUTOGRAD

    def arrays_of(self, component: str) -> str:
        """Say what arrays the function gets: those the subject asks for, unless the function asks for others."""
        name = component if self._has(component) else plain(component)
        return getattr(getattr(self.namespace, name, None), "arrays", self.arrays)

    def manners(self) -> dict[str, tuple[str, bool]]:
        """Say of all that is offered, gradients too, which arrays it gets, and whether autograd takes its gradient."""
        names = (name for component in COMPONENTS for name in (component, component + VJP))
        return {name: (self.arrays_of(name), self.by_autograd(name)) for name in names if self.offers(name)}

    def declared(self, component: str) -> conventions.Declared:
        """Give what is declared about a component, by the names of its conventions."""
        return self.conventions.get(plain(component), {})

    def given(self, call: Call) -> Call:
        """Give a call of the contract as the subject gets it: translated by what it declares."""
        return conventions.translated(call, self.declared(call.component)).call

    def _has(self, name: str) -> bool:
        return callable(getattr(self.namespace, name, None))

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
        if not self.offers(component):
            lacking = "gradients of " if is_gradient(component) else ""
            raise Unsupported(f"{self.name} does not offer {lacking}{plain(component)}")
        arrays = self.arrays_of(component)
        function = getattr(self.namespace, component if self._has(component) else plain(component))
        translated = conventions.translated(call, self.declared(component))
        theirs, asked = translated.call, conventions.of_the_contract(call)
        _refuse_unknown_options(
            function, Call(plain(component), theirs.args[1:], theirs.options) if self.by_autograd(component) else theirs
        )
        given = [self._hand_over(arg, arrays) for arg in theirs.args]
        given_options = {name: self._hand_over(value, arrays) for name, value in theirs.options.items()}
        self.last_given = (given, given_options)
        self.before_call(call)
        raised: BaseException | None = None
        try:
            with default_dtype(arrays, self.dtype):
                if self.by_autograd(component):
                    result = self._differentiate(function, asked, given, given_options)
                else:
                    result = function(*given, **given_options)
        except NotImplementedError as lacking:
            raise Unsupported(str(lacking) or f"{component} is not implemented") from lacking
        except (KeyboardInterrupt, Unsupported, Mismatch):
            raise
        except BaseException as error:  # even SystemExit: the subject must not decide when we stop
            raised = error
        finally:
            self.after_call()
        if raised is not None:
            # Raised out here it has no context, by which Hypothesis would tell one failure from another.
            raise SubjectRaised(component, raised) from raised
        read = _read_gradients if is_gradient(component) else to_numpy
        self.last_result = result = translated.back(read(result, component))
        if not self._wants_error:
            check_result(asked, result)
        return result

    def _differentiate(self, function: Callable[..., Any], call: Call, given: list, given_options: dict) -> tuple:
        """Run the component itself on tensors, and give the gradients of all arguments that have one."""
        names = dict(enumerate(list(signature(call.component).parameters)[: len(given)]))
        names |= {name: name for name in given_options}
        arguments: Arguments = dict(enumerate(given)) | given_options
        cotangent = arguments.pop(0)
        wanted = gradient_arguments(call.component)
        places = {names[place]: place for place in arguments if names[place] in wanted and arguments[place] is not None}
        component = Call(plain(call.component), call.args[1:], call.options)

        def toward(result: Any) -> Any:
            array = to_numpy(result, component.component)
            if not self._wants_error:
                check_result(component, array)
            if np.shape(array) != np.shape(call.args[0]) or np.asarray(call.args[0]).dtype.kind != "f":
                raise Unsupported("autograd is not asked for gradients of another shape or of whole numbers")
            return cotangent

        gradients = AUTOGRAD[self.arrays_of(call.component)](function, arguments, places, toward)
        return tuple(gradients.get(name) for name in wanted)

    def _hand_over(self, value: Any, arrays: str) -> Any:
        """Copy what the subject gets (it may write into it), in its dtype and kind of array."""
        if isinstance(value, Mapping):
            return {name: self._hand_over(part, arrays) for name, part in value.items()}
        if isinstance(value, list | tuple):
            parts = (np.asarray(part) if isinstance(part, np.generic) else part for part in value)
            return type(value)(self._hand_over(part, arrays) for part in parts)
        if isinstance(value, np.ndarray):
            value = value.astype(self.dtype) if value.dtype == np.float64 else value.copy()
            return {"numpy": np.asarray, "torch": _to_torch, "jax": _to_jax}[arrays](value)
        if isinstance(value, type) and issubclass(value, np.generic) and arrays == "torch":
            return getattr(_torch(), np.dtype(value).name)
        return copy.deepcopy(value) if not isinstance(value, ModuleType) else value


def _torch() -> ModuleType:
    import torch

    return torch


@contextmanager
def default_dtype(arrays: str, dtype: np.dtype) -> Iterator[None]:
    """Let a function of tensors that is given none, such as a table of positions, work in the subject's dtype."""
    if arrays != "torch":
        yield
        return
    torch = _torch()
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype.name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _to_torch(value: np.ndarray) -> Any:
    return _torch().from_numpy(np.ascontiguousarray(value).reshape(value.shape))


def _to_jax(value: np.ndarray) -> Any:
    return import_jax().numpy.asarray(value)


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and not isinstance(value, np.ndarray) and value == default


def _scalars_as_arrays(component: str, args: tuple, options: dict) -> tuple[tuple, dict]:
    """Give back their zero axes to what NumPy's arithmetic made scalars of, where the contract has an array."""
    parameters = signature(component).parameters
    wanted = [name for name, p in parameters.items() if array_annotations(p.annotation)]

    def restored(name: str, value: Any) -> Any:
        return np.asarray(value) if isinstance(value, np.generic) and name in wanted else value

    names = [*parameters, *("" for _ in args)]
    args = tuple(restored(name, arg) for name, arg in zip(names, args, strict=False))
    return args, {name: restored(name, value) for name, value in options.items()}


def _without_defaults(component: str, args: tuple, options: dict) -> tuple[tuple, dict]:
    """Leave out what stands at its default: a subject need not know options that nobody uses."""
    parameters = list(signature(component).parameters.values())
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
    numbers = isinstance(value, list | tuple) and value and all(isinstance(part, int | float) for part in value)
    if isinstance(value, list | tuple) and not numbers:
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
    return array if array.flags.writeable else array.copy()  # what we read is ours to change


def _read_gradients(value: Any, component: str) -> tuple[Any, ...]:
    """Read a tuple of gradients, None among them; a lone array or tree stands for a tuple of one."""
    names = gradient_arguments(component)
    parts = value if isinstance(value, list | tuple) else (value,)
    if len(parts) != len(names):
        what = f"{component} should return {len(names)} gradients, of {', '.join(names)}"
        raise Mismatch(f"{what}, and returned {len(parts)}", got=repr(value)[:200])
    return tuple(None if part is None else to_numpy(part, component) for part in parts)
