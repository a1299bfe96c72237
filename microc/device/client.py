# SPDX-License-Identifier: Apache-2.0
"""RPC client: the host's side of the serial protocol."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from microc.device.board_info import (
    BANK_STATES,
    DTYPES,
    KINDS,
    Bank,
    CodeRegion,
    DeviceInfo,
    LoadedImage,
    ModelInfo,
    Slots,
    Stats,
    TensorInfo,
    Timing,
    bank_check,
    bank_offsets,
    make_printable,
)
from microc.device.line_protocol import VERSION, Operation, ProtocolSession
from microc.device.transport import Transport
from microc.errors import DeviceError, UsageError

# ---- The client: transfer tensors, run networks, measure ticks.

Progress = Callable[[str, int, int], None]
"""Called with ``(what, done, total)`` during a long operation."""

_NO_KERNEL = 0xFFFF
_ENTRY = struct.Struct("<IHBB")
_STATS = struct.Struct("<5I")
_REQUEST_SECONDS = 1.0  # a request that times several runs is sized to last about so long
_MIN_BYTES_PER_SECOND = 200.0  # bytes of tensors per second: a line of 2400 baud
_MAX_TENSORS = 0x10000  # of all models together, so that a faulty board cannot exhaust the host's memory
_MAX_READ_BYTES = 1 << 28  # bytes
_MAX_TICKS = 1 << 31  # of one execution: a 32-bit counter that goes backwards by a few ticks gives nearly 2**32


class Client:
    """A client of the board's RPC protocol over a transport. As a context manager it closes the transport.

    ``timeout``: seconds without an answer before a request is repeated. The wait grows with each of the ``retries``
    repetitions, up to four times as long (10 s in total with the defaults). Runs and profiles wait at least
    ``run_timeout`` seconds, since a board that computes does not answer. ``reconnect``: seconds to wait for a lost
    line, such as an unplugged cable. ``max_payload``: largest payload of a frame in bytes, if the board accepts more.
    ``model``: index of the model in the firmware. ``progress``: called during long operations.

    Every request takes effect exactly once, even on a line that loses bytes, or raises DeviceError. Whatever the board
    sends, a request ends after a limited time: a run or ``hello`` after ``run_timeout``, a transfer after the time that
    a line with 2400 baud needs.
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
        self._link = ProtocolSession(transport, timeout, retries, reconnect)
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
        """The board's description of itself, requested once."""
        return self._info or self.hello()

    @property
    def model(self) -> ModelInfo:
        """The model that this client works with."""
        models = self.info.models
        if not models:
            raise DeviceError(
                "the board contains no network, expected one",
                where=self._link.where,
                hint="load one: microc load DIR --port PORT",
            )
        if not 0 <= self._model_index < len(models):
            raise UsageError(
                f"model: got number {self._model_index}, expected 0 to {len(models) - 1}",
                where=self._link.where,
                hint="name a network of the firmware",
            )
        return models[self._model_index]

    def hello(self) -> DeviceInfo:
        """Begin a new session with the board and request its description. Tensors and state do not change.

        Raises DeviceError if no board answers or the firmware has another protocol version."""
        self._info = None
        with self._link.limit_time(self._run_timeout):
            max_payload, count, self_test, tick_hz = struct.unpack("<HBBI", self._link.begin_session())
            if not 32 <= max_payload <= 4096 or tick_hz == 0 or self_test > count + 1:
                raise self._link.invalid_answer_error(Operation.HELLO)
            models: list[ModelInfo] = []
            for index in range(count):
                tensor_count = sum(len(model.tensors) for model in models)
                models.append(self._request_model_info(index, max_payload, _MAX_TENSORS - tensor_count))
        self._info = DeviceInfo(VERSION, min(max_payload, self._max_payload), tick_hz, tuple(models), self_test)
        return self._info

    def check_fingerprint(self, fingerprint: str, hint: str = "build and flash the project again") -> None:
        """Raise DeviceError unless the fingerprint of the board's model is ``fingerprint``, that of a project's build.
        ``hint``: hint of the error."""
        if self.model.fingerprint != fingerprint:
            raise DeviceError(
                f"the board runs {self.model.name!r} of another build: got fingerprint {self.model.fingerprint}, "
                f"expected {fingerprint}",
                where=self._link.where,
                hint=hint,
            )

    def write_tensor(self, index: int, data: bytes, *, allow_fewer_bytes: bool = False) -> None:
        """Write the bytes of tensor ``index``: little-endian elements in row-major order.

        ``allow_fewer_bytes``: accept fewer bytes than the tensor has, and write its first bytes; otherwise, UsageError
        is raised."""
        tensor = self._find_tensor_info(index)
        if len(data) > tensor.nbytes or (len(data) < tensor.nbytes and not allow_fewer_bytes):
            raise UsageError(
                f"tensor {index}: got {len(data)} bytes, expected {tensor.nbytes} ({tensor.dtype})",
                where=self._link.where,
                hint="give an array of its shape and dtype",
            )
        self._send_in_pieces(Operation.WRITE, struct.pack("<H", index), 0, data)

    def read_tensor(self, index: int, nbytes: int | None = None) -> bytes:
        """Read the first ``nbytes`` bytes of tensor ``index``; None for all bytes.

        An intermediate tensor is valid from its :attr:`TensorInfo.kernel` until a later kernel reuses its memory.
        """
        tensor_bytes = self._find_tensor_info(index).nbytes
        nbytes = tensor_bytes if nbytes is None else nbytes
        if not 0 <= nbytes <= min(tensor_bytes, _MAX_READ_BYTES):
            raise UsageError(
                f"cannot read {nbytes} bytes of tensor {index}; expected {tensor_bytes} at most",
                where=self._link.where,
                hint=f"read {tensor_bytes} at most",
            )
        return self._fetch_in_pieces(Operation.READ, struct.pack("<H", index), 0, nbytes)

    def query_code_region(self) -> CodeRegion:
        """Query the address and size of the board's RAM for code.

        Raises DeviceError if the firmware was not built with ``--protocol tuning``."""
        return CodeRegion(*struct.unpack("<QI", self._request_for_model(Operation.REGION, b"", 12)))

    def write_bytes(self, offset: int, data: bytes, unit_bytes: int = 1) -> None:
        """Write bytes at ``offset`` of the board's RAM for code, or of the slot that was erased.

        ``unit_bytes``: the length of each request is a multiple of it. Raises DeviceError if the bytes exceed the
        memory."""
        self._send_in_pieces(Operation.LOAD, b"", offset, data, unit_bytes)

    def read_code_memory(self, offset: int, nbytes: int) -> bytes:
        """Read ``nbytes`` bytes at ``offset`` of the board's RAM for code."""
        return self._fetch_in_pieces(Operation.FETCH, b"", offset, nbytes)

    def compute_crc(self, offset: int, nbytes: int) -> int:
        """Return the CRC-32 of ``nbytes`` bytes at ``offset`` of the board's RAM for code. The board computes it."""
        answer: tuple[int] = struct.unpack(
            "<I", self._request_for_model(Operation.CHECK, struct.pack("<II", offset, nbytes), 4)
        )
        return answer[0]

    def call_image(
        self,
        image: LoadedImage,
        kernel_number: int,
        argument_offsets: Sequence[int] = (),
        repeat: int = 1,
        timeout: float | None = None,
    ) -> Timing:
        """Call the entry function of a loaded image ``repeat`` times; return the ticks.

        ``kernel_number``: index of the kernel to execute; an index equal to the number of kernels executes all kernels
        in order. ``argument_offsets``: offsets in the board's RAM for code, which are passed to the entry function as
        addresses. ``timeout``: seconds to wait, by default as for runs. Raises DeviceError if the image is damaged,
        returns an error or does not return in time. After such a time-out the board must be reset."""
        head = struct.pack("<6I", image.offset, image.nbytes, image.crc, image.entry, kernel_number, repeat)
        addresses = struct.pack(f"<{len(argument_offsets)}I", *argument_offsets)
        answer = self._request_for_model(
            Operation.CALL, head + addresses, 16, self._run_timeout if timeout is None else timeout
        )
        least, most, total = struct.unpack("<IIQ", answer)
        if not least * repeat <= total <= most * repeat:
            raise self._link.invalid_answer_error(Operation.CALL)
        self._check_ticks(most)
        return Timing(least, total / repeat, most, repeat)

    def run(self, first: int = 0, last: int | None = None, repeat: int = 1) -> Timing:
        """Execute kernels ``first`` to ``last`` (inclusive; None: the last one) ``repeat`` times.

        State advances with every run. If kernels may overwrite the inputs, only the first of several runs computes from
        the data that were written; the others are for timing only.
        """
        last = self._resolve_last_kernel_index(first, last)
        if not 1 <= repeat <= 0xFFFFFFFF:
            raise UsageError(
                f"repeat: got {repeat}, expected 1 to {0xFFFFFFFF:,}", where=self._link.where, hint="run at least once"
            )
        least, most, total, done, chunk = 0xFFFFFFFF, 0, 0, 0, 1
        while done < repeat:
            count = min(chunk, repeat - done)
            answer = self._request_for_model(
                Operation.RUN, struct.pack("<HHI", first, last, count), 16, self._run_timeout
            )
            low, high, ticks = struct.unpack("<IIQ", answer)
            if not low * count <= ticks <= high * count:
                raise self._link.invalid_answer_error(Operation.RUN)
            self._check_ticks(high)
            least, most, total, done = min(least, low), max(most, high), total + ticks, done + count
            per_request = int(_REQUEST_SECONDS * self.info.tick_hz * done / max(total, 1))
            # Limit growth: a timer that hardly advances would ask for far too many runs in one request.
            chunk = max(1, min(per_request, 10 * chunk))
            self._report_progress("run", done, repeat)
        return Timing(least, total / done, most, done)

    @property
    def kernels_per_request(self) -> int:
        """Largest number of kernels that one request of :meth:`profile` executes."""
        return self.info.max_payload // 4

    def profile(self) -> tuple[int, ...]:
        """Execute the network once; return the ticks of each kernel in order."""
        total, step = self.model.kernel_count, self.kernels_per_request
        ticks: list[int] = []
        with self._limit_transfer_time(4 * total, self._run_timeout):
            while len(ticks) < total:
                count = min(step, total - len(ticks))
                payload = struct.pack("<HH", len(ticks), len(ticks) + count - 1)
                answer = self._request_for_model(Operation.PROFILE, payload, 4 * count, self._run_timeout)
                ticks += struct.unpack(f"<{count}I", answer)
                self._check_ticks(max(ticks))
                self._report_progress("profile", len(ticks), total)
        return tuple(ticks)

    def _check_ticks(self, max_ticks: int) -> None:
        """Raise DeviceError if a measured time in ticks is too large to be a duration, because the timer has then
        overflowed."""
        if max_ticks >= _MAX_TICKS:
            raise DeviceError(
                f"the board's timer: {max_ticks:,} ticks for one execution; expected fewer than {_MAX_TICKS:,}",
                where=self._link.where,
                hint="choose a slower [timer] in the board file, since the counter overflowed or went backwards",
            )

    def reset_state(self) -> None:
        """Reset the state tensors to their initial values."""
        self._request_for_model(Operation.RESET, b"", 0)

    def stats(self) -> Stats:
        """Read the board's counters and stack depth."""
        answer = self._request_for_model(Operation.STATS, b"", None)
        if len(answer) not in (_STATS.size, _STATS.size + 4):
            raise self._link.invalid_answer_error(Operation.STATS)
        stack, frames, bad_frames, repeats, refusals = _STATS.unpack_from(answer)
        # Firmware for one core leaves the last word out, and so reads as 0.
        core1_stack = int.from_bytes(answer[_STATS.size :], "little")
        return Stats(stack or None, frames, bad_frames, repeats, refusals, core1_stack or None)

    def _send_in_pieces(
        self, operation: Operation, payload_head: bytes, start_offset: int, data: bytes, unit_bytes: int = 1
    ) -> None:
        """Send ``data`` to consecutive addresses on the board, in as many requests as the size of a frame requires.

        ``payload_head``: the payload of each request before the offset. ``start_offset``: offset of the first byte.
        ``unit_bytes``: the length of each piece is a multiple of it."""
        step = (self.info.max_payload - len(payload_head) - 4) // unit_bytes * unit_bytes
        with self._limit_transfer_time(len(data)):
            for done in range(0, len(data), step):
                chunk = data[done : done + step]
                self._request_for_model(operation, payload_head + struct.pack("<I", start_offset + done) + chunk, 0)
                self._report_progress(operation.name.lower(), done + len(chunk), len(data))

    def _fetch_in_pieces(self, operation: Operation, payload_head: bytes, start_offset: int, nbytes: int) -> bytes:
        """Read ``nbytes`` consecutive bytes from the board, in as many requests as the size of a frame requires.

        ``payload_head``: the payload of each request before the offset. ``start_offset``: offset of the first byte."""
        data = bytearray()
        with self._limit_transfer_time(nbytes):
            while len(data) < nbytes:
                size = min(self.info.max_payload, nbytes - len(data))
                data += self._request_for_model(
                    operation, payload_head + struct.pack("<IH", start_offset + len(data), size), size
                )
                self._report_progress(operation.name.lower(), len(data), nbytes)
        return bytes(data)

    def read_bank_bytes(self, bank: int, offset: int, nbytes: int) -> bytes:
        """Read ``nbytes`` bytes at ``offset`` of a bank, 0 or 1, of the network's learned weights."""
        return self._fetch_in_pieces(Operation.BANK_READ, bytes([bank]), offset, nbytes)

    def request(
        self, operation: Operation, payload: bytes = b"", answer_bytes: int | None = None, *, may_compute: bool = False
    ) -> bytes:
        """Send a request of any operation; return its answer.

        ``answer_bytes``: expected length, None for any. ``may_compute``: the board may take as long as for a run."""
        return self._request_for_model(operation, payload, answer_bytes, self._run_timeout if may_compute else 0.0)

    def _request_for_model(
        self, operation: Operation, payload: bytes, answer_bytes: int | None, min_wait_seconds: float = 0.0
    ) -> bytes:
        """Send a request about this client's model; return the answer. The first request begins a session.

        ``answer_bytes``: expected length, None for any. ``min_wait_seconds``: least time to wait for the answer."""
        if self._info is None:
            self.hello()
        return self._link.request(
            operation, payload, model=self._model_index, answer_bytes=answer_bytes, min_wait_seconds=min_wait_seconds
        )

    def _limit_transfer_time(self, nbytes: int, computing_seconds: float = 0.0) -> AbstractContextManager[None]:
        """Limit the total time of the requests in a ``with`` block.

        ``nbytes``: bytes that they carry together. ``computing_seconds``: time that the board may compute."""
        return self._link.limit_time(computing_seconds + self._link.patience + nbytes / _MIN_BYTES_PER_SECOND)

    def _report_progress(self, stage: str, done: int, total: int) -> None:
        """Call the progress function, if there is one."""
        if self._progress is not None:
            self._progress(stage, done, total)

    def _find_tensor_info(self, index: int) -> TensorInfo:
        """Return the description of tensor ``index``; raise UsageError if the index is out of range."""
        tensors = self.model.tensors
        if not 0 <= index < len(tensors):
            raise UsageError(
                f"there is no tensor {index} in {self.model.name!r}; expected 0 to {len(tensors) - 1}",
                where=self._link.where,
                hint=f"give 0 to {len(tensors) - 1}",
            )
        return tensors[index]

    def _resolve_last_kernel_index(self, first: int, last: int | None) -> int:
        """Return the index of the last kernel of a range: ``last``, or the model's last kernel for None.

        Raises UsageError if the model does not have the kernels ``first`` to ``last``."""
        count = self.model.kernel_count
        last = count - 1 if last is None else last
        if not 0 <= first <= last < count:
            raise UsageError(
                f"there are no kernels {first} to {last} in {self.model.name!r}; expected 0 to {count - 1}",
                where=self._link.where,
                hint=f"give numbers from 0 to {count - 1}",
            )
        return last

    def _request_model_info(self, model_index: int, max_payload: int, max_tensors: int) -> ModelInfo:
        """Request the description of a model. Raises DeviceError for an answer that violates the protocol.

        ``max_payload``: largest answer in bytes. ``max_tensors``: largest number of tensors to accept."""
        answer = self._link.request(Operation.MODEL, model=model_index)
        if not 24 <= len(answer) <= max_payload:
            raise self._link.invalid_answer_error(Operation.MODEL)
        fingerprint, arena, tensor_count, kernel_count = struct.unpack_from("<16sIHH", answer)
        if tensor_count > max_tensors:
            raise self._link.invalid_answer_error(Operation.MODEL)
        name = make_printable(answer[24:].decode(errors="replace"))
        tensors = self._request_tensor_infos(model_index, tensor_count, max_payload // _ENTRY.size)
        return ModelInfo(name, fingerprint.hex(), arena, kernel_count, tensors)

    def _request_tensor_infos(
        self, model_index: int, tensor_count: int, tensors_per_request: int
    ) -> tuple[TensorInfo, ...]:
        """Request the descriptions of a model's tensors, ``tensors_per_request`` in each request."""
        tensors: list[TensorInfo] = []
        while len(tensors) < tensor_count:
            # Require as many entries as fit: a board that sent one at a time could keep the host busy for long.
            size = _ENTRY.size * min(tensors_per_request, tensor_count - len(tensors))
            entries = self._link.request(
                Operation.TENSORS, struct.pack("<H", len(tensors)), model=model_index, answer_bytes=size
            )
            for nbytes, kernel, dtype, kind in _ENTRY.iter_unpack(entries):
                if dtype >= len(DTYPES) or kind >= len(KINDS):
                    raise self._link.invalid_answer_error(Operation.TENSORS)
                writer = None if kernel == _NO_KERNEL else kernel
                tensors.append(TensorInfo(len(tensors), nbytes, DTYPES[dtype], KINDS[kind], writer))
        return tuple(tensors)


# ---- Requests to a board that loads networks: query its slots, erase one, write it, and activate it.

_SLOTS, _MAX_UNIT_BYTES = struct.Struct("<HBB5I"), 64


def query_slots(client: Client) -> Slots:
    """Query a board's slots for loaded networks; raise DeviceError if its firmware has none."""
    answer = client.request(Operation.SLOTS)
    unit = answer[3] if len(answer) >= _SLOTS.size else 0
    if not 1 <= unit <= _MAX_UNIT_BYTES or unit & (unit - 1):
        raise client._link.invalid_answer_error(Operation.SLOTS)
    version, active, _, room, memory, stack, commits, abi = _SLOTS.unpack_from(answer)
    core = make_printable(answer[_SLOTS.size :].decode(errors="replace"))
    return Slots(version, active if active < 2 else None, unit, room, memory, stack, commits, abi, core)


def write_and_activate_slot(client: Client, blob: bytes, unit_bytes: int) -> None:
    """Write a network's blob with its signature into the board's inactive slot, and let the board check and activate
    it.

    ``unit_bytes``: bytes of one flash write. Raises DeviceError if the board rejects the network; the previous network
    then remains active."""
    client.request(Operation.ERASE, struct.pack("<I", len(blob)), 0, may_compute=True)
    client.write_bytes(0, blob + b"\xff" * (-len(blob) % unit_bytes), unit_bytes)
    client.request(Operation.COMMIT, struct.pack("<I", len(blob)), 0, may_compute=True)
    client.hello()  # the board has another model now


# ---- Requests about the banks of learned weights.

_BANK = struct.Struct("<BBHIIII")


def query_banks(client: Client) -> tuple[Bank, ...]:
    """Query both banks of the client's network; raise DeviceError if its firmware has none."""
    banks = []
    for number in range(2):
        answer = client.request(Operation.BANK, bytes([number]), _BANK.size, may_compute=True)
        state, newest, _, sequence, identity, nbytes, check = _BANK.unpack(answer)
        if state >= len(BANK_STATES) or newest > 1:
            raise client._link.invalid_answer_error(Operation.BANK)
        banks.append(Bank(number, BANK_STATES[state], bool(newest), sequence, identity, nbytes, check))
    return tuple(banks)


def read_bank(client: Client, bank: Bank, sizes: Sequence[int]) -> list[bytes]:
    """Read the tensors of ``sizes`` bytes that ``bank`` contains; raise DeviceError if their check is wrong."""
    tensors = [
        client.read_bank_bytes(bank.number, at, size) for at, size in zip(bank_offsets(sizes), sizes, strict=False)
    ]
    check = bank_check(tensors)
    if check != bank.check:
        raise DeviceError(
            f"bank {bank.number} has changed while it was read: got check {check:08x}, expected {bank.check:08x}",
            where=client._link.where,
            hint="read it again; does another program use this line?",
        )
    return tensors


def save_to_bank(client: Client, tensors: Sequence[bytes], identity: int) -> None:
    """Let the board save its learned weights, if they are ``tensors``, into the bank that it would not restore.

    ``identity``: number that marks the network's saves. Raises DeviceError if the board has other weights or another
    network, or cannot write; the other bank keeps the save before."""
    nbytes = bank_offsets([len(data) for data in tensors])[-1]
    client.request(Operation.SAVE, struct.pack("<III", identity, nbytes, bank_check(tensors)), 0, may_compute=True)
