# SPDX-License-Identifier: Apache-2.0
"""List scheduling of the instructions of an assembly statement, for cores that issue in order.

:func:`order_operations` orders operations on named registers and assigns these. The pipeline is data: the unit that executes a
type of operation, the cycles for which it is busy, the cycles until its result can be read, and its position in a pair of
operations that issue in one cycle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from microc.base.immutable import frozen

WINDOWS = (10, 4, 1)
"""Numbers of waiting operations, the oldest first, among which the next one is chosen. In a large window loads move far ahead of
their readers, and occupy registers that a later operation needs; 1 keeps the given order."""
OLDER, YOUNGER = "older", "younger"
"""Positions of an operation in a pair that issues in one cycle."""
_PLACEHOLDER = re.compile(r"<(\w+)>")


@frozen
class Timing:
    """Execution of a type of operation: its ``unit``, the cycles for which the unit is ``busy``, and the cycles from issue to
    issue of an operation that reads the result (``latency``).

    ``pairing``: the positions that it can take in a pair of operations that issue in one cycle; none if it issues alone."""

    unit: str
    busy: int
    latency: int
    pairing: frozenset[str] = frozenset()


@frozen
class Pipeline:
    """The pipeline of a core that issues several instructions in a cycle, for the order of runs of products
    (:mod:`microc.isa.straight_line`).

    - ``issue_width``: most instructions that it issues in a cycle; runs are ordered for two.
    - ``timings``: by type of operation. ``types``: type of operation by mnemonic; other instructions end a run.
    - ``starts``: for each product that adds to a sum the one that adds to none.
    - ``loads``: intrinsics that are one load of a word, of type ``load_type``. ``load``: its instruction, a format of the
      result, a pointer and an offset, which is at most ``max_offset`` bytes.
    - ``registers``: number of general registers that a statement may occupy.
    - ``guard``: C preprocessor condition under which the statements compile."""

    timings: Mapping[str, Timing]
    types: Mapping[str, str]
    starts: Mapping[str, str]
    loads: frozenset[str]
    load_type: str
    load: str
    max_offset: int
    registers: int
    guard: str
    issue_width: int = 2


@frozen
class OrderedOperations:
    """Instructions in the order in which they take the fewest cycles. ``cycles``: of an iteration in the steady state."""

    lines: tuple[str, ...]
    cycles: int


@frozen
class Operation:
    """An instruction on named registers.

    ``text``: assembly with the placeholder ``<name>`` for a register. ``type_``: key of its :class:`Timing`. ``writes``: names of
    the registers that it writes; their previous contents are operands, except at the first write. Registers that an operation is
    the first to name are neighbours."""

    text: str
    type_: str
    writes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all registers in the text, each once."""
        return tuple(dict.fromkeys(_PLACEHOLDER.findall(self.text)))


def order_operations(
    operations: Sequence[Operation],
    timings: Mapping[str, Timing],
    registers: Sequence[str],
    operands: Mapping[str, str] = MappingProxyType({}),
) -> OrderedOperations:
    """Return the instructions in the order that takes the fewest cycles in an iteration.

    ``operands``: registers of the names that are operands of the statement; all others are assigned from ``registers``. Each
    window yields an order, unless its names do not fit ``registers``. Raise ValueError if they do not fit in the given order
    either."""
    dependences = _find_dependences(operations, timings)
    orders = [_schedule(operations, timings, registers, operands, dependences, window) for window in WINDOWS]
    fitting = [order for order in orders if order is not None]
    if not fitting:
        raise ValueError(f"operations need more than {len(registers)} registers")
    return min(fitting, key=lambda order: order.cycles)


def _find_dependences(operations: Sequence[Operation], timings: Mapping[str, Timing]) -> list[dict[int, int]]:
    """Return for each operation the earlier operations that must issue before it, with the least distance in cycles."""
    dependences: list[dict[int, int]] = []
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    for k, operation in enumerate(operations):
        distances: dict[int, int] = {}
        for name in operation.names:
            if name in writer:
                distances[writer[name]] = timings[operations[writer[name]].type_].latency
            if name in operation.writes:
                # A write waits until earlier readers have issued; operands of a pair are read before its results are written.
                wait = 0 if YOUNGER in timings[operation.type_].pairing else 1
                distances = {**dict.fromkeys(readers.get(name, ()), wait), **distances}
                writer[name], readers[name] = k, []
            else:
                readers.setdefault(name, []).append(k)
        dependences.append(distances)
    return dependences


def _longest_paths(
    operations: Sequence[Operation], timings: Mapping[str, Timing], dependences: Sequence[Mapping[int, int]]
) -> list[int]:
    """Return for each operation the cycles from its issue to the end of the iteration."""
    lengths = [timings[operation.type_].busy for operation in operations]
    for k in reversed(range(len(operations))):
        for earlier, distance in dependences[k].items():
            lengths[earlier] = max(lengths[earlier], lengths[k] + distance)
    return lengths


def _schedule(
    operations: Sequence[Operation],
    timings: Mapping[str, Timing],
    registers: Sequence[str],
    operands: Mapping[str, str],
    dependences: Sequence[Mapping[int, int]],
    window: int,
) -> OrderedOperations | None:
    """Choose the operation that can issue first, of several the one with the longest path to the end. None if registers run
    out."""
    lengths = _longest_paths(operations, timings, dependences)
    uses = Counter(name for operation in operations for name in operation.names)
    assigned: dict[str, int] = {}
    free, waiting = set(range(len(registers))), list(range(len(operations)))
    issued: dict[int, int] = {}
    unit_free: dict[str, int] = {}
    lines: list[str] = []
    cycle = 0
    older: frozenset[str] = frozenset()  # pairing of the operation that issued last, if the slot beside it is free

    def issue_cycle(k: int) -> int:
        timing = timings[operations[k].type_]
        ready = (issued[earlier] + distance for earlier, distance in dependences[k].items())
        first = cycle - 1 if OLDER in older and YOUNGER in timing.pairing else cycle
        return max(first, unit_free.get(timing.unit, 0), *ready)

    while waiting:
        # Registers that the operation would be the first to use, by operation.
        choices = {
            k: new
            for k in waiting[:window]
            if dependences[k].keys() <= issued.keys()
            and (new := _assign_registers(_new_names(operations[k], assigned, operands), free)) is not None
        }
        if not choices:
            return None
        k = min(choices, key=lambda k: (issue_cycle(k), -lengths[k], k))
        issued[k] = issue_cycle(k)
        operation, timing = operations[k], timings[operations[k].type_]
        older = timing.pairing if issued[k] >= cycle else frozenset()
        unit_free[timing.unit], cycle = issued[k] + timing.busy, issued[k] + 1
        assigned |= choices[k]
        free -= set(choices[k].values())
        line = operation.text
        for name in operation.names:
            if name in operands:
                line = line.replace(f"<{name}>", operands[name])
                continue
            line = line.replace(f"<{name}>", registers[assigned[name]])
            uses[name] -= 1
            if not uses[name]:
                free.add(assigned[name])
        lines.append(line)
        waiting.remove(k)
    # The next iteration begins when its first operations find their units free.
    first_issue: dict[str, int] = {}
    for k, at in issued.items():
        first_issue.setdefault(timings[operations[k].type_].unit, at)
    period = max(cycle, *(unit_free[unit] - at for unit, at in first_issue.items()))
    return OrderedOperations(tuple(lines), period)


def _new_names(operation: Operation, assigned: Mapping[str, int], operands: Mapping[str, str]) -> list[str]:
    """Return the names of an operation that have no register yet."""
    return [name for name in operation.names if name not in assigned and name not in operands]


def _assign_registers(new_names: Sequence[str], free: set[int]) -> dict[str, int] | None:
    """Assign neighbouring free registers to names; None if there are none."""
    if not new_names:
        return {}
    for first in sorted(free):
        chosen = range(first, first + len(new_names))
        if free.issuperset(chosen):
            return dict(zip(new_names, chosen, strict=True))
    return None
