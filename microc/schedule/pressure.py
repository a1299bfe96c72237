"""What straight-line code keeps in registers, and what it must keep on the stack.

The body of a loop is a sequence of uses and definitions of values. It is played through with as many registers as the core has;
where one is needed, the value that is used again last gives up its own (Belady's rule, which compilers come close to).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Name = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """``names`` are used (or, for ``defines``, written) at once; a loop inside needs ``inner`` registers for itself."""

    names: tuple[Name, ...]
    defines: bool = False
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
    def __init__(self, events: Sequence[Event], lasting: frozenset[Name], registers: int) -> None:
        self.events = events
        self.lasting = lasting
        self.room = max(registers, 1)
        self.loads = self.stores = self.peak = 0
        self.held: dict[Name, bool] = {}
        self.saved: set[Name] = set()
        self.uses: dict[Name, list[int]] = {}
        for time, event in enumerate(events):
            for name in event.names:
                self.uses.setdefault(name, []).append(time)

    def play(self) -> Spills:
        for turn in range(2):
            self.loads = self.stores = self.peak = 0
            for time, event in enumerate(self.events):
                self.step(time, event, turn)
            if not self.lasting:
                break
        return Spills(self.loads, self.stores, self.peak)

    def step(self, time: int, event: Event, turn: int) -> None:
        for name in event.names:
            if name not in self.held:
                if not event.defines and (name in self.saved or turn or name not in self.lasting):
                    self.loads += int(name in self.saved)
                self.make_room(time, 1, event.names)
            self.held[name] = self.held.get(name, False) or event.defines
            if event.defines:
                self.held[name] = True
                self.saved.discard(name)
        if event.inner:
            self.make_room(time, event.inner, event.names)
        self.peak = max(self.peak, len(self.held) + event.inner)
        for name in event.names:
            if self.next_use(name, time) is None:
                self.held.pop(name, None)

    def next_use(self, name: Name, time: int) -> int | None:
        """When a value is needed again; None when it is dead."""
        uses = self.uses[name]
        for use in uses:
            if use > time:
                return None if name not in self.lasting and self.events[use].defines else use
        return uses[0] + len(self.events) if name in self.lasting else None

    def make_room(self, time: int, need: int, busy: tuple[Name, ...]) -> None:
        while len(self.held) + need > self.room:
            free = [n for n in self.held if n not in busy]
            if not free:
                return
            victim = max(free, key=lambda n: self.next_use(n, time) or 1 << 30)
            dirty = self.held.pop(victim)
            if dirty and self.next_use(victim, time) is not None:
                self.stores += int(victim not in self.saved)
            self.saved.add(victim)
