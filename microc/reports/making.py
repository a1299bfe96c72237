# SPDX-License-Identifier: Apache-2.0
"""``microc.report``: make a report of a model, of a compiled program or library, or of a project folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.base.file_access import read_text
from microc.compiler import api, validation
from microc.compiler.interaction import Progress, as_callback
from microc.compiler.model import register_plugins, registers_plugins, resolve_model
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.device.toolchain import find_compiler
from microc.errors import FitError, ToolError, UsageError
from microc.reports.firmware_size import measure_firmware
from microc.reports.report import Report, make_report
from microc.run.board_project import Project, open_project
from microc.run.desktop.library import Library
from microc.run.profile import Profile
from microc.target import Board

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


@registers_plugins
def report(
    model: Any,
    *,
    board: str | Path | Board | None = None,
    accuracy: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[CompileOptions],
) -> Report:
    """Make a report of a network on a board, from estimates; neither the board nor a C compiler is needed.

    ``model``: anything that :func:`microc.compile` accepts; it is compiled for ``board`` (a name, or the path of a board
    file; default: this computer) under ``options``. Or a :class:`microc.Program`, a :class:`microc.Library`, or the folder
    of a project; these have a board and options of their own. If a network does not fit its board, the report's first
    advice states this. ``accuracy``: result of :func:`microc.reports.evidence.read_accuracy`. ``progress``: as for
    :func:`microc.compile`. Raises the errors of :func:`microc.compile`, and OutputError if a folder is no project.
    """
    path = Path(model) if isinstance(model, (str, Path)) else None
    is_compiled = isinstance(model, (api.Program, Library, Project)) or (
        path is not None and path.is_dir() and (path / "manifest.json").is_file()
    )
    if is_compiled:
        if board is not None or options:
            raise UsageError(
                "board and options cannot be given for a compiled network, which has its own; "
                f"got {', '.join((*(('board',) if board is not None else ()), *options))}",
                hint="leave out board and options, or give the model file instead of the compiled network",
            )
        if isinstance(model, api.Program):
            return report_program(model, accuracy)
        if isinstance(model, Library):
            return report_library(model, accuracy)
        return report_project(
            model if isinstance(model, Project) else open_project(validation.as_path("a project", model)), accuracy
        )
    board_or_host = board if board is not None else "host"
    try:
        program = api.compile(model, board=board_or_host, progress=progress, **options)
    except FitError:
        program = _compile_without_limits(model, board_or_host, make_options(**options), as_callback(progress))
    return report_program(program, accuracy)


def report_library(library: Library, accuracy: Mapping[str, Any] | None = None) -> Report:
    """Make a report of a network that is compiled as a library for this computer, from estimates.

    Cycles are estimated for the core whose kernels the library contains. Flash and RAM are None, because only firmware has
    them."""
    return make_report(library.manifest, load_board("host"), model_c=library.model_c, accuracy=accuracy)


def _compile_without_limits(
    model: Any, board: str | Path | Board, options: Options, progress: Progress | None
) -> api.Program:
    """Compile a network for a board without the board's memory limits, to report by how much the network exceeds them."""
    board_object = board if isinstance(board, Board) else load_board(board)
    return api.Program(
        compile_model(resolve_model(model, options), board_object.target, options, progress),
        board_object,
        options.plugins,
    )


def report_program(program: api.Program, accuracy: Mapping[str, Any] | None = None) -> Report:
    """Make a report of a network that is compiled for a board, from estimates."""
    with register_plugins({"plugins": program.plugins}):
        files = program.files()
        manifest = json.loads(files["manifest.json"])
        return make_report(
            manifest, program.board, model_c=str(files["model.c"]), program_report=program.report(), accuracy=accuracy
        )


def report_project(project: Project, accuracy: Mapping[str, Any] | None = None, **measurements: Any) -> Report:
    """Make a report of the network in a project folder.

    ``measurements``: times and sizes, as keywords of :func:`make_report`. If the file with the network's C is missing, the report
    contains no C."""
    path = project.sources / "model.c"
    text = read_text(path, errors="replace") if path.is_file() else ""
    if "profile" not in measurements and not project.relocatable and project.elf.is_file():
        measurements["size"] = measure_firmware(project)
    return make_report(project.manifest, project.board, model_c=text, accuracy=accuracy, **measurements)


def report_profile(
    profile: Profile,
    stack: int | None = None,
    accuracy: Mapping[str, Any] | None = None,
    *,
    core1_stack: int | None = None,
) -> Report:
    """Make a report of a network that was measured on its board.

    ``stack``, ``core1_stack``: peak stack of the first and of the second core in bytes, measured on the board."""
    board = profile.project.board
    try:
        compiler = find_compiler(board).version
    except ToolError:
        compiler = "not on this computer"
    result = report_project(
        profile.project, accuracy, profile=profile, size=profile.size, stack=stack or None, core1_stack=core1_stack
    )
    return Report({**result.data, "compiler": compiler})
