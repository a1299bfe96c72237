# SPDX-License-Identifier: Apache-2.0
"""Format the measurements of a search as an HTML page in the style of ``microc profile``.

For every kernel the page shows the best ticks after each measurement, and time against flash of its schedules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from microc import __version__
from microc.base.immutable import frozen
from microc.compiler.tuned.records import NETWORK, OK, UNTUNED, Database, Record
from microc.document.blocks import Cell, Fact, Term, layer_names, numbers, table, texts
from microc.reports.drawings import PlotPoint, ScatterPlot, lay_out_scatter_plot
from microc.reports.report_page import Figure, Legend, Page, Section, SortableTable, grid, render_page, section
from microc.run.profile import shorten_layer_name
from microc.tuning.search_space import Point as SpacePoint

MAX_DRAWN_SCHEDULES = 600
"""Maximum number of dominated schedules of a kernel that are drawn."""
_THOUSANDS_FROM = 100_000
"""Number of ticks from which on axes count thousands of ticks."""
_COLUMNS = (
    *numbers("records", "failed", "default", "best"),
    *numbers("gain, %", spec="+.1f"),
    *numbers("flash of it", "workspace"),
)


@frozen
class KernelRow:
    """A row of the page's table: a kernel on a board.

    ``number``: number of the row. ``gain``: change of the time by the fastest schedule in percent, None if unknown.
    ``cells``: those in :data:`_COLUMNS`. ``schedule``: the marked schedule, as text. ``full_name``: full name of the layer.
    """

    number: int
    layer: str
    full_name: str
    op: str
    board: str
    schedule: str
    gain: float | None
    cells: tuple[Cell, ...]
    plots: tuple[ScatterPlot, ...]


def to_html(
    database: Database,
    title: str,
    *,
    keys: Collection[str] = (),
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the HTML page of a database of tuning records. Equal records give equal pages.

    ``keys``: show only the kernels with these keys; all if empty. ``chosen``: by the key of each kernel, the id of the
    record that a compilation uses, or ``untuned``. The page marks these records. If ``chosen`` is empty, the fastest
    schedules are marked.
    """
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in database:
        if not keys or record.key in keys:
            groups.setdefault((record.key, record.board, record.unit, record.toolchain), []).append(record)
    rows = tuple(_make_kernel_row(number, records, chosen) for number, records in enumerate(groups.values(), 1))
    records = [record for group in groups.values() for record in group]
    boards, mark = ", ".join(dict.fromkeys(record.board for record in records)), "taken" if chosen else "fastest"
    page = Page(
        command="tune",
        title=title,
        board=boards,
        lead=boards,
        figures=tuple(_headline_figures(records, rows)),
        sections=(_kernels_section(rows, mark), *(_plots_section(row, mark) for row in rows if row.plots)),
        origin=tuple(_origin_rows(records)),
    )
    return render_page(page)


def _kernels_section(rows: Sequence[KernelRow], mark: str) -> Section:
    """Make the section with the table of kernels; ``mark``: heading of the marked schedules."""
    columns = (*numbers("no."), *layer_names("layer"), *texts("operators", "board", mark), *_COLUMNS)
    cells = [(row.number, Term(row.layer, row.full_name), row.op, row.board, row.schedule, *row.cells) for row in rows]
    return section(
        "kernels",
        "Kernels",
        SortableTable(table(columns, cells), "table of kernels"),
        intro="A click on a heading sorts. The default is what is compiled without records; layers that are alike are one "
        "kernel.",
    )


def _plots_section(row: KernelRow, mark: str) -> Section:
    """Make the section with the plots of a kernel; ``mark``: meaning of the marked points."""
    legend = (("chosen", mark), ("measured", "on the front, or better than all before"), ("predicted", "beaten"))
    return section(
        f"kernel{row.number}",
        f"{row.number} {row.layer}",
        Legend(legend),
        grid(row.plots),
        note=row.op,
        intro="Left: the best after so many trials. Right: the space that was measured, time against flash; the line joins "
        "what nothing beats in both.",
    )


def _headline_figures(records: Sequence[Record], rows: Sequence[KernelRow]) -> Iterator[Figure]:
    """Yield the figures at the top of the page: numbers of kernels and measurements, and gains."""
    failed = sum(record.status != OK for record in records)
    wholes = [row for row in rows if row.op == NETWORK]
    yield Figure("Kernels", f"{len(rows) - len(wholes):,}", ", ".join(dict.fromkeys(r.cpu for r in records)))
    yield Figure("Measurements", f"{len(records):,}", f"{failed:,} failed" if failed else "none failed")
    gains = [row.gain for row in rows if row.gain is not None and row.op != NETWORK]
    if gains:
        yield Figure("Largest gain", f"{min(gains):+.1f} %", "of a kernel, by its fastest schedule")
    for row in wholes:
        yield Figure("Whole network", f"{row.gain or 0:+.1f} %", f"{row.full_name}, {row.schedule}")


def _origin_rows(records: Sequence[Record]) -> Iterator[Fact]:
    """Yield the rows that describe the origin of the numbers: unit, compiler, and version of microc."""
    yield "unit", ", ".join(dict.fromkeys(record.unit for record in records))
    yield "built by", ", ".join(dict.fromkeys(record.toolchain for record in records))
    yield "microc", __version__


def _make_kernel_row(row_number: int, records: Sequence[Record], chosen: Mapping[str, str]) -> KernelRow:
    """Create the row of a kernel from its records. ``chosen``: as for :func:`to_html`."""
    good = [record for record in records if record.status == OK]
    first = records[0]
    default = next((record for record in good if record.untuned), None)
    fastest = min(good, key=lambda record: record.ticks, default=None)
    pick = chosen.get(first.key, "" if not chosen else UNTUNED)
    marked = default if pick == UNTUNED else next((r for r in good if r.id == pick), fastest) if pick else fastest
    gain = 100 * (fastest.ticks / default.ticks - 1) if default and fastest and default.ticks else None
    ticks = (record.ticks if record else None for record in (default, fastest))
    return KernelRow(
        number=row_number,
        layer=shorten_layer_name(first.layer),
        full_name=first.layer,
        op=first.op,
        board=first.board,
        schedule=_format_schedule(marked) if marked else "",
        gain=gain,
        cells=(
            len(records),
            len(records) - len(good),
            *(None if each is None else round(each) for each in ticks),
            gain,
            *((fastest.flash, fastest.workspace) if fastest else (None, None)),
        ),
        plots=(_plot_progress(good, marked), _plot_time_against_flash(good, marked)) if marked else (),
    )


def _plot_progress(valid_records: Sequence[Record], marked_record: Record) -> ScatterPlot:
    """Create the plot of the best ticks so far after each valid measurement."""
    scale, unit = _choose_tick_divisor_and_unit(valid_records)
    points, line, best = list[PlotPoint](), list[tuple[float, float]](), float("inf")
    for trial, record in enumerate(valid_records, 1):
        if record.ticks < best:
            line += [(trial, best / scale)] if line else []
            best = record.ticks
            points.append(
                PlotPoint(
                    trial, best / scale, _kind_of_point(record, marked_record, True), _format_record_tooltip(record)
                )
            )
            line.append((trial, best / scale))
    line.append((len(valid_records), best / scale))
    points.append(
        PlotPoint(len(valid_records), best / scale, "measured", f"{best:,.0f} after {len(valid_records):,} trials")
    )
    return lay_out_scatter_plot(points, ("trials", unit), line)


def _plot_time_against_flash(valid_records: Sequence[Record], marked_record: Record) -> ScatterPlot:
    """Create the plot of time against flash for all schedules of a kernel, with their Pareto front."""
    scale, unit = _choose_tick_divisor_and_unit(valid_records)
    front, least = list[Record](), float("inf")
    for record in sorted(valid_records, key=lambda r: (r.flash, r.ticks)):
        if record.ticks < least:
            front.append(record)
            least = record.ticks
    front_ids = {record.id for record in (*front, marked_record)}
    dominated = [record for record in valid_records if record.id not in front_ids]
    shown = [
        *dominated[:: 1 + len(dominated) // MAX_DRAWN_SCHEDULES],
        *front,
        *([marked_record] if marked_record not in front else []),
    ]
    points = [
        PlotPoint(
            r.flash, r.ticks / scale, _kind_of_point(r, marked_record, r.id in front_ids), _format_record_tooltip(r)
        )
        for r in shown
    ]
    return lay_out_scatter_plot(points, ("bytes of flash", unit), [(r.flash, r.ticks / scale) for r in front])


def _kind_of_point(record: Record, marked_record: Record, is_highlighted: bool) -> str:
    """Return the kind of a record's point, which selects its colour: the marked record, a highlighted record, or
    another."""
    return "chosen" if record is marked_record else "measured" if is_highlighted else "predicted"


def _choose_tick_divisor_and_unit(valid_records: Sequence[Record]) -> tuple[int, str]:
    """Return the divisor of ticks on the axes, and the name of the resulting unit."""
    large = max(record.ticks for record in valid_records) >= _THOUSANDS_FROM
    return (1000, f"thousand {valid_records[0].unit}") if large else (1, valid_records[0].unit)


def _format_record_tooltip(record: Record) -> str:
    """Return the tooltip of a record's point: id, ticks, bytes of flash, schedule."""
    return (
        f"{record.id}: {record.ticks:,.0f} {record.unit}, {record.flash:,} bytes of flash, {_format_schedule(record)}"
    )


def _format_schedule(record: Record) -> str:
    """Return the schedule of a record as text. For a whole network it is the rule of the record."""
    if record.op == NETWORK:
        return record.rule
    return str(SpacePoint(record.algorithm, record.rule, record.decisions))
