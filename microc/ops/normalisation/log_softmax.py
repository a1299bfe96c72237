# SPDX-License-Identifier: Apache-2.0
"""Operator ``log_softmax`` over the last axis: x - max - log(sum(exp(x - max))). Bytes are computed exactly as by
TFLite.

``qlog_softmax`` has two tables, indexed by the distance from the row's largest number: exp of the distance, and the
distance as a real number in Q5.26. The logarithm of the sum is a rational function in fixed point. The result has scale
1/16 and zero point 127.

Sources: TFLite ``reference/log_softmax.h`` (LogSoftmaxQuantized), ``common.h``
(log_x_for_x_greater_than_or_equal_to_1), ``quantization_util.cc`` (PreprocessLogSoftmaxScalingExp); TFLite Micro
``log_softmax.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.numerics import (
    INT32_MAX,
    INT32_MIN,
    NUMPY,
    Arith,
    doubling_high_mul,
    fixed_point_reciprocal,
    half_of_one_plus,
    multiply_double_rounding,
    quantize_multiplier,
    rounding_shift_right,
    saturating_double,
    shift_right_half_up,
)
from microc.ops.arithmetic import TIR, Rewrite, is_quantised, legalize_in_float, per_tensor_quant, wrap_in_lets
from microc.ops.attributes import SCALED, SURFACE, Multiplier, Rounding, integer
from microc.ops.constants import POSITIVE, CheckedNode, NumberUse, OperandBounds
from microc.ops.elementwise.scalar_functions import build_exp_of_negative
from microc.ops.gradients.rules import build_log_softmax_gradient
from microc.ops.normalisation.norms import infer_rows
from microc.ops.normalisation.softmax import SUM_BITS, compute_exponential_table, int32_headroom
from microc.ops.registry import Case, Legalized, OpCall, OpDef, map_along_axis
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_LOG_2, _ROOT_HALF, _FOURTH_ROOT_HALF = 1488522236, 1518500250, 1805811301
_ALPHA_N, _ALPHA_D, _ALPHA_I, _ALPHA_F = 117049297, 127690142, 1057819769, 638450708
"""Constants in Q0.31: log 2, 2**-1/2, 2**-1/4, and the coefficients of the rational function."""
_QUARTER, _ACCUMULATOR = 1 << 23, 25
"""One quarter in Q6.25, and the number of fraction bits of Q6.25."""
_RESULT = Quant((1 / 16,), (127,))


def log_q5_26(z: Any, bind_to_name: Callable[[Any], Any], arith: Arith[Any]) -> Any:
    """Return the logarithm in Q5.26 of z >= 1 in Q12.19.

    ``arith``: the arithmetic, over numpy or TIR. ``bind_to_name`` defines a variable for a value that is used more than
    once."""
    room = bind_to_name(int32_headroom(z, 31 - SUM_BITS, arith))
    wide = saturating_double(bind_to_name(doubling_high_mul(bind_to_name(z << room), _ROOT_HALF, arith)))
    scaled = bind_to_name(doubling_high_mul(z, _ROOT_HALF, arith))
    scaled_room = bind_to_name(int32_headroom(scaled, 30 - SUM_BITS, arith))
    most = bind_to_name((z * 0 + INT32_MAX) >> scaled_room)
    narrow = arith.select(z > most, z * 0 + INT32_MAX, arith.select(z > most, z * 0, z) << scaled_room)
    wide, narrow = bind_to_name(wide), bind_to_name(narrow)
    r = bind_to_name(arith.select(wide < narrow, wide, narrow))
    powers = [((SUM_BITS - 1 - room) << _ACCUMULATOR) + _QUARTER, ((SUM_BITS - scaled_room) << _ACCUMULATOR) - _QUARTER]
    first, second = (bind_to_name(power) for power in powers)
    power = bind_to_name(arith.select(first > second, first, second))
    p = bind_to_name((r >> 1) + (_FOURTH_ROOT_HALF >> 1) + ((r & 1) + (_FOURTH_ROOT_HALF & 1) + 1 >> 1))
    q = bind_to_name((r - _FOURTH_ROOT_HALF) * 2)
    square = bind_to_name(doubling_high_mul(q, q, arith))
    cube = bind_to_name(doubling_high_mul(q, square, arith))
    numerator = doubling_high_mul(q, r, arith) + doubling_high_mul(cube, _ALPHA_N, arith)
    inner = bind_to_name(q + _ALPHA_I + doubling_high_mul(square, _ALPHA_D, arith))
    denominator = bind_to_name(doubling_high_mul(p, inner, arith) + doubling_high_mul(q, _ALPHA_F, arith))
    inverse = bind_to_name(
        saturating_double(bind_to_name(fixed_point_reciprocal(bind_to_name(half_of_one_plus(denominator)), arith)))
    )
    fine = bind_to_name(rounding_shift_right(numerator, 6, arith))
    return (doubling_high_mul(power, _LOG_2, arith) + doubling_high_mul(fine, inverse, arith)) * 2


# ---------------------------------------------------------------- floats


def _evaluate_log_softmax_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.float64)
    centred = x - x.max(axis=-1, keepdims=True)
    return ((centred - np.log(np.exp(centred).sum(axis=-1, keepdims=True))).astype(np.float32),)


def _compute_log_softmax(call: OpCall) -> te.Tensor:
    data = call.data
    classes = data.type.shape[-1]
    rows = data.type.size // classes
    x, k, c = data.tensor((rows, classes)), te.reduce_axis(classes, "k"), te.reduce_axis(classes, "c")
    largest = te.compute((rows,), lambda n: te.max_reduce(x[n, k.var], k, init=float("-inf")), "largest", ("n",))
    total = te.compute(
        (rows,), lambda n: te.sum_reduce(build_exp_of_negative(x[n, c.var] - largest[n]), c), "total", ("n",)
    )
    logs = te.compute((rows,), lambda n: ir.call("log", total[n]), "logs", ("n",))
    return te.compute((rows, classes), lambda n, i: x[n, i] - largest[n] - logs[n], "softmax", ("n", "i"))


def _legalize_log_softmax(node: Node, graph: Graph) -> Legalized | None:
    if not is_quantised(node, graph):
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    exact = source.dtype == result.dtype == "int8" and result.quant == _RESULT
    if node.attr("rounding") == Rounding.EVEN or not exact or source.shape[-1] >= 1 << SUM_BITS:
        return legalize_in_float(node, graph)
    attrs, tables = _qlog_softmax_tables(float(np.float32(per_tensor_quant(node, graph, node.inputs[0])[0])))
    rewrite = Rewrite(node, graph)
    names = [rewrite.add_constant(stem, table) for stem, table in zip(("powers", "reals"), tables, strict=True)]
    rewrite.emit("qlog_softmax", (*node.inputs, *names), node.outputs, attrs)
    return rewrite.legalized()


def _qlog_softmax_tables(in_scale: float) -> tuple[Mapping[str, Attr], tuple[Array, Array]]:
    """Return ``(attributes, tables)`` of ``qlog_softmax`` for data of scale ``in_scale``."""
    powers = compute_exponential_table(in_scale, 1.0, Multiplier.DOUBLE)
    mantissa, shift = quantize_multiplier(min(in_scale * (1 << 26), float(INT32_MAX)), 31)
    radius = math.floor(math.ldexp(31 << 26, -shift))
    distances = np.maximum(-np.arange(256, dtype=np.int64), -radius)
    reals = np.asarray(multiply_double_rounding(distances, mantissa, shift, NUMPY)).astype(np.int32)
    divisor, right = quantize_multiplier(float(1 << (31 - shift)) / mantissa)
    attrs: Mapping[str, Attr] = {"least": -radius - 1, "multiplier": divisor, "shift": right}
    return attrs, (powers, reals)


def _make_log_softmax_test_cases() -> Iterable[Case]:
    for shape in ((5,), (2, 3, 4), (1, 1)):
        yield Case({}, (TensorType(shape, "float32"),), tolerance=3e-6)
    x = np.array([[80, -80, 0], [-1e4, -1e4, -1e4]], np.float32)
    yield Case({}, (TensorType((2, 3), "float32"),), arrays=(x,), tolerance=3e-6, name="large")


# ---------------------------------------------------------------- bytes


def _infer_qlog_softmax_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, powers, reals = types
    if x.dtype != "int8" or not x.shape or powers.shape != (256,) or reals.shape != (256,):
        raise ModelError(
            f"qlog_softmax: unsupported data or tables; got data {x.dtype} {x.shape}, {powers.shape} and {reals.shape}, "
            "expected int8 of one axis at least, (256,) and (256,)"
        )
    return (TensorType(x.shape, "int8"),)


def _evaluate_qlog_softmax_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x, powers, reals = (np.asarray(array, np.int64) for array in arrays)
    distance = x.max(axis=-1, keepdims=True) - x
    total = shift_right_half_up(powers[distance], SUM_BITS).sum(axis=-1, keepdims=True)
    logs = log_q5_26(total, lambda value: value, NUMPY)
    least = multiply_double_rounding(logs + INT32_MIN, attrs["multiplier"], attrs["shift"], NUMPY)
    value = rounding_shift_right(reals[distance] - logs, 22, NUMPY) + 127
    kept = -distance > np.maximum(least, attrs["least"])
    return (np.where(kept, np.clip(value, -128, 127), -128).astype(np.int8),)


def _compute_qlog_softmax(call: OpCall) -> te.Tensor:
    """Build three passes over each row: the largest number, the sum of exponentials, and the results."""
    data, powers, reals = call.present
    classes, attrs = data.type.shape[-1], call.attrs
    rows = data.type.size // classes

    def build_qlog_softmax_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, exps, steps), (out,) = operands, results
        n, a, b, c, zero = Var("n"), Var("a"), Var("b"), Var("c"), ir.const(0, "int32")
        count = ir.const(classes, "int32")
        largest, total = (Buffer(name, (1,), "int32", "register") for name in ("largest", "total"))
        find = ir.Store(largest, (zero,), ir.maximum(largest[0], ir.cast("int32", x[n, a])))
        power = exps[ir.clamp(largest[0] - ir.cast("int32", x[n, b]), 0, 255)]
        add = ir.Store(total, (zero,), total[0] + shift_right_half_up(power, SUM_BITS))
        lets: list[tuple[Var, Expr]] = []

        def bind_to_let_variable(value: Expr) -> Expr:
            lets.append((Var(f"log{len(lets)}", value.dtype), value))
            return lets[-1][0]

        logs = bind_to_let_variable(log_q5_26(bind_to_let_variable(total[0]), bind_to_let_variable, TIR))
        limit = multiply_double_rounding(logs + INT32_MIN, ir.const(attrs["multiplier"], "int32"), attrs["shift"], TIR)
        least, distance = bind_to_let_variable(ir.maximum(limit, attrs["least"])), Var("distance")
        real = steps[ir.clamp(distance, 0, 255)]
        value = ir.clamp(rounding_shift_right(real - logs, 22, TIR) + 127, -128, 127)
        chosen = ir.cast("int8", ir.select(-distance > least, value, -128))
        store = ir.Let(distance, largest[0] - ir.cast("int32", x[n, c]), ir.Store(out, (n, c), chosen))
        body = ir.seq(
            ir.Store(largest, (zero,), ir.const(-128, "int32")),
            ir.For(a, count, find),
            ir.Store(total, (zero,), zero),
            ir.For(b, count, add),
            wrap_in_lets(lets, ir.For(c, count, store)),
        )
        return ir.loops([(n, rows)], ir.Alloc(largest, ir.Alloc(total, body)))

    operands = (data.tensor((rows, classes)), powers.tensor(), reals.tensor())
    return te.extern("logs", operands, (("out", (rows, classes), "int8"),), build_qlog_softmax_loops)[0]


def _qlog_softmax_error_message(checked_node: CheckedNode) -> str:
    """Return an error message if the tables or the length of rows are invalid, else an empty string.

    The exponential of a row's largest number must be one, and the sum of a row in which all exponentials are one must
    not overflow."""
    powers, classes = checked_node.data[1], checked_node.types[0].shape[-1]
    if not 0 < classes < 1 << SUM_BITS:
        return f"rows are too long; got {classes} classes, expected at most {(1 << SUM_BITS) - 1}"
    if powers is not None and powers[0] != INT32_MAX:
        return f"powers[0] is not one in fixed point; got {powers[0]}, expected {INT32_MAX}"
    reals = checked_node.data[2]
    return "" if reals is None else _table_minus_log_overflow_message(reals.astype(np.int64), checked_node.attrs)


def _table_minus_log_overflow_message(reals: Array, attrs: Mapping[str, Any]) -> str:
    """Return an error message if a table entry minus a logarithm can overflow int32, else an empty string.

    An entry is used only if its distance from the row's largest number is within a limit, which grows with the
    logarithm. The largest logarithm for which an entry is used is found by bisection."""
    distances = np.arange(len(reals), dtype=np.int64)
    low, high = np.full_like(distances, -1), np.full_like(distances, INT32_MAX)
    while (low < high).any():
        middle = (low + high + 1) >> 1
        limit = multiply_double_rounding(middle + INT32_MIN, attrs["multiplier"], attrs["shift"], NUMPY)
        counts = limit < -distances
        low, high = np.where(counts, middle, low), np.where(counts, high, middle - 1)
    wrong = (-distances > attrs["least"]) & (reals < INT32_MIN + low)
    if not wrong.any():
        return ""
    first = int(wrong.argmax())
    return (
        f"reals[{first}] is too small for multiplier={attrs['multiplier']}; got {reals[first]}, expected at least "
        f"{INT32_MIN + low[first]}"
    )


def _make_qlog_softmax_test_cases() -> Iterable[Case]:
    for scale in (0.1, 0.5, 0.004):
        attrs, tables = _qlog_softmax_tables(scale)
        types = (TensorType((4, 9), "int8"), TensorType((256,), "int32"), TensorType((256,), "int32"))
        yield Case(attrs, types, (1, 2), (None, *tables), name=f"{scale}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "log_softmax",
        gradient=build_log_softmax_gradient,
        infer=lambda attrs, types: infer_rows("log_softmax", types[0]),
        reference=_evaluate_log_softmax_reference,
        compute=_compute_log_softmax,
        cases=_make_log_softmax_test_cases,
        attrs=SURFACE,
        axes=map_along_axis,
        legalize=_legalize_log_softmax,
        operand_names=("data",),
    ),
    OpDef(
        "qlog_softmax",
        attrs={
            **SCALED,
            "least": integer(
                "least distance from the row's largest element that counts, a negative number",
                least=INT32_MIN,
                most=0,
            ),
        },
        infer=_infer_qlog_softmax_types,
        reference=_evaluate_qlog_softmax_reference,
        compute=_compute_qlog_softmax,
        cases=_make_qlog_softmax_test_cases,
        constants={1: POSITIVE, 2: OperandBounds(NumberUse.POINT, INT32_MIN, 0)},
        sound=(_qlog_softmax_error_message,),
        operand_names=("data", "powers", "reals"),
    ),
)
