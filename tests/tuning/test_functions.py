# SPDX-License-Identifier: Apache-2.0
"""Tuning of functions and schedules of the user, with rules and operators of the user, on this computer and on a board."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc import te
from microc.base.dtypes import Array
from microc.compiler.tuned.records import OK, Database, Record
from microc.errors import UsageError
from microc.tir import ir
from microc.tuning.tune import describe_search_spaces
from tests.device.smoke import needs
from tests.tuning.networks import Estimating

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "custom_operator"
ROWS, COLUMNS, DEPTH = 6, 16, 48


def product() -> ir.PrimFunc:
    """A layer of int8 weights, whose blocks have the names that the rules expect."""
    x, weight = te.placeholder((ROWS, DEPTH), "int8", "x"), te.placeholder((COLUMNS, DEPTH), "int8", "weight")
    k = te.reduce_axis(DEPTH, "k")
    y = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum_reduce(x[i, k.var].astype("int32") * weight[j, k.var].astype("int32"), k),
        "acc",
        ("i", "j"),
    )
    return te.create_prim_func("product", [x], [y], [weight])


def weights() -> dict[str, Array]:
    return {"weight": np.random.default_rng(3).integers(-128, 128, (COLUMNS, DEPTH)).astype(np.int8)}


def best(path: Path) -> Record:
    return min((record for record in Database(path) if record.status == OK), key=lambda record: record.ticks)


def test_a_function_on_this_computer(tmp_path: Path) -> None:
    """What was measured is right, and default_schedule takes the fastest of it."""
    records, constants = tmp_path / "tuned.jsonl", weights()
    tuned = microc.tune(product(), records=records, trials=10, constants=constants)
    assert tuned.unit == "ns" and tuned.network is None and tuned.kernels[0].task.name == "product"
    assert tuned.kernels[0].tried == 10 and tuned.kernels[0].failed == 0 and 0 < tuned.best <= tuned.default
    schedule = microc.default_schedule(product(), "native", tuned=records)
    assert schedule.trace == best(records).trace and schedule.rule.endswith(", tuned")
    x = np.random.default_rng(4).integers(-128, 128, (ROWS, DEPTH)).astype(np.int8)
    library = microc.build(schedule, "native", constants=constants)
    assert np.array_equal(library(x), x.astype(np.int32) @ constants["weight"].T.astype(np.int32))
    other_core = microc.default_schedule(product(), "cortex-m4", tuned=records)
    assert other_core.trace == microc.default_schedule(product(), "cortex-m4").trace


def test_a_schedule_is_the_default(tmp_path: Path) -> None:
    """Steps by hand are compared with what rules choose; a record that no longer applies is skipped."""
    records = tmp_path / "tuned.jsonl"
    by_hand = microc.Schedule(product()).split("j", (None, 4)).reorder("j_0", "i", "k", "j_1")
    tuned = microc.tune(
        by_hand, "cortex-m4", records=records, trials=40, runner=Estimating(), constants=weights(), seed=1
    )
    (kernel,) = tuned.kernels
    assert kernel.search.space.default.choice.schedule.trace == by_hand.trace
    assert kernel.best < 0.5 * tuned.default  # by hand is no DSP instruction
    assert microc.default_schedule(product(), "cortex-m4", tuned=records).trace == best(records).trace
    smallest = microc.default_schedule(product(), "cortex-m4", optimize="size", tuned=records)
    assert smallest.trace in {r.trace for r in Database(records) if r.flash == min(r.flash for r in Database(records))}
    again = microc.tune(by_hand, "cortex-m4", records=records, trials=0, runner=Estimating(), constants=weights())
    assert again.best == tuned.best and again.default == tuned.default


@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_a_function_on_a_board(tmp_path: Path) -> None:
    records = tmp_path / "tuned.jsonl"
    tuned = microc.tune(product(), board="mps2-an386", records=records, trials=6, constants=weights())
    assert tuned.unit == "instructions" and tuned.kernels[0].tried == 6 and not tuned.kernels[0].failed
    assert {record.op for record in Database(records)} == {"function"} and tuned.best <= tuned.default


def test_operators_and_rules_of_the_user(tmp_path: Path) -> None:
    """The kernel of a plugin's operator is checked by its reference and scheduled by a rule of the user, too."""
    model = tmp_path / "model.onnx"
    subprocess.run([sys.executable, str(EXAMPLE / "make_model.py"), str(model)], check=True, capture_output=True)

    def halves(schedule: microc.Schedule, op: str, target: Any) -> microc.Schedule | None:
        return schedule.split(schedule.loops_of("out")[-1], (None, 5)) if op == "magnitude" else None

    own: dict[str, Any] = {
        "plugins": EXAMPLE / "operators.py",
        "schedules": [microc.ScheduleRule("halves", halves)],
    }
    spaces = {space["op"]: space for space in describe_search_spaces(model, "native", **own)}
    assert "halves" in spaces["magnitude"]["decisions"]["rule"]
    tuned = microc.tune(model, trials=8, time=60, search="grid", layers=spaces["magnitude"]["layers"], **own)
    (kernel,) = tuned.kernels
    assert kernel.task.op == "magnitude" and kernel.tried and not kernel.failed


def test_refusals(tmp_path: Path) -> None:
    func, runner = product(), Estimating()
    with pytest.raises(UsageError, match="constant 'weight' has no data"):
        microc.tune(func, "cortex-m4", runner=runner)
    with pytest.raises(UsageError, match="optimize: a function has none of the options of networks"):
        microc.tune(func, "cortex-m4", runner=runner, constants=weights(), optimize="size")
    with pytest.raises(UsageError, match="fleet measures networks"):
        microc.tune(func, board="mps2-an386", fleet="tcp://lab:1", constants=weights())
    with pytest.raises(UsageError, match="constants with a model of type str"):
        microc.tune("model.onnx", "cortex-m4", runner=runner, constants=weights())
    with pytest.raises(UsageError, match="there is no file of records"):
        microc.default_schedule(func, tuned=tmp_path / "absent")
