# SPDX-License-Identifier: Apache-2.0
"""Generate the files of a firmware project, as a mapping from paths to contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.base import file_access
from microc.base.immutable import frozen
from microc.codegen.c.interface import WEIGHTS_FILE, pack_stored_constants, print_alignment_attribute
from microc.codegen.c.source import ModelContext, make_model_context, network_files_and_manifest, render_network
from microc.codegen.project.additions import (
    OWN_CODE_FOLDER,
    ExternalContext,
    list_external_files,
    make_external_context,
    merge_external_code_sources,
)
from microc.codegen.project.board_files import (
    KERNELS,
    NETWORKS,
    TASKS_FILE,
    linker_script,
    render_board_header,
    render_tasks_json,
)
from microc.codegen.project.manifest import make_project_manifest, manifest, to_json
from microc.codegen.project.protocols import (
    LINK_ADDRESSES,
    POSITION_INDEPENDENT,
    is_relocatable,
    make_rpc_context,
    print_buffer_size_macros,
    render_mlperf_main,
    render_relocatable_entry_files,
)
from microc.codegen.project.sbom import add_sbom
from microc.codegen.render import Code, Name, Setting, Text, Word, render
from microc.errors import UsageError
from microc.isa import CORES, FAMILIES
from microc.module import Module
from microc.target import Board, Target

# ---- Compiler options for the network's C files and for all other C files of a project.

RUNTIME_OPTIMISATION = "-Os"
"""Compiler options for all C files of a project except those of the network."""


def optimisation_options(target: Target, optimize: str) -> str:
    """Return gcc's options for the C files of a network. ``optimize``: the goal of the compilation, such as size or speed."""
    return " ".join(filter(None, (FAMILIES[target.isa].options[optimize], target.core.options)))


def webassembly_options(target: Target) -> str:
    """Return clang's options to compile a network to a WebAssembly reactor: a module of functions, without a main program.

    Vector instructions are enabled only if the network was compiled for a WebAssembly core. The stack gets 256 KiB instead of the
    default 64 KiB, because kernels have small workspaces on the stack.
    """
    machine = target.core.machine if target.isa == "wasm" else "--target=wasm32-wasi"
    return f"{machine} -std=c99 -O2 -mexec-model=reactor -Wl,-z,stack-size=262144"


# ---- All files of a project: the networks, the firmware that runs them, build files, manifest.

RESERVED_FOLDERS = frozenset({"board", "runtime", "build", "external", "firmware", "main", "m", "own"})
"""Names of folders and build targets of a project. No network may have such a name if the project has several networks, because
each of them has a folder with its name."""
SLOTS = "slots"
"""Protocol of a firmware with slots in RAM for networks that are loaded over the serial line."""
PLUGIN_CORE_KEY = "core"
"""Key of the description of a core that a plugin defines, in the project's copy of the board's file."""
RUNTIME_HEADERS = (
    "SPEC.md",
    "include/microc_blob.h",
    "include/microc_frame.h",
    "include/microc_load.h",
    "include/microc_mlperf.h",
    "include/microc_port.h",
    "include/microc_rpc.h",
    "include/microc_slot.h",
)
CORES_HEADER, STORAGE_HEADER = "include/microc_cores.h", "include/microc_storage.h"
STORE_HEADER, STORE_SOURCE = "include/microc_store.h", "src/microc_store.c"
"""Files of the runtime that save learned weights, in a firmware that learns."""
RUNTIME_SOURCES = MappingProxyType(
    {
        "rpc": ("src/microc_frame.c", "src/microc_rpc.c"),
        "mlperf": ("src/microc_mlperf.c",),
        "tuning": ("src/microc_frame.c", "src/microc_rpc.c", "src/microc_load.c"),
        SLOTS: ("src/microc_frame.c", "src/microc_rpc.c", "src/microc_blob.c", "src/microc_slot.c", "ports/slots.c"),
    }
)
"""C files of the runtime by protocol. A firmware with slots for loaded networks uses RPC with additional operations."""
CODE_BY_PROTOCOL = MappingProxyType({"tuning": KERNELS, SLOTS: NETWORKS})
"""Type of code that a firmware receives over its serial line and runs, by protocol."""
LOADER_SOURCES = MappingProxyType({"ports/cortex_m.c": "ports/cortex_m_load.c", "ports/riscv.c": "ports/riscv_load.c"})
"""The additional C file that a port needs to run loaded code from RAM, by the C file of the port."""
MAX_PROJECT_NAME = 100
"""Maximum number of letters of a project's name, which consists of the names of its networks."""


@frozen
class Network:
    """A network of a project, as a template variable.

    ``folder``: path of the folder for the network's files in the project, with a slash at the end; empty if they are in the
    project's root folder. ``model``: the variables of the templates of its C files."""

    folder: Word
    model: ModelContext


@frozen
class Framework:
    """A vendor's framework that builds a project, as a template variable.

    ``target``: the framework's name of the chip. ``stack_bytes``: bytes of stack of the task that answers the serial line.
    ``settings``: lines of the framework's configuration. ``external_ram``: the regions of external RAM for tensors."""

    name: Word
    target: Word
    stack_bytes: int
    settings: tuple[Setting, ...]
    external_ram: tuple[Name, ...]


@frozen
class ProjectContext:
    """Variables of the templates of a project's Makefile, CMakeLists.txt, README.md and main.c.

    ``shared_arena``: bytes of the arena that several networks without state share; 0 if there is none. ``shared_aligned``: C
    attribute that aligns this arena; empty if its type suffices. ``prefix``: prefix of the names of the compiler's programs.
    ``framework``: the vendor's framework that builds the project; None if make builds it. ``learns``: True if a network learns.
    ``linked``: for a network that is loaded over the serial line, the names of the programs that it is linked to, each with its
    address; empty if the network is part of the firmware.
    """

    title: Text
    project: Name
    version: Word
    networks: tuple[Network, ...]
    shared_arena: int
    shared_aligned: Code
    board_title: Text
    prefix: Word
    is_host: bool
    c_flags: tuple[Word, ...]
    ld_flags: tuple[Word, ...]
    sources: tuple[Word, ...]
    optimisation: Code
    runtime_optimisation: Code
    has_linker_script: bool
    framework: Framework | None
    self_test: bool
    learns: bool
    linked: tuple[tuple[Word, Code], ...]
    position_independent: Word
    external: ExternalContext | None


def project_files(modules: Sequence[Module], board: Board, version: str) -> dict[str, str | bytes]:
    """Return the content of all files that ``microc compile -o DIR`` writes, by path in the project.

    The files of a single network are in the project's root folder. Several networks have a folder each, with the network's name.
    All modules must be compiled for ``board`` with the same goal, and their names must differ."""
    several = len(modules) > 1
    networks = tuple(
        Network(Word(f"{module.name}/" if several else ""), make_model_context(module, version)) for module in modules
    )
    loadable = is_relocatable(modules[0].options)
    protocol = SLOTS if loadable else modules[0].options["protocol"]
    external = merge_external_code_sources(modules)
    context = _project_context(
        networks, shared_arena(modules), board, modules[0].options, protocol, make_external_context(external)
    )
    files: dict[str, str | bytes] = {}
    first_bank = 0
    # The files of a single network are in the project's root folder. Several networks have a folder each, with a manifest. The
    # manifest in the root folder lists the networks.
    for network, module in zip(networks, modules, strict=True):
        network_files = render_network(network.model)
        if loadable:
            network_files |= render_relocatable_entry_files(modules)
        else:
            has_driver = "sources" in board.raw.get("storage", {})
            rpc_context = make_rpc_context(module, several, has_driver=has_driver, first_bank=first_bank)
            first_bank += 2 if module.inference_calls else 0  # networks that learn have two banks each
            network_files["rpc_model.c"] = render("project/rpc_model.c.j2", rpc_context)
        if several:
            network_files["manifest.json"] = to_json({**manifest(module, version), "board": board.name})
        if module.own is not None:
            files.update(
                {
                    f"{network.folder}{OWN_CODE_FOLDER}/{name}": text
                    for name, text in network_files_and_manifest(module.own, version).items()
                }
            )
            files.update(_stored_constants_file(module.own, f"{network.folder}{OWN_CODE_FOLDER}/"))
        files.update(_stored_constants_file(module, str(network.folder)))
        files.update({network.folder + name: text for name, text in network_files.items()})
    for name in ("Makefile", *(() if loadable else ("CMakeLists.txt",)), "README.md"):
        files[name] = render(f"project/{name}.j2", context)
    files.update(_render_framework_files(context))
    files[TASKS_FILE] = render_tasks_json([network.model.name for network in networks], context.is_host)
    template_folder = "loading" if loadable else "project"
    files["main.c"] = (
        render_mlperf_main(modules, board) if protocol == "mlperf" else render(f"{template_folder}/main.c.j2", context)
    )
    takes = CODE_BY_PROTOCOL.get(protocol, "")
    hot = next((module.plan.code.memory for module in modules if module.plan and module.plan.code), "")
    cores = max(network.model.cores for network in networks)
    stack = max(network.model.stack_bounds.gcc for network in networks)
    header = render_board_header(
        board,
        loaded_code=takes,
        self_test=context.self_test,
        hot_code_region=hot,
        cores=cores,
        stack_bound=stack,
        learns=context.learns,
    )
    files["board/microc_board.h"] = header + print_buffer_size_macros(board)
    if context.has_linker_script:
        files["board/linker.ld"] = linker_script(board, loaded_code=takes, hot_code_region=hot)
    runtime = file_access.runtime_c_folder()
    reads = any(network.model.storage for network in networks)
    optional_headers = {CORES_HEADER: cores > 1, STORAGE_HEADER: reads, STORE_HEADER: context.learns}
    headers = (*RUNTIME_HEADERS, *(name for name, is_needed in optional_headers.items() if is_needed))
    sources = list_runtime_sources(board, protocol, cores, reads_storage=reads, learns=context.learns)
    for name in (*headers, *sources, *_list_port_headers(runtime)):
        files[f"runtime/{name}"] = (runtime / name).read_bytes()
    files.update(list_external_files(external))
    files["board/board.json"] = to_json(_board_data_for_project(board))
    files["manifest.json"] = to_json(
        {**(make_project_manifest(modules, version) if several else manifest(modules[0], version)), "board": board.name}
    )
    # Last, since the bill of materials has a hash of every other file.
    return add_sbom(files, modules, board, version)


def _stored_constants_file(module: Module, folder: str) -> dict[str, str | bytes]:
    """Return the file of a network's constants in storage, by its path in the project; empty if there are none."""
    content = pack_stored_constants(module)
    return {folder + WEIGHTS_FILE: content} if content else {}


def _board_data_for_project(board: Board) -> dict[str, Any]:
    """Return the data of the project's copy of the board's file.

    If a plugin defines the board's core, the data also describes the core, so that commands on the project do not need the
    plugin.
    """
    core = board.target
    if core.cpu in CORES.permanent_names:
        return dict(board.raw)
    return {**board.raw, PLUGIN_CORE_KEY: {"family": core.isa, "features": sorted(core.features)}}


def _render_framework_files(context: ProjectContext) -> dict[str, str]:
    """Render the files that the build tool of a vendor's framework reads, and a Makefile that calls this tool."""
    if context.framework is None:
        return {}
    root = file_access.templates_folder() / "framework" / context.framework.name
    templates = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.j2"))
    files = {
        name.removesuffix(".j2"): render(f"framework/{context.framework.name}/{name}", context) for name in templates
    }
    return {name: text for name, text in files.items() if text.strip()}


def shared_arena(modules: Sequence[Module]) -> int:
    """Return the number of bytes of the arena that the networks without state share: the size of the largest of their
    arenas.

    Only one network runs at a time. The result is 0 for a project of a single network."""
    sizes = [m.plan.size for m in modules if m.plan is not None and not m.state]
    return max(sizes, default=0) if len(modules) > 1 else 0


def list_runtime_sources(
    board: Board, protocol: str, cores: int = 1, *, reads_storage: bool = False, learns: bool = False
) -> tuple[str, ...]:
    """Return the paths of the runtime's C files that are compiled into a firmware: protocol, drivers, start-up, loader,
    what starts the second core if the networks use two ``cores``, the driver of the storage if a network reads it, and the
    store of learned weights if one learns.

    UsageError if the protocol loads code into RAM and the board cannot run code from RAM."""
    board_sources: tuple[str, ...] = tuple(board.raw["build"]["sources"])
    if cores > 1:
        board_sources += tuple(board.raw["fork"]["sources"])
    if reads_storage:
        board_sources += tuple(board.raw["storage"].get("sources", ()))
    if learns:
        board_sources += (STORE_SOURCE,)
    if protocol not in CODE_BY_PROTOCOL:
        return (*RUNTIME_SOURCES[protocol], *board_sources)
    loaders = [LOADER_SOURCES[name] for name in board_sources if name in LOADER_SOURCES]
    data_elsewhere = any(
        "data_origin" in memory for memory in board.raw["memory"]
    )  # on such boards code in RAM, too, has another address than data
    if not loaders or data_elsewhere or "framework" in board.raw:
        options = "--relocatable" if protocol == SLOTS else "--protocol tuning, or --load"
        raise UsageError(
            f"board {board.name}: its firmware cannot load code over the serial line",
            hint=f"leave out {options}, or choose a Cortex-M or RISC-V board without a vendor's framework",
        )
    drivers = board.raw.get("slots", {}).get("sources", ()) if protocol == SLOTS else ()
    return (*RUNTIME_SOURCES[protocol], *board_sources, *loaders, *drivers)


def _list_port_headers(runtime: Path) -> tuple[str, ...]:
    """Return the paths of all headers of the ports, relative to the runtime's folder."""
    return tuple(f"ports/{path.name}" for path in sorted((runtime / "ports").glob("*.h")))


def _project_context(
    networks: tuple[Network, ...],
    shared_arena_bytes: int,
    board: Board,
    options: Mapping[str, str],
    protocol: str,
    external: ExternalContext | None,
) -> ProjectContext:
    """Build the variables of the templates of a project. ``options``: the options that its networks were compiled with."""
    build = board.raw["build"]
    framework_data = board.raw.get("framework")
    framework = framework_data and Framework(
        Word(framework_data["name"]),
        Word(framework_data["target"]),
        board.raw["link"]["stack_bytes"],
        tuple(map(Setting, framework_data.get("settings", ()))),
        tuple(Name(memory.name) for memory in board.memories[1:]),
    )
    names = [n.model.name for n in networks]
    cores = max(network.model.cores for network in networks)
    learns = any(network.model.learning for network in networks)
    return ProjectContext(
        title=Text(" and ".join(names)),
        project=Name("_".join(names)[:MAX_PROJECT_NAME]),
        version=networks[0].model.version,
        networks=networks,
        shared_arena=shared_arena_bytes,
        shared_aligned=print_alignment_attribute(max(n.model.arena_align for n in networks)),
        board_title=Text(board.title),
        prefix=Word(build["prefix"]),
        is_host=board.target.isa == "host",
        c_flags=tuple(map(Word, build["c_flags"])),
        ld_flags=tuple(map(Word, build["ld_flags"])),
        sources=tuple(
            Word(f"runtime/{name}")
            for name in list_runtime_sources(
                board,
                protocol,
                cores,
                reads_storage=any(network.model.storage for network in networks),
                learns=learns,
            )
        ),
        optimisation=Code(optimisation_options(board.target, options["optimize"])),
        runtime_optimisation=Code(RUNTIME_OPTIMISATION),
        has_linker_script=bool(board.regions)
        and board.target.isa != "avr"
        and not framework_data,  # AVR and frameworks have linker scripts of their own
        framework=framework,
        self_test=any(n.model.self_test for n in networks),
        learns=learns,
        linked=tuple((Word(name), Code(f"{at:#x}")) for name, at in LINK_ADDRESSES.items())
        if protocol == SLOTS
        else (),
        position_independent=Word(POSITION_INDEPENDENT),
        external=external,
    )
