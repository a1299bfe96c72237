"""The line to a board: which one it is, at which rate, and whose project answers on it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from microc.codegen.files import MARKER
from microc.device.client import Client
from microc.device.emulator import Emulator
from microc.device.ports import find_port
from microc.device.simulator import simulated, simulator_line
from microc.device.transport import Transport, open_transport
from microc.driver.measure.firmware import Project, open_project
from microc.errors import DeviceError, MicrocError, UsageError

AUTO = "auto"
"""The port that is to be found by the board's USB ids."""
BAUD = 115200
"""The rate of a board whose file names none."""
_PROBE_SECONDS = 0.2  # for an answer at one of several rates
_SCHEMES = ("socket://", "pipe:", "rfc2217://")


def is_line(source: Project | str | Path) -> bool:
    """Whether a source is a line: a device file or port, no folder."""
    if isinstance(source, Project) or Path(source).is_dir():
        return False
    text = str(source)
    return text.startswith((*_SCHEMES, "/dev/", "COM")) or Path(source).is_char_device()


def project_behind(transport: Transport, network: str) -> Project:
    """The project whose firmware answers, of this folder and those in it; the line is closed where there is none."""
    try:
        board = Client(transport).hello()
        built = {model.fingerprint for model in board.models}
        places = [Path(), *sorted(path for path in Path().iterdir() if path.is_dir())]
        for place in (place for place in places if (place / MARKER).is_file()):
            try:
                found = open_project(place).networks()
            except MicrocError:  # an export, or of another version
                continue
            for project in found:
                if project.manifest["fingerprint"] in built and network in ("", project.manifest["model"]):
                    return project
        names = ", ".join(model.name for model in board.models)
        raise UsageError(
            f"the board runs {names}, and no project here is built of that",
            where=transport.description,
            hint="name the project's folder: microc.Device(folder, port)",
        )
    except BaseException:
        transport.close()
        raise


def reach(
    project: Project, port: str, bauds: Sequence[int], patience: float, stack: ExitStack
) -> tuple[Transport, float, bool]:
    """The line to a project's board, for how long to wait for it when it is lost, and whether it is our emulator's."""
    protocol = project.manifest["options"]["protocol"]
    if protocol == "mlperf":
        raise UsageError(
            f"the firmware speaks to MLPerf Tiny's runner ({protocol}), not to microc",
            where=str(project.folder),
            hint="compile it with --protocol rpc",
        )
    if simulated(project.board) and not port:
        return open_transport(simulator_line(project.board, project.elf)), 0.0, False
    if port or not (project.emulated or project.board.target.isa == "host"):
        port = find_port(project.board) if port in ("", AUTO) else port
        return open_line(port, bauds, project.board.raw["console"].get("baud", BAUD)), patience, False
    own = stack.enter_context(Emulator(project.board, project.elf)).url if project.emulated else _process(project)
    return open_transport(own), 0.0, project.emulated


def _process(project: Project) -> str:
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    return "pipe:" + shlex.quote(str(project.elf.resolve()))


def open_line(port: str, bauds: Sequence[int], usual: int = BAUD) -> Transport:
    """The line at the first rate at which something answers; with one rate to choose from, at that."""
    rates = tuple(bauds) or (usual,)
    for rate in rates:
        transport = open_transport(port, rate)
        if len(rates) == 1:
            return transport
        client = Client(transport, _PROBE_SECONDS, retries=1)
        try:
            client.hello()
        except DeviceError:
            transport.close()
        else:
            return transport
    tried = ", ".join(map(str, rates))
    raise DeviceError(
        f"no answer at any of the rates {tried}",
        where=port,
        hint="is the firmware running, and built with the RPC protocol?",
    )
