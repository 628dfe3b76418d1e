"""Comparisons on a noisy machine: A and B in turn, and the median of the pairs' ratios."""

import statistics
import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """Time one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turn(
    a: Callable[[], object], b: Callable[[], object], *, pairs: int, warmup: int = 2
) -> tuple[float, float, float]:
    """Run a and b in turn; give the median seconds of each, and the median over the pairs of b / a."""
    for _ in range(warmup):
        a(), b()
    times = [(seconds(a), seconds(b)) for _ in range(pairs)]
    return (
        statistics.median(first for first, _ in times),
        statistics.median(second for _, second in times),
        statistics.median(second / first for first, second in times),
    )
