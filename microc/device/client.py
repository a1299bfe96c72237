"""The host's end of the protocol, and slots of a board."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from microc.device.board_info import (
    DTYPES,
    KINDS,
    DeviceInfo,
    Image,
    ModelInfo,
    Region,
    Slots,
    Stats,
    TensorInfo,
    Timing,
    readable,
)
from microc.device.line_protocol import VERSION, Link, Operation
from microc.device.transport import Transport
from microc.errors import DeviceError, UsageError

# ---- The host's end of the protocol: tensors in and out of a board, runs with timings, ticks per kernel.

Progress = Callable[[str, int, int], None]
"""Told ``(what, done, total)`` as a long operation goes on."""

_NO_KERNEL = 0xFFFF
_ENTRY = struct.Struct("<IHBB")
_REQUEST_SECONDS = 1.0  # a request that times several runs is sized to last about so long
_SLOWEST = 200.0  # bytes of tensors per second: a line of 2400 baud
_MOST_TENSORS = 0x10000  # of all models together; a board that tells of more would fill the host's memory
_LARGEST_READ = 1 << 28  # bytes
_MOST_TICKS = 1 << 31  # of one execution: a counter that goes backwards by a few ticks gives nearly 2**32


class Client:
    """A session with a board; use it in a ``with`` statement, which closes the transport.

    ``timeout``: seconds without an answer before a request is repeated; the wait grows with each of the ``retries``
    repetitions, up to four times as long (10 s in all with the defaults). Runs and profiles are given ``run_timeout``
    seconds at least, since a board that computes does not answer. ``reconnect``: seconds to wait for a line that was lost,
    plugged out for example. ``max_payload``: bytes of a frame's payload, if the board takes more. ``model`` picks one of the
    models of the firmware.

    Every method has its effect exactly once, however bad the line is, or raises DeviceError. It does so in time, whatever the
    board sends: a run and the whole of ``hello`` in ``run_timeout``, transfers as a line of 2400 baud would.
    """

    def __init__(
        self,
        transport: Transport,
        timeout: float = 0.5,
        retries: int = 6,
        *,
        run_timeout: float = 120.0,
        reconnect: float = 0.0,
        max_payload: int = 4096,
        model: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._link = Link(transport, timeout, retries, reconnect)
        self._run_timeout = run_timeout
        self._model_index = model
        self._progress = progress
        self._max_payload = max_payload
        self._info: DeviceInfo | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the transport."""
        self._link.transport.close()

    @property
    def info(self) -> DeviceInfo:
        """What the board says of itself, asked once."""
        return self._info or self.hello()

    @property
    def model(self) -> ModelInfo:
        """The model that this client works with."""
        models = self.info.models
        if not models:
            raise DeviceError(
                "no network is in the board", where=self._link.where, hint="load one: microc load DIR --port PORT"
            )
        if not 0 <= self._model_index < len(models):
            raise UsageError(f"no model {self._model_index}: the firmware holds {len(models)}", where=self._link.where)
        return models[self._model_index]

    def hello(self) -> DeviceInfo:
        """Begin a new session and ask the board what it is. Tensors and state stay as they are.

        Raises DeviceError when nothing answers or the firmware speaks another version.
        """
        self._info = None
        with self._link.within(self._run_timeout):
            max_payload, count, self_test, tick_hz = struct.unpack("<HBBI", self._link.begin())
            if not 32 <= max_payload <= 4096 or tick_hz == 0 or self_test > count + 1:
                raise self._link.nonsense(Operation.HELLO)
            models: list[ModelInfo] = []
            for index in range(count):
                known = sum(len(model.tensors) for model in models)
                models.append(self._ask_model(index, max_payload, _MOST_TENSORS - known))
        self._info = DeviceInfo(VERSION, min(max_payload, self._max_payload), tick_hz, tuple(models), self_test)
        return self._info

    def expect(self, fingerprint: str, hint: str = "build and flash the project again") -> None:
        """Raise DeviceError unless the board runs the project with this fingerprint; ``hint``: what to do then."""
        if self.model.fingerprint != fingerprint:
            raise DeviceError(
                f"the board runs {self.model.name!r} of another build (fingerprint {self.model.fingerprint})",
                where=self._link.where,
                hint=hint,
            )

    def write_tensor(self, index: int, data: bytes, *, part: bool = False) -> None:
        """Set all bytes of tensor ``index``, or (``part``) the first: little-endian elements, row-major."""
        tensor = self._tensor(index)
        if len(data) > tensor.nbytes or (len(data) < tensor.nbytes and not part):
            raise UsageError(
                f"tensor {index} takes {tensor.nbytes} bytes ({tensor.dtype}), not {len(data)}", where=self._link.where
            )
        self._put(Operation.WRITE, struct.pack("<H", index), 0, data)

    def read_tensor(self, index: int, nbytes: int | None = None) -> bytes:
        """The first ``nbytes`` bytes of tensor ``index``, or all of them.

        An intermediate holds what its ``kernel`` left only until a later kernel reuses the memory.
        """
        has = self._tensor(index).nbytes
        nbytes = has if nbytes is None else nbytes
        if not 0 <= nbytes <= min(has, _LARGEST_READ):
            raise UsageError(f"cannot read {nbytes} bytes of tensor {index}, which has {has}", where=self._link.where)
        return self._take(Operation.READ, struct.pack("<H", index), 0, nbytes)

    def region(self) -> Region:
        """The memory that takes code; DeviceError where the firmware was not built for tuning."""
        return Region(*struct.unpack("<QI", self._ask(Operation.REGION, b"", 12)))

    def load(self, offset: int, data: bytes, unit: int = 1) -> None:
        """Set bytes of the region, or of the slot that was erased, in pieces of whole units; DeviceError where they do not lie in
        it."""
        self._put(Operation.LOAD, b"", offset, data, unit)

    def fetch(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the region."""
        return self._take(Operation.FETCH, b"", offset, nbytes)

    def check(self, offset: int, nbytes: int) -> int:
        """The CRC-32 of bytes of the region, which the board computes."""
        answer: tuple[int] = struct.unpack("<I", self._ask(Operation.CHECK, struct.pack("<II", offset, nbytes), 4))
        return answer[0]

    def call(
        self, image: Image, number: int, places: Sequence[int] = (), repeat: int = 1, timeout: float | None = None
    ) -> Timing:
        """Enter an image that was loaded ``repeat`` times, with a number and addresses in the region, given as offsets.

        DeviceError where the image is not there whole, or has returned an error, or does not return within ``timeout``
        seconds (default: as runs); the board must be reset then.
        """
        head = struct.pack("<6I", image.offset, image.nbytes, image.crc, image.entry, number, repeat)
        addresses = struct.pack(f"<{len(places)}I", *places)
        answer = self._ask(Operation.CALL, head + addresses, 16, self._run_timeout if timeout is None else timeout)
        least, most, total = struct.unpack("<IIQ", answer)
        if not least * repeat <= total <= most * repeat:
            raise self._link.nonsense(Operation.CALL)
        self._check_ticks(most)
        return Timing(least, total / repeat, most, repeat)

    def run(self, first: int = 0, last: int | None = None, repeat: int = 1) -> Timing:
        """Execute kernels ``first`` to ``last`` (both included; None: the last of all) ``repeat`` times.

        State advances with every run; where the plan lets kernels overwrite the inputs, only the first of several runs
        computes from what was written, and the others serve for timing alone.
        """
        last = self._last_kernel(first, last)
        if not 1 <= repeat <= 0xFFFFFFFF:
            raise UsageError(f"cannot run {repeat} times", where=self._link.where)
        least, most, total, done, chunk = 0xFFFFFFFF, 0, 0, 0, 1
        while done < repeat:
            count = min(chunk, repeat - done)
            answer = self._ask(Operation.RUN, struct.pack("<HHI", first, last, count), 16, self._run_timeout)
            low, high, ticks = struct.unpack("<IIQ", answer)
            if not low * count <= ticks <= high * count:
                raise self._link.nonsense(Operation.RUN)
            self._check_ticks(high)
            least, most, total, done = min(least, low), max(most, high), total + ticks, done + count
            per_request = int(_REQUEST_SECONDS * self.info.tick_hz * done / max(total, 1))
            chunk = max(1, min(per_request, 10 * chunk))  # ticks may stand still: grow with care
            self._tell("run", done, repeat)
        return Timing(least, total / done, most, done)

    def profile(self) -> tuple[int, ...]:
        """Execute the network once, and return the ticks of each kernel."""
        total = self.model.kernel_count
        step = self.info.max_payload // 4
        ticks: list[int] = []
        with self._transfer(4 * total, self._run_timeout):
            while len(ticks) < total:
                count = min(step, total - len(ticks))
                payload = struct.pack("<HH", len(ticks), len(ticks) + count - 1)
                answer = self._ask(Operation.PROFILE, payload, 4 * count, self._run_timeout)
                ticks += struct.unpack(f"<{count}I", answer)
                self._check_ticks(max(ticks))
                self._tell("profile", len(ticks), total)
        return tuple(ticks)

    def _check_ticks(self, most: int) -> None:
        """Refuse a difference of two readings of the board's counter that is no time."""
        if most >= _MOST_TICKS:
            raise DeviceError(
                f"the board's timer: {most:,} ticks for one execution; expected fewer than {_MOST_TICKS:,}",
                where=self._link.where,
                hint="its counter went backwards, or one execution took longer than it counts: choose a slower [timer]",
            )

    def reset_state(self) -> None:
        """Put the state tensors back to their initial values."""
        self._ask(Operation.RESET, b"", 0)

    def stats(self) -> Stats:
        """The board's counters and stack depth."""
        stack, *counters = struct.unpack("<5I", self._ask(Operation.STATS, b"", 20))
        return Stats(stack or None, *counters)

    def _put(self, operation: Operation, what: bytes, begin: int, data: bytes, unit: int = 1) -> None:
        """Bytes onto the board, piece by piece, from an offset on."""
        step = (self.info.max_payload - len(what) - 4) // unit * unit
        with self._transfer(len(data)):
            for done in range(0, len(data), step):
                chunk = data[done : done + step]
                self._ask(operation, what + struct.pack("<I", begin + done) + chunk, 0)
                self._tell(operation.name.lower(), done + len(chunk), len(data))

    def _take(self, operation: Operation, what: bytes, begin: int, nbytes: int) -> bytes:
        """Bytes of the board, piece by piece, from an offset on."""
        data = bytearray()
        with self._transfer(nbytes):
            while len(data) < nbytes:
                size = min(self.info.max_payload, nbytes - len(data))
                data += self._ask(operation, what + struct.pack("<IH", begin + len(data), size), size)
                self._tell(operation.name.lower(), len(data), nbytes)
        return bytes(data)

    def ask(
        self, operation: Operation, payload: bytes = b"", size: int | None = None, *, computes: bool = False
    ) -> bytes:
        """A request that is none of the above, and its answer, of ``size`` bytes if given. ``computes``: it may take as long as a
        run does."""
        return self._ask(operation, payload, size, self._run_timeout if computes else 0.0)

    def _ask(self, operation: Operation, payload: bytes, size: int | None, patience: float = 0.0) -> bytes:
        """A request about this client's model; says hello before the first."""
        if self._info is None:
            self.hello()
        return self._link.request(operation, payload, model=self._model_index, size=size, patience=patience)

    def _transfer(self, nbytes: int, seconds: float = 0.0) -> AbstractContextManager[None]:
        """A time limit for requests that carry ``nbytes`` together, and have the board compute for ``seconds``."""
        return self._link.within(seconds + self._link.patience + nbytes / _SLOWEST)

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    def _tensor(self, index: int) -> TensorInfo:
        tensors = self.model.tensors
        if not 0 <= index < len(tensors):
            raise UsageError(f"no tensor {index}: {self.model.name!r} has {len(tensors)}", where=self._link.where)
        return tensors[index]

    def _last_kernel(self, first: int, last: int | None) -> int:
        count = self.model.kernel_count
        last = count - 1 if last is None else last
        if not 0 <= first <= last < count:
            raise UsageError(f"no kernels {first} to {last}: {self.model.name!r} has {count}", where=self._link.where)
        return last

    def _ask_model(self, index: int, max_payload: int, most: int) -> ModelInfo:
        answer = self._link.request(Operation.MODEL, model=index)
        if not 24 <= len(answer) <= max_payload:
            raise self._link.nonsense(Operation.MODEL)
        fingerprint, arena, tensor_count, kernel_count = struct.unpack_from("<16sIHH", answer)
        if tensor_count > most:
            raise self._link.nonsense(Operation.MODEL)
        name = readable(answer[24:].decode(errors="replace"))
        tensors = self._ask_tensors(index, tensor_count, max_payload // _ENTRY.size)
        return ModelInfo(name, fingerprint.hex(), arena, kernel_count, tensors)

    def _ask_tensors(self, model: int, count: int, step: int) -> tuple[TensorInfo, ...]:
        tensors: list[TensorInfo] = []
        while len(tensors) < count:
            size = _ENTRY.size * min(step, count - len(tensors))  # as many as fit: fewer would make it last
            entries = self._link.request(Operation.TENSORS, struct.pack("<H", len(tensors)), model=model, size=size)
            for nbytes, kernel, dtype, kind in _ENTRY.iter_unpack(entries):
                if dtype >= len(DTYPES) or kind >= len(KINDS):
                    raise self._link.nonsense(Operation.TENSORS)
                written = None if kernel == _NO_KERNEL else kernel
                tensors.append(TensorInfo(len(tensors), nbytes, DTYPES[dtype], KINDS[kind], written))
        return tuple(tensors)


# ---- What a board that takes networks is asked: what it has for them, to make room for one, and to run what came.

_SLOTS, _MOST_UNIT = struct.Struct("<HBB5I"), 64


def ask_slots(client: Client) -> Slots:
    """What the board has for networks that are loaded; DeviceError where its firmware takes none."""
    answer = client.ask(Operation.SLOTS)
    unit = answer[3] if len(answer) >= _SLOTS.size else 0
    if not 1 <= unit <= _MOST_UNIT or unit & (unit - 1):
        raise DeviceError("the board's answer to SLOTS makes no sense", hint="flash the firmware again")
    version, active, _, room, memory, stack, commits, abi = _SLOTS.unpack_from(answer)
    core = readable(answer[_SLOTS.size :].decode(errors="replace"))
    return Slots(version, active if active < 2 else None, unit, room, memory, stack, commits, abi, core)


def fill_slot(client: Client, data: bytes, unit: int) -> None:
    """Bring a network, its signature behind it, into the slot that does not run, and have the board inspect and run it.
    DeviceError says why it does not; what ran before runs then."""
    client.ask(Operation.ERASE, struct.pack("<I", len(data)), 0, computes=True)
    client.load(0, data + b"\xff" * (-len(data) % unit), unit)
    client.ask(Operation.COMMIT, struct.pack("<I", len(data)), 0, computes=True)
    client.hello()  # it has another model
