# SPDX-License-Identifier: Apache-2.0
"""The page of boards: one row for each file of boards/."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from microc.cli.catalogue import board_data
from microc.device.boards import list_boards, load_board
from microc.document.blocks import numbers, table, texts
from microc.document.renderers import render_markdown_table

TRIED: Mapping[str, str] = MappingProxyType(
    {
        "booted": "Booted: under an emulator, in the tests; every kernel agrees with this computer bit by bit",
        "simulated": "Simulated: cycle by cycle, in the tests, where the simulator is installed",
        "built": "Built: compiled and linked in the tests; nobody has run them on hardware yet",
        "unbuilt": "Written: their framework has not built them here; their code is compiled and run against stand-ins",
        "runs": "This computer",
    }
)
"""How far boards were tried, the farthest first."""
BEGIN = """# Boards

Written by `make docs` from `boards/*.toml`. What the words mean, and how a board of your own is added:
[boards/README.md](../boards/README.md). `microc boards show NAME` tells more of one.
"""
COLUMNS = (*texts("board", "", "core"), *numbers("flash", "RAM"), *texts("flashed with"))


def page() -> str:
    """Markdown: a table for each of :data:`TRIED`."""
    rows = [board_data(load_board(name)) for name in list_boards()]
    parts = [BEGIN]
    for tried, title in TRIED.items():
        found = [row for row in rows if row["tried"] == tried]
        head, _, told = title.partition(": ")
        parts.append(f"## {head} ({len(found)})\n" + (f"\n{told[0].upper()}{told[1:]}.\n" if told else ""))
        parts.append(render_markdown_table(table(COLUMNS, map(_row, found))) + "\n")
    return "\n".join(parts).rstrip() + "\n"


def _row(row: Mapping[str, object]) -> tuple[str, ...]:
    sizes = (_size(int(str(row[kind]))) for kind in ("flash", "ram"))
    runners = row["runners"] if isinstance(row["runners"], list) else []
    core = f"`{row['cpu']}`" + (f", `{str(row['npu']).partition(',')[0]}`" if row["npu"] else "")
    return (f"`{row['name']}`", str(row["title"]), core, *sizes, ", ".join(runners) or "-")


def _size(count: int) -> str:
    """Bytes in the unit that they are named in."""
    if not count:
        return "any"
    return f"{count >> 20} MiB" if count % (1 << 20) == 0 else f"{count / 1024:g} KiB"
