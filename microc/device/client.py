"""The host's end of the protocol: tensors in and out of a board, runs with timings, ticks per kernel.

One request is under way at a time. A request without an answer is repeated with its sequence number, and the board then sends
the answer that it kept instead of executing again; so every method happens exactly once, or raises
:class:`~microc.errors.DeviceError`. ``runtime_c/SPEC.md`` has the details.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from microc.device.framing import REPLY, VERSION, Decoder, Frame, Operation, Status, encode
from microc.device.transport import Transport
from microc.errors import DeviceError, UsageError

DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float32",
    "float64",
)
"""dtypes by their number on the line (``enum microc_dtype``)."""

KINDS = ("input", "output", "intermediate", "state")
"""Kinds of tensors by their number on the line (``enum microc_kind``)."""

Progress = Callable[[str, int, int], None]
"""Told ``(what, done, total)`` as a long operation goes on."""

_NO_KERNEL = 0xFFFF
_REQUEST_SECONDS = 1.0  # a request that times several runs is sized to last about so long
_GROWTH, _LARGEST_GROWTH = 1.5, 4.0

_REASONS = {
    Status.BAD_VERSION: ("the firmware speaks another protocol version", "build and flash the project again"),
    Status.BAD_SESSION: ("the board has restarted", "open the connection again and repeat; did the firmware crash?"),
    Status.BAD_SEQUENCE: ("the board has lost count of the requests", "does another program use the same line?"),
    Status.BAD_OPERATION: ("the firmware does not know this operation", "build and flash the project again"),
    Status.BAD_MODEL: ("the firmware holds no such model", ""),
    Status.BAD_TENSOR: ("the model has no such tensor", ""),
    Status.BAD_RANGE: ("bytes or kernels out of range", ""),
    Status.UNBOUND: ("the tensor has no memory on the board", "bind it in the firmware before the host uses it"),
    Status.RUN_FAILED: ("the model's run function has failed", ""),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor on the board. ``kernel`` is the index of the kernel after which it is complete; None if none writes it."""

    index: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model in the firmware. ``fingerprint`` is that of the project it was generated in, 32 hexadecimal digits."""

    name: str
    fingerprint: str
    arena_bytes: int
    kernel_count: int
    tensors: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a board says of itself. ``max_payload`` in bytes; ``tick_hz`` is the rate of all its timings."""

    version: int
    max_payload: int
    tick_hz: int
    models: tuple[ModelInfo, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Ticks of ``count`` runs; seconds are ticks divided by :attr:`DeviceInfo.tick_hz`."""

    min: int
    mean: float
    max: int
    count: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Health of the board. ``stack_bytes``: deepest stack since the start, None if unknown. The rest counts frames:
    received whole, damaged, repeated by the host, refused."""

    stack_bytes: int | None
    frames: int
    bad_frames: int
    repeats: int
    refusals: int


class Client:
    """A session with a board; use it in a ``with`` statement, which closes the transport.

    ``timeout``: seconds without an answer before a request is repeated; the wait grows with each of the ``retries``
    repetitions, up to four times as long (10 s in all with the defaults). Runs and profiles are given ``run_timeout``
    seconds at least, since a board that computes does not answer. ``model`` picks one of the models of the firmware.
    """

    def __init__(
        self,
        transport: Transport,
        timeout: float = 0.5,
        retries: int = 6,
        *,
        run_timeout: float = 120.0,
        model: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._transport = transport
        self._timeout = timeout
        self._retries = retries
        self._run_timeout = run_timeout
        self._model_index = model
        self._progress = progress
        self._decoder = Decoder()
        self._session = 0
        self._sequence = 0
        self._info: DeviceInfo | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    @property
    def info(self) -> DeviceInfo:
        """What the board says of itself, asked once."""
        return self._info or self.hello()

    @property
    def model(self) -> ModelInfo:
        """The model that this client works with."""
        models = self.info.models
        if not 0 <= self._model_index < len(models):
            raise UsageError(f"no model {self._model_index}: the firmware holds {len(models)}", where=self._where)
        return models[self._model_index]

    def hello(self) -> DeviceInfo:
        """Begin a new session and ask the board what it is. Tensors and state stay as they are.

        Raises DeviceError when nothing answers or the firmware speaks another version.
        """
        self._session = 1 + secrets.randbelow(0xFFFF)
        answer = self._request(Operation.HELLO, size=8)
        max_payload, count, _, tick_hz = struct.unpack("<HBBI", answer)
        models = tuple(self._ask_model(index) for index in range(count))
        self._info = DeviceInfo(VERSION, max_payload, tick_hz, models)
        return self._info

    def expect(self, fingerprint: str) -> None:
        """Raise DeviceError unless the board runs the project with this fingerprint."""
        if self.model.fingerprint != fingerprint:
            raise DeviceError(
                f"the board runs {self.model.name!r} of another build (fingerprint {self.model.fingerprint})",
                where=self._where,
                hint="build and flash the project again",
            )

    def write_tensor(self, index: int, data: bytes) -> None:
        """Set all bytes of tensor ``index``: little-endian elements, row-major."""
        tensor = self._tensor(index)
        if len(data) != tensor.nbytes:
            raise UsageError(
                f"tensor {index} takes {tensor.nbytes} bytes ({tensor.dtype}), not {len(data)}", where=self._where
            )
        step = self.info.max_payload - 6
        for offset in range(0, len(data), step):
            chunk = data[offset : offset + step]
            self._request(Operation.WRITE, struct.pack("<HI", index, offset) + chunk, size=0)
            self._tell("write", offset + len(chunk), len(data))

    def read_tensor(self, index: int) -> bytes:
        """All bytes of tensor ``index``. An intermediate is what its ``kernel`` left only until a later one reuses its memory."""
        nbytes = self._tensor(index).nbytes
        step = self.info.max_payload
        data = bytearray()
        while len(data) < nbytes:
            size = min(step, nbytes - len(data))
            data += self._request(Operation.READ, struct.pack("<HIH", index, len(data), size), size=size)
            self._tell("read", len(data), nbytes)
        return bytes(data)

    def run(self, first: int = 0, last: int | None = None, repeat: int = 1) -> Timing:
        """Execute kernels ``first`` to ``last`` (both included; None: the last of all) ``repeat`` times.

        State advances with every run; where the plan lets kernels overwrite the inputs, only the first of several runs
        computes from what was written, and the others serve for timing alone.
        """
        last = self._last_kernel(first, last)
        if not 1 <= repeat <= 0xFFFFFFFF:
            raise UsageError(f"cannot run {repeat} times", where=self._where)
        least, most, total, done, chunk = 0xFFFFFFFF, 0, 0, 0, 1
        while done < repeat:
            count = min(chunk, repeat - done)
            answer = self._request(
                Operation.RUN, struct.pack("<HHI", first, last, count), size=16, patience=self._run_timeout
            )
            low, high, ticks = struct.unpack("<IIQ", answer)
            least, most, total, done = min(least, low), max(most, high), total + ticks, done + count
            chunk = max(1, int(_REQUEST_SECONDS * self.info.tick_hz * done / max(total, 1)))
            self._tell("run", done, repeat)
        return Timing(least, total / done, most, done)

    def profile(self) -> tuple[int, ...]:
        """Execute the network once, and return the ticks of each kernel."""
        total = self.model.kernel_count
        step = self.info.max_payload // 4
        ticks: list[int] = []
        while len(ticks) < total:
            count = min(step, total - len(ticks))
            payload = struct.pack("<HH", len(ticks), len(ticks) + count - 1)
            answer = self._request(Operation.PROFILE, payload, size=4 * count, patience=self._run_timeout)
            ticks += struct.unpack(f"<{count}I", answer)
            self._tell("profile", len(ticks), total)
        return tuple(ticks)

    def reset_state(self) -> None:
        """Put the state tensors back to their initial values."""
        self._request(Operation.RESET, size=0)

    def stats(self) -> Stats:
        """The board's counters and stack depth."""
        stack, *counters = struct.unpack("<5I", self._request(Operation.STATS, size=20))
        return Stats(stack or None, *counters)

    @property
    def _where(self) -> str:
        return self._transport.description

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    def _tensor(self, index: int) -> TensorInfo:
        tensors = self.model.tensors
        if not 0 <= index < len(tensors):
            raise UsageError(f"no tensor {index}: {self.model.name!r} has {len(tensors)}", where=self._where)
        return tensors[index]

    def _last_kernel(self, first: int, last: int | None) -> int:
        count = self.model.kernel_count
        last = count - 1 if last is None else last
        if not 0 <= first <= last < count:
            raise UsageError(f"no kernels {first} to {last}: {self.model.name!r} has {count}", where=self._where)
        return last

    def _ask_model(self, index: int) -> ModelInfo:
        answer = self._request(Operation.MODEL, model=index)
        if len(answer) < 24:
            raise self._nonsense(Operation.MODEL)
        fingerprint, arena, tensor_count, kernel_count = struct.unpack_from("<16sIHH", answer)
        tensors: list[TensorInfo] = []
        while len(tensors) < tensor_count:
            entries = self._request(Operation.TENSORS, struct.pack("<H", len(tensors)), model=index)
            if not entries or len(entries) % 8:
                raise self._nonsense(Operation.TENSORS)
            for nbytes, kernel, dtype, kind in struct.iter_unpack("<IHBB", entries):
                if dtype >= len(DTYPES) or kind >= len(KINDS):
                    raise self._nonsense(Operation.TENSORS)
                written = None if kernel == _NO_KERNEL else kernel
                tensors.append(TensorInfo(len(tensors), nbytes, DTYPES[dtype], KINDS[kind], written))
        name = answer[24:].decode(errors="replace")
        return ModelInfo(name, fingerprint.hex(), arena, kernel_count, tuple(tensors))

    def _nonsense(self, operation: Operation) -> DeviceError:
        return DeviceError(
            f"the board's answer to {operation.name} makes no sense", where=self._where, hint="flash the firmware again"
        )

    def _request(
        self,
        operation: Operation,
        payload: bytes = b"",
        *,
        size: int | None = None,
        model: int | None = None,
        patience: float = 0.0,
    ) -> bytes:
        """Have the board do one thing and return its answer, of ``size`` bytes if given.

        Gives up when ``retries`` repetitions went unanswered and ``patience`` seconds have passed.
        """
        if operation is not Operation.HELLO and self._session == 0:
            self.hello()
        self._sequence = (self._sequence + 1) & 0xFF
        argument = self._model_index if model is None else model
        request = Frame(operation, self._session, self._sequence, argument, payload)
        reply = self._exchange(request, patience)
        self._check(operation, reply)
        if size is not None and len(reply.payload) != size:
            raise self._nonsense(operation)
        return reply.payload

    def _check(self, operation: Operation, reply: Frame) -> None:
        if reply.version != VERSION:
            raise DeviceError(
                f"the firmware speaks protocol version {reply.version}, this host {VERSION}",
                where=self._where,
                hint="build and flash the project again with this microc",
            )
        if reply.status != Status.OK:
            what, hint = _REASONS.get(reply.status, ("", ""))  # type: ignore[call-overload]
            raise DeviceError(
                f"the board refuses {operation.name}: {what or f'status {reply.status}'}", where=self._where, hint=hint
            )

    def _exchange(self, request: Frame, patience: float) -> Frame:
        data = encode(request)
        begin = time.monotonic()
        wait, attempt, elapsed = self._timeout, 0, 0.0
        longest = max(self._timeout * _LARGEST_GROWTH, patience / 8)
        while attempt <= self._retries or elapsed < patience:
            self._transport.write(data)
            reply = self._await(request, time.monotonic() + wait)
            if reply is not None:
                return reply
            attempt += 1
            elapsed = time.monotonic() - begin
            wait = min(wait * _GROWTH, longest)
        hint = "did the firmware crash? reset the board, or allow more time"
        if request.operation == Operation.HELLO:
            hint = "is the firmware running, and built with the RPC protocol and this baud rate?"
        what = f"no answer to {Operation(request.operation).name} in {elapsed:.1f} s, asked {attempt} times"
        raise DeviceError(what, where=self._where, hint=hint)

    def _await(self, request: Frame, deadline: float) -> Frame | None:
        """The reply to ``request``, or None at the deadline; late replies to other requests are dropped."""
        expected = (request.operation | REPLY, request.session, request.sequence)
        while (left := deadline - time.monotonic()) > 0:
            for frame in self._decoder.feed(self._transport.read(left)):
                if (frame.operation, frame.session, frame.sequence) == expected:
                    return frame
        return None
