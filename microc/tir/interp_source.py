"""TIR to Python source, for :mod:`microc.tir.interp`: statements; expressions are written by the class below."""

from __future__ import annotations

from microc import dtypes
from microc.errors import InternalError
from microc.tir import interval, ir
from microc.tir.facts import ending
from microc.tir.interp_expressions import ExpressionWriter
from microc.tir.interval import Interval
from microc.tir.strips import taken

_NESTED = 12  # loops within one Python function (CPython allows 20 nested blocks)


class SourceWriter(ExpressionWriter):
    """Writes ``def kernel(buffers, intrinsics)`` for a function."""

    def __init__(self, func: ir.PrimFunc) -> None:
        super().__init__(func)
        self.blocks = 0

    def source(self) -> str:
        self.line("def kernel(buffers, intrinsics):", -1)
        for k, buffer in enumerate(self.func.params):
            self._bind_buffer(buffer, f"buffers[{k}]")
        self.statement(self.func.body)
        return "\n".join(self.lines) + "\n"

    def _bind_buffer(self, buffer: ir.Buffer, value: str) -> None:
        """Integers are read through a memoryview, which gives Python numbers; floats through the array itself."""
        name = self.fresh("b")
        self.buffers[buffer] = name
        self.line(f"{name}_array = {value}")
        view = f"{name}_array" if dtypes.is_float(buffer.dtype) else f"memoryview({name}_array)"
        self.line(f"{name} = {view}")

    def _allocate(self, buffer: ir.Buffer) -> None:
        """Poisoned memory; registers of vectors hold whatever stands for a vector."""
        if dtypes.info(buffer.dtype).lanes > 1:
            self.buffers[buffer] = self.fresh("b")
            self.line(f"{self.buffers[buffer]} = [None] * {buffer.size}")
        else:
            self._bind_buffer(buffer, f"allocate({buffer.size}, {buffer.dtype!r})")

    def body(self, stmt: ir.Stmt) -> None:
        """An indented statement."""
        self.indent += 1
        self.statement(stmt)
        self.indent -= 1

    def statement(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.Store(buffer, indices, value):
                if buffer.scope == "const":
                    raise InternalError(f"store to constant {buffer.name}", where=self.func.name)
                if buffer.dtype != value.dtype:
                    raise InternalError(f"store of {value.dtype} to {buffer.dtype} {buffer.name}", where=self.func.name)
                self.line(f"{self.element(buffer, indices).text} = {self.value(value).text}")
            case ir.For():
                self._loop(stmt)
            case ir.If(condition, then, otherwise):
                self.line(f"if {self.value(condition).text}:")
                self.body(then)
                if otherwise is not None:
                    self.line("else:")
                    self.body(otherwise)
            case ir.Seq(body):
                for child in body:
                    self.statement(child)
                if not body:
                    self.line("pass")
            case ir.Let(var, value, body):
                code = self.value(value)
                self.line(f"{self._declare(var, code.range)} = {code.text}")
                self.statement(body)
            case ir.Alloc(buffer, body):
                self._allocate(buffer)
                self.statement(body)
            case ir.Evaluate(value):
                self.line(self.value(value).text)
            case ir.Block():
                self._block(stmt)
            case _:
                raise InternalError(f"unknown statement {type(stmt).__name__}")

    def _declare(self, var: ir.Var, bounds: Interval) -> str:
        self.names[var] = self.fresh("v")
        self.ranges[var] = bounds
        return self.names[var]

    def _loop(self, loop: ir.For) -> None:
        extent = self.value(loop.extent)
        name = self._declare(loop.var, (0, max(extent.range[1] - 1, 0)))
        wrapped = self.blocks >= _NESTED
        outer = self.blocks
        if wrapped:
            function = self.fresh("loop")
            self.line(f"def {function}():")
            self.indent += 1
            self.blocks = 0
        self.blocks += 1
        strip = taken(loop) if loop.kind == "scalable" else None
        if strip is not None:
            self.line(f"{name} = 0")
            self.line(f"while {name} < {extent.text}:")
            self.body(loop.body)
            self.line(f"{name} += {self.names[strip.var]}", 1)
        else:
            self._turns(loop, f"for {name} in range({extent.text}):")
        self.blocks = outer
        if wrapped:
            self.indent -= 1
            self.line(f"{function}()")

    def _turns(self, loop: ir.For, head: str) -> None:
        """The iterations one by one."""
        self.line(head)
        ends = ending(loop)
        if ends is not None:
            self.indent += 1
            self.line(f"if not {self.value(ends.condition).text}:")
            self.line("    break")
            self.indent -= 1
        self.body(loop.body if ends is None else ends.then)

    def _block(self, block: ir.Block) -> None:
        start = self.indent
        if block.predicate is not None:
            self.line(f"if {self.value(block.predicate).text}:")
            self.indent += 1
        for i in block.iters:
            code = self.value(i.binding)
            name = self._declare(i.var, (0, i.extent - 1))
            self.line(f"{name} = {code.text}")
            if not interval.within(code.range, (0, i.extent - 1)):
                self.line(f"if not 0 <= {name} < {i.extent}:")
                self.line(f" out_of_domain(_func, {block.name!r}, {i.var.name!r}, {i.extent}, {name})")
        if block.init is not None:
            reduced = [self.names[i.var] for i in block.iters if i.kind == "reduce"]
            self.line("if " + (" == ".join([*reduced, "0"]) if reduced else "True") + ":")
            self.body(block.init)
        self.statement(block.body)
        self.indent = start
