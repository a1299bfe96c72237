"""Models into C projects, for every command that needs one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.model_options import chosen_options
from microc.errors import OutputError, UsageError

if TYPE_CHECKING:
    from microc.driver.api import Program
    from microc.driver.compile.bundle import Bundle
    from microc.driver.progress import Progress
    from microc.target import Board


def progress(arguments: Arguments) -> Progress | None:
    """Where long work reports to."""
    return show.progress(arguments.quiet or arguments.json, arguments.verbose)


def compile_model(model: Path, arguments: Arguments, board: str | Board | None = None, **others: Any) -> Program:
    """Compile under the options of the command line, for their board unless one is given; ``others`` replace options."""
    from microc.driver import api

    found = board or arguments.board or "host"
    return api.compile(model, board=found, progress=progress(arguments), **{**chosen_options(arguments), **others})


def compile_bundle(arguments: Arguments) -> Bundle:
    """Several networks for one firmware."""
    from microc.codegen.names import network_name
    from microc.driver.compile.bundle import bundle

    options = chosen_options(arguments)
    if options.get("name"):
        raise UsageError("--name is for one network, several were given", hint="their names are those of their files")
    _check_names(arguments.models)
    dump = options.get("dump")
    folders = [dump and dump / network_name(model.stem) for model in arguments.models]
    return bundle(
        *(compile_model(model, arguments, dump=d) for model, d in zip(arguments.models, folders, strict=True))
    )


def _check_names(models: Sequence[Path]) -> None:
    """Networks are called after their files: UsageError where two would be called alike."""
    from microc.codegen.files import free
    from microc.codegen.names import network_name

    named: dict[str, Path] = {}
    for model in models:
        other = named.setdefault(network_name(model.stem), model)
        if other is not model:
            raise UsageError(
                f"{other} and {model} would both be called {network_name(model.stem)!r}",
                hint=f"networks are called after their files: cp {shlex.quote(str(model))} {free(model)}",
            )


def refuse_other(folder: Path, arguments: Arguments, models: list[Path], format: str = "") -> None:
    """Refuse to replace the project, or the export, of other networks, before anything is compiled."""
    from microc.codegen.files import free, manifest_of
    from microc.codegen.names import network_name

    there = manifest_of(folder)
    if arguments.force or not there:
        return
    named = chosen_options(arguments).get("name")
    ours = [network_name(named or model.stem) for model in models]
    names = [str(name) for name in there.get("models", [there.get("model", "")])]
    same = names == ours or there.get("source") in [model.name for model in models]
    if not same or there.get("format", "") != format:
        kind = f"the export ({there['format']})" if there.get("format") else "the project"
        raise OutputError(
            f"{folder} holds {kind} of {', '.join(names)}, not of {', '.join(ours)}",
            where=str(folder),
            hint=f"choose another folder: -o {free(folder)}; or replace it: --force",
        )
