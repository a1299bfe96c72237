# SPDX-License-Identifier: Apache-2.0
"""Intrinsics on three machines: their meaning interpreted, their portable C here, their instructions on emulated cores."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array, c_name, to_numpy
from microc.codegen.c.interface import print_constant_definition
from microc.device.boards import load_board
from microc.isa import CORES, SCALAR, TENSOR
from microc.isa.instruction_set import ANY
from microc.isa.vocabulary.matrix_products import UNIT_WORDS
from microc.module import Value
from microc.schedule.identities import intrinsic_functions
from microc.tir import ir
from microc.tir.interp import execute
from tests.codegen.machines import compiled_here, firmware, meant, on_board
from tests.device.smoke import needs
from tests.emulated.functions import emulated
from tests.emulated.machines import MACHINES
from tests.support.native import call

COUNT = 257
NAMES = [
    name
    for name, intrin in SCALAR.items()
    if intrin not in UNIT_WORDS
    and not intrin.lanes
    and not any(isinstance(p, ir.Buffer) and p.size == ANY for p in intrin.params)
]
"""Vectors, runs of memory and instructions of a tensor unit have tests of their own."""
ALIGNED = "__attribute__((aligned(4)))"


def function(name: str) -> ir.PrimFunc:
    """The intrinsic on many operands: words one after the other, memory from every alignment that it allows."""
    intrin, i = SCALAR[name], ir.Var("i")
    effect = isinstance(intrin.meaning, ir.Stmt)
    apart = effect or name.endswith("_aligned")
    params: list[ir.Buffer] = []
    args: list[ir.Expr] = []
    for param in intrin.params:
        if isinstance(param, ir.Buffer):
            size = param.size
            params.append(ir.Buffer("p", (COUNT * size,), param.dtype))
            args.append(ir.AddressOf(params[-1], (i * (size if apart else 1),), size, effect))
        else:
            params.append(ir.Buffer(param.name, (COUNT,), param.dtype))
            args.append(params[-1][i])
    applied = ir.Call(name, tuple(args), intrin.result or "int32")
    if effect:
        params = [*params[1:], params[0]]
        body: ir.Stmt = ir.Evaluate(applied)
    else:
        params.append(ir.Buffer("result", (COUNT,), intrin.result))
        body = ir.Store(params[-1], (i,), applied)
    return ir.PrimFunc(f"test_{name}", tuple(params), ir.For(i, ir.const(COUNT, "int32"), body))


def halves(dice: np.random.Generator, limit: int) -> Array:
    """Words of two 16-bit numbers within the limit."""
    low, high = (dice.integers(-limit, limit, COUNT, endpoint=True) for _ in range(2))
    return ((high << 16) | (low & 0xFFFF)).astype(np.int32)


@cache
def operands(name: str) -> tuple[Array, ...]:
    """Data for all parameters but the last, within their limits; both products of a pair stay within 31 bits."""
    dice = np.random.default_rng(0)
    if name == "nearest_i32":  # ties, whole numbers, what no int32 holds
        ends = (0.5, 1.5, -2.5, 2147483520.0, 2147483648.0, -2147483648.0, -3e9, np.inf, -np.inf, np.nan)
        scales = dice.choice((1.0, 100.0, 1e5, 1e9), COUNT - len(ends))
        return (np.concatenate((ends, dice.normal(size=COUNT - len(ends)) * scales)).astype(np.float32),)
    if name.startswith("float16"):  # two of all that are no NaN in a word
        bits = np.setdiff1d(np.arange(1 << 16), (*range(0x7C01, 0x8000), *range(0xFC01, 1 << 16)))
        return (dice.choice(bits, (COUNT, 2)).astype(np.uint16).view(np.float32).reshape(COUNT),)
    limits = {label: (low, high) for label, low, high in SCALAR[name].limits}
    found = []
    for param in function(name).params[:-1]:
        kind = np.iinfo(to_numpy(param.dtype))
        low, high = limits.get(param.name, (kind.min, kind.max))
        array = dice.integers(low, high, param.shape, endpoint=True).astype(kind.dtype)
        array[:4] = (low, high, 0, -1 if low else 1)
        found.append(array)
    if name.startswith(("dot2", "mac_")):
        found[:2] = [halves(dice, 20000), halves(dice, 20000)]
        found[0][0] = found[1][0] = -(1 << 31)  # one half -32768 squared, the other zero
    if name.startswith("widen_less"):  # differences within 16 bits
        found[-1] = (((found[-1] % 511 - 255) & 0xFFFF).astype(np.uint32) * np.uint32(0x10001)).view(np.int32)
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


def program(cpu: str) -> str:
    """The same functions over data in flash, aligned to words; every one has its result."""
    data, answers = [], []
    for name in NAMES:
        params = function(name).params
        names = [f"{name}_{param.name}" for param in params]
        for label, array in zip(names, operands(name), strict=False):
            value = Value(label, array.shape, str(array.dtype), "const", array)
            data.append("static " + "\n".join(print_constant_definition(value, ALIGNED)))
        out = params[-1]
        data.append(f"static {c_name(out.dtype)} {names[-1]}[{out.size}] {ALIGNED};")
        answers.append(f"test_{name}({', '.join(names)});")
        answers.append(f"(void)microc_port_write((const uint8_t *){names[-1]}, sizeof {names[-1]});")
    return firmware(cpu, [function(name) for name in NAMES], data, answers)


@pytest.mark.cross
@pytest.mark.emulator
@needs("arm-none-eabi-gcc", "arm-none-eabi-objdump", "qemu-system-arm")
@pytest.mark.parametrize(
    ("cpu", "name", "flags"),
    [("cortex-m4", "mps2-an386", ()), ("cortex-m0", "mps2-an385", ("-mcpu=cortex-m0",))],
)
def test_instructions(cpu: str, name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """On a Cortex-M4, and those of Armv6-M on a Cortex-M3."""
    source = tmp_path / "intrinsics.c"
    source.write_text(program(cpu))
    on_board(load_board(name), source, tmp_path, flags, wanted())


@pytest.mark.emulator
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_instructions_of_armv6(compiler: str, tmp_path: Path) -> None:
    """Those of the Cortex-M4 as Arm instructions, by qemu-arm."""
    names = [name for name in NAMES if name in CORES["arm1176"].has]
    assert {"dot2", "high_mac_round", "widen_less_i8x4", "nearest_i32", "load_i8x4"} <= set(names)
    machine = MACHINES["arm1176"]
    with emulated([function(name) for name in names], tmp_path, "-O2", machine=machine, compiler=compiler) as calls:
        for name in names:
            want = wanted()[name]
            got = call(calls, function(name), [*operands(name), np.zeros_like(want)])
            np.testing.assert_array_equal(got[-1], want, err_msg=name)


@pytest.mark.parametrize("name", TENSOR)
def test_tensor_intrinsics(name: str) -> None:
    """The replacement of a small loop nest is a sum of products for each output."""
    intrin, dice = TENSOR[name], np.random.default_rng(1)
    orders = [np.reshape(order, (intrin.outputs, -1)) for order in (intrin.order_a, intrin.order_b)]
    arrays = []
    for dtype, order in zip((intrin.a, intrin.b), orders, strict=True):
        kind = np.iinfo(to_numpy(dtype))
        low, high = (max(kind.min, -4096), min(kind.max, 4095))
        arrays.append(dice.integers(low, high, order.max() + 2, endpoint=True).astype(kind.dtype))
    a, b = (ir.Buffer(n, x.shape, d) for n, x, d in zip("ab", arrays, (intrin.a, intrin.b), strict=True))
    out = ir.Buffer("result", (intrin.outputs,), "int32")
    body = intrin.build_body(a[0], b[0], tuple(out[n] for n in range(intrin.outputs)))
    start = np.full(intrin.outputs, 5, np.int32)
    got = execute(ir.PrimFunc("dot", (a, b, out), body), [*arrays, start], intrinsic_functions())[-1]
    left, right = (x.astype(int)[order] for x, order in zip(arrays, orders, strict=True))
    np.testing.assert_array_equal(got, 5 + (left * right).sum(axis=1))
