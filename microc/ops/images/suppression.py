"""``suppress``: the best boxes of which no two overlap too much (non-maximum suppression).

In every turn the box with the largest score is taken, the first of equals; those that overlap it go, or (``sigma`` above zero)
lose score by exp(-overlap**2 / (2 sigma)) and go where too little is left. Boxes are (top, left, bottom, right). Sources: TFLite
``non_max_suppression.h``; TFLite Micro ``detection_postprocess.cc``; Bodla et al., "Soft-NMS" (2017).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from microc import te
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import flag, integer, real
from microc.ops.registry import Case, OpCall, OpDef
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

_GONE = float("-inf")
_ZERO = np.float32(0)


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    boxes, scores = types
    if boxes.dtype != "float32" or scores.dtype != "float32" or boxes.shape != (*scores.shape, 4) or not scores.size:
        raise ModelError(f"suppress of boxes {boxes.dtype} {boxes.shape} with scores {scores.dtype} {scores.shape}")
    most = attrs["most"]
    if len(scores.shape) != 1 or most < 1 or not 0 <= attrs["overlap"] <= 1 or attrs["sigma"] < 0:
        raise ModelError(f"suppress to {most} of {scores.shape} boxes, an overlap of {attrs['overlap']}")
    return TensorType((most,), "int32"), TensorType((most,), "float32"), TensorType((), "int32")


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    boxes, left = arrays[0], np.where(np.isnan(arrays[1]), np.float32(_GONE), arrays[1])
    places, scores = np.zeros(attrs["most"], np.int32), np.zeros(attrs["most"], np.float32)
    count, limit = 0, np.float32(attrs["overlap"])
    while count < attrs["most"]:
        place = int(np.argmax(left))
        enough = left[place] >= attrs["score"] if attrs["score_inclusive"] else left[place] > attrs["score"]
        if left[place] == _GONE or not enough:
            break
        places[count], scores[count], count = place, left[place], count + 1
        share = _overlap_array(boxes, boxes[place])
        if attrs["sigma"] > 0:
            left = left * np.exp(np.float32(-0.5 / attrs["sigma"]) * share * share)
        left = np.where(share >= limit if attrs["overlap_inclusive"] else share > limit, np.float32(_GONE), left)
        left[place] = _GONE
    return places, scores, np.array(count, np.int32)


def _overlap_array(boxes: Array, box: Array) -> Array:
    """Each box's intersection with ``box`` over their union; of boxes without area, zero."""
    top, leftmost = np.maximum(boxes[:, 0], box[0]), np.maximum(boxes[:, 1], box[1])
    bottom, right = np.minimum(boxes[:, 2], box[2]), np.minimum(boxes[:, 3], box[3])
    common = np.maximum(bottom - top, _ZERO) * np.maximum(right - leftmost, _ZERO)
    areas, area = (np.asarray((b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])) for b in (boxes, box))
    whole = np.where((areas > 0) & (area > 0), areas + area - common, np.float32(1))
    return np.asarray(np.where((areas > 0) & (area > 0), common / whole, _ZERO), np.float32)


def _overlap(x: Buffer, n: Expr, box: Sequence[Expr]) -> tuple[list[tuple[Var, Expr]], Expr]:
    """Names, and the same for box ``n``."""
    own = [Var(name, "float32") for name in ("top", "leftmost", "bottom", "right")]
    lets: list[tuple[Var, Expr]] = [(var, x[n, side]) for side, var in enumerate(own)]
    area, other, common = Var("area", "float32"), Var("other", "float32"), Var("common", "float32")
    sides = [
        ir.maximum(ir.minimum(own[k + 2], box[k + 2]) - ir.maximum(own[k], box[k]), ir.const(0.0, "float32"))
        for k in (0, 1)
    ]
    lets += [(area, (own[2] - own[0]) * (own[3] - own[1])), (other, (box[2] - box[0]) * (box[3] - box[1]))]
    lets.append((common, sides[0] * sides[1]))
    flat = ir.Bin("or", area <= 0.0, other <= 0.0)
    one = ir.const(1.0, "float32")
    return lets, ir.select(flat, ir.const(0.0, "float32"), common / ir.select(flat, one, area + other - common))


def _compute(call: OpCall) -> tuple[te.Tensor, ...]:
    """A pass that finds the best box and a pass over those that are left, a turn; scores that are left are a workspace."""
    boxes, scores = call.present
    attrs, size, most = call.attrs, scores.type.size, int(call.attrs["most"])

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        (x, given), (places, kept, count, left) = operands, results
        n, m, d, e, zero = Var("n"), Var("m"), Var("d"), Var("e"), ir.const(0, "int32")
        best, place = Buffer("best", (1,), "float32", "register"), Buffer("place", (1,), "int32", "register")
        value, rest, share = Var("value", "float32"), Var("rest", "float32"), Var("share", "float32")
        gone = ir.const(_GONE, "float32")
        clear = ir.seq(ir.Store(places, (e,), zero), ir.Store(kept, (e,), ir.const(0.0, "float32")))
        start = ir.seq(
            ir.loops([(n, size)], ir.Store(left, (n,), given[n])),
            ir.loops([(e, most)], clear),
            ir.Store(count, (zero,), zero),
        )
        better = ir.seq(ir.Store(best, (zero,), value), ir.Store(place, (zero,), m))
        find = ir.loops([(m, size)], ir.Let(value, left[m], ir.If(value > best[0], better)))
        box = [Var(f"box_{side}", "float32") for side in ("top", "left", "bottom", "right")]
        j = Var("j")
        lets, overlap = _overlap(x, j, box)
        weak = ir.binary("ge" if attrs["overlap_inclusive"] else "gt", share, attrs["overlap"])
        faded = (
            rest * ir.call("exp", share * share * float(np.float32(-0.5 / attrs["sigma"]))) if attrs["sigma"] else rest
        )
        change = ir.Let(share, overlap, ir.Store(left, (j,), ir.select(weak, gone, faded)))
        for var, bound in reversed(lets):
            change = ir.Let(var, bound, change)
        others = ir.loops([(j, size)], ir.Let(rest, left[j], ir.If(rest > gone, change)))
        body: Stmt = others
        for side, var in reversed(list(enumerate(box))):
            body = ir.Let(var, x[place[0], side], body)
        take = ir.seq(
            ir.Store(places, (count[0],), place[0]),
            ir.Store(kept, (count[0],), best[0]),
            ir.Store(count, (zero,), count[0] + 1),
            body,
            ir.Store(left, (place[0],), gone),
        )
        enough = ir.binary("ge" if attrs["score_inclusive"] else "gt", best[0], attrs["score"])
        turn = ir.seq(
            ir.Store(best, (zero,), gone),
            ir.Store(place, (zero,), zero),
            find,
            ir.If(ir.Bin("and", best[0] > gone, enough), take),
        )
        return ir.seq(start, ir.loops([(d, most)], ir.Alloc(best, ir.Alloc(place, turn))))

    results = (
        ("places", (most,), "int32"),
        ("kept", (most,), "float32"),
        ("count", (1,), "int32"),
        ("left", (size,), "float32"),
    )
    return te.extern("suppress", (boxes.tensor((size, 4)), scores.tensor((size,))), results, build)[:3]


def _cases() -> Iterable[Case]:
    rng = np.random.default_rng(4)
    corner, extent = rng.uniform(0, 4, (12, 2)), rng.uniform(0.5, 3, (12, 2))
    boxes = np.concatenate([corner, corner + extent], 1).astype(np.float32)
    boxes[3, 2] = boxes[3, 0]  # without area
    scores = rng.normal(size=12).astype(np.float32)
    scores[5], scores[6], scores[9] = np.nan, np.inf, scores[2]
    types = (TensorType((12, 4), "float32"), TensorType((12,), "float32"))
    for most, overlap, least, sigma in (
        (5, 0.3, -1.0, 0.0),
        (20, 0.5, 0.0, 0.0),
        (12, 1.0, 0.1, 0.5),
        (3, 0.0, -9.0, 0.0),
    ):
        attrs: dict[str, Attr] = {"most": most, "overlap": overlap, "score": least, "sigma": sigma}
        for inclusive in (False, True):
            attrs = {**attrs, "score_inclusive": inclusive, "overlap_inclusive": inclusive}
            finite = np.where(scores == np.inf, np.float32(3), scores) if sigma else scores
            yield Case(attrs, types, arrays=(boxes, finite), tolerance=1e-6, name=f"{most} {sigma}")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "suppress",
        infer=_infer,
        reference=_reference,
        compute=_compute,
        cases=_cases,
        attrs={
            "most": integer("boxes that are kept", least=1),
            "overlap": real("what a kept box may share with another at most"),
            "score": real("what a kept box has at least"),
            "sigma": real("of soft suppression; 0: hard", 0.0),
            "score_inclusive": flag("the score itself is enough"),
            "overlap_inclusive": flag("the overlap itself is too much"),
        },
        operand_names=("boxes", "scores"),
    ),
)
