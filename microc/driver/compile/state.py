"""How the contents of state come to their place: written there by the kernel that makes them, where nobody needs the old ones
any more; else copied at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Node
from microc.module import Module
from microc.ops import registry
from microc.plan.overlap import Overlaps


def partly_updated(graph: Graph) -> dict[str, str]:
    """Results that are the next contents of the state that they change a part of, and nothing else: result -> state.

    Their nodes write into the state (``OpDef.update``), after all who read it.
    """
    found: dict[str, str] = {}
    readers, makers, updated = graph.consumers(), graph.producer(), list(graph.updates.values())
    for state, value in graph.updates.items():
        node = makers.get(value)
        if node is None or registry.get(node.op).update is None or node.inputs[0] != state or state in node.inputs[1:]:
            continue
        read = value in readers or value in graph.outputs or updated.count(value) > 1
        if not read and not _names_of(graph, state) & {*updated, *graph.outputs}:
            found[value] = state
    return found


def _names_of(graph: Graph, state: str) -> set[str]:
    """A state and what may be views of it."""
    names = {state}
    for node in graph.nodes:
        definition = registry.get(node.op)
        if node.inputs and node.inputs[0] in names and (definition.view or definition.alias is not None):
            names.update(node.outputs)
    return names


def in_order(graph: Graph, groups: Sequence[tuple[Node, ...]], partly: Mapping[str, str]) -> list[tuple[Node, ...]]:
    """Groups of nodes such that those which write into state come right after the last who reads it."""
    order = list(groups)
    for value, state in partly.items():
        (node,) = own = next(nodes for nodes in order if nodes[-1].outputs[0] == value)
        names = _names_of(graph, state)
        order.remove(own)
        last = max((k for k, nodes in enumerate(order) if any(names & set(n.inputs) for n in nodes)), default=-1)
        ready = max(
            (k for k, nodes in enumerate(order) if any(set(node.inputs) & set(n.outputs) for n in nodes)), default=-1
        )
        order.insert(max(last, ready) + 1, own)
    return order


def written_in_place(module: Module, updates: Mapping[str, str]) -> dict[str, str]:
    """Values whose kernel may write them straight into the state that they update: value -> state.

    No later call reads the state, and the kernel itself is done with every byte of it before it writes there.
    """
    overlaps, found = Overlaps(module), dict[str, str]()
    for state, value in sorted(updates.items()):
        makers = [k for k, call in enumerate(module.calls) if value in call.writes]
        plain = module.values[value].storage == "intermediate" and module.base_of(value) == (value, 0)
        written = any(
            module.base_of(name)[0] == value for call in module.calls for name in call.writes if name != value
        )
        needed = any(module.base_of(other)[0] == state for other in updates.values())
        if not plain or written or len(makers) != 1 or value in found or needed:
            continue
        maker, later = module.calls[makers[0]], module.calls[makers[0] + 1 :]
        if any(state in _bases(module, call.reads) for call in later):
            continue
        if state in _bases(module, maker.reads):
            room = overlaps.room(maker, state, value)
            if room is None or room.next(0) != 0:
                continue
        found[value] = state
    return found


def _bases(module: Module, names: Sequence[str]) -> set[str]:
    return {module.base_of(name)[0] for name in names}


def copied(sources: Mapping[str, str]) -> Iterable[tuple[str, bool]]:
    """States in an order of copying their next contents; ``sources``: state -> where these lie, perhaps in another state.

    A state that is overwritten before another one got its contents from there comes with True first: put its next contents aside.
    """
    waiting = dict(sorted(sources.items()))
    while waiting:
        free = [s for s in waiting if all(source != s for other, source in waiting.items() if other != s)]
        if free:
            del waiting[free[0]]
            yield free[0], False
        else:
            first = next(iter(waiting))
            waiting[first] = ""
            yield first, True


def starts_uniform(data: Array) -> bool:
    """Whether all elements have the same bits, so that a number says what the state starts with."""
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(data.size, -1)
    return bool((raw == raw[:1]).all())
