# SPDX-License-Identifier: Apache-2.0
"""What objects look like at a prompt and in a notebook, and calls by name."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import microc
from microc import te
from microc.errors import UsageError
from microc.graph.match import Match, Replacement, Scope
from tests.support import digits

DIGITS = "(image: int8[1, 8, 8, 1] -> probabilities: int8[1, 10])"


def two_inputs() -> onnx.ModelProto:
    """b - a: the order is seen."""
    a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in "aby")
    graph = helper.make_graph([helper.make_node("Sub", ["b", "a"], ["y"])], "difference", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_line_at_a_prompt() -> None:
    library = microc.compile(digits.INT8)
    program = microc.compile(digits.INT8, board="mps2-an386")
    assert repr(library) == f"<Library digits_int8{DIGITS}, 6 kernels>"
    assert repr(program) == f"<Program digits_int8{DIGITS} for mps2-an386>"
    assert repr(program.module) == "<Module digits_int8(image -> probabilities), 6 calls of 6 kernels>"


def test_a_table_in_a_notebook() -> None:
    program = microc.compile(digits.INT8, board="mps2-an386")
    page = program._repr_html_()
    assert "arena, bytes" in page and f"{program.report()['flash']:,}" in page


def test_what_is_shown_is_escaped() -> None:
    library = microc.compile(digits.INT8)
    library.manifest["model"] = "<script>alert(1)</script>\x1b"
    page = library._repr_html_()
    assert "<script>" not in page and "\x1b" not in page


def test_inputs_by_name() -> None:
    a, b = np.array([1, 2], np.float32), np.array([5, 7], np.float32)
    network = microc.compile(two_inputs())
    for y in (network(a, b), network(a=a, b=b), network(b=b, a=a), network(a, b=b)):
        assert np.array_equal(np.asarray(y), b - a)


@pytest.mark.parametrize(
    ("places", "names", "what"),
    [(1, "a", "'a' is given twice"), (0, "b", "'a' is missing"), (0, "abc", "no input 'c'"), (1, "", "takes 2 inputs")],
)
def test_names_that_are_none(places: int, names: str, what: str) -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(UsageError, match=what):
        microc.compile(two_inputs())(*[x] * places, **dict.fromkeys(names, x))


def test_models_in_memory() -> None:
    """The bytes of a file of any format, and ONNX's own object, are the model."""
    data = digits.INT8.read_bytes()
    assert str(microc.load(data)).splitlines()[1:] == str(microc.load(digits.INT8)).splitlines()[1:]
    assert microc.load(two_inputs()).name == "difference"
    with pytest.raises(UsageError, match="a model of 0 bytes"):
        microc.load(b"")


def test_names_that_are_public() -> None:
    assert {name for name in dir(microc) if not name.startswith("_")} == set(microc.__all__) - {"__version__"}


def many_ends() -> microc.Graph:
    """Long names, and many of them."""
    net = microc.GraphBuilder()
    ends = {f"{'y' * 60}_{k}": net.op("relu", net.input(f"{'x' * 60}_{k}", (1, 4))) for k in range(20)}
    return net.graph("wide", ends)


def everything() -> dict[str, object]:
    """An object of every class that the functions of ``microc`` give, by the word that its line begins with."""
    graph, program = many_ends(), microc.compile(many_ends(), board="mps2-an386")
    library = microc.compile(graph)
    library.set_input(0, np.zeros((1, 4), np.float32))
    a = te.placeholder((4,), "float32", "a")
    func = te.create_prim_func("twice", [a], [te.compute((4,), lambda i: a[i] + a[i], "c", ("i",))])
    found = microc.explain(graph, 0)
    tuning = microc.tune(digits.INT8, trials=0)
    return {
        "Graph": graph, "GraphBuilder": microc.GraphBuilder(), "Program": program, "Module": program.module,
        "Library": library, "Report": microc.report(library), "Bundle": microc.bundle(program),
        "Explanation": found, "Kernel": found.kernel, "Schedule": microc.Schedule(func), "Tuning": tuning,
        "Database": tuning.database, "Comparison": microc.verify(digits.INT8, "reference", samples=1),
        "TimingResult": library.time_evaluator(1, 1), "Bound": microc.Bound(4), "Replacement": Replacement(),
        "Match": Match(Scope(graph), graph.nodes[0], {"x": "x"}, {}),
    }  # fmt: skip


TABLES = (
    "Graph", "Program", "Library", "Report", "Bundle", "Explanation", "Schedule", "Tuning", "Database",
    "Comparison", "TimingResult",
)  # fmt: skip


def test_everything_is_short_at_a_prompt() -> None:
    made = everything()
    for name, each in made.items():
        line = repr(each)
        assert line.startswith((f"<{name} ", f"<{name}: ", f"{name}(")) and len(line) <= 300 and "\n" not in line, line
    for name in TABLES:
        assert made[name]._repr_html_().startswith(("<table>", "<pre>")), name  # type: ignore[attr-defined]
