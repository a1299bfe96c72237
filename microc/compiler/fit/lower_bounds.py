# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on the flash and RAM of a network, derived from the graph without compiling it, and refusals of what no
compilation can fit.

No memory plan, schedule or algorithm can need less. If a lower bound exceeds a limit, the network is refused at once;
:mod:`microc.compiler.fit.search` would refuse it too, but possibly only after minutes of work. A network whose lower bounds
are within the limits may still not fit.

Flash: kernels store weights unchanged, padded or transformed. They pack weights into four or two bits if there are few distinct
values. Floats that are dequantised integers are stored as integers and scales, and floats that float16 or bfloat16 represents
exactly are stored in 16 bits. Equal constants are stored once.

RAM: a result may overwrite an operand, and a chain of layers that is computed row by row never stores its inner tensors whole.
Therefore the arena must contain the state and, beside it, the largest of these sets: all inputs; all outputs; the operands and
results of a layer that cannot be computed row by row. Attention that is computed in blocks never stores its whole score matrix
(:mod:`microc.transform.attention`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.fit.budget import (
    BoardCapacity,
    advises_quantisation,
    make_misfit_hint,
    storage_for_constants,
    summarise_arithmetic,
)
from microc.compiler.lowering.kernel_selection import find_node_alias, groups_of
from microc.compiler.options import Options
from microc.errors import FitError, UnsupportedError
from microc.graph.ir import Graph, Node
from microc.graph.text import nested_graphs
from microc.isa import FAMILIES
from microc.module import Module
from microc.ops import registry
from microc.ops.lowering import window_of_one_output_row
from microc.ops.matrix.gemm import recover_quantised_weights
from microc.target import Target
from microc.transform.attention import block_attention, find_attention

LITERAL_ELEMENTS = 16
"""Number of elements below which a constant counts as 0 bytes, because kernels may contain it as literals."""


@frozen
class MemoryLowerBound:
    """Lower bounds on the memory of a network in bytes.

    ``weights``: constants in flash. ``arena``: state and tensors in the arena. ``io_bytes_outside_arena``: inputs and
    outputs in buffers of the caller.
    """

    weights: int
    arena: int
    io_bytes_outside_arena: int

    @property
    def ram(self) -> int:
        return self.arena + self.io_bytes_outside_arena


def compute_memory_lower_bound(graph: Graph, options: Options) -> MemoryLowerBound:
    """Compute lower bounds on the memory of a fused graph, which hold for every way to compile it."""
    inside = options.io_in_arena
    ends = sum(graph.types[name].nbytes for name in {*graph.inputs, *graph.outputs})
    arena = min(
        _min_arena_bytes(each, count_io=inside) for each in (graph, block_attention(graph, find_attention(graph), 1))
    )
    return MemoryLowerBound(_min_constants_bytes(graph), arena, 0 if inside else ends)


def prove_shortages(lower_bounds: MemoryLowerBound, options: Options, capacity: BoardCapacity) -> tuple[str, ...]:
    """Return a sentence for each memory limit that a network exceeds however it is compiled. An empty result proves
    nothing.

    ``lower_bounds``: lower bounds on the memory that the network needs. ``capacity``: the memory of the board.
    """
    (flash, ram), found = capacity.board_total, []
    storage = storage_for_constants(options, capacity)
    lower_bounds = replace(lower_bounds, weights=max(lower_bounds.weights - (storage.size if storage else 0), 0))
    if capacity.board and lower_bounds.weights > capacity.flash_limit > 0:
        found.append(
            f"weights take at least {lower_bounds.weights} bytes, {capacity.board} has {flash} of flash, "
            f"{capacity.flash_limit} for weights"
        )
    if capacity.board and lower_bounds.ram > capacity.all_ram > 0:
        found.append(
            f"tensors take at least {lower_bounds.ram} bytes, {capacity.board} has {ram} of RAM, "
            f"{capacity.all_ram} for tensors"
        )
    if lower_bounds.weights > options.flash > 0:
        found.append(
            f"a flash budget of {options.flash} bytes cannot hold weights, which take at least {lower_bounds.weights}"
        )
    if lower_bounds.arena > options.ram > 0:
        found.append(f"an arena of {options.ram} bytes cannot hold tensors, which take at least {lower_bounds.arena}")
    return tuple(found)


def refuse_provably_too_large(graph: Graph, source: str, options: Options, capacity: BoardCapacity | None) -> None:
    """Raise FitError if the lower bounds on the network's memory exceed a limit. No layer has been scheduled at this
    point."""
    least = compute_memory_lower_bound(graph, options)
    reasons = prove_shortages(least, options, capacity or BoardCapacity())
    if reasons:
        too_small_board = (
            capacity.board
            if capacity and capacity.board and prove_shortages(least, replace(options, flash=0, ram=0), capacity)
            else ""
        )
        limiting = too_small_board or "its budget"
        floats = advises_quantisation(summarise_arithmetic(graph), learns=options.learn is not None)
        raise FitError(
            f"{source} does not fit {limiting}: {'; '.join(reasons)}",
            where=source,
            hint=make_misfit_hint(
                source,
                least.weights,
                least.ram,
                too_small_board,
                computes_in_floats=floats,
                io_in_arena=options.io_in_arena,
            ),
            details={"weights_at_least": least.weights, "ram_at_least": least.ram},
        )


def refuse_arrays_above_compiler_limit(module: Module, target: Target) -> None:
    """Raise FitError if a tensor or the arena is larger than the largest array that C compilers for the core
    support."""
    most = FAMILIES[target.isa].array_bytes
    arrays = [(value.nbytes, value.name) for value in module.values.values()]
    arrays += [(module.plan.size, "the arena")] if module.plan else []
    nbytes, name = max(arrays, default=(0, ""))
    if most and nbytes > most:
        raise FitError(
            f"{name}: C compilers for {target.isa} support no array of this size; got {nbytes} bytes, "
            f"expected at most {most}",
            where=module.source or module.name,
            hint="choose a network with smaller layers, or a board with another core (microc boards)",
        )


def refuse_float64(graph: Graph, target: Target) -> None:
    """Raise UnsupportedError for float64 tensors on a core whose C type ``double`` has 32 bits."""
    size = FAMILIES[target.isa].double_bytes
    if size == 8:
        return
    for inner in (graph, *nested_graphs(graph)):
        locations = {name: inner.location_of_input(name) for name in inner.inputs}
        locations |= {name: node.loc for node in inner.nodes for name in (*node.inputs, *node.outputs)}
        for name, loc in locations.items():
            if name and inner.types[name].dtype == "float64":
                raise UnsupportedError(
                    f"{name}: C's double has {size} bytes on {target.cpu}; got float64, expected float32",
                    where=str(loc),
                    hint="cast it to float32 in the model, or choose a board with another core (microc boards)",
                )


def _min_constants_bytes(graph: Graph) -> int:
    """Return the sum of the lower bounds of all constants that kernels read. Equal constants count once."""
    used = {name for node in graph.nodes if not registry.get(node.op).view for name in node.inputs}
    sizes = {array.tobytes(): min_constant_bytes(array) for name, array in graph.consts.items() if name in used}
    return sum(sizes.values())


def min_constant_bytes(array: Array) -> int:
    """Return a lower bound on the bytes of flash that a constant takes.

    Integers of more than 16 bits count as 0 bytes. They are tables of indices and factors, which kernels may compute or
    store in a narrower type.
    """
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2
    if array.size < LITERAL_ELEMENTS or wide or array.dtype.kind not in "iuf":
        return 0
    low, high = array.min(), array.max()
    if low == high:
        return 0  # a literal in the kernel
    if array.dtype == np.float32 and array.ndim > 1 and np.isfinite(array).all():
        levels = recover_quantised_weights(array.reshape(len(array), -1))
        if levels is not None:
            return min(array.nbytes, min_constant_bytes(levels.values) + levels.scales.nbytes)
    if array.dtype.kind in "iu" and int(high) - int(low) < 16:
        return array.size // (2 if int(high) - int(low) >= 4 else 4)  # 4-bit or 2-bit indices
    if array.dtype == np.float32 and any(dtypes.is_exact_in(array, half) for half in dtypes.HALF):
        return array.size * 2
    return array.size * (1 if _spans_byte_range(array) else array.dtype.itemsize)


def _spans_byte_range(array: Array) -> bool:
    """Test whether the largest and the smallest integer of an array differ by less than 256."""
    return array.dtype.kind in "iu" and int(array.max()) - int(array.min()) < 256


def _min_arena_bytes(graph: Graph, *, count_io: bool) -> int:
    """Return a lower bound on the arena: the bytes of the state and of the largest set of tensors that must be whole at
    the same time.

    ``count_io``: inputs and outputs are in the arena.
    """
    state = sum(array.nbytes for array in graph.state.values())
    outer = set() if count_io else {*graph.inputs, *graph.outputs}
    elsewhere = {*graph.consts, *graph.state, *graph.updates.values(), *outer}
    base = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def bytes_of_tensors(names: Iterable[str]) -> int:
        """Return the number of bytes of the named tensors. A view counts as the tensor that it refers to."""
        roots = set()
        for name in names:
            while name in base:
                name = base[name]
            roots.add(name)
        return sum(graph.types[name].nbytes for name in roots - elsewhere if name)

    sides = [bytes_of_tensors(graph.inputs), sum(graph.types[name].nbytes for name in set(graph.outputs) - outer)]
    aliased = _aliased_tensors(graph)
    readers = _tensor_readers(graph)
    for nodes in groups_of(graph):
        made = {name for node in nodes for name in node.outputs}
        read = {name for node in nodes for name in node.inputs if name} - made
        if _needs_whole_tensors(graph, nodes, read):
            own = {id(node) for node in nodes}
            kept = {name for name in made if name and (len(nodes) == 1 or readers.get(name, set()) - own)}
            sides += [bytes_of_tensors(read - aliased), bytes_of_tensors(kept - aliased)]
    return state + max(sides, default=0)


def _aliased_tensors(graph: Graph) -> set[str]:
    """Return the tensors that may be part of another tensor, or may consist of other tensors, without being copied."""
    return {
        name
        for node in graph.nodes
        if _is_computed_by_memory_plan(graph, node)
        for name in (*node.inputs, *node.outputs)
    }


def _is_computed_by_memory_plan(graph: Graph, node: Node) -> bool:
    """Test whether the memory plan alone may compute a node, by placing its tensors (concatenation, slice). Views do
    not count."""
    return (
        not registry.get(node.op).view
        and not registry.get(node.op).regions
        and find_node_alias(graph, node) is not None
    )


def _needs_whole_tensors(graph: Graph, nodes: Sequence[Node], read_values: Iterable[str]) -> bool:
    """Test whether the kernel of a group of nodes needs its tensors whole, because it cannot be computed row by row.

    Views and groups that the memory plan alone computes need no kernel.
    """
    first = registry.get(nodes[0].op)
    if first.view or (len(nodes) == 1 and _is_computed_by_memory_plan(graph, nodes[0])):
        return False
    return bool(first.regions) or not any(
        window_of_one_output_row(graph, nodes, name)
        for name in read_values
        if name not in graph.consts and name in graph.types
    )


def _tensor_readers(graph: Graph) -> dict[str, set[int]]:
    """Return the readers of each tensor: the ids of nodes, and the id of the graph if the tensor is an output or a new
    state."""
    readers: dict[str, set[int]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, set()).add(id(node))
    for name in (*graph.outputs, *graph.updates.values()):
        readers.setdefault(name, set()).add(id(graph))
    return readers
