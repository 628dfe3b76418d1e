r"""How precise a subject is in each dtype that it offers: a verdict of its own, which says nothing about meaning.

The error is that against the reference in float64 (for float64 itself in extended precision, where the machine has
it) on inputs as they are in the dtype. It is told relative to that of a naive run, the plain formula in NumPy step by
step in the same dtype, and judged by

    bound = (8 sqrt(n) u_sum + steps u) x (largest |result| + sensitivity + what cancels inside)

Here u is the unit roundoff of the dtype. A sum of n terms in any order errs by at most n u of the sum of their
magnitudes (Higham 2002, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 3.1 and 4.2), and where
roundings are independent by more than 8 sqrt(n) u with a probability below 1e-13 (Higham & Mary 2019, SIAM J. Sci.
Comput. 41(5), theorem 2.4). In half precision sums are kept in float32, whose u is `u_sum`: they cost n u_sum + u and
not n u (Blanchard et al. 2020, SIAM J. Sci. Comput. 42(3)). `steps` counts the other roundings on a path through the
component. The second factor is the condition of the call, as in `spec_tests.bounds`: a two-pass variance stays within
it, and a one-pass variance, which loses its square, does not (Chan, Golub & LeVeque 1983, The American Statistician
37(3)). Nobody who is as exact as the naive run is called imprecise.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference.numpy
from reference.components import COMPONENTS
from reference.config import ModelConfig
from reference.parameters import map_tree
from reference.shape_checks import unchecked
from spec_tests.bounds import SAFETY, bounds, summed_length
from spec_tests.judge import Mismatch, Unsupported
from spec_tests.kit.precision_inputs import LENGTHS, Stress, Trial, stress, trials
from spec_tests.subjects.contract import Call, arrays_of
from spec_tests.subjects.subject import Subject, default_dtype

DTYPES = ("float64", "float32", "float16", "bfloat16")
COARSER = DTYPES[1:]
HALF = ("float16", "bfloat16")
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}

LAMBDA = 8
STEPS = {
    "token_embedding": 1, "add_positions": 1, "relu": 1, "dropout": 2, "sinusoidal_positions": 4, "output_head": 2,
    "softmax": 4,  # subtract, exp, sum, divide
    "next_token_distribution": 6, "cross_entropy": 8, "clip_grad_norm": 6, "layer_norm": 9, "gelu": 9, "adamw_step": 13,
    "attention_weights": 7, "scaled_dot_product_attention": 8, "self_attention": 9, "multi_head_attention": 12,
    "feed_forward": 13, "transformer_block": 0, "transformer": 13,
}  # fmt: skip
"""Roundings one after the other in the plain formula, a sum counting as one; those of layers come to them."""
STEPS_OF_A_LAYER = 2 * (STEPS["layer_norm"] + 1) + STEPS["multi_head_attention"] + STEPS["feed_forward"]

ROUGHLY = 4
"""So many roundings a short call in a coarser dtype is off by; 1.2 is the most that was seen of right ones."""

NEARBY = 8
"""So many inputs nearby are tried: the error of a single number is the same for one of them now and then."""

NOT_INSTALLED = "not measured: ml_dtypes is not installed"

Result = dict[str, Any]


# ---------------------------------------------------------------------------------------------------- what is measured


def precision(
    subject: Any, components: Iterable[str] | None = None, dtypes: Iterable[str] | None = None, *, seed: int = 0
) -> list[Result]:
    """Measure the precision of a subject (a file, a module, `"torch_nn"`, or a namespace), component by component.

    Raises CannotRun for a subject that cannot be loaded, an unknown component or dtype.
    """
    from spec_tests.kit.runner import CannotRun, known_components
    from spec_tests.subjects.loading import CannotLoad, load

    wanted, dtypes = known_components(components), list(DTYPES if dtypes is None else dtypes)
    if unknown := [dtype for dtype in dtypes if dtype not in DTYPES]:
        raise CannotRun(f"{unknown[0]}: no such dtype; choose among {', '.join(DTYPES)}")
    try:
        loaded = load(subject)
    except CannotLoad as problem:
        raise CannotRun(str(problem)) from problem
    names = [name for name in loaded.offers if wanted is None or name in wanted]
    results = (measure(loaded.subject, name, dtypes=dtypes, seed=seed) for name in names)
    return [result for result in results if result is not None]


def measure(subject: Subject, component: str, *, dtypes: Iterable[str] | None = None, seed: int = 0) -> Result | None:
    """Measure the precision of one component, as data for JSON; None where there is none to measure.

    `dtypes` holds for each dtype `why_not`, or how large the largest error and the 99.9 % quantile are beside the naive
    run's and the bound, where the worst element stands (`worst`), the `growth` with the length, and the hard rows
    (`stress`). A subject that means something else has none.
    """
    if not any(True for _ in trials(component)) or not subject.offers(component):
        return None
    with unchecked(), np.errstate(all="ignore"):
        inside = _inside(subject, component)
        kinds, others = _kinds(subject, component, inside)
        if not kinds and not others:
            return None
        measured = {
            dtype: _in_dtype(subject, component, dtype, kinds=kinds, inside=inside, seed=seed)
            for dtype in (dtypes or DTYPES if kinds else ())
        }
    return {"component": component, "computes_in": inside, "another_function": others, "dtypes": measured}


def judge(subject: Subject, component: str, *, failed: Iterable[str], max_examples: int | None, seed: int) -> Result:
    """Measure one component; if it computes in a coarser dtype inside, put to it again in that one what it failed.

    Gives `measured`, as `measure` does, and `right_in_its_dtype`, the ids of the properties that it passes there.
    """
    from spec_tests.kit.worker import NARROWER, run_property
    from spec_tests.spec import all_properties

    measured = measure(subject, component, seed=seed)
    inside = measured["computes_in"] if measured else None
    right: list[str] = []
    if inside in NARROWER:
        given, subject.dtype = subject.dtype, np.dtype(inside)
        try:
            for prop in all_properties():
                if prop.id in set(failed):
                    verdict = run_property(prop, subject, max_examples=max_examples, seed=seed)["verdict"]
                    right += [prop.id] if verdict == "passed" else []
        finally:
            subject.dtype = given
    return {"measured": measured, "right_in_its_dtype": right}


def computes_in(subject: Subject, components: Iterable[str] | None = None) -> str | None:
    """Say what coarser dtype a float64 subject computes in inside: "float32", "float16", "bfloat16", or None.

    Its float64 results are then off by so much as that dtype's rounding makes, and what they are off by is noise: move
    the inputs a little and it changes by as much as it is. The error of a wrong formula moves as little as the inputs.
    """
    with unchecked(), np.errstate(all="ignore"):
        named = [name for name in (COMPONENTS if components is None else components) if subject.offers(name)]
        found = {_inside(subject, name) for name in named}
    return max(found - {None}, key=ROUNDOFF.__getitem__, default=None)


def advice(dtype: str) -> str:
    """Say in words what follows from `computes_in`."""
    return f'computes in {dtype} inside: declare `dtype = "{dtype}"` in the subject'


def show(result: Result) -> list[str]:
    """Give the lines of text that tell one result of `measure`."""
    lines = [result["component"]]
    if result["computes_in"]:
        lines.append(f"  {advice(result['computes_in'])}")
    if result["another_function"]:
        kinds = ", ".join(result["another_function"])
        lines.append(f"  another function than the reference's, whose precision cannot be told: {kinds}")
    lines += [f"  {dtype:<8}  {_sentence(dtype, measured)}" for dtype, measured in result["dtypes"].items()]
    hard = {dtype: measured["stress"] for dtype, measured in result["dtypes"].items() if "stress" in measured}
    for rows in zip(*hard.values(), strict=True):
        lines.append(f"  {rows[0]['what']}: {rows[0]['why']}, {_few(rows[0]['right'])}")
        lines += [f"    {dtype:<8}  {_of_a_hard_row(dtype, row)}" for dtype, row in zip(hard, rows, strict=True)]
    return lines


def summary(results: Iterable[Result]) -> list[str]:
    """Tell in short how precise a subject is: what computes in a coarser dtype, what is imprecise, how many are not."""
    lines, within = [], 0
    for result in results:
        if result["computes_in"]:
            lines.append(f"{result['component']} {advice(result['computes_in'])}")
        if imprecise(result):
            lines += show(result)
        else:
            within += bool(result["dtypes"])
    if within:
        who = "1 component is" if within == 1 else f"{within} components are"
        lines.append(f"{who} as precise as rounding allows (`transformer-spec precision` shows each dtype)")
    return lines


def imprecise(result: Result) -> bool:
    """Say whether anything in a result of `measure` is over its bound."""
    return any(
        measured.get("imprecise", False) or any(row["imprecise"] for row in measured.get("stress", ()))
        for measured in result["dtypes"].values()
    )


# --------------------------------------------------------------------------------------------------------- one dtype


@dataclass(frozen=True)
class Errors:
    """What one call is off by: every element, in units of u x the condition; and how far off the naive run is."""

    trial: Trial
    path: str
    error: np.ndarray
    naive: float
    growth: float

    @property
    def worst(self) -> float:
        """The largest error."""
        return float(self.error.max(initial=0))


def growth(n: int, dtype: str, steps: int) -> float:
    """Give the bound on an error in units of u x the condition, for sums of n terms and `steps` other roundings."""
    roundoff_of_sums = ROUNDOFF["float32"] if dtype in HALF else ROUNDOFF[dtype]
    return LAMBDA * math.sqrt(n) * roundoff_of_sums / ROUNDOFF[dtype] + steps


def _steps(call: Call) -> int:
    config = next((value for value in call.args if isinstance(value, ModelConfig)), None)
    layers = 0 if config is None else config.n_layers if call.component == "transformer" else 1
    return STEPS[call.component] + layers * STEPS_OF_A_LAYER


def _in_dtype(
    subject: Subject, component: str, dtype: str, *, kinds: list[str], inside: str | None, seed: int
) -> Result:
    if dtype == "bfloat16" and _bfloat16() is None:
        return {"why_not": NOT_INSTALLED}
    if ROUNDOFF[dtype] < ROUNDOFF.get(subject.dtype.name, 0):
        return {"why_not": f"not offered: the subject declares {subject.dtype.name}"}
    if inside and ROUNDOFF[dtype] < ROUNDOFF[inside]:
        return {"why_not": f"no better than {inside}"}
    narrow = _narrowed(subject, dtype)
    found, why_not = [], "no call of it is supported"
    for trial in (trial for trial in trials(component, lengths=LENGTHS, seed=seed) if trial.kind in kinds):
        try:
            found += _errors(narrow, trial, dtype)
        except Unsupported as lacking:
            why_not = str(lacking)
        except Mismatch as problem:
            return {"why_not": f"not offered: {problem.what}"}
    if not found:
        return {"why_not": why_not}
    return _summary(found, dtype) | {"stress": [_stressed(narrow, row, dtype) for row in stress(component)]}


def _errors(subject: Subject, trial: Trial, dtype: str) -> Iterator[Errors]:
    call = _map_call(trial.call, lambda array: _rounded(array, dtype))
    got = arrays_of(subject.call(call.component, *call.args, **call.options))
    yield from _compared(got, trial, call, dtype)


def _compared(got: dict[str, np.ndarray], trial: Trial, call: Call, dtype: str) -> Iterator[Errors]:
    exact, naive, unit = arrays_of(_exact(call, dtype)), arrays_of(_naive(call, dtype)), _units(call, dtype)
    for path, should in exact.items():
        error, of_naive = (np.abs(_difference(run[path], should)) / unit[path] for run in (got, naive))
        # where the naive run is right to the last bit, the rounding of the result itself is what is there to be had
        least = ROUNDOFF[dtype] * float(np.abs(should).max(initial=0)) / unit[path]
        limit = growth(trial.length, dtype, _steps(call))
        yield Errors(trial, path, error, max(float(of_naive.max(initial=0)), least), limit)


def _units(call: Call, dtype: str) -> dict[str, float]:
    """Give u x the condition for each array of a result, and what the smallest number of the dtype adds."""
    should = _reference(call)
    limits = bounds(call, should, eps=ROUNDOFF[dtype] / (SAFETY * summed_length(call)))
    return {path: limit + SMALLEST[dtype] for path, limit in limits.items()}


def _summary(found: list[Errors], dtype: str) -> Result:
    worst = max(found, key=lambda errors: errors.worst / errors.growth)
    relative = np.concatenate(
        [(errors.error / errors.naive).ravel() for errors in found if errors.naive > 0] or [[0.0]]
    )
    return {
        "times_naive": _number(relative.max()),
        "times_naive_999": _number(np.quantile(relative, 0.999, method="higher")),
        "share_of_bound": _number(worst.worst / worst.growth),
        "naive_share_of_bound": _number(max(errors.naive / errors.growth for errors in found)),
        "imprecise": _is_imprecise(worst),
        "worst": {
            "at": [int(i) for i in np.unravel_index(np.argmax(worst.error), worst.error.shape)],
            "of": worst.path,
            "kind": worst.trial.kind,
            "length": worst.trial.length,
            "times_naive": _number(worst.worst / worst.naive if worst.naive else 0.0),
        },
        "growth": [_of_length(found, n) for n in sorted({errors.trial.length for errors in found})],
    }


def _is_imprecise(errors: Errors) -> bool:
    """Over the bound, and worse than the naive run: nobody is blamed for what the plain formula does."""
    return errors.worst > errors.growth and errors.worst > errors.naive


def _of_length(found: list[Errors], n: int) -> Result:
    of_length = [errors for errors in found if errors.trial.length == n]
    return {
        "length": n,
        "error": _number(max(errors.worst for errors in of_length)),
        "naive": _number(max(errors.naive for errors in of_length)),
        "bound": of_length[0].growth,
    }


def _stressed(subject: Subject, row: Stress, dtype: str) -> Result:
    """Put one hard row to the subject; the right value is that of the inputs as they are in the dtype."""
    told = {"what": row.what, "why": row.why, "right": list(row.right)}
    call = _map_call(row.call, lambda array: _rounded(array, dtype))
    should = arrays_of(_exact(call, dtype))[""]
    try:
        got = arrays_of(subject.call(call.component, *call.args, **call.options))
    except Unsupported as lacking:
        return {**told, "imprecise": False, "why_not": str(lacking)}
    except Mismatch as problem:
        return {**told, "imprecise": True, "got": problem.what, "should": _listed(should)}
    (errors,) = _compared(got, Trial(row.what, row.length, call), call, dtype)
    return {
        **told,
        "got": _listed(got[""]),
        "should": _listed(should),
        "share_of_bound": _number(errors.worst / errors.growth),
        "times_naive": _number(errors.worst / errors.naive if errors.naive else 0.0),
        "imprecise": _is_imprecise(errors),
    }


# ------------------------------------------------------------------------------------- what it computes in, inside


def _inside(subject: Subject, component: str) -> str | None:
    trial = next(trials(component), None)
    if trial is None or subject.dtype != np.float64:
        return None
    try:
        error = _signed(subject, trial.call)
        off = np.abs(error).max(initial=0)
        if off <= ROUNDOFF["float64"] * growth(trial.length, "float64", _steps(trial.call)):
            return None
        fitting = [dtype for dtype in COARSER if off <= ROUGHLY * ROUNDOFF[dtype]]
        whole = [dtype for dtype in fitting if _fits_into(subject, trial.call, dtype)]
        dtype = next(iter([*reversed(whole), *fitting]), None)
        if dtype and _is_noise(subject, trial.call, error, dtype) and _is_right_in(subject, trial, dtype):
            return dtype
    except (Unsupported, Mismatch):
        pass
    return None


def _fits_into(subject: Subject, call: Call, dtype: str) -> bool:
    """Say whether every number of the result is one of this dtype."""
    results = arrays_of(subject.call(call.component, *call.args, **call.options)).values()
    return all(np.array_equal(array, _rounded(array, dtype)) for array in results)


def _is_noise(subject: Subject, call: Call, error: np.ndarray, dtype: str) -> bool:
    """Say whether the error is the same for the same inputs, and another one for inputs a few roundings away."""
    draw, size = np.random.default_rng(0), np.linalg.norm(error)

    def nearby() -> Call:
        step = 2 * ROUNDOFF[dtype]
        return _map_call(call, lambda array: array * (1 + step * draw.standard_normal(array.shape)))

    change = max(np.linalg.norm(_signed(subject, nearby()) - error) for _ in range(NEARBY))
    stays = all(np.array_equal(_signed(subject, call), error) for _ in range(2))
    return bool(stays and change > size / 4)


def _is_right_in(subject: Subject, trial: Trial, dtype: str) -> bool:
    """Say whether it is right to the coarser dtype when it is given that, if it takes it."""
    if dtype == "bfloat16" and _bfloat16() is None:
        return True
    try:
        return not any(map(_is_imprecise, _errors(_narrowed(subject, dtype), trial, dtype)))
    except Mismatch:
        return True


def _kinds(subject: Subject, component: str, inside: str | None) -> tuple[list[str], list[str]]:
    """Give the kinds of calls that mean the same as the reference's, and those that mean something else.

    Where half of the digits are wrong it is not rounding. The first kind with certain options has ordinary numbers and
    decides for others with these, in which so much may be lost to rounding. (NaN and infinity may come of overflow.)
    """
    same, others, means_the_same = [], [], {}
    for trial in trials(component, lengths=LENGTHS[:1]):
        options = tuple(trial.call.options)
        if options not in means_the_same:
            try:
                off = np.abs(_signed(subject, trial.call)).max(initial=0)
                means_the_same[options] = not np.sqrt(ROUNDOFF[inside or subject.dtype.name]) < off < np.inf
            except Unsupported:
                continue
            except Mismatch:
                means_the_same[options] = True
        (same if means_the_same[options] else others).append(trial.kind)
    return same, others


def _signed(subject: Subject, call: Call) -> np.ndarray:
    """Give what every element of a result is off by, in units of the condition."""
    got = arrays_of(subject.call(call.component, *call.args, **call.options))
    should, unit = arrays_of(_reference(call)), _units(call, "float64")
    return np.concatenate(
        [(_difference(got[path], wanted) * ROUNDOFF["float64"] / unit[path]).ravel() for path, wanted in should.items()]
    )


# ----------------------------------------------------------------------------------------- the runs to compare with


def _reference(call: Call) -> Any:
    with np.errstate(all="ignore"):
        return getattr(reference.numpy, call.component)(*call.args, **call.options)


def _exact(call: Call, dtype: str) -> Any:
    """Run the reference in more than the dtype: in float64, for float64 itself in extended precision."""
    if dtype != "float64" or call.component == "sinusoidal_positions":
        return _reference(call)
    try:
        return _reference(_map_call(call, lambda array: array.astype(np.longdouble)))
    except TypeError:  # SciPy's error function has no extended precision
        return _reference(call)


def _naive(call: Call, dtype: str) -> Any:
    """Run the plain formula step by step in the dtype."""
    if call.component == "sinusoidal_positions":
        return _naive_positions(*call.args, dtype=dtype, offset=call.options.get("offset", 0))
    return _reference(_map_call(call, lambda array: _stored(array, dtype)))


def _naive_positions(seq: int, d_model: int, *, dtype: str, offset: int) -> np.ndarray:
    in_dtype = functools.partial(_stored, dtype=dtype)
    with np.errstate(all="ignore"):
        pos = in_dtype(np.arange(offset, offset + seq, dtype=np.float64)[:, None])
        angle = pos / in_dtype(10000.0 ** (np.arange(0, d_model, 2) / d_model))
        return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(seq, -1)[:, :d_model]


def _stored(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(_bfloat16()).view(_Stays) if dtype == "bfloat16" else array.astype(dtype)


class _Stays(np.ndarray):
    """An array of bfloat16 that stays one: NumPy would make it float32 at the first Python number."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if out is not None:
            options["out"] = tuple(np.asarray(array) for array in out)
        result = getattr(ufunc, method)(*map(self._plain, inputs), **options)
        return result if result.dtype.kind in "biu" else np.asarray(result, _bfloat16()).view(_Stays)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        result = function(*map_tree(self._plain, list(args)), **options)
        kept = isinstance(result, np.ndarray) and result.dtype.kind not in "biu"
        return np.asarray(result, _bfloat16()).view(_Stays) if kept else result

    @staticmethod
    def _plain(value: Any) -> Any:
        if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind not in "biu"):
            return np.asarray(value, _bfloat16())
        return value


# -------------------------------------------------------------------------------------- a subject in another dtype


class _OtherDtype(Mismatch):
    """The result has another dtype than what was given."""


def _narrowed(subject: Subject, dtype: str) -> Subject:
    """Give the subject whose functions get arrays of this dtype, and must give such back."""
    narrow = Subject(_InDtype(subject.namespace, dtype), name=subject.name, strict=subject.strict)
    narrow.arrays = subject.arrays
    return narrow


class _InDtype:
    """A namespace that narrows what its functions get, and widens what they give to float64 again."""

    def __init__(self, namespace: Any, dtype: str) -> None:
        self._namespace, self._dtype, self.dtype = namespace, dtype, "float64"
        self._own = _bfloat16() if dtype == "bfloat16" else dtype

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._namespace, name)
        if name not in COMPONENTS or not callable(function):
            return function

        @functools.wraps(function)
        def narrowed(*args: Any, **options: Any) -> Any:
            args, options = map_tree(self._narrow, list(args)), map_tree(self._narrow, options)
            with default_dtype("torch" if any(map(_is_torch, args)) else "numpy", np.dtype(self._own)):
                return _widened(function(*args, **options), self._dtype)

        return narrowed

    def _narrow(self, value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, np.generic):  # an option that names a dtype
            return np.dtype(self._own).type
        if _is_torch(value):
            import torch

            own = getattr(torch, self._dtype)
            return own if isinstance(value, torch.dtype) else value.to(own) if value.is_floating_point() else value
        if _dtype_of(value) == "float64":
            return value.astype(self._own)
        return value


def _widened(result: Any, dtype: str) -> Any:
    if isinstance(result, Mapping):
        return {name: _widened(part, dtype) for name, part in result.items()}
    if isinstance(result, list | tuple):
        return type(result)(_widened(part, dtype) for part in result)
    if _dtype_of(result) != dtype:
        raise _OtherDtype(f"it returns {_dtype_of(result) or type(result).__name__} for {dtype}")
    return result.detach().double() if _is_torch(result) else np.asarray(result).astype(np.float64)


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "detach")


def _dtype_of(value: Any) -> str:
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------- small tools


@functools.cache
def _bfloat16() -> Any:
    """Give NumPy's bfloat16, which ml_dtypes adds, or None where it is not installed."""
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def _map_call(call: Call, change: Callable[[np.ndarray], Any]) -> Call:
    """Put `change(array)` in the place of every floating array of a call."""
    return call.mapped(lambda array: change(array) if array.dtype.kind == "f" else array)


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16" and _bfloat16() is None:
        return np.full_like(array, np.nan)
    return array.astype(_bfloat16() if dtype == "bfloat16" else dtype).astype(np.float64)


def _difference(got: np.ndarray, should: np.ndarray) -> np.ndarray:
    """Give got - should, as float64; what is no number is off by infinity."""
    with np.errstate(all="ignore"):
        difference = (np.asarray(got, should.dtype) - should).astype(np.float64)
    return np.where(np.isnan(difference), np.inf, difference)


def _number(value: float) -> float | str:
    """Spell what JSON has no number for."""
    return float(value) if math.isfinite(value) else str(float(value))


def _listed(array: np.ndarray) -> list[float | str]:
    return [_number(float(value)) for value in array.ravel()[:4]]


def _few(values: Any) -> str:
    return values if isinstance(values, str) else ", ".join(v if isinstance(v, str) else f"{v:.5g}" for v in values)


def _times(value: float | str) -> str:
    return f"{value:.2g}" if isinstance(value, float) and value < 100 else f"{float(value):,.0f}"


def _sentence(dtype: str, measured: Result) -> str:
    if "why_not" in measured:
        return measured["why_not"]
    worst = measured["worst"]
    place = f"at {worst['of']} {worst['at']}".replace("  ", " ") if worst["at"] or worst["of"] else "its one number"
    where = f"worst {place}, {worst['kind']}, length {worst['length']}"
    if not isinstance(measured["times_naive"], float):
        return f"IMPRECISE: NaN or infinity where the naive run gives numbers; {where}"
    times, of_most, share = (_times(measured[name]) for name in ("times_naive", "times_naive_999", "share_of_bound"))
    return (
        f"{'IMPRECISE' if measured['imprecise'] else 'right function'}, {times} x the error of a naive {dtype} run "
        f"(99.9 %: {of_most} x; {share} of the bound); {where}"
    )


def _of_a_hard_row(dtype: str, row: Result) -> str:
    if "why_not" in row:
        return row["why_not"]
    if row["imprecise"]:
        return f"IMPRECISE: gives {_few(row['got'])} and should, of inputs in {dtype}, give {_few(row['should'])}"
    return f"gives {_few(row['got'])}"
