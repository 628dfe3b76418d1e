"""Forward and backward of a MINI-sized step: the NumPy half beside eager PyTorch, in time; and its memory.

`python -m benchmarks.gradients numpy` prints the median seconds of one half, in a process of its own: in one process
the two libraries' idle threads take the cores from each other.
"""

import statistics
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from benchmarks.pairs import seconds
from benchmarks.training import BATCH, CONFIG, SEQ, VOCAB
from reference.config import ModelConfig
from reference.numpy.losses import cross_entropy, cross_entropy_vjp
from reference.numpy.models import backward_from_stream, forward_with_stream
from reference.parameters import Tree, init_params, leaves
from reference.shape_checks import unchecked
from reference.torch import Transformer, load_params
from reference.torch import cross_entropy as torch_cross_entropy

FLOAT = np.dtype(np.float32)


def _batch(batch: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(0).integers(0, VOCAB, (batch, seq + 1))
    return tokens[:, :-1], tokens[:, 1:]


def numpy_step(config: ModelConfig = CONFIG, *, batch: int = BATCH, seq: int = SEQ) -> Callable[[], object]:
    """Give loss and gradient, as `reference.numpy.training` computes them, in float32."""
    params: Tree = init_params(config, seed=0, dtype=FLOAT)
    ids, targets = _batch(batch, seq)

    def step() -> None:
        logits, stream = forward_with_stream(ids, params, config)
        cross_entropy(logits, targets)
        (d_logits,) = cross_entropy_vjp(np.ones((), FLOAT), logits, targets)
        backward_from_stream(d_logits, stream, ids, params, config)

    return step


def torch_step() -> Callable[[], object]:
    """Give loss and gradient of the PyTorch half, eager, from the same parameters and batch."""
    model = Transformer(CONFIG).train()
    load_params(model, init_params(CONFIG, seed=0, dtype=FLOAT))
    ids, targets = map(torch.from_numpy, _batch(BATCH, SEQ))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        torch_cross_entropy(model(ids), targets).backward()

    return step


def peak_bytes(seq: int, *, batch: int = 1) -> int:
    """Measure how much memory a NumPy step takes at most beyond its parameters, by NumPy's own allocations."""
    step = numpy_step(replace(CONFIG, max_len=seq), batch=batch, seq=seq)
    step()
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def formula_bytes(seq: int, *, batch: int = 1) -> int:
    r"""Give what the formula says: the stream, the gradients, and the largest that one half of a block holds.

    $$ 4 \left(N d (2 L + 1) + N V + P + \max(c_A H B T^2 + 9 N d, \; c_F N f + 3 N d)\right) $$

    with N = B T tokens, P parameters, and the arrays that are alive together: c_A = 6 of the size of the attention
    weights, one of them boolean, and c_F = 7 of the size of the hidden values.
    """
    c = replace(CONFIG, max_len=seq)
    tokens = batch * seq
    count = sum(leaf.size for _, leaf in leaves(init_params(c, seed=0, dtype=FLOAT)))
    stream = tokens * c.d_model * (2 * c.n_layers + 1) + tokens * c.vocab
    attention = 6 * c.n_heads * batch * seq**2 + 9 * tokens * c.d_model
    mlp = 7 * tokens * c.d_ff + 3 * tokens * c.d_model
    return FLOAT.itemsize * (stream + count + max(attention, mlp))


if __name__ == "__main__":
    work = {"numpy": numpy_step, "torch": torch_step}[sys.argv[1]]()
    with unchecked():  # as `train` runs it: shapes are checked where a run begins
        for _ in range(3):
            work()
        print(statistics.median(seconds(work) for _ in range(20)))
