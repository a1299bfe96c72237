"""CMSIS-NN (https://github.com/ARM-software/CMSIS-NN), from the user's own copy: the layers of int8 and
int16 networks on Cortex-M.

``library`` finds a copy and what of it is needed; ``layers``, ``windows``, ``recurrent`` and ``lstm`` say what its functions
compute, ``workspace`` what they need for it, ``rows`` of which layers they do not.
"""

from microc.external.backend import Backend, Entry
from microc.external.cmsis_nn import layers, lstm, recurrent, windows
from microc.external.cmsis_nn.library import HEADER, NAME, open_copy
from microc.graph.match import P

BACKEND = Backend(
    NAME,
    (
        Entry("conv2d", P.op("conv2d"), layers.convolution, layers.check_convolution),
        Entry("dense", P.op("dense"), layers.dense, layers.check_dense),
        Entry("avg_pool2d", P.op("avg_pool2d"), windows.pool, windows.check_pool),
        Entry("max_pool2d", P.op("max_pool2d"), windows.pool, windows.check_pool),
        Entry("add", P.op("add"), windows.add, windows.check_add),
        Entry("softmax", P.op("softmax"), windows.softmax, windows.check_softmax),
        Entry("lstm", P.op("lstm"), lstm.lstm, lstm.check_lstm),
        Entry("svdf", P.op("svdf"), recurrent.svdf, recurrent.check_svdf),
    ),
    open=open_copy,
    headers=(HEADER,),
)

__all__ = ["BACKEND"]
