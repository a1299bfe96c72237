"""Whether recurrent layers run by blocks of turns: where that costs fewer instructions, and no more memory than these are worth.

Flash and RAM of a usual firmware stand beside the network's own, so that small networks do not pay any price in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from microc.driver.compile.budget import OVERHEAD, flash_bytes, worth_of
from microc.driver.compile.maker import Compiled
from microc.driver.options import Options
from microc.graph.ir import Graph
from microc.module import Module
from microc.transform.blocked_turns import PASS
from microc.transform.instruments import write_graph

FIRMWARE = 4 * 1024
"""Bytes of RAM that a usual firmware takes beside the arena: stack, buffers of its ports."""


def by_turns(
    plain: Compiled,
    optimised: Callable[[Options], Graph],
    build: Callable[[Graph], Compiled],
    options: Options,
    ram: Sequence[int],
    flash: Sequence[int],
) -> Compiled:
    """``plain``, planned, or what ``build`` makes of the graph that is ``optimised`` with blocks of turns. ``ram``: limits of the
    arena, ``flash``: of constants and code.

    Nothing is compiled twice where the pass is required, disabled or changes nothing, where the arena is too large already, or
    where code of others stands in the network, which is compared with ours step by step.
    """
    loops = _loops(plain.make.graph)
    told = PASS.name in options.required | options.disabled or options.opt_level < 1 or options.external
    if not loops or told or not _fits(plain.module, ram):
        return plain
    changed = optimised(replace(options, dump=None, instruments=(), required=options.required | {PASS.name}))
    if _loops(changed) == loops:
        return plain
    made = build(changed)
    small = _fits(made.module, ram) and all(flash_bytes(made.module) <= limit for limit in flash)
    if not small or _price(made.module, plain.module, worth_of(options, plain.make.target)) >= 1:
        return plain
    if options.dump is not None:
        write_graph(options.dump, PASS.name, made.make.graph)
    return made


def _loops(graph: Graph) -> int:
    """Loops, and those inside of them."""
    return sum(1 + _loops(node.attr("body")) for node in graph.nodes if node.op == "loop")


def _fits(module: Module, ram: Sequence[int]) -> bool:
    assert module.plan is not None
    return all(module.plan.main <= limit for limit in ram)


def _price(made: Module, plain: Module, worth: float) -> float:
    """Shares of RAM and flash, times the share of instructions as often as time is ``worth``."""
    time = made.instructions / max(plain.instructions, 1)
    if worth == float("inf"):
        return time
    return float(_ram(made) / _ram(plain) * (_flash(made) / _flash(plain)) * time**worth)


def _ram(module: Module) -> int:
    assert module.plan is not None
    return module.plan.size + FIRMWARE


def _flash(module: Module) -> int:
    return flash_bytes(module) + OVERHEAD
