"""An `nn.Module` as a subject: what is mapped, what is refused, and in which words."""

import numpy as np
import pytest
import torch
from torch import nn

import reference.numpy
from spec_tests import check
from spec_tests.subjects.modules import from_module

X = np.arange(6.0).reshape(2, 3) / 4 - 1
W = np.array([[1.0, -2.0, 0.5, 3.0], [0.25, 1.0, -1.0, 2.0], [2.0, 0.0, 1.0, -1.0]])
B = np.array([1.0, 2.0, 3.0, 4.0])


def linear(d_model, vocab):
    """Build the module of an output head."""
    return nn.Linear(d_model, vocab)


HEAD = {"weight": "w.T", "bias": "b"}


def test_a_module_computes_with_the_weights_it_is_given():
    """Keys of the state_dict take what the expressions say, in float64."""
    head = from_module("output_head", linear, weights=HEAD)
    y = head(X, W, B)
    assert y.dtype == torch.float64
    np.testing.assert_allclose(y.detach().numpy(), reference.numpy.output_head(X, W, B), rtol=1e-14)


def test_an_absent_bias_is_zeros():
    """A module that always has a bias does what the contract says without one."""
    head = from_module("output_head", linear, weights=HEAD)
    np.testing.assert_allclose(head(X, W).detach().numpy(), X @ W, rtol=1e-14)


def test_a_weight_may_be_computed():
    """A function gets the arguments it names."""
    head = from_module("output_head", linear, weights={"weight": lambda w: w.mT, "bias": lambda b, w: 0 * w[0] + b})
    np.testing.assert_allclose(head(X, W, B).detach().numpy(), X @ W + B, rtol=1e-14)


def test_the_module_is_in_eval_mode():
    """Dropout in a module is off."""
    head = from_module(
        "output_head",
        lambda d_model, vocab: nn.Sequential(nn.Dropout(0.9), nn.Linear(d_model, vocab)),
        weights={"1.weight": "w.T", "1.bias": "b"},
    )
    np.testing.assert_allclose(head(X, W, B).detach().numpy(), X @ W + B, rtol=1e-14)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({**HEAD, "scale": "b"}, r"no 'scale' in its state_dict, which has \['bias', 'weight'\]"),
        ({"weight": "w.T"}, "nothing is given for the module's parameter 'bias'"),
        (
            {**HEAD, "weight": "w"},
            r"'weight' has shape \(4, 3\) in the module, and 'w' gives \(3, 4\); nn.Linear keeps",
        ),
        ({**HEAD, "weight": "w_q.T"}, "'w_q' is no argument of output_head; those are x, w, b"),
    ],
)
def test_a_mapping_that_does_not_fit_is_said_to(weights, said):
    """Keys too many, parameters too few, other shapes and unknown names are errors that name both sides."""
    with pytest.raises(ValueError, match=said):
        from_module("output_head", linear, weights=weights)(X, W)


def test_what_the_module_does_not_take_is_unsupported():
    """An option that nothing consumes is not ignored."""
    norm = from_module(
        "layer_norm",
        lambda d_model, eps: nn.LayerNorm(d_model, eps),
        weights={"weight": "gamma", "bias": "beta"},
    )
    np.testing.assert_allclose(
        norm(X, None, None, eps=0.1).detach().numpy(), reference.numpy.layer_norm(X, None, None, eps=0.1), rtol=1e-12
    )
    with pytest.raises(NotImplementedError, match="takes no variant"):
        norm(X, None, None, variant="std_plus_eps")


def test_inputs_that_disagree_are_refused():
    """An axis has one size in all arrays, and arrays have the axes that the contract names."""
    head = from_module("output_head", linear, weights=HEAD)
    with pytest.raises(ValueError, match="d_model must be the same everywhere, got 3 and, in w, 2"):
        head(X, W[:2], B)
    with pytest.raises(ValueError, match="x must have the axes"):
        head(X[0], W, B)


def test_a_packed_projection_with_parts_absent():
    """Parts stand one after the other along the first axis; an absent bias among them is zeros."""
    from spec_tests.subjects import torch_nn

    d_model = 4
    generator = np.random.default_rng(5)
    x, *weights = generator.normal(size=(5, 3, d_model, d_model))
    b_v = generator.normal(size=d_model)
    for options in ({"b_v": b_v}, {"causal": True}, {"mask": np.tri(4, dtype=bool)}, {"context": x[:, :3]}):
        tensors = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in options.items()}
        w = [w[0] for w in weights]
        got = torch_nn.multi_head_attention(*map(torch.from_numpy, (x, *w)), n_heads=2, **tensors)
        should = reference.numpy.multi_head_attention(x, *w, n_heads=2, **options)
        np.testing.assert_allclose(got.detach().numpy(), should, rtol=1e-10, atol=1e-12)


def test_a_module_can_be_checked_from_python():
    """A namespace with a module in it is a subject like another."""
    report = check(
        {"output_head": from_module("output_head", linear, weights=HEAD)},
        properties=["output_head.agrees*"],
        max_examples=5,
    )
    assert report.passed, str(report)
