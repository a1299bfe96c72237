"""How long runs of a library take."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean, median

from microc.driver.shown import table
from microc.frozen import frozen


@frozen
class TimingResult:
    """Seconds per run: mean, median, min, max over ``repeats`` measurements of ``number`` runs each."""

    mean: float
    median: float
    min: float
    max: float
    repeats: int
    number: int

    def _repr_html_(self) -> str:
        rows = [(name, f"{getattr(self, name) * 1e6:,.2f} us") for name in ("mean", "median", "min", "max")]
        return table(f"time of a run, {self.repeats} measurements of {self.number}", rows)


def time_runs(run: Callable[[], None], number: int, repeats: int) -> TimingResult:
    """Time ``repeats`` x ``number`` runs, after one that is not counted."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(number):
            run()
        seconds.append((time.perf_counter() - start) / number)
    return TimingResult(fmean(seconds), median(seconds), min(seconds), max(seconds), repeats, number)
