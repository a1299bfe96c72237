# SPDX-License-Identifier: Apache-2.0
"""Printer of TIR text, and the names in which TVMScript differs from it."""

from __future__ import annotations

import json
import keyword
import math
import re
import textwrap
from collections.abc import Mapping
from types import MappingProxyType

from microc.base import dtypes
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.operators import BINARY, UNARY, Notation
from microc.tir.rewrite import while_branch
from microc.tir.statements import IRModule

# ---- Names of functions of TVMScript that differ from ours, and those that TIR text does not have.


TVM_OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "Add": "add",
        "Sub": "sub",
        "Mul": "mul",
        "Div": "div",
        "FloorDiv": "floordiv",
        "FloorMod": "floormod",
        "Min": "min",
        "Max": "max",
        "EQ": "eq",
        "NE": "ne",
        "LT": "lt",
        "LE": "le",
        "GT": "gt",
        "GE": "ge",
        "And": "and",
        "Or": "or",
        "indexdiv": "floordiv",
        "indexmod": "floormod",
        "bitwise_and": "bitand",
        "bitwise_or": "bitor",
        "bitwise_xor": "bitxor",
        "shift_left": "shl",
        "shift_right": "shr",
    }
)
"""Binary operators of TVMScript that are called by name, and our names of them."""
TVM_UNARY: Mapping[str, str] = MappingProxyType({"Not": "not", "bitwise_not": "bitnot"})
TVM_FUNCTIONS: Mapping[str, str] = MappingProxyType({"power": "pow", "nearbyint": "rint"})

_EXTERN_HINT = "write what it computes as TIR, or declare it with its meaning as microc.plugin.extern"
_BUFFER_HINT = "write name = T.alloc_buffer(shape, dtype)"
TVM_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("call_extern", "call_packed", "call_pure_extern", "call_intrin"), _EXTERN_HINT),
        **dict.fromkeys(("call_llvm_intrin", "call_llvm_pure_intrin", "call_cpacked", "tvm_call_packed"), _EXTERN_HINT),
        **dict.fromkeys(("allocate", "Buffer", "buffer_decl"), _BUFFER_HINT),
        "allocate_const": "declare the constant as a parameter, name: T.Buffer(shape, dtype)",
        **dict.fromkeys(("Ramp", "ramp", "Broadcast", "broadcast"), "write a loop, for k in T.vectorized(4)"),
        "tvm_storage_sync": "leave it out: barriers are placed where nests of work items need them",
        "handle": "declare the parameter as name: T.Buffer(shape, dtype)",
        "thread_binding": "write for name in T.thread_binding(extent, thread=...)",
        "env_thread": "write for name in T.thread_binding(extent, thread=...)",
        "launch_thread": "write for name in T.thread_binding(extent, thread=...)",
        "attr": "leave it out, or annotate the loop: T.serial(8, annotations={...})",
        **dict.fromkeys(
            ("sum", "comm_reducer", "tvm_thread_allreduce"), "write a block with T.axis.reduce and T.init()"
        ),
    }
)
"""Functions of TVMScript that TIR text does not have, with hints."""

PYTHON_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"write T.{name}" for name in ("min", "max", "abs", "round", "pow")},
        **{name: f"write T.cast(x, '{name}32')" for name in ("int", "float")},
        "sum": "write a block with T.axis.reduce and T.init()",
        "len": "write A.shape[0]",
        "range": "write for i in range(n), or T.serial(n)",
        "print": "leave it out; tir.run executes a function in Python",
    }
)
"""Functions of Python that TIR text does not have, with hints."""

TVM_SPECIAL = frozenset(
    (
        *(*TVM_OPERATORS, *TVM_UNARY, *TVM_FUNCTIONS, *TVM_REFUSED),
        *("neg", "Cast", "cast", "Select", "if_then_else", "likely", "ceildiv", "min_value", "max_value", "infinity"),
        *("boolean", "address_of", "reinterpret", "call"),
        *("abs", "rsqrt", "sigmoid", "isnan", "isinf", "isfinite", "popcount", "clz"),
    )
)
"""Names that the parser does not read as the call of a function of the same name."""


# ---- Tables that the printer and the parser share: operators, precedences, keywords.

INFIX: Mapping[str, Notation] = MappingProxyType(
    {name: each.text_notation for name, each in BINARY.items() if each.text_notation}
)
NAMED_BINARY = frozenset(name for name, each in BINARY.items() if not each.text_notation)
PREFIX: Mapping[str, Notation] = MappingProxyType(
    {name: each.text_notation for name, each in UNARY.items() if each.text_notation}
)
ATOM = 12
COMPARISON = 4

LOOPS: Mapping[str, str] = MappingProxyType(
    {
        "serial": "serial",
        "unrolled": "unroll",
        "vectorized": "vectorized",
        "parallel": "parallel",
        "scalable": "scalable",
    }
)
THREAD_BINDING = "thread_binding"
"""Name of the loop function in TVMScript whose kind, a thread axis, is an argument: ``T.thread_binding(4, thread=...)``."""
AXES: Mapping[str, str] = MappingProxyType({"space": "spatial", "reduce": "reduce"})
RESERVED = TVM_SPECIAL | BINARY.keys()


def while_name(number: int) -> str:
    """Return the name of the variable of the ``while`` loop that is the ``number``-th one in the text of its function.

    The text has no place for it. Of a loop of another name, :func:`to_text` writes the ``for`` loop and the ``if``."""
    return f"while_{number}"


_KEYWORD = re.compile("(" + "|".join([*keyword.kwlist, "T"]) + r")(_*)")


def escape_keyword(name: str) -> str:
    """Return a name as it is written in TIR text.

    An underscore is appended to a name that is a keyword of Python, or a keyword followed by underscores."""
    return name + "_" if _KEYWORD.fullmatch(name) else name


def unescape_keyword(name: str) -> str:
    """Return the name that is written as ``name`` in TIR text: the inverse of :func:`escape_keyword`."""
    match = _KEYWORD.fullmatch(name)
    return name[:-1] if match and match[2] else name


# ---- Printing. An int32 or bool literal is written without its dtype, every other literal with its dtype: ``T.int8(3)``.
#
# The scope of a ``Let`` or ``Alloc`` is the rest of its indented block of text. If statements follow that are not in its
# body, ``with T.scope():`` ends the scope earlier.

Annotations = tuple[tuple[str, int | str], ...]


def to_text(func: ir.PrimFunc | IRModule) -> str:
    """Return a function as text, which :func:`microc.tir.text.from_text` parses to an equal function; a module as a class,
    which :func:`microc.tir.text.module_from_text` parses."""
    if isinstance(func, IRModule):
        return "@I.ir_module\nclass Module:\n" + textwrap.indent("\n".join(map(to_text, func)) or "pass\n", "    ")
    params = [
        f"    {_format_identifier(p.name)}: T.Buffer({_format_buffer_arguments(p, 'global')}),\n" for p in func.params
    ]
    params += [f"    {_format_identifier(v.name)}: T.{v.dtype},\n" for v in func.scalars]
    printer = _StatementPrinter()
    printer.lines = [
        "@T.prim_func",
        f"def {_format_identifier(func.name)}(\n{''.join(params)}):"
        if params
        else f"def {_format_identifier(func.name)}():",
    ]
    if func.annotations:
        printer.print_line(f"T.func_attr({_format_annotations(func.annotations)})")
    printer.print_suite(func.body)
    return "\n".join(printer.lines) + "\n"


def format_expr(expr: ir.Expr) -> str:
    """Return the text of an expression in TIR text."""
    return _format_with_precedence(expr)[0]


def _format_identifier(name: str) -> str:
    """Return a name as it is written in TIR text. InternalError if it is no identifier."""
    if not name.isidentifier():
        raise InternalError(f"TIR text cannot contain the name {name!r}: it is no identifier")
    return escape_keyword(name)


def _format_annotations(pairs: Annotations) -> str:
    return "{" + ", ".join(f"{_quote(key)}: {_quote(v) if isinstance(v, str) else int(v)}" for key, v in pairs) + "}"


def _quote(text: str) -> str:
    """Return the literal of a string in double quotes. JSON's escape sequences are also valid in Python."""
    return json.dumps(text, ensure_ascii=False)


def _format_tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _format_buffer_arguments(buffer: ir.Buffer, default_scope: str | None) -> str:
    parts = [_format_tuple([_format_extent(n) for n in buffer.shape]), f'"{buffer.dtype}"']
    if buffer.scope != default_scope:
        parts.append(f'scope="{buffer.scope}"')
    if buffer.align:
        parts.append(f"align={buffer.align}")
    if buffer.slots:
        parts.append(f"slots={buffer.slots}")
    return ", ".join(parts)


def _format_extent(extent: object) -> str:
    """Return the text of an extent: a number, or an expression over symbolic sizes."""
    return format_expr(extent) if isinstance(extent, ir.Expr) else str(extent)


class _StatementPrinter:
    """Printer of statements as indented lines of text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.while_count = 0

    def print_line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def print_nested(self, head: str, stmt: ir.Stmt) -> None:
        """Print the line ``head`` (such as ``if condition:``), then a statement indented below it."""
        self.print_line(head)
        self.indent += 1
        self.print_suite(stmt)
        self.indent -= 1

    def print_suite(self, stmt: ir.Stmt) -> None:
        """Print a statement as the contents of an indented block of text."""
        if isinstance(stmt, ir.Seq) and len(stmt.body) != 1:
            for k, child in enumerate(stmt.body):
                if isinstance(child, (ir.Let, ir.Alloc)) and k + 1 < len(stmt.body):
                    self.print_nested("with T.scope():", child)
                else:
                    self.print_statement(child)
            if not stmt.body:
                self.print_line("pass")
        else:
            self.print_statement(stmt)

    def print_statement(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.Store(buffer, indices, value):
                self.print_line(f"{_format_element(buffer, indices)} = {format_expr(value)}")
            case ir.For():
                self._print_loop(stmt)
            case ir.If(condition, then, otherwise):
                self.print_nested(f"if {format_expr(condition)}:", then)
                if otherwise is not None:
                    self.print_nested("else:", otherwise)
            case ir.Seq(body):  # not canonical: a single statement, or nested directly in another
                self.print_line("with T.seq():")
                self.indent += 1
                for child in body:
                    if isinstance(child, (ir.Let, ir.Alloc)) and child is not body[-1]:
                        self.print_nested("with T.scope():", child)
                    else:
                        self.print_statement(child)
                if not body:
                    self.print_line("pass")
                self.indent -= 1
            case ir.Let(var, value, body):
                self.print_line(f"{_format_identifier(var.name)}: T.{var.dtype} = {format_expr(value)}")
                self.print_suite(body)
            case ir.Alloc(buffer, body):
                self.print_line(
                    f"{_format_identifier(buffer.name)} = T.alloc_buffer({_format_buffer_arguments(buffer, None)})"
                )
                self.print_suite(body)
            case ir.Evaluate(value):
                self.print_line(f"T.evaluate({format_expr(value)})")
            case ir.Block():
                self._print_block(stmt)
            case _:
                raise InternalError(f"TIR text: unknown type of statement; got {type(stmt).__name__}")

    def _print_loop(self, loop: ir.For) -> None:
        branch = while_branch(loop)
        if branch is not None and loop.var == ir.Var(while_name(self.while_count)):
            self.while_count += 1
            self.print_nested(f"while {format_expr(branch.condition)}:", branch.then)
            return
        chain, body = [loop], loop.body
        while _can_join_grid(chain[-1]) and isinstance(body, ir.For) and _can_join_grid(body):
            chain.append(body)
            body = body.body
        if len(chain) > 1:
            names = ", ".join(_format_identifier(f.var.name) for f in chain)
            extents = ", ".join(format_expr(f.extent) for f in chain)
            self.print_nested(f"for {names} in T.grid({extents}):", body)
            return
        arguments, word = [format_expr(loop.extent)], LOOPS.get(loop.kind, THREAD_BINDING)
        if word == THREAD_BINDING:
            arguments.append(f"thread={_quote(loop.kind)}")
        if loop.var.dtype != "int32":
            arguments.append(f'dtype="{loop.var.dtype}"')
        if loop.annotations:
            arguments.append(f"annotations={_format_annotations(loop.annotations)}")
        self.print_nested(f"for {_format_identifier(loop.var.name)} in T.{word}({', '.join(arguments)}):", loop.body)

    def _print_block(self, block: ir.Block) -> None:
        self.print_line(f"with T.block({_quote(block.name)}):")
        self.indent += 1
        for i in block.iters:
            dtype = "" if i.var.dtype == "int32" else f', dtype="{i.var.dtype}"'
            name, extent = _format_identifier(i.var.name), _format_extent(i.extent)
            self.print_line(f"{name} = T.axis.{AXES[i.kind]}({extent}, {format_expr(i.binding)}{dtype})")
        if block.predicate is not None:
            self.print_line(f"T.where({format_expr(block.predicate)})")
        if block.annotations:
            self.print_line(f"T.block_attr({_format_annotations(block.annotations)})")
        if block.init is not None:
            self.print_nested("with T.init():", block.init)
        self.print_suite(block.body)
        self.indent -= 1


def _can_join_grid(loop: ir.For) -> bool:
    """Test whether a loop can be part of a ``T.grid`` loop: serial, without annotations, over int32, of constant extent."""
    plain = loop.kind == "serial" and not loop.annotations and loop.var.dtype == "int32"
    return plain and isinstance(loop.extent, ir.Const) and loop.extent.dtype == "int32"


def _format_element(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> str:
    return f"{_format_identifier(buffer.name)}[{', '.join(format_expr(i) for i in indices) or '()'}]"


def _format_with_precedence(expr: ir.Expr) -> tuple[str, int]:
    """Return the text of an expression, and the precedence of its outermost operator."""
    match expr:
        case ir.Const():
            return _format_literal(expr)
        case ir.Var(name):
            return _format_identifier(name), ATOM
        case ir.Bin(op, a, b) if op in NAMED_BINARY:
            return f"T.{op}({format_expr(a)}, {format_expr(b)})", ATOM
        case ir.Bin(op, a, b):
            if op not in INFIX:
                raise InternalError(f"unknown operator {op!r}")
            sign, level = INFIX[op]
            left = _format_operand(a, level + (level == COMPARISON))
            return f"{left} {sign} {_format_operand(b, level + 1)}", level
        case ir.Un("neg", ir.Const() as a):
            return f"T.neg({format_expr(a)})", ATOM
        case ir.Un(op, a):
            if op not in PREFIX:
                raise InternalError(f"unknown operator {op!r}")
            sign, level = PREFIX[op]
            return f"{sign}{_format_operand(a, level)}", level
        case ir.Cast(dtype, a):
            return f'T.Cast("{dtype}", {format_expr(a)})', ATOM
        case ir.Select(c, a, b):
            return f"T.Select({format_expr(c)}, {format_expr(a)}, {format_expr(b)})", ATOM
        case ir.Load(buffer, indices):
            return _format_element(buffer, indices), ATOM
        case ir.AddressOf(buffer, indices, extent, writes, step):
            options = (f", extent={extent}" if extent != 1 else "") + (", writes=True" if writes else "")
            options += f", step={step}" if step != 1 else ""
            return f"T.address_of({_format_element(buffer, indices)}{options})", ATOM
        case ir.Call():
            return _format_call(expr), ATOM
        case _:
            raise InternalError(f"TIR text: unknown type of expression; got {type(expr).__name__}")


def _format_operand(expr: ir.Expr, min_precedence: int) -> str:
    """Return the text of an operand, in brackets if its operator's precedence is below ``min_precedence``."""
    text, binds = _format_with_precedence(expr)
    return text if binds >= min_precedence else f"({text})"


def _format_call(expr: ir.Call) -> str:
    arguments = ", ".join(format_expr(a) for a in expr.args)
    plain = expr.name.isidentifier() and expr.name not in RESERVED and not dtypes.is_valid(expr.name)
    if plain and escape_keyword(expr.name) == expr.name and expr.args and expr.args[0].dtype == expr.dtype:
        return f"T.{expr.name}({arguments})"
    return f'T.call({", ".join(part for part in (_quote(expr.name), arguments) if part)}, dtype="{expr.dtype}")'


def _format_literal(expr: ir.Const) -> tuple[str, int]:
    """Return the text of a literal, and its precedence."""
    value = expr.value
    if expr.dtype == "bool":
        return str(bool(value)), ATOM
    if expr.dtype == "int32":
        return str(value), ATOM if value >= 0 else PREFIX["neg"][1]
    if dtypes.is_float(expr.dtype):
        text = repr(float(value)) if math.isfinite(value) else f'"{float(value)}"'
        return f"T.{expr.dtype}({text})", ATOM
    return f"T.{expr.dtype}({value})", ATOM
