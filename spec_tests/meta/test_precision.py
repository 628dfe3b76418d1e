"""Precision is a verdict of its own: who errs more than rounding must is told so, and nobody else."""

import functools
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import reference.numpy
from reference.parameters import leaves, map_tree
from spec_tests.kit import precision as measured
from spec_tests.kit.cli import app
from spec_tests.kit.precision import computes_in, growth, imprecise, precision, show
from spec_tests.kit.precision_inputs import LENGTHS, ORDINARY, STRESS
from spec_tests.subjects.subject import Subject

needs_bfloat16 = pytest.mark.skipif(measured._bfloat16() is None, reason="bfloat16 needs ml_dtypes")
ALL_DTYPES = ["float64", "float32", "float16", pytest.param("bfloat16", marks=needs_bfloat16)]


def subject(**functions):
    """Make a subject of these functions."""
    return SimpleNamespace(**functions)


def only(namespace, **options):
    """Measure a subject of one component."""
    (result,) = precision(namespace, **options)
    return result


def one_pass(x, gamma, beta, *, eps=1e-5):
    """Take the variance as the mean of squares minus the square of the mean."""
    mean = x.mean(axis=-1, keepdims=True)
    y = (x - mean) / np.sqrt((x * x).mean(axis=-1, keepdims=True) - mean * mean + x.dtype.type(eps))
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def naive_softmax(scores):
    """Take exponentials without a shift."""
    e = np.exp(scores)
    return e / e.sum(axis=-1, keepdims=True)


def test_a_one_pass_variance_is_right_in_meaning_and_imprecise():
    """It loses the square of how far the mean is away: on 10000 + {0, 1, 2, 3} in float32 nothing is left."""
    result = only(subject(layer_norm=one_pass), dtypes=["float32"])
    assert result["another_function"] == []
    (in_float32,) = result["dtypes"].values()
    assert in_float32["imprecise"]
    assert in_float32["worst"]["kind"] == "mean 1000 deviations away"
    assert in_float32["times_naive"] > 100
    hard = in_float32["stress"][0]
    assert hard["imprecise"]
    assert abs(hard["got"][3] - 1.3416) > 1
    assert imprecise(result)


def test_a_one_pass_variance_of_a_subject_of_float32_is_no_other_function():
    """More than half of its digits are lost far from 0; on ordinary numbers they are there."""
    result = only(subject(layer_norm=one_pass, dtype="float32"))
    assert result["another_function"] == []
    assert result["dtypes"]["float32"]["imprecise"]


def test_a_one_pass_variance_is_precise_where_the_mean_is_near():
    """On ordinary numbers nobody can tell it from two passes."""
    errors = [
        error
        for trial in measured.trials("layer_norm")
        if trial.kind == "normal"
        for error in measured._errors(Subject(subject(layer_norm=one_pass), name="one pass"), trial, "float64")
    ]
    assert [error.trial.length for error in errors] == list(LENGTHS)
    assert not any(map(measured._is_imprecise, errors))


def test_exponentials_without_a_shift_overflow_in_float16():
    """Scores of deviation 8 are too large for float16, and those around 300 for float32 as well; float64 holds both."""
    result = only(subject(softmax=naive_softmax), dtypes=["float64", "float32", "float16"])
    assert {dtype: m["imprecise"] for dtype, m in result["dtypes"].items()} == {
        "float64": False, "float32": True, "float16": True,
    }  # fmt: skip
    assert result["dtypes"]["float16"]["times_naive"] == "inf"
    assert any("NaN or infinity where the naive run gives numbers" in line for line in show(result))
    assert result["dtypes"]["float64"]["stress"][0]["got"] == ["nan"] * 4  # at 10000 it does not


def test_overflow_in_the_declared_dtype_is_no_other_function():
    """A subject of float32 whose exponentials overflow there is imprecise, not wrong in meaning."""
    result = only(subject(softmax=naive_softmax, dtype="float32"))
    assert result["another_function"] == []
    assert imprecise(result)


FEW = ("softmax", "layer_norm", "scaled_dot_product_attention", "cross_entropy", "output_head", "gelu", "adamw_step")
EVERY = [pytest.param(name, marks=[] if name in FEW else pytest.mark.thorough) for name in ORDINARY]


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("component", EVERY)
def test_the_torch_half_is_within_its_bounds(component, dtype):
    """It stays under half of every bound; so it does on hard rows, but for one where float16 overflows in torch."""
    (in_dtype,) = only("reference.torch", components=[component], dtypes=[dtype])["dtypes"].values()
    assert in_dtype["share_of_bound"] <= 0.5
    over = [row["what"] for row in in_dtype["stress"] if not float(row["share_of_bound"]) <= 0.5]
    # F.cross_entropy sums exponentials in float16 on a CPU: 100,000 of 1 are more than its largest number
    assert over == (["100,000 equal logits"] if (component, dtype) == ("cross_entropy", "float16") else [])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("component", EVERY)
def test_the_numpy_half_is_within_its_bounds(component, dtype):
    """It is the naive run itself, and stays under half of every bound."""
    (in_dtype,) = only("reference.numpy", components=[component], dtypes=[dtype])["dtypes"].values()
    assert in_dtype["share_of_bound"] <= 0.5
    assert in_dtype["times_naive"] <= 1


@pytest.mark.parametrize("component", EVERY)
def test_the_numpy_half_is_never_called_imprecise(component):
    """In half precision it overflows and its sums stop growing, but it is as good as the plain formula."""
    assert not imprecise(only("reference.numpy", components=[component], dtypes=["float16", "bfloat16"]))


@needs_bfloat16
def test_the_naive_run_of_bfloat16_rounds_every_step():
    """A sum of 1000 ones in bfloat16 stops at 256: each weight of 1000 equal scores is 1/256 then."""
    call = measured.Call("softmax", (np.ones(1000),), {})
    naive = measured._naive(call, "bfloat16")
    assert naive.dtype == measured._bfloat16()
    np.testing.assert_array_equal(np.asarray(naive, np.float64), np.full(1000, 1 / 256))


@needs_bfloat16
@pytest.mark.parametrize("component", ORDINARY)
def test_the_naive_run_of_bfloat16_gives_bfloat16(component):
    """NumPy would make it float32 at the first Python number."""
    call = next(measured.trials(component)).call
    result = measured._naive(call, "bfloat16")
    assert {array.dtype for part in _parts(result) for _, array in leaves(part)} == {measured._bfloat16()}


# ----------------------------------------------------------------------------------------------- the bound


def test_the_bound_grows_with_the_root_of_the_length():
    """Four times the terms, twice the bound on what their sum adds; in half precision that is in units of float32."""
    for dtype, part in (("float64", 1), ("float32", 1), ("float16", 2**-13), ("bfloat16", 2**-16)):
        sums = [growth(n, dtype, 0) for n in LENGTHS]
        assert sums == [8 * n**0.5 * part for n in LENGTHS]
        assert [growth(n, dtype, 5) - of_sums for n, of_sums in zip(LENGTHS, sums, strict=True)] == [5] * len(LENGTHS)


def one_after_another(x, w, b=None, *, wide=None):
    """Add products one after another, in the dtype itself unless a wider one is given."""
    total = np.zeros((*x.shape[:-1], w.shape[-1]), wide or x.dtype)
    for i in range(x.shape[-1]):
        total = total + (x[..., i, None] * w[i]).astype(total.dtype)
    return total.astype(x.dtype) if b is None else total.astype(x.dtype) + b


def test_a_plain_loop_in_float32_is_within_the_bound_at_every_length():
    """The order of a sum is free: a loop errs more than BLAS, and more with the length, but not beyond the bound."""
    (in_float32,) = only(subject(output_head=one_after_another), dtypes=["float32"])["dtypes"].values()
    rows = in_float32["growth"]
    assert [row["length"] for row in rows] == list(LENGTHS)
    assert rows[-1]["error"] > 2 * rows[0]["error"]
    assert all(row["error"] < row["bound"] / 2 for row in rows)


def test_a_loop_that_sums_in_float16_is_imprecise_and_one_in_float32_is_not():
    """Half precision is for numbers, not for sums."""
    loop = only(subject(output_head=one_after_another), dtypes=["float16"])
    assert imprecise(loop)
    assert loop["dtypes"]["float16"]["worst"]["length"] == LENGTHS[-1]
    wide = functools.partial(one_after_another, wide=np.float32)
    assert not imprecise(only(subject(output_head=wide), dtypes=["float16"]))


@pytest.mark.parametrize("row", STRESS, ids=lambda row: row.what)
def test_the_right_values_of_hard_rows_are_those_of_the_reference(row):
    """What is stated beside each hard row is its value, to the digits that are stated."""
    should = getattr(reference.numpy, row.call.component)(*row.call.args, **row.call.options)
    np.testing.assert_allclose(should.ravel()[: len(row.right)], row.right, rtol=0, atol=5.1e-5)


# ----------------------------------------------------------------------------------------------- float32 inside


def inside(function, dtype):
    """Compute in a coarser dtype inside, and give the result in that of the inputs."""

    @functools.wraps(function)
    def computed(*args, **options):
        def narrow(value):
            return value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value

        result = function(*map_tree(narrow, list(args)), **map_tree(narrow, options))
        wide = [map_tree(lambda array: np.asarray(array, np.float64), part) for part in _parts(result)]
        return tuple(wide) if isinstance(result, tuple) else wide[0]

    return computed


def _parts(result):
    return result if isinstance(result, tuple) else (result,)


WITH_FLOATS = [name for name in ORDINARY if name != "sinusoidal_positions"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("component", WITH_FLOATS)
def test_who_computes_in_a_coarser_dtype_inside_is_told_so(component, dtype):
    """Whatever the component, its float64 results are seen to be rounded to less."""
    coarse = Subject(subject(**{component: inside(getattr(reference.numpy, component), dtype)}), name="coarse")
    assert computes_in(coarse) == dtype


def test_a_part_in_float32_is_enough():
    """A softmax in float32 amid float64 leaves no result that is a float32 number, and is seen by its noise."""

    def attention(q, k, v):
        weights = reference.numpy.attention_weights(q.astype(np.float32), k.astype(np.float32))
        return weights.astype(q.dtype) @ v

    mine = subject(scaled_dot_product_attention=attention)
    result = only(mine, dtypes=["float64", "float32"])
    assert result["computes_in"] == "float32"
    assert result["dtypes"]["float64"] == {"why_not": "no better than float32"}
    assert not imprecise(result)
    assert show(result)[1].strip() == 'computes in float32 inside: declare `dtype = "float32"` in the subject'
    assert computes_in(Subject(subject(**vars(mine), dtype="float32"), name="declared")) is None


@pytest.mark.parametrize("off", [1e-7, 3e-8, 1e-4, 1e-3, 0.1])
@pytest.mark.parametrize("component", WITH_FLOATS)
def test_a_wrong_formula_is_no_rounding(component, off):
    """An error of the size of rounding that moves as smoothly as the inputs is a mistake, and not excused."""

    def wrong(*args, **options):
        result = getattr(reference.numpy, component)(*args, **options)
        moved = [map_tree(lambda array: array * (1 + off) + off, part) for part in _parts(result)]
        return tuple(moved) if isinstance(result, tuple) else moved[0]

    assert computes_in(Subject(subject(**{component: wrong}), name="wrong")) is None


def test_a_mistake_is_not_taken_for_bfloat16():
    """A bias that is added before the gain is off by a few per cent here, which is more than one rounding makes."""

    def early_bias(x, gamma, beta):
        return (reference.numpy.layer_norm(x, None, None) + beta / 8) * gamma - beta / 8

    assert computes_in(Subject(subject(layer_norm=early_bias), name="early bias")) is None


def test_float64_is_told_to_be_float64():
    """Neither half of the reference computes in less inside."""
    assert computes_in(Subject(reference.numpy, name="reference.numpy")) is None


def test_whims_are_no_rounding():
    """What is another result each time is no dtype's."""
    draw = np.random.default_rng(0)
    mine = subject(relu=lambda x: np.maximum(x, 0) + 1e-8 * draw.standard_normal(x.shape))
    assert computes_in(Subject(mine, name="whims")) is None


# ----------------------------------------------------------------------------------------------- what is offered


def from_the_first_key(q, k, v, *, causal=False):
    """Align a causal mask at the first token, not at the last."""
    mask = np.tri(q.shape[-2], k.shape[-2], dtype=bool) if causal else None
    return reference.numpy.scaled_dot_product_attention(q, k, v, mask=mask)


def test_another_convention_is_not_called_imprecise():
    """Calls that mean something else are left out, and said to be; where it is declared they are measured."""
    mine = subject(scaled_dot_product_attention=from_the_first_key)
    result = only(mine, dtypes=["float64", "float32"])
    assert result["another_function"] == ["causal"]
    assert not imprecise(result)
    assert any("another function" in line and "causal" in line for line in show(result))
    declared = {"scaled_dot_product_attention": {"causal": "first_key"}}
    result = only(subject(**vars(mine), conventions=declared), dtypes=["float64"])
    assert result["another_function"] == []
    assert not imprecise(result)


def test_a_wrong_function_has_no_precision():
    """Where half of the digits are wrong on ordinary numbers, nothing is measured."""
    result = only(subject(gelu=lambda x: reference.numpy.gelu(x, approximate="tanh")))
    assert (result["another_function"], result["dtypes"]) == (["normal", "tails"], {})
    assert not imprecise(result)


def test_a_dtype_that_is_not_kept_is_not_offered():
    """Who answers float32 in float64, or raises, does not offer float32."""
    in_double = only(subject(relu=lambda x: np.maximum(x, 0).astype(np.float64)))
    assert in_double["dtypes"]["float32"] == {"why_not": "not offered: it returns float64 for float32"}
    assert in_double["dtypes"]["float64"]["times_naive"] == 0

    def double_only(x):
        if x.dtype != np.float64:
            raise TypeError("float64 only")
        return np.maximum(x, 0)

    raised = only(subject(relu=double_only), dtypes=["float16"])["dtypes"]["float16"]
    assert raised == {"why_not": "not offered: relu raised TypeError: float64 only"}


def test_a_subject_of_float32_is_not_asked_for_float64():
    """`dtype = "float32"` says so."""
    result = only(subject(relu=lambda x: np.maximum(x, 0), dtype="float32"), dtypes=["float64", "float32"])
    assert result["dtypes"]["float64"] == {"why_not": "not offered: the subject declares float32"}
    assert result["dtypes"]["float32"]["times_naive"] == 0


def test_without_ml_dtypes_bfloat16_is_said_not_to_be_measured(monkeypatch):
    """The package that NumPy's bfloat16 comes from may be missing."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    measured._bfloat16.cache_clear()
    try:
        result = only(subject(relu=lambda x: np.maximum(x, 0)), dtypes=["bfloat16"])
    finally:
        measured._bfloat16.cache_clear()
    assert result["dtypes"]["bfloat16"] == {"why_not": "not measured: ml_dtypes is not installed"}


def test_what_has_no_arrays_is_not_measured():
    """Counts, masks and rates have no precision of this kind."""
    assert precision(subject(causal_mask=reference.numpy.causal_mask)) == []


@pytest.mark.parametrize("mine", [subject(layer_norm=one_pass), subject(softmax=naive_softmax)])
def test_results_are_json(mine):
    """NaN and infinity are spelt."""
    result = only(mine)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_command_prints_what_was_measured(tmp_path, capsys):
    """`transformer-spec precision` exits with 1 where something is imprecise, 2 where nothing could be measured."""
    file = tmp_path / "mine.py"
    file.write_text("import numpy as np\n\ndef softmax(scores):\n    e = np.exp(scores)\n    return e / e.sum(-1)\n")
    with pytest.raises(SystemExit) as ended:
        app(["precision", "reference.numpy", "--component", "relu", "--dtype", "float32"])
    assert ended.value.code == 0
    assert "right function, 0 x the error of a naive float32 run" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        app(["precision", "reference.numpy", "--component", "relu", "--dtype", "int8"])
    assert ended.value.code == 2
    assert "int8: no such dtype" in capsys.readouterr().err
    file.write_text(
        "import numpy as np\n\ndef softmax(scores):\n    e = np.exp(scores)\n    return e / e.sum(-1, keepdims=True)\n"
    )
    with pytest.raises(SystemExit) as ended:
        app(["precision", str(file), "--dtype", "float16"])
    assert ended.value.code == 1
    assert "IMPRECISE" in capsys.readouterr().out
