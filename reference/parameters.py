"""The parameter tree: nested dicts and lists of arrays, its shapes, its initial values, and walks over it.

    { token_embedding: {table},
      positions: {table},                                        learned positions only
      blocks: [ { attention: {w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o},
                  norm_1: {gamma, beta},  mlp: {w_1, b_1, w_2, b_2},  norm_2: {gamma, beta} } ... ],
      final_norm: {gamma, beta},
      output_head: {w, b} }                                      a tied head has no w: it is table.T

An absent part has no key, and neither has a group in which everything is absent. The walks work on any leaves:
arrays, tensors, shapes.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference.config import TINY, Learned, ModelConfig

Tree = dict[str, Any]


def parameter_shapes(config: ModelConfig) -> Tree:
    """Give the tree of shapes (tuples of sizes) that the parameters of `config` have."""
    c = config
    affine = _affine_shapes(c)
    head: Tree = {} if c.tied_head else {"w": (c.d_model, c.vocab)}
    if c.head_bias:
        head["b"] = (c.vocab,)
    tree: Tree = {
        "token_embedding": {"table": (c.vocab, c.d_model)},
        "positions": {"table": (c.max_len, c.d_model)} if isinstance(c.positions, Learned) else {},
        "blocks": [block_shapes(c) for _ in range(c.n_layers)],
        "final_norm": affine if c.final_norm else {},
        "output_head": head,
    }
    return _without_empty(tree)


def block_shapes(config: ModelConfig) -> Tree:
    """Give the shapes of one block's parameters."""
    c = config
    affine = _affine_shapes(c)
    width = (c.d_model, c.d_model)  # heads x d_k = heads x d_v = d_model in a model

    attention: Tree = {"w_q": width, "w_k": width, "w_v": width}
    if c.output_projection:
        attention["w_o"] = width
    if c.attention_bias:
        names = ("b_q", "b_k", "b_v", "b_o") if c.output_projection else ("b_q", "b_k", "b_v")
        attention |= dict.fromkeys(names, (c.d_model,))

    block: Tree = {
        "attention": attention,
        "norm_1": affine,
        "mlp": {
            "w_1": (c.d_model, c.d_ff),
            "b_1": (c.d_ff,),
            "w_2": (c.d_ff, c.d_model),
            "b_2": (c.d_model,),
        },
        "norm_2": affine,
    }
    return _without_empty(block)


def _affine_shapes(config: ModelConfig) -> Tree:
    return dict.fromkeys(("gamma", "beta"), (config.d_model,)) if config.norm.affine else {}


def _without_empty(group: Tree) -> Tree:
    return {name: dict(part) if isinstance(part, dict) else part for name, part in group.items() if part != {}}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the leaves in order, each with its dotted path: `blocks.0.attention.w_q`."""
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from leaves(part, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list):
        for index, part in enumerate(tree):
            yield from leaves(part, f"{path}.{index}" if path else str(index))
    else:
        yield path, tree


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` to each leaf (and the leaves of `others` in the same place); the tree keeps its shape."""
    if isinstance(tree, Mapping):
        return {name: map_tree(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    if isinstance(tree, list):
        return [map_tree(function, part, *(other[i] for other in others)) for i, part in enumerate(tree)]
    return function(tree, *others)


def tree_from_leaves(flat: Mapping[str, Any]) -> Tree:
    """Build the tree back from the dotted paths of `leaves`; an all-digit part of a path is a place in a list."""
    nested: Tree = {}
    for path, leaf in flat.items():
        *groups, name = path.split(".")
        place = nested
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = leaf

    def with_lists(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        if part and all(key.isdigit() for key in part):
            return [with_lists(part[key]) for key in sorted(part, key=int)]
        return {key: with_lists(value) for key, value in part.items()}

    tree = with_lists(nested)
    tree.setdefault("blocks", [])  # a model without blocks has no path that names them
    return tree


def check_params(component: str, params: Tree, shapes: Tree) -> None:
    """Hold a parameter tree against the shapes its config asks for.

    Raises ValueError where a part is missing or too many, TypeError where a shape is another, each with the path.
    """
    asked, given = dict(leaves(shapes)), dict(leaves(params))
    if missing := [path for path in asked if path not in given]:
        raise ValueError(
            f"{component}: the config asks for {missing[0]}, which params lack; params have {sorted(given)}"
        )
    if extra := [path for path in given if path not in asked]:
        raise ValueError(f"{component}: params have {extra[0]}, which the config does not ask for; remove it")
    for path, shape in asked.items():
        found = getattr(given[path], "shape", None)
        if found is None or tuple(found) != shape:
            raise TypeError(f"{component}: params.{path} must have shape {shape}, got {found and tuple(found)}")


def init_params(config: ModelConfig, *, seed: int, dtype: Any = np.float64) -> Tree:
    r"""Draw initial parameters.

    Every weight and table is N(0, 0.02²), but the two that write into the residual stream (`w_o`, `w_2`) are
    N(0, 0.02² / (2 n_layers)), so that the stream's variance does not grow with depth; gains are 1, biases 0.

    Source: Radford et al. 2019 (GPT-2), section 2.3, and its published code.
    """
    generator = np.random.default_rng(seed)
    residual = 0.02 / np.sqrt(2 * max(config.n_layers, 1))

    def draw(path: str, shape: tuple[int, ...]) -> np.ndarray:
        name = path.rsplit(".", 1)[-1]
        if name == "gamma":
            return np.ones(shape, dtype)
        if name.startswith("b"):
            return np.zeros(shape, dtype)
        std = residual if name in ("w_o", "w_2") else 0.02
        return (std * generator.standard_normal(shape)).astype(dtype)

    shapes = parameter_shapes(config)
    return tree_from_leaves({path: draw(path, shape) for path, shape in leaves(shapes)})


def tutorial_000_params(seed: int = 42) -> Tree:
    """Draw TINY's weights as tutorial 000 does: NumPy's legacy generator, in the order of its code."""
    normal = np.random.RandomState(seed).randn
    d_model, d_ff, vocab = TINY.d_model, TINY.d_ff, TINY.vocab
    table = normal(vocab, d_model)
    blocks = [
        {
            "attention": {name: normal(d_model, d_model) * 0.01 for name in ("w_q", "w_k", "w_v")},
            "mlp": {
                "w_1": normal(d_model, d_ff) * 0.01,
                "b_1": np.zeros(d_ff),
                "w_2": normal(d_ff, d_model) * 0.01,
                "b_2": np.zeros(d_model),
            },
        }
        for _ in range(TINY.n_layers)
    ]
    return {
        "token_embedding": {"table": table},
        "blocks": blocks,
        "output_head": {"w": normal(d_model, vocab) * 0.01, "b": np.zeros(vocab)},
    }
