"""The project and the board of a command: models compiled, files written, sessions."""

from __future__ import annotations

import csv
import json
import math
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc import __version__
from microc.base.file_access import open_regular
from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.shared_options import chosen_options, spoken_options
from microc.errors import OutputError, UsageError, nearest_file

if TYPE_CHECKING:
    from microc.base.dtypes import Array
    from microc.compiler.api import Program
    from microc.compiler.bundle import Bundle
    from microc.compiler.interaction import Progress
    from microc.project.config import Config
    from microc.run.board_project import Project
    from microc.run.data.samples import Samples
    from microc.target import Board


# ---- Files that commands write beside what they print; whole or not at all.


def check_places(**places: Path | Sequence[Path] | None) -> None:
    """OutputError, before the work, where a file cannot be written that an option of this name asks for."""
    from microc.codegen.output_files import check_place

    for option, paths in places.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            check_place(path, option)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with commas, one row a line."""
    from microc.codegen.output_files import replacing

    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    from microc.codegen.output_files import replacing

    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


# ---- Models into C projects, for every command that needs one.


def progress(arguments: Arguments) -> Progress | None:
    """Where long work reports to."""
    return show.progress(arguments.quiet or arguments.json, arguments.verbose)


def compile_model(model: Path, arguments: Arguments, board: str | Board | None = None, **others: Any) -> Program:
    """Compile under the options of the command line, for their board unless one is given; ``others`` replace options."""
    from microc.compiler import api

    found = board or arguments.board or "host"
    return api.compile(model, board=found, progress=progress(arguments), **{**chosen_options(arguments), **others})


def compile_bundle(arguments: Arguments) -> Bundle:
    """Several networks for one firmware."""
    from microc.codegen.c.identifiers import network_name
    from microc.compiler.bundle import bundle

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
    from microc.codegen.c.identifiers import network_name
    from microc.codegen.output_files import free

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
    from microc.codegen.c.identifiers import network_name
    from microc.codegen.output_files import free, manifest_of

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


# ---- The project around the current folder: what ``microc.toml`` says where the command line says nothing.

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
    from microc.project.config import find_config, read_config, refuse_foreign

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
    from microc.codegen.output_files import MARKER, manifest_of

    try:
        made = (config.folder / MARKER).stat().st_mtime_ns
        known = manifest_of(config.folder) or {}
        return known.get("microc") != __version__ or any(s.stat().st_mtime_ns > made for s in config.sources)
    except OSError:  # nothing was made, or a source is gone, of which compiling tells
        return True


def _refuse_untrusted(arguments: Arguments, config: Config) -> None:
    """A file that came with a folder may name a plugin, or a library in C; only its user says that they may run."""
    from microc.base.file_access import TRUST, is_trusted
    from microc.external.backend import BACKENDS

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


# ---- ``microc run``, and what all commands need that talk to a board: its project, its line, its inputs.


def run(arguments: Arguments) -> show.Answer:
    """``microc run``."""
    import numpy as np

    from microc.run.session import Device
    from microc.run.verify import random_inputs

    check_places(**{"--output": arguments.outputs})
    with opened_project(arguments) as project:
        given = load_inputs(arguments, project.manifest) if arguments.inputs else None
        _check_outputs(arguments.outputs, len(project.manifest["outputs"]))
        build_firmware(project, arguments)
        with Device(project, progress=progress(arguments), **line(arguments)) as device:
            result = device.run(*(given or random_inputs(device.inputs, np.random.default_rng(arguments.seed))))
            ticks, clock, outputs = device.last.max if device.last else 0, device.clock, device.outputs
            tested, failed = device.self_test, device.failed_self_test()
    results = result if isinstance(result, tuple) else (result,)
    for path, array in zip(arguments.outputs, results, strict=False):
        _save(path, array)
    data = {
        "board": project.board.name,
        "seed": None if given else arguments.seed,
        "unit": clock.unit,
        "unit_meaning": clock.meaning,
        "time": clock.amount(ticks),
        "seconds": clock.seconds(ticks),
        "ticks": ticks,
        "tick_hz": clock.tick_hz,
        "instructions": clock.amount(ticks) if clock.counts else None,
        "self_test": tested,
        "outputs": [
            {"name": t["name"], "dtype": t["dtype"], "shape": list(a.shape), "values": show.plain(a.tolist())}
            for t, a in zip(outputs, results, strict=True)
        ],
    }
    lines = [
        f"{t['name']}  {t['dtype']} {show.shape(a.shape)}:  {show.values(a.reshape(-1).tolist())}"
        for t, a in zip(outputs, results, strict=True)
    ]
    if not given:
        lines.append(f"of random numbers (--seed {arguments.seed}); of your own: --input X.npy")
    lines.append(show.duration(clock, clock.amount(ticks)))
    return show.Answer(data, "\n".join([*lines, *([f"self-test {tested}"] if tested else [])]), error=failed)


def line(arguments: Arguments) -> dict[str, Any]:
    """The options that say how a board is reached."""
    return {"port": arguments.port, "bauds": arguments.baud, "patience": arguments.timeout}


@contextmanager
def opened_project(arguments: Arguments) -> Iterator[Project]:
    """The project in a folder, or that of a model, compiled into a temporary folder. :func:`build_firmware` comes after all
    that can be refused before."""
    from microc.run import board_project

    if arguments.source.is_dir():
        project = board_project.open_project(arguments.source, arguments.network)
        if arguments.board not in ("", project.board.name):
            raise UsageError(
                f"the project is for board {project.board.name!r}, not {arguments.board!r}",
                where=str(arguments.source),
                hint="compile the model again for the other board",
            )
        yield project
        return
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        program = compile_model(arguments.source, arguments)
        yield board_project.open_project(program.write(Path(folder) / program.report()["model"]))


def build_firmware(project: Project, arguments: Arguments) -> None:
    """Build it, unless it is the user's and its board is behind a port, which has its firmware already."""
    from microc.run import board_project

    if not (arguments.source.is_dir() and arguments.port):
        board_project.build(project)


def load_inputs(arguments: Arguments, manifest: Mapping[str, Any]) -> list[Array]:
    """The arrays of .npy files, tables and pictures, checked against the network's inputs before anything runs."""
    from microc.compiler.sizes.run_shapes import RunShapes
    from microc.run.data.array_files import is_table
    from microc.run.data.pictures import Reader, is_picture, with_colours

    known = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    tensors = with_colours((known[name] for name in manifest["inputs"]), manifest["options"])
    arrays, span = [], pixels(arguments)
    for path, tensor in zip_longest(arguments.inputs, tensors[: len(arguments.inputs)]):
        if tensor is not None and is_picture(path):
            arrays.append(Reader(tensor, span).read(path))
        elif tensor is not None and is_table(path):
            arrays.append(_of_table(path, tensor))
        else:
            arrays.append(load_array(path))
    return RunShapes(manifest).fitting(tensors, arrays)


def samples_of(arguments: Arguments, manifest: Mapping[str, Any], expected: Path | None = None) -> Samples | None:
    """The samples of ``--data`` with their ``--labels``, as the network takes them; ``expected``: what its outputs should be."""
    from microc.run.data.pictures import with_colours
    from microc.run.data.samples import read_samples

    if arguments.data is None:
        return None
    known = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    inputs, outputs = ([known[name] for name in manifest[kind]] for kind in ("inputs", "outputs"))
    inputs = with_colours(inputs, manifest["options"])
    return read_samples(inputs, outputs, arguments.data, arguments.labels, expected, pixels(arguments))


def pixels(arguments: Arguments) -> tuple[float, float] | None:
    """The reals that pixels of 0 and of 255 stand for, where ``--pixels`` says so."""
    from microc.run.data.array_files import holds_pictures

    if arguments.pixels is None:
        return None
    low, high = arguments.pixels
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(f"--pixels {low} {high} are no numbers", hint="give the reals for 0 and 255: --pixels -1 1")
    others = (getattr(arguments, name, None) for name in ("data", "evaluation"))
    given = [*getattr(arguments, "inputs", ()), *filter(None, others)]
    if not any(map(holds_pictures, given)):
        raise UsageError("--pixels speaks of pictures, and none are given", hint="--input cat.png --pixels -1 1")
    return low, high


def _of_table(path: Path, tensor: Mapping[str, Any]) -> Array:
    """The numbers of a table in the shape and dtype of an input, which must hold them as they are."""
    import numpy as np

    from microc.base import dtypes
    from microc.run.data.array_files import ROWS, read

    table = read(path)[ROWS]
    dtype = dtypes.to_numpy(tensor["dtype"])
    with np.errstate(invalid="ignore"):
        found = table.astype(dtype)
    if dtypes.is_integer(tensor["dtype"]) and not np.array_equal(found.astype(table.dtype), table):
        raise UsageError(
            f"{path.name} holds numbers that are no {tensor['dtype']}",
            where=str(path),
            hint="write integers of its range",
        )
    shape = tuple(tensor["shape"])
    return found.reshape(shape) if found.size == np.prod(shape) else found


def load_array(path: Path) -> Array:
    """The array in a .npy file."""
    import numpy as np

    from microc.device.board_info import readable
    from microc.run.data import array_files
    from microc.run.data.array_files import DAMAGE

    try:
        with open_regular(path) as file:
            array = array_files.load(file)
    except OSError as error:
        hint = nearest_file(path) or "write it with numpy.save"
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except DAMAGE as error:
        hint = f'write numbers: numpy.save("{path.stem}.npy", array)'
        why = f": {readable(str(error), 300)}" if type(error) in (ValueError, EOFError) else ""
        raise UsageError(f"{path} is no .npy file of numbers{why}", where=str(path), hint=hint) from error
    if not isinstance(array, np.ndarray):
        hint = f'save each by itself: numpy.save("{path.stem}.npy", arrays[{next(iter(array), "")!r}])'
        raise UsageError(f"{path} holds several arrays", where=str(path), hint=hint)
    return array


def _check_outputs(paths: list[Path], number: int) -> None:
    if len(paths) > number:
        what = f"the network has {number} outputs, {len(paths)} --output were given"
        raise UsageError(what, hint=f"leave out --output {' and --output '.join(map(str, paths[number:]))}")


def _save(path: Path, array: Array) -> None:
    import numpy as np

    from microc.codegen.output_files import replacing

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)
