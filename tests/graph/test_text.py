# SPDX-License-Identifier: Apache-2.0
"""Graph text carries everything, and damaged text is refused with the number of the line."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from microc.errors import ModelError
from microc.graph.file import from_bytes, to_bytes
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType
from microc.graph.text import from_text, to_text
from tests.graph.graphs import diamond, graphs
from tests.support.campaign import examples


def kinds(value: object) -> object:
    """Values with their Python types, which equality overlooks."""
    return tuple(kinds(v) for v in value) if isinstance(value, tuple) else (type(value), value)


@given(graphs())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_round_trip(graph: Graph) -> None:
    text = to_text(graph)
    again = from_text(text, graph.consts, graph.state)
    assert again == graph
    assert to_text(again) == text and text.isascii()
    assert list(again.consts) == list(graph.consts)
    for one, other in zip(graph.nodes, again.nodes, strict=True):
        assert kinds(tuple(one.attrs.values())) == kinds(tuple(other.attrs.values()))


@given(graphs())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_file_holds_the_same_graph(graph: Graph) -> None:
    again = from_bytes(to_bytes(graph), "m.mcg")
    assert again == graph and again is not graph


def test_equality_looks_at_all_but_the_name() -> None:
    graph = diamond()
    name, array = next(iter(graph.consts.items()))
    assert replace(graph, name="other") == graph and graph != "graph"
    for other in (array + 1, array.astype(np.float64), array.reshape(-1)):
        assert replace(graph, consts={**graph.consts, name: other}) != graph
    assert replace(graph, consts={**graph.consts, name: array.copy()}) == graph
    assert replace(graph, outputs=graph.inputs) != graph and replace(graph, nodes=graph.nodes[:-1]) != graph


def test_text_reads_well() -> None:
    quant = Quant((0.1,), (-3,))
    attrs: dict[str, Attr] = {
        "strides": (1, 1),
        "padding": (),
        "pad": 0.5,
        "wide": True,
        "axes": (2,),
        "value": None,
        "kind": "SAME",
    }
    node = Node("conv2d", ("x:0", "w", ""), ("y",), attrs, Loc("kws.tflite", 3, "conv/y"), "g0")
    graph = Graph(
        "net",
        ("x:0",),
        ("y",),
        (node,),
        {
            "x:0": TensorType((1, 4), "int8", quant, "NHWC"),
            "w": TensorType((2,), "int8", Quant((0.1, 1e-9), (0, 1), 0)),
            "y": TensorType((), "int32"),
        },
        {"w": np.zeros(2, np.int8)},
    )
    assert to_text(graph) == (
        "graph net\n"
        'input %"x:0": int8[1,4] q(0.1, -3) layout="NHWC"\n'
        "const @w: int8[2] q((0.1, 1e-09), (0, 1), axis=0)\n"
        '%y: int32[] = conv2d(%"x:0", @w, _) {axes=(2,), kind="SAME", pad=0.5, padding=(), strides=(1, 1), value=none, '
        'wide=true} group="g0" loc("kws.tflite" #3 "conv/y")\n'
        "output %y\n"
    )


def test_long_per_channel_quantisation_is_exact() -> None:
    scale = tuple(float(s) for s in np.random.default_rng(0).random(512, np.float32))
    kind = TensorType((512,), "int8", Quant(scale, (0,) * 512, 0))
    graph = Graph("net", ("x",), ("x",), (), {"x": kind})
    assert from_text(to_text(graph), {}, {}) == graph


def test_a_broken_graph_still_prints() -> None:
    graph = diamond(types={})
    assert "%c = add(%b, @s)" in to_text(graph)


DAMAGE = {
    "": ("line 1", "no graph"),
    "input %x: int8[1]": ("line 1", "expected 'graph'"),
    "graph net\ninput %x: int8[1": ("line 2", "expected"),
    "graph net\ninput %x: int9[1]": ("line 2", "unknown dtype"),
    "graph net\ninput %x: int8[-1]": ("line 2", "negative"),
    "graph net\ninput %x: int8[1.5]": ("line 2", "expected an integer"),
    "graph net\ninput %x: int8[1]\ninput %x: int8[1]": ("line 3", "defined twice"),
    "graph net\ninput %x: int8[1] q(0.1, 0.5)": ("line 2", "integers"),
    "graph net\ninput %x: int8[1] q((0.1), (1, 2), axis=0)": ("line 2", "scales and zero points differ"),
    "graph net\ninput %x: int8[1] q(1, 2)": ("line 2", "expected floats as scales"),
    "graph net\n\noutput %y": ("line 3", "not defined"),
    "graph net\n%y: int8[1] = relu(%x)": ("line 2", "'x' is not defined"),
    "graph net\n%y: int8[1] = relu(_) {a=1, a=2}": ("line 2", "given twice"),
    "graph net\n%y: int8[1] = relu(_) {a=__import__}": ("line 2", "expected '('"),
    "graph net\n%y: int8[1] = relu(_) {a=" + "(" * 99: ("line 2", "nested too deeply"),
    "graph net\n%y: int8[1] = relu(_) {a=" + "9" * 9999 + "}": ("line 2", "too long"),
    'graph net\n%"\\x": int8[1] = relu(_)': ("line 2", "invalid escape sequence"),
    'graph net\n%"y: int8[1] = relu(_)': ("line 2", "unknown characters"),
    "graph net\n%y: int8[1] = relu(_) boom": ("line 2", "expected the end of the line"),
    "graph net\nconst @w: int8[1]": ("line 2", "are missing"),
    "graph net\nboom": ("line 2", "a line begins with"),
    "graph net\n=": ("line 2", "expected"),
}


@pytest.mark.parametrize("text", DAMAGE, ids=range(len(DAMAGE)))
def test_damage_is_located(text: str) -> None:
    where, what = DAMAGE[text]
    with pytest.raises(ModelError) as caught:
        from_text(text, {}, {})
    assert caught.value.where == where and what in caught.value.what


def test_data_must_fit() -> None:
    graph = diamond()
    with pytest.raises(ModelError, match="got int8"):
        from_text(to_text(graph), {"w": np.zeros(3, np.int8)}, graph.state)


def test_random_damage_never_surprises() -> None:
    """Whatever a byte turns into, the text parses or is refused."""
    graph, dice = diamond(), random.Random(0)
    text = to_text(graph)
    for _ in range(1500):
        at = dice.randrange(len(text))
        piece = dice.choice(
            ["", '"', "(", ")", "[", "%", "@", "#", "-", "9", "e", "\\", "\n", "é", text[at:] + text[:at]]
        )
        try:
            from_text(text[:at] + piece + text[at + dice.randrange(3) :], graph.consts, graph.state)
        except ModelError as error:
            assert error.where.startswith("line ")


def nested() -> Graph:
    """A graph in a graph in a graph, each with a constant of its own."""
    kind = TensorType((2,), "int32")

    def level(depth: int, node: Node) -> Graph:
        types = dict.fromkeys(("x", "w", "y"), kind)
        return Graph(f"g{depth}", ("x",), ("y",), (node,), types, {"w": np.array([depth, 7], np.int32)})

    inner = level(2, Node("add", ("x", "w"), ("y",)))
    middle = level(1, Node("loop", ("x", "w"), ("y",), {"body": inner, "count": 3}))
    return level(0, Node("branch", ("x", "w"), ("y",), {"then": middle, "otherwise": inner}))


def test_graphs_of_control_flow_come_back() -> None:
    graph = nested()
    again = from_bytes(to_bytes(graph), "nested.mcg")
    assert to_text(again) == to_text(graph)
    inner = again.nodes[0].attr("then").nodes[0].attr("body")
    assert inner.consts["w"].tolist() == [2, 7] and again.consts["w"].tolist() == [0, 7]
    named = dict.fromkeys(("w", "$0.w", "$1.w", "$2.w"), graph.consts["w"])
    assert to_text(from_text(to_text(graph), named, {})) == to_text(graph)
    with pytest.raises(ModelError, match="region 5 is not defined"):
        from_text(to_text(graph).replace("then=$1", "then=$5"), named, {})


def test_graphs_that_unfold_without_end_are_refused() -> None:
    """Forty graphs, each twice in the one before: a page of text, and 2**40 graphs."""
    kinds = "input %x: int8[1]\n%y: int8[1] = branch(%x) {"
    text = "graph net\n" + kinds + "a=$0}\n"
    for number in range(40):
        text += f"region {number}\ngraph g\n{kinds}" + (
            f"a=${number + 1}, b=${number + 1}}}\n" if number < 39 else "}\n"
        )
    with pytest.raises(ModelError, match="too many nested graphs"):
        from_text(text, {}, {})
