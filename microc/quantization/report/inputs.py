"""What the data look like, for warnings: spans of inputs in calibration and comparison, and whether they are raw pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microc.graph.ir import Graph
from microc.ops import registry
from microc.quantization.observe import Row

_PIXEL, _BRIGHT = 255, 128
_SCALING = frozenset(("add", "sub", "mul", "div"))


def inputs_report(source: Graph, samples: Sequence[Row], judged: Sequence[Row]) -> list[dict[str, Any]]:
    """Of each input: ``low`` and ``high`` of the calibration data, ``compared_low`` and ``compared_high`` of those compared on,
    and ``pixels``: whether they are whole numbers up to 255 that the network, as it was read, does not scale."""
    told = []
    for number, name in enumerate(source.inputs):
        low, high = _span(samples, number)
        compared_low, compared_high = (low, high) if judged is samples else _span(judged, number)
        real = source.types[name].dtype == "float32"
        told.append(
            {
                "input": name,
                "low": low,
                "high": high,
                "compared_low": compared_low,
                "compared_high": compared_high,
                "pixels": real and _BRIGHT <= high <= _PIXEL and low >= 0 and not _scaled(source, name)
                and all(bool((row[number] == np.rint(row[number])).all()) for row in samples),
            }
        )  # fmt: skip
    return told


def _span(rows: Sequence[Row], number: int) -> tuple[float, float]:
    return min(float(row[number].min()) for row in rows), max(float(row[number].max()) for row in rows)


def _scaled(graph: Graph, name: str) -> bool:
    """Whether the network begins with a shift or a factor."""
    readers = [node for node in graph.nodes if name in node.inputs]
    moved = [node.outputs[0] for node in readers if registry.get(node.op).moves]
    return any(node.op in _SCALING for node in readers) or any(_scaled(graph, result) for result in moved)
