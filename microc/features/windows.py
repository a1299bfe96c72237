"""Windows by name, as ``scipy.signal.get_window`` and ``librosa`` have them.

Periodic windows (the default, for spectra) are those of one sample more without the last. Source: Harris, *On the use of windows
for harmonic analysis with the discrete Fourier transform*, 1978.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.errors import UsageError, suggestion

COSINES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "rectangular": (1.0,),
        "hann": (0.5, 0.5),
        "hamming": (0.54, 0.46),
        "blackman": (0.42, 0.5, 0.08),
        "nuttall": (0.3635819, 0.4891775, 0.1365995, 0.0106411),
        "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
        "flattop": (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
    }
)
"""Coefficients a of sum_j (-1)**j a[j] cos(2 pi j n / N)."""


def window(name: str, length: int, periodic: bool = True) -> Array:
    """A window of ``length`` samples, float64. UsageError for a name that is none of :data:`COSINES`."""
    if name not in COSINES:
        raise UsageError(f"there is no window {name!r}", hint=suggestion(name, COSINES, "windows"))
    if length == 1:
        return np.ones(1)
    turn = 2 * np.pi * np.arange(length) / (length if periodic else length - 1)
    made: Array = np.sum([(-1) ** j * a * np.cos(j * turn) for j, a in enumerate(COSINES[name])], axis=0)
    return made
