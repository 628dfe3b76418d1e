"""How wrong a prediction is."""

import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import functional

from reference.torch._checks import check_ids, check_input, check_range


def cross_entropy(
    logits: Float[Tensor, "*batch vocab"],
    targets: Integer[Tensor, "*batch"],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    r"""Average the surprise at the targets, in nats.

    $$ loss = -\frac{1}{N} \sum_t \sum_c y_{tc} \log p_{tc}, \qquad p_t = \operatorname{softmax}(logits_t) $$

    where y_t is 1 at the target, or with smoothing a: 1 - a there plus a / vocab on every class. The N targets other
    than `ignore_index` count; if there are none the loss is 0. A target of logit -inf has loss inf.

    Raises IndexError for another target outside 0 ... vocab - 1, ValueError for a smoothing outside [0, 1].

    Source: Shannon 1948; Szegedy et al. 2016, section 7 (smoothing).
    """
    check_input("cross_entropy", "logits", logits, "vocab")
    vocab = logits.shape[-1]
    if targets.shape != logits.shape[:-1]:
        raise TypeError(
            f"cross_entropy: targets must have the batch shape of logits, {tuple(logits.shape[:-1])}, "
            f"got {tuple(targets.shape)}"
        )
    check_range("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
    targets = check_ids("cross_entropy", "targets", targets, vocab, ignored=ignore_index)
    flat, flat_targets = logits.reshape(-1, vocab), targets.reshape(-1)
    if label_smoothing == 1:  # torch gives the target the rest, and 0 x inf is NaN
        losses = -functional.log_softmax(flat, dim=-1).mean(dim=-1).masked_fill(flat_targets == ignore_index, 0)
    else:
        losses = functional.cross_entropy(
            flat, flat_targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
        )
    # Torch's own mean over no targets is NaN.
    n = (targets != ignore_index).sum().clamp(min=1)
    total = losses.sum(dtype=torch.promote_types(logits.dtype, torch.float32))
    return (total / n).to(logits.dtype)


def perplexity(total_loss: float, n_tokens: int) -> Float[Tensor, ""]:
    r"""Turn a summed loss into the number of equally likely tokens that would be as surprising.

    $$ perplexity = e^{total / n} $$

    from sums, because a mean of means weighs short batches too heavily. A perplexity too large for a float is inf.

    Raises ValueError for n_tokens < 1.

    Source: Jelinek et al. 1977.
    """
    if n_tokens < 1:
        raise ValueError(f"perplexity: n_tokens must be at least 1, got {n_tokens}; give a target that counts")
    return torch.tensor(total_loss / n_tokens, dtype=torch.float64).exp()
