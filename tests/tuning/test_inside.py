# SPDX-License-Identifier: Apache-2.0
"""Kernels inside of control flow: searched, weighed by how often they run, taken from records and from plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.optimisation_plan import write_plan
from microc.compiler.tuned.records import Database, Task, list_tuning_tasks
from microc.errors import UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.target import target_for
from microc.tuning.search_space import Space
from microc.tuning.tune import make_tuning_plan
from tests.tuning.networks import Estimating

BOARD, TURNS = "mps2-an386", 7


def recurrent(width: int = 16) -> Graph:
    """A state that a dense layer and tanh change in every turn; its last value goes through another dense layer."""
    rng = np.random.default_rng(5)
    state = TensorType((1, width), "float32")
    weights = [rng.normal(size=(width, width)).astype(np.float32) / 4 for _ in range(2)]
    nodes = (
        Node("dense", ("h", "w"), ("linear",), registry.get("dense").defaults),
        Node("tanh", ("linear",), ("z",), {"rounding": "double"}),
        Node("reshape", ("z",), ("row",), {"shape": (1, width)}),
    )
    types = {"i": TensorType((), "int32"), "w": TensorType((width, width), "float32")}
    types |= dict.fromkeys(("h", "linear", "z", "row"), state)
    body = Graph("body", ("i", "h"), ("z", "row"), nodes, types, {"w": weights[0]})
    outer = (
        Node("loop", ("x",), ("last", "all"), {"body": body, "count": TURNS, "carried": 1, "guarded": False}),
        Node("dense", ("last", "v"), ("y",), registry.get("dense").defaults),
    )
    types = {"v": types["w"], **dict.fromkeys(("x", "last", "y"), state)}
    types |= {"all": TensorType((TURNS, 1, width), "float32")}
    return Graph("net", ("x",), ("y", "all"), outer, types, {"v": weights[1]})


def tasks(graph: Graph) -> tuple[Task, ...]:
    return list_tuning_tasks(compile_network(graph, target_for("cortex-m4"), make_options(optimize="speed")))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that says that the first schedule beside the rules' own is by far the fastest of the loop's dense layer."""
    path = tmp_path_factory.mktemp("records") / "tuned.jsonl"
    inside = next(task.name for task in tasks(recurrent()) if task.inside and "dense" in task.op)
    options: dict[str, Any] = {"runner": Estimating(), "trials": 6, "search": "random", "optimize": "speed"}
    microc.tune(recurrent(), board=BOARD, records=path, layers=[inside], **options)
    database = Database(path)
    database.add([replace(next(record for record in database if not record.untuned), ticks=1.0)])
    database.close()
    return path


def source(**options: Any) -> str:
    program = microc.compile(recurrent(), board=BOARD, optimize="speed", cache=False, **options)
    return str(program.files()["model.c"])


def test_kernels_of_a_loop_are_tasks_that_run_every_turn() -> None:
    inside = [task for task in tasks(recurrent()) if task.inside]
    assert inside and all(task.runs == TURNS for task in inside)
    assert all(", part " in task.name for task in inside)  # as `--dump` numbers them
    assert Space(inside[0]).flags == ()  # options of the C compiler are a whole function's
    (after,) = (task for task in tasks(recurrent()) if not task.inside and task.op == "dense")
    assert after.runs == 1 and Space(after).flags


def test_measured_kernels_are_taken_inside_of_a_loop(records: Path) -> None:
    assert source(tuned=records) != source()


def test_a_plan_chooses_kernels_inside_of_a_loop(tmp_path: Path, records: Path) -> None:
    plan = make_tuning_plan(recurrent(), board=BOARD, records=records, optimize="speed")
    path = tmp_path / "plan.json"
    write_plan(path, plan)
    assert source(plan=path) == source(tuned=records)
    (kernel,) = plan["kernels"]
    kernel["choice"] = "untuned"
    write_plan(path, json.loads(json.dumps(plan)))
    assert source(plan=path) == source()
    kernel["key"] = "0" * 40
    write_plan(path, plan)
    with pytest.raises(UsageError, match="no kernel with the key of layer"):
        source(plan=path)
