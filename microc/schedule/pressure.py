"""What straight-line code keeps in registers, and what it must keep on the stack.

A value lives from where it is defined to its last use. Where more of them live at once than a core has registers, compilers keep
whole values on the stack, not parts of their lives: those first that are used least for the time that they would take a register
(the priority of gcc's and LLVM's allocators). Such a value is loaded before each use, unless a register is free since the use
before it, and stored where it is defined, but for one whose uses all found it in a register. A constant that has none is made
anew at each use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from microc.frozen import frozen

Name = tuple[object, ...]
KINDS = ("general", "float", "vector")
"""Kinds of registers."""
ADDRESS = "&"
"""First part of the names of addresses, which no source names. Their uses count twice: an access waits for them."""
CONSTANT = "#"
"""First part of the names of numbers, and of addresses that are such, which nothing defines."""


@frozen
class Event:
    """``names`` are used (or, for ``defines``, written) at once; a loop in between needs ``inner`` registers for itself. ``kind``
    says which registers: of :data:`KINDS`. ``share``: how many iterations, of one, come by."""

    names: tuple[Name, ...]
    defines: bool = False
    kind: str = "general"
    inner: int = 0
    share: float = 1.0


@frozen
class Spills:
    """Accesses to the stack in one iteration, the registers in use at the fullest moment, and ``constants`` made anew."""

    loads: float
    stores: float
    peak: int
    constants: float = 0.0


@dataclass(slots=True)
class _Life:
    """One value: when it is used and defined, and the times, from one to before another, in which it lives."""

    name: Name
    uses: list[int] = field(default_factory=list)
    defined: list[int] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    @property
    def touched(self) -> list[int]:
        return sorted({*self.uses, *self.defined})

    @property
    def weight(self) -> int:
        """What keeping it on the stack is feared to cost."""
        return (len(self.uses) + len(self.defined)) * (1 + (self.name[0] == ADDRESS))


def play(events: Sequence[Event], lasting: Iterable[Name], registers: int) -> Spills:
    """One iteration in the steady state. ``lasting`` values live from one iteration to the next."""
    registers = max(registers, 1)
    lives = _lives(events, frozenset(lasting))
    demand = _demand(events, lives)
    peak = max(demand, default=0)
    if peak <= registers:
        return Spills(0, 0, peak)
    loads = stores = constants = 0.0
    for life in reversed(_spilled(lives, demand, registers)):
        if life.name[0] == CONSTANT:
            constants += _times(life.uses, events)
        else:
            kept = _kept(life, demand, registers)
            again = [time for time in life.uses if time not in kept]
            loads += _times(again, events)
            stores += _times(life.defined, events) if again else 0
    return Spills(loads, stores, registers, constants)


def _times(places: Iterable[int], events: Sequence[Event]) -> float:
    """How often an iteration comes by there."""
    return sum(events[place].share for place in places)


def _lives(events: Sequence[Event], lasting: frozenset[Name]) -> list[_Life]:
    """A definition begins a life; the last one of a value that lasts goes on as its first one of the next iteration."""
    first: dict[Name, _Life] = {}
    latest: dict[Name, _Life] = {}
    lives = []
    for time, event in enumerate(events):
        for name in event.names:
            life = latest.get(name)
            if life is None or event.defines:
                life = latest[name] = _Life(name)
                first.setdefault(name, life)
                lives.append(life)
            (life.defined if event.defines else life.uses).append(time)
    end = len(events)
    for life in lives:
        touched = life.touched
        life.times = [(touched[0], touched[-1] + 1)]
    for name in lasting.intersection(first):
        begin, last = first[name], latest[name]
        start = last.times[0][0]
        if begin.defined:
            last.times = [(start, end)]
        elif begin is last:
            last.times = [(0, end)]
        else:
            last.times = [(0, begin.times[0][1]), (start, end)]
            last.uses = begin.uses + last.uses
            begin.times = []
    return [life for life in lives if life.times]


def _demand(events: Sequence[Event], lives: Iterable[_Life]) -> list[int]:
    """Registers that are wanted, by time."""
    change = [0] * (len(events) + 1)
    for life in lives:
        for begin, end in life.times:
            change[begin] += 1
            change[end] -= 1
    return [n + event.inner for n, event in zip(accumulate(change), events, strict=False)]


def _spilled(lives: Iterable[_Life], demand: list[int], registers: int) -> list[_Life]:
    """Values that are kept on the stack, until the others fit; ``demand`` becomes theirs."""
    before = [0, *accumulate(int(n > registers) for n in demand)]
    order = []
    for place, life in enumerate(lives):
        full = sum(before[end] - before[begin] for begin, end in life.times)
        if full:
            order.append((life.weight / (full + 1), place, life))
    spilled = []
    for _, _, life in sorted(order, key=lambda entry: entry[:2]):
        busy = frozenset(life.touched)
        idle = [t for begin, end in life.times for t in range(begin, end) if t not in busy]
        if any(demand[t] > registers for t in idle):
            for t in idle:
                demand[t] -= 1
            spilled.append(life)
    return spilled


def _kept(life: _Life, demand: list[int], registers: int) -> set[int]:
    """Uses that find a spilled value in a register still; it takes that one."""
    kept = set()
    for begin, end in pairwise(life.touched):
        between = range(begin + 1, end)
        if end not in life.defined and all(demand[t] < registers for t in between):
            kept.add(end)
            for t in between:
                demand[t] += 1
    return kept
