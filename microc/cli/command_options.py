"""Argument parsers of the commands that measure, verify, quantise, report and tune. No slow imports here."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

from microc.cli import parser
from microc.cli.parser import duration, layer_bits, seconds, share, size
from microc.cli.shared_options import compile_options, input_options, reading_options, source_options
from microc.compiler.option_values import names

# ---- ``microc report``, ``compare`` and ``watch``.

Adder = Callable[..., ArgumentParser]


class SeeingArguments(Namespace):
    """Parsed arguments of ``report``, ``compare`` and ``watch`` that other commands do not have."""

    verified: Path | None
    before: Path
    after: Path
    from_board: bool
    every: float
    runs: int
    http: int
    browser: bool


def seeing_commands(add: Adder, model: str) -> None:
    """Add ``report``, ``compare`` and ``watch``. ``add(name, summary, *examples)`` creates a command's parser; ``model`` is
    the help for model arguments."""
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
    """Add ``--verified``."""
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
        "--every", type=parser.seconds, default=0.5, metavar="SECONDS", help="from run to run, at least (default: 0.5)"
    )
    group.add_argument("--runs", type=_runs, default=0, metavar="N", help="end after so many (default: at Ctrl-C)")
    group.add_argument("--seed", type=int, default=20, help="of the random inputs (default: 20)")
    group = command.add_argument_group("the page")
    group.add_argument(
        "--http", type=_port, default=0, metavar="PORT", help="its port on 127.0.0.1 (default: a free one)"
    )
    group.add_argument("--no-browser", dest="browser", action="store_false", help="print its address, open nothing")


def _runs(text: str) -> int:
    """Convert a number of runs."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ArgumentTypeError(f"{text!r} is no number of runs")
    return int(text)


def _port(text: str) -> int:
    """Convert a TCP port number."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ArgumentTypeError(f"{text!r} is no port: write a number from 1 to 65535")
    return int(text)


# ---- ``microc profile``, ``size``, ``verify`` and ``bench``.

AGAINST = ("tflm", "litert", "onnxruntime", "torch", "keras", "sklearn", "lightgbm", "xgboost", "reference")
"""Values of ``--against``: the names in :mod:`microc.run.reference.framework_choice`, repeated here because that import is
slow."""


def measuring_commands(add: Adder) -> None:
    """Add ``profile``, ``size``, ``verify`` and ``bench``. ``add(name, summary, *examples)`` creates a command's parser."""
    _profile(add)
    _size(add)
    _verify(add)
    _bench(add)


def _bench(add: Adder) -> None:
    command = add(
        "bench",
        "run one network on several boards, attached or emulated, and compare what it takes",
        "model.tflite --boards microbit,mps2-an386,qemu-riscv32",
        "model.tflite --boards all-emulated --json",
        'model.tflite --boards attached --meter "python joulescope.py"',
    )
    command.add_argument("source", type=Path, nargs="?", metavar="MODEL", help="a model (default: microc.toml's)")
    command.add_argument(
        "--boards", dest="board_names", type=names, default=(), metavar="NAME,...",
        help="names (microc boards) or board files; all-emulated: every board that an emulator stands in for; attached: those on "
        "this computer's ports, which are flashed (default: microc.toml's)",
    )  # fmt: skip
    command.add_argument(
        "--meter", default="", metavar="COMMAND",
        help="a program that runs while the board does, and when its standard input is closed prints the energy of all "
        "inferences (1.25 mJ) or the mean power (18 mW)",
    )  # fmt: skip
    command.add_argument(
        "--repeat",
        type=parser.inferences,
        metavar="N",
        help="inferences, of which the mean is told (default: 1; 100 for a meter)",
    )
    command.add_argument(
        "--timeout", type=parser.seconds, default=10.0, metavar="SECONDS",
        help="without an answer of a board, after which to give it up (default: 10)",
    )  # fmt: skip
    compile_options(command, board=False)


def _profile(add: Adder) -> None:
    command = add(
        "profile",
        "measure every layer on the board: time, products, flash, memory",
        "firmware",
        "firmware --html report.html --csv layers.csv",
        "model.tflite --board mps2-an386 --trace trace.json",
    )
    source_options(command)
    input_options(command, "use this array or picture instead of random numbers; once for each input")
    command.add_argument(
        "--html", type=Path, metavar="F.html", help="write a report: network, timeline, memory, layers"
    )
    verified_option(command)
    command.add_argument("--csv", type=Path, metavar="F.csv", help="write the table of layers")
    command.add_argument("--trace", type=Path, metavar="T.json", help="write a trace for Perfetto or chrome://tracing")
    command.add_argument("--seed", type=int, default=20, help="of the random inputs (default: 20)")


def _size(add: Adder) -> None:
    command = add(
        "size",
        "explain flash and RAM: by part, layer and symbol of the linked program",
        "firmware",
        "firmware --json > before.json",
        "firmware --compare before.json",
        "firmware --against before.json --fail-over 2%",
        "profile.json --against before_profile.json --fail-over flash=1% --fail-over time=5%",
        "my_product.elf --project firmware",
        "model.tflite --board mps2-an386 --csv symbols.csv",
    )
    source_options(command, "a project, an ELF file that holds its network, or a model to compile and build on the fly")
    command.add_argument(
        "--project", type=Path, metavar="DIR", help="whose network an ELF file holds (default: its folder)"
    )
    command.add_argument("--compare", type=Path, metavar="F.json", help="show what has changed since an earlier --json")
    command.add_argument(
        "--against", dest="base", type=Path, metavar="BASE",
        help="show by how much flash and RAM have grown since BASE: a project, or an earlier --json; with two files of "
        "microc profile --json time, too",
    )  # fmt: skip
    command.add_argument(
        "--fail-over", type=parser.growth, action="append", default=[], metavar="[flash|ram|time=]SHARE",
        help="exit with code 7 where one has grown by more than this share of what it was, 2%% for example; repeatable",
    )  # fmt: skip
    command.add_argument("--csv", type=Path, metavar="F.csv", help="write a table of all symbols")


def _verify(add: Adder) -> None:
    command = add(
        "verify",
        "compare board and host after every kernel, bit by bit, and the network with the framework that made it",
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
    source_options(command)
    command.add_argument(
        "--samples", type=int, default=3, metavar="N", help="sets of inputs to compare kernel by kernel (default: 3)"
    )
    command.add_argument("--seed", type=int, default=20, help="of the random inputs (default: 20)")
    command.add_argument(
        "--tolerance", type=parser.tolerance, metavar="T",
        help="what float tensors may differ by, relative to their largest magnitude; 0: not in a bit (default: 1e-6 between "
        "board and host, 1e-4 of float32 between network and framework)",
    )  # fmt: skip
    group = command.add_argument_group("the framework that made the model")
    group.add_argument(
        "--against", choices=AGAINST, default="", metavar="FRAMEWORK",
        help="run the model there too, on the same data, and compare every output, and every layer whose name meets; of a model "
        "without --board, only this: " + ", ".join(AGAINST) + " (the natural one)",
    )  # fmt: skip
    group.add_argument(
        "--model", dest="model_file", type=Path, metavar="FILE", help="the model that a project was made from"
    )
    group.add_argument(
        "--quanta", type=parser.quanta, default=0, metavar="N", help="what integers may differ by (default: 0)"
    )
    command.add_argument(
        "--evidence", type=Path, metavar="DIR",
        help="write what was compared, on what, with which results: a page to sign, JSON, and SHA256SUMS over both",
    )  # fmt: skip
    input_options(command, "use this array or picture instead of random numbers; once for each input")
    group = command.add_argument_group("data of your own, all of which the board is given")
    group.add_argument(
        "--data", type=Path, metavar="PATH",
        help="samples along the first axis: a .npz file (by the inputs' names), a .npy file or a table (.csv) of one input, or "
        "a folder of .npy files, pictures or sounds (.wav), perhaps in folders by class",
    )  # fmt: skip
    group.add_argument(
        "--labels", default="", metavar="NAME|FILE",
        help="class numbers: an array or column of the data, or a file; gives accuracy and confusion matrix",
    )  # fmt: skip
    group.add_argument(
        "--answer", default="", metavar="OUTPUT", help="the output that holds the class (default: the first)"
    )
    group.add_argument(
        "--expected", type=Path, metavar="FILE",
        help="what the outputs should be (.npz by the outputs' names, .npy, .csv); gives RMSE and cosine",
    )  # fmt: skip


# ---- ``microc quantize``.

_DATA = ".npz or .npy, a table, or a folder of .npy files, pictures or sounds (.wav), perhaps in folders by class"


def quantizing_command(add: Adder, model: str) -> None:
    """Add ``quantize``. ``add(name, summary, *examples)`` creates a command's parser; ``model`` is the help for model
    arguments."""
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
    _precision_options(command)
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


def _precision_options(command: ArgumentParser) -> None:
    """Add the options for mixed precision: bits of single layers, and the limits under which bits are searched for."""
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


# ---- ``microc tune``.

RECORDS = Path("tuned.jsonl")
_PLAN_EPILOG = """--plan names a file that is written here: what a compilation takes with these records, layer by layer.
Edit it, and give it back to microc compile --plan."""


def tuning_command(add: Adder, model: str) -> None:
    """Add ``tune``. ``add(name, summary, *examples)`` creates a command's parser; ``model`` is the help for model
    arguments."""
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
    command.epilog = f"{command.epilog}\n\n{_PLAN_EPILOG}"
