"""A project's firmware onto its board."""

from __future__ import annotations

from collections.abc import Sequence

from microc.device.emulator import Emulator
from microc.device.flash import flash, load
from microc.device.ports import find_port
from microc.device.runners import select_runner
from microc.device.slots import ask_slots
from microc.driver.measure.firmware import Project
from microc.driver.measure.line import AUTO, BAUD
from microc.driver.measure.session import PATIENCE, Device, open_client
from microc.errors import UsageError


def flash_project(
    project: Project,
    runner: str = "",
    *,
    port: str = "",
    bauds: Sequence[int] = (),
    dry_run: bool = False,
    patience: float = PATIENCE,
) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Bring the firmware onto its board: the commands, and whether the board answered as this project afterwards.

    An emulated board is loaded through its debugger and asked at once; hardware is asked when ``port`` is given.
    """
    chosen = select_runner(project.board, runner)
    port = find_port(project.board) if port == AUTO else port
    if dry_run:
        return flash(project.board, project.elf, runner=runner, port=port, dry_run=True), False
    if not chosen.emulated:
        commands = flash(project.board, project.elf, runner=runner, port=port)
        if port and project.relocatable:
            with open_client(port, bauds, patience, usual=project.board.raw["console"].get("baud", BAUD)) as client:
                ask_slots(client)
        elif port:
            Device(project, port, bauds=bauds, patience=patience).close()
        return commands, bool(port)
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    with Emulator(project.board, None, debug=True) as emulator:
        command = load(emulator, project.elf)
        Device(project, emulator.url, patience=patience, load=project.relocatable).close()
        return (command,), True
