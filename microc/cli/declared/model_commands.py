# SPDX-License-Identifier: Apache-2.0
"""The commands that compile a model, or convert it: each is one declaration of name, summary, function, examples, arguments.

The order is that of ``microc --help``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.cli.declared.declarations import (
    FORCE,
    MODEL,
    CompileArguments,
    ModelArguments,
    ReadingArguments,
    choice,
    command,
    compilation_options,
    list_board_names,
    list_core_names,
    option,
    optional_option,
    optional_positional,
    parse_duration,
    parse_layer_bits,
    parse_pixel_values,
    parse_seconds,
    parse_share,
    path_option,
    positional,
    positionals,
    repeatable_option,
    required_option,
    switch,
    text_option,
)
from microc.compiler.option_values import parse_byte_count
from microc.compiler.options import COMPILING, READING, STREAMING

# ---- Compiling a model.


@command(
    "compile",
    "compile a model into a C project",
    "commands:run_compile_command",
    "model.tflite -o firmware",
    "model.onnx --board netduinoplus2 --input-shape input=1,3,96,96 -o firmware",
    "keywords.tflite --stream 1 --stream-allow window -o firmware",
    "wake_word.tflite command.tflite --board nrf52840dk -o firmware",
    "model.tflite --board nrf52840dk --relocatable -o network.bin",
)
class CompileCommandArguments(CompileArguments):
    """Arguments of ``microc compile``."""

    models: tuple[Path, ...] = positionals(
        "MODEL", "model files, compiled into one firmware (default: from microc.toml)", Path
    )
    output: Path | None = path_option(
        "-o --output", "DIR", "project folder; with --relocatable, the file NAME.bin of the network alone"
    )
    force: bool = FORCE


@command(
    "check",
    "check if a model can fit --board, --flash or --ram, without compiling it",
    "commands:run_check_command",
    "model.tflite",
    "model.onnx --board microbit",
    "model.onnx --board microbit --io caller --exact",
)
class CheckArguments(ModelArguments):
    """Arguments of ``microc check``."""

    exact: bool = switch("--exact", "exact sizes by compiling for the board, unless the model provably does not fit")
    tensors: bool = switch("--tensors", "list of the model's tensors, by the names that --inputs and --outputs accept")


@command(
    "explain",
    "explain a layer's kernel: candidates with costs, schedule steps, C",
    "reporting:run_explain_command",
    "model.tflite --board mps2-an386",
    "model.tflite conv1 --board mps2-an386",
    "model.onnx 3 --target cortex-m55 --optimize speed --full",
    "model.tflite softmax --json",
)
class ExplainArguments(ModelArguments):
    """Arguments of ``microc explain``."""

    layer: str = optional_positional(
        "LAYER", "name of a layer, part of a name, or step number (default: list of all steps)", str, ""
    )
    target: str = text_option(
        "--target", "CORE", "core, such as cortex-m4 (default: the board's, or this computer)", names=list_core_names
    )
    full: bool = switch("--full", "listings after every step and pass, or intrinsics that no layer calls")


@command(
    "import",
    "convert a model to microc's graph format (.mcg) or to ONNX",
    "commands:run_import_command",
    "model.onnx -o model.mcg",
    "model.tflite -o model.onnx",
    "model.onnx --outputs /features/Flatten_output_0 -o features.mcg",
    "model.tflite --features features.toml -o model.mcg",
)
class ImportArguments(ReadingArguments):
    """Arguments of ``microc import``."""

    model: Path = positional("MODEL", MODEL, Path)
    output: Path = required_option("-o --output", "FILE", "file to write, such as model.mcg or model.onnx", Path)
    features: Path | None = path_option(
        "--features", "FILE", "TOML file of feature stages to insert before the network (docs/features.md)"
    )


# ---- ``microc quantize``.

_DATA = ".npz, .npy, .csv, or a folder of samples"
_LIMITS = "limits for the search of bits per layer (docs/quantisation.md)"


@command(
    "quantize",
    "quantise a float network to integers, and measure the loss",
    "quantize:run_quantize_command",
    "model.onnx --data calibration.npz -o model.mcg",
    "model.onnx --data images/ --pixels -1 1 --eval test/ --board nucleo-l476rg -o model.mcg --html report.html",
    "model.keras --data train.npz --labels y --activations int16 -o model.mcg",
    "model.onnx --data calibration.npz --weights 4 --block 32 -o model.onnx",
    "model.onnx --data calibration.npz --flash 48K --board nucleo-l476rg -o model.mcg",
    "model.onnx --data train.npz --eval test.npz --labels y --max-drop 1% --board nucleo-l476rg -o model.mcg",
)
class QuantizeArguments(ReadingArguments):
    """Arguments of ``microc quantize``."""

    model: Path = positional("MODEL", MODEL, Path)
    data: Path = required_option("--data", "DATA", f"typical inputs, tens to hundreds: {_DATA}", Path)
    evaluation: Path | None = path_option(
        "--eval", "DATA", "data on which both networks are compared (default: the calibration data)"
    )
    labels: str = text_option(
        "--labels", "NAME", "class numbers: array or column of the data, or file (default: subfolder names)"
    )
    pixels: tuple[float, float] | None = optional_option(
        "--pixels", "LOW HIGH", "input values of pixels 0 and 255", parse_pixel_values
    )
    activations: str = choice(
        "--activations", ("int8", "uint8", "int16"), "dtype of activations (default: int8)", "int8"
    )
    weights: int = choice("--weights", (8, 4, 2), "bits per weight: 8, 4 or 2 (default: 8)", 8, metavar="BITS")
    block: int = choice(
        "--block",
        (0, 16, 32, 64),
        "inputs per scale of 4- or 2-bit weights: 16, 32 or 64 (default: 0 for all)",
        0,
        metavar="INPUTS",
    )
    scales: str = choice("--scales", ("any", "power-of-two"), "allowed quantisation scales (default: any)", "any")
    layers: tuple[tuple[str, int], ...] = repeatable_option(
        "--layer",
        "NAME=BITS",
        "layer's bits: 8 (all), 4, 2 (weights), 16 (activations), 32 (float); repeatable",
        parse_layer_bits,
    )
    float_layers: tuple[str, ...] = repeatable_option(
        "--float-layer", "NAME", "layer that is not quantised; repeatable", str
    )
    weight_only: tuple[str, ...] = repeatable_option(
        "--weight-only", "NAME|all", "layer with integer weights but float arithmetic, or 'all'; repeatable", str
    )
    dynamic_range: tuple[str, ...] = repeatable_option(
        "--dynamic-range", "NAME|all", "layer that quantises its input at run time, or 'all'; repeatable", str
    )
    flash: int | None = optional_option(
        "--flash",
        "BYTES",
        "maximum flash of the firmware on --board, such as 65536 or 64K",
        parse_byte_count,
        section=_LIMITS,
    )
    ram: int | None = optional_option(
        "--ram", "BYTES", "maximum RAM of the firmware on --board", parse_byte_count, section=_LIMITS
    )
    time: float | None = optional_option(
        "--time", "SECONDS", "maximum estimated time of a run on --board", parse_seconds, section=_LIMITS
    )
    max_drop: float | None = optional_option(
        "--max-drop",
        "SHARE",
        "maximum loss of accuracy within which flash is minimised, such as 1% or 0.01",
        parse_share,
        section=_LIMITS,
    )
    ranges: str = choice(
        "--ranges",
        ("auto", "minmax", "percentile", "mse", "entropy", "moving-average"),
        "estimator of activation ranges (default: auto, the one with the least error)",
        "auto",
    )
    board: str = text_option(
        "--board", "BOARD", "board to estimate costs for, before and after: name or board file", names=list_board_names
    )
    html: Path | None = path_option("--html", "F.html", "page to write: accuracy, layers, Pareto front, advice")
    full: bool = switch("--full", "all rows of tables that are otherwise shortened")
    seed: int = option("--seed", "SEED", "random seed (default: 0)", int, 0)
    output: Path = required_option("-o --output", "FILE", "model to write, such as model.mcg or model.onnx", Path)


# ---- ``microc tune``.

DEFAULT_RECORDS = Path("tuned.jsonl")
_NO_SEARCH, _MEASUREMENT, _SEARCH = "instead of a search", "measurement", "search"


@command(
    "tune",
    "search for faster schedules by measuring kernels on a board",
    "tune:run_tune_command",
    "model.tflite --board mps2-an386 --records tuned.jsonl",
    "model.tflite --board nucleo-l476rg --port auto --time 10m",
    "model.tflite --board nucleo-l476rg --port /dev/ttyACM0 --port /dev/ttyACM1",
    "model.tflite --board mps2-an500 --measure cycles --records cycles.jsonl",
    "model.tflite --board mps2-an386 --fleet tcp://lab:8786",
    "model.onnx --target native --trials 2000 --jobs 2",
    "model.tflite --board mps2-an386 --external cmsis-nn=CMSIS-NN --records tuned.jsonl",
    "model.tflite --board mps2-an386 --space",
    "model.tflite --board mps2-an386 --trials 0 --plan plan.json",
    "--show tuned.jsonl --html page.html",
    "model.tflite --board mps2-an386 --records tuned.jsonl --repeat 0123456789ab",
    "--merge desk.jsonl lab.jsonl --records all.jsonl",
    notes="""tune --plan FILE writes an optimisation plan: for every layer, the schedule that compile --tuned would choose.
A plan may be edited by hand. compile --plan FILE then uses its schedules.""",
    json_lines=True,
)
class TuneArguments(CompileArguments):
    """Arguments of ``microc tune``."""

    command_line_options: Mapping[str, Any] = compilation_options(
        READING,
        COMPILING,
        STREAMING,
        replaced_help={"tuned": "", "plan": "optimisation plan to write, for microc compile --plan"},
    )
    model: Path | None = optional_positional("MODEL", MODEL, Path, None)
    records: Path = option(
        "--records", "FILE", "file to which tuning records are appended (default: tuned.jsonl)", Path, DEFAULT_RECORDS
    )
    html: Path | None = path_option(
        "--html", "F.html", "page to write: progress of the search, search spaces, chosen schedules"
    )
    space: bool = switch(
        "--space", "search space of every kernel in the model: decisions and their values", section=_NO_SEARCH
    )
    show: Path | None = path_option(
        "--show", "FILE", "table of the tuning records in a file, including failed measurements", section=_NO_SEARCH
    )
    repeat: str = text_option(
        "--repeat",
        "RECORD",
        "id of the record in --records to measure again, or first characters of the id",
        section=_NO_SEARCH,
    )
    merge: tuple[Path, ...] = repeatable_option(
        "--merge",
        "FILE",
        "files of tuning records to merge into --records, without duplicates",
        Path,
        count="+",
        section=_NO_SEARCH,
    )
    prune: Path | None = path_option(
        "--prune",
        "FILE",
        "file to rewrite without records that others beat in time, flash and workspace",
        section=_NO_SEARCH,
    )
    target: str = text_option(
        "--target",
        "CORE",
        "this computer instead of a board: native, or one of its cores",
        section=_MEASUREMENT,
        names=list_core_names,
    )
    ports: tuple[str, ...] = repeatable_option(
        "--port",
        "PORT",
        "serial port, auto, tcp://, or 'pipe:PROGRAM {elf}' (default: emulator); repeatable",
        str,
        section=_MEASUREMENT,
    )
    load: bool = switch(
        "--load", "candidates sent to RAM instead of flash, so times are those of code in RAM", section=_MEASUREMENT
    )
    measure: str = choice(
        "--measure",
        ("time", "cycles"),
        "quantity to reduce: time, or cycles of an emulated core (default: time)",
        "time",
        section=_MEASUREMENT,
    )
    jobs: int = option(
        "--jobs",
        "N",
        "number of emulators or processes that measure in parallel (default: 1)",
        int,
        1,
        section=_MEASUREMENT,
    )
    fleet: str = text_option(
        "--fleet", "ADDRESS", "address of a Dask scheduler whose workers have boards attached", section=_MEASUREMENT
    )
    trials: int = option(
        "--trials", "N", "maximum number of measurements, 0 for none (default: 500)", int, 500, section=_SEARCH
    )
    time: float = option(
        "--time",
        "TIME",
        "maximum duration of the search, such as 90s, 10m or 2h (default: unlimited)",
        parse_duration,
        0.0,
        section=_SEARCH,
    )
    search: str = choice(
        "--search",
        ("evolutionary", "random", "grid"),
        "search method (default: evolutionary)",
        "evolutionary",
        section=_SEARCH,
    )
    cost_model: str = choice(
        "--cost-model",
        ("auto", "analytic", "learned"),
        "cost model that ranks candidates, learned needs LightGBM (default: auto)",
        "auto",
        section=_SEARCH,
    )
    only: tuple[str, ...] = repeatable_option(
        "--only", "NAME", "layers to tune: a name, or part of a name; repeatable", str, section=_SEARCH
    )
    seed: int = option("--seed", "SEED", "random seed (default: 0)", int, 0, section=_SEARCH)


# ---- Projects.


def _list_export_formats() -> tuple[str, ...]:
    """List the names of the export formats."""
    from microc.codegen.exports import list_formats

    return list_formats()


@command(
    "export",
    "export a network for a build system: Arduino, CMake, Zephyr, Rust, ...",
    "projects:run_export_command",
    "--list",
    "model.tflite --format arduino --board arduino-mega -o kws_model",
    "model.onnx --format cmake --target cortex-m4 -o third_party/kws_model",
    "model.tflite --format rust --input x.npy -o kws_model",
    "model.tflite --format arduino --author 'Ada <ada@lab.org>' --url https://lab.org/kws --license MIT -o kws_model",
)
class ExportArguments(CompileArguments):
    """Arguments of ``microc export``."""

    model: Path | None = optional_positional("MODEL", MODEL, Path, None)
    listing: bool = switch("--list", "list of export formats, with how each is tested")
    format: str = text_option(
        "--format",
        "FORMAT",
        "export format (see --list), or folder of your own format (path with a slash)",
        names=_list_export_formats,
    )
    output: Path | None = path_option("-o --output", "DIR", "folder to write")
    force: bool = FORCE
    target: str = text_option(
        "--target", "CORE", "core, such as cortex-m4 (default: the board's, or any core)", names=list_core_names
    )
    inputs: tuple[Path, ...] = repeatable_option(
        "--input", "X.npy", "array for the exported example, once per input, in order (default: a pattern)", Path
    )
    author: str = text_option("--author", "AUTHOR", "author in manifests: a name, or 'Name <mail>'")
    url: str = text_option("--url", "URL", "address of the package's page or repository, in manifests")
    license: str = text_option("--license", "SPDX", "licence in manifests: an SPDX expression, such as MIT")
    package_version: str = text_option("--package-version", "VERSION", "version in manifests (default: 1.0.0)")


@command(
    "new",
    "create a project folder: microc.toml, the model and a README",
    "projects:run_new_command",
    "keywords --board nucleo-f446re --model model.tflite",
    "keywords --board netduinoplus2 --model model.onnx --input-shape input=1,3,96,96 --ram 30K",
    "first --board netduinoplus2",
)
class NewArguments(CompileArguments):
    """Arguments of ``microc new``."""

    folder: Path = positional("PROJECT", "project folder, new or empty", Path)
    model: Path | None = path_option(
        "--model", "MODEL", "model file to copy into the project (default: digits, as in microc demo)"
    )
