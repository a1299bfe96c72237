"""What a rule is, and what holds for all: algorithms, lanes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import Any, NamedTuple

from microc.base.immutable import frozen
from microc.errors import MicrocError
from microc.isa import word_product
from microc.ops.registry import Multiples
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import FLOATS, LANES, SCALABLE
from microc.tir.rewrite import walk_all_exprs, walk_stmt

# ---- What a rule is: data that says which functions it suits, what it leaves open, and how it builds a schedule of a
# choice.

Decisions = Mapping[str, Any]
"""A value for every name of :attr:`Rule.decisions`."""
Matches = Callable[[Schedule, Target], bool]
"""Whether a rule suits the function that a schedule holds, before any step."""
Domain = Callable[[Schedule, Target, Goal], Sequence[Any]]
"""The values of a decision that are worth comparing for a function, a core and a goal; at least one."""
MOSTLY: Mapping[str, bool] = MappingProxyType({"mostly": True})
"""Of a part of a decision: it has its default in most rules, so that points of a search name it elsewhere only."""


@frozen
class Rule:
    """A way to schedule a family of functions. Every rule that matches gives candidates, one for each choice of its decisions.

    - ``matches(start, target)``: whether it suits the function.
    - ``build(start, target, decisions)``: the schedule; None where the decision comes to nothing for the function.
    - ``decisions``: what it leaves to the cost model, by name. The name of one that is True is shown behind the rule's.
    - ``space``: wider domains of decisions, for a search that measures (:mod:`microc.tuning`); by name, those of ``decisions``
      where it has none.
    - ``lean``: by name of a decision, what makes of its domain one that takes little workspace and more time.
    - ``needs``: features that the core must have.
    - ``over``: rules that cannot win where this one matches, so that they need not be lowered; its file says why.
    """

    name: str
    matches: Matches
    build: Callable[[Schedule, Target, Decisions], Schedule | None]
    decisions: Mapping[str, Domain] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    over: tuple[str, ...] = ()
    space: Mapping[str, Domain] = field(default_factory=dict)
    lean: Mapping[str, Callable[[Domain], Domain]] = field(default_factory=dict)

    def suits(self, start: Schedule, target: Target) -> bool:
        """Whether it has schedules for the function on the core."""
        return self.needs <= target.features and self.matches(start, target)

    def lean_schedules(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Schedule]:
        """One for each choice of decisions that take little workspace, where steps make one of it."""
        small = {name: change(self.decisions[name]) for name, change in self.lean.items()}
        for decisions in _choices({**self.decisions, **small}, start, target, goal):
            with suppress(MicrocError):
                made = self.schedule(start, target, decisions)
                if made is not None:
                    yield made

    def schedules(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Schedule]:
        """One for each choice."""
        for decisions in self.choices(start, target, goal):
            made = self.schedule(start, target, decisions)
            if made is not None:
                yield made

    def schedule(self, start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
        """That of one choice, under the rule's name."""
        made = self.build(start, target, decisions)
        return made and made.named(
            ", ".join((self.name, *(name for name, value in decisions.items() if value is True)))
        )

    def choices(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Decisions]:
        """All that the cost model compares."""
        return _choices(self.decisions, start, target, goal)

    def points(self, start: Schedule, target: Target, goal: Goal) -> Iterator[Decisions]:
        """All choices that a search may make."""
        return _choices({**self.decisions, **self.space}, start, target, goal)


def _choices(domains: Mapping[str, Domain], start: Schedule, target: Target, goal: Goal) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*(domain(start, target, goal) for domain in domains.values())):
        yield dict(zip(domains, values, strict=True))


def matching(rules: Sequence[Rule], start: Schedule, target: Target) -> list[Rule]:
    """Those that suit a function, in their order, less those that others need not be compared with."""
    found = [rule for rule in rules if rule.suits(start, target)]
    beaten = {name for rule in found for name in rule.over}
    return [rule for rule in found if rule.name not in beaten]


def fixed(*values: Any) -> Domain:
    """The same values for every function."""
    return lambda start, target, goal: values


# ---- Loops in the lanes of vectors: how many, and the notes by which lowering makes them so.

WORDS = (4,)
"""Lanes of vectors that a core has for integers alone."""
NUMBERS = 2
"""Vectors of floats are multiplied by numbers."""


def lanes_of(extent: int, target: Target) -> int:
    """The most lanes that so many iterations fill without a rest; 0 where none do."""
    return next((n for n in target.core.lanes or WORDS if extent % n == 0), 0)


def float_lanes(target: Target) -> int:
    """Whether vectors may be of floats, and what the note says of that (``tir/names.py``)."""
    return max((target.has(f"add_f32x{n}") + target.has(f"fma_n_f32x{n}") for n in target.core.lanes), default=0)


def with_lanes(schedule: Schedule, target: Target) -> Schedule:
    """Give the innermost loops that are vectorised, and have no lanes, those of the target. Copies stay with words, and cores
    without vectors have none."""
    if not (target.core.lanes or target.has("lanes")):
        return schedule
    for loop in [s for s in walk_stmt(schedule.func.body) if isinstance(s, ir.For) and s.kind == "vectorized"]:
        inside = list(walk_stmt(loop.body))
        stores = [s for s in inside if isinstance(s, ir.Store)]
        copies = all(isinstance(s.value, (ir.Load, ir.Const)) for s in stores)
        noted = dict(loop.annotations).keys() & {LANES, SCALABLE}
        if not (noted or copies or any(isinstance(s, ir.For) for s in inside)):
            schedule = in_lanes_of(schedule, loop.var.name, target)
    return schedule


LONG = 32
"""Lanes of the vectors that elements are taken in strips of: of integers few are needed at once."""


def in_strips_of(schedule: Schedule, loop: str, target: Target) -> Schedule:
    """The loop in as many lanes as the machine's vectors hold; of functions of floats in half as many, for they need more."""
    floats = any(x.dtype == "float32" for x in walk_all_exprs(schedule.func.body))
    return strips(schedule, loop, target, LONG // 2 if floats else LONG)


def in_lanes_of(schedule: Schedule, loop: str, target: Target) -> Schedule:
    """The loop in as many lanes as leave no rest, else as many as it fills."""
    extent, known = loop_extent(schedule.func, loop), target.core.lanes or WORDS
    lanes = lanes_of(extent, target) or next((n for n in known if n <= extent), known[-1])
    return vectorize_lanes(schedule, loop, lanes, floats=float_lanes(target))


def vectorize_lanes(schedule: Schedule, loop: str, lanes: int = WORDS[0], floats: int = 0) -> Schedule:
    """So many iterations of ``loop`` at once, in the lanes of vectors, of ``floats`` where a core has such."""
    schedule = schedule.vectorize(loop).annotate(loop, LANES, lanes)
    return schedule.annotate(loop, FLOATS, floats) if floats else schedule


def strips(schedule: Schedule, loop: str, target: Target, lanes: int) -> Schedule:
    """As many iterations of ``loop`` at once as the machine's vectors hold, so many or a multiple."""
    return vectorize_lanes(schedule, loop, lanes, float_lanes(target)).annotate(loop, SCALABLE, 1)


# ---- Which cores an operator's ways to compute are for, and what products are filled up to on them. When a way is
# valid says its operator (``OpDef.algorithms``).


class Cores(NamedTuple):
    """Those that have all features of ``needs`` and none of ``lacks``, with which there is something better. ``over``: ways that
    cannot win there where this one is valid, so that they need not be lowered."""

    needs: frozenset[str]
    lacks: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()


FAST_MATH = "fast_math"
"""Not of the core, but of what the user asked for: infinities and NaN may spread."""
HALF_WEIGHTS = "half_weights"
"""The same: floats are stored in 16 bits that hold them, whatever the goal."""
HALF_MATH = "half_math"
"""The same: products of floats are summed in float16, on cores that have the feature :data:`HALF_FLOATS`."""
HALF_FLOATS = "half_floats"
THREADS = "threads"
"""Likewise: large loops are split among several threads, so that they should divide."""
ALGORITHMS = {
    "winograd": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "winograd_floats": Cores(frozenset({"fma", FAST_MATH}), frozenset({"lanes", HALF_WEIGHTS})),
    "winograd_four": Cores(frozenset({"fma", "vectors", FAST_MATH}), frozenset({"lanes", HALF_WEIGHTS})),
    "half": Cores(frozenset({HALF_FLOATS, HALF_MATH}), over=frozenset({"direct", "opened"})),
    "even": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "pairs": Cores(frozenset({"one_product"})),
    "quads": Cores(frozenset({"one_product"}), frozenset({"unsigned_bytes"})),
    "widened": Cores(frozenset({"one_product", "unsigned_bytes"})),
    "single": Cores(frozenset(), frozenset({"vectors"})),
    "packed": Cores(frozenset(), frozenset({"pairs"})),
    "packed_halves": Cores(frozenset({"pairs"}), frozenset({"lanes"})),
    "packed_vectors": Cores(frozenset({"lanes"})),
    "unsigned": Cores(frozenset({"unsigned_bytes"})),
    "unsigned_rows": Cores(frozenset({"dot4_u8_i32x4"}), over=frozenset({"direct"})),
    "windows": Cores(frozenset({"vectors"}), over=frozenset({"direct"})),
    "unsigned_windows": Cores(frozenset({"dot4_u8_i32x4"}), over=frozenset({"direct", "windows", "unsigned_rows"})),
}
"""By value of the attribute ``algorithm``; all others are for every core."""
NARROW = ("int8", "uint8", "int16", "uint16")
"""Data that words and vectors widen when they multiply it by bytes."""


def suits_core(algorithm: str, target: Target) -> bool:
    """Whether an algorithm is worth comparing on a core."""
    needs, lacks, _ = ALGORITHMS.get(algorithm, Cores(frozenset()))
    return needs <= target.features and not lacks & target.features


def unbeaten(algorithms: Sequence[str]) -> tuple[str, ...]:
    """Those of an application's algorithms that one is chosen from."""
    beaten = {name for each in algorithms if each in ALGORITHMS for name in ALGORITHMS[each].over}
    return tuple(name for name in algorithms if name not in beaten)


def multiples_of(target: Target) -> Multiples:
    """What products come in on a core. Vectors of any length take as many columns as there are, masked lanes as many terms."""
    lanes, pairs, vectors = (target.has(feature) for feature in ("lanes", "pairs", "vectors"))
    widened = {(a, "int8") for a in NARROW if pairs or vectors or word_product(a, "int8", target.cpu)}
    words = {("int16", "int16")} if pairs and not lanes else set()
    columns = target.core.lanes if vectors and not target.has("scalable") else ()
    return Multiples(frozenset(widened | words), lanes, columns)
