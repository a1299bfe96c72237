# SPDX-License-Identifier: Apache-2.0
"""Runs of memory moved by words where both ends allow it: every alignment and length, and down over themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array, to_numpy
from microc.isa import SCALAR
from microc.schedule.rules.movement import LEAST, vectorize_copy_loops
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.lower import lower_annotated_loops
from tests.support.native import UNDEFINED, build, call

MOVES = [name for name in SCALAR if name.startswith("move_")]
ROOM, LONGEST = 80, 39


def shifts(name: str) -> ir.PrimFunc:
    """From every start to every earlier or the same place, runs of every length: by hand in ``wanted``."""
    dtype = SCALAR[name].params[0].dtype
    memory, places = ir.Buffer("memory", (ROOM,), dtype), ir.Buffer("places", (3,), "int32")
    to, source, length = (places[k] for k in range(3))
    target, origin = ir.AddressOf(memory, (to,), LONGEST, True), ir.AddressOf(memory, (source,), LONGEST)
    body = ir.Evaluate(ir.Call(name, (target, origin, length), "int32"))
    return ir.PrimFunc(f"test_{name}", (places, memory), body)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_memory_moves_down_over_itself(compiler: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    funcs = {name: shifts(name) for name in MOVES}
    library = build(list(funcs.values()), tmp_path, *([UNDEFINED] if compiler == "gcc" else []), compiler=compiler)
    for name, func in funcs.items():
        start = np.arange(ROOM).astype(to_numpy(func.params[1].dtype))
        for source in range(21):
            for to in (*range(max(0, source - 5), source + 1), max(0, source - 16), source + LONGEST):
                for length in (0, 1, 3, 8, 17, 35, LONGEST):
                    if to + length <= ROOM:
                        places = np.array([to, source, length], np.int32)
                        wanted = start.copy()
                        wanted[to : to + length] = start[source : source + length]
                        got = call(library, func, [places, start])[-1]
                        np.testing.assert_array_equal(got, wanted, err_msg=f"{name} {places}")
    assert "runtime error" not in capfd.readouterr().err


def lowered(dtype: str, size: int, cpu: str) -> tuple[ir.PrimFunc, str]:
    """A copy for a core, and the text of its loops."""
    i, x, out = ir.Var("i"), ir.Buffer("x", (size,), dtype), ir.Buffer("out", (size,), dtype)
    loop = ir.loops([(i, size)], ir.Store(out, (i,), x[i]))
    func = vectorize_copy_loops(Schedule(ir.PrimFunc("copy", (x, out), loop)), target_for(cpu)).func
    body = lower_annotated_loops(func.body)
    return replace(func, body=body), str(body)


@pytest.mark.parametrize(
    ("cpu", "call_"),
    [("cortex-m4", "store_i8x4"), ("cortex-m55", "copy_i8"), ("rv32imac", "move_i8"), ("cortex-m0", "move_i8")],
)
def test_every_core_moves_what_it_can_at_once(cpu: str, call_: str) -> None:
    assert call_ in lowered("int8", 100, cpu)[1]


@pytest.mark.parametrize("cpu", ["avr", "xtensa-lx7", "cortex-m0", "cortex-m4", "cortex-m55", "host"])
def test_copies_of_all_dtypes(cpu: str, tmp_path: Path) -> None:
    """In portable C, lengths that are and are not whole words."""
    kinds = ("bool", "int8", "uint8", "int16", "uint16", "int32", "float32", "int64")
    cases = [(kind, size) for kind in kinds for size in (1, LEAST - 1, LEAST, 65, 100)]
    funcs = [replace(lowered(kind, size, cpu)[0], name=f"copy_{kind}_{size}") for kind, size in cases]
    library = build(funcs, tmp_path)
    for (kind, size), func in zip(cases, funcs, strict=True):
        x: Array = (np.arange(size) % (2 if kind == "bool" else 100)).astype(to_numpy(kind))
        np.testing.assert_array_equal(call(library, func, [x, np.zeros_like(x)])[-1], x, err_msg=func.name)
