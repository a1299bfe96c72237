# SPDX-License-Identifier: Apache-2.0
"""Reports: what is in them, and that they are equal for equal networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import microc
from microc.errors import UsageError
from microc.reports.saved_reports import report, report_project
from microc.run.board_project import open_project
from tests.graph.graphs import diamond
from tests.support import digits
from tests.transform.network import Network


@pytest.fixture(scope="module")
def made() -> microc.Report:
    return report(digits.INT8, board="netduinoplus2")


def test_numbers_before_a_board(made: microc.Report) -> None:
    """Cycles, milliseconds at the board's clock, shares, stack and state, without a run."""
    data = made.to_data()
    assert data["measured"] is None and data["board"]["clock_hz"] == 168_000_000
    layers, totals = data["layers"], data["totals"]
    assert totals["cycles"] == sum(layer["cycles"] for layer in layers) > totals["macs"]
    assert totals["milliseconds"] == pytest.approx(totals["cycles"] / 168_000)
    assert sum(layer["share"] for layer in layers) == pytest.approx(1)
    assert data["state"] == [] and data["stack"]["bytes"] > 100 and data["stack"]["measured"] is None
    assert totals["flash"] > totals["weights"] == sum(layer["constants"] for layer in layers)
    assert json.loads(made.json()) == json.loads(json.dumps(data))


def test_layers_have_what_the_model_says(made: microc.Report) -> None:
    """Operators with attributes and quantised weights; the C is the function's own."""
    first = made.data["layers"][0]
    conv, requantize = first["operators"]
    assert conv["op"] == "conv2d" and ["strides", "1, 1"] in conv["attributes"]
    weight = conv["weights"][0]
    assert weight["shape"] == [8, 3, 3, 1] and weight["dtype"] == "int8" and weight["axis"] == 0
    assert weight["scales"] == pytest.approx((0.0049895, 0.0098038, 8), rel=1e-4)
    assert requantize["op"] == "requantize" and not any(name == "bound" for name, _ in requantize["attributes"])
    for layer in made.data["layers"]:
        assert layer["c"][0] == "/*" and layer["c"][-1] == "}"
        assert sum(f"_KERNEL {layer['function']}(" in line for line in layer["c"]) == 1


def test_a_project_and_a_program_have_the_same_report(
    made: microc.Report, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = microc.compile(digits.INT8, board="netduinoplus2")
    folder = program.write(tmp_path_factory.mktemp("project") / "digits")
    assert report(program).json() == made.json()
    given, found = made.to_data(), report_project(open_project(folder)).to_data()
    assert found["totals"]["flash"] is None, "nothing is linked"
    assert found["layers"] == given["layers"] and report(folder).to_data() == found
    (folder / "model.c").unlink()
    assert report(folder).data["layers"][0]["c"] == []
    with pytest.raises(UsageError, match="cannot be given for a compiled network"):
        report(folder, board="microbit")


def test_state_is_told() -> None:
    states = report(diamond()).data["state"]
    assert states and all(state["bytes"] > 0 for state in states)


def test_notebooks(made: microc.Report) -> None:
    text = made._repr_html_()
    assert text.startswith("<table>") and "cycles" in text and "digits_int8" in repr(made) and len(repr(made)) < 300


def test_shared_functions_are_divided() -> None:
    """Layers that are alike are one function: its bytes count once."""
    net = Network(x=(1, 16))
    program = microc.compile(
        net.graph(net.op("tanh", net.dense(net.op("tanh", net.dense("x", 16)), 16))), board="mps2-an386"
    )
    layers = report(program).data["layers"]
    assert len({layer["function"] for layer in layers}) == 1 < len(layers)
    assert sum(layer["code"] for layer in layers) == program.module.kernels[0].code_bytes > 0


def test_a_library_has_a_report(tmp_path: Path) -> None:
    """Of the kernels that run here, with their C; a shared object has no sources, the numbers all the same."""
    library = microc.compile(digits.INT8, "x86-64-v3,portable")
    loaded = [
        microc.load_library(library.export_library(tmp_path / f"net{end}"), "portable") for end in (".tar", ".so")
    ]
    for each in (microc.compile(digits.INT8), microc.compile(digits.INT8, "cortex-m4"), library, *loaded):
        found = report(each)
        assert "conv2d" in found.html()
        assert found.data["board"]["cpu"] == each.manifest["options"]["cpu"] and found.data["totals"]["flash"] is None
        assert found.data["totals"]["arena"] == each.manifest["arena_size"]
        assert all(bool(layer["c"]) == (each is not loaded[1]) for layer in found.data["layers"])
        assert json.loads(found.json())["layers"] and repr(found).startswith("<Report digits_int8(")
    with pytest.raises(UsageError, match="cannot be given for a compiled network"):
        report(library, board="host")
