# SPDX-License-Identifier: Apache-2.0
"""A project's CMakeLists.txt: on its own it makes the firmware; as a part of another project the networks, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import microc
from microc.compiler.bundle import bundle
from microc.device.boards import load_board
from tests.device.smoke import needs
from tests.exports.programs import run
from tests.support import digits

FLOAT = digits.FOLDER / "digits_float.onnx"
APP = """
cmake_minimum_required(VERSION 3.16)
project(app C)
add_library(firmware STATIC other.c) # a target of this name is nobody else's business
add_subdirectory(net)
add_executable(app main.c)
target_link_libraries(app PRIVATE digits_int8 digits_float)
"""
MAIN = """
#include "digits_int8/model.h"
#include "digits_float/model.h"
int main(void)
{
    return digits_int8_run(0, 0, 0) == DIGITS_INT8_ERROR_NULL && digits_float_run(0, 0, 0) == DIGITS_FLOAT_ERROR_NULL ? 0 : 1;
}
"""
TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_FLAGS "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=softfp -Wall -Wextra -Werror")
set(CMAKE_EXE_LINKER_FLAGS "--specs=nosys.specs")
"""


def write(folder: Path, board: str) -> None:
    """A program of one's own beside a project of two networks."""
    programs = [microc.compile(model, board=load_board(board)) for model in (digits.INT8, FLOAT)]
    bundle(*programs).write(folder / "net")
    (folder / "CMakeLists.txt").write_text(APP)
    (folder / "main.c").write_text(MAIN)
    (folder / "other.c").write_text("int other;\n")


@needs("cmake", "gcc")
def test_as_a_part(tmp_path: Path) -> None:
    write(tmp_path, "host")
    run(tmp_path, "cmake", "-B", "build")
    run(tmp_path, "cmake", "--build", "build")
    run(tmp_path, "build/app")
    assert not list(tmp_path.rglob("firmware.elf"))


@pytest.mark.cross
@needs("cmake", "arm-none-eabi-gcc")
def test_as_a_part_for_a_core(tmp_path: Path) -> None:
    """By the program's own toolchain file, whose ABI is not that of the board's firmware; the core's instructions are used."""
    write(tmp_path, "nucleo-f446re")
    (tmp_path / "gcc.cmake").write_text(TOOLCHAIN)
    run(tmp_path, "cmake", "-B", "build", "-DCMAKE_TOOLCHAIN_FILE=gcc.cmake")
    run(tmp_path, "cmake", "--build", "build")
    assert "smlad" in run(tmp_path, "arm-none-eabi-objdump", "-d", "build/net/libdigits_int8.a")
    assert not list(tmp_path.rglob("firmware.elf"))


@pytest.mark.cross
@needs("cmake", "arm-none-eabi-gcc")
def test_on_its_own(tmp_path: Path) -> None:
    """As the file's first lines say."""
    write(tmp_path, "nucleo-f446re")
    lines = (tmp_path / "net" / "CMakeLists.txt").read_text().splitlines()
    command = next(line for line in lines if line.startswith("#   ")).removeprefix("#   ")
    run(tmp_path / "net", "sh", "-e", "-c", command)
    header = run(tmp_path / "net", "arm-none-eabi-readelf", "-A", "build/firmware.elf")
    assert "Tag_ABI_VFP_args: VFP registers" in header and "v7E-M" in header
