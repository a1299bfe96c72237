# SPDX-License-Identifier: Apache-2.0
"""Networks that lose channels, compiled: the C computes what the graph as it was computes."""

from __future__ import annotations

import numpy as np
import pytest

from microc.codegen.c.source import shared_files
from microc.compiler.fit.budget import list_goals_to_try
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.plan.plan import plan_module
from microc.run.desktop.load import build_library
from microc.target import target_for
from tests.transform.integer_network import random_network
from tests.transform.network import evaluate, random_inputs


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_compile_to_what_they_compute(seed: int) -> None:
    graph = random_network(seed).graph()
    fused = optimise_graph(graph, Options())
    cpu = ("host", "cortex-m4", "cortex-m55")[seed % 3]
    module = plan_module(
        build_module(
            KernelBuilder(
                Configuration(fused, list_goals_to_try(fused, Options(), target_for(cpu))[0]), target_for(cpu)
            ),
            "net",
        )
    )
    library = build_library(shared_files(module, "test"))
    for k in range(3):
        inputs = random_inputs(graph, k)
        got = library(*inputs.values())
        assert np.array_equal(got if isinstance(got, np.ndarray) else got[0], evaluate(graph, inputs)[0])
