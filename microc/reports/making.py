"""``microc.report``: a report of anything there is one of: a model, a program, a project."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from microc.base.file_access import read_text
from microc.compiler import api, validation
from microc.compiler.interaction import Progress, teller
from microc.compiler.model import extended_by, knows_plugins, source_of
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.device.toolchain import find_compiler
from microc.errors import FitError, ToolError, UsageError
from microc.reports.report import Report, report_of
from microc.run.board_project import Project, open_project
from microc.run.desktop.library import Library
from microc.run.profile import Profile
from microc.target import Board

if TYPE_CHECKING:
    from microc.compiler.option_values import CompileOptions


@knows_plugins
def report(
    model: Any,
    *,
    board: str | Path | Board | None = None,
    accuracy: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[CompileOptions],
) -> Report:
    """The report of a network on a board, from estimates: no compiler and no board is asked.

    ``model``: anything that :func:`microc.compile` takes, which is compiled for ``board`` (a name or the path of a board
    file; default: this computer) under ``options``; or a :class:`microc.Program`, a :class:`microc.Library`, or the folder of a
    project, which have theirs.
    A network that does not fit is reported all the same, and said not to; ``accuracy``: of
    :func:`microc.reports.evidence.read_accuracy`. ``progress`` as there. Raises what compiling
    raises, and OutputError where a folder is no project.
    """
    path = Path(model) if isinstance(model, (str, Path)) else None
    made = isinstance(model, (api.Program, Library, Project)) or (
        path is not None and path.is_dir() and (path / "manifest.json").is_file()
    )
    if made:
        if board is not None or options:
            raise UsageError("what is compiled has its board and options", hint="give the model to have others")
        if isinstance(model, api.Program):
            return of_program(model, accuracy)
        if isinstance(model, Library):
            return of_library(model, accuracy)
        return of_project(
            model if isinstance(model, Project) else open_project(validation.path("a project", model)), accuracy
        )
    found = board if board is not None else "host"
    try:
        program = api.compile(model, board=found, progress=progress, **options)
    except FitError:
        program = _too_large(model, found, make_options(**options), teller(progress))
    return of_program(program, accuracy)


def of_library(library: Library, accuracy: Mapping[str, Any] | None = None) -> Report:
    """Return the report of a network on this computer, from estimates. Cycles are those of the core whose kernels run, the arena
    is in bytes; a firmware's flash and RAM are None."""
    return report_of(library.manifest, load_board("host"), model_c=library.model_c, accuracy=accuracy)


def _too_large(model: Any, board: str | Path | Board, options: Options, progress: Progress | None) -> api.Program:
    """A network that does not fit its board, compiled as if there was room: what it takes is what a report is for."""
    found = board if isinstance(board, Board) else load_board(board)
    return api.Program(
        compile_model(source_of(model, options), found.target, options, progress), found, options.plugins
    )


def of_program(program: api.Program, accuracy: Mapping[str, Any] | None = None) -> Report:
    """The report of a compiled network."""
    with extended_by({"plugins": program.plugins}):
        files = program.files()
        manifest = json.loads(files["manifest.json"])
        return report_of(
            manifest, program.board, model_c=str(files["model.c"]), numbers=program.report(), accuracy=accuracy
        )


def of_project(project: Project, accuracy: Mapping[str, Any] | None = None, **more: Any) -> Report:
    """The report of a project; ``more``: what was measured of it, as :func:`report_of` takes it. Its C is left out where the file
    is gone."""
    path = project.sources / "model.c"
    text = read_text(path, errors="replace") if path.is_file() else ""
    return report_of(project.manifest, project.board, model_c=text, accuracy=accuracy, **more)


def of_profile(profile: Profile, stack: int | None = None, accuracy: Mapping[str, Any] | None = None) -> Report:
    """The report of a network that was measured; ``stack``: bytes of it that the board used at most."""
    board = profile.project.board
    try:
        compiler = find_compiler(board).version
    except ToolError:
        compiler = "not on this computer"
    made = of_project(profile.project, accuracy, profile=profile, stack=stack or None)
    return Report({**made.data, "compiler": compiler})
