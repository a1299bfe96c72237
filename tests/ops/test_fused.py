# SPDX-License-Identifier: Apache-2.0
"""Elementwise work joins behind every operator that makes one result: names of stages do not clash, schedules suit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.compiler.lowering.kernel_selection import schedule_group
from microc.graph.ir import Node, TensorType
from microc.ops.registry import Case, OpDef, registry
from microc.target import SPEED, target_for
from microc.tir.verify import verify
from tests.ops.compiled import one_node
from tests.ops.edges import case_arrays


def _anchors() -> list[Any]:
    """One case of each anchor for each way that its operands and results are typed."""
    found: dict[tuple[object, ...], Any] = {}
    for name, definition in registry().items():
        if definition.compute is None or definition.view:
            continue
        for case in definition.cases():
            results = definition.infer({**definition.defaults, **case.attrs}, case.types)
            if len(results) == 1 and results[0].size:
                dtypes = tuple(kind.dtype for kind in (*case.types, *results))
                found.setdefault((name, dtypes), pytest.param(definition, case, id=f"{name} {' '.join(dtypes)}"))
    return list(found.values())


@pytest.mark.parametrize(("definition", "case"), _anchors())
def test_elementwise_work_joins(definition: OpDef, case: Case) -> None:
    graph, node = one_node(definition, case, [np.asarray(a, order="C") for a in case_arrays(case)])
    kind = graph.types[node.outputs[0]]
    follower = Node("cast", node.outputs, ("joined",), {"dtype": "float32"})
    graph = replace(graph, nodes=(node, follower), outputs=("joined",))
    graph = replace(graph, types={**graph.types, "joined": TensorType(kind.shape, "float32")})
    group, choice = schedule_group(graph, (node, follower), target_for("cortex-m4"), SPEED, "kernel")
    verify(choice.func, tables=group.tables)
