"""Spellings of TFLite's conversions: between dtypes, between integers and what they stand for, of stored forms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, MOVABLE, PLAIN, QUANTISED, REAL, Spelling
from microc.graph.ir import Attr
from microc.ops.rounding import Multiplier, Rounding, Ties


def quantize(application: Application) -> None:
    """QUANTIZE: floats to integers, or integers to another quantisation."""
    target, source = application.target(), application.source(0).type.dtype
    if source not in (*REAL, "int32"):
        application.refuse(f"{source} input", "float32, or int8, uint8, int16 and int32 with a scale")
    data, quant = application.operand(0, source, symmetric=False), target.type.quant
    if quant is None or (source != "float32" and application.source(0).type.quant is None):
        application.refuse("integers without quantisation", "give both tensors a scale and a zero point")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": None}
    attrs |= {"out_dtype": target.type.dtype, "rounding": Ties.AWAY if source == "float32" else Multiplier.DOUBLE}
    application.result("quantize", (data,), attrs)


def dequantize(application: Application) -> None:
    """DEQUANTIZE: integers to floats; constants stored as float16 are widened here."""
    source, target = application.source(0), application.target()
    half = _half(application)
    if half is not None:
        application.builder.constant(target.name, half.astype(np.float32))
        return
    quant = source.type.quant
    if source.type.dtype not in (*QUANTISED, "int32"):
        application.refuse(
            f"{source.type.dtype} input", "int8, uint8, int16 and int32 with a scale, or constants of float16"
        )
    if quant is None:
        application.refuse(f"{source.name!r} has no quantisation", "give it a scale and a zero point")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    application.result("dequantize", (application.value(0),), attrs)


def densify(application: Application) -> None:
    """DENSIFY of a constant: sparse ones are dense as soon as they are read. One of float16 is kept for what widens it."""
    target, half = application.target(), _half(application)
    if half is None:
        application.builder.constant(target.name, application.constant(0), target.type.quant)
    elif target.type.dtype != "float16" or target.index in application.builder.halves:
        application.broken(f"a constant of float16 becomes {target.name!r} of {target.type.dtype}, or does so twice")
    else:
        application.builder.halves[target.index] = half


def _half(application: Application) -> Array | None:
    """The first operand where it is a constant of float16, stored or made dense: no value of the graph is."""
    source = application.source(0)
    if source.type.dtype != "float16":
        return None
    return application.builder.file.array(source) if source.constant else application.builder.halves.get(source.index)


def cast(application: Application) -> None:
    """CAST: the stored numbers in another dtype; constants of float16 are widened here."""
    half = _half(application)
    if half is not None and application.target().type.dtype == "float32":
        application.builder.constant(application.target().name, half.astype(np.float32))
        return
    if application.source(0).type.dtype not in MOVABLE:
        application.refuse(f"{application.source(0).type.dtype} input", f"microc has {', '.join(MOVABLE)}")
    application.result("cast", (application.value(0),), {"dtype": application.target().type.dtype})


def fake_quant(application: Application) -> None:
    """FAKE_QUANT: floats rounded to the steps that integers of some bits between two ends would have."""
    fields = application.operator.options.fields("FakeQuantOptions", required=True)
    low, high, bits = fields.real("Min"), fields.real("Max"), fields.integer("NumBits", 2, 16)
    least, most = int(bool(fields.integer("NarrowRange"))), (1 << bits) - 1
    if not low < high:
        application.broken(f"steps between {low} and {high}")
    scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(most - least))
    zero = np.float32(least) - np.float32(low) / scale
    nudged = float(np.clip(np.floor(zero + np.float32(0.5)), least, most))
    bottom, top = (float(np.float32(end - nudged) * scale) for end in (least, most))
    clipped = application.emit("clip", (application.operand(0),), {"minimum": bottom, "maximum": top})
    above = application.emit("sub", (clipped, application.scalar(bottom)), {})
    steps = application.emit("mul", (above, application.scalar(float(np.float32(1) / scale))), {})
    whole = application.emit("floor", (application.emit("add", (steps, application.scalar(0.5)), {}),), {})
    back = application.emit("mul", (whole, application.scalar(float(scale))), {})
    application.result("add", (back, application.scalar(bottom)), {})


def bucketize(application: Application) -> None:
    """BUCKETIZE: how many of the boundaries, which rise, lie at or below each number."""
    boundaries = application.operator.options.fields("BucketizeOptions", required=True).reals("Boundaries")
    data = application.value(0)
    kind = application.type(data)
    if kind.dtype not in (*FLOAT, *PLAIN) or list(boundaries) != sorted(boundaries) or not boundaries:
        application.refuse(
            f"{kind.dtype} input with {len(boundaries)} boundaries", "boundaries rise, of float32 or integers"
        )
    real = data if kind.dtype == "float32" else application.emit("cast", (data,), {"dtype": "float32"})
    apart = application.reshaped(real, (*kind.shape, 1))
    ends = application.new_constant("boundaries", np.array(boundaries, np.float32))
    above = application.emit("greater_equal", (apart, ends), {"rounding": Rounding.NONE})
    attrs: Mapping[str, Attr] = {"axes": (len(kind.shape),), "keepdims": False, "rounding": Rounding.NONE}
    application.result("sum", (application.emit("cast", (above,), {"dtype": "int32"}),), attrs)


def bitcast(application: Application) -> None:
    """BITCAST: the same bits as another dtype of as many; of constants any dtype."""
    source, target = application.source(0), application.target()
    data = application.builder.consts.get(application.value(0))
    if data is not None:
        read = np.frombuffer(data.tobytes(), dtypes.to_numpy(target.type.dtype))
        if read.size != target.type.size:
            application.broken(
                f"{source.type.shape} of {source.type.dtype} as {target.type.shape} of {target.type.dtype}"
            )
        application.builder.constant(target.name, read.reshape(target.type.shape), target.type.quant)
        return
    pair = (source.type.dtype, target.type.dtype)
    if not all(dtypes.is_integer(name) for name in pair) or len({dtypes.nbytes(name) for name in pair}) > 1:
        application.refuse(f"the bits of {pair[0]} as {pair[1]}", "integers of as many bits, or constants")
    application.result("cast", (application.value(0),), {"dtype": pair[1]})


SPELLINGS: Mapping[str, Spelling] = {
    "BITCAST": Spelling(bitcast, MOVABLE),
    "BUCKETIZE": Spelling(bucketize, ("int32",)),
    "CAST": Spelling(cast, MOVABLE),
    "DENSIFY": Spelling(densify, (*MOVABLE, "float16")),
    "DEQUANTIZE": Spelling(dequantize, FLOAT),
    "FAKE_QUANT": Spelling(fake_quant, FLOAT),
    "QUANTIZE": Spelling(quantize, (*QUANTISED, "int32")),
}
