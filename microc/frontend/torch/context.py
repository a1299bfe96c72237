"""One call of an ATen operator as its spelling function sees it."""

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
_KEEPING = (
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
"""Operators that move elements or convert them, and compute nothing."""


def numbers(x: Any, count: int) -> tuple[int, ...]:
    """A number for every axis."""
    found = [int(n) for n in x] if isinstance(x, Sequence) and not isinstance(x, str) else [int(x)]
    return tuple(found * count if len(found) == 1 else found)


@dataclass(frozen=True)
class Application:
    """Arguments by the names of the operator's schema: values of the graph are strings, known tensors are PyTorch's."""

    torch: Any
    write: GraphBuilder
    node: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    array: Callable[[Any], Array]
    name: str

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UnsupportedError(f"{self.name}: {what}", where=self.write.where, hint=hint)

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument, by position or name, or what the schema says that it is without one."""
        for position, declared in enumerate(self.node.target._schema.arguments):
            if declared.name == name:
                if position < len(self.args):
                    return self.args[position]
                if name in self.kwargs:
                    return self.kwargs[name]
                return declared.default_value if declared.has_default_value() else default
        return default

    def constant(self, name: str) -> Array | None:
        """A tensor known when compiling; None where it is absent."""
        held = self.argument(name)
        if held is None:
            return None
        if isinstance(held, str):
            found = self.write.consts.get(held)
            if found is None:
                self.refuse(f"{name} is not known when compiling", "make it a parameter or a buffer of the module")
            return found
        return self.array(held)

    def value(self, x: Any, dtype: str = "") -> str:
        """A value of the graph, for a value, a known tensor or a number (of ``dtype``)."""
        if isinstance(x, str):
            return x
        if isinstance(x, self.torch.Tensor):
            found = self.array(x)
            return self.write.new_constant("constant", found.astype(dtypes.to_numpy(dtype)) if dtype else found)
        return self.write.new_constant("number", np.array(x, dtypes.to_numpy(dtype or "float32")))

    def operand(self, name: str) -> str:
        """A tensor argument, which must be there."""
        x = self.argument(name)
        if x is None:
            self.refuse(f"{name} is missing", "export the program again with torch.export.export")
        return self.value(x)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.write.shape(value)

    def dtype(self, value: str) -> str:
        return self.write.type(value).dtype

    def result_shape(self, output: int | None = None) -> tuple[int, ...]:
        """The shape that PyTorch gives the result."""
        made = self.node.meta["val"]
        return tuple(int(extent) for extent in (made if output is None else made[output]).shape)

    def result_dtype(self) -> str:
        return str(self.node.meta["val"].dtype).removeprefix("torch.")

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """The value of an operator. Arithmetic on halves is done in float32, and its result is rounded, as PyTorch does it."""
        half = next((self.dtype(name) for name in inputs if name and self.dtype(name) in dtypes.HALF), "")
        if not half or op in _KEEPING or registry.get(op).moves:
            return self.write.emit(op, inputs, attrs)
        wide = [self.cast(name, "float32") if name and self.dtype(name) == half else name for name in inputs]
        made = self.write.emit(op, wide, attrs)
        return self.cast(made, half) if self.dtype(made) == "float32" else made

    def cast(self, value: str, dtype: str) -> str:
        return value if self.dtype(value) == dtype else self.write.emit("cast", (value,), {"dtype": dtype})

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        return self.write.reshape(value, shape)


Spelling = Callable[[Application], Any]
"""Writes an operator; what it gives: a value's name, or a tuple of these."""
