# SPDX-License-Identifier: Apache-2.0
"""Networks out of loops of one's own: MLC course, "End to End Model Execution" (``call_tir``)."""

import numpy as np
import pytest

import microc
from microc import te, tir
from microc.errors import ModelError, ProgramError, UsageError
from microc.plugin import OpDef, Plugin, active

MODULE = tir.module_from_text("""
@I.ir_module
class MyModule:
    @T.prim_func
    def linear(x: T.handle, w: T.handle, b: T.handle, z: T.handle):
        T.func_attr({"tir.noalias": True})
        n, m, k = T.int64(), T.int64(), T.int64()
        X = T.match_buffer(x, (1, m), "float32")
        W = T.match_buffer(w, (n, m), "float32")
        B = T.match_buffer(b, (n,), "float32")
        Z = T.match_buffer(z, (1, n), "float32")
        Y = T.alloc_buffer((1, n), "float32")
        for i, j, k in T.grid(1, n, m):
            with T.block("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = T.float32(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vj, vk]
        for i, j in T.grid(1, n):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = Y[vi, vj] + B[vj]
""")
LINEAR = OpDef.from_prim_func(MODULE["linear"])
OWN = Plugin(operators=(LINEAR,))


def test_a_function_of_loops_is_an_operator_of_graphs() -> None:
    """Defined once and called twice, at two sizes."""
    dice = np.random.default_rng(0)
    w0, b0, w1, b1 = (dice.normal(size=shape).astype(np.float32) for shape in ((8, 16), (8,), (4, 8), (4,)))
    with active([OWN]):
        net = microc.GraphBuilder()
        x = net.input("x", (1, 16))
        hidden = net.op("relu", net.op("linear", x, net.constant("w0", w0), net.constant("b0", b0)))
        graph = net.graph("mlp", {"y": net.op("linear", hidden, net.constant("w1", w1), net.constant("b1", b1))})
        with pytest.raises(ModelError, match=r"operand X: got float32\[1, 16\], expected float32\[1, 8\]"):
            net.op("linear", x, "w1", "b1")
        with pytest.raises(ModelError, match="operand X: wrong number of axes; got 1, expected 2"):
            net.op("linear", "b1", "w1", "b1")
        with pytest.raises(ModelError, match="got 1 operands, expected 3"):
            net.op("linear", x)
    data = dice.normal(size=(1, 16)).astype(np.float32)
    right = np.maximum(data @ w0.T + b0, 0) @ w1.T + b1
    np.testing.assert_allclose(microc.compile(graph, plugins=[OWN])(data), right, rtol=1e-4, atol=1e-5)


def test_results_are_the_parameters_that_are_stored() -> None:
    func = tir.from_text("""
@T.prim_func
def minmax(low: T.Buffer((1,), "int32"), x: T.Buffer((6,), "int32"), high: T.Buffer((1,), "int32")):
    low[0] = x[0]
    high[0] = x[0]
    for i in range(1, 6):
        low[0] = T.min(low[0], x[i])
        high[0] = T.max(high[0], x[i])
""")
    own = Plugin(operators=(OpDef.from_prim_func(func),))
    with active([own]):
        net = microc.GraphBuilder()
        x = net.input("x", (6,), "int32")
        with pytest.raises(UsageError, match="operator of 2 results"):
            net.op("minmax", x)
        low, high = net.emit_all("minmax", [x])
        graph = net.graph("ends", {"low": low, "high": high})
    ends = microc.compile(graph, plugins=[own])(np.array([3, -4, 9, 0, 7, 1], np.int32))
    assert [int(end[0]) for end in ends] == [-4, 9]
    with pytest.raises(ProgramError, match="at least one result"):
        OpDef.from_prim_func(tir.from_text('@T.prim_func\ndef f(x: T.Buffer((6,), "int32")):\n    pass\n'))
    unsolved = tir.from_text("""
@T.prim_func
def f(x: T.Buffer((n * 2,), "int32"), y: T.Buffer((1,), "int32"), n: T.int32):
    y[0] = x[n]
""")
    with pytest.raises(ProgramError, match="do not give the sizes n"):
        OpDef.from_prim_func(unsolved)
    with pytest.raises(ProgramError, match=r"got Schedule, expected a PrimFunc(.|\n)*schedule\.func"):
        OpDef.from_prim_func(microc.Schedule(func))  # type: ignore[arg-type]


def test_a_graph_refuses_what_it_does_not_know() -> None:
    net = microc.GraphBuilder()
    x = net.input("x", (1, 16))
    with pytest.raises(UsageError, match="graph: output y 'z' is no value of the graph"):
        net.graph("graph", {"y": "z"})
    with pytest.raises(UsageError, match=r"got shape 16, expected a tuple of integers"):
        net.input("y", 16)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"(?s)expected a tuple of integers.*te\.var is an extent of te\.placeholder"):
        net.input("y", (te.var("n"), 16))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown dtype; got 'float33'"):
        net.input("y", (16,), "float33")
    with pytest.raises(ModelError, match="relu: operands are missing; got 0"):
        net.op("relu")
    with pytest.raises(ModelError, match="dense: operands are missing; got 1"):
        net.op("dense", x)


@pytest.mark.parametrize(
    "body, reads_first",
    [
        ("for i in range(8):\n    B[i] = B[i] + A[i]", True),
        ("for i in range(8):\n    if B[i] > 0:\n        B[i] = A[i]", True),
        ("if A[0] > 0:\n    B[0] = B[1]\nelse:\n    B[0] = B[2]", True),
        ("for i in range(T.min(B[0], 8)):\n    B[i] = A[i]", True),
        ("t = B[3]\nB[0] = t", True),
        ("B[0] = A[0]\nfor i in range(7):\n    B[i + 1] = B[i] + A[i]", False),
        ("for i in range(8):\n    B[i] = T.if_then_else(i > 0, B[T.max(i - 1, 0)], 0) + A[i]", False),
        ("for i in range(8):\n    if i > 0 and B[i - 1] > 3:\n        B[i] = 1\n    else:\n        B[i] = A[i]", False),
        ("for i in range(8):\n    if i > 0:\n        B[i] = B[i - 1]\n    else:\n        B[i] = A[i]", False),
        ("B[A[0] % 8] = 1\nB[0] += 1", False),
    ],
)
def test_outputs_hold_nothing_at_the_start(body: str, reads_first: bool) -> None:
    """Such functions computed from what was in memory: TVM's caller gives every array, ours gets the results."""
    head = '@T.prim_func\ndef f(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):\n'
    func = tir.from_text(head + "".join(f"    {line}\n" for line in body.splitlines()))
    if reads_first:
        with pytest.raises(
            ProgramError, match=r"f reads parameter B before it stores to it(.|\n)*a parameter of its own"
        ):
            microc.build(func)
    else:
        microc.build(func)
