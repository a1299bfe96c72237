# SPDX-License-Identifier: Apache-2.0
"""Memory budgets of a network: the price of flash and RAM, the capacity of boards, and lower bounds on the memory
needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.base.operating_system import quote_argument
from microc.codegen.c.resources import estimate_library_flash_bytes, estimate_max_code_bytes, storage_code_bytes
from microc.compiler.options import Options
from microc.device.boards import list_boards, load_board
from microc.errors import FitError, UsageError
from microc.graph.ir import Graph, Node
from microc.graph.text import nested_graphs
from microc.isa import CORES, FAMILIES
from microc.module import Arithmetic, Module
from microc.ops import registry
from microc.ops.lowering import node_macs
from microc.plan.code_and_constants import list_read_buffers, list_storable_constants
from microc.plan.liveness import Unit, compute_lifetimes, count_covered_addresses
from microc.plan.plan import FAST_FLASH
from microc.schedule.rules.rule import FAST_MATH, HALF_FLOATS, HALF_MATH, HALF_WEIGHTS, THREADS
from microc.target import SIZE, SPEED, Board, CodeMemory, FlashMemory, Goal, Memory, Storage, Target
from microc.transform.quantised.qdq import has_integer_form
from microc.transform.quantised.weight_types import count_16_bit_weights, find_overflowing_weights

# ---- Hints for a network that does not fit: quantise the network, choose a larger board, raise the budget.

MARGIN = 2
"""Minimum ratio of a board's memory to the known need of the network, for boards that a hint names. The margin covers
code and stack, whose sizes differ between cores."""
SHOWN = 3  # maximum number of boards that a hint names


def make_misfit_hint(
    source: str,
    needed_flash: int,
    needed_ram: int,
    board: str = "",
    *,
    computes_in_floats: bool = False,
    io_in_arena: bool = False,
) -> str:
    """Return the hint for a network that does not fit, with the most promising measure first.

    ``source``: the model, as commands accept it. ``needed_flash``, ``needed_ram``: lower bounds on the bytes needed, or
    0 if that memory is large enough. ``board``: the board that is too small; empty if a budget is too small.
    ``computes_in_floats``: the network computes in floats, which take four bytes each. ``io_in_arena``: inputs and
    outputs are in the arena and could be moved to buffers of the caller.
    """
    measures = []
    if computes_in_floats:
        target = f" --board {board}" if board else ""
        output = quote_argument(str(Path(source).with_suffix(".mcg")))
        measures.append(
            f"quantise it to integers (microc quantize {quote_argument(source)} --data SAMPLES{target} -o {output})"
        )
    if board:
        names = [
            name for _, name in zip(range(SHOWN), list_larger_boards(needed_flash, needed_ram, board), strict=False)
        ]
        measures.append(f"choose a larger board (--board {', '.join(names)})" if names else "choose a smaller network")
    else:
        measures.append("raise the budget, or leave it out to see what is needed")
    if io_in_arena:
        measures.append("move inputs and outputs into buffers of the caller (--io caller)")
    return "; ".join(measures)


def list_larger_boards(needed_flash: int, needed_ram: int, too_small_board: str = "") -> Iterator[str]:
    """Yield the names of boards whose memory is at least :data:`MARGIN` times the needed flash and RAM.

    ``needed_flash``, ``needed_ram``: in bytes. ``too_small_board``: the name of a board that is too small. Boards of
    its family (Arduino core or PlatformIO platform) come first, then boards that are supported by one of its build
    systems, then emulated boards. Within each class the boards with the least RAM come first.
    """
    known = list_boards()
    small_board = load_board(too_small_board) if too_small_board in known else None
    families, systems = (
        (_board_families(small_board), set(small_board.ids)) if small_board else (set[str](), set[str]())
    )

    def preference_key(board: Board) -> tuple[bool, bool, bool, int, int]:
        stranger = families.isdisjoint(_board_families(board))
        return (stranger, systems.isdisjoint(board.ids), not board.virtual, board.ram_bytes, board.flash_bytes)

    for board in sorted(map(load_board, known), key=preference_key):
        if (
            board.regions
            and region_bytes(board, "flash") >= MARGIN * needed_flash
            and region_bytes(board, "ram") >= MARGIN * needed_ram
        ):
            yield board.name


def region_bytes(board: Board, kind: str) -> int:
    """Return the bytes for a firmware in the board's memory of a kind (``flash`` or ``ram``). 0: unlimited.

    The linker script places code or variables in the first region of the kind, and constants in others that hold such.
    """
    if kind == "flash":
        return sum(region.size for region in board.flash_memories)
    return next((region.size for region in board.regions if region.kind == kind), 0)


def _board_families(board: Board) -> set[str]:
    """Return the families to which build systems assign a board: its Arduino core and its PlatformIO platform."""
    arduino, platformio = board.ids.get("arduino", ""), board.ids.get("platformio")
    names = {arduino.rpartition(":")[0]} if arduino else set()
    return names | ({platformio["platform"]} if platformio else set())


# ---- Float arithmetic of a network: the permitted approximations, the number of float multiply-accumulates, and the reasons why
# layers compute in floats.

_SHOWN = 8  # maximum number of layers whose reasons are reported


def with_math_features(target: Target, options: Options) -> Target:
    """Return the target with additional features for the float arithmetic that the options permit and for the use of
    threads, and with the number of cores that the network uses.

    Schedule rules test these features. Raises UsageError if the options request float16 arithmetic on a core without a
    float16 unit or together with dynamic sizes, and if they request more cores than there are.
    """
    if options.math == "half" and not target.has(HALF_FLOATS):
        able = ", ".join(name for name, core in CORES.items() if HALF_FLOATS in core.has)
        raise UsageError(
            f"math half: {target.cpu} does not compute in float16, expected a core with a float16 unit",
            hint=f"choose one of {able}; or use weight_dtype float16, which stores weights in two bytes on every core",
        )
    if options.math == "half" and options.bounds:
        raise UsageError(
            f"math half: float16 schedules need fixed sizes; got bounds of {', '.join(map(str, options.bounds))}, "
            "expected none",
            hint="fix the sizes with input_shapes, or leave out math",
        )
    features = {
        FAST_MATH: options.math in ("fast", "half"),
        HALF_MATH: options.math == "half",
        HALF_WEIGHTS: options.weight_dtype in dtypes.HALF,
        THREADS: options.threads > 1,
    }
    if options.cores > target.max_cores:
        raise UsageError(
            f"cores: got {options.cores}, expected 1 on {target.cpu} of a board with one core, or without a board",
            hint="leave out cores, or choose a board with two, such as raspberry-pi-pico or the emulated mps2-an521",
        )
    if options.cores > 1 and options.relocatable:
        raise UsageError(
            f"cores: got {options.cores}, expected 1 for a relocatable network: the firmware that it is sent to starts no core",
            hint="leave out cores or relocatable",
        )
    target = replace(target, cores=options.cores)
    return target.with_features(*(name for name, wanted in features.items() if wanted))


def summarise_arithmetic(graph: Graph, weight_dtype: str = "") -> Arithmetic:
    """Summarise the arithmetic of a graph after all passes.

    The summary contains the reasons why layers compute in floats, for the layers with the most multiply-accumulates.
    ``weight_dtype``: the dtype float16 or bfloat16 to which weights were rounded, else empty.
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
        reasons=tuple(_list_float_reasons(graph, layers)),
        half_weights=count_16_bit_weights(graph) if weight_dtype in dtypes.HALF else 0,
        wide_weights=find_overflowing_weights(graph, weight_dtype) if weight_dtype in dtypes.HALF else (),
        double_weights=_count_double_weights(graph),
        float_scaled=sum(graph.types[name].size for node in scaled for name in node.outputs),
    )


def advises_quantisation(arithmetic: Arithmetic, *, learns: bool) -> bool:
    """Test whether quantisation is to be recommended: the network computes in floats.

    The layers that a network learns compute in floats; if its others are integers, there is nothing to quantise."""
    return arithmetic.float_macs > 0 and not (learns and arithmetic.float_macs < arithmetic.macs)


def _count_double_weights(graph: Graph) -> int:
    """Count the int16 weights that are multiplied by one-byte data. They result from 9-bit weights, which occur in no
    model file."""
    names = {
        node.inputs[1]
        for node in graph.nodes
        if registry.is_layer(node) and dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1
    }
    return sum(graph.types[name].size for name in names & graph.consts.keys() if graph.types[name].dtype == "int16")


def _count_float_macs(graph: Graph, node: Node) -> int:
    """Count the float multiply-accumulates of one run of a node. For a control-flow node, its multiply-accumulates are
    multiplied by the fraction that is float in its bodies."""
    macs = node_macs(graph, node)
    if not macs:
        return 0
    regions = registry.get(node.op).regions
    if not regions:
        return macs if dtypes.is_float(graph.types[node.inputs[0]].dtype) else 0
    inside = [summarise_arithmetic(node.attr(name)) for name in regions]
    return macs * sum(part.float_macs for part in inside) // max(1, sum(part.macs for part in inside))


def _list_float_reasons(graph: Graph, layers: list[Node]) -> Iterator[str]:
    """Yield the reasons why layers compute in floats, in the order of ``layers``. If nothing is quantised, there is one
    reason."""
    if not layers:
        return
    if all(kind.quant is None for kind in graph.types.values()):
        yield "nothing in the network is quantised"
        return
    producers = graph.producer()
    for node in layers[:_SHOWN]:
        number = node.loc.index if node.loc.index >= 0 else node.outputs[0]
        yield f"{node.op} {number}: {_explain_float_layer(graph, producers.get(node.inputs[0]))}"
    if len(layers) > _SHOWN:
        yield f"and {len(layers) - _SHOWN} layers more"


def _explain_float_layer(graph: Graph, producer: Node | None) -> str:
    """Return the reason why a layer computes in floats. ``producer``: the node that computes the layer's data input."""
    if producer is None:
        return "what it reads is not quantised"
    if producer.op == "dequantize":
        return "its weights or its result are not quantised"
    form = "" if has_integer_form(producer, graph) else ", which has no integer form"
    return f"it reads floats of {producer.op}{form}"


# ---- The price of flash, and the capacity of boards.
#
# The price of flash is the number of executed instructions that one byte of flash is worth. Schedules are chosen at this
# price. The goal ``balanced`` values 1 % of the network's time at FLASH_PER_TIME % of its flash. It estimates the time by the
# number of multiply-accumulates, so that its price is MACs / (bytes of weights + CODE_OVERHEAD) / FLASH_PER_TIME. A network
# that exceeds its flash budget is compiled again at higher and higher prices, and at last at an infinite price. Then
# :mod:`microc.compiler.fit.moves` chooses a price for each kernel.

FLASH_PER_TIME = 4
"""Percent of flash that 1 % of time is worth. Flash is valued less than time, because boards have more flash than
networks need, and because time costs energy too."""
MEMORY_PER_TIME = {"speed": float("inf"), "balanced": float(FLASH_PER_TIME), "size": 1.0}
"""Percent of memory that 1 % of time is worth for each goal, when variants of a graph are compared."""
COMPUTER_FACTOR = 10.0
"""Factor on :data:`MEMORY_PER_TIME` for computers, where memory is plentiful and only caches are small."""
CODE_OVERHEAD = 16 * 1024
"""Bytes of code of a typical network. They are added to the bytes of weights, so that the price of a byte stays bounded
for networks with few weights."""
FIRMWARE_RAM = 4 * 1024
"""Bytes of RAM that a typical firmware needs in addition to the arena: stack and buffers of its communication ports."""
CERTAIN_CODE_SHARE = 0.75
"""Fraction of the estimated code size that is taken as a lower bound. A network is refused only if even this part of
its code does not fit."""
CYCLES_PER_MAC, CYCLES_PER_MAC_WITH_WAITS = 0.7, 1.5
"""Time of a multiply-accumulate in the price of flash on cores that issue two instructions at once, and on other cores that wait
for their flash, whose schedules are ranked by cycles, too; where instructions rank them it is one instruction. On Cortex-M7 four
networks of MLPerf Tiny take 0.53 to 0.77 cycles for one, 0.7 times the instructions of an M4. An M4 with five wait states
(nucleo-f446re) takes 1.4 to 1.6 times as many cycles as instructions in nine int8 and int16 networks, by estimates."""
PRICE_STEPS = (1, 8, 64)
"""Multiples of the balanced price of flash at which a network over its flash budget is built."""
SIZE_PRICE = 256
"""Multiple of the balanced price of flash for the goal ``size``: 1 % of flash is worth 64 % of time. Seven
networks on Cortex-M0, M4 and M55 take a sixth less code at 512 times than at 64 times the balanced price, but 1.24 times
the instructions. An infinite price would give up any time for a byte."""


@frozen
class BoardCapacity:
    """Memory of a board that is available to a network, in bytes; 0: unlimited.

    - ``flash``: for constants and code; ``ram``: for the arena and for inputs and outputs outside of the arena.
    - ``board``: name of the board if a network that exceeds the capacity is refused, else empty.
    - ``flash_limit``: upper bound on the constants. It applies even if the code is smaller than estimated.
    - ``board_total``: flash and RAM of the whole board.
    - ``memories``: all memories for tensors, if the board has several. The first is the one that ``ram`` describes.
    - ``code``: the memory from which hot code may run. Its size is what remains after everything except arenas is
      placed.
    - ``flash_regions``: all flash regions for constants. The size of the one with the code is what the firmware leaves
      to its network.
    - ``storage``: the memory that the core cannot address, for constants for which the flash has no room.
    """

    flash: int = 0
    ram: int = 0
    board: str = ""
    flash_limit: int = 0
    board_total: tuple[int, int] = (0, 0)
    memories: tuple[Memory, ...] = ()
    code: CodeMemory | None = None
    flash_regions: tuple[FlashMemory, ...] = ()
    storage: Storage | None = None

    @property
    def all_ram(self) -> int:
        """Number of bytes for tensors in all memories; 0: unlimited."""
        return self.ram + sum(memory.size for memory in self.memories[1:])


def arena_memories(module: Module, options: Options, capacity: BoardCapacity | None) -> tuple[Memory, ...]:
    """Return the memories in which arenas may be placed; empty if the network has a single arena.

    The size of the first memory is reduced by inputs and outputs outside of the arena, and limited by the RAM budget.
    Most boards have a single arena. A relocatable network has one too, which the firmware that loads it provides.
    """
    if capacity is None or not capacity.memories or options.relocatable:
        return ()
    first, *others = capacity.memories
    size = max(first.size - (0 if options.io_in_arena else io_bytes(module)), 0)
    return replace(first, size=min(size, options.ram) if options.ram else size), *others


def constant_regions(
    modules: Sequence[Module],
    capacity: BoardCapacity | None,
    flash_wait: float,
    *,
    relocatable: bool = False,
    budget: int = 0,
) -> tuple[FlashMemory, ...]:
    """Return the flash regions for the constants of a firmware's networks; one of any size without a board.

    The size of the region with the code is reduced by all kernels, if constants may be elsewhere. Constants of a
    relocatable network are beside its code. ``flash_wait``: cycles that the core waits for a byte of flash, without a
    board. ``budget``: most bytes of flash for code and constants (0: unlimited); constants beyond are stored.
    """
    regions = capacity.flash_regions if capacity is not None else ()
    storage = capacity.storage if capacity is not None and not relocatable else None
    if not regions:
        regions = (replace(FAST_FLASH, wait=flash_wait),)
    if relocatable or (len(regions) == 1 and storage is None):
        return regions[:1]
    code = sum(map(estimate_max_code_bytes, modules)) + estimate_library_flash_bytes(modules)
    if storage is not None:
        code += storage_code_bytes(sum(len(list_storable_constants(module)) for module in modules))
    tests = sum(module.self_test.nbytes for module in modules if module.self_test)
    taken = [(code if r.code else 0) + (tests if r is regions[0] else 0) for r in regions]
    room = budget - sum(map(code_bytes, modules)) if storage is not None and budget else FAST_FLASH.size
    sizes: list[int] = []
    for region, used in zip(regions, taken, strict=True):
        sizes.append(max(min(region.size - used, room - sum(sizes)), 0))
    return tuple(replace(region, size=size) for region, size in zip(regions, sizes, strict=True))


def storage_for_constants(options: Options, capacity: BoardCapacity | None) -> Storage | None:
    """Return the storage for constants for which the flash has no room; None for a relocatable network, which keeps them
    beside its code."""
    return None if capacity is None or options.relocatable else capacity.storage


def io_bytes(module: Module) -> int:
    """Return the number of bytes of a module's inputs and outputs."""
    return sum(module.values[name].nbytes for name in (*module.inputs, *module.outputs))


def count_macs(graph: Graph) -> int:
    """Count the multiply-accumulates of one inference."""
    return sum(node_macs(graph, node) for node in graph.nodes)


def list_goals_to_try(graph: Graph, options: Options, target: Target) -> tuple[Goal, ...]:
    """Return the requested goal, followed by the goals to try in turn while the network exceeds its flash budget.

    Computers have no flash limit, so the goal ``balanced`` becomes ``speed`` there.
    """
    weights = sum(array.nbytes for each in (graph, *nested_graphs(graph)) for array in each.consts.values())
    waiting = CYCLES_PER_MAC_WITH_WAITS if target.waits_for_flash else 1.0
    time = CYCLES_PER_MAC if target.core.pipeline is not None else waiting
    price = time * max(count_macs(graph), 1) / (weights + CODE_OVERHEAD) / FLASH_PER_TIME
    steps = (SPEED, *(Goal("balanced", price * step) for step in PRICE_STEPS))
    family = FAMILIES[target.isa]
    # RISC-V lists computers but has microcontrollers without threads; portable C has threads but lists no computer.
    computer = family.threads and bool(family.computers)
    wanted = SPEED.name if options.optimize == "balanced" and computer else options.optimize
    if wanted == SIZE.name:
        return Goal(SIZE.name, price * SIZE_PRICE), SIZE
    return *steps[next(k for k, goal in enumerate(steps) if goal.name == wanted) :], SIZE


def memory_time_exchange_rate(options: Options, target: Target) -> float:
    """Return the percent of memory that 1 % of time is worth, for the optimisation goal and the type of core."""
    return MEMORY_PER_TIME[options.optimize] * (COMPUTER_FACTOR if FAMILIES[target.isa].threads else 1)


def code_bytes(module: Module) -> int:
    """Return the estimated number of bytes of machine code of a module's kernels."""
    return sum(kernel.code_bytes for kernel in module.kernels)


def arena_bytes(module: Module) -> int:
    """Return the number of bytes of a planned module's arena. If there are several arenas, the one in the memory of the
    stack counts."""
    assert module.plan is not None
    return module.plan.main_arena_size


def outside_arena_bytes(module: Module) -> int:
    """Return the number of bytes of a planned module's inputs and outputs that are outside of its arena."""
    assert module.plan is not None
    return sum(module.values[n].nbytes for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets)


def arena_limit(module: Module, options: Options, capacity: BoardCapacity | None) -> int:
    """Return the most bytes of the arena in the memory of the stack: the RAM budget, and what the board's RAM has beside
    inputs and outputs outside of the arena; 0: unlimited."""
    limits = [options.ram] if options.ram else []
    if capacity is not None and capacity.ram:
        # If inputs and outputs alone fill the board's RAM, the limit is 1 byte, so that no arena fits.
        limits.append(max(capacity.ram - (0 if options.io_in_arena else io_bytes(module)), 1))
    return min(limits, default=0)


def flash_bytes(module: Module) -> int:
    """Return the number of bytes of flash for a module's constants and its estimated code."""
    return module.const_bytes + code_bytes(module)


def relative_cost(candidate: Module, baseline: Module, time_exponent: float, time_unit: str) -> float:
    """Return the cost of the planned module ``candidate`` relative to the planned module ``baseline``.

    The cost is ram * flash * time ** ``time_exponent``, where each factor is the ratio between the two modules.
    ``time_exponent``: percent of memory that 1 % of time is worth (:func:`memory_time_exchange_rate`). ``time_unit``:
    ``instructions`` or ``cycles``, by which the core's schedules are ranked. The RAM and flash of a typical firmware are
    added to those of the network. Otherwise, saving a few bytes of a small network would justify any loss of time.
    """
    time = candidate.estimated_time(time_unit) / max(baseline.estimated_time(time_unit), 1)
    if time_exponent == float("inf"):
        return time
    assert candidate.plan is not None and baseline.plan is not None
    ram = (candidate.plan.size + FIRMWARE_RAM) / (baseline.plan.size + FIRMWARE_RAM)
    flash = (flash_bytes(candidate) + CODE_OVERHEAD) / (flash_bytes(baseline) + CODE_OVERHEAD)
    return float(ram * flash * time**time_exponent)


def workspace_limits(arena_limit: int, module: Module, key_by_layer: Mapping[str, str]) -> dict[str, int]:
    """Return the maximum workspace of each kernel in bytes, by kernel key, so that an arena of ``arena_limit`` bytes
    suffices.

    A kernel may compute several layers. The maximum is the smallest number of bytes that the live tensors leave free in
    any of these layers. ``key_by_layer``: the kernel key of each layer.
    """
    workspaces: dict[str, int] = {}
    for call, (tensors, _) in zip(module.calls, live_tensor_and_workspace_bytes(module), strict=True):
        key = key_by_layer.get(call.layer)
        if key is not None:
            workspaces[key] = min(workspaces.get(key, arena_limit), arena_limit - tensors)
    return workspaces


def live_tensor_and_workspace_bytes(module: Module) -> list[tuple[int, int]]:
    """Return two numbers of bytes for each call of a planned module: the part of the arena that contains live tensors
    and constants from storage while the call runs, and the workspaces of the call."""
    assert module.plan is not None
    live: list[list[tuple[int, int]]] = [[] for _ in module.calls]
    for name, (first, last) in compute_lifetimes(module, io_in_arena=module.plan.io_in_arena).items():
        offset = module.plan.offsets[name]
        for step in range(max(first, 0), min(last, len(live) - 1) + 1):
            live[step].append((offset, offset + module.values[name].nbytes))
    for buffer in _list_planned_read_buffers(module):
        for step in range(buffer.first, buffer.last + 1):
            live[step].append((module.plan.offsets[buffer.name], module.plan.offsets[buffer.name] + buffer.size))
    scratch = [sum(module.values[name].nbytes for name in call.workspace) for call in module.calls]
    return [(count_covered_addresses(live) - own, own) for live, own in zip(live, scratch, strict=True)]


def _list_planned_read_buffers(module: Module) -> tuple[Unit, ...]:
    """Return the buffers of a planned module's constants from storage, with the calls in which they are alive."""
    plan = module.plan
    assert plan is not None
    return list_read_buffers(module, {name: plan.copies[name] for name in plan.stored_offsets})


def count_read_buffer_bytes(module: Module) -> list[int]:
    """Return for each call of a planned module the bytes of the buffers of constants from storage that are alive."""
    alive = [0] * len(module.calls)
    for buffer in _list_planned_read_buffers(module):
        for step in range(buffer.first, buffer.last + 1):
            alive[step] += buffer.size
    return alive


def min_flash_bytes(module: Module) -> int:
    """Return a lower bound on the bytes of flash for a module's constants and code."""
    return module.const_bytes + int(CERTAIN_CODE_SHARE * code_bytes(module))


def make_flash_error(module: Module, flash: int) -> FitError:
    """Create the error for a network that exceeds its flash budget with every schedule. ``flash``: the budget in
    bytes."""
    excess = flash_bytes(module) - flash
    return FitError(
        f"a flash budget of {flash} bytes cannot hold {module.const_bytes} bytes of weights and about {code_bytes(module)} "
        f"of code ({excess} too many)",
        where=module.source or module.name,
        hint=f"raise it to --flash {-(-flash_bytes(module) // 1024)}K, or choose a smaller or quantised network",
    )


def refuse_large_read_buffers(module: Module, limit: str, excess: int) -> None:
    """Raise FitError if a planned module exceeds its RAM by ``excess`` bytes because of the weights that a layer reads from
    storage. ``limit``: the board or budget that is exceeded."""
    assert module.plan is not None
    if module.plan.storage is None:
        return
    buffers = [
        sum(module.values[name].nbytes for name in {*call.args} & module.plan.stored_offsets.keys())
        for call in module.calls
    ]
    needs = [tensors + own for tensors, own in live_tensor_and_workspace_bytes(module)]
    most = max(range(len(needs)), key=needs.__getitem__)
    if buffers[most]:
        raise FitError(
            f"{module.source or module.name} does not fit {limit}: layer {module.calls[most].layer} needs {needs[most]} bytes of "
            f"RAM, {buffers[most]} of them for the weights that it reads from {module.plan.storage.memory} ({excess} too many)",
            where=module.calls[most].layer,
            hint="choose a board with more flash or RAM, or a smaller network",
        )
