# SPDX-License-Identifier: Apache-2.0
"""Write the files that connect a network to a firmware's protocol: RPC, MLPerf Tiny, or networks that are loaded at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from microc.base.immutable import frozen
from microc.codegen.c.c_expressions import ExprPrinter
from microc.codegen.c.interface import ArenaContext, arena_variable_and_offset, make_arena_context
from microc.codegen.c.source import network_files
from microc.codegen.project.manifest import MemoryMap, describe_value, learned_weights_digest
from microc.codegen.render import Code, Name, Text, Word, render
from microc.errors import UsageError
from microc.module import Module
from microc.target import Board

# ---- RPC: the descriptor of the network's tensors, and the sizes of the buffers for a board's serial line.

SMALL_RAM = 32 * 1024
SMALLEST_RAM = 8 * 1024
FAST_BAUD = 400_000
PAYLOAD, SMALL_PAYLOAD, LARGE_PAYLOAD = 256, 64, 512
"""Maximum number of bytes of the payload of an RPC frame.

PAYLOAD is the runtime's default. SMALL_PAYLOAD is for boards with less than SMALL_RAM bytes of RAM. LARGE_PAYLOAD is for serial
lines with at least FAST_BAUD bits per second: the host waits for an answer to every frame, so that with shorter frames a fast
line would be idle for a quarter of the time."""
RING, SMALL_RING = 512, 128
"""Number of bytes of the console's receive buffer. RING is the ports' default, SMALL_RING is for boards with at most SMALLEST_RAM
bytes of RAM."""

_DTYPE_ENUMERATORS = {"bool": "BOOL", "float32": "FLOAT32", "float64": "FLOAT64"}
_STORAGE_ENUMERATORS = {"input": "INPUT", "output": "OUTPUT", "state": "STATE", "intermediate": "INTERMEDIATE"}


@frozen
class RpcTensor:
    """A tensor in the network's RPC descriptor, which the host can read and write by the tensor's index.

    ``place``: C expression of the tensor's address. ``size``: number of bytes. ``kernel``: number of the last step that writes
    the tensor, or a macro if no step does. ``kind``: suffix of the enumerator for input, output, state or intermediate tensor."""

    place: Code
    size: int
    kernel: Code
    dtype: Name
    kind: Name
    name: Name


@frozen
class RpcContext:
    """Variables of the template ``rpc_model.c.j2``, which prints a network's descriptor for the RPC runtime.

    ``buffers``: definitions of buffers for inputs and outputs that are not in the arena. ``inputs`` and ``outputs``: names, and C
    expressions of addresses. ``sizes``: maximum of each size that varies between runs. ``shares_arena``: True if the network
    uses an arena together with other networks of the project.
    ``has_storage``: True if a run reads constants from storage. ``has_driver``: True if a port of the board reads it.
    ``learned``: the tensors that learning changes, which are saved in two banks from ``first_bank`` on. ``identity``: number that
    marks these saves as the network's."""

    name: Name
    upper: Name
    tensors: tuple[RpcTensor, ...]
    buffers: tuple[Code, ...]
    inputs: tuple[tuple[Name, Code], ...]
    outputs: tuple[tuple[Name, Code], ...]
    fingerprint: tuple[Code, ...]
    has_reset: bool
    has_storage: bool
    has_driver: bool
    learned: tuple[RpcTensor, ...]
    identity: Code
    first_bank: int
    sizes: tuple[int, ...]
    shares_arena: bool
    arenas: ArenaContext
    self_test: bool
    self_test_places: tuple[Code, ...]
    """C expressions of the addresses of all inputs and outputs if they are not in the arena; else empty."""


def make_rpc_context(
    module: Module, is_one_of_several: bool, *, has_driver: bool = False, first_bank: int = 0
) -> RpcContext:
    """Return the template variables of a network's RPC descriptor. Tensors are in the order of the manifest.

    ``is_one_of_several``: True if the project has several networks. A network without state then shares an arena with the
    others. ``has_driver``: True if a port of the board reads the storage of constants. ``first_bank``: number of the first of
    its two banks for learned weights."""
    assert module.plan is not None
    caller_owned = [n for n in (*module.inputs, *module.outputs) if n not in module.plan.offsets]
    buffers = tuple(
        Code(f"static uint64_t buffer_{n}[{max(1, -(-module.values[n].nbytes // 8))}];") for n in caller_owned
    )
    learned = [describe_value(module.values[name]) for name in module.state if module.inference_calls]
    return RpcContext(
        name=Name(module.name),
        upper=Name(module.name.upper()),
        tensors=tuple(_rpc_tensor(module, name) for name in MemoryMap(module).names),
        buffers=buffers,
        inputs=tuple((Name(n), _print_tensor_address(module, n)) for n in module.inputs),
        outputs=tuple((Name(n), _print_tensor_address(module, n)) for n in module.outputs),
        fingerprint=tuple(Code(f"0x{module.fingerprint[k : k + 2]}") for k in range(0, 32, 2)),
        has_reset=bool(module.state) or any(step < 0 for step in module.plan.copies.values()),
        has_storage=module.plan.storage is not None,
        has_driver=has_driver,
        learned=tuple(_rpc_tensor(module, tensor["name"]) for tensor in learned),
        identity=Code(f"0x{learned_weights_digest(module.hashes, learned)[:4].hex()}u"),
        first_bank=first_bank,
        sizes=tuple(size.maximum for size in module.sizes),
        shares_arena=is_one_of_several and not module.state,
        arenas=make_arena_context(module),
        self_test=module.self_test is not None,
        self_test_places=()
        if module.plan.io_in_arena
        else tuple(_print_tensor_address(module, n) for n in (*module.inputs, *module.outputs)),
    )


def _print_tensor_address(module: Module, name: str) -> Code:
    """Print the address of a tensor as a constant expression of C. The tensor is in the arena, or in a buffer of its own."""
    base, offset = module.base_and_offset(name)
    assert module.plan is not None
    if base in module.plan.offsets:
        arena, at = arena_variable_and_offset(module, module.plan.offsets[base] + offset)
        return Code(f"(void *)((uint8_t *){arena} + {at})")
    return Code(f"(void *)((uint8_t *)buffer_{base} + {offset})")


def _rpc_tensor(module: Module, name: str) -> RpcTensor:
    """Return the template variables of a tensor in the RPC descriptor."""
    value = module.values[name]
    last = [k for k, call in enumerate(module.calls) if name in call.writes]
    return RpcTensor(
        place=_print_tensor_address(module, name),
        size=value.nbytes,
        kernel=Code(last[-1] if last else "MICROC_NO_KERNEL"),
        dtype=Name(f"MICROC_{_DTYPE_ENUMERATORS.get(value.dtype, value.dtype.upper())}"),
        kind=Name(f"MICROC_{_STORAGE_ENUMERATORS[value.storage]}"),
        name=Name(name),
    )


def max_payload(board: Board) -> int:
    """Return the maximum payload of an RPC frame on a board, in bytes. It depends on the RAM and the baud rate."""
    if 0 < board.ram_bytes < SMALL_RAM:
        return SMALL_PAYLOAD
    return LARGE_PAYLOAD if board.raw["console"].get("baud", FAST_BAUD) >= FAST_BAUD else PAYLOAD


def receive_buffer_size(board: Board) -> int:
    """Return the size of the receive buffer for a board's console (serial line), in bytes."""
    return SMALL_RING if 0 < board.ram_bytes <= SMALLEST_RAM else RING


def print_buffer_size_macros(board: Board) -> str:
    """Print the C macros that define the sizes of a board's buffers for its serial line.

    Sizes that equal the runtime's default need no macro. The text is empty if there is no macro."""
    lines = []
    if max_payload(board) != PAYLOAD:
        lines.append(f"#define MICROC_RPC_MAX_PAYLOAD {max_payload(board)}")
    if receive_buffer_size(board) != RING:
        lines.append(f"#define MICROC_PORT_RX_SIZE {SMALL_RING}u")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


# ---- MLPerf Tiny: firmware with the text protocol of the EEMBC runner instead of RPC.

VENDOR = "microc"
OUTPUT_DTYPES = ("int8", "uint8", "int16", "float32")


@frozen
class BenchmarkContext:
    """Variables of the template ``main_mlperf.c.j2``, the firmware for MLPerf Tiny.

    ``scale`` and ``zero_point``: quantisation of the output. ``error``: 1 if the firmware reports the mean squared error between
    output and input (for an autoencoder), 0 if it reports the output."""

    name: Name
    board_title: Text
    vendor: Word
    scale: Code
    zero_point: int
    error: int


def render_mlperf_main(modules: Sequence[Module], board: Board) -> str:
    """Render ``main.c`` of a firmware that uses the protocol of MLPerf Tiny.

    A float autoencoder (a network whose output has the shape of its input) reports the mean squared error between output and
    input. Other networks report their first output as real numbers. UsageError if there are several networks, if the network
    has several inputs or an input that does not survive a run, or if its output has a dtype that is not supported."""
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
    if result.dtype not in OUTPUT_DTYPES:
        raise UsageError(
            f"protocol mlperf: got an output of {result.dtype}, expected one of {', '.join(OUTPUT_DTYPES)}",
            where=result.name,
            hint="choose another: --output-dtype float32",
        )
    context = BenchmarkContext(
        name=Name(module.name),
        board_title=Text(board.title),
        vendor=Word(VENDOR),
        scale=Code(ExprPrinter().print_literal(1.0 if result.scale is None else result.scale, "float32")),
        zero_point=result.zero_point or 0,
        error=int(source.dtype == result.dtype == "float32" and source.shape == result.shape),
    )
    return render("project/main_mlperf.c.j2", context)


# ---- Networks that are linked for a known address in RAM, without their constants, which are at other known addresses.

LOADING_SCRIPT, IMAGE_SOURCES = "image.ld", ("model.c", "load.c")
"""Name of the linker script, and names of the C files to compile."""


@frozen
class ImageContext:
    """Variables of the templates ``load.c.j2`` and ``image.ld.j2``.

    ``constants``: name and address of each constant array. ``start``: address at which the network is linked."""

    name: Name
    upper: Name
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    constants: tuple[tuple[Name, Code], ...]
    start: Code


def render_linked_network_files(
    module: Module, version: str, constant_addresses: Mapping[str, int], start_address: int
) -> dict[str, str]:
    """Return the C files and the linker script with which a network, without its constants, is linked at
    ``start_address``: text by file name.

    The module must have a memory plan. ``constant_addresses``: the address of each constant by its name."""
    values = {n: replace(v, data=None) if v.storage == "const" else v for n, v in module.values.items()}
    files = network_files(
        replace(module, values=values), version
    )  # constants without data are declared but not defined
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
    loading_files = {name: render(f"loading/{name}.j2", context) for name in ("load.c", LOADING_SCRIPT)}
    return {name: text for name, text in files.items() if name != "model_data.c"} | loading_files


# ---- Relocatable networks: the firmware stays the same, and receives networks over its serial line.

RELOCATABLE_SCRIPT, ENTRY, HEADER = "network.ld", "network.c", "network.h"
"""Names of the linker script, of the C file with the network's entry points, and of the header that is included first."""
LINK_ADDRESSES = {"network.elf": 0x0010_0000, "network_moved.elf": 0x0334_5640}
"""Addresses at which a relocatable network is linked, by the name of the linked program.

The two programs must have the same bytes, which proves that the network's code is position independent. Boards load networks at
multiples of 64. The second address is a multiple of 64 but of no larger power of 2, so that code which relies on a larger
alignment has other bytes in the two programs."""
BLOB_SUFFIX = ".bin"
"""Suffix of a file that contains only a relocatable network, not a project."""
POSITION_INDEPENDENT = "-fpie"


@frozen
class NetworkContext:
    """Variables of the templates ``loading/network.*``, which print the entry points of a relocatable network.

    ``inputs`` and ``outputs``: names, and offsets in the network's arena in bytes."""

    name: Name
    upper: Name
    inputs: tuple[tuple[Name, int], ...]
    outputs: tuple[tuple[Name, int], ...]
    has_state: bool


def is_relocatable(options: Mapping[str, str]) -> bool:
    """Test whether a network was compiled to be loaded by a running firmware. ``options``: its compile options."""
    return options.get("relocatable") == str(True)


def render_relocatable_entry_files(modules: Sequence[Module]) -> dict[str, str]:
    """Return the files from which a project's network is linked as a relocatable program, by name.

    UsageError if the project has several networks."""
    if len(modules) > 1:
        raise UsageError(
            f"relocatable: got {len(modules)} networks, expected one",
            hint="compile each network into a project of its own: one firmware can load them all",
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
    """Return the offset of a tensor in its network's arena, in bytes."""
    base, offset = module.base_and_offset(name)
    assert module.plan is not None
    return offset + module.plan.offsets[base]
