"""Normalisation of rows as one operator: what exporters and readers spell as means, differences and a root.

With c = x - mean(x) over the last axis, ``c / sqrt(mean(c * c) + epsilon)``, or c times the inverse of the root, is
``layer_norm`` of x. Dequantised bytes are normalised as the integers that they are.
"""

from __future__ import annotations

from microc.graph.ir import Graph, Node
from microc.graph.match import Match, P, Replacement
from microc.graph.rewriting import rewrite
from microc.ops.normalisation.layer_norm import MOST_DEPTH
from microc.transform.context import Pass, PassContext

_PLAIN = {"activation": ""}
_VARIANCE = P.op("mean", P.op(("mul", "pow"), name="square"), name="variance")
_SHIFTED = P.op("add", _VARIANCE, P.const("epsilon"), commutative=True, attrs=_PLAIN)


def recognise_layer_norm(graph: Graph, context: PassContext) -> Graph:
    """The graph with ``layer_norm`` where it is spelled out."""
    rules = (
        (P.op("div", P.any("c"), P.op("sqrt", _SHIFTED), attrs=_PLAIN), _normalised),
        (P.op("mul", P.any("c"), P.op("rsqrt", _SHIFTED), commutative=True, attrs=_PLAIN), _normalised),
        (P.op("layer_norm", P.op("dequantize", P.any("x"), name="real", shared=True)), _of_integers),
    )
    return rewrite(graph, rules)


def _normalised(match: Match) -> Replacement | None:
    centred = match.scope.producer(match["c"])
    mean = match.scope.producer(centred.inputs[1]) if centred is not None and centred.op == "sub" else None
    if centred is None or mean is None or mean.op != "mean" or mean.inputs[0] != centred.inputs[0]:
        return None
    kind, epsilon = match.type(centred.inputs[0]), match.const("epsilon")
    over_rows = all(_over_last(node, len(kind.shape)) for node in (mean, match.nodes["variance"]))
    if not over_rows or not _is_square(match, match.nodes["square"]) or epsilon.size != 1 or epsilon.item() <= 0:
        return None
    if kind.dtype != "float32" or centred.attrs.get("activation", "") or not 0 < kind.shape[-1] <= MOST_DEPTH:
        return None
    match.emit("layer_norm", (centred.inputs[0],), {"epsilon": float(epsilon.item())})
    return match.replacement()


def _over_last(mean: Node, rank: int) -> bool:
    axes = tuple(axis % rank for axis in mean.attr("axes"))
    return axes == (rank - 1,) and bool(mean.attr("keepdims"))


def _is_square(match: Match, square: Node) -> bool:
    """Whether a node multiplies c with itself."""
    if square.inputs[0] != match["c"] or square.attrs.get("activation", ""):
        return False
    if square.op == "mul":
        return square.inputs[1] == match["c"]
    exponent = match.scope.consts.get(square.inputs[1])
    return exponent is not None and bool((exponent == 2).all())


def _of_integers(match: Match) -> Replacement | None:
    """The scale goes into epsilon."""
    scale = match.nodes["real"].attr("scale")
    if match.type(match["x"]).dtype not in ("int8", "uint8") or len(scale) != 1:
        return None
    epsilon = match.root.attr("epsilon") / float(scale[0]) ** 2
    match.emit("layer_norm", (match["x"],), {"epsilon": epsilon})
    return match.replacement()


PASS = Pass("layer_norm", recognise_layer_norm)
