"""The arguments of commands that talk to a board: which project, which line. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from microc.cli import values
from microc.cli.model_options import compile_options


def source_options(
    command: ArgumentParser, meaning: str = "a project, or a model to compile and build on the fly"
) -> None:
    """A project or a model, and how to reach the board that runs it."""
    command.add_argument(
        "source", type=Path, nargs="?", metavar="DIR|MODEL", help=f"{meaning} (default: microc.toml's)"
    )
    command.add_argument(
        "--network", default="", metavar="NAME", help="which one of a project of several (default: the first)"
    )
    device_options(command)
    compile_options(command)


def input_options(command: ArgumentParser, meaning: str) -> None:
    """One set of inputs, as arrays or pictures."""
    command.add_argument(
        "--input", dest="inputs", type=Path, action="append", default=[], metavar="X.npy|PICTURE", help=meaning
    )
    command.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"),
        help="the reals that pixels of 0 and 255 of a picture stand for (default: inputs of 8 bits take pixels in order, "
        "others take 0 to 1)",
    )  # fmt: skip


def device_options(command: ArgumentParser) -> None:
    """Port, rates, patience."""
    group = command.add_argument_group("the board's line")
    group.add_argument(
        "--port",
        default="",
        help="serial port, socket://HOST:PORT, or auto: by the board's USB ids "
        "(default: the emulator, a process, or auto for hardware)",
    )
    group.add_argument(
        "--baud",
        type=values.bauds,
        default=(),
        metavar="RATE,...",
        help="rates to try in turn, or auto (default: the board's)",
    )
    group.add_argument(
        "--timeout",
        type=values.seconds,
        default=10.0,
        metavar="SECONDS",
        help="without an answer, or without the line, after which to give up (default: 10)",
    )
