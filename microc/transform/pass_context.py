"""Passes, their context, instruments."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from microc.base.immutable import frozen
from microc.errors import InternalError, OutputError, ProgramError, UsageError, suggestion
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph, Node
from microc.graph.text import to_text
from microc.graph.verify import verify
from microc.ops import registry

# ---- Instruments for :class:`microc.transform.pass_context.PassContext`: how long passes take, and what they make.


class TimingInstrument:
    """``seconds`` by pass, in the order in which they first ran; several runs of a pass add up. Verification counts in."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = 0.0

    def before(self, name: str, graph: Graph) -> None:
        self._start = time.perf_counter()

    def after(self, name: str, graph: Graph) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._start


class DumpInstrument:
    """Writes the graph into ``folder``: ``00-read`` before the first pass, then ``01-<pass>`` ... after each.

    Every dump is a ``.txt`` to read and a ``.mcg`` to load (:mod:`microc.graph.file`). Raises OutputError where it cannot write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def before(self, name: str, graph: Graph) -> None:
        if self._count == 0:
            self._dump("read", graph)

    def after(self, name: str, graph: Graph) -> None:
        self._dump(name, graph)

    def _dump(self, name: str, graph: Graph) -> None:
        write_graph(self.folder, f"{self._count:02}-{name}", graph)
        self._count += 1


def write_graph(folder: Path, stem: str, graph: Graph) -> None:
    """A graph as a text to read and a file to load. OutputError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in ((f"{stem}.txt", to_text(graph).encode("ascii")), (f"{stem}{SUFFIX}", to_bytes(graph))):
            with tempfile.NamedTemporaryFile(prefix=".", dir=folder, delete=False) as file:
                file.write(data)
            os.chmod(file.name, 0o644)
            os.replace(file.name, folder / name)  # a link that has this name is replaced, not followed
    except OSError as error:
        hint = "choose another folder with --dump"
        raise OutputError(f"cannot write {stem}: {error.strerror}", where=str(folder), hint=hint) from error


# ---- Passes and the context that steers them: optimisation level, passes switched off or on, instruments that watch.

WHERE_REQUIRED = 5
"""The level of passes that no level asks for."""


class Instrument(Protocol):
    """Watches passes; gets the graph before and after each."""

    def before(self, name: str, graph: Graph) -> None:
        """Called before pass ``name`` runs."""

    def after(self, name: str, graph: Graph) -> None:
        """Called after pass ``name`` ran and its result was verified."""


@frozen
class PassContext:
    """``opt_level``: passes of a higher level are left out; ``disabled`` never run, ``required`` always.

    Levels mean what they mean in TVM: 0, what nothing compiles without; 1, fusion; 2, constants and what does nothing; 3, scales
    into weights, needless channels, common subexpressions; 4, parallel layers. Unless told otherwise, all of these run;
    passes of :data:`WHERE_REQUIRED` do where they are named alone.

    ``options`` are settings that a pass reads by name: ``requantize`` (``float`` or ``fixed``), ``fuse_add`` (bool).
    """

    opt_level: int = 4
    disabled: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    instruments: tuple[Instrument, ...] = ()
    options: Mapping[str, str | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def runs(self, what: Pass) -> bool:
        """Whether a pass is due."""
        return what.name in self.required or (what.name not in self.disabled and what.opt_level <= self.opt_level)


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function Graph -> Graph that runs from ``opt_level`` on.

    ``before``: the pass of the compiler that one of the user's own stands before, the first of that name. Before ``legalize`` a
    network has operators of the formats and canonical layout; behind it, before ``fuse`` say, exact integers. ``around``: it
    changes what nodes hand to the graphs inside of them, which therefore go through the passes behind it; such passes come first.
    """

    name: str
    function: Callable[[Graph, PassContext], Graph]
    opt_level: int = 1
    before: str = "legalize"
    around: bool = False


def with_own(passes: Sequence[Pass], own: Sequence[Pass]) -> tuple[Pass, ...]:
    """``passes`` with those of the user's own where they belong, checked."""
    found: list[Pass] = []
    left = list(own)
    for what in passes:
        found += [_checked(each) for each in left if each.before == what.name]
        left = [each for each in left if each.before != what.name]
        found.append(what)
    return tuple(found)


def _checked(own: Pass) -> Pass:
    """A pass that is held to what passes promise: ProgramError where its result is no graph, or not whole."""

    def function(graph: Graph, context: PassContext) -> Graph:
        made: object = own.function(graph, context)
        if not isinstance(made, Graph):
            raise ProgramError(
                f"pass {own.name} gives {type(made).__name__}, not a graph",
                hint="return the graph itself where nothing changes",
            )
        try:
            verify(made, registry.infer, f"pass {own.name}")
        except InternalError as error:
            raise ProgramError(error.what, where=error.where, hint=error.hint) from error
        if (made.inputs, made.outputs) != (graph.inputs, graph.outputs):
            raise ProgramError(
                f"pass {own.name} changes the network's inputs or outputs",
                hint="a new node makes an output under its old name",
            )
        return made

    return replace(own, function=function)


def check_names(names: Iterable[str], passes: Sequence[Pass]) -> None:
    """Refuse pass names that do not exist."""
    for name in sorted(names):
        if name not in {p.name for p in passes}:
            optional = list(dict.fromkeys(p.name for p in passes if p.opt_level))
            raise UsageError(
                f"there is no pass {name!r}", hint=suggestion(name, optional, "passes that may be left out")
            )


def run_passes(graph: Graph, passes: Sequence[Pass], context: PassContext, known: Sequence[Pass] = ()) -> Graph:
    """Run the passes that are due in order, verifying the graph after each.

    ``known``: all that the context may name, where ``passes`` are some of them.
    """
    check_names(context.disabled | context.required, known or passes)
    mandatory = {p.name for p in known or passes if p.opt_level == 0} & context.disabled
    if mandatory:
        raise UsageError(f"pass {min(mandatory)!r} cannot be disabled", hint="nothing compiles without it")
    verify(graph, registry.infer, "the frontend", registry.constant_fault)
    first = next((k for k, what in enumerate(passes) if not what.around), len(passes))
    graph = _through(passes[:first], graph, context)
    graph = graph.with_nodes(_with_regions(node, passes, context) for node in graph.nodes)
    return _through(passes[first:], graph, context)


def _through(passes: Sequence[Pass], graph: Graph, context: PassContext) -> Graph:
    for what in passes:
        if not context.runs(what):
            continue
        for instrument in context.instruments:
            instrument.before(what.name, graph)
        graph = what.function(graph, context)
        verify(graph, registry.infer, f"pass {what.name}")
        for instrument in context.instruments:
            instrument.after(what.name, graph)
    return graph


def _with_regions(node: Node, passes: Sequence[Pass], context: PassContext) -> Node:
    """A node whose graphs have been through all passes; nobody watches them there."""
    names = registry.get(node.op).regions
    if not names:
        return node
    known = {p.name for p in passes}
    context = replace(context, instruments=(), disabled=context.disabled & known, required=context.required & known)
    inside = {name: run_passes(node.attr(name), passes, context) for name in names}
    return replace(node, attrs={**node.attrs, **inside})
