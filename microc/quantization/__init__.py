# SPDX-License-Identifier: Apache-2.0
"""Post-training quantisation of float networks: ``microc.quantize``.

    quantized = microc.quantize("model.onnx", calibration)         # arrays, a generator, a folder of pictures or sounds, a table
    quantized.save("model.mcg")                                    # or .onnx: QDQ, which ONNX Runtime runs to the same integers
    network = microc.compile(quantized.graph, board="nucleo-l476rg")

Steps: the float graph is normalised (:mod:`.decisions`). The values that become integers are found
(:mod:`.quantisation_points`), and observed while the float network runs on the data (:mod:`.calibration_data`). Ranges and
scales are chosen (:mod:`.decisions`, :mod:`.integer_scheme`). Finally, each operator on integers is written as
``dequantize -> operator -> quantize``, from which the compiler generates an integer operator (:mod:`.write`).

``microc.fake_quantize`` builds a trainable PyTorch module from the result (:mod:`.training`).
"""

from microc.quantization.quantised_page import Quantized
from microc.quantization.quantization_steps import fake_quantize, quantize

__all__ = ("Quantized", "fake_quantize", "quantize")
