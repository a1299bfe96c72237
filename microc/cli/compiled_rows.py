"""Lines of what ``microc compile`` says: of streams and self-tests, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.model_options import chosen_options


def next_rows(arguments: Arguments, folder: Path, board: str) -> list[tuple[str, object]]:
    """What to type next: to see it run, and to take the network into a firmware of one's own."""
    here, model = shlex.quote(str(folder)), shlex.quote(str(arguments.models[0]))
    named = f" --board {shlex.quote(arguments.board)}" if arguments.board else ""
    flash = "" if board == "host" else f" && microc flash {here}"
    if chosen_options(arguments).get("relocatable"):
        if not folder.is_dir():
            return [("next", f"microc load {here} --port PORT")]
        return [("next", f"microc build {here}{flash}, once for all networks; then microc load {here}")]
    return [
        ("next", f"microc build {here}{flash} && microc verify {here}"),
        (
            "to ship it",
            f"microc export {model}{named} --format c -o DIR (microc export --list: for Arduino, CMake, Zephyr ...)",
        ),
    ]


def test_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """What the network checks itself with."""
    found = report["self_test"]
    return [("self-test", f"{found['samples']} samples, {show.count(found['bytes'])} bytes")] if found else []


def stream_rows(report: Mapping[str, Any]) -> list[tuple[str, object]]:
    """How a network takes a sequence frame by frame."""
    found = report["streaming"]
    if found is None:
        return []
    rows: list[tuple[str, object]] = [("stream", f"frames a run: {found['hop']}")]
    for name, output in found["outputs"].items():
        gives = f"frames: {output['frames']}, {output['delay']} late" if output["frames"] else "of the last frames"
        rows.append((f"  {name}", f"{gives}, from run {output['first'] + 1} on"))
    return rows
