"""Spellings of ONNX's layers with windows: convolution and pooling. One dimension is two with unit height.

Everything keeps ONNX's channels-first layout; weights are OIHW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from microc.frontend.onnx_application import Application, Spelling
from microc.frontend.onnx_build import Stored
from microc.graph.ir import Attr

_LIMIT = 1 << 24


@dataclass(frozen=True, slots=True)
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


def window(application: Application, kernel: tuple[int, ...], extents: tuple[int, ...], ceil_mode: bool) -> Window:
    """The window that the attributes of a convolution or pool describe, over one or two spatial axes."""
    attributes, rank = application.operator.attributes, len(extents)
    strides = _spatial(application, "strides", (1,) * rank, 1)
    dilation = _spatial(application, "dilations", (1,) * rank, 1)
    pads = _spatial(application, "pads", (0,) * 2 * rank, 0)
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
    one = rank == 1
    return Window(
        _pair(kernel, 1),
        _pair(strides, 1),
        (0, before[0], 0, after[0]) if one else (before[0], before[1], after[0], after[1]),
        _pair(dilation, 1),
        _pair(tuple(extra), 0),
    )


def _pair(values: tuple[int, ...], fill: int) -> tuple[int, int]:
    """One or two spatial values as (height, width)."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def _spatial(application: Application, name: str, default: tuple[int, ...], lowest: int) -> tuple[int, ...]:
    values = application.operator.attributes.integers(name, default)
    if len(values) != len(default) or any(not lowest <= value <= _LIMIT for value in values):
        application.broken(f"{name} is {values}")
    return values


def conv(application: Application) -> None:
    """Conv over one or two spatial axes, with weights (and bias) known when compiling."""
    convolve(application, application.value(0), *weights(application, 1, 2), application.output())


def weights(application: Application, weight: int, bias: int) -> tuple[Stored, Stored | None]:
    """Weight and bias of a convolution, by the positions of the inputs; refused if not known when compiling."""
    found = []
    for position in (weight, bias):
        stored = application.builder.stored(application.value(position)) if application.has(position) else None
        if stored is None and (position == weight or application.has(position)):
            application.refuse(f"input {position} ({application.value(position)!r}) is not known when compiling")
        found.append(stored)
    assert found[0] is not None
    return found[0], found[1]


def convolve(application: Application, data: str, weight: Stored, bias: Stored | None, output: str) -> None:
    """Write ``output`` = convolution of ``data`` (N, C, [H,] W) with ``weight`` (O, C / groups, [H,] W)."""
    shape, kernel = application.type(data).shape, weight.data.shape[2:]
    if len(shape) != len(weight.data.shape) or len(shape) not in (3, 4, 5):
        application.broken(f"data of shape {shape} and weights of shape {weight.data.shape}")
    if len(shape) == 5:
        application.refuse("a convolution over three spatial axes")
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
        application.refuse("weights quantised along their width")
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


def pool(op: str) -> Spelling:
    """MaxPool and AveragePool; ``ceil_mode`` becomes padding at the end."""

    def spell(application: Application) -> None:
        application.only_output()
        attributes, data = application.operator.attributes, application.value(0)
        shape = application.type(data).shape
        if len(shape) == 5:
            application.refuse("a pool over three spatial axes")
        kernel = attributes.integers("kernel_shape")
        if len(shape) not in (3, 4) or len(kernel) != len(shape) - 2 or any(not 1 <= k <= _LIMIT for k in kernel):
            application.broken(f"kernel_shape {kernel} for data of shape {shape}")
        view = window(application, kernel, shape[2:], attributes.flag("ceil_mode"))
        if view.dilation != (1, 1):
            application.refuse("a dilated pool")
        top, left, bottom, right = view.padded
        if max(top, bottom) >= view.kernel[0] or max(left, right) >= view.kernel[1]:
            application.refuse(f"padding {view.padded} as large as the window {view.kernel}")
        attrs: dict[str, Attr] = {
            "kernel": view.kernel,
            "strides": view.strides,
            "padding": view.padded,
            "layout": "NCHW",
        }
        if op == "avg_pool2d":
            include = attributes.flag("count_include_pad") and any(view.padding)
            if include and any(view.extra):
                application.refuse("ceil_mode together with count_include_pad")
            attrs["count_include_pad"] = include
        from_image(application, op, [as_image(application, data)], attrs, len(shape), application.output())

    return Spelling(spell, ("float32",) if op == "avg_pool2d" else ("float32", "int8", "uint8"))


def global_pool(op: str) -> Spelling:
    """GlobalAveragePool and GlobalMaxPool: a reduction over the spatial axes."""

    def spell(application: Application) -> None:
        data = application.value(0)
        rank = len(application.type(data).shape)
        if rank < 3:
            application.broken(f"data of shape {application.type(data).shape}")
        application.result(op, (data,), {"axes": tuple(range(2, rank)), "keepdims": True})

    return Spelling(spell)


SPELLINGS: Mapping[str, Spelling] = {
    "AveragePool": pool("avg_pool2d"),
    "Conv": Spelling(conv),
    "GlobalAveragePool": global_pool("mean"),
    "GlobalMaxPool": global_pool("max"),
    "MaxPool": pool("max_pool2d"),
}
