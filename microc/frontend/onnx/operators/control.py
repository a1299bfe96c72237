# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX If, Loop and Scan, and of the subgraphs in their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.onnx.builder import OnnxGraphBuilder
from microc.frontend.onnx.context import ConverterTable, OpContext
from microc.frontend.onnx.file import OnnxFile, decode_subgraph_proto
from microc.frontend.onnx.operators.shape import concat_along_axis
from microc.frontend.signature import Ints, Subgraph, Value
from microc.graph.ir import Attr, Graph, TensorType
from microc.ops.control import UNBOUNDED

CONVERTERS = ConverterTable()

# ---- Subgraphs: inlined in place of their operator, or built as graphs of their own whose captured values become inputs.
#
# A name in a subgraph may shadow an outer one, so all its own values are renamed first.

_GRAPH = 5


def decode_subgraph(context: OpContext, graph_proto: Subgraph) -> OnnxFile:
    """Decode the subgraph in an attribute, with all of its values renamed to unique names."""
    proto = type(graph_proto)()
    proto.CopyFrom(graph_proto)
    defined = [value.name for value in (*proto.input, *proto.initializer)]
    defined += [output for node in proto.node for output in node.output if output]
    unique = context.builder.make_unique_name
    _rename_values(proto, {old: unique(old) for old in dict.fromkeys(defined)})
    return decode_subgraph_proto(proto, context.builder.file, context.where)


def _rename_values(graph_proto: Any, new_names: Mapping[str, str]) -> None:
    """Rename values of a GraphProto in place, also in the subgraphs of its nodes."""
    for value in (*graph_proto.input, *graph_proto.output, *graph_proto.initializer, *graph_proto.value_info):
        value.name = new_names.get(value.name, value.name)
    for node in graph_proto.node:
        for words in (node.input, node.output):
            words[:] = [new_names.get(word, word) for word in words]
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                _rename_values(attribute.g, new_names)


def inline_subgraph(context: OpContext, body: OnnxFile, operand_names: Sequence[str]) -> list[str]:
    """Inline a subgraph: convert its operators into the graph of the operator that has it as an attribute.

    ``operand_names``: names of the values that become the subgraph's inputs. Return the names of the subgraph's
    outputs."""
    builder = context.builder
    if body.unsupported_initializers:
        context.refuse(
            "initialiser {!r} of the subgraph: dtype {} is not supported".format(
                *next(iter(body.unsupported_initializers.items()))
            ),
            "convert it to a dtype that docs/operators.md lists",
        )
    builder.alias.update((value.name, name) for value, name in zip(body.inputs, operand_names, strict=True))
    for name, data in body.initializers.items():
        if name not in builder.alias:
            builder.define_constant(name, data)
    builder.translate(builder, body.operators)
    return [builder.resolve_value(name, context.where) for name in body.outputs]


class SubgraphBuilder:
    """Builder of the graph of a subgraph, such as the body of a Loop.

    ``context``: context that writes nodes to this graph. ``inputs``, ``outputs``: names of the graph's inputs and
    outputs so far. Outputs are distinct, and each is computed by a node of the graph."""

    def __init__(self, context: OpContext, body: OnnxFile) -> None:
        outer = context.builder
        self.body = body
        self.builder = OnnxGraphBuilder(body, outer.translate, outer)
        self.context = OpContext(context.operator, self.builder, context.loc)
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def add_input(self, input_name: str, input_type: TensorType) -> str:
        """Add an input to the graph of the body; return its name."""
        self.builder.define_value(input_name, TensorType(input_type.shape, input_type.dtype), self.context.where)
        self.inputs.append(input_name)
        return input_name

    def convert_operators(self) -> list[str]:
        """Convert all operators of the body; return the names of the body's outputs in the graph."""
        self.builder.translate(self.builder, self.body.operators)
        return [self.builder.resolve_value(name, self.context.where) for name in self.body.outputs]

    def add_output(self, value_name: str) -> TensorType:
        """Add an output to the graph of the body; return its type.

        A value that no node computes, or that is an output already, is copied by a ``reshape`` node."""
        is_computed = any(value_name in node.outputs for node in self.builder.nodes)
        if not is_computed or value_name in self.outputs:
            value_name = self.context.emit("reshape", (value_name,), {"shape": self.builder.types[value_name].shape})
        self.outputs.append(str(value_name))
        return self.builder.types[value_name]

    def finish_graph(self, captured_names: Sequence[str]) -> Graph:
        """Return the finished graph; its last inputs are ``captured_names``, values of the enclosing graph."""
        builder = self.builder
        for name in captured_names:
            builder.capture_outer_value(name)
        inputs = (*self.inputs, *captured_names)
        plain = {
            name: TensorType(builder.types[name].shape, builder.types[name].dtype) if name in inputs else type_
            for name, type_ in builder.types.items()
        }
        name = self.body.graph_name or self.context.operator.op_type.lower()
        return Graph(name, inputs, tuple(self.outputs), (), plain, builder.consts).with_nodes(builder.nodes)


def reshape_to_scalar(context: OpContext, value_name: str) -> Value:
    """Reshape a value of one element to shape (); return the result."""
    value = context.look_up(value_name)
    if value.size != 1:
        context.broken(f"{value_name!r}: got shape {value.shape}, expected one element")
    return context.reshape(value, ())


def emit_logical_and(context: OpContext, condition_names: Sequence[str]) -> str:
    """Emit the logical AND of bool scalars; return the result's name."""
    first, *rest = condition_names
    for other in rest:
        first = context.emit("logical_and", (first, other))
    return first


def get_constant_element(context: OpContext, value: Value | None) -> np.generic | None:
    """Return the only element of a constant; None if the value is absent or not constant.

    Raise ModelError if the constant has several elements."""
    if value is None or value.constant is None:
        return None
    if value.size != 1:
        context.broken(f"{str(value)!r}: got shape {value.shape}, expected one element")
    number: np.generic = value.constant.reshape(-1)[0]
    return number


# ---- If and Loop become ``branch`` and ``loop``, or are inlined if constants decide their conditions.
#
# A Loop that stacks scan outputs needs a bound of its iterations: a constant, or the declared extent of what it stacks.
# Without scan outputs it runs while its condition holds.

ITERATION = TensorType((), "int32")


@CONVERTERS.register("If", dtypes=())
def convert_if(context: OpContext, cond: Value, *, then_branch: Subgraph, else_branch: Subgraph) -> None:
    """Convert If to a ``branch`` with both branches as graphs.

    If the condition is constant, the branch that it selects is inlined instead."""
    condition_value = get_constant_element(context, cond)
    if condition_value is not None:
        body = decode_subgraph(context, then_branch if condition_value else else_branch)
        results = inline_subgraph(context, body, ())
        if len(results) != len(context.operator.outputs):
            context.broken(f"the branch has {len(results)} outputs, expected {len(context.operator.outputs)}")
        for position, value in enumerate(results):
            context.result_alias(value, position)
        return
    sides = [SubgraphBuilder(context, decode_subgraph(context, branch)) for branch in (then_branch, else_branch)]
    kinds = [[side.add_output(value) for value in side.convert_operators()] for side in sides]
    if [(k.shape, k.dtype) for k in kinds[0]] != [(k.shape, k.dtype) for k in kinds[1]]:
        types = [", ".join(f"{kind.dtype} {kind.shape}" for kind in side) for side in kinds]
        what = f"the branches have outputs of different types: then {types[0]}; else {types[1]}"
        hint = "give both the same shapes and dtypes, or bind the input that decides: --input-value NAME=VALUE"
        context.refuse(what, hint)
    captured = list(dict.fromkeys(name for side in sides for name in side.builder.captured))
    graphs = {name: side.finish_graph(captured) for name, side in zip(("then", "otherwise"), sides, strict=True)}
    context.write_node_with_outputs("branch", (cond, *captured), graphs, _complete_output_names(context, len(kinds[0])))


def _complete_output_names(context: OpContext, output_count: int) -> list[str]:
    """Return the names of the operator's first ``output_count`` outputs, with new names for absent outputs."""
    if len(context.operator.outputs) > output_count:
        context.broken(f"got {len(context.operator.outputs)} outputs, expected at most {output_count}")
    return [context.output(k) or context.builder.make_unique_name("unused") for k in range(output_count)]


# ---------------------------------------------------------------- Loop


@CONVERTERS.register("Loop", dtypes=())
def convert_loop(
    context: OpContext, trip_count: Value | None, cond: Value | None, *initial_values: Value, body: Subgraph
) -> None:
    """Convert Loop, which runs up to a trip count and while a condition holds, to a ``loop``.

    The body is inlined if it is known to run exactly once, and omitted if it is known never to run."""
    max_iterations, start = get_constant_element(context, trip_count), get_constant_element(context, cond)
    decoded, carried = decode_subgraph(context, body), len(initial_values)
    if len(decoded.inputs) != 2 + carried or not 1 + carried <= len(decoded.outputs):
        expected = f"{2 + carried} inputs and at least {1 + carried} outputs"
        got = f"{len(decoded.inputs)} inputs and {len(decoded.outputs)} outputs"
        context.broken(f"body: got {got}, expected {expected}")
    stacks = len(decoded.outputs) > 1 + carried
    if (start is not None and not start) or (max_iterations is not None and int(max_iterations) <= 0):
        if stacks:
            context.refuse(
                "scan outputs of 0 iterations have no elements, expected at least one iteration", "remove the loop"
            )
        for position, value in enumerate(initial_values):
            context.result_alias(value, position)
        return
    if max_iterations is not None and int(max_iterations) == 1 and (start is not None or cond is None):
        _inline_single_iteration(context, decoded, initial_values)
        return
    emitter = _LoopEmitter(
        context,
        SubgraphBuilder(context, decoded),
        trip_count if trip_count is not None and max_iterations is None else "",
        initial_values,
    )
    emitter.emit_loop(
        cond if cond is not None and start is None else "",
        _get_iteration_bound(context, max_iterations, stacks, carried),
    )


def _inline_single_iteration(context: OpContext, body: OnnxFile, initial_value_names: Sequence[str]) -> None:
    """Inline the body of a Loop that runs exactly once.

    ``initial_value_names``: names of the carried values before the loop."""
    number = context.new_constant("iteration", np.array(0, np.int64))
    going = context.new_constant("going", np.array(True))
    results = inline_subgraph(context, body, (number, going, *initial_value_names))[1:]
    for position, value in enumerate(results):
        if position < len(initial_value_names):
            context.result_alias(value, position)
        elif context.output(position):
            context.result_reshape(value, (1, *context.type(value).shape), position)


def _get_iteration_bound(
    context: OpContext, constant_trip_count: Any, has_scan_outputs: bool, carried_value_count: int
) -> int:
    """Return the maximum number of iterations of a Loop; UNBOUNDED if only the condition ends it.

    It is the minimum of the constant trip count and of the declared first extents of scan outputs.
    ``constant_trip_count``: None if the trip count is computed at run time or absent. Raise UnsupportedError if
    there are scan outputs but no bound."""
    file, bounds = context.builder.file, [] if constant_trip_count is None else [int(constant_trip_count)]
    stacked = [name for name in context.operator.outputs[carried_value_count:] if name]
    for operator in file.operators:  # exporters declare what is returned, and cast before
        if operator.op_type in ("Cast", "Identity") and operator.inputs[:1] and operator.inputs[0] in stacked:
            stacked += operator.outputs
    for name in stacked:
        bounds += [extent for extent in file.declared_shapes.get(name, ())[:1] if isinstance(extent, int)]
    bound = min(bounds, default=UNBOUNDED)
    if has_scan_outputs and bound >= UNBOUNDED:
        context.refuse(
            "the maximum number of iterations is unknown, expected a bound because the loop has scan outputs",
            "declare the shape of the scan outputs, or give the loop a constant trip count",
        )
    return min(bound, UNBOUNDED)


@frozen
class _LoopEmitter:
    """Emitter of the ``loop`` node for an ONNX Loop.

    ``trip_count_name``: name of the trip count if it is computed at run time, else empty. ``initial_value_names``:
    names of the carried values before the loop."""

    context: OpContext
    subgraph_builder: SubgraphBuilder
    trip_count_name: str
    initial_value_names: Sequence[str]

    def emit_loop(self, start_condition: str, max_iterations: int) -> None:
        """Emit the ``loop`` node with the graph of its body.

        ``start_condition``: name of the condition before the loop if it is computed at run time, else empty. Carried
        values that the body returns unchanged become plain inputs, which the loop does not copy in each iteration. If a
        condition can end the loop (attribute ``guarded``), the condition is the first carried value."""
        context, inside = self.context, self.subgraph_builder
        builder, body = inside.builder, inside.body
        iteration = inside.add_input(builder.make_unique_name("iteration"), ITERATION)
        going = builder.make_unique_name("going")
        number = inside.context.write_node("cast", (iteration,), {"dtype": "int64"}, body.inputs[0].name)
        builder.alias[body.inputs[1].name] = builder.define_constant(builder.make_unique_name("true"), np.array(True))
        names = [value.name for value in body.inputs[2:]]
        for name, value in zip(names, self.initial_value_names, strict=True):
            builder.define_value(name, context.type(value), context.where)
        again, *results_of_body = inside.convert_operators()
        fixed = [k for k, name in enumerate(names) if results_of_body[k] == name]
        moving = [k for k in range(len(names)) if k not in fixed]
        continues = self.emit_next_condition(again, number)
        guarded = bool(continues or start_condition or self.trip_count_name)
        if max_iterations == UNBOUNDED and not guarded:
            context.broken("the loop never ends: it has no trip count, and its condition is always true")
        if guarded:
            inside.add_input(going, TensorType((), "bool"))
            inside.add_output(continues or builder.define_constant(builder.make_unique_name("true"), np.array(True)))
        inside.inputs += [names[k] for k in (*moving, *fixed)]
        for k in moving:
            kind, wanted = inside.add_output(results_of_body[k]), context.type(self.initial_value_names[k])
            if (kind.shape, kind.dtype) != (wanted.shape, wanted.dtype):
                changed_types = f"{wanted.dtype} {wanted.shape} to {kind.dtype} {kind.shape}"
                what = f"a carried value changes from {changed_types}, expected one type"
                context.refuse(what, "keep the shape and dtype of each carried value")
        for value in results_of_body[len(names) :]:
            inside.add_output(value)
        initial_condition = [self.emit_first_condition(start_condition)] if guarded else []
        inputs = [*initial_condition, *(self.initial_value_names[k] for k in (*moving, *fixed)), *builder.captured]
        carried = len(initial_condition) + len(moving)
        attrs: dict[str, Attr] = {"count": max_iterations, "carried": carried, "guarded": guarded}
        outputs = _complete_output_names(context, len(results_of_body))
        results = (
            [builder.make_unique_name("ended") for _ in initial_condition]
            + [outputs[k] for k in moving]
            + outputs[len(names) :]
        )
        context.write_node_with_outputs(
            "loop", inputs, {**attrs, "body": inside.finish_graph(builder.captured)}, results
        )
        for k in fixed:
            context.result_alias(self.initial_value_names[k], k)

    def emit_next_condition(self, body_condition: str, iteration_name: str) -> str:
        """Emit, in the body, the condition for another iteration; return its name.

        The condition of the body must hold, and the number of the next iteration must be below the trip count. The
        name is empty if both are always true."""
        inner, conditions = self.subgraph_builder.context, list[str]()
        if not get_constant_element(inner, inner.look_up(body_condition)):
            conditions.append(reshape_to_scalar(inner, body_condition))
        if self.trip_count_name:
            one = inner.new_constant("one", np.array(1, np.int64))
            # The condition is evaluated at the end of iteration ``number``: the next one is number + 1.
            following = inner.emit("add", (iteration_name, one))
            limit = reshape_to_scalar(inner, self.subgraph_builder.builder.capture_outer_value(self.trip_count_name))
            conditions.append(inner.emit("less", (following, limit)))
        return emit_logical_and(inner, conditions) if conditions else ""

    def emit_first_condition(self, start_condition: str) -> str:
        """Emit the condition for the first iteration; return its name.

        The start condition must hold, and the trip count must exceed 0."""
        context, conditions = self.context, list[str]()
        if start_condition:
            conditions.append(reshape_to_scalar(context, start_condition))
        if self.trip_count_name:
            zero = context.new_constant("zero", np.array(0, np.int64))
            conditions.append(context.emit("less", (zero, reshape_to_scalar(context, self.trip_count_name))))
        return emit_logical_and(context, conditions) if conditions else context.new_constant("true", np.array(True))


# ---- Scan becomes a ``loop`` with one iteration for every element along an axis.


@frozen
class _ScanAxes:
    """Axes and directions of a Scan's inputs and outputs; direction 0 is forward, 1 is reversed.

    Each field has one number for each scanned input or stacked output."""

    input_axes: tuple[int, ...]
    input_directions: tuple[int, ...]
    output_axes: tuple[int, ...]
    output_directions: tuple[int, ...]


@CONVERTERS.register("Scan", dtypes=())
def convert_scan(
    context: OpContext,
    *inputs: Value | None,
    body: Subgraph,
    directions: Ints = (),
    num_scan_inputs: int,
    scan_input_axes: Ints = (),
    scan_input_directions: Ints = (),
    scan_output_axes: Ints = (),
    scan_output_directions: Ints = (),
) -> None:
    """Convert Scan to a ``loop`` with one iteration for each element along the scan axis.

    Before opset 9, Scan runs along axis 1, separately for each element of the batch; its first input are lengths of the
    sequences, and it has the attribute ``directions``."""
    first = 0 if context.opset >= 9 else 1
    count, scanned, output_count = len(inputs) - first, num_scan_inputs, len(context.operator.outputs)
    if not 1 <= scanned <= count:
        context.broken(f"num_scan_inputs is {scanned}, expected 1..{count}")
    stacked = output_count - (count - scanned)
    if stacked < 0:
        context.broken(f"got {output_count} outputs, expected at least {count - scanned}")

    def complete(attribute_name: str, entries: Ints, value_count: int) -> Ints:
        """Return an attribute with one integer for each scanned input or stacked output; zeros if it is absent."""
        entries = entries or (0,) * value_count
        if len(entries) != value_count:
            context.broken(f"{attribute_name} has {len(entries)} entries, expected {value_count}")
        return entries

    values = [context.value(k) for k in range(first, len(inputs))]
    if first:
        if inputs[0] is not None:
            context.refuse(
                "sequence_lens is not supported, expected sequences of equal lengths", "export with opset 9 or later"
            )
        zeros = (0,) * stacked
        axes = _ScanAxes((0,) * scanned, complete("directions", directions, scanned), zeros, zeros)
        _emit_batched_scan(context, values, body, axes)
        return
    axes = _ScanAxes(
        complete("scan_input_axes", scan_input_axes, scanned),
        complete("scan_input_directions", scan_input_directions, scanned),
        complete("scan_output_axes", scan_output_axes, stacked),
        complete("scan_output_directions", scan_output_directions, stacked),
    )
    for position, value in enumerate(_emit_scan(context, values, body, axes, context.operator.outputs)):
        if context.output(position) != value:
            context.result_alias(value, position)


def _emit_batched_scan(context: OpContext, values: Sequence[Value], body: Subgraph, axes: _ScanAxes) -> None:
    """Emit one scan for each element of the batch, and concatenate the scans' results (Scan of opset 8)."""
    rows: list[list[Value]] = []
    for index in range(values[0].shape[0]):
        parts = [context.slice_axis(value, 0, index, index + 1) for value in values]
        parts = [context.reshape(part, part.shape[1:]) for part in parts]
        results = [context.look_up(name) for name in _emit_scan(context, parts, body, axes, ())]
        rows.append([context.reshape(result, (1, *result.shape)) for result in results])
    for position, column in enumerate(zip(*rows, strict=True)):
        if context.output(position):
            context.result_alias(concat_along_axis(context, column, 0), position)


def _emit_scan(
    context: OpContext, value_names: Sequence[str], body: Subgraph, axes: _ScanAxes, output_names: Sequence[str]
) -> list[str]:
    """Emit the loop of a Scan; return the names of its results.

    A result that needs no transpose or reversal gets its name in ``output_names``; other results get new names."""
    inside = SubgraphBuilder(context, decode_subgraph(context, body))
    builder, names = inside.builder, [value.name for value in inside.body.inputs]
    scanned, stacked = len(axes.input_axes), len(axes.output_axes)
    carried = len(value_names) - scanned
    if len(names) != len(value_names) or len(inside.body.outputs) != carried + stacked:
        expected = f"{len(value_names)} inputs and {carried + stacked} outputs"
        context.broken(f"body: got {len(names)} inputs and {len(inside.body.outputs)} outputs, expected {expected}")
    iteration = inside.add_input(builder.make_unique_name("iteration"), ITERATION)
    for name, value in zip(names[:carried], value_names, strict=False):
        inside.add_input(name, context.type(value))
    count = _add_scanned_inputs_and_count_iterations(context, inside, iteration, value_names[carried:], axes)
    kinds = [inside.add_output(value) for value in inside.convert_operators()]
    for kind, value in zip(kinds[:carried], value_names, strict=False):
        if kind.shape != context.type(value).shape:
            context.refuse(
                f"a carried value changes from shape {context.type(value).shape} to {kind.shape}, expected one shape",
                "keep the shape of each carried value",
            )
    # The loop stacks along axis 0 in order; any other axis or direction needs a node behind it, which then has the output's
    # name.
    direct = [True] * carried + [not (a or t) for a, t in zip(axes.output_axes, axes.output_directions, strict=True)]
    results = [
        output_names[k]
        if k < len(output_names) and output_names[k] and direct[k]
        else builder.make_unique_name("scanned")
        for k in range(carried + stacked)
    ]
    attrs: Mapping[str, Attr] = {"count": count, "carried": carried, "body": inside.finish_graph(builder.captured)}
    context.write_node_with_outputs("loop", (*value_names, *builder.captured), attrs, results)
    for k, (axis, is_reversed) in enumerate(zip(axes.output_axes, axes.output_directions, strict=True), carried):
        results[k] = _move_stacked_axis(context, results[k], axis, is_reversed)
    return results


def _add_scanned_inputs_and_count_iterations(
    context: OpContext,
    subgraph_builder: SubgraphBuilder,
    iteration_name: str,
    scanned_value_names: Sequence[str],
    axes: _ScanAxes,
) -> int:
    """Add the scanned values as inputs of the body, which gathers one element of each value in every iteration.

    Return the number of iterations, which is the extent of the scanned values along their scan axes."""
    builder, inner = subgraph_builder.builder, subgraph_builder.context
    extents = []
    for name, value, axis, is_reversed in zip(
        [value.name for value in subgraph_builder.body.inputs][-len(scanned_value_names) :],
        scanned_value_names,
        axes.input_axes,
        axes.input_directions,
        strict=True,
    ):
        kind = context.type(value)
        whole, axis = (
            subgraph_builder.add_input(builder.make_unique_name("whole"), kind),
            context.axis(axis, len(kind.shape)),
        )
        extents.append(kind.shape[axis])
        index = iteration_name
        if is_reversed:
            last = inner.new_constant("last", np.array(kind.shape[axis] - 1, np.int32))
            index = inner.emit("sub", (last, iteration_name))
        inner.write_node("gather", (whole, index), {"axis": axis}, name)
    if len(set(extents)) != 1:
        context.broken(f"the scanned inputs have {extents} elements along their scan axes, expected equal numbers")
    return extents[0]


def _move_stacked_axis(context: OpContext, value_name: str, target_axis: int, is_reversed: int) -> str:
    """Move axis 0 of a stacked output to ``target_axis``; return the name of the result.

    If ``is_reversed`` is not 0, the order along the axis is reversed first."""
    if is_reversed:
        value_name = context.emit("reverse", (value_name,), {"axes": (0,)})
    rank = len(context.type(value_name).shape)
    target_axis = context.axis(target_axis, rank)
    if not target_axis:
        return value_name
    axes = [*range(1, target_axis + 1), 0, *range(target_axis + 1, rank)]
    return context.emit("transpose", (value_name,), {"axes": tuple(axes)})
