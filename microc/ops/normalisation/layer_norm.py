"""``layer_norm``: rows less their mean, over the root of their variance: (x - mean) / sqrt(variance + epsilon), in float32.

Of integers it works on the stored numbers q: a scale s divides epsilon by s * s, and zero points fall out. Their sums are exact:

    N (q - mean)  =  N q - sum(q),        N * N * variance  =  N sum(q * q) - sum(q) ** 2.

Sources: ONNX LayerNormalization.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import real
from microc.ops.axes import along_axis
from microc.ops.normalisation.layer_norm_fixed import DTYPES, QLAYER_NORM
from microc.ops.normalisation.layer_norm_fixed import MOST_DEPTH as QUANTISED_DEPTH
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr

MOST_DEPTH = 1 << 20
"""Elements of a row of floats or bytes; N q of bytes fits 31 bits."""


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind = types[0]
    most = QUANTISED_DEPTH if kind.dtype == "int16" else MOST_DEPTH
    if kind.dtype not in ("float32", *DTYPES) or not kind.shape or not 0 < kind.shape[-1] <= most:
        raise ModelError(f"layer_norm of {kind.dtype} {kind.shape}")
    return (TensorType(kind.shape, "float32"),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = np.asarray(arrays[0], np.float64)
    with np.errstate(invalid="ignore"):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return ((centred / np.sqrt(variance + attrs["epsilon"])).astype(np.float32),)


def _compute(call: OpCall) -> te.Tensor:
    """Stages of a row, then ``normal``."""
    (data,) = call.present
    depth = data.type.shape[-1]
    x = data.tensor((prod(data.type.shape[:-1]), depth))
    return _of_integers(x, call.attrs["epsilon"]) if data.type.dtype in DTYPES else _of_floats(x, call.attrs["epsilon"])


def _of_floats(x: te.Tensor, epsilon: float) -> te.Tensor:
    """Stages ``total``, ``mean``, ``squares``, ``factor``."""
    (rows, depth), k, j = x.shape, te.reduce_axis(x.shape[1], "k"), te.reduce_axis(x.shape[1], "j")
    total = te.compute((rows,), lambda n: te.sum_reduce(x[n, k.var], k), "total", ("n",))
    mean = te.compute((rows,), lambda n: total[n] / float(depth), "mean", ("n",))

    def square(n: Expr) -> Expr:
        return (x[n, j.var] - mean[n]) * (x[n, j.var] - mean[n])

    squares = te.compute((rows,), lambda n: te.sum_reduce(square(n), j), "squares", ("n",))
    factor = te.compute((rows,), lambda n: 1.0 / ir.call("sqrt", squares[n] / float(depth) + epsilon), "factor", ("n",))
    return te.compute(x.shape, lambda n, i: (x[n, i] - mean[n]) * factor[n], "normal", ("n", "i"))


def _of_integers(x: te.Tensor, epsilon: float) -> te.Tensor:
    """Stages ``total``, ``squares``, ``factor``."""
    (rows, depth), k, j = x.shape, te.reduce_axis(x.shape[1], "k"), te.reduce_axis(x.shape[1], "j")
    largest = max(abs(end) for end in dtypes.int_range(x.dtype))
    wide = "int32" if (depth * largest) ** 2 <= dtypes.int_range("int32")[1] else "int64"
    narrow = "int32" if depth * largest**2 <= dtypes.int_range("int32")[1] else "int64"

    def number(n: Expr, i: Expr) -> Expr:
        return ir.cast("int32", x[n, i])

    total = te.compute((rows,), lambda n: te.sum_reduce(number(n, k.var), k), "total", ("n",))

    def square(n: Expr) -> Expr:
        return ir.cast(narrow, number(n, j.var) * number(n, j.var))

    squares = te.compute((rows,), lambda n: te.sum_reduce(square(n), j), "squares", ("n",))

    def factor(n: Expr) -> Expr:
        spread = ir.cast(wide, squares[n]) * depth - ir.cast(wide, total[n]) * ir.cast(wide, total[n])
        return 1.0 / ir.call("sqrt", ir.cast("float32", spread) + float(depth) * depth * epsilon)

    factors = te.compute((rows,), factor, "factor", ("n",))
    return te.compute(
        x.shape, lambda n, i: ir.cast("float32", number(n, i) * depth - total[n]) * factors[n], "normal", ("n", "i")
    )


def _cases() -> Iterable[Case]:
    for shape in ((5,), (2, 3, 4), (3, 1), (2, 200)):
        for dtype in ("float32", *DTYPES):
            yield Case({"epsilon": 1e-3}, (TensorType(shape, dtype),), tolerance=1e-5, name=f"{dtype} {shape}")
    same = np.full((2, 7), 99, np.int8)
    yield Case({"epsilon": 1e-5}, (TensorType(same.shape, "int8"),), arrays=(same,), name="constant")
    ends = np.resize(np.array([-128, 127], np.int8), (1, 40000))
    yield Case({"epsilon": 1e-5}, (TensorType(ends.shape, "int8"),), arrays=(ends,), tolerance=1e-5, name="long")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "layer_norm",
        attrs={"epsilon": real("added to the variance")},
        infer=_infer,
        reference=_reference,
        axes=along_axis,
        compute=_compute,
        cases=_cases,
        operand_names=("data",),
    ),
    QLAYER_NORM,
)
