"""Windows of ONNX's layers, and the spelling of convolution. One dimension is two with unit height.

Everything keeps ONNX's channels-first layout; weights are OIHW.
"""

from __future__ import annotations

from collections.abc import Mapping

from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.build import Stored
from microc.frozen import frozen
from microc.graph.ir import Attr

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


SPELLINGS: Mapping[str, Spelling] = {"Conv": Spelling(conv)}
