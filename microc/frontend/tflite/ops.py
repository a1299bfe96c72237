"""The spelling table: every TFLite operator that has a spelling in our vocabulary."""

from __future__ import annotations

from microc.frontend.tflite import compressed as tflite_compressed
from microc.frontend.tflite import control as tflite_control
from microc.frontend.tflite import conversions as tflite_conversions
from microc.frontend.tflite import detection as tflite_detection
from microc.frontend.tflite import elementwise as tflite_elementwise
from microc.frontend.tflite import frames as tflite_frames
from microc.frontend.tflite import images as tflite_images
from microc.frontend.tflite import known as tflite_known
from microc.frontend.tflite import landmarks as tflite_landmarks
from microc.frontend.tflite import logic as tflite_logic
from microc.frontend.tflite import lstm as tflite_lstm
from microc.frontend.tflite import matmul as tflite_matmul
from microc.frontend.tflite import mediapipe as tflite_mediapipe
from microc.frontend.tflite import neural as tflite_neural
from microc.frontend.tflite import periods as tflite_periods
from microc.frontend.tflite import places as tflite_places
from microc.frontend.tflite import recurrent as tflite_recurrent
from microc.frontend.tflite import reductions as tflite_reductions
from microc.frontend.tflite import rnn as tflite_rnn
from microc.frontend.tflite import segments as tflite_segments
from microc.frontend.tflite import shapes as tflite_shapes
from microc.frontend.tflite import signal as tflite_signal
from microc.frontend.tflite import slices as tflite_slices
from microc.frontend.tflite import spectra as tflite_spectra
from microc.frontend.tflite import variables as tflite_variables
from microc.frontend.tflite import volumes as tflite_volumes
from microc.frontend.tflite.spelling import Spelling
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
        **tflite_landmarks.SPELLINGS,
        **tflite_logic.SPELLINGS,
        **tflite_matmul.SPELLINGS,
        **tflite_mediapipe.SPELLINGS,
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
