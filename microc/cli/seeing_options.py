"""The arguments of ``microc report``, ``compare`` and ``watch``. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

from microc.cli import values
from microc.cli.board_options import source_options
from microc.cli.model_options import compile_options

Adder = Callable[..., ArgumentParser]


class SeeingArguments(Namespace):
    """What these commands read beside what others have."""

    verified: Path | None
    before: Path
    after: Path
    from_board: bool
    every: float
    runs: int
    http: int
    browser: bool


def seeing_commands(add: Adder, model: str) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command; ``model``: what a model may be."""
    _report(add, model)
    _compare(add, model)
    _watch(add)


def _report(add: Adder, model: str) -> None:
    command = add(
        "report",
        "tell what a network costs on a board, layer by layer, from estimates: no board is asked, no compiler needed",
        "model.tflite --board netduinoplus2",
        "model.tflite --board netduinoplus2 -o report.html",
        "model.tflite --board netduinoplus2 --verified verify.json -o report.html",
        "firmware -o report.json",
    )
    command.add_argument(
        "source", type=Path, nargs="?", metavar="MODEL|DIR", help=f"{model}, or a project (default: microc.toml's)"
    )
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it as a page (.html) or as data (.json)"
    )
    verified_option(command)
    compile_options(command)


def verified_option(command: ArgumentParser) -> None:
    """What was verified of the network."""
    command.add_argument(
        "--verified",
        type=Path,
        metavar="F.json|DIR",
        help="show the accuracy that `microc verify --json` printed, or that is in a folder of --evidence",
    )


def _compare(add: Adder, model: str) -> None:
    command = add(
        "compare",
        "tell what has changed between two reports, pages, projects or models: in all, and by layer",
        "before.json after.json",
        "before.html after.html --html compared.html",
        "float.onnx int8.tflite --board netduinoplus2",
    )
    given = f"a report (.json or .html), a project, or {model}"
    command.add_argument("before", type=Path, metavar="BEFORE", help=given)
    command.add_argument("after", type=Path, metavar="AFTER", help="the same")
    command.add_argument("--html", type=Path, metavar="F.html", help="write the report of AFTER, compared with BEFORE")
    compile_options(command)


def _watch(add: Adder) -> None:
    command = add(
        "watch",
        "show what goes into a network on a board and what comes out, live: a page that this computer alone can open",
        "firmware --data test.npz --labels labels",
        "firmware --from-board --port auto --every 0.2",
        "model.tflite --board netduinoplus2 --no-browser",
        "firmware --data recordings --runs 100 --json",
    )
    source_options(command)
    group = command.add_argument_group("what is run")
    group.add_argument(
        "--data", type=Path, metavar="PATH", help="samples, in a loop, as verify takes them (default: random numbers)"
    )
    group.add_argument(
        "--labels", default="", metavar="NAME|FILE", help="class numbers of the samples, shown beside the answers"
    )
    group.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"), help="the reals that pixels of 0 and 255 stand for"
    )
    group.add_argument(
        "--from-board", action="store_true", help="send nothing: run on what the firmware itself puts into the inputs"
    )
    group.add_argument(
        "--every", type=values.seconds, default=0.5, metavar="SECONDS", help="from run to run, at least (default: 0.5)"
    )
    group.add_argument("--runs", type=_runs, default=0, metavar="N", help="end after so many (default: at Ctrl-C)")
    group.add_argument("--seed", type=int, default=20, help="of the random inputs (default: 20)")
    group = command.add_argument_group("the page")
    group.add_argument(
        "--http", type=_port, default=0, metavar="PORT", help="its port on 127.0.0.1 (default: a free one)"
    )
    group.add_argument("--no-browser", dest="browser", action="store_false", help="print its address, open nothing")


def _runs(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ArgumentTypeError(f"{text!r} is no number of runs")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ArgumentTypeError(f"{text!r} is no port: write a number from 1 to 65535")
    return int(text)
