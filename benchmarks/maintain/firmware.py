# SPDX-License-Identifier: Apache-2.0
"""Measure what a firmware takes in flash beside its networks' constants; write ``microc/codegen/c/firmware.json``.

    python benchmarks/maintain/firmware.py [--boards NAME,...] [--cores CORE,...] [-o FILE]

- Boards: start-up, drivers, the protocol's runtime and its share of the C library, as they are linked with a network of one
  small kernel, for each protocol that the board has. Bytes of flash and of static RAM.
- Cores: bounds of the code that belongs to networks. Networks of one operator and the digits are linked. What their firmware
  takes beside constants, the board's share and library functions (``library.json``) is bounded by a linear form
  (:data:`microc.codegen.c.resources.PARTS`): that one with the least sum of relative excess which is nowhere under, times MARGIN.

The table says for which versions of the compilers. Run it again for other ones, and when the cost model, the runtime or
``library.json`` changes. Boards whose compiler is absent keep their rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linprog

from benchmarks.maintain.library import CORES
from benchmarks.operator_cases import applications, recurrent
from microc import __version__
from microc.codegen.c.resources import (
    FIRMWARE_TABLE,
    PARTS,
    estimate_library_flash_bytes,
    list_code_size_terms,
    min_and_max_flash_without_networks,
)
from microc.codegen.project.firmware import project_files
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import list_boards, load_board
from microc.device.toolchain import find_compiler, list_tools_of_board
from microc.errors import FitError, MicrocError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.module import Module
from microc.run.board_project import link_and_read_sizes
from microc.target import Board

PROTOCOLS = ("rpc", "tuning", "mlperf")
MARGIN, AVR_MARGIN, LITTLE = 1.15, 1.4, 64
"""Factors on the bounds, and bytes for a network. Measured on 359 firmwares of tests/models/small_networks.py, which chose the
factors: none is over its estimate. With 1.15 a GRU on AVR is, by 6 % (5,590 bytes of code, 910 counted)."""
MOST = (64, 160, 32, None, None, None, None)
"""Bytes that a network, a call and a value take at most: their tables, the switch, arguments, saved registers. Networks of one
operator cannot tell a call from its kernel's code, so that without bounds these stood for code."""
EVERY = 3
"""Of the applications of operators.py every third is linked: a core takes a minute. All on AVR, whose code differs most from the
estimate: by factors of 1.5 to 6."""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "digits"


@cache
def smallest() -> Graph:
    """The sign of eight bytes: one kernel that needs nothing of a library."""
    writer = GraphBuilder("smallest")
    data = writer.input("x", (8,), "int8")
    return writer.graph("smallest", {"y": writer.op("clip", data, minimum=-1, maximum=1)})


def linked(module: Module, board: Board) -> tuple[int, int] | None:
    """Bytes of flash and static RAM; None where the linker finds no room."""
    try:
        sizes = link_and_read_sizes(project_files((module,), board, __version__), board)
    except MicrocError:
        return None
    assert sizes is not None
    return sizes.flash, sizes.static_ram


def measure_board(board: Board) -> dict[str, Any]:
    """Flash and static RAM around a network, by protocol."""
    found: dict[str, Any] = {"core": board.target.cpu.partition("+")[0]}
    for protocol in PROTOCOLS:
        module = compile_model(smallest(), board.target, make_options(protocol=protocol), None)
        try:
            sizes = linked(module, board)
        except UsageError:
            continue
        if sizes is not None and module.plan is not None:
            outside = sum(
                module.values[name].nbytes
                for name in (*module.inputs, *module.outputs)
                if name not in module.plan.offsets
            )
            code = sum(k.code_bytes for k in module.kernels)
            found[protocol] = [sizes[0] - code, sizes[1] - module.plan.size - outside]
    return found


def networks(every: int) -> Iterator[Graph | Path]:
    """The digits, networks of one operator, and small cells, whose loops compilers unroll."""
    yield from (EXAMPLES / name for name in ("digits_int8.tflite", "digits_float.onnx", "digits_qdq.onnx"))
    for dtype in ("int8", "float32"):
        small = (recurrent("gru", 6, 4, 4), recurrent("lstm", 6, 4, 4)) if dtype == "float32" else ()
        for application in (*applications(dtype)[::every], *small):
            writer = GraphBuilder("operator")
            yield writer.graph("operator", {"out": application.write(writer, dtype)})


def measure_core(board: Board) -> list[float]:
    """Bytes of code for each of PARTS."""
    rows, rest, flash = [], [], []
    for network in networks(1 if board.target.isa == "avr" else EVERY):
        try:
            module = compile_model(network, board.target, make_options(), None)
        except FitError:  # an array that the core's compiler does not take
            continue
        sizes = linked(module, board)
        if sizes is not None:
            own = (
                module.const_bytes
                + min_and_max_flash_without_networks(board, "rpc")[1]
                + estimate_library_flash_bytes((module,))
            )
            rows.append(list_code_size_terms(module))
            rest.append(sizes[0] - own)
            flash.append(sizes[0])
    parts, weights = np.array(rows, float), 1 / np.array(flash, float)
    ranges = [(0, most) for most in MOST]
    found = linprog((parts * weights[:, None]).sum(axis=0), A_ub=-parts, b_ub=-np.array(rest, float), bounds=ranges)
    excess = (parts @ found.x - rest) * weights
    print(f"{board.target.cpu}: {len(rows)} networks, excess {excess.mean():.1%} of flash, {excess.max():.1%} at most")
    margin = AVR_MARGIN if board.target.isa == "avr" else MARGIN
    return [round(margin * float(x) + LITTLE * (not k), 2) for k, x in enumerate(found.x)]


def is_measurable(board: Board) -> bool:
    return (
        board.target.isa != "host"
        and "framework" not in board.raw
        and all(map(shutil.which, list_tools_of_board(board)[:2]))
    )


def written(table: Mapping[str, Mapping[str, Any]]) -> str:
    """The table as JSON with a line for each board and core."""
    blocks = []
    for name, rows in table.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
        blocks.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--boards", default=",".join(list_boards()), help="boards of which rows are measured; others stay"
    )
    parser.add_argument("--cores", default=",".join(CORES), help="cores of which rows are measured; others stay")
    parser.add_argument("-o", "--output", type=Path, default=FIRMWARE_TABLE)
    options = parser.parse_args()
    table: dict[str, dict[str, Any]] = {"compilers": {}, "boards": {}, "cores": {}}
    if options.output.is_file():
        table |= json.loads(options.output.read_text())
    for name in filter(None, options.boards.split(",")):
        board = load_board(name)
        if is_measurable(board):
            table["boards"][name] = measure_board(board)
            table["compilers"][board.raw["build"]["prefix"]] = find_compiler(board).version
            print(name, table["boards"][name], flush=True)
    options.output.write_text(written(table))
    for core in filter(None, options.cores.split(",")):
        board = load_board(CORES[core])
        if is_measurable(board):
            table["cores"][core] = measure_core(board)
            print(core, dict(zip(PARTS, table["cores"][core], strict=True)), flush=True)
            options.output.write_text(written(table))
    options.output.write_text(written(table))


if __name__ == "__main__":
    main()
