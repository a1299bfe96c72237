"""Spellings of TFLite's operators that choose among boxes: NON_MAX_SUPPRESSION_V4, V5 and TFLite_Detection_PostProcess.

Boxes are decoded in float32, where TFLite Micro decodes in double and rounds: a corner may differ in its last bits, and so a box
whose overlap lies that close to the threshold may be chosen or not. What no detection fills is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import FLOAT, Spelling
from microc.frozen import frozen
from microc.graph.ir import Attr, Graph
from microc.ops.rounding import Rounding

_MOST = 1 << 16
_PER_CLASS = 100


def non_max_suppression(application: Application) -> None:
    """NON_MAX_SUPPRESSION_V4 (places, count) and V5 (places, scores, count), which may fade scores. Bounds are constants."""
    soft = application.operator.code == "NON_MAX_SUPPRESSION_V5"
    boxes, scores = application.operand(0, "float32"), application.operand(1, "float32")
    (most,) = application.integers(2)[:1] or (0,)
    overlap, least, sigma = (
        float(application.constant(position).reshape(-1)[0]) if position < 5 or soft else 0.0 for position in (3, 4, 5)
    )
    if not (1 <= most <= _MOST and 0 <= overlap <= 1 and sigma >= 0) or application.rank(boxes, 2)[1] != 4:
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
        if not 1 <= number <= _MOST:
            application.broken(f"option {name} is {number}, not 1..{_MOST}")
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


SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:TFLite_Detection_PostProcess": Spelling(detection_post_process, FLOAT),
    "NON_MAX_SUPPRESSION_V4": Spelling(non_max_suppression, ("int32",)),
    "NON_MAX_SUPPRESSION_V5": Spelling(non_max_suppression, ("int32",)),
}
