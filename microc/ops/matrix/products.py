"""Quantised sums of products in exact integers: what conv2d, dense and matmul have in common when they are legalized.

    sum((x - zx) (w - zw)) + bias  =  sum(x w') + bias',    w' = w - zw,    bias' = bias - zx sum(w'),

so constant weights leave no zero point in the loop; a convolution pads with zx, for which the sum holds as well. Operands that
are both computed at run time are freed of their zero points first.

Sources: TFLite Micro ``conv.cc``, ``depthwise_conv.cc``, ``fully_connected.cc``, ``batch_matmul.cc`` and the kernels they call;
16-bit data accumulates in 64 bits there, unless the bias has 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node
from microc.numerics import INT32_MAX
from microc.ops.arithmetic import Rewrite, activation_range, constant, fitted, scalar_quant
from microc.ops.attributes import Multiplier, Rounding
from microc.ops.matrix.gemm import lacking_of, shift_of
from microc.ops.quantised.requantize import Requantization, emit_requantize, product_multipliers
from microc.ops.registry import Legalized

_SURFACE = frozenset({"activation", "rounding"})
_UNKNOWN = 1 << 62
"""Where the bias is computed nothing is known of the sums: their 32 bits are taken to hold them."""
_WIDEST = 1 << 47


@frozen
class Product:
    """How an operator multiplies.

    ``depth``: products in a sum. ``trailing``: axes of the output after the channels. ``single``: the scales of data and weight
    are multiplied in float32. ``centres``: the core operator takes zero points as attributes, and no bias; else it takes a bias,
    and its weights have the channels on axis 0. ``padded``: it pads.
    """

    depth: int
    trailing: int = 0
    single: bool = False
    centres: bool = False
    padded: bool = False


@frozen
class _Sum:
    """Operands of the core operator. ``largest`` bounds every partial sum's magnitude, ``bound`` that of the whole one."""

    operands: tuple[str, ...]
    largest: int
    bound: int
    pad_value: int
    shift: int = 0
    """What every weight is less than it should be."""


def legalize_product(node: Node, graph: Graph, product: Product) -> Legalized:
    """A quantised operator as the same operator on plain integers, and ``requantize`` (``requantize_float`` for ``even``)."""
    rewrite = Rewrite(node, graph)
    output = graph.types[node.outputs[0]]
    weight = graph.types[node.inputs[1]].quant
    data_zero, out_zero = (scalar_quant(node, graph, name)[1] for name in (node.inputs[0], node.outputs[0]))
    assert weight is not None and output.quant is not None
    rounding = str(node.attrs.get("rounding", Rounding.DOUBLE))
    exact_scales = rounding == Rounding.LITERT
    rounding = Rounding.SINGLE if exact_scales else rounding
    weights = constant(graph, node.inputs[1])
    if product.centres:
        largest = _centred_bound(rewrite, product.depth)
        terms = _Sum(node.inputs[:2], largest, largest, 0)
    elif weights is None:
        terms = _centred_operands(rewrite, product.depth)
    else:
        terms = _constant(rewrite, weights, data_zero)
    fits = terms.largest <= INT32_MAX
    wide = rounding != Rounding.EVEN and _is_wide(node, graph) and not (exact_scales and fits)
    if wide and _WIDEST <= terms.largest != _UNKNOWN:
        raise UnsupportedError(
            f"{node.op} with sums of {terms.largest.bit_length()} bits",
            where=str(node.loc),
            hint="the bias is too large: TFLite's integers of 64 bits are scaled where they have 48 at most",
        )
    accumulator = "int32" if fits or terms.largest == _UNKNOWN else "int64"
    terms = _with_bias_dtype(rewrite, terms, accumulator)
    attrs: dict[str, Attr] = {k: v for k, v in node.attrs.items() if k not in _SURFACE}
    attrs |= {"activation": "", "out_dtype": accumulator}
    if product.centres:
        zeros = (scalar_quant(node, graph, name)[1] for name in node.inputs[:2])
        attrs |= dict(zip(("zero_point_a", "zero_point_b"), zeros, strict=True))
    if product.padded:
        attrs["pad_value"] = terms.pad_value
    lacking = lacking_of(rewrite, terms.operands, terms.shift, output.shape, accumulator, attrs) if terms.shift else ""
    acc = rewrite.emit(node.op, terms.operands, rewrite.value("acc", output.shape, accumulator), attrs)
    if lacking:
        acc = rewrite.emit("add", (acc, lacking), rewrite.value("whole", output.shape, accumulator), {})
    data = graph.types[node.inputs[0]].quant
    assert data is not None
    low, high = activation_range(
        str(node.attrs.get("activation", "")), output.quant, output.dtype, rounding, str(node.loc)
    )
    multipliers = product_multipliers(data, weight, output.quant, rounding, product.single and not exact_scales)
    result = Requantization(multipliers, out_zero, low, high, output.dtype, product.trailing)
    bound = terms.bound if terms.bound <= INT32_MAX or wide else -1
    emit_requantize(rewrite, acc, node.outputs[0], result, Multiplier.WIDE if wide else rounding, bound)
    return rewrite.legalized()


def _is_wide(node: Node, graph: Graph) -> bool:
    """Whether TFLite accumulates in 64 bits, and scales by a multiplier of 16 bits."""
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return graph.types[node.inputs[0]].dtype == "int16" and not (bias and graph.types[bias].dtype == "int32")


def _constant(rewrite: Rewrite, weights: Array, data_zero: int) -> _Sum:
    """The operands with constant weights; the channels are their axis 0."""
    node, graph = rewrite.node, rewrite.graph
    kind = graph.types[node.inputs[1]]
    assert kind.quant is not None
    if kind.quant.axis not in (None, 0):
        raise UnsupportedError(
            f"weights quantised along axis {kind.quant.axis}", where=str(node.loc), hint="quantise per output channel"
        )
    weight, shift = node.inputs[1], 0
    rows = weights.reshape(weights.shape[0], -1).astype(np.int64) - np.array(kind.quant.zero_point).reshape(-1, 1)
    if any(kind.quant.zero_point) or kind.dtype not in ("int8", "int16"):
        shift = shift_of(node, graph, rows)
        dtype = "int8" if shift or (rows.min(initial=0) >= -128 and rows.max(initial=0) <= 127) else "int16"
        weight = rewrite.constant("weight", fitted(dtype, rows - shift).reshape(weights.shape))
    folded = -data_zero * rows.sum(axis=1)
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    given = constant(graph, name)
    low, high = dtypes.int_range(graph.types[node.inputs[0]].dtype)
    total = folded if given is None else folded + given.astype(np.int64).reshape(-1)
    largest = int((np.abs(total) + np.abs(rows).sum(axis=1) * max(-low, high)).max(initial=0))
    above = total + np.maximum(rows * low, rows * high).sum(axis=1)
    below = total + np.minimum(rows * low, rows * high).sum(axis=1)
    bound = int(np.maximum(np.abs(above), np.abs(below)).max(initial=0))
    operands: tuple[str, ...] = (node.inputs[0], weight)
    if name and given is None:
        bias = _bounded(rewrite, _shifted(rewrite, name, folded), largest_products(rows, low, high))
        return _Sum((*operands, bias), _UNKNOWN, _UNKNOWN, data_zero, shift)
    if total.any():
        operands = (*operands, rewrite.constant("bias", total))
    return _Sum(operands, largest, bound, data_zero, shift)


def largest_products(rows: Array, low: int, high: int) -> int:
    """Return the largest magnitude of a sum of weights (channels, depth) times data within low..high."""
    above, below = np.maximum(rows * low, rows * high).sum(axis=1), np.minimum(rows * low, rows * high).sum(axis=1)
    return max(int(above.max(initial=0)), -int(below.min(initial=0)))


def _bounded(rewrite: Rewrite, bias: str, products: int) -> str:
    """A computed bias that leaves room for the products: C leaves undefined what a sum beyond its dtype is."""
    kind = rewrite.type(bias)
    room = dtypes.int_range(kind.dtype)[1] - products
    if room < 0:
        raise UnsupportedError(
            f"{rewrite.node.op} with sums of {products.bit_length()} bits and a computed bias of {kind.dtype}",
            where=str(rewrite.node.loc),
            hint="make the bias a constant, or a layer of its own",
        )
    attrs: Mapping[str, Attr] = {"minimum": -room, "maximum": room, "rounding": Rounding.NONE}
    return rewrite.emit("clip", (bias,), rewrite.value("bias", kind.shape, kind.dtype), attrs)


def _shifted(rewrite: Rewrite, bias: str, folded: Array) -> str:
    """A computed bias plus what the data's zero point adds."""
    if not folded.any():
        return bias
    kind = rewrite.type(bias)
    term = rewrite.constant("correction", fitted(kind.dtype, folded))
    return rewrite.emit("add", (bias, term), rewrite.value("bias", kind.shape, kind.dtype), {})


def _with_bias_dtype(rewrite: Rewrite, terms: _Sum, accumulator: str) -> _Sum:
    """The same operands, a constant bias of the accumulator's dtype."""
    if len(terms.operands) < 3 or terms.operands[2] not in rewrite.consts:
        return terms
    bias = terms.operands[2]
    values = rewrite.consts.pop(bias)
    low, high = dtypes.int_range(accumulator)
    if values.min() < low or values.max() > high:
        raise UnsupportedError(f"a bias beyond {accumulator}", where=str(rewrite.node.loc))
    del rewrite.types[bias]
    operand = rewrite.constant("bias", fitted(accumulator, values))
    return replace(terms, operands=(*terms.operands[:2], operand))


def _centred_operands(rewrite: Rewrite, depth: int) -> _Sum:
    """Both operands less their zero points, when these cannot go into a bias."""
    node = rewrite.node
    operands = [_centred(rewrite, name) for name in node.inputs[:2]]
    bound = _centred_bound(rewrite, depth)
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = constant(rewrite.graph, name)
    if bias is not None:
        bound += int(np.abs(bias.astype(np.int64)).max(initial=0))
        operands.append(rewrite.constant("bias", bias.astype(np.int64).reshape(-1)))
    elif name:
        operands.append(_bounded(rewrite, name, bound))
        bound = _UNKNOWN
    return _Sum(tuple(operands), bound, bound, 0)


def _centred_bound(rewrite: Rewrite, depth: int) -> int:
    """The largest magnitude of a sum of products of both operands less their zero points."""
    ranges = (_centred_range(rewrite, name) for name in rewrite.node.inputs[:2])
    return depth * prod(max(-low, high) for low, high in ranges)


def _centred_range(rewrite: Rewrite, name: str) -> tuple[int, int]:
    low, high = dtypes.int_range(rewrite.type(name).dtype)
    zero = scalar_quant(rewrite.node, rewrite.graph, name)[1]
    return low - zero, high - zero


def _centred(rewrite: Rewrite, name: str) -> str:
    """``name`` less its zero point: itself, or int16."""
    kind, zero = rewrite.type(name), scalar_quant(rewrite.node, rewrite.graph, name)[1]
    if zero == 0:
        return name
    known = constant(rewrite.graph, name)
    if known is not None:
        return rewrite.constant("centred", fitted("int16", known.astype(np.int64) - zero))
    low, high = _centred_range(rewrite, name)
    if dtypes.nbytes(kind.dtype) != 1:
        raise UnsupportedError(f"{kind.dtype} operand with a zero point", where=str(rewrite.node.loc))
    attrs: Mapping[str, Attr] = {
        "multiplier": 1 << 30,
        "shift": 1,
        "shift_range": (1, 1),
        "rounding": Multiplier.DOUBLE,
    }
    result: Mapping[str, Attr] = {"zero_point": 0, "minimum": low, "maximum": high, "out_dtype": "int16"}
    extra: Mapping[str, Attr] = {"input_zero_point": zero, "bound": max(-low, high)}
    output = rewrite.value("centred", kind.shape, "int16")
    return rewrite.emit("requantize", (name,), output, {**attrs, **result, **extra})
