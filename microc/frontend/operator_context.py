# SPDX-License-Identifier: Apache-2.0
"""Base of the contexts of all formats: one operator of a model file, as its converter receives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import Emitter, GraphBuilder
from microc.frontend.signature import Floats, Ints, OperatorReader, Value
from microc.graph.ir import Attr, TensorType

MAX_INTEGERS = 64
"""Largest number of elements of a constant operand that is read as a list of integers."""
_NO_ATTRS: Mapping[str, Attr] = {}


def slice_attributes(shape: Ints, axis: int, begin: int, end: int) -> Mapping[str, Attr]:
    """Return the attributes of the operator ``slice`` for the elements ``begin`` to ``end`` (exclusive) along ``axis``."""
    begins, ends = [0] * len(shape), list(shape)
    begins[axis], ends[axis] = begin, end
    return {"begin": tuple(begins), "end": tuple(ends), "strides": (1,) * len(shape)}


class GraphValues(Protocol):
    """Interface of a graph under construction: types of its values and data of its constants, by name."""

    types: dict[str, TensorType]
    consts: dict[str, Array]


class OperatorContext(OperatorReader, Emitter, Protocol):
    """Context of the converter of one operator in a model file.

    It reads operands by their index, or by their name in formats whose calls have named arguments; looks up values of the
    graph; appends nodes to it; and raises errors that contain the operator's location. The context of a format adds how
    inputs are found and how outputs are defined."""

    builder: GraphValues
    """The graph under construction."""
    constant_hint: ClassVar[str]
    """Advice for a model in which an operand is computed that must be a constant."""

    @property
    def where(self) -> str:
        """Location of the operator for error messages."""

    # ---- Errors.

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError: the model is valid, but microc does not support ``what``; ``hint`` is the advice."""
        raise UnsupportedError(what, where=self.where, hint=hint)

    def broken(self, what: str) -> NoReturn:
        """Raise ModelError: the model is invalid because of ``what``."""
        raise ModelError(what, where=self.where)

    def refuse_computed_operand(self, description: str) -> NoReturn:
        """Raise UnsupportedError: the operand that ``description`` names is computed, but must be a constant."""
        self.refuse(f"{description}: got a computed tensor, expected a constant", self.constant_hint)

    # ---- Operands.

    def describe_input(self, input_key: Any) -> str:
        """Return the index and name of an input, for error messages."""
        return f"input {input_key}"

    def constant(self, input_key: Any) -> Array:
        """Return the data of an input; raise UnsupportedError unless it is constant."""
        data = self.value(input_key).constant
        if data is None:
            self.refuse_computed_operand(self.describe_input(input_key))
        return data

    def data(self, value: Value) -> Array:
        """Return the data of a value; raise UnsupportedError unless it is constant."""
        if value.constant is None:
            self.refuse_computed_operand(repr(str(value)))
        return value.constant

    def constant_number(self, input_key: Any) -> float:
        """Return the only element of an input; raise an error unless it is a constant float."""
        data = self.constant(input_key)
        if data.size != 1 or not dtypes.is_float(data.dtype.name):
            self.broken(f"input {input_key}: got shape {data.shape} of {data.dtype}, expected one float")
        return float(data.reshape(()))

    def constant_integer(self, input_key: Any) -> int:
        """Return the only element of an input; raise an error unless it is a constant integer."""
        data = self.constant(input_key)
        if data.size != 1 or data.dtype.kind not in "iu":
            self.broken(f"input {input_key}: got shape {data.shape} of {data.dtype}, expected one integer")
        return int(data.reshape(()))

    def integers(self, input_key: Any) -> Ints:
        """Return a constant input of at most MAX_INTEGERS integers, such as axes or paddings, as a flat tuple."""
        data = self.constant(input_key)
        if data.dtype not in (np.int32, np.int64) or data.size > MAX_INTEGERS:
            self.broken(
                f"input {input_key}: got {data.size} elements of {data.dtype}, "
                f"expected at most {MAX_INTEGERS} of int32 or int64"
            )
        return tuple(int(i) for i in data.reshape(-1))

    def reals(self, input_key: Any) -> Floats:
        """Return the elements of a constant input as floats."""
        return tuple(float(number) for number in self.constant(input_key).reshape(-1))

    # ---- Axes.

    def axis(self, signed_axis: int, rank: int) -> int:
        """Return a possibly negative axis as a number in 0..rank - 1. Negative axes count from the end."""
        if not -rank <= signed_axis < rank:
            self.broken(f"axis {signed_axis} of a tensor of rank {rank}, expected {-rank}..{rank - 1}")
        return signed_axis % rank

    def normalize_axes(self, signed_axes: Sequence[int], rank: int) -> Ints:
        """Return possibly negative axes as numbers of 0 to ``rank`` - 1, in the order of ``signed_axes``.

        Negative axes count from the end. Raise ModelError if an axis is out of range or occurs twice."""
        positive_axes = tuple(self.axis(axis, rank) for axis in signed_axes)
        if len(set(positive_axes)) != len(positive_axes):
            self.broken(f"axes: got {tuple(signed_axes)}, expected each axis once")
        return positive_axes

    # ---- Values and nodes of the graph.

    def look_up(self, value_name: str) -> Value:
        """Return the value of the graph that has the name ``value_name``."""
        return Value(value_name, self.builder.types[value_name], self.builder.consts.get(value_name))

    def type(self, value: str) -> TensorType:
        """Return the type (shape, dtype and quantisation) of a value of the graph."""
        return self.builder.types[value]

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> Value:
        """Append a node; return its result."""

    def reshape(self, value: str, shape: Sequence[int]) -> Value:
        """Return ``value`` reshaped to ``shape``; the value itself if it has this shape already."""
        operand, extents = self.look_up(value), tuple(int(extent) for extent in shape)
        return operand if operand.shape == extents else self.emit("reshape", (value,), {"shape": extents})

    def transpose(self, value: str, axes: Sequence[int]) -> Value:
        """Return ``value`` with its axes in the order ``axes``; the value itself if they are in order already."""
        if list(axes) == sorted(axes):
            return self.look_up(value)
        return self.emit("transpose", (value,), {"axes": tuple(axes)})

    def cast(self, value: Value, dtype: str) -> Value:
        """Return ``value`` cast to ``dtype``; the value itself if it has this dtype already."""
        return value if value.dtype == dtype else self.emit("cast", (value,), {"dtype": dtype})

    def slice(self, value: Value, begin: Sequence[int], end: Sequence[int]) -> Value:
        """Return the elements of ``value`` from ``begin`` to ``end`` (exclusive) along each axis; the value itself if
        these are all."""
        if not any(begin) and tuple(end) == value.shape:
            return value
        attrs: Mapping[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": (1,) * value.rank}
        return self.emit("slice", (value,), attrs)

    def slice_axis(self, value: Value, axis: int, begin: int, end: int) -> Value:
        """Return the elements ``begin`` to ``end`` (exclusive) of ``value`` along ``axis``; see :meth:`slice`."""
        if (begin, end) == (0, value.shape[axis]):
            return value
        return self.emit("slice", (value,), slice_attributes(value.shape, axis, begin, end))


# ---- Formats whose operators are calls of Python: PyTorch and Keras.


class CallContext(OperatorContext, Protocol):
    """Base of the contexts of calls. ``builder`` is the builder of the graph; ``operator_name`` is named in errors."""

    builder: GraphBuilder
    operator_name: str

    @property
    def where(self) -> str:
        """Location of the call for error messages."""
        return self.builder.where

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError with the operator's name and location: microc does not support ``what``."""
        raise UnsupportedError(f"{self.operator_name}: {what}", where=self.where, hint=hint)

    def new_constant(self, stem: str, data: Array) -> Value:
        """Add a constant; its name is made unique from ``stem``."""
        return self.look_up(self.builder.new_constant(stem, data))

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> Value:
        """Append a node of microc's operator ``op``; return its result."""
        return self.look_up(self.builder.emit(op, inputs, attrs))


@frozen
class NamedArguments:
    """Arguments of a call, or settings of a layer, that are no tensors: attributes that Python objects store.

    An argument that is None is absent."""

    arguments: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.arguments.get(name) is not None

    def argument(self, attribute_name: str) -> Any:
        """Return an argument as it is stored."""
        return self.arguments[attribute_name]

    def flag(self, attribute_name: str) -> bool:
        """Return a bool."""
        return bool(self.arguments[attribute_name])

    def integer(self, attribute_name: str) -> int:
        """Return an integer."""
        return int(_require_number(attribute_name, self.arguments[attribute_name]))

    def integers(self, attribute_name: str) -> Ints:
        """Return a list of integers; a single integer as a list of one."""
        values = self.arguments[attribute_name]
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        return tuple(int(_require_number(attribute_name, n)) for n in (values if is_list else (values,)))

    def real(self, attribute_name: str) -> float:
        """Return a number as a float."""
        return float(_require_number(attribute_name, self.arguments[attribute_name]))

    def reals(self, attribute_name: str) -> Floats:
        """Return a list of numbers as floats."""
        return tuple(float(_require_number(attribute_name, number)) for number in self.arguments[attribute_name])

    def text(self, attribute_name: str) -> str:
        """Return a text."""
        return str(self.arguments[attribute_name])


def _require_number(attribute_name: str, value: Any) -> Any:
    """Return ``value``; raise TypeError if it is no number, such as a text with digits, which ``int`` would convert."""
    if not hasattr(value, "__int__"):
        raise TypeError(f"{attribute_name}: got {value!r}, expected a number")
    return value


def expand_to_axes(values: Ints, axis_count: int) -> Ints:
    """Return an argument such as a kernel size with one number for each of ``axis_count`` axes. A single number stands
    for all axes."""
    return values * axis_count if len(values) == 1 else values
