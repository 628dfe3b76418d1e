"""Known mistakes in the loss."""

from typing import Any

import numpy as np

from reference.numpy import softmax
from spec_tests.pitfalls.pitfall import Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as


def double_softmax(right: Function) -> Function:
    """Hand probabilities to what expects logits."""
    return lambda logits, targets, **options: right(softmax(logits), targets, **options)


def shifted_again(right: Function) -> Function:
    """Shift what is shifted already: place t is scored on the target of t + 1."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, **options: Any) -> Any:
        if targets.ndim == 0:
            return right(logits, targets, **options)
        return right(logits[..., :-1, :], targets[..., 1:], **options)

    return wrong


def shifted_after_flattening(right: Function) -> Function:
    """Lay all rows end to end and then shift: the last place of a row is scored on the first target of the next."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, **options: Any) -> Any:
        rows = logits.reshape(-1, logits.shape[-1])
        return right(rows[:-1], targets.reshape(-1)[1:], **options)

    return wrong


def padding_is_a_target(right: Function) -> Function:
    """Score the padding as if it were token 0."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, *, ignore_index: int = -100, **options: Any) -> Any:
        return right(logits, np.where(targets == ignore_index, 0, targets), **options)

    return wrong


def divided_by_all(right: Function) -> Function:
    """Sum over the targets that count and divide by the number of all."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, *, ignore_index: int = -100, **options: Any) -> Any:
        return right(logits, targets, ignore_index=ignore_index, **options) * (targets != ignore_index).mean()

    return wrong


def nan_for_nothing(right: Function) -> Function:
    """Divide by the number of targets that count without asking whether there are any."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, *, ignore_index: int = -100, **options: Any) -> Any:
        n = (targets != ignore_index).sum()
        with np.errstate(invalid="ignore"):
            return right(logits, targets, ignore_index=ignore_index, **options) * n / n

    return wrong


def smoothing_takes_the_rest(right: Function) -> Function:
    """Spread (1 - a) / vocab over the classes instead of a / vocab."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, *, label_smoothing: float = 0.0, **options: Any) -> Any:
        if not label_smoothing:
            return right(logits, targets, **options)
        plain, uniform = (right(logits, targets, label_smoothing=a, **options) for a in (0.0, 1.0))
        return (1 - label_smoothing) * (plain + uniform)

    return wrong


def smoothing_adds_a_whole(right: Function) -> Function:
    """Spread 1 / vocab over the classes instead of a / vocab."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, *, label_smoothing: float = 0.0, **options: Any) -> Any:
        plain, uniform = (right(logits, targets, label_smoothing=a, **options) for a in (0.0, 1.0))
        return (1 - label_smoothing) * plain + uniform

    return wrong


def smoothing_counts_ignored(right: Function) -> Function:
    """Leave ignored targets out of the plain part of the loss and not out of the uniform part."""

    @as_strict_as(right)
    def wrong(logits: Any, targets: Any, *, label_smoothing: float = 0.0, **options: Any) -> Any:
        plain = right(logits, targets, **options)
        if not label_smoothing:
            return plain
        uniform = right(logits, np.zeros_like(targets), label_smoothing=1.0)
        return (1 - label_smoothing) * plain + label_smoothing * uniform

    return wrong


PITFALLS = (
    Pitfall(
        id="cross_entropy.double_softmax",
        catalogue=(
            "components/loss_double_softmax",
            "systems/softmax_before_cross_entropy",
        ),
        sources=(
            "https://github.com/bowang-lab/Transformer-GCN-QA/pull/32",
            "https://github.com/bkitano/llama-from-scratch/issues/5",
            "https://github.com/ariecattan/SciCo/issues/2",
            "https://github.com/tflearn/tflearn/pull/562",
            "https://github.com/gitabcworld/MatchingNetworks/issues/5",
            "https://github.com/Lightning-Universe/lightning-bolts/issues/654",
            "https://github.com/suragnair/alpha-zero-general/issues/45",
            "https://github.com/bhanML/Co-teaching/issues/4",
        ),
        does="The loss is given softmax(logits) where it applies a log-softmax itself, so that softmax acts twice.",
        shows="The loss of a certain and right prediction stops at log(1 + (vocab - 1) / e), and gradients shrink.",
        mend="Give the loss the logits themselves; only a log-softmax may act twice, for it is its own fixed point.",
        visibility="training",
        around={"cross_entropy": double_softmax},
        caught_by=(
            "cross_entropy.a_confident_right_prediction_costs_nothing",
            "cross_entropy.a_confident_wrong_prediction_costs_the_gap",
        ),
    ),
    Pitfall(
        id="cross_entropy.shifted_twice",
        catalogue=(
            "components/loss_target_shifted_twice",
            "systems/label_shift_twice",
        ),
        sources=(
            "https://github.com/huggingface/transformers/pull/37830",
            "https://github.com/huggingface/transformers/issues/47394",
            "https://github.com/huggingface/transformers/pull/46898",
            "https://github.com/huggingface/transformers/issues/47388",
            "https://github.com/huggingface/transformers/pull/47395",
            "https://github.com/InternLM/InternLM/issues/318",
            "https://github.com/LLM360/amber-train/issues/6",
            "https://github.com/huggingface/transformers/pull/44642",
            "https://github.com/huggingface/transformers/pull/562",
        ),
        does="The loss shifts targets that the data has shifted already, so that each place is scored on the token "
        "after the next.",
        shows="A perfect predictor of the next token has a high loss, and what is trained writes every second token.",
        mend="Shift once, in the data or in the loss, and say in the names of the arguments which.",
        visibility="training",
        around={"cross_entropy": shifted_again},
        caught_by=(
            "cross_entropy.a_confident_right_prediction_costs_nothing",
            "cross_entropy.is_the_mean_over_the_targets",
        ),
    ),
    Pitfall(
        id="cross_entropy.shifted_after_flattening",
        catalogue=(
            "components/loss_shift_after_flatten",
            "systems/shift_after_flatten_crosses_rows",
        ),
        sources=("https://github.com/huggingface/transformers/issues/47394",),
        does="The rows of a batch are laid end to end and shifted as one, so that the last place of a row is scored on "
        "the first token of the next row.",
        shows="The loss depends on the order of the rows, a little less the longer they are.",
        mend="Shift each row by itself and flatten afterwards.",
        visibility="training",
        around={"cross_entropy": shifted_after_flattening},
        caught_by=(
            "cross_entropy.is_the_mean_over_the_targets",
            "cross_entropy.a_confident_right_prediction_costs_nothing",
        ),
    ),
    Pitfall(
        id="cross_entropy.padding_is_a_target",
        catalogue=("components/loss_counts_padding",),
        sources=(
            "https://github.com/open-jarvis/OpenJarvis/pull/521",
            "https://github.com/saahiluppal/catr/issues/12",
            "https://github.com/EleutherAI/aria/pull/40",
            "https://github.com/FlagAI-Open/FlagAI/issues/522",
            "https://github.com/EleutherAI/gpt-neo/pull/45",
            "https://github.com/BrianPulfer/PapersReimplementations/pull/17",
        ),
        does="Padding is scored like any token, and counted in the mean.",
        shows="The loss looks low, for padding is easy to predict, and falls further the more of it there is.",
        mend="Leave the targets of `ignore_index` out of the sum and out of the number that it is divided by.",
        visibility="training",
        around={"cross_entropy": padding_is_a_target},
        caught_by=(
            "cross_entropy.ignored_targets_have_no_part",
            "cross_entropy.nothing_to_learn_from_costs_nothing",
        ),
    ),
    Pitfall(
        id="cross_entropy.ignored_in_the_denominator",
        catalogue=("systems/ppl_ignored_tokens_in_denominator",),
        sources=(
            "https://github.com/meta-pytorch/torcheval/issues/154",
            "https://github.com/alex-hh/profam/pull/42",
        ),
        does="The losses of the targets that count are divided by the number of all, the ignored ones among them.",
        shows="Loss and perplexity fall when padding is added.",
        mend="Divide by the number of targets that are not ignored.",
        visibility="silent",
        around={"cross_entropy": divided_by_all},
        caught_by=(
            "cross_entropy.ignored_targets_have_no_part",
            "cross_entropy.any_index_may_be_the_ignored_one",
        ),
    ),
    Pitfall(
        id="cross_entropy.nan_for_nothing",
        catalogue=(
            "components/loss_all_ignored_nan",
            "systems/loss_nan_when_all_ignored",
        ),
        sources=(
            "https://github.com/pytorch/pytorch/issues/75181",
            "https://github.com/pytorch/pytorch/issues/116349",
            "https://github.com/pytorch/pytorch/issues/70348",
            "https://github.com/OpenRLHF/OpenRLHF/pull/583",
            "https://github.com/nvidia-cosmos/cosmos-rl/pull/155",
            "https://github.com/meta-pytorch/torchtune/issues/2341",
        ),
        does="The mean over the targets that count is 0 / 0 where there are none.",
        shows="One batch without a target makes the loss NaN, and often its gradients and every parameter after it.",
        mend="Say what the loss of no target is, 0 with a gradient of 0, and divide only where there is one.",
        visibility="training",
        around={"cross_entropy": nan_for_nothing},
        caught_by=("cross_entropy.nothing_to_learn_from_costs_nothing",),
    ),
    Pitfall(
        id="cross_entropy.smoothing_takes_the_rest",
        catalogue=("components/loss_label_smoothing_wrong_mass",),
        sources=("https://github.com/paiml/aprender/pull/2199",),
        does="With a label smoothing of a each class gets (1 - a) / vocab where it should get a / vocab.",
        shows="The less smoothing is asked for the more there is, and the target distribution sums to 2 (1 - a).",
        mend="Give every class a / vocab, and the target 1 - a besides.",
        visibility="training",
        around={"cross_entropy": smoothing_takes_the_rest},
        caught_by=(
            "cross_entropy.smoothing_spreads_its_share_over_every_class",
            "cross_entropy.full_smoothing_forgets_the_target",
        ),
    ),
    Pitfall(
        id="cross_entropy.smoothing_adds_a_whole",
        catalogue=("components/loss_label_smoothing_eps_dropped",),
        sources=("https://github.com/TimDettmers/ConvE/issues/55",),
        does="With a label smoothing of a each class gets 1 / vocab where it should get a / vocab.",
        shows="The target distribution sums to 2 - a, and the loss is wrong even without smoothing.",
        mend="Give every class a / vocab, and the target 1 - a besides.",
        visibility="training",
        around={"cross_entropy": smoothing_adds_a_whole},
        caught_by=(
            "cross_entropy.a_confident_right_prediction_costs_nothing",
            "cross_entropy.smoothing_spreads_its_share_over_every_class",
        ),
    ),
    Pitfall(
        id="cross_entropy.smoothing_counts_ignored",
        catalogue=("systems/label_smoothing_counts_ignored",),
        sources=(
            "https://github.com/pytorch/pytorch/issues/73205",
            "https://github.com/eladhoffer/utils.pytorch/issues/4",
            "https://github.com/huggingface/transformers/pull/5919",
            "https://github.com/tinygrad/tinygrad/pull/3570",
            "https://github.com/k-tahiro/bert-summarizer/pull/41",
        ),
        does="The uniform part of the smoothed loss is taken over ignored targets too.",
        shows="With smoothing, and only then, the loss changes when padding is added.",
        mend="Leave ignored targets out of both parts, and divide both by the number of those that count.",
        visibility="silent",
        around={"cross_entropy": smoothing_counts_ignored},
        caught_by=("cross_entropy.smoothing_leaves_ignored_targets_out",),
    ),
)
