# SPDX-License-Identifier: Apache-2.0
"""Lowering of loops annotated ``lanes`` or of kind ``vectorized``: several iterations run at once in the lanes of registers.

``for i in n [lanes=4]: body`` becomes a loop over vectors. Its iterations are independent (``vectorized``).

Tails: the number of iterations may not be a multiple of the lanes. If an iteration may be repeated, one more vector after the
loop covers the last iterations, some of which run a second time. An iteration may be repeated if the body reads neither the
buffers that it writes nor buffers that could share memory with these. Otherwise the tail is a partial vector, whose memory
accesses are predicated.

Expressions: int32 and float32 expressions that vary along ``i`` become calls of intrinsics such as ``add_i32x4`` and
``add_f32x4``. Loads widen and stores narrow, for consecutive or strided elements. Register buffers inside the loop become
vector registers. A register tile of sums around such loops becomes vector registers, too, if all of its elements are accessed
by whole vectors (:func:`_find_vector_tiles`). Literals and constants that all iterations share are loaded before the loop.

Runs: a run is a range of consecutive elements. A loop that only copies or fills a run becomes one call, and calls on adjacent
runs are joined. With the annotation ``strided``, elements at a constant stride may be copied to a run. With the annotation
``moved`` instead of ``lanes``, only copies become calls: a core without vectors tests at run time whether source and
destination are aligned, and then copies words.

Lanes narrower than int32 (``lanes="i16x4"``), and loops of kind ``vectorized`` without lanes, which use words:
:mod:`microc.tir.lower.packed_lanes`.

Any other loop remains a loop over single elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from microc.tir import ir, names
from microc.tir.analysis.region import Access, accesses, build_address, is_consecutive, memory_stride
from microc.tir.analysis.simplification import linear, simplify, simplify_stmt
from microc.tir.extents import Extent
from microc.tir.lower.cleanup import unroll_loops
from microc.tir.lower.lane_code import NARROWED, TYPES, LaneBodyRewriter
from microc.tir.lower.lane_scope import ELEMENTS, NotVectorizableError, is_repeatable, loads_only_constants
from microc.tir.lower.packed_lanes import lower_vectorized_loop, to_packed_loop
from microc.tir.names import Lanes, lanes_of
from microc.tir.rewrite import free_vars, map_stmt, walk_stmt
from microc.tir.symbolic import LENGTH, reads_before_writes

SHORT = ("int8", "uint8", "int16", "uint16")
"""Dtypes of the elements that loops annotated ``moved`` copy by words. Elements of 32 bits are words already."""
_RUN_CALLS = frozenset(
    {f"copy_{kind}" for kind in names.SUFFIXES.values()}
    | {f"fill_{kind}" for kind in TYPES.values()}
    | {f"move_{TYPES[dtype]}" for dtype in SHORT}
)


def lower_lanes(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with the loops of kind ``vectorized``, or annotated ``lanes`` or ``moved``, lowered."""
    plain: set[ir.Stmt] = set()
    # A loop that cannot be vectorised accesses its sums one by one. Loops that share these sums must do the same, so lowering
    # is repeated without the tiles of that loop. Each attempt adds a loop to ``plain``, so there are at most as many as loops.
    while True:
        try:
            return _lower_loops(stmt, _find_vector_tiles(stmt, plain), plain)
        except _UnvectorisableTileError as shared:
            plain.add(shared.loop)


class _UnvectorisableTileError(Exception):
    """Raised if a loop cannot be vectorised although its register tile of sums was to become vectors."""

    def __init__(self, loop: ir.For) -> None:
        self.loop = loop


def _lower_loops(stmt: ir.Stmt, vector_tiles: Mapping[ir.Buffer, ir.Buffer], scalar_loops: Set[ir.Stmt]) -> ir.Stmt:
    """Return a statement with the annotated loops lowered to vectors or words, and ``scalar_loops`` to scalar loops.

    ``vector_tiles``: register arrays, with the arrays of vectors that replace them."""

    def lower_loop(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Alloc) and s.buffer in vector_tiles:
            return replace(s, buffer=vector_tiles[s.buffer])
        if not isinstance(s, ir.For):
            return s
        notes, extent = dict(s.annotations), ir.int_value(s.extent)
        if names.MOVED not in notes and (names.LANES not in notes or s.kind == "scalable"):
            joined = _join_adjacent_runs(s)
            if joined is not None or s.kind != "vectorized":
                return joined or _hoist_constant_lets(s)
            return lower_vectorized_loop(s)
        serial = replace(
            s,
            kind="serial",
            annotations=tuple(
                a
                for a in s.annotations
                if a[0] not in (names.LANES, names.SCALABLE, names.FLOATS, names.MOVED, names.STRIDED, names.LANE_FORMS)
            ),
        )
        if names.MOVED in notes:
            return (_to_word_copy(s, extent) if extent is not None else None) or serial
        if _indexes_registers(s):
            serial = replace(serial, kind="unrolled")
        if extent is None or isinstance(extent, Extent) or s in scalar_loops:
            return serial
        lanes = lanes_of(s)[0]
        try:
            if lanes.is_narrow:
                return to_packed_loop(s, lanes)
            # Register arrays in the body are indexed by constants.
            body = simplify_stmt(unroll_loops(s.body))
            lane_count, float_level = lanes.count, int(notes.get(names.FLOATS, 0))
            return (
                _to_copy_or_fill_call(s, extent)
                or (_to_float16_store(s, extent) if float_level >= NARROWED else None)
                or _to_strided_copy(s, extent, lane_count, int(notes.get(names.STRIDED, 0)))
                or (
                    _to_scalable_loop(replace(s, body=body), lane_count, float_level)
                    if names.SCALABLE in notes
                    else None
                )
                or _to_vector_loop(replace(s, body=body), extent, lane_count, vector_tiles, float_level)
            )
        except NotVectorizableError:
            if any(buffer in vector_tiles for buffer in _accessed_register_arrays(s)):
                raise _UnvectorisableTileError(s) from None
            return serial

    return map_stmt(stmt, lower_loop)


def _indexes_registers(loop: ir.For) -> bool:
    """Test whether the loop variable occurs in an index of a register array.

    Register arrays must be indexed by constants, so such a loop must be unrolled if it is not vectorised.
    """
    found = (i for a in accesses(loop) if a.buffer.scope == "register" for i in a.indices)
    return any(loop.var in free_vars(index) for index in found)


def _accessed_register_arrays(loop: ir.For) -> set[ir.Buffer]:
    """Return the register arrays that a loop accesses."""
    return {a.buffer for a in accesses(loop) if a.buffer.scope == "register"}


def _find_vector_tiles(stmt: ir.Stmt, scalar_loops: Set[ir.Stmt]) -> dict[ir.Buffer, ir.Buffer]:
    """Return the register arrays that are accessed by whole vectors only, each with the array of vectors that replaces it.

    ``scalar_loops``: loops that are not vectorised."""
    if not any(isinstance(s, ir.For) and names.LANES in dict(s.annotations) for s in walk_stmt(stmt)):
        return {}
    widths: dict[ir.Buffer, set[int]] = {}
    for access in accesses(stmt):
        if access.buffer.scope == "register" and access.buffer.dtype in ELEMENTS:
            widths.setdefault(access.buffer, set()).add(_lane_count_of_whole_vectors(access, scalar_loops))
    return {
        buffer: replace(buffer, shape=(*buffer.shape[:-1], buffer.shape[-1] // n), dtype=f"{buffer.dtype}x{n}")
        for buffer, lane_counts in widths.items()
        if len(lane_counts) == 1 and (n := min(lane_counts)) and buffer.shape[-1] % n == 0
    }


def _lane_count_of_whole_vectors(access: Access, scalar_loops: Set[ir.Stmt]) -> int:
    """Return the number of lanes if an access in a loop annotated ``lanes`` is to whole, aligned vectors; else 0.

    The iterations must access consecutive elements, and the first index must be a multiple of the number of lanes."""
    loop = next((f for f in reversed(access.loops) if names.LANES in dict(f.annotations)), None)
    if loop is None or loop in scalar_loops or lanes_of(loop)[0].is_narrow:
        return 0
    lanes = lanes_of(loop)[0].count
    terms, offset = linear(simplify(access.indices[-1]))
    first = all(factor % lanes == 0 for term, factor in terms.items() if term != loop.var) and offset % lanes == 0
    return lanes if first and ir.int_value(loop.extent) and is_consecutive(access.indices, loop.var) else 0


def _to_copy_or_fill_call(loop: ir.For, extent: int) -> ir.Stmt | None:
    """Return a call that copies or fills a run (consecutive elements) in place of a loop; None if the loop does anything else."""
    store = loop.body
    copied = _to_copy_call(loop, extent, "copy")
    if copied is not None or not isinstance(store, ir.Store) or store.buffer.dtype not in TYPES:
        return copied
    if not isinstance(store.value, ir.Const) or not _stores_consecutively(store, loop.var):
        return None
    target = build_address(store.buffer, store.indices, {loop.var: ir.const(0, "int32")}, extent, writes=True)
    value, count = ir.const(store.value.value, "int32"), ir.const(extent, "int32")
    return ir.Evaluate(ir.Call(f"fill_{TYPES[store.buffer.dtype]}", (target, value, count), "int32"))


def _to_word_copy(loop: ir.For, extent: int) -> ir.Stmt | None:
    """Return a call that copies a run (consecutive elements) by words in place of a loop; None if the loop does anything else."""
    store = loop.body
    short = isinstance(store, ir.Store) and store.buffer.dtype in SHORT
    return _to_copy_call(loop, extent, "move") if short else None


def _to_copy_call(loop: ir.For, extent: int, intrinsic_name: str) -> ir.Stmt | None:
    """Return a call of the intrinsic ``intrinsic_name`` that copies a run (consecutive elements) in place of a loop.

    None if the loop is no copy of consecutive elements."""
    match loop.body:
        case ir.Store(target_buffer, target_indices, ir.Load(buffer, indices)) if (
            buffer.dtype == target_buffer.dtype in names.SUFFIXES
            and buffer.scope != "register"
            and _stores_consecutively(loop.body, loop.var)
            and is_consecutive(indices, loop.var)
        ):
            first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
            target = build_address(target_buffer, target_indices, first, extent, writes=True)
            source = build_address(buffer, indices, first, extent, writes=False)
            return ir.Evaluate(
                ir.Call(
                    f"{intrinsic_name}_{names.SUFFIXES[target_buffer.dtype]}",
                    (target, source, ir.const(extent, "int32")),
                    "int32",
                )
            )
        case _:
            return None


def _to_float16_store(loop: ir.For, extent: int) -> ir.Stmt | None:
    """Return a call that stores a run of float32 elements as float16, or a run of float16 zeros, in place of a loop.

    None if the loop does anything else."""
    match loop.body:
        case ir.Store(target_buffer, target_indices, ir.Const(0, "float16")) if _stores_consecutively(
            loop.body, loop.var
        ):
            target = build_address(target_buffer, target_indices, {loop.var: ir.const(0, "int32")}, extent, writes=True)
            return ir.Evaluate(ir.Call("zero_f16", (target, ir.const(extent, "int32")), "int32"))
        case ir.Store(target_buffer, target_indices, ir.Cast("float16", ir.Load(buffer, indices))) if (
            buffer.dtype == "float32"
            and "register" not in (buffer.scope, target_buffer.scope)
            and _stores_consecutively(loop.body, loop.var)
            and is_consecutive(indices, loop.var)
        ):
            first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
            target = build_address(target_buffer, target_indices, first, extent, writes=True)
            source = build_address(buffer, indices, first, extent, writes=False)
            return ir.Evaluate(ir.Call("narrow_f32_f16", (target, source, ir.const(extent, "int32")), "int32"))
        case _:
            return None


def _to_strided_copy(loop: ir.For, extent: int, lane_count: int, max_stride: int) -> ir.Stmt | None:
    """Return a call that copies elements at a constant stride of at most ``max_stride`` to consecutive addresses, for a loop.

    None if the loop does anything else, or copies less than two vectors of elements."""
    match loop.body:
        case ir.Store(target_buffer, target_indices, ir.Load(buffer, indices)) if (
            buffer.dtype == target_buffer.dtype in SHORT
            and buffer.scope != "register"
            and extent >= 2 * lane_count
            and _stores_consecutively(loop.body, loop.var)
        ):
            stride = memory_stride(buffer, indices, loop.var)
            if stride is None or not 1 < stride <= max_stride:
                return None
            first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
            target = build_address(target_buffer, target_indices, first, extent, writes=True)
            source = replace(build_address(buffer, indices, first, extent, writes=False), step=stride)
            count, apart = ir.const(extent, "int32"), ir.const(stride, "int32")
            return ir.Evaluate(
                ir.Call(f"copy_strided_{TYPES[target_buffer.dtype]}", (target, source, count, apart), "int32")
            )
        case _:
            return None


def _stores_consecutively(store: ir.Store, var: ir.Var) -> bool:
    """Test whether consecutive iterations store to adjacent elements in memory."""
    return store.buffer.scope != "register" and is_consecutive(store.indices, var)


def _join_adjacent_runs(loop: ir.For) -> ir.Stmt | None:
    """Return one call for a loop whose iterations copy or fill adjacent runs of elements; None for other loops."""
    match loop.body:
        case ir.Evaluate(ir.Call(name, (*places, ir.Const(int() as size)), dtype)) if name in _RUN_CALLS:
            extent = ir.int_value(loop.extent)
            ends = [a for a in places if isinstance(a, ir.AddressOf)]
            if extent is None or any(memory_stride(a.buffer, a.indices, loop.var) != size for a in ends):
                return None
        case _:
            return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
    moved = [
        build_address(a.buffer, a.indices, first, extent * size, writes=a.writes) if isinstance(a, ir.AddressOf) else a
        for a in places
    ]
    return ir.Evaluate(ir.Call(name, (*moved, ir.const(extent * size, "int32")), dtype))


def _hoist_constant_lets(loop: ir.For) -> ir.Stmt:
    """Return a loop with the first let statements of its body moved in front of it.

    Only lets whose values are constant and do not depend on the loop are moved."""
    match loop.body:
        case ir.Let(var, value, body) if loads_only_constants(value) and loop.var not in free_vars(value):
            return ir.Let(var, value, _hoist_constant_lets(replace(loop, body=body)))
        case _:
            return loop


def _to_vector_loop(
    loop: ir.For, extent: int, lane_count: int, vector_tiles: Mapping[ir.Buffer, ir.Buffer], float_level: int
) -> ir.Stmt:
    """Return a loop over whole vectors, followed by its tail, in place of a loop over elements."""
    count, rest = divmod(extent, lane_count)
    parts: list[ir.Stmt] = []
    if count:
        whole = LaneBodyRewriter(
            *(loop.var, loop.var * lane_count, lane_count, Lanes("int32", lane_count), vector_tiles, float_level),
            lane_forms=names.lane_forms(loop),
        )
        # Vector registers in a tile are indexed by constants, so that a loop over them must be unrolled.
        kind = "serial" if _accessed_register_arrays(loop).isdisjoint(vector_tiles) else "unrolled"
        body = ir.For(loop.var, ir.const(count, "int32"), whole.rewrite_statement(loop.body), kind)
        if rest and is_repeatable(loop.body) and _accessed_register_arrays(loop).isdisjoint(vector_tiles):
            # The additional vector ends at the last element and overlaps the vector before. So it must not access a tile of
            # sums, to which some terms would be added twice.
            return whole.hoist_constants(
                ir.seq(body, whole.starting_at_iteration(extent - lane_count).rewrite_statement(loop.body))
            )
        parts.append(whole.hoist_constants(body))
    if rest:
        part = LaneBodyRewriter(
            *(loop.var, ir.const(count * lane_count, "int32"), rest, Lanes("int32", lane_count), vector_tiles),
            *(float_level, "_end"),
            lane_forms=names.lane_forms(loop),
        )
        parts.append(part.hoist_constants(part.rewrite_statement(loop.body)))
    return ir.seq(*parts)


def _to_scalable_loop(loop: ir.For, lane_count: int, float_level: int) -> ir.Stmt | None:
    """Return a scalable loop over strips of as many iterations as the machine has lanes, in place of a loop over elements.

    None if the body would read memory after writing (:func:`~microc.tir.symbolic.reads_before_writes`)."""
    active, max_active_lane_count = (ir.Var(f"{loop.var.name}__{name}") for name in ("lanes", "most"))
    left = loop.extent - loop.var
    code = LaneBodyRewriter(
        loop.var,
        loop.var,
        1,
        Lanes("int32", lane_count, scalable=True),
        {},
        float_level,
        lane_forms=names.lane_forms(loop),
        active_lane_count=active,
        max_active_lane_count=max_active_lane_count,
    )
    name = f"{LENGTH}{lane_count}"
    body = code.rewrite_statement(loop.body)
    if not reads_before_writes(body):
        return None
    body = ir.Let(active, ir.Call(name, (left,), "int32"), body)
    strips = ir.For(loop.var, loop.extent, body, "scalable", ((names.LANES, lane_count),))
    ahead = code.hoist_constants(strips)
    return ahead if ahead == strips else ir.Let(max_active_lane_count, ir.Call(name, (loop.extent,), "int32"), ahead)
