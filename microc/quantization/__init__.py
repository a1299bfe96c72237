"""From a float network to an integer one that is as good: ``microc.quantize``.

    found = microc.quantize("model.onnx", calibration)             # arrays, a generator, a folder of pictures or sounds, a table
    found.save("model.mcg")                                        # or .onnx: QDQ, which ONNX Runtime runs to the same integers
    network = microc.compile(found.graph, board="nucleo-l476rg")

The way: the float graph is normalised (:mod:`.prepare`), its activations are observed on the data (:mod:`.observe`), it is
decided where it becomes integers (:mod:`.places`) of which ranges (:mod:`.ranges`, :mod:`.weights`), and all of it is
written as ``dequantize -> operator -> quantize``, of which the compiler makes integer operators (:mod:`.write`).

``microc.fake_quantize`` makes a PyTorch module of that, which trains (:mod:`.training`).
"""

from microc.quantization.fake_quantization import fake_quantize
from microc.quantization.quantization_steps import Quantized, quantize

__all__ = ("Quantized", "fake_quantize", "quantize")
