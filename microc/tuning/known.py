"""Whether a board works at all: it runs a network of one operator, which cannot fail. Asked before a candidate is blamed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from microc.device.toolchain import Sizes
from microc.driver.api import Program, compile
from microc.driver.measure.session import Device
from microc.errors import DeviceError
from microc.frontend.graph_builder import GraphBuilder
from microc.target import Board

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
