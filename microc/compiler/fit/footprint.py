# SPDX-License-Identifier: Apache-2.0
"""Check that a firmware fits a board, by adding up its memory before any file is written.

The sizes of code are estimates. Therefore linking may still fail (:func:`convert_link_overflow_error`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from microc.base.immutable import frozen
from microc.codegen.c.c_statements import core_count_of
from microc.codegen.c.interface import DEFAULT_ALIGNMENT
from microc.codegen.c.resources import (
    estimate_library_flash_bytes,
    estimate_max_code_bytes,
    min_and_max_flash_without_networks,
    stack_bound,
    static_ram_without_networks,
)
from microc.codegen.project.board_files import core1_stack_bytes
from microc.codegen.project.firmware import shared_arena
from microc.codegen.project.protocols import max_payload, receive_buffer_size
from microc.compiler.fit.budget import (
    CERTAIN_CODE_SHARE,
    BoardCapacity,
    code_bytes,
    list_larger_boards,
    make_misfit_hint,
    outside_arena_bytes,
    region_bytes,
)
from microc.errors import FitError, ToolError
from microc.module import Module
from microc.target import Board

SPARE = 96
"""Bytes of each memory that the planner leaves free, for alignment and for variables of the C library."""
CORE1_RAM = 160
"""Bytes of the second core's mailbox, vector table and clock, without its stack: 96 as linked for mps2-an521, and 64 for the
alignment of the table."""
RUNTIME_RAM = 48
"""Bytes of small variables of the runtime, without the ring buffer of the console and the two frame buffers of the
RPC."""
FRAME_OVERHEAD = 12  # bytes of an RPC frame in addition to its payload
KINDS = ("flash", "ram")


@frozen
class Footprint:
    """Flash and RAM that a firmware needs, in bytes.

    - ``code``: an upper estimate until the firmware is linked; ``least_code``: a lower estimate.
    - ``weights`` (without weights in a memory region for an accelerator), ``arena`` and ``buffers`` are exact.
    - ``arena``: all arenas in the memory of the stack. The planner has already fitted the arenas in other memories.
    - ``stack``: upper bound on the stack of a run and its callers (:mod:`microc.codegen.c.resources`).
    - ``reserved_stack``: bytes that the board's linker script reserves for the stack.
    - ``runtime``: variables of the console and of the RPC.
    - ``hot_code``: code that is executed from RAM.
    - ``linked_ram``: variables and arena as the linker reports them; 0 before linking.
    """

    weights: int
    self_test: int
    code: int
    arena: int
    buffers: int
    stack: int
    reserved_stack: int
    runtime: int
    hot_code: int = 0
    linked_ram: int = 0
    least_code: int = 0

    @property
    def flash(self) -> int:
        return self.weights + self.self_test + self.code

    @property
    def least_flash(self) -> int:
        """Lower bound on the flash, with the lower estimate of the code."""
        return self.weights + self.self_test + self.least_code

    @property
    def static_ram(self) -> int:
        """Number of bytes of RAM for variables, buffers, the arena and code that is executed from RAM."""
        return self.linked_ram or self.arena + self.buffers + self.runtime + self.hot_code

    @property
    def ram(self) -> int:
        """Number of bytes of RAM needed: static RAM and the maximum stack of a run."""
        return self.static_ram + self.stack

    @property
    def required_board_ram(self) -> int:
        """Number of bytes of RAM that the board must have: static RAM, and the larger of the reserved stack and the
        maximum stack of a run."""
        return self.static_ram + max(self.stack, self.reserved_stack)


def compute_firmware_footprint(modules: Sequence[Module], board: Board) -> Footprint:
    """Return the memory that one firmware with all planned ``modules`` needs on ``board``."""
    own = [m for m in modules if len(modules) == 1 or m.state]
    protocol = modules[0].options["protocol"]
    least, most = min_and_max_flash_without_networks(board, protocol)
    kernels = sum(map(code_bytes, modules))
    code = least + kernels
    if region_bytes(board, "flash"):
        code = most + estimate_library_flash_bytes(modules) + sum(map(estimate_max_code_bytes, modules))
    return Footprint(
        weights=sum(m.const_bytes - _constant_bytes_in_accelerator_memory(m, board) for m in modules),
        self_test=sum(m.self_test.nbytes for m in modules if m.self_test),
        code=code,
        least_code=least + int(CERTAIN_CODE_SHARE * kernels),
        arena=shared_arena(modules) + sum(m.plan.main_arena_size for m in own if m.plan is not None),
        buffers=sum(map(outside_arena_bytes, modules)),
        stack=max(map(stack_bound, modules)),
        reserved_stack=board.raw.get("link", {}).get("stack_bytes", 0),
        runtime=_ram_bytes_of_runtime(board, protocol) + _ram_bytes_of_core1(modules, board),
        hot_code=sum(
            m.plan.code.size for m in modules if m.plan and m.plan.code and _is_hot_code_in_stack_memory(board)
        ),
    )


def _is_hot_code_in_stack_memory(board: Board) -> bool:
    """Test whether hot code is placed in the memory that also contains the stack."""
    return board.code_memory is not None and board.code_memory.main


def _constant_bytes_in_accelerator_memory(module: Module, board: Board) -> int:
    """Return the number of bytes of constants in the memory region of the board's accelerator; 0 if there is no such
    region."""
    if not board.npu_constants:
        return 0
    return sum(v.nbytes for v in module.values.values() if v.storage == "const" and v.align > DEFAULT_ALIGNMENT)


def _ram_bytes_of_runtime(board: Board, protocol: str) -> int:
    """Return the number of bytes of RAM that the console and the RPC need."""
    measured = static_ram_without_networks(board, protocol)
    if measured is not None:
        return measured
    return RUNTIME_RAM + receive_buffer_size(board) + 2 * (max_payload(board) + FRAME_OVERHEAD)


def _ram_bytes_of_core1(modules: Sequence[Module], board: Board) -> int:
    """Return the number of bytes of RAM that the second core needs, its stack included; 0 if no network uses it."""
    if all(core_count_of(module) == 1 for module in modules):
        return 0
    return CORE1_RAM + core1_stack_bytes(board, max(map(stack_bound, modules)))


def board_capacity(board: Board, *, external: bool = False, cores: int = 1) -> BoardCapacity:
    """Return the memory of a board that a firmware leaves to its network.

    ``external``: the network may use external code, so that constants may be in the memory region of the accelerator.
    ``cores``: number of cores that may share its loops.
    """
    fixed = board.raw.get("link", {}).get("stack_bytes", 0) + _ram_bytes_of_runtime(board, "rpc")
    if 1 < cores <= board.target.max_cores:
        fixed += CORE1_RAM + core1_stack_bytes(board, 0)
    ram = region_bytes(board, "ram")
    apart = sum(region.size for region in board.regions if external and region.name == board.npu_constants)
    flash, code = region_bytes(board, "flash") + apart, board.code_memory
    least, most = min_and_max_flash_without_networks(board, "rpc")
    return BoardCapacity(
        flash=max(flash - most, 0),
        ram=max(ram - fixed, 1) if ram else 0,
        board=board.name,
        flash_limit=max(flash - least, 1) if flash else 0,
        board_total=(flash, ram),
        memories=tuple(
            replace(m, size=max(m.size - SPARE - (0 if k else fixed), 0)) for k, m in enumerate(board.memories)
        ),
        code=code and replace(code, size=max(code.size - SPARE - (fixed if code.main else 0), 0)),
    )


def check_board_memory(
    board: Board,
    needed_flash: int,
    needed_ram: int,
    model_name: str,
    components: str,
    *,
    computes_in_floats: bool = False,
) -> None:
    """Raise FitError if a board has less flash or RAM than needed. A board without limits is always large enough.

    ``needed_flash``, ``needed_ram``: in bytes. ``model_name``: the name of the model file, for the error.
    ``components``: the components of the needed memory with their sizes, as text for the error. ``computes_in_floats``:
    the hint recommends quantisation.
    """
    reasons = []
    for region_kind, need in zip(KINDS, (needed_flash, needed_ram), strict=True):
        available = region_bytes(board, region_kind)
        if available and need > available:
            name = "RAM" if region_kind == "ram" else region_kind
            reasons.append(f"needs {need} bytes of {name}, the board has {available} ({need - available} too many)")
    if reasons:
        raise FitError(
            f"{model_name} does not fit {board.name}: it " + "; it ".join(reasons),
            where=components,
            hint=make_misfit_hint(
                model_name,
                needed_flash,
                needed_ram,
                board.name,
                computes_in_floats=computes_in_floats,
                io_in_arena=True,
            ),
        )


def compute_and_check_footprint(modules: Sequence[Module], board: Board) -> Footprint:
    """Compute the footprint of a firmware with all ``modules``; FitError if the firmware does not fit the board."""
    need = compute_firmware_footprint(modules, board)
    stack = max(need.stack, need.reserved_stack)
    details = (
        f"flash: weights {need.weights} + {f'self-test {need.self_test} + ' if need.self_test else ''}"
        f"code {need.least_code} to {need.code}; "
        f"RAM: arena {need.arena} + buffers {need.buffers} + stack {stack} + runtime {need.runtime}"
        f"{f' + hot code about {need.hot_code}' if need.hot_code else ''}"
    )
    floats = any(module.arithmetic.float_macs for module in modules)
    source = " and ".join(m.source or m.name for m in modules)
    check_board_memory(board, need.least_flash, need.required_board_ram, source, details, computes_in_floats=floats)
    return need


def convert_link_overflow_error(
    error: ToolError, board: Board, folder: str, *, hot_code: bool = False
) -> FitError | None:
    """Convert a linker error about an overflowing memory region to a FitError with sizes; None for any other linker
    error.

    ``folder``: the folder of the project. ``hot_code``: kernels are executed from RAM.
    """
    sizes = {region.name: region.size for region in board.regions}
    found = re.findall(r"region [`']?(\w+)' overflowed by (\d+) bytes", error.what)
    if not found:
        return None
    parts = [
        f"{name} needs {sizes.get(name, 0) + int(over)} bytes, the board has {sizes.get(name, 0)} ({over} too many)"
        for name, over in dict(found).items()
    ]
    need = {
        region_kind: sum(r.size + int(dict(found).get(r.name, 0)) for r in board.regions if r.kind == region_kind)
        for region_kind in KINDS
    }
    code = board.code_memory
    if hot_code and code is not None and code.name in dict(found):
        hint = "compile without --code-in-ram: the code is larger than estimated"
    elif larger := next(list_larger_boards(need["flash"], need["ram"], board.name), ""):
        hint = f"compile it for a larger board (--board {larger}), or a smaller network"
    else:
        hint = "choose a smaller network"
    return FitError(f"the firmware does not fit {board.name}: " + "; ".join(parts), where=folder, hint=hint)
