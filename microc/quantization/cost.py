"""What a network costs on a board, whether it fits or not, and its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from microc.driver.compile.fit import footprint
from microc.driver.compile.pipeline import compile_model
from microc.driver.options import Options
from microc.errors import InternalError
from microc.graph.ir import Graph
from microc.module import Call, Module
from microc.target import Board


@dataclass(frozen=True, slots=True)
class Price:
    """A layer's constants in bytes, the estimated instructions and cycles of its steps."""

    flash: int
    instructions: int
    cycles: int


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
