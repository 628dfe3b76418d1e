"""Print the table: `python -m benchmarks`."""

import os
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gradients import formula_bytes, peak_bytes
from benchmarks.pairs import in_turn, seconds
from benchmarks.training import PEAK_FLOPS, TOKENS, flops_per_step, gpt2, ours, peak_product, plain_compiled

PAIRS = int(os.environ.get("PAIRS", "100"))


def main() -> None:
    """Measure everything in one run and print one table."""
    table = Table("what", "this", "beside", "ratio", "wanted", title="Speed, medians of one run")

    our_eager, their_eager = ours(compiled=False), gpt2()
    a, b, faster = in_turn(our_eager, their_eager, pairs=PAIRS, warmup=5)
    table.add_row("training, eager, tokens/s (beside: GPT-2 of transformers)",
                  f"{TOKENS / a:,.0f}", f"{TOKENS / b:,.0f}", f"{faster:.2f} x", ">= 1.10 x")  # fmt: skip

    a, b, faster = in_turn(our_eager, gpt2(activation="gelu"), pairs=PAIRS, warmup=5)
    table.add_row("the same (beside: GPT-2 with our erf GELU)",
                  f"{TOKENS / a:,.0f}", f"{TOKENS / b:,.0f}", f"{faster:.2f} x", "")  # fmt: skip

    our_compiled = ours(compiled=True)
    a, b, faster = in_turn(our_compiled, their_eager, pairs=PAIRS, warmup=5)
    table.add_row("training, compiled, tokens/s (beside: GPT-2 of transformers, eager)",
                  f"{TOKENS / a:,.0f}", f"{TOKENS / b:,.0f}", f"{faster:.2f} x", ">= 1.45 x")  # fmt: skip

    a, b, faster = in_turn(our_compiled, plain_compiled(), pairs=PAIRS, warmup=5)
    table.add_row("the same (beside: a plain GPT of torch.nn, compiled too)",
                  f"{TOKENS / a:,.0f}", f"{TOKENS / b:,.0f}", f"{faster:.2f} x", "")  # fmt: skip

    product = peak_product()
    a, b, _ = in_turn(our_compiled, product, pairs=PAIRS)
    table.add_row("share of the float32 matrix-product peak, compiled (GFLOP/s)",
                  f"{flops_per_step() / a / 1e9:,.0f}", f"{PEAK_FLOPS / b / 1e9:,.0f}",
                  f"{flops_per_step() / a / (PEAK_FLOPS / b):.2f}", "")  # fmt: skip

    halves = [(_gradient_seconds("numpy"), _gradient_seconds("torch")) for _ in range(3)]
    a, b = (statistics.median(times) for times in zip(*halves, strict=True))
    slower = statistics.median(numpys / torchs for numpys, torchs in halves)
    table.add_row("loss and gradient, NumPy, tokens/s (beside: PyTorch, eager)",
                  f"{TOKENS / a:,.0f}", f"{TOKENS / b:,.0f}", f"1 / {slower:.1f}", ">= 1 / 4")  # fmt: skip

    a, b, slower = in_turn(lambda: _python("import reference.numpy"), lambda: _python("import numpy"), pairs=5)
    table.add_row("import reference.numpy, s (beside: import numpy)", f"{a:.2f}", f"{b:.2f}", f"{1 / slower:.1f}", "")

    checks = [seconds(lambda: _run("-m", "spec_tests.kit.cli", "check", "torch_nn", "--component", "layer_norm"))
              for _ in range(3)]  # fmt: skip
    table.add_row("transformer-spec check, one component, s", f"{statistics.median(checks):.1f}", "", "", "<= 10")

    console = Console(width=120)
    console.print(table)
    console.print(_memory())
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {PAIRS} pairs, {time.strftime('%Y-%m-%d')}"
    )


def _memory() -> Table:
    """Measure what a NumPy step of one sequence takes, beside the formula of `formula_bytes`."""
    table = Table("T", "MiB", "formula", "share", title="Memory of loss and gradient, NumPy, one sequence of T tokens")
    for seq in (64, 128, 256, 512, 1024):
        measured, expected = peak_bytes(seq), formula_bytes(seq)
        table.add_row(str(seq), f"{measured / 2**20:.1f}", f"{expected / 2**20:.1f}", f"{measured / expected:.2f}")
    return table


def _gradient_seconds(half: str) -> float:
    command = [sys.executable, "-m", "benchmarks.gradients", half]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _python(code: str) -> None:
    _run("-c", code)


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
