# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands share: base classes, and single arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microc.cli.declared.argument_values import parse_baud_rates, parse_pixel_values, parse_seconds
from microc.cli.declared.declarations import (
    SERIAL_LINE,
    Arguments,
    compilation_options,
    option,
    optional_option,
    optional_positional,
    path_option,
    repeatable_option,
    switch,
    text_option,
)
from microc.compiler.options import COMPILING, READING, STREAMING

MODEL = "model file: .tflite, .onnx, .keras, .h5, .pt2, .mcg, LightGBM or XGBoost"
FROM_CONFIG = Path("microc.toml")
"""Value of a path that the command line omits. :func:`microc.cli.argument_sources.fill_from_config` replaces it by a path that
``microc.toml`` names, or reports that it is missing, before the command runs. It is compared by identity."""


# ---- Functions that list names, for completion. They import what is slow.


def list_board_names() -> tuple[str, ...]:
    """List the names of all boards."""
    from microc.device.boards import list_boards

    return list_boards()


def list_core_names() -> tuple[str, ...]:
    """List the names of all cores."""
    from microc.isa import CORES

    return tuple(CORES)


# ---- Base classes.


class CompileArguments(Arguments):
    """Compilation options and the board."""

    command_line_options: Mapping[str, Any] = compilation_options(READING, COMPILING, STREAMING)
    board: str = text_option(
        "--board",
        "BOARD",
        "board: name (microc boards) or board file (default: host)",
        section=COMPILING,
        names=list_board_names,
    )


class ReadingArguments(Arguments):
    """Compilation options that control how a model is read."""

    command_line_options: Mapping[str, Any] = compilation_options(READING)


class ModelArguments(CompileArguments):
    """A model to compile."""

    model: Path = optional_positional("MODEL", MODEL, Path, FROM_CONFIG)


class FolderArguments(Arguments):
    """The folder of a project."""

    folder: Path = optional_positional("DIR", "project folder (default: from microc.toml)", Path, FROM_CONFIG)


class SourceArguments(CompileArguments):
    """A project, or a model that is compiled for a temporary project."""

    source: Path = optional_positional(
        "DIR|MODEL", "project folder, or model to compile and build (default: from microc.toml)", Path, FROM_CONFIG
    )


class SerialArguments(Arguments):
    """The serial line to a board."""

    port: str = text_option(
        "--port",
        "PORT",
        "serial port, tcp:// or socket://HOST:PORT, or auto (default: emulator, else auto)",
        section=SERIAL_LINE,
    )
    baud: tuple[int, ...] = option(
        "--baud",
        "RATE,...",
        "baud rates to try in order, or auto for common rates (default: the board's)",
        parse_baud_rates,
        (),
        section=SERIAL_LINE,
    )
    timeout: float = option(
        "--timeout",
        "SECONDS",
        "time to wait for an answer, or for a lost line to reconnect (default: 10)",
        parse_seconds,
        10.0,
        section=SERIAL_LINE,
    )


class DeviceArguments(SourceArguments, SerialArguments):
    """A network on a board."""

    network: str = text_option(
        "--network", "NAME", "name of the network, if the project has several (default: the first)"
    )


class InputArguments(Arguments):
    """One set of inputs."""

    inputs: tuple[Path, ...] = repeatable_option(
        "--input", "X.npy|PICTURE", "input array or picture, once per input, in order (default: random)", Path
    )
    pixels: tuple[float, float] | None = optional_option(
        "--pixels",
        "LOW HIGH",
        "input values of pixels 0 and 255 (default: raw bytes for 8-bit inputs, else 0 1)",
        parse_pixel_values,
    )


# ---- Single arguments.

FORCE = switch("--force", "permission to overwrite the project of another network")
INPUT_SEED = option("--seed", "SEED", "seed of the random inputs (default: 20)", int, 20)
VERIFIED = path_option(
    "--verified", "F.json|DIR", "accuracy to show: saved output of verify --json, or folder of verify --evidence"
)
