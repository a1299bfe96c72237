# SPDX-License-Identifier: Apache-2.0
"""``--dump``: what is written for every kernel is what was compiled, parses back, and says why the others lost."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.codegen.c.source import shared_files
from microc.compiler.lowering.derivation import derive_kernel
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.errors import OutputError
from microc.schedule.schedule import replay_trace, trace_from_json
from microc.target import target_for
from microc.tir.lower import lower
from microc.tir.text import from_text, to_text
from tests.codegen.test_text import ATTACKS, evil_model
from tests.compiler.sizes import test_family as test_sizes
from tests.frontend.onnx_model import node, proto
from tests.support import digits
from tests.support.campaign import everything
from tests.support.corpus import models

ROW_BY_ROW, LEAN = 650, 1000
"""Bytes of arena in which the digits fit only so, or with smaller workspaces."""

SOURCES: Mapping[str, tuple[Path, str, dict[str, Any]]] = {
    "int8 on DSP": (digits.INT8, "cortex-m4", {}),
    "int8 on MVE": (digits.INT8, "cortex-m55", {"optimize": "speed"}),
    "int8 on Armv6-M": (digits.INT8, "cortex-m0", {"optimize": "size"}),
    "int8 on AVR": (digits.INT8, "avr", {}),
    "QDQ": (digits.QDQ, "rv32imc", {}),
    "float": (digits.FLOAT, "host", {}),
    "row by row": (digits.INT8, "cortex-m4", {"ram": ROW_BY_ROW}),
    "smaller workspaces": (digits.INT8, "cortex-m4", {"ram": LEAN}),
    "a goal that was fallen back to": (digits.INT8, "cortex-m4", {"optimize": "speed", "flash": 12_300}),
}


parse = functools.cache(from_text)
"""Parser of texts with a memo: the dumps of a network for one core share most of them."""


@functools.cache
def replay(start: str, trace: str) -> tuple[str, str]:
    """Return the texts of a function that is scheduled by a trace, and that is lowered then."""
    scheduled = replay_trace(parse(start), trace_from_json(trace)).func
    return to_text(scheduled), to_text(lower(scheduled))


def dumped(source: Path, cpu: str, folder: Path, **options: Any) -> dict[Path, str]:
    """The texts of the kernels' dump, by path; what is in it holds for every network. Every third one is parsed: the steps of a
    kernel differ little, and those of the next kernel come at other numbers."""
    made = compile_network(source, target_for(cpu), make_options(dump=folder, **options))
    texts = {path.relative_to(folder): path.read_text() for path in sorted((folder / "kernels").rglob("*.*"))}
    code = shared_files(made.module, "test")["model.c"]
    for number, (path, text) in enumerate(texts.items()):
        if path.suffix == ".tir":
            assert (number % 3 and not everything()) or to_text(parse(text)) == text
        elif path.name == "kernel.c":
            assert text in code
        elif path.name == "02_trace.json":
            start = texts[path.parent / "01_tir.tir"]
            after = [texts[p] for p in texts if p.parent == path.parent and p.name.startswith("03_step_")]
            assert len(after) == len(trace_from_json(text))
            scheduled, lowered = replay(start, text)
            assert scheduled == (after or [start])[-1]
            assert (
                lowered == [texts[p] for p in texts if p.parent == path.parent and p.name.startswith("04_lower_")][-1]
            )
        elif path.name == "candidates.txt":
            assert text.count("): chosen\n") == 1
    finals = [parse(text) for path, text in texts.items() if path.name == "05_kernel.tir"]
    assert finals == [kernel.func for kernel in sorted(made.module.kernels, key=lambda k: _first(made.module, k.name))]
    return texts


def _first(module: Any, kernel: str) -> int:
    return next(k for k, call in enumerate(module.calls) if call.kernel == kernel)


@pytest.mark.parametrize("name", SOURCES)
def test_every_kernel_is_written(name: str, tmp_path: Path) -> None:
    source, cpu, options = SOURCES[name]
    texts = dumped(source, cpu, tmp_path, **options)
    notes = "".join(text for path, text in texts.items() if path.name == "notes.txt")
    assert ("row by row" in notes) is (options.get("ram") == ROW_BY_ROW)
    named = {text.splitlines()[0].split(":")[0] for path, text in texts.items() if path.name == "candidates.txt"}
    wanted = "size" if options.get("optimize") == "size" else "balanced" if options.get("optimize") != "speed" else ""
    assert named == ({"for speed", "balanced"} if "flash" in options else {wanted or "for speed"})


@pytest.mark.parametrize("name", ["mlp", "image", "gru", "control flow"])
def test_where_sizes_vary(name: str, tmp_path: Path) -> None:
    make, bounds, _ = test_sizes.CASES[name]
    texts = dumped(test_sizes.saved(make(), tmp_path), "cortex-m4", tmp_path / "dump", bounds=bounds)
    assert all("sizes vary" in text for path, text in texts.items() if path.name == "notes.txt")


@pytest.mark.parametrize(
    "path",
    models("gen_stream_var_float.tflite", "gen_misc_ops_float.tflite", "ortq_lstm2_dynq.onnx"),
    ids=lambda path: path.stem,
)
def test_state_copies_and_control_flow(path: Path, tmp_path: Path) -> None:
    dumped(path, "cortex-m4", tmp_path)


def test_a_copy_of_any_size_has_no_candidates(tmp_path: Path) -> None:
    model = proto([node("Identity", ["a"])], {"a": ["n", 3]})
    texts = dumped(test_sizes.saved(model, tmp_path), "cortex-m4", tmp_path / "dump", bounds={"n": 8})
    assert not [path for path in texts if path.name == "candidates.txt"]
    assert "the loops as they are written" in next(text for path, text in texts.items() if path.name == "notes.txt")


@pytest.mark.parametrize("attack", ATTACKS)
def test_names_of_a_stranger_stay_in_the_folder(attack: str, tmp_path: Path) -> None:
    source = evil_model(tmp_path / "net.onnx", attack)
    texts = dumped(source, "host", tmp_path / "dump")
    assert texts and all(re.fullmatch(r"[A-Za-z0-9_./]+", path.as_posix()) for path in texts)
    assert all(character.isprintable() or character == "\n" for text in texts.values() for character in text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "net.onnx"]


def test_why_others_lost() -> None:
    made = compile_network(digits.INT8, target_for("cortex-m4"), make_options())
    (part,) = derive_kernel(made, 0).parts
    verdicts = {(candidate.schedule.rule, candidate.verdict) for candidate in part.candidates}
    assert ("depthwise dsp", "chosen") in verdicts
    assert any(rule == "matrix dsp" and "% more instructions" in verdict for rule, verdict in verdicts)
    made = compile_network(digits.QDQ, target_for("cortex-m4"), make_options())
    parts = [part for k in range(len(made.module.calls)) for part in derive_kernel(made, k).parts]
    refused = {line for part in parts for candidate in part.candidates for line in candidate.schedule.refused}
    assert (
        "double_reduction(acc, weight): double_reduction: block 'out' reads the sum 'acc' in a form that cannot be doubled"
        in refused
    )


def test_dump_changes_nothing_and_is_replaced_whole(tmp_path: Path) -> None:
    model, folder = test_sizes.saved(test_sizes.mlp(), tmp_path), tmp_path / "dump"
    options: Any = {"board": "mps2-an386", "input_shapes": {"x": (2, 6)}}
    plain, program = (microc.compile(model, dump=each, **options) for each in (None, folder))
    assert program.files() == plain.files()
    (folder / "kernels" / "stale").write_text("")
    microc.compile(model, dump=folder, **options)
    assert not (folder / "kernels" / "stale").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "mine.txt").write_text("")
    with pytest.raises(OutputError, match="contains files that microc did not write") as refusal:
        microc.compile(digits.FLOAT, board="mps2-an386", dump=tmp_path)
    assert f'dump="{tmp_path}' in refusal.value.hint
