"""``microc run``, and what all commands need that talk to a board: its project, its line, its inputs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import compile_model, progress
from microc.cli.files import check_places
from microc.errors import UsageError, nearest_file
from microc.reading import open_regular

if TYPE_CHECKING:
    from microc.driver.data.samples import Samples
    from microc.driver.measure.firmware import Project
    from microc.dtypes import Array


def run(arguments: Arguments) -> show.Answer:
    """``microc run``."""
    import numpy as np

    from microc.driver.measure.session import Device
    from microc.driver.measure.verify import random_inputs

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
    from microc.driver.measure import firmware

    if arguments.source.is_dir():
        project = firmware.open_project(arguments.source, arguments.network)
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
        yield firmware.open_project(program.write(Path(folder) / program.report()["model"]))


def build_firmware(project: Project, arguments: Arguments) -> None:
    """Build it, unless it is the user's and its board is behind a port, which has its firmware already."""
    from microc.driver.measure import firmware

    if not (arguments.source.is_dir() and arguments.port):
        firmware.build(project)


def load_inputs(arguments: Arguments, manifest: Mapping[str, Any]) -> list[Array]:
    """The arrays of .npy files, tables and pictures, checked against the network's inputs before anything runs."""
    from microc.driver.data.files import is_table
    from microc.driver.data.pictures import Reader, is_picture, with_colours
    from microc.driver.sizes.shapes import RunShapes

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
    from microc.driver.data.pictures import with_colours
    from microc.driver.data.samples import read_samples

    if arguments.data is None:
        return None
    known = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    inputs, outputs = ([known[name] for name in manifest[kind]] for kind in ("inputs", "outputs"))
    inputs = with_colours(inputs, manifest["options"])
    return read_samples(inputs, outputs, arguments.data, arguments.labels, expected, pixels(arguments))


def pixels(arguments: Arguments) -> tuple[float, float] | None:
    """The reals that pixels of 0 and of 255 stand for, where ``--pixels`` says so."""
    from microc.driver.data.files import holds_pictures

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

    from microc import dtypes
    from microc.driver.data.files import ROWS, read

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

    from microc.device.info import readable
    from microc.driver.data import numpy_files
    from microc.driver.data.files import DAMAGE

    try:
        with open_regular(path) as file:
            array = numpy_files.load(file)
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

    from microc.codegen.files import replacing

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)
