"""LSTM over a sequence, as the formats and vendors' libraries know it: a name for the loop that it is (``lstm_loop.py``).

    i, f, o = sigmoid(W x + R h + b)    g = tanh(W x + R h + b)    c' = clip(f c + i g)    h' = o tanh(c')

Weights (4 H, D), recurrent ones (4 H, H) and the bias (4 H,) hold the gates in the order i, f, g, o. Data are (T, B, D) or
(B, T, D); hidden and cell (B, H) are what the step before left. Results: hidden of every step in the order of the data, hidden
and cell behind the last one. Of integers the scales are on the types: one for each row of weights, which are int8, and a power of
two for the cell, which is int16.

Source: TFLite Micro ``lstm_eval.h`` (its plain cell), ``lstm_eval_common.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.attributes import DYNAMIC, SURFACE, flag, real
from microc.ops.recurrent.lstm_loop import as_loop
from microc.ops.registry import Case, OpDef

_DTYPES: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "float32": (("float32", "int8"), "float32", "float32"),
    "int8": (("int8",), "int16", "int32"),
    "int16": (("int8",), "int16", "int64"),
}
"""By the data's: of weights, of the cell, of the bias."""

_SHAPES = ((1, 5, 4, 3, False, 0.0), (2, 3, 2, 4, False, 0.5), (2, 3, 4, 1, True, 0.0))
"""Of cases: batch, steps, depth, units, time_major, cell_clip."""


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weights, recurrent, hidden, cell, *bias = types
    given = ", ".join(f"{kind.dtype} {kind.shape}" for kind in types)
    if len(data.shape) != 3 or len(hidden.shape) != 2 or data.dtype not in _DTYPES or len(bias) > 1:
        raise ModelError(f"lstm of {given}")
    batch, units = hidden.shape
    of_weights, of_cell, of_bias = _DTYPES[data.dtype]
    shapes = [(4 * units, data.shape[2]), (4 * units, units), (batch, units), (batch, units), (4 * units,)]
    kinds = [of_weights, of_weights, (data.dtype,), (of_cell,), (of_bias,)]
    fits = all(t.shape == s and t.dtype in k for t, s, k in zip(types[1:], shapes, kinds, strict=False))
    if not fits or data.shape[1 if attrs["time_major"] else 0] != batch or weights.dtype != recurrent.dtype:
        raise ModelError(
            f"lstm of {given}", hint="data, weights (4 H, D), recurrent weights (4 H, H), hidden, cell, bias"
        )
    rows = (*data.shape[:2], units)
    return tuple(TensorType(s, k) for s, k in ((rows, data.dtype), (hidden.shape, data.dtype), (cell.shape, of_cell)))


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Of floats; integers mean what the loop computes."""
    data, weights, recurrent, hidden, cell, *bias = (np.asarray(array, np.float64) for array in arrays)
    rows = []
    for x in data if attrs["time_major"] else data.swapaxes(0, 1):
        i, f, g, o = np.split(x @ weights.T + hidden @ recurrent.T + (bias[0] if bias else 0.0), 4, axis=1)
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        if attrs["cell_clip"] > 0:
            cell = np.clip(cell, -attrs["cell_clip"], attrs["cell_clip"])
        hidden = _sigmoid(o) * np.tanh(cell)
        rows.append(hidden)
    stacked = np.stack(rows, 0 if attrs["time_major"] else 1)
    return tuple(array.astype(np.float32) for array in (stacked, hidden, cell))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return types[0].shape[0] * types[0].shape[1] * (types[1].size + types[2].size)


def _cases() -> Iterable[Case]:
    for batch, steps, depth, units, time_major, clip in _SHAPES:
        lead = (steps, batch) if time_major else (batch, steps)
        shapes = ((*lead, depth), (4 * units, depth), (4 * units, units), (batch, units), (batch, units), (4 * units,))
        kinds = tuple(TensorType(shape, "float32") for shape in shapes)
        yield Case({"time_major": time_major, "cell_clip": clip}, kinds, consts=(1, 2, 5), tolerance=2e-6)
    without = tuple(TensorType(shape, "float32") for shape in ((1, 2, 3), (8, 3), (8, 2), (1, 2), (1, 2)))
    yield Case({}, without, consts=(1, 2), tolerance=2e-6, name="without bias")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "lstm",
        infer=_infer,
        reference=_reference,
        cases=_cases,
        attrs={
            "time_major": flag("whether steps are the first axis of the data, else sequences are"),
            "cell_clip": real("what the cell is held within, as a real number; 0: nothing", 0.0),
            "dynamic": DYNAMIC,
            **SURFACE,
        },
        expand=as_loop,
        macs=_macs,
        operand_names=("data", "weights", "recurrent", "hidden", "cell", "bias"),
    ),
)
