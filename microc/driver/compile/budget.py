"""What flash is worth, and how much of it there is.

A choice of schedules weighs instructions against bytes at a price. ``balanced`` makes a percent of the network's time worth
EXCHANGE percent of its flash, so that the price needs no unit and no knob: a byte is worth
MACs / (bytes of weights + OVERHEAD) / EXCHANGE instructions. A network over its budget is compiled again at ever higher
prices, at last for size alone; which of them is each kernel's, :mod:`microc.driver.compile.goals` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.driver.options import Options
from microc.errors import FitError
from microc.frozen import frozen
from microc.graph.ir import Graph
from microc.graph.text import regions
from microc.isa import FAMILIES
from microc.module import Module
from microc.ops import registry
from microc.target import SIZE, SPEED, CodeMemory, Goal, Memory, Target

EXCHANGE = 4
"""Percents of flash that a percent of time is worth: boards have more flash than networks take, and time is energy too."""
WORTH = {"speed": float("inf"), "balanced": float(EXCHANGE), "size": 1.0}
"""Percents of memory that a percent of time is worth where layers have several forms."""
COMPUTER = 10.0
"""That many times as much where caches alone are short of memory."""
OVERHEAD = 16 * 1024
"""Bytes of code of a usual network, so that a network of few weights does not pay any price for speed."""
FIRMWARE = 4 * 1024
"""Bytes of RAM that a usual firmware takes beside the arena: stack, buffers of its ports."""
CERTAIN = 0.75
"""The share of estimated code that a network takes at least: nothing is refused on an estimate that may be too high."""
STEPS = (1, 8, 64)
"""Multiples of the balanced price that a network over its budget is tried at."""


@frozen
class Room:
    """Bytes that a board leaves to the network: flash for constants and code, RAM for the arena and outside inputs; 0: any.

    ``board``: its name, if a network that takes more is refused; ``flash_limit``: what constants take at most, even where the
    code turns out smaller than estimated. ``capacity``: flash and RAM of the whole board. ``memories``: where it has several
    for tensors all of them, the one that ``ram`` is about first. ``code``: the memory that hot code may run from, with the
    bytes that are left beside everything but arenas.
    """

    flash: int = 0
    ram: int = 0
    board: str = ""
    flash_limit: int = 0
    capacity: tuple[int, int] = (0, 0)
    memories: tuple[Memory, ...] = ()
    code: CodeMemory | None = None

    @property
    def all_ram(self) -> int:
        """Bytes for tensors in all memories; 0: any."""
        return self.ram + sum(memory.size for memory in self.memories[1:])


def memories_for(module: Module, options: Options, room: Room | None) -> tuple[Memory, ...]:
    """The memories that a module's arenas may lie in: the first one without what lies there outside, and within the budget.

    None where the network has one arena: on most boards, and as it is loaded into a firmware that gives it one.
    """
    if room is None or not room.memories or options.relocatable:
        return ()
    first, *others = room.memories
    size = max(first.size - (0 if options.io_in_arena else ends_bytes(module)), 0)
    return replace(first, size=min(size, options.ram) if options.ram else size), *others


def ends_bytes(module: Module) -> int:
    """Inputs and outputs."""
    return sum(module.values[name].nbytes for name in (*module.inputs, *module.outputs))


def count_macs(graph: Graph) -> int:
    """Multiply-accumulates of one inference."""
    total = 0
    for node in graph.nodes:
        definition = registry.get(node.op)
        if definition.macs is not None:
            ins = [graph.types[name] for name in node.inputs if name]
            total += definition.macs(node.attrs, ins, [graph.types[name] for name in node.outputs])
    return total


def goals(graph: Graph, options: Options, target: Target) -> tuple[Goal, ...]:
    """The goal that is asked for, and behind it those to fall back to when the network exceeds its flash budget. Computers have
    no flash: for them ``balanced`` is speed, as far as schedules go."""
    weights = sum(array.nbytes for each in (graph, *regions(graph)) for array in each.consts.values())
    price = max(count_macs(graph), 1) / (weights + OVERHEAD) / EXCHANGE
    steps = (SPEED, *(Goal("balanced", price * step) for step in STEPS), SIZE)
    family = FAMILIES[target.isa]
    # RISC-V names computers and has microcontrollers, which run no threads; portable C has threads and names no computer
    computer = family.threads and bool(family.computers)
    wanted = SPEED.name if options.optimize == "balanced" and computer else options.optimize
    return steps[next(k for k, goal in enumerate(steps) if goal.name == wanted) :]


def worth_of(options: Options, target: Target) -> float:
    """Percents of memory that a percent of time is worth."""
    return WORTH[options.optimize] * (COMPUTER if FAMILIES[target.isa].threads else 1)


def code_bytes(module: Module) -> int:
    """Machine code of the network's kernels: the cost model's estimate."""
    return sum(kernel.code_bytes for kernel in module.kernels)


def flash_bytes(module: Module) -> int:
    """Constants and code of the network: an estimate."""
    return module.const_bytes + code_bytes(module)


def share_of(made: Module, plain: Module, worth: float) -> float:
    """What a planned module weighs beside another: shares of RAM and flash, times the share of instructions as often as time is
    ``worth``. Flash and RAM of a usual firmware stand beside the network's own, so that small networks do not pay any price in
    time."""
    time = made.instructions / max(plain.instructions, 1)
    if worth == float("inf"):
        return time
    assert made.plan is not None and plain.plan is not None
    ram = (made.plan.size + FIRMWARE) / (plain.plan.size + FIRMWARE)
    flash = (flash_bytes(made) + OVERHEAD) / (flash_bytes(plain) + OVERHEAD)
    return float(ram * flash * time**worth)


def fits(module: Module, ram: Sequence[int], flash: Sequence[int] = ()) -> bool:
    """Whether a planned module keeps within all limits of its arena, and of constants and code."""
    assert module.plan is not None
    return all(module.plan.main <= limit for limit in ram) and all(flash_bytes(module) <= limit for limit in flash)


def least_flash(module: Module) -> int:
    """What constants and code take at least."""
    return module.const_bytes + int(CERTAIN * code_bytes(module))


def refusal(module: Module, flash: int) -> FitError:
    """The error for a network that takes more flash than it may, however it is scheduled."""
    excess = flash_bytes(module) - flash
    return FitError(
        f"a flash budget of {flash} bytes cannot hold {module.const_bytes} bytes of weights and about {code_bytes(module)} "
        f"of code ({excess} too many)",
        where=module.source or module.name,
        hint=f"raise it to --flash {-(-flash_bytes(module) // 1024)}K, or choose a smaller or quantised network",
    )
