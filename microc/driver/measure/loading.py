"""Kernels that a board loads while it runs: built for the memory that it has left, sent, called, without flashing.

Constants are kept by what is in them: those that kernels share are sent once. SPEC.md of the runtime, "Loading code".
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from microc import __version__, dtypes
from microc.codegen.compiler_options import optimisation
from microc.codegen.loading import SCRIPT, SOURCES, image_files
from microc.device.client import Client
from microc.device.image import binary, segments
from microc.device.info import Image, Timing
from microc.device.toolchain import Symbol, link_program, section_sizes
from microc.driver import accepted
from microc.driver.api import Program
from microc.driver.report.summary import tensor_data
from microc.driver.sizes.shapes import RunShapes
from microc.dtypes import Array
from microc.errors import FitError, UsageError
from microc.module import Module
from microc.target import Board

if TYPE_CHECKING:
    from microc.driver.measure.session import Device

MOST_PLACES = 32
"""Addresses of a call (``MICROC_LOAD_PLACES``)."""
_CALL_HEADER = 24
_ALIGN = 16


def load(device: Device, what: Any, constants: Mapping[str, Any]) -> Loaded:
    """A kernel in the memory of a device's board: ``loaded(x)`` runs it there.

    ``what``: a PrimFunc or a Schedule, with the data of its constants by name, or what :func:`microc.build` and
    :func:`microc.compile` made for a board of the same core. UsageError where the firmware was not built for tuning, or for a
    network that keeps state; FitError where no room is left.
    """
    from microc.driver.functions import build

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
            elf = link_program(self.board, folder, SOURCES, SCRIPT, *flags)
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
        count = accepted.integer("repeat", repeat, 1, (1 << 32) - 1)

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
