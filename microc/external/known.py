"""The backends that there are: those of the wheel, which plugins extend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from microc.sealed import Later, Registry

if TYPE_CHECKING:
    from microc.external.backend import Backend

BACKENDS: Registry[Backend] = Registry(
    "a backend",
    {
        "cmsis-nn": Later("microc.external.cmsis_nn", "BACKEND"),
        "cblas": Later("microc.external.blas", "BACKEND"),
        "ethos-u": Later("microc.external.ethos_u", "BACKEND"),
    },
)
"""Every backend by what ``--external`` calls it: :attr:`Backend.name`."""
