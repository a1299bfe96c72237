# SPDX-License-Identifier: Apache-2.0
"""Signatures of converters: what parameters declare is read and checked before a converter is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, cast

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError, UnsupportedError
from microc.frontend.signature import (
    AttributeBefore,
    Axes,
    Axis,
    BoundConverter,
    DefaultBefore,
    Dtype,
    Floats,
    Ints,
    Matrix,
    Only,
    Rank,
    SameDtype,
    Strings,
    Value,
)
from microc.graph.ir import TensorType


class Attributes(dict[str, Any]):
    """Attributes that are what they are: each method of a reader returns the value as it is."""

    def __getattr__(self, name: str) -> Any:
        return self.__getitem__


class Operator:
    """An operator with constant inputs; None leaves one out."""

    def __init__(self, *inputs: Array | None, opset: int = 20, outputs: int = 1, **attributes: Any) -> None:
        self.inputs, self.opset, self.outputs, self.attributes = inputs, opset, outputs, Attributes(attributes)

    def has_input(self, k: int) -> bool:
        return k < len(self.inputs) and self.inputs[k] is not None

    def input_count(self) -> int:
        return len(self.inputs)

    def value(self, k: int) -> Value:
        data = self.constant(k)
        return Value(f"v{k}", TensorType(data.shape, data.dtype.name), data)

    def operand(self, k: int) -> Value:
        if self.value(k).dtype != self.value(0).dtype:
            self.broken(f"dtype of {k}")
        return self.value(k)

    def constant(self, k: int) -> Array:
        if not self.has_input(k):
            self.broken(f"input {k} is missing")
        return cast(Array, self.inputs[k])

    def constant_integer(self, k: int) -> int:
        return int(self.constant(k).item())

    def constant_number(self, k: int) -> float:
        return float(self.constant(k).item())

    def integers(self, k: int) -> Ints:
        return tuple(map(int, self.constant(k)))

    def reals(self, k: int) -> Floats:
        return tuple(map(float, self.constant(k)))

    def decode_dtype(self, code: int) -> str:
        return {1: "float32"}[code]

    def axis(self, axis: int, rank: int) -> int:
        return axis % rank

    def normalize_axes(self, axes: Sequence[int], rank: int) -> Ints:
        return tuple(axis % rank for axis in axes)

    def refuse_extra_outputs(self, count: int = 1) -> None:
        if self.outputs > count:
            self.refuse("outputs", "")

    def broken(self, what: str) -> NoReturn:
        raise ModelError(what)

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UnsupportedError(what, hint=hint)


def received(converter: Any, operator: Operator, **options: Any) -> Mapping[str, Any]:
    """What a converter is called with; it calls ``operator.keep(**its arguments)``."""
    seen: dict[str, Any] = {}
    operator.keep = seen.update  # type: ignore[attr-defined]
    BoundConverter(converter, **options)(operator)
    return seen


def f(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def test_operands() -> None:
    def convert(
        op: Any, x: Value, y: SameDtype | None, data: Array, axes: Ints | None, k: int, scale: float, *rest: Value
    ) -> None:
        op.keep(**{name: value for name, value in locals().items() if name != "op"})

    seen = received(convert, Operator(f(2, 3), None, f(4), ints(1, 2), ints(7), np.array(0.5), f(1), f(2)))
    assert (seen["x"], seen["x"].shape, seen["x"].rank, seen["y"]) == ("v0", (2, 3), 2, None)
    assert (seen["data"].shape, seen["axes"], seen["k"], seen["scale"], seen["rest"]) == (
        (4,),
        (1, 2),
        7,
        0.5,
        ("v6", "v7"),
    )
    with pytest.raises(ModelError, match="dtype of 1"):
        received(convert, Operator(f(2), ints(1)))
    with pytest.raises(ModelError, match="input 2 is missing"):
        received(convert, Operator(f(2)))


@pytest.mark.parametrize(
    ("rank", "shape", "message"),
    [
        (Rank(2, 2), (3,), "two axes"),
        (Rank(3, None), (1, 2), "at least three axes"),
        (Rank(0, 2), (1, 1, 1), "at most two axes"),
        (Rank(3, 4), (5,), "three axes or four axes"),
    ],
)
def test_ranks(rank: Rank, shape: tuple[int, ...], message: str) -> None:
    def convert(op: Any, x: Value) -> None:
        op.keep(x=x)

    convert.__annotations__["x"] = Annotated[Value, rank]
    with pytest.raises(ModelError, match=f"input 0 has shape .*, expected {message}$"):
        received(convert, Operator(f(*shape)))


def test_too_many_inputs_and_outputs() -> None:
    def convert(op: Any, x: Matrix) -> None:
        op.keep(x=x)

    assert received(convert, Operator(f(1, 1), None, outputs=2))
    with pytest.raises(ModelError, match="got 2 inputs, expected at most 1"):
        received(convert, Operator(f(1, 1), f(1)))
    with pytest.raises(UnsupportedError, match="outputs"):
        received(convert, Operator(f(1, 1), outputs=2), output_count=1)


def test_attributes() -> None:
    def convert(
        op: Any,
        x: Value,
        *,
        axis: Annotated[Axis, DefaultBefore(13, 1)] = -1,
        axes: Axes | None = None,
        to: Dtype | None = None,
        mode: Literal["a", "b", "c"] = "a",
        order: Literal[0, 1] = 0,
        trains: Annotated[bool, Only(False, "do not")] = False,
        names: Strings,
    ) -> None:
        op.keep(axis=axis, axes=axes, to=to, mode=mode, order=order, names=names)

    defaults = {"axis": 2, "axes": None, "to": None, "mode": "a", "order": 0, "names": ("n",)}
    assert received(convert, Operator(f(1, 2, 3), names=("n",))) == defaults
    assert received(convert, Operator(f(1, 2, 3), names=("n",), opset=12))["axis"] == 1
    given = received(convert, Operator(f(1, 2, 3), names=(), axis=-3, axes=(-1, 0), to=1, mode="b", trains=False))
    assert given == {"axis": 0, "axes": (2, 0), "to": "float32", "mode": "b", "order": 0, "names": ()}
    for wrong, message in (
        ({"mode": "d"}, "mode is 'd', expected a, b or c"),
        ({"order": 2}, "order is 2, expected 0 or 1"),
        ({"trains": True}, "trains is 1, expected 0"),
    ):
        with pytest.raises(ModelError, match=message):
            received(convert, Operator(f(1), names=(), **wrong))
    with pytest.raises(KeyError):
        received(convert, Operator(f(1)))


def test_operands_that_were_attributes() -> None:
    def convert(op: Any, x: Value, axes: Annotated[Ints | None, AttributeBefore(13, "dims")]) -> None:
        op.keep(axes=axes)

    assert received(convert, Operator(f(1), ints(3)))["axes"] == (3,)
    assert received(convert, Operator(f(1), ints(3), opset=12))["axes"] is None
    assert received(convert, Operator(f(1), opset=12, dims=(4,)))["axes"] == (4,)


@frozen
class Quantised:
    value: Value
    zero_point: Value | None


@frozen
class Window:
    strides: Ints = ()
    pads: Ints = ()


def test_groups_and_attributes_of_tables() -> None:
    def convert(op: Any, x: Quantised, y: Quantised, b: Value | None, *, window: Window, **attributes: float) -> None:
        op.keep(x=x, y=y, b=b, window=window, **attributes)

    bound = BoundConverter(convert, float_attributes={"alpha": 0.5, "beta": 2.0})
    assert [(each.name, each.index) for each in bound.signature.operands][2:] == [
        ("value", 2),
        ("zero_point", 3),
        ("b", 4),
    ]
    assert [each.name for each in bound.signature.attributes] == ["strides", "pads", "alpha", "beta"]
    operator = Operator(f(1), None, f(2), f(3), pads=(1, 1), beta=3.0)
    seen = received(convert, operator, float_attributes={"alpha": 0.5, "beta": 2.0})
    assert (seen["x"].zero_point, seen["y"].value, seen["y"].zero_point, seen["b"]) == (None, "v2", "v3", None)
    assert (seen["window"], seen["alpha"], seen["beta"]) == (Window((), (1, 1)), 0.5, 3.0)
    assert bound.signature.format_restrictions() == ""
