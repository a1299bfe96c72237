# SPDX-License-Identifier: Apache-2.0
"""Striping: chains of layers are computed row by row, so that the arena of a network is within its limit.

A chain is a sequence of layers, each of which reads the result of the one before. Its kernel stores only a window of
rows of each inner tensor. :class:`ChainLowering` lowers a chain to one kernel. :class:`ChainEstimator` estimates its
memory and additional work. :class:`StripeSearch` covers the calls that need too much memory by the chains with the
least additional work.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.compiler.cache import ChoiceFile
from microc.compiler.lowering.kernel_selection import groups_of, schedule_group
from microc.errors import FitError, InternalError
from microc.graph.ir import Graph, Node
from microc.module import Module, Streamed
from microc.ops.lowering import (
    LoweredGroup,
    Param,
    build_row_group,
    node_macs,
    other_inputs_read_by_row,
    window_of_one_output_row,
)
from microc.plan.liveness import (
    Overlaps,
    SafeOffsets,
    compute_lifetimes,
    demand_of_module,
    least_bytes_by_call,
    safe_distances,
)
from microc.plan.placement import MAX_CHAINS, MAX_LOWERED_CHAINS
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.striped_layers import (
    Layer,
    LayerGeometry,
    Window,
    build_striped_function,
    choose_blocks,
    compute_row_access_times,
)
from microc.tir.verify import verify

# ---- Lowering: a chain of groups (fused nodes of the graph) becomes one kernel that works row by row
# (:mod:`microc.tir.striped_layers`).

Group = tuple[Node, ...]


@frozen
class Chain:
    """A chain: groups of nodes, by name, that one kernel computes row by row.

    The first group reads rows of the value ``data``. Every other group reads the result of the group before it.
    ``height``: maximum number of rows that a group computes at a time.
    """

    data: str
    groups: tuple[str, ...]
    height: int = 1


@frozen
class LoweredChain:
    """The kernel of a chain, before it is registered under a name.

    ``params``: the values or constants of its parameters, without the result and the workspaces. ``schedules``: the
    schedules of the layers. ``price``: the additional work of the chain.
    """

    chain: Chain
    func: ir.PrimFunc
    params: tuple[Param, ...]
    result: str
    schedules: tuple[Schedule, ...]
    price: Streamed


@frozen
class _LoweredLayerRows:
    """A layer of a chain, lowered for a block of rows (the rows that it computes at a time)."""

    group: LoweredGroup
    schedule: Schedule
    layer: Layer


def result_name_of_group(group: Group) -> str:
    """Return the name of the value that a group of nodes computes."""
    return group[-1].outputs[0]


class ChainLowering:
    """Lowers chains of a graph to kernels that work row by row. A chain that was lowered before is not lowered
    again. ``choices``: as in :func:`.kernel_selection.select_group_schedule`."""

    def __init__(self, graph: Graph, target: Target, goal: Goal, choices: ChoiceFile | None = None) -> None:
        self.graph, self.target, self.goal, self.choices = graph, target, goal, choices
        self.groups = {nodes[0].group: nodes for nodes in groups_of(graph) if nodes[0].group}
        self._lowered_chains: dict[Chain, LoweredChain] = {}
        self._rows: dict[tuple[str, LayerGeometry], _LoweredLayerRows] = {}

    def list_row_inputs(self, chain: Chain) -> tuple[str, ...]:
        """Return the value that each group of a chain reads row by row."""
        return chain.data, *(result_name_of_group(self.groups[name]) for name in chain.groups[:-1])

    def list_layer_geometries(self, chain: Chain) -> tuple[LayerGeometry, ...]:
        """Return the geometry of each layer of a chain: the rows that its window stores and the rows that it computes
        at a time."""
        pairs = zip(chain.groups, self.list_row_inputs(chain), strict=True)
        return choose_blocks(
            [_unblocked_layer_geometry(self.graph, self.groups[name], data) for name, data in pairs], chain.height
        )

    def compute_additional_work(self, chain: Chain) -> Streamed:
        """Return the additional work of a chain: multiply-accumulates for rows outside of the image, and bytes copied
        by windows."""
        extra = moved = 0
        graph, shapes = self.graph, self.list_layer_geometries(chain)
        for k, (name, data, shape) in enumerate(zip(chain.groups, self.list_row_inputs(chain), shapes, strict=True)):
            if k or shape.window.padded:
                row = shape.window.width * dtypes.nbytes(graph.types[data].dtype)
                iterations = shape.computed_row_count // shape.block
                moved += row * (
                    iterations * (shape.window_rows - shape.step) + (0 if k else graph.types[data].shape[1])
                )
            macs = sum(node_macs(graph, node) for node in self.groups[name])
            extra += macs * (shape.computed_row_count - shape.rows) // shape.rows
        return Streamed(tuple(str(self.groups[name][0].loc) for name in chain.groups), extra, moved)

    def lower(self, chain: Chain) -> LoweredChain:
        """Return the kernel of a chain. A chain is lowered at the first call only."""
        if chain not in self._lowered_chains:
            self._lowered_chains[chain] = self._lower_chain(chain)
        return self._lowered_chains[chain]

    def _lower_chain(self, chain: Chain) -> LoweredChain:
        """Lower a chain to one kernel: schedule each layer for a block of rows, and join the layers."""
        triples = zip(chain.groups, self.list_row_inputs(chain), self.list_layer_geometries(chain), strict=True)
        layers = [self._lower_layer_rows(name, data, shape) for name, data, shape in triples]
        height = self.graph.types[chain.data].shape[1]
        streamed = build_striped_function(
            "stream", [rows.layer for rows in layers], height, word_copies=self.target.has("unaligned")
        )
        params = tuple(_make_kernel_param(layers[layer], serves) for layer, serves in streamed.origins[:-1])
        result, schedules = result_name_of_group(self.groups[chain.groups[-1]]), tuple(rows.schedule for rows in layers)
        return LoweredChain(chain, streamed.func, params, result, schedules, self.compute_additional_work(chain))

    def make_scheduling_tasks(self, chain: Chain) -> list[tuple[Graph, Group, Goal]]:
        """Return the scheduling task (:meth:`make_scheduling_task`) of each group of a chain, in order."""
        triples = zip(chain.groups, self.list_row_inputs(chain), self.list_layer_geometries(chain), strict=True)
        return [self.make_scheduling_task(name, data, shape) for name, data, shape in triples]

    def make_scheduling_task(
        self, group_name: str, row_input: str, geometry: LayerGeometry
    ) -> tuple[Graph, Group, Goal]:
        """Return the task to schedule a group for a block of rows: a graph that contains only the group, the nodes of
        the group, and the optimisation goal.

        ``group_name``: the group. ``row_input``: the value that the group reads row by row.
        """
        window = window_of_one_output_row(self.graph, self.groups[group_name], row_input)
        assert window is not None
        alone, nodes = build_row_group(self.graph, self.groups[group_name], row_input, window, geometry.block)
        blocks = geometry.computed_row_count // geometry.block
        # The estimate counts the instructions of one block. An inference executes `blocks` of them, but stores their code once.
        return alone, nodes, replace(self.goal, price=self.goal.price / blocks)

    def _lower_layer_rows(self, group_name: str, row_input: str, geometry: LayerGeometry) -> _LoweredLayerRows:
        """Schedule and lower a group for a block of rows. ``row_input``: the value that the group reads row by row."""
        if (group_name, geometry) in self._rows:
            return self._rows[group_name, geometry]
        graph, group = self.graph, self.groups[group_name]
        alone, nodes, goal = self.make_scheduling_task(group_name, row_input, geometry)
        lowered, choice = schedule_group(alone, nodes, self.target, goal, "rows", choices=self.choices)
        func = choice.func
        if not choice.verified:
            verify(
                func, tables=lowered.tables
            )  # verified here, because the joined function does not show which constants are tables
        bound = dict(zip((p.value for p in lowered.params if p.array is None), func.params, strict=False))
        by_row = tuple(bound[v] for v in other_inputs_read_by_row(graph, group, row_input))
        layer = Layer(geometry, func, bound[row_input], func.params[len(lowered.params)], by_row)
        self._rows[group_name, geometry] = _LoweredLayerRows(lowered, choice.schedule, layer)
        return self._rows[group_name, geometry]


def _unblocked_layer_geometry(graph: Graph, group: Group, row_input: str) -> LayerGeometry:
    """Return the geometry of a group that reads ``row_input`` row by row, before blocks of rows are chosen.

    Raises InternalError if the group cannot be computed row by row.
    """
    reads = window_of_one_output_row(graph, group, row_input)
    if reads is None:
        raise InternalError(
            "striping: got a group of nodes that cannot be computed row by row", where=str(group[0].loc)
        )
    _, _, width, channels = graph.types[row_input].shape
    rows = reads.rows
    window = Window(rows.span, rows.stride, width * channels, rows.before, rows.after, reads.pad_value or 0)
    return LayerGeometry(
        window,
        graph.types[result_name_of_group(group)].shape[1],
        whole=bool(other_inputs_read_by_row(graph, group, row_input)),
    )


def _make_kernel_param(layer_rows: _LoweredLayerRows, parameter: ir.Buffer) -> Param:
    """Return the value or the packed constant that a parameter of a layer's kernel refers to.

    A constant is packed in the layout that the layer's schedule requires.
    """
    position = layer_rows.layer.func.params.index(parameter)
    param = layer_rows.group.params[position]
    if param.array is None:
        return param
    return Param(
        param.role, param.value, layer_rows.schedule.packed(layer_rows.group.func.params[position], param.array)
    )


# ---- Candidates: groups that can be computed row by row, and the memory and additional work of chains of them.

MACS_PER_MOVED_BYTE = 8
"""Work to copy a byte of a window, in multiply-accumulates. The byte is copied into the window, and copied again to the
layout that the kernel reads."""


@frozen
class LayerRun:
    """A maximal sequence of layers that can be computed row by row. Chains are contiguous parts of it.

    ``groups``: the names of the groups of nodes, one for each layer. Each group except the first is the only reader of
    the result of the group before it. ``sources``: the name of the value that each group reads row by row.
    """

    groups: tuple[str, ...]
    sources: tuple[str, ...]

    def chain(self, start: int, stop: int, height: int) -> Chain:
        """Return the chain of the groups from ``start`` to ``stop`` (exclusive), computed ``height`` rows at a time."""
        return Chain(self.sources[start], self.groups[start:stop], height)


def find_layer_runs(graph: Graph, groups: Mapping[str, Group]) -> tuple[LayerRun, ...]:
    """Find the longest sequences of at least two groups that can be computed row by row. A group is in at most one
    sequence."""
    readers = {name: {node.group for node in nodes} for name, nodes in graph.consumers().items()}
    kept = {*graph.outputs, *graph.updates.values()}
    runs: list[LayerRun] = []
    used: set[str] = set()
    for name, group in groups.items():
        data = next((v for v in _variable_inputs(graph, group) if window_of_one_output_row(graph, group, v)), None)
        if name in used or data is None:
            continue
        run = LayerRun((name,), (data,))
        while True:
            result = result_name_of_group(groups[run.groups[-1]])
            after = next(iter(readers.get(result, ())), "")
            alone = result not in kept and len(readers.get(result, ())) == 1
            if (
                not alone
                or after not in groups
                or after in used
                or not window_of_one_output_row(graph, groups[after], result)
            ):
                break
            run = LayerRun((*run.groups, after), (*run.sources, result))
        used |= set(run.groups)
        runs.append(run)
    return tuple(run for run in runs if len(run.groups) > 1)


def _variable_inputs(graph: Graph, group: Group) -> list[str]:
    """Return the values that a group reads, without constants and without results of its own nodes."""
    made = {name for node in group for name in node.outputs}
    return [v for node in group for v in node.inputs if v and v not in made and v not in graph.consts]


@frozen
class ChainCandidate:
    """A chain with an estimate of its memory and its additional work.

    ``needed_bytes``: bytes of its kernel and of all other tensors that are live while it runs. ``additional_macs``: its
    additional work in multiply-accumulates. ``exact``: ``needed_bytes`` includes the scratch of the kernel, not only
    its windows.
    """

    chain: Chain
    needed_bytes: int
    additional_macs: int
    exact: bool = False


class ChainEstimator:
    """Estimates the memory and the additional work of chains.

    ``module``: the network without chains, with its calls in their final order.
    """

    def __init__(self, chain_lowering: ChainLowering, module: Module, *, io_in_arena: bool) -> None:
        self.chain_lowering, self.module = chain_lowering, module
        self.graph, self.groups = chain_lowering.graph, chain_lowering.groups
        self.alive = compute_lifetimes(module, io_in_arena=io_in_arena)
        wanted = demand_of_module(module, Overlaps(module), io_in_arena=io_in_arena)
        self.needs = least_bytes_by_call(wanted, len(module.calls))[1:]
        self.names = {v.label: v.name for v in module.values.values() if v.storage not in ("const", "workspace")}
        writer = {name: time for time, call in enumerate(module.calls) for name in call.writes}
        times = {
            name: writer.get(self.names.get(result_name_of_group(group), "")) for name, group in self.groups.items()
        }
        self.times = {name: time for name, time in times.items() if time is not None}

    def estimate(self, chain: Chain) -> ChainCandidate:
        """Estimate the memory and the additional work of a chain. The scratch of its kernel is not included."""
        shapes = self.chain_lowering.list_layer_geometries(chain)
        windows = [
            shape.window_rows * shape.window.width * self._element_bytes(data)
            for shape, data in zip(shapes, self.chain_lowering.list_row_inputs(chain), strict=True)
        ]
        if not shapes[0].window.padded:
            del windows[0]
        need = (
            self._count_live_bytes_during(chain)
            - self._overwritable_source_bytes(chain, shapes)
            + sum(map(_round_up_to_words, windows))
        )
        price = self.chain_lowering.compute_additional_work(chain)
        return ChainCandidate(chain, need, price.extra_macs + MACS_PER_MOVED_BYTE * price.moved)

    def add_kernel_scratch(self, estimate: ChainCandidate) -> ChainCandidate:
        """Add the scratch memory of the kernel to the estimate of a chain. The chain is lowered for this, because the
        size of the scratch is known only after lowering."""
        shapes, func = (
            self.chain_lowering.list_layer_geometries(estimate.chain),
            self.chain_lowering.lower(estimate.chain).func,
        )
        scratch = [p for p in func.params if p.scope == "workspace"][len(shapes) - (not shapes[0].window.padded) :]
        return replace(
            estimate,
            needed_bytes=estimate.needed_bytes + sum(_round_up_to_words(p.nbytes) for p in scratch),
            exact=True,
        )

    def describe_chain(self, chain: Chain) -> str:
        """Describe a chain for messages by its first and its last layer."""
        return f"{self.groups[chain.groups[0]][0].loc} to {self.groups[chain.groups[-1]][0].loc}, row by row"

    def _element_bytes(self, value: str) -> int:
        """Return the number of bytes of an element of a value."""
        kind = self.graph.types[value]
        return kind.nbytes // kind.size

    def _storage_tensor(self, value: str) -> str:
        """Return the tensor in which a value is stored: its own tensor, or the tensor that contains it."""
        return self.module.base_and_offset(self.names[value])[0]

    def _count_live_bytes_during(self, chain: Chain) -> int:
        """Return the number of bytes of all tensors that are live while a chain runs, including its source and its
        result."""
        now = self.times[chain.groups[-1]]
        inner = {self._storage_tensor(result_name_of_group(self.groups[name])) for name in chain.groups[:-1]}
        late = {
            self._storage_tensor(v) for name in chain.groups for v in _variable_inputs(self.graph, self.groups[name])
        }
        here = {
            name
            for name, (first, last) in self.alive.items()
            if first <= now and (last >= now or name in late) and name not in inner
        }
        values = [self.module.values[name] for name in here]
        return sum(_round_up_to_words(v.nbytes) for v in values if v.storage != "workspace")

    def _overwritable_source_bytes(self, chain: Chain, geometries: tuple[LayerGeometry, ...]) -> int:
        """Return the number of bytes of the input of a chain that the result of the chain may overwrite, because the
        chain no longer reads these rows."""
        source, result = (
            self._storage_tensor(chain.data),
            self._storage_tensor(result_name_of_group(self.groups[chain.groups[-1]])),
        )
        last = max(self.times[name] for name in chain.groups)
        sizes = [self.module.values[name].nbytes for name in (source, result)]
        whole = [self.graph.types[v].nbytes for v in (chain.data, result_name_of_group(self.groups[chain.groups[-1]]))]
        if sizes != whole or any(name not in self.alive for name in (source, result)) or self.alive[source][1] > last:
            return 0
        pairs = zip(chain.groups, self.chain_lowering.list_row_inputs(chain), strict=True)
        beside = {
            k
            for k, (name, v) in enumerate(pairs)
            if chain.data in other_inputs_read_by_row(self.graph, self.groups[name], v)
        }
        read, written = compute_row_access_times(geometries, self.graph.types[chain.data].shape[1], beside)
        source_bytes, result_bytes = sizes
        last_touch = np.repeat(np.array(read), source_bytes // len(read))
        first_write = np.repeat(np.array(written), result_bytes // len(written))
        return SafeOffsets(source_bytes, result_bytes, safe_distances(first_write, last_touch)).max_shared_bytes


def _round_up_to_words(nbytes: int) -> int:
    """Round a number of bytes up to a multiple of four, the size of a word."""
    return -(-nbytes // 4) * 4


# ---- Search: cover the calls that need too much memory by the chains with the least additional work.

MAX_CHAIN_LAYERS = 8
"""Maximum number of layers in a chain. Every additional layer needs a window, and usually only one or two tensors are
too large."""
HEIGHTS = (1, 2, 4, 8)  # numbers of rows at a time that are tried: with more, windows copy fewer rows but store more
UNAFFORDABLE = sys.maxsize
"""Need of a chain that is not lowered, because the search has already lowered the maximum number of chains."""
PEAK_STEP_DIVISOR = 64
"""Divisor that gives the step in the search for the smallest arena: each solution must save at least this fraction of
it."""


class StripeSearch:
    """Search for the chains with the least additional work that cover all calls that need too much memory.

    ``module``: the network without chains, with its calls in their final order.
    """

    def __init__(self, chain_lowering: ChainLowering, module: Module, *, io_in_arena: bool) -> None:
        self.estimator = ChainEstimator(chain_lowering, module, io_in_arena=io_in_arena)
        self.runs = find_layer_runs(chain_lowering.graph, chain_lowering.groups)
        self.known: dict[Chain, ChainCandidate] = {}
        self.lowered = 0

    def find_chains_within_limit(self, limit_bytes: int) -> tuple[ChainCandidate, ...] | None:
        """Return chains (layers that one kernel computes row by row) with which no call needs more than ``limit_bytes``
        bytes of memory; None if there are no such chains.

        The numbers of bytes that the returned chains need are exact.
        """
        while True:
            chains = self._find_least_work_chains(limit_bytes)
            rough = [c for c in chains or () if not c.exact]
            if not rough:
                return chains
            for candidate in rough:
                # Lowering a chain takes long, so at most MAX_LOWERED_CHAINS chains are lowered to get an exact need.
                affordable, self.lowered = self.lowered < MAX_LOWERED_CHAINS, self.lowered + 1
                exact = (
                    self.estimator.add_kernel_scratch(candidate)
                    if affordable
                    else replace(candidate, needed_bytes=UNAFFORDABLE, exact=True)
                )
                self.known[candidate.chain] = exact

    def find_chains_with_smallest_peak(self) -> tuple[ChainCandidate, ...]:
        """Return the chains that minimise the largest number of bytes that any call needs.

        The search stops when the number cannot be reduced by a fraction of 1 / :data:`PEAK_STEP_DIVISOR`.
        """
        chains: tuple[ChainCandidate, ...] = ()
        while True:
            peak = self.peak_bytes(chains)
            smaller = self.find_chains_within_limit(peak - max(peak // PEAK_STEP_DIVISOR, 4))
            if smaller is None:
                return chains
            chains = smaller

    def peak_bytes(self, chains: tuple[ChainCandidate, ...]) -> int:
        """Return the largest number of bytes that any call or chain needs if the given chains are used."""
        return max([*self._needed_bytes_outside_chains(chains).values(), *(c.needed_bytes for c in chains)], default=0)

    def find_layer_with_largest_need(self, chains: tuple[ChainCandidate, ...]) -> str:
        """Return the name of the layer or chain that needs the most memory if the given chains are used."""
        peak = self.peak_bytes(chains)
        for time, need in self._needed_bytes_outside_chains(chains).items():
            if need == peak:
                return self.estimator.module.calls[time].layer
        return next(self.estimator.describe_chain(c.chain) for c in chains if c.needed_bytes == peak)

    def _needed_bytes_outside_chains(self, chains: tuple[ChainCandidate, ...]) -> dict[int, int]:
        """Return the number of bytes that each call outside of the given chains needs, by the index of the call."""
        times = self.estimator.times
        covered = {times[name] for c in chains for name in c.chain.groups}
        return {time: need for time, need in enumerate(self.estimator.needs) if time not in covered}

    def _find_least_work_chains(self, limit_bytes: int) -> tuple[ChainCandidate, ...] | None:
        """Return the chains with the least work that cover all calls that need more than ``limit_bytes`` bytes; None if
        impossible."""
        chosen: list[ChainCandidate] = []
        large = {time for time, need in enumerate(self.estimator.needs) if need > limit_bytes}
        for run in self.runs:
            times = [self.estimator.times[name] for name in run.groups]
            chains = self._choose_chains_in_run(run, [time in large for time in times], limit_bytes)
            if chains is None:
                return None
            chosen += chains
            large -= set(times)
        return None if large else tuple(chosen)

    def _choose_chains_in_run(
        self, run: LayerRun, is_large: list[bool], limit_bytes: int
    ) -> list[ChainCandidate] | None:
        """Return the chains in a run of layers that cover all large groups with the least additional work; None if
        impossible.

        ``is_large``: for each group of the run, whether its call needs more than ``limit_bytes`` bytes. The algorithm
        is dynamic programming over the ends of chains.
        """
        best: list[tuple[int, list[ChainCandidate]] | None] = [(0, [])]
        for stop in range(1, len(run.groups) + 1):
            cheapest = best[stop - 1] if not is_large[stop - 1] else None
            for start in range(max(0, stop - MAX_CHAIN_LAYERS), stop - 1):
                prefix = best[start]
                if prefix is None or not any(is_large[start:stop]):
                    continue
                for candidate in self._list_chains_within_limit(run, start, stop, limit_bytes):
                    work = prefix[0] + candidate.additional_macs
                    if cheapest is None or work < cheapest[0]:
                        cheapest = work, [*prefix[1], candidate]
            best.append(cheapest)
        return best[-1][1] if best[-1] is not None else None

    def _list_chains_within_limit(self, run: LayerRun, start: int, stop: int, limit_bytes: int) -> list[ChainCandidate]:
        """Return the chains of the groups ``start`` to ``stop`` (exclusive) of a run that need at most ``limit_bytes``
        bytes.

        There is at most one chain for each height (number of rows computed at a time).
        """
        chains = [run.chain(start, stop, height) for height in HEIGHTS]
        for chain in chains:
            if chain not in self.known and len(self.known) < MAX_CHAINS:
                self.known[chain] = self.estimator.estimate(chain)
        return [
            candidate
            for chain in chains
            if (candidate := self.known.get(chain)) is not None and candidate.needed_bytes <= limit_bytes
        ]


def make_ram_error(arena_limit: int, smallest_module: Module, search: StripeSearch) -> FitError:
    """Create the FitError for an arena limit that is smaller than the arena of every memory plan.

    ``arena_limit``: in bytes. ``smallest_module``: the planned module with the smallest arena found.
    """
    closest = search.find_chains_with_smallest_peak()
    assert smallest_module.plan is not None
    ends = max(smallest_module.values[name].nbytes for name in (*smallest_module.inputs, *smallest_module.outputs))
    more = f"raise it to --ram {smallest_module.plan.main_arena_size}"
    apart = f"move inputs and outputs (one has {ends} bytes) out of the arena with --io caller, "
    return FitError(
        f"an arena of {arena_limit} bytes cannot hold the network; "
        f"the smallest found takes {smallest_module.plan.main_arena_size}",
        where=smallest_module.source or smallest_module.name,
        hint=f"{more}, {apart if smallest_module.plan.io_in_arena and 2 * ends > arena_limit else ''}or shrink the "
        f"layer that needs {search.peak_bytes(closest)} bytes: {search.find_layer_with_largest_need(closest)}",
    )
