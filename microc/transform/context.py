"""PassContext (provisional)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microc.graph.ir import Graph


@dataclass(frozen=True)
class PassContext:
    opt_level: int = 2
    disabled: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    instruments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    name: str
    function: Callable[[Graph, PassContext], Graph]
    opt_level: int = 0


@dataclass(frozen=True)
class DumpInstrument:
    folder: Path


def run_passes(graph: Graph, passes: Sequence[Pass], context: PassContext) -> Graph:
    for p in passes:
        graph = p.function(graph, context)
    return graph
