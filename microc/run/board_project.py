"""A generated project: opened, built, its line, its network packed for slots."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from microc.base.file_access import read_text
from microc.base.immutable import frozen
from microc.codegen.c.source import shared_source
from microc.codegen.output_files import MARKER, replacing, write_tree
from microc.codegen.project.accelerators import OWN
from microc.codegen.project.board_files import abi_of
from microc.codegen.project.manifest import SCHEMA_VERSION, fault
from microc.codegen.project.protocols import LINKED, is_relocatable
from microc.compiler import validation
from microc.compiler.fit.footprint import link_overflow
from microc.device.board_info import FORMAT, HEADER, Blob, BlobTensor, Slots, read_blob, readable
from microc.device.boards import load_copy
from microc.device.client import Client, ask_slots, fill_slot
from microc.device.emulators import Emulator, simulator_line
from microc.device.images import Segment, segments
from microc.device.toolchain import Sizes, Symbol, board_tools, require, run_make, section_sizes
from microc.device.transport import Transport, find_port, open_transport
from microc.errors import (
    DeviceError,
    FitError,
    MicrocError,
    OutputError,
    ToolError,
    UsageError,
    nearest_file,
    suggestion,
)
from microc.plugin import PORTABLE
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.target import Board

# ---- The network of a project as a blob: linked twice, proved to be the same wherever it lies, and described for a
# board.

NETWORK = "network.bin"
"""The blob of a project."""
_IMAGE, _THREAD = ".image", ".tbss"


def pack(folder: Path, manifest: dict[str, Any], board: Board) -> Blob:
    """Make ``network.bin`` of what a relocatable project has linked. ToolError where code or constants depend on where they lie,
    or where the program writes memory that is not the network's."""
    first, second = (_linked(folder / name, at) for name, at in LINKED.items())
    (here, symbols), (there, _) = first, second
    if here != there:
        at = next((k for k, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
        raise _fixed(folder, _function_at(symbols, min(LINKED.values()) + at))
    entries = {s.name: (s.address & ~1) - min(LINKED.values()) for s in symbols}
    blob = Blob(
        name=manifest["model"],
        fingerprint=manifest["fingerprint"],
        core=board.target.cpu,
        abi=abi_of(board),
        memory=max(manifest["arena_size"], 1),
        stack=manifest["stack_bound"],
        kernels=len(manifest["kernels"]),
        tensors=_tensors(manifest),
        image=here,
        run=entries["microc_enter"],
        reset=entries.get("microc_reset"),
    )
    with replacing(folder / NETWORK) as temporary:
        temporary.write_bytes(blob.pack())
    return blob


def _linked(elf: Path, address: int) -> tuple[bytes, tuple[Symbol, ...]]:
    """The bytes of the image, and its symbols."""
    found: tuple[Segment, ...] = segments(elf)
    sizes = section_sizes(elf)
    others = [name for name, _ in sizes.sections if name not in (_IMAGE, _THREAD)]
    if others or [at for at, _ in found] != [address]:
        named = [s.name for s in sizes.symbols if s.section in others]
        raise ToolError(
            f"the network writes memory that is not its own: {', '.join(named[:4]) or ', '.join(others)}",
            where=str(elf),
            hint="functions of the C library do that; --math fast computes exp, tanh, erf and log without it",
        )
    return found[0][1], sizes.symbols


def _function_at(symbols: tuple[Symbol, ...], address: int) -> str:
    return next((s.name for s in symbols if s.address & ~1 <= address < (s.address & ~1) + s.size), "a function")


def _fixed(folder: Path, name: str) -> ToolError:
    return ToolError(
        f"{name} reaches its constants by fixed addresses, so that the network cannot lie anywhere",
        where=str(folder),
        hint="the C library is compiled so; --math fast computes exp, tanh, erf and log without it",
    )


def _tensors(manifest: dict[str, Any]) -> tuple[BlobTensor, ...]:
    """The board's table, in the manifest's order."""
    written = {name: k["index"] for k in manifest["kernels"] for name in k["outputs"]}
    begins = {"arena": 0, **{m["name"]: m["offset"] for m in manifest["memory"]}}
    return tuple(
        BlobTensor(begins[t["buffer"]] + t["offset"], t["bytes"], t["dtype"], t["kind"], written.get(t["name"]))
        for t in manifest["tensors"]
    )


# ---- A generated project: open it, build its firmware, have its network on this computer.

NEW = "firmware"
"""The folder of a project in hints and examples."""
_AGAIN = "compile again: microc compile MODEL --board BOARD -o {}"


@frozen
class Project:
    """A folder that ``microc compile`` wrote, and one of the networks in it: ``index`` is its number on the board."""

    folder: Path
    manifest: dict[str, Any]
    board: Board
    index: int = 0
    sources: Path = Path()

    @property
    def elf(self) -> Path:
        return self.folder / "firmware.elf"

    @property
    def relocatable(self) -> bool:
        """Whether the network is loaded into a firmware that does not hold it."""
        return is_relocatable(self.manifest["options"])

    @property
    def blob(self) -> Path:
        """The network as it is loaded."""
        return self.folder / NETWORK

    @property
    def program(self) -> Path:
        """The linked program that holds the network."""
        return self.folder / next(iter(LINKED)) if self.relocatable else self.elf

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """Tensors of the manifest by name, in the order of the board's table."""
        return {t["name"]: t for t in self.manifest["tensors"]}

    @property
    def emulated(self) -> bool:
        return "emulator" in self.board.raw

    def networks(self) -> tuple[Project, ...]:
        """All networks of the firmware, in the board's order; the project itself where it has one."""
        names = _manifest(self.folder / MARKER).get("models", ())
        return tuple(open_project(self.folder, name) for name in names) or (self,)

    @property
    def peak_stack(self) -> int:
        """Bytes of stack that a run of any of its networks takes at most, as gcc compiles them."""
        return max(int(network.manifest["stack_bound"]) for network in self.networks())


@frozen
class BuildResult:
    """A linked firmware and the memory it takes. ``network``: bytes of the network that is loaded into it, None if it has it."""

    elf: Path
    sizes: Sizes
    network: int | None = None


def open_project(folder: str | Path, model: str = "") -> Project:
    """The project in a folder, and its network called ``model``, which may be left out when there is one.

    UsageError or OutputError when there is no project, one of another version, or no such network.
    """
    root = validation.path("a project", folder)
    validation.text("a network", model)
    path = root / MARKER
    hint = f"make one: microc compile MODEL --board BOARD -o {NEW}"
    if not root.is_dir():
        known = nearest_file(root) if not root.exists() else ""
        what = f"{root} is a file, not a project" if root.exists() else f"there is no folder {root}"
        raise OutputError(what, where=str(root), hint=known or hint)
    if not path.is_file():
        raise OutputError(f"{root} is no project of microc: it has no {MARKER}", where=str(root), hint=hint)
    data = _manifest(path)
    names = data.get("models", [data.get("model")])
    if model and model not in names:
        raise UsageError(
            f"the project has no network {model!r}", where=str(root), hint=suggestion(model, names, "it has")
        )
    index = names.index(model) if model else 0
    sources = root / names[index] if "models" in data else root
    own = _manifest(sources / MARKER) if "models" in data else data
    return Project(root, own, load_copy(root / "board" / "board.json", own["board"]), index, sources)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(read_text(path))
        if "format" in data:
            what = f"{path.parent} is an export ({data['format']}), not a project"
            raise OutputError(
                what, where=str(path.parent), hint=f"compile the model into a project: microc compile MODEL -o {NEW}"
            )
        version, _ = data["schema_version"], str(data["board"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise OutputError(
            f"{path} is damaged", where=str(path), hint=_AGAIN.format(shlex.quote(str(path.parent)))
        ) from error
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"the project has schema version {readable(str(version), 40)}, this microc knows {SCHEMA_VERSION}",
            where=str(path),
            hint=_AGAIN.format(shlex.quote(str(path.parent))),
        )
    if wrong := fault(data):
        raise OutputError(
            f"{path} is damaged: {readable(wrong, 200)}",
            where=str(path),
            hint=_AGAIN.format(shlex.quote(str(path.parent))),
        )
    return data


def build(project: Project) -> BuildResult:
    """Run make. FitError with the numbers when the linker runs out of memory, ToolError when anything else fails."""
    framework, compiler = project.board.raw.get("framework"), project.board.raw["build"]["prefix"]
    if framework:
        require(framework["tool"], framework["install"])
    elif compiler:
        require(f"{compiler}gcc")
    try:
        run_make(project.folder)
    except ToolError as error:
        hot_code = "hot_code" in project.manifest
        overflow = link_overflow(error, project.board, str(project.folder), hot_code=hot_code)
        if overflow is None:
            raise
        raise overflow from error
    blob = pack(project.folder, project.manifest, project.board) if project.relocatable else None
    return BuildResult(project.elf, section_sizes(project.elf), None if blob is None else len(blob.pack()))


def linked_sizes(files: Mapping[str, str | bytes], board: Board) -> Sizes | None:
    """Link the firmware of a project's ``files`` in a temporary folder, and read its sizes.

    None where they say nothing of the network on the board (it is loaded, or external code brings data of its own), or where
    compiler or make are absent. FitError where the linker finds no room, ToolError where the C does not build.
    """
    if board.target.isa == "host" or "framework" in board.raw or not all(map(shutil.which, board_tools(board)[:2])):
        return None
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        write_tree(Path(folder) / NEW, files)
        project = open_project(Path(folder) / NEW)
        if project.relocatable or any("external" in each.manifest for each in project.networks()):
            return None
        return build(project).sizes


def host_library(project: Project) -> Library:
    """The project's own network, compiled for this computer; externs of plugins by their meaning, so that a board that runs
    their C text is compared with it, and so that external code is compared with ours."""
    folder, told = project.sources, project.manifest
    try:
        if "external" in told:
            folder = folder / OWN
            told = json.loads(read_text(folder / "manifest.json"))
            if wrong := fault(told):
                raise ValueError(f"{folder / 'manifest.json'} is damaged: {readable(wrong, 200)}")
        names = ("model.c", "model.h", "model_data.c", "model_data.h")
        sources = {name: read_text(folder / name) for name in names}
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(f"the project lacks a source file: {error}", where=str(project.folder)) from error
    return build_library({**sources, "shared.c": shared_source(told)}, f"-D{PORTABLE}")


# ---- The line to a board: which one it is, at which rate, and whose project answers on it.

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
    if project.board.simulated and not port:
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


# ---- Networks into a board that runs: what does not fit is refused before a byte is sent, and the board inspects
# what came.

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
