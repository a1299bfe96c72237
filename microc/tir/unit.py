"""Instructions of a tensor unit as calls: which queue each waits in. Their meanings are in :mod:`microc.isa.vocabulary.unit`."""

from __future__ import annotations

from types import MappingProxyType

from microc.tir import ir
from microc.tir.rewrite import walk_stmt

LOAD, COMPUTE, STORE = 0, 1, 2
"""Queues, as tokens name them."""
SIGNAL, WAIT, BARRIER = "unit_signal", "unit_wait", "unit_barrier"
QUEUES = MappingProxyType(
    {
        "unit_load_input": LOAD,
        "unit_load_weight": LOAD,
        "unit_load_sums": COMPUTE,
        "unit_set": COMPUTE,
        "unit_matmul": COMPUTE,
        "unit_store_sums": STORE,
    }
)


def instruction(stmt: ir.Stmt) -> ir.Call | None:
    """The call of an instruction that works on memory, if the statement is one."""
    match stmt:
        case ir.Evaluate(ir.Call(name) as call) if name in QUEUES:
            return call
        case _:
            return None


def instructions(stmt: ir.Stmt) -> list[ir.Call]:
    """All such under a statement, as they are written."""
    return [call for s in walk_stmt(stmt) if (call := instruction(s)) is not None]
