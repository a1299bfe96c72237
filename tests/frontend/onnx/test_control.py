# SPDX-License-Identifier: Apache-2.0
"""Control flow of ONNX, compiled to C: the same as onnxruntime, and nothing left of what constants decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from microc.base.dtypes import Array
from microc.errors import MicrocError, ModelError, UnsupportedError
from microc.frontend.onnx import reader as onnx_reader
from microc.frontend.onnx.context import Converter
from microc.graph.ir import Graph
from microc.ops.control import UNBOUNDED
from tests.compiler.control.test_function import compiled
from tests.frontend.onnx_model import expected, node, ops, proto, read

W = np.array([2, 3, 4], np.float32)
X = np.array([0.5, -1, 2], np.float32)
REAL, FLAG, WHOLE = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
TRUE, FALSE = np.array(True), np.array(False)
DTYPES = {"c": "bool", "n": "int64"}


def body(
    nodes: Sequence[Any],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    constants: Mapping[str, Array] = {},
    name: str = "inner",
) -> Any:
    """A graph inside an operator; values by name and element type. Those that are not real are scalars."""
    infos = [
        [helper.make_tensor_value_info(value, kind, None if kind == REAL else ()) for value, kind in part.items()]
        for part in (inputs, outputs)
    ]
    return helper.make_graph(
        list(nodes), name, *infos, [numpy_helper.from_array(np.asarray(a), key) for key, a in constants.items()]
    )


def check(model: Any, *inputs: Array) -> Graph:
    """Compiled C gives what onnxruntime gives."""
    graph = read(model)
    made = compiled(graph)(*inputs)
    for got, want in zip(made if isinstance(made, tuple) else (made,), expected(model, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return graph


# ---------------------------------------------------------------- If


def choice(**sides: str) -> Any:
    """If over operators of ``x``, from outside; both sides use the same names."""
    inner = {name: body([node(code, ["x"], ["t"])], {}, {"t": REAL}) for name, code in sides.items()}
    return node("If", ["c"], ["y"], then_branch=inner["a"], else_branch=inner["b"])


@pytest.mark.parametrize("condition", [TRUE, FALSE])
def test_branches_capture_values(condition: Array) -> None:
    model = proto([choice(a="Abs", b="Neg")], {"c": (), "x": (3,)}, dtypes=DTYPES)
    assert ops(check(model, condition, X)) == ["branch"]


@pytest.mark.parametrize("condition", [TRUE, FALSE])
def test_a_constant_condition_leaves_one_side(condition: Array) -> None:
    """The other one need not even be something that microc can do."""
    sides = {"a": "Abs", "b": "Neg"} | {"b" if condition else "a": "NonZero"}
    model = proto([choice(**sides)], {"x": (3,)}, {"c": condition})
    graph = read(model)
    assert [op for op in ops(graph) if op != "reshape"] == ["abs" if condition else "neg"]


def test_branches_nest_and_share_names() -> None:
    inner = body([choice(a="Exp", b="Abs"), node("Mul", ["y", "w"], ["t"])], {}, {"t": REAL}, {"w": W})
    other = body([node("Neg", ["x"], ["t"])], {}, {"t": REAL})
    nodes = [
        node("If", ["c"], ["p"], then_branch=other, else_branch=inner),
        node("Add", ["p", "x"], ["y2"]),
    ]
    model = proto(nodes, {"c": (), "x": (3,)}, outputs=("y2",), dtypes=DTYPES)
    for condition in (TRUE, FALSE):
        graph = read(model)
        made = compiled(graph)(condition, X)
        want = X - X if condition else abs(X) * W + X
        np.testing.assert_allclose(made, want, rtol=1e-6)


def test_branches_of_different_shapes_are_refused() -> None:
    small = body([node("ReduceSum", ["x"], ["t"])], {}, {"t": REAL})
    large = body([node("Neg", ["x"], ["t"])], {}, {"t": REAL})
    model = proto([node("If", ["c"], ["y"], then_branch=small, else_branch=large)], {"c": (), "x": (3,)}, dtypes=DTYPES)
    with pytest.raises(UnsupportedError, match="different types"):
        read(model)


# ---------------------------------------------------------------- Loop


def doubling(limit: float = 0.0) -> Any:
    """Carries x + x, hands on w, stacks x * w; goes on while the sum is below ``limit``, for ever if that is 0."""
    nodes = [node("Add", ["v", "v"], ["next"]), node("Mul", ["v", "w"], ["row"]), node("Identity", ["k"], ["kept"])]
    if limit:
        nodes += [node("ReduceSum", ["next"], ["sum"], keepdims=0), node("Sub", ["limit", "sum"], ["left"])]
        nodes += [node("Relu", ["left"], ["some"]), node("Cast", ["some"], ["again"], to=FLAG)]
    else:
        nodes += [node("Identity", ["go"], ["again"])]
    outputs = {"again": FLAG, "next": REAL, "kept": REAL, "row": REAL}
    constants = {"limit": np.array(limit, np.float32)}
    return body(nodes, {"i": WHOLE, "go": FLAG, "v": REAL, "k": REAL}, outputs, constants)


def looping(n: str, c: str, inner: Any, outputs: Sequence[str] = ("y", "k2", "rows")) -> Any:
    return node("Loop", [n, c, "x", "w"], list(outputs), body=inner)


def test_a_constant_number_of_turns_is_not_guarded() -> None:
    model = proto(
        [looping("n", "c", doubling())],
        {"x": (3,), "w": (3,)},
        {"n": np.array(4, np.int64), "c": TRUE},
        ("y", "k2", "rows"),
    )
    (made,) = [each for each in check(model, X, X + 1).nodes if each.op == "loop"]
    assert (made.attr("count"), made.attr("carried"), made.attr("guarded")) == (4, 1, False)


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_computed_number_of_turns_without_stacking(turns: int) -> None:
    inner = doubling()
    del inner.output[3]
    model = proto(
        [looping("n", "", inner, ("y", "k2"))], {"n": (), "x": (3,), "w": (3,)}, outputs=("y", "k2"), dtypes=DTYPES
    )
    (made,) = [each for each in check(model, np.array(turns, np.int64), X, X).nodes if each.op == "loop"]
    assert made.attr("count") == UNBOUNDED and made.attr("guarded")


@pytest.mark.parametrize("condition", [TRUE, FALSE])
def test_a_condition_ends_a_loop(condition: Array) -> None:
    """Exporters write the largest integer for 'as long as the condition holds'."""
    inner = doubling(100.0)
    del inner.output[3]
    model = proto(
        [looping("n", "c", inner, ("y", "k2"))],
        {"c": (), "x": (3,), "w": (3,)},
        {"n": np.array(np.iinfo(np.int64).max)},
        ("y", "k2"),
        dtypes=DTYPES,
    )
    check(model, condition, X, X)


@pytest.mark.parametrize("turns", [0, 2, 5])
def test_a_declared_shape_bounds_a_loop_that_stacks(turns: int) -> None:
    """Rows that no turn makes are zero."""
    model = proto(
        [looping("n", "", doubling())], {"n": (), "x": (3,), "w": (3,)}, outputs=("y", "k2", "rows"), dtypes=DTYPES
    )
    with pytest.raises(UnsupportedError, match="maximum number of iterations is unknown"):
        read(model)
    model.graph.output[2].CopyFrom(helper.make_tensor_value_info("rows", REAL, (5, 3)))
    y, kept, rows = compiled(read(model))(np.array(turns, np.int64), X, X + 1)
    np.testing.assert_array_equal(y, X * 2**turns)
    np.testing.assert_array_equal(kept, X + 1)
    want = [X * 2**turn * (X + 1) if turn < turns else 0 * X for turn in range(5)]
    np.testing.assert_allclose(rows, want, rtol=1e-6)


def test_one_turn_and_none_leave_no_loop() -> None:
    for turns in (0, 1):
        inner = doubling()
        if not turns:
            del inner.output[3]
        outputs = ("y", "k2", "rows")[: 2 + turns]
        constants = {"n": np.array(turns, np.int64)}
        model = proto([looping("n", "", inner, outputs)], {"x": (3,), "w": (3,)}, constants, outputs)
        assert "loop" not in ops(check(model, X, X + 1))


def test_a_turn_slices_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns from that of the turn on."""
    add = replace(onnx_reader.CONVERTERS[""]["Add"], first_input_dtypes=())
    monkeypatch.setitem(cast(dict[str, Converter], onnx_reader.CONVERTERS[""]), "Add", add)
    nodes = [
        node("Cast", ["i"], ["at"], to=TensorProto.INT32),
        node("Reshape", ["at", "one"], ["first"]),
        node("Add", ["first", "two"], ["last"]),
        node("Slice", ["x", "first", "last", "one"], ["part"]),
        node("Add", ["v", "part"], ["next"]),
        node("Identity", ["go"], ["again"]),
    ]
    constants = {"one": np.array([1]), "two": np.array([2], np.int32)}
    inner = body(nodes, {"i": WHOLE, "go": FLAG, "v": REAL}, {"again": FLAG, "next": REAL}, constants)
    model = proto(
        [node("Loop", ["n", "", "s"], ["y"], body=inner)],
        {"x": (2, 5), "s": (2, 2)},
        {"n": np.array(4, np.int64)},
    )
    data = np.arange(10, dtype=np.float32).reshape(2, 5)
    want = sum(data[:, k : k + 2] for k in range(4))
    np.testing.assert_array_equal(compiled(read(model))(data, np.zeros((2, 2), np.float32)), want)


def test_a_slice_of_a_computed_size_is_refused() -> None:
    nodes = [node("Slice", ["x", "a", "b"], ["y"])]
    model = proto(nodes, {"x": (5,), "a": (1,), "b": (1,)}, dtypes={"a": "int64", "b": "int64"})
    with pytest.raises(UnsupportedError, match="extent of the slice depends on run-time data"):
        read(model)


def test_a_loop_that_never_ends_is_refused() -> None:
    inner = doubling()
    del inner.output[3]
    model = proto([looping("", "", inner, ("y", "k2"))], {"x": (3,), "w": (3,)}, outputs=("y", "k2"))
    with pytest.raises(ModelError, match="never ends"):
        read(model)


def test_carried_shapes_stay() -> None:
    inner = body(
        [node("Concat", ["v", "v"], ["next"], axis=0), node("Identity", ["go"], ["again"])],
        {"i": WHOLE, "go": FLAG, "v": REAL},
        {"again": FLAG, "next": REAL},
    )
    model = proto([node("Loop", ["n", "", "x"], ["y"], body=inner)], {"x": (3,)}, {"n": np.array(3, np.int64)})
    with pytest.raises(UnsupportedError, match="a carried value"):
        read(model)


def test_loops_nest() -> None:
    """The inner loop's number of turns is that of the outer turn, which also chooses a row."""
    inner = body(
        [node("Add", ["u", "x"], ["un"]), node("Identity", ["g2"], ["a2"])],
        {"j": WHOLE, "g2": FLAG, "u": REAL},
        {"a2": FLAG, "un": REAL},
    )
    outer = body(
        [node("Loop", ["i", "", "v"], ["vn"], body=inner), node("Identity", ["g"], ["a"])],
        {"i": WHOLE, "g": FLAG, "v": REAL},
        {"a": FLAG, "vn": REAL},
    )
    model = proto([node("Loop", ["n", "", "x"], ["y"], body=outer)], {"n": (), "x": (3,)}, dtypes=DTYPES)
    check(model, np.array(5, np.int64), X)


# ---------------------------------------------------------------- Scan


def summing() -> Any:
    nodes = [node("Add", ["s", "e"], ["sn"]), node("Mul", ["sn", "f"], ["row"])]
    return body(nodes, {"s": REAL, "e": REAL, "f": REAL}, {"sn": REAL, "row": REAL})


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scans_go_along_any_axis_either_way(axis: int, turned: int) -> None:
    scan = node(
        "Scan",
        ["x", "a", "b"],
        ["y", "rows"],
        body=summing(),
        num_scan_inputs=2,
        scan_input_axes=[axis, 0],
        scan_input_directions=[turned, 0],
        scan_output_axes=[axis],
        scan_output_directions=[turned],
    )
    a, b = (np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in ((4, 4), (4, 4)))
    check(proto([scan], {"x": (4,), "a": (4, 4), "b": (4, 4)}, outputs=("y", "rows")), np.ones(4, np.float32), a, b)


def test_layers_in_a_scan_keep_their_weights_constant() -> None:
    """A recurrent cell: its weights are captured from outside."""
    rng = np.random.default_rng(1)
    inner = body(
        [
            node("Concat", ["h", "e"], ["he"], axis=1),
            node("Gemm", ["he", "w", "b"], ["z"]),
            node("Tanh", ["z"], ["hn"]),
        ],
        {"h": REAL, "e": REAL},
        {"hn": REAL},
    )
    constants: dict[str, Array] = {
        "w": rng.normal(size=(12, 8)).astype(np.float32) / 4,
        "b": rng.normal(size=8).astype(np.float32),
    }
    model = proto(
        [node("Scan", ["x", "a"], ["y"], body=inner, num_scan_inputs=1)], {"x": (1, 8), "a": (9, 1, 4)}, constants
    )
    graph = check(model, rng.normal(size=(1, 8)).astype(np.float32), rng.normal(size=(9, 1, 4)).astype(np.float32))
    (made,) = [each for each in graph.nodes if each.op == "loop"]
    assert made.attr("count") == 9 and len(made.inputs) == 2


def test_what_a_body_reads_in_vain_is_not_reported() -> None:
    """One refusal, of the operator that cannot be."""
    nodes = [node("NonZero", ["x"], ["q"]), choice(a="Abs", b="Neg")]
    nodes[1].attribute[0].g.node[0].input[0] = "q"
    with pytest.raises(UnsupportedError, match="depends on data") as caught:
        read(proto(nodes, {"c": (), "x": (3,)}, dtypes=DTYPES))
    assert "used before it is defined" not in str(caught.value)


# ---------------------------------------------------------------- broken files


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.ClearField("attribute"),
        lambda n: n.attribute[0].g.ClearField("output"),
        lambda n: n.attribute[0].g.ClearField("input"),
        lambda n: n.attribute[0].g.ClearField("node"),
        lambda n: setattr(n.attribute[0], "type", 1),
        lambda n: n.attribute[0].g.node[0].input.__setitem__(0, "nowhere"),
        lambda n: n.attribute[0].g.node[0].output.__setitem__(0, "v"),
        lambda n: n.input.append("x"),
        lambda n: n.output.append("more"),
    ],
)
def test_damaged_bodies_are_refused(change: Any) -> None:
    model = proto(
        [looping("n", "", doubling())],
        {"x": (3,), "w": (3,)},
        {"n": np.array(4, np.int64)},
        ("y", "k2", "rows"),
    )
    change(model.graph.node[0])
    with pytest.raises(MicrocError):
        read(model)
