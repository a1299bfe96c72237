# SPDX-License-Identifier: Apache-2.0
"""Check a memory plan: replay the calls on a model of the arena in which every byte has an owner.

The owner of a byte is the value that was written there last. A read of a byte with another owner is an error. The
checker shares no code with the planner, nor with the analysis that the planner trusts
(:mod:`microc.tir.analysis.access_times`). :mod:`microc.plan.access_replay` finds the order of accesses within a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from microc.base.dtypes import Array
from microc.errors import InternalError
from microc.module import Call, Module, Plan
from microc.plan.access_replay import NEVER, Replay, count_cores
from microc.schedule.cost.loop_region import expand_memory_calls
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.ir import Buffer, PrimFunc
from microc.tir.rewrite import stmt_children, substitute_stmt
from microc.tir.symbolic import instantiate

# ---- The checker: executes the calls, recording the owner of every byte of the arenas.
#
# The owner of a byte is the value that was written there last. A read of a byte with another owner, or outside of the
# arenas, is a defect of the plan. If operands of one call overlap, the call's loops are replayed to find the order in which
# they touch each byte.

_MAX_CACHED_REPLAY_BYTES = 1 << 15
"""Most bytes of operands for which a replay is cached for the next call of the same kernel. A replay needs 16 times as
much memory."""


class _ArenaOwners:
    """The owner of every byte of the arena: the value that was written there last.

    Values start and end at few addresses (``edges``). The bytes between two neighbouring edges always have the same
    owner, so they share one element of ``owner``."""

    def __init__(self, module: Module) -> None:
        assert module.plan is not None
        self.module, self.plan = module, module.plan
        self.numbers = {name: k + 1 for k, name in enumerate(module.values)}
        ends = {
            end
            for place in map(self.locate_bytes_and_owner, module.values)
            if place
            for end in (place[0].start, place[0].stop)
        }
        self.edges = np.array(sorted(ends), dtype=np.int64)
        self.owner = np.zeros(len(self.edges), dtype=np.int32)
        self.replays: dict[tuple[object, ...], Replay] = {}

    def owner_slice(self, byte_range: slice) -> slice:
        """Return the slice of the array ``owner`` for a range of bytes of the arena."""
        first, last = np.searchsorted(self.edges, (byte_range.start, byte_range.stop))
        return slice(int(first), int(last))

    def locate_bytes_and_owner(self, name: str) -> tuple[slice, int] | None:
        """Return the range of bytes of a value or view in the arena, and the number of the value that owns it.

        Return None if the value is not in the arena. Raises InternalError if its offset is outside of the arena or
        misaligned."""
        nbytes, offset = self.module.values[name].nbytes, 0
        base = name
        links = {v.name: v for v in self.module.views}
        while base in links:
            offset += links[base].offset
            base = links[base].base
        if offset + nbytes > self.module.values[base].nbytes:
            raise InternalError(f"plan check: view {name} reaches beyond the end of value {base}")
        start = self.plan.offsets.get(base)
        if start is None:
            if self.module.values[base].storage in ("intermediate", "workspace", "state"):
                raise InternalError(f"plan check: value {base} has no offset in the arena")
            return None
        start += offset
        if start < 0 or start + nbytes > self.plan.size:
            raise InternalError(
                f"plan check: value {name} is outside of the arena; got offset {start}, "
                f"expected 0 to {self.plan.size - nbytes}"
            )
        if self.plan.arenas and not any(
            a.start <= start and start + nbytes <= a.start + a.size for a in self.plan.arenas
        ):
            raise InternalError(f"plan check: value {name} is not within a single arena of the plan")
        if start % self.module.values[base].align and not offset:
            raise InternalError(
                f"plan check: value {name} is misaligned; got offset {start}, "
                f"expected a multiple of {self.module.values[base].align}"
            )
        return slice(start, start + nbytes), self.numbers[base]

    def record_write(self, name: str) -> None:
        """Record that a value is written: it now owns its bytes."""
        place = self.locate_bytes_and_owner(name)
        if place is not None:
            self.owner[self.owner_slice(place[0])] = place[1]

    def check_read(self, name: str, reader: str) -> None:
        """Raise InternalError unless a value still owns all of its bytes. ``reader``: name of the kernel that reads the
        value."""
        place = self.locate_bytes_and_owner(name)
        if place is not None and not np.all(self.owner[self.owner_slice(place[0])] == place[1]):
            raise InternalError(f"plan check: {reader} reads {name}, whose memory was overwritten")


def _intersect_byte_ranges(a: slice, b: slice) -> slice:
    """Return the intersection of two ranges of bytes. For disjoint ranges the ``stop`` of the result is at most its
    ``start``."""
    return slice(max(a.start, b.start), min(a.stop, b.stop))


def _check_call(arena: _ArenaOwners, call: Call) -> None:
    """Check the operands of one call that share bytes of the arena.

    Each shared byte must be last used by one operand before the other operand is first written there. A result must be
    written last, because later calls read it.
    """
    ranges = {
        name: place[0]
        for name in (*call.reads, *call.writes, *call.workspace)
        if (place := arena.locate_bytes_and_owner(name))
    }
    pairs = [
        (one, other)
        for one in (*call.writes, *call.workspace)
        for other in ranges
        if one in ranges and one != other and _slice_length(_intersect_byte_ranges(ranges[one], ranges[other])) > 0
    ]
    if not pairs:
        return
    kernel = next((k for k in arena.module.kernels if k.name == call.kernel), None)
    if kernel is None:
        raise InternalError(
            f"plan check: {call.kernel} is no kernel of the module, but {pairs[0][0]} overlaps {pairs[0][1]}"
        )
    names = {name for pair in pairs for name in pair}
    for sizes in _list_replay_sizes(arena.module) if kernel.func.scalars else [{}]:
        _check_pairs(_TouchTimes(arena, kernel.func, sizes, call, names), call, ranges, pairs)


def _check_pairs(
    touch_times: _TouchTimes, call: Call, byte_ranges: Mapping[str, slice], pairs: Sequence[tuple[str, str]]
) -> None:
    """Check pairs of operands of a call that share bytes of the arena, for one combination of dynamic sizes.

    Raises InternalError if an operand is overwritten while it is in use. ``byte_ranges``: range of bytes of each
    operand."""
    for one, other in pairs:
        common = _intersect_byte_ranges(byte_ranges[one], byte_ranges[other])
        free = touch_times.is_unused_before_write(other, one, byte_ranges, common) & (other not in call.writes)
        if other in (*call.writes, *call.workspace):
            free |= touch_times.is_unused_before_write(one, other, byte_ranges, common) & (one not in call.writes)
        if not free.all():
            byte = common.start + int(np.argmin(free))
            raise InternalError(
                f"plan check: in {call.kernel}, {one} overlaps {other} while {other} is in use "
                f"(byte {byte} of the arena)"
            )
        if not _may_alias(touch_times.dtypes[one], touch_times.dtypes[other]):
            raise InternalError(
                f"plan check: in {call.kernel}, {one} overlaps {other} of another type, which C does not allow"
            )


def _list_replay_sizes(module: Module) -> list[dict[str, int]]:
    """Return the combinations of dynamic sizes at which calls are replayed, each as sizes by name of the scalar
    parameter.

    All sizes are at their maximum, at their minimum, one step from either, or in the middle. In further combinations
    one size is at its maximum and the others are at their minimum.
    """
    most = [(size.maximum - size.minimum) // size.step for size in module.sizes]
    steps = [most, [0 for _ in most], [min(n, 1) for n in most], [max(n - 1, 0) for n in most], [n // 2 for n in most]]
    steps += [[n if j == k else 0 for j, n in enumerate(most)] for k in range(len(most))]
    return [
        {s.scalar.name: s.minimum + n * s.step for s, n in zip(module.sizes, point, strict=True)}
        for point in dict.fromkeys(map(tuple, steps))
    ]


def _slice_length(byte_range: slice) -> int:
    """Return the number of bytes in a range, ``stop - start``; 0 or negative for an empty range."""
    return int(byte_range.stop - byte_range.start)


def _may_alias(dtypes_of_one: set[str], dtypes_of_other: set[str]) -> bool:
    """Test whether C allows accesses to the same memory with all of these dtypes: only character types may alias
    others."""
    return all(a == b or "int8" in (a, b) or "uint8" in (a, b) for a in dtypes_of_one for b in dtypes_of_other)


class _TouchTimes:
    """Times at which a call first writes and last touches the bytes of the operands ``names``."""

    def __init__(
        self, arena: _ArenaOwners, func: PrimFunc, sizes: Mapping[str, int], call: Call, names: set[str]
    ) -> None:
        func = instantiate(func, sizes)
        self.params = {name: [p for p, a in zip(func.params, call.args, strict=True) if a == name] for name in names}
        self.dtypes = {name: {p.dtype for p in params} for name, params in self.params.items()}
        watched = [p for params in self.params.values() for p in params]
        key = (call.kernel, *sorted(sizes.items()), *sorted(p.name for p in watched))
        self.replay = arena.replays.get(key) or Replay(expand_memory_calls(func), watched)
        if sum(p.nbytes for p in watched) <= _MAX_CACHED_REPLAY_BYTES:
            arena.replays[key] = self.replay

    def is_unused_before_write(self, first: str, second: str, byte_ranges: Mapping[str, slice], common: slice) -> Array:
        """Test for each byte of the range ``common`` whether operand ``first`` is last touched before ``second`` is
        written.

        ``byte_ranges``: range of bytes of each operand in the arena."""

        def slice_common_bytes(times: Mapping[Buffer, Array], name: str) -> list[Array]:
            base = byte_ranges[name].start
            return [times[p][:, common.start - base : common.stop - base] for p in self.params[name]]

        replay = self.replay
        last: Array = np.max(slice_common_bytes(replay.last_touch, first), axis=0)
        start: Array = np.min(slice_common_bytes(replay.first_write, second), axis=0)
        unused: Array = np.asarray((last < start).all(axis=0))
        if replay.cores > 1:
            last = np.max(slice_common_bytes(replay.latest_touch, first), axis=0)
            start = np.min(slice_common_bytes(replay.earliest_write, second), axis=0)
            unused = unused & (last < start[::-1]).all(axis=0)
        return unused


def _check_cores(module: Module) -> None:
    """Raise InternalError if two cores that share a loop of a kernel may touch a byte that one of them writes.

    What one core does before and after such a loop is not concurrent, so each loop is replayed alone."""
    for kernel in module.kernels:
        for loop in _list_shared_loops(kernel.func.body):
            written = buffers_written(loop)
            params = [b for b in kernel.func.params if b in written]
            replay = Replay(expand_memory_calls(replace(kernel.func, body=loop)), params)
            for buffer in params:
                raced = (replay.first_write[buffer] < NEVER) & (replay.last_touch[buffer][::-1] >= 0)
                if raced.any():
                    byte = int(np.argmax(raced.any(axis=0)))
                    raise InternalError(
                        f"plan check: in {kernel.name}, one core writes byte {byte} of {buffer.name} while the other uses it"
                    )


def _list_shared_loops(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield the loops of a statement that cores share, within the bindings around each; one in a loop for each iteration."""
    match stmt:
        case ir.For(var, extent, body) if count_cores(stmt) == 1:
            for inner in _list_shared_loops(body):
                for k in range(ir.int_value(extent) or 0):
                    yield substitute_stmt(inner, {var: ir.as_index(k)})
        case ir.For():
            yield stmt
        case ir.Let(var, value, body):
            yield from (ir.Let(var, value, inner) for inner in _list_shared_loops(body))
        case _:
            for child in stmt_children(stmt):
                yield from _list_shared_loops(child)


def _check_arenas(plan: Plan) -> None:
    """Check that arenas do not overlap, and that each fits into its memory.

    Only the first arena may exceed its memory, because a later check of the whole firmware rejects a board that is too
    small.
    """
    end = 0
    for arena in plan.used_arenas:
        if arena.start < end or arena.start + arena.size > plan.size:
            raise InternalError(f"plan check: the arena in {arena.memory} overlaps another arena or exceeds the plan")
        if arena != plan.arenas[0] and arena.size > arena.capacity:
            raise InternalError(
                f"plan check: the arena in {arena.memory} is too large; got {arena.size} bytes, "
                f"expected at most {arena.capacity}"
            )
        end = arena.start + arena.size


def _check_flash_regions(module: Module, plan: Plan) -> None:
    """Raise InternalError unless every constant that is not stored is in exactly one of the flash regions, if the plan
    names several."""
    listed = sorted(name for region in plan.flash for name in region.constants)
    constants = sorted(
        n for n, value in module.values.items() if value.storage == "const" and n not in plan.stored_offsets
    )
    if plan.flash and listed != constants:
        wrong = sorted({*listed} ^ {*constants}) or [name for name, other in pairwise(listed) if name == other]
        raise InternalError(f"plan check: constants {', '.join(wrong)} are not in exactly one flash region")


def _check_storage(module: Module, plan: Plan) -> None:
    """Raise InternalError unless every stored constant has bytes of its own in the file of weights, and is read before
    the first call that uses it."""
    if plan.storage is None:
        return
    end = 0
    for name, start in sorted(plan.stored_offsets.items(), key=lambda item: item[1]):
        users = [number for number, call in enumerate(module.calls) if name in call.args]
        if start < end or module.values[name].storage != "const":
            raise InternalError(f"plan check: stored constant {name} overlaps another in the file of weights")
        if name not in plan.offsets or not users or not 0 <= plan.copies.get(name, -1) <= users[0]:
            raise InternalError(f"plan check: stored constant {name} is not read before it is used")
        end = start + module.values[name].nbytes
    if end > plan.storage.size:
        raise InternalError(f"plan check: the file of weights has {plan.storage.size} bytes; expected {end} or more")


def check_plan(module: Module) -> None:
    """Raise InternalError if, with the module's memory plan, any value is overwritten before its last use."""
    arena = _ArenaOwners(module)
    _check_arenas(arena.plan)
    _check_flash_regions(module, arena.plan)
    _check_storage(module, arena.plan)
    _check_cores(module)
    kept = [name for name, step in arena.plan.copies.items() if step < 0]
    for name in (*module.inputs, *module.state, *kept):
        arena.record_write(name)
    for number, call in enumerate(module.calls):
        copied = [name for name in call.args if module.values[name].storage == "const"]
        for name, step in arena.plan.copies.items():
            if step == number:  # the copy may be written while the call runs
                arena.record_write(name)
        for name in (*call.reads, *copied):
            arena.check_read(name, call.kernel)
        _check_call(arena, call)
        for name in (*call.workspace, *call.writes):
            arena.record_write(name)
        for name in copied:
            arena.check_read(name, call.kernel)
    for name in (*module.outputs, *module.state, *kept):
        arena.check_read(name, "the caller")
