# SPDX-License-Identifier: Apache-2.0
"""Graph passes: their definition and settings, the function that runs and verifies them, and instruments that observe
them."""

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
from microc.errors import InternalError, OutputError, ProgramError, UsageError, known_names_hint
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph, Node, verify
from microc.graph.text import to_text
from microc.ops import registry

# ---- Instruments for :class:`PassContext`: measurement of the time of each pass, and dumps of the graph after each pass.


class TimingInstrument:
    """Instrument that measures the time of passes, including the verification of their results.

    ``seconds`` maps the name of a pass to its time in seconds, in the order of first runs. The times of several runs of
    a pass are added."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = 0.0

    def before(self, name: str, graph: Graph) -> None:
        self._start = time.perf_counter()

    def after(self, name: str, graph: Graph) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._start


class DumpInstrument:
    """Instrument that writes the graph into ``folder``: ``00-read`` before the first pass, then ``01-<pass>`` ... after
    each pass.

    Every dump is a text file (``.txt``) and a graph file that can be loaded (``.mcg``, :mod:`microc.graph.file`). Raise
    OutputError if a file cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def before(self, name: str, graph: Graph) -> None:
        if self._count == 0:
            self._write_dump("read", graph)

    def after(self, name: str, graph: Graph) -> None:
        self._write_dump(name, graph)

    def _write_dump(self, name: str, graph: Graph) -> None:
        """Write the graph to files whose names begin with the number of the dump and ``name``."""
        write_graph(self.folder, f"{self._count:02}-{name}", graph)
        self._count += 1


def write_graph(folder: Path, stem: str, graph: Graph) -> None:
    """Write a graph as text to ``stem.txt`` and as a graph file to ``stem.mcg``. Raise OutputError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in ((f"{stem}.txt", to_text(graph).encode("ascii")), (f"{stem}{SUFFIX}", to_bytes(graph))):
            with tempfile.NamedTemporaryFile(prefix=".", dir=folder, delete=False) as file:
                file.write(data)
            os.chmod(file.name, 0o644)
            os.replace(file.name, folder / name)  # replaces a symbolic link of this name instead of following it
    except OSError as error:
        hint = "choose another folder with --dump"
        raise OutputError(f"cannot write {stem}: {error.strerror}", where=str(folder), hint=hint) from error


# ---- Passes and their context: optimisation level, disabled and required passes, instruments.

WHERE_REQUIRED = 5
"""Optimisation level of passes that run only if ``PassContext.required`` names them."""


class Instrument(Protocol):
    """Observer of passes that receives the graph before and after each pass."""

    def before(self, name: str, graph: Graph) -> None:
        """Observe the graph before the pass ``name``."""

    def after(self, name: str, graph: Graph) -> None:
        """Observe the graph after the pass ``name`` and the verification of its result."""


@frozen
class PassContext:
    """Settings of a run of passes.

    Passes whose level exceeds ``opt_level`` are skipped. Passes in ``disabled`` never run; passes in ``required``
    always run. Levels have the meaning that they have in TVM: 0, mandatory passes; 1, fusion; 2, constant folding and
    identities; 3, scales folded into weights, dead channels, common subexpressions; 4, parallel layers. By default all
    of these run. Passes of level :data:`WHERE_REQUIRED` run only if ``required`` names them.

    ``options`` are settings that a pass reads by name, such as ``requantize`` (``float`` or ``fixed``) and ``fuse_add``
    (bool)."""

    opt_level: int = 4
    disabled: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    instruments: tuple[Instrument, ...] = ()
    options: Mapping[str, str | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def is_enabled(self, pass_: Pass) -> bool:
        """Test whether a pass runs with these settings."""
        return pass_.name in self.required or (pass_.name not in self.disabled and pass_.opt_level <= self.opt_level)


@dataclass(frozen=True, slots=True)
class Pass:
    """Named function from graph to graph that runs at optimisation level ``opt_level`` and above.

    ``before``: name of the built-in pass before whose first run a user's own pass is inserted. Before ``legalize`` a
    graph has operators as in model files, in canonical layout; after ``legalize``, for example before ``fuse``, it has
    exact integer operators. ``around``: True for a pass that changes values which nodes pass to their subgraphs. Such
    passes run first; all passes then run on the subgraphs."""

    name: str
    function: Callable[[Graph, PassContext], Graph]
    opt_level: int = 1
    before: str = "legalize"
    around: bool = False


def insert_user_passes(passes: Sequence[Pass], user_passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Insert each of ``user_passes`` before the first run of the built-in pass in its field ``before``.

    Each is wrapped in a check of its result."""
    merged: list[Pass] = []
    left = list(user_passes)
    for builtin in passes:
        merged += [_wrap_in_result_check(user_pass) for user_pass in left if user_pass.before == builtin.name]
        left = [user_pass for user_pass in left if user_pass.before != builtin.name]
        merged.append(builtin)
    return tuple(merged)


def _wrap_in_result_check(user_pass: Pass) -> Pass:
    """Wrap a user's pass so that ProgramError is raised unless it returns a valid graph with the same inputs and
    outputs."""

    def run_and_check(graph: Graph, context: PassContext) -> Graph:
        result: object = user_pass.function(graph, context)
        if not isinstance(result, Graph):
            raise ProgramError(
                f"pass {user_pass.name}: the result is no graph; got {type(result).__name__}",
                hint="return a Graph, the same one if nothing changes",
            )
        try:
            verify(result, registry.infer_node_types, f"pass {user_pass.name}")
        except InternalError as error:
            raise ProgramError(error.what, where=error.where, hint=error.hint) from error
        if (result.inputs, result.outputs) != (graph.inputs, graph.outputs):
            raise ProgramError(
                f"pass {user_pass.name}: the network's inputs or outputs have changed",
                hint="keep their names: let a new node compute an output under its old name",
            )
        return result

    return replace(user_pass, function=run_and_check)


def check_pass_names(names: Iterable[str], passes: Sequence[Pass]) -> None:
    """Raise UsageError for a name that is not the name of a pass."""
    for name in sorted(names):
        if name not in {p.name for p in passes}:
            optional = list(dict.fromkeys(p.name for p in passes if p.opt_level))
            raise UsageError(
                f"there is no pass {name!r}", hint=known_names_hint(name, optional, "passes that may be left out")
            )


def run_passes(graph: Graph, passes: Sequence[Pass], context: PassContext, all_passes: Sequence[Pass] = ()) -> Graph:
    """Run those of ``passes`` that ``context`` selects, in order, and verify the graph after each.

    ``all_passes``: all passes that the context may name, if ``passes`` contains only some of them."""
    check_pass_names(context.disabled | context.required, all_passes or passes)
    mandatory = {p.name for p in all_passes or passes if p.opt_level == 0} & context.disabled
    if mandatory:
        raise UsageError(
            f"pass {min(mandatory)!r} cannot be disabled: nothing compiles without it", hint="leave out its name"
        )
    verify(graph, registry.infer_node_types, "the frontend", registry.node_constant_error_message)
    first = next((k for k, pass_ in enumerate(passes) if not pass_.around), len(passes))
    graph = _run_selected_passes(passes[:first], graph, context)
    graph = graph.with_nodes(_run_on_subgraphs(node, passes, context) for node in graph.nodes)
    return _run_selected_passes(passes[first:], graph, context)


def _run_selected_passes(passes: Sequence[Pass], graph: Graph, context: PassContext) -> Graph:
    """Run those of ``passes`` that ``context`` selects, in order, and verify the graph after each."""
    for pass_ in passes:
        if not context.is_enabled(pass_):
            continue
        for instrument in context.instruments:
            instrument.before(pass_.name, graph)
        old, graph = graph, pass_.function(graph, context)
        verify(graph, registry.infer_node_types, f"pass {pass_.name}", verified=old)
        for instrument in context.instruments:
            instrument.after(pass_.name, graph)
    return graph


def _run_on_subgraphs(node: Node, passes: Sequence[Pass], context: PassContext) -> Node:
    """Run all passes on the subgraphs of a node, without instruments; return the changed node."""
    names = registry.get(node.op).regions
    if not names:
        return node
    known = {p.name for p in passes}
    context = replace(context, instruments=(), disabled=context.disabled & known, required=context.required & known)
    regions = {name: run_passes(node.attr(name), passes, context) for name in names}
    return replace(node, attrs={**node.attrs, **regions})
