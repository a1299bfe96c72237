"""Measuring candidates: the interface of meters, and their treatment of images that fail."""

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
from microc.compiler.tuned.records import FAILED, UNBUILT, Task
from microc.device.toolchain import LinkedSizes
from microc.errors import DeviceError, FitError, ToolError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import TensorType
from microc.ops.meaning import evaluate
from microc.run.reference.agreement import TOLERANCES, DifferenceTally
from microc.run.reference.frameworks import draw_input_arrays
from microc.run.session import Device
from microc.target import Board
from microc.tuning.search_space import Candidate

# ---- Measuring candidates: one interface, and what it does with an image that does not build, hangs or faults.
#
# A time counts only once the candidate's output is that of the operator's reference: equal integers, floats within the bound that
# ``microc verify`` has. A candidate that breaks its image is found by halving, and costs nobody else a measurement.

SPOILT = 256
"""Bytes of an output that are made wrong before a candidate runs."""
INNER = -(1 << 8), 1 << 8
"""Range of wide integers between layers, which are bytes minus a zero point: sums of their products stay within their dtype."""
Read = Callable[[str], Array]
"""Function that returns a tensor of the image by name."""


def is_external_code(candidate: Candidate) -> bool:
    """Test whether a candidate is external code."""
    return candidate.whole is not None and candidate.whole.external is not None


def float_tolerance_of(candidate: Candidate) -> float:
    """Return the tolerance of a candidate's floats, ``bound`` of its
    :class:`~microc.tuning.search_space.RegionData`; 0 for microc's code."""
    return candidate.whole.bound if candidate.whole is not None else 0.0


@frozen
class MeasuredResult:
    """The result of measuring a candidate: ``status`` as in records, ``ticks`` in the meter's unit, ``code`` bytes of its
    function, ``detail`` in words if it failed."""

    candidate: Candidate
    status: str
    ticks: float = 0.0
    code: int = 0
    detail: str = ""


class Meter(ABC):
    """Base class of everything that measures candidates.

    ``board``, ``unit``, ``toolchain`` as in records; ``batch``: number of candidates that fill an image well;
    ``places``: batches that are measured in parallel; ``lost``: places that failed, with the reason."""

    board: str
    unit: str
    toolchain: str
    batch = 24
    places = 1
    lost: Sequence[str] = ()

    @abstractmethod
    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Return the result of every candidate of a task, in order; MicrocError if nothing can be measured at all."""

    @abstractmethod
    def stop(self) -> None:
        """Abandon running measurements; their results are ignored."""


class Runner(Meter):
    """Base class of a single place where candidates run: a board or a process.
    If an image fails (does not build, hangs, faults), its halves are measured separately, so the failing candidate is
    found and costs no other one its measurement."""

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
        """Check that the place itself works, before candidates are blamed; MicrocError if not."""

    @abstractmethod
    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Measure candidates in one image; FitError, ToolError or DeviceError if the image fails as a whole."""


def sample_inputs_and_outputs(task: Task) -> tuple[list[Array], list[Array]]:
    """Return random inputs of a task, the same in every image, and the outputs of the operators' references."""
    graph = task.graph
    tensors = [_input_description(graph.types[name]) for name in graph.inputs]
    arrays = draw_input_arrays({}, tensors, graph, 1, seed=0)[0]
    outputs, _ = evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))
    return arrays, outputs


def _input_description(type_: TensorType) -> Mapping[str, Any]:
    """Return the description of a tensor for :func:`microc.run.reference.frameworks.draw_input_arrays`."""
    spec = {
        "dtype": type_.dtype,
        "shape": type_.shape,
        "zero_point": type_.quant.zero_point[0] if type_.quant else None,
    }
    return spec | ({"range": INNER} if type_.dtype in ("int32", "int64") and not type_.quant else {})


def inverted_first_bytes(expected: Array) -> bytes:
    """Return the first bytes of an output's right result, inverted.

    They are written to the output before a candidate runs, since a previous candidate may have left the right result
    there."""
    return bytes(~np.ascontiguousarray(expected).reshape(-1).view(np.uint8)[:SPOILT])


def describe_disagreement(
    expected: Sequence[Array], output_names: Sequence[str], read_output: Read, float_tolerance: float = 0.0
) -> str:
    """Describe how a candidate's outputs differ from the expected ones; empty if they agree.

    ``output_names``: of the outputs, in order; ``read_output``: returns an output by its name; ``float_tolerance``: a
    share of the largest float, at least that of :data:`TOLERANCES` (infinite: any output agrees)."""
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


# ---- Whether a board works at all: it runs a network of one operator, which cannot fail. Asked before a candidate is
# blamed.

COUNT = 16
"""Elements of the health check's input."""


def check_board_health(
    board: Board, open_device: Callable[[Program], AbstractContextManager[tuple[Device, LinkedSizes]]]
) -> None:
    """Run a network of one operator on a board, as a health check; DeviceError unless it answers correctly.

    ``open_device``: brings a program onto the board."""
    data = np.arange(-COUNT // 2, COUNT // 2, dtype=np.int8).reshape(1, COUNT)
    with open_device(_health_check_program(board)) as (device, _):
        result = device.run(data)
    if not np.array_equal(result, np.maximum(data, 0)):
        raise DeviceError(
            f"the board computes wrong numbers: {np.count_nonzero(result != np.maximum(data, 0))} of {COUNT} differ",
            where=board.name,
            hint="check its clock, its supply and its memory",
        )


def _health_check_program(board: Board) -> Program:
    """Compile the network of the health check, a single ReLU, for a board."""
    net = GraphBuilder()
    y = net.op("relu", net.input("x", (1, COUNT), "int8"))
    return compile(net.graph("known", {"y": y}), board=board)
