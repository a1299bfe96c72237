# SPDX-License-Identifier: Apache-2.0
"""Sessions with a board: run a project, load kernels at run time, flash firmware."""

from __future__ import annotations

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
from microc.base.file_access import write_text
from microc.base.operating_system import quote_argument
from microc.codegen.project.firmware import optimisation_options
from microc.codegen.project.manifest import is_inference
from microc.codegen.project.protocols import IMAGE_SOURCES, LOADING_SCRIPT, render_linked_network_files
from microc.codegen.render import format_signature
from microc.compiler import validation
from microc.compiler.api import Program
from microc.compiler.interaction import Progress, as_callback
from microc.compiler.sizes.general import RunShapes
from microc.device.board_info import Bank, LoadedImage, Stats, Timing
from microc.device.boards import select_runner
from microc.device.client import Client, query_banks, query_slots, read_bank, save_to_bank
from microc.device.emulators import Emulator
from microc.device.flashing import flash_image, join_segments, load_image_into_emulator, read_segments
from microc.device.line_protocol import Operation
from microc.device.toolchain import Symbol, compile_and_link_for_board, read_linked_sizes
from microc.device.transport import find_board_port, is_remote
from microc.document.blocks import Document, document, facts
from microc.document.renderers import Showable
from microc.errors import DeviceError, FitError, UsageError, VerificationError, known_names_hint
from microc.module import Module
from microc.reports.report import describe_value
from microc.run.board_project import (
    AUTO,
    BAUD,
    Project,
    build_project,
    find_answering_project,
    is_remotely_emulated,
    is_serial_line,
    open_board_line,
    open_line_probing_rates,
    open_project,
    read_network_blob,
    send_network,
)
from microc.run.data.samples import (
    convert_labels,
    learned_tensors,
    read_weights,
    require_learning,
    write_weights,
)
from microc.run.profile import Clock
from microc.target import Board

if TYPE_CHECKING:
    from microc.run.arm_cycles import ExecutionCounter, KernelCycles
    from microc.run.profile import Profile


# ---- Kernels loaded into a running board's RAM: linked for the memory that is left, sent, and called without flashing.
#
# Constants are identified by content, so that those that kernels share are sent once. See runtime_c/SPEC.md, "Loading code".

MAX_ADDRESSES = 32
"""Maximum number of addresses in a call (``MICROC_LOAD_PLACES``)."""
_CALL_HEADER = 24
"""Bytes of a CALL request before the addresses."""
_ALIGN = 16


def load_kernel_on_device(device: Device, function_or_program: Any, constants: Mapping[str, Any]) -> LoadedKernels:
    """Load a kernel into the memory of a device's board; ``loaded(x)`` runs it there.

    ``function_or_program``: a PrimFunc or a Schedule, or a program that :func:`microc.build` or :func:`microc.compile`
    made for a board with the same core. ``constants``: the data of a function's constants by name. Raises UsageError if
    the firmware was not built for tuning, or the network keeps state; raises FitError if no room is left.
    """
    from microc.compiler.user_functions import build

    board, manifest = device.project.board, device.project.manifest
    if manifest["options"]["protocol"] != "tuning":
        raise UsageError(
            f"the firmware of {manifest['model']} cannot load code; got protocol {manifest['options']['protocol']}, "
            "expected tuning",
            where=str(device.project.folder),
            hint="compile it with --protocol tuning (insecure: for development only), build and flash it",
        )
    if isinstance(function_or_program, Program) and constants:
        raise UsageError(
            f"constants: a compiled program has its own; got {', '.join(map(str, constants))}",
            hint="leave them out, or load the function",
        )
    program = (
        function_or_program
        if isinstance(function_or_program, Program)
        else build(function_or_program, board=board, constants=constants)
    )
    if program.board.target != board.target:
        raise UsageError(
            f"program: got one for {program.board.name}, expected one for {board.name}",
            hint=f"compile it with board={board.name!r}",
        )
    device.loader = device.loader or CodeLoader(device.client, board)
    return device.loader.load(program.module)


class CodeLoader:
    """Loader of code into a board's RAM. It tracks how much of this RAM is used, and which constants the RAM already
    contains."""

    def __init__(self, client: Client, board: Board) -> None:
        self.client, self.board = client, board
        self.region = client.query_code_region()
        self._constants: dict[bytes, int] = {}
        self._top = 0

    def load(self, module: Module) -> LoadedKernels:
        """Link a module for the free part of the board's RAM for code, send it, and return the loaded kernels. The
        module must have a memory plan.

        Raises FitError if no memory is left, ToolError if it does not build, UsageError if it keeps state or its sizes
        vary."""
        self._check_loadable(module)
        before = dict(self._constants), self._top
        try:
            return self._allocate_and_send(module)
        except BaseException:
            self._constants, self._top = before
            raise

    def release(self, loaded: LoadedKernels) -> None:
        """Free the memory of the module that was loaded last, but not its constants."""
        self._top = loaded.begin

    def clear(self) -> None:
        """Free the memory of all loaded modules and constants."""
        self._constants, self._top = {}, 0

    def _allocate_and_send(self, module: Module) -> LoadedKernels:
        """Allocate constants, arena, buffers and code, in this order, then send the code and the new constants."""
        fresh: dict[int, bytes] = {}
        constants = {
            name: self._find_or_allocate_constant(value.data.tobytes(), fresh)
            for name, value in module.values.items()
            if value.storage == "const" and value.data is not None
        }
        assert module.plan is not None
        begin = self._top
        own = [n for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets]
        arena = self._reserve_memory(module.plan.size)
        buffers = {name: self._reserve_memory(module.values[name].nbytes) for name in own}
        start = self._reserve_memory(0)
        code, entry, symbols = self._link_at_offset(module, constants, start)
        self._reserve_memory(len(code))
        for offset, data in (*fresh.items(), (start, code)):
            self.client.write_bytes(offset, data)
        image = LoadedImage(start, len(code), zlib.crc32(code), entry)
        return LoadedKernels(self, module, image, begin, arena, buffers, symbols)

    def _find_or_allocate_constant(self, data: bytes, new_constants: dict[int, bytes]) -> int:
        """Return the offset of the constant ``data`` in the board's RAM for code.

        A constant that is not there yet is allocated, and its bytes are added to ``new_constants`` by offset."""
        if data not in self._constants:
            self._constants[data] = self._reserve_memory(len(data))
            new_constants[self._constants[data]] = data
        return self._constants[data]

    def _reserve_memory(self, nbytes: int) -> int:
        """Allocate aligned memory of the board, and return its offset; raise FitError if there is too little."""
        begin = -(-self._top // _ALIGN) * _ALIGN
        if begin + nbytes > self.region.nbytes:
            raise FitError(
                f"{nbytes:,} more bytes are needed; got {max(0, self.region.nbytes - begin):,} free bytes "
                f"of {self.region.nbytes:,}",
                where=f"memory for code of {self.board.name}",
                hint="call device.unload() to free all loaded kernels, or flash a smaller firmware",
            )
        self._top = begin + nbytes
        return begin

    def _link_at_offset(
        self, module: Module, constant_offsets: dict[str, int], code_offset: int
    ) -> tuple[bytes, int, tuple[Symbol, ...]]:
        """Link a module at an offset in the board's memory for code.

        Returns the code, the offset of its entry function in that memory, and its symbols.

        ``constant_offsets``: offset of each constant in the same memory, by name."""
        base = self.region.address
        addresses = {name: base + at for name, at in constant_offsets.items()}
        with tempfile.TemporaryDirectory(prefix="microc-load-") as name:
            folder = Path(name)
            for file, text in render_linked_network_files(module, __version__, addresses, base + code_offset).items():
                write_text(folder / file, text)
            flags = optimisation_options(self.board.target, module.options["optimize"]).split()
            elf = compile_and_link_for_board(self.board, folder, IMAGE_SOURCES, LOADING_SCRIPT, *flags)
            sizes = read_linked_sizes(elf)
            entry = next(s.address for s in sizes.symbols if s.name == "microc_enter")
            return join_segments(read_segments(elf)), (entry & ~1) - base, sizes.symbols

    def _check_loadable(self, module: Module) -> None:
        """Raise UsageError for a module that cannot be loaded into RAM: it keeps state, its sizes vary, or it has too
        many inputs and outputs."""
        reason = ""
        if module.state:
            reason = "it keeps state from run to run"
        elif module.sizes:
            reason = "its sizes vary"
        elif any(value.storage == "const" and value.data is None for value in module.values.values()):
            reason = "the data of a constant is not part of the module"
        if reason:
            raise UsageError(
                f"{module.name} cannot be loaded: {reason}", hint="compile it into a firmware, and flash that"
            )
        max_addresses = min(MAX_ADDRESSES, (self.client.info.max_payload - _CALL_HEADER) // 4)
        if 1 + len(module.inputs) + len(module.outputs) > max_addresses:
            raise UsageError(
                f"{module.name} cannot be loaded: got {len(module.inputs) + len(module.outputs)} inputs and outputs, "
                f"expected at most {max_addresses - 1}",
                hint="compile it into a firmware, and flash that",
            )


class LoadedKernels:
    """Kernels that are loaded into a board's memory; ``loaded(x)`` runs them on arrays and returns arrays.
    ``last``: timing of the last call, in ticks. Valid until the board restarts or :meth:`Device.unload`."""

    def __init__(
        self,
        loader: CodeLoader,
        module: Module,
        image: LoadedImage,
        begin: int,
        arena: int,
        buffers: dict[str, int],
        symbols: Sequence[Symbol],
    ) -> None:
        self.module, self.image, self.begin = module, image, begin
        self.last: Timing | None = None
        self.inputs = tuple(describe_value(module, name) for name in module.inputs)
        self.outputs = tuple(describe_value(module, name) for name in module.outputs)
        self._client, self._arena, self._buffers, self._symbols = loader.client, arena, buffers, symbols
        self._addresses = (
            arena,
            *(self._find_offset_in_code_memory(name) for name in (*module.inputs, *module.outputs)),
        )

    def __call__(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """Run the loaded kernels once on input arrays in the order of the function's parameters; return an array, or a
        tuple if there are several outputs."""
        self.set_inputs(*arrays)
        self.last = self.run()
        results = tuple(self.read(name) for name in self.module.outputs)
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<Loaded {self.module.name}: {self.image.nbytes} bytes of code, {len(self.module.calls)} kernels>"

    def time_evaluator(self, repeat: int = 10) -> Callable[..., Timing]:
        """Return a function that sends arrays to the board, executes the kernels ``repeat`` times, and returns the
        ticks, like ``time_evaluator`` in TVM.

        If inputs share memory with results, only the first execution computes from the arrays that were sent.
        """
        count = validation.as_integer("repeat", repeat, 1, (1 << 32) - 1)

        def time_executions(*arrays: Any) -> Timing:
            self.set_inputs(*arrays)
            return self.run(repeat=count)

        return time_executions

    def set_inputs(self, *arrays: Any) -> None:
        """Send all inputs to the board; shapes and dtypes must match."""
        for tensor, array in zip(self.inputs, RunShapes({}).check_inputs(self.inputs, arrays), strict=True):
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            self._client.write_bytes(self._find_offset_in_code_memory(tensor["name"]), data)

    def run(self, kernel: int | None = None, repeat: int = 1, timeout: float | None = None) -> Timing:
        """Execute the kernel at position ``kernel``, or all kernels in order if ``kernel`` is None; do this ``repeat``
        times.

        ``timeout``: seconds, see :meth:`Client.call_image`."""
        number = len(self.module.calls) if kernel is None else kernel
        return self._client.call_image(self.image, number, self._addresses, repeat, timeout)

    def read(self, name: str) -> Array:
        """Read a value of the module from the board's memory, by its name."""
        value = self.module.values[name]
        dtype = dtypes.to_numpy(value.dtype)
        data = self._client.read_code_memory(self._find_offset_in_code_memory(name), prod(value.shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(value.shape)

    def overwrite_first_bytes(self, name: str, data: bytes) -> None:
        """Overwrite the first bytes of a value, so that a kernel that writes nothing is noticed."""
        self._client.write_bytes(self._find_offset_in_code_memory(name), data)

    def value_equals(self, name: str, array: Array) -> bool:
        """Test whether a value equals an array, bit by bit. The board returns a CRC-32 instead of the bytes."""
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        return self._client.compute_crc(self._find_offset_in_code_memory(name), len(data)) == zlib.crc32(data)

    def code_bytes_of_kernel(self, kernel: str) -> int:
        """Return the number of bytes of code of the kernel's function with the name ``kernel``."""
        return sum(s.size for s in self._symbols if s.name.partition(".")[0] == kernel)

    def _find_offset_in_code_memory(self, name: str) -> int:
        """Return the byte offset of a value in the board's memory for code."""
        base, offset = self.module.base_and_offset(name)
        assert self.module.plan is not None
        if base in self._buffers:
            return self._buffers[base] + offset
        return self._arena + self.module.plan.offsets[base] + offset


# ---- A board that runs a project, as an object: arrays in, arrays out, timings.

PATIENCE = 10.0
"""Seconds without an answer before a board is given up."""
_ATTEMPTS = 20.0
"""Time-outs after which a client gives up: 7 attempts that wait 1, 1.5, 2.25, 3.4, 4, 4 and 4 of them, see
``Link.patience``."""


def client_timeout(patience: float) -> float:
    """Return the seconds without an answer before a request is repeated, so that a client gives up after about
    ``patience``."""
    return patience / _ATTEMPTS


def open_client(
    port: str, bauds: Sequence[int], patience: float, *, default_rate: int = BAUD, progress: Progress | None = None
) -> Client:
    """Open a client on a serial line, whatever network the board runs.

    ``patience``: seconds without an answer before giving up; ``default_rate``: the baud rate if ``bauds`` is empty."""
    return Client(
        open_line_probing_rates(port, bauds, default_rate),
        client_timeout(patience),
        reconnect=patience,
        progress=progress,
    )


class Device(Showable):
    """A session with a board that runs a project: a process for the host board, an emulator, or hardware on a serial
    line.

        with microc.Device("firmware") as dev:              # an emulated board, or one that is found by its USB ids
            y = dev.run(x)
            print(dev.profile())
        with microc.Device("/dev/ttyACM0") as dev: ...      # its project is searched for in this folder and its subfolders

    ``source``: a built project or its folder, or a line (a serial port, ``socket://HOST:PORT``, or
    ``tcp://HOST:PORT`` for a board behind ``microc serve``). ``port``: the line of
    a project's board, or ``auto``. ``network``: name of one network of a project with several. ``bauds``: rates to try
    (default: the board's). ``patience``: seconds without an answer, or without the line, before giving up. ``load``:
    first send the network of a relocatable project, see :meth:`load_network`; an emulator that microc starts always
    gets the network, because it starts empty. ``cycles``: :meth:`profile` also gives cycles, by a model of the core or
    from a simulator (:mod:`microc.run.arm_cycles`). Raises DeviceError if nothing answers, or the board runs another
    build; UsageError if the board has no cycles.

    ``last``: timing of the last :meth:`run`, in ticks, which :attr:`clock` converts. ``emulated``: True if microc,
    here or behind ``microc serve``, runs the board's emulator.
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
        cycles: bool = False,
        progress: Progress | bool | None = None,
    ) -> None:
        if not isinstance(source, Project):
            validation.as_path("a project or line", source)
        validation.as_text("a port", port)
        validation.as_text("a network", network)
        validation.as_boolean("load", load)
        self._has_cycles = validation.as_boolean("cycles", cycles)
        self._counter: ExecutionCounter | None = None
        progress_callback = as_callback(progress)
        bauds = validation.as_integers("bauds", bauds, 1)
        patience = validation.as_number("patience", patience, 0.001, 1e6, "seconds")
        if cycles and (port or is_serial_line(source)):
            from microc.run.arm_cycles import make_port_error

            raise make_port_error(port or str(source))
        with ExitStack() as stack:
            if is_serial_line(source):
                transport = open_line_probing_rates(str(source), bauds)
                project = find_answering_project(transport, network)
                reconnect, emulated = patience, is_remotely_emulated(transport, project.board)
            else:
                project = source if isinstance(source, Project) else open_project(source, network)
                project = self._count_executions(project, stack) if cycles else project
                transport, reconnect, emulated = open_board_line(project, port, bauds, patience, stack)
            options: dict[str, Any] = {"reconnect": reconnect, "model": project.index, "progress": progress_callback}
            client = stack.enter_context(Client(transport, client_timeout(patience), **options))
            is_fresh = reconnect == 0.0  # an emulator or process that we have just started
            if load or (is_fresh and project.relocatable):
                send_network(client, read_network_blob(project))
            self._attach_to_client(project, client, emulated)
            self._stack = stack.pop_all()

    def _count_executions(self, project: Project, stack: ExitStack) -> Project:
        """Return the project whose emulator counts executions, unless a simulator counts cycles itself."""
        from microc.run.arm_cycles import count_executions, require_cycle_source

        require_cycle_source(project.board)
        if project.board.simulated:
            return project
        self._counter = stack.enter_context(count_executions(project))
        return self._counter.project

    @classmethod
    def over(cls, project: Project, client: Client, *, emulated: bool = False) -> Device:
        """Open a session with a project's board over a client that is already connected. The caller closes the client."""
        device = cls.__new__(cls)
        device._has_cycles, device._counter = False, None
        device._attach_to_client(project, client, emulated)
        device._stack = ExitStack()
        return device

    def _attach_to_client(self, project: Project, client: Client, emulated: bool) -> None:
        """Check that the board runs the project's build, and take its tables of tensors and kernels."""
        load = f"load it: microc load {quote_argument(str(project.folder))} --port PORT"
        client.check_fingerprint(project.manifest["fingerprint"], *([load] if project.relocatable else []))
        self.project = project
        self.client = client
        self.emulated = emulated
        self.last: Timing | None = None
        self.loader: CodeLoader | None = None
        self.shapes = RunShapes(project.manifest)
        self._tensors = project.tensors
        self._check_board_tables()
        self._index = {name: k for k, name in enumerate(self._tensors)}
        self.inputs = tuple(self._tensors[n] for n in project.manifest["inputs"])
        self.outputs = tuple(self._tensors[n] for n in project.manifest["outputs"])

    def _check_board_tables(self) -> None:
        """Raise DeviceError unless the board reports the same tensors and kernels as the manifest. Because the
        fingerprint has matched before, a difference means that the firmware is faulty."""
        model = self.client.model
        sizes = [4 * len(self.shapes.sizes)] if self.shapes.sizes else []
        if [t.nbytes for t in model.tensors] != [t["bytes"] for t in self._tensors.values()] + sizes or (
            model.kernel_count != len(self.kernels)
        ):
            raise DeviceError(
                "the board's tensors and kernels differ from those of the project",
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
        """Close the line; end the emulator or process if microc has started it."""
        self._stack.close()

    def __repr__(self) -> str:
        network = format_signature(self.project.manifest["model"], self.inputs, self.outputs)
        return f"<Device {self.project.board.name}: {network}, {len(self.kernels)} kernels>"

    def document(self) -> Document:
        """Return the board, its core and the unit of its times as a document, for a notebook."""
        board = self.project.board
        rows = (
            ("board", board.title),
            ("core", board.target.cpu),
            ("kernels", len(self.kernels)),
            ("time in", self.clock.unit),
        )
        signature = format_signature(self.project.manifest["model"], self.inputs, self.outputs)
        return document(facts(rows), title=signature)

    @property
    def tick_hz(self) -> int:
        return self.client.info.tick_hz

    @property
    def clock(self) -> Clock:
        """Unit of the board's timings."""
        return Clock(self.project.board, self.tick_hz, self.emulated)

    @property
    def self_test(self) -> str | None:
        """Result of the self-tests at boot: ``passed``, ``failed``, or None if the firmware has none."""
        result = self.client.info.self_test
        return None if not result else "passed" if result == 1 else "failed"

    def failed_self_test(self) -> VerificationError | None:
        """Return the error for a failed self-test, else None."""
        info = self.client.info
        if info.self_test < 2:
            return None
        name = info.models[info.self_test - 2].name
        return VerificationError(
            f"the network {name!r} failed its self-test when the board started: its outputs differ from the expected ones",
            where=f"board {self.project.board.name}",
            hint="flash the firmware again; if it fails again, microc verify says which layer differs",
        )

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The manifest's kernels in the order of execution."""
        kernels: list[dict[str, Any]] = self.project.manifest["kernels"]
        return kernels

    def run(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """Run one inference on input arrays in the order of the network's inputs; return an array, or a tuple if there
        are several outputs.

        A network that learns infers if labels and rate are left out, and returns its outputs without the loss."""
        infers = is_inference(self.project.manifest, arrays)
        self.set_inputs(*arrays)
        self.last = self.client.run(last=self.learning["kernels"] - 1 if infers else None)
        results = tuple(self.read(t["name"]) for t in (self.outputs[:-1] if infers else self.outputs))
        return results[0] if len(results) == 1 else results

    def set_inputs(self, *arrays: Any) -> None:
        """Send all inputs, and the sizes that their shapes imply if sizes vary. Shapes and dtypes must match; nothing
        is converted. Labels and rate of a network that learns may be left out."""
        inputs = self.inputs[:-2] if is_inference(self.project.manifest, arrays) else self.inputs
        converted = self.shapes.check_inputs(inputs, arrays)
        if self.shapes.sizes:
            self.client.write_tensor(len(self._tensors), self.shapes.vector.astype("<i4").tobytes())
        for tensor, array in zip(inputs, converted, strict=True):
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            self.client.write_tensor(self._index[tensor["name"]], data, allow_fewer_bytes="extents" in tensor)

    @property
    def learning(self) -> Mapping[str, Any]:
        """Entry ``learning`` of the manifest. Raises UsageError if it does not learn."""
        return require_learning(self.project.manifest)

    def learn(self, *arrays: Any, rate: float) -> float:
        """Make a step of learning; return the loss before the step.

        ``arrays``: the network's inputs in order, then the labels, whose numbers may have any dtype that holds them.
        ``rate``: the learning rate. Raises UsageError if the firmware does not learn, or an array does not match."""
        learning = self.learning
        *inputs, labels = arrays or (None,)
        label_array = convert_labels(labels, self._tensors[learning["labels"]])
        self.set_inputs(*inputs, label_array, np.float32(validation.as_number("rate", rate, 0, 1e9)))
        self.last = self.client.run()
        return float(self.read(learning["loss"]))

    def save_weights(self, path: str | Path) -> None:
        """Write what was learned, weights and the optimiser's state, to a .npz file, by the tensors' names.

        Raises UsageError if the firmware does not learn, and OutputError if the file cannot be written."""
        learned = learned_tensors(self.project.manifest)
        write_weights(
            validation.as_path("a file", path), learned, {t["name"]: self.read(t["name"]) for t in learned.tensors}
        )

    def restore_weights(self, path: str | Path) -> None:
        """Send what :meth:`save_weights` wrote to the board. Names, shapes and dtypes must match those of the network.

        Raises UsageError if the firmware does not learn or the file does not match; the board keeps its weights then."""
        self._send_weights(path)

    def _send_weights(self, path: str | Path) -> list[bytes]:
        """Send the learned weights of a file to the board, and return the bytes of each tensor; see :meth:`restore_weights`."""
        learned = learned_tensors(self.project.manifest)
        data = learned.to_bytes(read_weights(validation.as_path("a file", path), learned))
        for tensor, content in zip(learned.tensors, data, strict=True):
            self.client.write_tensor(self._index[tensor["name"]], content)
        return data

    def banks(self) -> tuple[Bank, ...]:
        """Query the two banks of non-volatile memory in which the board keeps learned weights.

        Raises DeviceError if the firmware does not learn."""
        return query_banks(self.client)

    def save_to_bank(self, path: str | Path | None = None) -> None:
        """Let the board save its learned weights into the older bank; when it starts, it restores the newest.

        ``path``: file of :meth:`save_weights` or :meth:`fetch_bank` that is sent first, as by :meth:`restore_weights`. The board
        compares network, size and CRC before it writes; until the save is whole the one before counts. Raises DeviceError if
        the board refuses or cannot write, and UsageError as :meth:`restore_weights`."""
        learned = learned_tensors(self.project.manifest)
        data = (
            [self.client.read_tensor(self._index[tensor["name"]]) for tensor in learned.tensors]
            if path is None
            else self._send_weights(path)
        )
        save_to_bank(self.client, data, learned.identity)

    def restore_from_bank(self) -> None:
        """Let the board restore its learned weights from the newest bank. Raises DeviceError if none is whole; if a bank cannot
        be read, the weights in use are then those of the model."""
        self.client.request(Operation.RESTORE, answer_bytes=0, may_compute=True)

    def fetch_bank(self, path: str | Path) -> None:
        """Write the learned weights of the newest bank to a .npz file, as :meth:`save_weights` does those in use.

        Raises DeviceError if no bank is whole or one is unreadable, and OutputError if the file cannot be written."""
        learned, file = learned_tensors(self.project.manifest), validation.as_path("a file", path)
        # An unreadable bank may contain the newest save: reading it raises the board's error.
        newest = next((bank for bank in self.banks() if bank.newest or bank.state == "unreadable"), None)
        if newest is None:
            raise DeviceError(
                "no bank contains learned weights of this network",
                where=f"board {self.project.board.name}",
                hint="save them first: device.save_to_bank(), or microc learn --keep",
            )
        write_weights(file, learned, learned.from_bytes(read_bank(self.client, newest, learned.sizes)))

    def clear_banks(self) -> None:
        """Erase both banks; the weights in use stay. Raises DeviceError if the board cannot erase them."""
        self.client.request(Operation.CLEAR, answer_bytes=0, may_compute=True)

    def run_kernel(self, kernel: int) -> Timing:
        """Execute one kernel; all kernels in order are one inference."""
        number = validation.as_integer("a kernel", kernel, most=len(self.kernels) - 1)
        return self.client.run(number, number)

    def read(self, name: str) -> Array:
        """Read a tensor of the manifest. An intermediate tensor is valid only until its memory is reused."""
        tensor = self._tensors.get(validation.as_text("a tensor", name))
        if tensor is None:
            raise UsageError(f"there is no tensor {name!r}", hint=known_names_hint(name, self._tensors, "tensors"))
        dtype = dtypes.to_numpy(tensor["dtype"])
        shape = self.shapes.shape_of(tensor)
        data = self.client.read_tensor(self._index[name], prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def overwrite_first_bytes(self, name: str, data: bytes) -> None:
        """Overwrite the first bytes of a tensor, so that a kernel that writes nothing is noticed."""
        self.client.write_tensor(self._index[name], data, allow_fewer_bytes=True)

    def profile(self) -> Profile:
        """Measure every layer of one inference, on the inputs that are in the board's memory. ``print`` shows the
        result as a table."""
        from microc.reports.firmware_size import try_to_measure_firmware
        from microc.run.profile import make_profile

        size = try_to_measure_firmware(self.project)
        ticks, cycles = self.measure_kernels()
        return make_profile(self.project, self.clock, ticks, size, cycles)

    def measure_kernels(self) -> tuple[tuple[int, ...], KernelCycles | None]:
        """Run one inference on the inputs that are in the board's memory; return the ticks of each kernel, and the cycles
        of a device that was opened with ``cycles``."""
        if self._counter is not None:
            self._counter.skip()
        ticks = self.kernel_ticks()
        if not self._has_cycles:
            return ticks, None
        if self._counter is None:
            from microc.run.arm_cycles import convert_simulated_ticks

            return ticks, convert_simulated_ticks(self.project.board, ticks)
        counts = self._counter.read_kernels(len(self.kernels), self.client.kernels_per_request)
        return ticks, self._counter.model_kernels(counts)

    def kernel_ticks(self) -> tuple[int, ...]:
        """Run one inference on the inputs that are in the board's memory; return the ticks of each kernel."""
        return self.client.profile()

    def time(self, repeat: int = 10) -> Timing:
        """Measure the ticks of ``repeat`` inferences; see :meth:`microc.device.client.Client.run` about the inputs."""
        return self.client.run(repeat=validation.as_integer("repeat", repeat, 1, (1 << 32) - 1))

    def load_network(self, source: Project | Program | str | Path) -> None:
        """Send another network into the board's inactive slot, activate it, and continue the session with it.

        ``source``: a built project or its folder, or a result of :func:`microc.compile`; compiled with
        ``relocatable=True`` for a board with the same core and compiler options. Raises FitError if the board has no
        room, UsageError if the network is for another core, DeviceError if the board refuses it; the previous network
        keeps running then.
        """
        project = source if isinstance(source, Project) else self._open_project(source)
        send_network(self.client, read_network_blob(project))
        self._attach_to_client(project, self.client, self.emulated)

    def _open_project(self, source: Program | str | Path) -> Project:
        """Open the project in a folder; or build a compiled program in a temporary folder, which is deleted at the end
        of the session."""
        from microc.compiler.api import Program

        if not isinstance(source, Program):
            return open_project(source)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="microc-load-")))
        project = open_project(source.write(folder / "network"))
        build_project(project)
        return project

    def load(self, what: Any, **constants: Any) -> LoadedKernels:
        """Load a kernel into the board's memory without flashing. ``what``: a function, a schedule or a program;
        ``constants``: see :func:`microc.run.session.load_kernel_on_device`."""

        return load_kernel_on_device(self, what, constants)

    def unload(self) -> None:
        """Free the board's memory that loaded kernels use."""
        self.loader = None

    def stats(self) -> Stats:
        """Read the board's stack depth and the counters of its line."""
        return self.client.stats()

    def reset(self) -> None:
        """Reset the state of recurrent layers to its initial content, and weights that learn to those of the model."""
        self.client.reset_state()


# ---- Flashing.


def flash_project(
    project: Project,
    runner: str = "",
    *,
    port: str = "",
    bauds: Sequence[int] = (),
    dry_run: bool = False,
    patience: float = PATIENCE,
) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Flash a project's firmware; return the flashing commands, and True if the board then answered as this project.

    An emulated board is loaded through its debugger and queried at once; it has no ``port``. Hardware is queried if one is
    given.
    ``dry_run``: return the commands without running them."""
    if is_remote(port):
        raise UsageError(
            "a board behind microc serve cannot be flashed from here",
            where=port,
            hint="flash it on the computer that serves it, then start microc serve there again",
        )
    selected = select_runner(project.board, runner)
    if port and selected.emulated:
        raise UsageError(
            f"{project.board.name} is flashed in its emulator, which has no serial port",
            where=port,
            hint="leave out the port",
        )
    port = find_board_port(project.board) if port == AUTO else port
    if dry_run:
        return flash_image(project.board, project.elf, runner=runner, port=port, dry_run=True), False
    if not selected.emulated:
        commands = flash_image(project.board, project.elf, runner=runner, port=port)
        if port and project.relocatable:
            with open_client(
                port, bauds, patience, default_rate=project.board.raw["console"].get("baud", BAUD)
            ) as client:
                query_slots(client)
        elif port:
            Device(project, port, bauds=bauds, patience=patience).close()
        return commands, bool(port)
    if not project.elf.is_file():
        raise UsageError(
            "the project is not built", where=str(project.folder), hint=f"build it: microc build {project.folder}"
        )
    with Emulator(project.board, None, debug=True) as emulator:
        command = load_image_into_emulator(emulator, project.elf)
        Device(project, emulator.url, patience=patience, load=project.relocatable).close()
        return (command,), True
