# SPDX-License-Identifier: Apache-2.0
"""An emulated board behind a line of a rate: ``paced.py BOARD ELF BAUD`` passes bytes no faster, both ways, ten bits each.

It speaks for a board as a port ``pipe:PROGRAM {elf}`` does, and is as slow as a serial line of that rate.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from microc.device.boards import load_board
from microc.device.emulators import Emulator
from microc.device.transport import open_transport

BITS = 10
"""Of a byte on a serial line: a start, eight, a stop."""
PIECE = 64


def forward(read: Callable[[], bytes | None], write: Callable[[bytes], object], rate: float) -> None:
    """Bytes from one end to the other, each when the line would have carried it, until None comes."""
    free = time.monotonic()
    while (data := read()) is not None:
        for k in range(0, len(data), PIECE):
            part = data[k : k + PIECE]
            free = max(free, time.monotonic()) + len(part) / rate
            time.sleep(max(0.0, free - time.monotonic()))
            write(part)


def main() -> None:
    board, elf, baud = sys.argv[1:]
    rate = int(baud) / BITS
    with Emulator(load_board(board), Path(elf)) as emulator:
        line = open_transport(emulator.url)
        back = (lambda: line.read(1.0), lambda data: os.write(1, data), rate)
        threading.Thread(target=forward, args=back, daemon=True).start()
        forward(lambda: os.read(0, 4096) or None, line.write, rate)


if __name__ == "__main__":
    main()
