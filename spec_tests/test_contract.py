"""What is true of every component: it means what the reference says, and keeps the manners of the contract."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import reference.numpy
from reference.parameters import leaves, map_tree
from spec_tests.bounds import agree
from spec_tests.judge import close, equal, holds, raises
from spec_tests.spec import states
from spec_tests.strategies import (
    ALL_CASES,
    CASES,
    GENERATORS,
    GRADIENT_CASES,
    calls,
    gradient_calls,
    in_general_position,
)
from spec_tests.subjects.contract import Call, array_annotations, gradient_arguments, plain, signature
from spec_tests.subjects.conventions import as_declared
from spec_tests.subjects.subject import to_numpy


@states(cases=ALL_CASES, oracle=True)
@given(data=st.data())
def test_agrees_with_the_reference(subject, case, data):
    """The result is that of the NumPy reference, up to rounding."""
    call = data.draw(calls(case))
    should = getattr(reference.numpy, call.component)(*call.args, **call.options)
    got = subject.call(call.component, *call.args, **call.options)
    agree(call, got, should, eps=subject.eps, share=0.1 if subject.strict else 1.0)


# One way to call each component, without options, and for those with optional arrays one with all of them.
PLAIN = tuple(f"{component}.{next(iter(cases))}" for component, cases in CASES.items())
FULL = (
    "attention_weights.all", "scaled_dot_product_attention.all", "self_attention.mask", "multi_head_attention.all",
    "layer_norm.affine", "feed_forward.keep", "transformer_block.mask", "output_head.bias",
)  # fmt: skip


def but(cases: tuple[str, ...], *components: str) -> tuple[str, ...]:
    """Give the cases of all other components."""
    return tuple(case for case in cases if case.split(".")[0] not in components)


FEW = settings(max_examples=8)
"""Manners do not depend on the numbers: whoever lacks them lacks them in nearly every example."""

SPOILT = settings(max_examples=3)
"""Each of these examples spoils every argument in turn, and every axis of it."""

NUMBERS_ONLY = ("sinusoidal_positions", "causal_mask", "parameter_count", "perplexity", "warmup_cosine")
ON_ARRAYS = but(PLAIN, *NUMBERS_ONLY)
ON_ONE_ARRAY = (
    "token_embedding.plain", "softmax.plain", "layer_norm.plain", "relu.plain", "gelu.plain", "transformer_block.pre",
    "transformer.pre", "clip_grad_norm.plain", "next_token_distribution.plain",
)  # fmt: skip
ON_NAMED_AXES = but(ON_ARRAYS, "softmax", "relu", "gelu", "dropout", "adamw_step", "clip_grad_norm")


@states(cases=PLAIN + FULL)
@FEW
@given(data=st.data())
def test_the_same_call_twice_gives_the_same_result(subject, case, data):
    """A component draws nothing and remembers nothing: the same call gives the same result, bit for bit."""
    _runs_twice_alike(subject, data.draw(calls(case)))


def _runs_twice_alike(subject: Any, call: Call) -> None:
    once = {path: np.copy(array) for path, array in _results(_run(subject, call))}
    for path, second in _results(_run(subject, call)):
        equal(second, once[path], what=f"the second result {path}".strip())


@states(cases=ON_ARRAYS + FULL)
@FEW
@given(data=st.data())
def test_arguments_are_left_as_they_were(subject, case, data):
    """A component writes into none of its arguments."""
    _leaves_its_arguments(subject, data.draw(calls(case)))


def _leaves_its_arguments(subject: Any, call: Call) -> None:
    _run(subject, call)
    (args, options), handed_over = subject.last_given, subject.given(subject.calls[-1])
    given_back = dict(leaves([to_numpy(_arrays(args), call.component), to_numpy(_arrays(options), call.component)]))
    for path, before in leaves([_arrays(handed_over.args), _arrays(handed_over.options)]):
        equal(given_back[path], before.astype(given_back[path].dtype), what=f"the argument at {path}")


@states(cases=but(ON_ARRAYS, "sample"))
@FEW
@given(data=st.data())
def test_the_dtype_of_the_inputs_is_kept(subject, case, data):
    """Floating inputs of one dtype give a result of that dtype: float32 in, float32 out."""
    _keeps_the_dtype(subject, data.draw(calls(case)), data.draw(st.sampled_from(("float32", str(subject.dtype)))))


def _keeps_the_dtype(subject: Any, call: Call, dtype: str) -> None:
    call = call.mapped(lambda array: array.astype(dtype) if array.dtype.kind == "f" else array)
    for path, array in _results(_run(subject, call)):
        holds(
            array.dtype == dtype,
            f"the dtype of the result {path}".strip(),
            got=str(array.dtype),
            should=dtype,
        )


# ------------------------------------------------------------------------------------------------ bad input is refused


@states(cases=ON_NAMED_AXES + FULL)
@SPOILT
@given(data=st.data())
def test_a_wrong_rank_is_refused(subject, case, data):
    """An array with too few axes raises TypeError, and the message names the axis."""
    call = data.draw(calls(case))
    for name, axes in _axes_of(call).items():
        if fixed := [axis for axis in axes if axis[0] != "*"]:
            too_few = np.zeros((1,) * (len(fixed) - 1), _argument(call, name).dtype)
            with raises(subject, TypeError, fixed[-1]):
                _run(subject, _with_argument(call, name, lambda _, too_few=too_few: too_few))


@states(cases=tuple(case for case in ON_ARRAYS + FULL if case not in ON_ONE_ARRAY))
@SPOILT
@given(data=st.data())
def test_an_axis_of_another_length_is_refused(subject, case, data):
    """Two arguments that disagree about an axis raise TypeError, which names it; a length of 1 is not stretched."""
    call = data.draw(calls(case, batched=True))
    axes = _axes_of(call)
    every_axis = [axis for names in axes.values() for axis in names]
    for name, names in axes.items():
        array = _argument(call, name)
        for place, axis in zip(range(-1, -1 - array.ndim, -1), reversed(names), strict=False):
            if every_axis.count(axis) == 1 or "#" in axis:
                continue
            first = np.take(array, [0], axis=place)
            for other in (first, np.concatenate([array, first], axis=place)):
                if other.shape != array.shape:
                    with raises(subject, TypeError, axis.strip("*#")):
                        _run(subject, _with_argument(call, name, lambda _, other=other: other))


@states(cases=but(ON_ARRAYS + FULL, "clip_grad_norm"))
@SPOILT
@given(data=st.data())
def test_a_wrong_dtype_is_refused(subject, case, data):
    """Whole numbers where floating ones belong, or floating ones for ids and masks, raise TypeError."""
    call = data.draw(calls(case))
    for name in _axes_of(call):
        with raises(subject, TypeError, name):
            _run(
                subject,
                _with_argument(call, name, lambda a: a.astype(np.int64 if a.dtype.kind == "f" else np.float64)),
            )


@states(cases=but(FULL, "transformer_block"))
@SPOILT
@given(data=st.data())
def test_mixed_dtypes_are_refused(subject, case, data):
    """Floating inputs of two dtypes raise TypeError rather than being promoted silently."""
    call = data.draw(calls(case))
    other = np.float16 if subject.dtype == np.float32 else np.float32
    for name in _axes_of(call):
        if _argument(call, name).dtype.kind == "f":
            with raises(subject, TypeError, "dtype"):
                _run(subject, _with_argument(call, name, lambda array: array.astype(other)))


@states(cases=but(ON_NAMED_AXES, "transformer", "transformer_block"))
@SPOILT
@given(data=st.data())
def test_an_axis_of_size_0_is_refused(subject, case, data):
    """An empty axis that is neither a sequence nor a batch raises ValueError."""
    call = data.draw(calls(case))
    names = {axis for axes in _axes_of(call).values() for axis in axes if axis[0] != "*" and not axis.endswith("seq")}
    for axis in sorted(names - {"max_len"}):
        with raises(subject, ValueError):
            _run(subject, _emptied(call, axis))


@states(cases=("token_embedding.plain", "add_positions.plain", "multi_head_attention.plain", "feed_forward.plain",
               "scaled_dot_product_attention.plain", "attention_weights.plain", "self_attention.plain",
               "output_head.plain", "transformer_block.pre", "transformer.pre"))  # fmt: skip
@FEW
@given(data=st.data())
def test_an_empty_sequence_gives_an_empty_result(subject, case, data):
    """A sequence of no tokens is no error: the result is as empty as the sequence."""
    call = data.draw(calls(case))
    for axis in ("seq", "q_seq"):
        call = _emptied(call, axis)
    holds(_run(subject, call).size == 0, "an empty sequence gave numbers", got=subject.last_result)


# ---------------------------------------------------------------------------------------------------------- gradients

GRADIENTS = tuple(case for case in PLAIN + FULL if case in GRADIENT_CASES)
A_COUPLE = settings(max_examples=2)
"""In general position every term of every gradient shows at once: one example would do."""
A_FEW = settings(max_examples=3)
"""So do the manners of gradients."""


@states(cases=GRADIENT_CASES, oracle=True, gradient=True)
@given(data=st.data())
def test_gradients_agree_with_the_reference(subject, case, data):
    """The gradients are those of the NumPy reference, up to rounding."""
    call = data.draw(gradient_calls(case))
    should = getattr(reference.numpy, call.component)(*call.args, **call.options)
    got = subject.call(call.component, *call.args, **call.options)
    agree(call, got, should, eps=subject.eps, share=0.1 if subject.strict else 1.0)


@states(cases=GRADIENT_CASES, gradient=True)
@A_COUPLE
@given(data=st.data(), generator=GENERATORS)
def test_gradients_are_those_of_finite_differences(subject, case, data, generator):
    """Along a line through its arguments the component changes as fast as its gradients say."""
    call = in_general_position(data.draw(gradient_calls(case)), generator)
    given_arguments = signature(call.component).bind(*call.args, **call.options).arguments
    line = {
        name: map_tree(lambda array: np.asarray(generator.standard_normal(array.shape)), given_arguments[name])
        for name in gradient_arguments(call.component)
        if given_arguments.get(name) is not None
    }
    gradients = dict(zip(gradient_arguments(call.component), _run(subject, call), strict=True))
    slope = sum(_product(gradients[name], direction) for name, direction in line.items())
    measured, within = _slope_along(subject, call, line)
    close(slope, measured, within=within, what="the slope that the gradients give")


def _slope_along(subject: Any, call: Call, line: dict[str, Any]) -> tuple[float, float]:
    """Give the slope of cotangent . result by differences of fourth order, and how far off it may be.

    The step is near the best for that order, eps^(1/5), but smaller: a line moves many numbers at once, and what two
    blocks make of them can turn within a thousandth. Halving it divides the error of the order by 16, so that what is
    left is a fifteenth of what the halving changed; to this comes what rounding does to the results, divided by the
    step: it grows with the root of the reduced length.
    """
    h, cotangent = subject.eps**0.25 / 8, call.args[0].astype(np.float64)
    inner = signature(plain(call.component)).bind(*call.args[1:], **call.options)
    here = dict(inner.arguments)

    def result(step: float) -> np.ndarray:
        moved = {name: map_tree(lambda a, d: a + step * d, here[name], line[name]) for name in line}
        inner.arguments.update(moved)
        return getattr(subject, plain(call.component))(*inner.args, **inner.kwargs).astype(np.float64)

    ahead, behind = ({step: result(sign * step) for step in (h / 2, h, 2 * h)} for sign in (1, -1))
    change = {step: ahead[step] - behind[step] for step in ahead}
    coarse, fine = (_product(cotangent, 8 * change[s] - change[2 * s]) / (12 * s) for s in (h, h / 2))
    length = max(cotangent.size, *(array.size for _, array in leaves(line)))
    size = np.abs(cotangent) * (np.abs(ahead[h]) + np.abs(change[h]) / h)
    return fine, 4 * abs(fine - coarse) + 32 * subject.eps * length**0.5 * size.sum() / h


def _product(gradient: Any, direction: Any) -> float:
    pairs = zip(leaves(gradient), leaves(direction), strict=True)
    return float(sum((one.astype(np.float64) * other).sum() for (_, one), (_, other) in pairs))


@states(cases=GRADIENTS, gradient=True)
@A_COUPLE
@given(data=st.data(), generator=GENERATORS)
def test_the_gradient_is_linear_in_its_cotangent(subject, case, data, generator):
    """The gradients of 2 a - 3 b are twice those of a minus three times those of b."""
    call = in_general_position(data.draw(gradient_calls(case)), generator)
    a, rest = call.args[0], call.args[1:]
    b = np.asarray(generator.standard_normal(a.shape))
    of_a, of_b, of_both = (
        dict(_results(_run(subject, Call(call.component, (cotangent, *rest), call.options))))
        for cotangent in (a, b, 2 * a - 3 * b)
    )
    largest = max(np.abs(array).max(initial=0) for array in (a, b, *of_a.values(), *of_b.values()))
    # the rounding of a nearly constant vector is raised by 1 / eps, which is 100,000 in a norm
    within = 2**20 * subject.eps * largest
    for path, both in of_both.items():
        close(both, 2 * of_a[path] - 3 * of_b[path], within=within, what=f"gradient {path}")


@states(cases=GRADIENTS, gradient=True)
@A_FEW
@given(data=st.data())
def test_a_gradient_has_the_shape_of_its_argument(subject, case, data):
    """There is one gradient for each floating argument, of its shape or tree, and None for one that is None."""
    call = data.draw(gradient_calls(case))
    arguments = signature(call.component).bind(*call.args, **call.options)
    arguments.apply_defaults()
    for name, gradient in zip(gradient_arguments(call.component), _run(subject, call), strict=True):
        should = map_tree(lambda array: None if array is None else array.shape, arguments.arguments[name])
        shape = map_tree(lambda array: None if array is None else array.shape, gradient)
        holds(shape == should, f"the gradient of {name} has another shape", got=str(shape), should=str(should))


@states(cases=GRADIENTS, gradient=True)
@A_FEW
@given(data=st.data())
def test_the_gradient_has_the_dtype_of_the_inputs(subject, case, data):
    """Gradients of float32 inputs are float32."""
    dtype = data.draw(st.sampled_from(("float32", str(subject.dtype))))
    _keeps_the_dtype(subject, data.draw(gradient_calls(case)), dtype)


@states(cases=GRADIENTS, gradient=True)
@A_FEW
@given(data=st.data())
def test_the_gradient_leaves_its_arguments_as_they_were(subject, case, data):
    """A gradient writes into none of its arguments, the cotangent among them."""
    _leaves_its_arguments(subject, data.draw(gradient_calls(case)))


@states(cases=GRADIENTS, gradient=True)
@A_FEW
@given(data=st.data())
def test_the_same_cotangent_twice_gives_the_same_gradient(subject, case, data):
    """Gradients are not gathered from call to call: the same call gives the same gradients, bit for bit."""
    _runs_twice_alike(subject, data.draw(gradient_calls(case)))


@states(cases=GRADIENTS, gradient=True, own=True)
@A_FEW
@given(data=st.data())
def test_a_cotangent_of_another_shape_is_refused(subject, case, data):
    """A cotangent that has not the shape of the result raises TypeError, even where it would broadcast."""
    call = data.draw(gradient_calls(case))
    cotangent = call.args[0]
    wrong = [cotangent[None], *(np.concatenate([cotangent, cotangent], axis) for axis in range(cotangent.ndim))]
    wrong += [cotangent.take([0], axis) for axis in range(cotangent.ndim) if cotangent.shape[axis] > 1]
    with raises(subject, TypeError):
        _run(subject, Call(call.component, (data.draw(st.sampled_from(wrong)), *call.args[1:]), call.options))


@states(cases=GRADIENTS, gradient=True, own=True)
@A_FEW
@given(data=st.data())
def test_a_cotangent_of_another_dtype_is_refused(subject, case, data):
    """A cotangent of whole numbers, or of another precision than the inputs, raises TypeError."""
    call = data.draw(gradient_calls(case))
    other = np.float16 if subject.dtype == np.float32 else np.float32
    cotangent = call.args[0].astype(data.draw(st.sampled_from((np.int64, other))))
    with raises(subject, TypeError, "cotangent"):
        _run(subject, Call(call.component, (cotangent, *call.args[1:]), call.options))


# ------------------------------------------------------------------------------------------------ calls, taken apart


def _run(subject: Any, call: Call) -> Any:
    """Make a call, in the one variant of a subject that knows one only: its manners are to be good in that."""
    declared = subject.declared(call.component)
    if declared.get("variant") != "unbiased_std_plus_eps":  # which a single number has not
        call = as_declared(call, declared)
    return subject.call(call.component, *call.args, **call.options)


def _results(result: Any) -> list[tuple[str, np.ndarray]]:
    """Give the arrays of a result, each with its path; the gradient of an argument that is None is no array."""
    found = leaves(list(result) if isinstance(result, tuple) else result)
    return [(path, array) for path, array in found if array is not None]


def _arrays(value: Any) -> Any:
    """Give the arrays in a value (or a tree of them) as a tree, without what is no array."""
    if isinstance(value, dict):
        return {name: _arrays(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_arrays(part) for part in value]
    return value if hasattr(value, "shape") else {}


def _names(component: str) -> list[str]:
    return list(inspect.signature(getattr(reference.numpy, component)).parameters)


def _argument(call: Call, name: str) -> np.ndarray:
    place = _names(call.component).index(name)
    return call.args[place] if place < len(call.args) else call.options[name]


def _axes_of(call: Call) -> dict[str, list[str]]:
    """Give the axes of every array argument of a call: {"q": ["*batch", "q_seq", "d_k"], ...}."""
    function = getattr(reference.numpy, call.component)
    bound = inspect.signature(function).bind(*call.args, **call.options)
    return {
        name: array_annotations(function.__annotations__[name])[0].dim_str.split()
        for name, value in bound.arguments.items()
        if isinstance(value, np.ndarray)
    }


def _with_argument(call: Call, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Call:
    place = _names(call.component).index(name)
    if place < len(call.args):
        return Call(
            call.component,
            (*call.args[:place], change(call.args[place]), *call.args[place + 1 :]),
            call.options,
        )
    return Call(call.component, call.args, {**call.options, name: change(call.options[name])})


def _emptied(call: Call, axis: str) -> Call:
    """Cut one axis to nothing wherever it occurs."""
    for name, axes in _axes_of(call).items():
        for place, this in enumerate(reversed(axes)):
            if this == axis:
                call = _with_argument(call, name, lambda array, at=-1 - place: np.take(array, [], axis=at))
    return call
