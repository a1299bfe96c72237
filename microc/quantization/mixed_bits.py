"""Bits for every layer under limits of a board."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from microc.base.immutable import frozen
from microc.base.knapsack import Option, Point, front, front_by_time
from microc.compiler import validation
from microc.compiler.fit.footprint import footprint
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.errors import FitError, InternalError, UsageError
from microc.graph.ir import Graph, Loc
from microc.module import Call, Module
from microc.quantization.calibration_data import Score
from microc.quantization.decisions import BITS, FLOAT_BITS, WIDE_BITS, Calibrated, labels
from microc.quantization.integer_scheme import WIDE
from microc.quantization.network_noise import layer_changes, noise_of
from microc.quantization.repairs import Repaired
from microc.quantization.write import Recipe, quantised
from microc.target import Board
from microc.transform.quantised.qdq import LAYERS

# ---- What a network costs on a board, whether it fits or not, and its layers.


@frozen
class Price:
    """A layer's constants in bytes, the estimated instructions and cycles of its steps."""

    flash: int
    instructions: int
    cycles: int


def board_of(given: Any) -> Board:
    """A board, or the one of a name or file."""
    return given if isinstance(given, Board) else load_board(validation.path("a board", given))


def cost(graph: Graph, board: Board) -> dict[str, Any]:
    """Flash, RAM and arena in bytes, estimated instructions and cycles of a run."""
    return _total(compile_model(graph, board.target, Options()), board)


def priced(graph: Graph, board: Board, layers: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Price]]:
    """The same, and each layer's part. ``layers``: the place of each, as its operators say it (``Loc``), and its size: layers
    that are computed in one step share its price by their sizes."""
    module = compile_model(graph, board.target, Options())
    parts: dict[str, list[float]] = {place: [0.0, 0.0, 0.0] for place in layers}
    for call in module.calls:
        of = [place for place in _places(call) if place in parts]
        size = sum(layers[place] for place in of)
        for place in of:
            share = layers[place] / max(1, size)
            for k, amount in enumerate((_constants(call, module), call.instructions, call.cycles)):
                parts[place][k] += share * amount
    return _total(module, board), {place: Price(*map(round, part)) for place, part in parts.items()}


def by_place(graph: Graph, board: Board) -> tuple[dict[str, Any], dict[str, Price]]:
    """What :func:`cost` tells, and the price of what is computed at each place, here with its part of the code: a constant or a
    kernel is divided among the steps that it serves, a step among the layers that it streams."""
    module = compile_model(graph, board.target, Options())
    served = Counter(name for call in module.calls for name in (call.kernel, *dict.fromkeys(call.args)))
    code = {kernel.name: kernel.code_bytes for kernel in module.kernels}
    parts: dict[str, list[float]] = {}
    for call in module.calls:
        constants = (module.values[name] for name in dict.fromkeys(call.args))
        flash = sum(value.nbytes / served[value.name] for value in constants if value.storage == "const")
        amounts = flash + code[call.kernel] / served[call.kernel], call.instructions, call.cycles
        of = _places(call)
        for place in of:
            part = parts.setdefault(place, [0.0, 0.0, 0.0])
            part[:] = (all_of + amount / len(of) for all_of, amount in zip(part, amounts, strict=True))
    return _total(module, board), {place: Price(*map(round, part)) for place, part in parts.items()}


def _total(module: Module, board: Board) -> dict[str, Any]:
    need, plan = footprint((module,), board), module.plan
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


def _places(call: Call) -> Sequence[str]:
    return call.streamed.layers if call.streamed else (call.layer,)


def _constants(call: Call, module: Module) -> int:
    """Bytes of the constants that a step reads."""
    values = (module.values[name] for name in dict.fromkeys(call.args))
    return sum(value.nbytes for value in values if value.storage == "const")


# ---- Limits of a board that a quantised network keeps.


@frozen
class Limits:
    """What must be kept. ``flash``, ``ram``: bytes, as a firmware for ``board`` is estimated; ``cycles``: of a run, by the cost
    model; ``max_drop``: by how much the score may be less than the float network's."""

    board: Board
    flash: int | None = None
    ram: int | None = None
    cycles: int | None = None
    max_drop: float | None = None


def limits_of(
    board: Any, flash: int | None, ram: int | None, time: float | None, max_drop: float | None
) -> Limits | None:
    """Limits that a caller names, None where there are none. UsageError where one is no number, or no board is named."""
    given = {"flash": flash, "ram": ram}
    amounts = {name: validation.integer(name, n, least=1) for name, n in given.items() if n is not None}
    if max_drop is not None:
        validation.number("max_drop", max_drop, 0.0, float("inf"))
    elif not amounts and time is None:
        return None
    if not board:
        raise UsageError("limits are those of a board", hint="name it with board (--board): microc boards lists them")
    found = board_of(board)
    return Limits(found, cycles=None if time is None else _cycles(found, time), max_drop=max_drop, **amounts)


def _cycles(board: Board, time: float) -> int:
    """How many cycles fit in so many seconds."""
    validation.number("time", time, 0.0, float("inf"))
    clock = board.raw.get("clock_hz", 0)
    if not clock:
        raise UsageError(f"{board.name} has no clock to limit time by", hint="limit it for another board")
    return int(time * clock)


# ---- What is searched when bits are, and what of it was tried: networks, what they cost and how good they are.

Bits = tuple[int, ...]
T = TypeVar("T")


@dataclass
class Task:
    """Bits of a ``network``'s weights under ``limits``; ``score`` of a network, larger is better, if there is one. The rest is
    what was tried."""

    network: Calibrated
    limits: Limits
    score: Score | None = None
    made_of: dict[Bits, Repaired] = field(default_factory=dict)
    decibels: dict[Bits, float] = field(default_factory=dict)
    scores: dict[Bits, float] = field(default_factory=dict)
    costs: dict[tuple[Bits, bool], dict[str, Any]] = field(default_factory=dict)
    float_score: float | None = None

    @cached_property
    def weights(self) -> list[str]:
        """Whose bits are searched, or fixed by hand."""
        return [name for name in self.network.found.weights if name in self.network.graph.consts]

    def widths(self, bits: Bits) -> dict[str, int]:
        """By weight."""
        return dict(zip(self.weights, bits, strict=True))

    def everywhere(self, bits: int) -> Recipe:
        """The recipe of a network that has these bits throughout."""
        return self.network.recipe(dict.fromkeys(self.weights, bits))

    def made(self, bits: Bits) -> Repaired:
        """The network of a choice."""
        if bits not in self.made_of:
            self.made_of[bits] = replace(self.network, progress=None).repaired(self.widths(bits))
        return self.made_of[bits]

    def cost(self, bits: Bits) -> dict[str, Any]:
        """What a choice really costs on the board, repaired if it was."""
        key = bits, bits in self.made_of
        if key not in self.costs:
            known = key[1]
            graph = (
                self.made(bits)[0].written.graph
                if known
                else quantised(self.network.graph, self.network.recipe(self.widths(bits))).graph
            )
            self.costs[key] = cost(graph, self.limits.board)
        return self.costs[key]

    def over(self, bits: Bits) -> tuple[int, int]:
        """By how many bytes and cycles a choice is above the limits."""
        found, limits = self.cost(bits), self.limits
        return _over(found["flash"], limits.flash), _over(found["estimated_cycles"], limits.cycles)

    def measured(self, bits: Bits) -> float:
        """The ratio of signal to noise of a choice, in decibels."""
        if bits not in self.decibels:
            self.decibels[bits] = self.made(bits)[0].decibels(self.network.held)
        return self.decibels[bits]

    def drop(self, bits: Bits) -> float:
        """What a choice loses of the score."""
        if self.score is None:
            raise UsageError(
                "without labels there is no accuracy that could drop",
                hint="name them (--labels), give evaluate a function that says how good a network is, or limit flash",
            )
        if self.float_score is None:
            self.float_score = self.score(self.network.graph)
        if bits not in self.scores:
            self.scores[bits] = self.score(self.made(bits)[0].written.graph)
        return self.float_score - self.scores[bits]

    def keeps_score(self, bits: Bits) -> bool:
        """Whether a choice loses no more of the score than is allowed, but for how scores and their difference are rounded:
        0.95 - 0.94 is a point."""
        most, lost = self.limits.max_drop, self.drop(bits)
        assert most is not None and self.float_score is not None
        rounding = 2 * sys.float_info.epsilon * max(abs(self.float_score), abs(self.scores[bits]))
        return lost <= most + rounding

    def in_turn(self, what: str, steps: Sequence[T]) -> Iterator[T]:
        """Steps of the search, each told of when it begins."""
        for number, step in enumerate(steps):
            self.tell(what, number, len(steps))
            yield step
        self.tell(what, len(steps), len(steps))

    def tell(self, what: str, done: int, steps: int) -> None:
        """How far the search is: what is ``done`` of so many steps, at most, each of which takes long."""
        if self.network.progress is not None:
            self.network.progress(f"search: {what}", done, steps + 1)


def _over(amount: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, amount - limit)


# ---- What each layer may be: its noise, its price.


@frozen
class Ways:
    """What each layer may be, and what all networks cost beside that: total costs less those of the layers at 8 bits.
    ``by_time``: the front is that of noise against time, not flash."""

    options: Sequence[Sequence[Option]]
    base: Mapping[str, Any]
    by_time: bool

    def front(self, flash: int | None = None, cycles: int | None = None) -> tuple[Point, ...]:
        """The front of choices within limits of the whole network."""
        found = front_by_time if self.by_time else front
        return found(self.options, _less(flash, self.base["flash"]), _less(cycles, self.base["estimated_cycles"]))


def _less(limit: int | None, amount: int) -> int | None:
    return None if limit is None else limit - amount


def ways_of(task: Task, widths: Sequence[int], by_time: bool) -> Ways:
    """Every layer in each of ``widths`` (8 among them), but those that are fixed."""
    network = task.network
    widths = tuple(dict.fromkeys((*widths, *network.fixed.values())))
    recipes = {bits: task.everywhere(bits) for bits in widths if bits != FLOAT_BITS}
    changes = layer_changes(network.graph, network.rows, recipes, task.weights, network.seed)
    noise = noise_of(network.graph, network.rows, changes, progress=network.progress)
    prices, base = _prices(task, widths)
    options = []
    for name in task.weights:
        allowed = (network.fixed[name],) if name in network.fixed else widths
        known = _rising({b: noise.get((name, b), 0.0) for b in allowed})
        options.append([Option(b, known[b], prices[b][name].flash, prices[b][name].cycles) for b in allowed])
    return Ways(options, base, by_time)


def _rising(noise: Mapping[int, float]) -> dict[int, float]:
    """Noise by bits where fewer bits make more of it, by a thousandth at least: that some seem to make less is chance, of few
    samples."""
    found, least = dict[int, float](), 0.0
    for bits in sorted(noise, reverse=True):
        found[bits] = max(noise[bits], least)
        least = 1.001 * found[bits]
    return found


def _prices(task: Task, widths: Sequence[int]) -> tuple[dict[int, dict[str, Price]], dict[str, Any]]:
    """Prices of layers by bits and weight, and the rest of the network's."""
    graph, places = _labelled(task.network.graph, task.weights)
    sizes = {str(place): task.network.graph.consts[name].size for name, place in places.items()}
    found: dict[int, dict[str, Price]] = {}
    base: dict[str, Any] = {}
    for bits in task.in_turn("prices", widths):
        total, parts = priced(quantised(graph, task.everywhere(bits)).graph, task.limits.board, sizes)
        found[bits] = {name: parts[str(place)] for name, place in places.items()}
        if bits == BITS[0]:
            base = {**total}
            base["flash"] -= sum(price.flash for price in found[bits].values())
            base["estimated_cycles"] -= sum(price.cycles for price in found[bits].values())
    return found, base


def _labelled(graph: Graph, weights: Sequence[str]) -> tuple[Graph, dict[str, Loc]]:
    """The graph whose layers say their weight as their place: those of a file may be the same for several."""
    places = {name: Loc(index=k, name="layer") for k, name in enumerate(weights)}
    nodes = [
        replace(node, loc=places[node.inputs[1]]) if node.op in LAYERS and node.inputs[1] in places else node
        for node in graph.nodes
    ]
    return graph.with_nodes(nodes), places


# ---- Bits for every layer under limits of a board: sensitivities, prices, the choice, and a look at what was chosen.
#
# Prices are those of networks all of whose layers have 8, 4 or 2 bits, compiled for the board: a layer that the compiler stores
# as bytes whatever its numbers are (depthwise, say) costs the same in all three, and keeps its bits. The networks that are
# chosen are compiled too, since code is shared by layers in ways that prices do not know; where one is above the limit by some
# bytes, the choice is repeated with fewer. What decides in the end are networks as they are after repairs: some that are
# predicted to be about as good as the best are repaired and measured, and accuracy is that of repaired networks.
#
# Where 8 bits lose more accuracy than allowed, layers may have activations of 16 bits, or stay in floats. That hardly costs
# flash, but time: the choice is then the fastest one.

_TRIES = 6
"""How often a choice that is above a limit is made again."""
_CANDIDATES, _NEAR = 2, 1.5
"""How many networks are repaired and measured, of those whose noise is predicted to be at most so many times the least."""
_STEPS = 32
"""Networks of the front among which the least that keeps the accuracy is found, by bisection."""
_SHOWN = 64


def search(task: Task) -> tuple[Repaired, dict[str, Any]]:
    """The repaired network, and plain data about how it was found. FitError where no choice keeps the limits."""
    ways = ways_of(task, BITS, by_time=False)
    if task.limits.max_drop is None:
        point = _kept(task, ways, _least_noise)
    else:
        point = _kept(task, ways, _smallest)
        if point is None:
            wider = (
                (FLOAT_BITS, BITS[0]) if task.network.config.activations == WIDE else (FLOAT_BITS, WIDE_BITS, BITS[0])
            )
            ways = ways_of(task, wider, by_time=True)
            point = _kept(task, ways, _smallest)
    if point is None:
        raise _too_inaccurate(task)
    _check_ram(task, point.picks)
    return task.made(point.picks), _report(task, ways, point)


def _kept(task: Task, ways: Ways, choose: Callable[[Task, Sequence[Point]], Point | None]) -> Point | None:
    """The choice that really keeps the limits; None where ``choose`` takes none. FitError where none keeps them."""
    flash, cycles = task.limits.flash, task.limits.cycles
    for _ in range(_TRIES):
        within = ways.front(flash, cycles)
        if not within:
            break
        point = choose(task, within)
        if point is None:
            return None
        over = task.over(point.picks)
        if not any(over):
            task.made(point.picks)
            over = task.over(point.picks)
        if not any(over):
            return point
        flash = _tighter(flash, over[0], ways.base["flash"] + point.flash)
        cycles = _tighter(cycles, over[1], ways.base["estimated_cycles"] + point.cycles)
    raise _refusal(task, ways)


def _tighter(limit: int | None, over: int, predicted: int) -> int | None:
    """A limit that forbids what was predicted to cost so much, and half of what it is over: other choices may be over by less."""
    return limit if limit is None or not over else min(limit - over // 2, predicted - 1)


def _least_noise(task: Task, points: Sequence[Point]) -> Point:
    """Of points that are predicted to be about as good as the best one, that which is, repaired."""
    near = [point for point in points if point.loss <= _NEAR * points[-1].loss]
    tried = [near[k] for k in _spaced(len(near), _CANDIDATES)]
    fitting = [point for point in tried if not any(task.over(point.picks))]
    if len(fitting) < 2:
        return (fitting or tried)[-1]
    found = {point: task.measured(point.picks) for point in task.in_turn("networks", fitting)}
    return max(found, key=lambda point: found[point])


def _smallest(task: Task, points: Sequence[Point]) -> Point | None:
    """The least choice that keeps the score, by bisection: the score falls with noise. None where none does."""
    points = [points[k] for k in _spaced(len(points), _STEPS)]
    low, high, tried, most = -1, len(points) - 1, 1, 1 + (len(points) - 1).bit_length()
    task.tell("networks", 0, most)
    if not task.keeps_score(points[-1].picks):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        task.tell("networks", tried, most)
        if task.keeps_score(points[middle].picks):
            high = middle
        else:
            low = middle
        tried += 1
    task.tell("networks", most, most)
    return points[high]


def _spaced(count: int, most: int) -> list[int]:
    """At most so many of the first ``count`` numbers, evenly, the last one among them."""
    return sorted({int(k) for k in np.linspace(count - 1, 0, min(most, count))})


def _check_ram(task: Task, bits: tuple[int, ...]) -> None:
    need, room = task.cost(bits)["ram"], task.limits.ram
    if room is not None and need > room:
        raise FitError(
            f"{task.network.graph.name} needs {need} bytes of RAM, {room} are allowed ({need - room} too many)",
            where=f"{task.limits.board.name}: bits of weights hardly change RAM, that of activations is what counts",
            hint="activations of int8, a smaller input, or a smaller network",
        )


def _too_inaccurate(task: Task) -> FitError:
    least = min(task.drop(bits) for bits in task.scores)
    return FitError(
        f"the score falls by at least {least:.4f}, more than {task.limits.max_drop:g}",
        where=task.network.graph.name,
        hint="16 bits for all activations (int16), more data for calibration, or a larger drop",
    )


def _refusal(task: Task, ways: Ways) -> FitError:
    """What the least is that can be had."""
    smallest = tuple(min(layer, key=lambda o: (o.flash, o.loss)).pick for layer in ways.options)
    fastest = tuple(min(layer, key=lambda o: (o.cycles, o.loss)).pick for layer in ways.options)
    least = [
        f"{what} of at least {task.cost(bits)[key]}, {limit} allowed"
        for what, key, bits, limit in (
            ("flash", "flash", smallest, task.limits.flash),
            ("cycles", "estimated_cycles", fastest, task.limits.cycles),
        )
        if limit is not None
    ]
    inside = set(task.network.found.weights) - set(task.weights)
    return FitError(
        f"no bits for the weights of {task.network.graph.name} keep the limits: {'; '.join(least)}",
        where=task.limits.board.name,
        hint="a larger limit, a smaller network, or another board"
        + (
            "; bits of weights inside of loops are not searched, 4 bits for all weights are theirs, too"
            if inside
            else ""
        ),
    )


def _report(task: Task, ways: Ways, chosen: Point) -> dict[str, Any]:
    """Layers with their options, the front without limits, and what was measured of it, after repairs."""
    points, named = ways.front(), labels(task.network.graph, task.weights)
    shown, known = {*_spaced(len(points), _SHOWN)}, {chosen.picks, *task.scores, *task.decibels}
    return {
        "board": task.limits.board.name,
        "against": "cycles" if ways.by_time else "flash",
        "layers": [
            {
                "layer": named[name],
                "weight": name,
                "bits": bits,
                "options": [{"bits": o.pick, "noise": o.loss, "flash": o.flash, "cycles": o.cycles} for o in layer],
            }
            for name, bits, layer in zip(task.weights, chosen.picks, ways.options, strict=True)
        ],
        "front": [
            {
                "flash": ways.base["flash"] + p.flash,
                "cycles": ways.base["estimated_cycles"] + p.cycles,
                "noise": p.loss,
                "bits": list(p.picks),
                "score": task.scores.get(p.picks),
                "decibels": task.decibels.get(p.picks),
                "chosen": p.picks == chosen.picks,
            }
            for k, p in enumerate(points)
            if k in shown or p.picks in known
        ],
        "tried": len(task.made_of),
    }
