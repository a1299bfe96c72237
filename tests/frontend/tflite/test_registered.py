# SPDX-License-Identifier: Apache-2.0
"""All operators that TFLite Micro registers are spelled."""

from __future__ import annotations

from microc.frontend.tflite.reader import CONVERTERS, unsupported_operator_hint

BUILTIN = """
ABS ADD ADD_N ARG_MAX ARG_MIN ASSIGN_VARIABLE AVERAGE_POOL_2D BATCH_MATMUL BATCH_TO_SPACE_ND BROADCAST_ARGS
BROADCAST_TO CALL_ONCE CAST CEIL CONCATENATION CONV_2D COS CUMSUM DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
DIV DYNAMIC_UPDATE_SLICE ELU EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FLOOR_DIV FLOOR_MOD
FULLY_CONNECTED GATHER GATHER_ND GREATER GREATER_EQUAL HARD_SWISH IF L2_NORMALIZATION L2_POOL_2D LEAKY_RELU
LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN MINIMUM
MIRROR_PAD MUL NEG NOT_EQUAL PACK PAD PADV2 PRELU QUANTIZE READ_VARIABLE REDUCE_ALL REDUCE_MAX REDUCE_MIN RELU
RELU6 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND RSQRT SELECT_V2 SHAPE SIN SLICE SOFTMAX
SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE STRIDED_SLICE SUB SUM
SVDF TANH TRANSPOSE TRANSPOSE_CONV UNIDIRECTIONAL_SEQUENCE_LSTM UNPACK VAR_HANDLE WHILE ZEROS_LIKE
"""
"""``micro_mutable_op_resolver.h`` as of August 2026."""
SIGNAL = """
Delay Energy FftAutoScale FilterBank FilterBankLog FilterBankSpectralSubtraction FilterBankSquareRoot Framer
Irfft OverlapAdd PCAN Rfft Stacker Window
"""
CUSTOM = (
    "CIRCULAR_BUFFER",
    "TFLM_DECODE",
    "TFLite_Detection_PostProcess",
    *(f"Signal{name}" for name in SIGNAL.split()),
)


def test_every_operator_of_tflite_micro_is_spelled() -> None:
    names = [*BUILTIN.split(), *(f"CUSTOM:{name}" for name in CUSTOM)]
    assert [name for name in names if name not in CONVERTERS] == []
    assert len(names) == 117


def test_the_only_one_that_is_not_is_code_for_another_chip() -> None:
    assert "Vela" in unsupported_operator_hint("CUSTOM:ethos-u") and "CUSTOM:ethos-u" not in CONVERTERS


def test_everybody_is_told_what_to_do() -> None:
    hints = {
        name: unsupported_operator_hint(name)
        for name in ("WHERE", "UNIQUE", "LSTM", "RANDOM_UNIFORM", "HASHTABLE_FIND", "CUSTOM:FlexErf", "ANY")
    }
    assert all(hints.values()) and len(set(hints.values())) == 6
