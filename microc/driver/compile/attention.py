"""Whether attention is computed by blocks: where that makes the arena smaller and costs few instructions more.

A percent of the network's time is worth as many percents of the arena as of flash (:mod:`microc.driver.compile.budget`); for
speed alone no time is given, for size alone as much as memory is won, and any where the arena without blocks exceeds its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microc.driver.compile.budget import EXCHANGE, flash_bytes
from microc.driver.compile.kernel import groups_of
from microc.driver.compile.maker import Compiled
from microc.driver.options import Options
from microc.graph.ir import Graph
from microc.graph.verify import verify
from microc.isa import FAMILIES
from microc.module import Module
from microc.ops import registry
from microc.ops.registry import infer
from microc.transform.attention.blocks import in_blocks
from microc.transform.attention.find import find_attention
from microc.transform.instruments import write_graph

ROWS = (64, 32, 16, 8)
"""Queries of a block, if not all of a head: fewer, and what is made ready for a block's products outweighs them."""
WORTH = {"speed": float("inf"), "balanced": float(EXCHANGE), "size": 1.0}
"""Percents of the arena that a percent of time is worth."""
COMPUTER = 10.0
"""That many times as much where caches alone are short of memory."""


def by_blocks(
    plain: Compiled, build: Callable[[Graph], Compiled], options: Options, ram: Sequence[int], flash: Sequence[int]
) -> Compiled:
    """``plain``, planned, or what ``build`` makes of its graph with attention in blocks. ``ram``: limits of the arena,
    ``flash``: of constants and code.

    Blocks get smaller as long as that looks better than the last, so that few are compiled.
    """
    graph = plain.make.graph
    found = find_attention(graph)
    if not found or options.opt_level < 1 or options.threads > 1:  # threads share whole operators
        return plain
    tight = any(plain.module.plan is not None and plain.module.plan.main > limit for limit in ram)
    computer = FAMILIES[plain.make.target.isa].threads
    worth = 0.0 if tight else WORTH[options.optimize] * (COMPUTER if computer else 1)
    height = max(graph.types[each.scores[0].outputs[0]].shape[-2] for each in found)
    best, price = plain, _price(plain.module, plain.module, worth)
    for rows in (height, *(rows for rows in ROWS if rows < height)):
        changed = in_blocks(graph, found, rows)
        if changed is graph or most_alive(changed, inside=options.io_in_arena) >= _arena(best.module):
            continue
        verify(changed, infer, "attention")
        made = build(changed)
        costs = _price(made.module, plain.module, worth)
        if costs < price and all(flash_bytes(made.module) <= limit for limit in flash):
            best, price = made, costs
        elif best is not plain:
            break
    if best is not plain and options.dump is not None:
        write_graph(options.dump, "attention", best.make.graph)
    return best


def most_alive(graph: Graph, *, inside: bool) -> int:
    """The most bytes that are alive at one time if every kernel has results of its own, and no scratch. ``inside``: inputs and
    outputs count."""
    views = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def root(name: str) -> str:
        while name in views:
            name = views[name]
        return name

    groups = [nodes for nodes in groups_of(graph) if not registry.get(nodes[0].op).view]
    last = {root(name): time for time, nodes in enumerate(groups) for node in nodes for name in node.inputs if name}
    last |= {root(name): len(groups) for name in graph.outputs}
    uncounted = {*graph.consts, *graph.state, *(() if inside else (*graph.inputs, *map(root, graph.outputs)))}
    alive, most = {root(name) for name in graph.inputs}, 0
    for time, nodes in enumerate(groups):
        alive |= {name for name in nodes[-1].outputs if name}
        bodies = [nodes[0].attr(name) for name in registry.get(nodes[0].op).regions]
        own = max((most_alive(body, inside=False) for body in bodies), default=0)
        most = max(most, own + sum(graph.types[name].nbytes for name in alive - uncounted))
        alive = {name for name in alive if last.get(name, -1) > time}
    return most


def _price(made: Module, plain: Module, worth: float) -> float:
    """The arena as a share of that without blocks, times the share of instructions as often as time is ``worth``."""
    arena, time = _arena(made) / max(_arena(plain), 1), made.instructions / max(plain.instructions, 1)
    if worth == float("inf"):
        return arena if time <= 1 else 1 + time
    return float(arena * time**worth)


def _arena(module: Module) -> int:
    assert module.plan is not None
    return module.plan.size
