"""What a board that takes networks is asked: what it has for them, to make room for one, and to run what came."""

from __future__ import annotations

import struct

from microc.device.client import Client
from microc.device.framing import Operation
from microc.device.info import Slots, readable
from microc.errors import DeviceError

_SLOTS, _MOST_UNIT = struct.Struct("<HBB5I"), 64


def ask_slots(client: Client) -> Slots:
    """What the board has for networks that are loaded; DeviceError where its firmware takes none."""
    answer = client.ask(Operation.SLOTS)
    unit = answer[3] if len(answer) >= _SLOTS.size else 0
    if not 1 <= unit <= _MOST_UNIT or unit & (unit - 1):
        raise DeviceError("the board's answer to SLOTS makes no sense", hint="flash the firmware again")
    version, active, _, room, memory, stack, commits, abi = _SLOTS.unpack_from(answer)
    core = readable(answer[_SLOTS.size :].decode(errors="replace"))
    return Slots(version, active if active < 2 else None, unit, room, memory, stack, commits, abi, core)


def fill_slot(client: Client, data: bytes, unit: int) -> None:
    """Bring a network, its signature behind it, into the slot that does not run, and have the board inspect and run it.
    DeviceError says why it does not; what ran before runs then."""
    client.ask(Operation.ERASE, struct.pack("<I", len(data)), 0, computes=True)
    client.load(0, data + b"\xff" * (-len(data) % unit), unit)
    client.ask(Operation.COMMIT, struct.pack("<I", len(data)), 0, computes=True)
    client.hello()  # it has another model
