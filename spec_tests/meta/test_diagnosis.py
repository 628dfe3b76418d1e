"""What the kit says is wrong: known mistakes by their names, others by what was measured."""

import json
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import reference.numpy
from reference.config import LayerNorm, ModelConfig
from reference.parameters import block_shapes
from spec_tests import bounds, check
from spec_tests.kit import assembly, diagnosis, divergence, replay, runner
from spec_tests.kit.draws import fresh_calls, sizes_of
from spec_tests.kit.report import write_json
from spec_tests.kit.wire import encode_call
from spec_tests.kit.worker import run_property
from spec_tests.meta.schema import problems
from spec_tests.pitfalls.pitfall import Pitfall, pitfalls, right_functions
from spec_tests.spec import all_properties
from spec_tests.strategies import CASES, normal_tree
from spec_tests.subjects.contract import Call, is_gradient, plain
from spec_tests.subjects.subject import Subject

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "subjects"
SCHEMA = json.loads((ROOT / "spec_tests" / "kit" / "report.schema.json").read_text())


@pytest.fixture(autouse=True)
def one_worker(monkeypatch):
    """Let one worker do: a second one takes seconds to start."""
    monkeypatch.setattr(runner, "WORKERS", 1)


def subject_of(**functions):
    """Make a subject of some functions."""
    return Subject(SimpleNamespace(**functions), name="it")


def finding(component, function, **details):
    """Diagnose one wrong function on fresh inputs, and give the first finding."""
    found = diagnosis.diagnose(subject_of(**{component: function}), component, **{"calls": [], "seed": 5, **details})
    return found["findings"][0]


# ----------------------------------------------------------------------------------------------- assembly


@pytest.mark.parametrize("component", assembly.ASSEMBLED)
def test_with_the_right_parts_the_assembly_is_the_component(component):
    """Put together from the reference's parts it is the reference's composed function, and shows what is in between."""
    for case in CASES[component]:
        for call in fresh_calls(f"{component}.{case}", 4, seed=3):
            trace = {}
            right = getattr(reference.numpy, component)(*call.args, **call.options)
            y = assembly.assemble({})[component](*call.args, **call.options, trace=trace)
            bounds.agree(call, y, right, eps=2**-52, share=0.1)
            assert len(trace) >= 2
            assert list(trace.values())[-1] is y


@pytest.mark.parametrize("component", assembly.ASSEMBLED)
def test_every_part_that_is_named_is_used(component):
    """What is made of parts changes when any of its parts does: `parts_of` names no other."""
    for part in assembly.parts_of(component):
        used = []

        def noted(*args, part=part, used=used, **options):
            used.append(part)
            return getattr(reference.numpy, part)(*args, **options)

        for case in CASES[component]:
            call = fresh_calls(f"{component}.{case}", 2, seed=3)[-1]
            assembly.assemble({part: noted})[component](*call.args, **call.options)
        assert used, f"{component} is said to hold {part}"


# ----------------------------------------------------------------------------------------------- known mistakes


def named(mistake, component, recorded):
    """Say whether a diagnosis of the mistake names it. Any seed will do: five others named all 157 of them, too."""
    of_gradient = any(map(is_gradient, mistake.touches))
    found = diagnosis.diagnose(mistake.subject(), component, calls=recorded, gradient=of_gradient, seed=5)
    findings = found["findings"] if found else []
    return any(mistake.id in (p["id"] for p in f["pitfalls"]) or mistake.id in f["text"] for f in findings)


def failures_of(mistake, most=3):
    """Give the calls of a few failures of what is known to catch the mistake."""
    for prop in all_properties():
        if any(prop.id == caught or prop.id.startswith(f"{caught}.") for caught in mistake.caught_by):
            result = run_property(prop, mistake.subject(), max_examples=16, seed=5)
            if result["verdict"] == "failed":
                yield prop.component, result["calls"][::-1]
                if (most := most - 1) == 0:
                    return


@pytest.mark.parametrize("mistake", [m for m in pitfalls() if m.touches], ids=lambda mistake: mistake.id)
def test_every_known_mistake_is_named(mistake):
    """A subject that makes a known mistake is told its name, alone or beside those that these inputs cannot tell."""
    if named(mistake, plain(mistake.touches[0]), []):
        return
    assert any(named(mistake, component, recorded) for component, recorded in failures_of(mistake))


def unbiased(x, gamma, beta, *, eps=1e-5):
    """Divide by n - 1."""
    y = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True, ddof=1) + eps)
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def test_a_mistake_of_somebody_elses_code_is_named_with_its_mend_and_sources():
    """Written in other words, the mistake is known all the same; the finding has all that there is to know."""
    found = finding("layer_norm", unbiased)
    (mistake,) = found["pitfalls"]
    assert (found["kind"], mistake["id"]) == ("pitfall", "layer_norm.unbiased_std")
    for part in (mistake["mend"].split(":")[0], mistake["sources"][0], "n - 1"):
        assert part in found["text"]


def test_a_mistake_of_a_part_is_named_in_what_holds_it():
    """A model with a wrong layer norm in it is told about the layer norm, and where it does not explain all."""
    wrong = assembly.assemble({"layer_norm": lambda *args, variant="", **options: unbiased(*args, **options)})
    found = finding("transformer", lambda *args, **options: wrong["transformer"](*args, **options))
    assert [mistake["id"] for mistake in found["pitfalls"]] == ["layer_norm.unbiased_std"]
    assert found["kind"] == "pitfall in part", "another variant of the norm is not minded, either"
    assert "tutorial_000" in found["text"]


def made_up(name, **fields):
    """Make up a mistake."""
    words = {"does": f"It {name}s.", "shows": "So.", "mend": "Do not.", "visibility": "silent", "caught_by": ()}
    return Pitfall(id=f"gelu.{name}", catalogue=(), sources=(), **words, **fields)


@pytest.fixture
def only(monkeypatch):
    """Let these be all the mistakes that are known."""

    def put(*mistakes):
        monkeypatch.setattr(diagnosis, "pitfalls", lambda: mistakes)

    return put


def test_two_mistakes_at_once_are_named_together(only):
    """Neither alone is the subject's output; the one made around the other is."""
    shift = made_up("shift", around={"gelu": lambda right: lambda x, **o: right(x - 1, **o)})
    double = made_up("double", around={"gelu": lambda right: lambda x, **o: 2 * right(x, **o)})
    halve = made_up("halve", around={"gelu": lambda right: lambda x, **o: right(x / 2, **o)})
    only(shift, halve, double)
    found = finding("gelu", lambda x, **options: 2 * reference.numpy.gelu(x - 1, **options))
    assert found["kind"] == "combination"
    assert {mistake["id"] for mistake in found["pitfalls"]} == {"gelu.shift", "gelu.double"}
    order = finding("gelu", lambda x, **options: reference.numpy.gelu(x / 2 - 1, **options))
    assert order["text"].count("gelu.shift with gelu.halve"), "the second is around the first"


def test_what_cannot_be_told_apart_is_said_to_be(only):
    """Two mistakes that make the same of every input are both named."""
    twice = {"gelu": lambda x, **options: reference.numpy.gelu(2 * x, **options)}
    only(made_up("double", functions=twice), made_up("scale", functions=twice), made_up("shift", functions={}))
    found = finding("gelu", twice["gelu"])
    assert found["kind"] == "pitfalls"
    assert {mistake["id"] for mistake in found["pitfalls"]} == {"gelu.double", "gelu.scale"}
    assert "cannot tell them apart" in found["text"]


def test_what_only_errs_is_not_taken_for_another_that_errs(only):
    """Two functions that raise on every input are not the same mistake unless they raise the same."""
    only(made_up("break", functions={"gelu": lambda x: np.ones(3) @ np.ones(2)}))
    assert finding("gelu", lambda x: x.no_luck)["kind"] == "raises"
    assert finding("gelu", lambda x: np.ones(4) @ np.ones(5))["kind"] == "pitfall"


def test_what_is_right_wherever_it_is_compared_explains_nothing(only):
    """Mistakes in parts are not compared where something is NaN; what is wrong there alone is not blamed on them."""
    parts = ("causal_mask", "softmax")
    only(*[made_up(part, functions={part: getattr(reference.numpy, part)}) for part in parts])

    def wrong(q, k, v, **options):
        y = reference.numpy.scaled_dot_product_attention(q, k, v, **options)
        return y if np.isfinite(v).all() else y + 7

    hidden = np.array([[True, False]])
    call = Call("scaled_dot_product_attention", (np.ones((1, 3)), np.ones((2, 3)), np.array([[1.0], [np.nan]])), {})
    recorded = encode_call(replace(call, options={"mask": hidden}))
    found = finding("scaled_dot_product_attention", wrong, calls=[recorded])
    assert found["pitfalls"] == []
    assert "nor any of 1 combinations" in found["text"]


def test_a_right_component_has_no_diagnosis():
    """Where nothing is found wrong nothing is said."""
    right = subject_of(softmax=reference.numpy.softmax)
    assert diagnosis.diagnose(right, "softmax", calls=[], seed=5) is None


def test_bad_input_that_is_accepted_is_told_by_what_comes_of_it():
    """Ids below 0 that wrap are named from the call that failed."""
    prop = next(p for p in all_properties() if p.id == "token_embedding.a_negative_id_raises")
    wraps = subject_of(token_embedding=lambda ids, table, scale=1.0: scale * table[ids])
    recorded = run_property(prop, wraps, max_examples=16, seed=5)["calls"]
    (found,) = diagnosis.diagnose(wraps, "token_embedding", calls=recorded, seed=5)["findings"]
    assert found["about"] == "bad input"
    assert "token_embedding.negative_ids_wrap" in [mistake["id"] for mistake in found["pitfalls"]]


# ----------------------------------------------------------------------------------------------- the nearest kind

R = reference.numpy


def _wrong_in_places(place, component="multi_head_attention"):
    """Spoil some places of the right answer."""

    def wrong(*args, **options):
        y = np.array(getattr(R, component)(*args, **options))
        y[place] = np.sin(100 * y[place]) + 3
        return y

    return component, wrong


def _without(name, component):
    """Ignore an option."""
    return component, lambda *args, **options: getattr(R, component)(*args, **{**options, name: None})


def _only_where(test, component):
    """Spoil the answer where a test of the call holds."""

    def wrong(*args, **options):
        y = np.asarray(getattr(R, component)(*args, **options))
        return np.cos(y + np.arange(y.size).reshape(y.shape)) + 3 if test(Call(component, args, options)) else y

    return component, wrong


def _no_key(q, k, v, **options):
    y, weights = R.scaled_dot_product_attention(q, k, v, **options), R.attention_weights(q, k, **options)
    return np.where(weights.sum(axis=-1, keepdims=True) == 0, np.arange(y.shape[-1]) + 7.5, y)


def _returns_q(q, k, v, **options):
    return np.array(q)


KINDS = [
    ("softmax", lambda s, *, axis=-1: 2.5 * R.softmax(s, axis=axis), "scaled", "times 2.5"),
    ("softmax", lambda s, *, axis=-1: R.softmax(s, axis=axis) / s.shape[axis], "scaled", "times 1/the length of"),
    ("softmax", lambda s, *, axis=-1: -R.softmax(s, axis=axis), "sign", "the other sign"),
    ("relu", lambda x: R.relu(x) * np.where(np.arange(x.size).reshape(x.shape) % 2, 1, -1), "sign", "sign of some"),
    ("gelu", lambda x, **o: R.gelu(x, **o) + 1.5, "shifted", "plus 1.5"),
    ("softmax", lambda s, *, axis=-1: R.softmax(s, axis=axis).T, "axes permuted", "in the reverse order"),
    (
        "self_attention", lambda *a, **o: R.self_attention(*a, **o).swapaxes(-1, -2), "axes permuted",
        "in the order d_v, seq",
    ),
    (
        "self_attention", lambda *a, **o: R.self_attention(*a, **o)[..., ::-1], "order",
        "back to front along d_v",
    ),
    (
        "sinusoidal_positions",
        lambda seq, d, **o: np.concatenate([R.sinusoidal_positions(seq, d, **o)[:, s::2] for s in (1, 0)], axis=1),
        "order", "another order along d_model",
    ),
    ("output_head", lambda x, w, b=None: R.output_head(x, w, b)[..., None], "wrong shape", "in the right order"),
    ("output_head", lambda x, w, b=None: np.full(R.output_head(x, w, b).shape, np.nan), "all NaN", "NaN everywhere"),
    ("output_head", lambda x, w, b=None: np.full(R.output_head(x, w, b).shape, 7.0), "constant", "7 everywhere"),
    ("relu", lambda x: x, "its input", "x, unchanged"),
    ("relu", lambda x: np.cos(50 * x) + 9, "right shape only", "off by up to"),
    ("gelu", lambda x, **o: x.no_luck, "raises", "AttributeError: 'numpy.ndarray' object has no attribute 'no_luck'"),
    ("scaled_dot_product_attention", _no_key, "right in places", "queries that may attend to nothing, and all of"),
    (*_wrong_in_places(np.s_[..., 0, :]), "right in places", "all of them first along q_seq, and all of those"),
    (*_wrong_in_places(np.s_[..., -1, :]), "right in places", "all of them last along q_seq, and all of those"),
    (
        *_wrong_in_places(np.s_[..., 1::2], "layer_norm"), "right in places",
        "all of them at odd places along d_model (1, 3, …), and all of those",
    ),
    (*_without("bias", "attention_weights"), "right on some inputs", "where bias is given"),
    (
        *_only_where(lambda call: sizes_of(call).get("d_model", 0) % 2 == 1, "sinusoidal_positions"),
        "right on some inputs", "where d_model is odd differ",
    ),
    (
        *_only_where(lambda call: call.args[0].ndim > 2, "self_attention"),
        "right on some inputs", "where there is a batch axis differ",
    ),
    (
        *_only_where(lambda call: call.args[0].ndim < 2, "layer_norm"),
        "right on some inputs", "where there is no batch axis differ",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("component", "function", "kind", "said"), KINDS)
def test_each_nearest_kind_is_measured(only, component, function, kind, said):
    """What no known mistake explains is described by what was measured."""
    only()
    found = finding(component, function)
    assert found["kind"] == kind, found["text"]
    assert said in found["text"]
    assert "No mistake is known" in found["text"]


def test_a_factor_that_depends_on_a_size_is_named(only):
    """sqrt(d_k) forgotten or used twice is told as such, whatever the sizes."""
    only()
    for power, said in ((0.5, "times sqrt(d_k)"), (-0.5, "times 1/sqrt(d_k)"), (1, "times d_k"), (-1, "times 1/d_k")):

        def wrong(x, w_q, w_k, w_v, power=power, **options):
            return R.self_attention(x, w_q, w_k, w_v, **options) * w_k.shape[1] ** power

        assert said in finding("self_attention", wrong)["text"]


def test_a_whim_is_no_other_mistake():
    """What differs from call to call is told so, with the known mistakes that do it."""
    numbers = count()
    found = finding("gelu", lambda x, **o: R.gelu(x, **o) + next(numbers))
    assert found["kind"] == "whims"
    assert "another result each time" in found["text"]


def test_only_one_part_of_a_result_is_wrong(only):
    """Of several arrays those that are wrong are named."""
    only()

    def wrong(*args, **options):
        param, m, v = R.adamw_step(*args, **options)
        return param, 3 * m, v

    assert "(in m)" in finding("adamw_step", wrong)["text"]


def test_wrong_gradients_of_right_values_are_diagnosed(only):
    """Gradients are compared where properties about them failed, and named by their argument."""
    only()

    def wrong(cotangent, x, gamma, beta, **options):
        dx, d_gamma, d_beta = R.layer_norm_vjp(cotangent, x, gamma, beta, **options)
        return dx, d_gamma, None if d_beta is None else 2 * d_beta

    subject = subject_of(layer_norm=R.layer_norm, layer_norm_vjp=wrong)
    assert diagnosis.diagnose(subject, "layer_norm", calls=[], seed=5) is None
    (found,) = diagnosis.diagnose(subject, "layer_norm", calls=[], gradient=True, seed=5)["findings"]
    assert (found["about"], found["kind"]) == ("gradients", "scaled")
    assert "(in beta)" in found["text"]


def test_in_float32_rounding_is_no_mistake():
    """A float32 subject is compared in float32: a right one has no diagnosis, a wrong one the same."""
    right = Subject(SimpleNamespace(layer_norm=R.layer_norm, dtype="float32"), name="right")
    assert diagnosis.diagnose(right, "layer_norm", calls=[], seed=5) is None
    wrong = Subject(SimpleNamespace(layer_norm=unbiased, dtype="float32"), name="wrong")
    (found,) = diagnosis.diagnose(wrong, "layer_norm", calls=[], seed=5)["findings"]
    assert [mistake["id"] for mistake in found["pitfalls"]] == ["layer_norm.unbiased_std"]


def test_a_diagnosis_ends_in_time(only):
    """However many mistakes there are, and however slow the subject is, the comparison ends."""
    slow = made_up("wait", functions={"gelu": lambda x, **options: sum(x.sum() for _ in range(20_000)) + x})
    only(*[slow] * 1000)
    start = time.process_time()
    found = finding("gelu", lambda x, **options: x + 1, seconds=0.3)
    assert time.process_time() - start < 1.5
    assert "the time was up before all were compared" in found["text"]


def test_a_slow_subject_is_compared_all_the_same():
    """A subject whose one call takes longer than a whole diagnosis may, as one that compiles does, is compared."""

    def compiling(x, **options):
        time.sleep(0.4)
        return R.gelu(x, approximate="tanh")

    found = finding("gelu", compiling, seconds=0.3)
    assert "gelu.tanh_for_erf" in [mistake["id"] for mistake in found["pitfalls"]]


def test_a_slow_gradient_is_compared_all_the_same():
    """So is a gradient whose one call takes that long, after values that took as long and are right."""

    def slow(function):
        return lambda *args, **options: (time.sleep(0.4), function(*args, **options))[1]

    wrong = next(p for p in pitfalls() if p.id == "token_embedding.gradients_overwrite").on(right_functions())
    functions = {name: slow(wrong.get(name, getattr(R, name))) for name in ("token_embedding", "token_embedding_vjp")}
    twice = Call("token_embedding_vjp", (np.arange(1.0, 10).reshape(3, 3), np.array([1, 0, 1]), np.eye(2, 3)), {})
    calls = [encode_call(twice)]
    subject = subject_of(**functions)
    (found,) = diagnosis.diagnose(subject, "token_embedding", calls=calls, gradient=True, seconds=0.3)["findings"]
    assert [mistake["id"] for mistake in found["pitfalls"]] == ["token_embedding.gradients_overwrite"]


# ----------------------------------------------------------------------------------------------- first divergence


def wrong_block(x, params, config, *, mask=None, keep=None, trace=None):
    """Normalise wrongly, and show what is computed in between."""
    parts = assembly.assemble({"layer_norm": lambda *args, **options: 1.5 * R.layer_norm(*args, **options)})
    return parts["transformer_block"](x, params, config, mask=mask, keep=keep, trace={} if trace is None else trace)


def test_the_first_intermediate_that_differs_is_named():
    """A trace shows where it goes wrong first, and what was right before."""

    def scaled_twice(x, w_q, w_k, w_v, *, mask=None, causal=False, trace=None):
        parts = assembly.assemble({"attention_weights": lambda q, k, **o: R.attention_weights(q / 2, k, **o)})
        shown = {} if trace is None else trace
        shown.update(
            q=x @ w_q, k=x @ w_k, weights=parts["attention_weights"](x @ w_q, x @ w_k, mask=mask, causal=causal)
        )
        return parts["self_attention"](x, w_q, w_k, w_v, mask=mask, causal=causal)

    block = diagnosis.diagnose(subject_of(transformer_block=wrong_block), "transformer_block", calls=[], seed=5)
    assert block["first_divergence"]["name"] in ("norm_1", "attention"), block["first_divergence"]
    attention = diagnosis.diagnose(subject_of(self_attention=scaled_twice), "self_attention", calls=[], seed=5)
    assert attention["first_divergence"]["name"] == "weights"
    assert attention["first_divergence"]["after"] == "k"
    assert attention["first_divergence"]["compared"] == ["q", "k", "weights"]


def test_the_submodules_of_a_module_are_listened_to():
    """A bound module shows its intermediates by the weights that its submodules hold, or by their names."""
    import torch
    from torch import nn

    from spec_tests.subjects.modules import from_module

    class Norm(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) * 1.5

    class Block(nn.Module):
        def __init__(self, d_model, d_ff):
            super().__init__()
            self.ln_a, self.ln_b = nn.LayerNorm(d_model, 0.1), Norm(d_model, 0.1)
            self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
            self.mlp = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))

        def forward(self, x, n_heads):
            q, k, v = (
                t.unflatten(-1, (n_heads, -1)).mT.mT.transpose(-2, -3) for t in self.qkv(self.ln_a(x)).chunk(3, -1)
            )
            heads = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(heads.transpose(-2, -3).flatten(-2))
            return x + self.mlp(self.ln_b(x))

    names = {"mlp.0.weight": "w_1.T", "mlp.0.bias": "b_1", "mlp.2.weight": "w_2.T", "mlp.2.bias": "b_2"}

    def build(config):
        if config != replace(config, norm_placement="pre", activation="gelu", causal=False, norm=LayerNorm(eps=0.1)):
            raise NotImplementedError
        return Block(config.d_model, config.d_ff)

    block = from_module(
        "transformer_block",
        build,
        weights={
            "qkv.weight": [f"params.attention.{name}.T" for name in ("w_q", "w_k", "w_v")],
            "qkv.bias": [f"params.attention.{name}" for name in ("b_q", "b_k", "b_v")],
            "out.weight": "params.attention.w_o.T",
            "out.bias": "params.attention.b_o",
            **{key: f"params.mlp.{name}" for key, name in names.items()},
            **{f"{mine}.weight": f"params.{ours}.gamma" for mine, ours in (("ln_a", "norm_1"), ("ln_b", "norm_2"))},
            **{f"{mine}.bias": f"params.{ours}.beta" for mine, ours in (("ln_a", "norm_1"), ("ln_b", "norm_2"))},
        },
        call=lambda module, x, config: module(x, config.n_heads),
    )
    config = ModelConfig(
        vocab=5, d_model=6, n_heads=2, n_layers=1, d_ff=7, max_len=8, causal=False, norm=LayerNorm(eps=0.1)
    )
    generator = np.random.default_rng(3)
    call = Call(
        "transformer_block",
        (generator.normal(size=(2, 3, 6)), normal_tree(generator, block_shapes(config)), config),
        {},
    )
    shown = divergence.shown_by(subject_of(transformer_block=block), block, call)
    expected = {}
    assembly.assemble({})["transformer_block"](*call.args, trace=expected)
    seen = [name for name in expected if name in shown]
    assert seen == [
        "norm_1",
        "attention.q",
        "attention.k",
        "attention.v",
        "attention.output",
        "norm_2",
        "mlp.output",
        "mlp",
    ]
    off = {name: divergence.apart(shown[name], expected[name], 2**-52) for name in seen}
    assert [name for name in seen if off[name]] == ["norm_2", "mlp.output", "mlp"]

    found = diagnosis.diagnose(subject_of(transformer_block=block), "transformer_block", calls=[], seed=5)
    assert found["first_divergence"]["name"] == "norm_2"
    assert found["first_divergence"]["after"] == "attention.output"


# ----------------------------------------------------------------------------------------------- in the report


def quick(subject, *properties, **options):
    """Check with few examples."""
    return check(subject, properties=properties, **{"max_examples": 5, "seed": 7, **options})


def test_the_example_is_told_its_mistake_and_its_mend():
    """The report of the shipped example names the mistake once, above its failures, and folds most of them."""
    report = quick(EXAMPLES / "unbiased_layer_norm.py", "layer_norm.agrees*", "layer_norm.every_row_has*")
    text = str(report)
    failures = [result.id for result in report.failures]
    assert len(failures) >= 4
    assert text.count("DIAGNOSIS layer_norm") == text.count("equals layer_norm.unbiased_std") == 1
    assert text.index("DIAGNOSIS") < text.index(f"FAILED {failures[0]}")
    assert "Mend: " in text
    assert "https://" in text
    assert text.count("reproduce with") == 2
    for name in failures:
        assert f"FAILED {name}" in text
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert problems(data, SCHEMA) == []
    assert len([r for r in data["results"] if r["verdict"] == "failed"]) == len(failures)
    assert [d["component"] for d in data["diagnoses"]] == ["layer_norm"]
    data["diagnoses"][0]["findings"][0]["about"] = "luck"
    assert problems(data, SCHEMA), "the check of the schema must be able to fail"


def test_expected_failures_are_not_diagnosed(tmp_path):
    """What fails as expected needs no diagnosis, and what passes has none."""
    file = tmp_path / "mine.py"
    file.write_text("def relu(x):\n    return abs(x)\n\n\ndef gelu(x):\n    raise NotImplementedError\n")
    file.with_suffix(".xfails.toml").write_text('[[xfail]]\nproperty = "relu.*"\nreason = "so"\n')
    report = quick(file, "relu.agrees*", "gelu.agrees*")
    assert {result.verdict for result in report.results} == {"xfailed", "unsupported"}
    assert report.diagnoses == ()


def test_a_subject_that_dies_in_its_diagnosis_keeps_its_verdicts(tmp_path):
    """It loses the diagnosis of that component, and the report says why; the others have theirs."""
    file, mark = tmp_path / "mine.py", tmp_path / "checked"
    file.write_text(f"""
import os
from pathlib import Path

mark = Path({str(mark)!r})
diagnosing = mark.exists()

def softmax(scores):
    if diagnosing:
        os._exit(3)
    return scores

def gelu(x):
    mark.touch()
    return x + 1
""")
    report = quick(file, "*.agrees*.plain")
    assert {result.verdict for result in report.results} == {"failed"}
    told = {diagnosis["component"]: diagnosis for diagnosis in report.diagnoses}
    assert told["softmax"]["problem"] == "the subject ended the process (exit code 3)"
    assert told["gelu"]["findings"]
    assert problems(json.loads(json.dumps(report.to_json())), SCHEMA) == []
    assert "There is none: the subject ended the process" in str(report)


def test_a_diagnosis_that_breaks_is_said_to(monkeypatch):
    """A mistake of the kit costs the diagnosis and not the report."""
    monkeypatch.setattr(diagnosis, "draws_of", lambda *args, **options: 1 / 0)
    report = quick({"relu": abs}, "relu.agrees*")
    assert [result.verdict for result in report.results] == ["failed"]
    assert "ZeroDivisionError" in report.diagnoses[0]["problem"]


# ----------------------------------------------------------------------------------------------- replay


@pytest.fixture
def recorded(tmp_path):
    """Record the failures of a ReLU that is none and writes into its argument."""

    def relu(x):
        x[x < 0] *= -1
        return x

    report = quick({"relu": relu}, "relu.agrees*", "relu.arguments*", "relu.the_same*", max_examples=30)
    assert [result.id.split(".")[1] for result in report.failures] == [
        "agrees_with_the_reference",
        "arguments_are_left_as_they_were",
    ]
    file = tmp_path / "report.json"
    write_json(report, file)
    return file


def test_a_replayed_failure_is_gone_when_it_is_mended(recorded):
    """The recorded calls fail with the mistake, and each passes when its own mistake is mended."""

    def in_place(x):
        x[x < 0] = 0
        return x

    def fails(relu):
        failures = [result for result in json.loads(recorded.read_text())["results"] if result["verdict"] == "failed"]
        return [
            replay.replay(subject_of(relu=relu), "relu", property_id=result["id"], calls=result["calls"])["fails"]
            for result in failures
        ]

    assert fails(np.abs) == [True, False]
    assert fails(in_place) == [False, True]
    assert fails(lambda x: x * (x > 0)) == [False, False]
    assert fails(lambda x: x.no_luck) == [True, True]


def test_replay_makes_the_recorded_calls_alone(recorded, tmp_path, capsys):
    """The command calls the subject as the report has it and no other way; a call that hangs still fails."""
    from spec_tests.kit.cli import app

    file, seen = tmp_path / "mine.py", tmp_path / "seen"
    file.write_text(f"""
from pathlib import Path

seen = Path({str(seen)!r})

def relu(x):
    first = not seen.exists()
    with seen.open("a") as out:
        print(x.ravel().tolist(), file=out)
    while first:
        pass
    return x * (x > 0)
""")
    with pytest.raises(SystemExit) as end:
        app(["check", str(file), "--replay", str(recorded), "--time-limit", "0.5"])
    failures = [result for result in json.loads(recorded.read_text())["results"] if result["verdict"] == "failed"]
    arrays = [str(call["args"][0]["data"]) for result in failures for call in result["calls"]]
    printed = capsys.readouterr().out
    assert seen.read_text().splitlines() == arrays
    assert f"FAILS  {failures[0]['id']}: the subject did not return within 0.5 s" in printed
    assert f"PASSES {failures[1]['id']}: 1 call made again" in printed
    assert "1 of 2 still fail" in printed
    assert end.value.code == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "not a JSON report"),
        ('{"report_version": 3, "results": []}', "no failure with calls"),
        (
            '{"report_version": 9, "results": [{"id": "a", "component": "relu", "verdict": "failed", "calls": [1]}]}',
            "a report of version 9",
        ),
    ],
)
def test_a_file_that_cannot_be_replayed_is_said_to_be(tmp_path, capsys, text, said):
    """What is no report, or holds nothing to replay, is one line and exit code 2."""
    from spec_tests.kit.cli import app

    file = tmp_path / "report.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as end:
        app(["check", "torch_nn", "--replay", str(file)])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
