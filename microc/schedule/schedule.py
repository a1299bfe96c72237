"""Schedules: a function and the trace of steps that produced it; traces as JSON; generalising a trace to other sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from math import prod
from typing import Any

from microc.base.dtypes import Array
from microc.errors import MicrocError, ScheduleError, known_names_hint
from microc.schedule.primitives import loops, storage
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.primitives.table import PRIMITIVES, check_arguments
from microc.schedule.primitives.tree import Step, find_block, freeze_argument, has_block, loops_around
from microc.tir import ir
from microc.tir.names import DOUBLE_BUFFER, PRIVATE
from microc.tir.symbolic import require_constant_sizes
from microc.tir.text import to_text

# ---- Schedules
#
# Every primitive returns a new schedule. A step is a name and JSON-able arguments. :func:`replay_trace` repeats a trace on the
# same function and gives the same result, byte for byte.


@dataclass(frozen=True, slots=True, repr=False)
class Schedule:
    """A function, and the trace of steps that produced it.

    Loops and blocks are addressed by name. New loops are named after the old ones: splitting ``k`` gives ``k_0``, ``k_1``.
    ``refused``: steps that the rule tried and that failed, with the reason, for reports only.
    """

    func: ir.PrimFunc
    trace: tuple[Step, ...] = ()
    rule: str = ""
    origin: ir.PrimFunc | None = field(default=None, compare=False, repr=False)
    refused: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        require_constant_sizes(self.func)

    def __repr__(self) -> str:
        rule = f" by {self.rule}" if self.rule else ""
        return f"<Schedule of {self.func.name}{rule}, {len(self.trace)} steps>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(to_text(self.func))}</pre>"

    @property
    def start(self) -> ir.PrimFunc:
        """The function that the trace starts from."""
        return self.origin or self.func

    @property
    def packs_bits(self) -> bool:
        """True if constants are stored in fewer bits than they are computed with."""
        return any(map(storage.packs_constants, self.trace))

    def apply(self, primitive: str, *args: Any) -> Schedule:
        """Apply a primitive by name."""
        if primitive not in PRIMITIVES:
            raise ScheduleError(
                f"there is no primitive {primitive!r}", hint=known_names_hint(primitive, PRIMITIVES, "primitives")
            )
        frozen = tuple(freeze_argument(a) for a in args)
        check_arguments(primitive, frozen)
        func, step = PRIMITIVES[primitive](self.func, *frozen), Step(primitive, frozen)
        trace = (*self.trace, step)
        if any(s.primitive == "set_kind" and s.args[1:] == ("parallel",) for s in trace):
            loops.check_parallel(func, str(step))
        return replace(self, func=func, trace=trace, origin=self.start)

    def split(self, loop: str, factors: tuple[int | None, ...]) -> Schedule:
        """Split ``loop`` in nested loops of these extents; one may be None, for the extent that covers the loop."""
        return self.apply("split", loop, factors)

    def tile(self, row: str, column: str, rows: int, columns: int) -> Schedule:
        """Split two loops and reorder to ``row_0, column_0, row_1, column_1``."""
        tiled = self.split(row, (None, rows)).split(column, (None, columns))
        return tiled.reorder(f"{row}_0", f"{column}_0", f"{row}_1", f"{column}_1")

    def fuse(self, *names: str) -> Schedule:
        """Fuse directly nested loops."""
        return self.apply("fuse", names)

    def reorder(self, *names: str) -> Schedule:
        """Nest the named loops in this order."""
        return self.apply("reorder", names)

    def unroll(self, loop: str) -> Schedule:
        """Unroll the loop completely."""
        return self.apply("set_kind", loop, "unrolled")

    def vectorize(self, loop: str) -> Schedule:
        """Vectorise a loop: copies and fills of bytes move words; other loops are left to the C compiler, unless annotated."""
        return self.apply("set_kind", loop, "vectorized")

    def parallel(self, loop: str, *, private: bool = False) -> Schedule:
        """Run the iterations in parallel: by the pool of ``threads=N``, else by OpenMP if the C compiler has it.

        ``private``: each thread has workspaces of its own.
        """
        schedule = self.apply("annotate_loop", loop, PRIVATE, 1) if private else self
        return schedule.apply("set_kind", loop, "parallel")

    def bind(self, loop: str, axis: str) -> Schedule:
        """Bind the iterations to groups of an accelerator (``blockIdx.x``, ``.y``, ``.z``) or to the items of a group
        (``threadIdx.x`` ...)."""
        return self.apply("set_kind", loop, axis)

    def prefetch(self, loop: str) -> Schedule:
        """Copy to shared memory for the next iteration of ``loop`` while the current one computes."""
        return self.apply("annotate_loop", loop, DOUBLE_BUFFER, 1)

    def annotate(self, where: str, key: str, value: int | str) -> Schedule:
        """Attach an annotation to a block or loop."""
        primitive = "annotate_block" if has_block(self.func.body, where) else "annotate_loop"
        return self.apply(primitive, where, key, value)

    def rename_block(self, block: str, name: str) -> Schedule:
        """Rename a block."""
        return self.apply("rename_block", block, name)

    def compute_at(self, block: str, loop: str) -> Schedule:
        """Compute the producer ``block`` inside ``loop``, just before the consumers there, for the region that they read."""
        return self.apply("compute_at", block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> Schedule:
        """Compute the elementwise consumer ``block`` inside ``loop``, just after its producer there, for the region that it
        wrote."""
        return self.apply("reverse_compute_at", block, loop)

    def compute_inline(self, block: str) -> Schedule:
        """Replace every read of ``block``'s result by its expression, and remove the block and its buffer."""
        return self.apply("compute_inline", block)

    def reverse_compute_inline(self, block: str) -> Schedule:
        """Apply the expression of the elementwise ``block`` where its operand is produced."""
        return self.apply("reverse_compute_inline", block)

    def cache_read(self, block: str, buffer: str, scope: str) -> Schedule:
        """Let ``block`` read a copy of ``buffer``, made before it by a new block ``<buffer>_<scope>``."""
        return self.apply("cache_read", block, buffer, scope)

    def cache_write(self, block: str, scope: str) -> Schedule:
        """Let ``block`` write a new buffer ``<output>_<scope>``, which a new block of that name copies to the output."""
        return self.apply("cache_write", block, scope)

    def set_scope(self, buffer: str, scope: str) -> Schedule:
        """Move an intermediate buffer to ``workspace``, ``shared``, ``register``, ``local`` or a tensor unit's memory."""
        return self.apply("set_scope", buffer, scope)

    def set_dtype(self, buffer: str, dtype: str) -> Schedule:
        """Store an integer buffer in a wider dtype, or a constant of floats in 16 bits that hold its numbers."""
        return self.apply("set_dtype", buffer, dtype)

    def transform_layout(
        self, buffer: str, factors: tuple[tuple[int | None, ...], ...], order: tuple[int, ...]
    ) -> Schedule:
        """Split every axis by its ``factors`` (outermost first); the parts, in ``order``, are the new axes."""
        return self.apply("transform_layout", buffer, factors, order)

    def packed(self, buffer: ir.Buffer, array: Array) -> Array:
        """Repack the data of a constant parameter into the layout that this schedule reads. ``buffer``: the parameter
        before scheduling."""
        return storage.repack_constant(array, buffer, ((step.primitive, step.args) for step in self.trace))

    def storage_align(self, buffer: str, axis: int, factor: int) -> Schedule:
        """Round the extent of an axis of an intermediate buffer up to a multiple of ``factor``."""
        return self.apply("storage_align", buffer, axis, factor)

    def pad_reduction(self, block: str) -> Schedule:
        """Compute the superfluous instances of a split with a tail in ``block``, too, instead of guarding against them."""
        return self.apply("pad_reduction", block)

    def decompose_padding(self, block: str) -> Schedule:
        """Split a block with a border in two: one stores the constant, one the elements inside, without a test."""
        return self.apply("decompose_padding", block)

    def defer_init(self, block: str) -> Schedule:
        """Start ``block``, an int32 sum, from zero, and let all readers add its initial value."""
        return self.apply("defer_init", block)

    def double_reduction(self, block: str, weight: str) -> Schedule:
        """Double the sums of ``block``, a sum of products by ``weight``, for the high multiply of its readers."""
        return self.apply("double_reduction", block, weight)

    def decompose_reduction(self, block: str, loop: str) -> Schedule:
        """Run the initialisation as ``<block>_init`` before ``loop``, over the space loops inside it; the block only
        accumulates."""
        return self.apply("decompose_reduction", block, loop)

    def rfactor(self, block: str, loop: str) -> Schedule:
        """Compute partial reductions in ``<block>_rf``, one for each iteration of ``loop``; ``block`` reduces them."""
        return self.apply("rfactor", block, loop)

    def blockize(self, loop: str) -> Schedule:
        """Make ``loop`` and its contents, one block, a block ``<block>_o`` that other primitives move as a whole."""
        return self.apply("blockize", loop)

    def tensorize(self, loop: str, intrin: str) -> Schedule:
        """Replace ``loop`` and the loops inside it by the tensor intrinsic."""
        return self.apply("tensorize", loop, intrin)

    def tensorize_pairs(self, weight: str, columns: str, reduction: str, dtype: str) -> Schedule:
        """Replace the loop ``columns`` (of 2) and the loop of 4 terms inside it by ``dot2`` on paired weights."""
        return self.apply("tensorize_pairs", weight, columns, reduction, dtype)

    def tensorize_taps(self, block: str, weight: str, axis: int) -> Schedule:
        """Multiply pairs of taps along an axis of constant weights by ``dot2``, and store the weights in its words."""
        return self.apply("tensorize_taps", block, weight, axis)

    def pack_bits(self, weight: str, bits: int, order: str, block: int = 0, tables: int = 0) -> Schedule:
        """Store the rows of a constant matrix of int8, whose numbers fit, in ``bits`` bits each."""
        more = (block, tables) if tables else (block,) if block else ()
        return self.apply("pack_bits", weight, bits, order, *more)

    def tensorize_bits(self, weight: str, loop: str, reduction: str, bits: int, block: int = 0) -> Schedule:
        """Replace ``loop``, over 2 terms of 16-bit activations, by ``dot2`` on weights of ``bits`` bits."""
        return self.apply("tensorize_bits", weight, loop, reduction, bits, *((block,) if block else ()))

    def tensorize_bit_columns(self, weight: str, columns: str, reduction: str) -> Schedule:
        """Replace ``columns`` (of 4) and the loop of 2 terms inside it by ``dot2`` on shared weights."""
        return self.apply("tensorize_bit_columns", weight, columns, reduction)

    def select_rounding(self) -> Schedule:
        """Split the rounding by a shift that changes in the innermost loop in two shifts."""
        return self.apply("select_rounding")

    def select_saturation(self) -> Schedule:
        """Replace ``min(max(x, low), high)`` by ``saturate_i8(x)`` and the like."""
        return self.apply("select_saturation")

    def select_high_mul(self) -> Schedule:
        """Compute high halves of products by parts, for cores on which 64-bit products are library calls."""
        return self.apply("select_high_mul")

    def select_high_mac(self) -> Schedule:
        """Replace ``high_mac(2 x, m, 2 k) >> s`` by ``high_mac(x, m, k) >> (s - 1)``."""
        return self.apply("select_high_mac")

    def select_clamp(self) -> Schedule:
        """Replace clamping to int8 by ``clamp8``."""
        return self.apply("select_clamp")

    def select_fma(self) -> Schedule:
        """Contract sums of float32 products, ``c[i] = c[i] + a * b``, to ``c[i] = fma(a, b, c[i])``, which rounds once."""
        return self.apply("select_fma")

    def select_byte_products(self) -> Schedule:
        """Multiply two bytes that are widened to 32 bits by one instruction for bytes."""
        return self.apply("select_byte_products")

    def select_conversion(self) -> Schedule:
        """Round floats by ``nearest_i32``."""
        return self.apply("select_conversion")

    def select_functions(self, *how: bool) -> Schedule:
        """Replace ``erf``, ``exp``, ``expm1``, ``tanh`` of float32 (and ``log``, on request) by arithmetic."""
        return self.apply("select_functions", *how)

    def align_rows(self, buffer: str, align: int) -> Schedule:
        """Begin the rows of a buffer in a tensor unit's memory at multiples of ``align`` bytes."""
        return self.apply("align_rows", buffer, align)

    def double_buffer(self, buffer: str, loop: str) -> Schedule:
        """Give a buffer in a tensor unit's memory two slots, which iterations of ``loop`` and of loops around it alternate."""
        return self.apply("double_buffer", buffer, loop)

    def compile_with(self, flags: str) -> Schedule:
        """Compile this kernel alone with further options of gcc."""
        return self.apply("compile_with", flags)

    def loops_of(self, block: str) -> tuple[str, ...]:
        """Return the names of the loops around a block, outermost first."""
        stmt = find_block(self.func.body, block, nested=True)
        return tuple(loop.var.name for loop in loops_around(self.func.body, stmt))

    def has(self, block: str) -> bool:
        """Test whether there is a block of this name."""
        return has_block(self.func.body, block)

    def named(self, rule: str) -> Schedule:
        """Return the schedule under the name that reports show: that of its rule, and its decisions."""
        return replace(self, rule=rule)

    def without(self, step: str, refusal: MicrocError) -> Schedule:
        """Record that ``step`` was refused, with the reason; function and trace are unchanged."""
        return replace(self, refused=(*self.refused, f"{step}: {refusal.what}"))

    def renamed(self, name: str) -> Schedule:
        """Return the schedule of the same function under another name."""
        return replace(self, func=replace(self.func, name=name))


def trace_to_json(trace: Iterable[Step]) -> str:
    """Format a trace as JSON, one step a line."""
    return "[" + ",\n ".join(json.dumps([step.primitive, *step.args]) for step in trace) + "]\n"


def trace_from_json(json_text: str) -> tuple[Step, ...]:
    """Parse a trace, the inverse of :func:`trace_to_json`."""
    try:
        rows = json.loads(json_text)
        return tuple(Step(row[0], tuple(freeze_argument(a) for a in row[1:])) for row in rows)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ScheduleError(
            "the text of a schedule's trace is not a JSON list of steps", hint='write [["split", "k", [null, 4]], ...]'
        ) from error


def replay_trace(func: ir.PrimFunc, trace: Iterable[Step]) -> Schedule:
    """Apply all steps of a trace to ``func``, and return the schedule."""
    schedule = Schedule(func)
    for step in trace:
        schedule = schedule.apply(step.primitive, *step.args)
    return schedule


def replay_steps(func: ir.PrimFunc, trace: Iterable[Step]) -> Iterator[tuple[Step, ir.PrimFunc]]:
    """Replay a trace on ``func``; yield every step with the function after it."""
    schedule = Schedule(func)
    for step in trace:
        schedule = schedule.apply(step.primitive, *step.args)
        yield step, schedule.func


# ---- Generalising a trace of one size to several: tiles that leave a tail at some size become one wide


def generalise_trace(
    trace: Sequence[Step], funcs: Sequence[ir.PrimFunc], divides: Callable[[Sequence[int], int], bool]
) -> tuple[Step, ...]:
    """Generalise a trace to functions of different extents, so that it leaves no tails.

    Loops of different extents that a split does not always divide are split by one. Steps that need a whole loop (unrolling,
    copying by words) are dropped on such loops. ``divides(extents, number)`` tests whether a number divides all extents, given by
    function. ScheduleError if the trace does not apply to one of the functions.
    """
    schedules = [Schedule(func) for func in funcs]
    result = []
    for step in trace:
        if step.primitive in ("split", "set_kind"):
            extents = [loop_extent(schedule.func, step.args[0]) for schedule in schedules]
            differs = len(set(extents)) > 1
            if differs and step.primitive == "set_kind":
                continue
            if differs and not divides(extents, prod(f for f in step.args[1] if f)):
                loop, factors = step.args
                step = Step("split", (loop, (None, *(1 for _ in factors[1:]))))
        schedules = [schedule.apply(step.primitive, *step.args) for schedule in schedules]
        result.append(step)
    return tuple(result)
