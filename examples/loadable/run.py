# SPDX-License-Identifier: Apache-2.0
"""A board that takes networks which its owner has signed: one firmware, two networks, and one that is not signed.

python examples/loadable/run.py [--board mps2-an386]
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import microc
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.toolchain import run_make
from microc.device.transport import open_transport
from microc.errors import DeviceError
from microc.run.board_project import Project, build_project, open_project, read_network_blob, send_network

HERE = Path(__file__).parent
DIGITS = HERE.parent / "digits"
KEY = b"the key of the example, not one\0"


def project(model: str, board: str, folder: Path) -> Project:
    """A network that can be loaded, with the firmware that takes it."""
    made = open_project(
        microc.compile(DIGITS / model, board=board, relocatable=True, input_dtype="float32").write(folder)
    )
    shutil.copy(HERE / "verify.c", folder)
    build_project(made)
    run_make(folder, ["EXTRA_SOURCES=verify.c"])  # the firmware with our own check of signatures
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", default="mps2-an386")
    arguments = parser.parse_args()
    with np.load(DIGITS / "digits_test.npz") as data:
        pixels, labels = data["images"][:4], data["labels"][:4]
    with tempfile.TemporaryDirectory() as place:
        both = [
            project(model, arguments.board, Path(place) / model) for model in ("digits_int8.tflite", "digits_qdq.onnx")
        ]
        with Emulator(both[0].board, both[0].elf) as emulator, Client(open_transport(emulator.url)) as client:
            for each in both:
                blob = read_network_blob(each)
                signature = hmac.digest(KEY, blob.pack(), hashlib.sha256)
                slots = send_network(client, replace(blob, signature=signature))
                with microc.Device.over(each, client, emulated=True) as device:
                    shape = device.inputs[0]["shape"]
                    images = (pixels / 16).astype(np.float32).reshape(-1, *shape)
                    found = [int(np.argmax(np.asarray(device.run(image)))) for image in images]
                print(f"{blob.name} in slot {'AB'[slots.active or 0]}: {found}, right are {labels.tolist()}")
            try:
                send_network(client, read_network_blob(both[0]))
            except DeviceError as error:
                print(f"without a signature: {error.what}")
            print(f"{client.model.name} still runs")


if __name__ == "__main__":
    main()
