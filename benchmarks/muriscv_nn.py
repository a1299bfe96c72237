# SPDX-License-Identifier: Apache-2.0
"""RISC-V's vectors beside muRISCV-NN's kernels: instructions of the same networks under QEMU.

    python benchmarks/muriscv_nn.py SOURCES [--networks FILE ...] [--bits 128]

SOURCES: a checkout of github.com/tum-ei-eda/muriscv-nn. Its kernels for vectors and ours are compiled by the same clang with the
same flags and counted as ``riscv_vector.py`` counts. The peer's side calls a kernel for each layer, as TFLite Micro does, without
the interpreter around it; buffers are zero, which its instructions do not depend on. Reshapes cost it nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import tflite

from benchmarks.riscv_vector import CLANG, VECTOR, counted, instructions
from benchmarks.tables import INT8, network_path

FLAGS = ("-march=rv64gcv", "-mabi=lp64d", "-DUSE_VEXT")
HEAD = """#include "muriscv_nn_functions.h"
#include "muriscv_nn_support_functions.h"
static int8_t a[1 << 20], b[1 << 20], weights[1 << 20];
static int32_t bias[4096], multiplier[4096], shift[4096], buffer[1 << 18];
static const muriscv_nn_context context = {buffer, sizeof buffer};
static const muriscv_nn_per_channel_quant_params channels = {multiplier, shift};
static const muriscv_nn_per_tensor_quant_params tensor = {1 << 30, -6};
int main(int count, char **words)
{
    int failed = 0;
    (void)words;
    for (int k = 0; k < 4096; ++k) {
        multiplier[k] = 1 << 30;
        shift[k] = -6;
    }
    if (count > 1) {
"""
TAIL = """    }
    return failed;
}
"""
SPATIAL = """{{
    const muriscv_nn_dims in = {{1, {ih}, {iw}, {ic}}}, out = {{1, {oh}, {ow}, {oc}}};
    const muriscv_nn_dims filter = {{{oc}, {kh}, {kw}, {fc}}}, ends = {{1, 1, 1, {oc}}};
    const {kind} params = {{128, -128, {extra}{{{sw}, {sh}}}, {{{pw}, {ph}}}, {{1, 1}}, {{-128, 127}}}};
    failed |= {function}(&context, &params, &channels, &in, a, &filter, weights, &ends, bias, &out, b);
}}"""
POOL = """{{
    const muriscv_nn_dims in = {{1, {ih}, {iw}, {ic}}}, filter = {{1, {kh}, {kw}, 1}}, out = {{1, {oh}, {ow}, {oc}}};
    const muriscv_nn_pool_params params = {{{{{sw}, {sh}}}, {{{pw}, {ph}}}, {{-128, 127}}}};
    failed |= muriscv_nn_avgpool_s8(&context, &params, &in, a, &filter, &out, b);
}}"""
DENSE = """{{
    const muriscv_nn_dims in = {{{rows}, 1, 1, {k}}}, out = {{{rows}, 1, 1, {n}}};
    const muriscv_nn_dims filter = {{{k}, 1, 1, {n}}}, ends = {{1, 1, 1, {n}}};
    const muriscv_nn_fc_params params = {{128, 0, -128, {{-128, 127}}}};
    failed |= muriscv_nn_fully_connected_s8(&context, &params, &tensor, &in, a, &filter, weights, &ends, bias, &out, b);
}}"""
ADD = (
    "failed |= muriscv_nn_elementwise_add_s8(a, b, 128, 1 << 30, 0, 128, 1 << 30, 0, 20, a, -128, 1 << 30, -19, -128, 127,"
    " {size});"
)
SOFTMAX = "muriscv_nn_softmax_s8(a, {rows}, {size}, 1 << 30, 23, -248, b);"


@dataclass(frozen=True)
class Layer:
    """An operator of a TFLite file: its name, the shapes of its operands and its options' table."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    options: Any


def layers(path: Path) -> Iterator[Layer]:
    model = tflite.Model.GetRootAs(path.read_bytes())
    graph = model.Subgraphs(0)
    names = {code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)}

    def shape(index: int) -> tuple[int, ...]:
        return tuple(int(extent) for extent in graph.Tensors(index).ShapeAsNumpy())

    for k in range(graph.OperatorsLength()):
        op = graph.Operators(k)
        name = names[model.OperatorCodes(op.OpcodeIndex()).BuiltinCode()]
        yield Layer(name, tuple(map(shape, op.InputsAsNumpy())), shape(op.Outputs(0)), op.BuiltinOptions())


def called(layer: Layer) -> str:
    """The peer's call of a layer, in C. Raises: ValueError of an operator that these networks lack."""
    match layer.name:
        case "CONV_2D" | "DEPTHWISE_CONV_2D":
            return convolution(layer)
        case "AVERAGE_POOL_2D":
            options = tflite.Pool2DOptions()
            options.Init(layer.options.Bytes, layer.options.Pos)
            return POOL.format(**window(layer, options, options.FilterHeight(), options.FilterWidth()))
        case "FULLY_CONNECTED":
            n, k = layer.inputs[1]
            return DENSE.format(rows=prod(layer.output) // n, n=n, k=k)
        case "ADD":
            return ADD.format(size=prod(layer.output))
        case "SOFTMAX":
            return SOFTMAX.format(rows=prod(layer.output[:-1]), size=layer.output[-1])
        case "RESHAPE":
            return ""
    raise ValueError(f"{layer.name} is not among the operators of this comparison")


def convolution(layer: Layer) -> str:
    depthwise = layer.name == "DEPTHWISE_CONV_2D"
    options = tflite.DepthwiseConv2DOptions() if depthwise else tflite.Conv2DOptions()
    options.Init(layer.options.Bytes, layer.options.Pos)
    _, kh, kw, depth = layer.inputs[1]
    words = window(layer, options, kh, kw)
    if depthwise:
        kind, function = "muriscv_nn_dw_conv_params", "muriscv_nn_depthwise_conv_wrapper_s8"
        extra = f"{options.DepthMultiplier()}, "
    else:
        kind, function, extra = "muriscv_nn_conv_params", "muriscv_nn_convolve_wrapper_s8", ""
    return SPATIAL.format(kind=kind, function=function, extra=extra, fc=depth, **words)


def window(layer: Layer, options: Any, kh: int, kw: int) -> dict[str, int]:
    """Extents, strides and padding of a layer that slides a window of kh x kw over an image in NHWC."""
    (_, ih, iw, ic), (_, oh, ow, oc) = layer.inputs[0], layer.output
    sh, sw = options.StrideH(), options.StrideW()
    ph, pw = max((oh - 1) * sh + kh - ih, 0) // 2, max((ow - 1) * sw + kw - iw, 0) // 2
    return {
        "ih": ih,
        "iw": iw,
        "ic": ic,
        "oh": oh,
        "ow": ow,
        "oc": oc,
        "kh": kh,
        "kw": kw,
        "sh": sh,
        "sw": sw,
        "ph": ph,
        "pw": pw,
    }


def peer(model: Path, archive: Path, sources: Path, bits: int) -> int:
    """Instructions of the peer's kernels for one inference."""
    with tempfile.TemporaryDirectory() as name:
        program, text = Path(name, "program"), Path(name, "main.c")
        text.write_text(HEAD + "\n".join(map(called, layers(model))) + TAIL)
        command = [*CLANG, *FLAGS, f"-I{sources / 'Include'}", str(text), str(archive), "-o", str(program)]
        subprocess.run(command, check=True)
        return counted(program, bits, "run") - counted(program, bits)


def built(sources: Path, folder: Path) -> Path:
    """The peer's kernels as an archive, out of which a program takes what it calls: not all of them link."""
    files = sorted(sources.glob("Source/*/*.c"))
    if not files:
        raise SystemExit(
            f"{sources}: no Source/*/*.c of muRISCV-NN: name its checkout (github.com/tum-ei-eda/muriscv-nn)"
        )
    command = [
        *CLANG,
        *FLAGS,
        "-w",
        "-c",
        f"-I{sources.resolve() / 'Include'}",
        *(str(file.resolve()) for file in files),
    ]
    subprocess.run(command, check=True, cwd=folder)
    archive = folder / "peer.a"
    subprocess.run(["riscv64-linux-gnu-ar", "rcs", str(archive), *map(str, folder.glob("*.o"))], check=True)
    return archive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--networks", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--bits", type=int, default=128, help="of a vector register")
    options = parser.parse_args()
    networks = options.networks or [network_path(name) for name in sorted(INT8)]
    with tempfile.TemporaryDirectory() as folder:
        archive = built(options.sources, Path(folder))
        print(f"{'network':24}{'muRISCV-NN':>14}{'microc':>14}{'ratio':>8}")
        for model in networks:
            theirs, ours = (
                peer(model, archive, options.sources, options.bits),
                instructions(model, VECTOR, options.bits),
            )
            print(f"{model.stem:24}{theirs:14,}{ours:14,}{ours / theirs:8.3f}", flush=True)


if __name__ == "__main__":
    main()
