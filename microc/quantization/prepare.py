"""The float graph as it is quantised: constants folded, channels last, norms as operators, SVDF as layers, everything
computed once, a name for each value, those in bodies of loops too; means of raw bytes are a byte."""

from __future__ import annotations

from microc.driver.options import Options
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.quantization.loops import distinct
from microc.transform import NORMALISING, common_subexpressions, dead_code, layer_norm, raw_inputs, svdf_layers
from microc.transform.context import PassContext, run_passes

_PASSES = (
    *NORMALISING,
    svdf_layers.PASS,
    layer_norm.PASS,
    common_subexpressions.PASS,
    dead_code.PASS,
    raw_inputs.CENTRED,
)


def prepared(graph: Graph, options: Options) -> Graph:
    """The float graph, which computes what the given one does. UsageError where it is on integers already."""
    context = PassContext(options={"requantize": options.requantize, "hybrid": "float", "rounding": options.rounding})
    made = run_passes(graph, _PASSES, context)
    if any(made.types[name].quant is not None for node in made.nodes for name in (*node.inputs, *node.outputs) if name):
        raise UsageError(
            f"{graph.name} is quantised already", where=graph.name, hint="give the float network that it was made from"
        )
    if not any(made.types[name].dtype == "float32" for node in made.nodes for name in node.outputs):
        raise UsageError(
            f"{graph.name} computes nothing in float32", where=graph.name, hint="there is nothing to quantise"
        )
    return distinct(made)
