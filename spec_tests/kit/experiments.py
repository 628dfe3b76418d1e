"""The experiments of a probe: calls on which the readings of a component's conventions give different results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import reference.numpy
from reference.config import ACTIVATIONS, VARIANTS, LayerNorm, ModelConfig
from reference.parameters import block_shapes, parameter_shapes
from spec_tests.subjects.contract import Call
from spec_tests.subjects.conventions import AS_DECLARED

Calls = list[Call]


@dataclass(frozen=True)
class Experiment:
    """Calls that tell the readings of some conventions apart, drawn anew for every trial."""

    conventions: tuple[str, ...]
    draw: Callable[[np.random.Generator], Calls]


def _calls_of(component: str, *args: Any, options: tuple[dict[str, Any], ...] = ({},)) -> Calls:
    return [Call(component, args, option) for option in options]


def _normal(generator: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * generator.standard_normal(shape)


def truths(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw truths, both of them in every row: no two readings of a mask agree, and no row is without a key."""
    first = np.arange(shape[-1]) < generator.integers(1, shape[-1], (*shape[:-1], 1))
    return generator.permuted(first, axis=-1)


def attention_arguments(component: str, generator: np.random.Generator) -> tuple[tuple, dict[str, Any]]:
    """Draw the arrays of a kind of attention, and its options."""
    if component in ("attention_weights", "scaled_dot_product_attention"):
        values = (_normal(generator, 2, 5, 4),) if component == "scaled_dot_product_attention" else ()
        return (_normal(generator, 2, 3, 4), _normal(generator, 2, 5, 4), *values), {}
    matrices = 4 if component == "multi_head_attention" else 3
    args = (_normal(generator, 2, 5, 6), *(_normal(generator, 6, 6, scale=0.5) for _ in range(matrices)))
    return args, {"n_heads": 2} if component == "multi_head_attention" else {}


def _attention(component: str, asked: str = "") -> Callable[[np.random.Generator], Calls]:
    def draw(generator: np.random.Generator) -> Calls:
        args, options = attention_arguments(component, generator)
        if asked == "mask":
            options["mask"] = truths(generator, args[0].shape[-2], 5)
        if asked == "causal":
            options |= {"causal": True, AS_DECLARED: "causal"}
        if asked == "causal" and component == "multi_head_attention":
            options["context"] = _normal(generator, 2, 7, 6)  # as many keys as queries tell nothing
        return [Call(component, args, options)]

    return draw


SIZES = {"vocab": 11, "d_model": 6, "n_heads": 2, "n_layers": 2, "d_ff": 10, "max_len": 8}
CONFIG = ModelConfig(**SIZES, causal=False)
ASKED = (
    CONFIG,
    replace(CONFIG, norm_placement="post"),
    *(replace(CONFIG, activation=name) for name in ACTIVATIONS[::2]),
)
NORMS = tuple(replace(CONFIG, norm=LayerNorm(eps=0.1, variant=name)) for name in VARIANTS)
"""Configs that ask for each variant of what a model may be."""


def _model_arguments(component: str, generator: np.random.Generator) -> tuple:
    """Draw an input so small that every eps shows, and weights so large that every activation does."""

    def grown(name: str, shape: Any) -> Any:
        if isinstance(shape, Mapping):
            return {part: grown(part, inner) for part, inner in shape.items()}
        if isinstance(shape, list):
            return [grown(name, inner) for inner in shape]
        if name == "gamma":
            return np.exp(_normal(generator, *shape, scale=0.3))
        small = name in ("table", "b_2")  # what the stream is made of, beside what the layers add
        return _normal(generator, *shape, scale=1e-4 if small else 1.0)

    if component == "transformer_block":
        return _normal(generator, 2, 5, 6, scale=1e-4), grown("", block_shapes(CONFIG))
    return generator.integers(0, 11, (2, 5)), grown("", parameter_shapes(CONFIG))


def _model(component: str) -> Callable[[np.random.Generator], Calls]:
    def draw(generator: np.random.Generator) -> Calls:
        args = _model_arguments(component, generator)
        # the stream of a whole model is so large that no eps shows
        asked = (*ASKED, *NORMS) if component == "transformer_block" else ASKED
        return [Call(component, (*args, config), {}) for config in asked]

    return draw


def _masked_model(component: str) -> Callable[[np.random.Generator], Calls]:
    def draw(generator: np.random.Generator) -> Calls:
        args = _model_arguments(component, generator)
        return [Call(component, (*args, CONFIG), {"mask": truths(generator, 5, 5)})]

    return draw


def _layer_norm(generator: np.random.Generator) -> Calls:
    small = _normal(generator, 3, 5, scale=1e-4 * generator.uniform(0.5, 2))  # the default eps shows
    x, gamma, beta = _normal(generator, 3, 5), np.exp(_normal(generator, 5, scale=0.3)), _normal(generator, 5)
    variants = tuple({"variant": name, "eps": 0.1} for name in VARIANTS[1:])
    return [
        *_calls_of("layer_norm", small, None, None),
        *_calls_of("layer_norm", x, gamma, beta, options=({"eps": 0.1}, *variants)),
    ]


def _gelu(generator: np.random.Generator) -> Calls:
    x = generator.uniform(1, 3, (3, 5)) * generator.choice((-1, 1), (3, 5))  # where the two forms differ most
    return _calls_of("gelu", x, options=({}, {"approximate": "tanh"}))


def _feed_forward_arguments(generator: np.random.Generator) -> tuple:
    shapes = ((2, 3, 4), (4, 6), (6,), (6, 4), (4,))
    return tuple(_normal(generator, *shape) for shape in shapes)


def _feed_forward(generator: np.random.Generator) -> Calls:
    options = tuple({"activation": name} for name in ACTIVATIONS)
    return _calls_of("feed_forward", *_feed_forward_arguments(generator), options=options)


def _feed_forward_keep(generator: np.random.Generator) -> Calls:
    options = {"keep": truths(generator, 2, 3, 6), "rate": 0.25}
    return _calls_of("feed_forward", *_feed_forward_arguments(generator), options=(options,))


def _nucleus(generator: np.random.Generator) -> Calls:
    """Ask for a mass between two ranks, and for one that a rank reaches exactly."""
    masses = (_normal(generator, 2, 6), float(generator.uniform(0.3, 0.9))), (np.zeros(8), 0.5)
    return [Call("next_token_distribution", (x,), {"top_p": p, AS_DECLARED: "top_p"}) for x, p in masses]


def _cross_entropy(generator: np.random.Generator) -> Calls:
    args = _normal(generator, 4, 5), generator.integers(0, 5, 4)
    return _calls_of("cross_entropy", *args, options=({"label_smoothing": 0.3},))


def _adamw(generator: np.random.Generator) -> Calls:
    arrays = (*(_normal(generator, 3) for _ in range(3)), _normal(generator, 3) ** 2)
    return _calls_of("adamw_step", *arrays, options=({"step": int(generator.integers(2, 9)), "lr": 0.1},))


def _warmup(generator: np.random.Generator) -> Calls:
    options = ({"warmup": 6, "total": 20, "max_lr": 1.0},)
    steps = (int(generator.integers(0, 5)), int(generator.integers(7, 18)))  # on the way up, and down
    return [call for step in steps for call in _calls_of("warmup_cosine", step, options=options)]


ATTENTIONS = ("attention_weights", "scaled_dot_product_attention", "self_attention", "multi_head_attention")
WITH_WEIGHTS = ("self_attention", "multi_head_attention")

EXPERIMENTS: dict[str, tuple[Experiment, ...]] = {
    "sinusoidal_positions": (
        Experiment(("columns",), lambda g: _calls_of("sinusoidal_positions", 5, int(g.integers(4, 9)))),
    ),
    "causal_mask": (
        Experiment(("mask",), lambda g: _calls_of("causal_mask", int(g.integers(3, 9)))),
        Experiment(("causal",), lambda g: [Call("causal_mask", (3, int(g.integers(4, 9))), {AS_DECLARED: "causal"})]),
    ),
    **{
        name: (
            *((Experiment(("weights",), _attention(name)),) if name in WITH_WEIGHTS else ()),
            Experiment(("mask",), _attention(name, "mask")),
            *(() if name == "self_attention" else (Experiment(("causal",), _attention(name, "causal")),)),
        )
        for name in ATTENTIONS
    },
    "layer_norm": (Experiment(("variant", "default_eps", "eps"), _layer_norm),),
    "gelu": (Experiment(("approximate",), _gelu),),
    "dropout": (
        Experiment(("keep",), lambda g: [Call("dropout", (_normal(g, 3, 5), truths(g, 3, 5)), {"rate": 0.25})]),
    ),
    "feed_forward": (Experiment(("weights", "activation"), _feed_forward), Experiment(("keep",), _feed_forward_keep)),
    "output_head": (
        Experiment(("weights",), lambda g: _calls_of("output_head", _normal(g, 2, 3, 4), _normal(g, 4, 7))),
    ),
    **{
        name: (
            Experiment(("weights", "norm_placement", "activation", *norms), _model(name)),
            Experiment(("mask",), _masked_model(name)),
        )
        for name, norms in (("transformer_block", ("variant", "eps")), ("transformer", ()))
    },
    "cross_entropy": (Experiment(("label_smoothing",), _cross_entropy),),
    "perplexity": (
        Experiment(("total_loss",), lambda g: _calls_of("perplexity", float(g.uniform(5, 9)), int(g.integers(3, 9)))),
    ),
    "adamw_step": (Experiment(("step",), _adamw),),
    "warmup_cosine": (Experiment(("step",), _warmup),),
    "next_token_distribution": (Experiment(("top_p",), _nucleus),),
}  # fmt: skip


def _unbiased_inside(x: np.ndarray, gamma: Any, beta: Any, *, eps: float = 1e-5, **_: Any) -> np.ndarray:
    deviation = np.sqrt(x.var(axis=-1, keepdims=True, ddof=1) + eps)
    normed = (x - x.mean(axis=-1, keepdims=True)) / deviation
    return normed * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def _in_turn(x: np.ndarray, w_q: Any, w_k: Any, w_v: Any, w_o: Any, *, n_heads: int, **options: Any) -> np.ndarray:
    order = np.arange(w_q.shape[-1]).reshape(-1, n_heads).T.ravel()
    columns = (w[:, order] for w in (w_q, w_k, w_v))
    return reference.numpy.multi_head_attention(x, *columns, w_o[order], n_heads=n_heads, **options)


OTHERS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "gelu": {"x sigmoid(1.702 x)": lambda x, **_: x / (1 + np.exp(-1.702 * x))},
    "layer_norm": {"n - 1, and eps inside the root": _unbiased_inside},
    "multi_head_attention": {"heads of every n_heads-th column": _in_turn},
}
"""What is well known and yet no reading that may be declared: it is said for what it is."""
