"""An `nn.Module` as a subject: what is mapped, what is refused, and in which words."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import reference.numpy
from reference.config import ModelConfig
from reference.parameters import block_shapes, leaves
from spec_tests import check
from spec_tests.judge import Mismatch
from spec_tests.meta.test_kit_gradients import no_skipping
from spec_tests.strategies import normal_tree
from spec_tests.subjects.modules import from_module
from spec_tests.subjects.subject import Subject

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


# ----------------------------------------------------------------------------------------------- gradients


def gradients(component, function, cotangent, *args, **options):
    """Give the gradients that autograd finds of a function in a plain file, and those of the reference."""
    subject = Subject(SimpleNamespace(**{component: function}), name="mine")
    assert subject.by_autograd(f"{component}_vjp"), "whatever the file says of its arrays"
    with no_skipping():
        got = subject.call(f"{component}_vjp", cotangent, *args, **options)
    return got, vars(reference.numpy)[f"{component}_vjp"](cotangent, *args, **options)


def agree(got, should):
    """Hold gradients against those that they should be."""
    for (path, gradient), (_, wanted) in zip(leaves(list(got)), leaves(list(should)), strict=True):
        assert (gradient is None) == (wanted is None), path
        if wanted is not None:
            np.testing.assert_allclose(gradient, wanted, rtol=1e-9, atol=1e-12, err_msg=path)


@pytest.mark.parametrize(
    "weights", [HEAD, {"weight": lambda w: w.mT, "bias": lambda b, w: (0 * w[0]).clone() if b is None else b}]
)
@pytest.mark.parametrize("bias", [B, None])
def test_gradients_reach_the_weights(weights, bias):
    """Through a transpose, a function of the arguments and a bias that is not there."""
    agree(
        *gradients("output_head", from_module("output_head", linear, weights=weights), np.outer(X[:, 0], B), X, W, bias)
    )


def test_gradients_go_through_a_packed_projection():
    """Each part gets its own gradient, the mask none; an absent bias among them none."""
    from spec_tests.subjects import torch_nn

    generator = np.random.default_rng(5)
    x, w_q, w_k, w_v, w_o, cotangent = generator.normal(size=(6, 4, 4))
    for options in ({"b_v": x[0]}, {"b_k": x[1], "context": w_q[:3]}, {"mask": np.tri(4, dtype=bool)}):
        args = (cotangent, x, w_q, w_k, w_v, w_o)
        agree(*gradients("multi_head_attention", torch_nn.multi_head_attention, *args, n_heads=2, **options))


def test_gradients_of_a_tree_reach_every_leaf():
    """A module of many parts is differentiated with respect to all of them."""
    from spec_tests.subjects import torch_nn

    config = ModelConfig(vocab=5, d_model=4, n_heads=2, n_layers=1, d_ff=6, max_len=4, attention_bias=True)
    params = normal_tree(np.random.default_rng(7), block_shapes(config))
    x, cotangent = np.random.default_rng(8).normal(size=(2, 3, 4))
    agree(*gradients("transformer_block", torch_nn.transformer_block, cotangent, x, params, config))


class Tied(nn.Module):
    """A feed-forward network whose two maps are one matrix, as far as PyTorch is concerned."""

    def __init__(self, d_model, activation):
        super().__init__()
        self.activation = getattr(torch, activation)
        self.up = nn.Linear(d_model, d_model)
        self.down = nn.Linear(d_model, d_model)
        self.down.weight = self.up.weight

    def forward(self, x):
        """Run both."""
        return self.down(self.activation(self.up(x)))


@pytest.mark.parametrize(
    ("weights", "to_w_1", "to_w_2"),
    [
        ({"up.weight": lambda w_1, w_2: (3 * w_1 + w_2).T / 4}, 0.75, 0.25),
        ({"up.weight": "w_1.T", "down.weight": "w_2.T"}, 0.0, 1.0),  # as when it is loaded, the last one counts
    ],
)
def test_a_parameter_of_two_names_has_one_gradient(weights, to_w_1, to_w_2):
    """It sums what comes from both places, whether one of its names is mapped or both."""
    tied = from_module("feed_forward", Tied, weights={**weights, "up.bias": "b_1", "down.bias": "b_2"})
    w, b_1, b_2, x, cotangent = np.random.default_rng(9).normal(size=(5, 3, 3))
    args = (cotangent, x, w, b_1[0], w, b_2[0])
    got, should = gradients("feed_forward", tied, *args, activation="relu")
    dx, d_w_1, d_b_1, d_w_2, d_b_2 = should
    agree(got, (dx, to_w_1 * (d_w_1 + d_w_2), d_b_1, to_w_2 * (d_w_1 + d_w_2), d_b_2))


def test_a_module_for_use_only_has_no_gradient():
    """A module that runs without grad is said to."""

    class Head(nn.Linear):
        def __init__(self, d_model, vocab):
            super().__init__(d_model, vocab)

        @torch.no_grad()
        def forward(self, x):
            return super().forward(x)

    with pytest.raises(Mismatch, match="no gradient flows from the result"):
        gradients("output_head", from_module("output_head", Head, weights=HEAD), np.outer(X[:, 0], B), X, W, B)
