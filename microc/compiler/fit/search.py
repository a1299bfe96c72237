# SPDX-License-Identifier: Apache-2.0
"""Fit of a firmware into a board: its memory added up, and the search for a configuration that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from microc.base.immutable import frozen
from microc.codegen.c.c_statements import core_count_of
from microc.codegen.c.interface import DEFAULT_ALIGNMENT
from microc.codegen.c.resources import (
    STORAGE_RAM_BYTES,
    estimate_library_flash_bytes,
    estimate_max_code_bytes,
    min_and_max_flash_without_networks,
    stack_bound,
    static_ram_without_networks,
    storage_code_bytes,
)
from microc.codegen.project.board_files import core1_stack_bytes
from microc.codegen.project.firmware import shared_arena
from microc.codegen.project.protocols import max_payload, receive_buffer_size
from microc.compiler.cache import find_choice_file
from microc.compiler.fit.budget import (
    CERTAIN_CODE_SHARE,
    BoardCapacity,
    advises_quantisation,
    arena_bytes,
    arena_limit,
    arena_memories,
    code_bytes,
    constant_regions,
    count_macs,
    flash_bytes,
    list_goals_to_try,
    list_larger_boards,
    make_misfit_hint,
    memory_time_exchange_rate,
    outside_arena_bytes,
    refuse_large_read_buffers,
    region_bytes,
    relative_cost,
    storage_for_constants,
    summarise_arithmetic,
)
from microc.compiler.fit.striping import ChainLowering, LoweredChain, StripeSearch
from microc.compiler.interaction import Progress
from microc.compiler.lowering.external_layers import NetworkDivision
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_builder import (
    CompiledNetwork,
    Configuration,
    KernelBuilder,
    append_channel_constants,
    merge_kernels,
)
from microc.compiler.lowering.kernel_selection import add_estimates
from microc.compiler.lowering.module_builder import (
    collect_io_fields,
    firmware_fingerprint,
    place_hot_code,
    separate_learning,
)
from microc.compiler.options import Options
from microc.errors import FitError, ToolError
from microc.graph.ir import Graph
from microc.module import Module, Streaming, Trial
from microc.plan.plan import plan_module
from microc.schedule.cost.cost_model import time_unit_of
from microc.target import Board, Target
from microc.transform.pass_context import write_graph

if TYPE_CHECKING:
    from microc.compiler.sizes.family import NetworkFamily


# ---- Check that a firmware fits a board, by adding up its memory before any file is written.
#
# The sizes of code are estimates. Therefore linking may still fail (:func:`convert_link_overflow_error`).


SPARE = 96
"""Bytes of each memory that the planner leaves free, for alignment and for variables of the C library."""
CORE1_RAM = 160
"""Bytes of the second core's mailbox, vector table and clock, without its stack, unless the board's file says ``static_bytes``:
96 as linked for mps2-an521, and 64 for the alignment of the table."""
RUNTIME_RAM = 48
"""Bytes of small variables of the runtime, without the ring buffer of the console and the two frame buffers of the
RPC."""
FRAME_OVERHEAD = 12  # bytes of an RPC frame in addition to its payload
KINDS = ("flash", "ram")


@frozen
class Footprint:
    """Flash and RAM that a firmware needs, in bytes.

    - ``code``: an upper estimate until the firmware is linked; ``least_code``: a lower estimate.
    - ``weights`` (without weights in a memory region for an accelerator), ``arena`` and ``buffers`` are exact.
    - ``arena``: all arenas in the memory of the stack. The planner has already fitted the arenas in other memories.
    - ``stack``: upper bound on the stack of a run and its callers (:mod:`microc.codegen.c.resources`).
    - ``reserved_stack``: bytes that the board's linker script reserves for the stack.
    - ``runtime``: variables of the console and of the RPC.
    - ``hot_code``: code that is executed from RAM.
    - ``linked_ram``: variables and arena as the linker reports them; 0 before linking.
    """

    weights: int
    self_test: int
    code: int
    arena: int
    buffers: int
    stack: int
    reserved_stack: int
    runtime: int
    hot_code: int = 0
    linked_ram: int = 0
    least_code: int = 0

    @property
    def flash(self) -> int:
        return self.weights + self.self_test + self.code

    @property
    def least_flash(self) -> int:
        """Lower bound on the flash, with the lower estimate of the code."""
        return self.weights + self.self_test + self.least_code

    @property
    def static_ram(self) -> int:
        """Number of bytes of RAM for variables, buffers, the arena and code that is executed from RAM."""
        return self.linked_ram or self.arena + self.buffers + self.runtime + self.hot_code

    @property
    def ram(self) -> int:
        """Number of bytes of RAM needed: static RAM and the maximum stack of a run."""
        return self.static_ram + self.stack

    @property
    def required_board_ram(self) -> int:
        """Number of bytes of RAM that the board must have: static RAM, and the larger of the reserved stack and the
        maximum stack of a run."""
        return self.static_ram + max(self.stack, self.reserved_stack)


def compute_firmware_footprint(modules: Sequence[Module], board: Board) -> Footprint:
    """Return the memory that one firmware with all planned ``modules`` needs on ``board``."""
    own = [m for m in modules if len(modules) == 1 or m.state]
    protocol = modules[0].options["protocol"]
    least, most = min_and_max_flash_without_networks(board, protocol)
    stored = [module.plan.storage for module in modules if module.plan is not None and module.plan.storage]
    most += sum(storage_code_bytes(storage.reads) for storage in stored)
    kernels = sum(map(code_bytes, modules))
    code = least + kernels
    if region_bytes(board, "flash"):
        code = most + estimate_library_flash_bytes(modules) + sum(map(estimate_max_code_bytes, modules))
    return Footprint(
        weights=sum(m.const_bytes - _constant_bytes_in_accelerator_memory(m, board) for m in modules),
        self_test=sum(m.self_test.nbytes for m in modules if m.self_test),
        code=code,
        least_code=least + int(CERTAIN_CODE_SHARE * kernels),
        arena=shared_arena(modules) + sum(m.plan.main_arena_size for m in own if m.plan is not None),
        buffers=sum(map(outside_arena_bytes, modules)),
        stack=max(map(stack_bound, modules)),
        reserved_stack=board.raw.get("link", {}).get("stack_bytes", 0),
        runtime=runtime_ram_bytes(board, protocol)
        + _ram_bytes_of_core1(modules, board)
        + STORAGE_RAM_BYTES * len(stored),
        hot_code=sum(
            m.plan.code.size for m in modules if m.plan and m.plan.code and _is_hot_code_in_stack_memory(board)
        ),
    )


def _is_hot_code_in_stack_memory(board: Board) -> bool:
    """Test whether hot code is placed in the memory that also contains the stack."""
    return board.code_memory is not None and board.code_memory.main


def _constant_bytes_in_accelerator_memory(module: Module, board: Board) -> int:
    """Return the number of bytes of constants in the memory region of the board's accelerator; 0 if there is no such
    region."""
    if not board.npu_constants:
        return 0
    return sum(v.nbytes for v in module.values.values() if v.storage == "const" and v.align > DEFAULT_ALIGNMENT)


def runtime_ram_bytes(board: Board, protocol: str) -> int:
    """Return the number of bytes of RAM that the console and the RPC need."""
    measured = static_ram_without_networks(board, protocol)
    if measured is not None:
        return measured
    return RUNTIME_RAM + receive_buffer_size(board) + 2 * (max_payload(board) + FRAME_OVERHEAD)


def _ram_bytes_of_core1(modules: Sequence[Module], board: Board) -> int:
    """Return the number of bytes of RAM that the second core needs, its stack included; 0 if no network uses it."""
    if all(core_count_of(module) == 1 for module in modules):
        return 0
    return _core1_ram_bytes(board, max(map(stack_bound, modules)))


def _core1_ram_bytes(board: Board, stack_bound: int) -> int:
    """Return the number of bytes of variables and stack of the second core, which runs kernels of this stack bound."""
    return int(board.raw["fork"].get("static_bytes", CORE1_RAM)) + core1_stack_bytes(board, stack_bound)


def board_capacity(board: Board, *, external: bool = False, cores: int = 1) -> BoardCapacity:
    """Return the memory of a board that a firmware leaves to its network.

    ``external``: the network may use external code, so that constants may be in the memory region of the accelerator.
    ``cores``: number of cores that may share its loops.
    """
    fixed = board.raw.get("link", {}).get("stack_bytes", 0) + runtime_ram_bytes(board, "rpc")
    if 1 < cores <= board.target.max_cores:
        fixed += _core1_ram_bytes(board, 0)
    ram = region_bytes(board, "ram")
    apart = sum(region.size for region in board.regions if external and region.name == board.npu_constants)
    flash, code = region_bytes(board, "flash") + apart, board.code_memory
    least, most = min_and_max_flash_without_networks(board, "rpc")
    return BoardCapacity(
        flash=max(flash - most, 0),
        ram=max(ram - fixed, 1) if ram else 0,
        board=board.name,
        flash_limit=max(flash - least, 1) if flash else 0,
        board_total=(flash, ram),
        memories=tuple(
            replace(m, size=max(m.size - SPARE - (0 if k else fixed), 0)) for k, m in enumerate(board.memories)
        ),
        code=code and replace(code, size=max(code.size - SPARE - (fixed if code.main else 0), 0)),
        flash_regions=tuple(
            replace(m, size=max(m.size - SPARE - (most if m.code else 0), 0)) for m in board.flash_memories
        ),
        storage=board.storage,
    )


def check_board_memory(
    board: Board,
    needed_flash: int,
    needed_ram: int,
    model_name: str,
    components: str,
    *,
    computes_in_floats: bool = False,
) -> None:
    """Raise FitError if a board has less flash or RAM than needed. A board without limits is always large enough.

    ``needed_flash``, ``needed_ram``: in bytes. ``model_name``: the name of the model file, for the error.
    ``components``: the components of the needed memory with their sizes, as text for the error. ``computes_in_floats``:
    the hint recommends quantisation.
    """
    reasons = []
    for region_kind, need in zip(KINDS, (needed_flash, needed_ram), strict=True):
        available = region_bytes(board, region_kind)
        if available and need > available:
            name = "RAM" if region_kind == "ram" else region_kind
            reasons.append(f"needs {need} bytes of {name}, the board has {available} ({need - available} too many)")
    if reasons:
        raise FitError(
            f"{model_name} does not fit {board.name}: it " + "; it ".join(reasons),
            where=components,
            hint=make_misfit_hint(
                model_name,
                needed_flash,
                needed_ram,
                board.name,
                computes_in_floats=computes_in_floats,
                io_in_arena=True,
            ),
        )


def compute_and_check_footprint(modules: Sequence[Module], board: Board) -> Footprint:
    """Compute the footprint of a firmware with all ``modules``; FitError if the firmware does not fit the board."""
    need = compute_firmware_footprint(modules, board)
    stack = max(need.stack, need.reserved_stack)
    details = (
        f"flash: weights {need.weights} + {f'self-test {need.self_test} + ' if need.self_test else ''}"
        f"code {need.least_code} to {need.code}; "
        f"RAM: arena {need.arena} + buffers {need.buffers} + stack {stack} + runtime {need.runtime}"
        f"{f' + hot code about {need.hot_code}' if need.hot_code else ''}"
    )
    if 0 < region_bytes(board, "ram") < need.required_board_ram:
        for module in modules:
            refuse_large_read_buffers(module, board.name, need.required_board_ram - region_bytes(board, "ram"))
    floats = any(advises_quantisation(m.arithmetic, learns=m.inference_calls > 0) for m in modules)
    source = " and ".join(m.source or m.name for m in modules)
    check_board_memory(board, need.least_flash, need.required_board_ram, source, details, computes_in_floats=floats)
    _check_flash_regions(modules, board, need, source)
    return need


def _check_flash_regions(modules: Sequence[Module], board: Board, need: Footprint, source: str) -> None:
    """Raise FitError if the storage has less space than the file of weights needs, or a flash region of a board with
    several less than its code and constants.

    All regions together may be large enough: a constant is in one region as a whole. ``source``: the names of the
    models, for the error."""
    for stored in (module.plan.storage for module in modules if module.plan is not None and module.plan.storage):
        if stored.size > stored.capacity:
            raise FitError(
                f"{source} does not fit {board.name}: storage {stored.memory!r} is too small; got weights.bin of "
                f"{stored.size} bytes, expected at most {stored.capacity}",
                where=f"constants {len(stored.offsets)}",
                hint="choose a larger storage, or a smaller network",
            )
    plans = [module.plan for module in modules if module.plan is not None and module.plan.flash]
    apart = sum(_constant_bytes_in_accelerator_memory(module, board) for module in modules)
    for number, memory in enumerate(board.flash_memories if plans else ()):
        constants = sum(plan.flash[number].size for plan in plans) - (0 if number else apart)
        used = constants + (need.least_code if memory.code else 0) + (0 if number else need.self_test)
        if used > memory.size:
            raise FitError(
                f"{source} does not fit {board.name}: flash region {memory.name!r} is too small; "
                f"got {used} bytes of constants and code, expected at most {memory.size}",
                where=f"constants {constants}, code {used - constants}",
                hint="choose a larger board, or a smaller network",
            )


def convert_link_overflow_error(
    error: ToolError, board: Board, folder: str, *, hot_code: bool = False
) -> FitError | None:
    """Convert a linker error about an overflowing memory region to a FitError with sizes; None for any other linker
    error.

    ``folder``: the folder of the project. ``hot_code``: kernels are executed from RAM.
    """
    sizes = {region.name: region.size for region in board.regions}
    found = re.findall(r"region [`']?(\w+)' overflowed by (\d+) bytes", error.what)
    if not found:
        return None
    parts = [
        f"{name} needs {sizes.get(name, 0) + int(over)} bytes, the board has {sizes.get(name, 0)} ({over} too many)"
        for name, over in dict(found).items()
    ]
    need = {
        region_kind: sum(r.size + int(dict(found).get(r.name, 0)) for r in board.regions if r.kind == region_kind)
        for region_kind in KINDS
    }
    code = board.code_memory
    if hot_code and code is not None and code.name in dict(found):
        hint = "compile without --code-in-ram: the code is larger than estimated"
    elif larger := next(list_larger_boards(need["flash"], need["ram"], board.name), ""):
        hint = f"compile it for a larger board (--board {larger}), or a smaller network"
    else:
        hint = "choose a smaller network"
    return FitError(f"the firmware does not fit {board.name}: " + "; ".join(parts), where=folder, hint=hint)


# ---- Search for the configuration of a network with the least cost that fits its memory limits.
#
# :class:`NetworkBuilder` builds the network of a configuration: kernels, module, memory plan, and the data for
# reports. :class:`Search` builds the configurations that moves propose (:mod:`microc.compiler.fit.moves`) and
# keeps the best.


class NetworkBuilder:
    """Builds and plans networks of one model for one target. A configuration that was built before is not built again.

    ``model_graph``: the graph as read. ``division``: the graph after all passes, divided between microc's code and
    external code. ``source``: the name of the model in generated files. ``capacity``: the memory of the board (None:
    unlimited). ``family``: the graph at several sizes, if it has dynamic sizes.
    """

    def __init__(
        self,
        model_graph: Graph,
        division: NetworkDivision,
        source: str,
        target: Target,
        options: Options,
        progress: Progress | None = None,
        capacity: BoardCapacity | None = None,
        family: NetworkFamily | None = None,
    ) -> None:
        self.model_graph, self.division, self.source, self.target = model_graph, division, source, target
        self.options, self.progress, self.capacity, self.family = options, progress, capacity, family
        self.goals = list_goals_to_try(division.graph, options, target)
        self._networks: dict[Hashable, CompiledNetwork] = {}
        self._chain_lowerings: dict[Hashable, ChainLowering] = {}
        self._stripe_searches: dict[Hashable, StripeSearch] = {}
        self._arithmetic = summarise_arithmetic(division.graph, options.weight_dtype)

    def requested_configuration(self) -> Configuration:
        """Return the configuration that the options request. It may exceed the memory limits."""
        return Configuration(self.division.graph, self.goals[0], external=self.division.external)

    def build(self, configuration: Configuration) -> CompiledNetwork:
        """Return the planned network of a configuration."""
        key = configuration.key
        if key not in self._networks:
            self._networks[key] = self._build_and_plan(configuration)
        return self._networks[key]

    @property
    def build_count(self) -> int:
        """Number of configurations that were built."""
        return len(self._networks)

    def build_without_external_code(self, network: CompiledNetwork) -> Module:
        """Build a network that has external kernels a second time, without external code. The order of the calls stays
        the same."""
        ours = replace(network.kernel_builder.configuration, external={})
        return self._build_and_plan(ours, call_order_reference=network.module).module

    def chain_lowering(self, configuration: Configuration) -> ChainLowering:
        """Return the object that lowers chains of layers in the graph of a configuration. Equal requests share it."""
        key = id(configuration.graph), configuration.goal
        if key not in self._chain_lowerings:
            self._chain_lowerings[key] = ChainLowering(
                configuration.graph, self.target, configuration.goal, find_choice_file(self.target, self.options)
            )
        return self._chain_lowerings[key]

    def make_stripe_search(self, network: CompiledNetwork) -> StripeSearch:
        """Return the search for chains of layers in a network that has no chains yet."""
        configuration = network.kernel_builder.configuration
        if configuration.key not in self._stripe_searches:
            self._stripe_searches[configuration.key] = StripeSearch(
                self.chain_lowering(configuration), network.module, io_in_arena=self.options.io_in_arena
            )
        return self._stripe_searches[configuration.key]

    def _build_and_plan(
        self, configuration: Configuration, call_order_reference: Module | None = None
    ) -> CompiledNetwork:
        """Build and plan the network of a configuration.

        ``call_order_reference``: a planned module with the same calls, in whose order the calls run.
        """
        chains = [self.chain_lowering(configuration).lower(chain) for chain in configuration.chains]
        network = build_network(
            configuration, self.target, self.source, self.options, self.progress, chains, self.family
        )
        return replace(network, module=self._plan_memory(network.module, call_order_reference))

    def _plan_memory(self, module: Module, call_order_reference: Module | None) -> Module:
        """Plan the memory of a module, and add the data for reports.

        ``call_order_reference``: as in :meth:`_build_and_plan`."""
        if self.progress is not None:
            self.progress("memory plan", 0, 2)
        if self.options.learn is not None:
            module = separate_learning(module)
        module = plan_module(
            self.division.add_sources_and_decisions(module),
            io_in_arena=self.options.io_in_arena,
            memories=arena_memories(module, self.options, self.capacity),
            flash=constant_regions(
                (module,),
                self.capacity,
                self.target.flash_wait,
                relocatable=self.options.relocatable,
                budget=self.options.flash,
            ),
            storage=storage_for_constants(self.options, self.capacity),
            arena_limit=arena_limit(module, self.options, self.capacity),
            order_like=call_order_reference,
        )
        module = place_hot_code(module, self.options, self.capacity)
        if self.progress is not None:
            self.progress("fingerprint", 1, 2)
        digest = firmware_fingerprint(module, self.target)
        module_options = {**self.options.format_changed_options(), **module.options, "protocol": self.options.protocol}
        return replace(
            module,
            fingerprint=digest,
            nominal_macs=count_macs(self.model_graph),
            arithmetic=self._arithmetic,
            streaming=_rename_streaming_to_c_names(module, self.division.streaming),
            options=module_options,
            **collect_io_fields(module, self.model_graph, self.options),
        )


def build_network(
    configuration: Configuration,
    target: Target,
    source: str,
    options: Options,
    progress: Progress | None = None,
    lowered_chains: Sequence[LoweredChain] = (),
    family: NetworkFamily | None = None,
) -> CompiledNetwork:
    """Lower the graph of a configuration to a module of kernels and calls with cost estimates. Memory is not planned
    yet.

    ``lowered_chains``: the lowered chains of the configuration. ``source``, ``family``: as in :class:`NetworkBuilder`.
    """
    if family is not None:
        from microc.compiler.sizes.general import GeneralKernelBuilder

        kernel_builder: KernelBuilder = GeneralKernelBuilder(family, target, configuration.goal)
    else:
        kernel_builder = KernelBuilder(
            configuration,
            target,
            options.threads,
            shipped=options.shipped,
            choices=find_choice_file(target, options),
        )
    module = build_module(kernel_builder, source, progress, lowered_chains)
    # Merging equal kernels saves flash but costs an additional operand, so equal kernels are not merged if the price of flash
    # is 0. Kernels with dynamic sizes are skipped, because they already have parameters for their sizes.
    merges = kernel_builder.goal.price > 0 and not kernel_builder.sizes
    module = append_channel_constants(merge_kernels(module) if merges else module, target, kernel_builder.goal)
    return CompiledNetwork(add_estimates(module, target), kernel_builder)


def _rename_streaming_to_c_names(module: Module, streaming: Streaming | None) -> Streaming | None:
    """Replace the tensors' names in the description of a streaming network by their names in the generated C code."""
    if streaming is None:
        return None
    inputs = {n: streaming.inputs[v.label] for n in module.inputs if (v := module.values[n]).label in streaming.inputs}
    return Streaming(streaming.hop, inputs, dict(zip(module.outputs, streaming.outputs.values(), strict=True)))


# ---- The search is greedy. Each move starts from the best network found so far, and proposes changes of its configuration.


@frozen
class Limits:
    """Memory limits of a network in bytes; infinite if there is no limit.

    ``arena``: limit of the arena in the memory of the stack. ``flash``: limit of the constants and the code.
    """

    arena: float = inf
    flash: float = inf

    def count_and_sum_limit_excesses(self, network: CompiledNetwork) -> tuple[int, float]:
        """Return the number of limits that a planned network exceeds, and the sum of its relative excesses.

        A relative excess is the number of bytes above a limit, divided by the limit.
        """
        pairs = (arena_bytes(network.module), self.arena), (flash_bytes(network.module), self.flash)
        shares = [taken / limit - 1 for taken, limit in pairs if taken > limit]
        return len(shares), sum(shares)

    def fits_arena(self, network: CompiledNetwork) -> bool:
        """Test whether the arena of a planned network is within its limit."""
        return arena_bytes(network.module) <= self.arena

    def fits_flash(self, network: CompiledNetwork) -> bool:
        """Test whether the constants and the code of a network are within their limit."""
        return flash_bytes(network.module) <= self.flash

    def fits(self, network: CompiledNetwork) -> bool:
        """Test whether a planned network is within both limits."""
        return self.fits_arena(network) and self.fits_flash(network)


MAX_BUILDS = 64
"""Maximum number of networks that a search builds. The moves propose about 35 if every limit is exceeded."""


@frozen
class Move:
    """A kind of change that the search tries.

    ``propose`` is a generator of changed configurations, each with a description of the change. The search builds every
    configuration before it requests the next (:attr:`Search.last`). If the network costs less than the best so far, it
    becomes the best (:attr:`Search.best`). ``measured``: the change was found better by measurement, so that it is
    accepted whatever its estimated cost.
    """

    name: str
    propose: Callable[[Search], Iterator[tuple[str, Configuration]]]
    measured: bool = False


class Search:
    """The state of the search for the best configuration.

    ``requested``: the network that the options request. ``best``: the best network so far. ``last``: the network built
    most recently. ``unlimited``: the best network before the moves for the arena limit. ``optimise``: runs the graph
    passes on the model with changed options.
    """

    def __init__(self, builder: NetworkBuilder, optimise: Callable[[Options], Graph]) -> None:
        self.builder, self.options, self.optimise = builder, builder.options, optimise
        self.requested = self.best = self.last = self.unlimited = builder.build(builder.requested_configuration())
        capacity = builder.capacity or BoardCapacity()
        arena = arena_limit(self.best.module, self.options, builder.capacity) or inf
        self.limits = Limits(arena, min(self.options.flash or inf, capacity.flash or inf))
        self.trials = [_make_trial("requested", "as requested", self.best.module, kept=True)]

    @property
    def untuned_network(self) -> CompiledNetwork:
        """The network without measured schedules, before the moves for the arena limit."""
        return self.builder.build(replace(self.unlimited.configuration, tuned={}))

    def compute_cost(self, network: CompiledNetwork) -> tuple[float, ...]:
        """Return the cost by which networks are compared. The exceeded limits come first, then memory and time.

        Memory and time are relative to the requested network (:func:`.budget.relative_cost`). If only time counts for
        the goal, memory decides between networks of equal time.
        """
        worth, unit = memory_time_exchange_rate(self.options, self.builder.target), time_unit_of(self.builder.target)
        costs = [relative_cost(network.module, self.requested.module, exponent, unit) for exponent in (worth, 0.0)]
        # If two networks exceed the flash limit equally, the higher price wins, because the C compiler is called with options for
        # smaller code if the goal is size alone.
        price = 0.0 if self.limits.fits_flash(network) else network.configuration.goal.price
        return *self.limits.count_and_sum_limit_excesses(network), -price, *costs

    def try_moves(self, moves: Sequence[Move]) -> None:
        """Try the changes of configuration that each of ``moves`` proposes, one move after another."""
        for move in moves:
            graph_before = self.best.configuration.graph
            for change, configuration in move.propose(self):
                if self.builder.build_count >= MAX_BUILDS and not move.measured:
                    break
                self.last = self.builder.build(configuration)
                kept = move.measured or self.compute_cost(self.last) < self.compute_cost(self.best)
                self.best = self.last if kept else self.best
                self.trials.append(_make_trial(move.name, change, self.last.module, kept=kept))
            graph = self.best.configuration.graph
            if self.options.dump is not None and graph is not graph_before:
                write_graph(self.options.dump, move.name, graph)


def _make_trial(move: str, change: str, module: Module, *, kept: bool) -> Trial:
    """Return the record of a configuration that the search tried."""
    return Trial(move, change, arena_bytes(module), flash_bytes(module), module.instructions, kept)
