"""Whether the turns of a parallel loop keep out of each other's way in a buffer that they write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from microc.tir import ir
from microc.tir.affine import linear, simplify, simplify_stmt
from microc.tir.lower.blocks import drop_blocks
from microc.tir.lower.region import Access, accesses, loop_bounds, split_index
from microc.tir.rewrite import free_vars

Part = tuple[ir.Expr, int, int, int]
"""What an index is but for the loop's turn: a part that turns have in common, lowest and highest of the rest, by how much it
moves with the turn."""


def has_parts(loop: ir.For, buffer: ir.Buffer) -> bool:
    """Whether no two turns share an element of ``buffer``: along one axis, or in memory, all that a turn touches lies before what
    the next one does."""
    found = [a for a in accesses(simplify_stmt(drop_blocks(loop))) if a.buffer == buffer]
    if all(_within_row(access) for access in found):
        axes = ([(a, a.indices[axis], 1) for a in found] for axis in range(len(buffer.shape) - 1))
        if any(_apart(loop, touches) for touches in axes) or _apart(
            loop, [(a, a.indices[-1], a.extent) for a in found]
        ):
            return True
    return _apart(loop, [(a, _flat(buffer, a.indices), a.extent) for a in found])


def _flat(buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> ir.Expr:
    total: ir.Expr = ir.const(0, "int32")
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = total + index * stride
    return total


def _within_row(access: Access) -> bool:
    if access.extent == 1:
        return True
    reach = _part(access.indices[-1], access, ir.Var(""), access.loops)
    return reach is not None and ir.int_value(reach[0]) == 0 and reach[2] + access.extent <= access.buffer.shape[-1]


def _apart(loop: ir.For, touches: Iterable[tuple[Access, ir.Expr, int]]) -> bool:
    """Whether a turn's part of what indices touch, so many elements from each on, ends before the next one's begins."""
    parts = [(_part(index, a, loop.var, _inside(a, loop)), extent) for a, index, extent in touches]
    known = [(part, extent) for part, extent in parts if part is not None]
    if len(known) < len(parts) or len({(part[0], part[3]) for part, _ in known}) != 1:
        return False
    low, high = min(part[1] for part, _ in known), max(part[2] + extent - 1 for part, extent in known)
    return high - low < known[0][0][3]


def _inside(access: Access, loop: ir.For) -> tuple[ir.For, ...]:
    """The loops around an access that a turn runs through."""
    variables = [each.var for each in access.loops]
    if loop.var not in variables:  # of one iteration, which simplification has put in its place
        return access.loops
    return access.loops[variables.index(loop.var) + 1 :]


def _part(index: ir.Expr, access: Access, turn: ir.Var, inside: tuple[ir.For, ...]) -> Part | None:
    """None where the index does not move evenly with the turn, or the rest of it has no known range."""
    bounds = loop_bounds(access.loops)
    terms, _ = linear(simplify(index, bounds))
    step = terms.get(turn, 0)
    inner = {each.var: bounds.get(each.var, (0, 0)) for each in inside}
    if any(each.var not in bounds for each in inside):
        return None
    parts = split_index(simplify(index - turn * step, bounds), inner, bounds)
    if parts is None or turn in free_vars(parts[0]):
        return None
    return (*parts, step)
