"""The cases of a plugin's operators, run three ways: inference, the interpreted loops, and C on this computer."""

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
from microc.ops.attributes import fault
from microc.ops.lowering import lower_group
from microc.ops.registry import ONES, Case, OpDef
from microc.plugin import PORTABLE, Plugin, active
from microc.run.desktop.load import build_library
from microc.schedule.intrinsic_meanings import meanings
from microc.target import target_for
from microc.tir import interp

_SEED = 20


@frozen
class CaseResult:
    """How a case went: ``problem`` says in which way and what is wrong, empty if nothing is."""

    operator: str
    case: str
    problem: str = ""


def check_plugin(plugin: Plugin) -> tuple[CaseResult, ...]:
    """Run every case of every operator.

    What counts is the operator's own ``reference``: inference must give its shapes and dtypes, the loops (externs by their
    meaning) and the compiled C (externs by their bodies, then by their meanings) its numbers.
    """
    results = []
    with active((plugin,)):
        for operator in plugin.operators:
            for number, case in enumerate(operator.cases()):
                problem = "; ".join(_problems(operator, case, bool(plugin.externs)))
                results.append(CaseResult(operator.name, case.name or str(number), problem))
    return tuple(results)


def _problems(operator: OpDef, case: Case, externs: bool) -> Iterator[str]:
    attrs = {**operator.defaults, **case.attrs}
    if wrong := fault(operator.attrs, attrs):
        yield f"{wrong}; OpDef.attrs declares them"
        return
    arrays = _arrays(case)
    try:
        wanted = operator.reference(attrs, [array.copy() for array in arrays])
        inferred = operator.infer(attrs, case.types)
    except MicrocError as error:
        yield f"refused: {error.what}"
        return
    made = [(array.shape, array.dtype.name) for array in wanted]
    if [(kind.shape, kind.dtype) for kind in inferred] != made:
        said = ", ".join(f"{kind.dtype}{list(kind.shape)}" for kind in inferred)
        yield f"inference says {said}, the reference makes {', '.join(f'{d}{list(s)}' for s, d in made)}"
        return
    graph = _graph(operator, case, attrs, inferred, arrays)
    ways = [("interpreted", _interpreted), ("in C", _compiled)]
    for how, run in (*ways, ("in C by meaning", _portable)) if externs else ways:
        try:
            found = run(graph, arrays)
        except MicrocError as error:
            yield f"{how}: {error.what}"
            continue
        for got, want in zip(found, wanted, strict=True):
            yield from _difference(how, got.reshape(want.shape), want, case.tolerance)


def _difference(how: str, got: Array, want: Array, tolerance: float) -> Iterator[str]:
    if got.dtype != want.dtype:
        yield f"{how}: {got.dtype} instead of {want.dtype}"
    elif want.dtype.kind == "f" and tolerance:
        if not np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True):
            yield f"{how}: differs by {np.nanmax(np.abs(got - want)):.3g}, {tolerance:.3g} is allowed"
    elif not np.array_equal(got, want, equal_nan=want.dtype.kind == "f"):
        yield f"{how}: {np.count_nonzero(got != want)} of {want.size} elements differ"


def _arrays(case: Case) -> list[Array]:
    """The operands that the case gives; random ones, the same every time, for the others."""
    random = np.random.default_rng(_SEED)
    given = (*case.arrays, *(None,) * len(case.types))
    return [_random(kind, random) if a is None else a for kind, a in zip(case.types, given, strict=False)]


def _random(kind: TensorType, random: np.random.Generator) -> Array:
    """Floats within -2 and 2, small integers over their range, wide ones within 1000."""
    dtype = dtypes.to_numpy(kind.dtype)
    if dtypes.is_float(kind.dtype):
        return random.uniform(-2, 2, kind.shape).astype(dtype)
    low, high = dtypes.int_range(kind.dtype)
    return random.integers(max(low, -1000), min(high, 1000), kind.shape, endpoint=True).astype(dtype)


def _graph(
    operator: OpDef, case: Case, attrs: dict[str, Any], results: Sequence[TensorType], arrays: Sequence[Array]
) -> Graph:
    """The application alone, of inputs ``i0`` ... and constants to outputs ``o0`` ..."""
    names = tuple(f"i{k}" for k in range(len(case.types)))
    outputs = tuple(f"o{k}" for k in range(len(results)))
    types = {**dict(zip(names, case.types, strict=True)), **dict(zip(outputs, results, strict=True))}
    consts = {names[k]: arrays[k].copy() for k in case.consts}
    inputs = tuple(name for name in names if name not in consts)
    return Graph("case", inputs, outputs, (Node(operator.name, names, outputs, attrs),), types, consts)


def _interpreted(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """The naive loops of the operator."""
    group = lower_group(graph, graph.nodes, ONES, "kernel")
    values = dict(zip(graph.nodes[0].inputs, arrays, strict=True))
    given = [values[p.value] if p.array is None else p.array for p in group.params]
    rest = [np.zeros(p.shape, dtypes.to_numpy(p.dtype)) for p in group.func.params[len(given) :]]
    shaped = [np.asarray(a, order="C").reshape(p.shape) for a, p in zip(given, group.func.params, strict=False)]
    interp.run(group.func, [*shaped, *rest], meanings())
    return rest[: len(group.outputs)]


def _compiled(graph: Graph, arrays: Sequence[Array], *flags: str) -> list[Array]:
    """The operator as the compiler makes it."""
    module = compile_model(graph, target_for("host"), Options())
    library = build_library(shared_files(module, __version__), *flags)
    values = dict(zip(graph.nodes[0].inputs, arrays, strict=True))
    made = library(*(values[name] for name in graph.inputs))
    return list(made) if isinstance(made, tuple) else [made]


def _portable(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    return _compiled(graph, arrays, f"-D{PORTABLE}")
