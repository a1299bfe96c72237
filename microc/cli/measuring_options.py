"""The arguments of ``microc profile``, ``size`` and ``verify``. Nothing heavy is imported here."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from microc.cli import values
from microc.cli.board_options import input_options, source_options
from microc.cli.model_options import compile_options
from microc.cli.seeing_options import verified_option
from microc.driver.options.words import names

Adder = Callable[..., ArgumentParser]
AGAINST = ("tflm", "litert", "onnxruntime", "torch", "keras", "sklearn", "lightgbm", "xgboost", "reference")
"""What ``--against`` takes: the names of :mod:`microc.driver.reference.choice`."""


def measuring_commands(add: Adder) -> None:
    """``add(name, summary, *examples)`` gives the parser of a command."""
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
        type=values.inferences,
        metavar="N",
        help="inferences, of which the mean is told (default: 1; 100 for a meter)",
    )
    command.add_argument(
        "--timeout", type=values.seconds, default=10.0, metavar="SECONDS",
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
        "--fail-over", type=values.growth, action="append", default=[], metavar="[flash|ram|time=]SHARE",
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
        "--tolerance", type=values.tolerance, metavar="T",
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
        "--quanta", type=values.quanta, default=0, metavar="N", help="what integers may differ by (default: 0)"
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
