"""A whole project as a mapping from file names to contents: the network, the firmware around it, build files, manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import paths
from microc.codegen.data import definition
from microc.codegen.manifest import manifest, table, to_json
from microc.codegen.memory import Memory
from microc.codegen.mlperf import benchmark_main
from microc.codegen.render import render
from microc.codegen.source import ModelContext, model_context
from microc.codegen.stack import stack_bound
from microc.module import Module, Value
from microc.target import Board, Target

OPTIMISATION = {
    ("host", "speed"): "-O2",
    ("host", "balanced"): "-O2",
    ("host", "size"): "-Os",
    ("arm", "speed"): "-O2 -fno-schedule-insns",
    ("arm", "balanced"): "-O2 -fno-schedule-insns",
    ("arm", "size"): "-Os",
    ("avr", "speed"): "-O2 -fno-expensive-optimizations",
    ("avr", "balanced"): "-Os -fno-expensive-optimizations",
    ("avr", "size"): "-Os -fno-expensive-optimizations",
    ("riscv", "speed"): "-O2",
    ("riscv", "balanced"): "-O2",
    ("riscv", "size"): "-Os",
    ("xtensa", "speed"): "-O2",
    ("xtensa", "balanced"): "-O2",
    ("xtensa", "size"): "-Os",
}
"""Compiler options for the network by instruction set and goal. gcc's first scheduling pass moves all loads of a register tile
to its front, and its last pass over loops moves addresses out of them, where both spill: without the former kernels take up to
a fifth fewer instructions on Armv7-M, without the latter up to 6 % fewer. QEMU 7.2
executes some of what gcc's expensive optimisations make for AVR wrongly (simavr does not), so that they are left out there."""
IN_ORDER = " -fno-tree-reassoc"
"""More for cores that multiply two numbers at once as one: sums take turns as in the C, not one after the other."""
THUMB1 = " -fira-algorithm=priority -fno-tree-ter"
"""More for cores with eight low registers: values are made where the C makes them, and those used most get the registers."""
RUNTIME_OPTIMISATION = "-Os"
"""Compiler options for all that is not the network."""

RESERVED = frozenset({"board", "runtime", "build", "firmware", "main", "m"})
"""Folders and targets of a project, which no network of several may be called after."""
RUNTIME = (
    "SPEC.md",
    "include/microc_frame.h",
    "include/microc_mlperf.h",
    "include/microc_port.h",
    "include/microc_rpc.h",
)
RUNTIME_SOURCES = MappingProxyType(
    {"rpc": ("src/microc_frame.c", "src/microc_rpc.c"), "mlperf": ("src/microc_mlperf.c",)}
)
"""C files of the runtime by protocol."""
SMALL_RAM = 32 * 1024
SMALLEST_RAM = 8 * 1024
FAST_BAUD = 400_000
PAYLOAD, SMALL_PAYLOAD, LARGE_PAYLOAD = 256, 64, 512
"""Largest payload of a frame: the runtime's default, for boards with less RAM than SMALL_RAM, and for lines from FAST_BAUD on,
which would stand still for a quarter of the time with shorter ones, since the host waits for an answer to every frame."""
RING, SMALL_RING = 512, 128
"""Bytes that the console keeps until they are read: the ports' default, and for boards with no more RAM than SMALLEST_RAM."""

_DTYPES = {"bool": "BOOL", "float32": "FLOAT32", "float64": "FLOAT64"}
_KINDS = {"input": "INPUT", "output": "OUTPUT", "state": "STATE", "intermediate": "INTERMEDIATE"}


@dataclass(frozen=True, slots=True)
class Network:
    """One network of a project: ``folder`` holds its files, empty or with a slash at its end."""

    folder: str
    model: ModelContext


@dataclass(frozen=True, slots=True)
class Framework:
    """A vendor's framework that builds a project: its chip, the stack of the task that serves, and lines of its configuration."""

    name: str
    target: str
    stack_bytes: int
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProjectContext:
    """What the Makefile, CMakeLists.txt, README and main.c of a project show: the networks, and how their board is built for.

    ``shared_arena``: bytes of the arena that several networks share, 0 if none do. ``framework``: absent where make builds.
    """

    title: str
    project: str
    version: str
    networks: tuple[Network, ...]
    shared_arena: int
    board_title: str
    prefix: str
    is_host: bool
    c_flags: tuple[str, ...]
    ld_flags: tuple[str, ...]
    sources: tuple[str, ...]
    optimisation: str
    runtime_optimisation: str
    has_linker_script: bool
    framework: Framework | None


@dataclass(frozen=True, slots=True)
class RpcTensor:
    """A row of the board's tensor table."""

    place: str
    size: int
    kernel: str
    dtype: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RpcContext:
    """What ``rpc_model.c.j2`` shows: the descriptor of the model for the RPC runtime."""

    name: str
    upper: str
    tensors: tuple[RpcTensor, ...]
    buffers: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    fingerprint: tuple[str, ...]
    has_state: bool
    sizes: tuple[int, ...]
    shares_arena: bool


@dataclass(frozen=True, slots=True)
class SharedContext:
    """What ``shared.c.j2`` shows: entry points of a desktop library."""

    name: str
    upper: str
    prototypes: tuple[str, ...]
    manifest_lines: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: tuple[str, ...]


def network_files(module: Module, version: str) -> dict[str, str]:
    """The network alone: ``model.c``, ``model.h``, ``model_data.c``, ``model_data.h``."""
    return render_network(model_context(module, version, stack_bound(module)))


def render_network(context: ModelContext) -> dict[str, str]:
    """The network's own files, by the names that the context's stem gives them."""
    ends = (".c", ".h", "_data.c", "_data.h")
    return {context.stem + end: render(f"project/model{end}.j2", context) for end in ends}


def shared_files(module: Module, version: str) -> dict[str, str]:
    """The network with entry points for a desktop library."""
    data = manifest(module, version)
    return {**network_files(module, version), "shared.c": shared_source(data), "manifest.json": to_json(data)}


def shared_source(data: Mapping[str, Any]) -> str:
    """``shared.c``: a manifest's network as a desktop library."""
    name = data["model"]
    sizes = tuple(size["name"] for size in data.get("sizes", ()))
    last = ", const int32_t *sizes" if sizes else ""
    context = SharedContext(
        name=name,
        upper=name.upper(),
        prototypes=(
            "extern const int8_t microc_manifest[];",
            f"int microc_run_kernel(void *arena, const void *const *inputs, void *const *outputs, uint32_t kernel{last});",
            f"int microc_run(void *arena, const void *const *inputs, void *const *outputs{last});",
            "void microc_reset(void *arena);",
        ),
        manifest_lines=tuple(definition(_text_value("microc_manifest", json.dumps(data, ensure_ascii=True)))),
        inputs=tuple(data["inputs"]),
        outputs=tuple(data["outputs"]),
        sizes=sizes,
    )
    return render("project/shared.c.j2", context)


def _text_value(name: str, text: str) -> Value:
    """ASCII text as an array of bytes with a final zero: C99 promises string literals of 4095 characters only."""
    data = np.frombuffer(text.encode("ascii") + b"\0", dtype=np.int8)
    return Value(name, data.shape, "int8", "const", data)


def project_files(modules: Sequence[Module], board: Board, version: str) -> dict[str, str | bytes]:
    """Everything that ``microc compile -o DIR`` writes. Several networks lie in folders of their names, one in the project's.

    All modules are compiled for ``board`` under the same goal, and their names differ.
    """
    several = len(modules) > 1
    networks = tuple(
        Network(f"{module.name}/" if several else "", model_context(module, version, stack_bound(module)))
        for module in modules
    )
    context = _project_context(networks, shared_arena(modules), board, modules[0].options)
    files: dict[str, str | bytes] = {}
    for network, module in zip(networks, modules, strict=True):
        own = {
            **render_network(network.model),
            "rpc_model.c": render("project/rpc_model.c.j2", rpc_context(module, several)),
        }
        if several:
            own["manifest.json"] = to_json({**manifest(module, version), "board": board.name})
        files.update({network.folder + name: text for name, text in own.items()})
    for name in ("Makefile", "CMakeLists.txt", "README.md"):
        files[name] = render(f"project/{name}.j2", context)
    files.update(_framework_files(context))
    protocol = modules[0].options["protocol"]
    files["main.c"] = benchmark_main(modules, board) if protocol == "mlperf" else render("project/main.c.j2", context)
    files["board/microc_board.h"] = render("board/microc_board.h.j2", board) + _buffers(board)
    if context.has_linker_script:
        files["board/linker.ld"] = render("board/linker.ld.j2", board)
    runtime = paths.runtime_c()
    for name in (*RUNTIME, *RUNTIME_SOURCES[protocol], *board.raw["build"]["sources"], *_headers(runtime)):
        files[f"runtime/{name}"] = (runtime / name).read_bytes()
    files["board/board.json"] = to_json(dict(board.raw))
    files["manifest.json"] = to_json(
        {**(table(modules, version) if several else manifest(modules[0], version)), "board": board.name}
    )
    return files


def _framework_files(context: ProjectContext) -> dict[str, str]:
    """What the framework's tool reads; a Makefile among it calls that."""
    if context.framework is None:
        return {}
    root = paths.templates() / "framework" / context.framework.name
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.j2"))
    return {name.removesuffix(".j2"): render(f"framework/{context.framework.name}/{name}", context) for name in found}


def shared_arena(modules: Sequence[Module]) -> int:
    """Bytes of the arena that several networks share, one after the other: those without state. 0 for one network."""
    sizes = [m.plan.size for m in modules if m.plan is not None and not m.state]
    return max(sizes, default=0) if len(modules) > 1 else 0


def _headers(runtime: Path) -> tuple[str, ...]:
    return tuple(f"ports/{path.name}" for path in sorted((runtime / "ports").glob("*.h")))


def max_payload(board: Board) -> int:
    """Largest payload of a frame, in bytes."""
    if 0 < board.ram_bytes < SMALL_RAM:
        return SMALL_PAYLOAD
    return LARGE_PAYLOAD if board.raw["console"].get("baud", FAST_BAUD) >= FAST_BAUD else PAYLOAD


def ring_size(board: Board) -> int:
    """Size of the console's ring of received bytes."""
    return SMALL_RING if 0 < board.ram_bytes <= SMALLEST_RAM else RING


def _buffers(board: Board) -> str:
    """Definitions for a board with little RAM, or with much."""
    lines = []
    if max_payload(board) != PAYLOAD:
        lines.append(f"#define MICROC_RPC_MAX_PAYLOAD {max_payload(board)}")
    if ring_size(board) != RING:
        lines.append(f"#define MICROC_PORT_RX_SIZE {SMALL_RING}u")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _project_context(
    networks: tuple[Network, ...], shared: int, board: Board, options: Mapping[str, str]
) -> ProjectContext:
    build = board.raw["build"]
    own = board.raw.get("framework")
    framework = own and Framework(
        own["name"], own["target"], board.raw["link"]["stack_bytes"], tuple(own.get("settings", ()))
    )
    names = [n.model.name for n in networks]
    return ProjectContext(
        title=" and ".join(names),
        project="_".join(names),
        version=networks[0].model.version,
        networks=networks,
        shared_arena=shared,
        board_title=board.title,
        prefix=build["prefix"],
        is_host=board.target.isa == "host",
        c_flags=tuple(build["c_flags"]),
        ld_flags=tuple(build["ld_flags"]),
        sources=tuple(f"runtime/{name}" for name in (*RUNTIME_SOURCES[options["protocol"]], *build["sources"])),
        optimisation=optimisation(board.target, options["optimize"]),
        runtime_optimisation=RUNTIME_OPTIMISATION,
        has_linker_script=bool(board.regions) and board.target.isa != "avr" and not own,  # which bring their own
        framework=framework,
    )


def optimisation(target: Target, optimize: str) -> str:
    """Compiler options for the network."""
    options = OPTIMISATION[target.isa, optimize]
    options += IN_ORDER if target.multiplies_alone else ""
    return options + (THUMB1 if target.has("thumb1") else "")


def rpc_context(module: Module, several: bool) -> RpcContext:
    """The descriptor's rows, in the manifest's order; one of ``several`` networks shares its arena, unless it has state."""
    assert module.plan is not None
    own = [n for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets]
    buffers = tuple(f"static uint64_t buffer_{n}[{max(1, -(-module.values[n].nbytes // 8))}];" for n in own)
    return RpcContext(
        name=module.name,
        upper=module.name.upper(),
        tensors=tuple(_rpc_tensor(module, name) for name in Memory(module).names),
        buffers=buffers,
        inputs=tuple((n, _place(module, n)) for n in module.inputs),
        outputs=tuple((n, _place(module, n)) for n in module.outputs),
        fingerprint=tuple(f"0x{module.fingerprint[k : k + 2]}" for k in range(0, 32, 2)),
        has_state=bool(module.state),
        sizes=tuple(size.maximum for size in module.sizes),
        shares_arena=several and not module.state,
    )


def _place(module: Module, name: str) -> str:
    """The address of a value as a constant expression."""
    base, offset = module.base_of(name)
    assert module.plan is not None
    if base in module.plan.offsets:
        return f"(void *)((uint8_t *)arena + {module.plan.offsets[base] + offset})"
    return f"(void *)((uint8_t *)buffer_{base} + {offset})"


def _rpc_tensor(module: Module, name: str) -> RpcTensor:
    value = module.values[name]
    last = [k for k, call in enumerate(module.calls) if name in call.writes]
    return RpcTensor(
        place=_place(module, name),
        size=value.nbytes,
        kernel=str(last[-1]) if last else "MICROC_NO_KERNEL",
        dtype=f"MICROC_{_DTYPES.get(value.dtype, value.dtype.upper())}",
        kind=f"MICROC_{_KINDS[value.storage]}",
        name=name,
    )
