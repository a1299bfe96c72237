# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ in literals share one body and read the literals from a table."""

from __future__ import annotations

import numpy as np

from microc import te
from microc.compiler.lowering.kernel_builder import merge_kernels
from microc.module import Call, Kernel, Module, Value
from microc.schedule.identities import intrinsic_functions
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.rewrite import walk_stmt


def scaled(name: str, factor: int, offset: int, size: int = 4) -> Kernel:
    """out = x * factor + offset."""
    x = te.placeholder((size,), "int32", "x")
    out = te.compute((size,), lambda i: x[i] * factor + offset, "out", ("i",))
    return Kernel(lower(te.create_prim_func(name, [x], [out])))


def chain(*kernels: Kernel) -> Module:
    """The kernels one after the other."""
    names = [f"v{k}" for k in range(len(kernels) + 1)]
    size = kernels[0].func.params[0].shape
    values = {n: Value(n, size, "int32", "intermediate") for n in names}
    calls = tuple(Call(k.name, (a, b), (a,), (b,)) for k, a, b in zip(kernels, names, names[1:], strict=False))
    return Module("net", values, kernels, calls, (names[0],), (names[-1],))


def test_one_body_and_a_table_for_each() -> None:
    module = merge_kernels(chain(scaled("a", 3, 7), scaled("b", 5, 7), scaled("c", 5, -2)))
    (kernel,) = module.kernels
    assert kernel.name == "a"
    assert kernel.func.params[-1].scope == "const"
    for call, (factor, offset) in zip(module.calls, ((3, 7), (5, 7), (5, -2)), strict=True):
        table = module.values[call.args[-1]].data
        assert table is not None
        x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
        run(kernel.func, [x, out, table])
        np.testing.assert_array_equal(out, x * factor + offset)


def test_literals_of_calls_are_merged() -> None:
    """What vectors are scaled by stands in calls, not in stores."""

    def filled(name: str, value: int) -> Kernel:
        x, out = ir.Buffer("x", (4,), "int8"), ir.Buffer("out", (4,), "int8")
        target = ir.AddressOf(out, (ir.const(0, "int32"),), 4, True)
        call = ir.Call("fill_i8", (target, ir.const(value, "int32"), ir.const(4, "int32")), "int32")
        return Kernel(ir.PrimFunc(name, (x, out), ir.Evaluate(call)))

    module = merge_kernels(chain(filled("a", 3), filled("b", 5)))
    (kernel,) = module.kernels
    for call, value in zip(module.calls, (3, 5), strict=True):
        table = module.values[call.args[-1]].data
        assert table is not None
        x, out = np.zeros(4, np.int8), np.zeros(4, np.int8)
        run(kernel.func, [x, out, table], intrinsic_functions())
        np.testing.assert_array_equal(out, value)


def test_literals_that_agree_stay_literals() -> None:
    (kernel,) = merge_kernels(chain(scaled("a", 3, 7), scaled("b", 5, 7))).kernels
    literals = {
        s.value.b for s in walk_stmt(kernel.func.body) if isinstance(s, ir.Store) and isinstance(s.value, ir.Bin)
    }
    assert ir.const(7, "int32") in literals


def test_other_shapes_stay_apart() -> None:
    module = chain(scaled("a", 3, 7), scaled("b", 3, 8, size=5))
    assert merge_kernels(module) == module
