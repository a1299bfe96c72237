"""Which rows layers that work row by row hold and make, and when: the geometry of :mod:`microc.tir.stream`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from microc.frozen import frozen


@frozen
class Window:
    """The rows that a layer reads for its row y: ``reach`` of them, from row ``y * stride - top`` on.

    ``width``: elements of a row. Rows above the first hold ``pad_value``, and those below the last, if ``top`` or ``bottom``.
    """

    reach: int
    stride: int
    width: int
    top: int = 0
    bottom: int = 0
    pad_value: int | float = 0

    @property
    def padded(self) -> bool:
        return bool(self.top or self.bottom)


@frozen
class Shape:
    """What a layer of ``rows`` rows reads to make ``block`` of them at a time.

    Blocks start at row ``phase`` and every ``block`` rows before and behind it, also where that is partly outside the image; a
    layer that touches other tensors than windows must be ``whole``: its blocks lie inside.
    """

    window: Window
    rows: int
    whole: bool = False
    block: int = 1
    phase: int = 0

    @property
    def step(self) -> int:
        """Rows by which the window moves from block to block."""
        return self.block * self.window.stride

    @property
    def held(self) -> int:
        """Rows in the window: where the stride is longer than the reach, some are skipped."""
        return max((self.block - 1) * self.window.stride + self.window.reach, self.step)

    @property
    def lead(self) -> int:
        """Rows of the predecessor that exist when the layer asks for more to make its row 0."""
        return self.held - self.step - self.window.top

    @property
    def inside(self) -> bool:
        """Whether no block reaches beyond the image."""
        return self.phase == 0 and self.rows % self.block == 0

    @property
    def computed(self) -> int:
        """Rows that are computed, those outside the image included."""
        return self.block * len(range(self.phase - self.block if self.phase else 0, self.rows, self.block))

    def serving(self, reader: Shape | None, block: int) -> Shape:
        """The shape with ``block`` rows at a time, as the next layer asks for them (None: this is the last one)."""
        phase = (reader.phase * reader.window.stride + reader.lead) % block if reader is not None else 0
        return replace(self, block=block, phase=phase)


def choose_blocks(shapes: Sequence[Shape], height: int) -> tuple[Shape, ...]:
    """The shapes with the most rows at a time that serve the next layer, up to ``height``."""
    found: list[Shape] = []
    for k, shape in reversed(list(enumerate(shapes))):
        reader = found[0] if found else None
        whole = shape.whole or reader is None or (k == 0 and not shape.window.padded)
        wanted = reader.step if reader is not None else shape.rows
        sizes = (m for m in range(min(height, wanted), 0, -1) if wanted % m == 0)
        options = (shape.serving(reader, m) for m in sizes)
        found.insert(0, next(s for s in options if s.inside or not whole))
    return tuple(found)


def first_row(shapes: Sequence[Shape], position: int) -> int:
    """How many rows before its row 0 a layer has to start, so that its window and those before it are full by then."""
    shape = shapes[position]
    if position == 0 and not shape.window.padded:
        return 0
    before = first_row(shapes, position - 1) if position else 0
    return max(0, -(-(shape.lead + before) // shape.window.stride))


def timeline(shapes: Sequence[Shape], source_rows: int, beside: Set[int] = frozenset()) -> tuple[list[int], list[int]]:
    """The last time that each row of the source is read, and the time that each row of the result is written.

    The clock moves on with every block. Layers whose positions are in ``beside`` read the source by row, too.
    """
    clock = _Clock(shapes, [-1] * source_rows, [-1] * shapes[-1].rows, beside)
    block = shapes[-1].block
    early = -(-first_row(shapes, len(shapes) - 1) // block) * block
    for row in range(-early, shapes[-1].rows, block):
        clock.make(len(shapes) - 1, row)
    return clock.read, clock.written


@dataclass(slots=True)
class _Clock:
    shapes: Sequence[Shape]
    read: list[int]
    written: list[int]
    beside: Set[int]
    now: int = 0

    def make(self, position: int, row: int) -> None:
        """One block of a layer, from ``row`` on, after what it needs."""
        shape = self.shapes[position]
        new = row * shape.window.stride + shape.lead
        if position:
            for start in range(new, new + shape.step, self.shapes[position - 1].block):
                self.make(position - 1, start)
        else:
            self.touch(self.read, new + shape.step - shape.held, new + shape.step)
        if position in self.beside:
            self.touch(self.read, row, row + shape.block)
        self.now += 1
        if position == len(self.shapes) - 1:
            self.touch(self.written, row, row + shape.block)

    def touch(self, times: list[int], start: int, stop: int) -> None:
        for y in range(max(start, 0), min(stop, len(times))):
            times[y] = self.now
