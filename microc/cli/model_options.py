"""The options that say how a model is read and compiled, which many commands share."""

from __future__ import annotations

import argparse
from pathlib import Path

from microc.cli import values


def reading_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the model")
    group.add_argument(
        "--input-shape",
        type=values.shape,
        action="append",
        default=[],
        metavar="NAME=1,3,8",
        help="shape of an input with symbolic dimensions; repeatable",
    )
    group.add_argument(
        "--inputs", dest="cut_inputs", type=values.names, action="append", default=[], metavar="NAME,...",
        help="cut the network: begin at these tensors (microc check --tensors lists all); repeatable",
    )  # fmt: skip
    group.add_argument(
        "--outputs", dest="cut_outputs", type=values.names, action="append", default=[], metavar="NAME,...",
        help="cut the network: end at these tensors; repeatable",
    )  # fmt: skip
    for end, example in (("input", "quantises it"), ("output", "dequantises it")):
        group.add_argument(
            f"--{end}-dtype", type=values.wish, action="append", default=[], metavar="[NAME=]DTYPE",
            help=f"type of the {end}: float32 where the network is quantised, int8 where it {example}; repeatable",
        )  # fmt: skip
        group.add_argument(
            f"--{end}-layout", type=values.wish, action="append", default=[], metavar="[NAME=]NCHW|NHWC",
            help=f"order of the {end}'s axes, channels first or last; all images unless named",
        )  # fmt: skip
    plugin_option(group)


def plugin_option(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--plugin", dest="plugins", type=Path, action="append", default=[], metavar="FILE.py",
        help="operators of your own (examples/custom_operator); the file's code runs; repeatable",
    )  # fmt: skip


def compile_options(command: argparse.ArgumentParser) -> None:
    reading_options(command)
    group = command.add_argument_group("compilation")
    group.add_argument("--board", default="", help="a name (microc boards) or a board file (default: host)")
    group.add_argument(
        "--bound", dest="bounds", type=values.bound, action="append", default=[], metavar="NAME=[MIN:]MAX[:STEP]",
        help="leave a symbolic dimension open up to a largest size: the application tells the size of every run "
        "(--bound batch=4 --bound seq=64); one without a name is INPUT:AXIS; repeatable",
    )  # fmt: skip
    group.add_argument("--name", default="", help="prefix of all C names (default: the model file's name)")
    group.add_argument(
        "--opt-level", type=int, choices=(0, 1, 2), default=2, help="0: fuse only what must be (default: 2)"
    )
    group.add_argument(
        "--disable-pass", action="append", default=[], metavar="PASS", help="leave out a graph pass; repeatable"
    )
    group.add_argument(
        "--io", choices=("arena", "caller"), default="arena", help="where inputs and outputs live (default: arena)"
    )
    group.add_argument(
        "--protocol", choices=("rpc", "mlperf"), default="rpc",
        help="what the firmware answers: microc, or the runner of MLPerf Tiny (name the network kws01, vww01, ic01 or ad01)",
    )  # fmt: skip
    group.add_argument(
        "--requantize", choices=("float", "fixed"), default="float",
        help="how QDQ models are requantised: as ONNX defines it, or in fixed point, faster on small cores (default: float)",
    )  # fmt: skip
    group.add_argument(
        "--hybrid", choices=("float", "dynamic"), default="float",
        help="layers of floats with integer weights: on widened weights, or with data quantised row by row as LiteRT does",
    )  # fmt: skip
    group.add_argument(
        "--rounding", choices=("tflm", "litert", "single"), default="tflm",
        help="integers of TFLite files: as TFLite Micro and CMSIS-NN round, bit for bit; as LiteRT, whose dense layers round "
        "once; or once everywhere, as with TFLITE_SINGLE_ROUNDING (default: tflm)",
    )  # fmt: skip
    group.add_argument(
        "--optimize", choices=("speed", "size", "balanced"), default="balanced",
        help="what the code is made for; balanced: a percent of the time is worth four percent of the flash (default: balanced)",
    )  # fmt: skip
    group.add_argument(
        "--flash", type=values.bytes, default=0, metavar="BYTES",
        help="what weights and code may take together, 256K for example (default: what the board has)",
    )  # fmt: skip
    group.add_argument(
        "--ram", type=values.bytes, default=0, metavar="BYTES",
        help="what the arena may take, 30K for example: layers are computed row by row where that is needed to keep within it "
        "(default: what the board has)",
    )  # fmt: skip
    _stream_options(command)
    group.add_argument(
        "--dump", type=Path, metavar="DIR",
        help="write every stage: the graph after every pass; for every kernel its tensor expression, all candidates with their "
        "cost, the function after every step and lowering pass, its C",
    )  # fmt: skip


def _stream_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("streaming: a network over a whole sequence, run frame by frame")
    group.add_argument(
        "--stream", type=values.axis, action="append", default=[], metavar="[INPUT=]AXIS",
        help="the input's time axis: a run takes the next frame, and gives what the whole sequence gives; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--hop", type=int, default=0, metavar="FRAMES",
        help="frames that a run takes (default: as few as the strides allow)",
    )  # fmt: skip
    group.add_argument(
        "--stream-allow", type=values.names, action="append", default=[], metavar="window,lookahead",
        help="window: layers that need all frames see the last ones, anew in every run; lookahead: padding behind the sequence's "
        "end becomes a delay",
    )  # fmt: skip
