# SPDX-License-Identifier: Apache-2.0
"""The class of schedule rules; vectorisation of loops in lanes; the cores for which each algorithm of an operator is
meant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import Any, NamedTuple

from microc.base.immutable import frozen
from microc.errors import MicrocError
from microc.isa import find_four_product_intrinsic
from microc.ops.registry import Multiples
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.lower.matrix_intrinsics import JOINED_DEPTHS
from microc.tir.names import FLOATS, LANES, SCALABLE
from microc.tir.rewrite import walk_all_exprs, walk_stmt

# ---- A rule is data: the functions that it matches, the decisions that it leaves to the cost model, and a builder of schedules

Decisions = Mapping[str, Any]
"""A value for each decision of a rule, by name (:attr:`Rule.decisions`)."""
Matches = Callable[[Schedule, Target], bool]
"""Test whether a rule applies to a function, which is given as a schedule without steps."""
Domain = Callable[[Schedule, Target, Goal], Sequence[Any]]
"""Function that returns the values of a decision worth comparing for a function, a core and a goal; at least one
value."""
MOSTLY: Mapping[str, bool] = MappingProxyType({"mostly": True})
"""Metadata of a dataclass field of a decision that most rules leave at its default. Texts about a search omit the
field unless it differs from the default."""


@frozen
class Rule:
    """A schedule rule for a family of functions. A rule that matches a function yields one candidate schedule for each
    combination of its decisions.

    - ``matches(start, target)``: test whether the rule applies to the function ``start``, a schedule without steps.
    - ``build(start, target, decisions)``: build the schedule; None if the decisions have no effect on the function.
    - ``decisions``: by name, the domain of each decision that the cost model compares. Decisions that are True are
      appended to the rule's name in reports.
    - ``search_domains``: by name, a wider domain of a decision for a search that measures (:mod:`microc.tuning`). The default is
      the domain in ``decisions``.
    - ``low_memory``: by name, a function that changes the domain of a decision such that schedules need less workspace, but
      more time.
    - ``needed_features``: features that the core must have."""

    name: str
    matches: Matches
    build: Callable[[Schedule, Target, Decisions], Schedule | None]
    decisions: Mapping[str, Domain] = field(default_factory=dict)
    needed_features: frozenset[str] = frozenset()
    search_domains: Mapping[str, Domain] = field(default_factory=dict)
    low_memory: Mapping[str, Callable[[Domain], Domain]] = field(default_factory=dict)

    def applies_to(self, start: Schedule, target: Target) -> bool:
        """Test whether the rule applies to the function, and the core has the features that the rule needs."""
        return self.needed_features <= target.features and self.matches(start, target)

    def low_memory_schedules(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Schedule]:
        """Build a schedule for each combination of decisions that need little workspace. Combinations whose steps
        fail are skipped."""
        small = {name: derive(self.decisions[name]) for name, derive in self.low_memory.items()}
        for decisions in _combine_domains({**self.decisions, **small}, start, target, goal):
            with suppress(MicrocError):
                schedule = self.schedule(start, target, decisions)
                if schedule is not None:
                    yield schedule

    def schedules(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Schedule]:
        """Build a schedule for each combination of decisions that the cost model compares."""
        for decisions in self.compared_decisions(start, target, goal):
            schedule = self.schedule(start, target, decisions)
            if schedule is not None:
                yield schedule

    def schedule(self, start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
        """Build the schedule for one combination of decisions. Its name is the rule's name with the decisions that
        are True. Return None if the decisions have no effect."""
        schedule = self.build(start, target, decisions)
        return schedule and schedule.named(
            ", ".join((self.name, *(name for name, value in decisions.items() if value is True)))
        )

    def compared_decisions(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Decisions]:
        """Iterate over the combinations of decisions that the cost model compares."""
        return _combine_domains(self.decisions, start, target, goal)

    def searched_decisions(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Decisions]:
        """Iterate over the combinations of decisions that a search by measurement may try."""
        return _combine_domains({**self.decisions, **self.search_domains}, start, target, goal)


def _combine_domains(
    domains: Mapping[str, Domain], start: Schedule, target: Target, goal: Goal
) -> Iterator[dict[str, Any]]:
    """Iterate over all combinations of values of the decisions, given the domain of each decision."""
    for values in itertools.product(*(domain(start, target, goal) for domain in domains.values())):
        yield dict(zip(domains, values, strict=True))


def fixed_domain(*values: Any) -> Domain:
    """Build a domain that has the same values for every function, core and goal."""
    return lambda start, target, goal: values


# ---- Loops in the lanes of vectors: how many lanes, and the annotations by which lowering vectorises them

WORDS = (4,)
"""Numbers of lanes of the vectors of a core that has only integer vectors."""
NUMBERS = 2
"""Level of :func:`float_vector_level` for cores that can multiply float vectors by scalars."""


def largest_dividing_lane_count(extent: int, target: Target) -> int:
    """Return the largest number of lanes of the core's vectors that divides ``extent``; 0 if none does."""
    return next((n for n in target.core.lanes or WORDS if extent % n == 0), 0)


def float_vector_level(target: Target) -> int:
    """Return the value of the annotation FLOATS (``tir/names.py``): 0 without float vectors, 1 with float vectors, 2
    if they can also be multiplied by scalars."""
    return max((target.has(f"add_f32x{n}") + target.has(f"fma_n_f32x{n}") for n in target.core.lanes), default=0)


def vectorize_unassigned_loops(schedule: Schedule, target: Target) -> Schedule:
    """Vectorise the innermost loops of kind "vectorized" that have no number of lanes yet, in lanes of the core's
    vectors.

    Loops that only copy elements stay as they are; they move words. On cores without vectors nothing changes."""
    if not (target.core.lanes or target.has("lanes")):
        return schedule
    for loop in [s for s in walk_stmt(schedule.func.body) if isinstance(s, ir.For) and s.kind == "vectorized"]:
        inside = list(walk_stmt(loop.body))
        stores = [s for s in inside if isinstance(s, ir.Store)]
        copies = all(isinstance(s.value, (ir.Load, ir.Const)) for s in stores)
        has_lanes = dict(loop.annotations).keys() & {LANES, SCALABLE}
        if not (has_lanes or copies or any(isinstance(s, ir.For) for s in inside)):
            schedule = vectorize_in_lanes(schedule, loop.var.name, target)
    return schedule


LONG = 32
"""Least number of lanes of the vectors for elementwise loops in strips. The vectors may be wide, because integer
functions need few vectors at once."""


def vectorize_in_strips(schedule: Schedule, loop: str, target: Target) -> Schedule:
    """Vectorise ``loop`` in strips of the machine's vector length, which is at least :data:`LONG` lanes. Functions
    of floats need more vectors at once, so that their vectors have half this width."""
    floats = any(x.dtype == "float32" for x in walk_all_exprs(schedule.func.body))
    return vectorize_strips(schedule, loop, target, LONG // 2 if floats else LONG)


def vectorize_in_lanes(schedule: Schedule, loop: str, target: Target) -> Schedule:
    """Vectorise ``loop`` in vectors with the most lanes that divide its extent; else with the most lanes that its
    extent fills."""
    extent, widths = loop_extent(schedule.func, loop), target.core.lanes or WORDS
    lanes = largest_dividing_lane_count(extent, target) or next((n for n in widths if n <= extent), widths[-1])
    return vectorize_lanes(schedule, loop, lanes, float_level=float_vector_level(target))


def vectorize_lanes(schedule: Schedule, loop: str, lanes: int = WORDS[0], float_level: int = 0) -> Schedule:
    """Vectorise ``loop`` in vectors of ``lanes`` iterations. ``float_level``: value of the annotation FLOATS; 0 if only
    integers are vectorised."""
    schedule = schedule.vectorize(loop).annotate(loop, LANES, lanes)
    return schedule.annotate(loop, FLOATS, float_level) if float_level else schedule


def vectorize_strips(schedule: Schedule, loop: str, target: Target, lanes: int) -> Schedule:
    """Vectorise ``loop`` in strips: a strip contains as many iterations as the machine's vectors have lanes,
    ``lanes`` or a multiple."""
    return vectorize_lanes(schedule, loop, lanes, float_vector_level(target)).annotate(loop, SCALABLE, 1)


# ---- The cores that each algorithm of an operator is for, and the multiples to which products are padded on them. The operator
# decides when an algorithm is valid (``OpDef.algorithms``).


class CoreRequirement(NamedTuple):
    """Features that a core must have (``needs``) or must not have (``lacks``) for an algorithm. Cores with a feature of
    ``lacks`` have a better algorithm.

    ``dominates``: algorithms that cannot be better than this one on these cores. They are not lowered if this one is
    valid. Comparing them changes no schedule of seven networks on x86-64-v3, but lowers 1.24 times the candidates and
    takes 1.27 times the CPU time of compiling."""

    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()
    dominates: frozenset[str] = frozenset()


FAST_MATH = "fast_math"
"""Feature that stands for a user option, not for the core: infinities and NaN may spread to other results."""
HALF_WEIGHTS = "half_weights"
"""Feature that stands for a user option: floats are stored in a 16-bit dtype that represents them exactly, whatever
the goal."""
HALF_MATH = "half_math"
"""Feature that stands for a user option: products of floats are summed in float16, on cores with
:data:`HALF_FLOATS`."""
HALF_FLOATS = "half_floats"
"""Feature of cores with float16 vectors."""
THREADS = "threads"
"""Feature that stands for a user option: large loops are split among several threads, so that their trip counts
should have divisors."""
ALGORITHMS = {
    "winograd": CoreRequirement(frozenset({"pairs"}), frozenset({"lanes"})),
    "winograd_opened": CoreRequirement(frozenset({"pairs"}), frozenset({"lanes"})),
    "winograd_floats": CoreRequirement(frozenset({"fma", FAST_MATH}), frozenset({"lanes", HALF_WEIGHTS})),
    "winograd_four": CoreRequirement(frozenset({"fma", "vectors", FAST_MATH}), frozenset({"lanes", HALF_WEIGHTS})),
    "half": CoreRequirement(frozenset({HALF_FLOATS, HALF_MATH}), dominates=frozenset({"direct", "opened"})),
    "even": CoreRequirement(frozenset({"pairs"}), frozenset({"lanes"})),
    "pairs": CoreRequirement(frozenset({"one_product"})),
    "quads": CoreRequirement(frozenset({"one_product"}), frozenset({"unsigned_bytes"})),
    "widened": CoreRequirement(frozenset({"one_product", "unsigned_bytes"})),
    "single": CoreRequirement(frozenset(), frozenset({"vectors"})),
    "packed": CoreRequirement(frozenset(), frozenset({"pairs"})),
    "packed_halves": CoreRequirement(frozenset({"pairs"}), frozenset({"lanes"})),
    "packed_vectors": CoreRequirement(frozenset({"lanes"})),
    "unsigned": CoreRequirement(frozenset({"unsigned_bytes"})),
    "unsigned_rows": CoreRequirement(frozenset({"dot4_u8_i32x4"}), dominates=frozenset({"direct"})),
    "windows": CoreRequirement(frozenset({"vectors"}), dominates=frozenset({"direct"})),
    "unsigned_windows": CoreRequirement(
        frozenset({"dot4_u8_i32x4"}), dominates=frozenset({"direct", "windows", "unsigned_rows"})
    ),
}
"""Required cores by value of the attribute ``algorithm``. All other algorithms suit every core."""
NARROW = ("int8", "uint8", "int16", "uint16")
"""Dtypes of data that are widened when they are multiplied by int8."""


def is_algorithm_worthwhile(algorithm: str, target: Target) -> bool:
    """Test whether an algorithm is worth comparing on a core."""
    needs, lacks, _ = ALGORITHMS.get(algorithm, CoreRequirement(frozenset()))
    return needs <= target.features and not lacks & target.features


def undominated_algorithms(algorithms: Sequence[str]) -> tuple[str, ...]:
    """Return the algorithms that no other of these algorithms dominates."""
    dominated = {
        name for algorithm in algorithms if algorithm in ALGORITHMS for name in ALGORITHMS[algorithm].dominates
    }
    return tuple(name for name in algorithms if name not in dominated)


def multiplies_high_halves(target: Target) -> bool:
    """Test whether a core computes high halves of products in few instructions, one number at a time.

    Vectors multiply pairs of lanes for that (x86, AArch64): ``requantize_floor`` took 1 to 13 % more instructions there
    (estimated for 4 networks). MVE: see :func:`narrows_with_rounding`. Cores with ``high_mul`` multiply parts of the operands.
    Tensor units load the bias of a layer at no cost, which ``requantize_floor`` takes away."""
    has_unit = target.core.tensor_unit is not None
    return not has_unit and not any(target.has(feature) for feature in ("lanes", "vectors", "high_mul"))


def multiplies_by_parts(target: Target) -> bool:
    """Test whether a core multiplies 32 by 32 bits to 32, and computes high halves of products from products of parts
    (Armv6-M)."""
    return target.has("high_mul")


def narrows_with_rounding(target: Target) -> bool:
    """Test whether vectors of a core shift to the right with rounding, saturate and narrow in one instruction (MVE)."""
    return target.has("store_saturated_i8_rshr_8_i32x4")


def product_multiples(target: Target) -> Multiples:
    """Return the multiples to which the numbers of columns and terms of matrix products are rounded up for a core.

    Vectors of any length (RVV) permit any number of columns; vectors with masked lanes (MVE) permit any number of
    terms."""
    lanes, pairs, vectors = (target.has(feature) for feature in ("lanes", "pairs", "vectors"))
    widened = {(a, "int8") for a in NARROW if pairs or vectors or find_four_product_intrinsic(a, "int8", target.cpu)}
    words = {("int16", "int16")} if pairs and not lanes else set()
    columns = target.core.lanes if vectors and not target.has("scalable") else ()
    short_depths = JOINED_DEPTHS if narrows_with_rounding(target) else ()
    return Multiples(frozenset(widened | words), lanes, columns, short_depths)
