"""Schedules of smaller workspaces, where an arena exceeds its limit.

Rules choose a schedule for its instructions and its flash. What it takes of the arena while it runs counts where its step is the
one that makes the arena too large, which shows once the network is planned: then kernels are chosen again within what tensors
leave there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from microc.driver.compile.maker import Compiled, Workspaces
from microc.driver.report.size import covered
from microc.module import Module
from microc.plan.liveness import lifetimes

if TYPE_CHECKING:  # asked for where workspaces make the arena
    from microc.driver.tuned.task import Task

ROUNDS = 4
"""Plans that are tried for a limit: a smaller workspace may lie over less of what a kernel reads and writes."""


def within_workspaces(limit: int, plain: Compiled, build: Callable[[Workspaces], Compiled]) -> Compiled:
    """The first that ``build`` makes whose arena takes at most ``limit`` bytes, else the smallest that is found; ``plain``,
    planned, where no step has a workspace."""
    assert plain.module.plan is not None
    if plain.module.plan.arenas or not any(own for _, own in _steps(plain.module)):
        return plain
    best, made, tasks, least = plain, plain, _tasks(plain), dict[str, int]()
    for _ in range(ROUNDS):
        rooms = workspaces_within(limit, made.module, tasks)
        before, least = least, {key: min(room, least.get(key, room)) for key, room in rooms.items()}
        if least == before:
            break
        made = build(least)
        best = min(best, made, key=_arena)
        if _arena(made) <= limit:
            break
    return best


def workspaces_within(arena: int, module: Module, tasks: Sequence[Task]) -> Workspaces:
    """By key of a kernel, the bytes of workspace for which an ``arena`` of so many has room in all of its layers."""
    keys = {layer: task.key for task in tasks for layer in task.layers}
    found: dict[str, int] = {}
    for call, (tensors, _) in zip(module.calls, _steps(module), strict=True):
        key = keys.get(call.layer)
        if key is not None:
            found[key] = min(found.get(key, arena), arena - tensors)
    return found


def _steps(module: Module) -> list[tuple[int, int]]:
    """For every call, the bytes of the arena that hold something else than its workspaces, and those of them."""
    assert module.plan is not None
    alive: list[list[tuple[int, int]]] = [[] for _ in module.calls]
    for name, (first, last) in lifetimes(module, io_in_arena=module.plan.io_in_arena).items():
        place = module.plan.offsets[name]
        for step in range(max(first, 0), min(last, len(alive) - 1) + 1):
            alive[step].append((place, place + module.values[name].nbytes))
    scratch = [sum(module.values[name].nbytes for name in call.workspace) for call in module.calls]
    return [(covered(live) - own, own) for live, own in zip(alive, scratch, strict=True)]


def _tasks(made: Compiled) -> tuple[Task, ...]:
    from microc.driver.tuned.task import tasks_of

    return tasks_of(made)


def _arena(made: Compiled) -> int:
    assert made.module.plan is not None
    return made.module.plan.size
