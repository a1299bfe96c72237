"""What ``quantize`` gives: the integer graph, what was decided for it, and how good it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microc.codegen.files import replacing
from microc.driver.model import ONNX, save
from microc.driver.shown import signature, table
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

    def __repr__(self) -> str:
        return f"<Quantized {self._signature()}, {', '.join(text for text, _ in self._numbers())}>"

    def _repr_html_(self) -> str:
        return table(self._signature(), [(what, value) for value, what in self._numbers()])

    def _signature(self) -> str:
        def tensors(names: Sequence[str]) -> list[dict[str, Any]]:
            return [{"name": n, "dtype": self.graph.types[n].dtype, "shape": self.graph.types[n].shape} for n in names]

        return signature(self.graph.name, tensors(self.graph.inputs), tensors(self.graph.outputs))

    def _numbers(self) -> list[tuple[str, str]]:
        """Signal to noise of the outputs, in words, and of which."""
        return [
            (f"{output['decibels']:.1f} dB", f"{output['name']} above the noise")
            for output in self.report.get("outputs", ())
        ]

    def save(self, path: str | Path) -> Path:
        """Write the integer graph as a graph file, or as QDQ ONNX where the name ends so."""
        return save(self.exact if Path(path).suffix == ONNX else self.graph, path)

    def save_report(self, path: str | Path) -> Path:
        """Write the report as a page of HTML that needs nothing else."""
        with replacing(Path(path)) as temporary:
            temporary.write_text(to_html(self.report), encoding="utf-8")
        return Path(path)
