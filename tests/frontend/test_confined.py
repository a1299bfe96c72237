# SPDX-License-Identifier: Apache-2.0
"""Models that no exporter writes are compiled or refused as a whole, within so much memory and time.

``MICROC_DEGENERATE=all`` tries all of them (half an hour); by itself this file tries those that once took too much.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.frontend import degenerate
from tests.frontend.confined import confined

MOST_SECONDS, MOST_BYTES = 20.0, 2 << 30
QUICK = (
    "RELU-of-1048576.tflite",
    "RELU-of-268435456.tflite",
    "LOGISTIC-of-1048576.tflite",
    "Neg-of-268435456.onnx",
    "ConvTranspose-far.onnx",
    "MAX_POOL_2D-INT8-filter-65536-stride-1-padding-0.tflite",
    "RESIZE_BILINEAR-INT8-10000.tflite",
    "Pad-1048576.onnx",
    "RSQRT-scale-1e-45.tflite",
    "Concat-of-128-inputs.onnx",
    "Sum-of-5000-inputs.onnx",
)


def _chosen() -> Iterator[degenerate.Case]:
    everything = os.environ.get("MICROC_DEGENERATE") == "all"
    return (case for case in degenerate.cases() if everything or case[0] in QUICK)


def test_degenerate_models_are_compiled_or_refused(tmp_path: Path) -> None:
    """Any exception but a refusal, or too much of the machine, fails the test with the model's name."""
    tasks = ("check", "for_host", "for_core") if os.environ.get("MICROC_DEGENERATE") == "all" else ("for_core",)
    found = list(confined(_chosen(), tmp_path, tasks))
    assert len({outcome.name for outcome in found}) >= len(QUICK)
    bad = [outcome for outcome in found if outcome.fault or outcome.seconds > MOST_SECONDS or outcome.peak > MOST_BYTES]
    assert not bad, "\n".join(f"{o.name}, {o.task}: {o.seconds:.0f} s, {o.peak:,} bytes {o.fault}" for o in bad)
