"""One call of an ATen operator as its converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Attr
from microc.ops import registry

_NO_ATTRS: Mapping[str, Attr] = {}
_DTYPE_PRESERVING = (
    "broadcast_to",
    "cast",
    "concat",
    "gather",
    "gather_elements",
    "gather_nd",
    "pad",
    "reshape",
    "slice",
    "transpose",
)
"""Operators that move or convert elements and compute nothing."""


def numbers_per_axis(x: Any, axis_count: int) -> tuple[int, ...]:
    """Return an argument, one number or a sequence, as one number for each of ``axis_count`` axes."""
    values = [int(n) for n in x] if isinstance(x, Sequence) and not isinstance(x, str) else [int(x)]
    return tuple(values * axis_count if len(values) == 1 else values)


@dataclass(frozen=True)
class OpContext:
    """One call of an ATen operator as its converter sees it.

    Arguments are found by the names of its schema: values of the graph are strings, known tensors are PyTorch's."""

    torch: Any
    write: GraphBuilder
    node: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    array: Callable[[Any], Array]
    name: str

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError, with the operator's name and position."""
        raise UnsupportedError(f"{self.name}: {what}", where=self.write.where, hint=hint)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument, given by position or name, or the schema's default."""
        for position, declared in enumerate(self.node.target._schema.arguments):
            if declared.name == name:
                if position < len(self.args):
                    return self.args[position]
                if name in self.kwargs:
                    return self.kwargs[name]
                return declared.default_value if declared.has_default_value() else default
        return default

    def constant(self, name: str) -> Array | None:
        """Return a tensor that must be known at compile time; None if the argument is absent."""
        argument = self.argument(name)
        if argument is None:
            return None
        if isinstance(argument, str):
            data = self.write.consts.get(argument)
            if data is None:
                self.refuse(f"{name} is not known when compiling", "make it a parameter or a buffer of the module")
            return data
        return self.array(argument)

    def value(self, x: Any, dtype: str = "") -> str:
        """Return the value of the graph for an argument: a value itself, or a constant for a tensor or a number (of
        ``dtype``)."""
        if isinstance(x, str):
            return x
        if isinstance(x, self.torch.Tensor):
            data = self.array(x)
            return self.write.new_constant("constant", data.astype(dtypes.to_numpy(dtype)) if dtype else data)
        return self.write.new_constant("number", np.array(x, dtypes.to_numpy(dtype or "float32")))

    def operand(self, name: str) -> str:
        """Return a tensor argument, which must be present."""
        x = self.argument(name)
        if x is None:
            self.refuse(f"{name} is missing", "export the program again with torch.export.export")
        return self.value(x)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.write.shape(value)

    def dtype(self, value: str) -> str:
        return self.write.type(value).dtype

    def result_shape(self, output_index: int | None = None) -> tuple[int, ...]:
        """Return the result's shape as PyTorch inferred it."""
        results = self.node.meta["val"]
        return tuple(int(extent) for extent in (results if output_index is None else results[output_index]).shape)

    def result_dtype(self) -> str:
        return str(self.node.meta["val"].dtype).removeprefix("torch.")

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """Emit an operator and return its value.

        As in PyTorch, arithmetic on float16 and bfloat16 is done in float32, and its result is rounded.
        """
        half = next((self.dtype(name) for name in inputs if name and self.dtype(name) in dtypes.HALF), "")
        if not half or op in _DTYPE_PRESERVING or registry.get(op).moves:
            return self.write.emit(op, inputs, attrs)
        wide = [self.cast(name, "float32") if name and self.dtype(name) == half else name for name in inputs]
        result = self.write.emit(op, wide, attrs)
        return self.cast(result, half) if self.dtype(result) == "float32" else result

    def cast(self, value: str, dtype: str) -> str:
        """Return a value in another dtype, or itself if it has that dtype."""
        return value if self.dtype(value) == dtype else self.write.emit("cast", (value,), {"dtype": dtype})

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Return a value under another shape, or itself if it has that shape."""
        return self.write.reshape(value, shape)


Converter = Callable[[OpContext], Any]
"""Type of a converter: it writes an operator and returns a value's name, or a tuple of these."""
