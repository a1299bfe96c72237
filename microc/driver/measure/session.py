"""A board that runs a project, as an object: arrays in, arrays out, and what it costs."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from microc import dtypes
from microc.device.client import Client
from microc.device.info import Stats, Timing
from microc.driver import accepted
from microc.driver.measure.clock import Clock
from microc.driver.measure.firmware import Project, build, open_project
from microc.driver.measure.line import BAUD, is_line, open_line, project_behind, reach
from microc.driver.measure.slots import built_network, send_network
from microc.driver.progress import Progress, teller
from microc.driver.shown import signature, table
from microc.driver.sizes.shapes import RunShapes
from microc.dtypes import Array
from microc.errors import DeviceError, UsageError, VerificationError, suggestion

if TYPE_CHECKING:
    from microc.driver.api import Program
    from microc.driver.measure.loading import Loaded, Loader
    from microc.driver.measure.profile import Profile

PATIENCE = 10.0
"""Seconds without an answer after which a board is given up."""
_ATTEMPTS = 20.0  # a client with time-out t gives up after about 20 t, see Client._exchange


def open_client(
    port: str, bauds: Sequence[int], patience: float, *, usual: int = BAUD, progress: Progress | None = None
) -> Client:
    """A board behind a line, whatever it runs; ``usual``: the rate where none is asked for."""
    return Client(open_line(port, bauds, usual), patience / _ATTEMPTS, reconnect=patience, progress=progress)


class Device:
    """A session with a board that runs a project: a process for the host board, an emulator, or hardware on a serial line.

        with microc.Device("firmware") as dev:              # an emulated board, or one that is found by its USB ids
            y = dev.run(x)
            print(dev.profile())
        with microc.Device("/dev/ttyACM0") as dev: ...      # its project is looked for in this folder and those in it

    ``source``: a project or its folder, which must be built, or a line (a serial port, ``socket://HOST:PORT``). ``port``: the
    line of a project's board, or ``auto``; ``network``: which one of a project of several. ``bauds``: the rates to try
    (default: the board's). ``patience``: seconds without an answer, or without the line, before giving up. DeviceError when
    nothing answers, or when the board runs another build. ``load``: send the network of a project that was compiled to be loaded
    first, see :meth:`load_network`; an emulator of ours always gets it, since it has just begun.

    ``last`` is the timing of the last :meth:`run`, in ticks, which :attr:`clock` makes something of. ``emulated``: it is an
    emulator that we run.
    """

    def __init__(
        self,
        source: Project | str | Path,
        port: str = "",
        *,
        network: str = "",
        bauds: Sequence[int] = (),
        patience: float = PATIENCE,
        load: bool = False,
        progress: Progress | bool | None = None,
    ) -> None:
        if not isinstance(source, Project):
            accepted.path("a project or line", source)
        accepted.text("a port", port)
        accepted.text("a network", network)
        accepted.truth("load", load)
        told = teller(progress)
        bauds = accepted.integers("bauds", bauds, 1)
        patience = accepted.number("patience", patience, 0.001, 1e6, "seconds")
        with ExitStack() as stack:
            if is_line(source):
                transport = open_line(str(source), bauds)
                project, reconnect, emulated = project_behind(transport, network), patience, False
            else:
                project = source if isinstance(source, Project) else open_project(source, network)
                transport, reconnect, emulated = reach(project, port, bauds, patience, stack)
            options: dict[str, Any] = {"reconnect": reconnect, "model": project.index, "progress": told}
            client = stack.enter_context(Client(transport, patience / _ATTEMPTS, **options))
            begun = reconnect == 0.0  # by us, just now
            if load or (begun and project.relocatable):
                send_network(client, built_network(project))
            self._attach(project, client, emulated)
            self._stack = stack.pop_all()

    @classmethod
    def over(cls, project: Project, client: Client, *, emulated: bool = False) -> Device:
        """A session over a client that is somebody else's to close."""
        device = cls.__new__(cls)
        device._attach(project, client, emulated)
        device._stack = ExitStack()
        return device

    def _attach(self, project: Project, client: Client, emulated: bool) -> None:
        load = f"load it: microc load {shlex.quote(str(project.folder))} --port PORT"
        client.expect(project.manifest["fingerprint"], *([load] if project.relocatable else []))
        self.project = project
        self.client = client
        self.emulated = emulated
        self.last: Timing | None = None
        self.loader: Loader | None = None
        self.shapes = RunShapes(project.manifest)
        self._tensors = project.tensors
        self._expect_tables()
        self._index = {name: k for k, name in enumerate(self._tensors)}
        self.inputs = tuple(self._tensors[n] for n in project.manifest["inputs"])
        self.outputs = tuple(self._tensors[n] for n in project.manifest["outputs"])

    def _expect_tables(self) -> None:
        """A board with the right fingerprint has the manifest's tensors and kernels, or does not tell the truth."""
        told = self.client.model
        sizes = [4 * len(self.shapes.sizes)] if self.shapes.sizes else []
        if [t.nbytes for t in told.tensors] != [t["bytes"] for t in self._tensors.values()] + sizes or (
            told.kernel_count != len(self.kernels)
        ):
            raise DeviceError(
                "the board's tensors and kernels are not those of the project",
                where=str(self.project.folder),
                hint="build and flash the project again",
            )

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the line; end the emulator or process if it is ours."""
        self._stack.close()

    def __repr__(self) -> str:
        network = signature(self.project.manifest["model"], self.inputs, self.outputs)
        return f"<Device {self.project.board.name}: {network}, {len(self.kernels)} kernels>"

    def _repr_html_(self) -> str:
        board, clock = self.project.board, self.clock
        rows = [
            ("board", board.title),
            ("core", board.target.cpu),
            ("kernels", len(self.kernels)),
            ("time in", clock.unit),
        ]
        return table(signature(self.project.manifest["model"], self.inputs, self.outputs), rows)

    @property
    def tick_hz(self) -> int:
        return self.client.info.tick_hz

    @property
    def clock(self) -> Clock:
        """What ticks are."""
        return Clock(self.project.board, self.tick_hz, self.emulated)

    @property
    def self_test(self) -> str | None:
        """What the networks found that checked themselves at boot: ``passed``, ``failed``; None where the firmware does not."""
        result = self.client.info.self_test
        return None if not result else "passed" if result == 1 else "failed"

    def failed_self_test(self) -> VerificationError | None:
        """The error to tell where one failed."""
        info = self.client.info
        if info.self_test < 2:
            return None
        name = info.models[info.self_test - 2].name
        return VerificationError(
            f"the network {name!r} failed its self-test when the board began: it computes something else than it must",
            where=f"board {self.project.board.name}",
            hint="flash the firmware again; if it fails again, microc verify says which layer differs",
        )

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """The manifest's kernels in the order of execution."""
        found: list[dict[str, Any]] = self.project.manifest["kernels"]
        return found

    def run(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """One inference on arrays in the graph's order; one output comes as an array, several as a tuple."""
        self.set_inputs(*arrays)
        self.last = self.client.run()
        results = tuple(self.read(t["name"]) for t in self.outputs)
        return results[0] if len(results) == 1 else results

    def set_inputs(self, *arrays: Any) -> None:
        """Send all inputs, and the sizes that their shapes tell where they vary. Shapes and dtypes must match; nothing is
        converted silently."""
        fitting = self.shapes.fitting(self.inputs, arrays)
        if self.shapes.sizes:
            self.client.write_tensor(len(self._tensors), self.shapes.vector.astype("<i4").tobytes())
        for tensor, array in zip(self.inputs, fitting, strict=True):
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            self.client.write_tensor(self._index[tensor["name"]], data, part="extents" in tensor)

    def run_kernel(self, kernel: int) -> Timing:
        """Execute one kernel; all in order are one inference."""
        number = accepted.integer("a kernel", kernel, most=len(self.kernels) - 1)
        return self.client.run(number, number)

    def read(self, name: str) -> Array:
        """A tensor of the manifest; an intermediate one holds its value only until its memory is used again."""
        tensor = self._tensors.get(accepted.text("a tensor", name))
        if tensor is None:
            raise UsageError(f"there is no tensor {name!r}", hint=suggestion(name, self._tensors, "tensors"))
        dtype = dtypes.to_numpy(tensor["dtype"])
        shape = self.shapes.of(tensor)
        data = self.client.read_tensor(self._index[name], prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def spoil(self, name: str, data: bytes) -> None:
        """Overwrite the first bytes of a tensor, so that what it held is not taken for a result."""
        self.client.write_tensor(self._index[name], data, part=True)

    def profile(self) -> Profile:
        """One inference on the inputs in memory: what every layer takes. Printed, it is a table."""
        from microc.driver.measure.profile import make_profile
        from microc.driver.report.size import measure

        size = measure(self.project) if self.project.elf.is_file() else None
        return make_profile(self.project, self.clock, self.kernel_ticks(), size)

    def kernel_ticks(self) -> tuple[int, ...]:
        """One inference on the inputs in memory; ticks of each kernel."""
        return self.client.profile()

    def time(self, repeat: int = 10) -> Timing:
        """Ticks of ``repeat`` inferences; see :meth:`microc.device.client.Client.run` about the inputs."""
        return self.client.run(repeat=accepted.integer("repeat", repeat, 1, (1 << 32) - 1))

    def load_network(self, source: Project | Program | str | Path) -> None:
        """Send another network into the slot of the board that does not run, commit it, and speak to it from now on.

        ``source``: a project or its folder, which must be built, or what :func:`microc.compile` made; compiled with
        ``relocatable=True``, for a board with the same core and compiler options. FitError where the board has no room,
        UsageError where the network is for another core, DeviceError where the board refuses it: what ran before still runs.
        """
        project = source if isinstance(source, Project) else self._opened(source)
        send_network(self.client, built_network(project))
        self._attach(project, self.client, self.emulated)

    def _opened(self, source: Program | str | Path) -> Project:
        """The project in a folder, or of a program, which is built in a folder that lasts as long as the session."""
        from microc.driver.api import Program

        if not isinstance(source, Program):
            return open_project(source)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="microc-load-")))
        project = open_project(source.write(folder / "network"))
        build(project)
        return project

    def load(self, what: Any, **constants: Any) -> Loaded:
        """A kernel into the board's memory, without flashing; see :func:`microc.driver.measure.loading.load`."""
        from microc.driver.measure.loading import load

        return load(self, what, constants)

    def unload(self) -> None:
        """Forget all that was loaded: its memory is free again."""
        self.loader = None

    def stats(self) -> Stats:
        """Stack depth and counters of the line."""
        return self.client.stats()

    def reset(self) -> None:
        """Put the state (recurrent layers) to its initial content."""
        self.client.reset_state()
