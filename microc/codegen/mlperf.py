"""Firmware that speaks the text protocol of MLPerf Tiny's runner instead of RPC."""

from __future__ import annotations

from collections.abc import Sequence

from microc.codegen.c_expr import ExprPrinter
from microc.codegen.render import render
from microc.codegen.text import Code, Name, Text, Word
from microc.errors import UsageError
from microc.frozen import frozen
from microc.module import Module
from microc.target import Board

VENDOR = "microc"
OUTPUTS = ("int8", "uint8", "int16", "float32")


@frozen
class BenchmarkContext:
    """What ``main_mlperf.c.j2`` shows. ``error``: 1 where the result is how far the output is from the input."""

    name: Name
    board_title: Text
    vendor: Word
    scale: Code
    zero_point: int
    error: int


def benchmark_main(modules: Sequence[Module], board: Board) -> str:
    """``main.c``. An autoencoder of floats (output like input) answers with its mean squared error, all others with the
    first output as real numbers. UsageError for a network that the runner cannot feed or read."""
    if len(modules) > 1:
        raise UsageError("MLPerf Tiny's runner knows one network", hint="compile one, or use --protocol rpc")
    (module,) = modules
    if len(module.inputs) != 1:
        raise UsageError(
            f"MLPerf Tiny's runner feeds one input, {module.name!r} has {len(module.inputs)}",
            hint="cut the network (--inputs), or use --protocol rpc",
        )
    if module.plan is not None and module.plan.io_in_arena:
        raise UsageError(
            "MLPerf Tiny's runner runs a network again and again on one input", hint="--io caller keeps it"
        )
    source, result = module.values[module.inputs[0]], module.values[module.outputs[0]]
    if result.dtype not in OUTPUTS:
        raise UsageError(
            f"results of {result.dtype} are no real numbers",
            where=result.name,
            hint="choose another: --output-dtype float32",
        )
    context = BenchmarkContext(
        name=Name(module.name),
        board_title=Text(board.title),
        vendor=Word(VENDOR),
        scale=Code(ExprPrinter().literal(1.0 if result.scale is None else result.scale, "float32")),
        zero_point=result.zero_point or 0,
        error=int(source.dtype == result.dtype == "float32" and source.shape == result.shape),
    )
    return render("project/main_mlperf.c.j2", context)
