# SPDX-License-Identifier: Apache-2.0
"""Context of the converter of an ATen operator: arguments of the call, and functions that append nodes to the graph.

A converter's parameters are the operator's arguments, with the names and defaults of ATen's schema
(:mod:`microc.frontend.signature`). ``x`` is the argument that ATen calls ``self`` or ``input``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.operator_context import CallContext, NamedArguments
from microc.frontend.signature import Value
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
_FIRST_ARGUMENT = ("self", "input")
"""ATen's names of the argument that converters call ``x``."""


@frozen
class OpContext(CallContext):
    """Context of the converter of one call of an ATen operator.

    ``builder`` is the builder of the graph, ``node`` the call's node in the PyTorch program, ``operator_name`` the
    operator's name without namespace and overload. ``arguments`` are the arguments of the call, by their names in the
    operator's schema. An argument that is a value of the graph is a string; a tensor that is known at compile time is a
    torch.Tensor. ``to_numpy_array`` converts such a tensor to numpy."""

    torch: Any
    builder: GraphBuilder
    node: Any
    arguments: Mapping[str, Any]
    to_numpy_array: Callable[[Any], Array]
    operator_name: str
    constant_hint: ClassVar[str] = "make it a parameter or a buffer of the module"

    def broken(self, what: str) -> NoReturn:
        """Raise UnsupportedError for an argument: PyTorch has run the program, hence it is valid."""
        self.refuse(what, "use other arguments")

    # ---- Arguments of the call.

    @property
    def attributes(self) -> NamedArguments:
        """Arguments of the call that are no tensors."""
        return NamedArguments(self.arguments)

    def input_count(self) -> int:
        """Return the number of arguments of the call, tensors or not."""
        return len(self.arguments)

    def has_input(self, argument_name: str) -> bool:
        """Test whether the call has the argument ``argument_name``."""
        return self.argument(argument_name) is not None

    def argument(self, argument_name: str) -> Any:
        """Return the argument ``argument_name`` of the call; None if it is absent."""
        names = _FIRST_ARGUMENT if argument_name == "x" else (argument_name,)
        return next((self.arguments[name] for name in names if self.arguments.get(name) is not None), None)

    def value(self, argument_name: str) -> Value:
        """Return the tensor argument ``argument_name`` as a value of the graph; refuse the operator if the argument is
        absent."""
        x = self.argument(argument_name)
        if x is None:
            self.refuse(f"{argument_name} is missing", "export the program again with torch.export.export")
        return self.convert_to_value(x)

    def describe_input(self, argument_name: str) -> str:
        """Return the name of an argument, for error messages."""
        return argument_name

    def operand(self, argument_name: str) -> str:
        """Return the name of :meth:`value`."""
        return self.value(argument_name)

    def constant(self, argument_name: str) -> Array:
        """Return the data of a tensor argument; refuse the operator unless they are known at compile time."""
        argument = self.argument(argument_name)
        if isinstance(argument, str):
            return CallContext.constant(self, argument_name)
        return self.to_numpy_array(argument)

    def convert_to_value(self, argument: Any, dtype: str = "") -> Value:
        """Convert an argument of the call to a value of the graph.

        A tensor that is known at compile time, or a number, is added to the graph as a constant of ``dtype``. By
        default the tensor's dtype is kept, and a number becomes float32. A string is the name of a value already."""
        if isinstance(argument, str):
            return self.look_up(argument)
        if isinstance(argument, self.torch.Tensor):
            data = self.to_numpy_array(argument)
            return self.new_constant("constant", data.astype(dtypes.to_numpy(dtype)) if dtype else data)
        return self.new_constant("number", np.array(argument, dtypes.to_numpy(dtype or "float32")))

    # ---- The result that PyTorch inferred.

    def result_shape(self, output_index: int | None = None) -> tuple[int, ...]:
        """Return the shape that PyTorch inferred for the result, or for result ``output_index`` of several."""
        results = self.node.meta["val"]
        return tuple(int(extent) for extent in (results if output_index is None else results[output_index]).shape)

    def result_dtype(self) -> str:
        """Return the dtype that PyTorch inferred for the result."""
        return str(self.node.meta["val"].dtype).removeprefix("torch.")

    # ---- Values and nodes of the graph.

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the extents of a value."""
        return self.builder.shape(value)

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> Value:
        """Append a node of microc's operator ``op``; return its result.

        Arithmetic on float16 and bfloat16 is computed in float32 and the result rounded, as in PyTorch.
        """
        operands = [self.look_up(name) for name in inputs]
        half = next((operand.dtype for operand in operands if operand.dtype in dtypes.HALF), "")
        if not half or op in _DTYPE_PRESERVING or registry.get(op).moves:
            return self.look_up(self.builder.emit(op, operands, attrs))
        wide = [self.cast(operand, "float32") if operand.dtype == half else operand for operand in operands]
        result = self.look_up(self.builder.emit(op, wide, attrs))
        return self.cast(result, half) if result.dtype == "float32" else result

    def cast(self, value: Value, dtype: str) -> Value:
        """Return ``value`` cast to ``dtype``; the value itself if it has this dtype already."""
        return value if value.dtype == dtype else self.look_up(self.builder.emit("cast", (value,), {"dtype": dtype}))

    def broadcast_to(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Return ``x`` broadcast to ``shape``; ``x`` itself if it has this shape already."""
        return x if x.shape == shape else self.emit("broadcast_to", (x,), {"shape": shape})


Converter = Callable[[OpContext], Any]
"""Type of a converter: a function that appends the nodes for a call of an ATen operator. It returns the name of the
result, or a tuple of names if the operator has several results."""
