# SPDX-License-Identifier: Apache-2.0
"""``microc plugin check``: run the test cases of the operators that a plugin defines.

Each case tests type inference, runs the operator's loops in an interpreter, and runs its compiled C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.source import shared_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.errors import MicrocError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.attributes import attribute_error_message
from microc.ops.lowering import lower_group
from microc.ops.registry import ONES, Case, OpDef
from microc.plugin import PORTABLE, Plugin, active
from microc.run.desktop.load import build_library
from microc.schedule.intrinsic_meanings import intrinsic_functions
from microc.target import target_for
from microc.tir import interp

_SEED = 20


@frozen
class CaseResult:
    """The result of a test case of a plugin's operator.

    ``operator``: its name; ``case``: name or number of the test case; ``problem``: description of the failures, empty
    if the case passes."""

    operator: str
    case: str
    problem: str = ""


def check_plugin(plugin: Plugin) -> tuple[CaseResult, ...]:
    """Run every test case of every operator that a plugin defines; return the results.

    Expected results come from the operator's own ``reference`` function. Type inference must return the shapes and
    dtypes of the reference. The operator's loops must compute its values, both when interpreted and when compiled to C.
    The interpreter runs the Python definitions of external functions; the compiled C is tested with their C bodies and
    again with C made from their Python definitions."""
    results = []
    with active((plugin,)):
        for operator in plugin.operators:
            for number, case in enumerate(operator.cases()):
                problem = "; ".join(_find_problems_of_case(operator, case, bool(plugin.externs)))
                results.append(CaseResult(operator.name, case.name or str(number), problem))
    return tuple(results)


def _find_problems_of_case(operator: OpDef, case: Case, has_external_functions: bool) -> Iterator[str]:
    """Yield a description of every failure of a test case.

    ``has_external_functions``: True if the plugin has external functions. The compiled C is then also tested with the
    Python definitions of these functions in place of their C bodies."""
    attrs = {**operator.defaults, **case.attrs}
    if problem := attribute_error_message(operator.attrs, attrs):
        yield f"{problem}; declare the attributes in OpDef.attrs"
        return
    arrays = _make_operands(case)
    try:
        wanted = operator.reference(attrs, [array.copy() for array in arrays])
        inferred = operator.infer(attrs, case.types)
    except MicrocError as error:
        yield f"refused: {error.what}"
        return
    expected = [(array.shape, array.dtype.name) for array in wanted]
    if [(kind.shape, kind.dtype) for kind in inferred] != expected:
        inferred_text = ", ".join(f"{kind.dtype}{list(kind.shape)}" for kind in inferred)
        yield (
            f"type inference gives {inferred_text}, "
            f"the reference gives {', '.join(f'{d}{list(s)}' for s, d in expected)}"
        )
        return
    graph = _build_single_node_graph(operator, case, attrs, inferred, arrays)
    runs = [("interpreted", _interpret_loops), ("in C", _compile_and_run_on_host)]
    for run_name, run in (
        (*runs, ("in C by meaning", _compile_and_run_python_definitions)) if has_external_functions else runs
    ):
        try:
            results = run(graph, arrays)
        except MicrocError as error:
            yield f"{run_name}: {error.what}"
            continue
        for got, want in zip(results, wanted, strict=True):
            yield from _describe_difference(run_name, got.reshape(want.shape), want, case.tolerance)


def _describe_difference(run_name: str, computed: Array, expected: Array, tolerance: float) -> Iterator[str]:
    """Yield one sentence if a computed result differs from the expected result by more than ``tolerance``; else
    nothing.

    ``run_name``: name of the run that computed it; ``expected``: the result of the operator's reference."""
    if computed.dtype != expected.dtype:
        yield f"{run_name}: got dtype {computed.dtype}, expected {expected.dtype}"
    elif expected.dtype.kind == "f" and tolerance:
        if not np.allclose(computed, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
            yield (
                f"{run_name}: differs by {np.nanmax(np.abs(computed - expected)):.3g}, expected at most {tolerance:.3g}"
            )
    elif not np.array_equal(computed, expected, equal_nan=expected.dtype.kind == "f"):
        yield f"{run_name}: {np.count_nonzero(computed != expected)} of {expected.size} elements differ"


def _make_operands(case: Case) -> list[Array]:
    """Make the operands of a test case: the arrays that the case contains, and random arrays for the other operands.

    The seed of the random arrays is fixed."""
    random = np.random.default_rng(_SEED)
    given = (*case.arrays, *(None,) * len(case.types))
    return [_random_operand(kind, random) if a is None else a for kind, a in zip(case.types, given, strict=False)]


def _random_operand(tensor_type: TensorType, generator: np.random.Generator) -> Array:
    """Generate a random array of a tensor type: floats from -2 to 2; integers in the dtype's range, limited to
    -1000..1000."""
    dtype = dtypes.to_numpy(tensor_type.dtype)
    if dtypes.is_float(tensor_type.dtype):
        return generator.uniform(-2, 2, tensor_type.shape).astype(dtype)
    low, high = dtypes.int_range(tensor_type.dtype)
    return generator.integers(max(low, -1000), min(high, 1000), tensor_type.shape, endpoint=True).astype(dtype)


def _build_single_node_graph(
    operator: OpDef, case: Case, attrs: dict[str, Any], results: Sequence[TensorType], arrays: Sequence[Array]
) -> Graph:
    """Build a graph whose only node is the operator. Its operands ``i0``, ``i1`` ... are inputs or constants; its
    outputs are ``o0``, ``o1`` ..."""
    names = tuple(f"i{k}" for k in range(len(case.types)))
    outputs = tuple(f"o{k}" for k in range(len(results)))
    types = {**dict(zip(names, case.types, strict=True)), **dict(zip(outputs, results, strict=True))}
    consts = {names[k]: arrays[k].copy() for k in case.consts}
    inputs = tuple(name for name in names if name not in consts)
    return Graph("case", inputs, outputs, (Node(operator.name, names, outputs, attrs),), types, consts)


def _interpret_loops(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """Lower the only operator of a graph to unscheduled loops, interpret these, and return the operator's outputs."""
    group = lower_group(graph, graph.nodes, ONES, "kernel")
    values = dict(zip(graph.nodes[0].inputs, arrays, strict=True))
    operands = [values[p.value] if p.array is None else p.array for p in group.params]
    outputs = [np.zeros(p.shape, dtypes.to_numpy(p.dtype)) for p in group.func.params[len(operands) :]]
    inputs = [np.asarray(a, order="C").reshape(p.shape) for a, p in zip(operands, group.func.params, strict=False)]
    interp.run(group.func, [*inputs, *outputs], intrinsic_functions())
    return outputs[: len(group.outputs)]


def _compile_and_run_on_host(graph: Graph, arrays: Sequence[Array], *flags: str) -> list[Array]:
    """Compile a graph for this computer, with additional flags of the C compiler, run it, and return its outputs."""
    module = compile_model(graph, target_for("host"), Options())
    library = build_library(shared_files(module, __version__), *flags)
    values = dict(zip(graph.nodes[0].inputs, arrays, strict=True))
    outputs = library(*(values[name] for name in graph.inputs))
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _compile_and_run_python_definitions(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """Compile a graph for this computer with external functions replaced by their Python definitions, run it, and
    return its outputs."""
    return _compile_and_run_on_host(graph, arrays, f"-D{PORTABLE}")
