# SPDX-License-Identifier: Apache-2.0
"""Rules for float32 on cores that multiply and add in one instruction: one rounding per step, sums in order."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from microc import te
from microc.base.dtypes import Array
from microc.schedule.rules.matrix import float_tile_shapes
from microc.schedule.rules.rule import THREADS
from microc.schedule.rules.vectors import vector_product_tiles
from microc.schedule.schedule import Schedule
from microc.target import SPEED, target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.operators import FUNCTIONS
from microc.tir.rewrite import walk_stmt
from tests.schedule.functions import schedule_kernel
from tests.support.native import build, call


def positive(value: ir.Expr) -> ir.Expr:
    return ir.select(value >= 0.0, value, 0.0)


def product(rows: int, depth: int, columns: int, end: Callable[[ir.Expr], ir.Expr] = positive) -> ir.PrimFunc:
    """out = end(x @ weight.T + bias) in float32."""
    x = te.placeholder((rows, depth), "float32", "x")
    weight = te.placeholder((columns, depth), "float32", "weight")
    bias = te.placeholder((columns,), "float32", "bias")
    k = te.reduce_axis(depth, "k")
    acc = te.compute(
        (rows, columns), lambda p, o: te.sum_reduce(x[p, k.var] * weight[o, k.var], k, init=bias[o]), "acc", ("p", "o")
    )
    out = te.compute((rows, columns), lambda p, o: end(acc[p, o]), "out", ("p", "o"))
    return te.create_prim_func("product", [x], [out], [weight, bias])


def products(batch: int, rows: int, depth: int, columns: int) -> ir.PrimFunc:
    """out = x @ y for a batch of matrices."""
    x = te.placeholder((batch, rows, depth), "float32", "x")
    y = te.placeholder((batch, depth, columns), "float32", "y")
    k = te.reduce_axis(depth, "k")
    shape, names = (batch, rows, columns), ("b", "p", "o")
    acc = te.compute(shape, lambda b, p, o: te.sum_reduce(x[b, p, k.var] * y[b, k.var, o], k), "acc", names)
    out = te.compute(shape, lambda *i: acc[i], "out", names)
    return te.create_prim_func("products", [x, y], [out], [])


def depthwise(size: int, channels: int, stride: int) -> ir.PrimFunc:
    """A 3x3 depthwise convolution of a padded square image."""
    x = te.placeholder((1, size, size, channels), "float32", "x")
    weight = te.placeholder((3, 3, channels), "float32", "weight")

    def border(n: ir.Var, y: ir.Var, x_: ir.Var, c: ir.Var) -> ir.Expr:
        inside = ir.all_of([y >= 1, y < size + 1, x_ >= 1, x_ < size + 1])
        assert inside is not None
        return ir.select(inside, x[n, y - 1, x_ - 1, c], 0.0)

    padded = te.compute((1, size + 2, size + 2, channels), border, "padded", ("n", "y", "x", "c"))
    ky, kx = te.reduce_axis(3, "ky"), te.reduce_axis(3, "kx")

    def taps(n: ir.Var, y: ir.Var, x_: ir.Var, c: ir.Var) -> ir.Expr:
        value = padded[n, y * stride + ky.var, x_ * stride + kx.var, c]
        return te.sum_reduce(value * weight[ky.var, kx.var, c], ky, kx)

    shape = (1, -(-size // stride), -(-size // stride), channels)
    acc = te.compute(shape, taps, "acc", ("n", "y", "x", "c"))
    out = te.compute(shape, lambda *i: acc[i], "out", ("n", "y", "x", "c"))
    return te.create_prim_func("depthwise", [x], [out], [weight])


def operands(func: ir.PrimFunc) -> list[Array]:
    dice = np.random.default_rng(3)
    return [dice.normal(size=p.shape).astype(np.float32) for p in func.params]


def result(func: ir.PrimFunc, arrays: list[Array]) -> Array:
    """What the interpreter computes for parameter ``out``."""
    given = [a.copy() for a in arrays]
    given += [np.zeros(p.shape, np.float32) for p in func.params[len(given) :]]
    run(func, given)
    return given[next(k for k, p in enumerate(func.params) if p.name == "out")]


CASES: dict[str, tuple[str, Callable[[], ir.PrimFunc]]] = {
    "matrix": ("dense", lambda: product(8, 12, 8)),
    "matrix with tails": ("dense", lambda: product(7, 5, 7)),
    "a batch of products": ("matmul", lambda: products(3, 7, 5, 6)),
    "one row": ("dense", lambda: product(1, 9, 10)),
    "depthwise": ("conv2d", lambda: depthwise(6, 3, 1)),
    "depthwise by two": ("conv2d", lambda: depthwise(7, 2, 2)),
}


def equal_fused_products(func: ir.PrimFunc, schedule: Schedule, folder: Path) -> None:
    """The C of a schedule and the interpreter give the same bits."""
    lowered = lower(schedule.func)
    arrays = operands(func)
    want = result(
        Schedule(func).decompose_reduction("acc", reducing(func)).apply_identities("fused_product").func, arrays
    )
    given: list[Array | None] = [schedule.packed(p, a) for p, a in zip(func.params, arrays, strict=True)]
    library = build([lowered], folder)
    given += [None] * (len(lowered.params) - len(given))
    place = next(k for k, p in enumerate(func.params) if p.name == "out")
    given[place] = None
    got = call(library, lowered, given)[place]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", CASES)
def test_float_rules_keep_the_order_of_sums(name: str, tmp_path: Path) -> None:
    """The scheduled C gives the very bits of the unscheduled function with fused products, sums in registers."""
    op, make = CASES[name]
    func = make()
    schedule = schedule_kernel(func, op, target_for("cortex-m4"))
    equal_fused_products(func, schedule, tmp_path)
    registers = {
        s.buffer.name for s in walk_stmt(schedule.func.body) if isinstance(s, ir.Alloc) and s.buffer.scope == "register"
    }
    assert registers == {"acc"}


@pytest.mark.parametrize("shape", [(50, 1100, 128), (17, 2050, 64)], ids=str)
def test_weights_beyond_a_cache_serve_all_rows_before_the_next(shape: tuple[int, int, int], tmp_path: Path) -> None:
    """Columns first, rows that may end in a part of a tile; the sums are those in order."""
    func, target = product(*shape), target_for("x86-64-v3")
    schedule = schedule_kernel(func, "dense", target)
    loops = schedule.loops_of("acc")
    assert loops.index("o_0") < loops.index("p_1") < loops.index("k_0")
    arrays = operands(func)
    plain = Schedule(func).decompose_reduction("acc", "k").reverse_compute_at("out", "o").set_scope("acc", "register")
    tiled, in_order = lower(schedule.func), lower(plain.apply_identities("fused_product").renamed("in_order").func)
    library = build([tiled, in_order], tmp_path, "-O1")
    packed = [schedule.packed(p, a) for p, a in zip(func.params[:3], arrays, strict=False)]
    wanted = call(library, in_order, [*arrays[:3], None])[3]
    np.testing.assert_array_equal(call(library, tiled, [*packed, None])[3], wanted)


def test_weights_within_a_cache_serve_a_tile_of_rows_first() -> None:
    schedule = schedule_kernel(product(48, 64, 64), "dense", target_for("x86-64-v3"))
    assert schedule.loops_of("acc")[:3] == ("p_0", "o_0", "k_0")


def test_threads_get_tiles_that_are_alike() -> None:
    """Of 100 rows 6 at a time leave a part of a tile, which is nobody's turn."""
    start, alone = Schedule(product(100, 64, 32)), target_for("x86-64-v3")
    rows = [vector_product_tiles(start, target, SPEED)[0].rows for target in (alone, alone.with_features(THREADS))]
    assert rows == [6, 5]


def test_a_tile_has_as_many_sums_as_a_pipeline_takes() -> None:
    """Two rows by four vectors, of as few loads, would wait for each other."""
    (tile,) = vector_product_tiles(Schedule(product(512, 512, 512)), target_for("x86-64-v3"), SPEED)
    assert (tile.rows, tile.columns, tile.block) == (6, 16, 86)


@pytest.mark.parametrize("cpu", ["cortex-m55", "x86-64-v2"])
@pytest.mark.parametrize(("rows", "columns"), [(7, 8), (1, 4)])
def test_sums_of_ends_without_lanes_are_made_in_lanes(cpu: str, rows: int, columns: int, tmp_path: Path) -> None:
    """Each tile's lie on the stack, where scalars read them."""
    func = product(rows, 6, columns, lambda value: ir.call("ceil", value))
    schedule = schedule_kernel(func, "dense", target_for(cpu))
    assert schedule.rule == "matrix vectors"
    equal_fused_products(func, schedule, tmp_path)
    local = [s.buffer for s in walk_stmt(schedule.func.body) if isinstance(s, ir.Alloc) and s.buffer.scope == "local"]
    assert [buffer.name for buffer in local] == ["acc"]


def reducing(func: ir.PrimFunc) -> str:
    names = Schedule(func).loops_of("acc")
    return names[{"product": 2, "products": 3, "depthwise": 4}[func.name]]


@pytest.mark.parametrize("registers", [14, 16, 30, 32])
def test_tiles_fit_the_registers(registers: int) -> None:
    for rows in range(1, 40):
        for columns in range(1, 40):
            for tall, wide in float_tile_shapes(rows, columns, registers):
                assert 1 <= tall <= rows and 1 <= wide <= columns
                assert tall == 1 or tall * wide + min(tall, wide) + 1 <= registers


def test_fma_rounds_once() -> None:
    """Against exact fractions, near ties and cancellation included."""
    dice = np.random.default_rng(7)
    a, b = (dice.normal(size=2000).astype(np.float32) for _ in range(2))
    near = -(a.astype(np.float64) * b).astype(np.float32)
    c = np.where(dice.random(2000) < 0.5, near, dice.normal(size=2000) * 2.0 ** dice.integers(-40, 40, 2000)).astype(
        np.float32
    )
    for x, y, z in zip(a, b, c, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        got = FUNCTIONS["fma"](x, y, z)
        error = abs(Fraction(float(got)) - exact)
        for neighbour in (np.nextafter(got, np.float32(np.inf)), np.nextafter(got, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_only_accumulation_is_contracted() -> None:
    """Rounding to an integer by a large summand needs the product rounded first."""
    x, out = ir.Buffer("x", (4,), "float32"), ir.Buffer("out", (4,), "float32")
    i = ir.Var("i")
    func = ir.PrimFunc("round", (x, out), ir.loops([(i, 4)], ir.Store(out, (i,), x[i] * 3.0 + 12582912.0)))
    assert Schedule(func).apply_identities("fused_product").func.body == func.body
