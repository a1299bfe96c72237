# SPDX-License-Identifier: Apache-2.0
"""Measuring of candidates: the interface of all meters, and how they handle images that fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.compiler.api import Program, compile
from microc.compiler.tuned.records import FAILED, UNBUILT, Origin, Task
from microc.device.toolchain import LinkedSizes
from microc.errors import DeviceError, FitError, ToolError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import TensorType
from microc.run.comparison import TOLERANCES, DifferenceTally
from microc.run.data.samples import draw_inputs
from microc.run.session import Device
from microc.target import Board
from microc.tuning.search_space import Candidate

# ---- The interface of all meters, and how they handle an image that cannot be built, hangs or faults.
#
# A measured time is valid only if the output of the candidate agrees with the reference implementation of the operator:
# integers must be equal, and floats within the tolerance of ``microc verify``. A candidate that makes its image fail is found
# by bisection, so that the other candidates are still measured.

INVERTED_BYTES = 256
"""Number of bytes of an output that are inverted before a candidate runs."""
INNER_INTEGER_RANGE = -(1 << 8), 1 << 8
"""Range of random integers for int32 and int64 inputs without quantisation. Between layers, such integers are bytes
minus a zero point. With this range, sums of their products do not overflow."""
TensorReader = Callable[[str], Array]
"""Function that returns a tensor of the image by its name."""


def is_external_code(candidate: Candidate) -> bool:
    """Test whether a candidate is external code."""
    return candidate.whole is not None and candidate.whole.external is not None


def float_tolerance_of_candidate(candidate: Candidate) -> float:
    """Return the tolerance of a candidate's float outputs: ``bound`` of its
    :class:`~microc.tuning.search_space.RegionData`.

    It is 0 for kernels.
    """
    return candidate.whole.bound if candidate.whole is not None else 0.0


@frozen
class MeasuredResult:
    """The result of measuring a candidate.

    ``status``: as in records. ``ticks``: time in the unit of the meter. ``code``: number of bytes of its function.
    ``detail``: the reason if it failed, as text.
    """

    candidate: Candidate
    status: str
    ticks: float = 0.0
    code: int = 0
    detail: str = ""


class Meter(ABC):
    """Base class of all objects that measure candidates.

    ``board``, ``unit``, ``toolchain``: as in records. ``batch``: best number of candidates for one image. ``places``:
    number of batches that are measured in parallel, each at a place (a board or a process). ``lost``: places that
    failed, with the reasons.
    """

    board: str
    unit: str
    toolchain: str
    batch = 24
    places = 1
    lost: Sequence[str] = ()

    @property
    def origin(self) -> Origin:
        """Origin of this meter's records."""
        return Origin(self.board, self.unit, self.toolchain)

    @abstractmethod
    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Return the result of every candidate of a task, in order; raise MicrocError if nothing can be measured at
        all."""

    @abstractmethod
    def stop(self) -> None:
        """Abandon the running measurements. Their results are ignored."""


class Runner(Meter):
    """Base class of meters with a single place where candidates run: a board or a process.

    If an image fails (cannot be built, hangs, faults), its two halves are measured separately. So the candidate that
    makes the image fail is found, and all other candidates are measured.
    """

    _stopped = False

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        if not candidates:
            return []
        if self._stopped:
            raise DeviceError("the search was stopped")
        try:
            return self._measure_image(task, candidates)
        except (FitError, ToolError, DeviceError) as error:
            if not isinstance(error, FitError):
                self.check()
            if len(candidates) == 1:
                unbuilt = is_external_code(candidates[0]) and not isinstance(error, DeviceError)
                return [MeasuredResult(candidates[0], UNBUILT if unbuilt else FAILED, detail=str(error.what))]
        half = len(candidates) // 2
        return [*self.measure(task, candidates[:half]), *self.measure(task, candidates[half:])]

    def stop(self) -> None:
        self._stopped = True

    @abstractmethod
    def check(self) -> None:
        """Check that the board or process itself works, before a candidate counts as failed; raise MicrocError if it
        does not work."""

    @abstractmethod
    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Measure candidates in one image; FitError, ToolError or DeviceError if the image as a whole fails."""


def draw_inputs_and_expected_outputs(task: Task) -> tuple[list[Array], list[Array]]:
    """Return random inputs of a task, and the correct outputs for them. The inputs are identical in every image."""
    graph = task.graph
    tensors = [_describe_input(graph.types[name]) for name in graph.inputs]
    arrays = draw_inputs(tensors, np.random.default_rng(0), graph=graph)
    return arrays, task.compute_outputs(arrays)


def _describe_input(type_: TensorType) -> Mapping[str, Any]:
    """Return the description of an input tensor for :func:`microc.run.data.samples.draw_inputs`."""
    spec = {
        "dtype": type_.dtype,
        "shape": type_.shape,
        "zero_point": type_.quant.zero_point[0] if type_.quant else None,
    }
    return spec | ({"range": INNER_INTEGER_RANGE} if type_.dtype in ("int32", "int64") and not type_.quant else {})


def invert_first_bytes(expected: Array) -> bytes:
    """Return the first bytes of the correct output, inverted.

    They are written to the output before a candidate runs, because a previous candidate may have left the correct
    result there.
    """
    return bytes(~np.ascontiguousarray(expected).reshape(-1).view(np.uint8)[:INVERTED_BYTES])


def describe_disagreement(
    expected: Sequence[Array], output_names: Sequence[str], read_output: TensorReader, float_tolerance: float = 0.0
) -> str:
    """Describe how the outputs of a candidate differ from the expected outputs; empty if they agree.

    ``output_names``: names of the outputs, in order. ``read_output``: returns an output by its name.
    ``float_tolerance``: tolerance of floats relative to the largest float; at least the tolerance in :data:`TOLERANCES`
    applies. If it is infinite, any output agrees.
    """
    if float_tolerance == inf:
        return ""
    for array, name in zip(expected, output_names, strict=True):
        dtype = str(array.dtype)
        tally = DifferenceTally(name, dtype, max(float_tolerance, TOLERANCES[dtype]) if dtypes.is_float(dtype) else 0)
        tally.add(read_output(name).reshape(array.shape), array)
        agreement = tally.agreement()
        if not agreement.agrees:
            share = f"{agreement.wrong} of {agreement.elements} elements of its output are wrong"
            return f"{share}, by {agreement.largest:.6g} at most"
    return ""


# ---- Health check of a board: it runs a network of a single operator. The check is made before a candidate counts as failed.

HEALTH_CHECK_ELEMENTS = 16
"""Number of elements in the input of the health check."""


def check_board_health(
    board: Board, open_device: Callable[[Program], AbstractContextManager[tuple[Device, LinkedSizes]]]
) -> None:
    """Run a network of one operator on a board, as a health check; raise DeviceError unless the result is correct.

    ``open_device``: starts a program on the board.
    """
    data = np.arange(-HEALTH_CHECK_ELEMENTS // 2, HEALTH_CHECK_ELEMENTS // 2, dtype=np.int8).reshape(
        1, HEALTH_CHECK_ELEMENTS
    )
    with open_device(_compile_health_check(board)) as (device, _):
        result = device.run(data)
    if not np.array_equal(result, np.maximum(data, 0)):
        wrong_count = np.count_nonzero(result != np.maximum(data, 0))
        raise DeviceError(
            f"the board computes wrong numbers: {wrong_count} of {HEALTH_CHECK_ELEMENTS} differ",
            where=board.name,
            hint="check its clock, its supply and its memory",
        )


def _compile_health_check(board: Board) -> Program:
    """Compile the network of the health check, a single ReLU, for a board."""
    net = GraphBuilder()
    y = net.op("relu", net.input("x", (1, HEALTH_CHECK_ELEMENTS), "int8"))
    return compile(net.graph("known", {"y": y}), board=board)
