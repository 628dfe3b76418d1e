"""From scores to the next token."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from reference.torch._checks import check_input, check_parts, check_range, readable


def next_token_distribution(
    logits: Float[Tensor, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "*batch vocab"]:
    r"""Turn scores into the probabilities to sample from.

    $$ p = \operatorname{softmax}(logits / T), \quad \text{then the first } k \text{ ranks,}
       \quad \text{then the fewest ranks whose mass reaches } p $$

    each step acting on the renormalised result of the one before. Ranks go by logit, the lowest id first on a tie. A
    temperature of 0 puts everything on the first rank. top-k keeps exactly min(k, vocab) tokens; top-p keeps the token
    that crosses the line, so at least one, and p = 1 keeps all.

    Raises ValueError for temperature < 0, top_k < 1 or top_p outside (0, 1].

    Source: Ackley et al. 1985 (temperature); Fan et al. 2018 (top-k); Holtzman et al. 2020, section 3.1 (top-p).
    """
    check_input("next_token_distribution", "logits", logits, "vocab")
    check_range("next_token_distribution", "temperature", temperature, 0, math.inf, below=True)
    if top_k is not None and top_k < 1:
        raise ValueError(f"next_token_distribution: top_k must be at least 1, got {top_k}; give more, or None for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"next_token_distribution: top_p must lie in (0, 1], got {top_p}; give one such as 0.9")

    # float64, because a tiny temperature is 0 in float32; stable, because ties go to the lowest id.
    by_rank, ids = logits.double().sort(dim=-1, descending=True, stable=True)
    if temperature == 0:
        first = torch.zeros_like(by_rank)
        first[..., 0] = 1
        p = first.masked_fill(by_rank.isnan().any(dim=-1, keepdim=True), math.nan)
    else:
        # Shifting first keeps a tiny temperature from overflowing upwards; downwards is -inf, weight 0.
        p = functional.softmax((by_rank - by_rank[..., :1]) / temperature, dim=-1)
        if top_k is not None and top_k < p.shape[-1]:
            p = _renormalised(torch.cat((p[..., :top_k], torch.zeros_like(p[..., top_k:])), dim=-1))
        if top_p is not None and top_p < 1:
            mass_before = functional.pad(p.cumsum(dim=-1)[..., :-1], (1, 0))
            p = _renormalised(p.masked_fill(mass_before >= top_p, 0))
    return torch.zeros_like(p).scatter(-1, ids, p).to(logits.dtype)


def sample(probabilities: Float[Tensor, "*batch vocab"], uniform: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch"]:
    r"""Draw the id whose stretch of the cumulative distribution holds the uniform number.

    $$ id = \min \{ i : u < \textstyle\sum_{j \le i} p_j \} $$

    in float64. What rounding leaves over at the end belongs to the last id of positive probability, and an id of
    probability 0 is never drawn.

    Raises ValueError where a row is negative or does not sum to 1 (within 1e-6), or u is outside [0, 1).

    Source: Devroye 1986, section III.2 (inversion).
    """
    check_input("sample", "probabilities", probabilities, "vocab")
    check_parts("sample", probabilities, uniform=(uniform, probabilities.shape[:-1]))
    p = probabilities.double()
    if readable(p):
        if not (p >= 0).all():
            raise ValueError("sample: probabilities must be at least 0, got a negative one or NaN; give a softmax")
        off = (p.sum(dim=-1) - 1).abs() > 1e-6
        if off.any():
            raise ValueError(
                f"sample: each row of probabilities must sum to 1, got {p.sum(dim=-1)[off][0].item()}; "
                f"divide each row by its sum"
            )
        if not ((uniform >= 0) & (uniform < 1)).all():
            raise ValueError("sample: uniform must lie in [0, 1), got a number outside; draw it as with random()")
    # A cumulative sum on a parallel device may wobble where p is 0: ask for both.
    possible = p > 0
    past = (p.cumsum(dim=-1) > uniform.double()[..., None]) & possible
    place = torch.arange(p.shape[-1], device=p.device)
    last_possible = place.masked_fill(~possible, 0).amax(dim=-1)
    return torch.minimum(torch.where(past, place, p.shape[-1]).amin(dim=-1), last_possible)


def _renormalised(p: Tensor) -> Tensor:
    return p / p.sum(dim=-1, keepdim=True)
