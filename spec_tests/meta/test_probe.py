"""Conventions: what is probed, declared and checked is what the subject does."""

import inspect
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import reference.numpy as right
from reference.shape_checks import unchecked
from spec_tests import check
from spec_tests.judge import Unsupported
from spec_tests.kit.cli import app
from spec_tests.kit.experiments import EXPERIMENTS
from spec_tests.kit.probe import UNTOLD, declaration, findings, probe
from spec_tests.kit.reproduction import reproduction
from spec_tests.kit.runner import CannotRun
from spec_tests.kit.wire import encode_call
from spec_tests.search import fails
from spec_tests.spec import all_properties
from spec_tests.subjects import conventions
from spec_tests.subjects.contract import Call
from spec_tests.subjects.loading import CannotLoad, load
from spec_tests.subjects.subject import Subject


def turned(w):
    """Give a matrix of weights the other way round."""
    return None if w is None else w.T


def turned_tree(tree):
    """Turn every matrix of weights in a block's parameters."""
    return {
        group: {name: turned(part) if name.startswith("w_") else part for name, part in parts.items()}
        for group, parts in tree.items()
    }


def first_keys(q_seq, k_seq):
    """Let query i see keys 0 to i."""
    return np.arange(k_seq) <= np.arange(q_seq)[:, None]


# ------------------------------------------------------------------ subjects, each with the conventions that it follows


def _true_hides(q, k, v, *, mask=None, **options):
    return right.scaled_dot_product_attention(q, k, v, mask=None if mask is None else ~mask, **options)


def _additive(x, w_q, w_k, w_v, *, mask=None, causal=False):
    return right.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, bias=mask, causal=causal)


def _first_key(q, k, *, bias=None, causal=False, scale=None):
    mask = first_keys(q.shape[-2], k.shape[-2]) if causal else None
    return right.attention_weights(q, k, mask=mask, bias=bias, scale=scale)


def _otherwise_in_all(x, w_q, w_k, w_v, w_o, *, n_heads, context=None, mask=None, causal=False, **biases):
    allowed = first_keys(x.shape[-2], (x if context is None else context).shape[-2]) if causal else None
    if mask is not None:
        allowed = ~mask if allowed is None else ~mask & allowed
    weights = map(turned, (w_q, w_k, w_v, w_o))
    return right.multi_head_attention(x, *weights, n_heads=n_heads, context=context, mask=allowed, **biases)


def _relu_of_turned_weights(x, w_1, b_1, w_2, b_2, *, keep=None, rate=0.0):
    return right.feed_forward(x, w_1.T, b_1, w_2.T, b_2, activation="relu", keep=keep, rate=rate)


def _smoothed_over_the_others(logits, targets, *, ignore_index=-100, label_smoothing=0.0):
    if not 0 <= label_smoothing <= 1:
        raise ValueError("label_smoothing")
    of_target = right.cross_entropy(logits, targets, ignore_index=ignore_index)
    if label_smoothing == 0 or logits.shape[-1] == 1:
        return of_target
    vocab = logits.shape[-1]
    of_all = vocab * right.cross_entropy(logits, targets, ignore_index=ignore_index, label_smoothing=1.0)
    return (1 - label_smoothing) * of_target + label_smoothing * (of_all - of_target) / (vocab - 1)


def _from_one(step, *, warmup, total, max_lr, min_lr=0.0):
    return right.warmup_cosine(step - 1, warmup=warmup, total=total, max_lr=max_lr, min_lr=min_lr)


def _nucleus(logits, top_p, one_more):
    p = right.softmax(logits)
    order = np.argsort(-p, axis=-1, kind="stable")
    mass = np.cumsum(np.take_along_axis(p, order, axis=-1), axis=-1)
    kept = np.maximum((mass <= top_p).sum(axis=-1, keepdims=True) + one_more, 1)
    p = np.where(np.argsort(order, axis=-1) < kept, p, 0)
    return p / p.sum(axis=-1, keepdims=True)


def _top_p(one_more):
    def next_token_distribution(logits, *, top_p=None, **options):
        if top_p is None or not 0 < top_p < 1 or options or not np.isfinite(logits).all():
            return right.next_token_distribution(logits, top_p=top_p, **options)
        return _nucleus(logits, top_p, one_more)

    return next_token_distribution


def _block_with_a_mind_of_its_own(x, params, config, *, mask=None, keep=None):
    norm = replace(config.norm, variant="std_plus_eps", eps=1e-6)
    config = replace(config, norm_placement="post", activation="relu", norm=norm)
    return right.transformer_block(x, turned_tree(params), config, mask=mask, keep=keep)


def _columns(seq, d_model, *, base=10000.0, offset=0, dtype=None):
    table = right.sinusoidal_positions(seq, d_model, base=base, offset=offset, dtype=dtype)
    return np.concatenate([table[:, ::2], table[:, 1::2]], axis=-1)


def _only(component, **fixed):
    """Give a component that lacks some options, and does what they would say of itself."""
    function = getattr(right, component)

    def only(*args, **options):
        return function(*args, **options, **fixed)

    kept = [p for name, p in inspect.signature(function).parameters.items() if name not in fixed]
    only.__signature__ = inspect.Signature(kept)
    return only


FOLLOWING = {
    "hides": ("scaled_dot_product_attention", {"mask": "true_hides"}, _true_hides),
    "additive": ("self_attention", {"mask": "additive"}, _additive),
    "first key, without a mask": ("attention_weights", {"causal": "first_key"}, _first_key),
    "all of attention": (
        "multi_head_attention",
        {"weights": "out_in", "mask": "true_hides", "causal": "first_key"},
        _otherwise_in_all,
    ),
    "causal mask that hides": (
        "causal_mask",
        {"mask": "true_hides", "causal": "first_key"},
        lambda q_seq, k_seq=None: ~first_keys(q_seq, q_seq if k_seq is None else k_seq),
    ),
    "causal mask that adds": (
        "causal_mask",
        {"mask": "additive"},
        lambda q_seq, k_seq=None: np.where(right.causal_mask(q_seq, k_seq), 0.0, -np.inf),
    ),
    "head": ("output_head", {"weights": "out_in"}, lambda x, w, b=None: right.output_head(x, w.T, b)),
    "feed forward": ("feed_forward", {"weights": "out_in", "activation": "relu"}, _relu_of_turned_weights),
    "keep": ("dropout", {"keep": "true_drops"}, lambda x, keep, *, rate: right.dropout(x, ~keep, rate=rate)),
    "std + eps": ("layer_norm", {"variant": "std_plus_eps"}, _only("layer_norm", variant="std_plus_eps")),
    "unbiased, eps of its own": (
        "layer_norm",
        {"variant": "unbiased_std_plus_eps", "default_eps": 1e-6},
        _only("layer_norm", variant="unbiased_std_plus_eps", eps=1e-6),
    ),
    "eps ignored": (
        "layer_norm",
        {"eps": 1e-3},
        lambda x, gamma, beta, *, eps=None: right.layer_norm(x, gamma, beta, eps=1e-3),
    ),
    "another default": (
        "layer_norm",
        {"default_eps": 1e-12},
        lambda x, gamma, beta, *, eps=1e-12: right.layer_norm(x, gamma, beta, eps=eps),
    ),
    "tanh": ("gelu", {"approximate": "tanh"}, _only("gelu", approximate="tanh")),
    "halves": ("sinusoidal_positions", {"columns": "halves"}, _columns),
    "smoothing": ("cross_entropy", {"label_smoothing": "other_classes"}, _smoothed_over_the_others),
    "mean": ("perplexity", {"total_loss": "mean"}, lambda total_loss, n_tokens: right.perplexity(total_loss, 1)),
    "steps from 0": (
        "adamw_step",
        {"step": "from_0"},
        lambda *arrays, step, **options: right.adamw_step(*arrays, step=step + 1, **options),
    ),
    "steps from 1": ("warmup_cosine", {"step": "from_1"}, _from_one),
    "crossing token dropped": ("next_token_distribution", {"top_p": "within"}, _top_p(0)),
    "mass exceeds p": ("next_token_distribution", {"top_p": "exceeds"}, _top_p(1)),
    "block": (
        "transformer_block",
        {"weights": "out_in", "norm_placement": "post", "activation": "relu", "variant": "std_plus_eps", "eps": 1e-6},
        _block_with_a_mind_of_its_own,
    ),
    "model": (
        "transformer",
        {"norm_placement": "post"},
        lambda ids, params, config, **options: right.transformer(
            ids, params, replace(config, norm_placement="post"), **options
        ),
    ),
}


def declared_by(found):
    """Give what a list of findings declares."""
    return {f.convention: f.value for f in found if f.value is not None}


def found_in(component, function):
    """Probe one function."""
    with unchecked():  # much quicker, and nothing here is about errors
        return findings(subject_of(component, function), component, np.random.default_rng())


def subject_of(component, function, declared=None):
    """Give a subject of one function, and what it declares about it."""
    return Subject(SimpleNamespace(**{component: function, "conventions": {component: declared or {}}}), name="mine")


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_convention_is_found_out(name):
    """The probe finds what a subject follows, and nothing besides."""
    component, declared, function = FOLLOWING[name]
    assert declared_by(found_in(component, function)) == declared


IN_PART = (
    "hides",
    "additive",
    "first key, without a mask",
    "all of attention",
    "causal mask that hides",
    "mean",
    "block",
    "model",
)
"""Subjects that take some bad input, or that a full check takes long of."""


@pytest.mark.parametrize("name", FOLLOWING)
def test_what_is_declared_passes(name):
    """With the declaration that the probe finds nothing fails, and something passes."""
    component, declared, function = FOLLOWING[name]
    ids = ("*agree*", "*declare*") if name in IN_PART else ()
    report = check(subject_of(component, function, declared), properties=ids, max_examples=2)
    assert [result.id for result in report.results if result.verdict not in ("passed", "unsupported")] == []
    assert any(result.verdict == "passed" for result in report.results)


def otherwise(component, declared):
    """Give what else could be declared: nothing, or another value of one convention."""
    yield {}
    for name, convention in conventions.conventions_of(component).items():
        for value in convention.others if name in declared else ():
            if value != declared[name]:
                yield {**declared, name: value}


@pytest.mark.parametrize("name", FOLLOWING)
def test_another_declaration_fails(name):
    """Without its declaration, or with any other value in it, the same subject fails."""
    component, declared, function = FOLLOWING[name]
    telling = [p for p in all_properties() if p.component == component and re.search("agree|declare|exactly", p.id)]
    for wrong in otherwise(component, declared):
        subject = subject_of(component, function, wrong)
        asked = [p for p in telling if p.is_asked_of(subject)]
        with unchecked():
            assert any(fails(p, subject, examples=n) for n in (2, 50) for p in asked), wrong


@pytest.mark.parametrize("component", EXPERIMENTS)
def test_there_is_nothing_to_declare_about_the_reference(component):
    """Of the reference everything can be told, and all of it is as the contract has it."""
    found = found_in(component, getattr(right, component))
    assert declared_by(found) == {}
    assert [f.says for f in found if UNTOLD in f.says] == []


def test_what_cannot_be_told_apart_is_not_guessed():
    """Of two readings that fit alike neither is declared, and both are named."""

    def self_attention(x, w_q, w_k, w_v, *, mask):
        return right.self_attention(x, w_q, w_k, w_v, mask=mask == 0)  # it reads truths and numbers

    found = found_in("self_attention", self_attention)
    assert declared_by(found) == {}
    assert any("true_hides, additive fit alike" in f.says for f in found)


def _quick(x):
    return x / (1 + np.exp(-1.702 * x))


def _in_turn(x, w_q, w_k, w_v, w_o, *, n_heads):
    order = [0, 2, 4, 1, 3, 5]  # two heads of three columns each
    return right.multi_head_attention(x, w_q[:, order], w_k[:, order], w_v[:, order], w_o[order], n_heads=n_heads)


def _unbiased_inside(x, gamma, beta, *, eps=1e-5):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=1, keepdims=True) + eps)
    return y if gamma is None else y * gamma + beta


@pytest.mark.parametrize(
    ("component", "function", "words"),
    [
        ("gelu", _quick, "1.702"),
        ("multi_head_attention", _in_turn, "every n_heads-th column"),
        ("layer_norm", _unbiased_inside, "n - 1"),
        ("gelu", lambda x: np.tanh(x), "cannot be told: its results are those of no reading"),
        ("output_head", lambda x, w, b=None: x @ w + 1, "cannot be told: its results are those of no reading"),
        ("output_head", lambda x, w, b=None: x[..., :1], "cannot be told: output_head returned"),
        ("self_attention", lambda x, w_q, w_k, w_v: x, "cannot be told: self_attention has no option mask"),
    ],
)
def test_what_follows_no_convention_is_said_and_not_declared(component, function, words):
    """Where no reading fits there is nothing to declare, and the reason is given."""
    found = found_in(component, function)
    assert declared_by(found) == {}
    assert any(words in f.says for f in found)


@pytest.mark.parametrize(
    ("filled", "words"),
    [(np.nan, "NaN on 12 of 12 draws: the contract has zeros"), (0.2, "the mean over all keys on 12 of 12 draws")],
)
def test_it_is_said_what_a_query_without_a_key_gets(filled, words):
    """NaN and even weights are no conventions, and yet worth knowing of."""

    def attention_weights(q, k, *, mask):
        weights = right.attention_weights(q, k, mask=mask)
        return np.where(mask.any(axis=-1, keepdims=True), weights, filled)

    assert any(f.says.startswith(words) for f in found_in("attention_weights", attention_weights))


# --------------------------------------------------------------------------------------------- what may be declared


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (["mask"], ("a dict of components", "list")),
        ({"softmax": {"mask": "true_hides"}}, ("nothing can be declared about 'softmax'", "layer_norm")),
        ({"layer_norm": "std_plus_eps"}, ("layer_norm must be a dict of", "variant", "eps")),
        ({"layer_norm": {"mask": "true_hides"}}, ("layer_norm has no 'mask'", "variant", "default_eps")),
        (
            {"output_head": {"weights": "transposed"}},
            ("output_head.weights is one of 'in_out', 'out_in'", "transposed"),
        ),
        ({"layer_norm": {"eps": "1e-6"}}, ("layer_norm.eps is a number of at least 0", "'1e-6'")),
        ({"layer_norm": {"eps": -1.0}}, ("layer_norm.eps is a number of at least 0", "-1.0")),
    ],
)
def test_what_may_not_be_declared_cannot_be_loaded(declared, words):
    """An unknown component, convention or value is an error that names what is legal."""
    with pytest.raises(CannotLoad) as refused:
        load(SimpleNamespace(conventions=declared, gelu=_quick))
    assert all(word in str(refused.value) for word in words)


def test_what_a_declaration_rules_out_is_unsupported_and_named():
    """Calls for another variant than the fixed one are unsupported, and the reason names the declaration."""
    subject = subject_of("gelu", lambda x: x, {"approximate": "tanh"})
    with pytest.raises(Unsupported, match=r"gelu: approximate = 'none' is asked for, and the subject declares 'tanh'"):
        subject.gelu(np.ones(3))


def test_gradients_are_those_of_the_weights_as_they_stand():
    """Weights that stand [d_out, d_in] have gradients that do, too; autograd's and written ones come back turned."""

    def head_vjp(cotangent, x, w, b=None):
        d_x, d_w, d_b = right.output_head_vjp(cotangent, x, w.T, b)
        return d_x, d_w.T, d_b

    _, declared, head = FOLLOWING["head"]
    by_autograd = {"output_head": torch.nn.functional.linear, "arrays": "torch"}
    for functions in ({"output_head": head, "output_head_vjp": head_vjp}, by_autograd):
        subject = SimpleNamespace(**functions, conventions={"output_head": declared})
        report = check(subject, properties=["output_head.gradients*"], max_examples=3)
        assert [result.verdict for result in report.results] == ["passed"] * 4


# ------------------------------------------------------------------------------------------------- how it is shown


def shown(call, declared, manners):
    """Give the lines that reproduce a call."""
    calls = [encode_call(call)]
    return reproduction(calls, import_code="", manners=manners, dtype="float64", declared={call.component: declared})


def test_a_reproduction_shows_what_the_subject_is_given():
    """The lines hold the arrays and options of the subject's own terms, and put its result back."""
    x, w, mask = np.zeros((1, 2)), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([[True, False]])
    head = shown(Call("output_head", (x, w), {}), {"weights": "out_in"}, {})
    assert "w = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])" in head
    weights = Call("attention_weights", (x, np.zeros((2, 2))), {"mask": mask})
    assert "mask = np.array([[False, True]])" in shown(weights, {"mask": "true_hides"}, {})
    assert "mask = np.array([[0.0, -np.inf]])" in shown(weights, {"mask": "additive"}, {})
    gelu = shown(Call("gelu", (x,), {"approximate": "tanh"}), {"approximate": "tanh"}, {})
    assert "subject.gelu(x)" in gelu
    own = Call("attention_weights", (x, np.zeros((2, 2))), {"causal": True, "as_declared": "causal"})
    assert "subject.attention_weights(q, k, causal=True)" in shown(own, {"causal": "first_key"}, {})


@pytest.mark.parametrize("declared", [FOLLOWING["causal mask that hides"][1], {"causal": "first_key"}])
def test_a_reproduction_puts_a_result_back(declared):
    """Run, the lines print what the subject's result means in the contract's terms."""
    hides = "mask" in declared

    def causal_mask(q_seq, k_seq):
        return first_keys(q_seq, k_seq) ^ hides

    code = shown(Call("causal_mask", (2, 4), {}), declared, {})
    namespace = {"subject": SimpleNamespace(causal_mask=causal_mask), "print": lambda *_: None}
    exec(code, namespace)
    np.testing.assert_array_equal(namespace["got"], right.causal_mask(2, 4))


def test_a_declaration_is_python_to_paste():
    """What is printed is what the subject file can say."""
    declared = {"layer_norm": {"variant": "std_plus_eps", "default_eps": 1e-06}, "gelu": {"approximate": "tanh"}}
    namespace = {}
    exec(declaration(declared), namespace)
    assert namespace["conventions"] == conventions.read(declared) == declared
    assert declaration({}) == "conventions = {}"


# --------------------------------------------------------------------------------------------- a process of its own

GELU = """import numpy as np


def gelu(x):
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
"""
PERPLEXITY = "\n\ndef perplexity(total_loss, n_tokens):\n    import os, time\n    print('hello')\n    {}\n"


def test_the_command_prints_the_declaration(tmp_path):
    """What a subject prints is not mixed in, and what ends its process is said of the component that did."""
    file = tmp_path / "mine.py"
    file.write_text(GELU + PERPLEXITY.format("os._exit(3)"))
    result = CliRunner().invoke(app, ["probe", str(file)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("mine.py: 12 draws an experiment\n\ngelu\n")
    assert "the tanh form: on 12 of 12 draws" in result.output
    assert "cannot be told: perplexity ended the process" in result.output
    assert result.output.endswith('conventions = {\n    "gelu": {"approximate": "tanh"},\n}\n')


def test_what_hangs_is_given_up(tmp_path):
    """A component that takes too long is left, and said to have."""
    file = tmp_path / "mine.py"
    file.write_text(PERPLEXITY.format("time.sleep(1000)"))
    (finding,) = probe(str(file), time_limit=0.5).found["perplexity"]
    assert finding.says == "cannot be told: perplexity took too long"


def test_what_cannot_be_loaded_cannot_be_probed(tmp_path):
    """There is one line that says why."""
    with pytest.raises(CannotRun, match="no such file"):
        probe(str(tmp_path / "nothing.py"))
