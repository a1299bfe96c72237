"""TFLite detection operators and MediaPipe's custom ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.context import FLOAT, Application, Spelling, activation, explicit_padding, real_clip
from microc.frontend.tflite.operators_layers import layer_bias, layer_weights
from microc.frontend.tflite.operators_signal import number
from microc.graph.ir import Attr, Graph
from microc.ops.attributes import Rounding

# ---- Spellings of TFLite's operators that choose among boxes: NON_MAX_SUPPRESSION_V4, V5 and
# TFLite_Detection_PostProcess.
#
# Boxes are decoded in float32, where TFLite Micro decodes in double and rounds: a corner may differ in its last bits, and so a
# box whose overlap lies that close to the threshold may be chosen or not. What no detection fills is zero.

_DETECTION_MOST = 1 << 16
_PER_CLASS = 100


def non_max_suppression(application: Application) -> None:
    """NON_MAX_SUPPRESSION_V4 (places, count) and V5 (places, scores, count), which may fade scores. Bounds are constants."""
    soft = application.operator.code == "NON_MAX_SUPPRESSION_V5"
    boxes, scores = application.operand(0, "float32"), application.operand(1, "float32")
    (most,) = application.integers(2)[:1] or (0,)
    overlap, least, sigma = (
        float(application.constant(position).reshape(-1)[0]) if position < 5 or soft else 0.0 for position in (3, 4, 5)
    )
    if not (1 <= most <= _DETECTION_MOST and 0 <= overlap <= 1 and sigma >= 0) or application.rank(boxes, 2)[1] != 4:
        application.broken(f"{most} boxes of {application.type(boxes).shape} with overlaps up to {overlap}")
    attrs: dict[str, Attr] = {"most": most, "overlap": overlap, "score": least, "sigma": sigma}
    made = _emit_all(
        application, "suppress", (_ordered(application, boxes), scores), {**attrs, "overlap_inclusive": True}
    )
    wanted = made if soft else (made[0], made[2])
    for position, value in enumerate(wanted):
        application.result_reshape(value, application.type(value).shape, position)


def _ordered(application: Application, boxes: str) -> str:
    """Boxes given by any two corners that face each other, as (top, left, bottom, right)."""
    count = application.type(boxes).shape[0]
    corners = [_columns(application, boxes, first, first + 2) for first in (0, 2)]
    ends = [application.emit(op, corners, {"rounding": Rounding.NONE}) for op in ("minimum", "maximum")]
    return application.reshaped(application.emit("concat", ends, {"axis": 1}), (count, 4))


def _columns(application: Application, value: str, first: int, last: int) -> str:
    rows = application.type(value).shape[0]
    return application.emit("slice", (value,), {"begin": (0, first), "end": (rows, last), "strides": (1, 1)})


def _emit_all(application: Application, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> list[str]:
    """The three values that ``suppress`` makes, or the two of ``topk``."""
    count = 3 if op == "suppress" else 2
    names = [application.builder.file.unique(f"{application.loc.name}_{op}") for _ in range(count)]
    kinds = application.inferred(op, inputs, attrs)
    application.append(op, inputs, attrs, names, kinds)
    return names


# ---------------------------------------------------------------- TFLite_Detection_PostProcess


@frozen
class _Options:
    """What the operator's flexbuffer says. ``per_class``: boxes of a class (regular); ``per_box``: classes of a box (fast)."""

    most: int
    classes: int
    per_class: int
    per_box: int
    regular: bool
    score: float
    overlap: float
    scales: tuple[float, float, float, float]


def _options(application: Application) -> _Options:
    given = application.operator.custom

    def real(name: str) -> float:
        value = given.get(name)
        if isinstance(value, str | tuple) or value is None or not np.isfinite(value):
            application.broken(f"option {name} is {value!r}, no number")
        return float(value)

    def count(name: str, otherwise: int | None = None) -> int:
        number = otherwise if otherwise is not None and name not in given else int(real(name))
        if not 1 <= number <= _DETECTION_MOST:
            application.broken(f"option {name} is {number}, not 1..{_DETECTION_MOST}")
        return number

    y, x, h, w = (real(f"{side}_scale") for side in "yxhw")
    if 0.0 in (y, x, h, w) or not 0 < real("nms_iou_threshold") <= 1:
        application.broken("a scale of zero, or an overlap that is not within 0..1")
    regular, classes = bool(given.get("use_regular_nms", False)), count("num_classes")
    return _Options(
        count("max_detections"),
        classes,
        count("detections_per_class", _PER_CLASS),
        min(count("max_classes_per_detection", 1), classes),
        regular,
        real("nms_score_threshold"),
        real("nms_iou_threshold"),
        (y, x, h, w),
    )


def detection_post_process(application: Application) -> None:
    """Box encodings (1, N, 4 or more), class scores (1, N, C or 1 + C with a background first), anchors (N, 4)."""
    options = _options(application)
    encodings, predictions, anchors = (_real(application, position) for position in range(3))
    _, boxes, depth = application.rank(encodings, 3)
    shape = application.rank(predictions, 3)
    if depth < 4 or shape[:2] != (1, boxes) or not 0 <= shape[2] - options.classes <= 1:
        application.broken(f"boxes {application.type(encodings).shape}, scores {shape} for {options.classes} classes")
    if application.rank(anchors, 2) != (boxes, 4):
        application.broken(f"anchors of shape {application.type(anchors).shape} for {boxes} boxes")
    corners = _decoded(application, application.reshaped(encodings, (boxes, depth)), anchors, options)
    flat = application.reshaped(predictions, (boxes, shape[2]))
    scores = flat if shape[2] == options.classes else _columns(application, flat, 1, shape[2])
    (_regular if options.regular else _fast)(application, corners, scores, options)


def _real(application: Application, position: int) -> str:
    """An operand as floats; LiteRT's models give bytes, too."""
    kind = application.source(position).type
    if kind.dtype == "float32" or kind.quant is None or kind.quant.axis is not None:
        return application.operand(position, "float32")
    attrs: Mapping[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
    return application.emit("dequantize", (application.value(position),), attrs)


def _decoded(application: Application, encodings: str, anchors: str, options: _Options) -> str:
    """(y, x, h, w) relative to the anchors as (top, left, bottom, right)."""
    y, x, h, w = options.scales

    def scaled(first: int, scales: tuple[float, float]) -> str:
        by = application.new_constant("scales", np.array([scales], np.float32))
        return application.emit("div", (_columns(application, encodings, first, first + 2), by), {})

    centre, size = (_columns(application, anchors, first, first + 2) for first in (0, 2))
    offset = application.emit("mul", (scaled(0, (y, x)), size), {})
    middle = application.emit("add", (offset, centre), {})
    grown = application.emit("mul", (application.emit("exp", (scaled(2, (h, w)),), {}), size), {})
    half = application.emit("mul", (grown, application.scalar(0.5)), {})
    ends = [application.emit(op, (middle, half), {}) for op in ("sub", "add")]
    return application.emit("concat", ends, {"axis": 1})


def _suppression(options: _Options, most: int) -> Mapping[str, Attr]:
    return {"most": most, "overlap": options.overlap, "score": options.score, "score_inclusive": True}


def _fast(application: Application, boxes: str, scores: str, options: _Options) -> None:
    """Boxes by their best class; each chosen one once for every class that it may have."""
    each, rows = options.per_box, application.type(boxes).shape[0]
    top: Mapping[str, Attr] = {"axis": 1, "k": each, "largest": True, "out_dtype": "int32"}
    values, classes = _emit_all(application, "topk", (scores,), top)
    best = application.reshaped(_columns(application, values, 0, 1), (rows,))
    places, _, count = _emit_all(application, "suppress", (boxes, best), _suppression(options, options.most))
    rowwise = [application.emit("gather", (table, places), {"axis": 0}) for table in (boxes, classes, values)]
    if each > 1:
        wide = application.reshaped(rowwise[0], (options.most, 1, 4))
        rowwise[0] = application.emit("broadcast_to", (wide,), {"shape": (options.most, each, 4)})
        count = application.emit("mul", (count, application.new_constant("each", np.array(each, np.int32))), {})
    _results(application, rowwise, count, options.most * each)


def _regular(application: Application, boxes: str, scores: str, options: _Options) -> None:
    """Every class by itself; the best of what all of them keep."""
    names = [
        application.builder.file.unique(f"{application.loc.name}_{stem}") for stem in ("kept", "places", "classes")
    ]
    start = [
        application.new_constant("start", np.full(options.most, -np.inf, np.float32)),
        *(application.new_constant("start", np.zeros(options.most, np.int32)) for _ in range(2)),
    ]
    body = _one_class(application, application.type(boxes).shape[0], options)
    attrs: Mapping[str, Attr] = {"body": body, "count": options.classes, "carried": 3, "guarded": False}
    application.append("loop", (*start, boxes, scores), attrs, names, [application.type(name) for name in start])
    kept, places, classes = names
    filled = application.emit("greater", (kept, application.scalar(-np.inf)), {"rounding": Rounding.NONE})
    sum_attrs: Mapping[str, Attr] = {"axes": (0,), "keepdims": False, "rounding": Rounding.NONE}
    count = application.emit("sum", (application.emit("cast", (filled,), {"dtype": "int32"}),), sum_attrs)
    chosen = application.emit("gather", (boxes, places), {"axis": 0})
    _results(application, [chosen, classes, kept], count, options.most)


def _one_class(application: Application, rows: int, options: _Options) -> Graph:
    """A turn: the best so far and what the class adds to them; the class's number is the turn's."""
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    turn = body.input("turn", (), "int32")
    kept, places, classes = (
        body.input(n, (options.most,), d) for n, d in (("kept", "float32"), ("places", "int32"), ("classes", "int32"))
    )
    boxes, scores = body.input("boxes", (rows, 4)), body.input("scores", (rows, options.classes))
    own = body.emit("gather", (scores, turn), {"axis": 1})
    most = min(options.per_class, rows)
    found, values, count = body.emit_all("suppress", (boxes, own), _suppression(options, most))
    numbers = body.new_constant("numbers", np.arange(most, dtype=np.int32))
    real = body.emit("less", (numbers, count), {"rounding": Rounding.NONE})
    values = body.emit("where", (real, values, body.scalar(-np.inf)))
    number = body.emit("broadcast_to", (turn,), {"shape": (most,)})
    joined = [body.emit("concat", pair, {"axis": 0}) for pair in ((kept, values), (places, found), (classes, number))]
    top: Mapping[str, Attr] = {"axis": 0, "k": options.most, "largest": True, "out_dtype": "int32"}
    best, order = body.emit_all("topk", (joined[0],), top)
    moved = [body.emit("gather", (part, order), {"axis": 0}) for part in joined[1:]]
    return body.graph("one_class", {"next_kept": best, "next_places": moved[0], "next_classes": moved[1]})


def _results(application: Application, values: Sequence[str], count: str, most: int) -> None:
    """Boxes, classes, scores and their number as floats; zero behind the last."""
    places = application.new_constant("places", np.arange(most, dtype=np.int32))
    real = application.emit("less", (places, count), {"rounding": Rounding.NONE})
    shapes = ((1, most, 4), (1, most), (1, most))
    for position, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        flat = application.reshaped(value, (most, *shape[2:]))
        if application.type(flat).dtype != "float32":
            flat = application.emit("cast", (flat,), {"dtype": "float32"})
        mask = application.reshaped(real, (most, *(1,) * len(shape[2:])))
        filled = application.emit("where", (mask, flat, application.scalar(0.0)), {})
        application.result_reshape(filled, _declared(application, position, shape), position)
    total = application.emit("cast", (count,), {"dtype": "float32"})
    application.result_reshape(total, _declared(application, 3, (1,)), 3)


def _declared(application: Application, position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the file gives an output, where it gives one: converters leave those of this operator open."""
    target = application.target(position)
    return target.type.shape if target.type.shape and not target.unknown else shape


DETECTION_SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:TFLite_Detection_PostProcess": Spelling(detection_post_process, FLOAT),
    "NON_MAX_SUPPRESSION_V4": Spelling(non_max_suppression, ("int32",)),
    "NON_MAX_SUPPRESSION_V5": Spelling(non_max_suppression, ("int32",)),
}


# ---- Spellings of MediaPipe's custom operators on landmarks: the matrix that cuts out what lies around some of them,
# and landmarks moved by a matrix.
#
# A matrix of 4 x 4 sends pixels of the cut-out to pixels of the image: (x, y, 0, 1) to the first two of its product. In both
# versions the line between two landmarks is turned to an angle; the box around the turned subset, made larger, becomes the
# cut-out. Source: MediaPipe ``landmarks_to_transform_matrix.cc``, ``transform_landmarks.cc``.

_LANDMARKS_MOST = 1 << 15
_Pair = tuple[float, float]


@frozen
class _Crop:
    """What both versions come to: in x and y the factor of the image (``image``), that of the box in a pixel of the cut-out
    (``pixel``), what leads from its first pixel to its centre (``centre``), and the factor of the box's own centre (``middle``).

    ``level``: the angle that the line shall have; None: the first version's, by arctan of the slope.
    """

    subset: tuple[int, ...]
    level: float | None
    image: _Pair
    pixel: _Pair
    centre: _Pair
    middle: _Pair


def landmarks_to_matrix(application: Application) -> None:
    """Landmarks2TransformMatrix: landmarks of x, y, z give a matrix (1, 4, 4)."""
    crop = _second(application) if "subset_idxs" in application.operator.custom else _first(application)
    ends = tuple(number(application, f"{side}_rotation_idx", 0, _LANDMARKS_MOST) for side in ("left", "right"))
    data = application.operand(0)
    if application.type(data).size % 3 or 3 * max(*crop.subset, *ends) >= application.type(data).size:
        application.broken(f"landmark {max(*crop.subset, *ends)} of data of shape {application.type(data).shape}")
    points = _part(application, application.reshaped(data, (application.type(data).size // 3, 3)), (0, None), (0, 2))
    turn = _rotation(application, points, ends, crop.level)
    chosen = application.new_constant("subset", np.array(crop.subset, np.int32))
    turned = application.emit("matmul", (application.emit("gather", (points, chosen), {"axis": 0}), turn), {})
    high, low = (_reduced(application, op, turned, 0) for op in ("max", "min"))
    size = _scaled(application, application.emit("sub", (high, low), {}), crop.pixel)
    middle = _scaled(application, application.emit("add", (high, low), {}), (0.5, 0.5))
    linear = application.emit("mul", (turn, size), {})
    linear = _scaled(application, linear, crop.image, down=True)
    offset = _reduced(application, "sum", _scaled(application, linear, crop.centre), 1)
    middle = _reduced(application, "sum", application.emit("mul", (turn, middle), {}), 1)
    offset = application.emit("add", (_scaled(application, middle, crop.middle, down=True), offset), {})
    nothing = application.new_constant("nothing", np.zeros((2, 1), np.float32))
    rows = application.emit("concat", (linear, nothing, offset), {"axis": 1})
    below = application.new_constant("below", np.eye(4, dtype=np.float32)[2:])
    application.result_reshape(application.emit("concat", (rows, below), {"axis": 0}), (1, 4, 4))


def _first(application: Application) -> _Crop:
    """The first version: landmarks within a range, images from -1 to 1, corners aligned."""
    if number(application, "dimensions") != 3:
        application.refuse("landmarks that are not of x, y and z", "dimensions 3")
    span, factor = number(application, "landmarks_range", 1), _landmarks_real(application, "bbox_size_multiplier")
    (rows, columns), (high, wide) = (_pair(application, f"{side}_hw") for side in ("input", "output"))
    image = ((columns - 1) / 2, (rows - 1) / 2)
    pixel = (factor / span * 2 / (wide - 1), factor / span * 2 / (high - 1))
    middle = (image[0] * 2 / span, image[1] * 2 / span)
    return _Crop(_subset(application, "subset"), None, image, pixel, ((1 - wide) / 2, (1 - high) / 2), middle)


def _second(application: Application) -> _Crop:
    """The second version: landmarks in pixels, an angle that the line shall have."""
    wide, high = (number(application, f"output_{side}", 1, _LANDMARKS_MOST) for side in ("width", "height"))
    pixel = (_landmarks_real(application, "scale_x") / wide, _landmarks_real(application, "scale_y") / high)
    level = _landmarks_real(application, "target_rotation_radians")
    return _Crop(_subset(application, "subset_idxs"), level, (1, 1), pixel, (-wide / 2, -high / 2), (1, 1))


def _rotation(application: Application, points: str, ends: tuple[int, ...], level: float | None) -> str:
    """((cos r, sin r), (-sin r, cos r)): rows times it are turned by r."""
    left, right = (_part(application, points, (end, end + 1), (0, 2)) for end in ends)
    apart = application.emit("sub", (right, left), {})
    x, y = (_part(application, apart, (0, 1), (k, k + 1)) for k in (0, 1))
    if level is None:
        y, x = application.emit("div", (y, x), {}), application.new_constant("one", np.ones((1, 1), np.float32))
    angle = application.emit("atan2", (y, x), {"rounding": Rounding.NONE})
    aim = application.new_constant("level", np.full((1, 1), level or 0.0, np.float32))
    angle = application.emit("sub", (aim, angle), {})
    cosine, sine = (application.emit(op, (angle,), {}) for op in ("cos", "sin"))
    rows = ((cosine, sine), (application.emit("neg", (sine,), {}), cosine))
    return application.emit("concat", [application.emit("concat", row, {"axis": 1}) for row in rows], {"axis": 0})


def transform_landmarks(application: Application) -> None:
    """TransformLandmarks: x and y of all landmarks by the first two rows of a matrix, whose shift may be scaled."""
    data, matrix = application.operand(0), application.operand(1)
    shape, custom = application.rank(data, 3, 4), application.operator.custom
    axes = number(application, "dimensions", 2, 3) if "dimensions" in custom else shape[-1]
    size = application.type(data).size
    if shape[0] != 1 or shape[-1] % axes or axes not in (2, 3) or application.type(matrix).size != 16:
        application.broken(f"landmarks of shape {shape} by a matrix of shape {application.type(matrix).shape}")
    rows, entries = application.reshaped(data, (size // axes, axes)), application.reshaped(matrix, (4, 4))
    linear = application.emit("transpose", (_part(application, entries, (0, 2), (0, 2)),), {"axes": (1, 0)})
    shift = application.reshaped(_part(application, entries, (0, 2), (3, 4)), (1, 2))
    if "scale" in custom:
        shift = application.emit("mul", (shift, application.scalar(_landmarks_real(application, "scale"))), {})
    moved = application.emit("matmul", (_part(application, rows, (0, None), (0, 2)), linear), {})
    moved = application.emit("add", (moved, shift), {})
    if axes == 3:
        moved = application.emit("concat", (moved, _part(application, rows, (0, None), (2, 3))), {"axis": 1})
    application.result_reshape(moved, shape)


def _part(application: Application, value: str, rows: tuple[int, int | None], columns: tuple[int, int]) -> str:
    """Rows and columns of a matrix from one number up to another (None: to the last)."""
    last = application.type(value).shape[0] if rows[1] is None else rows[1]
    attrs = {"begin": (rows[0], columns[0]), "end": (last, columns[1]), "strides": (1, 1)}
    return application.emit("slice", (value,), attrs)


def _reduced(application: Application, op: str, value: str, axis: int) -> str:
    return application.emit(op, (value,), {"axes": (axis,), "keepdims": True, "rounding": Rounding.NONE})


def _scaled(application: Application, value: str, factors: _Pair, *, down: bool = False) -> str:
    """Columns (or rows) of x and of y, each times a factor."""
    numbers = np.array(factors, np.float32).reshape((2, 1) if down else (1, 2))
    return application.emit("mul", (value, application.new_constant("factors", numbers)), {})


def _landmarks_real(application: Application, name: str) -> float:
    value = application.operator.custom.get(name)
    if isinstance(value, str | tuple) or value is None or not np.isfinite(value):
        application.broken(f"option {name} is {value!r}, no number")
    return float(value)


def _pair(application: Application, name: str) -> tuple[int, int]:
    """Rows and columns of an image."""
    first, second = (*_integers(application, name), 0, 0)[:2]
    if not 2 <= min(first, second) <= max(first, second) <= _LANDMARKS_MOST:
        application.broken(f"option {name} is {(first, second)}")
    return first, second


def _subset(application: Application, name: str) -> tuple[int, ...]:
    found = _integers(application, name)
    if not found or min(found) < 0:
        application.broken(f"option {name} is {found}")
    return found


def _integers(application: Application, name: str) -> tuple[int, ...]:
    value = application.operator.custom.get(name)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


LANDMARKS_SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:Landmarks2TransformMatrix": Spelling(landmarks_to_matrix, FLOAT),
    "CUSTOM:TransformLandmarks": Spelling(transform_landmarks, FLOAT),
}


# ---- Spellings of MediaPipe's custom operators that are layers: a transposed convolution with a bias, pools that go
# back, images read at other places.
#
# All are of float32. The first three say their options as TFLite's structures of C, the others as a flexbuffer. Source: MediaPipe
# ``mediapipe/util/tflite/operations``.

_SAME, _VALID = 1, 2
"""TfLitePadding, as structures of C have it."""
_MEDIAPIPE_MOST = 1 << 15
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
    if batch != 1 or application.type(matrix).size != 16 or not 1 <= min(size) <= max(size) <= _MEDIAPIPE_MOST:
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
    return number(application, "output_height", 1, _MEDIAPIPE_MOST), number(
        application, "output_width", 1, _MEDIAPIPE_MOST
    )


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
    if (
        len(words) < count
        or words[0] not in (_SAME, _VALID)
        or not 1 <= min(words[1:5]) <= max(words[1:5]) <= _MEDIAPIPE_MOST
    ):
        application.broken(f"options {words}")
    return words


def _whole(application: Application, value: int) -> str:
    return application.new_constant("whole", np.array([value], np.int32))


MEDIAPIPE_SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:Convolution2DTransposeBias": Spelling(transpose_conv_bias, FLOAT),
    "CUSTOM:MaxPoolingWithArgmax2D": Spelling(max_pooling_with_argmax, FLOAT),
    "CUSTOM:MaxUnpooling2D": Spelling(max_unpooling, FLOAT),
    "CUSTOM:Resampler": Spelling(resampler, FLOAT),
    "CUSTOM:TransformTensor": Spelling(transform_tensor, FLOAT),
    "CUSTOM:TransformTensorBilinear": Spelling(transform_tensor, FLOAT),
}
