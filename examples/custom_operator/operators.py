# SPDX-License-Identifier: Apache-2.0
"""Two operators that no format has, for microc: `microc compile model.onnx --plugin operators.py`.

``snake`` is an activation function, x + sin(alpha * x)**2 / alpha (Ziyin, Hartwig and Ueda 2020), and needs one expression.
``magnitude`` is the length of complex numbers in integers, as spectra are made of, by a square root that is written in C.
"""

from __future__ import annotations

import numpy as np

from microc.plugin import (
    Case,
    ModelError,
    OnnxApplication,
    OpCall,
    OpDef,
    Plugin,
    TensorType,
    TfliteApplication,
    Value,
    extern,
    in_floats,
    ir,
    real,
    te,
)

# ---------------------------------------------------------------- snake: elementwise, by one expression


def snake_infer(attrs, types):
    return (types[0],)


def snake_reference(attrs, arrays):
    """The meaning, in numpy: what the compiled operator is compared with."""
    x = arrays[0].astype(np.float64)
    return ((x + np.sin(attrs["alpha"] * x) ** 2 / attrs["alpha"]).astype(np.float32),)


def snake_scalar(attrs, args):
    """One element of the result from one element of every operand; fusion and loops are the compiler's business."""
    (x,) = args
    wave = ir.call("sin", x * attrs["alpha"])
    return x + wave * wave * (1.0 / attrs["alpha"])


def snake_cases():
    for alpha in (0.5, 2.0):
        yield Case({"alpha": alpha}, (TensorType((1, 5, 7, 3), "float32"),), tolerance=1e-5, name=f"alpha {alpha}")
    edges = np.array([0.0, -0.0, 1e-30, np.nan], np.float32)
    yield Case({"alpha": 1.0}, (TensorType((4,), "float32"),), arrays=(edges,), tolerance=1e-5, name="edges")


SNAKE = OpDef(
    "snake",
    infer=snake_infer,
    reference=snake_reference,
    scalar=snake_scalar,
    cases=snake_cases,
    attrs={"alpha": real("how fast it winds", 1.0)},
    legalize=in_floats,  # of int8 tensors it becomes a table of 256 numbers
)


def snake_from_model(application: OnnxApplication | TfliteApplication, x: Value, *, alpha: float = 1.0) -> None:
    """The parameters are the operator's operand and attribute; both are checked before this is called."""
    application.result("snake", (x,), {"alpha": alpha})


# ---------------------------------------------------------------- magnitude: a tensor expression that calls C

_X = ir.Var("x", "uint32")

ISQRT = extern(
    "isqrt32",
    (_X,),
    # What it means: exact, for a double holds every 32-bit number.
    meaning=ir.cast("uint32", ir.call("sqrt", ir.cast("float64", _X))),
    # What the firmware runs: no double, no library.
    body="""uint32_t rest = x, root = 0u, bit = (uint32_t)1 << 30;
while (bit > rest) {
    bit >>= 2;
}
while (bit != 0u) {
    if (rest >= root + bit) {
        rest -= root + bit;
        root = (root >> 1) + bit;
    } else {
        root >>= 1;
    }
    bit >>= 2;
}
return root;""",
    operations={"alu": 100, "branch": 20},
)


def magnitude_infer(attrs, types):
    (x,) = types
    if x.dtype != "int16" or not x.shape or x.shape[-1] != 2:
        raise ModelError(f"magnitude of {x.dtype}{list(x.shape)}; it takes int16 pairs of real and imaginary part")
    return (TensorType(x.shape[:-1], "int32"),)


def magnitude_reference(attrs, arrays):
    parts = arrays[0].astype(np.int64)
    return (np.sqrt((parts**2).sum(axis=-1).astype(np.float64)).astype(np.int32),)


def magnitude_compute(call: OpCall) -> te.Tensor:
    x = call.operands[0].tensor((call.out_types[0].size, 2))

    def square(i, part):
        value = ir.cast("int32", x[i, part])
        return ir.cast("uint32", value * value)

    def element(i):
        return ir.cast("int32", ir.call("isqrt32", square(i, 0) + square(i, 1)))

    return te.compute((call.out_types[0].size,), element, "out")


def magnitude_cases():
    yield Case({}, (TensorType((3, 65, 2), "int16"),), name="spectrum")
    ends = np.array([[-32768, -32768], [32767, 0], [0, 0], [3, 4], [1, 1], [0, -1]], np.int16)
    yield Case({}, (TensorType((6, 2), "int16"),), arrays=(ends,), name="ends")


MAGNITUDE = OpDef(
    "magnitude",
    infer=magnitude_infer,
    reference=magnitude_reference,
    compute=magnitude_compute,
    cases=magnitude_cases,
)


def magnitude_from_onnx(application: OnnxApplication, x: Value) -> None:
    application.result("magnitude", (x,))


PLUGIN = Plugin(
    operators=(SNAKE, MAGNITUDE),
    tflite={"Snake": snake_from_model},
    onnx={"com.example::Snake": snake_from_model, "com.example::Magnitude": magnitude_from_onnx},
    externs=(ISQRT,),
)
