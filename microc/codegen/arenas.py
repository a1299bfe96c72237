"""Arenas as the generated C shows them: one pointer on most boards, a struct of them where tensors lie in several memories."""

from __future__ import annotations

from microc.codegen.text import Code, Name
from microc.errors import InternalError
from microc.frozen import frozen
from microc.module import Arena, Module, Plan


@frozen
class ArenaMember:
    """A member of ``struct <name>_arenas``: the memory's name, its macros' stem, bytes that are needed there, where the last
    tensor ends, what puts it there in a project for the board."""

    name: Name
    macro: Name
    size: int
    end: int
    section: Code


@frozen
class ArenaContext:
    """How functions are given memory: the parameter's declaration, its name, and the members, none where it is one arena.
    ``section``: what puts the one arena into its memory; ``aligned``: what aligns an array of ``uint64_t``, where tensors ask
    for more."""

    declaration: Code
    name: Name
    members: tuple[ArenaMember, ...]
    section: Code
    aligned: Code


def arena_context(module: Module) -> ArenaContext:
    """The arenas of a planned module."""
    plan = _plan(module)
    members = tuple(
        ArenaMember(
            Name(arena.memory), Name(arena.memory.upper()), arena.size, _end(module, arena), _section(plan, arena)
        )
        for arena in arenas_apart(plan)
    )
    if members:
        declared = Code(f"const struct {module.name}_arenas *arenas")
        return ArenaContext(declared, Name("arenas"), members, Code(""), aligned_to(plan.align))
    section = next((_section(plan, arena) for arena in plan.used), Code(""))
    return ArenaContext(Code("void *arena"), Name("arena"), (), section, aligned_to(plan.align))


def aligned_to(align: int) -> Code:
    """What aligns an array of ``uint64_t``; nothing where its type does."""
    return Code(f"__attribute__((aligned({align})))" if align > 8 else "")


def arenas_apart(plan: Plan) -> tuple[Arena, ...]:
    """The arenas that functions are given one by one; none where there is one."""
    return plan.used if len(plan.used) > 1 else ()


def placed_at(module: Module, offset: int) -> tuple[str, int]:
    """For a byte of the plan: the pointer to the arena inside the functions of the network, and the offset there."""
    arena = _around(_plan(module), offset)
    return (f"arena_{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def given_at(module: Module, offset: int) -> tuple[str, int]:
    """The same, the pointer as the functions are given it."""
    arena = _around(_plan(module), offset)
    return (f"arenas->{arena.memory}", offset - arena.start) if arena else ("arena", offset)


def copying(module: Module, step: int) -> tuple[Code, ...]:
    """Calls around the copies of weights at the start of a step: it waits for its own, and begins those of the next one."""
    copies = _plan(module).copies
    mine = [name for name in copies if copies[name] >= 0 and name in module.calls[step].args]
    wait = (Code(f"{module.name}_copy_wait();"),) if mine else ()
    now = [name for name in mine if copies[name] == step]  # of the first step, which no other is before
    later = [name for name, begin in copies.items() if begin == step and name not in mine]
    return (*(_begun(module, name) for name in now), *wait, *(_begun(module, name) for name in later))


def _begun(module: Module, name: str) -> Code:
    arena, offset = placed_at(module, _plan(module).offsets[name])
    return Code(f"{module.name}_copy_begin({arena} + {offset}, {module.name}_{name}, {module.values[name].nbytes}u);")


def _around(plan: Plan, offset: int) -> Arena | None:
    several = arenas_apart(plan)
    return next((arena for arena in reversed(several) if arena.start <= offset), None)


def _plan(module: Module) -> Plan:
    if module.plan is None:
        raise InternalError("the module has no memory plan")
    return module.plan


def _section(plan: Plan, arena: Arena) -> Code:
    """Variables lie in the board's first RAM by themselves; for the others its linker script has sections."""
    return Code("" if arena == plan.arenas[0] else f'__attribute__((section(".{arena.memory}")))')


def _end(module: Module, arena: Arena) -> int:
    inside = range(arena.start, arena.start + arena.size)
    ends = (at + module.values[name].nbytes for name, at in _plan(module).offsets.items() if at in inside)
    return max(ends) - arena.start
