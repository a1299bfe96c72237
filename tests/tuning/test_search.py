# SPDX-License-Identifier: Apache-2.0
"""On spaces that were measured as a whole, a tenth of the trials comes within 2 % of the best: nothing is built or asked."""

from __future__ import annotations

import importlib
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from microc.compiler.tuned.records import Database
from microc.tuning.search_policies import EvolutionarySearch, LearnedModel, fit_price_estimator
from microc.tuning.search_space import Point
from microc.tuning.tuner import SearchLimits, Tuner

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TABLES = tuple(sorted(path.stem for path in (BENCHMARKS / "measured").glob("*.json")))
SEEDS = range(5)


@pytest.fixture
def measured() -> Any:
    return importlib.import_module("benchmarks.measured")


@pytest.mark.parametrize("name", TABLES)
def test_a_tenth_of_the_trials_comes_near_the_best(name: str, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = measured.task_of(name)
    space = measured.PaperSpace(task)
    monkeypatch.setattr("microc.tuning.tuner.Space", lambda _: space)

    def found(search: str, seed: int) -> float:
        tuner = Tuner(
            [task], measured.Recorded(space), Database(), model=LearnedModel(trees=False), search=search, seed=seed
        )
        tuner.run(SearchLimits(measured.trials_of(space)))
        return tuner.kernels[0].best / float(space.best)

    evolved, drawn = (median(found(search, seed) for seed in SEEDS) for search in ("evolutionary", "random"))
    assert evolved <= 1.02 and evolved <= drawn


def test_prices_are_guessed_once_some_are_known(measured: Any) -> None:
    """Pricing takes longer than measuring: of a dozen children for each trial few are lowered."""
    space = measured.PaperSpace(measured.task_of("ic_strided"))
    search, trials = EvolutionarySearch(space, 0, LearnedModel(trees=False)), 0
    while trials < 54:
        found = search.propose(8)
        search.tell([(candidate, space.ticks_of(candidate)) for candidate in found])
        trials += len(found)
    assert len(search.prices) < 5 * trials


def test_a_guess_adds_what_decisions_cost() -> None:
    points = {
        Point("direct", "tiles", (("rows", r), ("columns", c))): 100.0 * r * c for r in (1, 2, 4) for c in (1, 2, 4)
    }
    unknown = Point("direct", "tiles", (("rows", 4), ("columns", 4)))
    guess = fit_price_estimator({**points, unknown: float("inf")})
    assert max(points, key=guess) == unknown and min(points, key=guess).values[2:] == (("rows", 1), ("columns", 1))
