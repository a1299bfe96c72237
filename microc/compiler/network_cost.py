# SPDX-License-Identifier: Apache-2.0
"""The cost of a network by prices of kernels instead of their loops: the table of prices, and :func:`cost`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from microc.base import dtypes
from microc.base.immutable import frozen
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
from microc.device.boards import load_board
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import UsageError, known_names_hint
from microc.graph.ir import Graph, Node
from microc.module import Call, Module, Value
from microc.ops import registry
from microc.ops.lowering import lower_group, node_macs
from microc.plan.liveness import Overlaps, SafeOffsets, demand_of_module, placement_byte_count
from microc.plan.placement import place_units
from microc.plan.plan import order_calls
from microc.schedule.cost.cost_model import estimate
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.rules.rule import product_multiples
from microc.target import WORD, Board, Goal, Target

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


# ---- Work: the kind of a kernel, and quantities that follow from its shapes.
#
# The *work* of a kernel is its kind (``window int8``: a convolution of bytes) and quantities that follow from
# shapes alone, such as its multiply-accumulates. ``prices.json`` has for each core and each kind the
# instructions, cycles and bytes that a unit of each quantity takes. ``benchmarks/maintain/prices.py`` derives
# these prices from the cost model's estimates of sample kernels.

VECTOR_BYTES = 16
"""Bytes of an MVE vector, in which schedules sum products: a partial vector takes as long as a full one."""
LANES = 4
"""Numbers of 32 bits in an MVE vector."""
FUSED = "+"
"""Prefix of the kind of an operator that is fused into a kernel: its price adds to that of the kernel."""
_INCLUDED = {"int8": "requantize", "int16": "requantize"}
"""Operator behind the sums of a product, by dtype of the data, whose work is part of the product's price."""


class Work(NamedTuple):
    """Work of a kernel, or of an operator that is fused into a kernel.

    ``kind``: operator, or form of a product, and dtype of the data. ``quantities``: of a product the multiply-accumulates,
    the same in words and in vectors along the sums and in lanes along the channels, the results, the operands that it
    unpacks, and the rows; of any other operator the elements that it visits and its results. ``scratch``: bytes of the row
    of operands, or of the plane, that a product unpacks at a time."""

    kind: str
    quantities: tuple[float, ...]
    scratch: float = 0.0


def work_of_group(graph: Graph, nodes: Sequence[Node]) -> tuple[Work, ...]:
    """Return the work of the nodes that become one kernel: that of the first, then that of each fused operator."""
    first, *rest = (_work_of_node(graph, node) for node in nodes)
    is_product = len(first.quantities) > 2
    if is_product and len(nodes) > 1 and nodes[1].op == _INCLUDED.get(first.kind.split()[-1]):
        rest = rest[1:]
    results = graph.types[nodes[-1].outputs[0]].size
    return first, *(Work(FUSED + work.kind, (results, results)) for work in rest)


def _work_of_node(graph: Graph, node: Node) -> Work:
    """Return the work of a node that is a kernel of its own."""
    operands = [graph.types[name] for name in node.inputs if name]
    result = graph.types[next(name for name in node.outputs if name)]
    dtype = operands[0].dtype if operands else result.dtype
    dtype = "int8" if dtype == "uint8" else dtype  # their kernels have one price
    definition, form = registry.get(node.op), _product_form(graph, node)
    macs = node_macs(graph, node) if form else 0
    if not macs:
        data = [graph.types[name].size for name in node.inputs if name and name not in graph.consts]
        window = definition.window(node.attrs, operands) if definition.window is not None else None
        taps = prod(axis.taps for axis in window.axes) if window is not None else 1
        elements = taps * result.size if definition.moves or window else max((result.size, *data))
        return Work(f"{node.op} {dtype}", (elements, result.size))
    width = dtypes.nbytes(operands[0].dtype)
    columns = result.shape[-1] if node.op == "matmul" else operands[1].shape[0]
    depth, rows = macs / result.size, result.size / columns
    lanes = rows * depth * ceil(columns / LANES)
    if form == "depthwise":
        words, vectors = (rows * depth * ceil(columns * width / size) for size in (WORD, VECTOR_BYTES))
        unpacked, scratch = float(operands[0].size), width * operands[0].size / operands[0].shape[-1]
    else:
        words, vectors = (result.size * float(ceil(depth * width / size)) for size in (WORD, VECTOR_BYTES))
        unpacked, scratch = rows * depth, width * depth
    return Work(f"{form} {dtype}", (macs, words, vectors, lanes, result.size, unpacked, rows), scratch)


def _product_form(graph: Graph, node: Node) -> str:
    """Return the form of a product, which decides its schedules; empty for a node that multiplies no matrices."""
    if node.op == "matmul":
        return "matrix"
    product = registry.product_of(node, graph.types)
    if product is None:
        return ""
    weights = graph.types[node.inputs[1]]
    if product.transposed:
        return "transposed"
    if product.groups > 1:
        return "depthwise" if weights.shape[product.channel_axis] == 1 else "grouped"
    if prod(axis.taps for axis in product.windows) > 1:
        return "window"
    return "row" if graph.types[node.outputs[0]].size == weights.shape[0] else "matrix"


# ---- Prices: of a kind of kernel on a core, and of a kernel.

PRICES = Path(__file__).with_name("prices.json")


@frozen
class Price:
    """Price of a kind of kernel on a core.

    ``instructions``, ``cycles``, ``reads`` (bytes of constants that are read from flash): for a unit of each quantity of the
    work. ``code``: bytes. ``stored``: bytes of constants in flash for each byte in the graph, if few and if many rows use
    them (:data:`WIDENED_FROM`). ``workspace``: bytes for each byte of :attr:`Work.scratch`. ``libraries``: operations of the
    code that may be library functions."""

    instructions: tuple[float, ...]
    cycles: tuple[float, ...]
    reads: tuple[float, ...] = ()
    code: float = 0.0
    stored: tuple[float, float] = (1.0, 1.0)
    workspace: float = 0.0
    libraries: tuple[str, ...] = ()


WIDENED_FROM = 8.0
"""Rows that must use a weight, for each instruction that a byte of flash is worth, so that kernels store weights widened.
Of the sample kernels on Cortex-M4, at a price of 4, those with up to 20 rows do not, those with 36 and more do."""


@frozen
class CorePrices:
    """Prices of a core.

    ``kinds``: by kind of kernel. ``forecast``: factors of instructions and of cycles on the forecast of loops as they are
    written, for kinds without a price. ``code_margin``: factor between the estimate and the upper estimate of code. ``stack``:
    bytes of a run."""

    kinds: Mapping[str, Price]
    forecast: tuple[float, float]
    code_margin: float
    stack: int


@frozen
class KernelPrice:
    """Estimated cost of one kernel. ``reads``, ``code``, ``workspace``: bytes. ``stored``, ``libraries``: as
    :class:`Price`."""

    instructions: float
    cycles: float
    reads: float = 0.0
    code: float = 0.0
    stored: float = 1.0
    workspace: float = 0.0
    libraries: tuple[str, ...] = ()

    def plus(self, other: KernelPrice, times: int) -> KernelPrice:
        """Return the price of a kernel that also does the work of another one ``times`` times."""
        return KernelPrice(
            self.instructions + times * other.instructions,
            self.cycles + times * other.cycles,
            self.reads + times * other.reads,
            self.code + other.code,
            other.stored,
            max(self.workspace, other.workspace),
            (*self.libraries, *other.libraries),
        )


UNKNOWN_CODE = 400.0
"""Bytes of code of a kernel without a price: the median of the sample kernels."""
UNKNOWN_FUSED = 6.0
"""Operations for each element of a fused operator without a price: the median of the sample kernels."""


@cache
def _read_tables() -> Mapping[str, CorePrices]:
    """Read the prices of all cores."""
    data = json.loads(PRICES.read_text(encoding="utf-8"))
    libraries = [tuple(names) for names in data["libraries"]]
    tables = {}
    for cores, table in data["cores"].items():
        kinds = {kind: _parse_price(row, libraries) for kind, row in table["kinds"].items()}
        prices = CorePrices(kinds, tuple(table["forecast"]), table["code_margin"], table["stack"])
        tables.update(dict.fromkeys(cores.split(), prices))
    return tables


def _parse_price(row: Sequence[Any], libraries: Sequence[tuple[str, ...]]) -> Price:
    """Return the price of a row of the table. ``libraries``: the sets of operations that rows refer to by number."""
    instructions, cycles, reads, code, stored, workspace, number = row
    rates = (tuple(instructions), tuple(cycles), tuple(reads))
    return Price(*rates, code, tuple(stored), workspace, libraries[number])


def prices_of_core(cpu: str) -> CorePrices:
    """Return the prices of a core. UsageError if it has none."""
    tables = _read_tables()
    if cpu not in tables:
        raise UsageError(
            f"cost: there are no prices of kernels for {cpu}",
            hint=f"{known_names_hint(cpu, tables, 'cores with prices')}; or compile the network, whose report has estimates",
        )
    return tables[cpu]


def price_group(graph: Graph, nodes: Sequence[Node], target: Target, goal: Goal) -> KernelPrice:
    """Return the price of the kernel that the nodes become, with weights stored as the goal's price of flash has them.

    A kind without a price is lowered, and the forecast of its loops as they are written takes the place of the price."""
    prices = prices_of_core(target.cpu)
    first, *fused = work_of_group(graph, nodes)
    rows = [(prices.kinds.get(work.kind), work) for work in (first, *fused)]
    known = [(price, work) for price, work in rows if price is not None]
    if rows[0][0] is None:
        func = lower_group(graph, nodes, product_multiples(target), "kernel").func
        count = forecast_instructions(func, target)
        instructions, cycles = (factor * count for factor in prices.forecast)
        return KernelPrice(instructions, cycles, code=UNKNOWN_CODE)
    unknown = sum(work.quantities[0] for price, work in rows if price is None)
    price = known[0][0]
    return KernelPrice(
        sum(_scale(p.instructions, work) for p, work in known) + unknown * prices.forecast[0] * UNKNOWN_FUSED,
        sum(_scale(p.cycles, work) for p, work in known) + unknown * prices.forecast[1] * UNKNOWN_FUSED,
        sum(_scale(p.reads, work) for p, work in known),
        sum(p.code for p, _ in known),
        price.stored[uses_many_rows(first, goal)],
        price.workspace * first.scratch,
        tuple(dict.fromkeys(name for p, _ in known for name in p.libraries)),
    )


def uses_many_rows(work: Work, goal: Goal) -> bool:
    """Test whether enough rows use each weight of a product that kernels store weights widened."""
    return len(work.quantities) > 2 and work.quantities[-1] >= WIDENED_FROM * goal.price


def _scale(rates: Sequence[float], work: Work) -> float:
    """Return what a work takes at the rates of its quantities. Prices of one sample have only the first quantity."""
    return sum(rate * quantity for rate, quantity in zip(rates, work.quantities, strict=False))


# ---- Overlap: how far a result may lie behind the start of the data that its kernel reads.

TILE_ROWS = 2
"""Rows of a matrix product whose results a kernel may write before it has read the operands of the last of them."""


def safe_distances_of_group(graph: Graph, nodes: Sequence[Node], old_bytes: int, new_bytes: int) -> range:
    """Return the distances in bytes from the start of the data to the start of the result at which both may overlap.

    Elementwise kernels write an element after they have read it. Depthwise convolutions unpack a channel before they write
    it. Other products and windows move over the data row by row, so that a result may follow the rows that are still read.
    """
    first, result = nodes[0], graph.types[nodes[-1].outputs[0]]
    definition, form = registry.get(first.op), _product_form(graph, first)
    data = graph.types[first.inputs[0]]
    if definition.elementwise:
        return range(int(result.size == data.size and new_bytes <= old_bytes))
    if form == "depthwise" and data.shape[-1] == result.shape[-1] and data.dtype == result.dtype:
        step = data.shape[-1] * dtypes.nbytes(data.dtype)
        return range(step - new_bytes // step * step, old_bytes, step)
    if form == "matrix" and first.op != "matmul":
        rows = result.size // result.shape[-1]
        return _distances_behind_rows(old_bytes / rows, new_bytes / rows, rows, TILE_ROWS)
    window = definition.window(first.attrs, [graph.types[n] for n in first.inputs if n]) if definition.window else None
    if window is None or form in ("transposed", "grouped"):
        return range(0)
    axis = next((axis for axis in window.axes if axis.count > 1), window.rows)
    read, written = old_bytes / axis.extent, new_bytes / axis.count
    return _distances_behind_rows(axis.stride * read, written, axis.count, 1, axis.before * read)


def _distances_behind_rows(read: float, written: float, rows: int, tile: int, delay: float = 0.0) -> range:
    """Return the distances at which a result of ``rows`` rows overlaps only data that are read already.

    Of each row ``read`` bytes of the data are done with when ``written`` bytes of the result are stored, ``tile`` rows at a
    time; the first ``delay`` bytes are read again."""
    last = min(row * read - delay - min(row + tile, rows) * written for row in (0, max(rows - tile, 0)))
    return range(1 - int(rows * written), int(last) + 1)


# ---- Estimate what a network costs on a board without compiling it: :func:`cost`, for searches over networks.
#
# The graph passes are those of a compilation. Then each kernel has the price of its operators and shapes instead
# of loops, and the memory planner places the same values as in a compilation.


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
    "bounds", "external", "tuned", "plan", "optimize", "flash", "ram", "threads", "bind_threads",
    "cores", "code_in_ram", "relocatable",
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
        core = replace(target, flash_wait=0.0, copies_weights=False)
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
