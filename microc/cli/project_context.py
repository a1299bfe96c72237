# SPDX-License-Identifier: Apache-2.0
"""Functions that many commands share: output files, compilation, projects and inputs; and ``microc run``."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.file_access import write_text
from microc.base.operating_system import quote_argument
from microc.cli import show
from microc.cli.declared.board_commands import RunArguments
from microc.cli.declared.declarations import Arguments, DeviceArguments, InputArguments, SerialArguments
from microc.document.blocks import document, prose
from microc.errors import OutputError, UsageError

if TYPE_CHECKING:
    from microc.base.dtypes import Array
    from microc.compiler.api import Program
    from microc.compiler.bundle import Bundle
    from microc.compiler.interaction import Progress
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
        write_text(temporary, text)


# ---- Compilation, for commands that need a C project.


def progress_callback(arguments: Arguments) -> Progress | None:
    """Return the function that shows the progress of a command; None if ``--quiet`` or ``--json`` forbids that, or if
    standard error is no terminal."""
    return show.make_progress_callback(arguments.quiet or arguments.json, arguments.verbose)


def compile_with_arguments(model: Path, arguments: Arguments, board: str | Board, **option_overrides: Any) -> Program:
    """Compile a model with the compilation options of the command line and of ``microc.toml``.

    ``board``: the board to compile for; empty: the host. ``option_overrides``: compilation options that replace those of the
    command line."""
    from microc.compiler import api

    options = {**arguments.options, **option_overrides}
    return api.compile(model, board=board or "host", progress=progress_callback(arguments), **options)


def compile_bundle(models: Sequence[Path], names: Sequence[str], arguments: Arguments, board: str) -> Bundle:
    """Compile several models into one firmware. ``names``: names of the networks, by :func:`network_names`."""
    from microc.compiler.bundle import bundle

    dump = arguments.options.get("dump")
    return bundle(
        *(
            compile_with_arguments(model, arguments, board, dump=dump and dump / name)
            for model, name in zip(models, names, strict=True)
        )
    )


def network_names(models: Sequence[Path], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the C name of the network of each model file, from ``--name`` or the name of the file.

    Raises UsageError if several networks would get the same name."""
    from microc.codegen.c.identifiers import network_name
    from microc.codegen.output_files import find_unused_path

    if options.get("name") and len(models) > 1:
        raise UsageError(
            f"--name: got {len(models)} networks, expected one",
            hint="leave out --name: each network gets the name of its file",
        )
    models_by_name: dict[str, Path] = {}
    for model in models:
        name = network_name(options.get("name") or model.stem)
        first = models_by_name.setdefault(name, model)
        if first is not model:
            raise UsageError(
                f"{first} and {model} would both be called {name!r}, expected different names",
                hint="rename a file, whose name becomes the network's: "
                f"cp {quote_argument(str(model))} {find_unused_path(model)}",
            )
    return tuple(models_by_name)


def check_replaceable(folder: Path, models: Sequence[Path], names: Sequence[str], format: str = "") -> None:
    """Raise OutputError if ``folder`` contains the project or export of other networks.

    ``models``: model files of the networks to write; ``names``: names of the networks; ``format``: name of the export format,
    empty for a project."""
    from microc.codegen.output_files import find_unused_path, read_manifest

    manifest = read_manifest(folder)
    if not manifest:
        return
    old_names = [str(name) for name in manifest.get("models", [manifest.get("model", "")])]
    is_same_network = old_names == list(names) or manifest.get("source") in [model.name for model in models]
    if not is_same_network or manifest.get("format", "") != format:
        content, new_content = (
            f"the export ({name})" if name else "the project" for name in (manifest.get("format", ""), format)
        )
        raise OutputError(
            f"{folder} contains {content} of {', '.join(old_names)}, not {new_content} of {', '.join(names)}",
            where=str(folder),
            hint=f"choose another folder: -o {find_unused_path(folder)}; or overwrite this one: --force",
        )


# ---- ``microc run``, and functions that it shares with other commands on boards: project, serial line, inputs.


def run_run_command(arguments: RunArguments) -> show.Answer:
    """Run ``microc run``: run a network once on its board, print its outputs, and write them to files if asked."""
    import numpy as np

    from microc.run.data.samples import draw_inputs
    from microc.run.session import Device

    check_output_paths(**{"--output": arguments.outputs})
    with open_project_of_source(arguments) as project:
        inputs = load_inputs(arguments, project.manifest) if arguments.inputs else None
        _check_output_count(arguments.outputs, len(project.manifest["outputs"]))
        build_firmware(project, arguments)
        with Device(project, progress=progress_callback(arguments), **serial_line_options(arguments)) as device:
            drawn = device.inputs[:-2] if "learning" in project.manifest else device.inputs
            result = device.run(*(inputs or draw_inputs(drawn, np.random.default_rng(arguments.seed))))
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
            for t, a in zip(outputs, results, strict=False)  # an inference of a network that learns has no loss
        ],
    }
    lines = [
        f"{t['name']}  {t['dtype']} {show.format_shape(a.shape)}:  {show.format_leading_values(a.reshape(-1).tolist())}"
        for t, a in zip(outputs, results, strict=False)
    ]
    if not inputs:
        lines.append(f"of random numbers (--seed {arguments.seed}); of your own: --input X.npy")
    lines.append(show.format_measured_time(clock, clock.convert_ticks(ticks)))
    lines += [f"self-test {self_test}"] if self_test else []
    return show.Answer(data, document(prose(*lines)), error=failed)


def serial_line_options(arguments: SerialArguments) -> dict[str, Any]:
    """Return the options of the serial line (port, baud rates, time-out) as keywords of
    :class:`microc.run.session.Device`."""
    return {"port": arguments.port, "bauds": arguments.baud, "patience": arguments.timeout}


@contextmanager
def open_project_of_source(arguments: DeviceArguments) -> Iterator[Project]:
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
        program = compile_with_arguments(arguments.source, arguments, arguments.board)
        yield board_project.open_project(program.write(Path(folder) / program.report()["model"]))


def build_firmware(project: Project, arguments: DeviceArguments) -> None:
    """Build a project's firmware.

    Nothing is built for a project folder of the user with ``--port``: the board on this port must have the firmware
    already."""
    from microc.run import board_project

    if not (arguments.source.is_dir() and arguments.port):
        board_project.build_project(project)


def load_inputs(arguments: InputArguments, manifest: Mapping[str, Any]) -> list[Array]:
    """Load the files of ``--input`` (.npy files, tables, pictures) as arrays, and check these against the network's inputs."""
    from microc.compiler.sizes.general import RunShapes
    from microc.run.data.array_files import is_table_file, load_npy_file
    from microc.run.data.pictures import PictureReader, add_channel_orders, is_picture

    tensors_by_name = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    tensors = add_channel_orders((tensors_by_name[name] for name in manifest["inputs"]), manifest["options"])
    arrays, span = [], pixel_range(arguments.pixels, arguments.inputs)
    for path, tensor in zip_longest(arguments.inputs, tensors[: len(arguments.inputs)]):
        if tensor is not None and is_picture(path):
            arrays.append(PictureReader(tensor, span).read(path))
        elif tensor is not None and is_table_file(path):
            arrays.append(_read_csv_as_input(path, tensor))
        else:
            arrays.append(load_npy_file(path))
    return RunShapes(manifest).check_inputs(tensors, arrays)


def load_samples(
    data: Path | None,
    labels: str,
    pixels: tuple[float, float] | None,
    manifest: Mapping[str, Any],
    expected: Path | None = None,
) -> Samples | None:
    """Read the samples of ``--data`` and ``--labels``, converted to the types of the network's inputs.

    None without ``--data``. ``pixels``: value of ``--pixels``; ``expected``: file of expected outputs. For a network that learns,
    samples are without labels and rate, and expected outputs without the loss."""
    from microc.run.data.pictures import add_channel_orders
    from microc.run.data.samples import read_samples

    if data is None:
        return None
    tensors_by_name = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    inputs, outputs = ([tensors_by_name[name] for name in manifest[kind]] for kind in ("inputs", "outputs"))
    if "learning" in manifest:
        inputs, outputs = inputs[:-2], outputs[:-1]
    inputs = add_channel_orders(inputs, manifest["options"])
    return read_samples(inputs, outputs, data, labels, expected, pixel_range(pixels, [data]))


def hold_weights(samples: Samples | None, manifest: Mapping[str, Any]) -> Samples | None:
    """Add labels and a rate of 0 to the samples for a network that learns, so that runs of all kernels change no weight."""
    import numpy as np

    from microc.base import dtypes

    if samples is None or "learning" not in manifest:
        return samples
    tensors = {t["name"]: t for t in manifest["tensors"]}
    zeros = (
        np.zeros((len(samples), *tensors[name]["shape"]), dtypes.to_numpy(tensors[name]["dtype"]))
        for name in manifest["inputs"][-2:]
    )
    return replace(samples, inputs=(*samples.inputs, *zeros))


def pixel_range(pixels: tuple[float, float] | None, data_paths: Iterable[Path | None]) -> tuple[float, float] | None:
    """Return the real values of pixels 0 and 255 that ``--pixels`` states; None without this option.

    Raises UsageError if a value is not finite, or if no file or folder of ``data_paths`` contains pictures."""
    from microc.run.data.array_files import contains_pictures

    if pixels is None:
        return None
    low, high = pixels
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(
            f"--pixels: got {low} {high}, expected two finite numbers",
            hint="give the input values of pixels 0 and 255: --pixels -1 1",
        )
    if not any(map(contains_pictures, filter(None, data_paths))):
        raise UsageError(
            "--pixels requires pictures as inputs; got none", hint="give pictures: --input cat.png --pixels -1 1"
        )
    return pixels


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


def _check_output_count(paths: Sequence[Path], output_count: int) -> None:
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
