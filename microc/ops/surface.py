"""Ways from a surface application to core ones that several families share: a split activation, a detour through floats."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from microc import dtypes
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arith import Rewrite
from microc.ops.registry import Legalized
from microc.ops.rounding import Rounding, Ties

ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Attr]]] = MappingProxyType(
    {
        "relu": ("relu", {}),
        "relu6": ("clip", {"minimum": 0.0, "maximum": 6.0}),
        "relu_n1_to_1": ("clip", {"minimum": -1.0, "maximum": 1.0}),
        "tanh": ("tanh", {}),
        "sigmoid": ("sigmoid", {}),
    }
)
"""The operator that each ``activation`` attribute stands for."""


def split_activation(node: Node, graph: Graph) -> Legalized | None:
    """A float operator with an ``activation`` as the operator and the activation; None without one."""
    activation = node.attrs.get("activation", "")
    if not activation:
        return None
    rewrite = Rewrite(node, graph)
    kind = graph.types[node.outputs[0]]
    plain = rewrite.value("linear", kind.shape, kind.dtype)
    rewrite.emit(node.op, node.inputs, plain, {**node.attrs, "activation": ""})
    emit_activation(rewrite, str(activation), plain, node.outputs[0])
    return rewrite.legalized()


def emit_activation(rewrite: Rewrite, activation: str, value: str, output: str) -> None:
    """``output`` = activation of the float ``value``."""
    if activation not in ACTIVATIONS:
        raise UnsupportedError(f"activation {activation!r}", where=str(rewrite.node.loc))
    op, attrs = ACTIVATIONS[activation]
    rewrite.emit(op, (value,), output, attrs)


def through_float(node: Node, graph: Graph) -> Legalized:
    """A quantised operator as dequantize, the float operator with its activation, and quantize.

    Every operand that carries ``quant`` is dequantised; the result is rounded half to even under rounding ``even``, else half
    away from zero.
    """
    rewrite = Rewrite(node, graph)
    operands = [dequantized(rewrite, name) for name in node.inputs]
    result = graph.types[node.outputs[0]]
    attrs = dict(node.attrs)
    activation = str(attrs.get("activation", ""))
    real = rewrite.value("float", result.shape, "float32")
    if activation:
        linear = rewrite.value("linear", result.shape, "float32")
        rewrite.emit(node.op, operands, linear, {**attrs, "activation": ""})
        emit_activation(rewrite, activation, linear, real)
    else:
        rewrite.emit(node.op, operands, real, attrs)
    rewrite.emit("quantize", (real,), node.outputs[0], quantize_attrs(result, attrs.get("rounding")))
    return rewrite.legalized()


def dequantized(rewrite: Rewrite, name: str) -> str:
    """The float value of a quantised operand; any other operand as it is."""
    kind = rewrite.type(name) if name else None
    if kind is None or kind.quant is None or not dtypes.is_integer(kind.dtype):
        return name
    quant = kind.quant
    real = rewrite.value("real", kind.shape, "float32")
    return rewrite.emit(
        "dequantize", (name,), real, {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
    )


def quantize_attrs(kind: TensorType, rounding: Any) -> dict[str, Attr]:
    """Attributes of the ``quantize`` that makes a value of ``kind``."""
    assert kind.quant is not None
    return {
        "scale": kind.quant.scale,
        "zero_point": kind.quant.zero_point,
        "axis": kind.quant.axis,
        "out_dtype": kind.dtype,
        "rounding": Ties.EVEN if rounding == Rounding.EVEN else Ties.AWAY,
    }
