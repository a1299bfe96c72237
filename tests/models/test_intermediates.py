# SPDX-License-Identifier: Apache-2.0
"""Every tensor that survives fusion equals TensorFlow Lite Micro's, on reference and on random inputs.

Of tensors that lost channels (their names end in ``.live``), each channel that is left equals one of TFLM's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model
from microc.frontend.tflite.reader import tensor_names
from microc.run.desktop.load import build_library
from microc.target import target_for
from tests.support.campaign import in_turn
from tests.support.corpus import CORPUS, cases, models

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
MLPERF = models("mlperf_kws_int8*", "mlperf_vww_int8*", "mlperf_ic_int8*", "mlperf_ad_int8*", "mlperf_strww_int8*")


class Oracle:
    """TFLM's interpreter, told to preserve all tensors."""

    def __init__(self, path: Path) -> None:
        runtime = pytest.importorskip("tflite_micro").runtime
        self.interpreter: Any = runtime.Interpreter.from_file(
            str(path), arena_size=2_000_000, intrepreter_config=runtime.InterpreterConfig.kPreserveAllTensors
        )

    def run(self, inputs: list[Array]) -> None:
        for index, array in enumerate(inputs):
            self.interpreter.set_input(array, index)
        self.interpreter.invoke()

    def tensor(self, index: int) -> Array:
        return np.asarray(self.interpreter.GetTensor(index, 0)["tensor_data"])


def compare(path: Path, batches: list[list[Array]], cpu: str) -> int:
    """Run kernel by kernel; the number of tensors compared."""
    module = compile_model(path, target_for(cpu), Options())
    assert module.plan is not None
    library = build_library(shared_files(module, "test"))
    indices = {name: index for index, name in tensor_names(path.read_bytes()).items()}
    oracle, compared = Oracle(path), 0
    for inputs in batches:
        oracle.run(inputs)
        for index, array in enumerate(inputs):
            library.set_input(index, array)
        for number, call in enumerate(module.calls):
            library.run_kernel(number)
            for name in call.writes:
                value = module.values[name]
                label = value.label.removesuffix(".live")
                if label not in indices:
                    continue
                got, expected = library.tensor(name), oracle.tensor(indices[label])
                if label == value.label:
                    assert np.array_equal(got.reshape(-1), expected.reshape(-1)), f"{call.layer}: {label}"
                else:
                    assert channels(got) <= channels(expected), f"{call.layer}: {label}"
                compared += 1
    return compared


def channels(array: Array) -> set[bytes]:
    """The contents of every channel."""
    rows = array.reshape(-1, array.shape[-1])
    return {rows[:, k].tobytes() for k in range(rows.shape[1])}


def random_inputs(path: Path, count: int) -> list[list[Array]]:
    """Uniformly random integers for every input."""
    module = compile_model(path, target_for("host"), Options())
    dice = np.random.default_rng(1)
    found = []
    for _ in range(count):
        arrays = []
        for name in module.inputs:
            value = module.values[name]
            low, high = dtypes.int_range(value.dtype)
            arrays.append(dice.integers(low, high, value.shape, endpoint=True).astype(value.dtype))
        found.append(arrays)
    return found


@pytest.mark.parametrize("cpu", ["host", "cortex-m4"])
def test_digits(cpu: str) -> None:
    assert compare(DIGITS, random_inputs(DIGITS, 3), cpu) >= 3 * 6


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("path", "cpu"), in_turn(MLPERF, ("host", "cortex-m4")), ids=lambda part: getattr(part, "stem", part)
)
def test_mlperf_tiny(path: Path, cpu: str) -> None:
    """The schedules of both targets; DSP intrinsics run through their portable bodies here."""
    assert CORPUS is not None
    batches = [inputs for inputs, _ in cases(path)][:1] + random_inputs(path, 1)
    assert compare(path, batches, cpu) >= 2 * 8
