"""Arm's Ethos-U, an accelerator of integer networks beside a Cortex-M: regions of a network go through Arm's compiler Vela
(``pip install 'microc[ethos-u]'``) to a stream of its commands, which Arm's driver runs.

``configuration`` is what the user says of the accelerator, ``vela`` runs the compiler, ``stream`` checks what it made,
``region`` is the C around it.
"""

from microc.external.backend import Backend
from microc.external.ethos_u.configuration import NAME, folder_of
from microc.external.ethos_u.region import given, unconfigured

BACKEND = Backend(NAME, (), open=unconfigured, given=given, folder=folder_of)

__all__ = ["BACKEND"]
