# SPDX-License-Identifier: Apache-2.0
"""The user C module: both build descriptions make it, with stand-ins for MicroPython's headers; its Python example runs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from microc.codegen.project.additions import first_sample
from tests.device.smoke import needs
from tests.exports.programs import export, program, run, said
from tests.exports.test_builds import words

STAND_IN = Path(__file__).with_name("stand_ins") / "micropython"
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wdouble-promotion", "-Wfloat-conversion", "-Wno-unused-function")
"""What MicroPython's Unix port asks for."""
MAKEFILE = """
USERMOD_DIR := {folder}
include {folder}/micropython.mk
main: {main} $(SRC_USERMOD_C) $(SRC_USERMOD_LIB_C)
	gcc $(WARNINGS) -fsanitize=address,undefined -I{stand_in} $(CFLAGS_USERMOD) $^ $(LDFLAGS_USERMOD) -o $@
"""
CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(port C)
add_library(usermod INTERFACE)
include(${{USER_C_MODULES}})
add_executable(main {main})
target_compile_options(main PRIVATE ${{WARNINGS}})
target_include_directories(main PRIVATE {stand_in})
target_link_libraries(main PRIVATE usermod m)
"""


def call(binary: Path, data: bytes, *ends: str) -> subprocess.CompletedProcess[bytes]:
    """Memory is MicroPython's to free, so that leaks are none."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run([binary, *ends], input=data, env=environment, capture_output=True, check=False, timeout=60)


@needs("make", "gcc")
@pytest.mark.parametrize("io_in_arena", [True, False])
@pytest.mark.parametrize(("which", "package"), [("digits", "digits_int8_model"), ("awkward", "double_model")])
def test_the_module(tmp_path: Path, which: str, package: str, io_in_arena: bool) -> None:
    """Buffers at odd addresses; the same bytes as the library, twice after a reset; wrong buffers are refused."""
    folder = export(tmp_path / "net", "micropython", which, io_in_arena=io_in_arena)
    text = MAKEFILE.format(folder=folder / package, main=STAND_IN / "main.c", stand_in=STAND_IN)
    (tmp_path / "Makefile").write_text(text)
    run(tmp_path, "make", "WARNINGS=" + " ".join(WARNINGS))
    library = program(which).library()
    arrays = first_sample(program(which).module)
    results = library(*arrays)
    outputs = results if isinstance(results, tuple) else (results,)
    data = b"".join(array.tobytes() for array in arrays)
    ends = [*(str(array.nbytes) for array in arrays), *(f"+{array.nbytes}" for array in outputs)]
    done = call(tmp_path / "main", data, *ends)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"".join(array.tobytes() for array in outputs)
    for wrong, told in (
        (["3", *ends[1:]], f"ValueError: buffer has 3 bytes, not {arrays[0].nbytes}"),
        ([*ends[:-1], ends[-1][1:]], "cannot be written"),
        (ends[:-1], "wrong number"),
    ):
        done = call(tmp_path / "main", data + bytes(1000), *wrong)
        assert done.returncode == 3 and told in done.stderr.decode()


@needs("cmake", "gcc")
def test_ports_that_build_with_cmake(tmp_path: Path) -> None:
    folder = export(tmp_path / "net", "micropython")
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(main=STAND_IN / "main.c", stand_in=STAND_IN))
    run(
        tmp_path,
        "cmake",
        "-B",
        "build",
        f"-DUSER_C_MODULES={folder}/micropython.cmake",
        f"-DWARNINGS={';'.join(WARNINGS)}",
    )
    run(tmp_path, "cmake", "--build", "build")
    (image,) = first_sample(program().module)
    done = call(tmp_path / "build" / "main", image.tobytes(), "64", "+10")
    assert f"probabilities: {' '.join(map(str, np.frombuffer(done.stdout, np.int8)))}\n" == said()


@pytest.mark.parametrize(("which", "package"), [("digits", "digits_int8_model"), ("awkward", "double_model")])
def test_the_example(
    tmp_path: Path, which: str, package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sample.py`` on a module that the library plays."""
    library = program(which).library()

    def play(*buffers: Any) -> None:
        ends = [np.frombuffer(memoryview(buffer).cast("B"), np.uint8) for buffer in buffers]
        shapes = [np.zeros(t["shape"], t["dtype"]) for t in library.inputs]
        results = library(*(end.view(like.dtype).reshape(like.shape) for end, like in zip(ends, shapes, strict=False)))
        for end, array in zip(ends[len(shapes) :], results if isinstance(results, tuple) else (results,), strict=True):
            end[:] = array.reshape(-1).view(np.uint8)

    module = ModuleType(package)
    module.__dict__["Network"] = lambda: SimpleNamespace(run=play)
    monkeypatch.setitem(sys.modules, package, module)
    runpy.run_path(str(export(tmp_path / "net", "micropython", which) / "sample.py"))
    assert words(capsys.readouterr().out) == words(said(which))
