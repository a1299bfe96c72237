"""One spelling for what can be said in many ways: what does nothing goes, neighbours that do the same become one."""

from __future__ import annotations

from math import inf

from microc import dtypes
from microc.graph.ir import Attr, Graph
from microc.graph.match import Match, P, Replacement, Rule
from microc.graph.rewriting import rewrite
from microc.ops.rounding import Rounding
from microc.transform.context import Pass, PassContext
from microc.transform.operand_axes import operand_rules
from microc.transform.padding import padding_rules
from microc.transform.reshapes import reshape_rules
from microc.transform.scaling import scaling_rules
from microc.transform.transposes import joining_rules

SCALING_LEVEL = 3
_SAME_SHAPE = ("reshape", "cast", "slice", "pad", "concat")
_PLAIN: dict[str, Attr] = {"activation": ""}
_CLAMPS = ("relu", "clip")
_REDUCTIONS = ("mean", "max", "min")


def canonicalise(graph: Graph, context: PassContext) -> Graph:
    """Apply all rules until none applies. Those that fold scales into a layer are of a level of their own."""
    scaling = (scaling_rules,) if context.opt_level >= SCALING_LEVEL else ()
    families = (_identity_rules, _merging_rules, reshape_rules, padding_rules, *scaling, operand_rules)
    return rewrite(graph, tuple(rule for family in families for rule in family()))


def _identity_rules() -> tuple[Rule, ...]:
    return (
        (P.op(_SAME_SHAPE, P.any("x")), _unchanged),
        (P.op(("max_pool2d", "avg_pool2d"), P.any("x"), attrs={**_PLAIN, "kernel": (1, 1)}), _unchanged),
        (P.op(_REDUCTIONS, P.any("x")), _reduces_nothing),
        (P.op("clip", P.any("x"), attrs={"minimum": -inf, "maximum": inf}), _unchanged),
        (P.op("add", P.any("x"), P.const("c"), attrs=_PLAIN, commutative=True), _neutral_zero),
        (P.op("sub", P.any("x"), P.const("c"), attrs=_PLAIN), _neutral_zero),
        (P.op("mul", P.any("x"), P.const("c"), attrs=_PLAIN, commutative=True), _neutral_one),
        (P.op(("div", "pow"), P.any("x"), P.const("c"), attrs=_PLAIN), _neutral_one),
    )


def _merging_rules() -> tuple[Rule, ...]:
    return (
        *joining_rules(),
        (P.op(_CLAMPS, P.op(_CLAMPS, P.any("x"), name="first")), _merge_clamps),
        (P.op("pad", P.op("pad", P.any("x"), name="first")), _merge_pads),
    )


# ---------------------------------------------------------------- what does nothing


def _unchanged(match: Match) -> Replacement | None:
    """These operators do nothing when the type stays: they only choose elements, all of them, in order."""
    return match.same("x") if match.is_like("x") else None


def _reduces_nothing(match: Match) -> Replacement | None:
    """Over axes of one element, at most the shape changes."""
    source, result = match.type(match["x"]), match.type(match.output)
    if source.size != result.size or (source.dtype, source.quant) != (result.dtype, result.quant):
        return None
    match.emit("reshape", (match["x"],), {"shape": result.shape})
    return match.replacement()


def _neutral_zero(match: Match) -> Replacement | None:
    return _neutral(match, 0)


def _neutral_one(match: Match) -> Replacement | None:
    return _neutral(match, 1)


def _neutral(match: Match, number: int) -> Replacement | None:
    """x combined with the neutral element; of quantised tensors the constant's integers say nothing."""
    quantised = match.type(match["c"]).quant is not None
    return match.same("x") if match.is_like("x") and not quantised and (match.const("c") == number).all() else None


# ---------------------------------------------------------------- neighbours


def _merge_clamps(match: Match) -> Replacement | None:
    """Clamping twice is clamping once. Bounds are real numbers, so quantised operands stay, unless bounds are stored."""
    first, second = match.nodes["first"], match.root
    stored = first.attrs.get("rounding") == Rounding.NONE == second.attrs.get("rounding")
    if not dtypes.is_float(match.type(match["x"]).dtype) and not stored:
        return None
    (a, b), (low, high) = _bounds(match, "first"), _bounds(match, "")
    least, most = min(max(a, low), high), max(min(b, high), low)
    rounding: Attr = second.attrs.get("rounding", Rounding.DOUBLE)
    if (least, most) == (0.0, inf):
        match.emit("relu", (match["x"],), {"rounding": rounding})
    else:
        match.emit("clip", (match["x"],), {"minimum": least, "maximum": most, "rounding": rounding})
    return match.replacement()


def _bounds(match: Match, capture: str) -> tuple[float, float]:
    node = match.nodes[capture] if capture else match.root
    return (0.0, inf) if node.op == "relu" else (node.attr("minimum"), node.attr("maximum"))


def _merge_pads(match: Match) -> Replacement | None:
    first = match.nodes["first"]
    if first.attr("value") != match.root.attr("value"):
        return None
    pairs = zip(first.attr("padding"), match.root.attr("padding"), strict=True)
    padding = tuple((a + c, b + d) for (a, b), (c, d) in pairs)
    match.emit("pad", (match["x"],), {**match.root.attrs, "padding": padding})
    return match.replacement()


PASS = Pass("canonicalise", canonicalise, 2)
