# SPDX-License-Identifier: Apache-2.0
"""Searches over a space of one's own: MLC course, "Automatic Program Optimization" (``sample_perfect_tile``, ``tune_tir``)."""

import pytest

from microc import Schedule, ScheduleRule, tir
from microc.errors import ProgramError
from microc.tuning.tune import describe_search_spaces

MM = tir.module_from_text("""
@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def main(A: T.Buffer((8, 8), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8, 8), "int32")):
        T.func_attr({"global_symbol": "main", "tir.noalias": True})
        for i, j, k in T.grid(8, 8, 8):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")["main"]


def tiles(schedule: Schedule, op: str, target: object) -> list[Schedule]:
    return [
        schedule.split("j", tile).reorder("i", "j_0", "k", "j_1").decompose_reduction("C", "k")
        for tile in schedule.perfect_tiles("j", 2, max_innermost=4)
    ]


def test_a_rule_that_stands_alone_is_the_space() -> None:
    rule = ScheduleRule("tiles", tiles, alone=True)
    (space,) = describe_search_spaces(MM, board="mps2-an386", schedules=[rule])
    assert space["points"] == 3 and space["decisions"]["rule"] == ["tiles"]
    (beside,) = describe_search_spaces(MM, board="mps2-an386", schedules=[ScheduleRule("tiles", tiles)])
    assert beside["points"] > 3


@pytest.mark.parametrize("result", [5, [1], MM])
def test_a_rule_returns_schedules(result: object) -> None:
    rule = ScheduleRule("wrong", lambda schedule, op, target: result)  # type: ignore[arg-type, return-value]
    with pytest.raises(ProgramError, match=r"schedule rule wrong: the result is no schedule(.|\n)*return the schedule"):
        describe_search_spaces(MM, board="mps2-an386", schedules=[rule])


@pytest.mark.parametrize(
    "name, instead",
    [("get_block", "name of the block"), ("get_loops", r"schedule\.loops_of"), ("mod", r"schedule\.func")],
)
def test_methods_of_tvm_name_ours(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"'Schedule' object has no attribute '{name}'; write .*{instead}"):
        getattr(Schedule(MM), name)
    with pytest.raises(AttributeError, match=r"no attribute 'spilt'$"):
        Schedule(MM).spilt("i")  # type: ignore[attr-defined]
