# SPDX-License-Identifier: Apache-2.0
"""Schedules for cores with vectors (MVE): the same integers as the reference, and everything that repeats in lanes."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arithmetic import build_wrapping_binary
from microc.ops.convolution.geometry import DEFAULTS
from microc.ops.lowering import LoweredGroup, lower_group
from microc.ops.quantised.int16_functions import signed_sigmoid_table
from microc.ops.registry import get
from microc.schedule.cost.cost_model import estimate
from microc.schedule.cost.loop_region import expand_memory_calls
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules import candidate_schedules
from microc.schedule.rules.rule import product_multiples
from microc.target import SPEED, target_for
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.lower.lane_scope import match_rounded_product, match_rounding_shift
from microc.tir.lower.lanes import lower_lanes
from microc.tir.rewrite import walk_all_exprs, walk_stmt
from microc.tir.verify import verify
from tests.ops.compiled import compiled_case
from tests.schedule.functions import schedule_kernel
from tests.schedule.test_depthwise import LAYERS, Layer, arguments, reference

M55 = target_for("cortex-m55")
SCALAR_SCALING = ("high_mul_round", "high_mac_round", "saturate_i8")


@pytest.mark.parametrize("name", LAYERS)
def test_depthwise_in_lanes_is_exact(name: str) -> None:
    graph, group = LAYERS[name].group()
    schedule = schedule_kernel(group.func, "conv2d", M55)
    func = lower(schedule.func)
    verify(func, tables=())
    calls = {e.name for e in walk_all_exprs(func.body) if isinstance(e, ir.Call)}
    assert any(call.startswith("doubling_high_mul") for call in calls) and not calls & set(SCALAR_SCALING)
    x = LAYERS[name].input()
    arrays = arguments(group, schedule, func, x)
    run(func, arrays, intrinsic_functions())
    result = arrays[len(group.params)]
    np.testing.assert_array_equal(result, reference(graph, x).reshape(result.shape))


@pytest.mark.parametrize(("taps", "loop"), [(5, False), (23, True)])
def test_many_taps_of_one_row_are_a_loop(taps: int, loop: bool) -> None:
    """Written out, their products would wait on the stack."""
    layer = Layer((taps, 1, 8), (taps, 1), relu=False)
    graph, group = layer.group()
    schedule = schedule_kernel(group.func, "conv2d", M55)
    func, x = lower(schedule.func), layer.input()
    extents = [ir.int_value(s.extent) for s in walk_stmt(func.body) if isinstance(s, ir.For)]
    assert (taps in extents) == loop
    arrays = arguments(group, schedule, func, x)
    run(func, arrays, intrinsic_functions())
    result = arrays[len(group.params)]
    np.testing.assert_array_equal(result, reference(graph, x).reshape(result.shape))


def matrix(
    pixels: int, depth: int, channels: int, *, bias: bool, rounding: str = "double"
) -> tuple[Graph, LoweredGroup]:
    """A pointwise convolution and its requantisation."""
    dice = np.random.default_rng(3)
    consts: dict[str, Array] = {
        "w": dice.integers(-127, 127, (channels, 1, 1, depth), endpoint=True).astype(np.int8),
        "b": dice.integers(-20000, 20000, channels).astype(np.int32),
        "m": dice.integers(1 << 30, (1 << 31) - 1, channels).astype(np.int32),
        "s": dice.integers(-10, -6, channels).astype(np.int8),
    }
    names = ("x", "w", "b") if bias else ("x", "w")
    consts = {name: array for name, array in consts.items() if bias or name != "b"}
    types = {name: TensorType(array.shape, str(array.dtype)) for name, array in consts.items()}
    types["x"] = TensorType((1, 1, pixels, depth), "int8")
    attrs: dict[str, Attr] = {**DEFAULTS, "pad_value": 0, "out_dtype": "int32"}
    types["acc"] = get("conv2d").infer(attrs, [types[name] for name in names])[0]
    types["y"] = TensorType(types["acc"].shape, "int8")
    scaling: dict[str, Attr] = {"multiplier": None, "shift": None, "shift_range": (-10, -6), "input_zero_point": 0}
    scaling |= {"rounding": rounding, "bound": (1 << 22) + 20000, "zero_point": 3}
    scaling |= {"minimum": -128, "maximum": 127, "out_dtype": "int8"}
    nodes = (Node("conv2d", names, ("acc",), attrs), Node("requantize", ("acc", "m", "s"), ("y",), scaling))
    graph = Graph("g", ("x",), ("y",), nodes, types, consts)
    return graph, lower_group(graph, nodes, product_multiples(M55), "kernel")


@pytest.mark.parametrize(("bias", "rounding"), [(True, "double"), (False, "double"), (True, "single")])
@pytest.mark.parametrize(
    ("pixels", "depth", "channels"),
    [(7, 20, 67), (4, 16, 50), (3, 9, 97), (8, 40, 1), (1, 64, 130), (1, 33, 262), (1, 32, 67), (1, 16, 3), (1, 7, 1)],
)
def test_products_are_exact(pixels: int, depth: int, channels: int, bias: bool, rounding: str) -> None:
    """Whatever channels remain: all of them by products, scaled in lanes however often that rounds."""
    graph, group = matrix(pixels, depth, channels, bias=bias, rounding=rounding)
    schedule = next(s for s in candidate_schedules(group.func, "conv2d", M55, SPEED) if s.rule == "matrix mve")
    func = lower(schedule.func)
    verify(func, tables=())
    calls = {e.name for e in walk_all_exprs(func.body) if isinstance(e, ir.Call)}
    assert any(call.startswith("dot_") for call in calls)
    assert channels < 4 or any(call.startswith("doubling_high") for call in calls)
    stored = [s for s in walk_stmt(func.body) if isinstance(s, ir.Store) and s.buffer.scope == "local"]
    assert not any(isinstance(s.value, ir.Bin) for s in stored)
    x = np.random.default_rng(4).integers(-128, 127, (1, 1, pixels, depth), endpoint=True).astype(np.int8)
    arrays = arguments(group, schedule, func, x.reshape(func.params[0].shape))
    run(func, arrays, intrinsic_functions())
    result = arrays[len(group.params)]
    np.testing.assert_array_equal(result, reference(graph, x).reshape(result.shape))


def test_the_loop_inside_an_intrinsic_is_counted() -> None:
    """A product of bytes takes two instructions for 16 steps, whatever the depth, and some that do not grow."""

    def instructions(depth: int) -> float:
        _, group = matrix(1, depth, 64, bias=True)
        return estimate(lower(schedule_kernel(group.func, "conv2d", M55).func), M55).instructions

    steps = 64 * (640 - 128) // 16
    assert 2 * steps < instructions(640) - instructions(128) < 3 * steps


def test_rounding_added_by_the_multiplication_is_recognised() -> None:
    """With a zero point, with what else is added, by a distance that is data or a number; not what rounds otherwise."""
    x, m, s = ir.Var("x"), ir.Var("m"), ir.Var("s")
    one, product = ir.const(1, "int32"), ir.call("high_mul_round", x << 1, m)
    half = one << (s - 1)

    def rounded(added: ir.Expr, distance: ir.Expr | int) -> ir.Expr:
        return ir.call("high_mac_round", x << 1, m, added) >> distance

    assert match_rounding_shift(rounded(half, s)) == (product, s, 0)
    assert match_rounding_shift(rounded(half * -255, s)) == (product, s, -128)
    assert match_rounding_shift(rounded((x >> 31) + half * 7, s)) == (product + (x >> 31), s, 3)
    number = match_rounding_shift(rounded((x >> 31) + (16 + 3 * 32), 5))
    assert number == (product + (x >> 31), ir.const(5, "int32"), 3)
    assert match_rounding_shift(rounded(half * 2, s)) is None
    assert match_rounding_shift(rounded(half + 1, s)) is None
    assert match_rounding_shift(rounded(one << s, s)) is None
    assert match_rounding_shift(rounded(ir.const(15, "int32"), 5)) is None


def test_one_rounding_is_recognised() -> None:
    """Of twice x, and of an x that has no room for that; with a zero point; not what rounds otherwise."""
    x, m, s = ir.Var("x"), ir.Var("m"), ir.Var("s")
    half = ir.const(1, "int32") << (s - 1)

    def rounded(operand: ir.Expr, added: ir.Expr, distance: ir.Expr | int) -> ir.Expr:
        return ir.call("high_mac", operand, m, added) >> distance

    assert match_rounded_product(rounded(x << 1, half, s)) == (x, m, s, 0)
    assert match_rounded_product(rounded(x << 2, half * 7, s)) == (x << 1, m, s, 3)
    assert match_rounded_product(rounded(x, half * -255, s)) == (x, m, s + 1, -128)
    assert match_rounded_product(rounded(x, ir.const(16 + 3 * 32, "int32"), 5)) == (x, m, ir.const(6, "int32"), 3)
    assert match_rounded_product(rounded(x << 1, half + x, s)) is None
    assert match_rounded_product(rounded(x << 1, half * 2, s)) is None


def test_lookups_that_a_choice_guards_stay_within_their_table() -> None:
    """All lanes compute both sides: what is looked up at -x is at no place for the x above zero that do not want it."""
    x, table, out = ir.Buffer("x", (4,), "int32"), ir.Buffer("table", (8,), "int32"), ir.Buffer("out", (4,), "int32")
    i = ir.Var("i")
    chosen = ir.select(x[i] < 0, table[-x[i]] * 2, table[ir.minimum(x[i], 7)])
    loop = ir.For(i, ir.const(4, "int32"), ir.Store(out, (i,), chosen), "vectorized", (("lanes", 4),))
    body = lower_lanes(loop)
    assert sum(isinstance(e, ir.Call) and e.name.startswith("gather") for e in walk_all_exprs(body)) == 2
    data, numbers, made = np.array([-7, 3, 90, 0], np.int32), np.arange(8, dtype=np.int32) + 5, np.zeros(4, np.int32)
    run(ir.PrimFunc("chosen", (x, table, out), body), [data, numbers, made], intrinsic_functions())
    np.testing.assert_array_equal(made, [24, 8, 12, 5])


def test_sums_that_wrap_are_made_in_lanes() -> None:
    """As int32 they are what C computes by uint32; numbers at the ends."""
    data = np.array([2**31 - 1, -(2**31), -1, 7], np.int32)
    x, out = (ir.Buffer(name, data.shape, "int32") for name in ("x", "out"))
    i, made = ir.Var("i"), np.zeros(data.shape, np.int32)
    total = build_wrapping_binary(
        "add", build_wrapping_binary("mul", x[i], x[i]), ir.cast("int32", ir.cast("int16", x[i]))
    )
    loop = ir.For(i, ir.const(4, "int32"), ir.Store(out, (i,), total), "vectorized", (("lanes", 4),))
    run(ir.PrimFunc("wrapped", (x, out), lower_lanes(loop)), [data, made], intrinsic_functions())
    np.testing.assert_array_equal(made, data * data + data.astype(np.int16))


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize(
    ("word", "dtype"), [("saturate_i8", "int8"), ("saturate_u8", "uint8"), ("saturate_i16", "int16")]
)
def test_what_instructions_saturate_is_clamped_where_it_is_stored(word: str, dtype: str, halved: bool) -> None:
    """Six numbers, four of which fill a vector: no vectors of bounds; a clamped number that is taken up again, too."""
    data = np.array([2**31 - 1, -(2**31), -129, 256, 40000, -40000], np.int32)
    x, out = ir.Buffer("x", data.shape, "int32"), ir.Buffer("out", data.shape, dtype)
    i, made = ir.Var("i"), np.zeros(data.shape, dtype)
    again = ir.Call("saturate_i16", (x[i],), "int32")
    value = ir.Call(f"{word}_shr_1" if halved else word, (again + 3,), "int32")
    store = ir.Store(out, (i,), ir.cast(dtype, value))
    body = lower_lanes(ir.For(i, ir.const(data.size, "int32"), store, "vectorized", (("lanes", 4),)))
    words = {e.name for e in walk_all_exprs(body) if isinstance(e, ir.Call)}
    assert any(name.startswith("store_saturated") for name in words) and "saturate_i16_i32x4" in words
    assert not {name for name in words if name.startswith(("min", "max"))}
    run(ir.PrimFunc("saturated", (x, out), body), [data, made], intrinsic_functions())
    sums = np.clip(data, -32768, 32767) + 3
    np.testing.assert_array_equal(
        made, np.clip(sums >> 1 if halved else sums, np.iinfo(dtype).min, np.iinfo(dtype).max)
    )


@pytest.mark.parametrize("distance", [2, 8, 15])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("count", [8, 6])
def test_a_saturating_store_rounds_and_shifts(count: int, dtype: str, distance: int) -> None:
    """One instruction shifts with rounding and saturates, in whole vectors and in the first lanes of one."""
    data = np.array([2**31 - 1, -(2**31), -129, 256, 40000, -40000, -1, 127], np.int32)[:count]
    x, out = ir.Buffer("x", data.shape, "int32"), ir.Buffer("out", data.shape, dtype)
    i, made = ir.Var("i"), np.zeros(data.shape, dtype)
    value = ir.Call(f"saturate_i{dtype[3:]}", (((x[i] >> (distance - 1)) + 1) >> 1,), "int32")
    store = ir.Store(out, (i,), ir.cast(dtype, value))
    body = lower_lanes(ir.For(i, ir.const(count, "int32"), store, "vectorized", (("lanes", 4),)))
    names = {e.name for e in walk_all_exprs(body) if isinstance(e, ir.Call)}
    assert any(name.startswith(f"store_saturated_i{dtype[3:]}_rshr_{distance}_i32x4") for name in names)
    run(ir.PrimFunc("narrowed", (x, out), body), [data, made], intrinsic_functions())
    expected = np.clip((data.astype(np.int64) + (1 << (distance - 1))) >> distance, *dtypes.int_range(dtype))
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("curve", ["sigmoid", "tanh"])
@pytest.mark.parametrize(("multiplier", "shift"), [(3, 0), (20133, 14), (32767, 12)])
def test_curves_without_branches_are_the_same(curve: str, multiplier: int, shift: int) -> None:
    """All of int16, saturated ones too."""
    data, attrs = np.arange(-32768, 32768).astype(np.int16), {"curve": curve, "multiplier": multiplier, "shift": shift}
    x, out = (ir.Buffer(name, data.shape, "int16") for name in ("x", "out"))
    table, i, made = ir.Buffer("table", (513,), "uint16"), ir.Var("i"), np.zeros(data.shape, np.int16)
    definition = get("qsigmoid16")
    assert definition.scalar is not None
    value = simplify(definition.scalar(attrs, [x[i], table]))  # type: ignore[list-item]
    loop = ir.For(i, ir.const(data.size, "int32"), ir.Store(out, (i,), value))
    verify(ir.PrimFunc("curve", (x, table, out), loop))
    run(ir.PrimFunc("curve", (x, table, out), loop), [data, signed_sigmoid_table(), made], {})
    np.testing.assert_array_equal(made, definition.reference(attrs, [data, signed_sigmoid_table()])[0])


@pytest.mark.parametrize("divisor", [2, 3, 7, 16, 125, 641, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 31) - 1])
def test_lanes_divide_by_numbers(divisor: int) -> None:
    """Around multiples of it and at the ends of int32."""
    most = (1 << 31) // divisor * divisor
    near = {k * divisor + j for k in (-3, -1, 0, 1, 3) for j in (-1, 0, 1)} | {
        most - 1,
        -most,
        1 - most,
        2**31 - 1,
        -(2**31),
    }
    data = np.array(sorted(n for n in near if -(1 << 31) <= n < 1 << 31), np.int64)
    x, out = (ir.Buffer(name, data.shape, "int32") for name in ("x", "out"))
    i, made = ir.Var("i"), np.zeros(data.shape, np.int32)
    store = ir.Store(out, (i,), ir.Bin("truncdiv", x[i], ir.const(divisor, "int32")))
    body = lower_lanes(ir.For(i, ir.const(data.size, "int32"), store, "vectorized", (("lanes", 4),)))
    assert not any(isinstance(e, ir.Bin) and e.op == "truncdiv" for e in walk_all_exprs(body))
    run(ir.PrimFunc("divided", (x, out), body), [data.astype(np.int32), made], intrinsic_functions())
    np.testing.assert_array_equal(made, np.sign(data) * (np.abs(data) // divisor))


def test_sums_and_pools_work_in_lanes() -> None:
    """What has no product to tile: every case of a quantised sum, and of the largest or the mean in a window, in vectors."""
    for op in ("qadd", "max_pool2d", "avg_pool2d"):
        definition = get(op)
        exact = [case for case in definition.cases() if op != "avg_pool2d" or case.types[0].dtype == "int8"]
        cases = [compiled_case(definition, case, "cortex-m55", "kernel") for case in exact]
        calls = {e.name for c in cases for e in walk_all_exprs(c.func.body) if isinstance(e, ir.Call)}
        assert any("x4" in call for call in calls), op
        for case in cases:
            given = [a.reshape(p.shape) for a, p in zip(case.arrays, case.func.params, strict=False)]
            made = [np.zeros(p.shape, to_numpy(p.dtype)) for p in case.func.params[len(given) :]]
            run(case.func, [*given, *made], intrinsic_functions())
            for got, want in zip(made, case.wanted, strict=False):
                np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_products_of_two_matrices_of_data_are_exact() -> None:
    """Whatever extents are one: the loops of those are gone."""
    cases = [c for c in get("matmul").cases() if c.attrs.get("algorithm") == "rows"]
    assert any(1 in case.types[0].shape and case.types[0].shape[0] > 1 for case in cases)
    for found in (compiled_case(get("matmul"), case, "cortex-m55", "kernel") for case in cases):
        given = [a.reshape(p.shape) for a, p in zip(found.arrays, found.func.params, strict=False)]
        made = [np.zeros(p.shape, to_numpy(p.dtype)) for p in found.func.params[len(given) :]]
        run(found.func, [*given, *made], intrinsic_functions())
        np.testing.assert_array_equal(made[0].reshape(found.wanted[0].shape), found.wanted[0])


def test_elements_apart_are_copied_by_one_call_that_analyses_can_read() -> None:
    """Rows of a channel; spelled as a loop the copy reads what it copies."""
    layer = LAYERS["3x3"]
    graph, group = layer.group()
    schedule = schedule_kernel(group.func, "conv2d", M55)
    func = lower(schedule.func)
    assert any(isinstance(e, ir.Call) and e.name == "copy_strided_i8" for e in walk_all_exprs(func.body))
    x = layer.input()
    loops = expand_memory_calls(func)
    arrays = arguments(group, schedule, loops, x)
    run(loops, arrays, intrinsic_functions())
    result = arrays[len(group.params)]
    np.testing.assert_array_equal(result, reference(graph, x).reshape(result.shape))
