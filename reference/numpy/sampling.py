"""From scores to the next token."""

import numpy as np
from jaxtyping import Float, Int

from reference.numpy._checks import in_range, no_empty_axis, one_dtype
from reference.numpy.attention import softmax


def next_token_distribution(
    logits: Float[np.ndarray, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[np.ndarray, "*batch vocab"]:
    r"""Turn scores into the probabilities to sample from.

    $$ p = \operatorname{softmax}(logits / T), \quad \text{then the first } k \text{ ranks,}
       \quad \text{then the fewest ranks whose mass reaches } p $$

    each step acting on the renormalised result of the one before. Ranks go by logit, the lowest id first on a tie. A
    temperature of 0 puts everything on the first rank. top-k keeps exactly min(k, vocab) tokens; top-p keeps the token
    that crosses the line, so at least one, and p = 1 keeps all.

    Raises ValueError for temperature < 0, top_k < 1 or top_p outside (0, 1].

    Source: Ackley et al. 1985 (temperature); Fan et al. 2018 (top-k); Holtzman et al. 2020, section 3.1 (top-p).
    """
    no_empty_axis("next_token_distribution", logits, "vocab")
    in_range("next_token_distribution", "temperature", temperature, 0, np.inf, open_high=True)
    if top_k is not None and top_k < 1:
        raise ValueError(f"next_token_distribution: top_k must be at least 1, got {top_k}; give more, or None for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"next_token_distribution: top_p must lie in (0, 1], got {top_p}; give one such as 0.9")

    by_rank = np.argsort(-logits, axis=-1, kind="stable")
    rank = np.argsort(by_rank, axis=-1)
    if temperature == 0:
        first = np.where(np.isnan(logits).any(axis=-1, keepdims=True), np.nan, rank == 0)
        return first.astype(logits.dtype)

    # Shifting first keeps a tiny temperature from overflowing upwards; downwards is -inf, weight 0.
    with np.errstate(over="ignore"):
        p = softmax((logits - logits.max(axis=-1, keepdims=True)) / temperature)
    if top_k is not None:
        p = _renormalised(np.where(rank < top_k, p, 0))
    if top_p is not None and top_p < 1:
        p_by_rank = np.take_along_axis(p, by_rank, axis=-1)
        mass_before = np.cumsum(p_by_rank, axis=-1) - p_by_rank
        mass_before = np.take_along_axis(mass_before, rank, axis=-1)
        p = _renormalised(np.where((mass_before < top_p) | np.isnan(p), p, 0))
    return p.astype(logits.dtype)


def sample(
    probabilities: Float[np.ndarray, "*batch vocab"], uniform: Float[np.ndarray, "*batch"]
) -> Int[np.ndarray, "*batch"]:
    r"""Draw the id whose stretch of the cumulative distribution holds the uniform number.

    $$ id = \min \{ i : u < \textstyle\sum_{j \le i} p_j \} $$

    in float64. What rounding leaves over at the end belongs to the last id of positive probability, and an id of
    probability 0 is never drawn.

    Raises ValueError where a row is negative or does not sum to 1 (within 1e-6), or u is outside [0, 1).

    Source: Devroye 1986, section III.2 (inversion).
    """
    one_dtype("sample", probabilities=probabilities, uniform=uniform)
    no_empty_axis("sample", probabilities, "vocab")
    p = probabilities.astype(np.float64)
    if not (p >= 0).all():
        raise ValueError("sample: probabilities must be at least 0, got a negative one or NaN; give a softmax")
    total = p.sum(axis=-1)
    if not (np.abs(total - 1) <= 1e-6).all():
        raise ValueError(
            f"sample: each row of probabilities must sum to 1, got {total[np.abs(total - 1) > 1e-6].flat[0]}; "
            f"divide each row by its sum"
        )
    if not ((uniform >= 0) & (uniform < 1)).all():
        raise ValueError("sample: uniform must lie in [0, 1), got a number outside; draw it as with random()")
    drawn = (np.cumsum(p, axis=-1) <= uniform[..., None]).sum(axis=-1)
    last_possible = p.shape[-1] - 1 - np.argmax(p[..., ::-1] > 0, axis=-1)
    return np.asarray(np.minimum(drawn, last_possible), np.int64)


def _renormalised(p: np.ndarray) -> np.ndarray:
    return p / p.sum(axis=-1, keepdims=True)
