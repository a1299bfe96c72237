"""Spellings of TFLite's operators that put elements in other places: gathers, mirrored borders, blocks that become a batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, MOVABLE, Spelling, check_alike
from microc.graph.ir import Attr

_MIRRORS = ("reflect", "symmetric")


def gather(application: Application) -> None:
    """GATHER along an axis, at each batch's own indices where there are batch axes."""
    fields = application.operator.options.fields("GatherOptions")
    data, indices = application.moved(0), application.value(1)
    check_alike(application, [0])
    rank = len(application.type(data).shape)
    axis, batch = application.axis(fields.integer("Axis"), rank), fields.integer("BatchDims")
    batch = application.axis(batch, len(application.type(indices).shape)) if batch < 0 else batch
    application.result("gather", (data, application.index(indices)), {"axis": axis, "batch_dims": batch})


def gather_nd(application: Application) -> None:
    """GATHER_ND: elements or slices at whole index vectors."""
    data, indices = application.moved(0), application.value(1)
    check_alike(application, [0])
    application.result("gather_nd", (data, application.index(indices)), {"batch_dims": 0})


def embedding_lookup(application: Application) -> None:
    """EMBEDDING_LOOKUP: rows of a table; rows of integers are dequantised."""
    indices, table = application.value(0), application.value(1)
    kind, target = application.source(1).type, application.target().type
    if kind.dtype == target.dtype:
        check_alike(application, [1])
        application.result("gather", (table, indices), {"axis": 0})
        return
    if kind.quant is None or kind.quant.axis not in (None, 0) or target.dtype != "float32":
        application.refuse(
            f"a table of {kind.dtype} and {target.dtype} output",
            "a table of the output's dtype, or of int8 with scales",
        )
    rows = application.emit("gather", (table, indices), {"axis": 0})
    scale, zero = (np.array(x, np.float32) for x in (kind.quant.scale, kind.quant.zero_point))
    real = application.emit("cast", (rows,), {"dtype": "float32"})
    each = (-1, *(1,) * (len(kind.shape) - 1))
    parts = []
    for numbers in (zero, scale):
        table = application.new_constant("row_scales", numbers.reshape(each))
        parts.append(application.emit("gather", (table, indices), {"axis": 0}) if len(numbers) > 1 else table)
    application.result("mul", (application.emit("sub", (real, parts[0]), {}), parts[1]), {})


def reverse(application: Application) -> None:
    """REVERSE_V2 along constant axes."""
    data = application.moved(0)
    check_alike(application, [0])
    rank = len(application.type(data).shape)
    axes = tuple(sorted({application.axis(axis, rank) for axis in application.integers(1)}))
    application.result("reverse", (data,), {"axes": axes})


def reverse_sequence(application: Application) -> None:
    """REVERSE_SEQUENCE: of every batch the first elements along an axis, as many as a list says."""
    fields = application.operator.options.fields("ReverseSequenceOptions", required=True)
    data, lengths = application.moved(0), application.index(application.value(1))
    check_alike(application, [0])
    rank = len(application.type(data).shape)
    time, batch = (application.axis(fields.integer(name), rank) for name in ("SeqDim", "BatchDim"))
    application.result("reverse_sequence", (data, lengths), {"batch_axis": batch, "time_axis": time})


def mirror_pad(application: Application) -> None:
    """MIRROR_PAD: REFLECT leaves out the border, SYMMETRIC repeats it."""
    mode = application.operator.options.fields("MirrorPadOptions", required=True).integer("Mode", 0, 1)
    data, amounts = application.moved(0), application.integers(1)
    check_alike(application, [0])
    if len(amounts) != 2 * len(application.type(data).shape) or min(amounts, default=0) < 0:
        application.broken(f"padding {amounts} for {len(application.type(data).shape)} axes")
    padding = tuple(zip(amounts[0::2], amounts[1::2], strict=True))
    application.result("mirror_pad", (data,), {"padding": padding, "mode": _MIRRORS[mode]})


def broadcast_to(application: Application) -> None:
    """BROADCAST_TO a constant shape."""
    data = application.moved(0)
    check_alike(application, [0])
    application.result("broadcast_to", (data,), {"shape": application.integers(1)})


def space_to_batch(application: Application) -> None:
    """SPACE_TO_BATCH_ND: padded, then the pixels of every block become batches."""
    data, block, paddings = application.moved(0), application.integers(1), application.integers(2)
    check_alike(application, [0])
    shape, count = application.type(data).shape, len(block)
    if len(paddings) != 2 * count or count >= len(shape) or min((*block, 1)) < 1 or min((*paddings, 0)) < 0:
        application.broken(f"blocks of {block} with padding {paddings} in shape {shape}")
    if any(paddings):
        quant, rest = application.target().type.quant, len(shape) - count - 1
        value = quant.zero_point[0] if quant else 0
        amounts = ((0, 0), *zip(paddings[0::2], paddings[1::2], strict=True), *((0, 0),) * rest)
        data = application.emit("pad", (data,), {"padding": amounts, "value": value})
        shape = application.type(data).shape
    if any(extent % size for extent, size in zip(shape[1:], block, strict=False)):
        application.broken(f"blocks of {block} in shape {shape}")
    split = [part for extent, size in zip(shape[1 : 1 + count], block, strict=True) for part in (extent // size, size)]
    apart = application.emit("reshape", (data,), {"shape": (shape[0], *split, *shape[1 + count :])})
    rows, sizes = (tuple(range(first, 1 + 2 * count, 2)) for first in (1, 2))
    axes = (*sizes, 0, *rows, *range(1 + 2 * count, len(split) + len(shape) - count))
    moved = application.emit("transpose", (apart,), {"axes": axes})
    batches = shape[0] * int(np.prod(block))
    application.result_reshape(moved, (batches, *split[0::2], *shape[1 + count :]))


def batch_to_space(application: Application) -> None:
    """BATCH_TO_SPACE_ND: batches become the pixels of blocks, which are then cropped."""
    data, block, crops = application.moved(0), application.integers(1), application.integers(2)
    check_alike(application, [0])
    shape, count, cells = application.type(data).shape, len(block), int(np.prod(block))
    if len(crops) != 2 * count or count >= len(shape) or min((*block, 1)) < 1 or shape[0] % cells:
        application.broken(f"blocks of {block} cropped by {crops} from shape {shape}")
    rest = shape[1 + count :]
    apart = application.emit("reshape", (data,), {"shape": (*block, shape[0] // cells, *shape[1:])})
    pairs = [axis for k in range(count) for axis in (count + 1 + k, k)]
    axes = (count, *pairs, *range(2 * count + 1, count + len(shape)))
    moved = application.emit("transpose", (apart,), {"axes": axes})
    extents = [extent * size for extent, size in zip(shape[1 : 1 + count], block, strict=True)]
    whole = (shape[0] // cells, *extents, *rest)
    if not any(crops):
        application.result_reshape(moved, whole)
        return
    ends = [extent - crop for extent, crop in zip(extents, crops[1::2], strict=True)]
    attrs: Mapping[str, Attr] = {
        "begin": (0, *crops[0::2], *(0,) * len(rest)),
        "end": (whole[0], *ends, *rest),
        "strides": (1,) * len(whole),
    }
    application.result("slice", (application.emit("reshape", (moved,), {"shape": whole}),), attrs)


def dynamic_update_slice(application: Application) -> None:
    """DYNAMIC_UPDATE_SLICE: a part of the operand replaced, from computed indices on."""
    data, update, begin = application.moved(0), application.moved(1), application.value(2)
    check_alike(application, [0, 1])
    application.result("dynamic_update_slice", (data, update, begin), {})


SPELLINGS: Mapping[str, Spelling] = {
    "BATCH_TO_SPACE_ND": Spelling(batch_to_space, MOVABLE),
    "BROADCAST_TO": Spelling(broadcast_to, MOVABLE),
    "DYNAMIC_UPDATE_SLICE": Spelling(dynamic_update_slice, MOVABLE),
    "EMBEDDING_LOOKUP": Spelling(embedding_lookup, (*FLOAT, "int8")),
    "GATHER": Spelling(gather, MOVABLE),
    "GATHER_ND": Spelling(gather_nd, MOVABLE),
    "MIRROR_PAD": Spelling(mirror_pad, MOVABLE),
    "REVERSE_SEQUENCE": Spelling(reverse_sequence, MOVABLE),
    "REVERSE_V2": Spelling(reverse, MOVABLE),
    "SPACE_TO_BATCH_ND": Spelling(space_to_batch, MOVABLE),
}
