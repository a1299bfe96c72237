"""A look at a model without compiling it: operators, work, memory, and whether a board could hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from microc import __version__
from microc.base.immutable import frozen
from microc.codegen.project.firmware import project_files
from microc.compiler.fit.budget import Least, Room, arithmetic_of, count_macs, least_of, shortages
from microc.compiler.fit.footprint import Footprint, capacity, check_modules, room_of
from microc.compiler.lowering.kernel_selection import groups_of
from microc.compiler.model import source_name
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model, read_at_largest
from microc.errors import FitError
from microc.graph.ir import Graph
from microc.module import Arithmetic
from microc.ops import registry
from microc.reports.advice import advice, arithmetic_data
from microc.reports.summary import summary
from microc.run.board_project import linked_sizes
from microc.target import Board

VERDICTS: Mapping[str, bool | None] = MappingProxyType({"no": False, "maybe": None, "yes": True})
"""Whether a network fits: proven that it does not, neither proven, compiled and fitting."""


RESERVE = 0.25
"""Share of the estimated code that must be free before an estimate says that a network fits. Measured on 74 firmwares of models
that the estimate was not fitted to: one is over it, by 20 % of the estimated code (an unrolled GRU of integers on Cortex-M0)."""
_ESTIMATED = ("estimated_cycles", "estimated_milliseconds", "stack_bound", "memories", "layers")
"""What is known of a compiled network alone."""


@frozen
class Check:
    """What is known of a model before compilation; bytes.

    ``least``: what no compilation goes below; ``live``: the largest set of values that are alive together, which is about what
    the arena takes where values do not overlap and no layer works row by row. ``tensors``: all that are computed or given, as
    the model file has them, in order. ``verdict``: of :data:`VERDICTS`, empty without a board or a budget; ``reasons`` for a no.
    ``arithmetic``: what is computed in floats, and why; ``advice``: sentences (:mod:`microc.reports.advice`), where a board says
    on which core. ``need``: what the firmware takes, and ``compiled``: all of :meth:`microc.Program.report`, if the network was
    compiled to know. ``state``: what is kept from run to run. ``built``: a compiler linked the firmware, so that ``need``
    is exact; else its flash is estimated from above, and only fits with a RESERVE.
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
    least: Least
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
        """True and False are certain."""
        return VERDICTS.get(self.verdict)

    def to_data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "model": self.model,
            "source": self.source,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "operators": dict(self.operators),
            "kernels": self.kernels,
            "macs": self.macs,
            **arithmetic_data(self.arithmetic, self.advice),
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
            "ram_taken": self.need.taken_ram if self.need else None,
            "arena": self.need.arena if self.need else None,
            "state": self.state,
            **{name: self.compiled[name] if self.compiled else None for name in _ESTIMATED},
        }


def check_model(source: Path | Graph, options: Options, board: Board | None = None, *, exact: bool = False) -> Check:
    """Read a model and run the graph passes, nothing more. UnsupportedError lists all that microc cannot do, at once.

    ``exact``: compile it for the board, too, if nothing proves that it does not fit; link it if the compiler is there.
    """
    read, fused = read_at_largest(source, options)
    room = room_of(board, external=bool(options.external)) if board else Room()
    least = least_of(fused, options)
    found = arithmetic_of(fused, options.weight_dtype)
    reasons, need, compiled = shortages(least, options, room), None, None
    built = certain = False
    if exact and board and not reasons:
        try:
            module = compile_model(source, board.target, options, None, room)
            need, compiled = check_modules((module,), board), summary(module, board)
            sizes = linked_sizes(project_files((module,), board, __version__), board)
            if sizes is not None:
                code = sizes.flash - need.weights - need.self_test
                need, built = replace(need, code=code, linked_ram=sizes.static_ram), True
            limit = capacity(board, "flash")
            certain = built or not limit or need.flash + int(RESERVE * need.code) <= limit
        except FitError as error:
            reasons, need, compiled = (error.what,), None, None
    bounded = board or options.flash or options.ram
    return Check(
        **describe(read, source_name(source)),
        kernels=sum(not registry.get(nodes[0].op).view for nodes in groups_of(fused)),
        macs=count_macs(read),
        weight_bytes=sum(array.nbytes for array in fused.consts.values()),
        live=live_bytes(fused),
        least=least,
        board=board.name if board else "",
        verdict="no" if reasons else "yes" if need and certain else "maybe" if bounded else "",
        reasons=reasons,
        tensors=tuple(_tensors(read)),
        arithmetic=found,
        advice=advice(found, source_name(source), board.target, options.requantize) if board else (),
        need=need,
        state=sum(array.nbytes for array in read.state.values()),
        compiled=compiled,
        built=built,
    )


def describe(graph: Graph, source: str) -> dict[str, Any]:
    """What a graph is from outside, plain data: its name, its inputs and outputs, how often it uses which operator."""
    return {
        "model": graph.name,
        "source": source,
        "inputs": [_tensor(graph, name) for name in graph.inputs],
        "outputs": [_tensor(graph, name) for name in graph.outputs],
        "operators": dict(sorted(Counter(node.op for node in graph.nodes).items())),
    }


def _tensor(graph: Graph, name: str) -> dict[str, Any]:
    kind = graph.types[name]
    quant = kind.quant if kind.quant is not None and kind.quant.axis is None else None
    return {
        "name": name,
        "dtype": kind.dtype,
        "shape": list(kind.shape),
        "scale": quant.scale[0] if quant else None,
        "zero_point": quant.zero_point[0] if quant else None,
    }


def _tensors(graph: Graph) -> Iterator[dict[str, Any]]:
    """Everything that a cut may name, and the operator that makes it."""
    for what, names in (("input", graph.inputs), ("state", tuple(graph.state))):
        yield from ({**_tensor(graph, name), "operator": what} for name in names)
    for node in graph.nodes:
        yield from ({**_tensor(graph, name), "operator": node.op} for name in node.outputs if name)


def live_bytes(graph: Graph) -> int:
    """The largest sum of bytes alive between two kernels of a fused graph, in the order of its nodes.

    While a kernel runs its results may take the place of operands that nobody needs any more.
    """
    groups = groups_of(graph)
    last = {name: t for t, nodes in enumerate(groups) for node in nodes for name in node.inputs}
    base: dict[str, str] = {}
    live: dict[str, tuple[int, int]] = {}

    def use(name: str, time: int) -> None:
        name = base.get(name, name)
        if name and name not in graph.consts:
            first, end = live.get(name, (time, time))
            live[name] = min(first, time), max(end, time)

    for name in (*graph.inputs, *graph.state):
        use(name, -1)
    for time, nodes in enumerate(groups):
        if registry.get(nodes[0].op).view:
            base[nodes[0].outputs[0]] = base.get(nodes[0].inputs[0], nodes[0].inputs[0])
            continue
        made = {name for node in nodes for name in node.outputs}
        for node in nodes:
            for name in set(node.inputs) - made:
                use(name, time - 1)
        for name in made:
            if last.get(name, -1) > time or name in graph.outputs:
                use(name, time)
    for name in (*graph.outputs, *graph.state):
        use(name, len(groups))
    times = {first for first, _ in live.values()}
    return max((sum(graph.types[n].nbytes for n, (a, b) in live.items() if a <= t <= b) for t in times), default=0)
