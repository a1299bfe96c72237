"""The arguments of ``microc quantize``. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from microc.cli.model_options import reading_options
from microc.cli.values import layer_bits, seconds, share, size

Adder = Callable[..., ArgumentParser]
_DATA = ".npz or .npy, a table, or a folder of .npy files, pictures or sounds (.wav), perhaps in folders by class"


def quantizing_command(add: Adder, model: str) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command; ``model`` says what a model may be."""
    command = add(
        "quantize",
        "make an integer network of a float one, and say how good it is",
        "model.onnx --data calibration.npz -o model.mcg",
        "model.onnx --data images/ --pixels -1 1 --eval test/ --board nucleo-l476rg -o model.mcg --html report.html",
        "model.keras --data train.npz --labels y --activations int16 -o model.mcg",
        "model.onnx --data calibration.npz --weights 4 --block 32 -o model.onnx",
        "model.onnx --data calibration.npz --flash 48K --board nucleo-l476rg -o model.mcg",
        "model.onnx --data train.npz --eval test.npz --labels y --max-drop 1% --board nucleo-l476rg -o model.mcg",
    )
    command.add_argument("model", type=Path, metavar="MODEL", help=model)
    command.add_argument(
        "--data", type=Path, required=True, metavar="DATA", help=f"typical inputs, some tens to some hundreds: {_DATA}"
    )
    command.add_argument(
        "--eval", dest="evaluation", type=Path, metavar="DATA",
        help="what both networks are compared on (default: the calibration data)",
    )  # fmt: skip
    command.add_argument(
        "--labels", default="", metavar="NAME", help="the array, column or file of class numbers (default: folders)"
    )
    command.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"), help="the numbers that pixels of 0 and of 255 become"
    )
    command.add_argument(
        "--activations", choices=("int8", "uint8", "int16"), default="int8", help="their type (default: int8)"
    )
    command.add_argument(
        "--weights", type=int, choices=(8, 4, 2), default=8, metavar="BITS", help="8, 4 or 2 bits (default: 8)"
    )
    command.add_argument(
        "--block", type=int, choices=(0, 16, 32, 64), default=0, metavar="INPUTS",
        help="inputs that share a multiplier in weights of 4 or 2 bits: 16, 32 or 64 (default: 0, none do)",
    )  # fmt: skip
    command.add_argument(
        "--scales", choices=("any", "power-of-two"), default="any", help="of all that is stored (default: any)"
    )
    _mixing(command)
    command.add_argument(
        "--ranges", choices=("auto", "minmax", "percentile", "mse", "entropy", "moving-average"), default="auto",
        help="how ranges are estimated (default: for each value by what causes the least error)",
    )  # fmt: skip
    command.add_argument(
        "--board", default="", help="say what the network costs on it, before and after: a name (microc boards) or file"
    )
    command.add_argument(
        "--html", type=Path, metavar="F.html", help="write a report: accuracy, layers, the front, what to try next"
    )
    command.add_argument("--full", action="store_true", help="show all rows of long tables")
    command.add_argument("--seed", type=int, default=0, help="of what is drawn at random (default: 0)")
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the graph file, model.mcg say"
    )
    reading_options(command)


def _mixing(command: ArgumentParser) -> None:
    """Layers of different bits, named or found."""
    command.add_argument(
        "--layer", dest="layers", type=layer_bits, action="append", default=[], metavar="NAME=BITS",
        help="one layer's bits: 8, 4, 2 of its weights; 16: of its activations; 32: floats; may be given several times",
    )  # fmt: skip
    command.add_argument(
        "--float-layer", dest="float_layers", action="append", default=[], metavar="NAME",
        help="a layer that stays in floats; may be given several times",
    )  # fmt: skip
    command.add_argument(
        "--weight-only", dest="weight_only", action="append", default=[], metavar="NAME|all",
        help="a layer that computes in floats on integer weights, or all; may be given several times",
    )  # fmt: skip
    command.add_argument(
        "--dynamic-range", dest="dynamic_range", action="append", default=[], metavar="NAME|all",
        help="a layer that quantises its data when they are there, row by row, or all; may be given several times",
    )  # fmt: skip
    limits = command.add_argument_group("limits, for which bits of layers are searched (docs/quantisation.md)")
    limits.add_argument("--flash", type=size, metavar="BYTES", help="flash of a firmware for --board: 65536 or 64K")
    limits.add_argument("--ram", type=size, metavar="BYTES", help="its RAM")
    limits.add_argument(
        "--time", type=seconds, metavar="SECONDS", help="a run, by the cost model and the board's clock"
    )
    limits.add_argument(
        "--max-drop", type=share, metavar="SHARE",
        help="what accuracy may lose, 1%% or 0.01 for a point: the least flash that keeps it is found",
    )  # fmt: skip
