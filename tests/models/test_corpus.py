# SPDX-License-Identifier: Apache-2.0
"""Real models: compiled C against the references that trusted runtimes made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.device.toolchain import is_machine_available
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.target import target_for
from tests.support.campaign import everything, in_turn
from tests.support.corpus import CORPUS, cases, models
from tests.support.growth import memory_faults

EXACT = models(
    "mlperf_*_int8.tflite",
    "tflm_hello_world_int8*",
    "tflm_person_detect_int8*",
    "tflm_micro_speech_int8*",
    "tflm_keyword_scrambled_int8*",
    "seanet_conv__*",
    "seanet_add__*",
    "seanet_transpose_conv__*",
    "gen_unet_int8*",
    "tflm_mnist_lstm_int8*",
    "tflm_audio_preprocessor_int8*",
    "tfs_mobilenet_v1_025_224_uint8*",
)
FLOAT = models(
    "mlperf_vww_float*", "mlperf_ic_float*", "mlperf_ad_float*",
    "gen_unet_float*", "gen_unet_fp16*", "tflm_mnist_lstm_float*", "gen_misc_ops_float*", "litert_*",
    "tfs_movie_review*", "gen_lstm2_float*",
    "onnx2c_*.onnx", "torch_*.onnx",
)  # fmt: skip
QDQ = models("ortq_*_qdq_*.onnx", "ortq_*_qop_*.onnx", "pulsevad_*.onnx")

AVX2 = "-march=x86-64-v3"
BUILDS = in_turn([*EXACT, *FLOAT, *QDQ][:: 1 if everything() else 9], [("host", "clang"), ("x86-64-v3", "clang")])
BUILDS += in_turn([*EXACT, *FLOAT, *QDQ] if everything() else [], [("host", "gcc"), ("x86-64-v3", "gcc")])
"""A compiler that vectorises at -O3 for AVX2: the C of any computer, and the C with that core's instructions."""

pytestmark = pytest.mark.corpus


def one_of_each_exporter(paths: list[Path]) -> list[Path]:
    """Of a network that both of PyTorch's exporters wrote, the file of one in turn, or both where everything is asked for.

    ``tests/frontend/onnx/writer/test_corpus.py`` compares what each file means with ONNX Runtime.
    """
    networks: dict[str, list[Path]] = {}
    for path in paths:
        networks.setdefault(path.stem if everything() else path.stem.partition("__")[0], []).append(path)
    return [files[number % len(files)] for number, files in enumerate(networks.values())]


def library(path: Path, options: Options | None = None, target: str = "host", flags: tuple[str, ...] = ()) -> Library:
    """Compile the model for this computer."""
    module = compile_model(path, target_for(target), options or Options())
    files = shared_files(module, "test")
    assert not memory_faults("".join(text for name, text in files.items() if name.endswith(".c")))
    return build_library(files, *flags)


def in_sequence(path: Path) -> bool:
    """Whether the cases are one after the other from the reset state."""
    assert CORPUS is not None
    manifest = json.loads((CORPUS / "manifest.json").read_text())
    entry = next(m for m in manifest["models"] if Path(m["file"]).name == path.name)
    return bool(entry["reference"]["mode"] == "sequence")


def results(path: Path, compiled: Library) -> list[tuple[Array, Array]]:
    """(got, expected) of every output of every case."""
    pairs = []
    sequence = in_sequence(path)
    for inputs, outputs in cases(path):
        if not sequence:
            compiled.reset()
        got = compiled(*inputs)
        arrays = got if isinstance(got, tuple) else (got,)
        pairs += list(zip(arrays, outputs, strict=True))
    assert pairs
    return pairs


@pytest.mark.parametrize("path", EXACT, ids=lambda p: p.stem)
def test_integers_are_bit_exact(path: Path) -> None:
    for got, expected in results(path, library(path)):
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("path", models("mlperf_vww_int8*"), ids=lambda p: p.stem)
def test_channels_that_are_dead_are_not_computed(path: Path) -> None:
    """Half of the products and 83 % of the weights, of which a host stores no wider copies."""
    module = compile_model(path, target_for("host"), Options())
    assert module.macs < 0.51 * module.nominal_macs and module.const_bytes < 42_000


@pytest.mark.parametrize("path", one_of_each_exporter(FLOAT), ids=lambda p: p.stem)
def test_floats_within_1e_5_of_the_largest(path: Path) -> None:
    check_floats(results(path, library(path)))


def check_floats(pairs: list[tuple[Array, Array]]) -> None:
    """Sums are taken in another order than the reference's; 1e-5 of the largest magnitude is the bar."""
    for got, expected in pairs:
        assert np.max(np.abs(got - expected)) <= 1e-5 * np.max(np.abs(expected))


@pytest.mark.skipif(
    not is_machine_available(AVX2) or not shutil.which("clang"), reason="needs clang and a computer with AVX2"
)
@pytest.mark.parametrize(("path", "build"), BUILDS, ids=lambda part: getattr(part, "stem", None) or " ".join(part))
def test_compilers_that_vectorise(path: Path, build: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Vector instructions that need an alignment fault where a declaration promises more than the definition keeps."""
    target, compiler = build
    monkeypatch.setenv("CC", compiler)
    pairs = results(path, library(path, Options(), target, ("-O3", AVX2)))
    if path in EXACT:
        assert all(np.array_equal(got, expected) for got, expected in pairs)
    elif path in FLOAT:
        check_floats(pairs)
    else:
        check_quanta(pairs)


@pytest.mark.parametrize("path", models("*_dynrange.tflite", "mlperf_kws_float*"), ids=lambda p: p.stem)
def test_hybrid_layers_as_litert_computes_them(path: Path) -> None:
    """Data are quantised row by row. A float that comes out one bit different may be rounded to the next step, so that one
    output in a model may be off by more than 1e-5."""
    pairs = results(path, library(path, Options(hybrid="dynamic")))
    errors = [float(np.max(np.abs(got - expected)) / np.max(np.abs(expected))) for got, expected in pairs]
    assert sorted(errors)[-2] <= 1e-5 and max(errors) <= 5e-3


@pytest.mark.parametrize("path", models("ortq_*_dynq.onnx"), ids=lambda p: p.stem)
def test_layers_that_quantise_data_at_run_time_stay_close(path: Path) -> None:
    """Data are not quantised, which the reference does at every step of its recurrent layers."""
    for got, expected in results(path, library(path)):
        assert np.max(np.abs(got - expected)) <= 1e-3 * np.max(np.abs(expected))


@pytest.mark.parametrize("path", models("*.onnx"), ids=lambda p: p.stem)
def test_every_onnx_model_is_compared(path: Path) -> None:
    assert path in {*FLOAT, *QDQ, *models("ortq_*_dynq.onnx")}


@pytest.mark.parametrize(
    ("path", "requantize"), in_turn(QDQ, ("float", "fixed")), ids=lambda part: getattr(part, "stem", part)
)
def test_qdq_as_onnx_defines_it(path: Path, requantize: str) -> None:
    """The outputs are dequantised: quanta are the smallest step between distinct values. Multipliers that round once are
    as near."""
    check_quanta(results(path, library(path, Options(requantize=requantize))))


def check_quanta(pairs: list[tuple[Array, Array]]) -> None:
    """At most 0.5 % of the elements differ from the reference, by two quanta at most."""
    differing = total = 0
    for got, expected in pairs:
        quantum = _quantum(expected)
        steps = np.round(np.abs(got - expected) / quantum)
        differing, total = differing + int(np.count_nonzero(steps)), total + steps.size
        assert steps.max() <= 2
    assert differing <= 0.005 * total


def _quantum(values: Array) -> float:
    """The step of quantised values that were dequantised; a fraction of the range where they are not."""
    distinct = np.unique(values)
    span = float(np.max(np.abs(values)))
    return float(np.min(np.diff(distinct))) if len(distinct) > 1 else max(span, 1.0) / 255
