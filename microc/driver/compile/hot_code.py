"""Hot code in RAM, where that is asked for: what is left of the board's memory for it."""

from __future__ import annotations

from dataclasses import replace

from microc.driver.compile.budget import Room, ends_bytes
from microc.driver.options import Options
from microc.errors import UsageError
from microc.module import Module
from microc.plan.code import with_hot_code
from microc.target import CodeMemory


def refuse_without_memory(options: Options, room: Room | None) -> None:
    """UsageError where code is to run from RAM, and no memory for it is known."""
    if options.code_in_ram and (room is None or room.code is None):
        raise UsageError(
            f"the file of board {room.board} names no memory for code" if room else "code in RAM is for a board",
            hint='leave out code_in_ram, or say holds = ["code"] of a RAM region in a board file of your own (docs/memories.md)',
        )


def code_placed(module: Module, options: Options, room: Room | None) -> Module:
    """The planned module with kernels in what its arena leaves of the memory for code, if that is asked for."""
    if not options.code_in_ram:
        return module
    assert room is not None and room.code is not None
    return with_hot_code(module, _left(module, room.code, options.io_in_arena))


def gain_in_ram(module: Module, room: Room) -> float:
    """Compute the share of the time that ``--code-in-ram`` would save; 0 where the board has no memory for code, or holds some.
    The time is that with waiting for code, which is estimated for such boards alone."""
    if room.code is None or module.plan is None or module.plan.code is not None:
        return 0.0
    found = with_hot_code(module, _left(module, room.code, module.plan.io_in_arena))
    saved = found.plan.code.saved if found.plan is not None and found.plan.code is not None else 0
    return saved / max(1, saved + sum(call.cycles for call in found.calls))


def _left(module: Module, code: CodeMemory, io_in_arena: bool) -> CodeMemory:
    """The memory for code without what arenas and outside inputs take of it."""
    plan = module.plan
    assert plan is not None
    arena = sum(each.size for each in plan.arenas if each.memory == code.name) if plan.arenas else plan.main
    outside = 0 if io_in_arena else ends_bytes(module)
    taken = arena + outside if code.main else arena if plan.arenas else 0
    return replace(code, size=max(code.size - taken, 0))
