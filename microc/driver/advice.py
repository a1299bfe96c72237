"""What to do about a network that is slower on a core than it could be, as sentences with the command to run.

Factors are the cost model's, of one layer in each arithmetic on the core in question: a pointwise convolution.
"""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from microc.driver.compile.pipeline import compile_model
from microc.driver.options import Options
from microc.frontend.graph_builder import GraphBuilder
from microc.frozen import frozen
from microc.graph.ir import Graph, Quant
from microc.module import Arithmetic
from microc.ops.rounding import Ties
from microc.target import Target, target_for

WORTHWHILE = 1.2
"""Times faster that integers must be to be spoken of."""
_PIXELS, _CHANNELS = 16, 32
_SCALE = Quant((0.0371,), (3,))
_WEIGHT_SCALE = Quant((0.0113,), (0,))


@frozen
class Speeds:
    """Estimated instructions on a core: of a layer in floats over those of it in int8, what a result scaled by a float takes more
    than one in fixed point, and what a dequantised number takes."""

    times: float
    scaling: float
    dequantizing: float


def advice(found: Arithmetic, source: str, target: Target, requantize: str) -> tuple[str, ...]:
    """Sentences for a network on a core; none for this computer, which only tries what boards will do.

    ``source``: the model as commands take it. ``requantize``: the option that it is compiled with.
    """
    if target.cpu == "host" or not (found.float_macs or found.float_scaled):
        return ()
    speeds, told = speeds_on(target.cpu), list[str]()
    if found.float_macs and speeds.times >= WORTHWHILE:
        core = "this core has no FPU" if not target.has("fpu") else f"the core is a {target.cpu}"
        what = "int8" if found.float_macs == found.macs else "its layers of floats in int8"
        told.append(
            f"{core}: {what} would be about {speeds.times:.{0 if speeds.times >= 9.5 else 1}f} times faster: "
            f"microc quantize {shlex.quote(source)} --data SAMPLES -o {shlex.quote(str(Path(source).with_suffix('.mcg')))}"
        )
    saved = round(found.float_scaled * speeds.scaling)
    if saved > 0 and requantize == "float":
        told.append(
            f"{found.float_scaled:,} results are scaled by floats: --requantize fixed saves about {saved:,} instructions "
            "of a run, and differs for ties alone, some in a million"
        )
    return tuple(told)


def arithmetic_data(found: Arithmetic, sentences: tuple[str, ...]) -> dict[str, Any]:
    """Plain data: multiply-accumulates in floats, their percentage of those that are left to do, why, and what to do."""
    share = 100 * found.float_macs / max(1, found.macs)
    return {
        "float_macs": found.float_macs,
        "float_share": share,
        "float_reasons": list(found.reasons),
        "half_weights": found.half_weights,
        "double_weights": found.double_weights,
        "advice": [*sentences, *notes(found)],
    }


def notes(found: Arithmetic) -> tuple[str, ...]:
    """Sentences about weights that take more bytes than they need."""
    return (*_double(found.double_weights), *map(_wide, found.wide_weights))


def _double(count: int) -> tuple[str, ...]:
    """What is said of bytes that take two."""
    if not count:
        return ()
    return (
        f"{count:,} weights of a byte and a zero point are nine bits and take two bytes: symmetric ones (int8, or uint8 around "
        f"128) save {count:,} bytes of flash",
    )


def _wide(name: str) -> str:
    """What is said of weights that no half holds."""
    return f"{name} stays float32: it has numbers from 65,520 on, which bfloat16 holds and float16 does not"


@cache
def speeds_on(cpu: str) -> Speeds:
    """How fast a core is in each arithmetic."""
    floats, exact, fixed = (
        compile_model(_layer(integers), target_for(cpu), Options(requantize=requantize)).instructions
        for integers, requantize in ((False, "float"), (True, "float"), (True, "fixed"))
    )
    count = _PIXELS * _CHANNELS
    net = GraphBuilder()
    reals = net.graph("reals", {"y": _reals(net, net.input("x", (1, count), "int8"), _SCALE)})
    dequantized = compile_model(reals, target_for(cpu), Options()).instructions
    return Speeds(floats / fixed, (exact - fixed) / count, dequantized / count)


def _layer(integers: bool) -> Graph:
    """A pointwise convolution of floats, or of int8 as ONNX's quantisers write it."""
    net = GraphBuilder()
    weight = np.random.default_rng(0).integers(-127, 128, (_CHANNELS, 1, 1, _CHANNELS)).astype(np.int8)
    x = net.input("x", (1, 1, _PIXELS, _CHANNELS), "int8" if integers else "float32")
    if integers:
        reals = net.new_constant("weight", weight)
        x, reals = _reals(net, x, _SCALE), _reals(net, reals, _WEIGHT_SCALE)
    else:
        reals = net.new_constant("weight", weight.astype(np.float32))
    y = net.op("conv2d", x, reals, padding=(0, 0, 0, 0), layout="NHWC")
    if integers:
        scale, zero = _SCALE.scale, _SCALE.zero_point
        y = net.op("quantize", y, scale=scale, zero_point=zero, axis=None, out_dtype="int8", rounding=Ties.EVEN)
    return net.graph("layer", {"y": y})


def _reals(net: GraphBuilder, stored: str, quant: Quant) -> str:
    return net.op("dequantize", stored, scale=quant.scale, zero_point=quant.zero_point, axis=None)
