"""One ONNX operator as its spelling function sees it: typed access to what it reads, and ways to write nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.budget import inferred
from microc.frontend.onnx.build import Builder, Stored
from microc.frontend.onnx.file import Operator
from microc.frontend.operands import Operands
from microc.frozen import frozen
from microc.graph.ir import Attr, Loc, Node, TensorType
from microc.ops import registry

FLOAT = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NUMBERS = (*FLOAT, *INTEGERS)
SIGNED = tuple(kind for kind in NUMBERS if not kind.startswith("uint"))
MOVABLE = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)
"""Dtypes that operators take which do not compute."""
_FOLDED_BYTES = 1 << 12
_NO_ATTRS: Mapping[str, Attr] = {}


@frozen
class Spelling:
    """One ONNX operator: the function that spells it, and the dtypes that its first input may have.

    ``stepwise``: of floats of 16 bits it is the operators by which ONNX defines it, each of which rounds.
    """

    spell: Callable[[Application], None]
    dtypes: tuple[str, ...] = FLOAT
    stepwise: bool = False


@frozen
class Application(Operands):
    """One operator of the file, with what a spelling function needs to read it and to write its nodes."""

    operator: Operator
    builder: Builder
    loc: Loc
    folds: bool = False
    """Whether all its operands are constant: what it makes is, too, however large."""

    @property
    def where(self) -> str:
        return f"{self.loc} ({self.operator.spelled})"

    @property
    def opset(self) -> int:
        return self.operator.opset or self.builder.file.opset

    def has(self, position: int) -> bool:
        """Whether input ``position`` is present."""
        return position < len(self.operator.inputs) and self.operator.inputs[position] != ""

    def count(self) -> int:
        """Number of inputs, absent ones included."""
        return len(self.operator.inputs)

    def value(self, position: int) -> str:
        """The graph's name of input ``position``, which must be present."""
        if not self.has(position):
            self.broken(f"input {position} is missing")
        return self.builder.value(self.operator.inputs[position], self.where)

    def operand(self, position: int) -> str:
        """An operand that is computed with: of the first input's dtype."""
        value = self.value(position)
        wanted, found = self.type(self.value(0)).dtype, self.type(value).dtype
        if found != wanted:
            self.broken(f"input {position} is {found}, input 0 {wanted}")
        return value

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def shape(self, position: int) -> tuple[int, ...]:
        return self.type(self.value(position)).shape

    def constant(self, position: int) -> Array:
        """The data of an input that must be known when compiling."""
        data = self.builder.consts.get(self.value(position))
        if data is None:
            hint = "shapes are static: make it a constant, or simplify the model with onnxslim"
            self.refuse(f"input {position} ({self.operator.inputs[position]!r}) is not known when compiling", hint)
        return data

    def number(self, position: int) -> float:
        """A constant operand of one number."""
        data = self.constant(position)
        if data.size != 1 or not dtypes.is_float(data.dtype.name):
            self.broken(f"input {position} of shape {data.shape} and {data.dtype} is no real number")
        return float(data.reshape(()))

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Distinct axes, as 0..rank-1, in the order given."""
        found = tuple(self.axis(axis, rank) for axis in axes)
        if len(set(found)) != len(found):
            self.broken(f"axes {tuple(axes)} name one twice")
        return found

    def broadcast(self, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that ``shapes`` broadcast to, as in numpy."""
        rank = max(map(len, shapes))
        extents = [set(column) - {1} for column in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True)]
        if any(len(distinct) > 1 for distinct in extents):
            self.broken(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        return tuple(next(iter(distinct), 1) for distinct in extents)

    def output(self, position: int = 0) -> str:
        """The name of output ``position``, empty where the file leaves it out."""
        return self.operator.outputs[position] if position < len(self.operator.outputs) else ""

    def only_output(self, count: int = 1) -> None:
        """Refuse outputs beyond the first ``count``."""
        extra = [name for name in self.operator.outputs[count:] if name]
        if extra:
            self.refuse(f"the output {extra[0]!r} is asked for", "export the model for inference")

    def new_constant(self, stem: str, data: Array) -> str:
        """A constant that the file does not hold as such, under a new name made from ``stem``."""
        return self.builder.constant(self.builder.unique(stem), data)

    def scalar(self, number: float, dtype: str = "float32") -> str:
        """A constant of one element."""
        return self.new_constant(f"{self.output()}_scalar", np.array([number], dtypes.to_numpy(dtype)))

    def store(self, stem: str, stored: Stored, output: str = "") -> str:
        """Put ``stored`` into the graph: a constant, behind dequantize if it is quantised. ``output``: its name."""
        if stored.name and not output:
            return stored.name
        if stored.quant is None:
            return self.builder.constant(output or self.builder.unique(stem), stored.data)
        name = self.new_constant(f"{stem}_quantized", stored.data)
        quant = stored.quant
        attrs: Mapping[str, Attr] = {"scale": quant.scale, "zero_point": quant.zero_point, "axis": quant.axis}
        return self.write("dequantize", (name,), attrs, output or self.builder.unique(stem))

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """An intermediate value, named after the output."""
        return self.write(op, inputs, attrs, self.builder.unique(f"{self.output()}_{op}"))

    def result(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, position: int = 0) -> None:
        """The operator's output ``position``."""
        if not self.output(position):
            self.broken(f"output {position} has no name")
        self.write(op, inputs, attrs, self.output(position))

    def result_constant(self, data: Array, position: int = 0) -> None:
        """The operator's output ``position``, known when compiling."""
        if self.output(position):
            self.builder.constant(self.output(position), data)

    def result_alias(self, value: str, position: int = 0) -> None:
        """The operator's output ``position`` is ``value``; a value that this operator has just made takes its name."""
        name, builder = self.output(position), self.builder
        if not name:
            return
        last = builder.nodes[-1] if builder.nodes else None
        if last is not None and last.outputs == (value,) and last.loc == self.loc:
            builder.define(name, builder.types.pop(value), self.where)
            builder.nodes[-1] = replace(last, outputs=(name,))
            return
        if name in builder.types or name in builder.alias:
            self.broken(f"{name!r} is made twice")
        builder.alias[name] = value

    def rename(self, name: str, value: str) -> None:
        """A value of the file by a name that is the file's, too."""
        if name in self.builder.types or name in self.builder.alias:
            self.broken(f"{name!r} is made twice")
        self.builder.alias[name] = value

    def result_reshape(self, value: str, shape: Sequence[int], position: int = 0) -> None:
        """The output ``position`` as ``value`` under another (or the same) shape."""
        if prod(shape) != self.type(value).size:
            self.broken(f"shape {self.type(value).shape} cannot become {tuple(shape)}")
        stored = self.builder.stored(value)
        moved = stored.reshaped(tuple(shape)) if stored is not None else None
        if self.type(value).shape == tuple(shape):
            self.result_alias(value, position)
        elif moved is not None:
            self.store(f"{value}_reshaped", moved, self.output(position))
        else:
            self.result("reshape", (value,), {"shape": tuple(shape)}, position)

    def write(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], output: str) -> str:
        """Append a node that makes ``output``; its name."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        (kind,) = inferred(op, attrs, [self.type(name) for name in inputs], self.where)
        if self._folds(op, inputs, kind):
            return self._folded(op, inputs, attrs, output)
        if 0 in kind.shape:
            self.refuse(f"a result of shape {kind.shape}, without elements", "cut the network before it")
        self.builder.define(output, kind, self.where)
        node = Node(op, tuple(inputs), (output,), attrs, self.loc)
        self.builder.nodes.append(node)
        if op == "dequantize":
            self.builder.dequantized[output] = node
        return output

    def _folds(self, op: str, inputs: Sequence[str], kind: TensorType) -> bool:
        """Whether an application is computed now: constants that do not grow much, or those of an operator of nothing else, and
        nothing that says how they are stored."""
        known = bool(inputs) and all(name in self.builder.consts for name in inputs)
        read = sum(self.type(name).nbytes for name in inputs) if known else 0
        small = self.folds or kind.nbytes <= max(_FOLDED_BYTES, 2 * read)
        return known and small and op not in ("quantize", "dequantize")

    def _folded(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], output: str) -> str:
        with np.errstate(all="ignore"):
            (data,) = registry.get(op).reference(attrs, [self.builder.consts[name] for name in inputs])
        return self.builder.constant(output, data)

    def write_all(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]) -> None:
        """Append a node with several results; those that the file does not name get names of their own."""
        definition, builder = registry.get(op), self.builder
        attrs = {**definition.defaults, **attrs}
        kinds = inferred(op, attrs, [self.type(name) for name in inputs], self.where)
        made = [
            name or builder.unique(f"{self.loc.name}_{op}") for name in (*outputs, *[""] * len(kinds))[: len(kinds)]
        ]
        for name, kind in zip(made, kinds, strict=True):
            builder.define(name, kind, self.where)
        builder.nodes.append(Node(op, tuple(inputs), tuple(made), attrs, self.loc))
