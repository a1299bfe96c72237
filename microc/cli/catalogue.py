"""The commands that list what there is: boards, operators, ports, tools; and the one that checks a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.target import Board


def boards(arguments: Arguments) -> show.Answer:
    """``microc boards``."""
    from microc.device.boards import list_boards, load_board

    if arguments.action == "list":
        if arguments.subject:
            hint = f"microc boards show {arguments.subject}"
            raise UsageError(f"list takes no name, {arguments.subject!r} was given", hint=hint)
        found = [board_row(load_board(name)) for name in list_boards()]
        rows = [
            (
                b["name"],
                b["cpu"],
                b["tried"],
                b["title"],
                show.count(b["flash"]),
                show.count(b["ram"]),
            )
            for b in found
        ]
        return show.Answer({"boards": found}, show.table(("board", "core", "tried", "title", "flash", "RAM"), rows, 4))
    if not arguments.subject:
        raise UsageError(f"boards {arguments.action} takes a name or a file", hint="microc boards lists the names")
    board = load_board(arguments.subject)
    data = board_row(board)
    if arguments.action == "validate":
        return show.Answer({"board": data, "valid": True}, f"{arguments.subject} is a valid board file: {board.title}")
    details: list[tuple[str, object]] = [
        ("board", board.name),
        ("title", board.title),
        ("core", f"{board.target.cpu} ({', '.join(sorted(board.target.features)) or 'no extensions'})"),
        *(
            (r.kind.replace("ram", "RAM"), f"{r.name}: {show.count(r.size)} bytes at {r.origin:#010x}")
            for r in board.regions
        ),
        *((("project of", board.raw["framework"]["name"]),) if "framework" in board.raw else ()),
        *((("accelerator", f"{board.target.npu} (--external ethos-u)"),) if board.target.npu else ()),
        ("emulator", board.raw["emulator"]["argv"][0] if data["emulated"] else "none"),
        *((("simulator", board.raw["simulator"]["argv"][0]),) if "simulator" in board.raw else ()),
        ("tried", _TRIED[data["tried"]]),
        *((f"in {tool}", id if isinstance(id, str) else " ".join(id.values())) for tool, id in board.ids.items()),
        ("flash with", ", ".join(data["runners"]) or "nothing: it is a process"),
        ("ticks", f"{board.raw['timer']['hz']:,} a second"),
    ]
    return show.Answer({"board": data}, show.facts(details))


_TRIED: Mapping[str, str] = MappingProxyType(
    {
        "runs": "runs as a process in the tests",
        "booted": "boots under emulation in the tests, and agrees with the host bit by bit",
        "simulated": "runs in the tests where its simulator is installed, cycle by cycle, and agrees with the host bit by bit",
        "built": "builds in the tests; we have not run it on hardware",
        "unbuilt": "its framework has not built it here; its code is compiled and run against stand-ins in the tests",
        "yours": "a file of your own",
    }
)
"""How far a board has been tried."""


def _tried(board: Board) -> str:
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


def board_row(board: Board) -> dict[str, Any]:
    from microc.device.runners import runners

    return {
        "name": board.name,
        "title": board.title,
        "cpu": board.target.cpu,
        "features": sorted(board.target.features),
        "flash": board.flash_bytes,
        "ram": board.ram_bytes,
        "npu": board.target.npu,
        "emulated": "emulator" in board.raw,
        "tried": _tried(board),
        "ids": dict(board.ids),
        "runners": [runner.name for runner in runners(board)],
    }


def plugin(arguments: Arguments) -> show.Answer:
    """``microc plugin check``."""
    from microc.driver.plugin_check import check_plugin
    from microc.plugin import load_plugin

    found = load_plugin(arguments.plugin_file)
    results = check_plugin(found)
    failed = sum(bool(result.problem) for result in results)
    rows = [(r.operator, r.case, r.problem or "ok") for r in results]
    text = show.table(("operator", "case", "result"), rows, 3)
    text += f"\n\n{len(results) - failed} of {len(results)} cases agree: reference, interpreted loops, compiled C"
    return show.Answer({"cases": [asdict(r) for r in results], "failed": failed}, text, 1 if failed else 0)


def operators(arguments: Arguments) -> show.Answer:
    """``microc operators``."""
    from microc.driver.operators import FORMATS, markdown, operator_rows, spelled, widest

    rows = operator_rows()
    parts = []
    for kind in FORMATS:
        own = [row for row in rows if row.format == kind]
        every = widest(own)
        cells = [(row.name, row.note, spelled(row.dtypes, every)) for row in own]
        parts.append(show.table((f"{len(own)} of {kind}", "", "dtypes"), cells, 3))
        if any(cell == "any" for *_, cell in cells):
            parts.append(f"any: {', '.join(every)}")
    text = markdown() if arguments.markdown else "\n\n".join(parts)
    return show.Answer({"operators": [asdict(row) for row in rows]}, text)


def options(arguments: Arguments) -> show.Answer:
    """``microc options``."""
    from microc.driver.options.page import markdown, rows

    found = list(rows())
    cells = [(row.name, row.flag, row.help) for row in found]
    text = markdown() if arguments.markdown else show.table(("Python", "command line", ""), cells, 3)
    return show.Answer({"options": [asdict(row) for row in found]}, text)


def ports(arguments: Arguments) -> show.Answer:
    """``microc ports``."""
    from microc.device.boards import list_boards, load_board
    from microc.device.ports import list_ports

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
        return show.Answer({"ports": []}, "this machine has no serial port")
    rows = [(p["port"], p["description"], p["usb"], ", ".join(p["boards"])) for p in found]
    return show.Answer({"ports": found}, show.table(("port", "description", "USB", "may be"), rows, 4))
