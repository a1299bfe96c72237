"""Records that a board sends, and blobs: networks that a board loads at run time."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from microc.base.file_access import read_bytes
from microc.base.immutable import frozen
from microc.errors import UsageError

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
    """Make text of a board, a USB device or a program safe to print, and cut it to ``max_length`` characters.

    Control characters, escape sequences and bidirectional marks become ``?``."""
    return "".join(c if c.isprintable() else "?" for c in text[:max_length])


@frozen
class TensorInfo:
    """A tensor on the board, as the board describes it. ``kernel``: index of the kernel after which it is complete; None
    if no kernel writes it."""

    index: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@frozen
class ModelInfo:
    """A model in the firmware, as the board describes it.

    ``name``: safe to print, see :func:`make_printable`. ``fingerprint``: of its project, 32 hexadecimal digits."""

    name: str
    fingerprint: str
    arena_bytes: int
    kernel_count: int
    tensors: tuple[TensorInfo, ...]


@frozen
class DeviceInfo:
    """A board's description of itself. ``max_payload``: of a frame, in bytes; ``tick_hz``: rate of all its timings.
    ``self_test``: 0 if it has none; 1 if all models passed theirs at boot; 1 + k if the k-th model is the first that
    failed."""

    version: int
    max_payload: int
    tick_hz: int
    models: tuple[ModelInfo, ...]
    self_test: int = 0


@frozen
class CodeRegion:
    """RAM of a board that accepts code: its address and its size in bytes."""

    address: int
    nbytes: int


@frozen
class Slots:
    """The slots of a board that loads networks, and its capacity for them.
    ``format``: of the blobs that it reads. ``active``: the slot whose network runs, or None. ``unit``: bytes that are
    written at once. ``room``, ``memory``, ``stack``: bytes of a slot, for tensors, and of stack. ``commits``: number of
    the commit of the running network. ``core``, ``abi``: core and ABI that code must be compiled for."""

    format: int
    active: int | None
    unit: int
    room: int
    memory: int
    stack: int
    commits: int
    abi: int
    core: str


@frozen
class LoadedImage:
    """Code in the region of a board that accepts code: its offset, size in bytes and CRC-32, and the offset of its entry."""

    offset: int
    nbytes: int
    crc: int
    entry: int


@frozen
class Timing:
    """Ticks of ``count`` runs. Seconds are ticks divided by :attr:`DeviceInfo.tick_hz`."""

    min: int
    mean: float
    max: int
    count: int


@frozen
class Stats:
    """Counters of the board. ``stack_bytes``: deepest stack since the start, None if unknown. The other fields count
    frames: received intact, damaged, repeated by the host, refused."""

    stack_bytes: int | None
    frames: int
    bad_frames: int
    repeats: int
    refusals: int


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
    """An entry of the tensor table in a blob. ``offset``: in the network's memory; ``kernel``: index of the kernel that
    writes the tensor, or None."""

    offset: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@frozen
class Blob:
    """A position-independent network that a board loads at run time. ``memory``: bytes for its tensors; ``stack``: bytes
    of a run. ``image``: code and constants; ``run`` and ``reset`` (None without state) are offsets of functions in it.
    ``signature``: bytes that follow the blob."""

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
    """Read a blob from a file. UsageError if the file holds none, or one that is damaged or of another format."""
    try:
        data = read_bytes(path, LARGEST)
    except OSError as error:
        raise _invalid_blob_error(path, f"cannot read it: {error.strerror or error}") from error
    return unpack_blob(data, path)


def unpack_blob(data: bytes, path: Path) -> Blob:
    """Decode the bytes of a blob, with the checks that the board makes; errors name ``path``."""
    if len(data) < HEADER or not data.startswith(MAGIC):
        raise _invalid_blob_error(path, f"it does not begin with {MAGIC.decode()}")
    fields = _HEADER.unpack_from(data)
    _, version, size, crc, abi, memory, stack, run, reset, table, count, kernels, core, fingerprint, name = fields
    if version != FORMAT:
        raise UsageError(
            f"the network file has format {version}, this microc reads only format {FORMAT}",
            where=str(path),
            hint="compile it again",
        )
    if not HEADER <= size <= len(data) or zlib.crc32(data[_CRC_START:size]) != crc:
        raise _invalid_blob_error(path, "its CRC is wrong, or a part is missing")
    if not HEADER <= run < table or (reset and not HEADER <= reset < table) or table + count * _ENTRY.size > size:
        raise _invalid_blob_error(path, "its header contradicts itself")
    tensors = tuple(
        _unpack_blob_tensor(path, memory, entry)
        for entry in _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size])
    )
    return Blob(
        name=make_printable(_unpack_zero_terminated_strings(name)),
        fingerprint=fingerprint.hex(),
        core=make_printable(_unpack_zero_terminated_strings(core)),
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
    """Decode an entry of a blob's tensor table.

    ``memory_bytes``: bytes of the network's memory, which the tensor must not exceed."""
    offset, nbytes, kernel, dtype, kind = tensor_fields
    if offset + nbytes > memory_bytes or dtype >= len(DTYPES) or kind >= len(KINDS):
        raise _invalid_blob_error(path, "its table of tensors is damaged")
    return BlobTensor(offset, nbytes, DTYPES[dtype], KINDS[kind], None if kernel == _NO_KERNEL else kernel)


def _unpack_zero_terminated_strings(field: bytes) -> str:
    """Decode a text that ends at the first zero byte."""
    return field.partition(b"\0")[0].decode(errors="replace")


def _invalid_blob_error(path: Path, reason: str) -> UsageError:
    """Return the error for a file that is no valid blob; ``reason``: clause that says what is wrong."""
    return UsageError(
        f"{path} is no network that can be loaded: {reason}",
        where=str(path),
        hint="make one: microc compile MODEL --board BOARD --relocatable -o network.bin",
    )
