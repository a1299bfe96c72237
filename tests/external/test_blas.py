# SPDX-License-Identifier: Apache-2.0
"""Products of floats by a BLAS: one that the test makes, so that none needs to be there."""

from __future__ import annotations

import ctypes.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc import GraphBuilder
from microc.cli import main
from microc.device.toolchain import host_compiler
from microc.errors import ToolError, UsageError
from microc.external.backend import partition
from microc.external.blas import BACKEND, CBLAS, ERROR_BOUND, ONEMKL, make_finder
from microc.graph.ir import Graph
from microc.target import target_for
from tests.device.smoke import needs
from tests.external.networks import floats

find_blas = make_finder(CBLAS)
BLAS = """
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
    int ldb, float beta, float *c, int ldc)
{
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (int l = k - 1; l >= 0; --l) {
                sum += a[i * lda + l] * (tb == 112 ? b[j * ldb + l] : b[l * ldb + j]);
            }
            c[i * ldc + j] = alpha * sum + (beta != 0.0f ? beta * c[i * ldc + j] : 0.0f);
        }
    }
    (void)order;
    (void)ta;
}
"""


@pytest.fixture(scope="module")
def blas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BLAS that adds from the last product on."""
    folder = tmp_path_factory.mktemp("blas")
    (folder / "blas.c").write_text(BLAS)
    command = [host_compiler(), "-shared", "-fPIC", str(folder / "blas.c"), "-o", str(folder / "libcblas.so.3")]
    subprocess.run(command, check=True)
    return folder


def one(op: str, x: tuple[int, ...], weight: tuple[int, ...], bias: int = 0, **attrs: Any) -> Graph:
    b = GraphBuilder("net")
    operands = [b.input("x", x), b.constant("w", floats(*weight, seed=1))]
    operands += [b.constant("b", floats(bias, seed=2))] if bias else []
    return b.graph("net", {"y": b.op(op, *operands, **attrs)})


def computed() -> Graph:
    b = GraphBuilder("net")
    return b.graph("net", {"y": b.op("matmul", b.input("x", (40, 64)), b.input("z", (64, 50)))})


PRODUCTS: dict[str, Callable[[], Graph]] = {
    "dense": lambda: one("dense", (16, 64), (48, 64), 48),
    "dense relu": lambda: one("dense", (1, 512), (300, 512), 300, activation="relu"),
    "dense relu6 without bias": lambda: one("dense", (16, 64), (48, 64), activation="relu6"),
    "matmul": lambda: one("matmul", (2, 20, 64), (64, 30)),
    "matmul of two computed": computed,
    "pointwise": lambda: one("conv2d", (1, 9, 8, 24), (32, 1, 1, 24), 32, activation="relu"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_within_the_bound_of_ours(name: str, blas: Path) -> None:
    graph = PRODUCTS[name]()
    theirs = microc.compile(graph, external={"cblas": blas}, external_choice="all")
    assert any("cblas" in kernel["rule"] for kernel in theirs.manifest["kernels"])
    inputs = [floats(*tensor["shape"], seed=5 + k) for k, tensor in enumerate(theirs.inputs)]
    mine, other = np.asarray(microc.compile(graph)(*inputs)), np.asarray(theirs(*inputs))
    assert np.abs(mine - other).max() <= ERROR_BOUND * np.abs(mine).max()


@needs("make")
def test_a_project_links_it_where_it_is(blas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = microc.compile(PRODUCTS["dense relu"](), board="host", external={"cblas": blas}, external_choice="all")
    folder = program.write(tmp_path / "firmware")
    assert f"-L{blas} -Wl,-rpath,{blas} -l:libcblas.so.3" in (folder / "Makefile").read_text()
    subprocess.run(["make", "-C", str(folder), "CFLAGS=-Werror"], check=True, capture_output=True)
    assert main(["verify", str(folder)]) == 0
    capsys.readouterr()
    if shutil.which("cmake"):
        subprocess.run(["cmake", "-B", str(tmp_path / "b"), str(folder)], check=True, capture_output=True)
        subprocess.run(["cmake", "--build", str(tmp_path / "b")], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (lambda: one("dense", (2, 64), (48, 64)), "6,144 products are fewer"),
        (lambda: one("dense", (16, 5000), (48, 5000)), "sums of 5,000 products have no bound"),
        (lambda: one("dense", (16, 64), (48, 64), activation="tanh"), "its activation is tanh"),
        (lambda: one("conv2d", (1, 9, 8, 24), (32, 3, 3, 24)), "no 1x1 convolution"),
        (lambda: one("matmul", (4, 20, 64), (4, 64, 30)), "several matrices, or transposed"),
    ],
)
def test_what_is_not_for_a_blas_stays_ours(graph: Callable[[], Graph], said: str) -> None:
    found = partition(graph(), [BACKEND], target_for("host"))
    assert not found.taken and said in found.refused[0][1]


def test_where_there_is_none_the_cure_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ToolError, match="no BLAS on this computer") as caught:
        microc.compile(PRODUCTS["dense"](), external="cblas")
    assert "apt-get install libopenblas-dev" in caught.value.hint
    with pytest.raises(ToolError, match=f"no BLAS in {tmp_path}"):
        find_blas(str(tmp_path), target_for("host"), ())
    with pytest.raises(UsageError, match="got target cortex-m4"):
        find_blas("", target_for("cortex-m4"), ())
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libblas.so.3" if name == "blas" else None)
    assert find_blas("", target_for("host"), ()).libraries == (":libblas.so.3",)


def test_onemkl_is_linked_by_its_name(blas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libmkl_rt.so.2").symlink_to(blas / "libcblas.so.3")
    graph = PRODUCTS["dense relu"]()
    program = microc.compile(graph, board="host", external={"onemkl": tmp_path}, external_choice="all")
    files = program.files()
    assert f"-L{tmp_path} -Wl,-rpath,{tmp_path} -l:libmkl_rt.so.2" in str(files["Makefile"])
    assert "cblas_sgemm(MICROC_ROWS, MICROC_AS_IS, MICROC_TRANSPOSED, 1, 300, 512, 1.0f, " in str(files["model.c"])
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libmkl_rt.so.2" if name == "mkl_rt" else None)
    assert make_finder(ONEMKL)("", target_for("host"), ()).libraries == (":libmkl_rt.so.2",)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libopenblas.so.0" if name == "openblas" else None)
    with pytest.raises(ToolError, match=r"no oneMKL \(libmkl_rt\) on this computer") as caught:
        microc.compile(graph, external="onemkl")
    assert "external onemkl=FOLDER" in caught.value.hint


def test_a_folder_that_a_shell_takes_apart_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "libblas.so").touch()
    with pytest.raises(UsageError, match="that make and shells interpret"):
        find_blas(str(tmp_path / "a b"), target_for("host"), ())
