"""The command that wraps a network for a build system."""

from __future__ import annotations

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import compile_model, refuse_other
from microc.cli.session import load_array
from microc.errors import UsageError


def export(arguments: Arguments) -> show.Answer:
    """``microc export``."""
    from microc.codegen.exports import check_board, load_format
    from microc.codegen.files import check_folder
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
