# SPDX-License-Identifier: Apache-2.0
"""Values of arguments that the words of the command line do not contain: those of ``microc.toml``, and standard input."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from microc import __version__
from microc.base.operating_system import quote_argument
from microc.cli import show
from microc.cli.declared.board_commands import BenchArguments, VerifyArguments
from microc.cli.declared.declarations import (
    FROM_CONFIG,
    Arguments,
    CompileArguments,
    FolderArguments,
    ModelArguments,
    SourceArguments,
)
from microc.cli.declared.model_commands import CompileCommandArguments, ExplainArguments, ExportArguments, TuneArguments
from microc.cli.project_context import compile_bundle, compile_with_arguments, network_names
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.compiler.api import Program
    from microc.compiler.bundle import Bundle
    from microc.project.config import Config

# ---- ``microc.toml`` in the current folder or a parent: it contains the defaults of arguments that the command line omits.

_TakesModel = ModelArguments | ExportArguments | TuneArguments
_TakesConfig = CompileCommandArguments | _TakesModel | FolderArguments | SourceArguments
"""Arguments of the commands that read defaults from ``microc.toml``."""
_A = TypeVar("_A", bound=Arguments)
_S = TypeVar("_S", bound=SourceArguments)


def fill_from_config(arguments: Arguments) -> Arguments:
    """Return the arguments with those that the command line omits filled from ``microc.toml``.

    If a command needs the project of ``microc.toml`` and a source file is newer than the project, the project is compiled
    first. Raises UsageError if neither the command line nor the file names the model or project that the command needs."""
    if not isinstance(arguments, _TakesConfig) or not _may_need_config(arguments):
        return arguments
    from microc.project.config import check_config_owner, find_config, read_config

    path = find_config(Path.cwd())
    if path is None:
        _require_path(arguments)
        return arguments
    config = read_config(path)
    check_config_owner(config)
    _require_trusted_config(arguments, config)
    if not arguments.quiet and not arguments.json:
        show.print_note(f"as {path} says")
    arguments = arguments.replace(config=config)
    if isinstance(arguments, CompileCommandArguments):
        return _fill_models(arguments, config)
    if isinstance(arguments, FolderArguments):
        return arguments.replace(folder=_up_to_date_project(arguments, config))
    if isinstance(arguments, BenchArguments):
        return _fill_bench(arguments, config)
    return _fill_source(arguments, config) if isinstance(arguments, SourceArguments) else _fill_model(arguments, config)


def _may_need_config(arguments: _TakesConfig) -> bool:
    """Test whether a command may need ``microc.toml``.

    It does not if the command line names a project folder, an ELF file or a file of tuning records."""
    if isinstance(arguments, FolderArguments):
        return arguments.folder is FROM_CONFIG
    if isinstance(arguments, SourceArguments):
        source = arguments.source
        return source is FROM_CONFIG or not (source.is_dir() or source.suffix == ".elf")
    if isinstance(arguments, TuneArguments):
        return not (arguments.show or arguments.merge or arguments.prune)
    return not (isinstance(arguments, ExportArguments) and arguments.listing)


def _require_path(arguments: _TakesConfig) -> None:
    """Raise UsageError if the command line omits the model or project, so that only ``microc.toml`` could name it.

    Export and tune, whose model may be None, report in their own words what is missing."""
    omitted = [name for name, value in vars(arguments).items() if value is FROM_CONFIG]
    if isinstance(arguments, CompileCommandArguments) and not arguments.models:
        omitted = ["models"]
    if omitted:
        raise UsageError(
            f"{arguments.command.name} needs {arguments.own_arguments()[omitted[0]].metavar}",
            hint="give it, or create a project whose microc.toml names it: microc new",
        )


def _fill_models(arguments: CompileCommandArguments, config: Config) -> CompileCommandArguments:
    """Fill models, board and output folder of ``microc compile``, if the command line omits them."""
    board = _board_or_default(arguments, config)
    if arguments.models:
        return arguments.replace(board=board)
    output = arguments.output or config.folder
    force = arguments.force or output == config.folder  # this folder belongs to microc.toml: replace it freely
    return arguments.replace(board=board, models=_models_of_config(config), output=output, force=force)


def _fill_model(arguments: _TakesModel, config: Config) -> Arguments:
    """Fill model and board of a command that accepts one model, if the command line omits them.

    For ``microc explain NAME``, NAME is a layer if there is no file of this name."""
    arguments = arguments.replace(board=_board_or_default(arguments, config))
    if arguments.model is None or arguments.model is FROM_CONFIG:
        return arguments.replace(model=_only_model_of_config(config))
    if isinstance(arguments, ExplainArguments) and not arguments.layer and not arguments.model.exists():
        return arguments.replace(model=_only_model_of_config(config), layer=str(arguments.model))
    return arguments


def _fill_bench(arguments: BenchArguments, config: Config) -> BenchArguments:
    """Fill model and boards of ``microc bench``, which measures a model on several boards and not a project."""
    source = _only_model_of_config(config) if arguments.source is FROM_CONFIG else arguments.source
    names = arguments.board_names or (() if arguments.all_boards else (config.board,))
    return arguments.replace(source=source, board_names=names)


def _fill_source(arguments: _S, config: Config) -> _S:
    """Fill the source (a model or a project folder) of a command, if the command line omits it.

    The source is the project of ``microc.toml``. It is the model of ``microc.toml`` if the command line contains a board or
    compilation options, because a project has its own."""
    is_omitted = arguments.source is FROM_CONFIG
    if is_omitted and not arguments.command_line_options and not arguments.board:
        if isinstance(arguments, VerifyArguments) and arguments.against:
            arguments = arguments.replace(model_file=arguments.model_file or _only_model_of_config(config))
        return arguments.replace(source=_up_to_date_project(arguments, config))
    if is_omitted:
        arguments = arguments.replace(source=_only_model_of_config(config))
        if isinstance(arguments, VerifyArguments):
            arguments = arguments.replace(model_file=None)  # the source is that model
    return arguments.replace(board=_board_or_default(arguments, config))


def _board_or_default(arguments: CompileArguments, config: Config) -> str:
    """Return the board of ``microc.toml``, unless the command line names a board or a core."""
    has_core = isinstance(arguments, (ExplainArguments, ExportArguments, TuneArguments)) and arguments.target
    return arguments.board if arguments.board or has_core else config.board


def _models_of_config(config: Config) -> tuple[Path, ...]:
    """Return the models that ``microc.toml`` names; raise UsageError if it names none."""
    if not config.models:
        raise UsageError("microc.toml names no model", where=str(config.path), hint='add it: model = "model.tflite"')
    return tuple(config.models)


def _only_model_of_config(config: Config) -> Path:
    """Return the only model that ``microc.toml`` names; raise UsageError if it names none or several."""
    models = _models_of_config(config)
    if len(models) > 1:
        raise UsageError(
            f"microc.toml names {len(models)} models, expected one",
            where=str(config.path),
            hint=f"give the file of one: {quote_argument(str(models[0]))}",
        )
    return models[0]


def _up_to_date_project(arguments: Arguments, config: Config) -> Path:
    """Return the project folder of ``microc.toml``; compile the project first if a source file is newer than the project."""
    if _is_project_stale(config):
        models = _models_of_config(config)
        program: Program | Bundle
        if len(models) > 1:
            program = compile_bundle(models, network_names(models, arguments.options), arguments, config.board)
        else:
            program = compile_with_arguments(models[0], arguments, config.board)
        program.write(config.folder)
        if not arguments.quiet and not arguments.json:
            show.print_note(f"compiled {', '.join(model.name for model in models)} -> {config.folder}")
    return config.folder


def _is_project_stale(config: Config) -> bool:
    """Test whether the project of ``microc.toml`` is missing, older than a source file, or from another version of microc."""
    from microc.codegen.output_files import PROJECT_MARKER, read_manifest

    try:
        compile_time = (config.folder / PROJECT_MARKER).stat().st_mtime_ns
        manifest = read_manifest(config.folder) or {}
        return manifest.get("microc") != __version__ or any(s.stat().st_mtime_ns > compile_time for s in config.sources)
    except OSError:  # there is no project yet, or a source is missing, which the compilation will report
        return True


def _require_trusted_config(arguments: Arguments, config: Config) -> None:
    """Raise UsageError if ``microc.toml`` names a plugin or an external C library, and the folder of the file is not trusted.

    The code of a plugin or library would run, although the user has not named it on the command line."""
    from microc.base.file_access import TRUST, is_trusted
    from microc.external.backend import BACKENDS

    external = ((BACKENDS.get(name), place) for name, place in config.options.get("external", {}).items())
    library_folders = (backend.folder(folder) if backend else folder for backend, folder in external)
    libraries = [Path(folder) for folder in library_folders if folder]
    for option, what, flag, named in (
        ("plugins", "a plugin", "--plugin", config.options.get("plugins", ())),
        ("external", "a library", "--external", libraries),
    ):
        if named and option not in arguments.command_line_options and not is_trusted(config.path.parent):
            raise UsageError(
                f"microc.toml: got {what} in an untrusted folder, whose code would run: {', '.join(path.name for path in named)}",
                where=str(config.path),
                hint=f"if you trust the folder, allow it: export {TRUST}={config.path.parent}; or give {flag}",
            )


# ---- ``-`` instead of a model or data file: standard input is read once, up to a limit, and written to a temporary file.

_PIPE = Path("-")
_PIPE_ARGUMENTS = ("model", "models", "inputs", "data", "evaluation", "token")
"""Arguments that accept ``-`` for standard input."""
_MAX_PIPE_BYTES = 256 << 20
"""Largest number of bytes that are read from standard input; the limit for model files is the same."""


@contextmanager
def stdin_as_file(arguments: _A) -> Iterator[_A]:
    """Yield the arguments with ``-`` replaced by the path of a temporary file, which contains the bytes of standard input.

    The file exists within the ``with`` block. Raises UsageError if several arguments are ``-``, or if standard input is a
    terminal, empty or too large."""
    values = {name: value for name, value in vars(arguments).items() if name in _PIPE_ARGUMENTS}
    count = sum(value.count(_PIPE) if isinstance(value, tuple) else value == _PIPE for value in values.values())
    if not count:
        yield arguments
        return
    if count > 1:
        raise UsageError(
            f"-: standard input can be read once; got {count} times", hint="give a file name for the other argument"
        )
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "-: standard input is a terminal, expected a file or a pipe", hint="pipe a file in: cat x.npy | microc ..."
        )
    data = sys.stdin.buffer.read(_MAX_PIPE_BYTES + 1)
    if not 0 < len(data) <= _MAX_PIPE_BYTES:
        raise UsageError(
            f"-: got {'no' if not data else f'more than {_MAX_PIPE_BYTES:,}'} bytes on standard input, expected a file",
            hint="check that the command in front of the pipe succeeds" if not data else "give the file by its name",
        )
    is_model = _PIPE in (values.get("model"), *values.get("models", ()))
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / ("stdin" if is_model else f"stdin{_guess_file_suffix(data)}")
        path.write_bytes(data)
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = tuple(path if item == _PIPE else item for item in value)
            elif value == _PIPE:
                values[name] = path
        yield arguments.replace(**values)


def _guess_file_suffix(data: bytes) -> str:
    """Guess the file suffix of data by their first bytes; ``.csv`` if they are not recognised."""
    starts = {b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"RIFF": ".wav", b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg"}
    return next((suffix for start, suffix in starts.items() if data.startswith(start)), ".csv")
