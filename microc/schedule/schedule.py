# SPDX-License-Identifier: Apache-2.0
"""Schedules: the primitives by name, and a function with the trace of steps that produced it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin, get_type_hints

from microc.base.dtypes import Array
from microc.document.blocks import Code, Document, document
from microc.document.renderers import Showable
from microc.errors import MicrocError, ScheduleError, known_names_hint
from microc.schedule.primitives import (
    compute_at,
    float_functions,
    loops,
    padding,
    reductions,
    selection,
    storage,
    tensorize,
    tensorize_bits,
)
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.primitives.tree import (
    Step,
    find_block,
    find_early_reads,
    freeze_argument,
    has_block,
    loops_around,
    parse_step,
    with_unique_names,
)
from microc.tir import ir
from microc.tir.extents import Extent, divide_exactly
from microc.tir.names import DISTRIBUTED, DOUBLE_BUFFER, PRIVATE
from microc.tir.symbolic import require_function
from microc.tir.text import to_text

# ---- The schedule primitives by name, and the check of their arguments. A primitive is a function of a TIR function
# and of arguments that JSON can represent; it returns the changed TIR function.


PRIMITIVES: Mapping[str, Callable[..., ir.PrimFunc]] = MappingProxyType(
    {
        "split": loops.split,
        "fuse": loops.fuse,
        "reorder": loops.reorder,
        "set_kind": loops.set_kind,
        "annotate_loop": loops.annotate_loop,
        "annotate_block": loops.annotate_block,
        "rename_block": loops.rename_block,
        "compute_at": compute_at.compute_at,
        "reverse_compute_at": compute_at.reverse_compute_at,
        "compute_inline": compute_at.compute_inline,
        "reverse_compute_inline": compute_at.reverse_compute_inline,
        "cache_read": storage.cache_read,
        "cache_write": storage.cache_write,
        "set_scope": storage.set_scope,
        "set_dtype": storage.set_dtype,
        "transform_layout": storage.transform_layout,
        "storage_align": padding.storage_align,
        "pad_reduction": padding.pad_reduction,
        "decompose_padding": padding.decompose_padding,
        "double_reduction": loops.double_reduction,
        "decompose_reduction": reductions.decompose_reduction,
        "defer_init": reductions.defer_init,
        "blockize": reductions.blockize,
        "rfactor": reductions.rfactor,
        "tensorize": tensorize.tensorize,
        "tensorize_pairs": tensorize.tensorize_pairs,
        "tensorize_taps": tensorize.tensorize_taps,
        "pack_bits": storage.pack_bits,
        "tensorize_bits": tensorize_bits.tensorize_bits,
        "tensorize_bit_columns": tensorize_bits.tensorize_bit_columns,
        "select_functions": float_functions.select_functions,
        "apply_identities": selection.apply_identities,
        "select_intrinsics": selection.select_intrinsics,
        "align_rows": storage.align_rows,
        "double_buffer": storage.double_buffer,
        "compile_with": loops.compile_with,
    }
)

SYMBOLIC_PRIMITIVES = frozenset(
    {
        "split",
        "fuse",
        "reorder",
        "set_kind",
        "annotate_loop",
        "annotate_block",
        "rename_block",
        "compute_inline",
        "reverse_compute_inline",
        "cache_read",
        "cache_write",
        "set_scope",
        "decompose_reduction",
        "compile_with",
    }
)
"""Names of the primitives that apply to functions of symbolic extents. The others compute regions or layouts in numbers."""


def check_arguments(primitive: str, args: tuple[Any, ...]) -> None:
    """Check the number and the types of a primitive's arguments. Raise ScheduleError if they do not match the
    primitive's signature.

    Traces come from files and from users, and the primitives themselves do not check the types of names and numbers."""
    required, parameters = _required_count_and_parameters(primitive)
    if not required <= len(args) <= len(parameters):
        takes = ", ".join(name for name, _ in parameters) or "nothing"
        raise ScheduleError(f"{primitive}: wrong number of arguments; got {len(args)}, expected {takes}")
    for (name, type_), value in zip(parameters, args, strict=False):
        if not _is_of_type(value, type_):
            expected = type_.__name__ if isinstance(type_, type) else str(type_)
            raise ScheduleError(f"{primitive}: argument {name} has a wrong type; got {value!r}, expected {expected}")


@lru_cache(maxsize=64)
def _required_count_and_parameters(primitive: str) -> tuple[int, tuple[tuple[str, Any], ...]]:
    """Return the number of required arguments of a primitive, and (name, type) of each parameter except the first,
    which is the TIR function."""
    function = PRIMITIVES[primitive]
    types = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    required = sum(parameter.default is inspect.Parameter.empty for parameter in parameters)
    return required, tuple((parameter.name, types[parameter.name]) for parameter in parameters)


def _is_of_type(argument: Any, annotation: Any) -> bool:
    """Test whether a value has an annotated type: a name, a number, None, or a union or tuple (of any length) of
    these."""
    if isinstance(annotation, UnionType):
        return any(_is_of_type(argument, each) for each in get_args(annotation))
    if get_origin(annotation) is tuple:
        return isinstance(argument, tuple) and all(_is_of_type(each, get_args(annotation)[0]) for each in argument)
    if annotation is int:
        return isinstance(argument, int) and not isinstance(argument, bool)
    return isinstance(argument, annotation)


# ---- Schedules
#
# Every primitive returns a new schedule. A step is a name and JSON-able arguments. :func:`replay_trace` repeats a trace on the
# same function and gives the same result, byte for byte.


TVM_METHODS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("get_block", "get_sblock"), "the name of the block, as in schedule.compute_inline('B')"),
        "get_loops": "schedule.loops_of('C'), which returns names",
        "mod": "schedule.func, or tir.to_text(schedule.func)",
        "show": "print(tir.to_text(schedule.func))",
        "sample_perfect_tile": "schedule.perfect_tiles(loop, n, max_innermost) in a microc.ScheduleRule, a schedule for each",
        **dict.fromkeys(
            ("sample_categorical", "sample_compute_location"), "a microc.ScheduleRule that returns all choices"
        ),
        "pad_einsum": "schedule.pad_reduction",
        **dict.fromkeys(("vectorise", "vectorized"), "schedule.vectorize"),
        **dict.fromkeys(
            ("get_producers", "get_consumers", "get_child_blocks"), "names: print(tir.to_text(schedule.func))"
        ),
        "copy": "schedule itself: steps return new schedules",
        "set_axis_separator": "schedule.transform_layout",
        "add_unit_loop": "schedule.split(loop, (None, 1))",
    }
)
"""Methods of TVM's schedules, and what takes their place."""


@dataclass(frozen=True, slots=True, repr=False)
class Schedule(Showable):
    """A TIR function, and the trace of schedule steps that produced it.

    Loops and blocks are addressed by name. New loops are named after the old ones: splitting ``k`` gives ``k_0`` and
    ``k_1``. ``rule``: name of the schedule rule that built the schedule. ``origin``: the function before all steps.
    ``refused``: steps that the rule tried in vain, with the error messages, for reports only."""

    func: ir.PrimFunc
    trace: tuple[Step, ...] = ()
    rule: str = ""
    origin: ir.PrimFunc | None = field(default=None, compare=False, repr=False)
    refused: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        require_function(self.func)
        if not self.trace:
            object.__setattr__(self, "func", with_unique_names(self.func))

    def __repr__(self) -> str:
        rule = f" by {self.rule}" if self.rule else ""
        return f"<Schedule of {self.func.name}{rule}, {len(self.trace)} steps>"

    if not TYPE_CHECKING:  # for type checkers, an unknown attribute is an error

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with what to write in place of a method of TVM's schedules. Known names do not come here."""
            instead = f"; write {TVM_METHODS[name]}" if name in TVM_METHODS else ""
            raise AttributeError(f"'Schedule' object has no attribute {name!r}{instead}", name=name, obj=self)

    def document(self) -> Document:
        """Return the text of the function as a document, for a notebook."""
        return document(Code(to_text(self.func)))

    @property
    def start(self) -> ir.PrimFunc:
        """The function to which the trace is applied."""
        return self.origin or self.func

    @property
    def packs_bits(self) -> bool:
        """True if some constants are stored in fewer bits than the dtype in which they are multiplied."""
        return any(map(storage.packs_constants, self.trace))

    def apply(self, primitive: str, *args: Any) -> Schedule:
        """Apply a primitive, given by name, to the function. Return the new schedule."""
        if primitive not in PRIMITIVES:
            raise ScheduleError(
                f"there is no primitive {primitive!r}", hint=known_names_hint(primitive, PRIMITIVES, "primitives")
            )
        frozen = tuple(freeze_argument(a) for a in args)
        check_arguments(primitive, frozen)
        if self.func.scalars and primitive not in SYMBOLIC_PRIMITIVES:
            names = ", ".join(scalar.name for scalar in self.func.scalars)
            raise ScheduleError(
                f"{primitive}: function {self.func.name} has symbolic extents; got the sizes {names}, expected constant "
                "extents",
                hint="give microc.build a Python function of the sizes, which schedules tir.specialize(func, sizes)",
            )
        func, step = PRIMITIVES[primitive](self.func, *frozen), Step(primitive, frozen)
        trace = (*self.trace, step)
        if any(s.primitive == "set_kind" and s.args[1:] == ("parallel",) for s in trace):
            func = loops.keep_private_slices(func, str(step))
        return replace(self, func=func, trace=trace, origin=self.start)

    def check_order(self) -> None:
        """Raise ScheduleError if a block reads a buffer in front of the first block that writes it, and did not before all steps.

        Between two steps this may be so: a consumer is moved first, and then the other producers of its operands."""
        early = find_early_reads(self.func)
        for reader, writer in sorted(early - find_early_reads(self.start) if early else early):
            raise ScheduleError(
                f"schedule of {self.func.name}: block {reader!r} is in front of block {writer!r}, whose result it reads",
                hint=f"compute_at({writer!r}, ...) or compute_inline it, too",
            )

    def split(self, loop: str, factors: tuple[int | None, ...]) -> Schedule:
        """Split ``loop`` into nested loops with the trip counts ``factors``, outermost first. One factor may be
        None; it becomes the least trip count with which all iterations are covered."""
        return self.apply("split", loop, factors)

    def tile(self, row: str, column: str, rows: int, columns: int) -> Schedule:
        """Tile two loops: split both, and reorder them to ``row_0, column_0, row_1, column_1``."""
        tiled = self.split(row, (None, rows)).split(column, (None, columns))
        return tiled.reorder(f"{row}_0", f"{column}_0", f"{row}_1", f"{column}_1")

    def fuse(self, *names: str) -> Schedule:
        """Fuse perfectly nested loops into one loop."""
        return self.apply("fuse", names)

    def reorder(self, *names: str) -> Schedule:
        """Nest the named loops in this order."""
        return self.apply("reorder", names)

    def unroll(self, loop: str) -> Schedule:
        """Unroll ``loop`` completely."""
        return self.apply("set_kind", loop, "unrolled")

    def vectorize(self, loop: str) -> Schedule:
        """Vectorise ``loop``. Loops that copy or fill bytes are changed to move words; other loops are left to the
        vectoriser of the C compiler, unless they are annotated."""
        return self.apply("set_kind", loop, "vectorized")

    def parallel(self, loop: str, *, private: bool = False) -> Schedule:
        """Run the iterations of ``loop`` in parallel: by the thread pool of ``threads=N``, else by OpenMP if the C
        compiler supports it.

        ``private``: True if each thread needs its own copy of the workspaces."""
        schedule = self.apply("annotate_loop", loop, PRIVATE, 1) if private else self
        return schedule.apply("set_kind", loop, "parallel")

    def distribute(self, loop: str, cores: int) -> Schedule:
        """Distribute the iterations of ``loop`` among the ``cores`` cores of a board; 2 is the only number.

        Each core runs a range of neighbouring iterations and has its own copy of the workspaces."""
        return self.apply("annotate_loop", loop, DISTRIBUTED, cores).apply("set_kind", loop, "parallel")

    def bind(self, loop: str, axis: str) -> Schedule:
        """Bind the iterations of ``loop`` to work groups of an OpenCL device (``blockIdx.x``, ``.y``, ``.z``) or to
        the work items of a group (``threadIdx.x`` ...)."""
        return self.apply("set_kind", loop, axis)

    def prefetch(self, loop: str) -> Schedule:
        """Double-buffer the copies to shared memory in ``loop``: the data of the next iteration are copied while the
        current iteration computes."""
        return self.apply("annotate_loop", loop, DOUBLE_BUFFER, 1)

    def annotate(self, where: str, key: str, value: int | str) -> Schedule:
        """Attach the annotation ``key`` with a value to the block or loop that is named ``where``."""
        primitive = "annotate_block" if has_block(self.func.body, where) else "annotate_loop"
        return self.apply(primitive, where, key, value)

    def rename_block(self, block: str, name: str) -> Schedule:
        """Rename ``block`` to ``name``."""
        return self.apply("rename_block", block, name)

    def compute_at(self, block: str, loop: str) -> Schedule:
        """Move the producer ``block`` into ``loop``, just before its consumers there. Each iteration computes the
        region that they read."""
        return self.apply("compute_at", block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> Schedule:
        """Move the elementwise consumer ``block`` into ``loop``, just after its producer there. Each iteration
        computes the region that the producer has just written."""
        return self.apply("reverse_compute_at", block, loop)

    def compute_inline(self, block: str) -> Schedule:
        """Replace every read of the result of ``block`` by the expression that computes it. Remove the block and its
        buffer."""
        return self.apply("compute_inline", block)

    def reverse_compute_inline(self, block: str) -> Schedule:
        """Inline the elementwise consumer ``block`` into its producer, which then stores the result of ``block``
        instead of its own."""
        return self.apply("reverse_compute_inline", block)

    def cache_read(self, block: str, buffer: str, scope: str) -> Schedule:
        """Let ``block`` read a copy of ``buffer`` in memory scope ``scope``. A new block ``<buffer>_<scope>`` before
        it makes the copy."""
        return self.apply("cache_read", block, buffer, scope)

    def cache_write(self, block: str, scope: str) -> Schedule:
        """Let ``block`` write to a new buffer ``<output>_<scope>`` in memory scope ``scope``. A new block of the
        same name copies that buffer to the output."""
        return self.apply("cache_write", block, scope)

    def set_scope(self, buffer: str, scope: str) -> Schedule:
        """Move an intermediate buffer to the memory scope ``workspace``, ``shared``, ``register``, ``local``, or to
        a tensor unit's memory."""
        return self.apply("set_scope", buffer, scope)

    def set_dtype(self, buffer: str, dtype: str) -> Schedule:
        """Store an integer buffer in a wider dtype, or a constant of floats in a 16-bit dtype that represents all
        its numbers exactly."""
        return self.apply("set_dtype", buffer, dtype)

    def transform_layout(
        self, buffer: str, factors: tuple[tuple[int | None, ...], ...], order: tuple[int, ...]
    ) -> Schedule:
        """Change the layout of ``buffer``: split every axis by its ``factors`` (outermost first), and arrange the
        resulting axes in ``order``."""
        return self.apply("transform_layout", buffer, factors, order)

    def packed(self, buffer: ir.Buffer, array: Array) -> Array:
        """Repack the data of a constant parameter into the layout that the scheduled function reads.

        ``buffer``: the parameter before scheduling."""
        return storage.repack_constant(array, buffer, ((step.primitive, step.args) for step in self.trace))

    def storage_align(self, buffer: str, axis: int, factor: int) -> Schedule:
        """Pad an axis of an intermediate buffer: round its extent up to a multiple of ``factor``."""
        return self.apply("storage_align", buffer, axis, factor)

    def pad_reduction(self, block: str) -> Schedule:
        """Remove the guard of a split that does not divide its loop, in the reduction ``block``: the superfluous
        iterations are computed, too, on padded operands."""
        return self.apply("pad_reduction", block)

    def decompose_padding(self, block: str) -> Schedule:
        """Split a ``block`` that pads its operand in two: one stores the padding value, the other copies the
        elements inside the border without a test."""
        return self.apply("decompose_padding", block)

    def defer_init(self, block: str) -> Schedule:
        """Initialise the int32 sum ``block`` with zero, and add its former initial value wherever the sum is read."""
        return self.apply("defer_init", block)

    def double_reduction(self, block: str, weight: str) -> Schedule:
        """Double the sums of ``block``, by doubling the constant ``weight`` that it multiplies by. Its readers then
        need no shift before a doubling high multiply."""
        return self.apply("double_reduction", block, weight)

    def decompose_reduction(self, block: str, loop: str) -> Schedule:
        """Move the initialisation of ``block`` into a block ``<block>_init`` before ``loop``, with a copy of the
        spatial loops inside ``loop``. ``block`` then only accumulates."""
        return self.apply("decompose_reduction", block, loop)

    def rfactor(self, block: str, loop: str) -> Schedule:
        """Compute partial reductions in a new block ``<block>_rf``, one for each iteration of ``loop``. ``block``
        then reduces the partial results."""
        return self.apply("rfactor", block, loop)

    def blockize(self, loop: str) -> Schedule:
        """Turn ``loop`` with its contents, which must be one block, into an outer block ``<block>_o``. Other
        primitives then move it as a whole."""
        return self.apply("blockize", loop)

    def tensorize(self, loop: str, intrin: str) -> Schedule:
        """Replace ``loop`` and the loops inside it by the tensor intrinsic ``intrin``."""
        return self.apply("tensorize", loop, intrin)

    def tensorize_pairs(self, weight: str, columns: str, reduction: str, dtype: str, woven: int = 1) -> Schedule:
        """Replace the loop ``columns`` (trip count 2) and the loop of 4 terms inside it by the intrinsic ``dot2``,
        which adds two 16-bit products. The constant weights are rearranged in pairs; ``woven`` pairs alternate."""
        return self.apply("tensorize_pairs", weight, columns, reduction, dtype, *((woven,) if woven > 1 else ()))

    def tensorize_taps(self, block: str, weight: str, axis: int) -> Schedule:
        """Multiply pairs of filter taps along an axis of constant weights by the intrinsic ``dot2``, which adds two
        16-bit products. The weights are stored as its 32-bit operands."""
        return self.apply("tensorize_taps", block, weight, axis)

    def pack_bits(self, weight: str, bits: int, order: str, block: int = 0, tables: int = 0) -> Schedule:
        """Store the rows of a constant int8 matrix in ``bits`` bits per element. All elements must fit."""
        more = (block, tables) if tables else (block,) if block else ()
        return self.apply("pack_bits", weight, bits, order, *more)

    def tensorize_bits(self, weight: str, loop: str, reduction: str, bits: int, block: int = 0) -> Schedule:
        """Replace ``loop``, over 2 terms of 16-bit activations, by the intrinsic ``dot2`` on weights that are stored
        in ``bits`` bits."""
        return self.apply("tensorize_bits", weight, loop, reduction, bits, *((block,) if block else ()))

    def tensorize_bit_columns(self, weight: str, columns: str, reduction: str) -> Schedule:
        """Replace the loop ``columns`` (trip count 4) and the loop of 2 terms inside it by the intrinsic ``dot2`` on
        shared weights."""
        return self.apply("tensorize_bit_columns", weight, columns, reduction)

    def apply_identities(self, *names: str) -> Schedule:
        """:func:`microc.schedule.primitives.selection.apply_identities`: replace the left sides of the identities
        ``names`` by their right sides."""
        return self.apply("apply_identities", names)

    def select_intrinsics(self, *names: str) -> Schedule:
        """:func:`microc.schedule.primitives.selection.select_intrinsics`: call the intrinsics ``names`` where
        their meanings occur."""
        return self.apply("select_intrinsics", names)

    def select_functions(self, *how: bool) -> Schedule:
        """Replace calls of ``erf``, ``exp``, ``expm1`` and ``tanh`` of float32 (and of ``log`` on request) by
        arithmetic."""
        return self.apply("select_functions", *how)

    def align_rows(self, buffer: str, align: int) -> Schedule:
        """Align the rows of a buffer in a tensor unit's memory to multiples of ``align`` bytes."""
        return self.apply("align_rows", buffer, align)

    def double_buffer(self, buffer: str, loop: str) -> Schedule:
        """Double-buffer a buffer in a tensor unit's memory: iterations of ``loop`` and of the loops around it use
        two slots alternately."""
        return self.apply("double_buffer", buffer, loop)

    def compile_with(self, flags: str) -> Schedule:
        """Compile the C function of this kernel alone with additional options of gcc."""
        return self.apply("compile_with", flags)

    def loops_of(self, block: str) -> tuple[str, ...]:
        """Return the names of the loops around a block, outermost first."""
        stmt = find_block(self.func.body, block, nested=True)
        return tuple(loop.var.name for loop in loops_around(self.func.body, stmt))

    def perfect_tiles(self, loop: str, count: int, max_innermost: int = 64) -> tuple[tuple[int, ...], ...]:
        """Return the factors by which :meth:`split` divides ``loop`` into ``count`` loops without remainder, all of them.

        The last factor is ``max_innermost`` at most. A rule that returns a schedule for each is a search space, from which
        TVM's ``sample_perfect_tile`` draws one."""
        return loops.list_perfect_tiles(self.func, loop, count, max_innermost)

    def has(self, block: str) -> bool:
        """Test whether the function has a block of this name."""
        return has_block(self.func.body, block)

    def named(self, rule: str) -> Schedule:
        """Return the schedule with the name for reports: the name of its schedule rule, with the rule's decisions."""
        return replace(self, rule=rule)

    def without(self, step: str, refusal: MicrocError) -> Schedule:
        """Return the schedule with a note that ``step`` was refused, and the reason. The function and the trace are
        unchanged."""
        return replace(self, refused=(*self.refused, f"{step}: {refusal.what}"))

    def renamed(self, name: str) -> Schedule:
        """Return the schedule with another name of its function."""
        return replace(self, func=replace(self.func, name=name))


def trace_to_json(trace: Iterable[Step]) -> str:
    """Format a trace as JSON, with one step on each line."""
    return "[" + ",\n ".join(json.dumps([step.primitive, *step.args]) for step in trace) + "]\n"


def trace_from_json(json_text: str) -> tuple[Step, ...]:
    """Parse a trace from the JSON that :func:`trace_to_json` writes. Raise ScheduleError for invalid text."""
    try:
        rows = json.loads(json_text)
        return tuple(map(parse_step, rows))
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ScheduleError(
            "the text of a schedule's trace is not a JSON list of steps", hint='write [["split", "k", [null, 4]], ...]'
        ) from error


def replay_trace(func: ir.PrimFunc, trace: Iterable[Step]) -> Schedule:
    """Apply all steps of a trace to ``func``. Return the schedule."""
    schedule = Schedule(func)
    for step in trace:
        schedule = schedule.apply(step.primitive, *step.args)
    return schedule


def replay_steps(func: ir.PrimFunc, trace: Iterable[Step]) -> Iterator[tuple[Step, ir.PrimFunc]]:
    """Apply the steps of a trace to ``func`` one by one. Yield each step with the function after the step."""
    schedule = Schedule(func)
    for step in trace:
        schedule = schedule.apply(step.primitive, *step.args)
        yield step, schedule.func


# ---- Adapt a trace to open sizes: tiles that leave a tail at some size become one wide


def generalise_trace(trace: Sequence[Step], func: ir.PrimFunc) -> tuple[Step, ...]:
    """Change a trace so that it applies to a function whose loops may have extents that depend on sizes, and leaves no tails.

    Such a loop is split by 1 if the split would not divide its extent at all sizes. Steps that need a fixed trip count
    (unrolling, copying by words) are dropped for it. Raise ScheduleError if the trace does not apply to the function."""
    schedule = Schedule(func)
    result = []
    for step in trace:
        if step.primitive in ("split", "set_kind"):
            extent = loop_extent(schedule.func, step.args[0])
            if isinstance(extent, Extent):
                if step.primitive == "set_kind":
                    continue
                loop, factors = step.args
                if not divide_exactly(extent, prod(f for f in factors if f)):
                    step = Step("split", (loop, (None, *(1 for _ in factors[1:]))))
        schedule = schedule.apply(step.primitive, *step.args)
        result.append(step)
    return tuple(result)
