"""How a parameter learns from its gradient."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from reference.parameters import leaves, map_tree
from reference.torch._checks import check_input, check_parts, check_range, readable


def adamw_step(
    param: Float[Tensor, "*shape"],
    grad: Float[Tensor, "*shape"],
    m: Float[Tensor, "*shape"],
    v: Float[Tensor, "*shape"],
    *,
    step: int,
    lr: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    r"""Take one step of AdamW; returns the new (param, m, v).

    $$ m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 $$
    $$ \theta \leftarrow \theta - \eta \lambda \theta
       - \eta \, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} $$

    where t is `step`, counted from 1, eta is `lr` and lambda is `weight_decay`. The decay acts on the old weight and
    does not pass through m and v; eps is added after the correction of the bias.

    Raises ValueError for step < 1, a negative lr, eps or weight_decay, or a beta outside [0, 1).

    Source: Loshchilov & Hutter 2019, algorithm 2 (with the schedule in lr); Kingma & Ba 2015, algorithm 1.
    """
    check_input("adamw_step", "param", param, "")
    shape = param.shape
    check_parts("adamw_step", param, grad=(grad, shape), m=(m, shape), v=(v, shape))
    if step < 1:
        raise ValueError(f"adamw_step: step must be at least 1, got {step}; count steps from 1")
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        check_range("adamw_step", name, value, 0, math.inf)
    for name, value in (("beta_1", beta_1), ("beta_2", beta_2)):
        check_range("adamw_step", name, value, 0, 1, below=True)
    m = beta_1 * m + (1 - beta_1) * grad
    v = beta_2 * v + (1 - beta_2) * grad.square()
    m_hat = m / (1 - beta_1**step)
    v_hat = v / (1 - beta_2**step)
    return param - lr * weight_decay * param - lr * m_hat / (v_hat.sqrt() + eps), m, v


def clip_grad_norm(grads: Any, *, max_norm: float) -> tuple[Any, Float[Tensor, ""]]:
    r"""Shorten the gradient to `max_norm` if it is longer; returns (grads, norm before clipping).

    $$ \|g\| = \sqrt{\textstyle\sum_i g_i^2}, \qquad g \leftarrow g \cdot \min(1, max\_norm / \|g\|) $$

    with one norm over all arrays of the tree, so that the direction stays. The norm is computed without overflow, and
    a gradient that is short enough is untouched.

    Raises ValueError for max_norm <= 0, or where a gradient is NaN or infinite.

    Source: Pascanu et al. 2013, section 3.2.
    """
    if not 0 < max_norm < math.inf:
        raise ValueError(f"clip_grad_norm: max_norm must be positive and finite, got {max_norm}; give one such as 1")
    named: dict[str, Tensor] = dict(leaves(grads))
    if not named:
        raise ValueError("clip_grad_norm: grads must hold at least one array, got none; give a tree of gradients")
    tensors = list(named.values())
    check_parts("clip_grad_norm", tensors[0], **{path: (grad, grad.shape) for path, grad in named.items()})

    norm = length = _length(tensors)
    if not readable(norm) or not 1e-12 < norm.item() < 1e18:  # squares may have overflowed, or vanished
        largest = torch.stack([grad.abs().amax() for grad in tensors]).amax()
        if readable(largest) and not largest.isfinite():
            path = next(path for path, grad in named.items() if not grad.isfinite().all())
            raise ValueError(
                f"clip_grad_norm: gradients must be finite, got NaN or infinity in grads[{path}]; "
                f"leave the step out, or lower the learning rate"
            )
        largest = largest.masked_fill(largest == 0, 1)
        tensors = [grad / largest for grad in tensors]
        length = _length(tensors)
        norm = largest * length

    factor = (max_norm / length).to(tensors[0].dtype)
    shorter = {path: grad * factor for path, grad in zip(named, tensors, strict=True)}
    if readable(norm):
        clipped = shorter if norm > max_norm else named
    else:
        clipped = {path: torch.where(norm > max_norm, shorter[path], grad) for path, grad in named.items()}
    paths = iter(clipped)
    return map_tree(lambda _: clipped[next(paths)], grads), norm.to(tensors[0].dtype)


def _length(tensors: list[Tensor]) -> Tensor:
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad, dtype=wide) for grad in tensors]))


def warmup_cosine(step: int, *, warmup: int, total: int, max_lr: float, min_lr: float = 0.0) -> Float[Tensor, ""]:
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
    if not 0 <= min_lr <= max_lr < math.inf:
        raise ValueError(
            f"warmup_cosine: rates must be finite with 0 <= min_lr <= max_lr, got {min_lr} and {max_lr}; "
            f"give min_lr 0 or a tenth of max_lr"
        )
    peak, end = max(warmup - 1, 0), total - 1
    if step <= peak:
        rate = max_lr * (step + 1) / (peak + 1)
    else:
        done = min((step - peak) / max(end - peak, 1), 1)
        rate = min_lr + (max_lr - min_lr) * (1 + math.cos(math.pi * done)) / 2
    return torch.tensor(rate, dtype=torch.float64)
