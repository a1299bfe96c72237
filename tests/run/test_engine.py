# SPDX-License-Identifier: Apache-2.0
"""Engines are interchangeable: numpy, compiled kernels, a framework, and a class that the test writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.run.comparison import compare_with_reference
from microc.run.data.samples import EXTREMES, ZEROS, Samples, draw_input_sets
from microc.run.engine import HostKernels, InferenceResult, NumpyReference
from microc.run.verification import compare_answers
from tests.support import digits


class Shifted:
    """The float network of the digits example, whose first score is off by ``shift``."""

    name, version = "shifted", "1"

    def __init__(self, shift: float) -> None:
        self._network, self._shift = HostKernels(microc.compile(digits.FLOAT)), np.float32(shift)

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        (scores,) = self._network.infer(arrays).outputs
        return InferenceResult((scores + self._shift * (np.arange(scores.shape[-1]) == 0).astype(np.float32),))

    def reset(self) -> None:
        self._network.reset()


def test_an_engine_is_a_class() -> None:
    library = microc.compile(digits.FLOAT)
    inputs = draw_input_sets(library.manifest, library.inputs, 2)
    network = HostKernels(library)
    assert compare_with_reference(network, Shifted(0.0), inputs).identical
    wrong = compare_with_reference(network, Shifted(0.5), inputs)
    assert not wrong.agrees and wrong.outputs[0].largest == pytest.approx(0.5) and wrong.layers == ()
    samples = Samples((np.stack([arrays[0] for arrays in inputs]),), None, {}, ())
    answers = compare_answers(network, Shifted(0.5), samples)
    assert answers.differing_samples == (0, 1) and answers.max_deviation == pytest.approx(0.5)


def test_numpy_is_compared_layer_by_layer() -> None:
    """Taps of the graph and of the kernels meet by the names of the model."""
    library, reference = microc.compile(digits.FLOAT), NumpyReference(microc.load(digits.FLOAT))
    inputs = draw_input_sets(library.manifest, library.inputs, 3, kinds=(EXTREMES, ZEROS))
    found = compare_with_reference(HostKernels(library), reference, inputs)
    assert found.agrees and found.reference == "numpy" and len(found.layers) >= 4 and found.first is None
    mirrored = compare_with_reference(reference, reference, inputs)
    assert mirrored.identical and len(mirrored.layers) > len(found.layers)


def test_taps_are_those_of_whole_runs() -> None:
    library = microc.compile(digits.INT8)
    network, (arrays,) = HostKernels(library), draw_input_sets(library.manifest, library.inputs, 1)
    whole, stepped = network.infer(arrays), network.infer(arrays, taps=True)
    assert not whole.tensors and {tap.tensor["name"] for tap in network.taps} == set(stepped.tensors)
    assert np.array_equal(whole.outputs[0], stepped.outputs[0])
