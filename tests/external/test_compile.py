# SPDX-License-Identifier: Apache-2.0
"""A backend of one file, compiled and run: on this computer, in a project, beside our own code."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.codegen.project.additions import merge_external_code_sources
from microc.errors import InternalError, OutputError, ProgramError, UsageError
from microc.external.backend import BACKENDS, Code, Entry, Region
from microc.module import Module
from microc.plan.plan_check import check_plan
from microc.plugin import Plugin, active, load_plugin
from tests.device.smoke import WARNINGS, needs
from tests.external.networks import BACKEND, floats, network

ALL: Any = {"plugins": BACKEND, "external": "acme", "external_choice": "all"}


def rules(module: Module) -> list[str]:
    return [call.rule for call in module.calls]


def project(**options: object) -> microc.Program:
    chosen: Any = {**ALL, **options}
    found = microc.compile(network(), board="host", **chosen)
    assert isinstance(found, microc.Program)
    return found


def test_the_library_computes_regions_by_the_backend() -> None:
    mine, theirs = microc.compile(network()), microc.compile(network(), **ALL)
    assert [k["rule"] for k in theirs.manifest["kernels"]][:2] == ["external: acme dense", "external: acme scale_shift"]
    for seed in range(5):
        x = floats(1, 8, seed=seed)
        np.testing.assert_allclose(theirs(x), mine(x), rtol=0, atol=1e-6)


def test_the_plan_keeps_external_operands_apart() -> None:
    module = project().module
    check_plan(module)
    assert module.plan is not None
    first, second = module.calls[:2]
    places = {name: module.plan.offsets[module.base_and_offset(name)[0]] for name in (*second.reads, *second.writes)}
    assert places[first.writes[0]] != places[second.writes[0]]
    together = module.with_plan(
        replace(module.plan, offsets={**module.plan.offsets, second.writes[0]: places[first.writes[0]]})
    )
    with pytest.raises(InternalError, match="overlaps"):
        check_plan(together)


def test_cost_decides_unless_all_is_said(tmp_path: Path) -> None:
    plugin = load_plugin(BACKEND)
    (acme,) = plugin.backends

    def at(price: float, entry: Entry) -> Entry:
        return replace(entry, code=lambda region: replace(entry.code(region), instructions=price))

    entries = tuple(map(at, (1.0, 1e9), acme.entries))
    priced = replace(plugin, backends=(replace(acme, entries=entries),), digest="")
    module = project(plugins=priced, external_choice="cost", dump=tmp_path).module
    assert rules(module)[0] == "external: acme dense" and not any("scale_shift" in rule for rule in rules(module))
    assert module.calls[0].instructions == 1 and [s.name for s in module.sources] == ["acme"]
    assert "scale_shift takes about 1,000,000,000" in (tmp_path / "external.txt").read_text()
    free = replace(priced, backends=(replace(acme, entries=entries[1:]),))
    module = project(plugins=free, external_choice="cost").module
    assert not module.sources and module.own is None


@needs("gcc")
def test_code_that_fails_ends_the_run_and_says_so(tmp_path: Path) -> None:
    plugin = load_plugin(BACKEND)
    (acme,) = plugin.backends

    def failing(entry: Entry) -> Entry:
        def code(region: Region) -> Code:
            made = entry.code(region)
            aligned = " | ".join(f"(size_t){name}" for name in (*made.data, "scratch"))
            lines = (*made.lines, f"return in_0[0] < 0.0f ? 7 : (({aligned}) & 63u) == 0 ? 0 : 8;")
            return replace(made, lines=lines, workspace=20, align=64, fails=True)

        return replace(entry, code=code)

    entries = tuple(map(failing, acme.entries))
    careful = replace(plugin, backends=(replace(acme, entries=entries),), digest="")
    program = project(plugins=careful)
    plan, text = program.module.plan, str(program.files()["model.c"])
    assert plan is not None and plan.align == 64 and "NET_ERROR_EXTERNAL" in text
    folder = program.write(tmp_path)
    main_c = """#include "model.h"
    static uint64_t arena[NET_ARENA_SIZE / 8 + 1] __attribute__((aligned(NET_ARENA_ALIGN)));
    int main(void)
    {
        float x[8] = { 1.0f }, y[12];
        const struct net_inputs inputs = { x };
        const struct net_outputs outputs = { y };
        const int well = net_run(arena, &inputs, &outputs);
        x[0] = -1.0f;
        return well == NET_OK && net_run(arena, &inputs, &outputs) == NET_ERROR_EXTERNAL ? 0 : 1;
    }
    """
    (tmp_path / "try.c").write_text(main_c)
    files = ["try.c", "model.c", "model_data.c", "external/acme/acme.c"]
    words = ["gcc", "-Iexternal/acme", *files, *WARNINGS, "-lm", "-o", "try"]
    subprocess.run(words, cwd=folder, check=True)
    subprocess.run([str(folder / "try")], check=True)
    with pytest.raises(ProgramError, match="got 24 bytes"):
        odd = replace(acme, entries=tuple(replace(e, code=lambda r: Code(("f();",), align=24)) for e in acme.entries))
        project(plugins=replace(plugin, backends=(odd,), digest=""))


def test_a_project_is_whole_and_holds_our_code_beside(tmp_path: Path) -> None:
    files = project().files()
    told = json.loads(files["manifest.json"])
    assert told["external"]["sources"] == ["external/acme/acme.c"] and told["external"]["include"] == ["external/acme"]
    assert told["external"]["kernels"][0] == {"index": 0, "backend": "acme", "bound": 1e-6}
    assert "external" not in json.loads(files["own/manifest.json"]) and "acme" not in str(files["own/model.c"])
    assert re.search(r"#include <acme.h>", str(files["model.c"]))
    bill = json.loads(files["sbom.spdx.json"])
    assert {f["licenseConcluded"] for f in bill["files"] if "external/" in f["fileName"]} == {"MIT"}
    plain = microc.compile(network(), board="host").files()
    assert not any("external" in name or "own" in name for name in plain) and "EXTERNAL" not in str(plain["Makefile"])


@needs("make")
def test_the_firmware_builds_without_warnings_and_agrees_kernel_by_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project().write(tmp_path / "firmware")
    subprocess.run(["make", "-C", str(folder), "CFLAGS=-Werror"], check=True, capture_output=True)
    assert main(["verify", str(folder)]) == 0
    assert re.search(r"0 +#0 +dense", capsys.readouterr().out)


@needs("make")
def test_verify_finds_a_backend_that_computes_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project().write(tmp_path / "firmware")
    source = folder / "external" / "acme" / "acme.c"
    source.write_text(source.read_text().replace("+ shift[", "- shift["))
    assert main(["verify", str(folder)]) != 0
    assert "differ after kernel 1 (mul+add)" in capsys.readouterr().err


@needs("cmake")
def test_cmake_builds_it(tmp_path: Path) -> None:
    folder = project().write(tmp_path / "firmware")
    subprocess.run(["cmake", "-B", str(tmp_path / "b"), str(folder)], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "b")], check=True, capture_output=True)


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "net.mcg"
    microc.save(network(), model)
    words = ["compile", str(model), "--board", "host", "-o", str(tmp_path / "out"), "--plugin", str(BACKEND)]
    assert main([*words, "--external", "acme", "--external-choice", "all"]) == 0
    assert (tmp_path / "out" / "external" / "acme" / "acme.c").exists()
    assert (
        main(
            [
                "explain",
                str(model),
                "0",
                *words[2:4],
                "--plugin",
                str(BACKEND),
                "--external=acme",
                "--external-choice=all",
            ]
        )
        == 0
    )
    assert "the parts are what would be ours" in capsys.readouterr().out


def test_two_networks_of_one_firmware_share_a_library() -> None:
    one, two = (project(name=name).module for name in ("one", "two"))
    (shared,) = merge_external_code_sources((one, two))
    assert shared.files == one.sources[0].files
    other = replace(two, sources=(replace(two.sources[0], files={"acme.c": b""}),))
    with pytest.raises(UsageError, match="different copies of acme"):
        merge_external_code_sources((one, other))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"external": "acne"}, "there is no backend 'acne'"),
        ({"external": 3}, "external"),
        ({"external_choice": "some"}, "external_choice"),
        ({"relocatable": True}, "a relocatable network has no external code"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        project(**options)


def test_exports_archives_and_several_targets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no export format contains external code"):
        project().export("c", tmp_path / "export")
    library = microc.compile(network(), **ALL)
    with pytest.raises(OutputError, match="cannot contain external code"):
        library.export_library(tmp_path / "net.tar")
    with pytest.raises(UsageError, match="several cores"):
        microc.compile(network(), "host,portable", **ALL)


def test_backends_are_there_only_where_their_plugin_is() -> None:
    plugin = load_plugin(BACKEND)
    assert "acme" not in BACKENDS
    with active([plugin]):
        assert BACKENDS["acme"] is plugin.backends[0]
    other = Plugin(backends=(replace(plugin.backends[0], bound=0.5),))
    with pytest.raises(UsageError, match="already a backend 'acme'"), active([plugin, other]):
        pass
