"""The TFLite reader: a flatbuffer becomes a Graph spelled in our operators, quantisation on the types.

What a TFLite operator means is written in the spelling tables (``tflite_ops``); how the bytes are read safely, in
``tflite_file``. Nothing is optimised here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_NESTED
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.build import STATE_INSIDE, Builder
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.frontend.tflite.inside import Inside
from microc.frontend.tflite.ops import SPELLINGS, hint
from microc.frontend.tflite.periods import gated
from microc.graph.ir import Graph, Loc


def read(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """The network in ``data``, a whole TFLite file.

    ``file_name`` names it in errors, locations and (its stem) the graph. ``input_shapes`` binds the unknown extents of
    inputs by name; an unknown batch (axis 0) is 1 unless given. Values are named as the file's tensors
    (:func:`tensor_names`); values that spelling adds have names of their own.

    Raises ModelError where the file is corrupt or contradicts itself, UnsupportedError with one line for every
    operator that has no spelling, UsageError where ``input_shapes`` does not fit the inputs.
    """
    return _read(TfliteFile(data, file_name), PurePath(file_name).stem, input_shapes, (), None, {}).graph


def _read(
    file: TfliteFile,
    name: str,
    input_shapes: Mapping[str, tuple[int, ...]],
    around: tuple[int, ...],
    outer: Builder | None,
    handles: Mapping[int, str],
) -> Inside:
    """A subgraph of a file; ``around`` are the subgraphs that it is inside of, ``outer`` is the last of them, and ``handles``
    are its inputs that stand for variables."""

    def subgraph(index: int, given: Mapping[int, str]) -> Inside:
        if index in around:
            raise ModelError(f"subgraph {index} is inside itself", where=file.name)
        if len(around) >= MAX_NESTED:
            raise ModelError(f"subgraphs are nested more than {MAX_NESTED} deep", where=file.name)
        return _read(file.subgraph(index), f"{name}_{index}", {}, (*around, index), builder, given)

    operators = [file.operator(index) for index in range(file.operator_count)]
    refusals = [line for line in (_unknown(file, operator) for operator in operators) if line]
    if not refusals:
        builder = Builder(file, input_shapes, subgraph, outer, handles)
        refusals = _spell_all(builder, operators)
    if refusals:
        count = f"{len(refusals)} operator{'s are' if len(refusals) > 1 else ' is'} not supported"
        raise UnsupportedError("\n".join((f"{count}:", *refusals)), where=file.name)
    if around and builder.state:
        where = f"{file.name} subgraph {around[-1]}"
        raise UnsupportedError("a layer with a state inside of control flow", where=where, hint=STATE_INSIDE)
    variables = builder.variables
    handed = {k: variables.handles[index] for k, index in enumerate(file.outputs) if index in variables.handles}
    graph = gated(builder.graph(name), builder.gates)
    return Inside(graph, tuple(variables.states), tuple(variables.assigned), handed)


def tensor_names(data: bytes, file_name: str = "model.tflite") -> dict[int, str]:
    """The value name of every tensor of the main subgraph, by its index in the file; one to one."""
    return dict(enumerate(TfliteFile(data, file_name).names))


def _spell_all(builder: Builder, operators: list[Operator]) -> list[str]:
    """Spell operators in order; the lines of those that refuse, or whose dtypes no kernel has.

    After a refusal the operator's outputs count as the file declares them, so that later operators can be judged; a
    contradiction met then may follow from that guess, so it ends the search and is not reported.
    """
    refusals: list[str] = []
    for operator in operators:
        application = Application(operator, builder, _location(builder.file, operator))
        try:
            _check_dtype(application)
            SPELLINGS[operator.code].spell(application)
        except UnsupportedError as error:
            refusals.append(_line(builder.file, operator, error.what, error.hint))
            builder.assume(operator.outputs)
        except ModelError:
            if not refusals:
                raise
            break
    return refusals


def _check_dtype(application: Application) -> None:
    """The first output's dtype against the spelling's, and its quantisation where integers are computed with."""
    dtypes = SPELLINGS[application.operator.code].dtypes
    if dtypes:
        dtype = application.target().type.dtype
        if dtype not in dtypes:
            application.refuse(f"{dtype} output", f"the output may be {', '.join(dtypes)}")


def _unknown(file: TfliteFile, operator: Operator) -> str:
    """The line of an operator that has no spelling, empty for one that has."""
    return "" if operator.code in SPELLINGS else _line(file, operator, "", hint(operator.code))


def _line(file: TfliteFile, operator: Operator, what: str, help_text: str) -> str:
    """One line of the list: ``#index name OP (dtype): what (help: hint)``."""
    indices = [index for index in (*operator.outputs, *operator.inputs) if index >= 0]
    dtype = file.tensor(indices[0]).type.dtype if indices else "no tensors"
    name = _location(file, operator).name
    line = f"  #{operator.index} {name} {operator.code} ({dtype})" + (f": {what}" if what else "")
    return f"{line} (help: {help_text})" if help_text else line


def _location(file: TfliteFile, operator: Operator) -> Loc:
    indices = [index for index in (*operator.outputs, *operator.inputs) if index >= 0]
    return Loc(file.name, operator.index, file.names[indices[0]] if indices else "")
