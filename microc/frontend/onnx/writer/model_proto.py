# SPDX-License-Identifier: Apache-2.0
"""Write a graph as an ONNX model; a quantised graph in QDQ form.

Quantised values are read through DequantizeLinear, computed as floats, and written through QuantizeLinear, which
rounds half to even. ONNX Runtime fuses such groups to integer operators again, as microc does with rounding
``even``. The model declares the smallest opset that supports all its operators. State becomes inputs and outputs
(:func:`to_onnx`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, UnsupportedError
from microc.frontend.onnx.writer import rows_elementwise, rows_layers, rows_movement
from microc.frontend.onnx.writer.context import (
    COMPARED,
    NodeContext,
    OnnxGraphWriter,
    OpWriter,
    make_value_info,
)
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.arithmetic import quantisation_operands
from microc.ops.meaning import expand_composed_operator

OP_WRITERS: Mapping[str, OpWriter] = {
    **rows_layers.CONVOLUTION_WRITERS,
    **rows_elementwise.ELEMENTWISE_WRITERS,
    **rows_movement.IMAGES_WRITERS,
    **rows_layers.MATRIX_WRITERS,
    **rows_movement.MOVING_WRITERS,
    **rows_layers.NORMALISATION_WRITERS,
    **rows_layers.POOLING_WRITERS,
    **rows_layers.QUANTISED_WRITERS,
    **rows_elementwise.REDUCTION_WRITERS,
}
"""Functions that write one graph operator as ONNX, by the operator's name.

Loops and branches are in ``CONTROL_WRITERS``, since their functions also write subgraphs."""

PRODUCER = "microc"
STATE_KEY = "microc.state"
"""Key of the entry in the ONNX model's metadata that describes the network's state."""
MAX_LISTED_ERRORS = 40
_HINT = "save the network as .mcg, which holds any; or cut it there (--outputs) and export the part before"


def to_onnx(graph: Graph, version: str) -> bytes:
    """Return the bytes of the ONNX model of ``graph``; ``version`` is the producer's version.

    Inputs and outputs keep their names, dtypes and order. State (values kept between runs) becomes inputs after the
    graph's own. The next contents of the state become outputs after the graph's own. The metadata entry
    ``microc.state`` maps these inputs to their outputs and to the contents before the first run. Its JSON has the form

    ``{input: {"output": name, "initial": number or nested lists}}``.

    Raise UnsupportedError, which lists every operator that cannot be written as ONNX."""
    graph = expand_composed_operator(graph)
    builder = OnnxGraphWriter(graph)
    for name in (*graph.inputs, *graph.state):
        builder.record_onnx_name(name, builder.own_names[name])
    write_graph_nodes(builder)
    ends = write_graph_outputs(builder, graph.outputs)
    # The next contents of each state are an output of their own.
    updates = {
        state: builder.emit("Identity", [builder.get_onnx_name(value)], [builder.names.fresh(f"{state}_next")])
        for state, value in graph.updates.items()
    }
    return _serialize_valid_model(_build_model_proto(builder, ends, updates, version), builder.min_opset)


def write_graph_nodes(builder: OnnxGraphWriter) -> None:
    """Write all operators of a graph in order; raise one UnsupportedError for all that cannot be written."""
    refusals: list[UnsupportedError] = []
    for node in builder.graph.nodes:
        try:
            _write_operator(builder, node)
        except UnsupportedError as error:
            refusals.append(error)
            for name in node.outputs:
                builder.record_onnx_name(name, name)
    if refusals:
        raise _combine_unsupported_errors(builder.graph, refusals)


def _write_operator(builder: OnnxGraphWriter, node: Node) -> None:
    """Write one operator of a graph as ONNX; raise UnsupportedError if microc has no function for it."""
    if node.op in rows_elementwise.CONTROL_WRITERS:
        rows_elementwise.CONTROL_WRITERS[node.op](NodeContext(node, builder), write_subgraph)
        return
    context = NodeContext(node, builder, _is_quantised(builder.graph, node))
    if node.op not in OP_WRITERS:
        context.refuse(f"{node.op} cannot be written as ONNX", _HINT)
    context.require_supported_quantisation()
    OP_WRITERS[node.op](context)


def write_subgraph(
    graph: Graph, outer_writer: OnnxGraphWriter, onnx_input_names: Mapping[str, str]
) -> tuple[OnnxGraphWriter, tuple[str, ...]]:
    """Write a subgraph whose inputs have the ONNX names ``onnx_input_names``.

    Return the subgraph's writer and the ONNX names of its outputs."""
    builder = OnnxGraphWriter(graph, outer_writer)
    for value, name in onnx_input_names.items():
        builder.record_onnx_name(value, name)
    write_graph_nodes(builder)
    return builder, write_graph_outputs(builder, graph.outputs)


def _is_quantised(graph: Graph, node: Node) -> bool:
    """Test whether a node computes with reals that its integer operands represent, by the rule that legalisation uses.

    Its first two operands and its results (except those of a comparison) must be quantised. An operator that only
    moves elements can also move the integers as stored. Such a node counts only if all operands and results have the
    same quantisation and a dtype of at most 16 bits."""
    compared = node.op in COMPARED
    names = [name for name in (*quantisation_operands(node), *(() if compared else node.outputs)) if name]
    types = [graph.types[name] for name in names]
    if not all(tensor_type.is_quantised for tensor_type in types) or node.attrs.get("rounding") == "":
        return False
    definition = registry.get(node.op)
    same_quantisation = len({(type_.quant, type_.dtype) for type_ in types}) == 1 and dtypes.nbytes(types[0].dtype) <= 2
    return same_quantisation if definition.moves or node.op == "pad" else True


def write_graph_outputs(builder: OnnxGraphWriter, output_value_names: tuple[str, ...]) -> tuple[str, ...]:
    """Write the outputs of a graph; return their ONNX names.

    ONNX outputs must be distinct, and a node of this graph must compute each. Any other value is copied by an Identity
    node."""
    written = {name for node in builder.nodes for name in node.output}
    names: list[str] = []
    for value in output_value_names:
        name = builder.get_onnx_name(value)
        written.update(builder.nodes[-1].output if builder.nodes else ())
        if name not in written or name in names:
            is_taken = builder.own_names[value] in (*written, *builder.onnx_names.values())
            name = builder.emit(
                "Identity", [name], [builder.names.fresh(value) if is_taken else builder.own_names[value]]
            )
            written.add(name)
        names.append(name)
    return tuple(names)


def _combine_unsupported_errors(graph: Graph, errors: list[UnsupportedError]) -> UnsupportedError:
    """Return one UnsupportedError that lists the errors of all operators that cannot be written as ONNX."""
    if len(errors) == 1:
        return errors[0]
    lines = [f"{error.where}: {error.what}" for error in errors[:MAX_LISTED_ERRORS]]
    if len(errors) > MAX_LISTED_ERRORS:
        lines.append(f"and {len(errors) - MAX_LISTED_ERRORS} more")
    what = f"{len(errors)} operators cannot be written as ONNX:\n  " + "\n  ".join(lines)
    hints = dict.fromkeys(error.hint for error in errors)
    return UnsupportedError(what, where=graph.name, hint="; ".join(hints))


# ---------------------------------------------------------------- the model


def _build_model_proto(
    builder: OnnxGraphWriter, output_names: tuple[str, ...], state_outputs: Mapping[str, str], version: str
) -> Any:
    """Build the ModelProto of a graph whose nodes have been written.

    ``output_names``: ONNX names of the graph's outputs. ``state_outputs``: for each state input the name of the output
    with its next contents. ``version``: the producer's version."""
    from onnx import helper

    graph = builder.graph
    inputs = [make_value_info(builder.own_names[name], graph.types[name]) for name in (*graph.inputs, *graph.state)]
    outputs = [
        make_value_info(name, graph.types[value]) for name, value in zip(output_names, graph.outputs, strict=True)
    ]
    outputs += [make_value_info(name, graph.types[state]) for state, name in state_outputs.items()]
    onnx_graph = helper.make_graph(builder.nodes, graph.name, inputs, outputs, builder.initializers)
    model = helper.make_model(onnx_graph, producer_name=PRODUCER, producer_version=version)
    if state_outputs:
        description = {
            builder.own_names[state]: {"output": name, "initial": _convert_state_to_json_value(graph.state[state])}
            for state, name in state_outputs.items()
        }
        helper.set_model_props(model, {STATE_KEY: json.dumps(description)})
    return model


def _convert_state_to_json_value(state_contents: Array) -> Any:
    """Return the initial contents of a state as a JSON value: one number if all elements are equal, else nested
    lists."""
    same = state_contents.size > 0 and (state_contents == state_contents.flat[0]).all()
    return state_contents.flat[0].item() if same else state_contents.tolist()


def _serialize_valid_model(model_proto: Any, min_opset: int) -> bytes:
    """Return the bytes of an ONNX model, with inferred types of all values.

    The model's opset is the smallest, from ``min_opset`` on, under which ONNX's checker accepts the model."""
    from onnx import checker, defs, helper, shape_inference

    fault: Exception | None = None
    for opset in range(min_opset, defs.onnx_opset_version() + 1):
        del model_proto.opset_import[:]
        model_proto.opset_import.append(helper.make_opsetid("", opset))
        model_proto.ir_version = helper.find_min_ir_version_for(model_proto.opset_import)
        try:
            checker.check_model(model_proto)
            typed_model = shape_inference.infer_shapes(model_proto, check_type=True, strict_mode=True, data_prop=True)
        except (checker.ValidationError, shape_inference.InferenceError) as error:
            fault = error
        else:
            serialized: bytes = typed_model.SerializeToString(deterministic=True)
            return serialized
    raise InternalError(f"the ONNX model of {model_proto.graph.name} is not valid: {fault}")
