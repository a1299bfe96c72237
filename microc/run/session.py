"""A board that runs a project, kernels that it loads, its firmware flashed."""

from __future__ import annotations

import shlex
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.project.firmware import optimisation
from microc.codegen.project.protocols import LOADING_SCRIPT, SOURCES, image_files
from microc.compiler import validation
from microc.compiler.api import Program
from microc.compiler.interaction import Progress, teller
from microc.compiler.representation import signature, table
from microc.compiler.sizes.run_shapes import RunShapes
from microc.device.board_info import Image, Stats, Timing
from microc.device.client import Client, ask_slots
from microc.device.emulators import Emulator
from microc.device.flashing import flash, load
from microc.device.images import binary, segments
from microc.device.runners import select_runner
from microc.device.toolchain import Symbol, link_program, section_sizes
from microc.device.transport import find_port
from microc.errors import DeviceError, FitError, UsageError, VerificationError, suggestion
from microc.module import Module
from microc.reports.summary import tensor_data
from microc.run.board_project import (
    AUTO,
    BAUD,
    Project,
    build,
    built_network,
    is_line,
    open_line,
    open_project,
    project_behind,
    reach,
    send_network,
)
from microc.run.profile import Clock
from microc.target import Board

if TYPE_CHECKING:
    from microc.run.profile import Profile


# ---- Kernels that a board loads while it runs: built for the memory that it has left, sent, called, without
# flashing.
#
# Constants are kept by what is in them: those that kernels share are sent once. SPEC.md of the runtime, "Loading code".

MOST_PLACES = 32
"""Addresses of a call (``MICROC_LOAD_PLACES``)."""
_CALL_HEADER = 24
_ALIGN = 16


def load_kernel(device: Device, what: Any, constants: Mapping[str, Any]) -> Loaded:
    """A kernel in the memory of a device's board: ``loaded(x)`` runs it there.

    ``what``: a PrimFunc or a Schedule, with the data of its constants by name, or what :func:`microc.build` and
    :func:`microc.compile` made for a board of the same core. UsageError where the firmware was not built for tuning, or for a
    network that keeps state; FitError where no room is left.
    """
    from microc.compiler.user_functions import build

    board, manifest = device.project.board, device.project.manifest
    if manifest["options"]["protocol"] != "tuning":
        raise UsageError(
            f"the firmware of {manifest['model']} takes no code",
            where=str(device.project.folder),
            hint="compile it with --protocol tuning, build and flash it; such firmware is for the desk alone",
        )
    if isinstance(what, Program) and constants:
        raise UsageError("a program has its constants", hint="leave them out, or load the function")
    program = what if isinstance(what, Program) else build(what, board=board, constants=constants)
    if program.board.target != board.target:
        raise UsageError(f"it was compiled for {program.board.name}, not for {board.name}")
    device.loader = device.loader or Loader(device.client, board)
    return device.loader.load(program.module)


class Loader:
    """The memory of a board that takes code, as the host keeps it: what is left of it, and which constants are there."""

    def __init__(self, client: Client, board: Board) -> None:
        self.client, self.board = client, board
        self.region = client.region()
        self._constants: dict[bytes, int] = {}
        self._top = 0

    def load(self, module: Module) -> Loaded:
        """A planned module, in memory and ready to be called. FitError where no room is left, ToolError where it does not build,
        UsageError for one that keeps state or whose sizes vary."""
        self._check(module)
        before = dict(self._constants), self._top
        try:
            return self._loaded(module)
        except BaseException:
            self._constants, self._top = before
            raise

    def release(self, loaded: Loaded) -> None:
        """Have the room of what was loaded last; constants stay."""
        self._top = loaded.begin

    def clear(self) -> None:
        """Forget all that was loaded."""
        self._constants, self._top = {}, 0

    def _loaded(self, module: Module) -> Loaded:
        fresh: dict[int, bytes] = {}
        constants = {
            name: self._place(value.data.tobytes(), fresh)
            for name, value in module.values.items()
            if value.storage == "const" and value.data is not None
        }
        assert module.plan is not None
        begin = self._top
        own = [n for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets]
        arena = self._reserve(module.plan.size)
        buffers = {name: self._reserve(module.values[name].nbytes) for name in own}
        start = self._reserve(0)
        code, entry, symbols = self._built(module, constants, start)
        self._reserve(len(code))
        for offset, data in (*fresh.items(), (start, code)):
            self.client.load(offset, data)
        image = Image(start, len(code), zlib.crc32(code), entry)
        return Loaded(self, module, image, begin, arena, buffers, symbols)

    def _place(self, data: bytes, fresh: dict[int, bytes]) -> int:
        """Where a constant lies; among ``fresh`` unless it is there."""
        if data not in self._constants:
            self._constants[data] = self._reserve(len(data))
            fresh[self._constants[data]] = data
        return self._constants[data]

    def _reserve(self, nbytes: int) -> int:
        begin = -(-self._top // _ALIGN) * _ALIGN
        if begin + nbytes > self.region.nbytes:
            raise FitError(
                f"{nbytes:,} bytes more are needed, {max(0, self.region.nbytes - begin):,} of {self.region.nbytes:,} are left",
                where=f"memory for code of {self.board.name}",
                hint="a smaller firmware leaves more; device.unload() forgets what was loaded",
            )
        self._top = begin + nbytes
        return begin

    def _built(self, module: Module, constants: dict[str, int], start: int) -> tuple[bytes, int, tuple[Symbol, ...]]:
        """The code as it lies from ``start`` on, where it is entered, and its symbols."""
        base = self.region.address
        addresses = {name: base + at for name, at in constants.items()}
        with tempfile.TemporaryDirectory(prefix="microc-load-") as name:
            folder = Path(name)
            for file, text in image_files(module, __version__, addresses, base + start).items():
                (folder / file).write_text(text, encoding="utf-8")
            flags = optimisation(self.board.target, module.options["optimize"]).split()
            elf = link_program(self.board, folder, SOURCES, LOADING_SCRIPT, *flags)
            sizes = section_sizes(elf)
            entry = next(s.address for s in sizes.symbols if s.name == "microc_enter")
            return binary(segments(elf)), (entry & ~1) - base, sizes.symbols

    def _check(self, module: Module) -> None:
        refused = ""
        if module.state:
            refused = "it keeps something from run to run"
        elif module.sizes:
            refused = "its sizes vary"
        elif any(value.storage == "const" and value.data is None for value in module.values.values()):
            refused = "a constant of it is defined elsewhere"
        if refused:
            raise UsageError(
                f"{module.name} cannot be loaded: {refused}", hint="compile it into a firmware, and flash that"
            )
        most = min(MOST_PLACES, (self.client.info.max_payload - _CALL_HEADER) // 4)
        if 1 + len(module.inputs) + len(module.outputs) > most:
            raise UsageError(f"{module.name} has too many inputs and outputs to be loaded: {most - 1} are possible")


class Loaded:
    """A kernel, or several, in a board's memory: ``loaded(x)`` runs them on arrays, and gives arrays.

    ``last``: the timing of the last call, in ticks. It is there until the board restarts, or :meth:`Device.unload`.
    """

    def __init__(
        self,
        loader: Loader,
        module: Module,
        image: Image,
        begin: int,
        arena: int,
        buffers: dict[str, int],
        symbols: Sequence[Symbol],
    ) -> None:
        self.module, self.image, self.begin = module, image, begin
        self.last: Timing | None = None
        self.inputs = tuple(tensor_data(module, name) for name in module.inputs)
        self.outputs = tuple(tensor_data(module, name) for name in module.outputs)
        self._client, self._arena, self._buffers, self._symbols = loader.client, arena, buffers, symbols
        self._places = (arena, *(self._offset(name) for name in (*module.inputs, *module.outputs)))

    def __call__(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """One run on arrays in the function's order; one output comes as an array, several as a tuple."""
        self.set_inputs(*arrays)
        self.last = self.run()
        results = tuple(self.read(name) for name in self.module.outputs)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<Loaded {self.module.name}: {self.image.nbytes} bytes of code, {len(self.module.calls)} kernels>"

    def time_evaluator(self, repeat: int = 10) -> Callable[..., Timing]:
        """A function that sends arrays, executes ``repeat`` times and gives the ticks, as TVM's does. Where the kernel's
        inputs share memory with its results, only the first execution computes from what was sent."""
        count = validation.integer("repeat", repeat, 1, (1 << 32) - 1)

        def timed(*arrays: Any) -> Timing:
            self.set_inputs(*arrays)
            return self.run(repeat=count)

        return timed

    def set_inputs(self, *arrays: Any) -> None:
        """Send all inputs; shapes and dtypes must match."""
        for tensor, array in zip(self.inputs, RunShapes({}).fitting(self.inputs, arrays), strict=True):
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            self._client.load(self._offset(tensor["name"]), data)

    def run(self, kernel: int | None = None, repeat: int = 1, timeout: float | None = None) -> Timing:
        """Execute one kernel by its number, or all in order; ``timeout`` in seconds, as of :meth:`Client.call`."""
        number = len(self.module.calls) if kernel is None else kernel
        return self._client.call(self.image, number, self._places, repeat, timeout)

    def read(self, name: str) -> Array:
        """A value of the module that lies in memory, by its name."""
        value = self.module.values[name]
        dtype = dtypes.to_numpy(value.dtype)
        data = self._client.fetch(self._offset(name), prod(value.shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(value.shape)

    def spoil(self, name: str, data: bytes) -> None:
        """Overwrite the first bytes of a value, so that what it held is not taken for a result."""
        self._client.load(self._offset(name), data)

    def holds(self, name: str, array: Array) -> bool:
        """Whether a value is equal to an array, bit by bit: the board answers a CRC-32 instead of its bytes."""
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        return self._client.check(self._offset(name), len(data)) == zlib.crc32(data)

    def code_of(self, kernel: str) -> int:
        """Bytes of a kernel's function."""
        return sum(s.size for s in self._symbols if s.name.partition(".")[0] == kernel)

    def _offset(self, name: str) -> int:
        base, offset = self.module.base_of(name)
        assert self.module.plan is not None
        if base in self._buffers:
            return self._buffers[base] + offset
        return self._arena + self.module.plan.offsets[base] + offset


# ---- A board that runs a project, as an object: arrays in, arrays out, and what it costs.

PATIENCE = 10.0
"""Seconds without an answer after which a board is given up."""
_ATTEMPTS = 20.0  # a client with time-out t gives up after about 20 t, see Client._exchange


def open_client(
    port: str, bauds: Sequence[int], patience: float, *, usual: int = BAUD, progress: Progress | None = None
) -> Client:
    """A board behind a line, whatever it runs; ``usual``: the rate where none is asked for."""
    return Client(open_line(port, bauds, usual), patience / _ATTEMPTS, reconnect=patience, progress=progress)


class Device:
    """A session with a board that runs a project: a process for the host board, an emulator, or hardware on a serial line.

        with microc.Device("firmware") as dev:              # an emulated board, or one that is found by its USB ids
            y = dev.run(x)
            print(dev.profile())
        with microc.Device("/dev/ttyACM0") as dev: ...      # its project is looked for in this folder and those in it

    ``source``: a project or its folder, which must be built, or a line (a serial port, ``socket://HOST:PORT``). ``port``: the
    line of a project's board, or ``auto``; ``network``: which one of a project of several. ``bauds``: the rates to try
    (default: the board's). ``patience``: seconds without an answer, or without the line, before giving up. DeviceError when
    nothing answers, or when the board runs another build. ``load``: send the network of a project that was compiled to be loaded
    first, see :meth:`load_network`; an emulator of ours always gets it, since it has just begun.

    ``last`` is the timing of the last :meth:`run`, in ticks, which :attr:`clock` makes something of. ``emulated``: it is an
    emulator that we run.
    """

    def __init__(
        self,
        source: Project | str | Path,
        port: str = "",
        *,
        network: str = "",
        bauds: Sequence[int] = (),
        patience: float = PATIENCE,
        load: bool = False,
        progress: Progress | bool | None = None,
    ) -> None:
        if not isinstance(source, Project):
            validation.path("a project or line", source)
        validation.text("a port", port)
        validation.text("a network", network)
        validation.truth("load", load)
        told = teller(progress)
        bauds = validation.integers("bauds", bauds, 1)
        patience = validation.number("patience", patience, 0.001, 1e6, "seconds")
        with ExitStack() as stack:
            if is_line(source):
                transport = open_line(str(source), bauds)
                project, reconnect, emulated = project_behind(transport, network), patience, False
            else:
                project = source if isinstance(source, Project) else open_project(source, network)
                transport, reconnect, emulated = reach(project, port, bauds, patience, stack)
            options: dict[str, Any] = {"reconnect": reconnect, "model": project.index, "progress": told}
            client = stack.enter_context(Client(transport, patience / _ATTEMPTS, **options))
            begun = reconnect == 0.0  # by us, just now
            if load or (begun and project.relocatable):
                send_network(client, built_network(project))
            self._attach(project, client, emulated)
            self._stack = stack.pop_all()

    @classmethod
    def over(cls, project: Project, client: Client, *, emulated: bool = False) -> Device:
        """A session over a client that is somebody else's to close."""
        device = cls.__new__(cls)
        device._attach(project, client, emulated)
        device._stack = ExitStack()
        return device

    def _attach(self, project: Project, client: Client, emulated: bool) -> None:
        load = f"load it: microc load {shlex.quote(str(project.folder))} --port PORT"
        client.expect(project.manifest["fingerprint"], *([load] if project.relocatable else []))
        self.project = project
        self.client = client
        self.emulated = emulated
        self.last: Timing | None = None
        self.loader: Loader | None = None
        self.shapes = RunShapes(project.manifest)
        self._tensors = project.tensors
        self._expect_tables()
        self._index = {name: k for k, name in enumerate(self._tensors)}
        self.inputs = tuple(self._tensors[n] for n in project.manifest["inputs"])
        self.outputs = tuple(self._tensors[n] for n in project.manifest["outputs"])

    def _expect_tables(self) -> None:
        """A board with the right fingerprint has the manifest's tensors and kernels, or does not tell the truth."""
        told = self.client.model
        sizes = [4 * len(self.shapes.sizes)] if self.shapes.sizes else []
        if [t.nbytes for t in told.tensors] != [t["bytes"] for t in self._tensors.values()] + sizes or (
            told.kernel_count != len(self.kernels)
        ):
            raise DeviceError(
                "the board's tensors and kernels are not those of the project",
                where=str(self.project.folder),
                hint="build and flash the project again",
            )

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the line; end the emulator or process if it is ours."""
        self._stack.close()

    def __repr__(self) -> str:
        network = signature(self.project.manifest["model"], self.inputs, self.outputs)
        return f"<Device {self.project.board.name}: {network}, {len(self.kernels)} kernels>"

    def _repr_html_(self) -> str:
        board, clock = self.project.board, self.clock
        rows = [
            ("board", board.title),
            ("core", board.target.cpu),
            ("kernels", len(self.kernels)),
            ("time in", clock.unit),
        ]
        return table(signature(self.project.manifest["model"], self.inputs, self.outputs), rows)

    @property
    def tick_hz(self) -> int:
        return self.client.info.tick_hz

    @property
    def clock(self) -> Clock:
        """What ticks are."""
        return Clock(self.project.board, self.tick_hz, self.emulated)

    @property
    def self_test(self) -> str | None:
        """What the networks found that checked themselves at boot: ``passed``, ``failed``; None where the firmware does not."""
        result = self.client.info.self_test
        return None if not result else "passed" if result == 1 else "failed"

    def failed_self_test(self) -> VerificationError | None:
        """The error to tell where one failed."""
        info = self.client.info
        if info.self_test < 2:
            return None
        name = info.models[info.self_test - 2].name
        return VerificationError(
            f"the network {name!r} failed its self-test when the board began: it computes something else than it must",
            where=f"board {self.project.board.name}",
            hint="flash the firmware again; if it fails again, microc verify says which layer differs",
        )

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
        fitting = self.shapes.fitting(self.inputs, arrays)
        if self.shapes.sizes:
            self.client.write_tensor(len(self._tensors), self.shapes.vector.astype("<i4").tobytes())
        for tensor, array in zip(self.inputs, fitting, strict=True):
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            self.client.write_tensor(self._index[tensor["name"]], data, part="extents" in tensor)

    def run_kernel(self, kernel: int) -> Timing:
        """Execute one kernel; all in order are one inference."""
        number = validation.integer("a kernel", kernel, most=len(self.kernels) - 1)
        return self.client.run(number, number)

    def read(self, name: str) -> Array:
        """A tensor of the manifest; an intermediate one holds its value only until its memory is used again."""
        tensor = self._tensors.get(validation.text("a tensor", name))
        if tensor is None:
            raise UsageError(f"there is no tensor {name!r}", hint=suggestion(name, self._tensors, "tensors"))
        dtype = dtypes.to_numpy(tensor["dtype"])
        shape = self.shapes.of(tensor)
        data = self.client.read_tensor(self._index[name], prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def spoil(self, name: str, data: bytes) -> None:
        """Overwrite the first bytes of a tensor, so that what it held is not taken for a result."""
        self.client.write_tensor(self._index[name], data, part=True)

    def profile(self) -> Profile:
        """One inference on the inputs in memory: what every layer takes. Printed, it is a table."""
        from microc.reports.firmware_size import measure
        from microc.run.profile import make_profile

        size = measure(self.project) if self.project.elf.is_file() else None
        return make_profile(self.project, self.clock, self.kernel_ticks(), size)

    def kernel_ticks(self) -> tuple[int, ...]:
        """One inference on the inputs in memory; ticks of each kernel."""
        return self.client.profile()

    def time(self, repeat: int = 10) -> Timing:
        """Ticks of ``repeat`` inferences; see :meth:`microc.device.client.Client.run` about the inputs."""
        return self.client.run(repeat=validation.integer("repeat", repeat, 1, (1 << 32) - 1))

    def load_network(self, source: Project | Program | str | Path) -> None:
        """Send another network into the slot of the board that does not run, commit it, and speak to it from now on.

        ``source``: a project or its folder, which must be built, or what :func:`microc.compile` made; compiled with
        ``relocatable=True``, for a board with the same core and compiler options. FitError where the board has no room,
        UsageError where the network is for another core, DeviceError where the board refuses it: what ran before still runs.
        """
        project = source if isinstance(source, Project) else self._opened(source)
        send_network(self.client, built_network(project))
        self._attach(project, self.client, self.emulated)

    def _opened(self, source: Program | str | Path) -> Project:
        """The project in a folder, or of a program, which is built in a folder that lasts as long as the session."""
        from microc.compiler.api import Program

        if not isinstance(source, Program):
            return open_project(source)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="microc-load-")))
        project = open_project(source.write(folder / "network"))
        build(project)
        return project

    def load(self, what: Any, **constants: Any) -> Loaded:
        """A kernel into the board's memory, without flashing; see :func:`microc.run.session.load_kernel`."""

        return load_kernel(self, what, constants)

    def unload(self) -> None:
        """Forget all that was loaded: its memory is free again."""
        self.loader = None

    def stats(self) -> Stats:
        """Stack depth and counters of the line."""
        return self.client.stats()

    def reset(self) -> None:
        """Put the state (recurrent layers) to its initial content."""
        self.client.reset_state()


# ---- A project's firmware onto its board.


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
        if port and project.relocatable:
            with open_client(port, bauds, patience, usual=project.board.raw["console"].get("baud", BAUD)) as client:
                ask_slots(client)
        elif port:
            Device(project, port, bauds=bauds, patience=patience).close()
        return commands, bool(port)
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    with Emulator(project.board, None, debug=True) as emulator:
        command = load(emulator, project.elf)
        Device(project, emulator.url, patience=patience, load=project.relocatable).close()
        return (command,), True
