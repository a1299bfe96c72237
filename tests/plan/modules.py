# SPDX-License-Identifier: Apache-2.0
"""Modules made to be planned: random call sequences, sizes, lifetimes, orders of access and views."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from microc.base.dtypes import nbytes
from microc.module import Call, Kernel, Module, Value, View
from microc.tir import ir


@dataclass
class Sketch:
    """A module under construction."""

    values: dict[str, Value] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)

    def value(self, name: str, size: int, storage: str = "intermediate", dtype: str = "int8") -> str:
        self.values[name] = Value(name, (size,), dtype, storage)
        return name

    def view(self, name: str, base: str, offset: int, size: int) -> str:
        self.value(name, size)
        self.views.append(View(name, base, offset))
        return name

    def call(
        self, reads: tuple[str, ...], writes: tuple[str, ...], workspace: tuple[str, ...] = (), style: str = "apart"
    ) -> None:
        """A step; ``style`` says in which order it touches its operands (see :func:`touching`)."""
        params = [
            ir.Buffer(name, self.values[name].shape, self.values[name].dtype) for name in (*reads, *writes, *workspace)
        ]
        made = len(reads)
        self.add(
            replace(touching(params[:made], params[made:], style), name=f"kernel{len(self.calls)}"),
            reads,
            writes,
            workspace,
        )

    def add(
        self, func: ir.PrimFunc, reads: tuple[str, ...], writes: tuple[str, ...], workspace: tuple[str, ...] = ()
    ) -> None:
        """A step that runs a function, whose parameters are in the order given."""
        self.kernels.append(Kernel(func))
        self.calls.append(Call(func.name, (*reads, *writes, *workspace), reads, writes, workspace))

    def module(self) -> Module:
        def having(storage: str) -> tuple[str, ...]:
            return tuple(v.name for v in self.values.values() if v.storage == storage)

        return Module(
            "net",
            self.values,
            tuple(self.kernels),
            tuple(self.calls),
            having("input"),
            having("output"),
            having("state"),
            tuple(self.views),
        )


def touching(reads: list[ir.Buffer], writes: list[ir.Buffer], style: str) -> ir.PrimFunc:
    """A function that touches all elements of its buffers.

    ``apart``: writes everything, then reads everything; ``late``: reads everything first; ``together``: reads and writes element
    by element from the front.
    """
    i = ir.Var("i")

    def stores(buffer: ir.Buffer) -> ir.Stmt:
        return ir.Store(buffer, (i,), ir.const(0, buffer.dtype))

    def loop(extent: int, body: ir.Stmt) -> ir.Stmt:
        return ir.For(i, ir.const(extent, "int32"), body)

    def inside(buffer: ir.Buffer, stmt: ir.Stmt) -> ir.Stmt:
        return ir.If(i < buffer.size, stmt)

    reading = [(b, ir.Evaluate(b[i])) for b in reads]
    writing = [(b, stores(b)) for b in writes]
    if style == "together":
        most = max((b.size for b in (*reads, *writes)), default=0)
        body: ir.Stmt = loop(most, ir.seq(*(inside(b, s) for b, s in (*reading, *writing))))
    else:
        order = (*writing, *reading) if style == "apart" else (*reading, *writing)
        body = ir.seq(*(loop(b.size, s) for b, s in order))
    return ir.PrimFunc("kernel", (*reads, *writes), body)


def residual() -> Module:
    """x -> a -> b -> c, y = a + c: ``a`` lives across two calls."""
    sketch = Sketch()
    sketch.value("x", 64, "input")
    for name in "abc":
        sketch.value(name, 64)
    sketch.value("y", 64, "output")
    sketch.value("work", 10, "workspace")
    sketch.call(("x",), ("a",))
    sketch.call(("a",), ("b",), ("work",))
    sketch.call(("b",), ("c",))
    sketch.call(("a", "c"), ("y",), style="together")
    return sketch.module()


sizes = st.sampled_from([1, 3, 4, 10, 16, 64, 64, 100])
kinds = st.sampled_from(["int8", "int8", "int16", "int32", "int64"])


@st.composite
def modules(draw: st.DrawFn, calls: int = 8) -> Module:
    """Any well-formed module: everything is written before it is read."""
    sketch = Sketch()
    known = [sketch.value(f"in{k}", draw(sizes), "input", draw(kinds)) for k in range(draw(st.integers(0, 2)))]
    known += [sketch.value(f"state{k}", draw(sizes), "state", draw(kinds)) for k in range(draw(st.integers(0, 1)))]
    for number in range(draw(st.integers(1, calls))):
        reads = tuple(draw(st.lists(st.sampled_from(known), max_size=3, unique=True))) if known else ()
        kind = draw(st.sampled_from(["new", "new", "in place", "view", "parts"]))
        style = draw(st.sampled_from(["apart", "together", "late"]))
        workspace: tuple[str, ...] = ()
        if draw(st.booleans()):
            workspace = (sketch.value(f"work{number}", draw(sizes), "workspace", draw(kinds)),)
        dtype = draw(kinds)
        width = nbytes(dtype)
        size = sketch.values[reads[0]].nbytes if kind == "in place" and reads else draw(sizes) * width
        last = number == 0 or draw(st.integers(0, 4)) == 0
        base = sketch.value(f"t{number}", -(-size // width), "output" if last else "intermediate", dtype)
        size = sketch.values[base].nbytes
        if kind == "parts" and size > 1:  # a concatenation: two calls write into one value
            cut = draw(st.integers(1, size - 1))
            sketch.call(reads, (sketch.view(f"low{number}", base, 0, cut),), workspace, style)
            sketch.call(reads, (sketch.view(f"high{number}", base, cut, size - cut),), style=style)
        else:
            sketch.call(reads, (base,), workspace, "together" if kind == "in place" else style)
        known.append(base)
        if kind == "view":
            offset = draw(st.integers(0, size - 1))
            known.append(sketch.view(f"view{number}", base, offset, draw(st.integers(1, size - offset))))
    return sketch.module()
