# SPDX-License-Identifier: Apache-2.0
"""What ``check`` says before a compilation, and what the compilation says: bounds are bounds, and verdicts agree.

By default a few pairs of models and boards; ``MICROC_FIT=all`` takes the whole corpus and all cores and boards, for hours.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.compiler.fit.budget import BoardCapacity
from microc.compiler.fit.lower_bounds import compute_memory_lower_bound, min_constant_bytes
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model, read_and_optimise_at_maximum
from microc.device.boards import list_boards, load_board
from microc.errors import FitError, UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from microc.isa import CORES as CPUS
from microc.project.checks import check_model
from microc.target import target_for
from tests.exports.programs import awkward
from tests.support import digits
from tests.support.corpus import models

ALL = os.environ.get("MICROC_FIT") == "all"
SOURCES: dict[str, Path | Graph] = {
    "digits int8": digits.INT8,
    "digits QDQ": digits.QDQ,
    "state": awkward(),
    **{path.name: path for path in models(*(("*",) if ALL else ("tflm_hello_world_*.tflite",)))},
}
FEW = tuple(name for name in SOURCES if not name.startswith("digits"))
CORES = [(name, core, caller) for name in SOURCES for core in CPUS for caller in (False, True)]
BOARDS = [(name, board, caller) for name in SOURCES for board in (*list_boards(), "tiny") for caller in (False, True)]
if not ALL:
    CORES = [*((name, "avr", False) for name in FEW), *((name, "cortex-m4", True) for name in FEW)]
    CORES += [("digits int8", "cortex-m4", False)]
    BOARDS = [*((name, "arduino-uno", False) for name in FEW), *((name, "tiny", True) for name in FEW)]
    BOARDS += [("digits int8", "tiny", False), ("digits QDQ", "stm32vldiscovery", False)]


@cache
def compiled(name: str, board: str, caller: bool) -> bool | str:
    """Whether a network fits, compiled for the board; the early look at it is left out, so that it proves nothing itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("microc.compiler.pipeline.refuse_provably_too_large", lambda *_: None)
        try:
            microc.compile(SOURCES[name], board=board, io_in_arena=not caller)
        except FitError as error:
            return error.what
    return True


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board that the weights of the digits just do not fit."""
    return digits.small_board(tmp_path_factory.mktemp("board"), 8192, 4096 + 2200)


@pytest.mark.parametrize(("name", "core", "caller"), CORES)
def test_bounds_are_bounds(name: str, core: str, caller: bool) -> None:
    """The smallest that compilation finds, for size and row by row, is not below them."""
    options = Options(optimize="size", io_in_arena=not caller)
    least = compute_memory_lower_bound(read_and_optimise_at_maximum(SOURCES[name], options)[1], options)
    module = compile_model(SOURCES[name], target_for(core), options, capacity=BoardCapacity(ram=4))
    assert module.plan is not None
    assert least.weights <= module.const_bytes and least.arena <= module.plan.size
    ends = {*module.inputs, *module.outputs} - set(module.plan.offsets)
    assert least.io_bytes_outside_arena == sum(module.values[end].nbytes for end in ends)


@pytest.mark.parametrize(("name", "board", "caller"), BOARDS)
def test_verdicts_agree(name: str, board: str, caller: bool, tiny: Path) -> None:
    """A no is a proof; what compilation refuses was never a yes; a yes of --exact is one."""
    place = str(tiny) if board == "tiny" else board
    options = Options(io_in_arena=not caller)
    rough, exact = (check_model(SOURCES[name], options, load_board(place), exact=exact) for exact in (False, True))
    fits = compiled(name, place, caller) is True
    assert rough.verdict in ("no", "maybe") and (rough.fits is None) == (rough.verdict == "maybe")
    assert not (rough.verdict == "no" and fits), rough.reasons
    assert exact.fits is fits
    if rough.verdict == "no":
        with pytest.raises(FitError) as refusal:
            microc.compile(SOURCES[name], board=place, io_in_arena=not caller)
        assert "at least" in refusal.value.what and refusal.value.hint


def large() -> Graph:
    """A float network of many layers whose weights alone exceed any small board."""
    write = GraphBuilder("large")
    x = write.input("x", (1, 640), "float32", None)
    dice = np.random.default_rng(0)
    for k in range(12):
        write.at(k, f"layer_{k}")
        weight = write.new_constant(f"w{k}", dice.normal(size=(640, 640)).astype(np.float32))
        x = write.emit("dense", (x, weight), {"activation": "relu"})
    return write.graph("large", {"out": x})


def test_the_hopeless_end_in_a_second() -> None:
    """Before any layer is scheduled, with the numbers."""
    graph, began = large(), time.monotonic()
    seen: list[str] = []
    with pytest.raises(
        FitError, match=r"large.* does not fit microbit: weights take at least 19660800 bytes"
    ) as refusal:
        microc.compile(graph, board="microbit", progress=lambda text, done, total: seen.append(text))
    assert not seen and time.monotonic() - began < 10  # a second where nothing else runs
    assert refusal.value.details["weights_at_least"] == 12 * 640 * 640 * 4
    with pytest.raises(
        FitError, match="a flash budget of 1000 bytes cannot hold weights, which take at least 19660800"
    ):
        microc.compile(graph, flash=1000)
    with pytest.raises(FitError, match="an arena of 1000 bytes cannot hold tensors, which take at least 2560"):
        microc.compile(graph, ram=1000)


def test_what_a_constant_takes_at_least() -> None:
    dice = np.random.default_rng(1)
    assert min_constant_bytes(dice.integers(-8, 8, 100).astype(np.int8)) == 50
    assert min_constant_bytes(np.arange(100, dtype=np.int8)) == 100
    assert (
        min_constant_bytes(np.arange(100, dtype=np.int16)) == 100
        and min_constant_bytes(np.arange(300, dtype=np.int16)) == 600
    )
    assert min_constant_bytes(np.linspace(0, 1, 100, dtype=np.float32)) == 400
    assert min_constant_bytes(np.arange(100, dtype=np.int32)) == min_constant_bytes(np.ones(100, np.float32)) == 0
    assert min_constant_bytes(np.arange(10, dtype=np.int8)) == 0


def layer_of_40_000_weights() -> Graph:
    write = GraphBuilder()
    data = write.op("dequantize", write.input("x", (1, 200), "int8"), scale=(0.05,), zero_point=(0,))
    stored = write.constant("w", np.random.default_rng(0).integers(-127, 128, (200, 200), np.int8))
    made = write.op("dense", data, write.op("dequantize", stored, scale=(0.01,), zero_point=(0,)))
    result = write.op("quantize", made, scale=(0.5,), zero_point=(0,), out_dtype="int8", rounding="even")
    return write.graph("large", {"y": result})


def test_a_constant_beyond_the_arrays_of_a_compiler_is_refused() -> None:
    """avr-gcc: ``size of array is too large``, after everything was written."""
    graph = layer_of_40_000_weights()
    with pytest.raises(FitError, match=r"C compilers for avr support no array of this size; got 40000 bytes"):
        microc.compile(graph, board="arduino-mega")
    assert microc.compile(graph, board="nrf52840dk").module.const_bytes == 40_000


def test_an_arena_beyond_the_arrays_of_a_compiler_is_refused() -> None:
    """Two tensors of 20,000 bytes are alive at once; no board's RAM is asked for."""
    write = GraphBuilder()
    given = write.input("x", (1, 5000), "float32")
    graph = write.graph("wide", {"y": write.op("mul", given, write.op("softmax", given, axis=1))})
    with pytest.raises(FitError, match=r"the arena: C compilers for avr support no array of this size; got \d+ bytes"):
        microc.compile(graph, "avr")


def doubled() -> Graph:
    """Through an intermediate value of float64."""
    write = GraphBuilder()
    wide = write.op("cast", write.input("x", (4,), "float32"), dtype="float64")
    product = write.op("mul", wide, write.constant("factor", np.full(4, 1 / 3)))
    return write.graph("doubled", {"y": write.op("cast", product, dtype="float32")})


def test_float64_is_refused_on_a_core_whose_double_is_a_float32() -> None:
    """avr-gcc 5: kernels read and write 4 bytes of the 8 that the plan and the protocol give a number."""
    with pytest.raises(UnsupportedError, match=r"C's double has 4 bytes on avr; got float64, expected float32"):
        microc.compile(doubled(), board="arduino-mega")
    microc.compile(doubled(), board="nrf52840dk")
