# SPDX-License-Identifier: Apache-2.0
"""A cut graph computes the same values between the named tensors."""

from __future__ import annotations

import numpy as np
import pytest

from microc.errors import UsageError
from microc.graph.cut import cut_graph
from microc.graph.ir import Graph, Node, verify
from microc.graph.text import to_text
from tests.graph.graphs import SMALL, diamond


def chain() -> Graph:
    """x -> a -> (b, c), with y joining in; d = b + c + y; w constant."""
    nodes = (
        Node("relu", ("x",), ("a",)),
        Node("split", ("a",), ("b", "c")),
        Node("add", ("b", "c"), ("bc",)),
        Node("add", ("bc", "y"), ("d",)),
        Node("mul", ("y", "w"), ("e",)),
    )
    names = ("x", "y", "a", "b", "c", "bc", "d", "e", "w")
    return Graph("net", ("x", "y"), ("d", "e"), nodes, dict.fromkeys(names, SMALL), {"w": np.ones((2, 3), np.float32)})


def ops(graph: Graph) -> list[str]:
    verify(graph)
    return [node.outputs[0] for node in graph.nodes]


def test_outputs_alone_drop_what_they_do_not_need() -> None:
    found = cut_graph(chain(), outputs=("bc",))
    assert ops(found) == ["a", "b", "bc"]
    assert (found.inputs, found.outputs, dict(found.consts)) == (("x",), ("bc",), {})
    assert "y" not in found.types


def test_inputs_alone_and_their_order() -> None:
    found = cut_graph(chain(), inputs=("y", "bc"))
    assert ops(found) == ["d", "e"] and found.inputs == ("y", "bc") and found.outputs == ("d", "e")


def test_one_of_two_results_becomes_an_input() -> None:
    found = cut_graph(chain(), ("x", "b"), ("bc",))
    assert [node.outputs for node in found.nodes] == [("a",), ("", "c"), ("bc",)]
    verify(found)


def test_nothing_named_changes_nothing() -> None:
    assert to_text(cut_graph(chain())) == to_text(chain())


def test_state_stays_with_its_update() -> None:
    graph = diamond(outputs=("a",))
    assert not cut_graph(graph, outputs=("b",)).state
    whole = cut_graph(diamond(), outputs=("c",))
    assert tuple(whole.state) == ("s",) and whole.updates == {"s": "c"}
    given = cut_graph(diamond(), inputs=("x", "s"))
    assert not given.state and not given.updates and given.inputs == ("x", "s")
    verify(given)


@pytest.mark.parametrize(
    ("inputs", "outputs", "what", "hint"),
    [
        ((), ("BC",), "no tensor 'BC'", "did you mean bc"),
        (("nowhere",), (), "no tensor", "check MODEL --tensors"),
        (("w",), (), "constant", ""),
        (("x",), ("x",), "at once", ""),
        (("x", "x"), (), "twice", ""),
        (("x", "y"), ("bc",), "does not depend on 'y'", ""),
        (("bc",), ("d",), "also depends on the input 'y'", "name it"),
    ],
)
def test_refusals(inputs: tuple[str, ...], outputs: tuple[str, ...], what: str, hint: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        cut_graph(chain(), inputs, outputs)
    assert hint in caught.value.hint and caught.value.where == "net"
