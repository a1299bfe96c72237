"""Loops that one intrinsic does whole: products and windows."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import NoReturn

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.bit_fields import FEW, LANES, VECTOR, BitFields
from microc.tir.lower.region import address, flat_step
from microc.tir.names import PRODUCT, WINDOW
from microc.tir.rewrite import map_stmt, substitute, walk_all_exprs, walk_expr, walk_stmt

# ---- Loops annotated ``product``: a small matrix product that one intrinsic does whole, whatever extents a tail has
# left them.
#
# ``for r: for c: for k: sums[r, c] += int32(a[r, k]) * int32(b[c, k])`` (all three annotated, k innermost; a loop of one
# iteration may be missing) becomes ``dot_<a>_<b>_<R>x<C>(a, b, sums, depth, strides of a, b and sums)``, without the strides
# that a single row or column does not need. Of weights of few bits in the order ``vector``, b[c, k] is the expression that takes
# a number out of its byte, and k are three loops: over groups, fields and 16 neighbours. Right before are loops that set the sums
# of several rows to zero, which is part of the intrinsic. A single row takes ``start`` before ``sums``: where the numbers lie
# that its sums start with, which a loop ``for c: sums[c] = start[c]`` right before would store; else the sums themselves. More
# columns than such intrinsics have are rows of weights one after the other, ``row_<a>_<b>_<depth>(a, b, start, sums,
# columns)``.

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


def _products_fail(loop: ir.For, why: str) -> NoReturn:
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
            _products_fail(nest, "the innermost statement adds no product")
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
            _products_fail(nest, f"{loop.var.name} counts neither rows nor columns")
    for buffer, where, wanted in ((a.buffer, a.indices, 1), (b.buffer, b.indices, 1), (sums, place, 0)):
        if sums_stay and _step(nest, buffer, where, depth.var) != wanted:
            _products_fail(nest, f"{buffer.name} moves by other steps along {depth.var.name}")
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
        _products_fail(nest, "sums of several rows do not start from zero")
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
            _products_fail(nest, f"{columns} columns are none that lie one after the other")
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
            _products_fail(nest, "the right factor is no load")


def _check_groups(nest: ir.For, form: BitFields, loops: list[ir.For], a: ir.Load, b: ir.Load) -> None:
    """16 neighbours, the fields of 16 bytes, groups of them: innermost first, groups perhaps one alone, without a loop."""
    wanted = ((LANES, 1, 1), (form.count, LANES, 0), (0, form.group, LANES))
    for loop, (extent, step_a, step_b) in zip(loops, wanted, strict=False):
        steps = _step(nest, a.buffer, a.indices, loop.var), _step(nest, b.buffer, b.indices, loop.var)
        if steps != (step_a, step_b) or (extent and ir.int_value(loop.extent) != extent):
            _products_fail(nest, f"{loop.var.name} is no loop over numbers of {form.bits} bits")
    if len(loops) < 2:
        _products_fail(nest, f"too few loops over numbers of {form.bits} bits")


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
        _products_fail(nest, f"{buffer.name} is not read along a line")
    return step


# ---- Loops annotated ``product`` in which runs of terms are summed in float16: one intrinsic does them whole.
#
# ::
#
#     for lane in 4 [product]: for row: for vector: for odd in 2: for run:
#         total = 0
#         for k: total = fma(a[row, run, k], b[run, k, vector, lane, odd], total)
#         sums[row, vector, odd, lane] += float32(total)
#
# becomes ``half_product_<R>x<V>(a, b, sums, depth, runs, stride of a)``. Loops of one iteration may be missing, and the others
# be in any order.

HALF_PRODUCTS_LANES = 8
"""Columns of a vector."""


def lower_half_products(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with every such nest as a call."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _half_products_call(s) if isinstance(s, ir.For) and PRODUCT in dict(s.annotations) and _halves(s) else s

    return map_stmt(stmt, on_stmt)


def _halves(nest: ir.For) -> bool:
    return any(isinstance(x, ir.Call) and (x.name, x.dtype) == ("fma", "float16") for x in walk_all_exprs(nest))


def _half_products_fail(nest: ir.For, why: str) -> NoReturn:
    raise InternalError(f"the loops from {nest.var.name} inwards are no product of halves: {why}")


def _half_products_call(nest: ir.For) -> ir.Stmt:
    """The call that does what the loops do."""
    stores = [s for s in walk_stmt(nest) if isinstance(s, ir.Store)]
    factors = [s.value.args[:2] for s in stores if isinstance(s.value, ir.Call)]
    added = [s for s in stores if isinstance(s.value, ir.Bin)]
    match factors, added:
        case [(ir.Load() as a, ir.Load() as b)], [sums]:
            places = ((a.buffer, a.indices), (b.buffer, b.indices), (sums.buffer, sums.indices))
        case _:
            _half_products_fail(nest, "there is not one product and one sum")
    loops = turns_of(nest)
    if loops is None:
        _half_products_fail(nest, "it has conditions")
    steps = {var: tuple(flat_step(*place, var) for place in places) for var in loops}
    roles = {_role(steps[var]): var for var, extent in loops.items() if extent != 1}
    counts = {role: loops[roles[role]] if role in roles else 1 for role in ("row", "vector", "run", "term")}
    width, depth, rows = HALF_PRODUCTS_LANES * counts["vector"], counts["run"] * counts["term"], counts["row"]
    stride = steps[roles["row"]][0] if rows > 1 else 0
    wanted = {
        "row": (stride, 0, width), "vector": (0, HALF_PRODUCTS_LANES, HALF_PRODUCTS_LANES), "odd": (0, 1, 4), "lane": (0, 2, 1),
        "run": (counts["term"], counts["term"] * width, 0), "term": (1, width, 0),
    }  # fmt: skip
    if any(steps[var] != wanted[role] for role, var in roles.items()) or stride is None:
        _half_products_fail(nest, f"{', '.join(var.name for var in roles.values())} move by other steps")
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var in loops}
    extents = ((rows - 1) * stride + depth, depth * width, rows * width)
    args = [address(*place, first, n, writes=place is places[2]) for place, n in zip(places, extents, strict=True)]
    numbers = (depth, counts["run"], *((stride,) if rows > 1 else ()))
    name = f"half_product_{rows}x{counts['vector']}"
    return ir.Evaluate(ir.Call(name, (*args, *(ir.const(n, "int32") for n in numbers)), "int32"))


def turns_of(nest: ir.For) -> dict[ir.Var, int] | None:
    """How often the loops of a nest run that does something in every turn, or below a limit alone, where a tile is a part of one;
    None where other conditions hold."""
    found = {s.var: ir.int_value(s.extent) or 0 for s in walk_stmt(nest) if isinstance(s, ir.For)}
    for test in (s for s in walk_stmt(nest) if isinstance(s, ir.If)):
        match test:
            case ir.If(ir.Bin("lt", ir.Var() as var, ir.Const(int() as limit)), _, None) if var in found:
                found[var] = min(found[var], limit)
            case _:
                return None
    return found


def _role(steps: tuple[int | None, ...]) -> str:
    """What a loop counts, by how far it moves in ``a``, ``b`` and ``sums``."""
    left, right, total = steps
    if total == 0:
        return "term" if left == 1 else "run"
    if right == 0:
        return "row"
    return {1: "lane", 4: "odd"}.get(total or 0, "vector")


# ---- Loops annotated ``window`` that slide over pixels of float16: one intrinsic does them whole.
#
# ::
#
#     for lane in 8 [window]: for pixel:
#         sums[pixel, lane] = 0
#         for row: for tap in 3: sums[pixel, lane] = fma(a[row, S * pixel + tap, lane], b[row, tap, lane], sums[pixel, lane])
#
# becomes ``half_window_<S>_<X>(a, b, sums, rows, elements of a row, those of a pixel)``. Loops of one iteration may be missing.

HALF_WINDOWS_LANES, TAPS = 8, 3
"""Channels, and taps of a row."""


def lower_half_windows(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with every such nest as a call."""
    return map_stmt(stmt, lambda s: _call(s) if isinstance(s, ir.For) and WINDOW in dict(s.annotations) else s)


def _fail(nest: ir.For, why: str) -> NoReturn:
    raise InternalError(f"the loops from {nest.var.name} inwards are no window: {why}")


def _call(nest: ir.For) -> ir.Stmt:
    """The call that does what the loops do."""
    match [s for s in walk_stmt(nest) if isinstance(s, ir.Store) and isinstance(s.value, ir.Call)]:
        case [ir.Store(sums, indices, ir.Call("fma", (ir.Load() as a, ir.Load() as b, _)))]:
            places = ((a.buffer, a.indices), (b.buffer, b.indices), (sums, indices))
        case _:
            _fail(nest, "there is not one sum of products")
    loops = turns_of(nest)
    if loops is None:
        _fail(nest, "it has conditions")
    steps = {var: tuple(flat_step(*place, var) for place in places) for var in loops}
    summed = sorted((var for var in loops if steps[var][2] == 0), key=lambda var: steps[var][1] or 0)
    moved = [var for var in loops if steps[var][2] != 0 and var != nest.var]
    if not summed or len(summed) > 2 or len(moved) > 1:
        _fail(nest, "its loops are others")
    tap, rows, pixels = summed[0], loops[summed[1]] if summed[1:] else 1, loops[moved[0]] if moved else 1
    step, row_step = steps[tap][0] or 0, (steps[summed[1]][0] or 0) if summed[1:] else 0
    stride = (steps[moved[0]][0] or 0) // step if moved and step else 1
    wanted = {nest.var: (1, 1, 1), tap: (step, step, 0)}
    wanted |= dict.fromkeys(summed[1:], (row_step, TAPS * step, 0)) | dict.fromkeys(
        moved, (stride * step, 0, HALF_WINDOWS_LANES)
    )
    if steps != wanted or (loops[nest.var], loops[tap]) != (HALF_WINDOWS_LANES, TAPS):
        _fail(nest, f"{', '.join(var.name for var in loops)} move by other steps")
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var in loops}
    reach = (rows - 1) * row_step + ((pixels - 1) * stride + TAPS - 1) * step + HALF_WINDOWS_LANES
    extents = (reach, (rows * TAPS - 1) * step + HALF_WINDOWS_LANES, pixels * HALF_WINDOWS_LANES)
    args = [address(*place, first, n, writes=place is places[2]) for place, n in zip(places, extents, strict=True)]
    numbers = (ir.const(n, "int32") for n in (rows, row_step, step))
    return ir.Evaluate(ir.Call(f"half_window_{stride}_{pixels}", (*args, *numbers), "int32"))
