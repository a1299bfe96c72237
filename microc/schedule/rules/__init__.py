# SPDX-License-Identifier: Apache-2.0
"""Schedule rules: for each family of functions, the loops that suit a core. Rules test blocks and features of cores,
not models.

Rules recognise the stages of an operator by the names of blocks (``tir/names.py``). Every rule of :data:`OURS` that
matches a function yields candidate schedules, one for each combination of its decisions, and the cost model chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from microc.base.immutable import Registry
from microc.errors import ProgramError
from microc.isa.instruction_set import TENSOR_UNIT
from microc.isa.vocabulary.vector_lanes import LEAST
from microc.schedule.primitives.tree import Step
from microc.schedule.rules import depthwise, matrix, spaces, swar_rules, vectors, winograd
from microc.schedule.rules import spaces as sketch
from microc.schedule.rules import vectors as strips
from microc.schedule.rules import vectors as windows
from microc.schedule.rules.around_rules import canonicalise_for_target, select_instructions
from microc.schedule.rules.generic import matches_rows, schedule_generic, schedule_rows
from microc.schedule.rules.matrix import (
    bit_pair_tiles,
    bit_scalar_tiles,
    matches_bit_pairs,
    matches_bits,
    matches_float16_depthwise,
    matches_float16_product,
    matches_lookup_columns,
    schedule_float16_depthwise,
    schedule_float16_product,
    schedule_lookup_columns,
)
from microc.schedule.rules.movement import (
    matches_block_loops,
    matches_copies,
    matches_copy_loops,
    matches_elementwise_arithmetic,
    matches_integer_moves,
    matches_packed_lanes,
    matches_transposed_elements,
    schedule_copies,
    schedule_copy_loops,
    schedule_integer_moves,
    schedule_packed_lanes,
    unroll_results,
    vectorize_results,
    vectorize_stages,
    vectorize_transposed,
)
from microc.schedule.rules.rule import Matches, Rule, fixed_domain, vectorize_unassigned_loops
from microc.schedule.rules.templates import match_product
from microc.schedule.rules.unit_rules import (
    default_blockings,
    default_sums,
    matches_mve,
    matches_unit_product,
    schedule_matrix_mve,
    schedule_on_unit,
    search_blockings,
    search_sums,
)
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import PATCH


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """A schedule rule of the user. Its schedules compete with those of the built-in rules; the cost model chooses for
    the goal.

    ``function(schedule, op, target)`` returns a schedule, several schedules, or None if the rule does not apply;
    ``op`` is the first operator of the kernel. ``name``: name in reports. ``alone``: if True, the rule's schedules
    are used whatever the cost model estimates."""

    name: str
    function: Callable[[Schedule, str, Target], Schedule | Sequence[Schedule] | None]
    alone: bool = False

    def schedules(self, func: ir.PrimFunc, op: str, target: Target) -> list[Schedule]:
        """Call the user's function and return its schedules. Raise ProgramError if its results are not schedules of
        ``func``."""
        start = Schedule(func)
        result: Any = self.function(start, op, target)  # of a user's function, so of any type
        schedules: list[Any] = [] if result is None else list(result) if isinstance(result, (list, tuple)) else [result]
        if any(not isinstance(schedule, Schedule) or schedule.start != start.func for schedule in schedules):
            raise ProgramError(
                f"schedule rule {self.name}: the result is no schedule of function {func.name}; got "
                f"{type(result).__name__}",
                hint="return the schedule that it was given, after steps, or None",
            )
        return [vectorize_unassigned_loops(schedule, target).named(self.name) for schedule in schedules]


RULES: Registry[ScheduleRule] = Registry("a schedule rule", {})
"""The user's schedule rules for the current compilation, by name."""


def _is_not_tiled_product(start: Schedule, target: Target) -> bool:
    """Match any function except matrix products that the tile template schedules.

    A tile loads the operands of a product along K less often than a generic schedule. A generic schedule would also
    copy ``patch`` for all pixels at once, and the cost model does not price that memory."""
    product = match_product(start)
    return product is None or not (product.contiguous_along_k or start.has(PATCH))


def _matches_unless_tiled_product(matches: Matches) -> Matches:
    """Restrict the test ``matches`` of a rule to functions that are not tiled products
    (:func:`_is_not_tiled_product`)."""
    return lambda start, target: _is_not_tiled_product(start, target) and matches(start, target)


OURS: tuple[Rule, ...] = (
    Rule(
        "matrix strips",
        strips.matches_strip_product,
        strips.schedule_strip_product,
        {"tile": strips.strip_product_tiles},
        needed_features=frozenset({"scalable"}),
    ),
    Rule(
        "window strips",
        strips.matches_strip_windows,
        strips.schedule_strip_windows,
        {"tile": strips.strip_window_tiles},
        needed_features=frozenset({"scalable"}),
    ),
    Rule(
        "depthwise strips",
        strips.matches_strip_depthwise,
        strips.schedule_strip_depthwise,
        {"lanes": fixed_domain(*LEAST)},
        needed_features=frozenset({"scalable"}),
    ),
    Rule(
        "matrix vectors",
        vectors.matches_vector_product,
        matrix.schedule_by_tile,
        {"tile": vectors.vector_product_tiles},
        search_domains={"tile": spaces.vector_tiles},
    ),
    Rule(
        "window vectors",
        windows.matches_windows,
        windows.schedule_windows,
        {"tile": windows.window_tiles},
        search_domains={"tile": spaces.window_tiles},
    ),
    Rule(
        "depthwise vectors",
        vectors.matches_vector_depthwise,
        vectors.schedule_vector_depthwise,
        {"pixels": fixed_domain(vectors.DEPTHWISE_PIXELS), "pairs": vectors.default_tap_pairs},
        search_domains={"pixels": fixed_domain(*range(1, 13)), "pairs": vectors.search_tap_pairs},
    ),
    Rule(
        "matrix bit pairs",
        matches_bit_pairs,
        matrix.schedule_by_tile,
        {"tile": bit_pair_tiles},
        low_memory={"tile": matrix.domain_of_fewer_rows},
        needed_features=frozenset({"pairs"}),
    ),
    Rule(
        "matrix opened columns",
        matches_lookup_columns,
        schedule_lookup_columns,
        needed_features=frozenset({"pairs"}),
    ),
    Rule(
        "matrix unit",
        matches_unit_product,
        schedule_on_unit,
        {"blocking": default_blockings},
        search_domains={"blocking": search_blockings},
        needed_features=frozenset({TENSOR_UNIT}),
    ),
    Rule(
        "matrix bits",
        matches_bits,
        matrix.schedule_by_tile,
        {"tile": bit_scalar_tiles},
        low_memory={"tile": matrix.domain_of_fewer_rows},
    ),
    Rule(
        "matrix mve",
        matches_mve,
        schedule_matrix_mve,
        {"sums": default_sums},
        search_domains={"sums": search_sums},
        needed_features=frozenset({"lanes"}),
    ),
    Rule("matrix half", matches_float16_product, schedule_float16_product),
    Rule("window half", matches_float16_depthwise, schedule_float16_depthwise),
    Rule(
        "matrix pairs",
        swar_rules.matches_pixel_pairs,
        swar_rules.schedule_pixel_pairs,
        {"pairs": swar_rules.default_pixel_pairs, "channels": swar_rules.default_channels},
        search_domains={"pairs": swar_rules.search_pixel_pairs, "channels": swar_rules.search_channels},
    ),
    Rule(
        "matrix quads",
        swar_rules.matches_channel_quads,
        swar_rules.schedule_channel_quads,
        {"quads": fixed_domain(1)},
        search_domains={"quads": swar_rules.search_quads},
    ),
    Rule(
        "matrix float",
        matrix.matches_float,
        matrix.schedule_by_tile,
        {"tile": matrix.float_tiles},
        search_domains={"tile": spaces.float_tiles},
        low_memory={"tile": matrix.domain_of_fewer_rows},
        needed_features=frozenset({"fma"}),
    ),
    Rule(
        "matrix opened",
        matrix.matches_float_by_int8,
        matrix.schedule_by_tile,
        {"tile": matrix.float_by_int8_tiles},
        low_memory={"tile": matrix.domain_of_fewer_rows},
    ),
    Rule(
        "matrix dsp",
        matrix.matches_int16_dot,
        matrix.schedule_by_tile,
        {"tile": matrix.int16_dot_tiles},
        search_domains={"tile": spaces.pair_tiles},
        low_memory={"tile": matrix.domain_of_fewer_rows},
        needed_features=frozenset({"pairs"}),
    ),
    Rule(
        "matrix",
        matrix.matches_any_product,
        matrix.schedule_by_tile,
        {"tile": matrix.scalar_tiles},
        search_domains={"tile": spaces.plain_tiles},
        low_memory={"tile": matrix.domain_of_fewer_rows},
    ),
    Rule(
        "winograd",
        winograd.matches_int16_winograd,
        winograd.schedule_winograd,
        {"held": winograd.default_tile_counts, "unroll": winograd.default_point_unrolls},
        search_domains={"held": winograd.search_tile_counts, "unroll": winograd.search_point_unrolls},
        needed_features=frozenset({"pairs"}),
    ),
    Rule(
        "winograd floats",
        winograd.matches_float_winograd,
        winograd.schedule_float_winograd,
        {"square": winograd.default_square, "unroll": winograd.default_unroll},
        search_domains={"square": winograd.search_squares, "unroll": winograd.search_unrolls},
        needed_features=frozenset({"fma"}),
    ),
    Rule(
        "depthwise mve",
        depthwise.matches_constant_weights,
        depthwise.schedule_in_mve_lanes,
        {
            "axis": depthwise.default_lane_axis,
            "abreast": fixed_domain(1, 2, 3),
            "taps": fixed_domain(depthwise.LANE_TAPS),
        },
        search_domains={
            "axis": fixed_domain(2, 1, depthwise.CHANNELS),
            "abreast": fixed_domain(*range(1, 7)),
            "taps": spaces.lane_taps,
        },
        needed_features=frozenset({"lanes"}),
    ),
    Rule(
        "depthwise dsp",
        depthwise.matches_plane_pairs,
        depthwise.schedule_by_planes,
        {"walk": depthwise.pair_walks},
        search_domains={"walk": spaces.pair_walks},
        needed_features=frozenset({"pairs"}),
    ),
    Rule(
        "depthwise planes",
        depthwise.matches_single_products,
        depthwise.schedule_by_planes,
        {"walk": depthwise.single_walks},
        search_domains={"walk": spaces.single_walks},
    ),
    Rule(
        "depthwise bytes",
        depthwise.matches_unsigned_bytes,
        depthwise.schedule_by_planes,
        {"walk": depthwise.byte_walks},
        search_domains={"walk": spaces.single_walks},
        needed_features=frozenset({"unsigned_bytes"}),
    ),
    Rule("depthwise", depthwise.matches_window_sum, depthwise.schedule_by_rows),
    Rule("runs", matches_copy_loops, schedule_copy_loops, {"unrolled": fixed_domain(False, True)}),
    Rule("generic", _is_not_tiled_product, schedule_generic, {"unrolled": fixed_domain(False, True)}),
    Rule(
        "sketch",
        _matches_unless_tiled_product(sketch.matches_sketch),
        sketch.schedule_sketch,
        {"square": fixed_domain()},
        search_domains={"square": sketch.sketch_squares},
    ),
    Rule("copies", matches_copies, schedule_copies, {"words": fixed_domain(False, True)}),
    Rule(
        "several",
        matches_elementwise_arithmetic,
        unroll_results,
        {"results": fixed_domain(4)},
        search_domains={"results": fixed_domain(2, 3, 4, 6, 8)},
    ),
    Rule("words", matches_packed_lanes, schedule_packed_lanes),
    Rule("picks", matches_integer_moves, schedule_integer_moves, needed_features=frozenset({"max_i8x4"})),
    Rule(
        "lanes",
        _matches_unless_tiled_product(matches_block_loops),
        vectorize_results,
        needed_features=frozenset({"lanes"}),
    ),
    Rule(
        "vectors",
        _matches_unless_tiled_product(matches_block_loops),
        vectorize_stages,
        {"strips": fixed_domain(True, False)},
        needed_features=frozenset({"vectors"}),
    ),
    Rule("transposed vectors", matches_transposed_elements, vectorize_transposed),
    Rule("rows", _matches_unless_tiled_product(matches_rows), schedule_rows, {"unrolled": fixed_domain(False, True)}),
)
"""The built-in schedule rules. Their order decides between schedules of equal cost: the first is chosen."""


def candidate_schedules(
    func: ir.PrimFunc, op: str, target: Target, goal: Goal, *, low_memory: bool = False
) -> tuple[Schedule, ...]:
    """Return the candidate schedules of a function, at least one, from built-in rules and from rules of the user. Each
    has a name for reports.

    ``op``: first operator of the kernel. ``low_memory``: also return schedules with small workspaces, which take more
    time."""
    own = [(rule, schedule) for rule in RULES.values() for schedule in rule.schedules(func, op, target)]
    alone = tuple(schedule for rule, schedule in own if rule.alone)
    start = canonicalise_for_target(func, target)
    matching = [] if alone else [rule for rule in OURS if rule.applies_to(start, target)]
    ours = [schedule for rule in matching for schedule in rule.schedules(start, target, goal)]
    if low_memory:
        ours += [schedule for rule in matching for schedule in rule.low_memory_schedules(start, target, goal)]
    by_trace: dict[tuple[Step, ...], Schedule] = {}  # a decision that changes nothing gives the same steps
    for schedule in alone or (*ours, *(schedule for _, schedule in own)):
        by_trace.setdefault(schedule.trace, schedule)
    return tuple(select_instructions(schedule, target) for schedule in by_trace.values())


def schedule_as_written(func: ir.PrimFunc, target: Target) -> Schedule:
    """Return the schedule that keeps the loops in which the operator's definition is written."""
    return select_instructions(canonicalise_for_target(func, target), target).named("as written")
