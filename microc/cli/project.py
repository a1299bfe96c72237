"""The project around the current folder: what ``microc.toml`` says where the command line says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from microc import __version__
from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import compile_bundle, compile_model
from microc.cli.model_options import spoken_options
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.driver.config import Config

_FIRST = {"compile": "models", "check": "model", "explain": "model", "export": "model", "tune": "model", "build": "folder",
          "flash": "folder", "load": "folder", "run": "source", "profile": "source", "size": "source", "verify": "source",
          "report": "source", "watch": "source", "bench": "source"}  # fmt: skip
"""The commands that take from the file what they are not told, and where their first word stands."""
_WORDS = {"models": "MODEL", "model": "MODEL", "folder": "DIR", "source": "DIR|MODEL"}


def configure(arguments: Arguments) -> None:
    """Fill in what a command line leaves out; a project's folder is compiled where it is older than what it is made from.

    UsageError where neither says what a command is about.
    """
    first = _FIRST.get(arguments.command, "")
    if not first or not _asks(arguments, first):
        return
    from microc.driver.config import find_config, read_config, refuse_foreign

    path = find_config(Path.cwd())
    if path is None:
        if not getattr(arguments, first) and arguments.command not in (
            "export",
            "tune",
        ):  # which say more of what they lack
            hint = "say it, or start a project in which commands need none: microc new"
            needed = "MODEL" if arguments.command == "bench" else _WORDS[first]
            raise UsageError(f"{arguments.command} needs {needed}", hint=hint)
        return
    arguments.config = config = read_config(path)
    refuse_foreign(config)
    _refuse_untrusted(arguments, config)
    if not arguments.quiet and not arguments.json:
        show.note(f"as {path} says")
    fill = {"models": _models, "model": _model, "folder": _folder, "source": _source}[first]
    fill(arguments, config)


def _asks(arguments: Arguments, first: str) -> bool:
    """Whether a command reads anything that the file could say: not of a project, a program or records that are there."""
    if first == "folder":
        return arguments.folder is None
    if first == "source":
        return arguments.source is None or not (arguments.source.is_dir() or arguments.source.suffix == ".elf")
    records = arguments.command == "tune" and (arguments.show or arguments.merge or arguments.prune)
    return not (records or (arguments.command == "export" and arguments.listing))


def _models(arguments: Arguments, config: Config) -> None:
    _board(arguments, config)
    if not arguments.models:
        arguments.models, arguments.output = _named(config), arguments.output or config.folder
        arguments.force |= arguments.output == config.folder  # it is the file's own


def _model(arguments: Arguments, config: Config) -> None:
    _board(arguments, config)
    if arguments.command == "explain" and arguments.model and not arguments.layer and not arguments.model.exists():
        arguments.model, arguments.layer = None, str(arguments.model)
    arguments.model = arguments.model or _only(config)


def _folder(arguments: Arguments, config: Config) -> None:
    arguments.folder = _compiled(arguments, config)


def _source(arguments: Arguments, config: Config) -> None:
    """A model that is named, or the file's under options that are; else the file's project. Boards are compared by the model."""
    if arguments.command == "bench":
        arguments.source = arguments.source or _only(config)
        arguments.board_names = arguments.board_names or (config.board,)
        return
    if arguments.source is None and arguments.command == "verify" and arguments.against:
        arguments.model_file = arguments.model_file or _only(config)
    if arguments.source is None and not spoken_options(arguments) and not arguments.board:
        arguments.source = _compiled(arguments, config)
        return
    arguments.model_file = None if arguments.source is None else getattr(arguments, "model_file", None)
    arguments.source = arguments.source or _only(config)
    _board(arguments, config)


def _board(arguments: Arguments, config: Config) -> None:
    if not getattr(arguments, "target", ""):
        arguments.board = arguments.board or config.board


def _named(config: Config) -> list[Path]:
    if not config.models:
        raise UsageError("microc.toml names no model", where=str(config.path), hint='model = "model.tflite"')
    return list(config.models)


def _only(config: Config) -> Path:
    """The one model of a command that takes one."""
    named = _named(config)
    if len(named) > 1:
        raise UsageError("microc.toml names several models", where=str(config.path), hint="say which: give its file")
    return named[0]


def _compiled(arguments: Arguments, config: Config) -> Path:
    """The file's C project, compiled again when it is older than what it is made from."""
    if _stale(config):
        arguments.models, arguments.board = _named(config), config.board
        several = len(arguments.models) > 1
        program = compile_bundle(arguments) if several else compile_model(arguments.models[0], arguments)
        program.write(config.folder)
        if not arguments.quiet and not arguments.json:
            show.note(f"compiled {', '.join(model.name for model in arguments.models)} -> {config.folder}")
    arguments.board = ""  # the project has one
    return config.folder


def _stale(config: Config) -> bool:
    from microc.codegen.files import MARKER, manifest_of

    try:
        made = (config.folder / MARKER).stat().st_mtime_ns
        known = manifest_of(config.folder) or {}
        return known.get("microc") != __version__ or any(s.stat().st_mtime_ns > made for s in config.sources)
    except OSError:  # nothing was made, or a source is gone, of which compiling tells
        return True


def _refuse_untrusted(arguments: Arguments, config: Config) -> None:
    """A file that came with a folder may name a plugin, or a library in C; only its user says that they may run."""
    from microc.external.known import BACKENDS
    from microc.reading import TRUST, is_trusted

    external = ((BACKENDS.get(name), place) for name, place in config.options.get("external", {}).items())
    places = (backend.folder(place) if backend else place for backend, place in external)
    libraries = [Path(place) for place in places if place]
    for option, what, flag, named in (
        ("plugins", "a plugin", "--plugin", config.options.get("plugins", ())),
        ("external", "a library", "--external", libraries),
    ):
        if named and option not in spoken_options(arguments) and not is_trusted(config.path.parent):
            raise UsageError(
                f"microc.toml names {what}, whose code would run: {', '.join(path.name for path in named)}",
                where=str(config.path),
                hint=f"if the folder is yours, say so once: export {TRUST}={config.path.parent}; or give {flag}",
            )
