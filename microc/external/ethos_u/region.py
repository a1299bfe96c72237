"""Regions for an Ethos-U: which layers they are of, and the C that gives them to Arm's driver.

Vela plans the memory of a region by itself: inputs and results lie at places of its own in one scratch memory, which the commands
know as region 1 (0: weights; 2: fast scratch memory, where the accelerator has one). So that is a workspace of ours, and inputs
are copied in, results out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from microc.errors import ToolError, UnsupportedError
from microc.external.backend import Backend, Code, Entry, Region, Span
from microc.external.ethos_u.configuration import NAME, Configuration, parse
from microc.external.ethos_u.driver import HEADER, open_driver
from microc.external.ethos_u.stream import ALIGN, check_payload
from microc.external.ethos_u.vela import Compiled, Left, compile_model, require
from microc.frontend.tflite.writer.layers import written
from microc.frontend.tflite.writer.model import name_of, to_tflite
from microc.graph.ir import Graph, Node
from microc.module import Sources
from microc.target import Target

MOVES = frozenset({"reshape", "concat"})
"""Layers for which alone nobody wakes an accelerator."""
CALL, WORD = 500.0, 3.0
"""Instructions of the processor around a run, and for four bytes that are copied. A cycle of the accelerator counts as one
instruction: its clock is no slower than the processor's, which takes a cycle or more for each."""
_CODE = 120


def given(text: str) -> Backend:
    """The backend for an accelerator."""
    configuration = parse(text)

    def leaves(region: Region) -> Mapping[str, str]:
        found = compile_model(to_tflite(region.graph), configuration) if not check(region) else None
        return _left(region, found) if isinstance(found, Left) else {}

    def sources(place: str, target: Target, functions: Iterable[str]) -> Sources:
        found = open_driver(configuration, target)
        require()
        return found

    entry = Entry("region", Span(refuses, leaves), lambda region: code(region, configuration), check)
    return Backend(NAME, (entry,), open=sources, headers=(HEADER,))


def unconfigured(place: str, target: Target, functions: Iterable[str]) -> Sources:
    """UsageError: nobody said which accelerator, neither user nor board."""
    return open_driver(parse(place), target)


def refuses(graph: Graph, node: Node) -> str:
    """Why a layer is in no region: it has no form in TFLite."""
    try:
        written(graph, node)
    except UnsupportedError as error:
        return error.what
    return ""


def check(region: Region) -> str:
    return "" if any(node.op not in MOVES for node in region.graph.nodes) else "nothing in it computes"


def _left(region: Region, found: Left) -> Mapping[str, str]:
    """The layers that Vela leaves to a processor, by their first outputs, with its reasons. Operators are named after these."""
    names = {name.partition("_")[0]: value for value, name in name_of(region.graph).items()}
    makers = {value: node.outputs[0] for node in region.graph.nodes for value in node.outputs}
    values = {names.get(name.partition("_")[0], ""): why for name, why in found.reasons.items()}
    said = "Vela leaves it to the processor"
    left = {makers[value]: f"{said}: {why}" if why else said for value, why in values.items() if value in makers}
    if not left:
        raise ToolError(f"Vela leaves {', '.join(found.reasons)[:100]} to the processor", hint="leave out external")
    return left


def code(region: Region, configuration: Configuration) -> Code:
    """A region as the call of the driver."""
    made = compile_model(to_tflite(region.graph), configuration)
    names = name_of(region.graph)
    ends = (*region.graph.inputs, *region.graph.outputs)
    if not isinstance(made, Compiled) or {names[value] for value in ends} != set(made.places):
        raise ToolError("Vela's model has other inputs and outputs than the region", hint="ethos-u-vela 5.2.0 is known")
    fast = made.fast or made.scratch
    check_payload(made.payload, configuration.target, (len(made.weights), made.scratch, fast))
    at = {value: made.places[names[value]] for value in ends}
    sizes = {value: region.type(value).nbytes for value in ends}
    inside = [f"(void)memcpy(&scratch[{at[v]}], in_{k}, {sizes[v]});" for k, v in enumerate(region.graph.inputs)]
    outside = [f"(void)memcpy(out_{k}, &scratch[{at[v]}], {sizes[v]});" for k, v in enumerate(region.graph.outputs)]
    lines = (
        *inside,
        f"const int status = microc_ethos_u(commands, {len(made.payload)}, weights, {len(made.weights)}, "
        f"scratch, {made.scratch}, &scratch[{made.scratch if made.fast else 0}], {fast});",
        *outside,
        "return status;",
    )
    cost = CALL + WORD * sum(sizes.values()) / 4 + made.cycles
    data = {"commands": made.payload, "weights": made.weights or bytes(ALIGN)}
    arrays = {name: np.frombuffer(each, np.uint8) for name, each in data.items()}
    return Code(lines, arrays, made.scratch + made.fast, cost, _CODE, ("ethosu_invoke_v3",), ALIGN, True)
