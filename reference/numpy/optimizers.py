"""How a parameter learns from its gradient."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from reference.numpy._checks import in_range, one_dtype
from reference.parameters import leaves, map_tree


def adamw_step(
    param: Float[np.ndarray, "*shape"],
    grad: Float[np.ndarray, "*shape"],
    m: Float[np.ndarray, "*shape"],
    v: Float[np.ndarray, "*shape"],
    *,
    step: int,
    lr: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    r"""Take one step of AdamW; returns the new (param, m, v).

    $$ m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 $$
    $$ \theta \leftarrow \theta - \eta \lambda \theta
       - \eta \, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} $$

    where t is `step`, counted from 1, eta is `lr` and lambda is `weight_decay`. The decay acts on the old weight and
    does not pass through m and v; eps is added after the correction of the bias.

    Raises ValueError for step < 1, a negative lr, eps or weight_decay, or a beta outside [0, 1).

    Source: Loshchilov & Hutter 2019, algorithm 2 (with the schedule in lr); Kingma & Ba 2015, algorithm 1.
    """
    one_dtype("adamw_step", param=param, grad=grad, m=m, v=v)
    if step < 1:
        raise ValueError(f"adamw_step: step must be at least 1, got {step}; count steps from 1")
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        in_range("adamw_step", name, value, 0, np.inf)
    for name, value in (("beta_1", beta_1), ("beta_2", beta_2)):
        in_range("adamw_step", name, value, 0, 1, open_high=True)
    m = np.asarray(beta_1 * m + (1 - beta_1) * grad)
    v = np.asarray(beta_2 * v + (1 - beta_2) * grad**2)
    m_hat = m / (1 - beta_1**step)
    v_hat = v / (1 - beta_2**step)
    return np.asarray(param - lr * weight_decay * param - lr * m_hat / (np.sqrt(v_hat) + eps)), m, v


def clip_grad_norm(grads: Any, *, max_norm: float) -> tuple[Any, Float[np.ndarray, ""]]:
    r"""Shorten the gradient to `max_norm` if it is longer; returns (grads, norm before clipping).

    $$ \|g\| = \sqrt{\textstyle\sum_i g_i^2}, \qquad g \leftarrow g \cdot \min(1, max\_norm / \|g\|) $$

    with one norm over all arrays of the tree, so that the direction stays. The norm is computed without overflow; a
    gradient that is short enough is untouched.

    Raises ValueError for max_norm <= 0, or where a gradient is NaN or infinite.

    Source: Pascanu et al. 2013, section 3.2.
    """
    if not 0 < max_norm < np.inf:
        raise ValueError(f"clip_grad_norm: max_norm must be positive and finite, got {max_norm}; give one such as 1")
    arrays = dict(leaves(grads))
    if not arrays:
        raise ValueError("clip_grad_norm: grads must hold at least one array, got none; give a tree of gradients")
    one_dtype("clip_grad_norm", **arrays)
    for path, grad in arrays.items():
        if not np.isfinite(grad).all():
            raise ValueError(
                f"clip_grad_norm: gradients must be finite, got NaN or infinity in grads[{path}]; "
                f"leave the step out, or lower the learning rate"
            )
    dtype = next(iter(arrays.values())).dtype
    largest = max(float(np.abs(grad).max(initial=0)) for grad in arrays.values())
    if largest == 0:
        return grads, np.zeros((), dtype)
    norm = largest * math.sqrt(sum(float(((grad / largest) ** 2).sum()) for grad in arrays.values()))
    if norm > max_norm:
        grads = map_tree(lambda grad: np.asarray(grad * (max_norm / norm)), grads)
    return grads, np.asarray(norm, dtype)


def warmup_cosine(step: int, *, warmup: int, total: int, max_lr: float, min_lr: float = 0.0) -> Float[np.ndarray, ""]:
    r"""Give the learning rate of a step: up in a straight line, then down along half a cosine.

    $$ \eta_t = \eta_{max} \frac{t + 1}{warmup} \quad (t < warmup), \qquad
       \eta_t = \eta_{min} + \tfrac12 (\eta_{max} - \eta_{min}) \left(1 + \cos \pi \frac{t - peak}{end - peak}\right) $$

    with steps counted from 0, peak = max(warmup - 1, 0) and end = total - 1; after the end it stays at min_lr. The
    first rate is never 0, and where peak and end coincide the peak wins.

    Raises ValueError unless total >= 1, 0 <= warmup <= total, 0 <= min_lr <= max_lr and step >= 0.

    Source: Loshchilov & Hutter 2017, equation 5 (without restarts); Goyal et al. 2017, section 2.2 (warm-up).
    """
    if step < 0:
        raise ValueError(f"warmup_cosine: step must be at least 0, got {step}; count steps from 0")
    if total < 1:
        raise ValueError(f"warmup_cosine: total must be at least 1, got {total}; give the number of steps of the run")
    if not 0 <= warmup <= total:
        raise ValueError(
            f"warmup_cosine: warmup must lie in 0 ... total, got {warmup} and {total}; give a tenth of total, or 0"
        )
    if not 0 <= min_lr <= max_lr < np.inf:
        raise ValueError(
            f"warmup_cosine: rates must be finite with 0 <= min_lr <= max_lr, got {min_lr} and {max_lr}; "
            f"give min_lr 0 or a tenth of max_lr"
        )
    peak, end = max(warmup - 1, 0), total - 1
    if step < warmup:
        rate = max_lr * (step + 1) / warmup
    elif step == peak:
        rate = max_lr
    elif step >= end:
        rate = min_lr
    else:
        rate = min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * (step - peak) / (end - peak)))
    return np.asarray(rate, np.float64)
