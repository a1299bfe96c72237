# SPDX-License-Identifier: Apache-2.0
"""Read and write ``microc.toml``, the file with a project's model, board and options.

Commands use its values where the command line states none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.base.file_access import TRUST, is_trusted, parse_toml, read_bytes
from microc.base.immutable import frozen
from microc.base.operating_system import distrust_reason, is_writable_for_everybody, quote_argument
from microc.compiler import option_values, validation
from microc.compiler.options import OPTIONS, WRITTEN, Bound, Option, Options, combine_option_words
from microc.errors import OutputError, UsageError, known_names_hint
from microc.external.backend import BACKENDS

NAME = "microc.toml"
FOLDER = "firmware"
KEYS = ("model", "board", "folder", "options")
_MAX_FILE_BYTES = 1 << 20
_NEGATION = "--no-"
"""Prefix of flags that disable an option; in ``microc.toml`` the option itself is set to false."""
_FLAGS = {
    option.flag[2:].replace("-", "_"): name
    for name, option in OPTIONS.items()
    if option.flag and not option.flag.startswith(_NEGATION)
}
NAMES: Mapping[str, str] = MappingProxyType({**_FLAGS, **{name: name for name in OPTIONS}})
"""Python keyword of every option, by the names that ``microc.toml`` accepts: this keyword, or the flag without
``--``."""


@frozen
class Config:
    """The checked contents of a ``microc.toml``.

    ``path``: the path of this file. ``models``: the paths of the models. ``board``: the name of a board or the path of
    a board file, empty if the file names none. ``folder``: the folder of the C project. ``options``: keywords of
    :func:`microc.compiler.options.make_options`. Relative paths have been resolved against the folder of ``path``."""

    path: Path
    models: tuple[Path, ...]
    board: str
    folder: Path
    options: Mapping[str, Any]

    @property
    def sources(self) -> Iterator[Path]:
        """Files from which the project is compiled: ``microc.toml``, the models, a board file, and files that options
        name."""
        yield from (self.path, *self.models)
        if self.board.endswith(".toml"):
            yield Path(self.board)
        for name, files in self.options.items():
            if _is_path_option(OPTIONS[name]) and name != "dump":
                yield from files if isinstance(files, tuple) else (files,)


def find_config(start: Path) -> Path | None:
    """Find ``microc.toml`` in a folder or in the nearest parent folder that contains one; None if there is none.

    The search stops at a parent folder that is writable for everybody, because any user could have put the file
    there."""
    for folder in (start, *start.parents):
        if folder != start and is_writable_for_everybody(folder.stat()):
            return None
        if (folder / NAME).is_file():
            return folder / NAME
    return None


def read_config(path: Path) -> Config:
    """Read and check a ``microc.toml``.

    Raises OutputError if the file cannot be read, and UsageError if its contents are invalid; the error names the
    key."""
    try:
        data = parse_toml(read_bytes(path, _MAX_FILE_BYTES).decode("utf-8"))
    except OSError as error:
        raise OutputError(
            f"cannot read {path}: {error.strerror or error}", where=str(path), hint="check its path and permissions"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path.name} is not valid TOML: {error}", where=str(path), hint="compare it with docs/project.md"
        ) from error
    _check_known_keys(data, KEYS, path, "keys")
    model, folder, options = data.get("model", []), data.get("folder", FOLDER), data.get("options", {})
    models = [model] if isinstance(model, str) else model
    if not isinstance(models, list) or not all(
        isinstance(model_path, str) and model_path and "\0" not in model_path for model_path in models
    ):
        raise _invalid_value_error(path, "model", "the path of a file, or a list of them")
    if not isinstance(data.get("board", ""), str) or "\0" in data.get("board", ""):
        raise _invalid_value_error(path, "board", "a name (microc boards), or the path of a board file")
    if not isinstance(options, dict):
        raise _invalid_value_error(path, "options", "a table: [options]")
    return Config(
        path,
        tuple(path.parent / model_path for model_path in models),
        _resolve_board_file(data.get("board", ""), path.parent),
        _resolve_output_folder(path, folder),
        MappingProxyType(_convert_options(options, path)),
    )


def check_config_owner(config: Config) -> None:
    """Raise UsageError for a ``microc.toml`` that belongs to another user, unless MICROC_TRUST names its folder.

    The project's folder and a board file are checked in the same way: commands run the Makefile in the folder, and the
    programs that a board file names, although the user has named neither on the command line."""
    folder = config.path.parent
    if is_trusted(folder):
        return
    project_files = (config.folder, config.folder / "Makefile")
    board_files = (Path(config.board),) if config.board.endswith(".toml") else ()
    for path in (config.path, *(other for other in (*project_files, *board_files) if os.path.lexists(other))):
        reason = distrust_reason(path)
        if reason:
            raise UsageError(
                f"{path.name} is not used: no argument names it, and {reason}",
                where=str(path),
                hint=f"if you trust the folder, allow it: export {TRUST}={quote_argument(str(folder))}",
            )


def format_config(model: str, board: str, options: Mapping[str, Any]) -> str:
    """Return the text of a ``microc.toml`` for a model, a board and compilation options."""
    lines = [
        "# What microc's commands take in this folder where the command line says nothing.",
        "# microc options lists what may stand under [options].",
        f"model = {_format_toml_value(model)}",
        f"board = {_format_toml_value(board)}",
        f"folder = {_format_toml_value(FOLDER)}",
        "",
        "[options]",
        *(f"{name} = {_format_toml_value(value)}" for name, value in options.items()),
    ]
    return "\n".join(lines) + "\n"


def _check_known_keys(data: Mapping[str, Any], known_keys: Iterable[str], path: Path, key_kind: str) -> None:
    """Raise UsageError for a key of the TOML table ``data`` that is not among ``known_keys``; the hint lists similar
    keys.

    ``path``: path of the file; ``key_kind``: what the keys are, ``keys`` (of the file) or ``options``."""
    for key in data:
        if key.replace("-", "_") not in known_keys:
            hint = known_names_hint(key, known_keys, key_kind)
            if key_kind == "keys" and key.replace("-", "_") in NAMES:
                hint = f"write it under [options] in {path.name}, because it is an option"
            raise UsageError(f"{path.name} has no key {key!r}", where=str(path), hint=hint)


def _invalid_value_error(path: Path, key: str, expected_form: str) -> UsageError:
    """Return the UsageError for a key with an invalid value. ``expected_form``: description of a valid value."""
    return UsageError(f"{path.name}: {key} has an invalid value", where=f"{path}: {key}", hint=f"write {expected_form}")


def _resolve_board_file(board: str, folder: Path) -> str:
    """Resolve ``board`` against a folder if it is the path of a board file; return the name of a board unchanged."""
    return str(folder / board) if board.endswith(".toml") else board


def _resolve_output_folder(path: Path, folder: Any) -> Path:
    """Return the path of the C project's folder, which commands will replace.

    Raises UsageError if the folder is not below the folder of ``microc.toml``, so that nothing else is replaced."""
    if isinstance(folder, str) and "\0" not in folder and _is_inside_folder(path.parent / folder, path.parent):
        return path.parent / folder
    raise _invalid_value_error(path, "folder", f"a folder below that of {path.name}: {FOLDER}")


def _is_inside_folder(inner_path: Path, folder: Path) -> bool:
    """Test whether a path is inside of a folder, after links and ``..`` are resolved."""
    try:
        return folder.resolve() in inner_path.resolve().parents
    except (OSError, RuntimeError):  # links in a circle
        return False


def _convert_options(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Convert the TOML table ``[options]`` to Python keywords and values.

    Raises UsageError for an invalid name or value; the error names the key."""
    _check_known_keys(data, NAMES, path, "options")
    options: dict[str, Any] = {}
    for key, value in data.items():
        name = NAMES[key.replace("-", "_")]
        if name in options:
            raise UsageError(
                f"{path.name}: option {name} is set twice, expected once",
                where=f"{path}: options.{key}",
                hint="remove one of the two lines",
            )
        try:
            options[name] = _convert_option_value(name, OPTIONS[name], value, path.parent)
        except (UsageError, ValueError) as error:
            what, hint = (error.what, error.hint) if isinstance(error, UsageError) else (str(error), "")
            raise UsageError(what, where=f"{path}: options.{key}", hint=hint or "see microc options") from error
    return options


def _convert_option_value(name: str, option: Option, value: Any, folder: Path) -> Any:
    """Convert an option's value in ``microc.toml`` to the option's Python type.

    The value may be a TOML value, or a string in command-line syntax. Paths are resolved against ``folder``."""
    default = getattr(Options(), name)
    if not option.flag and default == ():
        raise UsageError(
            f"{name}: got {validation.short_repr(value)}, expected Python objects, which no file can contain",
            hint="give it to microc.compile",
        )
    # Path functions raise ValueError for a NUL character, but only later and without the name of the option.
    if option.path and "\0" in str(value):
        raise UsageError(f"{name} cannot be {value!r}", hint="write the path of a file")
    if option.word is option_values.read_text_lines and isinstance(value, str):
        return option.check(name, option_values.read_text_lines(str(folder / value)))
    # Paths are resolved against the file's folder, not the current one: commands may run in a subfolder of the project.
    if _is_path_option(option):
        paths = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in paths) or (isinstance(value, list) and default != ()):
            raise UsageError(f"{name} cannot be {value!r}", hint="write the path of a file")
        files = tuple(folder / item for item in paths)
        # microc.toml may come from somebody else, so it may not name output files outside of its folder.
        if option.path == WRITTEN and not all(_is_inside_folder(folder / item, folder) for item in paths):
            raise UsageError(
                f"{name}: {value!r} is outside of the folder of microc.toml", hint="name a path inside of the folder"
            )
        return files if default == () else option.check(name, files[0])
    # A string may be a value in command-line syntax. Flags that disable an option (--no-...) have no value on the command line,
    # so that a string for such an option is passed to check() unconverted.
    if isinstance(value, str) and option.words:
        value = option.words.get(value, value)
    elif option.flag and isinstance(default, Mapping) and _is_command_syntax(value):
        value = combine_option_words(default, map(option.word, [value] if isinstance(value, str) else value))
    elif option.flag and isinstance(value, str) and not option.flag.startswith(_NEGATION):
        value = option.word(value)
    if option.word is option_values.parse_input_value and isinstance(value, Mapping):
        value = {key: folder / item if isinstance(item, (str, Path)) else item for key, item in value.items()}
    checked = option.check(name, value)
    if option.word is option_values.parse_backend_and_library:
        known = ((item, place, BACKENDS.get(item)) for item, place in checked.items())
        return {
            item: backend.beside(place, folder) if backend else str(folder / place) if place else ""
            for item, place, backend in known
        }
    return checked


def _is_command_syntax(toml_value: Any) -> bool:
    """Test whether a TOML value is in command-line syntax: a string or a list of strings."""
    return isinstance(toml_value, str) or (
        isinstance(toml_value, list) and bool(toml_value) and isinstance(toml_value[0], str)
    )


def _is_path_option(option: Option) -> bool:
    """Test whether the value of an option is a path."""
    return option.word in (Path, option_values.parse_path)


def _format_toml_value(value: Any) -> str:
    """Format a value in TOML syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Bound):
        return _format_toml_value([value.minimum, value.maximum, value.step])
    if isinstance(value, Mapping):
        return (
            "{ "
            + ", ".join(f"{_format_toml_value(key)} = {_format_toml_value(of)}" for key, of in value.items())
            + " }"
        )
    if isinstance(value, (list, tuple, frozenset)):
        return "[" + ", ".join(map(_format_toml_value, sorted(value) if isinstance(value, frozenset) else value)) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
