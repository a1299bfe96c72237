# SPDX-License-Identifier: Apache-2.0
"""Kernels are scheduled once for all groups that are alike, and a long chain of operators ends soon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.lowering.kernel_builder import KernelGroup
from microc.compiler.lowering.kernel_selection import group_algorithms, memo_key
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_model, compile_network
from microc.graph.ir import Graph, Node, TensorType
from microc.plan.access_replay import find_deciding_variables, list_accesses
from microc.schedule import rules
from microc.schedule.identities import THIRDS
from microc.schedule.primitives.tensorize import can_pair_columns
from microc.schedule.primitives.tensorize_bits import can_scale_sums, can_share_words
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.around_rules import select_instructions
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.names import ACC, BOUND, OUT, SMALLEST_WEIGHT, SUM_BOUND, WEIGHT_BITS
from microc.tir.rewrite import map_stmt, walk_stmt
from tests.frontend import degenerate
from tests.support import digits


@pytest.mark.parametrize(("form", "count"), [("onnx", 250), ("tflite", 120)])
def test_alike_groups_are_scheduled_once(
    form: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain is cut into many kernels of few kinds: schedules are looked for by kind."""
    scheduled: list[str] = []

    def counted(func: ir.PrimFunc, *rest: Any, **limits: Any) -> Any:
        scheduled.append(func.name)
        return rules.candidate_schedules(func, *rest, **limits)

    monkeypatch.setattr("microc.compiler.lowering.kernel_selection.candidate_schedules", counted)
    monkeypatch.setattr("microc.compiler.lowering.kernel_selection._CHOICES", {})
    name, data = degenerate.chain(form, count)
    path = tmp_path / name
    path.write_bytes(data)
    module = compile_model(path, target_for("host"), Options())
    assert 0 < 2 * len(scheduled) <= len(module.calls)


SUMS = sorted({(1 << k) + d for k in range(1, 31) for d in (-1, 0, 1)})
WEIGHTS = range(-128, 3)


def test_promises_that_decide_alike_are_told_alike() -> None:
    """Functions of one text have one schedule: what constants promise is the same to all that ask."""
    made = compile_network(digits.INT8, target_for("x86-64-v3"), make_options())  # its requantisation has a bound
    groups = [origin for origin in made.kernel_builder.origins.values() if isinstance(origin, KernelGroup)]
    lowered = (
        group_algorithms(made.kernel_builder.graph, g.nodes, made.kernel_builder.target, "kernel") for g in groups
    )
    group = next(each for many in lowered for each in many if SUM_BOUND in memo_key([each])[0])
    decided: dict[tuple[str, ...], object] = {}
    for promise, numbers in ((SUM_BOUND, SUMS), (SMALLEST_WEIGHT, WEIGHTS), (BOUND, SUMS)):
        for number in numbers:
            func = promising(group.func, promise, number)
            blocks = {s.name: s for s in walk_stmt(func.body) if isinstance(s, ir.Block)}
            four = replace(blocks[ACC], annotations=(*blocks[ACC].annotations, (WEIGHT_BITS, 4)))
            answers = (
                can_pair_columns(four, 2), can_share_words(four, 4), *(can_scale_sums(four, bits) for bits in (2, 4)),
                find_block(select_instructions(Schedule(func), target_for("cortex-m0")).func.body, OUT).body,
            )  # fmt: skip
            text = memo_key([replace(group, func=func)])
            assert decided.setdefault(text, answers) == answers, (promise, number)
    assert 40 < len(decided) < len(SUMS) + len(WEIGHTS)
    assert len({repr(answers) for answers in decided.values()}) > 4  # limits are met
    assert THIRDS in SUMS


def promising(func: ir.PrimFunc, promise: str, number: int) -> ir.PrimFunc:
    """A function whose constants promise something else."""

    def noted(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.Block) or promise not in dict(s.annotations):
            return s
        return replace(s, annotations=tuple({**dict(s.annotations), promise: number}.items()))

    return replace(func, body=map_stmt(func.body, noted))


def test_a_condition_is_looked_through_once() -> None:
    """Accesses behind one another's conditions share what is known of these."""
    x, out, i = ir.Buffer("x", (4,), "float32"), ir.Buffer("out", (4,), "float32"), ir.Var("i")
    value: ir.Expr = x[i]
    for _ in range(9):
        value = ir.select(value < ir.const(0, "float32"), -value, value)
    func = ir.PrimFunc("f", (x, out), ir.For(i, ir.const(4, "int32"), ir.Store(out, (i,), value)))
    found = [find_deciding_variables(access) for access in list_accesses(func)]
    assert len(found) > 3**8 and all(one == {i} for one in found)


def test_attributes_with_a_default_may_be_left_out() -> None:
    """In a graph by hand, which no reader completed."""
    kinds = {"x": TensorType((1, 4, 4, 1), "float32"), "w": TensorType((2, 3, 3, 1), "float32")}
    kinds["y"] = TensorType((1, 2, 2, 2), "float32")
    node = Node("conv2d", ("x", "w"), ("y",), {})
    graph = Graph("net", ("x",), ("y",), (node,), kinds, {"w": np.ones((2, 3, 3, 1), np.float32)})
    network = microc.compile(graph, "portable")
    np.testing.assert_array_equal(network(np.ones((1, 4, 4, 1), np.float32)), np.full((1, 2, 2, 2), 9, np.float32))
