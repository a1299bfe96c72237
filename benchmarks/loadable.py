# SPDX-License-Identifier: Apache-2.0
"""What code that may lie anywhere costs: networks as they are loaded, beside the same code linked for one address.

    python benchmarks/loadable.py [--models kws,ad] [--boards mps2-an386,microbit]

Bytes of code and of constants of the network alone, and instructions of an inference where the board's emulator holds both. The
models are those of MLPerf Tiny in the corpus (MICROC_CORPUS or ../shared/corpus).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import microc
from benchmarks.tables import INT8, network_path
from microc.device.boards import load_board
from microc.device.toolchain import read_linked_sizes, run_make
from microc.errors import MicrocError
from microc.run import board_project
from microc.run.board_project import open_project
from microc.run.session import Device
from microc.target import Board

BOARDS = ("microbit", "mps2-an386", "mps3-an547", "qemu-riscv32")
PLAIN = "BOARD_FLAGS="
"""Makes the network's files without the options for code that may lie anywhere."""
_HUGE = 1 << 24


def roomy(name: str) -> Board:
    """The board with memory for any of the networks: sizes of code do not depend on it."""
    board = load_board(name)
    return replace(board, regions=tuple(replace(region, size=_HUGE) for region in board.regions))


def image_bytes(folder: Path, *flags: str) -> int:
    """Code and constants of a relocatable project, as it is or with other flags."""
    run_make(folder, ["clean"])
    run_make(folder, ["network.elf", *flags])
    return dict(read_linked_sizes(folder / "network.elf").sections)[".image"]


def instructions(model: Path, board: str, folder: Path, *, relocatable: bool) -> int | None:
    """Of one inference; None where the board does not hold it."""
    try:
        project = open_project(microc.compile(model, board=board, relocatable=relocatable).write(folder))
        board_project.build_project(project)
        with Device(project) as device:
            return device.clock.convert_ticks(device.time(1).min)
    except MicrocError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(INT8))
    parser.add_argument("--boards", default=",".join(BOARDS))
    arguments = parser.parse_args()
    print(
        f"{'board':14}{'network':8}{'constants':>10}{'code':>8}{'loaded':>8}{'%':>7}{'instructions':>14}{'loaded':>12}{'%':>7}"
    )
    for board in arguments.boards.split(","):
        for name in arguments.models.split(","):
            model = network_path(name)
            program = microc.compile(model, board=roomy(board), relocatable=True, cache=False)
            with tempfile.TemporaryDirectory() as place:
                folder = program.write(Path(place) / "network")
                loaded, plain = image_bytes(folder), image_bytes(folder, PLAIN)
                constants = program.module.const_bytes
                code, moved = plain - constants, loaded - constants
                fixed = instructions(model, board, Path(place) / "fixed", relocatable=False)
                free = instructions(model, board, Path(place) / "free", relocatable=True) if fixed else None
            line = f"{board:14}{name:8}{constants:10,}{code:8,}{moved:8,}{100 * (moved / code - 1):+7.1f}"
            if fixed and free:
                line += f"{fixed:14,}{free:12,}{100 * (free / fixed - 1):+7.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
