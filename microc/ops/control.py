# SPDX-License-Identifier: Apache-2.0
"""Operators that contain graphs: ``loop`` and ``branch``, and ``external``, which external code computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Graph, NameSet, Node, TensorType
from microc.ops import registry
from microc.ops.arithmetic import Rewrite
from microc.ops.attributes import Rounding, flag, integer, names, subgraph
from microc.ops.meaning import evaluate
from microc.ops.registry import Case, Legalized, OpDef
from microc.tir import ir

# ---- Control flow: operators ``loop`` and ``branch``, whose attributes are graphs. The compiler lowers each node to
# one C function that calls the kernels of these graphs.
#
# ``loop(carried ..., fixed ..., scanned ...) -> carried ..., stacked ...`` runs the graph ``body`` up to
# ``count`` times. The inputs of the body are the index of the iteration (int32, scalar), the ``carried``
# values, the fixed values, and one row of every ``scanned`` value: its element along axis 0 at the index of the
# iteration. The outputs of the body are the next carried values, then one row of every stacked value. The rows
# of all iterations form axis 0 of the stacked values. With ``guarded``, the first carried value is a bool
# scalar, and the loop ends when it is false; rows of stacked values that were not computed are zero.
#
# ``branch(condition, fixed ...)`` runs the graph ``then`` if the condition is true, else the graph
# ``otherwise``. The inputs of both graphs are the fixed values.
#
# Sources: ONNX Loop, Scan, If; TFLite WHILE, IF.


UNBOUNDED = ir.ENDLESS
"""Value of ``count`` for a loop that ends only when its condition is false. Such a loop has no stacked values;
estimates count one iteration."""


def _shape_and_dtype(tensor_type: TensorType) -> tuple[tuple[int, ...], str]:
    return tensor_type.shape, tensor_type.dtype


def format_types(types: Iterable[TensorType]) -> str:
    """Return the dtypes and shapes of ``types`` as text for error messages."""
    return ", ".join(f"{tensor_type.dtype} {tensor_type.shape}" for tensor_type in types)


def _check_graph_inputs(graph: Graph, op_name: str, expected_types: Sequence[TensorType]) -> None:
    """Raise ModelError unless ``graph``, an attribute of the operator ``op_name``, has inputs of ``expected_types`` and
    no state."""
    inputs = [graph.types[name] for name in graph.inputs]
    if [_shape_and_dtype(tensor_type) for tensor_type in inputs] != [
        _shape_and_dtype(tensor_type) for tensor_type in expected_types
    ] or graph.state:
        raise ModelError(
            f"{op_name}: graph {graph.name} must have inputs of the operator's operand types; got inputs {format_types(inputs)}, "
            f"expected {format_types(expected_types)}" + (" and no state" if graph.state else "")
        )


def evaluate_graph(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """Evaluate a graph in numpy with the reference implementations of its operators; return the outputs."""
    return evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))[0]


def graph_macs(graph: Graph) -> int:
    """Return the number of multiply-accumulates of all nodes of a graph together."""
    total = 0
    for node in graph.nodes:
        count = registry.get(node.op).macs
        if count is not None:
            ins, outs = ([graph.types[v] for v in names if v] for names in (node.inputs, node.outputs))
            total += count(node.attrs, ins, outs)
    return total


# ---------------------------------------------------------------- loop


def _infer_loop_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    body, carried = attrs["body"], attrs["carried"]
    if not carried <= min(len(types), len(body.outputs)):
        raise ModelError(
            f"loop: carried is too large; got carried={carried}, {len(types)} operands and {len(body.outputs)} outputs "
            f"of the body, expected at most {min(len(types), len(body.outputs))}",
            hint="carry at most as many values as there are operands and outputs",
        )
    whole = len(types) - attrs.get("scanned", 0)
    if whole < carried or any(tensor_type.shape[:1] != (attrs["count"],) for tensor_type in types[whole:]):
        raise ModelError(
            f"loop: scanned operands are invalid; got {format_types(types[whole:])} after {whole} other operands, "
            f"expected scanned={attrs.get('scanned', 0)} operands of count={attrs['count']} rows after at least "
            f"carried={carried} others"
        )
    inputs = [*types[:whole], *(TensorType(tensor_type.shape[1:], tensor_type.dtype) for tensor_type in types[whole:])]
    _check_graph_inputs(body, "loop", [TensorType((), "int32"), *inputs])
    outputs = [body.types[name] for name in body.outputs]
    if [_shape_and_dtype(tensor_type) for tensor_type in outputs[:carried]] != [
        _shape_and_dtype(tensor_type) for tensor_type in types[:carried]
    ]:
        raise ModelError(
            f"loop: the body changes the types of carried values; got {format_types(outputs[:carried])}, expected "
            f"{format_types(types[:carried])}"
        )
    if attrs["guarded"] and (not carried or _shape_and_dtype(types[0]) != ((), "bool")):
        raise ModelError(
            "loop: guarded=True needs a condition as its first carried value; got "
            f"{format_types(types[: min(carried, 1)]) or 'none'}, expected bool ()"
        )
    if attrs["count"] == UNBOUNDED and not (attrs["guarded"] and carried == len(outputs)):
        raise ModelError(
            f"loop: count={UNBOUNDED} (no limit) needs guarded=True and no stacked outputs; got "
            f"guarded={attrs['guarded']} with {len(outputs) - carried} stacked outputs"
        )
    stacked = [TensorType((attrs["count"], *tensor_type.shape), tensor_type.dtype) for tensor_type in outputs[carried:]]
    return (*(TensorType(tensor_type.shape, tensor_type.dtype) for tensor_type in outputs[:carried]), *stacked)


def _evaluate_loop_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    body, carried = attrs["body"], attrs["carried"]
    whole = len(arrays) - attrs.get("scanned", 0)
    values, fixed, rows = list(arrays[:carried]), arrays[carried:whole], arrays[whole:]
    operand_types = [body.types[name] for name in body.outputs[carried:]]
    stacked = [
        np.zeros((attrs["count"], *tensor_type.shape), dtypes.to_numpy(tensor_type.dtype))
        for tensor_type in operand_types
    ]
    for iteration in range(attrs["count"]):
        if attrs["guarded"] and not values[0]:
            break
        outputs = evaluate_graph(
            body, [np.array(iteration, np.int32), *values, *fixed, *(array[iteration] for array in rows)]
        )
        values = outputs[:carried]
        for array, row in zip(stacked, outputs[carried:], strict=True):
            array[iteration] = row
    return (*values, *stacked)


def max_iterations(node: Node) -> int:
    """Return the largest number of times that a control-flow node runs a subgraph: at least 1, and 1 for a loop without
    a bound."""
    return max(_iteration_count(node.attrs), 1) if node.op == "loop" else 1


def scanned_operand_count(node: Node) -> int:
    """Return the number of scanned operands of a loop. These are its last operands; each iteration reads one row of
    each."""
    scanned = node.attrs.get("scanned", 0)
    return scanned if isinstance(scanned, int) else 0


def _iteration_count(attrs: Mapping[str, Any]) -> int:
    """Return the number of iterations for estimates: the attribute ``count``, or 1 for a loop without a bound."""
    return 1 if attrs["count"] == UNBOUNDED else attrs["count"]


def _count_loop_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return _iteration_count(attrs) * graph_macs(attrs["body"])


def running_sum_loop_body(shape: tuple[int, ...], can_stop_early: bool) -> Graph:
    """Return a loop body for tests, which adds a fixed value to a running sum.

    The sum is a carried value, and the sum after each iteration is also stacked. If ``can_stop_early``, the first
    carried value is the condition by which the loop ends."""
    flag, iteration, value = TensorType((), "bool"), TensorType((), "int32"), TensorType(shape, "float32")
    add = Node("add", ("sum", "x"), ("next",), {"activation": "", "rounding": Rounding.DOUBLE})
    copies = [Node("reshape", ("next",), ("row",), {"shape": shape})]
    types = {"iteration": iteration, "sum": value, "x": value, "next": value, "row": value}
    inputs: tuple[str, ...] = ("iteration", "sum", "x")
    outputs: tuple[str, ...] = ("next", "row")
    if can_stop_early:
        copies.append(Node("reshape", ("stop",), ("go",), {"shape": ()}))
        types |= {"flag": flag, "stop": flag, "go": flag}
        inputs, outputs = ("iteration", "flag", "sum", "x", "stop"), ("go", "next", "row")
    return Graph("body", inputs, outputs, (add, *copies), types)


def _make_loop_test_cases() -> Iterable[Case]:
    value, flag = TensorType((2, 3), "float32"), TensorType((), "bool")
    attrs: dict[str, Any] = {"body": running_sum_loop_body((2, 3), False), "count": 4, "carried": 1, "guarded": False}
    yield Case(attrs, (value, value), tolerance=1e-6)
    guarded: dict[str, Any] = {"body": running_sum_loop_body((2, 3), True), "count": 3, "carried": 2, "guarded": True}
    yield Case(guarded, (flag, value, value, flag), tolerance=1e-6, name="guarded")
    rows = TensorType((4, 2, 3), "float32")
    yield Case({**attrs, "scanned": 1}, (value, rows), tolerance=1e-6, name="scanned")


# ---------------------------------------------------------------- branch


def _infer_branch_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].size != 1 or types[0].dtype != "bool":
        raise ModelError(f"branch: the condition must be one bool; got {types[0].dtype} of shape {types[0].shape}")
    branch_outputs = []
    for graph in (attrs["then"], attrs["otherwise"]):
        _check_graph_inputs(graph, "branch", types[1:])
        branch_outputs.append([graph.types[name] for name in graph.outputs])
    if [_shape_and_dtype(tensor_type) for tensor_type in branch_outputs[0]] != [
        _shape_and_dtype(tensor_type) for tensor_type in branch_outputs[1]
    ]:
        raise ModelError(
            f"branch: both graphs must have outputs of the same types; got {format_types(branch_outputs[0])} and "
            f"{format_types(branch_outputs[1])}"
        )
    return tuple(TensorType(tensor_type.shape, tensor_type.dtype) for tensor_type in branch_outputs[0])


def _evaluate_branch_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    branch = attrs["then"] if arrays[0].reshape(-1)[0] else attrs["otherwise"]
    return tuple(evaluate_graph(branch, arrays[1:]))


def _count_branch_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return max(graph_macs(attrs["then"]), graph_macs(attrs["otherwise"]))


def one_operator_graph(op_name: str, tensor_type: TensorType) -> Graph:
    """Return a graph for tests of ``branch``: one unary operator from the input ``x`` to the output ``y``."""
    return Graph(
        op_name,
        ("x",),
        ("y",),
        (Node(op_name, ("x",), ("y",), {"rounding": Rounding.DOUBLE}),),
        {"x": tensor_type, "y": tensor_type},
    )


def _make_branch_test_cases() -> Iterable[Case]:
    tensor_type, flag = TensorType((2, 3), "float32"), TensorType((1,), "bool")
    attrs: dict[str, Any] = {
        "then": one_operator_graph("relu", tensor_type),
        "otherwise": one_operator_graph("neg", tensor_type),
    }
    for condition in (True, False):
        yield Case(attrs, (flag, tensor_type), arrays=(np.array([condition]), None), name=str(condition).lower())


# ---- Unrolling of loops for gradients: the nodes of all iterations, one after the other.


MAX_UNROLLED_NODES = 20_000
"""Largest number of nodes of an unrolled loop. measured: a network of this many takes minutes to compile."""


class _Unrolling(Rewrite):
    """Nodes that replace a loop. Types are inferred."""

    def __init__(self, node: Node, graph: Graph) -> None:
        super().__init__(node, graph)
        self._names = NameSet(graph.types)

    def _unused_value_name(self, stem: str) -> str:
        return self._names.fresh(f"{next(filter(None, self.node.outputs))}.{stem}")

    def apply(self, op: str, *inputs: str, result: str = "", stem: str = "step", **attrs: Attr) -> str:
        """Append a node; return the name of its result, which is new unless ``result`` names it."""
        whole = {**registry.get(op).defaults, **attrs}
        (tensor_type,) = registry.infer(op, whole, [self.type(name) for name in inputs])
        if not result:
            result = self.add_value(stem, tensor_type.shape, tensor_type.dtype, tensor_type.quant)
        return self.emit(op, inputs, result, whole)

    def take_row(self, value: str, axis: int, index: int) -> str:
        """Return the element of ``value`` at ``index`` along ``axis``, without this axis."""
        shape = self.type(value).shape
        begin, end = [0] * len(shape), list(shape)
        begin[axis], end[axis] = index, index + 1
        row = self.apply("slice", value, begin=tuple(begin), end=tuple(end), strides=(1,) * len(shape))
        return self.apply("reshape", row, shape=(*shape[:axis], *shape[axis + 1 :]))

    def stack_rows(self, rows: list[str], axis: int, result: str) -> None:
        """Append the stack of ``rows`` along a new axis, as the value ``result``."""
        shape = self.type(rows[0]).shape
        planes = [self.apply("reshape", row, shape=(*shape[:axis], 1, *shape[axis:])) for row in rows]
        self.apply("concat", *planes, result=result, axis=axis)


def _check_size(node: Node, iterations: int, nodes: int) -> None:
    """Raise UnsupportedError if the unrolled loop has too many nodes."""
    if iterations * nodes > MAX_UNROLLED_NODES:
        raise UnsupportedError(
            f"{node.op}: too long for a gradient, which unrolls it; got {iterations} iterations of {nodes} operators, "
            f"expected at most {MAX_UNROLLED_NODES} operators",
            where=str(node.loc),
            hint="shorten the sequence",
        )


def unroll_loop(node: Node, graph: Graph) -> Legalized:
    """Replace a ``loop`` with a fixed number of iterations by the nodes of all iterations.

    Constants of the body are shared by all iterations, under new names made from their own. Raise UnsupportedError for
    a loop that a condition ends, and for one with too many iterations."""
    body: Any = node.attr("body")
    count, carried = int(node.attr("count")), int(node.attr("carried"))
    scanned: Any = node.attrs.get("scanned", 0)
    if node.attr("guarded"):
        raise UnsupportedError(
            "loop: a loop that ends by a condition has no gradient; got guarded=True, expected a fixed count",
            where=str(node.loc),
            hint="export the model with a fixed number of iterations",
        )
    _check_size(node, count, len(body.nodes))
    unrolling = _Unrolling(node, graph)
    constants = {name: unrolling.add_constant(name, data) for name, data in body.consts.items()}
    for name, renamed in constants.items():
        unrolling.types[renamed] = body.types[name]
    whole = len(node.inputs) - scanned
    states, fixed, rows = list(node.inputs[:carried]), node.inputs[carried:whole], node.inputs[whole:]
    stacked: list[list[str]] = [[] for _ in body.outputs[carried:]]
    for iteration in range(count):
        number = unrolling.add_constant("iteration", np.asarray(iteration, np.int32))
        elements = [unrolling.take_row(name, 0, iteration) for name in rows]
        names = {**constants, **dict(zip(body.inputs, (number, *states, *fixed, *elements), strict=True))}
        for inner in body.nodes:
            _copy_node(unrolling, inner, body, names)
        states = [names[name] for name in body.outputs[:carried]]
        for column, name in zip(stacked, body.outputs[carried:], strict=True):
            column.append(names[name])
    for state, result in zip(states, node.outputs, strict=False):
        if result:
            unrolling.apply("reshape", state, result=result, shape=graph.types[result].shape)
    for column, result in zip(stacked, node.outputs[carried:], strict=True):
        if result:
            unrolling.stack_rows(column, 0, result)
    return unrolling.legalized()


def _copy_node(unrolling: _Unrolling, node: Node, body: Graph, names: dict[str, str]) -> None:
    """Append a copy of a node of the body. ``names``: names of the body's values in the graph, to which the results are
    added."""
    inputs = tuple(name and names[name] for name in node.inputs)
    for name in filter(None, node.outputs):
        tensor_type = body.types[name]
        names[name] = unrolling.add_value(name, tensor_type.shape, tensor_type.dtype, tensor_type.quant)
    unrolling.nodes.append(replace(node, inputs=inputs, outputs=tuple(name and names[name] for name in node.outputs)))


CONTROL_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "loop",
        unroll=unroll_loop,
        infer=_infer_loop_types,
        reference=_evaluate_loop_reference,
        cases=_make_loop_test_cases,
        attrs={
            "body": subgraph(
                "one iteration: from its number and the carried, fixed and scanned values to the carried and stacked values"
            ),
            "count": integer(f"largest number of iterations; {UNBOUNDED}: no bound", least=0, most=UNBOUNDED),
            "carried": integer("number of carried values", least=0),
            "guarded": flag("True if the loop ends when the first carried value is false"),
            "scanned": integer("number of values, the last ones, of which an iteration reads a row", 0, least=0),
        },
        macs=_count_loop_macs,
        regions=("body",),
        edges="A guarded loop without a bound runs while its condition holds, and may never end",
    ),
    OpDef(
        "branch",
        attrs={
            "then": subgraph("computed from the fixed values if the condition is true"),
            "otherwise": subgraph("computed from the fixed values if the condition is false"),
        },
        infer=_infer_branch_types,
        reference=_evaluate_branch_reference,
        cases=_make_branch_test_cases,
        macs=_count_branch_macs,
        regions=("then", "otherwise"),
    ),
)


# ---- Operator ``external``: a region of the network that external code computes, such as a vendor's library or
# accelerator compiler. The attribute ``body`` is the region's graph; it defines the result.
#
# Frontends never create this operator; :mod:`microc.external.backend` replaces regions of a graph by it.
# Where the external code is not available, as in the host build that a board is compared with, the compiler
# lowers the body itself, as it lowers the graphs of control flow.


EXTERNAL = "external"
"""Name of the operator."""


def _infer_external_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    body = attrs["body"]
    inside = [body.types[name] for name in body.inputs]
    if [(t.shape, t.dtype) for t in inside] != [(t.shape, t.dtype) for t in types] or body.state:
        raise ModelError(
            f"external: graph {body.name} has inputs of other types than the operands; got {format_types(inside)}, "
            f"expected {format_types(types)}" + (" and no state" if body.state else "")
        )
    return tuple(TensorType(body.types[name].shape, body.types[name].dtype) for name in body.outputs)


def _evaluate_external_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    return tuple(np.asarray(array) for array in evaluate_graph(attrs["body"], arrays))


def _count_external_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return graph_macs(attrs["body"])


def _make_external_test_cases() -> Iterable[Case]:
    tensor_type = TensorType((2, 3), "float32")
    yield Case({"body": one_operator_graph("relu", tensor_type), "code": ("somebody", "0")}, (tensor_type,))


EXTERNAL_REGION_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        EXTERNAL,
        infer=_infer_external_types,
        reference=_evaluate_external_reference,
        cases=_make_external_test_cases,
        attrs={
            "body": subgraph("meaning of the external code: from the operands to the results"),
            "code": names("name of the backend, and the number of the region"),
        },
        macs=_count_external_macs,
        regions=("body",),
    ),
)


OPERATORS = (*CONTROL_OPERATORS, *EXTERNAL_REGION_OPERATORS)
