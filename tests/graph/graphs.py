# SPDX-License-Identifier: Apache-2.0
"""Small graphs, and hypothesis strategies for any graph that text must carry."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType

SMALL = TensorType((2, 3), "float32")


def diamond(**changes: Any) -> Graph:
    """x -> a, b; c = a + b; with a constant, and a state that is updated."""
    nodes = (
        Node("relu", ("x",), ("a",), loc=Loc("net.tflite", 0, "first"), group="g0"),
        Node("mul", ("a", "w"), ("b",), loc=Loc("net.tflite", 1, "second"), group="g0"),
        Node("add", ("b", "s"), ("c",), loc=Loc("net.tflite", 2, "third")),
    )
    parts: dict[str, Any] = {
        "name": "net",
        "inputs": ("x",),
        "outputs": ("c",),
        "nodes": nodes,
        "types": dict.fromkeys(("x", "w", "s", "a", "b", "c"), SMALL),
        "consts": {"w": np.ones((2, 3), np.float32)},
        "state": {"s": np.zeros((2, 3), np.float32)},
        "updates": {"s": "c"},
    }
    return Graph(**{**parts, **changes})


floats = st.floats(allow_nan=False)
words = st.one_of(
    st.sampled_from(
        ["x", "_", "q", "a/b;c:0", "two words", 'a"b\\', "größe \u2028\n\t", "none", "inf", "%x", "\ud800"]
    ),
    st.text(min_size=1, max_size=8),
)
attributes: st.SearchStrategy[Attr] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), floats, words, st.just("")),
    lambda items: st.lists(items, max_size=3).map(tuple),
    max_leaves=6,
)


@st.composite
def quants(draw: st.DrawFn, shape: tuple[int, ...]) -> Quant | None:
    if draw(st.booleans()):
        return None
    axis = draw(st.sampled_from([None, *(k for k, extent in enumerate(shape) if extent)]))
    count = 1 if axis is None else shape[axis]
    scale = draw(st.lists(floats, min_size=count, max_size=count))
    zero = draw(st.lists(st.integers(-(1 << 40), 1 << 40), min_size=count, max_size=count))
    return Quant(tuple(scale), tuple(zero), axis)


@st.composite
def types(draw: st.DrawFn) -> TensorType:
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 70]), max_size=2)))
    dtype = draw(st.sampled_from(["int8", "uint8", "int32", "int64", "float32", "bool"]))
    return TensorType(shape, dtype, draw(quants(shape)), draw(st.sampled_from(["", "NHWC", 'O "H'])))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph whose names are defined before use; operators and types need not make sense."""
    names = draw(st.lists(words, min_size=4, max_size=10, unique=True))
    kinds = {name: draw(types()) for name in names}
    inputs, weight, state, rest = names[0], names[1], names[2], names[3:]
    known, nodes = [inputs, weight, state], []
    while rest:
        made, rest = rest[:2], rest[2:]
        operands = draw(st.lists(st.sampled_from(["", *known]), max_size=3))
        given = draw(st.dictionaries(words, attributes, max_size=3))
        loc = Loc(draw(words), draw(st.integers(-1, 9)), draw(words)) if draw(st.booleans()) else Loc()
        outputs = (*made, "") if draw(st.booleans()) else tuple(made)
        nodes.append(Node(draw(words), tuple(operands), outputs, given, loc, draw(st.sampled_from(["", "g 0"]))))
        known += made
    data = {name: np.zeros(kinds[name].shape, kinds[name].dtype) for name in (weight, state)}
    return Graph(
        name=draw(words),
        inputs=(inputs,),
        outputs=(known[-1],),
        nodes=tuple(nodes),
        types=kinds,
        consts={weight: data[weight]},
        state={state: data[state]},
        updates={state: draw(st.sampled_from(known))},
    )
