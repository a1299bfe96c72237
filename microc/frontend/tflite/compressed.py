"""Spelling of TFLite Micro's TFLM_DECODE: constants stored compressed, made whole when they are read.

Operands come in pairs, what is compressed and how (a header of 16 bytes and tables); every pair gives one tensor. Bits are read
from the highest of every byte. Source: TFLite Micro ``decode_state_lut.cc``, ``..._prune.cc``, ``..._huffman.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.build import DTYPES
from microc.frontend.tflite.spelling import Spelling
from microc.frozen import frozen
from microc.graph.ir import TensorType

_HEADER = 16
_VERSION = 1
_WINDOW = 8
"""Bytes looked at for one code word: its parts have at most 32 bits, from any bit on."""


@frozen
class _Packed:
    """One compressed constant: its bits, the header, the tables behind it, and the tensor that it becomes."""

    application: Application
    bits: bytes
    header: bytes
    tables: bytes
    kind: TensorType

    def numbers(self, dtype: str) -> Array:
        """The tables as numbers; a last one that is cut off is none."""
        native = dtypes.to_numpy(dtype)
        whole = len(self.tables) // native.itemsize * native.itemsize
        return np.frombuffer(self.tables[:whole], native.newbyteorder("<")).astype(native)

    def check_bits(self, width: int) -> None:
        """Every element takes ``width`` bits at least."""
        if width * self.kind.size > 8 * len(self.bits):
            self.application.broken(f"{len(self.bits)} compressed bytes for {self.kind.size} elements")

    def channels(self) -> Array:
        """The channel of every element in memory: along the first axis or the last."""
        quant, shape = self.kind.quant, self.kind.shape
        if quant is None or quant.axis is None:
            return np.zeros(self.kind.size, np.int64)
        if quant.axis not in (0, len(shape) - 1):
            self.application.refuse(f"compressed channels along axis {quant.axis}", "the first axis or the last")
        count = len(quant.scale)
        places = np.arange(self.kind.size)
        return places % count if quant.axis else places // max(self.kind.size // count, 1)


def decode(application: Application) -> None:
    """TFLM_DECODE: every output becomes a constant."""
    if len(application.operator.inputs) != 2 * len(application.operator.outputs):
        application.broken(f"{len(application.operator.inputs)} inputs for {len(application.operator.outputs)} outputs")
    for position in range(len(application.operator.outputs)):
        bits, how = (application.constant(2 * position + k).tobytes() for k in (0, 1))
        kind = application.target(position).type
        if len(how) < _HEADER or how[1] != _VERSION or how[4] != _VERSION:
            application.refuse("a header of another version", f"microc knows version {_VERSION} of TFLM_DECODE")
        if how[0] not in _KINDS or kind.dtype not in DTYPES:
            application.refuse(
                f"compression of kind {how[0]} into {kind.dtype}",
                "kinds 0 (table), 1 (Huffman) and 2 (pruned) are known; convert the model without compression",
            )
        packed = _Packed(application, bits, how[:_HEADER], how[_HEADER:], kind)
        values = _KINDS[how[0]](packed).reshape(kind.shape)
        application.builder.constant(application.target(position).name, values, kind.quant)


def _looked_up(packed: _Packed) -> Array:
    """Indices of 1 to 7 bits into a table of each channel, whose tables follow each other in a stride."""
    width, stride = packed.header[5] & 7, packed.header[6]
    if not width:
        packed.application.broken("indices of no bits")
    packed.check_bits(width)
    bits = np.unpackbits(np.frombuffer(packed.bits, np.uint8), count=width * packed.kind.size).reshape(-1, width)
    places = packed.channels() * stride + bits.astype(np.int64) @ (1 << np.arange(width)[::-1])
    return _taken(packed, packed.numbers(packed.kind.dtype), places)


def _pruned(packed: _Packed) -> Array:
    """A bit for every element: whether it is the next of the stored ones, or the zero point of its channel."""
    packed.check_bits(1)
    kept = np.unpackbits(np.frombuffer(packed.bits, np.uint8), count=packed.kind.size).astype(bool)
    quant = packed.kind.quant
    zero = np.array(quant.zero_point if quant else (0,), dtypes.to_numpy(packed.kind.dtype))
    made = zero[packed.channels()] if len(zero) > 1 else np.full(packed.kind.size, zero[0])
    made[kept] = _taken(packed, packed.numbers(packed.kind.dtype), np.arange(int(kept.sum())))
    return made


def _taken(packed: _Packed, table: Array, places: Array) -> Array:
    if places.size and int(places.max()) >= len(table):
        packed.application.broken(f"a value table of {len(table)} numbers, of which number {places.max()} is taken")
    taken: Array = table[places]
    return taken


def _huffman(packed: _Packed) -> Array:
    """Code words, decoded by tables: an entry is a symbol and how many of the bits read belong to it, or the next table."""
    wide = packed.header[5] & 1
    count_at, found = (27, 1 << 31) if wide else (11, 1 << 15)
    most = (1 << count_at) - 1
    if packed.kind.dtype not in (("int8", "int16") if wide else ("int8",)):
        packed.application.refuse(f"code words for {packed.kind.dtype}", "int8, or int16 with tables of 32 bits")
    packed.check_bits(1)
    table = packed.numbers("uint32" if wide else "uint16").tolist()
    source, at, end = packed.bits + bytes(_WINDOW), 0, 8 * len(packed.bits)
    symbols = []
    for _ in range(packed.kind.size):
        entry, place = 0, 0
        width = (packed.header[5] >> 4) + 1
        while True:
            window = int.from_bytes(source[at >> 3 : (at >> 3) + _WINDOW], "big")
            place += window >> 8 * _WINDOW - (at & 7) - width & (1 << width) - 1
            at += width
            if place >= len(table) or at > end + width:
                packed.application.broken("code words that lead beyond the tables or the data")
            entry = table[place]
            used = entry >> count_at & 15
            if entry & found:
                break
            place, width = place + (entry & most), used + 1
        at -= max(width - used, 0)
        symbols.append(entry & 0xFFFF)
    return np.array(symbols, np.uint16).astype(dtypes.to_numpy(packed.kind.dtype))


_KINDS: Mapping[int, Callable[[_Packed], Array]] = {0: _looked_up, 1: _huffman, 2: _pruned}

SPELLINGS: Mapping[str, Spelling] = {"CUSTOM:TFLM_DECODE": Spelling(decode, DTYPES)}
