# SPDX-License-Identifier: Apache-2.0
"""Prices of kernels by operator and shape, without loops or schedules: the basis of :func:`microc.cost`.

The *work* of a kernel is its kind (``window int8``: a convolution of bytes) and quantities that follow from shapes alone, such
as its multiply-accumulates. ``prices.json`` has for each core and each kind the instructions, cycles and bytes that a unit of
each quantity takes. ``benchmarks/maintain/prices.py`` derives these prices from the cost model's estimates of sample kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import UsageError, known_names_hint
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.lowering import lower_group, node_macs
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.rules.rule import product_multiples
from microc.target import WORD, Goal, Target

# ---- Work: the kind of a kernel, and quantities that follow from its shapes.

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
