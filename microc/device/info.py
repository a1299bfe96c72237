"""What a board tells of itself, its models and its runs."""

from __future__ import annotations

from microc.frozen import frozen

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
