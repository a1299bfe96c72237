# SPDX-License-Identifier: Apache-2.0
"""Passes to canonical form: constant folding, common subexpressions, dead code, layer norm as one operator, removal of
identities, merging of successive operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import InternalError
from microc.graph.ir import Attr, Graph, Node, Quant, new_value
from microc.graph.match import Match, P, Replacement, Rule, rewrite, without_dead_nodes
from microc.ops import registry
from microc.ops.attributes import Rounding, Ties
from microc.ops.meaning import expand_composed_operator
from microc.ops.normalisation.norms import (
    DTYPES,
    LAYER_NORM_MOST_DEPTH,
    MOST_EPSILON,
    qlayer_norm_attrs,
    quantise_affine,
)
from microc.ops.normalisation.norms import LAYER_NORM_FIXED_MOST_DEPTH as QUANTISED_DEPTH
from microc.transform.channels_last import padding_rules, reshape_rules
from microc.transform.fuse import MANDATORY
from microc.transform.pass_context import Pass, PassContext
from microc.transform.scale_axis import scale_folding_rules
from microc.transform.transposes import matmul_transpose_rules, transpose_merging_rules

# ---- Dead code elimination.


def eliminate_dead_code(graph: Graph, context: PassContext) -> Graph:
    """Remove the nodes and constants on which no graph output and no state update depends."""
    alive = without_dead_nodes(graph)
    return alive.with_nodes(alive.nodes)


DEAD_CODE_PASS = Pass("dead_code", eliminate_dead_code)


# ---- Expansion of composite operators (``OpDef.expand``) into the operators that they stand for.
#
# If a backend of external code comes first (option ``whole``), composite operators stay until it has claimed its regions.


def expand_composites(graph: Graph, context: PassContext) -> Graph:
    """Expand composite operators, unless the option ``whole`` is set."""
    return graph if context.options.get("whole") else expand_composed_operator(graph)


EXPAND_PASS = Pass("expand", expand_composites, 0, around=True)


# ---- Constant folding with the operators' reference implementations.

LARGE = 1 << 20
"""Number of bytes of results up to which constants are always folded."""
GROWTH = 16
"""Largest ratio of the bytes of results to the bytes of operands with which larger constants are folded."""


def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Compute nodes whose operands are all constant, at compile time.

    Results of more than ``LARGE`` bytes that are more than ``GROWTH`` times as large as their operands are still
    computed at run time. So are state updates. Quantised operators are not folded before legalisation, because their
    integers alone do not determine the result. ``dequantize`` is folded, because its attributes contain the scale. A
    ``branch`` whose condition is constant is replaced by the nodes of the graph that runs."""
    consts = dict(graph.consts)
    nodes: list[Node] = []
    waiting = [*reversed(graph.nodes)]
    while waiting:
        node = waiting.pop()
        body = _find_decided_body(node, graph, consts) if node.op == "branch" else None
        if body is not None:
            body_nodes, graph, body_consts = _inline_body(node, body, graph)
            consts |= body_consts
            waiting += reversed(body_nodes)
            continue
        inputs = [name for name in node.inputs if name]
        is_constant = bool(inputs) and all(name in consts for name in inputs)
        if not is_constant or not _can_fold(replace(graph, consts=consts), node):
            nodes.append(node)
            continue
        consts.update(_evaluate_constants(graph, node, [consts[name] for name in inputs]))
    return replace(graph, consts=consts).with_nodes(nodes) if nodes != [*graph.nodes] else graph


def _find_decided_body(node: Node, graph: Graph, consts: Mapping[str, Array]) -> Graph | None:
    """Return the graph that a ``branch`` always runs because its condition is constant; None if it is not, or if the
    types of the graph's inputs and outputs differ in quantisation from those outside."""
    if node.inputs[0] not in consts:
        return None
    body: Graph = node.attr("then" if consts[node.inputs[0]].any() else "otherwise")
    pairs = [*zip(body.inputs, node.inputs[1:], strict=True), *zip(body.outputs, node.outputs, strict=True)]
    has_same_quants = all(body.types[inner].quant == graph.types[outer].quant for inner, outer in pairs if outer)
    return body if has_same_quants else None


def _inline_body(node: Node, body: Graph, graph: Graph) -> tuple[list[Node], Graph, dict[str, Array]]:
    """Return the nodes of ``body``, which replace a ``branch``, ``graph`` with the types of their values, and their
    constants.

    Values of the body get new names. A result that is one of its inputs or constants, or that is listed twice, is
    copied by a ``reshape`` node."""
    types, new_names = dict(graph.types), dict(zip(body.inputs, node.inputs[1:], strict=True))
    copies: list[tuple[str, str]] = []
    computed = {name for inner in body.nodes for name in inner.outputs}
    for name, result in zip(body.outputs, node.outputs, strict=True):
        if result and name in computed and name not in new_names:
            new_names[name] = result
        elif result:
            copies.append((name, result))
    for name, type_ in body.types.items():
        if name not in new_names:
            new_names[name] = new_value(types, f"{node.outputs[0]}_{name}", type_)
    inlined = [
        replace(
            inner,
            inputs=tuple(new_names[name] if name else "" for name in inner.inputs),
            outputs=tuple(new_names[name] if name else "" for name in inner.outputs),
        )
        for inner in body.nodes
    ]
    inlined += [
        Node("reshape", (new_names[name],), (result,), {"shape": body.types[name].shape}, node.loc)
        for name, result in copies
    ]
    consts = {new_names[name]: data for name, data in body.consts.items()}
    return inlined, replace(graph, types=types), consts


def _can_fold(graph: Graph, node: Node) -> bool:
    """Test whether a node whose operands are all constant may be computed at compile time."""
    nbytes = sum(graph.types[name].nbytes for name in node.outputs if name)
    if nbytes > LARGE and nbytes > GROWTH * sum(graph.types[name].nbytes for name in node.inputs if name):
        return False
    legalize = registry.get(node.op).legalize
    needs_legalizing = node.op != "dequantize" and legalize is not None and legalize(node, graph) is not None
    return not needs_legalizing and set(graph.updates.values()).isdisjoint(node.outputs)


def _evaluate_constants(graph: Graph, node: Node, arrays: list[Array]) -> dict[str, Array]:
    """Compute a node with its reference implementation; return its results by name."""
    definition = registry.get(node.op)
    with np.errstate(all="ignore"):
        results = definition.reference({**definition.defaults, **node.attrs}, arrays)
    results_by_name = {}
    for name, array in zip(node.outputs, results, strict=True):
        kind = graph.types[name]
        if (array.shape, str(array.dtype)) != (kind.shape, kind.dtype):
            raise InternalError(
                f"{node.op}: the reference implementation computes {name!r} with a wrong type; "
                f"got {array.dtype} {array.shape}, expected {kind.dtype} {kind.shape}",
                where=str(node.loc),
            )
        results_by_name[name] = np.array(array, order="C")
    return results_by_name


FOLD_CONSTANTS_PASS = Pass("fold_constants", fold_constants, 2)


# ---- Common subexpressions and equal constants.


def merge_common_subexpressions(graph: Graph, context: PassContext) -> Graph:
    """Remove nodes that are equal to an earlier node.

    Nodes that compute graph outputs or state updates are kept, because their names must remain."""
    return _SubexpressionMerger(graph).merge_subexpressions()


class _SubexpressionMerger:
    """Common subexpression elimination by hashing.

    ``equal`` maps a value to the first value that equals it. ``instead`` does so only for values that need not be
    computed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.promised = {*graph.outputs, *graph.updates.values()}
        self.readers = graph.consumers()
        self.equal: dict[str, str] = {}
        self.instead: dict[str, str] = {}

    def merge_subexpressions(self) -> Graph:
        self.merge_constants()
        seen: dict[object, Node] = {}
        nodes: list[Node] = []
        for node in self.graph.nodes:
            inputs = tuple(self.instead.get(name, name) for name in node.inputs)
            node = node if inputs == node.inputs else replace(node, inputs=inputs)
            first = seen.setdefault(self.equality_key_of(node), node)
            pairs = dict(zip(node.outputs, first.outputs, strict=True))
            if first is not node:
                self.equal.update(pairs)
            if first is node or self.promised & pairs.keys() or self.must_stay_in_kernel(node):
                nodes.append(node)
            else:
                self.instead.update(pairs)
        return self.graph.with_nodes(nodes)

    def equality_key_of(self, node: Node) -> object:
        """Return a key that is equal for nodes with equal results. ``repr`` distinguishes 0, 0.0 and -0.0. Nodes with
        subgraphs have unique keys."""
        if any(map(_contains_subgraph, node.attrs.values())):
            return id(node)
        inputs = tuple(self.equal.get(name, name) for name in node.inputs)
        return node.op, inputs, repr(dict(node.attrs)), tuple(self.graph.types.get(name) for name in node.outputs)

    def must_stay_in_kernel(self, node: Node) -> bool:
        """Test whether the node's result must stay inside a kernel, because a requantisation reads it.

        Such a node is computed in each kernel; its requantisation may still be merged with an equal one."""
        readers: Iterable[Node] = self.readers.get(node.outputs[0], ())
        return not registry.get(node.op).elementwise and any(reader.op in MANDATORY for reader in readers)

    def merge_constants(self) -> None:
        """Map each constant to the first constant with equal type and data."""
        first: dict[object, str] = {}
        for name, array in self.graph.consts.items():
            original = first.setdefault((self.graph.types[name], array.tobytes()), name)
            if original != name:
                self.equal[name] = original
                if name not in self.promised:
                    self.instead[name] = original


COMMON_SUBEXPRESSIONS_PASS = Pass("common_subexpressions", merge_common_subexpressions, 3)


def _contains_subgraph(attr: Attr) -> bool:
    """Test whether an attribute contains a subgraph."""
    return any(map(_contains_subgraph, attr)) if isinstance(attr, tuple) else isinstance(attr, Graph)


# ---- Recognition of layer norm, which exporters and readers write as means, differences and a square root.
#
# With c = x - mean(x) over the last axis, ``c / sqrt(mean(c * c) + epsilon)``, or c times the inverse of the root, is
# ``layer_norm`` of x. Dequantised data are normalised as integers, because the scale cancels everywhere except in epsilon. With
# option ``requantize=fixed`` the norm, gamma, beta and the following quantisation become one integer operator.

_LAYER_NORM_PLAIN = {"activation": ""}
_VARIANCE = P.op("mean", P.op(("mul", "pow"), name="square"), name="variance")
_SHIFTED = P.op("add", _VARIANCE, P.const("epsilon"), commutative=True, attrs=_LAYER_NORM_PLAIN)


def recognise_layer_norm(graph: Graph, context: PassContext) -> Graph:
    """Replace the operators that compute a layer norm by one ``layer_norm``."""
    rules = (
        (P.op("div", P.any("c"), P.op("sqrt", _SHIFTED), attrs=_LAYER_NORM_PLAIN), _replace_by_layer_norm),
        (
            P.op("mul", P.any("c"), P.op("rsqrt", _SHIFTED), commutative=True, attrs=_LAYER_NORM_PLAIN),
            _replace_by_layer_norm,
        ),
        _INTEGERS,
    )
    rewritten = rewrite(graph, rules)
    return rewrite_layer_norms_to_fixed_point(rewritten) if context.options.get("requantize") == "fixed" else rewritten


def rewrite_layer_norms_to_fixed_point(graph: Graph) -> Graph:
    """Replace each ``layer_norm`` of integers, with gamma, beta and the following ``quantize``, by ``qlayer_norm``."""
    return rewrite(rewrite(graph, (_INTEGERS,)), _qlayer_norm_rules())


def _replace_by_layer_norm(match: Match) -> Replacement | None:
    """Replace c / sqrt(mean(c * c) + epsilon), where c = x - mean(x) over the last axis, by ``layer_norm`` of x."""
    centred = match.scope.producer(match["c"])
    mean = match.scope.producer(centred.inputs[1]) if centred is not None and centred.op == "sub" else None
    if centred is None or mean is None or mean.op != "mean" or mean.inputs[0] != centred.inputs[0]:
        return None
    kind, epsilon = match.type(centred.inputs[0]), match.const("epsilon")
    over_rows = all(_reduces_last_axis(node, len(kind.shape)) for node in (mean, match.nodes["variance"]))
    if not over_rows or not _is_square(match, match.nodes["square"]) or epsilon.size != 1 or epsilon.item() <= 0:
        return None
    if (
        kind.dtype != "float32"
        or centred.attrs.get("activation", "")
        or not 0 < kind.shape[-1] <= LAYER_NORM_MOST_DEPTH
    ):
        return None
    match.emit("layer_norm", (centred.inputs[0],), {"epsilon": float(epsilon.item())})
    return match.replacement()


def _reduces_last_axis(mean: Node, rank: int) -> bool:
    """Test whether a mean is over the last axis only and keeps it with extent 1."""
    axes = tuple(axis % rank for axis in mean.attr("axes"))
    return axes == (rank - 1,) and bool(mean.attr("keepdims"))


def _is_square(match: Match, square: Node) -> bool:
    """Test whether the node ``square`` computes the square of the captured value c."""
    if square.inputs[0] != match["c"] or square.attrs.get("activation", ""):
        return False
    if square.op == "mul":
        return square.inputs[1] == match["c"]
    exponent = match.scope.consts.get(square.inputs[1])
    return exponent is not None and bool((exponent == 2).all())


def _absorb_dequantize_before_layer_norm(match: Match) -> Replacement | None:
    """Normalise the integers q of x = scale (q - zero) instead of x: ``layer_norm(x, epsilon) = layer_norm(q, epsilon /
    scale^2)``."""
    scale = match.nodes["real"].attr("scale")
    kind = match.type(match["x"])
    if kind.dtype not in DTYPES or len(scale) != 1 or kind.shape[-1] > QUANTISED_DEPTH:
        return None
    epsilon = match.root.attr("epsilon") / float(scale[0]) ** 2
    match.emit("layer_norm", (match["x"],), {"epsilon": epsilon})
    return match.replacement()


def _qlayer_norm_rules() -> tuple[Rule, ...]:
    """Return rules that merge ``quantize`` of a ``layer_norm``, without gamma and beta, with gamma, or with both."""
    normal = P.op("layer_norm", P.any("x"), name="normal")
    scaled = P.op("mul", normal, P.const("gamma"), commutative=True, attrs=_LAYER_NORM_PLAIN)
    forms = (normal, scaled, P.op("add", scaled, P.const("beta"), commutative=True, attrs=_LAYER_NORM_PLAIN))
    return tuple(
        (P.op("quantize", form, attrs={"axis": None, "rounding": Ties.EVEN}), _replace_by_qlayer_norm) for form in forms
    )


def _replace_by_qlayer_norm(match: Match) -> Replacement | None:
    """Merge a layer norm of integers, gamma, beta and the following quantisation into ``qlayer_norm``."""
    kind, epsilon = match.type(match["x"]), match.nodes["normal"].attr("epsilon")
    if kind.dtype not in DTYPES or kind.shape[-1] > QUANTISED_DEPTH:
        return None
    depth, dtype = kind.shape[-1], match.root.attr("out_dtype")
    result = Quant(match.root.attr("scale"), match.root.attr("zero_point"))
    gamma, beta = (
        _expand_captured_constant_by_channel(match, *argument, depth) for argument in (("gamma", 1.0), ("beta", 0.0))
    )
    # qlayer_norm adds epsilon to depth**2 times the variance: depth * sum(x**2) - sum(x)**2.
    added = epsilon * depth * depth
    if match.type(match.output).shape != kind.shape or added >= MOST_EPSILON or dtype not in DTYPES:
        return None
    integer_norm = (
        quantise_affine(gamma, beta, depth, result, dtype) if gamma is not None and beta is not None else None
    )
    if integer_norm is None:
        return None
    factors = match.constant(f"{match.output}.factors", integer_norm.factors)
    terms = match.constant(f"{match.output}.terms", integer_norm.terms)
    match.emit("qlayer_norm", (match["x"], factors, terms), qlayer_norm_attrs(integer_norm, added, dtype))
    return match.replacement()


def _expand_captured_constant_by_channel(
    match: Match, capture: str, default: float, channel_count: int
) -> Array | None:
    """Return the captured constant as one number per channel, or ``default`` for each channel if nothing was captured.

    Return None if the constant differs within a channel."""
    if capture not in match.values:
        return np.full(channel_count, default)
    data = match.const(capture)
    by_channel = data.size == 1 or (data.size == channel_count and data.shape[-1] == channel_count)
    return np.broadcast_to(data.reshape(-1), (channel_count,)) if by_channel else None


_INTEGERS: Rule = (
    P.op("layer_norm", P.op("dequantize", P.any("x"), name="real", shared=True)),
    _absorb_dequantize_before_layer_norm,
)
LAYER_NORM_PASS = Pass("layer_norm", recognise_layer_norm, 2)


# ---- Canonicalisation: remove identities and merge successive operators.

SCALING_LEVEL = 3
"""Optimisation level from which scales are folded into layers."""
_SAME_SHAPE = ("reshape", "cast", "slice", "pad", "concat")
"""Operators that are identities if the result has the type of the operand."""
_CANONICALISE_PLAIN: dict[str, Attr] = {"activation": ""}
_CLAMPS = ("relu", "clip")
_REDUCTIONS = ("mean", "max", "min")


def canonicalise(graph: Graph, context: PassContext) -> Graph:
    """Apply all rules of canonical form until none applies.

    The rules that fold scales into a layer need the optimisation level ``SCALING_LEVEL``."""
    scaling = (scale_folding_rules,) if context.opt_level >= SCALING_LEVEL else ()
    families = (_identity_rules, _merging_rules, reshape_rules, padding_rules, *scaling, matmul_transpose_rules)
    return rewrite(graph, tuple(rule for family in families for rule in family()))


def _identity_rules() -> tuple[Rule, ...]:
    """Return rules that remove operators without effect."""
    return (
        (P.op(_SAME_SHAPE, P.any("x")), _remove_identity),
        (
            P.op(("max_pool2d", "avg_pool2d"), P.any("x"), attrs={**_CANONICALISE_PLAIN, "kernel": (1, 1)}),
            _remove_identity,
        ),
        (P.op(_REDUCTIONS, P.any("x")), _replace_reduction_by_reshape),
        (P.op("clip", P.any("x"), attrs={"minimum": -inf, "maximum": inf}), _remove_identity),
        (P.op("add", P.any("x"), P.const("c"), attrs=_CANONICALISE_PLAIN, commutative=True), _remove_neutral_zero),
        (P.op("sub", P.any("x"), P.const("c"), attrs=_CANONICALISE_PLAIN), _remove_neutral_zero),
        (P.op("mul", P.any("x"), P.const("c"), attrs=_CANONICALISE_PLAIN, commutative=True), _remove_neutral_one),
        (P.op(("div", "pow"), P.any("x"), P.const("c"), attrs=_CANONICALISE_PLAIN), _remove_neutral_one),
    )


def _merging_rules() -> tuple[Rule, ...]:
    """Return rules that merge two successive transpositions, clamps or paddings."""
    return (
        *transpose_merging_rules(),
        (P.op(_CLAMPS, P.op(_CLAMPS, P.any("x"), name="first")), _merge_clamps),
        (P.op("pad", P.op("pad", P.any("x"), name="first")), _merge_pads),
    )


# ---------------------------------------------------------------- identities


def _remove_identity(match: Match) -> Replacement | None:
    """Remove an operator that only selects elements, if its result has the type of its operand: then it selects all
    elements in order."""
    return match.same("x") if match.has_type_of_root("x") else None


def _replace_reduction_by_reshape(match: Match) -> Replacement | None:
    """Replace a reduction over axes of extent 1 by a reshape, because it changes nothing but the shape."""
    source, result = match.type(match["x"]), match.type(match.output)
    if source.size != result.size or (source.dtype, source.quant) != (result.dtype, result.quant):
        return None
    match.emit("reshape", (match["x"],), {"shape": result.shape})
    return match.replacement()


def _remove_neutral_zero(match: Match) -> Replacement | None:
    return _remove_neutral_operand(match, 0)


def _remove_neutral_one(match: Match) -> Replacement | None:
    return _remove_neutral_operand(match, 1)


def _remove_neutral_operand(match: Match, neutral_element: int) -> Replacement | None:
    """Remove an operator whose constant operand is the operator's neutral element.

    A quantised constant is not compared, because its integers are not the real numbers that it represents."""
    quantised = match.type(match["c"]).quant is not None
    return (
        match.same("x")
        if match.has_type_of_root("x") and not quantised and (match.const("c") == neutral_element).all()
        else None
    )


# ---------------------------------------------------------------- successive operators


def _merge_clamps(match: Match) -> Replacement | None:
    """Merge two successive clamps.

    Their bounds are real numbers. Clamps of quantised operands are therefore not merged, unless their bounds apply to
    the stored integers."""
    first, second = match.nodes["first"], match.root
    stored = first.attrs.get("rounding") == Rounding.NONE == second.attrs.get("rounding")
    if not dtypes.is_float(match.type(match["x"]).dtype) and not stored:
        return None
    (a, b), (low, high) = _clamp_bounds_of(match, "first"), _clamp_bounds_of(match, "")
    least, most = min(max(a, low), high), max(min(b, high), low)
    rounding: Attr = second.attrs.get("rounding", Rounding.DOUBLE)
    if (least, most) == (0.0, inf):
        match.emit("relu", (match["x"],), {"rounding": rounding})
    else:
        match.emit("clip", (match["x"],), {"minimum": least, "maximum": most, "rounding": rounding})
    return match.replacement()


def _clamp_bounds_of(match: Match, capture: str) -> tuple[float, float]:
    """Return the lower and upper bound of the relu or clip ``capture``, or of the root of the match if ``capture`` is
    empty."""
    node = match.nodes[capture] if capture else match.root
    return (0.0, inf) if node.op == "relu" else (node.attr("minimum"), node.attr("maximum"))


def _merge_pads(match: Match) -> Replacement | None:
    """Merge two successive paddings with the same value."""
    first = match.nodes["first"]
    if first.attr("value") != match.root.attr("value"):
        return None
    pairs = zip(first.attr("padding"), match.root.attr("padding"), strict=True)
    padding = tuple((a + c, b + d) for (a, b), (c, d) in pairs)
    match.emit("pad", (match["x"],), {**match.root.attrs, "padding": padding})
    return match.replacement()


CANONICALISE_PASS = Pass("canonicalise", canonicalise, 2)
