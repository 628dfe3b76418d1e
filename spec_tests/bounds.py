r"""How far rounding alone may move a result: the bound that agreement is judged by.

    bound = 64 x eps x length x (largest |result| + sensitivity + what cancels inside)

`length` is the longest axis that is summed over (times the layers of a model). `sensitivity` is the condition of the
problem: how far the reference moves when every floating input moves by one part in a million, as a multiple of that
part. It is (1 + largest |score|) for a softmax, the largest |angle| for a sine, |x| / deviation for a layer norm, and
for a whole model whatever its layers make of it; measuring it needs no formula for each. What no input shows is stated:
the angle of a position, and the 1 whose rest the tails of a GELU, a cosine and a confident loss are. What is observed
stays under a tenth of the bound, which is what our own backends are held to.

A gradient is a result like any other; the tokens that the gradients of weights are summed over count as a length.
"""

import inspect
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

import reference.numpy
from reference.config import ModelConfig
from reference.parameters import leaves
from spec_tests.judge import close
from spec_tests.subjects.contract import Call, arrays_of, is_gradient, plain

SAFETY = 64
PART = 2.0**-20


def agree(call: Call, got: Any, should: Any, *, eps: float, share: float = 1.0) -> None:
    """Check every array of a result against its bound, or `share` of it."""
    results, wanted = arrays_of(got), arrays_of(should)
    for path, limit in bounds(call, should, eps=eps).items():
        if path not in results:
            raise AssertionError(f"{call.component}: the result lacks {path}")
        close(results[path], wanted[path], within=share * limit, what=f"{call.component}{'.' if path else ''}{path}")


def bounds(call: Call, should: Any, *, eps: float) -> dict[str, float]:
    """Give the absolute bound of every array of a result, by its path ('' for a single one)."""
    moved = arrays_of(_evaluate(_shifted(call)))
    limits, inside = {}, _cancels_inside(call, arrays_of(should))
    for path, wanted in arrays_of(should).items():
        finite = np.isfinite(wanted) & np.isfinite(moved[path])
        size = np.abs(np.where(finite, wanted, 0)).max(initial=0)
        sensitivity = np.abs(np.where(finite, moved[path] - np.where(finite, wanted, 0), 0)).max(initial=0) / PART
        limits[path] = float(SAFETY * eps * summed_length(call) * (size + sensitivity + inside))
    return limits


def _evaluate(call: Call) -> Any:
    with np.errstate(all="ignore"):
        return getattr(reference.numpy, call.component)(*call.args, **call.options)


def _shifted(call: Call) -> Call:
    """Move every floating number by at most one part in 2^20 of itself, half of them up and half down."""
    signs = np.random.default_rng(0)

    def shift(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        return np.asarray(array * (1 + PART * signs.choice((-1.0, 1.0), array.shape)), array.dtype)

    return call.mapped(shift)


def _cancels_inside(call: Call, results: dict[str, np.ndarray]) -> float:
    """How large the numbers are whose difference a small result may be, where moving the inputs does not tell."""
    values = inspect.signature(getattr(reference.numpy, call.component)).bind(*call.args, **call.options)
    values.apply_defaults()
    given = SimpleNamespace(**values.arguments)
    if is_gradient(call.component):
        return _cancels_inside_a_gradient(call, given, results)
    match call.component:
        case "sinusoidal_positions":
            return float(given.offset + given.seq)  # the largest angle
        case "perplexity":
            return float(np.exp(given.total_loss / given.n_tokens) * given.total_loss / given.n_tokens)
        case "gelu":
            return float(np.abs(given.x).max(initial=0))  # times 1 + erf, which is 0 from far away
        case "feed_forward":
            hidden = np.abs(given.x @ given.w_1).max(initial=0) + (0 if given.b_1 is None else np.abs(given.b_1).max())
            return float(given.w_2.shape[0] * np.abs(given.w_2).max(initial=0) * hidden)
        case "cross_entropy":
            return 1.0 + float(np.abs(given.logits).max(initial=0))  # log of a sum that is nearly 1
        case "warmup_cosine":
            return float(given.max_lr)  # times 1 + cos, which is nearly 0 before the end
        case _:
            return 0.0


def _cancels_inside_a_gradient(call: Call, given: SimpleNamespace, results: dict[str, np.ndarray]) -> float:
    """Say the same of gradients, which vanish where a norm or a softmax has nothing to choose, and by rounding only."""
    cotangent = _largest(given.cotangent)
    match plain(call.component):
        case "softmax":
            return cotangent  # A (dA - sum A dA)
        case "attention_weights":
            return cotangent * _reach_of_scores(given.q, given.k)
        case "scaled_dot_product_attention":
            of_scores = _largest(np.abs(given.cotangent).sum(axis=-1)) * _largest(given.v)
            return max(cotangent, of_scores * _reach_of_scores(given.q, given.k))
        case "self_attention" | "multi_head_attention":
            return _inside_attention(given)
        case "layer_norm":
            x, g = given.x, _largest(given.cotangent if given.gamma is None else given.cotangent * given.gamma)
            divisor = (x.var(axis=-1) + given.eps) ** 0.5 if given.variant == "standard" else x.std(axis=-1) + given.eps
            raised = 1 + np.abs(x).max(axis=-1) / divisor  # what centring leaves, divided
            return float((raised * np.maximum(cotangent, g / divisor)).max(initial=0))
        case "gelu":
            return cotangent * _steepness(given.x)
        case "feed_forward":
            before = given.x @ given.w_1 + (0 if given.b_1 is None else given.b_1)
            before_gradient = _largest(np.abs(given.cotangent) @ np.abs(given.w_2).T) * _steepness(before)
            return cotangent * _largest(before) + before_gradient * max(1, _largest(given.x), _largest(given.w_1))
        case "cross_entropy":
            counted = max((given.targets != given.ignore_index).sum(), 1)
            return cotangent * (1 + _largest(given.logits)) / float(counted)  # p - y
        case "transformer_block" | "transformer":
            # what vanishes is made of what does not, and of scores whose gradients cancel where one key is all there is
            return max(cotangent, *map(_largest, results.values())) * _reach_inside_blocks(given)
        case _:
            return 0.0


def _inside_attention(given: SimpleNamespace) -> float:
    x, context = given.x, getattr(given, "context", None)
    keys_from = x if context is None else context
    biases = {name: getattr(given, name, None) for name in ("b_q", "b_k", "b_v")}
    q, k, v = (
        tokens @ w + (0 if biases[name] is None else biases[name])
        for name, tokens, w in (("b_q", x, given.w_q), ("b_k", keys_from, given.w_k), ("b_v", keys_from, given.w_v))
    )
    w_o = getattr(given, "w_o", None)
    of_heads = np.abs(given.cotangent) if w_o is None else np.abs(given.cotangent) @ np.abs(w_o).T
    of_scores = _largest(of_heads.sum(axis=-1)) * _largest(v) * _reach_of_scores(q, k)
    return max(of_scores, _largest(of_heads)) * max(1, *map(_largest, (x, keys_from, given.w_q, given.w_k)))


def _reach_inside_blocks(given: SimpleNamespace) -> float:
    """Bound values times queries or keys in any block, by the largest sums that its weights can make."""
    config, params = given.config, given.params

    def normed(gain_and_bias: Mapping[str, np.ndarray]) -> float:
        gain = _largest(gain_and_bias["gamma"]) if "gamma" in gain_and_bias else 1.0
        return config.d_model**0.5 * gain + _largest(gain_and_bias.get("beta"))

    def reach(block: Mapping[str, Any], x: float) -> float:
        weights = block["attention"]
        x = normed(block.get("norm_1", {})) if config.norm_placement == "pre" else x
        q, k, v = (
            x * np.abs(weights[f"w_{name}"]).sum(axis=0).max() + _largest(weights.get(f"b_{name}")) for name in "qkv"
        )
        return float(max(1.0, v) * max(1.0, q, k))

    if hasattr(given, "x"):
        return reach(params, _largest(given.x))
    positions = _largest(params["positions"]["table"]) if "positions" in params else 1.0
    embedded = abs(config.embedding_scale) * _largest(params["token_embedding"]["table"]) + positions
    largest = max([embedded, *(normed(block.get("norm_2", {})) for block in params["blocks"])])
    return max([1.0, *(reach(block, largest) for block in params["blocks"])])


def _reach_of_scores(q: np.ndarray, k: np.ndarray) -> float:
    """Say how much larger the gradients of q, k and bias are than those of the scores."""
    return max(1.0, _largest(q), _largest(k))


def _largest(array: np.ndarray | None) -> float:
    return 0.0 if array is None else float(np.abs(array).max(initial=0))


def _steepness(x: np.ndarray) -> float:
    """Give the factor of 1 - tanh² in a GELU's derivative, where that is not 0 to the last bit, and at least 1."""
    x = np.abs(x[np.abs(x) < 8])
    return 1 + _largest(x * (1 + 0.134 * x**2))


def summed_length(call: Call) -> int:
    """Give the longest axis that may be summed over, tokens too for a gradient, times the layers of a model."""
    values = [*call.args, *call.options.values()]
    arrays = [a for value in values for _, a in leaves(value) if isinstance(a, np.ndarray)]
    longest = max((max(a.shape, default=1) for a in arrays), default=1)
    layers = next((1 + v.n_layers for v in values if isinstance(v, ModelConfig)), 1)
    tokens = math.prod(call.args[0].shape[:-1]) if is_gradient(call.component) else 1
    return max(longest, tokens, 1) * layers
