# SPDX-License-Identifier: Apache-2.0
"""A network beside TFLite Micro on the same board: with a library that has its interface, and with the real one where it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.device.boards import load_board
from microc.errors import ToolError, UnsupportedError, UsageError
from microc.run.board_project import open_project
from microc.run.tflm_firmware import (
    FOLDER,
    LIBRARY,
    RESOLVER,
    _compare_outputs,
    check_comparable,
    find_tflm,
    list_registrations,
    list_resolver_methods,
)
from tests.support import digits

METHODS = """
  TfLiteStatus AddConv2D(const TFLMRegistration& registration = Register_CONV_2D()) {
    return AddBuiltin(BuiltinOperator_CONV_2D, registration, nullptr);
  }
  TfLiteStatus AddDepthwiseConv2D(
      const TFLMRegistration& registration = Register_DEPTHWISE_CONV_2D()) {
    return AddBuiltin(BuiltinOperator_DEPTHWISE_CONV_2D, registration, nullptr);
  }
  TfLiteStatus AddFullyConnected(const TFLMRegistration& registration = Register_FULLY_CONNECTED()) {
    return AddBuiltin(BuiltinOperator_FULLY_CONNECTED, registration, nullptr);
  }
  TfLiteStatus AddPad(const TFLMRegistration& registration = Register_PAD()) {
    return AddBuiltin(BuiltinOperator_PAD, registration, nullptr);
  }
  TfLiteStatus AddReshape() {
    return AddBuiltin(BuiltinOperator_RESHAPE, Register_RESHAPE(), nullptr);
  }
  TfLiteStatus AddSoftmax(const TFLMRegistration& registration = Register_SOFTMAX()) {
    return AddBuiltin(BuiltinOperator_SOFTMAX, registration, nullptr);
  }
  TfLiteStatus AddWindow() {
    return AddCustom("SignalWindow", nullptr);
  }
"""
OPERATORS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "PAD", "RESHAPE", "SOFTMAX")
HEADERS = {
    RESOLVER: """
#pragma once
#include "tensorflow/lite/micro/micro_interpreter.h"
namespace tflite {
"""
    + "\n".join(f"TFLMRegistration Register_{name}();" for name in OPERATORS)
    + """
TFLMRegistration Register_CONV_2D_INT8();
enum BuiltinOperator { BuiltinOperator_CONV_2D, BuiltinOperator_DEPTHWISE_CONV_2D, BuiltinOperator_FULLY_CONNECTED,
  BuiltinOperator_PAD, BuiltinOperator_RESHAPE, BuiltinOperator_SOFTMAX };
template <unsigned int tOpCount>
class MicroMutableOpResolver : public MicroOpResolver {
 public:
  TfLiteStatus AddBuiltin(BuiltinOperator, const TFLMRegistration& r, void*) { ids = ids * 10 + r.id; return kTfLiteOk; }
  TfLiteStatus AddCustom(const char*, const TFLMRegistration*) { return kTfLiteOk; }
"""
    + METHODS
    + "};\n}\n",
    "tensorflow/lite/micro/micro_interpreter.h": """
#pragma once
#include <cstddef>
#include <cstdint>
enum TfLiteStatus { kTfLiteOk, kTfLiteError };
struct TFLMRegistration { int id; };
union TfLitePtrUnion { void* raw; int8_t* int8; };
struct TfLiteTensor { TfLitePtrUnion data; size_t bytes; };
namespace tflite {
struct Model;
class MicroOpResolver { public: long ids = 0; };
class MicroInterpreter {
 public:
  MicroInterpreter(const Model*, const MicroOpResolver&, uint8_t* arena, size_t size);
  ~MicroInterpreter();
  TfLiteStatus AllocateTensors();
  TfLiteStatus Invoke();
  size_t arena_used_bytes() const { return 1500; }
  size_t inputs_size() const { return 1; }
  size_t outputs_size() const { return 1; }
  TfLiteTensor* input(size_t) { return &input_; }
  TfLiteTensor* output(size_t) { return &output_; }
 private:
  uint8_t* arena_;
  size_t size_;
  long ids_;
  TfLiteTensor input_, output_;
};
}
""",
    "tensorflow/lite/schema/schema_generated.h": """
#pragma once
namespace tflite {
struct Model;
inline const Model* GetModel(const void* data) { return static_cast<const Model*>(data); }
}
""",
}
SOURCE = """
#include <cstdarg>
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
extern "C" void DebugLog(const char* format, va_list args);
static void say(const char* format, ...) {
  va_list args;
  va_start(args, format);
  DebugLog(format, args);
  va_end(args);
}
namespace tflite {
TFLMRegistration Register_CONV_2D() { return {9}; }
TFLMRegistration Register_CONV_2D_INT8() { return {1}; }
TFLMRegistration Register_DEPTHWISE_CONV_2D() { return {2}; }
TFLMRegistration Register_FULLY_CONNECTED() { return {3}; }
TFLMRegistration Register_PAD() { return {6}; }
TFLMRegistration Register_RESHAPE() { return {4}; }
TFLMRegistration Register_SOFTMAX() { return {5}; }
MicroInterpreter::MicroInterpreter(const Model*, const MicroOpResolver& r, uint8_t* arena, size_t size)
    : arena_(arena), size_(size), ids_(r.ids), input_{{nullptr}, 64}, output_{{nullptr}, OUTPUT_BYTES} {}
MicroInterpreter::~MicroInterpreter() {}
TfLiteStatus MicroInterpreter::AllocateTensors() {
  if (size_ < NEEDED) {
    say("Failed to resize buffer. Requested: %u", NEEDED);
    return kTfLiteError;
  }
  input_.data.raw = arena_;
  output_.data.raw = arena_ + 64;
  return ids_ == 123645 ? kTfLiteOk : kTfLiteError;
}
TfLiteStatus MicroInterpreter::Invoke() {
  for (int k = 0; k < 10; ++k) output_.data.int8[k] = -128;
  return kTfLiteOk;
}
}
"""


def make_copy(folder: Path, *flags: str, compiler: str = "g++") -> Path:
    """A folder with the headers and the library of TFLite Micro's interface; its networks answer -128 everywhere."""
    for name, text in HEADERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "library.cc").write_text(SOURCE)
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    command = [compiler, "-std=c++17", "-O1", "-fno-exceptions", "-fno-rtti", "-I.", *flags]
    done = subprocess.run([*command, "-c", "library.cc"], cwd=folder, capture_output=True, text=True, check=False)
    if "fatal error: cstd" in done.stderr:
        pytest.skip(f"the C++ library of {compiler} is not installed")
    assert done.returncode == 0, done.stderr
    archiver = compiler.replace("g++", "ar")
    subprocess.run([archiver, "rcs", LIBRARY, "library.o"], cwd=folder, check=True)
    return folder


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main(["bench", str(digits.INT8), "--against", "tflm", *words, "--json"])
    (row,) = json.loads(capsys.readouterr().out)["boards"]
    assert code == 0 and row["error"] is None
    return dict(row)


def test_both_are_measured_and_a_report_shows_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The smallest arena is found above the bytes that the interpreter reports; a blank in the folder's name does no harm."""
    folder = make_copy(tmp_path / "a copy", "-DNEEDED=1800", "-DOUTPUT_BYTES=10")
    assert (
        main(["bench", str(digits.INT8), "--boards", "host", "--against", "tflm", "--tflm", str(folder), "--json"]) == 0
    )
    saved = tmp_path / "bench.json"
    saved.write_text(capsys.readouterr().out)
    (row,) = json.loads(saved.read_text())["boards"]
    peer = row["tflm"]
    assert peer["error"] is None and peer["arena"] == 1808 and peer["values"] == 40 and 0 < peer["different"] <= 40
    assert peer["time"] > 0 and peer["flash"] > digits.INT8.stat().st_size and peer["ram"] > peer["arena"]
    page = tmp_path / "report.html"
    words = [str(digits.INT8), "--board", "host"]
    assert main(["report", *words, "--bench", str(saved), "-o", str(page)]) == 0
    assert "TFLite Micro (a copy)" in capsys.readouterr().out and "Beside TensorFlow Lite Micro" in page.read_text()
    assert main(["report", *words, "--optimize", "size", "--bench", str(saved)]) == 2
    assert main(["report", *words, "--bench", str(tmp_path / "none.json")]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("-DNEEDED=1u<<30", "-DOUTPUT_BYTES=10"), "Failed to resize buffer. Requested: %u"),
        (("-DNEEDED=1", "-DOUTPUT_BYTES=11"), "differ in number or size"),
    ],
)
def test_a_network_that_it_rejects_is_an_error_of_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...], what: str
) -> None:
    row = bench(capsys, "--boards", "host", "--tflm", str(make_copy(tmp_path, *flags)))
    assert what in row["tflm"]["error"]["what"] and row["time"] > 0


def test_a_copy_that_is_none_is_told_with_the_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    model = str(digits.INT8)
    assert main(["bench", model, "--boards", "host", "--against", "tflm"]) == 2
    assert "git clone https://github.com/tensorflow/tflite-micro" in capsys.readouterr().err
    assert main(["bench", str(digits.FLOAT), "--boards", "host", "--against", "tflm", "--tflm", str(tmp_path)]) == 2
    assert "is no TFLite file" in capsys.readouterr().err
    assert main(["bench", model, "--all", "--estimate", "--against", "tflm", "--tflm", str(tmp_path)]) == 2
    assert main(["bench", model, "--boards", "host", "--tflm", str(tmp_path)]) == 2
    capsys.readouterr()
    board = load_board("mps2-an386")
    with pytest.raises(ToolError, match="is no copy of TFLite Micro"):
        find_tflm(tmp_path, board)
    (tmp_path / RESOLVER).parent.mkdir(parents=True)
    (tmp_path / RESOLVER).write_text(METHODS)
    with pytest.raises(ToolError, match="not built for cortex-m4") as caught:
        find_tflm(tmp_path, board)
    assert "TARGET_ARCH=cortex-m4+fp" in str(caught.value.hint)
    builds = (
        "cortex-m4_release_gcc",
        "cortex-m4+fp_default_gcc",
        "cortex-m4+fp_release_cmsis_nn_gcc",
        "cortex-m7+fp_x_gcc",
    )
    for name in builds:
        library = tmp_path / "gen" / f"cortex_m_generic_{name}" / "lib" / LIBRARY
        library.parent.mkdir(parents=True)
        library.write_bytes(b"!<arch>\n_ZN6tflite21Register_CONV_2D_INT8Ev arm_convolve_wrapper_s8")
    found = find_tflm(tmp_path, board)
    assert found.label == "cortex_m_generic_cortex-m4+fp_release_cmsis_nn_gcc"
    assert found.int8_kernels == {"CONV_2D"} and found.has_cmsis_nn
    assert list_registrations(digits.INT8.read_bytes(), "digits", found)[0] == (
        "AddConv2D(tflite::Register_CONV_2D_INT8())"
    )
    with pytest.raises(UnsupportedError, match="has no CONV_2D, SOFTMAX"):
        fewer = {name: entry for name, entry in found.methods.items() if name not in ("CONV_2D", "SOFTMAX")}
        list_registrations(digits.INT8.read_bytes(), "digits", replace(found, methods=fewer))


def test_the_resolver_tells_its_operators() -> None:
    methods = dict(list_resolver_methods(METHODS))
    assert methods["DEPTHWISE_CONV_2D"] == ("AddDepthwiseConv2D", True)
    assert methods["RESHAPE"] == ("AddReshape", False) and methods["CUSTOM:SignalWindow"] == ("AddWindow", False)


@pytest.mark.parametrize(
    ("options", "reason"), [({"protocol": "mlperf"}, "its protocol is mlperf"), ({}, "it streams")]
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    project = open_project(microc.compile(digits.INT8, board="host", **options).write(tmp_path / "project"))
    check_comparable(replace(project, manifest={**project.manifest, "options": {"protocol": "rpc"}}))
    manifest = (
        project.manifest if options else {**project.manifest, "streaming": {"inputs": {}, "outputs": {}, "hop": 1}}
    )
    with pytest.raises(UsageError, match=reason):
        check_comparable(replace(project, manifest=manifest))


def test_outputs_are_compared_by_their_bits() -> None:
    ours = [(np.array([1, 2, 3], np.int8), np.array([[0.0, np.nan]], np.float32))]
    theirs = [(np.array([1, 2, 5], np.int8), np.array([[-0.0, np.nan]], np.float32))]
    assert _compare_outputs(ours, ours) == {"values": 5, "different": 0, "largest": 0.0}
    assert _compare_outputs(theirs, ours) == {"values": 5, "different": 2, "largest": 2.0}


def test_an_emulated_board_counts_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With the real library where MICROC_TFLM names it: results are equal bit for bit."""
    if shutil.which("qemu-system-arm") is None:
        pytest.skip("qemu-system-arm is not installed")
    real = os.environ.get(FOLDER)
    flags = (
        "-DNEEDED=1500",
        "-DOUTPUT_BYTES=10",
        "-mcpu=cortex-m4",
        "-mthumb",
        "-mfloat-abi=hard",
        "-mfpu=fpv4-sp-d16",
    )
    folder = real or str(make_copy(tmp_path, *flags, compiler="arm-none-eabi-g++"))
    row = bench(capsys, "--boards", "mps2-an386", "--tflm", folder)
    peer = row["tflm"]
    assert peer["error"] is None and row["unit"] == "instructions" and peer["time"] > 0
    assert peer["arena"] >= 1500 and peer["ram"] > peer["arena"]
    if real:
        assert peer["different"] == 0 and peer["time"] > row["time"] and peer["flash"] > row["flash"]
