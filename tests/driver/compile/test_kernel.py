"""Kernels are scheduled once for all groups that are alike, and a long chain of operators ends soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.driver.compile.pipeline import compile_model
from microc.driver.options import Options
from microc.graph.ir import Graph, Node, TensorType
from microc.plan.ways import accesses, variables
from microc.schedule import rules
from microc.target import target_for
from microc.tir import ir
from tests.frontend import degenerate


@pytest.mark.parametrize(("form", "count"), [("onnx", 250), ("tflite", 120)])
def test_alike_groups_are_scheduled_once(
    form: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain is cut into many kernels of few kinds: schedules are looked for by kind."""
    scheduled: list[str] = []

    def counted(func: ir.PrimFunc, *rest: Any, **limits: Any) -> Any:
        scheduled.append(func.name)
        return rules.candidates(func, *rest, **limits)

    monkeypatch.setattr("microc.driver.compile.kernel.candidates", counted)
    monkeypatch.setattr("microc.driver.compile.kernel._CHOICES", {})
    name, data = degenerate.chain(form, count)
    path = tmp_path / name
    path.write_bytes(data)
    module = compile_model(path, target_for("host"), Options())
    assert 0 < 2 * len(scheduled) <= len(module.calls)


def test_a_condition_is_looked_through_once() -> None:
    """Accesses behind one another's conditions share what is known of these."""
    x, out, i = ir.Buffer("x", (4,), "float32"), ir.Buffer("out", (4,), "float32"), ir.Var("i")
    value: ir.Expr = x[i]
    for _ in range(9):
        value = ir.select(value < ir.const(0, "float32"), -value, value)
    func = ir.PrimFunc("f", (x, out), ir.For(i, ir.const(4, "int32"), ir.Store(out, (i,), value)))
    found = [variables(access) for access in accesses(func)]
    assert len(found) > 3**8 and all(one == {i} for one in found)


def test_attributes_with_a_default_may_be_left_out() -> None:
    """In a graph by hand, which no reader completed."""
    kinds = {"x": TensorType((1, 4, 4, 1), "float32"), "w": TensorType((2, 3, 3, 1), "float32")}
    kinds["y"] = TensorType((1, 2, 2, 2), "float32")
    node = Node("conv2d", ("x", "w"), ("y",), {})
    graph = Graph("net", ("x",), ("y",), (node,), kinds, {"w": np.ones((2, 3, 3, 1), np.float32)})
    network = microc.compile(graph, "portable")
    np.testing.assert_array_equal(network(np.ones((1, 4, 4, 1), np.float32)), np.full((1, 2, 2, 2), 9, np.float32))
