# SPDX-License-Identifier: Apache-2.0
"""Real networks written as ONNX: ONNX Runtime computes what they mean, and what is read back compiles to the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from tests.frontend.onnx.writer.run import frames, half_to_even
from tests.support.corpus import cases, models
from tests.support.onnx_session import saturates

WITHOUT_ROWS = ("tflm_audio_preprocessor_int8", "tflm_keyword_scrambled_int8")
"""Networks with operators that ONNX does not have: signals, SVDF."""
SUMS = ("seanet_conv", "seanet_transpose_conv", "gen_resnet8_trained_int16x8")
"""Layers on 16-bit data, whose sums ONNX Runtime takes in float32: one step of 65536 apart in places, more behind a softmax."""
TIE = "gen_mobilenetv3s_075_64_int8"
"""ONNX Runtime leaves some of its layers in floats, where a sum is 2e-8 of itself away from a tie."""
SUM = "ortq_mobilenetv2_qdq_s8_perch"
"""ONNX Runtime adds in float32, where a sum is on the other side of a tie than the exact one: 0.0016 is a step of the output."""
LARGE = "tfs_mobilenet_v1_025_224_uint8"
"""Where operators are not fused its layers are in floats, of which a sum here and there is on the other side of a tie."""
RELATIVE = 4e-6
"""Sums of some thousand products in float32, in another order: relative to the largest number."""
MODELS = [path for path in models("*") if path.stem not in WITHOUT_ROWS]
READ_BACK = (
    "mlperf_kws_*.tflite",
    "gen_unet_int8*",
    "gen_lstm2_float*",
    "gen_stream_var*",
    "ortq_dscnn*",
    "ortq_lstm2*",
)
SYMBOLIC = ("pulsevad_2.1k_int8",)
"""Networks whose extents are those of the example's input."""


def _graph(path: Path) -> Graph:
    """The network as it is in the file, rounding as ONNX does."""
    (shape, *_) = (array.shape for array in cases(path)[0][0])
    return half_to_even(microc.load(path, input_shapes={"*": shape} if path.stem in SYMBOLIC else None))


def _meant(graph: Graph, inputs: list[list[Array]]) -> list[list[Array]]:
    """What the operators' references give, run after run."""
    state, made = dict(graph.state), list[list[Array]]()
    for given in inputs:
        outputs, state = evaluate(graph, dict(zip(graph.inputs, given, strict=True)), state)
        made.append(outputs)
    return made


def _compare(path: Path, found: list[list[Array]], wanted: list[list[Array]]) -> None:
    for got, want in zip((a for f in found for a in f), (a for w in wanted for a in w), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        apart = np.abs(got.astype(np.float64) - want)
        if path.stem == SUM:
            assert apart.max(initial=0) <= 0.0016
        elif want.dtype.kind == "f":
            assert apart.max(initial=0) <= RELATIVE * max(float(np.abs(want).max(initial=0)), 1.0)
        elif path.stem == TIE:
            assert apart.max(initial=0) <= 2
        elif path.stem == LARGE and saturates():
            assert np.mean(apart > 0) < 0.01
        elif path.stem.startswith(SUMS):
            assert apart.max(initial=0) <= (4 if "resnet" in path.stem else 1)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.corpus
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_onnxruntime_computes_what_the_network_means(path: Path, tmp_path: Path) -> None:
    graph, inputs = _graph(path), [given for given, _ in cases(path)][:2]
    file = microc.save(graph, tmp_path / "written.onnx")
    _compare(path, frames(file.read_bytes(), graph, inputs), _meant(graph, inputs))
    back = microc.load(file)
    assert back.inputs == (*graph.inputs, *graph.state) and back.outputs[: len(graph.outputs)] == graph.outputs


@pytest.mark.corpus
@pytest.mark.parametrize("path", models(*READ_BACK), ids=lambda path: path.stem)
def test_what_is_read_back_compiles_to_the_same(path: Path, tmp_path: Path) -> None:
    graph, (given, _) = _graph(path), cases(path)[0]
    back = microc.load(microc.save(graph, tmp_path / "written.onnx"))
    made = microc.compile(back)(*given, *graph.state.values())
    found = list(made) if isinstance(made, tuple) else [made]
    _compare(path, [found[: len(graph.outputs)]], _meant(graph, [given]))


@pytest.mark.corpus
@pytest.mark.parametrize("name", WITHOUT_ROWS)
def test_operators_that_onnx_does_not_have_are_refused_all_at_once(name: str, tmp_path: Path) -> None:
    (path,) = models(f"{name}.tflite")
    with pytest.raises(microc.errors.UnsupportedError) as refusal:
        microc.save(microc.load(path), tmp_path / "written.onnx")
    assert refusal.value.what.count("\n") >= 6 and refusal.value.hint
