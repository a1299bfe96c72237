"""The network as the RPC runtime sees it: the descriptor of its tensors, and the sizes of a board's buffers."""

from __future__ import annotations

from microc.codegen.arenas import ArenaContext, arena_context, placed_at
from microc.codegen.memory import Memory
from microc.codegen.text import Code, Name
from microc.frozen import frozen
from microc.module import Module
from microc.target import Board

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
