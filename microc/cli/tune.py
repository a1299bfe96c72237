"""``microc tune``: the search, and the file of records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from microc.cli import INTERRUPTED, show
from microc.cli.arguments import Arguments
from microc.cli.files import write_text
from microc.cli.model_options import chosen_options
from microc.cli.tuned_records import repeated, rewritten, shown
from microc.cli.tuning_progress import gain, watching
from microc.errors import UsageError

if TYPE_CHECKING:
    from microc.tuning.api import Tuning
    from microc.tuning.tuned import TunedNetwork

_SHOWN_VALUES = 12


def tune(arguments: Arguments) -> show.Answer:
    """``microc tune``."""
    if arguments.show is not None:
        return shown(arguments.show, arguments.html)
    if arguments.merge or arguments.prune is not None:
        return rewritten(arguments)
    if arguments.model is None:
        raise UsageError("there is no model to tune", hint="microc tune MODEL --board BOARD")
    if not arguments.board and not arguments.target:
        raise UsageError("there is nothing to measure on", hint="--board BOARD, or --target native for this computer")
    if "tuned" in chosen_options(arguments):
        raise UsageError(
            "a search compares with what there is without records", hint="name the file that grows: --records FILE"
        )
    if arguments.space:
        return _spaces(arguments)
    if arguments.repeat:
        return repeated(arguments)
    return _searched(arguments)


def _searched(arguments: Arguments) -> show.Answer:
    from microc.driver.options import make_options
    from microc.driver.tuned.plan import write_plan
    from microc.tuning.api import Interrupted, tune, tuning_plan
    from microc.tuning.page import to_html
    from microc.tuning.subject import refuse_open

    assert arguments.model is not None
    options, ended = chosen_options(arguments), False
    plan = options.pop("plan", None)
    if plan is not None:
        refuse_open(make_options(**options))
    if plan is not None and plan.exists():
        raise UsageError(f"there is a plan {plan} already, and a person may have edited it", hint="name another file")
    with watching(arguments) as callback:
        try:
            found = tune(
                arguments.model,
                arguments.target,
                board=arguments.board or None,
                records=arguments.records,
                port=arguments.ports,
                load=arguments.load,
                trials=arguments.trials,
                time=arguments.time,
                search=arguments.search,
                cost_model=arguments.cost_model,
                seed=arguments.seed,
                jobs=arguments.jobs,
                fleet=arguments.fleet,
                layers=arguments.only,
                callback=callback,
                **options,
            )
        except Interrupted as end:
            found, ended = end.tuning, True
    data = {"event": "end", "interrupted": ended, "records": str(arguments.records), **found.to_data()}
    text = _table(found, arguments.records)
    if ended:
        text += f"\nended by Ctrl-C: {arguments.records} has every batch that was told; the same command goes on there"
    elif arguments.html is not None and found.regions:
        keys = [each.task.key for each in (*found.kernels, *(region.tuned for region in found.regions))]
        write_text(arguments.html, to_html(found.database, arguments.model.name, keys=keys))
    elif plan is not None or arguments.html is not None:
        board, records = arguments.board or None, arguments.records
        chosen = tuning_plan(arguments.model, arguments.target, board=board, records=records, **options)
        if plan is not None:
            write_plan(plan, chosen)
            text += f"\nor what the plan chooses: microc compile MODEL --plan {plan}"
        if arguments.html is not None:
            choices = {kernel["key"]: kernel["choice"] for kernel in chosen["kernels"]}
            keys = [kernel.task.key for kernel in found.kernels]
            if found.network is not None:
                keys, choices = [*keys, found.network.key], {**choices, found.network.key: found.network.taken}
            write_text(arguments.html, to_html(found.database, arguments.model.name, keys=keys, chosen=choices))
    return show.Answer(data, text, INTERRUPTED if ended else 0)


def _table(found: Tuning, records: Path) -> str:
    rows = [
        (
            show.layer(k.task.name) + (f" and {len(k.task.layers) - 1} more" if len(k.task.layers) > 1 else ""),
            k.task.op,
            show.count(len(k.search.space.points)),
            show.count(k.tried),
            "" if k.default is None else show.count(round(k.default)),
            "" if k.default is None else show.count(round(k.best)),
            gain(k.default, k.best),
            k.point,
        )
        for k in found.kernels
    ]
    failed = sum(each.failed for each in (*found.kernels, *(region.tuned for region in found.regions)))
    notes = [
        f"tuned kernels: {show.count(round(found.default))} -> {show.count(round(found.best))} {found.unit} "
        f"({gain(found.default, found.best) or 'nothing measured'}), each by its fastest schedule",
        *([whole(found.network, found.unit)] if found.network is not None else []),
        *([f"{failed} candidates failed: microc tune --show {records}"] if failed else []),
        f"use them: microc compile MODEL --tuned {records}",
    ]
    head = ("layer", "operators", "points", "tried", f"default, {found.unit}", "best", "", "schedule")
    tables = [show.table(head, rows, 2)] if rows else []
    if found.regions:
        tables.append(_regions(found))
    return "\n\n".join((*tables, "\n".join(notes)))


def whole(network: TunedNetwork, unit: str) -> str:
    """The network as a whole, in words."""
    scale, unit = (1000, "us") if unit == "ns" else (1, unit)
    kept = len(network.kept)
    stay = f"; {kept} kernel{'s stay as they were' if kept > 1 else ' stays as it was'}" if kept else ""
    before, now = (f"{ticks / scale:,.1f}" for ticks in (network.default, network.best))
    return f"whole network: {before} -> {now} {unit} ({network.best / network.default:.3f}){stay}"


def _regions(found: Tuning) -> str:
    """Ours and theirs, region by region."""
    rows = [
        (
            show.layer(region.task.name)
            + (f" and {len(region.task.layers) - 1} more" if len(region.task.layers) > 1 else ""),
            region.task.whose,
            *(
                "" if ticks is None else show.count(round(ticks))
                for ticks in (region.verdict.ours, region.verdict.theirs)
            ),
            region.taken or "by cost",
            region.why,
        )
        for region in found.regions
    ]
    return show.table(("layer", "external code", f"ours, {found.unit}", "theirs", "taken", ""), rows, 2)


def _spaces(arguments: Arguments) -> show.Answer:
    """What a search could try."""
    from microc.tuning.api import spaces

    found = spaces(arguments.model, arguments.target, board=arguments.board or None, **chosen_options(arguments))
    parts = []
    for kernel in found:
        more = f" and {len(kernel['layers']) - 1} more" if len(kernel["layers"]) > 1 else ""
        head = f"{show.layer(kernel['layers'][0])}{more} ({kernel['op']}): {show.count(kernel['points'])} points"
        rows: list[tuple[str, object]] = [("default", kernel["default"])]
        rows += [(f"  {name}", _values(values)) for name, values in kernel["decisions"].items() if len(values) > 1]
        parts.append(head + "\n" + show.facts(rows))
    return show.Answer({"kernels": found}, "\n\n".join(parts))


def _values(values: list[Any]) -> str:
    shown = ", ".join(str(value) or "-" for value in values[:_SHOWN_VALUES])
    return shown + (f", ... ({len(values)})" if len(values) > _SHOWN_VALUES else "")
