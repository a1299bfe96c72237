"""Floats to integers: VCVTR of Arm's floating-point units, which rounds half to even and saturates."""

from __future__ import annotations

from microc.schedule.intrinsics.base import Intrin, i32
from microc.tir import ir
from microc.tir.ir import Var

_X = Var("x", "float32")
_END = float(1 << 31)

_MEANING = ir.select(
    _X < _END,
    ir.select(_X >= -_END, ir.cast("int32", ir.call("rint", _X)), ir.const(-(1 << 31), "int32")),
    ir.select(_X >= _END, i32((1 << 31) - 1), 0),
)
"""NaN, which is neither below nor above, becomes 0."""

CONVERSION = (
    Intrin(
        "nearest_i32",
        (_X,),
        _MEANING,
        "vcvtr",
        "defined(__ARM_FP) && (__ARM_FP & 4)",
        'int32_t r;\nfloat t;\n__asm__("vcvtr.s32.f32 %1, %2\\n\\tvmov %0, %1" : "=r"(r), "=&t"(t) : "t"(x));\nreturn r;',
        (("float", 1), ("float_move", 1)),
    ),
)
