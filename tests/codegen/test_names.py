# SPDX-License-Identifier: Apache-2.0
"""Names of models that C cannot have: words of languages, macros and functions of compilers, targets of build tools."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.codegen.c.identifiers import (
    C_LIBRARY_NAMES,
    RESERVED_NETWORK_NAMES,
    RESERVED_TENSOR_NAMES,
    RESERVED_WORDS,
    network_name,
)
from microc.codegen.c.source import network_files, shared_files
from microc.compiler.bundle import bundle
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_graph, compile_model
from microc.errors import UsageError
from microc.graph.ir import Graph, Loc, Node, TensorType
from microc.run.desktop.load import build_library
from microc.target import target_for

ROW = TensorType((2,), "float32")
COMPILERS = (
    ("gcc",),
    ("clang",),
    ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb"),
    ("arm-none-eabi-gcc", "-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"),
    ("riscv64-unknown-elf-gcc", "--specs=picolibc.specs"),
    ("avr-gcc", "-mmcu=atmega2560"),
)
HEADERS = """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
stdbool stddef stdint stdio stdlib stdnoreturn string tgmath time uchar wchar wctype"""
"""Of C, without ``threads``: not all that have it can compile it."""


def network(names: tuple[str, ...], name: str = "net") -> Graph:
    """The negative of every input; outputs are called like inputs, with a word behind."""
    outs = tuple(f"{n}_OUT" for n in names)
    nodes = tuple(
        Node("neg", (a,), (b,), loc=Loc(name, k, a)) for k, (a, b) in enumerate(zip(names, outs, strict=True))
    )
    return Graph(name, names, outs, nodes, dict.fromkeys((*names, *outs), ROW), {}, {}, {})


def check_library(graph: Graph) -> None:
    """The network's library gives the negatives."""
    module = compile_model(graph, target_for("host"), Options())
    library = build_library(shared_files(module, "test"))
    rows = np.arange(2.0 * len(graph.inputs), dtype=np.float32).reshape(-1, 2)
    results = library(*rows)
    assert np.array_equal(np.stack(results if isinstance(results, tuple) else (results,)), -rows)


def test_reserved_words_get_a_number() -> None:
    ins = ("int", "while", "class", "new", "bool", "arena", "run", "reset", "run_kernel", "sample")
    assert set(ins) <= set(RESERVED_TENSOR_NAMES)
    outs = (*(f"{name}_out" for name in ins[1:]), "Class")
    nodes = tuple(Node("neg", (a,), (b,), loc=Loc("net", k, a)) for k, (a, b) in enumerate(zip(ins, outs, strict=True)))
    graph = Graph("net", ins, outs, nodes, dict.fromkeys((*ins, *outs), ROW), {}, {}, {})
    module = compile_model(graph, target_for("host"), Options())
    assert not set(RESERVED_TENSOR_NAMES) & {*module.values, *(kernel.name for kernel in module.kernels)}
    assert "class_2" in module.values and "class_3" in module.values
    check_library(graph)


def test_no_macro_twice() -> None:
    """An input called ``arena`` must not change the size of the arena."""
    graph = Graph(
        "net", ("arena",), ("run",), (Node("neg", ("arena",), ("run",)),), {"arena": ROW, "run": ROW}, {}, {}, {}
    )
    header = network_files(compile_model(graph, target_for("host"), Options()), "test")["model.h"]
    macros = [line.split()[1] for line in header.splitlines() if line.startswith("#define")]
    macros = [name for name in macros if name != "NET_STACK_BOUND"]  # one for each way to compile
    assert len(macros) == len(set(macros)) and "NET_ARENA_2_SIZE" in macros


def preprocessed(compiler: tuple[str, ...], standards: tuple[str, ...], option: str) -> str:
    """What a compiler makes of the headers of C under some standards; an old one does not know all of them."""
    lines = "".join(f"#if __has_include(<{h}.h>)\n#include <{h}.h>\n#endif\n" for h in HEADERS.split())
    argvs = ([*compiler, f"-std={standard}", option, "-E", "-xc", "-"] for standard in standards)
    texts = [subprocess.run(a, input=lines, capture_output=True, text=True, check=False).stdout for a in argvs]
    assert any(texts), compiler
    return "".join(texts)


@pytest.mark.parametrize("compiler", COMPILERS, ids=" ".join)
def test_compilers_names_are_known(compiler: tuple[str, ...]) -> None:
    """Macros without arguments that a tensor could be called, and all of several words that headers name."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not on PATH")
    macros = preprocessed(compiler, ("gnu17", "gnu11", "c99"), "-dM")
    words = set(re.findall(r"^#define ([a-z][a-z0-9_]*) ", macros, re.M))
    spaces = tuple(f"{name}_" for name in RESERVED_NETWORK_NAMES)
    assert {w for w in words - RESERVED_WORDS - C_LIBRARY_NAMES if not w.startswith(spaces)} == set()
    several = set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", preprocessed(compiler, ("c11", "c99"), "-P")))
    assert {w for w in several - RESERVED_WORDS - C_LIBRARY_NAMES if not w.startswith(spaces)} == set()
    own = r"^#define ([A-Z][A-Z0-9]*)_(?:OK|MORE|KERNEL|ASSERT|ALIGNED|FLASH|FINGERPRINT|ARENA_SIZE|STACK_BOUND) "
    limits = r"^#define ([A-Z][A-Z0-9]*)_[A-Z0-9_]+_(?:SIZE|MIN|MAX|STEP) "
    meant = {*re.findall(own, macros, re.M), *re.findall(limits, preprocessed(compiler, ("c11", "c99"), "-dM"), re.M)}
    assert {name for name in meant if network_name(name) == name.lower()} == set()


CALLED = """memcpy main printf malloc exp expf powf round abs min log2 index signal y0 time exit write i f32 u8 linux unix
run_slice size_t frame base self type fn network"""


def test_tensors_of_any_name(tmp_path: Path) -> None:
    """Functions, macros and words as names of inputs, for every compiler in its dialect: header, network, sample."""
    graph = network(tuple(CALLED.split()))
    program = microc.compile(graph, board="host")
    assert program.module.inputs[0] == "memcpy" and "run_slice_2" in program.module.inputs
    program.export("c", tmp_path)
    includes = (
        f"#if __has_include(<{h}.h>)\n#include <{h}.h>\n#endif\n"
        for h in HEADERS.split()
        if h not in ("complex", "iso646")
    )
    (tmp_path / "all.h").write_text("".join(includes))
    warned = ("-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only", "-Wno-main")
    for compiler in COMPILERS:
        if shutil.which(compiler[0]) is not None:
            argv = [*compiler, *warned, "-include", "all.h", *sorted(tmp_path.glob("*.c"))]
            done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{compiler}: {done.stderr[:3000]}"
    (tmp_path / "sketch.cpp").write_text('#include <cmath>\n#include "net_model.h"\n#include "net_model_sample.h"\n')
    subprocess.run(["g++", *warned, "sketch.cpp"], cwd=tmp_path, check=True)


def test_names_with_others_around_them(tmp_path: Path) -> None:
    """A tensor whose name is another's with a word of ours behind it; types that a network and a tensor make together."""
    names = (
        "x",
        "x_values",
        "x_memory",
        "x_elements",
        "your_x",
        "buffer_x",
        "assert_x_fits",
        "Maß",
        "maß",
        "x" * 400,
        "t",
    )
    for name in ("size", "uint8"):
        program = microc.compile(network(names, name), board="host")
        ins = program.module.inputs
        assert len(set(ins)) == len(names) and all(len(n) < 48 for n in ins) and "t_2" in ins
        program.export("c", tmp_path / name)
        files = sorted((tmp_path / name).glob("*.c"))
        subprocess.run(
            ["cc", "-std=gnu99", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror", *files], check=True
        )
    graph = network(("x",), "A..B")
    assert compile_graph(graph, "net", target_for("host"), Options()).name == "a_b"


NAMES = "microc all clean install firmware A..B microc_rpc int 3d model run_slice class test con NUL com1 f esp"


def test_networks_of_any_name(tmp_path: Path) -> None:
    """What a build tool, a header or Windows has already gets a letter in front; projects build by make and by CMake."""
    names = [*NAMES.split(), "", "äöü", "é" * 300, "n" * 300]
    made = [network_name(name) for name in names]
    assert made[:6] == ["m_microc", "m_all", "m_clean", "m_install", "m_firmware", "a_b"]
    assert made[6:12] == ["m_microc_rpc", "m_int", "m_3d", "model", "run_slice", "class"]
    assert all(name.startswith("m_") for name in made[12:18]) and made[18:] == ["model", "model", "model", "n" * 64]
    assert all(network_name(name) == name for name in made)
    for name in ("microc", "all"):
        folder = microc.compile(network(("x",), name), board="host").write(tmp_path / name)
        subprocess.run(["make", "-s", "-C", folder], check=True)
        if shutil.which("cmake") is not None:
            subprocess.run(["cmake", "-S", folder, "-B", tmp_path / "b" / name], check=True, stdout=subprocess.DEVNULL)


def test_two_networks_that_make_one_name() -> None:
    """``a`` with a table ``b_c_weight`` and ``a_b`` with ``c_weight``: two tables of one name in a firmware."""

    def program(name: str, layer: str) -> microc.Program:
        kinds = {
            "x": TensorType((1, 2), "float32"),
            "y": TensorType((1, 3), "float32"),
            "w": TensorType((3, 2), "float32"),
        }
        nodes = (Node("dense", ("x", "w"), ("y",), loc=Loc(name, 0, layer)),)
        graph = Graph(name, ("x",), ("y",), nodes, kinds, {"w": np.ones((3, 2), np.float32)})
        return microc.compile(graph, board="host")

    with pytest.raises(UsageError, match="'a' and 'a_b' both define the C name 'a_b_c_weight'"):
        bundle(program("a", "b_c"), program("a_b", "c"))
    bundle(program("a", "b_c"), program("a_c", "c"))
