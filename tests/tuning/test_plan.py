# SPDX-License-Identifier: Apache-2.0
"""An optimisation plan: what a compilation takes, edited by a person, given back; what does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.compiler.tuned.optimisation_plan import MAX_PLAN_BYTES, read_plan, write_plan
from microc.compiler.tuned.records import Database
from microc.errors import MicrocError, UsageError
from microc.tuning.tune import make_tuning_plan
from tests.tuning.networks import DIGITS, Estimating

BOARD = "mps2-an386"
Plan = dict[str, Any]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "tuned.jsonl"
    microc.tune(DIGITS, board=BOARD, records=path, runner=Estimating(), trials=12, layers=["dense5"], search="random")
    database = Database(path)
    fast, small = [record for record in database if not record.untuned][:2]
    database.add([replace(fast, ticks=1.0), replace(small, code=1, constants=1, workspace=0)])
    database.close()
    return path


@pytest.fixture(scope="module")
def plan(records: Path) -> Plan:
    return make_tuning_plan(DIGITS, board=BOARD, records=records, optimize="speed")


def schedule(**options: Any) -> str:
    """What the dense layer becomes."""
    layers = microc.compile(DIGITS, board=BOARD, optimize="speed", cache=False, **options).report()["layers"]
    return next(str(layer["schedule"]) for layer in layers if "dense5" in layer["layer"])


def given(tmp_path: Path, plan: Plan, change: Callable[[Plan], None] = lambda kernel: None) -> Path:
    plan = json.loads(json.dumps(plan))
    change(plan["kernels"][0])
    write_plan(tmp_path / "plan.json", plan)
    return tmp_path / "plan.json"


def test_a_plan_is_what_a_compilation_with_records_takes(tmp_path: Path, records: Path, plan: Plan) -> None:
    (kernel,) = plan["kernels"]
    ids = {record.id for record in Database(records)}
    assert (
        kernel["choice"] in ids
        and set(kernel["alternatives"]) - {"untuned"} <= ids
        and "% instructions" in kernel["why"]
    )
    path = given(tmp_path, plan)
    assert read_plan(path) == json.loads(json.dumps(plan))
    assert schedule(plan=path) == schedule(tuned=records) != schedule()


def test_a_person_chooses_another(tmp_path: Path, plan: Plan) -> None:
    other = next(
        n for n in reversed(plan["kernels"][0]["alternatives"]) if n not in ("untuned", plan["kernels"][0]["choice"])
    )
    taken = schedule(plan=given(tmp_path, plan, lambda kernel: kernel.update(choice=other)))
    assert taken not in (schedule(plan=given(tmp_path, plan)), schedule())
    assert schedule(plan=given(tmp_path, plan, lambda kernel: kernel.update(choice="untuned"))) == schedule()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda k: k.update(choice="no\x1b[2Jne"), r"has no alternative 'no\?\[2Jne'"),
        (lambda k: k.update(key="0" * 40), "the network has no kernel with the key of layer"),
        (lambda k: k["alternatives"][k["choice"]].update(steps=[["run", "rm"]]), "can no longer be applied"),
        (lambda k: k["alternatives"][k["choice"]].update(steps=[["split", {"a": 1}]]), "can no longer be applied"),
        (lambda k: k["alternatives"][k["choice"]].update(algorithm="magic"), "can no longer be applied"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, plan: Plan, change: Callable[[Plan], None], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        schedule(plan=given(tmp_path, plan, change))
    assert caught.value.where.endswith("plan.json.kernels[0]") and caught.value.hint and caught.value.what.isprintable()


def test_plans_for_others_are_refused(tmp_path: Path, records: Path, plan: Plan) -> None:
    path = given(tmp_path, plan)
    with pytest.raises(UsageError, match="got a plan for core cortex-m4, expected core cortex-m0"):
        microc.compile(DIGITS, board="microbit", plan=path, cache=False)
    with pytest.raises(UsageError, match="which already contains schedules"):
        schedule(plan=path, tuned=records)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is no valid JSON"),
        ("[" * 100_000, "the file is no valid JSON"),
        ("[]", "violates the schema of plans"),
        ('{"microc_plan": 2, "core": "cortex-m4", "kernels": []}', "violates the schema of plans: 1 was expected"),
        ('{"microc_plan": 1, "core": "cortex-m4", "kernels": [{"key": "\\u001b"}]}', "violates the schema of plans"),
        (" " * (MAX_PLAN_BYTES + 1), "the plan cannot be read: it has more than"),
    ],
)
def test_what_is_no_plan_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(MicrocError, match=said) as caught:
        read_plan(tmp_path / "plan.json")
    assert caught.value.hint and caught.value.what.isprintable()
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
