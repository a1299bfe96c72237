"""Spellings of ONNX's sums over labels and of its transforms: Einsum, DFT, STFT, MelWeightMatrix, Col2Im."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import FLOAT, Application, Spelling
from microc.graph.ir import Attr


def einsum(application: Application) -> None:
    """Einsum: letters become numbers, the ellipsis the axes that it stands for."""
    equation = application.operator.attributes.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != application.count():
        application.broken(f"equation {equation!r} for {application.count()} operands")
    ranks = [len(application.shape(k)) for k in range(len(terms))]
    hidden = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "." in term), default=0
    )
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)

    def labels(term: str, rank: int) -> tuple[int, ...]:
        dots = rank - len(term.replace("...", ""))
        before, _, after = term.partition("...")
        middle = tuple(range(-dots, 0)) if "..." in term else ()
        return (*(ord(c) for c in before), *middle, *(ord(c) for c in after))

    inputs = tuple(labels(term, rank) for term, rank in zip(terms, ranks, strict=True))
    output = labels(right, len(right.replace("...", "")) + (hidden if "..." in right else 0))
    operands = [application.operand(k) for k in range(len(terms))]
    application.result("einsum", operands, {"inputs": inputs, "output": output})


def _waves(length: int, rows: int, inverse: bool) -> tuple[Array, Array]:
    """Cosines and sines (length, rows) of a discrete Fourier transform."""
    angle = 2 * np.pi * (np.outer(np.arange(length), np.arange(rows)) % length) / length
    scale = 1 / length if inverse else 1.0
    return np.cos(angle) * scale, (np.sin(angle) if inverse else -np.sin(angle)) * scale


def transform_matrix(length: int, made: int, complex_in: bool, inverse: bool, real_out: bool) -> Array:
    """What takes (element, part) to (frequency, part): a matrix (length, parts in, made, parts out).

    ``real_out``: the inverse of a transform whose upper half mirrors the lower, from that half (``length`` // 2 + 1 rows).
    """
    cosine, sine = _waves(length, made, inverse)
    if real_out:
        half = length // 2 + 1
        twice = np.full((half, 1), 2.0)
        twice[0] = 1
        if length % 2 == 0:
            twice[-1] = 1
        return np.stack([cosine[:half] * twice, -sine[:half] * twice], 1)[..., None]
    real = np.stack([cosine, sine], -1)
    imaginary = np.stack([-sine, cosine], -1)
    return np.stack([real, imaginary], 1) if complex_in else real[:, None]


def dft(application: Application) -> None:
    """DFT along an axis, of real or complex numbers, whole or its lower half."""
    attributes, data = application.operator.attributes, application.value(0)
    shape, kind = application.shape(0), application.type(data).dtype
    inverse, onesided = attributes.flag("inverse"), attributes.flag("onesided")
    axis = attributes.integer("axis", 1) if application.opset < 20 else -2
    if application.opset >= 20 and application.has(2):
        axis = int(application.constant(2).reshape(-1)[0])
    axis = application.axis(axis, len(shape))
    real_out = inverse and onesided
    length = 2 * (shape[axis] - 1) if real_out else shape[axis]
    if application.has(1):
        length = int(application.constant(1).reshape(-1)[0])
    taken = length // 2 + 1 if real_out else length
    data = _fitted(application, data, axis, taken)
    made = length // 2 + 1 if onesided and not inverse else length
    matrix = transform_matrix(length, made, shape[-1] == 2, inverse, real_out)
    name = application.new_constant(f"{application.output()}_waves", matrix.astype(kind))
    labels = tuple(range(len(shape)))
    over, parts = 100, 101
    output = tuple(over if k == axis else parts if k == len(shape) - 1 else k for k in labels)
    attrs: Mapping[str, Attr] = {"inputs": (labels, (axis, len(shape) - 1, over, parts)), "output": output}
    application.result("einsum", (data, name), attrs)


def _fitted(application: Application, value: str, axis: int, extent: int) -> str:
    """``value`` cut, or continued with zeros, to ``extent`` elements along ``axis``."""
    shape = application.type(value).shape
    if extent < shape[axis]:
        end = tuple(extent if k == axis else e for k, e in enumerate(shape))
        cut: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": end, "strides": (1,) * len(shape)}
        return application.emit("slice", (value,), cut)
    if extent > shape[axis]:
        padding = tuple((0, extent - e if k == axis else 0) for k, e in enumerate(shape))
        return application.emit("pad", (value,), {"padding": padding, "value": 0.0})
    return value


def stft(application: Application) -> None:
    """STFT: frames, times a window, transformed; the window is part of the matrix where it is known."""
    data, kind = application.value(0), application.type(application.value(0)).dtype
    _, samples, parts = application.shape(0)
    step = int(application.constant(1).reshape(-1)[0])
    length = int(application.constant(3).reshape(-1)[0]) if application.has(3) else application.shape(2)[0]
    frames = (samples - length) // step + 1
    starts = np.arange(frames)[:, None] * step + np.arange(length)
    places = application.new_constant(f"{application.output()}_frames", starts.astype(np.int32))
    rows = application.emit("gather", (data, places), {"axis": 1})
    onesided = application.operator.attributes.flag("onesided", True)
    matrix = transform_matrix(length, length // 2 + 1 if onesided else length, parts == 2, False, False)
    name = application.new_constant(f"{application.output()}_waves", matrix.astype(kind))
    operands: list[str] = [rows, name]
    labels: list[tuple[int, ...]] = [(0, 1, 2, 3), (2, 3, 4, 5)]
    if application.has(2):
        operands.append(application.operand(2))
        labels.append((2,))
    application.result("einsum", operands, {"inputs": tuple(labels), "output": (0, 1, 4, 5)})


def mel_weight_matrix(application: Application) -> None:
    """MelWeightMatrix: known when compiling."""
    bins, length, rate, low, high = (float(application.constant(k).reshape(-1)[0]) for k in range(5))
    count = int(length) // 2 + 1
    mel = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
    points = mel[0] + np.arange(int(bins) + 2) * ((mel[1] - mel[0]) / (bins + 2))
    edges = np.floor((int(length) + 1) * 700 * (10 ** (points / 2595) - 1) / rate).astype(np.int64)
    result = np.zeros((count, int(bins)))
    for k in range(int(bins)):
        first, centre, last = edges[k : k + 3]
        if first == centre:
            result[centre, k] = 1
        else:
            result[first : centre + 1, k] = (np.arange(first, centre + 1) - first) / (centre - first)
        if last > centre:
            result[centre:last, k] = (last - np.arange(centre, last)) / (last - centre)
    from microc.frontend.onnx.tensor import dtype

    kind = dtype(application.operator.attributes.integer("output_datatype", 1), application.where)
    application.result_constant(result.astype(kind))


def col2im(application: Application) -> None:
    """Col2Im: blocks added where they overlap, as a transposed convolution of ones would, tap by tap."""
    attributes, shape = application.operator.attributes, application.shape(0)
    image, block = application.integers(1), application.integers(2)
    rank, taps = len(image), prod(block)
    strides, dilation = (attributes.integers(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = attributes.integers("pads", (0,) * 2 * rank)
    counts = [
        (e + pads[k] + pads[rank + k] - (b - 1) * d - 1) // s + 1
        for k, (e, b, d, s) in enumerate(zip(image, block, dilation, strides, strict=True))
    ]
    channels = shape[1] // taps
    data = application.reshaped(application.value(0), (shape[0] * channels, taps, *counts))
    grown = [(c - 1) * s + (b - 1) * d + 1 for c, s, b, d in zip(counts, strides, block, dilation, strict=True)]
    after = [g - pads[k] - e for k, (g, e) in enumerate(zip(grown, image, strict=True))]
    kind = application.type(data).dtype
    one = np.eye(taps).reshape(taps, 1, *block).astype(kind)
    weight = application.new_constant(f"{application.output()}_taps", one)
    attrs: Mapping[str, Attr] = {
        "strides": strides,
        "dilation": dilation,
        "padding": (*pads[:rank], *after),
        "groups": 1,
    }
    made = application.emit("convolution_transpose", (data, weight), attrs)
    application.result_reshape(made, (shape[0], channels, *image))


SPELLINGS: Mapping[str, Spelling] = {
    "Col2Im": Spelling(col2im),
    "DFT": Spelling(dft),
    "Einsum": Spelling(einsum, (*FLOAT, "int32", "int64")),
    "MelWeightMatrix": Spelling(mel_weight_matrix, ()),
    "STFT": Spelling(stft),
}
