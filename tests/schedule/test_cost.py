# SPDX-License-Identifier: Apache-2.0
"""The cost model on functions whose machine code is known, and the choice between schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from microc.errors import InternalError
from microc.isa.mve.arm_mve import ARM_MVE
from microc.isa.mve.arm_mve_products import PRODUCT_BODIES, count_vector_operations
from microc.isa.vocabulary.matrix_products import product_name
from microc.schedule.choose import choose_schedule, constant_bytes
from microc.schedule.cost.cost_model import CALL, Cost, condition_probability, estimate
from microc.schedule.cost.register_pressure import CONSTANT, RegisterEvent, allocate_registers
from microc.schedule.schedule import Schedule
from microc.target import SIZE, SPEED, Goal, Traffic, target_for
from microc.tir import ir
from microc.tir.lower import lower
from tests.schedule.functions import matmul

M4 = target_for("cortex-m4")
Y, X = ir.Var("y"), ir.Var("x")
DATA = ir.Buffer("data", (64,), "int32")
OUT = ir.Buffer("out", (64,), "int32")


def loop(value: ir.Expr, count: int = 64) -> ir.PrimFunc:
    """``out[i] = value`` for all i."""
    return ir.PrimFunc("f", (DATA, OUT), ir.loops([(Y, count)], ir.Store(OUT, (Y,), value)))


def tiled(rows: int, columns: int) -> Schedule:
    """A product of 12 by 16 with 12 by 16 numbers in register tiles."""
    s = Schedule(matmul(12, 16, 12)).split("p", (None, rows)).split("o", (None, columns))
    s = s.reorder("p_0", "o_0", "k", "p_1", "o_1").decompose_reduction("acc", "k")
    s = s.reverse_compute_at("out", "o_0").set_scope("acc", "register")
    for block in ("acc_init", "out"):
        for name in s.loops_of(block)[-2:]:
            s = s.unroll(name)
    return s.unroll("p_1").unroll("o_1").named(f"{rows}x{columns}")


def cost(func: ir.PrimFunc, cpu: str = "cortex-m4") -> Cost:
    return estimate(func, target_for(cpu))


def test_a_copy_loop_is_load_store_compare_and_branch() -> None:
    found = cost(loop(DATA[Y]))
    assert found.operations["load"] == pytest.approx(64 + CALL / 4)
    assert found.operations["store"] == pytest.approx(64 + CALL / 4)
    assert 4 * 64 <= found.instructions - CALL <= 4.2 * 64


def test_a_product_is_accumulated_in_one_instruction() -> None:
    product = DATA[Y] * DATA[ir.as_index(63) - Y]
    assert cost(loop(product + 1)).operations["multiply"] == 64
    assert cost(loop(product + DATA[0])).instructions == pytest.approx(cost(loop(product)).instructions + 64, abs=4)


def test_a_shifted_operand_costs_nothing_under_a_cast() -> None:
    """C shifts unsigned words and masks signed ones; no instruction stands between."""
    shifted = ir.cast("int32", ir.cast("uint32", DATA[Y]) << 12)
    plain, masked = cost(loop(DATA[Y] & DATA[0])), cost(loop(shifted & DATA[0]))
    assert masked.instructions == plain.instructions
    assert (
        cost(loop(shifted & DATA[0]), "rv32imc").operations["alu"]
        > cost(loop(DATA[Y] & DATA[0]), "rv32imc").operations["alu"]
    )


def test_lacking_instructions_cost_more() -> None:
    high = ir.call("high_mul_round", DATA[Y], ir.const(7, "int32"))
    assert cost(loop(high), "cortex-m0").instructions > 3 * cost(loop(high)).instructions
    assert cost(loop(DATA[Y] // DATA[0]), "cortex-m0").operations["call_divide"] == 64


def test_words_of_one_expression_are_loaded_one_by_one() -> None:
    """The price that told speed wrongly: neighbouring words count as one load only where each is a value by itself."""
    first, second = ir.Var("first"), ir.Var("second")
    pair = (DATA[Y * 2], DATA[Y * 2 + 1])
    named = ir.Let(first, pair[0], ir.Let(second, pair[1], ir.Store(OUT, (Y,), first * second)))
    bodies = (named, ir.Store(OUT, (Y,), pair[0] * pair[1]))
    loads = [cost(ir.PrimFunc("f", (DATA, OUT), ir.loops([(Y, 32)], body))).operations["load"] for body in bodies]
    assert loads[1] - loads[0] == 32


def test_guards_are_weighed_by_how_often_they_hold() -> None:
    extents = {Y: 8, X: 10}
    assert condition_probability(Y < 2, (), extents) == 0.25
    assert condition_probability(Y + X < 3, (Y < 1,), extents) == pytest.approx(0.3)
    assert condition_probability(DATA[Y] < 3, (), extents) == 0.5
    tile = ir.Bin(
        "floormod", Y, ir.as_index(16)
    )  # every sixteenth of many: no even steps may meet them, or miss them, always
    assert condition_probability(ir.Bin("eq", tile, ir.as_index(15)), (), {Y: 1 << 20}) == pytest.approx(
        1 / 16, rel=0.05
    )
    inside = ir.Bin("mul", tile, ir.as_index(3)) + X < 47
    assert condition_probability(inside, (), {Y: 768, X: 3}) == 47 / 48
    body = ir.If(Y < 16, ir.Store(OUT, (Y,), DATA[Y] * DATA[Y]))
    assert cost(ir.PrimFunc("f", (DATA, OUT), ir.loops([(Y, 64)], body))).operations["multiply"] == 16


def lives(*names: str, defines: bool = False) -> list[RegisterEvent]:
    return [RegisterEvent(((name,),), defines) for name in names]


def test_what_does_not_fit_the_registers_is_spilled() -> None:
    names = [f"v{k}" for k in range(6)]
    events = lives(*names, defines=True) + lives(*names)
    assert allocate_registers(events, (), 6).loads == 0
    few = allocate_registers(events, (), 4)
    assert few.loads == few.stores == 2 and few.peak == 4
    assert allocate_registers(lives(*names), [(name,) for name in names], 4).loads > 0


def test_the_value_that_is_used_least_for_its_life_is_spilled() -> None:
    """A value with many uses keeps its register, though one with a single use is needed as soon; what lasts and is not written is
    loaded, never stored."""
    made = lives("often", "rare", "x", defines=True)
    found = allocate_registers(made + lives("x", "rare", "often", "often", "often"), (), 2)
    assert (found.loads, found.stores) == (1, 1)
    kept = allocate_registers(lives("a", "b", defines=True) + lives("a", "b", "lasts"), [("lasts",)], 2)
    assert (kept.loads, kept.stores) == (1, 0)


def test_a_spilled_value_stays_where_a_register_is_free() -> None:
    busy = lives("a", "b", "c", defines=True) + 4 * lives("a", "b", "c")
    found = allocate_registers(lives("x", defines=True) + busy + lives("x", "y", "x", "y", "x"), (), 3)
    assert (found.loads, found.stores) == (1, 1)


def test_a_store_that_nobody_loads_is_none() -> None:
    """All uses of the first value find it in a register still."""
    full = lives("a", "b", "c", defines=True) + lives("a", "b", "c")
    found = allocate_registers(lives("x", defines=True) + lives("x") + full + full, [("y",)], 2)
    assert found.stores == found.loads == 2


def test_constants_are_made_anew_not_stored_and_what_is_rare_counts_as_much() -> None:
    number, rare = (RegisterEvent(((CONSTANT, 1234567),), share=share) for share in (1.0, 0.25))
    busy = lives("a", "b", defines=True) + 3 * lives("a", "b")
    found = allocate_registers([number, *busy, number], (), 2)
    assert (found.loads, found.stores, found.rematerialised) == (0, 0, 2)
    assert allocate_registers([number, *busy, rare], (), 2).rematerialised == 1.25


def test_values_wait_in_registers_for_the_rest_of_their_expression() -> None:
    """Eight words as names fit beside a pointer, their products with one another do so one after the other; twelve that wait for
    the last one do not fit."""

    def spilled(words: int) -> float:
        value = DATA[Y * 2 + words - 1] * 3
        for k in reversed(range(words - 1)):
            value = (DATA[Y * 2 + k] * 3) - value
        return cost(loop(value, 8)).spilled

    assert spilled(8) == 0 < spilled(16)


def test_a_constant_keeps_its_register_through_a_short_loop_that_is_full() -> None:
    """Six uses behind a loop of two turns or three outweigh what a sum costs in it without a register (gcc: 73 instructions a
    turn become 88), behind one of four turns they do not: it is made anew six times."""

    def spilled(turns: int, number: int) -> float:
        table = ir.Buffer("table", (64, 64), "int32", "const")
        tile = ir.Buffer("tile", (11,), "int32", "register")
        words = [ir.Var(f"word_{k}") for k in range(11)]
        adds = [ir.Store(tile, (ir.as_index(k),), tile[k] + word) for k, word in enumerate(words)]
        turn: ir.Stmt = ir.Seq(tuple(adds))
        for k, word in enumerate(words):
            turn = ir.Let(word, table[Y, X * 11 + k], turn)
        ends = [
            ir.Store(OUT, (Y * 6 + k,), ir.call("high_mul_round", tile[k], ir.const(number, "int32"))) for k in range(6)
        ]
        starts = [ir.Store(tile, (ir.as_index(k),), ir.const(0, "int32")) for k in range(11)]
        body = ir.Seq((*starts, ir.loops([(X, turns)], turn), *ends))
        func = ir.PrimFunc("f", (table, OUT), ir.loops([(Y, 8)], ir.Alloc(tile, body)))
        return cost(func).spilled

    for turns, more in ((2, 2 * 2), (4, 6), (8, 6)):
        assert spilled(turns, 1657902019) - spilled(turns, 1) == 8 * more


def test_a_sum_takes_one_or_none_under_a_condition() -> None:
    one = ir.Select(DATA[Y] < 5, ir.const(1, "int32"), ir.const(0, "int32"))
    two = ir.Select(DATA[Y] < 5, ir.const(1, "int32"), ir.const(2, "int32"))
    assert cost(loop(DATA[0] + one)).instructions == pytest.approx(cost(loop(DATA[0] + two)).instructions - 64)


def test_a_product_of_words_is_one_instruction_whatever_has_a_name() -> None:
    wide = ir.Var("wide", "int64")
    value = ir.cast("int32", (wide * ir.cast("int64", DATA[0])) >> 32)
    named = ir.Let(wide, ir.cast("int64", DATA[Y]), ir.Store(OUT, (Y,), value))
    assert cost(ir.PrimFunc("f", (DATA, OUT), ir.loops([(Y, 64)], named))).operations.get("multiply") is None


def test_the_loop_of_an_instruction_runs_often_and_is_printed_once() -> None:
    """A row of 32 bytes by 64 rows of weights takes some eight times what eight rows take, in the same code."""

    def product(columns: int) -> Cost:
        row, weights = ir.Buffer("row", (32,), "int8"), ir.Buffer("weights", (64 * 32,), "int8")
        places = [ir.AddressOf(each, (ir.as_index(0),), each.shape[0]) for each in (row, weights, DATA, OUT)]
        call = ir.Call("row_i8_i8_32", (*places, ir.const(columns, "int32")), "void")
        return cost(ir.PrimFunc("f", (row, weights, DATA, OUT), ir.Evaluate(call)), "cortex-m55")

    few, many = product(8), product(64)
    assert 7 < (many.instructions - CALL) / (few.instructions - CALL) < 8
    assert many.code_bytes == few.code_bytes < 200


def test_neighbours_of_different_units_overlap_on_mve() -> None:
    """Six products of five vectors: each load and product but one overlaps with the instruction before it."""
    load, product = "vldrb.8 q{}, [%[a]], #16", "vmladava.s8 %[c], q0, q{}"
    alternating = [line.format(k) for k in range(3) for line in (load, product)]
    assert dict(count_vector_operations(alternating)) == {"vector_load": 3, "vector": 3, "joint": 6}
    assert dict(count_vector_operations(sorted(alternating))) == {"vector_load": 3, "vector": 3, "joint": 2}
    assert dict(count_vector_operations(["vldrb.8 q0, [%[a]]", "strd r0, r1, [r2]"])) == {"vector_load": 1}
    tile = PRODUCT_BODIES[product_name("int8", "int8", 3, 2)].loop
    assert tile is not None
    counts = dict(tile.operations_per_iteration)
    assert (counts["vector_load"], counts["vector"], counts["branch"]) == (5, 6, 0.25)
    assert counts["joint"] > 9


def test_vectors_are_priced_as_vectors_and_a_predicate_crosses_to_a_general_register() -> None:
    def operations(name: str) -> dict[str, int]:
        return dict(ARM_MVE.bodies[name].operations)

    assert operations("add_i32x4") == operations("mac_n_i32x4") == {"vector": 1}
    assert operations("load_i8_i32x4") == {"vector_load": 1}
    assert operations("store_saturated_i8_i32x4") == {"vector": 2, "vector_store": 1}
    assert operations("select_gt_i32x4") == {"vector": 2, "alu": 3}
    assert operations("store_i32_i32x4_first") == {"vector_store": 1, "alu": 2}


def test_an_innermost_loop_is_counted_by_one_instruction_on_armv8_1m() -> None:
    inner, outer = loop(DATA[Y]), ir.loops([(X, 64), (Y, 2)], ir.Store(OUT, (Y,), DATA[X]))
    assert cost(inner).instructions - cost(inner, "cortex-m55").instructions == 64
    nested = ir.PrimFunc("f", (DATA, OUT), outer)
    assert cost(nested, "cortex-m55").operations["taken"] > 0  # of the outer loop


def test_an_extension_takes_two_instructions_without_zbb() -> None:
    def instructions(dtype: str, cpu: str) -> float:
        return cost(loop(ir.cast("int32", ir.cast(dtype, DATA[Y] + 1))), cpu).instructions

    for dtype, more in (("int8", 64), ("int16", 64), ("uint16", 64), ("uint8", 0)):
        assert instructions(dtype, "rv32imac") - instructions(dtype, "rv32imac_zba_zbb") == more


def test_equal_floats_of_a_value_are_computed_once() -> None:
    data, out = ir.Buffer("data", (64,), "float32"), ir.Buffer("out", (64,), "float32")
    shared = data[Y] * data[Y]
    func = ir.PrimFunc("f", (data, out), ir.loops([(Y, 64)], ir.Store(out, (Y,), shared + shared * shared)))
    assert cost(func).operations["float_multiply"] == 2 * 64
    assert cost(func).operations["float_load"] == 64


def test_two_words_at_once_reach_less_far_than_one() -> None:
    """LDRD reaches 1,020 bytes, LDR 4,095: what lies between takes an instruction for its address."""

    def pairs(distance: int) -> float:
        words = ir.Buffer("words", (4096,), "int16")
        zero = ir.const(0, "int32")
        total: ir.Expr = zero
        for place in (0, distance):
            at = ir.AddressOf(words, (ir.as_index(place),), 4)
            total = ir.Call("dot4_i16_aligned", (at, zero, zero, total), "int32")
        return cost(ir.PrimFunc("f", (words, OUT), ir.Store(OUT, (ir.as_index(0),), total))).instructions

    assert pairs(510) == pairs(4)
    assert pairs(512) == pairs(4) + 1


def test_larger_tiles_help_until_they_spill() -> None:
    found = {shape: cost(lower(tiled(*shape).func)) for shape in ((1, 1), (2, 2), (6, 6))}
    assert found[2, 2].instructions < found[1, 1].instructions
    assert found[2, 2].spilled <= found[6, 6].spilled > 0
    assert found[1, 1].code_bytes < found[2, 2].code_bytes < found[6, 6].code_bytes


def test_flash_waits_add_cycles_only() -> None:
    slow = replace(M4, flash_wait=1.25)
    func = lower(tiled(2, 2).func)
    constants = estimate(func, M4).operations["constant_byte"]
    assert constants > 0
    assert estimate(func, slow).instructions == estimate(func, M4).instructions
    assert estimate(func, slow).cycles == pytest.approx(estimate(func, M4).cycles + 1.25 * constants)


def test_functions_must_be_lowered() -> None:
    with pytest.raises(InternalError, match="lower the function first"):
        estimate(matmul(2, 4, 2), M4)


@pytest.mark.parametrize(
    ("goal", "better"),
    [
        (SPEED, lambda best, other: best.instructions <= 1.02 * other.instructions),
        (SIZE, lambda best, other: best.code_bytes <= other.code_bytes),
        (
            Goal("balanced", 5.0),
            lambda best, other: (
                best.instructions + 5 * best.code_bytes <= 1.02 * (other.instructions + 5 * other.code_bytes)
            ),
        ),
    ],
    ids=["speed", "size", "balanced"],
)
def test_the_goal_decides(goal: Goal, better: Callable[[Cost, Cost], bool]) -> None:
    candidates = [tiled(*shape) for shape in ((1, 1), (2, 2), (3, 2), (6, 6))]
    chosen = choose_schedule(candidates, M4, goal)
    assert chosen.func == lower(chosen.schedule.func) and chosen.schedule.rule
    assert all(better(cost(chosen.func), cost(lower(c.func))) for c in candidates)


def test_alike_kernels_share_code_but_not_constants() -> None:
    """Code that is paid once is worth it for many uses."""
    candidates = [tiled(1, 1), tiled(2, 2)]
    costs = [cost(lower(c.func)) for c in candidates]
    price = (costs[0].instructions - costs[1].instructions) / (costs[1].code_bytes - costs[0].code_bytes)
    goal = Goal("balanced", 2 * price)
    assert choose_schedule(candidates, M4, goal).schedule.rule == "1x1"
    assert choose_schedule(candidates, M4, goal, equal_kernels=8).schedule.rule == "2x2"
    assert constant_bytes(candidates[0]) == 12 * 16 + 12 * 4


def test_minima_are_one_instruction_where_the_core_has_them() -> None:
    clamped = ir.clamp(DATA[Y].astype("int32"), -5, 7)
    plain, short = (cost(loop(clamped.astype("int8")), cpu) for cpu in ("rv32imac", "rv32imac_zba_zbb"))
    assert plain.instructions - short.instructions == pytest.approx(64 * 2 * 0.5)  # a branch, half of the time a move


def test_what_is_looked_up_by_a_sum_is_looked_up_in_every_turn() -> None:
    """The index has no variable of the loop; its equal parts are computed once."""
    table = ir.Buffer("table", (256,), "int32", "const")
    total = ir.Buffer("total", (1,), "int32", "register")

    def found(index: ir.Expr) -> Cost:
        steps = (ir.Store(total, (ir.as_index(0),), DATA[Y]), ir.Store(OUT, (Y,), table[index]))
        return cost(ir.PrimFunc("f", (DATA, table, OUT), ir.Alloc(total, ir.loops([(Y, 64)], ir.Seq(steps)))))

    part = ir.call("saturate_u8", total[0])
    once, twice = found(part), found(part * part)
    assert once.operations["load"] == pytest.approx(2 * 64 + CALL / 4)
    assert twice.instructions == pytest.approx(once.instructions + 64)


def test_what_a_loop_does_not_change_is_computed_before_it() -> None:
    """Constants leave loops; memory that a loop may write is loaded again and again; what a condition guards stays behind it."""
    table = ir.Buffer("table", (8,), "int32", "const")

    def loads(value: ir.Expr, guard: ir.Expr | None = None) -> float:
        store: ir.Stmt = ir.Store(OUT, (X,), value)
        body = ir.If(guard, store) if guard is not None else store
        func = ir.PrimFunc("f", (DATA, table, OUT), ir.loops([(Y, 8), (X, 64)], body))
        return cost(func).operations["load"] - CALL / 4

    assert loads(table[Y] + X) == 8
    assert loads(table[Y] * table[0] + X) == 8 + 1
    assert loads(DATA[Y] + X) == 8 * 64
    assert loads(table[Y] + X, X < 32) == 8 * 32


def test_a_division_by_a_constant_leaves_the_branches_of_a_loop() -> None:
    lines = 20
    line, rest = X // 7, X % 7
    inner = ir.If(rest * 2 + Y >= 1, ir.Store(OUT, (Y,), DATA[Y]))
    func = ir.PrimFunc("f", (DATA, OUT), ir.loops([(X, lines), (Y, 8)], ir.If(line * 2 + Y < 9, inner)))
    assert cost(func).operations["multiply_long"] == 2 * lines
    assert cost(func, "cortex-m0").operations["call_divide"] == 2 * lines


def test_an_empty_body_costs_its_meaning() -> None:
    product = ir.Call("high_mul", (DATA[Y], ir.const(1540487698, "int32")), "int32")
    assert cost(loop(product), "cortex-m0").operations["multiply"] == 4 * 64


def test_a_short_branch_compares_registers_and_offsets_are_bytes_on_risc_v() -> None:
    """lb, lb, add, sb, two pointers, and bne; bytes at an offset take no instruction more."""
    data, out = ir.Buffer("data", (128,), "int8"), ir.Buffer("out", (64,), "int8")
    func = ir.PrimFunc("f", (data, out), ir.loops([(Y, 64)], ir.Store(out, (Y,), data[Y] + data[Y + 64])))
    assert cost(func, "rv32imc").instructions - CALL == pytest.approx(64 * 7, abs=4)


def test_a_high_half_of_a_product_needs_one_bit_of_the_low_one() -> None:
    """mul, mulh, srl, add, add: the rounded high half, added to a number."""
    value = ir.call("high_mac_round", DATA[Y], ir.const(7, "int32"), ir.const(5, "int32"))
    assert cost(loop(value), "rv32imc").instructions - cost(loop(DATA[Y]), "rv32imc").instructions == 64 * 5


def test_signed_bytes_have_no_offset_on_armv6m() -> None:
    """ldrsb by an index for the only access of a pointer; each of several takes movs before ldrsb, or sxtb behind ldrb."""
    out = ir.Buffer("out", (64,), "int32")

    def loads(dtype: str) -> float:
        data = ir.Buffer("data", (128,), dtype)
        both = data[Y * 2].astype("int32") + data[Y * 2 + 1].astype("int32")
        return cost(
            ir.PrimFunc("f", (data, out), ir.loops([(Y, 64)], ir.Store(out, (Y,), both))), "cortex-m0"
        ).instructions

    assert loads("int8") - loads("uint8") == 2 * 64


def test_traffic_is_what_goes_over_the_bus() -> None:
    """Every turn an access, as far as guards hold; registers are no memory."""
    found = cost(loop(DATA[Y] + 1)).traffic
    assert found["data"] == Traffic(reads=64, bytes_read=256)
    assert found["out"] == Traffic(writes=64, bytes_written=256)
    half = ir.loops([(Y, 64)], ir.If(Y < 32, ir.Store(OUT, (Y,), DATA[Y])))
    assert cost(ir.PrimFunc("f", (DATA, OUT), half)).traffic["out"].writes == 32
    product = cost(lower(tiled(2, 2).func)).traffic
    assert product["x"].reads == 12 * 12 * 16 / 2 and product["out"].writes == 12 * 12


def test_bytes_side_by_side_come_by_words() -> None:
    """An intrinsic that moves sixteen bytes makes four accesses, one that gathers as many sixteen."""
    assert Traffic.of(1, 16) == Traffic(reads=4, bytes_read=16)
    assert Traffic.of(1, 16, 3, writes=True) == Traffic(writes=16, bytes_written=16)
    assert Traffic.of(8) == Traffic(reads=2, bytes_read=8)
    words = ir.Buffer("words", (64,), "int8")
    load = ir.call("load_i8x4", ir.AddressOf(words, (Y * 4,), 4))
    func = ir.PrimFunc("f", (words, OUT), ir.loops([(Y, 16)], ir.Store(OUT, (Y,), load)))
    assert cost(func).traffic["words"] == Traffic(reads=16, bytes_read=64)
