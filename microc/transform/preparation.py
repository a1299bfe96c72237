"""What a sensor's numbers become before the network takes them: the steps in front of an input, from a camera's frame on.

A frame is cropped, resized, brought to the network's channels and normalised, in this order. Up to the last step it stays in the
frame's own integers; each of crop's, resize's and colour's results is rounded once.

Source: half-pixel centres, as in TensorFlow 2's and PyTorch's resizing (``align_corners=False``); luma after ITU-R BT.601.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import UsageError
from microc.frozen import frozen
from microc.graph.ir import Attr, TensorType
from microc.ops.rounding import Ties

_FRAMED = ("uint8", "int8", "uint16", "int16", "float32", "float64")
_LUMA, _LUMA_BITS = (77, 150, 29), 8
"""0.299, 0.587 and 0.114 in 256ths."""
_BITS = 11
"""Of the weights along one axis: 255 * 2**22 is an int32."""
Refuse = Callable[[str, str], UsageError]
Numbers = tuple[float, ...]


@frozen
class Preparation:
    """``normalize``: mean and deviation, one of each or one for each of the network's channels: (x - mean) / deviation.
    ``colour``: the channels of the frame. ``frame``: its height and width, ``crop``: those of its middle, which is resized to
    what the network takes by the rule ``resize``. What is empty is not done."""

    normalize: tuple[Numbers, Numbers] | None = None
    colour: str = ""
    frame: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resize: str = ""

    def __bool__(self) -> bool:
        return self != Preparation()

    @property
    def is_image(self) -> bool:
        """Whether rows, columns and channels are spoken of."""
        return bool(self.colour or self.frame or self.crop or self.resize)


@frozen
class Step:
    """``op`` makes what the network takes from a value of type ``outer`` and constant ``operands``."""

    op: str
    outer: TensorType
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    operands: tuple[Array, ...] = ()


def preparations(**wishes: Mapping[str, Any]) -> dict[str, Preparation]:
    """By input: the fields of :class:`Preparation`, each by input. What is said of ``*`` holds for all that say nothing else."""
    names = {name for wish in wishes.values() for name in wish}
    return {
        name: Preparation(
            **{field: wish.get(name, wish.get("*")) for field, wish in wishes.items() if {name, "*"} & set(wish)}
        )
        for name in names
    }


def normalising(
    wanted: tuple[Numbers, Numbers], kind: TensorType, axis: int, raw: str, refuse: Refuse
) -> Iterator[Step]:
    """From the network's input of type ``kind`` outwards to numbers of dtype ``raw``: quantised reals are rounded to the nearest
    integer, ties to even. ``axis``: that of channels."""
    if not (dtypes.is_float(kind.dtype) or (kind.quant is not None and kind.quant.axis is None)):
        raise refuse(f"is {kind.dtype} and stands for no reals", "only floats and quantised inputs are normalised")
    mean, deviation = (
        _by_channel(numbers, what, kind, axis, refuse)
        for numbers, what in zip(wanted, ("mean", "deviation"), strict=True)
    )
    if dtypes.is_integer(kind.dtype):
        assert kind.quant is not None
        real = TensorType(kind.shape, "float32", layout=kind.layout)
        attrs: Mapping[str, Attr] = {"scale": kind.quant.scale, "zero_point": kind.quant.zero_point, "axis": None}
        yield Step("quantize", real, {**attrs, "out_dtype": kind.dtype, "rounding": Ties.EVEN})
        kind = real
    dtype = dtypes.to_numpy(kind.dtype)
    if (deviation != 1).any():
        yield Step("mul", kind, {}, ((1 / deviation).astype(dtype),))
    if mean.any():
        yield Step("sub", kind, {}, (mean.astype(dtype),))
    if raw != kind.dtype:
        yield Step("cast", replace(kind, dtype=raw), {"dtype": kind.dtype})


def _by_channel(numbers: Numbers, what: str, kind: TensorType, axis: int, refuse: Refuse) -> Array:
    """One number, or one for each channel, in a shape that broadcasts along ``axis``."""
    rank, count = len(kind.shape), len(set(numbers))
    if len(numbers) > 1 and (not rank or kind.shape[axis] != len(numbers)):
        channels = kind.shape[axis] if rank else 1
        hint = f"give one {what}, or {channels} between commas"
        raise refuse(f"has {channels} channels, {len(numbers)} numbers are given as {what}", hint)
    given = numbers if count > 1 else numbers[:1]
    return np.array(given, np.float64).reshape(
        [len(given) if k == axis % rank else 1 for k in range(rank)] if rank else ()
    )


def framing(wanted: Preparation, kind: TensorType, axes: tuple[int, int, int], refuse: Refuse) -> Iterator[Step]:
    """From pixels as the network takes them outwards to the frame. ``axes``: those of rows, columns and channels."""
    if kind.dtype not in _FRAMED:
        raise refuse(f"is {kind.dtype}, which no camera gives", "dtypes of frames: " + ", ".join(_FRAMED))
    channels = kind.shape[axes[2]]
    if channels not in (1, 3):
        raise refuse(f"has {channels} channels", "pictures have 1 or 3")
    given = {"": channels, "gray": 1}.get(wanted.colour, 3)
    inner, kind = kind, replace(kind, shape=_with(kind.shape, {axes[2]: given}))
    yield from _colours(wanted.colour, inner, kind, axes[2])
    if wanted.frame is None:
        if wanted.crop or wanted.resize:
            raise refuse("has frames of no known size", "say it: --input-frame HEIGHTxWIDTH")
        return
    size = (kind.shape[axes[0]], kind.shape[axes[1]])
    crop = wanted.crop or wanted.frame
    if crop[0] > wanted.frame[0] or crop[1] > wanted.frame[1]:
        raise refuse("has frames of {}x{}, of which {}x{} is no part".format(*wanted.frame, *crop), "crop less")
    outer = replace(kind, shape=_with(kind.shape, dict(zip(axes, wanted.frame, strict=False))))
    first = [(whole - part) // 2 for whole, part in zip(wanted.frame, crop, strict=True)]
    if crop != size:
        yield _resized(wanted.resize, outer, axes[:2], first, crop, size)
    elif crop != wanted.frame:
        begin = _with((0,) * len(kind.shape), dict(zip(axes, first, strict=False)))
        end = tuple(map(sum, zip(begin, kind.shape, strict=True)))
        yield Step("slice", outer, {"begin": begin, "end": end, "strides": (1,) * len(end)})


def _with(shape: tuple[int, ...], extents: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(extents.get(axis, extent) for axis, extent in enumerate(shape))


def _colours(colour: str, inner: TensorType, outer: TensorType, axis: int) -> Iterator[Step]:
    """The network's channels from the frame's."""
    if inner.shape == outer.shape:
        if colour == "bgr":
            yield Step("reverse", outer, {"axes": (axis,)})
    elif colour == "gray":
        yield Step("broadcast_to", outer, {"shape": inner.shape})
    else:
        weights = np.array([_LUMA if colour == "rgb" else _LUMA[::-1]], np.int16)
        tables = (np.arange(3, dtype=np.int16)[None], _scaled(weights, _LUMA_BITS, outer.dtype))
        yield Step("resample", outer, {"axes": (axis,), "shift": _LUMA_BITS}, tables)


def _resized(
    rule: str, outer: TensorType, axes: tuple[int, ...], first: list[int], crop: tuple[int, int], size: tuple[int, int]
) -> Step:
    """Part of a frame, ``crop`` pixels from ``first`` on, in another ``size``.

    Bilinear weights are 2048ths. An 8-bit result so is at most 0.5 + 255 / 2048 of a step from that of exact weights: along each
    axis a weight is off by 2**-12 at most, between pixels at most 255 apart.
    """
    indices, weights = [], []
    for start, extent, count in zip(first, crop, size, strict=True):
        places = (np.arange(count) + 0.5) * (extent / count)
        if rule == "nearest":
            indices.append(np.clip(np.floor(places), 0, extent - 1).astype(np.int16)[:, None] + np.int16(start))
            continue
        places = np.clip(places - 0.5, 0, extent - 1)
        below = np.minimum(np.floor(places), max(extent - 2, 0)).astype(np.int64)
        share = np.rint((places - below) * (1 << _BITS)).astype(np.int16)
        indices.append((start + np.stack([below, np.minimum(below + 1, extent - 1)], 1)).astype(np.int16))
        weights.append(_scaled(np.stack([(1 << _BITS) - share, share], 1).astype(np.int16), _BITS, outer.dtype))
    shift = 2 * _BITS if weights else 0
    return Step("resample", outer, {"axes": axes, "shift": shift}, (*indices, *weights))


def _scaled(weights: Array, bits: int, dtype: str) -> Array:
    """Weights of integers as they are, those of floats as the reals that they stand for."""
    return (weights / (1 << bits)).astype(dtype) if dtypes.is_float(dtype) else weights
