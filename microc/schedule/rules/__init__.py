"""Schedule rules: loops that suit a core for every family of functions. Rules look at blocks and features, not at models.

The names of the blocks that operators make are their interface (``tir/names.py``). Every rule of :data:`OURS` that matches gives
candidates, one for each choice of its decisions, and the cost model chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from microc.base.immutable import Registry
from microc.errors import ProgramError
from microc.isa.instruction_set import TENSOR_UNIT
from microc.isa.vocabulary.vector_lanes import LEAST
from microc.schedule.primitives.tree import Step
from microc.schedule.rules import depthwise, matrix, spaces, swar_rules, vectors, winograd
from microc.schedule.rules import spaces as sketch
from microc.schedule.rules import vectors as strips
from microc.schedule.rules import vectors as windows
from microc.schedule.rules.around_rules import begun, with_instructions
from microc.schedule.rules.generic import schedule_generic, schedule_rows, suits_rows
from microc.schedule.rules.matrix import (
    opened_columns,
    pair_tiles,
    plain_tiles,
    schedule_half,
    schedule_windows,
    suits_bit_pairs,
    suits_bits,
    suits_half,
    suits_opened_columns,
    suits_windows,
)
from microc.schedule.rules.matrix_mve import all_sums, known_sums, schedule_matrix_mve, suits_mve
from microc.schedule.rules.movement import (
    in_lanes,
    in_vectors,
    schedule_copies,
    schedule_picks,
    schedule_runs,
    several,
    suits_copies,
    suits_lanes,
    suits_picks,
    suits_runs,
    suits_several,
)
from microc.schedule.rules.rule import Matches, Rule, fixed, matching, with_lanes
from microc.schedule.rules.templates import product_of
from microc.schedule.rules.unit_rules import all_blockings, blockings, on_unit, suits_unit
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import PATCH


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """A user's schedule rule: its schedules compete with those of our rules, by the cost model and the goal.

    ``function(schedule, op, target)`` returns a schedule, several, or None if it does not apply; ``op`` is the first operator of
    the kernel. ``name`` is shown in reports. ``alone``: its schedules are taken whatever the model says.
    """

    name: str
    function: Callable[[Schedule, str, Target], Schedule | Sequence[Schedule] | None]
    alone: bool = False

    def schedules(self, func: ir.PrimFunc, op: str, target: Target) -> list[Schedule]:
        """Call the user's function; ProgramError if its results are no schedules of ``func``."""
        result = self.function(Schedule(func), op, target)
        schedules = [] if result is None else [result] if isinstance(result, Schedule) else list(result)
        if any(not isinstance(schedule, Schedule) or schedule.start != func for schedule in schedules):
            raise ProgramError(
                f"schedule rule {self.name} gives no schedule of function {func.name}",
                hint="return what steps make of the schedule that it was given, or None",
            )
        return [with_lanes(schedule, target).named(self.name) for schedule in schedules]


RULES: Registry[ScheduleRule] = Registry("a schedule rule", {})
"""The rules that the user adds for a compilation, by name."""


def _is_generic(start: Schedule, target: Target) -> bool:
    """Match any function but products that the template tiles.

    A tile loads the operands of a product along K less often. A generic schedule would copy ``patch`` for all pixels at once,
    which takes memory that no price counts.
    """
    product = product_of(start)
    return product is None or not (product.along or start.has(PATCH))


def _unless_product(suits: Matches) -> Matches:
    """Restrict a test to functions that :func:`_is_generic` matches."""
    return lambda start, target: _is_generic(start, target) and suits(start, target)


_ANY = ("generic", "sketch", "copies", "several", "picks", "lanes", "rows")
_PLAIN = ("matrix", *_ANY)
_BYTES = ("matrix dsp", *_PLAIN)
_BY_ROWS = ("depthwise planes", "depthwise", *_ANY)

OURS: tuple[Rule, ...] = (
    Rule(
        "matrix strips",
        strips.suits_strip_product,
        strips.strip_product,
        {"tile": strips.strip_product_tiles},
        needs=frozenset({"scalable"}),
        over=("matrix float", "matrix dsp", *_PLAIN, "vectors"),
    ),
    Rule(
        "window strips",
        strips.suits_strip_windows,
        strips.strip_windows,
        {"tile": strips.strip_window_tiles},
        needs=frozenset({"scalable"}),
        over=(*_BY_ROWS, "vectors"),
    ),
    Rule(
        "depthwise strips",
        strips.suits_strip_depthwise,
        strips.strip_depthwise,
        {"lanes": fixed(*LEAST)},
        needs=frozenset({"scalable"}),
        over=_BY_ROWS,
    ),
    Rule(
        "matrix vectors",
        vectors.suits_product,
        matrix.by_tile,
        {"tile": vectors.product_tiles},
        space={"tile": spaces.vector_tiles},
        over=("matrix float", "matrix dsp", *_PLAIN, "vectors"),
    ),
    Rule(
        "window vectors",
        windows.suits_windows,
        windows.schedule_windows,
        {"tile": windows.window_tiles},
        space={"tile": spaces.window_tiles},
        over=(*_BY_ROWS, "vectors"),
    ),
    Rule(
        "depthwise vectors",
        vectors.suits_depthwise,
        vectors.depthwise_vectors,
        {"pixels": fixed(vectors.VECTORS_PIXELS), "pairs": vectors.known_pairs},
        space={"pixels": fixed(*range(1, 13)), "pairs": vectors.all_pairs},
        over=_BY_ROWS,
    ),
    Rule(
        "matrix bit pairs",
        suits_bit_pairs,
        matrix.by_tile,
        {"tile": pair_tiles},
        lean={"tile": matrix.fewer_rows},
        needs=frozenset({"pairs"}),
        over=("matrix bits", *_BYTES),
    ),
    Rule(
        "matrix opened columns",
        suits_opened_columns,
        opened_columns,
        needs=frozenset({"pairs"}),
        over=_BYTES,
    ),
    Rule(
        "matrix unit",
        suits_unit,
        on_unit,
        {"blocking": blockings},
        space={"blocking": all_blockings},
        needs=frozenset({TENSOR_UNIT}),
    ),
    Rule(
        "matrix bits",
        suits_bits,
        matrix.by_tile,
        {"tile": plain_tiles},
        lean={"tile": matrix.fewer_rows},
        over=_BYTES,
    ),
    Rule(
        "matrix mve",
        suits_mve,
        schedule_matrix_mve,
        {"sums": known_sums},
        space={"sums": all_sums},
        needs=frozenset({"lanes"}),
        over=("matrix bit pairs", "matrix bits", *_BYTES),
    ),
    Rule("matrix half", suits_half, schedule_half, over=(*_PLAIN, "vectors")),
    Rule("window half", suits_windows, schedule_windows, over=(*_BY_ROWS, "vectors")),
    Rule(
        "matrix pairs",
        swar_rules.suits_pixels,
        swar_rules.by_pixels,
        {"pairs": swar_rules.known_pairs, "channels": swar_rules.known_channels},
        space={"pairs": swar_rules.all_pairs, "channels": swar_rules.all_channels},
        over=_PLAIN,
    ),
    Rule(
        "matrix quads",
        swar_rules.suits_channels,
        swar_rules.by_channels,
        {"quads": fixed(1)},
        space={"quads": swar_rules.all_quads},
        over=_PLAIN,
    ),
    Rule(
        "matrix float",
        matrix.suits_float,
        matrix.by_tile,
        {"tile": matrix.float_tiles},
        space={"tile": spaces.float_tiles},
        lean={"tile": matrix.fewer_rows},
        needs=frozenset({"fma"}),
        over=_PLAIN,
    ),
    Rule(
        "matrix opened",
        matrix.suits_opened,
        matrix.by_tile,
        {"tile": matrix.opened_tiles},
        lean={"tile": matrix.fewer_rows},
        over=("matrix bits", *_PLAIN),
    ),
    Rule(
        "matrix dsp",
        matrix.suits_pairs,
        matrix.by_tile,
        {"tile": matrix.matrix_pair_tiles},
        space={"tile": spaces.pair_tiles},
        lean={"tile": matrix.fewer_rows},
        needs=frozenset({"pairs"}),
        over=_PLAIN,
    ),
    Rule(
        "matrix",
        matrix.suits_any,
        matrix.by_tile,
        {"tile": matrix.matrix_plain_tiles},
        space={"tile": spaces.plain_tiles},
        lean={"tile": matrix.fewer_rows},
    ),
    Rule(
        "winograd",
        winograd.suits_winograd,
        winograd.schedule_winograd,
        {"held": winograd.known_held, "unroll": winograd.known_unroll},
        space={"held": winograd.all_held, "unroll": winograd.all_unrolls},
        needs=frozenset({"pairs"}),
        over=_ANY,
    ),
    Rule(
        "winograd floats",
        winograd.suits_floats,
        winograd.schedule_floats,
        {"square": winograd.known_square, "unroll": winograd.known_unroll},
        space={"square": winograd.all_squares, "unroll": winograd.all_unrolls},
        needs=frozenset({"fma"}),
        over=(*_ANY, "vectors"),
    ),
    Rule(
        "depthwise mve",
        depthwise.suits_lanes,
        depthwise.in_lanes,
        {"axis": depthwise.known_axis, "abreast": fixed(1, 2, 3), "taps": fixed(depthwise.LANE_TAPS)},
        space={"axis": fixed(2, 1, depthwise.CHANNELS), "abreast": fixed(*range(1, 7)), "taps": spaces.lane_taps},
        needs=frozenset({"lanes"}),
        over=("depthwise dsp", *_BY_ROWS),
    ),
    Rule(
        "depthwise dsp",
        depthwise.suits_pairs,
        depthwise.by_planes,
        {"walk": depthwise.pair_walks},
        space={"walk": spaces.pair_walks},
        needs=frozenset({"pairs"}),
        over=_BY_ROWS,
    ),
    Rule(
        "depthwise planes",
        depthwise.suits_single,
        depthwise.by_planes,
        {"walk": depthwise.single_walks},
        over=_ANY,
        space={"walk": spaces.single_walks},
    ),
    Rule(
        "depthwise bytes",
        depthwise.suits_bytes,
        depthwise.by_planes,
        {"walk": depthwise.byte_walks},
        space={"walk": spaces.single_walks},
        needs=frozenset({"unsigned_bytes"}),
        over=_BY_ROWS,
    ),
    Rule("depthwise", depthwise.suits_window, depthwise.by_rows, over=_ANY),
    Rule("runs", suits_runs, schedule_runs, {"unrolled": fixed(False, True)}),
    Rule("generic", _is_generic, schedule_generic, {"unrolled": fixed(False, True)}),
    Rule(
        "sketch",
        _unless_product(sketch.suits_sketch),
        sketch.schedule_sketch,
        {"square": fixed()},
        space={"square": sketch.squares},
    ),
    Rule("copies", suits_copies, schedule_copies, {"words": fixed(False, True)}),
    Rule("several", suits_several, several, {"results": fixed(4)}, space={"results": fixed(2, 3, 4, 6, 8)}),
    Rule("picks", suits_picks, schedule_picks, needs=frozenset({"max_i8x4"})),
    Rule("lanes", _unless_product(suits_lanes), in_lanes, needs=frozenset({"lanes"})),
    Rule(
        "vectors",
        _unless_product(suits_lanes),
        in_vectors,
        {"strips": fixed(True, False)},
        needs=frozenset({"vectors"}),
    ),
    Rule("rows", _unless_product(suits_rows), schedule_rows, {"unrolled": fixed(False, True)}),
)
"""Our rules. The order decides between schedules of equal cost: the first is taken."""


def candidates(func: ir.PrimFunc, op: str, target: Target, goal: Goal, *, lean: bool = False) -> tuple[Schedule, ...]:
    """Return the schedules to choose from, at least one, each with the name that reports show; those of users compete with ours.

    ``lean``: add schedules of little workspace, also of rules that others dominate in time.
    """
    own = [(rule, schedule) for rule in RULES.values() for schedule in rule.schedules(func, op, target)]
    alone = tuple(schedule for rule, schedule in own if rule.alone)
    start = begun(func, target)
    ours = [] if alone else [s for rule in matching(OURS, start, target) for s in rule.schedules(start, target, goal)]
    if lean and not alone:
        ours += [s for rule in OURS if rule.suits(start, target) for s in rule.lean_schedules(start, target, goal)]
    by_trace: dict[tuple[Step, ...], Schedule] = {}  # a decision that changes nothing gives the same steps
    for schedule in alone or (*ours, *(schedule for _, schedule in own)):
        by_trace.setdefault(schedule.trace, schedule)
    return tuple(with_instructions(schedule, target) for schedule in by_trace.values())


def as_written(func: ir.PrimFunc, target: Target) -> Schedule:
    """Return the schedule that keeps the loops as the operator wrote them."""
    return with_instructions(begun(func, target), target).named("as written")
