# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's gathers, scatters and segment reductions, and of TFLite Micro's compressed constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.signature import Axis, Ints, Value
from microc.frontend.tflite.builder import DTYPES
from microc.frontend.tflite.context import FLOAT, MOVABLE, ConverterTable, Indices, Moved, OpContext, Unchanged
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import Rounding

CONVERTERS = ConverterTable()

# ---- Converters of operators that rearrange elements: gathers, mirror padding, space to batch.

_MIRRORS = ("reflect", "symmetric")


@CONVERTERS.register("GATHER", options="GatherOptions", dtypes=MOVABLE)
def convert_gather(context: OpContext, data: Moved, indices: Indices, *, axis: Axis = 0, batch_dims: int = 0) -> None:
    """Convert GATHER along an axis. With ``batch_dims`` leading batch axes, each batch has its own indices."""
    batch = context.axis(batch_dims, indices.rank) if batch_dims < 0 else batch_dims
    context.result("gather", (data, indices), {"axis": axis, "batch_dims": batch})


@CONVERTERS.register("GATHER_ND", dtypes=MOVABLE)
def convert_gather_nd(context: OpContext, data: Moved, indices: Indices) -> None:
    """Convert GATHER_ND: gather the elements or slices at index vectors."""
    context.result("gather_nd", (data, indices), {"batch_dims": 0})


@CONVERTERS.register("EMBEDDING_LOOKUP", dtypes=(*FLOAT, "int8"))
def convert_embedding_lookup(context: OpContext, indices: Value, table: Value) -> None:
    """Convert EMBEDDING_LOOKUP: gather rows of a matrix. Rows of integers are dequantised if the output is float32."""
    quant, dtype = table.quant, context.output_dtype()
    if table.dtype == dtype:
        context.check_same_quantisation(1)
        context.result("gather", (table, indices), {"axis": 0})
        return
    if quant is None or quant.axis not in (None, 0) or dtype != "float32":
        context.refuse(
            f"table: its dtype differs from the output's; got {table.dtype}, expected {dtype} or quantised rows",
            "give a table of the output's dtype, or of int8 with one scale or one for each row",
        )
    rows = context.emit("gather", (table, indices), {"axis": 0})
    scale, zero = (np.array(x, np.float32) for x in (quant.scale, quant.zero_point))
    real = context.emit("cast", (rows,), {"dtype": "float32"})
    broadcast_shape = (-1, *(1,) * (table.rank - 1))
    parts = []
    for numbers in (zero, scale):
        part = context.new_constant("row_scales", numbers.reshape(broadcast_shape))
        parts.append(context.emit("gather", (part, indices), {"axis": 0}) if len(numbers) > 1 else part)
    context.result("mul", (context.emit("sub", (real, parts[0])), parts[1]))


@CONVERTERS.register("REVERSE_V2", dtypes=MOVABLE)
def convert_reverse_v2(context: OpContext, data: Moved, axes: Ints) -> None:
    """Convert REVERSE_V2 along constant axes."""
    context.result("reverse", (data,), {"axes": context.normalize_axes(axes, data.rank)})


@CONVERTERS.register("REVERSE_SEQUENCE", options="ReverseSequenceOptions", dtypes=MOVABLE)
def convert_reverse_sequence(
    context: OpContext, data: Moved, lengths: Indices, *, seq_dim: Axis, batch_dim: Axis = 0
) -> None:
    """Convert REVERSE_SEQUENCE: in every batch, reverse the first elements along the time axis.

    ``lengths`` contains the number of reversed elements of each batch."""
    context.result("reverse_sequence", (data, lengths), {"batch_axis": batch_dim, "time_axis": seq_dim})


@CONVERTERS.register("MIRROR_PAD", options="MirrorPadOptions", dtypes=MOVABLE)
def convert_mirror_pad(context: OpContext, data: Moved, paddings: Ints, *, mode: Literal[0, 1]) -> None:
    """Convert MIRROR_PAD. The mode REFLECT does not repeat the border element, the mode SYMMETRIC repeats it."""
    if len(paddings) != 2 * data.rank or min(paddings, default=0) < 0:
        expected = f"{2 * data.rank} numbers of at least 0, two for each axis"
        context.broken(f"padding: got {paddings}, expected {expected}")
    padding = tuple(zip(paddings[0::2], paddings[1::2], strict=True))
    context.result("mirror_pad", (data,), {"padding": padding, "mode": _MIRRORS[mode]})


@CONVERTERS.register("BROADCAST_TO", dtypes=MOVABLE)
def convert_broadcast_to(context: OpContext, data: Moved, shape: Ints) -> None:
    """Convert BROADCAST_TO, to a constant shape."""
    context.result("broadcast_to", (data,), {"shape": shape})


@CONVERTERS.register("SPACE_TO_BATCH_ND", dtypes=MOVABLE)
def convert_space_to_batch_nd(context: OpContext, data: Moved, block: Ints, paddings: Ints) -> None:
    """Convert SPACE_TO_BATCH_ND: pad the spatial axes, then move the elements of every block to the batch axis."""
    shape, count = data.shape, len(block)
    if len(paddings) != 2 * count or count >= len(shape) or min((*block, 1)) < 1 or min((*paddings, 0)) < 0:
        expected = f"blocks of at least 1 for up to {len(shape) - 1} axes, two paddings of at least 0 for each"
        context.broken(f"block_shape, paddings: got {block} and {paddings} for shape {shape}, expected {expected}")
    if any(paddings):
        quant, rest = context.output_tensor().type.quant, len(shape) - count - 1
        value = quant.zero_point[0] if quant else 0
        amounts = ((0, 0), *zip(paddings[0::2], paddings[1::2], strict=True), *((0, 0),) * rest)
        data = context.emit("pad", (data,), {"padding": amounts, "value": value})
        shape = data.shape
    if any(extent % size for extent, size in zip(shape[1:], block, strict=False)):
        context.broken(f"block_shape: got {block}, expected divisors of the extents of the padded shape {shape}")
    split = [part for extent, size in zip(shape[1 : 1 + count], block, strict=True) for part in (extent // size, size)]
    apart = context.emit("reshape", (data,), {"shape": (shape[0], *split, *shape[1 + count :])})
    rows, sizes = (tuple(range(first, 1 + 2 * count, 2)) for first in (1, 2))
    axes = (*sizes, 0, *rows, *range(1 + 2 * count, len(split) + len(shape) - count))
    moved = context.emit("transpose", (apart,), {"axes": axes})
    batches = shape[0] * int(np.prod(block))
    context.result_reshape(moved, (batches, *split[0::2], *shape[1 + count :]))


@CONVERTERS.register("BATCH_TO_SPACE_ND", dtypes=MOVABLE)
def convert_batch_to_space_nd(context: OpContext, data: Moved, block: Ints, crops: Ints) -> None:
    """Convert BATCH_TO_SPACE_ND: move batches to the elements of spatial blocks, then crop the spatial axes."""
    shape, count, cells = data.shape, len(block), int(np.prod(block))
    if len(crops) != 2 * count or count >= len(shape) or min((*block, 1)) < 1 or shape[0] % cells:
        expected = "two crops for each block, and blocks whose product divides the batch"
        context.broken(f"block_shape, crops: got {block} and {crops} for shape {shape}, expected {expected}")
    rest = shape[1 + count :]
    apart = context.emit("reshape", (data,), {"shape": (*block, shape[0] // cells, *shape[1:])})
    pairs = [axis for k in range(count) for axis in (count + 1 + k, k)]
    axes = (count, *pairs, *range(2 * count + 1, count + len(shape)))
    moved = context.emit("transpose", (apart,), {"axes": axes})
    extents = [extent * size for extent, size in zip(shape[1 : 1 + count], block, strict=True)]
    whole = (shape[0] // cells, *extents, *rest)
    if not any(crops):
        context.result_reshape(moved, whole)
        return
    ends = [extent - crop for extent, crop in zip(extents, crops[1::2], strict=True)]
    attrs: Mapping[str, Attr] = {
        "begin": (0, *crops[0::2], *(0,) * len(rest)),
        "end": (whole[0], *ends, *rest),
        "strides": (1,) * len(whole),
    }
    context.result("slice", (context.emit("reshape", (moved,), {"shape": whole}),), attrs)


@CONVERTERS.register("DYNAMIC_UPDATE_SLICE", dtypes=MOVABLE)
def convert_dynamic_update_slice(context: OpContext, data: Moved, update: Moved, begin: Value) -> None:
    """Convert DYNAMIC_UPDATE_SLICE: replace the part of the operand that begins at computed indices."""
    context.result("dynamic_update_slice", (data, update, begin))


# ---- Converters of operators that scatter rows or elements: segment reductions, SPARSE_TO_DENSE, diagonals.


@CONVERTERS.register("SCATTER_ND", dtypes=MOVABLE)
def convert_scatter_nd(context: OpContext, indices: Value, updates: Unchanged, shape: Ints) -> None:
    """Convert SCATTER_ND: add updates, at index vectors, to a tensor of zeros of a constant shape."""
    zeros = context.new_filled_constant("zeros", shape, 0, updates.dtype)
    context.result("scatter_nd", (zeros, context.cast_indices(indices), updates), {"reduction": "add"})


@CONVERTERS.register("SEGMENT_SUM", dtypes=(*FLOAT, "int32"))
def convert_segment_sum(context: OpContext, data: Unchanged, segment_ids: Value) -> None:
    """Convert SEGMENT_SUM: add the rows of each segment.

    The number of segments must be known at compile time: from constant segment numbers, which ascend, or from the
    output's declared shape.
    """
    numbers = context.cast_indices(segment_ids)
    if segment_ids.constant is not None:
        count = int(segment_ids.constant.astype(np.int64).max(initial=-1)) + 1
    elif context.output_tensor().unknown_axes:
        context.refuse("segment_ids: got a computed tensor, expected a constant", "use UNSORTED_SEGMENT_SUM instead")
    else:
        count = context.output_tensor().type.shape[0]
    _emit_segment_reduction(context, "add", data, numbers, count)


def _make_unsorted_segment_converter(reduction: str) -> Callable[..., None]:
    """Make a converter of UNSORTED_SEGMENT_SUM, _PROD, _MAX or _MIN: reduce the rows of each segment.

    Rows with a negative segment number are dropped."""

    def convert_unsorted_segment(context: OpContext, data: Unchanged, segment_ids: Indices, num_segments: int) -> None:
        _emit_segment_reduction(context, reduction, data, segment_ids, num_segments)

    return convert_unsorted_segment


for _code, _reduction in (("SUM", "add"), ("PROD", "mul"), ("MAX", "max"), ("MIN", "min")):
    CONVERTERS.register(f"UNSORTED_SEGMENT_{_code}", dtypes=(*FLOAT, "int32"))(
        _make_unsorted_segment_converter(_reduction)
    )


def _emit_segment_reduction(
    context: OpContext, reduction: str, data: Value, numbers: Value, segment_count: int
) -> None:
    """Emit the reduction of the rows of each segment, as a scatter into rows of the reduction's neutral element.

    Rows with a negative segment number are scattered to an additional last row, which is sliced off afterwards."""
    shape, numbers_shape = data.shape, numbers.shape
    if segment_count < 1 or not numbers_shape or shape[: len(numbers_shape)] != numbers_shape:
        context.broken(
            f"got {segment_count} segments and segment_ids of shape {numbers_shape}, expected at least 1 and leading "
            f"extents of {shape}"
        )
    dtype = data.dtype
    real = dtype == "float32"
    low, high = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)) if real else dtypes.int_range(dtype)
    neutral = {"add": 0, "mul": 1, "max": low, "min": high}[reduction]
    rest = shape[len(numbers_shape) :]
    start = context.new_filled_constant("start", (segment_count + 1, *rest), neutral, dtype)
    flat = context.reshape(numbers, (int(np.prod(numbers_shape)), 1))
    none, last = (context.new_constant("segment", np.array(n, numbers.dtype)) for n in (0, segment_count))
    at = context.emit("where", (context.emit("less", (flat, none), {"rounding": Rounding.NONE}), last, flat))
    rows = context.reshape(data, (int(np.prod(numbers_shape)), *rest))
    scattered = context.emit("scatter_nd", (start, at, rows), {"reduction": reduction})
    attrs: Mapping[str, Attr] = {
        "begin": (0,) * (1 + len(rest)),
        "end": (segment_count, *rest),
        "strides": (1,) * (1 + len(rest)),
    }
    context.result("slice", (scattered,), attrs)


@CONVERTERS.register("SPARSE_TO_DENSE", dtypes=MOVABLE)
def convert_sparse_to_dense(
    context: OpContext, indices: Indices, output_shape: Ints, values: Unchanged, default: Unchanged
) -> None:
    """Convert SPARSE_TO_DENSE: a tensor of constant shape with the given values at index vectors, and a default value
    at all other indices."""
    shape, indices_shape = output_shape, indices.shape
    count, depth = (indices_shape[0], indices_shape[1]) if len(indices_shape) == 2 else (int(np.prod(indices_shape)), 1)
    if depth != len(shape) or default.size != 1 or values.size not in (1, count):
        got = f"values of shape {values.shape}, indices of shape {indices_shape}"
        context.broken(f"got {got}, expected one value or {count}, {len(shape)} indices each, one default value")
    start = context.emit("broadcast_to", (context.reshape(default, ()),), {"shape": shape})
    updates = (
        context.emit("broadcast_to", (context.reshape(values, ()),), {"shape": (count,)})
        if values.size == 1
        else values
    )
    operands = (start, context.reshape(indices, (count, depth)), context.reshape(updates, (count,)))
    context.result("scatter_nd", operands, {"reduction": ""})


@CONVERTERS.register("MATRIX_DIAG", dtypes=MOVABLE)
def convert_matrix_diag(context: OpContext, data: Moved) -> None:
    """Convert MATRIX_DIAG: square matrices whose diagonals are the rows of the operand.

    ``extent`` zeros are appended to each of the ``extent`` elements of a row. Element i is then at index i * (extent +
    1) of the flattened matrix, which is on the diagonal.
    """
    *lead, extent = data.shape or (1,)
    rows = int(np.prod(lead))
    zero: int | float | bool = {"float32": 0.0, "bool": False}.get(data.dtype, 0)
    apart = context.reshape(data, (rows, extent, 1))
    spread = context.emit("pad", (apart,), {"padding": ((0, 0), (0, 0), (0, extent)), "value": zero})
    flat = context.reshape(spread, (rows, extent * (extent + 1)))
    context.result_reshape(context.slice_axis(flat, 1, 0, extent * extent), (*lead, extent, extent))


@CONVERTERS.register("MATRIX_SET_DIAG", dtypes=MOVABLE)
def convert_matrix_set_diag(context: OpContext, data: Moved, diagonal: Moved) -> None:
    """Convert MATRIX_SET_DIAG: replace the diagonals of matrices."""
    *lead, rows, columns = data.shape if data.rank > 1 else (0, 0)
    least = min(rows, columns)
    if diagonal.shape != (*lead, least):
        context.broken(f"diagonal: got shape {diagonal.shape}, expected {(*lead, least)}")
    wide = context.reshape(diagonal, (*lead, 1, least))
    if columns > least:
        padding = ((0, 0),) * (len(lead) + 1) + ((0, columns - least),)
        zero: int | float | bool = {"float32": 0.0, "bool": False}.get(data.dtype, 0)
        wide = context.emit("pad", (wide,), {"padding": padding, "value": zero})
    row, column = (np.arange(extent, dtype=np.int32) for extent in (rows, columns))
    positions = [context.new_constant("places", index) for index in (row[:, None], column)]
    on_diagonal = context.emit("equal", positions, {"rounding": Rounding.NONE})
    context.result("where", (on_diagonal, wide, data))


# ---- Converter of TFLite Micro's TFLM_DECODE: constants that are compressed in the file are decompressed at compile time.
#
# Every output has two operands: the compressed data, and ancillary data (a header of 16 bytes, then tables). The highest bit of a
# byte is read first. Source: TFLite Micro ``decode_state_lut.cc``, ``..._prune.cc``, ``..._huffman.cc``.

_HEADER = 16
"""Number of bytes of the header of a compressed constant."""
_VERSION = 1
_WINDOW = 8
"""Number of bytes read at a time when a code word is decoded. The bits for one table look-up are at most 32 and may
begin at any bit of a byte."""


@frozen
class _CompressedConstant:
    """A constant compressed for TFLM_DECODE: the compressed ``compressed_bytes``, the ``header`` and ``tables`` of the
    ancillary data, and the type of the decompressed tensor."""

    context: OpContext
    compressed_bytes: bytes
    header: bytes
    tables: bytes
    type_: TensorType

    def read_tables(self, table_dtype: str) -> Array:
        """Return the bytes of the tables as an array of ``table_dtype``. An incomplete last entry is dropped."""
        native = dtypes.to_numpy(table_dtype)
        whole = len(self.tables) // native.itemsize * native.itemsize
        return np.frombuffer(self.tables[:whole], native.newbyteorder("<")).astype(native)

    def check_bit_count(self, bits_per_element: int) -> None:
        """Raise ModelError if there are fewer than ``bits_per_element`` compressed bits for each element."""
        if bits_per_element * self.type_.size > 8 * len(self.compressed_bytes):
            expected = -(-bits_per_element * self.type_.size // 8)
            self.context.broken(
                f"got {len(self.compressed_bytes)} compressed bytes, expected {expected} for {self.type_.size} elements"
            )

    def channel_of_each_element(self) -> Array:
        """Return the quantisation channel of every element, in memory order. The channel axis must be the first or the
        last."""
        quant, shape = self.type_.quant, self.type_.shape
        if quant is None or quant.axis is None:
            return np.zeros(self.type_.size, np.int64)
        if quant.axis not in (0, len(shape) - 1):
            self.context.refuse(
                f"quantisation axis: got {quant.axis}, expected the first or the last axis",
                "quantise along another axis",
            )
        count = len(quant.scale)
        positions = np.arange(self.type_.size)
        return positions % count if quant.axis else positions // max(self.type_.size // count, 1)


@CONVERTERS.register("CUSTOM:TFLM_DECODE", dtypes=DTYPES)
def convert_tflm_decode(context: OpContext, *operands: Array) -> None:
    """Convert TFLM_DECODE: decompress every output at compile time and define it as a constant."""
    outputs = [context.output_tensor(position) for position in range(len(context.operator.outputs))]
    if len(operands) != 2 * len(outputs):
        context.broken(f"got {len(operands)} inputs, expected {2 * len(outputs)}, two for each output")
    for output, bits, ancillary in zip(outputs, operands[0::2], operands[1::2], strict=True):
        header_and_tables, type_ = ancillary.tobytes(), output.type
        if len(header_and_tables) < _HEADER or header_and_tables[1] != _VERSION or header_and_tables[4] != _VERSION:
            context.refuse(
                f"header: the format version is not supported, expected {_VERSION}", "compress the model again"
            )
        if header_and_tables[0] not in _DECODERS or type_.dtype not in DTYPES:
            context.refuse(
                f"header: got compression type {header_and_tables[0]} and dtype {type_.dtype}, expected type "
                "0..2 and a dtype of numbers",
                "use type 0 (table), 1 (Huffman) or 2 (pruned), or convert the model without compression",
            )
        packed = _CompressedConstant(
            context, bits.tobytes(), header_and_tables[:_HEADER], header_and_tables[_HEADER:], type_
        )
        values = _DECODERS[header_and_tables[0]](packed).reshape(type_.shape)
        context.builder.define_constant(output.name, values, type_.quant)


def _decode_table_indices(compressed: _CompressedConstant) -> Array:
    """Decompress a constant whose elements are stored as indices of 1 to 7 bits into a table of values.

    Each channel has its own table. The header contains the distance in entries between the tables of two channels."""
    width, stride = compressed.header[5] & 7, compressed.header[6]
    if not width:
        compressed.context.broken("got indices of 0 bits, expected 1..7")
    compressed.check_bit_count(width)
    bits = np.unpackbits(
        np.frombuffer(compressed.compressed_bytes, np.uint8), count=width * compressed.type_.size
    ).reshape(-1, width)
    indices = compressed.channel_of_each_element() * stride + bits.astype(np.int64) @ (1 << np.arange(width)[::-1])
    return _look_up_in_table(compressed, compressed.read_tables(compressed.type_.dtype), indices)


def _decode_pruned_elements(compressed: _CompressedConstant) -> Array:
    """Decompress a pruned constant, which is stored as a bit mask and the elements that were not pruned.

    An element whose bit is 1 is the next stored element. An element whose bit is 0 is the zero point of its channel."""
    compressed.check_bit_count(1)
    mask = np.unpackbits(np.frombuffer(compressed.compressed_bytes, np.uint8), count=compressed.type_.size).astype(bool)
    quant = compressed.type_.quant
    zero = np.array(quant.zero_point if quant else (0,), dtypes.to_numpy(compressed.type_.dtype))
    elements = zero[compressed.channel_of_each_element()] if len(zero) > 1 else np.full(compressed.type_.size, zero[0])
    elements[mask] = _look_up_in_table(
        compressed, compressed.read_tables(compressed.type_.dtype), np.arange(int(mask.sum()))
    )
    return elements


def _look_up_in_table(compressed: _CompressedConstant, table: Array, indices: Array) -> Array:
    """Return ``table[indices]``; raise ModelError if an index is out of range."""
    if indices.size and int(indices.max()) >= len(table):
        compressed.context.broken(f"got index {indices.max()} of the value table, expected 0..{len(table) - 1}")
    elements: Array = table[indices]
    return elements


def _decode_huffman_codes(compressed: _CompressedConstant) -> Array:
    """Decompress a constant whose elements are Huffman code words.

    A code word is decoded by look-ups in a chain of tables. An entry is a symbol with its number of bits, or the offset
    of the table for the next look-up."""
    wide = compressed.header[5] & 1
    count_at, is_symbol = (27, 1 << 31) if wide else (11, 1 << 15)
    offset_mask = (1 << count_at) - 1
    if compressed.type_.dtype not in (("int8", "int16") if wide else ("int8",)):
        compressed.context.refuse(
            f"Huffman codes of {compressed.type_.dtype} are not supported", "compress int8, or int16 with 32-bit tables"
        )
    compressed.check_bit_count(1)
    table = compressed.read_tables("uint32" if wide else "uint16").tolist()
    source, at, end = compressed.compressed_bytes + bytes(_WINDOW), 0, 8 * len(compressed.compressed_bytes)
    symbols = []
    for _ in range(compressed.type_.size):
        entry, index = 0, 0
        width = (compressed.header[5] >> 4) + 1
        while True:
            window = int.from_bytes(source[at >> 3 : (at >> 3) + _WINDOW], "big")
            index += window >> 8 * _WINDOW - (at & 7) - width & (1 << width) - 1
            at += width
            if index >= len(table) or at > end + width:
                compressed.context.broken(
                    f"Huffman codes: a code word leads beyond the {len(table)} entries of the tables or the "
                    f"{len(compressed.compressed_bytes)} bytes of data"
                )
            entry = table[index]
            used = entry >> count_at & 15
            if entry & is_symbol:
                break
            index, width = index + (entry & offset_mask), used + 1
        at -= max(width - used, 0)
        symbols.append(entry & 0xFFFF)
    return np.array(symbols, np.uint16).astype(dtypes.to_numpy(compressed.type_.dtype))


_DECODERS: Mapping[int, Callable[[_CompressedConstant], Array]] = {
    0: _decode_table_indices,
    1: _decode_huffman_codes,
    2: _decode_pruned_elements,
}
"""Decompression functions by the compression type in the header."""
