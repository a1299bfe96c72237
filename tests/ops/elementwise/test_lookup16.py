# SPDX-License-Identifier: Apache-2.0
"""Functions of int16 that TFLite interpolates in tables: all 65,536 numbers, bit for bit."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.frontend.tflite import reader as tflite
from microc.ops.elementwise.elementwise import int16_function_table
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import set_rounding_attributes
from tests.frontend.tflite_model import Op, quantised
from tests.ops.oracle import every, run, single

GELU = ("GELU", "GeluOptions")
CASES: tuple[tuple[str, str, dict[str, Any], float, float, int], ...] = (
    ("EXP", "ExpOptions", {}, 1 / 4096, 1 / 4096, 0xE72E45F4),
    ("EXP", "ExpOptions", {}, 1e-4, 1e-3, 0x2D685CAC),
    ("EXP", "ExpOptions", {}, 2.0**-12, 2.0**-3, 0x8CA45905),
    ("LOG", "", {}, 1 / 4096, 1 / 4096, 0x8D947992),
    ("LOG", "", {}, 1e-3, 3e-4, 0xE4EFEBF3),
    ("LOG", "", {}, 0.01, 1e-4, 0x35EDEDB2),
    (*GELU, {}, 1 / 4096, 1 / 4096, 0x6FE5CB70),
    (*GELU, {}, 1e-3, 3e-4, 0x88162EFF),
    (*GELU, {}, 1e-4, 1e-4, 0x3B02F00D),
    (*GELU, {"Approximate": True}, 1 / 4096, 1 / 4096, 0xC509BCB6),
    (*GELU, {"Approximate": True}, 1e-3, 3e-4, 0xAF5AA6FD),
    (*GELU, {"Approximate": True}, 1e-4, 1e-4, 0xA5F7526A),
)
"""Operator, its table of options, options, scales of input and output, checksum (crc32) of what LiteRT 2.3.0 computes."""


def litert(data: bytes, x: Array) -> Array:
    """The output of LiteRT's reference kernels; the test is skipped where that is not installed."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    kernels = interpreter.OpResolverType.BUILTIN_REF
    session = interpreter.Interpreter(model_content=data, experimental_op_resolver_type=kernels)
    session.allocate_tensors()
    session.set_tensor(session.get_input_details()[0]["index"], x)
    session.invoke()
    return np.asarray(session.get_tensor(session.get_output_details()[0]["index"]))


def one(code: str, options: str, fields: dict[str, Any], scales: tuple[float, float], shape: tuple[int, ...]) -> bytes:
    tensors = [quantised(name, shape, scale, 0, "INT16") for name, scale in zip("xy", scales, strict=True)]
    return single(Op(code, ("x",), ("y",), options, fields), tensors)


def checksum_of(words: Array) -> int:
    return zlib.crc32(words.astype("<i2").tobytes())


@pytest.mark.parametrize(("code", "options", "fields", "scale", "out", "checksum"), CASES)
def test_all_int16_equal_litert(
    code: str, options: str, fields: dict[str, Any], scale: float, out: float, checksum: int
) -> None:
    x = every("int16")
    (ours,) = run(tflite.read_tflite(one(code, options, fields, (scale, out), x.shape), "one.tflite"), (x,))
    assert checksum_of(ours) == checksum


@pytest.mark.parametrize(("code", "options", "fields", "scale", "out", "checksum"), CASES)
def test_the_checksums_are_litert_s(
    code: str, options: str, fields: dict[str, Any], scale: float, out: float, checksum: int
) -> None:
    x = every("int16")
    assert checksum_of(litert(one(code, options, fields, (scale, out), x.shape), x)) == checksum


def test_points_beyond_floats_are_the_end_of_int16() -> None:
    """exp(89) is infinite in float32, and the correction of its point NaN."""
    table = int16_function_table("exp", 0.01, 1e-4)
    assert (table[256 + 70 :] == 32767).all()


SOFTMAX_SCALE, SOFTMAX_CHECKSUM = 1 / 4096, 0x90BC03B7
PAIRS = np.stack([np.arange(-32768, 32768, 2), np.zeros(32768, np.int64)], 1).astype(np.int16)
"""Rows of two classes, whose distances are all even numbers of int16."""


def softmax() -> bytes:
    return one("SOFTMAX", "SoftmaxOptions", {"Beta": 1.0}, (SOFTMAX_SCALE, 1 / 32768), PAIRS.shape)


def test_softmax_with_litert_s_tables() -> None:
    """LiteRT computes the tables of an int16 softmax in float64, TFLite Micro in float32: a few results differ by one."""
    graph = tflite.read_tflite(softmax(), "one.tflite")
    (micro,) = run(graph, (PAIRS,))
    (ours,) = run(set_rounding_attributes(graph, PassContext(options={"rounding": "litert"})), (PAIRS,))
    assert 0 < np.count_nonzero(ours != micro) < 1000
    assert checksum_of(ours) == SOFTMAX_CHECKSUM


def test_the_softmax_checksum_is_litert_s() -> None:
    assert checksum_of(litert(softmax(), PAIRS)) == SOFTMAX_CHECKSUM
