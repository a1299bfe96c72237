"""Products of floats in float16, where the user lets them be so (``--math half``): each factor is rounded to float16, terms are
added in float16 in runs of at most :data:`RUN`, every one with one rounding, and the runs' sums are added in float32.

A run of n terms is then off by (n + 2) u of its sum of \\|x w\\| at most, but for terms in u**2, u = 2**-11: each factor is off
by u of itself, which makes 2 u of a term, and each of n additions rounds by u of a partial sum, which is no larger than the sum
of \\|x w\\| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Beside that the roundings of float32 between
runs do not count: (:data:`RUN` + 2) 2**-11 sum \\|x w\\|, and as a rule a small part of it, for roundings go either way. Numbers
below 2**-14 are multiples of 2**-24 in float16: each factor and each addition may be off by another 2**-25.

From 65,520 on numbers are infinite in float16: weights that large keep a layer in float32, what is known when a network runs does
not. An activation or a partial sum beyond it makes infinities, or NaN, of the outputs that it is part of.
"""

from __future__ import annotations

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.errors import InternalError
from microc.ops.matrix.gemm import start
from microc.ops.registry import OpCall
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC
from microc.tir.names import HALVES as BLOCK

RUN = 32
"""Terms that are added in float16 at most."""
LANES = 8
"""Columns of a vector of halves."""
HALF_TOLERANCE = 2e-2
"""Of results of a few dozen terms of about one."""
END, TURN, ZEROS = 5.0, 0.1, 4.0
"""Terms that the end of a run, that of an iteration and zeros behind a row of data take as long as."""
HALF = "float16"


def half_weights(call: OpCall, groups: int = 1) -> Array | None:
    """Constant weights (O, K) of a layer of floats in so many groups as float16; None where some would be infinite, or vectors
    are not filled."""
    data, weight, _ = call.weighted
    if weight.data is None or {data.type.dtype, weight.type.dtype} != {"float32"} or not weight.data.size:
        return None
    if call.attrs.get("groups", 1) != groups or call.attrs.get("out_dtype") not in (None, "", "float32"):
        return None
    rows = weight.data.reshape(len(weight.data), -1)
    halves = dtypes.narrowed(rows, HALF)
    return halves if len(rows) % LANES == 0 and np.isfinite(halves).all() else None


def runs_of(depth: int) -> tuple[int, int]:
    """How many runs a sum has, and the terms of each, of which the last may be zeros: what takes the least time, for a run's end
    takes as long as :data:`END` terms, four terms are an iteration where they come out even, and zeros have to be made."""

    def time(runs: int) -> float:
        terms = -(-depth // runs)
        together = next(n for n in (4, 3, 2, 1) if terms % n == 0)
        return runs * (terms * (1 + TURN / together) + END) + ZEROS * (runs * terms > depth)

    least = -(-depth // RUN)
    runs = min(range(least, min(2 * least, depth) + 1), key=time)
    return runs, -(-depth // runs)


def padded_terms(depth: int) -> int:
    """The terms of a sum, and zeros up to whole runs."""
    runs, terms = runs_of(depth)
    return runs * terms


def half_product(call: OpCall, rows: te.Tensor, depth: int) -> te.Tensor:
    """The product of ``rows`` (P, K) of float16, zeros behind ``depth``, by the weights, and the bias: (P, O) in float32."""
    weights, (_, weight, bias) = half_weights(call), call.weighted
    if weights is None:
        raise InternalError("this product is not computed in float16")
    columns = weight.packed(np.pad(weights, ((0, 0), (0, rows.shape[1] - depth))))
    runs, terms = runs_of(depth)
    run, term = te.reduce_axis(runs, "r"), te.reduce_axis(terms, "k")

    def partial(p: Var, o: Var, r: Var) -> Expr:
        k = r * terms + term.var
        return te.fma_reduce(rows[p, k], columns[o, k], term, init=0.0)

    halves = te.compute((rows.shape[0], len(weights), runs), partial, BLOCK, ("p", "o", "r"))

    def element(p: Var, o: Var) -> Expr:
        return te.sum_reduce(ir.cast("float32", halves[p, o, run.var]), run, init=start(bias, o, "float32"))

    return te.compute((rows.shape[0], len(weights)), element, ACC, ("p", "o"))
