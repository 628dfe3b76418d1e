"""Subjects in JAX; `test_kit_gradients.py` runs these in a process of their own, for JAX starts threads."""

import jax
import numpy as np
import pytest

import reference.numpy
from reference.parameters import init_params
from spec_tests.meta.test_kit_gradients import (
    CONFIG,
    DY,
    ROOT,
    X,
    check_reproductions,
    general,
    subject,
    two_kinds,  # noqa: F401 (a fixture)
)
from spec_tests.subjects import loading


def test_jax_gets_its_arrays_and_gives_its_gradients():
    """`arrays = "jax"`: arrays of JAX in float64, trees among them, and the gradients of jax.vjp."""
    seen = []

    def layer_norm(x, gamma, beta):
        seen.append((isinstance(x, jax.Array), x.dtype.name))
        return x * gamma

    def transformer(ids, params, config):
        return params["token_embedding"]["table"][ids] @ params["output_head"]["w"]

    mine = subject(arrays="jax", layer_norm=layer_norm, transformer=transformer)
    np.testing.assert_array_equal(mine.layer_norm(X, X[0], None), X * X[0])
    dx, d_gamma, d_beta = mine.layer_norm_vjp(DY, X, X[0], None)
    np.testing.assert_allclose(dx, DY * X[0])
    np.testing.assert_allclose(d_gamma, (DY * X).sum(axis=0))
    assert d_beta is None
    assert set(seen) == {(True, "float64")}
    params = init_params(CONFIG, seed=0)
    (tree,) = mine.transformer_vjp(general(2, 5), np.array([1, 1]), params, CONFIG)
    h = params["token_embedding"]["table"][[1, 1]]
    np.testing.assert_allclose(tree["output_head"]["w"], h.T @ general(2, 5))
    assert not tree["blocks"][0]["mlp"]["w_1"].any()


def test_the_example_in_jax_has_right_gradients():
    """The example is checked by the kit like any other subject."""
    example = loading.load(ROOT / "examples" / "subjects" / "jax_layer_norm.py").subject
    got = example.layer_norm_vjp(DY, X, X[0], X[1], eps=0.1)
    for gradient, should in zip(got, reference.numpy.layer_norm_vjp(DY, X, X[0], X[1], eps=0.1), strict=True):
        np.testing.assert_allclose(gradient, should, rtol=1e-12)


IN_JAX = """
import jax.numpy as jnp

arrays = "jax"

def relu(x):
    return jnp.abs(x)

def transformer_block(x, params, config):
    return x * params["norm_1"]["gamma"] * 1e6
"""


@pytest.mark.usefixtures("two_kinds")
def test_a_wrong_gradient_can_be_reproduced(tmp_path, monkeypatch):
    """The lines of a failure call jax.vjp."""
    lines = [
        ["_, pull_back = jax.vjp(lambda x: subject.relu(x), x)", "got = pull_back(cotangent)"],
        [
            "_, pull_back = jax.vjp(lambda x, params: subject.transformer_block(x, params, config), x, params)",
            "got = pull_back(cotangent)",
        ],
    ]
    check_reproductions(tmp_path, monkeypatch, IN_JAX, lines)
