"""The end of a search on this computer: the network as a whole, as it is compiled without records and with what was found.

Kernels were measured alone, each among candidates of its own. Here they run beside each other. A kernel that takes no less so
than it did before loses its schedule, and gets the next best one, at last none; what becomes of the whole is measured every time,
and kept as a record of the combination. A compilation takes the best one (:mod:`microc.compiler.tuned.measured_choice`), which
may be none.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic

from microc import __version__
from microc.codegen.c.source import shared_files
from microc.compiler.fit.budget import code_bytes
from microc.compiler.lowering.kernel_maker import Compiled
from microc.compiler.model import source_name
from microc.compiler.options import Options
from microc.compiler.pipeline import compiled
from microc.compiler.tuned.measured_choice import Chosen, Together, measured_together, network_key
from microc.compiler.tuned.optimisation_plan import chosen_apart, workspace_room
from microc.compiler.tuned.records import NETWORK, OK, PART, UNTUNED, Database, Record, Task, tasks_of, write
from microc.device.board_info import readable
from microc.device.toolchain import machine_flags
from microc.graph.ir import Graph
from microc.run.desktop.load import compile_sources
from microc.target import Target
from microc.tuning.in_place import Taken
from microc.tuning.on_host import LIBRARY, TAKEN, run_timed
from microc.tuning.runner import Meter

MOST = 3
"""Combinations of a search."""
PROCESSES = 3
"""Processes that time each of them: where memory lies in one decides about a percent."""
LONG = 10.0
"""Seconds after which no other is started."""
Rounds = Sequence[Sequence[Taken]]
"""By round what each network takes."""
Parts = tuple[tuple[str, str], ...]
"""A combination: the key of a kernel, and the id of the record that it takes."""


class NetworkSearch:
    """A network on this computer under its options. ``meter``: what its kernels were measured with."""

    def __init__(
        self, source: Path | Graph, target: Target, options: Options, database: Database, meter: Meter
    ) -> None:
        self.source, self.target, self.options = source, target, options
        self.database, self.meter = database, meter
        self.untuned = compiled(source, target, options)
        self.tasks = tasks_of(self.untuned)
        self.key = network_key(self.tasks, options.threads)

    def run(self, end: float) -> None:
        """Measure combinations until no kernel loses, but none that would not be done by ``end``, on the clock of ``monotonic``:
        the first one takes its time."""
        if self.untuned.make.goal.price > 0 or self.untuned.make.sizes:  # a compilation would not go by it
            return
        room = workspace_room(self.untuned.module, self.tasks, self.options.ram or 0)
        losing, beaten, tried = list[Chosen](), self._beaten(), set[Parts]()
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as name:
            folder, begin = Path(name), monotonic()
            plain = self._built(self.untuned, folder / "untuned")
            for left in reversed(range(MOST)):
                beaten.update(each.record for each in losing if each.record is not None)
                if left == 0:
                    beaten.update(record for each in losing for record in self.database.of(each.task.key))
                apart = chosen_apart(self.untuned, self.tasks, self.database, self.meter.board, room, beaten)
                chosen = [each for each in apart if each.record is not None]
                parts = _parts(chosen)
                if not parts or parts in tried:
                    return
                tried.add(parts)
                made = self._combined(chosen, folder / f"{left}.jsonl")
                rounds = _by_turns(plain, self._built(made, folder / f"{left}"))
                self._keep(made, parts, rounds)
                losing = [each for each in chosen if self._loses(made, each.task, rounds)]
                begin, took = monotonic(), monotonic() - begin
                if not losing or begin + took > end:
                    return

    def _combined(self, chosen: Sequence[Chosen], path: Path) -> Compiled:
        """The network with some schedules, as a compilation takes them from a file of records."""
        parts = [record for each in chosen for record in (each.default, each.record) if record is not None]
        whole = [self._record(self.untuned, (), 1.0), self._record(self.untuned, _parts(chosen), 0.0)]
        write(path, [*parts, *whole])
        return compiled(self.source, self.target, replace(self.options, tuned=path))

    def _built(self, made: Compiled, folder: Path) -> Path:
        """A folder with the library of a network."""
        folder.mkdir()
        flags = machine_flags(self.target.core.machine)
        compile_sources(shared_files(made.module, __version__), folder, LIBRARY, *flags)
        return folder

    def _beaten(self) -> set[Record]:
        """What earlier searches tried in vain."""
        known = self._known()
        ids = known.beaten if known else ()
        return {record for task in self.tasks for record in self.database.of(task.key) if record.id in ids}

    def _keep(self, made: Compiled, parts: Parts, rounds: Rounds) -> None:
        """What a combination takes, by what the network without records took the first time."""
        known = self._known()
        ratio = median(tuned[0] / plain[0] for plain, tuned in rounds)
        first = known.untuned if known else self._record(self.untuned, (), median(plain[0] for plain, _ in rounds))
        combination = self._record(made, parts, first.ticks * ratio)
        self.database.add([combination] if known else [first, combination])

    def _known(self) -> Together | None:
        """What was measured of the network here, by this compiler."""
        meter, here = self.meter, Database()
        where = (meter.board, meter.unit, meter.toolchain)
        here.add(r for r in self.database.of(self.key) if (r.board, r.unit, r.toolchain) == where)
        return measured_together(self.key, self.target.cpu, here, meter.board)

    def _loses(self, made: Compiled, task: Task, rounds: Rounds) -> bool:
        """Whether a kernel takes no less than without records, in the middle of all rounds."""
        before, after = (_calls_of(task, each) for each in (self.untuned, made))

        def spent(taken: Taken, calls: Sequence[int]) -> float:
            return sum(taken[1][number] for number in calls)

        return bool(before) and median(spent(t, after) / spent(p, before) for p, t in rounds) >= 1

    def _record(self, made: Compiled, parts: Parts, ticks: float) -> Record:
        plan = made.module.plan
        assert plan is not None
        return Record(
            key=self.key,
            op=NETWORK,
            layer=readable(source_name(self.source), 200),
            cpu=self.target.cpu,
            board=self.meter.board,
            toolchain=self.meter.toolchain,
            unit=self.meter.unit,
            status=OK,
            algorithm=NETWORK,
            rule=f"{len(parts)} kernels tuned" if parts else "as compiled",
            decisions=parts or ((UNTUNED, self.untuned.make.goal.name),),
            trace=(),
            ticks=ticks,
            code=code_bytes(made.module),
            constants=made.module.const_bytes,
            workspace=plan.size,
        )


def _parts(chosen: Sequence[Chosen]) -> Parts:
    return tuple((each.task.key, each.record.id) for each in chosen if each.record is not None)


def _calls_of(task: Task, made: Compiled) -> list[int]:
    """The calls of a network, by number, that run a kernel, or a loop that it is in."""
    layers = {layer.rsplit(PART, 1)[0] for layer in task.layers}
    return [number for number, call in enumerate(made.module.calls) if call.layer in layers]


def _by_turns(*folders: Path) -> Rounds:
    """What the networks in some folders take, in rounds of several processes."""
    begin, rounds = monotonic(), list[list[Taken]]()
    for _ in range(PROCESSES):
        run_timed("microc.tuning.in_place", 0, *folders)
        rounds += json.loads((folders[0] / TAKEN).read_text())
        if monotonic() - begin > LONG:
            break
    return rounds
