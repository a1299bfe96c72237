# SPDX-License-Identifier: Apache-2.0
"""Legalisation of quantised operators to core operators with explicit integer parameters, and the choice of their
rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import InternalError, UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops import registry
from microc.ops.arithmetic import Rewrite, emit_activation
from microc.ops.attributes import Rounding, Ties
from microc.ops.elementwise.elementwise import fit_interpolation_table
from microc.ops.elementwise.scalar_functions import UNARY_BY_NAME
from microc.ops.elementwise.tables import TableParameters, compute_lookup_table
from microc.transform.pass_context import Pass, PassContext

# ---- Rounding of requantisation. TFLite's format does not define it, so that it differs between runtimes:
#
# ``tflm``: the high half of a product and its shift are rounded one after the other, as in TFLite Micro and CMSIS-NN. This is the
# default of the readers. ``litert``: as in LiteRT's kernels. Dense layers round once (except negative ties, which are rounded
# down), quotients are scaled by a float, relu and leaky_relu of int16 by a ratio in float32, the tables of an int16 softmax are
# computed in float64, and floats are quantised to int16 by the reciprocal of their scale. ``single``: all operators that scale by
# fixed-point multipliers round once, as in builds with TFLITE_SINGLE_ROUNDING and in XNNPACK's layers with per-channel weight
# scales.

_OF_LITERT = frozenset(("dense", "div"))
"""Operators that LiteRT computes differently from TFLite Micro, for all dtypes."""
_INT16_OF_LITERT = frozenset(("clip", "leaky_relu", "relu", "softmax"))
"""Operators that LiteRT computes differently from TFLite Micro for int16 only: it divides the scales in float32, and
computes the tables of softmax in float64. That changes one int16 result in thousands."""


def set_rounding_attributes(graph: Graph, context: PassContext) -> Graph:
    """Set the attribute ``rounding`` of nodes from TFLite files as the option ``rounding`` requests."""
    wanted = context.options.get("rounding", "tflm")
    if wanted == "tflm":
        return graph

    def set_rounding(node: Node) -> Node:
        special = node.op in _OF_LITERT or (node.op in _INT16_OF_LITERT and _has_int16_data_and_result(graph, node))
        changes = node.attrs.get("rounding") == Rounding.DOUBLE and (wanted == Rounding.SINGLE or special)
        return replace(node, attrs={**node.attrs, "rounding": wanted}) if changes else node

    rewritten = graph.with_nodes([set_rounding(node) for node in graph.nodes])
    return _quantize_by_reciprocal_of_scale(rewritten) if wanted == Rounding.LITERT else rewritten


def _has_int16_data_and_result(graph: Graph, node: Node) -> bool:
    """Test whether data and result of a node are quantised int16 values."""
    return all(
        graph.types[name].dtype == "int16" and graph.types[name].quant for name in (node.inputs[0], node.outputs[0])
    )


def _quantize_by_reciprocal_of_scale(graph: Graph) -> Graph:
    """Quantise floats to int16 by multiplication with the reciprocal of their scale, ties to even, as LiteRT's
    optimised kernel does.

    LiteRT's reference kernel divides by the scale, with ties away from zero."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        quantizes_floats = node.op == "quantize" and graph.types[node.inputs[0]].dtype == "float32"
        if (
            not quantizes_floats
            or node.attr("rounding") != Ties.AWAY
            or node.attr("out_dtype") != "int16"
            or len(node.attr("scale")) > 1
        ):
            nodes.append(node)
            continue
        factor, steps = (fresh_name(types, f"{node.outputs[0]}.{stem}") for stem in ("reciprocal", "steps"))
        consts[factor] = np.array([np.float32(1) / np.float32(node.attr("scale")[0])], np.float32)
        types[factor], types[steps] = (
            TensorType((1,), "float32"),
            replace(types[node.outputs[0]], dtype="float32", quant=None),
        )
        plain_attrs: dict[str, Attr] = {"activation": "", "rounding": Rounding.NONE}
        nodes.append(replace(node, op="mul", inputs=(node.inputs[0], factor), outputs=(steps,), attrs=plain_attrs))
        nodes.append(replace(node, inputs=(steps,), attrs={**node.attrs, "scale": (1.0,), "rounding": Ties.EVEN}))
    return graph.with_nodes(nodes, types=types, consts=consts)


def convert_requantisation_to_fixed_point(graph: Graph) -> Graph:
    """Let operators with ONNX's float requantisation use fixed-point multipliers that round once.

    Results differ only if they are near a tie, about one in millions.

    Operators with zero points beyond the range of 8-bit dtypes are left unchanged. So are ``quantize`` of 8-bit data,
    which is a table, and 8-bit softmax, which already computes in integers for any scale."""

    def requantise_in_fixed_point(node: Node) -> Node:
        """Return a node that requantises in fixed point, or the node itself if it is left unchanged."""
        if regions := registry.get(node.op).regions:
            return replace(
                node,
                attrs={
                    **node.attrs,
                    **{name: convert_requantisation_to_fixed_point(node.attr(name)) for name in regions},
                },
            )
        if node.attrs.get("rounding") != Rounding.EVEN or node.op == "dequantize":
            return node
        kinds = [graph.types[name] for name in (*node.inputs[:2], *node.outputs) if name]
        is_quantised = all(kind.quant is not None for kind in (kinds[0], kinds[-1]))
        has_large_zero_point = any(
            abs(zero) > 255 for kind in kinds if kind.quant is not None for zero in kind.quant.zero_point
        )
        by_table = node.op in ("quantize", "softmax") and kinds[0].dtype != "int16"
        if not is_quantised or has_large_zero_point or by_table:
            return node
        return replace(node, attrs={**node.attrs, "rounding": Rounding.SINGLE})

    return graph.with_nodes(requantise_in_fixed_point(node) for node in graph.nodes)


_INT16_BY_MULTIPLIER = frozenset(("abs", "clip", "leaky_relu", "quantize", "relu"))
"""Functions that scale int16 by fixed-point multipliers, without a table."""


def interpolate_int16_functions(graph: Graph) -> Graph:
    """Replace functions of one int16 value by an interpolation between 513 points, where each of the 65536 results
    differs by at most one from ONNX's result, which is computed for every input."""
    types, consts, nodes = dict(graph.types), dict(graph.consts), list[Node]()
    for node in graph.nodes:
        if regions := registry.get(node.op).regions:
            bodies = {name: interpolate_int16_functions(node.attr(name)) for name in regions}
            node = replace(node, attrs={**node.attrs, **bodies})
        table = _fit_table_of_function(node, graph)
        if table is not None:
            name = fresh_name(types, f"{node.outputs[0]}.table")
            types[name], consts[name] = TensorType(table.shape, table.dtype.name), table
            node = replace(node, op="lookup16", inputs=(node.inputs[0], name), attrs={})
        nodes.append(node)
    return graph.with_nodes(nodes, types=types, consts=consts)


def _fit_table_of_function(node: Node, graph: Graph) -> Array | None:
    """Return the points of a function from int16 to int16 with ONNX's rounding; None for other nodes, or if no table is
    near enough."""
    if node.op in _INT16_BY_MULTIPLIER or node.op not in UNARY_BY_NAME or node.attrs.get("rounding") != Rounding.EVEN:
        return None
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    if source.dtype != "int16" or result.dtype != "int16" or source.quant is None or result.quant is None:
        return None
    parameters = TableParameters(
        node.op, node.attrs, source.quant, result.quant, source.dtype, result.dtype, Rounding.EVEN
    )
    return fit_interpolation_table(compute_lookup_table(parameters))


ROUNDING_PASS = Pass("rounding", set_rounding_attributes, 0, around=True)


# ---- Decomposition of float SVDF into layers, each of which has an integer form.
#
# A dense layer computes a feature of each filter. The last M features, the state (B, F * M), become an image (B, M, 1, F): each
# time step appends a row and drops the first row. The weighted sums over time and over the filters of a unit are a convolution
# whose kernel is as high as the image and whose groups are the units.


def decompose_svdf(graph: Graph, context: PassContext) -> Graph:
    """Decompose SVDF nodes, and convert their state to another layout, if only the node reads and writes its state."""
    nodes, types, consts = list[Node](), dict(graph.types), dict(graph.consts)
    state, updates = dict(graph.state), dict(graph.updates)
    for node in graph.nodes:
        if not _can_decompose_svdf(node, graph):
            nodes.append(node)
            continue
        step = _SvdfDecomposer(node, graph)
        step.emit_layers()
        nodes += step.rewrite.nodes
        types |= step.rewrite.types
        consts |= step.rewrite.consts
        old = node.inputs[4]
        del updates[old], types[old]
        start = step.convert_initial_state(state.pop(old))
        if step.memory > 1:
            state[step.image], updates[step.image] = start, step.line
    return graph.with_nodes(nodes, types=types, consts=consts, state=state, updates=updates)


def _can_decompose_svdf(node: Node, graph: Graph) -> bool:
    """Test whether a node is a float SVDF with constant weights whose state no other node reads or writes."""
    if node.op != "svdf" or graph.types[node.inputs[0]].dtype != "float32":
        return False
    state, new = node.inputs[4], node.outputs[1]
    readers = [reader for reader in graph.nodes if {state, new} & set(reader.inputs)]
    updates_state = graph.updates.get(state) == new and list(graph.updates.values()).count(new) == 1
    is_output = {state, new} & set(graph.outputs)
    return (
        updates_state and readers == [node] and not is_output and all(name in graph.consts for name in node.inputs[1:4])
    )


class _SvdfDecomposer:
    """Builder of the layers that replace one SVDF node.

    ``image``: name of the node's state in its new layout, which is not used if M = 1. ``line``: name of the next
    state."""

    def __init__(self, node: Node, graph: Graph) -> None:
        self.node, self.rewrite = node, Rewrite(node, graph)
        self.time = graph.consts[node.inputs[2]]
        self.filters, self.memory = self.time.shape
        self.batch, self.rank = graph.types[node.inputs[0]].shape[0], int(node.attr("rank"))
        self.image = self.rewrite.add_value("past", self.state_image_shape(self.memory), "float32")
        self.line = ""

    def state_image_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape (batch, rows, 1, filters) of an image that contains the last ``rows`` features of all
        filters."""
        return (self.batch, rows, 1, self.filters)

    def convert_initial_state(self, initial_state: Array) -> Array:
        """Return the initial state in the new layout."""
        frames = initial_state.reshape(self.batch, self.filters, self.memory).transpose(0, 2, 1)
        return np.ascontiguousarray(frames).reshape(self.state_image_shape(self.memory))

    def emit_layers(self) -> None:
        """Emit the layers: dense features, the image with the new features as a row, a grouped convolution over time,
        and the activation."""
        data, weights, _, bias, _ = self.node.inputs
        units = self.filters // self.rank
        features = self.emit_layer("dense", (data, weights), (self.batch, self.filters))
        frame = self.emit_layer("reshape", (features,), self.state_image_shape(1), {"shape": self.state_image_shape(1)})
        self.line = self.append_row_to_image(frame) if self.memory > 1 else frame
        taps = np.ascontiguousarray(self.time.reshape(units, self.rank, self.memory).transpose(0, 2, 1))
        kernel = self.rewrite.add_constant("time", taps.reshape(units, self.memory, 1, self.rank))
        attrs: Mapping[str, Attr] = {"padding": (0, 0, 0, 0), "groups": units, "layout": "NHWC"}
        sums = self.emit_layer("conv2d", (self.line, kernel, bias), (self.batch, 1, 1, units), attrs)
        activation = str(self.node.attr("activation"))
        if activation:
            linear, sums = sums, self.rewrite.add_value("activated", (self.batch, 1, 1, units), "float32")
            emit_activation(self.rewrite, activation, linear, sums)
        self.rewrite.emit("reshape", (sums,), self.node.outputs[0], {"shape": (self.batch, units)})

    def append_row_to_image(self, row_name: str) -> str:
        """Append the row ``row_name`` to the image and drop the oldest row; return the result."""
        cut: Mapping[str, Attr] = {
            "begin": (0, 1, 0, 0),
            "end": self.state_image_shape(self.memory),
            "strides": (1, 1, 1, 1),
        }
        past = self.emit_layer("slice", (self.image,), self.state_image_shape(self.memory - 1), cut)
        return self.emit_layer("concat", (past, row_name), self.state_image_shape(self.memory), {"axis": 1})

    def emit_layer(
        self, op: str, inputs: Sequence[str], shape: Sequence[int], attrs: Mapping[str, Any] | None = None
    ) -> str:
        """Emit an operator whose result is float32 of ``shape``; return the name of the result."""
        every = {**registry.get(op).defaults, **(attrs or {})}
        return self.rewrite.emit(op, inputs, self.rewrite.add_value(op, shape, "float32"), every)


SVDF_LAYERS_PASS = Pass("svdf_layers", decompose_svdf, 0)


# ---- Legalisation: quantised operators, and operators with a fused activation, become core operators with explicit integer
# parameters.

ROUNDS = 8
"""Largest number of rounds of legalisation. Several may be needed, because the operators that replace one may have to
be legalised themselves (a mean becomes a sum and a requantize)."""


def legalize(graph: Graph, context: PassContext) -> Graph:
    """Rewrite operators that have a legalisation until none is left.

    With option ``requantize=fixed``, ONNX's float requantisation is converted to fixed point first. Raise
    UnsupportedError that lists all operators without a core form."""
    if context.options.get("requantize") == "fixed":
        graph = convert_requantisation_to_fixed_point(interpolate_int16_functions(graph))
    for _ in range(ROUNDS):
        rewritten = _legalize_each_operator_once(graph)
        if rewritten is graph:
            return graph
        graph = rewritten
    raise InternalError(f"legalization of graph {graph.name} did not end after {ROUNDS} rounds of rewriting")


def _legalize_each_operator_once(graph: Graph) -> Graph:
    """Legalise every operator of the graph once; return the same object if nothing changes."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    refused: list[UnsupportedError] = []
    changed = False
    for node in graph.nodes:
        rewrite = registry.get(node.op).legalize
        try:
            legalized = rewrite(node, replace(graph, types=types, consts=consts)) if rewrite is not None else None
            if legalized is None and rewrite is not None:
                _require_inferred_dtypes(node, types)
        except UnsupportedError as error:
            refused.append(error if error.where else _add_node_location_to_error(error, node))
            continue
        if legalized is None:
            nodes.append(node)
            continue
        changed = True
        new_nodes, new_types, new_consts = legalized
        nodes.extend(new_nodes)
        types.update(new_types)
        consts.update(new_consts)
    if refused:
        raise _combine_errors(refused)
    return replace(graph, types=types, consts=consts).with_nodes(nodes) if changed else graph


def _require_inferred_dtypes(node: Node, types: Mapping[str, TensorType]) -> None:
    """Raise UnsupportedError unless the results of a node that is not rewritten have the inferred dtypes.

    The verifier accepts other dtypes of quantised results, because legalisation requantises to them."""
    inferred = registry.infer(node.op, node.attrs, [types[name] for name in node.inputs if name])
    for name, type_ in zip(node.outputs, inferred, strict=True):
        if name and types[name].dtype != type_.dtype:
            raise UnsupportedError(
                f"the operands are not quantised, but the result is; got {types[name].dtype}, expected {type_.dtype}",
                hint="quantise the operands too, or apply the operator to floats and quantise its result",
            )


def _add_node_location_to_error(error: UnsupportedError, node: Node) -> UnsupportedError:
    """Return the error with the node's name and location, which the functions that raise it do not know."""
    return UnsupportedError(
        f"{node.op} of {', '.join(map(repr, node.outputs))}: {error.what}", where=str(node.loc), hint=error.hint
    )


def _combine_errors(errors: list[UnsupportedError]) -> UnsupportedError:
    """Return one error that lists all of ``errors``."""
    if len(errors) == 1:
        return errors[0]
    lines = [f"  {e.where}: {e.what}" + (f" (help: {e.hint})" if e.hint else "") for e in errors]
    return UnsupportedError(
        "\n".join((f"{len(errors)} operators are not supported:", *lines)),
        hint="replace them in the model, or write them as custom operators (docs/operators.md lists what is supported)",
    )


LEGALIZE_PASS = Pass("legalize", legalize, 0)
