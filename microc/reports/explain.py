"""Why a layer costs what it costs: :func:`explain`, for a terminal and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.base.terminal import visible
from microc.codegen.render import Label
from microc.compiler import validation
from microc.compiler.fit.footprint import room_of
from microc.compiler.interaction import Progress, speaks_python
from microc.compiler.lowering.derivation import Candidate, Kernel, Part, candidates_text, derive_kernel, goal_text
from microc.compiler.model import knows_its_plugins, knows_plugins, source_of
from microc.compiler.options import make_options
from microc.compiler.pipeline import compiled
from microc.device.boards import load_board
from microc.errors import UsageError, nearest
from microc.graph.ir import short
from microc.module import Call, Module
from microc.reports.layers import memories_data, unit_table, unit_words
from microc.reports.text_tables import count as count
from microc.reports.text_tables import facts, memory_rows, table
from microc.schedule.cost.cost_model import Cost
from microc.target import Board, Goal, Target, target_for
from microc.tir.text import to_text

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions
    from microc.plugin import Plugin


_WORDS = 24
"""Letters that a last column of words has at least."""
_BELOW = 4
"""Letters before words that stand below their row."""
_NEAR = 5
"""Names that are listed for one that does not exist."""


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """A compiled network: its steps, what it was compiled for, and one of its kernels in depth (None: no layer was named).

    ``plugins`` are those that it was compiled with."""

    module: Module
    target: Target
    goal: Goal
    kernel: Kernel | None
    plugins: tuple[Plugin, ...] = ()

    def __str__(self) -> str:
        return visible(self.text())

    def __repr__(self) -> str:
        what = (
            f"step {self.kernel.number}, {self.kernel.call.kernel}"
            if self.kernel
            else f"{len(self.module.calls)} steps"
        )
        return f"<Explanation of {short(self.module.name)} on {self.target.cpu}: {what}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"

    @knows_its_plugins
    def text(self, *, full: bool = False, width: int = 0) -> str:
        """For people; ``full``: with the function after every step and pass of lowering, and the steps of all candidates.
        ``width``: letters of a line of tables, code is as long as it is; 0: any."""
        if self.kernel is None:
            rows = memory_rows(memories_data(self.module))
            memories = f"\n\nmemories\n{facts(rows, width)}" if rows else ""
            return _layers_text(self.module, width) + memories
        return "\n\n".join(_kernel_text(self.kernel, self.target, full=full, width=width))

    @knows_its_plugins
    def to_data(self, *, full: bool = False) -> dict[str, Any]:
        """Plain data; ``full`` as in :meth:`text`."""
        price = None if isinf(self.goal.price) else self.goal.price
        data = {"model": self.module.name, "cpu": self.target.cpu, "goal": {"name": self.goal.name, "price": price}}
        if self.kernel is None:
            memories = memories_data(self.module)
            return {
                **data,
                "memories": memories,
                "layers": [_call_data(k, call) for k, call in enumerate(self.module.calls)],
            }
        return {**data, "kernel": _kernel_data(self.kernel, full=full)}


@speaks_python
@knows_plugins
def explain(
    model: Any,
    layer: str | int = "",
    *,
    target: str = "host",
    board: str | Path | Board | None = None,
    progress: Progress | None = None,
    **options: Unpack[CompileOptions],
) -> Explanation:
    """Compile a model as :func:`microc.compile` does, and tell how the kernel of ``layer`` came to be: candidates with their
    costs and why they lost, the steps of the schedule, what the cost model counts, the C. ``layer``: a name, or a part of one, or
    the number of a step; without it, the steps are listed. ``target``, or ``board``, whose core it is;
    ``progress`` and ``options`` as there. UsageError where no layer, or several, are meant.
    """
    validation.call("progress", progress)
    chosen = make_options(**options)
    wanted = validation.text("a layer", str(layer) if isinstance(layer, int) and not isinstance(layer, bool) else layer)
    if board is None:
        core, room = target_for(validation.text("a target", target)), None
    else:
        found = board if isinstance(board, Board) else load_board(validation.path("a board", board))
        core, room = found.target, room_of(found, external=bool(chosen.external))
    made = compiled(source_of(model, chosen), core, chosen, progress, room)
    kernel = derive_kernel(made, find_layer(made.module, wanted)) if wanted else None
    return Explanation(made.module, core, made.make.goal, kernel, chosen.plugins)


def find_layer(module: Module, wanted: str) -> int:
    """The step that a number, a name, or a part of a name means; UsageError, with names like it, unless that is one."""
    names = [_names(module, call) for call in module.calls]
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    word = wanted.casefold()
    whole = [k for k, known in enumerate(names) if word in known]
    part = [k for k, known in enumerate(names) if any(word in name for name in known) and not word.isdecimal()]
    found = whole[:1] or part
    if len(found) == 1:
        return found[0]
    where = module.source or module.name
    if found:
        listed = ", ".join(f"{k} ({module.calls[k].kernel})" for k in found[:_NEAR])
        raise UsageError(f"{len(found)} layers are called like {wanted!r}: {listed}", where=where, hint="give a number")
    spelled = {name: None for known in names for name in known}
    hint = nearest(word, spelled) or f"without a layer, all {len(names)} are listed"
    raise UsageError(f"there is no layer {wanted!r}", where=where, hint=hint)


def _names(module: Module, call: Call) -> list[str]:
    """What a step is called: by its location, its function, the values that it makes."""
    location = call.layer.split(" ", 2)
    made = [name for value in call.writes for name in (value, module.values[value].label)]
    return [name.casefold() for name in dict.fromkeys([call.layer, location[-1], call.kernel, *made]) if name]


# ---------------------------------------------------------------- text


def _layers_text(module: Module, width: int) -> str:
    rows = [
        (str(k), call.kernel, call.op, call.rule, count(call.instructions), count(call.cycles), Label(call.layer))
        for k, call in enumerate(module.calls)
    ]
    head = ("step", "kernel", "operators", "rule", "instructions", "cycles")
    numbers = table(head, [row[:-1] for row in rows], 4, width)
    listed = _beside(numbers, ("layer", *(row[-1] for row in rows)), width)
    unit = unit_table({k: call.unit for k, call in enumerate(module.calls)}, width)
    return f"{listed}\n\n{unit}" if unit else listed


def _beside(columns: str, last: Sequence[str], width: int) -> str:
    """A table with a last column of words. Where lines are bounded they are wrapped in it, or, where it would be narrow, below
    their row."""
    if "\n\n" in columns:  # tables below each other
        first = columns.partition("\n\n")[0].splitlines()[2:]
        named = [(row.split(" ", 1)[0], words) for row, words in zip(first, last[1:], strict=False)]
        return f"{columns}\n\n{last[0]}\n{facts(named, width)}"
    head, line, *rows = columns.splitlines()
    indent = max(map(len, (head, line, *rows))) + 2
    below = 0 < width < indent + _WORDS
    lines = []
    for row, words in zip((head, line, *rows), (last[0], "-" * len(last[0]), *last[1:]), strict=True):
        parts = textwrap.wrap(words, max(_WORDS, width - (_BELOW if below else indent))) if width else [words]
        if below:
            lines += [row.rstrip(), *(" " * _BELOW + part for part in parts if row != line)]
        else:
            lines += [
                f"{each.ljust(indent)}{part}" for each, part in zip((row, *[""] * len(parts)), parts, strict=False)
            ]
    return "\n".join(lines)


def _kernel_text(kernel: Kernel, target: Target, *, full: bool, width: int) -> Iterator[str]:
    call = kernel.call
    rows = [
        ("step", f"{kernel.number}, {Label(call.layer)}"),
        ("function", call.kernel),
        ("operators", call.op),
        ("core", target.cpu),
        *((("tensor unit", unit_words(call.unit)),) if call.unit else ()),
        *(("note", note) for note in kernel.notes),
    ]
    yield facts(rows, width)
    for number, part in enumerate(kernel.parts):
        yield from _part_text(part, f"part {number}, " if len(kernel.parts) > 1 else "", full=full, width=width)
    yield f"cost of a call, estimated\n{_cost_text(kernel.cost, target)}"
    if full:
        yield f"the function of the module\n{to_text(kernel.func)}".rstrip()
    yield f"C\n{kernel.c}"


def _part_text(part: Part, head: str, *, full: bool, width: int) -> Iterator[str]:
    if full:
        yield f"{head}graph\n{part.nodes}".rstrip()
    for group in part.algorithms:
        if full or group is part.start:
            yield f"{head}tensor expressions, {group.algorithm}\n{group.text}".rstrip()
        if full:
            yield f"{head}before scheduling, {group.algorithm}\n{to_text(group.func)}".rstrip()
    yield f"{head}candidates, {goal_text(part.goal, part.uses)}\n{_candidates_table(part.candidates, width)}"
    if full:
        yield f"{head}steps of all candidates, {candidates_text(part)}".rstrip()
        for step, func in part.steps:
            yield f"{head}after step {step}\n{to_text(func)}".rstrip()
        for name, func in part.stages:
            yield f"{head}after lowering pass {name}\n{to_text(func)}".rstrip()
    else:
        yield f"{head}steps of {part.schedule.rule}\n" + _indented(map(str, part.schedule.trace))
    if part.schedule.refused:
        yield f"{head}steps that were refused\n" + _indented(part.schedule.refused)


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines) or "  none"


def _candidates_table(candidates: Sequence[Candidate], width: int) -> str:
    rows = [
        (
            c.schedule.rule,
            c.algorithm,
            *(f"{n:,.0f}" for n in (c.cost.instructions, c.cost.cycles, c.cost.code_bytes, c.constants, c.weight)),
        )
        for c in candidates
    ]
    head = ("rule", "algorithm", "instructions", "cycles", "code", "constants", "weighs")
    numbers = table(head, rows, 2, width)
    return _beside(numbers, ("verdict", *(c.verdict for c in candidates)), width)


def _cost_text(cost: Cost, target: Target) -> str:
    """The cost model's count by kind of operation (``isa/instruction_set.py``), the most expensive first."""
    core = target.core.costs
    cycles = {kind: n * core.duration(kind) * core.issue for kind, n in cost.operations.items() if n}
    if "constant_byte" in cycles:
        cycles["constant_byte"] = cost.operations["constant_byte"] * target.flash_wait
    rows = [
        (kind, f"{n:,.0f}", f"{n * core.length(kind):,.0f}", f"{cycles[kind]:,.0f}")
        for kind, n in ((kind, cost.operations[kind]) for kind in sorted(cycles, key=lambda k: (-cycles[k], k)))
    ]
    rows.append(("total", "", f"{cost.instructions:,.0f}", f"{cost.cycles:,.0f}"))
    beside = f"{cost.code_bytes:,} bytes of code; {cost.spilled:,.0f} accesses to values that registers do not hold"
    return f"{table(('operation', 'count', 'instructions', 'cycles'), rows)}\n{beside}"


# ---------------------------------------------------------------- data


def _call_data(number: int, call: Call) -> dict[str, Any]:
    return {
        "step": number,
        "function": call.kernel,
        "layer": call.layer,
        "op": call.op,
        "rule": call.rule,
        "estimated_instructions": call.instructions,
        "estimated_cycles": call.cycles,
        "tensor_unit": asdict(call.unit) if call.unit else None,
    }


def _kernel_data(kernel: Kernel, *, full: bool) -> dict[str, Any]:
    return {
        **_call_data(kernel.number, kernel.call),
        "notes": list(kernel.notes),
        "operations": dict(kernel.cost.operations),
        "code_bytes": kernel.cost.code_bytes,
        "spilled": kernel.cost.spilled,
        "parts": [_part_data(part, full=full) for part in kernel.parts],
        "tir": to_text(kernel.func),
        "c": kernel.c,
    }


def _part_data(part: Part, *, full: bool) -> dict[str, Any]:
    shown = [group for group in part.algorithms if full or group is part.start]
    data: dict[str, Any] = {
        "op": part.op,
        "graph": part.nodes,
        "price": None if isinf(part.goal.price) else part.goal.price,
        "alike": part.uses,
        "algorithms": [{"name": g.algorithm, "te": g.text, "tir": to_text(g.func)} for g in shown],
        "candidates": [_candidate_data(candidate) for candidate in part.candidates],
        "trace": [str(step) for step in part.schedule.trace],
    }
    if full:
        data["steps"] = [{"step": str(step), "tir": to_text(func)} for step, func in part.steps]
        data["lowering"] = [{"pass": name, "tir": to_text(func)} for name, func in part.stages]
    return data


def _candidate_data(candidate: Candidate) -> dict[str, Any]:
    return {
        "rule": candidate.schedule.rule,
        "algorithm": candidate.algorithm,
        "verdict": candidate.verdict,
        "instructions": round(candidate.cost.instructions),
        "cycles": round(candidate.cost.cycles),
        "code_bytes": candidate.cost.code_bytes,
        "constant_bytes": candidate.constants,
        "weight": candidate.weight,
        "refused": list(candidate.schedule.refused),
        "trace": [str(step) for step in candidate.schedule.trace],
    }
