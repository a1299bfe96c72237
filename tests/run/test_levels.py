# SPDX-License-Identifier: Apache-2.0
"""Libraries of named cores: refused where the computer is none of them, and one library for several of them."""

from __future__ import annotations

import json
import platform
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

import microc
from microc import te
from microc.base.dtypes import Array
from microc.device.toolchain import is_machine_available
from microc.errors import ModelError, UsageError
from microc.isa import CORES
from microc.run.desktop import load
from microc.run.desktop.load import load_library
from microc.schedule.rules import around_rules
from tests.support import digits
from tests.support.native import WARNINGS

X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone")
HAS_AVX2 = pytest.mark.skipif(not is_machine_available(CORES["x86-64-v3"].machine), reason="a computer with AVX2")
BOTH = "x86-64-v3,portable"


def bits(library: microc.Library, count: int = 20) -> bytes:
    return b"".join(np.asarray(library(image)).tobytes() for image in digits.images(count))


@X86
def test_instructions_that_a_computer_lacks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not met: the library tells what it needs before a kernel runs. One that was made elsewhere is made here by the compiler
    alone, for the level that this computer lacks, or (where it has all) with a question that nothing answers."""
    core = next((c for c in ("x86-64-v4", "x86-64-v4-vnni") if not is_machine_available(CORES[c].machine)), "")
    sources = microc.compile(digits.INT8, core or "x86-64-v4")._sources
    if not core:
        text = sources["shared.c"].replace('__builtin_cpu_supports("avx512f")', "0")
        sources = {**sources, "shared.c": text}
    flags = CORES[core or "x86-64-v4"].machine.split()
    path = load.compile_sources(sources, tmp_path, "digits.so", *flags)
    with pytest.raises(
        ModelError, match=r"made for x86-64-v4.*whose instructions this computer does not have"
    ) as found:
        microc.load_library(path)
    assert 'target="x86-64-v4' in str(found.value.hint)


@X86
def test_portable_sources_of_a_named_core_run_anywhere(tmp_path: Path) -> None:
    """Where the computer is none of that core, its kernels are portable C, and need nothing."""
    wanted = bits(microc.compile(digits.INT8, "portable"))
    library = microc.compile(digits.INT8, "x86-64-v4-vnni")
    for end in ("so", "tar"):
        loaded = microc.load_library(library.export_library(tmp_path / f"digits.{end}"))
        assert loaded.core == "x86-64-v4-vnni"
        assert bits(loaded) == wanted


@X86
@HAS_AVX2
@pytest.mark.parametrize("end", ["so", "tar"])
def test_one_library_holds_kernels_for_two_cores(end: str, tmp_path: Path) -> None:
    library = microc.compile(digits.INT8, BOTH)
    path = library.export_library(tmp_path / f"digits.{end}")
    best, least = microc.load_library(path), microc.load_library(path, core="portable")
    assert (library.core, best.core, least.core) == ("x86-64-v3", "x86-64-v3", "portable")
    assert least.instance().core == "portable"
    assert {lib.manifest["model"] for lib in (library, best, least)} == {"digits_int8"}
    assert bits(best) == bits(least) == bits(library) == bits(microc.compile(digits.INT8, "portable"))
    with pytest.raises(UsageError, match="has no kernels for 'x86-64-v4'"):
        microc.load_library(path, core="x86-64-v4")


@X86
def test_the_first_that_suits_is_taken(tmp_path: Path) -> None:
    library = microc.compile(digits.INT8, "x86-64-v4-vnni,x86-64-v3,x86-64-v2")
    names = [c for c in ("x86-64-v4-vnni", "x86-64-v3", "x86-64-v2") if is_machine_available(CORES[c].machine)]
    assert library.core == names[0]
    assert [json.loads(text)["options"]["cpu"] for name, text in library._sources.items() if "manifest" in name] == [
        "x86-64-v4-vnni",
        "x86-64-v3",
        "x86-64-v2",
    ]
    again = load_library(library.export_library(tmp_path / "digits.tar"), core=names[-1])
    assert bits(again) == bits(library)


def test_cores_that_cannot_share_a_library() -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86-64-v3"
    with pytest.raises(UsageError, match="cores of this kind of computer"):
        microc.compile(digits.INT8, f"{other},portable")
    with pytest.raises(UsageError, match="different cores"):
        microc.compile(digits.INT8, "portable,portable")
    with pytest.raises(UsageError, match="unknown core 'x86-64-v9'"):
        microc.compile(digits.INT8, "x86-64-v9,portable")


@X86
def test_archives_with_half_a_level(tmp_path: Path) -> None:
    whole = microc.compile(digits.INT8, BOTH).export_library(tmp_path / "whole.tar")
    half = tmp_path / "half.tar"
    with tarfile.open(whole) as archive, tarfile.open(half, "w") as short:
        for member in archive:
            if member.name != "1/model.c":
                short.addfile(member, archive.extractfile(member))
    with pytest.raises(ModelError, match=r"lacks the files 1/model\.c"):
        microc.load_library(half)


@X86
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_question_compiles_without_a_warning(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in microc.compile(digits.INT8, "x86-64-v3")._sources.items():
        (tmp_path / name).write_text(text)
    flags = ("-std=c99", *WARNINGS, "-Werror", "-march=x86-64-v3", f"-I{tmp_path}", "-O2", "-S", "-o")
    subprocess.run([compiler, *flags, str(tmp_path / "shared.s"), str(tmp_path / "shared.c")], check=True)
    asked = (tmp_path / "shared.s").read_text().partition("microc_runs_here:")[2].partition(".size")[0]
    assert "cpu_model" in asked
    assert not any(word in asked for word in ("ymm", "andn", "vmov"))


def product(size: int) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a, b = te.placeholder((size, size), "float32", "a"), te.placeholder((size, size), "float32", "b")
    k = te.reduce_axis(size, "k")
    return a, b, te.compute((size, size), lambda i, j: te.sum_reduce(a[i, k.var] * b[k.var, j], k), "c", ("i", "j"))


def test_functions_run_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_rules, "MIN_INSTRUCTIONS", 0)
    a, b, c = product(16)
    func = te.create_prim_func("product", [a, b], [c])
    dice = np.random.default_rng(0)
    x, y = (dice.standard_normal((16, 16)).astype(np.float32) for _ in range(2))

    def answer(library: microc.Library) -> Array:
        return np.asarray(library(x, y))

    one, three = microc.build(func), microc.build(func, threads=3)
    assert three.manifest["options"]["threads"] == "3"
    assert "pthread" in three._sources["model.c"]
    assert "pthread" not in one._sources["model.c"]
    assert answer(one).tobytes() == answer(three).tobytes()
    assert answer(microc.build([func], threads=2)["product"]).tobytes() == answer(one).tobytes()
    with pytest.raises(UsageError, match="the number of threads"):
        microc.build(func, threads=0)
    with pytest.raises(UsageError, match="got 2 threads with board mps2-an386"):
        microc.build(func, board="mps2-an386", threads=2)  # type: ignore[call-overload]
