# SPDX-License-Identifier: Apache-2.0
"""Small functions to schedule, and running them before and after."""

from __future__ import annotations

import numpy as np

from microc import te
from microc.base.dtypes import Array, to_numpy
from microc.schedule.choose import choose_schedule
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules import candidate_schedules
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Goal, Target
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower


def matmul(
    rows: int,
    depth: int,
    columns: int,
    dtype: str = "int8",
    notes: tuple[tuple[str, int | str], ...] = (),
    scale: int = 0,
    epilogue_dtype: str = "int32",
) -> ir.PrimFunc:
    """acc = x @ weight.T + bias in int32; out = clamp((((acc << scale) + 77) >> (7 + scale)), 77 only if ``scale`` is not 0.

    ``epilogue_dtype``: dtype of the shifted value."""
    x = te.placeholder((rows, depth), dtype, "x")
    weight = te.placeholder((columns, depth), "int8", "weight")
    bias = te.placeholder((columns,), "int32", "bias")
    k = te.reduce_axis(depth, "k")

    def product(p: ir.Var, o: ir.Var) -> ir.Expr:
        value = x[p, k.var].astype("int32") * weight[o, k.var].astype("int32")
        return te.sum_reduce(value, k, init=bias[o])

    acc = te.compute((rows, columns), product, "acc", ("p", "o"), notes)

    def clamped(p: ir.Var, o: ir.Var) -> ir.Expr:
        total = acc[p, o].astype(epilogue_dtype)
        scaled = (total << scale) + 77 if scale else total
        return ir.clamp(scaled >> (7 + scale), -128, 127).astype("int8")

    out = te.compute((rows, columns), clamped, "out", ("p", "o"))
    return te.create_prim_func("matmul", [x], [out], [weight, bias])


def padded_rows(size: int, channels: int) -> ir.PrimFunc:
    """A 3x1 sum over rows of a padded image: blocks ``padded``, ``acc``, ``out``."""
    x = te.placeholder((size, channels), "int8", "x")

    def border(y: ir.Var, c: ir.Var) -> ir.Expr:
        inside = ir.Bin("and", y >= 1, y < size + 1)
        return ir.select(inside, x[y - 1, c], 3)

    padded = te.compute((size + 2, channels), border, "padded", ("y", "c"))
    k = te.reduce_axis(3, "k")
    acc = te.compute(
        (size, channels), lambda y, c: te.sum_reduce(padded[y + k.var, c].astype("int32"), k), "acc", ("y", "c")
    )
    out = te.compute((size, channels), lambda y, c: (acc[y, c] >> 2).astype("int8"), "out", ("y", "c"))
    return te.create_prim_func("rows", [x], [out])


def chain(size: int) -> ir.PrimFunc:
    """An elementwise function in two stages, ``wide`` and ``out``, the second of which turns the order round."""
    x = te.placeholder((size, 2), "int8", "x")
    wide = te.compute((size, 2), lambda y, c: x[y, c].astype("int32") * 3, "wide", ("y", "c"))
    out = te.compute((2, size), lambda c, y: (wide[y, c] + y - (wide[y, c] >> 2)).astype("int8"), "out", ("c", "y"))
    return te.create_prim_func("chain", [x], [out])


def outputs(func: ir.PrimFunc, *, lowered: bool, seed: int = 0, schedule: Schedule | None = None) -> Array:
    """The last ``global`` parameter after running ``func``, or its schedule, on random data."""
    dice = np.random.default_rng(seed)
    scheduled = func if schedule is None else schedule.func
    what = lower(scheduled) if lowered else scheduled
    arrays: list[Array] = []
    for param in func.params:
        info = np.iinfo(to_numpy(param.dtype))
        low, high = (-1000, 1000) if info.bits == 32 else (info.min + (param.scope == "const"), info.max)
        array = dice.integers(low, high, size=param.shape, endpoint=True).astype(info.dtype)
        arrays.append(array if schedule is None or param.scope != "const" else schedule.packed(param, array))
    arrays += [np.zeros(work.shape, to_numpy(work.dtype)) for work in what.params[len(arrays) :]]
    run(what, arrays, intrinsic_functions())
    place = max(k for k, p in enumerate(what.params) if p.scope == "global")
    return arrays[place]


def schedule_kernel(func: ir.PrimFunc, op: str, target: Target, goal: Goal = SPEED) -> Schedule:
    """The schedule that is chosen for a lowered group whose anchor is ``op``."""
    return choose_schedule(candidate_schedules(func, op, target, goal), target, goal).schedule
