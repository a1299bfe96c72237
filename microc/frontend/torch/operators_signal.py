# SPDX-License-Identifier: Apache-2.0
"""Converters of ATen's operators on signals: pools, Fourier transforms and complex numbers.

Most pools over one or two axes without dilation become pool operators, which have optimised schedules. All others become
window operators (``window_sum``, ``window_max``). A complex tensor becomes a float tensor with real and imaginary parts
along a new last axis; operators on complex tensors have converters of their own, ``COMPLEX_CONVERTERS``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.operator_context import expand_to_axes
from microc.frontend.signature import Argument, ConverterTable, Ints, Value
from microc.frontend.torch.context import OpContext
from microc.frontend.torch.operators_elementwise import emit_atan2
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding
from microc.ops.signal.fft import compute_dft_matrix

CONVERTERS, COMPLEX_CONVERTERS = ConverterTable(), ConverterTable()

# ---- Converters of pools.


@frozen
class PoolAttributes:
    """Attributes of all pools. No ``stride`` stands for the kernel's extents.

    ``ceil_mode``, which becomes additional padding at the end, follows from the shape of the result."""

    kernel_size: Ints
    stride: Ints = ()
    padding: Ints = (0,)


def _make_average_pool_converter(rank: int) -> Callable[..., Value]:
    """Return the converter of average pools over ``rank`` spatial axes."""

    def convert_average_pool(
        context: OpContext,
        x: Value,
        *,
        attributes: PoolAttributes,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        if divisor_override is not None:
            context.refuse("divisor_override is not supported", "leave it out and scale the result")
        window = _make_pool_window(context, x, attributes, rank, (1,) * rank, context.result_shape())
        return _emit_pool(context, "avg_pool2d", x, window, context.result_shape(), count_include_pad)

    return convert_average_pool


def _make_max_pool_converter(rank: int, has_indices: bool) -> Callable[..., Value | tuple[str, str]]:
    """Return the converter of maximum pools over ``rank`` spatial axes. ``has_indices``: the operator has indices as
    its second result, which must not be used."""

    def convert_max_pool(
        context: OpContext, x: Value, *, attributes: PoolAttributes, dilation: Ints = (1,)
    ) -> Value | tuple[str, str]:
        if has_indices and any(user.args[1] == 1 for user in context.node.users):
            context.refuse("the result with indices is not supported", "pool with return_indices=False")
        result_shape = context.result_shape(0 if has_indices else None)
        window = _make_pool_window(context, x, attributes, rank, expand_to_axes(dilation, rank), result_shape)
        pooled = _emit_pool(context, "max_pool2d", x, window, result_shape)
        return (pooled, "") if has_indices else pooled

    return convert_max_pool


for _rank in (1, 2, 3):
    CONVERTERS.register(f"avg_pool{_rank}d")(_make_average_pool_converter(_rank))
    CONVERTERS.register(f"max_pool{_rank}d")(_make_max_pool_converter(_rank, has_indices=False))
    CONVERTERS.register(f"max_pool{_rank}d_with_indices")(_make_max_pool_converter(_rank, has_indices=True))


def _make_pool_window(
    context: OpContext, x: Value, attributes: PoolAttributes, rank: int, dilation: Ints, result_shape: Ints
) -> _PoolWindow:
    """Return the window of a pool over the last ``rank`` axes of ``x``."""
    kernel = expand_to_axes(attributes.kernel_size, rank)
    strides = expand_to_axes(attributes.stride or kernel, rank)
    padding = expand_to_axes(attributes.padding, rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    rows = zip(result_shape[-rank:], strides, spans, x.shape[-rank:], padding, strict=True)
    extra = tuple(max((o - 1) * s + span - extent - 2 * p, 0) for o, s, span, extent, p in rows)
    return _PoolWindow(kernel, strides, padding, extra, dilation)


def _emit_pool(
    context: OpContext, op: str, x: Value, window: _PoolWindow, result_shape: Ints, count_include_pad: bool = False
) -> Value:
    """Emit the pool ``op``, ``avg_pool2d`` or ``max_pool2d``, as a pool operator or as window operators."""
    rank = len(window.kernel)
    batch = context.reshape(x, (*(1,) * (rank + 2 - x.rank), *x.shape))
    counts_padding = count_include_pad and any(window.before)
    is_plain = rank < 3 and set(window.dilation) == {1} and not (counts_padding and window.before != window.after)
    emit = window.emit_pool2d if is_plain else window.emit_window_operators
    return context.reshape(emit(context, op, batch, counts_padding), result_shape)


class _PoolWindow:
    """Window of a pool: its kernel, strides, padding and dilation along each spatial axis.

    ``padding``: elements of padding on both sides of an axis. ``end_padding``: additional elements after it, because of
    ``ceil_mode``."""

    def __init__(
        self,
        kernel: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[int],
        end_padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.kernel, self.strides, self.before, self.dilation = map(tuple, (kernel, strides, padding, dilation))
        self.after = tuple(p + e for p, e in zip(padding, end_padding, strict=True))

    def emit_pool2d(self, context: OpContext, op: str, x: Value, counts_padding: bool) -> Value:
        """Emit a pool over one or two spatial axes, without dilation, as a 2D pool operator. A single axis gets a
        second axis of extent 1."""
        unit_axes = (1,) * (2 - len(self.kernel))
        no_padding = (0,) * len(unit_axes)
        shape = x.shape
        attrs: dict[str, Attr] = {
            "kernel": (*unit_axes, *self.kernel),
            "strides": (*unit_axes, *self.strides),
            "padding": (*no_padding, *self.before, *no_padding, *self.after),
            "layout": "NCHW",
            "rounding": Rounding.EVEN,
        }
        if op == "avg_pool2d":
            attrs["count_include_pad"] = counts_padding
        return context.emit(op, (context.reshape(x, (*shape[:2], *unit_axes, *shape[2:])),), attrs)

    def emit_window_operators(self, context: OpContext, op: str, x: Value, counts_padding: bool) -> Value:
        """Emit a pool over any number of spatial axes as window operators: the maximum of each window, or its sum
        divided by its number of elements. This number differs at the edges."""
        attrs: dict[str, Attr] = {
            "kernel": self.kernel,
            "strides": self.strides,
            "padding": (*self.before, *self.after),
            "dilation": self.dilation,
        }
        if op == "max_pool2d":
            return context.emit("window_max", (x,), attrs)
        total = context.emit("window_sum", (x,), attrs)
        counts = np.ones((1,), np.float32)
        for axis, extent in enumerate(x.shape[2:]):
            counts = np.multiply.outer(
                counts, self._count_elements_per_window(axis, extent, total.shape[2 + axis], counts_padding)
            )
        return context.emit("div", (total, context.new_constant("counts", counts[None])))

    def _count_elements_per_window(self, axis: int, extent: int, out_extent: int, counts_padding: bool) -> Array:
        """Return the number of elements of every window along an axis.

        ``counts_padding`` includes padding, except for the padding that ``ceil_mode`` adds."""
        low, high = (-self.before[axis], extent + self.before[axis]) if counts_padding else (0, extent)
        starts = np.arange(out_extent)[:, None] * self.strides[axis] - self.before[axis]
        positions = starts + np.arange(self.kernel[axis]) * self.dilation[axis]
        return np.asarray(((positions >= low) & (positions < high)).sum(axis=1), np.float32)


def _make_adaptive_pool_converter(
    rank: int, reduce_op: str, pool_op: str, has_indices: bool
) -> Callable[..., Value | tuple[str, str]]:
    """Return the converter of adaptive pools over ``rank`` spatial axes.

    The pool becomes a reduction if its result has one element for each channel, a pool operator if the input's extents
    are multiples of the result's, and otherwise weighted sums along each axis, or gathers of the elements of each
    window with a reduction. ``reduce_op`` and ``pool_op``: microc's operators for the reduction and the pool.
    ``has_indices``: the operator has indices as its second result."""

    def convert_adaptive_pool(context: OpContext, x: Value) -> Value | tuple[str, str]:
        out = context.result_shape(0 if has_indices else None)[-rank:]
        pooled = _emit_adaptive_pool(context, x, reduce_op, pool_op, out)
        return (pooled, "") if has_indices else pooled

    return convert_adaptive_pool


for _rank in (1, 2, 3):
    CONVERTERS.register(f"adaptive_avg_pool{_rank}d", f"_adaptive_avg_pool{_rank}d")(
        _make_adaptive_pool_converter(_rank, "mean", "avg_pool2d", has_indices=False)
    )
    CONVERTERS.register(f"adaptive_max_pool{_rank}d")(
        _make_adaptive_pool_converter(_rank, "max", "max_pool2d", has_indices=True)
    )


def _emit_adaptive_pool(context: OpContext, x: Value, reduce_op: str, pool_op: str, out: Ints) -> Value:
    """Emit an adaptive pool, whose result has the extents ``out`` along the last axes."""
    axes = tuple(range(x.rank - len(out), x.rank))
    spatial = x.shape[-len(out) :]
    if all(extent == 1 for extent in out):
        return context.emit(reduce_op, (x,), {"axes": axes, "keepdims": True})
    if len(out) == 2 and x.rank == 4 and not any(extent % o for extent, o in zip(spatial, out, strict=True)):
        kernel = tuple(extent // o for extent, o in zip(spatial, out, strict=True))
        attrs: Mapping[str, Attr] = {"kernel": kernel, "strides": kernel, "padding": (0, 0, 0, 0), "layout": "NCHW"}
        return context.emit(pool_op, (x,), attrs)
    windows = [_adaptive_window_indices_and_weights(extent, o) for extent, o in zip(spatial, out, strict=True)]
    if reduce_op == "mean":
        names = [context.new_constant("places", indices) for indices, _ in windows]
        names += [context.new_constant("shares", weights) for _, weights in windows]
        return context.emit("resample", (x, *names), {"axes": axes})
    for axis, (indices, _) in zip(axes, windows, strict=True):
        gathered = context.emit("gather", (x, context.new_constant("places", indices)), {"axis": axis})
        x = context.emit("max", (gathered,), {"axes": (axis + 1,), "keepdims": False})
    return x


def _adaptive_window_indices_and_weights(in_extent: int, out_extent: int) -> tuple[Array, Array]:
    """Return the indices and weights of the input elements of each of the ``out_extent`` windows of an adaptive pool.

    Both arrays have the shape (``out_extent``, elements of the largest window). A smaller window repeats its last
    index, with weight 0."""
    starts = np.arange(out_extent) * in_extent // out_extent
    ends = -(-(np.arange(out_extent) + 1) * in_extent // out_extent)
    indices = starts[:, None] + np.arange(int((ends - starts).max()))
    weights = np.where(indices < ends[:, None], 1 / (ends - starts)[:, None], 0)
    return np.minimum(indices, ends[:, None] - 1).astype(np.int32), weights.astype(np.float32)


# ---- Converters of Fourier transforms. ATen writes torch.fft and torch.stft as transforms between real (r) and complex (c) data.
#
# Transforms of real data along the last axis, of a length that is a power of two, are fast; others are products with a matrix.

_MOST_DFT_POINTS = 1 << 10
"""Maximum length of a transform by a matrix, which has length x length complex numbers: 16 MiB."""


@COMPLEX_CONVERTERS.register("_fft_r2c")
def convert_fft_r2c(context: OpContext, x: Value, *, dim: Ints, normalization: int, onesided: bool) -> Value:
    """Convert _fft_r2c: the spectrum of real data; with ``onesided`` only its lower half, along the last of the axes."""
    axes = [axis % x.rank for axis in dim]
    length = x.shape[axes[-1]]
    bin_count = length // 2 + 1 if onesided else length
    if onesided and axes[-1] == x.rank - 1 and length >= 4 and not length & (length - 1):
        flat = context.emit("rfft", (x,), {"fft_length": length})
        spectrum = context.reshape(flat, (*x.shape[:-1], bin_count, 2))
    else:
        parts = context.reshape(x, (*x.shape, 1))
        spectrum = _emit_dft(context, parts, axes[-1], length, bins=bin_count)
    for axis in axes[:-1]:
        spectrum = _emit_dft(context, spectrum, axis, x.shape[axis], bins=x.shape[axis])
    return _normalise_spectrum(context, spectrum, [x.shape[axis] for axis in axes], normalization)


@COMPLEX_CONVERTERS.register("_fft_c2c")
def convert_fft_c2c(context: OpContext, x: Value, *, dim: Ints, normalization: int, forward: bool) -> Value:
    """Convert _fft_c2c: the transform of complex data, or its inverse without a division."""
    axes = [axis % (x.rank - 1) for axis in dim]
    for axis in axes:
        x = _emit_dft(context, x, axis, x.shape[axis], bins=x.shape[axis], is_inverse=not forward)
    return _normalise_spectrum(context, x, [x.shape[axis] for axis in axes], normalization)


@COMPLEX_CONVERTERS.register("_fft_c2r")
def convert_fft_c2r(context: OpContext, x: Value, *, dim: Ints, normalization: int, last_dim_size: int) -> Value:
    """Convert _fft_c2r: real data of ``last_dim_size`` elements from the lower half of their spectrum, without a division."""
    *others, axis = (axis % (x.rank - 1) for axis in dim)
    lengths = [x.shape[other] for other in others] + [last_dim_size]
    for other in others:
        x = _emit_dft(context, x, other, x.shape[other], bins=x.shape[other], is_inverse=True)
    x = context.slice_axis(x, axis, 0, last_dim_size // 2 + 1)
    if axis == x.rank - 2 and last_dim_size >= 4 and not last_dim_size & (last_dim_size - 1):
        flat = context.reshape(x, (*x.shape[:-2], last_dim_size + 2))
        data = context.emit("irfft", (flat,), {"fft_length": last_dim_size})
        if normalization == 2 and not others:
            return data  # divided by the number of elements already
        data = _emit_product(context, data, float(last_dim_size))
    else:
        length = last_dim_size
        parts = _emit_dft(context, x, axis, length, bins=length, is_inverse=True, is_output_real=True)
        data = context.reshape(parts, parts.shape[:-1])
    return _normalise_spectrum(context, data, lengths, normalization)


def _emit_dft(
    context: OpContext,
    x: Value,
    axis: int,
    length: int,
    *,
    bins: int,
    is_inverse: bool = False,
    is_output_real: bool = False,
) -> Value:
    """Emit the product along an axis of data, with parts along the last axis, and the matrix of a transform of ``length``
    elements or its inverse, which is not divided by the length."""
    if length > _MOST_DFT_POINTS:
        context.refuse(
            f"length of the transform: got {length}, expected at most {_MOST_DFT_POINTS}",
            "use rfft and irfft along the last axis with a power of two as length",
        )
    matrix = compute_dft_matrix(length, bins, x.shape[-1] == 2, is_inverse, is_output_real)
    matrix = matrix * length if is_inverse else matrix
    labels = tuple(range(x.rank))
    frequency, part = x.rank, x.rank + 1
    output = (*(frequency if k == axis else k for k in labels[:-1]), part)
    waves = context.new_constant("waves", matrix.astype(np.float32))
    attrs: Mapping[str, Attr] = {"inputs": (labels, (axis, x.rank - 1, frequency, part)), "output": output}
    return context.emit("einsum", (x, waves), attrs)


def _normalise_spectrum(context: OpContext, x: Value, lengths: Sequence[int], normalization: int) -> Value:
    """Emit the division of a spectrum by nothing (``normalization`` 0), the root of the number of elements (1), or that
    number (2)."""
    count = math.prod(lengths)
    return (
        x if not normalization else _emit_product(context, x, 1 / (math.sqrt(count) if normalization == 1 else count))
    )


def _emit_product(context: OpContext, x: Value, factor: float) -> Value:
    return context.emit("mul", (x, context.convert_to_value(factor)))


# ---- Converters of complex numbers: their parts, arithmetic, and moves, which leave the last axis where it is.


@COMPLEX_CONVERTERS.register("view_as_complex", "view_as_real", "clone", "alias", "detach", "resolve_conj")
def return_parts(context: OpContext, x: Value) -> Value:
    """Return the operand, whose last axis holds the parts in PyTorch's view of real numbers, too."""
    return x


@COMPLEX_CONVERTERS.register("complex")
def convert_complex(context: OpContext, real: Value, imag: Value) -> Value:
    """Convert complex: numbers from their parts."""
    return _join_parts(context, real, imag)


@COMPLEX_CONVERTERS.register("_conj", "conj", "conj_physical", "_conj_physical")
def convert_conj(context: OpContext, x: Value) -> Value:
    """Convert conj: the imaginary part negated."""
    return context.emit("mul", (x, context.new_constant("conjugate", np.array([1, -1], np.float32))))


@COMPLEX_CONVERTERS.register("neg")
def convert_complex_neg(context: OpContext, x: Value) -> Value:
    """Convert neg of complex numbers."""
    return context.emit("neg", (x,))


@COMPLEX_CONVERTERS.register("abs")
def convert_complex_abs(context: OpContext, x: Value) -> Value:
    """Convert abs of complex numbers: the root of the sum of the parts' squares."""
    square = context.emit("mul", (x, x))
    return context.emit("sqrt", (context.emit("sum", (square,), {"axes": (x.rank - 1,), "keepdims": False}),))


@COMPLEX_CONVERTERS.register("angle")
def convert_angle(context: OpContext, x: Value) -> Value:
    """Convert angle of complex numbers: atan2 of the imaginary and the real part."""
    real, imaginary = _split_parts(context, x)
    return emit_atan2(context, imaginary, real)


@COMPLEX_CONVERTERS.register("_to_copy")
def convert_to_complex(context: OpContext, x: Value) -> Value:
    """Convert _to_copy: complex numbers from real ones."""
    if context.node.all_input_nodes[0].meta["val"].is_complex():
        return x
    return _join_parts(context, context.cast(x, "float32"), None)


@COMPLEX_CONVERTERS.register("add", "sub")
def convert_complex_sum(context: OpContext, x: Argument, other: Argument) -> Value:
    """Convert the sum and the difference of two numbers, complex or real."""
    return context.emit(
        context.operator_name, [_join_parts(context, *parts) for parts in _split_operands(context, x, other)]
    )


@COMPLEX_CONVERTERS.register("mul")
def convert_complex_mul(context: OpContext, x: Argument, other: Argument) -> Value:
    """Convert the product of two numbers, complex or real: (a c - b d, a d + b c) for a + b i and c + d i."""
    (a, b), (c, d) = _split_operands(context, x, other)

    def multiply(left: Value, right: Value) -> Value:
        return context.emit("mul", (left, right))

    if b is None or d is None:
        factor, real, imaginary = (c, a, b) if d is None else (a, c, d)
        assert imaginary is not None  # one of both is complex
        return _join_parts(context, multiply(real, factor), multiply(imaginary, factor))
    real = context.emit("sub", (multiply(a, c), multiply(b, d)))
    return _join_parts(context, real, context.emit("add", (multiply(a, d), multiply(b, c))))


@COMPLEX_CONVERTERS.register("div")
def convert_complex_div(context: OpContext, x: Value, other: Argument) -> Value:
    """Convert the quotient of complex numbers and a real number."""
    if not isinstance(other, (int, float)):
        context.refuse("division by a tensor is not supported", "multiply by conj() and divide both parts by abs()")
    return _emit_product(context, x, 1 / other)


@COMPLEX_CONVERTERS.register("permute")
def convert_complex_permute(context: OpContext, x: Value, *, dims: Ints) -> Value:
    """Convert permute of complex numbers."""
    return context.transpose(x, (*(d % (x.rank - 1) for d in dims), x.rank - 1))


@COMPLEX_CONVERTERS.register("view", "reshape", "unsqueeze", "squeeze", "_unsafe_view", "flatten")
def convert_complex_view(context: OpContext, x: Value) -> Value:
    """Convert a view of complex numbers with the same elements in the same order."""
    return context.reshape(x, (*context.result_shape(), 2))


@COMPLEX_CONVERTERS.register("slice", "select")
def convert_complex_slice(
    context: OpContext,
    x: Value,
    *,
    dim: int = 0,
    index: int | None = None,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """Convert slice along an axis of complex numbers, and select, a slice of one element without its axis."""
    axis = dim % (x.rank - 1)
    first = None if index is None else index % x.shape[axis]
    begin, stop, step = slice(start, end, step).indices(x.shape[axis]) if first is None else (first, first + 1, 1)
    starts, ends, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], ends[axis], strides[axis] = begin, stop, step
    attrs: Mapping[str, Attr] = {"begin": tuple(starts), "end": tuple(ends), "strides": tuple(strides)}
    return context.reshape(context.emit("slice", (x,), attrs), (*context.result_shape(), 2))


def _split_operands(context: OpContext, *arguments: Argument) -> list[tuple[Value, Value | None]]:
    """Return the real and the imaginary parts of operands: values, tensors known at compile time, or numbers. Real operands
    have None as imaginary part."""
    operands: list[tuple[Value, Value | None]] = []
    for argument, source in zip(arguments, context.node.args, strict=True):
        tensor = source.meta["val"] if hasattr(source, "meta") else context.torch.as_tensor(source)
        if not tensor.is_complex():
            operands.append((context.convert_to_value(argument, "float32"), None))
        elif isinstance(argument, str):
            operands.append(_split_parts(context, context.look_up(argument)))
        else:
            data = context.torch.as_tensor(argument).resolve_conj()
            real, imaginary = (context.to_numpy_array(part.clone()) for part in (data.real, data.imag))
            operands.append((context.new_constant("real", real), context.new_constant("imaginary", imaginary)))
    return operands


def _split_parts(context: OpContext, x: Value) -> tuple[Value, Value]:
    """Return the real and the imaginary parts of complex numbers."""
    halves = [context.slice_axis(x, x.rank - 1, part, part + 1) for part in (0, 1)]
    return context.reshape(halves[0], x.shape[:-1]), context.reshape(halves[1], x.shape[:-1])


def _join_parts(context: OpContext, real: Value, imaginary: Value | None) -> Value:
    """Return complex numbers from their parts; None stands for zeros."""
    if imaginary is None:
        imaginary = context.new_constant("zeros", np.zeros(real.shape, np.float32))
    columns = [context.reshape(part, (*part.shape, 1)) for part in (real, imaginary)]
    return context.emit("concat", columns, {"axis": real.rank})
