"""What ``quantize`` gives: the integer graph, what was decided for it, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microc.codegen.files import replacing
from microc.driver.model import ONNX, save
from microc.dtypes import Array
from microc.graph.ir import Graph
from microc.quantization.report.page import to_html
from microc.quantization.write import Recipe


@dataclass(frozen=True, slots=True)
class Quantized:
    """``graph``: the network on integers, which :func:`microc.compile` takes. ``exact``: the same with the scales of ONNX,
    floats. ``float_graph``: what it was made from, normalised. ``recipe``: how each value is stored. ``report``: plain data
    (:mod:`microc.quantization.report`): ``values``, ``weights``, ``outputs``, and where there were labels
    ``classification``, or ``score`` and ``float_score`` of the caller's function. ``biases``: those that repairs gave to
    layers, by the names of their results."""

    graph: Graph
    exact: Graph
    float_graph: Graph
    recipe: Recipe
    report: Mapping[str, Any] = field(default_factory=dict)
    biases: Mapping[str, Array] = field(default_factory=dict)

    def save(self, path: str | Path) -> Path:
        """Write the integer graph as a graph file, or as QDQ ONNX where the name ends so."""
        return save(self.exact if Path(path).suffix == ONNX else self.graph, path)

    def save_report(self, path: str | Path) -> Path:
        """Write the report as a page of HTML that needs nothing else."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(to_html(self.report), encoding="utf-8")
        return Path(path)
