# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: search the number of bits of each layer's weights under limits of a board or of the loss of
accuracy."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from microc.base.immutable import frozen
from microc.base.knapsack import LayerOption, Selection, pareto_front, pareto_front_by_time
from microc.compiler import validation
from microc.compiler.fit.search import compute_firmware_footprint
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.errors import FitError, InternalError, UsageError
from microc.graph.ir import Graph, Loc
from microc.module import Call, Module
from microc.ops import registry
from microc.quantization.calibration_data import Score
from microc.quantization.decisions import BITS, FLOAT_BITS, WIDE_BITS, CalibratedNetwork, unique_names_of_layers
from microc.quantization.integer_scheme import WIDE
from microc.quantization.network_noise import build_layer_changes, measure_noise_of_changes
from microc.quantization.repairs import Repaired
from microc.quantization.write import Recipe, write_quantised_graph
from microc.target import Board

# ---- Cost of a network and of its layers on a board, even if the network does not fit.


@frozen
class LayerPrice:
    """Cost of a layer on a board: bytes of flash, and estimated instructions and cycles of the kernel calls that
    compute it."""

    flash: int
    instructions: int
    cycles: int


def load_board_by_name_or_file(board: Any) -> Board:
    """Return ``board`` if it is a :class:`Board`, else load the board with this name or file."""
    return board if isinstance(board, Board) else load_board(validation.as_path("a board", board))


def estimate_network_cost(graph: Graph, board: Board) -> dict[str, Any]:
    """Return the cost of a network on a board: bytes of flash, RAM and arena, and estimated instructions and cycles of
    a run."""
    return _cost_of_module(compile_model(graph, board.target, Options()), board)


def estimate_layer_prices(
    graph: Graph, board: Board, layers: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, LayerPrice]]:
    """Return the cost of a network on a board, and the price of each layer by its location.

    ``layers`` maps the location of each layer, the ``Loc`` of its operators as text, to the number of its weights. The
    price of a kernel call that computes several layers is divided among them in proportion to these numbers."""
    module = compile_model(graph, board.target, Options())
    parts: dict[str, list[float]] = {location: [0.0, 0.0, 0.0] for location in layers}
    for call in module.calls:
        matching = [location for location in _locations_of_call(call) if location in parts]
        size = sum(layers[location] for location in matching)
        for location in matching:
            share = layers[location] / max(1, size)
            for k, amount in enumerate((_constant_bytes_of_call(call, module), call.instructions, call.cycles)):
                parts[location][k] += share * amount
    return _cost_of_module(module, board), {location: LayerPrice(*map(round, part)) for location, part in parts.items()}


def estimate_price_by_location(graph: Graph, board: Board) -> tuple[dict[str, Any], dict[str, LayerPrice]]:
    """Return the cost of a network on a board, and the price of each location in the model, including the code of
    kernels.

    The bytes of a constant or kernel are divided equally among the kernel calls that use it. The price of a call is
    divided equally among the layers that the call streams."""
    module = compile_model(graph, board.target, Options())
    served = Counter(name for call in module.calls for name in (call.kernel, *dict.fromkeys(call.args)))
    code = {kernel.name: kernel.code_bytes for kernel in module.kernels}
    parts: dict[str, list[float]] = {}
    for call in module.calls:
        constants = (module.values[name] for name in dict.fromkeys(call.args))
        flash = sum(value.nbytes / served[value.name] for value in constants if value.storage == "const")
        amounts = flash + code[call.kernel] / served[call.kernel], call.instructions, call.cycles
        step_locations = _locations_of_call(call)
        for location in step_locations:
            part = parts.setdefault(location, [0.0, 0.0, 0.0])
            part[:] = (all_of + amount / len(step_locations) for all_of, amount in zip(part, amounts, strict=True))
    return _cost_of_module(module, board), {location: LayerPrice(*map(round, part)) for location, part in parts.items()}


def _cost_of_module(module: Module, board: Board) -> dict[str, Any]:
    need, plan = compute_firmware_footprint((module,), board), module.plan
    if plan is None:
        raise InternalError("the module has no memory plan")
    return {
        "flash": need.flash,
        "ram": need.ram,
        "arena": plan.size,
        "weight_bytes": module.const_bytes,
        "estimated_instructions": module.instructions,
        "estimated_cycles": sum(call.cycles for call in module.calls),
    }


def _locations_of_call(call: Call) -> Sequence[str]:
    """Return the locations of the layers that a kernel call computes."""
    return call.streamed.layers if call.streamed else (call.layer,)


def _constant_bytes_of_call(call: Call, module: Module) -> int:
    """Return the number of bytes of all constants that a kernel call reads."""
    values = (module.values[name] for name in dict.fromkeys(call.args))
    return sum(value.nbytes for value in values if value.storage == "const")


# ---- Limits that a quantised network must not exceed.


@frozen
class Limits:
    """Limits that a quantised network must not exceed; None for a quantity without a limit.

    ``flash`` and ``ram``: bytes of the estimated firmware for ``board``. ``cycles``: cycles of a run, by the cost
    model. ``max_drop``: largest permitted difference between the score of the float network and that of the quantised
    one."""

    board: Board
    flash: int | None = None
    ram: int | None = None
    cycles: int | None = None
    max_drop: float | None = None


def check_limits(
    board: Any, flash: int | None, ram: int | None, time: float | None, max_drop: float | None
) -> Limits | None:
    """Return the limits that the user set; None if the user set none.

    UsageError for an invalid number, or if there are limits but no board."""
    byte_limits = {"flash": flash, "ram": ram}
    amounts = {name: validation.as_integer(name, n, least=1) for name, n in byte_limits.items() if n is not None}
    if max_drop is not None:
        validation.as_number("max_drop", max_drop, 0.0, float("inf"))
    elif not amounts and time is None:
        return None
    if not board:
        raise UsageError(
            "flash, ram, time and max_drop require board, for which costs are estimated; got none",
            hint="name the board (--board): microc boards lists them",
        )
    target = load_board_by_name_or_file(board)
    return Limits(target, cycles=None if time is None else _time_to_cycles(target, time), max_drop=max_drop, **amounts)


def _time_to_cycles(board: Board, time: float) -> int:
    """Convert a time in seconds to cycles of the board's clock. UsageError if the clock rate of the board is not
    known."""
    validation.as_number("time", time, 0.0, float("inf"))
    clock = board.raw.get("clock_hz", 0)
    if not clock:
        raise UsageError(
            f"time: board {board.name} has no clock rate, expected one", hint="choose another board, or leave out time"
        )
    return int(time * clock)


# ---- State of the search for numbers of bits: networks that were tried, their costs and their quality.

Bits = tuple[int, ...]
T = TypeVar("T")


@dataclass
class BitSearch:
    """State of the search for the number of bits of each layer's weights in ``network`` under ``limits``.

    A choice of bits is a tuple with a number of bits for each of :attr:`weights`. ``score``: function that returns a
    number for a network, which is larger for a better network; None without a score. The other fields memoise results
    for choices that were tried: repaired networks, signal-to-noise ratios, scores and costs."""

    network: CalibratedNetwork
    limits: Limits
    score: Score | None = None
    built: dict[Bits, Repaired] = field(default_factory=dict)
    decibels: dict[Bits, float] = field(default_factory=dict)
    scores: dict[Bits, float] = field(default_factory=dict)
    costs: dict[tuple[Bits, bool], dict[str, Any]] = field(default_factory=dict)
    float_score: float | None = None

    @cached_property
    def weights(self) -> list[str]:
        """Names of the weights whose number of bits is searched, or set by the user."""
        return [name for name in self.network.points.weights if name in self.network.graph.consts]

    def bits_by_weights(self, bits: Bits) -> dict[str, int]:
        """Convert a choice of bits to a mapping from the names of weights to their numbers of bits."""
        return dict(zip(self.weights, bits, strict=True))

    def uniform_recipe(self, bits: int) -> Recipe:
        """Return the recipe (storage of all values) of the network whose weights all have ``bits`` bits."""
        return self.network.make_recipe(dict.fromkeys(self.weights, bits))

    def build(self, bits: Bits) -> Repaired:
        """Return the network quantised with a choice of bits and repaired, and a report on the repairs."""
        if bits not in self.built:
            self.built[bits] = replace(self.network, progress=None).quantise_and_repair(self.bits_by_weights(bits))
        return self.built[bits]

    def cost(self, bits: Bits) -> dict[str, Any]:
        """Return the cost on the board of the network quantised with a choice of bits.

        It is the repaired network if :meth:`build` was called for this choice before, else the network without
        repairs."""
        key = bits, bits in self.built
        if key not in self.costs:
            is_repaired = key[1]
            graph = (
                self.build(bits)[0].written.graph
                if is_repaired
                else write_quantised_graph(
                    self.network.graph, self.network.make_recipe(self.bits_by_weights(bits))
                ).graph
            )
            self.costs[key] = estimate_network_cost(graph, self.limits.board)
        return self.costs[key]

    def flash_and_cycles_over_limits(self, bits: Bits) -> tuple[int, int]:
        """Return the number of bytes of flash, and of cycles, by which a choice of bits exceeds the limits; 0 if it
        does not."""
        choice_cost, limits = self.cost(bits), self.limits
        return _excess_over_limit(choice_cost["flash"], limits.flash), _excess_over_limit(
            choice_cost["estimated_cycles"], limits.cycles
        )

    def measure_decibels(self, bits: Bits) -> float:
        """Return the signal-to-noise ratio, in decibels, of the repaired network with a choice of bits."""
        if bits not in self.decibels:
            self.decibels[bits] = self.build(bits)[0].decibels(self.network.held_back_samples)
        return self.decibels[bits]

    def score_drop(self, bits: Bits) -> float:
        """Return the score of the float network less the score of the repaired network with a choice of bits.

        UsageError if there is no score."""
        if self.score is None:
            raise UsageError(
                "max_drop requires labels, or a function evaluate; got neither",
                hint="name labels (--labels), give evaluate a function that says how good a network is, or limit flash",
            )
        if self.float_score is None:
            self.float_score = self.score(self.network.graph)
        if bits not in self.scores:
            self.scores[bits] = self.score(self.build(bits)[0].written.graph)
        return self.float_score - self.scores[bits]

    def keeps_score(self, bits: Bits) -> bool:
        """Test whether a choice of bits lowers the score by at most the permitted difference.

        The rounding of floats is disregarded, so that a drop from 0.95 to 0.94 counts as 0.01."""
        most, lost = self.limits.max_drop, self.score_drop(bits)
        assert most is not None and self.float_score is not None
        rounding = 2 * sys.float_info.epsilon * max(abs(self.float_score), abs(self.scores[bits]))
        return lost <= most + rounding

    def iterate_with_progress(self, stage: str, steps: Sequence[T]) -> Iterator[T]:
        """Yield each of ``steps``, and report progress before each of them. ``stage``: name of the stage."""
        for number, step in enumerate(steps):
            self.report_progress(stage, number, len(steps))
            yield step
        self.report_progress(stage, len(steps), len(steps))

    def report_progress(self, stage: str, done: int, steps: int) -> None:
        """Report that ``done`` of at most ``steps`` steps of the stage ``stage`` are finished."""
        if self.network.progress is not None:
            self.network.progress(f"search: {stage}", done, steps + 1)


def _excess_over_limit(amount: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, amount - limit)


# ---- Options of each layer: for each possible number of bits the noise and the price.


@frozen
class LayerOptions:
    """The possible numbers of bits of each layer's weights, with noise, bytes of flash and cycles for each number.

    ``base``: cost of the rest of the network, without these layers; it was measured with weights of 8 bits.
    ``by_time``: True if the Pareto front is that of noise against time, False if it is that of noise against flash."""

    options: Sequence[Sequence[LayerOption]]
    base: Mapping[str, Any]
    by_time: bool

    def front(self, flash: int | None = None, cycles: int | None = None) -> tuple[Selection, ...]:
        """Return the Pareto front of choices of bits for all layers.

        ``flash`` and ``cycles``: limits of the whole network; None without a limit."""
        find_front = pareto_front_by_time if self.by_time else pareto_front
        return find_front(
            self.options,
            _remaining_limit(flash, self.base["flash"]),
            _remaining_limit(cycles, self.base["estimated_cycles"]),
        )


def _remaining_limit(limit: int | None, used: int) -> int | None:
    """Return a limit less the amount ``used``; None without a limit."""
    return None if limit is None else limit - used


def find_layer_options(task: BitSearch, bit_choices: Sequence[int], by_time: bool) -> LayerOptions:
    """Measure the noise and the price of each layer with each possible number of bits.

    ``bit_choices``: the numbers of bits that are tried, which include 8. A layer whose number of bits the user set has
    only this option. ``by_time``: True to weigh noise against time, False to weigh it against flash."""
    network = task.network
    bit_choices = tuple(dict.fromkeys((*bit_choices, *network.bits_set_by_user.values())))
    recipes = {bits: task.uniform_recipe(bits) for bits in bit_choices if bits != FLOAT_BITS}
    changes = build_layer_changes(network.graph, network.samples, recipes, task.weights, network.seed)
    noise = measure_noise_of_changes(network.graph, network.samples, changes, progress=network.progress)
    prices, base = _measure_layer_prices(task, bit_choices)
    options = []
    for name in task.weights:
        allowed = (network.bits_set_by_user[name],) if name in network.bits_set_by_user else bit_choices
        noise_by_bits = _make_noise_monotone_in_bits({b: noise.get((name, b), 0.0) for b in allowed})
        options.append(
            [LayerOption(b, noise_by_bits[b], prices[b][name].flash, prices[b][name].cycles) for b in allowed]
        )
    return LayerOptions(options, base, by_time)


def _make_noise_monotone_in_bits(noise_by_bits: Mapping[int, float]) -> dict[int, float]:
    """Return the noise of a layer by number of bits, corrected so that fewer bits always have at least 0.1 % more
    noise.

    ``noise_by_bits``: the measured noise. If it is lower with fewer bits, this is due to chance, because few samples
    were measured."""
    rising, previous = dict[int, float](), 0.0
    for bits in sorted(noise_by_bits, reverse=True):
        rising[bits] = max(noise_by_bits[bits], previous)
        previous = 1.001 * rising[bits]
    return rising


def _measure_layer_prices(
    task: BitSearch, bit_choices: Sequence[int]
) -> tuple[dict[int, dict[str, LayerPrice]], dict[str, Any]]:
    """Measure the price of each layer with each number of bits, and the cost of the rest of the network with 8 bits.

    Prices are returned by number of bits and by name of the layer's weights."""
    graph, places = _set_distinct_layer_locations(task.network.graph, task.weights)
    sizes = {str(place): task.network.graph.consts[name].size for name, place in places.items()}
    prices: dict[int, dict[str, LayerPrice]] = {}
    base: dict[str, Any] = {}
    for bits in task.iterate_with_progress("prices", bit_choices):
        total, parts = estimate_layer_prices(
            write_quantised_graph(graph, task.uniform_recipe(bits)).graph, task.limits.board, sizes
        )
        prices[bits] = {name: parts[str(place)] for name, place in places.items()}
        if bits == BITS[0]:
            base = {**total}
            base["flash"] -= sum(price.flash for price in prices[bits].values())
            base["estimated_cycles"] -= sum(price.cycles for price in prices[bits].values())
    return prices, base


def _set_distinct_layer_locations(graph: Graph, weights: Sequence[str]) -> tuple[Graph, dict[str, Loc]]:
    """Return the graph with a distinct location for each layer, and a mapping from the names of weights to these
    locations.

    In a model's file several layers may have the same location."""
    places = {name: Loc(index=k, name="layer") for k, name in enumerate(weights)}
    nodes = [
        replace(node, loc=places[node.inputs[1]]) if registry.is_layer(node) and node.inputs[1] in places else node
        for node in graph.nodes
    ]
    return graph.with_nodes(nodes), places


# ---- Search: measure the noise and the price of each layer, choose numbers of bits by solving a knapsack problem, and verify the
# chosen network.
#
# Prices are measured on networks whose layers all have 8, 4 or 2 bits, compiled for the board. A layer that the compiler stores
# as bytes in any case (such as a depthwise convolution) has the same price in all three networks, and 8 bits are chosen for it.
# Chosen networks are compiled as well, since layers share code in ways that prices do not include. If a chosen network exceeds
# a limit, the choice is repeated with a tighter limit. The final decision is made on repaired networks: a few networks whose
# predicted noise is near the least are repaired and measured, and accuracy is that of repaired networks.
#
# If weights of 8 bits lose more accuracy than permitted, layers may have 16-bit activations or be computed in floats. This
# requires hardly any flash but takes time. The fastest choice is then chosen.

_MAX_TRIES = 6
"""Maximum number of choices that are compiled if the compiled networks exceed a limit."""
_CANDIDATES, _NEAR_RATIO = 2, 1.5
"""Number of networks that are repaired and measured, and the largest ratio of their predicted noise to the least
noise."""
_STEPS = 32
"""Maximum number of networks of the Pareto front among which a bisection searches the cheapest that loses no more
accuracy than permitted."""
_SHOWN = 64
"""Maximum number of networks of the Pareto front that the report lists."""


def search_bits(task: BitSearch) -> tuple[Repaired, dict[str, Any]]:
    """Search the number of bits of each layer's weights.

    Return the repaired network with the chosen numbers of bits (and a report on its repairs), and plain data about the
    search for the report. FitError if every choice exceeds a limit."""
    options = find_layer_options(task, BITS, by_time=False)
    if task.limits.max_drop is None:
        point = _choose_within_limits(task, options, _choose_bits_with_least_noise)
    else:
        point = _choose_within_limits(task, options, _choose_cheapest_bits)
        if point is None:
            wider = (
                (FLOAT_BITS, BITS[0])
                if task.network.config.activation_dtype == WIDE
                else (FLOAT_BITS, WIDE_BITS, BITS[0])
            )
            options = find_layer_options(task, wider, by_time=True)
            point = _choose_within_limits(task, options, _choose_cheapest_bits)
    if point is None:
        raise _accuracy_error(task)
    _check_ram_of_choice(task, point.picks)
    return task.build(point.picks), _build_search_report(task, options, point)


def _choose_within_limits(
    task: BitSearch, layer_options: LayerOptions, choose: Callable[[BitSearch, Sequence[Selection]], Selection | None]
) -> Selection | None:
    """Return a choice of bits whose compiled network does not exceed the limits of flash and cycles.

    ``choose``: function that selects a choice on the Pareto front, or returns None if no choice is good enough; then
    the result is None. FitError if every choice exceeds a limit."""
    flash, cycles = task.limits.flash, task.limits.cycles
    for _ in range(_MAX_TRIES):
        points = layer_options.front(flash, cycles)
        if not points:
            break
        point = choose(task, points)
        if point is None:
            return None
        excess = task.flash_and_cycles_over_limits(point.picks)
        if not any(excess):
            task.build(point.picks)
            excess = task.flash_and_cycles_over_limits(point.picks)
        if not any(excess):
            return point
        flash = _tighten_limit(flash, excess[0], layer_options.base["flash"] + point.flash)
        cycles = _tighten_limit(cycles, excess[1], layer_options.base["estimated_cycles"] + point.cycles)
    raise _limits_error(task, layer_options)


def _tighten_limit(limit: int | None, excess: int, predicted_cost: int) -> int | None:
    """Return a lower limit after the compiled network of a choice exceeded the limit by ``excess``.

    ``predicted_cost``: the cost that was predicted for this choice. The new limit is below it, so that the choice is
    not made again, and is at most the old limit less half of the excess: other choices may exceed their prediction by
    less. If there is no limit or no excess, ``limit`` is returned."""
    return limit if limit is None or not excess else min(limit - excess // 2, predicted_cost - 1)


def _choose_bits_with_least_noise(task: BitSearch, points: Sequence[Selection]) -> Selection:
    """Return the choice of bits with the least noise after repairs, among those whose predicted noise is near the
    least.

    ``points``: the Pareto front, in the order of falling noise."""
    near = [point for point in points if point.loss <= _NEAR_RATIO * points[-1].loss]
    candidates = [near[k] for k in _evenly_spaced_indices(len(near), _CANDIDATES)]
    fitting = [point for point in candidates if not any(task.flash_and_cycles_over_limits(point.picks))]
    if len(fitting) < 2:
        return (fitting or candidates)[-1]
    decibels = {point: task.measure_decibels(point.picks) for point in task.iterate_with_progress("networks", fitting)}
    return max(decibels, key=lambda point: decibels[point])


def _choose_cheapest_bits(task: BitSearch, points: Sequence[Selection]) -> Selection | None:
    """Return the cheapest choice of bits that lowers the score by no more than permitted; None if there is none.

    ``points``: the Pareto front, in the order of falling noise. It is searched by bisection, on the assumption that
    less noise means a higher score."""
    points = [points[k] for k in _evenly_spaced_indices(len(points), _STEPS)]
    low, high, tries, limit = -1, len(points) - 1, 1, 1 + (len(points) - 1).bit_length()
    task.report_progress("networks", 0, limit)
    if not task.keeps_score(points[-1].picks):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        task.report_progress("networks", tries, limit)
        if task.keeps_score(points[middle].picks):
            high = middle
        else:
            low = middle
        tries += 1
    task.report_progress("networks", limit, limit)
    return points[high]


def _evenly_spaced_indices(count: int, max_count: int) -> list[int]:
    """Return at most ``max_count`` evenly spaced indices from 0 to ``count`` - 1. The last index is always among
    them."""
    return sorted({int(k) for k in np.linspace(count - 1, 0, min(max_count, count))})


def _check_ram_of_choice(task: BitSearch, bits: tuple[int, ...]) -> None:
    """Raise FitError if the network with a choice of bits needs more RAM than permitted."""
    need, room = task.cost(bits)["ram"], task.limits.ram
    if room is not None and need > room:
        raise FitError(
            f"ram: {task.network.graph.name} needs {need} bytes, expected at most {room} ({need - room} too many)",
            where=f"{task.limits.board.name}: bits of weights hardly change RAM, that of activations is what counts",
            hint="use activations of int8, a smaller input, or a smaller network",
        )


def _accuracy_error(task: BitSearch) -> FitError:
    """Return the error for the case that every network that was tried lowers the score by more than permitted."""
    least = min(task.score_drop(bits) for bits in task.scores)
    return FitError(
        f"max_drop: the score falls by at least {least:.4f}, expected at most {task.limits.max_drop:g}",
        where=task.network.graph.name,
        hint="use 16 bits for all activations (int16), more data for calibration, or a larger max_drop",
    )


def _limits_error(task: BitSearch, layer_options: LayerOptions) -> FitError:
    """Return the error for the case that every choice of bits exceeds a limit.

    It states the smallest possible flash and number of cycles."""
    smallest = tuple(min(layer, key=lambda o: (o.flash, o.loss)).pick for layer in layer_options.options)
    fastest = tuple(min(layer, key=lambda o: (o.cycles, o.loss)).pick for layer in layer_options.options)
    least = [
        f"{what} of at least {task.cost(bits)[key]}, {limit} allowed"
        for what, key, bits, limit in (
            ("flash", "flash", smallest, task.limits.flash),
            ("cycles", "estimated_cycles", fastest, task.limits.cycles),
        )
        if limit is not None
    ]
    inside = set(task.network.points.weights) - set(task.weights)
    return FitError(
        f"no choice of bits for the weights of {task.network.graph.name} is within the limits: {'; '.join(least)}",
        where=task.limits.board.name,
        hint="use a larger limit, a smaller network, or another board"
        + (
            "; or weights of 4 bits for the whole network, which also concerns loops, whose weights are not searched"
            if inside
            else ""
        ),
    )


def _build_search_report(task: BitSearch, layer_options: LayerOptions, chosen: Selection) -> dict[str, Any]:
    """Return plain data about the search for the report.

    It contains the layers with their options, networks of the Pareto front without limits, and the scores and
    signal-to-noise ratios of the networks that were repaired and measured."""
    points, names = layer_options.front(), unique_names_of_layers(task.network.graph, task.weights)
    shown, measured = {*_evenly_spaced_indices(len(points), _SHOWN)}, {chosen.picks, *task.scores, *task.decibels}
    return {
        "board": task.limits.board.name,
        "against": "cycles" if layer_options.by_time else "flash",
        "layers": [
            {
                "layer": names[name],
                "weight": name,
                "bits": bits,
                "options": [{"bits": o.pick, "noise": o.loss, "flash": o.flash, "cycles": o.cycles} for o in layer],
            }
            for name, bits, layer in zip(task.weights, chosen.picks, layer_options.options, strict=True)
        ],
        "front": [
            {
                "flash": layer_options.base["flash"] + p.flash,
                "cycles": layer_options.base["estimated_cycles"] + p.cycles,
                "noise": p.loss,
                "bits": list(p.picks),
                "score": task.scores.get(p.picks),
                "decibels": task.decibels.get(p.picks),
                "chosen": p.picks == chosen.picks,
            }
            for k, p in enumerate(points)
            if k in shown or p.picks in measured
        ],
        "tried": len(task.built),
    }
