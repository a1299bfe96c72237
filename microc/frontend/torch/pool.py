"""Spellings of ATen's pools: over images as operators with schedules of their own, over anything else as windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.frontend.torch.application import Application, Spelling, numbers
from microc.graph.ir import Attr
from microc.ops.rounding import Rounding


def pool(op: str) -> Spelling:
    """Pools over any number of spatial axes; ``ceil_mode`` becomes padding at the end."""

    def spell(a: Application) -> Any:
        x, rank = a.operand("self"), int(a.name.split("_pool")[1][0])
        kernel = numbers(a.argument("kernel_size"), rank)
        strides = numbers(a.argument("stride") or kernel, rank)
        padding, dilation = (numbers(a.argument(n, d) or d, rank) for n, d in (("padding", 0), ("dilation", 1)))
        if a.argument("divisor_override") is not None:
            a.refuse("a divisor of its own", "leave divisor_override out and scale the result")
        shape, pair = a.shape(x), a.name.endswith("indices")
        if pair and any(user.args[1] == 1 for user in a.node.users):
            a.refuse("the places of the largest elements", "pool with return_indices=False")
        wanted = a.result_shape(0 if pair else None)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        rows = zip(wanted[-rank:], strides, spans, shape[-rank:], padding, strict=True)
        extra = tuple(max((o - 1) * s + span - extent - 2 * p, 0) for o, s, span, extent, p in rows)
        x = a.reshaped(x, (*(1,) * (rank + 2 - len(shape)), *shape))
        view = _View(kernel, strides, padding, extra, dilation)
        include = op == "avg_pool2d" and bool(a.argument("count_include_pad", True)) and any(padding)
        plain = rank < 3 and set(dilation) == {1} and not (include and any(extra))
        made = view.image(a, op, x, include) if plain else view.any_axes(a, op, x, include)
        made = a.reshaped(made, wanted)
        return (made, "") if pair else made

    return spell


class _View:
    """A window; ``extra`` is the padding at the end that only ``ceil_mode`` brings."""

    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        extra: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.kernel, self.strides, self.before, self.dilation = map(tuple, (kernel, strides, padding, dilation))
        self.after = tuple(p + e for p, e in zip(padding, extra, strict=True))

    def image(self, a: Application, op: str, x: str, include: bool) -> str:
        """One or two axes without gaps; one is two with unit height."""
        high = (1,) * (2 - len(self.kernel))
        none = (0,) * len(high)
        shape = a.shape(x)
        attrs: dict[str, Attr] = {
            "kernel": (*high, *self.kernel),
            "strides": (*high, *self.strides),
            "padding": (*none, *self.before, *none, *self.after),
            "layout": "NCHW",
            "rounding": Rounding.EVEN,
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = include
        return a.emit(op, (a.reshaped(x, (*shape[:2], *high, *shape[2:])),), attrs)

    def any_axes(self, a: Application, op: str, x: str, include: bool) -> str:
        """Sums over counts, which differ at the edges, or the largest."""
        attrs: dict[str, Attr] = {
            "kernel": self.kernel,
            "strides": self.strides,
            "padding": (*self.before, *self.after),
            "dilation": self.dilation,
        }
        if op == "max_pool2d":
            return a.emit("window_max", (x,), attrs)
        total = a.emit("window_sum", (x,), attrs)
        counts = np.ones((1,), np.float32)
        for axis, extent in enumerate(a.shape(x)[2:]):
            counts = np.multiply.outer(counts, self._counts(axis, extent, a.shape(total)[2 + axis], include))
        return a.emit("div", (total, a.write.new_constant("counts", counts[None])))

    def _counts(self, axis: int, extent: int, out: int, include: bool) -> Array:
        """How many elements every window of an axis has; padding counts if ``include`` says so, what ceil_mode adds never."""
        low, high = (-self.before[axis], extent + self.before[axis]) if include else (0, extent)
        starts = np.arange(out)[:, None] * self.strides[axis] - self.before[axis]
        places = starts + np.arange(self.kernel[axis]) * self.dilation[axis]
        return np.asarray(((places >= low) & (places < high)).sum(axis=1), np.float32)


def adaptive_average(a: Application) -> str:
    """To one element a mean; to a divisor of the extents a pool; else weighted elements along each axis."""
    return _adaptive(a, "mean", "avg_pool2d", a.result_shape())


def adaptive_max(a: Application) -> tuple[str, str]:
    return _adaptive(a, "max", "max_pool2d", a.result_shape(0)), ""


def _adaptive(a: Application, whole: str, part: str, wanted: tuple[int, ...]) -> str:
    x = a.operand("self")
    count = int(a.name.split("_pool")[1][0])
    shape = a.shape(x)
    axes = tuple(range(len(shape) - count, len(shape)))
    spatial, out = shape[-count:], wanted[-count:]
    if all(extent == 1 for extent in out):
        return a.emit(whole, (x,), {"axes": axes, "keepdims": True})
    if count == 2 and len(shape) == 4 and not any(extent % o for extent, o in zip(spatial, out, strict=True)):
        kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
        attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
        return a.emit(part, (x,), attrs)
    parts = [_parts(extent, o) for extent, o in zip(spatial, out, strict=True)]
    if whole == "mean":
        names = [a.write.new_constant("places", places) for places, _ in parts]
        names += [a.write.new_constant("shares", shares) for _, shares in parts]
        return a.emit("resample", (x, *names), {"axes": axes})
    for axis, (places, _) in zip(axes, parts, strict=True):
        gathered = a.emit("gather", (x, a.write.new_constant("places", places)), {"axis": axis})
        x = a.emit("max", (gathered,), {"axes": (axis + 1,), "keepdims": False})
    return x


def _parts(extent: int, out: int) -> tuple[Array, Array]:
    """For every output the elements that it is made of (the last one again where others have more), and their shares."""
    starts = np.arange(out) * extent // out
    ends = -(-(np.arange(out) + 1) * extent // out)
    places = starts[:, None] + np.arange(int((ends - starts).max()))
    shares = np.where(places < ends[:, None], 1 / (ends - starts)[:, None], 0)
    return np.minimum(places, ends[:, None] - 1).astype(np.int32), shares.astype(np.float32)


SPELLINGS: Mapping[str, Spelling] = {
    **{f"{way}avg_pool{rank}d": adaptive_average for way in ("adaptive_", "_adaptive_") for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d": adaptive_max for rank in (1, 2, 3)},
    **{f"avg_pool{rank}d": pool("avg_pool2d") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d{what}": pool("max_pool2d") for rank in (1, 2, 3) for what in ("", "_with_indices")},
}
