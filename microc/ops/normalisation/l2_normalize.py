"""``l2_normalize``: rows divided by the root of the sum of their squares, at least 1e-6; bytes exactly as TFLite computes them.

Sources: TFLite ``reference/l2normalization.h``, ``integer_ops/l2normalization.h``, ``common.h``
(GetInvSqrtQuantizedMultiplierExp).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.fixed import NUMPY, doubling_high_mul, multiply_double_rounding, rounding_shift_right
from microc.fixedpoint import (
    HALF_ROOT_OF_TWO,
    NEWTON_STEPS,
    ONE_Q3,
    inverse_root_step,
    inverse_square_root,
)
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops.arith import TIR, Rewrite, bit_length, is_quantised, scalar_quant, with_names
from microc.ops.attributes import SURFACE, integer
from microc.ops.axes import along_axis
from microc.ops.constants import Application, zero_point_of
from microc.ops.registry import Case, Legalized, OpCall, OpDef
from microc.ops.rounding import Rounding
from microc.ops.surface import through_float
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_LEAST = 1e-6
_OUTPUT_BITS = 7
_MOST_DEPTH = 1 << 15
"""Elements of a row whose squares are sure to fit 31 bits."""


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kind = types[0]
    if not kind.shape or 0 in kind.shape or (kind.dtype != "float32" and kind.quant is None):
        raise ModelError(f"l2_normalize of {kind.dtype} {kind.shape}")
    return (TensorType(kind.shape, kind.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.float64)
    norm = np.maximum(np.sqrt((x * x).sum(axis=-1, keepdims=True)), _LEAST)
    return ((x / norm).astype(np.float32),)


def _compute(call: OpCall) -> te.Tensor:
    data = call.data
    depth = data.type.shape[-1]
    x, k = data.tensor((data.type.size // depth, depth)), te.reduce_axis(depth, "k")
    squares = te.compute((x.shape[0],), lambda n: te.sum_reduce(x[n, k.var] * x[n, k.var], k), "squares", ("n",))
    least = ir.const(_LEAST32, "float32")
    roots = te.compute((x.shape[0],), lambda n: ir.maximum(least, ir.call("sqrt", squares[n])), "norms", ("n",))
    return te.compute(x.shape, lambda n, i: x[n, i] / roots[n], "normal", ("n", "i"))


_LEAST32 = float(np.float32(_LEAST))


def _legalize(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    exact = source.dtype == result.dtype == "int8" and result.quant == Quant((1 / 128,), (0,))
    if node.attr("rounding") == Rounding.EVEN or not exact:
        return through_float(node, graph)
    if source.shape[-1] > _MOST_DEPTH:
        raise UnsupportedError(
            f"rows of {source.shape[-1]} elements",
            where=str(node.loc),
            hint=f"at most {_MOST_DEPTH}, or leave the layer in floats",
        )
    rewrite = Rewrite(node, graph)
    zero = scalar_quant(node, graph, node.inputs[0])[1]
    rewrite.emit("ql2_normalize", node.inputs, node.outputs, {"zero_point": zero})
    return rewrite.legalized()


def _cases() -> Iterable[Case]:
    for shape in ((5,), (2, 3, 4), (3, 1)):
        yield Case({}, (TensorType(shape, "float32"),), tolerance=1e-6)
    x = np.zeros((2, 3), np.float32)
    yield Case({}, (TensorType((2, 3), "float32"),), arrays=(x,), name="zeros")


# ---------------------------------------------------------------- bytes


def _infer_bytes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "int8" or not types[0].shape or 0 in types[0].shape:
        raise ModelError(f"ql2_normalize of {types[0].dtype} {types[0].shape}")
    return (TensorType(types[0].shape, "int8"),)


def _sound_bytes(application: Application) -> str:
    depth = application.types[0].shape[-1]
    return "" if depth <= _MOST_DEPTH else f"rows of {depth} elements, expected at most {_MOST_DEPTH}"


def _reference_bytes(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    rows = arrays[0].astype(np.int64).reshape(-1, arrays[0].shape[-1]) - attrs["zero_point"]
    made = []
    for row in rows:
        mantissa, shift = inverse_square_root(int((row * row).sum()))
        scaled = multiply_double_rounding(row, mantissa, shift + _OUTPUT_BITS, NUMPY)
        made.append(np.clip(scaled, -128, 127))
    return (np.stack(made).astype(np.int8).reshape(arrays[0].shape),)


def _compute_bytes(call: OpCall) -> te.Tensor:
    """The squares' sum, its inverse root by Newton's method, and the row times it."""
    data = call.data
    depth, zero_point = data.type.shape[-1], int(call.attrs["zero_point"])
    rows = data.type.size // depth

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out,) = operands, results
        n, i, j, value, zero = Var("n"), Var("i"), Var("j"), Var("value"), ir.const(0, "int32")
        total = Buffer("total", (1,), "int32", "register")
        add = ir.Let(value, ir.cast("int32", x[n, i]) - zero_point, ir.Store(total, (zero,), total[0] + value * value))
        lets, mantissa, shift = inverse_root(total[0])
        scaled = multiply_double_rounding(ir.cast("int32", x[n, j]) - zero_point, mantissa, shift + _OUTPUT_BITS, TIR)
        store = ir.Store(out, (n, j), ir.cast("int8", ir.clamp(scaled, -128, 127)))
        scale = with_names(lets, ir.For(j, ir.const(depth, "int32"), store))
        start = ir.Store(total, (zero,), zero)
        body = ir.seq(start, ir.For(i, ir.const(depth, "int32"), add), scale)
        return ir.loops([(n, rows)], ir.Alloc(total, body))

    results = (("out", (rows, depth), "int8"),)
    return te.extern("normal", (data.tensor((rows, depth)),), results, build)[0]


def inverse_root(x: Expr) -> tuple[list[tuple[Var, Expr]], Expr, Expr]:
    """Names, and the mantissa and shift that :func:`microc.fixedpoint.inverse_square_root` gives."""
    square, large, small = Var("square"), Var("large", "bool"), Var("small")
    lets = [(square, x), (large, square >= (1 << 29)), (small, ir.select(large, square >> 2, square))]
    more, bits = bit_length(ir.cast("uint32", small), "square")
    pairs, half = Var("pairs"), Var("half")
    lets += more
    lets += [
        (pairs, ir.maximum((31 - bits) // 2 - 1, 0)),
        (half, rounding_shift_right((small << (pairs * 2)) >> 1, 1, TIR)),
    ]
    root: Expr = ir.const(ONE_Q3, "int32")
    for step in range(NEWTON_STEPS):
        lets.append((Var(f"root{step}"), inverse_root_step(root, half, TIR)))
        root = lets[-1][0]
    right, tiny = Var("right"), square <= 1
    mantissa, shift = Var("mantissa"), Var("shift")
    found = doubling_high_mul(root, HALF_ROOT_OF_TWO, TIR)
    lets += [
        (right, ir.select(large, ir.const(12, "int32"), 11) - pairs),
        (mantissa, ir.select(tiny, ir.const((1 << 31) - 1, "int32"), found << ir.maximum(-right, 0))),
        (shift, ir.select(tiny, ir.const(0, "int32"), ir.minimum(-right, 0))),
    ]
    return lets, mantissa, shift


def _cases_bytes() -> Iterable[Case]:
    for shape, zero in (((3, 7), 5), ((2, 300), -128), ((4, 1), 0)):
        yield Case({"zero_point": zero}, (TensorType(shape, "int8"),), name=f"{shape}")
    x = np.array([[5, 5, 5], [5, 5, 6], [-128, 127, 5]], np.int8)
    yield Case({"zero_point": 5}, (TensorType((3, 3), "int8"),), arrays=(x,), name="small")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "l2_normalize",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        attrs=SURFACE,
        axes=along_axis,
        legalize=_legalize,
        operand_names=("data",),
    ),
    OpDef(
        "ql2_normalize",
        attrs={"zero_point": integer("of the data")},
        infer=_infer_bytes,
        reference=_reference_bytes,
        compute=_compute_bytes,
        cases=_cases_bytes,
        sound=(zero_point_of("zero_point", 0), _sound_bytes),
        operand_names=("data",),
    ),
)
