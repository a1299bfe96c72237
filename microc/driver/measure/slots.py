"""Networks into a board that runs: what does not fit is refused before a byte is sent, and the board inspects what came."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from microc.codegen.files import replacing, write_tree
from microc.device.blob import FORMAT, HEADER, Blob, read_blob
from microc.device.client import Client
from microc.device.info import Slots
from microc.device.slots import ask_slots, fill_slot
from microc.driver.measure.firmware import Project, build, open_project
from microc.errors import DeviceError, FitError, UsageError

_TENSOR, _ALIGN = 12, 16
"""Bytes of an entry of the table that a board makes, and what the network's own memory behind it is aligned to."""


def built_network(project: Project) -> Blob:
    """The network of a project as it is loaded. UsageError for one that was not compiled for that, or is not built."""
    if not project.relocatable:
        raise UsageError(
            f"the network {project.manifest['model']!r} is part of its firmware",
            where=str(project.folder),
            hint="compile it with --relocatable; or flash the firmware: microc flash DIR",
        )
    if not project.blob.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    return read_blob(project.blob)


def write_network(files: Mapping[str, str | bytes], target: Path) -> None:
    """Build the project of these files, and keep its network as a file."""
    with tempfile.TemporaryDirectory(prefix="microc-load-") as name:
        folder = Path(name) / "network"
        write_tree(folder, files)
        project = open_project(folder)
        build(project)
        with replacing(target) as temporary:
            temporary.write_bytes(project.blob.read_bytes())


def send_network(client: Client, blob: Blob) -> Slots:
    """Send a network into the slot of a board that does not run, and have it run; what the board says of its slots then.

    What ran before runs until the board has accepted the network, and further if it does not or the power goes. FitError where
    the board has too little room, UsageError for a network for another core, DeviceError where the board refuses or is gone.
    """
    data = blob.pack()
    slots = ask_slots(client)
    _check_core(blob, slots)
    _check_room(blob, len(data), slots)
    if slots.unit > client.info.max_payload - 4:
        raise DeviceError(
            f"the board writes {slots.unit} bytes at once, and its frames hold {client.info.max_payload - 4}",
            hint="build its firmware with a larger MICROC_RPC_MAX_PAYLOAD",
        )
    fill_slot(client, data, slots.unit)
    return ask_slots(client)


def _check_core(blob: Blob, slots: Slots) -> None:
    """What the board would refuse as BAD_TARGET, with its reasons."""
    if slots.format != FORMAT:
        raise UsageError(
            f"the board's firmware reads networks of format {slots.format}, this microc makes format {FORMAT}",
            hint="build and flash the firmware again, or use the microc that it was made with",
        )
    if blob.core != slots.core:
        raise UsageError(
            f"the network {blob.name!r} is for {blob.core}, the board's firmware for {slots.core}",
            hint="compile it for that board: --board BOARD --relocatable",
        )
    if blob.abi != slots.abi:
        raise UsageError(
            f"the network {blob.name!r} and the board's firmware are for {blob.core}, with other options of the compiler",
            hint="compile it for the board whose firmware is there; floats may be passed in other registers",
        )


def _check_room(blob: Blob, nbytes: int, slots: Slots) -> None:
    """What the board would refuse as NO_ROOM, with numbers."""
    table = -(-len(blob.tensors) * _TENSOR // _ALIGN) * _ALIGN
    reasons = [
        f"takes {need:,} bytes of {what}, the board has {room:,}"
        for what, need, room in (
            ("a slot", nbytes, slots.room),
            ("memory for tensors", blob.memory + table, slots.memory),
            ("stack", blob.stack, slots.stack),
        )
        if need > room
    ]
    if reasons:
        code = len(blob.image) + HEADER
        raise FitError(
            f"the network {blob.name!r} does not fit the board: it " + "; it ".join(reasons),
            where=f"code and constants {code:,} bytes, memory {blob.memory:,}",
            hint="--optimize size makes code and constants smaller, --ram the memory",
        )
