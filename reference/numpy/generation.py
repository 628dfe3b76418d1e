"""Generation: one token after another, each drawn from what the model makes of those before it."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from reference.config import ModelConfig
from reference.data import sampling_uniforms
from reference.numpy.models import transformer
from reference.numpy.sampling import next_token_distribution, sample
from reference.parameters import Tree, check_params, parameter_shapes


def generate(
    ids: Sequence[int],
    params: Tree,
    config: ModelConfig,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    uniforms: Iterable[float] | None = None,
    seed: int = 0,
) -> Iterator[int]:
    r"""Continue `ids`: give `max_new_tokens` new ids, each as soon as it is drawn.

    $$ id_{t} = sample(next\_token\_distribution(logits_{t - 1}), u_t) $$

    where the logits come from the last max_len ids and u_t are `uniforms`, by default those that
    `reference.data.sampling_uniforms` draws from `seed`. The same uniform numbers give the same ids; at
    temperature 0 any do.

    Raises ValueError for an empty prompt, a negative max_new_tokens, parameters other than the config's, or options
    that `next_token_distribution` refuses, IndexError for ids outside the vocab; all at the call, not at the first
    id.
    """
    check_params("generate", params, parameter_shapes(config))
    if len(ids) == 0:
        raise ValueError("generate: the prompt must hold at least one id, got none; give a prompt")
    if outside := [i for i in ids if not 0 <= i < config.vocab]:
        raise IndexError(
            f"generate: ids must lie in 0 ... {config.vocab - 1}, got {outside[0]}; use tokens that the model knows"
        )
    if max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens must be at least 0, got {max_new_tokens}; give 1 or more")

    def distribution(logits: np.ndarray) -> np.ndarray:
        scores = logits.astype(np.float64)
        return next_token_distribution(scores, temperature=temperature, top_k=top_k, top_p=top_p)

    distribution(np.zeros(config.vocab))  # the options meet a row of zeros first, so that a wrong one is refused here
    draws = iter(sampling_uniforms(seed) if uniforms is None else uniforms)

    def new_ids() -> Iterator[int]:
        context = list(ids)
        for _ in range(max_new_tokens):
            context = context[-config.max_len :]
            logits = transformer(np.array([context]), params, config)[0, -1]
            if (uniform := next(draws, None)) is None:
                raise ValueError("generate: uniforms must be one for each new token, got fewer; give more")
            drawn = int(sample(distribution(logits), np.asarray(uniform, np.float64)))
            context.append(drawn)
            yield drawn

    return new_ids()
