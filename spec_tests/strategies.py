"""Inputs for every component, derived from the shape annotations of the reference.

`axes` draws a size for every name of the glossary, no two alike, size 1 among them; an argument annotated
`Float[np.ndarray, "*batch k_seq d_v"]` is then an array of those sizes. Elements are small whole numbers times a drawn
scale, so that a shrunk example can be read and typed again.

`CASES` lists, for each component, the named ways to call it: which optional arrays are given and which options. Every
example of a case passes the same options. `GRADIENT_CASES` are those of the components that have a gradient, and
`gradient_calls` draws a cotangent for one.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import reference.numpy
from reference.axes import AXES
from reference.components import COMPONENTS
from reference.config import LayerNorm, Learned, ModelConfig, NoPositions, Sinusoidal
from reference.parameters import Tree, block_shapes, leaves, map_tree, parameter_shapes
from spec_tests.subjects.contract import Call, array_annotations, plain, signature

SCALES = (1.0, 0.5, 0.1, 3.0)
MODERATE = (0.25, 0.1, 0.05)
"""So small that softmaxes are not saturated: where one key has all the weight, every gradient of the scores is 0."""
EXACT = (1.0, 0.5, 0.125, 4.0)
"""Powers of two: inputs that no dtype rounds, for what is compared to the last bit."""
GIVEN = object()
"""In a case: draw this optional array."""


@st.composite
def axes(draw: Any, *, batch: bool = True, batched: bool = False, **fixed: int) -> dict[str, Any]:
    """Draw a size from 1 ... 7 for every axis of the glossary, all different; `batch` is a tuple of none to two.

    `batched` asks for one of them or two, no `batch` for none.

    heads_d_k and heads_d_v follow from heads, d_k and d_v; max_len is never less than seq. `fixed` sets some.
    """
    names = [n for n in ("k_seq", "q_seq", "seq", "d_model", "heads", "d_k", "d_v", "d_ff", "vocab") if n not in fixed]
    kinds = draw(st.integers(int(batched), 2)) if batch else 0
    # seven sizes for nine names: d_ff gets that of k_seq, and vocab that of q_seq, which it never meets in a signature
    sizes = draw(st.permutations([size for size in range(1, 8) if size not in fixed.values()]))
    drawn = {name: sizes[i % len(sizes)] for i, name in enumerate(names)}
    sizes_of = {**drawn, **fixed, "batch": tuple(draw(st.permutations((1, 2, 3)))[:kinds])}
    sizes_of["heads_d_k"] = sizes_of["heads"] * sizes_of["d_k"]
    sizes_of["heads_d_v"] = sizes_of["heads"] * sizes_of["d_v"]
    sizes_of.setdefault("max_len", sizes_of["seq"] + draw(st.integers(0, 3)))
    sizes_of["shape"] = (*sizes_of["batch"], sizes_of["seq"], sizes_of["d_model"])
    return sizes_of


def _bytes(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    # one draw for the whole array: quick, and Hypothesis shrinks it byte by byte
    size = int(np.prod(shape))
    raw = st.binary(min_size=size, max_size=size)
    return raw.map(lambda drawn: np.frombuffer(drawn, np.uint8).reshape(shape).astype(np.int64))


def whole_numbers(shape: tuple[int, ...], *, low: int = -9, high: int = 9) -> st.SearchStrategy[np.ndarray]:
    """Draw an int64 array of numbers in low ... high (256 of them at most); it shrinks towards the closest to 0."""
    if high - low > 255:
        raise ValueError(f"whole_numbers: low ... high must be at most 256 numbers, got {low} ... {high}")
    order = np.array(sorted(range(low, high + 1), key=lambda n: (abs(n), n < 0)))
    return _bytes(shape).map(lambda raw: np.asarray(order[raw % len(order)]))


@st.composite
def numbers(draw: Any, shape: tuple[int, ...], *, scales: tuple[float, ...] = SCALES, high: int = 9) -> np.ndarray:
    """Draw a float64 array: whole numbers in -high ... high times one of `scales`."""
    return np.asarray(draw(st.sampled_from(scales)) * draw(whole_numbers(shape, low=-high, high=high)))


def truths(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Draw a boolean array; it shrinks towards True (a mask that hides nothing)."""
    return _bytes(shape).map(lambda raw: np.asarray(raw % 2 == 0))


def token_ids(shape: tuple[int, ...], vocab: int) -> st.SearchStrategy[np.ndarray]:
    """Draw ids in 0 ... vocab - 1."""
    return whole_numbers(shape, low=0, high=vocab - 1)


def token_ids_or_ignored(shape: tuple[int, ...], vocab: int) -> st.SearchStrategy[np.ndarray]:
    """Draw targets of which about one in vocab + 1 is -100, the one that does not count."""
    return whole_numbers(shape, low=0, high=vocab).map(lambda ids: np.asarray(np.where(ids == vocab, -100, ids)))


@st.composite
def distributions(draw: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Draw rows of probabilities, zeros among them; each row sums to 1 up to rounding."""
    mass = draw(whole_numbers(shape, low=0, high=4)).astype(np.float64)
    mass[..., -1] += mass.sum(axis=-1) == 0
    return mass / mass.sum(axis=-1, keepdims=True)


def uniforms(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Draw numbers in [0, 1)."""
    return _bytes(shape).map(lambda raw: np.asarray(raw / 256.0))


# ----------------------------------------------------------------------------------------------- configs and trees


@st.composite
def configs(draw: Any, **fixed: Any) -> ModelConfig:
    """Draw a small ModelConfig with every size different; `fixed` sets fields. eps is 0.1, so that its place shows.

    A row has three numbers at least: of two a layer norm keeps little more than which is larger, and two that are
    nearly equal are a step that no finite difference resolves.
    """
    heads = fixed.pop("n_heads", None) or draw(st.sampled_from((1, 2, 3)))
    d_k = draw(st.sampled_from((3, 4) if heads == 1 else (2, 3)))
    plain = {
        "vocab": 11, "d_model": heads * d_k, "n_heads": heads, "n_layers": draw(st.integers(1, 2)),
        "d_ff": draw(st.sampled_from((5, 7))), "max_len": draw(st.sampled_from((8, 10))),
        "embedding_scale": draw(st.sampled_from((1.0, 2.5))), "norm": LayerNorm(eps=0.1), "causal": False,
    }  # fmt: skip
    return ModelConfig(**{**plain, **fixed})


def trees(shapes: Tree, *, scales: tuple[float, ...] = (0.1, 0.25, 0.5)) -> st.SearchStrategy[Tree]:
    """Draw a parameter tree of these shapes: every leaf different, gains and biases too."""
    return _drawn_tree(shapes, lambda shape: numbers(shape, scales=scales))


GENERATORS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
"""One generator an example, for numbers in general position: normal, so that nothing cancels, vanishes or ties.

What is true of almost every input, such as that a parameter matters, is shown on these. One and not one an array:
Hypothesis likes to draw the same seed twice.
"""


def normal_tree(generator: np.random.Generator, shapes: Tree, *, scale: float = 0.5) -> Tree:
    """Give a parameter tree of normal numbers; gains are exponentials of them, so that no norm is mute."""

    def draw(path: str, shape: tuple[int, ...]) -> np.ndarray:
        drawn = scale * generator.standard_normal(shape)
        return np.exp(drawn) if path.endswith("gamma") else drawn

    return changed(shapes, draw)


def changed(tree: Tree, change: Callable[[str, Any], np.ndarray]) -> Tree:
    """Give the tree with `change(path, leaf)` in the place of each leaf."""
    paths = iter([path for path, _ in leaves(tree)])
    return map_tree(lambda leaf: change(next(paths), leaf), tree)


def keep_shapes(config: ModelConfig, batch: tuple[int, ...], seq: int) -> Tree:
    """Give the tree of shapes of a model's dropout keep-masks."""
    stream, hidden = (*batch, seq, config.d_model), (*batch, seq, config.d_ff)
    block = {"attention": stream, "mlp_hidden": hidden, "mlp": stream}
    return {"positions": stream, "blocks": [dict(block) for _ in range(config.n_layers)]}


def keep_masks(shapes: Tree) -> st.SearchStrategy[Tree]:
    """Draw a tree of keep-masks."""
    return _drawn_tree(shapes, truths)


@st.composite
def _drawn_tree(draw: Any, shapes: Tree, leaf: Callable[[tuple[int, ...]], st.SearchStrategy]) -> Tree:
    return map_tree(lambda shape: draw(leaf(shape)), shapes)


# ----------------------------------------------------------------------------------------------- calls

_floats = st.sampled_from

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "token_embedding": {"plain": {}, "scale": {"scale": _floats((0.5, 2.0, 3.0))}},
    "sinusoidal_positions": {
        "plain": {},
        "base": {"base": _floats((2.0, 100.0, 500000.0))},
        "offset": {"offset": st.integers(1, 1000)},
    },
    "add_positions": {"plain": {}, "offset": {"offset": st.integers(1, 3)}},
    "softmax": {"plain": {}, "axis": {"axis": 0}},
    "causal_mask": {"square": {"k_seq": None}, "oblong": {}},
    "attention_weights": {
        "plain": {},
        "mask": {"mask": GIVEN},
        "bias": {"bias": GIVEN},
        "causal": {"causal": True},
        "scale": {"scale": _floats((0.1, 1.0, 2.0))},
        "all": {"mask": GIVEN, "bias": GIVEN, "causal": True, "scale": _floats((0.1, 2.0))},
    },
    "self_attention": {"plain": {}, "mask": {"mask": GIVEN}, "causal": {"causal": True}},
    "multi_head_attention": {
        "plain": {},
        "heads_only": {"w_o": None},
        "widths": {"_widths": True},  # heads narrower or wider than the stream, d_k other than d_v
        "biases": {"b_q": GIVEN, "b_k": GIVEN, "b_v": GIVEN, "b_o": GIVEN},
        "context": {"context": GIVEN},
        "mask": {"mask": GIVEN},
        "causal": {"causal": True},
        "all": {
            "b_q": GIVEN, "b_k": GIVEN, "b_v": GIVEN, "b_o": GIVEN, "context": GIVEN, "mask": GIVEN, "causal": True,
        },
    },
    "layer_norm": {
        "plain": {"gamma": None, "beta": None},
        "affine": {},
        "eps": {"eps": _floats((0.1, 1.0))},
        "std_plus_eps": {"variant": "std_plus_eps", "eps": 0.1},
        "unbiased_std_plus_eps": {"variant": "unbiased_std_plus_eps", "eps": 0.1},
    },
    "relu": {"plain": {}},
    "gelu": {"plain": {}, "tanh": {"approximate": "tanh"}},
    "dropout": {"plain": {"rate": _floats((0.0, 0.1, 0.5, 0.9))}},
    "feed_forward": {
        "plain": {},
        "no_biases": {"b_1": None, "b_2": None},
        "relu": {"activation": "relu"},
        "gelu_tanh": {"activation": "gelu_tanh"},
        "keep": {"keep": GIVEN, "rate": _floats((0.1, 0.5))},
    },
    "transformer_block": {
        "pre": {},
        "post": {"config": {"norm_placement": "post"}},
        "relu": {"config": {"activation": "relu"}},
        "causal": {"config": {"causal": True}},
        "biases": {"config": {"attention_bias": True}},
        "no_projection": {"config": {"output_projection": False}},
        "no_affine": {"config": {"norm": LayerNorm(eps=0.1, affine=False)}},
        "std_plus_eps": {"config": {"norm": LayerNorm(eps=0.1, variant="std_plus_eps")}},
        "unbiased_std_plus_eps": {"config": {"norm": LayerNorm(eps=0.1, variant="unbiased_std_plus_eps")}},
        "mask": {"mask": GIVEN},
        "keep": {"keep": GIVEN, "config": {"dropout": 0.25}},
    },
    "output_head": {"plain": {}, "bias": {"b": GIVEN}},
    "transformer": {
        "pre": {},
        "post": {"config": {"norm_placement": "post", "final_norm": False}},
        "causal": {"config": {"causal": True}},
        "learned": {"config": {"positions": Learned()}},
        "no_positions": {"config": {"positions": NoPositions()}},
        "base": {"config": {"positions": Sinusoidal(base=100.0)}},
        "tied": {"config": {"tied_head": True}},
        "no_head_bias": {"config": {"head_bias": False}},
        "tutorial_000": {
            "config": {
                "n_heads": 1, "norm_placement": "post", "final_norm": False, "output_projection": False,
                "norm": LayerNorm(eps=0.1, variant="std_plus_eps", affine=False), "activation": "relu",
            }
        },
        "mask": {"mask": GIVEN},
        "keep": {"keep": GIVEN, "config": {"dropout": 0.25}},
    },
    "parameter_count": {
        "plain": {},
        "learned": {"config": {"positions": Learned()}},
        "tied": {"config": {"tied_head": True, "head_bias": False}},
        "biases": {"config": {"attention_bias": True}},
        "bare": {
            "config": {
                "attention_bias": True, "output_projection": False, "final_norm": False,
                "norm": LayerNorm(eps=0.1, affine=False),
            }
        },
    },
    "cross_entropy": {
        "plain": {},
        "ignored": {"_ids": token_ids_or_ignored},
        "ignore_index": {"ignore_index": 0},
        "smoothing": {"label_smoothing": _floats((0.1, 0.5, 1.0))},
    },
    "perplexity": {"plain": {"total_loss": st.integers(0, 400).map(lambda n: n / 4), "n_tokens": st.integers(1, 50)}},
    "adamw_step": {
        "plain": {},
        "options": {
            "beta_1": _floats((0.0, 0.5)), "beta_2": _floats((0.5, 0.9)), "eps": _floats((0.1, 1.0)),
            "weight_decay": _floats((0.0, 0.5)),
        },
    },
    "clip_grad_norm": {"plain": {"max_norm": _floats((0.5, 1.0, 10.0, 1000.0))}},
    "warmup_cosine": {
        "plain": {"step": st.integers(0, 40), "max_lr": _floats((1.0, 0.25))},
        "min_lr": {"step": st.integers(0, 40), "max_lr": _floats((1.0, 0.25)), "min_lr": _floats((0.1, 0.25))},
    },
    "next_token_distribution": {
        "plain": {},
        "temperature": {"temperature": _floats((0.25, 0.5, 2.0))},
        "greedy": {"temperature": 0.0},
        "top_k": {"top_k": st.integers(1, 9)},
        "top_p": {"top_p": _floats((0.1, 0.3, 0.7, 0.95, 1.0))},
        "all": {"temperature": _floats((0.5, 2.0)), "top_k": st.integers(1, 9), "top_p": _floats((0.3, 0.7, 1.0))},
    },
    "sample": {"plain": {}},
}  # fmt: skip
CASES["scaled_dot_product_attention"] = CASES["attention_weights"]

ALL_CASES = tuple(f"{component}.{case}" for component, cases in CASES.items() for case in cases)
ATTENTIONS = tuple(name for name, component in COMPONENTS.items() if component.stem == "attention")
GRADIENT_CASES = tuple(case for case in ALL_CASES if COMPONENTS[case.split(".")[0]].differentiable)

# Arguments that are not just any numbers.
_SPECIAL: dict[tuple[str, str], Callable[[tuple[int, ...]], st.SearchStrategy]] = {
    ("adamw_step", "v"): lambda shape: whole_numbers(shape, low=0).map(lambda n: np.asarray(n * 0.5)),
    ("sample", "probabilities"): distributions,
    ("sample", "uniform"): uniforms,
    ("softmax", "scores"): lambda shape: numbers(shape, scales=(0.1, 1.0, 10.0)),
}


def calls(case: str, *, batched: bool = False) -> st.SearchStrategy[Call]:
    """Draw one call of a component in one of its cases, `layer_norm.std_plus_eps`; with a batch axis if `batched`."""
    component, variant = case.split(".")
    return _calls(component, CASES[component][variant], batched=batched)


def gradient_calls(case: str) -> st.SearchStrategy[Call]:
    """Draw one call of the gradient of a component, `Call("gelu_vjp", (cotangent, x), {})`, in one of its cases.

    The cotangent has the shape of the result.
    """
    component, variant = case.split(".")
    return _calls(component, CASES[component][variant], gradient=True)


def away_from_kinks(call: Call) -> Call:
    """Let the biases in front of every ReLU decide which hidden units are silent: none comes nearer to 0 than 1/8.

    A ReLU turns at 0, and what is 0 in theory is 1e-17 or -1e-17 by rounding: its gradient there is anybody's. (`relu`
    itself may be given 0, which is 0 for everybody.)
    """
    args, config = list(call.args), next((a for a in call.args if isinstance(a, ModelConfig)), None)
    if call.component == "feed_forward" and call.options.get("activation") == "relu":
        x, w_1, b_1 = args[:3]
        args[1:3] = _decided(w_1, b_1, np.abs(x).max(initial=0))
    elif config is not None and config.activation == "relu":
        args[1] = {**args[1], **_with_decided_units(args[1])}
    return Call(call.component, tuple(args), call.options)


def in_general_position(call: Call, generator: np.random.Generator) -> Call:
    """Put normal numbers into a call of a gradient: nothing cancels, vanishes or ties.

    No ReLU is near its kink, and no layer norm near a row without variance.
    """

    def normal(path: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        drawn = 0.5 * np.asarray(generator.standard_normal(value.shape))
        if call.component == "relu_vjp":
            return drawn + np.where(drawn < 0, -0.25, 0.25)
        if call.component == "layer_norm_vjp" and path == "x":
            return drawn + 4 * np.arange(value.shape[-1])  # two numbers that are nearly equal make a step of it
        return np.exp(drawn) if path.endswith("gamma") else drawn

    names = list(signature(call.component).parameters)[: len(call.args)]
    given = changed(dict(zip(names, call.args, strict=True)), normal)
    options = changed(call.options, normal)
    cotangent = given.pop("cotangent")
    inner = away_from_kinks(Call(plain(call.component), tuple(given.values()), options))
    return Call(call.component, (cotangent, *inner.args), inner.options)


def _with_decided_units(params: Tree) -> Tree:
    if "blocks" in params:
        return {"blocks": [{**block, **_with_decided_units(block)} for block in params["blocks"]]}
    mlp = params["mlp"]
    norms = [params.get(name, {}) for name in ("norm_1", "norm_2")]  # either may come before the MLP
    gain, bias = (max(np.abs(norm.get(n, one)).max() for norm in norms) for n, one in (("gamma", 1), ("beta", 0)))
    w_1, b_1 = _decided(mlp["w_1"], mlp["b_1"], gain * len(mlp["w_1"]) ** 0.5 + bias)
    return {"mlp": {**mlp, "w_1": w_1, "b_1": b_1}}


def _decided(w_1: np.ndarray, b_1: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Give a bias of 1/4 or more either way, and weights that move no unit by more than half of it."""
    b_1 = b_1 + np.where(b_1 < 0, -0.25, 0.25)
    reach = largest * np.abs(w_1).sum(axis=0)
    return w_1 * np.minimum(1, np.abs(b_1) / np.maximum(2 * reach, 1e-9)), b_1


@st.composite
def _calls(draw: Any, component: str, given: dict[str, Any], *, gradient: bool = False, batched: bool = False) -> Call:
    sizes = draw(axes(batched=batched))
    values: dict[str, Any] = {}
    if component in ("transformer_block", "transformer", "parameter_count"):
        scales = MODERATE if gradient else (0.1, 0.25, 0.5)
        sizes, values = draw(_model_arguments(component, sizes, given.get("config", {}), "keep" in given, scales))
    if component == "multi_head_attention" and "_widths" not in given:
        # as in every model, and as most modules have it: the heads are together as wide as the stream
        width = sizes["heads"] * sizes["d_k"]
        sizes |= {"d_model": width, "heads_d_k": width, "heads_d_v": width}
    if component == "multi_head_attention" and "context" not in given:
        sizes["k_seq"] = sizes["q_seq"]
    if component == "clip_grad_norm":
        shapes = [(sizes["d_model"],), (sizes["seq"], sizes["d_ff"]), ()]
        values["grads"] = [draw(numbers(shape)) for shape in shapes[: draw(st.integers(1, 3))]]
    if component == "add_positions":
        sizes["max_len"] = sizes["seq"] + 3
    if component == "layer_norm" and given.get("variant") == "unbiased_std_plus_eps":
        sizes["d_model"] = max(2, sizes["d_model"])
    if component == "cross_entropy" and "ignore_index" in given:
        sizes["vocab"] = max(2, sizes["vocab"])
    if component == "adamw_step":
        values |= {"step": draw(st.integers(1, 20)), "lr": draw(_floats((0.1, 1.0)))}
    if component == "warmup_cosine":
        values["total"] = draw(st.integers(1, 30))
        values["warmup"] = draw(st.integers(0, values["total"]))

    parameters = inspect.signature(getattr(reference.numpy, component)).parameters.values()
    args, options = [], {}
    for parameter in parameters:
        name, wanted = parameter.name, given.get(parameter.name, parameter.default)
        if name in values:
            value = values[name]
        elif isinstance(wanted, st.SearchStrategy):
            value = draw(wanted)
        elif name == "n_heads":
            value = sizes["heads"]
        elif name in AXES and (wanted is parameter.empty or (name == "k_seq" and name not in given)):
            value = sizes[name]
        elif wanted is parameter.empty or wanted is GIVEN:
            scales = MODERATE if gradient and component in ATTENTIONS else SCALES
            value = draw(_array(component, name, parameter.annotation, sizes, given, scales=scales))
        else:
            value = wanted
        if parameter.kind is parameter.KEYWORD_ONLY:
            options[name] = value
        else:
            args.append(value)
    if component == "cross_entropy":
        args[1] = _some_counted(args[1], given.get("ignore_index", -100), sizes["vocab"])
    call = Call(component, tuple(args), options)
    if not gradient:
        return call
    call = away_from_kinks(call)
    sizes["width"] = sizes["d_model" if given.get("w_o", GIVEN) is GIVEN else "heads_d_v"]
    (result,) = array_annotations(inspect.signature(getattr(reference.numpy, component)).return_annotation)
    return Call(f"{component}_vjp", (draw(numbers(shape_of(result, sizes))), *call.args), options)


def _some_counted(targets: np.ndarray, ignored: int, vocab: int) -> np.ndarray:
    # that nothing is left to learn from is an edge case, and has a property of its own
    return np.where((targets == ignored).all(), vocab - 1, targets)


def inputs(component: str, name: str, sizes: dict[str, Any]) -> st.SearchStrategy[np.ndarray]:
    """Draw one array argument of a component at these sizes (see `axes`)."""
    annotation = inspect.signature(getattr(reference.numpy, component)).parameters[name].annotation
    return _array(component, name, annotation, sizes, {})


def _array(
    component: str,
    name: str,
    hint: Any,
    sizes: dict[str, Any],
    given: dict[str, Any],
    *,
    scales: tuple[float, ...] = SCALES,
) -> st.SearchStrategy:
    (annotation,) = array_annotations(hint)
    shape = shape_of(annotation, sizes)
    if special := _SPECIAL.get((component, name)):
        return special(shape)
    if "bool" in annotation.dtypes:
        return truths(shape)
    if name in ("ids", "targets"):
        return given.get("_ids", token_ids)(shape, sizes["vocab"])
    return numbers(shape, scales=scales)


def shape_of(annotation: Any, sizes: dict[str, Any]) -> tuple[int, ...]:
    """Give the shape that an annotation such as `Float[Array, "*batch seq d_model"]` has at these sizes."""
    shape: list[int] = []
    for axis in annotation.dim_str.split():
        size = sizes[axis.lstrip("*#")]
        shape.extend(size if isinstance(size, tuple) else (size,))
    return tuple(shape)


@st.composite
def _model_arguments(
    draw: Any,
    component: str,
    sizes: dict[str, Any],
    fields: dict[str, Any],
    with_keep: bool,
    scales: tuple[float, ...],
) -> tuple[dict[str, Any], dict[str, Any]]:
    config = draw(configs(**fields))
    sizes = {**sizes, "d_model": config.d_model, "vocab": config.vocab}
    values: dict[str, Any] = {"config": config}
    if component == "parameter_count":
        return sizes, values
    shapes = block_shapes(config) if component == "transformer_block" else parameter_shapes(config)
    values["params"] = draw(trees(shapes, scales=scales))
    if with_keep:
        keep = keep_shapes(config, sizes["batch"], sizes["seq"])
        values["keep"] = draw(keep_masks(keep["blocks"][0] if component == "transformer_block" else keep))
    return sizes, values
