"""Spellings of TFLite's operators that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import MOVABLE, Spelling, activation, check_alike
from microc.graph.ir import Attr
from microc.ops.rounding import Ties

_ONE_ELEMENT = "microc knows slices of computed size only where together they replace one element of a list"


def reshape(application: Application) -> None:
    """RESHAPE: the shape is an operand, an option, or (where the network computes it) the declared one."""
    data, target = _moved(application), application.target()
    if application.has(1) and application.value(1) in application.builder.consts:
        shape = application.integers(1)
    elif not application.has(1) and application.operator.options.kind:
        shape = application.operator.options.fields("ReshapeOptions").integers("NewShape")
    else:
        shape = tuple(-1 if axis in target.unknown else extent for axis, extent in enumerate(target.type.shape))
    _result(application, data, _completed(application, shape, _shape(application, data)))


def _moved(application: Application) -> str:
    """The operand; of a complex one its parts, an axis more."""
    source = application.source(0)
    if source.type.dtype != "complex64":
        return application.moved(0)
    if source.name not in application.builder.complexes:
        application.refuse(f"{source.name!r} of complex64", "only what RFFT2D makes may be complex")
    return application.builder.complexes[source.name]


def _shape(application: Application, data: str) -> tuple[int, ...]:
    """The shape of the operand; a complex one's parts do not count."""
    shape = application.type(data).shape
    return shape[:-1] if application.source(0).name in application.builder.complexes else shape


def _result(application: Application, data: str, shape: tuple[int, ...]) -> None:
    """The operand in a new shape is the result; of a complex one its parts are."""
    complexes = application.builder.complexes
    if application.source(0).name in complexes:
        complexes[application.target().name] = application.reshaped(data, (*shape, 2))
    else:
        application.result_reshape(data, shape)


def same_elements(application: Application) -> None:
    """SQUEEZE and EXPAND_DIMS: the axes follow from the operator, the elements stay."""
    data = _moved(application)
    shape = _shape(application, data)
    if application.operator.code == "EXPAND_DIMS":
        places = application.integers(1) if application.has(1) else (0,)
        if len(places) != 1:
            application.broken(f"{len(places)} axes, where TFLite takes one")
        axis = application.axis(places[0], len(shape) + 1)
        _result(application, data, (*shape[:axis], 1, *shape[axis:]))
        return
    dims = application.operator.options.fields("SqueezeOptions").integers("SqueezeDims")
    axes = {application.axis(axis, len(shape)) for axis in dims}
    axes = axes or {axis for axis, extent in enumerate(shape) if extent == 1}
    _result(application, data, tuple(extent for axis, extent in enumerate(shape) if axis not in axes))


def concatenation(application: Application) -> None:
    """CONCATENATION along one axis, of operands with the output's quantisation."""
    fields = application.operator.options.fields("ConcatenationOptions")
    if activation(application, fields.integer("FusedActivationFunction")):
        application.refuse("a fused activation", "make the activation an operator of its own")
    if any(application.source(k).name in application.builder.pieces for k in range(len(application.operator.inputs))):
        _replaced_element(application)
        return
    values = [application.moved(position) for position in range(len(application.operator.inputs))]
    if not values:
        application.broken("input 0 is missing")
    if application.target().type.dtype == "uint8":
        values = [_rescaled(application, value) for value in values]
    else:
        check_alike(application, range(len(values)))
    axis = application.axis(fields.integer("Axis"), len(application.type(values[0]).shape))
    application.result("concat", values, {"axis": axis})


def _rescaled(application: Application, value: str) -> str:
    """uint8 with the output's scale, to which LiteRT's concatenation brings its operands."""
    own, quant = application.type(value).quant, application.target().type.quant
    if own == quant or own is None or quant is None:
        return value
    attrs: dict[str, Attr] = {"scale": own.scale, "zero_point": own.zero_point, "axis": None}
    real = application.emit("dequantize", (value,), attrs)
    attrs = {
        "scale": quant.scale,
        "zero_point": quant.zero_point,
        "axis": None,
        "out_dtype": "uint8",
        "rounding": Ties.AWAY,
    }
    return application.emit("quantize", (real,), attrs, like=replace(application.type(value), quant=quant))


def _replaced_element(application: Application) -> None:
    """What comes before a place, an element, and what comes behind it, all of one tensor: that tensor with the element replaced.

    Converters write lists so. Where the parts together are as large as the tensor, the element stands where the first ends.
    """
    pieces = application.builder.pieces
    if len(application.operator.inputs) != 3:
        application.refuse("slices of computed size", _ONE_ELEMENT)
    first, last = (pieces.get(application.source(k).name) for k in (0, 2))
    item = application.value(1)
    if first is None or last is None or first.data != last.data or application.source(1).name in pieces:
        application.refuse("slices of computed size", _ONE_ELEMENT)
    start = application.builder.consts.get(first.begin)
    if start is None or start.any() or last.begin in application.builder.consts:
        application.refuse("slices of computed size", _ONE_ELEMENT)
    application.result("dynamic_update_slice", (first.data, item, first.size), {})


def pack(application: Application) -> None:
    """PACK: operands of one shape along a new axis."""
    fields = application.operator.options.fields("PackOptions", required=True)
    values = [application.moved(position) for position in range(len(application.operator.inputs))]
    if not values:
        application.broken("input 0 is missing")
    check_alike(application, range(len(values)))
    shape = application.type(values[0]).shape
    axis = application.axis(fields.integer("Axis"), len(shape) + 1)
    widened = (*shape[:axis], 1, *shape[axis:])
    if any(application.type(value).shape != shape for value in values):
        application.broken("the operands differ in shape")
    application.result("concat", [application.reshaped(value, widened) for value in values], {"axis": axis})


def tile(application: Application) -> None:
    """TILE: the tensor repeated along every axis."""
    data, multiples = application.moved(0), application.integers(1)
    shape = application.type(data).shape
    if len(multiples) != len(shape) or min(multiples, default=1) < 0:
        application.broken(f"multiples {multiples} of shape {shape}")
    check_alike(application, [0])
    apart = [extent for size in shape for extent in (1, size)]
    wide = tuple(extent for pair in zip(multiples, shape, strict=True) for extent in pair)
    data = application.emit("broadcast_to", (application.reshaped(data, apart),), {"shape": wide})
    application.result_reshape(data, [multiple * size for multiple, size in zip(multiples, shape, strict=True)])


def transpose(application: Application) -> None:
    """TRANSPOSE by a constant permutation."""
    data = application.moved(0)
    rank = len(application.type(data).shape)
    axes = tuple(application.axis(axis, rank) for axis in application.integers(1))
    if sorted(axes) != list(range(rank)):
        application.broken(f"{axes} is no permutation of {rank} axes")
    application.result("transpose", (data,), {"axes": axes})


def pad(application: Application) -> None:
    """PAD (with real zero: the zero point) and PADV2 (with a constant of the data's dtype, stored as the data is)."""
    data, kind = application.moved(0), application.target().type
    rank = len(application.type(data).shape)
    amounts = application.integers(1)
    if len(amounts) != 2 * rank or min(amounts, default=0) < 0:
        application.broken(f"padding {amounts} for {rank} axes")
    check_alike(application, [0])
    value: int | float = 0.0 if kind.dtype == "float32" else 0
    if application.operator.code == "PADV2":
        filler = application.constant(2)
        if filler.size != 1 or str(filler.dtype) != kind.dtype:
            application.broken(f"a padding value of shape {filler.shape} and {filler.dtype}")
        value = filler.reshape(-1)[0].item()
    elif kind.quant is not None:
        value = kind.quant.zero_point[0]
    padding = tuple(zip(amounts[0::2], amounts[1::2], strict=True))
    application.result("pad", (data,), {"padding": padding, "value": value})


def depth_and_space(application: Application) -> None:
    """SPACE_TO_DEPTH and DEPTH_TO_SPACE: blocks of pixels become channels and back."""
    to_depth = application.operator.code == "SPACE_TO_DEPTH"
    options = "SpaceToDepthOptions" if to_depth else "DepthToSpaceOptions"
    block = application.operator.options.fields(options, required=True).integer("BlockSize", 1, 1 << 15)
    data = application.moved(0)
    batch, height, width, depth = application.rank(data, 4)
    if (height % block or width % block) if to_depth else depth % (block * block):
        application.broken(f"blocks of {block} in shape {(batch, height, width, depth)}")
    if to_depth:
        rows, columns = height // block, width // block
        blocked = (batch, rows, block, columns, block, depth)
        shape = (batch, rows, columns, block * block * depth)
    else:
        depth //= block * block
        blocked = (batch, height, width, block, block, depth)
        shape = (batch, height * block, width * block, depth)
    blocks = application.emit("reshape", (data,), {"shape": blocked})
    application.result_reshape(application.emit("transpose", (blocks,), {"axes": (0, 1, 3, 2, 4, 5)}), shape)


def _completed(application: Application, shape: tuple[int, ...], source: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with one -1 resolved from the number of elements."""
    known = prod(extent for extent in shape if extent != -1)
    if any(extent < -1 for extent in shape) or shape.count(-1) > 1 or (shape.count(-1) == 1 and not known):
        application.broken(f"shape {shape}")
    return tuple(prod(source) // known if extent == -1 else extent for extent in shape)


SPELLINGS: Mapping[str, Spelling] = {
    "CONCATENATION": Spelling(concatenation, MOVABLE),
    "DEPTH_TO_SPACE": Spelling(depth_and_space, MOVABLE),
    "EXPAND_DIMS": Spelling(same_elements, (*MOVABLE, "complex64")),
    "PACK": Spelling(pack, MOVABLE),
    "PAD": Spelling(pad, MOVABLE),
    "PADV2": Spelling(pad, MOVABLE),
    "RESHAPE": Spelling(reshape, (*MOVABLE, "complex64")),
    "SPACE_TO_DEPTH": Spelling(depth_and_space, MOVABLE),
    "SQUEEZE": Spelling(same_elements, (*MOVABLE, "complex64")),
    "TILE": Spelling(tile, MOVABLE),
    "TRANSPOSE": Spelling(transpose, MOVABLE),
}
