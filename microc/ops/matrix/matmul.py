# SPDX-License-Identifier: Apache-2.0
"""Products of operands that are both computed at run time: operators ``matmul`` and ``einsum``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ModelError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops.arithmetic import build_wrapping_binary, is_quantised, split_activation
from microc.ops.attributes import ACTIVATED, Attributes, algorithm_choice, element_type, int_rows, integer, integers
from microc.ops.constants import CheckedNode, make_zero_point_range_check, operand_range_minus_zero_point
from microc.ops.gradients.rules import build_einsum_gradients, build_matmul_gradients
from microc.ops.matrix.gemm import build_matrix_product
from microc.ops.matrix.products import ProductForm, legalize_product
from microc.ops.registry import AxisMap, Case, Legalized, OpCall, OpDef, map_broadcast
from microc.tir import ir
from microc.tir.extents import broadcast_shapes
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, COLUMNS, PATCH

# ---- Operator ``matmul``: products of matrices (..., M, K) and (..., K, N), where both or only one are computed at
# run time. Batch axes broadcast as in numpy.
#
# Zero points are subtracted from integers: acc = sum((a - za) (b - zb)). There are two algorithms for bytes.
# ``direct`` reads both operands in place. ``rows`` copies both, minus their zero points, to int16 with
# contiguous k: the stage ``columns`` (..., N, K) once for every matrix, and ``patch`` (..., M, K) for a tile of
# rows. Dot-product instructions can then be used for any order of axes.
#
# Sources: TFLite ``batch_matmul.h``; ONNX MatMul, QLinearMatMul.


ATTRS: Attributes = {
    **ACTIVATED,
    "out_dtype": element_type("dtype of the sums; empty: that of the data", ""),
    "zero_point_a": integer("zero point of a, which is subtracted", 0),
    "zero_point_b": integer("zero point of b, which is subtracted", 0),
    "axes_a": integers("order of the axes of a in the product; empty: unchanged", ()),
    "axes_b": integers("order of the axes of b in the product; empty: unchanged", ()),
    "algorithm": algorithm_choice("rows"),
}


WRAPPING = ("int32", "int64")
"""Dtypes in which products wrap around, if both operands and the result have this dtype."""


def _permute_shape(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    """Return ``shape`` with its axes in the order of ``axes``; return it unchanged if ``axes`` is empty."""
    return tuple(shape[axis] for axis in axes) if axes else shape


def _infer_matmul_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    for tensor_type, name in zip(types, "ab", strict=True):
        axes = attrs.get(f"axes_{name}", ())
        if axes and sorted(axes) != list(range(len(tensor_type.shape))):
            raise ModelError(
                f"matmul: axes_{name} must name each axis once; got {tuple(axes)} for shape {tensor_type.shape}"
            )
    a, b = (
        _permute_shape(tensor_type.shape, attrs.get(f"axes_{name}", ()))
        for tensor_type, name in zip(types, "ab", strict=True)
    )
    try:
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise ValueError
        batch = broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ModelError(f"matmul: shapes disagree; got {a} and {b}, expected (..., M, K) and (..., K, N)") from None
    return (TensorType((*batch, a[-2], b[-1]), attrs.get("out_dtype") or types[0].dtype),)


def _map_matmul_axes(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> AxisMap:
    """Map the axes of the operands to axes of the result: batch axes by broadcasting, rows from a, columns from b."""
    ranks = [len(tensor_type.shape) for tensor_type in types]
    if min(ranks) < 2 or attrs["axes_a"] or attrs["axes_b"]:
        return ()
    rank, shape = max(ranks), broadcast_shapes(*(tensor_type.shape[:-2] for tensor_type in types))
    leading = [
        map_broadcast(replace(tensor_type, shape=tensor_type.shape[:-2]), shape, rank - 2) for tensor_type in types
    ]
    return (*leading[0], rank - 2, None), (*leading[1], None, rank - 1)


def _evaluate_matmul_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute the product in float64, exact for narrow integers, whose sums are far below 2**53. Wide integers wrap
    around."""
    sides = []
    wide = np.int64 if arrays[0].dtype.name == arrays[1].dtype.name in WRAPPING else np.float64
    for array, name in zip(arrays, "ab", strict=True):
        transposed = np.transpose(array, attrs[f"axes_{name}"]) if attrs[f"axes_{name}"] else array
        sides.append(np.asarray(transposed, wide) - attrs[f"zero_point_{name}"])
    return (np.matmul(*sides).astype(dtypes.to_numpy(attrs["out_dtype"] or arrays[0].dtype.name)),)


# ---------------------------------------------------------------- tensor expressions


@frozen
class _ProductOperand:
    """Operand of the product, with its axes in the order in which the product reads them.

    ``shape`` has the axes in this order, and ``read_element`` reads the operand at an index in this order. ``dtype``
    and ``zero_point`` describe the elements."""

    shape: tuple[int, ...]
    dtype: str
    zero_point: int
    read_element: Callable[..., Expr]

    def read_minus_zero_point(self, batch: Sequence[Var], *index: Expr, dtype: str) -> Expr:
        """Return an element of one matrix minus the zero point. Batch axes broadcast as in numpy."""
        missing = len(batch) - (len(self.shape) - 2)
        first = [0 if extent == 1 else batch[missing + axis] for axis, extent in enumerate(self.shape[:-2])]
        value = ir.cast(dtype, self.read_element(*first, *index))
        return value - self.zero_point if self.zero_point else value


def _make_product_operand(call: OpCall, position: int, *, flatten_rows: bool) -> _ProductOperand:
    """Return operand a (``position`` 0) or b (1) of the product.

    ``flatten_rows``: the matrices of the batch are joined to one matrix, unless the axes are permuted."""
    operand, name = call.present[position], "ab"[position]
    axes = call.attrs.get(f"axes_{name}", ())
    shape = _permute_shape(operand.type.shape, axes)
    if flatten_rows and not axes:
        shape = (prod(shape[:-1]), shape[-1])
    tensor = operand.tensor(operand.type.shape if axes else shape)

    def read_element(*index: Any) -> Expr:
        return tensor[tuple(index[axes.index(k)] for k in range(len(index))) if axes else index]

    return _ProductOperand(shape, operand.type.dtype, int(call.attrs.get(f"zero_point_{name}", 0)), read_element)


def _compute_matmul(call: OpCall) -> te.Tensor:
    """Build the sums: one product if all rows of ``a`` are multiplied by the same right matrix, else a product for
    every batch element."""
    a, b = call.present
    dtype = call.attrs.get("out_dtype") or a.type.dtype
    if dtype in WRAPPING and a.type.dtype == b.type.dtype == dtype:  # C defines overflow of unsigned integers only
        total = _build_product(call, f"u{dtype}")
        return te.compute(total.shape, lambda *index: ir.cast(dtype, total[index]), "wrapped")
    return _build_product(call, dtype)


def _build_product(call: OpCall, acc_dtype: str) -> te.Tensor:
    """Build the sums in ``acc_dtype``."""
    a, b = call.present
    rows, plain = call.attrs.get("algorithm") == "rows", not call.attrs.get("axes_a", ())
    shared = plain and prod(b.type.shape) == prod(_permute_shape(b.type.shape, call.attrs.get("axes_b", ()))[-2:])
    # Constant weights without zero points: transposed at compile time, the product is that of a dense layer.
    if shared and b.data is not None and not rows and not _has_zero_point_or_axes(call.attrs):
        depth, columns = b.type.shape[-2:]
        weights = b.packed(np.ascontiguousarray(b.data.reshape(depth, columns).T))
        return build_matrix_product(a.tensor((prod(a.type.shape[:-1]), depth)), weights, None, acc_dtype)
    left, right = (_make_product_operand(call, position, flatten_rows=shared) for position in range(2))
    shape = call.out_types[0].shape
    if shared:
        shape = (prod(shape[:-1]), shape[-1])
    return (
        _build_copied_rows_product(left, right, shape, call)
        if rows
        else _build_direct_product(left, right, shape, acc_dtype)
    )


def _has_zero_point_or_axes(attrs: Mapping[str, Any]) -> bool:
    """Test whether an operand has a zero point or permuted axes."""
    return any(attrs.get(f"{what}_{name}", 0) not in (0, ()) for what in ("zero_point", "axes") for name in "ab")


def name_product_axes(shape: tuple[int, ...], *matrix_axis_names: str) -> tuple[str, ...]:
    """Return the names of a product's axes: ``b0``, ``b1`` ... for the batch, then the two ``matrix_axis_names``."""
    return (*(f"b{axis}" for axis in range(len(shape) - 2)), *matrix_axis_names)


def _build_direct_product(
    left: _ProductOperand, right: _ProductOperand, shape: tuple[int, ...], acc_dtype: str
) -> te.Tensor:
    """Build the stage ``acc`` from both operands, which are read in place, minus their zero points."""
    k = te.reduce_axis(left.shape[-1], "k")

    def build_sum(*index: Var) -> Expr:
        *batch, p, o = index
        product = left.read_minus_zero_point(batch, p, k.var, dtype=acc_dtype) * right.read_minus_zero_point(
            batch, k.var, o, dtype=acc_dtype
        )
        return te.sum_reduce(product, k)

    return te.compute(shape, build_sum, ACC, name_product_axes(shape, "p", "o"))


def _build_copied_rows_product(
    left: _ProductOperand, right: _ProductOperand, shape: tuple[int, ...], call: OpCall
) -> te.Tensor:
    """Build the stage ``acc`` from int16 copies of the operands, ``columns`` and ``patch``.

    The copies are padded along k to whole words, because the core multiplies words."""
    depth = left.shape[-1]
    padded = call.multiples.round_up_terms(depth, "int16", "int16")
    k = te.reduce_axis(padded, "k")

    def build_copied_element_function(
        product_operand: _ProductOperand, matrix_index: Callable[[Expr, Expr], tuple[Expr, Expr]]
    ) -> Callable[..., Expr]:
        """Return the function that builds an element of a copy; ``matrix_index`` converts (row, term) to (row, column)
        of the operand."""

        def build_copied_element(*index: Var) -> Expr:
            *batch, row, term = index
            value = ir.cast(
                "int16", product_operand.read_minus_zero_point(batch, *matrix_index(row, term), dtype="int32")
            )
            return value if padded == depth else ir.select(term < depth, value, ir.const(0, "int16"))

        return build_copied_element

    *batch, rows, columns = shape
    transposed = te.compute(
        (*batch, columns, padded),
        build_copied_element_function(right, lambda o, t: (t, o)),
        COLUMNS,
        name_product_axes(shape, "o", "k"),
    )
    patch = te.compute(
        (*batch, rows, padded),
        build_copied_element_function(left, lambda p, t: (p, t)),
        PATCH,
        name_product_axes(shape, "p", "k"),
    )

    def build_sum(*index: Var) -> Expr:
        *first, p, o = index
        return te.sum_reduce(
            ir.cast("int32", patch[(*first, p, k.var)]) * ir.cast("int32", transposed[(*first, o, k.var)]), k
        )

    return te.compute(shape, build_sum, ACC, name_product_axes(shape, "p", "o"))


def _can_copy_rows(call: OpCall) -> bool:
    """Test whether both operands are 8-bit and summed in int32; minus their zero points they fit int16."""
    narrow = all(dtypes.is_integer(x.type.dtype) and dtypes.nbytes(x.type.dtype) == 1 for x in call.present)
    return narrow and call.attrs.get("out_dtype") == "int32" and call.out_types[0].size > 0


# ---------------------------------------------------------------- constants, legalisation, cases


def _matmul_overflow_message(checked_node: CheckedNode) -> str:
    """Return an error message if zero points are outside their dtypes or sums of products can overflow, else an empty
    string."""
    attrs, (a, b) = checked_node.attrs, checked_node.types
    out = attrs["out_dtype"] or a.dtype
    if (
        not (dtypes.is_integer(a.dtype) and dtypes.is_integer(b.dtype))
        or dtypes.is_float(out)
        or checked_node.quantised
    ):
        centres = attrs["zero_point_a"] or attrs["zero_point_b"]
        return "zero points need integer operands; got floats" if centres and dtypes.is_float(a.dtype) else ""
    for position, name in enumerate(("zero_point_a", "zero_point_b")):
        if fault := make_zero_point_range_check(name, position)(checked_node):
            return fault
    if a.dtype == b.dtype == out and out in WRAPPING:
        return ""
    if out not in ("int32", "int64"):
        return f"out_dtype cannot hold sums of {a.dtype}; got {out}, expected int32 or int64"
    magnitudes = (
        max(map(abs, operand_range_minus_zero_point(checked_node, k, f"zero_point_{'ab'[k]}"))) for k in range(2)
    )
    largest = _permute_shape(a.shape, attrs["axes_a"])[-1] * prod(magnitudes)
    limit = dtypes.int_range(out)[1]
    return "" if largest <= limit else f"sums can overflow {out}; got up to {largest}, expected at most {limit}"


def _legalize_matmul(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised product to exact integers and ``requantize``; split a fused activation from a float
    product."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    return legalize_product(node, graph, ProductForm(graph.types[node.inputs[0]].shape[-1], core_has_zero_points=True))


def _make_matmul_test_cases() -> Iterable[Case]:
    shapes = (
        ((2, 3), (3, 4)),
        ((1, 1), (1, 1)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (1, 4, 5)),
        ((2, 3, 4), (2, 4, 2)),
        ((3, 4), (2, 4, 2)),
        ((2, 1, 3, 4), (1, 3, 4, 2)),
        ((2, 2, 3, 4), (2, 4, 5)),
    )
    for a, b in shapes:
        for dtype, out in (("float32", "float32"), ("int8", "int32"), ("int16", "int64")):
            types = (TensorType(a, dtype), TensorType(b, dtype))
            tolerance = 1e-5 if dtype == "float32" else 0.0
            for consts in ((), (1,)):
                yield Case({"out_dtype": out}, types, consts, tolerance=tolerance, name=f"{dtype} {a} {b} {consts}")
    for a, b in (*shapes, ((2, 5, 9), (2, 9, 3)), ((1, 17), (17, 2)), ((2, 2, 1), (2, 1, 1))):
        types = (TensorType(a, "uint8"), TensorType(b, "int8"))
        for algorithm in ("direct", "rows"):
            points: dict[str, Attr] = {"zero_point_a": 200, "zero_point_b": -3}
            attrs: dict[str, Attr] = {"out_dtype": "int32", "algorithm": algorithm}
            yield Case({**attrs, **points}, types, name=f"{algorithm} {a} {b}")
    types = (TensorType((3, 2, 8), "int8"), TensorType((5, 2, 8), "int8"))
    for algorithm in ("direct", "rows"):
        attrs = {"out_dtype": "int32", "axes_b": (1, 2, 0), "algorithm": algorithm}
        yield Case({**attrs, "axes_a": (1, 0, 2), "zero_point_b": 5}, types, name=f"{algorithm} axes")
        yield Case(attrs, (TensorType((3, 8), "int8"), types[1]), name=f"{algorithm} axes of b")


def _count_matmul_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return out_types[0].size * _permute_shape(types[0].shape, attrs.get("axes_a", ()))[-1]


MATMUL_OPERATORS = (
    OpDef(
        "matmul",
        gradient=build_matmul_gradients,
        infer=_infer_matmul_types,
        reference=_evaluate_matmul_reference,
        compute=_compute_matmul,
        cases=_make_matmul_test_cases,
        attrs=ATTRS,
        axes=_map_matmul_axes,
        legalize=_legalize_matmul,
        macs=_count_matmul_macs,
        algorithms={"rows": _can_copy_rows},
        sound=(_matmul_overflow_message,),
        operand_names=("a", "b"),
    ),
)


# ---- Operator ``einsum``: sums of products over labelled axes, in Einstein notation. Source: ONNX Einsum,
# numpy.einsum.
#
# ``inputs`` contains the labels (integers) of every operand's axes, ``output`` the labels of the result's axes.
# The product is summed over all labels that ``output`` does not contain. A label that occurs twice for an
# operand selects the operand's diagonal.


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


EINSUM_OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "einsum",
        gradient=build_einsum_gradients,
        infer=_infer_einsum_types,
        reference=_evaluate_einsum_reference,
        compute=_compute_einsum,
        cases=_make_einsum_test_cases,
        macs=_count_einsum_macs,
        attrs={
            "inputs": int_rows("labels of the axes of each operand"),
            "output": integers("labels of the axes of the result"),
        },
    ),
)


OPERATORS = (*MATMUL_OPERATORS, *EINSUM_OPERATORS)
