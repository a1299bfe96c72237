# SPDX-License-Identifier: Apache-2.0
"""Operators with mutated constants: 160 of them here, any number by ``python -m tests.extremes.constants``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import microc
from microc import te
from microc.errors import MicrocError, ModelError, ProgramError
from microc.frontend import graph_file
from microc.graph.file import to_bytes
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.numerics import INT32_MIN
from microc.ops.constants import CheckedNode, NumberUse, OperandBounds, stored_range_error_message
from microc.ops.lowering import lower_group
from microc.ops.registry import ONES, OpCall, OpDef, get, node_constant_error_message, registry
from microc.plugin import Plugin, active
from microc.tir.verify import explain_fault
from tests.extremes.constants import campaign
from tests.ops.compiled import one_node
from tests.ops.edges import case_arrays
from tests.ops.harness import known_edges
from tests.support.campaign import everything

MUTANTS = 20_000 if everything() else 160


def test_mutants_run_clean_or_are_refused() -> None:
    found = campaign(MUTANTS, seed=0)
    assert not found.failures
    assert found.counts["compiled"] > MUTANTS // 2
    assert found.counts["refused"] + found.counts["refused by inference"] > MUTANTS // 20


@pytest.mark.parametrize("name", sorted(name for name, definition in registry().items() if not definition.composed))
def test_declarations_hold_for_every_case(name: str) -> None:
    definition = get(name)
    for case in (*definition.cases(), *known_edges(definition)):
        graph, node = one_node(definition, case, case_arrays(case))
        assert node_constant_error_message(node, graph, {}) == "", case.name


@pytest.mark.parametrize("name", sorted(n for n, d in registry().items() if not (d.composed or d.view)))
def test_known_numbers_become_indices_where_they_are_declared(name: str) -> None:
    """Loops whose integers are all known load an index that is not proven from constants with a declaration alone."""
    for case in get(name).cases():
        known = tuple(
            k for k, kind in enumerate(case.types) if kind.dtype in ("int8", "int16", "int32", "int64", "uint8")
        )
        changed = replace(case, consts=tuple(sorted({*case.consts, *known})))
        graph, node = one_node(get(name), changed, case_arrays(case))
        group = lower_group(graph, (node,), ONES, "f")
        assert "are not checked" not in explain_fault(group.func, tables=group.tables)


def hostile(name: str, operand: int, place: int, value: int, **attrs: Any) -> Graph:
    """An operator's first case, with one number of an operand and some attributes changed."""
    definition = get(name)
    case = next(case for case in definition.cases() if operand < len(case.types))
    arrays = [np.array(array) for array in case_arrays(case)]
    arrays[operand].reshape(-1)[place] = value
    graph, node = one_node(definition, case, arrays)
    nodes = (type(node)(node.op, node.inputs, node.outputs, {**node.attrs, **attrs}),)
    return Graph("hostile", graph.inputs, graph.outputs, nodes, graph.types, graph.consts)


@pytest.mark.parametrize(
    ("name", "operand", "value", "said"),
    [
        ("resample", 1, 3, "expected 0..2"),
        ("resample", 2, -1, "an index"),
        ("filter_bank", 3, 30000, "frequencies and widths exceed"),
        ("filter_bank", 5, 7, "widths exceed"),
        ("filter_bank", 4, -4, "firsts is an offset"),
        ("tree_ensemble", 1, 255, "feature is an index"),
        ("tree_ensemble", 3, 0, "left_leaves"),
        ("tree_ensemble", 4, 200, "leaves"),
        ("qsvdf", 4, (1 << 31) - 1, "partial sums can overflow"),
        ("qsoftmax", 1, 5, "table"),
        ("qsoftmax", 1, -1, "table"),
        ("qdiv", 2, -(1 << 31), "reciprocals is a factor"),
        ("qlog_softmax", 2, -(1 << 31), "reals.*expected at least"),
        ("qsigmoid16", 1, 0, r"table\[0\] is not that of TFLite"),
    ],
)
def test_constants_of_files_are_judged(name: str, operand: int, value: int, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        graph_file.read_graph_file(to_bytes(hostile(name, operand, 0, value)), "hostile.mcg")


@pytest.mark.parametrize(
    ("name", "attrs", "said"),
    [
        ("requantize", {"shift": 99}, "too large; expected at most 30"),
        ("requantize", {"multiplier": -1}, "too small; expected at least 0"),
        ("requantize", {"zero_point": 1 << 20}, "zero_point does not fit"),
        ("qadd", {"left_shift": 30}, "overflow int32"),
        ("pcan", {"snr_shift": 64}, "too large; expected at most 63"),
        ("signal_window", {"shift": -1}, "too small; expected at least 0"),
        ("filter_bank_log", {"input_correction_bits": 32}, "too large; expected at most 31"),
        ("conv2d", {"padding": (-1, 1, 1, 1)}, r"padding=\(-1"),
        ("convolution", {"padding": (-1, 1)}, r"padding=\(-1"),
        ("convolution_transpose", {"padding": (-1, 1)}, r"padding=\(-1"),
        ("reverse", {"axes": (0, 0)}, "axes must be different axes"),
        ("requantize_float", {"scale": 1e308}, "expected float32 numbers"),
        ("matmul", {"axes_a": (0, 0)}, "axes_a"),
        ("matmul", {"axes_b": (0, -1)}, "axes_b"),
        ("matmul", {"axes_b": (0,)}, "axes_b"),
        ("loop", {"count": -1}, "count=-1 is too small"),
        ("loop", {"count": 1 << 31}, "count=2147483648 is too large"),
        ("loop", {"carried": -1}, "carried=-1 is too small"),
        ("loop", {"carried": 3}, "carried=3, 2 operands"),
    ],
)
def test_attributes_of_files_are_judged(name: str, attrs: dict[str, Any], said: str) -> None:
    graph = hostile(name, 0, 0, 1, **attrs)
    with pytest.raises(ModelError, match=said):
        graph_file.read_graph_file(to_bytes(graph), "hostile.mcg")


def test_bounds_are_as_near_to_the_zero_point_as_int32_reaches() -> None:
    attrs = {"zero_point": INT32_MIN, "minimum": 0, "maximum": 9, "out_dtype": "int32"}
    kind = TensorType((4,), "int32")
    assert "is more than 2147483647 from" in stored_range_error_message(CheckedNode(attrs, (kind,), (None,)))
    assert not stored_range_error_message(CheckedNode({**attrs, "minimum": -1}, (kind,), (None,)))


def test_promises_of_files_are_not_believed() -> None:
    """A bound that does not follow from the constants before it: the operand saturates, whatever the file says."""
    graph = graph_file.read_graph_file(to_bytes(hostile("requantize", 0, 0, 1, bound=3)), "m.mcg")
    assert graph.nodes[0].attrs["bound"] == -1


def picking(**declared: Any) -> OpDef:
    """An operator of a user's: elements of a vector by a constant."""

    def compute(call: OpCall) -> te.Tensor:
        data, places = (operand.tensor() for operand in call.present)
        return te.compute(places.shape, lambda i: data[places[i]], "out")

    return OpDef(
        "pick",
        infer=lambda _, types: (TensorType(types[1].shape, types[0].dtype),),
        reference=lambda _, arrays: (arrays[0][arrays[1]],),
        compute=compute,
        **declared,
    )


def picked(places: list[int], around: bool) -> Graph:
    """The operator on a vector of four, by itself or in a loop of two iterations."""
    x, result = TensorType((4,), "int32"), TensorType((len(places),), "int32")
    table = np.array(places, np.int32)
    types = {"x": x, "places": TensorType(table.shape, "int32"), "y": result}
    node = Node("pick", ("x", "places"), ("y",), {})
    graph = Graph("picked", ("x",), ("y",), (node,), types, {"places": table})
    if not around:
        return graph
    body = replace(graph, inputs=("turn", "x"), types={**types, "turn": TensorType((), "int32")})
    attrs: dict[str, Attr] = {"body": body, "count": 2, "carried": 0, "guarded": False, "scanned": 0}
    kinds = {"x": x, "ys": TensorType((2, len(places)), "int32")}
    return Graph("picked", ("x",), ("ys",), (Node("loop", ("x",), ("ys",), attrs),), kinds)


@pytest.mark.parametrize("around", [False, True], ids=["alone", "in a loop"])
def test_constants_of_a_users_operator_are_not_trusted(around: bool) -> None:
    """It declares what they may be, or its loops bound the index."""
    for places in (
        [0, 3, 1],
        [0, 3, 1, 2] * 4,
    ):  # the second ones are gathered by vectors, where this computer has them
        with (
            active((Plugin((picking(),)),)),
            pytest.raises(ProgramError, match=r"declare the operand in OpDef\.constants"),
        ):
            microc.compile(picked(places, around))
    within = OperandBounds(NumberUse.INDEX, 0, lambda checked_node: checked_node.types[0].size - 1)
    with active((Plugin((picking(constants={1: within}, operand_names=("data", "places")),)),)):
        found = microc.compile(picked([0, 3, 1], around))(np.arange(4, dtype=np.int32))
        assert np.ravel(found).tolist() == [0, 3, 1] * (2 if around else 1)
        with pytest.raises(MicrocError, match=r"places is an index; got 4, expected 0\.\.3"):
            microc.compile(picked([0, 4, 1], around))


@pytest.mark.parametrize(
    ("name", "shapes", "said"),
    [
        ("filter_bank", ((6, 2), (6,), (6,), (3,), (3,), (3,)), "need one axis"),
        ("requantize_float", ((4, 4), (4, 2)), "multipliers and shifts do not broadcast"),
        ("requantize_float", ((), (4,)), "multipliers and shifts do not broadcast"),
        ("requantize_float", ((4, 4), (3,)), "multipliers and shifts do not broadcast"),
        ("tree_ensemble", ((4, 5), (1, 28), (28,), (28,), (4,), (32, 3)), "tables need one axis"),
        ("scatter_nd", ((0, 3), (3, 1), (3, 3)), "the data are empty"),
    ],
)
def test_shapes_that_do_not_meet_are_refused(name: str, shapes: tuple[tuple[int, ...], ...], said: str) -> None:
    case = next(case for case in get(name).cases() if len(case.types) == len(shapes))
    types = tuple(replace(kind, shape=shape) for kind, shape in zip(case.types, shapes, strict=True))
    with pytest.raises(ModelError, match=said):
        get(name).infer({**get(name).defaults, **case.attrs}, types)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("concat", ((0, 3), (0, 5))), ("requantize", ((2, 0), (0,))), ("requantize", ((2, 0), (0,), (0,)))],
)
def test_values_without_elements_are_compiled(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    case = next(case for case in get(name).cases() if len(case.types) == len(shapes) and case.types[0].shape)
    types = tuple(replace(kind, shape=shape) for kind, shape in zip(case.types, shapes, strict=True))
    attrs = {**case.attrs, "axis": 1} if name == "concat" else case.attrs
    arrays = [np.zeros(kind.shape, kind.dtype) for kind in types]
    graph, _ = one_node(get(name), replace(case, attrs=attrs, types=types), arrays)
    microc.compile(graph_file.read_graph_file(to_bytes(graph), "empty.mcg"))


@pytest.mark.parametrize("name", ["requantize_floor", "requantize_split", "requantize_split_away"])
def test_a_file_cannot_promise_that_an_input_is_small(name: str) -> None:
    """These operators add in int32: a bound that the constants before it do not give would let the sum overflow."""
    definition = get(name)
    case = next(iter(definition.cases()))
    graph, _ = one_node(definition, case, case_arrays(case))
    with pytest.raises(ModelError, match="expected a bound that the constants before it give"):
        graph_file.read_graph_file(to_bytes(graph), "model.mcg", {})


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((), "bounds has a wrong length; got 0"),
        ((9, 9), "bounds has a wrong length; got 2"),
        ((9, 9, 9, 1 << 23), "overflow int32"),
        ((9, 1 << 23, 9, 9), ""),
    ],
)
def test_bounds_of_channels_belong_to_their_multipliers(bounds: tuple[int, ...], message: str) -> None:
    """A channel with a small multiplier permits larger sums."""
    definition = get("requantize_split_away")
    case = next(iter(definition.cases()))
    arrays = list(case_arrays(case))
    arrays[1] = np.zeros(4, np.int32)
    arrays[2] = np.array([300 << 16, 100 << 16, 200 << 16, 300 << 16], np.int32)
    graph, node = one_node(definition, replace(case, attrs={**case.attrs, "bounds": bounds}), arrays)
    found = node_constant_error_message(node, graph, {})
    assert message in found
    assert bool(message) == bool(found)
