# SPDX-License-Identifier: Apache-2.0
"""Primitives that tensorise: tensor intrinsics in reductions, pairs of columns that share weights, pairs of filter
taps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import mul
from typing import NamedTuple

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ScheduleError, known_names_hint
from microc.isa import TENSOR, TensorIntrin
from microc.isa.instruction_set import StepOperand
from microc.isa.vocabulary.scalar_words import WIDENED
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_loop,
    fresh_name,
    has_block,
    loops_around,
    names_in,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.context import is_index
from microc.tir.analysis.region import loop_bounds
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.names import SMALLEST_WEIGHT, SUM_BOUND, UNIT
from microc.tir.rewrite import (
    children,
    drop_blocks,
    free_vars,
    map_expr,
    map_stmt,
    substitute,
    walk_all_exprs,
    walk_stmt,
)

# ---- Common to primitives that tensorise products by constant int8: the operands of the product, and loops over its sums

Point = Mapping[ir.Var, ir.Expr]
"""Values of loop variables: one iteration of a loop nest."""


@frozen
class ByteProduct:
    """A match of the block ``c[.., o] += a[.., k] * w[o, k]`` with constant int8 weights w.

    ``store``: the store to c. ``data``: the load of a. ``weight``: the load of w."""

    block: ir.Block
    store: ir.Store
    data: ir.Load
    weight: ir.Load

    def bind_iterators_at(self, point: Point) -> tuple[ir.IterVar, ...]:
        """Return the block's iterators, each bound to the value that it has in the iteration ``point``."""
        return tuple(replace(i, binding=simplify(substitute(i.binding, point))) for i in self.block.iters)

    def is_spatial_loop(self, loop: ir.For) -> bool:
        """Test whether ``loop`` is spatial: it counts sums, not terms of a sum."""
        return any(i.kind == "space" and loop.var in free_vars(i.binding) for i in self.block.iters)


def match_byte_product(block: ir.Block, make_error: Callable[[str], ScheduleError]) -> ByteProduct:
    """Match a block that adds products by a constant int8 matrix. Raise ``make_error(reason)`` if it does not match."""
    match block.body:
        case ir.Store(total, where, ir.Bin("add", ir.Load(b, i), ir.Bin("mul", ir.Cast(_, x), ir.Cast(_, w)))) if (
            b == total and i == where and isinstance(x, ir.Load) and isinstance(w, ir.Load)
        ):
            if len(w.indices) == 2 and w.buffer.scope == "const" and w.dtype == "int8":
                return ByteProduct(block, block.body, x, w)
        case _:
            pass
    raise make_error("the body is no product by a constant int8 matrix")


def build_loops_over_tile(
    product: ByteProduct,
    tile_loops: list[ir.For],
    outer_values: Point,
    used_names: set[str],
    name_suffix: str,
    build_statement: Callable[[ir.Load], ir.Stmt],
    extra_iterators: tuple[ir.IterVar, ...] = (),
) -> ir.Stmt:
    """Build loops over the sums of a tile, with one statement for each sum.

    - ``tile_loops``: the loops that count the sums; they are copied.
    - ``outer_values``: values of other loop variables.
    - ``build_statement``: builds the statement from the load of a sum; it may use ``extra_iterators``.
    - ``name_suffix``: suffix of the names of new loops and of the new block."""
    block = product.block
    copies = {x.var: ir.Var(fresh_name(used_names, f"{x.var.name}_{name_suffix}")) for x in tile_loops}
    values: dict[ir.Var, ir.Expr] = {}
    iters = list(extra_iterators)
    for it in block.iters:
        if it.kind == "space":
            var = ir.Var(fresh_name(used_names, f"{it.var.name}_{name_suffix}"))
            values[it.var] = var
            binding = simplify(substitute(substitute(it.binding, outer_values), dict(copies)))
            iters.append(replace(it, var=var, binding=binding))
    indices = tuple(substitute(i, values) for i in product.store.indices)
    guard = None if block.predicate is None else substitute(block.predicate, dict(copies))
    body = build_statement(ir.Load(product.store.buffer, indices))
    nest: ir.Stmt = ir.Block(f"{block.name}_{name_suffix}", tuple(iters), body, None, guard)
    for x in reversed(tile_loops):
        nest = ir.For(copies[x.var], x.extent, nest, "unrolled")
    return nest


# ---- tensorize: replace the innermost loops of a reduction by an intrinsic


def _load_under_int32_cast(expr: ir.Expr) -> ir.Load | None:
    """Return the load of an expression that casts a load to int32; None for any other expression."""
    return expr.a if isinstance(expr, ir.Cast) and expr.dtype == "int32" and isinstance(expr.a, ir.Load) else None


def _tensorize_error(loop_name: str, intrin: TensorIntrin, reason: str) -> ScheduleError:
    """Build the ScheduleError that explains why a loop cannot be replaced by a tensor intrinsic."""
    loops = " ".join(
        f"for {name} in {n}:" for name, n in zip("nk"[-len(intrin.extents) :], intrin.extents, strict=True)
    )
    return ScheduleError(
        f"tensorize {loop_name!r} with {intrin.name}: {reason}",
        hint=f"choose the innermost loops of a decomposed reduction '{loops} c += int32(a[.., k]) * int32(b[.., k])'"
        f" with {intrin.a} a and {intrin.b} b, in the intrinsic's order in memory",
    )


def tensorize(func: ir.PrimFunc, loop: str, intrin: str) -> ir.PrimFunc:
    """Replace ``loop`` and the loops inside it, around one block, by the tensor intrinsic ``intrin``.

    ``loop`` may also be the name of a block that :func:`~microc.schedule.primitives.reductions.blockize` made; then
    the loops in the block are replaced. Instructions of a tensor unit accept loops of any extents."""
    if intrin in UNIT_LOOPS:
        return _tensorize_unit(func, loop, intrin)
    if intrin not in TENSOR:
        names = (*TENSOR, *UNIT_LOOPS)
        raise ScheduleError(
            f"there is no tensor intrinsic {intrin!r}", hint=known_names_hint(intrin, names, "intrinsics")
        )
    what = TENSOR[intrin]
    # 1. The loops have the intrinsic's extents, and the block adds products of its dtypes.
    old = find_block(func.body, loop).body if has_block(func.body, loop) else find_loop(func.body, loop)
    if not isinstance(old, ir.For):
        raise _tensorize_error(loop, what, f"block {loop!r} contains no loops")
    block, points = _find_block_and_iterations(old, what)
    if block.init is not None:
        raise _tensorize_error(
            loop, what, f"the reduction of block {block.name!r} is not decomposed: decompose_reduction first"
        )
    if block.predicate is not None and points[0].keys() & free_vars(block.predicate):
        raise _tensorize_error(loop, what, "the loop has a guarded tail: split by a divisor, or pad_reduction")
    store = block.body
    if not (isinstance(store, ir.Store) and isinstance(store.value, ir.Bin) and store.value.op == "add"):
        raise _tensorize_error(loop, what, f"block {block.name!r} does not accumulate; expected a sum of products")
    product = store.value.b
    if store.value.a != ir.Load(store.buffer, store.indices) or not isinstance(product, ir.Bin) or product.op != "mul":
        raise _tensorize_error(
            loop, what, f"block {block.name!r} adds no product to its sum; expected a sum of products"
        )
    a, b = _load_under_int32_cast(product.a), _load_under_int32_cast(product.b)
    if a is None or b is None or (a.dtype, b.dtype) != (what.a, what.b):
        raise _tensorize_error(
            loop,
            what,
            "wrong dtypes of the operands; got "
            f"{' and '.join('no load' if x is None else x.dtype for x in (a, b))}, expected {what.a} and {what.b}",
        )
    # 2. Each operand's elements, relative to the first, are at the distances that the intrinsic reads: it gets two pointers. The
    # distance of indices times the strides of the buffer is a distance in memory, whatever axes the loops run along.
    bindings = {i.var: i.binding for i in block.iters}
    bounds = loop_bounds(loops_around(func.body, old))
    for load, order, aligned in ((a, what.order_a, what.aligned_a), (b, what.order_b, what.aligned_b)):
        steps = _element_distances_by_axis(load.indices, bindings, points)
        strides = load.buffer.strides
        if [None if s is None else sum(map(mul, s, strides)) for s in steps] != list(order):
            raise _tensorize_error(
                loop,
                what,
                f"{load.buffer.name!r} is not read in the intrinsic's order; got element offsets "
                f"{[None if s is None else sum(map(mul, s, strides)) for s in steps]}, expected {list(order)}",
            )
        if aligned and not _is_word_aligned(load, bindings, points[0], bounds):
            raise _tensorize_error(
                loop,
                what,
                f"{load.buffer.name!r} is not known to be read at word-aligned indices: storage_align its last axis",
            )
    # 3. The block runs once, at the first point, and updates every output.
    iters = tuple(replace(i, binding=simplify(substitute(i.binding, points[0]))) for i in block.iters)
    outputs = _store_indices_by_output(store, bindings, points, what.outputs)
    if outputs is None:
        raise _tensorize_error(
            loop, what, f"{store.buffer.name!r} is not written at one index for each of {what.outputs} outputs"
        )
    body = what.build_body(a, b, tuple(ir.Load(store.buffer, indices) for indices in outputs))
    return replace(func, body=replace_stmt(func.body, old, replace(block, iters=iters, body=body)))


def _find_block_and_iterations(loop: ir.For, intrin: TensorIntrin) -> tuple[ir.Block, list[Point]]:
    """Return the block inside of the loops that the intrinsic replaces, and all iterations of these loops, in order.

    Raise ScheduleError if the loops differ from the intrinsic's extents, or are not innermost."""
    variables: list[ir.Var] = []
    inner: ir.Stmt = loop
    for extent in intrin.extents:
        if not isinstance(inner, ir.For) or extent_of(inner) != extent:
            raise _tensorize_error(
                loop.var.name,
                intrin,
                f"wrong extents of the loops; got {extent_of(inner) if isinstance(inner, ir.For) else 'no loop'}, "
                f"expected {extent}",
            )
        variables.append(inner.var)
        inner = inner.body
    if not isinstance(inner, ir.Block):
        raise _tensorize_error(loop.var.name, intrin, "the loops are not innermost: reorder them inside")
    numbers = itertools.product(*(range(extent) for extent in intrin.extents))
    return inner, [dict(zip(variables, (ir.const(n, "int32") for n in row), strict=True)) for row in numbers]


def _element_distances_by_axis(
    indices: tuple[ir.Expr, ...], bindings: Mapping[ir.Var, ir.Expr], iterations: list[Point]
) -> list[tuple[int, ...] | None]:
    """Return, for each iteration, the distance along every axis between the elements that ``indices`` address in the
    first iteration and in this one. None if it is not constant."""
    bound = [substitute(index, bindings) for index in indices]
    start = [substitute(index, iterations[0]) for index in bound]
    result: list[tuple[int, ...] | None] = []
    for iteration in iterations:
        distances: list[int] = []
        for index, first in zip(bound, start, strict=True):
            # Most indices do not depend on the loops: nothing is substituted in them.
            fixed = first is index and is_index(index)
            distance = 0 if fixed else ir.int_value(simplify(substitute(index, iteration) - first))
            if distance is None:
                break
            distances.append(distance)
        result.append(tuple(distances) if len(distances) == len(bound) else None)
    return result


def _store_indices_by_output(
    store: ir.Store, bindings: Mapping[ir.Var, ir.Expr], iterations: list[Point], output_count: int
) -> list[tuple[ir.Expr, ...]] | None:
    """Return, for each output of the intrinsic, the indices at which ``store`` writes. None if the indices of an output
    differ between its terms.

    ``iterations``: all iterations of the replaced loops, sorted by output."""
    terms = len(iterations) // output_count
    distances = _element_distances_by_axis(store.indices, bindings, iterations)
    indices = []
    for n in range(output_count):
        distance = distances[n * terms]
        if distance is None or any(other != distance for other in distances[n * terms : (n + 1) * terms]):
            return None
        indices.append(tuple(i + d if d else i for i, d in zip(store.indices, distance, strict=True)))
    return indices


def _is_word_aligned(
    load: ir.Load,
    bindings: Mapping[ir.Var, ir.Expr],
    first_iteration: Point,
    variable_ranges: Mapping[ir.Var, tuple[int, int]],
) -> bool:
    """Test whether the element that is read in the iteration ``first_iteration`` is at a multiple of four bytes. The
    buffer itself is aligned."""
    elements = 4 // dtypes.nbytes(load.dtype)
    for index, stride in zip(load.indices, load.buffer.strides, strict=True):
        terms, offset = linear(simplify(substitute(substitute(index, bindings), first_iteration), variable_ranges))
        if any(factor * stride % elements for factor in (*terms.values(), offset)):
            return False
    return True


# ---- Instructions of a tensor unit.

UNIT_LOOPS = {
    "unit_load_input": 2,
    "unit_load_weight": 2,
    "unit_load_sums": 2,
    "unit_set": 2,
    "unit_matmul": 3,
    "unit_store_sums": 2,
}
"""Number of loops that each instruction of a tensor unit replaces (:mod:`microc.isa.vocabulary.matrix_products`)."""
_INPUT, _WEIGHT, _SUMS = ir.UNIT_SCOPES


def _tensorize_unit(func: ir.PrimFunc, loop: str, instruction_name: str) -> ir.PrimFunc:
    """Mark ``loop``, with the loops in it and their only block, as an instruction of the tensor unit.

    The block must have the effect of the instruction. ``loop`` may also be the name of a block that blockize made.
    Lowering replaces the loops by calls only after it has separated tails from whole tiles, because the instructions
    accept any extents."""
    old = find_block(func.body, loop).body if has_block(func.body, loop) else find_loop(func.body, loop)
    loops: list[ir.For] = []
    inner = old
    while isinstance(inner, ir.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, ir.Block) or len(loops) != UNIT_LOOPS[instruction_name]:
        raise _unit_instruction_error(
            loop,
            instruction_name,
            f"wrong loops; got {len(loops)} around {'one block' if isinstance(inner, ir.Block) else 'several statements'}, "
            f"expected {UNIT_LOOPS[instruction_name]} around one block",
        )
    if inner.init is not None:
        raise _unit_instruction_error(
            loop, instruction_name, "the reduction is not decomposed: decompose_reduction first"
        )
    if not _matches_unit_instruction(drop_blocks(inner.body), instruction_name):
        raise _unit_instruction_error(
            loop, instruction_name, f"block {inner.name!r} does not have the effect of the instruction"
        )
    marked: ir.Stmt = inner
    for x in reversed(loops):
        notes = (*(note for note in x.annotations if note[0] != UNIT), (UNIT, instruction_name))
        marked = ir.For(x.var, x.extent, marked, x.kind, notes)
    return replace(func, body=replace_stmt(func.body, old, marked))


def _unit_instruction_error(loop_name: str, instruction_name: str, reason: str) -> ScheduleError:
    """Build the ScheduleError that explains why a loop cannot become the tensor unit's instruction
    ``instruction_name``."""
    return ScheduleError(
        f"tensorize {loop_name!r} with {instruction_name}: {reason}",
        hint="move operands to the unit's memories by cache_read or set_scope: " + ", ".join(ir.UNIT_SCOPES),
    )


def _matches_unit_instruction(body: ir.Stmt, instruction_name: str) -> bool:
    """Test whether the statement of a block has the effect of a tensor unit's instruction on one element.

    For a matrix product the effect is adding one term to a sum."""
    match instruction_name, body:
        case "unit_matmul", ir.Store(
            sums, indices, ir.Bin("add", old, ir.Bin("mul", ir.Cast("int32", a), ir.Cast("int32", b)))
        ):
            scopes = {x.buffer.scope for x in (a, b) if isinstance(x, ir.Load) and x.dtype == "int8"}
            return sums.scope == _SUMS and old == ir.Load(sums, indices) and scopes == {_INPUT, _WEIGHT}
        case "unit_set", ir.Store(to, _, ir.Const()):
            return to.scope == _SUMS
        case "unit_store_sums", ir.Store(to, _, ir.Load(source)):
            return source.scope == _SUMS and to.scope not in ir.UNIT_SCOPES
        case "unit_load_input" | "unit_load_weight" | "unit_load_sums", ir.Store(to, _, ir.Load(source)):
            scope = {"unit_load_input": _INPUT, "unit_load_weight": _WEIGHT, "unit_load_sums": _SUMS}[instruction_name]
            dtype = "int32" if scope == _SUMS else "int8"
            return to.scope == scope and to.dtype == dtype and source.scope not in (*ir.UNIT_SCOPES, "register")
        case _:
            return False


# ---- The primitive tensorize_pairs: two columns of a product of bytes share words of weights (SWAR)
#
# The weights of columns 2 i and 2 i + 1 are stored together, h[i, k] = w[2 i, k] + 256 w[2 i + 1, k], in 16 bits. One ``dot2`` by
# a word of h adds both columns at once; ``evens`` of the same word extracts the even column alone. So four products of two
# columns take one load, one widening and two ``dot2``; separate bytes take one more widening.
#
# In the loop the odd sum is kept as t = c0 + 256 c1, modulo 2**32. Afterwards c1 = (t - c0) >> 8 (an arithmetic shift), exactly,
# if c1 fits 24 bits. Two annotations of the block must promise that: |c1| < 2**23 (``sum_bound``), and h fits 16 bits,
# -32768 <= w0 + 256 w1, which only a weight of -128 can violate (``smallest_weight``).
#
# If all readers of the sums multiply them by 256, as ``requantize_floor`` does, the odd sum stays multiplied: t - c0 = 256 c1.

COLUMNS, TERMS = 2, 4
"""Number of columns whose weights are packed into one int16, and number of terms in one iteration: the four bytes of a
word of activations."""
SUM_LIMIT = 1 << 23
"""Bound of the absolute value of the sums of odd columns."""


def can_pair_columns(block: ir.Block, column_count: int) -> bool:
    """Test whether the int8 weights of two columns can be packed into one int16, w0 + 256 w1. The annotations of
    ``block`` must promise that sums are bounded and that no weight is -128, and ``column_count`` must be even."""
    notes = dict(block.annotations)
    bound, smallest = notes.get(SUM_BOUND), notes.get(SMALLEST_WEIGHT)
    has_notes = isinstance(bound, int) and isinstance(smallest, int)
    return has_notes and column_count % COLUMNS == 0 and int(bound or 0) < SUM_LIMIT and int(smallest or 0) > -128


def tensorize_pairs(
    func: ir.PrimFunc, weight: str, columns: str, reduction: str, dtype: str, woven: int = 1
) -> ir.PrimFunc:
    """Replace the loop ``columns`` (trip count 2) and the loop of 4 terms inside it by ``dot2`` on an int16 buffer
    whose elements each contain the weights of two columns.

    ``reduction``: outermost loop of the decomposed reduction. The sums of two columns are combined before this loop
    and separated after it. ``dtype``: dtype of the activations. Activations of 8 bits are widened as the bytes (0,
    2) and (1, 3), and the weights are stored in this order. ``woven``: number of pairs of columns whose weights alternate
    every four terms (:func:`pack_column_pairs`)."""
    loop, whole = find_loop(func.body, columns), find_loop(func.body, reduction)
    product = _match_column_pair(loop)
    if product.weight.buffer.name != weight or product.data.dtype != dtype:
        raise ScheduleError(
            f"tensorize_pairs {columns!r}: wrong operands; got weights {product.weight.buffer.name!r} and "
            f"{product.data.dtype} activations, expected weights {weight!r} and {dtype} activations"
        )
    if not can_pair_columns(product.block, COLUMNS):
        raise ScheduleError(
            f"tensorize_pairs {columns!r}: the sums or weights of block {product.block.name!r} are not known to be "
            f"small enough; expected annotations {SUM_BOUND} below {SUM_LIMIT} and {SMALLEST_WEIGHT} above -128"
        )
    old = product.weight.buffer
    rows, depth = old.shape
    if rows % (COLUMNS * woven):
        raise ScheduleError(
            f"tensorize_pairs {columns!r}: pairs cannot be woven; got {rows} columns, expected a multiple of "
            f"{COLUMNS * woven}"
        )
    shape = (rows // COLUMNS, depth) if woven == 1 else (rows // COLUMNS // woven, depth // TERMS, woven, TERMS)
    pairs = replace(old, shape=shape, dtype="int16")
    inner = loop.body
    assert isinstance(inner, ir.For)
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32"), inner.var: ir.const(0, "int32")}
    body = replace(product.block, iters=product.bind_iterators_at(first), body=_build_pair_updates(product, pairs))
    around = loops_around(func.body, product.block)
    tile = [x for x in around[around.index(whole) :] if x not in (loop, inner) and product.is_spatial_loop(x)]
    taken = names_in(func.body)
    sums = product.store.buffer
    outside = replace_stmt(func.body, whole, ir.seq())
    start = ir.seq()  # zeros need no combination
    if any(isinstance(s, ir.Store) and s.buffer == sums and ir.int_value(s.value) != 0 for s in walk_stmt(outside)):
        start = build_loops_over_tile(product, tile, first, taken, "pair", _build_sum_combination)
    keeps_scale = _is_read_scaled_only(outside, sums)
    separate = _build_scaled_sum_separation if keeps_scale else _build_sum_separation
    end = build_loops_over_tile(product, tile, first, taken, "part", separate)
    changed = replace_stmt(whole, loop, body)
    surroundings = _keep_scale_of_odd_sums(func.body, sums) if keeps_scale else func.body
    # what is inside of ``whole`` reads no sum as scaled, so that rewriting its surroundings leaves it unchanged
    new = replace_stmt(surroundings, whole, ir.seq(start, changed, end))
    return replace(func, params=tuple(pairs if p == old else p for p in func.params), body=new)


def _match_column_pair(loop: ir.For) -> ByteProduct:
    """Match ``loop`` as 2 columns of 4 terms of a product by a constant int8 matrix. Raise ScheduleError if it does
    not match."""

    def pair_error(reason: str) -> ScheduleError:
        return ScheduleError(f"tensorize_pairs {loop.var.name!r}: {reason}")

    inner = loop.body
    block = inner.body if isinstance(inner, ir.For) else None
    if not isinstance(block, ir.Block) or not isinstance(inner, ir.For):
        raise pair_error("the loop over columns must contain only the loop over terms, and this loop only the block")
    if (extent_of(loop), extent_of(inner)) != (COLUMNS, TERMS) or block.init is not None:
        raise pair_error(
            f"wrong loops or a reduction that is not decomposed; got {extent_of(loop)} columns of {extent_of(inner)} "
            f"terms, expected {COLUMNS} of {TERMS}"
        )
    if block.predicate is not None and {loop.var, inner.var} & free_vars(block.predicate):
        raise pair_error("the loop has a guarded tail: split by a divisor, or pad_reduction")
    return match_byte_product(block, pair_error)


def _load_odd_sum(even_sum: ir.Load | ir.Store) -> ir.Load:
    """Return the load of the sum of the odd column, which is the next element after the sum of the even column."""
    return ir.Load(even_sum.buffer, (*even_sum.indices[:-1], even_sum.indices[-1] + 1))


def _build_pair_updates(product: ByteProduct, weight_pairs: ir.Buffer) -> ir.Stmt:
    """Build the updates of the even column's sum and of the combined sum, by four products each."""
    store, (column, term) = product.store, product.weight.indices
    start = ir.Load(weight_pairs, (column // COLUMNS, term))
    if len(weight_pairs.shape) > len(product.weight.indices):  # woven: the first of four terms
        woven, pair = weight_pairs.shape[2], column // COLUMNS
        start = ir.Load(weight_pairs, (pair // woven, term // TERMS, pair % woven, ir.const(0, "int32")))
    even, both = ir.Load(store.buffer, store.indices), _load_odd_sum(store)
    sums: list[ir.Expr] = [even, both]
    for half in (0, 1):
        left = _activation_operand(product.data.dtype, half).build_operand(product.data)
        word = ("load_i16x2_aligned",)
        for output, names, name in ((0, (*word, "evens_i8"), "dot2"), (1, word, "dot2_wrapping")):
            right = StepOperand(2 * half, names, 2).build_operand(start)
            sums[output] = ir.Call(name, (left, right, sums[output]), "int32")
    return ir.seq(ir.Store(store.buffer, even.indices, sums[0]), ir.Store(store.buffer, both.indices, sums[1]))


def _activation_operand(activation_dtype: str, pair_index: int) -> StepOperand:
    """Return the operand that loads pair ``pair_index`` (0 or 1) of four activations.

    Activations of 8 bits are widened as the bytes (0, 2) or (1, 3). Activations of int16 are loaded as two
    neighbours."""
    if activation_dtype == "int16":
        return StepOperand(2 * pair_index, ("load_i16x2_aligned",), 2)
    return StepOperand(0, WIDENED[activation_dtype][pair_index], TERMS)


def _build_sum_combination(even_sum: ir.Load) -> ir.Stmt:
    """Build the statement before the loop that combines the sums of two columns: t = c0 + 256 c1."""
    odd = _load_odd_sum(even_sum)
    value = (even_sum.astype("int64") + odd.astype("int64") * 256).astype("int32")
    return ir.Store(odd.buffer, odd.indices, value)


def _build_sum_separation(even_sum: ir.Load) -> ir.Stmt:
    """Build the statement after the loop that recovers the sum of the odd column: c1 = (t - c0) >> 8."""
    odd = _load_odd_sum(even_sum)
    value = (odd.astype("int64") - even_sum.astype("int64")).astype("int32") >> 8
    return ir.Store(odd.buffer, odd.indices, value)


def _build_scaled_sum_separation(even_sum: ir.Load) -> ir.Stmt:
    """Build the statement after the loop that recovers 256 times the sum of the odd column: 256 c1 = t - c0."""
    odd = _load_odd_sum(even_sum)
    value = (odd.astype("int64") - even_sum.astype("int64")).astype("int32")
    return ir.Store(odd.buffer, odd.indices, value)


def _is_scaled_read(expr: ir.Expr, sums: ir.Buffer) -> bool:
    """Test whether an expression is an element of ``sums``, times 256."""
    match expr:
        case ir.Bin("shl", ir.Load(buffer), ir.Const(8)):
            return buffer == sums
        case _:
            return False


def _is_read_scaled_only(stmt: ir.Stmt, sums: ir.Buffer) -> bool:
    """Test whether all expressions of a statement that read ``sums`` multiply them by 256."""
    reads = sum(isinstance(x, ir.Load) and x.buffer == sums for x in walk_all_exprs(stmt))
    return 0 < reads == sum(_is_scaled_read(x, sums) for x in walk_all_exprs(stmt))


def _keep_scale_of_odd_sums(body: ir.Stmt, sums: ir.Buffer) -> ir.Stmt:
    """Rewrite the statements that multiply ``sums`` by 256: the sums of odd columns are multiplied already."""

    def keep_scale(expr: ir.Expr) -> ir.Expr:
        if not _is_scaled_read(expr, sums):
            return expr
        (load,) = children(expr)[:1]
        assert isinstance(load, ir.Load)
        return ir.select(load.indices[-1] % COLUMNS > 0, load, expr)

    return map_stmt(body, lambda s: s, lambda x: map_expr(x, keep_scale))


def pack_column_pairs(array: Array, activation_dtype: str, woven: int = 1) -> Array:
    """Pack every two rows of int8 weights into one row of int16: (N, K) -> (N / 2, K). The order of elements is that
    in which activations of ``activation_dtype`` are loaded.

    ``woven``: number of packed rows that alternate every four elements, as (N / 2 / woven, K / 4, woven, 4)."""
    wide = array.astype(np.int32)
    pairs = wide[0::2] + 256 * wide[1::2]
    if activation_dtype != "int16":
        pairs = pairs.reshape(len(pairs), -1, TERMS)[:, :, (0, 2, 1, 3)].reshape(len(pairs), -1)
    if woven > 1:
        pairs = pairs.reshape(-1, woven, pairs.shape[1] // TERMS, TERMS).swapaxes(1, 2)
    return pairs.astype(np.int16)


# ---- The primitive tensorize_taps: multiply pairs of taps of a depthwise convolution by ``dot2``
#
# Vectors hold neighbouring channels, so the terms of a sum are not contiguous in memory. A word of data is combined from two
# loads, one number in the lower half and one in the upper; all outputs and taps that read both share it. Words of constant
# weights are stored. A single last tap has a zero beside its weight, so that its number needs no mask.

PAIR = 2
"""Number of taps in a word."""
_SHORT = "int16"


class _TapSum(NamedTuple):
    """A match of the statement ``total += data * weight``: its store and loads, and the block iterator over the taps
    that are paired."""

    store: ir.Store
    data: ir.Load
    weight: ir.Load
    taps: ir.IterVar


def tensorize_taps(func: ir.PrimFunc, block: str, weight: str, axis: int) -> ir.PrimFunc:
    """Multiply pairs of filter taps along an axis of the constant ``weight`` in ``block`` by ``dot2``. The loop over
    the taps is unrolled."""
    reduction = find_block(func.body, block)
    operands = _match_tap_sum(reduction, weight, axis)
    if operands is None:
        raise ScheduleError(
            f"tensorize_taps: block {block!r} sums no products by {weight!r} along its axis {axis}",
            hint="name constant weights, and factors of 16 bits or fewer",
        )
    extent = operands.taps.extent
    loop = next((x for x in loops_around(func.body, reduction) if x.var == operands.taps.binding), None)
    if loop is None or extent_of(loop) != extent or reduction.predicate is not None:
        raise ScheduleError(
            f"tensorize_taps: no single loop counts axis {axis} of {weight!r}; expected one of {extent} iterations",
            hint="tensorize_taps before split",
        )
    old = operands.weight.buffer
    words = replace(old, shape=tuple(-(-n // PAIR) if k == axis else n for k, n in enumerate(old.shape)), dtype="int32")
    total: ir.Expr = ir.Load(operands.store.buffer, operands.store.indices)
    for first in range(0, extent, PAIR):
        numbers = [_load_of_tap(operands.data, operands.taps.var, n) for n in range(first, min(first + PAIR, extent))]
        factor = _load_of_tap(ir.Load(words, operands.weight.indices), operands.taps.var, first // PAIR)
        total = ir.Call("dot2", (_pack_taps_in_word(numbers), factor, total), "int32")
    iters = tuple(i for i in reduction.iters if i != operands.taps)
    changed = replace(reduction, iters=iters, body=replace(operands.store, value=total))
    params = tuple(words if p == old else p for p in func.params)
    body = replace_stmt(func.body, loop, replace_stmt(loop.body, reduction, changed))
    return replace(func, params=params, body=body)


def _match_tap_sum(block: ir.Block, weight: str, axis: int) -> _TapSum | None:
    """Match a block that adds products of data by constants, both of at most 16 bits, and reduces along ``axis`` of
    ``weight``. None if it does not match."""
    match block.body:
        case ir.Store(total, where, ir.Bin("add", ir.Load(b, i), ir.Bin("mul", ir.Cast(_, x), ir.Cast(_, w)))) if (
            b == total and i == where and total.dtype == "int32" and isinstance(x, ir.Load) and isinstance(w, ir.Load)
        ):
            is_weight = w.buffer.name == weight and w.buffer.scope == "const" and 0 <= axis < len(w.indices)
            is_short = dtypes.contains_range_of(_SHORT, x.dtype) and dtypes.contains_range_of(_SHORT, w.dtype)
            taps = [
                i for i in block.iters if is_weight and is_short and i.kind == "reduce" and i.var == w.indices[axis]
            ]
            return _TapSum(block.body, x, w, taps[0]) if taps else None
        case _:
            return None


def _load_of_tap(load: ir.Load, tap: ir.Var, tap_index: int) -> ir.Load:
    """Return ``load`` with its iterator ``tap`` replaced by the constant ``tap_index``."""
    value: dict[ir.Var, ir.Expr] = {tap: ir.const(tap_index, "int32")}
    return ir.Load(load.buffer, tuple(simplify(substitute(i, value)) for i in load.indices))


def _pack_taps_in_word(tap_loads: Sequence[ir.Load]) -> ir.Expr:
    """Build the word that combines the data of two taps. The data of a single tap are not masked, because the upper
    half of the word is multiplied by zero."""
    low, *high = (x.astype("int32") for x in tap_loads)
    if not high:
        return low
    upper = (high[0].astype("uint32") << 16).astype("int32")
    return (low & 0xFFFF if dtypes.int_range(tap_loads[0].dtype)[0] < 0 else low) | upper


def pack_tap_words(array: Array, axis: int) -> Array:
    """Pack pairs of weights along an axis into int32 words, the first weight of a pair in the lower half."""
    taps = np.moveaxis(array.astype(np.int64), axis, 0)
    padded = np.pad(taps, [(0, len(taps) % PAIR), *[(0, 0)] * (taps.ndim - 1)])
    words = (padded[0::PAIR] & 0xFFFF) | (padded[1::PAIR] << 16)
    result: Array = np.moveaxis(words.astype(np.int32), 0, axis)
    return result
