# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models of many operators, to begin mutation with."""

from __future__ import annotations

import numpy as np

from microc.base.dtypes import Array
from tests.frontend.onnx_model import node, proto


def weights(*shape: int, dtype: str = "int8", seed: int = 1) -> Array:
    """Integers from -100 to 99; floats: 64ths of them."""
    drawn = np.random.default_rng(seed).integers(-100, 100, shape)
    return drawn.astype(dtype) if dtype != "float32" else (drawn / 64).astype("float32")


def floats(*shape: int, seed: int = 1) -> Array:
    return weights(*shape, dtype="float32", seed=seed)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


def onnx_models() -> dict[str, bytes]:
    """Models of an operator or a few, by name."""
    image, row = {"x": (1, 3, 5, 5)}, {"x": (2, 6)}
    kernel, dense = floats(4, 3, 3, 3), floats(6, 4)

    def ints(*values: int) -> Array:
        return np.array(values, np.int64)

    made = {
        "Conv": proto([node("Conv", ["x", "w"], pads=[1, 1, 1, 1])], image, {"w": kernel}),
        "ConvTranspose": proto([node("ConvTranspose", ["x", "w"], strides=[2, 2])], image, {"w": floats(3, 2, 2, 2)}),
        "Gemm": proto([node("Gemm", ["x", "w", "b"], alpha=0.5)], row, {"w": dense, "b": dense[0]}),
        "MatMul": proto([node("MatMul", ["x", "w"])], row, {"w": dense}),
        "MaxPool": proto([node("MaxPool", ["x"], kernel_shape=[2, 2], strides=[2, 2])], image),
        "AveragePool": proto([node("AveragePool", ["x"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])], image),
        "Softmax": proto([node("Softmax", ["x"], axis=1)], row),
        "LayerNormalization": proto(
            [node("LayerNormalization", ["x", "s", "b"], axis=-1)], row, {"s": floats(6), "b": floats(6, seed=2)}
        ),
        "BatchNormalization": proto(
            [node("BatchNormalization", ["x", "s", "b", "m", "v"])],
            image,
            {n: np.abs(floats(3, seed=k)) for k, n in enumerate("sbmv")},
        ),
        "Reshape": proto([node("Reshape", ["x", "n"])], row, {"n": ints(3, -1)}),
        "Transpose": proto([node("Transpose", ["x"], perm=[0, 2, 3, 1])], image),
        "Slice": proto(
            [node("Slice", ["x", "a", "b", "c", "d"])],
            image,
            {"a": ints(0, 1), "b": ints(3, 9), "c": ints(2, 3), "d": ints(1, 2)},
        ),
        "Gather": proto([node("Gather", ["x", "n"], axis=1)], row, {"n": ints(5, 0, -1)}),
        "Concat": proto([node("Relu", ["x"], ["r"]), node("Concat", ["x", "r"], axis=1)], row),
        "Pad": proto([node("Pad", ["x", "n"], mode="reflect")], row, {"n": ints(0, 2, 0, 1)}),
        "Resize": proto(
            [node("Resize", ["x", "", "s"], mode="linear")], image, {"s": np.array([1, 1, 2, 2], np.float32)}
        ),
        "ReduceMean": proto([node("ReduceMean", ["x"], axes=[1], keepdims=0)], row),
        "Split": proto([node("Split", ["x", "n"], ["y", "z"], axis=1)], row, {"n": ints(2, 4)}, outputs=("y", "z")),
        "Where": proto([node("Greater", ["x", "w"], ["m"]), node("Where", ["m", "x", "w"])], row, {"w": floats(6)}),
        "Einsum": proto([node("Einsum", ["x", "w"], equation="ij,jk->ik")], row, {"w": dense}),
        "CumSum": proto([node("CumSum", ["x", "a"])], row, {"a": np.array(1, np.int64)}),
        "TopK": proto([node("TopK", ["x", "k"], ["y", "i"])], row, {"k": ints(3)}, outputs=("y", "i")),
        "Clip": proto([node("Clip", ["x", "a", "b"])], row, {"a": scalar(-0.5), "b": scalar(0.5)}),
        "LSTM": proto(
            [node("LSTM", ["x", "w", "r"], ["y", "h"], hidden_size=2)],
            {"x": (3, 1, 4)},
            {"w": floats(1, 8, 4), "r": floats(1, 8, 2)},
            outputs=("y", "h"),
        ),
        "QDQ": proto(
            [
                node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                node("DequantizeLinear", ["w", "t", "u"], ["v"]),
                node("MatMul", ["d", "v"], ["m"]),
                node("QuantizeLinear", ["m", "s", "z"], ["n"]),
                node("DequantizeLinear", ["n", "s", "z"]),
            ],
            row,
            {
                "s": scalar(0.05),
                "z": np.array(3, np.int8),
                "w": weights(6, 4),
                "t": scalar(0.01),
                "u": np.array(0, np.int8),
            },
        ),
        "chain": proto(
            [
                node("Conv", ["x", "w"], ["c"]),
                node("Relu", ["c"], ["r"]),
                node("GlobalAveragePool", ["r"], ["g"]),
                node("Flatten", ["g"], ["f"]),
                node("MatMul", ["f", "d"], ["m"]),
                node("Sigmoid", ["m"]),
            ],
            image,
            {"w": kernel, "d": floats(4, 2)},
        ),
    }
    for code in ("Tanh", "Exp", "Erf", "Sqrt", "Log", "HardSwish", "Gelu", "Softplus", "Sign", "Floor", "Neg"):
        made[code] = proto([node(code, ["x"])], row, opset=20)
    for code in ("Add", "Mul", "Div", "Sub", "Pow", "Max"):
        made[code] = proto([node(code, ["x", "w"])], row, {"w": floats(6)})
    return {name: found.SerializeToString() for name, found in made.items()}
