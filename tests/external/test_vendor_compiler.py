# SPDX-License-Identifier: Apache-2.0
"""The plugin of docs/vendor_compilers.md, with a converter and a runtime that stand in for a vendor's."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.errors import ToolError, UsageError
from microc.graph.ir import Graph, Quant
from microc.plugin import Plugin, load_plugin

PAGE = Path(__file__).resolve().parents[2] / "docs" / "vendor_compilers.md"
CONVERTER = f"""#!{sys.executable}
import sys
import tflite

model = tflite.Model.GetRootAs(open(sys.argv[1], "rb").read())
graph = model.Subgraphs(0)
code = model.OperatorCodes(graph.Operators(0).OpcodeIndex())
assert graph.OperatorsLength() == 1 and code.DeprecatedBuiltinCode() == tflite.BuiltinOperator.RELU
result = graph.Tensors(graph.Outputs(0))
if max(result.ShapeAsNumpy()) > 16:
    sys.exit("a tensor is too large")
open(sys.argv[2], "wb").write(bytes([result.Quantization().ZeroPoint(0) & 255]))
"""
HEADER = """#include <stdint.h>
int acme_npu_run(const uint8_t *program, uint32_t bytes, const int8_t *x, int8_t *y, uint32_t size);
"""
RUNTIME = """#include "acme_npu.h"
int acme_npu_run(const uint8_t *program, uint32_t bytes, const int8_t *x, int8_t *y, uint32_t size)
{
    const int8_t zero = (int8_t)program[0];
    for (uint32_t i = 0; i < size; ++i) {
        y[i] = x[i] < zero ? zero : x[i];
    }
    return bytes != 1u;
}
"""
DATA = Quant((0.05,), (-3,))


def network(size: int = 12) -> Graph:
    """A layer for the accelerator between two of ours."""
    b = microc.GraphBuilder()
    value = b.input("x", (1, size), "int8", DATA)
    for op in ("tanh", "relu", "tanh"):
        value = b.set_quant(b.op(op, value), DATA)
    return b.graph("net", {"y": value})


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    (text,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "npu.py").write_text(text)
    return load_plugin(tmp_path / "npu.py")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The vendor's tools, and the folder of its runtime."""
    tools, folder = tmp_path / "tools", tmp_path / "runtime"
    tools.mkdir()
    folder.mkdir()
    (tools / "acme-npu-convert").write_text(CONVERTER)
    (tools / "acme-npu-convert").chmod(stat.S_IRWXU)
    (folder / "acme_npu.h").write_text(HEADER)
    (folder / "acme_npu.c").write_text(RUNTIME)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    return folder


def test_regions_go_through_the_converter(plugin: Plugin, runtime: Path) -> None:
    library = microc.compile(network(), plugins=plugin, external={"npu": runtime}, external_choice="all")
    assert [kernel["rule"] for kernel in library.manifest["kernels"]].count("external: npu region") == 1
    x = np.random.default_rng(3).integers(-128, 128, (1, 12), np.int8)
    np.testing.assert_array_equal(library(x), microc.compile(network())(x))


def test_what_is_missing_or_refused_is_told(plugin: Plugin, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="acme-npu-convert refuses a region: a tensor is too large"):
        microc.compile(network(20), plugins=plugin, external={"npu": runtime}, external_choice="all")
    with pytest.raises(UsageError, match="expected the folder of acme_npu"):
        microc.compile(network(), plugins=plugin, external={"npu": runtime / "none"}, external_choice="all")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(ToolError, match="acme-npu-convert is not on PATH") as caught:
        microc.compile(network(), plugins=plugin, external={"npu": runtime}, external_choice="all")
    assert "leave out external npu" in caught.value.hint, "as the library writes the option"
