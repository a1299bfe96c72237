"""Fixed-point arithmetic of speech frontends: ``signal_window``, ``fft_auto_scale``, ``signal_energy``, ``filter_bank``,
``filter_bank_square_root``, ``spectral_subtraction``, ``pcan``, ``filter_bank_log``. Exact with TFLite Micro's signal library.

Sources: TFLite Micro ``signal/src``: ``window.cc``, ``fft_auto_scale.cc``, ``energy.cc``, ``filter_bank.cc``,
``square_root_64.cc``, ``filter_bank_spectral_subtraction.cc``, ``pcan_argc_fixed.cc``, ``filter_bank_log.cc``, ``log.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.arith import bit_length, with_names
from microc.ops.registry import Case, OpCall, OpDef, Operand
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_ZERO = ir.const(0, "int32")


def _wants(name: str, types: Sequence[TensorType], *wanted: str) -> None:
    if tuple(kind.dtype for kind in types) != wanted:
        raise ModelError(f"{name} of {', '.join(kind.dtype for kind in types)}", hint=f"it takes {', '.join(wanted)}")


def _operands(call: OpCall) -> list[Operand]:
    return [operand for operand in call.operands if operand is not None]


# ---------------------------------------------------------------- signal_window


def _infer_window(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _wants("signal_window", types, "int16", "int16")
    if types[1].shape != types[0].shape[-1:] or not types[1].shape:
        raise ModelError(f"a window of shape {types[1].shape} for data of shape {types[0].shape}")
    return (TensorType(types[0].shape, "int16"),)


def _reference_window(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    product = (arrays[0].astype(np.int64) * arrays[1]) >> attrs["shift"]
    return (np.clip(product, -32768, 32767).astype(np.int16),)


def _scalar_window(attrs: Mapping[str, Any], args: Sequence[Expr]) -> Expr:
    product = ir.cast("int32", args[0]) * ir.cast("int32", args[1]) >> attrs["shift"]
    return ir.cast("int16", ir.clamp(product, -32768, 32767))


def _cases_window() -> Iterable[Case]:
    for shape in ((6,), (2, 5)):
        types = (TensorType(shape, "int16"), TensorType(shape[-1:], "int16"))
        yield Case({"shift": 12}, types)
        yield Case({"shift": 15}, types, (1,))


# ---------------------------------------------------------------- fft_auto_scale


def _infer_scale(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _wants("fft_auto_scale", types, "int16")
    return TensorType(types[0].shape, "int16"), TensorType((), "int32")


def _reference_scale(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    largest = 0
    for value in (int(v) for v in arrays[0].reshape(-1)):
        if max(value, -value) > largest:
            largest = value if value > largest else (-value + 32768) % 65536 - 32768
    bits = max(15 - largest.bit_length(), 0) if largest > 0 else 0
    return (arrays[0].astype(np.int32) << bits).astype(np.int16), np.array(bits, np.int32)


def _compute_scale(call: OpCall) -> tuple[te.Tensor, ...]:
    """The largest magnitude, as int16 that wraps around as TFLite Micro's does; then all elements to the left."""
    (data,) = _operands(call)

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x,), (out, scale) = operands, results
        i, j, value = Var("i"), Var("j"), Var("value")
        size, largest = ir.const(x.size, "int32"), Buffer("largest", (1,), "int16", "register")
        known = ir.cast("int32", largest[0])
        grow = ir.If(
            value > known,
            ir.Store(largest, (_ZERO,), ir.cast("int16", value)),
            ir.If(-value > known, ir.Store(largest, (_ZERO,), ir.cast("int16", -value))),
        )
        find = ir.For(i, size, ir.Let(value, ir.cast("int32", x[i]), grow))
        lets, bits = bit_length(ir.cast("uint32", ir.maximum(known, 0)), "largest")
        left, factor = Var("left"), Var("factor")
        amount = ir.select(known > 0, ir.maximum(15 - bits, 0), _ZERO)
        move = ir.For(j, size, ir.Store(out, (j,), ir.cast("int16", ir.cast("int32", x[j]) * factor)))
        rest = ir.seq(ir.Store(scale, (_ZERO,), left), ir.Let(factor, ir.const(1, "int32") << left, move))
        start = ir.Store(largest, (_ZERO,), ir.const(0, "int16"))
        return ir.Alloc(largest, ir.seq(start, find, with_names([*lets, (left, amount)], rest)))

    size = data.type.size
    results = (("out", (size,), "int16"), ("scale", (1,), "int32"))
    return te.extern("scale", (data.tensor((size,)),), results, build)


def _cases_scale() -> Iterable[Case]:
    for values in ([3, -5, 0, 2], [0, 0], [-32768, 1], [20000, -32768, 4], [1, -1, 16383]):
        x = np.array(values, np.int16)
        yield Case({}, (TensorType(x.shape, "int16"),), arrays=(x,), name=f"{values}")


# ---------------------------------------------------------------- signal_energy


def _infer_energy(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _wants("signal_energy", types, "int16")
    shape, first, last = types[0].shape, attrs["start"], attrs["end"]
    if len(shape) != 1 or shape[0] % 2 or not 0 <= first <= last <= shape[0] // 2:
        raise ModelError(f"signal_energy of shape {shape} from {first} to {last}")
    return (TensorType((shape[0] // 2,), "uint32"),)


def _reference_energy(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    x = arrays[0].astype(np.int64).reshape(-1, 2)
    energy = (x * x).sum(axis=1)
    energy[: attrs["start"]] = energy[attrs["end"] :] = 0
    return (energy.astype(np.uint32),)


def _compute_energy(call: OpCall) -> te.Tensor:
    """Squares of complex numbers from ``start`` to ``end``; zero elsewhere, where TFLite Micro writes nothing."""
    (data,) = _operands(call)
    count, first, last = data.type.size // 2, call.attrs["start"], call.attrs["end"]
    x = data.tensor((count, 2))

    def element(i: Expr) -> Expr:
        parts = [ir.cast("int32", x[i, part]) for part in (0, 1)]
        squares = [ir.cast("uint32", part * part) for part in parts]
        inside = ir.Bin("and", i >= first, i < last)
        return ir.select(inside, squares[0] + squares[1], ir.const(0, "uint32"))

    return te.compute((count,), element, "energy", ("i",))


def _cases_energy() -> Iterable[Case]:
    for attrs in ({"start": 0, "end": 5}, {"start": 1, "end": 4}):
        x = np.array([1, -2, -32768, -32768, 300, 4, 32767, 0, 7, 7], np.int16)
        yield Case(attrs, (TensorType((10,), "int16"),), arrays=(x,))


# ---------------------------------------------------------------- filter_bank


def _infer_bank(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Energies, weights, their complements, first frequency, first weight and width of every channel and one before."""
    _wants("filter_bank", types, "uint32", *("int16",) * 5)
    if any(kind.shape != (attrs["channels"] + 1,) for kind in types[3:]):
        raise ModelError(
            f"filter_bank of {attrs['channels']} channels with {[kind.shape for kind in types[3:]]} places"
        )
    return (TensorType((attrs["channels"],), "uint64"),)


def _reference_bank(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    energies, weights, complements, frequencies, firsts, widths = ([int(v) for v in a] for a in arrays)
    made, rising = [], 0
    for channel in range(attrs["channels"] + 1):
        total, falling = rising, 0
        for j in range(widths[channel]):
            energy = energies[frequencies[channel] + j]
            total += weights[firsts[channel] + j] * energy
            falling += complements[firsts[channel] + j] * energy
        made.append(total % (1 << 64))
        rising = falling
    return (np.array(made[1:], np.uint64),)


def _compute_bank(call: OpCall) -> te.Tensor:
    """Channel by channel: what falls off one channel rises in the next."""
    operands, channels = _operands(call), int(call.attrs["channels"])
    widest = operands[5].data
    most = int(widest.max(initial=0)) if widest is not None else operands[1].type.size

    def build(buffers: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (energies, weights, complements, frequencies, firsts, widths), (out,) = buffers, results
        c, j, energy, rise, fall = Var("c"), Var("j"), Var("energy", "uint64"), *_sums()
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
        turn = ir.seq(ir.For(j, width, each), store, ir.Store(rise, (_ZERO,), fall[0]), ir.Store(fall, (_ZERO,), none))
        start = ir.seq(ir.Store(rise, (_ZERO,), none), ir.Store(fall, (_ZERO,), none))
        return ir.Alloc(rise, ir.Alloc(fall, ir.seq(start, ir.For(c, ir.const(channels + 1, "int32"), turn))))

    results = (("out", (channels,), "uint64"),)
    return te.extern("bank", [operand.tensor() for operand in operands], results, build)[0]


def _sums() -> tuple[Buffer, Buffer]:
    return Buffer("rising", (1,), "uint64", "register"), Buffer("falling", (1,), "uint64", "register")


def _cases_bank() -> Iterable[Case]:
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


# ---------------------------------------------------------------- filter_bank_square_root


def _infer_root(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _wants("filter_bank_square_root", types, "uint64", "int32")
    if types[1].size != 1:
        raise ModelError(f"filter_bank_square_root with {types[1].size} scales")
    return (TensorType(types[0].shape, "uint32"),)


def _reference_root(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    roots = []
    for value in (int(v) for v in arrays[0].reshape(-1)):
        root = int(np.floor(np.sqrt(float(value))))
        while root * root > value:
            root -= 1
        while (root + 1) * (root + 1) <= value:
            root += 1
        most = 0xFFFF if value < 1 << 32 else 0xFFFFFFFF
        roots.append((root + (value - root * root > root and root != most)) >> int(arrays[1].reshape(-1)[0]))
    return (np.array(roots, np.uint32).reshape(arrays[0].shape),)


def _compute_root(call: OpCall) -> te.Tensor:
    """Digit by digit, rounded to the nearest, shifted to the right."""
    data, scale = _operands(call)

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, right), (out,) = operands, results
        i, turn, bit, most = Var("i"), Var("turn"), Var("bit", "uint64"), Var("most", "uint64")
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
        step = ir.Let(bit, one << ir.cast("uint64", 62 - turn * 2), digit)
        limit = ir.select(ir.binary("lt", x[i], 1 << 32), ir.const(0xFFFF, "uint64"), 0xFFFFFFFF)
        up = ir.If(ir.Bin("and", rest[0] > root[0], root[0].ne(most)), ir.Store(root, (_ZERO,), root[0] + one))
        shifted = ir.binary("shr", ir.cast("uint32", root[0]), ir.cast("uint32", right[0]))
        start = ir.seq(ir.Store(rest, (_ZERO,), x[i]), ir.Store(root, (_ZERO,), ir.const(0, "uint64")))
        body = ir.seq(start, ir.For(turn, ir.const(32, "int32"), step), up, ir.Store(out, (i,), shifted))
        each = ir.Alloc(rest, ir.Alloc(root, ir.Let(most, limit, body)))
        return ir.For(i, ir.const(x.size, "int32"), each)

    operands = (data.tensor((data.type.size,)), scale.tensor((1,)))
    return te.extern("root", operands, (("out", (data.type.size,), "uint32"),), build)[0]


def _cases_root() -> Iterable[Case]:
    edges = [0, 1, 2, 3, 6, 7, (1 << 32) - 1, 1 << 32, (1 << 32) - 65536, (1 << 64) - 1, 12345678901234567]
    x = np.array(edges, np.uint64)
    for right in (0, 3):
        types = (TensorType(x.shape, "uint64"), TensorType((), "int32"))
        yield Case({}, types, arrays=(x, np.array(right, np.int32)), name=f"right {right}")


# ---------------------------------------------------------------- spectral_subtraction

_SUBTRACTION: Mapping[str, Attr] = {
    "smoothing": 0,
    "one_minus_smoothing": 0,
    "alternate_smoothing": 0,
    "alternate_one_minus_smoothing": 0,
    "smoothing_bits": 0,
    "min_signal_remaining": 0,
    "spectral_subtraction_bits": 0,
    "clamping": False,
}


def _infer_subtraction(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The signal and the noise estimated so far."""
    _wants("spectral_subtraction", types, "uint32", "uint32")
    if types[0].shape != types[1].shape or len(types[0].shape) != 1:
        raise ModelError(f"spectral_subtraction of shapes {types[0].shape} and {types[1].shape}")
    return TensorType(types[0].shape, "uint32"), TensorType(types[0].shape, "uint32")


def _reference_subtraction(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    signal, noise = ([int(v) for v in a] for a in arrays)
    word, bits = (1 << 32) - 1, attrs["spectral_subtraction_bits"]
    made, estimates = [], []
    for i, (value, old) in enumerate(zip(signal, noise, strict=True)):
        prefix = "alternate_" if i % 2 else ""
        scaled = value << attrs["smoothing_bits"] & word
        total = scaled * attrs[f"{prefix}smoothing"] + old * attrs[f"{prefix}one_minus_smoothing"]
        estimate = (total & (1 << 64) - 1) >> bits & word
        least = value * attrs["min_signal_remaining"] >> bits & word
        made.append(max(scaled - min(estimate, scaled) >> attrs["smoothing_bits"], least))
        estimates.append(min(estimate, scaled) if attrs["clamping"] else estimate)
    return np.array(made, np.uint32), np.array(estimates, np.uint32)


def _compute_subtraction(call: OpCall) -> tuple[te.Tensor, ...]:
    data, noise = _operands(call)
    attrs, size = call.attrs, data.type.size
    smooth, bits = ir.const(attrs["smoothing_bits"], "uint32"), ir.const(attrs["spectral_subtraction_bits"], "uint64")

    def factor(i: Expr, name: str) -> Expr:
        values = [ir.const(attrs[f"{prefix}{name}"], "uint64") for prefix in ("", "alternate_")]
        return ir.select((i % 2).eq(0), values[0], values[1])

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, old), (out, new) = operands, results
        i, value, scaled, estimate, less = (
            Var("i"),
            *(Var(n, "uint32") for n in ("value", "scaled", "estimate", "less")),
        )
        total = ir.cast("uint64", scaled) * factor(i, "smoothing")
        total = total + ir.cast("uint64", old[i]) * factor(i, "one_minus_smoothing")
        least = ir.cast("uint64", value) * ir.const(attrs["min_signal_remaining"], "uint64") >> bits
        kept = ir.maximum((scaled - less) >> smooth, ir.cast("uint32", least))
        stores = ir.seq(ir.Store(out, (i,), kept), ir.Store(new, (i,), less if attrs["clamping"] else estimate))
        lets = [
            (value, x[i]),
            (scaled, value << smooth),
            (estimate, ir.cast("uint32", total >> bits)),
            (less, ir.minimum(estimate, scaled)),
        ]
        return ir.For(i, ir.const(size, "int32"), with_names(lets, stores))

    results = (("out", (size,), "uint32"), ("noise", (size,), "uint32"))
    return te.extern("subtraction", (data.tensor((size,)), noise.tensor((size,))), results, build)


def _cases_subtraction() -> Iterable[Case]:
    numbers: dict[str, Attr] = {"smoothing": 410, "one_minus_smoothing": 15974, "alternate_smoothing": 983}
    numbers |= {"alternate_one_minus_smoothing": 15401, "min_signal_remaining": 819, "spectral_subtraction_bits": 14}
    x = np.array([0, 1, 77, 5000, 1 << 20, 4000000000], np.uint32)
    for clamping in (False, True):
        for smoothing in (0, 10):
            attrs = {**_SUBTRACTION, **numbers, "clamping": clamping, "smoothing_bits": smoothing}
            kind = TensorType(x.shape, "uint32")
            yield Case(attrs, (kind, kind), arrays=(x, x[::-1].copy()), name=f"{clamping} {smoothing}")


# ---------------------------------------------------------------- pcan

_SNR_BITS, _OUTPUT_BITS = 12, 6


def _infer_pcan(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The signal, the noise, and the table of gains: three points, then four numbers for every further bit of the noise."""
    _wants("pcan", types, "uint32", "uint32", "int16")
    if types[0].shape != types[1].shape or types[2].shape != (125,):
        raise ModelError(f"pcan of {types[0].shape} and {types[1].shape} with a table of {types[2].shape}")
    return (TensorType(types[0].shape, "uint32"),)


def _reference_pcan(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    table, word, made = [int(v) for v in arrays[2]], (1 << 32) - 1, []
    for value, noise in zip(*([int(v) for v in a.reshape(-1)] for a in arrays[:2]), strict=True):
        gain = table[noise] if noise <= 2 else _gain(noise, table)
        snr = (value * (gain & word) >> attrs["snr_shift"]) & word
        small = snr < 2 << _SNR_BITS
        square = (snr * snr & word) >> 2 + 2 * _SNR_BITS - _OUTPUT_BITS
        made.append(square if small else ((snr >> _SNR_BITS - _OUTPUT_BITS) - (1 << _OUTPUT_BITS)) & word)
    return (np.array(made, np.uint32).reshape(arrays[0].shape),)


def _gain(noise: int, table: Sequence[int]) -> int:
    """The table's parabola for the noise's highest bit."""
    bits = noise.bit_length()
    first = 4 * bits - 6
    share = (noise << 11 - bits if bits < 11 else noise >> bits - 11) & 0x3FF
    value = ((table[first + 2] * share >> 5) + (table[first + 1] << 5)) * share
    total = (value + (1 << 14) >> 15) + table[first]
    return (total + (1 << 15)) % (1 << 16) - (1 << 15)


def _compute_pcan(call: OpCall) -> te.Tensor:
    data, noise, gains = _operands(call)
    size, shift = data.type.size, ir.const(call.attrs["snr_shift"], "uint64")

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, old, table), (out,) = operands, results
        i, level, first, share = Var("i"), Var("level", "uint32"), Var("first"), Var("share")
        gain, snr = Var("gain"), Var("snr", "uint32")
        lets, bits = bit_length(level, "level")
        left, right = (ir.cast("uint32", ir.maximum(n, 0)) for n in (11 - bits, bits - 11))
        part = ir.cast("int32", ((level << left) >> right) & ir.const(0x3FF, "uint32"))
        entry = [ir.cast("int32", table[ir.clamp(first, 0, 122) + k]) for k in range(3)]
        parabola = ((((entry[2] * share) >> 5) + entry[1] * 32) * share + (1 << 14)) >> 15
        small = ir.cast("int32", table[ir.cast("int32", ir.minimum(level, 2))])
        chosen = ir.select(ir.binary("le", level, 2), small, ir.cast("int32", ir.cast("int16", parabola + entry[0])))
        product = ir.cast("uint64", x[i]) * ir.cast("uint64", ir.cast("uint32", gain))
        square = snr * snr >> ir.const(2 + 2 * _SNR_BITS - _OUTPUT_BITS, "uint32")
        line = (snr >> ir.const(_SNR_BITS - _OUTPUT_BITS, "uint32")) - ir.const(1 << _OUTPUT_BITS, "uint32")
        lets = [
            (level, old[i]),
            *lets,
            (first, bits * 4 - 6),
            (share, part),
            (gain, chosen),
            (snr, ir.cast("uint32", product >> shift)),
        ]
        shrunk = ir.select(ir.binary("lt", snr, 2 << _SNR_BITS), square, line)
        return ir.For(i, ir.const(size, "int32"), with_names(lets, ir.Store(out, (i,), shrunk)))

    operands = (data.tensor((size,)), noise.tensor((size,)), gains.tensor())
    return te.extern("gain", operands, (("out", (size,), "uint32"),), build)[0]


def _cases_pcan() -> Iterable[Case]:
    noise = np.array([0, 1, 2, 3, 9, 1000, 2047, 2048, 70000, 1 << 30, (1 << 32) - 1], np.uint32)
    x = np.array([0, 9, 70000, 1 << 31, 5, 77, 123456, 1, 4000000000, 3, 99], np.uint32)
    table = (np.arange(125) * 37 % 3000).astype(np.int16)
    kind = TensorType(x.shape, "uint32")
    for shift in (6, 0):
        yield Case({"snr_shift": shift}, (kind, kind, TensorType((125,), "int16")), (2,), (x, noise, table))


# ---------------------------------------------------------------- filter_bank_log

_LOG_SEGMENTS, _LOG_SCALE, _LN2 = 7, 16, 45426


def log_table() -> Array:
    """65536 (log2(1 + i / 128) - i / 128), i = 0 .. 128."""
    x = np.arange((1 << _LOG_SEGMENTS) + 1) / (1 << _LOG_SEGMENTS)
    return np.floor((1 << _LOG_SCALE) * (np.log2(1 + x) - x) + 0.5).astype(np.uint16)


def _infer_log(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _wants("filter_bank_log", types, "uint32")
    return (TensorType(types[0].shape, "int16"),)


def _reference_log(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    table, made = [int(v) for v in log_table()], []
    for value in (int(v) << attrs["input_correction_bits"] & 0xFFFFFFFF for v in arrays[0].reshape(-1)):
        if value <= 1:
            made.append(0)
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
        made.append(min(scaled, 32767))
    return (np.array(made, np.int16).reshape(arrays[0].shape),)


def _compute_log(call: OpCall) -> te.Tensor:
    """Natural logarithms by a table with interpolation."""
    (data,), size = _operands(call), call.out_types[0].size
    correction = ir.const(call.attrs["input_correction_bits"], "uint32")
    table = data.packed(log_table())

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, points), (out,) = operands, results
        i, value, share, segment = Var("i"), Var("value", "uint32"), Var("share"), Var("segment")
        lets, bits = bit_length(value, "value")
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
        return ir.For(i, ir.const(size, "int32"), with_names(lets, ir.Store(out, (i,), result)))

    return te.extern("log", (data.tensor((size,)), table), (("out", (size,), "int16"),), build)[0]


def _cases_log() -> Iterable[Case]:
    x = np.array([0, 1, 2, 3, 77, 65535, 65536, 1 << 20, 123456789, (1 << 32) - 1], np.uint32)
    for correction, scale in ((0, 64), (3, 1600)):
        attrs: dict[str, Attr] = {"input_correction_bits": correction, "output_scale": scale}
        yield Case(attrs, (TensorType(x.shape, "uint32"),), arrays=(x,), name=f"{correction} {scale}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "signal_window",
        infer=_infer_window,
        reference=_reference_window,
        scalar=_scalar_window,
        cases=_cases_window,
        operand_names=("data", "window"),
    ),
    OpDef(
        "fft_auto_scale",
        infer=_infer_scale,
        reference=_reference_scale,
        compute=_compute_scale,
        cases=_cases_scale,
        operand_names=("data",),
    ),
    OpDef(
        "signal_energy",
        infer=_infer_energy,
        reference=_reference_energy,
        compute=_compute_energy,
        cases=_cases_energy,
        operand_names=("data",),
    ),
    OpDef(
        "filter_bank",
        infer=_infer_bank,
        reference=_reference_bank,
        compute=_compute_bank,
        cases=_cases_bank,
        operand_names=("energies", "weights", "complements", "frequencies", "firsts", "widths"),
    ),
    OpDef(
        "filter_bank_square_root",
        infer=_infer_root,
        reference=_reference_root,
        compute=_compute_root,
        cases=_cases_root,
        operand_names=("data", "right"),
    ),
    OpDef(
        "spectral_subtraction",
        infer=_infer_subtraction,
        reference=_reference_subtraction,
        compute=_compute_subtraction,
        cases=_cases_subtraction,
        defaults=_SUBTRACTION,
        operand_names=("data", "noise"),
    ),
    OpDef(
        "pcan",
        infer=_infer_pcan,
        reference=_reference_pcan,
        compute=_compute_pcan,
        cases=_cases_pcan,
        operand_names=("data", "noise", "gains"),
    ),
    OpDef(
        "filter_bank_log",
        infer=_infer_log,
        reference=_reference_log,
        compute=_compute_log,
        cases=_cases_log,
        operand_names=("data",),
    ),
)
