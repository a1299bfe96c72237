# SPDX-License-Identifier: Apache-2.0
"""The last stage of tuning on this computer: the network is measured as a whole, with default and with tuned schedules.

Until then each kernel was measured only among its own candidates. Now the kernels run together. A kernel that is not
faster with its tuned schedule than with its default loses the schedule, and uses the next best one or finally its
default. Each combination of schedules is measured as a whole and recorded. A compilation uses the best combination
(:mod:`microc.compiler.tuned.measured_choice`), which may be the default schedules alone.
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
from microc.compiler.lowering.kernel_builder import CompiledNetwork
from microc.compiler.model import model_file_name
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.measured_choice import (
    KernelChoice,
    NetworkMeasurements,
    compute_network_key,
    find_network_measurements,
)
from microc.compiler.tuned.optimisation_plan import available_workspace_bytes, choose_independently
from microc.compiler.tuned.records import (
    NETWORK,
    OK,
    PART,
    UNTUNED,
    Database,
    Record,
    Task,
    list_tuning_tasks,
    write_records,
)
from microc.device.board_info import make_printable
from microc.device.toolchain import flags_if_machine_available
from microc.graph.ir import Graph
from microc.run.desktop.load import compile_sources
from microc.target import Target
from microc.tuning.meters import LIBRARY_FILE, TIMES_FILE, run_timing_process
from microc.tuning.runner import Meter
from microc.tuning.timing_process import NetworkTimes

MAX_COMBINATIONS = 3
"""Maximum number of combinations that a search measures."""
PROCESSES = 3
"""Number of processes that time each combination. Several are used because the memory layout of a process changes times
by about one percent."""
MAX_PROCESS_SECONDS = 10.0
"""Number of seconds after which no further process is started."""
Rounds = Sequence[Sequence[NetworkTimes]]
"""Times of each network in each round."""
Combination = tuple[tuple[str, str], ...]
"""A combination of schedules: the key of each tuned kernel, and the id of the record whose schedule it uses."""


class NetworkSearch:
    """Search for the best combination of kernel schedules of a network on this computer.

    ``meter``: the meter that measured the kernels.
    """

    def __init__(
        self, source: Path | Graph, target: Target, options: Options, database: Database, meter: Meter
    ) -> None:
        self.source, self.target, self.options = source, target, options
        self.database, self.meter = database, meter
        self.untuned = compile_network(source, target, options)
        self.tasks = list_tuning_tasks(self.untuned)
        self.key = compute_network_key(self.tasks, options.threads, options.cores)

    def run(self, deadline: float) -> None:
        """Measure combinations of schedules until no kernel is slower than with its default schedule.

        No measurement is started that would probably not end before ``deadline`` (a time of ``monotonic``). Its
        duration is estimated by that of the measurement before.
        """
        if (
            self.untuned.kernel_builder.goal.price > 0 or self.untuned.kernel_builder.sizes
        ):  # a compilation would ignore the measurements
            return
        room = available_workspace_bytes(self.untuned.module, self.tasks, self.options.ram or 0)
        losing, beaten, tried_combinations = list[KernelChoice](), self._losing_records(), set[Combination]()
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as name:
            folder, begin = Path(name), monotonic()
            untuned_folder = self._build_library(self.untuned, folder / "untuned")
            for left in reversed(range(MAX_COMBINATIONS)):
                beaten.update(each.record for each in losing if each.record is not None)
                if left == 0:
                    beaten.update(record for each in losing for record in self.database.records_of(each.task.key))
                apart = choose_independently(self.untuned, self.tasks, self.database, self.meter.board, room, beaten)
                chosen = [each for each in apart if each.record is not None]
                parts = _make_combination(chosen)
                if not parts or parts in tried_combinations:
                    return
                tried_combinations.add(parts)
                combination = self._compile_combination(chosen, folder / f"{left}.jsonl")
                rounds = _time_alternately(untuned_folder, self._build_library(combination, folder / f"{left}"))
                self._record_combination(combination, parts, rounds)
                losing = [each for each in chosen if self._is_no_faster(combination, each.task, rounds)]
                begin, seconds = monotonic(), monotonic() - begin
                if not losing or begin + seconds > deadline:
                    return

    def _compile_combination(self, chosen: Sequence[KernelChoice], path: Path) -> CompiledNetwork:
        """Compile the network with a combination of schedules. The combination is passed as a file of records at
        ``path``."""
        parts = [record for each in chosen for record in (each.default, each.record) if record is not None]
        whole = [
            self._make_network_record(self.untuned, (), 1.0),
            self._make_network_record(self.untuned, _make_combination(chosen), 0.0),
        ]
        write_records(path, [*parts, *whole])
        return compile_network(self.source, self.target, replace(self.options, tuned=path))

    def _build_library(self, compiled: CompiledNetwork, folder: Path) -> Path:
        """Build the library of a network in a new folder, and return the folder."""
        folder.mkdir()
        flags = flags_if_machine_available(self.target.core.machine)
        compile_sources(shared_files(compiled.module, __version__), folder, LIBRARY_FILE, *flags)
        return folder

    def _losing_records(self) -> set[Record]:
        """Return the records whose schedules were not part of the best combination in earlier searches."""
        known = self._find_earlier_measurements()
        ids = known.losing_record_ids if known else ()
        return {record for task in self.tasks for record in self.database.records_of(task.key) if record.id in ids}

    def _record_combination(
        self, combination_network: CompiledNetwork, combination: Combination, rounds: Rounds
    ) -> None:
        """Record the ticks of a combination.

        They are the median ratio of its time to the time with default schedules, multiplied by the first recorded ticks
        of the network with default schedules.
        """
        known = self._find_earlier_measurements()
        ratio = median(tuned[0] / plain[0] for plain, tuned in rounds)
        first = (
            known.untuned
            if known
            else self._make_network_record(self.untuned, (), median(plain[0] for plain, _ in rounds))
        )
        record = self._make_network_record(combination_network, combination, first.ticks * ratio)
        self.database.add([record] if known else [first, record])

    def _find_earlier_measurements(self) -> NetworkMeasurements | None:
        """Return earlier measurements of the network on this computer with this compiler; None if there are none."""
        here = Database()
        here.add(self.database.records_of(self.key, self.meter.origin))
        return find_network_measurements(self.key, self.target.cpu, here, self.meter.board)

    def _is_no_faster(self, compiled: CompiledNetwork, task: Task, rounds: Rounds) -> bool:
        """Test whether a kernel is not faster than with its default schedule, by the median over all rounds."""
        before, after = (_call_indices_of_kernel(task, each) for each in (self.untuned, compiled))

        def sum_kernel_times(network_times: NetworkTimes, call_indices: Sequence[int]) -> float:
            return sum(network_times[1][index] for index in call_indices)

        return bool(before) and median(sum_kernel_times(t, after) / sum_kernel_times(p, before) for p, t in rounds) >= 1

    def _make_network_record(self, compiled: CompiledNetwork, combination: Combination, ticks: float) -> Record:
        """Create the record of a combination. ``combination`` is empty for the network with default schedules."""
        plan = compiled.module.plan
        assert plan is not None
        return Record(
            key=self.key,
            op=NETWORK,
            layer=make_printable(model_file_name(self.source), 200),
            cpu=self.target.cpu,
            **self.meter.origin._asdict(),
            status=OK,
            algorithm=NETWORK,
            rule=f"{len(combination)} kernels tuned" if combination else "as compiled",
            decisions=combination or ((UNTUNED, self.untuned.kernel_builder.goal.name),),
            trace=(),
            ticks=ticks,
            code=code_bytes(compiled.module),
            constants=compiled.module.const_bytes,
            workspace=plan.size,
        )


def _make_combination(chosen: Sequence[KernelChoice]) -> Combination:
    """Return the combination of the chosen records: the key of each tuned kernel, and the id of its record."""
    return tuple((each.task.key, each.record.id) for each in chosen if each.record is not None)


def _call_indices_of_kernel(task: Task, compiled: CompiledNetwork) -> list[int]:
    """Return the indices of those calls of a network that run a kernel, or a loop that contains the kernel."""
    layers = {layer.rsplit(PART, 1)[0] for layer in task.layers}
    return [number for number, call in enumerate(compiled.module.calls) if call.layer in layers]


def _time_alternately(*folders: Path) -> Rounds:
    """Time the networks in the folders alternately, in rounds, in several processes."""
    begin, rounds = monotonic(), list[list[NetworkTimes]]()
    for _ in range(PROCESSES):
        run_timing_process("networks", 0, *folders)
        rounds += json.loads((folders[0] / TIMES_FILE).read_text(encoding="utf-8"))
        if monotonic() - begin > MAX_PROCESS_SECONDS:
            break
    return rounds
