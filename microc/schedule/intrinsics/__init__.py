"""Intrinsics as data, a file per instruction set: ``SCALAR`` and ``TENSOR`` by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from microc.schedule.intrinsics.base import Intrin, TensorIntrin
from microc.schedule.intrinsics.conversion import CONVERSION
from microc.schedule.intrinsics.correlation import CORRELATIONS
from microc.schedule.intrinsics.dsp import DSP, DSP_TENSOR
from microc.schedule.intrinsics.halves import HALVES
from microc.schedule.intrinsics.mve_lanes import MVE_LANES
from microc.schedule.intrinsics.mve_products import MVE_PRODUCTS
from microc.schedule.intrinsics.saturation import SATURATION
from microc.schedule.intrinsics.words import WORDS
from microc.sealed import Registry

SCALAR: Registry[Intrin] = Registry(
    "an intrinsic", {i.name: i for i in (*WORDS, *SATURATION, *CONVERSION, *HALVES, *DSP, *MVE_LANES, *MVE_PRODUCTS)}
)
"""The externs of plugins extend them for a while."""
TENSOR: Mapping[str, TensorIntrin] = MappingProxyType({t.name: t for t in (*DSP_TENSOR, *CORRELATIONS)})

__all__ = ["SCALAR", "TENSOR", "Intrin", "TensorIntrin"]
