# SPDX-License-Identifier: Apache-2.0
"""How much of what this computer can multiply and add the generated C does: products of matrices and
convolutions, of floats and of bytes.

    python benchmarks/peak.py [--size 512] [--rounds 40] [--json peak.json]

The peak is measured, by loops in C that touch registers alone: fused multiply-adds of eight floats, and ``vpmaddwd``, sixteen
products of 16-bit numbers, which is what exact products of bytes have under AVX2. ``share``: of that peak; both sides are the
least of ``--rounds`` turns, one after the other, so that what else the computer does strikes both. On computers with AVX2 only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

import microc
from microc.base.dtypes import Array
from microc.device.toolchain import compile_shared_library, is_machine_available
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.isa import CORES

CORE = "x86-64-v3"
_TURNS = 20_000
_SOURCE = """
#include <immintrin.h>
#include <stdint.h>
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

float peak_float32(int32_t turns, float seed);
int32_t peak_int8(int32_t turns, int32_t seed);

float peak_float32(int32_t turns, float seed)
{
    const __m256 a = _mm256_set1_ps(seed), b = _mm256_set1_ps(seed);
#define START(k) __m256 sum##k = _mm256_set1_ps((float)k);
#define STEP(k) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+x"(sum##k) : "x"(a), "x"(b));
#define TOTAL(k) all = _mm256_add_ps(all, sum##k);
    __m256 all = _mm256_setzero_ps();
    EACH(START)
    for (int32_t turn = 0; turn < turns; ++turn) {
        EACH(STEP)
    }
    EACH(TOTAL)
    return _mm256_cvtss_f32(all);
#undef START
#undef STEP
#undef TOTAL
}

int32_t peak_int8(int32_t turns, int32_t seed)
{
    const __m256i a = _mm256_set1_epi32(seed);
#define START(k) __m256i sum##k = _mm256_set1_epi32(k), made##k;
#define STEP(k) __asm__ volatile("vpmaddwd %2, %2, %1\\n\\tvpaddd %1, %0, %0" : "+x"(sum##k), "=&x"(made##k) : "x"(a));
#define TOTAL(k) all = _mm256_add_epi32(all, sum##k);
    __m256i all = _mm256_setzero_si256();
    START(0) START(1) START(2) START(3) START(4) START(5)
    for (int32_t turn = 0; turn < turns; ++turn) {
        STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5)
    }
    TOTAL(0) TOTAL(1) TOTAL(2) TOTAL(3) TOTAL(4) TOTAL(5)
    return _mm256_extract_epi32(all, 0);
}
"""
_EACH_TURN = {"float32": 12 * 8, "int8": 12 * 16}
"""Products of a turn of the loop."""
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A kernel: products of a run in millions, billions of products a second that it does, and that the computer can."""

    kernel: str
    products: float
    speed: float
    peak: float
    share: float


def product(dtype: str, size: int) -> Graph:
    """Rows of data by rows of weights, a dense layer."""
    return layer("dense", dtype, (size, size), (size, size), (size, size))


def convolution(dtype: str, size: int) -> Graph:
    """A sixteenth of the size in height and width, an eighth in channels, by 3 x 3 elements."""
    pixels, channels = max(1, size // 16), max(1, size // 8)
    data, weight = (1, pixels, pixels, channels), (channels, 3, 3, channels)
    return layer("conv2d", dtype, data, weight, data, groups=1, padding=(1, 1, 1, 1))


def layer(op: str, dtype: str, data: Shape, weight: Shape, sums: Shape, **attrs: Attr) -> Graph:
    """A layer alone; sums of bytes stay whole."""
    total = "int32" if dtype == "int8" else dtype
    types = {"data": TensorType(data, dtype), "weight": TensorType(weight, dtype), "sums": TensorType(sums, total)}
    given = {**attrs, "out_dtype": total} if dtype == "int8" else attrs
    node = Node(op, ("data", "weight"), ("sums",), given)
    return Graph(f"{op}_{dtype}", ("data",), ("sums",), (node,), types, {"weight": numbers(weight, dtype)})


def numbers(shape: Shape, dtype: str) -> Array:
    """Normal ones, of bytes with a standard deviation of 30."""
    return (np.random.default_rng(0).standard_normal(shape) * (1 if dtype == "float32" else 30)).astype(dtype)


def row(graph: Graph, rounds: int, loops: ctypes.CDLL) -> Row:
    """One kernel beside the loop of its dtype."""
    kind = graph.types["data"]
    kernel, data = microc.compile(graph, CORE, optimize="speed"), numbers(kind.shape, kind.dtype)
    wanted = np.asarray(microc.compile(graph, "portable")(data)).astype(np.float64)
    error = np.abs(np.asarray(kernel(data)) - wanted).max()
    if error > (1e-5 * np.abs(wanted).max() if kind.dtype == "float32" else 0):
        raise SystemExit(f"{graph.name} is wrong by {error}")
    loop = getattr(loops, f"peak_{kind.dtype}")
    given = ctypes.c_float(0.5) if kind.dtype == "float32" else ctypes.c_int32(1)
    mine = least = float("inf")
    for _ in range(rounds):
        begin = perf_counter()
        kernel(data)
        between = perf_counter()
        loop(ctypes.c_int32(_TURNS), given)
        mine, least = min(mine, between - begin), min(least, perf_counter() - between)
    macs = kernel.manifest["nominal_macs"]
    speed, peak = macs / mine / 1e9, _EACH_TURN[kind.dtype] * _TURNS / least / 1e9
    return Row(graph.name, macs / 1e6, round(speed, 2), round(peak, 2), round(speed / peak, 3))


def measured(size: int, rounds: int) -> list[Row]:
    """All kernels."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        source = Path(folder) / "peak.c"
        source.write_text(_SOURCE)
        library = compile_shared_library(Path(folder), [source], Path(folder) / "peak.so", *CORES[CORE].machine.split())
        loops = ctypes.CDLL(str(library))
        graphs = [make(dtype, size) for dtype in _EACH_TURN for make in (product, convolution)]
        return [row(graph, rounds, loops) for graph in graphs]


def main() -> int:
    """Print a line for each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not is_machine_available(CORES[CORE].machine):
        print("this computer has no AVX2")
        return 1
    rows = measured(args.size, args.rounds)
    for each in rows:
        print(f"{each.kernel:28} {each.speed:8.2f} of {each.peak:8.2f} GMAC/s   {each.share:.2f}")
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
