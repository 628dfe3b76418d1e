"""The inputs of the vectors: each case of `strategies.CASES` in three sizes, the edges of the contract, and bad input.

They are drawn here and not by Hypothesis, whose choices change from version to version. What a case holds follows from
its name alone: the raw words of PCG64, seeded with the SHA-256 of the name, taken modulo what is asked for. Numbers are
small and whole, times a power of two, so that no dtype rounds them. As in the properties every axis of a call has
another length, and there is no batch axis, or one, or two.
"""

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reference.axes import AXES
from reference.components import COMPONENTS
from reference.config import MINI, TINY, LayerNorm, ModelConfig
from reference.parameters import block_shapes, map_tree, parameter_shapes
from spec_tests.strategies import (
    ALL_CASES,
    CASES,
    GIVEN,
    GRADIENT_CASES,
    away_from_kinks,
    keep_shapes,
    shape_of,
)
from spec_tests.subjects.contract import Call, array_annotations, signature

SCALES = (1.0, 0.5, 0.125, 4.0)
MODERATE = (0.25, 0.125, 0.0625)
"""So small that no softmax is saturated: where one key has all the weight, the gradients of scores are 0."""
SMALL = (0.125, 0.0625)
"""What many layers of sums make of these, float32 can still tell from what they should not."""
OF_COMPONENT = dict.fromkeys(("attention_weights", "scaled_dot_product_attention"), MODERATE) | dict.fromkeys(
    ("self_attention", "multi_head_attention", "transformer_block", "transformer"), SMALL
)

VALUES: dict[str, dict[str, tuple[Any, Any, Any]]] = {
    "token_embedding.scale": {"scale": (0.5, 2.0, 3.0)},
    "sinusoidal_positions.base": {"base": (2.0, 100.0, 500000.0)},
    "sinusoidal_positions.offset": {"offset": (1, 30, 1000)},
    "add_positions.offset": {"offset": (1, 2, 3)},
    "attention_weights.scale": {"scale": (0.1, 1.0, 2.0)},
    "attention_weights.all": {"scale": (0.1, 2.0, 0.5)},
    "scaled_dot_product_attention.scale": {"scale": (0.1, 1.0, 2.0)},
    "scaled_dot_product_attention.all": {"scale": (0.1, 2.0, 0.5)},
    "layer_norm.eps": {"eps": (0.1, 1.0, 0.01)},
    "dropout.plain": {"rate": (0.1, 0.5, 0.9)},
    "feed_forward.keep": {"rate": (0.1, 0.5, 0.25)},
    "cross_entropy.smoothing": {"label_smoothing": (0.1, 0.5, 1.0)},
    "perplexity.plain": {"total_loss": (4.25, 100.0, 37.75), "n_tokens": (3, 50, 7)},
    "adamw_step.plain": {"step": (1, 7, 20), "lr": (0.1, 1.0, 0.001)},
    "adamw_step.options": {
        "step": (1, 3, 12), "lr": (0.1, 1.0, 0.5), "beta_1": (0.0, 0.5, 0.25), "beta_2": (0.5, 0.9, 0.75),
        "eps": (0.1, 1.0, 0.25), "weight_decay": (0.5, 0.0, 0.25),
    },
    "clip_grad_norm.plain": {"max_norm": (0.5, 1.0, 1000.0)},
    "warmup_cosine.plain": {
        "step": (2, 11, 17), "warmup": (5, 5, 0), "total": (20, 23, 30), "max_lr": (1.0, 0.25, 3.0),
    },
    "warmup_cosine.min_lr": {
        "step": (1, 14, 9), "warmup": (3, 4, 0), "total": (17, 29, 10), "max_lr": (1.0, 0.25, 0.5),
        "min_lr": (0.1, 0.25, 0.125),
    },
    "next_token_distribution.temperature": {"temperature": (0.25, 0.5, 2.0)},
    "next_token_distribution.top_k": {"top_k": (1, 2, 3)},
    "next_token_distribution.top_p": {"top_p": (0.3, 0.7, 0.95)},
    "next_token_distribution.all": {"temperature": (0.5, 2.0, 4.0), "top_k": (4, 3, 6), "top_p": (0.7, 0.3, 0.9)},
}  # fmt: skip
"""Where `strategies.CASES` draws an option, these stand in the three sizes of the case; what takes no arrays, too."""


@dataclass(frozen=True)
class Case:
    """One call, and whether it is to be refused; `of` is the case of `strategies.CASES` that it is one of."""

    name: str
    of: str
    about: str
    call: Call
    gradient: bool = False
    refused: bool = False


class Draw:
    """The numbers of one name: words of PCG64, of which NumPy promises that they are the same in every version."""

    def __init__(self, name: str) -> None:
        self._bits = np.random.PCG64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "big"))

    def whole(self, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """Draw int64 numbers in low ... high."""
        words = self._bits.random_raw(int(np.prod(shape))).reshape(shape)
        return np.asarray((words % np.uint64(high - low + 1)).astype(np.int64) + low)

    def one_of(self, choices: tuple[Any, ...]) -> Any:
        """Draw one of some values."""
        return choices[int(self.whole((1,), 0, len(choices) - 1)[0])]

    def shuffled(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Draw an order of some values."""
        return tuple(values[i] for i in np.argsort(self._bits.random_raw(len(values)), kind="stable"))

    def numbers(self, shape: tuple[int, ...], scales: tuple[float, ...]) -> np.ndarray:
        """Draw float64 numbers: -9 ... 9 times one of `scales`."""
        return np.asarray(self.one_of(scales) * self.whole(shape, -9, 9))

    def truths(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw booleans."""
        return self.whole(shape, 0, 1) == 1


def all_cases() -> Iterator[Case]:
    """Give every case, component by component in the order of the manifest, each with another name."""
    cases = [*_drawn_cases(), *_edges(), *_refusals()]
    for component in COMPONENTS:
        yield from (case for case in cases if case.call.component == component)


def _drawn_cases() -> Iterator[Case]:
    about = ("no batch axis", "one batch axis, and lengths from 1", "two batch axes")
    for of in ALL_CASES:
        for variant in range(3):
            name = f"{of}.{variant}"
            call = _call(of, Draw(name), variant, _sizes(Draw(f"{name} sizes"), variant))
            yield Case(name, of, about[variant], call, gradient=of in GRADIENT_CASES)


def _sizes(draw: Draw, variant: int) -> dict[str, Any]:
    """Draw a length for every axis; two names share one only where no signature has both."""
    batch = ((), (3,), draw.shuffled((2, 3)))[variant]
    seq, k_seq, d_model, heads, d_k, d_v = draw.shuffled(
        ((2, 3, 4, 5, 6, 7), (1, 2, 4, 5, 6, 7), (4, 5, 6, 7, 8, 9))[variant]
    )
    return {
        "batch": batch, "seq": seq, "q_seq": seq, "k_seq": k_seq, "d_model": d_model, "heads": heads, "d_k": d_k,
        "d_v": d_v, "d_ff": k_seq, "vocab": heads, "heads_d_k": heads * d_k, "heads_d_v": heads * d_v,
        "max_len": seq + 3, "shape": (*batch, seq, d_model),
    }  # fmt: skip


def _call(of: str, draw: Draw, variant: int, sizes: dict[str, Any]) -> Call:
    """Draw the call of a case, as `strategies.calls` does."""
    component, _, case = of.partition(".")
    given, values = CASES[component][case], {name: choices[variant] for name, choices in VALUES.get(of, {}).items()}
    scales = OF_COMPONENT.get(component, SCALES)
    if component in ("transformer_block", "transformer", "parameter_count"):
        sizes, values = _model_arguments(component, draw, sizes, given, scales)
    if component == "multi_head_attention":
        heads, d_k, d_v = sorted(sizes[axis] for axis in ("heads", "d_k", "d_v"))  # few heads, or weights grow large
        sizes |= {"heads": heads, "d_k": d_v, "d_v": d_k, "heads_d_k": heads * d_v, "heads_d_v": heads * d_k}
        if "_widths" not in given:
            sizes |= {"d_model": heads * d_v, "heads_d_v": heads * d_v}
        if "context" not in given:
            sizes["k_seq"] = sizes["q_seq"]
    if of == "layer_norm.unbiased_std_plus_eps" or component == "cross_entropy":
        sizes |= {"d_model": max(2, sizes["d_model"]), "vocab": max(2, sizes["vocab"])}
    if component == "clip_grad_norm":
        shapes = ((sizes["d_model"],), (sizes["seq"], sizes["d_ff"]), ())
        values["grads"] = [draw.numbers(shape, SCALES) for shape in shapes[: variant + 1]]

    arguments = {}
    for name, parameter in signature(component).parameters.items():
        wanted = given.get(name, parameter.default)
        if name in values:
            arguments[name] = values[name]
        elif isinstance(wanted, st.SearchStrategy):
            raise KeyError(f"vectors need values for the option {name} of {of}: add them to vector_cases.VALUES")
        elif name == "n_heads":
            arguments[name] = sizes["heads"]
        elif name in AXES and (wanted is parameter.empty or (name == "k_seq" and name not in given)):
            arguments[name] = sizes[name]
        elif wanted is parameter.empty or wanted is GIVEN:
            (annotation,) = array_annotations(parameter.annotation)
            ids = (0, sizes["vocab"] - 1 + ("_ids" in given))
            arguments[name] = _array(component, name, annotation, draw, shape_of(annotation, sizes), ids, scales)
        else:
            arguments[name] = wanted
    if component == "cross_entropy":
        targets, ignored = arguments["targets"], arguments["ignore_index"]
        targets = np.where(targets == sizes["vocab"], ignored, targets)
        arguments["targets"] = np.where((targets == ignored).all(), sizes["vocab"] - 1, targets)
    return _on_a_grid(away_from_kinks(as_call(component, arguments)))


def _array(
    component: str,
    name: str,
    annotation: Any,
    draw: Draw,
    shape: tuple[int, ...],
    ids: tuple[int, int],
    scales: tuple[float, ...],
) -> np.ndarray:
    match component, name:
        case "sample", "probabilities":  # sixteenths, so that sums and comparisons are exact
            thrown = draw.whole((*shape[:-1], 16), 0, shape[-1] - 1)
            return (thrown[..., None] == np.arange(shape[-1])).sum(axis=-2) / 16
        case "sample", "uniform":
            return np.asarray(draw.whole(shape, 0, 255) / 256)
        case "adamw_step", "v":
            return draw.whole(shape, 0, 9) * 0.5
        case "softmax", "scores":
            return draw.numbers(shape, (0.125, 1.0, 8.0))
        case _, "ids" | "targets":
            return draw.whole(shape, *ids)
    return draw.truths(shape) if "bool" in annotation.dtypes else draw.numbers(shape, scales)


def _model_arguments(
    component: str, draw: Draw, sizes: dict[str, Any], given: dict[str, Any], scales: tuple[float, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = dict(given.get("config", {}))
    heads, d_k = (1, draw.one_of((4, 6))) if "n_heads" in fields else draw.one_of(((2, 2), (2, 3), (3, 2), (2, 4)))
    plain = {
        "norm": LayerNorm(eps=0.1), "causal": False, "vocab": 11, "d_model": heads * d_k, "n_heads": heads,
        "n_layers": draw.one_of((1, 2)), "d_ff": draw.one_of((5, 7)), "max_len": 10,
        "embedding_scale": draw.one_of((1.0, 2.5)),
    }  # fmt: skip
    config = ModelConfig(**{**plain, **fields})
    taken = (config.d_model, config.d_ff, *sizes["batch"])
    seq = draw.one_of(tuple(n for n in (2, 4, 5, 6, 7) if n not in taken))
    sizes = {**sizes, "d_model": config.d_model, "vocab": config.vocab, "seq": seq}
    values: dict[str, Any] = {"config": config}
    if component == "parameter_count":
        return sizes, values
    shapes = block_shapes(config) if component == "transformer_block" else parameter_shapes(config)
    values["params"] = map_tree(lambda shape: draw.numbers(shape, scales), shapes)
    if "keep" in given:
        keep = keep_shapes(config, sizes["batch"], seq)
        values["keep"] = map_tree(draw.truths, keep["blocks"][0] if component == "transformer_block" else keep)
    return sizes, values


def as_call(component: str, arguments: dict[str, Any]) -> Call:
    """Give the call with these arguments: by place where the contract has a place for them, else by name."""
    parameters = signature(component).parameters
    options = {name: value for name, value in arguments.items() if parameters[name].kind is inspect._KEYWORD_ONLY}
    return Call(component, tuple(value for name, value in arguments.items() if name not in options), options)


def arguments_of(call: Call) -> dict[str, Any]:
    """Give every argument of a call by its name, in the order of the signature, defaults too."""
    bound = signature(call.component).bind(*call.args, **call.options)
    bound.apply_defaults()
    return dict(bound.arguments)


def _on_a_grid(call: Call) -> Call:
    """Cut what was scaled to keep off a kink to multiples of 2^-12, so that again no dtype rounds it."""

    def cut(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            return value
        return np.asarray(np.trunc(value * 4096) / 4096)

    arguments = {name: map_tree(cut, value) for name, value in arguments_of(call).items()}
    return as_call(call.component, arguments)


# ----------------------------------------------------------------------------------------------- edges


def _case(of: str, name: str, about: str, *, gradient: bool = True, refused: bool = False, **changes: Any) -> Case:
    """Draw a case with one batch axis and change some arguments: a function is applied, anything else put in place."""
    component = of.split(".")[0]
    full_name = f"{component}.{name}"
    sizes = _sizes(Draw(f"{full_name} sizes"), 1)
    sizes |= {axis: 8 for axis, size in sizes.items() if size == 1}  # so that all can be cut, and nothing is spread
    sizes |= {"heads_d_k": sizes["heads"] * sizes["d_k"], "heads_d_v": sizes["heads"] * sizes["d_v"]}
    sizes |= {"shape": (*sizes["batch"], sizes["seq"], sizes["d_model"]), "max_len": sizes["seq"] + 3}
    arguments = arguments_of(_call(of, Draw(full_name), 0, sizes))
    for argument, change in changes.items():
        arguments[argument] = change(arguments[argument]) if callable(change) else change
    gradient = gradient and not refused and COMPONENTS[component].differentiable
    return Case(full_name, of, about, as_call(component, arguments), gradient, refused)


_edge = _case
_refuse = partial(_case, refused=True)
INF, NAN = np.inf, np.nan


def _floats(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float64)


def _first(axis: int, size: int) -> Callable[[np.ndarray], np.ndarray]:
    """Cut an axis, counted from the end, to its first `size` entries."""
    return lambda array: array[(..., slice(size), *(slice(None),) * (axis - 1))]


def _with(value: float, *places: tuple[Any, ...]) -> Callable[[np.ndarray], np.ndarray]:
    """Put a value into some places of a copy."""

    def put(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        for place in places:
            array[place] = value
        return array

    return put


def _filled(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def _times(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array * factor


def _twice_as_long(axis: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.concatenate([array, array], axis=axis)


def _other(array: np.ndarray) -> np.ndarray:
    """Give whole numbers for floating ones, and floating ones for ids and truths."""
    return array.astype(np.int64 if array.dtype.kind == "f" else np.float64)


def _edges() -> Iterator[Case]:
    yield from _edges_of_embeddings_and_positions()
    yield from _edges_of_softmax()
    yield from _edges_of_attention()
    yield from _edges_of_rows()
    yield from _edges_of_models()
    yield from _edges_of_losses_and_optimizers()
    yield from _edges_of_sampling()


def _edges_of_embeddings_and_positions() -> Iterator[Case]:
    of = "token_embedding.plain"
    yield _edge(of, "an_empty_sequence", "No ids give no vectors.", ids=_first(1, 0))
    yield _edge(of, "one_id_again_and_again", "The gradient of its row gathers all.", ids=_filled(1))
    yield _edge(of, "ids_of_32_bits", "Ids may have any integer dtype.", ids=lambda ids: ids.astype(np.int32))
    of = "sinusoidal_positions.plain"
    yield _edge(of, "an_odd_width", "An odd width ends with a sine.", d_model=7)
    yield _edge(of, "a_width_of_1", "One column is a sine.", d_model=1)
    yield _edge(of, "no_positions", "No positions give an empty table.", seq=0)
    yield _edge(of, "far_away", "Positions of 100,000 and more.", offset=100_000)
    of = "add_positions.plain"
    yield _edge(of, "an_empty_sequence", "No vectors stay none.", x=_first(2, 0))
    yield _edge(of, "the_table_is_filled", "A sequence may end where the table ends.", offset=3)


def _edges_of_softmax() -> Iterator[Case]:
    of = "softmax.plain"
    row = _floats([0, 1, 2, 3], [-INF] * 4)
    yield _edge(of, "a_row_of_minus_infinity", "All scores are -inf: all weights are 0.", scores=row)
    yield _edge(of, "minus_infinity", "A score of -inf has weight 0.", scores=_floats([-INF, 1, 0], [2, -INF, -INF]))
    yield _edge(of, "large_scores", "No overflow at 1e4.", scores=_floats([1e4, 9999, -1e4], [-1e4, -1e4, -10001]))
    yield _edge(of, "huge_scores", "No overflow at 2^120.", scores=_floats([2.0**120, 0, -(2.0**120)]))
    yield _edge(of, "equal_scores", "Equal scores share the weight.", scores=_filled(3.0))
    yield _edge(of, "one_score", "One score alone has weight 1.", scores=_first(1, 1))
    yield _edge(of, "no_scores", "An empty row stays empty.", scores=_first(1, 0))
    yield _edge(of, "the_middle_axis", "Along an axis from the end.", axis=-2)
    yield _edge(of, "nan", "NaN makes its row NaN and no other.", gradient=False, scores=_with(NAN, (0, 0)))


def _edges_of_attention() -> Iterator[Case]:
    yield _edge("causal_mask.oblong", "more_queries_than_keys", "The first two queries see nothing.", q_seq=5, k_seq=3)
    yield _edge("causal_mask.oblong", "more_keys_than_queries", "The first query sees three keys.", q_seq=3, k_seq=5)
    yield _edge("causal_mask.square", "nothing", "No queries, no keys.", q_seq=0)
    for component in ("attention_weights", "scaled_dot_product_attention"):
        masked, biased, causal = (f"{component}.{case}" for case in ("mask", "bias", "causal"))
        yield _edge(
            masked, "a_query_that_sees_nothing", "Its weights are 0, and so is its result.",
            mask=_with(False, (..., 0, slice(None))),
        )  # fmt: skip
        yield _edge(masked, "no_query_sees_anything", "All is masked: all is 0.", mask=_filled(False))
        yield _edge(masked, "one_mask_for_the_batch", "A mask without batch axes.", mask=lambda mask: mask[0])
        yield _edge(masked, "a_mask_of_one_batch", "A mask with a batch axis of 1.", mask=lambda mask: mask[:1])
        yield _edge(biased, "a_bias_of_minus_infinity", "It hides a key, and all keys of the first query.",
                    bias=_with(-INF, (..., 0, slice(None)), (..., 1, 1)))  # fmt: skip
        yield _edge(biased, "one_bias_for_the_batch", "A bias without batch axes.", bias=lambda bias: bias[0])
        yield _edge(causal, "causal_with_more_queries", "The first queries see nothing.",
                    q=lambda q: np.concatenate([q, q, q, q, q], axis=-2))  # fmt: skip
        yield _edge(causal, "causal_with_more_keys", "The first query sees all keys but one.", q=_first(2, 2))
        yield _edge(f"{component}.plain", "no_queries", "No queries give no result.", q=_first(2, 0))
        yield _edge(f"{component}.plain", "large_scores", "Scores of some thousands.", q=_times(256), k=_times(16))
        yield _edge(f"{component}.scale", "a_scale_of_0", "All keys weigh the same.", scale=0.0)
    of = "scaled_dot_product_attention.plain"
    no_keys = dict.fromkeys(("k", "v"), _first(2, 0))
    yield _edge(of, "no_keys", "Nothing to attend to gives zeros.", **no_keys)
    yield _edge(of, "one_key", "All get its value.", **dict.fromkeys(("k", "v"), _first(2, 1)))
    of = "scaled_dot_product_attention.mask"
    hidden = {"gradient": False, "mask": _with(False, (..., slice(None), 0))}
    about = "What stands behind a mask has no influence, whatever it is."
    yield _edge(of, "hidden_nan", about, v=_with(NAN, (0, 0)), k=_with(NAN, (0, 0)), **hidden)
    yield _edge(of, "hidden_infinity", about, v=_with(INF, (0, 0, 0)), k=_with(-INF, (0, 0, 1)), **hidden)

    of = "self_attention.mask"
    yield _edge(of, "a_query_that_sees_nothing", "Its result is 0.", mask=_with(False, (..., 1, slice(None))))
    yield _edge("self_attention.plain", "an_empty_sequence", "No tokens give no result.", x=_first(2, 0))
    yield _edge("self_attention.causal", "one_token", "It sees itself.", x=_first(2, 1))
    of = "multi_head_attention.mask"
    yield _edge(of, "a_query_that_sees_nothing", "All its heads give 0.", mask=_with(False, (..., 1, slice(None))))
    yield _edge(of, "one_mask_for_the_batch", "A mask without batch axes.", mask=lambda mask: mask[0])
    yield _edge("multi_head_attention.plain", "one_head", "One head is as wide as the stream.", n_heads=1)
    yield _edge("multi_head_attention.plain", "an_empty_sequence", "No tokens give no result.", x=_first(2, 0))
    yield _edge("multi_head_attention.context", "an_empty_context", "Nothing to attend to gives zeros.",
                context=_first(2, 0))  # fmt: skip
    yield _edge("multi_head_attention.context", "causal_with_a_longer_context", "Both end at the same token.",
                causal=True, context=lambda c: np.concatenate([c, c[:, ::-1]], axis=-2))  # fmt: skip


def _edges_of_rows() -> Iterator[Case]:
    affine = "layer_norm.affine"
    yield _edge(affine, "a_constant_row", "Nothing varies: the result is beta.", x=_filled(3.0))
    yield _edge("layer_norm.plain", "a_row_of_zeros", "It stays 0.", x=_filled(0.0))
    nearly = _floats([0, 1, 2, 3], [3, 3, 2, 3]) + 10000
    yield _edge("layer_norm.plain", "nearly_constant_rows", "10000 + {0, 1, 2, 3}.", x=nearly)
    yield _edge("layer_norm.plain", "no_eps", "eps may be 0 where something varies.", x=_floats([1, 2, 4, 9]), eps=0.0)
    one = dict.fromkeys(("x", "gamma", "beta"), _first(1, 1))
    yield _edge(affine, "a_width_of_1", "One number alone is its mean: the result is beta.", **one)
    yield _edge(affine, "an_empty_sequence", "No rows stay none.", x=_first(2, 0))
    yield _edge("layer_norm.std_plus_eps", "std_plus_eps_of_a_constant_row", "It is 0.", x=_filled(3.0))
    yield _edge("layer_norm.plain", "nan", "NaN makes its row NaN and no other.", gradient=False, x=_with(NAN, (0, 0)))
    yield _edge("relu.plain", "zeros", "relu(0) is 0, and so is its derivative.", x=_floats(0, -0.0, 1, -1))
    yield _edge("relu.plain", "nan", "NaN stays NaN.", gradient=False, x=_floats(NAN, 1, -1))
    tails = _floats(-1e4, -40, -12, -6, -1, -0.0, 0, 1, 6, 12, 40, 1e4)
    for of in ("gelu.plain", "gelu.tanh"):
        yield _edge(
            of, f"tails{'_of_tanh' if of == 'gelu.tanh' else ''}", "0 far to the left, x to the right.", x=tails
        )
    yield _edge("gelu.plain", "nan", "NaN stays NaN.", gradient=False, x=_floats(NAN, 1, -1))
    yield _edge("dropout.plain", "nothing_is_kept", "All is 0.", keep=_filled(False))
    yield _edge("dropout.plain", "a_rate_of_0", "What is kept stays as it is.", rate=0.0)
    yield _edge("feed_forward.plain", "an_empty_sequence", "No rows stay none.", x=_first(2, 0))
    one_unit = {"w_1": _first(1, 1), "b_1": _first(1, 1), "w_2": _first(2, 1)}
    yield _edge("feed_forward.plain", "one_hidden_unit", "A width of 1 inside.", **one_unit)
    yield _edge("feed_forward.keep", "nothing_is_kept", "Only b_2 is left.", keep=_filled(False))
    yield _edge("output_head.bias", "an_empty_sequence", "No rows give no logits.", x=_first(2, 0))


def _edges_of_models() -> Iterator[Case]:
    sees_nothing = _with(False, (..., 1, slice(None)))
    yield _edge("transformer_block.mask", "a_query_that_sees_nothing", "Attention adds 0 to it.", mask=sees_nothing)
    yield _edge("transformer_block.pre", "an_empty_sequence", "No tokens stay none.", x=_first(2, 0))
    yield _edge("transformer_block.causal", "one_token", "It sees itself.", x=_first(2, 1))
    yield _edge("transformer.mask", "a_query_that_sees_nothing", "Attention adds 0 to it.", mask=sees_nothing)
    yield _edge("transformer.pre", "an_empty_sequence", "No tokens give no logits.", ids=_first(1, 0))
    yield _edge("transformer.causal", "one_token", "It sees itself.", ids=_first(1, 1))
    yield _edge("transformer.learned", "the_longest_sequence", "It has max_len tokens.",
                ids=lambda ids: np.concatenate([ids] * 5, axis=-1)[..., :10])  # fmt: skip
    yield _edge("transformer.pre", "no_blocks", "Embedding, positions, norm and head are left.", gradient=False,
                params=lambda params: {**params, "blocks": []},
                config=lambda config: dataclasses.replace(config, n_layers=0))  # fmt: skip
    wide = dataclasses.replace(MINI, vocab=50257, d_model=12288, n_heads=96, n_layers=4, d_ff=49152, max_len=2048)
    for name, about, config in (
        ("tiny", "The model of tutorial 000.", TINY),
        ("mini", "The model of tutorial 001.", MINI),
        ("wide", "More numbers than 32 bits count.", wide),
        ("no_blocks", "No block at all.", dataclasses.replace(TINY, n_layers=0)),
    ):
        yield _edge("parameter_count.plain", name, about, config=config)


def _edges_of_losses_and_optimizers() -> Iterator[Case]:
    of = "cross_entropy.plain"
    yield _edge(of, "ignored_targets_only", "Nothing to learn from: 0, with gradients of 0.", targets=_filled(-100))
    yield _edge(of, "no_targets", "Nothing to learn from: 0.", logits=_first(2, 0), targets=_first(1, 0))
    two = np.array([0, 1])
    logits = _floats([-INF, 2, 3], [1, 2, -INF])
    yield _edge(of, "minus_infinity_on_a_target", "It is infinitely surprising.", gradient=False,
                logits=logits, targets=two)  # fmt: skip
    yield _edge(of, "minus_infinity_elsewhere", "It is certain not to come.", logits=logits, targets=two[::-1].copy())
    yield _edge(of, "large_logits", "No overflow at 1e4.", logits=_floats([1e4, 0, -1e4], [0, 1e4, 9999]), targets=two)
    yield _edge(of, "a_confident_prediction", "A loss near 0.", logits=_floats([30, 0], [0, 40]), targets=two)
    yield _edge(of, "one_class", "What is certain does not surprise.", logits=_first(1, 1), targets=_filled(0))
    yield _edge("cross_entropy.ignore_index", "an_ignored_class", "Any class may be ignored.", ignore_index=1)
    yield _edge("perplexity.plain", "no_loss", "exp(0) is 1.", total_loss=0.0)
    yield _edge("perplexity.plain", "overflow", "Too large for a float: inf.", total_loss=1e6, n_tokens=1)

    of = "adamw_step.plain"
    at_rest = {"grad": _filled(0.0), "m": _filled(0.0), "v": _filled(0.0)}
    yield _edge(of, "nothing_to_learn", "Only the weight decays.", **at_rest)
    yield _edge(of, "the_first_step", "Each number moves by about lr.", m=_filled(0.0), v=_filled(0.0))
    yield _edge(of, "a_late_step", "The corrections are 1 by now.", step=1_000_000)
    yield _edge(of, "no_decay", "Weights without a gradient stay.", weight_decay=0.0, **at_rest)
    scalar = dict.fromkeys(("param", "grad", "m", "v"), lambda array: np.array(array.flat[0]))
    yield _edge(of, "a_single_number", "No axes at all.", **scalar)

    of = "clip_grad_norm.plain"
    yield _edge(of, "just_long_enough", "A norm of max_norm is left as it is.", grads=[_floats(3, 4)], max_norm=5.0)
    yield _edge(of, "zeros", "They stay 0.", grads=[_floats(0, 0), _floats([0], [0])])
    yield _edge(of, "large_gradients", "Their squares overflow float32.", grads=[_floats(3, 4) * 2.0**100])
    yield _edge(of, "huge_gradients", "Their squares overflow float64.", grads=[_floats(3, 4) * 2.0**600])
    yield _edge(
        of, "tiny_gradients", "Their squares underflow.", grads=[_floats(3, -4) * 2.0**-700], max_norm=2.0**-702
    )
    tree = {"head": {"w": _floats([1, 2], [3, 4]), "b": _floats(5, 6)}, "blocks": [{"w": _floats(7)}]}
    yield _edge(of, "a_tree", "One norm over all arrays of any tree.", grads=tree, max_norm=1.0)

    of = "warmup_cosine.min_lr"
    plan = {"warmup": 4, "total": 16, "max_lr": 1.0, "min_lr": 0.125}
    for name, about, changes in (
        ("the_first_step", "It is never 0.", {"step": 0}),
        ("the_peak", "It stands at warmup - 1.", {"step": 3}),
        ("after_the_peak", "The cosine begins.", {"step": 4}),
        ("the_last_step", "It reaches min_lr.", {"step": 15}),
        ("after_the_end", "It stays at min_lr.", {"step": 99}),
        ("no_warmup", "The first step is the peak.", {"step": 0, "warmup": 0}),
        ("warmup_only", "Where peak and end coincide the peak wins.", {"step": 15, "warmup": 16}),
        ("one_step", "It is the peak.", {"step": 0, "warmup": 0, "total": 1}),
    ):
        yield _edge(of, name, about, **{**plan, **changes})


def _edges_of_sampling() -> Iterator[Case]:
    of = "next_token_distribution.plain"
    ties = _floats([1, 3, 3, 3, 0], [2, 2, 2, 2, 2])
    yield _edge(of, "ties_at_top_k", "The lowest id comes first.", logits=ties, top_k=2)
    yield _edge(of, "ties_at_top_p", "The lowest id comes first.", logits=ties, top_p=0.5)
    yield _edge(of, "ties_at_temperature_0", "All goes to the lowest id.", logits=ties, temperature=0.0)
    yield _edge(of, "a_tiny_temperature", "No overflow.", temperature=2.0**-40)
    yield _edge(
        of, "a_boundary_of_top_p", "Two halves of a quarter each reach 0.5.", logits=_floats(0, 0, 0, 0), top_p=0.5
    )
    yield _edge(of, "a_tiny_top_p", "At least one is kept.", top_p=2.0**-20)
    yield _edge(of, "a_top_p_of_1", "All are kept.", top_p=1.0)
    yield _edge(of, "a_top_k_of_all", "More than there are: all are kept.", top_k=1000)
    hidden = _with(-INF, (..., 0))
    yield _edge(of, "minus_infinity", "It is never drawn.", logits=hidden, top_p=0.9)
    yield _edge(of, "one_token", "It is certain.", logits=_first(1, 1), top_k=1)
    yield _edge(of, "a_step_after_the_other", "top-p acts on what top-k left.", top_k=2, top_p=0.6,
                logits=np.array([2.0, 2.0, 2.0, 2.0, 1.0]))  # fmt: skip
    of = "sample.plain"
    p = _floats(0, 0.25, 0.5, 0, 0.25, 0)
    for name, about, uniform in (
        ("a_uniform_of_0", "The first id of positive probability.", 0.0),
        ("a_boundary", "A number on a boundary draws the next id.", 0.25),
        ("almost_1", "The last id of positive probability.", 1 - 2.0**-24),
    ):
        yield _edge(of, name, about, probabilities=p, uniform=np.array(uniform))
    rounded = _floats(0.5, 0.5 - 2.0**-22, 0)
    yield _edge(of, "rounding", "What is left over goes to the last id of positive probability.",
                probabilities=rounded, uniform=np.array(1 - 2.0**-24))  # fmt: skip


# ----------------------------------------------------------------------------------------------- bad input


def _refusals() -> Iterator[Case]:
    yield from _refusals_of_arrays()
    yield from _refusals_of_values()


def _refusals_of_arrays() -> Iterator[Case]:
    """Spoil arrays: another length, a length of 1, another kind of numbers."""
    spoilt = {
        "add_positions.plain": ("table",), "attention_weights.mask": ("k", "mask"),
        "scaled_dot_product_attention.all": ("k", "v", "mask", "bias"), "self_attention.mask": ("w_k", "mask"),
        "multi_head_attention.all": ("w_q", "w_o", "b_v", "context"), "layer_norm.affine": ("gamma", "beta"),
        "feed_forward.keep": ("w_1", "b_1", "w_2", "b_2"), "output_head.bias": ("w", "b"), "dropout.plain": ("keep",),
        "cross_entropy.plain": ("targets",), "adamw_step.plain": ("grad", "m", "v"), "sample.plain": ("uniform",),
    }  # fmt: skip
    for of, names in spoilt.items():
        for name in names:
            about = f"{name} does not fit the others."
            yield _refuse(of, f"{name}_of_another_length", about, **{name: _twice_as_long(-2 if name == "v" else -1)})
            yield _refuse(of, f"{name}_of_another_kind", f"{name} holds the wrong kind of numbers.", **{name: _other})
    for of, names in {"layer_norm.affine": ("gamma", "beta"), "feed_forward.plain": ("b_1", "b_2"),
                      "output_head.bias": ("b",), "multi_head_attention.biases": ("b_q", "b_o")}.items():  # fmt: skip
        for name in names:
            about = f"{name} of length 1 is not spread over the others."
            yield _refuse(of, f"{name}_of_length_1", about, **{name: _first(1, 1)})
    for of, name in {"softmax.plain": "scores", "relu.plain": "x", "gelu.plain": "x", "layer_norm.plain": "x",
                     "next_token_distribution.plain": "logits"}.items():  # fmt: skip
        yield _refuse(of, f"{name}_of_another_kind", "Whole numbers where floating ones belong.",
                      **{name: _other})  # fmt: skip


def _refusals_of_values() -> Iterator[Case]:
    def of(case: str, **bad: tuple[str, dict[str, Any]]) -> Iterator[Case]:
        for name, (about, changes) in bad.items():
            yield _refuse(case, name, about, **changes)

    past = "An id past the table."
    below = "A negative id does not count from the end."
    yield from of("token_embedding.plain", an_id_past_the_table=(past, {"ids": _filled(99)}),
                  a_negative_id=(below, {"ids": _filled(-1)}))  # fmt: skip
    yield from of("sinusoidal_positions.plain", a_negative_length=("seq < 0.", {"seq": -1}),
                  a_width_of_0=("d_model < 1.", {"d_model": 0}), a_negative_offset=("offset < 0.", {"offset": -1}),
                  a_base_of_0=("base <= 0.", {"base": 0.0}))  # fmt: skip
    yield from of("add_positions.plain", past_the_table=("The sequence ends after the table.", {"offset": 4}),
                  a_negative_offset=("offset < 0.", {"offset": -1}))  # fmt: skip
    yield from of("softmax.plain", no_such_axis=("scores have fewer axes.", {"axis": 7}))
    yield from of("causal_mask.oblong", a_negative_length=("q_seq < 0.", {"q_seq": -1}))
    wide = {"mask": lambda mask: np.stack([mask] * 2)}
    yield from of("attention_weights.mask", a_mask_of_more_batches=("A mask must not enlarge the batch.", wide))
    yield from of("multi_head_attention.plain", heads_that_do_not_divide=("n_heads must divide.", {"n_heads": 97}))
    no_projection = ("b_o comes without w_o.", {"w_o": None})
    yield from of("multi_head_attention.biases", a_bias_of_no_projection=no_projection)
    yield from of("layer_norm.affine", a_negative_eps=("eps < 0.", {"eps": -0.5}),
                  an_unknown_variant=("No such variant.", {"variant": "batch"}))  # fmt: skip
    yield from of("layer_norm.unbiased_std_plus_eps", unbiased_of_one_number=(
        "One number has no unbiased deviation.", dict.fromkeys(("x", "gamma", "beta"), _first(1, 1))))  # fmt: skip
    yield from of("gelu.plain", an_unknown_form=("No such form.", {"approximate": "sigmoid"}))
    yield from of("dropout.plain", a_rate_of_1=("Nothing would be left.", {"rate": 1.0}),
                  a_negative_rate=("rate < 0.", {"rate": -0.1}))  # fmt: skip
    yield from of("feed_forward.keep", a_rate_of_1=("Nothing would be left.", {"rate": 1.0}),
                  an_unknown_activation=("No such activation.", {"activation": "tanh"}))  # fmt: skip
    without = lambda params: {name: part for name, part in params.items() if name != "mlp"}  # noqa: E731
    yield from of("transformer_block.pre", a_missing_parameter=("params lack the MLP.", {"params": without}))
    headless = lambda params: {name: part for name, part in params.items() if name != "output_head"}  # noqa: E731
    longer = {"ids": lambda ids: np.concatenate([ids] * 6, axis=-1)}
    yield from of("transformer.pre", a_missing_parameter=("params lack the head.", {"params": headless}),
                  an_id_past_the_vocab=(past, {"ids": _filled(99)}), a_negative_id=(below, {"ids": _filled(-1)}),
                  longer_than_max_len=("The sequence is longer than max_len.", longer))  # fmt: skip
    yield from of("cross_entropy.plain", a_target_past_the_vocab=(past, {"targets": _filled(99)}),
                  a_negative_target=(below, {"targets": _filled(-1)}),
                  a_smoothing_above_1=("label_smoothing > 1.", {"label_smoothing": 1.5}))  # fmt: skip
    yield from of("perplexity.plain", no_tokens=("n_tokens < 1.", {"n_tokens": 0}))
    yield from of("adamw_step.plain", a_step_of_0=("Steps count from 1.", {"step": 0}),
                  a_beta_of_1=("beta_1 must be less than 1.", {"beta_1": 1.0}),
                  a_negative_rate=("lr < 0.", {"lr": -0.5}))  # fmt: skip
    yield from of("clip_grad_norm.plain", an_infinite_gradient=("It has no direction.", {"grads": [_floats(1, INF)]}),
                  nan=("It has no norm.", {"grads": [_floats(1, NAN)]}),
                  a_max_norm_of_0=("max_norm <= 0.", {"max_norm": 0.0}))  # fmt: skip
    yield from of("warmup_cosine.plain", a_negative_step=("Steps count from 0.", {"step": -1}),
                  a_longer_warmup=("warmup > total.", {"warmup": 9, "total": 8}),
                  no_steps=("total < 1.", {"warmup": 0, "total": 0}),
                  a_min_lr_above_max_lr=("min_lr > max_lr.", {"min_lr": 2.0, "max_lr": 1.0}))  # fmt: skip
    yield from of("next_token_distribution.plain", a_negative_temperature=("temperature < 0.", {"temperature": -1.0}),
                  a_temperature_of_nan=("It is no number.", {"temperature": NAN}),
                  a_top_k_of_0=("top_k < 1.", {"top_k": 0}), a_top_p_of_0=("top_p must be positive.", {"top_p": 0.0}),
                  a_top_p_above_1=("top_p > 1.", {"top_p": 1.5}))  # fmt: skip
    yield from of("sample.plain", no_distribution=("A row does not sum to 1.", {"probabilities": _times(0.5)}),
                  a_negative_probability=("A probability is below 0.", {
                      "probabilities": _floats(1.5, -0.5), "uniform": np.array(0.5)}),
                  a_uniform_of_1=("uniform must be less than 1.", {"uniform": _filled(1.0)}))  # fmt: skip
