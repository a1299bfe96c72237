"""manifest.json: what the host must know about a generated project: tensors, kernels, memory, in a versioned schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from microc.codegen.external import external_data
from microc.codegen.memory import Memory, described
from microc.codegen.self_test import test_data
from microc.codegen.stack import stack_bound
from microc.errors import InternalError
from microc.module import Module, Streaming
from microc.tir import ir

SCHEMA_VERSION = 2


def manifest(module: Module, version: str) -> dict[str, Any]:
    """Plain data, ready for JSON. ``tensors`` stand in the order of the board's tensor table.

    A tensor lies at ``offset`` (in bytes) of ``buffer``: the arena, or the input or output of that name, which the caller
    may keep elsewhere. ``memory`` holds what lies in the arena, workspaces too, with the steps from which and to which it lives.

    Where sizes vary, ``sizes`` lists them, the board has a tensor of them behind all others, ``shape`` and
    ``bytes`` of a tensor are those at the maxima, and ``extents`` say what its shape is: numbers, names of sizes, and lists of
    an operator (``add``, ``sub``, ``mul``, ``floordiv``) and two operands. ``sha256``: of the model's file (``model``) and of
    plugins by their names; ``deviations``: sentences for auditors. ``ties``: where reals between two integers go, as
    inputs are quantised; ``classes``: their names, and the output that tells them apart. ``self_test``: what the
    network checks itself with (None: nothing). ``arenas``: of a board with several memories for tensors, where the arena's
    bytes lie; on this computer they are one block. ``copies``: constants that lie there, by the step at whose start they are
    copied (-1: when the network is reset). ``hot_code``: the kernels that run from a memory of the board.
    ``external``, where it has some: what code of others is built from, and which kernels it computes.
    """
    assert module.plan is not None
    memory = Memory(module)
    names, code = frozenset(memory.names), {kernel.name: kernel.code_bytes for kernel in module.kernels}
    sizes = {"sizes": [asdict(size) for size in module.sizes]} if module.sizes else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "microc": version,
        "model": module.name,
        "source": module.source,
        "fingerprint": module.fingerprint,
        "sha256": dict(module.hashes),
        "arena_size": module.plan.size,
        **({"arenas": [asdict(arena) for arena in module.plan.arenas]} if module.plan.arenas else {}),
        **({"copies": dict(module.plan.copies)} if module.plan.copies else {}),
        **({"hot_code": asdict(module.plan.code)} if module.plan.code else {}),
        "arena_lower_bound": module.plan.lower_bound,
        "planner": module.plan.planner,
        "io_in_arena": module.plan.io_in_arena,
        "const_bytes": module.const_bytes,
        "stack_bound": stack_bound(module),
        "macs": module.macs,
        **sizes,
        **external_data(module),
        "nominal_macs": module.nominal_macs,
        "options": dict(module.options),
        "deviations": list(deviations(module)),
        "inputs": list(module.inputs),
        "outputs": list(module.outputs),
        "ties": module.ties,
        "classes": {"output": module.class_output, "names": list(module.classes)} if module.classes else None,
        "self_test": test_data(module),
        "streaming": None if module.streaming is None else streaming_data(module.streaming),
        "tensors": [{**_tensor(module, name), "written_by": memory.writers(name)} for name in memory.names],
        "memory": memory.arena(),
        "kernels": [
            {
                "index": k,
                "function": call.kernel,
                "layer": call.layer,
                "op": call.op,
                "macs": call.macs,
                "rule": call.rule,
                "shipped": call.shipped,
                "schedule": call.schedule,
                "estimated_instructions": call.instructions,
                "estimated_cycles": call.cycles,
                "estimated_code": code[call.kernel],
                "operators": [asdict(each) for each in call.operators],
                "streamed": list(call.streamed.layers) if call.streamed else [],
                "inputs": memory.operands(k),
                "outputs": [n for n in call.writes if n in names],
                "workspaces": list(call.workspace),
                "constants": memory.constants(call),
                **({"tensor_unit": asdict(call.unit)} if call.unit else {}),
            }
            for k, call in enumerate(module.calls)
        ],
    }


_ROUNDING = {
    "tflm": "integers of TFLite files are rounded as TFLite Micro and CMSIS-NN do, twice: docs/tflite.md",
    "litert": "integers of TFLite files are rounded as LiteRT's reference kernels do, dense layers once: docs/tflite.md",
    "single": "integers of TFLite files are rounded once everywhere: docs/tflite.md",
}


def deviations(module: Module) -> tuple[str, ...]:
    """What an auditor must know about the numbers and the code, under the options of the network."""
    options = module.options
    found = [_ROUNDING[options.get("rounding", "tflm")]]
    if options.get("requantize") == "fixed":
        found.append("QDQ networks are requantised in fixed point, which may differ from ONNX by quanta")
    if options.get("hybrid", "float") == "float":
        found.append("layers of floats with integer weights are computed in floats, where LiteRT quantises data")
    found.append("sums of floats are taken in another order than a framework's: within 1e-4 of the largest, as a rule")
    found.append("deviations from MISRA C:2012 are those of docs/misra.md")
    return tuple(found)


def streaming_data(streaming: Streaming) -> dict[str, Any]:
    """How a network takes a sequence piece by piece, as :class:`Streaming` says."""
    outputs = {name: asdict(output) for name, output in streaming.outputs.items()}
    return {"hop": streaming.hop, "inputs": dict(streaming.inputs), "outputs": outputs}


def table(modules: Sequence[Module], version: str) -> dict[str, Any]:
    """The manifest of a project of several networks: their names, in the board's order. Each has its own in its folder."""
    return {"schema_version": SCHEMA_VERSION, "microc": version, "models": [module.name for module in modules]}


def _tensor(module: Module, name: str) -> dict[str, Any]:
    value = module.values[name]
    base, offset = module.base_of(name)
    assert module.plan is not None
    outside = module.values[base].storage in ("input", "output")
    names = {size.scalar.name: size.name for size in module.sizes}
    return {
        **described(value),
        **({"extents": [_plain(extent, names) for extent in value.extents]} if value.extents else {}),
        "scale": value.scale,
        "zero_point": value.zero_point,
        "buffer": base if outside else "arena",
        "offset": offset if outside else offset + module.plan.offsets[base],
    }


def _plain(extent: ir.Expr, names: Mapping[str, str]) -> Any:
    """An extent as data for JSON."""
    match extent:
        case ir.Const(value):
            return value
        case ir.Var(name):
            return names[name]
        case ir.Bin(op, a, b):
            return [op, _plain(a, names), _plain(b, names)]
        case _:
            raise InternalError(f"{extent} is no expression over sizes")


def to_json(data: dict[str, Any]) -> str:
    """Stable text: sorted nothing, indented, one trailing newline."""
    return json.dumps(data, indent=2, ensure_ascii=True) + "\n"
