"""What a board tells of itself, and networks that it loads."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from microc.base.file_access import read_bytes
from microc.base.immutable import frozen
from microc.errors import UsageError

# ---- What a board tells of itself, its models and its runs.

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
"""dtypes by their number on the line (``enum microc_dtype``)."""

KINDS = ("input", "output", "intermediate", "state")
"""Kinds of tensors by their number on the line (``enum microc_kind``)."""


def readable(text: str, longest: int = 64) -> str:
    """Text of a board, a plug or a program as it may be shown: what a terminal could obey (control and escape characters, marks
    that turn the direction round) becomes ``?``, and what is longer than ``longest`` characters is cut."""
    return "".join(c if c.isprintable() else "?" for c in text[:longest])


@frozen
class TensorInfo:
    """A tensor on the board. ``kernel`` is the index of the kernel after which it is complete; None if none writes it."""

    index: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@frozen
class ModelInfo:
    """A model in the firmware. ``name`` is fit to be shown, see :func:`readable`; ``fingerprint`` is that of the project it was
    generated in, 32 hexadecimal digits."""

    name: str
    fingerprint: str
    arena_bytes: int
    kernel_count: int
    tensors: tuple[TensorInfo, ...]


@frozen
class DeviceInfo:
    """What a board says of itself. ``max_payload`` in bytes; ``tick_hz`` is the rate of all its timings.

    ``self_test``: 0 where it has none; 1 where all models passed theirs at boot; 1 + k where the k-th is the first that failed.
    """

    version: int
    max_payload: int
    tick_hz: int
    models: tuple[ModelInfo, ...]
    self_test: int = 0


@frozen
class Region:
    """Memory of a board that takes code: where it begins, and its bytes."""

    address: int
    nbytes: int


@frozen
class Slots:
    """What a board that takes networks has for them. ``format``: of the blobs that it reads; ``active``: the slot whose network
    runs, None where none does; ``unit``: bytes that it writes at once; bytes of a slot (``room``), of ``memory`` for tensors, of
    ``stack``; ``commits``: the number of the commit that made the network that runs; ``core`` and ``abi``: what code is for."""

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
class Image:
    """Code in a region: where it lies in it, its bytes, their CRC-32, and where in the region it is entered."""

    offset: int
    nbytes: int
    crc: int
    entry: int


@frozen
class Timing:
    """Ticks of ``count`` runs; seconds are ticks divided by :attr:`DeviceInfo.tick_hz`."""

    min: int
    mean: float
    max: int
    count: int


@frozen
class Stats:
    """Health of the board. ``stack_bytes``: deepest stack since the start, None if unknown. The rest counts frames:
    received whole, damaged, repeated by the host, refused."""

    stack_bytes: int | None
    frames: int
    bad_frames: int
    repeats: int
    refusals: int


# ---- Networks that a board loads while it runs: header, code and constants, table of tensors, in one piece that may
# lie anywhere.
#
# ``runtime_c/SPEC.md``, "Blob", defines every byte; ``runtime_c/src/microc_blob.c`` reads them on the board.

FORMAT = 1
HEADER = 128
MAGIC = b"MCRN"
LARGEST = 64 << 20
"""Bytes of a file that may be one: more than any slot has."""
_HEADER = struct.Struct("<4sIIIIIIIIIHH20s16s48s")
_ENTRY = struct.Struct("<IIHBB")
_COVERED = 16
_NO_KERNEL = 0xFFFF


@frozen
class BlobTensor:
    """A tensor of the board's table, at ``offset`` of the network's memory; ``kernel`` None if none writes it."""

    offset: int
    nbytes: int
    dtype: str
    kind: str
    kernel: int | None


@frozen
class Blob:
    """A network that is loaded. Sizes in bytes: ``memory`` for its tensors, ``stack`` of a run; ``run`` and ``reset`` (None: it
    keeps nothing) are offsets in ``image``, which is code and constants. ``signature`` follows the blob."""

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
        """The bytes of a file, signature included."""
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
        head = MAGIC + struct.pack("<III", FORMAT, _COVERED + len(covered), zlib.crc32(covered))
        return head + covered + self.signature


def read_blob(path: Path) -> Blob:
    """The network in a file. UsageError where it is none, of another format, or damaged."""
    try:
        data = read_bytes(path, LARGEST)
    except OSError as error:
        raise _wrong(path, f"cannot read it: {error.strerror or error}") from error
    return unpack(data, path)


def unpack(data: bytes, path: Path) -> Blob:
    """What the bytes of a file say, as the board will read them; errors name ``path``."""
    if len(data) < HEADER or not data.startswith(MAGIC):
        raise _wrong(path, f"it does not begin with {MAGIC.decode()}")
    fields = _HEADER.unpack_from(data)
    _, version, size, crc, abi, memory, stack, run, reset, table, count, kernels, core, fingerprint, name = fields
    if version != FORMAT:
        raise UsageError(
            f"the network has format {version}, this microc knows {FORMAT}", where=str(path), hint="compile it again"
        )
    if not HEADER <= size <= len(data) or zlib.crc32(data[_COVERED:size]) != crc:
        raise _wrong(path, "its CRC is wrong, or a part is missing")
    if not HEADER <= run < table or (reset and not HEADER <= reset < table) or table + count * _ENTRY.size > size:
        raise _wrong(path, "its header contradicts itself")
    tensors = tuple(
        _tensor(path, memory, entry) for entry in _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size])
    )
    return Blob(
        name=readable(_text(name)),
        fingerprint=fingerprint.hex(),
        core=readable(_text(core)),
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


def _tensor(path: Path, memory: int, entry: Sequence[int]) -> BlobTensor:
    offset, nbytes, kernel, dtype, kind = entry
    if offset + nbytes > memory or dtype >= len(DTYPES) or kind >= len(KINDS):
        raise _wrong(path, "its table of tensors is damaged")
    return BlobTensor(offset, nbytes, DTYPES[dtype], KINDS[kind], None if kernel == _NO_KERNEL else kernel)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def _wrong(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is no network that can be loaded: {why}",
        where=str(path),
        hint="make one: microc compile MODEL --board BOARD --relocatable -o network.bin",
    )
