"""Spelling of TFLite's BATCH_MATMUL, of floats, integers, and floats by constant integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, Spelling
from microc.graph.ir import Attr


def batch_matmul(application: Application) -> None:
    """BATCH_MATMUL; an adjoint operand is transposed first. int8 by int16 data is constant, and widened here."""
    fields = application.operator.options.fields("BatchMatMulOptions")
    adjoint = [bool(fields.integer(name)) for name in ("AdjX", "AdjY")]
    left, right = (application.source(position).type.dtype for position in (0, 1))
    data = _turned(application, application.operand(0), adjoint[0])
    if (left, right) == ("float32", "int8"):
        _by_integers(application, data, adjoint[1], bool(fields.integer("AsymmetricQuantizeInputs")))
        return
    if (left, right) == ("int16", "int8"):
        other = application.new_constant(
            "widened", application.constant(1).astype(np.int16), application.source(1).type.quant
        )
    else:
        other = application.operand(1)
    application.result("matmul", (data, _turned(application, other, adjoint[1])), {})


def _turned(application: Application, value: str, adjoint: bool) -> str:
    rank = len(application.rank(value, 2, 3, 4, 5))
    axes = (*range(rank - 2), rank - 1, rank - 2)
    return application.emit("transpose", (value,), {"axes": axes}) if adjoint else value


def _by_integers(application: Application, data: str, adjoint: bool, asymmetric: bool) -> None:
    """Floats by a constant matrix of int8: a dense layer, whose rows ``--hybrid dynamic`` quantises; by several: of floats."""
    tensor, weight = application.source(1), application.constant(1)
    quant = tensor.type.quant
    if quant is None:
        application.refuse(f"int8 weights {tensor.name!r} without quantisation", "give them scales")
    attrs: dict[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    if weight.ndim != 2 or quant.axis not in (None, int(not adjoint)) or len(application.type(data).shape) < 2:
        real = application.emit(
            "dequantize", (tensor.name,), attrs, like=replace(tensor.type, dtype="float32", quant=None)
        )
        application.result("matmul", (data, _turned(application, real, adjoint)), {})
        return
    rows = weight if adjoint else np.ascontiguousarray(weight.T)
    attrs["axis"] = None if quant.axis is None else 0
    name = application.new_constant("weights", rows, replace(quant, axis=None if quant.axis is None else 0))
    real = application.emit(
        "dequantize", (name,), attrs, like=replace(tensor.type, shape=rows.shape, dtype="float32", quant=None)
    )
    shape = application.type(data).shape
    if shape[-1] != rows.shape[1]:
        application.broken(f"data of shape {shape} by weights of {rows.shape[1]} x {rows.shape[0]}")
    dynamic: Mapping[str, Attr] = (
        {} if any(quant.zero_point) else {"dynamic": "asymmetric" if asymmetric else "symmetric"}
    )
    flat = application.reshaped(data, (prod(shape[:-1]), shape[-1]))
    made = application.emit("dense", (flat, real), {"activation": "", **dynamic})
    application.result_reshape(made, (*shape[:-1], rows.shape[0]))


SPELLINGS: Mapping[str, Spelling] = {"BATCH_MATMUL": Spelling(batch_matmul, (*FLOAT, "int8", "int16"))}
