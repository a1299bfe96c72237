# SPDX-License-Identifier: Apache-2.0
"""The backend for CMSIS-NN (https://github.com/ARM-software/CMSIS-NN): int8 and int16 layers on Cortex-M.

The library's sources come from a copy that the user provides. ``cmsis_library`` collects the needed files of this copy;
``weighted_layers``, ``window_layers`` and ``recurrent_layers`` check layers and generate the calls.
"""

from microc.external.backend import Backend, Entry
from microc.external.cmsis_nn import layers, recurrent_layers
from microc.external.cmsis_nn.cmsis_library import HEADER, NAME, collect_library_sources
from microc.graph.match import P

BACKEND = Backend(
    NAME,
    (
        Entry("conv2d", P.op("conv2d"), layers.generate_convolution_call, layers.check_convolution),
        Entry("dense", P.op("dense"), layers.generate_dense_call, layers.check_dense),
        Entry("avg_pool2d", P.op("avg_pool2d"), layers.generate_pool_call, layers.check_pool),
        Entry("max_pool2d", P.op("max_pool2d"), layers.generate_pool_call, layers.check_pool),
        Entry("add", P.op("add"), layers.generate_add_call, layers.check_add),
        Entry("softmax", P.op("softmax"), layers.generate_softmax_call, layers.check_softmax),
        Entry("lstm", P.op("lstm"), recurrent_layers.generate_lstm_call, recurrent_layers.check_lstm),
        Entry("svdf", P.op("svdf"), recurrent_layers.generate_svdf_call, recurrent_layers.check_svdf),
    ),
    open=collect_library_sources,
    headers=(HEADER,),
)

__all__ = ["BACKEND"]
