"""A graph of ours as an ONNX model; a quantised one in QDQ form.

Integers that stand for reals are read through DequantizeLinear, computed with as floats, and written through QuantizeLinear,
which rounds half to even; ONNX Runtime computes such groups in integers again, as we do under rounding ``even``. The version of
the operator set is the smallest whose operators suffice. State becomes inputs and outputs (:func:`to_onnx`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, UnsupportedError
from microc.frontend.onnx.writer import rows_elementwise, rows_layers, rows_movement
from microc.frontend.onnx.writer.context import COMPARED, Application, Builder, Row, quantised_type, value_info
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.arithmetic import numbers_of
from microc.ops.meaning import expanded

ROWS: Mapping[str, Row] = {
    **rows_layers.CONVOLUTION_ROWS,
    **rows_elementwise.ELEMENTWISE_ROWS,
    **rows_movement.IMAGES_ROWS,
    **rows_layers.MATRIX_ROWS,
    **rows_movement.MOVING_ROWS,
    **rows_layers.NORMALISATION_ROWS,
    **rows_layers.POOLING_ROWS,
    **rows_layers.QUANTISED_ROWS,
    **rows_elementwise.REDUCTION_ROWS,
}
"""What writes an operator, by our name of it. Those of control flow write graphs themselves: ``control.ROWS``."""

PRODUCER = "microc"
STATE = "microc.state"
"""The entry of the model's metadata that describes its state."""
_LISTED = 40
_HINT = "save the network as .mcg, which holds any; or cut it there (--outputs) and export the part before"


def to_onnx(graph: Graph, version: str) -> bytes:
    """The ONNX model of ``graph``; ``version`` is the producer's.

    Inputs and outputs keep their names, dtypes and order. State (what a network keeps from run to run) becomes inputs behind its
    own, and outputs behind its own, the contents for the next run; the metadata ``microc.state`` says as JSON which output goes
    into which input, and what a first run is given: ``{input: {"output": name, "initial": number or nested lists}}``.

    Raises UnsupportedError, which lists every operator that has no row here.
    """
    graph = expanded(graph)
    builder = Builder(graph)
    for name in (*graph.inputs, *graph.state):
        builder.bind(name, builder.own[name])
    write_nodes(builder)
    ends = finish(builder, graph.outputs)
    updates = {state: _update(builder, state, value) for state, value in graph.updates.items()}
    return _checked(_model(builder, ends, updates, version), builder.least)


def write_nodes(builder: Builder) -> None:
    """Write all operators of a graph in order; UnsupportedError that lists those that cannot be."""
    refusals: list[UnsupportedError] = []
    for node in builder.graph.nodes:
        try:
            _write(builder, node)
        except UnsupportedError as error:
            refusals.append(error)
            for name in node.outputs:
                builder.bind(name, name)
    if refusals:
        raise _listed(builder.graph, refusals)


def _write(builder: Builder, node: Node) -> None:
    if node.op in rows_elementwise.CONTROL_ROWS:
        rows_elementwise.CONTROL_ROWS[node.op](Application(node, builder), write_body)
        return
    application = Application(node, builder, _is_quantised(builder.graph, node))
    if node.op not in ROWS:
        application.refuse(f"{node.op} is no operator that microc writes as ONNX", _HINT)
    application.check_quantised()
    ROWS[node.op](application)


def write_body(graph: Graph, outer: Builder, bound: Mapping[str, str]) -> tuple[Builder, tuple[str, ...]]:
    """A graph inside an operator, whose inputs go by the names ``bound``; what was written, and the names of its outputs."""
    builder = Builder(graph, outer)
    for value, name in bound.items():
        builder.bind(value, name)
    write_nodes(builder)
    return builder, finish(builder, graph.outputs)


def _is_quantised(graph: Graph, node: Node) -> bool:
    """Whether a node computes with reals that integers stand for, as its legalisation sees it: its first two operands and its
    results tell. What only moves integers moves any, and is written for reals where both sides are quantised alike."""
    compared = node.op in COMPARED
    names = [name for name in (*numbers_of(node), *(() if compared else node.outputs)) if name]
    kinds = [graph.types[name] for name in names]
    if not all(map(quantised_type, kinds)) or node.attrs.get("rounding") == "":
        return False
    definition = registry.get(node.op)
    alike = len({(kind.quant, kind.dtype) for kind in kinds}) == 1 and dtypes.nbytes(kinds[0].dtype) <= 2
    return alike if definition.moves or node.op == "pad" else True


def finish(builder: Builder, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the outputs: each its own, and one that a node of this graph writes."""
    written = {name for node in builder.nodes for name in node.output}
    found: list[str] = []
    for value in outputs:
        name = builder.name(value)
        written.update(builder.nodes[-1].output if builder.nodes else ())
        if name not in written or name in found:
            taken = builder.own[value] in (*written, *builder.forms.values())
            name = builder.emit("Identity", [name], [builder.names.fresh(value) if taken else builder.own[value]])
            written.add(name)
        found.append(name)
    return tuple(found)


def _update(builder: Builder, state: str, value: str) -> str:
    """The output that holds the next contents of a state."""
    return builder.emit("Identity", [builder.name(value)], [builder.names.fresh(f"{state}_next")])


def _listed(graph: Graph, refusals: list[UnsupportedError]) -> UnsupportedError:
    """One error for all."""
    if len(refusals) == 1:
        return refusals[0]
    lines = [f"{error.where}: {error.what}" for error in refusals[:_LISTED]]
    if len(refusals) > _LISTED:
        lines.append(f"and {len(refusals) - _LISTED} more")
    what = f"{len(refusals)} operators cannot be written as ONNX:\n  " + "\n  ".join(lines)
    hints = dict.fromkeys(error.hint for error in refusals)
    return UnsupportedError(what, where=graph.name, hint="; ".join(hints))


# ---------------------------------------------------------------- the model


def _model(builder: Builder, ends: tuple[str, ...], updates: Mapping[str, str], version: str) -> Any:
    from onnx import helper

    graph = builder.graph
    inputs = [value_info(builder.own[name], graph.types[name]) for name in (*graph.inputs, *graph.state)]
    outputs = [value_info(name, graph.types[value]) for name, value in zip(ends, graph.outputs, strict=True)]
    outputs += [value_info(name, graph.types[state]) for state, name in updates.items()]
    made = helper.make_graph(builder.nodes, graph.name, inputs, outputs, builder.initializers)
    model = helper.make_model(made, producer_name=PRODUCER, producer_version=version)
    if updates:
        described = {
            builder.own[state]: {"output": name, "initial": _initial(graph.state[state])}
            for state, name in updates.items()
        }
        helper.set_model_props(model, {STATE: json.dumps(described)})
    return model


def _initial(contents: Array) -> Any:
    """A number where all elements are the same, else nested lists."""
    same = contents.size > 0 and (contents == contents.flat[0]).all()
    return contents.flat[0].item() if same else contents.tolist()


def _checked(model: Any, least: int) -> bytes:
    """The bytes of a model, with the types of all values, of the first version of the operator set, from ``least`` on, under
    which it is valid."""
    from onnx import checker, defs, helper, shape_inference

    fault: Exception | None = None
    for opset in range(least, defs.onnx_opset_version() + 1):
        del model.opset_import[:]
        model.opset_import.append(helper.make_opsetid("", opset))
        model.ir_version = helper.find_min_ir_version_for(model.opset_import)
        try:
            checker.check_model(model)
            typed = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except (checker.ValidationError, shape_inference.InferenceError) as error:
            fault = error
        else:
            found: bytes = typed.SerializeToString(deterministic=True)
            return found
    raise InternalError(f"the ONNX model of {model.graph.name} is not valid: {fault}")
