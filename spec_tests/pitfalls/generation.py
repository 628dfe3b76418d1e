"""Known mistakes in writing one token after another."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference.data import sampling_uniforms
from reference.numpy import next_token_distribution, sample, transformer
from spec_tests.pitfalls.pitfall import Pitfall


def context_not_cropped(
    ids: Any, params: Any, config: Any, *, max_new_tokens: int, uniforms: Any = None, seed: int = 0, **options: Any
) -> Iterator[int]:
    """Give the model all that was written so far, however long it is."""
    context = list(ids)
    draws = iter(sampling_uniforms(seed) if uniforms is None else uniforms)
    for _ in range(max_new_tokens):
        logits = transformer(np.array([context]), params, config)[0, -1]
        context.append(int(sample(next_token_distribution(logits, **options), np.asarray(next(draws)))))
        yield context[-1]


def bound_without_the_offset(x: Any, table: Any, *, offset: int = 0) -> Any:
    """Hold the length of the text against the table, and not where it ends."""
    if x.shape[-2] > table.shape[0]:
        raise ValueError("the text is longer than the table")
    return x + table[offset : offset + x.shape[-2]]


PITFALLS = (
    Pitfall(
        id="generation.context_not_cropped",
        catalogue=("systems/context_not_cropped",),
        sources=(
            "https://github.com/huggingface/transformers/issues/1749",
            "https://github.com/Nehanth/swarmllm/issues/31",
            "https://github.com/gittensor-ai-lab/sparkinfer/pull/143",
        ),
        does="The model is given the whole text although it knows max_len positions only.",
        shows="Once the text is longer than max_len generation raises, or reads past the table.",
        mend="Give the model the last max_len tokens, counted from position 0 again, or stop.",
        visibility="raises",
        programs={"reference.numpy.generation.generate": context_not_cropped},
        caught_by=(
            "spec_tests.test_generation.test_generation_goes_on_past_max_len",
            "spec_tests.test_generation.test_greedy_generation_takes_the_largest_logit",
        ),
    ),
    Pitfall(
        id="add_positions.bound_without_the_offset",
        catalogue=("systems/bounds_check_ignores_offset",),
        sources=("https://github.com/karpathy/nanochat/pull/520",),
        does="The length of the text is held against the table, and not the place where it ends, offset + length.",
        shows="Past the end of the table the slice is too short: nothing, one row for all, or a late error of shapes.",
        mend="Check offset + length.",
        visibility="silent",
        functions={"add_positions": bound_without_the_offset},
        caught_by=("add_positions.an_offset_past_the_table_raises",),
    ),
)
