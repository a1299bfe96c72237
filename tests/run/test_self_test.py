# SPDX-License-Identifier: Apache-2.0
"""Networks that check themselves: on this computer, on emulated boards, in a firmware of somebody's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.cli import main
from microc.compiler.bundle import bundle
from microc.errors import MicrocError, UnsupportedError, UsageError, VerificationError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph
from tests.support import digits
from tests.support.native import WARNINGS

BOARDS = {
    "host": "",
    "microbit": "qemu-system-arm",
    "mps2-an386": "qemu-system-arm",
    "qemu-riscv32": "qemu-system-riscv32",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "images.npz"
    np.savez(path, image=digits.images(3))
    return path


def built(program: Any, folder: Path) -> Path:
    """A project of a program, built."""
    microc.build(microc.open_project(program.write(folder)))
    return folder


def spoil(folder: Path, weights: Array) -> None:
    """Change one weight in the firmware."""
    path = folder / "firmware.elf"
    data, row = path.read_bytes(), weights.tobytes()
    assert data.count(row) == 1
    at = data.index(row) + int(np.argmax(np.frombuffer(row, np.uint8) == np.frombuffer(row, np.uint8).max()))
    path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])


def weights(program: Any, name: str) -> Array:
    """The constant whose name ends so."""
    data = next(v.data for n, v in program.module.values.items() if n.endswith(name) and v.storage == "const")
    assert isinstance(data, np.ndarray)
    return data


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_finds_a_wrong_weight(
    board: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if BOARDS[board] and shutil.which(BOARDS[board]) is None:
        pytest.skip(f"{BOARDS[board]} is not installed")
    program = microc.compile(digits.INT8, board=board, self_test=images)
    folder = built(program, tmp_path / "firmware")
    with microc.Device(folder) as device:
        assert device.self_test == "passed"
        assert device.failed_self_test() is None
    spoil(folder, weights(program, "dense5_weight"))
    with microc.Device(folder) as device:
        assert device.self_test == "failed"
    np.save(tmp_path / "x.npy", digits.images(1)[0])
    assert main(["run", str(folder), "--input", str(tmp_path / "x.npy"), "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["self_test"] == "failed" and "'digits_int8' failed its self-test" in told.err


def test_a_project_without_has_none(tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="host")
    files = program.files()
    assert "MICROC_SELF_TEST" not in files["board/microc_board.h"] and "self_test" not in str(files["main.c"])
    with microc.Device(built(program, tmp_path / "firmware")) as device:
        assert device.self_test is None


def test_its_bytes_are_counted(images: Path, tmp_path: Path) -> None:
    plain = microc.compile(digits.INT8, board="mps2-an386").report()
    report = microc.compile(digits.INT8, board="mps2-an386", self_test=images).report()
    assert report["self_test"]["bytes"] == 3 * 74 == report["flash"] - plain["flash"]
    assert report["weight_bytes"] == plain["weight_bytes"]


def test_of_several_networks_the_first_that_fails_is_named(images: Path, tmp_path: Path) -> None:
    programs = [
        microc.compile(digits.INT8, board="host", name=name, self_test=images, optimize="size")
        for name in ("one", "two")
    ]
    folder = built(bundle(*programs), tmp_path / "firmware")
    assert (folder / "two" / "model.c").is_file()
    path = folder / "firmware.elf"
    row = weights(programs[1], "dense5_weight").tobytes()
    data = path.read_bytes()
    places = [k for k in range(len(data)) if data.startswith(row[:64], k)]
    assert len(places) == 2
    path.write_bytes(data[: places[1]] + bytes(len(row)) + data[places[1] + len(row) :])
    with microc.Device(folder) as device:
        assert "'two' failed" in str(device.failed_self_test()) or "'one' failed" in str(device.failed_self_test())


def test_a_hook_of_ones_own_hears_the_result(images: Path, tmp_path: Path) -> None:
    folder = microc.compile(digits.INT8, board="host", self_test=images).write(tmp_path / "firmware")
    hook = """#include <stdio.h>
#include "microc_rpc.h"
void microc_self_test_result(int result)
{
    fprintf(stderr, "light %d\\n", result);
}
"""
    (folder / "light.c").write_text(hook)
    subprocess.run(["make", "-s", "EXTRA_SOURCES=light.c"], cwd=folder, check=True)
    done = subprocess.run(
        [folder / "firmware.elf"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20
    )
    assert "light 0" in done.stderr


def state_network() -> Graph:
    """A running sum of floats, and how many there were."""
    net = GraphBuilder()
    x = net.input("result", (1, 4))
    kept = net.state("kept", np.zeros((1, 4), np.float32))
    total = net.op("add", x, kept)
    net.update(kept, total)
    return net.graph("net", {"difference": net.op("tanh", total)})


def test_exports_have_it_and_sequences_begin_anew(tmp_path: Path) -> None:
    frames = np.random.default_rng(3).standard_normal((5, 1, 4)).astype(np.float32)
    np.savez(tmp_path / "frames.npz", result=frames, difference=np.tanh(np.cumsum(frames, 0, dtype=np.float32)))
    for io_in_arena in (True, False):
        program = microc.compile(
            state_network(), board="host", self_test=tmp_path / "frames.npz", io_in_arena=io_in_arena
        )
        folder = tmp_path / f"export{io_in_arena}"
        program.export("c", folder)
        call = "net_self_test(arena)" if io_in_arena else "net_self_test(arena, x, y)"
        (folder / "main.c").write_text(f"""#include "net_model.h"
int main(void)
{{
    static uint64_t arena[(NET_ARENA_SIZE + 7) / 8 + 1];
    static float x[NET_RESULT_SIZE], y[NET_DIFFERENCE_SIZE];
    (void)x;
    (void)y;
    return {call} + 10 * {call};
}}
""")
        argv = [
            "gcc",
            *WARNINGS,
            "-fsanitize=address,undefined",
            "main.c",
            "net_model.c",
            "net_model_data.c",
            "-lm",
            "-o",
            "main",
        ]
        subprocess.run(argv, cwd=folder, check=True)
        assert subprocess.run([folder / "main"], check=False).returncode == 0
        data = folder / "net_model_data.c"
        text = data.read_text()
        numbers = text[text.index("net_test_difference") :]
        last = numbers.index("}")
        cut = numbers.rindex(",", 0, numbers.rindex(",", 0, last))
        data.write_text(text.replace(numbers[cut:last], ", 0.5f,\n", 1))
        subprocess.run(argv, cwd=folder, check=True)
        assert subprocess.run([folder / "main"], check=False).returncode == 55  # the last of five samples


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"image": np.zeros((2, 8, 8, 1), np.float64) + np.inf}, "infinities or NaN"),
        ({"picture": np.zeros((2, 8, 8, 1), np.int8), "more": np.zeros(2)}, "no array is called 'image'"),
        ({"image": np.zeros((900, 8, 8, 1), np.int8)}, "66,600 bytes of flash, expected at most 65,536"),
        ({"image": np.zeros((0, 8, 8, 1), np.int8)}, "got no samples"),
        ({"image": np.zeros((2, 9, 8, 1), np.int8)}, "image takes samples of shape Nx1x8x8x1"),
    ],
)
def test_data_that_make_no_test_are_refused(arrays: dict[str, Array], said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as error:
        microc.compile(digits.INT8, board="host", self_test=tmp_path / "data.npz")
    assert said in str(error.value)


def test_expected_outputs_must_be_the_networks(tmp_path: Path) -> None:
    library, x = microc.compile(digits.INT8), digits.images(2)
    outputs = np.stack([library(each) for each in x])
    np.savez(tmp_path / "right.npz", image=x, probabilities=outputs)
    microc.compile(digits.INT8, board="host", self_test=tmp_path / "right.npz")
    outputs[1, 0, 3] += 1
    np.savez(tmp_path / "wrong.npz", image=x, probabilities=outputs)
    with pytest.raises(VerificationError, match=r"1 of 10 numbers of 'probabilities' .* in sample 2"):
        microc.compile(digits.INT8, board="host", self_test=tmp_path / "wrong.npz")


def test_where_there_is_no_self_test(images: Path, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"board": "host", "protocol": "mlperf", "name": "kws01"}, {}]
    for options in wrong:
        with pytest.raises(MicrocError, match="self-test"):
            microc.compile(digits.INT8, self_test=images, **options)
    net = GraphBuilder()
    graph = net.graph("net", {"y": net.op("cast", net.input("x", (1, 4)), dtype="float16")})
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 1, 4), np.float32))
    with pytest.raises(UnsupportedError, match="of float16, expected float32"):
        microc.compile(graph, board="host", self_test=tmp_path / "x.npz")
