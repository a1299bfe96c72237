"""``microc load``: a network into a board that keeps its firmware."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.session import line
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.device.blob import Blob
    from microc.device.info import Slots


def load(arguments: Arguments) -> show.Answer:
    """``microc load``."""
    blob, slots = _project(arguments) if arguments.folder.is_dir() else _file(arguments)
    data = blob.pack()
    fields: dict[str, Any] = {
        "network": blob.name,
        "fingerprint": blob.fingerprint,
        "core": blob.core,
        "bytes": len(data),
        "signature_bytes": len(blob.signature),
        "memory": blob.memory,
        "slot": slots.active,
        "commits": slots.commits,
        "slot_bytes": slots.room,
        "memory_bytes": slots.memory,
    }
    rows = [
        ("network", f"{blob.name} for {blob.core}"),
        ("slot", f"{'AB'[slots.active or 0]}, commit {show.count(slots.commits)}"),
        ("  taken", show.of(len(data), slots.room)),
        ("memory", show.of(blob.memory, slots.memory)),
        ("signature", f"{show.count(len(blob.signature))} bytes" if blob.signature else "none"),
    ]
    return show.Answer(fields, show.facts(rows))


def _project(arguments: Arguments) -> tuple[Blob, Slots]:
    """The network of a project, built where its board is not behind a port, or it was not yet."""
    from microc.device.slots import ask_slots
    from microc.driver.measure.firmware import build, open_project
    from microc.driver.measure.session import Device
    from microc.driver.measure.slots import built_network

    project = open_project(arguments.folder)
    if project.relocatable and not (arguments.port and project.blob.is_file()):
        build(project)
    blob = built_network(project)
    with Device(project, load=True, progress=progress(arguments), **line(arguments)) as device:
        return blob, ask_slots(device.client)


def _file(arguments: Arguments) -> tuple[Blob, Slots]:
    """A network that is a file: nothing but the port tells where its board is."""
    from microc.device.blob import read_blob
    from microc.driver.measure.line import AUTO
    from microc.driver.measure.session import open_client
    from microc.driver.measure.slots import send_network

    blob = read_blob(arguments.folder)
    if arguments.port in ("", AUTO):
        raise UsageError(
            "a file does not say which board it is for",
            where=str(arguments.folder),
            hint="name its line: --port PORT; microc ports lists those of this computer",
        )
    with ExitStack() as stack:
        client = stack.enter_context(open_client(**line(arguments), progress=progress(arguments)))
        return blob, send_network(client, blob)
