"""Search for the configuration of a network that fits its limits and costs least.

:class:`NetworkBuilder` builds the network of a configuration: kernels, module, memory plan, and the facts that reports print.
:class:`Search` builds the configurations that moves propose (:mod:`microc.compiler.fit.moves`) and keeps what is better.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from microc.base.immutable import frozen
from microc.compiler.fit.budget import (
    BoardCapacity,
    arena_bytes,
    arena_memories,
    count_macs,
    flash_bytes,
    goal_ladder,
    memory_per_time,
    outside_arena_bytes,
    relative_cost,
    summarise_arithmetic,
)
from microc.compiler.fit.striping import ChainLowering, LoweredStream, StripeSearch
from microc.compiler.interaction import Progress
from microc.compiler.lowering.external_layers import NetworkDivision
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_maker import CompiledNetwork, Configuration, KernelBuilder, merge_kernels
from microc.compiler.lowering.kernel_selection import add_estimates
from microc.compiler.lowering.module_builder import firmware_fingerprint, io_fields, place_hot_code
from microc.compiler.options import Options
from microc.graph.ir import Graph
from microc.module import Module, Streaming, Trial
from microc.plan.plan import plan_module
from microc.target import Target
from microc.transform.pass_context import write_graph

if TYPE_CHECKING:
    from microc.compiler.sizes.family import NetworkFamily


class NetworkBuilder:
    """Builds and plans networks of one model for one target, each configuration once.

    ``read``: the graph as read; ``division``: the graph after all passes, divided between our code and external code;
    ``source``: the origin that generated files name; ``room``: the capacity of the board (None: unlimited); ``family``:
    the graph at several sizes, if these are dynamic."""

    def __init__(
        self,
        read: Graph,
        division: NetworkDivision,
        source: str,
        target: Target,
        options: Options,
        progress: Progress | None = None,
        room: BoardCapacity | None = None,
        family: NetworkFamily | None = None,
    ) -> None:
        self.read, self.division, self.source, self.target = read, division, source, target
        self.options, self.progress, self.room, self.family = options, progress, room, family
        self.goals = goal_ladder(division.graph, options, target)
        self._networks: dict[Hashable, CompiledNetwork] = {}
        self._streams: dict[Hashable, ChainLowering] = {}
        self._stripe_searches: dict[Hashable, StripeSearch] = {}
        self._arithmetic = summarise_arithmetic(division.graph, options.weight_dtype)

    def requested_configuration(self) -> Configuration:
        """Return the configuration that the options ask for, whatever it takes."""
        return Configuration(self.division.graph, self.goals[0], external=self.division.external)

    def build(self, configuration: Configuration) -> CompiledNetwork:
        """Return the planned network of a configuration."""
        key = configuration.key
        if key not in self._networks:
            self._networks[key] = self._build(configuration)
        return self._networks[key]

    @property
    def builds(self) -> int:
        """Number of configurations that were built."""
        return len(self._networks)

    def own_module(self, network: CompiledNetwork) -> Module:
        """Build the module of a network with external kernels again in our code, planned in the same order of calls."""
        ours = replace(network.make.configuration, external={})
        return self._build(ours, like=network.module).module

    def streams(self, configuration: Configuration) -> ChainLowering:
        """Return the lowering of chains of a configuration's graph."""
        key = id(configuration.graph), configuration.goal
        if key not in self._streams:
            self._streams[key] = ChainLowering(configuration.graph, self.target, configuration.goal)
        return self._streams[key]

    def stripe_search(self, network: CompiledNetwork) -> StripeSearch:
        """Return the search for chains of a network that has none."""
        configuration = network.make.configuration
        if configuration.key not in self._stripe_searches:
            self._stripe_searches[configuration.key] = StripeSearch(
                self.streams(configuration), network.module, io_in_arena=self.options.io_in_arena
            )
        return self._stripe_searches[configuration.key]

    def _build(self, configuration: Configuration, like: Module | None = None) -> CompiledNetwork:
        """Build and plan a network. ``like``: a planned module of the same calls, whose order is kept."""
        chains = [self.streams(configuration).lower(chain) for chain in configuration.chains]
        network = build_network(
            configuration, self.target, self.source, self.options, self.progress, chains, self.family
        )
        return replace(network, module=self._plan(network.module, like))

    def _plan(self, module: Module, like: Module | None) -> Module:
        """Plan the memory of a module, and add the facts that reports print."""
        if self.progress is not None:
            self.progress("memory plan", 0, 2)
        module = plan_module(
            self.division.built_from(module),
            io_in_arena=self.options.io_in_arena,
            memories=arena_memories(module, self.options, self.room),
            flash_wait=self.target.flash_wait,
            order_like=like,
        )
        module = place_hot_code(module, self.options, self.room)
        if self.progress is not None:
            self.progress("fingerprint", 1, 2)
        digest = firmware_fingerprint(module, self.target)
        module_options = {**self.options.changed_texts(), **module.options, "protocol": self.options.protocol}
        return replace(
            module,
            fingerprint=digest,
            nominal_macs=count_macs(self.read),
            arithmetic=self._arithmetic,
            streaming=_streaming_in_c_names(module, self.division.streaming),
            options=module_options,
            **io_fields(module, self.read, self.options),
        )


def build_network(
    configuration: Configuration,
    target: Target,
    source: str,
    options: Options,
    progress: Progress | None = None,
    streams: Sequence[LoweredStream] = (),
    family: NetworkFamily | None = None,
) -> CompiledNetwork:
    """Lower the graph of a configuration to a module of kernels and calls, with cost estimates, without a memory plan.

    ``streams``: the lowered chains of the configuration; ``source``, ``family`` as in :class:`NetworkBuilder`."""
    if family is not None:
        from microc.compiler.sizes.general import GeneralKernelBuilder

        make: KernelBuilder = GeneralKernelBuilder(family, target, configuration.goal)
    else:
        make = KernelBuilder(configuration, target, options.threads, shipped=options.shipped)
    module = build_module(make, source, progress, streams)
    # Merging equal kernels saves flash and costs an operand, so it is skipped at price 0. Kernels with dynamic sizes have
    # parameters already.
    merges = make.goal.price > 0 and not make.sizes
    return CompiledNetwork(add_estimates(merge_kernels(module) if merges else module, target), make)


def _streaming_in_c_names(module: Module, streaming: Streaming | None) -> Streaming | None:
    """Rename the tensors of ``streaming`` to their names in the C code."""
    if streaming is None:
        return None
    inputs = {n: streaming.inputs[v.label] for n in module.inputs if (v := module.values[n]).label in streaming.inputs}
    return Streaming(streaming.hop, inputs, dict(zip(module.outputs, streaming.outputs.values(), strict=True)))


# ---- The search is greedy: each move starts from the best network so far, and proposes a few changes of its configuration.


@frozen
class Limits:
    """Limits of a network in bytes, infinite without: its ``arena`` in the memory of the stack, and its ``flash``, constants
    plus code."""

    arena: float = inf
    flash: float = inf

    def excess(self, network: CompiledNetwork) -> tuple[int, float]:
        """Return how many limits a planned network exceeds, and the sum of the shares by which it does."""
        pairs = (arena_bytes(network.module), self.arena), (flash_bytes(network.module), self.flash)
        shares = [taken / limit - 1 for taken, limit in pairs if taken > limit]
        return len(shares), sum(shares)

    def fits_arena(self, network: CompiledNetwork) -> bool:
        """Test whether the arena of a planned network keeps within its limit."""
        return arena_bytes(network.module) <= self.arena

    def fits_flash(self, network: CompiledNetwork) -> bool:
        """Test whether the constants and the code of a network keep within their limit."""
        return flash_bytes(network.module) <= self.flash

    def fits(self, network: CompiledNetwork) -> bool:
        """Test whether a planned network keeps within both limits."""
        return self.fits_arena(network) and self.fits_flash(network)


MAX_BUILDS = 64
"""Networks that a search builds at most. The moves propose some 35 where every limit is exceeded."""


@frozen
class Move:
    """A kind of change that the search tries.

    ``propose`` yields changed configurations, each with the change in words. Before it is asked for the next one, the
    search has built the last (:attr:`Search.last`) and kept it (:attr:`Search.best`) if it costs less than the best
    before. ``measured``: it was measured to be better, so that it is kept whatever its estimated cost."""

    name: str
    propose: Callable[[Search], Iterator[tuple[str, Configuration]]]
    measured: bool = False


class Search:
    """The state of a search.

    ``requested``: the network that the options ask for; ``best``: the best so far; ``last``: the network built last;
    ``unlimited``: the best before the arena had to become smaller. ``optimise``: runs the graph passes on the model with
    other options."""

    def __init__(self, builder: NetworkBuilder, optimise: Callable[[Options], Graph]) -> None:
        self.builder, self.options, self.optimise = builder, builder.options, optimise
        self.requested = self.best = self.last = self.unlimited = builder.build(builder.requested_configuration())
        room = builder.room or BoardCapacity()
        outside = outside_arena_bytes(self.best.module)
        # A board that inputs and outputs fill leaves a limit that no arena keeps.
        arena = [self.options.ram or inf, max(room.ram - outside, 1) if room.ram else inf]
        self.limits = Limits(min(arena), min(self.options.flash or inf, room.flash or inf))
        self.trials = [_trial("requested", "as requested", self.best.module, kept=True)]

    @property
    def untuned_network(self) -> CompiledNetwork:
        """The network before its arena had to become smaller, without measured schedules."""
        return self.builder.build(replace(self.unlimited.configuration, tuned={}))

    def cost(self, network: CompiledNetwork) -> tuple[float, ...]:
        """Return the cost by which networks are compared: first the limits that are exceeded, then memory and time.

        Relative to the requested network (:func:`.budget.relative_cost`); if time alone counts, memory decides ties."""
        worth = memory_per_time(self.options, self.builder.target)
        costs = [relative_cost(network.module, self.requested.module, exponent) for exponent in (worth, 0.0)]
        # Over the flash limit the higher price wins a tie: for size alone the C compiler has other options.
        price = 0.0 if self.limits.fits_flash(network) else network.configuration.goal.price
        return *self.limits.excess(network), -price, *costs

    def run(self, moves: Sequence[Move]) -> None:
        """Try the moves one after another."""
        for move in moves:
            graph_before = self.best.configuration.graph
            for change, configuration in move.propose(self):
                if self.builder.builds >= MAX_BUILDS and not move.measured:
                    break
                self.last = self.builder.build(configuration)
                kept = move.measured or self.cost(self.last) < self.cost(self.best)
                self.best = self.last if kept else self.best
                self.trials.append(_trial(move.name, change, self.last.module, kept=kept))
            graph = self.best.configuration.graph
            if self.options.dump is not None and graph is not graph_before:
                write_graph(self.options.dump, move.name, graph)


def _trial(move: str, change: str, module: Module, *, kept: bool) -> Trial:
    """Return the record of a configuration that was tried."""
    return Trial(move, change, arena_bytes(module), flash_bytes(module), module.instructions, kept)
