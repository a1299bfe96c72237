# SPDX-License-Identifier: Apache-2.0
"""The commands ``new``, ``demo``, ``export`` and ``load``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from microc.base.operating_system import quote_argument
from microc.cli import show
from microc.cli.declared.board_commands import DemoArguments, LoadArguments
from microc.cli.declared.model_commands import ExportArguments, NewArguments
from microc.cli.project_context import (
    check_replaceable,
    compile_with_arguments,
    network_names,
    progress_callback,
    serial_line_options,
)
from microc.document.blocks import Block, Code, Table, bars, document, facts, numbers, prose, table, texts
from microc.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from microc.device.board_info import Blob, Slots
    from microc.project.first_steps import Demonstration


# ---- ``microc new``: create a project folder.


def run_new_command(arguments: NewArguments) -> show.Answer:
    """Run ``microc new``: create a project folder."""
    from microc.project.first_steps import write_new_project

    report_progress = show.make_progress_callback(arguments.quiet or arguments.json, arguments.verbose)
    if report_progress is not None:
        report_progress("reading the model", 0, 2)
    folder, board = arguments.folder, arguments.board or "host"
    files = write_new_project(folder, arguments.model, board, arguments.command_line_options)
    if report_progress is not None:
        report_progress("written", 1, 2)
    steps = [f"cd {quote_argument(str(folder))}", "microc build", "microc run"]
    if board != "host":
        steps.insert(2, "microc flash")
    lines = prose(f"{folder}: {', '.join(files)}", f"next: {' && '.join(steps)}")
    return show.Answer({"folder": str(folder), "files": list(files), "next": steps}, document(lines))


# ---- ``microc demo``: run a network that recognises digits on an emulated microcontroller.

_SHOWN_IMAGES, _PER_ROW, _IMAGE_COLUMNS = 8, 4, 20
"""Number of images that are printed, largest number of images in a row, and columns of the terminal for each image with its
caption."""
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .+%@"


def run_demo_command(arguments: DemoArguments) -> show.Answer:
    """Run ``microc demo``: run the digits network on a board, and show its answers, accuracy and memory."""
    from microc.project.first_steps import choose_demo_board, run_demonstration

    board, missing = (arguments.board, ()) if arguments.board else choose_demo_board()
    result = run_demonstration(board, progress_callback(arguments))
    data = {
        "board": board,
        "missing": list(missing),
        "model": result.report["source"],
        "macs": result.report["macs"],
        "samples": len(result.labels),
        "correct": result.correct_count,
        "accuracy": result.correct_count / len(result.labels),
        "reference_accuracy": result.reference,
        "flash": result.sizes.flash,
        "ram": result.ram,
        "arena": result.report["arena"],
        "stack": result.stats.stack_bytes or None,
        "unit": result.clock.unit,
        "time": result.clock.convert_ticks(sum(result.ticks)),
        "seconds": result.line_seconds,
    }
    error = None
    if not result.passed:
        error = VerificationError(
            "demo: the accuracy on the board is below the reference accuracy",
            where=board,
            hint="check the tools: microc doctor",
        )
    return show.Answer(data, document(*_demo_blocks(result, missing)), error=error)


def _demo_blocks(result: Demonstration, missing_tools: tuple[str, ...]) -> Iterator[Block]:
    """Yield the blocks that show the demonstration: images with answers, a table of layers, accuracy and memory.

    ``missing_tools``: tools of the emulated board that are not installed."""
    report, sizes = result.report, result.sizes
    if missing_tools:
        tools = " and ".join(missing_tools)
        yield prose(f"{tools} not found: using this computer instead of the emulated board (microc doctor --fix)")
    yield prose(
        f"{report['source']}: {report['kernels']} kernels, {report['macs']:,} multiply-accumulates",
        result.title,
        f"compiled to C in {result.compiled_seconds:.1f} s, built in {result.built_seconds:.1f} s",
    )
    fitting = show.terminal_columns() // _IMAGE_COLUMNS if show.terminal_columns() else _PER_ROW
    per_row = max(1, min(_PER_ROW, fitting))
    for first in range(0, _SHOWN_IMAGES, per_row):
        yield Code("\n".join(_draw_images(result, range(first, min(first + per_row, _SHOWN_IMAGES)))))
    yield _demo_layers_table(result)
    total, stack = len(result.labels), result.stats.stack_bytes
    stack_text = f"{stack:,} measured" if stack else "not measured"
    share, needed = 100 * result.correct_count / total, 100 * result.reference
    yield facts(
        (
            ("accuracy", f"{result.correct_count} of {total}, {share:.2f} %; the reference has {needed:.2f} %"),
            ("flash", f"{sizes.flash:,} bytes, {report['weight_bytes']:,} of them weights and tables"),
            (
                "RAM",
                f"{result.ram:,} bytes: arena {report['arena']:,}, stack {report['stack_bound']:,} at most ({stack_text})",
            ),
            ("line", f"{total} images in {result.line_seconds:.1f} s, {result.stats.bad_frames} damaged frames"),
        )
    )
    yield prose("passed" if result.passed else "FAILED: less accurate than the reference")


def _draw_images(result: Demonstration, indices: range) -> Iterator[str]:
    """Yield lines that show images side by side, two characters per pixel, with the network's answer below each image."""
    shades = _SHADES if (sys.stdout.encoding or "").lower().startswith("utf") else _PLAIN_SHADES
    levels = [(result.images[k].reshape(8, 8).astype(int) + 128) * len(shades) // 256 for k in indices]
    for row in range(8):
        yield "  ".join("".join(2 * shades[level] for level in image[row]) for image in levels).rstrip()
    yield "  ".join(f"{_image_caption(result, k):16}" for k in indices).rstrip()


def _image_caption(result: Demonstration, image_index: int) -> str:
    """Return the caption of an image: the digit that the network recognises, its confidence, and whether it is right."""
    answer, truth = result.answers[image_index], result.labels[image_index]
    confidence = 100 * (int(result.scores[image_index].max()) + 128) / 256
    return f"{answer} ({confidence:.0f} %) {'right' if answer == truth else f'wrong: {truth}'}"


def _demo_layers_table(result: Demonstration) -> Table:
    """Make a table with the time of each layer, in the unit of the board's clock, and bars that show the time.

    An emulator's clock counts instructions, not cycles."""
    times = [result.clock.convert_ticks(t) for t in result.ticks]
    rows = [
        (kernel["layer"].split(" ", 1)[-1], time, kernel["macs"], time / max(*times, 1))
        for kernel, time in zip(result.kernels, times, strict=True)
    ]
    columns = (*texts("layer"), *numbers(result.clock.unit, "MACs"), *bars(""))
    return table(columns, rows, totals=("one image", sum(times), sum(k["macs"] for k in result.kernels), None))


# ---- ``microc export``: write a network as a package for a build system.


def run_export_command(arguments: ExportArguments) -> show.Answer:
    """Run ``microc export``: write a network as a package for a build system."""
    from microc.codegen.exports import check_board, load_format, make_publisher
    from microc.codegen.output_files import check_replaceable_folder
    from microc.device.boards import load_board, make_board_of_core
    from microc.run.data.array_files import load_npy_file

    if arguments.listing:
        return _answer_with_formats()
    missing = [
        name
        for name, value in (("MODEL", arguments.model), ("--format", arguments.format), ("-o", arguments.output))
        if not value
    ]
    if missing:
        hint = "run microc export MODEL --format arduino -o DIR; microc export --list shows the formats"
        raise UsageError(f"export needs {', '.join(missing)}", hint=hint)
    assert arguments.model is not None and arguments.output is not None
    if arguments.board and arguments.target:
        raise UsageError(
            "--board and --target cannot both be given", hint="leave out --target: the board determines the core"
        )
    export_format = load_format(arguments.format)  # raises for an unknown format before the slow compilation
    if arguments.board:
        check_board(export_format, load_board(arguments.board))
    make_publisher(arguments.author, arguments.url, arguments.license, arguments.package_version)
    check_replaceable_folder(arguments.output)
    names = network_names([arguments.model], arguments.options)
    if not arguments.force:
        check_replaceable(arguments.output, [arguments.model], names, export_format.name)
    board = arguments.board or make_board_of_core(arguments.target or export_format.target)
    inputs = [load_npy_file(path) for path in arguments.inputs] or None
    program = compile_with_arguments(arguments.model, arguments, board)
    package = program.export(
        arguments.format,
        arguments.output,
        inputs,
        author=arguments.author,
        url=arguments.url,
        license=arguments.license,
        version=arguments.package_version,
    )
    data = {
        "folder": str(arguments.output),
        "format": arguments.format,
        "model": program.module.name,
        "fingerprint": program.module.fingerprint,
        "files": list(package.files),
        "next": list(package.commands),
    }
    lines = [
        f"{len(package.files)} files in {arguments.output}" + ("; next, in this folder:" if package.commands else "")
    ]
    lines += [f"  {command}" for command in package.commands]
    return show.Answer(data, document(prose(*lines)))


def _answer_with_formats() -> show.Answer:
    """Return the answer of ``microc export --list``: the export formats, and how each format is tested."""
    from microc.codegen.exports import IN_TESTS, TEST_STATUS, TOOL_RUNS, list_formats, load_format

    formats = [load_format(name) for name in list_formats()]
    rows = [(f.name, f.title, f.status) for f in formats]
    shown = document(
        table(texts("format", "what it is", "tried"), rows),
        facts(TEST_STATUS.items()),
        *(
            table(
                texts("format", f"{verb} by", "what", "when"),
                [
                    (f.name, run.tool, run.what, "in the tests" if run.when == IN_TESTS else f"by hand, by {run.when}")
                    for f in formats
                    for run in getattr(f, verb)
                ],
            )
            for verb in TOOL_RUNS
        ),
        facts((f.name, f.checked) for f in formats),
    )
    data = [
        {
            "name": f.name,
            "title": f.title,
            "status": f.status,
            "checked": f.checked,
            **{verb: [asdict(run) for run in getattr(f, verb)] for verb in TOOL_RUNS},
        }
        for f in formats
    ]
    return show.Answer({"formats": data}, shown)


# ---- ``microc load``: send a network to a board, whose firmware is not changed.


def run_load_command(arguments: LoadArguments) -> show.Answer:
    """Run ``microc load``: send a network to a board whose firmware loads networks."""
    blob, slots = _send_project_network(arguments) if arguments.folder.is_dir() else _send_network_file(arguments)
    data = blob.pack()
    fields: dict[str, Any] = {
        "network": blob.name,
        "fingerprint": blob.fingerprint,
        "core": blob.core,
        "bytes": len(data),
        "signature_bytes": len(blob.signature),
        "memory": blob.memory,
        "slot": slots.active,
        "commits": slots.commits,
        "slot_bytes": slots.slot_bytes,
        "memory_bytes": slots.ram_bytes,
    }
    rows = [
        ("network", f"{blob.name} for {blob.core}"),
        ("slot", f"{'AB'[slots.active or 0]}, commit {show.format_integer(slots.commits)}"),
        ("  taken", show.format_capacity_use(len(data), slots.slot_bytes)),
        ("memory", show.format_capacity_use(blob.memory, slots.ram_bytes)),
        ("signature", f"{show.format_integer(len(blob.signature))} bytes" if blob.signature else "none"),
    ]
    return show.Answer(fields, document(facts(rows)))


def _send_project_network(arguments: LoadArguments) -> tuple[Blob, Slots]:
    """Send the network of a project to its board; return the network and the state of the board's two slots for networks.

    The project is built first, unless ``--port`` is given and the network is already built."""
    from microc.device.client import query_slots
    from microc.run.board_project import build_project, open_project, read_network_blob
    from microc.run.session import Device

    project = open_project(arguments.folder)
    if project.relocatable and not (arguments.port and project.blob.is_file()):
        build_project(project)
    blob = read_network_blob(project)
    with Device(project, load=True, progress=progress_callback(arguments), **serial_line_options(arguments)) as device:
        return blob, query_slots(device.client)


def _send_network_file(arguments: LoadArguments) -> tuple[Blob, Slots]:
    """Send the network of a .bin file to the board on ``--port``; return the network and the state of the board's slots.

    Raises UsageError without ``--port``, because the file does not name a board."""
    from microc.device.board_info import read_blob
    from microc.run.board_project import AUTO, send_network
    from microc.run.session import open_client

    blob = read_blob(arguments.folder)
    if arguments.port in ("", AUTO):
        raise UsageError(
            f"{arguments.folder}: the file does not name its board; got no port, expected one",
            where=str(arguments.folder),
            hint="name the port: --port PORT; microc ports lists those of this computer",
        )
    with ExitStack() as stack:
        client = stack.enter_context(
            open_client(**serial_line_options(arguments), progress=progress_callback(arguments))
        )
        return blob, send_network(client, blob)
