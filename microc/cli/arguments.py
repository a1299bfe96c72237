"""The arguments of every command. Nothing heavy is imported here, so that help is instant."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from microc import __version__
from microc.cli.measuring_options import measuring_commands
from microc.cli.model_options import compile_options, plugin_option, reading_options
from microc.cli.parser import Help, Parser
from microc.cli.project_options import force_option, project_commands
from microc.cli.quantizing_options import quantizing_command
from microc.cli.seeing_options import SeeingArguments, seeing_commands
from microc.cli.shell_options import shell_commands
from microc.cli.tuning_options import tuning_command

EXIT_CODES = """exit codes:
  0 success                      4 the model does not fit the board
  1 board and host differ        5 a tool is missing, or a build failed
  2 wrong argument or file       6 the board, its line or a time-out
  3 broken or unsupported model  7 flash, RAM or time grew beyond a bound
  70 a defect of microc (a file holds the traceback)
  130 interrupted                141 the reader of the output went away"""


class Arguments(SeeingArguments):
    """What the parser fills in; each command reads its own. Options of a compilation: :func:`chosen_options`."""

    command: str
    words: list[str]
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    model: Path | None
    models: list[Path]
    config: Any = None
    force: bool = False
    fix: bool
    yes: bool
    network: str
    folder: Path
    source: Path
    output: Path | None
    outputs: list[Path]
    inputs: list[Path]
    pixels: list[float] | None
    board: str
    board_names: tuple[str, ...]
    meter: str
    plugin_file: Path
    markdown: bool
    listing: bool
    exact: bool
    features: Path | None
    layer: str
    full: bool
    format: str
    target: str
    tensors: bool
    runner: str
    dry_run: bool
    port: str
    ports: list[str]
    fleet: str
    baud: tuple[int, ...]
    timeout: float
    repeat: Any
    trace: Path | None
    html: Path | None
    csv: Path | None
    project: Path | None
    compare: Path | None
    base: Path | None
    fail_over: list[tuple[str, float]]
    samples: int
    data: Path | None
    evaluation: Path | None
    activations: str
    weights: int
    block: int
    scales: str
    ranges: str
    labels: str
    answer: str
    expected: Path | None
    tolerance: float | None
    quanta: int
    against: str
    model_file: Path | None
    evidence: Path | None
    seed: int
    action: str
    shell: str
    subject: str
    records: Path
    show: Path | None
    merge: list[Path] | None
    prune: Path | None
    space: bool
    trials: int
    time: float
    search: str
    cost_model: str
    only: list[str]
    jobs: int


def make_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="microc",
        description="Compile trained networks (TFLite, ONNX) to plain C for microcontrollers; build, flash, run and "
        "measure the result.",
        epilog="example:\n  microc compile model.tflite --board mps2-an386 -o firmware && microc verify firmware\n\n"
        "`microc COMMAND --help` explains a command, with examples.\n\n" + EXIT_CODES,
        formatter_class=Help,
    )
    _global_options(parser, False)
    parser.add_argument("--version", action="version", version=f"microc {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def add(name: str, summary: str, *examples: str) -> Parser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog="examples:\n" + "\n".join(f"  microc {name} {example}".rstrip() for example in examples),
            formatter_class=Help,
        )

    _model_commands(add)
    quantizing_command(add, _MODEL)
    tuning_command(add, _MODEL)
    _export_command(add)
    project_commands(add, _MODEL)
    measuring_commands(add)
    seeing_commands(add, _MODEL)
    _board_commands(add)
    shell_commands(add)
    for command in commands.choices.values():  # behind its own, so that help begins with these
        _global_options(command, argparse.SUPPRESS)
    return parser


Adder = Callable[..., Parser]


def _global_options(parser: Parser, default: object) -> None:
    """Options that stand before or after the command; after it they must not undo what stood before."""
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--json",
        action="store_true",
        default=default,
        help="print one JSON object, errors too; tune, watch: one a line, for every batch or run",
    )
    group.add_argument("-q", "--quiet", action="store_true", default=default, help="print nothing but errors")
    group.add_argument("-v", "--verbose", action="store_true", default=default, help="say on stderr what goes on")


_MODEL = "a .tflite, .onnx, .keras, .h5, .pt2 or .mcg file, LightGBM's text, or XGBoost's JSON or UBJSON"


def _model_commands(add: Adder) -> None:
    command = add(
        "compile",
        "compile a model into a C project",
        "model.tflite -o firmware",
        "model.onnx --board netduinoplus2 --input-shape input=1,3,96,96 -o firmware",
        "keywords.tflite --stream 1 --stream-allow window -o firmware",
        "wake_word.tflite command.tflite --board nrf52840dk -o firmware",
        "model.tflite --board nrf52840dk --relocatable -o network.bin",
    )
    command.add_argument(
        "models", type=Path, nargs="*", metavar="MODEL",
        help=_MODEL + "; several share one firmware and its arena (default: microc.toml's)",
    )  # fmt: skip
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR",
        help="the project's folder; with --relocatable also FILE.bin, the network alone",
    )  # fmt: skip
    force_option(command)
    compile_options(command)
    command = add(
        "check",
        "look at a model without compiling it: can it fit --board, --flash, --ram? (exit code 4 if it surely cannot)",
        "model.tflite",
        "model.onnx --board microbit",
        "model.onnx --board microbit --io caller --exact",
    )
    command.add_argument("model", type=Path, nargs="?", metavar="MODEL", help=_MODEL)
    command.add_argument(
        "--exact", action="store_true", help="compile it for the board where nothing proves that it cannot fit"
    )
    command.add_argument("--tensors", action="store_true", help="list all tensors, by the names that --inputs takes")
    compile_options(command)
    command = add(
        "explain",
        "tell how a layer's kernel came to be: candidates with their cost and why they lost, steps, cost, C",
        "model.tflite --board mps2-an386",
        "model.tflite conv1 --board mps2-an386",
        "model.onnx 3 --target cortex-m55 --optimize speed --full",
        "model.tflite softmax --json",
    )
    command.add_argument("model", type=Path, nargs="?", metavar="MODEL", help=_MODEL)
    command.add_argument(
        "layer",
        nargs="?",
        default="",
        metavar="LAYER",
        help="a name, or a part of one, or a step's number (default: list all)",
    )
    command.add_argument(
        "--target",
        default="",
        metavar="CORE",
        help="a core, cortex-m4 for example (default: the board's, or this computer)",
    )
    command.add_argument(
        "--full", action="store_true", help="show the function after every step and every pass of lowering"
    )
    compile_options(command)
    command = add(
        "import",
        "save a model's graph and parameters in one file, which every command reads as a model; or as an ONNX model",
        "model.onnx -o model.mcg",
        "model.tflite -o model.onnx",
        "model.onnx --outputs /features/Flatten_output_0 -o features.mcg",
        "model.tflite --features features.toml -o model.mcg",
    )
    command.add_argument("model", type=Path, metavar="MODEL", help=_MODEL)
    command.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the file: model.mcg say, or model.onnx"
    )
    command.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="put features in front of the network, so that raw samples go in: a TOML file of stages (docs/features.md)",
    )
    reading_options(command)


def _export_command(add: Adder) -> None:
    command = add(
        "export",
        "wrap a network for a build system: Arduino, CMake, Zephyr, Rust and others",
        "--list",
        "model.tflite --format arduino --board arduino-mega -o kws_model",
        "model.onnx --format cmake --target cortex-m4 -o third_party/kws_model",
        "model.tflite --format rust --input x.npy -o kws_model",
    )
    command.add_argument("model", type=Path, nargs="?", metavar="MODEL", help=_MODEL)
    command.add_argument(
        "--list", dest="listing", action="store_true", help="list the formats, and how far each was tried"
    )
    command.add_argument(
        "--format", default="", help="a name (--list), or a folder of your own, with a slash in its path"
    )
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="the folder to write")
    force_option(command)
    command.add_argument(
        "--target", default="", metavar="CORE", help="a core, cortex-m4 for example (default: the board's, or any)"
    )
    command.add_argument(
        "--input", dest="inputs", type=Path, action="append", default=[], metavar="X.npy",
        help="what the example runs on; once for each input, in the graph's order (default: a pattern); with an axis more in "
        "front, frames for a network that keeps something from run to run",
    )  # fmt: skip
    compile_options(command)


def _board_commands(add: Adder) -> None:
    command = add("boards", "list, show or validate boards", "", "show netduinoplus2", "validate my_board.toml")
    command.add_argument("action", nargs="?", choices=("list", "show", "validate"), default="list")
    command.add_argument("subject", nargs="?", default="", metavar="NAME|FILE")
    command = add("plugin", "run the cases of a plugin's operators", "check examples/custom_operator/operators.py")
    command.add_argument("action", choices=("check",))
    command.add_argument("plugin_file", type=Path, metavar="FILE.py", help="a plugin (microc.plugin); its code runs")
    command = add(
        "operators", "list the operators that microc knows, with their dtypes", "", "--plugin operators.py --json"
    )
    command.add_argument("--markdown", action="store_true", help="as the page docs/operators.md")
    plugin_option(command)
    command = add("options", "list the options of a compilation", "", "--json")
    command.add_argument("--markdown", action="store_true", help="as the page docs/options.md")
    add("ports", "list the serial ports of this machine", "")
    command = add(
        "demo",
        "run a small network on an emulated microcontroller, without a model of your own",
        "",
        "--board microbit",
    )
    command.add_argument(
        "--board", default="", help="another board (default: netduinoplus2, or host where its tools are missing)"
    )
    command = add(
        "doctor", "look for the tools that microc works with", "", "--board nucleo-f446re", "--fix", "--fix --yes"
    )
    command.add_argument("--board", default="", help="those alone that this board takes: a name or a board file")
    command.add_argument("--fix", action="store_true", help="print the one line that installs what is missing")
    command.add_argument("--yes", action="store_true", help="with --fix: run that line after showing it")
