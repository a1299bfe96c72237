"""Argument parsers of all commands, and a description of all commands as data, for shell completion and the manual page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from microc import __version__
from microc.base.immutable import frozen
from microc.cli.command_options import (
    ReportArguments,
    add_measuring_commands,
    add_quantize_command,
    add_report_commands,
    add_tune_command,
)
from microc.cli.parser import CommandHelpFormatter, Parser
from microc.cli.shared_options import (
    add_compile_options,
    add_force_option,
    add_plugin_option,
    add_project_commands,
    add_reading_options,
    add_shell_commands,
)

# ---- The arguments of every command. No slow imports here, so that --help is instant.

EXIT_CODES = """exit codes:
  0 success                      4 the model does not fit the board
  1 board and host differ        5 missing tool or failed build
  2 wrong argument or file       6 board or serial line failed, or time-out
  3 broken or unsupported model  7 growth above --fail-over
  70 defect of microc (traceback in a file)
  130 interrupted                141 closed output pipe"""


class Arguments(ReportArguments):
    """The parsed arguments of the command line; each command reads those that its parser declares.

    Compilation options are read by :func:`microc.cli.shared_options.compilation_options`."""

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
    """Build the parser of the whole command line."""
    parser = Parser(
        prog="microc",
        description="Compile trained networks (TFLite, ONNX) to plain C for microcontrollers; build, flash, run and "
        "measure the result.",
        epilog="example:\n  microc compile model.tflite --board mps2-an386 -o firmware && microc verify firmware\n\n"
        "`microc COMMAND --help` explains a command, with examples.\n\n" + EXIT_CODES,
        formatter_class=CommandHelpFormatter,
    )
    _add_global_options(parser, False)
    parser.add_argument("--version", action="version", version=f"microc {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def add_command(name: str, summary: str, *examples: str) -> Parser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog="examples:\n" + "\n".join(f"  microc {name} {example}".rstrip() for example in examples),
            formatter_class=CommandHelpFormatter,
        )

    _add_model_commands(add_command)
    add_quantize_command(add_command, _MODEL)
    add_tune_command(add_command, _MODEL)
    _add_export_command(add_command)
    add_project_commands(add_command)
    add_measuring_commands(add_command)
    add_report_commands(add_command)
    _add_board_commands(add_command)
    add_shell_commands(add_command)
    for command in commands.choices.values():  # last, so that the help of a command begins with its own options
        _add_global_options(command, argparse.SUPPRESS)
    return parser


AddCommand = Callable[..., Parser]


def _add_global_options(parser: Parser, default: object) -> None:
    """Add the options that may precede or follow the command's name.

    ``default``: value of an option that is not given. For the parser of a command it must be SUPPRESS, so that an option
    before the command's name keeps its value."""
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--json",
        action="store_true",
        default=default,
        help="output as JSON, including errors (tune: a line per batch, watch: a line per run)",
    )
    group.add_argument("-q", "--quiet", action="store_true", default=default, help="no output except errors")
    group.add_argument(
        "-v", "--verbose", action="store_true", default=default, help="progress messages and timing on stderr"
    )


_MODEL = "model file: .tflite, .onnx, .keras, .h5, .pt2, .mcg, LightGBM or XGBoost"


def _add_model_commands(add_command: AddCommand) -> None:
    """Add the argument parsers of the commands ``compile``, ``check``, ``explain`` and ``import``."""
    command = add_command(
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
        help="model files, compiled into one firmware (default: from microc.toml)",
    )  # fmt: skip
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR",
        help="project folder; with --relocatable, the file NAME.bin of the network alone",
    )  # fmt: skip
    add_force_option(command)
    add_compile_options(command)
    command = add_command(
        "check",
        "check if a model can fit --board, --flash or --ram, without compiling it",
        "model.tflite",
        "model.onnx --board microbit",
        "model.onnx --board microbit --io caller --exact",
    )
    command.add_argument("model", type=Path, nargs="?", metavar="MODEL", help=_MODEL)
    command.add_argument(
        "--exact",
        action="store_true",
        help="exact sizes by compiling for the board, unless the model provably does not fit",
    )
    command.add_argument(
        "--tensors",
        action="store_true",
        help="list of the model's tensors, by the names that --inputs and --outputs accept",
    )
    add_compile_options(command)
    command = add_command(
        "explain",
        "explain a layer's kernel: candidates with costs, schedule steps, C",
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
        help="name of a layer, part of a name, or step number (default: list of all steps)",
    )
    command.add_argument(
        "--target",
        default="",
        metavar="CORE",
        help="core, such as cortex-m4 (default: the board's, or this computer)",
    )
    command.add_argument(
        "--full", action="store_true", help="listings after every step and pass, or intrinsics that no layer calls"
    )
    add_compile_options(command)
    command = add_command(
        "import",
        "convert a model to microc's graph format (.mcg) or to ONNX",
        "model.onnx -o model.mcg",
        "model.tflite -o model.onnx",
        "model.onnx --outputs /features/Flatten_output_0 -o features.mcg",
        "model.tflite --features features.toml -o model.mcg",
    )
    command.add_argument("model", type=Path, metavar="MODEL", help=_MODEL)
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="file to write, such as model.mcg or model.onnx",
    )
    command.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="TOML file of feature stages to insert before the network (docs/features.md)",
    )
    add_reading_options(command)


def _add_export_command(add_command: AddCommand) -> None:
    """Add the argument parser of ``microc export``."""
    command = add_command(
        "export",
        "export a network for a build system: Arduino, CMake, Zephyr, Rust, ...",
        "--list",
        "model.tflite --format arduino --board arduino-mega -o kws_model",
        "model.onnx --format cmake --target cortex-m4 -o third_party/kws_model",
        "model.tflite --format rust --input x.npy -o kws_model",
    )
    command.add_argument("model", type=Path, nargs="?", metavar="MODEL", help=_MODEL)
    command.add_argument(
        "--list", dest="listing", action="store_true", help="list of export formats, with how each is tested"
    )
    command.add_argument(
        "--format",
        default="",
        help="export format (see --list), or folder of your own format (path with a slash)",
    )
    command.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder to write")
    add_force_option(command)
    command.add_argument(
        "--target", default="", metavar="CORE", help="core, such as cortex-m4 (default: the board's, or any core)"
    )
    command.add_argument(
        "--input", dest="inputs", type=Path, action="append", default=[], metavar="X.npy",
        help="array for the exported example, once per input, in order (default: a pattern)",
    )  # fmt: skip
    add_compile_options(command)


def _add_board_commands(add_command: AddCommand) -> None:
    """Add the argument parsers of the commands ``boards``, ``plugin``, ``operators``, ``options``, ``ports``, ``demo``
    and ``doctor``."""
    command = add_command("boards", "list, show or validate boards", "", "show netduinoplus2", "validate my_board.toml")
    command.add_argument(
        "action",
        nargs="?",
        choices=("list", "show", "validate"),
        default="list",
        help="action: list, show or validate (default: list)",
    )
    command.add_argument(
        "subject", nargs="?", default="", metavar="NAME|FILE", help="name of a board, or path of a board file"
    )
    command = add_command(
        "plugin", "run the test cases of a plugin's operators", "check examples/custom_operator/operators.py"
    )
    command.add_argument("action", choices=("check",), help="action to run: check")
    command.add_argument(
        "plugin_file", type=Path, metavar="FILE.py", help="plugin file (see microc.plugin); its code is executed"
    )
    command = add_command(
        "operators", "list the supported operators with their dtypes", "", "--plugin operators.py --json"
    )
    command.add_argument("--markdown", action="store_true", help="output as Markdown, as in docs/operators.md")
    add_plugin_option(command)
    command = add_command("options", "list the compilation options", "", "--json")
    command.add_argument("--markdown", action="store_true", help="output as Markdown, as in docs/options.md")
    add_command("ports", "list the serial ports of this computer", "")
    command = add_command(
        "demo",
        "run a demonstration network on an emulated microcontroller",
        "",
        "--board microbit",
    )
    command.add_argument(
        "--board", default="", help="board to run on (default: netduinoplus2, or host if its tools are missing)"
    )
    command = add_command(
        "doctor",
        "check for the tools that microc needs, and install missing ones",
        "",
        "--board nucleo-f446re",
        "--fix",
        "--fix --yes",
    )
    command.add_argument(
        "--board", default="", help="board whose tools are checked: name or board file (default: all tools)"
    )
    command.add_argument(
        "--fix",
        action="store_true",
        help="command line that installs the missing tools: printed, and run only with --yes",
    )
    command.add_argument(
        "--yes", action="store_true", help="permission for --fix to run the command line that it prints"
    )


# ---- The command line as data, read from the argparse parsers, for shell completion and the manual page.

FILES, FOLDERS = "files", "folders"
MODEL_SUFFIXES = (".tflite", ".onnx", ".keras", ".pt2", ".mcg", ".txt")
_FILE_SUFFIXES = (".npz", ".npy", ".csv", ".html", ".json", ".jsonl", ".py", ".toml")


@frozen
class ValueSyntax:
    """The syntax of an argument's value, for completion: which names, files or folders the value may be.

    ``name``: the metavar; ``choices``: names that the value may be; ``path_type``: :data:`FILES` or :data:`FOLDERS` if it may be
    a path, else empty; ``suffixes``: suffixes of these files, empty for all files; ``is_list``: True if the value may be several
    names, separated by commas."""

    name: str
    choices: tuple[str, ...] = ()
    path_type: str = ""
    suffixes: tuple[str, ...] = ()
    is_list: bool = False


@frozen
class OptionSyntax:
    """An option of a command, as the argument parser declares it.

    ``help``: its help in one line; ``value``: syntax of its value, None for a switch; ``value_count``: number of its values;
    ``group``: title of its section in the command's help."""

    flags: tuple[str, ...]
    help: str
    value: ValueSyntax | None
    value_count: int
    group: str


@frozen
class CommandSyntax:
    """A command with its options and positional arguments, as the argument parser declares them.

    ``name`` is empty for the program itself."""

    name: str
    help: str
    usage: str
    epilog: str
    options: tuple[OptionSyntax, ...]
    positionals: tuple[tuple[ValueSyntax, str], ...]
    """Positional arguments: the syntax of each value, and its help."""


def describe_commands() -> tuple[CommandSyntax, ...]:
    """Describe the program itself, then its commands in the order of ``microc --help``."""
    parser = make_parser()
    choices = _map_arguments_to_name_listers()
    converted = [_command_syntax("", parser.description or "", parser, choices)]
    for action in parser._subparsers._group_actions if parser._subparsers else ():
        assert isinstance(action, argparse._SubParsersAction)
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        converted += [
            _command_syntax(name, summaries.get(name, ""), subparser, choices)
            for name, subparser in action.choices.items()
        ]
    return tuple(converted)


def _map_arguments_to_name_listers() -> Mapping[str, Callable[[], tuple[str, ...]]]:
    """Map arguments whose values are names (of boards, for example) to the functions that list these names. Keys are
    argparse destinations."""
    from microc.codegen.exports import list_formats
    from microc.device.boards import list_boards
    from microc.device.runners import list_runners
    from microc.isa import CORES

    def board_names() -> tuple[str, ...]:
        return (*list_boards(), "all-emulated", "attached")

    return {
        "board": list_boards,
        "board_names": board_names,
        "subject": list_boards,
        "format": list_formats,
        "runner": lambda: tuple(list_runners()),
        "target": lambda: tuple(CORES),
    }


def _command_syntax(
    name: str, help: str, parser: argparse.ArgumentParser, name_listers: Mapping[str, Callable[[], tuple[str, ...]]]
) -> CommandSyntax:
    """Describe a command's argparse parser as a :class:`CommandSyntax`.

    ``name_listers``: functions that list the names that an argument may have, by argparse destination."""
    options, words = [], []
    for group in parser._action_groups:
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
                continue
            text = _one_line_help(action)
            if action.option_strings:
                word, count = (
                    (_value_syntax(action, name_listers), _option_value_count(action))
                    if action.nargs != 0
                    else (None, 0)
                )
                options.append(OptionSyntax(tuple(action.option_strings), text, word, count, group.title or ""))
            else:
                words.append((_value_syntax(action, name_listers), text))
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    return CommandSyntax(name, help, usage, parser.epilog or "", tuple(options), tuple(words))


def _one_line_help(action: argparse.Action) -> str:
    """Return the help of an argument in one line, with argparse's placeholders replaced by values."""
    if not action.help or action.help == argparse.SUPPRESS:
        return ""
    return " ".join((action.help % {**vars(action), "prog": "microc"}).split())


def _option_value_count(action: argparse.Action) -> int:
    """Return the number of values that follow an option's flag."""
    return action.nargs if isinstance(action.nargs, int) else 1


def _value_syntax(action: argparse.Action, name_listers: Mapping[str, Callable[[], tuple[str, ...]]]) -> ValueSyntax:
    """Derive the syntax of an argument's value from its choices, destination and metavar.

    ``name_listers``: functions that list names, by argparse destination."""
    metavar = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar or action.dest.upper()
    if action.choices is not None:
        choices = tuple(map(str, action.choices))
        return ValueSyntax(action.metavar if isinstance(action.metavar, str) else "|".join(choices), choices)
    if action.dest in name_listers or action.dest == "option_board":
        return ValueSyntax(metavar, name_listers[action.dest](), FILES, (".toml",), is_list=metavar.endswith(",..."))
    value = metavar.removeprefix("[NAME=]")
    if "|" in value and value != metavar:
        return ValueSyntax(metavar, tuple(value.split("|")))
    if re.fullmatch("[a-z]+(,[a-z]+)+", metavar):
        return ValueSyntax(metavar, tuple(metavar.split(",")), is_list=True)
    upper = metavar.upper()
    if "MODEL" in upper and action.type is Path:
        return ValueSyntax(metavar, (), FILES, MODEL_SUFFIXES)
    if upper == "DIR":
        return ValueSyntax(metavar, (), FOLDERS)
    if action.type is Path or any(part in upper for part in ("FILE", "PATH", "PORT")):
        ends = tuple(end for end in _FILE_SUFFIXES if upper.endswith(end.upper()))
        return ValueSyntax(metavar, (), FILES, ends)
    return ValueSyntax(metavar)


def iter_flags(command: CommandSyntax) -> Iterator[tuple[str, OptionSyntax]]:
    """Yield every flag of a command, with the option to which it belongs."""
    return ((flag, option) for option in command.options for flag in option.flags)
