"""What stages of a pipeline are made of: a signal on its way, what writes it, and the checks of declared numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from microc.driver import accepted
from microc.dtypes import Array
from microc.errors import UsageError, suggestion
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Attr


@dataclass(frozen=True, slots=True)
class Signal:
    """A value of the graph on its way through the stages.

    Axis 1 is time: samples, then frames; the last axis of frames is what a frame holds. Integers q stand for ``scale`` q.
    ``rate``: samples a second, before they became frames.
    """

    net: GraphBuilder
    value: str
    rate: float
    scale: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.net.shape(self.value)

    @property
    def dtype(self) -> str:
        return self.net.type(self.value).dtype

    @property
    def is_float(self) -> bool:
        return self.dtype == "float32"

    def op(self, op: str, *others: str, **attrs: Attr) -> Signal:
        """What an operator makes of it."""
        self.net.at(len(self.net.types), op)
        return replace(self, value=self.net.emit(op, (self.value, *others), attrs))

    def constant(self, array: Array | float) -> str:
        """A constant of the signal's dtype, or as it is where it is an integer array."""
        data: Array = np.asarray(array)
        return self.net.constant("constant", data.astype(np.float32) if data.dtype.kind == "f" else data)

    def times(self, factor: Array | float) -> Signal:
        return self.op("mul", self.constant(np.asarray(factor, np.float32)))

    def plus(self, number: Array | float) -> Signal:
        return self.op("add", self.constant(np.asarray(number, np.float32)))

    def real(self) -> Signal:
        """The same as floats."""
        if self.is_float:
            return self
        cast = self.op("cast", dtype="float32")
        return replace(cast if self.scale == 1.0 else cast.times(self.scale), scale=1.0)

    def last(self, first: int, end: int) -> Signal:
        """Elements of the last axis."""
        shape = self.shape
        begin = (*(0,) * (len(shape) - 1), first)
        return self.op("slice", begin=begin, end=(*shape[:-1], end), strides=(1,) * len(shape))


@dataclass(frozen=True)
class Stage:
    """A step of a pipeline; subclasses are declared by their fields and build themselves.

    :meth:`build` gives the signal behind the stage; :meth:`needs` how many samples it needs for so many of its results.
    """

    def build(self, signal: Signal) -> Signal:
        raise NotImplementedError

    def needs(self, count: int) -> int:
        return count

    def wants_frames(self, signal: Signal, spectrum: bool = False) -> None:
        """Refuse a signal that is not cut into frames, or whose frames are no spectra."""
        if len(signal.shape) < 3:
            raise self.refused("wants frames", "put Frames in front of it")
        if spectrum and signal.shape[-1] < 3:
            raise self.refused("wants spectra", "put Spectrogram in front of it")

    def refused(self, what: str, hint: str) -> UsageError:
        return UsageError(f"{type(self).__name__} {what}", hint=hint)

    def set(self, name: str, value: object) -> None:
        """Keep what a check made of a field."""
        object.__setattr__(self, name, value)

    def number(self, name: str, least: float, most: float) -> None:
        self.set(name, float(accepted.number(self._called(name), getattr(self, name), least, most)))

    def integer(self, name: str, least: int, most: int = 1 << 24) -> None:
        self.set(name, accepted.integer(self._called(name), getattr(self, name), least, most))

    def truth(self, name: str) -> None:
        self.set(name, accepted.truth(self._called(name), getattr(self, name)))

    def choice(self, name: str, known: Sequence[str]) -> None:
        value = accepted.text(self._called(name), getattr(self, name))
        if value not in known:
            raise UsageError(f"{self._called(name)} is {value!r}", hint=suggestion(value, known, "known"))

    def array(self, name: str, dimensions: int) -> Array:
        """A field as a finite float64 array; the field becomes nested tuples, or a number."""
        try:
            found = np.asarray(getattr(self, name), np.float64)
        except (TypeError, ValueError):
            found = np.zeros(0)
        if found.ndim != dimensions or not found.size or not np.isfinite(found).all():
            raise UsageError(f"{self._called(name)} is no array of finite numbers of {dimensions} dimensions")
        listed = found.tolist()
        self.set(name, tuple(map(tuple, listed)) if dimensions == 2 else tuple(listed) if dimensions else listed)
        return found

    def _called(self, name: str) -> str:
        return f"{type(self).__name__}.{name}"
