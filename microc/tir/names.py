"""Names that two floors share, and the instructions of a tensor unit as calls."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from microc.tir import ir
from microc.tir.rewrite import walk_stmt

# ---- The names that two floors share: of blocks, which operators make and schedule rules look for, and of notes,
# which one floor leaves on a block or a loop and another reads.

ACC: Final = "acc"
"""A reduction: of a matrix product, a convolution, a pool."""
OUT: Final = "out"
"""The elementwise end, which stores a result once."""
PADDED: Final = "padded"
"""The input with its border."""
PATCH: Final = "patch"
"""im2col rows (P, K): the terms of a pixel, copied."""
COLUMNS: Final = "columns"
"""The right side of a product of two matrices that are data, copied along k."""
PAIRS: Final = "pairs"
"""Two pixels in a word, and the start of each block's sum; inputs as quads of weights are multiplied by them, likewise."""
ENTRY: Final = "entry"
COLUMN: Final = "column"
"""The inputs of a quad's columns."""
PART: Final = "part"
"""Sums of the blocks of terms, whose fields ``ACC`` adds up."""
HALVES: Final = "halves"
"""Sums of runs of terms in float16, which ``ACC`` adds up in float32."""
VALUE: Final = "value"
"""Sums taken from their fields."""
SCALED: Final = "scaled"
"""Sums of levels times the scale that these have."""
TILE: Final = "tile"
"""Winograd: transformed inputs; rows of products transformed back; outputs of a tile."""
ROWS: Final = "rows"
UNTILE: Final = "untile"

EXTERN: Final = "extern"
"""Note on a block: an operator wrote its loops. No stage is inlined into it, nor it into any."""
GROUPED: Final = "grouped"
"""Note on a product: for pixels p, groups, and channels o of a group."""
WINDOWS: Final = "windows"
"""Note on a convolution: windows slide over rows of an image."""
CHANNELS_FIRST: Final = "channels_first"
"""Note on a product: for channels o, and pixels p."""
SUM_BOUND: Final = "sum_bound"
"""Note on a product by constants: the largest magnitude of a sum with its bias; the smallest weight."""
SMALLEST_WEIGHT: Final = "smallest_weight"
WEIGHT_BITS: Final = "weight_bits"
WEIGHT_BLOCK: Final = "weight_block"
WEIGHT_TABLES: Final = "weight_tables"
"""Note on a product by constant bytes that are to be packed: the bits that hold them; the neighbours that share a multiplier,
of which no sum with data leaves the bits that a shift leaves (:mod:`microc.schedule.primitives.tensorize_bits`); the tables
that they index."""
OPENED: Final = "opened"
"""Note on a product of floats by constant bytes, which are levels of the weights (:mod:`microc.ops.matrix.gemm`)."""
BOUND: Final = "bound"
"""Note on an end: the largest magnitude of the integers that it scales; that of its float constants, if it reads no others."""
MAGNITUDE: Final = "magnitude"
TWO_ROUNDINGS: Final = "two_roundings"
"""Note on a sum of float products whose result is quantised: each product and each sum rounds, so that ties are the runtime's."""
PROMISES: Final = (SUM_BOUND, SMALLEST_WEIGHT, BOUND, MAGNITUDE)
"""Notes that tell of numbers in constants."""

FLAGS: Final = "flags"
"""Note on a function: options of gcc for it alone."""
LANES: Final = "lanes"
"""Note on a loop: so many iterations go side by side in vectors."""
SCALABLE: Final = "scalable"
"""Note on such a loop: a machine whose vectors are longer takes more iterations, and the last ones are no other code."""
FLOATS: Final = "floats"
"""Note on such a loop: the vectors may be of floats, too; 2 where a number for all lanes may be a factor, 3
where they may be stored as float16, too."""
STRIDED: Final = "strided"
"""Note on such a loop: the core copies elements that lie up to so far apart by vectors of short elements."""
MOVED: Final = "moved"
"""Note on a loop of copies: it looks, when it runs, whether whole words can be moved."""
PEEL: Final = "peel"
"""Note on a loop: 0 leaves a test in it that its first or last iterations would do without."""
PRODUCT: Final = "product"
"""Note on the loops of a product: one instruction's, over all terms."""
UNIT: Final = "unit"
"""Note on the loops of an instruction of a tensor unit: its word."""
WINDOW: Final = "window"
"""Note on the outermost loop of a window of halves: one instruction's, over all taps."""
GUARDED: Final = "guarded"
"""Note on a loop whose body is one test of data: it ends the turns, and holds until then."""
PRIVATE: Final = "private"
"""Note on a parallel loop of a few turns: each has workspaces of its own."""

DOUBLE_BUFFER: Final = "double_buffer"
"""Note on a loop of groups of items: what is copied for the next turn is copied while this one computes, into another half."""
LOOP_NOTES: Final = frozenset(
    {LANES, SCALABLE, FLOATS, STRIDED, MOVED, PEEL, PRODUCT, UNIT, WINDOW, PRIVATE, DOUBLE_BUFFER}
)
BLOCK_NOTES: Final = frozenset(
    {
        *(EXTERN, GROUPED, WINDOWS, CHANNELS_FIRST, SUM_BOUND, SMALLEST_WEIGHT, OPENED, BOUND, MAGNITUDE),
        *(WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES, TWO_ROUNDINGS),
    }
)


# ---- Instructions of a tensor unit as calls: which queue each waits in. Their meanings are in
# :mod:`microc.isa.vocabulary.matrix_products`.

LOAD, COMPUTE, STORE = 0, 1, 2
"""Queues, as tokens name them."""
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


def instruction(stmt: ir.Stmt) -> ir.Call | None:
    """The call of an instruction that works on memory, if the statement is one."""
    match stmt:
        case ir.Evaluate(ir.Call(name) as call) if name in QUEUES:
            return call
        case _:
            return None


def instructions(stmt: ir.Stmt) -> list[ir.Call]:
    """All such under a statement, as they are written."""
    return [call for s in walk_stmt(stmt) if (call := instruction(s)) is not None]
