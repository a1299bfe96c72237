# SPDX-License-Identifier: Apache-2.0
"""microc: trained networks to plain C for microcontrollers.

    import microc

    network = microc.compile("model.tflite")                       # a library in this process
    y = network(x)
    program = microc.compile("model.tflite", board="mps2-an386")   # a C project for a board
    program.write("build")
    program.export("arduino", "libraries/net")                     # a package for a build system: microc export --list
    microc.bundle(program, other).write("both")                    # several networks in one firmware, one arena
    with microc.Device("build") as device:                         # on the emulator, after `microc build build`; or port="..."
        y = device.run(x)
        print(device.profile())
    print(microc.explain("model.tflite", "conv1", target="cortex-m4"))   # schedule and cost of a layer
    microc.report("model.tflite", board="mps2-an386")        # estimated costs on the board, layer by layer
    microc.cost("model.tflite", "mps2-an386").milliseconds   # estimates in a tenth of a second, for searches over networks
    print(microc.verify("model.onnx").agrees)                      # compares with the framework that made the model
    graph = microc.load("model.onnx")                              # the network as a graph of operators
    microc.save(graph, "model.mcg")                                # graph and parameters in one file; or "model.onnx"
    result = microc.quantize("model.onnx", data)                   # a float network becomes an integer network: result.graph
    trained = microc.gradient(microc.add_loss(graph, "cross_entropy"), "loss", ["w"])   # a graph with the output "w.gradient"

The compiler is a library, too (docs/compiler.md)::

    from microc import te, tir
    func = te.create_prim_func("add", [a, b], [c])                 # loops of a tensor expression; or tir.from_text(text)
    schedule = microc.Schedule(func).split("i", (None, 4))         # equivalent loops; or microc.default_schedule(func)
    add = microc.build(schedule)                                   # a library in this process, or board="..."

All errors that microc raises deliberately are exceptions of :mod:`microc.errors`. Modules are imported when their names
are first used.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from microc import errors, features, te, tir, topi
    from microc.compiler.api import Program, add_loss, compile, gradient, learn
    from microc.compiler.bundle import Bundle, bundle
    from microc.compiler.model import import_sklearn, load, save
    from microc.compiler.network_cost import NetworkCost, cost
    from microc.compiler.option_values import CompileOptions
    from microc.compiler.options import Bound
    from microc.compiler.user_functions import build, default_schedule
    from microc.frontend.graph_builder import GraphBuilder
    from microc.frontend.torch.quantizer import MicrocQuantizer
    from microc.graph.ir import Graph
    from microc.graph.match import Match, P, Replacement, rewrite
    from microc.quantization import Quantized, fake_quantize, quantize
    from microc.reports.explain import Explanation, explain
    from microc.reports.report import Report
    from microc.reports.saved_reports import report
    from microc.run.against import verify
    from microc.run.board_project import open_project
    from microc.run.comparison import Comparison
    from microc.run.desktop.library import Library
    from microc.run.desktop.load import load_library
    from microc.run.session import Device
    from microc.schedule.rules import ScheduleRule
    from microc.schedule.schedule import Schedule
    from microc.transform.pass_context import Pass
    from microc.tuning.tune import tune


__version__ = "0.1.0"
__all__ = (
    "Bound",
    "Bundle",
    "Comparison",
    "CompileOptions",
    "Device",
    "Explanation",
    "Graph",
    "GraphBuilder",
    "Library",
    "Match",
    "MicrocQuantizer",
    "NetworkCost",
    "P",
    "Pass",
    "Program",
    "Quantized",
    "Replacement",
    "Report",
    "Schedule",
    "ScheduleRule",
    "__version__",
    "add_loss",
    "build",
    "bundle",
    "compile",
    "cost",
    "default_schedule",
    "errors",
    "explain",
    "fake_quantize",
    "features",
    "gradient",
    "import_sklearn",
    "learn",
    "load",
    "load_library",
    "open_project",
    "quantize",
    "report",
    "rewrite",
    "save",
    "te",
    "tir",
    "topi",
    "tune",
    "verify",
)

_HOMES = MappingProxyType(
    {
        "Bound": "microc.compiler.options",
        "Bundle": "microc.compiler.bundle",
        "Comparison": "microc.run.comparison",
        "CompileOptions": "microc.compiler.option_values",
        "Device": "microc.run.session",
        "Explanation": "microc.reports.explain",
        "Graph": "microc.graph.ir",
        "GraphBuilder": "microc.frontend.graph_builder",
        "Library": "microc.run.desktop.library",
        "Match": "microc.graph.match",
        "MicrocQuantizer": "microc.frontend.torch.quantizer",
        "NetworkCost": "microc.compiler.network_cost",
        "P": "microc.graph.match",
        "Pass": "microc.transform.pass_context",
        "Program": "microc.compiler.api",
        "Quantized": "microc.quantization",
        "Replacement": "microc.graph.match",
        "Report": "microc.reports.report",
        "Schedule": "microc.schedule.schedule",
        "ScheduleRule": "microc.schedule.rules",
        "add_loss": "microc.compiler.api",
        "build": "microc.compiler.user_functions",
        "bundle": "microc.compiler.bundle",
        "compile": "microc.compiler.api",
        "cost": "microc.compiler.network_cost",
        "default_schedule": "microc.compiler.user_functions",
        "explain": "microc.reports.explain",
        "fake_quantize": "microc.quantization",
        "gradient": "microc.compiler.api",
        "import_sklearn": "microc.compiler.model",
        "learn": "microc.compiler.api",
        "load": "microc.compiler.model",
        "load_library": "microc.run.desktop.load",
        "open_project": "microc.run.board_project",
        "quantize": "microc.quantization",
        "report": "microc.reports.saved_reports",
        "rewrite": "microc.graph.match",
        "save": "microc.compiler.model",
        "tune": "microc.tuning.tune",
        "verify": "microc.run.against",
    }
)


def __getattr__(name: str) -> Any:
    if name in ("errors", "features", "te", "tir", "topi"):
        return importlib.import_module(f"microc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'microc' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, *(name for name in globals() if name.startswith("__"))))
