# SPDX-License-Identifier: Apache-2.0
"""The commands ``boards``, ``plugin``, ``operators``, ``options``, ``ports`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.operating_system import join_arguments
from microc.cli import show
from microc.cli.declared.board_commands import (
    BoardsArguments,
    DoctorArguments,
    OperatorsArguments,
    OptionsArguments,
    PluginArguments,
    PortsArguments,
)
from microc.document.blocks import Block, Code, Fact, Shell, document, facts, numbers, prose, table, texts
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.target import Board


# ---- Commands that list boards, operators, options and ports, and the command that checks a plugin.


def run_boards_command(arguments: BoardsArguments) -> show.Answer:
    """Run ``microc boards``: list, show or validate boards."""
    from microc.device.boards import list_boards, load_board

    if arguments.like:
        if arguments.action != "list" or arguments.subject:
            hint = f"write: microc boards --like {arguments.like}"
            raise UsageError(f"boards --like: got the action {arguments.action}, expected none", hint=hint)
        return _answer_with_nearest_boards(arguments.like)
    if arguments.action == "list":
        if arguments.subject:
            hint = f"show one board: microc boards show {arguments.subject}"
            raise UsageError(f"boards list: got {arguments.subject!r}, expected no name", hint=hint)
        all_boards = [board_data(load_board(name)) for name in list_boards()]
        rows = [
            (
                b["name"],
                b["cpu"],
                b["tried"],
                b["title"],
                b["flash"],
                b["ram"],
            )
            for b in all_boards
        ]
        columns = (*texts("board", "core", "tried", "title"), *numbers("flash", "RAM"))
        return show.Answer({"boards": all_boards}, document(table(columns, rows)))
    if not arguments.subject:
        raise UsageError(
            f"boards {arguments.action}: got no board, expected a name or a file",
            hint="name one of the boards that microc boards lists",
        )
    board = load_board(arguments.subject)
    data = board_data(board)
    if arguments.action == "validate":
        verdict = prose(f"{arguments.subject} is a valid board file: {board.title}")
        return show.Answer({"board": data, "valid": True}, document(verdict))
    details: list[Fact] = [
        ("board", board.name),
        ("title", board.title),
        ("core", f"{board.target.cpu} ({', '.join(sorted(board.target.features)) or 'no extensions'})"),
        *(
            (r.kind.replace("ram", "RAM"), f"{r.name}: {show.format_integer(r.size)} bytes at {r.origin:#010x}")
            for r in board.regions
        ),
        *((("project of", board.raw["framework"]["name"]),) if "framework" in board.raw else ()),
        *((("accelerator", f"{board.target.npu} (--external ethos-u)"),) if board.target.npu else ()),
        ("emulator", board.raw["emulator"]["argv"][0] if data["emulated"] else "none"),
        *((("simulator", board.raw["simulator"]["argv"][0]),) if "simulator" in board.raw else ()),
        ("tried", _TEST_LEVELS[data["tried"]]),
        *((f"in {tool}", id if isinstance(id, str) else " ".join(id.values())) for tool, id in board.ids.items()),
        ("flash with", ", ".join(data["runners"]) or "nothing: it is a process"),
        ("ticks", f"{board.raw['timer']['hz']:,} a second"),
    ]
    return show.Answer({"board": data}, document(facts(details)))


def _answer_with_nearest_boards(word: str) -> show.Answer:
    """Return the answer of ``microc boards --like``: for every board that ``word`` means, the nearest emulated one."""
    from microc.device.boards import find_boards, find_nearest_emulated_board

    pairs = [(board, find_nearest_emulated_board(board)) for board in find_boards(word)]
    rows = [
        (
            board.name,
            board.target.cpu,
            "none" if near is None else near.name,
            "" if near is None else near.target.cpu,
            0 if near is None else near.flash_bytes,
            0 if near is None else near.ram_bytes,
        )
        for board, near in pairs
    ]
    columns = (*texts("board", "core", "nearest emulated", "its core"), *numbers("its flash", "its RAM"))
    data = [
        {"board": board.name, "cpu": board.target.cpu, "nearest": None if near is None else board_data(near)}
        for board, near in pairs
    ]
    return show.Answer({"like": data}, document(table(columns, rows)))


_TEST_LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "runs": "runs as a process in the tests",
        "booted": "boots under emulation in the tests, and agrees with the host bit by bit",
        "simulated": "runs in the tests where its simulator is installed, cycle by cycle, and agrees with the host bit by bit",
        "built": "builds in the tests; we have not run it on hardware",
        "unbuilt": "its framework has not built it here; its code is compiled and run against stand-ins in the tests",
        "yours": "a file of your own",
    }
)
"""Levels to which boards are tested, with their descriptions."""


def _board_test_level(board: Board) -> str:
    """Return how thoroughly a board is tested, as a key of :data:`_TEST_LEVELS`."""
    from microc.device.boards import list_boards

    if board.name not in list_boards():
        return "yours"
    if board.target.isa == "host":
        return "runs"
    if "framework" in board.raw:
        return "unbuilt"
    if "simulator" in board.raw:
        return "simulated"
    return "booted" if "emulator" in board.raw else "built"


def board_data(board: Board) -> dict[str, Any]:
    """Describe a board as plain data, as ``microc boards --json`` prints it."""
    from microc.device.boards import list_runners_of_board

    return {
        "name": board.name,
        "title": board.title,
        "cpu": board.target.cpu,
        "features": sorted(board.target.features),
        "flash": board.flash_bytes,
        "ram": board.ram_bytes,
        "npu": board.target.npu,
        "emulated": "emulator" in board.raw,
        "tried": _board_test_level(board),
        "ids": dict(board.ids),
        "runners": [runner.name for runner in list_runners_of_board(board)],
    }


def run_plugin_command(arguments: PluginArguments) -> show.Answer:
    """Run ``microc plugin check``: run the test cases of a plugin's operators."""
    from microc.plugin import load_plugin
    from microc.project.checks import check_plugin

    found = load_plugin(arguments.plugin_file)
    results = check_plugin(found)
    failed = sum(bool(result.problem) for result in results)
    rows = [(r.operator, r.case, r.problem or "ok") for r in results]
    shown = document(
        table(texts("operator", "case", "result"), rows),
        prose(f"{len(results) - failed} of {len(results)} cases agree: reference, interpreted loops, compiled C"),
    )
    return show.Answer({"cases": [asdict(r) for r in results], "failed": failed}, shown, 1 if failed else 0)


def run_operators_command(arguments: OperatorsArguments) -> show.Answer:
    """Run ``microc operators``: list the supported operators with their dtypes."""
    from microc.reports.reference_tables import (
        FORMATS,
        format_dtypes_cell,
        longest_shared_dtypes,
        operator_rows,
        operators_markdown,
    )

    rows = operator_rows()
    parts: list[Block] = []
    for format_name in FORMATS:
        format_rows = [row for row in rows if row.format == format_name]
        all_dtypes = longest_shared_dtypes(format_rows)
        cells = [(row.name, row.note, format_dtypes_cell(row.dtypes, all_dtypes)) for row in format_rows]
        parts.append(table(texts(f"{len(format_rows)} of {format_name}", "", "dtypes"), cells))
        if any(cell == "any" for *_, cell in cells):
            parts.append(prose(f"any: {', '.join(all_dtypes)}"))
    shown = document(Code(operators_markdown())) if arguments.markdown else document(*parts)
    return show.Answer({"operators": [asdict(row) for row in rows]}, shown)


def run_options_command(arguments: OptionsArguments) -> show.Answer:
    """Run ``microc options``: list the compilation options."""
    from microc.reports.reference_tables import compilation_option_rows, options_markdown

    found = list(compilation_option_rows())
    cells = [(row.name, row.flag, row.help) for row in found]
    shown = Code(options_markdown()) if arguments.markdown else table(texts("Python", "command line", ""), cells)
    return show.Answer({"options": [asdict(row) for row in found]}, document(shown))


def run_ports_command(arguments: PortsArguments) -> show.Answer:
    """Run ``microc ports``: list the serial ports of this computer, and the boards that may be connected to each port."""
    from microc.device.boards import list_boards, load_board
    from microc.device.transport import list_ports

    boards = [load_board(name) for name in list_boards()]
    found = [
        {
            "port": p.name,
            "description": p.description,
            "usb": p.usb,
            "serial": p.serial,
            "boards": [b.name for b in boards if p.usb and p.usb in b.raw.get("usb", ())],
        }
        for p in list_ports()
    ]
    if not found:
        return show.Answer({"ports": []}, document(prose("this machine has no serial port")))
    rows = [[*(str(p[name]) for name in ("port", "description", "usb")), ", ".join(p["boards"])] for p in found]
    return show.Answer({"ports": found}, document(table(texts("port", "description", "USB", "may be"), rows)))


# ---- ``microc doctor``: list installed tools, and the command that installs missing tools.


def run_doctor_command(arguments: DoctorArguments) -> show.Answer:
    """Run ``microc doctor``: list the tools that microc needs, and install missing tools if the user has asked for it."""
    from microc.project.first_steps import find_tools, list_install_commands, run_install_commands

    if arguments.yes and not arguments.fix:
        raise UsageError("--yes requires --fix", hint="add it: microc doctor --fix --yes")
    findings = find_tools(arguments.board)
    commands = list_install_commands(findings)
    if commands and arguments.yes:
        show.print_note(show.render(document(Shell(tuple(map(join_arguments, commands)), is_chain=True))))
        run_install_commands(commands)
        # Look again: what is printed, and the exit code, must describe the state after the installation.
        findings = find_tools(arguments.board)
        commands = list_install_commands(findings)
    missing = [f for f in findings if f.missing]
    incomplete = any(f.essential for f in missing)
    lines = tuple(map(join_arguments, commands))
    data = {
        "tools": [asdict(f) for f in findings],
        "install": list(lines),
        "complete": not incomplete,
    }
    if arguments.fix:
        names = ", ".join(f.name for f in missing)
        verdict = prose(f"no package is known that has {names}" if missing else "nothing is missing")
        shown = document(Shell(lines, is_chain=True) if commands else verdict)
        return show.Answer(data, shown, 5 if incomplete else 0)
    rows = [
        ("missing" if f.missing else "ok", f.name, f.purpose, f.version or ("needed" if f.essential else "optional"))
        for f in findings
    ]
    heading = "to install what is missing (microc doctor --fix --yes does it):"
    shown = document(
        table(texts("", "tool", "for", "version"), rows), Shell(lines, heading, is_chain=True) if commands else None
    )
    return show.Answer(data, shown, 5 if incomplete else 0)
