"""Loops annotated ``product``: a small matrix product that one intrinsic does whole, whatever extents a tail has left them.

``for r: for c: for k: sums[r, c] += int32(a[r, k]) * int32(b[c, k])`` (all three annotated, k innermost; a loop of one
iteration may be missing) becomes ``dot_<a>_<b>_<R>x<C>(a, b, sums, depth, strides of a, b and sums)``, without the strides
that a single row or column does not need. Of weights of few bits in the order ``vector``, b[c, k] is the expression that takes
a number out of its byte, and k are three loops: over groups, fields and 16 neighbours. Right before are loops that set the sums
of several rows to zero, which is part of the intrinsic. A single row takes ``start`` before ``sums``: where the numbers lie that
its sums start with, which a loop ``for c: sums[c] = start[c]`` right before would store; else the sums themselves. More columns
than such intrinsics have are rows of weights one after the other, ``row_<a>_<b>_<depth>(a, b, start, sums, columns)``.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import NoReturn

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.bit_fields import FEW, LANES, VECTOR, BitFields
from microc.tir.lower.region import address, flat_step
from microc.tir.names import PRODUCT
from microc.tir.rewrite import map_stmt, substitute, walk_expr

_TYPES = MappingProxyType({"int8": "i8", "uint8": "u8", "int16": "i16"})
_FORMS = MappingProxyType({32 - bits: BitFields(bits, VECTOR) for bits in FEW})
"""Forms of weights of few bits, by the last shift of a number."""
MOST = 4
"""Columns of a product of a few."""


def lower_products(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with every annotated nest as a call."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return replace(s, body=_replaced(s.body)) if isinstance(s, ir.For) and not _marked(s) else s

    return _replaced(map_stmt(stmt, on_stmt))


def _marked(loop: ir.For) -> bool:
    return PRODUCT in dict(loop.annotations)


def _replaced(stmt: ir.Stmt) -> ir.Stmt:
    """A statement outside of products, its direct parts that are products replaced."""
    match stmt:
        case ir.Seq(body):
            done: list[ir.Stmt] = []
            for child in _under_one_guard(body):
                if isinstance(child, ir.For) and _is_product(child):
                    done[-1:] = _product(child, done[-1:])
                else:
                    done.append(_replaced(child))
            return ir.seq(*done)
        case ir.For() if _is_product(stmt):
            return ir.seq(*_product(stmt, []))
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _replaced(body))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _replaced(body))
        case ir.If(condition, then, otherwise):
            return ir.If(condition, _replaced(then), _replaced(otherwise) if otherwise else None)
        case _:
            return stmt


def _under_one_guard(body: tuple[ir.Stmt, ...]) -> list[ir.Stmt]:
    """Statements, neighbours under the same guard together: a product with what its sums start from."""
    found: list[ir.Stmt] = []
    for child in body:
        match found[-1:], child:
            case [ir.If(same, before, None)], ir.If(condition, then, None) if same == condition and not any(
                isinstance(x, ir.Load) for x in walk_expr(condition)
            ):
                found[-1] = ir.If(condition, ir.seq(before, then))
            case _:
                found.append(child)
    return found


def _nest(stmt: ir.Stmt) -> tuple[list[ir.For], ir.Stmt]:
    """Annotated loops, outermost first, and what they repeat."""
    loops: list[ir.For] = []
    while isinstance(stmt, ir.For) and _marked(stmt):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _is_product(nest: ir.For) -> bool:
    """Whether annotated loops add, not only store what sums start with."""
    loops, inner = _nest(nest)
    return bool(loops) and isinstance(inner, ir.Store) and isinstance(inner.value, ir.Bin)


def _fail(loop: ir.For, why: str) -> NoReturn:
    raise InternalError(f"the loops from {loop.var.name} inwards are no product of matrices: {why}")


def _product(nest: ir.For, before: list[ir.Stmt]) -> list[ir.Stmt]:
    """The call, behind the statement before the product unless that is part of it."""
    loops, inner = _nest(nest)
    match inner:
        case ir.Store(sums, place, ir.Bin("add", total, ir.Bin("mul", ir.Cast(_, ir.Load() as a), weight))) if (
            total == ir.Load(sums, place) and sums.dtype == "int32"
        ):
            b, form = _weight(nest, weight)
        case _:
            _fail(nest, "the innermost statement adds no product")
    sums_stay = _step(nest, sums, place, loops[-1].var) == 0
    depth = loops.pop() if sums_stay else ir.For(ir.Var("depth"), ir.const(1, "int32"), inner)
    groups: list[ir.For] = []
    while form is not None and loops and _step(nest, sums, place, loops[-1].var) == 0 and len(groups) < 2:
        groups.append(loops.pop())
    rows = columns = 1
    strides = {"a": 0, "b": 0, "sums": 0}
    for loop in loops:
        steps = [
            _step(nest, buffer, where, loop.var) for buffer, where in ((a.buffer, a.indices), (b.buffer, b.indices))
        ]
        moved, extent = _step(nest, sums, place, loop.var), ir.int_value(loop.extent) or 0
        if extent == 1:
            continue
        if steps[1] == 0 and rows == 1:
            rows, strides["a"], strides["sums"] = extent, steps[0], moved
        elif steps[0] == 0 and columns == 1 and moved == 1:
            columns, strides["b"] = extent, steps[1]
        else:
            _fail(nest, f"{loop.var.name} counts neither rows nor columns")
    for buffer, where, wanted in ((a.buffer, a.indices, 1), (b.buffer, b.indices, 1), (sums, place, 0)):
        if sums_stay and _step(nest, buffer, where, depth.var) != wanted:
            _fail(nest, f"{buffer.name} moves by other steps along {depth.var.name}")
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32") for loop in (*loops, *groups, depth)}
    length = width = prod(ir.int_value(loop.extent) or 0 for loop in (depth, *groups))
    if form is not None:
        _check_groups(nest, form, [depth, *groups], a, b)
        width = length // form.count

    numbers = [length, *([strides["a"]] if rows > 1 else []), *([strides["b"]] if columns > 1 else [])]
    numbers += [strides["sums"]] if rows > 1 else []
    target = address(sums, place, first, (rows - 1) * strides["sums"] + columns, writes=True)
    starts: tuple[ir.AddressOf, ...] = ()
    if rows == 1:
        found = _start(before, sums, target.indices, columns)
        before = before if found is None else []
        starts = (found or replace(target, writes=False),)
    elif _zeros(before, sums, target.indices) == rows * columns:
        before = []
    else:
        _fail(nest, "sums of several rows do not start from zero")
    args = (
        address(a.buffer, a.indices, first, (rows - 1) * strides["a"] + length, writes=False),
        address(b.buffer, b.indices, first, (columns - 1) * strides["b"] + width, writes=False),
        *starts,
        target,
        *(ir.const(n, "int32") for n in numbers),
    )
    name = f"dot_{_TYPES[a.dtype]}_{f'i{form.bits}' if form else _TYPES[b.dtype]}_{rows}x{columns}"
    if columns > MOST:
        if rows > 1 or strides["b"] != length or form is not None:
            _fail(nest, f"{columns} columns are none that lie one after the other")
        name, args = f"row_{_TYPES[a.dtype]}_{_TYPES[b.dtype]}_{length}", (*args[:4], ir.const(columns, "int32"))
    return [*before, ir.Evaluate(ir.Call(name, args, "int32"))]


def _weight(nest: ir.For, weight: ir.Expr) -> tuple[ir.Load, BitFields | None]:
    """Where the right factor is loaded, and its form if it is a number of few bits."""
    match weight:
        case ir.Cast(_, ir.Load() as b):
            return b, None
        case ir.Bin("shr", ir.Cast(_, ir.Bin("shl", ir.Cast(_, ir.Cast(_, ir.Load() as b)))), ir.Const(int() as by)):
            return b, _FORMS[by]
        case _:
            _fail(nest, "the right factor is no load")


def _check_groups(nest: ir.For, form: BitFields, loops: list[ir.For], a: ir.Load, b: ir.Load) -> None:
    """16 neighbours, the fields of 16 bytes, groups of them: innermost first, groups perhaps one alone, without a loop."""
    wanted = ((LANES, 1, 1), (form.count, LANES, 0), (0, form.group, LANES))
    for loop, (extent, step_a, step_b) in zip(loops, wanted, strict=False):
        steps = _step(nest, a.buffer, a.indices, loop.var), _step(nest, b.buffer, b.indices, loop.var)
        if steps != (step_a, step_b) or (extent and ir.int_value(loop.extent) != extent):
            _fail(nest, f"{loop.var.name} is no loop over numbers of {form.bits} bits")
    if len(loops) < 2:
        _fail(nest, f"too few loops over numbers of {form.bits} bits")


def _start(before: list[ir.Stmt], sums: ir.Buffer, place: tuple[ir.Expr, ...], columns: int) -> ir.AddressOf | None:
    """Where a statement reads the numbers that it stores as a row of sums."""
    loops, store = _nest(before[0]) if before else ([], None)
    match store:
        case ir.Store(buffer, indices, ir.Load(source, where)) if buffer == sums and source.dtype == "int32":
            pass
        case _:
            return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32") for loop in loops}
    wide = [loop for loop in loops if ir.int_value(loop.extent) != 1]
    counts = [ir.int_value(loop.extent) for loop in wide]
    steps = [(flat_step(sums, indices, x.var), flat_step(source, where, x.var)) for x in wide]
    same = tuple(simplify(substitute(i, first)) for i in indices) == place
    if not same or (counts, steps) != (([columns], [(1, 1)]) if columns > 1 else ([], [])):
        return None
    return address(source, where, first, columns, writes=False)


def _zeros(before: list[ir.Stmt], sums: ir.Buffer, place: tuple[ir.Expr, ...]) -> int:
    """How many sums a statement sets to zero, from those at ``place`` on."""
    loops, store = _nest(before[0]) if before else ([], None)
    if not isinstance(store, ir.Store) or store.buffer != sums or store.value != ir.const(0, "int32"):
        return 0
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32") for loop in loops}
    same = tuple(simplify(substitute(i, first)) for i in store.indices) == place
    return prod(ir.int_value(loop.extent) or 0 for loop in loops) if same else 0


def _step(nest: ir.For, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> int:
    """By how many elements an access moves with ``var``."""
    step = flat_step(buffer, indices, var)
    if step is None:
        _fail(nest, f"{buffer.name} is not read along a line")
    return step
