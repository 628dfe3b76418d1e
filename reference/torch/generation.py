"""Generation: one token after another, each drawn from what the model makes of those before it."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from reference.data import sampling_uniforms
from reference.torch.models import Transformer
from reference.torch.sampling import next_token_distribution, sample
from reference.torch.training import mode


def generate(
    model: Transformer,
    ids: Sequence[int],
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
    temperature 0 any do. Dropout is off while the model computes, and its mode is as before whenever an id is
    handed out.

    Raises ValueError for an empty prompt, a negative max_new_tokens, or options that
    `next_token_distribution` refuses, IndexError for ids outside the vocab; all at the call, not at the first
    id.
    """
    vocab, max_len = model.config.vocab, model.config.max_len
    if len(ids) == 0:
        raise ValueError("generate: the prompt must hold at least one id, got none; give a prompt")
    if outside := [i for i in ids if not 0 <= i < vocab]:
        raise IndexError(
            f"generate: ids must lie in 0 ... {vocab - 1}, got {outside[0]}; use tokens that the model knows"
        )
    if max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens must be at least 0, got {max_new_tokens}; give 1 or more")
    # The options meet a row of zeros first, so that a wrong one is refused here.
    next_token_distribution(torch.zeros(vocab, dtype=torch.float64), temperature=temperature, top_k=top_k, top_p=top_p)
    device = next(model.parameters()).device
    draws = iter(sampling_uniforms(seed) if uniforms is None else uniforms)

    def new_ids() -> Iterator[int]:
        context = list(ids)
        for _ in range(max_new_tokens):
            context = context[-max_len:]
            with mode(model, training=False), torch.no_grad():
                logits = model(torch.tensor([context], device=device))[0, -1]
            p = next_token_distribution(logits.cpu().double(), temperature=temperature, top_k=top_k, top_p=top_p)
            if (uniform := next(draws, None)) is None:
                raise ValueError("generate: uniforms must be one for each new token, got fewer; give more")
            drawn = int(sample(p, torch.tensor(uniform, dtype=torch.float64)))
            context.append(drawn)
            yield drawn

    return new_ids()
