"""What a lowered function keeps a tensor unit busy with: its instructions run by the unit's rule, without their data.

The model in C (``templates/project/tensor_unit.c.j2``) counts the same cycles when the network runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from microc.errors import InternalError
from microc.isa.tensor_unit import TensorUnit
from microc.module import UnitUse
from microc.tir import ir
from microc.tir.rewrite import stmt_children
from microc.tir.unit import BARRIER, COMPUTE, LOAD, QUEUES, SIGNAL, STORE, WAIT

_WORDS = frozenset({*QUEUES, SIGNAL, WAIT, BARRIER})


@dataclass(slots=True)
class _Clock:
    unit: TensorUnit
    now: list[int] = field(default_factory=lambda: [0, 0, 0])
    busy: list[int] = field(default_factory=lambda: [0, 0, 0])
    tokens: dict[tuple[int, ...], deque[int]] = field(default_factory=dict)
    macs: int = 0

    def call(self, name: str, numbers: list[int]) -> None:
        match name:
            case "unit_signal":
                waiting = self.tokens.setdefault(tuple(numbers[:3]), deque())
                waiting.extend([self.now[numbers[0]]] * numbers[3])
            case "unit_wait":
                for _ in range(numbers[3]):
                    waiting = self.tokens.get(tuple(numbers[:3]), deque())
                    if not waiting:
                        raise InternalError(
                            f"queue {numbers[1]} of the tensor unit waits for event {numbers[2]} for ever"
                        )
                    self.now[numbers[1]] = max(self.now[numbers[1]], waiting.popleft())
            case "unit_barrier":
                self.now = [max(self.now)] * 3
            case _:
                cycles, queue = self.unit.cycles(name, numbers), QUEUES[name]
                self.now[queue] += cycles
                self.busy[queue] += cycles
                if name == "unit_matmul":
                    self.macs += numbers[0] * numbers[1] * numbers[2]


def unit_use(func: ir.PrimFunc, unit: TensorUnit | None, macs: int) -> UnitUse | None:
    """How a lowered function uses the unit, for ``macs`` of the network; None where it does not."""
    calls = _only_calls(func.body)
    if unit is None or calls is None:
        return None
    clock = _Clock(unit)
    _run(calls, clock)
    cycles = max(clock.now)
    used = min(macs, clock.macs) / (cycles * unit.macs) if cycles else 0.0
    return UnitUse(cycles, clock.busy[LOAD], clock.busy[COMPUTE], clock.busy[STORE], clock.macs, used)


def _only_calls(stmt: ir.Stmt) -> ir.Stmt | None:
    """The instructions of a statement, and the loops around them."""
    match stmt:
        case ir.Evaluate(ir.Call(name)) if name in _WORDS:
            return stmt
        case ir.For(var, extent, body):
            inner = _only_calls(body)
            return ir.For(var, extent, inner) if inner is not None else None
        case ir.If() if any(_only_calls(child) is not None for child in stmt_children(stmt)):
            raise InternalError("instructions of the tensor unit stand under a condition: their cycles are not known")
        case _:
            parts = [part for child in stmt_children(stmt) if (part := _only_calls(child)) is not None]
            return ir.seq(*parts) if parts else None


def _run(stmt: ir.Stmt, clock: _Clock) -> None:
    match stmt:
        case ir.Seq(body):
            for child in body:
                _run(child, clock)
        case ir.For(_, extent, body):
            for _ in range(ir.int_value(extent) or 0):
                _run(body, clock)
        case ir.Evaluate(ir.Call(name, args)):
            clock.call(name, [_number(a) for a in args if not isinstance(a, ir.AddressOf)])


def _number(expr: ir.Expr) -> int:
    value = ir.int_value(expr)
    if value is None:
        raise InternalError("an operand of the tensor unit is not known when the network is compiled")
    return value
