# SPDX-License-Identifier: Apache-2.0
"""Vector intrinsics on three machines: their meaning interpreted, their portable C here, their instructions on a Cortex-M55."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import HALF, Array, is_vector, to_numpy
from microc.codegen.c.c_statements import print_helper_functions
from microc.codegen.c.interface import print_constant_definition
from microc.device.boards import load_board
from microc.isa import SCALAR
from microc.isa.mve.arm_mve import ARM_MVE, ARM_MVE_FLOAT
from microc.isa.mve.arm_mve_products import REQUANTISATION_BODIES
from microc.isa.vocabulary.matrix_products import BITS
from microc.isa.vocabulary.vector_lanes import FLOAT_LANES
from microc.module import Value
from microc.tir import ir
from tests.codegen.machines import compiled_here, firmware, meant, often, on_board
from tests.device.smoke import needs

NAMES = [name for name in (*ARM_MVE.bodies, *ARM_MVE_FLOAT.bodies) if name not in REQUANTISATION_BODIES]
"""Those that requantise rows have a test of their own."""
ARITHMETIC = [name for name in NAMES if all(not isinstance(p, ir.Buffer) for p in SCALAR[name].params)]
COUNT, DEPTHS = 37, (1, 15, 16, 17, 32, 48, 64, 65, 80, 96, 113, 128, 177)
DISTANCES = (21, 5, 16)
"""Elements from row to row: products of several rows load ahead if these are at least a vector."""
STRIDED = {"n": (100, 45, *range(1, 20)), "step": (3, 19, *range(1, 20))}
EDGES = (0, 1, -1, 2, -2, 3, (1 << 30) - 1, 1 << 30, -(1 << 30), (1 << 31) - 1, -(1 << 31), 1 << 16, -(1 << 24) + 1)

FLOAT_EDGES = (np.nan, np.nan, 1.0, -np.inf, np.inf, -1.0, 0.0, 3.0)


@cache
def function(name: str) -> ir.PrimFunc:
    known = {"stride_b": 33, "stride_sums": 6 if name.startswith("rows") else 3}
    if not name.startswith("dot_"):
        known["stride_a"] = 5
    if not name.startswith("row_"):
        known["columns"] = 6
    return often(name, COUNT, 1000 if "strided" in name or name.startswith("row") else COUNT + 300, known)


def test_no_word_of_floats_is_a_loop_over_lanes() -> None:
    """gcc 12 drops stores to vectors that a loop reads by lanes."""
    assert not [word.name for word in FLOAT_LANES if word.lanes == 4 and word.name not in ARM_MVE_FLOAT.bodies]


@cache
def operands(name: str) -> tuple[Array, ...]:
    """Data for all parameters but the last: edges, then random values of every magnitude, within what the meaning allows."""
    dice = np.random.default_rng(sum(map(ord, name)))
    op = name if name in ARITHMETIC and "f32" not in name else name.split("_")[0]
    found = []
    for param in function(name).params[:-1]:
        if param.dtype == "float32":
            numbers = dice.normal(size=param.shape).astype(np.float32)
            if op in ("min", "max", "select"):
                numbers[: len(FLOAT_EDGES)] = np.roll(FLOAT_EDGES, "abxy".index(param.name))
            found.append(numbers)
            continue
        if param.dtype in HALF:
            found.append(dice.integers(0, 1 << 16, param.shape, np.uint16).view(to_numpy(param.dtype)))
            continue
        kind = np.iinfo(to_numpy(param.dtype))
        magnitude = dice.integers(1, kind.bits, param.shape)
        array = (dice.integers(kind.min, kind.max, param.shape, endpoint=True) >> (kind.bits - magnitude)).astype(
            kind.dtype
        )
        if param.dtype == "int32" and (op == "select" or op in ARITHMETIC):
            array[: len(EDGES)] = EDGES if param.name == "a" else np.roll(EDGES, 3 + len(param.name))
        if op == "dot" and param.dtype == "int16":
            array = np.clip(array, -3000, 3000).astype(np.int16)
        if "strided" in name and param.name in STRIDED:
            array = np.resize(STRIDED[param.name], param.shape).astype(np.int32)
        elif param.name == "n":
            array = dice.integers(0 if "first" in name else 1, 5 if "first" in name else 19, param.shape).astype(
                np.int32
            )
        elif param.name == "columns":
            array = np.resize((6, 4), param.shape).astype(np.int32)
        elif param.name == "stride_a":
            array = np.resize(DISTANCES, param.shape).astype(np.int32)
        elif param.name == "depth":
            whole = next((form.group for form in BITS.values() if f"_i{form.bits}_" in name), 0)
            depths = [whole, 2 * whole] if whole else DEPTHS
            array = np.resize(depths, param.shape).astype(np.int32)
        elif op.startswith(("shl", "shift_round")) and param.name == "b":
            array = -dice.integers(0, 32, param.shape).astype(np.int32)
        elif op in ("gather", "scatter") and param.name == "a":
            array = dice.integers(0, COUNT + 300 if op == "gather" else 19, param.shape).astype(np.int32)
        found.append(array)
    return tuple(found)


@cache
def wanted() -> dict[str, Array]:
    return {name: meant(function(name), operands(name)) for name in NAMES}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_portable_bodies(compiler: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    funcs = {name: function(name) for name in NAMES}
    found = compiled_here(funcs, {name: operands(name) for name in NAMES}, tmp_path, compiler)
    for name, want in wanted().items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)
    assert "runtime error" not in capfd.readouterr().err


def program() -> str:
    """The same functions over data in flash; all results lie in one place, one after the other."""
    data, answers = [f"static int32_t result[{COUNT * 20}];"], []
    for name in NAMES:
        *params, out = function(name).params
        labels = [f"{name}_{param.name}" for param in params]
        for label, array in zip(labels, operands(name), strict=True):
            data.append(
                "static "
                + "\n".join(print_constant_definition(Value(label, array.shape, str(array.dtype), "const", array)))
            )
        answers.append("memset(result, 0, sizeof result);")
        answers.append(f"test_{name}({', '.join([*labels, '(void *)result'])});")
        answers.append(f"(void)microc_port_write((const uint8_t *)result, {out.nbytes});")
    return firmware("cortex-m55", [function(name) for name in NAMES], data, answers)


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "arm-none-eabi-objdump", "qemu-system-arm")
def test_instructions(tmp_path: Path) -> None:
    source = tmp_path / "intrinsics.c"
    source.write_text(program())
    on_board(load_board("mps3-an547"), source, tmp_path, (), wanted())


@pytest.mark.cross
@needs("arm-none-eabi-gcc")
def test_what_has_no_vector_among_its_parameters_stands_alone(tmp_path: Path) -> None:
    """A kernel may copy by vectors and compute with none: the copy declares what it needs itself."""
    words = {name: SCALAR[name] for name in (*ARM_MVE.bodies, *ARM_MVE_FLOAT.bodies)}
    alone = [
        name
        for name, word in words.items()
        if not any(is_vector(dtype) for dtype in (word.result, *(p.dtype for p in word.params)) if dtype)
    ]
    assert "copy_strided_i8" in alone
    files = [tmp_path / f"{name}.c" for name in alone]
    for name, path in zip(alone, files, strict=True):
        texts = print_helper_functions([name], "cortex-m55")
        lines = (line for lines in texts.values() for line in lines)
        path.write_text("\n".join(("#include <stdint.h>", "#include <string.h>", *lines, "")))
    flags = [flag for flag in load_board("mps3-an547").raw["build"]["c_flags"] if not flag.startswith("--specs")]
    command = ["arm-none-eabi-gcc", *flags, "-Werror=implicit-function-declaration", "-fsyntax-only", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
