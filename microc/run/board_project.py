# SPDX-License-Identifier: Apache-2.0
"""A generated project: open and build it, reach its board, pack its network for loading, and send it to a board's
slot."""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.base.file_access import read_bytes, read_text
from microc.base.immutable import frozen
from microc.base.operating_system import quote_argument
from microc.codegen.c.interface import WEIGHTS_FILE
from microc.codegen.c.source import render_shared_library_source
from microc.codegen.output_files import PROJECT_MARKER, replace_atomically, write_tree
from microc.codegen.project.additions import OWN_CODE_FOLDER
from microc.codegen.project.board_files import abi_checksum
from microc.codegen.project.manifest import SCHEMA_VERSION, find_manifest_error
from microc.codegen.project.protocols import LINK_ADDRESSES, is_relocatable
from microc.compiler import validation
from microc.compiler.fit.search import convert_link_overflow_error
from microc.device.board_info import FORMAT, HEADER, Blob, BlobTensor, Slots, make_printable, read_blob
from microc.device.boards import load_board_copy
from microc.device.client import Client, query_slots, write_and_activate_slot
from microc.device.emulators import Emulator, make_simulator_address
from microc.device.flashing import Segment, read_segments
from microc.device.toolchain import (
    LinkedSizes,
    Symbol,
    list_tools_of_board,
    read_linked_sizes,
    require_program,
    run_make,
)
from microc.device.transport import RemoteTransport, Transport, find_board_port, open_transport
from microc.errors import (
    DeviceError,
    FitError,
    MicrocError,
    OutputError,
    ToolError,
    UsageError,
    known_names_hint,
    similar_files_hint,
)
from microc.module import WEIGHTS_HEADER_BYTES
from microc.plugin import PORTABLE
from microc.target import Board

if TYPE_CHECKING:
    from microc.run.desktop.library import Library

# ---- Packing a relocatable network into a blob. It is linked at two addresses; equal bytes prove position independence.

NETWORK = "network.bin"
"""File name of a project's blob."""
_IMAGE, _THREAD = ".image", ".tbss"
"""Sections that a relocatable network may have: code and constants, and thread-local data without initial values."""


def pack_network(folder: Path, manifest: dict[str, Any], board: Board) -> Blob:
    """Pack a relocatable network into a blob (a file that a board loads at run time), write it to ``network.bin`` in
    ``folder``, and return it.

    The two linked images of the project must be equal, which proves that the code runs at any address. Raises ToolError
    if code or constants depend on their address, or if the program has writable memory of its own.
    """
    first, second = (_read_linked_network(folder / name, address) for name, address in LINK_ADDRESSES.items())
    (first_image, symbols), (second_image, _) = first, second
    if first_image != second_image:
        mismatch = next(
            (k for k, (a, b) in enumerate(zip(first_image, second_image, strict=False)) if a != b),
            min(len(first_image), len(second_image)),
        )
        raise _make_position_dependence_error(
            folder, _find_function_at(symbols, min(LINK_ADDRESSES.values()) + mismatch)
        )
    entries = {s.name: (s.address & ~1) - min(LINK_ADDRESSES.values()) for s in symbols}
    blob = Blob(
        name=manifest["model"],
        fingerprint=manifest["fingerprint"],
        core=board.target.cpu,
        abi=abi_checksum(board),
        memory=max(manifest["arena_size"], 1),
        stack=manifest["stack_bound"],
        kernels=len(manifest["kernels"]),
        tensors=_make_blob_tensors(manifest),
        image=first_image,
        run=entries["microc_enter"],
        reset=entries.get("microc_reset"),
    )
    with replace_atomically(folder / NETWORK) as temporary:
        temporary.write_bytes(blob.pack())
    return blob


def _read_linked_network(elf: Path, link_address: int) -> tuple[bytes, tuple[Symbol, ...]]:
    """Read the bytes and the symbols of a relocatable network that is linked at ``link_address``.

    Raises ToolError if it has writable memory of its own."""
    content: tuple[Segment, ...] = read_segments(elf)
    sizes = read_linked_sizes(elf)
    foreign_sections = [name for name, _ in sizes.sections if name not in (_IMAGE, _THREAD)]
    if foreign_sections or [at for at, _ in content] != [link_address]:
        names = [s.name for s in sizes.symbols if s.section in foreign_sections]
        raise ToolError(
            "a relocatable network cannot have writable static memory; "
            f"got {', '.join(names[:4]) or ', '.join(foreign_sections)}",
            where=str(elf),
            hint="leave out operators that call the C library; --math fast computes exp, tanh, erf and log without it",
        )
    return content[0][1], sizes.symbols


def _find_function_at(symbols: tuple[Symbol, ...], address: int) -> str:
    """Return the name of the function that contains an address."""
    return next((s.name for s in symbols if s.address & ~1 <= address < (s.address & ~1) + s.size), "a function")


def _make_position_dependence_error(folder: Path, function_name: str) -> ToolError:
    """Return the error about a function whose code depends on the address that it is linked at."""
    return ToolError(
        f"{function_name} reads its constants at fixed addresses, so that the network cannot be loaded at any address",
        where=str(folder),
        hint="leave out operators that call the C library; --math fast computes exp, tanh, erf and log without it",
    )


def _make_blob_tensors(manifest: dict[str, Any]) -> tuple[BlobTensor, ...]:
    """List the tensors of a manifest as entries of the board's tensor table, in the manifest's order."""
    kernel_of = {name: k["index"] for k in manifest["kernels"] for name in k["outputs"]}
    base_of = {"arena": 0, **{m["name"]: m["offset"] for m in manifest["memory"]}}
    return tuple(
        BlobTensor(base_of[t["buffer"]] + t["offset"], t["bytes"], t["dtype"], t["kind"], kernel_of.get(t["name"]))
        for t in manifest["tensors"]
    )


# ---- A generated project: open it, build its firmware, compile its network for this computer.

NEW = "firmware"
"""Folder name of a project in hints and examples."""
_COMPILE_AGAIN = "compile again: microc compile MODEL --board BOARD -o {}"


@frozen
class Project:
    """One network of a project folder that ``microc compile`` wrote.

    ``manifest``: manifest of the network. ``index``: position of the network in the firmware. ``sources``: folder of
    its C files."""

    folder: Path
    manifest: dict[str, Any]
    board: Board
    index: int = 0
    sources: Path = Path()

    @property
    def elf(self) -> Path:
        """Path of the linked firmware."""
        return self.folder / "firmware.elf"

    @property
    def relocatable(self) -> bool:
        """True if the network is loaded at run time into firmware that does not contain it."""
        return is_relocatable(self.manifest["options"])

    @property
    def blob(self) -> Path:
        """Path of the network's blob."""
        return self.folder / NETWORK

    @property
    def program(self) -> Path:
        """Path of the linked program that contains the network."""
        return self.folder / next(iter(LINK_ADDRESSES)) if self.relocatable else self.elf

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """Tensors of the manifest by name, in the order of the board's table."""
        return {t["name"]: t for t in self.manifest["tensors"]}

    @property
    def emulated(self) -> bool:
        """True if an emulator can run the board."""
        return "emulator" in self.board.raw

    @property
    def needs_hardware(self) -> bool:
        """True if the firmware runs neither in an emulator or a simulator nor as a process of this computer."""
        return not (self.emulated or self.board.simulated or self.board.target.isa == "host")

    def networks(self) -> tuple[Project, ...]:
        """List all networks of the firmware in the board's order; the project itself if it has one."""
        names = _read_project_manifest(self.folder / PROJECT_MARKER).get("models", ())
        return tuple(open_project(self.folder, name) for name in names) or (self,)

    @property
    def peak_stack(self) -> int:
        """Largest stack of a run in bytes, over all networks of the firmware, as gcc compiles them."""
        return max(int(network.manifest["stack_bound"]) for network in self.networks())


@frozen
class BuildResult:
    """Result of a build: the linked firmware and its memory sizes.

    ``network``: size of a relocatable network's blob in bytes, else None."""

    elf: Path
    sizes: LinkedSizes
    network: int | None = None


def open_project(folder: str | Path, model: str = "") -> Project:
    """Open a project folder and its network ``model``; without a name, its first network.

    UsageError or OutputError if there is no project, it is from another version, or it has no such network.
    """
    root = validation.as_path("a project", folder)
    validation.as_text("a network", model)
    path = root / PROJECT_MARKER
    hint = f"make one: microc compile MODEL --board BOARD -o {NEW}"
    if not root.is_dir():
        nearest_folder = similar_files_hint(root) if not root.exists() else ""
        what = f"{root} is a file, not a project" if root.exists() else f"there is no folder {root}"
        raise OutputError(what, where=str(root), hint=nearest_folder or hint)
    if not path.is_file():
        raise OutputError(f"{root} is no project of microc: it has no {PROJECT_MARKER}", where=str(root), hint=hint)
    data = _read_project_manifest(path)
    names = data.get("models", [data.get("model")])
    if model and model not in names:
        raise UsageError(
            f"the project has no network {model!r}", where=str(root), hint=known_names_hint(model, names, "it has")
        )
    index = names.index(model) if model else 0
    sources = root / names[index] if "models" in data else root
    model_manifest = _read_project_manifest(sources / PROJECT_MARKER) if "models" in data else data
    return Project(
        root, model_manifest, load_board_copy(root / "board" / "board.json", model_manifest["board"]), index, sources
    )


def _read_project_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of a project. Raises OutputError if it is damaged, of an export, or of another
    version."""
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
            f"{path} is damaged", where=str(path), hint=_COMPILE_AGAIN.format(quote_argument(str(path.parent)))
        ) from error
    if version != SCHEMA_VERSION:
        raise OutputError(
            f"the project has schema version {make_printable(str(version), 40)}, this microc reads only {SCHEMA_VERSION}",
            where=str(path),
            hint=_COMPILE_AGAIN.format(quote_argument(str(path.parent))),
        )
    if problem := find_manifest_error(data):
        raise OutputError(
            f"{path} is damaged: {make_printable(problem, 200)}",
            where=str(path),
            hint=_COMPILE_AGAIN.format(quote_argument(str(path.parent))),
        )
    return data


def build_project(project: Project) -> BuildResult:
    """Build a project's firmware with make.

    Raises FitError, with sizes, if the program exceeds the board's memory, and ToolError for other failures."""
    framework, compiler = project.board.raw.get("framework"), project.board.raw["build"]["prefix"]
    if framework:
        require_program(framework["tool"], framework["install"])
    elif compiler:
        require_program(f"{compiler}gcc")
    try:
        run_make(project.folder)
    except ToolError as error:
        hot_code = "hot_code" in project.manifest
        overflow = convert_link_overflow_error(error, project.board, str(project.folder), hot_code=hot_code)
        if overflow is None:
            raise
        raise overflow from error
    blob = pack_network(project.folder, project.manifest, project.board) if project.relocatable else None
    return BuildResult(project.elf, read_linked_sizes(project.elf), None if blob is None else len(blob.pack()))


def link_and_read_sizes(files: Mapping[str, str | bytes], board: Board) -> LinkedSizes | None:
    """Link the firmware of a project's ``files`` in a temporary folder, and read its sizes.

    Return None if the sizes would not describe the network on the board (it is loaded at run time, or external code
    brings data of its own), or if compiler or make are missing. Raises FitError if the linker runs out of memory,
    ToolError if the C does not build.
    """
    if (
        board.target.isa == "host"
        or "framework" in board.raw
        or not all(map(shutil.which, list_tools_of_board(board)[:2]))
    ):
        return None
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        write_tree(Path(folder) / NEW, files)
        project = open_project(Path(folder) / NEW)
        if project.relocatable or any("external" in each.manifest for each in project.networks()):
            return None
        return build_project(project).sizes


def build_host_library(project: Project) -> Library:
    """Compile a project's own network for this computer as a library. External functions of plugins are replaced by
    their Python implementations, and external code by microc's own kernels, so that both can be compared with the
    board."""
    from microc.run.desktop.load import build_library

    folder, manifest = project.sources, project.manifest
    try:
        if "external" in manifest:
            folder = folder / OWN_CODE_FOLDER
            manifest = json.loads(read_text(folder / "manifest.json"))
            if problem := find_manifest_error(manifest):
                raise ValueError(f"{folder / 'manifest.json'} is damaged: {make_printable(problem, 200)}")
        names = ("model.c", "model.h", "model_data.c", "model_data.h")
        sources = {name: read_text(folder / name) for name in names}
        weights = _read_stored_constants(folder, manifest) if "storage" in manifest else b""
    except (OSError, ValueError, RecursionError) as error:
        raise OutputError(
            f"the project lacks a source file: {error}",
            where=str(project.folder),
            hint=_COMPILE_AGAIN.format(quote_argument(str(project.folder))),
        ) from error
    return build_library(
        {**sources, "shared.c": render_shared_library_source(manifest, weights=weights)}, f"-D{PORTABLE}"
    )


def _read_stored_constants(folder: Path, manifest: Mapping[str, Any]) -> bytes:
    """Read the file of weights of a network in ``folder``. Raises ValueError if it is not the file that the manifest
    describes."""
    storage = manifest["storage"]
    content = read_bytes(folder / WEIGHTS_FILE, storage["size"])
    got = len(content), zlib.crc32(content[WEIGHTS_HEADER_BYTES:])
    if got != (storage["size"], storage["crc"]):
        raise ValueError(
            f"{folder / WEIGHTS_FILE} is not the file of this network; got {got[0]} bytes with CRC-32 {got[1]:#010x}, "
            f"expected {storage['size']} bytes with {storage['crc']:#010x}"
        )
    return content


# ---- The line to a board: find it, choose its rate, and find the project whose firmware answers.

AUTO = "auto"
"""The port to be found by the board's USB ids."""
BAUD = 115200
"""Default baud rate of boards whose file names none."""
_PROBE_SECONDS = 0.2  # for an answer at one of several rates
_SCHEMES = ("tcp://", "socket://", "pipe:", "rfc2217://")


def is_serial_line(source: Project | str | Path) -> bool:
    """Test whether ``source`` names a line to a board (a device file, serial port or URL) instead of a project folder."""
    if isinstance(source, Project) or Path(source).is_dir():
        return False
    text = str(source)
    return text.startswith((*_SCHEMES, "/dev/", "COM")) or Path(source).is_char_device()


def find_answering_project(transport: Transport, network: str) -> Project:
    """Find the project whose firmware answers on a line; search the current folder and its subfolders.

    ``network``: name of the network, empty for any. If there is no such project, the line is closed, and UsageError is
    raised."""
    try:
        board = Client(transport).hello()
        fingerprints = {model.fingerprint for model in board.models}
        folders = [Path(), *sorted(path for path in Path().iterdir() if path.is_dir())]
        for folder in (folder for folder in folders if (folder / PROJECT_MARKER).is_file()):
            try:
                networks = open_project(folder).networks()
            except MicrocError:  # an export, or of another version
                continue
            for project in networks:
                if project.manifest["fingerprint"] in fingerprints and network in ("", project.manifest["model"]):
                    return project
        names = ", ".join(model.name for model in board.models)
        raise UsageError(
            f"the board runs {names}, and no project in this folder or its subfolders was compiled from it",
            where=transport.description,
            hint="name the project's folder: microc.Device(folder, port)",
        )
    except BaseException:
        transport.close()
        raise


def open_board_line(
    project: Project, port: str, bauds: Sequence[int], patience: float, stack: ExitStack
) -> tuple[Transport, float, bool]:
    """Open the line to a project's board: a serial port, simulator, emulator or host process.

    Returns the transport, the seconds to wait if the line is lost, and True if an emulator runs the board, here or
    behind ``microc serve``. When ``stack`` closes, it ends an emulator that was started here."""
    protocol = project.manifest["options"]["protocol"]
    if protocol == "mlperf":
        raise UsageError(
            f"the firmware uses the protocol of MLPerf Tiny's runner; got protocol {protocol}, expected rpc",
            where=str(project.folder),
            hint="compile it with --protocol rpc",
        )
    if project.board.simulated and not port:
        return open_transport(make_simulator_address(project.board, project.elf)), 0.0, False
    if port or project.needs_hardware:
        port = find_board_port(project.board) if port in ("", AUTO) else port
        transport = open_line_probing_rates(port, bauds, project.board.raw["console"].get("baud", BAUD))
        return transport, patience, is_remotely_emulated(transport, project.board)
    address = (
        stack.enter_context(Emulator(project.board, project.elf)).url
        if project.emulated
        else _pipe_address_of_host_program(project)
    )
    return open_transport(address), 0.0, project.emulated


def is_remotely_emulated(transport: Transport, board: Board) -> bool:
    """Test whether ``microc serve`` on the other side of a line runs ``board`` in its emulator."""
    return isinstance(transport, RemoteTransport) and transport.emulated and "emulator" in board.raw


def _pipe_address_of_host_program(project: Project) -> str:
    """Return the ``pipe:`` address that runs a host project's program. Raises UsageError if it is not built."""
    if not project.elf.is_file():
        raise UsageError(
            "the project is not built", where=str(project.folder), hint=f"build it: microc build {project.folder}"
        )
    return "pipe:" + quote_argument(str(project.elf.resolve()))


def open_line_probing_rates(port: str, bauds: Sequence[int], default_rate: int = BAUD) -> Transport:
    """Open a serial line at the first baud rate at which a board answers; a single rate is not probed.

    ``default_rate``: the rate if ``bauds`` is empty. Raises DeviceError if no rate is answered."""
    rates = tuple(bauds) or (default_rate,)
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
        hint="check that the firmware runs, and that it was compiled with --protocol rpc",
    )


# ---- Loading a network into a running board. The host checks that it fits before sending; the board checks what arrived.

_TENSOR_ENTRY, _ALIGN = 12, 16
"""Bytes of an entry in the board's tensor table, and the alignment of the network's memory behind that table."""


def read_network_blob(project: Project) -> Blob:
    """Read the blob of a project. Raises UsageError if the project is not relocatable or not built."""
    if not project.relocatable:
        raise UsageError(
            f"the network {project.manifest['model']!r} is part of its firmware",
            where=str(project.folder),
            hint="compile it with --relocatable; or flash the firmware: microc flash DIR",
        )
    if not project.blob.is_file():
        raise UsageError(
            "the project is not built", where=str(project.folder), hint=f"build it: microc build {project.folder}"
        )
    return read_blob(project.blob)


def build_network_file(files: Mapping[str, str | bytes], target: Path) -> None:
    """Build a relocatable project with these files in a temporary folder, and write the network's blob to
    ``target``."""
    with tempfile.TemporaryDirectory(prefix="microc-load-") as name:
        folder = Path(name) / "network"
        write_tree(folder, files)
        project = open_project(folder)
        build_project(project)
        with replace_atomically(target) as temporary:
            temporary.write_bytes(project.blob.read_bytes())


def send_network(client: Client, blob: Blob) -> Slots:
    """Send a network into the inactive one of the board's two flash slots, and activate it; return the new state of the
    slots.

    The previous network stays active until the board has accepted the new one, and longer if it rejects it or the power
    fails. Raises FitError if the board has too little room, UsageError for a network for another core, DeviceError if
    the board refuses or is gone.
    """
    data = blob.pack()
    slots = query_slots(client)
    _check_network_core(blob, slots)
    _check_network_fits(blob, len(data), slots)
    if slots.flash_write_bytes > client.info.max_payload - 4:
        raise DeviceError(
            f"the board writes flash in units of {slots.flash_write_bytes} bytes, which must fit a frame; got frames of "
            f"{client.info.max_payload - 4} bytes",
            hint="build its firmware with a larger MICROC_RPC_MAX_PAYLOAD",
        )
    write_and_activate_slot(client, data, slots.flash_write_bytes)
    return query_slots(client)


def _check_network_core(blob: Blob, slots: Slots) -> None:
    """Raise UsageError, with the reason, if a network is for another core, ABI or format than the board's firmware.

    The board itself would only answer BAD_TARGET."""
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
            f"the network {blob.name!r} and the board's firmware, both for {blob.core}, were compiled with different options "
            "of the compiler",
            hint="compile it for the board whose firmware is there; floats may be passed in other registers",
        )


def _check_network_fits(blob: Blob, packed_bytes: int, slots: Slots) -> None:
    """Raise FitError, with figures, if the board has too little room for a network of ``packed_bytes`` bytes.

    The board itself would only answer NO_ROOM."""
    table = -(-len(blob.tensors) * _TENSOR_ENTRY // _ALIGN) * _ALIGN
    reasons = [
        f"takes {need:,} bytes of {what}, the board has {room:,}"
        for what, need, room in (
            ("a slot", packed_bytes, slots.slot_bytes),
            ("memory for tensors", blob.memory + table, slots.ram_bytes),
            ("stack", blob.stack, slots.stack_bytes),
        )
        if need > room
    ]
    if reasons:
        code = len(blob.image) + HEADER
        raise FitError(
            f"the network {blob.name!r} does not fit the board: it " + "; it ".join(reasons),
            where=f"code and constants {code:,} bytes, memory {blob.memory:,}",
            hint="compile it with --optimize size for smaller code and constants, with --ram for less memory",
        )
