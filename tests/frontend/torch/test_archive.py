# SPDX-License-Identifier: Apache-2.0
"""What of a ``.pt2`` reaches PyTorch: plain data, and nothing that runs. These tests need no PyTorch."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from microc.errors import MicrocError, ModelError, UnsupportedError
from microc.frontend.torch import reader as torch_export
from microc.frontend.torch.file import sanitise_archive
from microc.graph.ir import Graph
from tests.frontend.mutate import survey
from tests.frontend.torch_file import CONSTANTS, PROGRAM, SAMPLES, WEIGHTS, archive, meta, packed, parts, tree, unpacked

Change = Callable[[dict[str, Any]], object]
COMMAND = "__import__('os').system('true')"


class Command:
    """A pickle that would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def weight(members: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = members[WEIGHTS]["config"]["w"]
    return found


def graph(members: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = members[PROGRAM]["graph_module"]["graph"]
    return found


def called(members: dict[str, Any], spec: dict[str, Any]) -> None:
    members[PROGRAM]["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, spec])


def test_plain_data_come_through() -> None:
    given, made = parts(), unpacked(sanitise_archive(archive(root="other name/"), "m.pt2"))
    assert made == given


def test_sample_inputs_and_what_nobody_asked_for_stay_behind(tmp_path: Path) -> None:
    bomb = pickle.dumps(Command(tmp_path / "ran"))

    def change(members: dict[str, Any]) -> None:
        names = (
            SAMPLES,
            "data/sample_inputs/other.pt",
            "extra/x",
            "data/aotinductor/model/x.so",
            "data/weights/weight_7",
        )
        members.update(dict.fromkeys(names, bomb))
        members["models/other.json"] = {"graph_module": COMMAND}
        members[PROGRAM]["guards_code"] = [COMMAND]
        members[PROGRAM]["range_constraints"] = {COMMAND: {"min_val": 1, "max_val": 2}}
        members[PROGRAM]["graph_module"]["metadata"] = {"custom": COMMAND}
        members[PROGRAM]["graph_module"]["module_call_graph"].append({"fqn": "part", "signature": {"in_spec": COMMAND}})
        graph(members)["nodes"][0]["metadata"] = {"torch_fn": COMMAND, "nn_module_stack": COMMAND}

    assert unpacked(sanitise_archive(archive(change), "m.pt2")) == parts()
    assert not (tmp_path / "ran").exists()


def put(place: Callable[[dict[str, Any]], dict[str, Any]], key: str, value: Any) -> Change:
    return lambda members: place(members).__setitem__(key, value)


def node(members: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = graph(members)["nodes"][1]
    return found


ATTACKS: dict[str, Change] = {
    "pickled weights": put(weight, "use_pickle", True),
    "weights pickled by an older version": lambda m: m.__setitem__("data/weights/model.pt", b"\x80\x02."),
    "constants pickled by an older version": lambda m: m.__setitem__("data/constants/model.pt", b"\x80\x02."),
    "a pickled constant": lambda m: m[CONSTANTS]["config"].__setitem__("c", {**weight(m), "use_pickle": 1}),
    "a custom object": lambda m: m[CONSTANTS]["config"].__setitem__("c", {**weight(m), "path_name": "custom_obj_0"}),
    "an opaque object": lambda m: m[CONSTANTS]["config"].__setitem__("c", {**weight(m), "path_name": "opaque_obj_0"}),
    "a payload elsewhere": put(weight, "path_name", "weight_../../x"),
    "a payload with a path": put(weight, "path_name", "../constants/tensor_0"),
    "an expression as an extent": lambda m: graph(m)["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": COMMAND, "hint": {"as_int": 1}}}
    ),
    "a symbol as an extent": lambda m: graph(m)["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": "s0", "hint": None}}
    ),
    "an expression among symbols": put(graph, "sym_int_values", {"s": {"as_expr": {"expr_str": COMMAND}}}),
    "a name that is code": lambda m: node(m)["outputs"].__setitem__(0, {"as_tensor": {"name": f"relu\n{COMMAND}\n"}}),
    "a name with a call": put(node, "name", "relu()"),
    "a name that is a keyword": put(node, "name", "import"),
    "a name in other letters": put(node, "name", "réλu"),
    "an argument's name": lambda m: m[PROGRAM]["graph_module"]["module_call_graph"][0]["signature"].__setitem__(
        "forward_arg_names", [f"x=({COMMAND})"]
    ),
    "a function of Python": put(node, "target", "torch.os.system"),
    "an operator on Python's objects": put(node, "target", "_operator.methodcaller"),
    "an operator on files": put(node, "target", "torch.ops.aten.from_file.default"),
    "an operator of others": put(node, "target", "torch.ops.mine.thing.default"),
    "an extension": put(node, "target", "#mine:thing"),
    "a loop": put(node, "target", "torch.ops.higher_order.while_loop"),
    "an operator as an operand": lambda m: node(m)["inputs"][0].__setitem__("arg", {"as_operator": "torch.os.system"}),
    "an object as an operand": lambda m: node(m)["inputs"][0].__setitem__("arg", {"as_custom_obj": {"name": "x"}}),
    "arguments of a class": lambda m: called(m, tree([], "collections.namedtuple", '"os.system"')),
    "a dictionary with a factory": lambda m: called(
        m, tree([], "collections.defaultdict", '{"default_factory_module": "os", "default_factory_name": "x"}')
    ),
    "an enumeration among keys": lambda m: called(
        m, tree([], "builtins.dict", '[{"__enum__": true, "fqn": "antigravity:X", "name": "y"}]')
    ),
    "big end first": lambda m: m.__setitem__("byteorder", b"big"),
    "no byte order": lambda m: m.pop("byteorder"),
    "two programs": lambda m: m.__setitem__("x/models/model.json", {}),
    "weights beyond their bytes": put(weight, "tensor_meta", meta(1, 5)),
    "weights that begin beyond their bytes": put(weight, "tensor_meta", {**meta(1, 4), "storage_offset": {"as_int": 1}}),
    "weights that repeat a byte for ever": put(
        weight, "tensor_meta", {**meta(1 << 40), "strides": [{"as_int": 0}]}
    ),
    "a negative stride": put(weight, "tensor_meta", {**meta(1, 4), "strides": [{"as_int": 4}, {"as_int": -1}]}),
    "no extents": put(weight, "tensor_meta", None),
    "an extent that is text": put(weight, "tensor_meta", {**meta(4), "sizes": [{"as_int": "4"}]}),
    "a dtype of others": put(weight, "tensor_meta", {**meta(1, 4), "dtype": 99}),
    "no weights": lambda m: m.pop("data/weights/weight_0"),
    "JSON that is none": lambda m: m.__setitem__(PROGRAM, b"{"),
    "JSON that is a list": lambda m: m.__setitem__(PROGRAM, b"[]"),
    "JSON nested too deeply": lambda m: m.__setitem__(PROGRAM, b"[" * 100_000),
    "operands nested too deeply": lambda m: node(m)["inputs"][0].__setitem__("arg", json.loads("[" * 90 + "]" * 90)),
    "too many operators": lambda m: graph(m)["nodes"].extend([node(m)] * 20_001),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_could_run_or_makes_no_sense_is_refused(attack: str) -> None:
    with pytest.raises((ModelError, UnsupportedError)) as refused:
        sanitise_archive(archive(ATTACKS[attack]), "m.pt2")
    assert refused.value.where and refused.value.what.isprintable()


def test_all_operators_of_others_are_listed() -> None:
    def change(members: dict[str, Any]) -> None:
        graph(members)["nodes"][0]["target"] = "torch.ops.mine.first.default"
        graph(members)["nodes"][1]["target"] = "torch.ops.mine.second.default"

    with pytest.raises(UnsupportedError, match=r"(?s)mine\.first.*mine\.second"):
        sanitise_archive(archive(change), "m.pt2")


def test_an_older_archive_is_refused_with_what_helps() -> None:
    with pytest.raises(UnsupportedError, match="pickled") as refused:
        sanitise_archive(packed({"serialized_exported_program.json": {}}), "old.pt2")
    assert "save it" in str(refused.value.hint)


def test_mutations_are_programs_or_refused() -> None:
    def read(data: bytes) -> Graph:
        sanitise_archive(data, "m.pt2")
        return Graph("", (), (), (), {}, {})

    assert survey(read, archive(), 300, 3)


def test_the_reader_refuses_before_it_needs_pytorch() -> None:
    with pytest.raises(MicrocError, match="pickled"):
        torch_export.read_pt2(archive(ATTACKS["pickled weights"]), "m.pt2", {})
