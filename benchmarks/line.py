# SPDX-License-Identifier: Apache-2.0
"""How much of a serial line's rate transfers reach: firmware in a process of this computer, behind a line as slow as a real one.

    python benchmarks/line.py [MODEL] [--bytes 65536]

Emulators serve here no better than slow boards: QEMU's UARTs take a byte at a time, in about 0.1 ms.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from microc.compiler.api import compile
from microc.device.client import Client
from microc.device.transport import PipeTransport, Transport
from microc.run.board_project import build_project, open_project

LINES = ((115_200, 256), (921_600, 512))
"""Baud rates, and the frames' payloads that boards with such lines get."""
MODEL = Path(__file__).parent.parent / "examples" / "digits" / "digits_qdq.onnx"
_BITS = 10  # of a byte on the line: start, 8, stop


class PacedTransport:
    """Passes bytes through to ``inner`` as slowly as a line of ``baud`` bits per second, in both directions. Bytes arrive
    when the last of what was sent together has."""

    def __init__(self, inner: Transport, baud: int) -> None:
        self.description = f"{inner.description} (at {baud} baud)"
        self._inner = inner
        self._baud = baud

    def read(self, timeout: float) -> bytes:
        data = self._inner.read(timeout)
        self._take_time(data)
        return data

    def write(self, data: bytes) -> None:
        self._take_time(data)
        self._inner.write(data)

    def reopen(self) -> bool:
        return self._inner.reopen()

    def close(self) -> None:
        self._inner.close()

    def _take_time(self, data: bytes) -> None:
        time.sleep(_BITS * len(data) / self._baud)


def share(client: Client, baud: int, size: int) -> tuple[float, float]:
    """Bytes of a tensor sent and read, as shares of what the line carries."""
    index = max(range(len(client.model.tensors)), key=lambda k: client.model.tensors[k].nbytes)
    nbytes = client.model.tensors[index].nbytes
    repeat = -(-size // nbytes)
    shares = []
    for move in (lambda: client.write_tensor(index, bytes(nbytes)), lambda: client.read_tensor(index)):
        begin = time.monotonic()
        for _ in range(repeat):
            move()
        shares.append(10 * nbytes * repeat / baud / (time.monotonic() - begin))
    return shares[0], shares[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    parser.add_argument("--bytes", type=int, default=65536, dest="size")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = open_project(compile(arguments.model, board="host").write(Path(folder) / "project"))
        build_project(project)
        for baud, payload in LINES:
            with Client(PacedTransport(PipeTransport([str(project.elf)]), baud), max_payload=payload) as client:
                sent, read = share(client, baud, arguments.size)
                print(
                    f"{baud:>7} baud, payload {client.info.max_payload}: sent {sent:.1%}, read {read:.1%} of the rate"
                )


if __name__ == "__main__":
    main()
