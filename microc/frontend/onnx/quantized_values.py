"""Quantised operators whose scales or zero points are data, of blocks, or of 16 bits: as the arithmetic that defines them.

Sums of products are exact, in int32; scaling is done in float32 and rounded half to even, as ONNX says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.onnx.application import Application
from microc.frontend.onnx.window import convolution
from microc.graph.ir import Attr


def is_known(application: Application, *positions: int) -> bool:
    """Whether scales and zero points at these inputs are constants of one or a row of float32 or integers."""
    found = [application.builder.consts.get(application.value(p)) for p in positions if application.has(p)]
    plain = all(array is not None and array.ndim <= 1 and array.dtype.name not in dtypes.HALF for array in found)
    return plain and not application.operator.attributes.integer("block_size", 0)


def _cast(application: Application, value: str, dtype: str) -> str:
    return value if application.type(value).dtype == dtype else application.emit("cast", (value,), {"dtype": dtype})


def spread(application: Application, position: int, shape: Sequence[int], axis: int) -> str:
    """A scale or zero point so that it broadcasts to ``shape``: one number, one along ``axis``, or one for every block."""
    value = application.value(position)
    given, rank = application.type(value).shape, len(shape)
    if application.type(value).size == 1:
        return application.reshaped(value, ())
    if len(given) == 1:
        axis = application.axis(axis, rank)
        return application.reshaped(value, (*given, *[1] * (rank - axis - 1)))
    if len(given) != rank or any(
        not part or -(-extent // part) * part < extent for extent, part in zip(shape, given, strict=True)
    ):
        application.broken(f"scales of shape {given} for data of shape {tuple(shape)}")
    blocks = [-(-extent // part) for extent, part in zip(shape, given, strict=True)]
    apart = application.reshaped(value, [extent for part in given for extent in (part, 1)])
    target = tuple(extent for part, block in zip(given, blocks, strict=True) for extent in (part, block))
    made = application.reshaped(
        application.emit("broadcast_to", (apart,), {"shape": target}),
        [p * b for p, b in zip(given, blocks, strict=True)],
    )
    if application.type(made).shape == tuple(shape):
        return made
    attrs: Mapping[str, Attr] = {"begin": (0,) * rank, "end": tuple(shape), "strides": (1,) * rank}
    return application.emit("slice", (made,), attrs)


def _spread(application: Application, position: int, axis: int) -> Array:
    """A constant as :func:`spread` has it: the data of blocks of weights are too many to leave to run time."""
    array, shape = application.constant(position), application.shape(0)
    if position == 0 or array.size == 1:
        return array if position == 0 else array.reshape(())
    if array.ndim == 1:
        axis = application.axis(axis, len(shape))
        return array.reshape(-1, *[1] * (len(shape) - axis - 1))
    if array.ndim != len(shape) or not all(array.shape):
        application.broken(f"scales of shape {array.shape} for data of shape {shape}")
    for along, (extent, part) in enumerate(zip(shape, array.shape, strict=True)):
        array = np.repeat(array, -(-extent // part), axis=along).take(np.arange(extent), axis=along, mode="clip")
    return array


def quantize(application: Application, out_dtype: str, bits: int) -> None:
    """QuantizeLinear."""
    data, shape = application.value(0), application.shape(0)
    axis = application.operator.attributes.integer("axis", 1)
    scale = _cast(application, spread(application, 1, shape, axis), "float32")
    levels = application.emit("div", (_cast(application, data, "float32"), scale))
    zero = spread(application, 2, shape, axis) if application.has(2) else ""
    _store(application, levels, zero, out_dtype, bits)


def _store(application: Application, levels: str, zero: str, out_dtype: str, bits: int) -> None:
    """The output: real levels rounded, moved to the zero point and saturated."""
    levels = application.emit("round", (levels,))
    if zero:
        levels = application.emit("add", (levels, _cast(application, zero, "float32")))
    low, high = dtypes.int_range(out_dtype)
    low, high = low >> dtypes.info(out_dtype).bits - bits, high >> dtypes.info(out_dtype).bits - bits
    clipped = application.emit("clip", (levels,), {"minimum": float(low), "maximum": float(high)})
    application.result("cast", (clipped,), {"dtype": out_dtype})


def centred(application: Application, position: int, zero: int, axis: int) -> str:
    """The integers at input ``position`` less their zero points, int32."""
    shape = application.shape(position)
    data = _cast(application, application.value(position), "int32")
    if not application.has(zero):
        return data
    return application.emit("sub", (data, _cast(application, spread(application, zero, shape, axis), "int32")))


def dequantize(application: Application) -> None:
    """DequantizeLinear: of the scale's dtype."""
    axis = application.operator.attributes.integer("axis", 1)
    kind = application.type(application.value(1)).dtype
    known = [application.builder.consts.get(application.value(k)) for k in range(3) if application.has(k)]
    if kind == "float32" and all(array is not None for array in known):
        data, scales, *zeros = (_spread(application, k, axis).astype(np.float32) for k in range(len(known)))
        application.result_constant(np.ascontiguousarray((data - (zeros[0] if zeros else np.float32(0))) * scales))
        return
    real = _cast(application, centred(application, 0, 2, axis), "float32")
    scale = _cast(application, spread(application, 1, application.shape(0), axis), "float32")
    made = application.emit("mul", (real, scale))
    application.result_alias(_cast(application, made, kind))


def _scaled_back(application: Application, total: str, scales: Sequence[str], first: int) -> None:
    """The output: int32 sums times the operands' scales over the result's, which are inputs ``first`` and the next."""
    reals = [_cast(application, scale, "float32") for scale in scales]
    factor = application.emit("mul", reals)
    factor = application.emit("div", (factor, _cast(application, spread(application, first, (), 0), "float32")))
    levels = application.emit("mul", (_cast(application, total, "float32"), factor))
    zero = application.reshaped(application.value(first + 1), ())
    out_dtype = application.type(zero).dtype
    _store(application, levels, zero, out_dtype, dtypes.info(out_dtype).bits)


def qlinear_matmul(application: Application) -> None:
    """QLinearMatMul: scales of the left side per row, of the right side per column."""
    a, b = centred(application, 0, 2, -2), centred(application, 3, 5, -1)
    total = application.emit("matmul", (a, b), {"out_dtype": "int32"})
    shape = application.type(total).shape
    _scaled_back(application, total, [spread(application, 1, shape, -2), spread(application, 4, shape, -1)], 6)


def qlinear_conv(application: Application) -> None:
    """QLinearConv: scales of the weights per output channel."""
    data, weight = centred(application, 0, 2, 1), centred(application, 3, 5, 0)
    operands = (data, weight, application.value(8)) if application.has(8) else (data, weight)
    total = application.emit("convolution", operands, _convolution(application, weight))
    shape = application.type(total).shape
    _scaled_back(application, total, [spread(application, 1, shape, 1), spread(application, 4, shape, 1)], 6)


def _convolution(application: Application, weight: str) -> Mapping[str, Attr]:
    return convolution(application, application.type(weight).shape[2:])


def conv_integer(application: Application) -> None:
    """ConvInteger: int32 sums."""
    data, weight = centred(application, 0, 2, 1), centred(application, 1, 3, 0)
    application.result("convolution", (data, weight), _convolution(application, weight))


def matmul_integer(application: Application) -> None:
    """MatMulInteger: int32 sums."""
    operands = (centred(application, 0, 2, -2), centred(application, 1, 3, -1))
    application.result("matmul", operands, {"out_dtype": "int32"})


def bits_of(application: Application, position: int, code: int, dtype: str) -> int:
    """Bits of the integers that a quantised result has: by attribute, or as the zero point at input ``position``."""
    names = application.builder.file.four_bit
    four = code in (21, 22) or (application.has(position) and application.operator.inputs[position] in names)
    return 4 if four else dtypes.info(dtype).bits
