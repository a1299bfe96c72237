# SPDX-License-Identifier: Apache-2.0
"""Helpers that operator families share: dtypes, wrapping and fixed-point arithmetic in TIR, and rewriting of graph
nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.numerics import FAR_APART, INT32_MAX, round_half_away, round_half_even
from microc.ops import registry
from microc.ops.attributes import Rounding, Ties
from microc.ops.registry import Legalized
from microc.tir import ir
from microc.tir.ir import Expr

# ---- Dtypes of operands and of computation, wrapping arithmetic, order with NaN.

FLOAT = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NUMBERS = (*FLOAT, *INTEGERS)
SIGNED = (*FLOAT, "int8", "int16", "int32", "int64")


def computation_dtype(element_dtype: str) -> str:
    """Return the dtype to compute in: int32 for narrower integers, float32 for narrower floats, else
    ``element_dtype``."""
    category, bits, _ = dtypes.dtype_parts(element_dtype)
    return element_dtype if bits >= 32 else "float32" if category == "float" else "int32"


def build_wrapping_binary(op: str, a: Expr, b: Expr) -> Expr:
    """Build the expression of the binary operation ``op``; ``add``, ``sub`` and ``mul`` of int32 and int64 wrap modulo
    2**bits, as in numpy.

    Signed overflow is undefined in C, so these operations are computed in the unsigned dtype, unless both operands fit
    16 bits."""
    if a.dtype not in ("int32", "int64") or op not in ("add", "sub", "mul") or (_fits_16_bits(a) and _fits_16_bits(b)):
        return ir.binary(op, a, b)
    wide = f"u{a.dtype}"
    return ir.cast(a.dtype, ir.binary(op, ir.cast(wide, a), ir.cast(wide, b)))


def _fits_16_bits(x: Expr) -> bool:
    """Test whether an expression is an int16 constant, or a cast from a dtype of at most 16 bits other than uint16."""
    match x:
        case ir.Const(int() as value):
            return -(1 << 15) <= value < 1 << 15
        case ir.Cast(_, a):
            return (
                dtypes.dtype_parts(a.dtype).kind != "float"
                and dtypes.dtype_parts(a.dtype).bits <= 16
                and a.dtype != "uint16"
            )
        case _:
            return False


def build_replaces_best_condition(op: str, candidate: Expr, best: Expr) -> Expr:
    """Build the condition that ``candidate`` replaces ``best``, the best element so far of a search for the largest
    (``op`` is ``gt``) or smallest (``lt``) element.

    NaN is larger than any number."""
    wins = ir.binary(op, candidate, best)
    if not dtypes.is_float(candidate.dtype):
        return wins
    larger, smaller = (candidate, best) if op == "gt" else (best, candidate)
    return ir.Bin("or", wins, ir.Bin("and", larger.ne(larger), smaller.eq(smaller)))


def mask_nan_for_argmax(x: Array, for_argmax: bool) -> Array:
    """Replace NaN in ``x`` so that numpy's ``argmax`` (``argmin`` unless ``for_argmax``) selects the best number and
    not a NaN.

    NaN becomes the worst number: -inf for ``argmax``, inf for ``argmin``. Numbers that are already this infinity become
    the worst finite number, so that they still win against NaN."""
    if x.dtype.kind != "f":
        return x
    wide, most = x.astype(np.float64), np.finfo(np.float64).max
    return np.where(np.isnan(wide), -np.inf, np.maximum(wide, -most)) if for_argmax else -mask_nan_for_argmax(-x, True)


def clip_bound_literal(clip_bound: float, dtype: str) -> Expr:
    """Return ``clip_bound`` as a literal of ``dtype``, limited to the range of an integer dtype."""
    if dtypes.is_float(dtype):
        return ir.const(clip_bound, dtype)
    low, high = dtypes.int_range(dtype)
    if math.isinf(clip_bound):
        return ir.const(low if clip_bound < 0 else high, dtype)
    return ir.const(min(max(math.ceil(clip_bound), low), high), dtype)


# ---- Fixed-point formulas over TIR, ranges of quantised activations, and the builder of nodes that replace a node.
#
# Sources: TFLite ``kernel_util.cc`` (CalculateActivationRangeQuantized).


class TirArith:
    """:class:`microc.numerics.Arith` over TIR expressions, in int32 unless a value is widened to int64. Python ints
    become literals."""

    def widen(self, x: Expr | int) -> Expr:
        return ir.cast("int64", x) if isinstance(x, Expr) else ir.const(x, "int64")

    def narrow(self, x: Expr) -> Expr:
        return ir.cast("int32", x)

    def wrap(self, x: Expr) -> Expr:
        return ir.cast("int32", x)

    def select(self, condition: Expr, a: Expr, b: Expr | int) -> Expr:
        return ir.select(condition, a, b)

    def clamp(self, x: Expr, low: Expr | int, high: Expr | int) -> Expr:
        return ir.minimum(ir.maximum(x, low), high)


TIR = TirArith()
"""Fixed-point arithmetic over TIR, passed to the formulas of :mod:`microc.numerics`."""


def clamp_to_dtype(x: Expr, low: int, high: int, target_dtype: str) -> Expr:
    """Clamp ``x`` to ``low``..``high``, a range within ``target_dtype``, and convert ``x`` to this dtype.

    Bounds that the dtype of ``x`` already implies are omitted."""
    least, most = dtypes.int_range(x.dtype)
    if low > least:
        x = ir.maximum(x, low)
    if high < most:
        x = ir.minimum(x, high)
    return ir.cast(target_dtype, x)


def cast_exact(target_dtype: str, integers: Any) -> Array:
    """Convert ``integers`` to ``target_dtype``; raise InternalError if a value does not fit the dtype."""
    array = np.asarray(integers)
    low, high = dtypes.int_range(target_dtype)
    if array.size and (array.min() < low or array.max() > high):
        raise InternalError(f"values do not fit {target_dtype}; got {array.min()}..{array.max()}")
    return array.astype(dtypes.to_numpy(target_dtype))


def activation_range(
    activation: str, out_quant: Quant, out_dtype: str, rounding: str = Rounding.DOUBLE, where: str = ""
) -> tuple[int, int]:
    """Return the range ``(minimum, maximum)`` of the quantised values of ``activation``, clamped to ``out_dtype``.

    The activation's real bounds (0, 6, -1, 1) are quantised in float32. They are rounded half away from zero as in
    TFLite, or half to even if ``rounding`` is ``even``: then clamping before quantisation and after it gives the same
    values, as ONNX requires. Raise UnsupportedError for an unknown activation, for an output quantised per channel, and
    for a scale too small for int32."""
    low, high = dtypes.int_range(out_dtype)
    bounds = {"": (None, None), "relu": (0.0, None), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}
    if activation not in bounds:
        raise UnsupportedError(
            f"the activation is not supported in a quantised operator; got {activation!r}, expected one of "
            f"{', '.join(filter(None, bounds))}",
            where=where,
            hint="make the activation a separate operator",
        )
    if out_quant.axis is not None:
        raise UnsupportedError(
            f"the activation's output is quantised along axis {out_quant.axis}; expected one scale and zero point per tensor",
            where=where,
            hint="quantise activations per tensor",
        )
    rounded = round_half_even if rounding == Rounding.EVEN else round_half_away

    def quantise_bound(real: float) -> int:
        with np.errstate(over="ignore"):
            steps = float(rounded(np.array([real], np.float32) / np.float32(out_quant.scale[0]))[0])
        if abs(steps) > INT32_MAX:
            raise UnsupportedError(
                f"{activation}: the output's scale is too small for the activation's bounds in int32; got "
                f"{out_quant.scale[0]:.3g}",
                where=where,
                hint=FAR_APART,
            )
        return out_quant.zero_point[0] + int(steps)

    least, most = bounds[activation]
    return (
        low if least is None else max(low, min(high, quantise_bound(least))),
        high if most is None else min(high, max(low, quantise_bound(most))),
    )


class Rewrite:
    """Builder of the core nodes that replace one surface node (a node as the model's format defines the operator).

    ``add_value`` and ``add_constant`` add values of the graph; their names start with the name of the replaced node's
    first output. ``emit`` appends a node with the replaced node's location. The last node must write the replaced
    node's outputs."""

    def __init__(self, node: Node, graph: Graph) -> None:
        self.node = node
        self.graph = graph
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}

    def _unused_value_name(self, stem: str) -> str:
        """Return a value name that neither the graph nor this rewrite uses, made from the replaced node's output and
        ``stem``."""
        name, number = f"{self.node.outputs[0]}.{stem}", 1
        while name in self.graph.types or name in self.types:
            name, number = f"{self.node.outputs[0]}.{stem}_{number}", number + 1
        return name

    def type(self, name: str) -> TensorType:
        """Return the type of a value of the graph or of this rewrite, by the value's name."""
        return self.types[name] if name in self.types else self.graph.types[name]

    def add_value(self, stem: str, shape: Sequence[int], dtype: str, quant: Quant | None = None) -> str:
        """Add an intermediate value and return its name, made from the replaced node's output and ``stem``."""
        name = self._unused_value_name(stem)
        self.types[name] = TensorType(tuple(shape), dtype, quant)
        return name

    def add_constant(self, stem: str, array: Array) -> str:
        """Add a constant and return its name, made from the replaced node's output and ``stem``."""
        name = self._unused_value_name(stem)
        self.types[name] = TensorType(array.shape, array.dtype.name)
        self.consts[name] = array
        return name

    def emit(self, op: str, inputs: Sequence[str], outputs: Sequence[str] | str, attrs: Mapping[str, Attr]) -> str:
        """Append a node; return the name of its first output."""
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        self.nodes.append(Node(op, tuple(inputs), names, attrs, self.node.loc, self.node.group))
        return names[0]

    def legalized(self) -> Legalized:
        """Return the new nodes in order, and the types and constants of the new values."""
        return tuple(self.nodes), self.types, self.consts


def build_bit_length(x: Expr, let_name_prefix: str) -> tuple[list[tuple[ir.Var, Expr]], Expr]:
    """Build an expression of the bit length of the uint32 ``x`` (0 for 0), by binary search for the highest set bit.

    Return ``(definitions, bit length)``: the variables and values that :func:`wrap_in_lets` must define around the
    expression, and the expression itself. Names of the variables begin with ``let_name_prefix``."""
    lets: list[tuple[ir.Var, Expr]] = []
    count: Expr = ir.const(0, "int32")
    for step in (16, 8, 4, 2, 1):
        here = ir.Var(f"{let_name_prefix}_bits{step}")
        above = ir.select(ir.binary("ge", x, 1 << step), ir.const(step, "int32"), 0)
        lets.append((here, above))
        rest = ir.Var(f"{let_name_prefix}_above{step}", "uint32")
        lets.append((rest, ir.binary("shr", x, ir.cast("uint32", here))))
        count, x = count + here, rest
    total = ir.Var(f"{let_name_prefix}_bits")
    lets.append((total, count + ir.cast("int32", x)))
    return lets, total


def wrap_in_lets(lets: Sequence[tuple[ir.Var, Expr]], body: ir.Stmt) -> ir.Stmt:
    """Wrap a statement in ``Let`` statements that define variables; each value may use the variables before it."""
    for var, value in reversed(lets):
        body = ir.Let(var, value, body)
    return body


def constant_data(graph: Graph, value_name: str) -> Array | None:
    """Return the data of a value that is known at compile time; None for any other value and for an absent operand."""
    return graph.consts.get(value_name) if value_name else None


def per_tensor_quant(node: Node, graph: Graph, value_name: str) -> tuple[float, int]:
    """Return the scale and zero point of the value ``value_name``; raise UnsupportedError unless the value is quantised
    per tensor."""
    quant = graph.types[value_name].quant
    if quant is None or len(quant.scale) != 1:
        raise UnsupportedError(
            f"{value_name!r} is not quantised per tensor; expected one scale and zero point",
            where=str(node.loc),
            hint="quantise activations per tensor",
        )
    return quant.scale[0], quant.zero_point[0]


def quantisation_operands(node: Node) -> tuple[str, ...]:
    """Return the names of the operands whose types decide whether a node is quantised.

    These are the first two operands, or the first alone if the operands behind it are tables of parameters
    (``OpDef.tables``)."""
    return tuple(name for name in node.inputs[: 1 if registry.get(node.op).tables else 2] if name)


def is_quantised(node: Node, graph: Graph) -> bool:
    """Test whether a node is quantised: its outputs and its :func:`quantisation_operands` are integers with scale and
    zero point."""
    names = (*quantisation_operands(node), *node.outputs)
    return all(graph.types[name].is_quantised for name in names)


# ---- Legalisations shared by several families: splitting off a fused activation, and computing a quantised operator in floats.

ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Attr]]] = MappingProxyType(
    {
        "relu": ("relu", {}),
        "relu6": ("clip", {"minimum": 0.0, "maximum": 6.0}),
        "relu_n1_to_1": ("clip", {"minimum": -1.0, "maximum": 1.0}),
        "tanh": ("tanh", {}),
        "sigmoid": ("sigmoid", {}),
    }
)
"""Operator and its attributes that compute an activation, by value of the attribute ``activation``."""


def split_activation(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a float node with a fused ``activation`` to the same operator without it, then the operator of the
    activation.

    Return None if the node has no fused activation."""
    activation = node.attrs.get("activation", "")
    if not activation:
        return None
    rewrite = Rewrite(node, graph)
    output_type = graph.types[node.outputs[0]]
    plain = rewrite.add_value("linear", output_type.shape, output_type.dtype)
    rewrite.emit(node.op, node.inputs, plain, {**node.attrs, "activation": ""})
    emit_activation(rewrite, str(activation), plain, node.outputs[0])
    return rewrite.legalized()


def emit_activation(rewrite: Rewrite, activation: str, float_value: str, output_name: str) -> None:
    """Append the operator that applies ``activation`` to the float value ``float_value`` and writes ``output_name``."""
    if activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"the fused activation is unknown; got {activation!r}, expected one of {', '.join(ACTIVATIONS)}",
            where=str(rewrite.node.loc),
        )
    op, attrs = ACTIVATIONS[activation]
    rewrite.emit(op, (float_value,), output_name, attrs)


def legalize_in_float(node: Node, graph: Graph) -> Legalized:
    """Rewrite a quantised node to ``dequantize``, the same operator on floats, its activation, and ``quantize``.

    Every quantised operand is dequantised. The result is rounded half to even if the node's ``rounding`` is ``even``,
    else half away from zero."""
    rewrite = Rewrite(node, graph)
    operands = [emit_dequantize(rewrite, name) for name in node.inputs]
    result = graph.types[node.outputs[0]]
    attrs = dict(node.attrs)
    activation = str(attrs.get("activation", ""))
    real = rewrite.add_value("float", result.shape, "float32")
    if activation:
        linear = rewrite.add_value("linear", result.shape, "float32")
        rewrite.emit(node.op, operands, linear, {**attrs, "activation": ""})
        emit_activation(rewrite, activation, linear, real)
    else:
        rewrite.emit(node.op, operands, real, attrs)
    rewrite.emit("quantize", (real,), node.outputs[0], quantize_attrs(result, attrs.get("rounding")))
    return rewrite.legalized()


def emit_dequantize(rewrite: Rewrite, operand_name: str) -> str:
    """Append a ``dequantize`` node for the operand ``operand_name`` and return the name of the node's result.

    For an operand that is not quantised, append nothing and return ``operand_name`` itself."""
    tensor_type = rewrite.type(operand_name) if operand_name else None
    if tensor_type is None or tensor_type.quant is None or not dtypes.is_integer(tensor_type.dtype):
        return operand_name
    quant = tensor_type.quant
    real = rewrite.add_value("real", tensor_type.shape, "float32")
    return rewrite.emit(
        "dequantize", (operand_name,), real, {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    )


def quantize_attrs(tensor_type: TensorType, rounding: Any) -> dict[str, Attr]:
    """Return the attributes of a ``quantize`` node whose result has the quantised type ``tensor_type``."""
    assert tensor_type.quant is not None
    return {
        "scale": tensor_type.quant.scale,
        "zero_point": tensor_type.quant.zero_point,
        "axis": tensor_type.quant.axis,
        "out_dtype": tensor_type.dtype,
        "rounding": Ties.EVEN if rounding == Rounding.EVEN else Ties.AWAY,
    }


# ---- Functions that are no operators of ours, each emitted as several operators; and activation functions by name.
#
# Readers emit formulas into the graph, recurrent layers into the bodies of their loops. A formula takes a
# function that appends an operator, and returns the name of its result.


OperatorEmitter = Callable[..., str]
"""``emit(op, *operands, **attributes)``; numbers among the operands become constants of the last other operand's
dtype."""


def emit_affine(emit: OperatorEmitter, x: str, alpha: float, beta: float) -> str:
    """Emit alpha * x + beta; return the result's name."""
    return emit("add", emit("mul", x, alpha), beta)


def emit_hard_sigmoid(emit: OperatorEmitter, x: str, alpha: float = 1 / 6, beta: float = 0.5) -> str:
    """Emit min(max(alpha * x + beta, 0), 1); return the result's name."""
    return emit("clip", emit_affine(emit, x, alpha, beta), minimum=0.0, maximum=1.0)


def emit_scaled_tanh(emit: OperatorEmitter, x: str, alpha: float, beta: float) -> str:
    """Emit alpha * tanh(beta * x); return the result's name."""
    return emit("mul", emit("tanh", emit("mul", x, beta)), alpha)


def emit_gelu(emit: OperatorEmitter, x: str, approximate: bool = False) -> str:
    """Emit x / 2 * (1 + erf(x / sqrt(2))), or its approximation by tanh; return the result's name."""
    if approximate:
        cube = emit("mul", emit("mul", x, x), x)
        inner = emit("tanh", emit("mul", emit("add", x, emit("mul", cube, 0.044715)), math.sqrt(2 / math.pi)))
    else:
        inner = emit("erf", emit("mul", x, math.sqrt(0.5)))
    return emit("mul", emit("mul", x, 0.5), emit("add", inner, 1.0))


def emit_selu(
    emit: OperatorEmitter, x: str, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> str:
    """Emit gamma * elu(x, alpha); return the result's name."""
    return emit("mul", emit("elu", x, alpha=alpha), gamma)


def emit_celu(emit: OperatorEmitter, x: str, alpha: float) -> str:
    """Emit max(0, x) + min(0, alpha * (exp(x / alpha) - 1)); return the result's name.

    If alpha is not positive, nothing is emitted and x is returned."""
    return emit("mul", emit("elu", emit("div", x, alpha), alpha=1.0), alpha) if alpha > 0 else x


def emit_softsign(emit: OperatorEmitter, x: str) -> str:
    """Emit x / (1 + abs(x)); return the result's name."""
    return emit("div", x, emit("add", emit("abs", x), 1.0))


def emit_mish(emit: OperatorEmitter, x: str) -> str:
    """Emit x * tanh(softplus(x)); return the result's name."""
    return emit("mul", x, emit("tanh", emit("softplus", x)))


def emit_swish(emit: OperatorEmitter, x: str, alpha: float = 1.0) -> str:
    """Emit x * sigmoid(alpha * x); return the result's name."""
    return emit("mul", x, emit("sigmoid", x if alpha == 1.0 else emit("mul", x, alpha)))


def emit_thresholded_relu(emit: OperatorEmitter, x: str, alpha: float) -> str:
    """Emit x for elements greater than alpha, 0 for other elements; return the result's name."""
    return emit("where", emit("greater", x, alpha), x, 0.0)


def emit_shrink(emit: OperatorEmitter, x: str, bias: float, lambd: float) -> str:
    """Emit x + bias for elements less than -lambd, x - bias for elements greater than lambd, 0 for others; return the
    result's name."""
    low = emit("where", emit("less", x, -lambd), emit("add", x, bias), 0.0)
    return emit("where", emit("greater", x, lambd), emit("sub", x, bias), low)


def emit_reciprocal(emit: OperatorEmitter, x: str) -> str:
    """Emit 1 / x; return the result's name."""
    return emit("div", 1.0, x)


# ---- Activation functions by name, for recurrent layers and for layers with a fused activation.


@frozen
class ActivationFunction:
    """Activation function: ``emit(append_operator, x, *parameters)`` emits it and returns the result's name.

    ``parameters``: names of the parameters, which are numbers."""

    emit: Callable[..., str]
    parameters: tuple[str, ...] = ()


def _make_operator_function(op: str, **attrs: float) -> ActivationFunction:
    """Return the activation function that is the single operator ``op``."""
    return ActivationFunction(lambda emit, x: emit(op, x, **attrs))


ACTIVATION_FUNCTIONS: Mapping[str, ActivationFunction] = MappingProxyType(
    {
        "affine": ActivationFunction(emit_affine, ("alpha", "beta")),
        "elu": ActivationFunction(lambda emit, x, alpha: emit("elu", x, alpha=alpha), ("alpha",)),
        "exp": _make_operator_function("exp"),
        "gelu": ActivationFunction(emit_gelu),
        "hard_sigmoid": ActivationFunction(emit_hard_sigmoid, ("alpha", "beta")),
        "hard_swish": _make_operator_function("hard_swish"),
        "leaky_relu": ActivationFunction(lambda emit, x, alpha: emit("leaky_relu", x, alpha=alpha), ("alpha",)),
        "linear": ActivationFunction(lambda emit, x: x),
        "mish": ActivationFunction(emit_mish),
        "relu": _make_operator_function("relu"),
        "relu6": _make_operator_function("clip", minimum=0.0, maximum=6.0),
        "relu_n1_to_1": _make_operator_function("clip", minimum=-1.0, maximum=1.0),
        "scaled_tanh": ActivationFunction(emit_scaled_tanh, ("alpha", "beta")),
        "selu": ActivationFunction(emit_selu),
        "sigmoid": _make_operator_function("sigmoid"),
        "softmax": _make_operator_function("softmax", axis=-1),
        "softplus": _make_operator_function("softplus"),
        "softsign": ActivationFunction(emit_softsign),
        "swish": ActivationFunction(emit_swish),
        "tanh": _make_operator_function("tanh"),
        "thresholded_relu": ActivationFunction(emit_thresholded_relu, ("alpha",)),
    }
)
"""Activation functions by name."""
