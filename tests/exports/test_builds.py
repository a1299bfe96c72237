# SPDX-License-Identifier: Apache-2.0
"""Exports built by the tools that they are for, where these are here, and by stand-ins for those that are not; then run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.codegen.exports import load_format
from microc.codegen.project.additions import first_sample
from microc.device.boards import make_board_of_core
from microc.errors import UsageError
from tests.compiler.sizes.test_family import mlp, saved
from tests.device.smoke import WARNINGS, needs
from tests.exports.programs import FORMATS, export, run, said

NETWORKS = ("digits", "awkward")
CPP = ("-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror")


def sources(folder: Path, *leave: str) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.c") if p.name not in leave)


# ---------------------------------------------------------------- plain C and C++


@pytest.mark.parametrize("compiler", [pytest.param(name, marks=needs(name)) for name in ("gcc", "clang")])
@pytest.mark.parametrize("io_in_arena", [True, False])
@pytest.mark.parametrize("which", [*NETWORKS, "kinds"])
def test_plain_c(tmp_path: Path, which: str, io_in_arena: bool, compiler: str) -> None:
    folder = export(tmp_path / "net", "c", which, io_in_arena=io_in_arena)
    sanitised = ("-fsanitize=address,undefined",) if compiler == "clang" else ()
    run(folder, compiler, *WARNINGS, *sanitised, "-o", "sample", *sources(folder), "-lm")
    assert run(folder, "./sample") == said(which)


@needs("gcc", "g++")
def test_sizes_that_vary(tmp_path: Path) -> None:
    """Examples run at the largest sizes; formats that know none refuse the network."""
    program = microc.compile(saved(mlp(), tmp_path), board=make_board_of_core("host"), bounds={"batch": 4}, name="open")
    folder = tmp_path / "net"
    for name in FORMATS:
        if load_format(name).fixed:
            with pytest.raises(UsageError, match=r"sizes vary \(batch\)"):
                program.export(name, folder)
        else:
            program.export(name, folder)
            assert "&sizes, &inputs" in (folder / "README.md").read_text()
    program.export("c", folder)
    run(folder, "gcc", *WARNINGS, "-o", "sample", *sources(folder), "-lm")
    result = program.library()(*first_sample(program.module))
    assert isinstance(result, np.ndarray) and result.shape == (4, 3)
    name = program.module.outputs[0]
    assert run(folder, "./sample") == f"{name}: {' '.join(f'{x:g}' for x in result.reshape(-1).tolist())}\n"


CONSUMER = """
#include "double_model.h"
#include "double_model.h"
#include "double_model_sample.h"
#include "digits_int8_model.h"
#include "digits_int8_model_sample.h"
#include "math_model.h"
#include <cmath>
#include <cstdio>
alignas(16) static unsigned char memory[DIGITS_INT8_ARENA_SIZE + DOUBLE_ARENA_SIZE + MATH_ARENA_SIZE];
int main()
{
    digits_int8_inputs digits_in = {digits_int8_image(memory)};
    digits_int8_outputs digits_out = {digits_int8_probabilities(memory)};
    digits_int8_sample(digits_int8_image(memory));
    double_inputs in = {double_class_2(memory), double_arena_2(memory)};
    double_outputs out = {double_match(memory), double_in(memory), double_run_2(memory)};
    digits_int8_run(memory, &digits_in, &digits_out);
    std::printf("%d %d\\n", digits_out.probabilities[0], digits_out.probabilities[9]);
    double_reset(memory);
    double_sample(0, double_class_2(memory), double_arena_2(memory));
    double_run(memory, &in, &out);
    std::printf("%g %d\\n", std::sqrt(out.match[0]), out.in[1]);
    return math_run(memory, nullptr, nullptr) == MATH_ERROR_NULL ? 0 : 1;
}
"""


@pytest.mark.parametrize("compiler", [pytest.param(name, marks=needs(name)) for name in ("g++", "clang++")])
def test_three_networks_in_one_program_of_cpp(tmp_path: Path, compiler: str) -> None:
    """Headers are C++; nothing that is linked has the same name, though one network is there twice and one is called math."""
    (tmp_path / "main.cpp").write_text(CONSUMER)
    folders = [export(tmp_path / which, "c", which) for which in (*NETWORKS, "math")]
    paths = [f"-I{folder.name}" for folder in folders]
    files = [f"{folder.name}/{name}" for folder in folders for name in sources(folder, "main.c")]
    run(tmp_path, "gcc", "-c", "-O1", *paths, *files)
    objects = [Path(name).with_suffix(".o").name for name in files]
    run(tmp_path, compiler, *CPP, *paths, "main.cpp", *objects, "-o", "main", "-lm")
    assert run(tmp_path, "./main") == "-127 -50\n0.606531 1\n"


# ---------------------------------------------------------------- make and CMake


@needs("make", "gcc")
@pytest.mark.parametrize("which", NETWORKS)
def test_make(tmp_path: Path, which: str) -> None:
    folder = export(tmp_path / "net", "make", which)
    run(folder, "make", "CFLAGS=-Wall -Wextra -Werror")
    assert run(folder, "./sample") == said(which)
    assert "up to date" in run(folder, "make") or run(folder, "make") == "make: Nothing to be done for 'all'.\n"
    run(folder, "make", "clean")
    assert not list(folder.glob("*.a")) and not (folder / "build").exists()


@needs("make", "gcc")
def test_an_archive_keeps_no_old_member(tmp_path: Path) -> None:
    folder = export(tmp_path / "net", "make")
    library, names = "libdigits_int8_model.a", ["digits_int8_model.o", "digits_int8_model_data.o"]
    (folder / "old.c").write_text("extern const int old;\nconst int old = 1;\n")
    objects = " ".join(f"build/{name}" for name in (*names, "old.o"))
    run(folder, "make", library, f"NETWORK={objects}")
    assert run(folder, "ar", "t", library).split() == [*names, "old.o"]
    run(folder, "make", "-B", library)
    assert run(folder, "ar", "t", library).split() == names


@pytest.mark.cross
@needs("make", "arm-none-eabi-gcc")
def test_make_for_a_core(tmp_path: Path) -> None:
    """Instructions of the core are used where the compiler has them, and only there."""
    folder = export(tmp_path / "net", "make", target="cortex-m4")
    library = "libdigits_int8_model.a"
    for core, uses in (("cortex-m4", True), ("cortex-m0", False)):
        run(folder, "make", "clean")
        run(folder, "make", "CROSS=arm-none-eabi-", f"CFLAGS=-mthumb -mcpu={core} -Wall -Wextra -Werror", library)
        assert ("smlad" in run(folder, "arm-none-eabi-objdump", "-d", library)) is uses
    run(folder, "make", "clean")
    run(folder, "make", "OPT=-O1")
    assert run(folder, "./sample") == said()


@needs("cmake", "gcc")
@pytest.mark.parametrize("which", NETWORKS)
def test_cmake(tmp_path: Path, which: str) -> None:
    folder = export(tmp_path / "net", "cmake", which)
    run(folder, "cmake", "-B", "build")
    run(folder, "cmake", "--build", "build")
    output = run(folder, "ctest", "--test-dir", "build", "--verbose")
    assert all(f"1: {line}" in output for line in said(which).splitlines()) and "100% tests passed" in output


CMAKE_USER = """
cmake_minimum_required(VERSION 3.16)
project(user C)
add_subdirectory(${NET} first)
find_package(double_model REQUIRED)
add_executable(user main.c)
target_link_libraries(user PRIVATE digits_int8_model::digits_int8_model double_model::double_model)
enable_testing()
add_test(NAME user COMMAND user)
"""
USER = """
#include "digits_int8_model.h"
#include "double_model.h"
int main(void)
{
    return digits_int8_run(0, 0, 0) == DIGITS_INT8_ERROR_NULL && double_run(0, 0, 0) == DOUBLE_ERROR_NULL ? 0 : 1;
}
"""


@needs("cmake", "gcc")
def test_cmake_in_another_project(tmp_path: Path) -> None:
    """One network as a folder of the project, another one installed."""
    export(tmp_path / "digits", "cmake")
    installed = export(tmp_path / "awkward", "cmake", "awkward")
    run(installed, "cmake", "-B", "build", f"-DCMAKE_INSTALL_PREFIX={tmp_path}/prefix")
    run(installed, "cmake", "--build", "build", "--target", "install")
    shutil.rmtree(installed)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_USER)
    (tmp_path / "main.c").write_text(USER)
    run(tmp_path, "cmake", "-B", "build", f"-DNET={tmp_path}/digits", f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix")
    run(tmp_path, "cmake", "--build", "build")
    assert "100% tests passed" in run(tmp_path, "ctest", "--test-dir", "build")


# ---------------------------------------------------------------- Rust

TWO_CRATES = """
[package]
name = "user"
version = "0.0.0"
edition = "2021"
[dependencies]
digits_int8_model = { path = "../digits" }
double_model = { path = "../awkward" }
[workspace]
"""
TWO_NETWORKS = """
use std::sync::Mutex;
static DIGITS: Mutex<digits_int8_model::Network> = Mutex::new(digits_int8_model::Network::new());
fn main() {
    let mut image = [0; 64];
    digits_int8_model::sample(&mut image);
    println!("{:?}", DIGITS.lock().unwrap().run(&digits_int8_model::Inputs { image: &image }).probabilities);
    let (row, flags) = ([1.0; 20], [true, false, true]);
    let mut network = double_model::Network::default();
    for _ in 0..3 {
        let outputs = network.run(&double_model::Inputs { class_2: &row, arena_2: &flags });
        println!("{} {:?}", outputs.run_2[7], outputs.in_);
    }
}
"""


def words(text: str) -> list[float | str]:
    """Numbers and names; floats as they are after rounding to six digits, which C's ``%g`` prints."""
    numbers = {"true": "1", "false": "0"}
    found: list[float | str] = []
    for word in text.split():
        word = numbers.get(word, word)
        found.append(float(f"{float(word):g}") if re.fullmatch(r"-?[\d.]+(e-?\d+)?", word) and word != "..." else word)
    return found


def assert_alike(lines: Sequence[str], expected: Sequence[str]) -> None:
    """Lines of names and numbers; C libraries, and the arithmetic of cores that fuse multiply-adds, differ in a float's last
    bits, and six places or digits are printed."""
    assert len(lines) == len(expected)
    for line, wanted in zip(lines, expected, strict=True):
        found, known = words(line), words(wanted)
        assert len(found) == len(known)
        for a, b in zip(found, known, strict=True):
            assert abs(a - b) < 1e-4 if isinstance(a, float) and isinstance(b, float) else a == b, (line, wanted)


@needs("cargo", "cc")
def test_rust(tmp_path: Path) -> None:
    offline = {"CARGO_NET_OFFLINE": "true", "RUSTFLAGS": "-Dwarnings", "CARGO_TARGET_DIR": str(tmp_path / "target")}
    for which, target in (("digits", True), ("awkward", False), ("kinds", True)):
        folder = export(tmp_path / which, "rust", which, io_in_arena=target)
        lines = run(folder, "cargo", "run", "-q", "--example", "sample", **offline).splitlines()
        assert_alike(lines, said(which).splitlines())
        assert "test networks_agree ... ok" in run(folder, "cargo", "test", "--tests", **offline)
    (tmp_path / "user" / "src").mkdir(parents=True)
    (tmp_path / "user" / "Cargo.toml").write_text(TWO_CRATES)
    (tmp_path / "user" / "src" / "main.rs").write_text(TWO_NETWORKS)
    lines = run(tmp_path / "user", "cargo", "run", "-q", **offline).splitlines()
    assert lines[0].replace(",", "").strip("[]") == said().strip().partition(": ")[2]
    assert lines[1:] == [f"{k} [false, true, false]" for k in (1, 2, 3)]


@pytest.mark.cross
@needs("rustc", "arm-none-eabi-gcc", "riscv64-unknown-elf-gcc")
def test_the_c_of_a_crate_for_a_microcontroller(tmp_path: Path) -> None:
    """What ``build.rs`` does for targets without an operating system, whose Rust is not here."""
    folder = export(tmp_path / "net", "rust", target="cortex-m4")
    run(folder, "rustc", "--edition", "2021", "-Dwarnings", "-o", tmp_path / "build", "build.rs")
    for target, machine in (("thumbv7em-none-eabihf", "ARM"), ("riscv32imac-unknown-none-elf", "RISC-V")):
        (tmp_path / target).mkdir()
        more = {"CFLAGS_riscv32imac_unknown_none_elf": "--specs=picolibc.specs", "OUT_DIR": str(tmp_path / target)}
        told = run(folder, tmp_path / "build", TARGET=target, **more)
        assert "cargo:rustc-link-lib=static=digits_int8_model" in told
        library = tmp_path / target / "libdigits_int8_model.a"
        assert machine in run(folder, "arm-none-eabi-readelf", "-h", library)
    names = run(folder, "arm-none-eabi-readelf", "-A", tmp_path / "thumbv7em-none-eabihf" / "libdigits_int8_model.a")
    assert "Tag_ABI_VFP_args: VFP registers" in names


# ---------------------------------------------------------------- STM32Cube

CUBE = """
cmake_minimum_required(VERSION 3.22)
set(CMAKE_PROJECT_NAME board)
project(${CMAKE_PROJECT_NAME})
enable_language(C)
add_executable(${CMAKE_PROJECT_NAME} Core/Src/main.c)
add_subdirectory(Middlewares/PACKAGE)
target_link_libraries(${CMAKE_PROJECT_NAME} PACKAGE)
target_link_options(${CMAKE_PROJECT_NAME} PRIVATE --specs=rdimon.specs -u _printf_float -Wl,--section-start=.vectors=0)
"""
CUBE_TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_FLAGS "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 -mfloat-abi=hard -Wall -Wextra -Werror -ffunction-sections")
"""
CUBE_MAIN = """
#include "app_PACKAGE.h"
extern void _start(void);
extern const void *const vectors[];
const void *const vectors[] __attribute__((section(".vectors"), used)) = { (const void *)0x20010000, (const void *)_start };
int main(void)
{
    *(volatile unsigned *)0xE000ED88u |= 0xFu << 20; /* the FPU */
    MX_UPPER_Init();
    for (int turn = 0; turn < 11; ++turn) {
        MX_UPPER_Process();
    }
    return 0;
}
"""


@pytest.mark.cross
@pytest.mark.emulator
@needs("cmake", "arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize(("which", "package"), [("digits", "digits_int8_model"), ("awkward", "double_model")])
def test_stm32cube(tmp_path: Path, which: str, package: str) -> None:
    """Inside a CMake project of the kind that STM32CubeMX writes; the emulated core prints through its debugger."""
    folder = export(tmp_path / "net", "stm32cube", which, target="cortex-m4")
    shutil.copytree(folder / package, tmp_path / "Middlewares" / package)
    (tmp_path / "Core" / "Src").mkdir(parents=True)
    (tmp_path / "Core" / "Src" / "main.c").write_text(
        CUBE_MAIN.replace("PACKAGE", package).replace("UPPER", package.upper())
    )
    (tmp_path / "CMakeLists.txt").write_text(CUBE.replace("PACKAGE", package))
    (tmp_path / "gcc.cmake").write_text(CUBE_TOOLCHAIN)
    run(tmp_path, "cmake", "-B", "build", "-DCMAKE_TOOLCHAIN_FILE=gcc.cmake")
    run(tmp_path, "cmake", "--build", "build")
    machine = ("-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none")
    semihosting = ("-semihosting-config", "enable=on,target=native", "-kernel", "build/board")
    output = run(tmp_path, "timeout", "60", "qemu-system-arm", *machine, *semihosting)
    assert_alike(output.splitlines(), said(which, turns=11).splitlines())
