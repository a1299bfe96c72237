# SPDX-License-Identifier: Apache-2.0
"""TVMScript as TVM's lectures write it: it reads as what we print, and what TIR text does not have is refused by name."""

import numpy as np
import pytest

import microc
from microc import tir
from microc.errors import ModelError, ProgramError

MODULE = '''
import tvm
import numpy as np
from tvm.script import tir as T

N = 4

@tvm.script.ir_module
class MyModule:
    """Two functions."""

    @T.prim_func
    def mm_relu(A: T.Buffer((N, 4), "float32"), B: T.Buffer[(4, 4), "float32"], C: T.Buffer((4, 4))):
        T.func_attr({"global_symbol": "mm_relu", "tir.noalias": T.bool(True)})
        Y = T.alloc_buffer((4, 4), dtype="float32")
        with T.block("root"):
            T.reads()
            for i, j, k in T.grid(N, 4, 4):
                with T.block("Y"):
                    vi = T.axis.S(4, i)
                    vj = T.axis.spatial(4, j)
                    vk = T.axis.R(4, k)
                    T.reads(A[vi, vk], B[vk, vj])
                    T.writes(Y[vi, vj])
                    with T.init():
                        Y[vi, vj] = 0
                    Y[vi, vj] += A[vi, vk] * B[vk, vj]
            for i, j in T.grid(4, 4):
                with T.sblock():
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.max(Y[vi, vj], 0.0)

    @T.prim_func(private=True)
    def clip(x: T.Buffer(8, "int8"), y: T.Buffer((8,), "int8")):
        for i in range(8):
            y[i] = T.min(T.max(x[i], -3), T.int8(5))
'''


def test_a_module_has_functions_by_name() -> None:
    module = tir.module_from_text(MODULE)
    assert module.names == ("mm_relu", "clip") and module["clip"] is module[1]
    assert tir.module_from_text(tir.to_text(module)) == module
    with pytest.raises(ProgramError, match="no function 'main'"):
        module["main"]
    with pytest.raises(ProgramError, match="same name"):
        tir.IRModule((module[0], module[0]))
    a, b = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(np.float32)
    c = np.empty((4, 4), np.float32)
    tir.run(module["mm_relu"], [a, b, c])
    np.testing.assert_allclose(c, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-6)


def body_of(lines: str, buffers: str = 'x: T.Buffer((8,), "int32"), f: T.Buffer((8,), "float32")') -> tir.PrimFunc:
    text = "\n".join("    " + line for line in lines.splitlines())
    return tir.from_text(f"@T.prim_func\ndef f({buffers}):\n{text}\n")


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("x[0] = T.if_then_else(0 <= x[1] < 5, x[2], 7)", "x[0] = T.Select(0 <= x[1] and x[1] < 5, x[2], 7)"),
        ('x[0] = T.cast(f[0] * 2, "int32")', 'x[0] = T.Cast("int32", f[0] * T.float32(2.0))'),
        ("f[0] = T.float32(x[0]) + 1", 'f[0] = T.Cast("float32", x[0]) + T.float32(1.0)'),
        ("f[0] = -1.5", "f[0] = T.float32(-1.5)"),
        ("x[0] = T.floordiv(x[0], 2) + T.floormod(7, x[1])", "x[0] = x[0] // 2 + 7 % x[1]"),
        ("x[0] = T.bitwise_and(x[0], 3) + T.shift_right(x[0], 1)", "x[0] = (x[0] & 3) + (x[0] >> 1)"),
        ("x[0] = T.ceildiv(x[0], 4) + T.FloorMod(x[0], 2)", "x[0] = (x[0] + 4 - 1) // 4 + x[0] % 2"),
        ("f[0] = T.power(f[0], 2.0)", "f[0] = T.pow(f[0], T.float32(2.0))"),
        ('f[0] = T.min_value("float32")', "f[0] = T.float32(-3.4028234663852886e+38)"),
        ('x[0] = T.Cast("int32", T.max_value("int8"))', 'x[0] = T.Cast("int32", T.int8(127))'),
        ('f[0] = T.infinity("float32")', 'f[0] = T.float32("inf")'),
        ('f[0] = T.reinterpret("float32", x[0])', 'f[0] = T.call("reinterpret", x[0], dtype="float32")'),
        ("T.evaluate(0)\nx[0] = 1", "x[0] = 1"),
        ("two = x[0] * 2\nx[0] = two", "two: T.int32 = x[0] * 2\n    x[0] = two"),
        ("f[0] = x[0].astype('float32')", 'f[0] = T.Cast("float32", x[0])'),
        ("with T.LetStmt(x[0] * 2) as two:\n    x[0] = two", "two: T.int32 = x[0] * 2\n    x[0] = two"),
        ("if T.likely(x[0] > 0):\n    x[0] -= 1", "if x[0] > 0:\n        x[0] = x[0] - 1"),
        ("for i in T.serial(1, 8):\n    x[i] = x[i - 1]", "for i in T.serial(7):\n        x[i + 1] = x[i + 1 - 1]"),
        ("f[0] = T.abs(f[0]) + T.rsqrt(f[1])", "f[0] = T.fabs(f[0]) + T.float32(1.0) / T.sqrt(f[1])"),
        ("x[0] = T.abs(x[1])", "x[0] = T.Select(x[1] < 0, -x[1], x[1])"),
        ("f[0] = T.sigmoid(f[1])", "f[0] = T.float32(1.0) / (T.float32(1.0) + T.exp(-f[1]))"),
        ("if T.isnan(f[0]):\n    x[0] = 1", "if f[0] != f[0]:\n        x[0] = 1"),
        ("if T.isfinite(f[0]):\n    x[0] = 1", 'if T.fabs(f[0]) < T.float32("inf"):\n        x[0] = 1'),
        (
            "f[0] = T.if_then_else(x[0] > 1, f[0], 0.0, dtype='float32')",
            "f[0] = T.Select(x[0] > 1, f[0], T.float32(0.0))",
        ),
        ("f[0] = T.pow(T.exp(f[1], dtype='float32'), 2)", "f[0] = T.pow(T.exp(f[1]), T.float32(2.0))"),
        ("T.assume(x[0] > 0)\nT.evaluate(T.assume(x[1] > 0))\nx[0] = 1", "x[0] = 1"),
        ("two: T.let[T.int32] = x[0] * 2\nx[0] = two", "two: T.int32 = x[0] * 2\n    x[0] = two"),
        ("two: T.let = x[0] * 2\nx[0] = two", "two: T.int32 = x[0] * 2\n    x[0] = two"),
        ('y = T.decl_buffer((8,), "int32")\ny[0] = 1', 'y = T.alloc_buffer((8,), "int32", scope="workspace")'),
        (
            'with T.block("b"):\n    T.where(x[0] < 8)\n    T.block_attr({"a": 1})\n'
            "    u, v = T.axis.S(8, 0), T.axis.S(8, 1)\n    x[u] = x[v]",
            'with T.block("b"):\n        u = T.axis.spatial(8, 0)\n        v = T.axis.spatial(8, 1)\n'
            '        T.where(x[0] < 8)\n        T.block_attr({"a": 1})\n        x[u] = x[v]',
        ),
        ("f[0] = x[0] * f[1]", 'f[0] = T.Cast("float32", x[0]) * f[1]'),
        ("f[0] = x[0]", 'f[0] = T.Cast("float32", x[0])'),
        ("x[0] = x[0] + T.int8(1)", "x[0] = x[0] + 1"),
        ("x[0] = x[0] + (x[1] > 0)", 'x[0] = x[0] + T.Cast("int32", x[1] > 0)'),
        ("f[0] = T.pow(f[0], x[0])", 'f[0] = T.pow(f[0], T.Cast("float32", x[0]))'),
        ("f[0] = T.Select(x[0] > 0, x[0], f[0])", 'f[0] = T.Select(x[0] > 0, T.Cast("float32", x[0]), f[0])'),
        ("x[4:8] = x[4:8] * 2", "for lane in T.vectorized(4):\n        x[4 + lane] = x[4 + lane] * 2"),
        ("x[0:8:2] += 1", "for lane in T.vectorized(4):\n        x[lane * 2] = x[lane * 2] + 1"),
        (
            "for i in range(2):\n    f[i * 4:i * 4 + 4] = x[i * 4:(i + 1) * 4]",
            'for lane in T.vectorized(4):\n            f[i * 4 + lane] = T.Cast("float32", x[i * 4 + lane])',
        ),
        (
            'y = T.allocate([8], "int32", "global", True)\ny[0] = 1',
            'y = T.alloc_buffer((8,), "int32", scope="workspace")',
        ),
        (
            'with T.allocate([8], "int32") as y:\n    z = T.Buffer((2, 4), "int32", data=y)\n    z[1, x[0]] = 1',
            'y = T.alloc_buffer((8,), "int32", scope="workspace")\n    y[4 + x[0]] = 1',
        ),
        ("y = T.Buffer((2, 4), data=x.data)\nz = T.decl_buffer((8,), data=y)\nz[2] = 1", "x[2] = 1"),
        ("for i in range(T.int64(8)):\n    x[i] = 0", "for i in T.serial(8):\n        x[i] = 0"),
        ("x[T.int64(7) - T.int64(x.shape[0]) // T.int64(2)] = 0", "x[7 - 8 // 2] = 0"),
        ("for i in range(8):\n    x[T.cast(i, 'int64') % T.int64(4)] = 0", "x[i % 4] = 0"),
        ("f[0] = x[0] / 2.0", 'f[0] = T.Cast("float32", x[0]) / T.float32(2.0)'),
        ("f[0] = f[1] if x[0] > 0 else 0", "f[0] = T.Select(x[0] > 0, f[1], T.float32(0.0))"),
        ("for i in range(1, 8, 3):\n    x[i] = i", "for i in T.serial(3):\n        x[i * 3 + 1] = i * 3 + 1"),
        ("for i in T.serial(8, step=2):\n    x[i] = 0", "for i in T.serial(4):\n        x[i * 2] = 0"),
        (
            'for i in T.thread_binding(8, "threadIdx.x"):\n    x[i] = 0',
            'for i in T.thread_binding(8, thread="threadIdx.x"):\n        x[i] = 0',
        ),
        ("a, c = x[0], 2\nx[1] = a * c", "a: T.int32 = x[0]\n    c: T.int32 = 2\n    x[1] = a * c"),
        ("x[:] = x[:] + 1", "for lane in T.vectorized(8):\n        x[lane] = x[lane] + 1"),
        ("x[6:] = 1", "for lane in T.vectorized(2):\n        x[6 + lane] = 1"),
    ],
)
def test_reads_as_we_print(written: str, printed: str) -> None:
    func = body_of(written)
    assert f"    {printed}\n" in tir.to_text(func)
    assert tir.from_text(tir.to_text(func)) == func


def test_loops_of_int64_index_in_int32() -> None:
    """As Relax prints them; beside data such a variable is cast to the int64 that the text says."""
    func = tir.from_text("""
@T.prim_func
def padded(var_x: T.handle, var_y: T.handle):
    n = T.int64()
    x = T.match_buffer(var_x, (n,), "int64")
    y = T.match_buffer(var_y, (n + T.int64(2),), "int64")
    for i in range(n + T.int64(2)):
        with T.sblock("pad"):
            v = T.axis.spatial(n + T.int64(2), i)
            T.sblock_attr({"pad": True})
            y[v] = T.if_then_else(T.int64(1) <= v and v < n + T.int64(1), x[v - T.int64(1)] * v, T.int64(0))
""")
    assert [p.name for p in func.params] == ["x", "y"] and [v.name for v in func.scalars] == ["n"]
    fixed = tir.specialize(func, {"n": 3})
    tir.verify_func(fixed)
    x, y = np.array([5, 6, 7], np.int64), np.empty(5, np.int64)
    tir.run(fixed, [x, y])
    assert list(y) == [0, 5, 12, 21, 0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('x[0] = T.call_extern("int32", "foo", x[0])', r"call_extern.*plugin\.extern"),
        ('y = T.allocate_const([8], "int32", [8])', "allocate_const.*as a parameter"),
        ('y = T.allocate([8], "int32", "global", x[0] > 0)', r"condition: got x\[0\] > 0.*leave out condition"),
        ('y = T.allocate([8], "int32", "global", scope="local")', "scope is given twice"),
        ('y = T.Buffer((8,), "int32")', "no such function.*alloc_buffer"),
        ('y = T.decl_buffer((8,), "int8", data=x)', "got int8, expected int32, that of x"),
        ('y = T.decl_buffer((9,), "int32", data=x)', "more elements than x has"),
        ('y = T.decl_buffer((8,), "int32", data=x, strides=[2])', r"strides: got \[2\]"),
        ('y = T.decl_buffer((8,), "int32", data=z.data)', "z is not a buffer"),
        ("x[0:4] = x[4:8]", "reads other elements of x than it stores.*buffer of their own"),
        ("x[0:4] = f[0:3]", "different lengths; got 3, 4"),
        ("x[4:0:-1] = 1", "step is no positive number"),
        ("x[0:x[0]] = 1", "no constant length.*for k in range"),
        ("y = x[0:4]", "only where a slice is stored.*for k in T.vectorized"),
        ("x[T.ramp(0, 1, 4)] = 1", "ramp.*T.vectorized"),
        ("x[0] = T.clz(T.popcount(x[0]))", "of a count of bits.*a name first"),
        ("x[0] = T.clz(f[0])", "got float32, expected an integer"),
        ("x[0] = T.And(x[0], x[1])", "got int32, expected bool"),
        ("x[0] = T.sigmoid(x[0])", "wrong dtype; got int32, expected a float"),
        (
            f"x[0] = {'T.abs(' * 40}x[0]{')' * 40}",
            "T.abs: the operand, which the result repeats.*give the operand a name",
        ),
        (f"x[0] = {'T.ceildiv(9, ' * 40}x[0]{')' * 40}", "T.ceildiv: the operand, which the result repeats"),
        ("f[0] = T.exp(f[0], dtype='float64')", "wrong dtype; got float64, expected float32"),
        ('tx = T.env_thread("threadIdx.x")', "thread_binding"),
        ('with T.block("b"):\n    v = T.axis.spatial((1, 8), 0)\n    x[v] = 0', "expected the extent of one from 0"),
        ('with T.block("b"):\n    T.reads(x[0, 0])\n    x[0] = 0', "got 2, expected 1"),
        ('with T.block("b"):\n    T.writes(z[0])\n    x[0] = 0', "z is not a buffer"),
        ('x[0] = T.cast(x[0], "int32", dtype="int8")', "wrong number of arguments; got 2, expected 1"),
        ('f[0] = T.max_value("bfloat16")', "got bfloat16, expected one of float16, float32, float64"),
        ("y = T.alloc_buffer(dtype='int8')", "the shape is missing"),
        ("y = T.alloc_buffer((8,), 'int8', dtype='int8')", "dtype is given twice"),
        ("x[0] = 1.5", "expected an integer literal"),
        ("x[0] = x[0] + f[0]", r"got float32, expected int32.*T\.cast\(value, 'int32'\)"),
        ("x[0] = x[0] + T.int64(1)", "got int64, expected int32"),
        ('f[0] = T.infinity("int8")', "expected one of float16"),
        ("x[0] = x[1] / 2", r"/ is ambiguous for integers.*a // b.*T\.truncdiv"),
        ("for i in range(8 / 2):\n    x[i] = 0", "/ is ambiguous for integers"),
        ("x[0] = x[0] % 3 / 2.0", r"got float32, expected int32.*T\.cast\(value, 'int32'\)"),
        ("x[x[0] + T.int64(1)] = 0", r"index x\[0\] \+ T\.int64\(1\): wrong dtype; got int64.*T\.cast\("),
        ("x[0] = x[1] ** 2", r"x \* x"),
        ("f[0] = max(f[0], 0)", r"write T\.max"),
        ("x[0] = len(x)", r"A\.shape\[0\]"),
        ("x[0] = x.shape[1]", "x has no axis 1"),
        ("x[0] = T.sum(x[0])", r"T\.axis\.reduce"),
        ("a, c = 1, a", "a value reads a"),
        ("for i in range(8, 0, -1):\n    x[i] = 0", "got -1, expected a positive number"),
        ('for i in T.thread_binding(thread="threadIdx.x"):\n    x[i] = 0', "wrong number of arguments; got 0"),
        ("x[0], x[1] = x[1], x[0]", "a value reads x.*by a third name"),
        ("return x", "store the result to a parameter"),
        ("assert x[0] == 0", "leave it out"),
        ('T.attr(0, "pragma", 1)', "annotate the loop"),
        ('T.match_buffer(x, (8,), "int32")', "no statement"),
        ('y = T.match_buffer(x, (8,), "int32")', "parameter of type T.handle"),
    ],
)
def test_refuses_with_a_hint(lines: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"(?s){message}"):
        body_of(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@T.prim_func\ndef f(a: T.handle):\n    pass\n", "without buffer"),
        ("@T.prim_func\ndef f(n: T.int32, a: T.handle):\n    pass\n", "a buffer after a scalar"),
        ("@T.prim_func\ndef f(a: T.handle, a: T.handle):\n    pass\n", "two parameters have the same name; got a"),
        ("@R.function\ndef f(a: R.Tensor((4,), 'float32')):\n    return a\n", "function of Relax"),
        ("import os\n", "something else than functions"),
        ("N = f()\n", "expected a number, a string, or arithmetic on constants"),
        ("N = 1 // 0\n", "expected a number, a string, or arithmetic on constants"),
        ("N = 'a' * 9\n", "expected a number, a string, or arithmetic on constants"),
        (f"N = {10**400} / 2\n", "expected a number, a string, or arithmetic on constants"),
        ("a, b = (1, 1), (2, 2)\nN = (a, b)\n", "expected a number, a string, or arithmetic on constants"),
        (f"N = {2**62} * 4\n", "expected a number, a string, or arithmetic on constants"),
        (
            "@T.prim_func\ndef f(a: T.handle):\n    A = T.match_buffer(a, (4, 4), strides=[8, 1])\n",
            r"strides: got \[8, 1\], expected a buffer without gaps",
        ),
    ],
)
def test_refuses_definitions(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tir.module_from_text(text)


def test_constants_are_literals() -> None:
    """Numbers take the dtype beside them; names that a function declares hide constants."""
    text = """
N, CI, dtype = 4, 2, "float32"
H, W = N // 2 + 1, -N + 7
EPS = 1e-5 * 10
shape = (N, H)

@T.prim_func
def f(a: T.handle, B: T.Buffer((N, W), "float32")):
    A = T.match_buffer(a, shape, dtype, offset_factor=1, strides=[])
    for CI, w in T.grid(N, W):
        B[CI, w] = A[CI, w] * N + EPS
"""
    spelled = """
@T.prim_func
def f(A: T.Buffer((4, 3), "float32"), B: T.Buffer((4, 3), "float32")):
    for CI, w in T.grid(4, 3):
        B[CI, w] = A[CI, w] * T.float32(4) + T.float32(1e-4)
"""
    assert tir.from_text(text) == tir.from_text(spelled)


def test_floats_of_16_bits_are_computed_in_float32() -> None:
    """Sums, products, quotients and roots of float16 are those of numpy, which rounds once."""
    func = tir.from_text("""
@T.prim_func
def f(q: T.Buffer((64,), "uint32"), x: T.Buffer((64,), "float16"), y: T.Buffer((64,), "float16"), n: T.Buffer((64,), "int32")):
    for i in range(64):
        with T.block("y"):
            v = T.axis.S(64, i)
            y[v] = (T.Cast("float16", q[v] & T.uint32(15)) - T.float16(7)) * x[v] / 3.0 + T.max(T.sqrt(T.abs(-x[v])), 0.5)
            n[v] = T.if_then_else(x[v] > 0.5, T.Cast("int32", x[v] * 100), 0)
""")
    dice = np.random.default_rng(0)
    q, x = dice.integers(0, 99, 64).astype(np.uint32), dice.normal(size=64).astype(np.float16)
    y, n = np.zeros(64, np.float16), np.zeros(64, np.int32)
    tir.verify_func(func)
    tir.run(func, [q, x, y, n])
    right = ((q & 15).astype(np.float16) - np.float16(7)) * x / np.float16(3) + np.maximum(
        np.sqrt(np.abs(x)), np.float16(0.5)
    )
    assert np.array_equal(y, right) and np.array_equal(n, np.where(x > 0.5, (x * np.float16(100)).astype(np.int32), 0))


def test_integers_are_promoted_as_in_tvm() -> None:
    """The wider one of two dtypes, the unsigned one of one width; 8 and 16 bits wrap around."""
    func = tir.from_text("""
@T.prim_func
def f(a: T.Buffer((4096,), "int8"), b: T.Buffer((4096,), "int16"), c: T.Buffer((4096,), "uint8"), s: T.Buffer((4096,), "int16"),
      u: T.Buffer((4096,), "uint8"), w: T.Buffer((4096,), "int32"), n: T.Buffer((4096,), "int8")):
    for i in range(4096):
        s[i] = a[i] * b[i] - c[i]
        u[i] = c[i] * c[i] + (~c[i] >> 1)
        w[i] = a[i] + a[i]
        n[i] = -a[i] + (a[i] < b[i])
""")
    dice = np.random.default_rng(0)
    a, b, c = (
        dice.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 4096, dtype, endpoint=True)
        for dtype in (np.int8, np.int16, np.uint8)
    )
    right = (
        a.astype(np.int16) * b - c.astype(np.int16),
        c * c + (~c >> 1),
        (a + a).astype(np.int32),
        -a + (a < b).astype(np.int8),
    )
    found = [np.empty(4096, dtype) for dtype in (np.int16, np.uint8, np.int32, np.int8)]
    tir.run(func, [a, b, c, *found])
    for mine, built, expected in zip(found, microc.build(func)(a, b, c), right, strict=True):
        assert np.array_equal(mine, expected) and np.array_equal(built, expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_bits_are_counted(dtype: str) -> None:
    bits, low = np.dtype(dtype).itemsize * 8, np.iinfo(dtype).min
    func = tir.from_text(f"""
@T.prim_func
def f(x: T.Buffer((200,), "{dtype}"), ones: T.Buffer((200,), "{dtype}"), zeros: T.Buffer((200,), "int32")):
    for i in range(200):
        ones[i] = T.popcount(x[i])
        zeros[i] = T.clz(x[i])
""")
    powers = [(1 << k) + step for k in range(bits) for step in (-1, 0, 1)]
    patterns = [n % (1 << bits) for n in (*powers, *np.random.default_rng(0).integers(0, 1 << 62, 200).tolist())][:200]
    x = np.array([n + 2 * low if low and n >= -low else n for n in patterns], dtype)
    ones, zeros = np.empty(200, dtype), np.empty(200, np.int32)
    tir.run(func, [x, ones, zeros])
    assert list(ones) == [n.bit_count() for n in patterns] and list(zeros) == [bits - n.bit_length() for n in patterns]
    assert all(map(np.array_equal, microc.build(func)(x), (ones, zeros)))


def test_views_share_memory() -> None:
    func = tir.from_text("""
@T.prim_func
def f(A: T.Buffer((4, 6), "int32"), B: T.Buffer((24,), "int32")):
    data = T.allocate([24], "int32", "global")
    square = T.Buffer((4, 6), "int32", data=data)
    flat = T.Buffer((24,), "int32", data=A.data)
    with T.decl_buffer((24,), "int32", data=data) as line:
        for i, j in T.grid(4, 6):
            with T.block("square"):
                vi, vj = T.axis.remap("SS", [i, j])
                T.reads(flat[vi * 6 + vj])
                T.writes(square[vi, vj])
                square[vi, vj] = flat[vi * 6 + vj] * 2
        for i in range(24):
            B[i] = line[23 - i]
""")
    a = np.arange(24, dtype=np.int32).reshape(4, 6)
    assert list(microc.build(func)(a)) == [2 * (23 - k) for k in range(24)]
    with pytest.raises(ModelError, match="more elements than A has"):
        tir.from_text("""
@T.prim_func
def f(A: T.Buffer((n, 6), "int32"), n: T.int32, m: T.int32):
    flat = T.Buffer((m,), "int32", data=A.data)
    flat[0] = 1
""")


def test_unknown_functions_are_refused() -> None:
    func = body_of("for i in range(8):\n    x[i] = T.nothing(x[i])")
    with pytest.raises(ProgramError, match=r"(?s)no function T\.nothing.*plugin\.extern"):
        microc.build(func)
    with pytest.raises(ProgramError, match="without a definition; got nothing"):
        tir.run(func, [np.zeros(8, np.int32), np.zeros(8, np.float32)])
    with pytest.raises(ProgramError, match="wrong dtype of the result; got int32, expected a float"):
        microc.build(body_of("x[0] = T.exp(x[0])"))


def test_decorators_and_notes_of_modules_are_skipped() -> None:
    module = tir.module_from_text("""
@I.ir_module(check_well_formed=False)
class Module:
    I.module_attrs({"external_mods": []})
    I.module_global_infos({})

    @T.prim_func(private=True, check_well_formed=False)
    def f(A: T.Buffer((4,), "float32")):
        for i in T.vectorized(4):
            A[i] = 1.0
""")
    assert module.names == ("f",)
    with pytest.raises(ModelError, match=r"not marked @T\.prim_func"):
        tir.from_text("@T.prim_func(target='cuda')\ndef f(A: T.Buffer((4,))):\n    pass\n")
