"""Mistakes in attention, and what only looks like one."""

import math

import numpy as np

import reference.numpy
from reference.numpy import (
    attention_weights,
    causal_mask,
    scaled_dot_product_attention,
    scaled_dot_product_attention_vjp,
    softmax,
)
from spec_tests.pitfalls.pitfall import Equivalence, Pitfall

FOUR = ("attention_weights", "scaled_dot_product_attention", "self_attention", "multi_head_attention")
"""The components in which a mistake about scores, masks or weights can be made."""
ON_TOKENS = ("self_attention", "multi_head_attention")

# ----------------------------------------------------------------------------------- attention, one step at a time


def quietly(function):
    """Let NumPy compute infinities and NaN without a word, as other libraries do."""

    def quiet(*args, **options):
        with np.errstate(all="ignore"):
            return function(*args, **options)

    return quiet


def plain_scores(q, k, scale):
    """Give the scaled dot products."""
    return (q @ k.swapaxes(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)


def masked_with(*, causal_mask=causal_mask, fill=-np.inf):
    """Make the step that hides scores, with another causal mask or another number in the place of -inf."""

    def masked(scores, mask, causal):
        allowed = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
        allowed = allowed & causal_mask(*scores.shape[-2:]) if causal else allowed
        return np.where(allowed, scores, fill)

    return masked


plain_mask = masked_with()


def weights_of(*, scores=plain_scores, masked=plain_mask, normalised=softmax):
    """Make attention weights of three steps, one of which is wrong."""

    @quietly
    def weights(q, k, *, mask=None, bias=None, causal=False, scale=None):
        s = scores(q, k, scale)
        s = s if bias is None else s + bias
        return normalised(masked(s, mask, causal))

    return weights


def attention_of(weights):
    """Make attention of its weights."""

    @quietly
    def attention(q, k, v, *, mask=None, bias=None, causal=False, scale=None):
        return _weighted_mean(weights(q, k, mask=mask, bias=bias, causal=causal, scale=scale), v)

    return attention


def _weighted_mean(weights, v):
    spoilt = ~np.isfinite(v)  # a value of weight 0 has no part even if it is NaN
    seen = (weights != 0).astype(v.dtype) @ spoilt.astype(v.dtype) > 0
    return np.where(seen, np.nan, weights @ np.where(spoilt, 0, v))


def one_head_of(attend):
    """Make self-attention of its attention."""

    def attention(x, w_q, w_k, w_v, *, mask=None, causal=False):
        return attend(x @ w_q, x @ w_k, x @ w_v, mask=mask, causal=causal)

    return attention


def split(x, n_heads):
    """Deal the columns out to the heads."""
    return x.reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).swapaxes(-2, -3)


def merge(heads):
    """Put the heads side by side."""
    *batch, n_heads, seq, d_v = heads.shape
    return heads.swapaxes(-2, -3).reshape(*batch, seq, n_heads * d_v)


def heads_of(
    *, split=split, merge=merge, attend=scaled_dot_product_attention, every_head=lambda mask: mask[..., None, :, :]
):
    """Make multi-head attention with one wrong step."""

    def attention(x, w_q, w_k, w_v, w_o, *, n_heads, b_q=None, b_k=None, b_v=None, b_o=None, context=None,
                  mask=None, causal=False):  # fmt: skip
        context = x if context is None else context
        q, k, v = (
            split(y @ w + (0 if b is None else b), n_heads)
            for y, w, b in ((x, w_q, b_q), (context, w_k, b_k), (context, w_v, b_v))
        )
        merged = merge(attend(q, k, v, mask=None if mask is None else every_head(mask), causal=causal))
        return merged if w_o is None else merged @ w_o + (0 if b_o is None else b_o)

    return attention


def _careful(functions):
    """Refuse what the reference refuses: where a mistake is, it is the only one."""

    def refusing(name, function):
        def careful(*args, **options):
            getattr(reference.numpy, name)(*args, **options)
            return function(*args, **options)

        return careful

    return {name: refusing(name, function) for name, function in functions.items()}


def _four(weights):
    attend = attention_of(weights)
    return _careful(
        {
            "attention_weights": weights,
            "scaled_dot_product_attention": attend,
            "self_attention": one_head_of(attend),
            "multi_head_attention": heads_of(attend=attend),
        }
    )


def _heads(**step):
    return _careful({"multi_head_attention": heads_of(**step)})


def _with_options(change, *names):
    """Make of each function one that is given other options: `change` takes them and gives those instead."""

    def wrap(right):
        def changed(*args, **options):
            return right(*args, **change(**options))

        return changed

    return dict.fromkeys(names, wrap)


def _github(*threads):
    return tuple(f"https://github.com/{thread}" for thread in threads)


# -------------------------------------------------------------------------------------------------------------- scores


def _unscaled(q, k, scale):
    return plain_scores(q, k, 1.0 if scale is None else scale)


def _divided_by_the_scale(q, k, scale):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return q @ k.swapaxes(-1, -2) / scale


def _scaled_twice(q, k, scale):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return plain_scores(q * scale, k, scale)


@quietly
def _scaled_after_the_softmax(q, k, *, mask=None, bias=None, causal=False, scale=None):
    weights = attention_weights(q, k, mask=mask, bias=bias, causal=causal, scale=1.0)
    return weights * (q.shape[-1] ** -0.5 if scale is None else scale)


def _scaled_again_in_every_block(q, k, scale):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    blocks = [q @ k[..., :0, :].swapaxes(-1, -2)]
    for start in range(0, k.shape[-2], 2):
        scale *= math.log2(math.e)  # for powers of 2; it belongs before the loop
        blocks.append(scale * (q @ k[..., start : start + 2, :].swapaxes(-1, -2)))
    return np.concatenate(blocks, axis=-1) * math.log(2)


def _by_d_model(right):
    def attention(x, w_q, *weights, n_heads=1, b_q=None, **options):
        times = math.sqrt(w_q.shape[1] / max(n_heads, 1) / w_q.shape[0])  # of the root of d_k, that of d_model
        heads = {"n_heads": n_heads, "b_q": None if b_q is None else times * b_q} if len(weights) == 3 else {}
        return right(x, times * w_q, *weights, **heads, **options)

    return attention


def _memory_order(right):
    def as_it_lies(array):
        return array.ravel(order="K").reshape(array.shape) if isinstance(array, np.ndarray) else array

    def attention(*args, **options):
        return right(*map(as_it_lies, args), **{name: as_it_lies(value) for name, value in options.items()})

    return attention


SCORES = (
    Pitfall(
        id="scaled_dot_product_attention.unscaled",
        catalogue=("components/attn_scale_missing", "systems/attention_scale_missing_in_fallback_path"),
        sources=_github(
            "mlc-ai/mlc-llm/pull/3426", "PAIR-code/tiny-transformers/issues/71", "bytedance/Protenix/issues/159"
        ),
        does="It takes the softmax of q.k without dividing by sqrt(d_k), or hands a fallback kernel the scale 1.",
        shows="Attention is too sharp, the more so the larger d_k is; nothing fails, and a run only learns worse.",
        mend="Multiply the scores by d_k ** -0.5 before the softmax, on every path.",
        visibility="silent",
        functions=_four(weights_of(scores=_unscaled)),
        caught_by=(
            "scaled_dot_product_attention.repeated_queries_and_keys_score_root_2_times_as_much",
            "attention_weights.doubling_d_k_scales_the_scores_by_root_2",
            "self_attention.repeated_projections_score_root_2_times_as_much",
            "multi_head_attention.heads_repeated_within_score_root_2_times_as_much",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.divided_by_the_scale",
        catalogue=("components/attn_scale_inverted",),
        sources=_github("esceptico/perceiver-io/issues/9"),
        does="It divides the scores by d_k ** -0.5, which multiplies them by sqrt(d_k).",
        shows="Attention is far too sharp: scores are d_k times as large as they should be.",
        mend="Multiply by d_k ** -0.5, or divide by sqrt(d_k).",
        visibility="silent",
        functions=_four(weights_of(scores=_divided_by_the_scale)),
        caught_by=(
            "scaled_dot_product_attention.repeated_queries_and_keys_score_root_2_times_as_much",
            "attention_weights.doubling_d_k_scales_the_scores_by_root_2",
            "self_attention.repeated_projections_score_root_2_times_as_much",
            "multi_head_attention.heads_repeated_within_score_root_2_times_as_much",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.scaled_twice",
        catalogue=("components/attn_scale_twice",),
        sources=_github("huggingface/transformers/pull/38290", "AI-Hypercomputer/maxtext/issues/3138"),
        does="It scales the queries and then calls a kernel that scales the scores again.",
        shows="Attention is too flat: scores are divided by d_k, not by its root.",
        mend="Scale in one place: give the kernel scale=1, or leave the queries as they are.",
        visibility="silent",
        functions=_four(weights_of(scores=_scaled_twice)),
        caught_by=(
            "scaled_dot_product_attention.repeated_queries_and_keys_score_root_2_times_as_much",
            "attention_weights.doubling_d_k_scales_the_scores_by_root_2",
            "self_attention.repeated_projections_score_root_2_times_as_much",
            "multi_head_attention.heads_repeated_within_score_root_2_times_as_much",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.scaled_after_the_softmax",
        catalogue=("components/attn_scale_after_softmax",),
        sources=_github("FrancescoSaverioZuppichini/ViT/issues/2"),
        does="It multiplies the weights by d_k ** -0.5 after the softmax, not the scores before it.",
        shows="The weights of a query sum to 1 / sqrt(d_k), and outputs shrink with the width of a head.",
        mend="Scale the scores, then take the softmax.",
        visibility="silent",
        functions=_four(_scaled_after_the_softmax),
        caught_by=(
            "scaled_dot_product_attention.constant_values_come_back",
            "attention_weights.a_querys_weights_are_positive_and_sum_to_1",
            "self_attention.repeated_projections_score_root_2_times_as_much",
            "multi_head_attention.a_value_bias_is_what_every_mean_contains",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.scaled_again_in_every_block",
        catalogue=("components/attn_scale_grows_per_block",),
        sources=_github("flagos-ai/FlagGems/pull/424"),
        does="Its loop over blocks of keys multiplies the scale by log2(e) once a block, not once.",
        shows="The scores of later keys are too large; with no more keys than one block holds all is right.",
        mend="Compute the scale before the loop.",
        visibility="silent",
        functions=_four(weights_of(scores=_scaled_again_in_every_block)),
        caught_by=(
            "scaled_dot_product_attention.shuffling_keys_with_their_values_changes_nothing",
            "attention_weights.permuting_keys_permutes_weights",
            "self_attention.permuting_tokens_permutes_outputs",
            "multi_head_attention.tokens_permuted_give_outputs_permuted",
        ),
    ),
    Pitfall(
        id="multi_head_attention.scaled_by_d_model",
        catalogue=("systems/attention_scale_by_d_model",),
        sources=_github("FareedKhan-dev/train-llm-from-scratch/pull/3"),
        does="It divides the scores by sqrt(d_model), the width of the tokens, not by the root of a head's width.",
        shows="Attention is too flat, the more so the more heads there are; training still works.",
        mend="Divide by sqrt(d_k) with d_k = d_model / n_heads.",
        visibility="silent",
        around=dict.fromkeys(ON_TOKENS, _by_d_model),
        caught_by=(
            "multi_head_attention.channels_that_no_head_reads_change_nothing",
            "self_attention.channels_that_no_projection_reads_change_nothing",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.scale_never_used",
        catalogue=("systems/softcap_or_option_ignored_by_backend",),
        sources=_github(
            "sgl-project/sglang/issues/33915",
            "sgl-project/sgl-kernel-xpu/pull/491",
            "EricLBuehler/mistral.rs/pull/1930",
        ),
        does="It accepts an option, here `scale`, and never uses it.",
        shows="Whatever the option says, the output is the same to the last bit.",
        mend="Use every option that is accepted, and raise for one that is not supported.",
        visibility="silent",
        around=_with_options(lambda *, scale=None, **rest: rest, "attention_weights", "scaled_dot_product_attention"),
        caught_by=(
            "scaled_dot_product_attention.a_scale_does_what_larger_queries_do",
            "attention_weights.scale_takes_the_place_of_the_root_of_d_k",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.strides_not_read",
        catalogue=("systems/sdpa_noncontiguous_inputs",),
        sources=_github("pytorch/pytorch/issues/112577", "huggingface/transformers/pull/35342"),
        does="It reads its arguments in the order in which they lie in memory, whatever their strides.",
        shows="Transposed views, as a split into heads gives, make garbage; contiguous copies of them do not.",
        mend="Read by strides, or make a contiguous copy first.",
        visibility="silent",
        around={"scaled_dot_product_attention": _memory_order},
        caught_by=("scaled_dot_product_attention.where_the_numbers_lie_in_memory_has_no_meaning",),
    ),
)

# ------------------------------------------------------------------------------------------------------------- softmax


@quietly
def no_maximum_subtracted(scores, *, axis=-1):
    """Take the exponentials as they are."""
    e = np.exp(scores)
    return e / e.sum(axis=axis, keepdims=True)


@quietly
def _rows_of_minus_infinity_are_nan(scores, *, axis=-1):
    e = np.exp(scores - scores.max(axis=axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=axis, keepdims=True)


def _over_queries(scores):
    return softmax(scores, axis=-2)


@quietly
def _softmax_over_all_heads(q, k, v, *, mask=None, causal=False):
    scores = plain_mask(plain_scores(q, k, None), mask, causal)
    *batch, heads, q_seq, k_seq = scores.shape
    joint = softmax(scores.swapaxes(-2, -3).reshape(*batch, q_seq, heads * k_seq))
    return joint.reshape(*batch, q_seq, heads, k_seq).swapaxes(-2, -3) @ v


@quietly
def _transposed_weights(q, k, v, **options):
    return attention_weights(q, k, **options).swapaxes(-1, -2) @ v


@quietly
def _dropped_at_all_times(q, k, **options):
    weights = attention_weights(q, k, **options)
    keep = np.random.default_rng().random(weights.shape) >= 0.5
    return (weights * keep / 0.5).astype(weights.dtype)


SOFTMAX = (
    Pitfall(
        id="softmax.no_maximum_subtracted",
        catalogue=("components/softmax_without_max_subtraction",),
        sources=_github(
            "pytorch/executorch/pull/18407",
            "mila-iqia/blocks/pull/727",
            "intel/xFasterTransformer/pull/326",
            "pyg-team/pytorch_geometric/issues/53",
        ),
        does="It takes the exponentials of the scores as they are, without subtracting the largest.",
        shows="Scores of 89 in float32, 710 in float64 or 12 in float16 overflow, and NaN stands in the row.",
        mend="Subtract the row's maximum first: it changes nothing but the overflow.",
        visibility="silent",
        functions={
            **_careful({"softmax": no_maximum_subtracted}),
            **_four(weights_of(normalised=no_maximum_subtracted)),
        },
        caught_by=(
            "softmax.huge_scores_put_all_weight_on_the_largest",
            "attention_weights.scores_of_ten_thousand_and_more_do_not_overflow",
            "scaled_dot_product_attention.outputs_are_finite_at_scores_of_ten_thousand_and_more",
            "self_attention.tokens_that_are_alike_keep_their_value_at_scores_of_20000",
            "multi_head_attention.tokens_that_are_alike_keep_their_values_at_scores_of_20000_in_every_head",
        ),
    ),
    Pitfall(
        id="softmax.nan_where_all_is_masked",
        catalogue=("components/mask_row_fully_masked_nan",),
        sources=_github(
            "pytorch/pytorch/issues/41508",
            "pytorch/pytorch/issues/40932",
            "pytorch/pytorch/issues/103749",
            "pytorch/pytorch/issues/160064",
            "pytorch/pytorch/issues/26098",
        ),
        does="It takes the softmax of a row of nothing but -inf, which is 0 / 0.",
        shows="A query with nothing to attend to is NaN, and one layer later every token of its sequence is.",
        mend="Give such rows zeros: replace a maximum of -inf by 0, and a sum of 0 by 1.",
        visibility="silent",
        functions={
            **_careful({"softmax": _rows_of_minus_infinity_are_nan}),
            **_four(weights_of(normalised=_rows_of_minus_infinity_are_nan)),
        },
        caught_by=(
            "softmax.a_row_of_minus_infinity_gives_zeros",
            "attention_weights.a_fully_masked_query_has_weights_0",
            "scaled_dot_product_attention.a_query_with_nothing_to_attend_to_gets_zeros",
            "self_attention.a_token_that_may_see_nothing_gets_zeros",
            "multi_head_attention.a_query_with_nothing_to_attend_to_gets_the_output_bias_alone",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.softmax_over_queries",
        catalogue=("components/softmax_over_queries",),
        sources=_github(
            "labmlai/annotated_deep_learning_paper_implementations/issues/146",
            "nerdai/llms-from-scratch-rs/pull/30",
            "nerminnuraydogan/vision-transformer/issues/1",
            "FudanNLP/fastNLP/issues/254",
        ),
        does="It takes the softmax over the queries, the last axis but one, not over the keys.",
        shows="A query's weights do not sum to 1, and each query's output depends on the other queries.",
        mend="Take the softmax over the last axis of the scores.",
        visibility="silent",
        functions=_four(weights_of(normalised=_over_queries)),
        caught_by=(
            "scaled_dot_product_attention.a_query_gets_the_same_answer_alone",
            "attention_weights.a_querys_weights_are_positive_and_sum_to_1",
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.a_value_bias_is_what_every_mean_contains",
        ),
    ),
    Pitfall(
        id="multi_head_attention.softmax_over_all_heads",
        catalogue=("components/softmax_joint_over_heads",),
        sources=_github("facebookresearch/detr/issues/247"),
        does="It flattens heads and keys into one axis and takes a single softmax over it.",
        shows="The heads share a weight of 1 instead of having 1 each, so that outputs are too small.",
        mend="Take the softmax over the keys of each head alone.",
        visibility="silent",
        functions=_heads(attend=_softmax_over_all_heads),
        caught_by=("multi_head_attention.a_value_bias_is_what_every_mean_contains",),
    ),
    Pitfall(
        id="self_attention.weights_transposed",
        catalogue=("components/attn_matrix_transposed",),
        sources=_github("heykeetae/Self-Attention-GAN/issues/11"),
        does="It multiplies the values by the transposed weights.",
        shows="Outputs are no means of the values; with as many queries as keys nothing raises.",
        mend="Multiply weights [q_seq, k_seq] by values [k_seq, d_v] as they are.",
        visibility="silent",
        functions=_careful(
            {
                "scaled_dot_product_attention": _transposed_weights,
                "self_attention": one_head_of(_transposed_weights),
                "multi_head_attention": heads_of(attend=_transposed_weights),
            }
        ),
        caught_by=(
            "self_attention.a_later_token_leaves_earlier_causal_outputs_unchanged",
            "scaled_dot_product_attention.constant_values_come_back",
            "multi_head_attention.a_value_bias_is_what_every_mean_contains",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.dropout_at_all_times",
        catalogue=("components/attn_dropout_in_eval", "systems/functional_dropout_ignores_mode"),
        sources=_github(
            "pytorch/pytorch/issues/124464",
            "huggingface/pytorch-image-models/pull/1978",
            "NVIDIA/torch-harmonics/pull/221",
            "meta-pytorch/torchtune/issues/1791",
            "facebookresearch/vjepa2/pull/160",
            "coleygroup/ms-pred/issues/38",
            "karpathy/nanoGPT/pull/240",
            "wenet-e2e/wenet/issues/2699",
            "BogiHsu/Tacotron2-PyTorch/issues/8",
        ),
        does="It drops attention weights whatever the mode, for a function's dropout rate knows nothing of eval().",
        shows="Two evaluations of the same input differ.",
        mend="Pass the rate only while training, and 0 otherwise.",
        visibility="silent",
        functions=_four(_dropped_at_all_times),
        caught_by=tuple(f"{name}.the_same_call_twice_gives_the_same_result" for name in FOUR),
    ),
)

# --------------------------------------------------------------------------------------------------------------- masks


def _inverted(*, mask=None, **rest):
    return {"mask": None if mask is None else ~mask, **rest}


def _mask_added(scores, mask, causal):
    return plain_mask(scores if mask is None else scores + mask, None, causal)


@quietly
def _masked_after_the_softmax(q, k, *, mask=None, bias=None, causal=False, scale=None):
    weights = attention_weights(q, k, bias=bias, causal=causal, scale=scale)
    return weights if mask is None else weights * mask


def _filled_in_vain(scores, mask, causal):
    plain_mask(scores, mask, causal=False)  # a new array, which nobody keeps
    return plain_mask(scores, None, causal)


def _minus_a_billion_in_half_precision(scores, mask, causal):
    with np.errstate(over="raise"):
        return masked_with(fill=scores.dtype.type(-1e9))(scores, mask, causal)


def _least_number_added(scores, mask, causal):
    least = np.finfo(scores.dtype).min
    if mask is not None:
        scores = scores + np.where(mask, scores.dtype.type(0), least)
    if causal:
        scores = scores + np.where(causal_mask(*scores.shape[-2:]), scores.dtype.type(0), least)
    return scores


def _mask_or_causal(scores, mask, causal):
    if mask is None or not causal:
        return plain_mask(scores, mask, causal)
    return plain_mask(scores, mask | causal_mask(*scores.shape[-2:]), causal=False)


def _of_queries(*, mask=None, **rest):
    return {"mask": None if mask is None else mask.swapaxes(-1, -2), **rest}


def _mask_replaces_causal(*, mask=None, causal=False, **rest):
    return {"mask": mask, "causal": causal and mask is None, **rest}


def _causal_replaces_mask(*, mask=None, causal=False, **rest):
    return {"mask": None if causal else mask, "causal": causal, **rest}


def _never_causal(*, causal=False, **rest):
    return rest


def _always_causal(*, causal=False, **rest):
    return {"causal": True, **rest}


def _top_left(q_seq, k_seq=None):
    return np.tril(np.ones((q_seq, q_seq if k_seq is None else k_seq), bool))


def _without_itself(q_seq, k_seq=None):
    k_seq = q_seq if k_seq is None else k_seq
    return np.tril(np.ones((q_seq, k_seq), bool), k_seq - q_seq - 1)


@quietly
def _nan_made_zero_vjp(cotangent, q, k, v, *, mask=None, bias=None, causal=False, scale=None):
    weights = weights_of(normalised=_rows_of_minus_infinity_are_nan)(
        q, k, mask=mask, bias=bias, causal=causal, scale=scale
    )
    nothing = np.isnan(weights).any(axis=-1, keepdims=True)
    cotangent = np.where(nothing, 0, cotangent)  # of where(nothing, 0, weights @ v)
    d_weights = cotangent @ v.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    d_bias = None if bias is None else _summed_to(bias.shape, d_scores)
    return scale * d_scores @ k, scale * d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ cotangent, d_bias


def _summed_to(shape, array):
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    return array.sum(axis=tuple(place for place, size in enumerate(shape) if size == 1), keepdims=True)


def onto(x, d_y):
    """Give the gradient of weights: x^T dY, over all tokens."""
    return x.reshape(-1, x.shape[-1]).T @ d_y.reshape(-1, d_y.shape[-1])


def summed(d_y):
    """Give the gradient of a bias: dY, summed over all tokens."""
    return d_y.reshape(-1, d_y.shape[-1]).sum(axis=0)


def one_head_vjp_of(*, parts="qkv", onto=onto, attend=scaled_dot_product_attention_vjp):
    """Make a gradient of self-attention with one wrong term; `parts` are those that x gets."""

    def vjp(cotangent, x, w_q, w_k, w_v, *, mask=None, causal=False):
        weights = {"q": w_q, "k": w_k, "v": w_v}
        found = attend(cotangent, *(x @ w for w in weights.values()), mask=mask, causal=causal)[:3]
        gradients = dict(zip(weights, found, strict=True))
        dx = sum((gradients[name] @ weights[name].T for name in parts), np.zeros_like(x))
        return (dx, *(onto(x, gradient) for gradient in found))

    return vjp


def heads_vjp_of(
    *, parts="qkv", onto=onto, summed=summed, merged=merge, through=lambda d_y, w_o: d_y @ w_o.T,
    attend=scaled_dot_product_attention_vjp, x_alone=False, forgotten=(),
):  # fmt: skip
    """Make a gradient of multi-head attention with one wrong term; `parts` are those that x and the context get."""

    @quietly
    def vjp(cotangent, x, w_q, w_k, w_v, w_o, *, n_heads, b_q=None, b_k=None, b_v=None, b_o=None, context=None,
            mask=None, causal=False):  # fmt: skip
        source = x if context is None else context
        inputs, weights, biases = (x, source, source), (w_q, w_k, w_v), (b_q, b_k, b_v)
        projected = [
            split(y @ w + (0 if b is None else b), n_heads) for y, w, b in zip(inputs, weights, biases, strict=True)
        ]
        options = {"mask": None if mask is None else mask[..., None, :, :], "causal": causal}
        d_heads, d_w_o = cotangent, None
        if w_o is not None:
            d_w_o = onto(merge(scaled_dot_product_attention(*projected, **options)), cotangent)
            d_heads = through(cotangent, w_o)
        found = [merged(d) for d in attend(split(d_heads, n_heads), *projected, **options)[:3]]
        d_inputs = [d @ w.T * (name in parts) for name, d, w in zip("qkv", found, weights, strict=True)]
        dx, d_context = d_inputs[0], d_inputs[1] + d_inputs[2]
        gradients = {
            "x": dx + d_context if context is None and not x_alone else dx,
            **{f"w_{name}": onto(y, d) for name, y, d in zip("qkv", inputs, found, strict=True)},
            "w_o": d_w_o,
            **{f"b_{name}": None if b is None else summed(d) for name, b, d in zip("qkv", biases, found, strict=True)},
            "b_o": None if b_o is None else summed(cotangent),
            "context": None if context is None else d_context,
        }
        return tuple(0 * d if name in forgotten and d is not None else d for name, d in gradients.items())

    return vjp


MASKS = (
    Pitfall(
        id="scaled_dot_product_attention.mask_inverted",
        catalogue=("components/mask_polarity_inverted", "systems/bool_mask_polarity"),
        sources=_github(
            "rasbt/LLMs-from-scratch/issues/1061",
            "NVIDIA/TransformerEngine/issues/614",
            "InseeFrLab/torchTextClassifiers/pull/92",
            "lucidrains/halonet-pytorch/issues/4",
            "pytorch/pytorch/pull/120668",
            "lucidrains/x-transformers/issues/160",
            "pytorch/pytorch/pull/158461",
            "pytorch/pytorch/pull/170415",
        ),
        does="It reads True in a mask as hidden where True means may attend, as other functions of one library do.",
        shows="Queries see exactly what they must not; under a causal mask, only the future.",
        mend="Agree on True = may attend, name the argument so, and invert what comes from elsewhere at the border.",
        visibility="silent",
        around=_with_options(_inverted, *FOUR),
        caught_by=(
            "scaled_dot_product_attention.a_mask_of_nothing_but_true_changes_nothing",
            "attention_weights.a_mask_of_true_is_no_mask",
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.padding_of_the_context_is_masked_away",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.mask_added_to_the_scores",
        catalogue=("components/mask_float_01_added", "systems/bool_mask_added_to_scores"),
        sources=_github(
            "timeseriesAI/tsai/issues/171", "pytorch/pytorch/issues/21518", "huggingface/transformers/pull/41443"
        ),
        does="It adds a mask of True and False, or 1 and 0, to the scores.",
        shows="A hidden key keeps a weight: beside the others it is only e times smaller than if it were visible.",
        mend="Put -inf where the mask is False, and refuse a mask of 0 and 1 where one is added.",
        visibility="silent",
        functions=_four(weights_of(masked=_mask_added)),
        caught_by=(
            "scaled_dot_product_attention.a_value_reaches_exactly_the_queries_that_may_attend_to_it",
            "attention_weights.a_masked_key_has_weight_0_whatever_its_score",
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.padding_of_the_context_is_masked_away",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.masked_after_the_softmax",
        catalogue=("components/mask_after_softmax_without_renorm",),
        sources=_github("huggingface/pytorch-image-models/pull/2236"),
        does="It multiplies the weights by the mask after the softmax and does not divide by what is left.",
        shows="The more keys are hidden, the smaller the output; the weights of a query sum to less than 1.",
        mend="Mask the scores before the softmax.",
        visibility="silent",
        functions=_four(_masked_after_the_softmax),
        caught_by=(
            "scaled_dot_product_attention.a_query_of_zeros_gets_the_mean_of_the_values_it_may_see",
            "attention_weights.a_masked_key_might_as_well_be_absent",
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.padding_of_the_context_is_masked_away",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.mask_without_effect",
        catalogue=("components/mask_fill_result_discarded", "systems/sdpa_mask_dropped_for_speed"),
        sources=_github(
            "lucidrains/flamingo-pytorch/issues/10",
            "opendilab/DI-engine/issues/333",
            "huggingface/transformers/issues/35162",
            "facebookresearch/ParlAI/pull/3068",
            "espnet/espnet/pull/1273",
            "AnswerDotAI/ModernBERT/pull/40",
        ),
        does="It fills a copy of the scores and goes on with the old ones, or leaves the mask out for a faster kernel.",
        shows="The mask changes nothing: padding is attended to, and outputs depend on how long the batch is.",
        mend="Keep what masked_fill returns, and pass the mask on every path.",
        visibility="silent",
        functions=_four(weights_of(masked=_filled_in_vain)),
        caught_by=(
            "scaled_dot_product_attention.a_masked_key_has_no_influence_at_scores_of_1e5",
            "attention_weights.a_masked_key_might_as_well_be_absent",
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.padding_of_the_context_is_masked_away",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.minus_a_billion_in_half_precision",
        catalogue=("components/mask_constant_overflows_fp16", "systems/mask_constant_not_representable"),
        sources=_github(
            "NVIDIA/apex/issues/1052",
            "facebookresearch/fairseq/issues/3575",
            "huggingface/transformers/pull/4436",
            "pytorch/benchmark/pull/794",
            "tatp22/linformer-pytorch/pull/19",
            "espnet/espnet/pull/4584",
        ),
        does="It fills hidden scores with -1e9, which float16 does not hold: its least number is -65504.",
        shows="Masked attention raises in float16, or becomes -inf where the conversion is not checked.",
        mend="Fill with -inf, or with the least number of the scores' own dtype.",
        visibility="raises",
        dtype="float16",
        functions=_four(weights_of(masked=_minus_a_billion_in_half_precision)),
        caught_by=(
            "scaled_dot_product_attention.a_mask_of_nothing_but_true_changes_nothing",
            "attention_weights.a_masked_key_might_as_well_be_absent",
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.padding_of_the_context_is_masked_away",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.least_number_added",
        catalogue=("components/mask_finfo_min_plus_score",),
        sources=_github("huggingface/transformers/pull/17306"),
        does="It adds the dtype's least number to hidden scores: to -16 or less in float16, or twice, that is -inf.",
        shows="In float16 a fully masked row is NaN or looks at the padding, as its scores happen to be.",
        mend="Put the number in the score's place instead of adding it, or -inf with a rule for rows of nothing else.",
        visibility="silent",
        dtype="float16",
        functions=_four(weights_of(masked=_least_number_added, normalised=_rows_of_minus_infinity_are_nan)),
        caught_by=(
            "scaled_dot_product_attention.a_query_with_nothing_to_attend_to_gets_zeros",
            "attention_weights.a_fully_masked_query_has_weights_0",
            "self_attention.a_token_that_may_see_nothing_gets_zeros",
            "multi_head_attention.a_query_with_nothing_to_attend_to_gets_the_output_bias_alone",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.equal_weights_where_all_is_masked",
        catalogue=("components/mask_row_fully_masked_uniform",),
        sources=_github("hyunwoongko/transformer/pull/40", "huggingface/transformers/pull/17306"),
        does="It fills hidden scores with one finite number, -1e9, so that a fully masked row attends to all alike.",
        shows="A query with nothing to attend to gets the mean of the padding; no NaN warns of masks on a wrong axis.",
        mend="Give such rows zeros.",
        visibility="silent",
        functions=_four(weights_of(masked=masked_with(fill=-1e9))),
        caught_by=(
            "scaled_dot_product_attention.a_query_with_nothing_to_attend_to_gets_zeros",
            "attention_weights.a_fully_masked_query_has_weights_0",
            "self_attention.a_token_that_may_see_nothing_gets_zeros",
            "multi_head_attention.a_query_with_nothing_to_attend_to_gets_the_output_bias_alone",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.fill_that_scores_can_reach",
        catalogue=("systems/mask_value_finite_and_reachable",),
        sources=_github("karpathy/minGPT/issues/75"),
        does="It fills hidden scores with -1e4, which the scores of a trained model can fall below.",
        shows="Where all visible scores are lower, all weight goes to what is hidden: training sees the future.",
        mend="Fill with -inf, with a rule for rows of nothing else.",
        visibility="silent",
        functions=_four(weights_of(masked=masked_with(fill=-1e4))),
        caught_by=(
            "scaled_dot_product_attention.a_masked_key_has_no_influence_where_all_visible_scores_are_minus_20000",
            "attention_weights.a_masked_key_has_weight_0_whatever_its_score",
            "self_attention.hidden_tokens_have_no_part_where_all_visible_scores_are_minus_20000",
            "multi_head_attention.hidden_tokens_have_no_part_in_any_head_where_all_visible_scores_are_minus_20000",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.nan_made_zero_afterwards",
        catalogue=("components/mask_nan_gradient",),
        sources=_github("pytorch/pytorch/pull/196170", "pytorch/pytorch/pull/42323", "pytorch/pytorch/issues/152028"),
        does="It lets a fully masked row become NaN and puts zeros there afterwards, so that backward meets 0 x NaN.",
        shows="The loss is finite, and after one step every parameter is NaN.",
        mend="Make the row safe before the softmax.",
        visibility="training",
        functions={
            "scaled_dot_product_attention_vjp": _nan_made_zero_vjp,
            "self_attention_vjp": one_head_vjp_of(attend=_nan_made_zero_vjp),
            "multi_head_attention_vjp": heads_vjp_of(attend=_nan_made_zero_vjp),
        },
        caught_by=(
            "scaled_dot_product_attention.a_fully_masked_query_passes_no_gradient_on",
            "self_attention.a_token_that_may_see_nothing_passes_no_gradient_on",
            "multi_head_attention.a_query_that_may_see_nothing_passes_no_gradient_to_the_context",
        ),
    ),
    Pitfall(
        id="self_attention.mask_of_queries",
        catalogue=("components/mask_padding_on_query_axis",),
        sources=_github("hyunwoongko/transformer/pull/40", "keras-team/keras-io/pull/1046"),
        does="It lays the padding mask along the queries, not along the keys.",
        shows="Real tokens still attend to padding, and the rows of the padding are those that are masked.",
        mend="Padding hides keys: mask[:, None, None, :], not mask[:, None, :, None].",
        visibility="silent",
        around=_with_options(_of_queries, *ON_TOKENS),
        caught_by=(
            "self_attention.a_masked_token_might_as_well_be_absent",
            "multi_head_attention.a_query_with_nothing_to_attend_to_gets_the_output_bias_alone",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.mask_replaces_causal",
        catalogue=("components/mask_padding_replaces_causal",),
        sources=_github("huggingface/candle/issues/3567", "facebookresearch/xformers/issues/103"),
        does="It takes a mask that is passed in the place of the causal one.",
        shows="Only batches with a mask see the future; a single prompt, which has none, is right.",
        mend="Allow what both allow.",
        visibility="silent",
        around=_with_options(_mask_replaces_causal, *FOUR),
        caught_by=(
            "attention_weights.mask_and_causal_both_restrict",
            "self_attention.a_mask_and_causal_both_restrict_a_token",
            "multi_head_attention.a_mask_comes_on_top_of_causal",
            "scaled_dot_product_attention.a_key_is_hidden_by_the_mask_or_by_its_place",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.causal_replaces_mask",
        catalogue=("components/mask_overridden_by_causal_hint",),
        sources=_github("pytorch/pytorch/issues/131254", "pytorch/pytorch/pull/178588"),
        does="It ignores the mask that is passed when it is told to be causal.",
        shows="Padding is attended to as soon as `causal` is set.",
        mend="Allow what both allow, or raise where they are given together.",
        visibility="silent",
        around=_with_options(_causal_replaces_mask, *FOUR),
        caught_by=(
            "attention_weights.mask_and_causal_both_restrict",
            "self_attention.a_mask_and_causal_both_restrict_a_token",
            "multi_head_attention.a_mask_comes_on_top_of_causal",
            "scaled_dot_product_attention.a_key_is_hidden_by_the_mask_or_by_its_place",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.mask_or_causal",
        catalogue=("components/mask_and_or_confused",),
        sources=_github(
            "lucidrains/local-attention/issues/5", "jadore801120/attention-is-all-you-need-pytorch/issues/217"
        ),
        does="It shows a query what either the mask or the causal one allows.",
        shows="With both, a query sees more than with one of them: the future, or the padding.",
        mend="What may be seen is joined by and; what is hidden, by or.",
        visibility="silent",
        functions=_four(weights_of(masked=_mask_or_causal)),
        caught_by=(
            "attention_weights.mask_and_causal_both_restrict",
            "self_attention.a_mask_and_causal_both_restrict_a_token",
            "multi_head_attention.a_mask_comes_on_top_of_causal",
            "scaled_dot_product_attention.a_key_is_hidden_by_the_mask_or_by_its_place",
        ),
    ),
    Pitfall(
        id="attention_weights.causal_in_the_fused_path_only",
        catalogue=("components/mask_dropped_on_slow_path",),
        sources=_github("keras-team/keras/issues/23038", "pytorch/pytorch/issues/99282"),
        does="Its fused kernel is causal, and the path that gives the weights is not.",
        shows="Asking for the weights changes the output, and the weights show queries that see the future.",
        mend="Build the mask before the paths part.",
        visibility="silent",
        around=_with_options(_never_causal, "attention_weights"),
        caught_by=("attention_weights.a_causal_query_weighs_exactly_the_keys_up_to_its_place",),
    ),
    Pitfall(
        id="multi_head_attention.masks_of_the_batch_on_the_heads",
        catalogue=("components/mask_batch_aligned_to_heads",),
        sources=_github("hyunwoongko/transformer/issues/32"),
        does="It adds no axis for the heads to a mask of the batch, so that mask b is applied to head b.",
        shows="It raises unless there is one sequence, or as many as heads; with as many, each head has its own mask.",
        mend="Add the axis: mask[..., None, :, :].",
        visibility="silent",
        functions=_heads(every_head=lambda mask: mask),
        caught_by=("multi_head_attention.a_mask_of_a_batch_as_large_as_the_heads_belongs_to_the_batch",),
    ),
    Pitfall(
        id="causal_mask.without_itself",
        catalogue=("components/causal_excludes_self",),
        sources=_github("pbloem/former/issues/10", "pytorch/pytorch/issues/143287"),
        does="Its causal mask hides the diagonal: a token does not see itself.",
        shows="The first query has nothing to attend to, and is NaN or zeros.",
        mend="Hide what is strictly above the diagonal: triu(ones, 1), not triu(ones).",
        visibility="silent",
        functions={
            **_careful({"causal_mask": _without_itself}),
            **_four(weights_of(masked=masked_with(causal_mask=_without_itself))),
        },
        caught_by=(
            "causal_mask.a_query_sees_the_keys_up_to_its_own_place",
            "attention_weights.a_causal_query_weighs_exactly_the_keys_up_to_its_place",
            "scaled_dot_product_attention.a_causal_query_sees_exactly_the_keys_up_to_its_place",
            "self_attention.with_a_causal_mask_the_order_matters",
            "multi_head_attention.the_first_causal_token_gets_its_own_value",
        ),
    ),
    Pitfall(
        id="causal_mask.aligned_to_the_first_key",
        catalogue=("components/causal_top_left_alignment", "systems/causal_mask_top_left_with_cache"),
        sources=_github(
            "pytorch/pytorch/issues/108108",
            "pytorch/pytorch/issues/103082",
            "onnx/onnx/issues/8054",
            "onnx/onnx/pull/8068",
            "Dao-AILab/flash-attention/issues/282",
            "Dao-AILab/flash-attention/issues/517",
            "ml-explore/mlx/pull/2836",
            "gittensor-ai-lab/sparkinfer/issues/3",
            "pytorch/executorch/pull/21749",
        ),
        does="It lets query i see keys 0 to i where there are fewer queries than keys.",
        shows="Decoding one token against a cache sees the first key only; with equal lengths all is right.",
        mend="Align to the last key: query i sees keys up to i + k_seq - q_seq.",
        visibility="silent",
        functions={
            name: function
            for name, function in {
                **_careful({"causal_mask": _top_left}),
                **_four(weights_of(masked=masked_with(causal_mask=_top_left))),
            }.items()
            if name != "self_attention"  # which has as many queries as keys
        },
        caught_by=(
            "causal_mask.fewer_queries_than_keys_are_the_last_ones",
            "attention_weights.a_causal_query_weighs_exactly_the_keys_up_to_its_place",
            "scaled_dot_product_attention.the_last_queries_alone_get_the_end_of_the_causal_result",
            "multi_head_attention.the_last_queries_see_the_whole_causal_context",
        ),
    ),
    Pitfall(
        id="scaled_dot_product_attention.never_causal",
        catalogue=("components/causal_mask_missing", "systems/causal_flag_lost"),
        sources=_github(
            "huggingface/transformers/issues/48745",
            "alex-matton/causal-transformer-decoder/issues/1",
            "tatp22/linformer-pytorch/issues/25",
        ),
        does="It has a causal flag and builds no mask for it.",
        shows="The training loss falls far below the entropy of the text, to 0 even on random tokens.",
        mend="Build the mask wherever the flag is set, and test that the future changes nothing.",
        visibility="silent",
        around=_with_options(_never_causal, *FOUR),
        caught_by=(
            "scaled_dot_product_attention.later_keys_and_values_leave_earlier_causal_outputs_unchanged",
            "attention_weights.a_causal_query_weighs_exactly_the_keys_up_to_its_place",
            "self_attention.a_later_token_leaves_earlier_causal_outputs_unchanged",
            "multi_head_attention.later_tokens_leave_earlier_causal_outputs_unchanged",
        ),
    ),
    Pitfall(
        id="self_attention.causal_by_accident",
        catalogue=("components/encoder_causal_by_accident",),
        sources=_github(
            "sgl-project/sglang/pull/35434",
            "huggingface/transformers/pull/42820",
            "ArcInstitute/state/pull/227",
            "huggingface/transformers/issues/46077",
        ),
        does="It is causal where nobody asked: an encoder goes through a decoder's kernel.",
        shows="The first token sees itself alone, so that whoever pools it finds every text the same.",
        mend="Pass the flag through, and do not take a mask of nothing but True for a causal one.",
        visibility="silent",
        around=_with_options(_always_causal, *FOUR),
        caught_by=(
            "self_attention.permuting_tokens_permutes_outputs",
            "attention_weights.permuting_keys_permutes_weights",
            "scaled_dot_product_attention.shuffling_keys_with_their_values_changes_nothing",
            "multi_head_attention.tokens_permuted_give_outputs_permuted",
        ),
    ),
)

# ------------------------------------------------------------------------------------------------- heads and context


def _split_without_transpose(x, n_heads):
    return x.reshape(*x.shape[:-2], n_heads, x.shape[-2], x.shape[-1] // n_heads)


def merge_without_transpose(heads):
    """Reshape [heads, seq, d_v] to [seq, d_model]."""
    *batch, n_heads, seq, d_v = heads.shape
    return heads.reshape(*batch, seq, n_heads * d_v)


def _all_read_head_zero(x, n_heads):
    d = x.shape[-1] // n_heads
    return np.stack([x[..., :d]] * n_heads, axis=-3)


def _one_projection_for_all_heads(right):
    def attention(x, w_q, w_k, w_v, w_o, *, n_heads, **options):
        def the_first_for_all(w):
            slices = np.split(x, n_heads, axis=-1) if n_heads > 0 else [x]
            first = w[: slices[0].shape[-1], : w.shape[1] // len(slices)]
            return np.kron(np.eye(len(slices), dtype=w.dtype), first)

        return right(x, *map(the_first_for_all, (w_q, w_k, w_v)), w_o, n_heads=n_heads, **options)

    return attention


def _fused_weights_read_by_head(right):
    def reread(q, k, v, n_heads):
        fused = np.concatenate([q, k, v], axis=-1)  # stored as [Q | K | V], read as [q_0 k_0 v_0 | q_1 k_1 v_1 ...]
        by_head = fused.reshape(*q.shape[:-1], n_heads, 3, -1)
        return (by_head[..., i, :].reshape(q.shape) for i in range(3))

    def attention(x, w_q, w_k, w_v, w_o, *, n_heads, b_q=None, b_k=None, b_v=None, context=None, **options):
        if context is None and w_q.shape == w_v.shape and n_heads > 0:  # what can be fused
            w_q, w_k, w_v = reread(w_q, w_k, w_v, n_heads)
            if not any(b is None for b in (b_q, b_k, b_v)):
                b_q, b_k, b_v = reread(b_q, b_k, b_v, n_heads)
        biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v}
        return right(x, w_q, w_k, w_v, w_o, n_heads=n_heads, context=context, **biases, **options)

    return attention


def _keys_and_values_from_x(right):
    def attention(x, *weights, context=None, **options):
        return right(x, *weights, **options)

    return attention


def _context_unmasked(*, context=None, mask=None, **rest):
    return {"context": context, "mask": mask if context is None else None, **rest}


HEADS = (
    Pitfall(
        id="multi_head_attention.split_without_transpose",
        catalogue=("components/heads_split_without_transpose",),
        sources=_github(
            "reczoo/FuxiCTR/issues/30",
            "649453932/Chinese-Text-Classification-Pytorch/issues/53",
            "hyunwoongko/transformer/issues/15",
            "bentrevett/pytorch-seq2seq/issues/148",
        ),
        does="It reshapes [seq, d_model] straight to [heads, seq, d_k], which mixes tokens and channels.",
        shows="A head's row holds pieces of several tokens; with one head or one token all is right.",
        mend="Reshape to [seq, heads, d_k], then exchange the first two axes.",
        visibility="silent",
        functions=_heads(split=_split_without_transpose),
        caught_by=("multi_head_attention.tokens_permuted_give_outputs_permuted",),
    ),
    Pitfall(
        id="multi_head_attention.merged_without_transpose",
        catalogue=("components/heads_merge_without_transpose",),
        sources=_github(
            "jsbaan/transformer-from-scratch/pull/6",
            "ajhalthor/Transformer-Neural-Network/pull/4",
            "ajhalthor/Transformer-Neural-Network/issues/1",
            "hackiey/QAnet-pytorch/issues/2",
            "649453932/Chinese-Text-Classification-Pytorch/issues/10",
            "jadore801120/attention-is-all-you-need-pytorch/issues/7",
        ),
        does="It reshapes [heads, seq, d_v] straight to [seq, d_model].",
        shows="An output holds pieces of several tokens, later ones too; with one head or one token all is right.",
        mend="Exchange heads and seq, then reshape.",
        visibility="silent",
        functions=_heads(merge=merge_without_transpose),
        caught_by=("multi_head_attention.later_tokens_leave_earlier_causal_outputs_unchanged",),
    ),
    Pitfall(
        id="multi_head_attention.one_projection_for_all_heads",
        catalogue=("components/heads_share_one_projection",),
        sources=_github("MarcoMeter/episodic-transformer-memory-ppo/pull/22"),
        does="It splits the input among the heads and projects every slice by the same small d_k x d_k matrix.",
        shows="The projections have heads^2 times fewer numbers, and no head sees the other heads' channels.",
        mend="Project by the whole d_model x d_model matrix, then split.",
        visibility="silent",
        around={"multi_head_attention": _one_projection_for_all_heads},
        caught_by=(
            "multi_head_attention.the_order_of_the_heads_has_no_meaning",
            "multi_head_attention.a_head_reads_its_own_columns",
        ),
    ),
    Pitfall(
        id="multi_head_attention.fused_weights_read_by_head",
        catalogue=("components/qkv_fused_layout_wrong",),
        sources=_github(
            "vllm-project/vllm/pull/53114",
            "elixir-nx/bumblebee/pull/204",
            "awslabs/slapo/pull/46",
            "sgl-project/sglang/issues/40127",
        ),
        does="It reads a fused weight stored as [Q | K | V] as if it were stored head by head, or the other way.",
        shows="All shapes fit, and with one head all is right; a loaded model talks nonsense.",
        mend="Reorder once on loading: the layout is part of the format.",
        visibility="silent",
        around={"multi_head_attention": _fused_weights_read_by_head},
        caught_by=(
            "multi_head_attention.the_order_of_the_heads_has_no_meaning",
            "multi_head_attention.a_head_reads_its_own_columns",
        ),
    ),
    Pitfall(
        id="multi_head_attention.all_heads_read_the_first",
        catalogue=("components/heads_all_read_head_zero",),
        sources=_github("BobMcDear/attorch/issues/14", "PSAL-POSTECH/ONNXim/pull/34"),
        does="It computes an offset of 0 for every head, so that all of them read the first one's columns.",
        shows="Every head gives the output of the first.",
        mend="Multiply the head's number by d_k, and test that each head matters.",
        visibility="silent",
        functions=_heads(split=_all_read_head_zero),
        caught_by=("multi_head_attention.each_head_matters",),
    ),
    Pitfall(
        id="multi_head_attention.context_not_used",
        catalogue=("components/cross_attn_kv_from_decoder",),
        sources=_github("keitakurita/Practical_NLP_in_PyTorch/issues/1"),
        does="It takes keys and values from x although a context is given.",
        shows="The decoder does not notice what the encoder says.",
        mend="Project keys and values from the context.",
        visibility="silent",
        around={"multi_head_attention": _keys_and_values_from_x},
        caught_by=("multi_head_attention.from_a_context_of_equal_tokens_every_query_gets_their_value",),
    ),
    Pitfall(
        id="multi_head_attention.context_unmasked",
        catalogue=("components/cross_attn_memory_padding_leaks",),
        sources=_github("NVIDIA/FasterTransformer/issues/270"),
        does="It attends to a context without the mask of its padding.",
        shows="The output depends on how far the context was padded.",
        mend="Pass the mask of the context to cross-attention.",
        visibility="silent",
        around=_with_options(_context_unmasked, "multi_head_attention"),
        caught_by=("multi_head_attention.padding_of_the_context_is_masked_away",),
    ),
)

PITFALLS = (*SCORES, *SOFTMAX, *MASKS, *HEADS)

# -------------------------------------------------------------------------------------------- what only looks like one


def _query_scaled_first(q, k, scale):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return (q * scale) @ k.swapaxes(-1, -2)


def _shifted(right):
    def shifted(scores, *, axis=-1):
        return right(scores - 7, axis=axis)

    return shifted


def _shifted_by_a_billion(right):
    def shifted(scores, *, axis=-1):
        return right(scores - 10**9, axis=axis)  # a whole number, so that whole numbers are refused as ever

    return shifted


@quietly
def masked_and_divided_again(q, k, *, mask=None, bias=None, causal=False, scale=None):
    """Mask after the softmax, and divide by what is left."""
    weights = attention_weights(q, k, bias=bias, causal=causal, scale=scale)
    if mask is None:
        return weights
    kept = weights * mask
    total = kept.sum(axis=-1, keepdims=True)
    return kept / np.where(total == 0, 1, total)


def _without_a_key_bias(*, b_k=None, **rest):
    return {"b_k": None if b_k is None else 0 * b_k, **rest}


EQUIVALENCES = (
    Equivalence(
        id="scaled_dot_product_attention.query_scaled_first",
        catalogue=("equivalences/scale_query_first",),
        sources=_github(
            "getalp/Flaubert/pull/45",
            "facebookresearch/XLM/pull/357",
            "jadore801120/attention-is-all-you-need-pytorch/issues/177",
        ),
        says="Dividing the queries by sqrt(d_k) gives the scores that dividing q.k gives, up to rounding.",
        functions=_four(weights_of(scores=_query_scaled_first)),
    ),
    Equivalence(
        id="softmax.shifted",
        catalogue=("equivalences/softmax_shift",),
        sources=_github("fzh0917/SparseTT/issues/6"),
        says="A number taken from all scores of a row changes no weight.",
        around={"softmax": _shifted},
        functions=_four(weights_of(normalised=_shifted(softmax))),
    ),
    Equivalence(
        id="attention_weights.masked_and_divided_again",
        catalogue=("equivalences/mask_after_softmax_with_renorm",),
        sources=_github(
            "abisee/pointer-generator/issues/88", "ruotianluo/self-critical.pytorch/issues/89", "qhfan/RMT/issues/21"
        ),
        says="Softmax, times the mask, over the sum of what is left, is the softmax of the masked scores.",
        condition="what is hidden is finite, and what is visible does not round to 0 beside it",
        functions=_careful({"attention_weights": masked_and_divided_again}),
        outside=(
            "attention_weights.a_masked_key_may_be_nan",
            "attention_weights.a_masked_key_has_weight_0_whatever_its_score",
            "attention_weights.agrees_with_the_reference.mask",  # its scores can be a thousand apart
            "attention_weights.agrees_with_the_reference.all",
        ),
    ),
    Equivalence(
        id="multi_head_attention.key_bias_not_used",
        catalogue=("equivalences/key_bias_irrelevant",),
        sources=_github(),
        says="A bias of the keys adds the same to all scores of a query, so that leaving it out changes no weight.",
        around=_with_options(_without_a_key_bias, "multi_head_attention"),
    ),
    Equivalence(
        id="softmax.shifted_by_a_billion",
        catalogue=("equivalences/fp64_hides_huge_mask",),
        sources=_github("harvard-edge/cs249r_book/pull/1785"),
        says="A billion taken from all scores of a row, as a mask of -1e9 does, changes no weight in float64.",
        condition="scores are multiples of 2^-23: others are rounded to such, which moves a weight by 6e-8",
        around={"softmax": _shifted_by_a_billion},
        outside=("softmax.agrees_with_the_reference.*",),
    ),
)
