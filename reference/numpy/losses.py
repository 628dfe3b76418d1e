"""How wrong a prediction is."""

import numpy as np
from jaxtyping import Bool, Float, Integer

from reference.numpy._checks import ids_in_range, in_range, no_empty_axis, one_dtype


def cross_entropy(
    logits: Float[np.ndarray, "*batch vocab"],
    targets: Integer[np.ndarray, "*batch"],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Float[np.ndarray, ""]:
    r"""Average the surprise at the targets, in nats.

    $$ loss = -\frac{1}{N} \sum_t \sum_c y_{tc} \log p_{tc}, \qquad p_t = \operatorname{softmax}(logits_t) $$

    where y_t is 1 at the target, or with smoothing a: 1 - a there plus a / vocab on every class. The N targets other
    than `ignore_index` count; if there are none the loss is 0. A target of logit -inf has loss inf.

    Raises IndexError for another target outside 0 ... vocab - 1, ValueError for a smoothing outside [0, 1].

    Source: Shannon 1948; Szegedy et al. 2016, section 7 (smoothing).
    """
    counted = _counted(logits, targets, ignore_index, label_smoothing)
    logits, targets = logits[counted], targets[counted]
    if targets.size == 0:
        return np.zeros((), logits.dtype)

    y = _target_distribution(logits, targets, label_smoothing)
    surprise = np.where(y > 0, -_log_softmax(logits), 0)  # 0 x inf has no part in the sum
    return np.asarray((y * surprise).sum(axis=-1).mean(), logits.dtype)


def cross_entropy_vjp(
    cotangent: Float[np.ndarray, ""],
    logits: Float[np.ndarray, "*batch vocab"],
    targets: Integer[np.ndarray, "*batch"],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Float[np.ndarray, "*batch vocab"]]:
    r"""Give the gradient of the logits: what was predicted minus what was there.

    $$ dlogits_t = \frac{p_t - y_t}{N} \, dloss $$

    for the N targets that count; the others get 0, and so do all if N is 0. Raises as `cross_entropy` does.

    Source: Bridle 1990 (the softmax's gradient under this loss).
    """
    one_dtype("cross_entropy_vjp", logits=logits, cotangent=cotangent)
    counted = _counted(logits, targets, ignore_index, label_smoothing)
    d_logits = np.zeros_like(logits)
    logits, targets = logits[counted], targets[counted]
    p, y = np.exp(_log_softmax(logits)), _target_distribution(logits, targets, label_smoothing)
    d_logits[counted] = cotangent * (p - y) / targets.size
    return (d_logits,)


def perplexity(total_loss: float, n_tokens: int) -> Float[np.ndarray, ""]:
    r"""Turn a summed loss into the number of equally likely tokens that would be as surprising.

    $$ perplexity = e^{total / n} $$

    from sums, because a mean of means weighs short batches too heavily. A perplexity too large for a float is inf.

    Raises ValueError for n_tokens < 1.

    Source: Jelinek et al. 1977.
    """
    if n_tokens < 1:
        raise ValueError(f"perplexity: n_tokens must be at least 1, got {n_tokens}; give a target that counts")
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(np.float64(total_loss) / n_tokens))


def _counted(
    logits: Float[np.ndarray, "*batch vocab"],
    targets: Integer[np.ndarray, "*batch"],
    ignore_index: int,
    label_smoothing: float,
) -> Bool[np.ndarray, "*batch"]:
    """Say which targets count, once the inputs are known to be good."""
    no_empty_axis("cross_entropy", logits, "vocab")
    in_range("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
    counted = np.asarray(targets != ignore_index)
    ids_in_range("cross_entropy", "targets", targets[counted], logits.shape[-1], "vocab")
    return counted


def _target_distribution(
    logits: Float[np.ndarray, "n vocab"], targets: Integer[np.ndarray, "n"], label_smoothing: float
) -> Float[np.ndarray, "n vocab"]:
    """Give y: 1 at the target, or with smoothing a: 1 - a there plus a / vocab on every class."""
    y = np.full(logits.shape, label_smoothing / logits.shape[-1], logits.dtype)
    y[np.arange(targets.size), targets] += 1 - label_smoothing
    return y


def _log_softmax(logits: Float[np.ndarray, "*batch vocab"]) -> Float[np.ndarray, "*batch vocab"]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
