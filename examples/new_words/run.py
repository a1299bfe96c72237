# SPDX-License-Identifier: Apache-2.0
"""A keyword spotter learns three new words on a board, from twenty samples each, and keeps the words that it knows.

    python examples/new_words/run.py kws_ref_model.tflite [--old old_words.npz] [--board mps2-an386] [--port PORT]

espeak-ng speaks the words at different speeds and in noise. The samples that are tested have other voices.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import microc
from microc.run.learning import Learner

WORDS, KNOWN = ("computer", "window", "banana"), 12
LEARNED, TESTED, PER_CLASS = 20, 20, 4
VOICES = ("m1", "m2", "m3", "m4", "m5", "f1", "f2", "f3"), ("m6", "m7", "f4", "f5")
"""Variants of espeak-ng's voice: those of the samples to learn, and those of the tests."""
RATE, RATE_HZ, FRAME, HOP, BANDS, CEPSTRA = 0.02, 16000, 480, 320, 40, 10
HEAD = {"layers": 1, "classes": KNOWN + len(WORDS), "replay": PER_CLASS}
Reals, Integers = NDArray[np.float64], NDArray[np.int8]


# ---- Words, spoken by a machine.


def speak(word: str, voice: str, generator: np.random.Generator) -> Reals:
    """Return a second of a word with noise, 16,000 samples."""
    speed, pitch = generator.integers(120, 200), generator.integers(25, 75)
    command = ["espeak-ng", "-v", f"en-us+{voice}", "-s", str(speed), "-p", str(pitch), "--stdout", word]
    spoken = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(spoken)) as file:
        rate, data = file.getframerate(), np.frombuffer(file.readframes(-1), np.int16).astype(np.float64)
    spectrum = np.fft.rfft(data)
    count = round(len(data) * RATE_HZ / rate)
    samples = np.fft.irfft(spectrum[: count // 2 + 1], count)[:RATE_HZ]
    sound = generator.normal(0, samples.std() * generator.uniform(0.01, 0.1), RATE_HZ)
    start = generator.integers(0, RATE_HZ - len(samples) + 1)
    sound[start : start + len(samples)] += samples
    return sound


def mel_weights() -> Reals:
    """Return the weights of 257 powers in 40 bands from 20 to 4,000 Hz, as tf.signal.linear_to_mel_weight_matrix."""

    def mel(hertz: Reals) -> Reals:
        return np.asarray(1127 * np.log1p(hertz / 700))

    edges = np.linspace(mel(np.array(20.0)), mel(np.array(4000.0)), BANDS + 2)
    places = mel(np.linspace(0, RATE_HZ / 2, 257))[:, None]
    rising = (places - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - places) / (edges[2:] - edges[1:-1])
    weights = np.maximum(0, np.minimum(rising, falling))
    weights[0] = 0  # the constant part
    return weights


def features(sound: Reals, scale: float, zero_point: int) -> Integers:
    """Return 49 frames of 10 cepstra, quantised: the input of MLPerf Tiny's keyword spotter.

    https://github.com/mlcommons/tiny, benchmark/training/keyword_spotting/get_dataset.py"""
    frames = np.lib.stride_tricks.sliding_window_view(sound / sound.max(), FRAME)[::HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
    energies = np.log(np.abs(np.fft.rfft(frames * window, 512)) @ mel_weights() + 1e-6)
    cosines = np.cos(np.pi * np.outer(2 * np.arange(BANDS) + 1, np.arange(CEPSTRA)) / (2 * BANDS))
    cepstra = energies @ cosines * np.sqrt(2 / (2 * BANDS)) * np.sqrt(2)
    quantised = np.clip(np.round(cepstra / scale) + zero_point, -128, 127)
    return quantised.astype(np.int8).reshape(1, -1, CEPSTRA, 1)


def speak_words(
    voices: Sequence[str], count: int, seed: int, scale: float, zero_point: int
) -> list[tuple[Integers, int]]:
    """Return ``count`` samples of each word with their classes."""
    generator = np.random.default_rng(seed)
    return [
        (features(speak(word, voices[k % len(voices)], generator), scale, zero_point), KNOWN + number)
        for k in range(count)
        for number, word in enumerate(WORDS)
    ]


# ---- Learning.


def accuracy(learner: Learner, samples: Sequence[tuple[Integers, int]]) -> float:
    """Return the share of samples, in percent, whose class has the largest score."""
    right = [int(np.argmax(np.asarray(learner.run(x)))) == label for x, label in samples]
    return 100 * float(np.mean(right))


def teach(
    learner: Learner, new: Sequence[tuple[Integers, int]], old: Sequence[tuple[Integers, int]], epochs: int
) -> None:
    """Show samples of the known words with a rate of 0, which fills the replay buffer; then learn the new words."""
    for x, label in old:
        learner.learn(x, label, rate=0.0)
    generator = np.random.default_rng(0)
    for epoch in range(epochs):
        losses = [learner.learn(*new[k], rate=RATE) for k in generator.permutation(len(new))]
        print(f"epoch {epoch + 1}: mean loss {np.mean(losses):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="keyword spotter of MLPerf Tiny, int8")
    parser.add_argument("--old", type=Path, help=".npz of the known words: x, int8 (samples, 49, 10, 1), and classes y")
    parser.add_argument("--board", default="mps2-an386")
    parser.add_argument("--port", default="")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--tested", type=int, default=240, help="samples of the known words that are tested")
    arguments = parser.parse_args()
    model = microc.load(arguments.model)
    quant = model.types[model.inputs[0]].quant
    assert quant is not None
    scale, zero_point = float(np.ravel(quant.scale)[0]), int(np.ravel(quant.zero_point)[0])
    new = speak_words(VOICES[0], LEARNED, 1, scale, zero_point)
    tested = speak_words(VOICES[1], TESTED, 2, scale, zero_point)
    known: list[tuple[Integers, int]] = []
    if arguments.old is not None:
        with np.load(arguments.old) as data:
            known = [(x[None], int(y)) for x, y in zip(data["x"], data["y"], strict=True)]
    shown = [known[k] for c in range(KNOWN) for k in [k for k, (_, y) in enumerate(known) if y == c][:PER_CLASS]]
    others = [sample for sample in known if not any(sample is each for each in shown)][: arguments.tested]
    program = microc.compile(model, board=arguments.board, learn=HEAD)
    print(f"arena {program.report()['arena']} bytes, RAM {program.report()['ram']} bytes")
    with tempfile.TemporaryDirectory() as folder:
        project = microc.open_project(program.write(Path(folder) / "firmware"))
        microc.build(project)
        with microc.Device(project, port=arguments.port) as board:
            for when in ("before", "after"):
                print(f"{when}: {accuracy(board, tested):.1f} % of the new words", end="")
                print(f", {accuracy(board, others):.1f} % of the known words" if others else "")
                if when == "before":
                    teach(board, new, shown, arguments.epochs)


if __name__ == "__main__":
    main()
