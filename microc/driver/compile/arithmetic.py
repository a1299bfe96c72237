"""What a network computes in floats, and why: by its multiply-accumulates, after the graph passes; and how it may."""

from __future__ import annotations

from collections.abc import Iterator

from microc import dtypes
from microc.driver.options import Options
from microc.errors import UsageError
from microc.graph.ir import Graph, Node
from microc.isa import CORES
from microc.module import Arithmetic
from microc.ops import registry
from microc.ops.lowering import macs_of
from microc.schedule.rules.algorithms import FAST_MATH, HALF_FLOATS, HALF_MATH, HALF_WEIGHTS, THREADS
from microc.target import Target
from microc.transform.qdq import has_integer_form
from microc.transform.weight_dtype import halved, too_large

_SHOWN = 8
_PRODUCTS = ("conv2d", "conv2d_transpose", "dense")


def with_math(target: Target, options: Options) -> Target:
    """The target, which schedules ask what they may do, with what the user lets them do to floats, and how many do it;
    UsageError for arithmetic in float16 where the core has no unit for it, or sizes vary."""
    if options.math == "half" and not target.has(HALF_FLOATS):
        able = ", ".join(name for name, core in CORES.items() if HALF_FLOATS in core.has)
        raise UsageError(
            f"math half: {target.cpu} does not compute in float16",
            hint=f"it is for {able}; weight_dtype float16 stores weights in two bytes on every core",
        )
    if options.math == "half" and options.bounds:
        raise UsageError("math half: sizes that vary have no schedules in float16", hint="bind them with input_shapes")
    wishes = {
        FAST_MATH: options.math in ("fast", "half"),
        HALF_MATH: options.math == "half",
        HALF_WEIGHTS: options.weight_dtype in dtypes.HALF,
        THREADS: options.threads > 1,
    }
    return target.having(*(name for name, wanted in wishes.items() if wanted))


def arithmetic_of(graph: Graph, weight_dtype: str = "") -> Arithmetic:
    """The share of a graph as the passes left it. Reasons are those of the layers with the most products. ``weight_dtype``: what
    weights were rounded to, if that is a half."""
    if not any(dtypes.is_float(kind.dtype) for kind in graph.types.values()):
        return Arithmetic(sum(macs_of(graph, node) for node in graph.nodes), double_weights=_double_weights(graph))
    work = {node.outputs: (macs_of(graph, node), _float_macs(graph, node)) for node in graph.nodes}
    layers = sorted((n for n in graph.nodes if work[n.outputs][1]), key=lambda n: -work[n.outputs][1])
    scaled = (n for n in graph.nodes if n.op == "requantize_float")
    return Arithmetic(
        macs=sum(total for total, _ in work.values()),
        float_macs=sum(floats for _, floats in work.values()),
        reasons=tuple(_reasons(graph, layers)),
        half_weights=halved(graph) if weight_dtype in dtypes.HALF else 0,
        wide_weights=too_large(graph, weight_dtype) if weight_dtype in dtypes.HALF else (),
        double_weights=_double_weights(graph),
        float_scaled=sum(graph.types[name].size for node in scaled for name in node.outputs),
    )


def _double_weights(graph: Graph) -> int:
    """Weights of two bytes that multiply bytes: those of nine bits, which no model's file has."""
    names = {
        node.inputs[1]
        for node in graph.nodes
        if node.op in _PRODUCTS and dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1
    }
    return sum(graph.types[name].size for name in names & graph.consts.keys() if graph.types[name].dtype == "int16")


def _float_macs(graph: Graph, node: Node) -> int:
    """Products of floats in a run of a node; of control flow, the share that its graphs have."""
    macs = macs_of(graph, node)
    if not macs:
        return 0
    regions = registry.get(node.op).regions
    if not regions:
        return macs if dtypes.is_float(graph.types[node.inputs[0]].dtype) else 0
    inside = [arithmetic_of(node.attr(name)) for name in regions]
    return macs * sum(part.float_macs for part in inside) // max(1, sum(part.macs for part in inside))


def _reasons(graph: Graph, layers: list[Node]) -> Iterator[str]:
    """Why layers are in floats, those with the most work first; of a network without any integers, once for all."""
    if not layers:
        return
    if all(kind.quant is None for kind in graph.types.values()):
        yield "nothing in the network is quantised"
        return
    makers = graph.producer()
    for node in layers[:_SHOWN]:
        number = node.loc.index if node.loc.index >= 0 else node.outputs[0]
        yield f"{node.op} {number}: {_reason(graph, makers.get(node.inputs[0]))}"
    if len(layers) > _SHOWN:
        yield f"and {len(layers) - _SHOWN} layers more"


def _reason(graph: Graph, maker: Node | None) -> str:
    """Why a layer is in floats that reads what ``maker`` makes."""
    if maker is None:
        return "what it reads is not quantised"
    if maker.op == "dequantize":
        return "its weights or its result are not quantised"
    form = "" if has_integer_form(maker, graph) else ", which has no integer form"
    return f"it reads floats of {maker.op}{form}"
