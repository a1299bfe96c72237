"""Sounds as inputs: WAV files of linear PCM, full scale as one."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from microc.dtypes import Array
from microc.errors import UsageError
from microc.reading import open_regular

SUFFIX = ".wav"


def is_sound(path: Path) -> bool:
    return path.suffix.lower() == SUFFIX


def read(path: Path) -> Array:
    """The samples (frames,), or (frames, channels) of several, in float32 from -1 to 1. UsageError for what is no linear PCM."""
    try:
        with open_regular(path) as opened, wave.open(opened, "rb") as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            data = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    except (wave.Error, EOFError) as error:
        raise UsageError(
            f"{path} is no sound that can be read: {error}", where=str(path),
            hint="WAV files of linear PCM, 8 to 32 bits, are read; or save the arrays with numpy.save",
        ) from error  # fmt: skip
    if width == 1:  # the only width without a sign
        reals = data.astype(np.float32) / 128 - 1
    else:
        wide = np.zeros((len(data) // width, 4), np.uint8)
        wide[:, 4 - width :] = data[: len(wide) * width].reshape(-1, width)
        reals = (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    return reals if channels == 1 else reals[: len(reals) // channels * channels].reshape(-1, channels)
