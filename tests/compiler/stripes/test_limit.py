# SPDX-License-Identifier: Apache-2.0
"""``--ram``: what is streamed, what it is worth, and what is said when it is not enough."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.fit import striping as ram
from microc.compiler.fit.budget import BoardCapacity
from microc.compiler.fit.striping import ChainLowering, StripeSearch
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.errors import FitError
from microc.plan.plan import plan_module
from microc.target import SPEED, target_for
from tests.support import digits
from tests.support.chains import Step, module, network
from tests.support.corpus import models

CORE = target_for("cortex-m4")
BORDER = (1, 1, 1, 1)
WIDE = (
    Step("conv", 3, 2, padding=BORDER, units=4),
    Step("conv", units=24),
    Step("depthwise", 3, 2, padding=BORDER),
    Step("conv", units=8),
    Step("conv", 3, 2, padding=BORDER, units=8),
)
"""A tensor in the middle is several times larger than its neighbours."""


def search() -> StripeSearch:
    graph = network(WIDE, (1, 32, 32, 3))
    plain = plan_module(module(graph))
    return StripeSearch(ChainLowering(graph, CORE, SPEED), plain, io_in_arena=True)


def test_the_call_that_needs_too_much_is_covered() -> None:
    found = search()
    needs = found.estimator.needs
    largest = needs.index(max(needs))
    chosen = found.find_chains_within_limit(max(needs) - 1)
    assert chosen is not None
    (candidate,) = chosen
    assert list(found.estimator.times.values())[largest] in [
        found.estimator.times[name] for name in candidate.chain.groups
    ]
    assert found.peak_bytes(chosen) < max(needs)


def test_no_limit_no_chains() -> None:
    found = search()
    assert found.find_chains_within_limit(max(found.estimator.needs)) == ()


def test_an_impossible_limit() -> None:
    found = search()
    assert found.find_chains_within_limit(100) is None
    smallest = found.find_chains_with_smallest_peak()
    assert found.peak_bytes(smallest) < max(found.estimator.needs)
    assert found.find_layer_with_largest_need(smallest)


@pytest.mark.parametrize(("chains", "lowered"), [(0, 0), (12, 1), (1000, 0), (1000, 2)])
def test_the_search_is_bounded(chains: int, lowered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little work it takes what it knows, the same chains every time; their needs are exact."""
    monkeypatch.setattr(ram, "MAX_CHAINS", chains)
    monkeypatch.setattr(ram, "MAX_LOWERED_CHAINS", lowered)
    found, again = search(), search()
    smallest = found.find_chains_with_smallest_peak()
    assert smallest == again.find_chains_with_smallest_peak() and all(candidate.exact for candidate in smallest)
    assert len(found.known) <= chains
    assert (
        sum(candidate.exact and candidate.needed_bytes < ram.UNAFFORDABLE for candidate in found.known.values())
        <= lowered
    )
    assert found.peak_bytes(smallest) <= max(found.estimator.needs)


@pytest.mark.parametrize("height", [1, 4])
def test_needs_are_what_plans_take(height: int) -> None:
    """A little more, since planners let workspaces overlap as well."""
    found = search()
    estimator, (run,) = found.estimator, found.runs
    for start, stop in ((1, 3), (0, 4)):
        chain = run.chain(start, stop, height)
        candidate = estimator.add_kernel_scratch(estimator.estimate(chain))
        made = plan_module(module(estimator.graph, [chain]))
        assert made.plan is not None
        assert made.plan.size <= found.peak_bytes((candidate,)) * 1.05
        assert made.plan.size >= found.peak_bytes((candidate,)) * 0.85


ROW_BY_ROW = 650
"""Bytes of arena in which the digits fit only so."""


@cache
def compiled(**options: Any) -> Any:
    return compile_model(digits.INT8, CORE, Options(**options))


def test_digits_in_less() -> None:
    plain = compiled()
    small = compiled(ram=ROW_BY_ROW)
    assert small.plan.size <= ROW_BY_ROW
    assert small.plain is not None and small.plain.arena == plain.plan.size
    assert [call for call in small.calls if call.streamed]
    assert small.macs == plain.macs
    library = microc.compile(digits.INT8, ram=ROW_BY_ROW)
    assert np.array_equal(library(digits.images(1)[0]), microc.compile(digits.INT8)(digits.images(1)[0]))


def test_a_limit_that_is_met_changes_nothing() -> None:
    plain = compiled()
    assert compiled(ram=plain.plan.size).fingerprint == plain.fingerprint


def test_a_limit_out_of_reach_says_what_is_possible() -> None:
    with pytest.raises(
        FitError, match="an arena of 100 bytes cannot hold the network; the smallest found takes"
    ) as caught:
        compiled(ram=100)
    assert "digits_int8.tflite #" in str(caught.value.hint) and "--io caller" in str(caught.value.hint)
    assert caught.value.exit_code == 4


def test_a_small_board_is_tried_before_it_is_refused() -> None:
    plain = compiled()
    small = compile_model(digits.INT8, CORE, Options(), capacity=BoardCapacity(ram=ROW_BY_ROW))
    assert small.plan is not None and small.plan.size < plain.plan.size
    tiny = compile_model(digits.INT8, CORE, Options(), capacity=BoardCapacity(ram=8))
    assert tiny.plan is not None and tiny.plan.size <= small.plan.size


def test_the_command_line_says_what_was_traded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", str(digits.INT8), "--board", "mps2-an386", "--ram", str(ROW_BY_ROW)]
    assert main([*arguments, "-o", str(tmp_path / "text")]) == 0
    text = capsys.readouterr().out
    assert "row by row" in text and "bytes of arena for" in text
    assert main([*arguments, "-o", str(tmp_path / "json"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert report["without_streams"]["arena"] > report["arena"]
    assert sum(layer["streamed"] is not None for layer in report["layers"]) >= 1


@pytest.mark.corpus
@pytest.mark.parametrize("path", models("mlperf_vww_int8*"), ids=lambda p: p.stem)
def test_wake_words_for_eyes_in_thirty_kilobytes(path: Path) -> None:
    """The input alone takes 27,648 bytes."""
    made = compile_model(path, CORE, Options(ram=30000))
    assert made.plan is not None and made.plan.size <= 30000
    assert made.plain is not None and made.instructions <= 1.1 * made.plain.instructions
