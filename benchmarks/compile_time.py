# SPDX-License-Identifier: Apache-2.0
"""What compiling costs: CPU seconds and memory of `microc compile`, cold and again, and where the time goes, stage by stage.

    python benchmarks/compile_time.py [--models kws,transformer,FILE | all] [--board BOARD] [--json FILE]

The command runs in processes of its own, with an empty cache and then with the one that the first left behind; their CPU time
(user and system, imports included, of files and templates whose bytecode is there as an installation has it) does not depend
on what else the computer does as much as a clock's. No board's compiler is on their PATH, so that nothing is linked. Stages
are those of one more compilation, without any cache. ``mobilenet`` (MobileNetV2 1.0 at 224 x 224, QDQ) and ``transformer`` (12
layers, floats) are made here, with random weights; the others come from the corpus (MICROC_CORPUS or ../shared/corpus). The
bars of ``tables.py`` are for two quiet cores of a computer of 2024.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import microc
from benchmarks.tables import AGAIN, COMPILE, INT8, MEMORY, corpus, network_path
from microc.cli import COLLECT_AFTER
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.codegen.render import template_environment
from microc.compiler.fit.budget import list_goals_to_try
from microc.compiler.fit.search import build_network
from microc.compiler.lowering.kernel_builder import Configuration
from microc.compiler.model import read_model
from microc.compiler.options import make_options
from microc.compiler.pipeline import optimise_graph
from microc.device.boards import load_board
from microc.graph.ir import Graph
from microc.plan.plan import plan_module

ROOT = Path(__file__).resolve().parents[1]
_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""MobileNetV2: expansion, channels, repetitions, stride of the first."""


@dataclass(frozen=True)
class Row:
    """CPU seconds of a first and a second compilation and of its stages, and the first one's largest memory in MiB."""

    model: str
    cold: float
    again: float
    memory: float
    stages: dict[str, float]
    missed: tuple[str, ...]


class _Quantised:
    """A QDQ network in the making: 8-bit layers with random weights, a scale for all channels."""

    def __init__(self) -> None:
        self.net, self.dice = microc.GraphBuilder(), np.random.default_rng(0)

    def quantised(self, value: str) -> str:
        numbers = {"scale": (0.05,), "zero_point": (0,)}
        stored = self.net.op("quantize", value, **numbers, out_dtype="int8", rounding="even")
        return self.net.op("dequantize", stored, **numbers)

    def convolved(self, value: str, channels: int, size: int, stride: int = 1, *, depthwise: bool = False) -> str:
        depth = self.net.shape(value)[-1]
        shape = (channels, size, size, 1 if depthwise else depth)
        stored = self.net.constant("weight", self.dice.integers(-127, 128, shape, np.int8))
        weight = self.net.op("dequantize", stored, scale=(0.01,), zero_point=(0,))
        edge = (size - 1) // 2
        attrs = {"strides": (stride, stride), "padding": (edge,) * 4, "dilation": (1, 1), "layout": "NHWC"}
        return self.net.op("conv2d", value, weight, groups=depth if depthwise else 1, **attrs)


def mobilenet() -> Graph:
    """MobileNetV2 1.0 on 224 x 224 pixels, quantised."""
    made = _Quantised()
    net = made.net
    value = made.quantised(net.input("image", (1, 224, 224, 3)))

    def activated(x: str) -> str:
        return made.quantised(net.op("clip", x, minimum=0.0, maximum=6.0))

    value = activated(made.convolved(value, 32, 3, 2))
    for expansion, channels, repetitions, stride in _BLOCKS:
        for k in range(repetitions):
            entered, wide = value, net.shape(value)[-1] * expansion
            if expansion > 1:
                value = activated(made.convolved(value, wide, 1))
            value = activated(made.convolved(value, wide, 3, 1 if k else stride, depthwise=True))
            value = made.quantised(made.convolved(value, channels, 1))
            if k:
                value = made.quantised(net.op("add", entered, value))
    value = activated(made.convolved(value, 1280, 1))
    value = made.quantised(net.op("mean", value, axes=(1, 2), keepdims=True))
    return net.graph("mobilenet", {"classes": made.convolved(value, 1000, 1)})


def transformer(layers: int = 12, length: int = 32, width: int = 64, heads: int = 4) -> Graph:
    """An encoder of floats: attention and two dense layers in each layer, with residuals and normalisations."""
    net, dice = microc.GraphBuilder(), np.random.default_rng(0)

    def dense(x: str, count: int) -> str:
        weight = dice.normal(size=(count, net.shape(x)[-1])).astype(np.float32)
        return net.op("dense", x, net.constant("weight", weight), net.constant("bias", np.zeros(count, np.float32)))

    def normalised(x: str) -> str:
        centred = net.op("sub", x, net.op("mean", x, axes=(1,), keepdims=True))
        variance = net.op("mean", net.op("mul", centred, centred), axes=(1,), keepdims=True)
        return net.op("mul", centred, net.op("rsqrt", net.op("add", variance, net.scalar(1e-5))))

    def split(x: str, axes: tuple[int, ...]) -> str:
        return net.op("transpose", net.reshape(x, (length, heads, width // heads)), axes=axes)

    value = net.input("tokens", (length, width))
    for _ in range(layers):
        query, key, data = (
            split(dense(value, width), (1, 0, 2)),
            split(dense(value, width), (1, 2, 0)),
            dense(value, width),
        )
        scores = net.op("softmax", net.op("matmul", query, key), axis=-1)
        mixed = net.op("transpose", net.op("matmul", scores, split(data, (1, 0, 2))), axes=(1, 0, 2))
        value = normalised(net.op("add", value, dense(net.reshape(mixed, (length, width)), width)))
        value = normalised(net.op("add", value, dense(net.op("relu", dense(value, 4 * width)), width)))
    return net.graph("transformer", {"result": value})


MADE: Mapping[str, Callable[[], Graph]] = {"mobilenet": mobilenet, "transformer": transformer}


def command(model: Path, board: str, folder: Path, cache: Path) -> tuple[float, float]:
    """CPU seconds of `microc compile`, and the most memory it had, in MiB."""
    words = [sys.executable, "-m", "microc", "compile", str(model), "--board", board, "-o", str(folder), "--quiet"]
    # Without a compiler on the PATH nothing is linked: the time of gcc is not the compiler's.
    environment = {**os.environ, "PATH": "", "PYTHONPATH": str(ROOT), "MICROC_CACHE": str(cache)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{model.name}: microc compile ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def stages(model: Path, board: str) -> dict[str, float]:
    """CPU seconds of every stage of one compilation in this process, imports left out."""
    gc.set_threshold(COLLECT_AFTER)  # as the command does
    options, on, spent = make_options(cache=False), load_board(board), dict[str, float]()

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        spent[stage] = time.process_time() - begin

    with timed("read"):
        read = read_model(model, options)
    with timed("passes"):
        graph = optimise_graph(read, options)
    with timed("kernels"):
        requested = Configuration(graph, list_goals_to_try(graph, options, on.target)[0])
        module = build_network(requested, on.target, model.name, options).module
    with timed("plan"):
        module = plan_module(replace(module, options={**module.options, "protocol": options.protocol}))
    with timed("print"):
        files = project_files((module,), on, microc.__version__)
    with timed("write"), tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder) / "project", files)
    return spent


def measured(model: Path, board: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        cold, memory = command(model, board, place / "first", place / "cache")
        again, _ = command(model, board, place / "second", place / "cache")
    with ProcessPoolExecutor(
        1, get_context("spawn")
    ) as apart:  # a process that grew would count in those that it starts
        spent = apart.submit(stages, model, board).result()
    limits = {"cold": COMPILE.get(model.stem, COMPILE["corpus"]), "again": AGAIN, "memory": MEMORY}
    found = {"cold": cold, "again": again - spent["read"], "memory": memory}
    return Row(model.stem, cold, again, memory, spent, tuple(what for what in found if found[what] > limits[what]))


def board_for(model: Path) -> str:
    """A board of the size that such networks are for."""
    return "nrf52840dk" if model.stem.startswith("mlperf_") and model.stem.endswith("_int8") else "host"


def models(names: str, folder: Path) -> Iterator[Path]:
    """The files of models by name; those that are made here are written into a folder."""
    if names == "all":
        names = ",".join(str(path) for kind in ("tflite", "onnx") for path in sorted(corpus().glob(f"*/*.{kind}")))
    for name in names.split(","):
        if name in MADE:
            microc.save(MADE[name](), folder / f"{name}.mcg")
            yield folder / f"{name}.mcg"
        else:
            yield network_path(name) if name in INT8 else Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join((*INT8, *MADE)))
    parser.add_argument("--board", default="", help="default: nrf52840dk for MLPerf's networks, host for others")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    compileall.compile_dir(ROOT / "microc", quiet=1)
    sys.dont_write_bytecode = False  # as Python does by default: microc keeps what Jinja makes of its templates so, too
    for template in template_environment().list_templates(["j2"]):
        template_environment().get_template(template)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models(arguments.models, Path(folder)):
            rows.append(row := measured(model, arguments.board or board_for(model)))
            parts = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in row.stages.items())
            missed = f"  misses: {', '.join(row.missed)}" if row.missed else ""
            print(
                f"{row.model:32} {row.cold:6.2f} s, again {row.again:5.2f} s, {row.memory:5.0f} MiB   {parts}{missed}"
            )
            sys.stdout.flush()
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
