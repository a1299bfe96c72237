"""Converters of TFLite's object detection operators and of MediaPipe's custom operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.context import (
    FLOAT,
    Converter,
    OpContext,
    activation_name,
    emit_float32_activation_as_output,
    resolve_padding_scheme,
)
from microc.frontend.tflite.operators_layers import read_layer_bias, read_layer_weights
from microc.frontend.tflite.operators_signal import read_integer_option
from microc.graph.ir import Attr, Graph
from microc.ops.attributes import Rounding

# ---- Converters of non-maximum suppression (NMS): NON_MAX_SUPPRESSION_V4, V5 and TFLite_Detection_PostProcess.
#
# Boxes are decoded in float32; TFLite Micro decodes them in double and rounds. A coordinate may therefore differ in its last
# bits. If the overlap of two boxes is that close to the threshold, microc may keep a box that TFLite Micro drops, or drop a box
# that it keeps. Unused entries of the results are zero.

_MAX_DETECTIONS = 1 << 16
_PER_CLASS = 100
"""Default of the option ``detections_per_class``: the maximum number of boxes kept for each class."""


def convert_non_max_suppression(context: OpContext) -> None:
    """Convert NON_MAX_SUPPRESSION_V4, with the outputs indices and count, and V5, with the outputs indices, scores and
    count.

    V5 can decay the scores of overlapping boxes (soft NMS). The maximum number of boxes and the thresholds must be
    constants.
    """
    soft = context.operator.code == "NON_MAX_SUPPRESSION_V5"
    boxes, scores = context.operand(0, "float32"), context.operand(1, "float32")
    (most,) = context.integers(2)[:1] or (0,)
    overlap, least, sigma = (
        float(context.constant(position).reshape(-1)[0]) if position < 5 or soft else 0.0 for position in (3, 4, 5)
    )
    if (
        not (1 <= most <= _MAX_DETECTIONS and 0 <= overlap <= 1 and sigma >= 0)
        or context.shape_of_rank(boxes, 2)[1] != 4
    ):
        got = f"{most} outputs of boxes {context.type(boxes).shape}, IoU threshold {overlap}, sigma {sigma}"
        context.broken(f"got {got}; expected 1..{_MAX_DETECTIONS} outputs, boxes (N, 4), 0..1 and at least 0")
    attrs: dict[str, Attr] = {"most": most, "overlap": overlap, "score": least, "sigma": sigma}
    results = _emit_suppress_or_topk(
        context, "suppress", (_sort_corners(context, boxes), scores), {**attrs, "overlap_inclusive": True}
    )
    kept = results if soft else (results[0], results[2])
    for position, value in enumerate(kept):
        context.result_reshape(value, context.type(value).shape, position)


def _sort_corners(context: OpContext, boxes: str) -> str:
    """Return boxes (N, 4), each given by any two opposite corners, as (top, left, bottom, right)."""
    count = context.type(boxes).shape[0]
    corners = [_slice_columns(context, boxes, first, first + 2) for first in (0, 2)]
    ends = [context.emit(op, corners, {"rounding": Rounding.NONE}) for op in ("minimum", "maximum")]
    return context.reshape(context.emit("concat", ends, {"axis": 1}), (count, 4))


def _slice_columns(context: OpContext, value: str, begin: int, end: int) -> str:
    """Return columns ``begin`` to ``end`` - 1 of a matrix."""
    rows = context.type(value).shape[0]
    return context.emit("slice", (value,), {"begin": (0, begin), "end": (rows, end), "strides": (1, 1)})


def _emit_suppress_or_topk(context: OpContext, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> list[str]:
    """Append a node of ``suppress`` or ``topk``; return the names of its three or two results."""
    count = 3 if op == "suppress" else 2
    names = [context.builder.file.reserve_name(f"{context.loc.name}_{op}") for _ in range(count)]
    types = context.infer_types(op, inputs, attrs)
    context.write_node_with_outputs(op, inputs, attrs, names, types)
    return names


# ---------------------------------------------------------------- TFLite_Detection_PostProcess


@frozen
class _DetectionOptions:
    """Options of TFLite_Detection_PostProcess.

    ``max_detections``: maximum number of detections. ``class_count``: number of classes. ``is_regular``: True for
    regular NMS, which suppresses the boxes of each class separately; False for fast NMS, which suppresses boxes by
    their best class. ``max_boxes_per_class``: maximum number of boxes kept for each class by regular NMS.
    ``classes_per_box``: number of classes listed for each box by fast NMS. ``min_score``: minimum score.
    ``max_overlap``: maximum intersection over union. ``encoding_scales``: scales of the encoded y, x, h and w.
    """

    max_detections: int
    class_count: int
    max_boxes_per_class: int
    classes_per_box: int
    is_regular: bool
    min_score: float
    max_overlap: float
    encoding_scales: tuple[float, float, float, float]


def _read_detection_options(context: OpContext) -> _DetectionOptions:
    """Read the options of TFLite_Detection_PostProcess from the operator's flexbuffer."""
    custom = context.operator.custom

    def read_finite_option(option_name: str) -> float:
        """Return the option ``option_name``, which must be a finite number."""
        value = custom.get(option_name)
        if isinstance(value, str | tuple) or value is None or not np.isfinite(value):
            context.broken(f"option {option_name} is {value!r}, expected a number")
        return float(value)

    def read_count_option(option_name: str, default: int | None = None) -> int:
        """Return the option ``option_name``, a number of objects; ``default`` if the option is absent."""
        number = default if default is not None and option_name not in custom else int(read_finite_option(option_name))
        if not 1 <= number <= _MAX_DETECTIONS:
            context.broken(f"option {option_name} is {number}, expected 1..{_MAX_DETECTIONS}")
        return number

    y, x, h, w = (read_finite_option(f"{side}_scale") for side in "yxhw")
    if 0.0 in (y, x, h, w) or not 0 < read_finite_option("nms_iou_threshold") <= 1:
        threshold = read_finite_option("nms_iou_threshold")
        got = f"x_scale {x}, y_scale {y}, w_scale {w}, h_scale {h} and nms_iou_threshold {threshold}"
        context.broken(f"got {got}; expected no scale of 0, and a threshold within 0..1")
    regular, classes = bool(custom.get("use_regular_nms", False)), read_count_option("num_classes")
    return _DetectionOptions(
        read_count_option("max_detections"),
        classes,
        read_count_option("detections_per_class", _PER_CLASS),
        min(read_count_option("max_classes_per_detection", 1), classes),
        regular,
        read_finite_option("nms_score_threshold"),
        read_finite_option("nms_iou_threshold"),
        (y, x, h, w),
    )


def convert_detection_post_process(context: OpContext) -> None:
    """Convert TFLite_Detection_PostProcess: decode boxes relative to anchors, then suppress overlapping boxes.

    Its operands are box encodings (1, N, 4 or more), class scores (1, N, C), and anchors (N, 4). Scores may have an
    additional first column for the background."""
    options = _read_detection_options(context)
    encodings, predictions, anchors = (_dequantised_operand(context, position) for position in range(3))
    _, boxes, depth = context.shape_of_rank(encodings, 3)
    shape = context.shape_of_rank(predictions, 3)
    if depth < 4 or shape[:2] != (1, boxes) or not 0 <= shape[2] - options.class_count <= 1:
        got = f"boxes {context.type(encodings).shape}, scores {shape}"
        context.broken(
            f"got {got}; expected (1, N, 4 or more) and (1, N, {options.class_count} or {options.class_count + 1})"
        )
    if context.shape_of_rank(anchors, 2) != (boxes, 4):
        context.broken(f"anchors: got shape {context.type(anchors).shape}, expected ({boxes}, 4)")
    corners = _decode_boxes(context, context.reshape(encodings, (boxes, depth)), anchors, options)
    flat = context.reshape(predictions, (boxes, shape[2]))
    scores = flat if shape[2] == options.class_count else _slice_columns(context, flat, 1, shape[2])
    (_emit_regular_nms if options.is_regular else _emit_fast_nms)(context, corners, scores, options)


def _dequantised_operand(context: OpContext, input_position: int) -> str:
    """Return an operand as float32. A quantised operand, as LiteRT's models may have, is dequantised."""
    type_ = context.input_tensor(input_position).type
    if type_.dtype == "float32" or type_.quant is None or type_.quant.axis is not None:
        return context.operand(input_position, "float32")
    attrs: Mapping[str, Attr] = {"scale": type_.quant.scale, "zero_point": type_.quant.zero_point, "axis": None}
    return context.emit("dequantize", (context.value(input_position),), attrs)


def _decode_boxes(context: OpContext, encodings: str, anchors: str, options: _DetectionOptions) -> str:
    """Decode boxes (y, x, h, w) that are encoded relative to anchors; return them as (top, left, bottom, right)."""
    y, x, h, w = options.encoding_scales

    def emit_columns_divided_by_scales(first_column: int, scales: tuple[float, float]) -> str:
        by = context.new_constant("scales", np.array([scales], np.float32))
        return context.emit("div", (_slice_columns(context, encodings, first_column, first_column + 2), by), {})

    centre, size = (_slice_columns(context, anchors, first, first + 2) for first in (0, 2))
    offset = context.emit("mul", (emit_columns_divided_by_scales(0, (y, x)), size), {})
    middle = context.emit("add", (offset, centre), {})
    sizes = context.emit("mul", (context.emit("exp", (emit_columns_divided_by_scales(2, (h, w)),), {}), size), {})
    half = context.emit("mul", (sizes, context.scalar(0.5)), {})
    ends = [context.emit(op, (middle, half), {}) for op in ("sub", "add")]
    return context.emit("concat", ends, {"axis": 1})


def _suppression_attributes(options: _DetectionOptions, max_boxes: int) -> Mapping[str, Attr]:
    """Return the attributes of a ``suppress`` node that keeps at most ``max_boxes`` boxes."""
    return {"most": max_boxes, "overlap": options.max_overlap, "score": options.min_score, "score_inclusive": True}


def _emit_fast_nms(context: OpContext, boxes: str, scores: str, options: _DetectionOptions) -> None:
    """Emit fast NMS: suppress boxes by the scores of their best classes.

    Every kept box is listed ``classes_per_box`` times in the results, once for each of its best classes."""
    classes_per_box, rows = options.classes_per_box, context.type(boxes).shape[0]
    top: Mapping[str, Attr] = {"axis": 1, "k": classes_per_box, "largest": True, "out_dtype": "int32"}
    values, classes = _emit_suppress_or_topk(context, "topk", (scores,), top)
    best = context.reshape(_slice_columns(context, values, 0, 1), (rows,))
    indices, _, count = _emit_suppress_or_topk(
        context, "suppress", (boxes, best), _suppression_attributes(options, options.max_detections)
    )
    rowwise = [context.emit("gather", (table, indices), {"axis": 0}) for table in (boxes, classes, values)]
    if classes_per_box > 1:
        wide = context.reshape(rowwise[0], (options.max_detections, 1, 4))
        rowwise[0] = context.emit("broadcast_to", (wide,), {"shape": (options.max_detections, classes_per_box, 4)})
        count = context.emit("mul", (count, context.new_constant("each", np.array(classes_per_box, np.int32))), {})
    _emit_detection_results(context, rowwise, count, options.max_detections * classes_per_box)


def _emit_regular_nms(context: OpContext, boxes: str, scores: str, options: _DetectionOptions) -> None:
    """Emit regular NMS: a loop over classes that suppresses the boxes of each class, and keeps the best boxes of all
    classes."""
    names = [context.builder.file.reserve_name(f"{context.loc.name}_{stem}") for stem in ("kept", "places", "classes")]
    start = [
        context.new_constant("start", np.full(options.max_detections, -np.inf, np.float32)),
        *(context.new_constant("start", np.zeros(options.max_detections, np.int32)) for _ in range(2)),
    ]
    body = _make_class_suppression_body(context, context.type(boxes).shape[0], options)
    attrs: Mapping[str, Attr] = {"body": body, "count": options.class_count, "carried": 3, "guarded": False}
    context.write_node_with_outputs(
        "loop", (*start, boxes, scores), attrs, names, [context.type(name) for name in start]
    )
    kept, indices, classes = names
    filled = context.emit("greater", (kept, context.scalar(-np.inf)), {"rounding": Rounding.NONE})
    sum_attrs: Mapping[str, Attr] = {"axes": (0,), "keepdims": False, "rounding": Rounding.NONE}
    count = context.emit("sum", (context.emit("cast", (filled,), {"dtype": "int32"}),), sum_attrs)
    chosen_boxes = context.emit("gather", (boxes, indices), {"axis": 0})
    _emit_detection_results(context, [chosen_boxes, classes, kept], count, options.max_detections)


def _make_class_suppression_body(context: OpContext, box_count: int, options: _DetectionOptions) -> Graph:
    """Return the body of regular NMS's loop over classes.

    It suppresses the boxes of one class, and merges the kept ones into the best boxes of earlier iterations.
    ``box_count`` is the number of boxes before suppression."""
    body = GraphBuilder(context.loc.file)
    body.at(context.loc.index, context.loc.name)
    iteration = body.input("turn", (), "int32")
    kept, places, classes = (
        body.input(n, (options.max_detections,), d)
        for n, d in (("kept", "float32"), ("places", "int32"), ("classes", "int32"))
    )
    boxes, scores = body.input("boxes", (box_count, 4)), body.input("scores", (box_count, options.class_count))
    own = body.emit("gather", (scores, iteration), {"axis": 1})
    most = min(options.max_boxes_per_class, box_count)
    suppressed, values, count = body.emit_all("suppress", (boxes, own), _suppression_attributes(options, most))
    numbers = body.new_constant("numbers", np.arange(most, dtype=np.int32))
    is_valid = body.emit("less", (numbers, count), {"rounding": Rounding.NONE})
    values = body.emit("where", (is_valid, values, body.scalar(-np.inf)))
    number = body.emit("broadcast_to", (iteration,), {"shape": (most,)})
    merged = [
        body.emit("concat", pair, {"axis": 0}) for pair in ((kept, values), (places, suppressed), (classes, number))
    ]
    top: Mapping[str, Attr] = {"axis": 0, "k": options.max_detections, "largest": True, "out_dtype": "int32"}
    best, order = body.emit_all("topk", (merged[0],), top)
    sorted_parts = [body.emit("gather", (part, order), {"axis": 0}) for part in merged[1:]]
    return body.graph("one_class", {"next_kept": best, "next_places": sorted_parts[0], "next_classes": sorted_parts[1]})


def _emit_detection_results(
    context: OpContext, values: Sequence[str], detection_count: str, max_detections: int
) -> None:
    """Define the outputs of TFLite_Detection_PostProcess as float32: boxes, classes, scores, and the number of
    detections.

    ``values``: boxes, classes and scores. Their entries after the last detection become zero."""
    positions = context.new_constant("places", np.arange(max_detections, dtype=np.int32))
    is_valid = context.emit("less", (positions, detection_count), {"rounding": Rounding.NONE})
    shapes = ((1, max_detections, 4), (1, max_detections), (1, max_detections))
    for position, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        flat = context.reshape(value, (max_detections, *shape[2:]))
        if context.type(flat).dtype != "float32":
            flat = context.emit("cast", (flat,), {"dtype": "float32"})
        mask = context.reshape(is_valid, (max_detections, *(1,) * len(shape[2:])))
        filled = context.emit("where", (mask, flat, context.scalar(0.0)), {})
        context.result_reshape(filled, _declared_or_default_shape(context, position, shape), position)
    total = context.emit("cast", (detection_count,), {"dtype": "float32"})
    context.result_reshape(total, _declared_or_default_shape(context, 3, (1,)), 3)


def _declared_or_default_shape(context: OpContext, position: int, default_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the file declares for output ``position``; ``default_shape`` if it declares no shape.

    TFLite converters declare no shapes for the outputs of TFLite_Detection_PostProcess."""
    target = context.output_tensor(position)
    return target.type.shape if target.type.shape and not target.unknown_axes else default_shape


DETECTION_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:TFLite_Detection_PostProcess": Converter(convert_detection_post_process, FLOAT),
    "NON_MAX_SUPPRESSION_V4": Converter(convert_non_max_suppression, ("int32",)),
    "NON_MAX_SUPPRESSION_V5": Converter(convert_non_max_suppression, ("int32",)),
}


# ---- Converters of MediaPipe's custom operators on landmarks (points of a face or hand).
#
# Landmarks2TransformMatrix computes a crop of the image that contains a subset of the landmarks. It rotates the landmarks until
# the line between two of them has a given angle. The crop is the bounding box of the rotated subset, enlarged. The result is a
# 4 x 4 matrix that maps pixels of the crop to pixels of the image: the image's x and y are the first two elements of the
# product of the matrix and (x, y, 0, 1). The operator has two versions, with different options. TransformLandmarks multiplies
# landmarks by such a matrix. Source: MediaPipe ``landmarks_to_transform_matrix.cc``, ``transform_landmarks.cc``.

_MAX_LANDMARKS = 1 << 15
_Pair = tuple[float, float]


@frozen
class _CropParameters:
    """Parameters of Landmarks2TransformMatrix, computed from the options of either version. Pairs are (x, y).

    ``landmark_subset``: indices of the landmarks that the crop contains. ``line_angle``: angle in radians that the line
    between the two landmarks gets; None for version 1, which rotates by the arctangent of the line's slope.
    ``pixel_factors``: factors from the size of the bounding box to the size of a pixel of the crop. ``image_factors``:
    factors from the unit of that size to pixels of the image. ``crop_offset``: offset from the centre of the crop to
    its first pixel. ``centre_factors``: factors from the centre of the bounding box to pixels of the image.
    """

    landmark_subset: tuple[int, ...]
    line_angle: float | None
    image_factors: _Pair
    pixel_factors: _Pair
    crop_offset: _Pair
    centre_factors: _Pair


def convert_landmarks_to_transform_matrix(context: OpContext) -> None:
    """Convert Landmarks2TransformMatrix: compute the matrix (1, 4, 4) of a crop from landmarks of x, y and z."""
    crop = (
        _read_crop_parameters_v2(context)
        if "subset_idxs" in context.operator.custom
        else _read_crop_parameters_v1(context)
    )
    ends = tuple(read_integer_option(context, f"{side}_rotation_idx", 0, _MAX_LANDMARKS) for side in ("left", "right"))
    data = context.operand(0)
    if context.type(data).size % 3 or 3 * max(*crop.landmark_subset, *ends) >= context.type(data).size:
        got = f"landmark {max(*crop.landmark_subset, *ends)} of data of shape {context.type(data).shape}"
        context.broken(f"got {got}, expected x, y and z of each landmark up to it")
    points = _slice_matrix(context, context.reshape(data, (context.type(data).size // 3, 3)), (0, None), (0, 2))
    rotation = _emit_rotation_matrix(context, points, ends, crop.line_angle)
    chosen = context.new_constant("subset", np.array(crop.landmark_subset, np.int32))
    rotated = context.emit("matmul", (context.emit("gather", (points, chosen), {"axis": 0}), rotation), {})
    high, low = (_emit_axis_reduction(context, op, rotated, 0) for op in ("max", "min"))
    size = _scale_columns(context, context.emit("sub", (high, low), {}), crop.pixel_factors)
    middle = _scale_columns(context, context.emit("add", (high, low), {}), (0.5, 0.5))
    linear = context.emit("mul", (rotation, size), {})
    linear = _scale_columns(context, linear, crop.image_factors, as_rows=True)
    offset = _emit_axis_reduction(context, "sum", _scale_columns(context, linear, crop.crop_offset), 1)
    middle = _emit_axis_reduction(context, "sum", context.emit("mul", (rotation, middle), {}), 1)
    offset = context.emit("add", (_scale_columns(context, middle, crop.centre_factors, as_rows=True), offset), {})
    zeros = context.new_constant("nothing", np.zeros((2, 1), np.float32))
    rows = context.emit("concat", (linear, zeros, offset), {"axis": 1})
    below = context.new_constant("below", np.eye(4, dtype=np.float32)[2:])
    context.result_reshape(context.emit("concat", (rows, below), {"axis": 0}), (1, 4, 4))


def _read_crop_parameters_v1(context: OpContext) -> _CropParameters:
    """Read the options of Landmarks2TransformMatrix, version 1.

    Landmarks are in 0 .. ``landmarks_range``. Image coordinates are -1 .. 1, from the centre of the first pixel to that
    of the last one."""
    if (dimensions := read_integer_option(context, "dimensions")) != 3:
        context.refuse(f"option dimensions: got {dimensions}, expected 3 (x, y and z)", "set dimensions to 3")
    span, factor = (
        read_integer_option(context, "landmarks_range", 1),
        _read_finite_option(context, "bbox_size_multiplier"),
    )
    (rows, columns), (high, wide) = (_read_image_size_option(context, f"{side}_hw") for side in ("input", "output"))
    image = ((columns - 1) / 2, (rows - 1) / 2)
    pixel = (factor / span * 2 / (wide - 1), factor / span * 2 / (high - 1))
    middle = (image[0] * 2 / span, image[1] * 2 / span)
    return _CropParameters(
        _read_landmark_indices_option(context, "subset"), None, image, pixel, ((1 - wide) / 2, (1 - high) / 2), middle
    )


def _read_crop_parameters_v2(context: OpContext) -> _CropParameters:
    """Read the options of Landmarks2TransformMatrix, version 2.

    Landmarks are in pixels, and an option gives the angle of the line between the two landmarks."""
    wide, high = (read_integer_option(context, f"output_{side}", 1, _MAX_LANDMARKS) for side in ("width", "height"))
    pixel = (_read_finite_option(context, "scale_x") / wide, _read_finite_option(context, "scale_y") / high)
    level = _read_finite_option(context, "target_rotation_radians")
    return _CropParameters(
        _read_landmark_indices_option(context, "subset_idxs"), level, (1, 1), pixel, (-wide / 2, -high / 2), (1, 1)
    )


def _emit_rotation_matrix(
    context: OpContext, points: str, line_landmarks: tuple[int, ...], line_angle: float | None
) -> str:
    """Return the matrix ((cos r, sin r), (-sin r, cos r)), whose product with rows of points rotates them by the angle
    r.

    r is ``line_angle`` minus the angle of the line between the two landmarks with the indices ``line_landmarks``. If
    ``line_angle`` is None, r is minus the arctangent of the line's slope."""
    left, right = (_slice_matrix(context, points, (end, end + 1), (0, 2)) for end in line_landmarks)
    difference = context.emit("sub", (right, left), {})
    x, y = (_slice_matrix(context, difference, (0, 1), (k, k + 1)) for k in (0, 1))
    if line_angle is None:
        y, x = context.emit("div", (y, x), {}), context.new_constant("one", np.ones((1, 1), np.float32))
    angle = context.emit("atan2", (y, x), {"rounding": Rounding.NONE})
    target_angle = context.new_constant("level", np.full((1, 1), line_angle or 0.0, np.float32))
    angle = context.emit("sub", (target_angle, angle), {})
    cosine, sine = (context.emit(op, (angle,), {}) for op in ("cos", "sin"))
    rows = ((cosine, sine), (context.emit("neg", (sine,), {}), cosine))
    return context.emit("concat", [context.emit("concat", row, {"axis": 1}) for row in rows], {"axis": 0})


def convert_transform_landmarks(context: OpContext) -> None:
    """Convert TransformLandmarks: multiply x and y of all landmarks by the first two rows of a 4 x 4 matrix.

    The option ``scale`` multiplies the matrix's offset. A third coordinate is returned unchanged."""
    data, matrix = context.operand(0), context.operand(1)
    shape, custom = context.shape_of_rank(data, 3, 4), context.operator.custom
    axes = read_integer_option(context, "dimensions", 2, 3) if "dimensions" in custom else shape[-1]
    size = context.type(data).size
    if shape[0] != 1 or shape[-1] % axes or axes not in (2, 3) or context.type(matrix).size != 16:
        got = f"landmarks of shape {shape} and a matrix of shape {context.type(matrix).shape}"
        context.broken(f"got {got}, expected a batch of 1, 2 or 3 coordinates and a matrix of 16 elements")
    rows, entries = context.reshape(data, (size // axes, axes)), context.reshape(matrix, (4, 4))
    linear = context.emit("transpose", (_slice_matrix(context, entries, (0, 2), (0, 2)),), {"axes": (1, 0)})
    shift = context.reshape(_slice_matrix(context, entries, (0, 2), (3, 4)), (1, 2))
    if "scale" in custom:
        shift = context.emit("mul", (shift, context.scalar(_read_finite_option(context, "scale"))), {})
    moved = context.emit("matmul", (_slice_matrix(context, rows, (0, None), (0, 2)), linear), {})
    moved = context.emit("add", (moved, shift), {})
    if axes == 3:
        moved = context.emit("concat", (moved, _slice_matrix(context, rows, (0, None), (2, 3))), {"axis": 1})
    context.result_reshape(moved, shape)


def _slice_matrix(
    context: OpContext, matrix: str, row_range: tuple[int, int | None], column_range: tuple[int, int]
) -> str:
    """Emit a slice of a matrix. The ranges are (begin, end). If the end of ``row_range`` is None, the slice contains
    all rows from its begin on."""
    last = context.type(matrix).shape[0] if row_range[1] is None else row_range[1]
    attrs = {"begin": (row_range[0], column_range[0]), "end": (last, column_range[1]), "strides": (1, 1)}
    return context.emit("slice", (matrix,), attrs)


def _emit_axis_reduction(context: OpContext, op: str, value: str, axis: int) -> str:
    """Emit the reduction of a value over one axis. The result has extent 1 along this axis."""
    return context.emit(op, (value,), {"axes": (axis,), "keepdims": True, "rounding": Rounding.NONE})


def _scale_columns(context: OpContext, value: str, factors: _Pair, *, as_rows: bool = False) -> str:
    """Multiply the two columns (x and y) of a matrix by one factor each; with ``as_rows`` its two rows."""
    numbers = np.array(factors, np.float32).reshape((2, 1) if as_rows else (1, 2))
    return context.emit("mul", (value, context.new_constant("factors", numbers)), {})


def _read_finite_option(context: OpContext, option_name: str) -> float:
    """Return the option ``option_name``, which must be a finite number."""
    value = context.operator.custom.get(option_name)
    if isinstance(value, str | tuple) or value is None or not np.isfinite(value):
        context.broken(f"option {option_name} is {value!r}, expected a number")
    return float(value)


def _read_image_size_option(context: OpContext, option_name: str) -> tuple[int, int]:
    """Return the option ``option_name``, a list of two integers: an image's numbers of rows and columns, each at least
    2."""
    first, second = (*_read_integers_option(context, option_name), 0, 0)[:2]
    if not 2 <= min(first, second) <= max(first, second) <= _MAX_LANDMARKS:
        context.broken(f"option {option_name} is {(first, second)}, expected two numbers in 2..{_MAX_LANDMARKS}")
    return first, second


def _read_landmark_indices_option(context: OpContext, option_name: str) -> tuple[int, ...]:
    """Return the option ``option_name``, a list of indices of landmarks."""
    indices = _read_integers_option(context, option_name)
    if not indices or min(indices) < 0:
        context.broken(f"option {option_name} is {indices}, expected landmark numbers of at least 0")
    return indices


def _read_integers_option(context: OpContext, option_name: str) -> tuple[int, ...]:
    """Return the option ``option_name``, a list of integers; () if the option is absent."""
    value = context.operator.custom.get(option_name)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


LANDMARKS_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:Landmarks2TransformMatrix": Converter(convert_landmarks_to_transform_matrix, FLOAT),
    "CUSTOM:TransformLandmarks": Converter(convert_transform_landmarks, FLOAT),
}


# ---- Converters of MediaPipe's custom layers: transposed convolution with a bias, max pooling with argmax and its inverse,
# resampling of images.
#
# All of these layers are float32. The options of the first three are C structures of TFLite; the others have a flexbuffer.
# Source: MediaPipe ``mediapipe/util/tflite/operations``.

_SAME, _VALID = 1, 2
"""Numbers of padding schemes in TFLite's C structures (TfLitePadding)."""
_MAX_PIXELS = 1 << 15
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_OUTSIDE = -2.0
"""Coordinate of a sampling position so far outside of the image that none of its neighbouring pixels is inside."""
_NUDGE = 0.1
"""Offset that MediaPipe adds to an element's index, which is a float. Truncation then gives the index even after
rounding errors."""


def convert_transpose_conv_with_bias(context: OpContext) -> None:
    """Convert Convolution2DTransposeBias. Its operands are data, weights OHWI and a bias.

    With the padding scheme SAME the result is cropped."""
    scheme, *across = _read_c_struct_options(context, 3)
    data, weight = context.operand(0), read_layer_weights(context, 1, channel_axis=0)
    shape, (out_channels, *window, depth) = context.shape_of_rank(data, 4), context.shape_of_rank(weight, 4)
    strides = (across[1], across[0])
    if depth != shape[3]:
        context.broken(f"weights: got {depth} input channels, expected {shape[3]}, the data's channels")
    rows = zip(shape[1:3], window, strides, strict=True)
    total = [max(0, taps - (extent - 1) % step - 1) if scheme == _SAME else 0 for extent, taps, step in rows]
    before = [pixels // 2 for pixels in total]
    after = [pixels - first for pixels, first in zip(total, before, strict=True)]
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": (*before, *after), "activation": ""}
    context.result("conv2d_transpose", (data, weight, *read_layer_bias(context, 2, out_channels)), attrs)


def convert_max_pooling_with_argmax(context: OpContext) -> None:
    """Convert MaxPoolingWithArgmax2D: the maximum of each window, and its row-major index in the window plus 0.1.

    microc's operator ``window_argmax`` returns row-major indices in the whole plane. They are converted to indices in
    the window: row * width of the window + column, minus the same expression for the window's first element.
    """
    scheme, across, down, width, height, code = _read_c_struct_options(context, 6)
    data, function = context.operand(0), activation_name(context, code)
    extent, window, strides = context.shape_of_rank(data, 4)[1:3], (height, width), (down, across)
    padding = resolve_padding_scheme(context, scheme - 1, (extent[0], extent[1]), window, strides)
    maxima_and_positions = _emit_window_argmax(
        context, data, {"kernel": window, "strides": strides, "padding": padding, "dilation": (1, 1)}
    )
    emit_float32_activation_as_output(
        context, context.emit("transpose", (maxima_and_positions[0],), {"axes": _CHANNELS_LAST}), function
    )
    position = context.emit("cast", (maxima_and_positions[1],), {"dtype": "int32"})
    pixels = _add_int32_constant(context, extent[0] * extent[1])
    in_plane = context.emit("floor_mod", (position, pixels), {"rounding": Rounding.NONE})
    row = context.emit("floor_div", (in_plane, _add_int32_constant(context, extent[1])), {"rounding": Rounding.NONE})
    step = context.emit("mul", (row, _add_int32_constant(context, width - extent[1])), {"rounding": Rounding.NONE})
    rows, columns = (np.arange(n, dtype=np.int32) for n in context.type(position).shape[2:])
    first = (rows * down - padding[0])[:, None] * width + columns * across - padding[1]
    along = context.emit("add", (in_plane, step), {"rounding": Rounding.NONE})
    start = context.new_constant("first_elements", first.astype(np.int32))
    own = context.emit("sub", (along, start), {"rounding": Rounding.NONE})
    number_in_window = context.emit("cast", (own,), {"dtype": "float32"})
    last = context.emit("transpose", (number_in_window,), {"axes": _CHANNELS_LAST})
    context.result("add", (last, context.scalar(_NUDGE)), {}, 1)


def _emit_window_argmax(context: OpContext, data_name: str, attrs: Mapping[str, Attr]) -> list[str]:
    """Return the maxima of all windows, and their row-major indices in the whole tensor. Both results are channels
    first."""
    attrs = {**attrs, "column_major": False}
    planes = context.emit("transpose", (data_name,), {"axes": _CHANNELS_FIRST})
    names = [context.builder.file.reserve_name(f"{context.loc.name}_window") for _ in range(2)]
    types = context.infer_types("window_argmax", (planes,), attrs)
    context.write_node_with_outputs("window_argmax", (planes,), attrs, names, types)
    return names


def convert_max_unpooling(context: OpContext) -> None:
    """Convert MaxUnpooling2D: each element becomes a window of zeros that contains the element.

    The second operand contains the element's row-major index in the window."""
    _, across, down, width, height = _read_c_struct_options(context, 5)
    if (across, down) != (width, height):
        context.refuse(
            f"got windows of {height} x {width} and strides of {down} x {across} pixels, expected equal sizes",
            "set the strides to the size of the window",
        )
    data, numbers = context.operand(0), context.operand(1)
    batch, rows, columns, channels = context.shape_of_rank(data, 4)
    if context.type(numbers).shape != context.type(data).shape:
        context.broken(
            f"indices: got shape {context.type(numbers).shape}, expected {context.type(data).shape} as the data have"
        )
    split_shape = (batch, rows, 1, columns, 1, channels)
    window_numbers = context.emit("cast", (context.reshape(numbers, split_shape),), {"dtype": "int32"})
    element_numbers = np.arange(height * width, dtype=np.int32).reshape(1, 1, height, 1, width, 1)
    elements = context.new_constant("elements", element_numbers)
    chosen = context.emit("equal", (window_numbers, elements), {"rounding": Rounding.NONE})
    placed = context.emit("where", (chosen, context.reshape(data, split_shape), context.scalar(0.0)), {})
    context.result_reshape(placed, (batch, rows * height, columns * width, channels))


def convert_resampler(context: OpContext) -> None:
    """Convert Resampler: sample an image bilinearly at positions (x, y). Pixels outside of the image count as zero."""
    data, positions = context.operand(0), context.operand(1)
    shape = context.shape_of_rank(data, 4)
    if context.type(positions).shape != (*shape[:3], 2):
        context.broken(f"positions: got shape {context.type(positions).shape}, expected {(*shape[:3], 2)}")
    _emit_bilinear_samples(context, data, context.emit("reverse", (positions,), {"axes": (3,)}))


def convert_transform_tensor(context: OpContext) -> None:
    """Convert TransformTensor and TransformTensorBilinear: transform an image by a 4 x 4 matrix.

    The matrix maps each pixel of the result to a position in the image, where the image is sampled bilinearly. A pixel
    mapped outside of the image is zero. TransformTensorBilinear measures positions from the corner of the first pixel,
    TransformTensor from its centre.
    """
    size = _read_output_rows_and_columns(context)
    data, matrix = context.operand(0), context.operand(1)
    batch, height, width, _ = context.shape_of_rank(data, 4)
    if batch != 1 or context.type(matrix).size != 16 or not 1 <= min(size) <= max(size) <= _MAX_PIXELS:
        got = f"a batch of {batch}, a matrix of shape {context.type(matrix).shape}, an output of {size} pixels"
        context.broken(f"got {got}; expected a batch of 1, 16 elements and sides of 1..{_MAX_PIXELS}")
    corner = 0.5 if context.operator.code.endswith("Bilinear") else 0.0
    entries = context.reshape(matrix, (16,))
    column, row, shift = (_gather_matrix_entries(context, entries, (4 + k, k)) for k in (0, 1, 3))
    positions = shift
    for factor, axis, count in ((column, 2, size[1]), (row, 1, size[0])):
        shape = tuple(count if k == axis else 1 for k in range(4))
        numbers = (np.arange(count, dtype=np.float32) + np.float32(corner)).reshape(shape)
        pixels = context.new_constant("pixels", numbers)
        positions = context.emit("add", (positions, context.emit("mul", (factor, pixels), {})), {})
    if corner:
        positions = context.emit("sub", (positions, context.scalar(corner)), {})
    last = context.new_constant("last_pixels", np.array([height - 1, width - 1], np.float32))
    first = context.emit("greater_equal", (positions, context.scalar(0.0)), {"rounding": Rounding.NONE})
    second = context.emit("less_equal", (positions, last), {"rounding": Rounding.NONE})
    inside = context.emit("logical_and", (first, second), {})
    _emit_bilinear_samples(context, data, context.emit("where", (inside, positions, context.scalar(_OUTSIDE)), {}))


def _read_output_rows_and_columns(context: OpContext) -> tuple[int, int]:
    """Return the numbers of rows and columns of the result, from the options of TransformTensor or
    TransformTensorBilinear."""
    custom = context.operator.custom
    if custom.get("mode", "bilinear") != "bilinear":
        context.refuse(f"option mode: got {custom['mode']!r}, expected 'bilinear'", "set mode to bilinear")
    pair = custom.get("output_size")
    if isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(side, int) for side in pair):
        return int(pair[0]), int(pair[1])
    return read_integer_option(context, "output_height", 1, _MAX_PIXELS), read_integer_option(
        context, "output_width", 1, _MAX_PIXELS
    )


def _gather_matrix_entries(context: OpContext, matrix: str, entry_indices: tuple[int, int]) -> str:
    """Return two elements of a 4 x 4 matrix, which is a value of 16 elements, as a vector."""
    chosen = context.new_constant("entries", np.array(entry_indices, np.int32))
    return context.emit("gather", (matrix, chosen), {"axis": 0})


def _emit_bilinear_samples(context: OpContext, data_name: str, positions: str) -> None:
    """Define the output: the image ``data_name`` sampled at ``positions`` (N, H, W, 2), whose last axis is (row,
    column)."""
    planes = context.emit("transpose", (data_name,), {"axes": _CHANNELS_FIRST})
    attrs: Mapping[str, Attr] = {"mode": "linear", "border": "zeros", "coordinates": "elements"}
    samples = context.emit("grid_sample", (planes, positions), attrs)
    context.result("transpose", (samples,), {"axes": _CHANNELS_LAST})


def _read_c_struct_options(context: OpContext, word_count: int) -> tuple[int, ...]:
    """Return the first ``word_count`` int32 options of an operator whose options are a C structure.

    The first option is the padding scheme; the next four must be at least 1. A sixth option, the activation, is not
    checked."""
    words = context.operator.custom_int32[:word_count]
    if (
        len(words) < word_count
        or words[0] not in (_SAME, _VALID)
        or not 1 <= min(words[1:5]) <= max(words[1:5]) <= _MAX_PIXELS
    ):
        expected = f"padding {_SAME} or {_VALID}, then {word_count - 1} numbers of at least 1"
        context.broken(f"options: got {words}, expected {expected}")
    return words


def _add_int32_constant(context: OpContext, value: int) -> str:
    """Add an int32 constant of shape (1,); return its name."""
    return context.new_constant("whole", np.array([value], np.int32))


MEDIAPIPE_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:Convolution2DTransposeBias": Converter(convert_transpose_conv_with_bias, FLOAT),
    "CUSTOM:MaxPoolingWithArgmax2D": Converter(convert_max_pooling_with_argmax, FLOAT),
    "CUSTOM:MaxUnpooling2D": Converter(convert_max_unpooling, FLOAT),
    "CUSTOM:Resampler": Converter(convert_resampler, FLOAT),
    "CUSTOM:TransformTensor": Converter(convert_transform_tensor, FLOAT),
    "CUSTOM:TransformTensorBilinear": Converter(convert_transform_tensor, FLOAT),
}
