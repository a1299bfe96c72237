# SPDX-License-Identifier: Apache-2.0
"""Replacement of annotated loop nests by matrix intrinsics: integer products, float16 products, float16 windows.

Schedules annotate the loops. The counts and strides of rows and columns are derived from the indices, so that tails of any
extent match, too. An annotated nest that does not match is an internal error.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import NoReturn

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.region import build_address, memory_stride
from microc.tir.analysis.simplification import simplify
from microc.tir.bit_fields import FEW, LANES, VECTOR, BitFields
from microc.tir.names import PRODUCT, WINDOW
from microc.tir.rewrite import map_stmt, substitute, walk_all_exprs, walk_expr, walk_stmt

# ---- Loops annotated ``product``: a small matrix product that one intrinsic computes.
#
# ``for r: for c: for k: sums[r, c] += int32(a[r, k]) * int32(b[c, k])`` becomes a call
# ``dot_<a>_<b>_<R>x<C>(a, b, sums, depth, strides of a, b and sums)``. All three loops are annotated, and k is the innermost
# loop; a loop of one iteration may be missing. Strides that a single row or column does not need are left out.
#
# With sub-byte weights in the layout ``vector``, b[c, k] is the expression that unpacks a number from its byte, and k is three
# loops: over groups, fields and 16 consecutive bytes.
#
# Initial sums: loops directly before the product set the sums of several rows to zero; the intrinsic does this itself. For a
# single row the intrinsic has an argument ``start`` before ``sums``: the address of the initial values of the sums. It replaces a
# loop ``for c: sums[c] = start[c]`` directly before the product. Without such a loop it is the address of the sums themselves.
#
# For more than MOST columns, whose weights are adjacent, the call is ``row_<a>_<b>_<depth>(a, b, start, sums, columns)``. A loop
# over products of several short rows by adjacent pairs of columns becomes
# ``rows_<a>_<b>_<R>_<depth>(a, b, sums, columns, strides of a and sums)``.

_TYPES = MappingProxyType({"int8": "i8", "uint8": "u8", "int16": "i16"})
"""Suffixes of the intrinsics by the dtype of an operand."""
_FORMS = MappingProxyType({32 - bits: BitFields(bits, VECTOR) for bits in FEW})
"""Packings of sub-byte weights, by the distance (32 - bits) of the last shift in the expression that unpacks a number."""
JOINED_ROWS = (2, 3)
"""Numbers of rows whose products by pairs of columns become one call for all columns."""
_PAIRS_OF_COLUMNS = MappingProxyType({f"dot_i8_i8_{rows}x2": rows for rows in JOINED_ROWS})
"""Products that :func:`_join_adjacent_columns` joins, with their rows."""
JOINED_DEPTHS = (8, 16, 32)
"""Depths of rows that stay in vector registers together, so that their products by all columns become one call."""
MOST = 4
"""Most columns of ``dot_*`` intrinsics. A product with more columns becomes a ``row_*`` intrinsic."""


def lower_products(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every integer product, in loops annotated ``product``, replaced by a call."""

    def replace_products_in_loop(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or _is_product_loop(s):
            return s
        loop = replace(s, body=_replace_products(s.body))
        return _join_adjacent_columns(loop) or loop

    return _replace_products(map_stmt(stmt, replace_products_in_loop))


def _is_product_loop(loop: ir.For) -> bool:
    """Test whether a loop is annotated ``product``."""
    return PRODUCT in dict(loop.annotations)


def _replace_products(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with the products outside of its loops replaced by calls.

    Products inside of loops that are not annotated must have been replaced before."""
    match stmt:
        case ir.Seq(body):
            done: list[ir.Stmt] = []
            for child in _merge_equal_guards(body):
                if isinstance(child, ir.For) and _accumulates_product(child):
                    done[-1:] = _build_product_call(child, done[-1:])
                else:
                    done.append(_replace_products(child))
            return ir.seq(*done)
        case ir.For() if _accumulates_product(stmt):
            return ir.seq(*_build_product_call(stmt, []))
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _replace_products(body))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _replace_products(body))
        case ir.If(condition, then, otherwise):
            return ir.If(condition, _replace_products(then), _replace_products(otherwise) if otherwise else None)
        case _:
            return stmt


def _merge_equal_guards(body: tuple[ir.Stmt, ...]) -> list[ir.Stmt]:
    """Return a sequence with adjacent branches on the same condition merged.

    Such branches are the initialisation of sums, and the product."""
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


def _collect_product_loops(stmt: ir.Stmt) -> tuple[list[ir.For], ir.Stmt]:
    """Return the nested loops annotated ``product`` that begin at ``stmt``, outermost first, and their body."""
    loops: list[ir.For] = []
    while isinstance(stmt, ir.For) and _is_product_loop(stmt):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _accumulates_product(nest: ir.For) -> bool:
    """Test whether loops annotated ``product`` accumulate a product; others initialise its sums."""
    loops, inner = _collect_product_loops(nest)
    return bool(loops) and isinstance(inner, ir.Store) and isinstance(inner.value, ir.Bin)


def _raise_no_product(loop: ir.For, reason: str) -> NoReturn:
    """Raise InternalError for a loop nest annotated ``product`` that is no matrix product."""
    raise InternalError(f"loop nest {loop.var.name}: annotated 'product' but no matrix product: {reason}")


def _build_product_call(nest: ir.For, previous_statement: list[ir.Stmt]) -> list[ir.Stmt]:
    """Return the statement before a product, and the call of the intrinsic that computes the product.

    ``previous_statement``: the statement before the product, or an empty list. If it initialises the sums, the intrinsic does
    this itself, and only the call is returned. The role of each loop follows from its strides: a loop over rows moves a and
    sums, a loop over columns moves b and sums, a loop over terms moves a and b.
    """
    loops, inner = _collect_product_loops(nest)
    match inner:
        case ir.Store(sums, place, ir.Bin("add", total, ir.Bin("mul", ir.Cast(_, ir.Load() as a), weight))) if (
            total == ir.Load(sums, place) and sums.dtype == "int32"
        ):
            b, packing = _match_weight_load(nest, weight)
        case _:
            _raise_no_product(nest, "the innermost statement does not add a product to an int32 sum")
    sums_stay = _element_stride(nest, sums, place, loops[-1].var) == 0
    # If the depth is 1, there is no loop over terms. A loop of one iteration is created, so that the checks below need no special
    # case.
    depth = loops.pop() if sums_stay else ir.For(ir.Var("depth"), ir.const(1, "int32"), inner)
    # Loops over fields and groups of sub-byte weights do not move the sums either.
    groups: list[ir.For] = []
    while packing is not None and loops and _element_stride(nest, sums, place, loops[-1].var) == 0 and len(groups) < 2:
        groups.append(loops.pop())
    rows = columns = 1
    strides = {"a": 0, "b": 0, "sums": 0}
    for loop in loops:
        steps = [
            _element_stride(nest, buffer, where, loop.var)
            for buffer, where in ((a.buffer, a.indices), (b.buffer, b.indices))
        ]
        moved, extent = _element_stride(nest, sums, place, loop.var), ir.int_value(loop.extent) or 0
        if extent == 1:
            continue
        if steps[1] == 0 and rows == 1:
            rows, strides["a"], strides["sums"] = extent, steps[0], moved
        elif steps[0] == 0 and columns == 1 and moved == 1:
            columns, strides["b"] = extent, steps[1]
        else:
            _raise_no_product(nest, f"{loop.var.name} is no loop over rows or columns")
    for buffer, where, expected in ((a.buffer, a.indices, 1), (b.buffer, b.indices, 1), (sums, place, 0)):
        if sums_stay and _element_stride(nest, buffer, where, depth.var) != expected:
            _raise_no_product(
                nest, f"{buffer.name}: expected stride {expected} in the loop {depth.var.name} over terms"
            )
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32") for loop in (*loops, *groups, depth)}
    # length: number of terms of a sum, which are elements of a. width: number of elements of b, each with several numbers.
    length = width = prod(ir.int_value(loop.extent) or 0 for loop in (depth, *groups))
    if packing is not None:
        _check_sub_byte_loops(nest, packing, [depth, *groups], a, b)
        width = length // packing.count

    numbers = [length, *([strides["a"]] if rows > 1 else []), *([strides["b"]] if columns > 1 else [])]
    numbers += [strides["sums"]] if rows > 1 else []
    target = build_address(sums, place, first, (rows - 1) * strides["sums"] + columns, writes=True)
    starts: tuple[ir.AddressOf, ...] = ()
    # A previous statement that initialises the sums of the product becomes part of the call.
    if rows == 1:
        found = _initial_sums_address(previous_statement, sums, target.indices, columns)
        previous_statement = previous_statement if found is None else []
        starts = (found or replace(target, writes=False),)
    elif _zeroed_sum_count(previous_statement, sums, target.indices) == rows * columns:
        previous_statement = []
    else:
        _raise_no_product(nest, "sums of several rows do not start from zero")
    args = (
        build_address(a.buffer, a.indices, first, (rows - 1) * strides["a"] + length, writes=False),
        build_address(b.buffer, b.indices, first, (columns - 1) * strides["b"] + width, writes=False),
        *starts,
        target,
        *(ir.const(n, "int32") for n in numbers),
    )
    name = f"dot_{_TYPES[a.dtype]}_{f'i{packing.bits}' if packing else _TYPES[b.dtype]}_{rows}x{columns}"
    if columns > MOST:
        if rows > 1 or strides["b"] != length or packing is not None:
            # The intrinsic takes no strides, so the weights of the next column must follow directly.
            _raise_no_product(nest, f"the weights of {columns} columns are not contiguous")
        name, args = f"row_{_TYPES[a.dtype]}_{_TYPES[b.dtype]}_{length}", (*args[:4], ir.const(columns, "int32"))
    return [*previous_statement, ir.Evaluate(ir.Call(name, args, "int32"))]


def _join_adjacent_columns(loop: ir.For) -> ir.Stmt | None:
    """Return one ``rows_*`` call for a loop over products of the same rows by adjacent pairs of columns; None for other loops."""
    match loop.body:
        case ir.Evaluate(
            ir.Call(
                name,
                (
                    ir.AddressOf() as a,
                    ir.AddressOf() as b,
                    ir.AddressOf() as sums,
                    ir.Const(int() as depth),
                    stride_a,
                    ir.Const(int() as stride_b),
                    stride_sums,
                ),
            )
        ) if name in _PAIRS_OF_COLUMNS and depth in JOINED_DEPTHS:
            pass
        case _:
            return None
    extent = ir.int_value(loop.extent)
    strides = [memory_stride(place.buffer, place.indices, loop.var) for place in (a, b, sums)]
    if extent is None or stride_b != depth or strides != [0, 2 * depth, 2]:
        return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
    rows, more = _PAIRS_OF_COLUMNS[name], 2 * (extent - 1)
    places = (
        build_address(a.buffer, a.indices, first, a.reach, writes=False),
        build_address(b.buffer, b.indices, first, b.reach + more * depth, writes=False),
        build_address(sums.buffer, sums.indices, first, sums.reach + more, writes=True),
    )
    args = (*places, ir.const(2 * extent, "int32"), stride_a, stride_sums)
    return ir.Evaluate(ir.Call(f"rows_i8_i8_{rows}_{depth}", args, "int32"))


def _match_weight_load(nest: ir.For, weight: ir.Expr) -> tuple[ir.Load, BitFields | None]:
    """Return the load of the right factor of a product, and the packing if it is a sub-byte weight, else None.

    Raises InternalError for other expressions. ``nest``: the loop nest, for the error."""
    match weight:
        case ir.Cast(_, ir.Load() as b):
            return b, None
        case ir.Bin("shr", ir.Cast(_, ir.Bin("shl", ir.Cast(_, ir.Cast(_, ir.Load() as b)))), ir.Const(int() as by)):
            return b, _FORMS[by]
        case _:
            _raise_no_product(nest, "the right factor is no load of a weight")


def _check_sub_byte_loops(nest: ir.For, packing: BitFields, loops: list[ir.For], a: ir.Load, b: ir.Load) -> None:
    """Check the loops over the terms of a product with sub-byte weights. InternalError if they do not fit the packing.

    ``loops``, innermost first: over 16 consecutive bytes, over the fields of a byte, and over groups of 16 bytes. There is no
    loop over a single group.
    """
    expected = ((LANES, 1, 1), (packing.count, LANES, 0), (0, packing.group, LANES))
    for loop, (extent, step_a, step_b) in zip(loops, expected, strict=False):
        steps = (
            _element_stride(nest, a.buffer, a.indices, loop.var),
            _element_stride(nest, b.buffer, b.indices, loop.var),
        )
        if steps != (step_a, step_b) or (extent and ir.int_value(loop.extent) != extent):
            _raise_no_product(nest, f"the loop {loop.var.name} does not fit weights of {packing.bits} bits")
    if len(loops) < 2:
        _raise_no_product(
            nest, f"got {len(loops)} loop over terms, expected 2 at least for weights of {packing.bits} bits"
        )


def _initial_sums_address(
    previous_statement: list[ir.Stmt], sums: ir.Buffer, first_indices: tuple[ir.Expr, ...], column_count: int
) -> ir.AddressOf | None:
    """Return the address of the values with which a statement initialises a row of ``column_count`` sums.

    ``previous_statement``: the statement before the product, or an empty list. None if it does anything else."""
    loops, store = _collect_product_loops(previous_statement[0]) if previous_statement else ([], None)
    match store:
        case ir.Store(buffer, indices, ir.Load(source, where)) if buffer == sums and source.dtype == "int32":
            pass
        case _:
            return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32") for loop in loops}
    wide = [loop for loop in loops if ir.int_value(loop.extent) != 1]
    counts = [ir.int_value(loop.extent) for loop in wide]
    steps = [(memory_stride(sums, indices, x.var), memory_stride(source, where, x.var)) for x in wide]
    same = tuple(simplify(substitute(i, first)) for i in indices) == first_indices
    if not same or (counts, steps) != (([column_count], [(1, 1)]) if column_count > 1 else ([], [])):
        return None
    return build_address(source, where, first, column_count, writes=False)


def _zeroed_sum_count(previous_statement: list[ir.Stmt], sums: ir.Buffer, first_indices: tuple[ir.Expr, ...]) -> int:
    """Return the number of sums from ``first_indices`` on that a statement sets to zero; 0 if it does anything else.

    ``previous_statement``: the statement before the product, or an empty list."""
    loops, store = _collect_product_loops(previous_statement[0]) if previous_statement else ([], None)
    if not isinstance(store, ir.Store) or store.buffer != sums or store.value != ir.const(0, "int32"):
        return 0
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32") for loop in loops}
    same = tuple(simplify(substitute(i, first)) for i in store.indices) == first_indices
    return prod(ir.int_value(loop.extent) or 0 for loop in loops) if same else 0


def _element_stride(nest: ir.For, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> int:
    """Return the distance in elements between accesses to a buffer in consecutive iterations of ``var``.

    Raises InternalError if it is not constant."""
    step = memory_stride(buffer, indices, var)
    if step is None:
        _raise_no_product(nest, f"{buffer.name} is not accessed at a constant stride in the loop {var.name}")
    return step


# ---- Loops annotated ``product`` that sum runs of consecutive terms in float16, and the runs in float32: one intrinsic computes
# them.
#
# ::
#
#     for lane in 4 [product]: for row: for vector: for odd in 2: for run:
#         total = 0
#         for k: total = fma(a[row, run, k], b[run, k, vector, lane, odd], total)
#         sums[row, vector, odd, lane] += float32(total)
#
# becomes ``half_product_<R>x<V>(a, b, sums, depth, runs, stride of a)``. Loops of one iteration may be missing, and the others
# may be in any order.

HALF_PRODUCT_LANES = 8
"""Number of columns in a vector of float16."""


def lower_float16_products(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every float16 product, in loops annotated ``product``, replaced by a call."""

    def replace_product(s: ir.Stmt) -> ir.Stmt:
        return (
            _build_float16_product_call(s)
            if isinstance(s, ir.For) and PRODUCT in dict(s.annotations) and _multiplies_float16(s)
            else s
        )

    return map_stmt(stmt, replace_product)


def _multiplies_float16(nest: ir.For) -> bool:
    """Test whether a loop nest contains a fused multiply-add of float16."""
    return any(isinstance(x, ir.Call) and (x.name, x.dtype) == ("fma", "float16") for x in walk_all_exprs(nest))


def _raise_no_float16_product(nest: ir.For, reason: str) -> NoReturn:
    """Raise InternalError for a loop nest annotated ``product`` that is no float16 matrix product."""
    raise InternalError(f"loop nest {nest.var.name}: annotated 'product' but no float16 matrix product: {reason}")


def _build_float16_product_call(nest: ir.For) -> ir.Stmt:
    """Return the call of the intrinsic that computes a loop nest of float16 products.

    Loops may be in any order. The role of each loop is derived from its strides in ``a``, ``b`` and ``sums``
    (:func:`_role_of_loop`). Then all of its strides are compared with those of the role.
    """
    stores = [s for s in walk_stmt(nest) if isinstance(s, ir.Store)]
    factors = [s.value.args[:2] for s in stores if isinstance(s.value, ir.Call)]
    added = [s for s in stores if isinstance(s.value, ir.Bin)]
    match factors, added:
        case [(ir.Load() as a, ir.Load() as b)], [sums]:
            places = ((a.buffer, a.indices), (b.buffer, b.indices), (sums.buffer, sums.indices))
        case _:
            _raise_no_float16_product(nest, "expected one fused multiply-add and one sum")
    loops = iteration_counts(nest)
    if loops is None:
        _raise_no_float16_product(nest, "it contains a condition other than the bound of a loop")
    steps = {var: tuple(memory_stride(*place, var) for place in places) for var in loops}
    roles = {_role_of_loop(steps[var]): var for var, extent in loops.items() if extent != 1}
    counts = {role: loops[roles[role]] if role in roles else 1 for role in ("row", "vector", "run", "term")}
    width, depth, rows = HALF_PRODUCT_LANES * counts["vector"], counts["run"] * counts["term"], counts["row"]
    stride = steps[roles["row"]][0] if rows > 1 else 0
    # Strides in a, b and sums. A vector of b has eight columns; its sums are stored as the four even columns, then the four
    # odd ones.
    expected = {
        "row": (stride, 0, width), "vector": (0, HALF_PRODUCT_LANES, HALF_PRODUCT_LANES), "odd": (0, 1, 4), "lane": (0, 2, 1),
        "run": (counts["term"], counts["term"] * width, 0), "term": (1, width, 0),
    }  # fmt: skip
    if any(steps[var] != expected[role] for role, var in roles.items()) or stride is None:
        _raise_no_float16_product(
            nest, f"unexpected strides in the loops {', '.join(var.name for var in roles.values())}"
        )
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var in loops}
    extents = ((rows - 1) * stride + depth, depth * width, rows * width)
    args = [
        build_address(*place, first, n, writes=place is places[2]) for place, n in zip(places, extents, strict=True)
    ]
    numbers = (depth, counts["run"], *((stride,) if rows > 1 else ()))
    name = f"half_product_{rows}x{counts['vector']}"
    return ir.Evaluate(ir.Call(name, (*args, *(ir.const(n, "int32") for n in numbers)), "int32"))


def iteration_counts(nest: ir.For) -> dict[ir.Var, int] | None:
    """Return the number of iterations of each loop of a nest, by loop variable.

    A test ``var < limit`` of a partial tile limits the number. None if there are other tests."""
    found = {s.var: ir.int_value(s.extent) or 0 for s in walk_stmt(nest) if isinstance(s, ir.For)}
    for test in (s for s in walk_stmt(nest) if isinstance(s, ir.If)):
        match test:
            case ir.If(ir.Bin("lt", ir.Var() as var, ir.Const(int() as limit)), _, None) if var in found:
                found[var] = min(found[var], limit)
            case _:
                return None
    return found


def _role_of_loop(strides: tuple[int | None, ...]) -> str:
    """Return the role of a loop in a float16 product, such as ``row`` or ``term``.

    ``strides``: strides of the loop in ``a``, ``b`` and ``sums``."""
    left, right, total = strides
    if total == 0:
        return "term" if left == 1 else "run"
    if right == 0:
        return "row"
    return {1: "lane", 4: "odd"}.get(total or 0, "vector")


# ---- Loops annotated ``window``: a depthwise convolution of float16 whose window slides over pixels, computed by one intrinsic.
#
# ::
#
#     for lane in 8 [window]: for pixel:
#         sums[pixel, lane] = 0
#         for row: for tap in 3: sums[pixel, lane] = fma(a[row, S * pixel + tap, lane], b[row, tap, lane], sums[pixel, lane])
#
# becomes ``half_window_<S>_<X>(a, b, sums, rows, elements of a row, elements of a pixel)``. Loops of one iteration may be
# missing.

HALF_WINDOW_LANES, TAPS = 8, 3
"""Number of channels in a vector of float16; number of taps in a row of the window."""


def lower_float16_windows(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every loop nest annotated ``window`` replaced by a call."""
    return map_stmt(
        stmt, lambda s: _build_float16_window_call(s) if isinstance(s, ir.For) and WINDOW in dict(s.annotations) else s
    )


def _raise_no_window(nest: ir.For, reason: str) -> NoReturn:
    """Raise InternalError for a loop nest annotated ``window`` that is no depthwise convolution."""
    raise InternalError(f"loop nest {nest.var.name}: annotated 'window' but no float16 depthwise convolution: {reason}")


def _build_float16_window_call(nest: ir.For) -> ir.Stmt:
    """Return the call of the intrinsic that computes a loop nest annotated ``window``.

    The outermost loop is over lanes. The role of the other loops follows from their strides. Loops that do not move ``sums``
    are over taps and over rows of the window; the loop over taps has the smaller stride in ``b``. A loop that moves ``sums``
    is over pixels."""
    match [s for s in walk_stmt(nest) if isinstance(s, ir.Store) and isinstance(s.value, ir.Call)]:
        case [ir.Store(sums, indices, ir.Call("fma", (ir.Load() as a, ir.Load() as b, _)))]:
            places = ((a.buffer, a.indices), (b.buffer, b.indices), (sums, indices))
        case _:
            _raise_no_window(nest, "expected one sum of fused multiply-adds")
    loops = iteration_counts(nest)
    if loops is None:
        _raise_no_window(nest, "it contains a condition other than the bound of a loop")
    steps = {var: tuple(memory_stride(*place, var) for place in places) for var in loops}
    summed = sorted((var for var in loops if steps[var][2] == 0), key=lambda var: steps[var][1] or 0)
    moved = [var for var in loops if steps[var][2] != 0 and var != nest.var]
    if not summed or len(summed) > 2 or len(moved) > 1:
        _raise_no_window(
            nest, f"got {len(summed)} loops over taps and {len(moved)} over pixels, expected 1 or 2, and 1 at most"
        )
    tap, rows, pixels = summed[0], loops[summed[1]] if summed[1:] else 1, loops[moved[0]] if moved else 1
    step, row_step = steps[tap][0] or 0, (steps[summed[1]][0] or 0) if summed[1:] else 0
    # step: number of elements of a pixel. The stride of the window in pixels is the stride of ``a`` between output pixels, in
    # elements, divided by step.
    stride = (steps[moved[0]][0] or 0) // step if moved and step else 1
    expected = {nest.var: (1, 1, 1), tap: (step, step, 0)}
    expected |= dict.fromkeys(summed[1:], (row_step, TAPS * step, 0)) | dict.fromkeys(
        moved, (stride * step, 0, HALF_WINDOW_LANES)
    )
    if steps != expected or (loops[nest.var], loops[tap]) != (HALF_WINDOW_LANES, TAPS):
        _raise_no_window(nest, f"unexpected strides in the loops {', '.join(var.name for var in loops)}")
    first: dict[ir.Var, ir.Expr] = {var: ir.const(0, "int32") for var in loops}
    # Elements from the first to the last that is read: rows, then the last window's start and taps, then its lanes.
    reach = (rows - 1) * row_step + ((pixels - 1) * stride + TAPS - 1) * step + HALF_WINDOW_LANES
    extents = (reach, (rows * TAPS - 1) * step + HALF_WINDOW_LANES, pixels * HALF_WINDOW_LANES)
    args = [
        build_address(*place, first, n, writes=place is places[2]) for place, n in zip(places, extents, strict=True)
    ]
    numbers = (ir.const(n, "int32") for n in (rows, row_step, step))
    return ir.Evaluate(ir.Call(f"half_window_{stride}_{pixels}", (*args, *numbers), "int32"))
