"""What a computation costs, read off torch's graph: for the claims about it, and for the benchmark that draws them."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def longest_chain(result: Tensor, named: str = "") -> int:
    """Count the operations on the longest path through the graph of autograd, or only those of a name."""
    length: dict[Any, int] = {}
    waiting = [(result.grad_fn, False)]
    while waiting:
        node, inputs_known = waiting.pop()
        before = [other for other, _ in node.next_functions if other is not None]
        if inputs_known:
            length[node] = (named in node.name()) + max((length[other] for other in before), default=0)
        elif node not in length:
            waiting += [(node, True), *((other, False) for other in before if other not in length)]
    return length[result.grad_fn]


def kept_bytes(work: Callable[[], Tensor]) -> int:
    """Count what a forward pass keeps for its gradient, each piece of memory once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = work()  # alive until counted, so that no piece of memory is used twice
    assert result.requires_grad
    return sum(kept.values())


def textbook(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention as the formula reads, with the matrix of weights in memory."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v
