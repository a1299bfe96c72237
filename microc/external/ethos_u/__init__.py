"""Arm's Ethos-U, an accelerator of integer networks beside a Cortex-M: regions of a network go through Arm's compiler Vela
(``pip install 'microc[ethos-u]'``) to a stream of its commands, which Arm's driver runs.

``configuration`` is what user and board say of the accelerator, ``vela`` runs the compiler, ``stream`` checks what it made,
``region`` is the C around it, ``driver`` what calls Arm's driver and sets it up.
"""

from microc.external.backend import Backend
from microc.external.ethos_u.accelerator import NAME, folder_of, on_board
from microc.external.ethos_u.driver import given, unconfigured

BACKEND = Backend(
    NAME,
    (),
    open=unconfigured,
    given=given,
    folder=folder_of,
    on=lambda place, target: on_board(place, target.npu),
)

__all__ = ["BACKEND"]
