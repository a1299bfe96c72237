# SPDX-License-Identifier: Apache-2.0
"""Checks before compilation: ``microc check`` of a model, and ``microc plugin check`` of a plugin's operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import __version__
from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.source import shared_files
from microc.codegen.project.firmware import project_files
from microc.compiler.fit.budget import BoardCapacity, count_macs, region_bytes, summarise_arithmetic
from microc.compiler.fit.lower_bounds import MemoryLowerBound, compute_memory_lower_bound, prove_shortages
from microc.compiler.fit.search import Footprint, board_capacity, compute_and_check_footprint
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.model import model_file_name
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model, read_and_optimise_at_maximum
from microc.errors import FitError, MicrocError
from microc.graph.ir import Graph, Node, TensorType
from microc.module import Arithmetic
from microc.ops import registry
from microc.ops.attributes import attribute_error_message
from microc.ops.lowering import lower_group
from microc.ops.registry import ONES, Case, OpDef
from microc.plugin import PORTABLE, Plugin, active
from microc.reports.advice import advise_on_arithmetic, describe_arithmetic
from microc.reports.report import summarise_module
from microc.run.board_project import link_and_read_sizes
from microc.run.desktop.load import build_library
from microc.schedule.identities import intrinsic_functions
from microc.target import Board, target_for
from microc.tir import interp

# ---- ``microc check``: the operators of a model, its work and its memory, without compiling it; and whether it can
# fit a board.


VERDICTS: Mapping[str, bool | None] = MappingProxyType({"no": False, "maybe": None, "yes": True})
"""Verdicts on whether a network fits a board. ``no``: proven that it does not; ``maybe``: unknown; ``yes``: it was
compiled, and the result fits."""


RESERVE = 0.25
"""Flash kept free for errors of the estimated code size, as a share of this size.

If the firmware is not linked, the verdict is ``yes`` only if the estimated flash and this reserve fit.

Measured on 74 firmwares of models that were not used to fit the estimate: one firmware (an unrolled integer GRU on
Cortex-M0) has 20 % more code than estimated.
"""
_ESTIMATED = ("estimated_cycles", "estimated_milliseconds", "stack_bound", "memories", "layers")
"""Fields of the JSON that are known for a compiled network only."""


@frozen
class ModelCheck:
    """The result of ``microc check``: facts about a model before compilation; sizes in bytes.

    ``least``: lower bounds of the memory that any compilation needs. ``live``: the largest size of all values that are
    live at the same time. This is about the arena's size if no values share memory and no layer runs row by row.
    ``state``: bytes of state that is kept from run to run. ``tensors``: all inputs, states and computed values, in the
    order of the model file. ``arithmetic``: what is computed in floats, and why. ``advice``: sentences of
    :mod:`microc.reports.advice`, if a board is known. ``verdict``: a key of :data:`VERDICTS`, empty if neither a board
    nor a memory limit is known; ``reasons``: why the verdict is ``no``.

    If the network was compiled to find the verdict, ``need`` is the memory that the firmware needs, and ``compiled``
    the result of :meth:`microc.Program.report`. ``built``: True if the firmware was also linked, so that ``need`` is
    exact; otherwise its flash is an estimate, for which :data:`RESERVE` is kept free.
    """

    model: str
    source: str
    inputs: Sequence[dict[str, Any]]
    outputs: Sequence[dict[str, Any]]
    operators: Mapping[str, int]
    kernels: int
    macs: int
    weight_bytes: int
    live: int
    least: MemoryLowerBound
    board: str
    verdict: str
    reasons: tuple[str, ...]
    tensors: tuple[dict[str, Any], ...]
    arithmetic: Arithmetic
    advice: tuple[str, ...] = ()
    need: Footprint | None = None
    state: int = 0
    compiled: Mapping[str, Any] | None = None
    built: bool = False

    @property
    def fits(self) -> bool | None:
        """True if the network fits, False if it does not, None if this is unknown."""
        return VERDICTS.get(self.verdict)

    def to_data(self) -> dict[str, Any]:
        """Convert the result to plain data, ready for JSON."""
        return {
            "model": self.model,
            "source": self.source,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "operators": dict(self.operators),
            "kernels": self.kernels,
            "macs": self.macs,
            **describe_arithmetic(self.arithmetic, self.advice),
            "weight_bytes": self.weight_bytes,
            "weights_lower_bound": self.least.weights,
            "arena_lower_bound": self.least.arena,
            "arena_live": self.live,
            "board": self.board or None,
            "verdict": self.verdict or None,
            "fits": self.fits,
            "reasons": list(self.reasons),
            "flash": self.need.flash if self.need else None,
            "ram": self.need.ram if self.need else None,
            "ram_taken": self.need.required_board_ram if self.need else None,
            "arena": self.need.arena if self.need else None,
            "state": self.state,
            **{name: self.compiled[name] if self.compiled else None for name in _ESTIMATED},
        }


def check_model(
    source: Path | Graph, options: Options, board: Board | None = None, *, exact: bool = False
) -> ModelCheck:
    """Read a model, run the graph passes on it, and check whether it fits ``board``.

    ``exact``: if lower bounds do not prove that the model is too large, also compile it for the board, and link the
    firmware if the board's C compiler is installed. Raises UnsupportedError, which lists everything in the model that
    microc cannot compile.
    """
    read, fused = read_and_optimise_at_maximum(source, options)
    capacity = board_capacity(board, external=bool(options.external), cores=options.cores) if board else BoardCapacity()
    least = compute_memory_lower_bound(fused, options)
    arithmetic = summarise_arithmetic(fused, options.weight_dtype)
    reasons, need, compiled = prove_shortages(least, options, capacity), None, None
    built = certain = False
    if exact and board and not reasons:
        try:
            module = compile_model(source, board.target, options, None, capacity)
            need, compiled = compute_and_check_footprint((module,), board), summarise_module(module, board)
            sizes = link_and_read_sizes(project_files((module,), board, __version__), board)
            if sizes is not None:
                code = sizes.flash - need.weights - need.self_test
                need, built = replace(need, code=code, linked_ram=sizes.static_ram), True
            limit = region_bytes(board, "flash")
            certain = built or not limit or need.flash + int(RESERVE * need.code) <= limit
        except FitError as error:
            reasons, need, compiled = (error.what,), None, None
    bounded = board or options.flash or options.ram
    return ModelCheck(
        **describe_graph(read, model_file_name(source)),
        kernels=sum(not registry.get(nodes[0].op).view for nodes in groups_of(fused)),
        macs=count_macs(read),
        weight_bytes=sum(array.nbytes for array in fused.consts.values()),
        live=estimate_peak_live_bytes_between_kernels(fused),
        least=least,
        board=board.name if board else "",
        verdict="no" if reasons else "yes" if need and certain else "maybe" if bounded else "",
        reasons=reasons,
        tensors=tuple(_list_nameable_tensors(read)),
        arithmetic=arithmetic,
        advice=advise_on_arithmetic(arithmetic, model_file_name(source), board.target, options.requantize)
        if board
        else (),
        need=need,
        state=sum(array.nbytes for array in read.state.values()),
        compiled=compiled,
        built=built,
    )


def describe_graph(graph: Graph, source: str) -> dict[str, Any]:
    """Describe a graph's interface as plain data: name, inputs, outputs, and how often each operator occurs."""
    return {
        "model": graph.name,
        "source": source,
        "inputs": [_describe_tensor(graph, name) for name in graph.inputs],
        "outputs": [_describe_tensor(graph, name) for name in graph.outputs],
        "operators": dict(sorted(Counter(node.op for node in graph.nodes).items())),
    }


def _describe_tensor(graph: Graph, name: str) -> dict[str, Any]:
    """Describe a value of a graph as plain data: name, dtype, shape, scale and zero point.

    Scale and zero point are None if the value is not quantised, or is quantised per channel."""
    tensor_type = graph.types[name]
    quant = tensor_type.quant if tensor_type.quant is not None and tensor_type.quant.axis is None else None
    return {
        "name": name,
        "dtype": tensor_type.dtype,
        "shape": list(tensor_type.shape),
        "scale": quant.scale[0] if quant else None,
        "zero_point": quant.zero_point[0] if quant else None,
    }


def _list_nameable_tensors(graph: Graph) -> Iterator[dict[str, Any]]:
    """Yield all values that the user can name as inputs or outputs of a part of the network to compile.

    Each is described as plain data, with the operator that computes it."""
    for what, names in (("input", graph.inputs), ("state", tuple(graph.state))):
        yield from ({**_describe_tensor(graph, name), "operator": what} for name in names)
    for node in graph.nodes:
        yield from ({**_describe_tensor(graph, name), "operator": node.op} for name in node.outputs if name)


def estimate_peak_live_bytes_between_kernels(graph: Graph) -> int:
    """Estimate the largest number of bytes of values that are live between two successive kernels of a fused graph, if
    kernels run in the order of the graph's nodes.

    The bytes during a kernel are not counted, because its results may overwrite operands that are not read later."""
    groups = groups_of(graph)
    last = {name: t for t, nodes in enumerate(groups) for node in nodes for name in node.inputs}
    base: dict[str, str] = {}
    live: dict[str, tuple[int, int]] = {}

    def extend_lifetime(name: str, time: int) -> None:
        name = base.get(name, name)
        if name and name not in graph.consts:
            first, end = live.get(name, (time, time))
            live[name] = min(first, time), max(end, time)

    for name in (*graph.inputs, *graph.state):
        extend_lifetime(name, -1)
    for time, nodes in enumerate(groups):
        if registry.get(nodes[0].op).view:
            base[nodes[0].outputs[0]] = base.get(nodes[0].inputs[0], nodes[0].inputs[0])
            continue
        results = {name for node in nodes for name in node.outputs}
        for node in nodes:
            for name in set(node.inputs) - results:
                extend_lifetime(name, time - 1)
        for name in results:
            if last.get(name, -1) > time or name in graph.outputs:
                extend_lifetime(name, time)
    for name in (*graph.outputs, *graph.state):
        extend_lifetime(name, len(groups))
    times = {first for first, _ in live.values()}
    return max((sum(graph.types[n].nbytes for n, (a, b) in live.items() if a <= t <= b) for t in times), default=0)


# ---- ``microc plugin check``: run the test cases of the operators that a plugin defines.
#
# Each case tests type inference, runs the operator's loops in an interpreter, and runs its compiled C.


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
