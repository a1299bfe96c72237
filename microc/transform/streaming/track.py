"""Which frames of a sequence a value holds in a step of a stream: pure arithmetic.

A step takes some frames of the input. Value v of the whole run has ``length`` frames along its time axis; in step n the stream
gives its frames n * count - delay + i, 0 <= i < count. Frames before the first (negative ones) are meaningless, unless a
window pads: then they are masked.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from microc.frozen import frozen


@frozen
class Frames:
    """A value that comes some frames in each step.

    ``clean``: how many frames of the whole run owe nothing to padding behind its end, and ``blame`` the layer that padded there.
    Where ``delay`` is negative, the first -delay frames never come; they hold ``fill``.
    """

    axis: int
    length: int
    count: int
    delay: int
    clean: int
    fill: float | None = None
    blame: str = ""

    def along(self, axis: int) -> Frames:
        """The same with another time axis."""
        return replace(self, axis=axis)

    @property
    def complete(self) -> bool:
        """Whether every frame of the whole run comes in the stream."""
        return self.clean >= self.length


@frozen
class Whole:
    """A value computed as a whole in each step, from the last frames; step ``delay`` gives what the whole run gives."""

    delay: int


Track = Frames | Whole
"""How a value depends on time; values that do not have no track."""


class HopTooShortError(Exception):
    """A step has to take ``factor`` times as many frames: a stride does not divide what comes in a step."""

    def __init__(self, factor: int, where: str) -> None:
        super().__init__(factor)
        self.factor, self.where = factor, where


@frozen
class Window:
    """How a window reads its operand in a step: ``size`` frames that end ``newest`` frames before the last. ``track`` is that of
    what the windows make."""

    track: Frames
    size: int
    newest: int

    @property
    def back(self) -> int:
        """How far before the end of the operand's frames the window begins."""
        return self.size + self.newest


def slide(track: Frames, reach: int, stride: int, before: int, length: int, where: str) -> Window:
    """A window of ``reach`` frames over a value padded with ``before`` in front (negative: as many are left out).

    Frame j of the result needs frames up to j * stride + reach - 1 - before. A step gives those for which everything is there.
    ``length``: frames of the result in the whole run; if there is one only, its stride means nothing.
    """
    stride = stride if length > 1 else 1
    if track.count % stride:
        raise HopTooShortError(stride // gcd(stride, track.count), where)
    ahead = reach - 1 - before
    missing = ahead + track.delay - stride + 1
    delay = max(0, -(-missing // stride))
    clean = min(length, (track.clean - 1 - ahead) // stride + 1)
    blame = track.blame if clean >= length or track.blame else where
    count = track.count // stride
    result = Frames(track.axis, length, count, delay, clean, None, blame)
    return Window(result, (count - 1) * stride + reach, delay * stride - missing)


def gathered(track: Frames, least: int = 0) -> tuple[Whole, Window]:
    """All frames of the whole run, the first of them at the start of a step, ``least`` steps late or more."""
    late = -(track.length + track.delay) % track.count
    while (track.length + track.delay + late) // track.count - 1 < least:
        late += track.count
    steps = (track.length + track.delay + late) // track.count - 1
    return Whole(steps), Window(track, track.length, late)
