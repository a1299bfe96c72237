"""Functions that many commands share: output files, compilation, ``microc.toml``, projects and inputs; and ``microc run``."""

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
from microc.base.file_access import open_regular_file
from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.shared_options import command_line_options, compilation_options
from microc.errors import OutputError, UsageError, similar_files_hint

if TYPE_CHECKING:
    from microc.base.dtypes import Array
    from microc.compiler.api import Program
    from microc.compiler.bundle import Bundle
    from microc.compiler.interaction import Progress
    from microc.project.config import Config
    from microc.run.board_project import Project
    from microc.run.data.samples import Samples
    from microc.target import Board


# ---- Output files of commands. Each is written to a temporary file first, so that it is written completely or not at all.


def check_output_paths(**paths_by_flag: Path | Sequence[Path] | None) -> None:
    """Raise OutputError if an output file cannot be written. Commands call this before they begin their work.

    Keywords: flags of the options that name the files."""
    from microc.codegen.output_files import check_writable

    for option, paths in paths_by_flag.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            check_writable(path, option)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to a file of comma-separated values."""
    from microc.codegen.output_files import replace_atomically

    with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_json_file(path: Path, data: Any) -> None:
    """Write plain data to a file as indented JSON."""
    write_text_file(path, json.dumps(data, indent=1) + "\n")


def write_text_file(path: Path, text: str) -> None:
    """Write a text to a file, completely or not at all."""
    from microc.codegen.output_files import replace_atomically

    with replace_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


# ---- Compilation, for commands that need a C project.


def progress_callback(arguments: Arguments) -> Progress | None:
    """Return the function that shows the progress of a command; None if ``--quiet`` or ``--json`` forbids that, or if
    standard error is no terminal."""
    return show.make_progress_callback(arguments.quiet or arguments.json, arguments.verbose)


def compile_with_arguments(
    model: Path, arguments: Arguments, board: str | Board | None = None, **option_overrides: Any
) -> Program:
    """Compile a model with the compilation options of the command line and of ``microc.toml``.

    ``board``: the board to compile for; None: the board of the command line, else the host. ``option_overrides``: compilation
    options that replace those of the command line."""
    from microc.compiler import api

    target = board or arguments.board or "host"
    return api.compile(
        model,
        board=target,
        progress=progress_callback(arguments),
        **{**compilation_options(arguments), **option_overrides},
    )


def compile_bundle(arguments: Arguments) -> Bundle:
    """Compile the models of the command line into one firmware."""
    from microc.codegen.c.identifiers import network_name
    from microc.compiler.bundle import bundle

    options = compilation_options(arguments)
    if options.get("name"):
        raise UsageError(
            f"--name: got {len(arguments.models)} networks, expected one",
            hint="leave out --name: each network gets the name of its file",
        )
    _check_network_names_differ(arguments.models)
    dump = options.get("dump")
    folders = [dump and dump / network_name(model.stem) for model in arguments.models]
    return bundle(
        *(compile_with_arguments(model, arguments, dump=d) for model, d in zip(arguments.models, folders, strict=True))
    )


def _check_network_names_differ(models: Sequence[Path]) -> None:
    """Raise UsageError if two networks would get the same C name, which is derived from the name of the model file."""
    from microc.codegen.c.identifiers import network_name
    from microc.codegen.output_files import find_unused_path

    models_by_name: dict[str, Path] = {}
    for model in models:
        first = models_by_name.setdefault(network_name(model.stem), model)
        if first is not model:
            raise UsageError(
                f"{first} and {model} would both be called {network_name(model.stem)!r}, expected different names",
                hint="rename a file, whose name becomes the network's: "
                f"cp {shlex.quote(str(model))} {find_unused_path(model)}",
            )


def check_replaceable(folder: Path, arguments: Arguments, models: list[Path], format: str = "") -> None:
    """Raise OutputError if ``folder`` contains the project or export of other networks, unless ``--force`` is given.

    ``models``: model files of the networks to write; ``format``: name of the export format, empty for a project."""
    from microc.codegen.c.identifiers import network_name
    from microc.codegen.output_files import find_unused_path, read_manifest

    manifest = read_manifest(folder)
    if arguments.force or not manifest:
        return
    name_option = compilation_options(arguments).get("name")
    new_names = [network_name(name_option or model.stem) for model in models]
    old_names = [str(name) for name in manifest.get("models", [manifest.get("model", "")])]
    is_same_network = old_names == new_names or manifest.get("source") in [model.name for model in models]
    if not is_same_network or manifest.get("format", "") != format:
        content, new_content = (
            f"the export ({name})" if name else "the project" for name in (manifest.get("format", ""), format)
        )
        raise OutputError(
            f"{folder} contains {content} of {', '.join(old_names)}, not {new_content} of {', '.join(new_names)}",
            where=str(folder),
            hint=f"choose another folder: -o {find_unused_path(folder)}; or overwrite this one: --force",
        )


# ---- ``microc.toml`` in the current folder or a parent: it contains the defaults of arguments that the command line omits.

_POSITIONAL = {"compile": "models", "check": "model", "explain": "model", "export": "model", "tune": "model", "build": "folder",
          "flash": "folder", "load": "folder", "run": "source", "profile": "source", "size": "source", "verify": "source",
          "report": "source", "watch": "source", "bench": "source"}  # fmt: skip
"""Commands that read defaults from ``microc.toml``, with the name of their first positional argument."""
_METAVARS = {"models": "MODEL", "model": "MODEL", "folder": "DIR", "source": "DIR|MODEL"}
"""Metavar of a command's first positional argument, by the argument's name."""


def fill_from_config(arguments: Arguments) -> None:
    """Set arguments that the command line omits to the values in ``microc.toml``.

    If a command needs the project of ``microc.toml`` and a source file is newer than the project, the project is compiled
    first. Raises UsageError if neither the command line nor the file names the model or project that the command needs."""
    first = _POSITIONAL.get(arguments.command, "")
    if not first or not _may_need_config(arguments, first):
        return
    from microc.project.config import check_config_owner, find_config, read_config

    path = find_config(Path.cwd())
    if path is None:
        # export and tune report in their own words what is missing
        if not getattr(arguments, first) and arguments.command not in ("export", "tune"):
            hint = "give it, or create a project whose microc.toml names it: microc new"
            needed = "MODEL" if arguments.command == "bench" else _METAVARS[first]
            raise UsageError(f"{arguments.command} needs {needed}", hint=hint)
        return
    arguments.config = config = read_config(path)
    check_config_owner(config)
    _require_trusted_config(arguments, config)
    if not arguments.quiet and not arguments.json:
        show.print_note(f"as {path} says")
    fill = {"models": _fill_models, "model": _fill_model, "folder": _fill_project_folder, "source": _fill_source}[first]
    fill(arguments, config)


def _may_need_config(arguments: Arguments, first_positional: str) -> bool:
    """Test whether a command may need ``microc.toml``.

    It does not if the command line names a project folder, an ELF file or a file of tuning records. ``first_positional``:
    name of the command's first positional argument."""
    if first_positional == "folder":
        return arguments.folder is None
    if first_positional == "source":
        return arguments.source is None or not (arguments.source.is_dir() or arguments.source.suffix == ".elf")
    records = arguments.command == "tune" and (arguments.show or arguments.merge or arguments.prune)
    return not (records or (arguments.command == "export" and arguments.listing))


def _fill_models(arguments: Arguments, config: Config) -> None:
    """Set models, board and output folder of ``microc compile`` from ``microc.toml``, if the command line omits them."""
    _fill_board(arguments, config)
    if not arguments.models:
        arguments.models, arguments.output = _models_of_config(config), arguments.output or config.folder
        arguments.force |= arguments.output == config.folder  # this folder belongs to microc.toml: replace it freely


def _fill_model(arguments: Arguments, config: Config) -> None:
    """Set model and board of a command that accepts one model from ``microc.toml``, if the command line omits them.

    For ``microc explain NAME``, NAME is a layer if there is no file of this name."""
    _fill_board(arguments, config)
    if arguments.command == "explain" and arguments.model and not arguments.layer and not arguments.model.exists():
        arguments.model, arguments.layer = None, str(arguments.model)
    arguments.model = arguments.model or _only_model_of_config(config)


def _fill_project_folder(arguments: Arguments, config: Config) -> None:
    """Set the project folder of a command to the project of ``microc.toml``; compile the project if a source is newer."""
    arguments.folder = _up_to_date_project(arguments, config)


def _fill_source(arguments: Arguments, config: Config) -> None:
    """Set the source (a model or a project folder) of a command from ``microc.toml``, if the command line omits it.

    The source is the project of ``microc.toml``. It is the model of ``microc.toml`` if the command line contains a board or
    compilation options, because a project has its own; and always for ``microc bench``, which measures several boards."""
    if arguments.command == "bench":
        arguments.source = arguments.source or _only_model_of_config(config)
        arguments.board_names = arguments.board_names or (config.board,)
        return
    if arguments.source is None and arguments.command == "verify" and arguments.against:
        arguments.model_file = arguments.model_file or _only_model_of_config(config)
    if arguments.source is None and not command_line_options(arguments) and not arguments.board:
        arguments.source = _up_to_date_project(arguments, config)
        return
    arguments.model_file = None if arguments.source is None else getattr(arguments, "model_file", None)
    arguments.source = arguments.source or _only_model_of_config(config)
    _fill_board(arguments, config)


def _fill_board(arguments: Arguments, config: Config) -> None:
    """Set the board from ``microc.toml``, unless the command line names a board or a target."""
    if not getattr(arguments, "target", ""):
        arguments.board = arguments.board or config.board


def _models_of_config(config: Config) -> list[Path]:
    """Return the models that ``microc.toml`` names; raise UsageError if it names none."""
    if not config.models:
        raise UsageError("microc.toml names no model", where=str(config.path), hint='add it: model = "model.tflite"')
    return list(config.models)


def _only_model_of_config(config: Config) -> Path:
    """Return the only model that ``microc.toml`` names; raise UsageError if it names none or several."""
    models = _models_of_config(config)
    if len(models) > 1:
        raise UsageError(
            f"microc.toml names {len(models)} models, expected one",
            where=str(config.path),
            hint=f"give the file of one: {shlex.quote(str(models[0]))}",
        )
    return models[0]


def _up_to_date_project(arguments: Arguments, config: Config) -> Path:
    """Return the project folder of ``microc.toml``; compile the project first if a source file is newer than the project."""
    if _is_project_stale(config):
        arguments.models, arguments.board = _models_of_config(config), config.board
        is_bundle = len(arguments.models) > 1
        program = compile_bundle(arguments) if is_bundle else compile_with_arguments(arguments.models[0], arguments)
        program.write(config.folder)
        if not arguments.quiet and not arguments.json:
            show.print_note(f"compiled {', '.join(model.name for model in arguments.models)} -> {config.folder}")
    arguments.board = ""  # the project has its own board
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
        if named and option not in command_line_options(arguments) and not is_trusted(config.path.parent):
            raise UsageError(
                f"microc.toml: got {what} in an untrusted folder, whose code would run: {', '.join(path.name for path in named)}",
                where=str(config.path),
                hint=f"if you trust the folder, allow it: export {TRUST}={config.path.parent}; or give {flag}",
            )


# ---- ``microc run``, and functions that it shares with other commands on boards: project, serial line, inputs.


def run_run_command(arguments: Arguments) -> show.Answer:
    """Run ``microc run``: run a network once on its board, print its outputs, and write them to files if asked."""
    import numpy as np

    from microc.run.session import Device
    from microc.run.verification import random_inputs

    check_output_paths(**{"--output": arguments.outputs})
    with open_project_of_source(arguments) as project:
        inputs = load_inputs(arguments, project.manifest) if arguments.inputs else None
        _check_output_count(arguments.outputs, len(project.manifest["outputs"]))
        build_firmware(project, arguments)
        with Device(project, progress=progress_callback(arguments), **serial_line_options(arguments)) as device:
            result = device.run(*(inputs or random_inputs(device.inputs, np.random.default_rng(arguments.seed))))
            ticks, clock, outputs = device.last.max if device.last else 0, device.clock, device.outputs
            self_test, failed = device.self_test, device.failed_self_test()
    results = result if isinstance(result, tuple) else (result,)
    for path, array in zip(arguments.outputs, results, strict=False):
        _save_npy_file(path, array)
    data = {
        "board": project.board.name,
        "seed": None if inputs else arguments.seed,
        "unit": clock.unit,
        "unit_meaning": clock.meaning,
        "time": clock.convert_ticks(ticks),
        "seconds": clock.seconds(ticks),
        "ticks": ticks,
        "tick_hz": clock.tick_hz,
        "instructions": clock.convert_ticks(ticks) if clock.counts_instructions else None,
        "self_test": self_test,
        "outputs": [
            {
                "name": t["name"],
                "dtype": t["dtype"],
                "shape": list(a.shape),
                "values": show.replace_non_finite(a.tolist()),
            }
            for t, a in zip(outputs, results, strict=True)
        ],
    }
    lines = [
        f"{t['name']}  {t['dtype']} {show.format_shape(a.shape)}:  {show.format_leading_values(a.reshape(-1).tolist())}"
        for t, a in zip(outputs, results, strict=True)
    ]
    if not inputs:
        lines.append(f"of random numbers (--seed {arguments.seed}); of your own: --input X.npy")
    lines.append(show.format_measured_time(clock, clock.convert_ticks(ticks)))
    return show.Answer(data, "\n".join([*lines, *([f"self-test {self_test}"] if self_test else [])]), error=failed)


def serial_line_options(arguments: Arguments) -> dict[str, Any]:
    """Return the options of the serial line (port, baud rates, time-out) as keywords of
    :class:`microc.run.session.Device`."""
    return {"port": arguments.port, "bauds": arguments.baud, "patience": arguments.timeout}


@contextmanager
def open_project_of_source(arguments: Arguments) -> Iterator[Project]:
    """Open the project folder that the command line names, or compile its model into a temporary project.

    The firmware is not built: a command calls :func:`build_firmware`, which is slow, after it has checked its arguments."""
    from microc.run import board_project

    if arguments.source.is_dir():
        project = board_project.open_project(arguments.source, arguments.network)
        if arguments.board not in ("", project.board.name):
            raise UsageError(
                f"--board: got {arguments.board!r}, but the project was compiled for {project.board.name!r}",
                where=str(arguments.source),
                hint="compile the model again for the other board",
            )
        yield project
        return
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        program = compile_with_arguments(arguments.source, arguments)
        yield board_project.open_project(program.write(Path(folder) / program.report()["model"]))


def build_firmware(project: Project, arguments: Arguments) -> None:
    """Build a project's firmware.

    Nothing is built for a project folder of the user with ``--port``: the board on this port must have the firmware
    already."""
    from microc.run import board_project

    if not (arguments.source.is_dir() and arguments.port):
        board_project.build_project(project)


def load_inputs(arguments: Arguments, manifest: Mapping[str, Any]) -> list[Array]:
    """Load the files of ``--input`` (.npy files, tables, pictures) as arrays, and check these against the network's inputs."""
    from microc.compiler.sizes.run_shapes import RunShapes
    from microc.run.data.array_files import is_table_file
    from microc.run.data.pictures import PictureReader, add_channel_orders, is_picture

    tensors_by_name = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    tensors = add_channel_orders((tensors_by_name[name] for name in manifest["inputs"]), manifest["options"])
    arrays, span = [], pixel_range(arguments)
    for path, tensor in zip_longest(arguments.inputs, tensors[: len(arguments.inputs)]):
        if tensor is not None and is_picture(path):
            arrays.append(PictureReader(tensor, span).read(path))
        elif tensor is not None and is_table_file(path):
            arrays.append(_read_csv_as_input(path, tensor))
        else:
            arrays.append(load_npy_file(path))
    return RunShapes(manifest).check_inputs(tensors, arrays)


def load_samples(arguments: Arguments, manifest: Mapping[str, Any], expected: Path | None = None) -> Samples | None:
    """Read the samples of ``--data`` and ``--labels``, converted to the types of the network's inputs.

    None without ``--data``. ``expected``: file of expected outputs."""
    from microc.run.data.pictures import add_channel_orders
    from microc.run.data.samples import read_samples

    if arguments.data is None:
        return None
    tensors_by_name = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    inputs, outputs = ([tensors_by_name[name] for name in manifest[kind]] for kind in ("inputs", "outputs"))
    inputs = add_channel_orders(inputs, manifest["options"])
    return read_samples(inputs, outputs, arguments.data, arguments.labels, expected, pixel_range(arguments))


def pixel_range(arguments: Arguments) -> tuple[float, float] | None:
    """Return the real values of pixels 0 and 255 that ``--pixels`` states; None without this option.

    Raises UsageError if a value is not finite, or if no input is a picture."""
    from microc.run.data.array_files import contains_pictures

    if arguments.pixels is None:
        return None
    low, high = arguments.pixels
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(
            f"--pixels: got {low} {high}, expected two finite numbers",
            hint="give the input values of pixels 0 and 255: --pixels -1 1",
        )
    data_paths = (getattr(arguments, name, None) for name in ("data", "evaluation"))
    paths = [*getattr(arguments, "inputs", ()), *filter(None, data_paths)]
    if not any(map(contains_pictures, paths)):
        raise UsageError(
            "--pixels requires pictures as inputs; got none", hint="give pictures: --input cat.png --pixels -1 1"
        )
    return low, high


def _read_csv_as_input(path: Path, tensor: Mapping[str, Any]) -> Array:
    """Read a .csv table as an array in the shape and dtype of an input.

    Raises UsageError if the dtype is an integer and cannot represent a number of the table exactly."""
    import numpy as np

    from microc.base import dtypes
    from microc.run.data.array_files import ROWS, read_arrays

    table = read_arrays(path)[ROWS]
    dtype = dtypes.to_numpy(tensor["dtype"])
    with np.errstate(invalid="ignore"):
        array = table.astype(dtype)
    if dtypes.is_integer(tensor["dtype"]) and not np.array_equal(array.astype(table.dtype), table):
        raise UsageError(
            f"{path.name}: got numbers that {tensor['dtype']} cannot represent",
            where=str(path),
            hint=f"write integers in the range of {tensor['dtype']}",
        )
    shape = tuple(tensor["shape"])
    return array.reshape(shape) if array.size == np.prod(shape) else array


def load_npy_file(path: Path) -> Array:
    """Load the array of a .npy file; raise UsageError if the file cannot be read, or contains anything but an array of
    numbers."""
    import numpy as np

    from microc.device.board_info import make_printable
    from microc.run.data import array_files
    from microc.run.data.array_files import DAMAGED_FILE_ERRORS

    try:
        with open_regular_file(path) as file:
            array = array_files.load_numpy_file(file)
    except OSError as error:
        hint = similar_files_hint(path) or "write it with numpy.save"
        raise UsageError(f"cannot read {path}: {error.strerror or error}", where=str(path), hint=hint) from error
    except DAMAGED_FILE_ERRORS as error:
        hint = f'write numbers: numpy.save("{path.stem}.npy", array)'
        why = f": {make_printable(str(error), 300)}" if type(error) in (ValueError, EOFError) else ""
        raise UsageError(f"{path} is no .npy file of numbers{why}", where=str(path), hint=hint) from error
    if not isinstance(array, np.ndarray):
        hint = f'save each array to its own file: numpy.save("{path.stem}.npy", arrays[{next(iter(array), "")!r}])'
        raise UsageError(f"{path}: got an archive of arrays, expected a .npy file of one", where=str(path), hint=hint)
    return array


def _check_output_count(paths: list[Path], output_count: int) -> None:
    """Raise UsageError if there are more ``--output`` files than outputs of the network."""
    if len(paths) > output_count:
        what = f"the network has {output_count} outputs, {len(paths)} --output were given"
        raise UsageError(what, hint=f"leave out --output {' and --output '.join(map(str, paths[output_count:]))}")


def _save_npy_file(path: Path, array: Array) -> None:
    """Write an array to a .npy file."""
    import numpy as np

    from microc.codegen.output_files import replace_atomically

    with replace_atomically(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)
