# SPDX-License-Identifier: Apache-2.0
"""Functions without a network: tensor expressions, schedules and texts become libraries and programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import microc
from microc import te, tir
from microc.compiler.single_function import compile_function
from microc.errors import MicrocError, OutputError, ProgramError, UsageError
from microc.target import target_for
from tests.device.smoke import needs
from tests.support.campaign import in_turn

TWO = """
@I.ir_module
class Functions:
    @T.prim_func
    def product(a: T.Buffer((8, 4), "float32"), b: T.Buffer((4, 6), "float32"), c: T.Buffer((8, 6), "float32")):
        T.func_attr({"author": "me"})
        for i, j, k in T.grid(8, 6, 4):
            with T.block("c"):
                v_i, v_j, v_k = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[v_i, v_j] = T.float32(0)
                c[v_i, v_j] = c[v_i, v_j] + a[v_i, v_k] * b[v_k, v_j]

    @T.prim_func
    def twice(x: T.Buffer((5,), "int32"), y: T.Buffer((5,), "int32")):
        for i in T.serial(5):
            with T.block("y"):
                v = T.axis.remap("S", [i])
                y[v] = x[v] * 2
"""


def product(depth: int = 32) -> tir.PrimFunc:
    """int32 sums of bytes; the weights are constant."""
    x, weight = te.placeholder((8, depth), "int8", "x"), te.placeholder((12, depth), "int8", "weight")
    k = te.reduce_axis(depth, "k")

    def value(i: Any, j: Any) -> Any:
        return te.sum_reduce(x[i, k.var].astype("int32") * weight[j, k.var].astype("int32"), k)

    acc = te.compute((8, 12), value, "acc", ("i", "j"))
    return te.create_prim_func("product", [x], [acc], [weight])


def data(depth: int = 32) -> tuple[Any, Any]:
    dice = np.random.default_rng(1)
    x, weight = (dice.integers(-128, 128, shape).astype(np.int8) for shape in ((8, depth), (12, depth)))
    return x, weight


def test_vector_addition() -> None:
    a, b = te.placeholder((1000,), "float32", "a"), te.placeholder((1000,), "float32", "b")
    c = te.compute((1000,), lambda i: a[i] + b[i], "c", ("i",))
    add = microc.build(te.create_prim_func("add", [a, b], [c]))
    x, y = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    assert np.array_equal(add(x, y), x + y)


@pytest.mark.parametrize("target", ["host", "cortex-m4", "cortex-m55", "cortex-m0", "rv32imc"])
def test_what_the_rules_make(target: str) -> None:
    x, weight = data()
    schedule = microc.default_schedule(product(), target)
    library = microc.build(schedule, target, constants={"weight": weight})
    assert np.array_equal(library(x), x.astype(np.int32) @ weight.T.astype(np.int32))


@pytest.mark.parametrize("ended", [False, True], ids=["alone", "with an end"])
@pytest.mark.parametrize("turned", [False, True], ids=["k j", "j k"])
@pytest.mark.parametrize(
    ("target", "kinds"),
    in_turn(["x86-64-v2", "x86-64-v3", "aarch64"], [("float32", "float32"), ("int8", "int32")]),
)
def test_a_product_of_data_by_any_name_is_tiled(target: str, kinds: tuple[str, str], turned: bool, ended: bool) -> None:
    """Both sides are inputs; the right one, of more than half a cache, is copied for the columns of a tile."""
    (kind, total), (rows, columns, depth) = kinds, (37, 64, 2100)
    a, b = (
        te.placeholder((rows, depth), kind, "a"),
        te.placeholder((columns, depth) if turned else (depth, columns), kind, "b"),
    )
    k = te.reduce_axis(depth, "k")

    def term(i: Any, j: Any) -> Any:
        right = b[j, k.var] if turned else b[k.var, j]
        return te.sum_reduce(a[i, k.var].astype(total) * right.astype(total), k)

    c = te.compute((rows, columns), term, "c", ("i", "j"))
    made = te.compute((rows, columns), lambda i, j: c[i, j] + c[i, j], "twice", ("i", "j")) if ended else c
    schedule = microc.default_schedule(te.create_prim_func("mine", [a, b], [made]), target)
    assert schedule.rule == "matrix vectors" and "b_workspace" in schedule.loops_of("b_workspace")[-1]
    dice = np.random.default_rng(2)
    left, right = (dice.integers(-128, 128, each.shape).astype(kind) for each in (a, b))
    wanted = (left.astype(np.int64) @ (right.T if turned else right).astype(np.int64)) * (2 if ended else 1)
    assert np.array_equal(microc.build(schedule, target)(left, right), wanted)  # below 2**24 in floats, too


def test_steps_by_hand_that_repack_the_weights() -> None:
    x, weight = data()
    schedule = microc.Schedule(product()).split("j", (None, 4)).reorder("j_0", "i", "k", "j_1")
    schedule = schedule.set_dtype("weight", "int16").transform_layout("weight", ((None, 4), (None,)), (0, 2, 1))
    module = compile_function(schedule, target_for("host"), {"weight": weight})
    assert next(v for v in module.values.values() if v.storage == "const").shape == (3, 32, 4)
    library = microc.build(schedule, constants={"weight": weight})
    assert np.array_equal(library(x), x.astype(np.int32) @ weight.T.astype(np.int32))


def test_a_text_with_several_functions() -> None:
    functions = tir.module_from_text(TWO)
    built = microc.build(functions)
    assert list(built) == ["product", "twice"]
    a, b = np.random.default_rng(2).normal(size=(8, 4)), np.random.default_rng(3).normal(size=(4, 6))
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(built["product"](a, b), a @ b, rtol=1e-5)
    assert list(built["twice"](np.arange(5, dtype=np.int32))) == [0, 2, 4, 6, 8]
    again = tir.from_text(tir.to_text(functions[0]))
    assert again == functions[0] and again.annotations == (("author", "me"),)
    c = np.zeros((8, 6), np.float32)
    tir.run(tir.lower_func(again), [a, b, c])
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_on_a_board(tmp_path: Path) -> None:
    x, weight = data()
    schedule = microc.default_schedule(product(), "cortex-m4")
    program = microc.build(schedule, board="mps2-an386", constants={"weight": weight})
    project = microc.open_project(program.write(tmp_path / "out"))
    microc.build(project)
    with microc.Device(project) as device:
        assert np.array_equal(device.run(x), x.astype(np.int32) @ weight.T.astype(np.int32))
        assert len(device.kernels) == 1


def _read_wrongly() -> Any:
    return te.placeholder((2, 3), "int8", "x")[1]


def _add_wrongly() -> Any:
    x, y = te.placeholder((2,), "int8", "x"), te.placeholder((2,), "int16", "y")
    return te.compute((2,), lambda i: x[i].astype("int32") + y[i].astype("float32"), "z")


def _store_nothing() -> Any:
    return microc.build(tir.from_text('@T.prim_func\ndef f(x: T.Buffer((2,), "int8")):\n    pass'))


def _pick(places: list[int]) -> Any:
    """Elements by a constant that nothing declares."""
    x, c = te.placeholder((4,), "int32", "x"), te.placeholder((3,), "int32", "c")
    out = te.compute((3,), lambda i: x[c[i]], "out")
    func = te.create_prim_func("pick", [x], [out], (c,))
    return microc.build(func, constants={"c": np.array(places, np.int32)})


def test_indices_in_constants_are_proven_by_their_numbers() -> None:
    assert _pick([0, 3, 1])(np.arange(4, dtype=np.int32)).tolist() == [0, 3, 1]


def _beyond() -> Any:
    text = '@T.prim_func\ndef f(x: T.Buffer((2,), "int8")):\n    for i in T.serial(3):\n        x[i] = T.int8(1)'
    return microc.build(tir.from_text(text))


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (_read_wrongly, ProgramError, "x: wrong number of indices; got 1, expected 2"),
        (_add_wrongly, ProgramError, "cast one of them"),
        (_store_nothing, ProgramError, "stores to no parameter"),
        (_beyond, ProgramError, "x"),
        (lambda: _pick([0, 4, 1]), ProgramError, "c[v_i0] is loaded from c and may be 0..4, expected 0..3"),
        (lambda: _pick([0, -(1 << 31), 1]), ProgramError, "c[v_i0] is loaded from c and may be -2147483648..1"),
        (lambda: microc.build(product()), UsageError, "constant 'weight' has no data"),
        (lambda: microc.build(product(), constants={"weight": data()[1][:3]}), UsageError, "got int8[3, 32]"),
        (lambda: microc.build(product(), constants={"w": 1}), UsageError, "no constant 'w'"),
        (lambda: microc.build([product(), product()]), UsageError, "the same name"),
        (lambda: microc.build("model.tflite"), OutputError, "no folder model.tflite"),
        (lambda: microc.build(cast(Any, 3)), UsageError, "int cannot be built"),
        (lambda: microc.default_schedule(product(), optimize="fast"), UsageError, "expected the optimisation goal"),
    ],
)
def test_what_is_refused(wrong: Callable[[], Any], kind: type[MicrocError], said: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert said in str(caught.value) and caught.value.exit_code in (2, 3)
