# SPDX-License-Identifier: Apache-2.0
"""A wake word in a recording: raw samples go to a board piece by piece, as from a microphone, and the board says what it heard.

    python examples/wake_word/run.py [RECORDING.wav] [--board mps2-an386] [--port PORT]

The network comes with the package pymicro-wakeword (Apache-2.0). Features are computed on the board.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import wave
from collections import deque
from pathlib import Path

import numpy as np

import microc
from microc import features
from microc.run.board_project import build_project, open_project

HERE = Path(__file__).parent
RATE = 16_000
BAR = 40


def model_of(name: str) -> tuple[Path, float, int]:
    """A network of the package: its file, the mean probability that counts as heard, and over how many steps it is taken."""
    spec = importlib.util.find_spec("pymicro_wakeword")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "models"
    settings = json.loads((folder / f"{name}.json").read_text())["micro"]
    return folder / f"{name}.tflite", settings["probability_cutoff"], settings["sliding_window_size"]


def samples(recording: Path) -> np.ndarray:
    """The sound of a recording: int16."""
    with wave.open(str(recording)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{recording}: 16 kHz, one channel, 16 bits are needed")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, nargs="?", default=HERE / "okay_nabu.wav")
    parser.add_argument("--word", default="okay_nabu")
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    arguments = parser.parse_args()
    model, cutoff, steps = model_of(arguments.word)
    listener = features.join(features.MicroFrontend(), model)  # samples, features, network: one graph
    with tempfile.TemporaryDirectory() as folder:
        project = open_project(microc.compile(listener, board=arguments.board).write(Path(folder) / "wake_word"))
        build_project(project)
        with microc.Device(project, arguments.port) as device:
            listen(device, arguments.recording, cutoff, steps)


def listen(device: microc.Device, recording: Path, cutoff: float, steps: int) -> None:
    """Feed the board, which keeps what it heard before as its state, and show what it thinks."""
    hop, answer = device.inputs[0]["shape"][1], device.outputs[0]
    sound = samples(recording)
    recent: deque[float] = deque(maxlen=steps)
    heard = False
    for end in range(hop, len(sound) + 1, hop):
        result = np.asarray(device.run(sound[None, end - hop : end])).item()
        recent.append(answer["scale"] * (result - answer["zero_point"]))
        mean = sum(recent) / steps
        new = mean > cutoff and not heard
        heard = heard or new
        print(f"{end / RATE:5.2f} s  {'#' * round(BAR * mean):{BAR}}  {mean:4.2f}{'  heard!' if new else ''}")
    print("the word is there" if heard else "the word is not there")


if __name__ == "__main__":
    main()
