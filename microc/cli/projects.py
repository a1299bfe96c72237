"""Commands that make or ship a project: new, demo, export, load."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.project_context import compile_model, line, load_array, progress, refuse_other
from microc.cli.shared_options import spoken_options
from microc.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from microc.device.board_info import Blob, Slots
    from microc.project.new_project import Demonstration


# ---- ``microc new``: a folder to start in.


def new(arguments: Arguments) -> show.Answer:
    """``microc new``."""
    from microc.project.new_project import new_project

    told = show.progress(arguments.quiet or arguments.json, arguments.verbose)
    if told is not None:
        told("reading the model", 0, 2)
    folder, board = arguments.folder, arguments.board or "host"
    files = new_project(folder, arguments.model, board, spoken_options(arguments))
    if told is not None:
        told("written", 1, 2)
    steps = [f"cd {shlex.quote(str(folder))}", "microc build", "microc run"]
    if board != "host":
        steps.insert(2, "microc flash")
    text = f"{folder}: {', '.join(files)}\nnext: {' && '.join(steps)}"
    return show.Answer({"folder": str(folder), "files": list(files), "next": steps}, text)


# ---- ``microc demo``: the digits network on an emulated microcontroller.

_SHOWN, _PER_ROW, _ACROSS = 8, 4, 20
"""Images that are shown, beside each other at most, and letters that one takes across with its caption."""
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .+%@"
_BAR = 30


def demo(arguments: Arguments) -> show.Answer:
    """``microc demo``."""
    from microc.project.new_project import choose_board, demonstrate

    board, missing = (arguments.board, ()) if arguments.board else choose_board()
    found = demonstrate(board, progress(arguments))
    data = {
        "board": board,
        "missing": list(missing),
        "model": found.report["source"],
        "macs": found.report["macs"],
        "samples": len(found.labels),
        "correct": found.right,
        "accuracy": found.right / len(found.labels),
        "reference_accuracy": found.reference,
        "flash": found.sizes.flash,
        "ram": found.ram,
        "arena": found.report["arena"],
        "stack": found.stats.stack_bytes or None,
        "unit": found.clock.unit,
        "time": found.clock.amount(sum(found.ticks)),
        "seconds": found.line_seconds,
    }
    error = None
    if not found.passed:
        error = VerificationError("the board is less accurate than the reference", where=board, hint="microc doctor")
    return show.Answer(data, "\n".join(_lines(found, missing)), error=error)


def _lines(found: Demonstration, missing: tuple[str, ...]) -> Iterator[str]:
    report, sizes = found.report, found.sizes
    if missing:
        yield f"{' and '.join(missing)} not found: using this computer instead of the emulated board (microc doctor --fix)"
    yield f"\n  {report['source']}: {report['kernels']} kernels, {report['macs']:,} multiply-accumulates"
    yield f"  {found.title}"
    yield f"  compiled to C in {found.compiled_seconds:.1f} s, built in {found.built_seconds:.1f} s\n"
    room = show.columns() // _ACROSS if show.columns() else _PER_ROW
    beside = max(1, min(_PER_ROW, room))
    for first in range(0, _SHOWN, beside):
        yield from _drawn(found, range(first, min(first + beside, _SHOWN)))
    yield from _layers(found)
    total, stack = len(found.labels), found.stats.stack_bytes
    deep = f"{stack:,} measured" if stack else "not measured"
    share, needed = 100 * found.right / total, 100 * found.reference
    yield f"  accuracy   {found.right} of {total}, {share:.2f} %; the reference has {needed:.2f} %"
    yield f"  flash      {sizes.flash:,} bytes, {report['weight_bytes']:,} of them weights and tables"
    yield f"  RAM        {found.ram:,} bytes: arena {report['arena']:,}, stack {report['stack_bound']:,} at most ({deep})"
    yield f"  line       {total} images in {found.line_seconds:.1f} s, {found.stats.bad_frames} damaged frames"
    yield "\n  passed" if found.passed else "\n  FAILED: less accurate than the reference"


def _drawn(found: Demonstration, which: range) -> Iterator[str]:
    """Images side by side, two characters a pixel, each above what the board sees in it."""
    shades = _SHADES if (sys.stdout.encoding or "").lower().startswith("utf") else _PLAIN_SHADES
    levels = [(found.images[k].reshape(8, 8).astype(int) + 128) * len(shades) // 256 for k in which]
    for row in range(8):
        yield ("  " + "  ".join("".join(2 * shades[level] for level in one[row]) for one in levels)).rstrip()
    yield ("  " + "  ".join(f"{_caption(found, k):16}" for k in which)).rstrip() + "\n"


def _caption(found: Demonstration, k: int) -> str:
    answer, truth = found.answers[k], found.labels[k]
    sure = 100 * (int(found.scores[k].max()) + 128) / 256
    return f"{answer} ({sure:.0f} %) {'right' if answer == truth else f'wrong: {truth}'}"


def _layers(found: Demonstration) -> Iterator[str]:
    """Time by layer. Emulation counts instructions, not cycles."""
    numbers = [found.clock.amount(t) for t in found.ticks]
    layers = [k["layer"].split(" ", 1)[-1] for k in found.kernels]
    width = max(map(len, layers))
    yield f"  {'layer':{width}}  {found.clock.unit:>12}      MACs"
    for layer, kernel, number in zip(layers, found.kernels, numbers, strict=True):
        yield _row(layer, width, number, kernel["macs"]) + "  " + "#" * round(_BAR * number / max(*numbers, 1))
    yield _row("one image", width, sum(numbers), sum(k["macs"] for k in found.kernels)) + "\n"


def _row(name: str, width: int, number: int, macs: Any) -> str:
    return f"  {name:{width}}  {number:12,}  {macs:8,}"


# ---- The command that wraps a network for a build system.


def export(arguments: Arguments) -> show.Answer:
    """``microc export``."""
    from microc.codegen.exports import check_board, load_format
    from microc.codegen.output_files import check_folder
    from microc.device.boards import bare_board, load_board

    if arguments.listing:
        return _formats()
    missing = [
        name
        for name, value in (("MODEL", arguments.model), ("--format", arguments.format), ("-o", arguments.output))
        if not value
    ]
    if missing:
        hint = "microc export MODEL --format arduino -o DIR; microc export --list shows the formats"
        raise UsageError(f"export needs {', '.join(missing)}", hint=hint)
    assert arguments.model is not None and arguments.output is not None
    if arguments.board and arguments.target:
        raise UsageError("--board and --target cannot both be given", hint="a board has its core")
    kind = load_format(arguments.format)  # refused before the work
    if arguments.board:
        check_board(kind, load_board(arguments.board))
    check_folder(arguments.output)
    refuse_other(arguments.output, arguments, [arguments.model], kind.name)
    board = bare_board(arguments.target or kind.target) if not arguments.board else None
    inputs = [load_array(path) for path in arguments.inputs] or None
    program = compile_model(arguments.model, arguments, board)
    package = program.export(arguments.format, arguments.output, inputs)
    data = {
        "folder": str(arguments.output),
        "format": arguments.format,
        "model": program.module.name,
        "fingerprint": program.module.fingerprint,
        "files": list(package.files),
        "next": list(package.commands),
    }
    text = f"{len(package.files)} files in {arguments.output}"
    if package.commands:
        text += "; next, in this folder:\n" + "\n".join(f"  {line}" for line in package.commands)
    return show.Answer(data, text)


def _formats() -> show.Answer:
    """The formats that there are, and how far each was tried."""
    from microc.codegen.exports import STATUS, list_formats, load_format

    found = [load_format(name) for name in list_formats()]
    rows = [(f.name, f.title, f.status) for f in found]
    text = show.table(("format", "what it is", "tried"), rows, 3)
    text += "\n\n" + show.facts(list(STATUS.items())) + "\n\n" + show.facts([(f.name, f.checked) for f in found])
    data = [{"name": f.name, "title": f.title, "status": f.status, "checked": f.checked} for f in found]
    return show.Answer({"formats": data}, text)


# ---- ``microc load``: a network into a board that keeps its firmware.


def load(arguments: Arguments) -> show.Answer:
    """``microc load``."""
    blob, slots = _project(arguments) if arguments.folder.is_dir() else _file(arguments)
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
        "slot_bytes": slots.room,
        "memory_bytes": slots.memory,
    }
    rows = [
        ("network", f"{blob.name} for {blob.core}"),
        ("slot", f"{'AB'[slots.active or 0]}, commit {show.count(slots.commits)}"),
        ("  taken", show.of(len(data), slots.room)),
        ("memory", show.of(blob.memory, slots.memory)),
        ("signature", f"{show.count(len(blob.signature))} bytes" if blob.signature else "none"),
    ]
    return show.Answer(fields, show.facts(rows))


def _project(arguments: Arguments) -> tuple[Blob, Slots]:
    """The network of a project, built where its board is not behind a port, or it was not yet."""
    from microc.device.client import ask_slots
    from microc.run.board_project import build, built_network, open_project
    from microc.run.session import Device

    project = open_project(arguments.folder)
    if project.relocatable and not (arguments.port and project.blob.is_file()):
        build(project)
    blob = built_network(project)
    with Device(project, load=True, progress=progress(arguments), **line(arguments)) as device:
        return blob, ask_slots(device.client)


def _file(arguments: Arguments) -> tuple[Blob, Slots]:
    """A network that is a file: nothing but the port tells where its board is."""
    from microc.device.board_info import read_blob
    from microc.run.board_project import AUTO, send_network
    from microc.run.session import open_client

    blob = read_blob(arguments.folder)
    if arguments.port in ("", AUTO):
        raise UsageError(
            "a file does not say which board it is for",
            where=str(arguments.folder),
            hint="name its line: --port PORT; microc ports lists those of this computer",
        )
    with ExitStack() as stack:
        client = stack.enter_context(open_client(**line(arguments), progress=progress(arguments)))
        return blob, send_network(client, blob)
