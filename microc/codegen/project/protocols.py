"""The network as a board's protocol sees it: RPC, MLPerf Tiny, loaded networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.interface import ArenaContext, arena_context, placed_at
from microc.codegen.c.source import network_files
from microc.codegen.project.manifest import Memory
from microc.codegen.render import Code, Name, Text, Word, render
from microc.errors import UsageError
from microc.module import Module
from microc.target import Board

# ---- The network as the RPC runtime sees it: the descriptor of its tensors, and the sizes of a board's buffers.

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


@frozen
class RpcTensor:
    """A row of the board's tensor table."""

    place: Code
    size: int
    kernel: Code
    dtype: Name
    kind: Name
    name: Name


@frozen
class RpcContext:
    """What ``rpc_model.c.j2`` shows: the descriptor of the model for the RPC runtime."""

    name: Name
    upper: Name
    tensors: tuple[RpcTensor, ...]
    buffers: tuple[Code, ...]
    inputs: tuple[tuple[Name, Code], ...]
    outputs: tuple[tuple[Name, Code], ...]
    fingerprint: tuple[Code, ...]
    has_reset: bool
    sizes: tuple[int, ...]
    shares_arena: bool
    arenas: ArenaContext
    self_test: bool
    self_test_places: tuple[Code, ...]
    """Where inputs and outputs lie that have no place in the arena."""


def rpc_context(module: Module, several: bool) -> RpcContext:
    """The descriptor's rows, in the manifest's order; one of ``several`` networks shares its arena, unless it has state."""
    assert module.plan is not None
    own = [n for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets]
    buffers = tuple(Code(f"static uint64_t buffer_{n}[{max(1, -(-module.values[n].nbytes // 8))}];") for n in own)
    return RpcContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        tensors=tuple(_rpc_tensor(module, name) for name in Memory(module).names),
        buffers=buffers,
        inputs=tuple((Name(n), _place(module, n)) for n in module.inputs),
        outputs=tuple((Name(n), _place(module, n)) for n in module.outputs),
        fingerprint=tuple(Code(f"0x{module.fingerprint[k : k + 2]}") for k in range(0, 32, 2)),
        has_reset=bool(module.state) or any(step < 0 for step in module.plan.copies.values()),
        sizes=tuple(size.maximum for size in module.sizes),
        shares_arena=several and not module.state,
        arenas=arena_context(module),
        self_test=module.self_test is not None,
        self_test_places=()
        if module.plan.io_in_arena
        else tuple(_place(module, n) for n in (*module.inputs, *module.outputs)),
    )


def _place(module: Module, name: str) -> Code:
    """The address of a value as a constant expression."""
    base, offset = module.base_of(name)
    assert module.plan is not None
    if base in module.plan.offsets:
        arena, at = placed_at(module, module.plan.offsets[base] + offset)
        return Code(f"(void *)((uint8_t *){arena} + {at})")
    return Code(f"(void *)((uint8_t *)buffer_{base} + {offset})")


def _rpc_tensor(module: Module, name: str) -> RpcTensor:
    value = module.values[name]
    last = [k for k, call in enumerate(module.calls) if name in call.writes]
    return RpcTensor(
        place=_place(module, name),
        size=value.nbytes,
        kernel=Code(last[-1] if last else "MICROC_NO_KERNEL"),
        dtype=Name(f"MICROC_{_DTYPES.get(value.dtype, value.dtype.upper())}"),
        kind=Name(f"MICROC_{_KINDS[value.storage]}"),
        name=Name(name),
    )


def max_payload(board: Board) -> int:
    """Largest payload of a frame, in bytes."""
    if 0 < board.ram_bytes < SMALL_RAM:
        return SMALL_PAYLOAD
    return LARGE_PAYLOAD if board.raw["console"].get("baud", FAST_BAUD) >= FAST_BAUD else PAYLOAD


def ring_size(board: Board) -> int:
    """Size of the console's ring of received bytes."""
    return SMALL_RING if 0 < board.ram_bytes <= SMALLEST_RAM else RING


def buffer_sizes(board: Board) -> str:
    """Definitions for a board with little RAM, or with much."""
    lines = []
    if max_payload(board) != PAYLOAD:
        lines.append(f"#define MICROC_RPC_MAX_PAYLOAD {max_payload(board)}")
    if ring_size(board) != RING:
        lines.append(f"#define MICROC_PORT_RX_SIZE {SMALL_RING}u")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


# ---- Firmware that speaks the text protocol of MLPerf Tiny's runner instead of RPC.

VENDOR = "microc"
OUTPUTS = ("int8", "uint8", "int16", "float32")


@frozen
class BenchmarkContext:
    """What ``main_mlperf.c.j2`` shows. ``error``: 1 where the result is how far the output is from the input."""

    name: Name
    board_title: Text
    vendor: Word
    scale: Code
    zero_point: int
    error: int


def benchmark_main(modules: Sequence[Module], board: Board) -> str:
    """``main.c``. An autoencoder of floats (output like input) answers with its mean squared error, all others with the
    first output as real numbers. UsageError for a network that the runner cannot feed or read."""
    if len(modules) > 1:
        raise UsageError("MLPerf Tiny's runner knows one network", hint="compile one, or use --protocol rpc")
    (module,) = modules
    if len(module.inputs) != 1:
        raise UsageError(
            f"MLPerf Tiny's runner feeds one input, {module.name!r} has {len(module.inputs)}",
            hint="cut the network (--inputs), or use --protocol rpc",
        )
    if module.plan is not None and module.plan.io_in_arena:
        raise UsageError(
            "MLPerf Tiny's runner runs a network again and again on one input", hint="--io caller keeps it"
        )
    source, result = module.values[module.inputs[0]], module.values[module.outputs[0]]
    if result.dtype not in OUTPUTS:
        raise UsageError(
            f"results of {result.dtype} are no real numbers",
            where=result.name,
            hint="choose another: --output-dtype float32",
        )
    context = BenchmarkContext(
        name=Name(module.name),
        board_title=Text(board.title),
        vendor=Word(VENDOR),
        scale=Code(ExprPrinter().literal(1.0 if result.scale is None else result.scale, "float32")),
        zero_point=result.zero_point or 0,
        error=int(source.dtype == result.dtype == "float32" and source.shape == result.shape),
    )
    return render("project/main_mlperf.c.j2", context)


# ---- A network as code that a board loads while it runs: linked for the address at which it will lie, its constants
# elsewhere.

LOADING_SCRIPT, SOURCES = "image.ld", ("model.c", "load.c")
"""The linker script, and what is compiled."""


@frozen
class ImageContext:
    """What ``load.c.j2`` and ``image.ld.j2`` show: the network, the addresses of its constants, and its own."""

    name: Name
    upper: Name
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    constants: tuple[tuple[Name, Code], ...]
    start: Code


def image_files(module: Module, version: str, constants: Mapping[str, int], start: int) -> dict[str, str]:
    """The C and the linker script of a planned module that begins at ``start``; ``constants``: addresses by their names."""
    values = {n: replace(v, data=None) if v.storage == "const" else v for n, v in module.values.items()}
    files = network_files(replace(module, values=values), version)  # constants without data are defined elsewhere
    context = ImageContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        inputs=tuple(map(Name, module.inputs)),
        outputs=tuple(map(Name, module.outputs)),
        constants=tuple((Name(f"{module.name}_{name}"), Code(f"{at:#x}")) for name, at in sorted(constants.items())),
        start=Code(f"{start:#x}"),
    )
    own = {name: render(f"loading/{name}.j2", context) for name in ("load.c", LOADING_SCRIPT)}
    return {name: text for name, text in files.items() if name != "model_data.c"} | own


# ---- A network that is loaded: what a project has beside it where the firmware is fixed, and the network comes over
# the line.

RELOCATABLE_SCRIPT, ENTRY, HEADER = "network.ld", "network.c", "network.h"
"""The linker script, how a board enters the network, and what the compiler reads before the network's files."""
LINKED = {"network.elf": 0x0010_0000, "network_moved.elf": 0x0334_5640}
"""The programs that are linked of it, each for an address of its own: they must have the same bytes. Boards place networks at
multiples of 64; the second address is one of no larger power of two, so that code that asks for more differs."""
BLOB_SUFFIX = ".bin"
"""Of the file that holds a network alone, instead of a project."""
POSITION_INDEPENDENT = "-fpie"


@frozen
class NetworkContext:
    """What the templates of ``loading/network`` show: the network, and where in its memory inputs and outputs lie."""

    name: Name
    upper: Name
    inputs: tuple[tuple[Name, int], ...]
    outputs: tuple[tuple[Name, int], ...]
    has_state: bool


def is_relocatable(options: Mapping[str, str]) -> bool:
    """Whether a network was compiled to be loaded, by its options."""
    return options.get("relocatable") == str(True)


def entry_files(modules: Sequence[Module]) -> dict[str, str]:
    """What makes the one network of a project a program that may lie anywhere; UsageError for several."""
    if len(modules) > 1:
        raise UsageError(
            "networks are loaded one by one", hint="compile each into a project of its own; they share one firmware"
        )
    module = modules[0]
    context = NetworkContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        inputs=tuple((Name(name), _offset(module, name)) for name in module.inputs),
        outputs=tuple((Name(name), _offset(module, name)) for name in module.outputs),
        has_state=bool(module.state),
    )
    return {name: render(f"loading/{name}.j2", context) for name in (ENTRY, HEADER, RELOCATABLE_SCRIPT)}


def _offset(module: Module, name: str) -> int:
    base, offset = module.base_of(name)
    assert module.plan is not None
    return offset + module.plan.offsets[base]
