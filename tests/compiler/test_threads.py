# SPDX-License-Identifier: Apache-2.0
"""Networks for several threads: the same bits as for one, no race, nothing where there are none."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.lowering.derivation import derive_kernel
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model, compile_network
from microc.errors import UsageError
from microc.module import Module
from microc.schedule.rules import around_rules
from microc.target import target_for
from tests.support import digits
from tests.support.campaign import in_turn
from tests.support.native import WARNINGS

MODELS = ("digits_int8.tflite", "digits_float.onnx", "digits_qdq.onnx")


@pytest.fixture
def every_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small loops are split, too."""
    monkeypatch.setattr(around_rules, "MIN_INSTRUCTIONS", 0)


def inputs(library: microc.Library, count: int) -> Array:
    dice, tensor = np.random.default_rng(0), library.inputs[0]
    real = dice.standard_normal((count, *tensor["shape"])) * (1 if tensor["dtype"] == "float32" else 64)
    return np.asarray(real.astype(tensor["dtype"]))


def of_threads(model: str, count: int, cpu: str = "host") -> Module:
    options = make_options(threads=count, name="digits")
    return compile_model(digits.INT8.parent / model, target_for(cpu), options)


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize(("model", "target"), in_turn(MODELS, ["host", "native"]))
def test_any_number_of_threads_gives_the_same_bits(model: str, target: str) -> None:
    path = digits.INT8.parent / model
    one = microc.compile(path, target)
    x = inputs(one, 20)
    wanted = np.asarray(one.batch(x)).tobytes()
    for count in (2, 3, 7):
        several = microc.compile(path, target, threads=count, cache=False)
        assert np.asarray(several.batch(x)).tobytes() == wanted


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(compiler: str, tmp_path: Path) -> None:
    for name, text in shared_files(of_threads(MODELS[1], 2), "test").items():
        (tmp_path / name).write_text(text)
    assert "microc_run_turns(" in (tmp_path / "model.c").read_text()
    command = [compiler, *WARNINGS, "-fsyntax-only", "model.c", "shared.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


_MAIN = """
#include "model.h"
int microc_run(void *arena, const void *const *inputs, void *const *outputs);
int main(void)
{
    static uint64_t arena[(DIGITS_ARENA_SIZE + 7) / 8 + 1];
    static uint64_t in[512], out[64];
    const void *const inputs[1] = {in};
    void *const outputs[1] = {out};
    for (int32_t k = 0; k < 200; ++k) {
        if (microc_run(arena, inputs, outputs) != 0) {
            return 1;
        }
    }
    return 0;
}
"""


@pytest.mark.usefixtures("every_loop")
@pytest.mark.parametrize("model", MODELS)
def test_no_race(model: str, tmp_path: Path) -> None:
    """By ThreadSanitizer, where the compiler has it and this computer lets it run."""
    for name, text in {**shared_files(of_threads(model, 3), "test"), "main.c": _MAIN}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "none.c").write_text("int main(void)\n{\n    return 0;\n}\n")
    flags = ["clang", "-std=c99", "-O1", "-g", "-fsanitize=thread", "-pthread"]

    def run(*sources: str) -> subprocess.CompletedProcess[str]:
        for command in ([*flags, *sources, "-lm", "-o", "net"], ["./net"]):
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode != 0:
                break
        return done

    if run("none.c").returncode != 0:
        pytest.skip("needs a compiler with ThreadSanitizer")
    done = run("main.c", "shared.c", "model.c", "model_data.c")
    assert done.returncode == 0, done.stderr[:3000]
    assert "WARNING" not in done.stderr


def test_one_thread_has_no_word_of_them() -> None:
    text = shared_files(of_threads(MODELS[0], 1), "test")["model.c"]
    assert not any(word in text for word in ("thread", "turns", "_seen"))


def test_small_loops_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_rules, "MIN_INSTRUCTIONS", 1 << 40)
    assert "pthread" not in shared_files(of_threads(MODELS[0], 2), "test")["model.c"]


@pytest.mark.usefixtures("every_loop")
def test_instances_run_side_by_side() -> None:
    """The pool serves one caller at a time; others do their turns themselves."""
    library = microc.compile(digits.INT8, threads=2, cache=False)
    x = inputs(library, 200)
    wanted = np.asarray(library.batch(x))
    several = [library.instance() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda each: np.asarray(each.batch(x)), several):
            assert np.array_equal(found, wanted)


@pytest.mark.usefixtures("every_loop")
def test_a_forked_process_has_threads_of_its_own() -> None:
    library = microc.compile(digits.INT8, threads=2, cache=False)
    x = inputs(library, 50)
    wanted = np.asarray(library.batch(x))
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(np.asarray(library.batch(x)), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def affinities() -> list[set[int]]:
    """The CPUs of each thread of this process, in the order in which they started."""
    return [os.sched_getaffinity(int(name)) for name in sorted(os.listdir("/proc/self/task"), key=int)]


@pytest.mark.usefixtures("every_loop")
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
@pytest.mark.parametrize("count", [2, 4])
def test_threads_are_bound_to_the_cpus_of_the_process(count: int) -> None:
    """Also to those of a mask, as of taskset, and in turn if there are more threads than CPUs. The caller stays as it is."""
    bound = microc.compile(digits.INT8, threads=count, bind_threads=True, cache=False)
    x = inputs(bound, 20)
    wanted = np.asarray(microc.compile(digits.INT8).batch(x))
    cpus = sorted(os.sched_getaffinity(0))
    for mask in (cpus, cpus[-1:]):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, mask)
            before = len(affinities())
            same = np.array_equal(np.asarray(bound.batch(x)), wanted)
            found = affinities()
            os.write(writing, repr((same, found[0] == set(mask), [sorted(each) for each in found[before:]])).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading) as pipe:
            assert pipe.read() == repr((True, True, [[mask[k % len(mask)]] for k in range(1, count)]))


@pytest.mark.usefixtures("every_loop")
def test_reports_derive_the_same_functions() -> None:
    made = compile_network(digits.FLOAT, target_for("host"), make_options(threads=2))
    for number in range(len(made.module.calls)):
        derive_kernel(made, number)  # InternalError where what is derived is not what was compiled


def test_refusals() -> None:
    with pytest.raises(UsageError, match="expected 1 on cortex-m4") as caught:
        microc.compile(digits.INT8, "cortex-m4", threads=2)
    assert "x86-64-v3" in caught.value.hint
    with pytest.raises(UsageError, match="has no threads"):
        microc.compile(digits.INT8, board="mps2-an386", threads=2)
    with pytest.raises(UsageError, match="bind_threads: got one thread"):
        microc.compile(digits.INT8, bind_threads=True)
    for count in (0, 257, "2", True):
        with pytest.raises(UsageError, match="number of threads cannot be"):
            microc.compile(digits.INT8, threads=count)  # type: ignore[arg-type]
