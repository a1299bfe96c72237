# SPDX-License-Identifier: Apache-2.0
"""What Python programs call, on the digits network."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.codegen.c.source import shared_files
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.toolchain import native_core
from microc.errors import FitError, ModelError, OutputError, UsageError
from microc.target import target_for
from tests.support import digits


@pytest.fixture(scope="module")
def library() -> microc.Library:
    return microc.compile(digits.INT8)


def test_import_is_light() -> None:
    code = "import sys, microc; assert microc.__version__; print([m for m in ('numpy', 'jinja2', 'onnx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names() -> None:
    assert {"compile", "load_library", "Device"} <= set(dir(microc))
    assert microc.errors.UsageError is UsageError
    for name in microc.__all__:
        assert getattr(microc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        microc.train  # noqa: B018


def test_digits_are_read(library: microc.Library) -> None:
    answers = [np.argmax(np.asarray(library(image))) for image in digits.images(360)]
    assert np.mean(answers == digits.labels(360)) >= 0.9805


def test_export_and_load(library: microc.Library, tmp_path: Path) -> None:
    image = digits.images(1)[0]
    for name in ("digits.so", "digits.tar"):
        loaded = microc.load_library(library.export_library(tmp_path / name))
        assert np.array_equal(np.asarray(loaded(image)), np.asarray(library(image)))


@pytest.mark.parametrize("target", ["host", "portable"])
def test_what_leaves_this_computer_runs_on_any(target: str, tmp_path: Path) -> None:
    path = microc.compile(digits.FLOAT, target).export_library(tmp_path / "digits.tar")
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]
    plain = compile_model(digits.FLOAT, target_for("host"), make_options())
    assert files["model.c"] == shared_files(plain, microc.__version__)["model.c"]


def test_a_core_that_was_named_is_exported(tmp_path: Path) -> None:
    path = microc.compile(digits.FLOAT, "x86-64-v3").export_library(tmp_path / "digits.tar")
    with tarfile.open(path) as archive:
        assert b"float32x8" in archive.extractfile("model.c").read()  # type: ignore[union-attr]


def test_a_model_that_changed_is_not_exported(tmp_path: Path) -> None:
    if native_core() == "host":
        pytest.skip("this computer has no vectors that are known")
    model = tmp_path / "digits.onnx"
    model.write_bytes(digits.FLOAT.read_bytes())
    library = microc.compile(model)
    model.write_bytes(digits.QDQ.read_bytes())
    with pytest.raises(OutputError, match="has changed"):
        library.export_library(tmp_path / "digits.so")
    assert not (tmp_path / "digits.so").exists()


def test_unknown_targets_are_answered_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="unknown core 'm4'") as caught:
        microc.compile(digits.INT8, "m4")
    assert caught.value.hint.startswith("choose one of host, native, portable, ")


@pytest.mark.parametrize("options", [{"opt_level": 0}, {"io_in_arena": False}], ids=str)
def test_options_change_nothing_visible(library: microc.Library, options: dict[str, Any]) -> None:
    other = microc.compile(digits.INT8, **options)
    for image in digits.images(5):
        assert np.array_equal(np.asarray(other(image)), np.asarray(library(image)))


def test_every_kernel_of_another_core_agrees(library: microc.Library) -> None:
    other = microc.compile(digits.INT8, "cortex-m4")
    for image in digits.images(5):
        assert np.array_equal(np.asarray(other(image)), np.asarray(library(image)))


def test_symbolic_dimensions_are_bound(tmp_path: Path) -> None:
    import onnx

    kind = onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Add", ["x", "x"], ["y"])
    inputs = [onnx.helper.make_tensor_value_info("x", kind, ["batch", 4])]
    outputs = [onnx.helper.make_tensor_value_info("y", kind, ["batch", 4])]
    graph = onnx.helper.make_graph([node], "twice", inputs, outputs)
    path = tmp_path / "twice.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(np.asarray(microc.compile(path, input_shapes={"x": (3, 4)})(x)), 2 * x)
    with pytest.raises(microc.errors.MicrocError, match=r"batch|symbolic|shape"):
        microc.compile(path, input_shapes={"x": (3, 4, 5)})


def test_wrong_inputs(library: microc.Library) -> None:
    image = digits.images(1)[0]
    with pytest.raises(UsageError, match="takes 1 inputs, 2 were given"):
        library(image, image)
    with pytest.raises(UsageError, match=r"expected \(1, 8, 8, 1\)"):
        library(image[0])
    with pytest.raises(UsageError, match="got dtype float32, expected int8") as caught:
        library(image.astype(np.float32))
    assert "round(array / 0.00392156886) + -128" in caught.value.hint
    with pytest.raises(UsageError, match="no tensor 'z'"):
        library.tensor("z")


def test_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no model file"):
        microc.compile(tmp_path / "absent.tflite")
    with pytest.raises(UsageError, match="no option 'optimise'"):
        microc.compile(digits.INT8, optimise=3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="optimisation level cannot be 7"):
        microc.compile(digits.INT8, opt_level=7)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="requantize cannot be 'exact'"):
        microc.compile(digits.INT8, requantize="exact")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="unknown core 'z80'"):
        microc.compile(digits.INT8, "z80")
    with pytest.raises(UsageError, match="unknown board 'netduinoplus'") as caught:
        microc.compile(digits.INT8, board="netduinoplus")
    assert "netduinoplus2" in caught.value.hint


@pytest.mark.parametrize("size", [0, 20, 3000, 11000])
def test_truncated_models(tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.tflite"
    path.write_bytes(digits.INT8.read_bytes()[:size])
    with pytest.raises(ModelError):
        microc.compile(path)


def test_random_file(tmp_path: Path) -> None:
    path = tmp_path / "noise.onnx"
    path.write_bytes(np.random.default_rng(1).bytes(5000))
    with pytest.raises(ModelError):
        microc.compile(path)


def test_program_reports(tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="netduinoplus2")
    report = program.report()
    assert report["macs"] == report["nominal_macs"] == 30528 == sum(layer["macs"] for layer in report["layers"])
    assert report["kernels"] == len(report["layers"])
    assert report["arena_lower_bound"] <= report["arena"] < 4096
    assert report["estimated_cycles"] > report["estimated_instructions"] > report["macs"]
    assert all(layer["rule"] and layer["estimated_cycles"] > 0 for layer in report["layers"])
    assert any(layer["in_place"] > 0 for layer in report["layers"])
    assert report["weight_bytes"] < report["flash"] < report["board_flash"] == 1 << 20
    first, second = (program.write(tmp_path / name) for name in ("one", "two"))
    for path in sorted(p for p in first.rglob("*") if p.is_file()):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()


@pytest.mark.parametrize(
    ("flash", "ram", "text"), [(10_000, 1 << 17, "of flash, the board has 10000"), (1 << 20, 9000, "of RAM")]
)
def test_too_small_a_board(tmp_path: Path, flash: int, ram: int, text: str) -> None:
    with pytest.raises(FitError, match=text) as caught:
        microc.compile(digits.INT8, board=digits.small_board(tmp_path, flash, ram))
    assert caught.value.exit_code == 4
    assert "arena 1392" in caught.value.where or "arena" in caught.value.where


def test_a_program_in_the_way(tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="host")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        program.write(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write"):
        program.write(tmp_path / "file" / "below")
    with pytest.raises(OutputError, match="contains files that microc did not write"):
        program.write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
