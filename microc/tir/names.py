# SPDX-License-Identifier: Apache-2.0
"""Names of blocks and of annotations that several layers of the compiler share, and names of tensor unit instructions.

A *note* is an annotation, a (key, value) pair, of a block, loop or function. The constants below are the keys. A tensor unit is
a matrix accelerator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.rewrite import walk_stmt

# ---- Names of blocks, which operators create and schedule rules look for; and keys of notes (annotations), which one layer
# attaches to a block or loop and another layer reads.

SATURATED: Final = MappingProxyType(
    {"saturate_i8": (-128, 127), "saturate_u8": (0, 255), "saturate_i16": (-32768, 32767), "saturate_u15": (0, 32767)}
)
"""Result ranges of saturating intrinsics, by name. ``saturate_u15`` is the rectified result of an int16 layer."""
SHIFTED_SATURATIONS: Final = MappingProxyType(
    {f"{name}_shr_{distance}": (name, distance) for name in SATURATED for distance in range(1, 32)}
)
"""Saturating intrinsic and distance, by the name of the intrinsic that shifts right by this distance first."""
RESULT_RANGES: Final = MappingProxyType(
    {
        **SATURATED,
        **{name: SATURATED[saturation] for name, (saturation, _) in SHIFTED_SATURATIONS.items()},
        "clamp8": (-128, 127),
    }
)
"""Ranges of the results of intrinsics, by name, from which indices are proved."""
ACC: Final = "acc"
"""Name of the block that computes a reduction: a matrix product, a convolution or a pooling."""
OUT: Final = "out"
"""Name of the block that computes the elementwise epilogue and stores each result once."""
PADDED: Final = "padded"
"""Name of the block that copies the input and adds its padding."""
PATCH: Final = "patch"
"""Name of the block that computes im2col rows (P, K): the input elements that are multiplied for each output pixel."""
COLUMNS: Final = "columns"
"""Name of the block that copies the right operand of a product of two data matrices, so that it is contiguous along k."""
PAIRS: Final = "pairs"
"""Name of the block that packs two pixels into a word, or inputs into the form in which quads of weights multiply them."""
ENTRY: Final = "entry"
"""Name of the block that computes the words with which the sum of each block of terms starts."""
COLUMN: Final = "column"
"""Name of the block that reads the inputs of the columns of a quad of weights."""
PART: Final = "part"
"""Name of the block that sums blocks of terms in packed fields of a word (SWAR). The block :data:`ACC` adds these sums."""
HALVES: Final = "halves"
"""Name of the block that sums runs of terms in float16. The block :data:`ACC` adds these sums in float32."""
VALUE: Final = "value"
"""Name of the block that extracts sums from the packed fields of a word."""
SCALED: Final = "scaled"
"""Name of the block that multiplies sums of quantisation levels by the scale of the levels."""
TILE: Final = "tile"
"""Name of the block of a Winograd convolution that transforms the inputs of a tile."""
FILTER: Final = "filter"
"""Name of the block of a Winograd convolution that transforms weights at run time."""
ROWS: Final = "rows"
"""Name of the block of a Winograd convolution that transforms rows of products back."""
UNTILE: Final = "untile"
"""Name of the block of a Winograd convolution that computes the outputs of a tile."""

EXTERN: Final = "extern"
"""Note on a block whose loops an operator provides itself. The block is not inlined, and nothing is inlined into it."""
GROUPED: Final = "grouped"
"""Note on the block of a grouped product: its spatial iterators are pixels p, groups, and channels o of a group."""
WINDOWS: Final = "windows"
"""Note on the block of a convolution whose windows slide over rows of an image."""
CHANNELS_FIRST: Final = "channels_first"
"""Note on the block of a product whose spatial iterators are channels o, then pixels p."""
SUM_BOUND: Final = "sum_bound"
"""Note on a product by constants. Its value is the largest magnitude of a sum including the bias."""
SMALLEST_WEIGHT: Final = "smallest_weight"
"""Note on a product by constants. Its value is the smallest weight."""
WEIGHT_BITS: Final = "weight_bits"
"""Note on a product by constant bytes that are to be packed. Its value is the number of bits of a packed weight."""
WEIGHT_BLOCK: Final = "weight_block"
"""Note on a product by packed weights. Its value is the number of consecutive weights that share a multiplier. Sums of their
products with data must stay within the bits that a shift leaves (:mod:`microc.schedule.primitives.tensorize_bits`)."""
WEIGHT_TABLES: Final = "weight_tables"
"""Note on a product by packed weights that are indices into tables of values. Its value is the number of these tables."""
OPENED: Final = "opened"
"""Note on a product of floats by constant bytes, which are quantisation levels of the weights
(:mod:`microc.ops.matrix.gemm`)."""
BOUND: Final = "bound"
"""Note on an epilogue. Its value is the largest magnitude of the integers that the epilogue scales."""
MAGNITUDE: Final = "magnitude"
"""Note on an epilogue that reads no floats but constants. Its value is the largest magnitude of these constants."""
TWO_ROUNDINGS: Final = "two_roundings"
"""Note on a sum of float products whose result is quantised. Products and sums are rounded separately, so that ties are rounded
as in the reference runtime."""
PROMISES: Final = (SUM_BOUND, SMALLEST_WEIGHT, BOUND, MAGNITUDE)
"""Notes whose values are bounds of the numbers in constants."""

FLAGS: Final = "flags"
"""Note on a function. Its value is gcc options for this function alone."""
LANES: Final = "lanes"
"""Note on a loop. Its value is the number of iterations that run side by side in vector lanes."""
SCALABLE: Final = "scalable"
"""Note on a ``lanes`` loop for scalable vectors: longer vectors run more iterations at once, and the remainder needs no code of
its own."""
FLOATS: Final = "floats"
"""Note on a ``lanes`` loop. Its value 1 allows vectors of floats, 2 also products with a scalar, 3 also stores as float16."""
STRIDED: Final = "strided"
"""Note on a ``lanes`` loop. Its value is the largest stride at which the core copies elements of 8 or 16 bits by vectors."""
LANE_FORMS: Final = "lane_forms"
"""Note on a ``lanes`` or ``vectorized`` loop. Its value names the scalar intrinsics that the core computes in lanes, too, with
spaces between them; for lanes narrower than int32 also :data:`LANE_OPERATIONS`.
``add=acme_add``: the intrinsic ``acme_add`` computes the operation ``add``, instead of ``add_i16x4``."""
MOVED: Final = "moved"
"""Note on a copy loop for which a test is generated that decides at run time whether whole words can be copied."""
PEEL: Final = "peel"
"""Note on a loop. The value 0 forbids peeling its first or last iterations to remove a test."""
PRODUCT: Final = "product"
"""Note on the loops of a matrix product whose terms are all computed by one instruction."""
UNIT: Final = "unit"
"""Note on loops that one instruction of a tensor unit replaces. Its value is the name of the instruction."""
WINDOW: Final = "window"
"""Note on the outermost loop over a convolution window of float16 whose taps are all computed by one instruction."""
GUARDED: Final = "guarded"
"""Note on a loop whose body is a single branch on data. The condition holds until it fails for the first time, which ends the
loop."""
PRIVATE: Final = "private"
"""Note on a parallel loop of few iterations, each of which has workspaces of its own."""
DISTRIBUTED: Final = "cores"
"""Note on a parallel loop. Its value is the number of cores among which lowering distributes the iterations. Each core has
workspaces of its own (:mod:`microc.tir.lower.loop_splitting`)."""

DOUBLE_BUFFER: Final = "double_buffer"
"""Note on a loop in a work group. While an iteration computes, the data of the next iteration are copied to the other half of
a buffer."""
LOOP_NOTES: Final = frozenset(
    {
        LANES,
        SCALABLE,
        FLOATS,
        STRIDED,
        LANE_FORMS,
        MOVED,
        PEEL,
        PRODUCT,
        UNIT,
        WINDOW,
        PRIVATE,
        DISTRIBUTED,
        DOUBLE_BUFFER,
    }
)


BLOCK_NOTES: Final = frozenset(
    {
        *(EXTERN, GROUPED, WINDOWS, CHANNELS_FIRST, SUM_BOUND, SMALLEST_WEIGHT, OPENED, BOUND, MAGNITUDE),
        *(WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES, TWO_ROUNDINGS),
    }
)


# ---- Lanes: numbers side by side in a register, which one instruction computes. Names of intrinsics end in their lanes:
# ``average_u8x4``, ``add_i32xvscale16``.

SUFFIXES: Final = MappingProxyType(
    {"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "float32": "f32"}
)
"""Suffixes of the names of intrinsics, by the dtype of the numbers."""
_LANES = re.compile(f"({'|'.join(SUFFIXES.values())})x(vscalex)?([1-9][0-9]?)")


LANE_OPERATORS: Final = MappingProxyType(
    {
        "add": "add",
        "sub": "sub",
        "mul": "mul",
        "min": "min",
        "max": "max",
        "bitand": "and",
        "bitor": "or",
        "bitxor": "xor",
    }
)
"""Names of the intrinsics that compute integer operators in lanes."""
LANE_OPERATIONS: Final = (*LANE_OPERATORS.values(), "load", "store", "dup")
"""Names of the operations in vectors of lanes narrower than int32; ``dup`` sets all lanes to a number."""


@frozen
class Lanes:
    """The lanes of a register: ``count`` numbers of ``dtype``. A ``scalable`` register has that many or a multiple."""

    dtype: str
    count: int
    scalable: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of the intrinsics in these lanes."""
        return f"{SUFFIXES[self.dtype]}x{'vscalex' if self.scalable else ''}{self.count}"

    @property
    def is_word(self) -> bool:
        """True if the numbers are packed in the 32 bits of a general register (SWAR)."""
        return self.count * dtypes.nbytes(self.dtype) == 4 and not self.scalable

    @property
    def is_narrow(self) -> bool:
        """True if the lanes are narrower than int32, so that their results wrap around and loads do not widen."""
        return dtypes.nbytes(self.dtype) < 4

    @property
    def register_dtype(self) -> str:
        """The dtype of the register."""
        return "int32" if self.is_word else f"{self.dtype}x{'vscalex' if self.scalable else ''}{self.count}"


WORD_LANES: Final = (Lanes("int16", 2), Lanes("int8", 4), Lanes("uint8", 4))
"""The lanes of words for which the vocabulary has intrinsics."""


@lru_cache(maxsize=256)
def parse_lanes(suffix: str) -> Lanes | None:
    """Return the lanes that a suffix names, such as ``i16x4``; None for other text, and for registers below 32 bits."""
    match = _LANES.fullmatch(suffix)
    if match is None:
        return None
    dtype = next(dtype for dtype, abbreviation in SUFFIXES.items() if abbreviation == match[1])
    lanes = Lanes(dtype, int(match[3]), bool(match[2]))
    return lanes if lanes.count > 1 and lanes.count * dtypes.nbytes(dtype) >= 4 else None


def lanes_of(loop: ir.For) -> tuple[Lanes, ...]:
    """Return the lanes in which a loop computes: vectors of integers and of floats, the lanes that its note :data:`LANES` names,
    or a word of what a ``vectorized`` loop stores last. Empty for a loop without lanes."""
    notes = dict(loop.annotations)
    if LANES in notes:
        own = parse_lanes(str(notes[LANES]))
        if own is not None:
            return (own,)
        return tuple(Lanes(dtype, int(notes[LANES]), SCALABLE in notes) for dtype in ("int32", "float32"))
    stores = [s for s in walk_stmt(loop.body) if isinstance(s, ir.Store)] if loop.kind == "vectorized" else []
    return tuple(word for word in WORD_LANES if stores and word.dtype == stores[-1].buffer.dtype)


def lane_forms(loop: ir.For) -> Mapping[str, str]:
    """Return the operations that the core also computes in the lanes of a loop (:data:`LANE_FORMS`), each with the name of the
    intrinsic, which is empty if it consists of the operation and the lanes."""
    forms = str(dict(loop.annotations).get(LANE_FORMS, "")).split()
    return {operation: name for operation, _, name in (form.partition("=") for form in forms)}


# ---- Instructions of a tensor unit (matrix accelerator) as calls, and the queue in which each instruction waits. Their
# semantics is defined in :mod:`microc.isa.vocabulary.matrix_products`.

LOAD, COMPUTE, STORE = 0, 1, 2
"""Numbers of a tensor unit's instruction queues, as arguments of signals and waits."""
SIGNAL, WAIT, BARRIER = "unit_signal", "unit_wait", "unit_barrier"
QUEUES = MappingProxyType(
    {
        "unit_load_input": LOAD,
        "unit_load_weight": LOAD,
        "unit_load_sums": COMPUTE,
        "unit_set": COMPUTE,
        "unit_matmul": COMPUTE,
        "unit_store_sums": STORE,
    }
)


def match_unit_instruction(stmt: ir.Stmt) -> ir.Call | None:
    """Return the call if a statement is a tensor unit instruction that waits in one of the :data:`QUEUES`; else None."""
    match stmt:
        case ir.Evaluate(ir.Call(name) as call) if name in QUEUES:
            return call
        case _:
            return None


def collect_unit_instructions(stmt: ir.Stmt) -> list[ir.Call]:
    """Return the calls of all tensor unit instructions in a statement and its sub-statements, in order."""
    return [call for s in walk_stmt(stmt) if (call := match_unit_instruction(s)) is not None]
