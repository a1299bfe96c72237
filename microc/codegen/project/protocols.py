"""The network's interface for each protocol of a firmware: RPC, MLPerf Tiny, loaded networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.interface import ArenaContext, arena_context, pointer_inside_run
from microc.codegen.c.source import network_files
from microc.codegen.project.manifest import MemoryMap
from microc.codegen.render import Code, Name, Text, Word, render
from microc.errors import UsageError
from microc.module import Module
from microc.target import Board

# ---- RPC: the descriptor of the network's tensors, and the sizes of a board's buffers.

SMALL_RAM = 32 * 1024
SMALLEST_RAM = 8 * 1024
FAST_BAUD = 400_000
PAYLOAD, SMALL_PAYLOAD, LARGE_PAYLOAD = 256, 64, 512
"""Maximum payload of a frame in bytes: the runtime's default, for boards with less RAM than SMALL_RAM, and for lines from
FAST_BAUD on. The host waits for an answer to every frame, so that shorter frames would leave such a line idle for a quarter
of the time."""
RING, SMALL_RING = 512, 128
"""Bytes of the console's receive buffer: the ports' default, and for boards with at most SMALLEST_RAM."""

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
    """Variables of ``rpc_model.c.j2``: the model's descriptor for the RPC runtime."""

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
    """Addresses of inputs and outputs that are not in the arena."""


def rpc_context(module: Module, is_one_of_several: bool) -> RpcContext:
    """Return the variables of the network's RPC descriptor, with its tensors in the manifest's order.

    ``is_one_of_several``: the project has several networks; one without state then shares its arena with others."""
    assert module.plan is not None
    caller_owned = [n for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets]
    buffers = tuple(
        Code(f"static uint64_t buffer_{n}[{max(1, -(-module.values[n].nbytes // 8))}];") for n in caller_owned
    )
    return RpcContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        tensors=tuple(_rpc_tensor(module, name) for name in MemoryMap(module).names),
        buffers=buffers,
        inputs=tuple((Name(n), _address_expression(module, n)) for n in module.inputs),
        outputs=tuple((Name(n), _address_expression(module, n)) for n in module.outputs),
        fingerprint=tuple(Code(f"0x{module.fingerprint[k : k + 2]}") for k in range(0, 32, 2)),
        has_reset=bool(module.state) or any(step < 0 for step in module.plan.copies.values()),
        sizes=tuple(size.maximum for size in module.sizes),
        shares_arena=is_one_of_several and not module.state,
        arenas=arena_context(module),
        self_test=module.self_test is not None,
        self_test_places=()
        if module.plan.io_in_arena
        else tuple(_address_expression(module, n) for n in (*module.inputs, *module.outputs)),
    )


def _address_expression(module: Module, name: str) -> Code:
    """Return the address of a tensor as a constant expression of C: in the arena, or in a buffer of its own."""
    base, offset = module.base_of(name)
    assert module.plan is not None
    if base in module.plan.offsets:
        arena, at = pointer_inside_run(module, module.plan.offsets[base] + offset)
        return Code(f"(void *)((uint8_t *){arena} + {at})")
    return Code(f"(void *)((uint8_t *)buffer_{base} + {offset})")


def _rpc_tensor(module: Module, name: str) -> RpcTensor:
    """Return a tensor's row in the RPC descriptor. Its kernel is the last step that writes it."""
    value = module.values[name]
    last = [k for k, call in enumerate(module.calls) if name in call.writes]
    return RpcTensor(
        place=_address_expression(module, name),
        size=value.nbytes,
        kernel=Code(last[-1] if last else "MICROC_NO_KERNEL"),
        dtype=Name(f"MICROC_{_DTYPES.get(value.dtype, value.dtype.upper())}"),
        kind=Name(f"MICROC_{_KINDS[value.storage]}"),
        name=Name(name),
    )


def max_payload(board: Board) -> int:
    """Return the maximum payload of an RPC frame on a board, in bytes."""
    if 0 < board.ram_bytes < SMALL_RAM:
        return SMALL_PAYLOAD
    return LARGE_PAYLOAD if board.raw["console"].get("baud", FAST_BAUD) >= FAST_BAUD else PAYLOAD


def receive_buffer_size(board: Board) -> int:
    """Return the size of the console's receive buffer, in bytes."""
    return SMALL_RING if 0 < board.ram_bytes <= SMALLEST_RAM else RING


def buffer_size_macros(board: Board) -> str:
    """Return the macros of C that set buffer sizes for a board where they differ from the runtime's defaults; empty if
    none does."""
    lines = []
    if max_payload(board) != PAYLOAD:
        lines.append(f"#define MICROC_RPC_MAX_PAYLOAD {max_payload(board)}")
    if receive_buffer_size(board) != RING:
        lines.append(f"#define MICROC_PORT_RX_SIZE {SMALL_RING}u")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


# ---- MLPerf Tiny: firmware with the text protocol of the EEMBC runner instead of RPC.

VENDOR = "microc"
OUTPUTS = ("int8", "uint8", "int16", "float32")


@frozen
class BenchmarkContext:
    """Variables of ``main_mlperf.c.j2``. ``error``: 1 if the result is the output's distance from the input."""

    name: Name
    board_title: Text
    vendor: Word
    scale: Code
    zero_point: int
    error: int


def benchmark_main(modules: Sequence[Module], board: Board) -> str:
    """Return ``main.c`` of a firmware with MLPerf Tiny's protocol.

    A float autoencoder (output shaped like input) answers its mean squared error, other networks their first output as
    reals. UsageError for a network whose input the runner cannot feed or whose output it cannot read."""
    if len(modules) > 1:
        raise UsageError(
            f"protocol mlperf: got {len(modules)} networks, expected one",
            hint="compile one network, or use --protocol rpc",
        )
    (module,) = modules
    if len(module.inputs) != 1:
        raise UsageError(
            f"protocol mlperf: network {module.name!r} has {len(module.inputs)} inputs, expected one",
            hint="cut the network (--inputs), or use --protocol rpc",
        )
    if module.plan is not None and module.plan.io_in_arena:
        raise UsageError(
            "protocol mlperf: the input must survive a run, since the runner sends it once; got --io arena, expected caller",
            hint="use --io caller",
        )
    source, result = module.values[module.inputs[0]], module.values[module.outputs[0]]
    if result.dtype not in OUTPUTS:
        raise UsageError(
            f"protocol mlperf: got an output of {result.dtype}, expected one of {', '.join(OUTPUTS)}",
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


# ---- Networks linked for a known address, with their constants elsewhere.

LOADING_SCRIPT, IMAGE_SOURCES = "image.ld", ("model.c", "load.c")
"""The linker script, and the files to compile."""


@frozen
class ImageContext:
    """Variables of ``load.c.j2`` and ``image.ld.j2``: the network, the addresses of its constants, and its own."""

    name: Name
    upper: Name
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    constants: tuple[tuple[Name, Code], ...]
    start: Code


def image_files(
    module: Module, version: str, constant_addresses: Mapping[str, int], start_address: int
) -> dict[str, str]:
    """Return the C files and linker script of a planned module that is linked at ``start_address``.

    ``constant_addresses``: the address of each constant by name."""
    values = {n: replace(v, data=None) if v.storage == "const" else v for n, v in module.values.items()}
    files = network_files(replace(module, values=values), version)  # constants without data are defined elsewhere
    context = ImageContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        inputs=tuple(map(Name, module.inputs)),
        outputs=tuple(map(Name, module.outputs)),
        constants=tuple(
            (Name(f"{module.name}_{name}"), Code(f"{at:#x}")) for name, at in sorted(constant_addresses.items())
        ),
        start=Code(f"{start_address:#x}"),
    )
    files_around = {name: render(f"loading/{name}.j2", context) for name in ("load.c", LOADING_SCRIPT)}
    return {name: text for name, text in files.items() if name != "model_data.c"} | files_around


# ---- Relocatable networks: the firmware is fixed, the network is sent over the line.

RELOCATABLE_SCRIPT, ENTRY, HEADER = "network.ld", "network.c", "network.h"
"""The linker script, the network's entry for a board, and the header in front of the network's files."""
LINK_ADDRESSES = {"network.elf": 0x0010_0000, "network_moved.elf": 0x0334_5640}
"""Programs linked from one network, each for another address; they must have the same bytes. Boards load networks at
multiples of 64. The second address is aligned to 64 only, so that code that relies on a larger alignment differs."""
BLOB_SUFFIX = ".bin"
"""Suffix of a file that holds a network alone, instead of a project."""
POSITION_INDEPENDENT = "-fpie"


@frozen
class NetworkContext:
    """Variables of the templates in ``loading/network``: the network, and the offsets of inputs and outputs in its memory."""

    name: Name
    upper: Name
    inputs: tuple[tuple[Name, int], ...]
    outputs: tuple[tuple[Name, int], ...]
    has_state: bool


def is_relocatable(options: Mapping[str, str]) -> bool:
    """Test whether a network was compiled to be loaded, by its options."""
    return options.get("relocatable") == str(True)


def relocatable_entry_files(modules: Sequence[Module]) -> dict[str, str]:
    """Return the files that make a project's network a relocatable program; UsageError for several networks."""
    if len(modules) > 1:
        raise UsageError(
            f"relocatable: got {len(modules)} networks, expected one for each project",
            hint="compile each network into a project of its own; they share one firmware",
        )
    module = modules[0]
    context = NetworkContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        inputs=tuple((Name(name), _tensor_arena_offset(module, name)) for name in module.inputs),
        outputs=tuple((Name(name), _tensor_arena_offset(module, name)) for name in module.outputs),
        has_state=bool(module.state),
    )
    return {name: render(f"loading/{name}.j2", context) for name in (ENTRY, HEADER, RELOCATABLE_SCRIPT)}


def _tensor_arena_offset(module: Module, name: str) -> int:
    """Return the byte offset of a tensor in its network's arena."""
    base, offset = module.base_of(name)
    assert module.plan is not None
    return offset + module.plan.offsets[base]
