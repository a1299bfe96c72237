# SPDX-License-Identifier: Apache-2.0
"""Estimate what a network costs on a board without compiling it: :func:`cost`, for searches over networks.

The graph passes are those of a compilation. Then each kernel has the price of its operators and shapes
(:mod:`microc.compiler.price_table`) instead of loops, and the memory planner places the same values as in a compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.base import dtypes
from microc.codegen.c.identifiers import network_name
from microc.codegen.c.resources import library_flash_bytes, min_and_max_flash_without_networks
from microc.compiler import validation
from microc.compiler.fit.budget import io_bytes, list_goals_to_try, region_bytes, with_math_features
from microc.compiler.fit.search import runtime_ram_bytes
from microc.compiler.interaction import convert_flags_in_errors
from microc.compiler.lowering.control_flow import list_groups_in_control_flow
from microc.compiler.lowering.graph_to_module import build_module, kernel_shape_key
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder, KernelGroup
from microc.compiler.lowering.module_builder import ModuleBuilder, c_identifier_of
from microc.compiler.model import model_file_name, read_model, registers_plugins, resolve_model
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import optimise_graph
from microc.compiler.price_table import KernelPrice, price_group, prices_of_core, safe_distances_of_group
from microc.device.boards import load_board
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import UsageError
from microc.graph.ir import Graph, Node
from microc.module import Call, Module, Value
from microc.ops import registry
from microc.ops.lowering import node_macs
from microc.plan.liveness import Overlaps, SafeOffsets, demand_of_module, placement_byte_count
from microc.plan.placement import place_units
from microc.plan.plan import order_calls
from microc.schedule.cost.cost_model import estimate
from microc.target import Board, Target

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


@dataclass(frozen=True)
class LayerCost:
    """Estimated cost of one kernel. ``layer``: its place in the model; ``op``: its operators."""

    layer: str
    op: str
    macs: int
    instructions: int
    cycles: int


@dataclass(frozen=True)
class NetworkCost(Showable):
    """Estimated cost of a network on a board, the result of :func:`microc.cost`.

    ``flash``, ``ram``: bytes that a firmware needs, as :meth:`microc.Program.report` has them, and ``ram_taken`` with the
    stack that the board reserves. ``weights`` and ``code`` are parts of the flash, ``arena`` is a part of the RAM.
    ``board_flash``, ``board_ram``: bytes of the board, 0 if unlimited. ``instructions``, ``cycles``: of one inference.
    ``milliseconds``: None if the board's clock is unknown. ``layers``: one entry for each kernel, in order of execution."""

    board: str
    cpu: str
    flash: int
    ram: int
    ram_taken: int
    weights: int
    code: int
    arena: int
    macs: int
    instructions: int
    cycles: int
    milliseconds: float | None
    board_flash: int
    board_ram: int
    layers: tuple[LayerCost, ...]

    @property
    def fits(self) -> bool:
        """True if flash and RAM of the board suffice, by these estimates."""
        limits = (self.board_flash, self.flash), (self.board_ram, self.ram_taken)
        return all(not available or needed <= available for available, needed in limits)

    def to_data(self) -> dict[str, Any]:
        """Return the estimates as plain data for JSON."""
        return {**asdict(self), "layers": [asdict(layer) for layer in self.layers], "fits": self.fits}

    def document(self) -> Document:
        """Return memory and time as a document, for a notebook."""
        rows = (
            ("fits", "yes" if self.fits else "no"),
            ("flash, bytes", self.flash),
            ("RAM, bytes", self.ram),
            ("instructions", self.instructions),
            ("milliseconds", "unknown" if self.milliseconds is None else f"{self.milliseconds:.3g}"),
        )
        return document(facts(rows), title=f"estimated cost on {self.board}")


@convert_flags_in_errors
@registers_plugins
def cost(model: Any, board: str | Path | Board, **options: Unpack[CompileOptions]) -> NetworkCost:
    """Estimate flash, RAM, instructions, cycles and milliseconds of a network on a board, without compiling it.

    Small networks take a tenth of a second, so that searches over networks can ask for thousands. ``model``: anything that
    :func:`microc.compile` accepts. ``board``: the name of a board, or the path of a board file. ``options``: keywords of
    :class:`microc.CompileOptions`.

    The figures estimate those of ``microc.compile(model, board=board).report()``, which are estimates, too
    (docs/measuring.md has the errors). They leave out what a compilation finds by search: layers computed row by row to save
    RAM, smaller code to save flash, workspaces reduced to fit, other orders of channels, and weights packed in 4 or 2 bits.
    Operators without a price are forecast from their loops as they are written, which the vector instructions of a core may
    beat several times. Raises UsageError for a core without prices, and for options that change these things
    (:data:`UNPRICED`); raises the errors of reading a model.
    """
    chosen = make_options(**options)
    network = PricedNetwork(resolve_model(model, chosen), chosen)
    return network.cost_on(board if isinstance(board, Board) else load_board(validation.as_path("a board", board)))


UNPRICED = (
    "bounds", "external", "tuned", "plan", "optimize", "flash", "ram", "threads", "cores", "code_in_ram", "relocatable",
    "math", "learn", "dump",
)  # fmt: skip
"""Options that change a network in ways that no price describes."""


class PricedNetwork:
    """A network whose cost can be estimated on several boards. Its graph passes run once.

    ``source``: the path of a model, or a graph as it was read."""

    def __init__(self, source: Path | Graph, options: Options) -> None:
        defaults = make_options()
        for name in UNPRICED:
            if getattr(options, name) != getattr(defaults, name):
                raise UsageError(
                    f"cost: the option {name} has no prices; got {getattr(options, name)!r}, expected its default",
                    hint=f"leave out {name}, or compile the network: its report has estimates",
                )
        self.options, self.source = options, model_file_name(source)
        read = read_model(source, options)
        self.graph = optimise_graph(replace(read, name=network_name(read.name)), options)
        self._by_core: dict[Target, _CoreCost] = {}

    def cost_on(self, board: Board) -> NetworkCost:
        """Estimate the cost on a board. UsageError if there are no prices for its core."""
        target = with_math_features(board.target, self.options)
        core = replace(target, flash_wait=0.0)
        if core not in self._by_core:
            self._by_core[core] = _CoreCost(self.graph, self.source, core, io_in_arena=self.options.io_in_arena)
        return self._by_core[core].on_board(board, self.options.protocol)


class _CoreCost:
    """Cost of a network on a core. ``io_in_arena``: inputs and outputs are in the arena."""

    def __init__(self, graph: Graph, source: str, target: Target, *, io_in_arena: bool) -> None:
        self.graph, self.target, self.io_in_arena = graph, target, io_in_arena
        self.prices: dict[tuple[str, ...], KernelPrice] = {}
        self.nodes: dict[tuple[str, ...], tuple[Node, ...]] = {}
        self.constants: dict[tuple[int, str], float] = {}
        self.code: dict[object, float] = {}
        self.goal = list_goals_to_try(graph, make_options(), target)[0]
        builder = KernelBuilder(Configuration(graph, self.goal), target)
        self.module = build_module(builder, source, add_group=self._add_group)
        functions = {kernel.name: kernel.func for kernel in self.module.kernels}
        for call in self.module.calls:
            if call.kernel:  # a copy, which has loops
                copying = estimate(functions[call.kernel], target)
                self.code[call.kernel] = copying.code_bytes
                self.prices[call.writes] = KernelPrice(copying.instructions, copying.cycles, code=copying.code_bytes)

    def _add_group(self, builder: ModuleBuilder, nodes: tuple[Node, ...], state: str) -> None:
        """Add the call of a group of nodes to the module, with a price in place of a kernel.

        ``state``: name of a state that the group partly updates in place; empty if there is none."""
        graph, results = builder.graph, nodes[-1].outputs
        computed = {value for node in nodes for value in node.outputs}
        operands = dict.fromkeys(value for node in nodes for value in node.inputs if value and value not in computed)
        reads = tuple(builder.name_of(value) for value in operands if value not in graph.consts)
        writes = (
            (builder.name_of(state),)
            if state
            else tuple(builder.declare_value(value, "intermediate") for value in results if value)
        )
        is_flow = bool(registry.get(nodes[0].op).regions)
        price, inside = KernelPrice(0.0, 0.0), 0
        for inner, members, iterations in (
            list_groups_in_control_flow(graph, nodes[0]) if is_flow else [(graph, nodes, 1)]
        ):
            own = price_group(inner, members, self.target, self.goal)
            price = price.plus(own, iterations)
            inside += sum(_bytes_of(inner, value) for value in members[-1].outputs if value)
            constants = {value for node in members for value in node.inputs if value in inner.consts}
            self.constants.update({(id(inner), name): own.stored * inner.consts[name].nbytes for name in constants})
        workspace = round(price.workspace) + (inside if is_flow else 0)  # values inside of a loop are its workspace
        scratch = (builder.make_internal_name(f"{c_identifier_of(results[0])}_workspace"),) if workspace else ()
        builder.values.update({name: Value(name, (workspace,), "int8", "workspace") for name in scratch})
        self.prices[writes], self.nodes[writes] = price, nodes
        self.code[kernel_shape_key(graph, nodes)] = price.code
        call = Call(
            "", (*reads, *writes, *scratch), reads, writes, scratch, str(nodes[0].loc), "+".join(n.op for n in nodes),
            sum(node_macs(graph, node) for node in nodes),
        )  # fmt: skip
        builder.add_call(call, KernelGroup(nodes))

    @cached_property
    def arena(self) -> int:
        """Bytes of the arena, as the planner places the values of the network."""
        overlaps = _OperatorOverlaps(self.module, self.graph, self.nodes)
        module = order_calls(self.module, overlaps, io_in_arena=self.io_in_arena)
        _, placement = place_units(demand_of_module(module, overlaps, io_in_arena=self.io_in_arena))
        return -(-placement_byte_count(placement) // 4) * 4

    def on_board(self, board: Board, protocol: str) -> NetworkCost:
        """Return the cost on a board with this core."""
        table, calls = prices_of_core(self.target.cpu), self.module.calls
        prices = [self.prices[call.writes] for call in calls]
        wait = board.target.flash_wait
        layers = tuple(
            LayerCost(
                call.layer, call.op, call.macs, round(price.instructions), round(price.cycles + wait * price.reads)
            )
            for call, price in zip(calls, prices, strict=True)
        )
        cycles = sum(layer.cycles for layer in layers)
        least, most = min_and_max_flash_without_networks(board, protocol)
        code = sum(self.code.values())
        weights = round(sum(self.constants.values())) + self.module.const_bytes
        libraries = library_flash_bytes(self.target.cpu, {name for price in prices for name in price.libraries})
        total_code = round(
            most + libraries + table.code_margin * code if region_bytes(board, "flash") else least + code
        )
        static_ram = (
            self.arena + (0 if self.io_in_arena else io_bytes(self.module)) + runtime_ram_bytes(board, protocol)
        )
        return NetworkCost(
            board.name,
            self.target.cpu,
            flash=weights + total_code,
            ram=static_ram + table.stack,
            ram_taken=static_ram + max(table.stack, board.raw.get("link", {}).get("stack_bytes", 0)),
            weights=weights,
            code=total_code,
            arena=self.arena,
            macs=self.module.macs,
            instructions=sum(layer.instructions for layer in layers),
            cycles=cycles,
            milliseconds=1000 * cycles / clock if (clock := board.raw.get("clock_hz")) else None,
            board_flash=region_bytes(board, "flash"),
            board_ram=region_bytes(board, "ram"),
            layers=layers,
        )


def _bytes_of(graph: Graph, value: str) -> int:
    """Return the bytes of a graph's value."""
    type_ = graph.types[value]
    return type_.size * dtypes.nbytes(type_.dtype)


class _OperatorOverlaps(Overlaps):
    """Allowed distances between operands and results that follow from operators, without their loops.

    ``nodes``: nodes of each call, by the values that the call writes."""

    def __init__(self, module: Module, graph: Graph, nodes: Mapping[tuple[str, ...], Sequence[Node]]) -> None:
        super().__init__(module)
        self.graph, self.nodes = graph, nodes

    def safe_offsets(self, call: Call, old: str, new: str) -> SafeOffsets | None:
        if call.kernel:
            return super().safe_offsets(call, old, new)
        if old in call.workspace or new in call.workspace or not call.reads:
            return None
        sizes = self.module.values[old].nbytes, self.module.values[new].nbytes
        nodes = self.nodes[call.writes]
        is_data = self.module.base_and_offset(call.reads[0]) == (old, 0)
        if not registry.get(nodes[0].op).elementwise and not is_data:
            return None
        distances = safe_distances_of_group(self.graph, nodes, *sizes)
        return SafeOffsets(*sizes, (distances,)) if len(distances) else None
