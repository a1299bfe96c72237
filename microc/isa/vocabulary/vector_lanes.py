# SPDX-License-Identifier: Apache-2.0
"""Intrinsics on vectors: int32 lanes, float32 lanes, scalable vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from microc.base import dtypes
from microc.isa.instruction_set import ANY, LANE, VL, Intrin, vector_dtype
from microc.isa.vocabulary.scalar_words import PAIRS
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var
from microc.tir.lower.lane_code import (
    FLOAT_CALLS,
    HALVES,
    NARROWING_DISTANCES,
    NARROWING_SUFFIX,
    SCALABLE_SCALAR_OPS,
    TYPES,
)
from microc.tir.lower.lane_code import SATURATED as LANE_CODE_SATURATED
from microc.tir.lower.lane_scope import SHORT
from microc.tir.names import SATURATED, WORD_LANES
from microc.tir.symbolic import LENGTH

# ---- Vectors of int32, which the lowering of loops to lanes (``tir/lower/lanes.py``) uses
#
# ``<name>_i32x4`` is lane by lane; ``_n`` takes a scalar for all lanes instead of the last vector. ``load_<t>_i32x4`` widens
# elements of dtype t, ``store_<t>_i32x4`` narrows to them (wrapping), ``gather`` and ``scatter`` do so at offsets in elements;
# with ``_first`` only the first n lanes access memory; ``store_saturated`` clamps to the dtype, ``store_saturated_<t>_rshr_<n>``
# after a right shift by n that rounds half up. Vectors of 8 and 16 lanes have
# the same intrinsics; those of floats are below.

WIDTHS = (4, 8, 16)
"""Numbers of lanes that a vector may have."""
PRODUCTS = ("dot2", "dot4_i8", "dot4_u8")
"""Names of the dot products of packed words."""
NUMBERED = ("add", "sub", "mul", "doubling_high_mul", "doubling_high_floor", "shl", "shift_round")
"""Names of operations that also exist with a scalar as second operand."""

_a, _b, _x, _y, _n = (Var(name) for name in "abxyn")


def _as_int64(x: Expr) -> Expr:
    """Build the conversion of a lane's value to int64."""
    return x.astype("int64")


def build_wrapping_operation(op: str, a: Expr, b: Expr) -> Expr:
    """Build the operation ``op`` on two int32 values modulo 2**32. Signed arithmetic would overflow, because
    inactive lanes contain undefined values."""
    return ir.binary(op, a.astype("uint32"), b.astype("uint32")).astype("int32")


def build_doubling_high_mul(a: Expr, b: Expr) -> Expr:
    """Build the doubling high product with rounding: (a b + 2**30) >> 31. It saturates only if both operands are
    INT32_MIN."""
    return ir.minimum((_as_int64(a) * _as_int64(b) + (1 << 30)) >> 31, (1 << 31) - 1).astype("int32")


def _doubling_high_floor(a: Expr, b: Expr) -> Expr:
    """Build the doubling high product without rounding: (a b) >> 31. It saturates only if both operands are
    INT32_MIN."""
    return ir.minimum(_as_int64(a) * _as_int64(b) >> 31, (1 << 31) - 1).astype("int32")


def _high_word_of_product(a: Expr, b: Expr, addend: int = 0) -> Expr:
    """Build the high word of a product plus an addend: (a b + addend) >> 32."""
    return ((_as_int64(a) * _as_int64(b) + addend) >> 32).astype("int32")


def _clamped_right_shift_count(s: Expr) -> Expr:
    """Build the count ``-s`` of a right shift, replaced by 0 if negative, because C leaves shifts by negative counts
    undefined."""
    return ir.maximum(-s, 0)


def _signed_shift(a: Expr, s: Expr) -> Expr:
    """Build the shift of ``a`` by ``s`` in -31 .. 31. A positive count shifts to the left and drops bits beyond the
    word; a negative count shifts to the right."""
    left = ir.reinterpret("uint32", a) << ir.maximum(s, 0).astype("uint32")
    return ir.select(s < 0, a >> _clamped_right_shift_count(s), ir.reinterpret("int32", left))


def build_rounding_shift(a: Expr, s: Expr) -> Expr:
    """Build the shift of :func:`_signed_shift`, but with rounding half up to the right. ``s`` is at least -32, for
    which the result is 0."""
    right = _as_int64(_clamped_right_shift_count(s))
    half = (ir.const(1, "int64") << right) >> 1
    return ir.select(s < 0, ((_as_int64(a) + half) >> right).astype("int32"), a << ir.maximum(s, 0))


def build_arithmetic_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the arithmetic intrinsics on two vectors of int32, or on a vector and a scalar."""
    end = f"i32x{lanes}"
    wide_a, wide_b, wide_x, wide_y = (Var(name, f"int32x{lanes}") for name in "abxy")
    table: dict[str, Expr] = {
        **{op: build_wrapping_operation(op, _a, _b) for op in ("add", "sub", "mul")},
        "doubling_high_mul": build_doubling_high_mul(_a, _b),
        "doubling_high_floor": _doubling_high_floor(_a, _b),
        "high_product": _high_word_of_product(_a, _b),
        "high_mul_round": _high_word_of_product(_a, _b, 1 << 31),
        "shl": _signed_shift(_a, _b),
        "shift_round": build_rounding_shift(_a, _b),
        "min": ir.minimum(_a, _b),
        "max": ir.maximum(_a, _b),
        "and": _a & _b,
        "or": _a | _b,
        "xor": _a ^ _b,
    }
    for name, meaning in table.items():
        yield Intrin(f"{name}_{end}", (wide_a, wide_b), meaning, lanes)
        if name in NUMBERED:
            yield Intrin(f"{name}_n_{end}", (wide_a, _b), meaning, lanes)
    yield Intrin(
        f"mac_n_{end}",
        (wide_a, wide_b, _n),
        build_wrapping_operation("add", _a, build_wrapping_operation("mul", _b, _n)),
        lanes,
    )
    yield Intrin(f"dup_{end}", (_n,), _n, lanes)
    yield Intrin(f"ramp_{end}", (_n,), LANE * _n, lanes)
    for op in sorted(ir.COMPARISONS):
        selected = ir.select(ir.binary(op, _a, _b), _x, _y)
        yield Intrin(f"select_{op}_{end}", (wide_a, wide_b, wide_x, wide_y), selected, lanes)


def build_memory_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the intrinsics that load and store vectors of int32. The elements are contiguous or at given
    offsets; all lanes or the first n lanes access memory."""
    end = f"i32x{lanes}"
    wide_a, wide_b = (Var(name, f"int32x{lanes}") for name in "ab")
    for dtype, short in TYPES.items():
        p, table = Buffer("p", (lanes,), dtype), Buffer("p", (ANY,), dtype)
        loaded, gathered = ir.cast("int32", p[LANE]), ir.cast("int32", table[_a])
        stored, scattered = ir.Store(p, (LANE,), ir.cast(dtype, _a)), ir.Store(table, (_a,), ir.cast(dtype, _b))
        values: tuple[tuple[str, tuple[Var | Buffer, ...], Expr], ...] = (
            ("load", (p,), loaded),
            ("gather", (table, wide_a), gathered),
        )
        for name, params, value in values:
            yield Intrin(f"{name}_{short}_{end}", params, value, lanes)
            yield Intrin(f"{name}_{short}_{end}_first", (*params, _n), ir.select(_n > LANE, value, 0), lanes)
        stores: tuple[tuple[str, tuple[Var | Buffer, ...], ir.Stmt], ...] = (
            ("store", (p, wide_a), stored),
            ("scatter", (table, wide_a, wide_b), scattered),
        )
        for name, params, store in stores:
            yield Intrin(f"{name}_{short}_{end}", params, store, lanes)
            yield Intrin(f"{name}_{short}_{end}_first", (*params, _n), ir.If(_n > LANE, store), lanes)


def _build_saturating_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the intrinsics that clamp the lanes of an int32 vector to the range of a dtype, with and without a
    store of the result."""
    end, a = f"i32x{lanes}", Var("a", f"int32x{lanes}")
    yield Intrin(f"saturate_i16_{end}", (a,), ir.clamp(_a, *dtypes.int_range("int16")), lanes)
    for dtype in (dtype for dtype, short in TYPES.items() if f"saturate_{short}" in SATURATED):
        p, name = Buffer("p", (lanes,), dtype), f"store_saturated_{TYPES[dtype]}_{end}"
        distances = NARROWING_DISTANCES if end == NARROWING_SUFFIX else ()
        values = {name: _a} | {
            name.replace(f"_{end}", f"_rshr_{n}_{end}"): ((_a >> (n - 1)) + 1) >> 1 for n in distances
        }
        for store_name, value in values.items():
            store = ir.Store(p, (LANE,), ir.cast(dtype, ir.clamp(value, *dtypes.int_range(dtype))))
            yield Intrin(store_name, (p, a), store, lanes)
            yield Intrin(f"{store_name}_first", (p, a, _n), ir.If(_n > LANE, store), lanes)


def _packed_word(p: Buffer, first: Expr, count: int, bits: int) -> Expr:
    """Build the word that packs ``count`` elements of ``p``, from element ``first`` on, in ``bits`` bits each."""
    word: Expr = ir.const(0, "uint32")
    for k in range(count):
        part = p[first + k].astype("int32").astype("uint32") & ((1 << bits) - 1)
        word = word | (part << (bits * k))
    return word.astype("int32")


def _build_packed_word_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the intrinsics on packed words: loads of one word for each lane, loads of one word for all lanes
    (``dup``), and dot products."""
    end, vector = f"i32x{lanes}", f"int32x{lanes}"
    for word in WORD_LANES:
        bits, count = dtypes.dtype_parts(word.dtype).bits, word.count
        p, q = Buffer("p", (count * lanes,), word.dtype), Buffer("p", (count,), word.dtype)
        yield Intrin(f"load_{word.suffix}_{end}", (p,), _packed_word(p, LANE * count, count, bits), lanes)
        yield Intrin(f"dup_{word.suffix}_{end}", (q,), _packed_word(q, ir.const(0, "int32"), count, bits), lanes)
    for name in PRODUCTS:
        scalar = next(intrin for intrin in PAIRS if intrin.name == name)
        params = tuple(Var(p.name, vector) for p in scalar.params)
        yield Intrin(f"{name}_{end}", params, scalar.meaning, lanes, scalar.limits)


LANEWISE = tuple(
    intrin
    for lanes in WIDTHS
    for intrin in (
        *build_arithmetic_intrinsics(lanes),
        *build_memory_intrinsics(lanes),
        *_build_saturating_intrinsics(lanes),
        *_build_packed_word_intrinsics(lanes),
    )
)


# ---- Vectors of float32, lane by lane: ``<name>_f32x8``
#
# Arithmetic rounds as that of scalars; ``fma`` rounds once; ``fma_n``, which not all units have, multiplies by a scalar. ``min``
# and ``max`` return their second operand if one is NaN, as those of scalars. Loads and stores are contiguous, with ``_first``
# those of the first n lanes; loads of ``f16`` and ``bf16`` widen, stores of ``f16`` round to the nearest. ``from_i32`` converts
# integers; ``nearest`` (half to even) and ``toward_zero`` convert to integers, within int32. ``bits`` and ``of_bits`` reinterpret
# a number as int32 and back.

ARITHMETIC = ("add", "sub", "mul", "div", "min", "max")
UNARY = sorted(FLOAT_CALLS - {"fma"})

_float_lanes_a, _float_lanes_b, _c, _float_lanes_x, _float_lanes_y, _float_lanes_n = (
    Var(name, "float32") for name in "abcxyn"
)


def build_float_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield all intrinsics on vectors of ``lanes`` float32 lanes."""
    end, vector, integers = f"f32x{lanes}", f"float32x{lanes}", f"int32x{lanes}"
    a, b, c, x, y = (Var(name, vector) for name in "abcxy")
    p, table = Buffer("p", (lanes,), "float32"), Buffer("p", (ANY,), "float32")
    whole, index, count = Var("a"), Var("a", integers), Var("n")
    for op in ARITHMETIC:
        yield Intrin(f"{op}_{end}", (a, b), ir.binary(op, _float_lanes_a, _float_lanes_b), lanes)
    yield Intrin(f"fma_{end}", (a, b, c), ir.call("fma", _float_lanes_a, _float_lanes_b, _c), lanes)
    yield Intrin(f"fma_n_{end}", (a, _float_lanes_n, c), ir.call("fma", _float_lanes_a, _float_lanes_n, _c), lanes)
    for name in UNARY:
        yield Intrin(f"{name}_{end}", (a,), ir.call(name, _float_lanes_a), lanes)
    yield Intrin(f"dup_{end}", (_float_lanes_n,), _float_lanes_n, lanes)
    for op in sorted(ir.COMPARISONS):
        yield Intrin(
            f"select_{op}_{end}",
            (a, b, x, y),
            ir.select(ir.binary(op, _float_lanes_a, _float_lanes_b), _float_lanes_x, _float_lanes_y),
            lanes,
        )
    stored = ir.Store(p, (LANE,), _float_lanes_a)
    yield Intrin(f"load_f32_{end}", (p,), p[LANE], lanes)
    yield Intrin(f"load_f32_{end}_first", (p, count), ir.select(count > LANE, p[LANE], 0.0), lanes)
    for dtype, short in HALVES.items():
        q = Buffer("p", (lanes,), dtype)
        number = ir.cast("float32", q[LANE])
        yield Intrin(f"load_{short}_{end}", (q,), number, lanes)
        yield Intrin(f"load_{short}_{end}_first", (q, count), ir.select(count > LANE, number, 0.0), lanes)
    halves = ir.Store(Buffer("p", (lanes,), "float16"), (LANE,), ir.cast("float16", _float_lanes_a))
    yield Intrin(f"store_f16_{end}", (halves.buffer, a), halves, lanes)
    yield Intrin(f"store_f16_{end}_first", (halves.buffer, a, count), ir.If(count > LANE, halves), lanes)
    yield Intrin(f"gather_f32_{end}", (table, index), table[whole], lanes)
    yield Intrin(f"store_f32_{end}", (p, a), stored, lanes)
    yield Intrin(f"store_f32_{end}_first", (p, a, count), ir.If(count > LANE, stored), lanes)
    yield Intrin(f"from_i32_{end}", (index,), ir.cast("float32", whole), lanes)
    yield Intrin(f"of_bits_{end}", (index,), ir.reinterpret("float32", whole), lanes)
    yield Intrin(f"bits_i32x{lanes}", (a,), ir.reinterpret("int32", _float_lanes_a), lanes)
    yield Intrin(f"nearest_i32x{lanes}", (a,), ir.cast("int32", ir.call("rint", _float_lanes_a)), lanes)
    yield Intrin(f"toward_zero_i32x{lanes}", (a,), ir.cast("int32", _float_lanes_a), lanes)


FLOAT_LANES = tuple(intrin for lanes in WIDTHS for intrin in build_float_intrinsics(lanes))


# ---- Scalable vectors (RVV), which the lowering of loops to strips (``tir/lower/lanes.py``) uses
#
# ``<name>_i32xvscalex16`` is ``<name>_i32x16`` for the first ``vl`` lanes of vectors that have 16 lanes or a multiple; the other
# lanes are undefined. These vectors have more intrinsics: ``mac`` adds products, ``mac_short`` those of vectors of int16,
# ``right`` shifts right by 0 to 31 places, ``right_round`` also rounds half up, ``min_n`` and ``max_n`` take a scalar,
# ``store_saturated`` clamps. ``vector_length_x16(n)``: the lanes that an iteration takes of n remaining ones, at least one.

LEAST = (16, 32)
"""Least numbers of 32-bit lanes of scalable vectors: they occupy four or eight registers of at least 128 bits."""
_A, _B, _C, _N = (Var(name) for name in "abcn")
_PLACES = (("b", 0, 31),)
_ROUNDED = (_A.astype("int64") + ((ir.const(1, "int64") << _B.astype("int64")) >> 1) >> _B.astype("int64")).astype(
    "int32"
)
_RIGHT: Mapping[str, Expr] = MappingProxyType({"right": _A >> _B, "right_round": _ROUNDED})


def _build_scalable_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the intrinsics on scalable vectors of ``lanes`` lanes or a multiple."""
    for word in (
        *build_arithmetic_intrinsics(lanes),
        *build_memory_intrinsics(lanes),
        *build_float_intrinsics(lanes),
        *_build_scalable_only_intrinsics(lanes),
    ):
        if not word.name.endswith("_first"):
            name = word.name.replace(f"x{lanes}", f"xvscalex{lanes}")
            params = (*(_to_scalable_param(p, lanes) for p in word.params), VL)
            yield replace(word, name=name, params=params, scalable=True)
    yield Intrin(f"{LENGTH}{lanes}", (_N,), ir.minimum(_N, lanes))


def _build_scalable_only_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the intrinsics that exist only for scalable vectors."""
    end = vector_dtype("i32", lanes)
    a, b, c = (Var(name, vector_dtype("int32", lanes)) for name in "abc")
    yield Intrin(f"neg_{end}", (a,), build_wrapping_operation("sub", ir.const(0, "int32"), _A), lanes)
    yield Intrin(
        f"mac_{end}", (a, b, c), build_wrapping_operation("add", _A, build_wrapping_operation("mul", _B, _C)), lanes
    )
    yield from _build_int16_factor_intrinsics(lanes)
    for name, meaning in _RIGHT.items():
        yield Intrin(f"{name}_{end}", (a, b), meaning, lanes, _PLACES)
        yield Intrin(f"{name}_n_{end}", (a, _B), meaning, lanes, _PLACES)
    for name in SCALABLE_SCALAR_OPS:
        yield Intrin(f"{name}_n_{end}", (a, _B), ir.binary(name, _A, _B), lanes)
    for dtype in LANE_CODE_SATURATED:
        p = Buffer("p", (lanes,), dtype)
        stored = ir.Store(p, (LANE,), ir.cast(dtype, ir.clamp(_A, *dtypes.int_range(dtype))))
        yield Intrin(f"store_saturated_{TYPES[dtype]}_{end}", (p, a), stored, lanes)


def _build_int16_factor_intrinsics(lanes: int) -> Iterator[Intrin]:
    """Yield the intrinsics that load vectors of int16, or add products of int16 vectors to an int32 vector."""
    a, b, c = (
        Var("a", vector_dtype("int32", lanes)),
        Var("b", vector_dtype(SHORT, lanes)),
        Var("c", vector_dtype(SHORT, lanes)),
    )
    for dtype in ("int8", "uint8", SHORT):
        p = Buffer("p", (lanes,), dtype)
        yield Intrin(f"load_{TYPES[dtype]}_{vector_dtype('i16', lanes)}", (p,), ir.cast(SHORT, p[LANE]), lanes)
    product = Var("b", SHORT).astype("int32") * Var("c", SHORT).astype("int32")
    yield Intrin(
        f"mac_short_{vector_dtype('i32', lanes)}", (a, b, c), build_wrapping_operation("add", _A, product), lanes
    )
    scaled = Var("b", SHORT).astype("int32") * _N
    yield Intrin(
        f"mac_short_n_{vector_dtype('i32', lanes)}",
        (a, b, _N),
        build_wrapping_operation("add", _A, scaled),
        lanes,
        (("n", -(1 << 15), (1 << 15) - 1),),
    )


def _to_scalable_param(param: Var | Buffer, lanes: int) -> Var | Buffer:
    """Convert a vector parameter of an intrinsic to a scalable vector. Other parameters are returned unchanged."""
    if isinstance(param, Buffer) or not dtypes.is_vector(param.dtype):
        return param
    return Var(param.name, vector_dtype(param.dtype.partition("x")[0], lanes, scalable=True))


SCALABLE = tuple(intrin for lanes in LEAST for intrin in _build_scalable_intrinsics(lanes))
