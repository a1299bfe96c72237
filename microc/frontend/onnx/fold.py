"""Operators on constants that have no spelling, computed in the reader: what makes a tensor of numbers and shapes.

Others on constants are spelled as usual: what the spelling makes of constants is folded by the operators' own references
(:meth:`Application.write`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError
from microc.frontend.budget import check_shape
from microc.frontend.onnx.application import Application

Fold = Callable[[Application], Array]


def fold(application: Application) -> None:
    """Compute an operator of :data:`FOLDS`, all of whose inputs are constant."""
    try:
        with np.errstate(all="ignore"):
            application.result_constant(FOLDS[application.operator.code](application))
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise ModelError(f"constants that cannot be computed with: {error}", where=application.where) from error


def _bounded(application: Application, shape: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """``shape``, refused if a constant of it were too large."""
    check_shape(shape, kind, application.where)
    return shape


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


FOLDS: Mapping[str, Fold] = {"ConstantOfShape": _constant_of_shape, "Range": _range}
