# SPDX-License-Identifier: Apache-2.0
"""Tiles as units: ``blockize`` keeps the meaning, other steps move what it made, and the verifier sees into it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc import te
from microc.errors import InternalError, ScheduleError
from microc.schedule.schedule import Schedule, replay_trace
from microc.tir.text import from_text, to_text
from microc.tir.verify import verify
from tests.schedule.functions import matmul, outputs, padded_rows
from tests.support.campaign import examples

Steps = Callable[[Schedule], Schedule]


def tiled(s: Schedule) -> Schedule:
    """``acc_o``: tiles of 2 by 2 by 4, guarded at the end of the rows."""
    s = s.tile("p", "o", 2, 2).split("k", (None, 4)).reorder("p_0", "o_0", "k_0", "p_1", "o_1", "k_1")
    return s.blockize("p_1")


def whole(s: Schedule) -> Schedule:
    """``acc_o``: tiles of 2 by 2 with all of the reduction."""
    return s.tile("p", "o", 2, 2).reorder("p_0", "o_0", "p_1", "o_1", "k").blockize("p_1")


UNITS: dict[str, Steps] = {
    "tiles": tiled,
    "the reduction": lambda s: s.blockize("k"),
    "everything": lambda s: s.blockize("p"),
    "elementwise": lambda s: s.split("o_out", (None, 4)).blockize("o_out_1"),
    "a tile of a tile": lambda s: (
        s.split("p", (2, 2, 2)).split("o", (3, 2)).reorder("p_0", "o_0", "p_1", "o_1", "p_2").blockize("o_1")
    ),
    "decomposed": lambda s: tiled(s).decompose_reduction("acc_o", "k_0"),
    "decomposed outside": lambda s: tiled(s).reorder("k_0", "p_0", "o_0").decompose_reduction("acc_o", "k_0"),
    "loops around": lambda s: tiled(s).split("p_0", (None, 2)).fuse("p_0_0", "p_0_1").unroll("o_0"),
    "loops inside": lambda s: tiled(s).split("k_1", (None, 3)).reorder("k_1_1", "o_1").unroll("k_1_1"),
    "reverse_compute_at": lambda s: tiled(s).reverse_compute_at("out", "o_0"),
    "compute_at": lambda s: whole(s).split("o_out", (None, 4)).compute_at("acc_o", "o_out_0"),
    "compute_at across tiles": lambda s: whole(s).split("p_out", (None, 3)).compute_at("acc_o", "p_out_0"),
    "a tile that consumes": lambda s: (
        tiled(s).tile("p_out", "o_out", 1, 2).blockize("p_out_1").reverse_compute_at("out_o", "o_0")
    ),
    "cache_write": lambda s: s.split("o_out", (None, 4)).blockize("o_out_1").cache_write("out_o", "workspace"),
    "cache_read": lambda s: tiled(s).cache_read("acc_o", "x", "workspace").compute_at("x_workspace", "k_0"),
    "tensorize": lambda s: s.split("k", (None, 4)).blockize("k_1").tensorize("acc_o", "dot4_int8_int8"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("lowered", [False, True], ids=["blocks", "lowered"])
def test_meaning_is_kept(name: str, lowered: bool) -> None:
    func = matmul(5, 8, 6)
    schedule = UNITS[name](Schedule(func))
    verify(schedule.func)
    assert from_text(to_text(schedule.func)) == schedule.func == replay_trace(func, schedule.trace).func
    assert np.array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))


@pytest.mark.parametrize("lowered", [False, True], ids=["blocks", "lowered"])
def test_a_window_moves_to_a_tile_of_rows(lowered: bool) -> None:
    func = padded_rows(8, 4)
    schedule = Schedule(func).split("y", (None, 2)).blockize("y_1")
    schedule = schedule.split("y_acc", (None, 4)).compute_at("padded_o", "y_acc_0")
    verify(schedule.func)
    assert np.array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))


REFUSED: dict[str, tuple[Steps, str]] = {
    "two blocks": (lambda s: s.compute_at("acc", "p_out").blockize("p_out"), "more than one block"),
    "interleaved": (lambda s: s.split("k", (None, 4)).reorder("k_1", "k_0").blockize("k_0"), "interleaved"),
    "fused": (lambda s: s.fuse("p", "o").split("p_o", (None, 4)).blockize("p_o_1"), "is not a mixed-radix number"),
    "twice": (lambda s: tiled(s).blockize("k_1"), "loop 'k_1' is inside a block"),
    "a part moves": (lambda s: tiled(s).compute_at("acc", "p_out"), "block 'acc' is inside block 'acc_o'"),
    "a part is cached": (lambda s: tiled(s).cache_write("acc", "workspace"), "is inside block 'acc_o'"),
    "something moves in": (lambda s: tiled(s).reverse_compute_at("out", "o_1"), "loop 'o_1' is inside a block"),
    "across": (lambda s: tiled(s).reorder("p_1", "p_0"), "not perfectly nested"),
    "reduction outside": (lambda s: tiled(s).reverse_compute_at("out", "k_0"), "inside the reduction"),
    "elements that lie apart": (
        lambda s: s.split("o", (None, 2)).reorder("p", "o_1", "o_0", "k").reverse_compute_at("out", "o_1"),
        "writes elements of 'acc' with gaps",
    ),
    "half a tile": (
        lambda s: s.split("p_out", (None, 2)).blockize("p_out_1").reverse_compute_at("out_o", "p"),
        "does not read 'acc' one element at a time",
    ),
    "tail": (lambda s: tiled(s).pad_reduction("acc_o"), "is a tile"),
    "rfactor": (lambda s: tiled(s).rfactor("acc_o", "k_0"), "is no reduction by add"),
    "nothing to tensorize": (
        lambda s: s.split("k", (None, 4)).blockize("k_1").tensorize("out", "dot4_int8_int8"),
        "contains no loops",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_teach(name: str) -> None:
    steps, said = REFUSED[name]
    with pytest.raises(ScheduleError) as caught:
        steps(Schedule(matmul(6, 8, 6)))
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("old", "new"),
    [("T.grid(2, 2, 4)", "T.grid(2, 1, 4)"), ("v_o_o * 2 + o_1)", "v_o_o + o_1)"), ("T.grid(3, 3, 2)", "T.grid(3, 2, 2)")],
)  # fmt: skip
def test_the_verifier_sees_tiles_with_gaps(old: str, new: str) -> None:
    x, k = te.placeholder((6, 8), "int8", "x"), te.reduce_axis(8, "k")
    products = te.compute(
        (6, 6),
        lambda p, o: te.sum_reduce(x[p, k.var].astype("int32") * x[o, k.var].astype("int32"), k),
        "acc",
        ("p", "o"),
    )
    text = to_text(tiled(Schedule(te.create_prim_func("products", [x], [products]))).func)
    func = from_text(text.replace(old, new))
    assert old in text
    with pytest.raises(InternalError, match="cover"):
        verify(func)


@given(
    factors=st.tuples(*[st.sampled_from([1, 2, 3, 4, 8])] * 3),
    order=st.permutations(range(6)),
    place=st.integers(0, 5),
    then=st.sampled_from(["", "decompose", "compute_at", "reverse_compute_at"]),
    where=st.integers(0, 5),
)
@settings(max_examples=examples(60), deadline=None)
def test_random_tiles_keep_the_meaning(
    factors: tuple[int, int, int], order: list[int], place: int, then: str, where: int
) -> None:
    func = matmul(5, 8, 6)
    schedule = Schedule(func)
    for loop, factor in zip("pok", factors, strict=True):
        schedule = schedule.split(loop, (None, factor))
    loops = schedule.loops_of("acc")
    schedule = schedule.reorder(*(loops[k] for k in order)).split("p_out", (None, 3))
    with suppress(ScheduleError):
        schedule = schedule.blockize(schedule.loops_of("acc")[place])
        around, consumers = schedule.loops_of("acc_o") or ("k_1",), schedule.loops_of("out")
        match then:
            case "decompose":
                schedule = schedule.decompose_reduction("acc_o", around[where % len(around)])
            case "compute_at":
                schedule = schedule.compute_at("acc_o", consumers[where % len(consumers)])
            case "reverse_compute_at":
                schedule = schedule.reverse_compute_at("out", around[where % len(around)])
    verify(schedule.func)
    for lowered in (False, True):
        assert np.array_equal(outputs(schedule.func, lowered=lowered), outputs(func, lowered=False))
