"""What a network needs at least, found without compiling it: a bound that every plan, schedule and algorithm keeps.

Nothing here is an estimate: what exceeds a board or a budget by these figures is refused by
:mod:`microc.driver.compile.fit` too, after minutes of work maybe; what does not may still not fit.

Kernels store weights as they are, padded, transformed or, where the numbers are that few, packed into four or two bits; floats
that are levels as these and their scales, others that 16 bits hold in these; and equal ones once.
Results may take the place of operands, and of chains of layers that work row by row nothing but both ends is
ever whole; so that memory must hold the inputs before the first layer, the outputs behind the last one, and both sides, each for
itself, of a layer that does not work row by row, always beside the state. No scores are whole of
attention by blocks (:mod:`microc.transform.attention`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from microc import dtypes
from microc.driver.compile.arithmetic import arithmetic_of
from microc.driver.compile.budget import Room
from microc.driver.compile.kernel import alias_of, groups_of
from microc.driver.compile.remedy import remedy
from microc.driver.options import Options
from microc.dtypes import Array
from microc.errors import FitError
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.matrix.levels import find_levels
from microc.ops.rows import row_window
from microc.transform.attention.blocks import in_blocks
from microc.transform.attention.find import find_attention

FEW = 16
"""Constants of fewer numbers count as nothing: kernels may hold them as literals."""


@frozen
class Least:
    """Bytes: ``weights`` in flash, ``arena``, and ``outside``, inputs and outputs that the caller of the network brings."""

    weights: int
    arena: int
    outside: int

    @property
    def ram(self) -> int:
        return self.arena + self.outside


def least_of(graph: Graph, options: Options) -> Least:
    """The bound for a fused graph."""
    inside = options.io_in_arena
    ends = sum(graph.types[name].nbytes for name in {*graph.inputs, *graph.outputs})
    arena = min(_arena(each, inside=inside) for each in (graph, in_blocks(graph, find_attention(graph), 1)))
    return Least(_weights(graph), arena, 0 if inside else ends)


def shortages(least: Least, options: Options, room: Room) -> tuple[str, ...]:
    """Why a network cannot fit, however it is compiled; none proves nothing. ``room``: what the board has."""
    (flash, ram), found = room.capacity, []
    if room.board and least.weights > room.flash_limit > 0:
        found.append(
            f"weights take at least {least.weights} bytes, {room.board} has {flash} of flash, {room.flash_limit} for weights"
        )
    if room.board and least.ram > room.all_ram > 0:
        found.append(
            f"tensors take at least {least.ram} bytes, {room.board} has {ram} of RAM, {room.all_ram} for tensors"
        )
    if least.weights > options.flash > 0:
        found.append(
            f"a flash budget of {options.flash} bytes cannot hold weights, which take at least {least.weights}"
        )
    if least.arena > options.ram > 0:
        found.append(f"an arena of {options.ram} bytes cannot hold tensors, which take at least {least.arena}")
    return tuple(found)


def refuse_hopeless(graph: Graph, source: str, options: Options, room: Room | None) -> None:
    """FitError for a network that cannot fit, before any of its layers is scheduled."""
    least = least_of(graph, options)
    reasons = shortages(least, options, room or Room())
    if reasons:
        too_small = (
            room.board if room and room.board and shortages(least, replace(options, flash=0, ram=0), room) else ""
        )
        told = too_small or "its budget"
        floats = bool(arithmetic_of(graph).float_macs)
        raise FitError(
            f"{source} does not fit {told}: {'; '.join(reasons)}",
            where=source,
            hint=remedy(source, least.weights, least.ram, too_small, floats=floats, caller=options.io_in_arena),
            details={"weights_at_least": least.weights, "ram_at_least": least.ram},
        )


def _weights(graph: Graph) -> int:
    used = {name for node in graph.nodes if not registry.get(node.op).view for name in node.inputs}
    found = {array.tobytes(): least_bytes(array) for name, array in graph.consts.items() if name in used}
    return sum(found.values())


def least_bytes(array: Array) -> int:
    """What a constant takes at least. Wide integers are tables of places and factors, which kernels may compute or narrow."""
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2
    if array.size < FEW or wide or array.dtype.kind not in "iuf":
        return 0
    low, high = array.min(), array.max()
    if low == high:
        return 0
    if array.dtype == np.float32 and array.ndim > 1 and np.isfinite(array).all():
        levels = find_levels(array.reshape(len(array), -1))
        if levels is not None:
            return min(array.nbytes, least_bytes(levels.values) + levels.scales.nbytes)
    if array.dtype.kind in "iu" and int(high) - int(low) < 16:
        return array.size // (2 if int(high) - int(low) >= 4 else 4)
    if array.dtype == np.float32 and any(dtypes.keeps(array, half) for half in dtypes.HALF):
        return array.size * 2
    return array.size * (1 if _bytes_do(array) else array.dtype.itemsize)


def _bytes_do(array: Array) -> bool:
    """Whether integers fit into bytes."""
    return array.dtype.kind in "iu" and int(array.max()) - int(array.min()) < 256


def _arena(graph: Graph, *, inside: bool) -> int:
    """The largest set of tensors that are whole at one time, whatever is done."""
    state = sum(array.nbytes for array in graph.state.values())
    outer = set() if inside else {*graph.inputs, *graph.outputs}
    elsewhere = {*graph.consts, *graph.state, *graph.updates.values(), *outer}
    base = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def together(names: Iterable[str]) -> int:
        roots = set()
        for name in names:
            while name in base:
                name = base[name]
            roots.add(name)
        return sum(graph.types[name].nbytes for name in roots - elsewhere if name)

    sides = [together(graph.inputs), sum(graph.types[name].nbytes for name in set(graph.outputs) - outer)]
    parts = _parts(graph)
    readers = _readers(graph)
    for nodes in groups_of(graph):
        made = {name for node in nodes for name in node.outputs}
        read = {name for node in nodes for name in node.inputs if name} - made
        if _whole(graph, nodes, read):
            own = {id(node) for node in nodes}
            kept = {name for name in made if name and (len(nodes) == 1 or readers.get(name, set()) - own)}
            sides += [together(read - parts), together(kept - parts)]
    return state + max(sides, default=0)


def _parts(graph: Graph) -> set[str]:
    """Tensors that may be nothing but places in others."""
    return {name for node in graph.nodes if _places(graph, node) for name in (*node.inputs, *node.outputs)}


def _places(graph: Graph, node: Node) -> bool:
    return not registry.get(node.op).view and not registry.get(node.op).regions and alias_of(graph, node) is not None


def _whole(graph: Graph, nodes: Sequence[Node], read: Iterable[str]) -> bool:
    """Whether a kernel of its own reads and writes whole tensors."""
    first = registry.get(nodes[0].op)
    if first.view or (len(nodes) == 1 and _places(graph, nodes[0])):
        return False
    return bool(first.regions) or not any(
        row_window(graph, nodes, name) for name in read if name not in graph.consts and name in graph.types
    )


def _readers(graph: Graph) -> dict[str, set[int]]:
    """Who reads a tensor: identities of nodes, and of the graph where it keeps or returns it."""
    found: dict[str, set[int]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            found.setdefault(name, set()).add(id(node))
    for name in (*graph.outputs, *graph.updates.values()):
        found.setdefault(name, set()).add(id(graph))
    return found
