# SPDX-License-Identifier: Apache-2.0
"""Other people's code, measured: the faster takes a region, what is wrong or ends the program costs itself alone, and what a
compilation goes by is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc import GraphBuilder
from microc.cli import main
from microc.compiler.lowering.kernel_builder import TunedSchedule
from microc.compiler.tuned.measured_regions import build_own_code, replay_own_code
from microc.compiler.tuned.records import FAILED, OK, UNBUILT, WRONG, Database, Record, Task
from microc.errors import MicrocError, UsageError
from microc.external.backend import Code, Entry, Region
from microc.graph.ir import Graph
from microc.module import Sources
from microc.plugin import Plugin, load_plugin
from microc.schedule.primitives.tree import Step
from microc.tir.names import FLAGS
from microc.tuning.runner import MeasuredResult, Runner
from microc.tuning.search_space import Candidate
from microc.tuning.tune import Tuning
from tests.device.smoke import needs
from tests.external.networks import BACKEND, floats, network
from tests.external.test_cmsis_nn import COPY, LAYERS

BOARD = "mps2-an386"
emulated = pytest.mark.skipif(
    not shutil.which("qemu-system-arm") or not shutil.which("arm-none-eabi-gcc"),
    reason="needs qemu-system-arm and its compiler",
)


def plugin(price: float = 1.0, *, differs: str = "", library: tuple[bytes, bytes] = (b"", b"")) -> Plugin:
    """The example's backend at a price of its own; ``library``: a part of its C, and what stands there instead."""
    found = load_plugin(BACKEND)
    (acme,) = found.backends

    def priced(entry: Entry) -> Entry:
        def code(region: Region) -> Code:
            return replace(entry.code(region), instructions=price, differs=differs)

        return replace(entry, code=code)

    def sources(*given: Any) -> Sources:
        made = acme.open(*given)
        return replace(made, files={name: data.replace(*library) for name, data in made.files.items()})

    backend = replace(acme, entries=tuple(map(priced, acme.entries)), open=sources)
    return replace(found, backends=(backend,), digest="")


class Paper(Runner):
    """Theirs takes what it is told; ours takes what the cost model says of it, kernels that are tuned ``gain`` of that less."""

    unit, toolchain, batch = "instructions", "none", 8

    def __init__(self, theirs: float, status: str = OK, board: str = BOARD, gain: float = 0.0) -> None:
        self.theirs, self.status, self.board, self.gain = theirs, status, board, gain
        self.measured: list[Candidate] = []

    def check(self) -> None:
        """Paper is always there."""

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        self.measured += candidates
        return [self._one(candidate) for candidate in candidates]

    def _one(self, candidate: Candidate) -> MeasuredResult:
        if candidate.whole is not None and candidate.whole.external is not None:
            return MeasuredResult(candidate, self.status, self.theirs if self.status == OK else 0.0)
        kept = 1.0 if "untuned" in dict(candidate.point.decisions) else 1.0 - self.gain
        return MeasuredResult(candidate, OK, kept * candidate.instructions, 100)


def tuned(records: Path | None, runner: Runner | None, plugins: Plugin, trials: int = 8, **options: Any) -> Tuning:
    chosen: Any = {"board": BOARD, "plugins": plugins, "external": "acme", "search": "random", **options}
    return microc.tune(network(), records=records, runner=runner, trials=trials, **chosen)


def compiled(records: Path, plugins: Plugin, **options: Any) -> microc.Program:
    chosen: Any = {"board": BOARD, "plugins": plugins, "external": "acme", "tuned": records, **options}
    found = microc.compile(network(), **chosen)
    assert isinstance(found, microc.Program)
    return found


def whose(program: microc.Program) -> list[str]:
    return [call.rule for call in program.module.calls if call.rule.startswith("external")]


def test_theirs_is_taken_where_it_is_faster_whatever_it_was_said_to_cost(tmp_path: Path) -> None:
    records, dear = tmp_path / "tuned.jsonl", plugin(1e9)
    found = tuned(records, Paper(7.0), dear)
    assert [region.chosen_code for region in found.regions] == ["acme", "acme"]
    assert not whose(compiled(records, dear, tuned=None))
    program = compiled(records, dear, dump=tmp_path / "dump")
    assert whose(program) == ["external: acme dense", "external: acme scale_shift"]
    (ours, *_) = (region.verdict.own_ticks for region in found.regions)
    line = f"acme dense; measured: ours {ours:,.0f}, theirs 7 instructions"
    assert line in (tmp_path / "dump" / "external.txt").read_text()
    first = program.report()["external"][0]
    assert (first["theirs"], first["by"], first["other"]) == (True, "measurement", 7.0)
    told = microc.explain(network(), "0", board=BOARD, plugins=dear, external="acme", tuned=records)
    assert f"external code, {line.partition('; ')[2]}" in str(told)


def test_theirs_is_left_where_it_is_slower_however_little_it_was_said_to_cost(tmp_path: Path) -> None:
    records, cheap = tmp_path / "tuned.jsonl", plugin(1.0)
    tuned(records, Paper(1e6), cheap)
    assert len(whose(compiled(records, cheap, tuned=None))) == 2
    program = compiled(records, cheap, dump=tmp_path / "dump")
    assert not whose(program)
    text = (tmp_path / "dump" / "external.txt").read_text()
    assert text.count("ours, acme") == 2 and "theirs 1,000,000 instructions" in text
    assert {each["by"] for each in program.report()["external"]} == {"measurement"}
    assert len(whose(compiled(records, cheap, external_choice="all"))) == 2, "a forced choice stays forced"


@pytest.mark.parametrize(("status", "said"), [(WRONG, "gave wrong results"), (FAILED, "did not run to its end")])
def test_what_is_wrong_or_breaks_is_left_and_told(tmp_path: Path, status: str, said: str) -> None:
    records, cheap = tmp_path / "tuned.jsonl", plugin(1.0)
    found = tuned(records, Paper(1.0, status), cheap)
    assert {region.chosen_code for region in found.regions} == {"ours"} and said in found.regions[0].why
    program = compiled(records, cheap, dump=tmp_path / "dump")
    assert not whose(program) and f"acme {said}" in (tmp_path / "dump" / "external.txt").read_text()
    assert main(["tune", "--prune", str(records)]) == 0
    assert not whose(compiled(records, cheap)), "what failed is remembered"


def test_another_version_of_the_library_is_not_the_one_that_was_measured(tmp_path: Path) -> None:
    records = tmp_path / "tuned.jsonl"
    tuned(records, Paper(1.0), plugin(1e9))
    newer = plugin(1e9, library=(b"float sum = b[u];", b"float sum = 0.0f + b[u];"))
    program = compiled(records, newer, dump=tmp_path / "dump")
    assert not whose(program)
    said = "measured with another version of acme: tune again"
    assert (tmp_path / "dump" / "external.txt").read_text().count(said) == 2
    assert {each["by"] for each in program.report()["external"]} == {"cost"}
    tuned(records, Paper(1.0), newer)
    assert len(whose(compiled(records, newer))) == len(whose(compiled(records, plugin(1e9)))) == 2


def test_without_measurements_cost_decides_and_other_code_of_ours_is_told(tmp_path: Path) -> None:
    records, cheap = tmp_path / "tuned.jsonl", plugin(1.0)
    tuned(records, Paper(1e6), cheap)
    other = [replace(r, trace=()) if not r.theirs and r.algorithm == "ours" else r for r in Database(records)]
    old = tmp_path / "old.jsonl"
    Database(old).add(other)
    program = compiled(old, cheap)
    assert len(whose(program)) == 2
    assert "measured beside other code of ours: tune again" in program.report()["external"][0]["why"]
    none = tmp_path / "none.jsonl"
    Database(none).add([r for r in Database(records) if not r.theirs])
    assert len(whose(compiled(none, cheap))) == 2


def test_the_compiler_that_was_used_last_counts_and_the_board_before_all(tmp_path: Path) -> None:
    records, cheap = tmp_path / "tuned.jsonl", plugin(1.0)
    tuned(records, Paper(1e6), cheap)
    old = list(Database(records))
    Database(records).add([replace(r, toolchain="newer", ticks=1.0 if r.theirs else r.ticks) for r in old])
    assert len(whose(compiled(records, cheap))) == 2
    Database(records).add([replace(r, board="another", unit="ticks") for r in old])
    assert len(whose(compiled(records, cheap))) == 2
    alone = tmp_path / "alone.jsonl"
    Database(alone).add([replace(r, board="another", unit="ticks") for r in old])
    assert not whose(compiled(alone, cheap)), "a board of the core is better than none"


def test_what_cannot_be_built_says_nothing(tmp_path: Path) -> None:
    records, cheap = tmp_path / "tuned.jsonl", plugin(1.0)
    found = tuned(records, Paper(1.0, UNBUILT), cheap)
    assert {region.chosen_code for region in found.regions} == {""} and "could not be built" in found.regions[0].why
    program = compiled(records, cheap)
    assert len(whose(program)) == 2 and "could not be built" in program.report()["external"][0]["why"]


def test_results_that_differ_as_stated_are_measured_and_left(tmp_path: Path) -> None:
    records, loose = tmp_path / "tuned.jsonl", plugin(1.0, differs="it rounds elsewhere")
    found = tuned(records, Paper(1.0), loose)
    assert {region.chosen_code for region in found.regions} == {"ours"} and "it rounds elsewhere" in found.regions[
        0
    ].why
    program = compiled(records, loose, dump=tmp_path / "dump")
    text = (tmp_path / "dump" / "external.txt").read_text()
    assert not whose(program) and "it rounds elsewhere; measured: ours" in text


def layer() -> Graph:
    """A layer alone, whose kernel is the region's."""
    b = GraphBuilder("net")
    x = b.input("x", (1, 16))
    return b.graph("net", {"y": b.op("dense", x, b.constant("w", floats(8, 16)), activation="relu")})


def test_ours_is_compared_at_its_best(tmp_path: Path) -> None:
    """Kernels are searched, and ours is measured once more with the best that was found; so it is with what is known before."""
    records = tmp_path / "tuned.jsonl"
    options: Any = {"board": BOARD, "plugins": plugin(), "external": "acme", "optimize": "speed"}
    found = microc.tune(layer(), records=records, runner=Paper(400.0, gain=0.5), trials=12, search="random", **options)
    (kernel,), (region,) = found.kernels, found.regions
    assert kernel.default is not None and kernel.best < kernel.default
    ours = {record.untuned: record for record in Database(records).records_of(region.task.key) if not record.theirs}
    best = min(Database(records).records_of(kernel.task.key), key=lambda record: record.ticks)
    assert ours[False].trace[1:] == best.trace and ours[False].trace != ours[True].trace
    assert region.verdict.own_ticks == min(ours[True].ticks, ours[False].ticks)

    faster = replace(best, ticks=1.0, trace=best.trace[:1], rule="as a later search finds")
    Database(records).add([faster, replace(ours[False], ticks=2.0)])
    again = microc.tune(layer(), records=records, runner=Paper(400.0), trials=0, **options)
    assert again.regions[0].verdict.own_ticks == 2.0, "the newest measurement of a schedule counts"
    program = microc.compile(layer(), tuned=records, **options)
    assert isinstance(program, microc.Program) and program.report()["external"][0]["ours"] == 2.0


def test_a_second_run_measures_no_region_again(tmp_path: Path) -> None:
    records, cheap = tmp_path / "tuned.jsonl", plugin(1.0)
    tuned(records, Paper(1e6), cheap, layers=["#0"])
    runner = Paper(1e6)
    tuned(records, runner, cheap, layers=["#0"])
    assert runner.measured and not any(c.whole is not None and c.whole.external for c in runner.measured)


@needs("gcc")
def test_this_computer_measures_theirs_and_finds_what_is_wrong(tmp_path: Path) -> None:
    records = tmp_path / "tuned.jsonl"
    options: Any = {"board": None, "target": "host", "external": "acme", "trials": 9}
    good = microc.tune(network(), plugins=plugin(), records=records, **options)
    assert all(
        region.verdict.backend_ticks is not None and region.verdict.own_ticks is not None for region in good.regions
    )
    options["trials"] = 2  # regions come before kernels
    wrong = plugin(library=(b"+ shift[", b"- shift["))
    dense, scaled = microc.tune(network(), plugins=wrong, records=records, **options).regions
    if dense.task.taken.entry.name != "dense":
        dense, scaled = scaled, dense
    assert dense.verdict.backend_ticks is not None and "acme gave wrong results" in scaled.why
    ended = plugin(library=(b"float sum = b[u];", b"float sum = b[u]; *(volatile int *)0 = 1;"))
    found = microc.tune(network(), plugins=ended, records=records, **options).regions
    assert {r.task.taken.entry.name: r.chosen_code for r in found}["dense"] == "ours"
    assert any("acme did not run to its end" in region.why for region in found)
    failed = [record for record in Database(records) if record.status == FAILED]
    assert failed and all(record.theirs for record in failed)
    torn = plugin(library=(b"float sum = b[u];", b"float sum = b[u] oops;"))
    microc.tune(network(), plugins=torn, records=records, **options)
    assert UNBUILT in {record.status for record in Database(records) if record.theirs}


@emulated
def test_an_emulated_board_decides_and_the_network_computes_what_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, records = tmp_path / "net.mcg", tmp_path / "tuned.jsonl"
    microc.save(network(), model)
    words = [str(model), "--board", BOARD, "--plugin", str(BACKEND), "--external", "acme"]
    assert main(["tune", *words, "--records", str(records), "--trials", "10", "--json"]) == 0
    regions = json.loads(capsys.readouterr().out.splitlines()[-1])["regions"]
    assert len(regions) == 2 and all(each["ours"] > 0 and each["theirs"] > 0 for each in regions)
    assert main(["tune", "--show", str(records)]) == 0
    assert "acme: dense" in capsys.readouterr().out or any(each["taken"] == "ours" for each in regions)
    program = microc.compile(network(), board=BOARD, plugins=BACKEND, external="acme", tuned=records)
    assert isinstance(program, microc.Program)
    assert len(whose(program)) == sum(each["taken"] == "acme" for each in regions)
    x = floats(1, 8, seed=3)
    np.testing.assert_allclose(program.library()(x), microc.compile(network())(x), rtol=0, atol=1e-6)
    theirs = next(record for record in Database(records) if record.theirs)
    ours = next(record for record in Database(records) if record.algorithm == "ours")
    for record in (theirs, ours):
        assert main(["tune", *words, "--records", str(records), "--repeat", record.id]) == 0
        assert f"ok, {record.ticks:,.0f} instructions" in capsys.readouterr().out


def test_options_of_the_compiler_are_those_of_the_best_kernel(tmp_path: Path) -> None:
    chosen: Any = {"board": BOARD, "plugins": plugin(), "external": "acme", "optimize": "speed", "trials": 2}
    found = microc.tune(layer(), records=tmp_path / "tuned.jsonl", runner=Paper(1.0), **chosen)
    (region,) = found.regions
    ours = region.task.ours[0]
    ((key, default),) = ours.kernels.items()
    flagged = TunedSchedule(default.algorithm, default.rule, (*default.trace, Step("compile_with", ("unroll-loops",))))
    best = build_own_code(region.task.graph, region.task.graph.nodes[0], region.task.target, ours.goal, {key: flagged})
    assert dict(best.control.func.annotations) == {FLAGS: "unroll-loops"} and not ours.control.func.annotations
    again = replay_own_code(region.task, best.trace)
    assert again.trace == best.trace and again.control.func == best.control.func
    for trace in (best.trace[1:], (*best.trace, *best.trace), ()):
        with pytest.raises(MicrocError):
            replay_own_code(region.task, trace)


@emulated
@pytest.mark.skipif(not COPY, reason="MICROC_CMSIS_NN names no copy of CMSIS-NN")
@pytest.mark.parametrize("name", ["pointwise", "softmax", "sum"])
def test_cmsis_nn_is_measured_on_an_emulated_board(name: str) -> None:
    found = microc.tune(LAYERS[name](), board=BOARD, external={"cmsis-nn": COPY}, trials=4)
    (region,) = found.regions
    assert region.verdict.backend_ticks is not None and region.verdict.own_ticks is not None and not region.why


def test_spaces_list_regions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = tmp_path / "net.mcg"
    microc.save(network(), model)
    words = ["tune", str(model), "--board", BOARD, "--plugin", str(BACKEND), "--external", "acme", "--space"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "acme: dense (sources " in text and "ours: " in text


def test_records_of_theirs_are_shown_with_the_command_that_repeats_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "tuned.jsonl"
    tuned(records, Paper(1.0, WRONG), plugin())
    assert main(["tune", "--show", str(records)]) == 0
    text = capsys.readouterr().out
    assert "of other people's code" in text and "--external acme=PATH" in text


def test_what_cannot_measure_theirs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="external cannot be combined with load"):
        tuned(None, None, plugin(), load=True)
    with pytest.raises(UsageError, match="a plan cannot state whose code"):
        microc.tuning.tune.make_tuning_plan(
            network(), board=BOARD, records=tmp_path / "x", plugins=plugin(), external="acme"
        )


def test_theirs_is_known_by_its_digest() -> None:
    found = tuned(None, Paper(1.0), plugin())
    theirs = [record for record in found.database if record.theirs]
    assert all(isinstance(record, Record) and len(record.theirs) == 16 for record in theirs)
    assert {(r.algorithm, r.rule) for r in theirs} == {("acme", "dense"), ("acme", "scale_shift")}
    assert {dict(r.decisions)["version"] for r in theirs} == {"1.0"}
