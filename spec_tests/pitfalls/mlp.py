"""What people get wrong about activations, dropout and the feed-forward network."""

import math
from collections.abc import Callable

import numpy as np

from reference.numpy import dropout, feed_forward, gelu, relu
from spec_tests.pitfalls.pitfall import Equivalence, Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as

C = math.sqrt(2 / math.pi)


def _always(form: str) -> Callable[[Function], Function]:
    """Build on gelu one that has one form only."""

    def around(right):
        @as_strict_as(right)
        def only(x, *, approximate="none"):
            return right(x, approximate=form)

        return only

    return around


@as_strict_as(gelu)
def _quick(x, *, approximate="none"):
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-1.702 * x)))


@as_strict_as(gelu)
def _without_x(x, *, approximate="none"):
    if approximate == "none":
        return gelu(x)
    return np.asarray(0.5 * (1 + np.tanh(C * (x + 0.044715 * x**3))))


@as_strict_as(gelu)
def _without_the_cube(x, *, approximate="none"):
    return np.asarray(x / 2 * (1 + np.tanh(C * x))) if approximate == "tanh" else gelu(x)


@as_strict_as(gelu)
def _without_the_root_of_2(x, *, approximate="none"):
    if approximate == "tanh":
        return gelu(x, approximate="tanh")
    return np.vectorize(lambda number: number / 2 * (1 + math.erf(number)), otypes=[x.dtype])(x)


@as_strict_as(dropout)
def _not_scaled(x, keep, *, rate):
    return np.asarray(x * keep)


@as_strict_as(dropout)
def _divided_by_the_rate(x, keep, *, rate):
    return np.asarray(x * keep / (rate or 1.0))


def _mask_means_drop(right):
    return lambda x, keep, *, rate: right(x, ~keep, rate=rate)


def network_of(middle: Callable, *, after: Callable = lambda out, activation: out) -> Function:
    """Make a network of what stands in the middle, `middle(hidden, activation)`, and what is done to its output."""

    @as_strict_as(feed_forward)
    def network(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
        hidden = middle(x @ w_1 + (0 if b_1 is None else b_1), activation)
        hidden = hidden if keep is None else dropout(hidden, keep, rate=rate)
        return after(hidden @ w_2 + (0 if b_2 is None else b_2), activation)

    return network


def activate(hidden, activation):
    """Bend the hidden values as `activation` says."""
    forms = {"relu": relu, "gelu": gelu, "gelu_tanh": lambda h: gelu(h, approximate="tanh")}
    return forms[activation](hidden)


def straight(hidden, activation):
    """Bend nothing."""
    return hidden


def _erf_for_tanh_inside(right):
    def network(x, w_1, b_1, w_2, b_2, *, activation="gelu", **options):
        activation = "gelu" if activation == "gelu_tanh" else activation
        return right(x, w_1, b_1, w_2, b_2, activation=activation, **options)

    return network


PITFALLS = [
    Pitfall(
        id="gelu.tanh_for_erf",
        catalogue=("components/gelu_tanh_vs_erf",),
        sources=(
            "https://github.com/kyutai-labs/pocket-tts/pull/278",
            "https://github.com/chelsea0x3b/dfdx/issues/804",
            "https://github.com/CyberZHG/keras-bert/issues/129",
            "https://github.com/huggingface/transformers/pull/29402",
            "https://github.com/huggingface/candle/pull/900",
        ),
        around={"gelu": _always("tanh")},
        does="The tanh form stands in for x Phi(x), which was asked for.",
        shows="Results differ by up to 4.7e-4, near |x| = 2.7; text and loss look normal.",
        mend="Use the form that the weights were trained with: x Phi(x) is 0.5 x (1 + erf(x / sqrt 2)).",
        visibility="silent",
        caught_by=("gelu.gelu_weighs_x_by_the_normal_probability", "gelu.the_two_forms_part_near_2_7"),
    ),
    Pitfall(
        id="gelu.erf_for_tanh",
        catalogue=(
            "components/gelu_tanh_vs_erf",
            "systems/gpt2_gelu_exact_instead_of_tanh",
        ),
        sources=(
            "https://github.com/kyutai-labs/pocket-tts/pull/278",
            "https://github.com/chelsea0x3b/dfdx/issues/804",
            "https://github.com/CyberZHG/keras-bert/issues/129",
            "https://github.com/huggingface/transformers/pull/29402",
            "https://github.com/huggingface/candle/pull/900",
            "https://github.com/karpathy/nanoGPT/pull/274",
            "https://github.com/microsoft/onnxruntime/pull/2270",
            "https://github.com/apache/tvm/pull/14814",
        ),
        around={"gelu": _always("none")},
        does="x Phi(x) stands in for the tanh form, which was asked for.",
        shows="Results differ by up to 4.7e-4, near |x| = 2.7, which grows with depth; text and loss look normal.",
        mend="Use the form that the weights were trained with: GPT-2's is the tanh form.",
        visibility="silent",
        caught_by=("gelu.the_tanh_form_is_the_published_one", "gelu.the_two_forms_part_near_2_7"),
    ),
    Pitfall(
        id="gelu.quick",
        catalogue=("components/gelu_quick_vs_exact",),
        sources=(
            "https://github.com/mlfoundations/open_clip/issues/771",
            "https://github.com/huggingface/pytorch-image-models/issues/1754",
            "https://github.com/RAIVNLab/sugar-crepe/issues/7",
            "https://github.com/mertyg/vision-language-models-are-bows/issues/35",
            "https://github.com/mindspore-lab/mindone/pull/225",
        ),
        functions={"gelu": _quick},
        does="x sigmoid(1.702 x) stands in for both forms.",
        shows="Results differ by up to 0.020, near |x| = 2.3: forty times as much as the two forms do.",
        mend="Use the form that the weights were trained with.",
        visibility="silent",
        caught_by=(
            "gelu.gelu_weighs_x_by_the_normal_probability",
            "gelu.the_tanh_form_is_the_published_one",
            "gelu.the_two_forms_part_near_2_7",
        ),
    ),
    Pitfall(
        id="gelu.tanh_without_x",
        catalogue=("systems/gelu_tanh_missing_factor_x",),
        sources=("https://github.com/tensorflow/tfjs/pull/8224",),
        functions={"gelu": _without_x},
        does="The tanh form lacks its leading x: what is left is about the probability alone.",
        shows="Large numbers give 1, and 0 gives 0.5.",
        mend="Multiply by x: 0.5 x (1 + tanh(...)).",
        visibility="silent",
        caught_by=(
            "gelu.the_tanh_form_is_the_published_one",
            "gelu.the_tanh_form_shares_the_symmetry",
            "gelu.far_from_0_the_tanh_form_is_relu",
        ),
    ),
    Pitfall(
        id="gelu.tanh_without_cube",
        catalogue=(),
        sources=("https://arxiv.org/abs/1606.08415",),
        functions={"gelu": _without_the_cube},
        does="The tanh form lacks 0.044715 x³.",
        shows="Results differ by up to 0.034, near |x| = 2.1.",
        mend="Take tanh of sqrt(2 / pi) (x + 0.044715 x³).",
        visibility="silent",
        caught_by=("gelu.the_tanh_form_is_the_published_one",),
    ),
    Pitfall(
        id="gelu.without_root_of_2",
        catalogue=(),
        sources=(),
        functions={"gelu": _without_the_root_of_2},
        does="erf is taken of x; it should be of x / sqrt 2, as the normal distribution has it.",
        shows="Results differ by up to 0.084, near |x| = 1.2: the bend is too sharp.",
        mend="Take 0.5 x (1 + erf(x / sqrt 2)).",
        visibility="silent",
        caught_by=("gelu.gelu_weighs_x_by_the_normal_probability",),
    ),
    Pitfall(
        id="dropout.not_scaled",
        catalogue=(),
        sources=("https://jmlr.org/papers/v15/srivastava14a.html",),
        functions={"dropout": _not_scaled},
        does="What is kept is not divided by 1 - rate.",
        shows="The expectation of what comes out is too small, so that training and evaluation differ.",
        mend="Divide what is kept by 1 - rate.",
        visibility="training",
        caught_by=("dropout.what_is_kept_is_divided_by_the_share_kept", "dropout.the_expectation_is_what_came_in"),
    ),
    Pitfall(
        id="dropout.divided_by_the_rate",
        catalogue=(),
        sources=(),
        functions={"dropout": _divided_by_the_rate},
        does="What is kept is divided by the rate; it should be by 1 - rate.",
        shows="At a rate of 0.1 the expectation is nine times too large; at 0.5 there is nothing to see.",
        mend="Divide by 1 - rate, the probability of being kept.",
        visibility="training",
        caught_by=("dropout.what_is_kept_is_divided_by_the_share_kept", "dropout.the_expectation_is_what_came_in"),
    ),
    Pitfall(
        id="dropout.keep_read_as_drop",
        catalogue=(),
        sources=(),
        around={"dropout": _mask_means_drop},
        does="The mask is read as what to drop; it says what to keep.",
        shows="What should be kept is 0, and at a rate of 0.1 nine tenths are dropped.",
        mend="Multiply by the mask itself.",
        visibility="training",
        caught_by=(
            "dropout.what_is_dropped_is_0",
            "dropout.what_is_kept_is_divided_by_the_share_kept",
            "dropout.keeping_all_at_rate_0_changes_nothing",
        ),
    ),
    Pitfall(
        id="feed_forward.activation_after_the_second_map",
        catalogue=("components/ffn_activation_after_second_linear",),
        sources=("https://github.com/goruck/nilm/issues/1",),
        functions={"feed_forward": network_of(straight, after=activate)},
        does="The activation acts on the output, f(x W_1 W_2); it should act on the hidden values.",
        shows="With relu the network never gives a negative number, and the hidden width is without use.",
        mend="Bend between the two products: f(x W_1 + b_1) W_2 + b_2.",
        visibility="silent",
        caught_by=(
            "feed_forward.negating_the_second_weights_negates_the_output",
            "feed_forward.its_activation_may_be_relu",
            "feed_forward.it_is_gelu_between_two_linear_maps",
        ),
    ),
    Pitfall(
        id="feed_forward.activation_missing",
        catalogue=("components/ffn_activation_missing",),
        sources=(
            "https://github.com/nutonomy/nuscenes-devkit/issues/728",
            "https://github.com/Nota-NetsPresso/netspresso-trainer/issues/320",
            "https://github.com/graykode/xlnet-Pytorch/issues/16",
        ),
        functions={"feed_forward": network_of(straight)},
        does="There is no activation: the two products are one.",
        shows="Without biases the output of a sum is the sum of the outputs, whatever the width; the model is weak.",
        mend="Bend between the two products: f(x W_1 + b_1) W_2 + b_2.",
        visibility="silent",
        caught_by=(
            "feed_forward.its_activation_may_be_relu",
            "feed_forward.it_is_gelu_between_two_linear_maps",
            "feed_forward.its_activation_may_be_the_tanh_form",
        ),
    ),
    Pitfall(
        id="feed_forward.erf_for_tanh",
        catalogue=("systems/gpt2_gelu_exact_instead_of_tanh",),
        sources=(
            "https://github.com/karpathy/nanoGPT/pull/274",
            "https://github.com/kyutai-labs/pocket-tts/pull/278",
            "https://github.com/microsoft/onnxruntime/pull/2270",
            "https://github.com/apache/tvm/pull/14814",
        ),
        around={"feed_forward": _erf_for_tanh_inside},
        does="The activation gelu_tanh is x Phi(x).",
        shows="Hidden values differ by up to 4.7e-4, which grows with depth; text and loss look normal.",
        mend="Use the tanh form where the config says gelu_tanh; GPT-2's gelu is that form.",
        visibility="silent",
        caught_by=("feed_forward.its_activation_may_be_the_tanh_form",),
    ),
]


@as_strict_as(gelu)
def _factored(x, *, approximate="none"):
    return np.asarray(x / 2 * (1 + np.tanh(C * x * (1 + 0.044715 * x * x)))) if approximate == "tanh" else gelu(x)


@as_strict_as(gelu)
def _by_sigmoid(x, *, approximate="none"):
    if approximate == "none":
        return gelu(x)
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-2 * C * (x + 0.044715 * x**3))))


@as_strict_as(relu)
def _half_the_sum(x):
    return np.asarray((x + np.abs(x)) / 2)


@as_strict_as(feed_forward)
def _biases_as_weights(x, w_1, b_1, w_2, b_2, *, activation="gelu", keep=None, rate=0.0):
    def affine(x, w, b):
        with_1 = np.concatenate([x, np.ones_like(x[..., :1])], axis=-1)
        return with_1 @ np.vstack([w, np.zeros_like(w[:1]) if b is None else b])

    hidden = activate(affine(x, w_1, b_1), activation)
    return affine(hidden if keep is None else dropout(hidden, keep, rate=rate), w_2, b_2)


EQUIVALENCES = [
    Equivalence(
        id="gelu.tanh_factored",
        catalogue=("equivalences/gelu_tanh_factored",),
        sources=("https://github.com/deepspeedai/Megatron-DeepSpeed/issues/84",),
        functions={"gelu": _factored},
        says="tanh(c x (1 + 0.044715 x x)) is tanh(c (x + 0.044715 x³)).",
    ),
    Equivalence(
        id="gelu.tanh_by_sigmoid",
        catalogue=(),
        sources=("https://arxiv.org/abs/1606.08415",),
        functions={"gelu": _by_sigmoid},
        says="(1 + tanh u) / 2 is sigmoid(2 u).",
    ),
    Equivalence(
        id="relu.half_the_sum",
        catalogue=(),
        sources=(),
        functions={"relu": _half_the_sum},
        says="max(0, x) is (x + |x|) / 2.",
    ),
    Equivalence(
        id="feed_forward.biases_as_weights",
        catalogue=(),
        sources=(),
        functions={"feed_forward": _biases_as_weights},
        says="A bias is the row of weights of a channel that is always 1.",
    ),
]
