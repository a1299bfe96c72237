"""Products of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_letters

import numpy as np

from microc import dtypes
from microc.frontend.onnx.writer.application import Application, Row
from microc.frontend.onnx.writer.convolution import bias

_BYTES = ("int8", "uint8")


def dense(application: Application) -> None:
    """Gemm of data (M, K) and weights (N, K); of integers that stand for themselves, their product and the bias."""
    if application.quantised or dtypes.is_float(application.dtype()):
        inputs = [application.operand(0), application.operand(1), *bias(application)]
        application.result("Gemm", *inputs, transB=1)
        return
    weight = application.emit("Transpose", application.operand(1), perm=(1, 0))
    code, operands = _integer_product(application), (application.operand(0), weight)
    if application.has(2):
        application.result("Add", application.emit(code, *operands), *bias(application))
    else:
        application.result(code, *operands)


def _integer_product(application: Application) -> str:
    """What multiplies matrices of integers: bytes to int32, or 32 and 64 bits to as many."""
    kinds, sums = {application.dtype(0), application.dtype(1)}, application.result_type.dtype
    if kinds <= {*_BYTES} and sums == "int32":
        return "MatMulInteger"
    if kinds != {sums} or dtypes.nbytes(sums) < 4:
        application.refuse(
            f"{application.node.op} of {' and '.join(sorted(kinds))} to {sums}", "ONNX multiplies bytes to int32"
        )
    return "MatMul"


def matmul(application: Application) -> None:
    """MatMul, of operands whose axes are brought in order; MatMulInteger of bytes, which takes zero points."""
    sides = []
    for position, name in enumerate("ab"):
        axes = application.attr(f"axes_{name}")
        side = application.operand(position)
        sides.append(application.emit("Transpose", side, perm=axes) if axes else side)
    if application.quantised or dtypes.is_float(application.dtype()):
        application.result("MatMul", *sides)
        return
    code, zeros = _integer_product(application), [application.attr(f"zero_point_{name}") for name in "ab"]
    if not any(zeros):
        application.result(code, *sides)
        return
    if code == "MatMul":
        application.refuse(f"matmul of {application.dtype()} less zero points", "ONNX has zero points of bytes")
    points = [np.array(zero, dtypes.to_numpy(application.dtype(k))) for k, zero in enumerate(zeros)]
    application.result(code, *sides, *(application.constant(point, "zero_point") for point in points))


def einsum(application: Application) -> None:
    """Einsum; labels are letters."""
    inputs, output = application.attr("inputs"), application.attr("output")
    numbers = dict.fromkeys(label for labels in inputs for label in labels)
    if len(numbers) > len(ascii_letters):
        application.refuse(f"einsum of {len(numbers)} labels", f"ONNX has letters for {len(ascii_letters)}")
    letters = dict(zip(numbers, ascii_letters, strict=False))
    terms = ",".join("".join(letters[label] for label in labels) for labels in inputs)
    equation = f"{terms}->{''.join(letters[label] for label in output)}"
    operands = [application.operand(k) for k in range(len(inputs))]
    application.result("Einsum", *operands, equation=equation)


ROWS: Mapping[str, Row] = {"dense": dense, "einsum": einsum, "matmul": matmul}
