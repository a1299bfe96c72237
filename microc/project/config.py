"""``microc.toml``: a project's model, board and options, which commands take where the command line says nothing."""

from __future__ import annotations

import json
import os
import shlex
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.base.file_access import TRUST, foreign_reason, is_trusted, read_bytes
from microc.base.immutable import frozen
from microc.compiler import option_values
from microc.compiler.options import OPTIONS, WRITTEN, Bound, Option, Options, joined
from microc.errors import OutputError, UsageError, suggestion
from microc.external.backend import BACKENDS

NAME = "microc.toml"
FOLDER = "firmware"
KEYS = ("model", "board", "folder", "options")
_LARGEST = 1 << 20
_OFF = "--no-"
"""How a flag begins that turns its option off: in the file the option itself is false."""
_FLAGS = {
    option.flag[2:].replace("-", "_"): name
    for name, option in OPTIONS.items()
    if option.flag and not option.flag.startswith(_OFF)
}
NAMES: Mapping[str, str] = MappingProxyType({**_FLAGS, **{name: name for name in OPTIONS}})
"""What an option is called in the file: as in Python, or as its flag."""


@frozen
class Config:
    """What a file says: its own path, models and a board (empty: none said), the folder of the C project, and options as
    :func:`microc.compiler.options.make_options` takes them. Paths in it are beside the file."""

    path: Path
    models: tuple[Path, ...]
    board: str
    folder: Path
    options: Mapping[str, Any]

    @property
    def sources(self) -> Iterator[Path]:
        """The files that a compilation is made from, this one too."""
        yield from (self.path, *self.models)
        if self.board.endswith(".toml"):
            yield Path(self.board)
        for name, value in self.options.items():
            if _names_files(OPTIONS[name]) and name != "dump":
                yield from value if isinstance(value, tuple) else (value,)


def find_config(start: Path) -> Path | None:
    """The file in a folder, or the nearest above it; a folder that everybody may write to is not looked into from below."""
    for folder in (start, *start.parents):
        if folder != start and os.name != "nt" and folder.stat().st_mode & stat.S_IWOTH:
            return None
        if (folder / NAME).is_file():
            return folder / NAME
    return None


def read_config(path: Path) -> Config:
    """What a file says. UsageError, which names the key, for what cannot be; OutputError where it cannot be read."""
    try:
        data = tomllib.loads(read_bytes(path, _LARGEST).decode("utf-8"))
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror or error}", where=str(path)) from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise UsageError(f"{path.name} is no TOML: {error}", where=str(path), hint="docs/project.md has one") from error
    _known(data, KEYS, path, "keys")
    model, folder, options = data.get("model", []), data.get("folder", FOLDER), data.get("options", {})
    models = [model] if isinstance(model, str) else model
    if not isinstance(models, list) or not all(isinstance(each, str) and each and "\0" not in each for each in models):
        raise _refusal(path, "model", "the path of a file, or a list of them")
    if not isinstance(data.get("board", ""), str) or "\0" in data.get("board", ""):
        raise _refusal(path, "board", "a name (microc boards), or the path of a board file")
    if not isinstance(options, dict):
        raise _refusal(path, "options", "a table: [options]")
    return Config(
        path,
        tuple(path.parent / each for each in models),
        _board(data.get("board", ""), path.parent),
        _inside(path, folder),
        MappingProxyType(_options(options, path)),
    )


def refuse_foreign(config: Config) -> None:
    """UsageError for a file that is not the user's own, in a folder that MICROC_TRUST does not name.

    The project's folder, whose Makefile runs, and a board file, which names programs, are held to the same rule: nobody named
    them on the command line either.
    """
    folder = config.path.parent
    if is_trusted(folder):
        return
    made = (config.folder, config.folder / "Makefile")
    board = (Path(config.board),) if config.board.endswith(".toml") else ()
    for path in (config.path, *(each for each in (*made, *board) if os.path.lexists(each))):
        reason = foreign_reason(path)
        if reason:
            raise UsageError(
                f"{path.name} was found, not named, and is not used: {reason}",
                where=str(path),
                hint=f"if you trust the folder, allow it: export {TRUST}={shlex.quote(str(folder))}",
            )


def config_text(model: str, board: str, options: Mapping[str, Any]) -> str:
    """A file that says this; TOML."""
    lines = [
        "# What microc's commands take in this folder where the command line says nothing.",
        "# microc options lists what may stand under [options].",
        f"model = {_toml(model)}",
        f"board = {_toml(board)}",
        f"folder = {_toml(FOLDER)}",
        "",
        "[options]",
        *(f"{name} = {_toml(value)}" for name, value in options.items()),
    ]
    return "\n".join(lines) + "\n"


def _known(data: Mapping[str, Any], known: Iterable[str], path: Path, what: str) -> None:
    for key in data:
        if key.replace("-", "_") not in known:
            hint = suggestion(key, known, what)
            if what == "keys" and key.replace("-", "_") in NAMES:
                hint = f"it is an option: write it under [options] in {path.name}"
            raise UsageError(f"{path.name} has no key {key!r}", where=str(path), hint=hint)


def _refusal(path: Path, key: str, wanted: str) -> UsageError:
    return UsageError(f"{key} of {path.name} is no such thing", where=f"{path}: {key}", hint=wanted)


def _board(board: str, folder: Path) -> str:
    """A name, or a board file beside ours."""
    return str(folder / board) if board.endswith(".toml") else board


def _inside(path: Path, folder: Any) -> Path:
    """The folder that is written, and replaced: one below the file's own."""
    if isinstance(folder, str) and "\0" not in folder and _is_below(path.parent / folder, path.parent):
        return path.parent / folder
    raise _refusal(path, "folder", f"a folder below that of {path.name}: {FOLDER}")


def _is_below(path: Path, folder: Path) -> bool:
    """Test whether a path leads below a folder, links and ``..`` followed."""
    try:
        return folder.resolve() in path.resolve().parents
    except (OSError, RuntimeError):  # links in a circle
        return False


def _options(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    _known(data, NAMES, path, "options")
    found: dict[str, Any] = {}
    for key, given in data.items():
        name = NAMES[key.replace("-", "_")]
        if name in found:
            raise UsageError(f"{path.name} has {name} twice", where=f"{path}: options.{key}")
        try:
            found[name] = _value(name, OPTIONS[name], given, path.parent)
        except (UsageError, ValueError) as error:
            what, hint = (error.what, error.hint) if isinstance(error, UsageError) else (str(error), "")
            raise UsageError(what, where=f"{path}: options.{key}", hint=hint or "microc options") from error
    return found


def _value(name: str, option: Option, given: Any, folder: Path) -> Any:
    """A value as TOML has it, or as a word of the command line, in Python's type."""
    default = getattr(Options(), name)
    if not option.flag and default == ():
        raise UsageError(f"{name} takes objects of Python", hint="give it to microc.compile")
    if option.path and "\0" in str(given):
        raise UsageError(f"{name} cannot be {given!r}", hint="the path of a file")
    if option.word is option_values.lines and isinstance(given, str):
        return option.check(name, option_values.lines(str(folder / given)))
    if _names_files(option):
        several = given if isinstance(given, list) else [given]
        if not all(isinstance(each, str) for each in several) or (isinstance(given, list) and default != ()):
            raise UsageError(f"{name} cannot be {given!r}", hint="the path of a file")
        files = tuple(folder / each for each in several)
        if option.path == WRITTEN and not all(_is_below(folder / each, folder) for each in several):
            raise UsageError(f"{name} is written, and {given!r} leads out of the folder", hint="name a place below it")
        return files if default == () else option.check(name, files[0])
    if isinstance(given, str) and option.words:
        given = option.words.get(given, given)
    elif option.flag and isinstance(default, Mapping) and _spoken(given):
        given = joined(default, map(option.word, [given] if isinstance(given, str) else given))
    elif option.flag and isinstance(given, str) and not option.flag.startswith(_OFF):
        given = option.word(given)
    checked = option.check(name, given)
    if option.word is option_values.parse_external:
        known = ((each, place, BACKENDS.get(each)) for each, place in checked.items())
        return {
            each: backend.beside(place, folder) if backend else str(folder / place) if place else ""
            for each, place, backend in known
        }
    return checked


def _spoken(given: Any) -> bool:
    """Whether a value is words of a command line."""
    return isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], str))


def _names_files(option: Option) -> bool:
    return option.word in (Path, option_values.path)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Bound):
        return _toml([value.minimum, value.maximum, value.step])
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(of)}" for key, of in value.items()) + " }"
    if isinstance(value, (list, tuple, frozenset)):
        return "[" + ", ".join(map(_toml, sorted(value) if isinstance(value, frozenset) else value)) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
