"""Spelling of ONNX Runtime's layers on quantised weights whose data it quantises at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.recurrent import recurrent


def dynamic_quantize_lstm(application: Application) -> None:
    """DynamicQuantizeLSTM as an LSTM on its weights dequantised: nearer to the network as trained than the original, which rounds
    data and state at every step."""
    weights = [
        application.new_constant(
            f"{application.output()}_weight", _dequantised(application, position, 6 + 2 * position)
        )
        for position in (1, 2)
    ]
    inputs = application.operator.inputs
    operator = replace(application.operator, code="LSTM", domain="", inputs=(inputs[0], *weights, *inputs[3:8]))
    recurrent(Application(operator, application.builder, application.loc))


def _dequantised(application: Application, weight: int, scale: int) -> Array:
    """Weights (directions, inputs, 4 * hidden) as LSTM has them, (directions, 4 * hidden, inputs); scales are those of a
    direction or of its rows."""
    data, factor = application.constant(weight).astype(np.float32), application.constant(scale)
    zero = application.constant(scale + 1) if application.has(scale + 1) else np.zeros_like(factor)
    if data.ndim != 3 or factor.shape not in (data.shape[:1], data.shape[::2]) or zero.shape != factor.shape:
        application.broken(f"weights of shape {data.shape} with scales {factor.shape} and zero points {zero.shape}")
    shape = (data.shape[0], 1, factor.size // data.shape[0])
    real = (data - zero.astype(np.float32).reshape(shape)) * factor.reshape(shape)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


SPELLINGS: Mapping[str, Spelling] = {"DynamicQuantizeLSTM": Spelling(dynamic_quantize_lstm, ("float32",))}
"""Of the domain ``com.microsoft``."""
