"""Rules that give a ``pad`` to the convolution or pool behind it, which pads as it reads."""

from __future__ import annotations

from math import inf

from microc import dtypes
from microc.errors import ModelError
from microc.graph.ir import Attr, Node, TensorType
from microc.graph.match import Match, P, Replacement, Rule
from microc.ops import registry

_POOLS = ("max_pool2d", "avg_pool2d")


def padding_rules() -> tuple[Rule, ...]:
    """``pad`` before conv2d, max_pool2d and avg_pool2d."""
    return ((P.op("conv2d"), _into_conv), (P.op(_POOLS), _into_pool))


def _into_conv(match: Match) -> Replacement | None:
    """A convolution pads with real zero: 0, the zero point of quantised data, or what ``pad_value`` says of plain integers."""
    pad = _pad_before(match)
    if pad is None:
        return None
    kind, attrs, value = match.type(pad.inputs[0]), dict(match.root.attrs), pad.attr("value")
    if kind.quant is not None and match.type(match.output).quant is not None:
        if len(kind.quant.zero_point) != 1 or value != kind.quant.zero_point[0]:
            return None
    elif any(match.root.attr("padding")):
        if value != attrs.get("pad_value", 0):
            return None
    else:
        attrs["pad_value"] = value
    return _absorbed(match, pad, attrs)


def _into_pool(match: Match) -> Replacement | None:
    """Padding never is a maximum: the lowest number may pad. A mean counts zeros as such, of floats."""
    pad = _pad_before(match)
    if pad is None:
        return None
    kind, attrs, value = match.type(pad.inputs[0]), dict(match.root.attrs), pad.attr("value")
    if match.root.op == "max_pool2d":
        lowest = -inf if dtypes.is_float(kind.dtype) else dtypes.int_range(kind.dtype)[0]
        return _absorbed(match, pad, attrs) if value == lowest else None
    counted = attrs.get("count_include_pad") or not any(match.root.attr("padding"))
    if not dtypes.is_float(kind.dtype) or value != 0 or not counted:
        return None
    return _absorbed(match, pad, {**attrs, "count_include_pad": True})


def _pad_before(match: Match) -> Node | None:
    """The node that pads height and width of the data alone, and changes nothing else about them."""
    pad = match.scope.producer(match.root.inputs[0])
    if pad is None or pad.op != "pad" or len(pad.attr("padding")) != 4:
        return None
    height, width = _spatial(match)
    others = [pair for axis, pair in enumerate(pad.attr("padding")) if axis not in (height, width)]
    same = match.type(pad.inputs[0]).quant == match.type(pad.outputs[0]).quant
    return pad if same and not any(sum(pair) for pair in others) else None


def _spatial(match: Match) -> tuple[int, int]:
    return (2, 3) if match.root.attrs.get("layout") == "NCHW" else (1, 2)


def _absorbed(match: Match, pad: Node, attrs: dict[str, Attr]) -> Replacement | None:
    """The operator on the data as they were before padding, if inference agrees."""
    (above, below), (before, after) = (pad.attr("padding")[axis] for axis in _spatial(match))
    top, left, bottom, right = match.root.attr("padding")
    attrs["padding"] = (top + above, left + before, bottom + below, right + after)
    inputs = (pad.inputs[0], *match.root.inputs[1:])
    types = [match.type(name) for name in inputs if name]
    if not _fits(match.root.op, attrs, types, match.type(match.output)):
        return None
    match.emit(match.root.op, inputs, attrs)
    return match.replacement()


def _fits(op: str, attrs: dict[str, Attr], types: list[TensorType], wanted: TensorType) -> bool:
    """Whether the operator takes these attributes, and gives the shape it gave before."""
    try:
        return registry.get(op).infer(attrs, types)[0].shape == wanted.shape
    except ModelError:
        return False
