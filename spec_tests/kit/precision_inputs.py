"""What precision is measured on: ordinary inputs of growing length, and rows that are known to be hard.

`ORDINARY` makes, for each component, calls of a few kinds in which sums have `n` terms. `STRESS` are single calls whose
right values can be told beforehand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.config import ModelConfig
from reference.parameters import block_shapes, parameter_shapes
from spec_tests.strategies import normal_tree
from spec_tests.subjects.contract import Call

LENGTHS = (16, 64, 256, 1024)
ROWS = 4
HEADS = 2
Normal = Callable[..., np.ndarray]
"""`normal(3, n)` draws normal numbers, of deviation 1."""


@dataclass(frozen=True)
class Trial:
    """One call in float64; `length` is the number of terms of its longest sum."""

    kind: str
    length: int
    call: Call


@dataclass(frozen=True)
class Stress:
    """One hard call, why its result is known, and the first numbers of it."""

    what: str
    why: str
    right: tuple[float, ...]
    length: int
    call: Call


def trials(component: str, *, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Iterator[Trial]:
    """Give the ordinary calls of a component, none if its precision is not measured."""
    if component not in ORDINARY:
        return
    make, longest = ORDINARY[component]
    for n in lengths:
        if n <= longest:
            normal = np.random.default_rng((seed, n)).standard_normal
            for kind, (args, options) in make(n, lambda *shape, draw=normal: np.asarray(draw(shape))).items():
                yield Trial(kind, n, Call(component, args, options))


def _elementwise(n: int, normal: Normal) -> dict[str, Any]:
    return {"normal": ((normal(ROWS, n),), {})}


def _gelu(n: int, normal: Normal) -> dict[str, Any]:
    x = normal(ROWS, n)
    return {"normal": ((x,), {}), "tails": ((4 * x,), {}), "tanh form": ((x,), {"approximate": "tanh"})}


def _dropout(n: int, normal: Normal) -> dict[str, Any]:
    return {"normal": ((normal(ROWS, n), normal(ROWS, n) > 0), {"rate": 0.25})}


def _token_embedding(n: int, normal: Normal) -> dict[str, Any]:
    return {
        "normal": ((np.arange(ROWS), normal(ROWS, n)), {}),
        "scaled": ((np.arange(ROWS), normal(ROWS, n)), {"scale": n**0.5}),
    }


def _add_positions(n: int, normal: Normal) -> dict[str, Any]:
    return {"normal": ((normal(2, ROWS, n), normal(ROWS, n)), {})}


def _sinusoidal(n: int, normal: Normal) -> dict[str, Any]:
    return {"first positions": ((n, 16), {"dtype": np.float64})}


def _softmax(n: int, normal: Normal) -> dict[str, Any]:
    s = normal(ROWS, n)
    return {"normal": ((s,), {}), "deviation 8": ((8 * s,), {}), "around 300": ((300 + s,), {})}


def _next_token(n: int, normal: Normal) -> dict[str, Any]:
    return {"normal": ((normal(ROWS, n),), {}), "temperature 0.5": ((4 * normal(ROWS, n),), {"temperature": 0.5})}


def _cross_entropy(n: int, normal: Normal) -> dict[str, Any]:
    logits, targets = normal(ROWS, n), np.arange(ROWS)
    return {
        "normal": ((logits, targets), {}),
        "around 300": ((300 + 8 * logits, targets), {}),
        "smoothed": ((logits, targets), {"label_smoothing": 0.1}),
    }


def _layer_norm(n: int, normal: Normal) -> dict[str, Any]:
    x, gain, bias = normal(ROWS, n), 1 + normal(n) / 8, normal(n)
    return {
        "normal": ((x, gain, bias), {}),
        "mean 1000 deviations away": ((1000 + x, None, None), {}),
        "deviation 1000": ((1000 * x, gain, bias), {}),
    }


def _weights(n: int, normal: Normal) -> dict[str, Any]:
    d_k = min(n, 64)
    q, k = normal(ROWS, d_k), normal(n, d_k)
    return {
        "normal": ((q, k), {}),
        "sharp": ((8 * q, k), {}),
        "causal": ((q, k), {"causal": True}),
    }


def _attention(n: int, normal: Normal) -> dict[str, Any]:
    v = normal(n, 8)
    return {kind: ((*args, v), options) for kind, (args, options) in _weights(n, normal).items()}


def _self_attention(n: int, normal: Normal) -> dict[str, Any]:
    x, w = normal(8, n), [normal(n, 8) / n**0.5 for _ in range(3)]
    return {"normal": ((x, *w), {}), "causal": ((x, *w), {"causal": True})}


def _multi_head(n: int, normal: Normal) -> dict[str, Any]:
    x, w = normal(8, n), [normal(n, n) / n**0.5 for _ in range(4)]
    options = {"n_heads": HEADS}
    return {"normal": ((x, *w), options), "causal": ((x, *w), options | {"causal": True})}


def _feed_forward(n: int, normal: Normal) -> dict[str, Any]:
    w_1, w_2 = normal(n, 2 * n) / n**0.5, normal(2 * n, n) / n**0.5
    args = (normal(ROWS, n), w_1, normal(2 * n) / 8, w_2, normal(n) / 8)
    return {"normal": (args, {}), "relu": (args, {"activation": "relu"})}


def _output_head(n: int, normal: Normal) -> dict[str, Any]:
    x, w = normal(ROWS, n), normal(n, 64)
    return {"normal": ((x, w / n**0.5), {}), "positive": ((np.abs(x), np.abs(w) / n), {})}


def _config(n: int) -> ModelConfig:
    return ModelConfig(vocab=n, d_model=n, n_heads=HEADS, n_layers=2, d_ff=2 * n, max_len=8, attention_bias=True)


def _block(n: int, normal: Normal) -> dict[str, Any]:
    config = _config(n)
    params = _scaled(normal, block_shapes(config), n)
    return {"pre": ((normal(8, n), params, config), {})}


def _transformer(n: int, normal: Normal) -> dict[str, Any]:
    config = _config(n)
    return {"pre": ((np.arange(8) % n, _scaled(normal, parameter_shapes(config), n), config), {})}


def _scaled(normal: Normal, shapes: Any, n: int) -> Any:
    """Draw parameters so that what goes into a sum of n terms leaves it no larger."""

    class Drawn:
        standard_normal = staticmethod(lambda shape: normal(*shape))

    return normal_tree(Drawn(), shapes, scale=n**-0.5)


def _adamw(n: int, normal: Normal) -> dict[str, Any]:
    param, grad, m = normal(n), normal(n), normal(n) / 8
    return {"normal": ((param, grad, m, 0.25 + normal(n) ** 2), {"step": 3, "lr": 0.125})}


def _clip(n: int, normal: Normal) -> dict[str, Any]:
    return {"normal": (([normal(n), normal(ROWS)],), {"max_norm": 1.0})}


ORDINARY: dict[str, tuple[Callable[[int, Normal], dict[str, Any]], int]] = {
    "token_embedding": (_token_embedding, 16),
    "sinusoidal_positions": (_sinusoidal, 1024),
    "add_positions": (_add_positions, 16),
    "softmax": (_softmax, 1024),
    "attention_weights": (_weights, 1024),
    "scaled_dot_product_attention": (_attention, 1024),
    "self_attention": (_self_attention, 1024),
    "multi_head_attention": (_multi_head, 256),
    "layer_norm": (_layer_norm, 1024),
    "relu": (_elementwise, 16),
    "gelu": (_gelu, 64),
    "dropout": (_dropout, 16),
    "feed_forward": (_feed_forward, 256),
    "transformer_block": (_block, 64),
    "output_head": (_output_head, 1024),
    "transformer": (_transformer, 64),
    "cross_entropy": (_cross_entropy, 1024),
    "adamw_step": (_adamw, 64),
    "clip_grad_norm": (_clip, 1024),
    "next_token_distribution": (_next_token, 1024),
}
"""How to make the calls, and up to which length; what sums nothing, and whole models, need no long ones."""

FOUR = np.arange(4.0)
LONG = 100_000

STRESS: tuple[Stress, ...] = (
    Stress(
        "10000 + {0, 1, 2, 3}",
        "(x - 10001.5) / sqrt(1.25)",
        (-1.3416, -0.4472, 0.4472, 1.3416),
        4,
        Call("layer_norm", (10000 + FOUR, None, None), {}),
    ),
    Stress(
        f"{LONG:,} numbers, 1000 and 1002 in turn",
        "mean 1001, deviation 1",
        (-1.0, 1.0),
        LONG,
        Call("layer_norm", (np.tile([1000.0, 1002.0], LONG // 2), None, None), {}),
    ),
    Stress(
        "scores 10000 + {0, 1, 2, 3}",
        "as without the 10000",
        (0.0321, 0.0871, 0.2369, 0.6439),
        4,
        Call("softmax", (10000 + FOUR,), {}),
    ),
    Stress(
        "scores 10000 x {-1, 0, 1}",
        "the largest takes all",
        (0.0, 0.0, 1.0),
        3,
        Call("softmax", (np.array([-1e4, 0.0, 1e4]),), {}),
    ),
    Stress(f"{LONG:,} equal scores", "a share of each", (0.00001,), LONG, Call("softmax", (np.ones(LONG),), {})),
    Stress(
        "logits 10000 + {0, 1, 2, 3}, target 3",
        "-log 0.6439",
        (0.4402,),
        4,
        Call("cross_entropy", (10000 + FOUR[None], np.array([3])), {}),
    ),
    Stress(
        f"{LONG:,} equal logits",
        "log 100000",
        (11.5129,),
        LONG,
        Call("cross_entropy", (np.ones((1, LONG)), np.array([0])), {}),
    ),
    Stress(
        "positions 100,000 ... 100,003",
        "sin 100000, cos 100000, sin 1000, cos 1000",
        (0.0357, -0.9994, 0.8269, 0.5624),
        1,
        Call("sinusoidal_positions", (4, 4), {"offset": LONG, "dtype": np.float64}),
    ),
    Stress(
        f"a sum of {LONG:,} products",
        "100000 x 0.5 x 0.5",
        (25000.0,),
        LONG,
        Call("output_head", (np.full((1, LONG), 0.5), np.full((LONG, 1), 0.5)), {}),
    ),
)
"""The rows that are known to be hard."""


def stress(component: str) -> tuple[Stress, ...]:
    """Give the hard calls of a component."""
    return tuple(row for row in STRESS if row.call.component == component)
