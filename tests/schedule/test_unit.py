# SPDX-License-Identifier: Apache-2.0
"""Schedules for tensor units: the same integers as the reference, in memories that hold them, ordered by tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.errors import InternalError, ScheduleError, UsageError
from microc.isa import CORES
from microc.isa.instruction_set import Scratchpad, TensorUnit
from microc.isa.small_families import REFERENCE, with_unit
from microc.schedule.cost.cost_model import tensor_unit_use
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules import candidate_schedules
from microc.schedule.schedule import Schedule, replay_trace, trace_from_json, trace_to_json
from microc.target import SPEED, Target, target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.names import SIGNAL, collect_unit_instructions
from microc.tir.rewrite import map_stmt, walk_stmt
from microc.tir.text import from_text, to_text
from microc.tir.verify import verify
from tests.schedule.test_depthwise import Layer, arguments, reference
from tests.schedule.test_mve import matrix

M4 = target_for("cortex-m4+tensor16")
SMALL = TensorUnit(
    "small", 4, 4, 8, 4, Scratchpad(256, 8), Scratchpad(256, 8), Scratchpad(512, 8), bus=4, start=3, events=4
)
"""Whose memories hold a part of a strip only."""


def on_unit(func: ir.PrimFunc, target: Target = M4) -> Schedule:
    (found,) = (s for s in candidate_schedules(func, "conv2d", target, SPEED) if s.rule.startswith("matrix unit"))
    return found


def of_unit(unit: TensorUnit) -> Target:
    core = with_unit(CORES["cortex-m4"], unit)
    return Target(core.name, core.family, core.has)


@pytest.mark.parametrize("unit", [REFERENCE, SMALL], ids=lambda unit: unit.name)
@pytest.mark.parametrize("shape", [(1, 64, 10), (37, 45, 21), (64, 64, 64), (5, 300, 3), (33, 16, 17), (16, 3, 1)])
def test_products_are_exact(shape: tuple[int, int, int], unit: TensorUnit) -> None:
    """Whole tiles and parts of them, with a bias and without."""
    target = of_unit(unit)
    with CORES.extend({target.cpu: with_unit(CORES["cortex-m4"], unit)} if target.cpu not in CORES else {}):
        graph, group = matrix(*shape, bias=shape[0] != 64)
        schedule = on_unit(group.func, target)
        verify(schedule.func, tables=())
        func = lower(schedule.func)
    verify(func, tables=())
    x = np.random.default_rng(0).integers(-128, 128, (1, 1, *shape[:2])).astype(np.int8)
    arrays = arguments(group, schedule, func, x.reshape(func.params[0].shape))
    run(func, arrays, intrinsic_functions())
    result = arrays[len(group.params)]
    np.testing.assert_array_equal(result, reference(graph, x).reshape(result.shape))
    sizes = {s.buffer.scope: s.buffer.nbytes for s in walk_stmt(func.body) if isinstance(s, ir.Alloc)}
    room = dict(zip(ir.UNIT_SCOPES, (unit.input, unit.weight, unit.sums), strict=True))
    assert all(sizes[scope] <= memory.nbytes for scope, memory in room.items())
    use = tensor_unit_use(func, unit, shape[0] * shape[1] * shape[2])
    assert use is not None and use.macs >= shape[0] * shape[1] * shape[2] and 0 < use.utilisation <= 1
    assert max(use.load, use.compute, use.store) <= use.cycles <= use.load + use.compute + use.store


def test_a_trace_replays() -> None:
    _, group = matrix(37, 100, 40, bias=True)
    schedule = on_unit(group.func)
    again = replay_trace(schedule.start, trace_from_json(trace_to_json(schedule.trace)))
    assert to_text(again.func) == to_text(schedule.func)
    assert to_text(from_text(to_text(schedule.func))) == to_text(schedule.func)
    assert {"cache_read", "set_scope", "tensorize", "align_rows", "double_buffer"} <= {s.primitive for s in again.trace}
    assert to_text(from_text(to_text(lower(again.func)))) == to_text(lower(again.func))


def test_tiles_take_turns() -> None:
    """Loads of one tile run beside products of the tile before: less than both together."""
    _, group = matrix(64, 512, 64, bias=True)
    schedule = on_unit(group.func)
    func = lower(schedule.func)
    slots = {s.buffer.name: s.buffer.slots for s in walk_stmt(schedule.func.body) if isinstance(s, ir.Alloc)}
    assert slots["acc"] == 2
    use = tensor_unit_use(func, REFERENCE, 64 * 512 * 64)
    assert use is not None and use.cycles < 0.8 * (use.load + use.compute + use.store)


def test_without_a_token_a_queue_waits_for_ever() -> None:
    _, group = matrix(16, 16, 16, bias=True)
    func = lower(on_unit(group.func).func)

    def without_signals(stmt: ir.Stmt) -> ir.Stmt:
        signals = isinstance(stmt, ir.Evaluate) and isinstance(stmt.value, ir.Call) and stmt.value.name == SIGNAL
        return ir.Seq(()) if signals else stmt

    with pytest.raises(InternalError, match="no earlier instruction sends"):
        tensor_unit_use(replace(func, body=map_stmt(func.body, without_signals)), REFERENCE, 1)


def test_what_is_no_product_of_bytes_stays_with_the_processor() -> None:
    layer = Layer((9, 9, 8), (3, 3), relu=False)
    _, group = layer.group()
    found = candidate_schedules(group.func, "conv2d", M4, SPEED)
    assert found and not any(s.rule.startswith("matrix unit") for s in found)
    assert tensor_unit_use(lower(found[0].func), REFERENCE, 1) is None and not collect_unit_instructions(
        lower(found[0].func).body
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": "a b"}, "wrong name"),
        ({"bus": 0}, "expected 1 to"),
        ({"events": 2}, "kinds of tokens"),
        ({"sums": Scratchpad(1024)}, "wrong size of the sums memory"),
        ({"input": Scratchpad(1000, 6)}, "each a multiple of 4"),
    ],
)
def test_what_is_no_unit_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        replace(REFERENCE, **change)


def test_steps_refuse_what_they_cannot_do() -> None:
    _, group = matrix(16, 16, 16, bias=True)
    start = Schedule(group.func)
    with pytest.raises(ScheduleError, match="does not have the effect of the instruction"):
        start.split("p", (None, 4)).decompose_reduction("acc", "p_0").tensorize("p_1", "unit_matmul")
    with pytest.raises(ScheduleError, match="not decomposed"):
        start.tensorize("p", "unit_matmul")
    with pytest.raises(ScheduleError, match="expected 3 around one block"):
        start.tensorize("k", "unit_matmul")
    with pytest.raises(ScheduleError, match="no memory of a tensor unit"):
        start.align_rows("acc", 16)
    held = start.set_scope("acc", "unit_sums").split("p", (None, 4))
    with pytest.raises(ScheduleError, match="would share 'acc' in a tensor unit's memory"):
        held.parallel("p_0", private=True)
    with pytest.raises(ScheduleError, match="only instructions of the tensor unit reach"):
        lower(held.func)
    with pytest.raises(ScheduleError, match="outside loop"):
        held.double_buffer("acc", "p_0")
