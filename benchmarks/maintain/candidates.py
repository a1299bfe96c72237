# SPDX-License-Identifier: Apache-2.0
"""Kernels drawn from all over their spaces, on several targets: does each compute what its layer is, bit for bit?

    python benchmarks/maintain/candidates.py [--targets m4,m0,m55,rv32imc,avr,host] [--count 10000] [--seed 0] [--models GLOB]
    python benchmarks/maintain/candidates.py --again TARGET MODEL LAYER SEED

Layers of a network of the corpus are drawn for each target in turn, then points of their spaces, a third of them with options of
the C compiler; they are built, run on an emulator (``host``: here), and compared with the operators' reference. What is wrong, or
does not come back, is printed with the command that measures its batch again. Layers that take long on an emulator are left out.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from pathlib import Path

from benchmarks.tables import CORES, board_of, corpus
from microc.compiler.options import make_options
from microc.compiler.tuned.records import OK, Task, list_tuning_tasks
from microc.device.boards import load_board
from microc.device.toolchain import native_core
from microc.errors import MicrocError
from microc.isa import FAMILIES
from microc.target import Board, target_for
from microc.tuning.meters import BoardRunner, HostRunner
from microc.tuning.runner import Runner
from microc.tuning.search_space import Candidate, Space
from microc.tuning.tuner import compile_for_tuning

BATCH, LAYERS = 24, 8
"""Candidates of a layer; layers of a network, which is compiled for them, at most."""
LONGEST = 3e6
"""Instructions of what the compiler takes by itself, by its cost model, from which on a layer is left out."""
LARGEST = 1 << 20
"""Bytes of a network's file at most."""
FLAGGED = 1 / 3
"""Share of the candidates with options of the C compiler."""
UNFIT = "does not fit"
"""Words of what is too large for a board, which is no defect."""
HOST, RV32IMC, TARGETS = "host", "rv32imc", ("m4", "m0", "m55", "rv32imc", "avr", "host")
Batch = tuple[str, Path, int, str]
"""What makes candidates: the target, the network, the layer by number, the seed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", default="*")
    parser.add_argument("--again", nargs=4, metavar=("TARGET", "MODEL", "LAYER", "SEED"))
    given = parser.parse_args()
    if given.again:
        target, model, layer, seed = given.again
        batches: Iterable[Batch] = [(target, Path(model), int(layer), seed)]
    else:
        batches = drawn(given.targets.split(","), given.models, given.seed)
    counted: Counter[tuple[str, str]] = Counter()
    for batch in batches:
        found = measured(*batch)
        counted.update((batch[0], status) for status in found)
        print(f"{counted.total():6} {batch[0]:8} {batch[1].stem} {batch[2]}: {len(found)}", flush=True)
        if counted.total() >= given.count:
            break
    for (target, status), count in sorted(counted.items()):
        print(f"{target:10} {status:8} {count:6}")
    return 0 if all(status == OK for _, status in counted) else 1


def drawn(targets: Sequence[str], pattern: str, seed: int) -> Iterator[Batch]:
    """Layers of networks, for ever, those with large spaces more often: the targets in turn."""
    draw = random.Random(seed)
    every = sorted(path for path in corpus().glob(f"*/{pattern}") if path.suffix in (".tflite", ".onnx"))
    models = [path for path in every if path.stat().st_size <= LARGEST]
    for turn, target in enumerate(cycle(targets)):
        model = draw.choice(models)
        spaces = {n: len(Space(t).points) for n, t in enumerate(tasks(target, model)) if suits(t, board_for(target))}
        chosen = draw.choices([*spaces], [*spaces.values()], k=LAYERS) if any(spaces.values()) else []
        for number in dict.fromkeys(chosen):
            yield target, model, number, f"{seed}.{turn}"


def board_for(name: str) -> Board:
    """The board of a target; ``host``: this computer, as a core that its compiler knows."""
    if name in CORES:
        return board_of(CORES[name])
    if name == HOST:
        return replace(load_board(HOST), target=target_for(native_core()))
    if name == RV32IMC:
        board = load_board("qemu-riscv32")
        options = {"-march=rv32imafc": "-march=rv32imc", "-mabi=ilp32f": "-mabi=ilp32"}
        build = board.raw["build"] | {"c_flags": [options.get(f, f) for f in board.raw["build"]["c_flags"]]}
        return replace(board, target=target_for(RV32IMC), raw={**board.raw, "build": build, "cpu": RV32IMC})
    return load_board("arduino-mega")


@lru_cache(maxsize=1)
def tasks(target: str, model: Path) -> tuple[Task, ...]:
    """The kernels of a network; none where it cannot be compiled for the target."""
    board = board_for(target)
    try:
        return list_tuning_tasks(compile_for_tuning(model, board.target, make_options(), None))
    except MicrocError as error:
        print(f"{target} {model.name}: {error.what}", flush=True)
        return ()


def suits(task: Task, board: Board) -> bool:
    """Whether a layer is soon done, and its tensors have room."""
    graph = task.graph
    ends = sum(graph.types[name].nbytes for name in (*graph.inputs, *graph.outputs))
    constants = sum(array.nbytes for array in graph.consts.values())
    most = FAMILIES[board.target.isa].array_bytes
    if most and any(2 * array.nbytes > most for array in graph.consts.values()):
        return False
    room = board.target.cpu == native_core() or (2 * ends <= board.ram_bytes and 2 * constants <= board.flash_bytes)
    return room and Space(task).default.instructions <= LONGEST


def measured(target: str, model: Path, layer: int, seed: str) -> list[str]:
    """What became of the candidates of a layer; those that are wrong are told."""
    task = tasks(target, model)[layer]
    runner: Runner = HostRunner(task.target) if target == HOST else BoardRunner(board_for(target))
    found = []
    for result in runner.measure(task, candidates(task, seed)):
        if UNFIT in result.detail:
            continue
        found.append(result.status)
        if result.status != OK:
            print(f"{result.status}: {task.name}: {result.candidate.point}: {result.detail}")
            print(f"    --again {target} {model} {layer} {seed}", flush=True)
    return found


def candidates(task: Task, seed: str) -> list[Candidate]:
    """Kernels of a layer, no two of which have the same loops."""
    draw, space = random.Random(seed), Space(task)
    found: dict[object, Candidate] = {}
    for point in draw.sample(space.points, len(space.points)):
        flags = draw.choice(space.flags) if space.flags and draw.random() < FLAGGED else ""
        candidate = space.candidate(point.with_flags(flags))
        if candidate is not None:
            found.setdefault((candidate.number, candidate.choice.func.body), candidate)
        if len(found) == BATCH:
            break
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())
