"""What the page of claims quotes and draws, measured: `python -m benchmarks.claims`, and `--write` to keep it.

Three parts, each of which can be asked for by its name: `serial`, the time of a recurrent net beside that of attention;
`memory`, what either keeps for the way back; and `noise`, the training run of tutorial 001, which takes minutes.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from reference import data
from reference.config import MINI
from reference.parameters import Tree, init_params, leaves, tree_from_leaves
from reference.recipe import Recipe
from reference.shape_checks import unchecked
from reference.torch import Transformer, load_params, self_attention
from reference.torch import training as torch_training
from spec_tests.measures import kept_bytes, longest_chain, textbook

FILE = Path(__file__).with_suffix(".json")
WIDTH = 256
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
REPEATS = 9
EPOCHS, BATCH, SEQ, LR = 50, 32, 64, 3e-4  # tutorial 001's own


def weights() -> list[Tensor]:
    """Draw the three projections of an attention without output projection."""
    source = torch.Generator().manual_seed(0)
    return [torch.randn(WIDTH, WIDTH, generator=source) / math.sqrt(WIDTH) for _ in range(3)]


def textbook_attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Compute attention as the formula reads, with the matrix of weights in memory."""
    return textbook(x @ w_q, x @ w_k, x @ w_v)


def _cell_by_cell(cell: nn.RNNCell, x: Tensor) -> Tensor:
    state = torch.zeros(1, x.shape[-1])
    for token in x[:, None]:
        state = cell(token, state)
    return state


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Give the least time that a thread spends on the work, whatever else the machine does."""

    def once() -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    once()
    return min(once() for _ in range(REPEATS))


def serial() -> list[dict[str, float]]:
    """Measure a recurrent layer over T tokens beside one attention over the same: dependent operations, and time.

    The time is that of one thread: what a machine with many does beside it is the matrix products of attention.
    """
    rnn, cell, w = nn.RNN(WIDTH, WIDTH), nn.RNNCell(WIDTH, WIDTH), weights()
    rows = []
    for seq in LENGTHS:
        x = torch.randn(seq, WIDTH, generator=torch.Generator().manual_seed(seq))
        chains = {
            "attention_chain": longest_chain(textbook_attention(x.clone().requires_grad_(), *w)),
            "rnn_chain": longest_chain(_cell_by_cell(cell, x)),
        }
        with torch.inference_mode(), unchecked():
            attention, recurrent = _cpu_seconds(lambda x=x: self_attention(x, *w)), _cpu_seconds(lambda x=x: rnn(x))
        times = {"attention_ms": 1e3 * attention, "rnn_ms": 1e3 * recurrent, "ratio": recurrent / attention}
        rows.append({"seq": seq, **chains, **times})
    return rows


def memory() -> list[dict[str, int]]:
    """Count what a layer of each kind keeps for its gradient, in bytes of float32, parameters included."""
    rnn, lstm = nn.RNN(WIDTH, WIDTH), nn.LSTM(WIDTH, WIDTH)
    w = [tensor.requires_grad_() for tensor in weights()]
    rows = []
    for seq in LENGTHS:
        x = torch.randn(seq, WIDTH, requires_grad=True)
        with unchecked():
            rows.append(
                {
                    "seq": seq,
                    "textbook": kept_bytes(lambda x=x: textbook_attention(x, *w)),
                    "fused": kept_bytes(lambda x=x: self_attention(x, *w)),
                    "lstm": kept_bytes(lambda x=x: lstm(x)[0]),
                    "rnn": kept_bytes(lambda x=x: rnn(x)[0]),
                }
            )
    return rows


def tutorial_001_params(seed: int = 0) -> Tree:
    """Draw MINI's weights as tutorial 001 does, which leaves them as torch.nn makes them."""
    draw = np.random.default_rng(seed)
    fan_in = {"b_2": MINI.d_ff, "w_2": MINI.d_ff}

    def drawn(path: str, leaf: np.ndarray) -> np.ndarray:
        name = path.rsplit(".", 1)[-1]
        if name in ("gamma", "beta"):
            return leaf
        if name == "table":
            return draw.standard_normal(leaf.shape).astype(leaf.dtype)
        bound = 1 / math.sqrt(fan_in.get(name, MINI.d_model))
        return draw.uniform(-bound, bound, leaf.shape).astype(leaf.dtype)

    as_ours = init_params(MINI, seed=seed, dtype=np.float32)
    return tree_from_leaves({path: drawn(path, leaf) for path, leaf in leaves(as_ours)})


def noise(epochs: int = EPOCHS) -> list[dict[str, float]]:
    """Train tutorial 001's model on its random bytes; give each epoch's loss, and that on bytes it has not seen."""
    trained_on, fresh = data.datasets("random", seq=SEQ, batch_size=BATCH, seed=0)
    model = Transformer(MINI)
    load_params(model, tutorial_001_params())
    steps = math.ceil(len(trained_on.sequences) / BATCH)
    rows: list[dict[str, float]] = []
    losses: list[float] = []
    norms: list[float] = []

    def on_step(step: Any, snapshot: object) -> None:
        losses.append(step.loss)
        norms.append(step.grad_norm)
        if step.number % steps == 0:
            rows.append(
                {
                    "epoch": step.number // steps,
                    "loss": statistics.fmean(losses[-steps:]),
                    "fresh_loss": torch_training.evaluate(model, fresh.evaluation()).loss,
                    "least_grad_norm": min(norms[-steps:]),
                    "largest_grad_norm": max(norms[-steps:]),
                }
            )

    with unchecked():
        recipe = Recipe(steps=epochs * steps, batch=BATCH, seq=SEQ, lr=LR, min_lr=LR)
        torch_training.train(model, trained_on.batch, recipe, on_step=on_step)
    return rows


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {"serial": serial, "memory": memory, "noise": noise}
TITLES = {
    "serial": f"Time of one layer over T tokens, width {WIDTH}",
    "memory": f"Bytes kept for the gradient by one layer over T tokens, width {WIDTH}",
    "noise": "Tutorial 001's training run on random bytes",
}


def _table(part: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(*rows[0], title=TITLES[part])
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else f"{value:,.3f}" for value in row.values()))
    return table


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v if isinstance(v, int) else float(f"{v:.4g}") for k, v in row.items()} for row in rows]


def main() -> None:
    """Measure the parts that were asked for, print a table of each, and with --write keep the numbers in FILE."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which parts; all unless given")
    parser.add_argument("--write", action="store_true", help=f"keep what was measured in {FILE.name}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for part in asked.parts or PARTS:
        rows = PARTS[part]()
        Console(width=120).print(_table(part, rows))
        if asked.write:
            kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
            kept[part] = _rounded(rows)
            ordered = {name: kept[name] for name in PARTS if name in kept}
            FILE.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    print(f"torch {torch.__version__}, one thread")


if __name__ == "__main__":
    main()
