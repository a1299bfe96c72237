"""Writing the ``requantize`` or ``requantize_float`` node at the end of a legalized operator.

Sources of the multipliers: TFLite ``kernel_util.cc`` (PopulateConvolutionQuantizationParams multiplies the scales as doubles,
GetQuantizedConvolutionMultipler as floats); ONNX Runtime's QLinearConv and QGemm (float32 throughout).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from microc.errors import UnsupportedError
from microc.fixed import quantize_multiplier, reduce_multiplier
from microc.frozen import frozen
from microc.graph.ir import Attr, Quant
from microc.ops.arith import Rewrite
from microc.ops.quantised.even import emit_requantize_even
from microc.ops.quantised.exact import is_exact_scale
from microc.ops.rounding import Multiplier, Rounding


@frozen
class Requantization:
    """Real multipliers (one, or one per channel) and where the result goes: its zero point, clamp and dtype.

    ``trailing`` counts the axes after the channels: 0, or 2 for NCHW.
    """

    multipliers: tuple[float, ...]
    zero_point: int
    minimum: int
    maximum: int
    dtype: str
    trailing: int = 0

    @property
    def result(self) -> Mapping[str, Attr]:
        """The attributes that say where the result goes."""
        return {
            "zero_point": self.zero_point,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "out_dtype": self.dtype,
        }


def product_multipliers(data: Quant, weight: Quant, output: Quant, rounding: str, single: bool) -> tuple[float, ...]:
    """data scale * weight scale / output scale, one for each weight scale.

    ``even`` computes in float32 throughout, but for products of scales that are no normal numbers there; ``single`` says that
    TFLite forms the product of the input scales in float32.
    """
    s, t = np.float32(data.scale[0]), np.float32(output.scale[0])
    scales = np.array(weight.scale, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        short, exact = s * scales, np.float64(s) * scales.astype(np.float64)
        if rounding == Rounding.EVEN:
            normal = np.isfinite(short) & (short >= np.finfo(np.float32).tiny)
            return tuple(float(x) for x in np.where(normal, short / t, (exact / t).astype(np.float32)))
        return tuple(float(x) for x in (short.astype(np.float64) if single else exact) / np.float64(t))


def within_float32(scale: float) -> float:
    """A multiplier in float32; of infinity the largest number, by which zero stays zero and all others go to an end."""
    return float(np.float32(min(scale, float(np.finfo(np.float32).max))))


def emit_requantize(
    rewrite: Rewrite,
    x: str,
    output: str,
    parameters: Requantization,
    rounding: str,
    bound: int = -1,
    input_zero_point: int = 0,
) -> None:
    """Append the node that scales integers ``x`` to ``output``.

    ``rounding``: ``double``, ``single``, ``wide`` or ``even``. ``bound``: the largest \\|x - input_zero_point\\|, -1 if unknown.
    """
    count = len(parameters.multipliers)
    shape = (count,) + (1,) * parameters.trailing
    if rounding == Rounding.EVEN:
        scales = np.array([within_float32(scale) for scale in parameters.multipliers], np.float32)
        if count == 1:
            rewrite.emit("requantize_float", (x,), output, {**parameters.result, "scale": float(scales[0])})
        else:
            operand = rewrite.constant("scale", scales.reshape(shape))
            rewrite.emit("requantize_float", (x, operand), output, {**parameters.result, "scale": None})
        return
    if rounding not in (Multiplier.DOUBLE, Multiplier.SINGLE, Multiplier.WIDE):
        raise UnsupportedError(f"the rounding {rounding!r}", hint="it is double, single or even")
    mantissas, shifts = _fixed(parameters.multipliers, 7 if rounding == Multiplier.WIDE else 30)
    if rounding == Multiplier.WIDE:
        mantissas = np.asarray(reduce_multiplier(mantissas))
    attrs: dict[str, Attr] = {**parameters.result, "rounding": rounding, "bound": bound}
    attrs |= {"input_zero_point": input_zero_point, "multiplier": None, "shift": None}
    attrs["shift_range"] = (int(shifts.min()), int(shifts.max()))
    operands = [x]
    if count == 1 or len(set(zip(mantissas.tolist(), shifts.tolist(), strict=True))) == 1:
        attrs |= {"multiplier": int(mantissas[0]), "shift": int(shifts[0])}
    else:
        dtype = np.int16 if rounding == Multiplier.WIDE else np.int32
        operands.append(rewrite.constant("multiplier", mantissas.astype(dtype).reshape(shape)))
        if len(set(shifts.tolist())) == 1:
            attrs["shift"] = int(shifts[0])
        else:
            operands.append(rewrite.constant("shift", shifts.astype(np.int8).reshape(shape)))
    rewrite.emit("requantize", operands, output, attrs)


def _fixed(multipliers: tuple[float, ...], most: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """Mantissas and shifts. A zero mantissa takes a shift that other channels have: any gives 0."""
    pairs = [quantize_multiplier(real, most) for real in multipliers]
    common = next((shift for mantissa, shift in pairs if mantissa), 0)
    mantissas = np.array([mantissa for mantissa, _ in pairs], np.int64)
    shifts = np.array([shift if mantissa else common for mantissa, shift in pairs], np.int64)
    return mantissas, shifts


def emit_scaled_sum(
    rewrite: Rewrite,
    x: str,
    bound: int,
    factor: Fraction,
    scale: float,
    result: Mapping[str, Attr],
    more: Mapping[str, Attr] = MappingProxyType({}),
) -> None:
    """Append what scales integer sums of a magnitude up to ``bound`` by ``factor``, ties to even: ``requantize_float`` by the
    float32 ``scale``, and where that is not exact for all of them ``requantize_even``, if that is. ``more`` are attributes of the
    former, which is taken if there are any: a mean over as many elements as a run has must be one node at all sizes."""
    low, high, zero = (int(str(result[name])) for name in ("minimum", "maximum", "zero_point"))
    inexact = not more and not is_exact_scale(scale, bound, factor, low - zero, high - zero)
    if not (inexact and emit_requantize_even(rewrite, x, bound, factor, result)):
        rewrite.emit("requantize_float", (x,), rewrite.node.outputs, {**result, "scale": scale, **more})
