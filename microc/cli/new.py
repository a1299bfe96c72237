"""``microc new``: a folder to start in."""

from __future__ import annotations

import shlex

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.model_options import spoken_options


def new(arguments: Arguments) -> show.Answer:
    """``microc new``."""
    from microc.driver.new_project import new_project

    told = show.progress(arguments.quiet or arguments.json, arguments.verbose)
    if told is not None:
        told("reading the model", 0, 2)
    folder, board = arguments.folder, arguments.board or "host"
    files = new_project(folder, arguments.model, board, spoken_options(arguments))
    if told is not None:
        told("written", 1, 2)
    steps = [f"cd {shlex.quote(str(folder))}", "microc build", "microc run"]
    if board != "host":
        steps.insert(2, "microc flash")
    text = f"{folder}: {', '.join(files)}\nnext: {' && '.join(steps)}"
    return show.Answer({"folder": str(folder), "files": list(files), "next": steps}, text)
