"""Weights that alone are quantised, made floats when they are read: by blocks (DequantizeLinear), and ONNX Runtime's MatMulNBits.

How kernels store them is found again from the numbers (:mod:`microc.ops.matrix.levels`). Source: the documentation of ONNX
Runtime's contributed operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.frontend.onnx.application import Application, Spelling
from microc.frontend.onnx.build import Stored
from microc.frontend.onnx.neural import write_dense

BITS = (2, 4, 8)


def matmul_n_bits(application: Application) -> None:
    """com.microsoft.MatMulNBits: A (..., K) times B' of N rows, of blocks of ``bits`` in bytes, the lowest first."""
    attributes = application.operator.attributes
    units, depth, block = (attributes.integer(name) for name in ("N", "K", "block_size"))
    bits = attributes.integer("bits", 4)
    if bits not in BITS or min(units, depth, block) < 1 or attributes.integer("weight_prepacked", 0):
        application.refuse(f"weights of {bits} bits in blocks of {block}", "quantise them to 2, 4 or 8 bits")
    if application.has(4):
        application.refuse("inputs in another order (g_idx)", "quantise the model without it")
    blocks = -(-depth // block)
    packed, scales = application.constant(1), application.constant(2)
    if (
        packed.dtype != np.uint8
        or packed.size != units * blocks * (-(-block * bits // 8))
        or scales.size != units * blocks
    ):
        application.broken(f"weights of shape {packed.shape} and {packed.dtype}, scales of shape {scales.shape}")
    levels = _fields(packed.reshape(units * blocks, -1), bits, block).reshape(units, blocks, block)
    zeros = _zero_points(application, units, blocks, bits).reshape(units, blocks, 1)
    real = (levels - zeros) * scales.astype(np.float32).reshape(units, blocks, 1)
    weight = np.ascontiguousarray(real.reshape(units, -1)[:, :depth].astype(np.float32))
    bias = Stored(application.constant(5).reshape(-1)) if application.has(5) else None
    application.result_alias(write_dense(application, application.operand(0), Stored(weight), bias))


def _fields(rows: Array, bits: int, count: int) -> Array:
    """The first ``count`` numbers of every row of bytes, as float32."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (rows[:, :, None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(apart.reshape(len(rows), -1)[:, :count].astype(np.float32))


def _zero_points(application: Application, units: int, blocks: int, bits: int) -> Array:
    """Those of all blocks as float32: packed by rows, or floats; half the levels where none are given."""
    if not application.has(3):
        return np.full(units * blocks, 1 << (bits - 1), np.float32)
    given = application.constant(3)
    row = -(-blocks * bits // 8)
    if given.dtype == np.uint8 and given.size == units * row:
        return _fields(given.reshape(units, row), bits, blocks)
    if given.dtype == np.uint8 or given.size != units * blocks:
        application.broken(f"zero points of shape {given.shape} and {given.dtype}")
    return np.asarray(given.astype(np.float32))


SPELLINGS: Mapping[str, Spelling] = {"MatMulNBits": Spelling(matmul_n_bits, ("float32",))}
"""Of the domain ``com.microsoft``."""
