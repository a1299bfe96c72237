"""Format the measurements of a search as an HTML page in the style of ``microc profile``.

For every kernel the page shows the best ticks after each measurement, and time against flash of its schedules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from microc import __version__
from microc.base.immutable import frozen
from microc.codegen.render import render_html
from microc.compiler.tuned.records import NETWORK, OK, UNTUNED, Database, Record
from microc.reports.drawings import PlotPoint, ScatterPlot, lay_out_scatter_plot
from microc.reports.page import Fact
from microc.run.profile import shorten_layer_name
from microc.tuning.search_space import Point as SpacePoint

MAX_DRAWN_SCHEDULES = 600
"""Maximum number of dominated schedules of a kernel that are drawn."""
_THOUSANDS_FROM = 100_000
"""Number of ticks from which on axes count thousands of ticks."""
TABLE_COLUMNS = ("records", "failed", "default", "best", "gain, %", "flash of it", "workspace")


@frozen
class KernelRow:
    """A row of the page's table: a kernel on a board.

    ``number``: number of the row. ``cells``: each cell as a number, by which rows are sorted, and as text.
    ``schedule``: the marked schedule, as text. ``full_name``: full name of the layer.
    """

    number: int
    layer: str
    full_name: str
    op: str
    board: str
    schedule: str
    cells: tuple[tuple[float, str], ...]
    plots: tuple[ScatterPlot, ...]


@frozen
class TunedContext:
    """Contents of the template ``report/tuned.html.j2``. ``mark``: label of the marked points."""

    title: str
    board: str
    mark: str
    facts: tuple[Fact, ...]
    columns: tuple[str, ...]
    rows: tuple[KernelRow, ...]
    origin: tuple[tuple[str, str], ...]


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
    context = TunedContext(
        title=title,
        board=", ".join(dict.fromkeys(record.board for record in records)),
        mark="taken" if chosen else "fastest",
        facts=tuple(_headline_facts(records, rows)),
        columns=TABLE_COLUMNS,
        rows=rows,
        origin=tuple(_origin_rows(records)),
    )
    return render_html("report/tuned.html.j2", context)


def _headline_facts(records: Sequence[Record], rows: Sequence[KernelRow]) -> Iterator[Fact]:
    """Yield the figures at the top of the page: numbers of kernels and measurements, and gains."""
    failed = sum(record.status != OK for record in records)
    wholes = [row for row in rows if row.op == NETWORK]
    yield Fact("Kernels", f"{len(rows) - len(wholes):,}", ", ".join(dict.fromkeys(r.cpu for r in records)))
    yield Fact("Measurements", f"{len(records):,}", f"{failed:,} failed" if failed else "none failed")
    gains = [row.cells[4][0] for row in rows if row.cells[4][1] and row.op != NETWORK]
    if gains:
        yield Fact("Largest gain", f"{min(gains):+.1f} %", "of a kernel, by its fastest schedule")
    for row in wholes:
        yield Fact("Whole network", f"{row.cells[4][0]:+.1f} %", f"{row.full_name}, {row.schedule}")


def _origin_rows(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
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
    return KernelRow(
        number=row_number,
        layer=shorten_layer_name(first.layer),
        full_name=first.layer,
        op=first.op,
        board=first.board,
        schedule=_format_schedule(marked) if marked else "",
        cells=tuple(_kernel_cells(records, good, default, fastest)),
        plots=(_plot_progress(good, marked), _plot_time_against_flash(good, marked)) if marked else (),
    )


def _kernel_cells(
    records: Sequence[Record], valid_records: Sequence[Record], default: Record | None, fastest: Record | None
) -> Iterator[tuple[float, str]]:
    """Yield the cells of a kernel, as number and text, in the order of :data:`TABLE_COLUMNS`.

    ``valid_records``: the records of measurements that did not fail.
    """
    for count in (len(records), len(records) - len(valid_records)):
        yield count, f"{count:,}"
    for record in (default, fastest):
        yield (record.ticks, f"{record.ticks:,.0f}") if record else (-1, "")
    gain = 100 * (fastest.ticks / default.ticks - 1) if default and fastest and default.ticks else None
    yield (gain, f"{gain:+.1f}") if gain is not None else (0, "")
    for size in (fastest.flash, fastest.workspace) if fastest else ():
        yield size, f"{size:,}"


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
