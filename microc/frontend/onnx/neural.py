"""Spellings of ONNX's matrix products, normalisations and softmaxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from microc.dtypes import Array, is_float
from microc.frontend.onnx.application import FLOAT, Application, Spelling
from microc.frontend.onnx.build import Stored
from microc.graph.ir import Attr


def gemm(application: Application) -> None:
    """Gemm: alpha * A' * B' + beta * C. Constant B makes a dense layer, anything else a matrix product."""
    attributes = application.operator.attributes
    alpha, beta = attributes.real("alpha", 1.0), attributes.real("beta", 1.0)
    a, b = application.operand(0), application.operand(1)
    if len(application.type(a).shape) != 2 or len(application.type(b).shape) != 2:
        application.broken(f"matrices of shapes {application.type(a).shape} and {application.type(b).shape}")
    if attributes.flag("transA"):
        a = application.emit("transpose", (a,), {"axes": (1, 0)})
    weight = application.builder.stored(b)
    if weight is None or (alpha != 1.0 and weight.quant is not None):
        if attributes.flag("transB"):
            b = application.emit("transpose", (b,), {"axes": (1, 0)})
        product = scaled(application, application.emit("matmul", (a, b)), alpha)
        add_term(application, product, beta)
        return
    if not attributes.flag("transB"):
        weight = weight.transposed((1, 0))
    if alpha != 1.0:
        weight = Stored((weight.data * np.float32(alpha)).astype(np.float32))
    bias = _gemm_bias(application, weight.data.shape[0], beta)
    operands = [a, application.store(f"{application.output()}_weight", weight)]
    if bias is not None:
        application.result("dense", (*operands, application.store(f"{application.output()}_bias", bias)))
    elif application.has(2):
        add_term(application, application.emit("dense", operands), beta)
    else:
        application.result("dense", operands)


def _gemm_bias(application: Application, units: int, beta: float) -> Stored | None:
    """C as a bias of ``units`` elements, if it is constant and the same in every row."""
    if not application.has(2):
        return None
    stored = application.builder.stored(application.operand(2))
    if stored is None or (stored.quant is not None and (beta != 1.0 or stored.data.size != units)):
        return None
    shape = stored.data.shape
    if prod(shape[:-1]) != 1 or shape[-1:] not in ((), (1,), (units,)):
        return None
    flat = stored.reshaped((stored.data.size,))
    if flat is None or (flat.data.size == units and beta == 1.0):
        return flat
    return Stored(np.broadcast_to(flat.data * np.float32(beta), (units,)).astype(np.float32))


def scaled(application: Application, value: str, factor: float) -> str:
    """``value`` times a number."""
    return (
        value
        if factor == 1.0
        else application.emit("mul", (value, application.scalar(factor, application.type(value).dtype)))
    )


def add_term(application: Application, product: str, beta: float) -> None:
    """The output as ``product`` + beta * C, C being optional."""
    if not application.has(2):
        application.result_alias(product)
        return
    term = scaled(application, application.operand(2), beta)
    if len(application.type(term).shape) > 2:
        application.broken(f"C has shape {application.type(term).shape}")
    application.result("add", (product, term))


def matmul(application: Application) -> None:
    """MatMul: numpy's product. A constant right side of two axes makes a dense layer over all rows."""
    a, b = application.operand(0), application.operand(1)
    left, right = application.type(a).shape, application.type(b).shape
    if not left or not right or left[-1] != right[max(len(right) - 2, 0)]:
        application.broken(f"matrices of shapes {left} and {right}")
    weight = application.builder.stored(b)
    if weight is not None and len(right) == 2 and is_float(application.type(a).dtype):
        application.result_alias(write_dense(application, a, weight.transposed((1, 0)), None))
        return
    shape = (*application.broadcast(left[:-2], right[:-2]), *left[-2:-1], *right[-1:][: len(right) - 1])
    a = application.reshaped(a, (1, left[0])) if len(left) == 1 else a
    b = application.reshaped(b, (right[0], 1)) if len(right) == 1 else b
    application.result_alias(application.reshaped(application.emit("matmul", (a, b)), shape))


def write_dense(application: Application, data: str, weight: Stored, bias: Stored | None) -> str:
    """A dense layer over the last axis of ``data``, whatever the axes before; the name of its result."""
    shape, (units, depth) = application.type(data).shape, weight.data.shape
    if not shape or shape[-1] != depth:
        application.broken(f"data of shape {shape} for weights of {units} x {depth}")
    operands = [
        application.reshaped(data, (prod(shape[:-1]), depth)),
        application.store(f"{application.output()}_weight", weight),
    ]
    if bias is not None:
        operands.append(application.store(f"{application.output()}_bias", bias))
    return application.reshaped(application.emit("dense", operands), (*shape[:-1], units))


def batch_normalization(application: Application) -> None:
    """BatchNormalization for inference: x * f + (bias - mean * f) with f = scale / sqrt(variance + epsilon).

    Parameters are those of channels, or, before opset 9 and without ``spatial``, of every place.
    """
    attributes = application.operator.attributes
    application.only_output()
    if attributes.flag("training_mode"):
        application.refuse("batch normalisation in training mode", "export the model for inference")
    data = application.operand(0)
    shape = application.type(data).shape
    if any(application.value(position) not in application.builder.consts for position in range(1, 5)):
        _batch_normalization_by_values(application, data)
        return
    scale, bias, mean, variance = (application.constant(position).astype(np.float64) for position in range(1, 5))
    wanted = shape[1:2] if application.opset >= 9 or attributes.flag("spatial", True) else shape[1:]
    if len(shape) < 2 or any(array.shape != wanted for array in (scale, bias, mean, variance)):
        application.broken(f"parameters do not fit data of shape {shape}: they have shape {scale.shape}")
    if (variance < 0).any():
        application.broken("a variance is negative")
    factor = scale / np.sqrt(variance + attributes.real("epsilon", 1e-5))
    scaled_data = application.emit("mul", (data, _per_channel(application, factor, data)))
    application.result("add", (scaled_data, _per_channel(application, bias - mean * factor, data)))


def _batch_normalization_by_values(application: Application, data: str) -> None:
    """The same with parameters that are only known at run time."""
    rank, kind = len(application.type(data).shape), application.type(data).dtype
    scale, bias, mean, variance = (_along_channels(application, position, rank) for position in range(1, 5))
    epsilon = application.scalar(application.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = application.emit("sqrt", (application.emit("add", (variance, epsilon)),))
    factor = application.emit("div", (scale, deviation))
    scaled_data = application.emit("mul", (application.emit("sub", (data, mean)), factor))
    application.result("add", (scaled_data, bias))


def _along_channels(application: Application, position: int, rank: int) -> str:
    """An operand of one element per channel, to broadcast along axis 1 of a tensor of ``rank``."""
    return application.reshaped(application.operand(position), (application.shape(position)[0], *[1] * (rank - 2)))


def _per_channel(application: Application, values: Array, data: str) -> str:
    """A constant along axis 1 of ``data``, or along that and all behind it."""
    kind = application.type(data)
    shape = (*values.shape, *[1] * (len(kind.shape) - 1 - values.ndim))
    return application.new_constant(f"{application.output()}_factor", values.astype(kind.dtype).reshape(shape))


def _normalized(application: Application, data: str, axes: tuple[int, ...], names: tuple[str, str] = ("", "")) -> str:
    """``data`` less its mean over ``axes``, over its standard deviation there. ``names``: those of the mean and of the inverse
    of the deviation, where they are asked for."""
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    mean = application.write("mean", (data,), over, names[0]) if names[0] else application.emit("mean", (data,), over)
    centred = application.emit("sub", (data, mean))
    variance = application.emit("mean", (application.emit("mul", (centred, centred)),), over)
    kind = application.type(data).dtype
    epsilon = application.scalar(application.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = application.emit("sqrt", (application.emit("add", (variance, epsilon)),))
    if names[1]:
        application.write("div", (application.scalar(1.0, kind), deviation), {}, names[1])
    return application.emit("div", (centred, deviation))


def layer_normalization(application: Application) -> None:
    """LayerNormalization over the last axes, scaled and shifted."""
    data = application.operand(0)
    rank = len(application.type(data).shape)
    first = application.axis(application.operator.attributes.integer("axis", -1), rank)
    normal = _normalized(application, data, tuple(range(first, rank)), (application.output(1), application.output(2)))
    if application.has(2):
        normal = application.emit("mul", (normal, application.operand(1)))
        application.result("add", (normal, application.operand(2)))
    else:
        application.result("mul", (normal, application.operand(1)))


def instance_normalization(application: Application) -> None:
    """InstanceNormalization: over the spatial axes of every image and channel, scaled and shifted per channel."""
    data = application.operand(0)
    rank = len(application.type(data).shape)
    if rank < 3:
        application.broken(f"data of shape {application.type(data).shape}")
    normal = _normalized(application, data, tuple(range(2, rank)))
    scale, bias = (_along_channels(application, position, rank) for position in (1, 2))
    application.result("add", (application.emit("mul", (normal, scale)), bias))


def softmax(write: Callable[[Application, str, int, str], None]) -> Spelling:
    """A softmax along an axis; before opset 13, over all axes from one on, taken together."""

    def spell(application: Application) -> None:
        data, old = application.operand(0), application.opset < 13
        shape = application.type(data).shape
        axis = application.axis(application.operator.attributes.integer("axis", 1 if old else -1), len(shape))
        if not old or axis == len(shape) - 1:
            write(application, data, axis, application.output())
            return
        flat = application.reshaped(data, (prod(shape[:axis]), prod(shape[axis:])))
        name = application.builder.unique(f"{application.output()}_flat")
        write(application, flat, 1, name)
        application.result("reshape", (name,), {"shape": shape})

    return Spelling(spell, stepwise=True)


def _softmax(application: Application, data: str, axis: int, output: str) -> None:
    application.write("softmax", (data,), {"axis": axis, "beta": 1.0}, output)


def _log_softmax(application: Application, data: str, axis: int, output: str) -> None:
    """x - max - log(sum(exp(x - max)))."""
    over: Mapping[str, Attr] = {"axes": (axis,), "keepdims": True}
    centred = application.emit("sub", (data, application.emit("max", (data,), over)))
    total = application.emit("sum", (application.emit("exp", (centred,)),), over)
    application.write("sub", (centred, application.emit("log", (total,))), {}, output)


SPELLINGS: Mapping[str, Spelling] = {
    "BatchNormalization": Spelling(batch_normalization),
    "Gemm": Spelling(gemm),
    "InstanceNormalization": Spelling(instance_normalization),
    "LayerNormalization": Spelling(layer_normalization),
    "LogSoftmax": softmax(_log_softmax),
    "MatMul": Spelling(matmul, (*FLOAT, "int32", "int64")),
    "Softmax": softmax(_softmax),
}
