"""What a network costs on a board, whether it fits or not."""

from __future__ import annotations

from typing import Any

from microc.driver.compile.fit import footprint
from microc.driver.compile.pipeline import compile_model
from microc.driver.options import Options
from microc.errors import InternalError
from microc.graph.ir import Graph
from microc.target import Board


def cost(graph: Graph, board: Board) -> dict[str, Any]:
    """Flash, RAM and arena in bytes, estimated instructions and cycles of a run."""
    module = compile_model(graph, board.target, Options())
    need, plan = footprint((module,), board), module.plan
    if plan is None:
        raise InternalError("the module has no memory plan")
    return {
        "flash": need.flash,
        "ram": need.ram,
        "arena": plan.size,
        "weight_bytes": module.const_bytes,
        "estimated_instructions": module.instructions,
        "estimated_cycles": sum(call.cycles for call in module.calls),
    }
