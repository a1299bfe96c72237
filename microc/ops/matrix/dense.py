# SPDX-License-Identifier: Apache-2.0
"""Operator ``dense``: a fully connected layer, computed as a matrix product (like a pointwise convolution) by one of
several algorithms.

Sources: TFLite ``fully_connected.h``; ONNX Gemm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError, ModelError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.arithmetic import is_quantised, split_activation
from microc.ops.attributes import (
    ACTIVATION,
    DYNAMIC,
    ROUNDING_LITERT,
    Attributes,
    algorithm_choice,
    default_attributes,
    element_type,
)
from microc.ops.constants import product_sum_overflow_message
from microc.ops.convolution.geometry import add_128_as_uint8
from microc.ops.gradients.rules import build_dense_gradients
from microc.ops.matrix.gemm import (
    FAR,
    HALF,
    HALF_TOLERANCE,
    PACKED,
    TABLES,
    build_dequantised_product,
    build_float16_product,
    build_unit_product,
    can_store_data_as_uint8,
    find_float16_weights,
    find_packed_weight_form,
    packed_product_annotations,
    padded_depth_of_packed_weights,
    padded_float16_term_count,
    padded_term_count,
    padded_unit_count,
    recover_quantised_weights_of_call,
    sum_bound_annotations,
)
from microc.ops.matrix.products import ProductForm, legalize_product
from microc.ops.matrix.swar import build_quad_product, find_quad_packing
from microc.ops.registry import Algorithms, Case, Legalized, OpCall, OpDef, Operand, map_batch_axis
from microc.ops.windows import Product
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import PATCH

ATTRS: Attributes = {
    "activation": ACTIVATION,
    "rounding": ROUNDING_LITERT,
    "out_dtype": element_type("dtype of the sums; empty: that of the data", ""),
    "algorithm": algorithm_choice(
        "even",
        "half",
        "opened",
        "packed",
        "packed_halves",
        "packed_tables",
        "packed_vectors",
        "quads",
        "unsigned_rows",
        "widened",
    ),
    "dynamic": DYNAMIC,
}
DENSE = default_attributes(ATTRS)


# ---------------------------------------------------------------- dense


def _infer_dense_types(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Return the output type (M, N) of data (M, K) and weights (N, K)."""
    data, weight = types[0].shape, types[1].shape
    if len(data) != 2 or len(weight) != 2 or data[1] != weight[1]:
        raise ModelError(f"dense: data and weights disagree; got {data} and {weight}, expected (M, K) and (N, K)")
    if 0 in weight:
        raise ModelError(f"dense: the weights are empty; got {weight}, expected one unit and one input at least")
    if len(types) > 2 and types[2].size != weight[0]:
        raise ModelError(f"dense: the bias has a wrong size; got {types[2].size}, expected {weight[0]} (units)")
    return (TensorType((data[0], weight[0]), attrs.get("out_dtype") or types[0].dtype),)


def _evaluate_dense_reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Compute the layer in float64. Exact for integers, whose sums are far below 2**53."""
    result = np.asarray(arrays[0], np.float64) @ np.asarray(arrays[1], np.float64).T
    if len(arrays) > 2 and arrays[2] is not None:
        result = result + np.asarray(arrays[2], np.float64).reshape(-1)
    return (result.astype(dtypes.to_numpy(attrs.get("out_dtype") or arrays[0].dtype.name)),)


def _compute_dense(call: OpCall) -> te.Tensor:
    """Build the sums (M, N) by the algorithm in the attribute ``algorithm``; without one, by a product that is padded
    for the core."""
    data, weight, bias = call.data_weight_bias
    rows, depth = data.type.shape
    algorithm = call.attrs.get("algorithm")
    if algorithm in ("quads", "widened"):
        packing = find_quad_packing(call, widened=algorithm == "widened")
        if packing is None:
            raise InternalError(
                f"dense: algorithm {algorithm!r} cannot pack these weights; expected find_quad_packing() to succeed"
            )
        return build_quad_product(
            data.tensor((rows, depth)), weight, bias, packing, stores_widened_inputs=algorithm == "widened"
        )
    if algorithm == "opened":
        return build_dequantised_product(call, data.tensor((rows, depth)))
    if algorithm == "half":
        return build_float16_product(
            call, _pad_data_rows(data, padded_float16_term_count(depth), stored_dtype=HALF), depth
        )
    form = find_packed_weight_form(call, algorithm or "")
    padded = padded_term_count(call, depth) if form is None else padded_depth_of_packed_weights(form, depth)
    terms = _pad_data_rows(data, padded, as_uint8=algorithm == "unsigned_rows")
    units = weight.type.shape[0]
    if form is not None:
        return build_unit_product(call, terms, units, depth, packed_product_annotations(call, form))
    # An odd last unit would load the row of data again for itself alone; paired with a unit of zeros it shares the load.
    more = 1 if algorithm == "even" else padded_unit_count(call, units) - units
    return build_unit_product(call, terms, units, depth, sum_bound_annotations(data, weight, bias), more)


def _should_append_zero_unit(call: OpCall) -> bool:
    """Test whether a zero unit should be appended, so that units are computed in pairs: an 8-bit product of one row
    with an odd number of units."""
    data, weight, _ = call.data_weight_bias
    small = data.type.dtype in ("int8", "uint8") and weight.type.dtype == "int8"
    (rows, _), (units, _) = data.type.shape, weight.type.shape
    summed = call.has_constant_parameters and call.attrs.get("out_dtype") == "int32"
    return small and summed and rows == 1 and units % 2 == 1 and units > 2


ALGORITHMS: Algorithms = {
    "quads": lambda call: find_quad_packing(call, widened=False) is not None,
    "widened": lambda call: find_quad_packing(call, widened=True) is not None,
    **PACKED,
    "even": _should_append_zero_unit,
    "unsigned_rows": can_store_data_as_uint8,
    "opened": lambda call: recover_quantised_weights_of_call(call) is not None,
    "half": lambda call: find_float16_weights(call) is not None,
}
"""Algorithms with a predicate that tests whether the algorithm can compute a call.

- ``quads``: the weights of four output channels in a word; ``widened``: the same, with inputs extended to words first.
- ``packed`` and its variants: weights of few bits.
- ``even``: one more unit of zeros, so that units are computed in pairs.
- ``unsigned_rows``: int8 data stored as uint8.
- ``opened``: float weights stored as integers times scales.
- ``half``: sums in float16."""


def _pad_data_rows(data: Operand, padded_extent: int, *, as_uint8: bool = False, stored_dtype: str = "") -> te.Tensor:
    """Return the data (P, K), or the stage ``patch`` (P, ``padded_extent``) with zeros appended to every row.

    ``as_uint8``: int8 data is stored as uint8 after 128 is added. ``stored_dtype``: the data is rounded to this
    dtype."""
    rows, depth = data.type.shape
    source = data.tensor((rows, depth))
    if padded_extent == depth and not (as_uint8 or stored_dtype):
        return source

    def build_patch_element(p: Var, k: Var) -> Expr:
        value = add_128_as_uint8(source[p, k]) if as_uint8 else ir.cast(stored_dtype or source.dtype, source[p, k])
        return ir.select(k < depth, value, 0) if padded_extent > depth else value

    return te.compute((rows, padded_extent), build_patch_element, PATCH, ("p", "k"))


def _legalize_dense(node: Node, graph: Graph) -> Legalized | None:
    """Rewrite a quantised layer to exact integers and ``requantize``; split a fused activation from a float layer."""
    if not is_quantised(node, graph):
        return split_activation(node, graph)
    weight = graph.types[node.inputs[1]]
    return legalize_product(node, graph, ProductForm(weight.shape[1]))


def _make_dense_test_cases() -> Iterable[Case]:
    dtype_sets = (
        ("int8", "int8", "int32"),
        ("uint8", "int8", "int32"),
        ("int8", "int16", "int32"),
        ("int16", "int8", "int64"),
        ("int16", "int8", "int32"),
        ("float32", "float32", "float32"),
    )
    for data, weight, out in dtype_sets:
        for rows, depth, units in ((1, 1, 1), (1, 16, 10), (3, 7, 5), (2, 9, 84)):
            types = (TensorType((rows, depth), data), TensorType((units, depth), weight), TensorType((units,), out))
            bias = None if out == "float32" else (np.arange(units) * 977 - 1000).astype(out)
            attrs = {**DENSE, "out_dtype": out}
            tolerance = 1e-4 if out == "float32" else 0.0
            name = f"{data} {weight} {out} {rows} {depth} {units}"
            yield Case(attrs, types, (1, 2), (None, None, bias), tolerance, name)
            yield Case(attrs, types[:2], (1,), (), tolerance, f"{name} no bias")
    for rows, depth, units in ((1, 21, 8), (3, 40, 4), (1, 96, 12)):
        operands = (TensorType((rows, depth), "int8"), TensorType((units, depth), "int8"))
        for algorithm in ("direct", "quads", "widened"):
            attrs = {**DENSE, "out_dtype": "int32", "algorithm": algorithm}
            yield Case(attrs, operands, (1,), (), 0.0, f"{algorithm} {rows} {depth} {units}")
    for depth, units in ((24, 5), (41, 9)):
        biased = (TensorType((1, depth), "int8"), TensorType((units, depth), "int8"), TensorType((units,), "int32"))
        odd = (None, None, np.arange(units, dtype=np.int32) * 977 - 1000)
        attrs = {**DENSE, "out_dtype": "int32", "algorithm": "even"}
        yield Case(attrs, biased, (1, 2), odd, 0.0, f"even {depth} {units}")
    for rows, depth, units in ((1, 64, 32), (5, 19, 16), (3, 8, 5)):
        biased = (TensorType((rows, depth), "int8"), TensorType((units, depth), "int8"), TensorType((units,), "int32"))
        attrs, name = {**DENSE, "out_dtype": "int32", "algorithm": "unsigned_rows"}, f"unsigned {rows} {depth} {units}"
        yield Case(attrs, biased, (1, 2), (None, None, np.arange(units, dtype=np.int32) * 977), 0.0, name)
        yield Case(attrs, biased[:2], (1,), (), 0.0, f"{name} no bias")
    rng = np.random.default_rng(4)
    for data_dtype, rows, depth, units in (
        ("int8", 1, 21, 8),
        ("uint8", 3, 40, 4),
        ("int16", 2, 1, 3),
        ("int8", 7, 64, 5),
    ):
        operands = (TensorType((rows, depth), data_dtype), TensorType((units, depth), "int8"))
        biased = (*operands, TensorType((units,), "int32"))
        for bits in (4, 2):
            small = rng.integers(-(1 << bits - 1), 1 << bits - 1, (units, depth)).astype(np.int8)
            bias = np.arange(units, dtype=np.int32) * 977 - 1000
            name = f"{bits} bits {data_dtype} {rows} {depth} {units}"
            for algorithm in PACKED:
                attrs = {**DENSE, "out_dtype": "int32", "algorithm": algorithm}
                weights_of_few_bits = small * FAR if algorithm == TABLES else small
                if rows > 1:
                    yield Case(attrs, operands, (1,), (None, weights_of_few_bits), 0.0, f"{algorithm} {name}")
                if depth > 16 and data_dtype == "int8" and algorithm in ("packed", "packed_halves"):
                    multiplied = small * (np.arange(depth) // 16 % 15 + 1).astype(np.int8)
                    yield Case(attrs, biased, (1, 2), (None, multiplied, bias), 0.0, f"{algorithm} {name} by blocks")
                yield Case(
                    attrs, biased, (1, 2), (None, weights_of_few_bits, bias), 0.0, f"{algorithm} {name} with bias"
                )
    for rows, depth, units, block, highest in (
        (1, 64, 16, 64, 127),
        (3, 32, 5, 16, 7),
        (1, 33, 8, 33, 1),
        (2, 48, 3, 16, 127),
    ):
        floats = (TensorType((rows, depth), "float32"), TensorType((units, depth), "float32"))
        biased = (*floats, TensorType((units,), "float32"))
        scales = rng.uniform(0.01, 0.1, (units, depth // block)).astype(np.float32)
        levels = rng.integers(-highest - 1, highest + 1, (units, depth)).astype(np.float32)
        weights, added = levels * np.repeat(scales, block, axis=1), np.arange(units, dtype=np.float32)
        attrs, name = {**DENSE, "algorithm": "opened"}, f"opened {rows} {depth} {units} {block} {highest}"
        yield Case(attrs, floats, (1,), (None, weights), 1e-4, name)
        yield Case(attrs, biased, (1, 2), (None, weights, added), 1e-4, f"{name} with bias")
    for rows, depth, units in ((3, 33, 8), (1, 40, 16)):
        shapes = ((rows, depth), (units, depth), (units,))
        attrs = {**DENSE, "algorithm": "half"}
        kinds_of = tuple(TensorType(shape, "float32") for shape in shapes)
        yield Case(attrs, kinds_of, (1, 2), (), HALF_TOLERANCE, f"half {rows} {depth} {units}")
    computed = (TensorType((2, 6), "int8"), TensorType((3, 6), "int8"))
    yield Case({**DENSE, "out_dtype": "int32"}, computed, name="computed weights")


def _count_dense_macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return out_types[0].size * types[0].shape[-1]


OPERATORS = (
    OpDef(
        "dense",
        gradient=build_dense_gradients,
        infer=_infer_dense_types,
        reference=_evaluate_dense_reference,
        compute=_compute_dense,
        cases=_make_dense_test_cases,
        attrs=ATTRS,
        axes=map_batch_axis,
        legalize=_legalize_dense,
        macs=_count_dense_macs,
        product=lambda attrs, types: Product(),
        algorithms=ALGORITHMS,
        sound=(lambda checked_node: product_sum_overflow_message(checked_node, checked_node.types[1].shape[1]),),
        operand_names=("data", "weight", "bias"),
    ),
)
