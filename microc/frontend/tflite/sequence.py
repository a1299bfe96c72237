"""What TFLite's layers over time have in common: data, forwards or backwards, and results in the order of time."""

from __future__ import annotations

from dataclasses import replace

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.options import Fields
from microc.frozen import frozen
from microc.ops.rounding import Rounding


@frozen
class Sequence:
    """The data of a layer, (batch, steps, depth) or time first; ``axis`` is that of time. ``backwards``: the last step of the
    network's comes first."""

    data: str
    axis: int
    steps: int
    batch: int
    depth: int
    backwards: bool = False

    def turned(self, application: Application) -> Sequence:
        """The same from its last step on."""
        data = application.emit("reverse", (self.data,), {"axes": (self.axis,)})
        return replace(self, data=data, backwards=not self.backwards)

    def in_time(self, application: Application, rows: str) -> str:
        """The rows of all turns, (steps, batch, units), as the data lie."""
        if self.backwards:
            rows = application.emit("reverse", (rows,), {"axes": (0,)})
        return application.emit("transpose", (rows,), {"axes": (1, 0, 2)}) if self.axis else rows


def sequence(application: Application, fields: Fields) -> Sequence:
    """The first operand, a sequence."""
    data, axis = application.operand(0), 0 if fields.integer("TimeMajor") else 1
    shape = application.rank(data, 3)
    return Sequence(data, axis, shape[axis], shape[1 - axis], shape[2])


def both(application: Application, fields: Fields, rows: tuple[str, str]) -> None:
    """The results of both directions: one behind the other along the last axis, or two outputs."""
    if fields.integer("MergeOutputs"):
        application.result("concat", rows, {"axis": 2, "rounding": Rounding.NONE})
        return
    for position, name in enumerate(rows):
        application.result_reshape(name, application.type(name).shape, position)
