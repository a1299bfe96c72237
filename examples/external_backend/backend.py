# SPDX-License-Identifier: Apache-2.0
"""A vendor's library as a backend, in one file: `microc compile model.onnx --plugin backend.py --external acme`.

The library knows two things: a dense layer of floats with ReLU, and x * scale + shift with a constant for each channel. What it
has is below, as text; a real one would be read from where the user says that it is (``place``).
"""

from __future__ import annotations

import numpy as np

from microc.plugin import Backend, Code, Entry, P, Plugin, Region, Sources

HEADER = b"""#ifndef ACME_H
#define ACME_H
#include <stdint.h>
void acme_dense_relu(const float *x, const float *w, const float *b, float *y, int32_t rows, int32_t depth, int32_t units);
void acme_scale_shift(const float *x, const float *scale, const float *shift, float *y, int32_t size, int32_t channels);
#endif
"""
LIBRARY = b"""#include "acme.h"

void acme_dense_relu(const float *x, const float *w, const float *b, float *y, int32_t rows, int32_t depth, int32_t units)
{
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t u = 0; u < units; ++u) {
            float sum = b[u];
            for (int32_t k = 0; k < depth; ++k) {
                sum += x[r * depth + k] * w[u * depth + k];
            }
            y[r * units + u] = sum > 0.0f ? sum : 0.0f;
        }
    }
}

void acme_scale_shift(const float *x, const float *scale, const float *shift, float *y, int32_t size, int32_t channels)
{
    for (int32_t i = 0; i < size; ++i) {
        y[i] = x[i] * scale[i % channels] + shift[i % channels];
    }
}
"""


def check_dense(region: Region) -> str:
    """Why a dense layer is not for the library, as the end of a sentence; nothing where it is."""
    x, weight = (region.type(name) for name in region.root.inputs[:2])
    if x.dtype != "float32":
        return f"data are {x.dtype}, not float32"
    if region.const(region.root.inputs[1]) is None or weight.shape[0] % 4:
        return "weights are computed, or their number of rows is no multiple of 4"
    return ""


def dense(region: Region) -> Code:
    """C for it: ``in_0`` is the data, ``out_0`` the result, and constants have the names that ``data`` gives them."""
    (rows, depth), (_, units) = region.input_types[0].shape, region.output_types[0].shape
    weight, *bias = (region.const(name) for name in region.root.inputs[1:] if name)
    data = {"weight": weight, "bias": bias[0] if bias else np.zeros(units, np.float32)}
    call = f"acme_dense_relu(in_0, weight, bias, out_0, {rows}, {depth}, {units});"
    return Code((call,), data, instructions=2.0 * rows * depth * units, code_bytes=120)


def check_scale_shift(region: Region) -> str:
    kind = region.output_types[0]
    shapes = [region.type(region.values[name]).shape for name in ("scale", "shift")]
    if kind.dtype != "float32" or any(shape[-1:] != kind.shape[-1:] or np.prod(shape) != shape[-1] for shape in shapes):
        return "it takes floats, and one factor and one term for each channel"
    return ""


def scale_shift(region: Region) -> Code:
    kind = region.output_types[0]
    data = {name: region.const(region.values[name]) for name in ("scale", "shift")}
    call = f"acme_scale_shift(in_0, scale, shift, out_0, {kind.size}, {kind.shape[-1]});"
    return Code((call,), data, instructions=6.0 * kind.size, code_bytes=60)


def sources(place, target, functions) -> Sources:
    """What the library is built from. A larger one would give what ``functions`` need alone, and refuse other targets."""
    return Sources("acme", {"acme.h": HEADER, "acme.c": LIBRARY}, include=("",), licence="MIT", version="1.0")


ACME = Backend(
    "acme",
    (
        Entry("dense", P.op("dense", attrs={"activation": "relu"}), dense, check_dense),
        Entry(
            "scale_shift",
            P.op(
                "add", P.op("mul", P.any("x"), P.const("scale"), commutative=True), P.const("shift"), commutative=True
            ),
            scale_shift,
            check_scale_shift,
        ),
    ),
    open=sources,
    headers=("acme.h",),
    bound=1e-6,
)

PLUGIN = Plugin(backends=(ACME,))
