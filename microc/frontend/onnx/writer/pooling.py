"""Pools. What ONNX has of two axes has channels first."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from microc.frontend.onnx.writer.application import Application, Row


def max_pool(application: Application) -> None:
    """MaxPool."""
    application = _laid_out(application)
    application.result("MaxPool", application.operand(), **_window(application))


def average_pool(application: Application) -> None:
    """AveragePool."""
    application = _laid_out(application)
    application.only_floats()
    counted = int(application.attr("count_include_pad"))
    application.result("AveragePool", application.operand(), **_window(application), count_include_pad=counted)


def _laid_out(application: Application) -> Application:
    return application.with_channels_first() if application.attr("layout") == "NHWC" else application


def _window(application: Application) -> Mapping[str, Any]:
    """Kernel, strides, and as much padding as the windows reach: of more than a kernel, runtimes want to know nothing."""
    kernel, strides, padding = (application.attr(name) for name in ("kernel", "strides", "padding"))
    first = 2 if application.attr("layout") == "NCHW" else 1
    extents = zip(
        application.type().shape[first:], application.result_type.shape[first:], kernel, strides, padding, strict=False
    )
    behind = [max((out - 1) * stride + taps - size - before, 0) for size, out, taps, stride, before in extents]
    return {"kernel_shape": kernel, "strides": strides, "pads": (*padding[:2], *behind)}


def window_max(application: Application) -> None:
    """MaxPool over any number of axes."""
    application.result("MaxPool", application.operand(), **_spans(application))


def window_sum(application: Application) -> None:
    """AveragePool that counts its padding, times the number of elements."""
    application.only_floats()
    mean = application.emit("AveragePool", application.operand(), **_spans(application), count_include_pad=1)
    application.result("Mul", mean, application.number(prod(application.attr("kernel"))))


def _spans(application: Application) -> Mapping[str, Any]:
    spread = application.attr("dilation")
    return {
        "kernel_shape": application.attr("kernel"),
        "strides": application.attr("strides"),
        "pads": application.attr("padding"),
        "dilations": spread if set(spread) != {1} else None,
    }


ROWS: Mapping[str, Row] = {
    "avg_pool2d": average_pool,
    "max_pool2d": max_pool,
    "window_max": window_max,
    "window_sum": window_sum,
}
