"""Loops annotated ``lanes``: several iterations at once in the lanes of vectors, on cores that have such registers.

``for i in n [lanes=4]: body`` becomes a loop over vectors. Iterations are independent (``vectorized``). Where n is no multiple
of four, one more vector after the loop covers the last four iterations, some of them for the second time, if the body reads or
writes nothing but private memory; else it is a partial one, whose memory accesses are predicated. int32 and float32 expressions
that vary along ``i`` become calls of the intrinsics named ``<op>_i32x4`` and ``<op>_f32x4``; loads widen, stores narrow, of
neighbours or in steps; register buffers inside the loop become registers of vectors, and so does a tile of sums around such
loops, all of whose elements are taken by vectors from whole ones on (:func:`_tiles`). Literals and constants that all
iterations share are read before the loop. A run of memory that is only copied or filled is one call, and so are runs that
follow each other; of a loop annotated ``strided``, too, also a run that is copied from elements that lie apart. What has no such
form stays a loop over single elements. Where a loop is annotated ``moved`` instead, only runs that are copied are calls: for
cores without vectors, which find out when they run whether both ends lie so that words can be moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from types import MappingProxyType

from microc.tir import ir, names
from microc.tir.analysis.context import buffers_read
from microc.tir.analysis.simplification import linear, simplify, simplify_stmt
from microc.tir.lower.cleanup import unroll_loops
from microc.tir.lower.lane_code import NARROWED, TYPES, LaneCode
from microc.tir.lower.lane_scope import ELEMENTS, NoLanesError, fixed
from microc.tir.lower.region import Access, accesses, address, consecutive, flat_step
from microc.tir.rewrite import free_vars, map_stmt, walk_stmt
from microc.tir.symbolic import LENGTH, in_order

COPIED = MappingProxyType({**TYPES, "float32": "f32"})
"""How dtypes that vectors copy are called."""
SHORT = ("int8", "uint8", "int16", "uint16")
"""What ``moved`` loops move; elements of 32 bits are words already."""
_RUN_CALLS = frozenset(
    {f"copy_{kind}" for kind in COPIED.values()}
    | {f"fill_{kind}" for kind in TYPES.values()}
    | {f"move_{TYPES[dtype]}" for dtype in SHORT}
)


def lower_lanes(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without loops annotated ``lanes`` or ``moved``."""
    plain: set[ir.Stmt] = set()
    while True:  # a loop that no vectors do takes its sums one by one, and so do others that share these
        try:
            return _lowered(stmt, _tiles(stmt, plain), plain)
        except _SharedError as shared:
            plain.add(shared.loop)


class _SharedError(Exception):
    """A loop whose sums were to be vectors has no form with them."""

    def __init__(self, loop: ir.For) -> None:
        self.loop = loop


def _lowered(stmt: ir.Stmt, tiles: Mapping[ir.Buffer, ir.Buffer], plain: Set[ir.Stmt]) -> ir.Stmt:
    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Alloc) and s.buffer in tiles:
            return replace(s, buffer=tiles[s.buffer])
        if not isinstance(s, ir.For):
            return s
        notes, extent = dict(s.annotations), ir.int_value(s.extent)
        serial = replace(
            s,
            kind="serial",
            annotations=tuple(
                a
                for a in s.annotations
                if a[0] not in (names.LANES, names.SCALABLE, names.FLOATS, names.MOVED, names.STRIDED)
            ),
        )
        if names.MOVED in notes:
            return (_moved(s, extent) if extent is not None else None) or serial
        if names.LANES not in notes or s.kind == "scalable":
            return _joined(s) or _after_fixed(s)
        if _numbered(s):
            serial = replace(serial, kind="unrolled")
        if extent is None or s in plain:
            return serial
        try:
            body = simplify_stmt(unroll_loops(s.body))
            lanes, floats = int(notes[names.LANES]), int(notes.get(names.FLOATS, 0))
            return (
                _run(s, extent)
                or (_narrowed(s, extent) if floats >= NARROWED else None)
                or _strided(s, extent, lanes, int(notes.get(names.STRIDED, 0)))
                or (_strips(replace(s, body=body), lanes, floats) if names.SCALABLE in notes else None)
                or _vectors(replace(s, body=body), extent, lanes, tiles, floats)
            )
        except NoLanesError:
            if any(buffer in tiles for buffer in _registers(s)):
                raise _SharedError(s) from None
            return serial

    return map_stmt(stmt, on_stmt)


def _numbered(loop: ir.For) -> bool:
    """Whether the loop's iterations take elements of their own of an array in registers, which has them by number."""
    found = (i for a in accesses(loop) if a.buffer.scope == "register" for i in a.indices)
    return any(loop.var in free_vars(index) for index in found)


def _registers(loop: ir.For) -> set[ir.Buffer]:
    """Arrays in registers from outside that a loop reads or writes."""
    return {a.buffer for a in accesses(loop) if a.buffer.scope == "register"}


def _tiles(stmt: ir.Stmt, plain: Set[ir.Stmt]) -> dict[ir.Buffer, ir.Buffer]:
    """Arrays in registers whose elements are taken by vectors alone, the last of a loop perhaps in part, as arrays of these."""
    widths: dict[ir.Buffer, set[int]] = {}
    for access in accesses(stmt):
        if access.buffer.scope == "register" and access.buffer.dtype in ELEMENTS:
            widths.setdefault(access.buffer, set()).add(_width(access, plain))
    return {
        buffer: replace(buffer, shape=(*buffer.shape[:-1], buffer.shape[-1] // n), dtype=f"{buffer.dtype}x{n}")
        for buffer, found in widths.items()
        if len(found) == 1 and (n := min(found)) and buffer.shape[-1] % n == 0
    }


def _width(access: Access, plain: Set[ir.Stmt]) -> int:
    """The lanes of the loop that takes neighbours of an array, one in each, from a whole vector on; 0 where none does."""
    loop = next((f for f in reversed(access.loops) if names.LANES in dict(f.annotations)), None)
    if loop is None or loop in plain:
        return 0
    lanes = int(dict(loop.annotations)[names.LANES])
    terms, offset = linear(simplify(access.indices[-1]))
    first = all(factor % lanes == 0 for term, factor in terms.items() if term != loop.var) and offset % lanes == 0
    return lanes if first and ir.int_value(loop.extent) and consecutive(access.indices, loop.var) else 0


def _run(loop: ir.For, extent: int) -> ir.Stmt | None:
    """The loop as one copy or fill of memory."""
    store = loop.body
    copied = _copied(loop, extent, "copy")
    if copied is not None or not isinstance(store, ir.Store) or store.buffer.dtype not in TYPES:
        return copied
    if not isinstance(store.value, ir.Const) or not _consecutive(store, loop.var):
        return None
    target = address(store.buffer, store.indices, {loop.var: ir.const(0, "int32")}, extent, writes=True)
    value, count = ir.const(store.value.value, "int32"), ir.const(extent, "int32")
    return ir.Evaluate(ir.Call(f"fill_{TYPES[store.buffer.dtype]}", (target, value, count), "int32"))


def _moved(loop: ir.For, extent: int) -> ir.Stmt | None:
    """The loop as one copy by words."""
    store = loop.body
    short = isinstance(store, ir.Store) and store.buffer.dtype in SHORT
    return _copied(loop, extent, "move") if short else None


def _copied(loop: ir.For, extent: int, name: str) -> ir.Stmt | None:
    """The loop as a call that copies memory, if it does nothing else."""
    match loop.body:
        case ir.Store(into, places, ir.Load(buffer, indices)) if (
            buffer.dtype == into.dtype in COPIED
            and buffer.scope != "register"
            and _consecutive(loop.body, loop.var)
            and consecutive(indices, loop.var)
        ):
            first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
            target = address(into, places, first, extent, writes=True)
            source = address(buffer, indices, first, extent, writes=False)
            return ir.Evaluate(
                ir.Call(f"{name}_{COPIED[into.dtype]}", (target, source, ir.const(extent, "int32")), "int32")
            )
        case _:
            return None


def _narrowed(loop: ir.For, extent: int) -> ir.Stmt | None:
    """The loop as a call that stores floats as float16, or zeros."""
    match loop.body:
        case ir.Store(into, places, ir.Const(0, "float16")) if _consecutive(loop.body, loop.var):
            target = address(into, places, {loop.var: ir.const(0, "int32")}, extent, writes=True)
            return ir.Evaluate(ir.Call("zero_f16", (target, ir.const(extent, "int32")), "int32"))
        case ir.Store(into, places, ir.Cast("float16", ir.Load(buffer, indices))) if (
            buffer.dtype == "float32"
            and "register" not in (buffer.scope, into.scope)
            and _consecutive(loop.body, loop.var)
            and consecutive(indices, loop.var)
        ):
            first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
            target = address(into, places, first, extent, writes=True)
            source = address(buffer, indices, first, extent, writes=False)
            return ir.Evaluate(ir.Call("narrow_f32_f16", (target, source, ir.const(extent, "int32")), "int32"))
        case _:
            return None


def _strided(loop: ir.For, extent: int, lanes: int, farthest: int) -> ir.Stmt | None:
    """The loop as a call that copies elements that lie up to so far apart, two vectors of them or more."""
    match loop.body:
        case ir.Store(into, places, ir.Load(buffer, indices)) if (
            buffer.dtype == into.dtype in SHORT
            and buffer.scope != "register"
            and extent >= 2 * lanes
            and _consecutive(loop.body, loop.var)
        ):
            step = flat_step(buffer, indices, loop.var)
            if step is None or not 1 < step <= farthest:
                return None
            first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
            target = address(into, places, first, extent, writes=True)
            source = replace(address(buffer, indices, first, extent, writes=False), step=step)
            count, apart = ir.const(extent, "int32"), ir.const(step, "int32")
            return ir.Evaluate(ir.Call(f"copy_strided_{TYPES[into.dtype]}", (target, source, count, apart), "int32"))
        case _:
            return None


def _consecutive(store: ir.Store, var: ir.Var) -> bool:
    """Whether iterations store to neighbours in memory."""
    return store.buffer.scope != "register" and consecutive(store.indices, var)


def _joined(loop: ir.For) -> ir.Stmt | None:
    """Runs of memory that follow each other as one run."""
    match loop.body:
        case ir.Evaluate(ir.Call(name, (*places, ir.Const(int() as size)), dtype)) if name in _RUN_CALLS:
            extent = ir.int_value(loop.extent)
            ends = [a for a in places if isinstance(a, ir.AddressOf)]
            if extent is None or any(flat_step(a.buffer, a.indices, loop.var) != size for a in ends):
                return None
        case _:
            return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
    moved = [
        address(a.buffer, a.indices, first, extent * size, writes=a.writes) if isinstance(a, ir.AddressOf) else a
        for a in places
    ]
    return ir.Evaluate(ir.Call(name, (*moved, ir.const(extent * size, "int32")), dtype))


def _after_fixed(loop: ir.For) -> ir.Stmt:
    """The loop, after the values that its body starts with naming and that do not depend on it."""
    match loop.body:
        case ir.Let(var, value, body) if fixed(value) and loop.var not in free_vars(value):
            return ir.Let(var, value, _after_fixed(replace(loop, body=body)))
        case _:
            return loop


def _repeatable(stmt: ir.Stmt) -> bool:
    """Whether doing an iteration twice gives the same: what it reads is neither written by it, nor can it lie in the same memory
    (as results may lie over operands)."""
    stored = {s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Store) and s.buffer.scope != "register"}
    read = {b for b in buffers_read(stmt) if b.scope != "register"}
    apart = any(all(b.scope != "global" for b in side) for side in (stored, read))
    return apart and not stored & read


def _vectors(loop: ir.For, extent: int, lanes: int, tiles: Mapping[ir.Buffer, ir.Buffer], floats: int) -> ir.Stmt:
    """All iterations as vectors."""
    count, rest = divmod(extent, lanes)
    parts: list[ir.Stmt] = []
    if count:
        whole = LaneCode(loop.var, loop.var * lanes, lanes, lanes, tiles, floats)
        kind = "serial" if _registers(loop).isdisjoint(tiles) else "unrolled"
        body = ir.For(loop.var, ir.const(count, "int32"), whole.statement(loop.body), kind)
        if rest and _repeatable(loop.body) and _registers(loop).isdisjoint(tiles):
            return whole.hoisted(ir.seq(body, whole.moved(extent - lanes).statement(loop.body)))
        parts.append(whole.hoisted(body))
    if rest:
        part = LaneCode(loop.var, ir.const(count * lanes, "int32"), rest, lanes, tiles, floats, "_end")
        parts.append(part.hoisted(part.statement(loop.body)))
    return ir.seq(*parts)


def _strips(loop: ir.For, lanes: int, floats: int) -> ir.Stmt | None:
    """All iterations as strips of the lanes that the machine has; None where a strip would write what it reads."""
    taken, most = (ir.Var(f"{loop.var.name}__{name}") for name in ("lanes", "most"))
    left = loop.extent - loop.var
    code = LaneCode(loop.var, loop.var, 1, lanes, {}, floats, taken=taken, most=most)
    name = f"{LENGTH}{lanes}"
    body = code.statement(loop.body)
    if not in_order(body):
        return None
    body = ir.Let(taken, ir.Call(name, (left,), "int32"), body)
    strips = ir.For(loop.var, loop.extent, body, "scalable", ((names.LANES, lanes),))
    ahead = code.hoisted(strips)
    return ahead if ahead == strips else ir.Let(most, ir.Call(name, (loop.extent,), "int32"), ahead)
