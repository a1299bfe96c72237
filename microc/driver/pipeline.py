"""The pipeline on one page: model file -> Graph -> fused Graph -> Module -> planned Module."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from microc.driver.budget import count_macs, flash_bytes, goals, least_flash, refusal
from microc.driver.estimates import estimated
from microc.driver.lower import Progress, build_module
from microc.driver.merge import merge_kernels
from microc.driver.options import Options
from microc.errors import OutputError
from microc.frontend.detect import load
from microc.graph.ir import Graph
from microc.module import Module
from microc.plan.plan import plan_module
from microc.target import Target
from microc.transform import PASSES
from microc.transform.context import PassContext, run_passes
from microc.transform.instruments import DumpInstrument


def identifier(text: str) -> str:
    """``text`` as a C identifier in lower case."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", text).strip("_").lower()
    return name if name and not name[0].isdigit() else f"m_{name}" if name else "model"


def read_model(path: Path, options: Options) -> Graph:
    """The graph of a model file, under the name that the C code will carry."""
    if not path.is_file():
        raise OutputError(
            f"there is no model file {path}", where=str(path), hint="give the path of a .tflite or .onnx file"
        )
    graph = load(path, options.input_shapes)
    return replace(graph, name=identifier(options.name or path.stem))


def optimise(graph: Graph, options: Options) -> Graph:
    """All graph passes."""
    instruments = (DumpInstrument(options.dump),) if options.dump else ()
    context = PassContext(
        opt_level=options.opt_level,
        disabled=options.disabled,
        required=options.required,
        instruments=instruments,
        options={"requantize": options.requantize},
    )
    return run_passes(graph, PASSES, context)


def compile_model(
    path: Path, target: Target, options: Options, progress: Progress | None = None, room: int = 0
) -> Module:
    """The planned module of a model file; FitError when its constants and code exceed the flash budget of the options.

    ``room``: flash that the board has for them, in bytes, which the choice of schedules keeps within if it can; 0: any.
    """
    read = read_model(path, options)
    module = build_within_budget(optimise(read, options), target, path.name, options, progress, room)
    module = plan_module(module, io_in_arena=options.io_in_arena)
    return replace(module, fingerprint=fingerprint(module, target), nominal_macs=count_macs(read))


def build_within_budget(
    graph: Graph, target: Target, source: str, options: Options, progress: Progress | None, room: int
) -> Module:
    """The module for the goal of the options; where that takes too much flash, the first smaller one that does not."""
    limits = [limit for limit in (options.flash, room) if limit]
    for goal in goals(graph, options):
        module = build_module(graph, target, source, goal, progress)
        if goal.price:
            module = merge_kernels(module)
        module = estimated(module, target)
        if all(flash_bytes(module) <= limit for limit in limits):
            return module
    if options.flash and least_flash(module) > options.flash:
        raise refusal(module, options.flash)
    return module


def fingerprint(module: Module, target: Target) -> str:
    """32 hex digits that change when the code or the constants would: the host knows a board's firmware by it."""
    digest = hashlib.sha256(f"{module.name} {target.cpu}".encode())
    for kernel in module.kernels:
        digest.update(repr(kernel.func).encode())
    for call in module.calls:
        digest.update(repr((call.kernel, call.args)).encode())
    for name in sorted(module.values):
        value = module.values[name]
        digest.update(f"{name} {value.shape} {value.dtype} {value.storage}".encode())
        if value.data is not None:
            digest.update(value.data.tobytes())
    return digest.hexdigest()[:32]
