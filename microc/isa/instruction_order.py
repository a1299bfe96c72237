# SPDX-License-Identifier: Apache-2.0
"""List scheduling of the loop body of an assembly statement, for cores that issue in order.

:func:`order_operations` orders operations on named vectors and assigns their registers. The pipeline is data: the unit that
executes a type of operation, the cycles for which it is busy, and the cycles until its result can be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from microc.base.immutable import frozen

WINDOWS = (10, 4, 1)
"""Numbers of waiting operations, the oldest first, among which the next one is chosen. In a large window loads move far ahead of
their readers, and occupy registers that a later operation needs; 1 keeps the given order."""
_PLACEHOLDER = re.compile(r"<(\w+)>")


@frozen
class Timing:
    """Execution of a type of operation: its ``unit``, the cycles for which the unit is ``busy``, and the cycles from issue to
    issue of an operation that reads the result (``latency``)."""

    unit: str
    busy: int
    latency: int


@frozen
class Operation:
    """An instruction on named vectors.

    ``text``: assembly with the placeholder ``<name>`` for the register of a vector. ``type_``: key of its :class:`Timing`.
    ``writes``: names of the vectors that it writes; their previous contents are operands, except at the first write. Vectors that
    an operation is the first to name occupy neighbouring registers."""

    text: str
    type_: str
    writes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all vectors in the text, each once."""
        return tuple(dict.fromkeys(_PLACEHOLDER.findall(self.text)))


def order_operations(
    operations: Sequence[Operation], timings: Mapping[str, Timing], registers: Sequence[str]
) -> tuple[str, ...]:
    """Return the instructions of a loop body in the order that takes the fewest cycles in an iteration.

    Each window yields an order, unless its vectors do not fit ``registers``. Raise ValueError if they do not fit in the given
    order either."""
    dependences = _find_dependences(operations, timings)
    orders = [_schedule(operations, timings, registers, dependences, window) for window in WINDOWS]
    fitting = [order for order in orders if order is not None]
    if not fitting:
        raise ValueError(f"operations need more than {len(registers)} registers")
    return min(fitting, key=lambda order: order[0])[1]


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
                # A write waits until earlier readers have issued.
                distances = {**dict.fromkeys(readers.get(name, ()), 1), **distances}
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
    dependences: Sequence[Mapping[int, int]],
    window: int,
) -> tuple[int, tuple[str, ...]] | None:
    """Choose the operation that can issue first, of several the one with the longest path to the end.

    Return the cycles of an iteration in the steady state and the instructions; None if registers run out."""
    lengths = _longest_paths(operations, timings, dependences)
    uses = {name: sum(name in other.names for other in operations) for op in operations for name in op.names}
    assigned: dict[str, int] = {}
    free, waiting = set(range(len(registers))), list(range(len(operations)))
    issued: dict[int, int] = {}
    unit_free: dict[str, int] = {}
    lines: list[str] = []
    cycle = 0

    def issue_cycle(k: int) -> int:
        operands = (issued[earlier] + distance for earlier, distance in dependences[k].items())
        return max(cycle, unit_free.get(timings[operations[k].type_].unit, 0), *operands)

    while waiting:
        # Registers that the operation would be the first to use, by operation.
        choices = {
            k: new
            for k in waiting[:window]
            if dependences[k].keys() <= issued.keys()
            and (new := _assign_registers([n for n in operations[k].names if n not in assigned], free)) is not None
        }
        if not choices:
            return None
        k = min(choices, key=lambda k: (issue_cycle(k), -lengths[k], k))
        issued[k] = issue_cycle(k)
        operation, timing = operations[k], timings[operations[k].type_]
        unit_free[timing.unit], cycle = issued[k] + timing.busy, issued[k] + 1
        assigned |= choices[k]
        free -= set(choices[k].values())
        line = operation.text
        for name in operation.names:
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
    return period, tuple(lines)


def _assign_registers(new_names: Sequence[str], free: set[int]) -> dict[str, int] | None:
    """Assign neighbouring free registers to vectors; None if there are none."""
    if not new_names:
        return {}
    for first in sorted(free):
        chosen = range(first, first + len(new_names))
        if free.issuperset(chosen):
            return dict(zip(new_names, chosen, strict=True))
    return None
