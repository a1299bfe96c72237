# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs in the header: macros, conversions that are the compiler's own, names of classes."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.c.source import network_files
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_graph
from microc.errors import UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops import registry
from microc.ops.attributes import Rounding, Ties
from microc.target import target_for
from tests.support import digits
from tests.support.native import WARNINGS

KINDS = (
    ("int8", 0.003921569, -128, Ties.AWAY),
    ("int8", 0.0625, 3, Ties.EVEN),
    ("uint8", 0.5, 128, Ties.AWAY),
    ("uint8", 1.7e-3, 0, Ties.EVEN),
    ("int16", 3.1e-5, 0, Ties.AWAY),
    ("uint16", 0.25, 9, Ties.EVEN),
    ("int32", 0.125, 0, Ties.AWAY),
    ("int32", 0.25, 0, Ties.EVEN),
)
LIBRARY = """#include "model.h"
void quantise(const float *reals, {type} *stored, int count);
void quantise(const float *reals, {type} *stored, int count)
{{
    for (int k = 0; k < count; ++k) {{
        stored[k] = net_x_quantize(reals[k]);
    }}
}}
void dequantise(const {type} *stored, float *reals, int count);
void dequantise(const {type} *stored, float *reals, int count)
{{
    for (int k = 0; k < count; ++k) {{
        reals[k] = net_y_dequantize(stored[k]);
    }}
}}
"""
STRICT = (*WARNINGS, "-Wfloat-equal", "-Wdouble-promotion")


def network(dtype: str, scale: float, zero: int, ties: Ties) -> Graph:
    """A maximum of a number and itself; networks of ONNX have a node that rounds to even."""
    net, quant = GraphBuilder(), Quant((scale,), (zero,))
    x = net.input("x", (2, 3), dtype, quant)
    if ties is Ties.EVEN:
        net.op(
            "quantize", net.input("z", (2,)), scale=(1.0,), zero_point=(0,), axis=None, out_dtype="int8", rounding=ties
        )
    y = net.op("maximum", x, x)
    net.set_quant(y, quant)
    return net.graph("net", {"y": y})


def reals_around(dtype: str, scale: float, zero: int) -> Array:
    """Ties, their neighbours, random numbers inside and outside the range, zeros, infinities, NaN."""
    low, high = dtypes.int_range(dtype)
    rng = np.random.default_rng(1)
    ends = (low - zero, high - zero)
    if ends[1] - ends[0] <= 1 << 16:
        steps = np.arange(ends[0] - 2, ends[1] + 3)
    else:
        steps = np.concatenate(
            [
                rng.integers(*ends, 5000),
                np.arange(-(1 << 24), 1 << 24, 9973),
                [end + k for end in ends for k in (-1, 0, 1)],
            ]
        )
    exact = np.concatenate([steps, steps + 0.5, steps + 0.25]) * scale
    singles = exact.astype(np.float32)
    near = [np.nextafter(singles, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-42], np.float32)
    inside = rng.uniform(1.2 * ends[0] * scale, 1.2 * ends[1] * scale, 20000).astype(np.float32)
    return np.concatenate([singles, *near, special, inside])


@pytest.mark.parametrize(("dtype", "scale", "zero", "ties"), KINDS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_reals_convert_as_the_compiler_converts_them(
    dtype: str, scale: float, zero: int, ties: Ties, compiler: str, tmp_path: Path
) -> None:
    module = compile_graph(network(dtype, scale, zero, ties), "net", target_for("host"), Options())
    assert module.ties == ties
    for name, text in network_files(module, "test").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "library.c").write_text(LIBRARY.format(type=dtypes.c_name(dtype)))
    path = tmp_path / "library.so"
    checked = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all") if compiler == "gcc" else ()
    flags = ("-O2", *checked)
    argv = [compiler, *STRICT, *flags, "-shared", "-fPIC", "-o", str(path), str(tmp_path / "library.c")]
    subprocess.run(argv, check=True)  # no -lm
    library = ctypes.CDLL(str(path))

    reals = reals_around(dtype, scale, zero)
    stored = np.empty(len(reals), dtype)
    library.quantise(reals.ctypes.data_as(ctypes.c_void_p), stored.ctypes.data_as(ctypes.c_void_p), len(reals))
    attrs = {"scale": (scale,), "zero_point": (zero,), "axis": None}
    (expected,) = registry.get("quantize").reference({**attrs, "out_dtype": dtype, "rounding": ties}, [reals])
    assert np.array_equal(stored, expected)

    low, high = dtypes.int_range(dtype)
    every = np.arange(low, high + 1) if high < 1 << 16 else np.random.default_rng(2).integers(low, high, 5000)
    every = np.append(every, [low, high]).astype(dtype)
    back = np.empty(len(every), np.float32)
    library.dequantise(every.ctypes.data_as(ctypes.c_void_p), back.ctypes.data_as(ctypes.c_void_p), len(every))
    (expected,) = registry.get("dequantize").reference(attrs, [every])
    assert np.array_equal(back, expected)


def test_macros_are_for_c_and_cpp(tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="host", name="net", class_names=[f"digit {k}" for k in range(10)])
    folder = program.write(tmp_path / "net")
    text = """#include "model.h"
#include <stdio.h>
int main(void)
{
    static const int shape[] = NET_IMAGE_SHAPE;
    NET_IMAGE_TYPE image[NET_IMAGE_SIZE];
    for (int k = 0; k < NET_IMAGE_SIZE; ++k) {
        image[k] = net_image_quantize(0.5f);
    }
    printf("%d %d %d %d %d %d %s %d %s\\n", shape[1], NET_IMAGE_DIM_2, NET_IMAGE_RANK, (int)(sizeof image == NET_IMAGE_BYTES),
        NET_IMAGE_ZERO_POINT, image[0], net_class_name(NET_CLASS_DIGIT_7), net_class_name(10) == NULL,
        NET_IMAGE_SCALE * 255.0f == 1.0f ? "exact" : "near");
    return net_probabilities_dequantize(0) == 0.5f ? 0 : 1;
}
"""
    for compiler, standard, name in (
        ("gcc", "c99", "main.c"),
        ("clang", "c11", "main.c"),
        ("g++", "c++11", "main.cpp"),
    ):
        source, program_file = tmp_path / name, tmp_path / f"{compiler}.out"
        source.write_text(text)
        warnings = [flag for flag in WARNINGS if not flag.startswith("-std")]
        argv = [compiler, f"-std={standard}", *warnings, "-I", str(folder), str(source), "-o", str(program_file)]
        subprocess.run(argv, check=True)
        done = subprocess.run([program_file], capture_output=True, text=True, check=True)
        assert done.stdout == "8 8 4 1 -128 -1 digit 7 1 exact\n"


def test_classes_have_a_name_each() -> None:
    names = ["crane", "crane", "", "", "chat huant é", "a*/b\\", "count", "日本", 'say "??/"\n']
    net = GraphBuilder()
    graph = net.graph("net", {"scores": net.op("neg", net.input("x", (1, 9)))})
    module = compile_graph(graph, "net", target_for("host"), make_options(class_names=names))
    header = network_files(module, "test")["model.h"]
    found = [line.split()[0] for line in header.splitlines() if line.startswith("    NET_CLASS_")]
    stems = ("CRANE", "CRANE_2", "2", "3", "CHAT_HUANT", "A_B", "COUNT_2", "7", "SAY")
    assert found == [f"NET_CLASS_{stem}" for stem in stems]
    assert '"say \\042\\077\\077/\\042\\012"' in header and '"\\346\\227\\245\\346\\234\\254"' in header
    assert module.class_output == "scores"


def test_classes_need_an_output_of_as_many() -> None:
    with pytest.raises(UsageError, match="got 3 names, expected as many as an output"):
        microc.compile(digits.INT8, board="host", class_names=["a", "b", "c"])
    with pytest.raises(UsageError, match="has 1 names"):
        make_options(class_names=["a"])


def test_ends_are_renamed() -> None:
    graph = microc.load(digits.INT8, rename={"image": "probabilities", "probabilities": "image"})
    assert (graph.inputs, graph.outputs) == (("probabilities",), ("image",))
    inside = microc.load(digits.INT8, rename={"image": "flat"})  # a value of the network is called so
    library, renamed = microc.compile(digits.INT8), microc.compile(inside)
    x = digits.images(3)
    assert all(np.array_equal(library(each), renamed(each)) for each in x)
    assert [each["name"] for each in renamed.inputs] == ["flat"]


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        ({"picture": "a"}, "cannot rename 'picture'"),
        ({"image": "probabilities"}, "two inputs or outputs would be named 'probabilities'"),
        ({"image": "int"}, "cannot be 'int'"),
        ({"image": "a b"}, "cannot be 'a b'"),
        ({"image": "run"}, "cannot be 'run'"),
        ({"image": "Image"}, "lower-case letters"),
        ({"image": "x" * 33}, "at most 32 characters"),
        ({"image": "x", "probabilities": "x_quantize"}, "already used in the generated header"),
    ],
)
def test_names_that_cannot_be_are_refused(rename: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        microc.compile(digits.INT8, board="host", rename=rename)
    assert said in str(error.value)


def test_a_rounding_of_the_format_decides() -> None:
    assert microc.compile(digits.INT8, board="host").module.ties == Ties.AWAY
    assert microc.compile(digits.QDQ, board="host").module.ties == Rounding.EVEN
