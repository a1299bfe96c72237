"""``microc size``: flash and RAM by part, layer and symbol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.growth import base_report, held, read_report
from microc.cli.session import build_firmware, opened_project
from microc.errors import UsageError
from microc.reading import open_regular

if TYPE_CHECKING:
    from microc.driver.report.size import SizeReport

_SHOWN_SYMBOLS = 12
_ELF = b"\x7fELF"


def size(arguments: Arguments) -> show.Answer:
    """``microc size``."""
    from microc.cli.files import check_places, write_csv
    from microc.driver.report.size_change import compare

    check_places(**{"--csv": arguments.csv})
    if arguments.fail_over and arguments.base is None:
        raise UsageError(
            "--fail-over speaks of --against", hint="microc size firmware --against before.json --fail-over 2%"
        )
    if arguments.compare and arguments.base:
        raise UsageError("--compare and --against are one: the second tells more", hint="give --against")
    base = base_report(arguments.base) if arguments.base else None
    if base is not None and _is_report(arguments.source):
        return held(arguments, read_report(arguments.source), base, "")
    before = read_report(arguments.compare) if arguments.compare else base if _has_symbols(base) else None
    with _measured(arguments) as report:
        data = report.to_data()
        text = _text(report)
        if arguments.csv is not None:
            write_csv(
                arguments.csv,
                ("part", "network", "steps", "symbol", "source", "section", "kind", "bytes"),
                _rows(report),
            )
        if before is not None:
            data["changes"] = compare(before, report)
            text = _changes(data["changes"])
    return show.Answer(data, text) if base is None else held(arguments, data, base, text if before is not None else "")


def _is_report(path: Path) -> bool:
    """Whether this is a report, by its name: reports and models are files."""
    return path.suffix == ".json" and path.is_file()


def _has_symbols(report: Any) -> bool:
    """Whether a report tells of symbols, as those of sizes do."""
    return isinstance(report, dict) and "symbols" in report


@contextmanager
def _measured(arguments: Arguments) -> Iterator[SizeReport]:
    """The report about a project, an ELF file, or a model that is compiled and built on the fly."""
    from microc.codegen.files import MARKER
    from microc.driver.measure.firmware import open_project
    from microc.driver.report.size import measure

    if not _is_elf(arguments.source):
        if arguments.project is not None:
            raise UsageError(
                "--project says whose network an ELF file holds", hint="microc size FIRMWARE.elf --project DIR"
            )
        with opened_project(arguments) as project:
            build_firmware(project, arguments)
            yield measure(project)
        return
    elf, folder = arguments.source, arguments.project or arguments.source.parent
    if arguments.project is None and not (folder / MARKER).is_file():
        raise UsageError(
            f"no project lies beside {elf.name}", where=str(elf), hint="say whose network it holds: --project DIR"
        )
    project = open_project(folder)
    yield measure(project, None if elf.resolve() == project.elf.resolve() else elf)


def _is_elf(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False  # a folder, or nothing: its reader says so


def _rows(report: SizeReport) -> Iterator[tuple[object, ...]]:
    for s in report.symbols:
        yield s.part, s.network, " ".join(map(str, s.steps)), s.name, s.source, s.section, s.kind, s.size


def _text(report: SizeReport) -> str:
    from microc.driver.report.owners import PARTS

    rows = [
        (part, PARTS[part], show.count(sizes["text"] + sizes["data"]), show.count(sizes["data"] + sizes["bss"]))
        for part, sizes in report.parts().items()
        if part != "stack"
    ]
    reserved = f"the most that a run takes; {show.count(report.reserved_stack)} reserved"
    rows.append(("stack", reserved, "0", show.count(report.stack)))
    rows.append(("total", f"size(1): text {report.text}, data {report.data}, bss {report.bss}",
                 show.count(report.flash), show.count(report.ram)))  # fmt: skip
    parts = show.table(("part", "what it is", "flash", "RAM"), rows, 2)
    several = len({layer.network for layer in report.layers}) > 1
    layers = show.table(
        ("step", "layer", "operators", "code", "constants", "flash", "%", "arena"),
        [
            (
                f"{layer.network} {layer.step}" if several else layer.step,
                show.layer(layer.layer),
                layer.op,
                show.count(layer.code) + ("*" if layer.shared_code else ""),
                show.count(layer.constants),
                show.count(layer.flash),
                f"{100 * layer.flash / max(report.flash, 1):.1f}",
                show.count(layer.arena),
            )
            for layer in report.layers
        ],
        3,
    )
    symbols = show.table(
        ("largest symbols", "part", "source", "section", "bytes"),
        [(s.name, s.part, s.source, s.section, show.count(s.size)) for s in report.symbols[:_SHOWN_SYMBOLS]],
        4,
    )
    note = "arena: bytes that hold something during the step, part of the RAM above"
    if any(layer.shared_code for layer in report.layers):
        note += "\n*: shares functions with other layers; its part of them is counted"
    return f"{parts}\n\n{layers}\n{note}\n\n{symbols}"


def _changes(changes: dict[str, Any]) -> str:
    parts = [(row["part"], row["memory"], *_change(row)) for row in changes["parts"] if row["change"]] + [
        ("total", row["memory"], *_change(row)) for row in changes["totals"] if row["memory"] in ("flash", "ram")
    ]
    text = show.table(("part", "memory", "before", "after", "change"), parts, 2)
    symbols = [(s["symbol"], s["part"], *_change(s)) for s in changes["symbols"][:_SHOWN_SYMBOLS]]
    return f"{text}\n\n{show.table(('symbol', 'part', 'before', 'after', 'change'), symbols, 2)}" if symbols else text


def _change(row: dict[str, Any]) -> tuple[str, str, str]:
    return show.count(row["before"]), show.count(row["after"]), f"{row['change']:+,}"
