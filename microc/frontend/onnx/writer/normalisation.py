"""Softmax and normalisations along the last axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.onnx.writer.application import Application, Row

_LEAST_NORM = 1e-6
"""What ``l2_normalize`` divides by at least."""


def softmax(application: Application) -> None:
    """Softmax of the data times beta.

    Of integers, the sum of one operand behind it keeps ONNX Runtime from its QLinearSoftmax, which is several steps off where the
    scale of the data is large.
    """
    data, beta = application.operand(), float(application.attr("beta"))
    scaled = data if beta == 1.0 else application.emit("Mul", data, application.number(beta))
    if application.quantised:
        shares = application.emit("Softmax", scaled, axis=application.attr("axis"))
        application.result("Sum", shares)
    else:
        application.result("Softmax", scaled, axis=application.attr("axis"))


def log_softmax(application: Application) -> None:
    """LogSoftmax."""
    application.result("LogSoftmax", application.operand(), axis=-1)


def layer_norm(application: Application) -> None:
    """LayerNormalization by ones."""
    application.only_floats()
    ones = application.constant(np.ones(application.type().shape[-1:], np.float32), "scale")
    application.result("LayerNormalization", application.operand(), ones, epsilon=application.attr("epsilon"))


def l2_normalize(application: Application) -> None:
    """x / max(norm, 1e-6)."""
    data = application.operand()
    norm = application.emit("ReduceL2", data, application.integers(-1), keepdims=1)
    application.result("Div", data, application.emit("Max", norm, application.number(_LEAST_NORM)))


ROWS: Mapping[str, Row] = {
    "l2_normalize": l2_normalize,
    "layer_norm": layer_norm,
    "log_softmax": log_softmax,
    "softmax": softmax,
}
