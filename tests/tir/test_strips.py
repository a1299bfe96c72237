# SPDX-License-Identifier: Apache-2.0
"""Scalable loops: the same numbers by any number of lanes, in text and in C, and what the verifier refuses of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.codegen.c.c_statements import StmtPrinter
from microc.errors import InternalError
from microc.schedule.identities import intrinsic_functions
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.lower.lanes import lower_lanes
from microc.tir.names import LANES, SCALABLE
from microc.tir.symbolic import LENGTH, find_active_lanes_let
from microc.tir.text import from_text, to_text
from microc.tir.verify import verify

X, W = ir.Buffer("x", (3, 37), "int8"), ir.Buffer("w", (3, 37), "int8", "const")
SUMS, TURNED = ir.Buffer("sums", (37,), "int8"), ir.Buffer("turned", (37, 3), "int16")
I, K = ir.Var("i"), ir.Var("k")  # noqa: E741
NOTES = ((LANES, 16), (SCALABLE, 1))


def scaled() -> ir.PrimFunc:
    """Products of columns, summed up, scaled, clamped, and a column's first number beside."""
    acc = ir.Buffer("acc", (1,), "int32", "register")
    zero = ir.const(0, "int32")
    product = X[K, I].astype("int32") * W[K, I].astype("int32")
    total = ir.For(K, ir.const(3, "int32"), ir.Store(acc, (zero,), acc[0] + product))
    rounded = ((acc[0] >> 4) + 1 >> 1) - 3
    body = ir.seq(
        ir.Store(acc, (zero,), zero),
        total,
        ir.Store(SUMS, (I,), ir.cast("int8", ir.clamp(rounded, -128, 127))),
        ir.Store(TURNED, (I, zero), ir.cast("int16", acc[0])),
    )
    loop = ir.For(I, ir.const(37, "int32"), ir.Alloc(acc, body), "vectorized", NOTES)
    return ir.PrimFunc("scaled", (X, W, SUMS, TURNED), loop)


def strips(func: ir.PrimFunc) -> ir.PrimFunc:
    return replace(func, body=lower_lanes(func.body))


def arrays() -> list[Any]:
    dice = np.random.default_rng(0)
    numbers = [dice.integers(-128, 128, b.shape, np.int8) for b in (X, W)]
    return [*numbers, np.zeros(SUMS.shape, np.int8), np.zeros(TURNED.shape, np.int16)]


@pytest.mark.parametrize("lanes", [1, 3, 16, 36, 37, 64])
def test_any_number_of_lanes_gives_the_same(lanes: int) -> None:
    length = {f"{LENGTH}16": lambda args: min(args[0], lanes)}
    for got, want in zip(
        execute(strips(scaled()), arrays(), {**intrinsic_functions(), **length}),
        execute(scaled(), arrays()),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_words_of_a_strip() -> None:
    """Products of bytes are those of short numbers, what is clamped is stored so, and no literal takes a vector."""
    text = to_text(strips(scaled()))
    assert "for i in T.scalable(37" in text and "i__lanes: T.int32 = T.vector_length_x16" in text
    for word in ("mac_short", "right_round_n", "store_saturated_i8", "scatter_i16"):
        assert f"{word}_i32xvscalex16" in text, word
    verify(strips(scaled()))
    assert from_text(text) == strips(scaled())


def test_c_goes_on_by_the_lanes_of_a_turn() -> None:
    lines = StmtPrinter().print_statement(lower(strips(scaled())).body)
    assert "for (int32_t i = 0; i < 37;) {" in lines
    assert [line.strip() for line in lines].count("i += i__lanes;") == 1


def test_what_is_read_after_a_write_is_taken_by_a_known_number_of_lanes() -> None:
    """Vectors of any length would read what other lanes have written, if both lie in the same memory."""
    first, second = (ir.Buffer(name, (32,), "int8") for name in ("first", "second"))
    out = ir.Buffer("out", (2, 32), "int8")
    body = ir.seq(*(ir.Store(out, (ir.const(k, "int32"), I), b[I]) for k, b in enumerate((first, second))))
    func = ir.PrimFunc("both", (first, second, out), ir.For(I, ir.const(32, "int32"), body, "vectorized", NOTES))
    text = to_text(strips(func))
    assert "scalable" not in text and "load_i8_i32x16" in text


def test_the_verifier_refuses() -> None:
    first, out = ir.Buffer("x", (8,), "int8"), ir.Buffer("y", (8,), "int8")
    n = ir.Var("n")
    kind = "int32xvscalex16"
    loaded = ir.Call("load_i8_i32xvscalex16", (ir.AddressOf(first, (I,)), n), kind)
    stored = ir.Evaluate(ir.Call("store_i8_i32xvscalex16", (ir.AddressOf(out, (I,), writes=True), loaded, n), "int32"))

    def loop(left: ir.Expr, body: ir.Stmt) -> ir.PrimFunc:
        length = ir.Let(n, ir.Call(f"{LENGTH}16", (left,), "int32"), body)
        return ir.PrimFunc("f", (first, out), ir.For(I, ir.const(8, "int32"), length, "scalable", ((LANES, 16),)))

    good = loop(8 - I, stored)
    verify(good)
    assert isinstance(good.body, ir.For) and find_active_lanes_let(good.body) == good.body.body
    with pytest.raises(InternalError, match="number of active lanes"):
        verify(loop(9 - I, stored))
    with pytest.raises(InternalError, match="reads memory after a write"):
        verify(loop(8 - I, ir.seq(stored, stored)))
    with pytest.raises(InternalError, match="may be"):
        shifted = ir.Call("load_i8_i32xvscalex16", (ir.AddressOf(first, (I + 1,)), n), kind)
        place = ir.AddressOf(out, (I,), writes=True)
        verify(loop(8 - I, ir.Evaluate(ir.Call("store_i8_i32xvscalex16", (place, shifted, n), "int32"))))
