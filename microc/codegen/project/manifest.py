# SPDX-License-Identifier: Apache-2.0
"""Write manifest.json, which describes the tensors, kernels and memory of a generated project, and check it with a schema."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from microc.base import dtypes
from microc.codegen.c.c_statements import core_count_of, has_parallel_loop
from microc.codegen.c.interface import make_storage_context
from microc.codegen.c.resources import stack_bound
from microc.codegen.project.additions import describe_external_code, describe_self_test
from microc.errors import InternalError
from microc.module import Call, Module, StoredConstants, Streaming, Value
from microc.tir import ir

# ---- The JSON schema of manifest.json. Projects may come from untrusted sources: manifests are checked before they are used.

MAX_INTEGER = 1 << 53
"""Largest absolute value of an integer in a manifest."""
_TEXT = {"type": "string", "maxLength": 1 << 16}
_IDENTIFIER = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": 4096}
_COUNT = {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}
_INTEGER = {"type": "integer", "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
_REAL = {"type": "number", "minimum": -1e38, "maximum": 1e38}
_NAMES = {"type": "array", "items": _TEXT}
_COUNTS = {"type": "array", "items": _COUNT}
_NO_KEYS: Mapping[str, Any] = MappingProxyType({})


def object_schema(required: Mapping[str, Any], *types: str, optional: Mapping[str, Any] = _NO_KEYS) -> dict[str, Any]:
    """Return the JSON schema of an object.

    ``required``: schema of each required key. ``optional``: schema of each optional key. ``types``: JSON types that the value may
    have instead of an object."""
    return {"type": ["object", *types], "required": list(required), "properties": {**required, **optional}}


def object_array_schema(required: Mapping[str, Any], optional: Mapping[str, Any] = _NO_KEYS) -> dict[str, Any]:
    """Return the JSON schema of an array of objects with the schema that :func:`object_schema` returns."""
    return {"type": "array", "items": object_schema(required, optional=optional)}


def _map_schema(value_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with arbitrary keys, all of whose values have the schema ``value_schema``."""
    return {"type": "object", "additionalProperties": value_schema}


VALUE_SCHEMA = {
    "name": _TEXT,
    "label": _TEXT,
    "kind": {"enum": ["input", "output", "state", "const", "intermediate", "workspace"]},
    "dtype": {"type": "string"},
    "shape": _COUNTS,
    "bytes": _COUNT,
}
_TENSOR = {
    **VALUE_SCHEMA,
    "scale": {"type": ["number", "null"], "minimum": -1e38, "maximum": 1e38},
    "zero_point": {"type": ["integer", "null"], "minimum": -MAX_INTEGER, "maximum": MAX_INTEGER},
    "buffer": _TEXT,
    "offset": _COUNT,
    "written_by": _COUNTS,
}
_WEIGHTS = {
    "name": _TEXT,
    "dtype": _TEXT,
    "shape": _COUNTS,
    "scales": {"type": ["array", "null"], "items": _REAL, "minItems": 3, "maxItems": 3},
    "axis": {"type": ["integer", "null"]},
}
OPERATOR_SCHEMA = {
    "op": _TEXT,
    "attributes": {"type": "array", "items": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}},
    "weights": object_array_schema(_WEIGHTS),
}
_KERNEL = {
    "index": _COUNT,
    "function": _IDENTIFIER,
    "layer": _TEXT,
    "op": _TEXT,
    "macs": _COUNT,
    "rule": _TEXT,
    "schedule": _TEXT,
    "estimated_instructions": _COUNT,
    "estimated_cycles": _COUNT,
    "estimated_code": _COUNT,
    "operators": object_array_schema(OPERATOR_SCHEMA),
    "streamed": _NAMES,
    "inputs": _NAMES,
    "outputs": _NAMES,
    "workspaces": _NAMES,
    "constants": object_array_schema({"symbol": _IDENTIFIER, "bytes": _COUNT}, {"memory": _TEXT}),
}
_TENSOR_UNIT = dict.fromkeys(("cycles", "load", "compute", "store", "macs"), _COUNT) | {"utilisation": _REAL}
_MEMORY_AREA = {"memory": _TEXT, "size": _COUNT, "capacity": _COUNT, "waits": _INTEGER}
_STREAMED_OUTPUT = {"axis": _INTEGER, "frames": _COUNT, "delay": _INTEGER, "first": _INTEGER}
_EXTERNAL = {
    **dict.fromkeys(("sources", "include", "defines", "libraries", "folders"), _NAMES),
    "backends": object_array_schema({"name": _TEXT, "version": _TEXT, "licence": _TEXT, "files": _COUNT}),
    "kernels": object_array_schema({"index": _COUNT, "backend": _TEXT}),
}
_NETWORK = {
    "model": _IDENTIFIER,
    "source": _TEXT,
    "fingerprint": _TEXT,
    "sha256": _map_schema(_TEXT),
    "arena_size": _COUNT,
    "arena_lower_bound": _COUNT,
    "planner": _TEXT,
    "io_in_arena": {"type": "boolean"},
    "const_bytes": _COUNT,
    "stack_bound": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_INTEGER},
    "macs": _COUNT,
    "nominal_macs": _COUNT,
    "options": {"type": "object", "properties": {"cpu": _TEXT, "optimize": _TEXT, "protocol": _TEXT}},
    "deviations": _NAMES,
    "inputs": _NAMES,
    "outputs": _NAMES,
    "ties": _TEXT,
    "classes": object_schema({"output": _TEXT, "names": _NAMES}, "null"),
    "self_test": object_schema(
        {"samples": _COUNT, "bytes": _COUNT, "symbols": _NAMES, "bounds": {"type": "object"}}, "null"
    ),
    "streaming": object_schema(
        {"hop": _COUNT, "inputs": _map_schema(_INTEGER), "outputs": _map_schema(object_schema(_STREAMED_OUTPUT))},
        "null",
    ),
    "tensors": object_array_schema(_TENSOR, {"extents": {"type": "array"}}),
    "memory": object_array_schema({**VALUE_SCHEMA, "offset": _COUNT, "first": _INTEGER, "last": _INTEGER}),
    "kernels": object_array_schema(_KERNEL, {"tensor_unit": object_schema(_TENSOR_UNIT), "cores": _COUNT}),
}
OPTIONAL_KEYS = {
    "arenas": object_array_schema({**_MEMORY_AREA, "start": _COUNT, "accesses": _COUNT}),
    "copies": _map_schema(_INTEGER),
    "flash": object_array_schema({**_MEMORY_AREA, "constants": _NAMES, "accesses": _COUNT}),
    "storage": object_schema(
        {"memory": _TEXT, "offsets": _map_schema(_COUNT), "waits": _INTEGER}
        | dict.fromkeys(("size", "capacity", "block_bytes", "reads", "crc"), _COUNT)
    ),
    "hot_code": object_schema({**_MEMORY_AREA, "kernels": _NAMES, "saved": _INTEGER}),
    "sizes": object_array_schema(
        {"name": _IDENTIFIER, "label": _TEXT, **dict.fromkeys(("minimum", "maximum", "step"), _INTEGER)}
    ),
    "external": object_schema(_EXTERNAL),
    "learning": object_schema({"kernels": _COUNT, "labels": _TEXT, "rate": _TEXT, "loss": _TEXT, "learned": _NAMES}),
    "board": _TEXT,
}
VERSION_KEYS = {"schema_version": {"type": "integer"}, "microc": _TEXT}
NETWORK: Mapping[str, Any] = object_schema({**VERSION_KEYS, **_NETWORK}, optional=OPTIONAL_KEYS)
"""JSON schema of a network's manifest."""
TABLE: Mapping[str, Any] = object_schema(
    {**VERSION_KEYS, "models": {"type": "array", "items": _IDENTIFIER, "minItems": 1}}, optional={"board": _TEXT}
)
"""JSON schema of the manifest of a project with several networks, which lists their names."""


def find_manifest_error(data: Any) -> str:
    """Return a message about the first error in the manifest of a project or network; empty if the manifest is valid.

    ``data``: the parsed JSON."""
    import jsonschema

    schema = TABLE if isinstance(data, dict) and "models" in data else NETWORK
    wrong = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(data)), None)
    if wrong is not None:
        path = "/".join(map(str, wrong.absolute_path))
        message = (
            wrong.message
            if wrong.validator == "required"
            else f"got {type(wrong.instance).__name__}, expected {_describe_constraint(wrong)}"
        )
        return f"{path}: {message}" if path else message
    return "" if "models" in data else next(_list_inconsistencies(data), "")


def _describe_constraint(error: Any) -> str:
    """Return a text that describes the constraint of the schema which a value violates, such as "at least 0"."""
    expectations = {"type": "{}", "enum": "one of {}", "minimum": "at least {}", "maximum": "at most {}"}
    return str(expectations.get(error.validator, f"{error.validator} {{}}")).format(error.validator_value)


def _list_inconsistencies(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield messages about errors in a manifest that a JSON schema cannot detect.

    They are names of tensors that do not exist, wrong indices of kernels, and dtypes that no tensor can have."""
    tensors = {tensor["name"]: tensor for tensor in data["tensors"]}
    for end in ("inputs", "outputs"):
        yield from (f"{end}: there is no tensor {name!r}" for name in data[end] if name not in tensors)
    for tensor in (*data["tensors"], *data["memory"]):
        if not dtypes.is_valid(tensor["dtype"]) or dtypes.is_vector(tensor["dtype"]):
            yield f"{tensor['name']}: got dtype {tensor['dtype']!r}, expected a dtype of tensors such as int8 or float32"
    for number, kernel in enumerate(data["kernels"]):
        if kernel["index"] != number:
            yield f"kernels/{number}/index: got {kernel['index']}, expected {number}"
        names = (*kernel["inputs"], *kernel["outputs"])
        yield from (f"kernels/{number}: there is no tensor {name!r}" for name in names if name not in tensors)
    if data["classes"] is not None and data["classes"]["output"] not in tensors:
        yield f"classes: there is no tensor {data['classes']['output']!r}"
    if "learning" in data:
        yield from _list_learning_inconsistencies(data, data["learning"], tensors)
    streaming = data["streaming"] or {"inputs": {}, "outputs": {}}
    yield from (
        f"streaming: there is no tensor {name!r}"
        for name in (*streaming["inputs"], *streaming["outputs"])
        if name not in tensors
    )


def _list_learning_inconsistencies(
    data: Mapping[str, Any], learning: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Iterator[str]:
    """Yield messages about errors in the description of how a network learns: its ends and its count of kernels."""
    if (data["inputs"][-2:], data["outputs"][-1:]) != ([learning["labels"], learning["rate"]], [learning["loss"]]):
        yield "learning: labels and rate are not the last inputs, or the loss is not the last output"
    if not 0 < learning["kernels"] < len(data["kernels"]):
        yield f"learning/kernels: got {learning['kernels']}, expected fewer than {len(data['kernels'])}"
    yield from (f"learning: there is no tensor {name!r}" for name in learning["learned"] if name not in tensors)


# ---- Offsets and lifetimes of values in the arena, and operands of every step: the data that memory maps show.

BEFORE = -1
"""Number of the step before the first one in lifetimes. The caller writes inputs in this step, and state exists already.

The caller reads outputs in the step after the last one."""


def describe_value(value: Value) -> dict[str, Any]:
    """Return the part of a manifest's entry that all lists of values have in common: name, label, kind, dtype, shape, bytes."""
    return {
        "name": value.name,
        "label": value.label,
        "kind": value.storage,
        "dtype": value.dtype,
        "shape": list(value.shape),
        "bytes": value.nbytes,
    }


class MemoryMap:
    """Memory map of a module: the offsets of its tensors in the arena, and their lifetimes in steps (kernel calls).

    The module must have a memory plan. ``names`` are the names of the tensors that a board lists, in its order: inputs, outputs,
    state, then all intermediate tensors that a kernel writes."""

    def __init__(self, module: Module) -> None:
        self.module = module
        views = {view.name: view for view in module.views}
        # By value: the base tensor that owns its memory, and the first byte and the end of the value in that tensor.
        self._spans: dict[str, tuple[str, int, int]] = {}
        for name, value in module.values.items():
            base, start = name, 0
            while base in views:
                base, start = views[base].base, start + views[base].offset
            self._spans[name] = base, start, start + value.nbytes
        # By base tensor: the steps that access its memory, and the name of the view (or the base) that each of them accesses.
        self._writes: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self._reads: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for step, call in enumerate(module.calls):
            for name in call.writes:
                self._writes[self._spans[name][0]].append((step, name))
            for name in call.reads:
                self._reads[self._spans[name][0]].append((step, name))
        for name in module.outputs:
            self._reads[self._spans[name][0]].append((len(module.calls), name))
        written = {name for call in module.calls for name in call.writes}
        intermediates = (n for n, value in module.values.items() if value.storage == "intermediate" and n in written)
        self.names = tuple(dict.fromkeys((*module.inputs, *module.outputs, *module.state, *intermediates)))

    def arena_entries(self) -> list[dict[str, Any]]:
        """Return the manifest's entries of all values in the arena.

        An entry contains ``offset`` and ``bytes``, and the steps ``first`` to ``last`` (inclusive) of the value's lifetime. A
        value whose memory is read through views lives as long as these views. Workspaces live for one step.
        """
        assert self.module.plan is not None
        lives = [(name, *self._first_and_last_step(name)) for name in self.names]
        lives += [
            (name, *self._first_and_last_step_of_copy(name, step)) for name, step in self.module.plan.copies.items()
        ]
        lives += [(name, k, k) for k, call in enumerate(self.module.calls) for name in call.workspace]
        entries = ((name, self._arena_offset(name), first, last) for name, first, last in lives)
        return [self._memory_entry(name, at, first, last) for name, at, first, last in entries if at is not None]

    def tensors_read_by(self, step: int) -> list[str]:
        """Return the names of the tensors whose memory a step reads.

        Names are among ``self.names``. Several tensors may share the memory; those that are not written before this step are
        left out."""
        call = self.module.calls[step]
        bases = {self._spans[name][0] for name in call.reads}
        candidates = [name for name in self.names if self._spans[name][0] in bases]
        ready = {*self.module.inputs, *self.module.state}
        return [
            name
            for name in candidates
            if any(self._overlaps(name, other) for other in call.reads)
            and (name in ready or any(k < step for k in self._steps_that_access(self._writes, name)))
        ]

    def steps_that_write(self, name: str) -> list[int]:
        """Return the sorted numbers of the steps that write the memory of a tensor, directly or through a view."""
        return sorted(set(self._steps_that_access(self._writes, name)))

    def constants_read_by(self, call: Call) -> list[dict[str, Any]]:
        """Return the C name and the number of bytes of each constant array (weights or table) that a call reads.

        ``memory`` is its flash region if that is not the first of the board, or its storage."""
        bases = dict.fromkeys(self._spans[name][0] for name in call.args)
        values = [self.module.values[base] for base in bases if self.module.values[base].storage == "const"]
        plan = self.module.plan
        regions = plan.constant_regions if plan is not None else {}
        if plan is not None and plan.storage is not None:
            regions |= dict.fromkeys(plan.stored_offsets, plan.storage.memory)
        return [
            {
                "symbol": f"{self.module.name}_{value.name}",
                "bytes": value.nbytes,
                **({"memory": regions[value.name]} if value.name in regions else {}),
            }
            for value in values
        ]

    def _memory_entry(self, name: str, offset: int, first: int, last: int) -> dict[str, Any]:
        """Return the manifest's entry of a value in the arena.

        ``offset``: offset in the arena in bytes. ``first`` and ``last``: first and last step of the value's lifetime."""
        return {**describe_value(self.module.values[name]), "offset": offset, "first": first, "last": last}

    def _arena_offset(self, name: str) -> int | None:
        """Return the offset of a value in the arena, in bytes; None if the value is not in the arena."""
        assert self.module.plan is not None
        base, start, _ = self._spans[name]
        base_offset = self.module.plan.offsets.get(base)
        return None if base_offset is None else base_offset + start

    def _first_and_last_step_of_copy(self, name: str, step: int) -> tuple[int, int]:
        """Return the first and the last step in which the arena contains a copy of a constant.

        ``step``: the step at whose start the copy begins. A copy that begins at reset (BEFORE) exists in all steps, any other
        copy until the last step that reads it."""
        if step == BEFORE:
            return BEFORE, len(self.module.calls)
        return step, max(k for k, call in enumerate(self.module.calls) if name in call.args)

    def _first_and_last_step(self, name: str) -> tuple[int, int]:
        """Return the first and the last step of a value's lifetime. State lives in all steps, inputs from :data:`BEFORE` on."""
        if name in self.module.state:
            return BEFORE, len(self.module.calls)
        writes, reads = self._steps_that_access(self._writes, name), self._steps_that_access(self._reads, name)
        first = BEFORE if name in self.module.inputs else min(writes, default=BEFORE)
        return first, max((first, *writes, *reads))

    def _steps_that_access(self, accesses_by_step: Mapping[str, Sequence[tuple[int, str]]], name: str) -> list[int]:
        """Return the steps that access a value's memory, directly or through a view.

        ``accesses_by_step``: the writes or the reads of all steps, by base tensor."""
        return [step for step, other in accesses_by_step[self._spans[name][0]] if self._overlaps(name, other)]

    def _overlaps(self, first_name: str, second_name: str) -> bool:
        """Test whether two tensors share memory, at least in part."""
        (a, start, stop), (b, begin, end) = self._spans[first_name], self._spans[second_name]
        return a == b and start < end and begin < stop


# ---- manifest.json: the description of a generated project (tensors, kernels, memory) that commands on this computer read.

SCHEMA_VERSION = 2
"""Version of the format of manifests, which a manifest contains as ``schema_version``."""


def manifest(module: Module, version: str) -> dict[str, Any]:
    """Return a network's manifest as plain data for JSON. ``version``: microc's version.

    ``tensors`` lists tensors in the order in which the board's firmware lists them. A tensor is ``offset`` bytes from the start
    of ``buffer``. The buffer is the arena, or an input or output of the network, whose memory the caller may allocate elsewhere.
    ``memory`` lists the values in the arena, including workspaces, with the first and the last step of their lifetimes.

    If sizes of the network vary between runs, ``sizes`` lists these sizes, and the board has an additional tensor with their
    values after all others. ``shape`` and ``bytes`` of a tensor are then those at the maximum sizes. ``extents`` is the shape as
    expressions: numbers, names of sizes, and lists of an operator (``add``, ``sub``, ``mul``, ``floordiv``) and two operands.

    ``sha256`` contains hashes of the model's file (``model``) and of plugins (by name). ``deviations`` are sentences for
    auditors. ``ties`` is the rounding of quantised inputs halfway between two integers. ``classes`` contains the names of
    classes and the output that they belong to. ``self_test`` describes the data of the self-test (None: there is none).
    ``arenas``, for a board with several memories for tensors, contains for each memory the range of bytes of the arena that
    is in this memory; on this computer the arena is one block. ``copies`` maps constants in the arena to the step at whose
    start they are copied (-1: at reset). ``cores`` of a kernel, if present, is the number of cores that share its loops.
    ``flash``, for a board with several flash regions for constants, lists the constants of each. ``storage`` lists those that
    are read from a memory which the core cannot address, with their offsets in the file of weights. ``hot_code`` lists the
    kernels that run from RAM. ``external``, if present, describes external code, its build settings, and the kernels that it
    computes. ``learning``, of a network that learns, has the number of first ``kernels`` that infer, the names of the last
    inputs (``labels``, ``rate``) and of the last output (``loss``), and the names of the tensors that learning changes.
    """
    assert module.plan is not None
    memory = MemoryMap(module)
    names, code = frozenset(memory.names), {kernel.name: kernel.code_bytes for kernel in module.kernels}
    cores = core_count_of(module)
    shared = {kernel.name for kernel in module.kernels if cores > 1 and has_parallel_loop(kernel)}
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
        **({"flash": [asdict(region) for region in module.plan.flash]} if module.plan.flash else {}),
        **({"storage": _describe_storage(module, module.plan.storage)} if module.plan.storage else {}),
        **({"hot_code": asdict(module.plan.code)} if module.plan.code else {}),
        "arena_lower_bound": module.plan.lower_bound,
        "planner": module.plan.planner,
        "io_in_arena": module.plan.io_in_arena,
        "const_bytes": module.const_bytes,
        "stack_bound": stack_bound(module),
        "macs": module.macs,
        **sizes,
        **describe_external_code(module),
        **({"learning": describe_learning(module)} if module.inference_calls else {}),
        "nominal_macs": module.nominal_macs,
        "options": dict(module.options),
        "deviations": list(describe_deviations(module)),
        "inputs": list(module.inputs),
        "outputs": list(module.outputs),
        "ties": module.ties,
        "classes": {"output": module.class_output, "names": list(module.classes)} if module.classes else None,
        "self_test": describe_self_test(module),
        "streaming": None if module.streaming is None else describe_streaming(module.streaming),
        "tensors": [
            {**_tensor_entry(module, name), "written_by": memory.steps_that_write(name)} for name in memory.names
        ],
        "memory": memory.arena_entries(),
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
                "inputs": memory.tensors_read_by(k),
                "outputs": [n for n in call.writes if n in names],
                "workspaces": list(call.workspace),
                "constants": memory.constants_read_by(call),
                **({"tensor_unit": asdict(call.unit)} if call.unit else {}),
                **({"cores": cores} if call.kernel in shared else {}),
            }
            for k, call in enumerate(module.calls)
        ],
    }


_ROUNDING = {
    "tflm": "integers of TFLite files are rounded as TFLite Micro and CMSIS-NN do, twice: docs/tflite.md",
    "litert": "integers of TFLite files are rounded as LiteRT's reference kernels do, dense layers once: docs/tflite.md",
    "single": "integers of TFLite files are rounded once everywhere: docs/tflite.md",
}


def describe_deviations(module: Module) -> tuple[str, ...]:
    """Return sentences for auditors about properties of a network's results and code that depend on its options.

    They are about rounding, requantisation, the order of sums of floats, and MISRA C."""
    options = module.options
    sentences = [_ROUNDING[options.get("rounding", "tflm")]]
    if options.get("requantize") == "fixed":
        sentences.append("QDQ networks are requantised in fixed point, which may differ from ONNX by quanta")
    if options.get("hybrid", "float") == "float":
        sentences.append("layers of floats with integer weights are computed in floats, where LiteRT quantises data")
    sentences.append(
        "sums of floats are taken in another order than a framework's: within 1e-4 of the largest, as a rule"
    )
    sentences.append("deviations from MISRA C:2012 are those of docs/misra.md")
    return tuple(sentences)


def _describe_storage(module: Module, storage: StoredConstants) -> dict[str, Any]:
    """Return the manifest's entry ``storage``: the constants in the file of weights, and the CRC-32 that the file states."""
    context = make_storage_context(module)
    assert context is not None
    return {**asdict(storage), "offsets": dict(storage.offsets), "crc": context.crc}


def describe_streaming(streaming: Streaming) -> dict[str, Any]:
    """Return the manifest's entry ``streaming``: how a network processes a sequence some frames at a time.

    See :class:`Streaming`."""
    outputs = {name: asdict(output) for name, output in streaming.outputs.items()}
    return {"hop": streaming.hop, "inputs": dict(streaming.inputs), "outputs": outputs}


def describe_learning(module: Module) -> dict[str, Any]:
    """Return the manifest's entry ``learning`` of a network that learns."""
    *_, labels, rate = module.inputs
    ends = {"labels": labels, "rate": rate, "loss": module.outputs[-1]}
    return {"kernels": module.inference_calls, **ends, "learned": list(module.state)}


def learned_weights_digest(hashes: Mapping[str, str], learned: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the SHA-256 of a network's model, and of names, dtypes and shapes of the tensors that learning changes.

    Learned weights are exchanged between firmware of an equal digest only. Its first four bytes, as a big-endian number, are
    the identity of saves on the board. ``hashes``: the manifest's ``sha256``; ``learned``: descriptions of the tensors."""
    entries = [[tensor["name"], tensor["dtype"], list(tensor["shape"])] for tensor in learned]
    return hashlib.sha256(json.dumps([hashes.get("model", ""), entries]).encode()).digest()


def is_inference(data: Mapping[str, Any], arrays: Sequence[Any]) -> bool:
    """Test whether the inputs of a run leave out labels and rate: a network that learns then infers.

    ``data``: the network's manifest."""
    return "learning" in data and len(arrays) == len(data["inputs"]) - 2


def make_project_manifest(modules: Sequence[Module], version: str) -> dict[str, Any]:
    """Return the manifest of a project with several networks as plain data for JSON.

    It contains the names of the networks in the order in which the board's firmware lists them. Each network has a manifest of
    its own in its folder."""
    return {"schema_version": SCHEMA_VERSION, "microc": version, "models": [module.name for module in modules]}


def _tensor_entry(module: Module, name: str) -> dict[str, Any]:
    """Return the manifest's entry of a tensor: dtype, extents, quantisation, the buffer that contains it and its offset there."""
    value = module.values[name]
    base, offset = module.base_and_offset(name)
    assert module.plan is not None
    outside = module.values[base].storage in ("input", "output")
    names = {size.scalar.name: size.name for size in module.sizes}
    return {
        **describe_value(value),
        **({"extents": [_extent_to_json_data(extent, names) for extent in value.extents]} if value.extents else {}),
        "scale": value.scale,
        "zero_point": value.zero_point,
        "buffer": base if outside else "arena",
        "offset": offset if outside else offset + module.plan.offsets[base],
    }


def _extent_to_json_data(extent: ir.Expr, names: Mapping[str, str]) -> Any:
    """Return an extent as plain data for JSON: a number, the name of a size, or a list of an operator and two operands.

    ``names``: name of each size by the name of its variable."""
    match extent:
        case ir.Const(value):
            return value
        case ir.Var(name):
            return names[name]
        case ir.Bin(op, a, b):
            return [op, _extent_to_json_data(a, names), _extent_to_json_data(b, names)]
        case _:
            raise InternalError(f"extent {extent}: expected a number, a size, or a binary operation on these")


def to_json(data: dict[str, Any]) -> str:
    """Return ``data`` as the text of a JSON file: indented, keys in the order of ``data``, with a newline at the end.

    Equal data results in equal text."""
    return json.dumps(data, indent=2, ensure_ascii=True) + "\n"
