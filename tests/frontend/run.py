# SPDX-License-Identifier: Apache-2.0
"""Running a graph on this computer, as the driver compiles it."""

from __future__ import annotations

from dataclasses import replace

from microc import __version__
from microc.codegen.c.identifiers import network_name
from microc.codegen.c.source import shared_files
from microc.compiler.fit.budget import list_goals_to_try
from microc.compiler.fit.search import build_network
from microc.compiler.lowering.kernel_builder import Configuration
from microc.compiler.lowering.module_builder import firmware_fingerprint
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.graph.ir import Graph
from microc.plan.plan import plan_module
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.target import target_for

_PLAIN = Options()


def library(graph: Graph, options: Options = _PLAIN) -> Library:
    target = target_for("host")
    graph = optimise_graph(replace(graph, name=network_name(graph.name)), options)
    module = build_network(
        Configuration(graph, list_goals_to_try(graph, options, target)[0]), target, "test", options
    ).module
    module = plan_module(module, io_in_arena=True)
    return build_library(shared_files(replace(module, fingerprint=firmware_fingerprint(module, target)), __version__))
