"""Bits for every layer under limits of a board: sensitivities, prices, the choice, and a look at what was chosen.

Prices are those of three networks, all of whose layers have 8, 4 or 2 bits, compiled for the board: a layer that the compiler
stores as bytes whatever its numbers are (depthwise, say) costs the same in all three, and keeps its bits. The networks that
are chosen are compiled too, since code is shared by layers in ways that prices do not know; where one is above the limit by
some bytes, the choice is repeated with as many less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from microc.device.boards import load_board
from microc.driver import accepted
from microc.errors import FitError, UsageError
from microc.graph.ir import Graph, Loc
from microc.quantization.budget import Option, Point, front
from microc.quantization.by_hand import BITS, labels
from microc.quantization.cost import Price, cost, priced
from microc.quantization.observe import Row
from microc.quantization.score import Score
from microc.quantization.sensitivity import noise_of, rounded_weight
from microc.quantization.write import Recipe, quantised
from microc.target import Board
from microc.transform.qdq import LAYERS

_TRIES = 4
_SHOWN = 64
Widths = Mapping[str, int]


@dataclass(frozen=True, slots=True)
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
    amounts = {name: accepted.integer(name, n, least=1) for name, n in given.items() if n is not None}
    if max_drop is not None:
        accepted.number("max_drop", max_drop, 0.0, float("inf"))
    elif not amounts and time is None:
        return None
    if not board:
        raise UsageError("limits are those of a board", hint="name it with board (--board): microc boards lists them")
    found = board if isinstance(board, Board) else load_board(accepted.path("a board", board))
    return Limits(found, cycles=None if time is None else _cycles(found, time), max_drop=max_drop, **amounts)


def _cycles(board: Board, time: float) -> int:
    """How many cycles fit in so many seconds."""
    accepted.number("time", time, 0.0, float("inf"))
    clock = board.raw.get("clock_hz", 0)
    if not clock:
        raise UsageError(f"{board.name} has no clock to limit time by", hint="limit it for another board")
    return int(time * clock)


@dataclass
class Task:
    """``weights``: whose bits are searched on ``rows``, but those that are ``fixed``. ``decide``: the recipe for bits of all
    weights; ``score`` of a network, larger is better, if there is one. ``scores``, ``costs``: of choices that were tried."""

    graph: Graph
    weights: Sequence[str]
    rows: Sequence[Row]
    limits: Limits
    decide: Callable[[Widths], Recipe]
    fixed: Widths
    score: Score | None = None
    scores: dict[tuple[int, ...], float] = field(default_factory=dict)
    costs: dict[tuple[int, ...], dict[str, Any]] = field(default_factory=dict)
    float_score: float | None = None

    def written(self, bits: Sequence[int], graph: Graph | None = None) -> Graph:
        """The integer network of a choice."""
        return quantised(graph or self.graph, self.decide(dict(zip(self.weights, bits, strict=True)))).graph

    def cost(self, bits: tuple[int, ...]) -> dict[str, Any]:
        """What a choice really costs on the board."""
        if bits not in self.costs:
            self.costs[bits] = cost(self.written(bits), self.limits.board)
        return self.costs[bits]

    def drop(self, bits: tuple[int, ...]) -> float:
        """What a choice loses of the score."""
        if self.score is None:
            raise UsageError(
                "without labels there is no accuracy that could drop",
                hint="name them (--labels), give evaluate a function that says how good a network is, or limit flash",
            )
        if self.float_score is None:
            self.float_score = self.score(self.graph)
        if bits not in self.scores:
            self.scores[bits] = self.score(self.written(bits))
        return self.float_score - self.scores[bits]


def search(task: Task) -> tuple[dict[str, int], dict[str, Any]]:
    """Bits for each weight, and plain data about how they were found. FitError where no choice keeps the limits."""
    options, base = _options(task)
    flash, cycles = base["flash"], base["estimated_cycles"]
    limits = task.limits
    margin = slack = 0
    for _ in range(_TRIES):
        within = front(options, _less(limits.flash, flash + margin), _less(limits.cycles, cycles + slack))
        if not within:
            break
        point = within[-1] if limits.max_drop is None else _smallest(task, within)
        found = task.cost(point.bits)
        over = [_over(found["flash"], limits.flash), _over(found["estimated_cycles"], limits.cycles)]
        if not any(over):
            _check_ram(task, point.bits)
            return dict(zip(task.weights, point.bits, strict=True)), _report(task, options, base, point)
        margin, slack = margin + over[0], slack + over[1]
    raise _refusal(task, options)


def _less(limit: int | None, amount: int) -> int | None:
    return None if limit is None else limit - amount


def _over(amount: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, amount - limit)


def _options(task: Task) -> tuple[list[list[Option]], dict[str, Any]]:
    """What each layer may be, and what all networks cost beside that: total costs less those of the layers at 8 bits."""
    recipes = {bits: task.decide(dict.fromkeys(task.weights, bits)) for bits in BITS}
    changes = {
        (name, bits): rounded_weight(name, recipe.weights[name])
        for bits, recipe in recipes.items()
        for name in task.weights
    }
    noise = noise_of(task.graph, task.rows, changes)
    prices, base = _prices(task)
    options = []
    for name in task.weights:
        allowed = (task.fixed[name],) if name in task.fixed else BITS
        every = [Option(b, noise[name, b], prices[b][name].flash, prices[b][name].cycles) for b in allowed]
        options.append(every)
    return options, base


def _prices(task: Task) -> tuple[dict[int, dict[str, Price]], dict[str, Any]]:
    """Prices of layers by bits and weight, and the rest of the network's."""
    graph, places = _labelled(task.graph, task.weights)
    sizes = {str(place): task.graph.consts[name].size for name, place in places.items()}
    found: dict[int, dict[str, Price]] = {}
    base: dict[str, Any] = {}
    for bits in BITS:
        total, parts = priced(task.written([bits] * len(task.weights), graph), task.limits.board, sizes)
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


def _smallest(task: Task, points: Sequence[Point]) -> Point:
    """The choice of least flash that keeps the score, by bisection: the score falls with noise. FitError where none does."""
    most = task.limits.max_drop
    assert most is not None
    if task.drop(points[-1].bits) > most:
        raise FitError(
            f"the score falls by at least {task.drop(points[-1].bits):.4f}, more than {most:g}",
            where=task.graph.name,
            hint="more bits for activations (int16), more data for calibration, or a larger drop",
        )
    low, high = -1, len(points) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if task.drop(points[middle].bits) <= most:
            high = middle
        else:
            low = middle
    return points[high]


def _check_ram(task: Task, bits: tuple[int, ...]) -> None:
    need, room = task.cost(bits)["ram"], task.limits.ram
    if room is not None and need > room:
        raise FitError(
            f"{task.graph.name} needs {need} bytes of RAM, {room} are allowed ({need - room} too many)",
            where=f"{task.limits.board.name}: bits of weights hardly change RAM, that of activations is what counts",
            hint="activations of int8, a smaller input, or a smaller network",
        )


def _refusal(task: Task, options: Sequence[Sequence[Option]]) -> FitError:
    """What the least is that can be had."""
    smallest = tuple(min(layer, key=lambda o: (o.flash, o.noise)).bits for layer in options)
    fastest = tuple(min(layer, key=lambda o: (o.cycles, o.noise)).bits for layer in options)
    least = [
        f"{what} of at least {task.cost(bits)[key]}, {limit} allowed"
        for what, key, bits, limit in (
            ("flash", "flash", smallest, task.limits.flash),
            ("cycles", "estimated_cycles", fastest, task.limits.cycles),
        )
        if limit is not None
    ]
    return FitError(
        f"no bits for the weights of {task.graph.name} keep the limits: {'; '.join(least)}",
        where=task.limits.board.name,
        hint="a larger limit, a smaller network, or another board",
    )


def _report(task: Task, options: Sequence[Sequence[Option]], base: Mapping[str, Any], chosen: Point) -> dict[str, Any]:
    """Layers with their options, the front without limits, and what was measured of it."""
    points, named = front(options), labels(task.graph, task.weights)
    shown = {int(k) for k in np.linspace(0, len(points) - 1, min(_SHOWN, len(points)))}
    kept = [p for k, p in enumerate(points) if k in shown or p.bits == chosen.bits or p.bits in task.scores]
    return {
        "board": task.limits.board.name,
        "layers": [
            {
                "layer": named[name],
                "weight": name,
                "bits": bits,
                "options": [{"bits": o.bits, "noise": o.noise, "flash": o.flash, "cycles": o.cycles} for o in layer],
            }
            for name, bits, layer in zip(task.weights, chosen.bits, options, strict=True)
        ],
        "front": [
            {
                "flash": base["flash"] + p.flash,
                "cycles": base["estimated_cycles"] + p.cycles,
                "noise": p.noise,
                "bits": list(p.bits),
                "score": task.scores.get(p.bits),
                "chosen": p.bits == chosen.bits,
            }
            for p in kept
        ],
        "tried": len(task.scores),
    }
