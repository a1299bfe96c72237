"""Converters of TFLite's gathers, scatters and segment reductions, and of TFLite Micro's compressed constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.tflite.context import DTYPES, FLOAT, MOVABLE, Converter, OpContext, check_same_quantisation
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import Rounding

# ---- Converters of operators that rearrange elements: gathers, mirror padding, space to batch.

_MIRRORS = ("reflect", "symmetric")


def convert_gather(context: OpContext) -> None:
    """Convert GATHER along an axis. With ``BatchDims`` leading batch axes, each batch has its own indices."""
    fields = context.operator.options.fields("GatherOptions")
    data, indices = context.unchanged_operand(0), context.value(1)
    check_same_quantisation(context, [0])
    rank = len(context.type(data).shape)
    axis, batch = context.axis(fields.read_integer("Axis"), rank), fields.read_integer("BatchDims")
    batch = context.axis(batch, len(context.type(indices).shape)) if batch < 0 else batch
    context.result("gather", (data, context.cast_indices(indices)), {"axis": axis, "batch_dims": batch})


def convert_gather_nd(context: OpContext) -> None:
    """Convert GATHER_ND: gather the elements or slices at index vectors."""
    data, indices = context.unchanged_operand(0), context.value(1)
    check_same_quantisation(context, [0])
    context.result("gather_nd", (data, context.cast_indices(indices)), {"batch_dims": 0})


def convert_embedding_lookup(context: OpContext) -> None:
    """Convert EMBEDDING_LOOKUP: gather rows of a matrix. Rows of integers are dequantised if the output is float32."""
    indices, table = context.value(0), context.value(1)
    type_, target = context.input_tensor(1).type, context.output_tensor().type
    if type_.dtype == target.dtype:
        check_same_quantisation(context, [1])
        context.result("gather", (table, indices), {"axis": 0})
        return
    if type_.quant is None or type_.quant.axis not in (None, 0) or target.dtype != "float32":
        context.refuse(
            f"table: its dtype differs from the output's; got {type_.dtype}, expected {target.dtype} or quantised rows",
            "give a table of the output's dtype, or of int8 with one scale or one for each row",
        )
    rows = context.emit("gather", (table, indices), {"axis": 0})
    scale, zero = (np.array(x, np.float32) for x in (type_.quant.scale, type_.quant.zero_point))
    real = context.emit("cast", (rows,), {"dtype": "float32"})
    broadcast_shape = (-1, *(1,) * (len(type_.shape) - 1))
    parts = []
    for numbers in (zero, scale):
        table = context.new_constant("row_scales", numbers.reshape(broadcast_shape))
        parts.append(context.emit("gather", (table, indices), {"axis": 0}) if len(numbers) > 1 else table)
    context.result("mul", (context.emit("sub", (real, parts[0]), {}), parts[1]), {})


def convert_reverse_v2(context: OpContext) -> None:
    """Convert REVERSE_V2 along constant axes."""
    data = context.unchanged_operand(0)
    check_same_quantisation(context, [0])
    rank = len(context.type(data).shape)
    axes = tuple(sorted({context.axis(axis, rank) for axis in context.integers(1)}))
    context.result("reverse", (data,), {"axes": axes})


def convert_reverse_sequence(context: OpContext) -> None:
    """Convert REVERSE_SEQUENCE: in every batch, reverse the first elements along the time axis.

    The second operand contains the number of reversed elements of each batch."""
    fields = context.operator.options.fields("ReverseSequenceOptions", required=True)
    data, lengths = context.unchanged_operand(0), context.cast_indices(context.value(1))
    check_same_quantisation(context, [0])
    rank = len(context.type(data).shape)
    time, batch = (context.axis(fields.read_integer(name), rank) for name in ("SeqDim", "BatchDim"))
    context.result("reverse_sequence", (data, lengths), {"batch_axis": batch, "time_axis": time})


def convert_mirror_pad(context: OpContext) -> None:
    """Convert MIRROR_PAD. The mode REFLECT does not repeat the border element, the mode SYMMETRIC repeats it."""
    mode = context.operator.options.fields("MirrorPadOptions", required=True).read_integer("Mode", 0, 1)
    data, amounts = context.unchanged_operand(0), context.integers(1)
    check_same_quantisation(context, [0])
    if len(amounts) != 2 * len(context.type(data).shape) or min(amounts, default=0) < 0:
        rank = len(context.type(data).shape)
        context.broken(f"padding: got {amounts}, expected {2 * rank} numbers of at least 0, two for each axis")
    padding = tuple(zip(amounts[0::2], amounts[1::2], strict=True))
    context.result("mirror_pad", (data,), {"padding": padding, "mode": _MIRRORS[mode]})


def convert_broadcast_to(context: OpContext) -> None:
    """Convert BROADCAST_TO, to a constant shape."""
    data = context.unchanged_operand(0)
    check_same_quantisation(context, [0])
    context.result("broadcast_to", (data,), {"shape": context.integers(1)})


def convert_space_to_batch_nd(context: OpContext) -> None:
    """Convert SPACE_TO_BATCH_ND: pad the spatial axes, then move the elements of every block to the batch axis."""
    data, block, paddings = context.unchanged_operand(0), context.integers(1), context.integers(2)
    check_same_quantisation(context, [0])
    shape, count = context.type(data).shape, len(block)
    if len(paddings) != 2 * count or count >= len(shape) or min((*block, 1)) < 1 or min((*paddings, 0)) < 0:
        expected = f"blocks of at least 1 for up to {len(shape) - 1} axes, two paddings of at least 0 for each"
        context.broken(f"block_shape, paddings: got {block} and {paddings} for shape {shape}, expected {expected}")
    if any(paddings):
        quant, rest = context.output_tensor().type.quant, len(shape) - count - 1
        value = quant.zero_point[0] if quant else 0
        amounts = ((0, 0), *zip(paddings[0::2], paddings[1::2], strict=True), *((0, 0),) * rest)
        data = context.emit("pad", (data,), {"padding": amounts, "value": value})
        shape = context.type(data).shape
    if any(extent % size for extent, size in zip(shape[1:], block, strict=False)):
        context.broken(f"block_shape: got {block}, expected divisors of the extents of the padded shape {shape}")
    split = [part for extent, size in zip(shape[1 : 1 + count], block, strict=True) for part in (extent // size, size)]
    apart = context.emit("reshape", (data,), {"shape": (shape[0], *split, *shape[1 + count :])})
    rows, sizes = (tuple(range(first, 1 + 2 * count, 2)) for first in (1, 2))
    axes = (*sizes, 0, *rows, *range(1 + 2 * count, len(split) + len(shape) - count))
    moved = context.emit("transpose", (apart,), {"axes": axes})
    batches = shape[0] * int(np.prod(block))
    context.result_reshape(moved, (batches, *split[0::2], *shape[1 + count :]))


def convert_batch_to_space_nd(context: OpContext) -> None:
    """Convert BATCH_TO_SPACE_ND: move batches to the elements of spatial blocks, then crop the spatial axes."""
    data, block, crops = context.unchanged_operand(0), context.integers(1), context.integers(2)
    check_same_quantisation(context, [0])
    shape, count, cells = context.type(data).shape, len(block), int(np.prod(block))
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


def convert_dynamic_update_slice(context: OpContext) -> None:
    """Convert DYNAMIC_UPDATE_SLICE: replace the part of the operand that begins at computed indices."""
    data, update, begin = context.unchanged_operand(0), context.unchanged_operand(1), context.value(2)
    check_same_quantisation(context, [0, 1])
    context.result("dynamic_update_slice", (data, update, begin), {})


GATHER_CONVERTERS: Mapping[str, Converter] = {
    "BATCH_TO_SPACE_ND": Converter(convert_batch_to_space_nd, MOVABLE),
    "BROADCAST_TO": Converter(convert_broadcast_to, MOVABLE),
    "DYNAMIC_UPDATE_SLICE": Converter(convert_dynamic_update_slice, MOVABLE),
    "EMBEDDING_LOOKUP": Converter(convert_embedding_lookup, (*FLOAT, "int8")),
    "GATHER": Converter(convert_gather, MOVABLE),
    "GATHER_ND": Converter(convert_gather_nd, MOVABLE),
    "MIRROR_PAD": Converter(convert_mirror_pad, MOVABLE),
    "REVERSE_SEQUENCE": Converter(convert_reverse_sequence, MOVABLE),
    "REVERSE_V2": Converter(convert_reverse_v2, MOVABLE),
    "SPACE_TO_BATCH_ND": Converter(convert_space_to_batch_nd, MOVABLE),
}


# ---- Converters of operators that scatter rows or elements: segment reductions, SPARSE_TO_DENSE, diagonals.

_REDUCTIONS = ("add", "mul", "max", "min")


def convert_scatter_nd(context: OpContext) -> None:
    """Convert SCATTER_ND: add updates, at index vectors, to a tensor of zeros of a constant shape."""
    indices, updates, shape = context.value(0), context.unchanged_operand(1), context.integers(2)
    zeros = context.new_filled_constant("zeros", shape, 0, context.output_tensor().type.dtype)
    context.result("scatter_nd", (zeros, context.cast_indices(indices), updates), {"reduction": "add"})


def convert_segment_sum(context: OpContext) -> None:
    """Convert SEGMENT_SUM: add the rows of each segment.

    The number of segments must be known at compile time: from constant segment numbers, which ascend, or from the
    output's declared shape.
    """
    numbers = context.builder.consts.get(context.value(1))
    if numbers is not None:
        count = int(numbers.max(initial=-1)) + 1
    elif context.output_tensor().unknown_axes:
        context.refuse("segment_ids: got a computed tensor, expected a constant", "use UNSORTED_SEGMENT_SUM instead")
    else:
        count = context.output_tensor().type.shape[0]
    _emit_segment_reduction(context, "add", count)


def make_unsorted_segment_converter(reduction: str) -> Converter:
    """Return the converter of UNSORTED_SEGMENT_SUM, _PROD, _MAX or _MIN: reduce the rows of each segment.

    Rows with a negative segment number are dropped."""

    def convert_unsorted_segment(context: OpContext) -> None:
        (count,) = context.integers(2)[:1] or (0,)
        _emit_segment_reduction(context, reduction, count)

    return Converter(convert_unsorted_segment, (*FLOAT, "int32"))


def _emit_segment_reduction(context: OpContext, reduction: str, segment_count: int) -> None:
    """Emit the reduction of the rows of each segment, as a scatter into rows of the reduction's neutral element.

    Rows with a negative segment number are scattered to an additional last row, which is sliced off afterwards."""
    data, numbers = context.unchanged_operand(0), context.cast_indices(context.value(1))
    shape, numbers_shape = context.type(data).shape, context.type(numbers).shape
    if segment_count < 1 or not numbers_shape or shape[: len(numbers_shape)] != numbers_shape:
        context.broken(
            f"got {segment_count} segments and segment_ids of shape {numbers_shape}, expected at least 1 and leading "
            f"extents of {shape}"
        )
    dtype = context.output_tensor().type.dtype
    real = dtype == "float32"
    low, high = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)) if real else dtypes.int_range(dtype)
    neutral = {"add": 0, "mul": 1, "max": low, "min": high}[reduction]
    rest = shape[len(numbers_shape) :]
    start = context.new_filled_constant("start", (segment_count + 1, *rest), neutral, dtype)
    flat = context.reshape(numbers, (int(np.prod(numbers_shape)), 1))
    index_dtype = context.type(numbers).dtype
    none, last = (context.new_constant("segment", np.array(n, index_dtype)) for n in (0, segment_count))
    at = context.emit("where", (context.emit("less", (flat, none), {"rounding": Rounding.NONE}), last, flat), {})
    rows = context.reshape(data, (int(np.prod(numbers_shape)), *rest))
    scattered = context.emit("scatter_nd", (start, at, rows), {"reduction": reduction})
    attrs: Mapping[str, Attr] = {
        "begin": (0,) * (1 + len(rest)),
        "end": (segment_count, *rest),
        "strides": (1,) * (1 + len(rest)),
    }
    context.result("slice", (scattered,), attrs)


def convert_sparse_to_dense(context: OpContext) -> None:
    """Convert SPARSE_TO_DENSE: a tensor of constant shape with the given values at index vectors, and a default value
    at all other indices."""
    indices, values, default = (
        context.cast_indices(context.value(0)),
        context.unchanged_operand(2),
        context.unchanged_operand(3),
    )
    shape, indices_shape = context.integers(1), context.type(indices).shape
    count, depth = (indices_shape[0], indices_shape[1]) if len(indices_shape) == 2 else (int(np.prod(indices_shape)), 1)
    if depth != len(shape) or context.type(default).size != 1 or context.type(values).size not in (1, count):
        got = f"values of shape {context.type(values).shape}, indices of shape {indices_shape}"
        context.broken(f"got {got}, expected one value or {count}, {len(shape)} indices each, one default value")
    start = context.emit("broadcast_to", (context.reshape(default, ()),), {"shape": shape})
    single = context.type(values).size == 1
    updates = context.emit("broadcast_to", (context.reshape(values, ()),), {"shape": (count,)}) if single else values
    operands = (start, context.reshape(indices, (count, depth)), context.reshape(updates, (count,)))
    context.result("scatter_nd", operands, {"reduction": ""})


def convert_matrix_diag(context: OpContext) -> None:
    """Convert MATRIX_DIAG: square matrices whose diagonals are the rows of the operand.

    ``extent`` zeros are appended to each of the ``extent`` elements of a row. Element i is then at index i * (extent +
    1) of the flattened matrix, which is on the diagonal.
    """
    data = context.unchanged_operand(0)
    check_same_quantisation(context, [0])
    *lead, extent = context.type(data).shape or (1,)
    rows, type_ = int(np.prod(lead)), context.output_tensor().type
    zero: int | float | bool = {"float32": 0.0, "bool": False}.get(type_.dtype, 0)
    apart = context.reshape(data, (rows, extent, 1))
    spread = context.emit("pad", (apart,), {"padding": ((0, 0), (0, 0), (0, extent)), "value": zero})
    flat = context.reshape(spread, (rows, extent * (extent + 1)))
    attrs: Mapping[str, Attr] = {"begin": (0, 0), "end": (rows, extent * extent), "strides": (1, 1)}
    context.result_reshape(context.emit("slice", (flat,), attrs), (*lead, extent, extent))


def convert_matrix_set_diag(context: OpContext) -> None:
    """Convert MATRIX_SET_DIAG: replace the diagonals of matrices."""
    data, diagonal = context.unchanged_operand(0), context.unchanged_operand(1)
    check_same_quantisation(context, [0, 1])
    *lead, rows, columns = context.type(data).shape if len(context.type(data).shape) > 1 else (0, 0)
    least = min(rows, columns)
    if context.type(diagonal).shape != (*lead, least):
        context.broken(f"diagonal: got shape {context.type(diagonal).shape}, expected {(*lead, least)}")
    wide = context.reshape(diagonal, (*lead, 1, least))
    if columns > least:
        padding = ((0, 0),) * (len(lead) + 1) + ((0, columns - least),)
        dtype = context.output_tensor().type.dtype
        zero: int | float | bool = {"float32": 0.0, "bool": False}.get(dtype, 0)
        wide = context.emit("pad", (wide,), {"padding": padding, "value": zero})
    row, column = (np.arange(extent, dtype=np.int32) for extent in (rows, columns))
    positions = [context.new_constant("places", index) for index in (row[:, None], column)]
    on_diagonal = context.emit("equal", positions, {"rounding": Rounding.NONE})
    context.result("where", (on_diagonal, wide, data), {})


SEGMENT_CONVERTERS: Mapping[str, Converter] = {
    "MATRIX_DIAG": Converter(convert_matrix_diag, MOVABLE),
    "MATRIX_SET_DIAG": Converter(convert_matrix_set_diag, MOVABLE),
    "SCATTER_ND": Converter(convert_scatter_nd, MOVABLE),
    "SEGMENT_SUM": Converter(convert_segment_sum, (*FLOAT, "int32")),
    "SPARSE_TO_DENSE": Converter(convert_sparse_to_dense, MOVABLE),
    "UNSORTED_SEGMENT_MAX": make_unsorted_segment_converter("max"),
    "UNSORTED_SEGMENT_MIN": make_unsorted_segment_converter("min"),
    "UNSORTED_SEGMENT_PROD": make_unsorted_segment_converter("mul"),
    "UNSORTED_SEGMENT_SUM": make_unsorted_segment_converter("add"),
}


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


def convert_tflm_decode(context: OpContext) -> None:
    """Convert TFLM_DECODE: decompress every output at compile time and define it as a constant."""
    if len(context.operator.inputs) != 2 * len(context.operator.outputs):
        expected = f"{2 * len(context.operator.outputs)}, two for each output"
        context.broken(f"got {len(context.operator.inputs)} inputs, expected {expected}")
    for position in range(len(context.operator.outputs)):
        bits, header_and_tables = (context.constant(2 * position + k).tobytes() for k in (0, 1))
        type_ = context.output_tensor(position).type
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
        packed = _CompressedConstant(context, bits, header_and_tables[:_HEADER], header_and_tables[_HEADER:], type_)
        values = _DECODERS[header_and_tables[0]](packed).reshape(type_.shape)
        context.builder.define_constant(context.output_tensor(position).name, values, type_.quant)


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

COMPRESSED_CONVERTERS: Mapping[str, Converter] = {"CUSTOM:TFLM_DECODE": Converter(convert_tflm_decode, DTYPES)}
