"""Spellings of ONNX's operators that give a tensor another shape or order, and of those that only speak about shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import MOVABLE, Application, Spelling


def shape(application: Application) -> None:
    """Shape, from axis ``start`` to ``end``: known when compiling."""
    extents, attributes = application.shape(0), application.operator.attributes
    start, end = attributes.integer("start", 0), attributes.integer("end", len(extents))
    application.result_constant(np.array(extents[slice(start, end)], np.int64))


def size(application: Application) -> None:
    """Size: known when compiling."""
    application.result_constant(np.array(application.type(application.value(0)).size, np.int64))


def identity(application: Application) -> None:
    """Identity, and Dropout, which is one in inference."""
    if application.operator.code == "Dropout":
        if application.has(2) and application.constant(2).any() and _ratio(application) != 0:
            application.refuse("dropout in training", "export the network for inference")
        if application.output(1):
            application.result_constant(np.ones(application.shape(0), np.bool_), 1)
    application.result_alias(application.value(0))


def _ratio(application: Application) -> float:
    """The share of elements that a Dropout drops."""
    return float(application.constant(1).reshape(-1)[0]) if application.has(1) else 0.5


def target_shape(application: Application, given: Sequence[int]) -> tuple[int, ...]:
    """Reshape's target: 0 keeps an extent (unless ``allowzero``), one -1 takes what is left."""
    extents = application.shape(0)
    keep = not application.operator.attributes.flag("allowzero")
    found = [extents[k] if e == 0 and keep and k < len(extents) else e for k, e in enumerate(given)]
    if found.count(-1) > 1 or any(e < -1 for e in found):
        application.broken(f"shape {tuple(given)}")
    if -1 in found:
        rest = prod(e for e in found if e != -1)
        found[found.index(-1)] = prod(extents) // rest if rest else 0
    return tuple(found)


def reshape(application: Application) -> None:
    """Reshape."""
    application.result_reshape(application.value(0), target_shape(application, application.integers(1)))


def flatten(application: Application) -> None:
    """Flatten to a matrix."""
    extents = application.shape(0)
    axis = application.operator.attributes.integer("axis", 1)
    axis = axis if axis == len(extents) else application.axis(axis, max(len(extents), 1))
    application.result_reshape(application.value(0), (prod(extents[:axis]), prod(extents[axis:])))


def given_axes(application: Application, since: int = 13) -> tuple[int, ...] | None:
    """Axes from the attribute or, from opset ``since`` on, input 1; None where they are left out."""
    if application.opset >= since:
        return application.integers(1) if application.has(1) else None
    attributes = application.operator.attributes
    return attributes.integers("axes") if "axes" in attributes else None


def squeeze(application: Application) -> None:
    """Squeeze: without axes, all extents of one go."""
    extents, given = application.shape(0), given_axes(application)
    ones = tuple(k for k, e in enumerate(extents) if e == 1)
    axes = ones if given is None else application.axes(given, len(extents))
    if any(extents[axis] != 1 for axis in axes):
        application.broken(f"axes {axes} of shape {extents} are not all of one element")
    application.result_reshape(application.value(0), tuple(e for k, e in enumerate(extents) if k not in axes))


def unsqueeze(application: Application) -> None:
    """Unsqueeze."""
    given = given_axes(application)
    if given is None:
        application.broken("the axes are missing")
    extents = list(application.shape(0))
    for axis in sorted(application.axes(given, len(extents) + len(given))):
        extents.insert(axis, 1)
    application.result_reshape(application.value(0), tuple(extents))


def transpose(application: Application) -> None:
    """Transpose: the axes are reversed unless given."""
    data, rank = application.value(0), len(application.shape(0))
    order = application.operator.attributes.integers("perm", tuple(reversed(range(rank))))
    if sorted(order) != list(range(rank)):
        application.broken(f"perm {order} of a tensor of rank {rank}")
    stored = application.builder.stored(data)
    if stored is not None:
        application.store(f"{data}_transposed", stored.transposed(order), application.output())
    else:
        application.result("transpose", (data,), {"axes": order})


def depth_to_space(application: Application) -> None:
    """DepthToSpace: blocks of channels become squares of pixels."""
    attributes = application.operator.attributes
    mode, block = attributes.text("mode", "DCR"), attributes.integer("blocksize")
    batch, channels, height, width = image(application)
    if mode not in ("DCR", "CRD") or block < 1 or channels % (block * block):
        application.broken(f"blocks of {block} (mode {mode}) for {channels} channels")
    depth = channels // (block * block)
    split_shape = (batch, block, block, depth) if mode == "DCR" else (batch, depth, block, block)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    parts = application.reshaped(application.value(0), (*split_shape, height, width))
    moved = application.emit("transpose", (parts,), {"axes": order})
    application.result_reshape(moved, (batch, depth, height * block, width * block))


def space_to_depth(application: Application) -> None:
    """SpaceToDepth: squares of pixels become blocks of channels."""
    block = application.operator.attributes.integer("blocksize")
    batch, channels, height, width = image(application)
    if block < 1 or height % block or width % block:
        application.broken(f"blocks of {block} for {height} x {width} pixels")
    view = (batch, channels, height // block, block, width // block, block)
    mode = application.operator.attributes.text("mode", "DCR")
    parts = application.reshaped(application.value(0), view)
    order = (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = application.emit("transpose", (parts,), {"axes": order})
    application.result_reshape(moved, (batch, channels * block * block, height // block, width // block))


def image(application: Application) -> tuple[int, int, int, int]:
    """The shape of input 0, which must be a batch of images."""
    extents = application.shape(0)
    if len(extents) != 4:
        application.broken(f"data of shape {extents}")
    return extents[0], extents[1], extents[2], extents[3]


def constant_of(application: Application) -> Array:
    """The value of a Constant node."""
    attributes = application.operator.attributes
    names = attributes.names()
    if len(names) != 1:
        application.broken(f"a constant with attributes {', '.join(names) or 'none'}")
    match names[0]:
        case "value":
            return attributes.tensor("value")
        case "value_float":
            return np.array(attributes.real("value_float"), np.float32)
        case "value_floats":
            return np.array(attributes.reals("value_floats"), np.float32)
        case "value_int":
            return np.array(attributes.integer("value_int"), np.int64)
        case "value_ints":
            return np.array(attributes.integers("value_ints"), np.int64)
    return application.refuse(f"a constant given as {names[0]}", "export it as a dense tensor of numbers")


def constant(application: Application) -> None:
    """Constant."""
    application.result_constant(constant_of(application))


SPELLINGS: Mapping[str, Spelling] = {
    "Constant": Spelling(constant, ()),
    "DepthToSpace": Spelling(depth_to_space, MOVABLE),
    "Dropout": Spelling(identity, MOVABLE),
    "Flatten": Spelling(flatten, MOVABLE),
    "Identity": Spelling(identity, MOVABLE),
    "Reshape": Spelling(reshape, MOVABLE),
    "Shape": Spelling(shape, MOVABLE),
    "Size": Spelling(size, MOVABLE),
    "SpaceToDepth": Spelling(space_to_depth, MOVABLE),
    "Squeeze": Spelling(squeeze, MOVABLE),
    "Transpose": Spelling(transpose, MOVABLE),
    "Unsqueeze": Spelling(unsqueeze, MOVABLE),
}
