"""Names of tensors that the C cannot have: words of C and C++, and those of the header's own functions and macros."""

from __future__ import annotations

import numpy as np

from microc.codegen.names import RESERVED
from microc.codegen.network import network_files, shared_files
from microc.driver.export import build_library
from microc.driver.options import Options
from microc.driver.pipeline import compile_model
from microc.graph.ir import Graph, Loc, Node, TensorType
from microc.target import target_for


def test_reserved_words_get_a_number() -> None:
    kind = TensorType((2,), "float32")
    ins = ("int", "while", "class", "new", "bool", "arena", "run", "reset", "run_kernel", "sample")
    assert set(ins) <= set(RESERVED)
    outs = (*(f"{name}_out" for name in ins[1:]), "Class")
    nodes = tuple(Node("neg", (a,), (b,), loc=Loc("net", k, a)) for k, (a, b) in enumerate(zip(ins, outs, strict=True)))
    graph = Graph("net", ins, outs, nodes, dict.fromkeys((*ins, *outs), kind), {}, {}, {})
    module = compile_model(graph, target_for("host"), Options())
    assert not set(RESERVED) & {*module.values, *(kernel.name for kernel in module.kernels)}
    assert "class_2" in module.values and "class_3" in module.values
    library = build_library(shared_files(module, "test"))
    rows = np.arange(2.0 * len(ins), dtype=np.float32).reshape(-1, 2)
    results = library(*rows)
    assert isinstance(results, tuple) and np.array_equal(np.stack(results), -rows)


def test_no_macro_twice() -> None:
    """An input called ``arena`` must not change the size of the arena."""
    kind = TensorType((5,), "float32")
    graph = Graph(
        "net", ("arena",), ("run",), (Node("neg", ("arena",), ("run",)),), {"arena": kind, "run": kind}, {}, {}, {}
    )
    header = network_files(compile_model(graph, target_for("host"), Options()), "test")["model.h"]
    macros = [line.split()[1] for line in header.splitlines() if line.startswith("#define")]
    assert len(macros) == len(set(macros)) and "NET_ARENA_2_SIZE" in macros
