# SPDX-License-Identifier: Apache-2.0
"""Unrolls the loops over the fetch queue in Hazard3's frontend: ``unroll.py hazard3_frontend.v``, in place.

The queue's arrays are written by clocked and by combinational code, element by element. Verilator (5.006) takes an array that
a loop indexes as one variable and then simulates it wrongly; with constant indices it can be split, and is simulated as meant.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LOOP = re.compile(r"for \(i = 0; i < FIFO_DEPTH; i = i \+ 1\) begin\n")
ARRAY = re.compile(r"^(reg\b.*\[0:FIFO_DEPTH\]);", re.MULTILINE)
INDEX = re.compile(r"\bi\b")
WORD = re.compile(r"\b(begin|end)\b")


def unrolled(text: str, depth: int) -> str:
    """The text with every such loop as ``depth`` blocks."""
    while loop := LOOP.search(text):
        end = _end(text, loop.end())
        body = text[loop.end() : end.start()]
        blocks = "\n".join("begin\n" + INDEX.sub(str(i), body) + "end" for i in range(depth))
        text = text[: loop.start()] + blocks + text[end.end() :]
    return text


def _end(text: str, start: int) -> re.Match[str]:
    """The ``end`` of the block that begins at ``start``."""
    depth = 1
    for word in WORD.finditer(re.sub(r"//.*", lambda comment: " " * len(comment[0]), text), start):
        depth += 1 if word[0] == "begin" else -1
        if depth == 0:
            return word
    raise SystemExit("a loop of the frontend has no end")


def main(path: Path) -> None:
    """Rewrite the file."""
    text = path.read_text()
    found = re.search(r"localparam FIFO_DEPTH = (\d+);", text)
    if found is None or not LOOP.search(text):
        raise SystemExit(f"{path}: this is no frontend that we know")
    path.write_text(ARRAY.sub(r"\1 /*verilator split_var*/;", unrolled(text, int(found[1]))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
