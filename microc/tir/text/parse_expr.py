"""Expressions of TIR text, and the pieces that its statements share with them."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NoReturn

from microc import dtypes
from microc.errors import InternalError, ModelError
from microc.tir import ir
from microc.tir.operators import TOKENS
from microc.tir.text.names import INFIX, NAMED_BINARY, read

Names = Mapping[str, ir.Var | ir.Buffer]


def fail(node: ast.AST, what: str, hint: str = "") -> NoReturn:
    raise ModelError(what, where=f"line {getattr(node, 'lineno', 1)}", hint=hint)


class CallParts:
    """A call ``T.a.b(positional, keyword=...)`` taken apart; ``name`` is ``a.b``."""

    def __init__(self, node: ast.AST) -> None:
        if not isinstance(node, ast.Call):
            fail(node, "a call of T is expected")
        self.node = node
        self.name = _dotted(node.func)
        self.args = node.args
        self.options = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if len(self.options) != len(node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
            fail(node, f"T.{self.name}: unpacking is not possible here")

    def take(self, least: int, most: int, *options: str) -> None:
        """Check the number of arguments and the names of the options."""
        if not least <= len(self.args) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            fail(self.node, f"T.{self.name} takes {wanted} arguments, {len(self.args)} given")
        for name in self.options:
            if name not in options:
                fail(self.node, f"T.{self.name} has no option {name}", "known: " + ", ".join(options))


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id != "T" or not parts:
        fail(node, "only functions of T can be called")
    return ".".join(reversed(parts))


def integer(node: ast.expr) -> int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -integer(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    fail(node, "an integer literal is expected")


def string(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    fail(node, "a string literal is expected")


def boolean(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    fail(node, "True or False is expected")


def dtype_name(node: ast.expr) -> str:
    return known_dtype(string(node), node)


def known_dtype(name: str, node: ast.AST) -> str:
    if not dtypes.is_valid(name):
        fail(node, f"unknown dtype {name!r}")
    return name


_LARGEST: Mapping[str, float] = MappingProxyType(
    {"float16": 65504.0, "float32": 3.4028234663852886e38, "float64": 1.7976931348623157e308}
)


def _float(node: ast.expr, dtype: str) -> float:
    """A float literal, rounded to the dtype; ``"inf"``, ``"-inf"``, ``"nan"`` stand in quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value not in ("inf", "-inf", "nan"):
            fail(node, f"{node.value!r} is no float")
        return math.nan if node.value == "nan" else float(node.value)
    sign, inner = 1.0, node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, inner = -1.0, node.operand
    if not isinstance(inner, ast.Constant) or not isinstance(inner.value, (int, float)) or dtype not in _LARGEST:
        fail(node, "a float literal is expected")
    try:
        value = sign * float(inner.value)
    except OverflowError:
        fail(node, f"the literal does not fit {dtype}")
    rounded = float(ir.const(value, dtype).value) if abs(value) <= _LARGEST[dtype] else math.inf
    if not math.isfinite(rounded):
        fail(node, f"the literal does not fit {dtype}")
    return rounded


class ExprReader:
    """Reads expressions where names mean variables and buffers."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def typed(self, node: ast.expr, dtype: str) -> ir.Expr:
        result = self.expr(node)
        if result.dtype != dtype:
            fail(node, f"{dtype} is expected, {ast.unparse(node)} is {result.dtype}")
        return result

    def expr(self, node: ast.expr) -> ir.Expr:
        match node:
            case ast.Constant(bool(value)):
                return ir.Const(int(value), "bool")
            case ast.Constant(int()) | ast.UnaryOp(ast.USub(), ast.Constant(int())):
                return self.literal(node, "int32")
            case ast.Name(name):
                var = self.names.get(read(name))
                if not isinstance(var, ir.Var):
                    fail(node, f"{name} is not a variable here")
                return var
            case ast.UnaryOp(op, a) if type(op) in TOKENS:
                return ir.Un(TOKENS[type(op)], self.expr(a))
            case ast.BinOp(a, op, b) if type(op) in TOKENS:
                return self.binary(node, TOKENS[type(op)], a, b)
            case ast.Compare(a, [op], [b]) if type(op) in TOKENS:
                return self.binary(node, TOKENS[type(op)], a, b)
            case ast.BoolOp(op, values):
                result = self.typed(values[0], "bool")
                for part in values[1:]:
                    result = ir.Bin(TOKENS[type(op)], result, self.typed(part, "bool"))
                return result
            case ast.Subscript():
                return ir.Load(*self.element(node))
            case ast.Call():
                return self.call(CallParts(node))
            case _:
                fail(node, f"{ast.unparse(node)} is no expression of TIR")

    def binary(self, node: ast.expr, op: str, a: ast.expr, b: ast.expr) -> ir.Expr:
        left, right = self.expr(a), self.expr(b)
        if left.dtype != right.dtype:
            sign = INFIX[op][0] if op in INFIX else op
            fail(node, f"{sign} of {left.dtype} and {right.dtype}", "cast one of them with T.Cast")
        return ir.Bin(op, left, right)

    def element(self, node: ast.expr) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            fail(node, "buffer[indices] is expected")
        buffer = self.names.get(read(node.value.id))
        if not isinstance(buffer, ir.Buffer):
            fail(node, f"{node.value.id} is not a buffer here")
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(indices) != len(buffer.shape):
            fail(node, f"{buffer.name} has {len(buffer.shape)} axes, {len(indices)} indices given")
        return buffer, tuple(self.expr(i) for i in indices)

    def literal(self, node: ast.expr, dtype: str) -> ir.Const:
        if dtypes.is_float(dtype):
            return ir.Const(_float(node, dtype), dtype)
        try:
            return ir.const(integer(node), dtype)
        except InternalError as fault:
            fail(node, fault.what)

    def call(self, parts: CallParts) -> ir.Expr:
        name, args = parts.name, parts.args
        if dtypes.is_valid(name):
            parts.take(1, 1)
            return self.literal(args[0], name)
        if name in NAMED_BINARY:
            parts.take(2, 2)
            return self.binary(parts.node, name, args[0], args[1])
        match name:
            case "neg":
                parts.take(1, 1)
                return ir.Un("neg", self.expr(args[0]))
            case "Cast":
                parts.take(2, 2)
                return ir.Cast(dtype_name(args[0]), self.expr(args[1]))
            case "Select":
                parts.take(3, 3)
                first = self.expr(args[1])
                return ir.Select(self.typed(args[0], "bool"), first, self.typed(args[2], first.dtype))
            case "address_of":
                parts.take(1, 1, "extent", "writes", "step")
                extent = integer(parts.options["extent"]) if "extent" in parts.options else 1
                writes = boolean(parts.options["writes"]) if "writes" in parts.options else False
                step = integer(parts.options["step"]) if "step" in parts.options else 1
                return ir.AddressOf(*self.element(args[0]), extent, writes, step)
            case "call":
                parts.take(1, 1000, "dtype")
                if "dtype" not in parts.options:
                    fail(parts.node, "T.call needs dtype=")
                return ir.Call(
                    string(args[0]), tuple(self.expr(a) for a in args[1:]), dtype_name(parts.options["dtype"])
                )
            case _:
                parts.take(1, 1000)
                values = tuple(self.expr(a) for a in args)
                return ir.Call(name, values, values[0].dtype)
