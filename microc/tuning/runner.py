"""Measuring candidates: one interface, and boards that do not answer."""

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
from microc.device.toolchain import Sizes
from microc.errors import DeviceError, FitError, ToolError
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import TensorType
from microc.ops.meaning import evaluate
from microc.run.reference.agreement import TOLERANCES, Tally
from microc.run.reference.frameworks import draws
from microc.run.session import Device
from microc.target import Board
from microc.tuning.search_space import Candidate

# ---- Measuring candidates: one interface, and what it does with an image that does not build, hangs or faults.
#
# A time counts only once the candidate's output is that of the operator's reference: equal integers, floats within the bound that
# ``microc verify`` has. A candidate that breaks its image is found by halving, and costs nobody else a measurement.

SPOILT = 256
"""Bytes of an output that are made wrong before a candidate writes it."""
INNER = -(1 << 8), 1 << 8
"""Wide integers between layers are bytes whose zero point was taken off: sums of their products stay in their dtype."""
Read = Callable[[str], Array]
"""A tensor of the image by name."""


def foreign(candidate: Candidate) -> bool:
    """Whether it is other people's code."""
    return candidate.whole is not None and candidate.whole.external is not None


def bound_of(candidate: Candidate) -> float:
    """What the floats of a candidate may differ by beyond those of any other, as in :class:`Whole`."""
    return candidate.whole.bound if candidate.whole is not None else 0.0


@frozen
class Result:
    """What became of a candidate: ``status`` as in records, ``ticks`` in the runner's unit, ``code`` bytes of its function in the
    program, ``detail`` in words where it failed."""

    candidate: Candidate
    status: str
    ticks: float = 0.0
    code: int = 0
    detail: str = ""


class Meter(ABC):
    """Whatever measures. ``board``, ``unit``, ``toolchain`` as in records; ``batch``: how many candidates fill an image well;
    ``places``: batches that it measures at once. ``lost``: places that failed, and why, in words."""

    board: str
    unit: str
    toolchain: str
    batch = 24
    places = 1
    lost: Sequence[str] = ()

    @abstractmethod
    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        """The result of every candidate, in order. MicrocError where nothing can be measured at all, not even one of them."""

    @abstractmethod
    def stop(self) -> None:
        """Give up what is being measured: its results are not wanted any more."""


class Runner(Meter):
    """One place where candidates run."""

    _stopped = False

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        if not candidates:
            return []
        if self._stopped:
            raise DeviceError("the search was ended")
        try:
            return self._measured(task, candidates)
        except (FitError, ToolError, DeviceError) as error:
            if not isinstance(error, FitError):
                self.check()
            if len(candidates) == 1:
                unbuilt = foreign(candidates[0]) and not isinstance(error, DeviceError)
                return [Result(candidates[0], UNBUILT if unbuilt else FAILED, detail=str(error.what))]
        half = len(candidates) // 2
        return [*self.measure(task, candidates[:half]), *self.measure(task, candidates[half:])]

    def stop(self) -> None:
        self._stopped = True

    @abstractmethod
    def check(self) -> None:
        """MicrocError unless whatever measures is there, and works: asked before candidates are blamed."""

    @abstractmethod
    def _measured(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        """The same for candidates in one image."""


def sample(task: Task) -> tuple[list[Array], list[Array]]:
    """Random inputs of a task, the same in every image, and what the operators' references make of them."""
    graph = task.graph
    tensors = [_drawn(graph.types[name]) for name in graph.inputs]
    arrays = draws({}, tensors, graph, 1, seed=0)[0]
    outputs, _ = evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))
    return arrays, outputs


def _drawn(kind: TensorType) -> Mapping[str, Any]:
    """What a draw wants to know of a tensor."""
    known = {"dtype": kind.dtype, "shape": kind.shape, "zero_point": kind.quant.zero_point[0] if kind.quant else None}
    return known | ({"range": INNER} if kind.dtype in ("int32", "int64") and not kind.quant else {})


def spoilt(wanted: Array) -> bytes:
    """What is put in front of an output before a candidate runs: none of its first bytes are right, though the candidate before
    left a right output there."""
    return bytes(~np.ascontiguousarray(wanted).reshape(-1).view(np.uint8)[:SPOILT])


def disagreement(wanted: Sequence[Array], names: Sequence[str], read: Read, bound: float = 0.0) -> str:
    """Where outputs are not those that are right, in words; empty where they are. ``bound`` as in :class:`Whole`."""
    if bound == inf:
        return ""
    for array, name in zip(wanted, names, strict=True):
        kind = str(array.dtype)
        tally = Tally(name, kind, max(bound, TOLERANCES[kind]) if dtypes.is_float(kind) else 0)
        tally.add(read(name).reshape(array.shape), array)
        found = tally.agreement()
        if not found.agrees:
            return f"{found.wrong} of {found.elements} elements of its output are wrong, by {found.largest:.6g} at most"
    return ""


# ---- Whether a board works at all: it runs a network of one operator, which cannot fail. Asked before a candidate is
# blamed.

COUNT = 16
"""Elements of its input."""


def check_device(board: Board, running: Callable[[Program], AbstractContextManager[tuple[Device, Sizes]]]) -> None:
    """DeviceError unless the board answers, and rightly; ``running`` brings a program onto it."""
    given = np.arange(-COUNT // 2, COUNT // 2, dtype=np.int8).reshape(1, COUNT)
    with running(_program(board)) as (device, _):
        made = device.run(given)
    if not np.array_equal(made, np.maximum(given, 0)):
        raise DeviceError("the board computes nonsense", where=board.name, hint="its clock, its supply, its memory")


def _program(board: Board) -> Program:
    net = GraphBuilder()
    y = net.op("relu", net.input("x", (1, COUNT), "int8"))
    return compile(net.graph("known", {"y": y}), board=board)
