"""``convolution`` and ``convolution_transpose`` over any number of spatial axes, with weights that may be data.

Networks' usual layers, of one or two axes and constant weights, are ``conv2d`` and ``conv2d_transpose``; here every output sums
its taps as they come, or those of a place are gathered for all channels of the result (algorithm ``gathered``). Data is (N, C,
spatial ...), weights are (O, C / groups, kernel ...), transposed (C, O / groups, kernel ...). ``padding`` is all amounts before,
then all after. Source: ONNX Conv, ConvTranspose, ConvInteger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from microc import te
from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Attr, TensorType
from microc.ops.attributes import SPATIAL, Attributes, integer
from microc.ops.convolution.geometry import meets_row
from microc.ops.matrix.gemm import start
from microc.ops.registry import Case, OpCall, OpDef, rows_only
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.names import ACC, CHANNELS_FIRST, PATCH

_ATTRS: Attributes = {**SPATIAL, "groups": integer("of channels that have weights of their own", 1, least=1)}
DTYPES = ("float32", "float64", "int32")


def _axes(attrs: Mapping[str, Any], extents: Sequence[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """(extent, stride, dilation, before, after) of every spatial axis."""
    rank = len(extents)
    padding = attrs["padding"]
    return zip(extents, attrs["strides"], attrs["dilation"], padding[:rank], padding[rank:], strict=True)


def _check(name: str, types: Sequence[TensorType], channels: int, outputs: int, groups: int) -> None:
    data, weight = types[0], types[1]
    fits = len(data.shape) == len(weight.shape) >= 3 and 0 not in (*data.shape, *weight.shape)
    if not fits or data.dtype not in DTYPES or groups < 1 or data.shape[1] != channels or outputs % groups:
        raise ModelError(f"{name} of {data.dtype} {data.shape} by weights {weight.shape} in {groups} groups")
    if len({kind.dtype for kind in types}) > 1 or (len(types) > 2 and types[2].shape != (outputs,)):
        raise ModelError(f"{name} with a bias of {types[-1].dtype} {types[-1].shape} for {outputs} channels")


# ---------------------------------------------------------------- convolution


def _infer(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weight, groups = types[0], types[1], attrs["groups"]
    _check("convolution", types, weight.shape[1] * groups, weight.shape[0], groups)
    taps = weight.shape[2:]
    shape = [
        (e + before + after - (k - 1) * d - 1) // s + 1
        for k, (e, s, d, before, after) in zip(taps, _axes(attrs, data.shape[2:]), strict=True)
    ]
    if min(shape) < 1 or min(attrs["padding"]) < 0:
        raise ModelError(f"convolution of {data.shape} by a window of {taps} with padding {attrs['padding']}")
    return (TensorType((data.shape[0], weight.shape[0], *shape), data.dtype),)


def _reference(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    data, weight = arrays[0], arrays[1]
    (result,) = _infer(attrs, [TensorType(a.shape, a.dtype.name) for a in arrays])
    rank, groups, spatial = data.ndim - 2, attrs["groups"], result.shape[2:]
    wide = np.float64 if data.dtype.kind == "f" else np.int64
    margin = [(0, 0), (0, 0), *zip(attrs["padding"][:rank], attrs["padding"][rank:], strict=True)]
    padded = np.pad(data.astype(wide), margin)
    grouped = padded.reshape(data.shape[0], groups, -1, *padded.shape[2:])
    split = weight.astype(wide).reshape(groups, -1, *weight.shape[1:])
    total = np.zeros((data.shape[0], groups, split.shape[1], *spatial), wide)
    for tap in np.ndindex(*weight.shape[2:]):
        places = tuple(
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, s, e in zip(tap, attrs["dilation"], attrs["strides"], spatial, strict=True)
        )
        total += np.einsum("ngc...,goc->ngo...", grouped[(slice(None),) * 3 + places], split[(slice(None),) * 3 + tap])
    made = total.reshape(result.shape)
    if len(arrays) > 2:
        made = made + arrays[2].reshape(-1, *[1] * rank)
    return (made.astype(data.dtype),)


def _suits_gathered(call: OpCall) -> bool:
    """A single image in one group, where several channels share what is gathered."""
    data, weight, _ = call.weighted
    several = data.type.shape[0] == call.attrs["groups"] == 1 < weight.type.shape[0]
    return several and weight.data is not None


def _gathered(call: OpCall, dtype: str) -> te.Tensor:
    """``acc`` (O, P): a matrix product of the weights (O, K) and the ``patch`` (P, K) of every place, channels outermost."""
    data, weight, bias = call.weighted
    outputs, *window = weight.type.shape
    assert weight.data is not None
    x, w = data.tensor(), weight.packed(weight.data.reshape(outputs, -1))
    spatial, k = call.out_types[0].shape[2:], te.reduce_axis(prod(window), "k")

    def gathered(p: Expr, term: Expr) -> Expr:
        channel, *taps = _apart(term, window)
        rows = zip(_apart(p, spatial), taps, _axes(call.attrs, data.type.shape[2:]), strict=True)
        places, inside = [], []
        for at, tap, (extent, stride, dilation, before, after) in rows:
            place = at * stride + tap * dilation - before
            places.append(place)
            inside += [place >= 0] if before else []
            inside += [place < extent] if after else []
        met, value = ir.all_of(inside), x[(0, channel, *places)]
        return value if met is None else ir.select(met, value, 0)

    patch = te.compute((prod(spatial), prod(window)), gathered, PATCH, ("p", "k"))

    def element(o: Expr, p: Expr) -> Expr:
        product = ir.cast(dtype, patch[p, k.var]) * ir.cast(dtype, w[o, k.var])
        return te.sum_reduce(product, k, init=start(bias, o, dtype))

    return te.compute((outputs, prod(spatial)), element, ACC, ("o", "p"), ((CHANNELS_FIRST, 1),))


def _apart(index: Expr, extents: Sequence[int]) -> list[Expr]:
    """A flat index by axis, the last one fastest."""
    found: list[Expr] = []
    for extent in reversed(extents[1:]):
        found.append(index % extent)
        index = index // extent
    return [index, *reversed(found)]


def _wrapped(call: OpCall, compute: Callable[[OpCall, str], te.Tensor]) -> te.Tensor:
    """The sums in the data's dtype; of integers in one without a sign, whose overflow C defines."""
    dtype = call.data.type.dtype
    if dtype != "int32":
        return compute(call, dtype)
    found = compute(call, "uint32")
    return te.compute(found.shape, lambda *index: ir.cast(dtype, found[index]), "wrapped")


def _compute(call: OpCall, dtype: str) -> te.Tensor:
    if call.attrs.get("algorithm") == "gathered":
        return _gathered(call, dtype)
    data, weight, bias = call.weighted
    attrs, shape = call.attrs, weight.type.shape
    each, extents = shape[0] // attrs["groups"], data.type.shape[2:]
    x, w = data.tensor(), weight.tensor()
    depth = te.reduce_axis(shape[1], "k")
    taps = [te.reduce_axis(extent, f"t{k}") for k, extent in enumerate(shape[2:])]

    def element(*index: Expr) -> Expr:
        n, o, *where = index
        places, inside = [], []
        for at, tap, (extent, stride, dilation, before, after) in zip(where, taps, _axes(attrs, extents), strict=True):
            place = at * stride + tap.var * dilation - before
            places.append(place)
            inside += [place >= 0] if before else []
            inside += [place < extent] if after else []
        value = ir.cast(dtype, x[(n, o // each * shape[1] + depth.var, *places)])
        met = ir.all_of(inside)
        value = value if met is None else ir.select(met, value, 0)
        weight_ = ir.cast(dtype, w[(o, depth.var, *(t.var for t in taps))])
        return te.sum_reduce(value * weight_, depth, *taps, init=start(bias, o, dtype))

    return te.compute(call.out_types[0].shape, element, ACC)


# ---------------------------------------------------------------- transposed


def _infer_transpose(attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    data, weight, groups = types[0], types[1], attrs["groups"]
    outputs = weight.shape[1] * groups
    _check("convolution_transpose", types, weight.shape[0], outputs, groups)
    shape = [
        (e - 1) * s + (k - 1) * d + 1 - before - after
        for k, (e, s, d, before, after) in zip(weight.shape[2:], _axes(attrs, data.shape[2:]), strict=True)
    ]
    cut = attrs["padding"][: len(shape)]  # behind the result there may be more rows than taps reach
    if min(shape) < 1 or min(cut) < 0 or data.shape[1] % groups:
        raise ModelError(f"convolution_transpose of {data.shape} with padding {attrs['padding']}")
    return (TensorType((data.shape[0], outputs, *shape), data.dtype),)


def _reference_transpose(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[Array, ...]:
    """Every tap scattered into a result that is large enough, in float64; integers in int64, so that they wrap around."""
    wide = np.float64 if arrays[0].dtype.kind == "f" else np.int64
    data, weight = arrays[0].astype(wide), arrays[1].astype(wide)
    (result,) = _infer_transpose(attrs, [TensorType(a.shape, a.dtype.name) for a in arrays])
    rank, groups = data.ndim - 2, attrs["groups"]
    before, out = attrs["padding"][:rank], result.shape[2:]
    axes = list(zip(data.shape[2:], attrs["strides"], attrs["dilation"], weight.shape[2:], strict=True))
    span = [max((e - 1) * s + (k - 1) * d + 1, b + o) for (e, s, d, k), b, o in zip(axes, before, out, strict=True)]
    full = np.zeros((data.shape[0], groups, weight.shape[1], *span), wide)
    pixels = data.reshape(data.shape[0], groups, -1, *data.shape[2:])
    split = weight.reshape(groups, -1, *weight.shape[1:])
    for tap in np.ndindex(*weight.shape[2:]):
        places = tuple(slice(t * d, t * d + (e - 1) * s + 1, s) for t, (e, s, d, _) in zip(tap, axes, strict=True))
        full[(slice(None),) * 3 + places] += np.einsum("ngc...,gco->ngo...", pixels, split[(slice(None),) * 3 + tap])
    kept = tuple(slice(b, b + o) for b, o in zip(before, out, strict=True))
    made = full[(slice(None),) * 3 + kept].reshape(result.shape)
    if len(arrays) > 2:
        made = made + arrays[2].reshape(-1, *[1] * rank)
    return (made.astype(arrays[0].dtype),)


def _compute_transpose(call: OpCall, dtype: str) -> te.Tensor:
    """Every output gathers the taps that meet it."""
    data, weight, bias = call.weighted
    attrs, (inputs, each, *kernel), extents = call.attrs, weight.type.shape, data.type.shape[2:]
    group = inputs // attrs["groups"]
    x, w = data.tensor(), weight.tensor()
    depth = te.reduce_axis(group, "k")
    taps = [te.reduce_axis(extent, f"t{k}") for k, extent in enumerate(kernel)]

    def element(*index: Expr) -> Expr:
        n, o, *where = index
        places, meets = [], list[Expr]()
        for at, tap, (extent, stride, dilation, before, _) in zip(where, taps, _axes(attrs, extents), strict=True):
            place = at + before - tap.var * dilation
            meets += meets_row(place, extent, stride, dilation)
            meets += [(place % stride).eq(0)] if stride > 1 else []
            at_data = place // stride
            # Schedules of integers leave the taps in loops, for which the guard above does not prove the index.
            places.append(ir.clamp(at_data, 0, extent - 1) if dtype == "uint32" else at_data)
        channel = o // each * group + depth.var
        met = ir.all_of(meets)
        assert met is not None
        value = ir.cast(dtype, x[(n, channel, *places)])
        weight_ = ir.cast(dtype, w[(channel, o % each, *(t.var for t in taps))])
        # A tap that meets nothing adds nothing, if it is no number, too. Integers are multiplied as any matrix is.
        product = ir.select(met, value, 0) * weight_ if dtype == "uint32" else ir.select(met, value * weight_, 0.0)
        return te.sum_reduce(product, depth, *taps, init=start(bias, o, dtype))

    return te.compute(call.out_types[0].shape, element, ACC)


# ---------------------------------------------------------------- registry


def _macs(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return out_types[0].size * prod(types[1].shape[1:])


def _macs_transpose(attrs: Mapping[str, Any], types: Sequence[TensorType], out_types: Sequence[TensorType]) -> int:
    return types[0].size * prod(types[1].shape[1:])


def _cases(transposed: bool) -> Iterable[Case]:
    settings: tuple[tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...], tuple[int, ...], int], ...] = (
        ((1, 2, 5), (4, 2, 3), 1, (1, 1), (1,), 1),
        ((2, 2, 4, 5), (2, 1, 3, 2), 2, (1, 0, 0, 1), (2, 1), 2),
        ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), 1, (0, 1, 0, 0, 0, 1), (1, 1, 2), 1),
        ((1, 2, 9, 10), (4, 2, 2, 2), 1, (1, 0, 0, 0), (2, 4), 8),
    )
    for data, weight, groups, padding, strides, spread in settings:
        if transposed:
            weight = (data[1], *weight[1:])
        outputs = weight[1] * groups if transposed else weight[0]
        attrs: dict[str, Attr] = {"strides": strides, "padding": padding, "groups": groups}
        attrs["dilation"] = (spread,) * len(strides)
        types = tuple(TensorType(shape, "float32") for shape in (data, weight, (outputs,)))
        yield Case(attrs, types, tolerance=2e-5, name=f"{len(strides)} axes")
        yield Case(attrs, types[:2], (1,), tolerance=2e-5, name=f"{len(strides)} axes, constant weights")
        integers = tuple(TensorType(kind.shape, "int32") for kind in types)
        yield Case(attrs, integers, (1,), name=f"{len(strides)} axes of integers")


OPERATORS: tuple[OpDef, ...] = (
    OpDef(
        "convolution",
        attrs=_ATTRS,
        infer=_infer,
        reference=_reference,
        compute=lambda call: _wrapped(call, _compute),
        cases=lambda: _cases(False),
        axes=rows_only,
        macs=_macs,
        algorithms={"gathered": _suits_gathered},
        operand_names=("data", "weight", "bias"),
    ),
    OpDef(
        "convolution_transpose",
        attrs=_ATTRS,
        infer=_infer_transpose,
        reference=_reference_transpose,
        compute=lambda call: _wrapped(call, _compute_transpose),
        cases=lambda: _cases(True),
        axes=rows_only,
        macs=_macs_transpose,
        operand_names=("data", "weight", "bias"),
    ),
)
