# SPDX-License-Identifier: Apache-2.0
"""What float networks cost with weights of 16 bits: flash and instructions on boards, time on this computer.

    python benchmarks/half_weights.py [--models vww,kws,vit,transformer,lstm] [--cores m4,m55,host] [--optimize balanced]

Instructions are counted on emulated boards, on random data; times are the least of many runs, by turns. ``error`` is the largest
difference from what the network of rounded weights means, as a share of its largest number; ``moved`` that of this from the
network as it is. Behind each figure stands its ratio to that, or to the
first form that the board has flash for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.operators import inputs, run
from benchmarks.tables import CORES as EMULATED
from benchmarks.tables import board_of, corpus
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.model import read_model
from microc.compiler.options import Options, make_options
from microc.compiler.pipeline import compile_graph, optimise_graph
from microc.device.toolchain import flags_if_machine_available, native_core
from microc.errors import MicrocError
from microc.graph.ir import Graph
from microc.graph.ir import run as run_graph
from microc.isa import CORES
from microc.module import Module
from microc.ops import registry
from microc.run.desktop.load import build_library
from microc.target import target_for

MODELS = {
    "vww": "tflite/mlperf_vww_float.tflite",
    "kws": "tflite/gen_dscnn_float.tflite",
    "ad": "tflite/mlperf_ad_float.tflite",
    "lstm": "tflite/gen_lstm2_float.tflite",
    "transformer": "onnx/torch_transformer_enc__dynamo_op18.onnx",
    "vit": "onnx/torch_vit_tiny_48__dynamo_op18.onnx",
}
FORMS = ("model", "float16", "bfloat16")
RUNS = 200


@dataclass(frozen=True)
class Figures:
    """Of a network: the cost of one inference (instructions, or microseconds), bytes of constants, its output."""

    cost: float
    weights: int
    output: Array


def meaning(graph: Graph, options: Options, data: Mapping[str, Array]) -> Array:
    """The first output by the operators' references."""
    plain = optimise_graph(graph, options)
    values = run_graph(plain, data, lambda node, arrays: registry.get(node.op).reference(node.attrs, arrays))
    return values[plain.outputs[0]].reshape(-1)


def constants(module: Module) -> int:
    return sum(value.nbytes for value in module.values.values() if value.storage == "const")


def on_board(graph: Graph, core: str, forms: Mapping[str, Options], data: dict[str, Array]) -> dict[str, Figures]:
    """Every form, compiled, built, booted and run once."""
    board, found = board_of(EMULATED[core]), {}
    for form, options in forms.items():
        module = compile_graph(graph, graph.name, board.target, options)
        try:
            counts, _, got = run(module, board, data)
        except MicrocError as error:
            print(f"{graph.name} with weights of {form} on {core}: {error.what[:60]}", file=sys.stderr)
            continue
        found[form] = Figures(sum(counts), constants(module), np.frombuffer(got[0], np.float32))
    return found


def on_host(graph: Graph, forms: Mapping[str, Options], data: dict[str, Array]) -> dict[str, Figures]:
    """Every form as a library of this computer, run by turns."""
    target = target_for(native_core())
    flags = flags_if_machine_available(CORES[target.cpu].machine)
    made = {form: compile_graph(graph, graph.name, target, options) for form, options in forms.items()}
    libraries = {form: build_library(shared_files(module, ""), *flags) for form, module in made.items()}
    for library in libraries.values():
        for position, array in enumerate(data.values()):
            library.set_input(position, array)
    least = dict.fromkeys(forms, np.inf)
    for _ in range(RUNS):
        for form, library in libraries.items():
            start = time.perf_counter()
            library.run()
            least[form] = min(least[form], 1e6 * (time.perf_counter() - start))
    return {
        form: Figures(least[form], constants(made[form]), library.get_output(0).reshape(-1))
        for form, library in libraries.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cores", default="m4,m55,host", help=f"of host,{','.join(EMULATED)}")
    parser.add_argument("--optimize", choices=("speed", "size", "balanced"), default="balanced")
    options = parser.parse_args()
    print(
        f"{'model':12}{'core':6}{'weights':10}{'cost':>12} {'ratio':>6}{'constants':>12} {'ratio':>6}    error    moved"
    )
    right = True
    for model in options.models.split(","):
        graph = read_model(corpus() / MODELS[model], make_options())
        data = inputs(graph)
        forms = {form: make_options(optimize=options.optimize, weight_dtype=form) for form in FORMS}
        means = {form: meaning(graph, chosen, data) for form, chosen in forms.items()}
        most = max(float(np.abs(means["model"]).max()), 1e-30)
        for core in options.cores.split(","):
            found = on_host(graph, forms, data) if core == "host" else on_board(graph, core, forms, data)
            plain = next(iter(found.values()), None)
            for form, f in found.items() if plain else ():
                error, moved = (float(np.abs(x - means[form]).max()) / most for x in (f.output, means["model"]))
                right = right and error < 1e-4
                print(
                    f"{model:12}{core:6}{form:10}{f.cost:>12,.0f} {f.cost / plain.cost:>6.3f}{f.weights:>12,} "
                    f"{f.weights / plain.weights:>6.3f} {error:8.1e} {moved:8.1e}",
                    flush=True,
                )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
