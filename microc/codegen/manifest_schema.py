"""The schema of manifest.json: a generated project is data of others, so that its manifest is checked before anybody reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from microc import dtypes

_MOST = 1 << 53
_TEXT = {"type": "string", "maxLength": 1 << 16}
_IDENTIFIER = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": 4096}
_COUNT = {"type": "integer", "minimum": 0, "maximum": _MOST}
_INTEGER = {"type": "integer", "minimum": -_MOST, "maximum": _MOST}
_REAL = {"type": "number", "minimum": -1e38, "maximum": 1e38}
_NAMES = {"type": "array", "items": _TEXT}
_COUNTS = {"type": "array", "items": _COUNT}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def object_schema(required: Mapping[str, Any], *types: str, optional: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """Schema of an object: keys that it must have, keys that it may have, other ``types`` that may stand in its place."""
    return {"type": ["object", *types], "required": list(required), "properties": {**required, **optional}}


def objects_schema(required: Mapping[str, Any], optional: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """Schema of an array of objects."""
    return {"type": "array", "items": object_schema(required, optional=optional)}


def _mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


_DESCRIBED = {
    "name": _TEXT,
    "label": _TEXT,
    "kind": {"enum": ["input", "output", "state", "const", "intermediate", "workspace"]},
    "dtype": {"type": "string"},
    "shape": _COUNTS,
    "bytes": _COUNT,
}
_TENSOR = {
    **_DESCRIBED,
    "scale": {"type": ["number", "null"], "minimum": -1e38, "maximum": 1e38},
    "zero_point": {"type": ["integer", "null"], "minimum": -_MOST, "maximum": _MOST},
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
OPERATOR = {
    "op": _TEXT,
    "attributes": {"type": "array", "items": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}},
    "weights": objects_schema(_WEIGHTS),
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
    "operators": objects_schema(OPERATOR),
    "streamed": _NAMES,
    "inputs": _NAMES,
    "outputs": _NAMES,
    "workspaces": _NAMES,
    "constants": objects_schema({"symbol": _IDENTIFIER, "bytes": _COUNT}),
}
_UNIT = dict.fromkeys(("cycles", "load", "compute", "store", "macs"), _COUNT) | {"utilisation": _REAL}
_AREA = {"memory": _TEXT, "size": _COUNT, "capacity": _COUNT, "waits": _INTEGER}
_OUTPUT = {"axis": _INTEGER, "frames": _COUNT, "delay": _INTEGER, "first": _INTEGER}
_EXTERNAL = {
    **dict.fromkeys(("sources", "include", "defines", "libraries", "folders"), _NAMES),
    "backends": objects_schema({"name": _TEXT, "version": _TEXT, "licence": _TEXT, "files": _COUNT}),
    "kernels": objects_schema({"index": _COUNT, "backend": _TEXT}),
}
_NETWORK = {
    "model": _IDENTIFIER,
    "source": _TEXT,
    "fingerprint": _TEXT,
    "sha256": _mapping(_TEXT),
    "arena_size": _COUNT,
    "arena_lower_bound": _COUNT,
    "planner": _TEXT,
    "io_in_arena": {"type": "boolean"},
    "const_bytes": _COUNT,
    "stack_bound": {"type": ["integer", "null"], "minimum": 0, "maximum": _MOST},
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
        {"hop": _COUNT, "inputs": _mapping(_INTEGER), "outputs": _mapping(object_schema(_OUTPUT))}, "null"
    ),
    "tensors": objects_schema(_TENSOR, {"extents": {"type": "array"}}),
    "memory": objects_schema({**_DESCRIBED, "offset": _COUNT, "first": _INTEGER, "last": _INTEGER}),
    "kernels": objects_schema(_KERNEL, {"tensor_unit": object_schema(_UNIT)}),
}
_SOMETIMES = {
    "arenas": objects_schema({**_AREA, "start": _COUNT, "accesses": _COUNT}),
    "copies": _mapping(_INTEGER),
    "hot_code": object_schema({**_AREA, "kernels": _NAMES, "saved": _INTEGER}),
    "sizes": objects_schema(
        {"name": _IDENTIFIER, "label": _TEXT, **dict.fromkeys(("minimum", "maximum", "step"), _INTEGER)}
    ),
    "external": object_schema(_EXTERNAL),
    "board": _TEXT,
}
_VERSIONED = {"schema_version": {"type": "integer"}, "microc": _TEXT}
NETWORK: Mapping[str, Any] = object_schema({**_VERSIONED, **_NETWORK}, optional=_SOMETIMES)
"""The schema of a network's manifest."""
TABLE: Mapping[str, Any] = object_schema(
    {**_VERSIONED, "models": {"type": "array", "items": _IDENTIFIER, "minItems": 1}}, optional={"board": _TEXT}
)
"""The schema of the manifest of a project of several networks."""


def fault(data: Any) -> str:
    """Say what is wrong with the manifest of a project or of a network; empty where it is whole."""
    import jsonschema

    schema = TABLE if isinstance(data, dict) and "models" in data else NETWORK
    wrong = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(data)), None)
    if wrong is not None:
        place = "/".join(map(str, wrong.absolute_path))
        found = (
            wrong.message
            if wrong.validator == "required"
            else f"got {type(wrong.instance).__name__}, expected {_describe_constraint(wrong)}"
        )
        return f"{place}: {found}" if place else found
    return "" if "models" in data else next(_inconsistencies(data), "")


def _describe_constraint(wrong: Any) -> str:
    words = {"type": "{}", "enum": "one of {}", "minimum": "at least {}", "maximum": "at most {}"}
    return str(words.get(wrong.validator, f"{wrong.validator} {{}}")).format(wrong.validator_value)


def _inconsistencies(data: Mapping[str, Any]) -> Iterator[str]:
    """Names that nothing has, and sizes that are not those of shapes."""
    tensors = {tensor["name"]: tensor for tensor in data["tensors"]}
    for end in ("inputs", "outputs"):
        yield from (f"{end}: there is no tensor {name!r}" for name in data[end] if name not in tensors)
    for tensor in (*data["tensors"], *data["memory"]):
        if not dtypes.is_valid(tensor["dtype"]) or dtypes.is_vector(tensor["dtype"]):
            yield f"{tensor['name']}: got dtype {tensor['dtype']!r}, expected one of a tensor"
    for number, kernel in enumerate(data["kernels"]):
        if kernel["index"] != number:
            yield f"kernels/{number}/index: got {kernel['index']}, expected {number}"
        names = (*kernel["inputs"], *kernel["outputs"])
        yield from (f"kernels/{number}: there is no tensor {name!r}" for name in names if name not in tensors)
    if data["classes"] is not None and data["classes"]["output"] not in tensors:
        yield f"classes: there is no tensor {data['classes']['output']!r}"
    streaming = data["streaming"] or {"inputs": {}, "outputs": {}}
    yield from (
        f"streaming: there is no tensor {name!r}"
        for name in (*streaming["inputs"], *streaming["outputs"])
        if name not in tensors
    )
