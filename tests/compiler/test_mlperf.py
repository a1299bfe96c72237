# SPDX-License-Identifier: Apache-2.0
"""Firmware for MLPerf Tiny's runner: its dialogue, accuracy and performance modes, on an emulated board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.device.boards import load_board
from microc.device.emulators import Emulator
from microc.device.transport import PipeTransport, Transport, open_transport
from microc.errors import UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.run.board_project import build_project, open_project
from tests.device.mlperf_runner import Runner, results
from tests.device.smoke import needs
from tests.support import digits
from tests.support.corpus import cases, models


def flash(model: object, folder: Path, board: str, **options: Any) -> Path:
    project = open_project(microc.compile(model, board=board, protocol="mlperf", **options).write(folder / "firmware"))
    build_project(project)
    return project.elf


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transport]:
    line = PipeTransport([str(flash(digits.INT8, tmp_path_factory.mktemp("host"), "host", name="digits01"))])
    yield line
    line.close()


@pytest.fixture(scope="module")
def runner(host: Transport) -> Runner:
    return Runner(host)


def test_it_introduces_itself(runner: Runner) -> None:
    assert runner.greeting == ["m-timestamp-mode-performance", "m-init-done"]
    assert runner.ask("name") == ["m-name-dut-[microc]"]
    assert runner.ask("profile") == ["m-profile-[ULPMark for tinyML Firmware V0.0.1]", "m-model-[digits01]"]
    first, second = (int(runner.ask("timestamp")[0].removeprefix("m-lap-us-")) for _ in range(2))
    assert first <= second


def test_results_are_those_of_the_library(runner: Runner) -> None:
    library = microc.compile(digits.INT8, output_dtype="float32")
    for image in digits.images(5):
        runner.load(image.tobytes())
        _, answer = runner.infer(1, 0)
        assert answer == pytest.approx(np.asarray(library(image)).reshape(-1).tolist(), abs=1e-6)
        assert results(runner.ask("results")) == answer


def test_an_input_serves_for_many_inferences(runner: Runner) -> None:
    runner.load(digits.images(1)[0].tobytes())
    _, once = runner.infer(1, 0)
    time, again = runner.infer(50, 3)
    assert again == once and time >= 0
    printed = "".join(line.removeprefix("m-buffer-") + "-" for line in runner.ask("db print"))
    assert bytes.fromhex(printed.replace("-", "")) == digits.images(1)[0].tobytes()


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("dance", "e-[Unknown command: dance]"),
        ("", "e-[Unknown command: ]"),
        ("db", "e-[Command 'db' requires a subcommand]"),
        ("db load", "e-[Command 'db load' requires the # of bytes]"),
        ("db load 65", "e-[Command 'db load' takes 1 to 64 bytes]"),
        ("db load -1", "e-[Command 'db load' takes 1 to 64 bytes]"),
        ("db 0g", "e-[Not pairs of hexadecimal digits]"),
        ("db 1", "e-[Not pairs of hexadecimal digits]"),
        ("infer 0", "e-[Inference iterations must be >0]"),
        ("infer 1 x", "e-[Inference warmup must be >=0]"),
        ("x" * 200, f"e-[Unknown command: {'x' * 80}]"),
    ],
)
def test_wrong_commands_are_answered(runner: Runner, command: str, answer: str) -> None:
    assert runner.ask(command) == [answer]


def test_an_autoencoder_answers_with_its_error(tmp_path: Path) -> None:
    row = TensorType((1, 8), "float32")
    graph = Graph("ad01", ("x",), ("y",), (Node("relu", ("x",), ("y",)),), dict.fromkeys(("x", "y"), row))
    line = PipeTransport([str(flash(graph, tmp_path, "host"))])
    runner = Runner(line)
    x = np.array([-1, 2, -3, 4, -5, 6, -7, 8], np.float32)
    runner.load(x.tobytes())
    assert runner.infer(1, 0)[1] == [pytest.approx(np.mean(np.minimum(x, 0) ** 2))]
    line.close()


@pytest.mark.corpus
@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_a_benchmark_on_an_emulated_board(tmp_path: Path) -> None:
    """Both modes with real weights: the reference's results, and times that repeat."""
    (path,) = models("mlperf_kws_int8.tflite")
    elf = flash(path, tmp_path, "mps2-an386", name="kws01")
    with Emulator(load_board("mps2-an386"), elf) as emulator:
        line = open_transport(emulator.url)
        emulator.reset()  # it greeted before anybody listened
        runner = Runner(line)
        assert runner.ask("profile")[1] == "m-model-[kws01]"
        for (data,), (expected,) in cases(path)[:2]:
            runner.load(data.tobytes())
            real = (expected.reshape(-1).astype(int) + 128) / 256  # a softmax of int8
            assert runner.infer(1, 0)[1] == pytest.approx(real.tolist(), abs=1e-6)
        one, ten = runner.infer(1, 0)[0], runner.infer(10, 0)[0]
        assert ten == pytest.approx(10 * one, rel=0.01)
        line.close()


def test_what_the_runner_cannot_use_is_refused(tmp_path: Path) -> None:
    row = TensorType((1, 8), "int32")
    types = dict.fromkeys(("a", "b", "c"), row)
    two = Graph("two", ("a", "b"), ("c",), (Node("add", ("a", "b"), ("c",)),), types)
    with pytest.raises(UsageError, match="has 2 inputs, expected one"):
        microc.compile(two, board="host", protocol="mlperf").write(tmp_path / "a")
    one = Graph("one", ("a",), ("c",), (Node("relu", ("a",), ("c",)),), {"a": row, "c": row})
    with pytest.raises(UsageError, match="got an output of int32"):
        microc.compile(one, board="host", protocol="mlperf").write(tmp_path / "b")
    program = microc.compile(digits.INT8, board="host", protocol="mlperf")
    with pytest.raises(UsageError, match="got 2 networks, expected one"):
        microc.bundle(program, microc.compile(digits.FLOAT, board="host", protocol="mlperf")).write(tmp_path / "c")
    with pytest.raises(UsageError, match="MLPerf Tiny's runner"), microc.Device(program.write(tmp_path / "d")):
        pass
    with pytest.raises(UsageError, match="protocol cannot be 'morse'"):
        microc.compile(digits.INT8, board="host", protocol="morse")  # type: ignore[call-overload]
