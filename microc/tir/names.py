"""Names that several layers share (blocks, notes), and the instructions of a tensor unit."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from microc.tir import ir
from microc.tir.rewrite import walk_stmt

# ---- Names shared by layers: names of blocks, which operators create and schedule rules look for; and notes, which one
# layer attaches to a block or loop and another reads.

SATURATED: Final = MappingProxyType(
    {"saturate_i8": (-128, 127), "saturate_u8": (0, 255), "saturate_i16": (-32768, 32767)}
)
"""Ranges of saturating intrinsics; ``_half`` behind a name shifts right by one first."""
ACC: Final = "acc"
"""Block: a reduction, of a matrix product, a convolution, a pool."""
OUT: Final = "out"
"""Block: the elementwise epilogue, which stores a result once."""
PADDED: Final = "padded"
"""Block: the input with its border."""
PATCH: Final = "patch"
"""Block: im2col rows (P, K), the copied terms of a pixel."""
COLUMNS: Final = "columns"
"""Block: the right operand of a product of two data matrices, copied along k."""
PAIRS: Final = "pairs"
"""Block: two pixels in a word, or inputs in the form in which quads of weights multiply them."""
ENTRY: Final = "entry"
"""Block: the start of each block's sum."""
COLUMN: Final = "column"
"""Block: the inputs of a quad's columns."""
PART: Final = "part"
"""Block: sums of blocks of terms, packed in fields, which ``ACC`` adds."""
HALVES: Final = "halves"
"""Block: sums of runs of terms in float16, which ``ACC`` adds in float32."""
VALUE: Final = "value"
"""Block: sums extracted from their fields."""
SCALED: Final = "scaled"
"""Block: sums of levels, multiplied by the scale of these."""
TILE: Final = "tile"
"""Blocks of Winograd convolutions: transformed inputs (this), rows of products transformed back, outputs of a tile."""
ROWS: Final = "rows"
UNTILE: Final = "untile"

EXTERN: Final = "extern"
"""Note on a block: an operator provides its loops. It is not inlined, and nothing is inlined into it."""
GROUPED: Final = "grouped"
"""Note on a product: for pixels p, groups, and channels o of a group."""
WINDOWS: Final = "windows"
"""Note on a convolution: windows slide over rows of an image."""
CHANNELS_FIRST: Final = "channels_first"
"""Note on a product: for channels o, and pixels p."""
SUM_BOUND: Final = "sum_bound"
"""Note on a product by constants: largest magnitude of a sum with its bias."""
SMALLEST_WEIGHT: Final = "smallest_weight"
"""Note on a product by constants: the smallest weight."""
WEIGHT_BITS: Final = "weight_bits"
"""Note on a product by constant bytes that are to be packed: bits of a packed weight."""
WEIGHT_BLOCK: Final = "weight_block"
"""Note on such a product: consecutive weights that share a multiplier; their sums with data must stay within the
bits that a shift leaves (:mod:`microc.schedule.primitives.tensorize_bits`)."""
WEIGHT_TABLES: Final = "weight_tables"
"""Note on such a product: number of tables of values that the weights index."""
OPENED: Final = "opened"
"""Note on a product of floats by constant bytes, which are quantisation levels of the weights
(:mod:`microc.ops.matrix.gemm`)."""
BOUND: Final = "bound"
"""Note on an epilogue: largest magnitude of the integers that it scales."""
MAGNITUDE: Final = "magnitude"
"""Note on an epilogue: largest magnitude of its float constants, if it reads no other floats."""
TWO_ROUNDINGS: Final = "two_roundings"
"""Note on a sum of float products whose result is quantised: products and sums round separately, so that ties round
as in the reference runtime."""
PROMISES: Final = (SUM_BOUND, SMALLEST_WEIGHT, BOUND, MAGNITUDE)
"""Notes that state bounds of numbers in constants."""

FLAGS: Final = "flags"
"""Note on a function: gcc options for this function alone."""
LANES: Final = "lanes"
"""Note on a loop: number of iterations that run side by side in vector lanes."""
SCALABLE: Final = "scalable"
"""Note on a ``lanes`` loop: longer vectors take more iterations, and the tail needs no code of its own."""
FLOATS: Final = "floats"
"""Note on a ``lanes`` loop: 1 allows vectors of floats, 2 also a scalar factor for all lanes, 3 also storing them as
float16."""
STRIDED: Final = "strided"
"""Note on a ``lanes`` loop: largest distance of elements of 8 or 16 bits that the core copies by vectors."""
MOVED: Final = "moved"
"""Note on a loop that copies: it tests at run time whether whole words can be copied."""
PEEL: Final = "peel"
"""Note on a loop: 0 keeps a test in it that peeling its first or last iterations would remove."""
PRODUCT: Final = "product"
"""Note on the loops of a product: one instruction computes all terms."""
UNIT: Final = "unit"
"""Note on the loops of a tensor unit's instruction: the name of that instruction."""
WINDOW: Final = "window"
"""Note on the outermost loop of a window of float16: one instruction computes all taps."""
GUARDED: Final = "guarded"
"""Note on a loop whose body is one test of data: the loop ends when it fails, and the test holds until then."""
PRIVATE: Final = "private"
"""Note on a parallel loop of a few iterations: each has workspaces of its own."""

DOUBLE_BUFFER: Final = "double_buffer"
"""Note on a loop of groups of items: while one iteration computes, data for the next one is copied to the other half
of a buffer."""
LOOP_NOTES: Final = frozenset(
    {LANES, SCALABLE, FLOATS, STRIDED, MOVED, PEEL, PRODUCT, UNIT, WINDOW, PRIVATE, DOUBLE_BUFFER}
)
BLOCK_NOTES: Final = frozenset(
    {
        *(EXTERN, GROUPED, WINDOWS, CHANNELS_FIRST, SUM_BOUND, SMALLEST_WEIGHT, OPENED, BOUND, MAGNITUDE),
        *(WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES, TWO_ROUNDINGS),
    }
)


# ---- Instructions of a tensor unit as calls, and the queue that each waits in. Their meanings are defined in
# :mod:`microc.isa.vocabulary.matrix_products`.

LOAD, COMPUTE, STORE = 0, 1, 2
"""Numbers of the queues in tokens."""
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


def unit_instruction(stmt: ir.Stmt) -> ir.Call | None:
    """Return the call if a statement is a tensor unit's instruction that accesses memory; else None."""
    match stmt:
        case ir.Evaluate(ir.Call(name) as call) if name in QUEUES:
            return call
        case _:
            return None


def unit_instructions(stmt: ir.Stmt) -> list[ir.Call]:
    """Return all calls of a tensor unit's instructions under a statement, in order."""
    return [call for s in walk_stmt(stmt) if (call := unit_instruction(s)) is not None]
