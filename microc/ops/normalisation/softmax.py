"""Softmax: of floats, and what quantised applications become (``qsoftmax``, ``qsoftmax16`` in ``softmax_fixed.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import Rewrite, is_quantised, scalar_quant
from microc.ops.attributes import ROUNDING, number, one_axis
from microc.ops.axes import along_axis
from microc.ops.elementwise.exponential import exp_of_negative
from microc.ops.normalisation.softmax_fixed import QSOFTMAX, QSOFTMAX16, SUM_BITS, exponentials, tables16
from microc.ops.normalisation.softmax_scaled import QSOFTMAX_SCALED, fits, scaled_attrs, scaled_exponentials
from microc.ops.registry import Case, Legalized, OpCall, OpDef
from microc.ops.rounding import Rounding
from microc.ops.surface import through_float
from microc.tir import ir
from microc.tir.ir import Expr


def _axis(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    axis: int = attrs["axis"]
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"softmax along axis {axis} of shape {shape}")
    return axis % len(shape)


# ---------------------------------------------------------------- floats


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind = types[0]
    if not dtypes.is_float(kind.dtype) and kind.quant is None:
        raise ModelError(f"softmax of {kind.dtype}")
    _axis(attrs, kind.shape)
    return (TensorType(kind.shape, kind.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.float64)
    axis = _axis(attrs, x.shape)
    powers = np.exp((x - x.max(axis=axis, keepdims=True, initial=-np.inf)) * np.float32(attrs["beta"]))
    return ((powers / powers.sum(axis=axis, keepdims=True)).astype(arrays[0].dtype),)


def _compute(call: OpCall) -> te.Tensor:
    """Stages ``largest``, ``power``, ``total``, ``factor`` and ``softmax`` over (outer, classes, inner).

    In float32 a power is off by 2e-7 at most (``exponential.py``), where the largest element's is 1, and so a result by 1e-6 of
    the largest one, with the rounding of the factor that all elements share.
    """
    data = call.data
    shape = data.type.shape
    axis = _axis(call.attrs, shape)
    outer, classes, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    x, beta = data.tensor((outer, classes, inner)), float(call.attrs["beta"])
    short = data.type.dtype == "float32" and beta > 0.0
    k, j = te.reduce_axis(classes, "k"), te.reduce_axis(classes, "j")
    rows = ("n", "i")
    largest = te.compute(
        (outer, inner), lambda n, i: te.max_reduce(x[n, k.var, i], k, init=float("-inf")), "largest", rows
    )

    def power(n: Expr, c: Expr, i: Expr) -> Expr:
        distance = x[n, c, i] - largest[n, i]
        scaled = distance if beta == 1.0 else distance * beta
        return exp_of_negative(scaled) if short else ir.call("exp", scaled)

    powers = te.compute((outer, classes, inner), power, "power", ("n", "c", "i"))
    total = te.compute((outer, inner), lambda n, i: te.sum_reduce(powers[n, j.var, i], j), "total", rows)
    factor = te.compute((outer, inner), lambda n, i: 1.0 / total[n, i], "factor", rows)
    return te.compute(
        (outer, classes, inner), lambda n, c, i: powers[n, c, i] * factor[n, i], "softmax", ("n", "c", "i")
    )


def _cases() -> Iterable[Case]:
    for shape, axis in (((1, 10), 1), ((3, 5), 0), ((2, 3, 4), -2), ((1, 1), 1), ((7,), -1)):
        yield Case({"axis": axis, "beta": 1.0}, (TensorType(shape, "float32"),), tolerance=2e-6)
    attrs: dict[str, Attr] = {"axis": -1, "beta": 0.5}
    x = np.array([[1e30, -1e30, 0.0], [-100.0, -100.0, -1000.0]], np.float32)
    yield Case(attrs, (TensorType(x.shape, "float32"),), arrays=(x,), tolerance=2e-6, name="large")


# ---------------------------------------------------------------- quantised

_RESULTS = {  # what TFLite's kernels write: by dtypes of data and result, the result's scale and zero point
    ("int8", "int8"): (1 / 256, -128),
    ("uint8", "uint8"): (1 / 256, 0),
    ("int8", "int16"): (1 / 65536, -32768),
    ("int16", "int16"): (1 / 32768, 0),
}


def _legalize(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale_in, zero_in = scalar_quant(node, graph, node.inputs[0])
    scale_out, zero_out = scalar_quant(node, graph, node.outputs[0])
    wanted = _RESULTS.get((source.dtype, result.dtype))
    last = _axis(node.attrs, source.shape) == len(source.shape) - 1
    if node.attr("rounding") == Rounding.EVEN:
        return _looked_up(node, graph) if last else through_float(node, graph)
    if not last or wanted is None:
        return through_float(node, graph)
    if abs(scale_out - wanted[0]) > 0.001 * wanted[0] or zero_out != wanted[1]:
        return through_float(node, graph)
    beta, rounding = float(node.attr("beta")), Rounding(str(node.attr("rounding"))).multiplier
    rewrite = Rewrite(node, graph)
    if source.dtype == "int16":
        if zero_in or source.shape[-1] >= 1 << 16:
            return through_float(node, graph)
        attrs, tables = tables16(scale_in, beta, rounding)
        operands = [rewrite.constant(stem, table) for stem, table in zip(("exp", "reciprocal"), tables, strict=True)]
        rewrite.emit("qsoftmax16", (node.inputs[0], *operands), node.outputs[0], attrs)
        return rewrite.legalized()
    if source.shape[-1] >= 1 << SUM_BITS:
        raise UnsupportedError(
            f"a quantised softmax over {source.shape[-1]} classes", where=str(node.loc), hint="keep it in float32"
        )
    table = rewrite.constant("exp", exponentials(scale_in, beta, rounding))
    rewrite.emit("qsoftmax", (node.inputs[0], table), node.outputs[0], {"out_dtype": result.dtype})
    return rewrite.legalized()


def _looked_up(node: Node, graph: Graph) -> Legalized:
    """Bytes to bytes by a table of exponentials; else through floats."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    scale, _ = scalar_quant(node, graph, node.inputs[0])
    out_scale, zero = scalar_quant(node, graph, node.outputs[0])
    narrow = all(dtypes.is_integer(kind.dtype) and dtypes.nbytes(kind.dtype) == 1 for kind in (source, result))
    if not narrow or not fits(out_scale, source.shape[-1]):
        return through_float(node, graph)
    rewrite = Rewrite(node, graph)
    table = rewrite.constant("exp", scaled_exponentials(scale * float(node.attr("beta")), source.shape[-1]))
    attrs = scaled_attrs(out_scale, zero, result.dtype)
    rewrite.emit("qsoftmax_scaled", (node.inputs[0], table), node.outputs[0], attrs)
    return rewrite.legalized()


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "softmax",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        attrs={"axis": one_axis("along which", -1), "beta": number("the data's factor", 1.0), "rounding": ROUNDING},
        axes=along_axis,
        legalize=_legalize,
        operand_names=("data",),
    ),
    QSOFTMAX,
    QSOFTMAX16,
    QSOFTMAX_SCALED,
)
