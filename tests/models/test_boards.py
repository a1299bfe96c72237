# SPDX-License-Identifier: Apache-2.0
"""Real models on emulated boards, over the real serial protocol: the same bits as the references."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.device.boards import load_board
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.transport import open_transport
from microc.errors import FitError
from microc.run.board_project import Project, build_project, open_project
from microc.run.session import Device
from tests.device.faults import FaultyTransport, Rates
from tests.device.smoke import skip_without
from tests.models.test_corpus import in_sequence
from tests.support.campaign import everything, in_turn
from tests.support.corpus import cases, models

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "make")

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.cross,
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS) + ": run microc doctor"
    ),
]

BOARDS = ("mps2-an386", "mps2-an500", "mps3-an547")
MODELS = models(
    "mlperf_kws_int8*", "mlperf_vww_int8*", "mlperf_ic_int8*", "mlperf_ad_int8*", "mlperf_strww_int8*",
    "tflm_hello_world_int8*", "tflm_micro_speech_int8*", "tflm_keyword_scrambled_int8*", "tflm_person_detect_int8*",
)  # fmt: skip
MODELS += models("seanet_conv__*", "seanet_add__*")[:: 1 if everything() else 4]
ON_BOARDS = [
    *in_turn(MODELS, ("mps2-an386", "mps3-an547")),
    *((path, "mps2-an500") for path in models("mlperf_kws_int8*")),  # the M4's code but for its costs
    *((path, "mps2-an500") for path in models("mlperf_ic_int8*") if everything()),
    *((path, "mps2-an386") for path in models("tfs_mobilenet_v1_025_224_uint8*") if everything()),
    *((path, "microbit") for path in models("mlperf_kws_int8*")),
    *((path, "qemu-xtensa") for path in models("mlperf_kws_int8*", "tflm_micro_speech_int8*")),
]


def firmware(path: Path, board: str, folder: Path) -> Project:
    """The model compiled and built for a board."""
    skip_without(load_board(board))
    project = open_project(microc.compile(path, board=board).write(folder / "project"))
    build_project(project)
    return project


CASES = None if everything() else 2
"""Cases of a model on a board; tests/models/test_corpus.py takes all of them on this computer."""


@pytest.mark.corpus
@pytest.mark.parametrize(("path", "board"), ON_BOARDS, ids=lambda p: p.stem if isinstance(p, Path) else p)
def test_references_on_the_board(path: Path, board: str, tmp_path: Path) -> None:
    sequence = in_sequence(path)
    try:
        project = firmware(path, board, tmp_path)
    except FitError as refusal:
        pytest.skip(refusal.what)
    with Device(project) as device:
        for inputs, outputs in cases(path)[:CASES]:
            if not sequence:
                device.reset()
            got = device.run(*inputs)
            arrays = got if isinstance(got, tuple) else (got,)
            for mine, reference in zip(arrays, outputs, strict=True):
                assert np.array_equal(mine, reference)


@pytest.mark.parametrize(
    ("board", "name"),
    in_turn(
        ("microbit", "netduinoplus2", "hifive1", "qemu-riscv32", "arduino-mega", *BOARDS),
        ("digits_float.onnx", "digits_qdq.onnx"),
    ),
)
def test_digits_equal_the_host(name: str, board: str, tmp_path: Path) -> None:
    """To within the last place of libm's exponential. Integers alone: tests/models/test_every_board.py."""
    skip_without(load_board(board))
    path = DIGITS / name
    library = microc.compile(path)
    data = np.load(DIGITS / "digits_test.npz")
    with Device(firmware(path, board, tmp_path)) as device:
        for image in data["images"][:5]:
            array = digits_input(image, device)
            assert np.allclose(device.run(array), library(array), rtol=1e-5, atol=1e-6)


def digits_input(image: np.ndarray, device: Device) -> np.ndarray:
    """An image as the network's input: int8 NHWC or float NCHW."""
    kind = device.inputs[0]
    if kind["dtype"] == "int8":
        return (np.round(image / 16 * 255) - 128).astype(np.int8).reshape(kind["shape"])
    return (image / 16).astype(np.float32).reshape(kind["shape"])


@pytest.mark.parametrize("path", models("mlperf_vww_int8*"), ids=lambda path: path.stem)
def test_what_does_not_fit_is_refused_with_the_numbers(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FitError, match=r"\d"):
        microc.compile(path, board="microbit").write(tmp_path / "project")
    assert not (tmp_path / "project").exists()


def _faulty_run(project: Project, count: int, rates: Rates, check: Callable[[Device, int], None]) -> int:
    """``count`` inferences through a line with faults; the number of frames that had to be repeated."""
    with (
        Emulator(project.board, project.elf) as emulator,
        Client(FaultyTransport(open_transport(emulator.url), rates, seed=3), timeout=0.1, retries=12) as client,
    ):
        client.hello()
        client.check_fingerprint(project.manifest["fingerprint"])
        device = Device.over(project, client, emulated=True)
        for number in range(count):
            check(device, number)
        return client.stats().repeats


def test_inferences_over_a_faulty_line(tmp_path: Path) -> None:
    """Frames dropped, flipped, duplicated and split at 1 % each: every answer is right, of a thousand in a campaign."""
    path = DIGITS / "digits_int8.tflite"
    project = firmware(path, "mps2-an386", tmp_path)
    library = microc.compile(path)
    images = np.load(DIGITS / "digits_test.npz")["images"]
    inputs = [(np.round(i / 16 * 255) - 128).astype(np.int8).reshape(1, 8, 8, 1) for i in images]
    expected = [library(x) for x in inputs]

    def check(device: Device, number: int) -> None:
        which = number % len(inputs)
        assert np.array_equal(device.run(inputs[which]), expected[which])

    rates = Rates(drop=0.01, flip=0.01, duplicate=0.01, split=0.01)
    assert _faulty_run(project, 1000 if everything() else 100, rates, check) > 0
