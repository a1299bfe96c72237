"""A board that runs a project, as an object: arrays in, arrays out, and what it costs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from microc import dtypes
from microc.codegen.files import MARKER
from microc.device.client import Client, Progress
from microc.device.emulator import Emulator
from microc.device.info import Stats, Timing
from microc.device.ports import find_port
from microc.device.simulator import simulated, simulator_line
from microc.device.transport import Transport, open_transport
from microc.driver import accepted
from microc.driver.measure.clock import Clock
from microc.driver.measure.firmware import Project, networks, open_project
from microc.driver.shown import signature
from microc.driver.sizes.shapes import RunShapes
from microc.dtypes import Array
from microc.errors import DeviceError, MicrocError, UsageError, suggestion

if TYPE_CHECKING:
    from microc.driver.measure.loading import Loaded, Loader
    from microc.driver.measure.profile import Profile

PATIENCE = 10.0
"""Seconds without an answer after which a board is given up."""
_PROBE_SECONDS = 0.2  # for an answer at one of several rates
_ATTEMPTS = 20.0  # a client with time-out t gives up after about 20 t, see Client._exchange
_BAUD = 115200
AUTO = "auto"
"""The port that is to be found by the board's USB ids."""
_SCHEMES = ("socket://", "pipe:", "rfc2217://")


class Device:
    """A session with a board that runs a project: a process for the host board, an emulator, or hardware on a serial line.

        with microc.Device("firmware") as dev:              # an emulated board, or one that is found by its USB ids
            y = dev.run(x)
            print(dev.profile())
        with microc.Device("/dev/ttyACM0") as dev: ...      # its project is looked for in this folder and those in it

    ``source``: a project or its folder, which must be built, or a line (a serial port, ``socket://HOST:PORT``). ``port``: the
    line of a project's board, or ``auto``; ``network``: which one of a project of several. ``bauds``: the rates to try
    (default: the board's). ``patience``: seconds without an answer, or without the line, before giving up. DeviceError when
    nothing answers, or when the board runs another build.

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
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(source, Project):
            accepted.path("a project or line", source)
        accepted.text("a port", port)
        accepted.text("a network", network)
        accepted.call("progress", progress)
        bauds = accepted.integers("bauds", bauds, 1)
        patience = accepted.number("patience", patience, 0.001, 1e6, "seconds")
        with ExitStack() as stack:
            if _is_line(source):
                transport = _open(str(source), bauds, _BAUD)
                project, reconnect, emulated = _project_behind(transport, network), patience, False
            else:
                project = source if isinstance(source, Project) else open_project(source, network)
                transport, reconnect, emulated = _reach(project, port, bauds, patience, stack)
            options: dict[str, Any] = {"reconnect": reconnect, "model": project.index, "progress": progress}
            client = stack.enter_context(Client(transport, patience / _ATTEMPTS, **options))
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
        client.expect(project.manifest["fingerprint"])
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

    @property
    def tick_hz(self) -> int:
        return self.client.info.tick_hz

    @property
    def clock(self) -> Clock:
        """What ticks are."""
        return Clock(self.project.board, self.tick_hz, self.emulated)

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


def _is_line(source: Project | str | Path) -> bool:
    """Whether a source is a line: a device file or port, no folder."""
    if isinstance(source, Project) or Path(source).is_dir():
        return False
    text = str(source)
    return text.startswith((*_SCHEMES, "/dev/", "COM")) or Path(source).is_char_device()


def _project_behind(transport: Transport, network: str) -> Project:
    """The project whose firmware answers, of this folder and those in it; the line is closed where there is none."""
    try:
        board = Client(transport).hello()
        built = {model.fingerprint for model in board.models}
        places = [Path(), *sorted(path for path in Path().iterdir() if path.is_dir())]
        for place in (place for place in places if (place / MARKER).is_file()):
            try:
                found = networks(open_project(place))
            except MicrocError:  # an export, or of another version
                continue
            for project in found:
                if project.manifest["fingerprint"] in built and network in ("", project.manifest["model"]):
                    return project
        names = ", ".join(model.name for model in board.models)
        raise UsageError(
            f"the board runs {names}, and no project here is built of that",
            where=transport.description,
            hint="name the project's folder: microc.Device(folder, port)",
        )
    except BaseException:
        transport.close()
        raise


def _reach(
    project: Project, port: str, bauds: Sequence[int], patience: float, stack: ExitStack
) -> tuple[Transport, float, bool]:
    """The line to a project's board, for how long to wait for it when it is lost, and whether it is our emulator's."""
    protocol = project.manifest["options"]["protocol"]
    if protocol == "mlperf":
        raise UsageError(
            f"the firmware speaks to MLPerf Tiny's runner ({protocol}), not to microc",
            where=str(project.folder),
            hint="compile it with --protocol rpc",
        )
    if simulated(project.board) and not port:
        return open_transport(simulator_line(project.board, project.elf)), 0.0, False
    if port or not (project.emulated or project.board.target.isa == "host"):
        port = find_port(project.board) if port in ("", AUTO) else port
        return _open(port, bauds, project.board.raw["console"].get("baud", _BAUD)), patience, False
    own = stack.enter_context(Emulator(project.board, project.elf)).url if project.emulated else _process(project)
    return open_transport(own), 0.0, project.emulated


def _process(project: Project) -> str:
    if not project.elf.is_file():
        raise UsageError("the project is not built", where=str(project.folder), hint=f"microc build {project.folder}")
    return "pipe:" + shlex.quote(str(project.elf.resolve()))


def _open(port: str, bauds: Sequence[int], usual: int) -> Transport:
    """The line at the first rate at which something answers; with one rate to choose from, at that."""
    rates = tuple(bauds) or (usual,)
    for rate in rates:
        transport = open_transport(port, rate)
        if len(rates) == 1:
            return transport
        client = Client(transport, _PROBE_SECONDS, retries=1)
        try:
            client.hello()
        except DeviceError:
            transport.close()
        else:
            return transport
    tried = ", ".join(map(str, rates))
    raise DeviceError(
        f"no answer at any of the rates {tried}",
        where=port,
        hint="is the firmware running, and built with the RPC protocol?",
    )
