# SPDX-License-Identifier: Apache-2.0
"""Runner of the benchmarks: builds the firmware of a compiled network, boots it on an emulated board, counts instructions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import microc
from microc.base.dtypes import Array
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.codegen.project.manifest import MemoryMap
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.toolchain import LinkedSizes, read_linked_sizes, run_make
from microc.device.transport import open_transport
from microc.module import Module
from microc.run.profile import ticks_to_instructions
from microc.target import Board


def build_firmware(module: Module, board: Board, folder: Path) -> Path:
    """Build the firmware of a network in a new folder; return the ELF file."""
    write_tree(folder, project_files((module,), board, microc.__version__))
    run_make(folder)
    return folder / "firmware.elf"


@dataclass(frozen=True)
class Running:
    """A network that runs on an emulated board. ``sizes``: those of its firmware."""

    module: Module
    board: Board
    client: Client
    sizes: LinkedSizes

    def write_inputs(self, arrays: Iterable[Array]) -> None:
        """Write all inputs, in the network's order."""
        names = MemoryMap(self.module).names
        for name, array in zip(self.module.inputs, arrays, strict=True):
            self.client.write_tensor(names.index(name), array.tobytes())

    def count_instructions(self) -> list[int]:
        """Run one inference; return the instructions of every call."""
        return [ticks_to_instructions(self.board, ticks) for ticks in self.client.profile()]

    def read_outputs(self) -> list[bytes]:
        """Read the bytes of all outputs, in the network's order."""
        names = MemoryMap(self.module).names
        return [self.client.read_tensor(names.index(name)) for name in self.module.outputs]


@contextmanager
def connect(module: Module, board: Board, emulator: Emulator, elf: Path) -> Iterator[Running]:
    """Open a session with the firmware that an emulator runs, and check that it is this network's."""
    with Client(open_transport(emulator.url)) as client:
        client.hello()
        client.check_fingerprint(module.fingerprint)
        yield Running(module, board, client, read_linked_sizes(elf))


@contextmanager
def boot(module: Module, board: Board) -> Iterator[Running]:
    """Build the firmware of a network in a temporary folder, and boot it."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        elf = build_firmware(module, board, Path(folder) / "project")
        with Emulator(board, elf) as emulator, connect(module, board, emulator, elf) as running:
            yield running
