# SPDX-License-Identifier: Apache-2.0
"""Regions for an Ethos-U: what Vela makes of them agrees with the C around it, and the C runs where a stand-in is the
driver."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import microc
from microc import GraphBuilder
from microc.cli import main
from microc.errors import ToolError, UsageError
from microc.external.backend import Partition, partition
from microc.external.ethos_u import driver as regions
from microc.external.ethos_u.accelerator import VelaModel, compile_model, parse_configuration, parse_refusal_reasons
from microc.external.ethos_u.driver import LIBRARY, configured_backend
from microc.frontend.tflite.writer import tflite_names, to_tflite
from microc.graph.ir import verify
from microc.ops import registry
from microc.target import target_for
from tests.device.smoke import WARNINGS, needs
from tests.external.ethos_u.networks import DATA, convolution, installed, network
from tests.external.ethos_u.standin import FLAGS, PREFIX, driver

U55, M55 = "ethos-u55-128", target_for("cortex-m55")
QUICK: dict[str, Any] = {"external_choice": "all", "opt_level": 0}


def parted(configuration: str = U55) -> Partition:
    return partition(network(), [configured_backend(configuration)], M55)


def firmware(**options: Any) -> microc.Program:
    found = microc.compile(network(), board="mps3-an547", **{"external": {"ethos-u": U55}, **QUICK, **options})
    assert isinstance(found, microc.Program)
    return found


@installed
@pytest.mark.parametrize("configuration", [U55, "ethos-u55-32,memory=Sram_Only", "ethos-u65-512,memory=Dedicated_Sram"])
def test_regions_are_what_vela_says_and_the_c_agrees(configuration: str) -> None:
    found = parted(configuration)
    verify(found.graph, registry.infer_node_types)
    assert [[n.op for n in each.region.graph.nodes if n.op != "reshape"] for each in found.taken] == [
        ["add", "max_pool2d", "dense", "softmax"],
        ["conv2d", "conv2d"],
    ]
    for taken in found.taken:
        graph, code = taken.region.graph, taken.code
        made, names = compile_model(to_tflite(graph), parse_configuration(configuration)), tflite_names(graph)
        assert isinstance(made, VelaModel)
        places = [made.offsets_by_tensor[names[value]] for value in (*graph.inputs, *graph.outputs)]
        copies = [re.search(r"&scratch\[(\d+)\]", line) for line in code.lines if "memcpy" in line]
        assert [int(found[1]) for found in copies if found] == places
        assert code.workspace == made.scratch_bytes + made.fast_scratch_bytes and code.align == 16 and code.fails
        assert code.data["commands"].tobytes() == made.payload and code.data["weights"].tobytes() == made.weights
        assert code.instructions > made.cycles > 100
        assert bool(made.fast_scratch_bytes) == ("Dedicated" in configuration)


@installed
def test_what_vela_leaves_to_the_processor_is_ours() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 20, 20, 4), "int8", DATA)
    h = convolution(b, x, (8, 3, 3, 4), 1, padding=(1, 1, 1, 1))
    h = convolution(b, h, (8, 3, 3, 8), 2, strides=(5, 5), dilation=(2, 1), padding=(0, 1, 0, 1))
    graph = b.graph("net", {"y": convolution(b, h, (8, 1, 1, 8), 3)})
    found = partition(graph, [configured_backend(U55)], M55)
    assert ["conv2d" in [n.op for n in each.region.graph.nodes] for each in found.taken] == [True, True]
    ((place, why),) = found.refused
    assert place == str(graph.nodes[1].loc)
    assert why.startswith(
        "ethos-u region: Vela leaves it to the processor: Unsupported kernel stride: 5, 5; Stride>3 is"
    )


def test_what_vela_says_is_one_line_for_each_operator() -> None:
    long = "x" * 300
    said = (
        "\nWarning (supported operators) operator: AVERAGE_POOL_2D, ofm: 't1_'\nReason: kernel height: 257\n"
        "Constraints:\n  - IF padding=VALID:\n    - At most 256.\n \n"
        f"Warning (supported operators) operator: CONV_2D, ofm: 't2_'\nReason: a\x1b[31m{long}\n\nNetwork summary\n"
    )
    assert parse_refusal_reasons(said) == {
        "t1_": "kernel height: 257; Constraints: IF padding=VALID: At most 256.",
        "t2_": f"a[31m{long}"[:200],
    }
    assert parse_refusal_reasons("Warning: something else\nReason: none") == {}


@installed
def test_vela_decides_the_same_twice() -> None:
    model = to_tflite(parted().taken[0].region.graph)
    first = compile_model(model, parse_configuration(U55))
    compile_model.cache_clear()
    assert compile_model(model, parse_configuration(U55)) == first


@installed
def test_what_is_not_sound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compile_model

    def spoilt(model: bytes, configuration: Any) -> Any:
        made = real(model, configuration)
        assert isinstance(made, VelaModel)
        return replace(made, scratch_bytes=made.scratch_bytes // 2)

    monkeypatch.setattr(regions, "compile_model", spoilt)
    with pytest.raises(ToolError, match=r"fails the check: .* of region 1"):
        parted()
    nowhere = VelaModel(b"", b"", 16, 0, {}, 1.0)
    monkeypatch.setattr(regions, "compile_model", lambda model, configuration: nowhere)
    with pytest.raises(ToolError, match="other inputs and outputs"):
        parted()


@installed
def test_only_an_arm_core_has_one_beside_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ethos-u needs a Cortex-M as its host"):
        microc.compile(network(), external={"ethos-u": U55})
    with pytest.raises(UsageError, match=f"no lib{LIBRARY}.a in"):
        firmware(external={"ethos-u": f"{U55},driver={tmp_path}"})


@installed
def test_cost_decides_by_velas_cycles(tmp_path: Path) -> None:
    program = firmware(external_choice="cost", dump=tmp_path)
    said = (tmp_path / "external.txt").read_text()
    prices = {round(each.code.instructions) for each in parted().taken}
    taken = [call.instructions for call in program.module.calls if call.rule == "external: ethos-u region"]
    assert len(taken) == said.count(": ethos-u region\n") and prices.issuperset(taken)
    assert len(taken) + len(re.findall(r"ours, about .* ethos-u region takes about", said)) == len(prices)


@installed
@needs("arm-none-eabi-gcc")
def test_the_c_is_clean_without_a_driver(tmp_path: Path) -> None:
    program = firmware()
    assert program.module.plan is not None and program.module.plan.align == 16
    folder = program.write(tmp_path / "firmware")
    (source,) = json.loads((folder / "manifest.json").read_text())["external"]["sources"]
    for file in ("model.c", "model_data.c", source):
        words = [f"{PREFIX}gcc", *FLAGS, *WARNINGS, "-c", file, "-Iexternal/ethos-u", "-o", str(tmp_path / "o")]
        subprocess.run(words, cwd=folder, check=True)
    built = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True)
    assert built.returncode and "undefined reference to `ethosu_invoke_v3'" in built.stderr


@installed
@needs("arm-none-eabi-gcc")
@needs("qemu-system-arm")
@pytest.mark.emulator
def test_an_emulated_board_agrees_where_a_stand_in_is_the_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = parted()
    pairs = [(each, compile_model(to_tflite(each.region.graph), parse_configuration(U55))) for each in found.taken]
    place = driver(tmp_path / "driver", [(each, made) for each, made in pairs if isinstance(made, VelaModel)])
    folder = firmware(external={"ethos-u": f"{U55},driver={place}"}).write(tmp_path / "firmware")
    assert main(["verify", str(folder)]) == 0
    assert "every bit" in capsys.readouterr().out
    data = folder / "model_data.c"  # commands that nobody knows: the run ends with the driver's word
    data.write_text(re.sub(r"(_commands\[.*\n +\d+, \d+, \d+, \d+, \d+, \d+, )\d+", r"\g<1>99", data.read_text()))
    assert main(["verify", str(folder)]) != 0
    assert "the model's run function has failed" in capsys.readouterr().err
