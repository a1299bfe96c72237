"""A compiled network on a board as one object: :class:`Report`, plain data that is a page, JSON, or a table in a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.codegen.files import replacing
from microc.driver import accepted
from microc.driver.compile.fit import capacity
from microc.driver.report.layers import layers_of, slowest
from microc.driver.report.next_steps import Situation, advice_for
from microc.driver.report.schema import VERSION
from microc.driver.report.words import milliseconds, stack_words, time_words
from microc.driver.shown import signature, table
from microc.errors import OutputError
from microc.target import Board

if TYPE_CHECKING:
    from microc.driver.measure.profile import Profile


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """A network on a board in numbers.

    ``data`` is plain: ``totals``, sizes in bytes; ``layers``, one for each kernel in order, with estimated cycles and, of
    a measured report, the time; ``stack``, ``state``, ``accuracy`` (None: nothing was verified), ``advice``. ``microc.report``
    makes one; :func:`microc.driver.report.reading.read_report` reads one.
    """

    data: Mapping[str, Any]

    def html(self, before: Report | None = None) -> str:
        """One page of HTML that needs nothing else; ``before``: what it is compared with. Equal reports give equal pages."""
        from microc.driver.report.page import to_html

        return to_html(self.data, before.data if before is not None else None)

    def json(self) -> str:
        """The data as JSON, with a line break at its end."""
        return json.dumps(self.data, indent=1) + "\n"

    def to_data(self) -> dict[str, Any]:
        """The data, ready for JSON."""
        return dict(self.data)

    def save(self, path: str | Path) -> Path:
        """Write the page (``.html``) or the data (``.json``); OutputError for another ending."""
        target = accepted.path("a report", path)
        if target.suffix not in (".html", ".json"):
            raise OutputError(
                f"cannot write a report to {target.name}", where=str(target), hint="end it in .html or .json"
            )
        with replacing(target) as temporary:
            temporary.write_text(self.html() if target.suffix == ".html" else self.json(), encoding="utf-8")
        return target

    def __repr__(self) -> str:
        return f"<Report {self._signature()} on {self.data['board']['name']}: {time_words(self.data)}>"

    def _repr_html_(self) -> str:
        totals, data = self.data["totals"], self.data
        rows: list[tuple[str, object]] = [
            ("one inference", time_words(data)),
            ("multiply-accumulates", totals["macs"]),
            *((f"{name}, bytes", totals[name]) for name in ("flash", "ram", "arena") if totals[name] is not None),
            ("stack", stack_words(data)),
            ("holds state", f"{sum(s['bytes'] for s in data['state']):,} bytes" if data["state"] else "no"),
            *((f"{100 * each['share']:.1f} %", each["name"]) for each in slowest(data)),
        ]
        return table(f"{self._signature()} on {data['board']['title']}", rows)

    def _signature(self) -> str:
        return signature(self.data["model"], self.data["inputs"], self.data["outputs"])


def report_of(
    manifest: Mapping[str, Any],
    board: Board,
    *,
    model_c: str = "",
    numbers: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    stack: int | None = None,
    accuracy: Mapping[str, Any] | None = None,
    code_in_ram: float = 0.0,
    notes: Sequence[str] = (),
) -> Report:
    """The report of a network that a manifest (:mod:`microc.codegen.manifest`) describes, on ``board``.

    ``model_c``: the printed network, for the C of every layer. ``numbers``: what :meth:`microc.Program.report` gives, for flash
    and RAM before anything is linked, and advice. ``profile``: what was measured; ``stack``: bytes that the board used at most;
    ``accuracy``: of :func:`microc.driver.report.accuracy.read_accuracy`. ``code_in_ram``, ``notes``: as in
    :mod:`microc.driver.report.next_steps`, which are not known of a project.
    """
    clock, known = board.raw.get("clock_hz"), numbers or {}
    layers = layers_of(manifest, model_c, clock, profile)
    cycles = sum(layer["cycles"] for layer in layers)
    size = profile.size if profile else None
    tensors = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    data: dict[str, Any] = {
        "report_version": VERSION,
        **{name: manifest[name] for name in ("model", "source", "fingerprint", "microc", "options", "planner")},
        "board": {
            "name": board.name,
            "title": board.title,
            "cpu": manifest["options"].get("cpu", board.target.cpu),
            "clock_hz": clock,
            "flash": capacity(board, "flash"),
            "ram": capacity(board, "ram"),
        },
        "measured": _measured(profile) if profile else None,
        "totals": {
            "cycles": cycles,
            "milliseconds": milliseconds(cycles, clock),
            "instructions": sum(layer["instructions"] for layer in layers),
            "macs": manifest["macs"],
            "nominal_macs": manifest["nominal_macs"],
            "flash": size.flash if size else known.get("flash"),
            "ram": size.ram if size else known.get("ram"),
            "arena": manifest["arena_size"],
            "arena_lower_bound": manifest["arena_lower_bound"],
            "weights": manifest["const_bytes"],
        },
        "stack": {"bytes": manifest.get("stack_bound"), "measured": stack},
        "state": [_tensor(t) for t in manifest["tensors"] if t["kind"] == "state"],
        "streaming": manifest["streaming"],
        "inputs": [_tensor(tensors[name]) for name in manifest["inputs"]],
        "outputs": [_tensor(tensors[name]) for name in manifest["outputs"]],
        "tensors": [{**_tensor(t), "kind": t["kind"], "written_by": t["written_by"]} for t in manifest["tensors"]],
        "memory": [
            {**{name: m[name] for name in ("name", "kind", "dtype", "shape", "bytes", "offset", "first", "last")}}
            for m in manifest["memory"]
        ],
        "memories": list(known.get("memories", ())),
        "layers": layers,
        "firmware": size.parts() if size else None,
        "accuracy": dict(accuracy) if accuracy is not None else None,
    }
    advice = known.get("next_steps") or advice_for(Situation(data, board, code_in_ram), notes)
    return Report({**data, "advice": advice})


def _measured(profile: Profile) -> dict[str, Any]:
    return {
        "unit": profile.unit,
        "meaning": profile.clock.meaning,
        "time": profile.time,
        "seconds": profile.clock.seconds(profile.time),
    }


def _tensor(tensor: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tensor[name] for name in ("name", "label", "dtype", "shape", "bytes", "scale", "zero_point")}
