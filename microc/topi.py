# SPDX-License-Identifier: Apache-2.0
"""Operators as functions on tensors of ``microc.te``: ``topi.dense(x, weight)`` returns a tensor for further expressions.

Every operator of docs/operators.md that computes something is available under its name, with its attributes as keyword
arguments. The result is the expression that the compiler itself lowers, without fusion and packing::

    x = te.placeholder((1, 64), "float32", "x")
    weight = te.placeholder((10, 64), "float32", "weight")
    y = topi.relu(topi.dense(x, weight))
    func = te.create_prim_func("layer", [x, weight], [y])"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from microc import te
from microc.base.dtypes import Array
from microc.errors import ProgramError, known_names_hint
from microc.graph.ir import Attr, TensorType
from microc.ops import registry
from microc.ops.registry import OpCall, OpDef, Operand
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.symbolic import symbolic_sizes_in


def apply(op: str, *tensors: te.Tensor, **attrs: Attr) -> Any:
    """Return the tensor that operator ``op`` computes from tensors; a tuple if it has several results.

    Raise ProgramError if the operator does not exist or cannot be written as an expression (control flow), and
    ModelError for invalid operands or attributes."""
    known = registry.registry()
    if op not in known or (known[op].scalar is None and known[op].compute is None):
        raise ProgramError(
            f"unknown operator: no operator {op!r} is a tensor expression",
            hint=known_names_hint(op, set(known) - {op}, "operators"),
        )
    definition = known[op]
    for tensor in tensors:
        if symbolic_sizes_in(tensor.shape):
            raise ProgramError(
                f"{op}: operands need constant extents; got {tensor.name} {tensor.shape}",
                hint="write a Python function from sizes to a PrimFunc, and pass it to microc.build(function, bounds=...)",
            )
    kinds = [TensorType(tensor.shape, tensor.dtype) for tensor in tensors]
    made = registry.infer(op, attrs, kinds)
    whole = {**definition.defaults, **attrs}
    if definition.scalar is not None:
        return _build_elementwise_tensor(definition, whole, tensors, made[0])
    operands = tuple(
        Operand(kind, None, _make_reshaping_getter(tensor), _refuse_constant)
        for kind, tensor in zip(kinds, tensors, strict=True)
    )
    assert definition.compute is not None
    found = definition.compute(OpCall(whole, operands, made))
    results = [
        reshape_view(t, kind.shape)
        for t, kind in zip(found if isinstance(found, tuple) else (found,), made, strict=True)
    ]
    return results[0] if len(results) == 1 else tuple(results)


def reshape_view(tensor: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """Return a tensor with the same elements, in row-major order, under another shape; the tensor itself if it has that
    shape already.

    Raise ProgramError if the number of elements differs."""
    wanted = tuple(shape)
    if tensor.shape == wanted:
        return tensor
    if prod(wanted) != tensor.size:
        raise ProgramError(
            f"{tensor.name} of shape {tensor.shape} cannot be viewed as {wanted}; expected {tensor.size} elements",
            hint="give a shape with the same number of elements",
        )

    def element(*index: Expr) -> Expr:
        flat: Expr = ir.const(0, "int32")
        for extent, i in zip(wanted, index, strict=True):
            flat = flat * extent + i
        places: list[Expr] = []
        for extent in reversed(tensor.shape):
            places.insert(0, ir.binary("floormod", flat, extent))
            flat = ir.binary("floordiv", flat, extent)
        return tensor[tuple(places)]

    return te.compute(wanted, element, f"{tensor.name}_view")


def _build_elementwise_tensor(
    definition: OpDef, attrs: dict[str, Attr], tensors: Sequence[te.Tensor], kind: TensorType
) -> te.Tensor:
    """Build the result of an elementwise operator: each element is computed from one element of each operand,
    broadcast as in numpy."""
    scalar = definition.scalar
    assert scalar is not None

    def element(*index: Expr) -> Expr:
        args: list[Any] = []
        for position, tensor in enumerate(tensors):
            last = index[len(index) - len(tensor.shape) :]
            places = tuple(ir.const(0, "int32") if n == 1 else i for n, i in zip(tensor.shape, last, strict=True))
            args.append(tensor if position in definition.whole else tensor[places])
        return scalar(attrs, args)

    return te.compute(kind.shape, element, definition.name)


def _make_reshaping_getter(tensor: te.Tensor) -> Callable[..., te.Tensor]:
    """Build a function that returns a tensor, or its elements under the shape that is passed to the function."""
    return lambda shape=None: tensor if shape is None else reshape_view(tensor, shape)


def _refuse_constant(array: Array) -> te.Tensor:
    """Raise ProgramError, because a tensor expression cannot contain a constant array."""
    raise ProgramError(
        "the operator needs constant tables, which a tensor expression cannot contain",
        hint="build a graph instead: microc.GraphBuilder",
    )


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("_") or name not in registry.registry():
        raise AttributeError(f"module 'microc.topi' has no operator {name!r}")
    return partial(apply, name)


def __dir__() -> list[str]:
    return sorted((*globals(), *registry.registry()))
