# SPDX-License-Identifier: Apache-2.0
"""The backend for Arm's Ethos-U, an accelerator of integer networks that is attached to a Cortex-M.

Arm's compiler Vela (``pip install "microc[ethos-u]"``) compiles regions of a network to command streams, which Arm's
driver passes to the accelerator. ``accelerator`` parses the backend's configuration and checks command streams;
``vela`` runs the compiler; ``driver`` generates the C code that calls Arm's driver, and the code that sets the driver
up.
"""

from microc.external.backend import Backend
from microc.external.ethos_u.accelerator import NAME, add_board_facts, driver_folder_of
from microc.external.ethos_u.driver import configured_backend, require_configuration

BACKEND = Backend(
    NAME,
    (),
    open=require_configuration,
    given=configured_backend,
    folder=driver_folder_of,
    on=lambda user_configuration, target: add_board_facts(user_configuration, target.npu),
)

__all__ = ["BACKEND"]
