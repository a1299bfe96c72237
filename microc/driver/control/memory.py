"""Names and memory of a function of control flow: constants, workspaces that values inside share, scopes of statements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from microc.driver.control.check import Workspaces
from microc.dtypes import Array
from microc.ops.lowering import Param
from microc.tir import ir
from microc.tir.rewrite import map_stmt, replace_buffers, substitute_stmt, walk_stmt
from microc.tir.stream import Place, placed

ZERO = ir.const(0, "int32")


class Names:
    """Names in a function; ``taken``: those that kernels inside have."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.scoped: set[str] = set()

    def fresh(self, stem: str) -> str:
        name, number = stem, 1
        while name in self.taken:
            name, number = f"{stem}{number}", number + 1
        self.taken.add(name)
        return name

    def renamed(self, body: ir.Stmt) -> ir.Stmt:
        """The statements with names for values and registers that no kernel before has used: in C they may share a scope."""
        declared = set[str]()
        values: dict[ir.Var, ir.Var] = {}
        buffers: dict[ir.Buffer, ir.Buffer] = {}
        for stmt in walk_stmt(body):
            match stmt:
                case ir.Let(var) if var.name in self.scoped:
                    values[var] = replace(var, name=self.fresh(var.name))
                case ir.Alloc(buffer) if buffer.name in self.scoped:
                    buffers[buffer] = replace(buffer, name=self.fresh(buffer.name))
                case ir.Let(var):
                    declared.add(var.name)
                case ir.Alloc(buffer):
                    declared.add(buffer.name)
                case _:
                    pass
        self.scoped |= declared

        def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
            if isinstance(stmt, ir.Let) and stmt.var in values:
                return replace(stmt, var=values[stmt.var])
            return stmt

        return replace_buffers(map_stmt(substitute_stmt(body, values), on_stmt), buffers)


@dataclass(slots=True, eq=False)
class _Slot:
    """Memory for values inside, one after another; ``buffer`` stands for it until its size is known."""

    stem: str
    buffer: ir.Buffer
    size: int


class Memory:
    """The parameters of a function but its results, and its workspaces."""

    def __init__(self, names: Names, *, reuse: bool) -> None:
        self.names, self.reuse = names, reuse
        self.params: list[tuple[ir.Buffer, Param]] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], ir.Buffer] = {}
        self.slots: list[_Slot] = []
        self.idle: list[_Slot] = []
        self.workspaces = Workspaces()

    def data(self, name: str, size: int, dtype: str) -> Place:
        """The parameter for a value from outside."""
        buffer = ir.Buffer(self.names.fresh("data"), (size,), dtype)
        self.params.append((buffer, Param("data", name)))
        return Place(buffer, ZERO)

    def workspace(self, stem: str, size: int, dtype: str) -> Place:
        """Memory until it is released: the smallest idle slot that is large enough, else the largest, which grows."""
        idle = [slot for slot in self.idle if slot.buffer.dtype == dtype]
        if idle:
            found = min(idle, key=lambda slot: (slot.size < size, slot.size if slot.size >= size else -slot.size))
            self.idle.remove(found)
            found.size = max(found.size, size)
        else:
            name = f"slot {len(self.slots)}"  # until its size is known
            found = _Slot(stem, ir.Buffer(name, (1,), dtype, "workspace"), size)
            self.slots.append(found)
        return Place(found.buffer, ZERO, self.workspaces.number())

    def release(self, places: Iterable[Place]) -> None:
        """Nothing reads these any more: later values may lie there. In a loop, turns start anew and read nothing from before."""
        for place in places if self.reuse else ():
            self.idle += [slot for slot in self.slots if slot.buffer == place.buffer]

    def constant(self, role: str, array: Array) -> ir.Buffer:
        """The parameter for a constant; equal ones are one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            buffer = ir.Buffer(self.names.fresh(role), array.shape, array.dtype.name, "const")
            self.constants[key] = buffer
            self.params.append((buffer, Param(role, "", np.ascontiguousarray(array))))
        return self.constants[key]

    def function(
        self, body: ir.Stmt, results: Iterable[ir.Buffer]
    ) -> tuple[ir.Stmt, tuple[ir.Buffer, ...], tuple[Param, ...]]:
        """The statements with workspaces of their final sizes, all buffers in their order, and what the first are bound to."""
        params = sorted(self.params, key=lambda item: item[1].array is not None)
        workspaces = {
            slot.buffer: ir.Buffer(self.names.fresh(slot.stem), (slot.size,), slot.buffer.dtype, "workspace")
            for slot in self.slots
        }
        body = placed(body, {key: Place(buffer, ZERO) for key, buffer in workspaces.items()})
        buffers = (*(buffer for buffer, _ in params), *results, *workspaces.values())
        return body, buffers, tuple(param for _, param in params)
