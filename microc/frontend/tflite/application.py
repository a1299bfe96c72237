"""One TFLite operator as its spelling function sees it: what it reads from the file, what it writes to the graph.

Shapes come from the operators' own inference; the file's declared shapes are compared with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.budget import inferred
from microc.frontend.operands import MOST_INTEGERS, Operands
from microc.frontend.tflite.build import Builder
from microc.frontend.tflite.file import Operator, Tensor
from microc.frozen import frozen
from microc.graph.ir import Attr, Loc, Node, Quant, TensorType
from microc.ops import registry

_NO_ATTRS: Mapping[str, Attr] = {}

_CALIBRATE = "convert with a representative data set, so that all activations have scales"
_FIX = "make it one: convert with fixed shapes and sizes, which kernels are compiled for"


@frozen
class Application(Operands):
    """One operator of the file, with what a spelling function needs to read it and to write its nodes."""

    operator: Operator
    builder: Builder
    loc: Loc

    @property
    def where(self) -> str:
        return f"{self.loc} {self.operator.code}"

    def has(self, position: int) -> bool:
        """Whether input ``position`` is present (trailing and -1 inputs are absent)."""
        return position < len(self.operator.inputs) and self.operator.inputs[position] >= 0

    def source(self, position: int) -> Tensor:
        """Input ``position`` as the file declares it."""
        if not self.has(position):
            self.broken(f"input {position} is missing")
        return self.builder.file.tensor(self.operator.inputs[position])

    def target(self, position: int = 0) -> Tensor:
        """Output ``position`` as the file declares it."""
        if position >= len(self.operator.outputs):
            self.broken(f"output {position} is missing")
        return self.builder.file.tensor(self.operator.outputs[position])

    def moved(self, position: int) -> str:
        """An operand whose elements move unchanged: it has the output's dtype, quantised or not."""
        source, target = self.source(position), self.target()
        if source.type.dtype != target.type.dtype:
            self.refuse(
                f"{source.type.dtype} input {position} and {target.type.dtype} output",
                "put a CAST or a QUANTIZE between them",
            )
        return self.value(position)

    def operand(self, position: int, dtype: str = "", *, symmetric: bool = True) -> str:
        """An operand that is computed with: of ``dtype`` (the output's unless given); integers are quantised.

        ``symmetric``: int16 tensors must not have a zero point.
        """
        source, target = self.source(position), self.target()
        wanted = dtype or target.type.dtype
        if source.type.dtype != wanted:
            self.refuse(
                f"{source.type.dtype} input {position} where {wanted} is needed", f"cast or quantise it to {wanted}"
            )
        for tensor in (source, target):
            self._check_quantised(tensor, symmetric)
        return self.value(position)

    def _check_quantised(self, tensor: Tensor, symmetric: bool) -> None:
        """An integer of 8 or 16 bits that is computed with has one scale."""
        kind = tensor.type
        if kind.dtype not in ("int8", "uint8", "int16"):
            return
        if kind.quant is None:
            self.refuse(f"{kind.dtype} tensor {tensor.name!r} has no quantisation", _CALIBRATE)
        if kind.quant.axis is not None:
            self.refuse(f"{tensor.name!r} is quantised per channel and is no weight", "quantise activations per tensor")
        if symmetric and kind.dtype == "int16" and kind.quant.zero_point != (0,):
            self.refuse(
                f"int16 tensor {tensor.name!r} has a zero point", "int16 activations are symmetric: convert as int16x8"
            )

    def value(self, position: int) -> str:
        """The name of input ``position``, whatever its dtype."""
        source = self.source(position)
        if source.packed and not source.constant:
            self.refuse(
                f"{source.name!r} is computed in int4", "only constant weights may be; quantise activations to int8"
            )
        return self.builder.value(source.index, self.where)

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def constant(self, position: int) -> Array:
        """The data of an input that must be known when compiling."""
        data = self.builder.consts.get(self.value(position))
        if data is None:
            self.refuse(f"input {position} ({self.source(position).name!r}) is not a constant", _FIX)
        return data

    def index(self, indices: str) -> str:
        """Indices as int32 or int64."""
        kind = self.type(indices)
        if kind.dtype in ("int32", "int64"):
            return indices
        if kind.dtype not in ("int8", "int16", "uint8"):
            self.refuse(f"{kind.dtype} indices", "int32 or int64 are usual")
        return self.emit("cast", (indices,), {"dtype": "int32"})

    def rank(self, value: str, *ranks: int) -> tuple[int, ...]:
        """The shape of ``value``, which must have one of ``ranks`` axes and some elements."""
        shape = self.type(value).shape
        if len(shape) not in ranks or 0 in shape:
            self.broken(f"{value!r} has shape {shape}; its rank must be {' or '.join(map(str, ranks))}")
        return shape

    def new_constant(self, stem: str, data: Array, quant: Quant | None = None) -> str:
        """A constant that the file does not hold as such, under a new name made from ``stem``."""
        return self.builder.constant(self.builder.file.unique(stem), data, quant)

    def filled(self, stem: str, shape: Sequence[int], number: float, dtype: str) -> str:
        """A constant full of one number; its size is known to be reasonable before there is any memory."""
        if any(extent < 0 for extent in shape):
            self.broken(f"shape {tuple(shape)}")
        self.builder.file.charge(prod(shape) * dtypes.nbytes(dtype))
        return self.new_constant(stem, np.full(tuple(shape), number, dtypes.to_numpy(dtype)))

    def scalar(self, number: float) -> str:
        """A float32 constant of one element."""
        return self.new_constant("scalar", np.array([number], np.float32))

    def emit(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS, like: TensorType | None = None
    ) -> str:
        """An intermediate value, named after the output; dtype and quantisation as ``like``, else as inferred: with the first
        input's dtype comes its quantisation."""
        name = self.builder.file.unique(f"{self.loc.name}_{op}")
        self.append(op, inputs, attrs, (name,), (like,))
        return name

    def result(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], position: int = 0) -> str:
        """The operator's output ``position``: dtype and quantisation as the file declares, shape as inferred."""
        target = self.target(position)
        self.append(op, inputs, attrs, (target.name,), (target.type,))
        self.compare(target)
        return target.name

    def results(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> None:
        """All outputs of the operator, from one node."""
        targets = [self.target(position) for position in range(len(self.operator.outputs))]
        kinds = tuple(target.type for target in targets)
        self.append(op, inputs, attrs, tuple(target.name for target in targets), kinds)
        for target in targets:
            self.compare(target)

    def result_reshape(self, value: str, shape: Sequence[int], position: int = 0) -> str:
        """The output ``position`` as ``value`` under another (or the same) shape."""
        if prod(shape) != self.type(value).size:
            self.broken(f"shape {self.type(value).shape} cannot become {tuple(shape)}")
        return self.result("reshape", (value,), {"shape": tuple(shape)}, position)

    def result_constant(self, data: Array) -> None:
        """The first output, known when compiling."""
        target = self.target()
        self.builder.constant(target.name, data, target.type.quant)
        self.compare(target)

    def result_with_state(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], state: str) -> None:
        """An operator with two outputs, the second of which is the next content of ``state``."""
        target, following = self.target(), self.builder.file.unique(f"{state}_next")
        self.append(op, inputs, attrs, (target.name, following), (target.type, self.type(state)))
        self.compare(target)
        self.builder.updates[state] = following

    def inferred(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[TensorType, ...]:
        """The types of what an application makes."""
        return inferred(op, attrs, [self.type(name) for name in inputs], self.where)

    def append(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attr],
        outputs: Sequence[str],
        likes: Sequence[TensorType | None],
    ) -> None:
        """A node whose outputs have new names; dtypes and quantisation as ``likes``, shapes as inferred."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        inferred = self.inferred(op, inputs, attrs)
        if len(inferred) != len(outputs):
            self.broken(f"{len(outputs)} outputs, {len(inferred)} are computed")
        if not definition.regions and self._folds(inputs, inferred):
            self._fold(op, inputs, attrs, outputs)
            return
        for name, like, kind in zip(outputs, likes, inferred, strict=True):
            if like is None:
                first = self.type(inputs[0])
                like = first if first.dtype == kind.dtype else kind
            self.builder.define(name, TensorType(kind.shape, like.dtype, like.quant), self.where)
        self.builder.append(Node(op, tuple(inputs), tuple(outputs), attrs, self.loc))

    def _folds(self, inputs: Sequence[str], kinds: Sequence[TensorType]) -> bool:
        """Whether an application is computed now: of the few numbers that shapes and sizes are made from, all known."""
        known = bool(inputs) and all(name in self.builder.consts for name in inputs)
        types = (*kinds, *map(self.type, inputs)) if known else ()
        return known and all(kind.size <= MOST_INTEGERS and kind.quant is None for kind in types)

    def _fold(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]) -> None:
        with np.errstate(all="ignore"):
            made = registry.get(op).reference(attrs, [self.builder.consts[name] for name in inputs])
        for name, data in zip(outputs, made, strict=True):
            self.builder.constant(name, np.asarray(data))

    def compare(self, target: Tensor) -> None:
        """The inferred shape of an output against the declared one, where that is known."""
        shape, declared = self.type(target.name).shape, target.type.shape
        agree = len(shape) == len(declared) and all(
            axis in target.unknown or extent == declared[axis] for axis, extent in enumerate(shape)
        )
        if declared and not agree:
            self.broken(f"computes shape {shape}, but the file declares {declared}")
