# SPDX-License-Identifier: Apache-2.0
"""Quantised ONNX models from the numbers of :mod:`tests.extremes.draw`: values, their scales and zero points, and operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from tests.extremes.draw import KINDS, REALS, Case, Draw
from tests.frontend.onnx_model import node, proto

MICROSOFT = "com.microsoft"
_RUNS = 3
_ERROR = 2.0**-20
"""Of a float32 sum of some hundred numbers, relative to the largest that it may have on the way."""


@dataclass
class Network(Draw):
    """``reach``: the largest real number that is summed up on the way to the result ``y``, in absolute terms. ``converted``: the
    largest that ONNX Runtime makes an integer of before it is clamped, which beyond 32 bits is any."""

    values: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    result: str = "uint8"
    reach: float = 0.0
    converted: float = 0.0

    def extent(self) -> int:
        """An extent of zero is an unknown one in ONNX models, to microc."""
        return super().extent() or 1

    def zero(self, dtype: str) -> int:
        """ONNX's zero points have the dtype of the data."""
        info = np.iinfo(dtype)
        return int(np.clip(super().zero(dtype), info.min, info.max))

    def quant(self, name: str, dtype: str, around: float = 0.05, count: int = 0) -> tuple[str, str]:
        """A scale and a zero point for ``name``, or ``count`` of them; what they are called."""
        scales = np.array([self.scale(around) for _ in range(max(count, 1))], np.float32)
        zeros = np.array([0 if dtype == "int32" else self.zero(dtype) for _ in scales], dtype)
        self.constants[f"{name}_s"], self.constants[f"{name}_z"] = (a if count else a[0] for a in (scales, zeros))
        return f"{name}_s", f"{name}_z"

    def value(self, name: str, shape: tuple[int, ...], dtype: str, constant: bool = False) -> str:
        """An input, or a constant."""
        if constant:
            self.constants[name] = self.data(shape, dtype.upper())
        else:
            self.values[name] = (shape, dtype)
        return name

    def triple(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        constant: bool = False,
        around: float = 0.05,
        count: int = 0,
    ) -> tuple[str, str, str]:
        """A quantised value of 8 bits with its scale and zero point."""
        return (self.value(name, shape, dtype, constant), *self.quant(name, dtype, around, count))

    def largest(self, name: str) -> float:
        """The largest real number that a quantised value of 8 bits may hold, in absolute terms."""
        with np.errstate(all="ignore"):
            return 255.0 * float(np.abs(np.nan_to_num(self.constants[f"{name}_s"])).max())

    def apply(self, code: str, inputs: tuple[str, ...], output: str = "y", domain: str = "", **attrs: Any) -> str:
        self.nodes.append(node(code, inputs, (output,), domain, **attrs))
        return output

    def dequantized(self, operand: tuple[str, str, str], axis: int = 1) -> str:
        """A triple as floats."""
        return self.apply("DequantizeLinear", operand, f"{operand[0]}_real", axis=axis)

    def quantized(self, real: str, dtype: str, around: float = 0.05) -> None:
        """The result: floats quantised to ``dtype``."""
        self.result = dtype
        self.apply("QuantizeLinear", (real, *self.quant("y", dtype, around)))

    @property
    def slack(self) -> float:
        """How many quanta two runtimes may be apart: one at ties, and what sums of floats lose where they cancel."""
        if "y_s" not in self.constants:
            return 0.0
        with np.errstate(all="ignore"):
            quantum = np.float64(np.min(self.constants["y_s"]))
            quanta = np.float64(self.reach) * _ERROR / quantum
            if self.converted / quantum >= 1 << 31:
                return np.inf
        return 1.0 + (float(np.floor(quanta)) if np.isfinite(quanta) and quanta > 0 else 0.0)


Recipe = Callable[[Network], None]


def case(recipes: dict[str, Recipe], seed: int) -> Case:
    """The model of a seed: its operator, its numbers, and what it runs on. NaN is no number that ONNX quantises."""
    rng = np.random.default_rng(seed)
    name = sorted(recipes)[seed % len(recipes)]
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    network = Network(rng, kind, reals=tuple(real for real in REALS if real == real))
    recipes[name](network)
    shapes = {value: shape for value, (shape, _) in network.values.items()}
    dtypes = {value: dtype for value, (_, dtype) in network.values.items()} | {"y": network.result}
    model = proto(network.nodes, shapes, network.constants, opset=21, dtypes=dtypes).SerializeToString()
    data = tuple(tuple(network.data(s, d.upper()) for s, d in network.values.values()) for _ in range(_RUNS))
    return Case(f"{seed} {name} {kind}", model, data, network.slack)
