"""Operators on constants, computed in the reader: shape arithmetic, and whatever exporters leave unfolded.

Everything here works on numpy arrays of any dtype; operators that are not in the table are spelled as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ModelError
from microc.frontend.budget import check_shape
from microc.frontend.onnx.application import Application
from microc.frontend.onnx.shape import given_axes, target_shape
from microc.frontend.onnx.slice import slice_bounds, split_parts
from microc.frontend.onnx.tensor import dtype

Fold = Callable[[Application], Array | tuple[Array, ...]]


def fold(application: Application) -> bool:
    """Compute an operator all of whose inputs are constant; False if the table does not know it."""
    found = FOLDS.get(application.operator.code) if not application.operator.domain else None
    if found is None:
        return False
    try:
        with np.errstate(all="ignore"):
            results = found(application)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(f"constants that cannot be computed with: {error}", where=application.where) from error
    for position, result in enumerate(results if isinstance(results, tuple) else (results,)):
        application.result_constant(np.asarray(result), position)
    return True


def _bounded(application: Application, shape: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """``shape``, refused if a constant of it were too large."""
    check_shape(shape, kind, application.where)
    return shape


def _operands(application: Application) -> list[Array]:
    """All operands; what they broadcast to is bounded."""
    arrays = [application.constant(position) for position in range(application.count())]
    if not arrays:
        application.broken("there are no operands")
    _bounded(application, application.broadcast(*(array.shape for array in arrays)), "float64")
    return arrays


def elementwise(function: Callable[..., Any], *, boolean: bool = False) -> Fold:
    """A function of arrays that broadcast; the result has the first operand's dtype unless it is ``boolean``."""

    def compute(application: Application) -> Array:
        arrays = _operands(application)
        result = np.asarray(function(*arrays))
        return result if boolean else result.astype(arrays[0].dtype)

    return compute


def accumulated(function: Callable[[Any, Any], Any]) -> Fold:
    """A function of two, over any number of operands."""

    def compute(application: Application) -> Array:
        first, *rest = _operands(application)
        for array in rest:
            first = np.asarray(function(first, array)).astype(first.dtype)
        return first

    return compute


def _divide(a: Array, b: Array) -> Array:
    """Integers truncate towards zero."""
    if dtypes.is_float(a.dtype.name):
        return np.asarray(a / b)
    if (b == 0).any():
        raise ZeroDivisionError("integers divided by zero")
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient))


def _mod(application: Application) -> Array:
    a, b = _operands(application)
    if not dtypes.is_float(b.dtype.name) and (b == 0).any():
        application.broken("integers divided by zero")
    return np.asarray(np.fmod(a, b) if application.operator.attributes.flag("fmod") else np.mod(a, b))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _where(application: Application) -> Array:
    condition, a, b = _operands(application)
    return np.where(condition.astype(bool), a, b)


def _cast(application: Application) -> Array:
    to = dtype(application.operator.attributes.integer("to"), application.where)
    return application.constant(0).astype(dtypes.to_numpy(to))


def _constant_of_shape(application: Application) -> Array:
    attributes = application.operator.attributes
    value = attributes.tensor("value") if "value" in attributes else np.zeros(1, np.float32)
    if value.size != 1:
        application.broken(f"a value of shape {value.shape}")
    return np.full(_bounded(application, application.integers(0), value.dtype.name), value.reshape(()))


def _range(application: Application) -> Array:
    start, limit, delta = (application.constant(position).reshape(()) for position in range(3))
    if delta == 0 or not np.isfinite([start, limit, delta]).all():
        application.broken(f"a range from {start} to {limit} by {delta}")
    count = max(math.ceil((float(limit) - float(start)) / float(delta)), 0)
    _bounded(application, (count,), start.dtype.name)
    return (start + np.arange(count) * delta).astype(start.dtype)


def _expand(application: Application) -> Array:
    data = application.constant(0)
    shape = _bounded(application, application.broadcast(data.shape, application.integers(1)), data.dtype.name)
    return np.broadcast_to(data, shape)


def _tile(application: Application) -> Array:
    data, counts = application.constant(0), application.integers(1)
    if len(counts) != data.ndim or any(count < 0 for count in counts):
        application.broken(f"repeats {counts} for shape {data.shape}")
    _bounded(application, tuple(e * c for e, c in zip(data.shape, counts, strict=True)), data.dtype.name)
    return np.tile(data, counts)


def _gather(application: Application) -> Array:
    data, indices = application.constant(0), application.constant(1)
    axis = application.axis(application.operator.attributes.integer("axis", 0), data.ndim)
    _bounded(application, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]), data.dtype.name)
    return np.take(data, indices, axis=axis)


def _concat(application: Application) -> Array:
    arrays = [application.constant(position) for position in range(application.count())]
    axis = application.axis(application.operator.attributes.integer("axis"), arrays[0].ndim)
    shape = list(arrays[0].shape)
    shape[axis] = sum(array.shape[axis] if axis < array.ndim else 0 for array in arrays)
    _bounded(application, tuple(shape), arrays[0].dtype.name)
    return np.concatenate(arrays, axis=axis)


def _slice(application: Application) -> Array:
    data = application.constant(0)
    chosen = [slice(None)] * data.ndim
    for axis, first, last, step in zip(*_slice_order(slice_bounds(application)), strict=True):
        extent = data.shape[axis]
        end = last if last >= 0 else last + extent
        chosen[axis] = slice(first, None if step < 0 and end < 0 else last, step)
    return data[tuple(chosen)]


def _slice_order(bounds: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    starts, ends, axes, steps = bounds
    return axes, starts, ends, steps


def _split(application: Application) -> tuple[Array, ...]:
    data = application.constant(0)
    axis = application.axis(application.operator.attributes.integer("axis", 0), data.ndim)
    parts = split_parts(application, data.shape[axis])
    if sum(parts) != data.shape[axis] or min(parts) < 0 or len(parts) != len(application.operator.outputs):
        application.broken(f"parts of {parts} elements of {data.shape[axis]}")
    return tuple(np.split(data, np.cumsum(parts)[:-1], axis=axis))


def _reshape(application: Application) -> Array:
    return application.constant(0).reshape(target_shape(application, application.integers(1)))


def _squeeze(application: Application) -> Array:
    data, given = application.constant(0), given_axes(application)
    return np.squeeze(data) if given is None else np.squeeze(data, tuple(given))


def _unsqueeze(application: Application) -> Array:
    return np.expand_dims(application.constant(0), tuple(given_axes(application) or ()))


def _transpose(application: Application) -> Array:
    data = application.constant(0)
    order = application.operator.attributes.integers("perm", tuple(reversed(range(data.ndim))))
    return data.transpose(order)


def reduced(function: Callable[..., Any], since: int = 18) -> Fold:
    """A reduction over axes."""

    def compute(application: Application) -> Array:
        data, attributes = application.constant(0), application.operator.attributes
        axes = given_axes(application, since) or tuple(range(data.ndim))
        result = function(data, axis=tuple(axes), keepdims=attributes.flag("keepdims", True))
        return np.asarray(result).astype(data.dtype)

    return compute


FOLDS: Mapping[str, Fold] = {
    "Abs": elementwise(np.abs),
    "Add": elementwise(np.add),
    "And": elementwise(np.logical_and, boolean=True),
    "Cast": _cast,
    "Ceil": elementwise(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Cos": elementwise(np.cos),
    "Div": elementwise(_divide),
    "Equal": elementwise(np.equal, boolean=True),
    "Erf": elementwise(_erf),
    "Exp": elementwise(np.exp),
    "Expand": _expand,
    "Floor": elementwise(np.floor),
    "Gather": _gather,
    "Greater": elementwise(np.greater, boolean=True),
    "GreaterOrEqual": elementwise(np.greater_equal, boolean=True),
    "Less": elementwise(np.less, boolean=True),
    "LessOrEqual": elementwise(np.less_equal, boolean=True),
    "Log": elementwise(np.log),
    "Max": accumulated(np.maximum),
    "Min": accumulated(np.minimum),
    "Mod": _mod,
    "Mul": elementwise(np.multiply),
    "Neg": elementwise(np.negative),
    "Not": elementwise(np.logical_not, boolean=True),
    "Or": elementwise(np.logical_or, boolean=True),
    "Pow": elementwise(np.power),
    "Range": _range,
    "Reciprocal": elementwise(np.reciprocal),
    "ReduceMax": reduced(np.max),
    "ReduceMean": reduced(np.mean),
    "ReduceMin": reduced(np.min),
    "ReduceProd": reduced(np.prod),
    "ReduceSum": reduced(np.sum, since=13),
    "Reshape": _reshape,
    "Round": elementwise(np.rint),
    "Sign": elementwise(np.sign),
    "Sin": elementwise(np.sin),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": elementwise(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": elementwise(np.subtract),
    "Sum": accumulated(np.add),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
