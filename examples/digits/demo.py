"""The digits network on an emulated microcontroller, from the model file to answers over the serial line.

    python examples/digits/demo.py [BOARD]

Compiles digits_int8.tflite to C, builds the firmware, boots it, sends it the held-back test images one by one and reads back
its answers; then says how often it was right, what memory it takes and where the time goes. Ends with exit code 1 when it is
right less often than the reference (TFLite Micro on this computer, see train.py).
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import microc
from microc.errors import MicrocError

HERE = Path(__file__).resolve().parent
MODEL = HERE / "digits_int8.tflite"
BOARD = "netduinoplus2"
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
SHOWN, PER_ROW = 8, 4
SEED = 3
SHADES, PLAIN_SHADES = " ░▒▓█", " .+%@"


def main() -> int:
    board = sys.argv[1] if len(sys.argv) > 1 else choose_board()
    try:
        return demonstrate(board)
    except MicrocError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def choose_board() -> str:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        print(
            f"{' and '.join(missing)} not found: using this computer instead of the emulated board (`microc doctor` helps)"
        )
        return "host"
    return BOARD


def demonstrate(board: str) -> int:
    images, labels = test_set()
    with tempfile.TemporaryDirectory(prefix="microc-demo-") as folder:
        begin = time.monotonic()
        program = microc.compile(MODEL, board=board)
        project = microc.open_project(program.write(folder))
        compiled = time.monotonic()
        sizes = microc.build(project).sizes
        built = time.monotonic()
        report = program.report()
        print(f"\n  {MODEL.name}: {report['kernels']} kernels, {report['macs']:,} multiply-accumulates")
        print(f"  {program.board.title}")
        print(f"  compiled to C in {compiled - begin:.1f} s, built in {built - compiled:.1f} s; booting\n")
        with microc.Device(project) as device:
            answers, seconds = classify(device, images, labels)
            device.set_inputs(images[0])
            ticks, stats = device.kernel_ticks(), device.stats()
            show_layers(device, ticks)
    right = int(np.sum(answers == labels))
    needed = json.loads((HERE / "reference.json").read_text())[MODEL.name]
    accuracy = right / len(labels)
    passed = accuracy >= needed
    stack = f"{stats.stack_bytes:,} bytes deep at most" if stats.stack_bytes else "not measured"
    print(f"  accuracy   {right} of {len(labels)}, {100 * accuracy:.2f} %; the reference has {100 * needed:.2f} %")
    print(f"  flash      {sizes.flash:,} bytes, {report['weight_bytes']:,} of them weights and tables")
    print(f"  RAM        {sizes.ram:,} bytes, {report['arena']:,} of them arena; stack {stack}")
    print(f"  line       {len(labels)} images in {seconds:.1f} s, {stats.bad_frames} damaged frames")
    print(f"\n  {'passed' if passed else 'FAILED: less accurate than the reference'}\n")
    return 0 if passed else 1


def test_set() -> tuple[Any, Any]:
    """Shuffled images as int8 (n, 1, 8, 8, 1), quantised as the network's input is, and their labels."""
    with np.load(HERE / "digits_test.npz") as data:
        order = np.random.default_rng(SEED).permutation(len(data["labels"]))
        pixels, labels = data["images"][order], data["labels"][order]
    return (np.round(pixels / 16 * 255) - 128).astype(np.int8)[:, None], labels


def classify(device: microc.Device, images: Any, labels: Any) -> tuple[Any, float]:
    """The board's answer to every image, and how long it took; the first few are drawn."""
    answers = np.zeros(len(images), np.int64)
    drawn: list[tuple[Any, str]] = []
    begin = time.monotonic()
    for k, image in enumerate(images):
        scores = device.run(image)
        assert isinstance(scores, np.ndarray)
        answers[k] = scores.argmax()
        if k < SHOWN:
            sure = 100 * (int(scores.max()) + 128) / 256
            verdict = "right" if answers[k] == labels[k] else f"wrong: {labels[k]}"
            drawn.append((image, f"{answers[k]} ({sure:.0f} %) {verdict}"))
            if len(drawn) == PER_ROW:
                draw(drawn)
                drawn.clear()
        elif sys.stdout.isatty() and (k % 10 == 0 or k + 1 == len(images)):
            right = int(np.sum(answers[: k + 1] == labels[: k + 1]))
            print(f"\r  image {k + 1} of {len(images)}: {right} right", end="", flush=True)
    if sys.stdout.isatty():
        print("\r" + " " * 50 + "\r", end="")
    return answers, time.monotonic() - begin


def draw(pictures: list[tuple[Any, str]]) -> None:
    """Images side by side, two characters a pixel, each above its caption."""
    shades = SHADES if (sys.stdout.encoding or "").lower().startswith("utf") else PLAIN_SHADES
    levels = [(image.reshape(8, 8).astype(int) + 128) * len(shades) // 256 for image, _ in pictures]
    for row in range(8):
        print("  " + "  ".join("".join(2 * shades[level] for level in one[row]) for one in levels).rstrip())
    print("  " + "  ".join(f"{caption:16}" for _, caption in pictures).rstrip() + "\n")


def show_layers(device: microc.Device, ticks: tuple[int, ...]) -> None:
    """Time by layer. Emulation counts instructions, not cycles."""
    numbers, unit = [device.clock.amount(t) for t in ticks], device.clock.unit
    layers = [k["layer"].split(" ", 1)[-1] for k in device.kernels]
    width = max(map(len, layers))
    print(f"  {'layer':{width}}  {unit:>12}      MACs")
    for layer, kernel, number in zip(layers, device.kernels, numbers, strict=True):
        bar = "#" * round(30 * number / max(*numbers, 1))
        print(f"  {layer:{width}}  {number:12,}  {kernel['macs']:8,}  {bar}")
    macs = sum(kernel["macs"] for kernel in device.kernels)
    print(f"  {'one image':{width}}  {sum(numbers):12,}  {macs:8,}\n")


if __name__ == "__main__":
    sys.exit(main())
