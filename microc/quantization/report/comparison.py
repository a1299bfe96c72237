"""How good a quantised network is: beside the float one, value by value and answer by answer.

The ratio of signal to noise of a value is 10 log10(sum of squares / sum of squared differences) in decibels; 40 dB are 1 %
of noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver.progress import Progress
from microc.dtypes import Array
from microc.graph.ir import Graph
from microc.quantization.ends import End
from microc.quantization.pair import Pair
from microc.quantization.samples import Data
from microc.quantization.scheme import Activation, Weight
from microc.quantization.score import classified

_SHOWN_CHANGES = 100


@dataclass
class Noise:
    """Of one value, or of what counts of it at an ``end``: squares of the float network's, of the differences, and how much was
    saturated."""

    signal: float = 0.0
    noise: float = 0.0
    clipped: int = 0
    elements: int = 0
    end: End = field(default_factory=lambda: End(""))

    def add(self, real: Array, stored: Array, kind: Any) -> None:
        """One sample: reals, and what is stored of them under a type."""
        found = stored.astype(np.float64)
        if kind.quant is not None:
            scale, zero = kind.quant.scale[0], kind.quant.zero_point[0]
            low, high = ((end - zero) * scale for end in dtypes.int_range(kind.dtype))
            self.clipped += int(((real < low - scale / 2) | (real > high + scale / 2)).sum())
            found = (found - zero) * scale
        self.signal += float(np.square(self.end.seen(real)).sum())
        self.noise += float(np.square(self.end.seen(found - real)).sum())
        self.elements += real.size

    @property
    def decibels(self) -> float | None:
        """None where there is no noise, or no signal."""
        return 10 * float(np.log10(self.signal / self.noise)) if self.signal > 0 and self.noise > 0 else None


@dataclass
class Comparison:
    """Both networks on the same samples. ``answers``: outputs by name, of the float network and of the quantised one."""

    values: dict[str, Noise] = field(default_factory=dict)
    answers: tuple[dict[str, Array], dict[str, Array]] = field(default_factory=lambda: ({}, {}))


def compared(pair: Pair, data: Data, progress: Progress | None = None) -> Comparison:
    """The float network and the quantised one on data."""
    found, rows = Comparison({value: Noise() for value in pair.names}), (list[Any](), list[Any]())
    for number, (real, integer) in enumerate(pair.rows(data.rows)):
        if progress is not None:
            progress("comparison", number, len(data.rows))
        for name, kind, a, b in zip(pair.names, pair.kinds, real, integer, strict=True):
            found.values[name].add(a, b, kind)
        rows[0].append(real[: len(pair.ends)])
        rows[1].append(integer[: len(pair.ends)])
    for answers, of in zip(found.answers, rows, strict=True):
        answers.update({name: np.stack([row[k] for row in of]) for k, name in enumerate(pair.ends)})
    return found


def answers_report(found: Comparison, data: Data) -> dict[str, Any]:
    """Outputs: signal to noise; where there are labels, how often each network is right, and whose answer changed."""
    told: dict[str, Any] = {
        "outputs": [
            {"name": name, "decibels": found.values[name].decibels, "largest_difference": _largest(found, name)}
            | {"variation": _variation(found.answers[0][name])}
            for name in found.answers[0]
        ]
    }
    labels = data.labels
    if labels is None:
        return told
    answered = ({name: data.answered(rows) for name, rows in answers.items()} for answers in found.answers)
    real, integer = (classified(answers, labels) for answers in answered)
    first, second = real.answers, integer.answers
    changed = np.flatnonzero(first != second)
    told["classification"] = {
        "output": real.output,
        "samples": len(labels),
        "float_accuracy": real.accuracy,
        "accuracy": integer.accuracy,
        "float_confusion": real.confusion.tolist(),
        "confusion": integer.confusion.tolist(),
        "changed": [
            {"sample": int(k), "truth": int(labels[k]), "float": int(first[k]), "quantised": int(second[k])}
            for k in changed[:_SHOWN_CHANGES]
        ],
        "changed_count": len(changed),
        "lost": int(((first == labels) & (second != labels)).sum()),
        "gained": int(((first != labels) & (second == labels)).sum()),
    }
    return told


def _variation(answers: Array) -> float:
    """How much an output of the float network depends on the data: the root of the mean square of its distances from the mean
    over the samples, relative to that of the output."""
    reals = answers.astype(np.float64)
    size = float(np.square(reals).mean())
    return float(np.sqrt(np.square(reals - reals.mean(axis=0)).mean() / size)) if size > 0 else 0.0


def _largest(found: Comparison, name: str) -> float:
    a, b = (answers[name].astype(np.float64) for answers in found.answers)
    return float(np.abs(a - b).max(initial=0.0))


def values_report(found: Comparison, recipe: Mapping[str, Activation]) -> list[dict[str, Any]]:
    """Of every quantised value: its type, range, ratio of signal to noise, and the share that is saturated."""
    lines = []
    for name, noise in found.values.items():
        how = recipe.get(name)
        if how is None:
            continue
        low, high = ((end - how.zero_point) * how.scale for end in dtypes.int_range(how.dtype))
        lines.append(
            {
                "value": name,
                "dtype": how.dtype,
                "low": low,
                "high": high,
                "decibels": noise.decibels,
                "clipped": noise.clipped / max(1, noise.elements),
            }
        )
    return lines


def weights_report(graph: Graph, recipe: Mapping[str, Weight]) -> list[dict[str, Any]]:
    """Of every stored constant: elements, levels, ratio of signal to noise."""
    lines = []
    for name, weight in recipe.items():
        noise = Noise()
        reals = graph.consts[name].astype(np.float64)
        noise.signal, noise.noise = float(np.square(reals).sum()), float(np.square(weight.real - reals).sum())
        bits = stored_bits(weight.data)
        lines.append({"constant": name, "elements": reals.size, "bits": bits, "decibels": noise.decibels})
    return lines


def stored_bits(data: Array) -> int:
    """The fewest bits, 2 or more, in which these integers fit."""
    low, high = int(data.min(initial=0)), int(data.max(initial=0))
    return max(2, high.bit_length() + 1, (~low).bit_length() + 1)


def confused(found: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Of a classification the mistakes: truth, answer, how often in floats and how often now, the most frequent now first."""
    before, after = (np.array(found[name]) for name in ("float_confusion", "confusion"))
    wrong = np.argwhere((before + after) * (1 - np.eye(len(after), dtype=np.int64)))
    mistakes = [(int(t), int(a), int(before[t, a]), int(after[t, a])) for t, a in wrong]
    return sorted(mistakes, key=lambda m: (-m[3], -m[2], m[0], m[1]))


def worst(lines: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """The lines of the lowest ratios of signal to noise."""
    known = [line for line in lines if line["decibels"] is not None]
    return sorted(known, key=lambda line: float(line["decibels"]))[:count]
