"""What people get wrong about layer normalisation."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference.numpy import layer_norm
from spec_tests.pitfalls.pitfall import Equivalence, Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as

Statistics = Callable[[np.ndarray, float, str], tuple[Any, Any]]


def norm_by(statistics: Statistics) -> Function:
    """Make a layer norm of a function that gives mean and divisor of (x, eps, variant)."""

    @as_strict_as(layer_norm)
    def norm(x, gamma, beta, *, eps=1e-5, variant="standard"):
        with np.errstate(all="ignore"):
            mean, divisor = statistics(x, eps, variant)
            y = (x - mean) / divisor
        return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)

    return norm


def mean_and_std(x, *, axis: Any = -1, ddof=0):
    """Give mean and deviation; that of a single number has no n - 1 and is NaN."""
    std = x.std(axis=axis, keepdims=True, ddof=ddof) if x.shape[-1] > ddof else np.full((*x.shape[:-1], 1), np.nan)
    return x.mean(axis=axis, keepdims=True), std.astype(x.dtype)


def with_eps(std, eps, variant):
    """Put eps where the variant has it."""
    return np.sqrt(std**2 + eps) if variant == "standard" else std + eps


def _unbiased(x, eps, variant):
    mean, std = mean_and_std(x, ddof=1)
    return mean, with_eps(std, eps, variant)


def _eps_outside(x, eps, variant):
    mean, std = mean_and_std(x)
    return mean, std + eps


def _over_the_sequence(x, eps, variant):
    mean, std = mean_and_std(x, axis=-2 if x.ndim > 1 else -1)
    return mean, with_eps(std, eps, variant)


def _over_tokens_and_channels(x, eps, variant):
    mean, std = mean_and_std(x, axis=(-2, -1) if x.ndim > 1 else -1)
    return mean, with_eps(std, eps, variant)


def _one_pass(x, eps, variant):
    mean = x.mean(axis=-1, keepdims=True)
    return mean, np.sqrt((x**2).mean(axis=-1, keepdims=True) - mean**2 + eps)


def _no_eps(x, eps, variant):
    return mean_and_std(x)


def _variance(x, eps, variant):
    mean, std = mean_and_std(x)
    return mean, std**2 + eps


def _not_centred(x, eps, variant):
    return 0, np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def _eps_of(change: Callable[[float], float]) -> Callable[[Function], Function]:
    """Build on a layer norm one that has `change(eps)` for its eps."""

    def around(right):
        @as_strict_as(right)
        def norm(x, gamma, beta, *, eps=1e-5, variant="standard"):
            return right(x, gamma, beta, eps=change(eps), variant=variant)

        return norm

    return around


@as_strict_as(layer_norm)
def _in_half_precision(x, gamma, beta, *, eps=1e-12, variant="standard"):
    mean, std = mean_and_std(x)
    with np.errstate(all="ignore"):
        y = (x - mean) / with_eps(std, x.dtype.type(eps), variant)
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


def _affine_missing(right):
    def norm(x, gamma, beta, **options):
        right(x, gamma, beta, **options)
        return right(x, None, None, **options)

    return norm


def _gain_is_an_offset_from_1(right):
    def norm(x, gamma, beta, **options):
        return right(x, None if gamma is None else 1 + gamma, beta, **options)

    return norm


@as_strict_as(layer_norm)
def _in_place(x, gamma, beta, *, eps=1e-5, variant="standard"):
    mean, std = mean_and_std(x, ddof=int(variant.startswith("unbiased")))
    x -= mean
    x /= with_eps(std, eps, variant)
    if gamma is not None:
        x *= gamma
    if beta is not None:
        x += beta
    return x


PITFALLS = [
    Pitfall(
        id="layer_norm.unbiased_std",
        catalogue=("components/ln_unbiased_std",),
        sources=(
            "https://github.com/harvardnlp/annotated-transformer/pull/119",
            "https://github.com/codertimo/BERT-pytorch/issues/30",
            "https://github.com/hyunwoongko/transformer/issues/7",
        ),
        functions={"layer_norm": norm_by(_unbiased)},
        does="The variance divides by n - 1, as torch.var and torch.std do unless told otherwise; it should by n.",
        shows="Every vector is too short by sqrt((n - 1) / n): 13 % at a width of 4, and 0.1 % at 512.",
        mend="Divide by n: correction=0 in torch, ddof=0 in NumPy.",
        visibility="silent",
        caught_by=(
            "layer_norm.every_row_has_variance_var_over_var_plus_eps",
            "layer_norm.eps_outside_the_root_gives_variance_var_over_std_plus_eps_squared",
        ),
    ),
    Pitfall(
        id="layer_norm.eps_outside_the_root",
        catalogue=("components/ln_eps_outside_sqrt",),
        sources=(
            "https://github.com/codertimo/BERT-pytorch/issues/30",
            "https://github.com/hkproj/pytorch-transformer/pull/31",
            "https://github.com/hyunwoongko/transformer/issues/7",
        ),
        functions={"layer_norm": norm_by(_eps_outside)},
        does="eps is added to the deviation; it should be added to the variance, under the root.",
        shows="Nearly constant vectors come out longer: sqrt(var) / (sqrt(var) + eps) is not sqrt(var / (var + eps)).",
        mend="Divide by sqrt(var + eps), or declare the variant std_plus_eps.",
        visibility="silent",
        caught_by=(
            "layer_norm.every_row_has_variance_var_over_var_plus_eps",
            "layer_norm.eps_is_1e_5_unless_given",
            "layer_norm.scaling_a_row_is_scaling_eps_by_the_square",
        ),
    ),
    Pitfall(
        id="layer_norm.over_the_sequence",
        catalogue=("components/ln_over_sequence_axis",),
        sources=(
            "https://github.com/jadore801120/attention-is-all-you-need-pytorch/pull/17",
            "https://github.com/OpenNMT/OpenNMT-tf/pull/6",
        ),
        functions={"layer_norm": norm_by(_over_the_sequence)},
        does="Mean and variance are taken over the tokens of each channel; they belong to the channels of each token.",
        shows="A token's vector changes with the other tokens, later ones too, and its mean is not 0.",
        mend="Take mean and variance over the last axis.",
        visibility="silent",
        caught_by=(
            "layer_norm.every_row_has_mean_0",
            "layer_norm.each_row_is_normalised_for_itself",
            "layer_norm.nan_spoils_its_own_row_only",
        ),
    ),
    Pitfall(
        id="layer_norm.over_tokens_and_channels",
        catalogue=("components/ln_over_all_trailing_axes",),
        sources=(
            "https://github.com/Qualcomm-AI-research/geometric-algebra-transformer/pull/8",
            "https://github.com/patrick-kidger/equinox/pull/471",
            "https://github.com/tensorpack/tensorpack/issues/1482",
            "https://github.com/reczoo/FuxiCTR/issues/23",
        ),
        functions={"layer_norm": norm_by(_over_tokens_and_channels)},
        does="Mean and variance are shared by all tokens of a sequence; each token should have its own.",
        shows="A token's vector changes with the other tokens, padding among them, and its mean is not 0.",
        mend="Normalise over the last axis alone: normalized_shape=d_model.",
        visibility="silent",
        caught_by=(
            "layer_norm.every_row_has_mean_0",
            "layer_norm.each_row_is_normalised_for_itself",
            "layer_norm.nan_spoils_its_own_row_only",
        ),
    ),
    Pitfall(
        id="layer_norm.eps_hardcoded",
        catalogue=("components/ln_eps_value_mismatch",),
        sources=(
            "https://github.com/huggingface/transformers/pull/585",
            "https://github.com/huggingface/candle/pull/271",
            "https://github.com/OpenNMT/OpenNMT-py/pull/2446",
            "https://github.com/mindspore-lab/mindone/pull/225",
        ),
        around={"layer_norm": _eps_of(lambda eps: 1e-12)},
        does="eps is 1e-12 whatever is asked for.",
        shows="Nearly constant vectors come out too long; those of unit variance differ by half of eps only.",
        mend="Use the eps that is given, 1e-5 by default; weights belong to the eps that they were trained with.",
        visibility="silent",
        caught_by=(
            "layer_norm.eps_is_1e_5_unless_given",
            "layer_norm.every_row_has_variance_var_over_var_plus_eps",
            "layer_norm.eps_outside_the_root_gives_variance_var_over_std_plus_eps_squared",
        ),
    ),
    Pitfall(
        id="layer_norm.eps_clamped",
        catalogue=("systems/eps_clamped_for_fp16",),
        sources=("https://github.com/nntrainer/nntrainer/pull/4318",),
        around={"layer_norm": _eps_of(lambda eps: max(eps, 1e-4))},
        does="eps is raised to 1e-4 where it is smaller, so that float16 can hold it.",
        shows="Vectors whose variance is not far above 1e-4 come out too short: by 16 % at 2e-4, and by 57 % at 1e-5.",
        mend="Take statistics and eps in float32, and cast the result.",
        visibility="silent",
        caught_by=("layer_norm.eps_is_1e_5_unless_given",),
    ),
    Pitfall(
        id="layer_norm.eps_underflows",
        catalogue=("components/ln_eps_underflows_fp16",),
        sources=(
            "https://github.com/deepspeedai/DeepSpeed/issues/581",
            "https://github.com/tensorflow/tensorflow/pull/24979",
        ),
        functions={"layer_norm": _in_half_precision},
        dtype="float16",
        does="eps is 1e-12 and added in float16, where it is 0.",
        shows="A constant vector, such as one of padding, is 0 / 0 = NaN.",
        mend="Take statistics and eps in float32, and cast the result.",
        visibility="silent",
        caught_by=("layer_norm.a_constant_row_gives_beta",),
    ),
    Pitfall(
        id="layer_norm.one_pass_variance",
        catalogue=("components/ln_one_pass_variance",),
        sources=(
            "https://github.com/tracel-ai/burn/issues/5607",
            "https://github.com/openvinotoolkit/openvino/pull/36587",
            "https://github.com/tenstorrent/tt-metal/issues/45968",
        ),
        functions={"layer_norm": norm_by(_one_pass)},
        does="The variance is the mean of the squares less the square of the mean.",
        shows="Where the mean is large against the deviation its digits cancel: variances of 0, or below 0 and NaN.",
        mend="Subtract the mean first and then take the mean of the squares, or use Welford's sums.",
        visibility="silent",
        caught_by=("layer_norm.adding_a_constant_to_a_row_changes_nothing",),
    ),
    Pitfall(
        id="layer_norm.affine_missing",
        catalogue=("components/ln_affine_missing",),
        sources=("https://github.com/TransformerLensOrg/TransformerLens/pull/1077",),
        around={"layer_norm": _affine_missing},
        does="gamma and beta are not applied.",
        shows="Nothing changes when gamma or beta does, and neither gets a gradient; at 1 and 0 nobody sees it.",
        mend="Return gamma * normed + beta.",
        visibility="silent",
        caught_by=(
            "layer_norm.gamma_multiplies_and_beta_is_added_channel_by_channel",
            "layer_norm.gain_and_bias_act_with_eps_outside_the_root",
            "layer_norm.a_constant_row_gives_beta",
        ),
    ),
    Pitfall(
        id="layer_norm.no_eps",
        catalogue=(),
        sources=(),
        functions={"layer_norm": norm_by(_no_eps)},
        does="There is no eps: the centred vector is divided by its deviation alone.",
        shows="A constant vector is 0 / 0 = NaN, and nearly constant ones come out too long.",
        mend="Divide by sqrt(var + eps).",
        visibility="silent",
        caught_by=(
            "layer_norm.a_constant_row_gives_beta",
            "layer_norm.every_row_has_variance_var_over_var_plus_eps",
            "layer_norm.a_constant_row_gives_zeros_with_eps_outside_the_root",
        ),
    ),
    Pitfall(
        id="layer_norm.divides_by_the_variance",
        catalogue=(),
        sources=(),
        functions={"layer_norm": norm_by(_variance)},
        does="The centred vector is divided by the variance: the root is missing.",
        shows="Vectors of small variance are blown up, and those of large variance nearly vanish.",
        mend="Divide by sqrt(var + eps).",
        visibility="silent",
        caught_by=(
            "layer_norm.every_row_has_variance_var_over_var_plus_eps",
            "layer_norm.scaling_a_row_is_scaling_eps_by_the_square",
        ),
    ),
    Pitfall(
        id="layer_norm.not_centred",
        catalogue=(),
        sources=("https://arxiv.org/abs/1910.07467",),
        functions={"layer_norm": norm_by(_not_centred)},
        does="The mean is not subtracted: this is root mean square normalisation.",
        shows="A number added to all channels changes the result, whose mean is not 0.",
        mend="Subtract the mean before dividing.",
        visibility="silent",
        caught_by=(
            "layer_norm.every_row_has_mean_0",
            "layer_norm.adding_a_constant_to_a_row_changes_nothing",
            "layer_norm.a_constant_row_gives_beta",
        ),
    ),
    Pitfall(
        id="layer_norm.gain_is_an_offset_from_1",
        catalogue=(),
        sources=(),
        around={"layer_norm": _gain_is_an_offset_from_1},
        does="The gain is taken for an offset from 1: the result is (1 + gamma) * normed + beta.",
        shows="A gamma of ones doubles the result, and one of zeros does not silence it.",
        mend="Multiply by gamma itself; only models such as Gemma store gamma - 1.",
        visibility="silent",
        caught_by=(
            "layer_norm.gamma_multiplies_and_beta_is_added_channel_by_channel",
            "layer_norm.gain_and_bias_act_with_eps_outside_the_root",
            "layer_norm.a_part_that_is_none_is_left_out",
        ),
    ),
    Pitfall(
        id="layer_norm.in_place",
        catalogue=(),
        sources=(),
        functions={"layer_norm": _in_place},
        does="The result is written into the input.",
        shows="The result is right and the input is lost: a residual connection adds the normed vector instead of x.",
        mend="Make a new array: x - mean, not x -= mean; .float() and .to() copy only where the dtype differs.",
        visibility="silent",
        caught_by=("layer_norm.arguments_are_left_as_they_were",),
    ),
]
"""Each is written as one that refuses bad input, so that only the mistake itself is there to be found."""


def _twice(right):
    def norm(x, gamma, beta, **options):
        return right(right(x, None, None, **options), gamma, beta, **options)

    return norm


@as_strict_as(layer_norm)
def _as_a_projection(x, gamma, beta, *, eps=1e-5, variant="standard"):
    n = x.shape[-1]
    centred = x @ (np.eye(n) - 1 / n).astype(x.dtype)
    length = np.sqrt((centred**2).sum(axis=-1, keepdims=True))
    if variant == "standard":
        y = centred * n**0.5 / np.sqrt(length**2 + n * eps)
    else:
        y = centred / (length / (n if variant == "std_plus_eps" else n - 1) ** 0.5 + eps)
    return y * (1 if gamma is None else gamma) + (0 if beta is None else beta)


EQUIVALENCES = [
    Equivalence(
        id="layer_norm.twice",
        catalogue=("equivalences/norm_idempotent",),
        sources=("https://github.com/ggml-org/llama.cpp/pull/1925",),
        around={"layer_norm": _twice},
        says="A layer norm of a layer norm is one layer norm.",
        condition="without gain and bias in between, and as eps goes to 0: the second scales by 1 + eps/2 (1/var - 1)",
        outside=(
            "layer_norm.*variance_var*",
            "layer_norm.the_unbiased_deviation_divides_by_one_less",
            "layer_norm.eps_is_1e_5_unless_given",
            "layer_norm.scaling_a_row_is_scaling*",
            "layer_norm.agrees_with_the_reference.*",
        ),
    ),
    Equivalence(
        id="layer_norm.as_a_projection",
        catalogue=(),
        sources=(),
        functions={"layer_norm": _as_a_projection},
        says="Centring is a product with I - 1/n, and what is centred is divided by sqrt(length² + n eps) / sqrt(n).",
    ),
]
