"""A look at a model without compiling it: operators, work, memory, and whether a board could hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from microc.driver.budget import count_macs
from microc.driver.fit import capacity
from microc.driver.kernel import groups_of
from microc.driver.model import read_model
from microc.driver.options import Options
from microc.driver.pipeline import optimise
from microc.graph.ir import Graph
from microc.ops import registry
from microc.plugin import active
from microc.target import Board


@dataclass(frozen=True, slots=True)
class Check:
    """What is known of a model before compilation; bytes. ``arena`` is a lower bound: the largest set of live values.

    ``tensors``: all that are computed or given, as the model file has them, in order.
    """

    model: str
    source: str
    inputs: Sequence[dict[str, Any]]
    outputs: Sequence[dict[str, Any]]
    operators: Mapping[str, int]
    kernels: int
    macs: int
    weight_bytes: int
    arena: int
    board: str
    reasons: tuple[str, ...]
    tensors: tuple[dict[str, Any], ...]

    @property
    def fits(self) -> bool:
        return not self.reasons

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
            "weight_bytes": self.weight_bytes,
            "arena_lower_bound": self.arena,
            "board": self.board or None,
            "fits": self.fits if self.board else None,
            "reasons": list(self.reasons),
        }


def check_model(path: Path, options: Options, board: Board | None = None) -> Check:
    """Read a model and run the graph passes, nothing more. UnsupportedError lists all that microc cannot do, at once."""
    with active(options.plugins):
        return _checked(read_model(path, options), path, options, board)


def _checked(graph: Graph, path: Path, options: Options, board: Board | None) -> Check:
    fused = optimise(graph, options)
    weights = sum(array.nbytes for array in fused.consts.values())
    arena = arena_bound(fused)
    return Check(
        **describe(graph, path.name),
        kernels=sum(not registry.get(nodes[0].op).view for nodes in groups_of(fused)),
        macs=count_macs(graph),
        weight_bytes=weights,
        arena=arena,
        board=board.name if board else "",
        reasons=_reasons(board, weights, arena) if board else (),
        tensors=tuple(_tensors(graph)),
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


def _reasons(board: Board, weights: int, arena: int) -> tuple[str, ...]:
    """Why a network cannot fit, whatever the compiler does; none proves nothing."""
    stack = board.raw.get("link", {}).get("stack_bytes", 0)
    needs = (("flash", "weights take", weights), ("ram", f"arena and stack ({stack}) take at least", arena + stack))
    return tuple(
        f"{text} {need} bytes, the board has {capacity(board, kind)} of {'RAM' if kind == 'ram' else kind}"
        for kind, text, need in needs
        if capacity(board, kind) and need > capacity(board, kind)
    )


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


def arena_bound(graph: Graph) -> int:
    """The largest sum of bytes alive between two kernels of a fused graph: no arena is smaller.

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
