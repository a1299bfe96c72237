"""Views of bytes rather than of the floats that these become: what lies in memory is narrow, and is widened where it is read."""

from __future__ import annotations

from microc import dtypes
from microc.graph.ir import Graph, TensorType
from microc.graph.match import Match, P, Replacement
from microc.graph.rewriting import rewrite
from microc.transform.context import Pass, PassContext

_WIDENING = ("dequantize", "cast")


def narrow_views(graph: Graph, context: PassContext) -> Graph:
    """``reshape(widen(x))`` becomes ``widen(reshape(x))``, where x is widened for the view alone."""
    return rewrite(graph, ((P.op("reshape", P.op(_WIDENING, P.any("x"), name="widened")), _widened_behind),))


def _widened_behind(match: Match) -> Replacement | None:
    widened = match.nodes["widened"]
    source, result = match.type(match["x"]), match.type(match.output)
    narrow = dtypes.nbytes(source.dtype) < dtypes.nbytes(result.dtype)
    if not narrow or widened.attrs.get("axis") is not None or match["x"] in match.scope.consts:
        return None
    kind = TensorType(result.shape, source.dtype, source.quant)
    viewed = match.emit("reshape", (match["x"],), {"shape": result.shape}, kind, f"{match['x']}.viewed")
    match.emit(widened.op, (viewed,), widened.attrs, loc=widened.loc)
    return match.replacement()


PASS = Pass("narrow_views", narrow_views, 1)
