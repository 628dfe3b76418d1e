"""Gradients of subjects: their own functions or autograd's, what is wrong with them, and how a report shows it."""

import inspect
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given

import reference.numpy
import spec_tests.spec
from reference.components import COMPONENTS
from reference.config import ModelConfig
from reference.parameters import init_params, leaves
from spec_tests import check
from spec_tests.judge import Mismatch, SubjectRaised, Unsupported, close, equal, raises
from spec_tests.kit import runner
from spec_tests.kit.wire import decode_call, encode_call
from spec_tests.meta.schema import problems
from spec_tests.spec import properties_of, states
from spec_tests.strategies import numbers
from spec_tests.subjects import loading
from spec_tests.subjects.contract import Call, gradient_arguments, signature
from spec_tests.subjects.subject import Subject

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "spec_tests" / "kit" / "report.schema.json").read_text())

DIFFERENTIABLE = [name for name, component in COMPONENTS.items() if component.differentiable]
CONFIG = ModelConfig(vocab=5, d_model=4, n_heads=2, n_layers=2, d_ff=6, max_len=4)
X = np.array([[-2.0, -0.5, 0.25], [1.0, 3.0, -1.0]])
DY = np.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 4.0]])


def subject(**namespace):
    """Give a subject of these functions."""
    return Subject(SimpleNamespace(**namespace), name="mine")


def tensors(**namespace):
    """Give a subject of these functions of torch tensors."""
    return subject(arrays="torch", **namespace)


def general(*shape):
    """Give numbers in general position, the same ones for the same shape."""
    return np.random.default_rng(shape).standard_normal(shape)


@contextmanager
def no_skipping():
    """Let what is unsupported fail the test, which pytest would skip."""
    try:
        yield
    except Unsupported as lacking:
        raise AssertionError(f"unsupported: {lacking}") from lacking


# ----------------------------------------------------------------------------------------------- which there are


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_the_reference_has_the_gradients_that_the_kit_asks_for(name):
    """Arguments and parts of the result are those of `reference.numpy`, which writes them down."""
    written, asked = vars(reference.numpy)[f"{name}_vjp"], signature(f"{name}_vjp")
    parameters = inspect.signature(written).parameters
    assert list(asked.parameters) == list(parameters)
    assert [(p.kind, p.default) for p in asked.parameters.values()] == [
        (p.kind, p.default) for p in parameters.values()
    ]
    assert len(written.__annotations__["return"].__args__) == len(gradient_arguments(name))


def test_gradients_are_offered_where_they_can_be_had():
    """By a function of that name, or by autograd beside a function of tensors; a NumPy function alone has none."""

    def relu(x):
        return x

    assert subject(relu=relu, relu_vjp=relu).offers("relu_vjp")
    assert tensors(relu=relu).offers("relu_vjp")
    assert not subject(relu=relu).offers("relu_vjp")
    assert not tensors(relu=relu).offers("gelu_vjp")
    assert not tensors(perplexity=relu).offers("perplexity_vjp"), "it has none in the contract"
    with pytest.raises(Unsupported, match="mine does not offer gradients of relu"):
        subject(relu=relu).relu_vjp(DY, X)
    with pytest.raises(AttributeError):
        subject(relu=relu).relu_jvp  # noqa: B018


# ----------------------------------------------------------------------------------------------- own functions


@pytest.mark.parametrize("form", [lambda dx: (dx,), lambda dx: [dx], lambda dx: dx])
def test_a_function_of_its_own_is_called_as_the_contract_says(form):
    """It gets the cotangent, then the arguments, no option at its default; a lone array will do for a tuple of one."""
    mine = subject(gelu=None, gelu_vjp=lambda cotangent, x: form(2 * cotangent + x))
    (dx,) = mine.gelu_vjp(DY, X, approximate="none")
    np.testing.assert_array_equal(dx, 2 * DY + X)
    assert mine.calls == [Call("gelu_vjp", (DY, X), {})]
    with pytest.raises(Unsupported, match="gelu_vjp has no option approximate"):
        mine.gelu_vjp(DY, X, approximate="tanh")


def test_a_lone_tree_will_do_for_a_tuple_of_one():
    """A model has one gradient, that of its parameters."""
    params = init_params(CONFIG, seed=0)
    mine = subject(transformer_vjp=lambda cotangent, ids, params, config: params)
    (gradient,) = mine.transformer_vjp(general(3, 5), np.array([0, 1, 2]), params, CONFIG)
    assert [path for path, _ in leaves(gradient)] == [path for path, _ in leaves(params)]


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        ((DY, DY[0]), "should return 3 gradients, of x, gamma, beta, and returned 2"),
        (DY, "and returned 1"),
        ((DY[0], DY[0], None), "the gradient of x is float64 of shape (3,)"),
        ((DY, np.array([1, 2, 3]), None), "the gradient of gamma is int64 of shape (3,)"),
        ((DY, None, None), "the gradient of gamma is None\n"),
        ((DY, DY[0], DY[0]), "the gradient of beta is float64 of shape (3,), and there is no such argument"),
        ((DY, "zero", None), "returned str, which is no array of numbers"),
    ],
)
def test_a_wrong_form_is_said(gradients, said):
    """As many gradients as arguments, each of the shape of its argument and floating, None for None."""
    with pytest.raises(Mismatch) as wrong:
        subject(layer_norm_vjp=lambda *args: gradients).layer_norm_vjp(DY, X, X[0], None)
    assert said in str(wrong.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree.pop("output_head"), "the gradient of params lacks 'output_head.w'"),
        (lambda tree: tree["output_head"].update(scale=X), "has 'output_head.scale', which the argument has not"),
        (lambda tree: tree["output_head"].update(b=X), "the gradient of params at output_head.b is float64 of shape"),
    ],
)
def test_a_gradient_tree_has_the_form_of_the_parameters(change, said):
    """A part too few, one too many, and another shape are mismatches that name the path."""

    def transformer_vjp(cotangent, ids, params, config):
        change(params)
        return (params,)

    with pytest.raises(Mismatch) as wrong:
        subject(transformer_vjp=transformer_vjp).transformer_vjp(
            general(3, 5), np.array([0, 1, 2]), init_params(CONFIG, seed=0), CONFIG
        )
    assert said in str(wrong.value)


# ----------------------------------------------------------------------------------------------- autograd


def _component(value):
    return value if isinstance(value, str) else ""


def _calls():
    x, w, b, ids = general(3, 4), general(4, 4), general(4), np.array([0, 1, 1])
    params = init_params(CONFIG, seed=3)
    return [
        ("token_embedding", (ids, w), {}),
        ("softmax", (x,), {"axis": 0}),
        ("layer_norm", (x, b, None), {"eps": 0.1}),
        ("multi_head_attention", (x, w, w, w, None), {"n_heads": 2, "b_k": b, "context": general(5, 4)}),
        ("scaled_dot_product_attention", (x, x, x), {"bias": general(3, 3), "mask": np.tri(3, dtype=bool)}),
        ("dropout", (x, x > 0), {"rate": 0.5}),
        ("transformer_block", (x, params["blocks"][0], CONFIG), {}),
        ("transformer", (ids, params, CONFIG), {}),
        ("cross_entropy", (x, ids), {}),
    ]


@pytest.mark.parametrize(("component", "args", "options"), _calls(), ids=_component)
def test_autograd_gives_what_the_reference_gives(component, args, options):
    """Every floating array and leaf of a tree has its gradient, in the order of the signature; the rest has none."""
    cotangent = general(*np.shape(vars(reference.numpy)[component](*args, **options)))
    ours = loading.load("reference.torch").subject
    assert ours.by_autograd(f"{component}_vjp")
    with no_skipping():
        got = ours.call(f"{component}_vjp", cotangent, *args, **options)
    should = vars(reference.numpy)[f"{component}_vjp"](cotangent, *args, **options)
    assert len(got) == len(should) == len(gradient_arguments(component))
    for (path, gradient), (other, wanted) in zip(leaves(list(got)), leaves(list(should)), strict=True):
        assert path == other
        assert (gradient is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_allclose(gradient, wanted, rtol=1e-9, atol=1e-12)


def test_what_the_result_does_not_use_has_gradient_0():
    """Torch says None of it."""
    mine = tensors(layer_norm=lambda x, gamma, beta: x + beta)
    dx, d_gamma, d_beta = mine.layer_norm_vjp(DY, X, X[0], X[1])
    np.testing.assert_array_equal(dx, DY)
    np.testing.assert_array_equal(d_gamma, np.zeros(3))
    np.testing.assert_array_equal(d_beta, DY.sum(axis=0))


def test_cotangents_and_gradients_are_in_the_subjects_dtype():
    """A subject of float32 gets float32 and gives float32, by its own function and by autograd."""
    seen = []

    def gelu_vjp(cotangent, x):
        seen.extend((cotangent.dtype, x.dtype))
        return cotangent * x

    mine = tensors(dtype="float32", relu=torch.relu, gelu_vjp=gelu_vjp)
    assert mine.relu_vjp(DY, X)[0].dtype == np.float32
    assert mine.gelu_vjp(DY, X)[0].dtype == np.float32
    assert seen == [torch.float32, torch.float32]


@torch.no_grad()
def without_grad(x):
    """Cut off what is negative, for use only."""
    return torch.relu(x)


@pytest.mark.parametrize(
    ("relu", "said"),
    [
        (lambda x: torch.relu(x).detach(), "no gradient flows from the result: it is detached from its arguments"),
        (without_grad, "no gradient flows from the result: it is detached"),
        (lambda x: torch.from_numpy(np.maximum(x.detach().numpy(), 0)), "no gradient flows from the result"),
        (lambda x: np.maximum(x.detach().numpy(), 0), "no gradient flows from the result: it is ndarray and no tensor"),
        (lambda x: torch.zeros_like(x, requires_grad=True), "it depends on none of the arguments"),
        (lambda x: x[0], "relu returned float64 of shape (3,)"),
    ],
)
def test_a_result_without_a_gradient_is_a_mismatch(relu, said):
    """What is detached on the way has no gradient, which is said and not taken for 0; a wrong result is said first."""
    with pytest.raises((Mismatch, Unsupported)) as wrong:
        tensors(relu=relu).relu_vjp(DY, X)
    assert type(wrong.value) is Mismatch
    assert said in str(wrong.value)


def test_functions_may_write_into_their_tensors():
    """The tensors are theirs, as in a plain call."""
    (dx,) = tensors(relu=lambda x: x.mul_(x > 0)).relu_vjp(DY, X)
    np.testing.assert_array_equal(dx, DY * (X > 0))


def test_a_function_of_its_own_goes_before_autograd():
    """It gets tensors that ask for no gradient."""

    def relu_vjp(cotangent, x):
        assert not x.requires_grad
        return 3 * cotangent

    np.testing.assert_array_equal(tensors(relu=torch.relu, relu_vjp=relu_vjp).relu_vjp(DY, X)[0], 3 * DY)


class Broken(torch.autograd.Function):
    """A function whose gradient breaks."""

    @staticmethod
    def forward(ctx, x):
        """Return a copy."""
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """Break."""
        raise ZeroDivisionError("no way back")


def unwilling(*args):
    """Offer it, and do not have it."""
    raise NotImplementedError("only for use")


@pytest.mark.parametrize(
    ("mine", "kind", "said"),
    [
        (tensors(relu=Broken.apply), SubjectRaised, "relu_vjp raised ZeroDivisionError: no way back"),
        (tensors(relu=lambda x: x.no_luck), SubjectRaised, "relu_vjp raised AttributeError"),
        (subject(relu_vjp=lambda dy, x: 1 / 0), SubjectRaised, "relu_vjp raised ZeroDivisionError"),
        (tensors(relu=torch.relu, relu_vjp=unwilling), Unsupported, "only for use"),
    ],
)
def test_what_raises_is_judged_as_in_plain_calls(mine, kind, said):
    """On the way there and on the way back; who does not have gradients says NotImplementedError."""
    ended = []
    mine.after_call = lambda: ended.append(True)
    with pytest.raises(kind, match=said):
        mine.relu_vjp(DY, X)
    assert ended == [True]


def test_autograd_is_not_blamed_for_taking_a_bad_cotangent():
    """A cotangent of another shape is refused by functions only."""
    with pytest.raises(Unsupported, match="another shape"):
        tensors(relu=torch.relu).relu_vjp(DY[0], X)


# ----------------------------------------------------------------------------------------------- JAX


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed; torch's autograd goes the same way")
def test_subjects_in_jax():
    """Subjects in JAX get its arrays and its gradients: in a process of its own, for JAX starts threads."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("jax_subjects.py"))], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout


def test_a_subject_in_jax_without_jax_is_said_to_need_it(tmp_path, monkeypatch):
    """It cannot be loaded, and one line says what is missing."""
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(loading.CannotLoad, match="arrays = 'jax' needs JAX, which is not installed"):
        loading.load({"relu": relu, "arrays": "jax"})


# ----------------------------------------------------------------------------------------------- properties and reports


@states("relu", gradient=True)
@given(x=numbers((2, 3)))
def the_gradient_is_1_above_0(subject, x):
    """Let through what is above 0."""
    (dx,) = subject.relu_vjp(np.ones((2, 3)), x)
    equal(dx, np.where(x > 0, 1.0, 0.0))


@states("relu")
@given(x=numbers((2, 3)))
def nothing_is_below_0(subject, x):
    """No result is negative."""
    equal(np.minimum(subject.relu(x), 0), np.zeros((2, 3)))


@states("transformer_block", gradient=True)
@given(x=numbers((1, 4)))
def the_gradient_of_a_gain_is_small(subject, x):
    """No gain has a gradient of a hundred."""
    params = init_params(CONFIG, seed=0)["blocks"][0]
    _, tree = subject.transformer_block_vjp(np.ones((1, 4)), x, params, CONFIG)
    close(tree["norm_1"]["gamma"], np.zeros(4), within=100.0)


@pytest.fixture
def two_kinds(monkeypatch):
    """Let there be a property of the value and two of gradients, and nothing else."""
    functions = (the_gradient_is_1_above_0, nothing_is_below_0, the_gradient_of_a_gain_is_small)
    stated = tuple(prop for function in functions for prop in properties_of(function))
    monkeypatch.setattr(spec_tests.spec, "all_properties", lambda: stated)
    return stated


@states("relu", gradient=True, own=True)
@given(x=numbers((2, 3)))
def a_function_refuses_whole_numbers(subject, x):
    """Refuse whole numbers."""
    with raises(subject, TypeError):
        subject.relu_vjp(np.ones((2, 3), np.int64), x)


def test_a_property_of_functions_is_not_put_to_autograd():
    """What only a function that somebody wrote can do is not asked of gradients that autograd finds."""
    (about_functions,) = properties_of(a_function_refuses_whole_numbers)
    assert about_functions.is_asked_of(subject(relu=relu, relu_vjp=relu))
    assert about_functions.is_asked_of(tensors(relu=relu, relu_vjp=relu))
    assert not about_functions.is_asked_of(tensors(relu=relu))
    assert not about_functions.is_asked_of(subject(relu=relu))


quick = partial(check, max_examples=5, seed=7)


def relu(x):
    """Cut off what is negative."""
    return np.maximum(x, 0)


def test_a_property_about_gradients_says_so_and_needs_them(two_kinds):
    """It needs the component and its gradient."""
    gradient, plain, _ = two_kinds
    assert gradient.gradient
    assert gradient.needs == ("relu", "relu_vjp")
    assert not plain.gradient
    assert plain.needs == ("relu",)


@pytest.mark.parametrize(
    ("functions", "column", "exit_code"),
    [
        ({"relu": relu}, "·", 0),
        ({"relu": relu, "relu_vjp": lambda dy, x: dy * (x > 0)}, "1 passed", 0),
        ({"relu": relu, "relu_vjp": lambda dy, x: dy}, "1 failed", 1),
        ({"relu": relu, "relu_vjp": lambda dy, x: 1 / 0}, "1 failed", 1),
        ({"relu": relu, "relu_vjp": unwilling}, "1 unsupported", 0),
        ({"relu": torch.relu, "arrays": "torch"}, "1 passed", 0),
        ({"relu": torch.abs, "arrays": "torch"}, "1 failed", 1),
        ({"relu": without_grad, "arrays": "torch"}, "1 failed", 1),
    ],
)
@pytest.mark.usefixtures("two_kinds")
def test_the_report_counts_gradients_apart(functions, column, exit_code):
    """They have a column of their own; where there are none nothing is asked, and the rest is as it was."""
    report = quick(functions)
    (row,) = [line for line in str(report).splitlines() if line.startswith("relu ")]
    assert row.split() == ["relu", "1", "·", "·", "·", *column.split()]
    assert report.exit_code == exit_code
    data = report.to_json()
    assert problems(json.loads(json.dumps(data)), SCHEMA) == []
    assert {result["id"]: result["gradient"] for result in data["results"]} == {
        **({"relu.the_gradient_is_1_above_0": True} if column != "·" else {}),
        "relu.nothing_is_below_0": False,
    }


def test_calls_of_gradients_go_over_the_wire():
    """Cotangents, trees and None come back as they went."""
    params = init_params(CONFIG, seed=0)["blocks"][0]
    call = Call("transformer_block_vjp", (DY, X, {"norm_1": params["norm_1"]}, CONFIG, (None, DY)), {"mask": None})
    back = decode_call(json.loads(json.dumps(encode_call(call))))
    assert (back.component, back.options, back.args[3], back.args[4][0]) == (call.component, call.options, CONFIG, None)
    np.testing.assert_array_equal(back.args[4][1], DY)
    assert dict(leaves(back.args[2])).keys() == {"norm_1.gamma", "norm_1.beta"}


OWN = """
import numpy as np

def relu(x):
    return np.maximum(x, 0)

def relu_vjp(cotangent, x):
    return cotangent * 2
"""

TENSORS = """
import torch

arrays = "torch"
dtype = "float32"

def relu(x):
    return x.abs()

def transformer_block(x, params, config):
    return x * params["norm_1"]["gamma"] * 1e6
"""


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (OWN, [["got = subject.relu_vjp(cotangent, x)"]]),
        (
            TENSORS,
            [
                [
                    "wanted = [x]",
                    "got = torch.autograd.grad(subject.relu(x), wanted, cotangent, materialize_grads=True)",
                ],
                [
                    "wanted = [x, *(leaf for _, leaf in leaves(params))]",
                    "got = torch.autograd.grad(subject.transformer_block(x, params, config), wanted, cotangent, "
                    "materialize_grads=True)",
                ],
            ],
        ),
    ],
    ids=["own", "torch"],
)
@pytest.mark.usefixtures("two_kinds")
def test_a_wrong_gradient_can_be_reproduced(tmp_path, monkeypatch, code, lines):
    """The lines of a failure run with NumPy and the subject alone, and show what came and what should have come."""
    check_reproductions(tmp_path, monkeypatch, code, lines)


def check_reproductions(tmp_path, monkeypatch, code, lines):
    """Check a subject with this code, look for the lines in what reproduces its failures, and run that."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"subject_{abs(hash(code))}.py"
    file.write_text(code)
    loaded = loading.load(file)
    monkeypatch.setattr(loading, "load", lambda wanted: loaded)
    failed = [result for result in quick(object()).failures if result.gradient]
    assert len(failed) == len(lines)
    for result, wanted in zip(failed, lines, strict=True):
        for line in wanted:
            assert line in result.reproduction.split("\n")
    script = tmp_path / "reproduce.py"
    script.write_text("\n".join(result.reproduction for result in failed))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("got      ")
    assert done.stdout.count("should") == len(lines)


HANGING = """
import numpy as np

def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)

def softmax_vjp(cotangent, scores):
    print("on the way back")
    while True:
        pass
"""


def test_a_gradient_that_hangs_is_ended(tmp_path, monkeypatch):
    """It is a failure of its property, with the call in flight and what was printed; its expected failures count."""
    monkeypatch.setattr(runner, "WORKERS", 1)
    file = tmp_path / "hanging.py"
    file.write_text(HANGING)
    xfail = '[[xfail]]\nproperty = "softmax.the_gradient_of_a_row*"\nreason = "it is slow"\n'
    file.with_suffix(".xfails.toml").write_text(xfail)
    report = check(file, properties=["softmax.the_gradient_of_a_row_sums_to_0"], max_examples=1, time_limit=0.5)
    (result,) = report.results
    assert result.what == "softmax_vjp did not return within 0.5 s"
    assert result.calls[0]["component"] == "softmax_vjp"
    assert "on the way back" in result.output
    assert "got = subject.softmax_vjp(cotangent, scores)" in result.reproduction
    assert (result.verdict, result.reason) == ("xfailed", "it is slow")
    assert "1 xfailed" in str(report)


def test_explain_list_and_new_speak_of_gradients():
    """`explain` shows the gradient and marks its properties, `list` counts them, and `new` says how to write one."""
    from spec_tests.kit import describe

    explained = describe.explanation("softmax")
    assert "def softmax_vjp(cotangent, scores, *, axis=-1)\n    ->  (scores,)\n" in explained
    assert reference.numpy.softmax_vjp.__doc__.split("\n")[0] in explained
    assert "softmax.the_gradient_of_a_row_sums_to_0   (gradient)\n" in explained
    assert "of the gradient" in describe.counted(describe.properties("softmax"))
    assert "_vjp" not in describe.explanation("perplexity")
    assert "gradient" not in describe.counted(describe.properties("perplexity"))
    assert "gelu_vjp(cotangent, x" in describe.template().split("def ")[0]


def test_a_gradient_alone_is_no_component(tmp_path):
    """It is asked for beside its component, which the message names."""
    file = tmp_path / "only_backwards.py"
    file.write_text("def relu_vjp(cotangent, x):\n    return cotangent\n")
    with pytest.raises(loading.CannotLoad, match="`relu_vjp` is asked for its gradient beside `relu`"):
        loading.load(file)


def test_our_own_backends_have_gradients():
    """`reference.numpy` by its own functions, `reference.torch` by autograd."""
    for name, by_autograd in (("reference.numpy", False), ("reference.torch", True)):
        ours = loading.load(name).subject
        for component in DIFFERENTIABLE:
            assert ours.offers(f"{component}_vjp"), component
            assert ours.by_autograd(f"{component}_vjp") == by_autograd
