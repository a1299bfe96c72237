"""A folder to start in: ``microc.toml``, the model, a README and what git ignores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc import paths
from microc.codegen.files import replacing_folder
from microc.codegen.names import network_name
from microc.codegen.render import render
from microc.codegen.text import Code, Text
from microc.device.boards import load_board
from microc.driver.config import FOLDER, NAME, config_text
from microc.driver.options import make_options
from microc.frontend.detect import contents
from microc.frozen import frozen

DIGITS = "digits/digits_int8.tflite"
"""The model of a project that names none: the demonstration's."""


@frozen
class Start:
    """What the templates are filled with."""

    name: Text
    model: Text
    board: Text
    folder: Code


def new_project(folder: Path, model: Path | None, board: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a project into a folder that is new or empty; the names of its files.

    ``model``: a file, which is read to see that it is a model, and copied; None: that of the demonstration. ``options`` are
    keywords of :func:`~microc.driver.options.make_options`. Raises what reading a model or a board
    raises, and has written nothing then.
    """
    from microc.driver.compile.pipeline import read_at_largest

    source = paths.examples() / DIGITS if model is None else model
    load_board(board)
    read_at_largest(source, make_options(**options))
    suffix = source.suffix if source.suffix[1:].isalnum() else ""
    copy = network_name(source.stem) + suffix.lower()
    named = board if not board.endswith(".toml") else str(Path(board).resolve())
    start = Start(Text(folder.resolve().name), Text(copy), Text(named), Code(FOLDER))
    files: dict[str, bytes] = {
        NAME: config_text(copy, named, {name: _there(value) for name, value in options.items()}).encode(),
        copy: contents(source),
        "README.md": render("new/README.md.j2", start).encode(),
        ".gitignore": render("new/gitignore.j2", start).encode(),
    }
    with replacing_folder(folder, marker=None, option="microc new") as temporary:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
    return tuple(files)


def _there(value: Any) -> Any:
    """A path of the command line, which means another file from within the project."""
    if isinstance(value, Path):
        return value.resolve()
    return tuple(map(_there, value)) if isinstance(value, tuple) else value
