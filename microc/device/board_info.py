# SPDX-License-Identifier: Apache-2.0
"""Records that a board sends about itself, and blobs: files of networks that a board loads at run time."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from microc.base.file_access import read_bytes
from microc.base.immutable import frozen
from microc.errors import UsageError
from microc.numerics import round_up_to_multiple

# ---- Records of the serial protocol: the board, its models, its runs.

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
    "float16",
    "bfloat16",
)
"""dtypes by their number in the protocol (``enum microc_dtype``)."""

KINDS = ("input", "output", "intermediate", "state")
"""Kinds of tensors by their number in the protocol (``enum microc_kind``)."""


def make_printable(text: str, max_length: int = 64) -> str:
    """Make text from a board, a USB device or a program safe to print, and cut it to ``max_length`` characters.

    Control characters, escape sequences and bidirectional marks become ``?``."""
    return "".join(c if c.isprintable() else "?" for c in text[:max_length])


@frozen
class TensorInfo:
    """A tensor in the board's description of a model.

    ``index``: number of the tensor in requests to the board. ``kind``: one of :data:`KINDS`. ``kernel``: index of the
    last kernel that writes the tensor; None if no kernel writes it."""

    index: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@frozen
class ModelInfo:
    """A model in the firmware, as the board describes it.

    ``name``: safe to print, see :func:`make_printable`. ``fingerprint``: 32 hexadecimal digits that identify the build
    of its project."""

    name: str
    fingerprint: str
    arena_bytes: int
    kernel_count: int
    tensors: tuple[TensorInfo, ...]


@frozen
class DeviceInfo:
    """A board's description of itself.

    ``version``: version of the protocol. ``max_payload``: largest payload of a frame in bytes. ``tick_hz``: ticks per
    second of its timings. ``self_test``: 0 without self-tests, 1 if all models passed at boot, 1 + k if model k,
    counted from 1, is the first that failed."""

    version: int
    max_payload: int
    tick_hz: int
    models: tuple[ModelInfo, ...]
    self_test: int = 0


@frozen
class CodeRegion:
    """RAM of a board into which the host may load code: its address and its size in bytes."""

    address: int
    nbytes: int


@frozen
class Slots:
    """The two flash slots for loaded networks on a board, and their capacity.

    ``format``: format version of the network files (blobs) that the board reads. ``active``: index of the slot whose
    network runs, None if no network runs. ``flash_write_bytes``: number of bytes of one flash write. ``slot_bytes``: size
    of a slot. ``ram_bytes``: RAM for tensors. ``stack_bytes``: size of the stack. ``commits``: commit number of the
    running network. ``core``, ``abi``: core and ABI checksum of the firmware."""

    format: int
    active: int | None
    flash_write_bytes: int
    slot_bytes: int
    ram_bytes: int
    stack_bytes: int
    commits: int
    abi: int
    core: str


BANK_STATES = ("empty", "whole", "damaged", "foreign", "unreadable")
"""States of a bank of learned weights by their number in the protocol (``enum microc_bank_state``)."""
BANK_RECORD, BANK_UNIT = 32, 16
"""Bytes of a bank before the first tensor, and the unit of the tensors' offsets, in bytes."""


@frozen
class Bank:
    """One of a network's two banks of non-volatile memory for learned weights.

    ``state``: one of :data:`BANK_STATES`; ``foreign`` if another network has saved there, ``unreadable`` if the board
    cannot read it. ``newest``: True if the board restores this bank. The others are 0 for a bank without a record:
    ``sequence``, number of the save, modulo 2**32; ``identity``, number that marks the network's saves; ``nbytes``,
    bytes of the save; ``check``, CRC of the tensors."""

    number: int
    state: str
    newest: bool
    sequence: int
    identity: int
    nbytes: int
    check: int


def bank_offsets(sizes: Sequence[int]) -> list[int]:
    """Return the offset in a bank of each tensor of ``sizes`` bytes, and behind them the bytes of the save."""
    offsets = [BANK_RECORD]
    for size in sizes:
        offsets.append(offsets[-1] + round_up_to_multiple(size, BANK_UNIT))
    return offsets


def bank_check(tensors: Sequence[bytes]) -> int:
    """Return the check of saved tensors: 0, and after each tensor the CRC-32 of the check and of the tensor's CRC-32."""
    check = 0
    for data in tensors:
        check = zlib.crc32(struct.pack("<II", check, zlib.crc32(data)))
    return check


@frozen
class LoadedImage:
    """Code that was loaded into a board's :class:`CodeRegion`: its offset, its size in bytes, its CRC-32, and the
    offset of its entry function."""

    offset: int
    nbytes: int
    crc: int
    entry: int


@frozen
class Timing:
    """Shortest, mean and longest time of ``count`` runs, in ticks; divided by :attr:`DeviceInfo.tick_hz`, they are
    seconds."""

    min: int
    mean: float
    max: int
    count: int


@frozen
class Stats:
    """Counters of the board since its start.

    ``stack_bytes``: largest number of bytes of stack in use so far, None if unknown. ``frames``: intact frames
    received; ``bad_frames``: damaged frames; ``repeats``: requests that the host repeated; ``refusals``: requests that
    the board refused. ``core1_stack_bytes``: as ``stack_bytes``, of the second core; None if unknown, or if the firmware
    uses one core."""

    stack_bytes: int | None
    frames: int
    bad_frames: int
    repeats: int
    refusals: int
    core1_stack_bytes: int | None = None


# ---- Blobs: position-independent networks that a board loads at run time. Header, code and constants, table of tensors.
#
# ``runtime_c/SPEC.md``, "Blob", defines every byte; ``runtime_c/src/microc_blob.c`` reads them on the board.

FORMAT = 1
HEADER = 128
MAGIC = b"MCRN"
LARGEST = 64 << 20
"""Bytes of a blob's file, at most: more than any slot has."""
_HEADER = struct.Struct("<4sIIIIIIIIIHH20s16s48s")
_ENTRY = struct.Struct("<IIHBB")
_CRC_START = 16
"""Offset in the blob from which the CRC covers it."""
_NO_KERNEL = 0xFFFF


@frozen
class BlobTensor:
    """A tensor in the table of a blob, the file of a network that a board loads at run time.

    ``offset``: bytes from the start of the network's memory. ``kernel``: index of the kernel that writes the tensor, or
    None."""

    offset: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@frozen
class Blob:
    """A blob: the file of a position-independent network that a board loads at run time.

    ``memory``: bytes of RAM for its tensors. ``stack``: bytes of stack of a run. ``kernels``: number of kernels.
    ``image``: code and constants. ``run``, ``reset``: offsets in ``image`` of the functions that run the network and
    reset its state; ``reset`` is None for a network without state. ``signature``: bytes that follow the blob in its
    file."""

    name: str
    fingerprint: str
    core: str
    abi: int
    memory: int
    stack: int
    kernels: int
    tensors: tuple[BlobTensor, ...]
    image: bytes
    run: int
    reset: int | None
    signature: bytes = b""

    def pack(self) -> bytes:
        """Encode the blob as the bytes of a file, signature included."""
        image = self.image + bytes(-len(self.image) % 4)
        table = b"".join(
            _ENTRY.pack(
                t.offset,
                t.nbytes,
                _NO_KERNEL if t.kernel is None else t.kernel,
                DTYPES.index(t.dtype),
                KINDS.index(t.kind),
            )
            for t in self.tensors
        )
        rest = struct.pack(
            "<IIIIIIHH20s16s48s",
            self.abi,
            self.memory,
            self.stack,
            HEADER + self.run,
            0 if self.reset is None else HEADER + self.reset,
            HEADER + len(image),
            len(self.tensors),
            self.kernels,
            self.core.encode(),
            bytes.fromhex(self.fingerprint),
            self.name.encode()[:47],
        )
        covered = rest + image + table
        head = MAGIC + struct.pack("<III", FORMAT, _CRC_START + len(covered), zlib.crc32(covered))
        return head + covered + self.signature


def read_blob(path: Path) -> Blob:
    """Read a blob from a file. Raises UsageError if the file is no blob, is damaged, or has another format version."""
    try:
        data = read_bytes(path, LARGEST)
    except OSError as error:
        raise _make_invalid_blob_error(path, f"cannot read it: {error.strerror or error}") from error
    return unpack_blob(data, path)


def unpack_blob(data: bytes, path: Path) -> Blob:
    """Decode the bytes of a blob, and check them as the board does. Raises UsageError, which names ``path``, if a check
    fails."""
    if len(data) < HEADER or not data.startswith(MAGIC):
        raise _make_invalid_blob_error(path, f"it does not begin with {MAGIC.decode()}")
    fields = _HEADER.unpack_from(data)
    _, version, size, crc, abi, memory, stack, run, reset, table, count, kernels, core, fingerprint, name = fields
    if version != FORMAT:
        raise UsageError(
            f"network file of another format version; got {version}, expected {FORMAT}",
            where=str(path),
            hint="compile the model again with this version of microc",
        )
    if not HEADER <= size <= len(data) or zlib.crc32(data[_CRC_START:size]) != crc:
        raise _make_invalid_blob_error(path, "its CRC is wrong, or a part is missing")
    if not HEADER <= run < table or (reset and not HEADER <= reset < table) or table + count * _ENTRY.size > size:
        raise _make_invalid_blob_error(path, "offsets in its header are out of range")
    tensors = tuple(
        _unpack_blob_tensor(path, memory, entry)
        for entry in _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size])
    )
    return Blob(
        name=make_printable(_decode_zero_terminated_string(name)),
        fingerprint=fingerprint.hex(),
        core=make_printable(_decode_zero_terminated_string(core)),
        abi=abi,
        memory=memory,
        stack=stack,
        kernels=kernels,
        tensors=tensors,
        image=data[HEADER:table],
        run=run - HEADER,
        reset=reset - HEADER if reset else None,
        signature=data[size:],
    )


def _unpack_blob_tensor(path: Path, memory_bytes: int, tensor_fields: Sequence[int]) -> BlobTensor:
    """Make a tensor from the fields of an entry in a blob's tensor table. Raises UsageError if a field is out of range.

    ``memory_bytes``: bytes of the network's memory, within which the tensor must be."""
    offset, nbytes, kernel, dtype, kind = tensor_fields
    if offset + nbytes > memory_bytes or dtype >= len(DTYPES) or kind >= len(KINDS):
        raise _make_invalid_blob_error(path, "its table of tensors is damaged")
    return BlobTensor(offset, nbytes, DTYPES[dtype], KINDS[kind], None if kernel == _NO_KERNEL else kernel)


def _decode_zero_terminated_string(field: bytes) -> str:
    """Decode a text that ends at the first zero byte."""
    return field.partition(b"\0")[0].decode(errors="replace")


def _make_invalid_blob_error(path: Path, reason: str) -> UsageError:
    """Return the error for a file that is no valid blob. ``reason``: the reason as a clause, such as "its CRC is
    wrong"."""
    return UsageError(
        f"{path}: not a file of a loadable network: {reason}",
        where=str(path),
        hint="make one: microc compile MODEL --board BOARD --relocatable -o network.bin",
    )
