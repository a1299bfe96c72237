# SPDX-License-Identifier: Apache-2.0
"""The prices of ``microc.cost`` (``microc/compiler/prices.json``): derived from the cost model, and compared with it.

    python benchmarks/maintain/prices.py sample --samples FILE [--cores cortex-m4,...]
    python benchmarks/maintain/prices.py write --samples FILE
    python benchmarks/maintain/prices.py check [--boards mps2-an386,...] [--networks 200] [--models PART] [--json FILE]

``sample``: schedules and lowers sample kernels for the cores of all boards, and appends the cost model's estimates to FILE, which
is continued where it ends (half an hour). ``write``: fits prices to the samples and writes the table. ``check``: compares
``microc.cost`` with ``microc.compile`` on random networks and on models of the corpus: median and largest error of each figure.

To be repeated when schedule rules, the cost model or the shipped schedules change; ``tests/compiler/test_cost.py`` says when.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.operator_cases import SAME, Application, applications, conv, data, dense, emit, plain, quant, weights
from benchmarks.tables import corpus
from microc.base.dtypes import Array
from microc.codegen.c.resources import (
    estimate_max_code_bytes,
    list_kernel_library_operations,
    stack_bound,
)
from microc.compiler.fit.budget import code_bytes
from microc.compiler.lowering.kernel_selection import (
    find_node_alias,
    group_algorithms,
    groups_of,
    select_group_schedule,
    with_16_bit_constants,
)
from microc.compiler.network_cost import PRICES, cost, uses_many_rows, work_of_group
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model, optimise_graph
from microc.device.boards import load_board
from microc.errors import MicrocError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.lowering import lower_group
from microc.reports.report import summarise_module
from microc.schedule.choose import constant_bytes, workspace_bytes
from microc.schedule.cost.cost_model import estimate
from microc.schedule.cost.forecast import forecast_instructions
from microc.schedule.rules.rule import product_multiples
from microc.target import Board, Goal, target_for

GOAL = Goal("balanced", 4.0)
"""The price of flash at which samples are scheduled: that of a network of 50 KB and a million multiply-accumulates."""
GROUPS = {
    "cortex-m4": ("cortex-m33", "cortex-m35p"),
    "cortex-m7": (),
    "cortex-m0plus": ("cortex-m0", "cortex-m23"),
    "cortex-m55": ("cortex-m52", "cortex-m85"),
    "rv32imc": ("rv32imac", "rv32imac_zba_zbb", "rv64imac", "xtensa-lx106", "xtensa-lx7-nofpu"),
    "cortex-m3": ("cortex-m33-nodsp",),
    "avr": (),
    "rv32imafc": ("rv64imafdc", "xtensa-lx6", "xtensa-lx7"),
}
"""Cores of boards, without computers. Those behind the first have nearly its features: its kernels are also estimated on
them."""
INTEGERS_OF = {"rv32imafc": "rv32imc"}
"""Groups that differ from another one in floats alone: their integer kernels are those of the other group."""
MAX_SPREAD = 0.5
"""Largest relative error of a kind's samples with which the kind gets a price. Others are forecast from their loops."""
RECURSION_LIMIT = 20_000
"""Depth of calls: loops of some samples are unrolled into deep chains of statements, which are hashed."""
DTYPES = ("int8", "float32", "int16")


# ---- Samples: operators at several sizes, and operators behind a product.


def products() -> Iterator[Application]:
    """Yield products of all forms. Sizes are those of networks for microcontrollers, with odd ones among them."""
    for k, (h, w, c, o) in enumerate(
        (
            (25, 5, 64, 64), (16, 16, 16, 32), (9, 9, 13, 17), (4, 4, 128, 96), (12, 12, 8, 24), (8, 8, 48, 16),
            (6, 6, 24, 40), (29, 29, 8, 17), (15, 15, 17, 45), (1, 34, 3, 31), (10, 10, 33, 8),
        )
    ):  # fmt: skip
        yield conv(f"matrix {k}", (1, h, w, c), (o, 1, 1, c))
    yield dense("matrix rows", 8, 40, 10)
    for k, (h, w, c, o, kh, kw, s) in enumerate(
        (
            (48, 48, 3, 8, 3, 3, 2), (28, 28, 1, 8, 3, 3, 1), (16, 16, 16, 16, 3, 3, 1), (8, 8, 32, 64, 3, 3, 2),
            (12, 12, 6, 10, 5, 5, 1), (1, 64, 16, 24, 1, 3, 1), (49, 10, 1, 64, 10, 4, 2), (1, 98, 40, 16, 1, 5, 2),
            (32, 32, 3, 16, 3, 3, 1), (10, 10, 12, 20, 3, 3, 1), (1, 128, 1, 8, 1, 7, 1), (14, 14, 8, 8, 3, 3, 1),
            (11, 11, 1, 31, 3, 3, 1), (11, 11, 31, 31, 3, 3, 1), (1, 39, 8, 19, 1, 3, 2), (1, 16, 3, 22, 1, 3, 1),
            (15, 15, 45, 40, 3, 3, 1), (20, 20, 3, 24, 3, 3, 2), (9, 9, 10, 9, 3, 3, 1), (21, 21, 1, 12, 3, 3, 2),
        )
    ):  # fmt: skip
        same = (kh // 2, kw // 2, kh // 2, kw // 2) if k % 3 else (0, 0, 0, 0)
        yield conv(f"window {k}", (1, h, w, c), (o, kh, kw, c), padding=same, strides=(s if h > 1 else 1, s))
    for k, (depth, columns) in enumerate(
        (
            (256, 64),
            (100, 10),
            (33, 7),
            (640, 128),
            (16, 32),
            (1024, 10),
            (48, 24),
            (19, 31),
            (22, 3),
            (392, 12),
            (9, 16),
        )
    ):
        yield dense(f"row {k}", 1, depth, columns)
    for k, (h, w, c, kh, kw, s) in enumerate(
        (
            (16, 16, 16, 3, 3, 1), (16, 16, 24, 3, 3, 2), (25, 5, 64, 3, 3, 1), (12, 12, 8, 5, 5, 1), (1, 64, 32, 1, 9, 1),
            (4, 4, 96, 3, 3, 1), (48, 48, 8, 3, 3, 1), (7, 7, 40, 3, 3, 2), (1, 34, 31, 1, 3, 1), (11, 11, 9, 3, 3, 1),
            (20, 20, 5, 3, 3, 2),
        )
    ):  # fmt: skip
        pad = (kh // 2, kw // 2, kh // 2, kw // 2)
        strides = (s if h > 1 else 1, s)
        yield conv(f"depthwise {k}", (1, h, w, c), (c, kh, kw, 1), padding=pad, groups=c, strides=strides)
    for k, (c, o, g) in enumerate(((16, 16, 4), (24, 48, 2), (16, 16, 2))):
        yield conv(f"grouped {k}", (1, 12, 12, c), (o, 3, 3, c // g), padding=SAME, groups=g)
    for k, (c, o, n) in enumerate(((16, 16, 3), (8, 1, 4), (16, 8, 2))):
        yield conv(f"transposed {k}", (1, 8, 8, c), (o, n, n, c), op="conv2d_transpose", strides=(2, 2))


def others(dtype: str) -> Iterator[Application]:
    """Yield operators that are no products: those of ``operator_cases``, and more sizes of some."""
    repeated = ("conv", "depthwise", "grouped", "transposed", "dense", "lstm", "gru", "rnn")
    yield from (each for each in applications(dtype) if not each.name.startswith(repeated))
    for k, shape in enumerate(((1, 24, 24, 8), (1, 6, 6, 40))):
        for pool in ("max_pool2d", "avg_pool2d"):
            yield plain(f"{pool} {k}", "pool", pool, shape, alike=True, kernel=(2, 2), strides=(2, 2))
            yield plain(f"{pool} 3 {k}", "pool", pool, shape, alike=True, kernel=(3, 3), strides=(2, 2))
        yield plain(f"mean {k}", "reduce", "mean", shape, axes=(1, 2))
        yield plain(f"add {k}", "sum", "add", shape, shape)


def fused(dtype: str) -> Iterator[tuple[str, Application]]:
    """Yield pairs: an operator, and a product with this operator behind it. The first pair is the product alone."""
    activations: tuple[tuple[str, dict[str, Any]], ...] = (
        ("relu", {}), ("clip", {"minimum": 0.0, "maximum": 6.0}), ("sigmoid", {}), ("tanh", {}), ("hard_swish", {}),
        ("leaky_relu", {"alpha": 0.1}), ("erf", {}), ("exp", {}),
    )  # fmt: skip

    def behind(op: str, attrs: dict[str, Any]) -> Application:
        def write(writer: GraphBuilder, dtype: str) -> str:
            x = data(writer, dtype, (1, 12, 12, 16))
            made = emit(writer, dtype, "conv2d", (x, *weights(writer, dtype, (16, 3, 3, 16))), {"padding": SAME}, 0.8)
            if op in ("add", "mul"):
                return emit(writer, dtype, op, (made, writer.input("y", (1, 12, 12, 16), dtype, quant(dtype))), {}, 0.9)
            if op and dtype != "float32" and op in ("sigmoid", "tanh"):
                return emit(writer, dtype, op, (made,), attrs, 1 / 256)
            return emit(writer, dtype, op, (made,), attrs, 0.9) if op else made

        return Application(f"fused {op}", "", write)

    for op, attrs in (("", {}), ("add", {}), ("mul", {}), *activations):
        if dtype == "float32" or op in ("", "add", "mul", "leaky_relu"):
            yield op, behind(op, attrs)


def write_graph(application: Application, dtype: str) -> Graph:
    """Return the graph of an application after all passes."""
    writer = GraphBuilder("sample")
    result = application.write(writer, dtype)
    return optimise_graph(writer.graph("sample", {"out": result}), make_options())


def sample_graphs() -> Iterator[tuple[str, str, Graph]]:
    """Yield all samples: a dtype, a name, and a graph after all passes."""
    for dtype in DTYPES:
        named = [*products(), *(others(dtype) if dtype != "int16" else ()), *(each for _, each in fused(dtype))]
        for application in named if dtype != "int16" else named[::2]:
            try:
                yield dtype, application.name, write_graph(application, dtype)
            except MicrocError as error:
                print(f"{dtype} {application.name}: {error}", file=sys.stderr)


def kernels_of(graph: Graph) -> Iterator[tuple[Node, ...]]:
    """Yield the groups of a graph that become kernels."""
    for nodes in groups_of(graph):
        definition = registry.get(nodes[0].op)
        placed = definition.view or (len(nodes) == 1 and find_node_alias(graph, nodes[0]) is not None)
        if not placed and not definition.regions:
            yield nodes


def sample_kernel(graph: Graph, nodes: tuple[Node, ...], cores: Sequence[str]) -> dict[str, Any]:
    """Schedule a kernel for the first of some cores, and return its estimates on all of them as plain data."""
    target = target_for(cores[0])
    lowered = group_algorithms(graph, nodes, target, "kernel")
    number, choice = select_group_schedule(lowered, target, GOAL, shipped=True)
    choice = with_16_bit_constants(lowered[number], choice, target, GOAL)
    constants = {p.name for p in choice.func.params if p.scope == "const"}
    written = lower_group(graph, nodes, product_multiples(target), "kernel").func
    estimates = {}
    for cpu in cores:
        found = estimate(choice.func, target_for(cpu))
        estimates[cpu] = {
            "instructions": found.instructions,
            "cycles": found.cycles,
            "reads": sum(traffic.bytes_read for name, traffic in found.traffic.items() if name in constants),
            "code": found.code_bytes,
            "forecast": forecast_instructions(written, target_for(cpu)),
        }
    return {
        "estimates": estimates,
        "stored": constant_bytes(choice.schedule),
        "graph_constants": sum(graph.consts[n].nbytes for node in nodes for n in node.inputs if n in graph.consts),
        "workspace": workspace_bytes(choice.func),
        "libraries": sorted(list_kernel_library_operations(choice.func)),
    }


def sample(path: Path, groups: Sequence[str], dtypes: Sequence[str]) -> None:
    """Append the samples of some groups of cores, named by their first core, to a file. Those that it has are not
    repeated."""
    lines = path.read_text().splitlines() if path.is_file() else []
    known = {tuple(json.loads(line)["id"]) for line in lines}
    graphs = [row for row in sample_graphs() if row[0] in dtypes]
    with path.open("a", encoding="utf-8") as file:
        for first in groups:
            start, cores = time.monotonic(), (first, *GROUPS[first])
            if (first, "", "network", "") not in known:
                file.write(json.dumps({"id": (first, "", "network", ""), **measure_network(first)}) + "\n")
            with_floats = [
                cpu for other, like in INTEGERS_OF.items() if like == first for cpu in (other, *GROUPS[other])
            ]
            for dtype, name, graph in graphs:
                if first in INTEGERS_OF and dtype != "float32":
                    continue
                for nodes in kernels_of(graph):
                    key = (first, dtype, name, nodes[-1].outputs[0])
                    if key in known:
                        continue
                    try:
                        alike = cores if dtype == "float32" else (*cores, *with_floats)
                        file.write(json.dumps({"id": key, **sample_kernel(graph, nodes, alike)}) + "\n")
                    except MicrocError as error:
                        print(f"{key}: {error}", file=sys.stderr)
                file.flush()
            print(f"{first}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def measure_network(cpu: str) -> dict[str, float]:
    """Return figures of a core that belong to no kernel, from one compiled network: the factor between the upper estimate
    and the estimate of code, and the bytes of stack."""
    path = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
    module = compile_model(path, target_for(cpu), make_options())
    return {"code_margin": estimate_max_code_bytes(module) / code_bytes(module), "stack": stack_bound(module)}


# ---- Prices: non-negative rates of the quantities, with the least relative errors.


def fit_rates(quantities: Array, wanted: Array) -> Array:
    """Return the rates of quantities, at least 0, whose sums have the least relative errors. (samples, quantities) and
    (samples,) to (quantities,). Kinds with fewer samples than quantities get a rate of the first quantity alone."""
    from scipy.optimize import nnls  # of this function alone: tests share the random networks

    if len(wanted) <= quantities.shape[1]:
        quantities = quantities[:, :1]
    positive = wanted > 0
    if not positive.any():
        return np.zeros(quantities.shape[1])
    relative = quantities[positive] / wanted[positive, None]
    return nnls(relative, np.ones(int(positive.sum())))[0]


def median_ratio(rows: Sequence[dict[str, Any]]) -> float:
    """Return the median of the bytes that kernels store for each byte of constants in their graph; 1 if there are none."""
    ratios = [row["stored"] / row["graph_constants"] for row in rows if row["graph_constants"]]
    return round(median(ratios), 3) if ratios else 1.0


def fit_core(
    rows: list[dict[str, Any]], network: dict[str, Any], libraries: dict[tuple[str, ...], int]
) -> dict[str, Any]:
    """Return the prices of a core as plain data. ``network``: result of :func:`measure_network`. ``libraries``: numbers
    of sets of library operations, which grow."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    alone = {}
    for row in rows:
        _, dtype, name, _ = row["id"]
        if not name.startswith("fused"):
            by_kind[row["work"][0][0]].append(row)
        elif len(row["work"]) == 1:
            alone[dtype] = row
    kinds = {}
    for kind, members in sorted(by_kind.items()):
        quantities = np.array([row["work"][0][1] for row in members], float)
        rates = {}
        for figure in ("instructions", "cycles", "reads"):
            wanted = np.array([row[figure] for row in members], float)
            rates[figure] = fit_rates(quantities, wanted)
        fitted = quantities[:, : len(rates["instructions"])] @ rates["instructions"]
        spread = max(abs(fitted / [row["instructions"] for row in members] - 1))
        if spread > MAX_SPREAD and len(rates["instructions"]) == 1:
            print(f"  {kind}: no price, its samples differ by {100 * spread:.0f} %", file=sys.stderr)
            continue
        stored = ([row for row in members if uses_many_rows(row["work"][0], GOAL) == many] for many in (False, True))
        scratch = [row["workspace"] / row["work"][0][2] for row in members if row["work"][0][2]]
        names = tuple(sorted({name for row in members for name in row["libraries"]}))
        kinds[kind] = [
            *([float(f"{rate:.4g}") for rate in rates[figure]] for figure in rates),
            round(median(row["code"] for row in members)),
            list(map(median_ratio, stored)),
            round(median(scratch), 3) if scratch else 0.0,
            libraries.setdefault(names, len(libraries)),
        ]
    for row in rows:
        if row["id"][2].startswith("fused") and len(row["work"]) == 2:
            base, kind, results = alone[row["id"][1]], row["work"][1][0], row["work"][1][1][0]
            more = [(row[figure] - base[figure]) / results for figure in ("instructions", "cycles", "reads")]
            kinds[kind] = [
                *([float(f"{max(rate, 0):.4g}")] for rate in more), max(row["code"] - base["code"], 0), [1.0, 1.0], 0.0,
                libraries.setdefault(tuple(row["libraries"]), len(libraries)),
            ]  # fmt: skip
    forecast = median(row["instructions"] / row["forecast"] for row in rows)
    pace = median(row["cycles"] / row["forecast"] for row in rows)
    return {
        "forecast": [round(forecast, 3), round(pace, 3)],
        "code_margin": round(network["code_margin"], 3),
        "stack": network["stack"],
        "kinds": kinds,
    }


def write(path: Path) -> None:
    """Write the table of prices from the samples of a file. Cores without samples keep their prices."""
    old = json.loads(PRICES.read_text(encoding="utf-8"))
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    networks: dict[str, dict[str, Any]] = {}
    works = {
        (dtype, name, nodes[-1].outputs[0]): work_of_group(graph, nodes)
        for dtype, name, graph in sample_graphs()
        for nodes in kernels_of(graph)
    }
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        first, *sample_id = row["id"]
        if "estimates" not in row:
            networks.update(dict.fromkeys((first, *GROUPS.get(first, ())), row))
        elif work := works.get(tuple(sample_id)):
            for cpu, estimates in row["estimates"].items():
                rows[cpu].append({**row, **estimates, "work": work})
    tables = {cpu: table for names, table in old["cores"].items() for cpu in names.split()}
    libraries = {tuple(names): number for number, names in enumerate(old["libraries"])}
    for cpu in sorted(rows):
        print(cpu, file=sys.stderr)
        tables[cpu] = fit_core(rows[cpu], networks[cpu], libraries)
    cores: dict[str, dict[str, Any]] = {}
    for cpu, table in sorted(tables.items()):
        twin = next((names for names, other in cores.items() if other == table), "")
        cores[f"{twin} {cpu}".strip()] = cores.pop(twin, table)
    body = ",\n".join(
        f'  "{names}": {{\n'
        + f'   "forecast": {json.dumps(table["forecast"])}, "code_margin": {table["code_margin"]}, "stack": {table["stack"]},\n'
        + '   "kinds": {\n'
        + ",\n".join(f'    "{kind}": {json.dumps(row)}' for kind, row in table["kinds"].items())
        + "\n   }\n  }"
        for names, table in cores.items()
    )
    sets = ",\n".join(f"  {json.dumps(names)}" for names in libraries)
    PRICES.write_text(f'{{\n "libraries": [\n{sets}\n ],\n "cores": {{\n{body}\n }}\n}}\n', encoding="utf-8")


# ---- Errors against compilations.


def random_network(seed: int) -> Graph:
    """Return a small random network of convolutions, pools, sums and dense layers, in int8 or float32."""
    rng = np.random.default_rng(seed)
    writer, dtype = GraphBuilder(f"random{seed}"), "int8" if rng.random() < 0.7 else "float32"
    size, channels = int(rng.integers(8, 40)), int(rng.choice([1, 3, 8]))
    height = 1 if rng.random() < 0.25 else size
    value = writer.input("x", (1, height, size, channels), dtype, quant(dtype))
    for _ in range(int(rng.integers(1, 5))):
        _, h, w, c = writer.type(value).shape
        form = rng.choice(["window", "pointwise", "depthwise", "pool", "residual"])
        kh, kw, stride = min(3, h), 3, int(rng.integers(1, 3)) if w > 6 else 1
        pad = (kh // 2, 1, kh // 2, 1)
        strides = (stride if h > 1 else 1, stride)
        out = int(rng.integers(4, 49))
        if form == "pool" and w > 3 and c >= 4:
            op = str(rng.choice(["max_pool2d", "avg_pool2d"]))
            kernel = (min(2, h), 2)
            value = emit_like(writer, dtype, op, (value,), {"kernel": kernel, "strides": kernel})
        elif form == "depthwise" and c >= 4:
            operands = (value, *weights(writer, dtype, (c, kh, kw, 1)))
            attrs = {"padding": pad, "groups": c, "strides": strides}
            value = emit(writer, dtype, "conv2d", operands, attrs, 0.8)
        elif form == "residual":
            other = emit(
                writer, dtype, "conv2d", (value, *weights(writer, dtype, (c, kh, kw, c))), {"padding": pad}, 0.8
            )
            value = emit(writer, dtype, "add", (value, other), {}, 0.9)
        elif form == "pointwise":
            value = emit(
                writer, dtype, "conv2d", (value, *weights(writer, dtype, (out, 1, 1, c))), {"strides": strides}, 0.8
            )
        else:
            operands = (value, *weights(writer, dtype, (out, kh, kw, c)))
            value = emit(writer, dtype, "conv2d", operands, {"padding": pad, "strides": strides}, 0.8)
        if dtype == "float32" and rng.random() < 0.7:
            value = writer.emit("relu", (value,))
    _, h, w, c = writer.type(value).shape
    if rng.random() < 0.5:
        value = emit(writer, dtype, "mean", (value,), {"axes": (1, 2), "keepdims": False}, 0.8)
    else:
        value = writer.set_quant(writer.reshape(value, (1, h * w * c)), writer.type(value).quant, dtype)
    units = int(rng.integers(2, 33))
    operands = (value, *weights(writer, dtype, (units, writer.type(value).shape[-1])))
    value = emit(writer, dtype, "dense", operands, {"activation": "", "rounding": "double"}, 0.8)
    return writer.graph(f"random{seed}", {"out": value})


def emit_like(writer: GraphBuilder, dtype: str, op: str, inputs: Sequence[str], attrs: dict[str, Any]) -> str:
    """Apply an operator whose result is quantised as its operand."""
    made = writer.emit(op, inputs, attrs)
    return made if dtype == "float32" else writer.set_quant(made, writer.type(inputs[0]).quant, dtype)


FIGURES = ("instructions", "cycles", "flash", "ram", "weights", "arena")


def compare(source: Path | Graph, board: Board) -> dict[str, float]:
    """Return estimate / compilation of each figure of a network on a board."""
    guess = cost(source, board)
    report = summarise_module(compile_model(source, board.target, make_options()), board)
    real = {
        "instructions": report["estimated_instructions"], "cycles": report["estimated_cycles"], "flash": report["flash"],
        "ram": report["ram"], "weights": report["weight_bytes"], "arena": report["arena"],
    }  # fmt: skip
    return {name: getattr(guess, name) / max(real[name], 1) for name in FIGURES}


def format_errors(title: str, ratios: Sequence[dict[str, float]]) -> str:
    """Format the median and the largest error of each figure, in percent, in a line."""
    cells = []
    for name in FIGURES:
        errors = sorted(abs(row[name] - 1) * 100 for row in ratios)
        cells.append(f"{name} {median(errors):.1f} / {errors[int(0.9 * len(errors))]:.0f} / {errors[-1]:.0f}")
    return f"{title} ({len(ratios)}): {'; '.join(cells)} (median / 90 % / worst, %)"


def check(boards: Sequence[str], networks: int, models: Sequence[Path], out: Path | None) -> None:
    """Print the errors of the estimates on random networks and on models, and write them to a file if one is given."""
    found: list[dict[str, Any]] = []
    for name in boards:
        board = load_board(name)
        for title, sources in (("random", range(networks)), ("models", models)):
            ratios = []
            for source in sources:
                model = random_network(source) if isinstance(source, int) else source
                try:
                    ratios.append(compare(model, board))
                except MicrocError as error:
                    print(f"{name} {source}: {error.what}", file=sys.stderr)
                    continue
                found.append({"board": name, "network": str(source), **ratios[-1]})
                worst = max(ratios[-1].values(), key=lambda r: abs(np.log(r)))
                print(name, source, {k: round(v, 2) for k, v in ratios[-1].items()}, round(worst, 2), file=sys.stderr)
            if ratios:
                print(format_errors(f"{name}, {title}", ratios), flush=True)
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    sys.setrecursionlimit(RECURSION_LIMIT)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("sample", "write", "check"))
    parser.add_argument("--samples", type=Path, help="file of samples, one JSON object a line")
    parser.add_argument("--cores", default="", help="first cores of GROUPS to sample (default: all)")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="dtypes to sample (default: all)")
    parser.add_argument("--boards", default="mps2-an386,microbit,mps3-an547,qemu-riscv32", help="boards to compare on")
    parser.add_argument("--networks", type=int, default=200, help="number of random networks (default: 200)")
    parser.add_argument("--models", default="", help="models of the corpus: parts of their names, with commas")
    parser.add_argument("--json", type=Path, help="write all ratios to this file")
    options = parser.parse_args()
    if options.command == "check":
        files = sorted(corpus().glob("*/*")) if options.models else []
        paths = [
            p for p in files if p.suffix in (".tflite", ".onnx") and any(w in p.name for w in options.models.split(","))
        ]
        check(options.boards.split(","), options.networks, paths, options.json)
        return 0
    if options.samples is None:
        parser.error(f"{options.command} needs --samples FILE")
    if unknown := {*filter(None, options.cores.split(","))} - GROUPS.keys():
        parser.error(f"--cores: got {', '.join(sorted(unknown))}, expected some of {', '.join(GROUPS)}")
    if options.command == "sample":
        sample(options.samples, options.cores.split(",") if options.cores else list(GROUPS), options.dtypes.split(","))
    else:
        write(options.samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
