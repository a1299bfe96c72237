"""Spellings of MediaPipe's custom operators on landmarks: the matrix that cuts out what lies around some of them, and landmarks
moved by a matrix.

A matrix of 4 x 4 sends pixels of the cut-out to pixels of the image: (x, y, 0, 1) to the first two of its product. In both
versions the line between two landmarks is turned to an angle; the box around the turned subset, made larger, becomes the
cut-out. Source: MediaPipe ``landmarks_to_transform_matrix.cc``, ``transform_landmarks.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.signal import number
from microc.frontend.tflite.spelling import FLOAT, Spelling
from microc.frozen import frozen
from microc.ops.rounding import Rounding

_MOST = 1 << 15
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
    ends = tuple(number(application, f"{side}_rotation_idx", 0, _MOST) for side in ("left", "right"))
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
    span, factor = number(application, "landmarks_range", 1), _real(application, "bbox_size_multiplier")
    (rows, columns), (high, wide) = (_pair(application, f"{side}_hw") for side in ("input", "output"))
    image = ((columns - 1) / 2, (rows - 1) / 2)
    pixel = (factor / span * 2 / (wide - 1), factor / span * 2 / (high - 1))
    middle = (image[0] * 2 / span, image[1] * 2 / span)
    return _Crop(_subset(application, "subset"), None, image, pixel, ((1 - wide) / 2, (1 - high) / 2), middle)


def _second(application: Application) -> _Crop:
    """The second version: landmarks in pixels, an angle that the line shall have."""
    wide, high = (number(application, f"output_{side}", 1, _MOST) for side in ("width", "height"))
    pixel = (_real(application, "scale_x") / wide, _real(application, "scale_y") / high)
    level = _real(application, "target_rotation_radians")
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
        shift = application.emit("mul", (shift, application.scalar(_real(application, "scale"))), {})
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


def _real(application: Application, name: str) -> float:
    value = application.operator.custom.get(name)
    if isinstance(value, str | tuple) or value is None or not np.isfinite(value):
        application.broken(f"option {name} is {value!r}, no number")
    return float(value)


def _pair(application: Application, name: str) -> tuple[int, int]:
    """Rows and columns of an image."""
    first, second = (*_integers(application, name), 0, 0)[:2]
    if not 2 <= min(first, second) <= max(first, second) <= _MOST:
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


SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:Landmarks2TransformMatrix": Spelling(landmarks_to_matrix, FLOAT),
    "CUSTOM:TransformLandmarks": Spelling(transform_landmarks, FLOAT),
}
