# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's object detection operators and of MediaPipe's custom operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.signature import Ints, Only, Range, Rank, ReadWith, Value
from microc.frontend.tflite.context import (
    FLOAT,
    ConverterTable,
    OpContext,
    Operand,
    Real,
    activation_name,
    emit_float32_activation_as_output,
    resolve_padding_scheme,
)
from microc.frontend.tflite.operators_layers import Bias, Filter, Image, emit_weights, flatten_bias
from microc.graph.ir import Attr, Graph
from microc.ops.attributes import Rounding
from microc.ops.windows import compute_same_padding_of_axis

CONVERTERS = ConverterTable()

# ---- Converters of non-maximum suppression (NMS): NON_MAX_SUPPRESSION_V4, V5 and TFLite_Detection_PostProcess.
#
# Boxes are decoded in float32; TFLite Micro decodes them in double and rounds. A coordinate may therefore differ in its last
# bits. If the overlap of two boxes is that close to the threshold, microc may keep a box that TFLite Micro drops, or drop a box
# that it keeps. Unused entries of the results are zero.

_MAX_DETECTIONS = 1 << 16


_BoxCorners = Annotated[Real, Rank(2, 2, has_elements=True)]


@CONVERTERS.register("NON_MAX_SUPPRESSION_V4", dtypes=("int32",))
def convert_non_max_suppression_v4(
    context: OpContext, boxes: _BoxCorners, scores: Real, most: int, overlap: float, least: float
) -> None:
    """Convert NON_MAX_SUPPRESSION_V4, with the outputs indices and count."""
    indices, _, count = _emit_suppression(context, boxes, scores, (most, overlap, least, 0.0))
    for position, value in enumerate((indices, count)):
        context.result_reshape(value, value.shape, position)


@CONVERTERS.register("NON_MAX_SUPPRESSION_V5", dtypes=("int32",))
def convert_non_max_suppression_v5(
    context: OpContext, boxes: _BoxCorners, scores: Real, most: int, overlap: float, least: float, sigma: float
) -> None:
    """Convert NON_MAX_SUPPRESSION_V5, with the outputs indices, scores and count.

    It can decay the scores of overlapping boxes (soft NMS)."""
    for position, value in enumerate(_emit_suppression(context, boxes, scores, (most, overlap, least, sigma))):
        context.result_reshape(value, value.shape, position)


def _emit_suppression(
    context: OpContext, boxes: Value, scores: Value, limits: tuple[int, float, float, float]
) -> list[Value]:
    """Emit NMS; return indices and scores of the kept boxes, and their number.

    ``limits``: maximum number of boxes, thresholds of overlap and of score, and sigma of soft NMS."""
    most, overlap, least, sigma = limits
    if not (1 <= most <= _MAX_DETECTIONS and 0 <= overlap <= 1 and sigma >= 0) or boxes.shape[1] != 4:
        got = f"{most} outputs of boxes {boxes.shape}, IoU threshold {overlap}, sigma {sigma}"
        context.broken(f"got {got}; expected 1..{_MAX_DETECTIONS} outputs, boxes (N, 4), 0..1 and at least 0")
    attrs: dict[str, Attr] = {"most": most, "overlap": overlap, "score": least, "sigma": sigma}
    operands = (_sort_corners(context, boxes), scores)
    return context.emit_all("suppress", operands, {**attrs, "overlap_inclusive": True})


def _sort_corners(context: OpContext, boxes: Value) -> Value:
    """Return boxes (N, 4), each given by any two opposite corners, as (top, left, bottom, right)."""
    corners = [context.slice_axis(boxes, 1, first, first + 2) for first in (0, 2)]
    ends = [context.emit(op, corners, {"rounding": Rounding.NONE}) for op in ("minimum", "maximum")]
    return context.reshape(context.emit("concat", ends, {"axis": 1}), (boxes.shape[0], 4))


# ---------------------------------------------------------------- TFLite_Detection_PostProcess


_Count = Annotated[int, Range(1, _MAX_DETECTIONS)]


@frozen
class _DetectionOptions:
    """Options of TFLite_Detection_PostProcess.

    ``use_regular_nms``: True for regular NMS, which suppresses the boxes of each class separately and keeps at most
    ``detections_per_class`` of them; False for fast NMS, which suppresses boxes by their best class and lists
    ``max_classes_per_detection`` classes for each box. ``nms_iou_threshold``: maximum intersection over union. The scales
    are those of the encoded y, x, h and w."""

    max_detections: _Count
    num_classes: _Count
    nms_score_threshold: float
    nms_iou_threshold: float
    y_scale: float
    x_scale: float
    h_scale: float
    w_scale: float
    detections_per_class: _Count = 100
    max_classes_per_detection: _Count = 1
    use_regular_nms: bool = False

    @property
    def classes_per_box(self) -> int:
        """Number of classes that fast NMS lists for each box."""
        return min(self.max_classes_per_detection, self.num_classes)

    def check(self, context: OpContext) -> None:
        """Raise ModelError if a scale is 0, or the threshold is not in 0 .. 1."""
        y, x, h, w = self.y_scale, self.x_scale, self.h_scale, self.w_scale
        if 0.0 in (y, x, h, w) or not 0 < self.nms_iou_threshold <= 1:
            got = f"x_scale {x}, y_scale {y}, w_scale {w}, h_scale {h} and nms_iou_threshold {self.nms_iou_threshold}"
            context.broken(f"got {got}; expected no scale of 0, and a threshold within 0..1")


def _read_dequantized(context: OpContext, input_position: int) -> Value:
    """Return an operand as float32. A quantised operand, as LiteRT's models may have, is dequantised."""
    type_ = context.input_tensor(input_position).type
    if type_.dtype == "float32" or type_.quant is None or type_.quant.axis is not None:
        return context.operand(input_position, "float32")
    attrs: Mapping[str, Attr] = {"scale": type_.quant.scale, "zero_point": type_.quant.zero_point, "axis": None}
    return context.emit("dequantize", (context.value(input_position),), attrs)


_BoxValues = Annotated[Value, ReadWith(_read_dequantized), Rank(3, 3, has_elements=True)]
_Anchors = Annotated[Value, ReadWith(_read_dequantized), Rank(2, 2, has_elements=True)]


@CONVERTERS.register("CUSTOM:TFLite_Detection_PostProcess", dtypes=FLOAT)
def convert_detection_post_process(
    context: OpContext, encodings: _BoxValues, predictions: _BoxValues, anchors: _Anchors, *, options: _DetectionOptions
) -> None:
    """Convert TFLite_Detection_PostProcess: decode boxes relative to anchors, then suppress overlapping boxes.

    Its operands are box encodings (1, N, 4 or more), class scores (1, N, C), and anchors (N, 4). Scores may have an
    additional first column for the background."""
    options.check(context)
    (_, boxes, depth), shape, classes = encodings.shape, predictions.shape, options.num_classes
    if depth < 4 or shape[:2] != (1, boxes) or not 0 <= shape[2] - classes <= 1:
        got = f"boxes {encodings.shape}, scores {shape}"
        context.broken(f"got {got}; expected (1, N, 4 or more) and (1, N, {classes} or {classes + 1})")
    if anchors.shape != (boxes, 4):
        context.broken(f"anchors: got shape {anchors.shape}, expected ({boxes}, 4)")
    corners = _decode_boxes(context, context.reshape(encodings, (boxes, depth)), anchors, options)
    flat = context.reshape(predictions, (boxes, shape[2]))
    scores = flat if shape[2] == classes else context.slice_axis(flat, 1, 1, shape[2])
    (_emit_regular_nms if options.use_regular_nms else _emit_fast_nms)(context, corners, scores, options)


def _decode_boxes(context: OpContext, encodings: Value, anchors: Value, options: _DetectionOptions) -> Value:
    """Decode boxes (y, x, h, w) that are encoded relative to anchors; return them as (top, left, bottom, right)."""
    y, x, h, w = options.y_scale, options.x_scale, options.h_scale, options.w_scale

    def emit_columns_divided_by_scales(first_column: int, scales: tuple[float, float]) -> Value:
        by = context.new_constant("scales", np.array([scales], np.float32))
        return context.emit("div", (context.slice_axis(encodings, 1, first_column, first_column + 2), by))

    centre, size = (context.slice_axis(anchors, 1, first, first + 2) for first in (0, 2))
    offset = context.emit("mul", (emit_columns_divided_by_scales(0, (y, x)), size))
    middle = context.emit("add", (offset, centre))
    sizes = context.emit("mul", (context.emit("exp", (emit_columns_divided_by_scales(2, (h, w)),)), size))
    half = context.emit("mul", (sizes, context.scalar(0.5)))
    ends = [context.emit(op, (middle, half)) for op in ("sub", "add")]
    return context.emit("concat", ends, {"axis": 1})


def _suppression_attributes(options: _DetectionOptions, max_boxes: int) -> Mapping[str, Attr]:
    """Return the attributes of a ``suppress`` node that keeps at most ``max_boxes`` boxes."""
    overlap, score = options.nms_iou_threshold, options.nms_score_threshold
    return {"most": max_boxes, "overlap": overlap, "score": score, "score_inclusive": True}


def _emit_fast_nms(context: OpContext, boxes: Value, scores: Value, options: _DetectionOptions) -> None:
    """Emit fast NMS: suppress boxes by the scores of their best classes.

    Every kept box is listed ``classes_per_box`` times in the results, once for each of its best classes."""
    classes_per_box, rows = options.classes_per_box, boxes.shape[0]
    top: Mapping[str, Attr] = {"axis": 1, "k": classes_per_box, "largest": True, "out_dtype": "int32"}
    values, classes = context.emit_all("topk", (scores,), top)
    best = context.reshape(context.slice_axis(values, 1, 0, 1), (rows,))
    indices, _, count = context.emit_all(
        "suppress", (boxes, best), _suppression_attributes(options, options.max_detections)
    )
    rowwise = [context.emit("gather", (table, indices), {"axis": 0}) for table in (boxes, classes, values)]
    if classes_per_box > 1:
        wide = context.reshape(rowwise[0], (options.max_detections, 1, 4))
        rowwise[0] = context.emit("broadcast_to", (wide,), {"shape": (options.max_detections, classes_per_box, 4)})
        count = context.emit("mul", (count, context.new_constant("each", np.array(classes_per_box, np.int32))))
    _emit_detection_results(context, rowwise, count, options.max_detections * classes_per_box)


def _emit_regular_nms(context: OpContext, boxes: Value, scores: Value, options: _DetectionOptions) -> None:
    """Emit regular NMS: a loop over classes that suppresses the boxes of each class, and keeps the best boxes of all
    classes."""
    names = [context.builder.file.reserve_name(f"{context.loc.name}_{stem}") for stem in ("kept", "places", "classes")]
    start = [
        context.new_constant("start", np.full(options.max_detections, -np.inf, np.float32)),
        *(context.new_constant("start", np.zeros(options.max_detections, np.int32)) for _ in range(2)),
    ]
    body = _make_class_suppression_body(context, boxes.shape[0], options)
    attrs: Mapping[str, Attr] = {"body": body, "count": options.num_classes, "carried": 3, "guarded": False}
    context.write_node_with_outputs("loop", (*start, boxes, scores), attrs, names, [value.type for value in start])
    kept, indices, classes = map(context.look_up, names)
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
    iteration = body.input("iteration", (), "int32")
    kept, places, classes = (
        body.input(n, (options.max_detections,), d)
        for n, d in (("kept", "float32"), ("places", "int32"), ("classes", "int32"))
    )
    boxes, scores = body.input("boxes", (box_count, 4)), body.input("scores", (box_count, options.num_classes))
    own = body.emit("gather", (scores, iteration), {"axis": 1})
    most = min(options.detections_per_class, box_count)
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
    context: OpContext, values: Sequence[Value], detection_count: Value, max_detections: int
) -> None:
    """Define the outputs of TFLite_Detection_PostProcess as float32: boxes, classes, scores, and the number of
    detections.

    ``values``: boxes, classes and scores. Their entries after the last detection become zero."""
    positions = context.new_constant("places", np.arange(max_detections, dtype=np.int32))
    is_valid = context.emit("less", (positions, detection_count), {"rounding": Rounding.NONE})
    shapes = ((1, max_detections, 4), (1, max_detections), (1, max_detections))
    for position, (value, shape) in enumerate(zip(values, shapes, strict=True)):
        flat = context.reshape(value, (max_detections, *shape[2:]))
        if flat.dtype != "float32":
            flat = context.emit("cast", (flat,), {"dtype": "float32"})
        mask = context.reshape(is_valid, (max_detections, *(1,) * len(shape[2:])))
        filled = context.emit("where", (mask, flat, context.scalar(0.0)))
        context.result_reshape(filled, _declared_or_default_shape(context, position, shape), position)
    total = context.emit("cast", (detection_count,), {"dtype": "float32"})
    context.result_reshape(total, _declared_or_default_shape(context, 3, (1,)), 3)


def _declared_or_default_shape(context: OpContext, position: int, default_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the file declares for output ``position``; ``default_shape`` if it declares no shape.

    TFLite converters declare no shapes for the outputs of TFLite_Detection_PostProcess."""
    target = context.output_tensor(position)
    return target.type.shape if target.type.shape and not target.unknown_axes else default_shape


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


_LandmarkIndex = Annotated[int, Range(0, _MAX_LANDMARKS)]


@CONVERTERS.register("CUSTOM:Landmarks2TransformMatrix", dtypes=FLOAT)
def convert_landmarks_to_transform_matrix(
    context: OpContext, data: Operand, *, left_rotation_idx: _LandmarkIndex, right_rotation_idx: _LandmarkIndex
) -> None:
    """Convert Landmarks2TransformMatrix: compute the matrix (1, 4, 4) of a crop from landmarks of x, y and z."""
    version2 = "subset_idxs" in context.attributes
    crop = _read_crop_parameters_v2(context) if version2 else _read_crop_parameters_v1(context)
    ends = (left_rotation_idx, right_rotation_idx)
    last = max(*crop.landmark_subset, *ends)
    if data.size % 3 or 3 * last >= data.size:
        context.broken(
            f"got landmark {last} of data of shape {data.shape}, expected x, y and z of each landmark up to it"
        )
    points = _slice_matrix(context, context.reshape(data, (data.size // 3, 3)), (0, None), (0, 2))
    rotation = _emit_rotation_matrix(context, points, ends, crop.line_angle)
    chosen = context.new_constant("subset", np.array(crop.landmark_subset, np.int32))
    rotated = context.emit("matmul", (context.emit("gather", (points, chosen), {"axis": 0}), rotation))
    high, low = (_emit_axis_reduction(context, op, rotated, 0) for op in ("max", "min"))
    size = _scale_columns(context, context.emit("sub", (high, low)), crop.pixel_factors)
    middle = _scale_columns(context, context.emit("add", (high, low)), (0.5, 0.5))
    linear = context.emit("mul", (rotation, size))
    linear = _scale_columns(context, linear, crop.image_factors, as_rows=True)
    offset = _emit_axis_reduction(context, "sum", _scale_columns(context, linear, crop.crop_offset), 1)
    middle = _emit_axis_reduction(context, "sum", context.emit("mul", (rotation, middle)), 1)
    offset = context.emit("add", (_scale_columns(context, middle, crop.centre_factors, as_rows=True), offset))
    zeros = context.new_constant("nothing", np.zeros((2, 1), np.float32))
    rows = context.emit("concat", (linear, zeros, offset), {"axis": 1})
    below = context.new_constant("below", np.eye(4, dtype=np.float32)[2:])
    context.result_reshape(context.emit("concat", (rows, below), {"axis": 0}), (1, 4, 4))


def _read_crop_parameters_v1(context: OpContext) -> _CropParameters:
    """Read the options of Landmarks2TransformMatrix, version 1.

    Landmarks are in 0 .. ``landmarks_range``. Image coordinates are -1 .. 1, from the centre of the first pixel to that
    of the last one."""
    attributes = context.attributes
    if (dimensions := attributes.integer("dimensions")) != 3:
        context.refuse(f"option dimensions: got {dimensions}, expected 3 (x, y and z)", "set dimensions to 3")
    span, factor = attributes.integer("landmarks_range"), attributes.real("bbox_size_multiplier")
    if span < 1:
        context.broken(f"landmarks_range is {span}, expected at least 1")
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
    attributes = context.attributes
    wide, high = (attributes.integer(f"output_{side}") for side in ("width", "height"))
    if not 1 <= min(wide, high) <= max(wide, high) <= _MAX_LANDMARKS:
        context.broken(f"output_width is {wide} and output_height {high}, expected 1..{_MAX_LANDMARKS}")
    pixel = (attributes.real("scale_x") / wide, attributes.real("scale_y") / high)
    level = attributes.real("target_rotation_radians")
    return _CropParameters(
        _read_landmark_indices_option(context, "subset_idxs"), level, (1, 1), pixel, (-wide / 2, -high / 2), (1, 1)
    )


def _emit_rotation_matrix(
    context: OpContext, points: Value, line_landmarks: tuple[int, ...], line_angle: float | None
) -> Value:
    """Return the matrix ((cos r, sin r), (-sin r, cos r)), whose product with rows of points rotates them by the angle
    r.

    r is ``line_angle`` minus the angle of the line between the two landmarks with the indices ``line_landmarks``. If
    ``line_angle`` is None, r is minus the arctangent of the line's slope."""
    left, right = (_slice_matrix(context, points, (end, end + 1), (0, 2)) for end in line_landmarks)
    difference = context.emit("sub", (right, left))
    x, y = (_slice_matrix(context, difference, (0, 1), (k, k + 1)) for k in (0, 1))
    if line_angle is None:
        y, x = context.emit("div", (y, x)), context.new_constant("one", np.ones((1, 1), np.float32))
    angle = context.emit("atan2", (y, x), {"rounding": Rounding.NONE})
    target_angle = context.new_constant("level", np.full((1, 1), line_angle or 0.0, np.float32))
    angle = context.emit("sub", (target_angle, angle))
    cosine, sine = (context.emit(op, (angle,)) for op in ("cos", "sin"))
    rows = ((cosine, sine), (context.emit("neg", (sine,)), cosine))
    return context.emit("concat", [context.emit("concat", row, {"axis": 1}) for row in rows], {"axis": 0})


@CONVERTERS.register("CUSTOM:TransformLandmarks", dtypes=FLOAT)
def convert_transform_landmarks(
    context: OpContext,
    data: Annotated[Operand, Rank(3, 4, has_elements=True)],
    matrix: Operand,
    *,
    dimensions: Annotated[int, Range(2, 3)] | None = None,
    scale: float | None = None,
) -> None:
    """Convert TransformLandmarks: multiply x and y of all landmarks by the first two rows of a 4 x 4 matrix.

    ``scale`` multiplies the matrix's offset. A third coordinate is returned unchanged."""
    shape, size = data.shape, data.size
    axes = shape[-1] if dimensions is None else dimensions
    if shape[0] != 1 or shape[-1] % axes or axes not in (2, 3) or matrix.size != 16:
        got = f"landmarks of shape {shape} and a matrix of shape {matrix.shape}"
        context.broken(f"got {got}, expected a batch of 1, 2 or 3 coordinates and a matrix of 16 elements")
    rows, entries = context.reshape(data, (size // axes, axes)), context.reshape(matrix, (4, 4))
    linear = context.emit("transpose", (_slice_matrix(context, entries, (0, 2), (0, 2)),), {"axes": (1, 0)})
    shift = context.reshape(_slice_matrix(context, entries, (0, 2), (3, 4)), (1, 2))
    if scale is not None:
        shift = context.emit("mul", (shift, context.scalar(scale)))
    moved = context.emit("matmul", (_slice_matrix(context, rows, (0, None), (0, 2)), linear))
    moved = context.emit("add", (moved, shift))
    if axes == 3:
        moved = context.emit("concat", (moved, _slice_matrix(context, rows, (0, None), (2, 3))), {"axis": 1})
    context.result_reshape(moved, shape)


def _slice_matrix(
    context: OpContext, matrix: Value, row_range: tuple[int, int | None], column_range: tuple[int, int]
) -> Value:
    """Emit a slice of a matrix. The ranges are (begin, end). If the end of ``row_range`` is None, the slice contains
    all rows from its begin on."""
    last = matrix.shape[0] if row_range[1] is None else row_range[1]
    return context.slice(matrix, (row_range[0], column_range[0]), (last, column_range[1]))


def _emit_axis_reduction(context: OpContext, op: str, value: Value, axis: int) -> Value:
    """Emit the reduction of a value over one axis. The result has extent 1 along this axis."""
    return context.emit(op, (value,), {"axes": (axis,), "keepdims": True, "rounding": Rounding.NONE})


def _scale_columns(context: OpContext, value: Value, factors: _Pair, *, as_rows: bool = False) -> Value:
    """Multiply the two columns (x and y) of a matrix by one factor each; with ``as_rows`` its two rows."""
    numbers = np.array(factors, np.float32).reshape((2, 1) if as_rows else (1, 2))
    return context.emit("mul", (value, context.new_constant("factors", numbers)))


def _read_image_size_option(context: OpContext, option_name: str) -> tuple[int, int]:
    """Return the option ``option_name``, a list of two integers: an image's numbers of rows and columns, each at least
    2."""
    first, second = (*context.attributes.integers(option_name), 0, 0)[:2]
    if not 2 <= min(first, second) <= max(first, second) <= _MAX_LANDMARKS:
        context.broken(f"option {option_name} is {(first, second)}, expected two numbers in 2..{_MAX_LANDMARKS}")
    return first, second


def _read_landmark_indices_option(context: OpContext, option_name: str) -> Ints:
    """Return the option ``option_name``, a list of indices of landmarks."""
    indices = context.attributes.integers(option_name)
    if not indices or min(indices) < 0:
        context.broken(f"option {option_name} is {indices}, expected landmark numbers of at least 0")
    return indices


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


@CONVERTERS.register("CUSTOM:Convolution2DTransposeBias", dtypes=FLOAT)
def convert_transpose_conv_with_bias(context: OpContext, data: Image, weights: Filter, bias: Bias | None) -> None:
    """Convert Convolution2DTransposeBias with weights OHWI.

    With the padding scheme SAME the result is cropped."""
    scheme, *across = _read_c_struct_options(context, 3)
    shape, (out_channels, *window, depth) = data.shape, weights.shape
    strides = (across[1], across[0])
    if depth != shape[3]:
        context.broken(f"weights: got {depth} input channels, expected {shape[3]}, the data's channels")
    rows = zip(shape[1:3], window, strides, strict=True)
    pairs = [compute_same_padding_of_axis(*row) if scheme == _SAME else (0, 0) for row in rows]
    padding = (*(before for before, _ in pairs), *(after for _, after in pairs))
    attrs: Mapping[str, Attr] = {"strides": strides, "padding": padding, "activation": ""}
    kernel = emit_weights(context, weights, channel_axis=0)
    context.result("conv2d_transpose", (data, kernel, *flatten_bias(context, bias, out_channels)), attrs)


@CONVERTERS.register("CUSTOM:MaxPoolingWithArgmax2D", dtypes=FLOAT)
def convert_max_pooling_with_argmax(context: OpContext, data: Image) -> None:
    """Convert MaxPoolingWithArgmax2D: the maximum of each window, and its row-major index in the window plus 0.1.

    microc's operator ``window_argmax`` returns row-major indices in the whole plane. They are converted to indices in
    the window: row * width of the window + column, minus the same expression for the window's first element.
    """
    scheme, across, down, width, height, code = _read_c_struct_options(context, 6)
    function = activation_name(context, code)
    extent, window, strides = data.shape[1:3], (height, width), (down, across)
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
    rows, columns = (np.arange(n, dtype=np.int32) for n in position.shape[2:])
    first = (rows * down - padding[0])[:, None] * width + columns * across - padding[1]
    along = context.emit("add", (in_plane, step), {"rounding": Rounding.NONE})
    start = context.new_constant("first_elements", first.astype(np.int32))
    own = context.emit("sub", (along, start), {"rounding": Rounding.NONE})
    number_in_window = context.emit("cast", (own,), {"dtype": "float32"})
    last = context.emit("transpose", (number_in_window,), {"axes": _CHANNELS_LAST})
    context.result("add", (last, context.scalar(_NUDGE)), {}, 1)


def _emit_window_argmax(context: OpContext, data: Value, attrs: Mapping[str, Attr]) -> list[Value]:
    """Return the maxima of all windows, and their row-major indices in the whole tensor. Both results are channels
    first."""
    attrs = {**attrs, "column_major": False}
    planes = context.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})
    return context.emit_all("window_argmax", (planes,), attrs)


@CONVERTERS.register("CUSTOM:MaxUnpooling2D", dtypes=FLOAT)
def convert_max_unpooling(context: OpContext, data: Image, indices: Operand) -> None:
    """Convert MaxUnpooling2D: each element becomes a window of zeros that contains the element.

    ``indices`` contains the element's row-major index in the window."""
    _, across, down, width, height = _read_c_struct_options(context, 5)
    if (across, down) != (width, height):
        context.refuse(
            f"got windows of {height} x {width} and strides of {down} x {across} pixels, expected equal sizes",
            "set the strides to the size of the window",
        )
    batch, rows, columns, channels = data.shape
    if indices.shape != data.shape:
        context.broken(f"indices: got shape {indices.shape}, expected {data.shape} as the data have")
    split_shape = (batch, rows, 1, columns, 1, channels)
    window_numbers = context.emit("cast", (context.reshape(indices, split_shape),), {"dtype": "int32"})
    element_numbers = np.arange(height * width, dtype=np.int32).reshape(1, 1, height, 1, width, 1)
    elements = context.new_constant("elements", element_numbers)
    chosen = context.emit("equal", (window_numbers, elements), {"rounding": Rounding.NONE})
    placed = context.emit("where", (chosen, context.reshape(data, split_shape), context.scalar(0.0)))
    context.result_reshape(placed, (batch, rows * height, columns * width, channels))


@CONVERTERS.register("CUSTOM:Resampler", dtypes=FLOAT)
def convert_resampler(context: OpContext, data: Image, positions: Operand) -> None:
    """Convert Resampler: sample an image bilinearly at positions (x, y). Pixels outside of the image count as zero."""
    if positions.shape != (*data.shape[:3], 2):
        context.broken(f"positions: got shape {positions.shape}, expected {(*data.shape[:3], 2)}")
    _emit_bilinear_samples(context, data, context.emit("reverse", (positions,), {"axes": (3,)}))


_Side = Annotated[int, Range(1, _MAX_PIXELS)]


@CONVERTERS.register("CUSTOM:TransformTensor", "CUSTOM:TransformTensorBilinear", dtypes=FLOAT)
def convert_transform_tensor(
    context: OpContext,
    data: Image,
    matrix: Operand,
    *,
    mode: Annotated[str, Only("bilinear", "set mode to bilinear")] = "bilinear",
    output_size: Ints | None = None,
    output_height: _Side | None = None,
    output_width: _Side | None = None,
) -> None:
    """Convert TransformTensor and TransformTensorBilinear: transform an image by a 4 x 4 matrix.

    The matrix maps each pixel of the result to a position in the image, where the image is sampled bilinearly. A pixel
    mapped outside of the image is zero. TransformTensorBilinear measures positions from the corner of the first pixel,
    TransformTensor from its centre. The result's size is ``output_size``, or ``output_height`` and ``output_width``.
    """
    batch, height, width, _ = data.shape
    size = output_size or (output_height or 0, output_width or 0)
    if batch != 1 or matrix.size != 16 or len(size) != 2 or not 1 <= min(size) <= max(size) <= _MAX_PIXELS:
        got = f"a batch of {batch}, a matrix of shape {matrix.shape}, an output of {size} pixels"
        context.broken(f"got {got}; expected a batch of 1, 16 elements and sides of 1..{_MAX_PIXELS}")
    corner = 0.5 if context.operator.code.endswith("Bilinear") else 0.0
    entries = context.reshape(matrix, (16,))
    column, row, shift = (_gather_matrix_entries(context, entries, (4 + k, k)) for k in (0, 1, 3))
    positions = shift
    for factor, axis, count in ((column, 2, size[1]), (row, 1, size[0])):
        shape = tuple(count if k == axis else 1 for k in range(4))
        numbers = (np.arange(count, dtype=np.float32) + np.float32(corner)).reshape(shape)
        pixels = context.new_constant("pixels", numbers)
        positions = context.emit("add", (positions, context.emit("mul", (factor, pixels))))
    if corner:
        positions = context.emit("sub", (positions, context.scalar(corner)))
    last = context.new_constant("last_pixels", np.array([height - 1, width - 1], np.float32))
    first = context.emit("greater_equal", (positions, context.scalar(0.0)), {"rounding": Rounding.NONE})
    second = context.emit("less_equal", (positions, last), {"rounding": Rounding.NONE})
    inside = context.emit("logical_and", (first, second))
    _emit_bilinear_samples(context, data, context.emit("where", (inside, positions, context.scalar(_OUTSIDE))))


def _gather_matrix_entries(context: OpContext, matrix: Value, entry_indices: tuple[int, int]) -> Value:
    """Return two elements of a 4 x 4 matrix, which is a value of 16 elements, as a vector."""
    chosen = context.new_constant("entries", np.array(entry_indices, np.int32))
    return context.emit("gather", (matrix, chosen), {"axis": 0})


def _emit_bilinear_samples(context: OpContext, data: Value, positions: Value) -> None:
    """Define the output: the image ``data`` sampled at ``positions`` (N, H, W, 2), whose last axis is (row,
    column)."""
    planes = context.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})
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


def _add_int32_constant(context: OpContext, value: int) -> Value:
    """Add an int32 constant of shape (1,)."""
    return context.new_constant("whole", np.array([value], np.int32))
