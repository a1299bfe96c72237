# SPDX-License-Identifier: Apache-2.0
"""Reader of TFLite models: converts a flatbuffer to a Graph of microc's operators, with quantisation as part of the
types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from microc.base.immutable import Registry
from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_NESTED
from microc.frontend.signature import merge_converters
from microc.frontend.tflite import (
    operators_control,
    operators_elementwise,
    operators_gather,
    operators_images,
    operators_layers,
    operators_mediapipe,
    operators_recurrent,
    operators_shape,
    operators_signal,
)
from microc.frontend.tflite.builder import STATE_INSIDE, ControlSubgraph, TfliteGraphBuilder
from microc.frontend.tflite.context import Converter, OpContext
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.frontend.tflite.operators_signal import make_gated_nodes_conditional
from microc.graph.ir import Graph, Loc

# ---- The table of converters.

CONVERTERS: Registry[Converter] = Registry(
    "a TFLite operator",
    merge_converters(
        operators_control.CONVERTERS.by_code,
        operators_elementwise.CONVERTERS.by_code,
        operators_gather.CONVERTERS.by_code,
        operators_images.CONVERTERS.by_code,
        operators_layers.CONVERTERS.by_code,
        operators_mediapipe.CONVERTERS.by_code,
        operators_recurrent.CONVERTERS.by_code,
        operators_shape.CONVERTERS.by_code,
        operators_signal.CONVERTERS.by_code,
    ),
)
"""Converters by TFLite's operator name. A custom operator's name is ``CUSTOM:<code>``. Plugins extend the registry
while they are active."""

_RECURRENT = "use LSTM cells (UNIDIRECTIONAL_SEQUENCE_LSTM), or unroll the layer when converting (Keras: unroll=True)"
_SIZE = "give the result a fixed size (top-k, a mask), or compute it in the application: its size depends on data"
_HINTS = (
    ("CUSTOM:ethos-u", "give microc the model from before Vela compiled it for an NPU"),
    ("CUSTOM:Flex", "convert the model with TFLITE_BUILTINS only, or add a converter with --plugin"),
    ("CUSTOM:", "add a converter for the custom operator with --plugin"),
    ("STABLEHLO_", "export through the TFLite converter instead of StableHLO"),
    ("LSTM", _RECURRENT),
    ("WHERE", _SIZE),
    ("UNIQUE", _SIZE),
    ("HASHTABLE", "cut the model so that tables of strings stay on the host"),
    ("RANDOM_", "give the numbers to the network as an input"),
    ("MULTINOMIAL", "give the numbers to the network as an input"),
    ("", "replace the operator in the model, or cut the model before it (--outputs)"),
)


def unsupported_operator_hint(code: str) -> str:
    """Return the hint for an error about a TFLite operator that microc has no converter for."""
    return next(text for prefix, text in _HINTS if code.startswith(prefix))


# ---- The reader calls the converter of each operator in the file's order. It does not optimise the graph.
#
# :mod:`microc.frontend.tflite.file` reads the bytes of the file.


def read_tflite(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """Read the network in ``data``, the bytes of a whole TFLite file; return it as a graph.

    Errors and locations mention ``file_name``; its stem is the graph's name. ``input_shapes`` maps names of inputs to
    shapes, which bind extents that the file does not declare; an unknown batch (axis 0) is 1 by default. The graph's
    values have the names of the file's tensors (:func:`tensor_names`). Intermediate values that converters add have
    names that no tensor has.

    Raises ModelError if the file is corrupt or inconsistent, UnsupportedError with one line for every operator that
    cannot be converted, UsageError if ``input_shapes`` contradicts the declared inputs.
    """
    return _read_subgraph(TfliteFile(data, file_name), PurePath(file_name).stem, input_shapes, (), None, {}).graph


def _read_subgraph(
    file: TfliteFile,
    name: str,
    input_shapes: Mapping[str, tuple[int, ...]],
    enclosing_subgraphs: tuple[int, ...],
    enclosing_builder: TfliteGraphBuilder | None,
    variables_by_input: Mapping[int, str],
) -> ControlSubgraph:
    """Convert the subgraph that ``file`` is open at.

    ``enclosing_subgraphs``: indices of the subgraphs whose operators use this one, outermost first; empty for the main
    subgraph. ``enclosing_builder``: graph builder of the innermost enclosing subgraph. ``variables_by_input``: keys of
    the resource variables whose handles are inputs of this subgraph, by input position."""

    def read_inner_subgraph(subgraph_index: int, inner_handles: Mapping[int, str]) -> ControlSubgraph:
        """Read the subgraph ``subgraph_index``, which an operator of the current subgraph uses.

        ModelError if the subgraph contains itself or is nested too deeply."""
        if subgraph_index in enclosing_subgraphs:
            raise ModelError(
                f"subgraph {subgraph_index}: it calls itself, expected subgraphs without recursion", where=file.name
            )
        if len(enclosing_subgraphs) >= MAX_NESTED:
            raise ModelError(
                f"subgraphs: nested more than {MAX_NESTED} deep, expected at most {MAX_NESTED}", where=file.name
            )
        return _read_subgraph(
            file.subgraph(subgraph_index),
            f"{name}_{subgraph_index}",
            {},
            (*enclosing_subgraphs, subgraph_index),
            builder,
            inner_handles,
        )

    operators = [file.operator(index) for index in range(file.operator_count)]
    unknown = [operator for operator in operators if operator.code not in CONVERTERS]
    refusals = [
        _format_refusal_line(file, operator, "", unsupported_operator_hint(operator.code)) for operator in unknown
    ]
    if not refusals:
        builder = TfliteGraphBuilder(file, input_shapes, read_inner_subgraph, enclosing_builder, variables_by_input)
        refusals = _convert_operators(builder, operators)
    if refusals:
        count = f"{len(refusals)} operator{'s are' if len(refusals) > 1 else ' is'} not supported"
        raise UnsupportedError("\n".join((f"{count}:", *refusals)), where=file.name)
    if enclosing_subgraphs and builder.state:
        where = f"{file.name} subgraph {enclosing_subgraphs[-1]}"
        raise UnsupportedError(
            "a layer with state inside of control flow is not supported", where=where, hint=STATE_INSIDE
        )
    variables = builder.variables
    handed = {
        k: variables.keys_by_handle[index] for k, index in enumerate(file.outputs) if index in variables.keys_by_handle
    }
    graph = make_gated_nodes_conditional(builder.finish_graph(name), builder.gates)
    return ControlSubgraph(graph, tuple(variables.start_values), tuple(variables.assigned_variables), handed)


def tensor_names(data: bytes, file_name: str = "model.tflite") -> dict[int, str]:
    """Return the names of all tensors of the main subgraph, by tensor index. Equal names in the file are made
    unique."""
    return dict(enumerate(TfliteFile(data, file_name).names))


def _convert_operators(builder: TfliteGraphBuilder, operators: list[Operator]) -> list[str]:
    """Convert operators in order; return one error line for each operator that cannot be converted.

    The outputs of such an operator get the types that the file declares, to check later operators too. These types may
    be wrong. A ModelError after the first refusal may therefore be a consequence: it ends the loop and is not
    reported."""
    refusals: list[str] = []
    for operator in operators:
        converter = CONVERTERS[operator.code]
        context = OpContext(operator, builder, _operator_location(builder.file, operator), converter.options_table)
        try:
            _check_output_dtype(context, converter.dtypes)
            converter.convert(context)
        except UnsupportedError as error:
            refusals.append(_format_refusal_line(builder.file, operator, error.what, error.hint))
            builder.define_declared_outputs(operator.outputs)
        except ModelError:
            if not refusals:
                raise
            break
    return refusals


def _check_output_dtype(context: OpContext, dtypes: tuple[str, ...]) -> None:
    """Refuse the operator unless the first output has one of the dtypes that its converter supports; empty for all."""
    if dtypes and context.output_dtype() not in dtypes:
        context.refuse(
            f"output: dtype {context.output_dtype()} is not supported",
            f"convert the output to one of {', '.join(dtypes)}",
        )


def _format_refusal_line(file: TfliteFile, operator: Operator, reason: str, help_text: str) -> str:
    """Return the error line of an operator that cannot be converted: ``#index name OP (dtype): reason (help:
    hint)``."""
    indices = [index for index in (*operator.outputs, *operator.inputs) if index >= 0]
    dtype = file.tensor(indices[0]).type.dtype if indices else "no tensors"
    name = _operator_location(file, operator).name
    line = f"  #{operator.index} {name} {operator.code} ({dtype})" + (f": {reason}" if reason else "")
    return f"{line} (help: {help_text})" if help_text else line


def _operator_location(file: TfliteFile, operator: Operator) -> Loc:
    """Return an operator's location in the file. Its name is that of the operator's first output, or first input."""
    indices = [index for index in (*operator.outputs, *operator.inputs) if index >= 0]
    return Loc(file.name, operator.index, file.names[indices[0]] if indices else "")
