# SPDX-License-Identifier: Apache-2.0
"""What every common operator costs on every core: instructions per multiply-accumulate, or per element where there are none.

    python benchmarks/operators.py [--cores m4,m0] [--dtypes int8,float32] [--only conv,pool] [--json FILE]

The applications are in ``operator_cases.py``, at sizes that networks for microcontrollers have. Instructions are counted on
emulated boards (they are not cycles), on random data, and results compared with what the operators mean. Beside each figure
stands its ratio to what a kernel written by hand would need, by a rough table; rows come with the largest ratio first. ``code``
is the size of the kernels in bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.operator_cases import DTYPES, Application, applications
from benchmarks.runner import boot
from benchmarks.tables import CORES, board_of
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph, optimise_graph
from microc.device.toolchain import LinkedSizes
from microc.errors import MicrocError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.module import Module
from microc.run.engine import NumpyReference
from microc.target import Board

SOFT = ("m0", "m3", "rv32")
"""Cores whose floats are library calls: what these take is no matter of ours."""
BATCH = 12
"""Applications in one firmware."""


@dataclass(frozen=True)
class Figure:
    """An application on a core. ``work``: multiply-accumulates, or elements of the larger of operand and result (``unit``)."""

    core: str
    dtype: str
    application: str
    work: int
    unit: str
    instructions: int
    each: float
    ratio: float
    code: int
    kernels: int
    rules: tuple[str, ...]
    exact: bool


def measure(core: str, board: Board, dtype: str, batch: list[Application]) -> Iterator[Figure]:
    """Several applications as one network of as many inputs, run once."""
    writer = GraphBuilder("operators")
    outputs = {}
    for k, application in enumerate(batch):
        writer.at(k, application.name)
        outputs[f"out_{k}"] = application.write(writer, dtype)
    graph = writer.graph("operators", outputs)
    module = compile_graph(graph, "operators", board.target, make_options(optimize="speed"))
    data = inputs(graph)
    counts, sizes, got = run(module, board, data)
    right = agreeing(graph, data, got)
    size_of = {s.name.split(".")[0]: s.size for s in sizes.symbols}
    found, code, rules = defaultdict(int), defaultdict(dict), defaultdict(dict)
    for call, count in zip(module.calls, counts, strict=True):
        place = int(re.split(r"#|out_", call.layer)[1].split()[0])
        found[place] += count
        code[place][call.kernel] = size_of.get(call.kernel, 0)
        rules[place][call.rule or "copy"] = None
    for k, application in enumerate(batch):
        work, unit = application.work(writer, outputs[f"out_{k}"])
        each = found[k] / work
        yield Figure(
            core, dtype, application.name, work, unit, found[k], each, each / application.wanted(core, dtype),
            sum(code[k].values()), len(code[k]), tuple(rules[k]), right[k],
        )  # fmt: skip


def inputs(graph: Graph) -> dict[str, Array]:
    """Random data; small numbers where they are indices."""
    rng = np.random.default_rng(1)
    found: dict[str, Array] = {}
    for name in graph.inputs:
        kind = graph.types[name]
        floats = dtypes.is_float(kind.dtype)
        data = rng.normal(size=kind.shape) if floats else rng.integers(-100, 100, kind.shape)
        found[name] = data.astype(dtypes.to_numpy(kind.dtype))
    return found


def agreeing(graph: Graph, data: dict[str, Array], got: list[bytes]) -> list[bool]:
    """Whether each output is what the operators' references give: equal integers, floats to within 1e-4 of the largest."""
    plain = optimise_graph(graph, make_options())
    expected = NumpyReference(plain).infer([data[name] for name in plain.inputs]).outputs
    found = []
    for wanted, raw in zip(expected, got, strict=True):
        array = np.frombuffer(raw, wanted.dtype).reshape(wanted.shape)
        close = dtypes.is_float(wanted.dtype.name) and np.allclose(array, wanted, atol=1e-4 * np.abs(wanted).max())
        found.append(bool(close or np.array_equal(array, wanted)))
    return found


def run(module: Module, board: Board, data: dict[str, Array]) -> tuple[list[int], LinkedSizes, list[bytes]]:
    """Instructions of every call, the sizes of the firmware, and the outputs."""
    with boot(module, board) as running:
        running.write_inputs(data.values())
        return running.count_instructions(), running.sizes, running.read_outputs()


def table(figures: list[Figure]) -> str:
    """The figures, the worst first."""
    lines = [f"{'core':6}{'dtype':9}{'application':34}{'work':>9} {'unit':8}{'each':>8}{'ratio':>7}{'code':>7}  rules"]
    for f in sorted(figures, key=lambda f: -f.ratio):
        lines.append(
            f"{f.core:6}{f.dtype:9}{f.application:34}{f.work:>9,} {f.unit:8}{f.each:>8.2f}{f.ratio:>7.1f}{f.code:>7,}  "
            f"{', '.join(f.rules)}{'' if f.exact else ' WRONG'}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default="m4,m0,m55,rv32", help=f"of {','.join(CORES)}")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="such as int8,float32 (default: all)")
    parser.add_argument("--only", default="", help="applications whose names contain one of these")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures: list[Figure] = []
    for core in options.cores.split(","):
        board = board_of(CORES[core])
        for dtype in options.dtypes.split(","):
            if dtype == "float32" and core in SOFT:
                continue
            wanted = [a for a in applications(dtype) if any(part in a.name for part in options.only.split(","))]
            for start in range(0, len(wanted), BATCH):
                batch = wanted[start : start + BATCH]
                print(f"{core} {dtype} {start + len(batch)} of {len(wanted)}", file=sys.stderr, flush=True)
                try:
                    figures += measure(core, board, dtype, batch)
                except MicrocError as error:
                    print(f"{core} {dtype} {[a.name for a in batch]}: {error}", file=sys.stderr)
    print(table(figures))
    if options.json:
        options.json.write_text(
            json.dumps({"schema_version": 1, "figures": [asdict(f) for f in figures]}, indent=1) + "\n"
        )
    return 0 if all(f.exact for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
