"""``qrsqrt``: one over the root of 16-bit integers, as TFLite Micro computes it. Bytes have a table of 256 instead (``tables``).

The root of the stored number is Newton's, in Q0.20; the scales come behind it. Of zero the largest number; so of negative ones,
which TFLite refuses while it runs. Source: TFLite Micro ``elementwise.cc`` (RsqrtEvalQuantized).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.fixed import NUMPY, multiply_double_rounding, quantize_multiplier
from microc.fixedpoint import inverse_square_root
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import TIR, Rewrite, scalar_quant, with_names
from microc.ops.attributes import SCALED, exponent
from microc.ops.elementwise.tables import inverse_root_ratio
from microc.ops.normalisation.l2_normalize import inverse_root
from microc.ops.registry import Case, Legalized, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

_FRACTION = 20
_MOST = (1 << 15) - 1


def legalize_rsqrt16(node: Node, graph: Graph) -> Legalized | None:
    """``rsqrt`` of int16 without zero points as ``qrsqrt``; None for other zero points."""
    scale, zero = scalar_quant(node, graph, node.inputs[0])
    out, zero_out = scalar_quant(node, graph, node.outputs[0])
    if zero or zero_out:
        return None
    multiplier, shift = quantize_multiplier(inverse_root_ratio(scale, out))
    rewrite = Rewrite(node, graph)
    rewrite.emit("qrsqrt", node.inputs, node.outputs, {"multiplier": multiplier, "shift": shift - _FRACTION})
    return rewrite.legalized()


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "int16":
        raise ModelError(f"qrsqrt of {types[0].dtype}")
    return (TensorType(types[0].shape, "int16"),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].reshape(-1)
    parts = [inverse_square_root(max(int(value), 1)) for value in x]
    one = np.int64(1)
    roots = [multiply_double_rounding(one, mantissa, shift + _FRACTION, NUMPY) for mantissa, shift in parts]
    scaled = multiply_double_rounding(np.array(roots, np.int64), attrs["multiplier"], attrs["shift"], NUMPY)
    found = np.where(x > 0, np.clip(scaled, -_MOST - 1, _MOST), _MOST)
    return (found.astype(np.int16).reshape(arrays[0].shape),)


def _compute(call: OpCall) -> te.Tensor:
    data = call.data
    size = data.type.size

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, value, root = Var("n"), Var("value"), Var("root")
        lets, mantissa, shift = inverse_root(ir.maximum(value, 1))
        one = ir.const(1, "int32")
        lets = [*lets, (root, multiply_double_rounding(one, mantissa, shift + _FRACTION, TIR))]
        scaled = multiply_double_rounding(root, ir.const(call.attrs["multiplier"], "int32"), call.attrs["shift"], TIR)
        found = ir.select(value > 0, ir.clamp(scaled, -_MOST - 1, _MOST), _MOST)
        store = ir.Store(out, (n,), ir.cast("int16", found))
        return ir.loops([(n, size)], ir.Let(value, ir.cast("int32", x[n]), with_names(lets, store)))

    return te.extern("roots", (data.tensor((size,)),), (("out", (size,), "int16"),), build)[0]


def _cases() -> Iterable[Case]:
    edges = [-32768, -1, 0, 1, 2, 3, 4, 5, 100, 255, 1000, 16383, 16384, 32766, 32767]
    x = np.array([edges], np.int16)
    for multiplier, shift in ((1 << 30, -19), (1518500250, -8), (2000000000, -23)):
        attrs: dict[str, Attr] = {"multiplier": multiplier, "shift": shift}
        yield Case(attrs, (TensorType(x.shape, "int16"),), arrays=(x,), name=f"{shift}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "qrsqrt",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        operand_names=("x",),
        attrs={**SCALED, "shift": exponent("its exponent, positive to the left", least=-31 - _FRACTION)},
    ),
)
