"""Whether layers of floats have their packed weights opened before they run: where the time is worth the RAM."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microc.driver.compile.budget import fits, share_of, worth_of
from microc.driver.compile.maker import Compiled
from microc.driver.options import Options
from microc.graph.ir import Graph
from microc.graph.verify import verify
from microc.ops.registry import infer
from microc.schedule.rules.lanes import float_lanes
from microc.transform.instruments import write_graph
from microc.transform.opened_weights import PASS, find_opened, with_opened

PARTS = (1, 2, 4, 8)
"""Opened are weights up to this part of the largest: these take most RAM, and may serve fewest rows."""


def by_opened(
    plain: Compiled, build: Callable[[Graph], Compiled], options: Options, ram: Sequence[int], flash: Sequence[int]
) -> Compiled:
    """``plain``, planned, or what ``build`` makes of its graph with weights opened first. ``ram``: limits of the arena,
    ``flash``: of constants and code.

    Fewer weights are opened as long as that looks better than the last, so that few are compiled. A core with vectors opens a
    weight for many rows at once, which costs it next to nothing.
    """
    graph = plain.make.graph
    told = PASS.name in options.required | options.disabled or options.opt_level < 1 or options.external
    if told or float_lanes(plain.make.target) or not fits(plain.module, ram):
        return plain
    found = find_opened(graph)
    sizes = {name: graph.types[name].nbytes for name in found}
    best, price, before = plain, 1.0, list[str]()
    for part in PARTS:
        chosen = [name for name, size in sizes.items() if part * size <= max(sizes.values())]
        if chosen == before:
            continue
        before = chosen
        changed = with_opened(graph, found, chosen)
        verify(changed, infer, PASS.name)
        made = build(changed)
        share = share_of(made.module, plain.module, worth_of(options, plain.make.target))
        if share < price and fits(made.module, ram, flash):
            best, price = made, share
        elif best is not plain:
            break
    if best is not plain and options.dump is not None:
        write_graph(options.dump, PASS.name, best.make.graph)
    return best
