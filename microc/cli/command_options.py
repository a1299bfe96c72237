"""Argument parsers of the commands that measure, verify, quantise, report and tune.

Nothing that is slow to import is imported here, so that ``--help`` is instant."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

from microc.cli import parser
from microc.cli.parser import parse_byte_size, parse_duration, parse_layer_bits, parse_seconds, parse_share
from microc.cli.shared_options import add_compile_options, add_input_options, add_reading_options, add_source_options
from microc.compiler.option_values import parse_names

# ---- ``microc report``, ``compare`` and ``watch``.

AddCommand = Callable[..., ArgumentParser]


class ReportArguments(Namespace):
    """The parsed arguments that only ``report``, ``compare`` and ``watch`` have."""

    verified: Path | None
    before: Path
    after: Path
    from_board: bool
    every: float
    runs: int
    http: int
    browser: bool


def add_report_commands(add_command: AddCommand) -> None:
    """Add the argument parsers of the commands ``report``, ``compare`` and ``watch``.

    ``add_command(name, summary, *examples)`` adds a command to the command line and returns the command's parser."""
    _add_report_command(add_command)
    _add_compare_command(add_command)
    _add_watch_command(add_command)


def _add_report_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc report``."""
    command = add_command(
        "report",
        "estimate a network's costs on a board, layer by layer, without hardware",
        "model.tflite --board netduinoplus2",
        "model.tflite --board netduinoplus2 -o report.html",
        "model.tflite --board netduinoplus2 --verified verify.json -o report.html",
        "firmware -o report.json",
    )
    command.add_argument(
        "source", type=Path, nargs="?", metavar="MODEL|DIR", help="model or project folder (default: from microc.toml)"
    )
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="report to write: page (.html) or data (.json)"
    )
    add_verified_option(command)
    add_compile_options(command)


def add_verified_option(command: ArgumentParser) -> None:
    """Add the option ``--verified``: a result of ``microc verify`` whose accuracy the report shows."""
    command.add_argument(
        "--verified",
        type=Path,
        metavar="F.json|DIR",
        help="accuracy to show: saved output of verify --json, or folder of verify --evidence",
    )


def _add_compare_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc compare``."""
    command = add_command(
        "compare",
        "compare two reports, projects or models: totals and layers",
        "before.json after.json",
        "before.html after.html --html compared.html",
        "float.onnx int8.tflite --board netduinoplus2",
    )

    command.add_argument("before", type=Path, metavar="BEFORE", help="report (.json or .html), project folder or model")
    command.add_argument(
        "after", type=Path, metavar="AFTER", help="report, project folder or model to compare with BEFORE"
    )
    command.add_argument(
        "--html", type=Path, metavar="F.html", help="page to write: report of AFTER, compared with BEFORE"
    )
    add_compile_options(command)


def _add_watch_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc watch``."""
    command = add_command(
        "watch",
        "show inputs and outputs of a network on a board, live in a browser",
        "firmware --data test.npz --labels labels",
        "firmware --from-board --port auto --every 0.2",
        "model.tflite --board netduinoplus2 --no-browser",
        "firmware --data recordings --runs 100 --json",
    )
    add_source_options(command)
    group = command.add_argument_group("runs")
    group.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="samples to run in a loop, as for microc verify (default: random inputs)",
    )
    group.add_argument(
        "--labels",
        default="",
        metavar="NAME|FILE",
        help="class numbers to compare with: array or column of --data, or a file",
    )
    group.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"), help="input values of pixels 0 and 255"
    )
    group.add_argument(
        "--from-board", action="store_true", help="inputs that the firmware itself provides, such as sensor data"
    )
    group.add_argument(
        "--every",
        type=parser.parse_seconds,
        default=0.5,
        metavar="SECONDS",
        help="minimum time between the starts of two runs (default: 0.5)",
    )
    group.add_argument(
        "--runs", type=_parse_run_count, default=0, metavar="N", help="number of runs (default: until Ctrl-C)"
    )
    group.add_argument("--seed", type=int, default=20, help="seed of the random inputs (default: 20)")
    group = command.add_argument_group("the page")
    group.add_argument(
        "--http",
        type=_parse_tcp_port,
        default=0,
        metavar="PORT",
        help="TCP port of the page on 127.0.0.1 (default: a free port)",
    )
    group.add_argument(
        "--no-browser",
        dest="browser",
        action="store_false",
        help="no browser window: the address of the page is only printed",
    )


def _parse_run_count(text: str) -> int:
    """Parse a number of runs, 1 or more; ArgumentTypeError for any other text."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ArgumentTypeError(f"got {text!r}, expected a number of runs, 1 or more")
    return int(text)


def _parse_tcp_port(text: str) -> int:
    """Parse the number of a TCP port, 1 to 65535; ArgumentTypeError for any other text."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ArgumentTypeError(f"got {text!r}, expected a TCP port: write a number from 1 to 65535")
    return int(text)


# ---- ``microc profile``, ``size``, ``verify`` and ``bench``.

AGAINST = ("tflm", "litert", "onnxruntime", "torch", "keras", "sklearn", "lightgbm", "xgboost", "reference")
"""Values of ``--against``. They are the names in :mod:`microc.run.reference.framework_choice`, repeated here because importing
this module is slow."""


def add_measuring_commands(add_command: AddCommand) -> None:
    """Add the argument parsers of the commands ``profile``, ``size``, ``verify`` and ``bench``.

    ``add_command(name, summary, *examples)`` adds a command to the command line and returns the command's parser."""
    _add_profile_command(add_command)
    _add_size_command(add_command)
    _add_verify_command(add_command)
    _add_bench_command(add_command)


def _add_bench_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc bench``."""
    command = add_command(
        "bench",
        "measure one network on several boards, attached or emulated",
        "model.tflite --boards microbit,mps2-an386,qemu-riscv32",
        "model.tflite --boards all-emulated --json",
        'model.tflite --boards attached --meter "python joulescope.py"',
    )
    command.add_argument("source", type=Path, nargs="?", metavar="MODEL", help="model file (default: from microc.toml)")
    command.add_argument(
        "--boards", dest="board_names", type=parse_names, default=(), metavar="NAME,...",
        help="board names, board files, all-emulated or attached (default: from microc.toml)",
    )  # fmt: skip
    command.add_argument(
        "--meter", default="", metavar="COMMAND",
        help="program that measures energy or power of the runs (docs/firmware.md)",
    )  # fmt: skip
    command.add_argument(
        "--repeat",
        type=parser.parse_inference_count,
        metavar="N",
        help="number of inferences to average (default: 1, or 100 if --meter is given)",
    )
    command.add_argument(
        "--timeout", type=parser.parse_seconds, default=10.0, metavar="SECONDS",
        help="seconds without an answer after which a board is skipped (default: 10)",
    )  # fmt: skip
    add_compile_options(command, board=False)


def _add_profile_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc profile``."""
    command = add_command(
        "profile",
        "measure every layer on a board: time, MACs, flash, memory",
        "firmware",
        "firmware --html report.html --csv layers.csv",
        "model.tflite --board mps2-an386 --trace trace.json",
    )
    add_source_options(command)
    add_input_options(command, "input array or picture, once per input, in order (default: random)")
    command.add_argument("--html", type=Path, metavar="F.html", help="page to write: network, timeline, memory, layers")
    add_verified_option(command)
    command.add_argument("--csv", type=Path, metavar="F.csv", help="CSV table of layers to write")
    command.add_argument(
        "--trace", type=Path, metavar="T.json", help="trace to write, for Perfetto or chrome://tracing"
    )
    command.add_argument("--seed", type=int, default=20, help="seed of the random inputs (default: 20)")


def _add_size_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc size``."""
    command = add_command(
        "size",
        "show flash and RAM of a linked firmware by part, layer and symbol",
        "firmware",
        "firmware --json > before.json",
        "firmware --compare before.json",
        "firmware --against before.json --fail-over 2%",
        "profile.json --against before_profile.json --fail-over flash=1% --fail-over time=5%",
        "my_product.elf --project firmware",
        "model.tflite --board mps2-an386 --csv symbols.csv",
    )
    add_source_options(command, "project folder, ELF file, saved --json, or model")
    command.add_argument(
        "--project",
        type=Path,
        metavar="DIR",
        help="project of the network in an ELF file (default: folder of that file)",
    )
    command.add_argument(
        "--compare", type=Path, metavar="F.json", help="saved output of an earlier size --json, to list changes since"
    )
    command.add_argument(
        "--against", dest="base", type=Path, metavar="BASE",
        help="baseline of growth: project folder, or saved --json of size or profile",
    )  # fmt: skip
    command.add_argument(
        "--fail-over", type=parser.parse_growth_limit, action="append", default=[], metavar="[flash|ram|time=]SHARE",
        help="maximum growth since --against, such as 2%% (above: exit code 7); repeatable",
    )  # fmt: skip
    command.add_argument("--csv", type=Path, metavar="F.csv", help="CSV table of all symbols to write")


def _add_verify_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc verify``."""
    command = add_command(
        "verify",
        "compare board and host bit by bit, and a network with its framework",
        "firmware",
        "model.tflite --board mps2-an386 --samples 10",
        "firmware --input x.npy --port /dev/ttyACM0",
        "firmware --data test.npz --labels labels",
        "firmware --data test.csv --labels class --expected outputs.npz",
        "firmware --data photos --pixels -1 1",
        "model.onnx --against reference",
        "model.tflite --rounding litert --against litert --data test.npz",
        "firmware --against tflm --model model.tflite --evidence evidence",
    )
    add_source_options(command)
    command.add_argument(
        "--samples",
        type=int,
        default=3,
        metavar="N",
        help="number of input sets to compare kernel by kernel (default: 3)",
    )
    command.add_argument("--seed", type=int, default=20, help="seed of the random inputs (default: 20)")
    command.add_argument(
        "--tolerance", type=parser.parse_tolerance, metavar="T",
        help="relative tolerance of floats (default: 1e-6 to host, 1e-4 to float32 framework)",
    )  # fmt: skip
    group = command.add_argument_group("comparison with a framework", f"FRAMEWORK is one of {', '.join(AGAINST)}.")
    group.add_argument(
        "--against", choices=AGAINST, default="", metavar="FRAMEWORK",
        help="framework to compare with, or 'reference' for the one that made the model",
    )  # fmt: skip
    group.add_argument(
        "--model", dest="model_file", type=Path, metavar="FILE", help="model file from which the project was compiled"
    )
    group.add_argument(
        "--quanta",
        type=parser.parse_quanta,
        default=0,
        metavar="N",
        help="tolerance of integers in quantisation steps (default: 0)",
    )
    command.add_argument(
        "--evidence", type=Path, metavar="DIR",
        help="folder for the evidence: page to sign, its data as JSON, and SHA256SUMS of both",
    )  # fmt: skip
    add_input_options(command, "input array or picture, once per input, in order (default: random)")
    group = command.add_argument_group("evaluation on your data: every sample runs on the board")
    group.add_argument(
        "--data", type=Path, metavar="PATH",
        help="samples: .npz, .npy, .csv, or a folder of arrays, pictures or .wav",
    )  # fmt: skip
    group.add_argument(
        "--labels", default="", metavar="NAME|FILE",
        help="class numbers for accuracy: array or column of --data, or a file",
    )  # fmt: skip
    group.add_argument(
        "--answer",
        default="",
        metavar="OUTPUT",
        help="output with the class (default: first with class numbers, else the first)",
    )
    group.add_argument(
        "--expected", type=Path, metavar="FILE",
        help="expected outputs (.npz, .npy, .csv) to compare with, by RMSE and cosine",
    )  # fmt: skip


# ---- ``microc quantize``.

_DATA = ".npz, .npy, .csv, or a folder of samples"


def add_quantize_command(add_command: AddCommand, model_help: str) -> None:
    """Add the argument parser of ``microc quantize``.

    ``add_command(name, summary, *examples)`` adds a command to the command line and returns the command's parser.
    ``model_help``: help of the argument MODEL."""
    command = add_command(
        "quantize",
        "quantise a float network to integers, and measure the loss",
        "model.onnx --data calibration.npz -o model.mcg",
        "model.onnx --data images/ --pixels -1 1 --eval test/ --board nucleo-l476rg -o model.mcg --html report.html",
        "model.keras --data train.npz --labels y --activations int16 -o model.mcg",
        "model.onnx --data calibration.npz --weights 4 --block 32 -o model.onnx",
        "model.onnx --data calibration.npz --flash 48K --board nucleo-l476rg -o model.mcg",
        "model.onnx --data train.npz --eval test.npz --labels y --max-drop 1% --board nucleo-l476rg -o model.mcg",
    )
    command.add_argument("model", type=Path, metavar="MODEL", help=model_help)
    command.add_argument(
        "--data", type=Path, required=True, metavar="DATA", help=f"typical inputs, tens to hundreds: {_DATA}"
    )
    command.add_argument(
        "--eval", dest="evaluation", type=Path, metavar="DATA",
        help="data on which both networks are compared (default: the calibration data)",
    )  # fmt: skip
    command.add_argument(
        "--labels",
        default="",
        metavar="NAME",
        help="class numbers: array or column of the data, or file (default: subfolder names)",
    )
    command.add_argument(
        "--pixels", type=float, nargs=2, metavar=("LOW", "HIGH"), help="input values of pixels 0 and 255"
    )
    command.add_argument(
        "--activations", choices=("int8", "uint8", "int16"), default="int8", help="dtype of activations (default: int8)"
    )
    command.add_argument(
        "--weights",
        type=int,
        choices=(8, 4, 2),
        default=8,
        metavar="BITS",
        help="bits per weight: 8, 4 or 2 (default: 8)",
    )
    command.add_argument(
        "--block", type=int, choices=(0, 16, 32, 64), default=0, metavar="INPUTS",
        help="inputs per scale of 4- or 2-bit weights: 16, 32 or 64 (default: 0 for all)",
    )  # fmt: skip
    command.add_argument(
        "--scales", choices=("any", "power-of-two"), default="any", help="allowed quantisation scales (default: any)"
    )
    _add_mixed_precision_options(command)
    command.add_argument(
        "--ranges", choices=("auto", "minmax", "percentile", "mse", "entropy", "moving-average"), default="auto",
        help="estimator of activation ranges (default: auto, the one with the least error)",
    )  # fmt: skip
    command.add_argument(
        "--board", default="", help="board to estimate costs for, before and after: name or board file"
    )
    command.add_argument(
        "--html", type=Path, metavar="F.html", help="page to write: accuracy, layers, Pareto front, advice"
    )
    command.add_argument("--full", action="store_true", help="all rows of tables that are otherwise shortened")
    command.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="model to write, such as model.mcg or model.onnx",
    )
    add_reading_options(command)


def _add_mixed_precision_options(command: ArgumentParser) -> None:
    """Add the options for mixed precision: bits of single layers, and limits for the search of bits per layer."""
    command.add_argument(
        "--layer", dest="layers", type=parse_layer_bits, action="append", default=[], metavar="NAME=BITS",
        help="layer's bits: 8 (all), 4, 2 (weights), 16 (activations), 32 (float); repeatable",
    )  # fmt: skip
    command.add_argument(
        "--float-layer", dest="float_layers", action="append", default=[], metavar="NAME",
        help="layer that is not quantised; repeatable",
    )  # fmt: skip
    command.add_argument(
        "--weight-only", dest="weight_only", action="append", default=[], metavar="NAME|all",
        help="layer with integer weights but float arithmetic, or 'all'; repeatable",
    )  # fmt: skip
    command.add_argument(
        "--dynamic-range", dest="dynamic_range", action="append", default=[], metavar="NAME|all",
        help="layer that quantises its input at run time, or 'all'; repeatable",
    )  # fmt: skip
    limits = command.add_argument_group("limits for the search of bits per layer (docs/quantisation.md)")
    limits.add_argument(
        "--flash",
        type=parse_byte_size,
        metavar="BYTES",
        help="maximum flash of the firmware on --board, such as 65536 or 64K",
    )
    limits.add_argument("--ram", type=parse_byte_size, metavar="BYTES", help="maximum RAM of the firmware on --board")
    limits.add_argument(
        "--time", type=parse_seconds, metavar="SECONDS", help="maximum estimated time of a run on --board"
    )
    limits.add_argument(
        "--max-drop", type=parse_share, metavar="SHARE",
        help="maximum loss of accuracy within which flash is minimised, such as 1%% or 0.01",
    )  # fmt: skip


# ---- ``microc tune``.

DEFAULT_RECORDS = Path("tuned.jsonl")
_WRITTEN_PLAN = "optimisation plan to write, for microc compile --plan"
_PLAN_EPILOG = """tune --plan FILE writes an optimisation plan: for every layer, the schedule that compile --tuned would choose.
A plan may be edited by hand. compile --plan FILE then uses its schedules."""


def add_tune_command(add_command: AddCommand, model_help: str) -> None:
    """Add the argument parser of ``microc tune``.

    ``add_command(name, summary, *examples)`` adds a command to the command line and returns the command's parser.
    ``model_help``: help of the argument MODEL."""
    command = add_command(
        "tune",
        "search for faster schedules by measuring kernels on a board",
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
    command.add_argument("model", type=Path, nargs="?", default=None, metavar="MODEL", help=model_help)
    command.add_argument(
        "--records", type=Path, default=DEFAULT_RECORDS, metavar="FILE",
        help="file to which tuning records are appended (default: tuned.jsonl)",
    )  # fmt: skip
    command.add_argument(
        "--html",
        type=Path,
        metavar="F.html",
        help="page to write: progress of the search, search spaces, chosen schedules",
    )
    what = command.add_argument_group("instead of a search")
    what.add_argument(
        "--space", action="store_true", help="search space of every kernel in the model: decisions and their values"
    )
    what.add_argument(
        "--show", type=Path, metavar="FILE", help="table of the tuning records in a file, including failed measurements"
    )
    what.add_argument(
        "--repeat",
        default="",
        metavar="RECORD",
        help="id of the record in --records to measure again, or first characters of the id",
    )
    what.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="files of tuning records to merge into --records, without duplicates",
    )
    what.add_argument(
        "--prune",
        type=Path,
        metavar="FILE",
        help="file to rewrite without records that others beat in time, flash and workspace",
    )
    where = command.add_argument_group("measurement")
    where.add_argument(
        "--target",
        default="",
        metavar="CORE",
        help="this computer instead of a board: native, or one of its cores",
    )
    where.add_argument(
        "--port", dest="ports", action="append", default=[], metavar="PORT",
        help="serial port, auto, or 'pipe:PROGRAM {elf}' (default: the emulator); repeatable",
    )  # fmt: skip
    where.add_argument(
        "--load", action="store_true", help="candidates sent to RAM instead of flash, so times are those of code in RAM",
    )  # fmt: skip
    where.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="number of emulators or processes that measure in parallel (default: 1)",
    )
    where.add_argument(
        "--fleet",
        default="",
        metavar="ADDRESS",
        help="address of a Dask scheduler whose workers have boards attached",
    )
    search = command.add_argument_group("search")
    search.add_argument(
        "--trials", type=int, default=500, metavar="N", help="maximum number of measurements, 0 for none (default: 500)"
    )
    search.add_argument(
        "--time",
        type=parse_duration,
        default=0.0,
        metavar="TIME",
        help="maximum duration of the search, such as 90s, 10m or 2h (default: unlimited)",
    )
    search.add_argument(
        "--search",
        choices=("evolutionary", "random", "grid"),
        default="evolutionary",
        help="search method (default: evolutionary)",
    )
    search.add_argument(
        "--cost-model", choices=("auto", "analytic", "learned"), default="auto",
        help="cost model that ranks candidates, learned needs LightGBM (default: auto)",
    )  # fmt: skip
    search.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="layers to tune: a name, or part of a name; repeatable",
    )
    search.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    add_compile_options(command, help_texts={"tuned": SUPPRESS, "plan": _WRITTEN_PLAN})
    command.epilog = f"{command.epilog}\n\n{_PLAN_EPILOG}"
