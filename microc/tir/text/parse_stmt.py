"""Text to TIR: statements, and what stands in them but expressions: buffers, annotations, loops, blocks."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from microc.tir import ir
from microc.tir.rewrite import accesses_of, free_vars
from microc.tir.text.names import AXES, LOOPS, THREAD_BINDING, read
from microc.tir.text.parse_expr import (
    CallParts,
    ExprReader,
    Names,
    dtype_name,
    fail,
    integer,
    known_dtype,
    string,
)

_LOOP_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in LOOPS.items()})
_AXIS_KINDS: Mapping[str, str] = MappingProxyType({word: kind for kind, word in AXES.items()})

_LETTERS: Mapping[str, str] = MappingProxyType({"S": _AXIS_KINDS["spatial"], "R": _AXIS_KINDS["reduce"]})

Annotations = tuple[tuple[str, int | str], ...]


def _annotations(node: ast.expr) -> Annotations:
    if not isinstance(node, ast.Dict):
        fail(node, "annotations are written {'key': value}")
    pairs: list[tuple[str, int | str]] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            fail(node, "annotations are written {'key': value}")
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
        pairs.append((string(key), string(value) if is_text else integer(value)))
    return tuple(pairs)


def _thread(parts: CallParts) -> str:
    """What a ``T.thread_binding`` binds its loop to."""
    kind = string(parts.options["thread"]) if "thread" in parts.options else ""
    if kind not in (*ir.GROUPS, *ir.ITEMS):
        fail(parts.node, f"a loop is bound to thread={kind!r}", "known: " + ", ".join((*ir.GROUPS, *ir.ITEMS)))
    return kind


def _target(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        fail(node, "a name is expected")
    return read(node.id)


def is_call(node: ast.stmt, name: str) -> bool:
    """Whether a statement is the expression ``T.name(...)``."""
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == f"T.{name}"
    )


def sole_annotations(node: ast.stmt) -> Annotations:
    assert isinstance(node, ast.Expr)
    parts = CallParts(node.value)
    parts.take(1, 1)
    return _annotations(parts.args[0])


class Scope(ExprReader):
    """What names mean at one place; statements that declare names continue in a new scope.

    ``extents``: how many turns the loops around it have, by their variables, where a block can have as many; ``sizes``: the
    function's scalars.
    """

    def __init__(
        self, names: Names, extents: Mapping[str, int] = MappingProxyType({}), sizes: frozenset[ir.Var] = frozenset()
    ) -> None:
        super().__init__(names)
        self.extents, self.sizes = extents, sizes

    def having(self, *added: ir.Var | ir.Buffer, extents: Mapping[str, int] = MappingProxyType({})) -> Scope:
        return Scope({**self.names, **{x.name: x for x in added}}, {**self.extents, **extents}, self.sizes)

    def extent(self, node: ast.expr) -> Any:
        """A number, or an expression over the function's sizes."""
        value = self.typed(node, "int32")
        if not self.fixed(value):
            fail(
                node,
                f"{ast.unparse(node)} is no extent",
                "an integer literal or an expression over scalars is expected",
            )
        return _number(value)

    def fixed(self, extent: ir.Expr) -> bool:
        """Whether the sizes alone say how much it is."""
        return extent.dtype == "int32" and free_vars(extent) <= self.sizes and not accesses_of(extent)

    def buffer(self, name: str, parts: CallParts, scope: str | None) -> ir.Buffer:
        parts.take(2, 2, "scope", "align", "slots")
        shape = parts.args[0]
        if not isinstance(shape, ast.Tuple):
            fail(shape, "a shape is a tuple of extents")
        found = string(parts.options["scope"]) if "scope" in parts.options else scope
        if found not in ir.SCOPES:
            fail(parts.node, f"buffer {name}: scope {found!r}", "known: " + ", ".join(ir.SCOPES))
        align = integer(parts.options["align"]) if "align" in parts.options else 0
        slots = integer(parts.options["slots"]) if "slots" in parts.options else 0
        return ir.Buffer(name, tuple(map(self.extent, shape.elts)), dtype_name(parts.args[1]), found, align, slots)

    def suite(self, nodes: list[ast.stmt]) -> ir.Stmt:
        body = self.statements(nodes)
        return body[0] if len(body) == 1 else ir.Seq(body)

    def statements(self, nodes: list[ast.stmt]) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        for k, node in enumerate(nodes):
            rest = nodes[k + 1 :]
            match node:
                case ast.Pass():
                    continue
                case ast.AnnAssign(target, annotation, value) if value is not None:
                    name = annotation.attr if isinstance(annotation, ast.Attribute) else ast.unparse(annotation)
                    var = ir.Var(_target(target), known_dtype(name, node))
                    bound = self.typed(value, var.dtype)
                    return (*found, ir.Let(var, bound, self.having(var).suite(rest)))
                case ast.Assign([ast.Name() as target], value):
                    parts = CallParts(value)
                    if parts.name != "alloc_buffer":
                        fail(node, f"{target.id} = T.{parts.name}(...) declares nothing here")
                    buffer = self.buffer(_target(target), parts, "global")
                    return (*found, ir.Alloc(buffer, self.having(buffer).suite(rest)))
                case _:
                    found.append(self.statement(node))
        return tuple(found)

    def statement(self, node: ast.stmt) -> ir.Stmt:
        match node:
            case ast.Assign([ast.Subscript() as target], value):
                buffer, indices = self.element(target)
                return ir.Store(buffer, indices, self.typed(value, buffer.dtype))
            case ast.For(target, source, body, []):
                return self.loop(target, CallParts(source), body)
            case ast.If(test, body, orelse):
                otherwise = self.suite(orelse) if orelse else None
                return ir.If(self.typed(test, "bool"), self.suite(body), otherwise)
            case ast.With([ast.withitem(context, None)], body):
                return self.block(CallParts(context), body)
            case ast.Expr(value):
                parts = CallParts(value)
                if parts.name != "evaluate":
                    fail(node, f"T.{parts.name} is no statement", "write T.evaluate(...)")
                parts.take(1, 1)
                return ir.Evaluate(self.expr(parts.args[0]))
            case _:
                fail(node, f"{type(node).__name__} is no statement of TIR")

    def loop(self, target: ast.expr, parts: CallParts, body: list[ast.stmt]) -> ir.Stmt:
        if parts.name == "grid":
            parts.take(1, 1000)
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            if len(targets) != len(parts.args):
                fail(target, f"{len(targets)} loop variables for {len(parts.args)} extents")
            variables, counts = (
                [ir.Var(_target(t)) for t in targets],
                [self.typed(count, "int32") for count in parts.args],
            )
            result = self.having(*variables, extents=self.turns(variables, counts)).suite(body)
            for var, count in reversed(list(zip(variables, counts, strict=True))):
                result = ir.For(var, count, result)
            return result
        if parts.name not in _LOOP_KINDS and parts.name != THREAD_BINDING:
            fail(
                parts.node, f"unknown loop T.{parts.name}", f"known: grid, {THREAD_BINDING}, " + ", ".join(_LOOP_KINDS)
            )
        parts.take(1, 1, "dtype", "annotations", *(["thread"] if parts.name == THREAD_BINDING else []))
        dtype = dtype_name(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        notes = _annotations(parts.options["annotations"]) if "annotations" in parts.options else ()
        var = ir.Var(_target(target), dtype)
        extent = self.typed(parts.args[0], dtype)
        inside = self.having(var, extents=self.turns([var], [extent]))
        kind = _LOOP_KINDS[parts.name] if parts.name in _LOOP_KINDS else _thread(parts)
        return ir.For(var, extent, inside.suite(body), kind, notes)

    def block(self, parts: CallParts, body: list[ast.stmt]) -> ir.Stmt:
        match parts.name:
            case "seq":
                parts.take(0, 0)
                return ir.Seq(self.statements(body))
            case "scope":
                parts.take(0, 0)
                return self.suite(body)
            case "block":
                parts.take(1, 1)
                return self.unit(string(parts.args[0]), body)
            case _:
                fail(parts.node, f"unknown with T.{parts.name}", "known: block, init, scope, seq")

    def unit(self, name: str, body: list[ast.stmt]) -> ir.Stmt:
        iters: list[ir.IterVar] = []
        init: ir.Stmt | None = None
        predicate: ir.Expr | None = None
        annotations: Annotations = ()
        rest = list(body)
        while rest and isinstance(rest[0], ast.Assign) and isinstance(rest[0].targets[0], (ast.Name, ast.Tuple)):
            parts = CallParts(rest[0].value)
            if not parts.name.startswith("axis."):
                break
            if parts.name == "axis.remap":
                iters += self.remap(rest[0].targets[0], parts)
            else:
                iters.append(self.axis(_target(rest[0].targets[0]), parts))
            rest = rest[1:]
        inner = self.having(*(i.var for i in iters))
        if rest and is_call(rest[0], "where"):
            assert isinstance(rest[0], ast.Expr)
            parts = CallParts(rest[0].value)
            parts.take(1, 1)
            predicate = self.typed(parts.args[0], "bool")
            rest = rest[1:]
        if rest and is_call(rest[0], "block_attr"):
            annotations = sole_annotations(rest[0])
            rest = rest[1:]
        if rest and isinstance(rest[0], ast.With) and ast.unparse(rest[0].items[0].context_expr) == "T.init()":
            init = inner.suite(rest[0].body)
            rest = rest[1:]
        return ir.Block(name, tuple(iters), inner.suite(rest), init, predicate, annotations)

    def axis(self, name: str, parts: CallParts) -> ir.IterVar:
        kind = parts.name.removeprefix("axis.")
        if kind not in _AXIS_KINDS:
            fail(parts.node, f"unknown axis T.{parts.name}", "known: axis.spatial, axis.reduce")
        parts.take(2, 2, "dtype")
        dtype = dtype_name(parts.options["dtype"]) if "dtype" in parts.options else "int32"
        binding = self.typed(parts.args[1], dtype)
        return ir.IterVar(ir.Var(name, dtype), self.extent(parts.args[0]), _AXIS_KINDS[kind], binding)

    def remap(self, target: ast.expr, parts: CallParts) -> list[ir.IterVar]:
        """``v_i, v_k = T.axis.remap("SR", [i, k])``: iterators that are the loops around, extents and all."""
        parts.take(2, 2)
        kinds, loops = string(parts.args[0]), parts.args[1]
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if not isinstance(loops, (ast.List, ast.Tuple)) or not len(kinds) == len(loops.elts) == len(targets):
            fail(parts.node, "T.axis.remap takes a letter and a loop for each iterator", 'T.axis.remap("SR", [i, k])')
        found = []
        for name, letter, loop in zip(targets, kinds, loops.elts, strict=True):
            if letter not in _LETTERS:
                fail(parts.node, f"T.axis.remap: {letter!r} is no kind of axis", "known: S (spatial), R (reduce)")
            label = _target(loop)
            var = self.names.get(label)
            if label not in self.extents or not isinstance(var, ir.Var):
                fail(loop, f"{label} is no loop around with a known number of turns")
            found.append(ir.IterVar(ir.Var(_target(name), var.dtype), self.extents[label], _LETTERS[letter], var))
        return found

    def turns(self, variables: Sequence[ir.Var], counts: Sequence[ir.Expr]) -> dict[str, int]:
        """The extents of loops, where the sizes alone say them."""
        pairs = zip(variables, counts, strict=True)
        return {var.name: _number(count) for var, count in pairs if self.fixed(count)}


def _number(extent: ir.Expr) -> Any:
    """A literal as the number that it is; an expression over sizes stays one (:mod:`microc.tir.symbolic`)."""
    number = ir.int_value(extent)
    return extent if number is None else number
