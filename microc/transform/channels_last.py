# SPDX-License-Identifier: Apache-2.0
"""Conversion to channels last (NHWC), rules that move reshapes after elementwise operators, and padding that
convolutions and pools absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name, new_value
from microc.graph.match import Match, P, Replacement, Rule, rewrite
from microc.ops import registry
from microc.transform.pass_context import Pass, PassContext
from microc.transform.transposes import (
    Axes,
    Shape,
    final_transpose_rules,
    permute_type,
    transpose_merging_rules,
    transpose_rules,
)

# ---- Rules for reshapes: successive reshapes are merged, and a reshape before an elementwise operator is moved after it, so that
# the operator can be fused with the kernel before the reshape.


def elementwise_operators() -> frozenset[str]:
    """Return the names of the operators that compute each element from one element of every operand."""
    return frozenset(name for name, definition in registry.registry().items() if definition.elementwise)


def find_broadcast_operands(match: Match) -> list[int]:
    """Return the positions of the matched node's operands that broadcast.

    These are all operands that are present, except operands that the node reads as whole tensors (``OpDef.whole``)."""
    whole = registry.get(match.root.op).whole
    return [k for k, name in enumerate(match.root.inputs) if name and k not in whole]


def reshape_rules() -> tuple[Rule, ...]:
    """Return rules that merge reshapes and move reshapes after elementwise operators and padding."""
    return (
        (P.op("reshape", P.op("reshape", P.any("x"), shared=True)), _merge_reshapes),
        (P.op(elementwise_operators()), _sink_reshape),
        (P.op("pad", P.op("reshape", P.any("x"), shared=True), name="pad"), _sink_reshape_through_pad),
    )


def _merge_reshapes(match: Match) -> Replacement:
    """Replace two successive reshapes by one."""
    match.emit("reshape", (match["x"],), {"shape": match.type(match.output).shape})
    return match.replacement()


def _sink_reshape(match: Match) -> Replacement | None:
    """Rewrite op(reshape(x), ...) -> reshape(op(x, ...)) if all other operands can be reshaped to the shape of x at no
    cost."""
    kind = match.type(match.output)
    inputs = list(match.root.inputs)
    positions = find_broadcast_operands(match)
    sources = {k: _find_reshape_operand(match, inputs[k], kind.shape) for k in positions}
    shapes = {match.type(source).shape for source in sources.values() if source}
    if len(shapes) != 1 or match.root.attrs.get("axis") is not None or len([o for o in match.root.outputs if o]) != 1:
        return None
    (shape,) = shapes
    quants = (match.type(name).quant for name in (*inputs, match.output) if name)
    if any(quant is not None and quant.axis is not None for quant in quants):
        return None
    for k in positions:
        operand = sources[k] or _reshape_broadcast_operand(match, inputs[k], kind.shape, shape)
        if not operand:
            return None
        inputs[k] = operand
    moved = match.emit(
        match.root.op, inputs, match.root.attrs, TensorType(shape, kind.dtype, kind.quant), f"{match.output}.moved"
    )
    match.emit("reshape", (moved,), {"shape": kind.shape})
    return match.replacement()


def _find_reshape_operand(match: Match, value_name: str, shape: Shape) -> str:
    """Return the operand of the reshape that computes ``value_name``; empty if there is no such reshape or
    ``value_name`` has another shape than ``shape``."""
    producer = match.scope.producer(value_name)
    if producer is None or producer.op != "reshape" or match.type(value_name).shape != shape:
        return ""
    source = producer.inputs[0]
    return source if match.type(source).quant == match.type(value_name).quant else ""


def _reshape_broadcast_operand(
    match: Match, value_name: str, broadcast_shape: Shape, new_broadcast_shape: Shape
) -> str:
    """Return the name of an operand reshaped to broadcast to ``new_broadcast_shape`` instead of ``broadcast_shape``.

    The name is empty unless the operand has one element or is a constant for which that is possible."""
    shape = match.type(value_name).shape
    data = match.scope.consts.get(value_name)
    if match.type(value_name).size == 1 and len(shape) <= len(new_broadcast_shape):
        return value_name
    if data is None:
        return ""
    if data.size == 1:
        return match.constant(f"{value_name}.moved", data.reshape(()), _type_with_shape(match, value_name, ()))
    if data.size == np.prod(broadcast_shape):
        return match.constant(
            f"{value_name}.moved",
            data.reshape(new_broadcast_shape),
            _type_with_shape(match, value_name, new_broadcast_shape),
        )
    if data.size == shape[-1] == broadcast_shape[-1] and new_broadcast_shape[-1:] == broadcast_shape[-1:]:
        return match.constant(f"{value_name}.moved", data.reshape(-1), _type_with_shape(match, value_name, shape[-1:]))
    return ""


def _type_with_shape(match: Match, value_name: str, shape: Sequence[int]) -> TensorType:
    """Return the type of ``value_name`` with another shape."""
    kind = match.type(value_name)
    return TensorType(tuple(shape), kind.dtype, kind.quant)


def _sink_reshape_through_pad(match: Match) -> Replacement | None:
    """Rewrite pad(reshape(x)) -> reshape(pad(x)) if the reshape only adds or drops axes of extent 1 that are not
    padded."""
    source, result = match.type(match["x"]), match.type(match.output)
    padding, middle = match.root.attr("padding"), match.type(match.root.inputs[0])
    solid = [k for k, extent in enumerate(middle.shape) if extent != 1]
    own = [k for k, extent in enumerate(source.shape) if extent != 1]
    if [middle.shape[k] for k in solid] != [source.shape[k] for k in own] or source.quant != result.quant:
        return None
    if (result.quant and result.quant.axis is not None) or any(sum(p) for k, p in enumerate(padding) if k not in solid):
        return None
    wanted = [(0, 0)] * len(source.shape)
    for k, axis in zip(solid, own, strict=True):
        wanted[axis] = padding[k]
    shape = tuple(before + extent + after for extent, (before, after) in zip(source.shape, wanted, strict=True))
    kind = TensorType(shape, result.dtype, result.quant)
    padded = match.emit(
        "pad", (match["x"],), {**match.root.attrs, "padding": tuple(wanted)}, kind, f"{match.output}.moved"
    )
    match.emit("reshape", (padded,), {"shape": result.shape})
    return match.replacement()


# ---- Channels last: convert every convolution and pool to NHWC data and OHWI weights, then move transpositions until few remain.
#
# The network's interface does not change: inputs and outputs keep their shapes, so that a transposition may remain next to an
# input or output. A transposition that moves only axes of extent 1 becomes a reshape, which costs nothing.

CHANNELS_LAST: Mapping[int, Axes] = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""Order of axes that converts channels first to channels last, by rank."""
CHANNELS_FIRST: Mapping[int, Axes] = {3: (0, 2, 1), 4: (0, 3, 1, 2)}
"""Order of axes that converts channels last to channels first, by rank."""


def channels_last(graph: Graph, context: PassContext) -> Graph:
    """Convert operators of layout NCHW to NHWC if there are any, then move and merge transpositions.

    An image at the input can be transposed once at the start, or by each of its readers. Both graphs are built, and the
    one that transposes fewer elements is returned. If they transpose the same number, the first is returned, because
    the operator after the transposition is then fused with it."""
    if all(node.attrs.get("layout") != "NCHW" for node in graph.nodes):
        return rewrite(rewrite(graph, transpose_rules()), final_transpose_rules())
    images = _name_transposed_image_inputs(graph)
    candidates = [_convert_graph(graph, swapped) for swapped in ((images, {}) if images else ({},))]
    return min(candidates, key=_count_transposed_elements)


def _convert_graph(graph: Graph, transposed_inputs: Mapping[str, str]) -> Graph:
    """Return the graph converted to channels last, with its transpositions moved and merged.

    Inputs in ``transposed_inputs`` are transposed once at the start."""
    converted = rewrite(
        _LayoutConverter(graph, transposed_inputs).convert_graph(), (*transpose_rules(), *reshape_rules())
    )
    converted = rewrite(_restore_inputs(converted, graph, transposed_inputs), transpose_merging_rules())
    return rewrite(converted, (*final_transpose_rules(), *reshape_rules()))


def _count_transposed_elements(graph: Graph) -> int:
    """Return the number of elements that the transpositions of a graph move."""
    return sum(graph.types[node.outputs[0]].size for node in graph.nodes if node.op == "transpose")


def _name_transposed_image_inputs(graph: Graph) -> dict[str, str]:
    """Map the inputs that convolutions or pools read, directly or through elementwise operators and views, to new names
    for their NHWC forms."""
    feeding: set[str] = set()
    for node in reversed(graph.nodes):
        definition = registry.get(node.op)
        passes = definition.elementwise or definition.view or node.op == "pad"
        if node.attrs.get("layout") == "NCHW":
            feeding.add(node.inputs[0])
        elif passes and not feeding.isdisjoint(node.outputs):
            feeding.update(node.inputs)
    images: dict[str, str] = {}
    for name in graph.inputs:
        if name in feeding and len(graph.types[name].shape) in CHANNELS_LAST:
            images[name] = fresh_name({*graph.types, *images.values()}, f"{name}.nhwc")
    return images


class _LayoutConverter:
    """Converter of NCHW operators to NHWC operators, each between two transpositions.

    The inputs in ``swapped`` are temporarily replaced by NHWC inputs, so that the transpositions that follow them can
    cancel."""

    def __init__(self, graph: Graph, swapped: Mapping[str, str]) -> None:
        self.graph, self.swapped = graph, swapped
        self.nodes: list[Node] = []
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)

    def convert_graph(self) -> Graph:
        for name, image in self.swapped.items():
            kind = self.graph.types[name]
            self.types[image] = permute_type(kind, CHANNELS_LAST[len(kind.shape)])
            self.nodes.append(Node("transpose", (image,), (name,), {"axes": CHANNELS_FIRST[len(kind.shape)]}))
        for node in self.graph.nodes:
            if node.attrs.get("layout") == "NCHW":
                self.convert_operator(node)
            else:
                self.nodes.append(node)
        inputs = tuple(self.swapped.get(name, name) for name in self.graph.inputs)
        graph = replace(self.graph, inputs=inputs, types=self.types, consts=self.consts)
        return graph.with_nodes(self.nodes)

    def convert_operator(self, node: Node) -> None:
        """Convert an operator to NHWC, and put a transposition before and after it."""
        data, *rest = node.inputs
        output = node.outputs[0]
        if rest:
            rest[0] = self.convert_weight(rest[0], node)
        image = self.add_transpose(data, node, CHANNELS_LAST[4])
        result = new_value(self.types, f"{output}.nhwc", permute_type(self.graph.types[output], CHANNELS_LAST[4]))
        attrs = {**node.attrs, "layout": "NHWC"}
        self.nodes.append(replace(node, inputs=(image, *rest), outputs=(result,), attrs=attrs))
        self.nodes.append(Node("transpose", (result,), (output,), {"axes": CHANNELS_FIRST[4]}, node.loc))

    def add_transpose(self, value: str, node: Node, axes: Axes) -> str:
        """Add a transposition of a value; return the name of its result."""
        name = new_value(self.types, f"{value}.nhwc", permute_type(self.types[value], axes))
        self.nodes.append(Node("transpose", (value,), (name,), {"axes": axes}, node.loc))
        return name

    def convert_weight(self, value: str, node: Node) -> str:
        """Convert OIHW weights to OHWI; return their new name. Constant or dequantised constant weights are converted
        at compile time."""
        axes = CHANNELS_LAST[4]
        if value in self.consts:
            return self.convert_constant(value)
        producer = next((n for n in self.graph.nodes if value in n.outputs), None)
        if producer is None or producer.op != "dequantize" or producer.inputs[0] not in self.consts:
            return self.add_transpose(value, node, axes)
        axis = producer.attr("axis")
        attrs: dict[str, Attr] = {**producer.attrs, "axis": None if axis is None else axes.index(axis)}
        name = new_value(self.types, f"{value}.ohwi", permute_type(self.types[value], axes))
        self.nodes.append(
            replace(producer, inputs=(self.convert_constant(producer.inputs[0]),), outputs=(name,), attrs=attrs)
        )
        return name

    def convert_constant(self, value: str) -> str:
        """Add a copy of constant OIHW weights in the order OHWI; return its name."""
        axes = CHANNELS_LAST[4]
        name = new_value(self.types, f"{value}.ohwi", permute_type(self.types[value], axes))
        array: Array = np.ascontiguousarray(self.consts[value].transpose(axes))
        self.consts[name] = array
        return name


def _restore_inputs(graph: Graph, original: Graph, transposed_inputs: Mapping[str, str]) -> Graph:
    """Return the converted graph with its original inputs. Inputs in ``transposed_inputs`` are transposed first."""
    types = dict(graph.types)
    nodes: list[Node] = []
    for name, image in transposed_inputs.items():
        types[name] = original.types[name]
        axes = CHANNELS_LAST[len(types[name].shape)]
        nodes.append(Node("transpose", (name,), (image,), {"axes": axes}, graph.location_of_input(name)))
    nodes.extend(node for node in graph.nodes if transposed_inputs.keys().isdisjoint(node.outputs))
    return replace(graph, inputs=original.inputs, types=types).with_nodes(nodes)


LAYOUT_PASS = Pass("layout", channels_last, 0)


# ---- Move reshapes before operators that widen, so that the narrow tensor is stored and is widened when it is read.

_WIDENING = ("dequantize", "cast")


def narrow_views(graph: Graph, context: PassContext) -> Graph:
    """Rewrite ``reshape(widen(x))`` to ``widen(reshape(x))`` if only the reshape reads the widened x.

    Then the narrow tensor is stored, and the widening is fused with its reader."""
    return rewrite(
        graph, ((P.op("reshape", P.op(_WIDENING, P.any("x"), name="widened")), _move_widening_after_reshape),)
    )


def _move_widening_after_reshape(match: Match) -> Replacement | None:
    """Reshape the narrow operand first and widen the result."""
    widened = match.nodes["widened"]
    source, result = match.type(match["x"]), match.type(match.output)
    is_narrower = dtypes.nbytes(source.dtype) < dtypes.nbytes(result.dtype)
    if not is_narrower or widened.attrs.get("axis") is not None or match["x"] in match.scope.consts:
        return None
    view_type = TensorType(result.shape, source.dtype, source.quant)
    viewed = match.emit("reshape", (match["x"],), {"shape": result.shape}, view_type, f"{match['x']}.viewed")
    match.emit(widened.op, (viewed,), widened.attrs, loc=widened.loc)
    return match.replacement()


NARROW_VIEWS_PASS = Pass("narrow_views", narrow_views, 1)


# ---- Rules that merge a ``pad`` into the following convolution or pool, which then pads while it reads.

_POOLS = ("max_pool2d", "avg_pool2d")


def padding_rules() -> tuple[Rule, ...]:
    """Return rules that absorb ``pad`` before convolutions, max_pool2d and avg_pool2d."""
    return ((P.op(registry.layer_operators()), _absorb_pad_in_conv), (P.op(_POOLS), _absorb_pad_in_pool))


def _absorb_pad_in_conv(match: Match) -> Replacement | None:
    """Absorb a ``pad`` in the padding of a convolution.

    The padded value must be the real number zero of quantised data (their zero point), or agree with ``pad_value`` of
    plain integers."""
    pad, product = _find_absorbable_pad(match), registry.product_of(match.root, match.scope.types)
    if pad is None or product is None or product.transposed or not product.windows:
        return None
    kind, attrs, value = match.type(pad.inputs[0]), dict(match.root.attrs), pad.attr("value")
    if kind.quant is not None and match.type(match.output).quant is not None:
        if len(kind.quant.zero_point) != 1 or value != kind.quant.zero_point[0]:
            return None
    elif any(match.root.attr("padding")):
        if value != attrs.get("pad_value", 0):
            return None
    else:
        attrs["pad_value"] = value
    return _absorb_padding(match, pad, attrs)


def _absorb_pad_in_pool(match: Match) -> Replacement | None:
    """Absorb a ``pad`` in the padding of a pool: of the lowest number in a max pool, or of zeros that count in a float
    average pool."""
    pad = _find_absorbable_pad(match)
    if pad is None:
        return None
    kind, attrs, value = match.type(pad.inputs[0]), dict(match.root.attrs), pad.attr("value")
    if match.root.op == "max_pool2d":
        lowest = -inf if dtypes.is_float(kind.dtype) else dtypes.int_range(kind.dtype)[0]
        return _absorb_padding(match, pad, attrs) if value == lowest else None
    counted = attrs.get("count_include_pad") or not any(match.root.attr("padding"))
    if not dtypes.is_float(kind.dtype) or value != 0 or not counted:
        return None
    return _absorb_padding(match, pad, {**attrs, "count_include_pad": True})


def _find_absorbable_pad(match: Match) -> Node | None:
    """Return the ``pad`` node that computes the operator's data, if it pads only height and width and keeps the
    quantisation, else None."""
    pad = match.scope.producer(match.root.inputs[0])
    if pad is None or pad.op != "pad" or len(pad.attr("padding")) != 4:
        return None
    height, width = _spatial_axes(match)
    others = [pair for axis, pair in enumerate(pad.attr("padding")) if axis not in (height, width)]
    same = match.type(pad.inputs[0]).quant == match.type(pad.outputs[0]).quant
    return pad if same and not any(sum(pair) for pair in others) else None


def _spatial_axes(match: Match) -> tuple[int, int]:
    """Return the axes of height and width in the data of the matched operator."""
    return (2, 3) if match.root.attrs.get("layout") == "NCHW" else (1, 2)


def _absorb_padding(match: Match, pad: Node, attrs: dict[str, Attr]) -> Replacement | None:
    """Emit the operator on the unpadded data with its ``padding`` enlarged, if type inference accepts this."""
    (above, below), (before, after) = (pad.attr("padding")[axis] for axis in _spatial_axes(match))
    top, left, bottom, right = match.root.attr("padding")
    attrs["padding"] = (top + above, left + before, bottom + below, right + after)
    inputs = (pad.inputs[0], *match.root.inputs[1:])
    types = [match.type(name) for name in inputs if name]
    if not _does_type_inference_accept(match.root.op, attrs, types, match.type(match.output)):
        return None
    match.emit(match.root.op, inputs, attrs)
    return match.replacement()


def _does_type_inference_accept(
    op: str, attrs: dict[str, Attr], types: list[TensorType], result_type: TensorType
) -> bool:
    """Test whether type inference accepts the attributes and infers the shape of ``result_type``."""
    try:
        return registry.get(op).infer(attrs, types)[0].shape == result_type.shape
    except ModelError:
        return False
