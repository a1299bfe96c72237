# SPDX-License-Identifier: Apache-2.0
"""The TFLite reader on real models, sound and mutated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from microc.frontend import detect
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from tests.frontend.mutate import survey
from tests.support.campaign import examples
from tests.support.corpus import models

pytestmark = pytest.mark.corpus

MOBILENET = {"conv2d": 28, "avg_pool2d": 1, "reshape": 1, "softmax": 1}
DSCNN = {"conv2d": 9, "avg_pool2d": 1, "reshape": 1, "dense": 1, "softmax": 1}
RESNET = {"conv2d": 9, "add": 3, "avg_pool2d": 1, "reshape": 1, "dense": 1, "softmax": 1}
VISUAL_WAKE = {"conv2d": 27, "avg_pool2d": 1, "reshape": 1, "dense": 1, "softmax": 1}
COUNTS: dict[str, dict[str, int]] = {
    "mlperf_ad_float": {"dense": 10},
    "mlperf_ad_int8": {"dense": 10},
    "mlperf_ic_float": RESNET,
    "mlperf_ic_int8": RESNET,
    "mlperf_kws_float": {**DSCNN, "dequantize": 5},
    "mlperf_kws_int8": DSCNN,
    "mlperf_strww_int8": {"conv2d": 8, "reshape": 1, "dense": 1, "softmax": 1},
    "mlperf_vww_float": VISUAL_WAKE,
    "mlperf_vww_int8": VISUAL_WAKE,
    "mww_v1_alexa": {
        "reshape": 4,
        "slice": 11,
        "concat": 14,
        "conv2d": 22,
        "mul": 1,
        "add": 1,
        "dense": 1,
        "sigmoid": 1,
        "quantize": 1,
    },
    "mww_v2_okay_nabu": {"reshape": 2, "slice": 14, "concat": 8, "conv2d": 11, "dense": 1, "sigmoid": 1, "quantize": 1},
    "mww_v2_vad": {"reshape": 2, "slice": 4, "concat": 4, "conv2d": 7, "dense": 1, "sigmoid": 1, "quantize": 1},
    "seanet_add*": {"add": 1},
    "seanet_conv*": {"conv2d": 1},
    "seanet_leaky_relu*": {"leaky_relu": 1},
    "seanet_pad*": {"pad": 1},
    "seanet_quantize*": {"quantize": 1},
    "seanet_strided_slice*": {"slice": 1},
    "seanet_sub*": {"sub": 1},
    "tflm_hello_world_*": {"dense": 3},
    "tflm_keyword_scrambled_int8": {"quantize": 2, "svdf": 7, "dense": 5, "softmax": 1},
    "tflm_micro_speech_int8": {"reshape": 2, "conv2d": 1, "dense": 1, "softmax": 1},
    "tflm_person_detect_int8": MOBILENET,
    "tfs_mobilenet_v1_025_224_*": MOBILENET,
}


def cases() -> list[tuple[Path, dict[str, int]]]:
    return [(path, counts) for pattern, counts in COUNTS.items() for path in models(f"{pattern}.tflite")]


def read(path: Path) -> Graph:
    return detect.load_model_file(path)


@pytest.mark.parametrize(("path", "counts"), cases(), ids=lambda value: value.stem if isinstance(value, Path) else "")
def test_real_models_are_spelled(path: Path, counts: dict[str, int]) -> None:
    graph = read(path)
    assert Counter(node.op for node in graph.nodes) == counts
    names = set(tflite.tensor_names(path.read_bytes()).values())
    assert {*graph.inputs, *graph.outputs} <= names
    for node in graph.nodes:
        assert {*node.inputs, *node.outputs} <= set(graph.types)


def test_streaming_models_have_state() -> None:
    counts = {path.stem: len(read(path).state) for path in models("mww_*.tflite", "tflm_keyword*.tflite")}
    assert counts == {"mww_v1_alexa": 11, "mww_v2_okay_nabu": 6, "mww_v2_vad": 4, "tflm_keyword_scrambled_int8": 7}


@pytest.mark.parametrize("path", models("*.tflite"), ids=lambda path: path.stem)
def test_every_model_is_read(path: Path) -> None:
    assert read(path).nodes


@pytest.mark.fuzz
@pytest.mark.parametrize("path", models("*.tflite"), ids=lambda path: path.stem)
def test_mutated_real_models_are_graphs_or_refusals(path: Path) -> None:
    """More than 2,000 mutations over the whole corpus, by default a third of them; refused models included."""
    data = path.read_bytes()
    survey(lambda mutant: tflite.read_tflite(mutant, path.name), data, examples(36), seed=len(data))
