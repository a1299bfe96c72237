"""A project as a mapping from file names to contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc.base import file_access
from microc.base.immutable import frozen
from microc.codegen.c.interface import aligned_to
from microc.codegen.c.source import ModelContext, model_context, own_files, render_network
from microc.codegen.project.accelerators import OWN, ExternalContext, external_context, external_files, external_of
from microc.codegen.project.board_files import KERNELS, NETWORKS, TASKS, board_header, linker_script, tasks
from microc.codegen.project.manifest import manifest, table, to_json
from microc.codegen.project.protocols import (
    LINKED,
    POSITION_INDEPENDENT,
    benchmark_main,
    buffer_sizes,
    entry_files,
    is_relocatable,
    rpc_context,
)
from microc.codegen.project.sbom import with_sbom
from microc.codegen.render import Code, Name, Setting, Text, Word, render
from microc.errors import UsageError
from microc.isa import CORES, FAMILIES
from microc.module import Module
from microc.target import Board, Target

# ---- What compilers are told about the network's files and about all others.

RUNTIME_OPTIMISATION = "-Os"
"""Compiler options for all that is not the network."""


def optimisation(target: Target, optimize: str) -> str:
    """Compiler options for the network, by goal."""
    return " ".join(filter(None, (FAMILIES[target.isa].options[optimize], target.core.options)))


def webassembly(target: Target) -> str:
    """clang's options for a module of WebAssembly that is called, not a program that ends; without vectors where the C is for
    cores of other kinds. Kernels keep small workspaces on the stack, which has 64 KiB unless more are asked for."""
    machine = target.core.machine if target.isa == "wasm" else "--target=wasm32-wasi"
    return f"{machine} -std=c99 -O2 -mexec-model=reactor -Wl,-z,stack-size=262144"


# ---- A whole project as a mapping from file names to contents: the network, the firmware around it, build files,
# manifest.

RESERVED = frozenset({"board", "runtime", "build", "external", "firmware", "main", "m", "own"})
"""Folders and targets of a project, which no network of several may be called after."""
SLOTS = "slots"
FOREIGN_CORE = "core"
"""The key of the board's copy in a project that describes a core of a plugin."""
RUNTIME = (
    "SPEC.md",
    "include/microc_blob.h",
    "include/microc_frame.h",
    "include/microc_load.h",
    "include/microc_mlperf.h",
    "include/microc_port.h",
    "include/microc_rpc.h",
    "include/microc_slot.h",
)
RUNTIME_SOURCES = MappingProxyType(
    {
        "rpc": ("src/microc_frame.c", "src/microc_rpc.c"),
        "mlperf": ("src/microc_mlperf.c",),
        "tuning": ("src/microc_frame.c", "src/microc_rpc.c", "src/microc_load.c"),
        SLOTS: ("src/microc_frame.c", "src/microc_rpc.c", "src/microc_blob.c", "src/microc_slot.c", "ports/slots.c"),
    }
)
"""C files of the runtime by protocol; firmware with slots speaks microc's with more operations."""
CODE_BY_PROTOCOL = MappingProxyType({"tuning": KERNELS, SLOTS: NETWORKS})
"""What firmware takes as code, by protocol."""
LOADING = MappingProxyType({"ports/cortex_m.c": "ports/cortex_m_load.c", "ports/riscv.c": "ports/riscv_load.c"})
"""What a port of a core needs beside its own file to run code from RAM."""
_LONGEST = 100
"""Letters of a project's name, which is of all its networks' names."""


@frozen
class Network:
    """One network of a project: ``folder`` holds its files, empty or with a slash at its end."""

    folder: Word
    model: ModelContext


@frozen
class Framework:
    """A vendor's framework that builds a project: its chip, the stack of the task that serves, and lines of its configuration."""

    name: Word
    target: Word
    stack_bytes: int
    settings: tuple[Setting, ...]


@frozen
class ProjectContext:
    """What the Makefile, CMakeLists.txt, README and main.c of a project show: the networks, and how their board is built for.

    ``shared_arena``: bytes of the arena that several networks share, 0 if none do; ``shared_aligned``: what aligns it, if its
    type does not. ``framework``: absent where make builds.
    ``linked``: programs that a network becomes which is loaded, with their addresses; none where it is in the firmware.
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
    linked: tuple[tuple[Word, Code], ...]
    position_independent: Word
    external: ExternalContext | None


def project_files(modules: Sequence[Module], board: Board, version: str) -> dict[str, str | bytes]:
    """Everything that ``microc compile -o DIR`` writes. Several networks lie in folders of their names, one in the project's.

    All modules are compiled for ``board`` under the same goal, and their names differ.
    """
    several = len(modules) > 1
    networks = tuple(
        Network(Word(f"{module.name}/" if several else ""), model_context(module, version)) for module in modules
    )
    loadable = is_relocatable(modules[0].options)
    protocol = SLOTS if loadable else modules[0].options["protocol"]
    foreign = external_of(modules)
    context = _project_context(
        networks, shared_arena(modules), board, modules[0].options, protocol, external_context(foreign)
    )
    files: dict[str, str | bytes] = {}
    for network, module in zip(networks, modules, strict=True):
        own = render_network(network.model)
        own |= entry_files(modules) if loadable else _descriptor(module, several)
        if several:
            own["manifest.json"] = to_json({**manifest(module, version), "board": board.name})
        if module.own is not None:
            files.update(
                {f"{network.folder}{OWN}/{name}": text for name, text in own_files(module.own, version).items()}
            )
        files.update({network.folder + name: text for name, text in own.items()})
    for name in ("Makefile", *(() if loadable else ("CMakeLists.txt",)), "README.md"):
        files[name] = render(f"project/{name}.j2", context)
    files.update(_framework_files(context))
    files[TASKS] = tasks([network.model.name for network in networks], context.is_host)
    room = "loading" if loadable else "project"
    files["main.c"] = benchmark_main(modules, board) if protocol == "mlperf" else render(f"{room}/main.c.j2", context)
    takes = CODE_BY_PROTOCOL.get(protocol, "")
    hot = next((module.plan.code.memory for module in modules if module.plan and module.plan.code), "")
    header = board_header(board, takes=takes, self_test=context.self_test, hot_code=hot)
    files["board/microc_board.h"] = header + buffer_sizes(board)
    if context.has_linker_script:
        files["board/linker.ld"] = linker_script(board, takes=takes, hot_code=hot)
    runtime = file_access.runtime_c()
    for name in (*RUNTIME, *sources_around(board, protocol), *_headers(runtime)):
        files[f"runtime/{name}"] = (runtime / name).read_bytes()
    files.update(external_files(foreign))
    files["board/board.json"] = to_json(_copied(board))
    files["manifest.json"] = to_json(
        {**(table(modules, version) if several else manifest(modules[0], version)), "board": board.name}
    )
    return with_sbom(files, modules, board, version)


def _copied(board: Board) -> dict[str, Any]:
    """The data of a board for the project's copy. A core that a plugin brings is described there: commands that build, run and
    measure the project need no plugin."""
    core = board.target
    if core.cpu in CORES.sealed:
        return dict(board.raw)
    return {**board.raw, FOREIGN_CORE: {"family": core.isa, "features": sorted(core.features)}}


def _descriptor(module: Module, several: bool) -> dict[str, str]:
    return {"rpc_model.c": render("project/rpc_model.c.j2", rpc_context(module, several))}


def _framework_files(context: ProjectContext) -> dict[str, str]:
    """What the framework's tool reads; a Makefile among it calls that."""
    if context.framework is None:
        return {}
    root = file_access.templates() / "framework" / context.framework.name
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.j2"))
    return {name.removesuffix(".j2"): render(f"framework/{context.framework.name}/{name}", context) for name in found}


def shared_arena(modules: Sequence[Module]) -> int:
    """Bytes of the arena that several networks share, one after the other: those without state. 0 for one network."""
    sizes = [m.plan.size for m in modules if m.plan is not None and not m.state]
    return max(sizes, default=0) if len(modules) > 1 else 0


def sources_around(board: Board, protocol: str) -> tuple[str, ...]:
    """C files around the networks; UsageError where the board has none that run code from RAM, and is to."""
    own: tuple[str, ...] = tuple(board.raw["build"]["sources"])
    if protocol not in CODE_BY_PROTOCOL:
        return (*RUNTIME_SOURCES[protocol], *own)
    more = [LOADING[name] for name in own if name in LOADING]
    apart = any("data_origin" in memory for memory in board.raw["memory"])  # RAM runs at addresses of its own, too
    if not more or apart or "framework" in board.raw:
        asked = "--relocatable" if protocol == SLOTS else "--protocol tuning, or --load"
        raise UsageError(
            f"board {board.name} takes no code over its line",
            hint=f"a Cortex-M or RISC-V board without a vendor's framework does: leave out {asked}",
        )
    drivers = board.raw.get("slots", {}).get("sources", ()) if protocol == SLOTS else ()
    return (*RUNTIME_SOURCES[protocol], *own, *more, *drivers)


def _headers(runtime: Path) -> tuple[str, ...]:
    return tuple(f"ports/{path.name}" for path in sorted((runtime / "ports").glob("*.h")))


def _project_context(
    networks: tuple[Network, ...],
    shared: int,
    board: Board,
    options: Mapping[str, str],
    protocol: str,
    external: ExternalContext | None,
) -> ProjectContext:
    build = board.raw["build"]
    own = board.raw.get("framework")
    framework = own and Framework(
        Word(own["name"]),
        Word(own["target"]),
        board.raw["link"]["stack_bytes"],
        tuple(map(Setting, own.get("settings", ()))),
    )
    names = [n.model.name for n in networks]
    return ProjectContext(
        title=Text(" and ".join(names)),
        project=Name("_".join(names)[:_LONGEST]),
        version=networks[0].model.version,
        networks=networks,
        shared_arena=shared,
        shared_aligned=aligned_to(max(n.model.arena_align for n in networks)),
        board_title=Text(board.title),
        prefix=Word(build["prefix"]),
        is_host=board.target.isa == "host",
        c_flags=tuple(map(Word, build["c_flags"])),
        ld_flags=tuple(map(Word, build["ld_flags"])),
        sources=tuple(Word(f"runtime/{name}") for name in sources_around(board, protocol)),
        optimisation=Code(optimisation(board.target, options["optimize"])),
        runtime_optimisation=Code(RUNTIME_OPTIMISATION),
        has_linker_script=bool(board.regions) and board.target.isa != "avr" and not own,  # which bring their own
        framework=framework,
        self_test=any(n.model.self_test for n in networks),
        linked=tuple((Word(name), Code(f"{at:#x}")) for name, at in LINKED.items()) if protocol == SLOTS else (),
        position_independent=Word(POSITION_INDEPENDENT),
        external=external,
    )
