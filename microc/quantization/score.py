"""How well a network does its task: one number, larger is better."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver import accepted
from microc.driver.api import compile
from microc.driver.measure.evaluate import Classification, classify
from microc.dtypes import Array
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.quantization.observe import rows_of, runner
from microc.quantization.samples import Data

Score = Callable[[Graph], float]


def score_by(evaluate: Any, data: Data) -> Score | None:
    """The caller's function where ``evaluate`` is one, accuracy where ``data`` has labels, else None."""
    if callable(evaluate):
        return lambda graph: _own(evaluate, graph)
    return None if data.labels is None else lambda graph: _accuracy(graph, data)


def _own(evaluate: Callable[..., Any], graph: Graph) -> float:
    """What the caller's function says of a network."""
    found = evaluate(compile(graph, optimize="speed", check=False))
    if not isinstance(found, numbers.Real) or not math.isfinite(found):
        raise UsageError(
            f"evaluate gave {accepted.shown(found)}", hint="a function of a network that gives a finite number"
        )
    return float(found)


def _accuracy(graph: Graph, data: Data) -> float:
    """The share of samples, or sequences, whose class is found."""
    assert data.labels is not None
    ends = list(dict.fromkeys(graph.outputs))
    rows = list(rows_of(runner(graph, ends), data.rows))
    answers = {name: data.answered(np.stack([row[k] for row in rows])) for k, name in enumerate(ends)}
    return classified(answers, data.labels).accuracy


def classified(answers: Mapping[str, Array], labels: Array) -> Classification:
    """Classes that outputs of floats, by name, tell."""
    tensors = {name: {"name": name, "scale": None, "zero_point": None} for name in answers}
    try:
        return classify(answers, tensors, labels)
    except UsageError as error:
        raise UsageError(
            error.what, hint="number the classes from 0 on: 0, 1, 2 ..., in the order of the first output"
        ) from error


def check_labels(graph: Graph, data: Data) -> None:
    """UsageError for labels that no answer of the network can be."""
    if data.labels is not None:
        kinds = {name: graph.types[name] for name in graph.outputs}
        shapes = {name: (len(data.labels), *kind.shape) for name, kind in kinds.items()}
        classified(
            {name: np.zeros(shapes[name], dtypes.to_numpy(kind.dtype)) for name, kind in kinds.items()}, data.labels
        )
