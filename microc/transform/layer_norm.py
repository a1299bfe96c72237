"""Normalisation of rows as one operator: what exporters and readers spell as means, differences and a root.

With c = x - mean(x) over the last axis, ``c / sqrt(mean(c * c) + epsilon)``, or c times the inverse of the root, is
``layer_norm`` of x. Dequantised numbers are normalised as the integers that they are. With option ``requantize=fixed`` the
factors and terms of channels and the quantisation that follow become one integer operator with it.
"""

from __future__ import annotations

import numpy as np

from microc.dtypes import Array
from microc.graph.ir import Graph, Node, Quant
from microc.graph.match import Match, P, Replacement, Rule
from microc.graph.rewriting import rewrite
from microc.ops.normalisation.layer_norm import MOST_DEPTH
from microc.ops.normalisation.layer_norm_fixed import DTYPES, MOST_EPSILON, affine, attrs_of
from microc.ops.normalisation.layer_norm_fixed import MOST_DEPTH as QUANTISED_DEPTH
from microc.ops.rounding import Ties
from microc.transform.context import Pass, PassContext

_PLAIN = {"activation": ""}
_VARIANCE = P.op("mean", P.op(("mul", "pow"), name="square"), name="variance")
_SHIFTED = P.op("add", _VARIANCE, P.const("epsilon"), commutative=True, attrs=_PLAIN)


def recognise_layer_norm(graph: Graph, context: PassContext) -> Graph:
    """The graph with ``layer_norm`` where it is spelled out."""
    rules = (
        (P.op("div", P.any("c"), P.op("sqrt", _SHIFTED), attrs=_PLAIN), _normalised),
        (P.op("mul", P.any("c"), P.op("rsqrt", _SHIFTED), commutative=True, attrs=_PLAIN), _normalised),
        _INTEGERS,
    )
    found = rewrite(graph, rules)
    return norms_in_fixed_point(found) if context.options.get("requantize") == "fixed" else found


def norms_in_fixed_point(graph: Graph) -> Graph:
    """The graph with ``qlayer_norm`` where a ``layer_norm`` of integers, its factors and terms, is quantised behind them."""
    return rewrite(rewrite(graph, (_INTEGERS,)), _fixed_rules())


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
    kind = match.type(match["x"])
    if kind.dtype not in DTYPES or len(scale) != 1 or kind.shape[-1] > QUANTISED_DEPTH:
        return None
    epsilon = match.root.attr("epsilon") / float(scale[0]) ** 2
    match.emit("layer_norm", (match["x"],), {"epsilon": epsilon})
    return match.replacement()


def _fixed_rules() -> tuple[Rule, ...]:
    """``layer_norm`` of integers with what follows in most networks."""
    normal = P.op("layer_norm", P.any("x"), name="normal")
    scaled = P.op("mul", normal, P.const("gamma"), commutative=True, attrs=_PLAIN)
    forms = (normal, scaled, P.op("add", scaled, P.const("beta"), commutative=True, attrs=_PLAIN))
    return tuple((P.op("quantize", form, attrs={"axis": None, "rounding": Ties.EVEN}), _in_integers) for form in forms)


def _in_integers(match: Match) -> Replacement | None:
    kind, epsilon = match.type(match["x"]), match.nodes["normal"].attr("epsilon")
    if kind.dtype not in DTYPES or kind.shape[-1] > QUANTISED_DEPTH:
        return None
    depth, dtype = kind.shape[-1], match.root.attr("out_dtype")
    result = Quant(match.root.attr("scale"), match.root.attr("zero_point"))
    gamma, beta = (_of_channels(match, *each, depth) for each in (("gamma", 1.0), ("beta", 0.0)))
    added = epsilon * depth * depth
    if match.type(match.output).shape != kind.shape or added >= MOST_EPSILON or dtype not in DTYPES:
        return None
    made = affine(gamma, beta, depth, result, dtype) if gamma is not None and beta is not None else None
    if made is None:
        return None
    factors = match.constant(f"{match.output}.factors", made.factors)
    terms = match.constant(f"{match.output}.terms", made.terms)
    match.emit("qlayer_norm", (match["x"], factors, terms), attrs_of(made, added, dtype))
    return match.replacement()


def _of_channels(match: Match, name: str, default: float, depth: int) -> Array | None:
    """A constant as one number for each element of a row; None where rows differ in it."""
    if name not in match.values:
        return np.full(depth, default)
    data = match.const(name)
    by_channel = data.size == 1 or (data.size == depth and data.shape[-1] == depth)
    return np.broadcast_to(data.reshape(-1), (depth,)) if by_channel else None


_INTEGERS: Rule = (P.op("layer_norm", P.op("dequantize", P.any("x"), name="real", shared=True)), _of_integers)
PASS = Pass("layer_norm", recognise_layer_norm, 2)
