# SPDX-License-Identifier: Apache-2.0
"""BLAS for large float products on a computer: ``cblas_sgemm`` of OpenBLAS, oneMKL or another BLAS. Off by default.

Error bound: a BLAS may add the K products of a result in any order. The rounding error of such a sum is about sqrt(K) u
times the sum of the products' magnitudes, with u = 2**-24 and rounding errors of random signs (Higham and Mary 2019).
If the products are random too, the sum of magnitudes is about sqrt(K) / 6 times the largest result. So the BLAS and
microc's own code each have an error of about K u / 6, relative to the largest result. At most K = 4096 is accepted, for
which the two differ by at most 8e-5.
"""

from __future__ import annotations

import ctypes.util
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from microc.errors import ToolError, UsageError
from microc.external.backend import Backend, Code, Entry, Region
from microc.graph.match import P
from microc.isa import FAMILIES
from microc.module import Sources
from microc.ops.convolution.geometry import infer_geometry
from microc.target import Target

CBLAS, ONEMKL, HEADER = "cblas", "onemkl", "microc_cblas.h"
MIN_MULTIPLICATIONS, MAX_DEPTH = 1 << 15, 4096
"""Least number of multiplications of a layer for which a call of BLAS is faster; and, for the error bound, the largest
number of products in one sum."""
ERROR_BOUND = 1e-4
CALL_COST, PRODUCT_COST = 20000.0, 0.55
"""Cost of a BLAS call (it packs its operands and may wake threads), and cost of each multiply-accumulate in it.

The unit is one instruction of the cost model: the number of instructions that take the same time in microc's own code.
Measured with vectors of 16 floats in one thread (docs/external.md).
"""
_LIBRARIES: Mapping[str, tuple[str, tuple[str, ...], str]] = MappingProxyType(
    {
        CBLAS: ("BLAS", ("openblas", "cblas", "blas"), "install OpenBLAS (apt-get install libopenblas-dev)"),
        # The dispatching library: it takes 32-bit integers unless the environment says otherwise.
        ONEMKL: (
            "oneMKL (libmkl_rt)",
            ("mkl_rt",),
            "install oneMKL (Intel's packages, Debian's libmkl-rt, or pip install mkl)",
        ),
    }
)
"""Name in messages, the linker's names in order of preference, and the hint that says how to install it, by backend."""
_DECLARED = b"""/* What is called of a BLAS; its own header is not needed. Enumerations of CBLAS are ints. */
#ifndef MICROC_CBLAS_H
#define MICROC_CBLAS_H
#include <string.h>
enum { MICROC_ROWS = 101, MICROC_AS_IS = 111, MICROC_TRANSPOSED = 112 };
void cblas_sgemm(int order, int turn_a, int turn_b, int m, int n, int k, float alpha, const float *a, int lda,
    const float *b, int ldb, float beta, float *c, int ldc);
#endif
"""
_EPILOGUES = {
    "": "",
    "relu": "out_0[i] = out_0[i] < 0.0f ? 0.0f : out_0[i];",
    "relu6": "out_0[i] = out_0[i] < 0.0f ? 0.0f : out_0[i] > 6.0f ? 6.0f : out_0[i];",
}
"""C statement that applies an activation to every result, by the activation's name; NaN stays NaN."""


def check_product(region: Region) -> str:
    """Return why BLAS cannot compute a layer, as a clause (such as "its activation is tanh"); empty if it can."""
    node = region.root
    types = [region.type(name) for name in (*node.inputs, *node.outputs) if name]
    if any(type_.dtype != "float32" for type_ in types):
        return f"it is of {', '.join(dict.fromkeys(type_.dtype for type_ in types))}"
    if node.attrs.get("activation", "") not in _EPILOGUES:
        return f"its activation is {node.attr('activation')}"
    if node.op == "matmul" and (len(types[1].shape) != 2 or any(node.attrs.get(f"axes_{x}") for x in "ab")):
        return "it multiplies several matrices, or transposed ones"
    if node.op == "conv2d":
        g = infer_geometry(node.attrs, types[0].shape, types[1].shape)
        if not g.is_im2col_matrix or g.kernel != (1, 1) or g.groups > 1 or node.attr("layout") != "NHWC":
            return "it is no 1x1 convolution in NHWC, with one group, unit strides and no padding"
    rows, units, depth = _rows_units_and_depth(region)
    if rows * units * depth < MIN_MULTIPLICATIONS:
        return f"{rows * units * depth:,} products are fewer than {MIN_MULTIPLICATIONS:,}"
    return "" if depth <= MAX_DEPTH else f"sums of {depth:,} products have no bound here"


def generate_sgemm_call(region: Region) -> Code:
    """Generate the call of ``cblas_sgemm`` for a layer.

    A result is the product of a row of the data and a row of the weights; for ``matmul``, a column of the weights."""
    node, (rows, units, depth) = region.root, _rows_units_and_depth(region)
    data, operands = {}, list[str]()
    for name, role in zip(node.inputs, ("data", "weight", "bias"), strict=False):
        array = region.const(name) if name else None
        if array is not None:
            data[role] = array
        if name:
            operands.append(role if array is not None else f"in_{region.graph.inputs.index(name)}")
    a, b, *bias = operands
    weight_order, stride = ("MICROC_AS_IS", units) if node.op == "matmul" else ("MICROC_TRANSPOSED", depth)
    epilogue = _EPILOGUES[str(node.attrs.get("activation", ""))]
    # With a bias the results start from it, and beta = 1 adds the products.
    bias_fill = (
        f"for (int32_t r = 0; r < {rows}; ++r) {{",
        f"    (void)memcpy(&out_0[r * {units}], {bias[0] if bias else ''}, {4 * units});",
        "}",
    )
    epilogue_loop = (f"for (int32_t i = 0; i < {rows * units}; ++i) {{", f"    {epilogue}", "}")
    call = (
        f"cblas_sgemm(MICROC_ROWS, MICROC_AS_IS, {weight_order}, {rows}, {units}, {depth}, 1.0f, {a}, {depth}, {b}, "
        f"{stride}, "
        f"{'1.0f' if bias else '0.0f'}, out_0, {units});"
    )
    cost = CALL_COST + PRODUCT_COST * rows * units * depth + (2.0 if epilogue else 0.5) * rows * units
    return Code((*(bias_fill if bias else ()), call, *(epilogue_loop if epilogue else ())), data, 0, cost, 200)


def _rows_units_and_depth(region: Region) -> tuple[int, int, int]:
    """Return the extents (rows, units, depth) of the matrix product of data (rows, depth) and weights (units,
    depth)."""
    units, weight = region.output_types[0].shape[-1], region.type(region.root.inputs[1])
    return region.output_types[0].size // units, units, int(np.prod(weight.shape)) // units


def make_finder(backend: str) -> Callable[[str, Target, Iterable[str]], Sources]:
    """Make the function that finds the library of a backend and returns how to link it.

    Its first argument is the folder that contains the library; if empty, the one installed on this computer is used. It
    raises ToolError if there is none, UsageError if the target is no computer."""
    title, names, hint = _LIBRARIES[backend]

    def find_blas(folder: str, target: Target, functions: Iterable[str]) -> Sources:
        if not FAMILIES[target.isa].threads:
            raise UsageError(f"{backend} runs on computers only; got target {target.cpu}", hint="leave out --external")
        library, folders = _find_installed_library(names) if not folder else _find_in_folder(Path(folder), names)
        if not library:
            where = f"in {folder}" if folder else "on this computer"
            raise ToolError(
                f"there is no {title} {where}",
                where=folder,
                hint=f"{hint}, or give its folder: --external {backend}=FOLDER",
            )
        return Sources(backend, {HEADER: _DECLARED}, include=("",), libraries=(library,), folders=folders)

    return find_blas


def _find_installed_library(names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the linker's name of the first of the libraries ``names`` that is installed, and no folders to search.

    The name has the form ``:file`` if only a file with a version in its name exists. It is empty if none is
    installed."""
    for name in names:
        found = ctypes.util.find_library(name)
        if found:
            return (f":{found}" if ".so" in found else name), ()
    return "", ()


def _find_in_folder(folder: Path, names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the linker's name of the first of the libraries ``names`` in a folder, and the folders that the linker must
    search: this folder.

    The name is empty if the folder contains none. Raises UsageError if the folder's name contains characters that
    ``make`` or shells interpret."""
    for name in names:
        for path in sorted(folder.glob(f"lib{name}.so*")):
            if not re.fullmatch(r"[A-Za-z0-9_\-+.,/:=]+", str(folder.resolve())):
                raise UsageError(
                    "the folder's name has characters that make and shells interpret",
                    where=str(folder),
                    hint="rename the folder",
                )
            return f":{path.name}", (str(folder.resolve()),)
    return "", ()


def _make_backend(name: str) -> Backend:
    """Make the backend of this name: the layers that ``cblas_sgemm`` computes, and where its library is."""
    entries = tuple(Entry(op, P.op(op), generate_sgemm_call, check_product) for op in ("dense", "matmul", "conv2d"))
    return Backend(name, entries, open=make_finder(name), headers=(HEADER,), bound=ERROR_BOUND)


BACKEND, ONEMKL_BACKEND = _make_backend(CBLAS), _make_backend(ONEMKL)
