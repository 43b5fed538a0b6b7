"""Timing, and the rows that benchmarks report."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure."""

    benchmark: str
    what: str
    value: float
    unit: str
    wanted: str = ""
    """What the project asks of this figure, where it asks something."""


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs: what the machine's other work disturbs least."""
    times = []
    gc.disable()
    try:
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return min(times)
