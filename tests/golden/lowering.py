# SPDX-License-Identifier: Apache-2.0
"""Passes of ``tir/lower``: a kernel before and after one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from microc.schedule.schedule import Schedule
from microc.tir import ir
from microc.tir.lower import PASSES, lowering_stages
from microc.tir.text import to_text
from tests.golden.kernels import derived
from tests.schedule.functions import matmul

Start = Callable[[], ir.PrimFunc]


def scheduled(name: str) -> ir.PrimFunc:
    """What the rules make of a kernel of :mod:`tests.golden.kernels`."""
    return derived(name).parts[0].schedule.func


def with_a_tail() -> ir.PrimFunc:
    return Schedule(matmul(3, 4, 2)).split("p", (None, 2)).func


def with_a_loop_of_two_cores() -> ir.PrimFunc:
    return Schedule(matmul(5, 4, 2)).distribute("p", 2).func


def with_a_cell_too_many() -> ir.PrimFunc:
    """What an intrinsic makes of the last elements: sums of two, one of which is stored."""
    data, out = ir.Buffer("data", (4,), "int32"), ir.Buffer("out", (1,), "int32")
    acc, k, cells = ir.Buffer("acc", (2,), "int32", "register"), ir.Var("k"), [ir.as_index(n) for n in (0, 1)]
    start = [ir.Store(acc, (cell,), ir.const(0, "int32")) for cell in cells]
    turn = [ir.Store(acc, (cell,), acc[cell] + data[k + cell]) for cell in cells]
    body = ir.seq(*start, ir.loops([(k, 3)], ir.seq(*turn)), ir.Store(out, (cells[0],), acc[cells[0]]))
    return ir.PrimFunc("sums", (data, out), ir.Alloc(acc, body))


def with_sums_to_requantise() -> ir.PrimFunc:
    """Two rows of sums on the stack, requantised by vectors of four."""
    data, out = ir.Buffer("data", (2, 8), "int32"), ir.Buffer("out", (2, 8), "int8")
    addend, multiplier = (ir.Buffer(name, (8,), "int32", "const") for name in ("addend", "multiplier"))
    acc, o, p = ir.Buffer("acc", (2, 8), "int32", "local"), ir.Var("o"), ir.Var("p")
    stores = []
    for row in range(2):
        high = ir.call("high_product", addend[o] + acc[row, o] * 256, multiplier[o])
        value = ir.Call("saturate_i8", (((high >> 8) + 1) >> 1,), "int32")
        stores.append(ir.Store(out, (ir.as_index(row), o), ir.cast("int8", value)))
    requantised = ir.For(o, ir.const(8, "int32"), ir.seq(*stores), "vectorized", (("lanes", 4),))
    copied = ir.loops([(p, 2), (o, 8)], ir.Store(acc, (p, o), data[p, o] + 1))
    return ir.PrimFunc("sums", (data, addend, multiplier, out), ir.Alloc(acc, ir.seq(copied, requantised)))


CASES: Mapping[str, Start] = {
    "blocks": partial(scheduled, "transpose_m4"),
    "simplify": partial(scheduled, "clip_m0"),
    "compact": partial(scheduled, "average_pool_m0"),
    "distribute": with_a_loop_of_two_cores,
    "hoist": partial(scheduled, "depthwise_m55"),
    "partition": with_a_tail,
    "unswitch": partial(scheduled, "concat_m4"),
    "invariant": partial(scheduled, "softmax_m4"),
    "halves": partial(scheduled, "dense_half_m55"),
    "products": partial(scheduled, "pointwise_m55"),
    "unit": partial(scheduled, "pointwise_unit"),
    "lanes": partial(scheduled, "clip_m55"),
    "unroll": partial(scheduled, "dense_float_m4"),
    "requantisation": with_sums_to_requantise,
    "dead": with_a_cell_too_many,
    "workspaces": partial(scheduled, "softmax_float_host"),
    "share": partial(scheduled, "requantize_m4"),
}
"""By pass, a function that it changes."""
assert set(CASES) == {name for name, _ in PASSES}


def _text(name: str, start: Start) -> str:
    before = start()
    for passed, after in lowering_stages(before):
        if passed == name and after != before:
            return f"# before {name}\n{to_text(before)}\n# after\n{to_text(after)}"
        before = after
    raise AssertionError(f"{name} changes nothing")


TEXTS: Mapping[str, Callable[[], str]] = {
    **{f"lowering/{name}.tir": partial(_text, name, start) for name, start in CASES.items()},
    "lowering/lanes_in_words.tir": partial(_text, "lanes", partial(scheduled, "concat_m4")),
}
"""Loops of kind ``vectorized`` without a number of lanes become copies of words."""
