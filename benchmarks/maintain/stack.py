# SPDX-License-Identifier: Apache-2.0
"""Compare the bounds on stacks with the frames that compilers report, for operators and models on all families of cores.

    python benchmarks/maintain/stack.py [--boards microbit,hifive1] [--levels=-O0,-O2] [--compilers gcc,clang] [--cases N]
        [MODEL ...]

A network is compiled with ``-fstack-usage`` into assembly, whose calls are the edges of a graph of functions. The deepest path
from run on is compared with the bound without library and callers. Networks are the models, and N cases of every operator, each
on the next board. The exit code is 1 where a frame exceeds its bound. Painted stacks: ``tests/codegen/test_stack.py`` with
``MICROC_TESTS=all``.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import microc
from microc.base.dtypes import Array, to_numpy
from microc.codegen.c import resources
from microc.codegen.c.source import network_files
from microc.device.boards import load_board
from microc.errors import MicrocError
from microc.graph.ir import Graph, Node, TensorType
from microc.module import Module
from microc.ops.registry import registry
from microc.target import Board

BOARDS = (
    "microbit", "mps2-an385", "mps2-an521", "mps2-an386", "mps2-an505", "mps2-an500", "mps3-an547", "esp32-c3", "hifive1",
    "qemu-riscv32", "hifive-unleashed", "qemu-riscv64", "arduino-mega",
)  # fmt: skip
INCLUDE = {"arm": "/usr/include/newlib", "riscv": "/usr/lib/picolibc/riscv64-unknown-elf/include"}
"""Headers of the boards' C libraries, as Debian installs them, for clang."""
CALL = re.compile(r"^\s*(?:bl|blx|b|b\.w|call|tail|jal|j|rcall|rjmp|jmp)\s+(?:ra,\s*)?([A-Za-z_][\w.$]*)")
CLONE = re.compile(r"(\.(constprop|isra|part|cold)(\.\d+)*)+$")
"""Suffix of a function that gcc made of another one."""


def cases(count: int) -> Iterator[tuple[str, Graph]]:
    """Graphs of one operator."""
    rng = np.random.default_rng(3)
    for definition in (each for each in registry().values() if not (each.view or each.composed)):
        for number, case in enumerate(itertools.islice(definition.cases(), count)):
            attrs = {**definition.defaults, **case.attrs}
            names = tuple(f"i{k}" for k in range(len(case.types)))
            results = definition.infer(attrs, case.types)
            outputs = tuple(f"o{k}" for k in range(len(results)))
            types = dict(zip((*names, *outputs), (*case.types, *results), strict=True))
            given = dict(enumerate(case.arrays))
            consts = {names[k]: drawn(case.types[k], rng) if given.get(k) is None else given[k] for k in case.consts}
            inputs = tuple(name for name in names if name not in consts)
            node = Node(definition.name, names, outputs, attrs)
            yield f"{definition.name}-{number}", Graph("case", inputs, outputs, (node,), types, consts)


def drawn(kind: TensorType, rng: np.random.Generator) -> Array:
    """Small random numbers of a type."""
    dtype = to_numpy(kind.dtype)
    return (rng.normal(0, 1, kind.shape) if dtype.kind == "f" else rng.integers(0, 2, kind.shape)).astype(dtype)


def command(board: Board, compiler: str) -> list[str]:
    """The compiler with the board's options."""
    flags: list[str] = board.raw["build"]["c_flags"]
    if compiler == "gcc":
        return [board.raw["build"]["prefix"] + "gcc", *flags]
    isa = board.target.isa
    bits = 64 if board.target.cpu.startswith("rv64") else 32
    target = "arm-none-eabi" if isa == "arm" else f"riscv{bits}-unknown-elf"
    own = [flag.replace("+nodsp", "") for flag in flags if not flag.startswith("--specs")]
    return ["clang", f"--target={target}", "-isystem", INCLUDE[isa], *own]


def deepest(folder: Path, argv: Sequence[str], level: str, name: str) -> int:
    """Bytes of the deepest path from the run function on, without the library."""
    options = ["-std=gnu99", "-w", level, "-ffunction-sections", "-fstack-usage", "-S", "model.c", "-o", "model.s"]
    subprocess.run([*argv, *options], cwd=folder, check=True, capture_output=True)
    frames: dict[str, int] = {}
    for line in (folder / "model.su").read_text().splitlines():
        place, nbytes, _ = line.split("\t")
        function = CLONE.sub("", place.rpartition(":")[2])
        frames[function] = max(frames.get(function, 0), int(nbytes))
    calls: dict[str, set[str]] = defaultdict(set)
    here = ""
    for line in (folder / "model.s").read_text().splitlines():
        label, call = re.match(r"([A-Za-z_][\w.$]*):", line), CALL.match(line)
        if label and CLONE.sub("", label[1]) in frames:
            here = CLONE.sub("", label[1])
        elif call and here:
            calls[here].add(CLONE.sub("", call[1]))

    def depth(function: str, above: frozenset[str]) -> int:
        below = (depth(each, above | {function}) for each in calls[function] & frames.keys() - above - {function})
        return frames[function] + max(below, default=0)

    return depth(f"{name}_run", frozenset())


def own_bounds(module: Module) -> resources.StackBounds:
    """The bounds without library and callers."""
    nothing = dict.fromkeys(resources.CALLERS, 0)
    with (
        patch.object(resources, "list_kernel_library_operations", lambda _: ()),
        patch.object(resources, "CALLED_BYTES", 0),
        patch.object(resources, "CALLERS", nothing),
    ):
        return resources.stack_bounds(module)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--boards", default=",".join(BOARDS))
    parser.add_argument("--levels", default="-O0,-O2,-O3,-Os")
    parser.add_argument("--compilers", default="gcc")
    parser.add_argument("--cases", type=int, default=1, help="cases of each operator")
    options = parser.parse_args()
    boards = itertools.cycle([load_board(name) for name in options.boards.split(",")])
    found: dict[tuple[str, str, str], list[tuple[float, str]]] = defaultdict(list)
    networks: Iterator[tuple[str, Any]] = itertools.chain(((m.name, m) for m in options.models), cases(options.cases))
    for name, network in networks:
        board = next(boards)
        try:
            module = microc.compile(network, board=board, check=False).module
        except MicrocError as error:
            print(name, board.name, str(error).partition("\n")[0], file=sys.stderr)
            continue
        bounds = own_bounds(module)
        with tempfile.TemporaryDirectory(prefix="microc-") as made:
            folder = Path(made)
            for file, text in network_files(module, "0").items():
                (folder / file).write_text(text)
            for compiler, level in itertools.product(options.compilers.split(","), options.levels.split(",")):
                if compiler == "clang" and board.target.isa not in INCLUDE:
                    continue
                bytes_used = deepest(folder, command(board, compiler), level, module.name)
                bound = bounds.unoptimised if level == "-O0" else getattr(bounds, compiler)
                found[board.target.cpu, compiler, level].append((bytes_used / bound, name))
    for key, shares in sorted(found.items()):
        most = max(shares)
        print(
            *key, f"{len(shares)} networks, median {median(s for s, _ in shares):.2f}, most {most[0]:.2f} ({most[1]})"
        )
    sys.exit(any(share > 1 for shares in found.values() for share, _ in shares))


if __name__ == "__main__":
    main()
