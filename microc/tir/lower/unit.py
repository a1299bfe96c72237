"""Loops annotated ``unit``: an instruction of a tensor unit that does them whole, whatever extents a tail has left them.

The note is the instruction's word (:mod:`microc.isa.vocabulary.unit`). Copies and fills are loops over rows and columns around a
store; a product ``sums[r, c] += int32(input[r, k]) * int32(weight[c, k])`` has three. A loop of one iteration may be missing.
What the unit's memories hold gets its place there, and tokens order the queues (:mod:`microc.tir.lower.unit_tokens`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import NoReturn

from microc import dtypes
from microc.errors import InternalError, ScheduleError
from microc.tir import ir
from microc.tir.lower.region import address, flat_step
from microc.tir.lower.unit_tokens import ordered
from microc.tir.names import UNIT
from microc.tir.rewrite import map_expr, map_stmt, replace_buffers, stmt_exprs, walk_expr, walk_stmt

Loops = list[tuple[ir.Var, int]]


def lower_unit(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with the instructions of a tensor unit as calls, between tokens; as it was where nothing lies in its memories.

    ScheduleError where the processor reaches into them itself.
    """
    allocs = (s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Alloc))
    held = {b: _aligned(b) for b in allocs if b.scope in ir.UNIT_SCOPES}
    if not held:
        return stmt
    called = _replaced(replace_buffers(stmt, held))
    for s in walk_stmt(called):
        loads = (x.buffer for e in stmt_exprs(s) for x in walk_expr(e) if isinstance(x, ir.Load))
        for buffer in (*loads, *([s.buffer] if isinstance(s, ir.Store) else [])):
            if buffer.scope in ir.UNIT_SCOPES:
                raise ScheduleError(
                    f"{buffer.name!r} lies in {buffer.scope}, which instructions of the tensor unit alone reach",
                    hint="tensorize every block that reads or writes it; cache_read copies it for others",
                )
    return _placed(ordered(called, tuple(held.values())), tuple(held.values()))


def _aligned(buffer: ir.Buffer) -> ir.Buffer:
    """With whole rows between the places where rows begin."""
    step = max(1, buffer.align // dtypes.nbytes(buffer.dtype))
    return replace(buffer, shape=(*buffer.shape[:-1], -(-buffer.shape[-1] // step) * step))


def _word(loop: ir.For) -> str:
    return str(dict(loop.annotations).get(UNIT, ""))


def _replaced(stmt: ir.Stmt) -> ir.Stmt:
    """Every annotated nest as a call, outermost loops first."""
    match stmt:
        case ir.For() if _word(stmt):
            return _call(stmt)
        case ir.For(var, extent, body, kind, annotations):
            return ir.For(var, extent, _replaced(body), kind, annotations)
        case ir.Seq(body):
            return ir.seq(*map(_replaced, body))
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _replaced(body))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _replaced(body))
        case ir.If(condition, then, otherwise):
            return ir.If(condition, _replaced(then), _replaced(otherwise) if otherwise else None)
        case _:
            return stmt


def _call(nest: ir.For) -> ir.Stmt:
    word, loops, inner = _word(nest), list[tuple[ir.Var, int]](), ir.seq(nest)
    while isinstance(inner, ir.For) and _word(inner) == word:
        extent = ir.int_value(inner.extent)
        if extent is None:
            _fail(nest, "a loop has no fixed length")
        loops.append((inner.var, extent))
        inner = inner.body
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var, _ in loops}
    loops = [loop for loop in loops if loop[1] > 1]
    match word, inner:
        case "unit_matmul", ir.Store(sums, place, ir.Bin("add", old, ir.Bin("mul", ir.Cast(_, a), ir.Cast(_, b)))) if (
            old == ir.Load(sums, place) and isinstance(a, ir.Load) and isinstance(b, ir.Load)
        ):
            args = _product(nest, loops, first, ir.Load(sums, place), *_sides(a, b))
        case "unit_set", ir.Store(to, place, ir.Const() as value):
            rows, columns, strides = _rows(nest, loops, (ir.Load(to, place),))
            args = (_at(to, place, first, rows, columns, strides[0], writes=True), value)
            args += _numbers(rows, columns, *strides)
        case _, ir.Store(to, place, ir.Load(source, where) as load):
            rows, columns, strides = _rows(nest, loops, (ir.Load(to, place), load))
            args = (
                _at(to, place, first, rows, columns, strides[0], writes=True),
                _at(source, where, first, rows, columns, strides[1]),
            )
            args += _numbers(rows, columns, *strides)
        case _:
            _fail(nest, "they do something else")
    return ir.Evaluate(ir.Call(word, args, "int32"))


def _fail(nest: ir.For, why: str) -> NoReturn:
    raise InternalError(f"the loops from {nest.var.name} inwards are no {_word(nest)}: {why}")


def _sides(a: ir.Load, b: ir.Load) -> tuple[ir.Load, ir.Load]:
    """Input and weight."""
    return (a, b) if a.buffer.scope == ir.UNIT_SCOPES[0] else (b, a)


def _step(nest: ir.For, load: ir.Load, var: ir.Var) -> int:
    step = flat_step(load.buffer, load.indices, var)
    if step is None:
        _fail(nest, f"{load.buffer.name} is not passed along a line")
    return step


def _rows(nest: ir.For, loops: Loops, places: tuple[ir.Load, ...]) -> tuple[int, int, tuple[int, ...]]:
    """Rows, columns, and by how many elements rows lie apart at every place."""
    steps = [tuple(_step(nest, place, var) for place in places) for var, _ in loops]
    extents = [extent for _, extent in loops]
    near = (1,) * len(places)
    columns = extents.pop() if steps and steps[-1] == near else 1
    strides = steps[: len(extents)]
    if len(extents) > 1:
        _fail(nest, "there are more loops than rows and columns")
    alone = tuple(columns if place.buffer.scope in ir.UNIT_SCOPES else 0 for place in places)
    return (extents[0] if extents else 1), columns, (strides[0] if strides else alone)


def _product(
    nest: ir.For, loops: Loops, first: dict[ir.Var, ir.Expr], sums: ir.Load, data: ir.Load, weight: ir.Load
) -> tuple[ir.Expr, ...]:
    """The arguments of a product."""
    rows = columns = depth = 1
    row = column = (0, 0)
    for var, extent in loops:
        of_sums, of_data, of_weight = (_step(nest, place, var) for place in (sums, data, weight))
        if (of_sums, of_data, of_weight) == (0, 1, 1) and depth == 1:
            depth = extent
        elif of_weight == 0 and rows == 1:
            rows, row = extent, (of_sums, of_data)
        elif (of_sums, of_data) == (1, 0) and columns == 1:
            columns, column = extent, (1, of_weight)
        else:
            _fail(nest, f"{var.name} counts neither rows nor columns nor terms")
    return (
        _at(sums.buffer, sums.indices, first, rows, columns, row[0], writes=True),
        _at(data.buffer, data.indices, first, rows, depth, row[1]),
        _at(weight.buffer, weight.indices, first, columns, depth, column[1]),
        *_numbers(rows, columns, depth, row[0], row[1], column[1]),
    )


def _at(
    buffer: ir.Buffer, where: tuple[ir.Expr, ...], first: dict[ir.Var, ir.Expr], rows: int, length: int, stride: int,
    *, writes: bool = False,
) -> ir.AddressOf:  # fmt: skip
    return address(buffer, where, first, (rows - 1) * stride + length, writes=writes)


def _numbers(*values: int) -> tuple[ir.Expr, ...]:
    return tuple(ir.const(value, "int32") for value in values)


def _placed(stmt: ir.Stmt, held: tuple[ir.Buffer, ...]) -> ir.Stmt:
    """Every buffer in the unit's memories as a part of the one memory that it lies in, behind those before it."""
    places: dict[ir.Buffer, tuple[ir.Buffer, int]] = {}
    for scope in ir.UNIT_SCOPES:
        inside = [b for b in held if b.scope == scope]
        memory = ir.Buffer(scope, (sum(map(_room, inside)),), inside[0].dtype, scope) if inside else None
        for k, buffer in enumerate(inside):
            assert memory is not None
            places[buffer] = memory, sum(map(_room, inside[:k]))

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if not isinstance(expr, ir.AddressOf) or expr.buffer not in places:
            return expr
        memory, start = places[expr.buffer]
        flat: ir.Expr = ir.const(start, "int32")
        for index, stride in zip(expr.indices, expr.buffer.strides, strict=True):
            flat = flat + index * stride
        return replace(expr, buffer=memory, indices=(flat,))

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return s.body if isinstance(s, ir.Alloc) and s.buffer in places else s

    body = map_stmt(stmt, on_stmt, lambda x: map_expr(x, on_expr))
    for memory in dict.fromkeys(memory for memory, _ in places.values()):
        body = ir.Alloc(memory, body)
    return body


def _room(buffer: ir.Buffer) -> int:
    """Elements that a buffer takes, to where the next may begin."""
    step = max(1, buffer.align // dtypes.nbytes(buffer.dtype))
    return -(-prod(buffer.shape) // step) * step
