"""Known mistakes on the way from scores to the next token."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference.numpy import sample
from spec_tests.pitfalls.pitfall import Equivalence, Function, Pitfall
from spec_tests.pitfalls.strict import as_strict_as


def by_rank(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the ids by falling size, and the rank of each id."""
    order = np.argsort(-p, axis=-1, kind="stable")
    return order, np.argsort(order, axis=-1)


def renormalised(p: np.ndarray) -> np.ndarray:
    """Make the rows sum to 1 again."""
    with np.errstate(invalid="ignore"):
        return p / p.sum(axis=-1, keepdims=True)


def masses(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the mass of each id and all ranks before it, and the mass of the first rank."""
    order, rank = by_rank(p)
    total = np.cumsum(np.take_along_axis(p, order, -1), axis=-1)
    return np.take_along_axis(total, rank, -1), total[..., :1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Give the logarithms of the probabilities."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# ----------------------------------------------------------------------------------- next_token_distribution


def exp_without_the_shift(right: Function) -> Function:
    """Take exp(logits / T) as it is."""

    @as_strict_as(right)
    def wrong(logits: Any, *, temperature: float = 1.0, **options: Any) -> Any:
        if temperature == 0:
            return right(logits, temperature=temperature, **options)
        with np.errstate(all="ignore"):
            p = np.exp(logits / temperature)
            return right(np.log(p / p.sum(axis=-1, keepdims=True)), **options)

    return wrong


def scores_as_weights(right: Function) -> Function:
    """Draw with the logits as weights, which a multinomial divides by their sum."""

    @as_strict_as(right)
    def wrong(logits: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            weights = logits / logits.sum(axis=-1, keepdims=True)
        return right(logits, **options) if options else weights

    return wrong


def padded_rows_drawn(right: Function) -> Function:
    """Let the zeros that a padded head gives, up to a multiple of 8, share in the probability."""

    @as_strict_as(right)
    def wrong(logits: Any, **options: Any) -> Any:
        padding = np.zeros((*logits.shape[:-1], -logits.shape[-1] % 8), logits.dtype)
        return right(np.concatenate([logits, padding], axis=-1), **options)[..., : logits.shape[-1]]

    return wrong


def temperature_on_probabilities(right: Function) -> Function:
    """Divide the probabilities by the temperature, not the logits."""

    @as_strict_as(right)
    def wrong(logits: Any, *, temperature: float = 1.0, **options: Any) -> Any:
        if temperature in (0.0, 1.0):
            return right(logits, temperature=temperature, **options)
        with np.errstate(over="ignore"):
            return right(right(logits) / temperature, **options)

    return wrong


def temperature_divides_by_zero(right: Function) -> Function:
    """Divide by a temperature of 0."""

    @as_strict_as(right)
    def wrong(logits: Any, *, temperature: float = 1.0, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return right(logits / np.float64(temperature), **options)

    return wrong


def temperature_zero_means_one(right: Function) -> Function:
    """Leave the logits as they are where the temperature is too small to divide by."""

    @as_strict_as(right)
    def wrong(logits: Any, *, temperature: float = 1.0, **options: Any) -> Any:
        return right(logits, temperature=1.0 if 0 <= temperature < 1e-6 else temperature, **options)

    return wrong


def temperature_after_top_p(right: Function) -> Function:
    """Measure the mass that top-p keeps at a temperature of 1."""

    @as_strict_as(right)
    def wrong(logits: Any, *, top_k: int | None = None, top_p: float | None = None, **options: Any) -> Any:
        p = right(logits, top_k=top_k, **options)
        return p if top_p is None else renormalised(np.where(right(logits, top_k=top_k, top_p=top_p) > 0, p, 0))

    return wrong


def top_k_by_threshold(right: Function) -> Function:
    """Keep every logit that is not below the k-th largest."""

    @as_strict_as(right)
    def wrong(logits: Any, *, top_k: int | None = None, **options: Any) -> Any:
        p = right(logits, **options)
        if top_k is None:
            return p
        cut = np.sort(logits, axis=-1)[..., ::-1][..., min(top_k, logits.shape[-1]) - 1, None]
        return renormalised(np.where(logits >= cut, p, 0))

    return wrong


def top_k_keeps_one_more(right: Function) -> Function:
    """Drop the ranks above k, counted from 0."""
    return lambda logits, *, top_k=None, **options: right(logits, top_k=top_k and top_k + 1, **options)


def top_k_never_drops_token_zero(right: Function) -> Function:
    """Mark a token to be dropped by its id, which for token 0 says that it stays."""

    @as_strict_as(right)
    def wrong(logits: Any, *, top_k: int | None = None, **options: Any) -> Any:
        if top_k is None:
            return right(logits, **options)
        dropped = (by_rank(logits)[1] >= top_k) * np.arange(logits.shape[-1])
        return renormalised(np.where(dropped > 0, 0, right(logits, **options)))

    return wrong


def top_k_calls_what_is_not_there(right: Function) -> Function:
    """Call, for one option only, a function that there is in another library."""

    @as_strict_as(right)
    def wrong(logits: Any, *, top_k: int | None = None, **options: Any) -> Any:
        if top_k is not None:
            logits = np.topk(logits, top_k)  # type: ignore[attr-defined]
        return right(logits, **options)

    return wrong


def top_p_that_keeps(keeps: Callable[..., Any]) -> Callable[[Function], Function]:
    """Build one whose top-p keeps `keeps(mass up to each token, p, mass of the first rank, top_p)`."""

    def around(right: Function) -> Function:
        @as_strict_as(right)
        def wrong(logits: Any, *, top_p: float | None = None, **options: Any) -> Any:
            p = right(logits, **options)
            if top_p is None:
                return p
            reached, first = masses(p)
            return renormalised(np.where(keeps(reached, p, first, top_p), p, 0))

        return wrong

    return around


top_p_drops_the_crossing_token = top_p_that_keeps(lambda reached, p, first, top_p: reached <= top_p)
top_p_subtracts_the_first = top_p_that_keeps(lambda reached, p, first, top_p: reached - first < top_p)
top_p_by_what_is_left = top_p_that_keeps(lambda reached, p, first, top_p: 1 - reached + p > 1 - top_p)


# ------------------------------------------------------------------------------------------------- sample


def one_number_for_all_rows(right: Function) -> Function:
    """Draw one number and use it in every row."""
    return lambda probabilities, uniform: right(probabilities, np.full_like(uniform, uniform.flat[0]))


@as_strict_as(sample)
def cumulated_in_float32(probabilities: Any, uniform: Any) -> Any:
    """Sum the probabilities in float32, which forgets small ones after a large one."""
    total = np.cumsum(probabilities.astype(np.float32), axis=-1, dtype=np.float32)
    last_possible = probabilities.shape[-1] - 1 - np.argmax(probabilities[..., ::-1] > 0, axis=-1)
    return np.minimum((total <= uniform[..., None]).sum(axis=-1), last_possible)


PITFALLS = (
    Pitfall(
        id="next_token_distribution.exp_without_the_shift",
        catalogue=("systems/sampling_exp_without_max_shift",),
        sources=(
            "https://github.com/pytorch/pytorch/issues/7014",
            "https://github.com/pytorch/pytorch/issues/871",
        ),
        does="exp(logits / T) is taken without the largest logit being subtracted first.",
        shows="Large logits, or a small temperature, give inf / inf = NaN, and the draw fails or picks anything.",
        mend="Subtract the largest logit of each row before dividing by the temperature.",
        visibility="silent",
        around={"next_token_distribution": exp_without_the_shift},
        caught_by=(
            "next_token_distribution.shifting_all_logits_changes_nothing",
            "next_token_distribution.a_tiny_temperature_does_not_overflow",
        ),
    ),
    Pitfall(
        id="next_token_distribution.scores_as_weights",
        catalogue=("systems/multinomial_on_logits_or_logprobs",),
        sources=("https://github.com/keras-team/keras-core/pull/389",),
        does="A multinomial is given logits where it expects weights, and divides them by their sum.",
        shows="Logits 1 and 2 are drawn 1 : 2 and not 1 : e, and negative ones are refused or never drawn.",
        mend="Take the softmax first, or a draw that expects logits.",
        visibility="silent",
        around={"next_token_distribution": scores_as_weights},
        caught_by=(
            "next_token_distribution.logits_are_log_odds",
            "next_token_distribution.shifting_all_logits_changes_nothing",
        ),
    ),
    Pitfall(
        id="next_token_distribution.padded_rows_drawn",
        catalogue=("systems/padded_vocab_rows_win",),
        sources=(
            "https://github.com/mirage-project/mirage/issues/751",
            "https://github.com/NVIDIA/Megatron-LM/pull/52",
            "https://github.com/tenstorrent/tt-metal/pull/17195",
            "https://github.com/Blaizzy/mlx-vlm/issues/1917",
        ),
        does="The head has rows of zeros beyond the vocabulary, and their logits of 0 share in the probability.",
        shows="Where all real logits are far below 0 most draws are ids that no token has.",
        mend="Cut the padding off, or set its logits to -inf, before softmax, sampling and loss.",
        visibility="silent",
        around={"next_token_distribution": padded_rows_drawn},
        caught_by=(
            "next_token_distribution.probabilities_sum_to_one",
            "next_token_distribution.logits_are_log_odds",
        ),
    ),
    Pitfall(
        id="next_token_distribution.temperature_on_probabilities",
        catalogue=("equivalences/temperature_on_logprobs_false_alarm",),
        sources=(
            "https://github.com/MoonshotAI/Kimi-Audio/pull/161",
            "https://github.com/ggml-org/llama.cpp/issues/3971",
        ),
        does="The temperature divides the probabilities, which then go through a softmax once more.",
        shows="A low temperature sharpens far too little, for probabilities differ by at most 1.",
        mend="Divide the logits, or their log-softmax, by the temperature.",
        visibility="silent",
        around={"next_token_distribution": temperature_on_probabilities},
        caught_by=("next_token_distribution.temperature_divides_the_logits",),
    ),
    Pitfall(
        id="next_token_distribution.temperature_divides_by_zero",
        catalogue=("systems/temperature_zero_divides",),
        sources=(
            "https://github.com/karpathy/nanoGPT/pull/739",
            "https://github.com/google-deepmind/gemma/issues/562",
            "https://github.com/ohdearquant/lattice/issues/295",
            "https://github.com/state-spaces/mamba/pull/1041",
        ),
        does="The logits are divided by a temperature of 0.",
        shows="Greedy decoding gives NaN, which raises in some libraries and gives low token ids in others.",
        mend="Take the largest logit where the temperature is 0, before anything is divided.",
        visibility="silent",
        around={"next_token_distribution": temperature_divides_by_zero},
        caught_by=("next_token_distribution.temperature_zero_takes_the_largest_logit",),
    ),
    Pitfall(
        id="next_token_distribution.temperature_zero_means_one",
        catalogue=("systems/temperature_zero_guard_means_one",),
        sources=("https://github.com/google-deepmind/gemma/pull/573",),
        does="Where the temperature is too small to divide by the logits are used undivided, as at a temperature of 1.",
        shows="A temperature of 0 samples freely where 0.01 is greedy.",
        mend="Let a temperature below the threshold mean the largest logit.",
        visibility="silent",
        around={"next_token_distribution": temperature_zero_means_one},
        caught_by=(
            "next_token_distribution.temperature_zero_takes_the_largest_logit",
            "next_token_distribution.a_tiny_temperature_does_not_overflow",
        ),
    ),
    Pitfall(
        id="next_token_distribution.temperature_after_top_p",
        catalogue=("systems/temperature_order_with_top_p",),
        sources=(
            "https://github.com/huggingface/transformers/pull/8686",
            "https://github.com/fishaudio/fish-speech/pull/1150",
            "https://github.com/lablup/mlxcel/issues/1379",
            "https://github.com/timtoole02/Camelid/pull/534",
            "https://github.com/ggml-org/llama.cpp/issues/4091",
            "https://github.com/Blaizzy/mlx-audio/issues/732",
        ),
        does="top-p measures the mass before the temperature acts.",
        shows="At another temperature than 1 the nucleus is that of 1: wider at low and narrower at high temperatures.",
        mend="Let temperature act first, then top-k, then top-p; or declare the other order.",
        visibility="silent",
        around={"next_token_distribution": temperature_after_top_p},
        caught_by=("next_token_distribution.top_p_measures_what_temperature_made",),
    ),
    Pitfall(
        id="next_token_distribution.top_k_keeps_ties",
        catalogue=("systems/top_k_ties_keep_more_than_k",),
        sources=(
            "https://github.com/vllm-project/vllm/pull/15478",
            "https://github.com/apple/axlearn/pull/1022",
        ),
        does="top-k keeps every logit that is not below the k-th largest, so that ties at the cut keep more than k.",
        shows="k = 1 is not greedy where two logits are alike.",
        mend="Keep the first k ranks, the lowest id first on a tie; or declare that ties stay.",
        visibility="silent",
        around={"next_token_distribution": top_k_by_threshold},
        caught_by=(
            "next_token_distribution.top_k_keeps_exactly_k",
            "next_token_distribution.top_k_breaks_a_tie_by_the_lowest_ids",
        ),
    ),
    Pitfall(
        id="next_token_distribution.top_k_keeps_one_more",
        catalogue=("systems/top_k_off_by_one",),
        sources=("https://github.com/kingoflolz/mesh-transformer-jax/issues/164",),
        does="top-k drops the ranks above k, counted from 0, and so keeps k + 1.",
        shows="k = 1 is not greedy.",
        mend="Drop the ranks from k on.",
        visibility="silent",
        around={"next_token_distribution": top_k_keeps_one_more},
        caught_by=(
            "next_token_distribution.top_k_keeps_exactly_k",
            "next_token_distribution.top_k_keeps_the_largest_and_renormalises",
        ),
    ),
    Pitfall(
        id="next_token_distribution.top_k_never_drops_token_zero",
        catalogue=("systems/top_k_penalty_multiplied_by_token_id",),
        sources=("https://github.com/kingoflolz/mesh-transformer-jax/issues/164",),
        does="What is to be dropped is marked by its token id times a penalty, which for token 0 is no mark.",
        shows="Token 0 stays in the distribution however unlikely it is.",
        mend="Mark with booleans and fill with -inf.",
        visibility="silent",
        around={"next_token_distribution": top_k_never_drops_token_zero},
        caught_by=(
            "next_token_distribution.renaming_the_tokens_renames_what_top_k_keeps",
            "next_token_distribution.top_k_keeps_exactly_k",
        ),
    ),
    Pitfall(
        id="next_token_distribution.option_never_run",
        catalogue=("systems/decode_branch_never_executed",),
        sources=("https://github.com/lucidrains/x-transformers/issues/165",),
        does="The branch of one option calls a name that does not exist.",
        shows="The first call with that option raises; all calls by default work.",
        mend="Run every option once in a test that asks only for a result of the right shape.",
        visibility="raises",
        around={"next_token_distribution": top_k_calls_what_is_not_there},
        caught_by=(
            "next_token_distribution.top_k_keeps_exactly_k",
            "next_token_distribution.each_row_is_cut_by_itself",
        ),
    ),
    Pitfall(
        id="next_token_distribution.top_p_drops_the_crossing_token",
        catalogue=("systems/top_p_drops_crossing_token",),
        sources=(
            "https://github.com/rasbt/reasoning-from-scratch/issues/164",
            "https://github.com/Biohub/esm/pull/360",
            "https://github.com/fishaudio/fish-speech/pull/1171",
            "https://github.com/thu-nics/C2C/pull/21",
        ),
        does="top-p keeps the ranks whose mass stays within p, and drops the one that crosses it.",
        shows="The mass that is kept lies below p: of 0.5, 0.41 and 0.09 p = 0.9 keeps one and not two.",
        mend="Keep a rank where the mass before it is below p.",
        visibility="silent",
        around={"next_token_distribution": top_p_drops_the_crossing_token},
        caught_by=(
            "next_token_distribution.top_p_keeps_the_smallest_set_that_reaches_p",
            "next_token_distribution.a_tiny_top_p_keeps_the_first_token",
        ),
    ),
    Pitfall(
        id="next_token_distribution.top_p_subtracts_the_first",
        catalogue=("systems/top_p_exclusive_sum_by_first_element",),
        sources=("https://github.com/facebookresearch/ParlAI/pull/2733",),
        does="The mass before a rank is computed by subtracting the first probability, not the rank's own.",
        shows="top-p keeps too many: of 0.6, 0.2 and 0.2 p = 0.5 drops none.",
        mend="Subtract from the cumulative sum at each rank the probability of that rank.",
        visibility="silent",
        around={"next_token_distribution": top_p_subtracts_the_first},
        caught_by=("next_token_distribution.top_p_keeps_the_smallest_set_that_reaches_p",),
    ),
    Pitfall(
        id="next_token_distribution.tiny_top_p_keeps_none",
        catalogue=("systems/top_p_small_masks_everything",),
        sources=(
            "https://github.com/ml-explore/mlx-lm/pull/1912",
            "https://github.com/google-deepmind/simply/pull/42",
        ),
        does="top-p keeps what exceeds 1 - p from below, and 1 - p rounds to 1 where p is small.",
        shows="No token is left, and the draw gives NaN, noise or token 0.",
        mend="Keep the first rank in any case, and compare the mass from above with p itself.",
        visibility="silent",
        around={"next_token_distribution": top_p_by_what_is_left},
        caught_by=("next_token_distribution.a_tiny_top_p_keeps_the_first_token",),
    ),
    Pitfall(
        id="sample.one_number_for_all_rows",
        catalogue=("systems/rng_shared_across_batch_rows",),
        sources=(
            "https://github.com/AUTOMATIC1111/stable-diffusion-webui/issues/376",
            "https://github.com/Sygil-Dev/sygil-webui/issues/1350",
            "https://github.com/TorchSim/torch-sim/issues/51",
            "https://github.com/sgl-project/sglang-omni/pull/824",
        ),
        does="All rows of a batch are drawn with one random number, so that a row depends on what stands beside it.",
        shows="The same seed gives another text in a batch of another size or order.",
        mend="Give each row a number of its own, keyed by its seed and its place in the text.",
        visibility="silent",
        around={"sample": one_number_for_all_rows},
        caught_by=("sample.each_row_is_drawn_by_itself", "sample.draws_the_id_whose_interval_holds_the_number"),
    ),
    Pitfall(
        id="sample.cumulated_in_float32",
        catalogue=("systems/cumsum_low_precision_loses_tail",),
        sources=("https://github.com/pytorch/pytorch/issues/28390",),
        does="The probabilities are summed in a dtype of few digits, where a small one after a large one adds nothing.",
        shows="Rare tokens that come after a likely one are never drawn, or all but the last are not.",
        mend="Sum in float64, or draw by the largest logit plus Gumbel noise.",
        visibility="silent",
        functions={"sample": cumulated_in_float32},
        caught_by=("sample.a_rare_id_after_a_likely_one_is_drawn",),
    ),
)


def of_log_probabilities(right: Function) -> Function:
    """Let temperature, top-k and top-p act on the logarithms of the probabilities."""
    return as_strict_as(right)(lambda logits, **options: right(log_softmax(logits), **options))


def of_stretched_logits(right: Function) -> Function:
    """Double the logits."""
    return lambda logits, **options: right(2 * logits, **options)


EQUIVALENCES = (
    Equivalence(
        id="next_token_distribution.of_log_probabilities",
        catalogue=("equivalences/temperature_on_logprobs_false_alarm",),
        sources=(
            "https://github.com/MoonshotAI/Kimi-Audio/pull/161",
            "https://github.com/ggml-org/llama.cpp/issues/3971",
        ),
        says="softmax(log_softmax(z) / T) is softmax(z / T), for a log-softmax subtracts one number from all of a row.",
        around={"next_token_distribution": of_log_probabilities},
    ),
    Equivalence(
        id="next_token_distribution.of_stretched_logits",
        catalogue=("equivalences/greedy_hides_monotone_head_errors",),
        sources=(
            "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4645",
            "https://github.com/ml-explore/mlx-examples/pull/591",
        ),
        says="The largest logit stays the largest under any rising map, such as a cap, a temperature or a scale.",
        condition="only the first rank is asked for: at temperature 0, of ties or of a tiny top-p",
        around={"next_token_distribution": of_stretched_logits},
        outside=(
            "next_token_distribution.logits_are_log_odds",
            "next_token_distribution.temperature_divides_the_logits",
            "next_token_distribution.top_k_keeps_the_largest_and_renormalises",
            "next_token_distribution.renaming_the_tokens_renames_what_top_k_keeps",
            "next_token_distribution.top_p_*",
            "next_token_distribution.agrees_with_the_reference.*",
        ),
    ),
)
