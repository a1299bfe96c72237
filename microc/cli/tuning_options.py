"""The arguments of ``microc tune``. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from microc.cli.model_options import compile_options
from microc.cli.values import duration

Adder = Callable[..., ArgumentParser]
RECORDS = Path("tuned.jsonl")
_PLAN = """--plan names a file that is written here: what a compilation takes with these records, layer by layer.
Edit it, and give it back to microc compile --plan."""


def tuning_command(add: Adder, model: str) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command; ``model`` says what a model may be."""
    command = add(
        "tune",
        "search for faster schedules of a network's kernels, measured on a board, and keep what they took",
        "model.tflite --board mps2-an386 --records tuned.jsonl",
        "model.tflite --board nucleo-l476rg --port auto --time 10m",
        "model.tflite --board nucleo-l476rg --port /dev/ttyACM0 --port /dev/ttyACM1",
        "model.tflite --board mps2-an386 --fleet tcp://lab:8786",
        "model.onnx --target native --trials 2000 --jobs 2",
        "model.tflite --board mps2-an386 --external cmsis-nn=CMSIS-NN --records tuned.jsonl",
        "model.tflite --board mps2-an386 --space",
        "model.tflite --board mps2-an386 --trials 0 --plan plan.json",
        "--show tuned.jsonl --html page.html",
        "model.tflite --board mps2-an386 --records tuned.jsonl --repeat 0123456789ab",
        "--merge desk.jsonl lab.jsonl --records all.jsonl",
    )
    command.add_argument("model", type=Path, nargs="?", default=None, metavar="MODEL", help=model)
    command.add_argument(
        "--records", type=Path, default=RECORDS, metavar="FILE",
        help="the file of records, which grows; microc compile --tuned FILE uses it (default: tuned.jsonl)",
    )  # fmt: skip
    command.add_argument(
        "--html",
        type=Path,
        metavar="F.html",
        help="write a page: the best against trials, the space, what is taken",
    )
    what = command.add_argument_group("instead of a search")
    what.add_argument(
        "--space", action="store_true", help="list kernels with the size of their spaces and all decisions"
    )
    what.add_argument("--show", type=Path, metavar="FILE", help="list what a file of records holds, failures too")
    what.add_argument(
        "--repeat",
        default="",
        metavar="RECORD",
        help="measure the schedule of one record of --records again, by its number",
    )
    what.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="write the records of several files to --records, each once",
    )
    what.add_argument(
        "--prune", type=Path, metavar="FILE", help="leave out records that others beat in time, flash and workspace"
    )
    where = command.add_argument_group("measurement")
    where.add_argument(
        "--target",
        default="",
        metavar="CORE",
        help="this computer, as native or as one of its cores, instead of a board",
    )
    where.add_argument(
        "--port", dest="ports", action="append", default=[], metavar="PORT",
        help="the serial port of the board (auto: found by its USB ids), or 'pipe:PROGRAM {elf}', a program that acts as the "
        "board; several boards, each on its port, measure side by side (default: its emulator)",
    )  # fmt: skip
    where.add_argument(
        "--load", action="store_true", help="flash the board once, with firmware that takes code over the line, and load "
        "candidates into its RAM; ticks are those of code in RAM, and records say so",
    )  # fmt: skip
    where.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="emulators, or processes here, side by side (default: 1)"
    )
    where.add_argument(
        "--fleet",
        default="",
        metavar="ADDRESS",
        help="boards that workers of Dask Distributed offer behind this scheduler",
    )
    search = command.add_argument_group("search")
    search.add_argument(
        "--trials", type=int, default=500, metavar="N", help="measurements at most; 0: none (default: 500)"
    )
    search.add_argument(
        "--time", type=duration, default=0.0, metavar="TIME", help="time at most: 90s, 10m, 2h (default: any)"
    )
    search.add_argument(
        "--search", choices=("evolutionary", "random", "grid"), default="evolutionary", help="(default: evolutionary)"
    )
    search.add_argument(
        "--cost-model", choices=("auto", "analytic", "learned"), default="auto",
        help="what ranks candidates: learned needs LightGBM (default: auto, learned where that is installed)",
    )  # fmt: skip
    search.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="layers whose name has this part; may be given several times",
    )
    search.add_argument("--seed", type=int, default=0, help="of the search (default: 0)")
    compile_options(command)
    command.epilog = f"{command.epilog}\n\n{_PLAN}"
