"""Where a search measures: on this computer, on emulators of a board, or on boards behind ports."""

from __future__ import annotations

from collections.abc import Sequence

from microc.device.simulator import ELF
from microc.errors import UsageError
from microc.target import Board, Target
from microc.tuning.loaded import LoadRunner
from microc.tuning.on_board import BoardRunner
from microc.tuning.on_host import HostRunner, Yardsticks
from microc.tuning.pool import Pool
from microc.tuning.runner import Meter


def meter_for(board: Board | None, target: Target, ports: Sequence[str], jobs: int, *, load: bool = False) -> Meter:
    """What measures on ``board``, or on this computer as ``target``; ``ports``: its lines, one that is empty is its emulator;
    ``jobs``: how many emulators, programs or processes run at once; ``load``: boards are flashed once, and candidates loaded.
    UsageError for a line that several would share."""
    lines = [port for port in ports if port]
    kind = LoadRunner if load else BoardRunner
    if board is None:
        if load:
            raise UsageError("this computer loads no code over a line", hint="--load is for boards: --board BOARD")
        if lines:
            raise UsageError(
                "this computer has no port to measure on", hint="name the board: --board BOARD --port PORT"
            )
        yardsticks = Yardsticks()
        return _pooled([(f"process {k + 1}", HostRunner(target, yardsticks, k)) for k in range(jobs)])
    if not lines:
        return _pooled([(f"emulator {number}", kind(board)) for number in range(1, jobs + 1)])
    single = [line for line in lines if ELF not in line]
    if len(set(single)) < len(single):
        raise UsageError("a port is named twice", where=", ".join(single), hint="name the port of each board once")
    if jobs > 1 and single:
        raise UsageError(
            f"{jobs} jobs cannot share a port, which has one board",
            hint="name the port of each board: --port A --port B",
        )
    return _pooled([(line, kind(board, line)) for line in lines for _ in range(jobs)])


def _pooled(runners: Sequence[tuple[str, Meter]]) -> Meter:
    """One by itself, several as a pool."""
    return Pool(runners) if len(runners) > 1 else runners[0][1]
