"""Known mistakes in what a model is trained and measured on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reference.data import IGNORED, Batch, ShuffledSequences, TextWindows, byte_tokens
from spec_tests.pitfalls.pitfall import Pitfall

DATA = "reference.data"
FOLLOW, COVERS, APART, STREAMS = (
    f"spec_tests.reference.test_data.test_{name}"
    for name in (
        "targets_follow_their_ids",
        "evaluation_covers_every_target_once",
        "validation_reads_nothing_that_training_reads",
        "purposes_and_numbers_have_streams_of_their_own",
    )
)


def targets_are_the_ids(self: TextWindows, starts: Any) -> Batch:
    """Ask each place for the token that stands there."""
    ids = self.tokens[starts[:, None] + np.arange(self.seq)].astype(np.int64)
    return ids, ids.copy()


def shifted_across_rows(self: TextWindows, starts: Any) -> Batch:
    """Lay the windows end to end before they are shifted."""
    ids = self.tokens[starts[:, None] + np.arange(self.seq)].astype(np.int64)
    return ids, np.roll(ids.ravel(), -1).reshape(ids.shape)


def seams_are_not_scored(self: TextWindows) -> Iterator[Batch]:
    """Cut the text into pieces and shift each, as a model does that shifts inside."""
    for start in range(0, len(self.tokens) - 1, self.seq):
        piece = self.tokens[start : start + self.seq].astype(np.int64)
        if len(piece) > 1:
            yield piece[None, :-1], piece[None, 1:]


def one_target_too_many(self: TextWindows) -> Iterator[Batch]:
    """Leave out one place fewer than the last window repeats."""
    n_targets = len(self.tokens) - 1
    for start in range(0, n_targets, self.seq):
        first = min(start, n_targets - self.seq)
        ids, targets = self._windows(np.array([first]))
        yield ids, np.where(np.arange(self.seq) <= start - first - 2, IGNORED, targets)


def windows_split_at_random(source: str, *, seq: int, batch_size: int, seed: int) -> Any:
    """Cut a text into windows that overlap, and deal these out to training and validation."""
    tokens = byte_tokens(Path(source).read_bytes())
    windows = np.lib.stride_tricks.sliding_window_view(tokens, seq + 1)
    shuffled = windows[np.random.default_rng(seed).permutation(len(windows))]
    cut = len(shuffled) * 9 // 10
    return tuple(
        ShuffledSequences(sequences=part, batch_size=batch_size, seed=seed) for part in (shuffled[:cut], shuffled[cut:])
    )


def training_reads_on(source: str, *, seq: int, batch_size: int, seed: int) -> Any:
    """Let a window of training begin anywhere before the cut, and end where it may."""
    tokens = byte_tokens(Path(source).read_bytes())
    cut = len(tokens) * 9 // 10
    return tuple(
        TextWindows(tokens=part, seq=seq, batch_size=batch_size, seed=seed)
        for part in (tokens[: cut + seq], tokens[cut:])
    )


def one_state_for_all(seed: int, purpose: str, number: int = 0) -> np.random.Generator:
    """Begin every stream at the same state."""
    return np.random.default_rng(seed)


PITFALLS = (
    Pitfall(
        id="data.targets_not_shifted",
        catalogue=("components/loss_target_not_shifted",),
        sources=(
            "https://github.com/huggingface/transformers/pull/404",
            "https://github.com/Project-MONAI/GenerativeModels/issues/314",
            "https://github.com/huggingface/transformers/issues/3711",
            "https://github.com/microsoft/TransformerCompression/pull/98",
        ),
        does="Each place is asked for its own token and not for the next one.",
        shows="The loss falls to almost 0, and the model repeats what it is given.",
        mend="Let the target of a place be the token that follows it.",
        visibility="training",
        programs={f"{DATA}.TextWindows._windows": targets_are_the_ids},
        caught_by=(FOLLOW, COVERS),
    ),
    Pitfall(
        id="data.shifted_across_rows",
        catalogue=(
            "components/loss_shift_after_flatten",
            "systems/shift_after_flatten_crosses_rows",
        ),
        sources=("https://github.com/huggingface/transformers/issues/47394",),
        does="The rows of a batch are laid end to end before they are shifted, so that the last target of a row is the "
        "first token of the next row.",
        shows="One target in each row is noise, and the loss depends on the order of the rows.",
        mend="Take the last target of a row from the text that it was cut from.",
        visibility="training",
        programs={f"{DATA}.TextWindows._windows": shifted_across_rows},
        caught_by=(FOLLOW, COVERS),
    ),
    Pitfall(
        id="data.seams_are_not_scored",
        catalogue=("systems/ppl_stride_window_off_by_one",),
        sources=(
            "https://github.com/huggingface/transformers/issues/30975",
            "https://github.com/huggingface/transformers/issues/34138",
            "https://github.com/huggingface/transformers/issues/18887",
            "https://github.com/huggingface/transformers/pull/7938",
        ),
        does="A text is cut into windows side by side and each is shifted by itself, so that no window scores the "
        "token at its seam.",
        shows="Of every seq tokens one is never scored, and weights by window length count it all the same.",
        mend="Let windows overlap by one token, and count the targets, not the tokens.",
        visibility="silent",
        programs={f"{DATA}.TextWindows.evaluation": seams_are_not_scored},
        caught_by=(COVERS,),
    ),
    Pitfall(
        id="data.one_target_too_many",
        catalogue=("systems/ppl_counts_one_pad_token",),
        sources=("https://github.com/ml-explore/mlx-lm/pull/1855",),
        does="The mask of what does not count is off by one and lets one place too many through.",
        shows="The perplexity of a text depends on how it was cut into batches.",
        mend="Count the places below the length, index < length.",
        visibility="silent",
        programs={f"{DATA}.TextWindows.evaluation": one_target_too_many},
        caught_by=(COVERS,),
    ),
    Pitfall(
        id="data.windows_split_at_random",
        catalogue=("systems/overlapping_windows_split_randomly",),
        sources=(
            "https://github.com/Y-debug-sys/Diffusion-TS/issues/67",
            "https://github.com/TalwalkarLab/leaf/issues/19",
            "https://github.com/HelenGuohx/logbert/issues/57",
            "https://github.com/ermongroup/Wifi_Activity_Recognition/issues/47",
            "https://github.com/iarai/NeurIPS2022-traffic4cast/pull/22",
        ),
        does="A text is cut into windows that overlap before these are dealt out to training and validation.",
        shows="Every window of validation stands almost whole in training, and its loss falls with that of training.",
        mend="Cut the text in two first, and each part into windows.",
        visibility="silent",
        programs={f"{DATA}.datasets": windows_split_at_random},
        caught_by=(APART,),
    ),
    Pitfall(
        id="data.training_reads_into_validation",
        catalogue=("systems/random_offset_reads_into_validation_chunk",),
        sources=("https://github.com/HKU-BAL/Clair3/issues/57",),
        does="Windows of training begin anywhere before the cut, and the last of them read on into validation.",
        shows="The first tokens that were held out are trained on.",
        mend="Let windows end, not only begin, before the cut.",
        visibility="silent",
        programs={f"{DATA}.datasets": training_reads_on},
        caught_by=(APART,),
    ),
    Pitfall(
        id="data.one_state_for_all",
        catalogue=("systems/numpy_seed_copied_to_workers",),
        sources=(
            "https://github.com/pytorch/pytorch/issues/5059",
            "https://github.com/xingyizhou/CenterNet/issues/233",
            "https://github.com/Lightning-AI/pytorch-lightning/issues/20412",
        ),
        does="Every worker and every epoch begins with the same state of the random numbers.",
        shows="Batches repeat: the same draws in each worker, and in each epoch again.",
        mend="Key each draw by seed, purpose and number.",
        visibility="training",
        programs={f"{DATA}.generator": one_state_for_all},
        caught_by=(STREAMS, "spec_tests.reference.test_data.test_batches_differ_and_reach_both_ends"),
    ),
)
