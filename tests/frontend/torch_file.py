# SPDX-License-Identifier: Apache-2.0
"""The archive of a PyTorch program, written by the tests: ``y = relu(x + w)``, and what an attacker would put into it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"
_LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def meta(*sizes: int) -> dict[str, Any]:
    strides = [int(np.prod(sizes[k + 1 :])) for k in range(len(sizes))]
    return {
        "dtype": 7,
        "sizes": [{"as_int": extent} for extent in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": stride} for stride in strides],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def _operand(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "arg": _tensor(value), "kind": 1}


def _tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def _node(target: str, inputs: list[dict[str, Any]], output: str) -> dict[str, Any]:
    return {
        "target": target,
        "inputs": inputs,
        "outputs": [_tensor(output)],
        "metadata": {},
        "is_hop_single_tensor_return": None,
        "name": output,
    }


def tree(children: list[dict[str, Any]], kind: str = "builtins.tuple", context: str = "null") -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": children}


def parts() -> dict[str, Any]:
    """The members by name: JSON as what it holds."""
    add = _node("torch.ops.aten.add.Tensor", [_operand("self", "x"), _operand("other", "p_w")], "add")
    relu = _node("torch.ops.aten.relu.default", [_operand("self", "add")], "relu")
    inside = json.dumps([1, tree([tree([_LEAF]), tree([], "builtins.dict", "[]")])])
    outside = json.dumps([1, _LEAF])
    graph = {
        "inputs": [_tensor("p_w"), _tensor("x")],
        "outputs": [_tensor("relu")],
        "nodes": [add, relu],
        "tensor_values": {name: meta(1, 4) for name in ("p_w", "x", "add", "relu")},
        "sym_int_values": {},
        "sym_bool_values": {},
        "is_single_tensor_return": False,
        "custom_obj_values": {},
        "sym_float_values": {},
    }
    signature = {
        "input_specs": [
            {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
            {"user_input": {"arg": _tensor("x")}},
        ],
        "output_specs": [{"user_output": {"arg": _tensor("relu")}}],
    }
    call = {"inputs": [], "outputs": [], "in_spec": inside, "out_spec": outside, "forward_arg_names": ["x"]}
    program = {
        "graph_module": {
            "graph": graph,
            "signature": signature,
            "module_call_graph": [{"fqn": "", "signature": call}],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10},
        "range_constraints": {},
        "schema_version": {"major": 8, "minor": 20},
        "verifiers": ["TRAINING"],
        "torch_version": "2.13.0",
        "guards_code": [],
    }
    weight = {"path_name": "weight_0", "is_param": True, "use_pickle": False, "tensor_meta": meta(1, 4)}
    return {
        "archive_format": b"pt2",
        "archive_version": b"0",
        "byteorder": b"little",
        ".data/version": b"6\n",
        PROGRAM: program,
        WEIGHTS: {"config": {"w": weight}},
        CONSTANTS: {"config": {}},
        "data/weights/weight_0": np.array([1, -2, 3, -4], "<f4").tobytes(),
        SAMPLES: b"",
    }


def archive(change: Callable[[dict[str, Any]], object] = lambda members: None, root: str = "model/") -> bytes:
    """The file, with its members changed before they are written."""
    members = parts()
    change(members)
    return packed(members, root)


def packed(members: Mapping[str, Any], root: str = "model/") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            written.writestr(zipfile.ZipInfo(root + name), data)
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, Any]:
    """The members of a file by their names below its folder, JSON as what it holds."""
    with zipfile.ZipFile(io.BytesIO(data)) as held:
        members = {name.partition("/")[2]: held.read(name) for name in held.namelist()}
    return {name: json.loads(content) if name.endswith(".json") else content for name, content in members.items()}
