"""A wake word in a recording: its sound goes to a board piece by piece, as from a microphone, and the board says what it heard.

    python examples/wake_word/run.py [RECORDING.wav] [--board mps2-an386] [--port PORT]

The network comes with the package pymicro-wakeword, the sound's features with pymicro-features (both Apache-2.0).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import wave
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pymicro_features import MicroFrontend

import microc
from microc.driver.measure.firmware import build, open_project

HERE = Path(__file__).parent
RATE = 16_000
STEP = 160  # samples between two rows of features: 10 ms
BAR = 40


def model_of(name: str) -> tuple[Path, float, int]:
    """A network of the package: its file, the mean probability that counts as heard, and over how many steps it is taken."""
    spec = importlib.util.find_spec("pymicro_wakeword")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "models"
    settings = json.loads((folder / f"{name}.json").read_text())["micro"]
    return folder / f"{name}.tflite", settings["probability_cutoff"], settings["sliding_window_size"]


def features(recording: Path) -> Iterator[list[float]]:
    """Rows of 40 features, one for every 10 ms of sound."""
    with wave.open(str(recording)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{recording}: 16 kHz, one channel, 16 bits are needed")
        sound = file.readframes(file.getnframes())
    frontend = MicroFrontend()
    for at in range(0, len(sound) - 2 * STEP + 1, 2 * STEP):
        row = frontend.process_samples(sound[at : at + 2 * STEP]).features
        if row:
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, nargs="?", default=HERE / "okay_nabu.wav")
    parser.add_argument("--word", default="okay_nabu")
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    arguments = parser.parse_args()
    model, cutoff, steps = model_of(arguments.word)
    with tempfile.TemporaryDirectory() as folder:
        project = open_project(microc.compile(model, board=arguments.board).write(Path(folder) / "wake_word"))
        build(project)
        with microc.Device(project, arguments.port) as device:
            listen(device, arguments.recording, cutoff, steps)


def listen(device: microc.Device, recording: Path, cutoff: float, steps: int) -> None:
    """Feed the network, which keeps what it heard before as its state, and show what it thinks."""
    given, answer = device.inputs[0], device.outputs[0]
    rows: list[list[float]] = []
    recent: deque[float] = deque(maxlen=steps)
    heard = False
    for number, row in enumerate(features(recording), 1):
        rows.append(row)
        if len(rows) < given["shape"][1]:
            continue
        stored = np.round(np.array(rows) / given["scale"] + given["zero_point"]).clip(-128, 127).astype(np.int8)
        rows.clear()
        result = np.asarray(device.run(stored.reshape(given["shape"]))).item()
        recent.append(answer["scale"] * (result - answer["zero_point"]))
        mean = sum(recent) / steps
        new = mean > cutoff and not heard
        heard = heard or new
        print(f"{number / 100:5.2f} s  {'#' * round(BAR * mean):{BAR}}  {mean:4.2f}{'  heard!' if new else ''}")
    print("the word is there" if heard else "the word is not there")


if __name__ == "__main__":
    main()
