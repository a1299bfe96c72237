"""Context of the converter of an ATen operator: arguments of the call, and functions that append nodes to the graph."""

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
"""microc's operators that move elements or change their dtype. They are emitted for float16 and bfloat16 as they are;
arithmetic operators are computed in float32."""


def expand_to_axes(number_or_sequence: Any, axis_count: int) -> tuple[int, ...]:
    """Return an argument such as a kernel size as a tuple with one number for each of ``axis_count`` axes.

    ``number_or_sequence``: a number, or a sequence of one number (both for all axes), or a sequence of ``axis_count``
    numbers."""
    values = (
        [int(n) for n in number_or_sequence]
        if isinstance(number_or_sequence, Sequence) and not isinstance(number_or_sequence, str)
        else [int(number_or_sequence)]
    )
    return tuple(values * axis_count if len(values) == 1 else values)


@dataclass(frozen=True)
class OpContext:
    """Context of the converter of one call of an ATen operator.

    ``builder`` is the builder of the graph, ``node`` the call's node in the PyTorch program, ``operator_name`` the
    operator's name without namespace and overload. Arguments are found by the names in the operator's schema. An
    argument that is a value of the graph is a string; a tensor that is known at compile time is a torch.Tensor.
    ``to_numpy_array`` converts such a tensor to numpy."""

    torch: Any
    builder: GraphBuilder
    node: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    to_numpy_array: Callable[[Any], Array]
    operator_name: str

    def refuse(self, what: str, hint: str) -> NoReturn:
        """Raise UnsupportedError with the operator's name and location: microc does not support ``what``."""
        raise UnsupportedError(f"{self.operator_name}: {what}", where=self.builder.where, hint=hint)

    def argument(self, argument_name: str, default: Any = None) -> Any:
        """Return the argument ``argument_name`` of the call, or its default value in the operator's schema.

        ``default`` is returned if the schema has no default value, or no such argument."""
        for position, declared in enumerate(self.node.target._schema.arguments):
            if declared.name == argument_name:
                if position < len(self.args):
                    return self.args[position]
                if argument_name in self.kwargs:
                    return self.kwargs[argument_name]
                return declared.default_value if declared.has_default_value() else default
        return default

    def read_constant(self, argument_name: str) -> Array | None:
        """Return the data of a tensor argument that must be known at compile time; None if the argument is absent."""
        argument = self.argument(argument_name)
        if argument is None:
            return None
        if isinstance(argument, str):
            data = self.builder.consts.get(argument)
            if data is None:
                self.refuse(
                    f"{argument_name}: got a computed tensor, expected a constant",
                    "make it a parameter or a buffer of the module",
                )
            return data
        return self.to_numpy_array(argument)

    def convert_to_value(self, argument: Any, dtype: str = "") -> str:
        """Convert an argument of the call to a value of the graph; return the value's name.

        A tensor that is known at compile time, or a number, is added to the graph as a constant of ``dtype``. By
        default the tensor's dtype is kept, and a number becomes float32. A string is the name of a value already."""
        if isinstance(argument, str):
            return argument
        if isinstance(argument, self.torch.Tensor):
            data = self.to_numpy_array(argument)
            return self.builder.new_constant("constant", data.astype(dtypes.to_numpy(dtype)) if dtype else data)
        return self.builder.new_constant("number", np.array(argument, dtypes.to_numpy(dtype or "float32")))

    def operand(self, argument_name: str) -> str:
        """Return the tensor argument ``argument_name`` as the name of a value of the graph; refuse the operator if the
        argument is absent."""
        x = self.argument(argument_name)
        if x is None:
            self.refuse(f"{argument_name} is missing", "export the program again with torch.export.export")
        return self.convert_to_value(x)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.builder.shape(value)

    def dtype(self, value: str) -> str:
        return self.builder.type(value).dtype

    def result_shape(self, output_index: int | None = None) -> tuple[int, ...]:
        """Return the shape that PyTorch inferred for the result, or for result ``output_index`` of several."""
        results = self.node.meta["val"]
        return tuple(int(extent) for extent in (results if output_index is None else results[output_index]).shape)

    def result_dtype(self) -> str:
        return str(self.node.meta["val"].dtype).removeprefix("torch.")

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """Append a node of microc's operator ``op``; return the name of its result.

        Arithmetic on float16 and bfloat16 is computed in float32 and the result rounded, as in PyTorch.
        """
        half = next((self.dtype(name) for name in inputs if name and self.dtype(name) in dtypes.HALF), "")
        if not half or op in _DTYPE_PRESERVING or registry.get(op).moves:
            return self.builder.emit(op, inputs, attrs)
        wide = [self.cast(name, "float32") if name and self.dtype(name) == half else name for name in inputs]
        result = self.builder.emit(op, wide, attrs)
        return self.cast(result, half) if self.dtype(result) == "float32" else result

    def cast(self, value: str, dtype: str) -> str:
        """Return ``value`` cast to ``dtype``; the value itself if it has this dtype already."""
        return value if self.dtype(value) == dtype else self.builder.emit("cast", (value,), {"dtype": dtype})

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Return ``value`` reshaped to ``shape``; the value itself if it has this shape already."""
        return self.builder.reshape(value, shape)


Converter = Callable[[OpContext], Any]
"""Type of a converter: a function that appends the nodes for a call of an ATen operator. It returns the name of the
result, or a tuple of names if the operator has several results."""
