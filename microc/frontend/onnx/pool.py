"""Spellings of ONNX's pools: over images as operators with schedules of their own, over anything else as windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.onnx.application import FLOAT, Application, Spelling
from microc.frontend.onnx.window import LIMIT, Spans, as_image, from_image, spans, window
from microc.graph.ir import Attr


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


SPELLINGS: Mapping[str, Spelling] = {
    "AveragePool": pool("avg_pool2d"),
    "GlobalAveragePool": global_pool("mean"),
    "GlobalLpPool": Spelling(global_lp_pool),
    "GlobalMaxPool": global_pool("max"),
    "LRN": Spelling(local_response_normalization),
    "LpPool": Spelling(lp_pool),
    "MaxPool": pool("max_pool2d"),
    "MaxUnpool": Spelling(max_unpool),
}
