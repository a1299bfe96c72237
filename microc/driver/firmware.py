"""A generated project as a running firmware: open it, build it, talk to it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
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
from microc.device.emulator import Emulator
from microc.device.flash import flash, load
from microc.device.info import Stats, Timing
from microc.device.ports import find_port
from microc.device.runners import select_runner
from microc.device.toolchain import Sizes, require, run_make, section_sizes
from microc.device.transport import Transport, open_transport
from microc.driver.clock import Clock
from microc.driver.export import build_library
from microc.driver.fit import link_overflow
from microc.driver.library import Library
from microc.driver.shapes import RunShapes
from microc.dtypes import Array
from microc.errors import DeviceError, OutputError, ToolError, UsageError
from microc.plugin import PORTABLE
from microc.target import Board

PATIENCE = 10.0
"""Seconds without an answer after which a board is given up."""
_PROBE_SECONDS = 0.2  # for an answer at one of several rates
_ATTEMPTS = 20.0  # a client with time-out t gives up after about 20 t, see Client._exchange
_BAUD = 115200
AUTO = "auto"
"""The port that is to be found by the board's USB ids."""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that ``microc compile`` wrote, and one of the networks in it: ``index`` is its number on the board."""

    folder: Path
    manifest: dict[str, Any]
    board: Board
    index: int = 0
    sources: Path = Path()

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


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A linked firmware and the memory it takes."""

    elf: Path
    sizes: Sizes


def open_project(folder: str | Path, model: str = "") -> Project:
    """The project in a folder, and its network called ``model``, which may be left out when there is one.

    UsageError or OutputError when there is no project, one of another version, or no such network.
    """
    root = Path(folder)
    path = root / MARKER
    hint = "make one: microc compile MODEL --board BOARD -o DIR"
    if not root.is_dir():
        raise OutputError(f"there is no folder {root}", where=str(root), hint=hint)
    if not path.is_file():
        raise OutputError(f"{root} is no project of microc: it has no {MARKER}", where=str(root), hint=hint)
    data = _manifest(path)
    names = data.get("models", [data.get("model")])
    if model and model not in names:
        raise UsageError(f"the project has no network {model!r}", where=str(root), hint="it has: " + ", ".join(names))
    index = names.index(model) if model else 0
    sources = root / names[index] if "models" in data else root
    own = _manifest(sources / MARKER) if "models" in data else data
    return Project(root, own, load_copy(root / "board" / "board.json", own["board"]), index, sources)


def networks(project: Project) -> tuple[Project, ...]:
    """All networks of a project's firmware, in the board's order; the project itself where it has one."""
    names = _manifest(project.folder / MARKER).get("models", ())
    return tuple(open_project(project.folder, name) for name in names) or (project,)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if "format" in data:
            what = f"{path.parent} is an export ({data['format']}), not a project"
            raise OutputError(what, where=str(path.parent), hint="compile the model into a project: microc compile")
        version, _ = data["schema_version"], str(data["board"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} is damaged", where=str(path), hint="compile again") from error
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"the project has schema version {version}, this microc knows {SCHEMA_VERSION}",
            where=str(path),
            hint="compile again",
        )
    return data


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
        sources = {name: (project.sources / name).read_text(encoding="utf-8") for name in names}
    except (OSError, ValueError) as error:
        raise OutputError(f"the project lacks a source file: {error}", where=str(project.folder)) from error
    return build_library({**sources, "shared.c": shared_source(project.manifest)}, f"-D{PORTABLE}")


class Device:
    """A board that runs a project: a process for the host board, an emulator, or hardware on a serial line.

    ``last`` is the timing of the last :meth:`run`, in ticks, which :attr:`clock` makes something of. ``emulated``: it is an
    emulator that we run.
    """

    def __init__(self, project: Project, client: Client, emulated: bool = False) -> None:
        self.project = project
        self.client = client
        self.emulated = emulated
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
    def clock(self) -> Clock:
        """What ticks are."""
        return Clock(self.project.board, self.tick_hz, self.emulated)

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
        return self.clock.amount(ticks) if self.clock.counts else None

    def stats(self) -> Stats:
        """Stack depth and counters of the line."""
        return self.client.stats()

    def reset(self) -> None:
        """Put the state (recurrent layers) to its initial content."""
        self.client.reset_state()


@contextmanager
def connect(
    project: Project | str | Path,
    port: str = "",
    *,
    bauds: Sequence[int] = (),
    patience: float = PATIENCE,
    progress: Progress | None = None,
) -> Iterator[Device]:
    """Talk to a board that runs ``project``, which must be built.

    Without ``port`` the host board is a process and an emulated board an emulator; hardware is found by its USB ids, as with
    the port ``auto``. Else the name of a serial port, or ``socket://HOST:PORT``. ``bauds``: the rates to try (default: the
    board's). ``patience``: seconds without an answer, or without the line, before giving up. DeviceError when nothing
    answers, or when the board runs another build.
    """
    project = project if isinstance(project, Project) else open_project(project)
    protocol = project.manifest["options"]["protocol"]
    if protocol != "rpc":
        raise UsageError(
            f"the firmware speaks to MLPerf Tiny's runner ({protocol}), not to microc",
            where=str(project.folder),
            hint="compile it with --protocol rpc",
        )
    with ExitStack() as stack:
        emulated = False
        if port or not (project.emulated or project.board.target.isa == "host"):
            port = find_port(project.board) if port in ("", AUTO) else port
            transport, reconnect = _open(project, port, bauds), patience
        else:
            emulated = project.emulated
            own = stack.enter_context(Emulator(project.board, project.elf)).url if emulated else _process(project)
            transport, reconnect = open_transport(own), 0.0
        session = _session(project, transport, patience, progress, reconnect=reconnect, emulated=emulated)
        yield stack.enter_context(session)


def _process(project: Project) -> str:
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    return "pipe:" + shlex.quote(str(project.elf.resolve()))


def _open(project: Project, port: str, bauds: Sequence[int]) -> Transport:
    """The line at the first rate at which something answers; with one rate to choose from, at that."""
    rates = tuple(bauds) or (project.board.raw["console"].get("baud", _BAUD),)
    for rate in rates:
        transport = open_transport(port, rate)
        if len(rates) == 1:
            return transport
        client = Client(transport, _PROBE_SECONDS, retries=1)
        try:
            client.hello()
        except DeviceError:
            transport.close()
        else:
            return transport
    tried = ", ".join(map(str, rates))
    raise DeviceError(
        f"no answer at any of the rates {tried}",
        where=port,
        hint="is the firmware running, and built with the RPC protocol?",
    )


@contextmanager
def _session(
    project: Project,
    transport: Transport,
    patience: float,
    progress: Progress | None = None,
    *,
    reconnect: float = 0.0,
    emulated: bool = False,
) -> Iterator[Device]:
    with Client(transport, patience / _ATTEMPTS, reconnect=reconnect, model=project.index, progress=progress) as client:
        client.expect(project.manifest["fingerprint"])
        yield Device(project, client, emulated)


def flash_project(
    project: Project,
    runner: str = "",
    *,
    port: str = "",
    bauds: Sequence[int] = (),
    dry_run: bool = False,
    patience: float = PATIENCE,
) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Bring the firmware onto its board: the commands, and whether the board answered as this project afterwards.

    An emulated board is loaded through its debugger and asked at once; hardware is asked when ``port`` is given.
    """
    chosen = select_runner(project.board, runner)
    port = find_port(project.board) if port == AUTO else port
    if dry_run:
        return flash(project.board, project.elf, runner=runner, port=port, dry_run=True), False
    if not chosen.emulated:
        commands = flash(project.board, project.elf, runner=runner, port=port)
        if port:
            with connect(project, port, bauds=bauds, patience=patience):
                pass
        return commands, bool(port)
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    with Emulator(project.board, None, debug=True) as emulator:
        command = load(emulator, project.elf)
        with _session(project, open_transport(emulator.url), patience, emulated=True):
            return (command,), True
