"""Who lies where in the arena and from which step to which, and what every step takes: the facts behind maps of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from microc.module import Call, Module, Value

BEFORE = -1
"""The step at which inputs are written and state is already there; the step after the last one reads the outputs."""


def described(value: Value) -> dict[str, Any]:
    """What a manifest says of a value wherever it names one."""
    return {
        "name": value.name,
        "label": value.label,
        "kind": value.storage,
        "dtype": value.dtype,
        "shape": list(value.shape),
        "bytes": value.nbytes,
    }


class Memory:
    """The tensors of a planned module and their places. ``names``: the board's tensor table (inputs, outputs, state, then every
    intermediate that has memory of its own)."""

    def __init__(self, module: Module) -> None:
        self.module = module
        views = {view.name: view for view in module.views}
        self._spans: dict[str, tuple[str, int, int]] = {}
        for name, value in module.values.items():
            base, start = name, 0
            while base in views:
                base, start = views[base].base, start + views[base].offset
            self._spans[name] = base, start, start + value.nbytes
        self._writes: dict[str, list[tuple[int, str]]] = defaultdict(list)  # by base: steps, and the names they use
        self._reads: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for step, call in enumerate(module.calls):
            for name in call.writes:
                self._writes[self._spans[name][0]].append((step, name))
            for name in call.reads:
                self._reads[self._spans[name][0]].append((step, name))
        for name in module.outputs:
            self._reads[self._spans[name][0]].append((len(module.calls), name))
        written = {name for call in module.calls for name in call.writes}
        made = (n for n, value in module.values.items() if value.storage == "intermediate" and n in written)
        self.names = tuple(dict.fromkeys((*module.inputs, *module.outputs, *module.state, *made)))

    def arena(self) -> list[dict[str, Any]]:
        """Every value in the arena, plain data: ``offset`` and ``bytes``, alive from step ``first`` to step ``last``, both of
        them included.

        A value whose memory others read through views of it lives as long as they do. Workspaces live for one step.
        """
        lives = [(name, *self._lifetime(name)) for name in self.names]
        lives += [(name, *self._copied(name, step)) for name, step in self._copies().items()]
        lives += [(name, k, k) for k, call in enumerate(self.module.calls) for name in call.workspace]
        entries = ((name, self._offset(name), first, last) for name, first, last in lives)
        return [self._entry(name, at, first, last) for name, at, first, last in entries if at is not None]

    def operands(self, step: int) -> list[str]:
        """The tensors whose memory a step reads, by their names in the table; none that is written later only."""
        call = self.module.calls[step]
        bases = {self._spans[name][0] for name in call.reads}
        near = [name for name in self.names if self._spans[name][0] in bases]
        ready = {*self.module.inputs, *self.module.state}
        return [
            name
            for name in near
            if any(self._meet(name, other) for other in call.reads)
            and (name in ready or any(k < step for k in self._steps(self._writes, name)))
        ]

    def writers(self, name: str) -> list[int]:
        """The steps that write a tensor's memory, under any name."""
        return sorted(set(self._steps(self._writes, name)))

    def constants(self, call: Call) -> list[dict[str, Any]]:
        """Weights and tables that a step reads: their C names and bytes."""
        bases = dict.fromkeys(self._spans[name][0] for name in call.args)
        values = [self.module.values[base] for base in bases if self.module.values[base].storage == "const"]
        return [{"symbol": f"{self.module.name}_{value.name}", "bytes": value.nbytes} for value in values]

    def _entry(self, name: str, offset: int, first: int, last: int) -> dict[str, Any]:
        return {**described(self.module.values[name]), "offset": offset, "first": first, "last": last}

    def _offset(self, name: str) -> int | None:
        """Where a value starts in the arena; None when it lies elsewhere."""
        assert self.module.plan is not None
        base, start, _ = self._spans[name]
        found = self.module.plan.offsets.get(base)
        return None if found is None else found + start

    def _copies(self) -> Mapping[str, int]:
        assert self.module.plan is not None
        return self.module.plan.copies

    def _copied(self, name: str, step: int) -> tuple[int, int]:
        """From when to when a copy of a constant lies in the arena: in all runs, or to the step that reads it."""
        if step == BEFORE:
            return BEFORE, len(self.module.calls)
        return step, next(k for k, call in enumerate(self.module.calls) if name in call.args)

    def _lifetime(self, name: str) -> tuple[int, int]:
        if name in self.module.state:
            return BEFORE, len(self.module.calls)
        writes, reads = self._steps(self._writes, name), self._steps(self._reads, name)
        first = BEFORE if name in self.module.inputs else min(writes, default=BEFORE)
        return first, max((first, *writes, *reads))

    def _steps(self, uses: Mapping[str, Sequence[tuple[int, str]]], name: str) -> list[int]:
        """The steps that use a name's memory."""
        return [step for step, other in uses[self._spans[name][0]] if self._meet(name, other)]

    def _meet(self, one: str, other: str) -> bool:
        """Whether two names speak of the same memory, in part at least."""
        (a, start, stop), (b, begin, end) = self._spans[one], self._spans[other]
        return a == b and start < end and begin < stop
