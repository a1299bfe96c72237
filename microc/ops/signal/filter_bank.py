# SPDX-License-Identifier: Apache-2.0
"""Filter banks of speech frontends, sums of bands, and logarithms in fixed point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.arithmetic import build_bit_length, wrap_in_lets
from microc.ops.attributes import integer, integers
from microc.ops.constants import CheckedNode, NumberUse, OperandBounds
from microc.ops.registry import AxisMap, Case, OpCall, OpDef, map_unchanged_axes
from microc.ops.signal.power_spectrum import check_dtypes
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

# ---- Filter banks of speech frontends: ``filter_bank``, ``filter_bank_square_root``, ``filter_bank_log``.
#
# Their results equal those of TFLite Micro's signal library bit for bit.
#
# Sources: TFLite Micro ``signal/src``: ``filter_bank.cc``, ``square_root_64.cc``, ``filter_bank_log.cc``,
# ``log.cc``.


_ZERO = ir.const(0, "int32")


def _infer_filter_bank_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer the type from energies, weights, complements of weights, and three tables with an entry for each channel.

    The tables contain the first frequency, the index of the first weight, and the number of weights of each channel.
    They have one channel more than the result; it comes first."""
    check_dtypes("filter_bank", types, "uint32", *("int16",) * 5)
    if any(len(tensor_type.shape) != 1 for tensor_type in types[:3]):
        raise ModelError(
            "filter_bank: energies and weights need one axis; got "
            f"{', '.join(str(tensor_type.shape) for tensor_type in types[:3])}"
        )
    if any(tensor_type.shape != (attrs["channels"] + 1,) for tensor_type in types[3:]):
        raise ModelError(
            "filter_bank: tables have wrong shapes; got "
            f"{', '.join(str(tensor_type.shape) for tensor_type in types[3:])}, expected {(attrs['channels'] + 1,)} "
            "(channels + 1)"
        )
    return (TensorType((attrs["channels"],), "uint64"),)


def _evaluate_filter_bank_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    energies, weights, complements, frequencies, firsts, widths = ([int(v) for v in a] for a in arrays)
    sums, rising = [], 0
    for channel in range(attrs["channels"] + 1):
        total, falling = rising, 0
        for j in range(widths[channel]):
            energy = energies[frequencies[channel] + j]
            total += weights[firsts[channel] + j] * energy
            falling += complements[firsts[channel] + j] * energy
        sums.append(total % (1 << 64))
        rising = falling
    return (np.array(sums[1:], np.uint64),)


def _compute_filter_bank(call: OpCall) -> te.Tensor:
    """Build a loop over channels. The falling edge of a channel's filter is the rising edge of the next one's, so that
    energies are read once."""
    operands, channels = call.present, int(call.attrs["channels"])
    widest = operands[5].data
    most = int(widest.max(initial=0)) if widest is not None else operands[1].type.size

    def build_filter_bank_loops(buffers: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (energies, weights, complements, frequencies, firsts, widths), (out,) = buffers, results
        c, j, energy = Var("c"), Var("j"), Var("energy", "uint64")
        rise, fall = (Buffer(name, (1,), "uint64", "register") for name in ("rising", "falling"))
        frequency, first = (ir.cast("int32", table[c]) for table in (frequencies, firsts))
        add = ir.seq(
            *(
                ir.Store(into, (_ZERO,), into[0] + ir.cast("uint64", table[first + j]) * energy)
                for into, table in ((rise, weights), (fall, complements))
            )
        )
        each = ir.Let(energy, ir.cast("uint64", energies[frequency + j]), add)
        width = ir.minimum(ir.cast("int32", widths[c]), most)
        store = ir.If(c > 0, ir.Store(out, (c - 1,), rise[0]))
        none = ir.const(0, "uint64")
        iteration = ir.seq(
            ir.For(j, width, each), store, ir.Store(rise, (_ZERO,), fall[0]), ir.Store(fall, (_ZERO,), none)
        )
        start = ir.seq(ir.Store(rise, (_ZERO,), none), ir.Store(fall, (_ZERO,), none))
        return ir.Alloc(rise, ir.Alloc(fall, ir.seq(start, ir.For(c, ir.const(channels + 1, "int32"), iteration))))

    results = (("out", (channels,), "uint64"),)
    return te.extern("bank", [operand.tensor() for operand in operands], results, build_filter_bank_loops)[0]


_PLACE = OperandBounds(NumberUse.OFFSET, 0, (1 << 15) - 1)
_TABLES = {3: _PLACE, 4: _PLACE, 5: OperandBounds(NumberUse.COUNT, 0, (1 << 15) - 1)}


def _bank_range_error_message(checked_node: CheckedNode) -> str:
    """Return a message if a channel reads beyond the end of energies, weights or complements, else an empty string."""
    energies, weights, complements = (tensor_type.size for tensor_type in checked_node.types[:3])
    places, firsts, widths = (np.asarray(checked_node.data[k], np.int64).reshape(-1) for k in (3, 4, 5))
    for name, starts, size in (("frequencies", places, energies), ("firsts", firsts, min(weights, complements))):
        behind = int((starts + widths)[widths > 0].max(initial=0))
        if behind > size:
            return f"{name} and widths exceed their table; got an end of {behind}, expected at most {size}"
    return ""


def _make_filter_bank_test_cases() -> Iterable[Case]:
    arrays = (
        np.array([7, 1 << 31, 5, 4000000000, 1, 9], np.uint32),
        np.array([4096, 0, 100, 3000, 7, 5], np.int16),
        np.array([0, 4096, 3996, 1096, 4089, 1], np.int16),
        np.array([0, 1, 3], np.int16),
        np.array([0, 2, 4], np.int16),
        np.array([1, 2, 2], np.int16),
    )
    types = tuple(TensorType(a.shape, a.dtype.name) for a in arrays)
    yield Case({"channels": 2}, types, (1, 2, 3, 4, 5), arrays)


_MOST_RIGHT = 31
"""Largest right shift of a 32-bit square root."""


def _infer_filter_bank_square_root_types(
    attrs: Mapping[str, Any], types: Sequence[TensorType]
) -> tuple[TensorType, ...]:
    check_dtypes("filter_bank_square_root", types, "uint64", "int32")
    if types[1].size != 1:
        raise ModelError(f"filter_bank_square_root: the scale must have one element; got {types[1].size}")
    return (TensorType(types[0].shape, "uint32"),)


def _evaluate_filter_bank_square_root_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    roots = []
    for value in (int(v) for v in arrays[0].reshape(-1)):
        root = int(np.floor(np.sqrt(float(value))))
        while root * root > value:
            root -= 1
        while (root + 1) * (root + 1) <= value:
            root += 1
        most = 0xFFFF if value < 1 << 32 else 0xFFFFFFFF
        right = min(max(int(arrays[1].reshape(-1)[0]), 0), _MOST_RIGHT)
        roots.append((root + (value - root * root > root and root != most)) >> right)
    return (np.array(roots, np.uint32).reshape(arrays[0].shape),)


def _compute_filter_bank_square_root(call: OpCall) -> te.Tensor:
    """Build square roots, computed bit by bit, rounded to nearest and shifted right."""
    data, scale = call.present

    def build_filter_bank_square_root_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, right), (out,) = operands, results
        i, iteration, bit, most = Var("i"), Var("iteration"), Var("bit", "uint64"), Var("most", "uint64")
        rest, root = Buffer("rest", (1,), "uint64", "register"), Buffer("root", (1,), "uint64", "register")
        one = ir.const(1, "uint64")
        digit = ir.If(
            ir.binary("ge", rest[0], root[0] + bit),
            ir.seq(
                ir.Store(rest, (_ZERO,), rest[0] - (root[0] + bit)),
                ir.Store(root, (_ZERO,), (root[0] >> one) + bit),
            ),
            ir.Store(root, (_ZERO,), root[0] >> one),
        )
        step = ir.Let(bit, one << ir.cast("uint64", 62 - iteration * 2), digit)
        limit = ir.select(ir.binary("lt", x[i], 1 << 32), ir.const(0xFFFF, "uint64"), 0xFFFFFFFF)
        up = ir.If(ir.Bin("and", rest[0] > root[0], root[0].ne(most)), ir.Store(root, (_ZERO,), root[0] + one))
        places = ir.cast("uint32", ir.clamp(right[0], 0, _MOST_RIGHT))
        shifted = ir.binary("shr", ir.cast("uint32", root[0]), places)
        start = ir.seq(ir.Store(rest, (_ZERO,), x[i]), ir.Store(root, (_ZERO,), ir.const(0, "uint64")))
        body = ir.seq(start, ir.For(iteration, ir.const(32, "int32"), step), up, ir.Store(out, (i,), shifted))
        each = ir.Alloc(rest, ir.Alloc(root, ir.Let(most, limit, body)))
        return ir.For(i, ir.const(x.size, "int32"), each)

    operands = (data.tensor((data.type.size,)), scale.tensor((1,)))
    return te.extern("root", operands, (("out", (data.type.size,), "uint32"),), build_filter_bank_square_root_loops)[0]


def _make_filter_bank_square_root_test_cases() -> Iterable[Case]:
    edges = [0, 1, 2, 3, 6, 7, (1 << 32) - 1, 1 << 32, (1 << 32) - 65536, (1 << 64) - 1, 12345678901234567]
    x = np.array(edges, np.uint64)
    for right in (0, 3, 31, 99, -5):
        types = (TensorType(x.shape, "uint64"), TensorType((), "int32"))
        yield Case({}, types, arrays=(x, np.array(right, np.int32)), name=f"right {right}")


_LOG_SEGMENTS, _LOG_SCALE, _LN2 = 7, 16, 45426


def log2_correction_table() -> Array:
    """Return the table 65536 (log2(1 + i / 128) - i / 128), rounded, for i = 0 .. 128 (uint16).

    It corrects the linear interpolation of log2 between powers of two."""
    x = np.arange((1 << _LOG_SEGMENTS) + 1) / (1 << _LOG_SEGMENTS)
    return np.floor((1 << _LOG_SCALE) * (np.log2(1 + x) - x) + 0.5).astype(np.uint16)


def _infer_filter_bank_log_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    check_dtypes("filter_bank_log", types, "uint32")
    return (TensorType(types[0].shape, "int16"),)


def _evaluate_filter_bank_log_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    table, logarithms = [int(v) for v in log2_correction_table()], []
    for value in (int(v) << attrs["input_correction_bits"] & 0xFFFFFFFF for v in arrays[0].reshape(-1)):
        if value <= 1:
            logarithms.append(0)
            continue
        whole = value.bit_length() - 1
        share = value - (1 << whole)
        share = share << _LOG_SCALE - whole if whole < _LOG_SCALE else share >> whole - _LOG_SCALE
        segment = share >> _LOG_SCALE - _LOG_SEGMENTS
        inside = share - (segment << _LOG_SCALE - _LOG_SEGMENTS)
        slope = (table[segment + 1] - table[segment]) * inside >> _LOG_SCALE
        log2 = (whole << _LOG_SCALE) + share + table[segment] + slope
        natural = (_LN2 * log2 + (1 << _LOG_SCALE - 1) >> _LOG_SCALE) & 0xFFFFFFFF
        scaled = (attrs["output_scale"] * natural + (1 << _LOG_SCALE - 1) & 0xFFFFFFFF) >> _LOG_SCALE
        logarithms.append(min(scaled, 32767))
    return (np.array(logarithms, np.int16).reshape(arrays[0].shape),)


def _compute_filter_bank_log(call: OpCall) -> te.Tensor:
    """Build natural logarithms by interpolation in the table of :func:`log2_correction_table`."""
    (data,), size = call.present, call.out_types[0].size
    correction = ir.const(call.attrs["input_correction_bits"], "uint32")
    table = data.packed(log2_correction_table())

    def build_filter_bank_log_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, points), (out,) = operands, results
        i, value, share, segment = Var("i"), Var("value", "uint32"), Var("share"), Var("segment")
        lets, bits = build_bit_length(value, "value")
        whole, log2, natural = Var("whole"), Var("log2"), Var("natural", "uint32")
        left, right = (ir.cast("uint32", ir.maximum(n, 0)) for n in (_LOG_SCALE - whole, whole - _LOG_SCALE))
        above = value - (ir.const(1, "uint32") << ir.cast("uint32", whole))
        low, high = (ir.cast("int32", points[segment + k]) for k in (0, 1))
        inside = share - segment * (1 << _LOG_SCALE - _LOG_SEGMENTS)
        half, places = 1 << _LOG_SCALE - 1, ir.const(_LOG_SCALE, "uint64")
        product = ir.cast("uint64", log2) * ir.const(_LN2, "uint64") + ir.const(half, "uint64")
        scaled = natural * ir.const(call.attrs["output_scale"], "uint32") + ir.const(half, "uint32")
        scaled = scaled >> ir.const(_LOG_SCALE, "uint32")
        result = ir.select(ir.binary("gt", value, 1), ir.cast("int16", ir.minimum(scaled, 32767)), ir.const(0, "int16"))
        lets = [
            (value, x[i] << correction),
            *lets,
            (whole, ir.maximum(bits - 1, 0)),
            (share, ir.cast("int32", (above << left) >> right)),
            (segment, ir.clamp(share >> _LOG_SCALE - _LOG_SEGMENTS, 0, (1 << _LOG_SEGMENTS) - 1)),
            (log2, whole * (1 << _LOG_SCALE) + share + low + ((high - low) * inside >> _LOG_SCALE)),
            (natural, ir.cast("uint32", product >> places)),
        ]
        return ir.For(i, ir.const(size, "int32"), wrap_in_lets(lets, ir.Store(out, (i,), result)))

    return te.extern("log", (data.tensor((size,)), table), (("out", (size,), "int16"),), build_filter_bank_log_loops)[0]


def _make_filter_bank_log_test_cases() -> Iterable[Case]:
    x = np.array([0, 1, 2, 3, 77, 65535, 65536, 1 << 20, 123456789, (1 << 32) - 1], np.uint32)
    for correction, scale in ((0, 64), (3, 1600)):
        attrs: dict[str, Attr] = {"input_correction_bits": correction, "output_scale": scale}
        yield Case(attrs, (TensorType(x.shape, "uint32"),), arrays=(x,), name=f"{correction} {scale}")


FILTER_BANK_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "filter_bank",
        attrs={"channels": integer("of the result", least=1)},
        infer=_infer_filter_bank_types,
        reference=_evaluate_filter_bank_reference,
        compute=_compute_filter_bank,
        cases=_make_filter_bank_test_cases,
        constants=_TABLES,
        sound=(_bank_range_error_message,),
        operand_names=("energies", "weights", "complements", "frequencies", "firsts", "widths"),
    ),
    OpDef(
        "filter_bank_square_root",
        infer=_infer_filter_bank_square_root_types,
        reference=_evaluate_filter_bank_square_root_reference,
        compute=_compute_filter_bank_square_root,
        cases=_make_filter_bank_square_root_test_cases,
        axes=lambda _, types: (tuple(range(len(types[0].shape))), None),
        constants={1: OperandBounds(NumberUse.SHIFT, -(1 << 31), (1 << 31) - 1, None)},
        edges="Roots are shifted by 0 to 31 bits; other numbers of bits are clamped",
        operand_names=("data", "right"),
    ),
    OpDef(
        "filter_bank_log",
        attrs={
            "output_scale": integer("factor of the logarithm", least=0, most=(1 << 31) - 1),
            "input_correction_bits": integer("number of bits by which the data are shifted first", least=0, most=31),
        },
        infer=_infer_filter_bank_log_types,
        reference=_evaluate_filter_bank_log_reference,
        compute=_compute_filter_bank_log,
        cases=_make_filter_bank_log_test_cases,
        operand_names=("data",),
    ),
)


# ---- ``band_sums``: weighted sums of neighbouring elements along the last axis, which is a filter bank without its
# zero weights.
#
# Band b sums ``widths[b]`` elements from index ``starts[b]`` on, each times its weight. The weights of all
# bands are concatenated. Elements and weights are both floats, or uint64 elements and uint16 weights with sums
# modulo 2**64.


_DTYPES = (("float32", "float32"), ("uint64", "uint16"))


def _infer_band_sums_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weights = types
    starts, widths = attrs["starts"], attrs["widths"]
    if (data.dtype, weights.dtype) not in _DTYPES:
        raise ModelError(
            f"band_sums: data and weights have unsupported dtypes; got {data.dtype} and {weights.dtype}, expected float32 and "
            "float32, or uint64 and uint16"
        )
    if not data.shape or len(starts) != len(widths) or not starts:
        raise ModelError(
            f"band_sums: every band needs a start and a width; got {len(starts)} starts and {len(widths)} widths for "
            f"data {data.shape}"
        )
    reach = max(start + width for start, width in zip(starts, widths, strict=True))
    if reach > data.shape[-1] or weights.shape != (sum(widths),):
        raise ModelError(
            f"band_sums: bands exceed the data, or weights have a wrong shape; got bands up to {reach} of "
            f"{data.shape} and weights {weights.shape}, expected weights {(sum(widths),)}"
        )
    return (TensorType((*data.shape[:-1], len(starts)), data.dtype),)


def _evaluate_band_sums_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weights = arrays
    wide = np.float64 if data.dtype == np.float32 else np.uint64
    made, first = np.zeros((*data.shape[:-1], len(attrs["starts"])), wide), 0
    for band, (start, width) in enumerate(zip(attrs["starts"], attrs["widths"], strict=True)):
        parts = data[..., start : start + width].astype(wide) * weights[first : first + width].astype(wide)
        made[..., band] = parts.sum(axis=-1, dtype=wide)
        first += width
    return (made.astype(data.dtype),)


def _compute_band_sums(call: OpCall) -> te.Tensor:
    """Build a loop over bands; each band is summed in a register."""
    data, weights = call.present
    dtype, size, bands = data.type.dtype, data.type.shape[-1], len(call.attrs["starts"])
    rows, most = prod(data.type.shape[:-1]), max(call.attrs["widths"])
    tables = np.array([call.attrs["starts"], call.attrs["widths"]]).T
    table = data.packed(tables.astype(np.int16 if size < 1 << 15 else np.int32), table=True)

    def build_band_sums_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, factors, places), (out,) = operands, results
        n, b, j, start, width = Var("n"), Var("b"), Var("j"), Var("start"), Var("width")
        total, first = Buffer("total", (1,), dtype, "register"), Buffer("first", (1,), "int32", "register")
        product = x[n, start + j] * ir.cast(dtype, factors[first[0] + j])
        add = ir.For(j, width, ir.Store(total, (_ZERO,), total[0] + product))
        iteration = ir.seq(
            ir.Store(total, (_ZERO,), ir.const(0, dtype)),
            add,
            ir.Store(out, (n, b), total[0]),
            ir.Store(first, (_ZERO,), first[0] + width),
        )
        known = [(start, ir.cast("int32", places[b, 0])), (width, ir.minimum(ir.cast("int32", places[b, 1]), most))]
        for var, value in reversed(known):
            iteration = ir.Let(var, value, iteration)
        each = ir.seq(ir.Store(first, (_ZERO,), _ZERO), ir.For(b, ir.const(bands, "int32"), iteration))
        return ir.loops([(n, rows)], ir.Alloc(total, ir.Alloc(first, each)))

    operands = (data.tensor((rows, size)), weights.tensor(), table)
    return te.extern("bands", operands, (("out", (rows, bands), dtype),), build_band_sums_loops)[0]


def _map_band_sums_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (map_unchanged_axes(len(types[0].shape), (-1,)), None)


def _count_band_sums_macs(
    attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]
) -> int:
    """Return the number of multiply-accumulate operations: one for each weight and row."""
    return prod(types[0].shape[:-1]) * types[1].size


def _make_band_sums_test_cases() -> Iterable[Case]:
    places = {"starts": (0, 1, 4, 2), "widths": (3, 4, 5, 0)}
    rng = np.random.default_rng(2)
    for shape in ((9,), (3, 9), (1, 2, 12)):
        types = (TensorType(shape, "float32"), TensorType((12,), "float32"))
        yield Case(places, types, (1,), tolerance=1e-5, name=f"float32 {shape}")
        energies = rng.integers(0, 1 << 46, shape).astype(np.uint64)
        integers = (TensorType(shape, "uint64"), TensorType((12,), "uint16"))
        yield Case(places, integers, (1,), (energies, None), name=f"uint64 {shape}")


BANDS_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "band_sums",
        attrs={
            "starts": integers("the first element of each band", least=0),
            "widths": integers("number of elements of each band", least=0),
        },
        infer=_infer_band_sums_types,
        reference=_evaluate_band_sums_reference,
        compute=_compute_band_sums,
        cases=_make_band_sums_test_cases,
        axes=_map_band_sums_axes,
        macs=_count_band_sums_macs,
        operand_names=("data", "weights"),
    ),
)


# ---- ``log2_fixed``: logarithms to base 2 of integers, in fixed point.
#
# The result for a uint64 x is 512 log2(max(x + offset, least)) - subtract, rounded and saturated to int16; it
# has nine fractional bits. The logarithm is the exponent, plus the mantissa as a linear approximation, plus a
# correction that is interpolated linearly in a table of 128 segments with 16 bits. The error is at most 2**-10
# from rounding plus 4e-5 from the table.


FRACTION = 9
"""Number of fractional bits of the result."""
_WORK, _SEGMENTS = 16, 7
"""Number of fractional bits of the computation, and binary logarithm of the number of table segments."""
_INSIDE = _WORK - _SEGMENTS
"""Number of bits of a position within a table segment."""
_MOST = (1 << 63) - 1
"""Largest value of the attributes ``offset`` and ``least``."""
MOST_SUBTRACTED = 1 << 17
"""Largest magnitude of the attribute ``subtract``."""


def _infer_log2_fixed_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if types[0].dtype != "uint64":
        raise ModelError(f"log2_fixed: the data must be uint64; got {types[0].dtype}, expected uint64")
    if attrs["offset"] > _MOST or attrs["least"] > _MOST:
        raise ModelError(
            f"log2_fixed: attributes are out of range; got offset={attrs['offset']} and least={attrs['least']}, "
            f"expected at most {_MOST}"
        )
    if abs(attrs["subtract"]) > MOST_SUBTRACTED:
        raise ModelError(
            f"log2_fixed: subtract is out of range; got {attrs['subtract']}, expected "
            f"-{MOST_SUBTRACTED}..{MOST_SUBTRACTED}"
        )
    return (TensorType(types[0].shape, "int16"),)


def _evaluate_log2_fixed_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    table, logarithms = [int(v) for v in log2_correction_table()], []
    for x in (int(v) for v in arrays[0].reshape(-1)):
        value = max(min(x + attrs["offset"], (1 << 64) - 1), attrs["least"])
        whole = value.bit_length() - 1
        share = (value << 63 - whole >> 63 - _WORK) - (1 << _WORK)
        segment, inside = share >> _INSIDE, share & (1 << _INSIDE) - 1
        risen = table[segment] + ((table[segment + 1] - table[segment]) * inside >> _INSIDE)
        log2 = (whole << _WORK) + share + risen
        rounded = (log2 + (1 << _WORK - FRACTION - 1) >> _WORK - FRACTION) - attrs["subtract"]
        logarithms.append(max(min(rounded, 32767), -32768))
    return (np.array(logarithms, np.int16).reshape(arrays[0].shape),)


def _compute_log2_fixed(call: OpCall) -> te.Tensor:
    (data,), size = call.present, call.out_types[0].size
    offset, least = (ir.const(call.attrs[name], "uint64") for name in ("offset", "least"))
    table = data.packed(log2_correction_table())

    def build_log2_fixed_loops(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, points), (out,) = operands, results
        i, moved, value, high = Var("i"), Var("moved", "uint64"), Var("value", "uint64"), Var("high", "uint32")
        top = Var("top", "uint32")
        lets, bits = build_bit_length(top, "top")
        whole, share, segment, log2 = Var("whole"), Var("share"), Var("segment"), Var("log2")
        none = ir.const(0, "uint32")
        mantissa = (value << ir.cast("uint64", 63 - whole)) >> ir.const(63 - _WORK, "uint64")
        low, next_ = (ir.cast("int32", points[segment + k]) for k in (0, 1))
        inside = share - segment * (1 << _INSIDE)
        full = ir.const((1 << 64) - 1, "uint64")
        lets = [
            (moved, x[i] + offset),
            (value, ir.maximum(ir.select(moved < offset, full, moved), least)),
            (high, ir.cast("uint32", value >> ir.const(32, "uint64"))),
            (top, ir.select(high.ne(none), high, ir.cast("uint32", value))),
            *lets,
            (whole, ir.clamp(bits - 1 + ir.select(high.ne(none), ir.const(32, "int32"), 0), 0, 63)),
            (share, ir.cast("int32", mantissa) - (1 << _WORK)),
            (segment, ir.clamp(share >> _INSIDE, 0, (1 << _SEGMENTS) - 1)),
            (log2, whole * (1 << _WORK) + share + low + ((next_ - low) * inside >> _INSIDE)),
        ]
        rounded = ((log2 + (1 << _WORK - FRACTION - 1)) >> _WORK - FRACTION) - call.attrs["subtract"]
        store = ir.Store(out, (i,), ir.cast("int16", ir.clamp(rounded, -32768, 32767)))
        return ir.For(i, ir.const(size, "int32"), wrap_in_lets(lets, store))

    return te.extern("log2", (data.tensor((size,)), table), (("out", (size,), "int16"),), build_log2_fixed_loops)[0]


def _map_log2_fixed_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    return (tuple(range(len(types[0].shape))),)


def _make_log2_fixed_test_cases() -> Iterable[Case]:
    edges = [0, 1, 2, 3, 5, 77, (1 << 32) - 1, 1 << 32, 123456789012, (1 << 46) + 7, (1 << 64) - 1, 1 << 63]
    for x in (np.array(edges, np.uint64), np.array(edges, np.uint64).reshape(3, 4)):
        for offset, least, less in ((0, 1, 0), (1000, 1, 16000), (0, 5000, -900), (_MOST, _MOST, 1 << 17)):
            attrs = {"offset": offset, "least": least, "subtract": less}
            yield Case(attrs, (TensorType(x.shape, "uint64"),), arrays=(x,), name=f"{x.ndim} {offset} {least}")


LOGARITHM_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "log2_fixed",
        attrs={
            "offset": integer("number added to the data, with saturation", 0, least=0),
            "least": integer("lower limit of the sum", 1, least=1),
            "subtract": integer("number subtracted from the logarithm, in units of the result", 0),
        },
        infer=_infer_log2_fixed_types,
        reference=_evaluate_log2_fixed_reference,
        compute=_compute_log2_fixed,
        cases=_make_log2_fixed_test_cases,
        axes=_map_log2_fixed_axes,
        operand_names=("data",),
    ),
)


OPERATORS = (*FILTER_BANK_OPERATORS, *BANDS_OPERATORS, *LOGARITHM_OPERATORS)
