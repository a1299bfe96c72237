# SPDX-License-Identifier: Apache-2.0
"""Running an operator's cases three ways: inference, the numpy reference, and the interpreted tensor expression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.registry import Case, Legalized, OpCall, OpDef, Operand, get
from microc.tir import interp, ir
from tests.ops.edges import case_arrays, edge_cases

_BOUNDS = "the attribute `bounds` promises smaller operands"
_MIXED = "a transform mixes all elements: what becomes of NaN depends on its factors"
UNDEFINED: Mapping[str, Mapping[str, str]] = {
    "convolution_transpose": {
        "infinity": "zeros between the data meet infinite weights, which the reference does not add"
    },
    "filter_bank": {"empty": "its tables point into the energies"},
    "filter_bank_square_root": {"int32 ends": "an operand is a number of places to shift by"},
    "irfft": {"nan": _MIXED, "infinity": _MIXED},
    "requantize": {"int64 ends": "the attribute `bound` promises smaller operands"},
    "requantize_split": {"int32 ends": _BOUNDS},
    "requantize_split_away": {"int32 ends": _BOUNDS},
    "power_spectrum": {"nan": _MIXED, "infinity": _MIXED},
    "rfft": {"nan": _MIXED, "infinity": _MIXED},
}
"""Edges of operators for which no result is defined, and why."""
INTRINSICS: Mapping[str, Any] = {
    "high_mul_round": lambda args: (int(args[0]) * int(args[1]) + (1 << 31)) >> 32,
    "high_product": lambda args: (int(args[0]) * int(args[1])) >> 32,
    "high_mac": lambda args: int(args[2]) + ((int(args[0]) * int(args[1])) >> 32),
    "high_mac_round": lambda args: int(args[2]) + ((int(args[0]) * int(args[1]) + (1 << 31)) >> 32),
    "swap_bytes": lambda args: int(np.array([args[0]], np.int32).view(np.uint16).byteswap().view(np.int32)[0]),
}


def attributes(definition: OpDef, case: Case) -> dict[str, Any]:
    """The case's attributes over the operator's defaults."""
    return {**definition.defaults, **case.attrs}


def reference(definition: OpDef, case: Case, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """What numpy says; it warns of NaN and of overflow."""
    with np.errstate(all="ignore"):
        return definition.reference(attributes(definition, case), [array.copy() for array in arrays])


def check_inference(definition: OpDef, case: Case) -> None:
    """Shapes and dtypes that inference gives are those of the reference's results."""
    attrs = attributes(definition, case)
    inferred = definition.infer(attrs, case.types)
    made = reference(definition, case, case_arrays(case))
    assert [(t.shape, t.dtype) for t in inferred] == [(a.shape, a.dtype.name) for a in made]


def check_expression(definition: OpDef, case: Case, seed: int = 0) -> None:
    """The interpreted tensor expression gives what the reference gives: the same integers, floats within the tolerance."""
    arrays = case_arrays(case, seed)
    wanted = reference(definition, case, arrays)
    for got, want in zip(evaluate(definition, case, arrays), wanted, strict=True):
        assert_same(got, want, case.tolerance)


def assert_same(got: Array, want: Array, tolerance: float = 0.0) -> None:
    """Equal; floats within ``tolerance``, relative above one and absolute below."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if tolerance and got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


def evaluate(definition: OpDef, case: Case, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The operator's results by interpreting its naive loops."""
    attrs = attributes(definition, case)
    out_types = definition.infer(attrs, case.types)
    params = _Params(case, arrays)
    if definition.scalar is None:
        assert definition.compute is not None, f"{definition.name} has neither scalar nor compute"
        operands = tuple(params.operand(position) for position in range(len(case.types)))
        made = definition.compute(OpCall(attrs, operands, out_types))
        outputs = made if isinstance(made, tuple) else (made,)
    else:
        outputs = (_elementwise(definition, attrs, case, out_types[0], params),)
    return _run(outputs, out_types, params)


def _run(outputs: Sequence[te.Tensor], out_types: Sequence[TensorType], params: _Params) -> tuple[Array, ...]:
    tensors = [tensor for tensor, _ in params.bound]
    func = te.create_prim_func("kernel", tensors, list(outputs))
    results = [np.zeros(t.shape, dtypes.to_numpy(t.dtype)) for t in outputs]
    interp.run(func, [*(array for _, array in params.bound), *results], INTRINSICS)
    for tensor, kind in zip(outputs, out_types, strict=True):
        assert tensor.dtype == kind.dtype and tensor.size == kind.size
    return tuple(result.reshape(kind.shape) for result, kind in zip(results, out_types, strict=True))


class _Params:
    """Placeholders in order, each with its data."""

    def __init__(self, case: Case, arrays: Sequence[Array]) -> None:
        self.case, self.arrays = case, arrays
        self.bound: list[tuple[te.Tensor, Array]] = []

    def tensor(self, array: Array, *, table: bool = False) -> te.Tensor:
        tensor = te.placeholder(array.shape, array.dtype.name, f"x{len(self.bound)}")
        self.bound.append((tensor, np.asarray(array, order="C")))
        return tensor

    def operand(self, position: int) -> Operand:
        kind, array = self.case.types[position], self.arrays[position]

        def view(shape: Sequence[int] | None = None) -> te.Tensor:
            return self.tensor(array.reshape(kind.shape if shape is None else shape))

        known = array if position in self.case.consts else None
        return Operand(kind, known, view, self.tensor)


def _elementwise(
    definition: OpDef, attrs: Mapping[str, Any], case: Case, result: TensorType, params: _Params
) -> te.Tensor:
    """The operator's scalar at every index of the result, operands broadcast as in numpy; scalar constants are literals."""
    assert definition.scalar is not None
    literal = {
        position
        for position in case.consts
        if case.types[position].size == 1 and position not in definition.whole and result.size > 1
    }
    tensors = {k: params.tensor(params.arrays[k]) for k in range(len(case.types)) if k not in literal}

    def element(*index: ir.Var) -> ir.Expr:
        args: list[Any] = []
        for position, kind in enumerate(case.types):
            if position in literal:
                args.append(ir.const(params.arrays[position].reshape(-1)[0].item(), kind.dtype))
            elif position in definition.whole:
                args.append(tensors[position])
            else:
                own = index[len(index) - len(kind.shape) :]
                where = tuple(0 if e == 1 else i for e, i in zip(kind.shape, own, strict=True))
                args.append(tensors[position][where])
        assert definition.scalar is not None
        return definition.scalar(attrs, args)

    return te.compute(result.shape, element, "out")


# ---------------------------------------------------------------- legalisation


def run_graph(nodes: Sequence[Node], types: Mapping[str, TensorType], values: Mapping[str, Array]) -> dict[str, Array]:
    """Every value of ``nodes`` by their references; types must agree with inference."""
    known = dict(values)
    for node in nodes:
        definition = get(node.op)
        inputs = [name for name in node.inputs if name]
        attrs = {**definition.defaults, **node.attrs}
        inferred = definition.infer(attrs, [types[name] for name in inputs])
        made = definition.reference(attrs, [known[name] for name in inputs])
        for name, kind, array in zip(node.outputs, inferred, made, strict=True):
            assert (kind.shape, kind.dtype) == (array.shape, array.dtype.name)
            assert (types[name].shape, types[name].dtype) == (kind.shape, kind.dtype)
            known[name] = array
    return known


def legalized(node: Node, graph: Graph) -> Legalized:
    """What a node becomes; it must become something."""
    legalize = get(node.op).legalize
    found = legalize(node, graph) if legalize is not None else None
    assert found is not None, f"{node.op} stays as it is"
    nodes, types, consts = found
    return nodes, types, consts


def run_legalized(node: Node, graph: Graph, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """The node's outputs by way of what it is legalized to."""
    nodes, types, consts = legalized(node, graph)
    known = run_graph(nodes, {**graph.types, **types}, {**graph.consts, **consts, **inputs})
    return tuple(known[name] for name in node.outputs)


def known_edges(definition: OpDef) -> Iterator[Case]:
    """The edge cases for which a result is defined."""
    return (case for case in edge_cases(definition) if case.name not in UNDEFINED.get(definition.name, {}))


def named_cases(definitions: Sequence[OpDef]) -> Iterator[tuple[str, OpDef, Case]]:
    """Every case of every operator, its own and those of its edges, under an id."""
    for definition in definitions:
        for number, case in enumerate((*definition.cases(), *known_edges(definition))):
            yield f"{definition.name}-{number}-{case.name}".rstrip("-"), definition, case
