"""Parameters and configs: how they are drawn, walked, checked and written down."""

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.config import (
    MINI,
    PRESETS,
    TINY,
    LayerNorm,
    Learned,
    ModelConfig,
    NoPositions,
    Sinusoidal,
    from_json,
    to_json,
)
from reference.numpy import cross_entropy, transformer
from reference.parameters import (
    check_params,
    init_params,
    leaves,
    map_tree,
    parameter_shapes,
    tree_from_leaves,
    tutorial_000_params,
)
from spec_tests.strategies import configs

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(deadline=None, max_examples=20)
WIDE = ModelConfig(
    vocab=500, d_model=120, n_heads=4, n_layers=3, d_ff=250, max_len=300,
    positions=Learned(), attention_bias=True, dropout=0.1,
)  # fmt: skip
"""Large enough that the moments of each array are known to a few percent."""


@st.composite
def any_configs(draw):
    """Draw a config with any of its choices."""
    flags = ("final_norm", "attention_bias", "output_projection", "tied_head", "head_bias", "causal")
    return draw(
        configs(
            **{flag: draw(st.booleans()) for flag in flags},
            positions=draw(st.sampled_from((Sinusoidal(), Sinusoidal(base=100.0), Learned(), NoPositions()))),
            norm=LayerNorm(
                eps=0.1, affine=draw(st.booleans()), variant=draw(st.sampled_from(("standard", "std_plus_eps")))
            ),
            norm_placement=draw(st.sampled_from(("pre", "post"))),
            n_layers=draw(st.integers(0, 3)),
            activation=draw(st.sampled_from(("relu", "gelu", "gelu_tanh"))),
            dropout=draw(st.sampled_from((0.0, 0.1))),
        )
    )


# ------------------------------------------------------------------------------------------ init_params


@FEW
@given(seed=SEEDS)
def test_weights_are_normal_with_the_stated_deviation(seed: int) -> None:
    """Weights and tables are N(0, 0.02²), w_o and w_2 N(0, 0.02² / (2 n_layers)).

    Of n normal numbers the mean strays from 0 by more than 7 / sqrt(n) deviations, or the deviation by more than a
    share of 7 / sqrt(2 n), with a probability below 3e-12 each: below 1e-7 for all arrays and examples together.
    """
    for path, array in leaves(init_params(WIDE, seed=seed)):
        name = path.split(".")[-1]
        if name[0] == "b" or name == "gamma":
            continue
        std = 0.02 / math.sqrt(2 * WIDE.n_layers) if name in ("w_o", "w_2") else 0.02
        assert abs(array.mean()) < 7 * std / math.sqrt(array.size), path
        assert abs(array.std() / std - 1) < 7 / math.sqrt(2 * array.size), path


@FEW
@given(seed=SEEDS)
def test_gains_are_one_and_biases_zero(seed: int) -> None:
    """At first a norm has no gain and no bias has a value."""
    for path, array in leaves(init_params(WIDE, seed=seed)):
        name = path.split(".")[-1]
        if name == "gamma":
            np.testing.assert_array_equal(array, 1)
        elif name[0] == "b":
            np.testing.assert_array_equal(array, 0)


@FEW
@given(config=any_configs(), seed=SEEDS)
def test_the_same_seed_gives_the_same_parameters(config: ModelConfig, seed: int) -> None:
    """A seed fixes every number, whatever was drawn before, and another seed gives others."""
    first = dict(leaves(init_params(config, seed=seed)))
    init_params(config, seed=seed + 1)
    again = dict(leaves(init_params(config, seed=seed)))
    for path, array in first.items():
        np.testing.assert_array_equal(array, again[path])
    table = "token_embedding.table"
    assert (first[table] != dict(leaves(init_params(config, seed=seed + 1)))[table]).any()


@FEW
@given(seed=SEEDS)
def test_no_two_arrays_are_alike(seed: int) -> None:
    """Each array has numbers of its own: no generator is started twice."""
    firsts = [array.flat[0] for path, array in leaves(init_params(WIDE, seed=seed)) if path.split(".")[-1][0] in "wt"]
    assert len(set(firsts)) == len(firsts)


@FEW
@given(config=any_configs(), dtype=st.sampled_from((np.float32, np.float64)))
def test_the_tree_is_the_one_that_the_config_asks_for(config: ModelConfig, dtype: type) -> None:
    """The parameters have the shapes of `parameter_shapes`, and the dtype that was asked for."""
    params = init_params(config, seed=0, dtype=dtype)
    check_params("test", params, parameter_shapes(config))
    assert {array.dtype for _, array in leaves(params)} == {np.dtype(dtype)}


@FEW
@given(seed=SEEDS, tied=st.booleans())
def test_at_first_every_token_is_about_equally_likely(seed: int, tied: bool) -> None:
    """An untrained model knows nothing: its loss on random tokens is within 3 % of log(vocab).

    Its logits deviate by about s = 0.02 sqrt(d_model) = 0.22, which adds s² / 2 = 0.02 to log(vocab) = 6.2, less
    the mean of 200 targets' logits, which deviates by 0.016: what is left of 3 % are 10 such deviations, so that
    this fails by chance with a probability below 1e-20.
    """
    config = replace(WIDE, tied_head=tied, dropout=0.0)
    rng = np.random.default_rng(seed)
    ids, targets = rng.integers(0, config.vocab, (2, 4, 50))
    logits = transformer(ids, init_params(config, seed=seed), config)
    assert abs(float(cross_entropy(logits, targets)) / math.log(config.vocab) - 1) < 0.03


# --------------------------------------------------------------------------------------- the tree


@FEW
@given(config=any_configs())
def test_a_tree_is_its_leaves(config: ModelConfig) -> None:
    """The dotted paths of the leaves build the same tree back, in the same order."""
    tree = init_params(config, seed=0)
    again = tree_from_leaves(dict(leaves(tree)))
    assert [path for path, _ in leaves(again)] == [path for path, _ in leaves(tree)]
    assert isinstance(again["blocks"], list)
    assert len(again["blocks"]) == config.n_layers
    assert all(a is b for (_, a), (_, b) in zip(leaves(again), leaves(tree), strict=True))


def test_more_than_ten_blocks_keep_their_order() -> None:
    """Block 10 comes after block 9, not after block 1."""
    flat = {f"blocks.{i}.mlp.b_1": np.array(i) for i in range(12)}
    assert [int(block["mlp"]["b_1"]) for block in tree_from_leaves(flat)["blocks"]] == list(range(12))


@FEW
@given(config=any_configs())
def test_mapping_keeps_the_form(config: ModelConfig) -> None:
    """A function of several trees is applied where they have the same path."""
    tree = init_params(config, seed=1)
    doubled = map_tree(lambda a, b: a + b, tree, tree)
    for (path, array), (same, twice) in zip(leaves(tree), leaves(doubled), strict=True):
        assert path == same
        np.testing.assert_array_equal(twice, 2 * array)


def test_a_missing_part_is_named() -> None:
    """A tree that lacks a part is refused with the path."""
    params = tutorial_000_params()
    del params["blocks"][1]["mlp"]["b_2"]
    with pytest.raises(ValueError, match=r"transformer: the config asks for blocks\.1\.mlp\.b_2, which params lack"):
        check_params("transformer", params, parameter_shapes(TINY))


def test_a_part_too_many_is_named() -> None:
    """A tree that has a part which nobody asks for is refused with the path: it would be ignored in silence."""
    params = tutorial_000_params()
    params["blocks"][0]["attention"]["w_o"] = np.zeros((8, 8))
    with pytest.raises(ValueError, match=r"params have blocks\.0\.attention\.w_o, which the config does not ask for"):
        check_params("transformer", params, parameter_shapes(TINY))


def test_a_wrong_shape_is_named() -> None:
    """A part of another shape is refused with the path and both shapes."""
    params = tutorial_000_params()
    params["output_head"]["b"] = np.zeros(1)
    with pytest.raises(TypeError, match=r"params\.output_head\.b must have shape \(10,\), got \(1,\)"):
        check_params("transformer", params, parameter_shapes(TINY))


# ------------------------------------------------------------------------------------------- configs


@FEW
@given(config=any_configs())
def test_a_config_survives_json(config: ModelConfig) -> None:
    """What is written as JSON is read back as the same config, variant types and all."""
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_json(name: str) -> None:
    """The two tutorials' configs survive JSON to the last digit."""
    assert from_json(json.loads(json.dumps(to_json(PRESETS[name])))) == PRESETS[name]


def test_a_variant_is_an_object_with_its_type() -> None:
    """In JSON a variant type is an object whose `type` says which."""
    data = to_json(MINI)
    assert data["positions"] == {"type": "Sinusoidal", "base": 10000.0}
    assert data["norm"] == {"type": "LayerNorm", "eps": 1e-5, "variant": "standard", "affine": True}
    assert list(data) == [field.name for field in fields(ModelConfig)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"d_modle": 8}, "unknown fields ['d_modle']"),
        ({"vocab": None}, "vocab must be a whole number"),
        ({"positions": {"base": 1.0}}, "not a config"),
        ({"positions": {"type": "Rotary"}}, "not a config"),
        ({"norm": {"type": "LayerNorm", "epsilon": 1.0}}, "not a config"),
        ({"norm": 3}, "not a config"),
    ],
)
def test_foreign_json_is_refused(change: dict, words: str) -> None:
    """JSON that is no config is a ValueError that says what is wrong."""
    with pytest.raises(ValueError, match="ModelConfig") as refused:
        from_json({**to_json(TINY), **change})
    assert words in str(refused.value)


def test_a_missing_field_is_refused() -> None:
    """JSON that lacks a size is a ValueError that names it."""
    data = to_json(TINY)
    del data["d_ff"]
    with pytest.raises(ValueError, match="d_ff"):
        from_json(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_heads": 3}, "d_model must be divisible by n_heads, got 8 and 3; choose n_heads among 1, 2, 4, 8"),
        ({"vocab": 0}, "vocab must be a whole number of at least 1, got 0"),
        ({"n_layers": -1}, "n_layers must be a whole number of at least 0, got -1"),
        ({"d_ff": 2.5}, "d_ff must be a whole number of at least 1, got 2.5"),
        ({"max_len": True}, "max_len must be a whole number"),
        ({"dropout": 1.0}, "dropout must lie in [0, 1), got 1.0"),
        ({"dropout": float("nan")}, "dropout must lie in [0, 1)"),
        ({"embedding_scale": 0.0}, "embedding_scale must be finite and not 0"),
        ({"embedding_scale": float("inf")}, "embedding_scale must be finite and not 0"),
        ({"norm_placement": "sandwich"}, "norm_placement must be one of pre, post, got 'sandwich'"),
        ({"activation": "swish"}, "activation must be one of relu, gelu, gelu_tanh, got 'swish'"),
        ({"norm": LayerNorm(variant="rms")}, "norm.variant must be one of"),
        ({"norm": LayerNorm(eps=-1.0)}, "norm.eps must not be negative"),
        ({"norm": None}, "norm must be a LayerNorm"),
        ({"positions": "sinusoidal"}, "positions must be Sinusoidal, Learned or NoPositions"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict, words: str) -> None:
    """A config that cannot be built is a ValueError that says the rule, what came, and what would do."""
    with pytest.raises(ValueError, match="ModelConfig") as refused:
        replace(TINY, **change)
    assert words in str(refused.value)
