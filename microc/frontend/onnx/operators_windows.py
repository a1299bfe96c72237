"""ONNX convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.base.immutable import frozen
from microc.frontend.onnx.context import FLOAT, Application, Spelling, Stored
from microc.graph.ir import Attr

# ---- Windows of ONNX's layers, and the spelling of convolution. One dimension is two with unit height.
#
# Everything keeps ONNX's channels-first layout; weights are OIHW.

LIMIT = 1 << 24


@frozen
class Window:
    """A window over height and width; ``extra`` is the padding at the end that only ``ceil_mode`` brings."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    extra: tuple[int, int]

    @property
    def padded(self) -> tuple[int, int, int, int]:
        """Padding (top, left, bottom, right) with the extra elements."""
        top, left, bottom, right = self.padding
        return top, left, bottom + self.extra[0], right + self.extra[1]


@frozen
class Spans:
    """A window over any number of spatial axes, one entry for each; ``extra`` as in :class:`Window`."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    extra: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        """All amounts before, then all after, with the extra elements."""
        return (*self.before, *(a + e for a, e in zip(self.after, self.extra, strict=True)))


def spans(application: Application, kernel: tuple[int, ...], extents: tuple[int, ...], ceil_mode: bool) -> Spans:
    """The window that the attributes of a convolution or pool describe."""
    attributes, rank = application.operator.attributes, len(extents)
    strides = spatial(application, "strides", (1,) * rank, 1)
    dilation = spatial(application, "dilations", (1,) * rank, 1)
    pads = spatial(application, "pads", (0,) * 2 * rank, 0)
    before, after = list(pads[:rank]), list(pads[rank:])
    mode = attributes.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        application.broken(f"auto_pad is {mode!r}")
    extra = [0] * rank
    for k, (size, taps, stride, spread) in enumerate(zip(extents, kernel, strides, dilation, strict=True)):
        span = (taps - 1) * spread + 1
        if mode.startswith("SAME"):
            total = max((-(-size // stride) - 1) * stride + span - size, 0)
            small, large = total // 2, total - total // 2
            before[k], after[k] = (small, large) if mode == "SAME_UPPER" else (large, small)
        elif mode == "VALID":
            before[k] = after[k] = 0
        room = size + before[k] + after[k] - span
        if room < 0:
            application.broken(f"a window of {span} over {size} elements, {before[k]} + {after[k]} of padding")
        if ceil_mode and room % stride:
            reach = (room // stride + 1) * stride
            if reach < size + before[k]:
                extra[k] = reach - room
    return Spans(kernel, strides, tuple(before), tuple(after), dilation, tuple(extra))


def window(application: Application, kernel: tuple[int, ...], extents: tuple[int, ...], ceil_mode: bool) -> Window:
    """The same over one or two spatial axes, of which one is two with unit height."""
    found = spans(application, kernel, extents, ceil_mode)
    before, after = _pair(found.before, 0), _pair(found.after, 0)
    return Window(
        _pair(found.kernel, 1),
        _pair(found.strides, 1),
        (*before, *after),
        _pair(found.dilation, 1),
        _pair(found.extra, 0),
    )


def _pair(values: tuple[int, ...], fill: int) -> tuple[int, int]:
    """One or two spatial values as (height, width)."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def spatial(application: Application, name: str, default: tuple[int, ...], lowest: int) -> tuple[int, ...]:
    values = application.operator.attributes.integers(name, default)
    if len(values) != len(default) or any(not lowest <= value <= LIMIT for value in values):
        application.broken(f"{name} is {values}")
    return values


def conv(application: Application) -> None:
    """Conv: over one or two spatial axes with weights (and bias) known when compiling, or over any with any."""
    given = [application.builder.stored(application.value(k)) for k in (1, 2) if application.has(k)]
    plain = application.type(application.value(0)).dtype == "float32" and len(application.shape(0)) in (3, 4)
    if plain and all(stored is not None for stored in given):
        convolve(application, application.value(0), *weights(application, 1, 2), application.output())
        return
    operands = [application.operand(k) for k in range(3) if application.has(k)]
    application.result("convolution", operands, convolution(application, application.shape(1)[2:]))


def convolution(application: Application, kernel: tuple[int, ...]) -> Mapping[str, Attr]:
    """The attributes of a convolution over any number of axes."""
    extents = application.shape(0)[2:]
    if len(kernel) != len(extents) or application.operator.attributes.integers("kernel_shape", kernel) != kernel:
        application.broken(f"data of shape {application.shape(0)} and a kernel of {kernel}")
    found = spans(application, kernel, extents, ceil_mode=False)
    groups = application.operator.attributes.integer("group", 1)
    return {"strides": found.strides, "padding": found.padding, "dilation": found.dilation, "groups": groups}


def weights(application: Application, weight: int, bias: int) -> tuple[Stored, Stored | None]:
    """Weight and bias of a convolution, by the positions of the inputs; refused if not known when compiling."""
    found = []
    for position in (weight, bias):
        stored = application.builder.stored(application.value(position)) if application.has(position) else None
        if stored is None and (position == weight or application.has(position)):
            what = f"input {position} ({application.value(position)!r}) is not known when compiling"
            application.refuse(what, "export the model with constant weights")
        found.append(stored)
    assert found[0] is not None
    return found[0], found[1]


def convolve(application: Application, data: str, weight: Stored, bias: Stored | None, output: str) -> None:
    """Write ``output`` = convolution of ``data`` (N, C, [H,] W) with ``weight`` (O, C / groups, [H,] W)."""
    shape, kernel = application.type(data).shape, weight.data.shape[2:]
    if len(shape) != len(weight.data.shape) or len(shape) not in (3, 4, 5):
        application.broken(f"data of shape {shape} and weights of shape {weight.data.shape}")
    if len(shape) == 5:
        application.refuse("a quantised convolution over three spatial axes", "leave the layer in float32")
    attributes = application.operator.attributes
    if attributes.integers("kernel_shape", kernel) != kernel or 0 in weight.data.shape:
        application.broken(f"kernel_shape differs from weights of shape {weight.data.shape}")
    groups, channels = attributes.integer("group", 1), weight.data.shape[0]
    if groups < 1 or channels % groups or weight.data.shape[1] * groups != shape[1]:
        application.broken(f"{groups} groups of weights {weight.data.shape} for {shape[1]} input channels")
    if bias is not None and bias.data.shape != (channels,):
        application.broken(f"bias of shape {bias.data.shape} for {channels} channels")
    view = window(application, kernel, shape[2:], ceil_mode=False)
    wide = weight.reshaped((*weight.data.shape[:2], *view.kernel))
    if wide is None:
        application.refuse("weights quantised along their width", "quantise them along the output channels")
    operands = [as_image(application, data), application.store(f"{output}_weight", wide)]
    if bias is not None:
        operands.append(application.store(f"{output}_bias", bias))
    attrs: Mapping[str, Attr] = {
        "strides": view.strides,
        "padding": view.padding,
        "dilation": view.dilation,
        "groups": groups,
        "layout": "NCHW",
    }
    from_image(application, "conv2d", operands, attrs, len(shape), output)


def as_image(application: Application, value: str) -> str:
    """(N, C, W) as (N, C, 1, W)."""
    shape = application.type(value).shape
    return value if len(shape) == 4 else application.reshaped(value, (shape[0], shape[1], 1, shape[2]))


def from_image(
    application: Application, op: str, operands: list[str], attrs: Mapping[str, Attr], rank: int, output: str
) -> None:
    """Write ``output`` with ``op``, whose unit height goes where ``rank`` is 3."""
    if rank == 4:
        application.write(op, operands, attrs, output)
        return
    made = application.emit(op, operands, attrs)
    batch, channels, _, width = application.type(made).shape
    application.write("reshape", (made,), {"shape": (batch, channels, width)}, output)


WINDOW_SPELLINGS: Mapping[str, Spelling] = {"Conv": Spelling(conv)}


# ---- Spellings of ONNX's pools: over images as operators with schedules of their own, over anything else as windows.


def pool(op: str) -> Spelling:
    """MaxPool and AveragePool; ``ceil_mode`` becomes padding at the end."""

    def spell(application: Application) -> None:
        attributes, data = application.operator.attributes, application.value(0)
        shape = application.type(data).shape
        kernel = attributes.integers("kernel_shape")
        if len(shape) < 3 or len(kernel) != len(shape) - 2 or any(not 1 <= k <= LIMIT for k in kernel):
            application.broken(f"kernel_shape {kernel} for data of shape {shape}")
        if not _is_plain(application, op, kernel):
            (_largest if op == "max_pool2d" else _average)(application, kernel)
            return
        view = window(application, kernel, shape[2:], attributes.flag("ceil_mode"))
        attrs: dict[str, Attr] = {
            "kernel": view.kernel,
            "strides": view.strides,
            "padding": view.padded,
            "layout": "NCHW",
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = attributes.flag("count_include_pad") and any(view.padding)
        from_image(application, op, [as_image(application, data)], attrs, len(shape), application.output())

    return Spelling(spell, FLOAT if op == "avg_pool2d" else (*FLOAT, "int8", "uint8"))


def _is_plain(application: Application, op: str, kernel: tuple[int, ...]) -> bool:
    """Whether a pool is one of images that has schedules of its own."""
    attributes, kind = application.operator.attributes, application.type(application.value(0))
    found = spans(application, kernel, kind.shape[2:], attributes.flag("ceil_mode"))
    includes = op == "avg_pool2d" and attributes.flag("count_include_pad") and any((*found.before, *found.after))
    narrow = all(p < k for p, k in zip(found.padding, kernel * 2, strict=True))
    one_result = not application.output(1) and kind.dtype != "float64" and len(kernel) in (1, 2)
    return one_result and narrow and set(found.dilation) == {1} and not (includes and any(found.extra))


def _window_attrs(found: Spans) -> dict[str, Attr]:
    return {"kernel": found.kernel, "strides": found.strides, "padding": found.padding, "dilation": found.dilation}


def _largest(application: Application, kernel: tuple[int, ...]) -> None:
    """MaxPool over any number of axes, dilated, or with the places of the largest elements."""
    attributes, data = application.operator.attributes, application.value(0)
    attrs = _window_attrs(spans(application, kernel, application.shape(0)[2:], attributes.flag("ceil_mode")))
    if not application.output(1):
        application.result("window_max", (data,), attrs)
        return
    attrs["column_major"] = attributes.flag("storage_order")
    application.write_all("window_argmax", (data,), attrs, application.operator.outputs)


def _average(application: Application, kernel: tuple[int, ...]) -> None:
    """AveragePool over any number of axes: sums over counts, of which those at the edges differ."""
    attributes, data = application.operator.attributes, application.value(0)
    extents, kind = application.shape(0)[2:], application.type(data).dtype
    found = spans(application, kernel, extents, attributes.flag("ceil_mode"))
    total = application.emit("window_sum", (data,), _window_attrs(found))
    include = attributes.flag("count_include_pad")
    counts = np.ones((1,) * len(extents))
    for axis, extent in enumerate(extents):
        first = -found.before[axis] if include else 0
        last = extent + (found.after[axis] if include else 0)
        starts = np.arange(application.type(total).shape[2 + axis]) * found.strides[axis] - found.before[axis]
        places = starts[:, None] + np.arange(kernel[axis]) * found.dilation[axis]
        each = ((places >= first) & (places < last)).sum(1)
        counts = counts * each.reshape(-1, *[1] * (len(extents) - axis - 1))
    counts = counts[(slice(None, 1),) * counts.ndim] if (counts == counts.flat[0]).all() else counts
    divisor = application.new_constant(f"{application.output()}_counts", counts.astype(kind))
    application.result("div", (total, divisor))


def lp_pool(application: Application) -> None:
    """LpPool: the root of the sum of powers of magnitudes."""
    attributes, data = application.operator.attributes, application.value(0)
    kernel, kind = attributes.integers("kernel_shape"), application.type(application.value(0)).dtype
    p = float(attributes.integer("p", 2))
    found = spans(application, kernel, application.shape(0)[2:], attributes.flag("ceil_mode"))
    magnitude = application.emit("abs", (data,))
    powers = application.emit("pow", (magnitude, application.scalar(p, kind)))
    total = application.emit("window_sum", (powers,), _window_attrs(found))
    application.result("pow", (total, application.scalar(1.0 / p, kind)))


def global_lp_pool(application: Application) -> None:
    """GlobalLpPool: the same over all spatial axes."""
    data, p = application.value(0), float(application.operator.attributes.integer("p", 2))
    kind = application.type(data)
    powers = application.emit("pow", (application.emit("abs", (data,)), application.scalar(p, kind.dtype)))
    total = application.emit("sum", (powers,), {"axes": tuple(range(2, len(kind.shape))), "keepdims": True})
    application.result("pow", (total, application.scalar(1.0 / p, kind.dtype)))


def max_unpool(application: Application) -> None:
    """MaxUnpool: every element where its index says, zeros elsewhere."""
    attributes, shape = application.operator.attributes, application.shape(0)
    kernel = attributes.integers("kernel_shape")
    rank = len(kernel)
    strides, pads = attributes.integers("strides", (1,) * rank), attributes.integers("pads", (0,) * 2 * rank)
    extents = [
        (e - 1) * s + k - pads[axis] - pads[axis + rank]
        for axis, (e, s, k) in enumerate(zip(shape[2:], strides, kernel, strict=True))
    ]
    full = (*shape[:2], *extents)
    wanted = application.integers(2) if application.has(2) else full
    kind = application.type(application.value(0)).dtype
    size, indices = int(np.prod(full)), application.value(1)
    zeros = application.emit("broadcast_to", (application.scalar(0.0, kind),), {"shape": (size,)})
    data, places = (application.reshaped(value, (int(np.prod(shape)),)) for value in (application.value(0), indices))
    placed = application.reshaped(application.emit("scatter_elements", (zeros, places, data), {"axis": 0}), full)
    more = tuple((0, goal - extent) for goal, extent in zip(wanted, full, strict=True))
    if any(after for _, after in more):
        placed = application.emit("pad", (placed,), {"padding": more, "value": 0.0})
    application.result_alias(placed)


def local_response_normalization(application: Application) -> None:
    """LRN: x / (bias + alpha / size * sum of squares of the neighbouring channels) ** beta."""
    attributes, data = application.operator.attributes, application.value(0)
    shape, kind, size = application.shape(0), application.type(data).dtype, attributes.integer("size")
    before = (size - 1) // 2
    squares = application.emit("mul", (data, data))
    rows = application.reshaped(squares, (1, shape[0], shape[1], int(np.prod(shape[2:]))))
    attrs: Mapping[str, Attr] = {
        "kernel": (size, 1),
        "strides": (1, 1),
        "padding": (before, 0, size - 1 - before, 0),
        "dilation": (1, 1),
    }
    total = application.reshaped(application.emit("window_sum", (rows,), attrs), shape)
    factor = application.scalar(attributes.real("alpha", 1e-4) / size, kind)
    base = application.emit(
        "add", (application.emit("mul", (total, factor)), application.scalar(attributes.real("bias", 1.0), kind))
    )
    power = application.emit("pow", (base, application.scalar(attributes.real("beta", 0.75), kind)))
    application.result("div", (data, power))


def global_pool(op: str) -> Spelling:
    """GlobalAveragePool and GlobalMaxPool: a reduction over the spatial axes."""

    def spell(application: Application) -> None:
        data = application.value(0)
        rank = len(application.type(data).shape)
        if rank < 3:
            application.broken(f"data of shape {application.type(data).shape}")
        application.result(op, (data,), {"axes": tuple(range(2, rank)), "keepdims": True})

    return Spelling(spell, FLOAT)


POOL_SPELLINGS: Mapping[str, Spelling] = {
    "AveragePool": pool("avg_pool2d"),
    "GlobalAveragePool": global_pool("mean"),
    "GlobalLpPool": Spelling(global_lp_pool),
    "GlobalMaxPool": global_pool("max"),
    "LRN": Spelling(local_response_normalization),
    "LpPool": Spelling(lp_pool),
    "MaxPool": pool("max_pool2d"),
    "MaxUnpool": Spelling(max_unpool),
}
