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
from reference.numpy.models import transformer_and_vjp
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
        logits, vjp = transformer_and_vjp(ids, params, config)
        cross_entropy(logits, targets)
        (d_logits,) = cross_entropy_vjp(np.ones((), FLOAT), logits, targets)
        vjp(d_logits)

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
    r"""Give what the formula says: what the blocks keep for the way back, and the largest that one half holds besides.

    $$ 4 \left(L \, (8 N d + 2 N f + \tfrac54 H B T^2) + N (d + 2 V) + P
       + \max(c_A H B T^2 + 6 N d, \; c_F N f + 4 N d)\right) $$

    with N = B T tokens and P parameters. A block keeps its stream before and halfway, both normed, queries, keys,
    values and the heads' answers (8 N d), hidden values and slopes (2 N f), the attention weights and, of a byte
    each, who may attend to whom. The arrays that are alive together at the worst moment are c_A = 4 of the size of
    the attention weights, and c_F = 4 of the size of the hidden values.
    """
    c = replace(CONFIG, max_len=seq)
    tokens, d, pairs = batch * seq, c.d_model, c.n_heads * batch * seq**2
    count = sum(leaf.size for _, leaf in leaves(init_params(c, seed=0, dtype=FLOAT)))
    kept = c.n_layers * (8 * tokens * d + 2 * tokens * c.d_ff + 1.25 * pairs)
    held = max(4 * pairs + 6 * tokens * d, 4 * tokens * c.d_ff + 4 * tokens * d)
    return int(FLOAT.itemsize * (kept + tokens * (d + 2 * c.vocab) + count + held))


if __name__ == "__main__":
    work = {"numpy": numpy_step, "torch": torch_step}[sys.argv[1]]()
    with unchecked():  # as `train` runs it: shapes are checked where a run begins
        for _ in range(3):
            work()
        print(statistics.median(seconds(work) for _ in range(20)))
