"""The spelling table: every TFLite operator that has a spelling in our vocabulary."""

from __future__ import annotations

from microc.frontend import (
    tflite_compressed,
    tflite_control,
    tflite_conversions,
    tflite_detection,
    tflite_elementwise,
    tflite_frames,
    tflite_images,
    tflite_known,
    tflite_logic,
    tflite_lstm,
    tflite_matmul,
    tflite_neural,
    tflite_periods,
    tflite_places,
    tflite_recurrent,
    tflite_reductions,
    tflite_rnn,
    tflite_segments,
    tflite_shapes,
    tflite_signal,
    tflite_slices,
    tflite_spectra,
    tflite_variables,
    tflite_volumes,
)
from microc.frontend.tflite_spelling import Spelling
from microc.sealed import Registry

SPELLINGS: Registry[Spelling] = Registry(
    "a TFLite operator",
    {
        **tflite_compressed.SPELLINGS,
        **tflite_control.SPELLINGS,
        **tflite_conversions.SPELLINGS,
        **tflite_detection.SPELLINGS,
        **tflite_elementwise.SPELLINGS,
        **tflite_frames.SPELLINGS,
        **tflite_images.SPELLINGS,
        **tflite_known.SPELLINGS,
        **tflite_logic.SPELLINGS,
        **tflite_matmul.SPELLINGS,
        **tflite_neural.SPELLINGS,
        **tflite_periods.SPELLINGS,
        **tflite_places.SPELLINGS,
        **tflite_lstm.SPELLINGS,
        **tflite_recurrent.SPELLINGS,
        **tflite_reductions.SPELLINGS,
        **tflite_rnn.SPELLINGS,
        **tflite_segments.SPELLINGS,
        **tflite_shapes.SPELLINGS,
        **tflite_signal.SPELLINGS,
        **tflite_slices.SPELLINGS,
        **tflite_spectra.SPELLINGS,
        **tflite_variables.SPELLINGS,
        **tflite_volumes.SPELLINGS,
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
