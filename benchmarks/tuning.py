# SPDX-License-Identifier: Apache-2.0
"""What a search finds: networks before and after ``microc tune``, and how near to the best it comes in a few trials.

    python benchmarks/tuning.py networks [--models kws,ad,vww,ic,strww] [--cores m4,m55,m0] [--trials 500] [--optimize GOAL]
    python benchmarks/tuning.py rate [--models kws] [--cores m4] [--layers NAME] [--trials 24]
    python benchmarks/tuning.py tables --models kws --layers NAME [--cores m4] [--folder DIR]
    python benchmarks/tuning.py search [--layers NAME] [--seeds 5]

Models may be files, too. ``networks``: instructions of a whole inference on an emulated board, and bytes of the whole firmware,
without records and with those of a search; the outputs must be the same. ``--records FILE`` keeps what is measured.
``tables``: every kernel of the layers' spaces is measured once, and written down (``measured/``). ``search``: on these tables
each search gets a tenth of the trials, for several seeds; what it prints is the median of the best found, over the best there is.
``rate``: candidates a second, a batch of each layer, by
flashing, by loading (``--load``), and by loading over a line that is as slow as a serial one (``paced.py``).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import microc
from benchmarks import measured
from benchmarks.tables import CORES, board_of, network_path
from microc.compiler.options import make_options
from microc.compiler.tuned.records import OK, Database, Task, list_tuning_tasks
from microc.reports.firmware_size import measure_firmware as sizes_of
from microc.run import board_project
from microc.run.data.samples import draw_inputs
from microc.run.session import Device
from microc.target import Board
from microc.tuning.fleet import make_meter
from microc.tuning.meters import BoardRunner
from microc.tuning.runner import Meter, Runner
from microc.tuning.search_policies import SEARCHES, make_ranking_model
from microc.tuning.search_space import Candidate, Space
from microc.tuning.tuner import SearchLimits, TunedKernel, Tuner, compile_for_tuning

BAUD = 115_200
"""Of a serial line."""
MOST = 2000
"""Points of a space that is measured as a whole."""


@dataclass(frozen=True, slots=True)
class Run:
    """A network on a board: instructions of an inference, bytes of flash, outputs on the same inputs."""

    instructions: int
    flash: int
    outputs: tuple[bytes, ...]


def run(model: Path, board: Board, optimize: str, records: Path | None) -> Run:
    """Build, boot, run once."""
    with tempfile.TemporaryDirectory() as folder:
        microc.compile(model, board=board, optimize=optimize, tuned=records).write(folder)
        project = board_project.open_project(folder)
        board_project.build_project(project)
        with Device(project) as device:
            made = device.run(*draw_inputs(device.inputs, np.random.default_rng(0)))
            outputs = made if isinstance(made, tuple) else (made,)
            assert device.last is not None
            return Run(
                device.clock.convert_ticks(device.last.min),
                sizes_of(project).flash,
                tuple(o.tobytes() for o in outputs),
            )


def networks(models: Sequence[Path], boards: Sequence[Board], arguments: argparse.Namespace) -> bool:
    """A line for every network and board; whether all outputs are equal."""
    ratios, right = [], True
    print(f"{'network':28} {'core':12} {'before':>12} {'after':>12} {'ratio':>6} {'flash':>9} {'after':>9}  equal")
    for board in boards:
        for model in models:
            with tempfile.TemporaryDirectory() as folder:
                records = arguments.records or Path(folder) / "tuned.jsonl"
                microc.tune(
                    model, board=board, records=records, trials=arguments.trials, optimize=arguments.optimize, jobs=2
                )
                before, after = (run(model, board, arguments.optimize, each) for each in (None, records))
            equal = before.outputs == after.outputs
            right &= equal
            ratios.append(after.instructions / before.instructions)
            print(
                f"{model.stem:28} {board.target.cpu:12} {before.instructions:12,} {after.instructions:12,} {ratios[-1]:6.3f} "
                f"{before.flash:9,} {after.flash:9,}  {'yes' if equal else 'NO'}",
                flush=True,
            )
    print(f"geometric mean {float(np.exp(np.mean(np.log(ratios)))):.3f}")
    return right


def tables(models: Sequence[Path], boards: Sequence[Board], arguments: argparse.Namespace) -> bool:
    """A table for every layer whose space is small enough, called after the model and the layer's number."""
    for board in boards:
        for model in models:
            for number, task in enumerate(
                list_tuning_tasks(compile_for_tuning(model, board.target, make_options(shipped=False), board))
            ):
                space, runner = Space(task), BoardRunner(board)
                if len(space.points) > MOST or arguments.layers not in task.name:
                    continue
                path = arguments.folder / f"{model.stem}_{board.target.cpu}_{number}.json"
                measured.write(path, space, exhaustive(space, runner), board.name, runner.toolchain)
                print(f"{path}: {task.name}", flush=True)
    return True


def exhaustive(space: Space, runner: Runner) -> measured.Ticks:
    """Every kernel of a space; with all options of the C compiler where the table is to have them."""
    points = [*(each.point for each in space.untuned), *space.points]
    options = ("", *space.flags) if len(space.points) <= measured.SMALL else ("",)
    built = (space.candidate_at(point.with_flags(option)) for option in options for point in points)
    found = list({measured.key_of(each): each for each in built if each is not None}.values())
    ticks: measured.Ticks = {}
    for first in range(0, len(found), runner.batch):
        results = runner.measure(space.task, found[first : first + runner.batch])
        assert all(result.status == OK for result in results)
        ticks.update({measured.key_of(result.candidate): result.ticks for result in results})
    return ticks


def search(models: Sequence[Path], boards: Sequence[Board], arguments: argparse.Namespace) -> bool:
    """A line for every table; whether all evolutionary medians are within 2 % of the best."""
    right = True
    print(
        f"{'table':24} {'points':>7} {'measured':>8} {'trials':>6} {'default':>8}"
        + "".join(f" {n:>13}" for n in SEARCHES)
    )
    for name in measured.names():
        if arguments.layers not in name:
            continue
        space = measured.PaperSpace(measured.task_of(name))
        found = {each: median(_found(space, each, arguments.seeds)) for each in SEARCHES}
        right &= found["evolutionary"] <= 1.02
        cells = "".join(f" {ratio:13.3f}" for ratio in found.values())
        default = space.ticks_of(space.default) / space.best
        print(
            f"{name:24} {len(space.points):7} {len(space.ticks):8} {measured.trials_of(space):6} {default:8.3f}{cells}",
            flush=True,
        )
    return right


def _found(space: measured.PaperSpace, name: str, seeds: int) -> list[float]:
    """The best of a tenth of the trials over the best there is, for every seed."""
    found = []
    for seed in range(seeds):
        made = SEARCHES[name](space, seed, make_ranking_model("auto"))
        tuner = Tuner([], measured.Recorded(space), Database(), model=make_ranking_model("auto"))
        tuner.kernels = [TunedKernel(space.task, made)]
        tuner.run(SearchLimits(measured.trials_of(space)))
        found.append(tuner.kernels[0].best / space.best)
    return found


def rate(models: Sequence[Path], boards: Sequence[Board], arguments: argparse.Namespace) -> bool:
    """Candidates a second, building included: flashed, loaded, and loaded over a paced line; of use on a computer at rest."""
    paced = f"pipe:{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('paced.py')))}"
    print(f"{'layer':40} {'core':12} {'candidates':>10} {'flashed':>8} {'loaded':>8} {BAUD:>8}")
    for board in boards:
        places = [
            make_meter(board, board.target, (), 1),
            make_meter(board, board.target, (), 1, load_into_ram=True),
            make_meter(board, board.target, (f"{paced} {board.name} {{elf}} {BAUD}",), 1, load_into_ram=True),
        ]
        seconds, count = [0.0] * len(places), 0
        for model in models:
            for task in list_tuning_tasks(compile_for_tuning(model, board.target, make_options(shipped=False), board)):
                if arguments.layers not in task.name:
                    continue
                found = _some(Space(task), min(arguments.trials, places[0].batch))
                count += len(found)
                took = [_seconds(place, task, found) for place in places]
                seconds = [a + b for a, b in zip(seconds, took, strict=True)]
                print(_rates(task.name[-40:], board, len(found), took), flush=True)
        print(_rates("all", board, count, seconds), flush=True)
        for place in places:
            place.stop()
    return True


def _some(space: Space, count: int) -> list[Candidate]:
    """The default, and candidates from all over a space."""
    built = (space.candidate(point) for point in space.points[:: max(1, len(space.points) // count)])
    return [space.default, *[candidate for candidate in built if candidate]][:count]


def _seconds(place: Meter, task: Task, found: Sequence[Candidate]) -> float:
    """What a batch takes; a place is as it is in the middle of a search, started."""
    place.measure(task, found[:1])
    begin = time.monotonic()
    results = place.measure(task, found)
    assert all(result.status == OK for result in results)
    return time.monotonic() - begin


def _rates(name: str, board: Board, count: int, seconds: Sequence[float]) -> str:
    return f"{name:40} {board.target.cpu:12} {count:10}" + "".join(f" {count / taken:8.2f}" for taken in seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("networks", "tables", "search", "rate"))
    parser.add_argument("--models", default="kws,ad,vww,ic,strww")
    parser.add_argument("--cores", default="m4")
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--optimize", default="balanced")
    parser.add_argument("--records", type=Path, default=None)
    parser.add_argument("--layers", default="")
    parser.add_argument("--folder", type=Path, default=measured.FOLDER)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    named = arguments.models.split(",")
    models = [
        Path(name) if Path(name).is_file() else network_path(name) for name in named if arguments.what != "search"
    ]
    boards = [board_of(CORES[core]) for core in arguments.cores.split(",")]
    what = {"networks": networks, "tables": tables, "search": search, "rate": rate}[arguments.what]
    return 0 if what(models, boards, arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
