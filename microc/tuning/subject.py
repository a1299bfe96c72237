"""What is tuned: the kernels of a network on a board or this computer, and its regions that other people's code can compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from microc.device.boards import load_board
from microc.device.machine import native
from microc.driver import accepted
from microc.driver.compile.budget import goals
from microc.driver.compile.fit import room_of
from microc.driver.compile.maker import Compiled
from microc.driver.compile.pipeline import compiled, external_regions
from microc.driver.model import source_of
from microc.driver.options import Options, make_options
from microc.driver.tuned.regions import RegionTask
from microc.driver.tuned.task import Task, tasks_of
from microc.errors import UsageError
from microc.target import SIZE, SPEED, Board, Target, target_for


def place_of(target: str, board: str | Path | Board | None) -> tuple[Board | None, Target]:
    """The board and its core, or this computer as a core."""
    if board is not None:
        if target:
            raise UsageError("a board has its own core", hint="give a board, or a target of this computer")
        found = board if isinstance(board, Board) else load_board(accepted.path("a board", board))
        return found, found.target
    name = accepted.text("a target", target) or "native"
    return None, target_for(native() if name == "native" else name)


def compiled_for(model: Any, target: Target, options: Options, board: Board | None) -> Compiled:
    """A network with what its kernels were made from."""
    room = room_of(board, external=bool(options.external)) if board else None
    return compiled(source_of(model, options), target, options, room=room)


def tasks_for(
    model: Any, target: Target, board: Board | None, options: Mapping[str, Any]
) -> tuple[Options, tuple[Task, ...]]:
    """The options by name, and the kernels of a network under them: in our code alone, unless all of others' is wanted."""
    chosen = make_options(**options)
    made = compiled_for(model, target, in_our_code(chosen), board)
    return chosen, tasks_of(made, (SPEED, goals(made.make.graph, make_options(), made.make.target)[0], SIZE))


def is_open(options: Options) -> bool:
    """Whether it is for measurements to decide whose code computes a region."""
    return bool(options.external) and options.external_choice == "cost"


def in_our_code(options: Options) -> Options:
    """The options of the network whose kernels are tuned: without what may turn out to be theirs."""
    return replace(options, external={}) if is_open(options) else options


def regions_for(model: Any, target: Target, options: Options) -> tuple[RegionTask, ...]:
    """What other people's code can compute in a network, where measurements decide whether it does."""
    if not is_open(options):
        return ()
    return external_regions(source_of(model, options), target, options)


def named_among(
    tasks: tuple[Task, ...], regions: tuple[RegionTask, ...], parts: tuple[str, ...]
) -> tuple[tuple[Task, ...], tuple[RegionTask, ...]]:
    """Those of layers that are named; UsageError where there are none."""

    def named(task: Task) -> bool:
        return not parts or any(part in layer for part in parts for layer in task.layers)

    found, others = tuple(filter(named, tasks)), tuple(filter(named, regions))
    if not found and not others:
        known = ", ".join(task.name for task in tasks[:8]) or "none"
        raise UsageError("no kernel to tune", hint=f"layers: {known}" if parts else "the network has none of its own")
    return found, others


def refuse_open(options: Options) -> None:
    """UsageError where measurements decide whose code computes a region, of which a plan says nothing."""
    if is_open(options):
        raise UsageError(
            "a plan does not say whose code computes a region",
            hint="compile with tuned, which takes what was measured; or external_choice=all, where nothing is open",
        )
