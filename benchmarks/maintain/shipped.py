# SPDX-License-Identifier: Apache-2.0
"""The schedules that come with the compiler (``microc/compiler/tuned/shipped/``): made anew, and held against the rules.

    python benchmarks/maintain/shipped.py write [--cores cortex-m4,...] [--records DIR] [--trials N]
    python benchmarks/maintain/shipped.py measure --records DIR [--trials N] [--cores cortex-m4,...] [--models PART]
    python benchmarks/maintain/shipped.py check [--cores cortex-m4,...] [--models PART]

``write``: for every kernel of NETWORKS what the rules choose at any price of flash, and what the file of the core has that was
measured to be better than one of these; with ``--records``, ``measure`` behind it.
``measure``: in the place of that, in the files that are there, what was measured to take less time in no more flash and
workspace. Measured is on the emulated boards of BOARDS, where ``--trials`` says how many schedules of a network; DIR keeps what
was, a file for each core, and is used as far as it reaches. ``check``: every network compiled with and without; a line for each,
and exit code 1 where a kernel is other than the rules choose it, and was not measured.
The models come from the corpus (MICROC_CORPUS or ../shared/corpus).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf, sqrt
from pathlib import Path

import microc
from benchmarks.tables import CORES as MEASURED_CORES
from benchmarks.tables import board_of, corpus
from microc.compiler.fit.budget import PRICE_STEPS, SIZE_PRICE
from microc.compiler.lowering.kernel_builder import CompiledNetwork, KernelGroup
from microc.compiler.lowering.kernel_selection import (
    group_algorithms,
    list_candidates,
    replay_on_group,
    shipped_key,
    tuning_key,
)
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned import shipped
from microc.compiler.tuned.optimisation_plan import available_workspace_bytes
from microc.compiler.tuned.records import OK, Database, Record, list_tuning_tasks
from microc.compiler.tuned.shipped import ShippedKernel, ShippedSchedule
from microc.errors import MicrocError
from microc.module import Module
from microc.ops import registry
from microc.ops.lowering import LoweredGroup
from microc.schedule.choose import Choice, cheapest, constant_bytes, scale_price_for_packing
from microc.schedule.cost.cost_model import Cost, estimate
from microc.schedule.primitives.tree import Step
from microc.target import SPEED, Goal, Target, target_for
from microc.tir.lower import lower

ROOT = Path(__file__).resolve().parents[2]
SHIPPED_FOR = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "rv32imc", "x86-64-v3")
NETWORKS = (
    *(f"tflite/mlperf_{name}_int8.tflite" for name in ("kws", "vww", "ic", "ad", "strww")),
    *(f"tflite/mlperf_{name}_float.tflite" for name in ("kws", "vww", "ic", "ad")),
    "tflite/tfs_mobilenet_v1_025_224_uint8.tflite",
    "tflite/tfs_mobilenet_v1_025_224_float.tflite",
    "onnx/ortq_mobilenetv2_qdq_s8_perch.onnx",
    "onnx/torch_mobilenetv2_035_96__legacy_op17.onnx",
)
"""Of the corpus. ``examples/digits`` comes beside, which everybody has."""
FLOATLESS = frozenset({"cortex-m0plus", "rv32imc"})
"""Cores on which hardly anybody runs floats."""
BOARDS = {
    "cortex-m0plus": board_of(replace(MEASURED_CORES["m0"], code_for="cortex-m0plus")),
    "cortex-m4": board_of(MEASURED_CORES["m4"]),
    "cortex-m55": board_of(MEASURED_CORES["m55"]),
}
GAIN, GAIN_OF_LIKE = 0.002, 0.02
"""A measurement is worth a schedule of its own from here on: on the core itself, on one of the same instructions."""
LIKE = {"cortex-m33": "cortex-m4"}
"""Cores that have what was measured on another. Cortex-M7 has none: instructions of its board say nothing of its cycles."""
SLACK = 64
"""Bytes of workspace that a faster schedule may take more, where no arena of NETWORKS grows by it; for speed alone anywhere."""
PRICES = (0.0, inf, *(2.0 ** (k / 2) for k in range(-10, 24)))
USES = (1, 2, 3, 4, 6, 8, 12, 16)
WAITS = (0.0, 0.125, 0.25, 0.5)
"""What a choice follows from: prices of flash, beside those of the networks; kernels that are alike; cycles that a byte of a
board's flash takes."""
FAR, CLOSE = 2.0**16, 1e-3
"""Beyond a price of FAR, and below 1 / FAR, rules propose the same; a price at which that changes is found as CLOSE as this."""
Way = tuple[int, tuple[Step, ...]]
"""A schedule: the number of the algorithm, the steps."""


@dataclass(frozen=True)
class Met:
    """A kernel where it was met; ``network`` and ``layer`` for people."""

    network: str
    layer: str
    lowered: tuple[LoweredGroup, ...]
    uses: int
    goal: Goal


def models(cpu: str, part: str = "") -> list[Path]:
    """The networks of a core; ``part``: those that have it in their name."""
    named = [name for name in NETWORKS if cpu not in FLOATLESS or not ("float" in name or "torch" in name)]
    own = sorted((ROOT / "examples" / "digits").glob("digits_*.tflite"))
    found = [corpus() / name for name in named if part in name] + own
    return [path for path in found if part in path.name]


def kernels(made: CompiledNetwork, network: str) -> Iterator[Met]:
    """Those of a compiled network that rules schedule."""
    for call in made.module.calls:
        origin = made.kernel_builder.origins.get(call.writes)
        if isinstance(origin, KernelGroup) and not origin.in_place and not registry.get(origin.nodes[0].op).regions:
            lowered = group_algorithms(made.kernel_builder.graph, origin.nodes, made.kernel_builder.target, "kernel")
            yield Met(network, call.layer, lowered, origin.uses, made.kernel_builder.goal)


class Proposed:
    """What rules propose for a kernel: ``found`` by algorithm and steps, ``ranges`` of the prices of flash at which they do."""

    def __init__(self, met: Met, target: Target) -> None:
        self.met, self.target = met, target
        self.found: dict[Way, Choice] = {}
        self.ranges: dict[Way, tuple[float, float]] = {}
        first, last = self._at(0.0), self._at(inf)
        if first == last:
            self._between(0.0, inf, first, last)
            return
        near, far = self._at(1 / FAR), self._at(FAR)
        self._between(0.0, 1 / FAR, first, near)
        self._between(1 / FAR, FAR, near, far)
        self._between(FAR, inf, far, last)

    def _at(self, price: float) -> frozenset[Way]:
        ways = list_candidates(self.met.lowered, self.target, Goal("any", price))
        for number, schedule in ways:
            if (number, schedule.trace) not in self.found:
                self.found[number, schedule.trace] = Choice(schedule, lower(schedule.func))
        return frozenset((number, schedule.trace) for number, schedule in ways)

    def _between(self, low: float, high: float, a: frozenset[Way], b: frozenset[Way]) -> None:
        """Halve until what is proposed at both ends is the same, or the ends are."""
        middle = sqrt(low * high) if low > 0 and high < inf else low or high
        if a == b or high <= low * (1 + CLOSE):
            for way in a:
                self._add(way, low, high if way in b else middle)
            for way in b - a:
                self._add(way, middle, high)
            return
        if not low or high == inf:
            raise SystemExit(f"{self.met.layer}: what rules propose changes below {1 / FAR} or above {FAR}")
        between = self._at(middle)
        self._between(low, middle, a, between)
        self._between(middle, high, between, b)

    def _add(self, way: Way, low: float, high: float) -> None:
        known = self.ranges.get(way, (low, high))
        self.ranges[way] = min(low, known[0]), max(high, known[1])


def choices(met: Met, target: Target, prices: Sequence[float]) -> tuple[ShippedSchedule, ...]:
    """What may be chosen for a kernel; nothing for one whose weights are packed, which other choices decide."""
    proposed = Proposed(met, target)
    if scale_price_for_packing(SPEED, [choice.schedule for choice in proposed.found.values()]) is not SPEED:
        return ()
    every = [
        _shipped(met.lowered[number], choice, target, proposed.ranges[number, trace])
        for (number, trace), choice in proposed.found.items()
    ]
    kept = {
        place
        for price, uses, wait in product({*PRICES, *prices}, {*USES, met.uses}, WAITS)
        for place in _winners(every, replace(target, flash_wait=wait), Goal("any", price), uses)
    }
    return tuple(every[k] for k in sorted(kept) if _replays(every[k], met))


def _shipped(group: LoweredGroup, choice: Choice, target: Target, prices: tuple[float, float]) -> ShippedSchedule:
    cost, schedule = estimate(choice.func, target), choice.schedule
    waiting = {shipped.WAITING: cost.operations.get(shipped.WAITING, 0.0)}
    kept = Cost(cost.instructions, cost.cycles, cost.code_bytes, 0.0, waiting)
    return ShippedSchedule(group.algorithm, schedule.rule, schedule.trace, kept, constant_bytes(schedule), prices)


def _winners(every: Sequence[ShippedSchedule], target: Target, goal: Goal, uses: int) -> set[int]:
    """The one that is chosen, and the one that weighs least, which others are compared with."""
    offers = shipped.shipped_candidates(every, target, goal, uses)
    best = (min(offers, key=lambda offer: offer.weight), cheapest(offers, goal))
    return {place for place, each in enumerate(every) if any(each is offer.shipped for offer in best)}


def _replays(each: ShippedSchedule, met: Met) -> bool:
    return any(True for _ in _replayed(each, met))


def _replayed(each: ShippedSchedule, met: Met) -> Iterator[tuple[LoweredGroup, Choice]]:
    """The function of a schedule's algorithm and what its steps make of it; nothing where they do not apply."""
    for group in met.lowered:
        if group.algorithm == each.algorithm:
            with suppress(MicrocError):
                yield group, replay_on_group(group, each.trace, each.rule)


def improved(
    known: Sequence[ShippedSchedule], met: Met, target: Target, database: Database, room: int
) -> tuple[ShippedSchedule, ...]:
    """The schedules of a kernel with what was measured: each replaced by what takes less time in no more flash, and no more
    workspace than ``room``; and for speed alone the fastest one, whatever flash it takes."""
    like = target_for(LIKE.get(target.cpu, target.cpu))
    gain = GAIN if like == target else GAIN_OF_LIKE
    records = [r for r in database.records_of(tuning_key(met.lowered, like)) if r.status == OK]
    plain = [each for each in known if not (each.measured and each.prices == (0.0, 0.0))]
    found = [_faster(each, met, records, gain, room, more=False) or each for each in plain]
    offers = shipped.shipped_candidates(plain, target, SPEED, 1)
    fastest = _faster(cheapest(offers, SPEED).shipped, met, records, gain, room, more=True)
    return tuple(found) if fastest is None else (*found, fastest)


def _faster(
    each: ShippedSchedule, met: Met, records: Sequence[Record], gain: float, room: int, *, more: bool
) -> ShippedSchedule | None:
    """What was measured to take less than a schedule; ``more``: flash does not count, so that it has a cost of its own."""
    base = next((r for r in reversed(records) if (r.algorithm, r.trace) == (each.algorithm, each.trace)), None)
    if base is None:
        return None
    workspace = base.workspace + SLACK if more else max(base.workspace, min(room, base.workspace + SLACK))
    better = [
        r
        for r in records
        if r.ticks <= (1 - gain) * base.ticks
        and r.workspace <= workspace
        and (more or (r.flash <= base.flash and r.constants <= base.constants))
    ]
    for record in sorted(better, key=lambda r: (r.ticks, r.flash)):
        found = replace(each, algorithm=record.algorithm, rule=record.rule, trace=record.trace, measured=True)
        if more:
            share = record.ticks / base.ticks
            cost = replace(each.cost, instructions=share * each.cost.instructions, cycles=share * each.cost.cycles)
            found = replace(found, cost=cost, constants=record.constants, prices=(0.0, 0.0))
        if _replays(found, met):
            return found
    return None


def write(cpu: str, part: str) -> None:
    """The file of a core: what its rules choose."""
    target, begin, options = target_for(cpu), time.monotonic(), make_options(shipped=False)
    found = [(model, compile_network(model, target, options)) for model in models(cpu, part)]
    prices = [step * made.kernel_builder.goal.price for _, made in found for step in (*PRICE_STEPS, SIZE_PRICE)]
    known_cores = shipped.list_shipped_cores()  # a core's first file has nothing to keep
    before = shipped.shipped_kernels_of(cpu) if cpu in known_cores else ()
    old = {kernel.key: kernel.schedules for kernel in before}
    old_of_layer = {kernel.layer: kernel.schedules for kernel in before}
    lines: dict[str, ShippedKernel] = {}
    for model, made in found:
        for met in kernels(made, model.stem):
            key = shipped_key(met.lowered)
            if key not in lines and (known := choices(met, target, prices)):
                layer = f"{met.network} {met.layer.rpartition(' ')[0]}"
                # A new algorithm changes the keys of its layers; what was measured for them is as good as before.
                kept = [
                    each for each in old.get(key, old_of_layer.get(layer, ())) if each.measured and _replays(each, met)
                ]
                lines[key] = ShippedKernel(key, layer, _with_measured(known, kept, met, target))
    _keep(cpu, lines, begin)


def _with_measured(
    new: Sequence[ShippedSchedule], old: Sequence[ShippedSchedule], met: Met, target: Target
) -> tuple[ShippedSchedule, ...]:
    """The schedules ``new`` that rules choose for a kernel, with those of ``old`` that were measured.

    A measured schedule has the cost of the one in whose place it came; for speed alone it has a cost of its own. If no rule
    chooses that one any more, it comes behind the others, with the cost that is estimated for itself if that is less: rules then
    choose something better, with which it has to be compared."""
    found = list(new)
    for each in old:
        place = next((k for k, other in enumerate(new) if _has_cost_of(each, other)), None)
        if each.prices == (0.0, 0.0):
            found.append(each)
        elif place is None:
            own = next(_shipped(group, choice, target, each.prices) for group, choice in _replayed(each, met))
            found.append(min(each, replace(own, measured=True), key=lambda one: one.cost.instructions))
        else:
            found[place] = replace(each, prices=new[place].prices)
    return tuple(found)


def _has_cost_of(one: ShippedSchedule, other: ShippedSchedule) -> bool:
    costs = [(round(x.cost.instructions), round(x.cost.cycles), x.cost.code_bytes, x.constants) for x in (one, other)]
    return costs[0] == costs[1]


def measure(cpu: str, part: str, records: Path, trials: int) -> None:
    """Puts what was measured to be better into the file of a core; first measures, where there is a board and anything to try."""
    target, begin, path = target_for(cpu), time.monotonic(), records / f"{LIKE.get(cpu, cpu)}.jsonl"
    if trials and cpu in BOARDS and cpu not in LIKE:
        for model in models(cpu, part):
            tuning = microc.tune(model, board=BOARDS[cpu], records=path, trials=trials)
            print(f"{cpu:14} {model.stem:40} {tuning.default:14,.0f} {tuning.best:14,.0f}", flush=True)
    database, lines = Database(path), {kernel.key: kernel for kernel in shipped.shipped_kernels_of(cpu)}
    found: dict[str, tuple[Met, int]] = {}
    for model in models(cpu, part):
        made = compile_network(model, target, make_options(shipped=False))
        assert made.module.plan is not None
        room = available_workspace_bytes(made.module, list_tuning_tasks(made), made.module.plan.size)
        for met in kernels(made, model.stem):
            key, free = shipped_key(met.lowered), room.get(tuning_key(met.lowered, target), 0)
            found[key] = met, min(free, found.get(key, (met, free))[1])
    for key, (met, free) in found.items():
        if key in lines:
            schedules = improved(lines[key].schedules, met, target, database, free)
            lines[key] = replace(lines[key], schedules=schedules)
    _keep(cpu, lines, begin)


def _keep(cpu: str, lines: Mapping[str, ShippedKernel], begin: float) -> None:
    """Writes the file of a core, and says what it has."""
    path = shipped.FOLDER / f"{cpu}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(shipped.format_kernels(lines.values()), encoding="utf-8")
    every = [each for line in lines.values() for each in line.schedules]
    print(
        f"{cpu:14} {len(lines)} kernels, {len(every)} schedules, {sum(each.measured for each in every)} of them measured; "
        f"{path.stat().st_size:,} bytes, {time.monotonic() - begin:.0f} s",
        flush=True,
    )


def check(cpu: str, part: str) -> bool:
    """A line for every network: what the cost model says with and without; whether nothing got worse."""
    target, right = target_for(cpu), True
    for model in models(cpu, part):
        without, with_them = (
            compile_network(model, target, make_options(shipped=each)).module for each in (False, True)
        )
        a, b = _totals(without), _totals(with_them)
        other = sum(x.schedule != y.schedule for x, y in zip(without.calls, with_them.calls, strict=True))
        taken = sum(call.rule.endswith(shipped.MEASURED_SUFFIX) for call in with_them.calls)
        worse = a != b and not taken
        right &= not worse
        print(
            f"{cpu:14} {model.stem:40} {a[0]:12,} {b[0]:12,} instructions, {a[1]:9,} {b[1]:9,} bytes, "
            f"{other} of {len(without.calls)} others, {taken} measured{'  WORSE' if worse else ''}",
            flush=True,
        )
    return right


def _totals(module: Module) -> tuple[int, int]:
    return sum(call.instructions for call in module.calls), module.const_bytes + sum(
        kernel.code_bytes for kernel in module.kernels
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "measure", "check"))
    parser.add_argument("--cores", default=",".join(SHIPPED_FOR))
    parser.add_argument("--models", default="")
    parser.add_argument("--records", type=Path, default=None)
    parser.add_argument("--trials", type=int, default=0)
    arguments = parser.parse_args()
    right = True
    for cpu in arguments.cores.split(","):
        if arguments.what == "write":
            write(cpu, arguments.models)
        if arguments.records is not None:
            measure(cpu, arguments.models, arguments.records, arguments.trials)
        if arguments.what == "check":
            right &= check(cpu, arguments.models)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
