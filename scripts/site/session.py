# SPDX-License-Identifier: Apache-2.0
"""Record a terminal session and draw it: ``python -m scripts.site.session`` writes ``docs/pictures/session.svg``.

The commands run for real, on the digits network and an emulated board; they need the Arm compiler, QEMU and gdb. Lines
that say nothing new to a reader of the landing page are left out, and three dots stand for them. The picture is an SVG whose
lines appear one after the other; it ends with all of them, and readers who prefer reduced motion see them at once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "digits" / "digits_int8.tflite"
PICTURE = ROOT / "docs" / "pictures" / "session.svg"
COMMANDS: dict[str, str] = {
    "microc compile model.tflite --board netduinoplus2 -o firmware": r"multiply|weights|arena|flash|RAM|one inf|peak",
    "microc build firmware": r"firmware|flash|RAM",
    "microc flash firmware": r"the board",
    "microc verify firmware": r"kernel|\d|netduinoplus2",
    "microc profile firmware": r"kernel +layer|\d  .*#|        total|netduinoplus2:",
}
"""Commands, and the lines of their output to keep."""
SILENT = re.compile(r"$|-----")
"""Blank lines and rules of tables, which leave no gap."""
COLUMNS = 92
"""Width of the terminal."""
CHARACTER, LINE, MARGIN = 7.83, 18, 14
"""Pixels: width and height of a character of 13 px, and the margin."""
PAGE, INK, PROMPT, SOFT = "#10161d", "#e7ecf2", "#7fd1b9", "#9fadbd"
PAUSE, STEP = 1.2, 0.08
"""Seconds after a command is shown, and between lines of output."""


def record() -> Iterator[tuple[float, str]]:
    """Run the commands; yield the second at which a line appears, and the line."""
    time = 0.4
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(MODEL, Path(folder) / "model.tflite")
        for command, pattern in COMMANDS.items():
            yield time, f"$ {command}"
            time += PAUSE
            for line in keep(run(command, Path(folder)), pattern):
                yield time, line
                time += STEP
            time += PAUSE


def run(command: str, folder: Path) -> list[str]:
    """Return the lines that a command prints. Raise CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip().splitlines()


def keep(lines: Sequence[str], pattern: str) -> list[str]:
    """Return the lines that match, and three dots for every gap between them."""
    kept: list[str] = []
    for line in lines:
        if re.match(pattern, line):
            kept.append(line)
        elif not SILENT.match(line) and kept and kept[-1] != "...":
            kept.append("...")
    return kept[:-1] if kept and kept[-1] == "..." else kept


def draw(lines: Sequence[tuple[float, str]]) -> str:
    """Draw recorded lines as an animated SVG."""
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    rows = []
    for n, (time, line) in enumerate(lines):
        colour = PROMPT if line.startswith("$") else SOFT if line == "..." else INK
        rows.append(
            f'<text x="{MARGIN}" y="{MARGIN + 13 + n * LINE}" fill="{colour}" style="animation-delay:{time:.2f}s">'
            f"{escape(line)}</text>"
        )
    style = (
        "text{font:13px ui-monospace,'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace;white-space:pre;"
        "animation:appear .01s both}@keyframes appear{from{opacity:0}to{opacity:1}}"
        "@media (prefers-reduced-motion:reduce),print{text{animation:none}}"
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
            ' xml:space="preserve">',
            "<title>microc in a terminal: compile, build, flash, verify and profile a network on an emulated board</title>",
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAGE}"/>',
            *rows,
            "</svg>",
            "",
        )
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw(list(record())), encoding="utf-8")
