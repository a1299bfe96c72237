# SPDX-License-Identifier: Apache-2.0
"""Names inside of a function: what TIR may call alike and C may not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from microc.codegen.c.c_statements import StmtPrinter, print_helper_functions
from microc.codegen.c.identifiers import is_callable_name, make_names_distinct, shorten_loop_name
from microc.tir import ir
from tests.support.native import build, call

OUT = ir.Buffer("out", (4,), "int32")
DATA = ir.Buffer("data", (4,), "int32")


def let(name: str, k: int) -> ir.Stmt:
    """A value of a name, and what stores it."""
    var = ir.Var(name)
    return ir.Let(var, DATA[k], ir.Store(OUT, (ir.const(k, "int32"),), var + k))


VALUES = np.array([5, -7, 9, 11], np.int32)
SUMS = [5, -6, 11, 14]


def beside(*names: str) -> ir.PrimFunc:
    """Values in one block of C, each of which ends with its statement in TIR."""
    return ir.PrimFunc("kernel_" + "_".join(names), (DATA, OUT), ir.seq(*(let(n, k) for k, n in enumerate(names))))


def tiles() -> ir.PrimFunc:
    """Scalars of a register tile between values of their names; a value inside of a loop over a variable of its name."""
    tile, i = ir.Buffer("place", (4,), "int32", "register"), ir.Var("i")
    stores = [ir.Store(tile, (ir.const(k, "int32"),), DATA[k]) for k in range(4)]
    uses = [ir.Store(OUT, (ir.const(k, "int32"),), tile[k] + k) for k in range(4)]
    inner = ir.For(i, ir.const(1, "int32"), ir.Let(i, DATA[0], ir.Store(OUT, (ir.const(0, "int32"),), i)))
    body = ir.seq(let("place_3", 3), inner, ir.Alloc(tile, ir.seq(*stores, *uses)), let("place_2", 2))
    return ir.PrimFunc("kernel_tiles", (DATA, OUT), body)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_names_side_by_side(tmp_path: Path, compiler: str) -> None:
    """Two declarations of one name in a block; names of macros, of functions that code calls, of parameters, of the function."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not on PATH")
    funcs = [
        beside("place_3", "place_3", "place_3", "place_3"),
        beside("place_3", "place_3", "place_3_2", "place_3"),
        beside("linux", "unix", "int", "class"),
        beside("min_i32", "memcpy", "size_t", "place_3"),
        beside("out", "data", "kernel", "out"),
        tiles(),
    ]
    library = build(funcs, tmp_path, "-std=gnu17", compiler=compiler)
    for func in funcs:
        assert call(library, func, [VALUES, None])[1].tolist() == SUMS, func.name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("y", "y"), ("y_acc", "y"), ("c_acc_1", "c"), ("y_acc_0", "y_tile"), ("k_0_p41", "k_tile"), ("x_1_from_3", "x"),
        ("y_1_fill", "y"), ("data_workspace_i1_0_p41", "i1_tile"), ("row_of_pixels", "row_of_pixels"), ("_0", "_0"),
    ],
)  # fmt: skip
def test_loops_are_called_like_axes(name: str, shown: str) -> None:
    assert shorten_loop_name(name, {"acc", "data", "data_workspace", "out"}) == shown


def test_values_are_numbered_as_they_come() -> None:
    """Block by block; a loop that counts again, inside of its own axis, gets a number."""
    i, j = ir.Var("i_out"), ir.Var("i_1")
    inner = ir.For(j, ir.const(1, "int32"), ir.seq(let("data_9", 2), ir.Store(OUT, (j,), i + j)))
    func = ir.PrimFunc("kernel", (DATA, OUT), ir.seq(let("data_7", 0), ir.For(i, ir.const(1, "int32"), inner)))
    text = "\n".join(StmtPrinter().print_function(func))
    assert "data_0 = data[0]" in text and "data_1 = data[2]" in text and "out[i_2] = i + i_2" in text


def test_what_is_well_named_stays() -> None:
    """Blocks beside each other may use a name again, as passes do; such a function is not touched."""
    i = ir.Var("i")
    loop = ir.For(i, ir.const(4, "int32"), ir.Store(OUT, (i,), DATA[i]))
    func = ir.PrimFunc("kernel", (DATA, OUT), ir.seq(loop, loop, let("value", 0), let("log2", 1)))
    assert make_names_distinct(func) == func


def test_a_function_that_is_called_is_no_value() -> None:
    """``expf`` as a value and as a function."""
    x, out = ir.Buffer("x", (1,), "float32"), ir.Buffer("out", (1,), "float32")
    value = ir.Var("expf", "float32")
    body = ir.Let(value, x[0], ir.Store(out, (ir.const(0, "int32"),), ir.call("exp", value, dtype="float32")))
    text = "\n".join(StmtPrinter().print_function(ir.PrimFunc("kernel", (x, out), body)))
    assert "const float expf_2 = x[0];" in text and "out[0] = expf(expf_2);" in text


def test_all_helpers_are_known(tmp_path: Path) -> None:
    """Functions that printed code calls are taken: no kernel and no value is called like one."""
    names = [f"{op}_{kind}" for op in ("min", "max", "floordiv", "floormod") for kind in ("i32", "i64", "u32", "f32")]
    names += ["i32_of_f32", "f64_of_u64", "float16_to_float", "float_to_bfloat16", "int32x4"]
    texts = print_helper_functions([name for name in names if "floor" not in name or name[-3:] != "f32"])
    assert all(map(is_callable_name, texts))
    source = tmp_path / "helpers.c"
    lines = [line for text in texts.values() for line in text]
    source.write_text("\n".join(["#include <stdint.h>", "#include <string.h>", *lines, ""]))
    subprocess.run(["cc", "-std=c99", "-fsyntax-only", source], check=True)
    assert (
        StmtPrinter()
        .print_function(ir.PrimFunc("kernel", (DATA, OUT), let("x", 0)))[0]
        .startswith("static void kernel")
    )
