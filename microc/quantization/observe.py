"""The float network on samples: what its activations are. It runs as the compiled code of this computer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from microc.driver import api
from microc.driver.desktop.library import Library
from microc.driver.progress import Progress
from microc.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Graph
from microc.quantization.loops import exposed

Row = tuple[Array, ...]
State = Mapping[str, Array]
KEPT = 1 << 16
"""How many elements of an activation are kept, drawn evenly from all samples; extremes are exact."""
_AT_ONCE = 1 << 22
"""Bytes of inputs and outputs that are in memory together."""


class First(Row):
    """A sample that begins a sequence."""


def state_of(graph: Graph, row: Row, now: State) -> State:
    """The state that a sample finds: as it starts, or as it is ``now``."""
    return graph.state if isinstance(row, First) else now


@dataclass
class Statistics:
    """One activation over all samples. ``lows`` and ``highs``: of every sample; ``drawn``: elements at random.

    ``channels``: the largest magnitude for each index of the last axis; ``squares``: the sum of squares; ``count``: of how many.
    ``size``: elements of a sample. ``reach``: what no sample exceeds, whatever it holds.
    """

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    drawn: list[Array] = field(default_factory=list)
    channels: Array = field(default_factory=lambda: np.zeros(1))
    squares: Array = field(default_factory=lambda: np.zeros(1))
    count: int = 0
    size: int = 0
    reach: tuple[float, float] = (-np.inf, np.inf)

    @property
    def low(self) -> float:
        return min(self.lows)

    @property
    def high(self) -> float:
        return max(self.highs)

    @property
    def elements(self) -> Array:
        """The elements that were drawn."""
        return np.concatenate(self.drawn)

    @property
    def power(self) -> Array:
        """The mean square for each index of the last axis."""
        return self.squares / max(1, self.count)

    def add(self, array: Array, share: int, random: np.random.Generator) -> None:
        """One sample's values."""
        flat = array.reshape(-1)
        self.lows.append(float(flat.min()))
        self.highs.append(float(flat.max()))
        self.drawn.append(flat if flat.size <= share else flat[random.integers(0, flat.size, share)])
        rows = array.reshape(-1, (1, *array.shape)[-1])
        self.channels = np.maximum(self.channels, np.abs(rows).max(axis=0))
        self.squares = self.squares + np.square(rows, dtype=np.float64).sum(axis=0)
        self.count += len(rows)
        self.size = array.size


def merged(several: Sequence[Statistics]) -> Statistics:
    """What values of one scale hold together: sample by sample for the extremes, all elements that were drawn."""
    if len(several) == 1:
        return several[0]
    turns = range(max(len(each.lows) for each in several))
    lows = [min(each.lows[min(k, len(each.lows) - 1)] for each in several) for k in turns]
    highs = [max(each.highs[min(k, len(each.highs) - 1)] for each in several) for k in turns]
    drawn = [array for each in several for array in each.drawn]
    return Statistics(lows, highs, drawn, size=sum(each.size for each in several))


def table_statistics(table: Array) -> Statistics:
    """A constant whose elements become an activation: all of them may be met."""
    flat = table.reshape(-1)
    return Statistics([float(flat.min())], [float(flat.max())], [flat])


def runner(graph: Graph, values: Sequence[str]) -> Library:
    """The network as a library whose outputs are ``values``; of those in loops, what all turns make."""
    return api.compile(
        replace(exposed(graph, values), outputs=tuple(dict.fromkeys(values))), optimize="speed", check=False
    )


def rows_of(library: Library, samples: Sequence[Row]) -> Iterator[Row]:
    """What the library answers to every sample, of which it takes some megabytes at once; state lives from sample to sample of a
    sequence."""
    library.reset()
    most = max(1, _AT_ONCE // sum(tensor["bytes"] for tensor in (*library.inputs, *library.outputs)))
    for batch in _batches(samples, most):
        if isinstance(batch[0], First):
            library.reset()
        result = library.batch(*map(np.stack, zip(*batch, strict=True)))
        yield from zip(*(result if isinstance(result, tuple) else (result,)), strict=True)


def _batches(samples: Sequence[Row], most: int) -> Iterator[Sequence[Row]]:
    """The samples in turn, at most so many together, and none that begins a sequence behind another."""
    begin = 0
    for end in range(1, len(samples) + 1):
        if end == len(samples) or end - begin == most or isinstance(samples[end], First):
            yield samples[begin:end]
            begin = end


def observe(
    graph: Graph, values: Sequence[str], samples: Sequence[Row], seed: int, progress: Progress | None = None
) -> Mapping[str, Statistics]:
    """Statistics of ``values``, which may be inputs. ModelError where the network's own answer is no number."""
    random, share = np.random.default_rng(seed), max(1, KEPT // len(samples))
    found = {value: Statistics() for value in values}
    inner = [value for value in values if value not in graph.inputs]
    library = runner(graph, inner) if inner else None
    answers = rows_of(library, samples) if library is not None else iter(() for _ in samples)
    for number, (arrays, answer) in enumerate(zip(samples, answers, strict=True)):
        if progress is not None:
            progress("calibration", number, len(samples))
        for value, array in (*zip(graph.inputs, arrays, strict=True), *zip(inner, answer, strict=True)):
            if value in found:
                _check(value, array, number)
                found[value].add(array, share, random)
    return found


def _check(value: str, array: Array, number: int) -> None:
    if not np.isfinite(array).all():
        raise ModelError(
            f"{value!r} is infinite or NaN in sample {number + 1}",
            hint="calibrate with data that the float network answers with numbers",
        )
