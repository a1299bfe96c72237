"""The TFLite reader: a flatbuffer becomes a Graph; the table of converters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from microc.base.immutable import Registry
from microc.errors import ModelError, UnsupportedError
from microc.frontend.budget import MAX_NESTED
from microc.frontend.tflite import operators_control as tflite_control
from microc.frontend.tflite import operators_control as tflite_variables
from microc.frontend.tflite import operators_elementwise as tflite_conversions
from microc.frontend.tflite import operators_elementwise as tflite_elementwise
from microc.frontend.tflite import operators_elementwise as tflite_logic
from microc.frontend.tflite import operators_elementwise as tflite_reductions
from microc.frontend.tflite import operators_gather as tflite_compressed
from microc.frontend.tflite import operators_gather as tflite_places
from microc.frontend.tflite import operators_gather as tflite_segments
from microc.frontend.tflite import operators_images as tflite_images
from microc.frontend.tflite import operators_images as tflite_volumes
from microc.frontend.tflite import operators_layers as tflite_matmul
from microc.frontend.tflite import operators_layers as tflite_neural
from microc.frontend.tflite import operators_mediapipe as tflite_detection
from microc.frontend.tflite import operators_mediapipe as tflite_landmarks
from microc.frontend.tflite import operators_mediapipe as tflite_mediapipe
from microc.frontend.tflite import operators_recurrent as tflite_lstm
from microc.frontend.tflite import operators_recurrent as tflite_recurrent
from microc.frontend.tflite import operators_recurrent as tflite_rnn
from microc.frontend.tflite import operators_shape as tflite_known
from microc.frontend.tflite import operators_shape as tflite_shapes
from microc.frontend.tflite import operators_shape as tflite_slices
from microc.frontend.tflite import operators_signal as tflite_frames
from microc.frontend.tflite import operators_signal as tflite_periods
from microc.frontend.tflite import operators_signal as tflite_signal
from microc.frontend.tflite import operators_signal as tflite_spectra
from microc.frontend.tflite.context import STATE_INSIDE, Application, Builder, Inside, Spelling
from microc.frontend.tflite.file import Operator, TfliteFile
from microc.frontend.tflite.operators_signal import gated
from microc.graph.ir import Graph, Loc

# ---- The spelling table: every TFLite operator that has a spelling in our vocabulary.

SPELLINGS: Registry[Spelling] = Registry(
    "a TFLite operator",
    {
        **tflite_compressed.COMPRESSED_SPELLINGS,
        **tflite_control.CONTROL_SPELLINGS,
        **tflite_conversions.CONVERSIONS_SPELLINGS,
        **tflite_detection.DETECTION_SPELLINGS,
        **tflite_elementwise.ELEMENTWISE_SPELLINGS,
        **tflite_frames.FRAMES_SPELLINGS,
        **tflite_images.IMAGES_SPELLINGS,
        **tflite_known.KNOWN_SPELLINGS,
        **tflite_landmarks.LANDMARKS_SPELLINGS,
        **tflite_logic.LOGIC_SPELLINGS,
        **tflite_matmul.MATMUL_SPELLINGS,
        **tflite_mediapipe.MEDIAPIPE_SPELLINGS,
        **tflite_neural.NEURAL_SPELLINGS,
        **tflite_periods.PERIODS_SPELLINGS,
        **tflite_places.PLACES_SPELLINGS,
        **tflite_lstm.LSTM_SPELLINGS,
        **tflite_recurrent.RECURRENT_SPELLINGS,
        **tflite_reductions.REDUCTIONS_SPELLINGS,
        **tflite_rnn.RNN_SPELLINGS,
        **tflite_segments.SEGMENTS_SPELLINGS,
        **tflite_shapes.SHAPES_SPELLINGS,
        **tflite_signal.SIGNAL_SPELLINGS,
        **tflite_slices.SLICES_SPELLINGS,
        **tflite_spectra.SPECTRA_SPELLINGS,
        **tflite_variables.VARIABLES_SPELLINGS,
        **tflite_volumes.VOLUMES_SPELLINGS,
    },
)
"""Custom operators go by ``CUSTOM:<code>``; plugins extend them for a while."""

_RECURRENT = "use LSTM cells (UNIDIRECTIONAL_SEQUENCE_LSTM), or unroll the layer when converting (Keras: unroll=True)"
_SIZE = "its result is as large as data say; give it a fixed size (top-k, a mask), or leave it to the application"
_HINTS = (
    ("CUSTOM:ethos-u", "compiled for an NPU by Vela: give microc the model as it was before"),
    ("CUSTOM:Flex", "a TensorFlow operator: convert with TFLITE_BUILTINS only, or teach it to microc with --plugin"),
    ("CUSTOM:", "a custom operator exists only in the program it was made for: teach it to microc with --plugin"),
    ("STABLEHLO_", "export through the TFLite converter instead of StableHLO"),
    ("LSTM", _RECURRENT),
    ("WHERE", _SIZE),
    ("UNIQUE", _SIZE),
    ("HASHTABLE", "tables of strings stay on the host: cut the model behind them"),
    ("RANDOM_", "give the numbers to the network as an input"),
    ("MULTINOMIAL", "give the numbers to the network as an input"),
    ("", "replace the operator in the model, or cut the model before it (--outputs)"),
)


def hint(code: str) -> str:
    """What to do about an operator that has no spelling."""
    return next(text for prefix, text in _HINTS if code.startswith(prefix))


# ---- The TFLite reader: a flatbuffer becomes a Graph spelled in our operators, quantisation on the types.
#
# What a TFLite operator means is written in the spelling tables (``tflite_ops``); how the bytes are read safely, in
# ``tflite_file``. Nothing is optimised here.


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
