"""What straight-line code keeps in registers, and what it must keep on the stack.

The body of a loop is a sequence of uses and definitions of values. It is played through with as many registers as the core has;
where one is needed, the value that is used again last gives up its own (Belady's rule, which compilers come close to).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Name = tuple[object, ...]
KINDS = ("general", "float", "vector")
"""Kinds of registers."""
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Event:
    """``names`` are used (or, for ``defines``, written) at once; a loop in between needs ``inner`` registers for itself. ``kind``
    says which registers: of :data:`KINDS`."""

    names: tuple[Name, ...]
    defines: bool = False
    kind: str = "general"
    inner: int = 0


@dataclass(frozen=True, slots=True)
class Spills:
    """Accesses to the stack in one iteration, and the registers in use at the fullest moment."""

    loads: int
    stores: int
    peak: int


def play(events: Sequence[Event], lasting: Iterable[Name], registers: int) -> Spills:
    """One iteration in the steady state. ``lasting`` values live from one iteration to the next."""
    return _Player(events, frozenset(lasting), registers).play()


class _Player:
    """``held``: values in registers, True where the stack has no copy; ``saved``: values that the stack has."""

    def __init__(self, events: Sequence[Event], lasting: frozenset[Name], registers: int) -> None:
        self.events = events
        self.lasting = lasting
        self.registers = max(registers, 1)
        self.loads = self.stores = self.peak = 0
        self.held: dict[Name, bool] = {}
        self.saved: set[Name] = set()
        self.uses: dict[Name, list[int]] = {}
        for time, event in enumerate(events):
            for name in event.names:
                self.uses.setdefault(name, []).append(time)

    def play(self) -> Spills:
        for _ in range(2 if self.lasting else 1):
            self.loads = self.stores = self.peak = 0
            for time, event in enumerate(self.events):
                self.step(time, event)
        return Spills(self.loads, self.stores, self.peak)

    def step(self, time: int, event: Event) -> None:
        for name in event.names:
            if name not in self.held:
                self.loads += int(not event.defines and name in self.saved)
                self.make_room(time, 1, event.names)
            self.held[name] = event.defines or self.held.get(name, False)
            if event.defines:
                self.saved.discard(name)
        if event.inner:
            self.make_room(time, event.inner, event.names)
        self.peak = max(self.peak, len(self.held) + event.inner)
        for name in event.names:
            if self.next_use(name, time) == _NEVER:
                self.held.pop(name, None)

    def next_use(self, name: Name, time: int) -> int:
        """When a value is needed again."""
        uses = self.uses[name]
        place = bisect_right(uses, time)
        if place < len(uses):
            again = uses[place]
            return _NEVER if name not in self.lasting and self.events[again].defines else again
        return uses[0] + len(self.events) if name in self.lasting else _NEVER

    def make_room(self, time: int, need: int, busy: tuple[Name, ...]) -> None:
        """Move values to the stack until ``need`` registers are free, but for those that are busy."""
        while len(self.held) + need > self.registers:
            free = [n for n in self.held if n not in busy]
            if not free:
                return
            victim = max(free, key=lambda n: self.next_use(n, time))
            changed = self.held.pop(victim)
            if self.next_use(victim, time) != _NEVER:
                self.stores += int(changed and victim not in self.saved)
                self.saved.add(victim)
