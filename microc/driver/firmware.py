"""A generated project as a running firmware: open it, build it, talk to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from microc import dtypes
from microc.codegen.files import MARKER
from microc.codegen.manifest import SCHEMA_VERSION
from microc.codegen.project import shared_source
from microc.device.boards import load_copy
from microc.device.client import Client, Progress
from microc.device.emulator import Emulator, instructions
from microc.device.flash import flash, load
from microc.device.info import Stats, Timing
from microc.device.runners import select_runner
from microc.device.toolchain import Sizes, require, run_make, section_sizes
from microc.device.transport import Transport, open_transport
from microc.driver.export import build_library
from microc.driver.fit import link_overflow
from microc.driver.library import Library
from microc.driver.shapes import RunShapes
from microc.dtypes import Array
from microc.errors import OutputError, ToolError, UsageError
from microc.plugin import PORTABLE
from microc.target import Board

PATIENCE = 10.0
"""Seconds without an answer after which a board is given up."""
_ATTEMPTS = 20.0  # a client with time-out t gives up after about 20 t, see Client._exchange
_BAUD = 115200


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that ``microc compile`` wrote."""

    folder: Path
    manifest: dict[str, Any]
    board: Board

    @property
    def elf(self) -> Path:
        return self.folder / "firmware.elf"

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """Tensors of the manifest by name, in the order of the board's table."""
        return {t["name"]: t for t in self.manifest["tensors"]}

    @property
    def emulated(self) -> bool:
        return "emulator" in self.board.raw

    @property
    def counted(self) -> bool:
        """Whether the emulator's time follows the instructions."""
        return "ticks_per_instruction" in self.board.raw.get("emulator", {})


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A linked firmware and the memory it takes."""

    elf: Path
    sizes: Sizes


def open_project(folder: str | Path) -> Project:
    """The project in a folder; UsageError or OutputError when there is none, or one of another version."""
    root = Path(folder)
    path = root / MARKER
    hint = "make one: microc compile MODEL --board BOARD -o DIR"
    if not root.is_dir():
        raise OutputError(f"there is no folder {root}", where=str(root), hint=hint)
    if not path.is_file():
        raise OutputError(f"{root} is no project of microc: it has no {MARKER}", where=str(root), hint=hint)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, board = manifest["schema_version"], str(manifest["board"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} is damaged", where=str(path), hint="compile again") from error
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"the project has schema version {version}, this microc knows {SCHEMA_VERSION}",
            where=str(path),
            hint="compile again",
        )
    return Project(root, manifest, load_copy(root / "board" / "board.json", board))


def build(project: Project) -> BuildResult:
    """Run make. FitError with the numbers when the linker runs out of memory, ToolError when anything else fails."""
    compiler = project.board.raw["build"]["prefix"]
    if compiler:
        require(f"{compiler}gcc")
    try:
        run_make(project.folder)
    except ToolError as error:
        overflow = link_overflow(error, project.board, str(project.folder))
        if overflow is None:
            raise
        raise overflow from error
    return BuildResult(project.elf, section_sizes(project.elf))


def host_library(project: Project) -> Library:
    """The project's own network, compiled for this computer; externs of plugins by their meaning, so that a board that runs
    their C text is compared with it."""
    try:
        names = ("model.c", "model.h", "model_data.c", "model_data.h")
        sources = {name: (project.folder / name).read_text(encoding="utf-8") for name in names}
    except (OSError, ValueError) as error:
        raise OutputError(f"the project lacks a source file: {error}", where=str(project.folder)) from error
    return build_library({**sources, "shared.c": shared_source(project.manifest)}, f"-D{PORTABLE}")


class Device:
    """A board that runs a project: a process for the host board, an emulator, or hardware on a serial line.

    ``last`` is the timing of the last :meth:`run`, in ticks of :attr:`tick_hz`.
    """

    def __init__(self, project: Project, client: Client) -> None:
        self.project = project
        self.client = client
        self.last: Timing | None = None
        self.shapes = RunShapes(project.manifest)
        self._tensors = project.tensors
        self._index = {name: k for k, name in enumerate(self._tensors)}
        self.inputs = tuple(self._tensors[n] for n in project.manifest["inputs"])
        self.outputs = tuple(self._tensors[n] for n in project.manifest["outputs"])

    @property
    def tick_hz(self) -> int:
        return self.client.info.tick_hz

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The manifest's kernels in the order of execution."""
        found: list[dict[str, Any]] = self.project.manifest["kernels"]
        return found

    def run(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """One inference on arrays in the graph's order; one output comes as an array, several as a tuple."""
        self.set_inputs(*arrays)
        self.last = self.client.run()
        results = tuple(self.read(t["name"]) for t in self.outputs)
        return results[0] if len(results) == 1 else results

    def set_inputs(self, *arrays: Any) -> None:
        """Send all inputs, and the sizes that their shapes tell where they vary. Shapes and dtypes must match; nothing is
        converted silently."""
        if len(arrays) != len(self.inputs):
            raise UsageError(f"the network takes {len(self.inputs)} inputs, {len(arrays)} were given")
        self.shapes.learn(self.inputs, arrays)
        fitting = [self.shapes.checked(a, t) for a, t in zip(arrays, self.inputs, strict=True)]
        if self.shapes.sizes:
            self.client.write_tensor(len(self._tensors), self.shapes.vector.astype("<i4").tobytes())
        for tensor, array in zip(self.inputs, fitting, strict=True):
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            self.client.write_tensor(self._index[tensor["name"]], data, part="extents" in tensor)

    def run_kernel(self, kernel: int) -> Timing:
        """Execute one kernel; all in order are one inference."""
        return self.client.run(kernel, kernel)

    def read(self, name: str) -> Array:
        """A tensor of the manifest; an intermediate one holds its value only until its memory is used again."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise UsageError(f"there is no tensor {name!r}", hint="tensors: " + ", ".join(self._tensors))
        dtype = dtypes.to_numpy(tensor["dtype"])
        shape = self.shapes.of(tensor)
        data = self.client.read_tensor(self._index[name], prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def profile(self) -> tuple[int, ...]:
        """One inference on the inputs in memory; ticks of each kernel."""
        return self.client.profile()

    def time(self, repeat: int = 10) -> Timing:
        """Ticks of ``repeat`` inferences; see :meth:`microc.device.client.Client.run` about the inputs."""
        return self.client.run(repeat=repeat)

    def instructions(self, ticks: int) -> int | None:
        """Instructions that took ``ticks`` on a board whose emulator counts them; None on any other."""
        return instructions(self.project.board, ticks) if self.project.counted else None

    def stats(self) -> Stats:
        """Stack depth and counters of the line."""
        return self.client.stats()

    def reset(self) -> None:
        """Put the state (recurrent layers) to its initial content."""
        self.client.reset_state()


@contextmanager
def connect(
    project: Project | str | Path, port: str = "", *, patience: float = PATIENCE, progress: Progress | None = None
) -> Iterator[Device]:
    """Talk to a board that runs ``project``, which must be built.

    Without ``port`` the host board is a process and an emulated board an emulator; hardware needs the name of its serial
    port (or ``socket://HOST:PORT``). ``patience``: seconds without an answer before giving up. DeviceError when nothing
    answers, or when the board runs another build.
    """
    project = project if isinstance(project, Project) else open_project(project)
    with ExitStack() as stack:
        if not port and project.emulated:
            port = stack.enter_context(Emulator(project.board, project.elf)).url
        elif not port:
            port = _process(project)
        yield stack.enter_context(_session(project, _open(project, port), patience, progress))


def _process(project: Project) -> str:
    if project.board.target.isa != "host":
        raise UsageError(
            f"board {project.board.name!r} is on a serial line, and no port was named",
            hint="name it: --port /dev/ttyACM0; `microc ports` lists those of this machine",
        )
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    return "pipe:" + shlex.quote(str(project.elf.resolve()))


def _open(project: Project, port: str) -> Transport:
    return open_transport(port, project.board.raw["console"].get("baud", _BAUD))


@contextmanager
def _session(project: Project, transport: Transport, patience: float, progress: Progress | None) -> Iterator[Device]:
    with Client(transport, patience / _ATTEMPTS, progress=progress) as client:
        client.expect(project.manifest["fingerprint"])
        yield Device(project, client)


def flash_project(
    project: Project, runner: str = "", *, port: str = "", dry_run: bool = False, patience: float = PATIENCE
) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Bring the firmware onto its board: the commands, and whether the board answered as this project afterwards.

    An emulated board is loaded through its debugger and asked at once; hardware is asked when ``port`` is given.
    """
    chosen = select_runner(project.board, runner)
    if dry_run:
        return flash(project.board, project.elf, runner=runner, port=port, dry_run=True), False
    if not chosen.emulated:
        commands = flash(project.board, project.elf, runner=runner, port=port)
        if port:
            with connect(project, port, patience=patience):
                pass
        return commands, bool(port)
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    with Emulator(project.board, None, debug=True) as emulator:
        command = load(emulator, project.elf)
        with _session(project, _open(project, emulator.url), patience, None):
            return (command,), True
