"""Costs and bounds of a network's memory: the worth of flash and RAM, the capacity of boards, lower bounds on the need."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.lowering.kernel_selection import groups_of, node_alias
from microc.compiler.options import Options
from microc.device.boards import list_boards, load_board
from microc.errors import FitError, UnsupportedError, UsageError
from microc.graph.ir import Graph, Node
from microc.graph.text import nested_graphs
from microc.graph.text import nested_graphs as graphs_inside
from microc.isa import CORES, FAMILIES
from microc.module import Arithmetic, Module
from microc.ops import registry
from microc.ops.lowering import node_macs, row_window
from microc.ops.matrix.gemm import recover_quantised_weights
from microc.plan.liveness import count_covered_addresses, lifetimes
from microc.schedule.rules.rule import FAST_MATH, HALF_FLOATS, HALF_MATH, HALF_WEIGHTS, THREADS
from microc.target import SIZE, SPEED, Board, CodeMemory, Goal, Memory, Target
from microc.transform.attention import block_attention, find_attention
from microc.transform.quantised.qdq import has_integer_form
from microc.transform.quantised.weight_types import count_16_bit_weights, find_overflowing_weights

# ---- Hints for a network that does not fit: quantise it, choose a larger board, raise the budget.

MARGIN = 2
"""Factor between a board's memory and the known need, for boards named in hints: code and stack differ from core to core."""
SHOWN = 3  # boards that a hint names


def fit_hint(
    source: str,
    needed_flash: int,
    needed_ram: int,
    board: str = "",
    *,
    computes_in_floats: bool = False,
    io_in_arena: bool = False,
) -> str:
    """Return a hint for a network that does not fit, the most promising measure first.

    ``needed_flash``, ``needed_ram``: bytes needed at least, 0 if there is enough. ``source``: the model as commands
    take it. ``board``: the board that is too small, empty if a budget is. ``computes_in_floats``: the network computes
    in floats, four bytes a number; ``io_in_arena``: inputs and outputs are in the arena and could move to the caller's
    buffers."""
    measures = []
    if computes_in_floats:
        target = f" --board {board}" if board else ""
        output = shlex.quote(str(Path(source).with_suffix(".mcg")))
        measures.append(
            f"make it one of integers (microc quantize {shlex.quote(source)} --data SAMPLES{target} -o {output})"
        )
    if board:
        names = [name for _, name in zip(range(SHOWN), larger_boards(needed_flash, needed_ram, board), strict=False)]
        measures.append(f"choose a larger board (--board {', '.join(names)})" if names else "choose a smaller network")
    else:
        measures.append("raise the budget, or leave it out to see what is needed")
    if io_in_arena:
        measures.append("keep inputs and outputs elsewhere (--io caller)")
    return "; ".join(measures)


def larger_boards(flash: int, ram: int, too_small: str = "") -> Iterator[str]:
    """Yield the names of boards that have this memory (bytes) and a margin; ``too_small``: the board that is not enough.

    Boards of its family come first (Arduino's core, PlatformIO's platform), then boards that one of its build systems
    knows, then emulated ones; within each, the smallest first."""
    known = list_boards()
    small_board = load_board(too_small) if too_small in known else None
    families, systems = (
        (_board_families(small_board), set(small_board.ids)) if small_board else (set[str](), set[str]())
    )

    def preference_key(board: Board) -> tuple[bool, bool, bool, int, int]:
        stranger = families.isdisjoint(_board_families(board))
        return (stranger, systems.isdisjoint(board.ids), not board.virtual, board.ram_bytes, board.flash_bytes)

    for board in sorted(map(load_board, known), key=preference_key):
        if (
            board.regions
            and region_bytes(board, "flash") >= MARGIN * flash
            and region_bytes(board, "ram") >= MARGIN * ram
        ):
            yield board.name


def region_bytes(board: Board, kind: str) -> int:
    """Return the bytes of the first region of a kind (``flash`` or ``ram``), which the linker fills; 0: unlimited."""
    return next((region.size for region in board.regions if region.kind == kind), 0)


def _board_families(board: Board) -> set[str]:
    """Return the families that build systems put a board in: Arduino's core, PlatformIO's platform."""
    arduino, platformio = board.ids.get("arduino", ""), board.ids.get("platformio")
    names = {arduino.rpartition(":")[0]} if arduino else set()
    return names | ({platformio["platform"]} if platformio else set())


# ---- Float arithmetic of a network: the permitted approximations, the share of float multiply-accumulates, the reasons.

_SHOWN = 8  # layers whose reasons are reported
_PRODUCTS = ("conv2d", "conv2d_transpose", "dense")


def with_math_features(target: Target, options: Options) -> Target:
    """Add the permitted float arithmetic and the use of threads to the target's features, which schedule rules test.

    Raises UsageError for float16 arithmetic on a core without a float16 unit, and with dynamic sizes.
    """
    if options.math == "half" and not target.has(HALF_FLOATS):
        able = ", ".join(name for name, core in CORES.items() if HALF_FLOATS in core.has)
        raise UsageError(
            f"math half: {target.cpu} does not compute in float16",
            hint=f"choose one of {able}; or use weight_dtype float16, which stores weights in two bytes on every core",
        )
    if options.math == "half" and options.bounds:
        raise UsageError(
            f"math half: no schedule in float16 for sizes that vary; got bounds of {', '.join(map(str, options.bounds))}, "
            "expected fixed sizes",
            hint="bind the sizes with input_shapes, or leave out math",
        )
    features = {
        FAST_MATH: options.math in ("fast", "half"),
        HALF_MATH: options.math == "half",
        HALF_WEIGHTS: options.weight_dtype in dtypes.HALF,
        THREADS: options.threads > 1,
    }
    return target.having(*(name for name, wanted in features.items() if wanted))


def summarise_arithmetic(graph: Graph, weight_dtype: str = "") -> Arithmetic:
    """Summarise the arithmetic of a graph after the passes.

    Reasons for floats are those of the layers with the most products. ``weight_dtype``: the float16 or bfloat16 that
    weights were rounded to, else empty.
    """
    if not any(dtypes.is_float(kind.dtype) for kind in graph.types.values()):
        return Arithmetic(
            sum(node_macs(graph, node) for node in graph.nodes), double_weights=_count_double_weights(graph)
        )
    work = {node.outputs: (node_macs(graph, node), _count_float_macs(graph, node)) for node in graph.nodes}
    layers = sorted((n for n in graph.nodes if work[n.outputs][1]), key=lambda n: -work[n.outputs][1])
    scaled = (n for n in graph.nodes if n.op == "requantize_float")
    return Arithmetic(
        macs=sum(total for total, _ in work.values()),
        float_macs=sum(floats for _, floats in work.values()),
        reasons=tuple(_float_reasons(graph, layers)),
        half_weights=count_16_bit_weights(graph) if weight_dtype in dtypes.HALF else 0,
        wide_weights=find_overflowing_weights(graph, weight_dtype) if weight_dtype in dtypes.HALF else (),
        double_weights=_count_double_weights(graph),
        float_scaled=sum(graph.types[name].size for node in scaled for name in node.outputs),
    )


def _count_double_weights(graph: Graph) -> int:
    """Count int16 weights that multiply bytes: results of 9-bit weights, which no model file contains."""
    names = {
        node.inputs[1]
        for node in graph.nodes
        if node.op in _PRODUCTS and dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1
    }
    return sum(graph.types[name].size for name in names & graph.consts.keys() if graph.types[name].dtype == "int16")


def _count_float_macs(graph: Graph, node: Node) -> int:
    """Count the float multiply-accumulates of one run of a node; for control flow, its bodies' share of them."""
    macs = node_macs(graph, node)
    if not macs:
        return 0
    regions = registry.get(node.op).regions
    if not regions:
        return macs if dtypes.is_float(graph.types[node.inputs[0]].dtype) else 0
    inside = [summarise_arithmetic(node.attr(name)) for name in regions]
    return macs * sum(part.float_macs for part in inside) // max(1, sum(part.macs for part in inside))


def _float_reasons(graph: Graph, layers: list[Node]) -> Iterator[str]:
    """Yield the reasons why layers compute in floats, the largest first; a single one if nothing is quantised."""
    if not layers:
        return
    if all(kind.quant is None for kind in graph.types.values()):
        yield "nothing in the network is quantised"
        return
    producers = graph.producer()
    for node in layers[:_SHOWN]:
        number = node.loc.index if node.loc.index >= 0 else node.outputs[0]
        yield f"{node.op} {number}: {_float_reason(graph, producers.get(node.inputs[0]))}"
    if len(layers) > _SHOWN:
        yield f"and {len(layers) - _SHOWN} layers more"


def _float_reason(graph: Graph, producer: Node | None) -> str:
    """Return the reason why a layer that reads the result of ``producer`` computes in floats."""
    if producer is None:
        return "what it reads is not quantised"
    if producer.op == "dequantize":
        return "its weights or its result are not quantised"
    form = "" if has_integer_form(producer, graph) else ", which has no integer form"
    return f"it reads floats of {producer.op}{form}"


# ---- The price of flash, and the capacity of boards.
#
# A choice of schedules weighs instructions against bytes at a price. ``balanced`` values 1 % of the network's time at
# FLASH_PER_TIME % of its flash. The price then needs no unit and no parameter: a byte is worth
# MACs / (bytes of weights + CODE_OVERHEAD) / FLASH_PER_TIME instructions. A network over its budget is compiled again at ever
# higher prices, last for size alone; :mod:`microc.compiler.fit.moves` then chooses a price for each kernel.

FLASH_PER_TIME = 4
"""Percent of flash that 1 % of time is worth: boards have more flash than networks take, and time is energy too."""
MEMORY_PER_TIME = {"speed": float("inf"), "balanced": float(FLASH_PER_TIME), "size": 1.0}
"""Percent of memory that 1 % of time is worth, by goal, in a choice between variants of a graph."""
COMPUTER_FACTOR = 10.0
"""Factor on :data:`MEMORY_PER_TIME` for computers, where only caches are short of memory."""
CODE_OVERHEAD = 16 * 1024
"""Bytes of code of a usual network, added to its weights: bounds the price of a byte for networks of few weights."""
FIRMWARE_RAM = 4 * 1024
"""Bytes of RAM that a usual firmware takes beside the arena: stack, buffers of its ports."""
CERTAIN_CODE_SHARE = 0.75
"""Share of the estimated code that is certain: a network is refused only if this share does not fit."""
PRICE_STEPS = (1, 8, 64)
"""Multiples of the balanced price at which a network over its budget is built."""


@frozen
class BoardCapacity:
    """The memory of a board that is left to a network: bytes of flash for constants and code, of RAM for the arena and
    inputs outside of it; 0: unlimited.

    ``board``: its name, if a network that takes more is refused. ``flash_limit``: the most that constants may take,
    even if the code proves smaller than estimated. ``capacity``: flash and RAM of the whole board. ``memories``: all
    memories for tensors if the board has several, the one of ``ram`` first. ``code``: the memory that hot code may run
    from, with the bytes that everything except arenas leaves."""

    flash: int = 0
    ram: int = 0
    board: str = ""
    flash_limit: int = 0
    capacity: tuple[int, int] = (0, 0)
    memories: tuple[Memory, ...] = ()
    code: CodeMemory | None = None

    @property
    def all_ram(self) -> int:
        """Bytes for tensors in all memories; 0: unlimited."""
        return self.ram + sum(memory.size for memory in self.memories[1:])


def arena_memories(module: Module, options: Options, capacity: BoardCapacity | None) -> tuple[Memory, ...]:
    """Return the memories that arenas may be in.

    The first one is reduced by inputs and outputs outside of the arena, and limited by the RAM budget. Empty if the
    network has one arena: on most boards, and for a loadable network, whose firmware provides the arena.
    """
    if capacity is None or not capacity.memories or options.relocatable:
        return ()
    first, *others = capacity.memories
    size = max(first.size - (0 if options.io_in_arena else io_bytes(module)), 0)
    return replace(first, size=min(size, options.ram) if options.ram else size), *others


def io_bytes(module: Module) -> int:
    """Return the bytes of a module's inputs and outputs."""
    return sum(module.values[name].nbytes for name in (*module.inputs, *module.outputs))


def count_macs(graph: Graph) -> int:
    """Count the multiply-accumulates of one inference."""
    total = 0
    for node in graph.nodes:
        definition = registry.get(node.op)
        if definition.macs is not None:
            ins = [graph.types[name] for name in node.inputs if name]
            total += definition.macs(node.attrs, ins, [graph.types[name] for name in node.outputs])
    return total


def goal_ladder(graph: Graph, options: Options, target: Target) -> tuple[Goal, ...]:
    """Return the requested goal, then the goals to fall back to over the flash budget.

    Computers have no flash limit: ``balanced`` schedules are those of ``speed`` there.
    """
    weights = sum(array.nbytes for each in (graph, *nested_graphs(graph)) for array in each.consts.values())
    price = max(count_macs(graph), 1) / (weights + CODE_OVERHEAD) / FLASH_PER_TIME
    steps = (SPEED, *(Goal("balanced", price * step) for step in PRICE_STEPS), SIZE)
    family = FAMILIES[target.isa]
    # RISC-V lists computers but has microcontrollers without threads; portable C has threads but lists no computer.
    computer = family.threads and bool(family.computers)
    wanted = SPEED.name if options.optimize == "balanced" and computer else options.optimize
    return steps[next(k for k, goal in enumerate(steps) if goal.name == wanted) :]


def memory_per_time(options: Options, target: Target) -> float:
    """Return how many percent of memory 1 % of time is worth, for the goal of the options and the kind of core."""
    return MEMORY_PER_TIME[options.optimize] * (COMPUTER_FACTOR if FAMILIES[target.isa].threads else 1)


def code_bytes(module: Module) -> int:
    """Return the estimated bytes of machine code of a module's kernels."""
    return sum(kernel.code_bytes for kernel in module.kernels)


def arena_bytes(module: Module) -> int:
    """Return the bytes of a planned module's arena; of several, the one in the memory of the stack."""
    assert module.plan is not None
    return module.plan.main


def outside_arena_bytes(module: Module) -> int:
    """Return the bytes of the inputs and outputs of a planned module that are outside of its arena."""
    assert module.plan is not None
    return sum(module.values[n].nbytes for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets)


def flash_bytes(module: Module) -> int:
    """Return the bytes of a module's constants and estimated code."""
    return module.const_bytes + code_bytes(module)


def relative_cost(candidate: Module, baseline: Module, time_exponent: float) -> float:
    """Return the cost of the module ``candidate`` relative to the module ``baseline``, both planned.

    It is ram * flash * time ** ``time_exponent``, each as a ratio. ``time_exponent``: percent of memory that 1 % of
    time is worth (:func:`memory_per_time`). RAM and flash of a usual firmware are added to the network's own, so that
    small networks do not pay any price in time."""
    time = candidate.instructions / max(baseline.instructions, 1)
    if time_exponent == float("inf"):
        return time
    assert candidate.plan is not None and baseline.plan is not None
    ram = (candidate.plan.size + FIRMWARE_RAM) / (baseline.plan.size + FIRMWARE_RAM)
    flash = (flash_bytes(candidate) + CODE_OVERHEAD) / (flash_bytes(baseline) + CODE_OVERHEAD)
    return float(ram * flash * time**time_exponent)


def workspace_limits(limit: int, module: Module, keys: Mapping[str, str]) -> dict[str, int]:
    """Return for each kernel, by key, the workspace for which an arena of ``limit`` bytes has room in all of its layers.
    ``keys``: the key of each layer's kernel."""
    workspaces: dict[str, int] = {}
    for call, (tensors, _) in zip(module.calls, tensor_and_workspace_bytes(module), strict=True):
        key = keys.get(call.layer)
        if key is not None:
            workspaces[key] = min(workspaces.get(key, limit), limit - tensors)
    return workspaces


def tensor_and_workspace_bytes(module: Module) -> list[tuple[int, int]]:
    """Return for each call of a planned module the bytes of the arena that hold tensors while it runs, and the bytes of
    its workspaces."""
    assert module.plan is not None
    live: list[list[tuple[int, int]]] = [[] for _ in module.calls]
    for name, (first, last) in lifetimes(module, io_in_arena=module.plan.io_in_arena).items():
        offset = module.plan.offsets[name]
        for step in range(max(first, 0), min(last, len(live) - 1) + 1):
            live[step].append((offset, offset + module.values[name].nbytes))
    scratch = [sum(module.values[name].nbytes for name in call.workspace) for call in module.calls]
    return [(count_covered_addresses(live) - own, own) for live, own in zip(live, scratch, strict=True)]


def min_flash_bytes(module: Module) -> int:
    """Return a lower bound of the bytes of a module's constants plus code."""
    return module.const_bytes + int(CERTAIN_CODE_SHARE * code_bytes(module))


def flash_error(module: Module, flash: int) -> FitError:
    """Return the error for a network that exceeds its flash budget with every schedule."""
    excess = flash_bytes(module) - flash
    return FitError(
        f"a flash budget of {flash} bytes cannot hold {module.const_bytes} bytes of weights and about {code_bytes(module)} "
        f"of code ({excess} too many)",
        where=module.source or module.name,
        hint=f"raise it to --flash {-(-flash_bytes(module) // 1024)}K, or choose a smaller or quantised network",
    )


# ---- Lower bounds on flash and RAM, derived from the graph without compiling it.
#
# Every plan, schedule and algorithm needs at least so much. A network above a limit by these bounds would also be refused by
# :mod:`microc.compiler.fit.footprint`, after minutes of work maybe; a network below them may still not fit.
#
# Flash: kernels store weights unchanged, padded, transformed, or packed into four or two bits if there are few distinct values;
# floats that are quantisation levels as integers and scales; floats that 16 bits represent in 16 bits; equal constants once.
# RAM: a result may overwrite an operand, and a chain of layers that runs row by row never holds its inner tensors whole. So the
# arena must hold, beside the state, the largest of: all inputs, all outputs, and for a layer that cannot run row by row its
# operands and its results. Attention in blocks holds no score matrix whole (:mod:`microc.transform.attention`).

LITERAL_ELEMENTS = 16
"""Constants with fewer elements count as 0 bytes: kernels may contain them as literals."""


@frozen
class MemoryBound:
    """Lower bounds in bytes: ``weights`` in flash, ``arena``, and ``outside``: inputs and outputs in the caller's buffers."""

    weights: int
    arena: int
    outside: int

    @property
    def ram(self) -> int:
        return self.arena + self.outside


def memory_bound(graph: Graph, options: Options) -> MemoryBound:
    """Return the lower bounds of the memory that a fused graph needs, however it is compiled."""
    inside = options.io_in_arena
    ends = sum(graph.types[name].nbytes for name in {*graph.inputs, *graph.outputs})
    arena = min(
        _min_arena_bytes(each, count_io=inside) for each in (graph, block_attention(graph, find_attention(graph), 1))
    )
    return MemoryBound(_min_weight_bytes(graph), arena, 0 if inside else ends)


def prove_shortages(lower_bounds: MemoryBound, options: Options, room: BoardCapacity) -> tuple[str, ...]:
    """List the proofs, as text, that a network cannot fit, however it is compiled; an empty list proves nothing.

    ``lower_bounds``: of the network's memory; ``room``: the board's capacity."""
    (flash, ram), found = room.capacity, []
    if room.board and lower_bounds.weights > room.flash_limit > 0:
        found.append(
            f"weights take at least {lower_bounds.weights} bytes, {room.board} has {flash} of flash, "
            f"{room.flash_limit} for weights"
        )
    if room.board and lower_bounds.ram > room.all_ram > 0:
        found.append(
            f"tensors take at least {lower_bounds.ram} bytes, {room.board} has {ram} of RAM, {room.all_ram} for tensors"
        )
    if lower_bounds.weights > options.flash > 0:
        found.append(
            f"a flash budget of {options.flash} bytes cannot hold weights, which take at least {lower_bounds.weights}"
        )
    if lower_bounds.arena > options.ram > 0:
        found.append(f"an arena of {options.ram} bytes cannot hold tensors, which take at least {lower_bounds.arena}")
    return tuple(found)


def refuse_impossible(graph: Graph, source: str, options: Options, capacity: BoardCapacity | None) -> None:
    """Raise FitError if the lower bounds exceed a limit, before any layer is scheduled."""
    least = memory_bound(graph, options)
    reasons = prove_shortages(least, options, capacity or BoardCapacity())
    if reasons:
        too_small = (
            capacity.board
            if capacity and capacity.board and prove_shortages(least, replace(options, flash=0, ram=0), capacity)
            else ""
        )
        limiting = too_small or "its budget"
        floats = bool(summarise_arithmetic(graph).float_macs)
        raise FitError(
            f"{source} does not fit {limiting}: {'; '.join(reasons)}",
            where=source,
            hint=fit_hint(
                source, least.weights, least.ram, too_small, computes_in_floats=floats, io_in_arena=options.io_in_arena
            ),
            details={"weights_at_least": least.weights, "ram_at_least": least.ram},
        )


def refuse_large_arrays(module: Module, target: Target) -> None:
    """Raise FitError if a tensor or the arena exceeds the largest array of the core's compilers."""
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
    """Raise UnsupportedError for float64 values on a core whose ``double`` is 32-bit."""
    size = FAMILIES[target.isa].double_bytes
    if size == 8:
        return
    for inner in (graph, *graphs_inside(graph)):
        locations = {name: inner.place(name) for name in inner.inputs}
        locations |= {name: node.loc for node in inner.nodes for name in (*node.inputs, *node.outputs)}
        for name, loc in locations.items():
            if name and inner.types[name].dtype == "float64":
                raise UnsupportedError(
                    f"{name}: C's double has {size} bytes on {target.cpu}; got float64, expected float32",
                    where=str(loc),
                    hint="cast it to float32 in the model, or choose a board with another core (microc boards)",
                )


def _min_weight_bytes(graph: Graph) -> int:
    """Sum the lower bounds of the constants that kernels read; equal constants count once."""
    used = {name for node in graph.nodes if not registry.get(node.op).view for name in node.inputs}
    sizes = {array.tobytes(): min_constant_bytes(array) for name, array in graph.consts.items() if name in used}
    return sum(sizes.values())


def min_constant_bytes(array: Array) -> int:
    """Return a lower bound of a constant's bytes in flash.

    Wide integers count as 0: they are tables of indices and factors, which kernels may compute or narrow.
    """
    wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2
    if array.size < LITERAL_ELEMENTS or wide or array.dtype.kind not in "iuf":
        return 0
    low, high = array.min(), array.max()
    if low == high:
        return 0  # a literal in the kernel
    if array.dtype == np.float32 and array.ndim > 1 and np.isfinite(array).all():
        levels = recover_quantised_weights(array.reshape(len(array), -1))
        if levels is not None:
            return min(array.nbytes, min_constant_bytes(levels.values) + levels.scales.nbytes)
    if array.dtype.kind in "iu" and int(high) - int(low) < 16:
        return array.size // (2 if int(high) - int(low) >= 4 else 4)  # 4-bit or 2-bit indices
    if array.dtype == np.float32 and any(dtypes.is_exact_in(array, half) for half in dtypes.HALF):
        return array.size * 2
    return array.size * (1 if _spans_byte_range(array) else array.dtype.itemsize)


def _spans_byte_range(array: Array) -> bool:
    """Test whether integers span at most 256 values."""
    return array.dtype.kind in "iu" and int(array.max()) - int(array.min()) < 256


def _min_arena_bytes(graph: Graph, *, count_io: bool) -> int:
    """Return a lower bound of the arena: the largest set of tensors that must be whole at the same time, plus the state.

    ``count_io``: inputs and outputs are in the arena."""
    state = sum(array.nbytes for array in graph.state.values())
    outer = set() if count_io else {*graph.inputs, *graph.outputs}
    elsewhere = {*graph.consts, *graph.state, *graph.updates.values(), *outer}
    base = {node.outputs[0]: node.inputs[0] for node in graph.nodes if registry.get(node.op).view}

    def bytes_of_tensors(names: Iterable[str]) -> int:
        """Sum the bytes of the tensors behind some names; views count as the tensor that they refer to."""
        roots = set()
        for name in names:
            while name in base:
                name = base[name]
            roots.add(name)
        return sum(graph.types[name].nbytes for name in roots - elsewhere if name)

    sides = [bytes_of_tensors(graph.inputs), sum(graph.types[name].nbytes for name in set(graph.outputs) - outer)]
    aliased = _aliased_tensors(graph)
    readers = _tensor_readers(graph)
    for nodes in groups_of(graph):
        made = {name for node in nodes for name in node.outputs}
        read = {name for node in nodes for name in node.inputs if name} - made
        if _needs_whole_tensors(graph, nodes, read):
            own = {id(node) for node in nodes}
            kept = {name for name in made if name and (len(nodes) == 1 or readers.get(name, set()) - own)}
            sides += [bytes_of_tensors(read - aliased), bytes_of_tensors(kept - aliased)]
    return state + max(sides, default=0)


def _aliased_tensors(graph: Graph) -> set[str]:
    """Return the tensors that may be parts of others, or composed of others, without a copy."""
    return {name for node in graph.nodes if _is_alias(graph, node) for name in (*node.inputs, *node.outputs)}


def _is_alias(graph: Graph, node: Node) -> bool:
    """Test whether a node may be done by placing tensors (concatenation, slice), though it is no view."""
    return not registry.get(node.op).view and not registry.get(node.op).regions and node_alias(graph, node) is not None


def _needs_whole_tensors(graph: Graph, nodes: Sequence[Node], read_values: Iterable[str]) -> bool:
    """Test whether a kernel reads and writes whole tensors: it is not a view and cannot run row by row."""
    first = registry.get(nodes[0].op)
    if first.view or (len(nodes) == 1 and _is_alias(graph, nodes[0])):
        return False
    return bool(first.regions) or not any(
        row_window(graph, nodes, name) for name in read_values if name not in graph.consts and name in graph.types
    )


def _tensor_readers(graph: Graph) -> dict[str, set[int]]:
    """Return the readers of each tensor: ids of nodes, and the id of the graph if it keeps or returns the tensor."""
    readers: dict[str, set[int]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, set()).add(id(node))
    for name in (*graph.outputs, *graph.updates.values()):
        readers.setdefault(name, set()).add(id(graph))
    return readers
