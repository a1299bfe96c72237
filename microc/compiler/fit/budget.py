"""What a network computes and needs, and what memory is worth."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.lowering.kernel_selection import alias_of, groups_of
from microc.compiler.options import Options
from microc.device.boards import list_boards, load_board
from microc.errors import FitError, UnsupportedError, UsageError
from microc.graph.ir import Graph, Node
from microc.graph.text import regions
from microc.graph.text import regions as graphs_inside
from microc.isa import CORES, FAMILIES
from microc.module import Arithmetic, Module
from microc.ops import registry
from microc.ops.lowering import macs_of, row_window
from microc.ops.matrix.gemm import find_levels
from microc.schedule.rules.rule import FAST_MATH, HALF_FLOATS, HALF_MATH, HALF_WEIGHTS, THREADS
from microc.target import SIZE, SPEED, Board, CodeMemory, Goal, Memory, Target
from microc.transform.attention import find_attention, in_blocks
from microc.transform.quantised.qdq import has_integer_form
from microc.transform.quantised.weight_types import halved, too_large

# ---- What to do about a network that does not fit: integers in the place of floats, boards that have more, a larger
# budget.

MARGIN = 2
"""Times what is known to be needed that a board named here has: code and stack of another core come to that."""
SHOWN = 3


def remedy(source: str, flash: int, ram: int, board: str = "", *, floats: bool = False, caller: bool = False) -> str:
    """A hint, the best way first. ``flash``, ``ram``: bytes that are needed at least, 0 where there is enough.

    ``source``: the model as commands take it. ``board``: which is too small, empty where a budget is. ``floats``: the network
    computes in them, in four bytes a number; ``caller``: inputs and outputs in the arena could live elsewhere.
    """
    ways = []
    if floats:
        target = f" --board {board}" if board else ""
        output = shlex.quote(str(Path(source).with_suffix(".mcg")))
        ways.append(
            f"make it one of integers (microc quantize {shlex.quote(source)} --data SAMPLES{target} -o {output})"
        )
    if board:
        names = [name for _, name in zip(range(SHOWN), larger_boards(flash, ram, board), strict=False)]
        ways.append(f"choose a larger board (--board {', '.join(names)})" if names else "choose a smaller network")
    else:
        ways.append("raise the budget, or leave it out to see what is needed")
    if caller:
        ways.append("keep inputs and outputs elsewhere (--io caller)")
    return "; ".join(ways)


def larger_boards(flash: int, ram: int, small: str = "") -> Iterator[str]:
    """Yield boards with that memory and a margin. ``small``: the board that is too small.

    First come boards of its family (Arduino's core, PlatformIO's platform), then boards that one of its build systems knows, then
    emulated ones; the smallest first.
    """
    known = list_boards()
    mine = load_board(small) if small in known else None
    families, systems = (_families(mine), set(mine.ids)) if mine else (set[str](), set[str]())

    def order(board: Board) -> tuple[bool, bool, bool, int, int]:
        stranger = families.isdisjoint(_families(board))
        return (stranger, systems.isdisjoint(board.ids), not board.virtual, board.ram_bytes, board.flash_bytes)

    for board in sorted(map(load_board, known), key=order):
        if board.regions and _bytes(board, "flash") >= MARGIN * flash and _bytes(board, "ram") >= MARGIN * ram:
            yield board.name


def _families(board: Board) -> set[str]:
    arduino, platformio = board.ids.get("arduino", ""), board.ids.get("platformio")
    found = {arduino.rpartition(":")[0]} if arduino else set()
    return found | ({platformio["platform"]} if platformio else set())


def _bytes(board: Board, kind: str) -> int:
    return sum(region.size for region in board.regions if region.kind == kind)


# ---- What a network computes in floats, and why: by its multiply-accumulates, after the graph passes; and how it
# may.

_SHOWN = 8
_PRODUCTS = ("conv2d", "conv2d_transpose", "dense")


def with_math(target: Target, options: Options) -> Target:
    """The target, which schedules ask what they may do, with what the user lets them do to floats, and how many do it;
    UsageError for arithmetic in float16 where the core has no unit for it, or sizes vary."""
    if options.math == "half" and not target.has(HALF_FLOATS):
        able = ", ".join(name for name, core in CORES.items() if HALF_FLOATS in core.has)
        raise UsageError(
            f"math half: {target.cpu} does not compute in float16",
            hint=f"it is for {able}; weight_dtype float16 stores weights in two bytes on every core",
        )
    if options.math == "half" and options.bounds:
        raise UsageError("math half: sizes that vary have no schedules in float16", hint="bind them with input_shapes")
    wishes = {
        FAST_MATH: options.math in ("fast", "half"),
        HALF_MATH: options.math == "half",
        HALF_WEIGHTS: options.weight_dtype in dtypes.HALF,
        THREADS: options.threads > 1,
    }
    return target.having(*(name for name, wanted in wishes.items() if wanted))


def arithmetic_of(graph: Graph, weight_dtype: str = "") -> Arithmetic:
    """The share of a graph as the passes left it. Reasons are those of the layers with the most products. ``weight_dtype``: what
    weights were rounded to, if that is a half."""
    if not any(dtypes.is_float(kind.dtype) for kind in graph.types.values()):
        return Arithmetic(sum(macs_of(graph, node) for node in graph.nodes), double_weights=_double_weights(graph))
    work = {node.outputs: (macs_of(graph, node), _float_macs(graph, node)) for node in graph.nodes}
    layers = sorted((n for n in graph.nodes if work[n.outputs][1]), key=lambda n: -work[n.outputs][1])
    scaled = (n for n in graph.nodes if n.op == "requantize_float")
    return Arithmetic(
        macs=sum(total for total, _ in work.values()),
        float_macs=sum(floats for _, floats in work.values()),
        reasons=tuple(_reasons(graph, layers)),
        half_weights=halved(graph) if weight_dtype in dtypes.HALF else 0,
        wide_weights=too_large(graph, weight_dtype) if weight_dtype in dtypes.HALF else (),
        double_weights=_double_weights(graph),
        float_scaled=sum(graph.types[name].size for node in scaled for name in node.outputs),
    )


def _double_weights(graph: Graph) -> int:
    """Weights of two bytes that multiply bytes: those of nine bits, which no model's file has."""
    names = {
        node.inputs[1]
        for node in graph.nodes
        if node.op in _PRODUCTS and dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1
    }
    return sum(graph.types[name].size for name in names & graph.consts.keys() if graph.types[name].dtype == "int16")


def _float_macs(graph: Graph, node: Node) -> int:
    """Products of floats in a run of a node; of control flow, the share that its graphs have."""
    macs = macs_of(graph, node)
    if not macs:
        return 0
    regions = registry.get(node.op).regions
    if not regions:
        return macs if dtypes.is_float(graph.types[node.inputs[0]].dtype) else 0
    inside = [arithmetic_of(node.attr(name)) for name in regions]
    return macs * sum(part.float_macs for part in inside) // max(1, sum(part.macs for part in inside))


def _reasons(graph: Graph, layers: list[Node]) -> Iterator[str]:
    """Why layers are in floats, those with the most work first; of a network without any integers, once for all."""
    if not layers:
        return
    if all(kind.quant is None for kind in graph.types.values()):
        yield "nothing in the network is quantised"
        return
    makers = graph.producer()
    for node in layers[:_SHOWN]:
        number = node.loc.index if node.loc.index >= 0 else node.outputs[0]
        yield f"{node.op} {number}: {_reason(graph, makers.get(node.inputs[0]))}"
    if len(layers) > _SHOWN:
        yield f"and {len(layers) - _SHOWN} layers more"


def _reason(graph: Graph, maker: Node | None) -> str:
    """Why a layer is in floats that reads what ``maker`` makes."""
    if maker is None:
        return "what it reads is not quantised"
    if maker.op == "dequantize":
        return "its weights or its result are not quantised"
    form = "" if has_integer_form(maker, graph) else ", which has no integer form"
    return f"it reads floats of {maker.op}{form}"


# ---- What flash is worth, and how much of it there is.
#
# A choice of schedules weighs instructions against bytes at a price. ``balanced`` makes a percent of the network's time worth
# EXCHANGE percent of its flash, so that the price needs no unit and no knob: a byte is worth
# MACs / (bytes of weights + OVERHEAD) / EXCHANGE instructions. A network over its budget is compiled again at ever higher
# prices, at last for size alone; which of them is each kernel's, :mod:`microc.compiler.fit.search` chooses.

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
    """Whether a module, planned where its arena has limits, keeps within all of these, and those of constants and code."""
    arena = module.plan.main if module.plan is not None else inf
    return all(arena <= limit for limit in ram) and all(flash_bytes(module) <= limit for limit in flash)


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


# ---- What a network needs at least, found without compiling it: a bound that every plan, schedule and algorithm
# keeps.
#
# Nothing here is an estimate: what exceeds a board or a budget by these figures is refused by
# :mod:`microc.compiler.fit.footprint` too, after minutes of work maybe; what does not may still not fit.
#
# Kernels store weights as they are, padded, transformed or, where the numbers are that few, packed into four or two bits; floats
# that are levels as these and their scales, others that 16 bits hold in these; and equal ones once.
# Results may take the place of operands, and of chains of layers that work row by row nothing but both ends is
# ever whole; so that memory must hold the inputs before the first layer, the outputs behind the last one, and both sides, each
# for itself, of a layer that does not work row by row, always beside the state. No scores are whole of attention by blocks
# (:mod:`microc.transform.attention`).

FEW = 16
"""Constants of fewer numbers count as nothing: kernels may hold them as literals."""


@frozen
class Least:
    """Bytes: ``weights`` in flash, ``arena``, and ``outside``, inputs and outputs that the caller of the network brings."""

    weights: int
    arena: int
    outside: int

    @property
    def ram(self) -> int:
        return self.arena + self.outside


def least_of(graph: Graph, options: Options) -> Least:
    """The bound for a fused graph."""
    inside = options.io_in_arena
    ends = sum(graph.types[name].nbytes for name in {*graph.inputs, *graph.outputs})
    arena = min(_arena(each, inside=inside) for each in (graph, in_blocks(graph, find_attention(graph), 1)))
    return Least(_weights(graph), arena, 0 if inside else ends)


def shortages(least: Least, options: Options, room: Room) -> tuple[str, ...]:
    """Why a network cannot fit, however it is compiled; none proves nothing. ``room``: what the board has."""
    (flash, ram), found = room.capacity, []
    if room.board and least.weights > room.flash_limit > 0:
        found.append(
            f"weights take at least {least.weights} bytes, {room.board} has {flash} of flash, {room.flash_limit} for weights"
        )
    if room.board and least.ram > room.all_ram > 0:
        found.append(
            f"tensors take at least {least.ram} bytes, {room.board} has {ram} of RAM, {room.all_ram} for tensors"
        )
    if least.weights > options.flash > 0:
        found.append(
            f"a flash budget of {options.flash} bytes cannot hold weights, which take at least {least.weights}"
        )
    if least.arena > options.ram > 0:
        found.append(f"an arena of {options.ram} bytes cannot hold tensors, which take at least {least.arena}")
    return tuple(found)


def refuse_hopeless(graph: Graph, source: str, options: Options, room: Room | None) -> None:
    """FitError for a network that cannot fit, before any of its layers is scheduled."""
    least = least_of(graph, options)
    reasons = shortages(least, options, room or Room())
    if reasons:
        too_small = (
            room.board if room and room.board and shortages(least, replace(options, flash=0, ram=0), room) else ""
        )
        told = too_small or "its budget"
        floats = bool(arithmetic_of(graph).float_macs)
        raise FitError(
            f"{source} does not fit {told}: {'; '.join(reasons)}",
            where=source,
            hint=remedy(source, least.weights, least.ram, too_small, floats=floats, caller=options.io_in_arena),
            details={"weights_at_least": least.weights, "ram_at_least": least.ram},
        )


def refuse_large_arrays(module: Module, target: Target) -> None:
    """FitError where a tensor or the arena is larger than the arrays that the core's compilers make."""
    most = FAMILIES[target.isa].array_bytes
    arrays = [(value.nbytes, value.name) for value in module.values.values()]
    arrays += [(module.plan.size, "the arena")] if module.plan else []
    nbytes, name = max(arrays, default=(0, ""))
    if most and nbytes > most:
        raise FitError(
            f"{name} takes {nbytes} bytes: compilers for {target.isa} make no array beyond {most}",
            where=module.source or module.name,
            hint="choose a network with smaller layers, or a board with another core (microc boards)",
        )


def refuse_float64(graph: Graph, target: Target) -> None:
    """UnsupportedError for a network with float64 values on a core whose ``double`` is a float32."""
    size = FAMILIES[target.isa].double_bytes
    if size == 8:
        return
    for inner in (graph, *graphs_inside(graph)):
        places = {name: inner.place(name) for name in inner.inputs}
        places |= {name: node.loc for node in inner.nodes for name in (*node.inputs, *node.outputs)}
        for name, loc in places.items():
            if name and inner.types[name].dtype == "float64":
                raise UnsupportedError(
                    f"{name}: C's double has {size} bytes on {target.cpu}; got float64, expected float32",
                    where=str(loc),
                    hint="cast it to float32 in the model, or choose a board with another core (microc boards)",
                )


def _weights(graph: Graph) -> int:
    used = {name for node in graph.nodes if not registry.get(node.op).view for name in node.inputs}
    found = {array.tobytes(): least_bytes(array) for name, array in graph.consts.items() if name in used}
    return sum(found.values())


def least_bytes(array: Array) -> int:
    """What a constant takes at least. Wide integers are tables of places and factors, which kernels may compute or narrow."""
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2
    if array.size < FEW or wide or array.dtype.kind not in "iuf":
        return 0
    low, high = array.min(), array.max()
    if low == high:
        return 0
    if array.dtype == np.float32 and array.ndim > 1 and np.isfinite(array).all():
        levels = find_levels(array.reshape(len(array), -1))
        if levels is not None:
            return min(array.nbytes, least_bytes(levels.values) + levels.scales.nbytes)
    if array.dtype.kind in "iu" and int(high) - int(low) < 16:
        return array.size // (2 if int(high) - int(low) >= 4 else 4)
    if array.dtype == np.float32 and any(dtypes.keeps(array, half) for half in dtypes.HALF):
        return array.size * 2
    return array.size * (1 if _bytes_do(array) else array.dtype.itemsize)


def _bytes_do(array: Array) -> bool:
    """Whether integers fit into bytes."""
    return array.dtype.kind in "iu" and int(array.max()) - int(array.min()) < 256


def _arena(graph: Graph, *, inside: bool) -> int:
    """The largest set of tensors that are whole at one time, whatever is done."""
    state = sum(array.nbytes for array in graph.state.values())
    outer = set() if inside else {*graph.inputs, *graph.outputs}
    elsewhere = {*graph.consts, *graph.state, *graph.updates.values(), *outer}
    base = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def together(names: Iterable[str]) -> int:
        roots = set()
        for name in names:
            while name in base:
                name = base[name]
            roots.add(name)
        return sum(graph.types[name].nbytes for name in roots - elsewhere if name)

    sides = [together(graph.inputs), sum(graph.types[name].nbytes for name in set(graph.outputs) - outer)]
    parts = _parts(graph)
    readers = _readers(graph)
    for nodes in groups_of(graph):
        made = {name for node in nodes for name in node.outputs}
        read = {name for node in nodes for name in node.inputs if name} - made
        if _whole(graph, nodes, read):
            own = {id(node) for node in nodes}
            kept = {name for name in made if name and (len(nodes) == 1 or readers.get(name, set()) - own)}
            sides += [together(read - parts), together(kept - parts)]
    return state + max(sides, default=0)


def _parts(graph: Graph) -> set[str]:
    """Tensors that may be nothing but places in others."""
    return {name for node in graph.nodes if _places(graph, node) for name in (*node.inputs, *node.outputs)}


def _places(graph: Graph, node: Node) -> bool:
    return not registry.get(node.op).view and not registry.get(node.op).regions and alias_of(graph, node) is not None


def _whole(graph: Graph, nodes: Sequence[Node], read: Iterable[str]) -> bool:
    """Whether a kernel of its own reads and writes whole tensors."""
    first = registry.get(nodes[0].op)
    if first.view or (len(nodes) == 1 and _places(graph, nodes[0])):
        return False
    return bool(first.regions) or not any(
        row_window(graph, nodes, name) for name in read if name not in graph.consts and name in graph.types
    )


def _readers(graph: Graph) -> dict[str, set[int]]:
    """Who reads a tensor: identities of nodes, and of the graph where it keeps or returns it."""
    found: dict[str, set[int]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            found.setdefault(name, set()).add(id(node))
    for name in (*graph.outputs, *graph.updates.values()):
        found.setdefault(name, set()).add(id(graph))
    return found
