# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the extreme kind: scales, zero points, shapes and data of one model, all from one generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from microc.base.dtypes import Array
from tests.frontend.tflite_model import Op, Tensor, constant
from tests.ops.oracle import single

LEAST = float(np.finfo(np.float32).smallest_subnormal)
MOST = float(np.finfo(np.float32).max)
CALM = (np.nan, np.inf, -np.inf, 0.0, -0.0, LEAST, 1e-38, 1.0, -1.0, 0.5, 1000.0)
"""For sums, whose order shows at numbers next to the largest."""
BROKEN = (0.0, -0.125, float("nan"), float("inf"))
REALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, LEAST, -LEAST, 1e-38, MOST, -MOST, 1.0, -1.0, 0.5, 88.8, -104.0, 2.0**31)
SPECIAL = (2.0**-40, 2.0**-32, 2.0**-31, 2.0**-30, 2.0**-16, 2.0**-15, 2.0**-9, 1.0, 2.0**9, 2.0**16, 2.0**30, 2.0**31)
KINDS = {"mild": 0.3, "ratio": 0.24, "far": 0.2, "special": 0.14, "denormal": 0.07, "broken": 0.05}
"""How scales are drawn, and how often."""


@dataclass(frozen=True)
class Case:
    """A model, the data of some runs in order, and where it came from; ``slack``: how many quanta others may differ by."""

    name: str
    model: bytes
    runs: tuple[tuple[Array, ...], ...]
    slack: float = 0.0


@dataclass
class Draw:
    """What recipes draw from. ``kind`` speaks of the scales of the whole model."""

    rng: np.random.Generator
    kind: str = "mild"
    reals: tuple[float, ...] = REALS
    tensors: list[Tensor] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choice(self, *options: object) -> object:
        return options[int(self.rng.integers(len(options)))]

    def integer(self, *options: int) -> int:
        return options[int(self.rng.integers(len(options)))]

    def word(self, *options: str) -> str:
        return options[int(self.rng.integers(len(options)))]

    def extent(self) -> int:
        """Mostly a few, often one, rarely none."""
        return self.integer(1, 1, 2, 3, 4, 5, 7, 8, 9) if not self.chance(0.01) else 0

    def scale(self, around: float = 0.05) -> float:
        """A float32 scale; ``around``: what it is in a model of the mild kind."""
        mild = around * 2.0 ** self.rng.uniform(-2, 2)
        found = mild
        if self.kind == "ratio" and self.chance(0.5):
            found = mild * 2.0 ** (self.rng.uniform(9, 31) * self.integer(-1, 1))
        elif self.kind == "far":
            found = 2.0 ** self.rng.uniform(-40, 31)
        elif self.kind == "special" and self.chance(0.7):
            found = SPECIAL[int(self.rng.integers(len(SPECIAL)))]
        elif self.kind == "denormal" and self.chance(0.5):
            found = LEAST * float(self.rng.integers(1, 1 << int(self.rng.integers(1, 23))))
        elif self.kind == "broken" and self.chance(0.4):
            return BROKEN[int(self.rng.integers(len(BROKEN)))]
        return float(np.float32(min(max(found, LEAST), MOST)))

    def zero(self, dtype: str) -> int:
        """A zero point of a byte: often an end; of wider numbers 0, as TFLite has it. Outside of the dtype in broken models."""
        info = np.iinfo(dtype.lower())
        if self.kind == "broken" and self.chance(0.1):
            return self.integer(info.min - 1, info.max + 1)
        if info.bits > 8:
            return 0
        return self.integer(
            info.min, info.max, 0, info.min + info.max + 1 >> 1, int(self.rng.integers(info.min, info.max))
        )

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str, around: float = 0.05, **more: object) -> Tensor:
        """A tensor without data, quantised if it is of 8 or 16 bits."""
        scale = {"scale": (self.scale(around),), "zero_point": (self.zero(dtype),)} if dtype[-1] in "86" else {}
        return self.add(Tensor(name, shape, dtype.upper(), **{**scale, **more}))  # type: ignore[arg-type]

    def like(self, name: str, other: Tensor, shape: tuple[int, ...] | None = None, dtype: str = "") -> Tensor:
        """A tensor quantised as another one is, but for one in ten."""
        if self.chance(0.1):
            return self.tensor(name, other.shape if shape is None else shape, dtype or other.dtype.lower())
        kind = dtype.upper() or other.dtype
        return self.add(
            Tensor(name, other.shape if shape is None else shape, kind, None, other.scale, other.zero_point)
        )

    def add(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        return tensor

    def weights(self, name: str, shape: tuple[int, ...], axis: int, four_bits: bool = False) -> Tensor:
        """int8 weights (or packed int4), saturated now and then, with one scale or one for each channel along ``axis``."""
        count = shape[axis] if self.chance(0.6) else 1
        scales = tuple(self.scale(0.02) for _ in range(count))
        quant = {"scale": scales, "zero_point": (0,) * count, "axis": axis if count > 1 else 0}
        low, high = (-8, 7) if four_bits else (-128, 127)
        values = self.filled(np.int8, shape, low, high)
        if not four_bits:
            return self.add(constant(name, values, **quant))
        flat = np.append(values.reshape(-1), np.zeros(values.size % 2, np.int8)).astype(np.uint8) & 15
        return self.add(Tensor(name, shape, "INT4", (flat[::2] | flat[1::2] << 4).tobytes(), **quant))  # type: ignore[arg-type]

    def bias(self, name: str, count: int, data: Tensor, weights: Tensor, dtype: str) -> Tensor:
        """A bias scaled as TFLite wants it; small, of any size, or at the ends of its dtype."""
        info = np.iinfo(dtype)
        most = self.integer(1 << 10, 1 << 10, 1 << 20, 1 << 29, 1 << 31, 1 << 40, 1 << 47, 1 << 63)
        values = self.filled(np.dtype(dtype), (count,), max(info.min, -most), min(info.max, most - 1))
        with np.errstate(all="ignore"):
            scale = tuple(float(np.float32(data.scale[0]) * np.float32(s)) for s in weights.scale)
        return self.add(constant(name, values, scale=scale, zero_point=(0,) * len(scale)))

    def filled(self, dtype: object, shape: tuple[int, ...], low: int, high: int) -> Array:
        """Integers low..high: random, at one end, or at both."""
        how = self.rng.random()
        if how < 0.6:
            return self.rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)  # type: ignore[call-overload,no-any-return]
        ends = np.array([low, high] if how < 0.8 else [low] if how < 0.9 else [high], np.int64)
        return ends[self.rng.integers(len(ends), size=shape)].astype(dtype)  # type: ignore[call-overload,no-any-return]

    def data(self, shape: tuple[int, ...], dtype: str) -> Array:
        """What an input is given."""
        if dtype == "BOOL":
            return self.rng.random(shape) < 0.5
        if dtype == "FLOAT32":
            reals = self.rng.normal(size=shape) * 2.0 ** self.rng.uniform(-6, 10)
            odd = np.array(self.reals)[self.rng.integers(len(self.reals), size=shape)]
            share = self.rng.choice((0.0, 0.1, 1.0))
            with np.errstate(over="ignore"):
                return np.where(self.rng.random(shape) < share, odd, reals).astype(np.float32)
        info = np.iinfo(dtype.lower())
        return self.filled(np.dtype(dtype.lower()), shape, int(info.min), int(info.max))


Recipe = Callable[[Draw], Op]


def case(recipes: Mapping[str, Recipe], calm: Mapping[str, Recipe], seed: int, runs: int = 3) -> Case:
    """The model of a seed: its operator, its numbers, and what it runs on. ``calm``: recipes of operators that sum up."""
    rng = np.random.default_rng(seed)
    names = (*sorted(recipes), *sorted(calm))
    name = names[seed % len(names)]
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    draw = Draw(rng, kind, reals=CALM if name in calm else REALS)
    op = {**recipes, **calm}[name](draw)
    read = [t for t in draw.tensors if t.name in op.inputs and t.data is None and not t.variable]
    data = tuple(tuple(draw.data(t.shape, t.dtype) for t in read) for _ in range(runs))
    return Case(f"{seed} {name} {kind}", single(op, draw.tensors), data)
