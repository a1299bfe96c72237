# SPDX-License-Identifier: Apache-2.0
"""Operator ``einsum``: sums of products over labelled axes, in Einstein notation. Source: ONNX Einsum, numpy.einsum.

``inputs`` contains the labels (integers) of every operand's axes, ``output`` the labels of the result's axes. The
product is summed over all labels that ``output`` does not contain. A label that occurs twice for an operand selects the
operand's diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import TensorType
from microc.ops.arithmetic import build_wrapping_binary
from microc.ops.attributes import int_rows, integers
from microc.ops.gradients.matrix import build_einsum_gradients
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC

MAX_LABELS = 52
"""Largest number of labels: the upper and lower case letters, which numpy.einsum accepts."""
DTYPES = ("float32", "float64", "int32", "int64")


def _label_extents(attrs: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the extent of every axis label; axes of one element broadcast. Raise ModelError if axes of one label have
    different extents."""
    extents: dict[int, int] = {}
    if len(attrs["inputs"]) != len(shapes):
        raise ModelError(
            f"einsum: the equation has another number of operands; got {len(shapes)}, expected {len(attrs['inputs'])}"
        )
    for labels, shape in zip(attrs["inputs"], shapes, strict=True):
        if len(labels) != len(shape):
            raise ModelError(
                f"einsum: an operand has another number of axes than labels; got {tuple(shape)}, expected "
                f"{len(labels)} axes"
            )
        for label, extent in zip(labels, shape, strict=True):
            previous = extents.get(label, 1)
            if 1 not in (previous, extent) and previous != extent:
                raise ModelError(f"einsum: axes of one label need one extent, or 1; got {previous} and {extent}")
            extents[label] = extent if previous == 1 else previous
    if len(extents) > MAX_LABELS:
        raise ModelError(f"einsum: too many labels; got {len(extents)}, expected at most {MAX_LABELS}")
    return extents


def _infer_einsum_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    extents, output = _label_extents(attrs, [tensor_type.shape for tensor_type in types]), attrs["output"]
    if any(label not in extents for label in output) or len(set(output)) != len(output):
        raise ModelError(
            f"einsum: an output label is repeated, or no operand has it; got {tuple(output)}, expected different "
            f"ones of {tuple(extents)}"
        )
    if len({tensor_type.dtype for tensor_type in types}) != 1 or types[0].dtype not in DTYPES:
        raise ModelError(
            f"einsum: operands need one dtype of {', '.join(DTYPES)}; got "
            f"{', '.join(tensor_type.dtype for tensor_type in types)}"
        )
    return (TensorType(tuple(extents[label] for label in output), types[0].dtype),)


def _evaluate_einsum_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    wide = np.float64 if arrays[0].dtype.kind == "f" else np.int64
    # numpy accepts only the integers 0 to 51 as labels; model formats permit any integers
    number = {label: k for k, label in enumerate(_label_extents(attrs, [array.shape for array in arrays]))}
    terms: list[Any] = []
    for array, labels in zip(arrays, attrs["inputs"], strict=True):
        terms += [array.astype(wide), [number[label] for label in labels]]
    result = np.einsum(*terms, [number[label] for label in attrs["output"]])
    return (np.asarray(result).astype(arrays[0].dtype),)


def _compute_einsum(call: OpCall) -> te.Tensor:
    operands = call.present
    shapes = [operand.type.shape for operand in operands]
    attrs, extents = call.attrs, _label_extents(call.attrs, shapes)
    tensors, output = [operand.tensor() for operand in operands], attrs["output"]
    summed_labels = [label for label in extents if label not in output]
    axes = [te.reduce_axis(extents[label], f"k{k}") for k, label in enumerate(summed_labels)]

    def build_product_sum(*index: Expr) -> Expr:
        index_of: dict[int, Expr] = dict(zip(output, index, strict=True))
        index_of |= {label: axis.var for label, axis in zip(summed_labels, axes, strict=True)}
        product: Expr | None = None
        for tensor, labels in zip(tensors, attrs["inputs"], strict=True):
            pairs = zip(labels, tensor.shape, strict=True)
            value: Expr = tensor[tuple(ir.const(0, "int32") if e == 1 else index_of[label] for label, e in pairs)]
            product = value if product is None else build_wrapping_binary("mul", product, value)
        assert product is not None
        return te.sum_reduce(ir.cast(wide, product), *axes) if axes else product

    dtype, shape = call.out_types[0].dtype, call.out_types[0].shape
    wide = f"u{dtype}" if dtype in ("int32", "int64") else dtype  # integers wrap around
    total = te.compute(shape, build_product_sum, ACC if axes else "product")
    return total if total.dtype == dtype else te.compute(shape, lambda *i: ir.cast(dtype, total[i]), "wrapped")


def _count_einsum_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return prod(_label_extents(attrs, [tensor_type.shape for tensor_type in types]).values()) * max(1, len(types) - 1)


def _make_einsum_test_cases() -> Iterable[Case]:
    for inputs, output, shapes in (
        (((0, 1), (1, 2)), (0, 2), ((2, 3), (3, 4))),
        (((0, 1, 2), (0, 2, 3)), (0, 1, 3), ((2, 2, 3), (2, 3, 2))),
        (((0, 0),), (0,), ((3, 3),)),
        (((0, 1),), (1, 0), ((2, 3),)),
        (((0,), (0,)), (), ((4,), (4,))),
        (((0, 1), (0, 2), (0,)), (2, 1), ((2, 3), (2, 2), (2,))),
    ):
        attrs = {"inputs": inputs, "output": output}
        for dtype in ("float32", "int32"):
            data = tuple((np.arange(prod(s)).reshape(s) % 7 - 3).astype(dtype) for s in shapes)
            types = tuple(TensorType(s, dtype) for s in shapes)
            yield Case(attrs, types, arrays=data, tolerance=1e-5, name=f"{dtype} {output}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "einsum",
        gradient=build_einsum_gradients,
        infer=_infer_einsum_types,
        reference=_evaluate_einsum_reference,
        compute=_compute_einsum,
        cases=_make_einsum_test_cases,
        macs=_count_einsum_macs,
        attrs={
            "inputs": int_rows("the labels of each operand's axes"),
            "output": integers("the labels of the result's"),
        },
    ),
)
