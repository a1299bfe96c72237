"""The backends that there are: those of the wheel, which plugins extend."""

from __future__ import annotations

from microc.external import blas, cmsis_nn, ethos_u
from microc.external.backend import Backend
from microc.sealed import Registry

BUILT_IN: tuple[Backend, ...] = (cmsis_nn.BACKEND, blas.BACKEND, ethos_u.BACKEND)
BACKENDS: Registry[Backend] = Registry("a backend", {backend.name: backend for backend in BUILT_IN})
"""Every backend by what ``--external`` calls it."""
