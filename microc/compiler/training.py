# SPDX-License-Identifier: Apache-2.0
"""The Python API of training: :func:`add_loss`, :func:`gradient` and :func:`learn`, from graph to graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.compiler import validation
from microc.compiler.interaction import convert_flags_in_errors
from microc.compiler.learning_head import load_head, validated_head
from microc.compiler.model import registers_plugins
from microc.graph.ir import Graph
from microc.plugin import Plugin

if TYPE_CHECKING:
    from microc.transform.training.learning import Head

_GRAPH = "a microc.Graph, which microc.load returns"


@convert_flags_in_errors
def add_loss(graph: Graph, kind: str, output: str = "") -> Graph:
    """Append a loss to a network: an input ``labels`` and an output ``loss``, a float of shape ().

    ``kind``: ``cross_entropy`` (labels int32, the class of each row), ``binary_cross_entropy`` (labels from 0 to 1, of
    the output's shape) or ``mean_squared_error`` (labels of the output's shape). Each is a mean. A softmax or sigmoid
    that computes the output is passed by for the first two, which start from logits. ``output``: the float value that
    is compared with the labels; by default the only output. Raises UsageError for an unknown name and an output of
    another type."""
    from microc.transform.training.losses import append_loss

    validation.as_instance("a graph", graph, Graph, _GRAPH)
    return append_loss(graph, validation.as_text("a loss", kind), validation.as_text("output", output))


@convert_flags_in_errors
@registers_plugins
def gradient(
    graph: Graph, loss: str, of: Sequence[str], *, plugins: str | Path | Plugin | Sequence[str | Path | Plugin] = ()
) -> Graph:
    """Append the gradients of a loss to a network, in reverse mode. The result is a graph like any other.

    ``loss``: name of a float value of one element, such as the output of :func:`add_loss`. ``of``: names of inputs,
    constants (weights), states or computed values, of floats. The gradient by ``w`` is the output ``w.gradient``, of
    the type of ``w``. The outputs of the result are those of ``graph``, then ``loss`` unless it is one of them, then
    the gradients in the order of ``of``. Loops and recurrent layers between a value and the loss are unrolled.
    ``plugins``: plugins whose operators the graph has. Raises UsageError for an unknown name, a loss or value of
    another type, and a value on which the loss does not depend; raises UnsupportedError for quantised operators and
    for operators without a gradient (:attr:`microc.plugin.OpDef.gradient`) between a value and the loss."""
    from microc.transform.training.gradient import append_gradients

    validation.as_instance("a graph", graph, Graph, _GRAPH)
    names = tuple(validation.as_text("of", name) for name in ((of,) if isinstance(of, str) else of))
    return append_gradients(graph, validation.as_text("a loss", loss), names)


@convert_flags_in_errors
@registers_plugins
def learn(
    graph: Graph,
    head: str | Path | Mapping[str, Any] | Head,
    *,
    plugins: str | Path | Plugin | Sequence[str | Path | Plugin] = (),
) -> Graph:
    """Return the network that learns in every run: its last layers in float32, a loss, and an optimiser's step.

    ``head``: a mapping of the fields of :class:`microc.transform.training.learning.Head` (layers, loss, optimiser ...),
    or the path of a TOML file with a table ``[learn]`` of them. The result has the further inputs ``labels`` and ``rate`` and the
    further output ``loss``. Weights that learn are state. The other outputs are those before the step. A rate of 0
    changes no weight. ``microc.compile(model, learn=head)`` compiles it with a function for inference alone.
    ``plugins``: those whose operators the graph contains. Raises UsageError for wrong fields and layers, and
    UnsupportedError as :func:`gradient` does."""
    from microc.transform.training.learning import append_learning

    validation.as_instance("a graph", graph, Graph, _GRAPH)
    declared = validated_head("head", head)
    if declared is None:
        raise validation.invalid_value_error("head", head, "a mapping, or the path of a TOML file")
    return append_learning(graph, load_head(declared)).graph
