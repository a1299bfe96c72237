# SPDX-License-Identifier: Apache-2.0
"""The commands on projects and boards, and lists: each is one declaration of name, summary, function, examples, arguments.

The order is that of ``microc --help``. The arguments of base classes precede a command's own; of several base classes, those of
the last come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.cli.declared.declarations import (
    FROM_CONFIG,
    INPUT_SEED,
    VERIFIED,
    Arguments,
    CompileArguments,
    DeviceArguments,
    FolderArguments,
    InputArguments,
    SerialArguments,
    SourceArguments,
    choice,
    command,
    compilation_options,
    list_board_names,
    option,
    optional_option,
    optional_positional,
    parse_baud_rates,
    parse_duration,
    parse_growth_limit,
    parse_inference_count,
    parse_learning_rate,
    parse_pixel_values,
    parse_quanta,
    parse_run_count,
    parse_seconds,
    parse_tcp_port,
    parse_tolerance,
    path_option,
    positional,
    repeatable_option,
    switch,
    text_option,
)
from microc.compiler.option_values import parse_names
from microc.run import AGAINST

# ---- Projects.


def _list_runner_names() -> tuple[str, ...]:
    """List the names of the flashing programs."""
    from microc.device.boards import list_runners

    return tuple(list_runners())


@command("build", "build a project's firmware and show its memory use", "commands:run_build_command", "firmware", "")
class BuildArguments(FolderArguments):
    """Arguments of ``microc build``."""


@command(
    "flash",
    "flash a project's firmware",
    "commands:run_flash_command",
    "firmware",
    "firmware --runner openocd --dry-run",
)
class FlashArguments(FolderArguments, SerialArguments):
    """Arguments of ``microc flash``."""

    folder: Path = optional_positional("DIR", "built project folder (default: from microc.toml)", Path, FROM_CONFIG)
    runner: str = text_option(
        "--runner",
        "RUNNER",
        "flashing program (default: the first installed one that the board file lists)",
        names=_list_runner_names,
    )
    dry_run: bool = switch("--dry-run", "command of the flashing program: printed, but not run")


@command(
    "load",
    "send a relocatable network to a board whose firmware can load networks",
    "projects:run_load_command",
    "network --port /dev/ttyACM0",
    "network.bin --port /dev/ttyACM0",
    "network",
)
class LoadArguments(FolderArguments, SerialArguments):
    """Arguments of ``microc load``."""

    folder: Path = optional_positional(
        "DIR|FILE", "project folder of compile --relocatable, or .bin file (default: microc.toml)", Path, FROM_CONFIG
    )


# ---- Running and measuring a network on a board.


@command(
    "run",
    "run a network on its board or emulator, and show the outputs",
    "project_context:run_run_command",
    "firmware --input x.npy --output y.npy",
    "model.tflite --board mps2-an386 --input x.npy",
    "firmware --input x.npy --port /dev/ttyACM0",
    "firmware --input cat.png",
)
class RunArguments(InputArguments, DeviceArguments):
    """Arguments of ``microc run``."""

    seed: int = INPUT_SEED
    outputs: tuple[Path, ...] = repeatable_option("--output", "Y.npy", "output file, once per output, in order", Path)


@command(
    "learn",
    "teach a network on its board or emulator, and compare answers before and after",
    "board_sessions:run_learn_command",
    "firmware --data train.npz --labels labels --epochs 5 --save learned.npz",
    "kws.tflite --board mps2-an386 --learn head.toml --data words --test others",
    "firmware --port /dev/ttyACM0 --restore learned.npz --data train.npz --labels labels",
    "firmware --port /dev/ttyACM0 --restore learned.npz --keep",
    "firmware --port /dev/ttyACM0 --fetch learned.npz",
    "autoencoder_firmware --data normal.npz --expected normal.npz",
)
class LearnArguments(DeviceArguments):
    """Arguments of ``microc learn``."""

    data: Path | None = path_option("--data", "PATH", "samples to learn from, as for microc verify")
    labels: str = text_option("--labels", "NAME|FILE", "class numbers: array or column of --data and --test, or a file")
    expected: Path | None = path_option(
        "--expected", "FILE", "expected outputs (.npz, .npy, .csv) to learn, of a loss on real numbers"
    )
    test: Path | None = path_option("--test", "PATH", "samples to compare answers on (default: those of --data)")
    pixels: tuple[float, float] | None = optional_option(
        "--pixels", "LOW HIGH", "input values of pixels 0 and 255", parse_pixel_values
    )
    rate: float = option("--rate", "R", "learning rate (default: 0.01)", parse_learning_rate, 0.01)
    epochs: int = option("--epochs", "N", "number of passes through the samples (default: 1)", parse_run_count, 1)
    seed: int = option("--seed", "SEED", "seed of the order of the samples (default: 20)", int, 20)
    restore: Path | None = path_option("--restore", "W.npz", "learned weights to begin with")
    save: Path | None = path_option("--save", "W.npz", "file of the learned weights to write")
    keep: bool = switch("--keep", "save the learned weights in the board's non-volatile banks")
    fetch: Path | None = path_option(
        "--fetch", "W.npz", "file for the weights of the board's newest bank (read before all else)"
    )
    clear: bool = switch("--clear", "erase the board's banks, before --keep")
    banks: bool = switch("--banks", "show the state of the board's banks")


@command(
    "profile",
    "measure every layer on a board: time, MACs, flash, memory",
    "reporting:run_profile_command",
    "firmware",
    "firmware --html report.html --csv layers.csv",
    "model.tflite --board mps2-an386 --trace trace.json",
    "model.tflite --board mps2-an500 --cycles",
)
class ProfileArguments(InputArguments, DeviceArguments):
    """Arguments of ``microc profile``."""

    cycles: bool = switch("--cycles", "cycles by a model of Cortex-M4, M7, M33 or M55, or by a simulator")
    html: Path | None = path_option("--html", "F.html", "page to write: network, timeline, memory, layers")
    verified: Path | None = VERIFIED
    csv: Path | None = path_option("--csv", "F.csv", "CSV table of layers to write")
    trace: Path | None = path_option("--trace", "T.json", "trace to write, for Perfetto or chrome://tracing")
    seed: int = INPUT_SEED


@command(
    "size",
    "show flash and RAM of a linked firmware by part, layer and symbol",
    "reporting:run_size_command",
    "firmware",
    "firmware --json > before.json",
    "firmware --compare before.json",
    "firmware --against before.json --fail-over 2%",
    "profile.json --against before_profile.json --fail-over flash=1% --fail-over time=5%",
    "my_product.elf --project firmware",
    "model.tflite --board mps2-an386 --csv symbols.csv",
)
class SizeArguments(DeviceArguments):
    """Arguments of ``microc size``."""

    source: Path = optional_positional(
        "DIR|MODEL", "project folder, ELF file, saved --json, or model (default: from microc.toml)", Path, FROM_CONFIG
    )
    project: Path | None = path_option(
        "--project", "DIR", "project of the network in an ELF file (default: folder of that file)"
    )
    compare: Path | None = path_option(
        "--compare", "F.json", "saved output of an earlier size --json, to list changes since"
    )
    base: Path | None = path_option(
        "--against", "BASE", "baseline of growth: project folder, or saved --json of size or profile"
    )
    fail_over: tuple[tuple[str, float], ...] = repeatable_option(
        "--fail-over",
        "[flash|ram|time=]SHARE",
        "maximum growth since --against, such as 2% (above: exit code 7); repeatable",
        parse_growth_limit,
    )
    csv: Path | None = path_option("--csv", "F.csv", "CSV table of all symbols to write")


_COMPARISON = "comparison with a framework"
_EVALUATION = "evaluation on your data: every sample runs on the board"


@command(
    "verify",
    "compare board and host bit by bit, and a network with its framework",
    "verification:run_verify_command",
    "firmware",
    "model.tflite --board mps2-an386 --samples 10",
    "firmware --input x.npy --port /dev/ttyACM0",
    "firmware --data test.npz --labels labels",
    "firmware --data test.csv --labels class --expected outputs.npz",
    "firmware --data photos --pixels -1 1",
    "model.onnx --against reference",
    "model.tflite --rounding litert --against litert --data test.npz",
    "firmware --against tflm --model model.tflite --evidence evidence",
    section_notes={_COMPARISON: f"FRAMEWORK is one of {', '.join(AGAINST)}."},
)
class VerifyArguments(InputArguments, DeviceArguments):
    """Arguments of ``microc verify``."""

    samples: int = option("--samples", "N", "number of input sets to compare kernel by kernel (default: 3)", int, 3)
    seed: int = INPUT_SEED
    tolerance: float | None = optional_option(
        "--tolerance",
        "T",
        "relative tolerance of floats (default: 1e-6 to host, 1e-4 to float32 framework)",
        parse_tolerance,
    )
    against: str = choice(
        "--against",
        AGAINST,
        "framework to compare with, or 'reference' for the one that made the model",
        "",
        metavar="FRAMEWORK",
        section=_COMPARISON,
    )
    model_file: Path | None = path_option(
        "--model", "FILE", "model file from which the project was compiled", section=_COMPARISON
    )
    quanta: int = option(
        "--quanta",
        "N",
        "tolerance of integers in quantisation steps (default: 0)",
        parse_quanta,
        0,
        section=_COMPARISON,
    )
    evidence: Path | None = path_option(
        "--evidence", "DIR", "folder for the evidence: page to sign, its data as JSON, and SHA256SUMS of both"
    )
    data: Path | None = path_option(
        "--data", "PATH", "samples: .npz, .npy, .csv, or a folder of arrays, pictures or .wav", section=_EVALUATION
    )
    labels: str = text_option(
        "--labels", "NAME|FILE", "class numbers for accuracy: array or column of --data, or a file", section=_EVALUATION
    )
    answer: str = text_option(
        "--answer",
        "OUTPUT",
        "output with the class (default: first with class numbers, else the first)",
        section=_EVALUATION,
    )
    expected: Path | None = path_option(
        "--expected",
        "FILE",
        "expected outputs (.npz, .npy, .csv) to compare with, by RMSE and cosine",
        section=_EVALUATION,
    )


def _list_bench_boards() -> tuple[str, ...]:
    """List the words of ``bench --boards``: names of boards, and of groups of boards."""
    return (*list_board_names(), "all-emulated", "attached")


@command(
    "bench",
    "measure one network on several boards, attached or emulated, or estimate it",
    "reporting:run_bench_command",
    "model.tflite --all --estimate",
    "model.tflite --boards microbit,mps2-an386,qemu-riscv32",
    "model.tflite --boards all-emulated --json",
    'model.tflite --boards attached --meter "python joulescope.py"',
    "model.tflite --boards mps2-an386 --against tflm --tflm tflite-micro",
)
class BenchArguments(SourceArguments):
    """Arguments of ``microc bench``."""

    source: Path = optional_positional("MODEL", "model file (default: from microc.toml)", Path, FROM_CONFIG)
    board: str = ""
    board_names: tuple[str, ...] = option(
        "--boards",
        "NAME,...",
        "board names, board files, all-emulated or attached (default: from microc.toml)",
        parse_names,
        (),
        names=_list_bench_boards,
    )
    all_boards: bool = switch("--all", "every board that microc knows")
    estimate: bool = switch("--estimate", "estimates in a second per core, best board first; builds and runs nothing")
    meter: str = text_option(
        "--meter", "COMMAND", "program that measures energy or power of the runs (docs/firmware.md)"
    )
    repeat: int | None = optional_option(
        "--repeat",
        "N",
        "number of inferences to average (default: 1, or 100 if --meter is given)",
        parse_inference_count,
    )
    timeout: float = option(
        "--timeout",
        "SECONDS",
        "seconds without an answer after which a board is skipped (default: 10)",
        parse_seconds,
        10.0,
    )
    against: str = choice(
        "--against", ("tflm",), "engine to measure beside microc: TFLite Micro, on the same board", "", metavar="tflm"
    )
    tflm: Path | None = path_option("--tflm", "DIR", "copy of TFLite Micro, built for the board (default: MICROC_TFLM)")


# ---- Reports.


@command(
    "report",
    "estimate a network's costs on a board, layer by layer, without hardware",
    "reporting:run_report_command",
    "model.tflite --board netduinoplus2",
    "model.tflite --board netduinoplus2 -o report.html",
    "model.tflite --board netduinoplus2 --verified verify.json -o report.html",
    "firmware -o report.json",
)
class ReportArguments(SourceArguments):
    """Arguments of ``microc report``."""

    source: Path = optional_positional(
        "MODEL|DIR", "model or project folder (default: from microc.toml)", Path, FROM_CONFIG
    )
    output: Path | None = path_option("-o --output", "FILE", "report to write: page (.html) or data (.json)")
    verified: Path | None = VERIFIED
    bench: Path | None = path_option(
        "--bench", "F.json", "comparison to show: saved output of bench --against tflm --json"
    )


@command(
    "compare",
    "compare two reports, projects or models: totals and layers",
    "reporting:run_compare_command",
    "before.json after.json",
    "before.html after.html --html compared.html",
    "float.onnx int8.tflite --board netduinoplus2",
)
class CompareArguments(CompileArguments):
    """Arguments of ``microc compare``."""

    before: Path = positional("BEFORE", "report (.json or .html), project folder or model", Path)
    after: Path = positional("AFTER", "report, project folder or model to compare with BEFORE", Path)
    html: Path | None = path_option("--html", "F.html", "page to write: report of AFTER, compared with BEFORE")


_RUNS, _PAGE = "runs", "the page"


@command(
    "watch",
    "show inputs and outputs of a network on a board, live in a browser",
    "board_sessions:run_watch_command",
    "firmware --data test.npz --labels labels",
    "firmware --from-board --port auto --every 0.2",
    "model.tflite --board netduinoplus2 --no-browser",
    "firmware --data recordings --runs 100 --json",
    json_lines=True,
)
class WatchArguments(DeviceArguments):
    """Arguments of ``microc watch``."""

    data: Path | None = path_option(
        "--data", "PATH", "samples to run in a loop, as for microc verify (default: random inputs)", section=_RUNS
    )
    labels: str = text_option(
        "--labels", "NAME|FILE", "class numbers to compare with: array or column of --data, or a file", section=_RUNS
    )
    pixels: tuple[float, float] | None = optional_option(
        "--pixels", "LOW HIGH", "input values of pixels 0 and 255", parse_pixel_values, section=_RUNS
    )
    from_board: bool = switch(
        "--from-board", "inputs that the firmware itself provides, such as sensor data", section=_RUNS
    )
    every: float = option(
        "--every",
        "SECONDS",
        "minimum time between the starts of two runs (default: 0.5)",
        parse_seconds,
        0.5,
        section=_RUNS,
    )
    runs: int = option("--runs", "N", "number of runs (default: until Ctrl-C)", parse_run_count, 0, section=_RUNS)
    seed: int = option("--seed", "SEED", "seed of the random inputs (default: 20)", int, 20, section=_RUNS)
    http: int = option(
        "--http", "PORT", "TCP port of the page on 127.0.0.1 (default: a free port)", parse_tcp_port, 0, section=_PAGE
    )
    browser: bool = switch(
        "--no-browser", "no browser window: the address of the page is only printed", value=False, section=_PAGE
    )


_LISTENING, _LINE = "listening", "the board's line"


@command(
    "serve",
    "let other computers use a project's board, over TCP",
    "board_sessions:run_serve_command",
    "firmware",
    "firmware --port 5555 --token token.txt",
    "firmware --serial /dev/ttyACM0 --host 0.0.0.0 --port 5555",
    "firmware --json",
    notes="A client has the token in MICROC_TOKEN and gives --port tcp://HOST:PORT (docs/remote.md).",
    json_lines=True,
)
class ServeArguments(FolderArguments):
    """Arguments of ``microc serve``."""

    tcp_port: int = option(
        "--port", "N", "TCP port to listen on (default: a free port)", parse_tcp_port, 0, section=_LISTENING
    )
    host: str = option(
        "--host",
        "ADDRESS",
        "address to listen on; 0.0.0.0 for all (default: 127.0.0.1)",
        str,
        "127.0.0.1",
        section=_LISTENING,
    )
    token: Path | None = path_option(
        "--token", "FILE", "file with the token of clients, - for stdin (default: random)", section=_LISTENING
    )
    idle: float = option(
        "--idle",
        "SECONDS",
        "silence after which a client is disconnected (default: 60)",
        parse_seconds,
        60.0,
        section=_LISTENING,
    )
    time: float = option(
        "--time",
        "TIME",
        "time to serve, such as 90s, 10m or 2h (default: until Ctrl-C)",
        parse_duration,
        0.0,
        section=_LISTENING,
    )
    serial: str = text_option(
        "--serial",
        "PORT",
        "serial port of the board, or auto by USB id (default: emulator, else auto)",
        section=_LINE,
    )
    baud: tuple[int, ...] = option(
        "--baud", "RATE,...", "baud rates to try in order (default: the board's)", parse_baud_rates, (), section=_LINE
    )
    timeout: float = option(
        "--timeout",
        "SECONDS",
        "time to wait for the board's answer when its line is opened (default: 10)",
        parse_seconds,
        10.0,
        section=_LINE,
    )


# ---- Lists, tools, and the command line itself.


@command(
    "boards",
    "list, show or validate boards",
    "catalogue:run_boards_command",
    "",
    "show netduinoplus2",
    "validate my_board.toml",
    "--like nucleo-f446re",
)
class BoardsArguments(Arguments):
    """Arguments of ``microc boards``."""

    action: str = optional_positional(
        "", "action: list, show or validate (default: list)", str, "list", choices=("list", "show", "validate")
    )
    subject: str = optional_positional(
        "NAME|FILE", "name of a board, or path of a board file", str, "", names=list_board_names
    )
    like: str = text_option(
        "--like",
        "NAME|FILE",
        "nearest emulated board, of a board or of all whose names hold NAME",
        names=list_board_names,
    )


@command(
    "plugin",
    "run the test cases of a plugin's operators",
    "catalogue:run_plugin_command",
    "check examples/custom_operator/operators.py",
)
class PluginArguments(Arguments):
    """Arguments of ``microc plugin``."""

    action: str = positional("", "action to run: check", str, choices=("check",))
    plugin_file: Path = positional("FILE.py", "plugin file (see microc.plugin); its code is executed", Path)


@command(
    "operators",
    "list the supported operators with their dtypes",
    "catalogue:run_operators_command",
    "",
    "--plugin operators.py --json",
)
class OperatorsArguments(Arguments):
    """Arguments of ``microc operators``."""

    command_line_options: Mapping[str, Any] = compilation_options(only=["plugins"], section="")
    markdown: bool = switch("--markdown", "output as Markdown, as in docs/operators.md")


@command("options", "list the compilation options", "catalogue:run_options_command", "", "--json")
class OptionsArguments(Arguments):
    """Arguments of ``microc options``."""

    markdown: bool = switch("--markdown", "output as Markdown, as in docs/options.md")


@command("ports", "list the serial ports of this computer", "catalogue:run_ports_command", "")
class PortsArguments(Arguments):
    """Arguments of ``microc ports``."""


@command(
    "demo",
    "run a demonstration network on an emulated microcontroller",
    "projects:run_demo_command",
    "",
    "--board microbit",
)
class DemoArguments(Arguments):
    """Arguments of ``microc demo``."""

    board: str = text_option(
        "--board",
        "BOARD",
        "board to run on (default: netduinoplus2, or host if its tools are missing)",
        names=list_board_names,
    )


@command(
    "doctor",
    "check for the tools that microc needs, and install missing ones",
    "catalogue:run_doctor_command",
    "",
    "--board nucleo-f446re",
    "--fix",
    "--fix --yes",
)
class DoctorArguments(Arguments):
    """Arguments of ``microc doctor``."""

    board: str = text_option(
        "--board",
        "BOARD",
        "board whose tools are checked: name or board file (default: all tools)",
        names=list_board_names,
    )
    fix: bool = switch("--fix", "command line that installs the missing tools: printed, and run only with --yes")
    yes: bool = switch("--yes", "permission for --fix to run the command line that it prints")


@command(
    "completion",
    "print the completion script for a shell",
    "shell_files:run_completion_command",
    "bash > ~/.local/share/bash-completion/completions/microc",
    "fish > ~/.config/fish/completions/microc.fish",
)
class CompletionArguments(Arguments):
    """Arguments of ``microc completion``."""

    shell: str = positional("SHELL", "shell: bash, zsh or fish", str, choices=("bash", "zsh", "fish"))


@command("man", "print the manual page", "shell_files:run_man_command", "> microc.1")
class ManArguments(Arguments):
    """Arguments of ``microc man``."""
