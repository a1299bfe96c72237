# SPDX-License-Identifier: Apache-2.0
"""Programs that PyTorch would run something for when it loads them: microc reads them without, or refuses them."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.errors import MicrocError
from microc.frontend.torch import reader as torch_export
from tests.frontend.run import library
from tests.frontend.torch.test_archive import Command
from tests.frontend.torch_file import CONSTANTS, PROGRAM, SAMPLES, WEIGHTS, packed, tree, unpacked

torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")

Attack = Callable[[dict[str, Any], Path], object]


class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A network with a weight, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.ones(3))
        self.offset = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x: Any) -> Any:
        return self.dense(x) * self.scale + self.offset


X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def genuine() -> tuple[bytes, np.ndarray[Any, Any]]:
    """A file as PyTorch writes it, and what the network gives for X."""
    torch.manual_seed(0)
    network = Network().eval()
    file = io.BytesIO()
    torch.export.save(torch.export.export(network, (torch.from_numpy(X),)), file)
    return file.getvalue(), network(torch.from_numpy(X)).detach().numpy()


def bomb(target: Path) -> bytes:
    """A pickle as ``torch.save`` writes it, which makes a file when it is read."""
    file = io.BytesIO()
    torch.save(Command(target), file)
    return file.getvalue()


def code(target: Path) -> str:
    return f"__import__('pathlib').Path({str(target)!r}).touch()"


def first(members: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(members[name]["config"].values()))
    return found


def pickled(name: str, folder: str) -> Attack:
    def change(members: dict[str, Any], target: Path) -> None:
        entry = first(members, name)
        entry.update(use_pickle=True)
        members[f"data/{folder}/{entry['path_name']}"] = bomb(target)

    return change


def opaque(members: dict[str, Any], target: Path) -> None:
    members[CONSTANTS]["config"]["other"] = {**first(members, CONSTANTS), "path_name": "opaque_obj_0"}
    members["data/constants/opaque_obj_0"] = pickle.dumps(Command(target))


def evaluated(members: dict[str, Any], target: Path) -> None:
    values = members[PROGRAM]["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0] = {"as_expr": {"expr_str": f"{code(target)} or 1", "hint": {"as_int": 1}}}


def named(members: dict[str, Any], target: Path) -> None:
    text = json.dumps(members[PROGRAM])
    members[PROGRAM] = json.loads(text.replace('"linear"', json.dumps(f"linear = 1\n{code(target)}\ndef g():\n    y")))


def imported(members: dict[str, Any], target: Path) -> None:
    """An enumeration's module is imported: one that lies in the folder of the attacker."""
    (target.parent / "attacker.py").write_text(code(target))
    signature = members[PROGRAM]["graph_module"]["module_call_graph"][0]["signature"]
    keys = '[{"__enum__": true, "fqn": "attacker:Key", "name": "y"}]'
    signature["in_spec"] = json.dumps([1, tree([], "builtins.dict", keys)])


ATTACKS: dict[str, Attack] = {
    "sample inputs": lambda members, target: members.__setitem__(SAMPLES, bomb(target)),
    "weights": pickled(WEIGHTS, "weights"),
    "constants": pickled(CONSTANTS, "constants"),
    "all weights": lambda members, target: members.__setitem__("data/weights/model.pt", bomb(target)),
    "all constants": lambda members, target: members.__setitem__("data/constants/model.pt", bomb(target)),
    "an opaque object": opaque,
    "an extent": evaluated,
    "a name": named,
    "an import": imported,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_file_runs(
    attack: str, genuine: tuple[bytes, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    data, wanted = genuine
    members, target = unpacked(data), tmp_path / "ran"
    ATTACKS[attack](members, target)
    changed = packed(members)
    try:
        graph = torch_export.read_pt2(changed, "attack.pt2", {})
    except MicrocError:
        assert attack != "sample inputs"
    else:
        np.testing.assert_allclose(library(graph)(X), wanted, rtol=1e-5, atol=1e-6)
    assert not target.exists()


@pytest.mark.parametrize("attack", ["sample inputs", "weights", "an extent"])
def test_the_attacks_are_real(attack: str, genuine: tuple[bytes, Any], tmp_path: Path) -> None:
    """PyTorch itself runs them: else the test above would test nothing."""
    members = unpacked(genuine[0])
    ATTACKS[attack](members, tmp_path / "ran")
    with contextlib.suppress(Exception):  # it fails afterwards, in a way of its own
        torch.export.load(io.BytesIO(packed(members)))
    assert (tmp_path / "ran").exists()


def test_what_pytorch_writes_is_read(genuine: tuple[bytes, Any]) -> None:
    graph = torch_export.read_pt2(genuine[0], "genuine.pt2", {})
    np.testing.assert_allclose(library(graph)(X), genuine[1], rtol=1e-5, atol=1e-6)


def test_constants_that_are_random_or_too_many_are_refused() -> None:
    class Noise(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + torch.randn(4)

    class Large(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + torch.full((1 << 30,), 2.0).sum()

    for module, what in ((Noise(), "randn"), (Large(), "elements")):
        program = torch.export.export(module, (torch.ones(4),))
        with pytest.raises(MicrocError, match=what):
            torch_export.read_program(program)
