# SPDX-License-Identifier: Apache-2.0
"""Kernels that differ in literals share one body and read the literals from a table. Constants of channels are stored
behind the weights of these channels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc import te
from microc.base.dtypes import Array
from microc.compiler.lowering.kernel_builder import append_channel_constants, find_channel_blocks, merge_kernels
from microc.module import Call, Kernel, Module, Value
from microc.schedule.identities import intrinsic_functions
from microc.target import Goal, target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.rewrite import map_accesses, walk_stmt


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


M4, BALANCED = target_for("cortex-m4"), Goal("balanced", 0.1)


def sum_of(weight: te.Tensor, o: ir.Expr, depth: int) -> ir.Expr:
    """The sum of a row."""
    return sum((weight[o, k].astype("int32") for k in range(depth)), ir.const(0, "int32"))


def dense_channels(depth: int, dtype: str = "int16") -> Kernel:
    """out[o] = sum(weight[o, k]) + bias[o] - multiplier[o]."""
    weight = te.placeholder((6, depth), dtype, "weight")
    bias, multiplier = (te.placeholder((6,), "int32", name) for name in ("bias", "multiplier"))
    out = te.compute((6,), lambda o: sum_of(weight, o, depth) + bias[o] - multiplier[o], "out", ("o",))
    constants = [weight, bias, multiplier]
    return Kernel(lower(te.create_prim_func("dense", [], [out], constants)))


def network_of(kernel: Kernel, *calls: tuple[str, str, str]) -> Module:
    """A module of calls with these weights, biases and multipliers, of random numbers."""
    rng = np.random.default_rng(5)
    values: dict[str, Value] = {}
    for n, names in enumerate(calls):
        for name, param in zip(names, kernel.func.params, strict=False):
            data = rng.integers(-(1 << 14), 1 << 14, param.shape).astype(param.dtype)
            if param.dtype == "int32":
                data = data * 32749
            values.setdefault(name, Value(name, param.shape, param.dtype, "const", data))
        values[f"out{n}"] = Value(f"out{n}", (6,), "int32", "intermediate")
    made = tuple(Call("dense", (*names, f"out{n}"), (), (f"out{n}",)) for n, names in enumerate(calls))
    return Module("net", values, (kernel,), made, (), ("out0",))


def results(module: Module) -> list[Array]:
    """The results of all calls."""
    (kernel,) = module.kernels
    outs = []
    for call in module.calls:
        outs.append(np.zeros(6, np.int32))
        arrays = [module.values[name].data for name in call.args[:-1]]
        run(kernel.func, [*(a for a in arrays if a is not None), outs[-1]], intrinsic_functions())
    return outs


@pytest.mark.parametrize("depth", [4, 5])
def test_constants_behind_weights(depth: int) -> None:
    module = network_of(dense_channels(depth), ("w0", "b0", "m0"), ("w1", "b1", "m1"))
    changed = append_channel_constants(module, M4, BALANCED)
    assert [p.name for p in changed.kernels[0].func.params] == ["weight", "out"]
    assert sorted(changed.values) == ["out0", "out1", "w0", "w1"]
    assert sum(v.nbytes for v in changed.values.values()) == sum(v.nbytes for v in module.values.values())
    for before, after in zip(results(module), results(changed), strict=True):
        np.testing.assert_array_equal(before, after)


def test_weights_of_other_constants_remain() -> None:
    module = network_of(dense_channels(4), ("w0", "b0", "m0"), ("w0", "b1", "m0"))
    assert append_channel_constants(module, M4, BALANCED) == module


def test_flash_of_shared_constants_has_a_price() -> None:
    module = network_of(dense_channels(4), ("w0", "b0", "m0"), ("w1", "b0", "m0"))
    assert append_channel_constants(module, M4, Goal("balanced", 1e6)) == module
    changed = append_channel_constants(module, M4, Goal("speed", 0.0))
    for before, after in zip(results(module), results(changed), strict=True):
        np.testing.assert_array_equal(before, after)


def test_bytes_have_no_words_behind_them() -> None:
    assert find_channel_blocks(dense_channels(4, "int8").func, M4) is None


def test_constants_that_vectors_load_remain() -> None:
    """An intrinsic takes the address of int32; words among int16 have none."""
    kernel = dense_channels(4)
    assert find_channel_blocks(kernel.func, target_for("wasm-simd128")) is not None
    bias = kernel.func.params[1]

    def load_from_address(access: ir.Load | ir.AddressOf) -> ir.Expr:
        return ir.Call("load_i32", (ir.AddressOf(bias, access.indices, 1),), "int32")

    body = map_accesses(kernel.func.body, {bias}, lambda stmt: stmt, load_from_address)
    blocks = find_channel_blocks(replace(kernel.func, body=body), target_for("wasm-simd128"))
    assert blocks is not None
    assert [constant.name for constant in blocks.constants] == ["multiplier"]
