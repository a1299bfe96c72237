"""On spaces that were measured as a whole, a tenth of the trials comes within 2 % of the best: nothing is built or asked."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from microc.driver.tuned.records import Database
from microc.tuning.model import Learned
from microc.tuning.tuner import Limits, Tuner

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TABLES = tuple(sorted(path.stem for path in (BENCHMARKS / "measured").glob("*.json")))
SEEDS = range(5)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("measured")


@pytest.mark.parametrize("name", TABLES)
def test_a_tenth_of_the_trials_comes_near_the_best(name: str, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = measured.task_of(name)
    space = measured.PaperSpace(task)
    monkeypatch.setattr("microc.tuning.tuner.Space", lambda _: space)

    def found(search: str, seed: int) -> float:
        tuner = Tuner(
            [task], measured.Recorded(space), Database(), model=Learned(trees=False), search=search, seed=seed
        )
        tuner.run(Limits(measured.trials_of(space)))
        return tuner.kernels[0].best / float(space.best)

    evolved, drawn = (median(found(search, seed) for seed in SEEDS) for search in ("evolutionary", "random"))
    assert evolved <= 1.02 and evolved <= drawn
