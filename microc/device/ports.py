"""Serial ports of this machine, and which of them is a board's: by the USB ids that the board file lists."""

from __future__ import annotations

from collections.abc import Sequence

from microc.device.boards import list_boards, load_board
from microc.device.info import readable
from microc.errors import UsageError
from microc.frozen import frozen
from microc.target import Board

ADAPTERS = (
    "0403:6001",
    "0403:6010",
    "0403:6014",
    "0403:6015",
    "067b:2303",
    "10c4:ea60",
    "1a86:7523",
    "1a86:55d3",
    "1a86:55d4",
)
"""USB ids of the usual serial adapters (FTDI, Prolific, Silicon Labs, WCH), for boards without a plug of their own."""


@frozen
class Port:
    """A serial port. ``usb``: ``vid:pid`` in lower-case hexadecimal, empty for what is not on USB; ``serial`` is its number."""

    name: str
    description: str
    usb: str
    serial: str


def list_ports() -> tuple[Port, ...]:
    """The serial ports of this machine, by name. What a plug says of itself is made fit to be shown."""
    from serial.tools import list_ports as machine

    return tuple(
        Port(
            p.device,
            readable(p.description or ""),
            "" if p.vid is None else f"{p.vid:04x}:{p.pid:04x}",
            readable(p.serial_number or ""),
        )
        for p in sorted(machine.comports())
    )


def candidates(board: Board, ports: Sequence[Port]) -> tuple[Port, ...]:
    """The ports that ``board`` may be behind: those with its USB ids; for want of such, adapters."""
    ids: tuple[str, ...] = tuple(board.raw.get("usb", ()))
    return tuple(p for p in ports if p.usb in ids) or tuple(p for p in ports if p.usb in ADAPTERS)


def find_port(board: Board) -> str:
    """The one port that ``board`` may be behind; UsageError when there is none, or more than one."""
    ports = list_ports()
    found = candidates(board, ports)
    if len(found) == 1:
        return found[0].name
    if found:
        several = ", ".join(f"{p.name} ({p.description})" for p in found)
        raise UsageError(
            f"board {board.name!r} may be behind any of {len(found)} ports: {several}",
            hint=f"name one: --port {found[0].name}",
        )
    there = ", ".join(p.name for p in ports) or "none"
    raise UsageError(
        f"board {board.name!r} is on no serial port that we recognise; the ports of this machine: {there}",
        hint=f"plug it in, or name its port: --port /dev/ttyACM0{_without_hardware(board)}",
    )


def _without_hardware(board: Board) -> str:
    """Name the emulated board whose core is nearest: of the same family, with the fewest features that only one of them has, and
    most RAM. Nothing if no emulated board has a core of the family."""
    near = [b for b in map(load_board, list_boards()) if b.virtual and b.target.isa == board.target.isa]
    if not near:
        return ""
    best = min(near, key=lambda b: (len(b.target.features ^ board.target.features), -b.ram_bytes))
    return f"; without it, compile for an emulated board with a {best.target.cpu}: --board {best.name}"
