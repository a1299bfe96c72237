# SPDX-License-Identifier: Apache-2.0
"""Networks of these tests run in numpy while they are quantised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from microc.quantization import calibration_data, network_noise
from microc.quantization.network_structure import expose_values
from tests.support.campaign import everything

COMPILED = (
    "test_integers_answer_as_floats_do",
    "test_labels_are_counted",
    "test_saved_and_compiled_exactly",
    "test_sequences",
)
"""Tests whose networks are compiled while they are quantised, as users' are: of layers, loops and states, with labels."""


class NumpyRunner:
    """A network in numpy, in place of the library that ``compile_runner`` returns."""

    def __init__(self, graph: Graph, values: Sequence[str]) -> None:
        self.graph = replace(expose_values(graph, values), outputs=tuple(dict.fromkeys(values)))
        self.inputs, self.outputs = (
            [{"bytes": self.graph.types[name].nbytes} for name in names]
            for names in (self.graph.inputs, self.graph.outputs)
        )
        self.reset()

    def reset(self) -> None:
        """Begin with the initial state."""
        self.state: Any = self.graph.state

    def batch(self, *arrays: Array) -> tuple[Array, ...]:
        """Run samples one after the other. The first axis of inputs and outputs counts the samples."""
        rows = []
        for sample in zip(*arrays, strict=True):
            outputs, self.state = evaluate(self.graph, dict(zip(self.graph.inputs, sample, strict=True)), self.state)
            rows.append(outputs)
        return tuple(map(np.stack, zip(*rows, strict=True)))


@pytest.fixture(autouse=True)
def networks_run_in_numpy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Measure activations and noise in numpy, outside of ``make campaign``.

    What quantisation decides depends on values, which the C computes to the last places of floats and to the bit of integers:
    other tests hold that. Compiling a small network for this computer takes longer than all of its samples in numpy."""
    with pytest.MonkeyPatch.context() as patch:
        if not everything() and request.node.originalname not in COMPILED:
            for module in (calibration_data, network_noise):
                patch.setattr(module, "compile_runner", NumpyRunner)
        yield
