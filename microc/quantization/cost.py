"""What a network costs on a board, whether it fits or not, and its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from microc.device.boards import load_board
from microc.driver import accepted
from microc.driver.compile.fit import footprint
from microc.driver.compile.pipeline import compile_model
from microc.driver.options import Options
from microc.errors import InternalError
from microc.frozen import frozen
from microc.graph.ir import Graph
from microc.module import Call, Module
from microc.target import Board


@frozen
class Price:
    """A layer's constants in bytes, the estimated instructions and cycles of its steps."""

    flash: int
    instructions: int
    cycles: int


def board_of(given: Any) -> Board:
    """A board, or the one of a name or file."""
    return given if isinstance(given, Board) else load_board(accepted.path("a board", given))


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
