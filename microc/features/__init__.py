# SPDX-License-Identifier: Apache-2.0
"""Signal processing in front of a network: filters, spectra and features of raw samples, as operators
(docs/features.md).

    front = microc.features.log_mel(n_mels=40, input_dtype="int16")
    y = front(samples)                                     # numpy: exact for integers
    graph = microc.features.join(front, "model.tflite")    # takes raw samples; microc.compile(graph, stream=1) takes hops

A :class:`Pipeline` is a list of stages, each declared by its fields: filters (:class:`Preemphasis`, :class:`Fir`,
:class:`Biquads`, :class:`Resample`), :class:`Frames`, spectra (:class:`Spectrogram`, :class:`Mel`, :class:`Bands`,
:class:`Log`, :class:`Dct`), statistics of frames (:class:`Statistics`, :class:`Spectral`), and normalisation
(:class:`Normalise`, :class:`MinMax`, :class:`Pcen`).
"""

from microc.features.declared_features import Declared, join, read
from microc.features.feature_pipeline import MicroFrontend, Pipeline, log_mel, mfcc, spectrogram
from microc.features.filters import Biquads, Fir, Preemphasis, Resample, Stage
from microc.features.spectral import Bands, Dct, Frames, Log, Mel, Spectrogram
from microc.features.statistics import MinMax, Normalise, Pcen, Spectral, Statistics

__all__ = [
    "Bands",
    "Biquads",
    "Dct",
    "Declared",
    "Fir",
    "Frames",
    "Log",
    "Mel",
    "MicroFrontend",
    "MinMax",
    "Normalise",
    "Pcen",
    "Pipeline",
    "Preemphasis",
    "Resample",
    "Spectral",
    "Spectrogram",
    "Stage",
    "Statistics",
    "join",
    "log_mel",
    "mfcc",
    "read",
    "spectrogram",
]
