"""Raw bytes at an input: what is computed of one of them each needs no scale that is measured.

A value that is an affine function of a byte, with a byte as its zero, is that byte: it is stored as it comes in. Compiled, what
makes it is nothing; and what makes other functions of bytes is a table (:mod:`microc.transform.unary_functions`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc import dtypes
from microc.graph.ir import Graph, Quant
from microc.quantization.scheme import SMALLEST, Activation
from microc.transform.unary_functions import Function, byte_functions

_EXACT = 2.0**-10
"""Of a step: what floats that make a function of a byte are off."""


def functions_of_bytes(graph: Graph) -> dict[str, Activation | None]:
    """The values that floats make of one byte each, and how those are stored that are it."""
    found: Mapping[str, Function] = byte_functions(graph)
    return {name: _as_byte(of, graph) for name, of in found.items() if graph.types[name].dtype == "float32"}


def _as_byte(found: Function, graph: Graph) -> Activation | None:
    dtype = graph.types[found.root].dtype
    low, high = dtypes.int_range(dtype)
    reals, levels = found.table.astype(np.float64), np.arange(low, high + 1)[:, None]
    scale = float(np.float32((reals[-1, 0] - reals[0, 0]) / (high - low)))
    if reals.shape[1] > 1 or not np.isfinite(reals).all() or not scale > SMALLEST:
        return None
    zero = int(np.rint(low - reals[0, 0] / scale))
    exact = np.abs((levels - zero) * scale - reals).max() <= _EXACT * scale
    return Activation(dtype, Quant((scale,), (zero,))) if exact and low <= zero <= high else None
