# SPDX-License-Identifier: Apache-2.0
"""Intrinsics on matrices: small matrix products, requantisation of sums, convolution windows, correlations, instructions of
tensor units."""

from __future__ import annotations

import itertools
from functools import cache

from microc.base import dtypes
from microc.isa.instruction_set import ANY, Intrin, IntrinsicStep, StepOperand, TensorIntrin, int32_constant
from microc.isa.vocabulary.vector_lanes import build_doubling_high_mul, build_rounding_shift, build_wrapping_operation
from microc.tir import ir
from microc.tir.bit_fields import FEW, VECTOR, BitFields
from microc.tir.ir import Buffer, Expr, Stmt, Var
from microc.tir.lower.lane_code import NARROWING_DISTANCES
from microc.tir.lower.matrix_intrinsics import JOINED_DEPTHS, JOINED_ROWS
from microc.tir.lower.unit_lowering import MAX_ROWS, requantisation_name, twice_rounding_name
from microc.tir.names import BARRIER, SIGNAL, WAIT

# ---- Products of small matrices: rows of activations by rows of weights
#
# ``dot_<a>_<b>_<R>x<C>`` stores as R x C sums in memory the dot products of R rows of ``a`` with C rows of ``b``; the sums of a
# single row begin with the numbers at ``start``, perhaps themselves. Strides that a single row or column does not need are no
# parameters. Weights ``i4`` and ``i2`` are numbers of four or two bits, 16 of which are in the lowest fields of 16 bytes
# (:class:`~microc.tir.bit_fields.BitFields`); ``depth`` is a multiple of the weights in 16 bytes, ``stride_b`` counts bytes.
#
# ``row_i8_i8_<depth>`` multiplies one row of ``depth`` bytes by ``columns`` contiguous rows of weights, an even number.
# ``rows_i8_i8_<R>_<depth>`` does so with R rows; their sums begin with zero.

_SHORT = {"int8": "i8", "uint8": "u8", "int16": "i16"}
BITS = {f"int{bits}": BitFields(bits, VECTOR) for bits in FEW}
"""Formats of bit-packed weights, by dtype."""
_TILES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
_TALL_TILES = ((2, 3), (3, 1), (3, 2))
"""Additional (rows, columns) of the products of bytes."""
PRODUCT_SHAPES = tuple(
    (a, b, *tile)
    for a, b in (
        *(("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16")),
        *(("int8", few) for few in BITS),
    )
    for tile in (*_TILES, *(_TALL_TILES if a == "int8" and b != "int16" else ()))
)
"""Small products that exist: (dtype of a, dtype of b, rows, columns)."""
ROW_DEPTHS = tuple(range(16, 129, 16))
"""Lengths of a row of bytes for which there is an intrinsic that multiplies it by any even number of rows of
weights."""

ROWS_SHAPES = tuple((rows, depth) for rows in JOINED_ROWS for depth in JOINED_DEPTHS)
"""(rows, depth) of the intrinsics that multiply several rows by any even number of rows of weights."""


def product_name(a_dtype: str, b_dtype: str, rows: int, columns: int) -> str:
    """Return the name of the intrinsic for a matrix product with ``rows`` by ``columns`` sums, of operands of dtypes
    ``a_dtype`` and ``b_dtype``."""
    return f"dot_{_SHORT[a_dtype]}_{f'i{BITS[b_dtype].bits}' if b_dtype in BITS else _SHORT[b_dtype]}_{rows}x{columns}"


def _build_product_meaning(
    a: Buffer, b: Buffer, packing: BitFields | None, start: Buffer, sums: Buffer, rows: int, columns: int
) -> ir.Stmt:
    """Build the TIR semantics of a small matrix product: sums[r, c] += a[r, k] * b[c, k] for k below
    ``depth``. The sums begin with start[c] if there is a single row, else with zero."""
    k = Var("k")
    body, first = [], []
    for r, c in itertools.product(range(rows), range(columns)):
        index = (Var("stride_sums") * r + c if r else int32_constant(c),)
        left = a[Var("stride_a") * r + k if r else k].astype("int32")
        right = _build_unpacked_weight(b, Var("stride_b") * c if c else int32_constant(0), k, packing)
        first.append(ir.Store(sums, index, start[c] if rows == 1 else int32_constant(0)))
        body.append(ir.Store(sums, index, ir.Load(sums, index) + left * right))
    return ir.seq(*first, ir.For(k, Var("depth"), ir.seq(*body)))


def _build_unpacked_weight(b: Buffer, row_start: Expr, k: Var, packing: BitFields | None) -> Expr:
    """Build the expression of weight ``k`` of the row that starts at element ``row_start``. If ``packing`` is given,
    the weight is unpacked from its bit fields."""
    if packing is None:
        return b[row_start + k if ir.int_value(row_start) is None else k].astype("int32")
    element, bit = packing.element_and_bit(k)
    return packing.unpack_number(b[row_start + element if ir.int_value(row_start) is None else element], bit)


def _build_product_intrinsic(a_dtype: str, b_dtype: str, rows: int, columns: int) -> Intrin:
    """Build the intrinsic of a matrix product with ``rows`` by ``columns`` sums, of operands of dtypes ``a_dtype`` and
    ``b_dtype``."""
    packing = BITS.get(b_dtype)
    left, right = Buffer("a", (ANY,), a_dtype), Buffer("b", (ANY,), packing.dtype if packing else b_dtype)
    start, sums = (Buffer(name, (ANY,), "int32") for name in ("start", "sums"))
    numbers = {"depth": True, "stride_a": rows > 1, "stride_b": columns > 1, "stride_sums": rows > 1}
    params = (
        left,
        right,
        *((start,) if rows == 1 else ()),
        sums,
        *(Var(name) for name, is_parameter in numbers.items() if is_parameter),
    )
    return Intrin(
        product_name(a_dtype, b_dtype, rows, columns),
        params,
        _build_product_meaning(left, right, packing, start, sums, rows, columns),
    )


def row_product_name(depth: int) -> str:
    """Return the name of the intrinsic that multiplies a row of ``depth`` bytes by many rows of weights."""
    return f"row_i8_i8_{depth}"


def _build_row_product_intrinsic(depth: int) -> Intrin:
    """Build the intrinsic that multiplies a row of ``depth`` bytes by many rows of weights."""
    c, k, columns = Var("c"), Var("k"), Var("columns")
    a, b = Buffer("a", (ANY,), "int8"), Buffer("b", (ANY,), "int8")
    start, sums = (Buffer(name, (ANY,), "int32") for name in ("start", "sums"))
    product = a[k].astype("int32") * b[c * depth + k].astype("int32")
    terms = ir.For(k, int32_constant(depth), ir.Store(sums, (c,), sums[c] + product))
    body = ir.For(c, columns, ir.seq(ir.Store(sums, (c,), start[c]), terms))
    return Intrin(row_product_name(depth), (a, b, start, sums, columns), body)


def rows_product_name(rows: int, depth: int) -> str:
    """Return the name of the intrinsic that multiplies ``rows`` rows of ``depth`` bytes by many rows of weights."""
    return f"rows_i8_i8_{rows}_{depth}"


def _build_rows_product_intrinsic(rows: int, depth: int) -> Intrin:
    """Build the intrinsic that multiplies ``rows`` rows of ``depth`` bytes by many rows of weights."""
    c, k, columns, stride_a, stride_sums = (Var(name) for name in ("c", "k", "columns", "stride_a", "stride_sums"))
    a, b = Buffer("a", (ANY,), "int8"), Buffer("b", (ANY,), "int8")
    sums = Buffer("sums", (ANY,), "int32")
    body = []
    for r in range(rows):
        place, start = ((stride_sums * r + c,), stride_a * r + k) if r else ((c,), k)
        product = a[start].astype("int32") * b[c * depth + k].astype("int32")
        terms = ir.For(k, int32_constant(depth), ir.Store(sums, place, ir.Load(sums, place) + product))
        body += [ir.Store(sums, place, int32_constant(0)), terms]
    params = (a, b, sums, columns, stride_a, stride_sums)
    return Intrin(rows_product_name(rows, depth), params, ir.For(c, columns, ir.seq(*body)))


PRODUCTS = (
    *(_build_product_intrinsic(*shape) for shape in PRODUCT_SHAPES),
    *map(_build_row_product_intrinsic, ROW_DEPTHS),
    *(_build_rows_product_intrinsic(*shape) for shape in ROWS_SHAPES),
)


# ---- Requantisation of rows of sums to bytes
#
# ``requantize_<t>_rshr_<n>_<R>`` requantises R rows of ``columns`` sums, a multiple of eight. For row r and column c
#
#     out[r, c] = saturate(high_word((addend[c] + sums[r, c] * factor) * multiplier[c]) >> n, rounded half up)
#
# Sums and addends wrap around. A single row needs no strides, which then are no parameters.
#
# ``requantize_<t>_twice`` requantises one row of ``columns`` sums, a multiple of 16, by one factor:
#
#     out[c] = saturate((rounded high word of 2 * sums[c] * multiplier, shifted by ``shift`` < 0 and rounded) + zero_point)
#
# ``_away`` subtracts 1 from the high words of negative sums before they are shifted, which rounds half away from zero.


def _build_requantisation(dtype: str, distance: int, rows: int) -> Intrin:
    """Build the intrinsic that requantises ``rows`` rows. ``distance``: bits by which the high words are shifted to the
    right."""
    out = Buffer("out", (ANY,), dtype)
    sums, addend, multiplier = (Buffer(name, (ANY,), "int32") for name in ("sums", "addend", "multiplier"))
    columns, factor, c = Var("columns"), Var("factor"), Var("c")
    strides = (Var("stride_out"), Var("stride_sums")) if rows > 1 else ()
    stores = []
    for r in range(rows):
        place, source = (stride * r + c if r else c for stride in strides or (c, c))
        operand = build_wrapping_operation("add", addend[c], build_wrapping_operation("mul", sums[source], factor))
        high = ((operand.astype("int64") * multiplier[c].astype("int64")) >> 32).astype("int32")
        rounded = ((high >> (distance - 1)) + 1) >> 1
        clamped = ir.clamp(rounded, *dtypes.int_range(dtype))
        stores.append(ir.Store(out, (place,), ir.cast(dtype, clamped)))
    params = (out, sums, addend, multiplier, columns, factor, *strides)
    return Intrin(requantisation_name(_SHORT[dtype], distance, rows), params, ir.For(c, columns, ir.seq(*stores)))


REQUANTISATIONS = tuple(
    _build_requantisation(dtype, distance, rows)
    for dtype in ("int8", "uint8")
    for distance in NARROWING_DISTANCES
    for rows in range(1, MAX_ROWS + 1)
)


def _build_twice_rounding(dtype: str, *, away: bool) -> Intrin:
    """Build the intrinsic that requantises a row by one factor, and rounds twice."""
    out, sums = Buffer("out", (ANY,), dtype), Buffer("sums", (ANY,), "int32")
    columns, multiplier, shift, zero_point, c = (Var(n) for n in ("columns", "multiplier", "shift", "zero_point", "c"))
    high = build_doubling_high_mul(sums[c], multiplier)
    if away:
        high = high + (sums[c] >> 31)
    clamped = ir.clamp(build_rounding_shift(high, shift) + zero_point, *dtypes.int_range(dtype))
    body = ir.For(c, columns, ir.Store(out, (c,), ir.cast(dtype, clamped)))
    return Intrin(
        twice_rounding_name(_SHORT[dtype], away=away), (out, sums, columns, multiplier, shift, zero_point), body
    )


TWICE_ROUNDINGS = tuple(
    _build_twice_rounding(dtype, away=away) for dtype in ("int8", "uint8") for away in (False, True)
)


# ---- Products of small matrices of float16, added to sums of float32
#
# ``half_product_<R>x<V>`` adds to R rows of V * 8 sums the products of R rows of ``a`` and of V * 8 columns of ``b``. The
# ``depth`` terms are divided in ``runs`` of equal length: the terms of a run are summed in float16, each with one rounding, the
# runs in float32. ``b`` has the columns of a term side by side; of every eight, the first four are in the even lanes, the other
# four in the odd ones, since instructions widen the even or the odd halves of a vector.

HALF_PRODUCTS_LANES = 8
"""Number of columns in a vector."""
HALF_SHAPES = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1))
"""(rows, vectors of columns) of the float16 products that exist. Up to six vectors of sums fit the registers
together with two vectors of weights."""


def float16_product_name(rows: int, vectors: int) -> str:
    """Return the name of the intrinsic for a float16 matrix product of ``rows`` rows by ``vectors`` vectors of
    columns."""
    return f"half_product_{rows}x{vectors}"


def _build_float16_product_intrinsic(rows: int, vectors: int) -> Intrin:
    """Build the intrinsic of a float16 matrix product of ``rows`` rows by ``vectors`` vectors of columns."""
    a, b = (Buffer(name, (ANY,), "float16") for name in "ab")
    sums, total = Buffer("sums", (ANY,), "float32"), Buffer("total", (1,), "float16", "register")
    depth, runs, stride = Var("depth"), Var("runs"), Var("stride_a")
    row, vector, odd, lane, run, k = (Var(name) for name in ("row", "vector", "odd", "lane", "run", "k"))
    terms, first = ir.Bin("truncdiv", depth, runs), (ir.const(0, "int32"),)
    term = run * terms + k
    index = (row * (vectors * HALF_PRODUCTS_LANES) + vector * HALF_PRODUCTS_LANES + odd * 4 + lane,)
    left = a[row * stride + term if rows > 1 else term]
    right = b[term * (vectors * HALF_PRODUCTS_LANES) + vector * HALF_PRODUCTS_LANES + lane * 2 + odd]
    sum_run = ir.For(k, terms, ir.Store(total, first, ir.call("fma", left, right, total[0])))
    add_run = ir.Store(sums, index, ir.Load(sums, index) + ir.cast("float32", total[0]))
    body = ir.Alloc(total, ir.seq(ir.Store(total, first, ir.const(0.0, "float16")), sum_run, add_run))
    nest = ir.loops(((row, rows), (vector, vectors), (odd, 2), (lane, 4)), ir.For(run, runs, body))
    params = (a, b, sums, depth, runs, *((stride,) if rows > 1 else ()))
    return Intrin(float16_product_name(rows, vectors), params, nest)


def _build_float16_array_intrinsics() -> tuple[Intrin, Intrin]:
    """Build two intrinsics on n contiguous elements: one rounds float32 to float16, the other stores float16 zeros."""
    p, q, n, k = Buffer("p", (ANY,), "float16"), Buffer("q", (ANY,), "float32"), Var("n"), Var("k")
    narrowed, zero = ir.Store(p, (k,), ir.cast("float16", q[k])), ir.Store(p, (k,), ir.const(0.0, "float16"))
    return Intrin("narrow_f32_f16", (p, q, n), ir.For(k, n, narrowed)), Intrin("zero_f16", (p, n), ir.For(k, n, zero))


HALF_RUNS = _build_float16_array_intrinsics()
HALF_PRODUCTS = tuple(_build_float16_product_intrinsic(*shape) for shape in HALF_SHAPES)


# ---- Windows that slide over a row of pixels of float16, eight channels at once
#
# ``half_window_<S>_<X>`` stores, for X neighbouring outputs of stride S, the sums of ``rows`` by three products of pixels ``a``
# by taps ``b``; every product is added in float16 with one rounding. The distance of pixels and of taps is ``step`` elements,
# that of rows of ``a`` is ``row_step``.

HALF_WINDOWS_LANES, TAPS = 8, 3
"""Number of channels in a vector, and number of taps in a filter row."""
HALF_WINDOWS = tuple((stride, pixels) for stride in (1, 2) for pixels in (1, 2, 3, 4))
"""(stride, output pixels) of the windows that exist."""


def float16_window_name(stride: int, pixels: int) -> str:
    """Return the name of the intrinsic for a float16 convolution window of ``pixels`` output pixels at ``stride``."""
    return f"half_window_{stride}_{pixels}"


def _build_float16_window_intrinsic(stride: int, pixels: int) -> Intrin:
    """Build the intrinsic of a float16 convolution window of ``pixels`` output pixels at ``stride``."""
    a, b, sums = (Buffer(name, (ANY,), "float16") for name in ("a", "b", "sums"))
    rows, row_step, step = Var("rows"), Var("row_step"), Var("step")
    pixel, lane, row, tap = (Var(name) for name in ("pixel", "lane", "row", "tap"))
    index = (pixel * HALF_WINDOWS_LANES + lane,)
    left, right = a[row * row_step + (pixel * stride + tap) * step + lane], b[(row * TAPS + tap) * step + lane]
    update = ir.Store(sums, index, ir.call("fma", left, right, ir.Load(sums, index)))
    init = ir.Store(sums, index, ir.const(0.0, "float16"))
    taps = ir.For(row, rows, ir.loops(((tap, TAPS),), update))
    nest = ir.loops(((pixel, pixels), (lane, HALF_WINDOWS_LANES)), ir.seq(init, taps))
    return Intrin(float16_window_name(stride, pixels), (a, b, sums, rows, row_step, step), nest)


WINDOWS = tuple(_build_float16_window_intrinsic(*shape) for shape in HALF_WINDOWS)


# ---- Correlations along a row of 16-bit numbers by ``dot2``: several outputs from one pass over the row
#
# ``correlate_<outputs>x<taps>_s<stride>`` replaces the loops of ``c[n] += a[n * stride + k] * b[k]``. The row is read by aligned
# words: an output that starts at an even element multiplies whole pairs, with its odd last element apart; one that
# starts at an odd element has its first element apart. Two neighbours of three taps take two loads and four multiplications:
#
#     row words (x0, x1), (x2, x3); weight words (w0, w1), (w1, w2)
#     c0 += x0 w0 + x1 w1 (dot2) + x2 w2 (mac_low_high)     c1 += x1 w0 (mac_high_low) + x2 w1 + x3 w2 (dot2)
#
# A single tap (of a dilated row) multiplies both halves of words that start at any element.

MOST_TAPS = 16
"""Largest number of taps of a correlation."""
SHAPES = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (6, 1), (6, 2))
"""(outputs, stride) of the correlations that exist."""
_HALVES = ("low", "high")


def correlation_name(output_count: int, tap_count: int, stride: int) -> str:
    """Return the name of the tensor intrinsic that computes ``output_count`` outputs of a correlation with
    ``tap_count`` taps at ``stride``."""
    return f"correlate_{output_count}x{tap_count}_s{stride if output_count > 1 else 1}"


@cache
def _build_aligned_row_word_operand(element_index: int) -> StepOperand:
    """Return the operand that loads the two int16 of an aligned word: the row's element ``element_index`` and its
    neighbour."""
    return StepOperand(element_index - element_index % 2, ("load_i16x2_aligned",), 2)


@cache
def _build_weight_pair_operand(tap_index: int) -> StepOperand:
    """Return the operand that loads the int16 weights of taps ``tap_index`` and ``tap_index + 1`` as one word."""
    return StepOperand(tap_index, ("load_i16x2",), 2)


def _mac_intrinsic_name(left_element: int, right_element: int) -> str:
    """Return the name of the intrinsic that multiplies one half of each word. The parities of the elements
    ``left_element`` and ``right_element`` select the halves."""
    return f"mac_{_HALVES[left_element % 2]}_{_HALVES[right_element % 2]}"


def _build_single_tap_correlation_intrinsic(output_count: int) -> TensorIntrin:
    """Build the tensor intrinsic of a correlation with a single tap, which multiplies neighbouring elements, one for
    each output."""
    weight = StepOperand(0, (), 1)
    steps = tuple(
        IntrinsicStep(StepOperand(n - n % 2, ("load_i16x2",), 2), weight, _mac_intrinsic_name(n, 0), n)
        for n in range(output_count)
    )
    order = tuple(range(output_count))
    return TensorIntrin(
        correlation_name(output_count, 1, 1), "int16", "int16", order, (0,) * output_count, steps, outputs=output_count
    )


def _build_single_product_step(output_index: int, element_index: int, tap_index: int, tap_count: int) -> IntrinsicStep:
    """Return the step that multiplies a single element by a single tap, for one output.

    A word of weights starts at the tap itself, except for the last tap, which is the upper half of the previous
    word."""
    top = tap_index == tap_count - 1
    return IntrinsicStep(
        _build_aligned_row_word_operand(element_index),
        _build_weight_pair_operand(tap_index - 1 if top else tap_index),
        _mac_intrinsic_name(element_index, top),
        output_index,
    )


def _build_steps_of_output(output_index: int, first_element: int, tap_count: int) -> list[IntrinsicStep]:
    """Return the steps (calls of scalar intrinsics) that compute one output of a correlation, from the row's element
    ``first_element`` on. They compute two products at once where both elements are in one aligned word."""
    steps, tap = [], 0
    if first_element % 2:
        steps.append(_build_single_product_step(output_index, first_element, 0, tap_count))
        tap = 1
    while tap + 1 < tap_count:
        steps.append(
            IntrinsicStep(
                _build_aligned_row_word_operand(first_element + tap),
                _build_weight_pair_operand(tap),
                "dot2",
                output_index,
            )
        )
        tap += 2
    if tap < tap_count:
        steps.append(_build_single_product_step(output_index, first_element + tap, tap, tap_count))
    return steps


def _build_correlation_intrinsic(output_count: int, tap_count: int, stride: int) -> TensorIntrin:
    """Build the tensor intrinsic of a correlation.

    Its steps are sorted by position in the row, in units of two words that one instruction can load, so that few
    words are live at once."""
    points = [(n, k) for n in range(output_count) for k in range(tap_count)]
    steps = [step for n in range(output_count) for step in _build_steps_of_output(n, n * stride, tap_count)]
    return TensorIntrin(
        correlation_name(output_count, tap_count, stride),
        "int16",
        "int16",
        tuple(n * stride + k for n, k in points),
        tuple(k for _, k in points),
        tuple(sorted(steps, key=lambda step: (step.left.element_offset // 4, step.output_index))),
        aligned_a=True,
        outputs=output_count,
    )


CORRELATIONS = (
    *(_build_single_tap_correlation_intrinsic(outputs) for outputs, stride in SHAPES if stride == 1 and outputs > 1),
    *(
        _build_correlation_intrinsic(outputs, taps, stride)
        for outputs, stride in SHAPES
        for taps in range(2, MOST_TAPS + 1)
    ),
)


# ---- Instructions of a tensor unit: a coprocessor that loads matrices into memories of its own, multiplies them there and stores
# sums
#
# Addresses in its memories (scopes ``unit_input``, ``unit_weight``, ``unit_sums``) are offsets in elements, which C passes on
# unchanged; other operands are pointers. Instructions wait in three queues, for loads, for computations and for stores. Within a
# queue they run in order. Between queues only tokens order them: ``unit_signal`` produces tokens when the previous instructions
# of its queue are done, ``unit_wait`` consumes them before later instructions of its queue. The processor waits by
# ``unit_barrier`` alone. The meanings run instructions one after the other, and tokens mean nothing; tokens are placed so that
# the queues compute the same.

_INPUT, _WEIGHT, _SUMS = ir.UNIT_SCOPES
_ROWS, _COLUMNS, _DEPTH = Var("rows"), Var("columns"), Var("depth")
_TO_STRIDE, _SOURCE_STRIDE = Var("stride_to"), Var("stride_source")
_R, _C, _K = Var("r"), Var("c"), Var("k")


def _repeat_over_rows_and_columns(body: Stmt) -> Stmt:
    """Repeat a statement for every element of a matrix of ``rows`` by ``columns``."""
    return ir.For(_R, _ROWS, ir.For(_C, _COLUMNS, body))


def _build_unit_copy_instruction(name: str, target: Buffer, source: Buffer) -> Intrin:
    """Build the tensor unit's instruction ``name`` that copies a matrix of ``rows`` by ``columns`` elements. The
    distances between rows are ``stride_to`` and ``stride_source`` elements."""
    store = ir.Store(target, (_R * _TO_STRIDE + _C,), source[_R * _SOURCE_STRIDE + _C])
    return Intrin(
        name, (target, source, _ROWS, _COLUMNS, _TO_STRIDE, _SOURCE_STRIDE), _repeat_over_rows_and_columns(store)
    )


def _build_unit_fill_instruction() -> Intrin:
    """Build the tensor unit's instruction that fills a matrix of ``rows`` by ``columns`` sums with ``value``. The
    distance between rows is ``stride_to`` elements."""
    to, value = Buffer("to", (ANY,), "int32", _SUMS), Var("value")
    store = ir.Store(to, (_R * _TO_STRIDE + _C,), value)
    return Intrin("unit_set", (to, value, _ROWS, _COLUMNS, _TO_STRIDE), _repeat_over_rows_and_columns(store))


def _build_unit_matmul_instruction() -> Intrin:
    """Build the tensor unit's matrix product instruction: sums[r, c] += input[r, k] * weight[c, k]."""
    sums = Buffer("sums", (ANY,), "int32", _SUMS)
    data, weight = Buffer("input", (ANY,), "int8", _INPUT), Buffer("weight", (ANY,), "int8", _WEIGHT)
    stride = {name: Var(f"stride_{name}") for name in ("sums", "input", "weight")}
    index: tuple[Expr, ...] = (_R * stride["sums"] + _C,)
    product = data[_R * stride["input"] + _K].astype("int32") * weight[_C * stride["weight"] + _K].astype("int32")
    add = ir.For(_K, _DEPTH, ir.Store(sums, index, ir.Load(sums, index) + product))
    params: tuple[Var | Buffer, ...] = (sums, data, weight, _ROWS, _COLUMNS, _DEPTH, *stride.values())
    return Intrin("unit_matmul", params, _repeat_over_rows_and_columns(add))


def _build_token_instruction(name: str) -> Intrin:
    """Build a token instruction of the tensor unit: send ``count`` synchronisation tokens of kind ``event`` from queue
    ``before`` to queue ``after``, or wait for them."""
    return Intrin(name, tuple(map(Var, ("before", "after", "event", "count"))), ir.Seq(()))


UNIT_WORDS: tuple[Intrin, ...] = (
    _build_unit_copy_instruction(
        "unit_load_input", Buffer("to", (ANY,), "int8", _INPUT), Buffer("source", (ANY,), "int8")
    ),
    _build_unit_copy_instruction(
        "unit_load_weight", Buffer("to", (ANY,), "int8", _WEIGHT), Buffer("source", (ANY,), "int8")
    ),
    _build_unit_copy_instruction(
        "unit_load_sums", Buffer("to", (ANY,), "int32", _SUMS), Buffer("source", (ANY,), "int32")
    ),
    _build_unit_fill_instruction(),
    _build_unit_matmul_instruction(),
    _build_unit_copy_instruction(
        "unit_store_sums", Buffer("to", (ANY,), "int32"), Buffer("source", (ANY,), "int32", _SUMS)
    ),
    _build_token_instruction(SIGNAL),
    _build_token_instruction(WAIT),
    Intrin(BARRIER, (), ir.Seq(())),
)
