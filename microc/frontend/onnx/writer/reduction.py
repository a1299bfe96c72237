"""Reductions, running sums and searches along axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.onnx.writer.application import Application, Row
from microc.frontend.onnx.writer.build import CODES

_IMAGES = {(1, 2): True, (2, 3): False}
"""Rows and columns of images, and whether channels are behind them."""
PLACES = "int64"
"""The dtype of what ONNX finds."""


def reduction(code: str) -> Row:
    """A reduction over axes."""

    def write(application: Application) -> None:
        if application.attr("offset") or application.attr("out_dtype"):
            application.refuse(
                "sums of other integers than the data", "write the graph as it was read, before any pass"
            )
        keepdims = int(application.attr("keepdims"))
        application.result(code, application.operand(), _axes(application), keepdims=keepdims)

    return write


def _axes(application: Application) -> str:
    return application.integers(*_sorted_axes(application))


def _sorted_axes(application: Application) -> tuple[int, ...]:
    rank = len(application.type().shape)
    return tuple(sorted(axis % rank for axis in application.attr("axes")))


def mean(application: Application) -> None:
    """ReduceMean; over the rows and columns of images GlobalAveragePool, which runtimes have in integers, too."""
    application.only_floats()
    axes = _sorted_axes(application)
    if len(application.type().shape) != 4 or axes not in _IMAGES:
        application.result(
            "ReduceMean", application.operand(), _axes(application), keepdims=int(application.attr("keepdims"))
        )
        return
    pooled = application.with_channels_first() if _IMAGES[axes] else application
    if application.attr("keepdims"):
        pooled.result("GlobalAveragePool", pooled.operand())
        return
    flat = application.integers(*application.result_type.shape)
    operand = pooled.operand()
    application.result("GlobalAveragePool", operand, then=[("Reshape", (flat,), {})])


def running(code: str) -> Row:
    """CumSum and CumProd."""

    def write(application: Application) -> None:
        axis = application.constant(np.array(application.attr("axis"), np.int64))
        exclusive, reverse = (int(application.attr(name)) for name in ("exclusive", "reverse"))
        application.result(code, application.operand(), axis, exclusive=exclusive, reverse=reverse)

    return write


def search(code: str) -> Row:
    """ArgMax and ArgMin."""

    def write(application: Application) -> None:
        dtype = application.attr("out_dtype")
        application.result(
            code,
            application.operand(),
            then=[("Cast", (), {"to": CODES[dtype]})] if dtype != PLACES else [],
            axis=application.attr("axis"),
            keepdims=int(application.attr("keepdims")),
            select_last_index=int(application.attr("last")),
        )

    return write


def top_k(application: Application) -> None:
    """TopK, sorted."""
    count = application.integers(application.attr("k"))
    ways = {"axis": application.attr("axis"), "largest": int(application.attr("largest")), "sorted": 1}
    application.results("TopK", application.operand(), count, made=(None, PLACES), **ways)


ROWS: Mapping[str, Row] = {
    "argmax": search("ArgMax"),
    "argmin": search("ArgMin"),
    "cumprod": running("CumProd"),
    "cumsum": running("CumSum"),
    "max": reduction("ReduceMax"),
    "mean": mean,
    "min": reduction("ReduceMin"),
    "prod": reduction("ReduceProd"),
    "sum": reduction("ReduceSum"),
    "topk": top_k,
}
