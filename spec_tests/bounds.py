r"""How far rounding alone may move a result: the bound that agreement is judged by.

    bound = 64 x eps x length x (largest |result| + sensitivity + what cancels inside)

`length` is the longest axis that is summed over (times the layers of a model). `sensitivity` is the condition of the
problem: how far the reference moves when every floating input moves by one part in a million, as a multiple of that
part. It is (1 + largest |score|) for a softmax, the largest |angle| for a sine, |x| / deviation for a layer norm, and
for a whole model whatever its layers make of it; measuring it needs no formula for each. What no input shows is stated:
the angle of a position, and the 1 whose rest the tails of a GELU and a confident loss are. What is observed stays under
a tenth of the bound, which is what our own backends are held to.
"""

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

import reference.numpy
from reference.config import ModelConfig
from reference.parameters import leaves, map_tree
from spec_tests.judge import close
from spec_tests.subjects.subject import Call

SAFETY = 64
PART = 2.0**-20


def agree(call: Call, got: Any, should: Any, *, eps: float, share: float = 1.0) -> None:
    """Check every array of a result against its bound, or `share` of it."""
    results = dict(leaves(_as_tree(got)))
    for path, limit in bounds(call, should, eps=eps).items():
        wanted = dict(leaves(_as_tree(should)))[path]
        if path not in results:
            raise AssertionError(f"{call.component}: the result lacks {path}")
        close(results[path], wanted, within=share * limit, what=f"{call.component}{'.' if path else ''}{path}")


def bounds(call: Call, should: Any, *, eps: float) -> dict[str, float]:
    """Give the absolute bound of every array of a result, by its path ('' for a single one)."""
    moved = dict(leaves(_as_tree(_evaluate(_shifted(call)))))
    limits, inside = {}, _cancels_inside(call)
    for path, wanted in leaves(_as_tree(should)):
        finite = np.isfinite(wanted) & np.isfinite(moved[path])
        size = np.abs(np.where(finite, wanted, 0)).max(initial=0)
        sensitivity = np.abs(np.where(finite, moved[path] - np.where(finite, wanted, 0), 0)).max(initial=0) / PART
        limits[path] = float(SAFETY * eps * _length(call) * (size + sensitivity + inside))
    return limits


def _evaluate(call: Call) -> Any:
    with np.errstate(all="ignore"):
        return getattr(reference.numpy, call.component)(*call.args, **call.options)


def _shifted(call: Call) -> Call:
    """Move every floating number by at most one part in 2^20 of itself, half of them up and half down."""
    signs = np.random.default_rng(0)

    def shift(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return np.asarray(value * (1 + PART * signs.choice((-1.0, 1.0), value.shape)), value.dtype)
        if isinstance(value, Mapping | list):
            return map_tree(shift, value)
        return value

    return Call(call.component, tuple(map(shift, call.args)), {name: shift(v) for name, v in call.options.items()})


def _cancels_inside(call: Call) -> float:
    """How large the numbers are whose difference a small result may be, where moving the inputs does not tell."""
    values = inspect.signature(getattr(reference.numpy, call.component)).bind(*call.args, **call.options)
    values.apply_defaults()
    given = SimpleNamespace(**values.arguments)
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
        case _:
            return 0.0


def _length(call: Call) -> int:
    values = [*call.args, *call.options.values()]
    arrays = [a for value in values for _, a in leaves(value) if isinstance(a, np.ndarray)]
    longest = max((max(a.shape, default=1) for a in arrays), default=1)
    layers = next((1 + v.n_layers for v in values if isinstance(v, ModelConfig)), 1)
    return max(longest, 1) * layers


def _as_tree(result: Any) -> Any:
    return list(map(_as_tree, result)) if isinstance(result, tuple) else result
