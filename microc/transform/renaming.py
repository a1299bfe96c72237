"""Values under other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc.errors import UsageError, suggestion
from microc.graph.ir import Graph, fresh_name


def rename_ends(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with inputs and outputs under other names; a value inside that has such a name gets another.

    UsageError for a name that is no input or output, and where two would have one name.
    """
    ends = dict.fromkeys((*graph.inputs, *graph.outputs))
    for name in names:
        if name not in ends:
            hint = suggestion(name, ends, "inputs and outputs")
            raise UsageError(f"there is no input or output {name!r} to rename", where=graph.name, hint=hint)
    wanted = [names.get(name, name) for name in ends]
    for name in wanted:
        if wanted.count(name) > 1:
            raise UsageError(
                f"two inputs or outputs would be called {name!r}", where=graph.name, hint="every one needs its own name"
            )
    every = {**graph.types, **dict.fromkeys(wanted, None)}
    moved = {new: fresh_name(every, f"{new}.inner") for new in names.values() if new in graph.types and new not in ends}
    return with_names(graph, {**moved, **names})


def with_names(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with values under other names (two may become one)."""

    def new(old: str) -> str:
        return names.get(old, old)

    nodes = (
        replace(n, inputs=tuple(map(new, n.inputs)), outputs=tuple(map(new, n.outputs))) for n in graph.nodes
    )  # fmt: skip
    return replace(
        graph,
        inputs=tuple(map(new, graph.inputs)),
        outputs=tuple(map(new, graph.outputs)),
        nodes=tuple(nodes),
        types={new(name): kind for name, kind in graph.types.items()},
        consts={new(name): data for name, data in graph.consts.items()},
        state={new(name): data for name, data in graph.state.items()},
        updates={new(name): new(value) for name, value in graph.updates.items()},
    )
