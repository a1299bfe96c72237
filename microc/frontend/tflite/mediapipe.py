"""Spellings of MediaPipe's custom operators that are layers: a transposed convolution with a bias, pools that go back, images
read at other places.

All are of float32. The first three say their options as TFLite's structures of C, the others as a flexbuffer. Source: MediaPipe
``mediapipe/util/tflite/operations``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.neural import layer_bias, layer_weights
from microc.frontend.tflite.signal import number
from microc.frontend.tflite.spelling import FLOAT, Spelling, activation, explicit_padding, real_clip
from microc.graph.ir import Attr
from microc.ops.rounding import Rounding

_SAME, _VALID = 1, 2
"""TfLitePadding, as structures of C have it."""
_MOST = 1 << 15
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_OUTSIDE = -2.0
"""A place of which no neighbour lies in any image."""
_NUDGE = 0.1
"""MediaPipe adds it to the number of an element, which is a float, so that cutting it off gives that number back."""


def transpose_conv_bias(application: Application) -> None:
    """Convolution2DTransposeBias: data, weights OHWI, bias. SAME leaves off what the last window does not need."""
    scheme, *across = _words(application, 3)
    data, weight = application.operand(0), layer_weights(application, 1, axis=0)
    shape, (out_channels, *window, depth) = application.rank(data, 4), application.rank(weight, 4)
    strides = (across[1], across[0])
    if depth != shape[3]:
        application.broken(f"weights of {depth} channels for {shape[3]}")
    rows = zip(shape[1:3], window, strides, strict=True)
    total = [max(0, taps - (extent - 1) % step - 1) if scheme == _SAME else 0 for extent, taps, step in rows]
    before = [pixels // 2 for pixels in total]
    after = [pixels - first for pixels, first in zip(total, before, strict=True)]
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": (*before, *after), "activation": ""}
    application.result("conv2d_transpose", (data, weight, *layer_bias(application, 2, out_channels)), attrs)


def max_pooling_with_argmax(application: Application) -> None:
    """MaxPoolingWithArgmax2D: the largest of each window, and its number in the window, row by row, plus 0.1."""
    scheme, across, down, width, height, code = _words(application, 6)
    data, function = application.operand(0), activation(application, code)
    extent, window, strides = application.rank(data, 4)[1:3], (height, width), (down, across)
    padding = explicit_padding(application, scheme - 1, (extent[0], extent[1]), window, strides)
    made = _largest(application, data, {"kernel": window, "strides": strides, "padding": padding, "dilation": (1, 1)})
    real_clip(application, application.emit("transpose", (made[0],), {"axes": _CHANNELS_LAST}), function)
    place = application.emit("cast", (made[1],), {"dtype": "int32"})
    pixels = _whole(application, extent[0] * extent[1])
    in_plane = application.emit("floor_mod", (place, pixels), {"rounding": Rounding.NONE})
    row = application.emit("floor_div", (in_plane, _whole(application, extent[1])), {"rounding": Rounding.NONE})
    step = application.emit("mul", (row, _whole(application, width - extent[1])), {"rounding": Rounding.NONE})
    rows, columns = (np.arange(n, dtype=np.int32) for n in application.type(place).shape[2:])
    first = (rows * down - padding[0])[:, None] * width + columns * across - padding[1]
    along = application.emit("add", (in_plane, step), {"rounding": Rounding.NONE})
    start = application.new_constant("first_elements", first.astype(np.int32))
    own = application.emit("sub", (along, start), {"rounding": Rounding.NONE})
    real = application.emit("cast", (own,), {"dtype": "float32"})
    last = application.emit("transpose", (real,), {"axes": _CHANNELS_LAST})
    application.result("add", (last, application.scalar(_NUDGE)), {}, 1)


def _largest(application: Application, data: str, attrs: Mapping[str, Attr]) -> list[str]:
    """The largest elements of all windows, and their places in the whole tensor, both channels first."""
    attrs = {**attrs, "column_major": False}
    planes = application.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})
    names = [application.builder.file.unique(f"{application.loc.name}_window") for _ in range(2)]
    kinds = application.inferred("window_argmax", (planes,), attrs)
    application.append("window_argmax", (planes,), attrs, names, kinds)
    return names


def max_unpooling(application: Application) -> None:
    """MaxUnpooling2D: windows of zeros but for one element, whose number in the window the second operand says."""
    _, across, down, width, height = _words(application, 5)
    if (across, down) != (width, height):
        application.refuse(f"windows of {height} x {width} every {down} x {across} pixels", "windows side by side")
    data, numbers = application.operand(0), application.operand(1)
    batch, rows, columns, channels = application.rank(data, 4)
    if application.type(numbers).shape != application.type(data).shape:
        application.broken(f"numbers of shape {application.type(numbers).shape} for {application.type(data).shape}")
    apart = (batch, rows, 1, columns, 1, channels)
    given = application.emit("cast", (application.reshaped(numbers, apart),), {"dtype": "int32"})
    own = np.arange(height * width, dtype=np.int32).reshape(1, 1, height, 1, width, 1)
    each = application.new_constant("elements", own)
    chosen = application.emit("equal", (given, each), {"rounding": Rounding.NONE})
    placed = application.emit("where", (chosen, application.reshaped(data, apart), application.scalar(0.0)), {})
    application.result_reshape(placed, (batch, rows * height, columns * width, channels))


def resampler(application: Application) -> None:
    """Resampler: the image at places (x, y) for every pixel, bilinear; what lies outside is zero."""
    data, places = application.operand(0), application.operand(1)
    shape = application.rank(data, 4)
    if application.type(places).shape != (*shape[:3], 2):
        application.broken(f"places of shape {application.type(places).shape} for an image of {shape}")
    _sampled(application, data, application.emit("reverse", (places,), {"axes": (3,)}))


def transform_tensor(application: Application) -> None:
    """TransformTensor, and TransformTensorBilinear, which counts places from the corner of the first pixel: the image where a
    matrix of 4 x 4 sends the pixels of the result, bilinear; a pixel that is sent outside is zero."""
    size = _output_size(application)
    data, matrix = application.operand(0), application.operand(1)
    batch, height, width, _ = application.rank(data, 4)
    if batch != 1 or application.type(matrix).size != 16 or not 1 <= min(size) <= max(size) <= _MOST:
        application.broken(f"{batch} images by a matrix of shape {application.type(matrix).shape} to {size} pixels")
    corner = 0.5 if application.operator.code.endswith("Bilinear") else 0.0
    entries = application.reshaped(matrix, (16,))
    column, row, shift = (_entries(application, entries, (4 + k, k)) for k in (0, 1, 3))
    places = shift
    for factor, axis, count in ((column, 2, size[1]), (row, 1, size[0])):
        shape = tuple(count if k == axis else 1 for k in range(4))
        numbers = (np.arange(count, dtype=np.float32) + np.float32(corner)).reshape(shape)
        pixels = application.new_constant("pixels", numbers)
        places = application.emit("add", (places, application.emit("mul", (factor, pixels), {})), {})
    if corner:
        places = application.emit("sub", (places, application.scalar(corner)), {})
    last = application.new_constant("last_pixels", np.array([height - 1, width - 1], np.float32))
    first = application.emit("greater_equal", (places, application.scalar(0.0)), {"rounding": Rounding.NONE})
    second = application.emit("less_equal", (places, last), {"rounding": Rounding.NONE})
    inside = application.emit("logical_and", (first, second), {})
    _sampled(application, data, application.emit("where", (inside, places, application.scalar(_OUTSIDE)), {}))


def _output_size(application: Application) -> tuple[int, int]:
    """Rows and columns of the result, by either version's options."""
    custom = application.operator.custom
    if custom.get("mode", "bilinear") != "bilinear":
        application.refuse(f"interpolation {custom['mode']!r}", "bilinear")
    pair = custom.get("output_size")
    if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(side, int) for side in pair):
        return int(pair[0]), int(pair[1])
    return number(application, "output_height", 1, _MOST), number(application, "output_width", 1, _MOST)


def _entries(application: Application, matrix: str, places: tuple[int, int]) -> str:
    """Two of a matrix's 16 numbers."""
    chosen = application.new_constant("entries", np.array(places, np.int32))
    return application.emit("gather", (matrix, chosen), {"axis": 0})


def _sampled(application: Application, data: str, places: str) -> None:
    """The result is the image at places (N, H, W, 2) of rows and columns."""
    planes = application.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})
    attrs: Mapping[str, Attr] = {"mode": "linear", "border": "zeros", "coordinates": "elements"}
    read = application.emit("grid_sample", (planes, places), attrs)
    application.result("transpose", (read,), {"axes": _CHANNELS_LAST})


def _words(application: Application, count: int) -> tuple[int, ...]:
    """The first options: how borders are padded, then what must be at least 1, but for an activation (the sixth)."""
    words = application.operator.words[:count]
    if len(words) < count or words[0] not in (_SAME, _VALID) or not 1 <= min(words[1:5]) <= max(words[1:5]) <= _MOST:
        application.broken(f"options {words}")
    return words


def _whole(application: Application, value: int) -> str:
    return application.new_constant("whole", np.array([value], np.int32))


SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:Convolution2DTransposeBias": Spelling(transpose_conv_bias, FLOAT),
    "CUSTOM:MaxPoolingWithArgmax2D": Spelling(max_pooling_with_argmax, FLOAT),
    "CUSTOM:MaxUnpooling2D": Spelling(max_unpooling, FLOAT),
    "CUSTOM:Resampler": Spelling(resampler, FLOAT),
    "CUSTOM:TransformTensor": Spelling(transform_tensor, FLOAT),
    "CUSTOM:TransformTensorBilinear": Spelling(transform_tensor, FLOAT),
}
