"""The arguments of the commands that make a project, build it and run it. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from microc.cli.board_options import device_options, input_options, source_options
from microc.cli.model_options import compile_options

Adder = Callable[..., ArgumentParser]


def force_option(command: ArgumentParser) -> None:
    """``--force``."""
    command.add_argument("--force", action="store_true", help="replace the project of another network")


def project_commands(add: Adder, model: str) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command; ``model`` says what a model may be."""
    command = add(
        "new",
        "start a project: a folder with microc.toml, the model and a README, in which commands need no arguments",
        "keywords --board nucleo-f446re --model model.tflite",
        "keywords --board netduinoplus2 --model model.onnx --input-shape input=1,3,96,96 --ram 30K",
        "first --board netduinoplus2",
    )
    command.add_argument("folder", type=Path, metavar="PROJECT", help="the folder, new or empty")
    command.add_argument(
        "--model", type=Path, metavar="MODEL", help=f"{model} (default: the digits of the demonstration)"
    )
    compile_options(command)
    command = add("build", "build a project's firmware and show its memory", "firmware", "")
    command.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="a project (default: microc.toml's)")
    command = add("flash", "bring the firmware onto its board", "firmware", "firmware --runner openocd --dry-run")
    command.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="a built project (default: microc.toml's)")
    command.add_argument(
        "--runner", default="", help="how (default: the first of the board file whose program is here)"
    )
    command.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    device_options(command)
    command = add(
        "load",
        "send a network into a board whose firmware takes networks, which runs it from then on",
        "network --port /dev/ttyACM0",
        "network.bin --port /dev/ttyACM0",
        "network",
    )
    command.add_argument(
        "folder", type=Path, nargs="?", metavar="DIR|FILE",
        help="a project that was compiled with --relocatable, or the file that it is (default: microc.toml's)",
    )  # fmt: skip
    device_options(command)
    command = add(
        "run",
        "run a network on its board",
        "firmware --input x.npy --output y.npy",
        "model.tflite --board mps2-an386 --input x.npy",
        "firmware --input x.npy --port /dev/ttyACM0",
        "firmware --input cat.png",
    )
    source_options(command)
    input_options(command, "an array or a picture; once for each input, in the graph's order (default: random numbers)")
    command.add_argument("--seed", type=int, default=20, help="of the random inputs (default: 20)")
    command.add_argument(
        "--output", dest="outputs", type=Path, action="append", default=[], metavar="Y.npy",
        help="where to save an output; once for each output",
    )  # fmt: skip
