# SPDX-License-Identifier: Apache-2.0
"""Interpreter of TIR: executes a function on numpy arrays, by translating it to Python source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.errors import InternalError, ProgramError
from microc.tir import ir, operators
from microc.tir.analysis import linear_forms
from microc.tir.analysis.context import early_exit_branch
from microc.tir.analysis.linear_forms import Interval
from microc.tir.operators import BINARY, FUNCTIONS
from microc.tir.rewrite import while_branch
from microc.tir.symbolic import find_active_lanes_let, require_constant_sizes

# ---- Translation of expressions to Python source. The range of each expression is tracked, to omit checks that cannot fail.

_INFIX = {name: each.text_notation[0] for name, each in BINARY.items() if each.text_notation}
_DEEPEST = 40  # most nested brackets in one Python expression (the parser allows 200, of which other code needs some)


class SourceOfExpr(NamedTuple):
    """Python source of an expression, with the interval of its integer value and the nesting depth of its brackets."""

    text: str
    range: Interval = linear_forms.UNKNOWN
    depth: int = 0


def _dtype_interval(dtype: str) -> Interval:
    """Return the interval of all values of an integer dtype; the unknown interval for floats and vectors."""
    kind, _, lanes = dtypes.dtype_parts(dtype)
    return linear_forms.UNKNOWN if kind == "float" or lanes > 1 else dtypes.int_range(dtype)


class PythonExpressionWriter:
    """Translator of a function's expressions to lines of Python source.

    ``constants``: Python values that the source refers to by name. ``intrinsics``: names of the intrinsics that it calls."""

    def __init__(self, func: ir.PrimFunc) -> None:
        self.func = func
        self.constants: dict[str, Any] = {}
        self.intrinsics: set[str] = set()
        self.lines: list[str] = []
        self.indent = 1
        self.counter = 0
        self.buffers: dict[ir.Buffer, str] = {}
        self.ranges: dict[ir.Var, Interval] = {}
        self.names: dict[ir.Var, str] = {}

    def append_line(self, text: str, offset: int = 0) -> None:
        """Append a line of source at the current indentation plus ``offset`` columns."""
        self.lines.append(" " * (self.indent + offset) + text)

    def fresh_name(self, stem: str) -> str:
        """Return a name, derived from ``stem``, that the source does not use yet."""
        self.counter += 1
        return f"{stem}{self.counter}"

    # ------------------------------------------------------------ expressions

    def translate_value(self, expr: ir.Expr) -> SourceOfExpr:
        """Translate an expression.

        A deeply nested expression becomes the body of a local function, because Python's parser limits the nesting depth.
        The function is called where the value is needed, so that guarded operands are evaluated only under their guard."""
        code = self._translate_expr(expr)
        if code.depth < _DEEPEST:
            return code
        name = self.fresh_name("part")
        self.append_line(f"def {name}(): return {code.text}")
        return SourceOfExpr(f"{name}()", code.range, 1)

    def _translate_expr(self, expr: ir.Expr) -> SourceOfExpr:
        match expr:
            case ir.Const():
                return self._translate_literal(expr)
            case ir.Var():
                if expr not in self.names:
                    raise InternalError(f"variable {expr.name} is not defined where it is used", where=self.func.name)
                return SourceOfExpr(self.names[expr], self.ranges[expr])
            case ir.Load(buffer, indices):
                element = self.element_source(buffer, indices)
                return SourceOfExpr(element.text, _dtype_interval(buffer.dtype), element.depth)
            case ir.Bin(("and" | "or") as op, a, b):
                x, y = self.translate_value(a), self.translate_value(b)
                return SourceOfExpr(f"({x.text} {op} {y.text})", linear_forms.BOOLEAN, _bracket_depth_around(x, y))
            case ir.Bin():
                return self._translate_binary(expr)
            case ir.Un(op, a):
                return self._translate_unary(op, a)
            case ir.Cast(dtype, a):
                return self._translate_cast(dtype, a)
            case ir.Select(condition, a, b):
                c, x, y = self.translate_value(condition), self.translate_value(a), self.translate_value(b)
                text = f"({x.text} if {c.text} else {y.text})"
                return SourceOfExpr(text, linear_forms.union(x.range, y.range), _bracket_depth_around(c, x, y))
            case ir.Call(name, args, dtype):
                return self._translate_call(name, args, dtype)
            case _:
                raise InternalError(
                    f"{type(expr).__name__} has no value: it may only be an argument of a call", where=self.func.name
                )

    def _translate_literal(self, expr: ir.Const) -> SourceOfExpr:
        """Translate a literal. A float becomes a named constant of its numpy dtype."""
        if isinstance(expr.value, int) and not dtypes.is_float(expr.dtype):
            text = str(expr.value) if expr.value >= 0 else f"({expr.value})"
            return SourceOfExpr(text, (expr.value, expr.value))
        name = self.fresh_name("k")
        self.constants[name] = dtypes.to_numpy(expr.dtype).type(expr.value)
        return SourceOfExpr(name)

    def _translate_binary(self, expr: ir.Bin) -> SourceOfExpr:
        """Translate a binary operation on operands of equal dtype. Signed results are checked, unsigned results wrap."""
        op, dtype = expr.op, expr.a.dtype
        if dtype != expr.b.dtype:
            raise InternalError(
                f"{op}: operands have different dtypes; got {dtype} and {expr.b.dtype}", where=self.func.name
            )
        x, y = self.translate_value(expr.a), self.translate_value(expr.b)
        depth = _bracket_depth_around(x, y)
        if op in ("min", "max"):
            first, second = self.fresh_name("t"), self.fresh_name("t")
            sign = "<" if op == "min" else ">"
            text = f"({first} if ({first} := {x.text}) {sign} ({second} := {y.text}) else {second})"
            return SourceOfExpr(text, linear_forms.binary(op, x.range, y.range), depth + 1)
        if op in ir.COMPARISONS or dtypes.is_float(dtype):
            if op not in ir.COMPARISONS and op not in ("add", "sub", "mul", "div"):
                raise InternalError(f"operator {op} is not defined for {dtype}", where=self.func.name)
            bounds = linear_forms.BOOLEAN if op in ir.COMPARISONS else linear_forms.UNKNOWN
            return SourceOfExpr(f"({x.text} {_INFIX[op]} {y.text})", bounds, depth)
        if op == "div":
            raise InternalError(
                f"operator div is not defined for integers; got {dtype}, expected floordiv or truncdiv",
                where=self.func.name,
            )
        if op in ("shl", "shr"):
            y = self._checked_shift_count(op, dtype, y)
        if op in ("floormod", "truncmod"):
            x, y = self._checked_remainder_operands(op, dtype, x, y)
        text = f"{op}({x.text}, {y.text})" if op not in _INFIX else f"({x.text} {_INFIX[op]} {y.text})"
        return self._check_result_range(op, dtype, SourceOfExpr(text, linear_forms.binary(op, x.range, y.range), depth))

    def _checked_remainder_operands(
        self, op: str, dtype: str, x: SourceOfExpr, y: SourceOfExpr
    ) -> tuple[SourceOfExpr, SourceOfExpr]:
        """Return the operands of a remainder operation, with a check at run time if it is needed.

        The remainder of the lowest integer and -1 is an error: C also computes their quotient, which overflows."""
        low = dtypes.int_range(dtype)[0]
        if not low or not (x.range[0] <= low and y.range[0] <= -1 <= y.range[1]):
            return x, y
        a, b = self.fresh_name("t"), self.fresh_name("t")
        fits = f"(({a} := {x.text}) != {low}) | (({b} := {y.text}) != -1)"
        text = f"({a} if {fits} else overflow(_func, {op!r}, {dtype!r}, -{a}))"
        return SourceOfExpr(text, x.range, _bracket_depth_around(x, y) + 3), SourceOfExpr(b, y.range)

    def _checked_shift_count(self, op: str, dtype: str, y: SourceOfExpr) -> SourceOfExpr:
        """Return the count of a shift, with a check at run time unless it is known to be from 0 to the bit width - 1."""
        bits = dtypes.dtype_parts(dtype).bits
        if linear_forms.within(y.range, (0, bits - 1)):
            return y
        t = self.fresh_name("t")
        text = f"({t} if 0 <= ({t} := {y.text}) < {bits} else bad_shift(_func, {op!r}, {dtype!r}, {t}))"
        return SourceOfExpr(text, (0, bits - 1), y.depth + 2)

    def _check_result_range(self, op: str, dtype: str, code: SourceOfExpr) -> SourceOfExpr:
        """Return the code of an integer result, extended to keep the result within its dtype.

        An unsigned result is wrapped; a signed result is checked at run time. Neither is needed if its range fits."""
        low, high = dtypes.int_range(dtype)
        if linear_forms.within(code.range, (low, high)):
            return code
        if dtypes.dtype_parts(dtype).kind == "uint":
            return SourceOfExpr(f"({code.text} & {high})", (low, high), code.depth + 1)
        t = self.fresh_name("t")
        text = f"({t} if {low} <= ({t} := {code.text}) <= {high} else overflow(_func, {op!r}, {dtype!r}, {t}))"
        return SourceOfExpr(text, (max(low, code.range[0]), min(high, code.range[1])), code.depth + 2)

    def _translate_unary(self, op: str, a: ir.Expr) -> SourceOfExpr:
        x = self.translate_value(a)
        if op == "not":
            return SourceOfExpr(f"(not {x.text})", linear_forms.BOOLEAN, x.depth + 1)
        if dtypes.is_float(a.dtype):
            return SourceOfExpr(f"(-{x.text})", depth=x.depth + 1)
        low, high = x.range
        text, bounds = (f"(-{x.text})", (-high, -low)) if op == "neg" else (f"(~{x.text})", (-high - 1, -low - 1))
        return self._check_result_range(op, a.dtype, SourceOfExpr(text, bounds, x.depth + 1))

    def _translate_cast(self, dtype: str, a: ir.Expr) -> SourceOfExpr:
        x, source = self.translate_value(a), a.dtype
        kind, bits, lanes = dtypes.dtype_parts(dtype)
        if lanes > 1 or dtypes.dtype_parts(source).lanes > 1:
            raise InternalError(f"vectors cannot be cast; got a cast of {source} to {dtype}", where=self.func.name)
        depth = x.depth + 2
        if kind == "float":
            exact = dtypes.is_float(source) or dtypes.dtype_parts(source).bits < 64 or bits == 64
            name = "bf16" if dtype == "bfloat16" else f"f{bits}"
            return SourceOfExpr(f"{name if exact else 'int_to_float32'}({x.text})", depth=depth)
        if kind == "bool":
            return SourceOfExpr(f"({x.text} != 0)", linear_forms.BOOLEAN, depth)
        low, high = dtypes.int_range(dtype)
        if dtypes.is_float(source):
            return SourceOfExpr(f"float_to_int(_func, {dtype!r}, {low}, {high}, {x.text})", (low, high), depth)
        if source == "bool":
            return SourceOfExpr(f"int({x.text})", linear_forms.BOOLEAN, depth)
        if linear_forms.within(x.range, (low, high)):
            return x
        mask = (1 << bits) - 1
        text = f"(({x.text} + {-low} & {mask}) - {-low})" if low else f"({x.text} & {mask})"
        return SourceOfExpr(text, (low, high), depth)

    # ------------------------------------------------------------ memory and calls

    def element_source(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> SourceOfExpr:
        """Return the source of an element of a buffer, as an expression that can be read or assigned."""
        flat = self._flat_index(buffer, indices)
        return SourceOfExpr(f"{self._buffer_name(buffer)}[{flat.text}]", flat.range, flat.depth + 1)

    def _buffer_name(self, buffer: ir.Buffer) -> str:
        """Return the name of a buffer in the source. InternalError if the buffer is not in scope."""
        if buffer not in self.buffers:
            raise InternalError(f"{buffer.name} is neither a parameter nor allocated", where=self.func.name)
        return self.buffers[buffer]

    def _flat_index(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> SourceOfExpr:
        """Return the row-major index of an element.

        The index along an axis is checked at run time unless its range is known to be within bounds."""
        if len(indices) != len(buffer.shape):
            raise InternalError(
                f"{buffer.name}: wrong number of indices; got {len(indices)}, expected {len(buffer.shape)}",
                where=self.func.name,
            )
        codes = [self.translate_value(i) for i in indices]
        parts: list[str] = []
        for k, (code, extent, stride) in enumerate(zip(codes, buffer.shape, buffer.strides, strict=True)):
            text = code.text
            if not linear_forms.within(code.range, (0, extent - 1)):
                t = self.fresh_name("t")
                shown = ", ".join(t if j == k else other.text for j, other in enumerate(codes))
                fault = f"out_of_bounds(_func, {buffer.name!r}, {buffer.shape!r}, ({shown},))"
                text = f"({t} if 0 <= ({t} := {text}) < {extent} else {fault})"
            if text != "0" or stride == 1:
                parts.append(f"{text} * {stride}" if stride != 1 else text)
        return SourceOfExpr(" + ".join(parts) or "0", linear_forms.UNKNOWN, _bracket_depth_around(*codes) + 2)

    def _translate_call(self, name: str, args: tuple[ir.Expr, ...], dtype: str) -> SourceOfExpr:
        if name in FUNCTIONS:
            codes = [self.translate_value(a) for a in args]
            text = f"_math[{name!r}]({', '.join(c.text for c in codes)})"
            code = SourceOfExpr(text, depth=_bracket_depth_around(*codes) + 1)
            return code if dtypes.is_float(dtype) else self._check_result_range(name, dtype, code)
        if name == ir.REINTERPRET:
            (x,) = (self.translate_value(a) for a in args)
            return SourceOfExpr(
                f"reinterpret({args[0].dtype!r}, {dtype!r}, {x.text})", _dtype_interval(dtype), x.depth + 1
            )
        self.intrinsics.add(name)
        texts, deepest = [], 0
        for a in args:
            code = self._translate_address(a) if isinstance(a, ir.AddressOf) else self.translate_value(a)
            texts.append(code.text)
            deepest = max(deepest, code.depth)
        text = f"intrinsics[{name!r}]([{', '.join(texts)}])"
        return SourceOfExpr(text, _dtype_interval(dtype), deepest + 2)

    def _translate_address(self, a: ir.AddressOf) -> SourceOfExpr:
        """Translate an address to a pair: the flat array of the buffer, and the index of the element, which is checked."""
        if a.writes and a.buffer.scope == "const":
            raise InternalError(
                f"store to constant {a.buffer.name}; expected only reads of a constant", where=self.func.name
            )
        flat = self._flat_index(a.buffer, a.indices)
        t = self.fresh_name("t")
        last = a.buffer.size - a.reach
        fault = f"out_of_bounds(_func, {a.buffer.name!r}, {a.buffer.shape!r}, ({t} + {a.reach - 1},))"
        text = f"({self._buffer_name(a.buffer)}_array, {t} if ({t} := {flat.text}) <= {last} else {fault})"
        return SourceOfExpr(text, depth=flat.depth + 2)


def _bracket_depth_around(*codes: SourceOfExpr) -> int:
    """Return the nesting depth of brackets in an expression whose operands are ``codes``."""
    return 1 + max((code.depth for code in codes), default=0)


# ---- Translation of statements to Python source; expressions are translated by the class above.

_NESTED = 12  # most nested loops in one Python function (CPython allows 20 nested blocks)


class PythonFunctionWriter(PythonExpressionWriter):
    """Translator of a whole TIR function to Python source: ``def kernel(buffers, intrinsics)``."""

    def __init__(self, func: ir.PrimFunc) -> None:
        super().__init__(func)
        self.blocks = 0

    def translate_function(self) -> str:
        """Return the Python source of the whole function."""
        self.append_line("def kernel(buffers, intrinsics):", -1)
        for k, buffer in enumerate(self.func.params):
            self._bind_buffer(buffer, f"buffers[{k}]")
        self.translate_statement(self.func.body)
        return "\n".join(self.lines) + "\n"

    def _bind_buffer(self, buffer: ir.Buffer, array_source: str) -> None:
        """Bind a name to a buffer's memory. ``array_source``: source of the array.

        Integers are accessed through a memoryview, which returns Python integers; floats through the numpy array."""
        name = self.fresh_name("b")
        self.buffers[buffer] = name
        self.append_line(f"{name}_array = {array_source}")
        view = f"{name}_array" if dtypes.is_float(buffer.dtype) else f"memoryview({name}_array)"
        self.append_line(f"{name} = {view}")

    def _translate_allocation(self, buffer: ir.Buffer) -> None:
        """Translate the allocation of a buffer. Its memory is poisoned, to detect reads before writes.

        A register buffer of vectors becomes a list of objects that represent vectors."""
        if dtypes.dtype_parts(buffer.dtype).lanes > 1:
            self.buffers[buffer] = self.fresh_name("b")
            self.append_line(f"{self.buffers[buffer]} = [None] * {buffer.size}")
        else:
            self._bind_buffer(buffer, f"allocate({buffer.size}, {buffer.dtype!r})")

    def translate_body(self, stmt: ir.Stmt) -> None:
        """Translate a statement one indentation level deeper."""
        self.indent += 1
        self.translate_statement(stmt)
        self.indent -= 1

    def translate_statement(self, stmt: ir.Stmt) -> None:
        """Translate a statement at the current indentation."""
        match stmt:
            case ir.Store(buffer, indices, value):
                if buffer.scope == "const":
                    raise InternalError(
                        f"store to constant {buffer.name}; expected only reads of a constant", where=self.func.name
                    )
                if buffer.dtype != value.dtype:
                    raise InternalError(
                        f"wrong dtype of a value stored to {buffer.name}; got {value.dtype}, expected {buffer.dtype}",
                        where=self.func.name,
                    )
                self.append_line(f"{self.element_source(buffer, indices).text} = {self.translate_value(value).text}")
            case ir.For():
                self._translate_loop(stmt)
            case ir.If(condition, then, otherwise):
                self.append_line(f"if {self.translate_value(condition).text}:")
                self.translate_body(then)
                if otherwise is not None:
                    self.append_line("else:")
                    self.translate_body(otherwise)
            case ir.Seq(body):
                for child in body:
                    self.translate_statement(child)
                if not body:
                    self.append_line("pass")
            case ir.Let(var, value, body):
                code = self.translate_value(value)
                self.append_line(f"{self._declare_variable(var, code.range)} = {code.text}")
                self.translate_statement(body)
            case ir.Alloc(buffer, body):
                self._translate_allocation(buffer)
                self.translate_statement(body)
            case ir.Evaluate(value):
                self.append_line(self.translate_value(value).text)
            case ir.Block():
                self._translate_block(stmt)
            case _:
                raise InternalError(f"interpreter: unknown type of statement; got {type(stmt).__name__}")

    def _declare_variable(self, var: ir.Var, bounds: Interval) -> str:
        """Give a variable a name in the source, and record its range; return the name."""
        self.names[var] = self.fresh_name("v")
        self.ranges[var] = bounds
        return self.names[var]

    def _translate_loop(self, loop: ir.For) -> None:
        extent = self.translate_value(loop.extent)
        name = self._declare_variable(loop.var, (0, max(extent.range[1] - 1, 0)))
        wrapped = self.blocks >= _NESTED
        outer = self.blocks
        if wrapped:
            function = self.fresh_name("loop")
            self.append_line(f"def {function}():")
            self.indent += 1
            self.blocks = 0
        self.blocks += 1
        strip = find_active_lanes_let(loop) if loop.kind == "scalable" else None
        if strip is not None:
            self.append_line(f"{name} = 0")
            self.append_line(f"while {name} < {extent.text}:")
            self.translate_body(loop.body)
            self.append_line(f"{name} += {self.names[strip.var]}", 1)
        else:
            head = f"for {name} in range({extent.text}):"
            self._translate_loop_body(loop, "while True:" if while_branch(loop) is not None else head)
        self.blocks = outer
        if wrapped:
            self.indent -= 1
            self.append_line(f"{function}()")

    def _translate_loop_body(self, loop: ir.For, head: str) -> None:
        """Translate the head and the body of a loop. A branch that ends the loop early becomes a ``break``."""
        self.append_line(head)
        ends = early_exit_branch(loop)
        if ends is not None:
            self.indent += 1
            self.append_line(f"if not {self.translate_value(ends.condition).text}:")
            self.append_line("    break")
            self.indent -= 1
        self.translate_body(loop.body if ends is None else ends.then)

    def _translate_block(self, block: ir.Block) -> None:
        """Translate a block: its predicate, its iterators (checked to be in their domain), ``init`` and body."""
        start = self.indent
        if block.predicate is not None:
            self.append_line(f"if {self.translate_value(block.predicate).text}:")
            self.indent += 1
        for i in block.iters:
            code = self.translate_value(i.binding)
            name = self._declare_variable(i.var, (0, i.extent - 1))
            self.append_line(f"{name} = {code.text}")
            if not linear_forms.within(code.range, (0, i.extent - 1)):
                self.append_line(f"if not 0 <= {name} < {i.extent}:")
                self.append_line(f" out_of_domain(_func, {block.name!r}, {i.var.name!r}, {i.extent}, {name})")
        if block.init is not None:
            reduced = [self.names[i.var] for i in block.iters if i.kind == "reduce"]
            self.append_line("if " + (" == ".join([*reduced, "0"]) if reduced else "True") + ":")
            self.translate_body(block.init)
        self.translate_statement(block.body)
        self.indent = start


# ---- Execution: the interpreter defines the semantics of a PrimFunc, and detects undefined behaviour.
#
# The function is translated to Python source, which is executed. Integers are Python integers, so that signed overflow is
# detected. Signed overflow raises :class:`InternalError`, and so do indices out of bounds, block iterators outside of their
# domain, division by zero, and shifts by the bit width or more. Unsigned arithmetic and integer casts wrap around. Floats are
# numpy scalars of their dtype. Workspaces are initialised with 0x55 bytes or NaN (poisoned), so that reads before writes
# become visible. All loops run serially.
#
# A check is omitted if the ranges of the operands exclude the error. Ranges are derived from loop extents, block domains and
# dtypes only.

Intrinsics = Mapping[str, Callable[[list[Any]], Any]]
_NONE: Intrinsics = MappingProxyType({})


def run(func: ir.PrimFunc, args: Sequence[Array], intrinsics: Intrinsics = _NONE) -> None:
    """Execute ``func`` on C-contiguous arrays, one for each parameter in order; outputs are written in place.

    ``intrinsics``: functions ``f(args) -> value`` that define the calls of intrinsics, by name. An
    :class:`~microc.tir.ir.AddressOf` argument is passed to them as a pair (flat array view, flat element index).
    """
    compile_func(func)(args, intrinsics)


def execute(func: ir.PrimFunc, arrays: Sequence[Array], intrinsics: Intrinsics = _NONE) -> list[Array]:
    """Execute ``func`` like :func:`run`, but on copies of the arrays; return the copies in the order of the parameters."""
    copies = [np.array(array, order="C") for array in arrays]
    run(func, copies, intrinsics)
    return copies


def compile_func(func: ir.PrimFunc) -> Callable[[Sequence[Array], Intrinsics], None]:
    """Translate a function to Python once, to run it many times; return ``run_compiled(args, intrinsics)``."""
    require_constant_sizes(func)
    writer = PythonFunctionWriter(func)
    source = writer.translate_function()
    environment: dict[str, Any] = {**_ENVIRONMENT, **writer.constants, "_func": func.name, "_math": FUNCTIONS}
    exec(compile(source, f"<tir {func.name}>", "exec"), environment)
    kernel = environment["kernel"]

    def run_compiled(args: Sequence[Array], intrinsics: Intrinsics = _NONE) -> None:
        missing = sorted(writer.intrinsics - set(intrinsics))
        if missing:
            raise ProgramError(
                f"the function calls functions without a definition; got {', '.join(missing)}",
                where=func.name,
                hint="write what they compute as TIR, or give their meanings as intrinsics",
            )
        _check_arguments(func, args)
        try:
            with np.errstate(all="ignore"):
                kernel([array.reshape(-1) for array in args], intrinsics)
        except ZeroDivisionError as fault:
            raise InternalError("integer division by zero", where=func.name) from fault

    return run_compiled


def _check_arguments(func: ir.PrimFunc, args: Sequence[Array]) -> None:
    if len(args) != len(func.params):
        raise InternalError(f"wrong number of arrays; got {len(args)}, expected {len(func.params)}", where=func.name)
    for buffer, array in zip(func.params, args, strict=True):
        if array.shape != buffer.shape or array.dtype != to_numpy(buffer.dtype):
            raise InternalError(
                f"{buffer.name}: wrong array; got {array.dtype}{list(array.shape)}, expected "
                f"{buffer.dtype}{list(buffer.shape)}",
                where=func.name,
            )
        if not array.flags.c_contiguous:
            raise InternalError(f"{buffer.name}: the array is not contiguous; expected C order", where=func.name)


# ---------------------------------------------------------------- functions that the generated source calls


def _raise_overflow(func_name: str, op: str, dtype: str, value: int) -> NoReturn:
    """Raise InternalError for an operation whose result exceeds the range of its dtype."""
    raise InternalError(f"{op} overflows {dtype}; got {value}", where=func_name)


def _raise_out_of_bounds(
    func_name: str, buffer_name: str, shape: tuple[int, ...], indices: tuple[int, ...]
) -> NoReturn:
    raise InternalError(f"{buffer_name}{list(indices)} is outside of the buffer's shape {list(shape)}", where=func_name)


def _raise_out_of_domain(func_name: str, block_name: str, iterator_name: str, extent: int, value: int) -> NoReturn:
    raise InternalError(f"block {block_name}: {iterator_name} = {value} is not in 0..{extent - 1}", where=func_name)


def _raise_bad_shift(func_name: str, op: str, dtype: str, distance: int) -> NoReturn:
    """Raise InternalError for a shift by a negative count, or by the bit width or more."""
    raise InternalError(
        f"{op} of {dtype} by {distance}: the distance must be from 0 to the number of bits - 1", where=func_name
    )


def _float_to_int(func_name: str, dtype: str, low: int, high: int, value: Any) -> int:
    """Return a float truncated towards zero. InternalError if the float is not finite, or the result not in low..high."""
    if not np.isfinite(value) or not low <= int(value) <= high:
        raise InternalError(f"{value} does not fit {dtype}", where=func_name)
    return int(value)


def _int_to_float32(value: int) -> np.float32:
    """Return an integer of 64 bits as float32, with a single rounding.

    Beyond 2**53, a conversion through a Python float (double) would round twice."""
    return np.float32(np.uint64(value) if value >> 63 > 0 else np.int64(value))


def _reinterpret(source_dtype: str, dtype: str, value: Any) -> Any:
    """Return the bits of a value of dtype ``source_dtype`` as a value of ``dtype``."""
    bits = np.array([value], to_numpy(source_dtype)).view(to_numpy(dtype))[0]
    return bits if dtypes.is_float(dtype) else int(bits)


def _allocate_poison(element_count: int, dtype: str) -> Array:
    kind = to_numpy(dtype)
    if kind.kind == "f":
        return np.full(element_count, np.nan, kind)
    if kind.kind == "b":
        return np.ones(element_count, kind)
    return np.full(element_count * kind.itemsize, 0x55, np.uint8).view(kind)


_ENVIRONMENT: Mapping[str, Any] = MappingProxyType(
    {
        "overflow": _raise_overflow,
        "out_of_bounds": _raise_out_of_bounds,
        "out_of_domain": _raise_out_of_domain,
        "bad_shift": _raise_bad_shift,
        "float_to_int": _float_to_int,
        "int_to_float32": _int_to_float32,
        "reinterpret": _reinterpret,
        "allocate": _allocate_poison,
        **{name: each.scalar_function for name, each in operators.BINARY.items() if not each.text_notation},
        "f16": np.float16,
        "bf16": lambda x: dtypes.to_numpy("bfloat16").type(x),
        "f32": np.float32,
        "f64": np.float64,
    }
)
